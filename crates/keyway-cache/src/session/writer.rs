//! The verbs of a thread that has a thread slot in the region: the verbs of `keyway_region`, with what comes before and after each call
//! ([`super::slot`]), and with samples taken ([`super::sampling`]).
//!
//! What a call without a gate seldom needs is cold, and gets copies: a reference would keep an argument in memory in all other calls.

use crate::session::ServerSession;
use crate::session::buffer::{Buffer, Walked, pass};
use crate::session::change::{Change, Count, Put, Ruled};
use crate::session::fetch::{Begun, Fetch, Token};
use crate::session::kernel;
use crate::session::roster::Sessions;
use crate::session::sampling::{self, Sampling};
use crate::session::slot::Slot;
use crate::session::socket;
use crate::session::verbs::{Missed, Verbs, with_tail};
use keyway_region::fetch::{Flight, Refreshed};
use keyway_region::layout::latency::{Door, Latency, Verb};
use keyway_region::verbs::{Arithmetic, Counted, Delete, Deleted, Get, Item, Number, Read, Store, Stored, WriteError};
use keyway_region::{
    Fetches, Headed, Holder, Key, KeyRoom, Limits, Once, Pinning, Session, SessionId, Shrinking, Sink, seconds_of,
};
use std::convert::identity;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// Longer values, in bytes, are sent directly from their place in the region. Up to this length, a copy costs less than
/// the extra system call that a direct send takes.
const COPIED_MAX: usize = 32 * 1024;

/// See the top of the file.
pub struct Writer {
    slot: Slot,
    sampling: Sampling,
    /// for values that do not go to their places at once
    buffer: Buffer,
}

impl Writer {
    /// With a session of the region, and its number ([`Sessions::hire`]).
    pub fn new(sessions: Arc<Sessions>, hired: (Box<Session>, u64)) -> Self {
        let slot = Slot::new(sessions, hired);
        Self {
            sampling: Sampling::new(&slot),
            slot,
            buffer: Buffer::default(),
        }
    }

    /// A caller's key, copied to the room: every get goes by that copy.
    #[inline(always)]
    pub fn key<'r>(&self, given: &[u8], room: &'r mut KeyRoom) -> Key<'r> {
        self.slot.key(given, room)
    }

    /// Its thread slot.
    pub fn slot_mut(&mut self) -> &mut Slot {
        &mut self.slot
    }

    /// Gets to the sink by the fast path; the caller needs only what `hit` returns. `None`: [`Self::get_sampled_or_slow`] knows more.
    #[inline(always)]
    pub fn get_fast<S: Sink, R>(&mut self, key: Key<'_>, how: &Get, sink: &mut S, hit: impl Fn(Item) -> R) -> Option<Option<R>> {
        if self.sampling.is_get_due() || !self.slot.is_ready() {
            return None;
        }
        self.slot.get_fast(key, how, sink, hit)
    }

    /// A get that the fast path has not answered, or that is a sample. The key's parts, as a reference would keep it in memory.
    #[cold]
    #[inline(never)]
    pub fn get_sampled_or_slow<S: Sink, R>(
        &mut self,
        key: &[u8],
        hash: u64,
        how: &Get,
        sink: &mut S,
        hit: impl Fn(Item) -> R,
    ) -> Result<Option<R>, WriteError> {
        let key = Key::of((key, hash));
        if !self.sampling.is_get_sample() {
            return Ok(self.get_any(key, how, sink)?.map(hit));
        }
        let begun = self.sampling.begin_get(&mut self.slot)?;
        let found = match self.slot.get_fast(key, how, sink, identity) {
            Some(found) => found,
            None => self.get_any(key, how, sink)?,
        };
        let verb = if how.exptime.is_some() { Verb::Touch } else { Verb::Get };
        self.sampling.end_measure(&self.slot, begun, verb);
        self.sampling.end_get(&self.slot, key, how, found.as_ref());
        Ok(found.map(hit))
    }

    #[inline(always)]
    fn get<S: Sink>(&mut self, key: Key<'_>, how: &Get, sink: &mut S) -> Result<Option<Item>, WriteError> {
        match self.get_fast(key, how, sink, identity) {
            Some(found) => Ok(found),
            None => self.get_sampled_or_slow(key.bytes(), key.hash(), how, sink, identity),
        }
    }

    /// A get of anything. Behind a gate a sink that is other code gets the value when the gate has closed.
    fn get_any<S: Sink>(&mut self, key: Key<'_>, how: &Get, sink: &mut S) -> Result<Option<Item>, WriteError> {
        self.slot.ready()?;
        if sink.reach().is_none() && self.slot.has_gate() {
            return self.through_buffer(sink, |this, value| match this.slot.get_fast(key, how, value, identity) {
                Some(found) => Ok(found),
                None => this.get_slow(key, how, value),
            });
        }
        self.get_slow(key, how, sink)
    }

    /// A get to the session's buffer, from which the sink gets the value afterwards.
    fn through_buffer<S: Sink>(
        &mut self,
        sink: &mut S,
        get: impl FnOnce(&mut Self, &mut Vec<u8>) -> Result<Option<Item>, WriteError>,
    ) -> Result<Option<Item>, WriteError> {
        let mut value = self.buffer.lend();
        let found = get(self, &mut value);
        let passed = match &found {
            Ok(Some(item)) => pass(sink, item, &value),
            _ => Ok(()),
        };
        self.buffer.give_back(value);
        passed.and(found)
    }

    /// A get by the slow path.
    #[cold]
    #[inline(never)]
    fn get_slow<S: Sink>(&mut self, key: Key<'_>, how: &Get, sink: &mut S) -> Result<Option<Item>, WriteError> {
        // A pinned value goes to this crate's own code.
        let runs_other_code = sink.reach().is_none() && !S::PINS;
        if !how.may_change() {
            if !runs_other_code {
                return self.slot.get_slow(key, how, sink);
            }
            let begun = sink.len();
            let mut once = Once::new(sink);
            let found = self.slot.get_slow(key, how, &mut once);
            if !once.is_passed_over() {
                return found;
            }
            sink.truncate(begun);
            return self.through_buffer(sink, |this, value| this.slot.get_slow(key, how, value));
        }
        for exptime in [how.exptime, how.vivify].into_iter().flatten() {
            self.slot.translate_exptime(exptime);
        }
        if S::IS_FOREIGN || runs_other_code {
            // While an item changes, the caller's memory is not written to, and no code of the caller runs.
            return self.through_buffer(sink, |this, value| this.slot.get_and_change(key, how, value));
        }
        self.slot.get_and_change(key, how, sink)
    }

    /// A change of a key, compiled into the caller, and once more for samples.
    #[inline(always)]
    fn change<C: Change>(&mut self, given: &[u8], change: C) -> Result<C::Done, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.slot.key(given, &mut room);
        if self.sampling.is_change_due() {
            return self.change_sampled(key.bytes(), key.hash(), change);
        }
        self.change_now(key, change)
    }

    #[cold]
    #[inline(never)]
    fn change_sampled<C: Change>(&mut self, key: &[u8], hash: u64, change: C) -> Result<C::Done, WriteError> {
        let key = Key::of((key, hash));
        let sample = self.sampling.begin_change(&mut self.slot, key);
        let done = self.change_now(key, change);
        self.sampling.end_change(&mut self.slot, &sample, C::VERB, key);
        done
    }

    #[inline(always)]
    fn change_now<C: Change>(&mut self, key: Key<'_>, change: C) -> Result<C::Done, WriteError> {
        self.slot.ready()?;
        let [exptime, of_new] = change.exptimes();
        self.slot.translate_exptime(exptime);
        self.slot.translate_exptime(of_new);
        let (call, session, now) = self.slot.begin_change(change.place())?;
        let done = change.make(session, key, now);
        call.end();
        done
    }

    fn put(&mut self, given: &[u8], value: &[u8], flags: u32, exptime: i64) -> Result<Stored, WriteError> {
        self.change(given, Put(value, flags, exptime))
    }

    #[inline(never)]
    fn store_by_rules(&mut self, given: &[u8], change: Ruled<'_>) -> Result<Stored, WriteError> {
        self.change(given, change)
    }

    /// A delete, a touch or a flush that is measured.
    #[cold]
    #[inline(never)]
    fn measured<R>(&mut self, verb: Verb, work: impl FnOnce(&mut Self) -> R) -> R {
        let begun = self.sampling.begin_other(&self.slot);
        let done = work(self);
        self.sampling.end_measure(&self.slot, begun, verb);
        done
    }

    /// A deletion of anything.
    #[cold]
    #[inline(never)]
    fn delete_slow(&mut self, key: &[u8], hash: u64, how: &Delete) -> Result<Deleted, WriteError> {
        let key = Key::of((key, hash));
        self.slot.ready()?;
        self.slot.translate_exptime(how.exptime.unwrap_or(0));
        let (call, session, now) = self.slot.begin_change(&[])?;
        let deleted = session.delete(key, how, now);
        call.end();
        self.sampling.stay_on_trail(&mut self.slot, key);
        deleted
    }

    fn touch_now(&mut self, key: Key<'_>, exptime: i64) -> Result<bool, WriteError> {
        self.slot.ready()?;
        self.slot.translate_exptime(exptime);
        let (call, session, now) = self.slot.begin_change(&[])?;
        let touched = session.touch(key, exptime, now.at());
        call.end();
        self.sampling.stay_on_trail(&mut self.slot, key);
        touched
    }

    fn flush_now(&mut self, exptime: i64) -> Result<(), WriteError> {
        self.slot.ready()?;
        self.slot.translate_exptime(exptime);
        let (call, session, now) = self.slot.begin_change(&[])?;
        let flushed = session.flush_all(exptime, now.at());
        call.end();
        flushed
    }
}

impl Verbs for Writer {
    fn prefetch<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>) {
        if self.slot.ready().is_ok() {
            // The keys are read before the gate opens.
            let ahead = self.slot.session().region().index().ahead(keys);
            self.slot.inside(|session| session.region().index().prefetch(&ahead));
        }
    }

    fn set(&mut self, given: &[u8], value: &[u8], exptime: i64) -> Result<Stored, WriteError> {
        self.put(given, value, 0, exptime)
    }

    #[inline]
    fn store(&mut self, given: &[u8], value: &[u8], how: &Store) -> Result<Stored, WriteError> {
        if how.is_plain() {
            return self.put(given, value, how.flags, how.exptime);
        }
        self.store_by_rules(given, Ruled(how, value))
    }

    #[inline(always)]
    fn delete(&mut self, given: &[u8], how: &Delete) -> Result<Deleted, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.slot.key(given, &mut room);
        if self.sampling.is_other_due() {
            let (bytes, hash) = (key.bytes(), key.hash());
            return self.measured(Verb::Delete, move |this| this.delete_slow(bytes, hash, how));
        }
        if !self.sampling.is_on_trail()
            && let Some((session, mut now)) = self.slot.fast()
            && let Some(deleted) = session.delete_fast(key, how, &mut now)
        {
            return Ok(deleted);
        }
        self.delete_slow(key.bytes(), key.hash(), how)
    }

    #[inline]
    fn arithmetic(&mut self, given: &[u8], how: &Arithmetic) -> Result<Counted, WriteError> {
        self.change(given, how)
    }

    #[inline]
    fn count<const DOWN: bool>(&mut self, given: &[u8], delta: u64) -> Result<Number, WriteError> {
        self.change(given, Count::<DOWN>(delta))
    }

    fn touch(&mut self, given: &[u8], exptime: i64) -> Result<bool, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.slot.key(given, &mut room);
        if self.sampling.is_other_due() {
            return self.measured(Verb::Touch, move |this| this.touch_now(key, exptime));
        }
        self.touch_now(key, exptime)
    }

    fn flush_all(&mut self, exptime: i64) -> Result<(), WriteError> {
        if self.sampling.is_other_due() {
            return self.measured(Verb::Other, move |this| this.flush_now(exptime));
        }
        self.flush_now(exptime)
    }

    fn fetch_missed(&mut self, given: &[u8], how: &Fetch<'_>, out: &mut Vec<u8>) -> Result<Begun, WriteError> {
        self.fetch_without_get(given, how, out)
    }

    fn fetch_store(&mut self, given: &[u8], token: Token, value: &[u8], how: &Fetch<'_>) -> Result<bool, WriteError> {
        self.store_fetched(given, &token, value, how)
    }

    fn fetch_store_nothing(&mut self, given: &[u8], token: Token, how: &Fetch<'_>) -> Result<bool, WriteError> {
        self.end_fetch(given, &token, |session, key, flight, now| {
            Fetches::of(session).store_nothing(key, flight, how.negative_ttl, now)
        })
    }

    fn fetch_abandon(&mut self, given: &[u8], token: Token) -> Result<bool, WriteError> {
        self.abandon_fetch(given, &token)
    }

    fn fetch_wait(&mut self, given: &[u8], timeout: Duration) -> Result<(), WriteError> {
        self.wait_for_fetch(given, timeout)
    }

    fn walk(&mut self, cursor: u64, budget: usize, visit: impl FnMut(&[u8], &Item)) -> Option<u64> {
        self.slot.ready().ok()?;
        if !self.slot.has_gate() {
            let now = self.slot.tick();
            return self.slot.session().region().index().walk(cursor, budget, now, visit);
        }
        // `visit` is called when the gate is closed.
        let mut walked = Walked::default();
        let note = |key: &[u8], item: &Item| walked.note(key, item);
        let next = self
            .slot
            .verb(|session, now| session.region().index().walk(cursor, budget, now, note));
        walked.hand_over(visit);
        next
    }

    fn upkeep(&mut self) {
        if self.slot.ready().is_ok() {
            self.slot.sessions().upkeep();
            self.slot.work(Session::upkeep);
        }
    }

    fn shrink(&mut self) -> Shrinking {
        match self.slot.ready() {
            Ok(()) => self.slot.work(Session::shrink).unwrap_or(Shrinking::Waiting),
            Err(_) => Shrinking::Done,
        }
    }

    fn release(&mut self) {
        if self.slot.ready().is_ok() {
            self.slot.verb(|session, _| session.release_extents());
        }
    }
}

impl ServerSession for Writer {
    fn get_to(
        &mut self,
        key: &[u8],
        how: &Get,
        (socket, behind): (BorrowedFd<'_>, &[u8]),
        out: &mut Vec<u8>,
        head: impl FnMut(&Item, &mut Vec<u8>),
    ) -> Result<Option<(Item, usize)>, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.key(key, &mut room);
        if self.slot.has_gate() {
            // The kernel could not read the value through the closed gate.
            let found = self.get(key, how, &mut Headed::new(&mut *out, head))?;
            return Ok(with_tail(found, out, behind));
        }
        let how = Get {
            at_most: Some(COPIED_MAX),
            ..*how
        };
        let mut sent = None;
        let send = |value: &keyway_region::PinnedValue<'_>, out: &mut Vec<u8>| {
            sent = Some(socket::send_or_copy(socket, out, value, behind));
        };
        let found = self.get(key, &how, &mut Pinning::new(&mut *out, head, send))?;
        match (found, sent) {
            (Some(item), Some(sent)) => Ok(Some((item, sent))),
            (found, _) => Ok(with_tail(found, out, behind)),
        }
    }

    fn look(&mut self, given: &[u8]) -> Result<Read, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.slot.key(given, &mut room);
        sampling::look(&mut self.slot, key)
    }

    fn limits(&self) -> Limits {
        self.slot.inside(|session| session.region().limits().read())
    }

    fn clock_s(&mut self) -> u64 {
        seconds_of(self.slot.verb(|_, now| now))
    }

    fn clock(&self) -> Duration {
        let now = self.slot.sessions().now();
        self.slot.inside(|session| session.region().clock().clock_at(now.boot))
    }

    #[inline]
    fn is_held_up(&self) -> bool {
        !self.slot.inside(|session| session.counting().knows_door())
            && self.slot.is_here()
            && kernel::is_held_up(self.slot.sessions())
    }

    #[inline]
    fn serve_as(&self, door: Door, is_meta: bool, descriptor: i32) {
        self.slot.session().emitter().serve_as(door, is_meta, descriptor);
    }

    fn emits_connections(&mut self) -> bool {
        self.slot.ready().is_ok() && self.slot.inside(|session| session.emitter().emits_connections())
    }

    fn emit_connection(&mut self, text: &[u8]) {
        if self.slot.ready().is_ok() {
            self.slot.inside(|session| session.emitter().emit_connection(text));
        }
    }

    fn claim(&mut self, given: &[u8], for_s: u32) -> Result<Missed, WriteError> {
        self.claim_missed(given, for_s)
    }

    fn uncount_miss(&mut self) {
        if self.slot.ready().is_ok() {
            self.slot.inside(|session| session.uncount_miss());
        }
    }

    fn won(&self, cas: u64) -> Option<Flight> {
        Some(Flight {
            holder: self.slot.session().holder().by_get(),
            serial: cas,
        })
    }

    fn release_claim(&mut self, given: &[u8], flight: Flight) {
        // What cannot be given back ends by its time.
        let _ = self.end_flight(given, |session, key, now| Fetches::of(session).abandon(key, flight, now));
    }

    fn store_claimed(&mut self, given: &[u8], cas: u64, value: &[u8], flags: u32, exptime: i64) -> Result<bool, WriteError> {
        let flight = Flight {
            holder: Holder::NONE,
            serial: cas,
        };
        let how = Refreshed {
            flags,
            exptime,
            ..Refreshed::default()
        };
        self.slot.ready()?;
        self.slot.translate_exptime(exptime);
        self.end_flight(given, |session, key, now| {
            Fetches::of(session).store(key, flight, value, &how, now)
        })
    }

    fn note_hit(&mut self, given: &[u8]) {
        let mut room = KeyRoom::new();
        if Key::has_len(given) && self.slot.ready().is_ok() {
            let key = self.slot.key(given, &mut room);
            self.slot.verb(|session, now| session.note_hit(key, now));
        }
    }

    fn note_latency(&self, door: Door, verb: Verb, ns: u64) {
        if self.slot.is_ready() {
            self.slot.inside(|session| session.note_latency(door, verb, ns));
        }
    }

    fn add_latency(&self, door: Door, verb: Verb, counted: &Latency) -> bool {
        let can = self.slot.is_ready();
        if can {
            self.slot.inside(|session| session.add_latency(door, verb, counted));
        }
        can
    }

    fn id(&self) -> Option<SessionId> {
        Some(self.slot.session().id())
    }
}
