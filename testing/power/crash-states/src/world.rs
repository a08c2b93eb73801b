//! A small durable region in private memory, what its users know of it, and the judge of what a failure left.
//!
//! # Safety
//!
//! The only `unsafe` is the mapping: a vector of pages plays it, lives as long as the region made from it, and no other thread
//! touches it meanwhile.
#![allow(unsafe_code, reason = "private memory plays the mapping; contract above")]

use crate::record::THREADS;
use keyway_region::fetch::{Fetched, Freshness};
use keyway_region::layout::plan::{Layout, Shape};
use keyway_region::layout::session::Tenant;
use keyway_region::memory::Memory;
use keyway_region::verbs::{Get, Store};
use keyway_region::{Creation, Fetches, Host, Life, Limits, Region, Session, check};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Unix time of everything here.
pub const NOW: i64 = 1_800_000_000;
/// Of every region's hash.
pub const SEED: u64 = 3;
/// Buckets of a region at first: those of one segment.
pub const BUCKETS: u64 = 256;
/// The boot in which the region is used first.
const FIRST_BOOT: u64 = 4;

const PAGE: usize = 4096;

/// Memory that is persistent as far as the region knows.
struct Persistent {
    len: usize,
    /// whether the process of the first process slot is gone
    first_is_dead: Arc<AtomicBool>,
    first: usize,
}

impl Host for Persistent {
    fn life(&self, tenant: &Tenant) -> Life {
        if tenant.lock_offset == self.first && self.first_is_dead.load(Relaxed) {
            Life::Dead
        } else {
            Life::Alive
        }
    }
    fn prepare(&self, _: &[Range<usize>], _: bool, _: bool) {}
    fn write_back(&self, _: Range<usize>) -> bool {
        true
    }
    fn is_persistent(&self) -> bool {
        true
    }
    fn file_len(&self) -> usize {
        self.len
    }
    fn back(&self, _: Range<usize>) -> std::io::Result<()> {
        Ok(())
    }
    fn give_back(&self, _: Range<usize>) -> std::io::Result<()> {
        Ok(())
    }
}

#[derive(Clone)]
#[repr(C, align(4096))]
struct Page([u8; PAGE]);

/// Bytes that a region lives in.
#[derive(Clone)]
pub struct Bytes {
    pages: Vec<Page>,
    backed: usize,
}

impl Bytes {
    fn new(len: usize, backed: usize) -> Self {
        Self {
            pages: vec![Page([0; PAGE]); len.div_ceil(PAGE)],
            backed,
        }
    }

    fn memory(&mut self) -> Memory {
        let base = NonNull::new(self.pages.as_mut_ptr().cast()).expect("a vector's pointer");
        // SAFETY: see the top of the file.
        unsafe { Memory::new(base, self.pages.len() * PAGE) }
    }

    /// Address of the first byte.
    pub fn base(&mut self) -> usize {
        self.pages.as_mut_ptr().expose_provenance()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pages.is_empty()
    }

    /// All of them.
    pub fn copy(&self) -> Vec<u8> {
        self.pages.iter().flat_map(|page| page.0).collect()
    }

    /// Takes these.
    pub fn fill(&mut self, image: &[u8]) {
        for (page, bytes) in self.pages.iter_mut().zip(image.chunks(PAGE)) {
            page.0.copy_from_slice(bytes);
        }
    }
}

/// How large a region is.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// its segments, of 16 KiB
    pub segments: usize,
    /// and the most that it can be given
    pub most: usize,
}

/// What a key is found to have: the value, its TTL where it has one, and whether it is stale.
pub type State = Option<(Vec<u8>, Option<u32>, bool)>;

/// What is found in a region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// of the keys that are looked at
    pub keys: BTreeMap<Vec<u8>, State>,
    /// items there are
    pub items: usize,
    /// segments whose pages were given back
    pub given_back: usize,
}

/// What may be found after a failure.
#[derive(Clone, Debug, Default)]
pub struct Allowed {
    /// by key
    pub keys: BTreeMap<Vec<u8>, BTreeSet<State>>,
    /// fewest and most items
    pub items: (usize, usize),
    /// segments that are without pages for certain
    pub given_back: usize,
}

impl Allowed {
    /// Any of these.
    pub fn any_of(states: &[&Found]) -> Self {
        let mut allowed = Self {
            items: (usize::MAX, 0),
            given_back: usize::MAX,
            ..Self::default()
        };
        for found in states {
            for (key, state) in &found.keys {
                allowed.keys.entry(key.clone()).or_default().insert(state.clone());
            }
            allowed.items = (allowed.items.0.min(found.items), allowed.items.1.max(found.items));
            allowed.given_back = allowed.given_back.min(found.given_back);
        }
        allowed
    }
}

/// A region with a session for each thread.
pub struct World {
    /// dropped before its memory
    sessions: Vec<Option<Session>>,
    region: Arc<Region>,
    bytes: Bytes,
    first_is_dead: Arc<AtomicBool>,
}

impl World {
    /// An empty one, cleanly stopped once and in use again.
    pub fn new(size: Size, checksums: bool) -> Self {
        let mut shape = Shape::for_memory(2 << 20, PAGE);
        shape.segments_max = size.most;
        (shape.thread_slots, shape.server_threads) = (THREADS + 1, 1);
        shape.process_slots = THREADS;
        shape.buckets_initial = shape.buckets_per_segment();
        assert_eq!(shape.buckets_initial as u64, BUCKETS, "segments have another size");
        let layout = Layout::new(shape);
        let mut bytes = Bytes::new(layout.len_max, layout.len(size.most));
        let first_is_dead = Arc::new(AtomicBool::new(false));
        let host = Box::new(Persistent {
            len: bytes.backed,
            first_is_dead: first_is_dead.clone(),
            first: layout.process(0),
        });
        let creation = Creation {
            shape,
            segments: size.segments,
            id: [1, 2],
            seed: SEED,
            now: keyway_region::Moment::from_secs(NOW),
            boot_id: [FIRST_BOOT, 0],
            checksums,
            limits: limits(),
        };
        let region = Region::create(bytes.memory(), &creation, host).expect("memory of the right size");
        let region = Arc::new(region);
        let sessions = (0..THREADS)
            .map(|slot| region.session(region.recovery().attach(slot, 1, NOW)))
            .collect();
        Self {
            sessions,
            region,
            bytes,
            first_is_dead,
        }
    }

    /// Takes a session out, to be used.
    pub fn session(&mut self, number: usize) -> Session {
        self.sessions[number].take().expect("not in use")
    }

    /// Gives it back.
    pub fn give_back(&mut self, number: usize, session: Session) {
        self.sessions[number] = Some(session);
    }

    /// The first session's process dies, and what it held is taken back.
    pub fn kill_first(&self) {
        self.first_is_dead.store(true, Relaxed);
        self.region.recovery().recover();
    }

    /// The region.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Says, in the region, that it was stopped cleanly, as its last user does.
    pub fn stop_cleanly(&self) {
        self.region.restarts().begin_clean_stop();
        assert!(self.region.restarts().end_clean_stop(true), "no other process uses it");
    }

    /// Says that it is in use again.
    pub fn use_again(&self) {
        self.region
            .restarts()
            .begin_use([FIRST_BOOT, 0], keyway_region::Moment::from_secs(NOW));
    }

    /// The memory.
    pub fn bytes(&mut self) -> &mut Bytes {
        &mut self.bytes
    }

    /// Turns a bit of these bytes, wherever they stand, in the caches and not on the medium: a stray pointer did it.
    pub fn damage(&mut self, text: &str) {
        let image = self.bytes.copy();
        let found: Vec<usize> = (0..image.len())
            .filter(|at| image[*at..].starts_with(text.as_bytes()))
            .collect();
        for at in found {
            self.bytes.pages[at / PAGE].0[at % PAGE] ^= 1;
        }
    }
}

/// What the region allows.
fn limits() -> Limits {
    Limits {
        item_size_max: 1 << 18,
        evict: true,
        ..Limits::default()
    }
}

/// Opens images and looks at what is in them.
pub struct Judge {
    bytes: Bytes,
    /// keys that are looked at
    pub watched: Vec<Vec<u8>>,
    /// Unix seconds on the clock of a machine that restarts; it may have been set back meanwhile
    pub unix_s: i64,
    /// seconds on the region's clock
    pub now: u32,
}

impl Judge {
    /// Of a world's images.
    pub fn new(world: &mut World, watched: Vec<Vec<u8>>, unix_s: i64) -> Self {
        Self {
            bytes: world.bytes.clone(),
            watched,
            unix_s,
            now: 0,
        }
    }

    /// Where images are opened.
    pub fn bytes(&mut self) -> &mut Bytes {
        &mut self.bytes
    }

    /// What is in a region that still runs, seen in a copy of its memory.
    pub fn look(&mut self, image: &[u8]) -> Found {
        self.bytes.fill(image);
        let region = self.open().expect("it was open");
        // Within a boot nothing sets the region's clock back.
        let now = region.clock().tick(keyway_region::Moment::from_secs(self.unix_s));
        self.now = now.max(region.clock().seen().clock_s());
        self.found(&region)
    }

    fn open(&mut self) -> Result<Arc<Region>, String> {
        Region::open(
            self.bytes.memory(),
            Box::new(Persistent {
                len: self.bytes.backed,
                first_is_dead: Arc::default(),
                first: 0,
            }),
        )
        .map(Arc::new)
        .map_err(|e| e.to_string())
    }

    /// Restarts on the image, so many failures behind the first boot: what any process does that finds it.
    pub fn restart(&mut self, image: &[u8], failures: u64) -> Result<Arc<Region>, String> {
        let boot_id = [FIRST_BOOT + failures, 0];
        self.bytes.fill(image);
        let region = self.open()?;
        if region.restarts().is_cut_off(boot_id) {
            let repaired = region.recovery().repair(|_| {}).map_err(|e| e.to_string())?;
            if repaired.lost > 0 {
                return Err(format!("{} words led to nothing", repaired.lost));
            }
        }
        let now = keyway_region::Moment::from_secs(self.unix_s);
        region.restarts().begin_use(boot_id, now);
        self.now = region.clock().tick(now);
        Ok(region)
    }

    /// Whether the region is sound, holds what may be there, and goes on working.
    pub fn verdict(&mut self, region: &Arc<Region>, allowed: &Allowed, go_on: bool) -> Result<(), String> {
        let report = check::check(region, |_| {});
        if let Some(problem) = report.problems.first() {
            return Err(format!("check: {problem}"));
        }
        let withdrawn = report.counts.withdrawn;
        if withdrawn < allowed.given_back {
            let gone = allowed.given_back;
            return Err(format!("{withdrawn} segments are out of use, and {gone} have no pages"));
        }
        let process = region.recovery().attach(0, 1, NOW);
        if let Some(mut session) = region.session(process) {
            session.upkeep(self.now);
        }
        let found = self.found(region);
        for (key, state) in &found.keys {
            if !allowed.keys.get(key).is_some_and(|states| states.contains(state)) {
                return Err(format!(
                    "key '{}' has {}, allowed is {}",
                    key.escape_ascii(),
                    shown(state),
                    allowed
                        .keys
                        .get(key)
                        .map_or_else(String::new, |s| s.iter().map(shown).collect::<Vec<_>>().join(" or "))
                ));
            }
        }
        let (fewest, most) = allowed.items;
        if found.items < fewest || found.items > most {
            return Err(format!("{} items, allowed are {fewest} to {most}", found.items));
        }
        if go_on { self.go_on(region, &found) } else { Ok(()) }
    }

    /// Life goes on: what is there stays while other things come, and what is changed changes.
    fn go_on(&mut self, region: &Arc<Region>, found: &Found) -> Result<(), String> {
        let process = region.recovery().attach(0, 1, NOW);
        let mut session = region.session(process).ok_or("no thread slot is free")?;
        for i in 0..40 {
            let value = vec![b'n'; 200];
            session
                .store(format!("new-{i}").as_bytes(), &value, &Store::default(), self.now)
                .map_err(|e| format!("a set after it: {e}"))?;
        }
        let mut out = Vec::new();
        for (key, state) in &found.keys {
            out.clear();
            let item = session.get(key, &plain(), self.now, &mut out);
            match (item, state) {
                (Ok(Some(_)), Some((value, ..))) if *value == out => {}
                // A full region evicts.
                (Ok(None), _) => {}
                _ => return Err(format!("key '{}' changed by itself", key.escape_ascii())),
            }
            let begun = Fetches::of(&mut session).begin(key.as_slice(), &Freshness::default(), self.now, &mut out);
            if let Ok(Fetched::Elsewhere(flight)) = begun {
                return Err(format!(
                    "key '{}' is computed by a thread of before the failure: {flight:?}",
                    key.escape_ascii()
                ));
            }
            session
                .store(key, b"later", &Store::default(), self.now)
                .map_err(|e| format!("a set after it: {e}"))?;
            out.clear();
            let item = session.get(key, &plain(), self.now, &mut out);
            if !matches!(item, Ok(Some(_))) || out != b"later" {
                return Err(format!("key '{}' does not take a new value", key.escape_ascii()));
            }
        }
        drop(session);
        let report = check::check(region, |_| {});
        report.problems.first().map_or(Ok(()), |p| Err(format!("check, later: {p}")))
    }

    fn found(&self, region: &Arc<Region>) -> Found {
        let process = region.recovery().attach(0, 1, NOW);
        let session = region.session(process);
        let mut found = Found {
            given_back: region.mapped().given_back(),
            ..Found::default()
        };
        let Some(mut session) = session else { return found };
        let mut out = Vec::new();
        for key in &self.watched {
            out.clear();
            let state = match session.get(key, &plain(), self.now, &mut out) {
                Ok(Some(item)) => Some((out.clone(), item.ttl_s, item.stale)),
                _ => None,
            };
            found.keys.insert(key.clone(), state);
        }
        drop(session);
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            cursor = region.index().walk(at, usize::MAX, self.now, |_, _| found.items += 1);
        }
        found
    }
}

fn plain() -> Get {
    Get {
        value: true,
        no_bump: true,
        ..Get::default()
    }
}

fn shown(state: &State) -> String {
    match state {
        None => "nothing".into(),
        Some((value, ttl, stale)) => {
            let start = value.get(..value.len().min(12)).unwrap_or_default().escape_ascii();
            let ttl = ttl.map_or_else(String::new, |s| format!(", {s} s"));
            let stale = if *stale { ", stale" } else { "" };
            format!("{} bytes '{start}…'{ttl}{stale}", value.len())
        }
    }
}
