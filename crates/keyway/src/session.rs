//! A thread's verbs: the region's, with the clock filled in.

use crate::clock;
use crate::copies::Copies;
use crate::crew::Crew;
use crate::gate::{Latch, aside};
use crate::kernel;
use crate::presence;
use keyway_region::aside::reserve;
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
    latch: Latch,
    copies: Copies,
}

impl Session {
    pub(crate) fn new(crew: Arc<Crew>) -> Option<Self> {
        let (inner, id) = crew.hire()?;
        let latch = crew.latch;
        Some(Self {
            inner,
            member: Membership { crew, id },
            thread: presence::thread_number(),
            latch,
            copies: Copies::default(),
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
        self.ready().ok()?;
        let (key, _) = self.copies.of(self.latch, key, &[], 0);
        verb(&mut self.inner, self.latch, |inner, now| {
            inner.get_with(key, &how, now, out, |_, _| {}).unwrap_or(None)
        })
    }

    /// Gets by all the rules of `how`. On a hit `head` is called first, to append whatever belongs before the value (it may be
    /// called again, after `out` was cut back, if the item changed meanwhile). A miss leaves `out` as it was.
    ///
    /// ```
    /// # use keyway::{Cache, Get, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::default())?;
    /// # let mut session = cache.session()?;
    /// session.set(b"greeting", b"hello", 60)?;
    /// let and_touch = Get { value: true, details: true, exptime: Some(3600), ..Get::default() };
    /// let mut reply = Vec::new();
    /// let found = session.get_with(b"greeting", &and_touch, &mut reply, |item, reply| {
    ///     reply.extend_from_slice(format!("{} bytes: ", item.value_len).as_bytes());
    /// })?;
    /// assert_eq!(reply, b"5 bytes: hello");
    /// assert!(found.is_some_and(|item| item.ttl_s > Some(3000) && item.cas > 0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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
        self.ready()?;
        if self.latch.is_on() {
            return self.get_behind_gate(key, how, out, head);
        }
        if how.may_change() {
            meet_door(&self.inner, &self.member.crew);
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
    /// ```
    /// # use keyway::{Cache, Options, Place, Store, StoreMode, Stored};
    /// # let cache = Cache::open(&Place::Memfd, &Options::default())?;
    /// # let mut session = cache.session()?;
    /// let add = Store { mode: StoreMode::Add, exptime: 60, flags: 7, ..Store::default() };
    /// let Stored::Stored { cas, .. } = session.store(b"key", b"first", &add)? else { panic!("it was absent") };
    /// assert_eq!(session.store(b"key", b"second", &add)?, Stored::NotStored);
    /// let if_unchanged = Store { compare_cas: Some(cas), ..Store::default() };
    /// assert!(matches!(session.store(b"key", b"third", &if_unchanged)?, Stored::Stored { .. }));
    /// assert_eq!(session.store(b"key", b"fourth", &if_unchanged)?, Stored::Exists);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Session::set`].
    #[inline]
    pub fn store(&mut self, key: &[u8], value: &[u8], how: &Store) -> Result<Stored, WriteError> {
        self.ready()?;
        let limit = self.inner.item_size_max();
        let (key, value) = self.copies.of(self.latch, key, value, limit);
        let stored = change(&mut self.inner, &self.member.crew, |inner, now| {
            inner.store(key, value, how, now)
        });
        self.copies.clear(self.latch);
        stored
    }

    /// Deletes, or marks as stale.
    ///
    /// ```
    /// # use keyway::{Cache, Delete, Deleted, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::default())?;
    /// # let mut session = cache.session()?;
    /// session.set(b"key", b"value", 0)?;
    /// assert_eq!(session.delete(b"key", &Delete::default())?, Deleted::Deleted);
    /// assert_eq!(session.delete(b"key", &Delete::default())?, Deleted::NotFound);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A bad key; where an item stays, whatever a write can meet.
    #[inline]
    pub fn delete(&mut self, key: &[u8], how: &Delete) -> Result<Deleted, WriteError> {
        self.ready()?;
        let (key, _) = self.copies.of(self.latch, key, &[], 0);
        change(&mut self.inner, &self.member.crew, |inner, now| inner.delete(key, how, now))
    }

    /// Counts up or down.
    ///
    /// ```
    /// # use keyway::{Arithmetic, Cache, Counted, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::default())?;
    /// # let mut session = cache.session()?;
    /// let up = Arithmetic { delta: 5, vivify: Some((100, 0)), ..Arithmetic::default() };
    /// for due in [100, 105] {
    ///     let counted = session.arithmetic(b"count", &up)?;
    ///     assert!(matches!(counted, Counted::Value { value, .. } if value == due));
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Session::set`].
    #[inline]
    pub fn arithmetic(&mut self, key: &[u8], how: &Arithmetic) -> Result<Counted, WriteError> {
        self.ready()?;
        let (key, _) = self.copies.of(self.latch, key, &[], 0);
        change(&mut self.inner, &self.member.crew, |inner, now| {
            inner.arithmetic(key, how, now)
        })
    }

    /// Gives the item a new exptime. `false`: there is none.
    ///
    /// # Errors
    ///
    /// As [`Session::set`].
    pub fn touch(&mut self, key: &[u8], exptime: i64) -> Result<bool, WriteError> {
        self.ready()?;
        let (key, _) = self.copies.of(self.latch, key, &[], 0);
        change(&mut self.inner, &self.member.crew, |inner, now| {
            inner.touch(key, exptime, now)
        })
    }

    /// memcached's `flush_all`: with 0 everything is gone, otherwise everything stored until that exptime will be gone then.
    ///
    /// # Errors
    ///
    /// [`WriteError::EpochsUsedUp`] after 16,777,215 flushes.
    pub fn flush_all(&mut self, exptime: i64) -> Result<(), WriteError> {
        self.ready()?;
        change(&mut self.inner, &self.member.crew, |inner, now| inner.flush_all(exptime, now))
    }

    /// Walks live items from `cursor` on (0: the start), about `budget` of them; the next cursor, `None` at the end. An item
    /// that is there all the time is visited at least once.
    ///
    /// ```
    /// # use keyway::{Cache, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::default())?;
    /// # let mut session = cache.session()?;
    /// session.set(b"one", b"1", 0)?;
    /// session.set(b"two", b"2", 0)?;
    /// let (mut keys, mut cursor) = (Vec::new(), Some(0));
    /// while let Some(from) = cursor {
    ///     cursor = session.walk(from, 100, |key, item| keys.push((key.to_vec(), item.value_len)));
    /// }
    /// keys.sort();
    /// assert_eq!(keys, [(b"one".to_vec(), 1), (b"two".to_vec(), 1)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn walk(&mut self, cursor: u64, budget: usize, visit: impl FnMut(&[u8], &Item)) -> Option<u64> {
        self.ready().ok()?;
        if self.latch.is_on() {
            return self.walk_behind_gate(cursor, budget, visit);
        }
        let now = self.now();
        self.inner.region().walk(cursor, budget, now, visit)
    }

    /// Housekeeping in a bounded step: recovers the dead, processes and threads of this one, and frees dead segments. A server
    /// calls it about once a second from one thread; without a server whoever allocates does what is needed.
    pub fn upkeep(&mut self) {
        if self.ready().is_ok() {
            self.member.crew.upkeep();
            let unix_s = clock::unix_s();
            verb(&mut self.inner, self.latch, |inner, now| {
                inner.region().note_seen(unix_s);
                inner.upkeep(now);
            });
        }
    }

    /// The item has been answered from a copy that somebody keeps (the kernel door): it is as much in use as if it had been fetched
    /// here.
    pub fn note_hit(&mut self, key: &[u8]) {
        if self.ready().is_ok() {
            let (key, _) = self.copies.of(self.latch, key, &[], 0);
            verb(&mut self.inner, self.latch, |inner, now| inner.note_hit(key, now));
        }
    }

    /// Gives up the room that this session has reserved for its next writes, so that it can be reclaimed. Worth calling before
    /// a long idle time.
    pub fn release(&mut self) {
        if self.ready().is_ok() {
            verb(&mut self.inner, self.latch, |inner, _| inner.release_extents());
        }
    }

    /// Unix seconds as the region sees them: they never go back.
    pub fn now_unix_s(&self) -> i64 {
        let unix_s = clock::unix_s();
        if self.member.is_here() {
            let _inside = self.latch.open();
            let region = self.inner.region();
            region.clock_base_unix_s() + i64::from(region.tick(unix_s))
        } else {
            unix_s
        }
    }

    /// [`Self::get_with`], with `head` called when the gate is closed.
    fn get_behind_gate(
        &mut self,
        key: &[u8],
        how: &Get,
        out: &mut Vec<u8>,
        mut head: impl FnMut(&Item, &mut Vec<u8>),
    ) -> Result<Option<Item>, WriteError> {
        let mut value = self.copies.lend();
        let (key, _) = self.copies.of(self.latch, key, &[], 0);
        let crew = &self.member.crew;
        let found = verb(&mut self.inner, self.latch, |inner, now| {
            if how.may_change() {
                meet_door(inner, crew);
            }
            inner.get_with(key, how, now, &mut value, |_, _| {})
        });
        if let Ok(Some(item)) = &found {
            head(item, out);
            out.extend_from_slice(&value);
        }
        self.copies.give_back(value);
        found
    }

    /// [`Self::walk`], with `visit` called when the gate is closed.
    fn walk_behind_gate(&mut self, cursor: u64, budget: usize, mut visit: impl FnMut(&[u8], &Item)) -> Option<u64> {
        let mut keys = Vec::new();
        let mut items: Vec<(usize, Item)> = Vec::new();
        let next = verb(&mut self.inner, self.latch, |inner, now| {
            inner.region().walk(cursor, budget, now, |key, item| {
                reserve(&mut keys, key.len());
                keys.extend_from_slice(key);
                reserve(&mut items, 1);
                items.push((key.len(), *item));
            })
        });
        let mut rest = keys.as_slice();
        for (len, item) in &items {
            let (key, behind) = rest.split_at_checked(*len).unwrap_or((rest, &[]));
            rest = behind;
            visit(key, item);
        }
        next
    }
}

/// Does work on the region, inside the gate, at the region's time.
#[inline(always)]
fn verb<R>(inner: &mut keyway_region::Session, latch: Latch, work: impl FnOnce(&mut keyway_region::Session, u32) -> R) -> R {
    let unix_s = clock::unix_s();
    let _inside = latch.open();
    let now = inner.region().tick(unix_s);
    work(inner, now)
}

/// The same for a verb that may change the region.
#[inline(always)]
fn change<R>(inner: &mut keyway_region::Session, crew: &Crew, work: impl FnOnce(&mut keyway_region::Session, u32) -> R) -> R {
    verb(inner, crew.latch, |inner, now| {
        meet_door(inner, crew);
        work(inner, now)
    })
}

/// Before a change: it can be counted, if changes are to be.
#[inline(always)]
fn meet_door(inner: &keyway_region::Session, crew: &Crew) {
    if !inner.knows_door() {
        // If nothing comes of it, the verb says so.
        aside(|| kernel::meet(crew));
    }
}

impl Drop for Session {
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
