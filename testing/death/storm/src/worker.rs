//! A worker: a process with one or two threads that make random calls through a door and write each into a journal, until they
//! are told to stop, have had enough, or are killed.

use crate::door::{Library, Network};
use crate::journal::Journal;
use crate::system::fork_away;
use harness::Pages;
use harness::Random;
use histories::choose::{Chooser, Mix};
use histories::{Answer, Door};
use keyway_cache::server::ServerSession as _;
use keyway_cache::{Cache, OpenError, Options, Place, Session, SessionError};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

/// What a round tells its workers; the same for all of them.
#[derive(Clone, Debug)]
pub struct Job {
    /// the round's folder: region, journals, control page, the server's address
    pub folder: PathBuf,
    /// the region's file
    pub region: PathBuf,
    /// of the keys' names
    pub round: u32,
    /// of all choices
    pub seed: u64,
    /// the kind of region
    pub kind: Kind,
    /// calls that fit into a journal
    pub capacity: usize,
    /// its size, if it has to be made, bytes
    pub memory: u64,
    /// a broken variant of the region to switch on, by number; 0 for none
    pub mutant: u32,
}

/// Which region the storm is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// it has room for everything: a key that was stored is there until it is deleted
    Lasting,
    /// it evicts, grows its index, and is flushed all the time
    Evicting,
}

/// Writers of a round that fill an evicting region's index. A round has three times as many, or more.
const INDEX_FILLERS: u32 = 30;
/// [`Mix::fill_len`] of writers that fill the index, and of those that fill an evicting region's memory.
const FILL_LEN: usize = 60;
const FILL_LEN_MEMORY: usize = 3_000;

impl Kind {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Lasting => "lasting",
            Self::Evicting => "evicting",
        }
    }

    /// The calls of the writer with this number. The first writers of an evicting region fill the index, the others the memory:
    /// flushes leave too little time for the former to fill it.
    pub fn mix(self, writer: u32) -> Mix {
        match self {
            Self::Lasting => Mix {
                texts: 10,
                numbers: 4,
                fill: 150,
                fill_max: 300,
                fill_len: FILL_LEN,
                flush: 0,
                len_max: 70_000,
                expiring: false,
            },
            Self::Evicting => Mix {
                texts: 10,
                numbers: 4,
                fill: 300,
                fill_max: 60_000,
                fill_len: if writer <= INDEX_FILLERS { FILL_LEN } else { FILL_LEN_MEMORY },
                flush: 3,
                len_max: 40_000,
                expiring: true,
            },
        }
    }
}

/// The page that the storm and its workers share.
#[derive(Debug)]
pub struct Control(Pages);

impl Control {
    /// The page in a round's folder.
    pub fn open(folder: &Path) -> Self {
        Self(Pages::open(&folder.join("control"), 512))
    }

    /// A writer's number that no other worker has. The first is 1.
    pub fn next_writer(&self) -> u32 {
        // PAIRS: itself; numbers only have to differ.
        u32::try_from(self.0.word(1).fetch_add(1, AcqRel) + 1).unwrap_or(u32::MAX)
    }

    /// The last number given.
    pub fn last_writer(&self) -> u32 {
        u32::try_from(self.0.word(1).load(Acquire)).unwrap_or(u32::MAX)
    }

    /// Tells all workers to end.
    pub fn stop(&self) {
        self.0.word(0).store(1, Release);
    }

    /// Notes that a thread found no slot in the region, and is served.
    pub fn note_served(&self) {
        // PAIRS: itself; a count.
        self.0.word(2).fetch_add(1, AcqRel);
    }

    /// How many were.
    pub fn served(&self) -> u64 {
        self.0.word(2).load(Acquire)
    }

    /// Whether workers are to end.
    pub fn is_stopped(&self) -> bool {
        self.0.word(0).load(Acquire) != 0
    }
}

/// Exit code of a worker that found no place in the region: others, or the dead that were not taken back yet, had them all.
pub const NO_PLACE: i32 = 3;

/// Thread slots of a region: as few as a region can have.
pub const SLOTS: usize = 32;
/// Sessions with which each process of a crowded round begins, and which do nothing: with the others' they are more than there are slots.
const IDLE: usize = 3;

impl Job {
    /// Whether there are more threads than slots: the server writes for those that find none.
    pub fn is_crowded(&self) -> bool {
        // Broken variants are shown without a server.
        self.mutant == 0 && self.round.is_multiple_of(2)
    }
}

/// The region's options for a round.
pub fn options(job: &Job) -> Options {
    Options::new()
        .memory(job.memory)
        .sessions(SLOTS)
        .item_size_max(1 << 19)
        .evict(job.kind == Kind::Evicting)
}

/// A worker's life; its exit code. A process of this number's choices: of four one uses the server's socket, of the others half
/// have two threads.
pub fn run(job: &Job) -> i32 {
    mutants::set(mutants::Mutant::ALL.into_iter().find(|m| *m as u32 == job.mutant));
    let control = Control::open(&job.folder);
    let writer = control.next_writer();
    let mut random = Random::new(job.seed).fork(u64::from(writer));
    let has_server = job.folder.join("server").exists();
    if has_server && random.below(4) == 0 {
        let door = Network::new(job.folder.join("server"), job.round);
        Thread::new(job, &control, writer).run_network(door);
        return 0;
    }
    let cache = match Cache::open(&Place::Path(job.region.clone()), &options(job)) {
        Ok(cache) => cache,
        Err(OpenError::ProcessesFull { .. }) => return NO_PLACE,
        Err(e) => panic!("{e}"),
    };
    let idle = if job.is_crowded() { IDLE } else { 0 };
    let idle: Vec<_> = (0..idle).map_while(|_| cache.session().ok()).collect();
    let two = random.below(2) == 0;
    let full = std::thread::scope(|scope| {
        let second = two.then(|| {
            let writer = control.next_writer();
            scope.spawn({
                let (control, cache) = (&control, &cache);
                move || Thread::new(job, control, writer).run_library(cache, false)
            })
        });
        let first = Thread::new(job, &control, writer).run_library(&cache, !two);
        let second = second.map(|t| t.join().unwrap_or_else(|e| std::panic::resume_unwind(e)));
        first.is_err() || second.is_some_and(|r| r.is_err())
    });
    drop(idle);
    // Some detach as they should, others just end.
    if random.below(2) == 0 {
        cache.close();
    } else {
        std::mem::forget(cache);
    }
    if full { NO_PLACE } else { 0 }
}

struct Thread<'j> {
    job: &'j Job,
    control: &'j Control,
    journal: Journal,
    chooser: Chooser,
}

impl<'j> Thread<'j> {
    fn new(job: &'j Job, control: &'j Control, writer: u32) -> Self {
        let random = Random::new(job.seed).fork(u64::from(writer) << 32);
        Self {
            job,
            control,
            journal: Journal::create(&job.folder, writer, job.capacity),
            chooser: Chooser::new(random, job.kind.mix(writer), writer),
        }
    }

    fn goes_on(&self) -> bool {
        self.journal.has_room() && !self.control.is_stopped()
    }

    fn call(&mut self, door: &mut impl Door) {
        let call = self.chooser.next_call();
        self.journal.begin(&call);
        let answer = door.call(&call);
        self.journal.end(answer.as_ref());
        if let Some(answer) = answer {
            // No worker can go on sensibly after this, and the journal has it.
            if answer == Answer::Torn {
                self.control.stop();
            }
            self.chooser.learn(&call, &answer);
        }
    }

    fn run_network(&mut self, mut door: Network) {
        while self.goes_on() {
            if door.is_connected() {
                self.call(&mut door);
            } else {
                std::thread::yield_now();
            }
            self.journal.takes_order();
        }
    }

    fn run_library(&mut self, cache: &Cache, may_forget: bool) -> Result<(), SessionError> {
        let mut door = Library::new(self.session(cache)?, self.job.round);
        let mut may_forget = may_forget;
        while self.goes_on() {
            self.call(&mut door);
            if self.journal.takes_order() {
                let job = self.job;
                fork_away(|| run(job));
            }
            match self.chooser.random().below(20_000) {
                0..5 => door.session.upkeep(),
                5..8 => door.session.release(),
                8..10 => door = Library::new(self.session(cache)?, self.job.round),
                // A thread that ends without a word: its slot stays leased until the process is gone.
                10 if may_forget => {
                    may_forget = false;
                    let old = std::mem::replace(&mut door, Library::new(self.session(cache)?, self.job.round));
                    std::mem::forget(old);
                }
                // A process that has had enough.
                11 => return Ok(()),
                _ => {}
            }
        }
        Ok(())
    }

    fn session(&self, cache: &Cache) -> Result<Session, SessionError> {
        let session = cache.session()?;
        if session.id().is_none() {
            self.control.note_served();
        }
        Ok(session)
    }
}
