//! The memory limit: segments go out of use and come back. Its enemies: a store to pages that were given back, an item that is lost or
//! wrong, memory that is never given back or never used again, and a thread that dies half way.
//! Guards: P11
#![allow(
    unsafe_code,
    reason = "the host empties pages of memory that plays the mapping; see private/mod.rs"
)]

use crate::private;
use keyway_region::layout::session::Tenant;
use keyway_region::verbs::{Get, Store};
use keyway_region::{Host, Life, Limits, Moment, Process, Region, Session, Shrinking, check};
use private::{Page, UNIX_S};
use std::collections::BTreeSet;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64};
use std::sync::{Arc, Mutex};

const PAGE: usize = 4096;
const MEMORY: u64 = 4 << 20;

/// What the system does, which has no room for a longer file, and which pages it has.
#[derive(Default)]
struct System {
    /// pages that were given back, by their offset
    holes: Mutex<BTreeSet<usize>>,
    /// it has no page to give
    is_full: AtomicBool,
    /// it takes no pages back
    keeps: AtomicBool,
    /// the thread that gives pages back dies then
    kills: AtomicBool,
    /// the processes that are dead, a bit each
    dead: AtomicU64,
    asked: AtomicU64,
    /// happens when pages were allocated, before the thread that asked for them goes on
    interlude: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

struct Machine {
    base: NonNull<u8>,
    len: usize,
    system: Arc<System>,
}

// SAFETY: the memory is written through atomics only.
unsafe impl Send for Machine {}
// SAFETY: as above.
unsafe impl Sync for Machine {}

impl Machine {
    fn words(&self, range: Range<usize>) -> impl Iterator<Item = &AtomicU64> {
        range.step_by(8).map(|at| {
            // SAFETY: the test's pages are there as long as the region; aligned, and only ever accessed by atomic instructions.
            unsafe { &*self.base.as_ptr().add(at).cast::<AtomicU64>() }
        })
    }
}

impl Host for Machine {
    fn life(&self, tenant: &Tenant) -> Life {
        match self.system.dead.load(SeqCst) & 1 << tenant.slot {
            0 => Life::Alive,
            _ => Life::Dead,
        }
    }
    fn prepare(&self, ranges: &[Range<usize>], _: bool, _: bool) {
        let holes = self.system.holes.lock().unwrap();
        for range in ranges {
            assert!(holes.range(range.clone()).next().is_none(), "pages given back are faulted in");
        }
    }
    fn write_back(&self, _: Range<usize>) -> bool {
        true
    }
    fn file_len(&self) -> usize {
        self.len
    }
    fn back(&self, range: Range<usize>) -> std::io::Result<()> {
        if self.system.is_full.load(SeqCst) || range.end > self.len {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        let mut holes = self.system.holes.lock().unwrap();
        holes.retain(|page| !range.contains(page));
        drop(holes);
        let interlude = self.system.interlude.lock().unwrap().take();
        if let Some(interlude) = interlude {
            interlude();
        }
        Ok(())
    }
    fn give_back(&self, range: Range<usize>) -> std::io::Result<()> {
        self.system.asked.fetch_add(1, SeqCst);
        if self.system.keeps.load(SeqCst) {
            return Err(std::io::ErrorKind::Unsupported.into());
        }
        assert!(range.start.is_multiple_of(PAGE) && range.end.is_multiple_of(PAGE));
        self.words(range.clone()).for_each(|word| word.store(0, Relaxed));
        self.system.holes.lock().unwrap().extend(range.step_by(PAGE));
        assert!(!self.system.kills.load(SeqCst), "dies here");
        Ok(())
    }
}

struct World {
    region: Arc<Region>,
    system: Arc<System>,
    process: Process,
    second: AtomicI64,
    base: NonNull<u8>,
    _pages: Vec<Page>,
}

// SAFETY: as for `Machine`.
unsafe impl Sync for World {}

const LIMITS: Limits = Limits {
    item_size_max: 64 << 10,
    evict: true,
    flush: true,
};

fn world() -> World {
    world_with(0)
}

/// One that may have so many more segments.
fn world_with(spare: usize) -> World {
    let system = Arc::new(System::default());
    let mut at = NonNull::dangling();
    let (pages, region) = private::region_of(MEMORY, spare, |base, len| {
        at = base;
        Box::new(Machine {
            base,
            len,
            system: Arc::clone(&system),
        })
    });
    region.limits().write(&LIMITS);
    let process = region.recovery().attach(0, 1, UNIX_S);
    World {
        region,
        system,
        process,
        second: AtomicI64::new(0),
        base: at,
        _pages: pages,
    }
}

impl World {
    fn session(&self) -> Session {
        self.region.session(self.process).expect("a slot")
    }

    fn now(&self) -> u32 {
        self.region.clock().tick(Moment::from_secs(UNIX_S + self.second.load(SeqCst)))
    }

    /// Steps until there is nothing left to do, each at a later second if there is nothing to do in this one.
    fn shrink(&self, session: &mut Session) {
        for _ in 0..10_000 {
            match session.shrink(self.now()) {
                Shrinking::Done => return,
                Shrinking::More => {}
                Shrinking::Waiting => drop(self.second.fetch_add(1, SeqCst)),
                Shrinking::Refused(error) => panic!("{error}"),
            }
        }
        panic!(
            "the region does not come to its limit: {:?}",
            check::check(&self.region, |_| {}).summary
        );
    }

    /// What is said to be in use is all but the pages that were given back.
    fn assert_in_use_is_right(&self) {
        let (layout, in_use) = (self.region.mapped().layout(), self.region.mapped().in_use());
        let holes = self.system.holes.lock().unwrap();
        for page in (layout.segments..layout.len(self.region.mapped().segments())).step_by(PAGE) {
            let is_in_use = in_use.iter().any(|part| part.contains(&page));
            assert_eq!(is_in_use, !holes.contains(&page), "the page at {page}");
        }
        assert!(in_use.iter().any(|part| part.contains(&0)));
    }

    fn holes(&self) -> usize {
        self.system.holes.lock().unwrap().len()
    }

    /// Nothing was written to pages that were given back, and every invariant holds.
    fn assert_sound(&self) -> check::Counts {
        for page in self.system.holes.lock().unwrap().iter() {
            for at in (*page..page + PAGE).step_by(8) {
                // SAFETY: the pages are there as long as `self`.
                let word = unsafe { &*self.base.as_ptr().add(at).cast::<AtomicU64>() };
                assert_eq!(word.load(Relaxed), 0, "offset {at} was given back and is written to");
            }
        }
        let report = check::check(&self.region, |_| {});
        assert!(report.is_sound(), "{:?}", report.problems);
        let counts = report.counts;
        assert_eq!(counts.free_counted, counts.free as u64, "{counts:?}");
        assert_eq!(counts.withdrawn_counted, counts.withdrawn as u64, "{counts:?}");
        assert_eq!(counts.reclaimable, 0, "{counts:?}");
        counts
    }
}

/// A value that says whose it is.
fn value(key: u64, len: usize) -> Vec<u8> {
    key.to_le_bytes().into_iter().cycle().take(len).collect()
}

fn set(session: &mut Session, key: u64, len: usize, now: u32) {
    let stored = session.store(format!("key-{key}").as_bytes(), &value(key, len), &Store::default(), now);
    assert!(stored.is_ok(), "{stored:?}");
}

/// Whether it is there; then it is right.
fn get(session: &mut Session, key: u64, now: u32) -> bool {
    let mut out = Vec::new();
    let how = Get {
        value: true,
        ..Get::default()
    };
    let found = session.get(format!("key-{key}").as_bytes(), &how, now, &mut out);
    let is_there = matches!(found, Ok(Some(_)));
    if is_there {
        assert_eq!(out, value(key, out.len()), "key {key}");
        assert!(!out.is_empty());
    }
    is_there
}

#[test]
fn a_lower_limit_evicts_and_gives_pages_back_and_a_higher_one_uses_them_again() {
    let world = world();
    let mut session = world.session();
    for key in 0..3000 {
        set(&mut session, key, 1000, world.now());
    }
    let all = world.region.mapped().segments();
    let there = (0..3000).filter(|key| get(&mut session, *key, world.now())).count();
    assert_eq!(there, 3000, "all fit");
    let evicted = || world.region.threads().counters().evictions;
    assert_eq!(evicted(), 0);

    let allowed = world.region.victims().lower(all / 2, LIMITS.item_size_max);
    assert_eq!(allowed, all / 2);
    world.shrink(&mut session);
    let counts = world.assert_sound();
    assert_eq!(
        (counts.withdrawn, world.region.mapped().given_back()),
        (all - all / 2, all - all / 2)
    );
    assert_eq!(
        world.holes() * PAGE,
        counts.withdrawn * world.region.mapped().layout().shape.segment_size
    );
    world.assert_in_use_is_right();
    let there = (0..3000).filter(|key| get(&mut session, *key, world.now())).count();
    assert!((1000..2000).contains(&there), "{there} of 3000 in half of the memory");
    assert_eq!(there as u64 + evicted(), 3000);
    // It stays there, whatever is written.
    for key in 3000..9000 {
        set(&mut session, key, 1000, world.now());
    }
    let counts = world.assert_sound();
    assert_eq!(counts.withdrawn, all - all / 2);

    world.region.mapped().grow(all).expect("there is memory");
    assert_eq!(
        (
            world.holes(),
            world.region.mapped().withdrawn(),
            world.region.mapped().allowed()
        ),
        (0, 0, all)
    );
    let before = evicted();
    for key in 10_000..11_200 {
        set(&mut session, key, 1000, world.now());
    }
    // What was being reclaimed when the limit was raised has a few items left.
    assert!(
        evicted() - before < 20,
        "there is room again: {} were evicted",
        evicted() - before
    );
    assert!((10_000..11_200).all(|key| get(&mut session, key, world.now())));
    assert_eq!(world.assert_sound().withdrawn, 0);
}

#[test]
fn pages_are_given_back_after_the_grace_only() {
    let world = world();
    let mut session = world.session();
    world
        .region
        .victims()
        .lower(world.region.mapped().segments() / 2, LIMITS.item_size_max);
    while matches!(session.shrink(world.now()), Shrinking::More) {}
    assert!(world.region.mapped().withdrawn() == world.region.mapped().withheld() && world.holes() == 0);
    world.second.fetch_add(1, SeqCst);
    let _ = session.shrink(world.now());
    assert_eq!(world.holes(), 0);
    world.second.fetch_add(1, SeqCst);
    let _ = session.shrink(world.now());
    assert!(world.holes() > 0);
}

#[test]
fn writers_alone_shrink_the_region() {
    let world = world();
    let mut session = world.session();
    let all = world.region.mapped().segments();
    for key in 0..6000 {
        set(&mut session, key, 1000, world.now());
    }
    world.region.victims().lower(all / 2, LIMITS.item_size_max);
    let mut key = 6000;
    while world.region.mapped().given_back() < all - all / 2 {
        set(&mut session, key, 1000, world.now());
        world.second.fetch_add(i64::from(key % 100 == 0), SeqCst);
        key += 1;
        assert!(key < 60_000, "{:?}", check::check(&world.region, |_| {}).summary);
    }
    assert!(!world.region.mapped().is_shrinking());
    let asked = world.system.asked.load(SeqCst);
    let withdrawn = world.assert_sound().withdrawn;
    assert_eq!(withdrawn, all - all / 2);
    assert_eq!(asked, withdrawn as u64, "each was given back once");
}

#[test]
fn a_limit_below_what_the_region_needs_goes_as_low_as_it_can_and_the_largest_item_fits() {
    let world = world();
    let mut session = world.session();
    for key in 0..6000 {
        set(&mut session, key, 1000, world.now());
    }
    let allowed = world.region.victims().lower(1, LIMITS.item_size_max);
    assert!((20..80).contains(&allowed), "{allowed}");
    assert_eq!(
        world.region.victims().lower(1000, LIMITS.item_size_max),
        allowed,
        "lower() raises nothing"
    );
    world.shrink(&mut session);
    for key in 0..300 {
        let now = world.now();
        set(&mut session, key, 63 << 10, now);
        assert!(get(&mut session, key, now), "what was stored last is there");
        set(&mut session, 1000 + key, 100, now);
    }
    let counts = world.assert_sound();
    assert_eq!(counts.withdrawn, world.region.mapped().segments() - allowed);
}

#[test]
fn what_the_system_cannot_allocate_stays_out_of_use() {
    let world = world();
    let mut session = world.session();
    let all = world.region.mapped().segments();
    let allowed = world.region.victims().lower(all / 2, LIMITS.item_size_max);
    world.shrink(&mut session);
    world.system.is_full.store(true, SeqCst);
    assert!(world.region.mapped().grow(all).is_err());
    assert_eq!(
        (world.region.mapped().allowed(), world.region.mapped().withdrawn()),
        (allowed, all - allowed)
    );
    for key in 0..6000 {
        set(&mut session, key, 1000, world.now());
    }
    world.assert_sound();
    world.system.is_full.store(false, SeqCst);
    world.region.mapped().grow(allowed + 10).expect("there is memory");
    assert_eq!(
        (world.region.mapped().allowed(), world.region.mapped().withdrawn()),
        (allowed + 10, all - allowed - 10)
    );
    world.assert_sound();
}

#[test]
fn the_limit_stays_where_the_region_cannot_grow_beyond_it() {
    let world = world_with(8);
    let mut session = world.session();
    let all = world.region.mapped().segments();
    let allowed = world.region.victims().lower(all / 2, LIMITS.item_size_max);
    world.shrink(&mut session);
    assert!(world.region.mapped().grow(all + 8).is_err());
    assert_eq!(
        (world.region.mapped().segments(), world.region.mapped().allowed()),
        (all, allowed)
    );
    world.shrink(&mut session);
    assert_eq!(world.assert_sound().withdrawn, all - allowed);
}

#[test]
fn what_is_out_of_use_stays_so_after_a_repair() {
    let world = world();
    let mut session = world.session();
    let all = world.region.mapped().segments();
    for key in 0..1000 {
        set(&mut session, key, 1000, world.now());
    }
    world.region.victims().lower(all / 2, LIMITS.item_size_max);
    world.shrink(&mut session);
    drop(session);
    // What was not written back: the counts.
    let sb = world.region.mapped().superblock();
    for count in [&sb.free, &sb.withdrawn, &sb.given_back] {
        count.store(3, Relaxed);
    }
    world.region.recovery().repair(|_| {}).expect("a sound region");
    assert_eq!(
        (world.region.mapped().withdrawn(), world.region.mapped().given_back()),
        (all - all / 2, all - all / 2)
    );
    world.assert_sound();
    let mut session = world.session();
    for key in 1000..9000 {
        set(&mut session, key, 1000, world.now());
    }
    world.assert_sound();
}

#[test]
fn a_thread_that_sleeps_while_it_raises_the_limit_frees_nothing_that_was_given_back_meanwhile() {
    let world = world();
    let mut session = world.session();
    let all = world.region.mapped().segments();
    world.region.victims().lower(all / 2, LIMITS.item_size_max);
    world.shrink(&mut session);
    let (region, process) = (Arc::clone(&world.region), world.process);
    let second = world.second.load(SeqCst);
    *world.system.interlude.lock().unwrap() = Some(Box::new(move || {
        let mut other = region.session(process).expect("a slot");
        // One half of the segments and then the other one: each of them was out of use before.
        for second in [second, second + 20, second + 40] {
            region.mapped().grow(all).expect("there is memory");
            region.victims().lower(all / 2, LIMITS.item_size_max);
            for second in second..second + 20 {
                let now = region.clock().tick(Moment::from_secs(UNIX_S + second));
                while matches!(other.shrink(now), Shrinking::More) {}
            }
            assert_eq!(region.mapped().given_back(), all - all / 2);
        }
    }));
    world.region.mapped().grow(all).expect("there is memory");
    let size = world.region.mapped().layout().shape.segment_size;
    assert_eq!(
        world.holes() * PAGE,
        world.region.mapped().given_back() * size,
        "a segment without pages is free"
    );
    world.second.fetch_add(100, SeqCst);
    for key in 0..6000 {
        set(&mut session, key, 1000, world.now());
    }
    world.assert_sound();
}

#[test]
fn a_system_that_takes_no_pages_back_is_asked_once() {
    let world = world();
    let mut session = world.session();
    world.system.keeps.store(true, SeqCst);
    world
        .region
        .victims()
        .lower(world.region.mapped().segments() / 2, LIMITS.item_size_max);
    let mut refused = 0;
    for _ in 0..1000 {
        refused += usize::from(matches!(session.shrink(world.now()), Shrinking::Refused(_)));
        world.second.fetch_add(1, SeqCst);
    }
    assert_eq!((refused, world.system.asked.load(SeqCst)), (1, 1));
    assert_eq!(world.region.mapped().given_back(), 0);
    assert!(matches!(session.shrink(world.now()), Shrinking::Done));
    assert_eq!(world.assert_sound().withdrawn, world.region.mapped().withheld());
    world
        .region
        .mapped()
        .grow(world.region.mapped().segments())
        .expect("nothing is to be allocated");
    assert_eq!(world.assert_sound().withdrawn, 0);
}

#[test]
fn a_thread_that_dies_while_it_gives_pages_back_loses_nothing() {
    let world = world();
    let all = world.region.mapped().segments();
    world.region.victims().lower(all / 2, LIMITS.item_size_max);
    let other = world.region.recovery().attach(1, 2, UNIX_S);
    let mut dying = world.region.session(other).expect("a slot");
    while matches!(dying.shrink(world.now()), Shrinking::More) {}
    world.second.fetch_add(5, SeqCst);
    world.system.kills.store(true, SeqCst);
    let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| dying.shrink(world.now())));
    assert!(died.is_err());
    std::mem::forget(dying);
    world.system.kills.store(false, SeqCst);

    // While it may live, no thread uses the segment that it is at: not to take it into use either.
    let mut session = world.session();
    world.shrink_but(&mut session, 1);
    assert!(world.region.mapped().grow(all).is_ok());
    assert_eq!(world.region.mapped().withdrawn(), 1);

    world.system.dead.store(1 << 1, SeqCst);
    for _ in 0..3 {
        session.upkeep(world.now());
    }
    assert_eq!(
        (world.region.mapped().withdrawn(), world.holes()),
        (0, 0),
        "it is in use again"
    );
    assert_eq!(world.assert_sound().withdrawn, 0);
}

impl World {
    /// The same as [`Self::shrink`] where the pages of so many segments cannot be given back for now.
    fn shrink_but(&self, session: &mut Session, segments: usize) {
        for _ in 0..1000 {
            let _ = session.shrink(self.now());
            self.second.fetch_add(1, SeqCst);
        }
        assert_eq!(self.region.mapped().withdrawn() - self.region.mapped().given_back(), segments);
    }
}

#[test]
fn threads_read_and_write_while_the_limit_goes_down_and_up() {
    let world = world();
    let all = world.region.mapped().segments();
    let is_over = AtomicBool::new(false);
    let (writes, hits) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..2_u64 {
            let (world, is_over, writes, hits) = (&world, &is_over, &writes, &hits);
            scope.spawn(move || {
                let mut session = world.session();
                let mut random = thread + 1;
                while !is_over.load(SeqCst) {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1_442_695_040_888_963_407);
                    let key = (random >> 33) % 5000;
                    let now = world.now();
                    if random >> 62 == 0 {
                        // Some have segments of their own.
                        let len = if key % 50 == 0 {
                            40 << 10
                        } else {
                            200 + usize::try_from(key % 7).unwrap_or(0) * 200
                        };
                        set(&mut session, key, len, now);
                        writes.fetch_add(1, Relaxed);
                    } else if get(&mut session, key, now) {
                        hits.fetch_add(1, Relaxed);
                    }
                }
            });
        }
        let mut session = world.session();
        for round in 0..20 {
            world.region.victims().lower(all / 2 - round, LIMITS.item_size_max);
            let enough = writes.load(Relaxed) + 500;
            while writes.load(Relaxed) < enough || world.holes() == 0 {
                let _ = session.shrink(world.now());
                world.second.fetch_add(1, SeqCst);
                std::thread::yield_now();
            }
            world.region.mapped().grow(all).expect("there is memory");
        }
        is_over.store(true, SeqCst);
    });
    assert!(writes.load(Relaxed) > 1000 && hits.load(Relaxed) > 1000);
    assert!(world.system.asked.load(SeqCst) > 100, "pages went back and came again");
    let mut session = world.session();
    world.region.victims().lower(all / 2, LIMITS.item_size_max);
    world.shrink(&mut session);
    let counts = world.assert_sound();
    assert_eq!(counts.withdrawn, all - all / 2);
    let there = (0..5000).filter(|key| get(&mut session, *key, world.now())).count();
    assert!(there > 500, "{there}");
}
