//! That bytes are moved whole, at every length and alignment, and that nothing outside the region is accessed.

use super::*;
use std::cell::RefCell;
#[cfg(feature = "observe")]
use std::collections::BTreeSet;

thread_local! {
    /// addresses that this thread has prefetched, while a test wants to know
    static ASKED: RefCell<Option<Vec<usize>>> = const { RefCell::new(None) };
}

pub fn note_asked(p: *const u8) {
    ASKED.with_borrow_mut(|asked| asked.iter_mut().for_each(|asked| asked.push(p.addr())));
}

/// The lines from `p` to `end`, and at least one.
pub fn note_lines(p: *const u8, end: *const u8) {
    (p.addr()..end.addr().max(p.addr() + 1))
        .step_by(super::CACHE_LINE)
        .for_each(|at| note_asked(p.with_addr(at)));
}

/// The cache lines of this memory that `what` prefetches, by their numbers.
#[cfg(feature = "observe")]
pub fn asked_by(memory: &Memory, what: impl FnOnce()) -> BTreeSet<usize> {
    ASKED.set(Some(Vec::new()));
    what();
    let asked = ASKED.take().unwrap_or_default();
    asked
        .iter()
        .map(|at| at.wrapping_sub(memory.base.addr().get()) / CACHE_LINE)
        .collect()
}

/// Private memory that acts as the mapping, aligned like one.
#[repr(align(4096))]
pub struct Page([u64; 528]);

/// Space for copies so long that nothing is prefetched before they write.
#[repr(align(4096))]
struct Pages([u64; 18_000]);

impl Page {
    pub fn new() -> Box<Self> {
        Box::new(Self([0; 528]))
    }

    pub fn memory(&mut self) -> Memory {
        let base = NonNull::new(self.0.as_mut_ptr().cast()).unwrap();
        // SAFETY: the page outlives the value in each test and is not touched meanwhile.
        unsafe { Memory::new(base, self.0.len() * 8) }
    }
}

/// This many bytes of zeros, like a mapping of pages; they live as long as the vector.
#[cfg(feature = "observe")]
pub fn private(len: usize) -> (Vec<u64>, Memory) {
    const PAGE: usize = 4096;
    let mut words = vec![0u64; (len + PAGE) / 8];
    let start = words.as_mut_ptr().cast::<u8>();
    let base = NonNull::new(start.wrapping_add(start.align_offset(PAGE))).unwrap();
    // SAFETY: `base` is less than a page after the vector's start, so `len` bytes of the vector follow, and they are
    // accessed only through this.
    (words, unsafe { Memory::new(base, len) })
}

/// Maps the same bytes once more, as another process does; the mapping lives as long as the first one's memory.
#[cfg(feature = "observe")]
pub fn again(memory: &Memory) -> Memory {
    // SAFETY: the promise that was made for the first one.
    unsafe { Memory::new(memory.base, memory.len) }
}

#[test]
fn what_is_written_is_read_back_at_every_length_and_alignment() {
    let mut page = Page::new();
    let m = page.memory();
    let src: Vec<u8> = (0..1200u32).map(|i| (i * 7 + 3).to_le_bytes()[0]).collect();
    for len in (0..70).chain([127, 128, 129, 250, 511, 512, 513, 1100]) {
        for offset in 0..17 {
            m.write(offset, &src[..len]);
            let mut out = vec![9];
            assert!(m.append_to(offset, len, &mut out));
            assert_eq!(out[1..], src[..len], "{len} bytes at {offset}");
            assert!(m.equals(offset, &src[..len]));
            for wrong in [0, len / 2, len.saturating_sub(1)] {
                let mut other = src[..len].to_vec();
                if let Some(b) = other.get_mut(wrong) {
                    *b ^= 0x10;
                    assert!(!m.equals(offset, &other), "{len} bytes at {offset}, byte {wrong} changed");
                }
            }
        }
    }
}

#[test]
fn what_is_long_is_written_whole_and_nothing_beside_it() {
    let mut pages = Box::new(Pages([0; 18_000]));
    let base = NonNull::new(pages.0.as_mut_ptr().cast()).unwrap();
    // SAFETY: the pages outlive the value and are not touched meanwhile.
    let m = unsafe { Memory::new(base, pages.0.len() * 8) };
    let src: Vec<u8> = (0..70_000u32).map(|i| (i * 7 + i / 251).to_le_bytes()[0] | 1).collect();
    for len in [512, 4_097, 8_191, 8_192, 16_383, 16_384, 16_385, 16_447, 32_768, 65_537] {
        for offset in [16, 17, 24, 31, 32, 60, 63, 64, 65] {
            let is_alone = |at: usize, what: &str| {
                let mut out = Vec::new();
                assert!(m.append_to(at, offset + len + 64, &mut out));
                assert!(
                    out[offset..offset + len] == src[offset..offset + len],
                    "{len} bytes {what} at {offset}"
                );
                let beside = out[..offset].iter().chain(&out[offset + len..]);
                assert!(
                    beside.eq(std::iter::repeat_n(&0, offset + 64)),
                    "beside {len} bytes {what} at {offset}"
                );
            };
            m.zero(0, m.len());
            m.write(offset, &src[offset..offset + len]);
            is_alone(0, "written");
            let half = m.len() / 2 / 8 * 8;
            m.copy(offset, half + offset, len);
            is_alone(half, "copied");
            // From another place in a line.
            m.zero(half, m.len() - half);
            m.write(half - 100 - len + 7, &src[offset..offset + len]);
            m.copy(half - 100 - len + 7, half + offset, len);
            is_alone(half, "copied from elsewhere");
        }
    }
}

#[test]
fn places_that_are_alike_modulo_a_page_are_copied_as_others_are() {
    let mut pages = Box::new(Pages([0; 18_000]));
    let base = NonNull::new(pages.0.as_mut_ptr().cast::<u8>()).unwrap();
    // SAFETY: the pages outlive the value and are not touched meanwhile.
    let m = unsafe { Memory::new(base, pages.0.len() * 8) };
    let src: Vec<u8> = (0..30_000u32).map(|i| (i * 7 + i / 251).to_le_bytes()[0] | 1).collect();
    // The region's pages begin at multiples of a page.
    let from = 4096 - src.as_ptr().addr() % 4096;
    for len in [512, 513, 600, 5_000, 16_384, 20_000] {
        for shift in [0, 1, 7, 8, 15, 16, 4095] {
            let bytes = &src[from..from + len];
            m.zero(0, m.len());
            m.write(4096 + shift, bytes);
            assert!(m.equals(4096 + shift, bytes), "{len} bytes, {shift} after, written");
            let mut out = vec![0; 40_000];
            let to = 4096 - out.as_ptr().addr() % 4096 + 4096;
            // The other way round: this time the private side is `shift` after the region's.
            m.write(8192, bytes);
            m.read(8192, &mut out[to + shift..to + shift + len]);
            assert!(
                out[to + shift..to + shift + len] == *bytes,
                "{len} bytes, {shift} after, read"
            );
            assert!(
                out[..to + shift]
                    .iter()
                    .chain(&out[to + shift + len..])
                    .all(|byte| *byte == 0)
            );
            m.copy(8192, 65_536 + shift, len);
            assert!(m.equals(65_536 + shift, bytes), "{len} bytes, {shift} after, copied");
            assert!(m.equals(65_536 + shift + len, &[0; 64]) && m.equals(65_536 - 64, &[0; 64]));
        }
    }
}

#[test]
fn a_line_finds_its_words() {
    let mut page = Page::new();
    let m = page.memory();
    for (i, word) in [5, 0x1_0000_0005, 7, u64::MAX, 5, 0, 1 << 63, 5].into_iter().enumerate() {
        m.get::<AtomicU64>(64 + i * 8).store(word, crate::atomics::Relaxed);
    }
    let line = m.line(64);
    assert_eq!(line.matches(u64::MAX, 5), 0b1001_0001);
    assert_eq!(line.matches(0xFFFF_FFFF, 5), 0b1001_0011);
    assert_eq!(line.matches(1 << 63, 1 << 63), 0b0100_1000);
    assert_eq!(line.matches(u64::MAX, 0), 0b0010_0000);
    assert!(line.has_any(1 << 40));
}

#[test]
#[should_panic(expected = "outside the region")]
fn an_access_beyond_the_end_is_refused() {
    Page::new().memory().get::<AtomicU64>(528 * 8);
}

#[test]
fn a_key_is_copied_whole_at_every_length_and_alignment() {
    let hasher = crate::hash::Hasher::new(7);
    let given: Vec<u8> = (0..300u32).map(|i| (i * 7 + 3).to_le_bytes()[0]).collect();
    for len in 1..=KEY_LEN_MAX {
        for offset in 0..17 {
            let given = &given[offset..offset + len];
            let (mut room, mut other) = (KeyRoom::new(), KeyRoom::new());
            let key = hasher.key(given, &mut room);
            assert_eq!(
                (key.bytes(), key.hash()),
                (given, hasher.hash(given)),
                "{len} bytes at {offset}"
            );
            assert_eq!(other.take(given), given);
        }
    }
}

#[test]
#[cfg(not(miri))]
fn a_key_that_changes_while_it_is_copied_has_the_hash_of_its_copy() {
    use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
    let hasher = crate::hash::Hasher::new(7);
    let shared: Vec<AtomicU8> = (0..KEY_LEN_MAX).map(|_| AtomicU8::new(b'A')).collect();
    let (is_over, mut changed) = (AtomicBool::new(false), 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for letter in (b'A'..=b'Z').cycle() {
                shared.iter().for_each(|byte| byte.store(letter, Relaxed));
                if is_over.load(Relaxed) {
                    return;
                }
            }
        });
        // Each length until it was seen to change while it was copied; one byte does not show that.
        for len in (2..=40).chain([63, 64, 65, 200, KEY_LEN_MAX]) {
            let mut torn = 0;
            for _ in 0..2_000_000 {
                // SAFETY: so many bytes can be read there; the copy under test is what reads them, by loads that the compiler does not see into.
                let given = unsafe { core::slice::from_raw_parts(shared.as_ptr().cast::<u8>(), len) };
                let mut room = KeyRoom::new();
                let key = hasher.key(given, &mut room);
                assert_eq!(key.hash(), hasher.hash(key.bytes()), "{len} bytes: {:?}", key.bytes());
                torn += u32::from(key.bytes().windows(2).any(|pair| pair[0] != pair[1]));
                if torn >= 20 {
                    break;
                }
            }
            changed += u32::from(torn > 0);
        }
        is_over.store(true, Relaxed);
    });
    assert!(changed > 20, "the key changed while it was copied at {changed} lengths only");
}
