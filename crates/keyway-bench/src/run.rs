//! Running a plan: every measurement of every cell, the sides in turn, so that what the machine does meanwhile meets them alike.

use crate::caches::{Caches, Side, Way};
use crate::calls::Caller;
use crate::items::Items;
use crate::load::Load;
use crate::machine;
use crate::measurement::{Measurement, Window};
use crate::mix::Stream;
use crate::plan::{Cell, Door, Pace, Plan};
use crate::sockets::{Client, Shape};
use crate::workload::{Ranks, mix};
use std::io;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// What a plan gave.
#[derive(Debug, Default)]
pub struct Outcome {
    /// in the plan's order; after a failure the rest is absent
    pub cells: Vec<CellResult>,
    /// name, and version with options, of all that was measured
    pub about: Vec<(&'static str, String)>,
    /// the machine
    pub machine: String,
    /// when it began, Unix seconds
    pub begun_unix_s: u64,
    /// what the reader should know
    pub notes: Vec<String>,
    /// what went wrong; the figures of the measurements concerned are void
    pub failures: Vec<String>,
}

impl Outcome {
    /// Nothing measured so far; where and when.
    #[allow(clippy::cast_precision_loss, reason = "a few CPUs")]
    pub fn begin() -> Self {
        let mut outcome = Self {
            machine: machine::describe(),
            begun_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs(),
            ..Self::default()
        };
        let (load, cpus) = (machine::load_average(), machine::cpus());
        if load > 0.5 * cpus as f64 {
            outcome.note(format!(
                "other programs used this machine when it began (load {load} on {cpus} CPUs): figures move, ratios less so"
            ));
        }
        outcome
    }

    /// What the reader should know, once.
    pub fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// A cache that is measured, once.
    pub fn measured(&mut self, name: &'static str, about: String) {
        if !self.about.contains(&(name, about.clone())) {
            self.about.push((name, about));
        }
    }
}

/// What a cell gave.
#[derive(Debug)]
pub struct CellResult {
    /// which
    pub cell: Cell,
    /// Keyway's, then the peer's if there is one
    pub sides: Vec<SideResult>,
}

/// The measurements of one side.
#[derive(Debug)]
pub struct SideResult {
    /// whose
    pub name: &'static str,
    /// how it was reached
    pub way: &'static str,
    /// memory that storing an item took; `None`: unknown
    pub bytes_per_item: Option<f64>,
    /// items that the cache holds after the last measurement
    pub items_held: Option<u64>,
    /// in their order
    pub runs: Vec<Measurement>,
}

/// What happens while a plan runs.
#[derive(Debug)]
pub enum Event<'a> {
    /// something begins
    Doing {
        /// in words
        what: &'a str,
        /// share of the plan that is done, 0 to 1
        done: f64,
    },
    /// a cell is complete
    Cell(&'a CellResult),
}

/// Receives them.
pub type Progress<'a> = &'a mut dyn FnMut(Event<'_>);

/// Makes one measurement of a cell on a side.
pub type Measure<'a> = &'a dyn Fn(&Plan, &Cell, &Side, &Operations, Draw) -> io::Result<Measurement>;

/// Runs a plan. `progress` receives what happens.
///
/// # Errors
///
/// What hinders the beginning: a server that does not start or cannot be reached. What goes wrong later is in [`Outcome::failures`].
pub fn run(plan: &Plan, progress: Progress<'_>) -> io::Result<Outcome> {
    let mut outcome = Outcome::begin();
    run_on(plan, &mut outcome, progress)?;
    Ok(outcome)
}

/// Runs a plan, and adds what it gives to `outcome`. Ends with the first failure.
///
/// # Errors
///
/// What hinders the beginning: a server that does not start or cannot be reached. What goes wrong later is in
/// [`Outcome::failures`].
pub fn run_on(plan: &Plan, outcome: &mut Outcome, progress: Progress<'_>) -> io::Result<()> {
    let mut number = 0;
    for cells in plan.cells.chunk_by(Cell::shares_caches) {
        progress(Event::Doing {
            what: "starting",
            done: share(number, plan.cells.len()),
        });
        let mut caches = Caches::start(plan, cells)?;
        std::mem::take(&mut caches.notes)
            .into_iter()
            .for_each(|note| outcome.note(note));
        for cell in cells {
            run_cell(plan, number, cell, &caches.sides(cell), &measure, outcome, progress);
            if !outcome.failures.is_empty() {
                return Ok(());
            }
            number += 1;
        }
    }
    Ok(())
}

#[allow(clippy::cast_precision_loss, reason = "a few cells")]
fn share(done: usize, all: usize) -> f64 {
    done as f64 / all as f64
}

/// Runs cell `number` of a plan on these sides, each measurement as `measure` makes it.
pub fn run_cell(
    plan: &Plan,
    number: usize,
    cell: &Cell,
    sides: &[&Side],
    measure: Measure<'_>,
    outcome: &mut Outcome,
    progress: Progress<'_>,
) {
    let operations = Operations::new(cell);
    let empty = |side: &&Side| SideResult {
        name: side.name,
        way: side.way.words(),
        bytes_per_item: None,
        items_held: None,
        runs: Vec::new(),
    };
    let mut result = CellResult {
        cell: cell.clone(),
        sides: sides.iter().map(empty).collect(),
    };
    sides.iter().for_each(|side| outcome.measured(side.name, side.about.clone()));
    let in_all = plan.repetitions * sides.len();
    'all: for repetition in 0..plan.repetitions {
        for (at, (side, side_result)) in sides.iter().zip(&mut result.sides).enumerate() {
            let part = share(repetition * sides.len() + at, in_all);
            let what = format!("{}: {}, {} of {}", cell.name(), side.name, repetition + 1, plan.repetitions);
            progress(Event::Doing {
                what: &what,
                done: share(number, plan.cells.len()) + part / share(plan.cells.len(), 1),
            });
            let draw = Draw { repetition, step: 0 };
            let measured = with_a_turn(plan, |plan| measure(plan, cell, side, &operations, draw));
            let failure = match measured {
                Ok(run) => {
                    let failure = run.wrong.any().then(|| run.wrong.to_string());
                    side_result.runs.push(run);
                    failure
                }
                Err(e) => Some(e.to_string()),
            };
            side_result.bytes_per_item = side.store.bytes_per_item.get();
            if let Some(failure) = failure {
                outcome.failures.push(format!("{what}: {failure}"));
                break 'all;
            }
        }
    }
    if outcome.failures.is_empty() {
        if cell.door == Door::KernelTcp && sides[0].store.kernel_tcp_hits() == Some(0) {
            let name = cell.name();
            outcome.failures.push(format!(
                "{name}: the kernel door has answered nothing: does the workload read values of at most some 1,300 bytes, on connections \
                 that last?"
            ));
        }
        for (side, side_result) in sides.iter().zip(&mut result.sides) {
            side_result.items_held = side.store.items_held();
        }
    }
    note_bottleneck(plan, sides, &result, outcome);
    progress(Event::Cell(&result));
    outcome.cells.push(result);
}

/// Measures again, longer, where a busy machine gave a side no turn at all in the time that was asked for.
///
/// # Errors
///
/// Those of `measure`.
pub fn with_a_turn(plan: &Plan, measure: impl Fn(&Plan) -> io::Result<Measurement>) -> io::Result<Measurement> {
    /// Of the length, from one try to the next; the last one takes a thousand times as long.
    const LONGER: u32 = 4;
    const TRIES: usize = 6;
    let mut plan = plan.clone();
    for _ in 1..TRIES {
        let made = measure(&plan)?;
        let had_none = made.operations + made.unanswered + made.dropped == 0 && !made.elapsed.is_zero();
        if !had_none || made.wrong.any() {
            return Ok(made);
        }
        plan.length *= LONGER;
    }
    measure(&plan)
}

/// What all measurements of a cell draw from.
pub struct Operations {
    /// whose keys and values
    pub items: Items,
    ranks: Ranks,
}

impl Operations {
    /// Of this cell.
    pub fn new(cell: &Cell) -> Self {
        Self {
            items: cell.workload.items(cell.items),
            ranks: Ranks::new(cell.workload.access, cell.items),
        }
    }

    /// What each of so many threads does in one measurement, all of them together `rate` operations a second (`None`: a closed loop).
    #[allow(clippy::cast_precision_loss, reason = "a few threads")]
    pub fn loads(&self, plan: &Plan, cell: &Cell, side: &Side, draw: Draw, threads: usize, rate: Option<f64>) -> Vec<Load> {
        let load = |thread: usize| Load {
            stream: Stream::new(
                &cell.workload,
                cell.items,
                &self.ranks,
                side.store.newest.clone(),
                draw.seed(plan, cell, thread),
            ),
            items: self.items.clone(),
            fill: cell.workload.fill,
            rate: rate.map(|rate| rate / threads as f64),
            thread: draw.number(thread),
        };
        (0..threads).map(load).collect()
    }
}

/// One of the measurements of a cell on each side.
#[derive(Clone, Copy, Debug)]
pub struct Draw {
    /// which
    pub repetition: usize,
    /// of a search that measures several times
    pub step: usize,
}

impl Draw {
    /// What a thread's sequence is drawn from. Both sides draw the same; other cells and other measurements, which may find the same
    /// caches as this one left them, do not: asked for the same keys again, a cache that holds a part of them would hit too often.
    pub fn seed(self, plan: &Plan, cell: &Cell, thread: usize) -> u64 {
        let of_cell = cell.name().bytes().fold(plan.seed, |seed, byte| mix(seed ^ u64::from(byte)));
        [self.repetition, self.step, thread + 1]
            .into_iter()
            .fold(of_cell, |seed, number| mix(seed.wrapping_add(number as u64)))
    }

    /// A thread's number among those of all measurements.
    fn number(self, thread: usize) -> u64 {
        ((self.repetition as u64) << 16) + thread as u64 + 1
    }
}

/// One measurement, as the cell says.
///
/// # Errors
///
/// The items cannot be stored, or a client cannot connect.
pub fn measure(plan: &Plan, cell: &Cell, side: &Side, operations: &Operations, draw: Draw) -> io::Result<Measurement> {
    let rate = match cell.pace {
        Pace::Closed => None,
        Pace::Rate(rate) => Some(rate),
    };
    side.prepare(cell, &operations.items)?;
    let threads = match side.way {
        Way::Socket(_) => plan.client_threads.min(cell.connections),
        Way::Library(_) => cell.connections,
    };
    let loads = || operations.loads(plan, cell, side, draw, threads, rate).into_iter();
    match &side.way {
        Way::Library(cache) => {
            let callers = loads().map(|load| Ok(Caller::new(cache.session().map_err(io::Error::other)?, load)));
            at_once(plan, side, callers.collect::<io::Result<Vec<_>>>()?, Caller::run)
        }
        Way::Socket(target) => {
            let shape = |thread: usize| Shape {
                connections: cell.connections / threads + usize::from(thread < cell.connections % threads),
                depth: cell.depth,
                keys_per_get: cell.keys_per_get,
                silence_max: plan.silence_max,
            };
            let clients = loads()
                .enumerate()
                .map(|(thread, load)| Client::open(target, shape(thread), load));
            at_once(plan, side, clients.collect::<io::Result<Vec<_>>>()?, Client::run)
        }
    }
}

/// Runs each worker in a thread of its own, all in the same window, and looks at the server at both ends of it.
///
/// # Errors
///
/// A thread cannot be started.
pub fn at_once<W: Send>(
    plan: &Plan,
    side: &Side,
    workers: Vec<W>,
    run: impl Fn(W, Window) -> Measurement + Copy + Send,
) -> io::Result<Measurement> {
    let needed = workers.len();
    let window = Window::begin(plan.warmup, plan.length);
    let cpus = plan.client_cpus.as_slice();
    std::thread::scope(|scope| {
        let spawn = |worker| {
            let thread = std::thread::Builder::new();
            thread.spawn_scoped(scope, move || {
                let pinned = if cpus.is_empty() { Ok(()) } else { machine::pin(cpus) };
                let mut made = run(worker, window);
                if let Err(e) = pinned {
                    made.wrong
                        .describe(|| format!("the client cannot be pinned to CPUs {cpus:?}: {e}"));
                }
                made
            })
        };
        let threads: io::Result<Vec<_>> = workers.into_iter().map(spawn).collect();
        let threads = threads.map_err(|error| machine::cannot_start(&format!("the {needed} threads of clients"), &error))?;
        std::thread::sleep(window.from.saturating_duration_since(Instant::now()));
        // The last one asks the server, which may take its time.
        let before = (side.store.usage(), machine::busy(), side.store.kernel_hits());
        let mut all = Measurement::default();
        for thread in threads {
            match thread.join() {
                Ok(made) => all.add(&made),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all.machine = machine::busy()
            .zip(before.1)
            .map(|(after, before)| after.saturating_sub(before));
        all.server = side.store.usage().zip(before.0).map(|(after, before)| after.since(before));
        let hits = before.2.and_then(|before| Some((side.store.kernel_hits()?, before)));
        all.in_kernel = hits.map(|(after, before)| after.saturating_sub(before));
        Ok(all)
    })
}

/// A client that has no time left measures itself; and a server that cannot keep up has no latency.
#[allow(clippy::cast_precision_loss, reason = "a few CPUs")]
fn note_bottleneck(plan: &Plan, sides: &[&Side], result: &CellResult, outcome: &mut Outcome) {
    /// Shares of a CPU from which the client counts as busy, and up to which the server has time left.
    const CLIENT_BUSY: f64 = 0.95;
    const SERVER_IDLE: f64 = 0.9;
    for (side, side_result) in sides.iter().zip(&result.sides) {
        let cpus = if plan.server_cpus.is_empty() {
            machine::cpus()
        } else {
            plan.server_cpus.len()
        };
        let capacity = side.threads.clamp(1, cpus) as f64;
        let limited = side_result.runs.iter().filter(|run| {
            let server = run
                .server
                .map(|used| used.cpu.as_secs_f64() / run.elapsed.as_secs_f64().max(1e-9));
            // The kernel door works where the packet was sent from, which is the client's CPU.
            let in_kernel = run.in_kernel.is_some_and(|hits| hits > 0);
            // Calls are the client's own work, wherever a server may be.
            matches!(side.way, Way::Socket(_))
                && !in_kernel
                && run.client_busiest >= CLIENT_BUSY
                && server.is_some_and(|share| share < SERVER_IDLE * capacity)
        });
        let which = format!("{}, {}", result.cell.name(), side.name);
        if limited.count() * 2 > side_result.runs.len() {
            outcome.note(format!(
                "{which}: client-bound: the client's CPU was busy while the server had time left; give it more --client-threads, or read \
                 the server's CPU time an operation instead"
            ));
        }
        let unanswered: u64 = side_result.runs.iter().map(|run| run.unanswered).sum();
        if unanswered > 0 {
            outcome.note(format!(
                "{which}: cannot keep up with the rate: {unanswered} requests were due and never answered"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::tests::plan;
    use crate::workloads;
    use std::collections::HashSet;

    #[test]
    fn a_side_without_a_turn_is_measured_again_longer() {
        let plan = plan(Cell::new(workloads::find("ycsb-b").unwrap(), 1000, Door::Tcp, 1));
        let lengths = std::cell::RefCell::new(Vec::new());
        let made = with_a_turn(&plan, |plan| {
            lengths.borrow_mut().push(plan.length);
            Ok(Measurement {
                operations: u64::from(lengths.borrow().len() == 3),
                elapsed: plan.length,
                ..Measurement::default()
            })
        });
        assert_eq!(made.unwrap().operations, 1);
        assert_eq!(*lengths.borrow(), [1, 4, 16].map(|times| plan.length * times));
        // A server that answers nothing is no busy machine.
        let made = with_a_turn(&plan, |plan| {
            lengths.borrow_mut().clear();
            lengths.borrow_mut().push(plan.length);
            Ok(Measurement {
                unanswered: 1,
                ..Measurement::default()
            })
        });
        assert_eq!((made.unwrap().unanswered, lengths.borrow().len()), (1, 1));
    }

    #[test]
    fn no_two_threads_of_any_measurements_draw_the_same_and_a_seed_repeats() {
        let cell = |name, connections| Cell::new(workloads::find(name).unwrap(), 1000, Door::Tcp, connections);
        let cells = [cell("ycsb-b", 1), cell("ycsb-b", 16), cell("ycsb-c", 1)];
        let seeds = |seed| {
            let plan = Plan {
                seed,
                ..plan(cells[0].clone())
            };
            let draws = (0..3).flat_map(|repetition| (0..3).map(move |step| Draw { repetition, step }));
            let threads = draws.flat_map(|draw| (0..3).map(move |thread| (draw, thread)));
            let all = threads.flat_map(|(draw, thread)| cells.each_ref().map(|cell| draw.seed(&plan, cell, thread)));
            all.collect::<Vec<_>>()
        };
        assert_eq!(seeds(7), seeds(7));
        let distinct: HashSet<u64> = [seeds(7), seeds(8)].concat().into_iter().collect();
        assert_eq!(distinct.len(), 2 * 3 * 3 * 3 * 3);
    }
}
