//! Every place at which a thread can be overtaken: a scheduler that is systematic where shuttle's are random.
//!
//! A step is what a thread does up to its next access to shared memory. First each thread that is to be overtaken runs alone for one step,
//! then for two, and so on to its end, and each time the others run to their ends before it goes on. Then two threads are stopped, each
//! after a number of its steps that is drawn, before any comes to its end.

use harness::Random;
use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};
use std::cell::Cell;

/// A thread by its number, and for how many steps it runs before the next one does.
type Turn = (usize, u64);

/// Threads of a scenario at most.
const THREADS_MAX: usize = 4;

thread_local! {
    static FIRST_TURN: Cell<Option<u64>> = const { Cell::new(None) };
    /// the thread that runs to its end now
    static UNSTOPPED: Cell<Option<usize>> = const { Cell::new(None) };
    /// steps that each has made so
    static UNSEEN: [Cell<u64>; THREADS_MAX] = const { [const { Cell::new(0) }; THREADS_MAX] };
}

/// Whether the present thread goes on anyway: the scheduler need not be asked.
pub(crate) fn goes_on() -> bool {
    let thread = UNSTOPPED.get();
    if let Some(thread) = thread {
        UNSEEN.with(|unseen| unseen[thread].set(unseen[thread].get() + 1));
    }
    thread.is_some()
}

/// The steps of the present schedule's first turn, where they are planned.
pub(crate) fn first_turn() -> Option<u64> {
    FIRST_TURN.get()
}

/// The next schedules are another scheduler's.
pub(crate) fn forget() {
    FIRST_TURN.set(None);
    UNSTOPPED.set(None);
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
    made: Vec<u64>,
    turns: Vec<Turn>,
    turn: usize,
    draws: u64,
}

impl Overtaken {
    /// Of so many threads the first `overtaken` are, each at `most` of its steps; `pairs` schedules stop two.
    pub fn new(threads: usize, overtaken: usize, most: u64, pairs: usize, seed: u64) -> Self {
        let sweeps = (0..overtaken.min(threads)).flat_map(|first| {
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
            made: vec![0; threads],
            turns: Vec::new(),
            turn: 0,
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
                let whole = rest.map(|thread| (*thread, u64::MAX));
                return Some([(first, self.steps)].into_iter().chain(whole).collect());
            }
            self.sweep += 1;
            self.steps = 0;
        }
        self.pairs = self.pairs.checked_sub(1)?;
        let draw = |random: &mut Random, below: usize| usize::try_from(random.below(below.max(1) as u64)).unwrap_or(0);
        let one = draw(&mut self.random, self.threads);
        let other = (one + 1 + draw(&mut self.random, self.threads - 1)) % self.threads;
        let stopped = [one, other].map(|thread| (thread, 1 + self.random.below(self.lengths[thread].max(1))));
        let begin = draw(&mut self.random, self.threads);
        let whole = (0..self.threads).map(|n| ((begin + n) % self.threads, u64::MAX));
        Some(stopped.into_iter().chain(whole).collect())
    }
}

impl Scheduler for Overtaken {
    fn new_execution(&mut self) -> Option<Schedule> {
        for (thread, (most, made)) in self.lengths.iter_mut().zip(&mut self.made).enumerate() {
            let unseen = UNSEEN.with(|unseen| unseen[thread].take());
            *most = (*most).max(std::mem::take(made) + unseen);
        }
        UNSTOPPED.set(None);
        self.turns = self.plan()?;
        self.turn = 0;
        FIRST_TURN.set(self.turns.first().map(|(_, steps)| *steps));
        Some(Schedule::new(self.draws))
    }

    fn next_task(&mut self, runnable: &[&Task], _: Option<TaskId>, _: bool) -> Option<TaskId> {
        // The test's own thread starts the others and waits for them.
        let own = TaskId::from(0);
        UNSTOPPED.set(None);
        if runnable.iter().any(|task| task.id() == own) {
            return Some(own);
        }
        while let Some((thread, left)) = self.turns.get_mut(self.turn) {
            let id = TaskId::from(*thread + 1);
            if *left > 0 && runnable.iter().any(|task| task.id() == id) {
                if *left == u64::MAX {
                    UNSTOPPED.set(Some(*thread));
                } else {
                    *left -= 1;
                }
                self.made[*thread] += 1;
                return Some(id);
            }
            self.turn += 1;
        }
        runnable.first().map(|task| task.id())
    }

    fn next_u64(&mut self) -> u64 {
        self.draws += 1;
        self.draws
    }
}
