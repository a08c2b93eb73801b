//! A plain get believes no word: it returns a key's own value or a miss, whatever stands in slots, directories, segment words, headers
//! and the superblock; nor does a prefetch before it. Its enemy: a bound that is not looked at before the access that relies on it. Accesses without a look of their own
//! check the bounds of the mapping in this build, and end the test.
//! Guards: P6

use crate::private;
use harness::Random;
use keyway_region::layout::slot::Slot;
use keyway_region::verbs::{Get, Item, Store};
use keyway_region::{AHEAD_MAX, Limits, Placed, Region, Session, Target};
use private::{Page, UNIX_S};
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const MEMORY: u64 = 2 << 20;
const KEYS: usize = 60;
/// What stands before and after a caller's memory.
const GUARD: u8 = 0xA5;

struct World {
    session: Session,
    region: Arc<Region>,
    now: u32,
    /// after those that use it
    pages: Vec<Page>,
}

/// Memory with a guard on both sides.
struct Guarded {
    bytes: Vec<MaybeUninit<u8>>,
    len: usize,
}

impl Target for Guarded {
    fn make_room(&mut self, item: &Item) -> bool {
        self.len = item.value_len;
        self.bytes = vec![MaybeUninit::new(GUARD); self.len + 128];
        true
    }

    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        &mut self.bytes[64..64 + self.len]
    }
}

fn name(key: usize) -> String {
    format!("key-{key:04}")
}

fn value(key: usize) -> Vec<u8> {
    name(key).bytes().cycle().take(20 + 37 * (key % 23)).collect()
}

impl World {
    fn new() -> Self {
        let (pages, region) = private::region(MEMORY);
        let process = region.recovery().attach(0, 1, UNIX_S);
        region.limits().write(&Limits {
            item_size_max: 1 << 18,
            evict: false,
            ..Limits::default()
        });
        let session = region.session(process).expect("a slot");
        let now = region.clock().tick(keyway_region::Moment::from_secs(UNIX_S));
        let mut world = Self {
            session,
            region,
            now,
            pages,
        };
        for key in 0..KEYS {
            let how = Store {
                flags: u32::try_from(key % 3).expect("small"),
                exptime: if key % 4 == 0 { 1000 } else { 0 },
                ..Store::default()
            };
            let stored = world.session.store(name(key).as_bytes(), &value(key), &how, now);
            stored.expect("room");
        }
        world.judge(None, "before", true);
        world
    }

    fn word(&mut self, offset: usize) -> &mut u64 {
        private::words(&mut self.pages)
            .nth(offset / 8)
            .expect("an offset in the memory")
    }

    /// Gets every key: a miss or its value, unless its own item is the `victim`.
    fn judge(&mut self, victim: Option<usize>, when: &str, is_whole: bool) {
        // Before the gets, as a program does that gets many: it reads the same words.
        for first in (0..KEYS).step_by(AHEAD_MAX) {
            let names: Vec<String> = (first..KEYS.min(first + AHEAD_MAX)).map(name).collect();
            let ahead = self.region.index().ahead(names.iter().map(String::as_bytes));
            self.region.index().prefetch(&ahead);
        }
        for key in 0..KEYS {
            let mut out = b"before".to_vec();
            let found = self.session.get(name(key).as_bytes(), Get::VALUE, self.now, &mut out);
            let item = found.expect("a good key");
            let rest = out.strip_prefix(b"before").expect("what was in the vector stays");
            match item {
                None => assert!(rest.is_empty() && !is_whole, "{when}: {} is not there", name(key)),
                Some(item) => {
                    assert_eq!(item.value_len, rest.len(), "{when}: {}", name(key));
                    let segment = self.region.mapped().layout().shape.segment_size;
                    assert!(rest.len() <= segment, "{when}: {} has {} bytes", name(key), rest.len());
                    assert!(
                        victim == Some(key) || rest == value(key),
                        "{when}: {} has another value",
                        name(key)
                    );
                }
            }
            let mut target = Guarded {
                bytes: Vec::new(),
                len: 0,
            };
            let placed = &mut Placed::new(&mut target);
            let found = self.session.get(name(key).as_bytes(), Get::VALUE, self.now, placed);
            found.expect("a good key");
            let len = target.len;
            let guards = target.bytes.iter().take(64).chain(target.bytes.iter().skip(64 + len));
            // SAFETY: every byte was initialised when the memory was made.
            #[allow(unsafe_code, reason = "bytes that this file has initialised")]
            let is_guard = |byte: &MaybeUninit<u8>| unsafe { byte.assume_init() } == GUARD;
            assert!(
                guards.into_iter().all(is_guard),
                "{when}: {} was written beside its memory",
                name(key)
            );
        }
    }

    /// Puts these bits into the word at `offset`, has all keys judged, and takes them out again.
    fn scribble(&mut self, offset: usize, bits: u64, victim: Option<usize>, what: &str) {
        let before = std::mem::replace(self.word(offset), bits);
        self.judge(victim, &format!("{what} at {offset} is {bits:#x}, was {before:#x}"), false);
        *self.word(offset) = before;
    }

    /// The same with a directory's entry: first for a process that has found the segment before, which does not read the entry again, then
    /// for one that has not. `is_kept`: the segment that the entry now names says that it is of that directory.
    fn scribble_directory(&mut self, offset: usize, bits: u64, is_kept: bool, what: &str) {
        let before = std::mem::replace(self.word(offset), bits);
        let when = format!("{what} at {offset} is {bits:#x}, was {before:#x}");
        self.judge(None, &format!("{when}, as was known"), true);
        self.region.directory().forget_segments();
        self.judge(None, &when, false);
        *self.word(offset) = before;
        if is_kept {
            self.region.directory().forget_segments();
        }
        self.judge(None, &format!("after {when}"), true);
    }

    /// Offsets of the words in the index that name an item, with the words.
    fn slots(&mut self) -> Vec<(usize, Slot)> {
        let segments = self.region.mapped().layout().segments;
        let size = usize::try_from(self.region.directory().index_buckets()).expect("few") * 64;
        private::words(&mut self.pages)
            .enumerate()
            .skip(segments / 8)
            .take(size / 8)
            .map(|(at, word)| (at * 8, Slot(*word)))
            .filter(|(_, word)| word.is_item())
            .collect()
    }

    /// The key whose item is at this word's place.
    fn key_at(&mut self, word: Slot) -> usize {
        let at = self.region.mapped().layout().segment(word.segment()) + word.offset();
        let bytes: Vec<u8> = private::words(&mut self.pages)
            .skip(at / 8)
            .take(5)
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let is_there = |key: &usize| bytes.windows(8).any(|part| part == name(*key).as_bytes());
        (0..KEYS).find(is_there).expect("an item of one of the keys")
    }
}

/// Values that a number of so many bits may wrongly have: each end, and what is near a bound.
fn odd(bits: u32, bounds: &[u64]) -> Vec<u64> {
    let max = (1u64 << bits) - 1;
    let near = bounds.iter().flat_map(|n| [n.wrapping_sub(1), *n, n + 1]);
    let mut odd: Vec<u64> = near.chain([0, 1, 2, max / 2, max - 1, max]).map(|n| n & max).collect();
    odd.sort_unstable();
    odd.dedup();
    odd
}

#[test]
fn slots_that_lead_anywhere_lead_to_no_other_value() {
    let mut world = World::new();
    let shape = world.region.mapped().layout().shape;
    let segments = world.region.mapped().segments() as u64;
    let offsets = odd(17, &[shape.segment_size as u64 / 4, shape.segment_size as u64 / 4 - 2]);
    let slots = world.slots();
    assert!(slots.len() >= KEYS);
    for (at, word) in slots.iter().step_by(5).copied() {
        for segment in odd(20, &[segments, word.segment() as u64]) {
            // The generation that the segment has, so that only the place is wrong.
            let words = world.region.mapped().layout().words + usize::try_from(segment.min(segments - 1)).expect("small") * 16;
            let generation = *world.word(words) & 0x3FF;
            for offset in &offsets {
                let bits = word.0 & !((1 << 47) - 1) | generation << 37 | segment << 17 | offset;
                world.scribble(at, bits, None, "a slot");
            }
        }
    }
    // Words that name each other's items.
    for pair in slots.windows(2).step_by(7) {
        let [(at, word), (_, other)] = pair else { unreachable!() };
        let named = other.0 & ((1 << 47) - 1);
        world.scribble(*at, word.0 & !((1 << 47) - 1) | named, None, "a slot");
    }
    world.judge(None, "after", true);
}

#[test]
fn lengths_and_flags_of_an_item_lead_out_of_no_segment() {
    let mut world = World::new();
    let shape = world.region.mapped().layout().shape;
    let slots = world.slots();
    for (_, word) in slots.iter().step_by(9).copied() {
        let victim = world.key_at(word);
        let at = world.region.mapped().layout().segment(word.segment()) + word.offset();
        let whole = *world.word(at);
        let (shift, header) = if at.is_multiple_of(8) {
            (0, whole & 0xFFFF_FFFF)
        } else {
            (32, whole >> 32)
        };
        let others = whole & !(0xFFFF_FFFF << shift);
        let room = (shape.segment_size - word.offset()) as u64;
        let with = |world: &mut World, header: u64, what: &str| world.scribble(at, others | header << shift, Some(victim), what);
        for len in odd(20, &[room, room - 12, shape.segment_size as u64]) {
            with(&mut world, header & !0xF_FFFF | len, "a value's length");
        }
        for len in odd(8, &[8, 250]) {
            with(&mut world, header & !(0xFF << 20) | len << 20, "a key's length");
        }
        for flags in 0..16 {
            with(&mut world, header & !(0xF << 28) | flags << 28, "flags");
            let long = header & !(0xF << 28 | 0xF_FFFF) | flags << 28;
            with(&mut world, long | (room - 12), "flags and a value's length");
        }
    }
    world.judge(None, "after", true);
}

#[test]
fn directories_and_segment_words_are_not_believed() {
    let mut world = World::new();
    let (layout, segments) = (*world.region.mapped().layout(), world.region.mapped().segments() as u64);
    let index = usize::try_from(world.region.directory().index_buckets()).expect("few") * 64 / layout.shape.segment_size;
    let nowhere = odd(32, &[segments, segments + 1])
        .into_iter()
        .filter(|n| *n == 0 || *n > segments);
    for n in nowhere {
        for entry in (0..index.max(1)).step_by(2) {
            let at = layout.bucket_directory + entry * 4;
            world.scribble_directory(at, n | n << 32, false, "a bucket directory's entries");
        }
        world.scribble_directory(layout.hint_directory, n | n << 32, false, "a hint directory's entries");
    }
    // Any other segment.
    let of_index = u64::try_from(index.max(1)).expect("few");
    for n in 1..=segments {
        let what = "a bucket directory's entries";
        world.scribble_directory(layout.bucket_directory, n | n << 32, n <= of_index, what);
    }
    for segment in 0..usize::try_from(segments).expect("small") {
        for bits in odd(40, &[1, 2, 1 << 10]) {
            world.scribble(layout.words + segment * 16, bits, None, "a generation");
        }
        for bits in [1, 2, u64::MAX] {
            world.scribble(layout.words + segment * 16 + 8, bits, None, "an epoch");
        }
    }
    world.judge(None, "after", true);
}

#[test]
fn the_superblocks_words_are_not_believed() {
    let mut world = World::new();
    let region = Arc::clone(&world.region);
    let sb = region.mapped().superblock();
    let words = [&sb.table, &sb.thirds, &sb.stale_before, &sb.segments, &sb.seen];
    let mut random = Random::new(Random::seed_for("scribbled"));
    for (n, word) in words.into_iter().enumerate() {
        let before = word.load(Relaxed);
        let near = [before.wrapping_sub(1), before + 1, before * 2, before * 256, before * 256 + 1];
        let any: Vec<u64> = (0..40).map(|bits| random.next() >> bits).collect();
        for bits in near.into_iter().chain([0, 1, u64::MAX, 1 << 63, 1 << 62, 1 << 40]).chain(any) {
            word.store(bits, Relaxed);
            world.judge(
                None,
                &format!("word {n} of the superblock is {bits:#x}, was {before:#x}"),
                false,
            );
            word.store(before, Relaxed);
        }
    }
    world.judge(None, "after", true);
}

/// Nor does a change: it changes no other key. Changes the key's item in the way of this number: by a set, a delete, or an addition. Whatever it answers is good.
fn change(world: &mut World, way: usize, key: usize) {
    let (name, now) = (name(key), world.now);
    let _ = match way {
        0 => world.session.set(name.as_bytes(), b"other", 0, 0, now).map(|_| ()),
        1 => world
            .session
            .delete(name.as_bytes(), &keyway_region::verbs::Delete::default(), now)
            .map(|_| ()),
        _ => world.session.incr(name.as_bytes(), 1, now).map(|_| ()),
    };
}

impl World {
    /// All keys but this one have their values.
    fn judge_others(&mut self, victim: usize, when: &str) {
        for key in (0..KEYS).filter(|key| *key != victim) {
            let mut out = Vec::new();
            let found = self.session.get(name(key).as_bytes(), Get::VALUE, self.now, &mut out);
            assert!(found.expect("a good key").is_some(), "{when}: {} is not there", name(key));
            assert_eq!(out, value(key), "{when}: {} has another value", name(key));
        }
    }

    /// The only word of this key, with its offset.
    fn slot_of(&mut self, key: usize) -> (usize, Slot) {
        let slots = self.slots();
        let found = slots.into_iter().find(|(_, word)| self.key_at(*word) == key);
        found.expect("the key has an item")
    }
}

#[test]
fn a_change_of_an_item_with_odd_lengths_changes_no_other() {
    let mut world = World::new();
    let shape = world.region.mapped().layout().shape;
    for key in (0..KEYS).step_by(13) {
        for way in 0..3 {
            let lens = odd(20, &[8, 16, shape.segment_size as u64])
                .into_iter()
                .map(|len| (0xF_FFFF, len));
            let keys = odd(8, &[8, 250]).into_iter().map(|len| (0xFF << 20, len << 20));
            let flags = (0..16).map(|flags| (0xF << 28, flags << 28));
            for (mask, bits) in lens.chain(keys).chain(flags) {
                let fresh = world.session.set(name(key).as_bytes(), b"12345678", 0, 0, world.now);
                fresh.expect("room");
                let (_, word) = world.slot_of(key);
                let at = world.region.mapped().layout().segment(word.segment()) + word.offset();
                let shift = at % 8 * 8;
                let header = world.word(at);
                *header = *header & !(mask << shift) | bits << shift;
                change(&mut world, way, key);
                world.judge_others(key, &format!("change {way}, {bits:#x} in the header"));
            }
        }
        let whole = world.session.set(name(key).as_bytes(), &value(key), 0, 0, world.now);
        whole.expect("room");
    }
    world.judge(None, "after", true);
}

#[test]
fn an_item_that_would_end_behind_the_mapping_is_not_read() {
    for way in 0..4 {
        let mut world = World::new();
        let layout = *world.region.mapped().layout();
        let last = world.region.mapped().segments() - 1;
        let offset = layout.shape.segment_size - 8;
        let end = layout.segment(last) + layout.shape.segment_size;
        assert_eq!(layout.len(last + 1), end, "the last segment is the end of the memory");
        // A header for a key of eight bytes, in the last eight bytes.
        *world.word(end - 8) = 8 << 20;
        let generation = *world.word(layout.words + last * 16);
        for key in (0..KEYS).step_by(7) {
            let (at, word) = world.slot_of(key);
            let found = Slot::confirmed(word.tag(), generation, last, offset);
            *world.word(at) = found.0;
            change(&mut world, way, key);
            let mut out = Vec::new();
            let got = world.session.get(name(key).as_bytes(), Get::VALUE, world.now, &mut out);
            assert!(got.is_ok() && (out.is_empty() || out == b"other"), "change {way}: {out:?}");
            world.judge_others(key, &format!("change {way}"));
            let whole = world.session.set(name(key).as_bytes(), &value(key), 0, 0, world.now);
            whole.expect("room");
        }
    }
}

#[test]
fn a_key_that_begins_another_one_has_not_its_item() {
    for way in 0..3 {
        let mut world = World::new();
        let (at, word) = world.slot_of(7);
        let longer = format!("{}-and-more", name(7));
        let before: Vec<usize> = world.slots().iter().map(|(at, _)| *at).collect();
        let stored = world.session.set(longer.as_bytes(), b"longer", 0, 0, world.now);
        stored.expect("room");
        let (_, other) = world
            .slots()
            .into_iter()
            .find(|(at, _)| !before.contains(at))
            .expect("its slot");
        // The shorter key's word leads to the longer key's item.
        *world.word(at) = Slot::confirmed(word.tag(), other.generation(), other.segment(), other.offset()).0;
        let found = match way {
            0 => {
                let how = keyway_region::verbs::Delete::default();
                format!("{:?}", world.session.delete(name(7).as_bytes(), &how, world.now))
            }
            1 => format!("{:?}", world.session.incr(name(7).as_bytes(), 1, world.now)),
            _ => {
                let found = world.session.get(name(7).as_bytes(), Get::VALUE, world.now, &mut Vec::new());
                assert_eq!(found, Ok(None));
                continue;
            }
        };
        assert_eq!(found, "Ok(NotFound)");
    }
}
