//! Decides which copies the hot set holds, and which are dropped when there is no room: CLOCK over a log of pages.
//!
//! Copies are written one after the other into a page; full pages wait in a queue. When pages are short, the clock hand takes the
//! first page of the queue. Copies that were served since its last visit are written again at the log's end, with one chance less;
//! the others are dropped. The page is not used again before every program run that may read it has ended ([`Store::rested`]). This is
//! necessary because a reader checks a copy by its sequence number, and that is at another place once the page is filled again. A copy is
//! only replaced in its own place by one that is not longer.
//!
//! The store remembers each stripe's word at the last check, and the copies in each stripe. So it knows which copies a change has made
//! stale, whichever process made the change ([`Store::voided`]).
//!
//! Nothing here knows the region: the caller passes copies and hashes.

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::copy::{COPY_LEN_MAX, ChangeCounts, HotCopy};
use crate::hot::{HotSet, PAGE_SIZE, Place, STRIPES, UNIT_SIZE, stripe_of};

/// Units of a page at which a copy can begin.
const UNITS: usize = (PAGE_SIZE - COPY_LEN_MAX) / UNIT_SIZE + 1;
/// Most chances that a copy can collect.
const CHANCES_MAX: u8 = 3;
/// At most this part of an emptied page is written again, so that emptying a page always gains room.
const SPARED_UNITS_MAX: usize = UNITS / 2;
/// Free pages that are kept for copies that are written again.
const FREE_KEPT: usize = 1;
/// The worth of a copy: which part of its lives ended after it was served, as an average that forgets ([`Entry::ends`]). A life is from when
/// a copy is made until a change makes it stale. All of them:
const WORTH_MAX: u8 = 255;
/// A change moves the worth by one part in so many.
const WORTH_WEIGHT: i16 = 8;
/// Of an item that is new here.
const WORTH_AT_FIRST: u8 = 180;
/// Below an eighth, copies are not renewed: a renewal costs about 1 µs, and an answer here saves 3 to 8 µs.
const WORTH_LEAST: u8 = 32;
/// From this on, an item that was not worth it before counts as any other.
const WORTH_GOOD: u8 = 64;
/// An item that is again and again not worth it gets a copy only at every 2nd, 4th, … and at last every 32nd time that it is offered.
const DOUBTS_MAX: u8 = 5;
/// One in this many pages is kept empty in advance.
const RESERVE_SHARE: usize = 32;
/// Pages emptied in one call; not more, because the caller has a lease to renew.
const EMPTIED_AT_ONCE: usize = 16;

/// A copy in a page.
#[derive(Clone, Copy, Debug)]
struct Entry {
    hash: u64,
    unit: usize,
    units: usize,
    chances: u8,
    /// the copy was served, as the sweep has seen
    was_served: bool,
    worth: u8,
    /// how often it was not worth renewing, and how often it will be offered before it gets a copy again
    doubts: u8,
    offers_left: u8,
}

/// What the hot set holds.
#[derive(Debug)]
pub struct Store {
    /// by page, in the order of their places
    entries: Vec<Vec<Entry>>,
    /// the page that is being filled, and its next free unit
    filling: Option<(usize, usize)>,
    full: VecDeque<usize>,
    resting: Vec<usize>,
    free: Vec<usize>,
    /// the page that is swept next
    sweep: usize,
    /// by stripe: its word at the last check
    words: Vec<u64>,
    /// by stripe: the hashes of its copies, except those that are not worth renewing
    members: Vec<Vec<u64>>,
    /// the stripe with which the next check begins
    look: usize,
}

/// The copies that changes have made stale since the last check.
#[derive(Debug, Default)]
pub struct Voided {
    /// hashes and keys of copies that are worth renewing
    pub keys: Vec<(u64, Vec<u8>)>,
    /// whether there was any change, also of items without a copy
    pub any: bool,
    /// whether the check ended early
    pub more: bool,
}

/// The result of putting a copy in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// it is in
    Done,
    /// no page is free: some wait for [`Store::rested`]
    NoRoom,
}

impl Store {
    /// An empty store with this many pages. The hot set's index must be empty too.
    pub fn new(pages: usize) -> Self {
        Self {
            entries: vec![Vec::new(); pages],
            filling: None,
            full: VecDeque::new(),
            resting: Vec::new(),
            free: (0..pages).rev().collect(),
            sweep: 0,
            words: vec![0; STRIPES],
            members: vec![Vec::new(); STRIPES],
            look: 0,
        }
    }

    /// Copies that it holds.
    #[cfg(test)]
    fn len(&self, hot: &HotSet<'_>) -> usize {
        (0..self.entries.len()).map(|page| self.live(hot, page).count()).sum()
    }

    /// Puts a copy in, replacing an older one of its key.
    pub fn put(&mut self, hot: &HotSet<'_>, hash: u64, copy: &HotCopy) -> Put {
        self.put_with(hash, hot, copy, 0, FREE_KEPT)
    }

    /// Puts a copy in, replacing an older one of its key, if this many pages stay free. `chances`: how often it is written again
    /// when its page is emptied.
    fn put_with(&mut self, hash: u64, hot: &HotSet<'_>, copy: &HotCopy, chances: u8, kept: usize) -> Put {
        let units = copy.size().div_ceil(UNIT_SIZE);
        if let Some(place) = hot.find(hash)
            && let Some(entry) = self.entry(place)
            && entry.hash == hash
            && entry.units >= units
        {
            hot.write(place, copy);
            self.is_member(hash, place);
            return Put::Done;
        }
        let Some(place) = self.room(units, kept) else {
            return Put::NoRoom;
        };
        hot.write(place, copy);
        self.entries[place.page].push(Entry {
            hash,
            unit: place.unit,
            units,
            chances,
            was_served: false,
            worth: WORTH_AT_FIRST,
            doubts: 0,
            offers_left: 0,
        });
        self.is_member(hash, place);
        if !hot.point(hash, place) {
            // The bucket is full: its least valuable copy is dropped.
            let chances = |place: &Place| {
                self.entries[place.page]
                    .iter()
                    .find(|entry| entry.unit == place.unit)
                    .map_or(0, |entry| entry.chances)
            };
            if let Some(victim) = hot.neighbours(hash).min_by_key(chances) {
                hot.forget_place(hash, victim);
                hot.point(hash, place);
                let other = self.entry(victim).map(|entry| entry.hash);
                other.into_iter().for_each(|other| self.is_gone(other));
            }
        }
        Put::Done
    }

    /// A place for a copy of this many units, with this many pages left free.
    fn room(&mut self, units: usize, kept: usize) -> Option<Place> {
        if let Some((page, unit)) = self.filling {
            if unit < UNITS {
                self.filling = Some((page, unit + units));
                return Some(Place { page, unit });
            }
            self.full.push_back(page);
            self.filling = None;
        }
        let page = if self.free.len() > kept {
            self.free.pop()?
        } else {
            return None;
        };
        self.filling = Some((page, units));
        Some(Place { page, unit: 0 })
    }

    /// Empties pages, if few are free. `still_good` says whether a copy is current; a copy that is not current is dropped. `told` gets the key
    /// of each copy that was served since its last check.
    pub fn make_room(&mut self, hot: &HotSet<'_>, still_good: impl Fn(u64, &HotCopy) -> bool, mut told: impl FnMut(&[u8])) {
        let reserve = (self.entries.len() / RESERVE_SHARE).max(FREE_KEPT);
        // Each emptied page may fill half a page again; pages that wait become free later.
        for _ in 0..EMPTIED_AT_ONCE {
            let is_enough = self.free.len() + self.resting.len() > reserve || self.free.is_empty();
            if is_enough || !self.empty_first(hot, &still_good, &mut told) {
                break;
            }
        }
    }

    fn empty_first(
        &mut self,
        hot: &HotSet<'_>,
        still_good: &impl Fn(u64, &HotCopy) -> bool,
        told: &mut impl FnMut(&[u8]),
    ) -> bool {
        let Some(page) = self.full.pop_front() else { return false };
        let entries = std::mem::take(&mut self.entries[page]);
        let mut spared = 0;
        for entry in entries {
            let place = Place { page, unit: entry.unit };
            if hot.find(entry.hash) != Some(place) {
                continue;
            }
            let mut chances = entry.chances;
            let copy = hot.read(place);
            if hot.take_mark(place) {
                chances = (chances + 1).min(CHANCES_MAX);
                hot.key(place).inspect(|key| told(key));
            }
            hot.forget(entry.hash);
            if let Some(copy) = copy
                && chances > 0
                && spared + entry.units <= SPARED_UNITS_MAX
                && still_good(entry.hash, &copy)
                && self.put_with(entry.hash, hot, &copy, chances - 1, 0) == Put::Done
            {
                spared += entry.units;
            } else {
                self.is_gone(entry.hash);
            }
        }
        self.resting.push(page);
        true
    }

    /// Whether emptied pages wait for [`Self::rested`] and are needed.
    pub fn needs_rest(&self) -> bool {
        !self.resting.is_empty() && self.free.len() <= (self.entries.len() / RESERVE_SHARE / 2).max(FREE_KEPT)
    }

    /// To be called when every program run that began before has ended: none reads the emptied pages any more.
    pub fn rested(&mut self) {
        self.free.append(&mut self.resting);
    }

    /// Checks the copies of the next `count` pages: those that were served since the last check gain a chance, and `told` gets their
    /// keys. Returns how many copies the program finds in these pages.
    pub fn sweep(&mut self, hot: &HotSet<'_>, count: usize, mut told: impl FnMut(&[u8])) -> usize {
        let mut found = 0;
        for _ in 0..count.min(self.entries.len()) {
            let page = self.sweep;
            self.sweep = (page + 1) % self.entries.len();
            for entry in &mut self.entries[page] {
                let place = Place { page, unit: entry.unit };
                found += usize::from(hot.find(entry.hash) == Some(place));
                if hot.take_mark(place) {
                    entry.was_given_out();
                    hot.key(place).inspect(|key| told(key));
                }
            }
        }
        found
    }

    /// Checks the stripes' words. Returns, of the copies that changes have made stale since the last check, the keys of those that are worth
    /// renewing. It returns not many more than `most`; the next check returns the rest. A copy that is not worth it is not checked again until
    /// it is put in again. `told` gets the key of each copy that was served since its last check.
    pub fn voided(&mut self, hot: &HotSet<'_>, most: usize, mut told: impl FnMut(&[u8])) -> Voided {
        let (mut voided, mut looked_at) = (Voided::default(), 0);
        for stripe in (self.look..STRIPES).chain(0..self.look) {
            if hot.stripes[stripe].load(Relaxed) == self.words[stripe] {
                continue;
            }
            let word = hot.stripes[stripe].load(Acquire);
            voided.any = true;
            if looked_at >= most {
                (self.look, voided.more) = (stripe, true);
                break;
            }
            // A change is in progress: the next check sees its end.
            if word >> 32 != word & 0xFFFF_FFFF {
                continue;
            }
            self.words[stripe] = word;
            let members = std::mem::take(&mut self.members[stripe]);
            looked_at += members.len();
            for hash in members {
                if Self::is_current(hot, hash) {
                    self.members[stripe].push(hash);
                } else if let Some(key) = self.key_if_asked_for(hot, hash, &mut told) {
                    self.members[stripe].push(hash);
                    voided.keys.push((hash, key));
                }
            }
        }
        voided
    }

    /// The key of this hash's copy, which has become stale, if it is worth renewing.
    fn key_if_asked_for(&mut self, hot: &HotSet<'_>, hash: u64, told: &mut impl FnMut(&[u8])) -> Option<Vec<u8>> {
        let place = hot.find(hash)?;
        let at = self.position(place)?;
        let entry = &mut self.entries[place.page][at];
        let was_given_out = hot.take_mark(place);
        if was_given_out {
            entry.was_given_out();
        }
        let is_worth_it = entry.ends();
        if !is_worth_it {
            // Its words are not checked from now on, and after 2^32 changes they would equal the stripe's again.
            hot.spoil(place);
        }
        if !was_given_out && !is_worth_it {
            return None;
        }
        let key = hot.key(place)?;
        if was_given_out {
            told(&key);
        }
        is_worth_it.then_some(key)
    }

    /// An item that clients ask for is offered: whether it should get a copy now. One whose copies become stale before they are served
    /// gets one less and less often.
    pub fn is_wanted(&mut self, hot: &HotSet<'_>, hash: u64) -> bool {
        let Some((place, at)) = hot.find(hash).and_then(|place| Some((place, self.position(place)?))) else {
            return true;
        };
        let entry = &mut self.entries[place.page][at];
        if entry.hash != hash || entry.offers_left == 0 {
            return true;
        }
        entry.offers_left -= 1;
        false
    }

    /// Whether the hot set has a copy for this hash, made with the present change words.
    pub fn is_current(hot: &HotSet<'_>, hash: u64) -> bool {
        let seen = hot.find(hash).map(|place| hot.seen(place));
        seen.is_some_and(|seen| is_now(hot, hash, seen))
    }

    fn entry(&self, place: Place) -> Option<&Entry> {
        self.position(place).map(|at| &self.entries[place.page][at])
    }

    fn position(&self, place: Place) -> Option<usize> {
        let entries = self.entries.get(place.page)?;
        entries.binary_search_by_key(&place.unit, |entry| entry.unit).ok()
    }

    /// Records that there is a copy for this hash at this place.
    fn is_member(&mut self, hash: u64, place: Place) {
        let members = &mut self.members[stripe_of(hash)];
        if members.contains(&hash) {
            return;
        }
        members.push(hash);
        // It was not worth renewing, and clients ask for it again.
        if let Some(at) = self.position(place) {
            let entry = &mut self.entries[place.page][at];
            entry.worth = entry.worth.max(WORTH_LEAST);
        }
    }

    /// Records that there is no copy for this hash any more.
    fn is_gone(&mut self, hash: u64) {
        let members = &mut self.members[stripe_of(hash)];
        if let Some(at) = members.iter().position(|member| *member == hash) {
            members.swap_remove(at);
        }
    }

    #[cfg(test)]
    fn live<'s>(&'s self, hot: &'s HotSet<'_>, page: usize) -> impl Iterator<Item = &'s Entry> {
        self.entries[page]
            .iter()
            .filter(move |entry| hot.find(entry.hash) == Some(Place { page, unit: entry.unit }))
    }
}

impl Entry {
    fn was_given_out(&mut self) {
        self.chances = (self.chances + 1).min(CHANCES_MAX);
        self.was_served = true;
    }

    /// A change has made the copy stale; whether it is worth renewing.
    fn ends(&mut self) -> bool {
        let target = if std::mem::take(&mut self.was_served) { WORTH_MAX } else { 0 };
        let worth = i16::from(self.worth);
        self.worth = u8::try_from(worth + (i16::from(target) - worth) / WORTH_WEIGHT).unwrap_or(WORTH_MAX);
        if self.worth >= WORTH_GOOD {
            self.doubts = 0;
        }
        if self.worth >= WORTH_LEAST {
            return true;
        }
        self.doubts = (self.doubts + 1).min(DOUBTS_MAX);
        self.offers_left = (1 << self.doubts) - 1;
        false
    }
}

/// Whether a copy has the present change words of its stripe and of the flush.
pub fn is_good(hot: &HotSet<'_>, hash: u64, copy: &HotCopy) -> bool {
    is_now(hot, hash, copy.seen())
}

fn is_now(hot: &HotSet<'_>, hash: u64, seen: ChangeCounts) -> bool {
    seen.stripe == hot.stripe(hash).load(Acquire) && seen.flush == hot.flush().load(Acquire)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::Item;
    use crate::hot::CONTROL_WORDS;
    use std::sync::atomic::AtomicU64;

    const PAGES: usize = 8;

    struct World([Vec<AtomicU64>; 4]);

    impl World {
        fn new(buckets: usize) -> Self {
            let zeroed = |words: usize| (0..words).map(|_| AtomicU64::new(0)).collect();
            Self([buckets * 8, PAGES * PAGE_SIZE / 8, STRIPES + 1, CONTROL_WORDS].map(zeroed))
        }

        fn hot(&self) -> HotSet<'_> {
            let [index, pages, stripes, control] = &self.0;
            HotSet {
                index,
                pages,
                stripes,
                control,
            }
        }
    }

    fn hash(number: u64) -> u64 {
        (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ number << 17
    }

    fn copy(number: u64, len: usize) -> HotCopy {
        let key = format!("key{number}").into_bytes();
        let item = Item {
            key: &key,
            flags: 0,
            cas: number,
            value: &vec![b'v'; len],
            expires_s: 0,
            flush_s: 0,
        };
        HotCopy::new(&item, ChangeCounts::default()).unwrap()
    }

    /// Serves a copy as the program does.
    fn give_out(hot: &HotSet<'_>, number: u64) -> bool {
        let Some(place) = hot.find(hash(number)) else { return false };
        let word = &hot.pages[(place.page * PAGE_SIZE + place.unit * UNIT_SIZE) / 8 + 3];
        word.fetch_or(1, Relaxed);
        assert_eq!(hot.key(place).unwrap(), format!("key{number}").as_bytes());
        true
    }

    fn put(store: &mut Store, hot: &HotSet<'_>, number: u64, len: usize, told: &mut Vec<Vec<u8>>) {
        let good = |_, copy: &HotCopy| is_good(hot, 0, copy);
        while store.put(hot, hash(number), &copy(number, len)) == Put::NoRoom {
            store.make_room(hot, good, |key| told.push(key.to_vec()));
            assert!(store.needs_rest());
            store.rested();
        }
    }

    #[test]
    fn what_is_given_out_stays_and_the_rest_makes_room() {
        let (world, mut told) = (World::new(4096), Vec::new());
        let (hot, mut store) = (world.hot(), Store::new(PAGES));
        for number in 0..20_000 {
            put(
                &mut store,
                &hot,
                number,
                100 + usize::try_from(number % 7).unwrap_or(0) * 90,
                &mut told,
            );
            let wanted = number % 50;
            if number >= 50 && !give_out(&hot, wanted) {
                assert!(number < 60, "{wanted} went, at {number}");
                put(&mut store, &hot, wanted, 100, &mut told);
            }
        }
        assert!(told.len() > 50, "hits are told: {}", told.len());
        let room = PAGES * UNITS / 3;
        assert!((room / 4..room * 2).contains(&store.len(&hot)), "{}", store.len(&hot));
    }

    #[test]
    fn a_copy_is_replaced_where_it_is_if_it_fits() {
        let world = World::new(64);
        let (hot, mut store) = (world.hot(), Store::new(PAGES));
        store.put(&hot, hash(1), &copy(1, 300));
        let first = hot.find(hash(1));
        store.put(&hot, hash(1), &copy(1, 10));
        assert_eq!((hot.find(hash(1)), store.len(&hot)), (first, 1));
        store.put(&hot, hash(1), &copy(1, 900));
        assert!(hot.find(hash(1)) != first && store.len(&hot) == 1);
    }

    #[test]
    fn a_full_bucket_gives_up_what_is_worth_least() {
        let world = World::new(1);
        let (hot, mut store) = (world.hot(), Store::new(PAGES));
        for number in 0..8 {
            store.put(&hot, hash(number), &copy(number, 10));
        }
        for number in (0..8).filter(|number| *number != 5) {
            give_out(&hot, number);
        }
        let mut told = 0;
        store.sweep(&hot, PAGES, |_| told += 1);
        assert_eq!(told, 7);
        store.put(&hot, hash(8), &copy(8, 10));
        assert!(hot.find(hash(5)).is_none() && hot.find(hash(8)).is_some() && store.len(&hot) == 8);
    }

    #[test]
    fn what_a_change_has_made_void_is_not_current_and_not_kept() {
        let (world, mut told) = (World::new(4096), Vec::new());
        let (hot, mut store) = (world.hot(), Store::new(PAGES));
        put(&mut store, &hot, 0, 10, &mut told);
        assert!(Store::is_current(&hot, hash(0)));
        hot.flush().store(1 << 32 | 1, Relaxed);
        assert!(!Store::is_current(&hot, hash(0)));
        for number in 1..20_000 {
            give_out(&hot, 0);
            put(&mut store, &hot, number, 1000, &mut told);
        }
        assert!(hot.find(hash(0)).is_none());
    }

    /// Counts a change of a stripe, finished or only begun.
    fn change(hot: &HotSet<'_>, number: u64, is_over: bool) {
        hot.stripe(hash(number))
            .fetch_add(if is_over { 1 << 32 | 1 } else { 1 }, Relaxed);
    }

    #[test]
    fn what_any_process_has_made_stale_is_reported_after_its_change_is_over() {
        let world = World::new(4096);
        let (hot, mut store) = (world.hot(), Store::new(PAGES));
        for number in 0..100 {
            store.put(&hot, hash(number), &copy(number, 10));
        }
        let look = |store: &mut Store, most| store.voided(&hot, most, |_| {});
        assert!(!look(&mut store, 9).any);
        change(&hot, 7, true);
        let voided = look(&mut store, 9);
        assert!(voided.any && voided.keys.contains(&(hash(7), b"key7".to_vec())), "{voided:?}");
        let together = |number: &u64| stripe_of(hash(*number)) == stripe_of(hash(7));
        assert_eq!(voided.keys.len(), (0..100).filter(together).count());
        assert!(!look(&mut store, 9).any, "a change is told once");
        change(&hot, 8, false);
        let voided = look(&mut store, 9);
        assert!(voided.any && voided.keys.is_empty());
        hot.stripe(hash(8)).fetch_add(1 << 32, Relaxed);
        assert!(look(&mut store, 9).keys.contains(&(hash(8), b"key8".to_vec())));
        // The next check returns what one check has no room for.
        (20..40).for_each(|number| change(&hot, number, true));
        let mut all = Vec::new();
        loop {
            let voided = look(&mut store, 3);
            if !voided.any {
                break;
            }
            assert!(voided.keys.len() < 8);
            all.extend(voided.keys);
        }
        assert!((20..40).all(|number| all.contains(&(hash(number), format!("key{number}").into_bytes()))));
    }

    #[test]
    fn what_no_client_asks_for_is_not_made_again_for_ever() {
        let world = World::new(4096);
        let (hot, mut store) = (world.hot(), Store::new(PAGES));
        let mut told = 0;
        // After how many of 20 changes the copy is renewed.
        let mut renewed = |store: &mut Store, is_asked_for: bool| {
            let mut count = 0;
            for _ in 0..20 {
                if is_asked_for {
                    give_out(&hot, 1);
                }
                change(&hot, 1, true);
                for (hash, key) in store.voided(&hot, 9, |_| told += 1).keys {
                    let stripe = hot.stripe(hash).load(Relaxed);
                    let item = Item {
                        key: &key,
                        flags: 0,
                        cas: 1,
                        value: b"new",
                        expires_s: 0,
                        flush_s: 0,
                    };
                    store.put(&hot, hash, &HotCopy::new(&item, ChangeCounts { stripe, flush: 0 }).unwrap());
                    count += 1;
                }
            }
            count
        };
        store.put(&hot, hash(1), &copy(1, 10));
        let at_first = renewed(&mut store, false);
        assert!((10..20).contains(&at_first), "{at_first}");
        store.put(&hot, hash(1), &copy(1, 10));
        assert_eq!(renewed(&mut store, true), 20);
        // It was served so often before that it takes some time.
        let known = renewed(&mut store, false);
        assert!((10..20).contains(&known), "{known}");
        assert_eq!(told, 20);
    }

    #[test]
    fn what_is_changed_far_more_often_than_it_is_asked_for_is_copied_less_and_less_often() {
        let world = World::new(64);
        let (hot, mut store) = (world.hot(), Store::new(PAGES));
        let current = |hot: &HotSet<'_>| {
            let stripe = hot.stripe(hash(1)).load(Relaxed);
            let item = Item {
                key: b"key1",
                flags: 0,
                cas: 1,
                value: b"new",
                expires_s: 0,
                flush_s: 0,
            };
            HotCopy::new(&item, ChangeCounts { stripe, flush: 0 }).unwrap()
        };
        // Offered in each round; of so many rounds, one has a copy that is served. How many copies are made in 4,000 of them.
        let made = |store: &mut Store, served_in: u64| {
            let mut made = 0;
            for round in 0..4000_u64 {
                if !Store::is_current(&hot, hash(1)) && store.is_wanted(&hot, hash(1)) {
                    store.put(&hot, hash(1), &current(&hot));
                    made += 1;
                }
                if ((round * 2_654_435_761_u64) >> 8).is_multiple_of(served_in) && Store::is_current(&hot, hash(1)) {
                    give_out(&hot, 1);
                }
                change(&hot, 1, true);
                for (hash, _) in store.voided(&hot, 9, |_| {}).keys {
                    store.put(&hot, hash, &current(&hot));
                    made += 1;
                }
            }
            made
        };
        let (never, seldom) = (made(&mut store, 5000), made(&mut store, 29));
        assert!(never < 200 && seldom < 1500, "{never}, {seldom}");
        let often = made(&mut store, 2);
        assert!(often > 3900, "it recovers: {often}");
    }

    #[test]
    fn what_was_not_worth_it_is_looked_at_again_when_it_is_put_in_again() {
        let world = World::new(64);
        let (hot, mut store) = (world.hot(), Store::new(PAGES));
        store.put(&hot, hash(1), &copy(1, 10));
        for _ in 0..20 {
            change(&hot, 1, true);
            store.voided(&hot, 9, |_| {});
        }
        assert!(store.members.iter().all(Vec::is_empty));
        // The words come round: the copy stays stale.
        for count in [0, 1, 20] {
            hot.stripe(hash(1)).store(count << 32 | count, Relaxed);
            assert!(!Store::is_current(&hot, hash(1)), "{count}");
        }
        store.put(&hot, hash(1), &copy(1, 10));
        give_out(&hot, 1);
        change(&hot, 1, true);
        assert_eq!(store.voided(&hot, 9, |_| {}).keys.len(), 1);
    }

    #[test]
    fn a_stripe_knows_the_copies_that_are_there() {
        let (world, mut told) = (World::new(64), Vec::new());
        let (hot, mut store) = (world.hot(), Store::new(PAGES));
        for number in 0..20_000 {
            put(&mut store, &hot, number, 200, &mut told);
        }
        let mut known: Vec<u64> = store.members.iter().flatten().copied().collect();
        let mut there: Vec<u64> = (0..20_000).map(hash).filter(|hash| hot.find(*hash).is_some()).collect();
        known.sort_unstable();
        there.sort_unstable();
        assert_eq!(known, there);
    }
}
