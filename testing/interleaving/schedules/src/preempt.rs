//! Every place at which a thread can be overtaken: a scheduler that is systematic where shuttle's are random.
//!
//! A step is what a thread does up to its next access to shared memory. First each thread that is to be overtaken runs alone for one step,
//! then for two, and so on to its end, and each time the others run to their ends before it goes on. Then two threads are stopped, each
//! after a number of its steps that is drawn, before any comes to its end.
//!
//! What takes more than that is *woven*: a scenario says which threads are stopped in turn, one perhaps twice, and how each is moved on:
//! by an access, or to its next exchange. Every combination is tried.

use harness::Random;
use keyway_region::observe::Access;
use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use std::cell::Cell;

/// A thread by its number, and how far it runs before the next one does.
type Turn = (usize, Until);

/// How far a thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Until {
    /// for so many steps, at least one
    Steps(u64),
    /// up to its exchange of this number, from 1 on, counted from where it stands
    Exchange(u64),
    End,
}

/// How a thread that is stopped is moved on from one schedule to the next, and how often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    Step(u64),
    Exchange(u64),
}

/// Threads that are stopped in turn, and in which order all come to their ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weave {
    pub stops: &'static [(usize, By)],
    pub ends: &'static [usize],
}

/// Threads of a scenario at most.
const THREADS_MAX: usize = 4;

thread_local! {
    static FIRST_TURN: Cell<Option<u64>> = const { Cell::new(None) };
    /// the thread that runs now, and how far it goes on before the scheduler is asked
    static RUNNING: Cell<Option<Turn>> = const { Cell::new(None) };
    /// steps that each has made so
    static UNSEEN: [Cell<u64>; THREADS_MAX] = const { [const { Cell::new(0) }; THREADS_MAX] };
}

/// Whether the present thread, which is about to make this access, goes on anyway: the scheduler need not be asked.
pub(crate) fn goes_on(access: Access) -> bool {
    let Some((thread, until)) = RUNNING.get() else {
        return false;
    };
    let left = match until {
        Until::Steps(left) => left.checked_sub(1).filter(|left| *left > 0).map(Until::Steps),
        Until::Exchange(left) if access == Access::Exchange => left.checked_sub(1).filter(|left| *left > 0).map(Until::Exchange),
        other => Some(other),
    };
    if let Some(left) = left {
        RUNNING.set(Some((thread, left)));
        UNSEEN.with(|unseen| unseen[thread].set(unseen[thread].get() + 1));
    }
    left.is_some()
}

/// The turns of a schedule, and which of them is on.
#[derive(Default)]
struct Turns {
    all: Vec<Turn>,
    /// of the turn that is on, plus 1; 0: none has begun
    begun: usize,
    /// steps that each thread has made when the scheduler was asked
    made: [u64; THREADS_MAX],
    /// the first turn whose thread came to its end in it, and there is nothing to be stopped
    ended: Option<usize>,
}

impl Turns {
    fn new(all: Vec<Turn>) -> Self {
        for unseen in 0..THREADS_MAX {
            UNSEEN.with(|all| all[unseen].set(0));
        }
        RUNNING.set(None);
        FIRST_TURN.set(all.first().and_then(|(_, until)| match until {
            Until::Steps(steps) => Some(*steps),
            _ => None,
        }));
        Self { all, ..Self::default() }
    }

    /// Steps that a thread has made.
    fn steps(&self, thread: usize) -> u64 {
        self.made[thread] + UNSEEN.with(|unseen| unseen[thread].get())
    }

    /// Who goes on. The scheduler is asked where a turn is over: because it went as far as it was to, or because its thread has ended.
    fn next(&mut self, runnable: &[&Task]) -> Option<TaskId> {
        // The test's own thread starts the others and waits for them.
        let own = TaskId::from(0);
        RUNNING.set(None);
        let is_runnable = |id: TaskId| runnable.iter().any(|task| task.id() == id);
        if is_runnable(own) {
            return Some(own);
        }
        let on = self.begun.checked_sub(1).and_then(|at| Some((at, self.all.get(at)?.0)));
        if let Some((at, thread)) = on
            && !is_runnable(TaskId::from(thread + 1))
        {
            self.ended = self.ended.or(Some(at));
        }
        while let Some((thread, until)) = self.all.get(self.begun) {
            self.begun += 1;
            let id = TaskId::from(*thread + 1);
            if is_runnable(id) {
                RUNNING.set(Some((*thread, *until)));
                self.made[*thread] += 1;
                return Some(id);
            }
            self.ended = self.ended.or(Some(self.begun - 1));
        }
        runnable.first().map(|task| task.id())
    }
}

/// The steps of the present schedule's first turn, where they are planned.
pub(crate) fn first_turn() -> Option<u64> {
    FIRST_TURN.get()
}

/// The next schedules are another scheduler's.
pub(crate) fn forget() {
    FIRST_TURN.set(None);
    RUNNING.set(None);
}

pub(crate) struct Overtaken {
    threads: usize,
    /// the threads that are overtaken, and the orders of the others behind each
    sweeps: Vec<Vec<usize>>,
    sweep: usize,
    /// steps of the first thread
    steps: u64,
    /// schedules of a sweep at most: of a longer thread not every step is tried
    most: u64,
    /// schedules in which two are stopped, still to be made
    pairs: usize,
    random: Random,
    /// most steps that each thread was seen to make
    lengths: Vec<u64>,
    turns: Turns,
    draws: u64,
}

impl Overtaken {
    /// Of so many threads these are overtaken, each at `most` of its steps; `pairs` schedules stop two.
    pub fn new(threads: usize, overtaken: &[usize], most: u64, pairs: usize, seed: u64) -> Self {
        let sweeps = overtaken.iter().flat_map(|first| {
            let first = *first;
            let others: Vec<usize> = (0..threads).filter(|other| *other != first).collect();
            let backwards = (others.len() > 1).then(|| others.iter().rev().copied().collect());
            [Some(others), backwards]
                .into_iter()
                .flatten()
                .map(move |others: Vec<usize>| {
                    let mut order = vec![first];
                    order.extend(others);
                    order
                })
        });
        Self {
            threads,
            sweeps: sweeps.collect(),
            sweep: 0,
            steps: 0,
            most,
            pairs,
            random: Random::new(seed),
            lengths: vec![0; threads],
            turns: Turns::default(),
            draws: 0,
        }
    }

    /// The turns of the next schedule, if there is another one.
    fn plan(&mut self) -> Option<Vec<Turn>> {
        while let Some(order) = self.sweeps.get(self.sweep) {
            let first = order.first().copied().unwrap_or(0);
            // Where it came to its end before, more steps make no other schedule.
            if self.steps == 0 || self.steps < self.lengths[first] {
                let stride = self.lengths[first] / self.most;
                self.steps += 1 + if stride > 0 { self.random.below(2 * stride) } else { 0 };
                let rest = order.iter().skip(1).chain([&first]);
                let whole = rest.map(|thread| (*thread, Until::End));
                return Some([(first, Until::Steps(self.steps))].into_iter().chain(whole).collect());
            }
            self.sweep += 1;
            self.steps = 0;
        }
        self.pairs = self.pairs.checked_sub(1)?;
        let draw = |random: &mut Random, below: usize| usize::try_from(random.below(below.max(1) as u64)).unwrap_or(0);
        let one = draw(&mut self.random, self.threads);
        let other = (one + 1 + draw(&mut self.random, self.threads - 1)) % self.threads;
        let stopped = [one, other].map(|thread| (thread, Until::Steps(1 + self.random.below(self.lengths[thread].max(1)))));
        let begin = draw(&mut self.random, self.threads);
        let whole = (0..self.threads).map(|n| ((begin + n) % self.threads, Until::End));
        Some(stopped.into_iter().chain(whole).collect())
    }
}

impl Scheduler for Overtaken {
    fn new_execution(&mut self) -> Option<Schedule> {
        for (thread, most) in self.lengths.iter_mut().enumerate() {
            *most = (*most).max(self.turns.steps(thread));
        }
        self.turns = Turns::new(self.plan()?);
        Some(Schedule::new(self.draws))
    }

    fn next_task(&mut self, runnable: &[&Task], _: Option<TaskId>, _: bool) -> Option<TaskId> {
        self.turns.next(runnable)
    }

    fn next_u64(&mut self) -> u64 {
        self.draws += 1;
        self.draws
    }
}

/// The schedules of a [`Weave`].
pub(crate) struct Woven {
    weave: Weave,
    /// how far the thread of each stop goes; empty: nothing was tried yet
    counts: Vec<u64>,
    turns: Turns,
    draws: u64,
}

impl Woven {
    pub fn new(weave: Weave) -> Self {
        Self {
            weave,
            counts: Vec::new(),
            turns: Turns::default(),
            draws: 0,
        }
    }

    /// Where the threads are stopped next: the last one is moved on until it ends, then the one before is, and so on. `false`: all was
    /// tried.
    fn advance(&mut self) -> bool {
        let stops = self.weave.stops.len();
        if self.counts.is_empty() {
            self.counts = vec![1; stops];
            return true;
        }
        // Whose thread has ended has nowhere to be stopped, and those behind it were not stopped beside it.
        let mut left = self.turns.ended.map_or(stops, |ended| ended.min(stops));
        while let Some(moved) = left.checked_sub(1) {
            let (_, By::Step(most) | By::Exchange(most)) = self.weave.stops[moved];
            if self.counts[moved] < most {
                self.counts[moved] += 1;
                self.counts[left..].fill(1);
                return true;
            }
            left = moved;
        }
        false
    }
}

impl Scheduler for Woven {
    fn new_execution(&mut self) -> Option<Schedule> {
        if !self.advance() {
            return None;
        }
        let stopped = self.weave.stops.iter().zip(&self.counts).map(|((thread, by), count)| {
            let until = match by {
                By::Step(_) => Until::Steps(*count),
                By::Exchange(_) => Until::Exchange(*count),
            };
            (*thread, until)
        });
        let ends = self.weave.ends.iter().map(|thread| (*thread, Until::End));
        self.turns = Turns::new(stopped.chain(ends).collect());
        Some(Schedule::new(self.draws))
    }

    fn next_task(&mut self, runnable: &[&Task], _: Option<TaskId>, _: bool) -> Option<TaskId> {
        self.turns.next(runnable)
    }

    fn next_u64(&mut self) -> u64 {
        self.draws += 1;
        self.draws
    }
}
