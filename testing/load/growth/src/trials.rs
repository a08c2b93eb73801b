//! What a region must stand while it grows. Every trial makes a region of its own in a scratch directory.

use crate::Verdict;
use crate::items::{self, SMALL};
use crate::worker::{Task, Worker, place};
use harness::{Random, Scratch};
use keyway_cache::{Cache, CheckReport, GrowError, Options, Session, WriteError};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// How much a trial does.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// the gate's form
    pub short: bool,
    /// of every random choice
    pub seed: u64,
}

impl Scale {
    fn pick(self, short: u64, full: u64) -> u64 {
        if self.short { short } else { full }
    }
}

/// A trial: its name, what it does.
pub type Trial = (&'static str, fn(Scale) -> Verdict);

/// All of them.
pub const ALL: [Trial; 7] = [
    ("from one item", from_one_item),
    ("doubling while writers are killed", doubling_under_traffic),
    ("more memory at a restart", restart_with_more),
    ("more memory under traffic", raise_under_traffic),
    ("killed while it is given more memory", killed_while_raising),
    ("a full file system", full_file_system),
    ("memory full, nothing evicted", memory_full),
];

fn text(e: impl std::fmt::Display) -> String {
    e.to_string()
}

fn options(memory: u64) -> Options {
    Options::new().memory(memory).item_size_max(1 << 16)
}

fn open(path: &Path, options: &Options) -> Result<(Cache, Session), String> {
    let cache = Cache::open(&place(path), options).map_err(text)?;
    let session = cache.session().map_err(text)?;
    Ok((cache, session))
}

fn attach(path: &Path) -> Result<(Cache, Session), String> {
    let attach_only = options(2 * MIB).memory(None);
    open(path, &attach_only)
}

fn sound(cache: &Cache) -> Result<CheckReport, String> {
    let report = cache.check(|_| {});
    if report.is_sound() {
        Ok(report)
    } else {
        Err(format!(
            "check: {} problems, the first: {}",
            report.problems.len(),
            report.problems[0]
        ))
    }
}

fn nothing_evicted(cache: &Cache) -> Result<(), String> {
    let counters = cache.counters();
    match (counters.evictions, counters.corrupt) {
        (0, 0) => Ok(()),
        (evicted, corrupt) => Err(format!(
            "{evicted} items evicted, {corrupt} words corrupt, in a region where everything fits"
        )),
    }
}

fn task(region: &Path, items: std::ops::Range<u64>, value_len: usize) -> Task {
    Task {
        region: region.to_path_buf(),
        first: items.start,
        end: items.end,
        value_len,
        grow_to: 0,
        evict: true,
        patient: false,
    }
}

/// The index grows from its first size under one writer; at every doubling, and at the end, everything is there.
pub fn from_one_item(scale: Scale) -> Verdict {
    let scratch = Scratch::new();
    let path = scratch.join("region");
    let items = scale.pick(300_000, 4_000_000);
    let (cache, mut session) = open(&path, &options(scale.pick(64, 1024) * MIB))?;
    let first = cache.info().index_buckets;
    let (mut doubled, mut scratch_value) = (first, Vec::new());
    for n in 0..items {
        items::store(&mut session, n, SMALL, &mut scratch_value).map_err(text)?;
        if n.is_power_of_two() && cache.info().index_buckets > doubled {
            doubled = cache.info().index_buckets;
            items::all_there(&mut session, 0..=n, SMALL)?;
        }
    }
    items::all_there(&mut session, 0..items, SMALL)?;
    nothing_evicted(&cache)?;
    let last = cache.info().index_buckets;
    if last < 4 * first {
        return Err(format!("the index went from {first} buckets to {last} only"));
    }
    drop(session);
    sound(&cache)?;
    Ok(format!(
        "{items} items of 20 B, index from {first} to {last} buckets, all there"
    ))
}

/// The index grows under several processes, most of which are killed on the way; what they had acknowledged is there.
pub fn doubling_under_traffic(scale: Scale) -> Verdict {
    let scratch = Scratch::new();
    let path = scratch.join("region");
    let each = scale.pick(100_000, 1_500_000);
    let mut random = Random::new(scale.seed);
    let (cache, mut session) = open(&path, &options(scale.pick(128, 2048) * MIB))?;
    let first = cache.info().index_buckets;
    let mut workers: Vec<(Worker, u64)> = Vec::new();
    for w in 0..3u64 {
        let items = w << 32..(w << 32) + each;
        let stop = items.start + random.below(each / 2);
        workers.push((Worker::start(task(&path, items, SMALL))?, stop));
    }
    let mut kills = 0;
    while !workers.iter_mut().all(|(worker, _)| worker.is_over()) {
        for (worker, stop) in &mut workers {
            if worker.told() >= *stop && !worker.is_over() && kills < scale.pick(6, 60) {
                let Task { end, .. } = *worker.task();
                let next = Worker::start(task(&path, worker.told()..worker.told(), SMALL))?;
                let told = std::mem::replace(worker, next).kill()?;
                *worker = Worker::start(task(&path, told..end, SMALL))?;
                *stop = told + 1 + random.below((end - told).max(2));
                kills += 1;
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    for (worker, _) in workers {
        worker.finish()?;
    }
    let all = (0..3u64).flat_map(|w| w << 32..(w << 32) + each);
    let count = items::all_there(&mut session, all, SMALL)?;
    nothing_evicted(&cache)?;
    let last = cache.info().index_buckets;
    if last < 2 * first {
        return Err(format!("the index went from {first} buckets to {last} only"));
    }
    drop(session);
    sound(&cache)?;
    Ok(format!(
        "{count} items by 3 processes, {kills} killed, index from {first} to {last} buckets, every acknowledged item there"
    ))
}

/// A region is given more memory when it is opened again, and keeps it when less is asked for.
pub fn restart_with_more(_: Scale) -> Verdict {
    let scratch = Scratch::new();
    let path = scratch.join("region");
    let value_len = 900;
    let (cache, session) = open(&path, &options(8 * MIB))?;
    let small = cache.info().limit_bytes;
    drop((session, cache));
    let told = Worker::start(task(&path, 0..6_000, value_len))?.finish()?;
    let (cache, mut session) = open(&path, &options(64 * MIB))?;
    let large = cache.info().limit_bytes;
    if !cache.info().warm || large < 63 * MIB || large <= small {
        return Err(format!("opened with 64 MiB, the region of {small} bytes has {large}"));
    }
    items::all_there(&mut session, 0..told, value_len)?;
    drop((session, cache));
    let told = Worker::start(task(&path, told..50_000, value_len))?.finish()?;
    let (cache, mut session) = open(&path, &options(8 * MIB))?;
    if cache.info().limit_bytes != large {
        return Err(format!(
            "opened with 8 MiB, the region of {large} bytes has {}",
            cache.info().limit_bytes
        ));
    }
    let count = items::all_there(&mut session, 0..told, value_len)?;
    nothing_evicted(&cache)?;
    drop(session);
    sound(&cache)?;
    Ok(format!("from {} to {} MiB, {count} items there", small / MIB, large / MIB))
}

/// A region is given more memory while processes write that would otherwise find it full; two of them raise it too.
pub fn raise_under_traffic(scale: Scale) -> Verdict {
    let scratch = Scratch::new();
    let path = scratch.join("region");
    let (each, value_len) = (scale.pick(60_000, 600_000), 180);
    let no_evict = options(8 * MIB).evict(false);
    let (cache, mut session) = open(&path, &no_evict)?;
    let first = cache.info().limit_bytes;
    // 220 bytes of log an item, with its index 240; a quarter on top.
    let enough = 4 * each * 300;
    let mut workers = Vec::new();
    for w in 0..4u64 {
        workers.push(Worker::start(Task {
            evict: false,
            patient: true,
            grow_to: if w < 2 { first + (w + 1) * 2 * MIB } else { 0 },
            ..task(&path, w << 32..(w << 32) + each, value_len)
        })?);
    }
    let mut raises = 0;
    while !workers.iter_mut().all(Worker::is_over) {
        let limit = cache.info().limit_bytes;
        if cache.info().segments_free < 16 && limit < enough {
            cache.grow(limit + 4 * MIB).map_err(text)?;
            raises += 1;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    for worker in workers {
        worker.finish()?;
    }
    let all = (0..4u64).flat_map(|w| w << 32..(w << 32) + each);
    let count = items::all_there(&mut session, all, value_len)?;
    nothing_evicted(&cache)?;
    let last = cache.info().limit_bytes;
    drop(session);
    sound(&cache)?;
    Ok(format!(
        "{raises} raises from {} to {} MiB under 4 processes, of which 2 raised too, {count} items there",
        first / MIB,
        last / MIB
    ))
}

/// A process is killed while it gives a region more memory: it is as it was, or as it was to be.
pub fn killed_while_raising(scale: Scale) -> Verdict {
    let scratch = Scratch::new();
    let path = scratch.join("region");
    let (kept, value_len) = (2_000, 500);
    let mut random = Random::new(scale.seed ^ 1);
    drop(open(&path, &options(4 * MIB))?);
    Worker::start(task(&path, 0..kept, value_len))?.finish()?;
    let (rounds, step) = (scale.pick(12, 100), 8);
    let (mut limit, mut raised) = (attach(&path)?.0.info().limit_bytes, 0);
    for round in 0..rounds {
        let worker = Worker::start(Task {
            grow_to: (4 + step * (1 + round)) * MIB,
            ..task(&path, kept..u64::from(u32::MAX), value_len)
        })?;
        std::thread::sleep(Duration::from_micros(random.below(10_000)));
        worker.kill()?;
        let (cache, mut session) = attach(&path)?;
        let now = cache.info().limit_bytes;
        if now < limit || now > (4 + step * (1 + round)) * MIB {
            return Err(format!(
                "round {round}: a region of {limit} bytes that was given {} MiB has {now}",
                5 + round
            ));
        }
        raised += u64::from(now > limit);
        limit = now;
        if cache.counters().evictions == 0 {
            items::all_there(&mut session, 0..kept, value_len)?;
        }
        session.flush_all(0).map_err(text)?;
        drop(session);
        sound(&cache)?;
        drop(cache);
        Worker::start(task(&path, 0..kept, value_len))?.finish()?;
    }
    // All that was given, by the workers that lived, is there to be used.
    let memory = (8 + step * (1 + rounds)) * MIB;
    let (cache, mut session) = open(&path, &options(memory))?;
    session.flush_all(0).map_err(text)?;
    let before = cache.counters().evictions;
    let fits = cache.info().limit_bytes / 700;
    let mut value = Vec::new();
    for n in 0..fits {
        items::store(&mut session, n, value_len, &mut value).map_err(text)?;
    }
    items::all_there(&mut session, 0..fits, value_len)?;
    if cache.counters().evictions != before {
        return Err("a region that was raised by the dead evicts what fits".into());
    }
    drop(session);
    sound(&cache)?;
    Ok(format!(
        "{rounds} kills, {raised} of them after the growth; {fits} items in {} MiB at the end",
        memory / MIB
    ))
}

/// There is no more memory for the region: it is refused, and the region is as it was, to the last segment.
pub fn full_file_system(_: Scale) -> Verdict {
    let scratch = Scratch::new();
    let Some(_mounted) = Mounted::tmpfs(scratch.path(), 24) else {
        harness::skip("growth on a full file system", "mounting a tmpfs needs root");
        return Ok("SKIPPED: mounting a tmpfs needs root".into());
    };
    let path = scratch.join("region");
    let (cache, session) = open(&path, &options(8 * MIB))?;
    let limit = cache.info().limit_bytes;
    match cache.grow(64 * MIB) {
        Err(GrowError::NoSpace { .. }) => {}
        other => return Err(format!("64 MiB on a file system of 24: {other:?}")),
    }
    drop((session, cache));
    if Cache::open(&place(&path), &options(64 * MIB)).is_ok() {
        return Err("opened with 64 MiB on a file system of 24".into());
    }
    // A worker that writes on meets nothing that is not there, which would kill it.
    Worker::start(task(&path, 0..60_000, 400))?.finish()?;
    let (cache, _session) = attach(&path)?;
    if cache.info().limit_bytes != limit {
        return Err(format!("refused, and {} bytes instead of {limit}", cache.info().limit_bytes));
    }
    cache.grow(16 * MIB).map_err(text)?;
    Worker::start(task(&path, 0..60_000, 400))?.finish()?;
    if cache.info().limit_bytes <= limit || cache.counters().corrupt > 0 {
        return Err("16 MiB on a file system of 24 were not given".into());
    }
    sound(&cache)?;
    Ok("64 MiB refused on a file system of 24, 16 MiB given, writers went on".into())
}

/// A region fills to its last segment, where keys go to their third buckets, and refuses then: what it took is there.
pub fn memory_full(scale: Scale) -> Verdict {
    let scratch = Scratch::new();
    let path = scratch.join("region");
    let no_evict = options(scale.pick(32, 256) * MIB).evict(false);
    let (cache, mut session) = open(&path, &no_evict)?;
    let (mut n, mut value, value_len) = (0, Vec::new(), 90);
    loop {
        match items::store(&mut session, n, value_len, &mut value) {
            // At once, where the key may be the first one in a third bucket.
            Ok(()) => {
                items::all_there(&mut session, n..n + 1, value_len)?;
            }
            Err(WriteError::OutOfMemory) => break,
            Err(e) => return Err(text(e)),
        }
        n += 1;
    }
    items::all_there(&mut session, 0..n, value_len)?;
    nothing_evicted(&cache)?;
    let slots = cache.info().index_buckets * 8;
    drop(session);
    let report = sound(&cache)?;
    if report.counts.thirds == 0 {
        return Err("no key went to its third bucket: the trial shows nothing of them".into());
    }
    Ok(format!(
        "{n} items until the first refusal, {} of 100 slots taken, {} in third buckets, all there",
        n * 100 / slots,
        report.counts.thirds
    ))
}

/// A file system of its own, until it is dropped.
struct Mounted<'p>(&'p Path);

impl<'p> Mounted<'p> {
    fn tmpfs(at: &'p Path, mib: u64) -> Option<Self> {
        let mounted = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "keyway-growth"])
            .arg(at)
            .output();
        mounted.is_ok_and(|o| o.status.success()).then_some(Self(at))
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        // A region that is still mapped keeps the file system until it is not.
        let _ = Command::new("umount").arg("-l").arg(self.0).status();
    }
}
