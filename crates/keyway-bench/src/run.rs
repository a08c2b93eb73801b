//! Running a plan: every measurement of every cell, the sides in turn, so that what the machine does meanwhile meets them alike.

use crate::calls::Caller;
use crate::flood::Flood;
use crate::idle;
use crate::items::Items;
use crate::load::Load;
use crate::machine;
use crate::meters::{self, Energy, Instructions};
use crate::mix::Stream;
use crate::paper::PaperTable;
use crate::plan::{Cell, Door, Limit, PEAK_STEPS, Pace, Plan};
use crate::processes::{self, Job};
use crate::ran::{Ran, Window};
use crate::rig::{Rig, Side, Way};
use crate::sockets::{Client, Shape};
use crate::volley::Volley;
use crate::workload::{Ranks, mix};
use std::io;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// What a plan gave.
#[derive(Debug, Default)]
pub struct Outcome {
    /// in the plan's order; after a failure the rest is absent
    pub cells: Vec<CellRan>,
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
    /// Says where and when.
    pub(crate) fn begin(&mut self) {
        self.machine = machine::describe();
        self.begun_unix_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        note_load(&mut self.notes);
        self.notes.extend(meters::missing());
    }

    pub(crate) fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }
}

/// What a cell gave.
#[derive(Debug)]
pub struct CellRan {
    /// which
    pub cell: Cell,
    /// of an open loop at a given rate or share: operations a second
    pub rate: Option<f64>,
    /// Keyway's, then the peer's if there is one
    pub sides: Vec<SideRan>,
}

/// The measurements of one side.
#[derive(Debug)]
pub struct SideRan {
    /// whose
    pub name: &'static str,
    /// memory that storing an item took; `None`: unknown
    pub bytes_per_item: Option<f64>,
    /// memory that an idle connection took; `None`: unknown, or not asked for
    pub bytes_per_connection: Option<f64>,
    /// items that the cache holds behind the last measurement
    pub items_held: Option<u64>,
    /// in their order
    pub runs: Vec<Ran>,
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
    Cell(&'a CellRan),
    /// a preset's table is complete
    Paper(&'a PaperTable),
}

/// Who is told of them.
pub type Progress<'a> = &'a mut dyn FnMut(Event<'_>);

/// Runs it. `progress` is told what happens.
///
/// # Errors
///
/// What hinders the beginning: a server that does not start or cannot be reached. What goes wrong later is in [`Outcome::failures`].
pub fn run(plan: &Plan, progress: Progress<'_>) -> io::Result<Outcome> {
    let mut outcome = Outcome::default();
    outcome.begin();
    run_on(plan, &mut outcome, progress)?;
    Ok(outcome)
}

/// Runs a plan, and adds what it gives to what others gave. Ends with the first failure.
pub(crate) fn run_on(plan: &Plan, outcome: &mut Outcome, progress: Progress<'_>) -> io::Result<()> {
    if plan.has_link() {
        outcome.note(
            "servers that have the kernel door or stand beside it are reached over a pair of veth interfaces between two network namespaces; \
             a packet's receiving is the work of the CPU that it was sent from, so the CPU time of the whole machine is what compares"
                .to_owned(),
        );
    }
    let (mut number, mut peaks) = (0, Peaks::default());
    for cells in plan.cells.chunk_by(Cell::shares_caches) {
        progress(Event::Doing {
            what: "starting",
            done: share(number, plan.cells.len()),
        });
        let mut rig = Rig::start(plan, cells)?;
        std::mem::take(&mut rig.notes).into_iter().for_each(|note| outcome.note(note));
        for about in rig.about() {
            if !outcome.about.contains(&about) {
                outcome.about.push(about);
            }
        }
        for cell in cells {
            run_cell(plan, number, cell, &rig.sides(cell), &mut peaks, outcome, progress);
            if !outcome.failures.is_empty() {
                return Ok(());
            }
            number += 1;
        }
    }
    Ok(())
}

/// Runs one cell of a plan on these sides, which somebody else has made.
pub(crate) fn run_sides(plan: &Plan, cell: &Cell, sides: &[&Side], outcome: &mut Outcome, progress: Progress<'_>) {
    run_cell(plan, 0, cell, sides, &mut Peaks::default(), outcome, progress);
}

#[allow(clippy::cast_precision_loss, reason = "a few cells")]
fn share(done: usize, all: usize) -> f64 {
    done as f64 / all as f64
}

#[allow(clippy::cast_precision_loss, reason = "a few CPUs")]
fn note_load(notes: &mut Vec<String>) {
    let load = machine::load_average();
    let cpus = machine::cpus();
    if load > 0.5 * cpus as f64 {
        notes.push(format!(
            "others used this machine when it began (load {load} on {cpus} CPUs): figures move, ratios less so"
        ));
    }
}

fn run_cell(
    plan: &Plan,
    number: usize,
    cell: &Cell,
    sides: &[&Side],
    peaks: &mut Peaks,
    outcome: &mut Outcome,
    progress: Progress<'_>,
) {
    let operations = Operations {
        items: cell.workload.items(cell.items),
        ranks: Ranks::new(cell.workload.access, cell.items),
    };
    let rate = match rate(plan, cell, sides, &operations, peaks) {
        Ok(rate) => rate,
        Err(e) => return outcome.failures.push(format!("{}: {e}", cell.name())),
    };
    let mut ran = CellRan {
        cell: cell.clone(),
        rate,
        sides: sides.iter().map(|side| SideRan::new(side.name)).collect(),
    };
    let in_all = plan.repetitions * sides.len();
    'all: for repetition in 0..plan.repetitions {
        for (at, (side, side_ran)) in sides.iter().zip(&mut ran.sides).enumerate() {
            let part = share(repetition * sides.len() + at, in_all);
            let what = format!("{}: {}, {} of {}", cell.name(), side.name, repetition + 1, plan.repetitions);
            progress(Event::Doing {
                what: &what,
                done: share(number, plan.cells.len()) + part / share(plan.cells.len(), 1),
            });
            let measured = match cell.pace {
                Pace::Peak(limit) => peak(plan, cell, side, &operations, repetition, limit),
                Pace::Closed | Pace::Rate(_) | Pace::Share(_) | Pace::Flood(_) => {
                    measure(plan, cell, side, &operations, Draw::of(repetition), rate)
                }
            };
            let failure = match measured {
                Ok(run) => {
                    let failure = run
                        .wrong
                        .any()
                        .then(|| format!("{}: {}", run.wrong.counts(), run.wrong.told.join("; ")));
                    side_ran.runs.push(run);
                    failure
                }
                Err(e) => Some(e.to_string()),
            };
            side_ran.bytes_per_item = side.store.bytes_per_item.get();
            if let Some(failure) = failure {
                outcome.failures.push(format!("{what}: {failure}"));
                break 'all;
            }
        }
    }
    for (side, side_ran) in sides.iter().zip(&mut ran.sides) {
        // What has failed may not answer any more.
        if !outcome.failures.is_empty() {
            break;
        }
        side_ran.items_held = side.store.items_held();
        if let Some(count) = plan.idle {
            match idle::bytes_per_connection(side, count) {
                Ok(bytes) => side_ran.bytes_per_connection = bytes,
                Err(e) => outcome.failures.push(format!("{}: {}: {e}", cell.name(), side.name)),
            }
        }
    }
    note_bottleneck(plan, sides, &ran, outcome);
    progress(Event::Cell(&ran));
    outcome.cells.push(ran);
}

impl SideRan {
    fn new(name: &'static str) -> Self {
        Self {
            name,
            bytes_per_item: None,
            bytes_per_connection: None,
            items_held: None,
            runs: Vec::new(),
        }
    }
}

/// What all measurements of a cell draw from.
struct Operations {
    items: Items,
    ranks: Ranks,
}

/// One of the measurements of a cell on each side.
#[derive(Clone, Copy)]
struct Draw {
    repetition: usize,
    /// of a search
    step: usize,
}

impl Draw {
    fn of(repetition: usize) -> Self {
        Self { repetition, step: 0 }
    }

    /// What a thread's sequence is drawn from. Both sides draw the same; other cells and other measurements, which may find the same
    /// caches as this one left them, do not: asked for the same keys again, a cache that holds a part of them would hit too often.
    fn seed(self, plan: &Plan, cell: &Cell, thread: usize) -> u64 {
        let of_cell = cell.name().bytes().fold(plan.seed, |seed, byte| mix(seed ^ u64::from(byte)));
        [self.repetition, self.step, thread + 1]
            .into_iter()
            .fold(of_cell, |seed, number| mix(seed.wrapping_add(number as u64)))
    }
}

/// What the peer did in a closed loop, for each cell that asked: all points of a curve are shares of the same.
#[derive(Default)]
struct Peaks(Vec<(Cell, f64)>);

/// Operations a second, where they are given or follow from what the peer does in a closed loop.
fn rate(plan: &Plan, cell: &Cell, sides: &[&Side], operations: &Operations, peaks: &mut Peaks) -> io::Result<Option<f64>> {
    let (percent, side) = match (cell.pace, sides.last()) {
        (Pace::Closed | Pace::Peak(_), _) | (_, None) => return Ok(None),
        (Pace::Rate(rate) | Pace::Flood(rate), _) => return Ok(Some(rate)),
        (Pace::Share(percent), Some(side)) => (percent, side),
    };
    let closed = Cell {
        pace: Pace::Closed,
        ..cell.clone()
    };
    if let Some((_, peak)) = peaks.0.iter().find(|(asked, _)| *asked == closed) {
        return Ok(Some(percent / 100.0 * peak));
    }
    let peak = whole(measure(plan, cell, side, operations, Draw::of(plan.repetitions), None)?)?.rate();
    peaks.0.push((closed, peak));
    Ok(Some(percent / 100.0 * peak))
}

/// A measurement on which others depend.
fn whole(ran: Ran) -> io::Result<Ran> {
    if ran.wrong.any() {
        return Err(io::Error::other(format!(
            "{}: {}",
            ran.wrong.counts(),
            ran.wrong.told.join("; ")
        )));
    }
    Ok(ran)
}

/// The measurement with the highest rate at which latency keeps the limit, by halving; without any operations, if none of those tried does.
fn peak(plan: &Plan, cell: &Cell, side: &Side, operations: &Operations, repetition: usize, limit: Limit) -> io::Result<Ran> {
    /// A closed loop leaves gaps that an open one may fill.
    const ABOVE_CLOSED: f64 = 1.25;
    let closed = whole(measure(plan, cell, side, operations, Draw::of(repetition), None)?)?;
    let (mut low, mut high) = (0.0, closed.rate() * ABOVE_CLOSED);
    let mut best = Ran::default();
    for step in 1..=PEAK_STEPS {
        let rate = f64::midpoint(low, high);
        let ran = whole(measure(plan, cell, side, operations, Draw { repetition, step }, Some(rate))?)?;
        let latencies = ran.latencies();
        let us = limit
            .percentile
            .map_or_else(|| latencies.mean_us(), |percentile| latencies.percentile_us(percentile));
        if ran.unanswered == 0 && us <= limit.us {
            (low, best) = (rate, ran);
        } else {
            high = rate;
        }
    }
    Ok(best)
}

/// One measurement.
#[allow(clippy::cast_precision_loss, reason = "a few threads")]
fn measure(plan: &Plan, cell: &Cell, side: &Side, operations: &Operations, draw: Draw, rate: Option<f64>) -> io::Result<Ran> {
    side.store
        .load(cell, &operations.items)
        .map_err(|e| io::Error::new(e.kind(), format!("storing the items: {e}")))?;
    if let (Door::Kernel, Way::Socket(target)) = (cell.door, &side.way) {
        let warmed = side.store.warm_kernel_door(target, cell, &operations.items);
        warmed.map_err(|e| io::Error::new(e.kind(), format!("asking for the items beforehand: {e}")))?;
    }
    let threads = match side.way {
        Way::Socket(_) => plan.client_threads.min(cell.connections),
        Way::Library(_) | Way::Processes(_) | Way::Libmemcached(..) => cell.connections,
    };
    let rate = rate.map(|rate| rate / threads as f64);
    // Of all threads of all measurements.
    let number = |thread: usize| ((draw.repetition as u64) << 16) + thread as u64 + 1;
    let load = |thread: usize| Load {
        stream: match &cell.workload.trace {
            Some(recording) => Stream::replay(recording, thread, threads, side.store.newest.clone()),
            None => Stream::new(
                &cell.workload,
                cell.items,
                &operations.ranks,
                side.store.newest.clone(),
                draw.seed(plan, cell, thread),
            ),
        },
        items: operations.items.clone(),
        fill: cell.workload.fill,
        rate,
        thread: number(thread),
    };
    match &side.way {
        Way::Library(cache) => {
            let callers = (0..threads).map(|thread| Ok(Caller::new(cache.session().map_err(io::Error::other)?, load(thread))));
            let callers = callers.collect::<io::Result<Vec<_>>>()?;
            Ok(at_once(plan, side, callers, Caller::run))
        }
        Way::Libmemcached(library, socket) => {
            let callers = (0..threads).map(|thread| Ok(Caller::new(library.open(socket)?, load(thread))));
            let callers = callers.collect::<io::Result<Vec<_>>>()?;
            Ok(at_once(plan, side, callers, Caller::run))
        }
        Way::Processes(region) => {
            let job = |thread| Job {
                region: region.clone(),
                workload: cell.workload.clone(),
                items: cell.items,
                rate,
                thread: number(thread),
                seed: draw.seed(plan, cell, thread),
                warmup: plan.warmup,
                length: plan.length,
                cpus: plan.client_cpus.clone(),
            };
            processes::run(&plan.program, &(0..threads).map(job).collect::<Vec<_>>())
        }
        Way::Socket(target) if matches!(cell.pace, Pace::Flood(_)) => {
            let floods = (0..threads).map(|thread| Flood::open(target, load(thread)));
            let floods = floods.collect::<io::Result<Vec<_>>>()?;
            Ok(at_once(plan, side, floods, |flood, window| {
                flood.run(rate.unwrap_or(0.0), window)
            }))
        }
        Way::Socket(target) if cell.door.is_datagrams() && cell.depth > 1 => {
            let open = |thread| Volley::open(target, cell.depth, plan.silence_max, load(thread));
            let volleys = (0..threads).map(open).collect::<io::Result<Vec<_>>>()?;
            Ok(at_once(plan, side, volleys, Volley::run))
        }
        Way::Socket(target) => {
            let shape = |thread: usize| Shape {
                connections: cell.connections / threads + usize::from(thread < cell.connections % threads),
                depth: cell.depth,
                keys_per_get: cell.keys_per_get,
                operations_max: cell.operations_max,
                silence_max: plan.silence_max,
            };
            let clients = (0..threads).map(|thread| Client::open(target, shape(thread), load(thread)));
            let clients = clients.collect::<io::Result<Vec<_>>>()?;
            Ok(at_once(plan, side, clients, Client::run))
        }
    }
}

/// Runs each worker in a thread of its own, all in the same window, and looks at the server at both ends of it.
fn at_once<W: Send>(plan: &Plan, side: &Side, workers: Vec<W>, run: impl Fn(W, Window) -> Ran + Copy + Send) -> Ran {
    let window = Window::begin(plan.warmup, plan.length);
    let cpus = plan.client_cpus.as_slice();
    std::thread::scope(|scope| {
        let spawn = |worker| {
            scope.spawn(move || {
                let pinned = if cpus.is_empty() { Ok(()) } else { machine::pin(cpus) };
                let mut ran = run(worker, window);
                if let Err(e) = pinned {
                    ran.wrong
                        .tell(|| format!("the client cannot be pinned to CPUs {cpus:?}: {e}"));
                }
                ran
            })
        };
        let threads: Vec<_> = workers.into_iter().map(spawn).collect();
        std::thread::sleep(window.from.saturating_duration_since(Instant::now()));
        let server = side.store.pid().and_then(|pid| Instructions::of(pid).ok());
        let client = Instructions::of(std::process::id()).ok();
        let energy = Energy::now().ok();
        // The last one asks the server, which may take its time.
        let before = (side.store.usage(), machine::busy(), side.store.kernel_hits());
        let mut all = Ran::default();
        for thread in threads {
            match thread.join() {
                Ok(ran) => all.add(&ran),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        all.machine = machine::busy()
            .zip(before.1)
            .map(|(after, before)| after.saturating_sub(before));
        all.server = side.store.usage().zip(before.0).map(|(after, before)| after.since(before));
        all.server_instructions = server.and_then(|counter| counter.count());
        all.client_instructions = client.and_then(|counter| counter.count());
        let energy = energy.and_then(|before| Some((Energy::now().ok()?, before)));
        all.energy_j = energy.and_then(|(after, before)| after.joules_since(&before));
        let hits = before.2.and_then(|before| Some((side.store.kernel_hits()?, before)));
        all.in_kernel = hits.map(|(after, before)| after.saturating_sub(before));
        all
    })
}

/// A client that has no time left measures itself; and a server that cannot keep up has no latency.
#[allow(clippy::cast_precision_loss, reason = "a few CPUs")]
fn note_bottleneck(plan: &Plan, sides: &[&Side], ran: &CellRan, outcome: &mut Outcome) {
    /// Shares of a CPU from which the client counts as busy, and up to which the server has time left.
    const CLIENT_BUSY: f64 = 0.95;
    const SERVER_IDLE: f64 = 0.9;
    for (side, side_ran) in sides.iter().zip(&ran.sides) {
        let cpus = if plan.server_cpus.is_empty() {
            machine::cpus()
        } else {
            plan.server_cpus.len()
        };
        let capacity = side.threads.clamp(1, cpus) as f64;
        let limited = side_ran.runs.iter().filter(|run| {
            let server = run
                .server
                .map(|used| used.cpu.as_secs_f64() / run.elapsed.as_secs_f64().max(1e-9));
            // Calls are the client's own work, wherever a server may be.
            let calls = matches!(side.way, Way::Library(_) | Way::Processes(_) | Way::Libmemcached(..));
            // The kernel door works where the packet was sent from, which is the client's CPU.
            let in_kernel = run.in_kernel.is_some_and(|hits| hits > 0);
            !calls
                && !in_kernel
                && run.client_busiest >= CLIENT_BUSY
                && server.is_some_and(|share| share < SERVER_IDLE * capacity)
        });
        let who = format!("{}, {}", ran.cell.name(), side.name);
        if limited.count() * 2 > side_ran.runs.len() {
            outcome.note(format!(
                "{who}: client-bound: the client's CPU was busy while the server had time left; give it more --client-threads, or read the \
                 server's CPU time an operation instead"
            ));
        }
        let unanswered: u64 = side_ran.runs.iter().map(|run| run.unanswered).sum();
        if matches!(ran.cell.pace, Pace::Peak(_)) && side_ran.runs.iter().any(|run| run.operations == 0) {
            outcome.note(format!(
                "{who}: the limit was kept at none of the rates tried; a measurement without a rate says so"
            ));
        }
        if unanswered > 0 {
            outcome.note(format!(
                "{who}: cannot keep up with the rate: {unanswered} requests were due and never answered"
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
