//! A small region in private memory, to be damaged and then used by every verb. Tests and fuzz targets damage it; nothing
//! here looks at answers: only that there are any.
//!
//! # Safety
//!
//! The only `unsafe` is the mapping: a vector of pages plays it, lives as long as the region made from it, and is touched
//! by no other process meanwhile.
#![allow(unsafe_code, reason = "private memory plays the mapping; contract above")]

use keyway_region::layout::plan::{Layout, Shape};
use keyway_region::layout::session::Tenant;
use keyway_region::layout::superblock::Superblock;
use keyway_region::memory::Memory;
use keyway_region::verbs::{Arithmetic, Delete, Get, Store, StoreMode};
use keyway_region::{Creation, Host, Life, Limits, Region, check};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const MEMORY: u64 = 2 << 20;
const NOW: i64 = 1_800_000_000;
const KEYS: usize = 700;
/// The same of a small image, which a fuzzer damages thousands of times a second.
const MEMORY_SMALL: u64 = 256 << 10;
const KEYS_SMALL: usize = 60;

/// Private memory with no other process in it.
struct Alone {
    /// bytes that the "file" has
    len: usize,
}

impl Host for Alone {
    fn life(&self, _: &Tenant) -> Life {
        Life::Alive
    }
    fn prepare(&self, _: &[Range<usize>], _: bool, _: bool) {}
    fn write_back(&self, _: Range<usize>) -> bool {
        true
    }
    fn file_len(&self) -> usize {
        self.len
    }
    fn back(&self, _: Range<usize>) -> std::io::Result<()> {
        Err(std::io::ErrorKind::StorageFull.into())
    }
}

#[derive(Clone)]
#[repr(C, align(4096))]
struct Page([u64; 512]);

/// A region's bytes.
pub struct Image {
    pages: Vec<Page>,
    /// bytes that the "file" has
    pub backed: usize,
}

impl Clone for Image {
    fn clone(&self) -> Self {
        Self {
            pages: self.pages.clone(),
            backed: self.backed,
        }
    }

    fn clone_from(&mut self, other: &Self) {
        self.pages.clone_from(&other.pages);
        self.backed = other.backed;
    }
}

impl Image {
    /// A region with some hundred items in it, some of them large.
    ///
    /// # Panics
    ///
    /// If the region is not sound, which no damage explains yet.
    pub fn filled() -> Self {
        Self::filled_with(false)
    }

    /// The same, with checksums or without. Key `i` has the value [`value`]`(i)`.
    ///
    /// # Panics
    ///
    /// As [`Self::filled`].
    pub fn filled_with(checksums: bool) -> Self {
        Self::of(MEMORY, KEYS, checksums)
    }

    /// A region with some items in it, one of them large.
    ///
    /// # Panics
    ///
    /// As [`Self::filled`].
    pub fn small() -> Self {
        Self::of(MEMORY_SMALL, KEYS_SMALL, false)
    }

    fn of(memory: u64, keys: usize, checksums: bool) -> Self {
        let mut shape = Shape::for_memory(memory, 4096);
        // No room to grow: the address space is real memory here.
        shape.segments_max = Layout::new(shape).segments_for(memory);
        let layout = Layout::new(shape);
        let segments = layout.segments_for(memory);
        let mut image = Self {
            pages: vec![Page([0; 512]); layout.len_max / 4096 + 1],
            backed: layout.len(segments),
        };
        let creation = Creation {
            shape,
            segments,
            id: [1, 2],
            seed: 3,
            now: keyway_region::Moment::from_secs(NOW),
            boot_id: [4, 5],
            checksums,
            limits: limits(),
        };
        Region::create(image.memory(), &creation, Box::new(Alone { len: image.backed })).expect("memory of the right size");
        let region = image.open().expect("just created");
        let process = region.recovery().attach(0, 1, NOW);
        let mut session = region.session(process).expect("no other process is there");
        for i in 0..keys {
            session
                .store(
                    &key(i),
                    &value(i),
                    &Store::default(),
                    region.clock().tick(keyway_region::Moment::from_secs(NOW)),
                )
                .expect("there is room");
        }
        drop(session);
        assert!(check::check(&region, |_| {}).is_sound());
        drop(region);
        image
    }

    /// The bytes as words.
    pub fn word(&mut self, i: usize) -> &mut u64 {
        &mut self.pages[i / 512].0[i % 512]
    }

    /// Changes it by a list of changes, twelve bytes each: place (three bytes; it is folded so that the words which lead elsewhere are hit as
    /// often as the payload), what to do, eight bytes of value.
    pub fn change(&mut self, list: &[u8]) {
        let words = self.backed / 8;
        // The arrays before the segments, and the first segments, which are the index.
        let head = words / 8;
        let mut heal = false;
        for change in list.chunks_exact(12).take(64) {
            let place = u32::from_le_bytes([change[0], change[1], change[2], 0]) as usize;
            let value = u64::from_le_bytes(change[4..12].try_into().unwrap_or_default());
            let at = if change[3] & 1 == 0 { place % head } else { place % words };
            heal |= change[3] & 2 != 0;
            let word = self.word(at);
            *word = match change[3] >> 2 & 3 {
                0 => value,
                1 => *word ^ value,
                2 => word.wrapping_add(value),
                _ => *word & value,
            };
            if change[3] & 16 != 0 {
                self.backed = self.backed.min(place * 8);
            }
        }
        if heal && self.backed >= 4096 {
            self.heal_checksum();
        }
    }

    /// Makes the superblock's checksum right, to get damage past it.
    pub fn heal_checksum(&mut self) {
        let memory = self.memory();
        let sb: &Superblock = memory.get(0);
        sb.checksum.store(sb.checksum_now(), Relaxed);
    }

    /// The region in these bytes, if they are one.
    ///
    /// # Errors
    ///
    /// Why they are none.
    pub fn open(&mut self) -> Result<Arc<Region>, keyway_region::Unusable> {
        Region::open(self.memory(), Box::new(Alone { len: self.backed })).map(Arc::new)
    }

    fn memory(&mut self) -> Memory {
        let base = NonNull::new(self.pages.as_mut_ptr().cast()).expect("a vector's pointer");
        // SAFETY: see the top of the file.
        unsafe { Memory::new(base, self.pages.len() * 4096) }
    }
}

fn limits() -> Limits {
    Limits {
        item_size_max: 1 << 18,
        evict: true,
        ..Limits::default()
    }
}

fn key(i: usize) -> Vec<u8> {
    format!("key-{}", i % KEYS).into_bytes()
}

/// The value of key `i` in a filled image: no two are alike, nor are two parts of a large one.
pub fn value(i: usize) -> Vec<u8> {
    let len = if i.is_multiple_of(50) { 30_000 } else { i % 200 };
    let word = |n: usize| {
        (n as u64 ^ (i as u64) << 32)
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .to_le_bytes()
    };
    (0..len.div_ceil(8)).flat_map(word).take(len).collect()
}

/// What the keys' items give, by every way in which a value gets out: how many are as they were stored, how many are gone, and
/// how many are something else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// as it was stored
    pub right: usize,
    /// a miss or an error
    pub none: usize,
    /// anything else
    pub wrong: usize,
}

/// Reads every key of a filled image: by a get, by one with all details, behind a touch, and behind an append; then all of it
/// again behind as many stores as make every segment be reclaimed.
pub fn answers(region: &Arc<Region>) -> Answers {
    let mut answers = Answers::default();
    let process = region.recovery().attach(0, 1, NOW);
    let Some(mut session) = region.session(process) else {
        return answers;
    };
    let now = region.clock().tick(keyway_region::Moment::from_secs(NOW));
    let mut wanted: Vec<Vec<u8>> = (0..KEYS).map(value).collect();
    for round in 0..2 {
        for (i, wanted) in wanted.iter_mut().enumerate() {
            if i % 4 == 1 {
                let _ = session.touch(&key(i), 1000, now);
            }
            let joined = Store {
                mode: StoreMode::Append,
                ..Store::default()
            };
            if i % 4 == 2 && session.store(&key(i), b"more", &joined, now).is_ok() {
                wanted.extend_from_slice(b"more");
            }
            let how = Get {
                value: true,
                details: i % 2 == 0,
                ..Get::default()
            };
            let mut out = Vec::new();
            match session.get(&key(i), &how, now, &mut out) {
                Ok(Some(item)) if out == *wanted && item.value_len == out.len() && item.flags == 0 => answers.right += 1,
                Ok(Some(_)) => answers.wrong += 1,
                Ok(None) | Err(_) => answers.none += 1,
            }
        }
        for i in 0..if round == 0 { 2_000 } else { 0 } {
            let _ = session.store(format!("other-{i}").as_bytes(), &[7; 1_000], &Store::default(), now);
        }
    }
    answers
}

/// Writes so much to a region that every segment of its log comes to be reclaimed.
pub fn write_over_all(region: &Arc<Region>) {
    let process = region.recovery().attach(0, 1, NOW);
    let Some(mut session) = region.session(process) else {
        return;
    };
    let now = region.clock().tick(keyway_region::Moment::from_secs(NOW));
    let value = vec![7; 1000];
    for i in 0..3 * MEMORY / 1000 {
        let _ = session.store(format!("new {i}").as_bytes(), &value, &Store::default(), now);
    }
}

/// All verbs on so many keys, a walk, upkeep, recovery, and the check.
pub fn use_it(region: &Arc<Region>, keys: usize, salt: usize) {
    let process = region.recovery().attach(0, 1, NOW);
    let Some(mut session) = region.session(process) else {
        return;
    };
    let now = region.clock().tick(keyway_region::Moment::from_secs(NOW));
    let mut out = Vec::new();
    for i in 0..keys {
        let key = key(i * 37 + salt);
        out.clear();
        let how = Get {
            value: true,
            details: true,
            exptime: (i % 5 == 0).then_some(100),
            ..Get::default()
        };
        let _ = session.get(&key, &how, now, &mut out);
        let value = vec![7; if i % 17 == 0 { 40_000 } else { i * 13 % 300 }];
        let mode = [StoreMode::Set, StoreMode::Add, StoreMode::Append, StoreMode::Replace][i % 4];
        let _ = session.store(
            &key,
            &value,
            &Store {
                mode,
                ..Store::default()
            },
            now,
        );
        let _ = session.arithmetic(
            &key,
            &Arithmetic {
                delta: 1,
                vivify: Some((1, 0)),
                ..Arithmetic::default()
            },
            now,
        );
        if i % 3 == 0 {
            let _ = session.delete(&key, &Delete::default(), now);
        }
    }
    session.upkeep(now);
    let mut cursor = Some(0);
    while let Some(c) = cursor {
        cursor = region.index().walk(c, 1000, now, |_, _| {});
    }
    drop(session);
    region.recovery().recover();
    let _ = check::check(region, |_| {});
    let _ = region.threads().counters();
}
