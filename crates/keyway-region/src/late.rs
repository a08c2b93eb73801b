//! Late threads, for the tests of the rooms: a thread is overtaken before one of its accesses, or dies there.
//!
//! What a thread had read before it slept is an argument of what it does next, so a test calls that with old arguments. What
//! happens between two accesses of a call is done by another session before one of them, completely, on the same thread of the
//! system. Each test tries every access in turn.

use crate::hash::{all_choices, tag};
use crate::index::{Followed, Place};
use crate::layout::bucket::SLOTS;
use crate::layout::plan::{Layout, Shape};
use crate::layout::segment::{Kind, Link, Spare, State};
use crate::layout::session::Tenant;
use crate::layout::slot::Slot;
use crate::limits::Limits;
use crate::log::ItemView;
use crate::mapped::{Host, Life};
use crate::memory::tests::{again, private};
use crate::observe::{Event, install};
use crate::reclaim::{Step, Victim};
use crate::region::{Creation, Region};
use crate::session::Session;
use crate::verbs::{Delete, Get, Item, Store, StoreMode, Stored, WriteError};
use crate::{Moment, Shrinking, check};
use std::cell::{Cell, Ref, RefCell, RefMut};
use std::collections::BTreeSet;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

/// The Unix time at which all tests run.
const UNIX_S: i64 = 1_800_000_000;
/// Segments of a region.
pub(crate) const SEGMENTS: usize = 24;

/// Bytes of a value that almost fills a segment.
pub(crate) const WHOLE: usize = 15_900;
/// Bytes of a value with segments of its own.
pub(crate) const LARGE: usize = 40_000;
/// How often a segment is recycled until an old word that named it fits it again.
pub(crate) const WORDS_COME_ROUND: u64 = 1 << 10;

thread_local! {
    /// accesses that the present thread still makes until it is overtaken
    static LEFT: Cell<u64> = const { Cell::new(0) };
    static OTHER: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

fn observer(event: Event) {
    if let Event::Before(_) = event {
        LEFT.set(LEFT.get() - 1);
        if LEFT.get() == 0 {
            install(None);
            if let Some(other) = OTHER.take() {
                other();
            }
        }
    }
}

/// Runs `what`, and `other` before the access of this number, from 1 on. Returns the result, and whether there was such an access.
pub(crate) fn overtaken<T>(access: u64, other: impl FnOnce() + 'static, what: impl FnOnce() -> T) -> (T, bool) {
    LEFT.set(access);
    OTHER.set(Some(Box::new(other)));
    install(Some(observer));
    let came = what();
    install(None);
    (came, OTHER.take().is_none())
}

/// The end of a thread that dies: no destructor of its session runs.
struct Death;

/// Runs `what` up to the access of this number, where the thread dies. `false`: there is no such access, and the thread lives.
pub(crate) fn dies(access: u64, what: impl FnOnce()) -> bool {
    let end = || resume_unwind(Box::new(Death));
    let died = catch_unwind(AssertUnwindSafe(|| overtaken(access, end, what)));
    install(None);
    OTHER.take();
    match died {
        Ok(_) => false,
        Err(e) if e.is::<Death>() => true,
        Err(e) => resume_unwind(e),
    }
}

#[derive(Clone)]
struct Machine {
    page_size: usize,
    /// the process slots of dead processes, as bits
    dead: Arc<AtomicU64>,
    /// the same of those that seem dead
    suspect: Arc<AtomicU64>,
    /// parts of the file whose bytes were given back
    holes: Arc<Mutex<BTreeSet<usize>>>,
}

/// Bytes of such a part.
const PART: usize = 4096;

impl Host for Machine {
    fn life(&self, tenant: &Tenant) -> Life {
        let is_among = |slots: &AtomicU64| slots.load(Relaxed) & 1 << tenant.slot != 0;
        if is_among(&self.dead) {
            Life::Dead
        } else if is_among(&self.suspect) {
            Life::Suspect
        } else {
            Life::Alive
        }
    }
    fn prepare(&self, _: &[Range<usize>], _: bool, _: bool) {}
    fn write_back(&self, _: Range<usize>) -> bool {
        true
    }
    fn file_len(&self) -> usize {
        usize::MAX
    }
    fn back(&self, range: Range<usize>) -> std::io::Result<()> {
        self.holes
            .lock()
            .expect("no thread died with it")
            .retain(|part| !range.contains(part));
        Ok(())
    }
    fn give_back(&self, range: Range<usize>) -> std::io::Result<()> {
        let is_whole = range.start.is_multiple_of(self.page_size) && range.end.is_multiple_of(self.page_size);
        assert!(is_whole, "{range:?} are no whole pages");
        self.holes.lock().expect("no thread died with it").extend(range.step_by(PART));
        Ok(())
    }
}

/// A small region in private memory, whose first index is a segment.
pub(crate) struct Ground {
    pub region: Arc<Region>,
    machine: Machine,
    /// the region's memory
    words: Rc<Vec<u64>>,
}

impl Ground {
    pub fn new() -> Self {
        Self::of_pages(PART)
    }

    /// A region on pages of this many bytes.
    pub fn of_pages(page_size: usize) -> Self {
        Self::of(page_size, SEGMENTS, None)
    }

    /// A region whose first index has this many buckets.
    pub fn of_buckets(buckets: usize) -> Self {
        Self::of(PART, SEGMENTS, Some(buckets))
    }

    /// A region with this many segments, which can grow to [`SEGMENTS`].
    pub fn of_segments(segments: usize) -> Self {
        Self::of(PART, segments, None)
    }

    fn of(page_size: usize, segments: usize, buckets: Option<usize>) -> Self {
        let mut shape = Shape {
            segments_max: SEGMENTS,
            process_slots: 4,
            thread_slots: 6,
            server_threads: 1,
            ..Shape::for_memory(crate::layout::plan::MEMORY_MIN, page_size)
        };
        shape.buckets_initial = buckets.unwrap_or(shape.buckets_per_segment());
        let machine = Machine {
            page_size,
            dead: Arc::default(),
            suspect: Arc::default(),
            holes: Arc::default(),
        };
        let (words, memory) = private(Layout::new(shape).len_max);
        let creation = Creation {
            shape,
            segments,
            id: [1, 2],
            seed: 3,
            now: Moment::from_secs(UNIX_S),
            boot_id: [4, 5],
            checksums: false,
            limits: Limits::default(),
        };
        let region = Region::create(memory, &creation, Box::new(machine.clone())).expect("memory of the right size");
        Self {
            region: Arc::new(region),
            machine,
            words: Rc::new(words),
        }
    }

    /// Maps this region again, as another process does, which has its own knowledge of it.
    pub fn mapped_again(&self) -> Self {
        let memory = again(self.region.mapped().memory());
        let region = Region::open(memory, Box::new(self.machine.clone())).expect("a region");
        Self {
            region: Arc::new(region),
            machine: self.machine.clone(),
            words: self.words.clone(),
        }
    }

    /// A thread of the process with this slot.
    pub fn thread(&self, process: usize) -> Thread {
        self.thread_that(process, false)
    }

    /// A thread that evicts to make space.
    pub fn evictor(&self, process: usize) -> Thread {
        self.thread_that(process, true)
    }

    fn thread_that(&self, process: usize, evict: bool) -> Thread {
        let process = self.region.recovery().attach(process, 1, UNIX_S);
        self.region.limits().write(&Limits {
            item_size_max: 1 << 18,
            evict,
            ..Limits::default()
        });
        let session = self.region.session(process).expect("a free thread slot");
        Thread {
            session: Rc::new(RefCell::new(session)),
            _words: self.words.clone(),
        }
    }

    /// Makes the process with this slot dead from now on.
    pub fn dies(&self, process: usize) {
        self.machine.dead.fetch_or(1 << process, Relaxed);
    }

    /// Makes the process with this slot seem dead from now on.
    pub fn seems_dead(&self, process: usize) {
        self.machine.suspect.fetch_or(1 << process, Relaxed);
    }

    /// Checks that the region is sound.
    pub fn is_sound(&self) {
        let report = check::check(&self.region, |_| {});
        assert!(report.is_sound(), "the region is not sound: {:?}", report.problems);
    }

    /// Segments that are free.
    pub fn free(&self) -> usize {
        check::check(&self.region, |_| {}).counts.free
    }

    /// The item of a key: the place of its word, the word, and what it leads to.
    pub fn item(&self, key: &str) -> Option<(Place, Slot, ItemView)> {
        let region = &self.region;
        self.words()
            .find_map(|(place, word)| match region.index().look_in(place, word) {
                Followed::Got(seen) if region.items().has_key(&seen, key.as_bytes()) => Some((place, word, seen)),
                _ => None,
            })
    }

    /// The segment of a key's item.
    pub fn segment_of(&self, key: &str) -> usize {
        self.item(key).expect("an item of the key").2.segment
    }

    /// The segments of a key's large value.
    pub fn parts(&self, key: &str) -> Vec<usize> {
        let (_, _, seen) = self.item(key).expect("an item of the key");
        let mut link = self.region.items().chain(&seen).expect("a large value").first;
        let mut parts = Vec::new();
        while link != Link::NONE {
            parts.push(link.segment());
            let at = self.region.mapped().segment(link.segment());
            link = Link(self.region.mapped().word(at).load(crate::atomics::Relaxed));
        }
        parts
    }

    /// The words of items in the index.
    pub fn words(&self) -> impl Iterator<Item = (Place, Slot)> {
        let region = &self.region;
        (0..region.directory().table().count).flat_map(move |bucket| {
            let at = region.directory().bucket(bucket).expect("a bucket of the index");
            (0..SLOTS).filter_map(move |index| {
                let place = Place::new(bucket, at, index);
                let word = region.slots().word_in(place);
                word.is_item().then_some((place, word))
            })
        })
    }

    pub fn hash(&self, key: &str) -> u64 {
        self.region.mapped().hasher().hash(key.as_bytes())
    }

    pub fn state(&self, segment: usize) -> State {
        State(self.region.mapped().header(segment).state.load(crate::atomics::Relaxed))
    }

    /// Segments of this kind.
    pub fn segments(&self, kind: Kind) -> BTreeSet<usize> {
        (0..SEGMENTS)
            .filter(|segment| self.state(*segment).kind() == Some(kind))
            .collect()
    }

    /// Segments with pages that were given back.
    pub fn without_pages(&self) -> BTreeSet<usize> {
        let (holes, layout) = (
            self.machine.holes.lock().expect("no thread died with it"),
            self.region.mapped().layout(),
        );
        let segment = |part: &usize| (part - layout.segments) / layout.shape.segment_size;
        holes.iter().map(segment).collect()
    }

    /// The segment as a victim that is to be compacted.
    pub fn victim(&self, segment: usize) -> Victim {
        victim(&self.region, segment)
    }

    pub fn now(&self) -> u32 {
        self.region.clock().tick(Moment::from_secs(UNIX_S))
    }
}

/// Gives a free segment a later generation, as if it had been recycled this many times.
pub(crate) fn recycled(region: &Region, segment: usize, times: u64) {
    let generation = &region.mapped().words(segment).generation;
    generation.fetch_add(times, crate::atomics::Relaxed);
}

/// The segment, in its present generation, as a victim that is to be compacted.
pub(crate) fn victim(region: &Region, segment: usize) -> Victim {
    Victim {
        segment,
        generation: region.mapped().segment_life(segment).generation,
        spare: Spare::All,
        in_turn: false,
        is_offered: false,
    }
}

/// A thread's session. The thread that it overtakes can call it, too.
#[derive(Clone)]
pub(crate) struct Thread {
    session: Rc<RefCell<Session>>,
    /// the memory that the session uses: declared after it, so that it is dropped later
    _words: Rc<Vec<u64>>,
}

impl Thread {
    /// Its session, for calls that no verb makes.
    pub fn session(&self) -> Ref<'_, Session> {
        self.session.borrow()
    }

    /// Its session, for verbs, which change it.
    pub fn session_mut(&self) -> RefMut<'_, Session> {
        self.session.borrow_mut()
    }

    fn now(&self) -> u32 {
        self.session().region().clock().tick(Moment::from_secs(UNIX_S))
    }

    /// Splits so many buckets. `false`: the index cannot grow now.
    pub fn grow_index(&self, splits: usize, now: u32) -> bool {
        let session = self.session();
        session.index().publisher().splits().grow(session.reclaimer(), splits, now)
    }

    /// Stores a value of this length, which contains its key and this number.
    pub fn store(&self, key: &str, number: u8, len: usize) -> Result<Stored, WriteError> {
        let now = self.now();
        let value = value(key, number, len);
        self.session
            .borrow_mut()
            .store(key.as_bytes(), &value, &Store::default(), now)
    }

    /// Stores a value of this length, and panics if it is not stored.
    pub fn set(&self, key: &str, number: u8, len: usize) {
        let stored = self.store(key, number, len);
        assert!(matches!(stored, Ok(Stored::Stored { .. })), "{key}: {stored:?}");
    }

    pub fn delete(&self, key: &str) {
        let now = self.now();
        let deleted = self.session.borrow_mut().delete(key.as_bytes(), &Delete::default(), now);
        deleted.expect("a key that can be deleted");
    }

    /// Sets its expiry: never, as before.
    pub fn touch(&self, key: &str) {
        let now = self.now();
        let touched = self.session.borrow_mut().touch(key.as_bytes(), 0, now);
        assert!(touched.is_ok(), "{key}: {touched:?}");
    }

    pub fn append(&self, key: &str, bytes: &[u8]) -> Result<Stored, WriteError> {
        self.store_as(StoreMode::Append, key, bytes)
    }

    pub fn store_as(&self, mode: StoreMode, key: &str, bytes: &[u8]) -> Result<Stored, WriteError> {
        let now = self.now();
        let how = Store {
            mode,
            ..Store::default()
        };
        self.session.borrow_mut().store(key.as_bytes(), bytes, &how, now)
    }

    pub fn flush(&self) {
        let now = self.now();
        self.session
            .borrow_mut()
            .flush_all(0, now)
            .expect("a region that can be flushed");
    }

    /// The key's value, and what else is known of the item.
    pub fn get(&self, key: &str) -> Option<(Item, Vec<u8>)> {
        let (now, mut out) = (self.now(), Vec::new());
        let how = Get {
            value: true,
            details: true,
            ..Get::default()
        };
        let item = self
            .session
            .borrow_mut()
            .get(key.as_bytes(), &how, now, &mut out)
            .expect("a key that can be got");
        item.map(|item| (item, out))
    }

    /// The key's value by a get that asks for nothing else.
    pub fn plain_get(&self, key: &str) -> Option<Vec<u8>> {
        let (now, mut out) = (self.now(), Vec::new());
        let mut session = self.session.borrow_mut();
        let item = session.get(key.as_bytes(), Get::VALUE, now, &mut out);
        item.expect("a key that can be got").map(|_| out)
    }

    /// Checks that the key has the value of this number and length.
    pub fn has(&self, key: &str, number: u8, len: usize, when: u64) {
        let found = self.get(key).map(|(_, found)| found);
        let Some(found) = found else {
            panic!("overtaken at access {when}: '{key}' is not there");
        };
        assert!(
            found == value(key, number, len),
            "overtaken at access {when}: '{key}' has another value, of {} bytes",
            found.len()
        );
    }

    /// Housekeeping.
    pub fn upkeep(&self) {
        let now = self.now();
        self.session.borrow_mut().upkeep(now);
    }

    /// A step towards the memory limit, this many seconds later, and further steps while there is more to do.
    pub fn shrink(&self, after_s: u32) {
        let now = self.now() + after_s;
        while matches!(self.session.borrow_mut().shrink(now), Shrinking::More) {}
    }

    /// Compacts a segment. Returns whether it is free.
    pub fn compact(&self, victim: Victim) -> bool {
        let now = self.now();
        let session = self.session();
        session.reclaimer().empty_step(victim, usize::MAX, now).0 == Step::Freed
    }

    /// Ends the thread's extents, so that their segments can be reclaimed.
    pub fn release(&self) {
        self.session().release_extents();
    }

    /// The thread is gone, and its session is never ended.
    pub fn forget(self) {
        std::mem::forget(self.session);
    }
}

/// Two keys with the same word, in one bucket; the bucket's first split moves the first one and not the other.
pub(crate) fn twins(ground: &Ground) -> [String; 2] {
    let first = |key: &String| all_choices(ground.hash(key))[0];
    let base = ground.region.directory().table().count;
    let numbers = || (0..).map(|n| n.to_string());
    let moves = numbers().find(|key| first(key) & base != 0).expect("a number");
    let differ = |key: &String| (first(key) ^ first(&moves)) & (2 * base - 1) == base;
    let stays = numbers().find(|key| differ(key) && tag(ground.hash(key)) == tag(ground.hash(&moves)));
    [moves, stays.expect("a number")]
}

/// A value that contains its key.
pub(crate) fn value(key: &str, number: u8, len: usize) -> Vec<u8> {
    let pattern = key.bytes().chain([b'#', number]);
    pattern.cycle().take(len).collect()
}
