//! What the region still knows of a key: its item, and what is left of earlier ones. Nothing is changed.
//!
//! An item that has left the index stays in its log segment until that segment is used again. If an operation deleted or replaced it, it is
//! marked dead. If its segment was emptied, which evicts what is in it, the segment is free or being emptied, and the item is not marked.
//! Other processes use the segments meanwhile: what was read counts only if a segment's generation is the same afterwards.

use crate::atomics::{Acquire, Relaxed, fence};
use crate::clock::seconds_of;
use crate::layout::item::{self, flag};
use crate::layout::segment::{EXTENT_HEADER_SIZE, ExtentWord, Kind, LeaseWord, SegmentLife, State, TailWord};
use crate::layout::slot::Slot;
use crate::log::ItemView;
use crate::region::Region;

/// What is left of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Left {
    /// where it is left
    pub whereabouts: Whereabouts,
    /// it was stored within these last seconds: its segment was opened then
    pub stored_within_s: u32,
    /// seconds since its time was over; `None`: it has no expiry, or there is time left
    pub expired_for_s: Option<u32>,
    /// it was stored before the last flush that is in force
    pub is_flushed: bool,
    /// bytes of its header, key and value; of a large value without the value
    pub size: usize,
    /// orders what is left of a key: the CAS unique, and then the segment's number
    order: (u64, u64),
}

/// How an item is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whereabouts {
    /// it is in the index: present, unless it has expired or was flushed
    InIndex,
    /// marked dead: a request deleted or replaced it, or a full bucket evicted it
    Dead,
    /// its segment was emptied, and it was not dead before
    Emptied,
    /// neither in the index nor marked, in a segment in use: it is on its way in or out, or a process died on it
    Lost,
}

/// What the region knows of a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Trace {
    /// what is left of its newest item
    pub newest: Option<Left>,
    /// items of the key that are left, the newest included
    pub left: usize,
    /// the ghost table has its fingerprint: it was evicted before any client read it (one in a hundred other keys has one, too)
    pub is_ghost: bool,
    /// no segment was ever used again: everything that was stored since the region was made is still in the log
    pub is_complete: bool,
}

/// Searches the index and all segments for what is left of a key. `now`: a tick.
pub fn trace(region: &Region, key: &[u8], now: u32) -> Trace {
    region.mapped().learn();
    let hash = region.mapped().hasher().hash(key);
    let mut trace = Trace {
        is_ghost: region.ghosts().has_ghost(hash),
        ..Trace::default()
    };
    let mut has_left = false;
    for segment in 0..region.mapped().segments() {
        let life = region.mapped().segment_life(segment);
        has_left |= life.generation > SegmentLife::FIRST.generation;
        trace_segment(region, segment, life, (key, hash), now, &mut trace);
    }
    trace.is_complete = !has_left;
    trace
}

/// Adds what one segment has of the key.
fn trace_segment(region: &Region, segment: usize, life: SegmentLife, (key, hash): (&[u8], u64), now: u32, trace: &mut Trace) {
    let (header, shape) = (region.mapped().header(segment), region.mapped().layout().shape);
    // PAIRS: open, large, owner: as in `Reclaimer::empty_step`.
    let state = State(header.state.load(Acquire));
    // A free segment has what its last generation left.
    let (generation, is_emptied) = match state.kind() {
        Some(Kind::Open) => (life.generation, false),
        Some(Kind::Retired | Kind::Claimed) => (life.generation, true),
        Some(Kind::Free) => match life.generation.checked_sub(1) {
            Some(generation) => (generation, true),
            None => return,
        },
        _ => return,
    };
    // PAIRS: leasing: the exchange in `Extents::lease_in`.
    let lease = LeaseWord(header.lease.load(Acquire));
    if !lease.is_of_generation(generation) || lease.cells() > shape.cells() {
        return;
    }
    let base = region.mapped().segment(segment);
    let sequence = header.sequence.load(Relaxed);
    let opened = header.opened.load(Relaxed);
    let epoch = region.flushes().epoch_unchanged(now);
    let mut found: Vec<Left> = Vec::new();
    for (first, end) in lease.extents() {
        let (start, end) = (first * shape.cell_size(), (end * shape.cell_size()).min(shape.segment_size));
        // PAIRS: extent: the store in `Extents::begin_extent`.
        if start >= end || ExtentWord(region.mapped().word(base + start).load(Acquire)).generation() != generation {
            continue;
        }
        // PAIRS: tail: the store in `Extents::commit`.
        let tail = TailWord(region.mapped().word(base + start + 8).load(Acquire)).tail().min(end);
        for seen in items_between(region, (segment, life), start + EXTENT_HEADER_SIZE, tail) {
            if !region.items().has_key(&seen, key) {
                continue;
            }
            let header = seen.header;
            let expiry = header.expiry();
            let whereabouts = match header.has(flag::DEAD) {
                true => Whereabouts::Dead,
                false if names(region, hash, segment, seen.offset) => Whereabouts::InIndex,
                false if is_emptied => Whereabouts::Emptied,
                false => Whereabouts::Lost,
            };
            let since = |tick: u32| u32::try_from(seconds_of(now).saturating_sub(seconds_of(tick))).unwrap_or(u32::MAX);
            found.push(Left {
                whereabouts,
                stored_within_s: since(opened),
                expired_for_s: (expiry != 0 && header.is_expired(now)).then(|| since(expiry)),
                is_flushed: !life.is_since(epoch),
                size: header.size(),
                order: (region.items().cas_unique(&seen), sequence),
            });
        }
    }
    // A free segment that was taken meanwhile is not free any more.
    if !is_still(region, segment, life, is_emptied.then_some(state)) {
        return;
    }
    trace.left += found.len();
    let newest = trace.newest.take().into_iter().chain(found);
    trace.newest = newest.max_by_key(|left| (left.whereabouts == Whereabouts::InIndex, left.order));
}

/// Whether a segment is still in this life, and has this state, if one is given.
fn is_still(region: &Region, segment: usize, life: SegmentLife, state: Option<State>) -> bool {
    // PAIRS: generation: as in `Items::is_still`.
    fence(Acquire);
    let is_same = region.mapped().segment_life(segment).generation == life.generation;
    // PAIRS: open, large, owner: as in `Reclaimer::empty_step`.
    let now = || State(region.mapped().header(segment).state.load(Acquire));
    is_same && state.is_none_or(|state| now() == state)
}

/// The items of a segment between these offsets, as their headers say.
fn items_between(
    region: &Region,
    (segment, life): (usize, SegmentLife),
    from: usize,
    to: usize,
) -> impl Iterator<Item = ItemView> {
    let base = region.mapped().segment(segment);
    let mut offset = from;
    std::iter::from_fn(move || {
        let header = (offset + item::SIZE_MIN <= to)
            .then(|| region.items().item_header(base + offset).validate(to - offset))
            .flatten()?;
        let seen = ItemView {
            segment,
            life,
            at: base + offset,
            offset,
            header,
        };
        offset += header.size();
        Some(seen)
    })
}

/// Whether the index leads to this place by this hash.
fn names(region: &Region, hash: u64, segment: usize, offset: usize) -> bool {
    let here = Slot::confirmed(0, 0, segment, offset);
    let buckets = region.index().buckets(hash, region.directory().table());
    buckets.is_some_and(|buckets| {
        buckets
            .iter()
            .any(|(_, at)| here.same_places(&region.mapped().memory().line(at)) != 0)
    })
}
