//! Presets that reproduce what the papers measured that Keyway comes from.
//!
//! A [`Preset`] runs plans, and makes tables of what they gave: [`PaperTable`]s, with the paper's figures beside those measured here.
//! It is given a [`Reproduction`], which has what the user asked for and collects what comes out. `papers/` has a file for each paper.

use crate::kernel::{self, Job};
use crate::namespaces::Clients;
use crate::papers::{hippos, hodor, pmemcached, restart, unbuckle};
use crate::table::PaperTable;
use keyway_bench::caches::Side;
use keyway_bench::machine;
use keyway_bench::options::Common;
use keyway_bench::plan::{Against, Cell, Plan};
use keyway_bench::run::{self, CellResult, Outcome};
use keyway_cache::{Cache, GateState, Options, Place};
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// What happens while presets run.
#[derive(Debug)]
pub enum Event<'a> {
    /// something begins
    Doing {
        /// in words
        what: &'a str,
        /// share of the plan that is done, 0 to 1
        done: f64,
    },
    /// a preset's table is complete
    Paper(&'a PaperTable),
}

/// Receives them.
pub type Progress<'a> = &'a mut dyn FnMut(Event<'_>);

/// Something of a paper that can be measured again: its name on a command line (the paper's system, and its figure or table), what it
/// measures, and what does so. What goes wrong in a measurement ends it with an error, and is among the outcome's failures.
pub type Preset = (&'static str, &'static str, fn(&mut Reproduction<'_>) -> io::Result<()>);

/// All of them, in the papers' order.
#[rustfmt::skip]
pub const PRESETS: &[Preset] = &[
    ("hodor-fig5", "memcached as a protected library (ICPP 2020), Figure 5: latency of one caller, on memcached's CPU and on another one", hodor::fig5),
    ("hodor-fig6-9", "the same, Figures 6 to 9: throughput of 1 to 8 threads, 128 B and 5 KB, 95 % and 50 % read", hodor::fig6_9),
    ("pmemcached-fig1", "pmemcached (HotStorage 2017), Figure 1: what persistence costs under YCSB A, B, C and F, with 100 ns at each persist barrier", pmemcached::fig1),
    ("pmemcached-restart", "the same, section 4: hit ratio before and after a server ends or is killed", restart::restart),
    ("hippos-fig7", "Hippos (2014), Figure 7: latency of gets against their rate, and the highest rate with a mean below 1 ms; as root", hippos::fig7),
    ("hippos-fig9", "Hippos, Figure 9: latency of mixes from all gets to all sets at three rates; as root", hippos::fig9),
    ("hippos-fig10", "Hippos, Figure 10: highest rate of Facebook's five pools with a mean below 1 ms; as root", hippos::fig10),
    ("hippos-table4", "Hippos, Table 4: latency and CPU time of Facebook's five pools at low, medium and high rate; as root", hippos::table4),
    ("hippos-surge", "Hippos, section 2.1: a surge to three times the peak rate and back, and what is lost in it; as root", hippos::surge),
    ("unbuckle-fig4.3b", "Unbuckle (2014), Figure 4.3b: packets lost above capacity; as root", unbuckle::fig4_3b),
    ("unbuckle-fig4.6", "Unbuckle, Figure 4.6: median latency in the kernel and in user space against the size of a value; as root", unbuckle::fig4_6),
    ("unbuckle-fig4.7", "Unbuckle, Figure 4.7: one thread beside memcached with one, three sizes; as root", unbuckle::fig4_7),
    ("unbuckle-fig4.8", "Unbuckle, Figure 4.8: a thread a CPU beside memcached with as many, three sizes; as root", unbuckle::fig4_8),
    ("unbuckle-fig4.9", "Unbuckle, Figure 4.9: throughput against threads, values of 1 KB; as root", unbuckle::fig4_9),
    ("unbuckle-table4.1", "Unbuckle, Table 4.1: small and large items, beside other systems' figures; as root", unbuckle::table4_1),
];

/// The preset of that name.
///
/// # Errors
///
/// There is none; the reason says which there are.
pub fn find(name: &str) -> Result<&'static Preset, String> {
    PRESETS.iter().find(|(known, ..)| *known == name).ok_or_else(|| {
        let names: Vec<_> = PRESETS.iter().map(|(name, ..)| *name).collect();
        format!("there is no preset \"{name}\"; there are {}", names.join(", "))
    })
}

/// How many items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scale {
    /// few enough for minutes
    #[default]
    Small,
    /// as many as the paper had
    Full,
}

impl Scale {
    /// From a command line.
    ///
    /// # Errors
    ///
    /// There is no such scale.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text {
            "small" => Ok(Self::Small),
            "full" => Ok(Self::Full),
            _ => Err(format!("\"{text}\" is no scale; there are small and full")),
        }
    }
}

/// What the user asked for. What is left open is the preset's to choose.
#[derive(Clone, Debug)]
pub struct Setup {
    /// the program whose `serve` is measured
    pub program: PathBuf,
    /// how many items, where `items` does not say
    pub scale: Scale,
    /// items stored before measuring
    pub items: Option<u64>,
    /// `Nothing` or `Memcached`: presets start their servers themselves
    pub against: Against,
    /// how to measure
    pub common: Common,
}

impl Setup {
    /// A plan for these cells; where the user did not say, with this length, number of repetitions, and threads of each server.
    pub fn plan(&self, cells: Vec<Cell>, length: Duration, repetitions: usize, threads: usize) -> Plan {
        Plan {
            against: self.against.clone(),
            ..self.common.plan(self.program.clone(), cells, (length, repetitions, threads))
        }
    }
}

/// What the presets gave.
#[derive(Debug, Default)]
pub struct Reproduced {
    /// all their plans together
    pub outcome: Outcome,
    /// how each plan was measured, each way once
    pub conditions: Vec<String>,
    /// in their order
    pub tables: Vec<PaperTable>,
}

/// Runs these presets, one after the other. `progress` receives what happens.
///
/// # Errors
///
/// What hinders a beginning: a server that does not start. What goes wrong later is in the outcome's failures, and ends it.
pub fn run(presets: &[&Preset], setup: &Setup, progress: Progress<'_>) -> io::Result<Reproduced> {
    let made = Reproduced {
        outcome: Outcome::begin(),
        ..Reproduced::default()
    };
    let mut reproduction = Reproduction {
        setup,
        progress,
        made,
        preset: "",
        clients: None,
    };
    for preset in presets {
        reproduction.preset = preset.0;
        match (preset.2)(&mut reproduction) {
            Err(e) if reproduction.made.outcome.failures.is_empty() => return Err(e),
            Err(_) => break,
            Ok(()) => {}
        }
    }
    Ok(reproduction.made)
}

/// A preset at work.
pub struct Reproduction<'a> {
    /// what the user asked for
    pub setup: &'a Setup,
    progress: Progress<'a>,
    made: Reproduced,
    preset: &'static str,
    /// the network of the kernel door's clients, once it is needed
    clients: Option<Clients>,
}

impl Reproduction<'_> {
    /// Runs a plan; what each of its cells gave, in their order.
    ///
    /// # Errors
    ///
    /// A server that does not start, or a measurement that went wrong.
    pub fn measure(&mut self, plan: &Plan) -> io::Result<&[CellResult]> {
        self.begin(plan)?;
        let from = self.made.outcome.cells.len();
        let progress = &mut *self.progress;
        run::run_on(plan, &mut self.made.outcome, &mut |event| forward(progress, &event))?;
        self.since(from)
    }

    /// Runs a plan whose cells are all measured on these sides, Keyway's and the peer's, instead of what a plan starts.
    ///
    /// # Errors
    ///
    /// A measurement that went wrong.
    pub fn measure_sides(&mut self, plan: &Plan, sides: &[&Side]) -> io::Result<&[CellResult]> {
        self.begin(plan)?;
        let from = self.made.outcome.cells.len();
        for (number, cell) in plan.cells.iter().enumerate() {
            let (outcome, progress) = (&mut self.made.outcome, &mut *self.progress);
            run::run_cell(plan, number, cell, sides, &run::measure, outcome, &mut |event| {
                forward(progress, &event);
            });
            if !self.made.outcome.failures.is_empty() {
                break;
            }
        }
        self.since(from)
    }

    /// The network of the kernel door's clients, which this thread is in from now on.
    ///
    /// # Errors
    ///
    /// This takes root.
    pub fn clients(&mut self) -> io::Result<&Clients> {
        if self.clients.is_none() {
            self.clients = Some(Clients::enter()?);
        }
        self.clients.as_ref().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Measures these cells of the kernel door and beside it; `plan` says what they have in common.
    ///
    /// # Errors
    ///
    /// A server that does not start, or a measurement that went wrong.
    pub fn measure_kernel(&mut self, plan: &Plan, jobs: &[Job]) -> io::Result<&[CellResult]> {
        self.clients()?;
        self.begin(plan)?;
        let from = self.made.outcome.cells.len();
        if let Some(clients) = &self.clients {
            let progress = &mut *self.progress;
            kernel::measure(clients, plan, jobs, &mut self.made.outcome, &mut |event| {
                forward(progress, &event);
            })?;
        }
        self.since(from)
    }

    fn begin(&mut self, plan: &Plan) -> io::Result<()> {
        plan.check(machine::cpus_online()).map_err(io::Error::other)?;
        let conditions = keyway_bench::report::conditions(plan);
        if !self.made.conditions.contains(&conditions) {
            self.made.conditions.push(conditions);
        }
        Ok(())
    }

    /// The cells from this one on, if nothing went wrong.
    fn since(&self, from: usize) -> io::Result<&[CellResult]> {
        match self.made.outcome.failures.first() {
            Some(failure) => Err(io::Error::other(failure.clone())),
            None => Ok(&self.made.outcome.cells[from..]),
        }
    }

    /// What was measured otherwise than by a plan's servers: name, and version with options.
    pub fn measured(&mut self, name: &'static str, about: String) {
        self.made.outcome.measured(name, about);
    }

    /// Says what happens, outside plans.
    pub fn doing(&mut self, what: &str, done: f64) {
        (self.progress)(Event::Doing { what, done });
    }

    /// What the reader should know.
    pub fn note(&mut self, note: &str) {
        self.made.outcome.note(note.to_owned());
    }

    /// A measurement outside plans that went wrong; the error with which the preset is to end.
    pub fn failed(&mut self, why: String) -> io::Error {
        self.made.outcome.failures.push(why.clone());
        io::Error::other(why)
    }

    /// These tables are complete.
    pub fn tables(&mut self, tables: impl IntoIterator<Item = PaperTable>) {
        for mut table in tables {
            self.preset.clone_into(&mut table.preset);
            (self.progress)(Event::Paper(&table));
            self.made.tables.push(table);
        }
    }

    /// Items to store: what the user asked for, or what the scale says.
    pub fn items(&self, small: u64, full: u64) -> u64 {
        self.setup.items.unwrap_or(match self.setup.scale {
            Scale::Small => small,
            Scale::Full => full,
        })
    }
}

fn forward(progress: Progress<'_>, event: &run::Event<'_>) {
    // A preset's cells are summed up in its tables.
    if let run::Event::Doing { what, done } = *event {
        progress(Event::Doing { what, done });
    }
}

/// The paper's machine beside this one, as a sentence of a table's.
pub fn machines(paper: &str) -> String {
    format!("The paper's machine is {paper}; this one is {}.", machine::describe())
}

/// What a side of a cell gave of a figure in each measurement; nothing of one that was not measured.
pub fn side(ran: Option<&CellResult>, at: usize, figure: &str) -> Vec<f64> {
    ran.and_then(|ran| ran.sides.get(at))
        .map_or_else(Vec::new, |side| keyway_bench::report::values(side, figure))
}

/// Whether regions of this process have a gate.
///
/// # Errors
///
/// No region can be made.
pub fn has_gate() -> io::Result<bool> {
    let options = Options::new().memory(4 << 20);
    let cache = Cache::open(&Place::Memfd, &options).map_err(io::Error::other)?;
    Ok(cache.info().gate == GateState::On)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_an_error_lists_the_known_ones() {
        let names: HashSet<_> = PRESETS.iter().map(|preset| preset.0).collect();
        assert_eq!(names.len(), PRESETS.len());
        assert_eq!(find("hodor-fig5").unwrap().0, "hodor-fig5");
        assert!(find("hodor").unwrap_err().contains("hodor-fig5"));
        assert_eq!(Scale::parse("full"), Ok(Scale::Full));
        assert!(Scale::parse("x").unwrap_err().contains("small and full"));
    }
}
