//! `cargo xtask flights cold`: a cache is flushed while forty workers use it. The latency of its back end grows with the number of
//! concurrent requests.

use crate::door::{Asks, Client, Door, Library};
use harness::{Kind, Random, ServeOptions, Server};
use keyway_cache::{AtOnce, Cache, Fetch, Options, Place};
use std::process::ExitCode;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

const WORKERS: usize = 40;
/// Rows, the low numbers asked for more often.
const ROWS: usize = 600;
/// What a worker does between two requests.
const THINKS: Duration = Duration::from_millis(5);
/// How long a lone request of the back end takes: so long that it does not matter by how much a busy machine oversleeps.
const ALONE: Duration = Duration::from_millis(50);
/// Requests at a time at which the back end answers most requests a second: there each takes twice as long as a lone one.
const KNEE: usize = 8;
/// How long the throughput is measured before the flush.
const BEFORE: Duration = Duration::from_secs(3);
/// A step of the curve.
const STEP: Duration = Duration::from_millis(500);
/// Longest curve.
const CURVE_MAX: Duration = Duration::from_secs(60);
/// The share of the throughput before the flush that has to be there again.
const AGAIN: f64 = 0.9;

/// A data base whose latency grows with the square of the requests that it has at a time.
#[derive(Default)]
struct BackEnd {
    at_a_time: AtomicUsize,
    most: AtomicUsize,
    requests: AtomicU64,
}

impl BackEnd {
    fn ask(&self, row: u64) -> u64 {
        let now = self.at_a_time.fetch_add(1, Relaxed) + 1;
        self.most.fetch_max(now, Relaxed);
        self.requests.fetch_add(1, Relaxed);
        std::thread::sleep(latency(now));
        self.at_a_time.fetch_sub(1, Relaxed);
        row + 1
    }
}

fn latency(at_a_time: usize) -> Duration {
    ALONE.mul_f64(1.0 + (at_a_time as f64 / KNEE as f64).powi(2))
}

/// A way to fill a cache again.
struct Side<'s> {
    name: &'static str,
    open: &'s dyn Fn() -> Box<dyn Door>,
    flush: &'s dyn Fn(),
    fetches: bool,
}

/// What was seen of one.
struct Curve {
    name: &'static str,
    /// requests a second before the flush
    before: f64,
    /// and in each step after it
    after: Vec<f64>,
    requests: u64,
    most: usize,
}

impl Curve {
    /// When the throughput was there again.
    fn again(&self) -> Option<Duration> {
        let at = self.after.iter().position(|now| *now >= AGAIN * self.before)?;
        Some(STEP * u32::try_from(at + 1).unwrap_or(u32::MAX))
    }
}

/// All sides, one after the other.
pub fn run(seed: u64) -> ExitCode {
    println!("flights cold: {WORKERS} workers, {ROWS} rows, a back end that answers most at {KNEE} requests a time; seed {seed}");
    let keyway = Server::start(Kind::Keyway, &ServeOptions::default());
    let cache = Cache::open(&Place::Path(keyway.region().to_owned()), &Options::new()).expect("the server's region");
    let library = |how: Fetch<'static>| Box::new(Library::new(cache.session().expect("a session"), how)) as Box<dyn Door>;
    let limited = Fetch {
        limit: Some(AtOnce {
            prefix: b"row",
            at_most: KNEE,
        }),
        ..Fetch::default()
    };
    let flush = || cache.session().expect("a session").flush_all(0).expect("a flush");
    let memcached = harness::memcached_binary().map(|_| Server::start(Kind::Memcached, &ServeOptions::default()));
    let mut curves = Vec::new();
    if let Some(memcached) = &memcached {
        curves.push(curve(
            &Side {
                name: "memcached",
                open: &|| Box::new(Client::new(memcached, Asks::Wins)),
                flush: &|| {
                    let mut wire = memcached.connect(harness::Transport::Tcp);
                    wire.send(b"flush_all\r\n").expect("a server that takes requests");
                    assert_eq!(wire.line().expect("a line"), b"OK");
                },
                fetches: false,
            },
            seed,
        ));
    }
    for (name, how, fetches) in [
        ("keyway, get and set", Fetch::default(), false),
        ("keyway, fetch", Fetch::default(), true),
        ("keyway, fetch with limit", limited, true),
    ] {
        let side = Side {
            name,
            open: &|| library(how),
            flush: &flush,
            fetches,
        };
        curves.push(curve(&side, seed));
    }
    report(&curves)
}

fn curve(side: &Side<'_>, seed: u64) -> Curve {
    let (backend, done, stop) = (BackEnd::default(), AtomicU64::new(0), AtomicBool::new(false));
    let mut first = (side.open)();
    for row in 0..ROWS {
        first.set(&name(row), row as u64 + 1);
    }
    let mut seen = Curve {
        name: side.name,
        before: 0.0,
        after: Vec::new(),
        requests: 0,
        most: 0,
    };
    std::thread::scope(|scope| {
        for number in 0..WORKERS {
            let (backend, done, stop) = (&backend, &done, &stop);
            let (mut door, mut random, fetches) = ((side.open)(), Random::new(seed).fork(number as u64), side.fetches);
            scope.spawn(move || {
                while !stop.load(Acquire) {
                    let row = row_of(&mut random);
                    let mut compute = || backend.ask(row as u64);
                    match fetches {
                        true => door.fetch(&name(row), &mut compute),
                        false => door.get_and_set(&name(row), &mut compute),
                    };
                    done.fetch_add(1, Relaxed);
                    std::thread::sleep(THINKS);
                }
            });
        }
        let rate = |time: Duration| {
            let (from, begun) = (done.load(Relaxed), Instant::now());
            std::thread::sleep(time);
            (done.load(Relaxed) - from) as f64 / begun.elapsed().as_secs_f64()
        };
        rate(BEFORE / 3);
        seen.before = rate(BEFORE);
        (side.flush)();
        let begun = Instant::now();
        while begun.elapsed() < CURVE_MAX && seen.again().is_none() {
            seen.after.push(rate(STEP));
        }
        stop.store(true, Release);
    });
    seen.requests = backend.requests.load(Relaxed);
    seen.most = backend.most.load(Relaxed);
    seen
}

fn name(row: usize) -> String {
    format!("row-{row}")
}

/// The cube of a random number: one request in two is for one row in eight.
fn row_of(random: &mut Random) -> usize {
    let row = (random.below(1 << 16).pow(3) * ROWS as u64) >> 48;
    usize::try_from(row).unwrap_or(0)
}

/// How long it takes to fill the cache if the back end always has as many requests as it answers best, each for the row that is asked for
/// most among those that lack.
fn ideal(before: f64) -> Duration {
    // A request is a think and, if it misses, a computation.
    let spent = WORKERS as f64 / before;
    let allowed = spent / AGAIN - spent;
    let misses = allowed / latency(KNEE).as_secs_f64();
    // The rows from r on are asked for with the probability 1 - (r / ROWS)^(1/3).
    let rows = ROWS as f64 * (1.0 - misses).max(0.0).powi(3);
    Duration::from_secs_f64(rows / (KNEE as f64 / latency(KNEE).as_secs_f64()))
}

fn report(curves: &[Curve]) -> ExitCode {
    println!("| | requests/s before | 90 % again after | of an ideal refill | asked of the back end | most at a time |");
    println!("|---|---|---|---|---|---|");
    for curve in curves {
        let ideal = ideal(curve.before);
        let again = curve.again().map_or_else(
            || (format!("not in {} s", CURVE_MAX.as_secs()), "–".to_owned()),
            |again| {
                let ratio = again.as_secs_f64() / ideal.as_secs_f64();
                (
                    format!("{:.1} s", again.as_secs_f64()),
                    format!("{ratio:.2} ({:.1} s)", ideal.as_secs_f64()),
                )
            },
        );
        println!(
            "| {} | {:.0} | {} | {} | {} | {} |",
            curve.name, curve.before, again.0, again.1, curve.requests, curve.most
        );
    }
    for curve in curves {
        let steps: Vec<String> = curve
            .after
            .iter()
            .map(|now| format!("{:.0}", 100.0 * now / curve.before))
            .collect();
        println!("{}, % of it each {} ms: {}", curve.name, STEP.as_millis(), steps.join(" "));
    }
    let limited = curves.last().and_then(|curve| Some((curve.again()?, ideal(curve.before))));
    let is_good = limited.is_some_and(|(again, ideal)| again <= 2 * ideal);
    println!("{} passed, {} failed", u64::from(is_good), u64::from(!is_good));
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
