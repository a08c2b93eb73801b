//! `cargo xtask flights times`: how long a wake-up and a hand-over take where nothing else runs, a hot key, and very many flights at once.

use crate::ledger::now_us;
use keyway_cache::{Begun, Cache, Fetch, Options, Place, Session};
use nix::sys::resource::{UsageWho, getrusage};
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Until a process that waits is asleep.
const ASLEEP: Duration = Duration::from_millis(30);

/// How all wait for each other.
fn patient() -> Fetch<'static> {
    Fetch {
        wait: Duration::from_secs(60),
        ..Fetch::default()
    }
}

/// A second process of this program. It reads one command per line, and answers each with one line.
struct Other {
    child: Child,
    tell: ChildStdin,
    told: Lines<BufReader<ChildStdout>>,
}

impl Other {
    fn start(region: &Path) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .arg("--other")
            .arg(region)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a process");
        let (tell, told) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        Self {
            child,
            tell,
            told: BufReader::new(told).lines(),
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.tell, "{line}").expect("a process that listens");
    }

    fn answer(&mut self) -> Vec<u64> {
        let line = self.told.next().expect("an answer").expect("a line");
        line.split(' ').map(|word| word.parse().expect("a number")).collect()
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The other process: `wait KEY` fetches, and says when it had the value, microseconds, and how often it slept meanwhile; `hold KEY` begins to
/// compute, and says so; `read` says when it has read that.
pub fn other(region: &Path) {
    let mut session = open(region).session().expect("a session");
    for line in std::io::stdin().lines().map_while(Result::ok) {
        if line == "read" {
            println!("{}", now_us());
            continue;
        }
        let (verb, key) = line.split_once(' ').expect("a verb and a key");
        let (slept, mut value) = (sleeps(), Vec::new());
        let begun = session.fetch_begin(key.as_bytes(), &patient(), &mut value).expect("a fetch");
        match (verb, begun) {
            ("wait", Begun::Hit(_)) => println!("{} {}", now_us(), sleeps() - slept),
            // It computes until it is killed.
            ("hold", Begun::Compute(_)) => println!("{}", now_us()),
            (_, begun) => panic!("{line}: {begun:?}"),
        }
    }
}

fn open(region: &Path) -> Cache {
    Cache::open(&Place::Path(region.to_owned()), &Options::new().memory(256 << 20)).expect("a region")
}

/// How often this process has slept. Its processor time would say less: some virtual machines bill a sleep that a timer ends at milliseconds.
fn sleeps() -> u64 {
    let usage = getrusage(UsageWho::RUSAGE_SELF).expect("this process's usage");
    usage.voluntary_context_switches().cast_unsigned()
}

/// All of it; the short form with a tenth of the rounds.
pub fn run(is_short: bool) -> ExitCode {
    let less = if is_short { 10 } else { 1 };
    let scratch = harness::Scratch::new();
    let region = scratch.join("region");
    let cache = open(&region);
    let mut session = cache.session().expect("a session");
    wake_up(&mut session, &region, 500 / less);
    waiting(&mut session, &region);
    hand_over(&mut session, &region, 100 / less);
    let waited = hot(&cache, 1_000_000 / less as u64);
    many(&cache, &mut session, 100_000 / less);
    let failed = u64::from(waited > 0);
    println!("{} passed, {failed} failed", 1 - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints the median, the 99th percentile and the longest of these times, microseconds; nothing if there are none.
pub fn print_quantiles(what: &str, mut times: Vec<u64>) {
    times.sort_unstable();
    let rank = |share: usize| times.get((times.len() * share / 100).min(times.len().saturating_sub(1)));
    if let (Some(median), Some(high), Some(most)) = (rank(50), rank(99), times.last()) {
        println!(
            "  {what}: {} times, median {median} µs, p99 {high} µs, longest {most} µs",
            times.len()
        );
    }
}

fn wake_up(session: &mut Session, region: &Path, rounds: usize) {
    let mut other = Other::start(region);
    let (mut bare, mut times) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        std::thread::sleep(ASLEEP);
        let told_at = now_us();
        other.tell("read");
        bare.push(other.answer()[0].saturating_sub(told_at));
        let key = format!("wake-{round}");
        let stored_at = told_while_it_waits(session, &mut other, &key, ASLEEP);
        times.push(other.answer()[0].saturating_sub(stored_at));
    }
    print_quantiles(
        "what the machine takes: from a write into a pipe to the process that reads it",
        bare,
    );
    print_quantiles("from a store to the value in another process", times);
}

/// Begins a flight for which the other process waits, and stores after a while: when, microseconds.
fn told_while_it_waits(session: &mut Session, other: &mut Other, key: &str, after: Duration) -> u64 {
    let Begun::Compute(token) = session
        .fetch_begin(key.as_bytes(), &patient(), &mut Vec::new())
        .expect("a fetch")
    else {
        panic!("{key} is there");
    };
    other.tell(&format!("wait {key}"));
    std::thread::sleep(after);
    let stored_at = now_us();
    let stored = session.fetch_store(key.as_bytes(), token, b"value", &patient());
    assert!(stored.expect("a store"), "the flight was void");
    stored_at
}

fn waiting(session: &mut Session, region: &Path) {
    const LONG: Duration = Duration::from_secs(3);
    let mut other = Other::start(region);
    told_while_it_waits(session, &mut other, "long", LONG);
    println!(
        "  a process that waits for {} s sleeps {} times",
        LONG.as_secs(),
        other.answer()[1]
    );
}

fn hand_over(session: &mut Session, region: &Path, rounds: usize) {
    let times = (0..rounds).map(|round| {
        let key = format!("dies-{round}");
        let mut other = Other::start(region);
        other.tell(&format!("hold {key}"));
        other.answer();
        let killed_at = AtomicU64::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(ASLEEP);
                killed_at.store(now_us(), Relaxed);
                other.child.kill().expect("a kill");
            });
            let begun = session
                .fetch_begin(key.as_bytes(), &patient(), &mut Vec::new())
                .expect("a fetch");
            let Begun::Compute(token) = begun else {
                panic!("{key}: {begun:?}")
            };
            let taken_over = now_us().saturating_sub(killed_at.load(Relaxed));
            session.fetch_abandon(key.as_bytes(), token).expect("a fetch");
            taken_over
        })
    });
    print_quantiles("from a SIGKILL to the right to compute", times.collect());
}

/// How many requests would have waited.
fn hot(cache: &Cache, requests: u64) -> u64 {
    const THREADS: u64 = 4;
    let mut waited_in_all = 0;
    for (name, how) in [
        (
            "stale_while_revalidate",
            Fetch {
                ttl: 1,
                stale_while_revalidate: 30,
                ..patient()
            },
        ),
        (
            "early",
            Fetch {
                ttl: 4,
                early: 1.0,
                ..patient()
            },
        ),
    ] {
        // It says so instead of waiting.
        let how = Fetch {
            wait: Duration::ZERO,
            compute_after_wait: false,
            has_tasks: true,
            ..how
        };
        let (waited, computed, done) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
        let key = format!("hot, {name}");
        let begun = Instant::now();
        ask(&mut cache.session().expect("a session"), &key, &how);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let mut session = cache.session().expect("a session");
                    // Longer than a value is fresh, too.
                    while done.fetch_add(1, Relaxed) < requests || begun.elapsed() < Duration::from_secs(6) {
                        match ask(&mut session, &key, &how) {
                            Asked::Found => {}
                            Asked::Computed => drop(computed.fetch_add(1, Relaxed)),
                            Asked::WouldWait => drop(waited.fetch_add(1, Relaxed)),
                        }
                    }
                });
            }
        });
        println!(
            "  a hot key with {name}: {} requests in {:.1} s, {} computations, {} requests that would have waited",
            done.load(Relaxed),
            begun.elapsed().as_secs_f64(),
            computed.load(Relaxed),
            waited.load(Relaxed)
        );
        waited_in_all += waited.load(Relaxed);
    }
    waited_in_all
}

enum Asked {
    Found,
    Computed,
    WouldWait,
}

fn ask(session: &mut Session, key: &str, how: &Fetch<'_>) -> Asked {
    match session.fetch_begin(key.as_bytes(), how, &mut Vec::new()).expect("a fetch") {
        Begun::Hit(_) | Begun::Stale(_) => Asked::Found,
        Begun::Waited(_) | Begun::Nothing => Asked::WouldWait,
        Begun::Compute(token) => {
            std::thread::sleep(Duration::from_millis(300));
            session.fetch_store(key.as_bytes(), token, b"value", how).expect("a store");
            Asked::Computed
        }
    }
}

fn many(cache: &Cache, session: &mut Session, count: usize) {
    let free = |cache: &Cache| cache.info().segments_free * cache.info().segment_bytes;
    let (before, begun) = (free(cache), Instant::now());
    let tokens: Vec<_> = (0..count)
        .map(|number| {
            let key = format!("flight-{number}");
            match session
                .fetch_begin(key.as_bytes(), &patient(), &mut Vec::new())
                .expect("nothing is refused")
            {
                Begun::Compute(token) => (key, token),
                begun => panic!("{key}: {begun:?}"),
            }
        })
        .collect();
    let (took, used) = (begun.elapsed(), before.saturating_sub(free(cache)));
    let begun = Instant::now();
    let mut stored = 0;
    for (key, token) in tokens {
        stored += usize::from(
            session
                .fetch_store(key.as_bytes(), token, b"value", &patient())
                .expect("nothing is refused"),
        );
    }
    println!(
        "  {count} flights at once, in 256 MiB: {:.1} µs to begin each, {:.1} µs to store, {} KiB of segments, {stored} stored",
        took.as_secs_f64() * 1e6 / count as f64,
        begun.elapsed().as_secs_f64() * 1e6 / count as f64,
        used >> 10
    );
    assert_eq!(stored, count, "a flight was void");
}
