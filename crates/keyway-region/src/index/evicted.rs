//! Items that leave the index although no operation deletes them: how they are counted, and what watchers see of them.

use crate::atomics::Relaxed;
use crate::index::Publisher;
use crate::index::lookup::Place;
use crate::layout::slot::Slot;
use crate::layout::stats::Counter;
use crate::layout::watch::Kind;
use crate::log::ItemView;
use crate::verbs::KEY_LEN_MAX;
use keyway_probes as probes;

impl Publisher {
    /// Tells watchers that an item was removed.
    #[cold]
    fn emit_gone(&self, seen: &ItemView, slot: (Place, Slot), present: bool, now: u32) {
        let kind = match present {
            true => Kind::Eviction,
            false if seen.header.is_expired(now) => Kind::Expiry,
            false => return self.emitter.end_removal(),
        };
        let mut bytes = [0; KEY_LEN_MAX];
        let Some(key) = bytes.get_mut(..seen.header.key_len()) else {
            return self.emitter.end_removal();
        };
        self.mapped().memory().read(seen.at + seen.header.key_offset(), key);
        let item = self.index.facts(seen, slot, true, now);
        let ttl_s = item.ttl_s.map_or(-1, i64::from);
        self.emitter
            .emit_removal(kind, item.fetched, (item.value_len, ttl_s, item.idle_s), item.cas, key);
    }

    /// Counts an item that was evicted, or that was expired when its place was taken.
    pub(crate) fn count_gone(&self, seen: &ItemView, slot: (Place, Slot), present: bool, now: u32) {
        self.count_loss(seen, slot, present, now);
        self.log.counts().count_removed(self.mapped().memory().get(seen.at), seen);
    }

    /// Counts an item that is removed because its segment is emptied. It is not marked dead: so [`crate::trace()`] can
    /// distinguish it from what a request deleted, as long as the segment is not used again.
    pub(crate) fn count_emptied(&self, seen: &ItemView, slot: (Place, Slot), present: bool, now: u32) {
        self.count_loss(seen, slot, present, now);
        self.log.counts().count_left(seen);
    }

    /// Many items in a row have the same age: the word is written once for them.
    fn note_idle(&self, idle_s: u32) {
        let word = &self.mapped().superblock().evicted_idle_s;
        if word.load(Relaxed) != u64::from(idle_s) {
            word.store(idle_s.into(), Relaxed);
        }
    }

    fn count_loss(&self, seen: &ItemView, slot: (Place, Slot), present: bool, now: u32) {
        let fetched = slot.1.is_fetched();
        if self.emitter.emits_removals() {
            self.emit_gone(seen, slot, present, now);
        }
        if present {
            let header = &seen.header;
            let key = self
                .mapped()
                .memory()
                .address(seen.at + header.key_offset(), header.key_len());
            probes::evict(key, header.key_len(), header.size(), fetched);
            self.thread().count(Counter::evictions, 1);
            self.note_idle(self.index.slots.idle_s(seen, slot.0, now));
            self.thread().count(Counter::evicted_unfetched, u64::from(!fetched));
        } else {
            self.thread().count(Counter::reclaimed, 1);
            self.thread()
                .count(Counter::expired_unfetched, u64::from(!fetched && seen.header.is_expired(now)));
        }
    }
}
