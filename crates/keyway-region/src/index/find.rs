//! Looking for a key: what is there, and where an item could go.
//!
//! [`Finder::glance`] is the look with which gets and changes begin, and which nearly always suffices: it knows what is common, and
//! gives up on anything else. [`Finder::scan`] is a writer's thorough look: it also meets frozen, dirty and tentative words, several
//! words with one tag, and third buckets.

use crate::atomics::{Acquire, AtomicU64};
use crate::directory::Directory;
use crate::hash::{Key, choices, tag};
use crate::index::Finder;
use crate::index::lookup::{Followed, Index, ItemAt, Pass, Place, frozen_or};
use crate::layout::bucket::{SLOTS, Table};
use crate::layout::item::{Header, LARGE};
use crate::layout::segment::SIZE_MAX;
use crate::layout::slot::Slot;
use crate::log::ItemView;
use crate::mapped::Mapped;
use crate::memory::{Line, View};
use crate::threads::Thread;

/// A word that very probably leads to the key's item.
#[derive(Clone, Copy)]
pub(super) struct Tagged<'r> {
    pub place: Place,
    pub slot: &'r AtomicU64,
    pub word: Slot,
    pub led: ItemAt,
}

impl<'r> Tagged<'r> {
    /// The item with this header, which [`Finder::header_of`] has read.
    #[inline(always)]
    #[allow(unsafe_code, reason = "what was found of the header")]
    pub fn here(self, header: Header) -> Here<'r> {
        // SAFETY: a value that ends in its segment is shorter than that.
        unsafe { core::hint::assert_unchecked(!header.is_large()) };
        let Tagged { place, slot, word, led } = self;
        let seen = ItemView {
            segment: led.segment,
            life: led.life,
            at: led.at,
            offset: led.offset,
            header,
        };
        Here { place, slot, word, seen }
    }
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
    /// that has no word is absent, unless the table word has moved; and an insert looks for frozen slots itself ([`Self::room_for`]).
    #[inline(always)]
    #[allow(unsafe_code, reason = "places that were compared with the layout; argued at each access")]
    pub(super) fn glance<'r>(&'r self, view: View<'r>, key: &Key<'_>) -> Option<Option<Tagged<'r>>> {
        let mapped = self.mapped();
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
            // A split may have moved the key between the two loads of the table word.
            return (!self.publisher.index.has_thirds() && Directory::is_table(superblock, table)).then_some(None);
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
        Some(Some(Tagged { place, slot, word, led }))
    }

    /// The header of the item to which a glance led, if it is the key's and has no segments of its own.
    #[inline(always)]
    #[allow(unsafe_code, reason = "a place that was compared with the layout")]
    pub(super) fn header_of(&self, view: View<'_>, key: &Key<'_>, tagged: &Tagged<'_>) -> Option<Header> {
        // The nine bits of generation in a slot wrap: it must still name the segment.
        // PAIRS: item: the publish of the word that is there now, if the segment was recycled.
        if Slot(tagged.slot.load(Acquire)) != tagged.word {
            return None;
        }
        let led = &tagged.led;
        let header = Index::header_of(view, led);
        let room = self.mapped().layout().shape.segment_size - led.offset;
        // No segment has room for the length that a value with segments of its own has in its header.
        const _: () = assert!(SIZE_MAX < LARGE);
        if header.key_len() != key.bytes.len() || header.end() > room {
            return None;
        }
        // SAFETY: the whole item is in its segment, which there is.
        let bytes = unsafe { view.window(led.at + header.key_offset(), key.bytes.len()) };
        bytes.equals(key.bytes).then_some(header)
    }

    /// Looks for the key: by a glance, and if that gives up by a scan.
    pub(super) fn find(&self, key: &Key<'_>) -> Scan<'_> {
        let view = self.mapped().memory().view();
        match self.glance(view, key) {
            Some(Some(tagged)) => match self.header_of(view, key, &tagged) {
                Some(header) => Scan::Here(tagged.here(header)),
                None => self.scan(key),
            },
            Some(None) => self.room_for(key, self.table.get(), None),
            None => self.scan(key),
        }
    }

    /// The thorough look: all slots of the key's buckets, and only then a result.
    #[inline(never)]
    fn scan(&self, key: &Key<'_>) -> Scan<'_> {
        let wanted = tag(key.hash);
        let mut tentative = None;
        let pass = self.publisher.index.pass(
            key.hash,
            |line| frozen_or(line, |line| Slot::with_tag(line, wanted)),
            |_, place, word| self.scan_word(key, (place, word), &mut tentative),
        );
        match pass {
            Pass::Done(scan) => scan,
            Pass::Absent(table) => self.room_for(key, table, tentative),
            Pass::Again => Scan::Again,
            Pass::Corrupt => Scan::Corrupt,
        }
    }

    /// Where an item of an absent key can go: the first empty slot of the emptier one of its buckets.
    pub(super) fn room_for(&self, key: &Key<'_>, table: Table, tentative: Option<(Place, Slot)>) -> Scan<'_> {
        let buckets = choices(key.hash).map(|choice| table.bucket(choice));
        let Some([a, b]) = self.publisher.directory.buckets_at(buckets) else {
            return Scan::Corrupt;
        };
        // The compare-and-swap of the insert decides whether the slot is still empty.
        let lines = [a, b].map(|at| self.mapped().memory().line(at));
        let pair = [(buckets[0], a), (buckets[1], b)];
        // The insert would meet it in its rescan, and give up.
        if let Some(frozen) = pair.iter().zip(&lines).find_map(|(bucket, line)| first_frozen(*bucket, line)) {
            return frozen;
        }
        match Place::emptiest(pair, &lines) {
            None => self.room_in_third(key, table, tentative, pair, lines),
            empty => Scan::Absent(Absent {
                table,
                tentative,
                empty,
                victim: None,
            }),
        }
    }

    /// The end of a scan, if a word with the key's tag, or a frozen one, gives one.
    fn scan_word(
        &self,
        key: &Key<'_>,
        (place, word): (Place, Slot),
        tentative: &mut Option<(Place, Slot)>,
    ) -> Option<Pass<Scan<'_>>> {
        let index = &self.publisher.index;
        if word.is_frozen() {
            return Some(Pass::Done(Scan::Frozen(place, word)));
        }
        if word.is_empty() {
            return None;
        }
        if word.is_dirty() {
            // What is decided on this word, or on its absence, requires that it is persistent.
            index.slots.persist_word(place.at, word);
            return Some(Pass::Again);
        }
        let slot = index.slots.slot(place.at);
        let seen = match index.look(slot, word) {
            Followed::Got(seen) => seen,
            Followed::Moved => return Some(Pass::Again),
            Followed::Corrupt => {
                self.publisher.drop_corrupt(place, word);
                return Some(Pass::Again);
            }
        };
        let ours = index.items.has_key(&seen, key.bytes);
        if ours && !word.is_tentative() {
            // The second look, after the hazard pointer, shows whether it was the item.
            return Some(Pass::Done(Scan::Here(Here { place, slot, word, seen })));
        }
        if !index.items.still(&seen) {
            return Some(Pass::Again);
        }
        if ours {
            *tentative = Some((place, word));
        }
        None
    }

    /// Both buckets are full: the first empty slot of the third one, or the least valuable word of all three.
    #[cold]
    #[inline(never)]
    fn room_in_third(
        &self,
        key: &Key<'_>,
        table: Table,
        tentative: Option<(Place, Slot)>,
        [first, second]: [(u64, usize); 2],
        [a, b]: [Line; 2],
    ) -> Scan<'_> {
        let Some(third) = self.publisher.index.third_bucket(key.hash, table) else {
            return Scan::Corrupt;
        };
        let line = self.mapped().memory().line(third.1);
        if let Some(frozen) = first_frozen(third, &line) {
            return frozen;
        }
        let free = Slot::empties(&line);
        let empty = (free != 0).then(|| Place::new(third.0, third.1, free.trailing_zeros() as usize));
        let victim = if empty.is_some() {
            None
        } else {
            least_worth([(first, &a), (second, &b), (third, &line)])
        };
        Scan::Absent(Absent {
            table,
            tentative,
            empty,
            victim,
        })
    }
}

/// The first frozen slot of a bucket, if it has any.
fn first_frozen<'r>((bucket, bucket_at): (u64, usize), line: &Line) -> Option<Scan<'r>> {
    let index = frozen_or(line, |_| 0).trailing_zeros() as usize;
    (index < SLOTS).then(|| Scan::Frozen(Place::new(bucket, bucket_at, index), Slot::of(line, index)))
}

/// The word of full buckets to replace: a tentative one, or the one with the lowest frequency.
#[cold]
fn least_worth(buckets: [((u64, usize), &Line); 3]) -> Option<(Place, Slot)> {
    let worth = |word: Slot| if word.is_tentative() { 0 } else { word.frequency() + 1 };
    buckets
        .into_iter()
        .flat_map(|((bucket, at), line)| (0..SLOTS).map(move |index| (Place::new(bucket, at, index), Slot::of(line, index))))
        .min_by_key(|(_, word)| worth(*word))
}
