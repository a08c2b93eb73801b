//! A thread's verbs: the region's, with the clock filled in.

use crate::clock;
use crate::crew::Crew;
use crate::kernel;
use crate::presence;
use keyway_region::verbs::{Arithmetic, Counted, Delete, Deleted, Get, Item, Store, Stored, WriteError};
use std::sync::Arc;

/// A thread's way into the region: may move between threads, is used by one at a time. Dropping it gives its slot back, and so
/// does the end of the thread that used it last: a session that is forgotten is not lost.
///
/// A forked child cannot use its parent's: every verb says [`WriteError::Detached`], [`Session::get`] misses, and nothing is
/// touched (see [`crate::Cache::here`]).
///
/// `exptime` is memcached's everywhere: 0 never, negative at once, up to 30 days seconds from now, above that a Unix time.
/// Keys have 1 to 250 bytes; any byte is allowed.
pub struct Session {
    inner: keyway_region::Session,
    /// behind `inner`: whoever dies in between is still known
    member: Membership,
    /// the number of the thread that used it last
    thread: u64,
}

impl Session {
    pub(crate) fn new(crew: Arc<Crew>) -> Option<Self> {
        let (inner, id) = crew.hire()?;
        Some(Self {
            inner,
            member: Membership { crew, id },
            thread: presence::thread_number(),
        })
    }

    /// Before every use: the process is the one that attached, and the thread is known.
    #[inline]
    fn ready(&mut self) -> Result<(), WriteError> {
        if self.thread == presence::thread_number() && self.member.is_here() {
            Ok(())
        } else {
            self.arrive()
        }
    }

    #[cold]
    fn arrive(&mut self) -> Result<(), WriteError> {
        if !self.member.is_here() {
            return Err(WriteError::Detached);
        }
        if !self.member.move_here() {
            // The thread that had it last has ended, and its slot was given back.
            let (fresh, id) = self.member.crew.hire().ok_or(WriteError::Detached)?;
            self.inner.abandon();
            self.inner = fresh;
            self.member.id = id;
        }
        self.thread = presence::thread_number();
        Ok(())
    }

    /// Before every use that may change the region: besides, its changes can be counted, if they are to be.
    #[inline]
    fn ready_to_write(&mut self) -> Result<(), WriteError> {
        self.ready()?;
        if !self.inner.knows_door() {
            // If nothing comes of it, the verb says so.
            kernel::meet(&self.member.crew);
        }
        Ok(())
    }

    #[inline]
    fn now(&self) -> u32 {
        self.inner.region().tick(clock::unix_s())
    }

    /// Copies the value of `key` to the end of `out`; a miss leaves `out` as it was. [`Item::cas`], [`Item::idle_s`] and
    /// [`Item::fetched`] are not filled in ([`Get::details`] of [`Session::get_with`] asks for them).
    #[inline]
    pub fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Option<Item> {
        let how = Get {
            value: true,
            ..Get::default()
        };
        self.get_with(key, &how, out, |_, _| {}).unwrap_or(None)
    }

    /// Gets by all the rules of `how`. On a hit `head` is called first, to append whatever belongs before the value (it may be
    /// called again, after `out` was cut back, if the item changed meanwhile). A miss leaves `out` as it was.
    ///
    /// # Errors
    ///
    /// A bad key; and, where `how` asks for a change, whatever a write can meet.
    #[inline]
    pub fn get_with(
        &mut self,
        key: &[u8],
        how: &Get,
        out: &mut Vec<u8>,
        head: impl FnMut(&Item, &mut Vec<u8>),
    ) -> Result<Option<Item>, WriteError> {
        if how.may_change() {
            self.ready_to_write()?;
        } else {
            self.ready()?;
        }
        let now = self.now();
        self.inner.get_with(key, how, now, out, head)
    }

    /// Stores a value whatever was there.
    ///
    /// # Errors
    ///
    /// A bad key, an item that is too large, or memory that nothing can be evicted from.
    #[inline]
    pub fn set(&mut self, key: &[u8], value: &[u8], exptime: i64) -> Result<Stored, WriteError> {
        self.store(
            key,
            value,
            &Store {
                exptime,
                ..Store::default()
            },
        )
    }

    /// Stores by all the rules of `how`: set, add, replace, append, prepend, cas.
    ///
    /// # Errors
    ///
    /// As [`Session::set`].
    #[inline]
    pub fn store(&mut self, key: &[u8], value: &[u8], how: &Store) -> Result<Stored, WriteError> {
        self.ready_to_write()?;
        let now = self.now();
        self.inner.store(key, value, how, now)
    }

    /// Deletes, or marks as stale.
    ///
    /// # Errors
    ///
    /// A bad key; where an item stays, whatever a write can meet.
    #[inline]
    pub fn delete(&mut self, key: &[u8], how: &Delete) -> Result<Deleted, WriteError> {
        self.ready_to_write()?;
        let now = self.now();
        self.inner.delete(key, how, now)
    }

    /// Counts up or down.
    ///
    /// # Errors
    ///
    /// As [`Session::set`].
    #[inline]
    pub fn arithmetic(&mut self, key: &[u8], how: &Arithmetic) -> Result<Counted, WriteError> {
        self.ready_to_write()?;
        let now = self.now();
        self.inner.arithmetic(key, how, now)
    }

    /// Gives the item a new exptime. `false`: there is none.
    ///
    /// # Errors
    ///
    /// As [`Session::set`].
    pub fn touch(&mut self, key: &[u8], exptime: i64) -> Result<bool, WriteError> {
        self.ready_to_write()?;
        let now = self.now();
        self.inner.touch(key, exptime, now)
    }

    /// memcached's `flush_all`: with 0 everything is gone, otherwise everything stored until that exptime will be gone then.
    ///
    /// # Errors
    ///
    /// [`WriteError::EpochsUsedUp`] after 16,777,215 flushes.
    pub fn flush_all(&mut self, exptime: i64) -> Result<(), WriteError> {
        self.ready_to_write()?;
        let now = self.now();
        self.inner.flush_all(exptime, now)
    }

    /// Walks live items from `cursor` on (0: the start), about `budget` of them; the next cursor, `None` at the end. An item
    /// that is there all the time is visited at least once.
    pub fn walk(&mut self, cursor: u64, budget: usize, visit: impl FnMut(&[u8], &Item)) -> Option<u64> {
        self.ready().ok()?;
        let now = self.now();
        self.inner.region().walk(cursor, budget, now, visit)
    }

    /// Housekeeping in a bounded step: recovers the dead, processes and threads of this one, and frees dead segments. A server
    /// calls it about once a second from one thread; without a server whoever allocates does what is needed.
    pub fn upkeep(&mut self) {
        if self.ready().is_ok() {
            let now = self.now();
            self.inner.region().note_seen(clock::unix_s());
            self.member.crew.upkeep();
            self.inner.upkeep(now);
        }
    }

    /// The item has been answered from a copy that somebody keeps (the kernel door): it is as much in use as if it had been fetched
    /// here.
    pub fn note_hit(&mut self, key: &[u8]) {
        if self.ready().is_ok() {
            let now = self.now();
            self.inner.note_hit(key, now);
        }
    }

    /// Gives up the room that this session has reserved for its next writes, so that it can be reclaimed. Worth calling before
    /// a long idle time.
    pub fn release(&mut self) {
        if self.ready().is_ok() {
            self.inner.release_extents();
        }
    }

    /// Unix seconds as the region sees them: they never go back.
    pub fn now_unix_s(&self) -> i64 {
        if self.member.is_here() {
            self.inner.region().clock_base_unix_s() + i64::from(self.now())
        } else {
            clock::unix_s()
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if !self.member.is_here() || !self.member.move_here() {
            self.inner.abandon();
        }
    }
}

/// A session's entry in its process's list.
struct Membership {
    crew: Arc<Crew>,
    id: u64,
}

impl Membership {
    #[inline]
    fn is_here(&self) -> bool {
        self.crew.home.is_here()
    }

    fn move_here(&self) -> bool {
        self.crew.move_here(self.id)
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        // In a forked child the list's lock may be held by a thread that the child does not have.
        if self.is_here() {
            self.crew.leave(self.id);
        }
    }
}
