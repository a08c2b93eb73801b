//! Fifty million items in one region: how long operations take while it doubles and while it evicts, how long an attach and
//! the first touches behind it take. All is reported, and nothing is asserted but that every item is there.

use crate::Verdict;
use crate::histogram::Histogram;
use crate::items::{self, SMALL};
use crate::worker::{Task, Worker, place};
use harness::{Random, Scratch};
use keyway_cache::{Cache, Options, Session};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Gets whose first touches are measured.
const FIRST: u64 = 20_000;

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "    {line}");
    let _ = out.flush();
}

fn options(memory_mib: u64) -> Options {
    Options::new().memory(memory_mib << 20)
}

/// From one item to `count`, then a restart, then evictions at full rate.
pub fn run(count: u64, memory_mib: u64, seed: u64) -> Verdict {
    let scratch = Scratch::new();
    let path = scratch.join("region");
    let cache = Cache::open(&place(&path), &options(memory_mib)).map_err(text)?;
    let mut session = cache.session().map_err(text)?;
    let first = cache.info().index_buckets;
    let mut random = Random::new(seed);
    let begun = Instant::now();
    let (sets, gets) = measure(&mut session, 0..count, &mut random, |n| n)?;
    say(&format!(
        "doubling from 1 to {count} items of 20 B (index from {first} to {} buckets) in {:.0?}: set {}",
        cache.info().index_buckets,
        begun.elapsed(),
        sets.show()
    ));
    say(&format!("  get of a random one meanwhile: {}", gets.show()));
    items::all_there(&mut session, 0..count, SMALL)?;
    let evicted = cache.counters().evictions;
    if evicted > 0 {
        return Err(format!("{evicted} items evicted where everything fits"));
    }
    let before = hits(&mut session, count, seed)?;
    drop((session, cache));
    killed(&path, count)?;
    restart(&path, memory_mib, count, seed, before)?;
    let cache = Cache::open(&place(&path), &options(memory_mib)).map_err(text)?;
    let report = cache.check(|_| {});
    if !report.is_sound() {
        return Err(format!("check: {}", report.problems[0]));
    }
    let mut session = cache.session().map_err(text)?;
    evict(&cache, &mut session, count, &mut random)?;
    Ok(format!(
        "{count} items of 20 B, every one there before and after a restart, check clean"
    ))
}

/// Sets each of the items and, after each, gets a random one that is there already.
fn measure(
    session: &mut Session,
    items: std::ops::Range<u64>,
    random: &mut Random,
    newest: impl Fn(u64) -> u64,
) -> Result<(Histogram, Histogram), String> {
    let (mut sets, mut gets) = (Histogram::default(), Histogram::default());
    let (mut value, mut out) = (Vec::new(), Vec::new());
    for n in items {
        items::value(n, SMALL, &mut value);
        let key = items::key(n);
        let start = Instant::now();
        session.set(&key, &value, 0).map_err(text)?;
        let set = Instant::now();
        sets.record(set - start);
        let key = items::key(random.below(newest(n).max(1)));
        out.clear();
        let start = Instant::now();
        session.get_append(&key, &mut out).unwrap();
        gets.record(start.elapsed());
    }
    Ok((sets, gets))
}

/// How many of a sample of keys, half of which were never stored, are there.
fn hits(session: &mut Session, count: u64, seed: u64) -> Result<u64, String> {
    let (mut random, mut scratch, mut hits) = (Random::new(seed ^ 7), Vec::new(), 0);
    for _ in 0..1_000_000.min(count) {
        hits += u64::from(items::is_there(session, random.below(2 * count), SMALL, &mut scratch)?);
    }
    Ok(hits)
}

/// The last process in the region is killed while it writes.
fn killed(path: &Path, count: u64) -> Result<(), String> {
    let worker = Worker::start(Task {
        region: path.to_path_buf(),
        first: 0,
        end: count,
        value_len: SMALL,
        grow_to: 0,
        evict: true,
        patient: false,
    })?;
    while worker.told() == 0 {
        std::thread::yield_now();
    }
    worker.kill().map(drop)
}

fn restart(path: &Path, memory_mib: u64, count: u64, seed: u64, before: u64) -> Result<(), String> {
    for prefault in [false, true] {
        let options = options(memory_mib).prefault(prefault);
        let cache = Cache::open(&place(path), &options).map_err(text)?;
        let mut session = cache.session().map_err(text)?;
        let (mut random, mut out, mut touches) = (Random::new(seed ^ 9), Vec::new(), Histogram::default());
        for _ in 0..FIRST {
            let key = items::key(random.below(count));
            out.clear();
            let start = Instant::now();
            session.get_append(&key, &mut out).unwrap();
            touches.record(start.elapsed());
        }
        say(&format!(
            "attached in {:?}{}; first {FIRST} gets: {}",
            cache.info().attached_in,
            if prefault { ", prefaulted" } else { "" },
            touches.show()
        ));
        let after = hits(&mut session, count, seed)?;
        if after != before {
            return Err(format!(
                "{before} hits before the restart, {after} after it, of the same requests"
            ));
        }
    }
    Ok(())
}

/// Evictions behind which the region counts as full.
const FULL: u64 = 10_000;

/// New items at full rate into a region that is full.
fn evict(cache: &Cache, session: &mut Session, count: u64, random: &mut Random) -> Result<(), String> {
    let mut next = count;
    let filling = Instant::now();
    let (mut value, started) = (Vec::new(), cache.counters().evictions);
    while cache.counters().evictions < started + FULL && filling.elapsed() < Duration::from_secs(600) {
        for _ in 0..10_000 {
            items::store(session, next, SMALL, &mut value).map_err(text)?;
            next += 1;
        }
    }
    let (begun, full) = (Instant::now(), cache.counters().evictions);
    let (sets, gets) = measure(session, next..next + count / 4, random, |n| n)?;
    say(&format!(
        "evicting at full rate, {} sets in {:.0?}, {} evictions: set {}",
        sets.count(),
        begun.elapsed(),
        cache.counters().evictions - full,
        sets.show()
    ));
    say(&format!("  get of a random one meanwhile: {}", gets.show()));
    Ok(())
}
