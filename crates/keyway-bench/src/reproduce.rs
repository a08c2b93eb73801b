//! Presets that reproduce what the papers measured that Keyway comes from.
//!
//! A [`Preset`] runs plans, and makes tables of what they gave: [`PaperTable`]s, with the paper's figures beside those measured here.
//! It is given a [`Reproduction`], which has what the user asked for and collects what comes out. `reproduce/` has a file for each
//! paper.

mod doors;
mod hippos;
mod hodor;
mod pmemcached;
mod restart;
mod unbuckle;

use crate::dropin::Dropin;
use crate::machine;
use crate::paper::PaperTable;
use crate::plan::{Against, Cell, Plan};
use crate::rig::Side;
use crate::run::{self, CellRan, Event, Outcome, Progress};
use keyway::{Cache, GateState, Options, Place};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Something of a paper that can be measured again.
#[derive(Debug)]
pub struct Preset {
    /// as it is written on a command line: the paper's system, and its figure or table
    pub name: &'static str,
    /// what it measures
    pub about: &'static str,
    /// Measures it. What goes wrong in a measurement ends it with an error, and is among the outcome's failures.
    run: fn(&mut Reproduction<'_>) -> io::Result<()>,
}

/// All of them, in the papers' order.
pub const PRESETS: &[Preset] = &[
    hodor::FIG5,
    hodor::FIG6_9,
    pmemcached::FIG1,
    restart::RESTART,
    hippos::FIG7,
    hippos::FIG9,
    hippos::FIG10,
    hippos::TABLE4,
    hippos::SURGE,
    unbuckle::FIG4_3B,
    unbuckle::FIG4_6,
    unbuckle::FIG4_7,
    unbuckle::FIG4_8,
    unbuckle::FIG4_9,
    unbuckle::TABLE4_1,
];

/// The preset of that name.
///
/// # Errors
///
/// There is none; the reason says which there are.
pub fn find(name: &str) -> Result<&'static Preset, String> {
    PRESETS.iter().find(|preset| preset.name == name).ok_or_else(|| {
        let names: Vec<_> = PRESETS.iter().map(|preset| preset.name).collect();
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

/// What the user asked for. What is `None` or empty is the preset's to choose.
#[derive(Clone, Debug)]
pub struct Setup {
    /// the program whose `serve` is measured
    pub program: PathBuf,
    /// Keyway's drop-in for libmemcached; `None`: there is none
    pub libmemcached: Option<PathBuf>,
    /// how many items, where `items` does not say
    pub scale: Scale,
    /// items stored before measuring
    pub items: Option<u64>,
    /// of one measurement
    pub length: Option<Duration>,
    /// before each
    pub warmup: Option<Duration>,
    /// measurements of each cell and side
    pub repetitions: Option<usize>,
    /// of each server that is started
    pub server_threads: Option<usize>,
    /// where servers may run
    pub server_cpus: Vec<usize>,
    /// where the client, and the library, may run
    pub client_cpus: Vec<usize>,
    /// more options for the Keyway that is started
    pub server_options: Vec<String>,
    /// more options for memcached
    pub memcached_options: Vec<String>,
    /// `Nobody` or `Memcached`: presets start their servers themselves
    pub against: Against,
    /// how long a server may be silent while it owes answers
    pub silence_max: Duration,
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

/// Runs these presets, one after the other. `progress` is told what happens.
///
/// # Errors
///
/// What hinders a beginning: a server that does not start. What goes wrong later is in the outcome's failures, and ends it.
pub fn run(presets: &[&Preset], setup: &Setup, progress: Progress<'_>) -> io::Result<Reproduced> {
    let mut reproduction = Reproduction {
        setup,
        progress,
        made: Reproduced::default(),
        preset: "",
    };
    reproduction.made.outcome.begin();
    for preset in presets {
        reproduction.preset = preset.name;
        match (preset.run)(&mut reproduction) {
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
}

impl Reproduction<'_> {
    /// A plan for these cells, with what the user asked for: everything that this leaves open has the values given here, and may be
    /// changed.
    pub fn plan(&self, cells: Vec<Cell>, length: Duration, repetitions: usize) -> Plan {
        let setup = self.setup;
        let length = setup.length.unwrap_or(length);
        Plan {
            cells,
            length,
            warmup: setup.warmup.unwrap_or(length / 5),
            repetitions: setup.repetitions.unwrap_or(repetitions),
            seed: 0,
            server_threads: setup.server_threads.unwrap_or(2),
            client_threads: 1,
            server_cpus: setup.server_cpus.clone(),
            client_cpus: setup.client_cpus.clone(),
            server_options: setup.server_options.clone(),
            memcached_options: setup.memcached_options.clone(),
            libmemcached: setup.libmemcached.clone(),
            server: None,
            against: setup.against.clone(),
            program: setup.program.clone(),
            silence_max: setup.silence_max,
            idle: None,
        }
    }

    /// Runs a plan; what each of its cells gave, in their order.
    ///
    /// # Errors
    ///
    /// A server that does not start, or a measurement that went wrong.
    pub fn measure(&mut self, plan: &Plan) -> io::Result<&[CellRan]> {
        self.begin(plan)?;
        let from = self.made.outcome.cells.len();
        run::run_on(plan, &mut self.made.outcome, self.progress)?;
        self.since(from)
    }

    /// Runs a plan whose cells are all measured on these sides, Keyway's and the peer's, instead of what a plan starts.
    ///
    /// # Errors
    ///
    /// A measurement that went wrong.
    pub fn measure_sides(&mut self, plan: &Plan, sides: &[&Side]) -> io::Result<&[CellRan]> {
        self.begin(plan)?;
        for side in sides {
            self.measured(side.name, side.about.clone());
        }
        let from = self.made.outcome.cells.len();
        for cell in &plan.cells {
            run::run_sides(plan, cell, sides, &mut self.made.outcome, self.progress);
            if !self.made.outcome.failures.is_empty() {
                break;
            }
        }
        self.since(from)
    }

    fn begin(&mut self, plan: &Plan) -> io::Result<()> {
        plan.check(machine::cpus_online()).map_err(io::Error::other)?;
        let conditions = crate::report::conditions(plan);
        if !self.made.conditions.contains(&conditions) {
            self.made.conditions.push(conditions);
        }
        Ok(())
    }

    /// The cells from this one on, if nothing went wrong.
    fn since(&self, from: usize) -> io::Result<&[CellRan]> {
        match self.made.outcome.failures.first() {
            Some(failure) => Err(io::Error::other(failure.clone())),
            None => Ok(&self.made.outcome.cells[from..]),
        }
    }

    /// What was measured otherwise than by a plan's servers: name, and version with options.
    pub fn measured(&mut self, name: &'static str, about: String) {
        if !self.made.outcome.about.contains(&(name, about.clone())) {
            self.made.outcome.about.push((name, about));
        }
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

    /// A table is complete.
    pub fn table(&mut self, mut table: PaperTable) {
        self.preset.clone_into(&mut table.preset);
        (self.progress)(Event::Paper(&table));
        self.made.tables.push(table);
    }

    /// Keyway's drop-in, if there is a libmemcached to compare it with.
    pub fn dropin(&mut self) -> Option<PathBuf> {
        let Some(path) = self.setup.libmemcached.clone() else {
            self.note("the drop-in is left out: say where Keyway's libmemcached.so.11 is with --libmemcached FILE");
            return None;
        };
        if let Err(e) = Dropin::load(Path::new(crate::rig::LIBMEMCACHED)) {
            self.note(&format!(
                "the drop-in is left out: there is no libmemcached to compare it with ({e})"
            ));
            return None;
        }
        Some(path)
    }

    /// Items to store: what the user asked for, or what the scale says.
    pub fn items(&self, small: u64, full: u64) -> u64 {
        self.setup.items.unwrap_or(match self.setup.scale {
            Scale::Small => small,
            Scale::Full => full,
        })
    }
}

/// The paper's machine beside this one, as a sentence of a table's.
fn machines(paper: &str) -> String {
    format!("The paper's machine is {paper}; this one is {}.", machine::describe())
}

/// What a side of a cell gave of a figure in each measurement; nothing of one that was not measured.
fn side(ran: Option<&CellRan>, at: usize, figure: &str) -> Vec<f64> {
    ran.and_then(|ran| ran.sides.get(at))
        .map_or_else(Vec::new, |side| crate::report::values(side, figure))
}

/// Whether regions of this process have a gate.
fn has_gate() -> io::Result<bool> {
    let options = Options {
        memory: 4 << 20,
        ..Options::default()
    };
    let cache = Cache::open(&Place::Memfd, &options).map_err(io::Error::other)?;
    Ok(cache.info().gate == GateState::On)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_an_unknown_one_is_told_the_known() {
        let names: HashSet<_> = PRESETS.iter().map(|preset| preset.name).collect();
        assert_eq!(names.len(), PRESETS.len());
        assert_eq!(find("hodor-fig5").unwrap().name, "hodor-fig5");
        assert!(find("hodor").unwrap_err().contains("hodor-fig5"));
        assert_eq!(Scale::parse("full"), Ok(Scale::Full));
        assert!(Scale::parse("x").unwrap_err().contains("small and full"));
    }
}
