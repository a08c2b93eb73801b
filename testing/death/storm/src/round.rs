//! One round: workers on fresh keys for a few seconds of weather, then the judgement.
//!
//! At the end of a round every worker has ended and been reaped; the region is recovered and checked, no session is left,
//! every shared key is read once more as part of its history, and every key's history is judged.

use crate::door::Library;
use crate::journal::Journal;
use crate::system::{End, Reaped, reap, signal};
use crate::weather::{Act, Weather};
use crate::worker::{Control, Job, Kind, NO_PLACE, SLOTS, options};
use harness::{DEADLINE, Random, ServeOptions, Server};
use histories::value::Value;
use histories::{Answer, Call, Door, Key, Operation, Rules, Verb, judge_all};
use keyway_cache::{Cache, Place};
use nix::sys::signal::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time between two events.
const BEAT: Duration = Duration::from_millis(4);
/// Events at a time, at most.
const ACTS_A_BEAT: usize = 3;
/// A worker that is not stopped and makes no call for so long is hanging. Generous: machines that run storms are busy.
const HANG: Duration = Duration::from_secs(40);

/// What was done and found.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Tally {
    pub rounds: u64,
    pub operations: u64,
    pub unanswered: u64,
    pub refused: u64,
    pub starts: u64,
    pub kills: u64,
    pub stops: u64,
    pub resumes: u64,
    pub forks: u64,
    pub server_kills: u64,
    pub no_place: u64,
    pub served: u64,
    pub histories: u64,
    pub undecided: u64,
    pub checks: u64,
    pub configurations_max: usize,
    pub slowest_ns: u64,
    pub evictions: u64,
    pub judging: Duration,
    pub problems: Vec<String>,
}

impl Tally {
    /// Adds another one's.
    pub fn add(&mut self, other: Self) {
        self.rounds += other.rounds;
        self.operations += other.operations;
        self.unanswered += other.unanswered;
        self.refused += other.refused;
        self.starts += other.starts;
        self.kills += other.kills;
        self.stops += other.stops;
        self.resumes += other.resumes;
        self.forks += other.forks;
        self.server_kills += other.server_kills;
        self.no_place += other.no_place;
        self.served += other.served;
        self.histories += other.histories;
        self.undecided += other.undecided;
        self.checks += other.checks;
        self.configurations_max = self.configurations_max.max(other.configurations_max);
        self.evictions += other.evictions;
        self.judging += other.judging;
        self.slowest_ns = self.slowest_ns.max(other.slowest_ns);
        self.problems.extend(other.problems);
    }

    /// A check of the storm's own: whether `fine`.
    pub fn check(&mut self, fine: bool, problem: impl FnOnce() -> String) {
        self.checks += 1;
        if !fine {
            self.problems.push(problem());
        }
    }
}

/// What keys must hold for as long as the region lasts: round, key, value.
pub type Kept = Vec<(u32, Key, Value)>;

struct Worker {
    pid: i32,
    stopped: bool,
    journals: Vec<Journal>,
    /// calls seen in each journal, and when there was a new one
    seen: Vec<usize>,
    since: Instant,
}

struct Round<'j> {
    job: &'j Job,
    control: Control,
    weather: Weather,
    workers: BTreeMap<i32, Worker>,
    /// writers whose journals have been looked for
    writers: u32,
    server: Option<Server>,
    /// when a stopped server goes on
    server_resumes: Option<Instant>,
    killed: BTreeSet<i32>,
    tally: Tally,
}

/// Runs one round; what the shared and the filling keys hold at its end is added to `kept`.
pub fn run(job: &Job, lasts: Duration, with_server: bool, kept: &mut Kept) -> Tally {
    let mut round = Round {
        job,
        control: Control::open(&job.folder),
        weather: Weather::new(Random::new(job.seed).fork(u64::MAX)),
        workers: BTreeMap::new(),
        writers: 0,
        server: None,
        server_resumes: None,
        killed: BTreeSet::new(),
        tally: Tally {
            rounds: 1,
            ..Tally::default()
        },
    };
    if with_server {
        round.start_server();
    }
    round.storm(lasts);
    round.calm();
    round.judge(kept);
    round.tally.served = round.control.served();
    round.tally
}

impl Round<'_> {
    fn storm(&mut self, lasts: Duration) {
        let end = Instant::now() + lasts;
        let mut beats = 0u64;
        while Instant::now() < end && !self.control.is_stopped() {
            self.reap();
            self.adopt_new_workers();
            for _ in 0..ACTS_A_BEAT {
                let stopped = self.workers.values().filter(|w| w.stopped).count();
                if let Some(act) = self.weather.next_act(self.workers.len(), stopped) {
                    self.act(act);
                }
            }
            if self.server_resumes.is_some_and(|at| at < Instant::now()) {
                self.resume_server();
            }
            beats += 1;
            if beats.is_multiple_of(256) {
                self.watch();
            }
            std::thread::sleep(BEAT);
        }
    }

    fn act(&mut self, act: Act) {
        match act {
            Act::Start => self.start(),
            Act::Kill => self.strike(false, Signal::SIGKILL),
            Act::KillStopped => self.strike(true, Signal::SIGKILL),
            Act::Stop => self.strike(false, Signal::SIGSTOP),
            Act::Resume => self.strike(true, Signal::SIGCONT),
            Act::Fork => {
                if let Some(pid) = self.pick(false)
                    && let Some(journal) = self.workers.get(&pid).and_then(|w| w.journals.first())
                {
                    journal.order_fork();
                    self.tally.forks += 1;
                }
            }
            Act::KillServer => {
                if let Some(mut server) = self.server.take() {
                    self.resume_server();
                    server.kill();
                    self.tally.server_kills += 1;
                    self.start_server();
                }
            }
            Act::StopServer => {
                if let (Some(server), None) = (&self.server, self.server_resumes) {
                    signal(i32::try_from(server.pid()).unwrap_or(0), Signal::SIGSTOP);
                    self.server_resumes = Some(Instant::now() + 20 * BEAT);
                    self.tally.stops += 1;
                }
            }
        }
    }

    /// One of the workers that stand still, or of those that do not.
    fn pick(&mut self, stopped: bool) -> Option<i32> {
        let pids: Vec<i32> = self
            .workers
            .values()
            .filter(|w| w.stopped == stopped)
            .map(|w| w.pid)
            .collect();
        let n = self.weather.one_of(pids.len());
        pids.get(n).copied()
    }

    fn strike(&mut self, stopped: bool, with: Signal) {
        let Some(pid) = self.pick(stopped) else { return };
        signal(pid, with);
        if let Some(worker) = self.workers.get_mut(&pid) {
            worker.stopped = with == Signal::SIGSTOP;
            worker.since = Instant::now();
        }
        match with {
            Signal::SIGKILL => {
                self.tally.kills += 1;
                self.killed.insert(pid);
            }
            Signal::SIGSTOP => self.tally.stops += 1,
            _ => self.tally.resumes += 1,
        }
    }

    #[expect(
        clippy::zombie_processes,
        reason = "all children are reaped together, forked ones among them"
    )]
    fn start(&mut self) {
        let job = self.job;
        let program = std::env::current_exe().unwrap_or_else(|e| panic!("the storm's own path: {e}"));
        let log = std::fs::File::options()
            .append(true)
            .create(true)
            .open(job.folder.join("log"))
            .unwrap_or_else(|e| panic!("the workers' log: {e}"));
        let child = Command::new(program)
            .arg("--worker")
            .arg(&job.folder)
            .arg(&job.region)
            .args([
                job.kind.name().to_owned(),
                job.round.to_string(),
                job.seed.to_string(),
                job.capacity.to_string(),
                job.memory.to_string(),
                job.mutant.to_string(),
            ])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|e| panic!("starting a worker: {e}"));
        self.tally.starts += 1;
        self.met(i32::try_from(child.id()).unwrap_or(0));
    }

    fn met(&mut self, pid: i32) -> &mut Worker {
        self.workers.entry(pid).or_insert_with(|| Worker {
            pid,
            stopped: false,
            journals: Vec::new(),
            seen: Vec::new(),
            since: Instant::now(),
        })
    }

    /// Journals that were begun since: of workers that were started, and of forked ones, which are met here.
    fn adopt_new_workers(&mut self) {
        while self.writers < self.control.last_writer() {
            // A writer without a journal has died before, or is about to begin one.
            let Some(journal) = Journal::open(&self.job.folder, self.writers + 1) else {
                break;
            };
            self.writers += 1;
            let pid = journal.pid();
            if !self.killed.contains(&pid) && std::path::Path::new(&format!("/proc/{pid}")).exists() {
                let worker = self.met(pid);
                worker.journals.push(journal);
                worker.seen.push(0);
            }
        }
    }

    /// Marks who has ended, and says which worker ended as none should. `false`: there is none left.
    fn reap(&mut self) -> bool {
        loop {
            match reap() {
                Reaped::One(pid, end) => {
                    self.workers.remove(&pid);
                    if self.server.as_ref().is_some_and(|s| i64::from(s.pid()) == i64::from(pid)) {
                        self.tally.check(false, || format!("the server ended: {end:?}"));
                        self.server = None;
                    } else if end == End::Exited(NO_PLACE) {
                        self.tally.no_place += 1;
                    } else if end != End::Exited(0) && end != End::Signalled(Signal::SIGKILL) {
                        self.control.stop();
                        let log = std::fs::read_to_string(self.job.folder.join("log")).unwrap_or_default();
                        self.tally.check(false, || format!("worker {pid} ended: {end:?}\n{log}"));
                    }
                }
                Reaped::NoneYet => return true,
                Reaped::Nobody => return false,
            }
        }
    }

    /// Whether every worker that may run gets on.
    fn watch(&mut self) {
        let mut hanging = Vec::new();
        for worker in self.workers.values_mut().filter(|w| !w.stopped) {
            for (journal, seen) in worker.journals.iter().zip(&mut worker.seen) {
                let now = journal.progress(*seen);
                if now != *seen {
                    *seen = now;
                    worker.since = Instant::now();
                }
            }
            if worker.since.elapsed() > HANG {
                hanging.push(worker.pid);
            }
        }
        for pid in hanging {
            self.control.stop();
            self.tally.check(false, || {
                format!("worker {pid} has made no call for {HANG:?} although it may run")
            });
            signal(pid, Signal::SIGKILL);
        }
    }

    fn start_server(&mut self) {
        let mut keyway_arguments = vec!["--max-item".into(), "512k".into(), "--sessions".into(), SLOTS.to_string()];
        if self.job.kind == Kind::Lasting {
            keyway_arguments.push("--no-evict".into());
        }
        let options = ServeOptions {
            memory_mb: u32::try_from(self.job.memory >> 20).unwrap_or(64),
            threads: 2,
            region: Some(self.job.region.clone()),
            keyway_arguments,
            ..ServeOptions::default()
        };
        match Server::try_start(harness::Kind::Keyway, &options) {
            Ok(server) => {
                // Given its name when it is whole: workers read it at any time.
                let new = self.job.folder.join("server.new");
                let written = std::fs::write(&new, server.socket().as_os_str().as_encoded_bytes())
                    .and_then(|()| std::fs::rename(&new, self.job.folder.join("server")));
                self.tally
                    .check(written.is_ok(), || format!("the server's address: {written:?}"));
                self.server = Some(server);
            }
            Err(why) => self.tally.check(false, || format!("the server does not start: {why}")),
        }
    }

    fn resume_server(&mut self) {
        self.server_resumes = None;
        if let Some(server) = &self.server {
            signal(i32::try_from(server.pid()).unwrap_or(0), Signal::SIGCONT);
        }
    }

    /// Every worker ends and is reaped.
    fn calm(&mut self) {
        self.resume_server();
        self.control.stop();
        for worker in self.workers.values() {
            signal(worker.pid, Signal::SIGCONT);
        }
        let end = Instant::now() + HANG;
        while !self.workers.is_empty() && Instant::now() < end {
            self.reap();
            self.adopt_new_workers();
            std::thread::sleep(BEAT);
        }
        let left: Vec<i32> = self.workers.keys().copied().collect();
        self.tally.check(left.is_empty(), || {
            format!("workers {left:?} do not end although they may run")
        });
        for pid in left {
            signal(pid, Signal::SIGKILL);
        }
        if let Some(server) = &mut self.server {
            server.terminate();
        }
        self.server = None;
        // Forked ones that were not met among them: without children there is none left.
        let end = Instant::now() + DEADLINE;
        while self.reap() && Instant::now() < end {
            std::thread::sleep(BEAT);
        }
        let anybody = self.reap();
        self.tally.check(!anybody, || "a worker was not reaped".into());
    }

    fn judge(&mut self, kept: &mut Kept) {
        let job = self.job;
        let mut operations: Vec<Operation> = (1..=self.control.last_writer())
            .filter_map(|writer| Journal::open(&job.folder, writer))
            .flat_map(|journal| journal.operations())
            .collect();
        let cache = match Cache::open(&Place::Path(job.region.clone()), &options(job)) {
            Ok(cache) => cache,
            Err(e) => return self.tally.check(false, || format!("the region does not open any more: {e}")),
        };
        self.read_all(&cache, &mut operations, kept);
        let report = cache.check(|_| {});
        self.tally.check(report.is_sound(), || {
            format!("the region is not sound: {:#?}", report.problems)
        });
        let sessions = cache.info().sessions;
        self.tally
            .check(sessions == 0, || format!("{sessions} sessions of the dead are still leased"));
        cache.close();
        let rules = Rules {
            may_vanish: job.kind == Kind::Evicting,
            flights_may_end: true,
        };
        let begun = Instant::now();
        let verdict = judge_all(&operations, rules);
        self.tally.judging += begun.elapsed();
        self.tally.operations += verdict.operations;
        self.tally.unanswered += verdict.unanswered;
        self.tally.histories += verdict.keys - verdict.undecided;
        self.tally.undecided += verdict.undecided;
        self.tally.configurations_max = verdict.configurations_max;
        let log = std::fs::read_to_string(job.folder.join("log")).unwrap_or_default();
        if !verdict.violations.is_empty() && !log.is_empty() {
            self.tally.problems.push(format!("the workers say:\n{log}"));
        }
        self.tally.problems.extend(verdict.violations);
        let times = operations.iter().filter_map(|o| Some(o.responded? - o.invoked));
        self.tally.slowest_ns = times.max().unwrap_or(0);
        let refused = operations.iter().filter(|o| o.answer == Some(Answer::Refused)).count() as u64;
        self.tally.refused = refused;
        if job.kind == Kind::Lasting {
            self.tally.check(refused == 0, || {
                format!("{refused} stores were refused although there is room")
            });
        }
    }

    /// Reads every key once more, as part of its history.
    fn read_all(&mut self, cache: &Cache, operations: &mut Vec<Operation>, kept: &mut Kept) {
        let keys: BTreeSet<Key> = operations
            .iter()
            .filter(|o| o.call.verb != Verb::Flush)
            .map(|o| o.call.key)
            .collect();
        let session = match cache.session() {
            Ok(session) => session,
            Err(e) => return self.tally.check(false, || format!("no session once all are dead: {e}")),
        };
        let mut door = Library::new(session, self.job.round);
        for key in keys {
            let call = Call::new(Verb::Get, key);
            let invoked = crate::system::now_ns();
            let answer = door.call(&call);
            if let Some(Answer::Hit { value, .. }) = answer {
                kept.push((self.job.round, key, value));
            }
            operations.push(Operation {
                invoked,
                responded: Some(crate::system::now_ns()),
                call,
                answer,
            });
        }
    }
}

/// Whether a lasting region still holds what earlier rounds left in it.
pub fn verify(cache: &Cache, kept: &Kept) -> Result<usize, String> {
    let session = cache.session().map_err(|e| e.to_string())?;
    let mut door = Library::new(session, 0);
    for (round, key, value) in kept {
        door.round = *round;
        match door.call(&Call::new(Verb::Get, *key)) {
            Some(Answer::Hit { value: found, .. }) if found == *value => {}
            other => {
                return Err(format!(
                    "key {:x} of round {round} held {value:x?} when its round ended, now {other:x?}",
                    key.0
                ));
            }
        }
    }
    Ok(kept.len())
}
