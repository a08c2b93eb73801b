//! Regions with random damage. Its enemy: a byte from shared memory that is believed. Whatever the bytes, opening gives a
//! region or an error, and every operation ends with an answer or an error, without a panic and in bounded time.
#![allow(unsafe_code, reason = "private memory plays the mapping")]
#![allow(
    clippy::cast_possible_truncation,
    clippy::print_stdout,
    reason = "a test: its numbers are small, its output is for people"
)]

use keyway_region::layout::plan::{Layout, Shape};
use keyway_region::memory::Memory;
use keyway_region::verbs::{Arithmetic, Delete, Get, Store, StoreMode};
use keyway_region::{Creation, Host, Limits, Region, check};
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

const MEMORY: u64 = 2 << 20;
const NOW: i64 = 1_800_000_000;

/// Private memory with nobody else in it.
struct Alone;

impl Host for Alone {
    fn is_alive(&self, _: usize) -> bool {
        true
    }
    fn prepare(&self, _: &[Range<usize>], _: bool, _: bool) {}
    fn write_back(&self, _: Range<usize>) -> bool {
        true
    }
}

#[derive(Clone)]
#[repr(C, align(4096))]
struct Page([u64; 512]);

#[derive(Clone)]
struct Bytes {
    pages: Vec<Page>,
    backed: usize,
}

impl Bytes {
    fn word(&mut self, i: usize) -> &mut u64 {
        &mut self.pages[i / 512].0[i % 512]
    }

    fn memory(&mut self) -> Memory {
        let len = self.pages.len() * 4096;
        let base = NonNull::new(self.pages.as_mut_ptr().cast()).unwrap();
        // SAFETY: the vector lives longer than any region made from it in this file, and is not touched meanwhile.
        unsafe { Memory::new(base, len) }
    }

    fn new() -> Self {
        let mut shape = Shape::for_memory(MEMORY, 4096);
        // No room to grow: the address space is real memory here.
        shape.segments_max = (MEMORY as usize) / shape.segment_size;
        let layout = Layout::new(shape);
        let segments = layout.segments_for(MEMORY);
        let mut bytes = Self {
            pages: vec![Page([0; 512]); layout.len_max / 4096 + 1],
            backed: layout.len(segments),
        };
        let creation = Creation {
            shape,
            segments,
            id: [1, 2],
            seed: 3,
            now_unix_s: NOW,
            boot_id: [4, 5],
        };
        Region::create(bytes.memory(), &creation, Box::new(Alone)).unwrap();
        bytes
    }

    fn open(&mut self) -> Option<Arc<Region>> {
        let backed = self.backed;
        Region::open(self.memory(), backed, Box::new(Alone)).ok().map(Arc::new)
    }
}

fn limits() -> Limits {
    Limits {
        item_size_max: 1 << 18,
        evict: true,
    }
}

/// All verbs on some keys. Answers are not looked at: only that there are any.
fn use_it(region: &Arc<Region>, salt: u64) {
    let process = region.attach(0, 1, NOW);
    let Some(mut session) = region.session(process, limits()) else {
        return;
    };
    let now = region.tick(NOW);
    let mut out = Vec::new();
    for i in 0..60 {
        let key = format!("key-{}", (i * 37 + salt) % 700);
        let key = key.as_bytes();
        out.clear();
        let how = Get {
            value: true,
            details: true,
            exptime: (i % 5 == 0).then_some(100),
            ..Get::default()
        };
        let _ = session.get_with(key, &how, now, &mut out, |_, _| {});
        assert!(out.len() <= MEMORY as usize);
        let value = vec![7; if i % 17 == 0 { 40_000 } else { (i * 13 % 300) as usize }];
        let mode = [StoreMode::Set, StoreMode::Add, StoreMode::Append, StoreMode::Replace][(i % 4) as usize];
        let _ = session.store(
            key,
            &value,
            &Store {
                mode,
                ..Store::default()
            },
            now,
        );
        let _ = session.arithmetic(
            key,
            &Arithmetic {
                delta: 1,
                vivify: Some((1, 0)),
                ..Arithmetic::default()
            },
            now,
        );
        if i % 3 == 0 {
            let _ = session.delete(key, &Delete::default(), now);
        }
    }
    session.upkeep(now);
    let mut cursor = Some(0);
    while let Some(c) = cursor {
        cursor = region.walk(c, 1000, now, |_, _| {});
    }
    drop(session);
    region.recover();
    let _ = check::check(region, |_| {});
    let _ = region.counters();
}

fn filled() -> Bytes {
    let mut bytes = Bytes::new();
    let region = bytes.open().unwrap();
    let process = region.attach(0, 1, NOW);
    let mut session = region.session(process, limits()).unwrap();
    for i in 0..700 {
        let value = vec![1; if i % 50 == 0 { 30_000 } else { i % 200 }];
        session
            .store(format!("key-{i}").as_bytes(), &value, &Store::default(), region.tick(NOW))
            .unwrap();
    }
    drop(session);
    assert!(check::check(&region, |_| {}).is_sound());
    bytes
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

#[test]
fn damaged_anywhere() {
    let sound = filled();
    let layout = *sound.clone().open().unwrap().layout();
    // Most of the damage goes where it does most: the words that lead elsewhere.
    let parts = [
        0..4096,
        layout.threads..layout.words,
        layout.words..layout.headers,
        layout.headers..layout.bucket_directory,
        layout.bucket_directory..layout.segments,
        layout.segments..layout.segments + layout.shape.segment_size * 2,
        layout.segments..sound.backed,
    ];
    let mut opened = 0;
    for seed in 1..=400u64 {
        let mut rng = Rng(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut bytes = sound.clone();
        let part = parts[(seed % parts.len() as u64) as usize].clone();
        for _ in 0..1 + rng.next() % 200 {
            let at = (part.start + (rng.next() as usize) % (part.end - part.start)) / 8;
            *bytes.word(at) = match rng.next() % 4 {
                0 => rng.next(),
                1 => *bytes.word(at) ^ 1 << (rng.next() % 64),
                2 => *bytes.word((part.start + (rng.next() as usize) % (part.end - part.start)) / 8),
                _ => u64::MAX >> (rng.next() % 64),
            };
        }
        // The superblock's own damage is found by its checksum; heal that, to get past it.
        if seed % 2 == 0 {
            heal_checksum(&mut bytes);
        }
        if let Some(region) = bytes.open() {
            opened += 1;
            use_it(&region, seed);
        }
    }
    println!("400 damaged regions, {opened} opened");
    assert!(opened > 200);
}

fn heal_checksum(bytes: &mut Bytes) {
    let memory = bytes.memory();
    let sb: &keyway_region::layout::superblock::Superblock = memory.get(0);
    sb.checksum.store(sb.checksum_now(), std::sync::atomic::Ordering::Relaxed);
}

#[test]
fn truncated_or_of_another_kind() {
    let mut bytes = filled();
    let whole = bytes.backed;
    for backed in [0, 1, 4095, 4096, 8192, whole / 2, whole - 1] {
        bytes.backed = backed;
        assert!(bytes.open().is_none(), "{backed} of {whole} bytes");
    }
    bytes.backed = whole;
    assert!(bytes.open().is_some());
    let say = |bytes: &mut Bytes| {
        Region::open(bytes.memory(), whole, Box::new(Alone))
            .err()
            .unwrap()
            .to_string()
    };
    for (word, value, wanted) in [
        (0, 0, "no Keyway region"),
        (1, 2, "format version 2, this program knows version 1"),
        (2, 1 << 40, "features that this program does not know"),
        (7, 99, "checksum"),
    ] {
        let kept = std::mem::replace(bytes.word(word), value);
        let said = say(&mut bytes);
        assert!(said.contains(wanted), "{said}");
        *bytes.word(word) = kept;
    }
}
