//! Looking for a key on behalf of a writer: what is there, and where an item could go.
//!
//! [`Finder::glance`] is the look that nearly always suffices: it knows what is common, and gives up on anything else.
//! [`Finder::scan`] is the thorough look: it also meets frozen, dirty and tentative words, several words with one tag, and
//! third buckets.

use crate::atomics::{Acquire, AtomicU64};
use crate::directory::Directory;
use crate::hash::{Key, choices, tag};
use crate::index::Finder;
use crate::index::lookup::{Followed, Index, ItemAt, Place, has_thirds};
use crate::layout::bucket::{SLOTS, Table};
use crate::layout::item::LARGE;
use crate::layout::segment::SIZE_MAX;
use crate::layout::slot::Slot;
use crate::log::ItemView;
use crate::mapped::Mapped;
use crate::memory::Line;
use crate::threads::Thread;

/// The result of a glance.
pub(super) enum Glance<'r> {
    /// one confirmed word with the key's tag, and nothing else of interest
    Tagged(Tagged<'r>),
    /// no such word in these two buckets
    Absent(Table, [(u64, usize); 2]),
}

/// A word that very probably leads to the key's item.
#[derive(Clone, Copy)]
pub(super) struct Tagged<'r> {
    pub place: Place,
    pub slot: &'r AtomicU64,
    pub word: Slot,
    pub led: ItemAt,
}

/// The result of a scan.
pub(super) enum Scan<'r> {
    /// a confirmed word with the key
    Here(Here<'r>),
    Frozen(Place, Slot),
    Absent(Absent),
    Again,
    Corrupt,
}

/// The key's item, and the word that led there. It is made where it was found that there is the item's segment, and that the item
/// ends in it, as far as its header says.
#[derive(Clone, Copy)]
pub(super) struct Here<'r> {
    pub place: Place,
    pub slot: &'r AtomicU64,
    /// confirmed and not frozen
    pub word: Slot,
    pub seen: ItemView,
}

/// The key has no confirmed word: where to put one, and which word must go first.
pub(crate) struct Absent {
    /// the table word, the same during the whole look
    pub table: Table,
    pub tentative: Option<(Place, Slot)>,
    pub empty: Option<Place>,
    pub victim: Option<(Place, Slot)>,
}

impl Finder {
    /// The mapped bytes.
    #[inline(always)]
    pub(super) fn mapped(&self) -> &Mapped {
        self.publisher.log.mapped()
    }

    /// The thread's slot.
    #[inline(always)]
    pub(super) fn thread(&self) -> &Thread {
        self.publisher.log.thread()
    }

    /// Searches both buckets, even if the key is in the first: each is equally likely, and a processor predicts such a branch badly.
    /// `None`: it takes a [`Self::scan`].
    ///
    /// Frozen slots of other keys are no reason for a scan. A word that is not frozen is changed as if no split were under way; a key
    /// that has no word is absent, unless the table word has moved; and an insert takes no frozen slot for an empty one, and meets
    /// the frozen ones in its rescan.
    #[inline(always)]
    #[allow(unsafe_code, reason = "places that were compared with the layout; argued at each access")]
    pub(super) fn glance(&self, key: &Key<'_>) -> Option<Glance<'_>> {
        let mapped = self.mapped();
        let view = mapped.memory().view();
        let superblock = view.get(0);
        let table = self.publisher.directory.table_kept(superblock, &self.table);
        let [a, b] = choices(key.hash);
        let [a, b] = [table.bucket(a), table.bucket(b)];
        let [first, second] = self.publisher.directory.buckets_at([a, b])?;
        // SAFETY: buckets are 64 bytes that are mapped, at multiples of 64.
        let lines = unsafe { [view.line(first), view.line(second)] };
        let wanted = tag(key.hash);
        let same = Slot::with_tag_in_pair(&lines, wanted);
        if same == 0 {
            let pair = [(a, first), (b, second)];
            return (!has_thirds(superblock) && Directory::is_table(superblock, table)).then_some(Glance::Absent(table, pair));
        }
        if !same.is_power_of_two() {
            return None;
        }
        let index = same.trailing_zeros() as usize;
        let (bucket, at) = if index < SLOTS { (a, first) } else { (b, second) };
        let place = Place::new(bucket, at, index % SLOTS);
        // SAFETY: one of the bucket's words.
        let slot: &AtomicU64 = unsafe { view.at(place.at) };
        // PAIRS: item: the publish in `Publisher::swap_same` and in `insert`.
        let word = Slot(slot.load(Acquire));
        if !word.is_confirmed_with(wanted) {
            return None;
        }
        let led = Index::follow_known(mapped, view, word)?;
        Some(Glance::Tagged(Tagged { place, slot, word, led }))
    }

    /// The item to which a glance led, if it is the key's and has no segments of its own.
    #[inline(always)]
    #[allow(unsafe_code, reason = "a place that was compared with the layout")]
    pub(super) fn item_of<'r>(&self, key: &Key<'_>, tagged: Tagged<'r>) -> Option<Here<'r>> {
        let Tagged { place, slot, word, led } = tagged;
        let mapped = self.mapped();
        // The nine bits of generation in a slot wrap: it must still name the segment.
        // PAIRS: item: the publish of the word that is there now, if the segment was recycled.
        if Slot(slot.load(Acquire)) != word {
            return None;
        }
        let view = mapped.memory().view();
        let header = Index::header_of(view, &led);
        let room = mapped.layout().shape.segment_size - led.offset;
        // No segment has room for the length that a value with segments of its own has in its header.
        const _: () = assert!(SIZE_MAX < LARGE);
        if header.key_len() != key.bytes.len() || header.end() > room {
            return None;
        }
        // SAFETY: a value that ends in its segment is shorter than that.
        unsafe { core::hint::assert_unchecked(!header.is_large()) };
        // SAFETY: the whole item is in its segment, which there is.
        let bytes = unsafe { view.window(led.at + header.key_offset(), key.bytes.len()) };
        let seen = ItemView {
            segment: led.segment,
            life: led.life,
            at: led.at,
            offset: led.offset,
            header,
        };
        bytes.equals(key.bytes).then_some(Here { place, slot, word, seen })
    }

    /// First look: all slots of both buckets, and only then a result.
    pub(super) fn scan(&self, key: &Key<'_>) -> Scan<'_> {
        let mapped = self.mapped();
        let table = self.publisher.directory.table();
        let Some(buckets) = self.publisher.index.buckets(key.hash, table) else {
            return Scan::Corrupt;
        };
        let wanted = tag(key.hash);
        let mut tentative = None;
        let [first, second] = buckets.pair();
        mapped.memory().prefetch::<1>(second.1);
        let a = mapped.memory().line(first.1);
        if let Some(scan) = self.scan_line(&a, first, key, wanted, &mut tentative) {
            return scan;
        }
        let b = mapped.memory().line(second.1);
        if let Some(scan) = self.scan_line(&b, second, key, wanted, &mut tentative) {
            return scan;
        }
        for third in buckets.iter().skip(2) {
            let line = mapped.memory().line(third.1);
            if let Some(scan) = self.scan_line(&line, third, key, wanted, &mut tentative) {
                return scan;
            }
        }
        let lines = [a, b];
        let empty = Place::emptiest([first, second], &lines);
        if self.publisher.directory.table() != table {
            return Scan::Again;
        }
        if empty.is_none() {
            return self.scan_third(key, table, tentative, buckets.pair(), lines);
        }
        Scan::Absent(Absent {
            table,
            tentative,
            empty,
            victim: None,
        })
    }

    /// The result for a key, if a bucket's line gives one.
    fn scan_line(
        &self,
        line: &Line,
        (bucket, bucket_at): (u64, usize),
        key: &Key<'_>,
        wanted: u64,
        tentative: &mut Option<(Place, Slot)>,
    ) -> Option<Scan<'_>> {
        if Slot::any_frozen(line) {
            return Some(scan_frozen(line, bucket, bucket_at));
        }
        let mut same = Slot::with_tag(line, wanted);
        while same != 0 {
            let index = same.trailing_zeros() as usize;
            same &= same - 1;
            let place = Place::new(bucket, bucket_at, index);
            let word = Slot::of(line, index);
            if word.is_empty() {
                continue;
            }
            if word.is_dirty() {
                // What is decided on this word, or on its absence, requires that it is persistent.
                self.publisher.index.slots.persist_word(place.at, word);
                return Some(Scan::Again);
            }
            match self.publisher.index.look(self.publisher.index.slots.slot(place.at), word) {
                Followed::Moved => return Some(Scan::Again),
                Followed::Corrupt => {
                    self.publisher.drop_corrupt(place, word);
                    return Some(Scan::Again);
                }
                Followed::Got(seen) => {
                    let ours = self.publisher.index.items.has_key(&seen, key.bytes);
                    if ours && !word.is_tentative() {
                        // The second look, after the hazard pointer, shows whether it was the item.
                        let slot = self.publisher.index.slots.slot(place.at);
                        return Some(Scan::Here(Here { place, slot, word, seen }));
                    }
                    if !self.publisher.index.items.still(&seen) {
                        return Some(Scan::Again);
                    }
                    if ours {
                        *tentative = Some((place, word));
                    }
                }
            }
        }
        None
    }

    /// Both buckets are full: the first empty slot of the third one, or the least valuable word of all three.
    #[cold]
    #[inline(never)]
    fn scan_third(
        &self,
        key: &Key<'_>,
        table: Table,
        tentative: Option<(Place, Slot)>,
        pair: [(u64, usize); 2],
        [a, b]: [Line; 2],
    ) -> Scan<'_> {
        let Some(third) = self.publisher.index.third_bucket(key.hash, table) else {
            return Scan::Corrupt;
        };
        let (bucket, at) = third;
        let line = self.mapped().memory().line(at);
        if Slot::any_frozen(&line) {
            return scan_frozen(&line, bucket, at);
        }
        let free = Slot::empties(&line);
        let empty = (free != 0).then(|| Place::new(bucket, at, free.trailing_zeros() as usize));
        let victim = match empty {
            Some(_) => None,
            None => least_worth([pair[0], pair[1], third], [&a, &b, &line]),
        };
        Scan::Absent(Absent {
            table,
            tentative,
            empty,
            victim,
        })
    }
}

/// A bucket has a frozen slot: returns the first one.
#[cold]
fn scan_frozen<'r>(line: &Line, bucket: u64, bucket_at: usize) -> Scan<'r> {
    let frozen = line
        .0
        .iter()
        .map(|word| Slot(*word))
        .enumerate()
        .find(|(_, word)| word.is_frozen());
    frozen.map_or(Scan::Again, |(index, word)| {
        Scan::Frozen(Place::new(bucket, bucket_at, index), word)
    })
}

/// The word of full buckets to replace: a tentative one, or the one with the lowest frequency.
#[cold]
fn least_worth(buckets: [(u64, usize); 3], lines: [&Line; 3]) -> Option<(Place, Slot)> {
    let worth = |word: Slot| if word.is_tentative() { 0 } else { word.frequency() + 1 };
    buckets
        .into_iter()
        .zip(lines)
        .flat_map(|((bucket, at), line)| (0..SLOTS).map(move |index| (Place::new(bucket, at, index), Slot::of(line, index))))
        .min_by_key(|(_, word)| worth(*word))
}
