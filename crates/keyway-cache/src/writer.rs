//! The verbs of a thread that has a thread slot in the region: the verbs of `keyway_region`, with the time filled in.

use crate::cancel::Uncancelled;
use crate::clock::{self, Watch};
use crate::copies::{self, Copies};
use crate::gate::{Latch, aside};
use crate::kernel;
use crate::presence;
use crate::sessions::Sessions;
use crate::socket;
use crate::timer::{Sampler, Timer};
use keyway_region::heap::reserve;
use keyway_region::layout::latency::{Door, Latency, Verb};
use keyway_region::layout::trail::{Extent, Fate};
use keyway_region::verbs::{Arithmetic, Counted, Delete, Deleted, Get, Item, Now, Number, Read, Store, Stored, WriteError};
use keyway_region::verbs::{KEY_LEN_MAX, RELATIVE_EXPTIME_MAX};
use keyway_region::{Headed, Lending, Lent, Region, Seat, Shrinking, Sink, seconds_of};
use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// Longer values, in bytes, are sent directly from their place in the region. Up to this length, a copy costs less than
/// the extra system call that a direct send takes.
const COPIED_MAX: usize = 32 * 1024;

/// A thread's session of the region, and what its process knows of it.
pub(crate) struct Writer {
    inner: keyway_region::Session,
    /// dropped after `inner`: a thread that dies between the two is still in its process's list
    member: Membership,
    /// the number of the thread that used the session last
    thread: u64,
    latch: Latch,
    copies: Copies,
    sampler: Sampler,
    /// operations until the next one of which the key is counted for `keyway hot`, that one included
    left: Left,
    /// on the heap: used in few calls
    timer: Option<Box<Timer>>,
}

/// A change behind a gate, with a copy of its key: `$work`, compiled into the caller.
macro_rules! change_inside {
    ($writer:expr, $key:expr, |$inner:ident, $inside_key:ident, $now:ident| $work:expr) => {{
        let writer: &mut Writer = $writer;
        let coarse_ns = writer.member.watch.ahead(clock::coarse_ns);
        let $inside_key = writer.copies.of_key($key);
        let _inside = writer.latch.open_gate();
        prepare(&mut writer.inner, &mut writer.member)?;
        let $now = Watched::behind_gate(&mut writer.member, coarse_ns);
        let $inner = &mut writer.inner;
        $work
    }};
}

/// A change without a gate: `$work`, compiled into the caller.
macro_rules! change_without_gate {
    ($writer:expr, $key:expr, |$inner:ident, $inside_key:ident, $now:ident| $work:expr) => {{
        let writer: &mut Writer = $writer;
        prepare(&mut writer.inner, &mut writer.member)?;
        let ($inner, $inside_key) = (&mut writer.inner, $key);
        let $now = Watched::without_gate(&mut writer.member);
        $work
    }};
}

/// A verb that may change the region, with its key: `$work`, compiled into the caller where there is no gate, and into a function
/// of its own behind one.
macro_rules! change {
    ($writer:expr, $key:expr, |$inner:ident, $inside_key:ident, $now:ident| $work:expr) => {{
        let writer: &mut Writer = $writer;
        if writer.latch.is_on() {
            writer.change_behind_gate($key, |$inner, $inside_key, $now| $work)
        } else {
            change_without_gate!(writer, $key, |$inner, $inside_key, $now| $work)
        }
    }};
}

impl Writer {
    pub(crate) fn new(sessions: Arc<Sessions>) -> Option<Self> {
        let (inner, id) = sessions.hire()?;
        let latch = sessions.latch;
        let timer = sessions.door.map(|_| Box::new(Timer::new()));
        let first = {
            let _inside = latch.open();
            inner.first_sample()
        };
        let shown = if latch.is_on() { 1 } else { first };
        let left = Left {
            gets: shown,
            changes: shown,
            behind_gate: [first; 2],
            trail: false,
        };
        Some(Self {
            sampler: Sampler::new(timer.as_ref().map_or(1, |timer| timer.now().rotate_left(17) ^ id)),
            timer,
            left,
            inner: *inner,
            member: Membership {
                sessions,
                id,
                watch: Watch::default(),
            },
            thread: presence::thread_number(),
            latch,
            copies: Copies::default(),
        })
    }

    /// To be called before every use: checks that the process is the one that attached, and that the calling thread is
    /// known.
    #[inline(always)]
    fn ready(&mut self) -> Result<(), WriteError> {
        if self.is_ready() { Ok(()) } else { self.arrive() }
    }

    #[inline(always)]
    fn is_ready(&self) -> bool {
        self.thread == presence::thread_number_if_known() && self.member.is_here()
    }

    /// A change that is a sample: its key is counted, and mostly it is measured. `work`: as for [`Self::measured`].
    #[cold]
    #[inline(never)]
    fn sampled<R>(&mut self, verb: Verb, key: &[u8], work: impl FnOnce(&mut Self) -> R) -> R {
        // If it fails, the next one is the sample.
        let mut next = 1;
        let mut is_timed = true;
        if self.ready().is_ok() {
            // A key that is too long is counted by a part of it: the verb refuses it.
            let hash = self.inner.region().hash(key.get(..KEY_LEN_MAX).unwrap_or(key));
            let _inside = self.latch.open();
            is_timed = self.inner.is_set_timed();
            next = self.inner.sample_set(hash);
        }
        self.left.next_change(self.latch, next);
        let result = match is_timed {
            true => self.timed(verb, work),
            false => work(self),
        };
        self.leave_trail(key);
        result
    }

    /// After a change: if the region's trail is kept, and the key is on it, says there what the change has left.
    #[cold]
    #[inline(never)]
    fn leave_trail(&mut self, key: &[u8]) {
        if !self.is_ready() || key.is_empty() || key.len() > KEY_LEN_MAX {
            return;
        }
        let kept = {
            let _inside = self.latch.open();
            self.inner.region().kept_trail()
        };
        self.left.trail = kept.is_some();
        let name = kept.and_then(|shift| Region::on_trail(self.inner.region().hash(key), shift));
        if let Some(name) = name
            && let Ok(found) = self.look(key)
        {
            let fate = match &found {
                Read::Hit(item) => Fate::Stored(extent_of(item)),
                _ => Fate::Gone,
            };
            let _inside = self.latch.open();
            self.inner.leave_trail(name, fate);
        }
    }

    #[cold]
    fn arrive(&mut self) -> Result<(), WriteError> {
        if !self.member.is_here() {
            return Err(WriteError::Detached);
        }
        let _uncancelled = Uncancelled::new();
        if !self.member.move_here() {
            // The thread that used the session last has ended, and its slot was given back.
            self.inner.abandon();
            take_seat(&mut self.inner, &mut self.member)?;
        }
        self.thread = presence::thread_number();
        Ok(())
    }

    /// A call that is measured, as its sampler has found. `work` makes the same call again.
    ///
    /// `work` owns what it needs: a reference to an argument would keep that in memory in all other calls, too.
    #[cold]
    #[inline(never)]
    fn measured<R>(&mut self, verb: Verb, work: impl FnOnce(&mut Self) -> R) -> R {
        self.sampler.begin_again();
        if self.is_ready() {
            let _inside = self.latch.open();
            self.left.trail = self.inner.region().kept_trail().is_some();
        }
        self.timed(verb, work)
    }

    /// Measures a call.
    fn timed<R>(&mut self, verb: Verb, work: impl FnOnce(&mut Self) -> R) -> R {
        let Some(start) = self.timer.as_ref().map(|timer| timer.now()) else {
            return work(self);
        };
        let result = work(self);
        if let Some(timer) = &mut self.timer {
            let end = timer.now();
            let ns = timer.ns_between(start, end);
            if let Some(door) = self.member.sessions.door {
                self.note_latency(door, verb, ns);
            }
        }
        result
    }

    /// Notes that an operation took so long.
    pub(crate) fn note_latency(&self, door: Door, verb: Verb, ns: u64) {
        if self.is_ready() {
            let _inside = self.latch.open();
            self.inner.note_latency(door, verb, ns);
        }
    }

    /// Adds operations that were counted elsewhere; returns whether the region could be written.
    pub(crate) fn add_latency(&self, door: Door, verb: Verb, counted: &Latency) -> bool {
        if !self.is_ready() {
            return false;
        }
        let _inside = self.latch.open();
        self.inner.add_latency(door, verb, counted);
        true
    }

    #[inline]
    fn now(&mut self) -> u32 {
        tick(
            &mut self.member.watch,
            clock::coarse_ns(),
            self.inner.region(),
            &self.member.sessions,
        )
    }

    /// To be called before a verb with this exptime. A Unix time is translated by the process's own wall clock, as it is
    /// now.
    #[inline]
    fn translate_exptime(&mut self, exptime: i64) {
        if exptime > RELATIVE_EXPTIME_MAX {
            self.read_wall_clock();
        }
    }

    #[cold]
    fn read_wall_clock(&mut self) {
        let now = self.member.sessions.clock.now_by_own_wall();
        let _inside = self.latch.open();
        self.inner.set_wall_clock(now);
    }

    /// [`Self::translate_exptime`] for a get that may change its item.
    fn translate_exptimes(&mut self, how: &Get) {
        [how.exptime, how.vivify]
            .into_iter()
            .flatten()
            .for_each(|exptime| self.translate_exptime(exptime));
    }

    /// Prefetches for verbs with these keys. The keys are read before the gate opens.
    pub(crate) fn prefetch<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>) {
        if self.ready().is_ok() {
            let region = self.inner.region();
            let ahead = region.ahead(keys);
            let _inside = self.latch.open();
            region.prefetch(&ahead);
        }
    }

    /// Gets to the sink.
    #[inline(always)]
    pub(crate) fn get<S: Sink>(&mut self, key: &[u8], how: &Get, sink: &mut S) -> Result<Option<Item>, WriteError> {
        match self.get_at_once(key, how, sink, |item| item) {
            Some(found) => Ok(found),
            None => self.get_another_way(key, how, sink),
        }
    }

    #[cold]
    #[inline(never)]
    fn get_another_way<S: Sink>(&mut self, key: &[u8], how: &Get, sink: &mut S) -> Result<Option<Item>, WriteError> {
        let mut found = None;
        match self.get_through_gate(key, how, sink, |item| found = Some(item)) {
            Behind::Known => Ok(found),
            Behind::Unknown => self.get_any_way(key, how, sink, |item| item),
        }
    }

    /// [`Self::get`] of the common case without a gate, for a caller that needs only what `hit` returns. `None`:
    /// [`Self::get_any_way`] knows more.
    #[inline(always)]
    pub(crate) fn get_at_once<S: Sink, R>(
        &mut self,
        key: &[u8],
        how: &Get,
        sink: &mut S,
        hit: impl FnOnce(Item) -> R,
    ) -> Option<Option<R>> {
        // Behind a gate each get is said to be a sample: see `Left`.
        if self.sampler.is_due() || is_last(&mut self.left.gets) || !self.is_ready() {
            return None;
        }
        let now = Watched::without_gate(&mut self.member);
        self.inner.get_at_once(key, how, now, sink, hit)
    }

    /// Whether the mapping has a gate, so that [`Self::get_through_gate`] may know more.
    #[inline(always)]
    pub(crate) fn has_gate(&self) -> bool {
        self.latch.is_on()
    }

    /// The same behind a gate, for a get that [`Self::get_at_once`] has just left to it. Without a gate it does nothing. `hit` puts the
    /// item directly in its place: a result of several words would be moved. Not compiled into the caller, whose registers the get
    /// without a gate needs.
    #[cold]
    #[inline(never)]
    pub(crate) fn get_through_gate<S: Sink>(&mut self, key: &[u8], how: &Get, sink: &mut S, hit: impl FnMut(Item)) -> Behind {
        // A get that is to be measured is not counted yet.
        if !self.latch.is_on() || self.left.gets != 0 {
            return Behind::Unknown;
        }
        self.left.gets = 1;
        let [gets, _] = &mut self.left.behind_gate;
        if is_last(gets) || !self.is_ready() {
            return Behind::Unknown;
        }
        self.attempt_behind_gate(key, how, sink, hit)
    }

    /// [`Self::get`] of anything, after the two quick attempts.
    #[inline(always)]
    pub(crate) fn get_any_way<S: Sink, R>(
        &mut self,
        key: &[u8],
        how: &Get,
        sink: &mut S,
        hit: impl Fn(Item) -> R,
    ) -> Result<Option<R>, WriteError> {
        if self.sampler.has_come() {
            return self.measured(verb_of(how), |this| {
                if let Some(found) = this.get_at_once(key, how, sink, &hit) {
                    return Ok(found);
                }
                let mut found = None;
                match this.get_through_gate(key, how, sink, |item| found = Some(hit(item))) {
                    Behind::Known => Ok(found),
                    Behind::Unknown => this.get_unmeasured(key, how, sink, hit),
                }
            });
        }
        self.get_unmeasured(key, how, sink, hit)
    }

    /// The same, when it is known whether it is measured.
    #[inline(always)]
    fn get_unmeasured<S: Sink, R>(
        &mut self,
        key: &[u8],
        how: &Get,
        sink: &mut S,
        hit: impl Fn(Item) -> R,
    ) -> Result<Option<R>, WriteError> {
        let is_sample = self.is_sample();
        self.ready()?;
        if is_sample {
            return self.get_sampled(key, how, sink, hit);
        }
        Ok(self.get_by_all_rules(key, how, sink)?.map(hit))
    }

    /// Whether the get that was not answered quickly is a sample. If it fails, the next one is.
    fn is_sample(&mut self) -> bool {
        let [behind_gate, _] = &mut self.left.behind_gate;
        let left = if self.latch.is_on() {
            behind_gate
        } else {
            &mut self.left.gets
        };
        let is_sample = *left == 0;
        *left += u32::from(is_sample);
        is_sample
    }

    /// The same, and counts its key.
    #[cold]
    #[inline(never)]
    fn get_sampled<S: Sink, R>(
        &mut self,
        key: &[u8],
        how: &Get,
        sink: &mut S,
        hit: impl Fn(Item) -> R,
    ) -> Result<Option<R>, WriteError> {
        let (given, extent) = (Cell::new(0), Cell::new(None));
        let hit = |item: Item| {
            given.set(if how.value { item.value_len } else { 0 });
            extent.set(Some(extent_of(&item)));
            hit(item)
        };
        let at_once = if self.latch.is_on() {
            let mut found = None;
            let answer = self.attempt_behind_gate(key, how, sink, |item| found = Some(hit(item)));
            (answer == Behind::Known).then_some(found)
        } else {
            let now = Watched::without_gate(&mut self.member);
            self.inner.get_at_once(key, how, now, sink, hit)
        };
        let found = match at_once {
            Some(found) => found,
            None => self.get_by_all_rules(key, how, sink)?.map(hit),
        };
        let hash = self.inner.region().hash(key);
        let _inside = self.latch.open();
        let next = self.inner.sample_get(hash, given.get());
        if let Some(name) = self.inner.on_trail(hash) {
            self.inner.leave_trail(name, extent.get().map_or(Fate::Missed, Fate::Hit));
        }
        self.left.next_get(self.latch, next);
        Ok(found)
    }

    /// One quick attempt at a get behind a gate. While the gate is open, no code and no memory of a caller in another language is
    /// accessed: the value goes to the session's own buffer, and from there to the sink. `hit`, which is this crate's, may run inside.
    #[inline(always)]
    fn attempt_behind_gate<S: Sink>(&mut self, key: &[u8], how: &Get, sink: &mut S, mut hit: impl FnMut(Item)) -> Behind {
        let coarse_ns = self.member.watch.ahead(clock::coarse_ns);
        let now = Watched::behind_gate(&mut self.member, coarse_ns);
        let (key, value) = self.copies.for_read(key);
        if let Some(out) = sink.vector() {
            let _inside = self.latch.open_gate();
            return match self.inner.get_at_once(key, how, now, out, hit) {
                Some(_) => Behind::Known,
                None => Behind::Unknown,
            };
        }
        let inside = self.latch.open_gate();
        let found = self.inner.get_at_once(key, how, now, value, |item| item);
        drop(inside);
        match found {
            None => return Behind::Unknown,
            Some(None) => {}
            // An error comes again, and is then reported.
            Some(Some(item)) if copies::pass(sink, &item, value).is_err() => return Behind::Unknown,
            Some(Some(item)) => hit(item),
        }
        self.copies.clear();
        Behind::Known
    }

    /// [`Self::get`] without a quick attempt.
    #[cold]
    #[inline(never)]
    fn get_by_all_rules<S: Sink>(&mut self, key: &[u8], how: &Get, sink: &mut S) -> Result<Option<Item>, WriteError> {
        if how.may_change() {
            self.translate_exptimes(how);
        }
        if !self.latch.is_on() && !how.may_change() {
            let now = Watched::without_gate(&mut self.member);
            if let Some(found) = self.inner.get_watched(key, how, now, sink) {
                return Ok(found);
            }
            let now = self.now();
            return self.inner.get_by_all_rules(key, how, now, sink);
        }
        if !self.latch.is_on() && !S::IS_FOREIGN {
            return change!(self, key, |inner, key, now| inner.get_by_all_rules(key, how, at(now), sink));
        }
        if let Some(out) = sink.vector() {
            return self.get_inside(key, how, out);
        }
        // With a gate, and while an item changes, the caller's memory is not accessed.
        let mut value = self.copies.lend();
        let found = self.get_inside(key, how, &mut value);
        let passed = match &found {
            Ok(Some(item)) => copies::pass(sink, item, &value),
            _ => Ok(()),
        };
        self.copies.give_back(value);
        passed.and(found)
    }

    /// Gets to a vector, with the gate open meanwhile.
    fn get_inside(&mut self, key: &[u8], how: &Get, out: &mut Vec<u8>) -> Result<Option<Item>, WriteError> {
        if how.may_change() {
            return change!(self, key, |inner, key, now| inner.get_by_all_rules(key, how, at(now), out));
        }
        let key = self.copies.of(self.latch, key);
        verb(
            &mut self.inner,
            &mut self.member.watch,
            &self.member.sessions,
            |inner, now| inner.get_by_all_rules(key, how, now, out),
        )
    }

    /// Gets for answers on a socket: see [`crate::Session::get_to`].
    #[inline]
    pub(crate) fn answer(
        &mut self,
        key: &[u8],
        how: &Get,
        socket: BorrowedFd<'_>,
        out: &mut Vec<u8>,
        head: impl FnMut(&Item, &mut Vec<u8>),
        behind: &[u8],
    ) -> Result<Option<(Item, usize)>, WriteError> {
        if self.latch.is_on() {
            // The kernel could not read the value through the closed gate.
            return Ok(with_tail(self.get(key, how, &mut Headed::new(out, head))?, out, behind));
        }
        let how = Get {
            at_most: Some(COPIED_MAX),
            ..*how
        };
        let mut sent = None;
        let found = self.get(
            key,
            &how,
            &mut Lending::new(&mut *out, head, |value, out| {
                sent = Some(send_or_copy(socket, out, value, behind));
            }),
        )?;
        match (found, sent) {
            (Some(item), Some(sent)) => Ok(Some((item, sent))),
            (found, _) => Ok(with_tail(found, out, behind)),
        }
    }

    #[inline]
    pub(crate) fn store(&mut self, key: &[u8], value: &[u8], how: &Store) -> Result<Stored, WriteError> {
        if how.is_plain() {
            return self.set(key, value, how.flags, how.exptime);
        }
        self.store_if(key, value, how)
    }

    /// [`Self::store`] of a value with these client flags and this exptime, whatever is there.
    pub(crate) fn set(&mut self, key: &[u8], value: &[u8], flags: u32, exptime: i64) -> Result<Stored, WriteError> {
        if is_last(&mut self.left.changes) {
            return self.set_another_way(key, value, flags, exptime);
        }
        self.set_without_gate(key, value, flags, exptime)
    }

    #[inline(always)]
    fn set_without_gate(&mut self, key: &[u8], value: &[u8], flags: u32, exptime: i64) -> Result<Stored, WriteError> {
        self.ready()?;
        self.translate_exptime(exptime);
        prepare(&mut self.inner, &mut self.member)?;
        let now = Watched::without_gate(&mut self.member);
        self.inner.set(key, value, flags, exptime, now)
    }

    /// A set that is a sample, or behind a gate.
    #[cold]
    #[inline(never)]
    fn set_another_way(&mut self, key: &[u8], value: &[u8], flags: u32, exptime: i64) -> Result<Stored, WriteError> {
        if self.is_sampled_change() {
            return self.sampled(Verb::Set, key, move |this| match this.latch.is_on() {
                true => this.set_another_way(key, value, flags, exptime),
                false => this.set_without_gate(key, value, flags, exptime),
            });
        }
        self.ready()?;
        self.translate_exptime(exptime);
        self.store_inside(key, value, |inner, key, value, now| {
            inner.set(key, value, flags, exptime, now)
        })
    }

    #[inline(never)]
    fn store_if(&mut self, key: &[u8], value: &[u8], how: &Store) -> Result<Stored, WriteError> {
        if is_last(&mut self.left.changes) && self.is_sampled_change() {
            return self.sampled(Verb::Set, key, move |this| this.store_if_now(key, value, how));
        }
        self.store_if_now(key, value, how)
    }

    #[inline(always)]
    fn store_if_now(&mut self, key: &[u8], value: &[u8], how: &Store) -> Result<Stored, WriteError> {
        self.ready()?;
        self.translate_exptime(how.exptime);
        if self.latch.is_on() {
            return self.store_inside(key, value, |inner, key, value, now| inner.store(key, value, how, now));
        }
        prepare(&mut self.inner, &mut self.member)?;
        let now = Watched::without_gate(&mut self.member);
        self.inner.store(key, value, how, now)
    }

    /// A store behind a gate, of a copy of the value.
    #[inline(always)]
    fn store_inside(
        &mut self,
        key: &[u8],
        value: &[u8],
        work: impl FnOnce(&mut keyway_region::Session, &[u8], &[u8], Watched<'_>) -> Result<Stored, WriteError>,
    ) -> Result<Stored, WriteError> {
        let coarse_ns = self.member.watch.ahead(clock::coarse_ns);
        let (key, value) = self.copies.for_store(key, value, self.inner.item_size_max())?;
        let inside = self.latch.open_gate();
        let stored = prepare(&mut self.inner, &mut self.member).and_then(|()| {
            let now = Watched::behind_gate(&mut self.member, coarse_ns);
            work(&mut self.inner, key, value, now)
        });
        drop(inside);
        self.copies.clear();
        stored
    }

    /// What [`change`] does behind a gate, with a copy of the key.
    #[cold]
    #[inline(never)]
    fn change_behind_gate<R>(
        &mut self,
        key: &[u8],
        work: impl FnOnce(&mut keyway_region::Session, &[u8], Watched<'_>) -> Result<R, WriteError>,
    ) -> Result<R, WriteError> {
        change_inside!(self, key, |inner, key, now| work(inner, key, now))
    }

    /// Whether a change that [`Left::changes`] has said to be a sample is one: without a gate it is.
    #[inline(always)]
    fn is_sampled_change(&mut self) -> bool {
        if !self.latch.is_on() {
            return true;
        }
        self.left.changes = 1;
        let [_, changes] = &mut self.left.behind_gate;
        is_last(changes)
    }

    #[inline(always)]
    pub(crate) fn delete(&mut self, key: &[u8], how: &Delete) -> Result<Deleted, WriteError> {
        if self.sampler.is_due() {
            return self.measured(Verb::Delete, move |this| this.delete(key, how));
        }
        self.ready()?;
        self.translate_exptime(how.exptime.unwrap_or(0));
        let deleted = if self.latch.is_on() {
            self.delete_behind_gate(key, how)
        } else {
            change_without_gate!(self, key, |inner, key, now| inner.delete(key, how, now))
        };
        if self.left.trail {
            self.leave_trail(key);
        }
        deleted
    }

    #[cold]
    #[inline(never)]
    fn delete_behind_gate(&mut self, key: &[u8], how: &Delete) -> Result<Deleted, WriteError> {
        change_inside!(self, key, |inner, key, now| inner.delete(key, how, now))
    }

    #[inline]
    pub(crate) fn arithmetic(&mut self, key: &[u8], how: &Arithmetic) -> Result<Counted, WriteError> {
        if is_last(&mut self.left.changes) && self.is_sampled_change() {
            return self.sampled(Verb::Arithmetic, key, move |this| this.arithmetic_now(key, how));
        }
        self.arithmetic_now(key, how)
    }

    #[inline(always)]
    fn arithmetic_now(&mut self, key: &[u8], how: &Arithmetic) -> Result<Counted, WriteError> {
        self.ready()?;
        self.translate_exptime(how.exptime.unwrap_or(0));
        self.translate_exptime(how.vivify.map_or(0, |(_, exptime)| exptime));
        change!(self, key, |inner, key, now| inner.arithmetic(key, how, now))
    }

    #[inline]
    pub(crate) fn incr(&mut self, key: &[u8], delta: u64) -> Result<Number, WriteError> {
        if is_last(&mut self.left.changes) {
            return self.incr_another_way(key, delta);
        }
        self.incr_without_gate(key, delta)
    }

    #[inline(always)]
    fn incr_without_gate(&mut self, key: &[u8], delta: u64) -> Result<Number, WriteError> {
        self.ready()?;
        change_without_gate!(self, key, |inner, key, now| inner.incr(key, delta, now))
    }

    /// The same as a sample, or behind a gate.
    #[cold]
    #[inline(never)]
    fn incr_another_way(&mut self, key: &[u8], delta: u64) -> Result<Number, WriteError> {
        if self.is_sampled_change() {
            return self.sampled(Verb::Arithmetic, key, move |this| match this.latch.is_on() {
                true => this.incr_another_way(key, delta),
                false => this.incr_without_gate(key, delta),
            });
        }
        self.ready()?;
        change_inside!(self, key, |inner, key, now| inner.incr(key, delta, now))
    }

    #[inline]
    pub(crate) fn decr(&mut self, key: &[u8], delta: u64) -> Result<Number, WriteError> {
        if is_last(&mut self.left.changes) {
            return self.decr_another_way(key, delta);
        }
        self.decr_without_gate(key, delta)
    }

    #[inline(always)]
    fn decr_without_gate(&mut self, key: &[u8], delta: u64) -> Result<Number, WriteError> {
        self.ready()?;
        change_without_gate!(self, key, |inner, key, now| inner.decr(key, delta, now))
    }

    /// The same as a sample, or behind a gate.
    #[cold]
    #[inline(never)]
    fn decr_another_way(&mut self, key: &[u8], delta: u64) -> Result<Number, WriteError> {
        if self.is_sampled_change() {
            return self.sampled(Verb::Arithmetic, key, move |this| match this.latch.is_on() {
                true => this.decr_another_way(key, delta),
                false => this.decr_without_gate(key, delta),
            });
        }
        self.ready()?;
        change_inside!(self, key, |inner, key, now| inner.decr(key, delta, now))
    }

    pub(crate) fn touch(&mut self, key: &[u8], exptime: i64) -> Result<bool, WriteError> {
        if self.sampler.is_due() {
            return self.measured(Verb::Touch, move |this| this.touch(key, exptime));
        }
        self.ready()?;
        self.translate_exptime(exptime);
        let touched = change!(self, key, |inner, key, now| inner.touch(key, exptime, at(now)));
        if self.left.trail {
            self.leave_trail(key);
        }
        touched
    }

    pub(crate) fn flush_all(&mut self, exptime: i64) -> Result<(), WriteError> {
        if self.sampler.is_due() {
            return self.measured(Verb::Other, move |this| this.flush_all(exptime));
        }
        self.ready()?;
        self.translate_exptime(exptime);
        change!(self, b"", |inner, _key, now| inner.flush_all(exptime, at(now)))
    }

    pub(crate) fn walk(&mut self, cursor: u64, budget: usize, visit: impl FnMut(&[u8], &Item)) -> Option<u64> {
        self.ready().ok()?;
        if self.latch.is_on() {
            return self.walk_behind_gate(cursor, budget, visit);
        }
        let now = self.now();
        self.inner.region().walk(cursor, budget, now, visit)
    }

    #[inline]
    pub(crate) fn is_held_up(&self) -> bool {
        let knows_door = {
            let _inside = self.latch.open();
            self.inner.knows_door()
        };
        !knows_door && self.member.is_here() && kernel::is_held_up(&self.member.sessions)
    }

    pub(crate) fn upkeep(&mut self) {
        if self.ready().is_ok() {
            self.member.sessions.upkeep();
            self.in_its_seat(keyway_region::Session::upkeep);
        }
    }

    pub(crate) fn shrink(&mut self) -> Shrinking {
        if self.ready().is_err() {
            return Shrinking::Done;
        }
        self.in_its_seat(keyway_region::Session::shrink).unwrap_or(Shrinking::Waiting)
    }

    /// Work of a session that is not a verb. Without a thread slot there is nothing that it could do.
    fn in_its_seat<R>(&mut self, work: impl FnOnce(&mut keyway_region::Session, u32) -> R) -> Option<R> {
        let coarse_ns = clock::coarse_ns();
        let _inside = self.latch.open();
        let now = tick(&mut self.member.watch, coarse_ns, self.inner.region(), &self.member.sessions);
        let has_seat = !self.inner.is_fenced() || aside(|| take_seat(&mut self.inner, &mut self.member)).is_ok();
        has_seat.then(|| work(&mut self.inner, now))
    }

    pub(crate) fn look(&mut self, key: &[u8]) -> Result<Read, WriteError> {
        self.ready()?;
        let key = self.copies.of(self.latch, key);
        verb(
            &mut self.inner,
            &mut self.member.watch,
            &self.member.sessions,
            |inner, now| inner.region().read(key, &Get::default(), now, &mut Vec::new()),
        )
    }

    #[inline]
    pub(crate) fn serve_as(&self, door: Door, is_meta: bool, descriptor: i32) {
        self.inner.serve_as(door, is_meta, descriptor);
    }

    pub(crate) fn tells_connections(&mut self) -> bool {
        self.ready().is_ok() && {
            let _inside = self.latch.open();
            self.inner.tells_connections()
        }
    }

    pub(crate) fn tell_connection(&mut self, text: &[u8]) {
        if self.ready().is_ok() {
            let _inside = self.latch.open();
            self.inner.tell_connection(text);
        }
    }

    pub(crate) fn note_hit(&mut self, key: &[u8]) {
        if self.ready().is_ok() {
            let key = self.copies.of(self.latch, key);
            verb(
                &mut self.inner,
                &mut self.member.watch,
                &self.member.sessions,
                |inner, now| inner.note_hit(key, now),
            );
        }
    }

    pub(crate) fn seat(&self) -> Seat {
        self.inner.seat()
    }

    pub(crate) fn release(&mut self) {
        if self.ready().is_ok() {
            verb(&mut self.inner, &mut self.member.watch, &self.member.sessions, |inner, _| {
                inner.release_extents()
            });
        }
    }

    pub(crate) fn clock_s(&mut self) -> u64 {
        let _inside = self.latch.open();
        seconds_of(self.now())
    }

    pub(crate) fn clock(&self) -> Duration {
        let now = self.member.sessions.clock.now();
        let _inside = self.latch.open();
        self.inner.region().clock(now.boot)
    }

    /// [`Self::walk`] for a mapping with a gate: `visit` is called when the gate is closed.
    fn walk_behind_gate(&mut self, cursor: u64, budget: usize, mut visit: impl FnMut(&[u8], &Item)) -> Option<u64> {
        let mut keys = Vec::new();
        let mut items: Vec<(usize, Item)> = Vec::new();
        let next = verb(
            &mut self.inner,
            &mut self.member.watch,
            &self.member.sessions,
            |inner, now| {
                inner.region().walk(cursor, budget, now, |key, item| {
                    reserve(&mut keys, key.len());
                    keys.extend_from_slice(key);
                    reserve(&mut items, 1);
                    items.push((key.len(), *item));
                })
            },
        );
        let mut rest = keys.as_slice();
        for (len, item) in &items {
            let (key, behind) = rest.split_at_checked(*len).unwrap_or((rest, &[]));
            rest = behind;
            visit(key, item);
        }
        next
    }
}

/// The answer of a quick attempt behind a gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    /// the item was given, if there is one
    Known,
    /// the sink is as long as before
    Unknown,
}

/// As which verb a get is measured.
fn verb_of(how: &Get) -> Verb {
    if how.exptime.is_some() { Verb::Touch } else { Verb::Get }
}

/// Operations until the next sample of each kind, that one included.
///
/// Behind a gate the first two are always 1: so an operation without a gate need not ask whether there is one, and one behind a gate
/// leaves that way at once.
struct Left {
    gets: u32,
    changes: u32,
    /// the same two behind a gate
    behind_gate: [u32; 2],
    /// whether the region's trail was kept when the session last looked: then deletes and touches are on it
    trail: bool,
}

impl Left {
    /// The next get that is a sample is this one of those to come.
    fn next_get(&mut self, latch: Latch, left: u32) {
        let [gets, _] = &mut self.behind_gate;
        *(if latch.is_on() { gets } else { &mut self.gets }) = left;
    }

    /// The same of changes.
    fn next_change(&mut self, latch: Latch, left: u32) {
        let [_, changes] = &mut self.behind_gate;
        match latch.is_on() {
            // The same change begins again, and is counted again.
            true => *changes = left.saturating_add(1),
            false => self.changes = left,
        }
    }
}

/// What the trail says of an item.
fn extent_of(item: &Item) -> Extent {
    Extent {
        size: u32::try_from(item.size).unwrap_or(u32::MAX),
        ttl_s: item.ttl_s,
    }
}

/// Counts an operation. Whether it is the one that was waited for.
#[inline(always)]
fn is_last(left: &mut u32) -> bool {
    *left = left.wrapping_sub(1);
    *left == 0
}

/// A hit whose value is in `out`: appends what follows the value. Nothing is sent.
#[inline(always)]
fn with_tail(found: Option<Item>, out: &mut Vec<u8>, behind: &[u8]) -> Option<(Item, usize)> {
    found.map(|item| {
        out.extend_from_slice(behind);
        (item, 0)
    })
}

/// Sends `out`, the value and what follows it. What the socket does not take at once is in `out` afterwards.
fn send_or_copy(to: BorrowedFd<'_>, out: &mut Vec<u8>, value: &Lent<'_>, behind: &[u8]) -> usize {
    let sent = socket::send(to, out, value, behind);
    let of_value = sent.saturating_sub(out.len());
    let of_tail = of_value.saturating_sub(value.len());
    out.drain(..sent.min(out.len()));
    if of_value < value.len() {
        value.append_from(of_value, out);
    }
    out.extend_from_slice(behind.get(of_tail..).unwrap_or_default());
    sent
}

/// The region's tick when the coarse clock has this value.
#[inline(always)]
fn tick(watch: &mut Watch, coarse_ns: i64, region: &Region, sessions: &Sessions) -> u32 {
    watch.tick(
        coarse_ns,
        || clock::read(region, sessions.clock.now()),
        |now| region.note_use(now),
    )
}

/// The region's time: the clock is asked only if an item has an expiry, and otherwise every so many calls.
struct Watched<'w> {
    watch: &'w mut Watch,
    sessions: &'w Sessions,
    has_gate: bool,
    /// behind a gate: the coarse clock, if it was asked before the gate was opened; otherwise 0
    coarse_ns: i64,
}

impl<'w> Watched<'w> {
    #[inline(always)]
    fn without_gate(member: &'w mut Membership) -> Self {
        Self {
            watch: &mut member.watch,
            sessions: &member.sessions,
            has_gate: false,
            coarse_ns: 0,
        }
    }

    #[inline(always)]
    fn behind_gate(member: &'w mut Membership, coarse_ns: i64) -> Self {
        Self {
            watch: &mut member.watch,
            sessions: &member.sessions,
            has_gate: true,
            coarse_ns,
        }
    }
}

impl Now for Watched<'_> {
    #[inline(always)]
    fn tick(&mut self) -> u32 {
        if self.has_gate {
            tick_behind_gate(self.watch, self.sessions, self.coarse_ns)
        } else {
            tick(self.watch, clock::coarse_ns(), &self.sessions.region, self.sessions)
        }
    }

    #[inline(always)]
    fn recent(&mut self, noted: u64) -> u32 {
        match self.watch.recent(noted) {
            Some(tick) => tick,
            None if self.has_gate => ask_clock(self.watch, self.sessions, self.coarse_ns),
            None => ask_clock(self.watch, self.sessions, clock::coarse_ns()),
        }
    }
}

/// The region's tick, for a call behind a gate that needs it.
#[inline(never)]
fn tick_behind_gate(watch: &mut Watch, sessions: &Sessions, coarse_ns: i64) -> u32 {
    watch.expect_calls(coarse_ns != 0);
    tick(watch, asked_outside(coarse_ns), &sessions.region, sessions)
}

/// The region's tick, which is recent for the next calls.
#[inline(never)]
fn ask_clock(watch: &mut Watch, sessions: &Sessions, coarse_ns: i64) -> u32 {
    let tick = tick(watch, asked_outside(coarse_ns), &sessions.region, sessions);
    watch.has_asked(sessions.region.seen().0);
    tick
}

/// The coarse clock: as it was asked before the gate was opened, or as it is asked now, with the gate closed meanwhile.
#[inline(always)]
fn asked_outside(coarse_ns: i64) -> i64 {
    if coarse_ns != 0 { coarse_ns } else { aside(clock::coarse_ns) }
}

/// Works on the region, inside the gate, at the region's time.
#[inline(always)]
fn verb<R>(
    inner: &mut keyway_region::Session,
    watch: &mut Watch,
    sessions: &Sessions,
    work: impl FnOnce(&mut keyway_region::Session, u32) -> R,
) -> R {
    let coarse_ns = clock::coarse_ns();
    let _inside = sessions.latch.open();
    let now = tick(watch, coarse_ns, inner.region(), sessions);
    work(inner, now)
}

/// The tick of a verb's time.
fn at(mut now: Watched<'_>) -> u32 {
    now.tick()
}

/// To be called before a change, inside the gate: makes sure that the session has its thread slot, and that the change
/// can be counted if changes are to be counted.
#[inline(always)]
fn prepare(inner: &mut keyway_region::Session, member: &mut Membership) -> Result<(), WriteError> {
    if inner.is_fenced() {
        aside(|| take_seat(inner, member))?;
    }
    if !inner.knows_door() {
        // If this does not succeed, the verb reports it.
        aside(|| kernel::follow_door(&member.sessions));
    }
    Ok(())
}

/// The session was fenced: another process took this process for dead. The session gives its thread slot back, and takes
/// another one.
#[cold]
#[inline(never)]
fn take_seat(inner: &mut keyway_region::Session, member: &mut Membership) -> Result<(), WriteError> {
    let _uncancelled = Uncancelled::new();
    member.sessions.inside(|_| inner.end());
    member.sessions.leave(member.id);
    member.sessions.regain();
    let (mut fresh, id) = member.sessions.hire().ok_or(WriteError::Detached)?;
    fresh.set_wall_clock_like(inner);
    (*inner, member.id) = (*fresh, id);
    Ok(())
}

impl Drop for Writer {
    fn drop(&mut self) {
        if self.member.is_here() && self.member.move_here() {
            let _inside = self.latch.open();
            self.inner.end();
        } else {
            self.inner.abandon();
        }
    }
}

/// A session's entry in its process's list.
struct Membership {
    sessions: Arc<Sessions>,
    id: u64,
    /// what the session knows of the region's clock
    watch: Watch,
}

impl Membership {
    #[inline]
    fn is_here(&self) -> bool {
        self.sessions.home.is_here()
    }

    fn move_here(&self) -> bool {
        self.sessions.move_here(self.id)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // In a forked child, a thread that the child does not have may hold the list's lock.
        if self.is_here() {
            self.sessions.leave(self.id);
        }
    }
}
