//! Inserting a key that is not in the index.
//!
//! An insert publishes in two steps: first a tentative word, which hides nothing and is on record; then, after a second look at
//! the key's buckets, the confirmed word. So two inserters of one key never both succeed.

use crate::atomics::{Relaxed, Release, SeqCst};
use crate::hash::{Key, choices, tag};
use crate::index::Publisher;
use crate::index::lookup::{Followed, Place};
use crate::index::slots::Slots;
use crate::layout::bucket::{SLOTS, Table};
use crate::layout::slot::Slot;
use crate::layout::stats::Counter;
use crate::log::{ATTEMPTS_MAX, Written};
use crate::mapped::Rules;
use keyway_probes as probes;

/// Where a key's item is to be put.
pub(super) struct Insert<'a, 'k> {
    pub key: &'a Key<'k>,
    /// the table word by which its buckets were searched
    pub table: Table,
    pub place: Place,
    /// the word in the slot: empty, or a victim's confirmed word
    pub over: Slot,
    /// the flush epoch when the attempt began
    pub epoch: u64,
    pub now: u32,
}

impl Publisher {
    /// Puts a written item into a slot that is empty, or over a victim's confirmed word.
    pub(super) fn insert(&self, insert: &Insert<'_, '_>, written: &Written, rules: Rules<false>) -> bool {
        let &Insert {
            key,
            table,
            place,
            mut over,
            epoch,
            now,
        } = insert;
        let slot = self.index.slots.slot(place.at);
        let mut evicted = None;
        if !over.is_empty() {
            match self.hold(slot, over) {
                Some(word) => over = word,
                None => return false,
            }
            match self.index.look(slot, over) {
                Followed::Got(seen) => evicted = Some(seen),
                Followed::Moved => return false,
                Followed::Corrupt => self.thread().count(Counter::corrupt, 1),
            }
        }
        self.announce_third(key, table, place);
        // Put on record before the word is in the slot: recovery aborts it if this thread dies here.
        let tentative = written.word.tentative();
        self.thread().pend(place.at, tentative);
        // SeqCst, as the loads of the rescan: of two inserters of one key at least one sees the other's tentative word.
        // PAIRS: twins: the load in the other inserter's `rescan`.
        let put = || slot.compare_exchange(over.0, tentative.0, SeqCst, Relaxed).is_ok();
        let won = if over.is_empty() {
            put()
        } else {
            self.emitter.stamp_removal();
            self.counting.counted_eviction(over, put)
        };
        if !won {
            self.emitter.end_removal();
            self.thread().settle();
            return false;
        }
        if let Some(seen) = evicted {
            let present = seen.is_present(epoch, now);
            self.count_gone(&seen, (place, over), present, now);
            self.free_replaced(&seen, None);
        } else {
            self.emitter.end_removal();
        }
        // First twins (tentative words of the same key), then the table word, then the epoch: the model's order.
        let confirmed = self.rescan(key, table, place)
            && self.directory.table() == table
            && self.index.flushes.epoch(now) == epoch
            && self.emitter.stamp_insert()
            // PUBLISH: the key is there. Before it no reader returns the entry, and any thread may abort it.
            && self.counting.counted(tentative, || {
                // PAIRS: item: the loads of slots, as in `swap_same`.
                let word = rules.dirty(written.word);
                let put = slot.compare_exchange(tentative.0, word.0, Release, Relaxed);
                put.map(|from| probes::publish(from, word.0)).is_ok()
            });
        if !confirmed {
            let _ = slot.compare_exchange(tentative.0, Slot::EMPTY.0, Relaxed, Relaxed);
        }
        self.thread().settle();
        if confirmed {
            if rules.is_durable() {
                self.index.slots.persist_word(place.at, rules.dirty(written.word));
            }
            Slots::set_hint((self.mapped(), &self.directory), place, now);
            self.thread().count(Counter::curr_items, 1);
            self.thread().count(Counter::bytes, written.size as u64);
            self.log.counts().count_items(self.thread().slot(), 1);
        }
        confirmed
    }

    /// Before an entry goes into a key's third bucket: from now on every thread searches third buckets too.
    #[inline]
    fn announce_third(&self, key: &Key<'_>, table: Table, place: Place) {
        let is_third = || !choices(key.hash).iter().any(|c| table.bucket(*c) == place.bucket);
        if !self.index.has_thirds() && is_third() {
            // PAIRS: third: the load in `Index::has_thirds`. Not written back in durable mode: the repair after a power failure sets it.
            self.mapped().superblock().thirds.store(1, SeqCst);
        }
    }

    /// Whether no other thread has, or can get, an entry for the key while this thread's tentative word stays in `mine`.
    fn rescan(&self, key: &Key<'_>, table: Table, mine: Place) -> bool {
        let Some(buckets) = self.index.buckets(key.hash, table) else {
            return false;
        };
        let wanted = tag(key.hash);
        'again: for _ in 0..ATTEMPTS_MAX {
            let mut before_mine = true;
            for (bucket, bucket_at) in buckets.iter() {
                for index in 0..SLOTS {
                    let place = Place::new(bucket, bucket_at, index);
                    if place.at == mine.at {
                        before_mine = false;
                        continue;
                    }
                    // PAIRS: twins: the other inserter's tentative word, in `insert`.
                    let word = Slot(self.index.slots.slot(place.at).load(SeqCst));
                    if word.is_frozen() || word == Slot::UNSET {
                        return false;
                    }
                    if word.is_empty() || word.tag() != wanted {
                        continue;
                    }
                    if word.is_dirty() {
                        // A removed twin must not come back to life beside this word: the next look makes sure.
                        return false;
                    }
                    let seen = match self.index.look(self.index.slots.slot(place.at), word) {
                        Followed::Got(seen) => seen,
                        Followed::Moved => continue 'again,
                        Followed::Corrupt => continue,
                    };
                    let ours = self.index.items.has_key(&seen, key.bytes);
                    if !self.index.items.still(&seen) {
                        continue 'again;
                    }
                    if !ours {
                        continue;
                    }
                    if !word.is_tentative() || before_mine {
                        return false;
                    }
                    self.index.slots.abort(place, word);
                    continue 'again;
                }
            }
            return true;
        }
        false
    }
}
