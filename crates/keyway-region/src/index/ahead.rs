//! Prefetching for several keys, so that a processor waits for their cache lines together and not for one key after the other.
//!
//! The keys go through three steps side by side: ask for the buckets; read them and ask for the items; read the items' headers and ask
//! for the rest of long items. The verbs come after that, unchanged, and find the lines in cache. Everything here is a hint: the verbs
//! rely on nothing that was read, so no rule of the protocol is needed, and a key that moves or changes meanwhile costs only time.
//!
//! What is read may be stale or scribbled. The words that are loaded are in places that a get loads too, by the same checks: buckets
//! that the directory names (`Directory::buckets_at`), the words of a segment that there is, and a header in a segment of the slot's generation
//! (`follow`). So no page is touched that a get would not touch, and none that was given back to the system; a segment that went out of
//! use just now keeps its pages for seconds. The other addresses are only prefetched, which never faults, whatever the address.
//!
//! With a gate, [`Index::ahead`] is called outside it: it follows the caller's pointers, and reads nothing of the region.
//! [`Index::prefetch`] is called inside it, and follows none.
//!
//! Never: writes, or answers anything.

#[cfg(all(test, feature = "observe"))]
mod late;

use crate::hash::{Key, choices, tag};
use crate::index::lookup::Index;
use crate::layout::bucket::{SLOTS, Table};
use crate::layout::slot::Slot;
use crate::memory::KeyRoom;
use core::num::NonZero;

/// Keys that are prefetched together. Each has about six lines under way, and processors follow 16 to 48 misses in parallel; more keys
/// would displace one another's lines and translations before they are used.
pub const AHEAD_MAX: usize = 16;

/// Bytes of an item that are prefetched; the processor's own prefetcher is under way after so many.
const ITEM_AHEAD: usize = 1024;
/// From an item's start to the first line that [`Index::follow`] has not asked for, bytes, if the item begins with a line.
const ITEM_ASKED: usize = 3 * CACHE_LINE;
const CACHE_LINE: usize = 64;

/// Hashes of keys that are about to be used.
pub struct Ahead {
    hashes: [u64; AHEAD_MAX],
    len: usize,
}

impl Index {
    /// The hashes of the first [`AHEAD_MAX`] keys. It reads nothing of the region.
    #[inline]
    pub fn ahead<'k>(&self, keys: impl Iterator<Item = &'k [u8]>) -> Ahead {
        let mut ahead = Ahead {
            hashes: [0; AHEAD_MAX],
            len: 0,
        };
        let mut room = KeyRoom::new();
        for (hash, key) in ahead.hashes.iter_mut().zip(keys) {
            // A key of a wrong length is refused later.
            if Key::has_len(key) {
                *hash = self.mapped.key(key, &mut room).hash();
            }
            ahead.len += 1;
        }
        ahead
    }

    /// Prefetches what verbs with these keys need first: buckets, items and hints. It changes nothing, whatever the keys are.
    pub fn prefetch(&self, ahead: &Ahead) {
        let hashes = ahead.hashes.get(..ahead.len).unwrap_or(&ahead.hashes);
        let table = self.directory.table();
        let mut buckets = [[0; 2]; AHEAD_MAX];
        for (hash, buckets) in hashes.iter().zip(&mut buckets) {
            let Some(at) = self.directory.buckets_at(choices(*hash).map(|choice| table.bucket(choice))) else {
                // A damaged directory: the verbs find it too.
                return;
            };
            *buckets = at;
            buckets.iter().for_each(|at| self.mapped.memory().prefetch::<1>(*at));
        }
        let mut items = [None; AHEAD_MAX];
        for ((hash, buckets), item) in hashes.iter().zip(buckets).zip(&mut items) {
            *item = self.prefetch_item(*hash, table, buckets);
        }
        for at in items.iter().take(hashes.len()).flatten() {
            self.prefetch_rest(at.get());
        }
    }

    /// Asks for the item and the hint of the first word with the key's tag; that another word has it too is rare. Returns where the
    /// item is.
    #[inline(always)]
    fn prefetch_item(&self, hash: u64, table: Table, buckets: [usize; 2]) -> Option<NonZero<usize>> {
        let lines = buckets.map(|at| self.mapped.memory().line(at));
        let same = Slot::with_tag_in_pair(&lines, tag(hash));
        if same == 0 {
            return None;
        }
        let index = same.trailing_zeros() as usize;
        let ([first, second], [a, b]) = (&lines, choices(hash));
        let (line, choice) = if index < SLOTS { (first, a) } else { (second, b) };
        let led = self.follow(Slot::of(line, index % SLOTS))?;
        if let Some(hint) = self.directory.hint_at(table.bucket(choice)) {
            self.mapped.memory().prefetch::<1>(hint);
        }
        NonZero::new(led.at)
    }

    /// Asks for the lines of an item that [`Self::follow`] has not asked for.
    #[inline(always)]
    fn prefetch_rest(&self, at: usize) {
        let size = self.items.item_header(at).size().min(ITEM_AHEAD);
        for offset in (ITEM_ASKED..size).step_by(CACHE_LINE) {
            self.mapped.memory().prefetch::<1>(at + offset);
        }
        // The item may begin within a line, and then ends in one more.
        self.mapped.memory().prefetch::<1>(at + size);
    }
}
