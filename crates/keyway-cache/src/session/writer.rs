//! The verbs of a thread that has a thread slot in the region: the verbs of `keyway_region`, with the time filled in.

use crate::clock::timer::{Sampler, Timer};
use crate::clock::{self, Watch};
use crate::gate::{Latch, aside, place};
use crate::process::cancel::Uncancelled;
use crate::process::thread;
use crate::session::buffer::{Buffer, Walked, pass};
use crate::session::kernel;
use crate::session::roster::Sessions;
use crate::session::socket;
use keyway_region::layout::latency::{Door, Latency, Verb};
use keyway_region::layout::trail::{Extent, Fate};
use keyway_region::verbs::RELATIVE_EXPTIME_MAX;
use keyway_region::verbs::{Arithmetic, Counted, Delete, Deleted, Get, Item, Now, Number, Read, Store, Stored, WriteError};
use keyway_region::{Headed, Key, KeyRoom, Limits, Once, PinnedValue, Pinning, SessionId, Shrinking, Sink, Trail, seconds_of};
use std::convert::identity;
use std::hint::cold_path;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// Longer values, in bytes, are sent directly from their place in the region. Up to this length, a copy costs less than
/// the extra system call that a direct send takes.
const COPIED_MAX: usize = 32 * 1024;

/// A thread's session of the region, and what its process knows of it.
pub struct Writer {
    inner: keyway_region::Session,
    /// dropped after `inner`: a thread that dies between the two is still in its process's list
    member: Membership,
    /// the number of the thread that used the session last
    thread: u64,
    latch: Latch,
    /// there is a gate, or gets do not take the region's fast path
    is_special: bool,
    /// for values that do not go to their places at once
    buffer: Buffer,
    sampler: Sampler,
    /// operations until the next one of which the key is counted for `keyway hot`, that one included
    left: Left,
    /// on the heap: used in few calls
    timer: Option<Box<Timer>>,
}

/// A verb that may change the region, and the value that it is given: `$work`, compiled into the caller.
macro_rules! change {
    ($writer:expr, $value:expr, |$inner:ident, $now:ident| $work:expr) => {{
        let writer: &mut Writer = $writer;
        let verb = writer.latch.begin_verb([place($value), &[]]);
        if let Err(error) = prepare(&mut writer.inner, &mut writer.member) {
            verb.end();
            return Err(error);
        }
        let ($inner, $now) = (&mut writer.inner, Watched(&mut writer.member));
        let done = $work;
        verb.end();
        done
    }};
}

impl Writer {
    /// With a session of the region, and its number ([`Sessions::hire`]).
    pub fn new(sessions: Arc<Sessions>, (inner, id): (Box<keyway_region::Session>, u64)) -> Self {
        let latch = sessions.latch;
        let timer = sessions.door.map(|_| Box::new(Timer::new()));
        let first = {
            let _inside = latch.open();
            inner.sampling().first_sample()
        };
        let left = Left {
            gets: first,
            changes: first,
            trail: false,
        };
        Self {
            sampler: Sampler::new(timer.as_ref().map_or(1, |timer| timer.now().rotate_left(17) ^ id)),
            timer,
            left,
            is_special: latch.is_on() || !inner.has_fast_path(),
            inner: *inner,
            member: Membership {
                sessions,
                id,
                watch: Watch::default(),
            },
            thread: thread::thread_number(),
            latch,
            buffer: Buffer::default(),
        }
    }

    /// A caller's key, copied to the room: every verb goes by that copy. It has a length that a key can have.
    #[inline(always)]
    pub fn key<'r>(&self, given: &[u8], room: &'r mut KeyRoom) -> Key<'r> {
        self.inner.region().mapped().key(given, room)
    }

    /// To be called before every use: checks that the process is the one that attached, and that the calling thread is
    /// known.
    #[inline(always)]
    fn ready(&mut self) -> Result<(), WriteError> {
        if self.is_ready() { Ok(()) } else { self.arrive() }
    }

    #[inline(always)]
    fn is_ready(&self) -> bool {
        thread::thread_number_if_known() == self.thread && self.member.is_here()
    }

    /// Before a change that is a sample: its key is counted. The change is then made as any other.
    #[cold]
    #[inline(never)]
    fn begin_sample(&mut self, key: Key<'_>) -> Sample {
        // If it fails, the next one is the sample.
        let mut sample = Sample { next: 1, begun: None };
        if self.ready().is_ok() {
            let _inside = self.latch.open();
            let is_timed = self.inner.sampling().is_set_timed();
            sample.next = self.inner.sampling().sample_set(key.hash());
            sample.begun = self.timer.as_ref().filter(|_| is_timed).map(|timer| timer.now());
        }
        sample
    }

    /// After it: mostly it is measured.
    #[cold]
    #[inline(never)]
    fn end_sample(&mut self, sample: &Sample, verb: Verb, key: Key<'_>) {
        self.end_measure(sample.begun, verb);
        self.left.changes = sample.next;
        self.leave_trail(key);
    }

    /// After a change: if the region's trail is kept, and the key is on it, says there what the change has left.
    #[cold]
    #[inline(never)]
    fn leave_trail(&mut self, key: Key<'_>) {
        if !self.is_ready() {
            return;
        }
        let kept = {
            let _inside = self.latch.open();
            self.inner.region().trail().kept_trail()
        };
        self.left.trail = kept.is_some();
        let name = kept.and_then(|shift| Trail::on_trail(key.hash(), shift));
        if let Some(name) = name
            && let Ok(found) = self.look_by(key)
        {
            let fate = match &found {
                Read::Hit(item) => Fate::Stored(extent_of(item)),
                _ => Fate::Gone,
            };
            let _inside = self.latch.open();
            self.inner.region().trail().leave_trail(name, fate);
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
            take_slot(&mut self.inner, &mut self.member)?;
        }
        self.thread = thread::thread_number();
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
            self.left.trail = self.inner.region().trail().kept_trail().is_some();
        }
        self.timed_if(true, verb, work)
    }

    /// Works, and measures it if it is to be measured.
    fn timed_if<R>(&mut self, is_timed: bool, verb: Verb, work: impl FnOnce(&mut Self) -> R) -> R {
        let begun = self.timer.as_ref().filter(|_| is_timed).map(|timer| timer.now());
        let result = work(self);
        self.end_measure(begun, verb);
        result
    }

    /// Notes how long a verb took, if it was measured from `begun` on.
    fn end_measure(&mut self, begun: Option<u64>, verb: Verb) {
        if let (Some(begun), Some(timer), Some(door)) = (begun, &mut self.timer, self.member.sessions.door) {
            let ns = timer.ns_between(begun, timer.now());
            self.note_latency(door, verb, ns);
        }
    }

    /// Notes that an operation took so long.
    pub fn note_latency(&self, door: Door, verb: Verb, ns: u64) {
        if self.is_ready() {
            let _inside = self.latch.open();
            self.inner.note_latency(door, verb, ns);
        }
    }

    /// Adds operations that were counted elsewhere; returns whether the region could be written.
    pub fn add_latency(&self, door: Door, verb: Verb, counted: &Latency) -> bool {
        if !self.is_ready() {
            return false;
        }
        let _inside = self.latch.open();
        self.inner.add_latency(door, verb, counted);
        true
    }

    #[inline]
    fn now(&mut self) -> u32 {
        Watched(&mut self.member).tick()
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
    pub fn prefetch<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>) {
        if self.ready().is_ok() {
            let region = self.inner.region();
            let ahead = region.index().ahead(keys);
            let _inside = self.latch.open();
            region.index().prefetch(&ahead);
        }
    }

    /// Gets to the sink.
    #[inline(always)]
    pub fn get<S: Sink>(&mut self, key: Key<'_>, how: &Get, sink: &mut S) -> Result<Option<Item>, WriteError> {
        match self.get_fast(key, how, sink, |item| item) {
            Some(found) => Ok(found),
            None => self.get_fast_or_slow(key, how, sink, identity),
        }
    }

    /// [`Self::get`] of the common case, for a caller that needs only what `hit` returns. `None`: [`Self::get_fast_or_slow`] knows more.
    #[inline(always)]
    pub fn get_fast<S: Sink, R>(
        &mut self,
        key: Key<'_>,
        how: &Get,
        sink: &mut S,
        hit: impl FnOnce(Item) -> R,
    ) -> Option<Option<R>> {
        if is_last(&mut self.left.gets) || !self.is_ready() {
            return None;
        }
        self.attempt(key, how, sink, hit)
    }

    /// One attempt at a get by the fast path. `hit`, which is this crate's, may run inside.
    #[inline(always)]
    fn attempt<S: Sink, R>(&mut self, key: Key<'_>, how: &Get, sink: &mut S, hit: impl FnOnce(Item) -> R) -> Option<Option<R>> {
        let Some(reach) = sink.reach() else {
            // Other code does not run inside.
            if self.is_special {
                return None;
            }
            return self.inner.get_fast(key, how, Watched(&mut self.member), sink, hit);
        };
        let verb = if self.is_special {
            cold_path();
            if !self.inner.has_fast_path() {
                return None;
            }
            self.latch.begin_verb(reach)
        } else {
            self.latch.no_gate()
        };
        self.inner
            .get_and_leave(key, how, Watched(&mut self.member), sink, || verb.end(), hit)
    }

    /// [`Self::get`] of anything, after [`Self::get_fast`].
    #[inline(always)]
    pub fn get_fast_or_slow<S: Sink, R>(
        &mut self,
        key: Key<'_>,
        how: &Get,
        sink: &mut S,
        hit: impl Fn(Item) -> R,
    ) -> Result<Option<R>, WriteError> {
        if self.left.gets == 0 {
            return self.get_sampled(key, how, sink, hit);
        }
        self.ready()?;
        if sink.reach().is_none() && self.latch.is_on() {
            return Ok(self.get_by_buffer(key, how, sink)?.map(hit));
        }
        Ok(self.get_slow(key, how, sink)?.map(hit))
    }

    /// A get that is a sample: its key is counted, and mostly it is measured.
    #[cold]
    #[inline(never)]
    fn get_sampled<S: Sink, R>(
        &mut self,
        key: Key<'_>,
        how: &Get,
        sink: &mut S,
        hit: impl Fn(Item) -> R,
    ) -> Result<Option<R>, WriteError> {
        // If it fails, the next one is the sample.
        self.left.gets = 1;
        self.ready()?;
        let is_timed = {
            let _inside = self.latch.open();
            self.left.trail = self.inner.region().trail().kept_trail().is_some();
            self.inner.sampling().is_get_timed()
        };
        let found = self.timed_if(is_timed, verb_of(how), |this| {
            // This one is counted again.
            this.left.gets = 2;
            this.get(key, how, sink)
        })?;
        let given = found.map_or(0, |item| if how.value { item.value_len } else { 0 });
        let _inside = self.latch.open();
        self.left.gets = self.inner.sampling().sample_get(key.hash(), key.bytes(), given);
        if let Some(name) = self.inner.region().trail().on_kept_trail(key.hash()) {
            let fate = found.map_or(Fate::Missed, |item| Fate::Hit(extent_of(&item)));
            self.inner.region().trail().leave_trail(name, fate);
        }
        Ok(found.map(hit))
    }

    /// A get behind a gate to a sink that is other code: it gets the value when the gate has closed.
    #[cold]
    #[inline(never)]
    fn get_by_buffer<S: Sink>(&mut self, key: Key<'_>, how: &Get, sink: &mut S) -> Result<Option<Item>, WriteError> {
        self.through_buffer(sink, |this, value| match this.attempt(key, how, value, identity) {
            Some(found) => Ok(found),
            None => this.get_slow(key, how, value),
        })
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

    /// Slow path of [`Self::get`]: no attempt by the fast path.
    #[cold]
    #[inline(never)]
    fn get_slow<S: Sink>(&mut self, key: Key<'_>, how: &Get, sink: &mut S) -> Result<Option<Item>, WriteError> {
        // A pinned value goes to this crate's own code.
        let runs_other_code = sink.reach().is_none() && !S::PINS;
        if !how.may_change() {
            if !runs_other_code {
                return self.read_slow(key, how, sink);
            }
            let begun = sink.len();
            let mut once = Once::new(sink);
            let found = self.read_slow(key, how, &mut once);
            if !once.is_passed_over() {
                return found;
            }
            sink.truncate(begun);
            return self.through_buffer(sink, |this, value| this.read_slow(key, how, value));
        }
        self.translate_exptimes(how);
        if S::IS_FOREIGN || runs_other_code {
            // While an item changes, the caller's memory is not written to, and no code of the caller runs.
            return self.through_buffer(sink, |this, value| {
                change!(this, &[], |inner, now| inner.get_slow(key, how, at(now), value))
            });
        }
        change!(self, &[], |inner, now| inner.get_slow(key, how, at(now), sink))
    }

    fn read_slow<S: Sink>(&mut self, key: Key<'_>, how: &Get, sink: &mut S) -> Result<Option<Item>, WriteError> {
        let verb = self.latch.begin_verb(sink.reach().unwrap_or_default());
        let found = match self.inner.get_watched(key, how, Watched(&mut self.member), sink) {
            Some(found) => Ok(found),
            None => {
                let now = Watched(&mut self.member).tick();
                self.inner.get_slow(key, how, now, sink)
            }
        };
        verb.end();
        found
    }

    /// Gets for answers on a socket: see [`crate::Session::get_to`].
    #[inline]
    pub fn answer(
        &mut self,
        key: Key<'_>,
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
            &mut Pinning::new(&mut *out, head, |value, out| {
                sent = Some(send_or_copy(socket, out, value, behind));
            }),
        )?;
        match (found, sent) {
            (Some(item), Some(sent)) => Ok(Some((item, sent))),
            (found, _) => Ok(with_tail(found, out, behind)),
        }
    }

    #[inline]
    pub fn store(&mut self, given: &[u8], value: &[u8], how: &Store) -> Result<Stored, WriteError> {
        if how.is_plain() {
            return self.set(given, value, how.flags, how.exptime);
        }
        self.store_if(given, value, how)
    }

    /// [`Self::store`] of a value with these client flags and this exptime, whatever is there.
    pub fn set(&mut self, given: &[u8], value: &[u8], flags: u32, exptime: i64) -> Result<Stored, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.key(given, &mut room);
        if is_last(&mut self.left.changes) {
            return self.set_sampled(key.bytes(), key.hash(), value, flags, exptime);
        }
        self.set_now(key, value, flags, exptime)
    }

    #[cold]
    #[inline(never)]
    fn set_sampled(&mut self, key: &[u8], hash: u64, value: &[u8], flags: u32, exptime: i64) -> Result<Stored, WriteError> {
        let key = Key::of((key, hash));
        let sample = self.begin_sample(key);
        let done = self.set_now(key, value, flags, exptime);
        self.end_sample(&sample, Verb::Set, key);
        done
    }

    #[inline(always)]
    fn set_now(&mut self, key: Key<'_>, value: &[u8], flags: u32, exptime: i64) -> Result<Stored, WriteError> {
        self.ready()?;
        self.translate_exptime(exptime);
        change!(self, value, |inner, now| inner.set(key, value, flags, exptime, now))
    }

    #[inline(never)]
    fn store_if(&mut self, given: &[u8], value: &[u8], how: &Store) -> Result<Stored, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.key(given, &mut room);
        let sample = is_last(&mut self.left.changes).then(|| self.begin_sample(key));
        let done = self.store_now(key, value, how);
        if let Some(sample) = sample {
            self.end_sample(&sample, Verb::Set, key);
        }
        done
    }

    #[inline(always)]
    fn store_now(&mut self, key: Key<'_>, value: &[u8], how: &Store) -> Result<Stored, WriteError> {
        self.ready()?;
        self.translate_exptime(how.exptime);
        change!(self, value, |inner, now| inner.store(key, value, how, now))
    }

    #[inline(always)]
    pub fn delete(&mut self, given: &[u8], how: &Delete) -> Result<Deleted, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.key(given, &mut room);
        if self.sampler.is_due() {
            let (bytes, hash) = (key.bytes(), key.hash());
            return self.measured(Verb::Delete, move |this| this.delete_slow(bytes, hash, how));
        }
        let is_common = self.is_ready() && !self.left.trail && !self.latch.is_on() && !self.inner.is_fenced();
        if !is_common {
            return self.delete_slow(key.bytes(), key.hash(), how);
        }
        match self.inner.delete_fast(key, how, &mut Watched(&mut self.member)) {
            Some(deleted) => Ok(deleted),
            None => self.delete_slow(key.bytes(), key.hash(), how),
        }
    }

    /// [`Self::delete`] of anything.
    #[cold]
    #[inline(never)]
    fn delete_slow(&mut self, key: &[u8], hash: u64, how: &Delete) -> Result<Deleted, WriteError> {
        let key = Key::of((key, hash));
        self.ready()?;
        self.translate_exptime(how.exptime.unwrap_or(0));
        let deleted = change!(self, &[], |inner, now| inner.delete(key, how, now));
        if self.left.trail {
            self.leave_trail(key);
        }
        deleted
    }

    #[inline]
    pub fn arithmetic(&mut self, given: &[u8], how: &Arithmetic) -> Result<Counted, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.key(given, &mut room);
        if is_last(&mut self.left.changes) {
            return self.arithmetic_sampled(key.bytes(), key.hash(), how);
        }
        self.arithmetic_now(key, how)
    }

    #[cold]
    #[inline(never)]
    fn arithmetic_sampled(&mut self, key: &[u8], hash: u64, how: &Arithmetic) -> Result<Counted, WriteError> {
        let key = Key::of((key, hash));
        let sample = self.begin_sample(key);
        let done = self.arithmetic_now(key, how);
        self.end_sample(&sample, Verb::Arithmetic, key);
        done
    }

    #[inline(always)]
    fn arithmetic_now(&mut self, key: Key<'_>, how: &Arithmetic) -> Result<Counted, WriteError> {
        self.ready()?;
        self.translate_exptime(how.exptime.unwrap_or(0));
        self.translate_exptime(how.vivify.map_or(0, |(_, exptime)| exptime));
        change!(self, &[], |inner, now| inner.arithmetic(key, how, now))
    }

    #[inline]
    pub fn incr(&mut self, given: &[u8], delta: u64) -> Result<Number, WriteError> {
        self.count::<false>(given, delta)
    }

    #[inline]
    pub fn decr(&mut self, given: &[u8], delta: u64) -> Result<Number, WriteError> {
        self.count::<true>(given, delta)
    }

    #[inline(always)]
    fn count<const DOWN: bool>(&mut self, given: &[u8], delta: u64) -> Result<Number, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.key(given, &mut room);
        if is_last(&mut self.left.changes) {
            return self.count_sampled::<DOWN>(key.bytes(), key.hash(), delta);
        }
        self.count_now::<DOWN>(key, delta)
    }

    #[cold]
    #[inline(never)]
    fn count_sampled<const DOWN: bool>(&mut self, key: &[u8], hash: u64, delta: u64) -> Result<Number, WriteError> {
        let key = Key::of((key, hash));
        let sample = self.begin_sample(key);
        let done = self.count_now::<DOWN>(key, delta);
        self.end_sample(&sample, Verb::Arithmetic, key);
        done
    }

    #[inline(always)]
    fn count_now<const DOWN: bool>(&mut self, key: Key<'_>, delta: u64) -> Result<Number, WriteError> {
        self.ready()?;
        if self.latch.is_on() {
            return self.count_inside::<DOWN>(key.bytes(), key.hash(), delta);
        }
        prepare(&mut self.inner, &mut self.member)?;
        count_by::<DOWN>(&mut self.inner, key, delta, Watched(&mut self.member))
    }

    #[cold]
    #[inline(never)]
    fn count_inside<const DOWN: bool>(&mut self, key: &[u8], hash: u64, delta: u64) -> Result<Number, WriteError> {
        let key = Key::of((key, hash));
        change!(self, &[], |inner, now| count_by::<DOWN>(inner, key, delta, now))
    }

    pub fn touch(&mut self, given: &[u8], exptime: i64) -> Result<bool, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.key(given, &mut room);
        if self.sampler.is_due() {
            return self.measured(Verb::Touch, move |this| this.touch_now(key, exptime));
        }
        self.touch_now(key, exptime)
    }

    fn touch_now(&mut self, key: Key<'_>, exptime: i64) -> Result<bool, WriteError> {
        self.ready()?;
        self.translate_exptime(exptime);
        let touched = change!(self, &[], |inner, now| inner.touch(key, exptime, at(now)));
        if self.left.trail {
            self.leave_trail(key);
        }
        touched
    }

    pub fn flush_all(&mut self, exptime: i64) -> Result<(), WriteError> {
        if self.sampler.is_due() {
            return self.measured(Verb::Other, move |this| this.flush_all(exptime));
        }
        self.ready()?;
        self.translate_exptime(exptime);
        change!(self, &[], |inner, now| inner.flush_all(exptime, at(now)))
    }

    pub fn walk(&mut self, cursor: u64, budget: usize, visit: impl FnMut(&[u8], &Item)) -> Option<u64> {
        self.ready().ok()?;
        if self.latch.is_on() {
            return self.walk_behind_gate(cursor, budget, visit);
        }
        let now = self.now();
        self.inner.region().index().walk(cursor, budget, now, visit)
    }

    #[inline]
    pub fn is_held_up(&self) -> bool {
        let knows_door = {
            let _inside = self.latch.open();
            self.inner.counting().knows_door()
        };
        !knows_door && self.member.is_here() && kernel::is_held_up(&self.member.sessions)
    }

    pub fn upkeep(&mut self) {
        if self.ready().is_ok() {
            self.member.sessions.upkeep();
            self.in_its_slot(keyway_region::Session::upkeep);
        }
    }

    pub fn shrink(&mut self) -> Shrinking {
        if self.ready().is_err() {
            return Shrinking::Done;
        }
        self.in_its_slot(keyway_region::Session::shrink).unwrap_or(Shrinking::Waiting)
    }

    /// Work of a session that is not a verb. Without a thread slot there is nothing that it could do.
    fn in_its_slot<R>(&mut self, work: impl FnOnce(&mut keyway_region::Session, u32) -> R) -> Option<R> {
        let _inside = self.latch.open();
        let now = self.now();
        let has_slot = !self.inner.is_fenced() || aside(|| take_slot(&mut self.inner, &mut self.member)).is_ok();
        has_slot.then(|| work(&mut self.inner, now))
    }

    pub fn look(&mut self, given: &[u8]) -> Result<Read, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.key(given, &mut room);
        self.look_by(key)
    }

    fn look_by(&mut self, key: Key<'_>) -> Result<Read, WriteError> {
        self.ready()?;
        self.verb(|inner, now| inner.region().index().read(key, &Get::default(), now, &mut Vec::new()))
    }

    /// Works on the region, inside the gate, at the region's time.
    fn verb<R>(&mut self, work: impl FnOnce(&mut keyway_region::Session, u32) -> R) -> R {
        let verb = self.latch.begin_verb([&[]; 2]);
        let now = Watched(&mut self.member).tick();
        let done = work(&mut self.inner, now);
        verb.end();
        done
    }

    #[inline]
    pub fn serve_as(&self, door: Door, is_meta: bool, descriptor: i32) {
        self.inner.emitter().serve_as(door, is_meta, descriptor);
    }

    pub fn emits_connections(&mut self) -> bool {
        self.ready().is_ok() && {
            let _inside = self.latch.open();
            self.inner.emitter().emits_connections()
        }
    }

    pub fn emit_connection(&mut self, text: &[u8]) {
        if self.ready().is_ok() {
            let _inside = self.latch.open();
            self.inner.emitter().emit_connection(text);
        }
    }

    pub fn note_hit(&mut self, given: &[u8]) {
        let mut room = KeyRoom::new();
        if Key::has_len(given) && self.ready().is_ok() {
            let key = self.key(given, &mut room);
            self.verb(|inner, now| inner.note_hit(key, now));
        }
    }

    pub fn id(&self) -> SessionId {
        self.inner.id()
    }

    pub fn release(&mut self) {
        if self.ready().is_ok() {
            self.verb(|inner, _| inner.release_extents());
        }
    }

    pub fn limits(&self) -> Limits {
        let _inside = self.latch.open();
        self.inner.region().limits().read()
    }

    pub fn clock_s(&mut self) -> u64 {
        let _inside = self.latch.open();
        seconds_of(self.now())
    }

    pub fn clock(&self) -> Duration {
        let now = self.member.sessions.clock.now();
        let _inside = self.latch.open();
        self.inner.region().clock().clock_at(now.boot)
    }

    /// [`Self::walk`] for a mapping with a gate: `visit` is called when the gate is closed.
    fn walk_behind_gate(&mut self, cursor: u64, budget: usize, visit: impl FnMut(&[u8], &Item)) -> Option<u64> {
        let mut walked = Walked::default();
        let next = self.verb(|inner, now| {
            inner
                .region()
                .index()
                .walk(cursor, budget, now, |key, item| walked.note(key, item))
        });
        walked.hand_over(visit);
        next
    }
}

#[inline(always)]
fn count_by<const DOWN: bool>(
    inner: &mut keyway_region::Session,
    key: Key<'_>,
    delta: u64,
    now: Watched<'_>,
) -> Result<Number, WriteError> {
    if DOWN {
        inner.decr(key, delta, now)
    } else {
        inner.incr(key, delta, now)
    }
}

/// As which verb a get is measured.
fn verb_of(how: &Get) -> Verb {
    if how.exptime.is_some() { Verb::Touch } else { Verb::Get }
}

/// Operations until the next sample of each kind, that one included.
struct Left {
    gets: u32,
    changes: u32,
    /// whether the region's trail was kept when the session last looked: then deletes and touches are on it
    trail: bool,
}

/// A change that is a sample.
struct Sample {
    /// the next one is this one of the changes to come
    next: u32,
    /// the timer's reading, if it is measured
    begun: Option<u64>,
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
fn send_or_copy(to: BorrowedFd<'_>, out: &mut Vec<u8>, value: &PinnedValue<'_>, behind: &[u8]) -> usize {
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

/// The region's time: the clock is asked only if an item has an expiry, and otherwise every so many calls.
struct Watched<'w>(&'w mut Membership);

impl Now for Watched<'_> {
    #[inline(always)]
    fn tick(&mut self) -> u32 {
        let Membership { watch, sessions, .. } = &mut *self.0;
        watch.tick(
            clock::coarse_ns(),
            || clock::read(&sessions.region, sessions.clock.now()),
            |now| sessions.region.clock().note_use(now),
        )
    }

    #[inline(always)]
    fn recent(&mut self, noted: u64) -> u32 {
        match self.0.watch.recent(noted) {
            Some(tick) => tick,
            None => ask_clock(self.0),
        }
    }
}

/// The region's tick, which is recent for the next calls.
#[cold]
#[inline(never)]
fn ask_clock(member: &mut Membership) -> u32 {
    let tick = Watched(member).tick();
    let seen = member.sessions.region.clock().seen().0;
    member.watch.has_asked(seen);
    tick
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
        aside(|| take_slot(inner, member))?;
    }
    if !inner.counting().knows_door() {
        // If this does not succeed, the verb reports it.
        aside(|| kernel::follow_door(&member.sessions));
    }
    Ok(())
}

/// The session was fenced: another process took this process for dead. The session gives its thread slot back, and takes
/// another one.
#[cold]
#[inline(never)]
fn take_slot(inner: &mut keyway_region::Session, member: &mut Membership) -> Result<(), WriteError> {
    let _uncancelled = Uncancelled::new();
    member.sessions.inside(|_| inner.end());
    member.sessions.leave(member.id);
    member.sessions.regain();
    let (mut fresh, id) = member.sessions.hire().ok_or(WriteError::Detached)?;
    fresh.set_wall_clock_like(inner);
    std::mem::swap(inner, &mut *fresh);
    member.id = id;
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
