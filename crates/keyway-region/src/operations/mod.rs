//! The verbs: what get, store, delete, arithmetic, touch and flush mean, expressed as decisions on the present item.
//!
//! `now` is a tick of the region's clock ([`Clock::tick`](crate::Clock::tick)). Semantics: protocol.txt, by the section named at each verb.

pub(crate) mod arithmetic;
mod fetch;

use crate::clock::{Moment, expiry_at, seconds_of, ttl};
use crate::flushes::epoch_at_any_time;
use crate::hash::{Key, Keyed};
use crate::heap;
use crate::index::{Changed, Decide, Decision, FoundItem, Lookup, Old, Place, Slots};
use crate::layout::flight::Holder;
use crate::layout::item::{EXPIRED, Record, flag};
use crate::layout::slot::Slot;
use crate::layout::stats::Counter;
use crate::layout::watch::{Command, Kind, Status};
use crate::log::{Draft, Value, Written};
use crate::memory::KeyRoom;
use crate::reclaim::Shrinking;
use crate::session::Session;
use crate::sink::{PinnedValue, Sink, Unread};
use crate::verbs::{Delete, Deleted, Get, Item, Now, RELATIVE_EXPTIME_MAX, Store, StoreMode, Stored, WriteError};
use crate::watch::Done;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

pub use fetch::Fetches;

impl Session {
    /// The region's expiry for memcached's `exptime`.
    pub(crate) fn expiry(&self, exptime: i64, now: u32) -> u32 {
        expiry_at(match exptime {
            0 => return 0,
            i64::MIN..0 => return EXPIRED,
            1..=RELATIVE_EXPTIME_MAX => i64::try_from(seconds_of(now)).unwrap_or(i64::MAX).saturating_add(exptime),
            // The wall clock may show an earlier time than the region's.
            _ => exptime.saturating_sub(self.unix_at_zero_s),
        })
    }

    /// Call it before a verb with an exptime that is a Unix time ([`RELATIVE_EXPTIME_MAX`]): such a time is translated by the
    /// caller's wall clock, which says `now`. Without this call it is translated by the last note of the region's use before the
    /// session began.
    pub fn set_wall_clock(&mut self, now: Moment) {
        // To the nearest second: both clocks begin their seconds together, but they were read one after the other.
        let ahead = i128::try_from(now.unix.as_millis()).unwrap_or(0)
            - i128::try_from(self.region.clock().clock_at(now.boot).as_millis()).unwrap_or(0);
        self.unix_at_zero_s = i64::try_from((ahead + 500).div_euclid(1000)).unwrap_or(0);
    }

    /// Takes over the wall clock of another session of the caller.
    pub fn set_wall_clock_like(&mut self, other: &Self) {
        self.unix_at_zero_s = other.unix_at_zero_s;
    }
}

/// The decision of a plain set: this item, whatever is there.
struct Put<'v>(Draft<'v>);

impl<'v> Decide<'v> for Put<'v> {
    const LOOKS: bool = false;

    #[inline(always)]
    fn decide(&mut self, _: Option<&Old<'_>>, _: &mut Vec<u8>) -> Decision<'v> {
        Decision::Put(self.0)
    }

    #[inline(always)]
    fn ahead(&self) -> Option<&Draft<'v>> {
        Some(&self.0)
    }
}

/// Why a store stores nothing, and how it is counted.
struct Kept {
    answer: Stored,
    error: Option<WriteError>,
    counter: Option<Counter>,
}

impl Default for Kept {
    fn default() -> Self {
        Self {
            answer: Stored::NotStored,
            error: None,
            counter: None,
        }
    }
}

/// The decision of a plain delete.
struct Remove;

impl Decide<'static> for Remove {
    #[inline(always)]
    fn decide(&mut self, _: Option<&Old<'_>>, _: &mut Vec<u8>) -> Decision<'static> {
        Decision::Remove
    }
}

impl Session {
    /// Get ("Retrieval command", "Get And Touch", "Meta Get"). The sink takes the item's properties and, if it is asked for, its
    /// value. It may begin again, after it was cut back. A miss leaves a vector as it was, and leaves garbage in a caller's
    /// memory. If [`Sink::PINS`], a value too long for [`Get::at_most`] is pinned in its place; it is copied instead in a region
    /// with checksums, which protect copies only, and if it has segments of its own.
    ///
    /// # Errors
    ///
    /// A bad key; no memory in this process for a copy of the value; and, if `how` requests a change, those of a write.
    #[inline]
    pub fn get<S: Sink>(
        &mut self,
        key: impl Keyed,
        how: &Get,
        mut now: impl Now,
        sink: &mut S,
    ) -> Result<Option<Item>, WriteError> {
        let mut room = KeyRoom::new();
        // Once for all attempts: the sink may write to the memory that the caller's key is in.
        let key = self.key(key, &mut room)?;
        if self.has_fast_path()
            && let Some(found) = self.get_fast(key, how, &mut now, sink, |item| item)
        {
            return Ok(found);
        }
        match self.get_watched(key, how, &mut now, sink) {
            Some(found) => Ok(found),
            None => self.get_slow(key, how, now.tick(), sink),
        }
    }

    /// Whether [`Self::get_fast`] may be called: always, or never.
    pub fn has_fast_path(&self) -> bool {
        self.mapped().is_plain()
    }

    /// [`Self::get`] of the common case, compiled into the caller, for one that needs only those of the item's properties that `hit`
    /// returns: it runs when the region has been left. `None`: nothing is known, nothing was counted, and the sink is as long as before;
    /// [`Self::get_slow`] knows more.
    #[inline(always)]
    pub fn get_fast<S: Sink, R>(
        &mut self,
        key: Key<'_>,
        how: &Get,
        now: impl Now,
        sink: &mut S,
        hit: impl FnOnce(Item) -> R,
    ) -> Option<Option<R>> {
        self.get_and_leave(key, how, now, sink, || (), hit)
    }

    /// [`Self::get_fast`] for a caller that ends with `leave`: it runs before `hit`, and before each other end. A piece of code
    /// that all ends have in common would make a processor wait for the result.
    #[inline(always)]
    pub fn get_and_leave<S: Sink, R>(
        &mut self,
        key: Key<'_>,
        how: &Get,
        now: impl Now,
        sink: &mut S,
        leave: impl Fn(),
        hit: impl FnOnce(Item) -> R,
    ) -> Option<Option<R>> {
        let view = self.mapped().memory().view();
        let epoch = epoch_at_any_time(view.get(0)).filter(|_| how.is_plain());
        let Some(epoch) = epoch else {
            leave();
            return None;
        };
        let hit = |item| {
            leave();
            hit(item)
        };
        let found = self.index().finder().find_fast((view, epoch), &key, how, now, sink, hit);
        let Some(found) = found else {
            leave();
            return None;
        };
        if found.is_none() {
            self.thread().count(Counter::get_misses, 1);
            leave();
        }
        Some(found)
    }

    /// [`Self::get_fast`] while events are watched, for which that knows nothing. A function of its own, so that a sink stays in
    /// registers where no event is watched.
    #[cold]
    #[inline(never)]
    pub fn get_watched<S: Sink>(&mut self, key: Key<'_>, how: &Get, now: impl Now, sink: &mut S) -> Option<Option<Item>> {
        if !how.is_plain() || !self.mapped().is_plain() {
            return None;
        }
        let epoch = self.region.flushes().epoch_if_watched()?;
        let found = self
            .index()
            .finder()
            .find_fast((self.mapped().memory().view(), epoch), &key, how, now, sink, |item| item)?;
        let status = match found {
            Some(_) => Status::Found,
            None => {
                self.thread().count(Counter::get_misses, 1);
                Status::NotFound
            }
        };
        let (size, cas) = found.map_or((0, 0), |item| (item.value_len, item.cas));
        self.emitter().emit_fetch(key.bytes, status, size, cas);
        Some(found)
    }

    /// Slow path of [`Self::get`]: any key, without an attempt by the fast path.
    ///
    /// # Errors
    ///
    /// No memory for a copy of the value; and, if `how` requests a change, the errors of a write.
    #[inline]
    pub fn get_slow<S: Sink>(&mut self, key: Key<'_>, how: &Get, now: u32, sink: &mut S) -> Result<Option<Item>, WriteError> {
        if self.region.items().has_checksums() {
            self.get_verified::<true, _>((key.bytes, key.hash), how, now, sink)
        } else {
            self.get_verified::<false, _>((key.bytes, key.hash), how, now, sink)
        }
    }

    /// The slow path of a get, in a region with (`VERIFIED`) or without checksums.
    #[inline(never)]
    fn get_verified<const VERIFIED: bool, S: Sink>(
        &self,
        (bytes, hash): (&[u8], u64),
        how: &Get,
        now: u32,
        sink: &mut S,
    ) -> Result<Option<Item>, WriteError> {
        let key = &Key { bytes, hash };
        // A pinned value is not verified.
        let lends = S::PINS && !VERIFIED;
        let copying = Get { at_most: None, ..*how };
        let how = if S::PINS && VERIFIED { &copying } else { how };
        let start = sink.len();
        if how.exptime.is_none() {
            let mut hit = FoundItem::default();
            let found = self.region.index().get::<VERIFIED, _>(key, how, now, sink, &mut hit);
            match found {
                Lookup::Hit => {
                    let FoundItem { item, place, word } = hit;
                    // Whoever has won may have ended: the slow path sees that.
                    if !(how.wins(&item, item.ttl_s) || item.win_sent && may_win(how, &item)) {
                        self.thread().count(Counter::get_hits, 1);
                        if !how.no_bump {
                            Slots::bump((self.mapped(), self.region.directory()), place, word, now);
                        }
                        if lends && how.at_most.is_some_and(|most| item.value_len > most) {
                            let wanted = how.unless_cas.is_none_or(|cas| cas != item.cas) && how.value;
                            if wanted && !self.pin_value(key, item.value_len, (place, word), sink) {
                                sink.truncate(start);
                                return self.copy_slow(key, &copying, now, sink);
                            }
                        }
                        self.emitter().emit_fetch(key.bytes, Status::Found, item.value_len, item.cas);
                        return Ok(Some(item));
                    }
                    sink.truncate(start);
                }
                _ => {
                    self.count_missed(key.bytes, found)?;
                    let is_absent = matches!(found, Lookup::Miss | Lookup::Expired | Lookup::Flushed);
                    if how.vivify.is_none() || !is_absent {
                        let status = if matches!(found, Lookup::Expired) {
                            Status::Expired
                        } else {
                            Status::NotFound
                        };
                        self.emitter().emit_fetch(key.bytes, status, 0, 0);
                        return Ok(None);
                    }
                    return self.change_by_get(key, how, now, sink);
                }
            }
        }
        let item = self.change_by_get(key, how, now, sink)?;
        // memcached counts a get that touches as a touch.
        self.thread().count(
            match (how.exptime, &item) {
                (None, Some(_)) => Counter::get_hits,
                (None, None) => Counter::get_misses,
                (Some(_), Some(_)) => Counter::touch_hits,
                (Some(_), None) => Counter::touch_misses,
            },
            1,
        );
        Ok(item)
    }

    /// Counts a get that found nothing, or nothing that it could copy, with the reason.
    #[inline(never)]
    fn count_missed(&self, key: &[u8], found: Lookup) -> Result<(), WriteError> {
        self.thread().count(Counter::get_misses, 1);
        match found {
            Lookup::Damaged { place, word } => self.index().publisher().remove_damaged(key, place, word),
            Lookup::Corrupt => self.thread().count(Counter::corrupt, 1),
            Lookup::Expired => self.thread().count(Counter::get_expired, 1),
            Lookup::Flushed => self.thread().count(Counter::get_flushed, 1),
            Lookup::NoMemory { len } => return Err(WriteError::NoMemory { len }),
            Lookup::Miss | Lookup::Hit => {}
        }
        Ok(())
    }

    /// Gives the value of the item to which this word leads to the caller, in place. No recycler gives its segment a new
    /// generation meanwhile, so its bytes stay the same, whatever becomes of the item. `false`: the word has changed, or the
    /// value does not have this length in one piece, or the session is fenced.
    #[cold]
    fn pin_value(&self, key: &Key<'_>, len: usize, (place, word): (Place, Slot), sink: &mut impl Sink) -> bool {
        // A fenced session may have given its thread slot back without finding another one. It still reads, but the slot's hazard
        // pointers are those of the next tenant.
        if self.is_fenced() {
            return false;
        }
        let region = &*self.region;
        let mapped = self.mapped();
        // Its length must be as said before: the word's nine bits of generation may have wrapped.
        let seen = self
            .index()
            .publisher()
            .hold_item(place, word)
            .filter(|seen| seen.header.value_len() == len && !seen.header.is_large())
            .filter(|seen| region.items().has_key(seen, key.bytes) && region.items().still(seen));
        if let Some(seen) = &seen {
            let lent = PinnedValue {
                memory: mapped.memory(),
                at: seen.at + seen.header.value_offset(),
                len: seen.header.value_len(),
            };
            sink.pin(&lent);
        }
        self.thread().end_operation();
        seen.is_some()
    }

    /// Copies the value of a hit that could not be given in place.
    #[cold]
    fn copy_slow(&self, key: &Key<'_>, how: &Get, now: u32, sink: &mut impl Sink) -> Result<Option<Item>, WriteError> {
        let mut hit = FoundItem::default();
        match self.region.index().get::<false, _>(key, how, now, sink, &mut hit) {
            Lookup::Hit => Ok(Some(hit.item)),
            Lookup::NoMemory { len } => Err(WriteError::NoMemory { len }),
            // The item was removed between the two looks.
            _ => Ok(None),
        }
    }

    /// A get that changes the item: touches it, wins it, or creates it. Watchers see it.
    fn change_by_get(&self, key: &Key<'_>, how: &Get, now: u32, sink: &mut impl Sink) -> Result<Option<Item>, WriteError> {
        let start = sink.len();
        let (mut answer, mut panic) = (None, None);
        let changed = self.index().change(
            self.reclaimer(),
            key,
            now,
            &mut fetch::OfFetch(&mut |old, built| {
                // The sink may call code of the caller's. If that panics, the change ends first.
                let decided = catch_unwind(AssertUnwindSafe(|| {
                    sink.truncate(start);
                    let decision;
                    (answer, decision) = match old {
                        Some(old) if old.is_for_all(now) => self.get_and_change(old, how, now, sink, built),
                        old => self.get_and_create(old, how, now),
                    };
                    decision
                }));
                decided.unwrap_or_else(|caught| {
                    panic = Some(caught);
                    Decision::Keep
                })
            }),
        );
        if let Some(panic) = panic {
            sink.truncate(start);
            resume_unwind(panic);
        }
        if changed.is_err() {
            sink.truncate(start);
        }
        let written = match changed {
            Ok((Changed::Put, written)) => Some(written),
            _ => None,
        };
        if let (Some(written), Some(item)) = (&written, &mut answer) {
            if item.cas == 0 {
                // Created here: its details are known only now.
                item.cas = written.cas;
                item.size = written.size;
                sink.begin(item);
                self.thread().count(Counter::total_items, 1);
            }
            self.mark_fetched(key, now);
        }
        if self.emitter().is_watched() {
            self.emit_change_by_get(key.bytes, answer.filter(|_| written.is_some()), how, now);
        }
        changed.map(|_| answer)
    }

    /// Emits what a get has made of an item, if it has changed it.
    fn emit_change_by_get(&self, key: &[u8], changed: Option<Item>, how: &Get, now: u32) {
        let done = changed.map(|item| Done {
            kind: Kind::Update,
            command: if how.exptime.is_some() {
                Command::Touch
            } else {
                Command::Mark
            },
            status: Status::Stored,
            size: item.value_len,
            ttl_s: how.exptime.or(how.vivify).map_or(0, |exptime| self.ttl_of(exptime, now)),
            cas: item.cas,
        });
        self.emitter().emit_change(key, done);
    }

    /// What a get answers and makes of a key without an item, or with one that only fetches see.
    fn get_and_create(&self, old: Option<&Old<'_>>, how: &Get, now: u32) -> (Option<Item>, Decision<'static>) {
        let Some(exptime) = how.vivify else {
            return (None, Decision::Keep);
        };
        let expiry = self.expiry(exptime, now);
        // The flight of a fetch goes on, in the item that all see from now on.
        let flight = old.and_then(|old| Some((Holder(old.record()?.holder), old.item().cas)));
        let flight = flight.filter(|(holder, _)| self.region.flights().is_held(*holder));
        let holder = flight.map_or(self.holder().by_get(), |(holder, _)| holder);
        let item = Item {
            win: flight.is_none(),
            win_sent: flight.is_some(),
            ttl_s: ttl(expiry, now),
            opaque_key: how.opaque_key,
            ..Item::default()
        };
        let binary = if how.opaque_key { flag::OPAQUE_KEY } else { 0 };
        let draft = Draft {
            marks: binary,
            record: Some(Record {
                holder: holder.of_empty().0,
                ..Record::default()
            }),
            client_flags: 0,
            cas: flight.map_or(how.new_cas, |(_, cas)| Some(cas)),
            expiry,
            value: Value::Built,
        };
        let decision = if flight.is_some() {
            Decision::Replace(draft)
        } else {
            Decision::Put(draft)
        };
        (Some(item), decision)
    }

    /// What a get answers and makes of an item that it may have to touch or to mark.
    fn get_and_change(
        &self,
        old: &Old<'_>,
        how: &Get,
        now: u32,
        sink: &mut impl Sink,
        built: &mut Vec<u8>,
    ) -> (Option<Item>, Decision<'static>) {
        let mut item = old.item();
        let expiry = how.exptime.map_or(old.expiry(), |exptime| self.expiry(exptime, now));
        let ttl_before = std::mem::replace(&mut item.ttl_s, ttl(expiry, now));
        let holder = old.record().map_or(Holder::NONE, |record| Holder(record.holder));
        item.win_sent = self.region.flights().is_held(holder);
        let is_left_empty = holder.is_of_empty() && !item.win_sent && how.vivify.is_some();
        item.win = is_left_empty || how.wins(&item, if how.recache_after_touch { item.ttl_s } else { ttl_before });
        let has_room = sink.begin(&item);
        if has_room
            && how.value
            && how.unless_cas.is_none_or(|cas| cas != item.cas)
            && let Err(unread) = old.append_value(sink)
        {
            return (None, Decision::Unreadable(unread));
        }
        if !item.win && how.exptime.is_none() {
            return (Some(item), Decision::Keep);
        }
        let draft = Draft {
            marks: item.marks(),
            record: match old.record().map(|record| record.moved(old.expiry(), expiry)) {
                record if item.win => Some(Record {
                    holder: if is_left_empty {
                        self.holder().by_get().of_empty()
                    } else {
                        self.holder().by_get()
                    }
                    .0,
                    ..record.unwrap_or_default()
                }),
                record => record,
            },
            client_flags: item.flags,
            cas: Some(item.cas),
            expiry,
            value: Value::Built,
        };
        (Some(item), same_value(old, built, draft))
    }

    /// A touch is an access: the new word starts as fetched.
    fn mark_fetched(&self, key: &Key<'_>, now: u32) {
        let how = Get::default();
        let mut hit = FoundItem::default();
        let found = self.region.index().get::<false, _>(key, &how, now, &mut Vec::new(), &mut hit);
        if matches!(found, Lookup::Hit) {
            Slots::bump((self.mapped(), self.region.directory()), hit.place, hit.word, now);
        }
    }

    /// Store ("Storage commands", "Meta Set").
    #[inline(never)]
    pub fn store(&mut self, key: impl Keyed, value: &[u8], how: &Store, mut now: impl Now) -> Result<Stored, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.key(key, &mut room)?;
        if how.is_plain() {
            return self.set(key, value, how.flags, how.exptime, now);
        }
        let stored = match self.admit(&key, value, how.flags) {
            Ok(()) => self.store_if((key.bytes, key.hash), value, how, now.tick()),
            Err(error) => Err(self.refused(key.bytes, value.len(), self.command_of(how), error)),
        };
        match stored {
            Err(error) if how.replaces_anything() => Err(self.not_replaced((key.bytes, key.hash), error, now)),
            stored => stored,
        }
    }

    /// [`Self::store`] of a value with these client flags and this exptime, whatever is there.
    #[inline(always)]
    pub fn set(
        &mut self,
        key: impl Keyed,
        value: &[u8],
        flags: u32,
        exptime: i64,
        mut now: impl Now,
    ) -> Result<Stored, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.key(key, &mut room)?;
        if let Err(error) = self.admit(&key, value, flags) {
            let error = self.refused(key.bytes, value.len(), Command::Set, error);
            return Err(self.not_replaced((key.bytes, key.hash), error, now));
        }
        let draft = Draft {
            marks: 0,
            record: None,
            client_flags: flags,
            cas: None,
            expiry: match exptime {
                0 => 0,
                exptime => self.expiry(exptime, now.tick()),
            },
            value: Value::Bytes(value),
        };
        match self.index().change_fast(self.reclaimer(), key, &mut now, Put(draft)) {
            Some(changed) => self.stored(Ok(changed), Stored::NotStored),
            None => {
                let tick = now.tick();
                let stored = self.set_slow((key.bytes, key.hash), value, flags, exptime, tick);
                stored.map_err(|error| self.not_replaced((key.bytes, key.hash), error, now))
            }
        }
    }

    /// Slow path of a plain set, which emits an event if watchers want it.
    #[inline(never)]
    fn set_slow(
        &self,
        (bytes, hash): (&[u8], u64),
        value: &[u8],
        flags: u32,
        exptime: i64,
        now: u32,
    ) -> Result<Stored, WriteError> {
        let how = Store {
            flags,
            exptime,
            ..Store::default()
        };
        let mut put = Put(self.draft(value, &how, exptime, now));
        let changed = self.index().change(self.reclaimer(), &Key { bytes, hash }, now, &mut put);
        let stored = self.stored(changed, Stored::NotStored);
        if self.emitter().is_watched() {
            self.emit_store(bytes, value.len(), &how, &stored, now);
        }
        stored
    }

    /// A set for which there is no room removes the item that it was to replace, as in memcached: no client goes on reading a value that its
    /// writer has given up.
    #[cold]
    #[inline(never)]
    fn not_replaced(&mut self, key: (&[u8], u64), error: WriteError, now: impl Now) -> WriteError {
        if error.is_for_room() {
            let how = Delete {
                uncounted: true,
                ..Delete::default()
            };
            // The caller gets the error about the value; it has no place for a second one.
            let _ = self.delete(Key::of(key), &how, now);
        }
        error
    }

    /// Counts a store, and refuses it if no item can have this size.
    #[inline(always)]
    fn admit(&self, key: &Key<'_>, value: &[u8], flags: u32) -> Result<(), WriteError> {
        self.thread().count(Counter::cmd_set, 1);
        if let Some(error) = self.region.limits().too_large(key.bytes.len(), value.len(), flags) {
            self.thread().count(Counter::store_too_large, 1);
            return Err(error);
        }
        Ok(())
    }

    /// The new item that is requested.
    #[inline]
    fn draft<'v>(&self, value: &'v [u8], how: &Store, exptime: i64, now: u32) -> Draft<'v> {
        Draft {
            marks: if how.opaque_key { flag::OPAQUE_KEY } else { 0 },
            record: None,
            client_flags: how.flags,
            cas: how.new_cas,
            expiry: self.expiry(exptime, now),
            value: Value::Bytes(value),
        }
    }

    /// The answer to a store.
    #[inline(always)]
    fn stored(&self, changed: Result<(Changed, Written), WriteError>, refused: Stored) -> Result<Stored, WriteError> {
        match changed {
            Ok((Changed::Put, written)) => {
                self.thread().count(Counter::total_items, 1);
                Ok(Stored::Stored {
                    cas: written.cas,
                    value_len: written.value_len,
                    size: written.size,
                })
            }
            Ok(_) => Ok(refused),
            Err(error) => {
                self.thread()
                    .count(Counter::store_no_memory, u64::from(error == WriteError::OutOfMemory));
                Err(error)
            }
        }
    }

    /// Emits the event of a store that is refused for its size.
    #[cold]
    #[inline(never)]
    fn refused(&self, key: &[u8], len: usize, command: Command, error: WriteError) -> WriteError {
        if self.region.watch().is_watched(Kind::Mutation.bit()) {
            self.emitter().emit_refused(key, command, len);
        }
        error
    }

    /// Slow path of a store of any kind, which emits an event if watchers want it.
    #[inline(never)]
    fn store_if(&self, (bytes, hash): (&[u8], u64), value: &[u8], how: &Store, now: u32) -> Result<Stored, WriteError> {
        let mut kept = Kept::default();
        let key = &Key { bytes, hash };
        let changed = self.index().change_by(self.reclaimer(), key, now, &mut |old, built| {
            kept = Kept::default();
            match old {
                Some(old) => self.store_over(old, value, how, now, built, &mut kept),
                None => self.store_new(value, how, now, &mut kept),
            }
        });
        if let Some(counter) = kept.counter {
            self.thread().count(counter, 1);
        }
        let stored = match kept.error {
            Some(error) => {
                self.thread().count(Counter::store_too_large, 1);
                Err(error)
            }
            None => self.stored(changed, kept.answer),
        };
        if self.emitter().is_watched() {
            self.emit_store(bytes, value.len(), how, &stored, now);
        }
        stored
    }

    /// What a store makes of a key without an item.
    fn store_new<'v>(&self, value: &'v [u8], how: &Store, now: u32, kept: &mut Kept) -> Decision<'v> {
        if compares(how) && !joins(how) {
            (kept.answer, kept.counter) = (Stored::NotFound, Some(Counter::cas_misses));
            return Decision::Keep;
        }
        match (how.mode, how.vivify) {
            (StoreMode::Set | StoreMode::Add, _) => Decision::Put(self.draft(value, how, how.exptime, now)),
            (StoreMode::Append | StoreMode::Prepend, Some(exptime)) => Decision::Put(self.draft(value, how, exptime, now)),
            _ => Decision::Keep,
        }
    }

    /// What a store makes of an item.
    fn store_over<'v>(
        &self,
        old: &Old<'_>,
        value: &'v [u8],
        how: &Store,
        now: u32,
        built: &mut Vec<u8>,
        kept: &mut Kept,
    ) -> Decision<'v> {
        let mut stale = false;
        if let (Some(cas), true) = (how.compare_cas, compares(how)) {
            let present = old.item().cas;
            stale = how.invalidate && cas < present && !joins(how);
            if cas != present && !stale {
                (kept.answer, kept.counter) = (Stored::Exists, Some(Counter::cas_badval));
                return Decision::Keep;
            }
            kept.counter = Some(Counter::cas_hits);
        }
        match how.mode {
            StoreMode::Add => Decision::Keep,
            // A value from before the item's present one: kept with the old lifetime and marks, as stale.
            _ if stale => {
                let fresh = self.draft(value, how, 0, now);
                Decision::Replace(Draft {
                    marks: flag::STALE | fresh.marks,
                    record: old.record().filter(|record| Holder(record.holder).is_by_get()),
                    expiry: old.expiry(),
                    ..fresh
                })
            }
            StoreMode::Set | StoreMode::Replace => Decision::Put(self.draft(value, how, how.exptime, now)),
            StoreMode::Append | StoreMode::Prepend => {
                let item = old.item();
                let len = item.value_len.saturating_add(value.len());
                kept.error = self.region.limits().too_large(old.key_len(), len, item.flags);
                if kept.error.is_some() {
                    return Decision::Keep;
                }
                if let Err(unread) = join(built, how.mode, old, value) {
                    return Decision::Unreadable(unread);
                }
                Decision::Replace(Draft {
                    marks: item.marks() & flag::OPAQUE_KEY,
                    record: None,
                    client_flags: item.flags,
                    cas: how.new_cas,
                    expiry: old.expiry(),
                    value: Value::Built,
                })
            }
        }
    }

    #[cold]
    #[inline(never)]
    fn emit_store(&self, key: &[u8], len: usize, how: &Store, stored: &Result<Stored, WriteError>, now: u32) {
        let (size, cas) = match stored {
            // The whole length: for an append, the old value's and the new one's.
            Ok(Stored::Stored { value_len, cas, .. }) => (*value_len, *cas),
            _ => (len, 0),
        };
        let done = Done {
            kind: Kind::Mutation,
            command: self.command_of(how),
            status: match stored {
                Ok(Stored::Stored { .. }) => Status::Stored,
                Ok(Stored::NotStored) => Status::NotStored,
                Ok(Stored::Exists) => Status::Exists,
                Ok(Stored::NotFound) => Status::NotFound,
                // As memcached.
                Err(_) if joins(how) => Status::NotStored,
                Err(WriteError::TooLarge { .. }) => Status::TooLarge,
                Err(_) => Status::NoMemory,
            },
            size,
            ttl_s: self.ttl_of(how.exptime, now),
            cas,
        };
        self.emitter().emit_change(key, Some(done));
    }

    /// As which command watchers see a store.
    fn command_of(&self, how: &Store) -> Command {
        match how.mode {
            StoreMode::Set if how.compare_cas.is_some() => Command::Cas,
            StoreMode::Replace if how.compare_cas.is_some() && self.emitter().is_meta() => Command::Cas,
            StoreMode::Set => Command::Set,
            StoreMode::Add => Command::Add,
            StoreMode::Replace => Command::Replace,
            StoreMode::Append => Command::Append,
            StoreMode::Prepend => Command::Prepend,
        }
    }

    /// The number of seconds from now that an exptime means; 0: it never expires, or has expired.
    pub(crate) fn ttl_of(&self, exptime: i64, now: u32) -> i64 {
        let ttl_s = match exptime {
            ..=RELATIVE_EXPTIME_MAX => exptime,
            _ => exptime
                .saturating_sub(self.unix_at_zero_s)
                .saturating_sub(i64::try_from(seconds_of(now)).unwrap_or(0)),
        };
        ttl_s.max(0)
    }

    /// Delete ("Deletion", "Meta Delete").
    pub fn delete(&mut self, key: impl Keyed, how: &Delete, mut now: impl Now) -> Result<Deleted, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.key(key, &mut room)?;
        if let Some(answer) = self.delete_fast(key, how, &mut now) {
            return Ok(answer);
        }
        let answer = self.delete_if((key.bytes, key.hash), how, now.tick())?;
        self.count_delete(answer, how);
        Ok(answer)
    }

    /// One attempt at a plain delete, compiled into the caller. `None`: [`Self::delete`] knows more.
    #[inline(always)]
    pub fn delete_fast(&mut self, key: Key<'_>, how: &Delete, now: &mut impl Now) -> Option<Deleted> {
        if how.invalidate || how.remove_value || how.compare_cas.is_some() || !self.mapped().is_plain() {
            return None;
        }
        let (changed, _) = self.index().change_fast(self.reclaimer(), key, now, Remove)?;
        let answer = match changed {
            Changed::Removed => Deleted::Deleted,
            Changed::Kept | Changed::Put => Deleted::NotFound,
        };
        self.count_delete(answer, how);
        Some(answer)
    }

    #[inline(always)]
    fn count_delete(&self, answer: Deleted, how: &Delete) {
        if !how.uncounted {
            let counter = if answer == Deleted::NotFound {
                Counter::delete_misses
            } else {
                Counter::delete_hits
            };
            self.thread().count(counter, 1);
        }
    }

    /// Slow path of a delete of any kind, which emits an event if watchers want it.
    #[inline(never)]
    fn delete_if(&self, (bytes, hash): (&[u8], u64), how: &Delete, now: u32) -> Result<Deleted, WriteError> {
        let key = &Key { bytes, hash };
        let (mut answer, mut stays_fetched) = (Deleted::NotFound, false);
        let changed = self.index().change_by(self.reclaimer(), key, now, &mut |old, built| {
            (answer, stays_fetched) = (Deleted::NotFound, false);
            let Some(old) = old else {
                return if how.compare_cas.is_some() {
                    Decision::Keep
                } else {
                    Decision::Remove
                };
            };
            if how.compare_cas.is_some_and(|cas| cas != old.item().cas) {
                answer = Deleted::Exists;
                return Decision::Keep;
            }
            answer = Deleted::Deleted;
            if !how.invalidate && !how.remove_value {
                return Decision::Remove;
            }
            stays_fetched = old.item().fetched && !how.remove_value;
            self.invalidate(old, how, now, built)
        });
        if changed.is_ok() && stays_fetched {
            self.mark_fetched(key, now);
        }
        if self.emitter().is_watched() {
            let done = changed.ok().filter(|_| answer == Deleted::Deleted);
            let done = done.map(|(_, written)| Done {
                // An item that is marked as stale is still there.
                kind: if how.invalidate || how.uncounted {
                    Kind::Update
                } else {
                    Kind::Deletion
                },
                command: if self.emitter().is_meta() {
                    Command::MetaDelete
                } else {
                    Command::Delete
                },
                status: Status::Stored,
                size: if how.remove_value { 0 } else { self.emitter().size_before() },
                ttl_s: how.exptime.map_or(0, |exptime| self.ttl_of(exptime, now)),
                cas: written.cas,
            });
            self.emitter().emit_change(bytes, done);
        }
        changed.map(|_| answer)
    }

    /// What becomes of an item that is marked as stale, or loses its value.
    fn invalidate(&self, old: &Old<'_>, how: &Delete, now: u32, built: &mut Vec<u8>) -> Decision<'static> {
        let item = old.item();
        let expiry = match how.exptime {
            Some(exptime) => self.expiry(exptime, now),
            None if how.remove_value => 0,
            None => old.expiry(),
        };
        // The win is cleared too, so that the next reader can win. An item without its value is a new one, and stale only if asked for.
        let kept = if how.remove_value { 0 } else { flag::STALE } | flag::OPAQUE_KEY;
        // Its CAS unique changes only if it becomes stale.
        let kept_cas = (!how.invalidate).then_some(item.cas);
        let draft = Draft {
            marks: item.marks() & kept | if how.invalidate { flag::STALE } else { 0 },
            record: None,
            client_flags: if how.remove_value { 0 } else { item.flags },
            cas: how.new_cas.or(kept_cas),
            expiry,
            value: Value::Built,
        };
        if how.remove_value {
            Decision::Replace(draft)
        } else {
            same_value(old, built, draft)
        }
    }

    /// Touch ("Touch"). `false`: the key has no item.
    pub fn touch(&mut self, key: impl Keyed, exptime: i64, now: u32) -> Result<bool, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.key(key, &mut room)?;
        let how = Get {
            exptime: Some(exptime),
            ..Get::default()
        };
        let hit = self.change_by_get(&key, &how, now, &mut Vec::new())?.is_some();
        self.thread()
            .count(if hit { Counter::touch_hits } else { Counter::touch_misses }, 1);
        Ok(hit)
    }

    /// Flush ("flush_all"): everything stored until `exptime` is absent from then on; 0 and less: now.
    ///
    /// # Errors
    ///
    /// [`WriteError::FlushRefused`]: the region is not to be flushed.
    pub fn flush_all(&mut self, exptime: i64, now: u32) -> Result<(), WriteError> {
        if !self.region.limits().read().flush {
            return Err(WriteError::FlushRefused);
        }
        self.thread().count(Counter::cmd_flush, 1);
        let at = if exptime <= 0 { 0 } else { self.expiry(exptime, now) };
        let at = if at <= now { 0 } else { at };
        self.counting().enter()?;
        // A delayed flush is counted now, when it is set: no copy is given out for longer than until it begins.
        self.counting().counted_flush(|| self.region.flushes().flush_at_tick(at));
        self.region.flights().wake_all();
        self.emitter().emit_flush();
        self.counting().leave();
        Ok(())
    }

    /// Housekeeping in a bounded step, about once a second: dead threads are recovered, dead segments freed, hints aged.
    pub fn upkeep(&mut self, now: u32) {
        self.region.recovery().recover();
        self.region.slots().age_hints(now);
        self.region.flushes().epoch(now);
        // Wishes of watchers that are gone end here, too.
        self.region.watch().wanted();
        // A session that cannot count its changes may make none.
        if self.counting().enter().is_ok() {
            self.reclaimer().reclaim_lost(UPKEEP_LOST, now);
            self.reclaimer().reclaim_dead(now);
            self.counting().leave();
        }
        // A refusal of the system is for callers that can report it.
        let _ = self.reclaimer().shrink(now);
        self.region.changes().mend_stripes();
    }

    /// A bounded step towards the memory limit: segments are reclaimed and withdrawn while more than the limit are in use, and
    /// the pages of withdrawn ones go back to the system.
    pub fn shrink(&mut self, now: u32) -> Shrinking {
        self.reclaimer().shrink(now)
    }

    /// Gives up every extent, so that others can use what is left of it, and their segments can be reclaimed. The next write leases new ones.
    pub fn release_extents(&self) {
        self.reclaimer().release_extents();
    }

    /// A holder of copies has answered from one: the item counts as used, as if it had been fetched here.
    pub fn note_hit(&mut self, key: impl Keyed, now: u32) {
        let mut room = KeyRoom::new();
        if let Ok(key) = self.key(key, &mut room) {
            self.mark_fetched(&key, now);
        }
    }
}

/// Whether a get wins this item if whoever has won it before is gone.
fn may_win(how: &Get, item: &Item) -> bool {
    how.vivify.is_some() || how.recache_s.is_some() || (item.stale && how.win_stale)
}

/// Segments that one upkeep checks for a dead owner.
const UPKEEP_LOST: usize = 1024;

/// The old value under a new head: copied when it is small, handed over when it has segments of its own.
fn same_value<'v>(old: &Old<'_>, built: &mut Vec<u8>, draft: Draft<'v>) -> Decision<'v> {
    match old.chain() {
        Some(chain) => Decision::Replace(Draft {
            value: Value::Chain(chain),
            ..draft
        }),
        None => match old.append_value(built) {
            Ok(()) => Decision::Replace(draft),
            Err(unread) => Decision::Unreadable(unread),
        },
    }
}

/// Whether a store adds to the value that is there.
fn joins(how: &Store) -> bool {
    matches!(how.mode, StoreMode::Append | StoreMode::Prepend)
}

/// Whether the CAS unique that a store names counts: that of an add does not.
fn compares(how: &Store) -> bool {
    how.compare_cas.is_some() && how.mode != StoreMode::Add
}

/// The old value with `more` after it, or before it.
fn join(built: &mut Vec<u8>, mode: StoreMode, old: &Old<'_>, more: &[u8]) -> Result<(), Unread> {
    if mode == StoreMode::Prepend {
        append(built, more)?;
        return old.append_value(built);
    }
    old.append_value(built)?;
    append(built, more)
}

fn append(built: &mut Vec<u8>, bytes: &[u8]) -> Result<(), Unread> {
    if !heap::try_reserve(built, bytes.len()) {
        return Err(Unread::NoMemory);
    }
    built.extend_from_slice(bytes);
    Ok(())
}
