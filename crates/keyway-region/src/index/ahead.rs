//! Prefetching for several keys at once, so that a processor waits for their cache lines together and not for one key after the other.
//!
//! The keys go through three steps side by side: ask for the buckets; read them and ask for the items; read the items' headers and ask
//! for the rest of long items. The verbs come after that, unchanged, and find the lines in cache. Everything here is a hint: the verbs
//! rely on nothing that was read, so no rule of the protocol is needed, and a key that moves or changes meanwhile costs only time.
//!
//! What is read may be stale or scribbled. The words that are loaded are in places that a get loads too, by the same checks: buckets
//! that the directory names (`buckets_in`), the words of a segment that there is, and a header in a segment of the slot's generation
//! (`follow`). So no page is touched that a get would not touch, and none that was given back to the system; a segment that went out of
//! use just now keeps its pages for seconds. The other addresses are only prefetched, which never faults, whatever the address.
//!
//! With a gate, [`Region::ahead`] is called outside it: it follows the caller's pointers, and reads nothing of the region.
//! [`Region::prefetch`] is called inside it, and follows none.
//!
//! Never: writes, or answers anything.

use crate::hash::{choices, tag};
use crate::index::lookup::Led;
use crate::layout::bucket::SLOTS;
use crate::layout::slot::Slot;
use crate::region::Region;
use crate::verbs::KEY_LEN_MAX;

/// Keys that are prefetched together. Each has about six lines under way, and processors follow 16 to 48 misses at once; more keys
/// would displace one another's lines and translations before they are used.
pub const AHEAD_MAX: usize = 16;

/// Bytes of an item that are prefetched; the processor's own prefetcher is under way after so many.
const ITEM_AHEAD: usize = 1024;
/// From an item's start to the first line that [`Region::follow`] has not asked for, bytes, if the item begins with a line.
const ITEM_ASKED: usize = 3 * CACHE_LINE;
const CACHE_LINE: usize = 64;

/// Hashes of keys that are about to be used.
pub struct Ahead {
    hashes: [u64; AHEAD_MAX],
    len: usize,
}

/// Where a key may be.
#[derive(Clone, Copy, Default)]
struct Pair {
    tag: u64,
    /// numbers of its buckets
    numbers: [u64; 2],
    /// their offsets
    at: [usize; 2],
}

impl Region {
    /// The hashes of the first [`AHEAD_MAX`] keys. It reads nothing of the region.
    #[inline]
    pub fn ahead<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> Ahead {
        let mut ahead = Ahead {
            hashes: [0; AHEAD_MAX],
            len: 0,
        };
        for (hash, key) in ahead.hashes.iter_mut().zip(keys) {
            // A key of a wrong length is refused later.
            *hash = self.hash(key.get(..KEY_LEN_MAX).unwrap_or(key));
            ahead.len += 1;
        }
        ahead
    }

    /// Prefetches what verbs with these keys need first: buckets, items and hints. It changes nothing, whatever the keys are.
    pub fn prefetch(&self, ahead: &Ahead) {
        let mut pairs = [Pair::default(); AHEAD_MAX];
        let mut count = 0;
        let table = self.table();
        for (hash, pair) in ahead.hashes.iter().take(ahead.len).zip(&mut pairs) {
            let numbers = choices(*hash).map(|choice| table.bucket(choice));
            let Some(at) = self.buckets_in(self.memory.view(), numbers) else {
                // A damaged directory: the verbs find it too.
                return;
            };
            at.iter().for_each(|at| self.memory.prefetch::<1>(*at));
            (pair.tag, pair.numbers, pair.at) = (tag(*hash), numbers, at);
            count += 1;
        }
        let mut items = [None; AHEAD_MAX];
        for (pair, item) in pairs.iter().take(count).zip(&mut items) {
            *item = self.prefetch_item(pair);
        }
        for led in items.iter().take(count).flatten() {
            self.prefetch_rest(led);
        }
    }

    /// Asks for the item and the hint of the first word with the key's tag; that another word has it too is rare.
    #[inline(always)]
    fn prefetch_item(&self, pair: &Pair) -> Option<Led> {
        let lines = pair.at.map(|at| self.memory.line(at));
        let same = Slot::with_tag_in_pair(&lines, pair.tag);
        let index = same.trailing_zeros() as usize;
        let ([first, second], [a, b]) = (&lines, pair.numbers);
        let (line, bucket) = if index < SLOTS { (first, a) } else { (second, b) };
        // There is no word of this index if none has the tag: then an empty one is followed, which leads nowhere.
        let led = self.follow(Slot::of(line, if same == 0 { SLOTS } else { index % SLOTS }))?;
        if let Some(hint) = self.hint_at(bucket) {
            self.memory.prefetch::<1>(hint);
        }
        Some(led)
    }

    /// Asks for the item's lines that [`Self::follow`] has not asked for.
    #[inline(always)]
    fn prefetch_rest(&self, led: &Led) {
        let size = self.header_of(led).size().min(ITEM_AHEAD);
        for offset in (ITEM_ASKED..size).step_by(CACHE_LINE) {
            self.memory.prefetch::<1>(led.at + offset);
        }
        // The item may begin within a line, and then ends in one more.
        self.memory.prefetch::<1>(led.at + size);
    }
}
