//! Copies: an item that shall outlive its segment is written once more, at the log's head.

use crate::heap;
use crate::layout::item::Header;
use crate::layout::segment::{LifetimeClass, SegmentLife, Stream};
use crate::layout::session::UPKEEP;
use crate::layout::stats::Counter;
use crate::log::Appender;
use crate::log::Supply;
use crate::log::checksum::Cover;
use crate::log::extents::Extent;
use crate::log::item_view::ItemView;
use crate::mapped::Rules;

/// What became of an item to be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relocated {
    Yes,
    /// no free segment, or this process has no memory for the intermediate copy
    NoRoom,
    /// with a CAS unique of its own it would not fit into a segment; or it is corrupted
    Unfit,
    /// the slot changed meanwhile
    Changed,
}

/// An item that is copied to the log's head.
pub(crate) struct CopyOf<'s> {
    pub seen: &'s ItemView,
    /// of the copy, which has a CAS unique of its own
    pub header: Header,
}

impl CopyOf<'_> {
    /// The part that is copied unchanged, from the client flags to the value's end: its offset in the region, and its length in bytes.
    fn kept(&self) -> (usize, usize) {
        let header = self.seen.header;
        let start = header.client_flags_offset();
        (self.seen.at + start, header.value_offset() + header.value_len() - start)
    }
}

impl Appender {
    /// Copies an item unchanged to a place of its own in this pool, for a compaction or because the item stays for another
    /// round. Its CAS unique stays the same. Takes free segments only. The caller has claimed the item's segment. Afterwards the
    /// hazard pointer for the segment ([`UPKEEP`]) stands.
    pub(crate) fn write_copy(
        &self,
        supply: &dyn Supply,
        copy: &CopyOf<'_>,
        (pool, is_compaction): (usize, bool),
        epoch: u64,
        now: u32,
    ) -> Result<(usize, SegmentLife, usize), Relocated> {
        let verified = if self.claims().items.has_checksums() {
            Some(self.verified_copy(copy)?)
        } else {
            None
        };
        let (expiry, size) = (self.claims().items.until(copy.seen), copy.header.size());
        let class = self.class(expiry, now);
        let lifetime_class = if is_compaction && class == 0 {
            LifetimeClass::LongLived
        } else {
            LifetimeClass::Plain
        };
        let extent = self.extents.room_for_copy(
            supply,
            size,
            Stream {
                pool,
                class,
                lifetime_class,
            },
            epoch,
            now,
        );
        if let Some(extent) = &extent {
            let segment_at = self.claims().mapped.segment(extent.segment);
            match &verified {
                Some(bytes) => self.put_verified(copy.header, bytes, extent),
                None => self.put_copy(copy, segment_at + extent.next),
            }
            self.claims().thread.protect_written(UPKEEP, extent.segment);
            let room = self.extents.room_in(*extent);
            let tail_word = self.claims().mapped.word(segment_at + room.tail_offset());
            self.extents
                .commit(&room, tail_word, segment_at, size, expiry, Rules::of(&self.claims().mapped));
        }
        if let Some(bytes) = verified {
            self.scratch.set(bytes);
        }
        extent
            .map(|extent| (extent.segment, extent.life, extent.next))
            .ok_or(Relocated::NoRoom)
    }

    /// Copies from one place of the region to another. The lengths are those of the header that was read and validated once. The
    /// bytes are not judged: a reader of the copy does that, as it would at the old place.
    fn put_copy(&self, copy: &CopyOf<'_>, at: usize) {
        let memory = &self.claims().mapped.memory();
        let header = copy.header;
        self.write_header(at, header);
        memory.write(
            at + header.cas_offset(),
            &self.claims().items.cas_unique(copy.seen).to_le_bytes(),
        );
        let (from, len) = copy.kept();
        memory.copy(from, at + header.client_flags_offset(), len);
    }

    /// The copy in this process's own memory, where no other process changes it between its verification and its new checksum.
    #[cold]
    fn verified_copy(&self, copy: &CopyOf<'_>) -> Result<Vec<u8>, Relocated> {
        let (header, seen) = (copy.header, copy.seen);
        let mut bytes = self.scratch.take();
        bytes.clear();
        let (from, len) = copy.kept();
        let has_memory = heap::try_reserve(&mut bytes, header.size() + size_of::<u64>()) && {
            bytes.extend_from_slice(&header.0.to_le_bytes());
            bytes.truncate(header.cas_offset());
            bytes.extend_from_slice(&self.claims().items.cas_unique(seen).to_le_bytes());
            self.claims().mapped.memory().append_to(from, len, &mut bytes)
        };
        if !has_memory {
            self.scratch.set(bytes);
            return Err(Relocated::NoRoom);
        }
        bytes.resize(header.size(), 0);
        if !self.claims().items.is_copy_intact(seen, header, &bytes) {
            self.scratch.set(bytes);
            self.claims().thread.count(Counter::corrupt, 1);
            return Err(Relocated::Unfit);
        }
        Ok(bytes)
    }

    fn put_verified(&self, header: Header, bytes: &[u8], extent: &Extent) {
        let mapped = &*self.claims().mapped;
        mapped.memory().write(mapped.segment(extent.segment) + extent.next, bytes);
        let cover = Cover::of_copy(bytes, header, (extent.segment, extent.life, extent.next));
        self.claims().items.write_checksum_of_copy(&cover, bytes);
    }
}
