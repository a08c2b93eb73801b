//! Workers in Python and in C on one region, killed with SIGKILL and started again while others check every value: see
//! `programs/worker.py`. Enemy: a death in one language's call that another one's get shows.
//!
//! Ten seconds; `KEYWAY_TESTS_FULL=1` makes it ten minutes.
//! Guards: P1

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use harness::{DEADLINE, Random, Scratch, full_run, keyway_check, run_to_end, say, skip};
use keyway_cache::{Cache, Options, Place};
use library::{C, Python, Running, program};

/// Of the journal, as `programs/worker.py` has them.
const KEYS: u64 = 8;
const COUNTERS: usize = 4;
const WORDS: u64 = 32;
const INCR: u64 = 2 * KEYS;
const CAS: u64 = 2 * KEYS + 2;
const CHECKS: u64 = 2 * KEYS + 4;

/// The shortest and the longest life of a worker that is killed.
const LIFE_MS: std::ops::Range<u64> = 30..300;

/// In which language a worker is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Python,
    C,
}
use Language::{C as InC, Python as InPython};

/// One region, its journal, and what workers are made of.
struct Ground<'a> {
    python: &'a Python,
    c: &'a C,
    scratch: Scratch,
    region: Cache,
    journal: File,
    workers: u64,
}

impl<'a> Ground<'a> {
    fn new(python: &'a Python, c: &'a C, workers: u64) -> Self {
        let scratch = Scratch::new();
        let region = Cache::open(
            &Place::Path(scratch.join("region")),
            &Options::new().memory(Options::MEMORY_DEFAULT),
        )
        .expect("a region");
        region
            .with_session(|session, _| {
                for counter in 0..COUNTERS {
                    for kind in ["incr", "cas"] {
                        session
                            .set(format!("{kind}:{counter}").as_bytes(), b"0", 0)
                            .expect("a counter");
                    }
                }
            })
            .expect("a session");
        let journal = File::options()
            .read(true)
            .write(true)
            .create_new(true)
            .open(scratch.join("journal"));
        let journal = journal.expect("a journal");
        journal.set_len(8 * (1 + workers * WORDS)).expect("a journal");
        Self {
            python,
            c,
            scratch,
            region,
            journal,
            workers,
        }
    }

    fn output(&self, worker: u64) -> PathBuf {
        self.scratch.join(&format!("output-{worker}"))
    }

    /// Starts a worker; what it says is added to what its predecessors said.
    fn start(&self, language: Language, worker: u64, seed: u64, fault: &[&str]) -> Running {
        let mut command = match language {
            InPython => {
                let mut command = self.python.command();
                command.arg(program("worker.py"));
                command
            }
            InC => self.c.run("worker"),
        };
        let output = File::options()
            .create(true)
            .append(true)
            .open(self.output(worker))
            .expect("a file");
        let errors = output.try_clone().expect("a descriptor");
        command.arg(self.scratch.join("region")).arg(self.scratch.join("journal"));
        command
            .args([worker, self.workers, seed].map(|number| number.to_string()))
            .args(fault);
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        Running::start(&mut command)
    }

    fn said(&self) -> String {
        let said = (0..self.workers).filter_map(|worker| std::fs::read_to_string(self.output(worker)).ok());
        said.collect::<Vec<_>>().concat()
    }

    fn word(&self, worker: u64, field: u64) -> u64 {
        let mut bytes = [0; 8];
        let at = 8 * (1 + worker * WORDS + field);
        self.journal.read_exact_at(&mut bytes, at).expect("a word of the journal");
        u64::from_ne_bytes(bytes)
    }

    fn sum(&self, field: u64) -> u64 {
        (0..self.workers).map(|worker| self.word(worker, field)).sum()
    }

    fn stop(&self) {
        self.journal.write_all_at(&1_u64.to_ne_bytes(), 0).expect("the journal");
    }

    fn counted(&self, kind: &str) -> u64 {
        let number = |counter: usize| {
            let name = format!("{kind}:{counter}");
            let found = self.region.with_session(|session, _| session.get(name.as_bytes()));
            let value = found.expect("a session").expect("a get");
            let value = value.unwrap_or_else(|| panic!("{name} is lost"));
            String::from_utf8_lossy(&value).parse::<u64>().expect("a number")
        };
        (0..COUNTERS).map(number).sum()
    }

    /// What was counted is what was acknowledged, and at most what was attempted.
    fn judge_counters(&self) {
        for (kind, field) in [("incr", INCR), ("cas", CAS)] {
            let (attempted, acknowledged, counted) = (self.sum(field), self.sum(field + 1), self.counted(kind));
            assert!(
                (acknowledged..=attempted).contains(&counted),
                "{kind}: {acknowledged} acknowledged, {attempted} attempted, {counted} counted"
            );
        }
    }
}

/// `None`: said aloud why not.
fn tools(test: &str) -> Option<(Python, C)> {
    let tools = Python::new(Path::new(env!("CARGO_TARGET_TMPDIR"))).and_then(|python| {
        let c = C::new()?;
        c.compile("worker.c");
        Ok((python, c))
    });
    tools.map_err(|because| skip(test, &because)).ok()
}

#[test]
fn no_other_worker_sees_that_one_is_killed() {
    let test = "the storm of Python and C";
    let Some((python, c)) = tools(test) else { return };
    let mut random = Random::new(Random::seed_for(test));
    // The first of each language live on, and check all the time.
    let languages = [InPython, InC, InPython, InC, InPython, InC];
    let spared = 2;
    let ground = Ground::new(&python, &c, languages.len() as u64);
    let mut life = || Instant::now() + Duration::from_millis(LIFE_MS.start + random.below(LIFE_MS.end - LIFE_MS.start));
    let mut seeds = 0;
    let mut start = |worker: usize| {
        seeds += 1;
        ground.start(languages[worker], worker as u64, seeds, &[])
    };
    let mut children: Vec<(Running, Instant)> = (0..languages.len()).map(|worker| (start(worker), life())).collect();
    let mut kills = [0; 2];
    let end = Instant::now() + Duration::from_secs(if full_run() { 600 } else { 10 });
    while Instant::now() < end {
        for (worker, (child, dies)) in children.iter_mut().enumerate() {
            if let Some(status) = child.ended() {
                panic!("worker {worker} ended: {status}\n{}", ground.said());
            }
            if worker >= spared && Instant::now() >= *dies {
                child.kill();
                kills[usize::from(languages[worker] == InC)] += 1;
                (*child, *dies) = (start(worker), life());
            }
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    ground.stop();
    for (worker, (child, _)) in children.iter_mut().enumerate() {
        let status = child.end();
        assert!(status.success(), "worker {worker}: {status}\n{}", ground.said());
    }
    assert_eq!(ground.said(), "");
    ground.judge_counters();
    let checks = ground.sum(CHECKS);
    let counters = ground.region.counters();
    assert_eq!(counters.evictions, 0, "everything fits");
    assert!(
        kills.iter().all(|&kills| kills >= 5) && checks > 1000,
        "{kills:?} kills, {checks} checks"
    );
    say(&format!(
        "{test}: {} kills in Python, {} in C; {checks} values checked, {} threads taken back",
        kills[0], kills[1], counters.recoveries
    ));
    let path = ground.scratch.join("region");
    ground.region.leave();
    drop(ground.region);
    let (status, told) = keyway_check(&path);
    assert!(status.success(), "{told}");
}

#[test]
fn workers_that_do_wrong_are_found_out_by_the_other_language() {
    let Some((python, c)) = tools("workers that do wrong") else {
        return;
    };
    for (liar, judge) in [(InPython, InC), (InC, InPython)] {
        for fault in ["torn", "ahead", "forgets"] {
            let ground = Ground::new(&python, &c, 2);
            let mut liar = ground.start(liar, 0, 1, &[fault]);
            let mut judge = ground.start(judge, 1, 2, &[]);
            let ended = judge.end();
            ground.stop();
            // The liar may have found itself out as well.
            liar.end();
            let said = std::fs::read_to_string(ground.output(1)).expect("what the judge said");
            assert!(
                !ended.success() && said.starts_with("worker 1: own:0:"),
                "{fault}: {ended}\n{said}"
            );
        }
    }
}

#[test]
fn counts_that_are_not_there_are_found_out() {
    let Some((python, c)) = tools("counts that are not there") else {
        return;
    };
    let ground = Ground::new(&python, &c, 1);
    ground.judge_counters();
    // One acknowledged, which was not counted.
    for field in [INCR, INCR + 1] {
        ground
            .journal
            .write_all_at(&1_u64.to_ne_bytes(), 8 * (1 + field))
            .expect("the journal");
    }
    let judged = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| ground.judge_counters()));
    assert!(judged.is_err());
}

/// What becomes of a program that misuses the library, or runs out of something (`programs/victim.c`): it gets an error, or is ended by one of
/// these signals.
const VICTIMS: [(&str, &[i32]); 21] = [
    ("stack", FAULT),
    ("stack-of-a-thread", FAULT),
    ("descriptors", TOLD),
    ("memory-for-opening", TOLD),
    ("memory-for-an-answer", TOLD),
    ("memory-for-a-copy", TOLD),
    ("null-pointers", TOLD),
    ("no-handle", FAULT),
    ("no-key", FAULT),
    ("half-a-key", FAULT),
    ("no-value", FAULT),
    ("half-a-value", FAULT),
    ("half-a-large-value", FAULT),
    ("half-a-value-over-another", FAULT),
    ("no-buffer", FAULT),
    ("half-a-buffer", FAULT),
    ("a-buffer-for-reading", FAULT),
    ("no-item", FAULT),
    ("no-number", FAULT),
    ("no-entries", FAULT),
    ("no-options", FAULT),
];
const TOLD: &[i32] = &[];
/// SIGSEGV and SIGBUS
const FAULT: &[i32] = &[11, 7];

#[test]
fn a_worker_with_a_bad_pointer_or_without_memory_gets_an_error_or_ends_alone() {
    let test = "programs that misuse the library";
    let Some((python, c)) = tools(test) else { return };
    c.compile("victim.c");
    let ground = Ground::new(&python, &c, 2);
    let mut workers = [(InC, 0), (InPython, 1)].map(|(language, worker)| ground.start(language, worker, worker + 1, &[]));
    let region = ground.scratch.join("region");
    for (way, signals) in VICTIMS {
        for gate in ["on", "off"] {
            let mut victim = c.run("victim");
            victim.arg(&region).arg(way).env("KEYWAY_GATE", gate);
            let (status, told) = run_to_end(&mut victim, DEADLINE);
            let is_as_due = match status.signal() {
                Some(signal) => signals.contains(&signal),
                None => status.success() && signals.is_empty() && told == "told\n",
            };
            assert!(is_as_due, "{way}, gate {gate}: {status}\n{told}");
            for (worker, running) in workers.iter_mut().enumerate() {
                assert!(
                    running.ended().is_none(),
                    "{way}: worker {worker} has ended\n{}",
                    ground.said()
                );
            }
        }
    }
    // With checksums more of it is copied.
    let checked = ground.scratch.join("checked");
    let options = Options::new().memory(Options::MEMORY_DEFAULT).checksums(true);
    let _checked = Cache::open(&Place::Path(checked.clone()), &options).expect("a region with checksums");
    for gate in ["on", "off"] {
        let mut victim = c.run("victim");
        victim.arg(&checked).arg("memory-for-a-copy").env("KEYWAY_GATE", gate);
        let (status, told) = run_to_end(&mut victim, DEADLINE);
        assert!(
            status.success() && told == "told\n",
            "checksums, gate {gate}: {status}\n{told}"
        );
    }
    ground.stop();
    for worker in &mut workers {
        let status = worker.end();
        assert!(status.success(), "{status}\n{}", ground.said());
    }
    assert_eq!(ground.said(), "");
    ground.judge_counters();
    assert!(ground.sum(CHECKS) > 1000, "{} checks", ground.sum(CHECKS));
    ground.region.with_session(|session, _| session.upkeep()).expect("a session");
    ground.region.leave();
    let (info, recovered) = (ground.region.info(), ground.region.counters().recoveries);
    assert_eq!(info.sessions, 0, "what they held is taken back");
    assert!(recovered >= 20, "{recovered} threads taken back");
    drop(ground.region);
    let (status, told) = keyway_check(&region);
    assert!(status.success(), "{told}");
}
