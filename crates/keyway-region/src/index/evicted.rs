//! Items that leave the index although no operation deletes them: how they are counted, and what a session remembers of them for
//! its caller.

use crate::index::lookup::Place;
use crate::layout::slot::Slot;
use crate::layout::stats::Counter;
use crate::log::ItemView;
use crate::session::Session;
use crate::verbs::Item;

/// Items that a session has evicted.
#[derive(Default)]
pub(crate) struct Evicted {
    wanted: bool,
    items: Vec<(Vec<u8>, Item)>,
}

/// Most evicted items that a session remembers until its caller takes them.
const EVICTED_MAX: usize = 1024;

impl Session {
    /// Switches on or off whether this session remembers the items that it evicts, each with its key, for
    /// [`Self::take_evicted`].
    pub fn remember_evicted(&mut self, wanted: bool) {
        *self.evicted.get_mut() = Evicted {
            wanted,
            items: Vec::new(),
        };
    }

    /// What was evicted since the last call, as far as it is remembered.
    pub fn take_evicted(&mut self) -> Vec<(Vec<u8>, Item)> {
        std::mem::take(&mut self.evicted.get_mut().items)
    }

    /// An item is being evicted before its time is over.
    fn note_evicted(&self, seen: &ItemView, slot: (Place, Slot), now: u32) {
        let Ok(mut evicted) = self.evicted.try_borrow_mut() else {
            return;
        };
        if !evicted.wanted || evicted.items.len() >= EVICTED_MAX {
            return;
        }
        let mut key = Vec::new();
        let has_key = self
            .region
            .memory
            .append_to(seen.at + seen.header.key_offset(), seen.header.key_len(), &mut key);
        if has_key {
            let item = self.region.facts(seen, slot, true, now);
            evicted.items.push((key, item));
        }
    }

    /// Counts an item that was evicted, or that was expired when its place was taken.
    pub(crate) fn count_gone(&self, seen: &ItemView, slot: (Place, Slot), present: bool, now: u32) {
        self.tell_gone(seen, slot, present, now);
        self.count_removed(self.region.memory.get(seen.at), seen);
    }

    /// The same while its segment is being emptied. It is not marked dead: so [`crate::Region::trace`] can tell it from what a request
    /// deleted, as long as the segment is not used again.
    pub(crate) fn count_emptied(&self, seen: &ItemView, slot: (Place, Slot), present: bool, now: u32) {
        self.tell_gone(seen, slot, present, now);
        self.count_left(seen);
    }

    fn tell_gone(&self, seen: &ItemView, slot: (Place, Slot), present: bool, now: u32) {
        let fetched = slot.1.is_fetched();
        if present {
            self.note_evicted(seen, slot, now);
            self.count(Counter::evictions, 1);
            self.count(Counter::evicted_unfetched, u64::from(!fetched));
        } else {
            self.count(Counter::reclaimed, 1);
            self.count(Counter::expired_unfetched, u64::from(!fetched && seen.header.is_expired(now)));
        }
    }
}
