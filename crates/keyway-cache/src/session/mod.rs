//! A thread's verbs. The thread executes them in the region; if its process may only read, or has found no free slot, the
//! server executes the writes.

mod buffer;
mod bulk;
mod change;
mod fetch;
pub(crate) mod kernel;
mod reader;
pub(crate) mod roster;
mod sampling;
mod slot;
pub(crate) mod socket;
mod verbs;
mod writer;

use crate::clock;
use crate::error::ReadError;
use crate::remote::peer::Peer;
pub use crate::session::fetch::{AtOnce, Begun, Fetch, Token, WaitedFor};
use crate::session::reader::Reader;
use crate::session::roster::{Role, Sessions};
use crate::session::verbs::Verbs as _;
pub use crate::session::verbs::{BindingSession, Missed, ServerSession};
use crate::session::writer::Writer;
use keyway_probes::{self as probes, Verb as _};
use keyway_region::fetch::Flight;
use keyway_region::layout::latency::{Door, Latency, Verb};
use keyway_region::verbs::{Arithmetic, Counted, Delete, Deleted, Get, Item, Number, Read, Store, Stored, WriteError};
use keyway_region::{Headed, Key, KeyRoom, Limits, Placed, SessionId, Shrinking, Target};
use std::convert::identity;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

/// A call ends because no key has this length.
#[cold]
#[inline(never)]
fn refused<P: probes::Verb>(len: usize) -> WriteError {
    P::exit();
    WriteError::KeyLength { len }
}

/// A thread's attachment to the region. It may move between threads; one thread at a time uses it. Dropping it gives its slot
/// back, and so does the end of the thread that used it last, so a forgotten session is not lost.
///
/// A forked child cannot use its parent's session: every verb fails with [`WriteError::Detached`] or [`ReadError::Detached`],
/// and no memory is accessed (see [`crate::Cache::here`]).
///
/// In a process that may only read ([`crate::Cache::is_reader`]), and where all slots were taken, gets come from the region
/// as usual, and the server executes changes; a session then takes no slot.
///
/// `exptime` is memcached's in all methods: 0 never, negative at once, up to 30 days seconds from now, above that a Unix
/// time. Keys have 1 to 250 bytes; any byte is allowed.
pub struct Session(Box<Way>);

/// On the heap: it has some kilobytes, and a thread that makes a session, or moves it, may have a small stack.
#[expect(clippy::large_enum_variant, reason = "a session is made once, and used by reference")]
enum Way {
    Writer(Writer),
    Reader(Reader),
}

/// Passes a call to the variant that this session has.
macro_rules! either {
    (&$session:expr, $way:ident => $work:expr) => {
        match &*$session.0 {
            Way::Writer($way) => $work,
            Way::Reader($way) => $work,
        }
    };
    ($session:expr, $way:ident => $work:expr) => {
        match &mut *$session.0 {
            Way::Writer($way) => $work,
            Way::Reader($way) => $work,
        }
    };
}

/// A verb of a key: between its probes, if the key has a length that a key can have.
macro_rules! verb {
    ($probe:ty, $session:expr, $key:ident, $way:ident => $work:expr) => {{
        <$probe>::entry($key);
        if !Key::has_len($key) {
            return Err(refused::<$probe>($key.len()));
        }
        let done = either!($session, $way => $work);
        <$probe>::exit();
        done
    }};
}

/// A get, whose error is of the caller's type. The sink is made anew for a get that the fast path does not answer, so that it stays in
/// registers where it does.
macro_rules! get {
    ($session:expr, $key:ident, $how:expr, $sink:expr, $hit:expr, |$found:ident| $done:expr, $error:expr) => {{
        probes::Get::entry($key);
        if !Key::has_len($key) {
            return Err($error(refused::<probes::Get>($key.len())));
        }
        let mut room = KeyRoom::new();
        let found = match &mut *$session.0 {
            Way::Writer(writer) => {
                let key = writer.key($key, &mut room);
                if let Some($found) = writer.get_fast(key, $how, &mut $sink, $hit) {
                    probes::Get::exit();
                    return Ok($done);
                }
                writer.get_sampled_or_slow(key.bytes(), key.hash(), $how, &mut $sink, $hit)
            }
            Way::Reader(reader) => reader.get($key, $how, &mut $sink, $hit),
        };
        probes::Get::exit();
        found.map(|$found| $done).map_err($error)
    }};
}

impl Session {
    pub(crate) fn new(sessions: &Arc<Sessions>) -> Option<Self> {
        Some(match sessions.role() {
            Role::Writer(_) => Self::hired(sessions, sessions.hire()?),
            Role::Reader(peer) => Self::reader(sessions, Arc::clone(peer)),
        })
    }

    /// Apart: this copies the session, and [`Sessions::hire`] needs as much of the stack for another copy.
    #[inline(never)]
    fn hired(sessions: &Arc<Sessions>, hired: (Box<keyway_region::Session>, u64)) -> Self {
        Self(Box::new(Way::Writer(Writer::new(Arc::clone(sessions), hired))))
    }

    fn reader(sessions: &Arc<Sessions>, peer: Arc<Peer>) -> Self {
        Self(Box::new(Way::Reader(Reader::new(Arc::clone(sessions), peer))))
    }

    /// A session without a slot: this server does what the session cannot do itself.
    pub(crate) fn served(sessions: &Arc<Sessions>, peer: Peer) -> Self {
        Self::reader(sessions, Arc::new(peer))
    }

    /// The value of `key`, in new memory; `None`: there is no such item. [`Session::get_append`] saves the allocation, and
    /// returns the item's properties.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Options, Place, ReadError};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
    /// # let mut session = cache.session()?;
    /// session.set(b"greeting", b"hello", 60)?;
    /// assert_eq!(session.get(b"greeting")?, Some(b"hello".to_vec()));
    /// assert_eq!(session.get(b"absent")?, None);
    /// assert_eq!(session.get(b""), Err(ReadError::KeyLength { len: 0 }));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ReadError`]: a key of a wrong length; a session that is detached; no memory in this process for a copy of the value.
    #[inline]
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>, ReadError> {
        let mut value = Vec::new();
        get!(
            self,
            key,
            Get::VALUE,
            value,
            |_| (),
            |found| found.map(|()| value),
            ReadError::of
        )
    }

    /// Copies the value of `key` to the end of `out`, and returns the item's properties; `None`: there is no such item. A miss
    /// does not change `out`, and neither does a failure. [`Item::cas`], [`Item::idle_s`] and [`Item::fetched`] are not filled
    /// in (use [`Get::details`] with [`Session::get_with`]).
    ///
    /// ```
    /// # use keyway_cache::{Cache, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
    /// # let mut session = cache.session()?;
    /// session.set(b"greeting", b"hello", 60)?;
    /// let mut line = b"she says ".to_vec();
    /// let item = session.get_append(b"greeting", &mut line)?.ok_or("absent")?;
    /// assert_eq!(line, b"she says hello");
    /// assert!(item.ttl_s.is_some_and(|ttl_s| ttl_s <= 60));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ReadError`]: a key of a wrong length; a session that is detached; no memory in this process for a copy of the value.
    #[inline(always)]
    pub fn get_append(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<Option<Item>, ReadError> {
        get!(self, key, Get::VALUE, *out, identity, |found| found, ReadError::of)
    }

    /// Gets by all the rules of `how`. On a hit `head` is called first, to append anything that belongs before the value. (It
    /// may be called again, after `out` was truncated, if the item changed at the same time: at most three times in all, even if
    /// it changes the item itself, through another session.) A miss does not change `out`.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Get, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
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
    /// A key of a wrong length; a session that is detached; no memory in this process for a copy of the value; and, if `how`
    /// requests a change, the errors of a write.
    #[inline]
    pub fn get_with(
        &mut self,
        key: &[u8],
        how: &Get,
        out: &mut Vec<u8>,
        mut head: impl FnMut(&Item, &mut Vec<u8>),
    ) -> Result<Option<Item>, WriteError> {
        get!(
            self,
            key,
            how,
            Headed::new(&mut *out, &mut head),
            identity,
            |found| found,
            identity
        )
    }

    /// Gets by the rules of `how`, with the value in the caller's memory: [`Target::make_room`] gets the item's properties,
    /// and may refuse its value. `false`: a miss. Without a gate the value is copied there directly from the region. So after
    /// a miss, the properties that the target got, and the bytes in its memory, are meaningless.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Get, Item, Options, Place, Target};
    /// # use std::mem::MaybeUninit;
    /// struct Small([MaybeUninit<u8>; 8]);
    /// impl Target for Small {
    ///     fn make_room(&mut self, item: &Item) -> bool {
    ///         item.value_len <= self.0.len()
    ///     }
    ///     fn room(&mut self) -> &mut [MaybeUninit<u8>] {
    ///         &mut self.0
    ///     }
    /// }
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
    /// # let mut session = cache.session()?;
    /// session.set(b"greeting", b"hello", 60)?;
    /// let mut small = Small([MaybeUninit::new(0); 8]);
    /// let value = Get { value: true, ..Get::default() };
    /// assert!(session.get_into(b"greeting", &value, &mut small)?);
    /// // SAFETY: it was initialised before.
    /// assert_eq!(small.0.map(|byte| unsafe { byte.assume_init() }), *b"hello\0\0\0");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A key of a wrong length; a session that is detached; no memory in this process for a copy of the value; and, if `how`
    /// requests a change, the errors of a write.
    #[inline(always)]
    pub fn get_into(&mut self, key: &[u8], how: &Get, target: &mut impl Target) -> Result<bool, WriteError> {
        get!(self, key, how, Placed::new(target), |_| (), |found| found.is_some(), identity)
    }

    /// Asks the processor to fetch the memory that the next verbs with these keys need, all of it at once. It is a hint: nothing
    /// changes, whatever the keys are, and the verbs do all that they would do without it. It is worth calling before two or more
    /// verbs in a row, on a region that is larger than the processor's caches. It takes the first [`crate::AHEAD_MAX`] keys.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Get, Options, Place, AHEAD_MAX};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
    /// # let mut session = cache.session()?;
    /// let keys = ["one", "two", "three"];
    /// for keys in keys.chunks(AHEAD_MAX) {
    ///     session.prefetch(keys.iter().map(|key| key.as_bytes()));
    ///     for key in keys {
    ///         session.touch(key.as_bytes(), 60)?;
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prefetch<'k>(&mut self, keys: impl IntoIterator<Item = &'k [u8]>) {
        either!(self, way => way.prefetch(keys.into_iter()));
    }

    /// Stores a value, whether the key has one or not.
    ///
    /// # Errors
    ///
    /// A bad key, an item that is too large, a full region from which nothing can be evicted, or no memory in this process
    /// for a copy of the value.
    #[inline]
    pub fn set(&mut self, key: &[u8], value: &[u8], exptime: i64) -> Result<Stored, WriteError> {
        verb!(probes::Set, self, key, way => way.set(key, value, exptime))
    }

    /// Stores by all the rules of `how`: set, add, replace, append, prepend, cas.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Options, Place, Store, StoreMode, Stored};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
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
    /// A bad key, an item that is too large, a full region from which nothing can be evicted, or no memory in this process for a
    /// copy of the value.
    #[inline]
    pub fn store(&mut self, key: &[u8], value: &[u8], how: &Store) -> Result<Stored, WriteError> {
        verb!(probes::Set, self, key, way => way.store(key, value, how))
    }

    /// Deletes, or marks as stale.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Delete, Deleted, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
    /// # let mut session = cache.session()?;
    /// session.set(b"key", b"value", 0)?;
    /// assert_eq!(session.delete(b"key", &Delete::default())?, Deleted::Deleted);
    /// assert_eq!(session.delete(b"key", &Delete::default())?, Deleted::NotFound);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A bad key; if the item is marked and not deleted, the errors of a write.
    #[inline(always)]
    pub fn delete(&mut self, key: &[u8], how: &Delete) -> Result<Deleted, WriteError> {
        verb!(probes::Delete, self, key, way => way.delete(key, how))
    }

    /// Counts up or down.
    ///
    /// ```
    /// # use keyway_cache::{Arithmetic, Cache, Counted, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
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
    /// A bad key, a full region from which nothing can be evicted, or no memory in this process for a copy of the value.
    #[inline]
    pub fn arithmetic(&mut self, key: &[u8], how: &Arithmetic) -> Result<Counted, WriteError> {
        verb!(probes::Arithmetic, self, key, way => way.arithmetic(key, how))
    }

    /// Adds to a number, modulo 2^64, and returns the sum.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Number, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
    /// # let mut session = cache.session()?;
    /// session.set(b"count", b"9", 0)?;
    /// assert_eq!(session.incr(b"count", 3)?, Number::Is(12));
    /// assert_eq!(session.decr(b"count", 20)?, Number::Is(0));
    /// assert_eq!(session.incr(b"none", 1)?, Number::NotFound);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A bad key, a full region from which nothing can be evicted, or no memory in this process for a copy of the value.
    #[inline]
    pub fn incr(&mut self, key: &[u8], delta: u64) -> Result<Number, WriteError> {
        verb!(probes::Arithmetic, self, key, way => way.count::<false>(key, delta))
    }

    /// Subtracts from a number, stopping at 0, and returns the result.
    ///
    /// # Errors
    ///
    /// A bad key, a full region from which nothing can be evicted, or no memory in this process for a copy of the value.
    #[inline]
    pub fn decr(&mut self, key: &[u8], delta: u64) -> Result<Number, WriteError> {
        verb!(probes::Arithmetic, self, key, way => way.count::<true>(key, delta))
    }

    /// Gives the item a new exptime. `false`: there is no such item.
    ///
    /// # Errors
    ///
    /// A bad key, a full region from which nothing can be evicted, or no memory in this process for a copy of the value.
    pub fn touch(&mut self, key: &[u8], exptime: i64) -> Result<bool, WriteError> {
        verb!(probes::Touch, self, key, way => way.touch(key, exptime))
    }

    /// memcached's `flush_all`: with 0 at once, otherwise at that exptime, of all items stored until then.
    ///
    /// # Errors
    ///
    /// A session that is detached.
    pub fn flush_all(&mut self, exptime: i64) -> Result<(), WriteError> {
        probes::Flush::entry(b"");
        let done = either!(self, way => way.flush_all(exptime));
        probes::Flush::exit();
        done
    }

    /// Begins a fetch: returns the value, or the right to compute it, which one caller of all processes gets. The others wait for that one, up to
    /// [`Fetch::wait`], or get what is stale. It ends by [`Session::fetch_store`], [`Session::fetch_store_nothing`] or
    /// [`Session::fetch_abandon`]; [`crate::Cache::fetch`] does all of it.
    ///
    /// ```
    /// # use keyway_cache::{Begun, Cache, Fetch, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
    /// # let mut session = cache.session()?;
    /// let how = Fetch { ttl: 60, ..Fetch::default() };
    /// let mut value = Vec::new();
    /// let Begun::Compute(token) = session.fetch_begin(b"row", &how, &mut value)? else { panic!("it was absent") };
    /// assert!(session.fetch_store(b"row", token, b"computed", &how)?);
    /// let Begun::Hit(_) = session.fetch_begin(b"row", &how, &mut value)? else { panic!("it is stored") };
    /// assert_eq!(value, b"computed");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// A session whose writes a server executes has the server wait for it; without a server it computes, and stores nothing.
    ///
    /// # Errors
    ///
    /// A bad key, [`WriteError::OwnFlight`], and those of a write.
    #[inline]
    pub fn fetch_begin(&mut self, key: &[u8], how: &Fetch<'_>, out: &mut Vec<u8>) -> Result<Begun, WriteError> {
        if how.early <= 0.0 && !how.has_looked {
            match self.get_append(key, out)? {
                Some(item) if is_fresh(item) => return Ok(Begun::Hit(item)),
                Some(item) => out.truncate(out.len() - item.value_len),
                None => {}
            }
        }
        self.begin_absent(key, how, out).map(|begun| *begun)
    }

    /// The rest of [`Session::fetch_begin`]. Boxed: what a call returns through the caller's memory would be written there on a hit, too.
    #[cold]
    #[inline(never)]
    fn begin_absent(&mut self, key: &[u8], how: &Fetch<'_>, out: &mut Vec<u8>) -> Result<Box<Begun>, WriteError> {
        self.fetch_missed(key, how, out).map(Box::new)
    }

    /// Stores what was computed, and wakes those who wait. `false`: nothing is stored, because the key was deleted, flushed or stored since
    /// the fetch began, or because another process has taken the computation over.
    ///
    /// # Errors
    ///
    /// Those of a write. The fetch has ended then, too.
    pub fn fetch_store(&mut self, key: &[u8], token: Token, value: &[u8], how: &Fetch<'_>) -> Result<bool, WriteError> {
        Key::check_len(key)?;
        either!(self, way => way.fetch_store(key, token, value, how))
    }

    /// Ends a fetch that has found that there is no value, which is remembered for [`Fetch::negative_ttl`]. `false` as in
    /// [`Session::fetch_store`].
    ///
    /// # Errors
    ///
    /// Those of a write.
    pub fn fetch_store_nothing(&mut self, key: &[u8], token: Token, how: &Fetch<'_>) -> Result<bool, WriteError> {
        Key::check_len(key)?;
        either!(self, way => way.fetch_store_nothing(key, token, how))
    }

    /// Ends a fetch whose computation has failed: one of those who wait computes. `false` as in [`Session::fetch_store`].
    ///
    /// # Errors
    ///
    /// Those of a write.
    pub fn fetch_abandon(&mut self, key: &[u8], token: Token) -> Result<bool, WriteError> {
        Key::check_len(key)?;
        either!(self, way => way.fetch_abandon(key, token))
    }

    /// Waits until nobody computes this key, or the time is over. For programs that must not wait in the thread that fetches: that one
    /// fetches with a [`Fetch::wait`] of zero, and again after another thread has waited here.
    ///
    /// # Errors
    ///
    /// A bad key, and those of a write.
    pub fn fetch_wait(&mut self, key: &[u8], timeout: Duration) -> Result<(), WriteError> {
        Key::check_len(key)?;
        either!(self, way => way.fetch_wait(key, timeout))
    }

    /// Walks live items from `cursor` on (0: the start), until about `budget` buckets and items have been examined. Returns
    /// the next cursor, `None` at the end. An item that is present all the time is visited at least once.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
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
        either!(self, way => way.walk(cursor, budget, visit))
    }

    /// Housekeeping in a bounded step: recovers dead processes and dead threads of this process, and frees dead segments. A
    /// server calls it about once a second from one thread; without a server, threads that allocate do the necessary work.
    pub fn upkeep(&mut self) {
        either!(self, way => way.upkeep());
    }

    /// A bounded step towards the region's memory limit ([`crate::Cache::limit`]): evicts while more memory is in use, and gives memory back
    /// to the system a few seconds after it went out of use. [`Session::upkeep`] does one too.
    pub fn shrink(&mut self) -> Shrinking {
        either!(self, way => way.shrink())
    }

    /// Gives up the room that this session has reserved for its next writes, so that it can be reclaimed. Worth calling before
    /// a long idle time.
    pub fn release(&mut self) {
        either!(self, way => way.release());
    }

    /// Unix seconds by this process's wall clock, as at which an exptime that is a Unix time is translated.
    pub fn now_unix_s(&self) -> i64 {
        clock::own_unix_s()
    }
}

impl ServerSession for Session {
    #[inline]
    fn get_to(
        &mut self,
        key: &[u8],
        how: &Get,
        to: (BorrowedFd<'_>, &[u8]),
        out: &mut Vec<u8>,
        head: impl FnMut(&Item, &mut Vec<u8>),
    ) -> Result<Option<(Item, usize)>, WriteError> {
        verb!(probes::Get, self, key, way => way.get_to(key, how, to, out, head))
    }

    fn look(&mut self, key: &[u8]) -> Result<Read, WriteError> {
        Key::check_len(key)?;
        either!(self, way => way.look(key))
    }

    #[inline]
    fn is_held_up(&self) -> bool {
        either!(&self, way => way.is_held_up())
    }

    #[inline]
    fn serve_as(&self, door: Door, is_meta: bool, descriptor: i32) {
        either!(&self, way => way.serve_as(door, is_meta, descriptor))
    }

    fn emits_connections(&mut self) -> bool {
        either!(self, way => way.emits_connections())
    }

    fn emit_connection(&mut self, text: &[u8]) {
        either!(self, way => way.emit_connection(text));
    }

    fn note_hit(&mut self, key: &[u8]) {
        either!(self, way => way.note_hit(key));
    }

    fn claim(&mut self, key: &[u8], for_s: u32) -> Result<Missed, WriteError> {
        Key::check_len(key)?;
        either!(self, way => way.claim(key, for_s))
    }

    fn uncount_miss(&mut self) {
        either!(self, way => way.uncount_miss());
    }

    fn won(&self, cas: u64) -> Option<Flight> {
        either!(&self, way => way.won(cas))
    }

    fn release_claim(&mut self, key: &[u8], flight: Flight) {
        either!(self, way => way.release_claim(key, flight));
    }

    fn store_claimed(&mut self, key: &[u8], cas: u64, value: &[u8], flags: u32, exptime: i64) -> Result<bool, WriteError> {
        Key::check_len(key)?;
        either!(self, way => way.store_claimed(key, cas, value, flags, exptime))
    }

    fn note_latency(&self, door: Door, verb: Verb, ns: u64) {
        either!(&self, way => way.note_latency(door, verb, ns))
    }

    fn add_latency(&self, door: Door, verb: Verb, counted: &Latency) -> bool {
        either!(&self, way => way.add_latency(door, verb, counted))
    }

    fn id(&self) -> Option<SessionId> {
        either!(&self, way => way.id())
    }

    fn clock_s(&mut self) -> u64 {
        either!(self, way => way.clock_s())
    }

    fn limits(&self) -> Limits {
        either!(&self, way => way.limits())
    }

    fn clock(&self) -> Duration {
        either!(&self, way => way.clock())
    }
}

/// Whether an item that a get has found is all that a fetch wants. An empty one that is won may be that of a client which has not stored its
/// value yet.
fn is_fresh(item: Item) -> bool {
    !(item.stale | (item.win_sent & (item.value_len == 0)))
}

impl BindingSession for Session {
    #[inline(always)]
    fn get_fresh<T: Target, R>(
        &mut self,
        key: &[u8],
        target: &mut T,
        otherwise: impl FnOnce(&mut Self, &[u8], &mut T) -> R,
    ) -> Result<Option<R>, WriteError> {
        probes::Get::entry(key);
        if !Key::has_len(key) {
            return Err(refused::<probes::Get>(key.len()));
        }
        let mut room = KeyRoom::new();
        let (key, found) = match &mut *self.0 {
            Way::Writer(writer) => {
                let key = writer.key(key, &mut room);
                let found = match writer.get_fast(key, Get::VALUE, &mut Placed::new(target), is_fresh) {
                    Some(Some(true)) => {
                        probes::Get::exit();
                        return Ok(None);
                    }
                    Some(found) => Ok(found),
                    None => writer.get_sampled_or_slow(key.bytes(), key.hash(), Get::VALUE, &mut Placed::new(target), is_fresh),
                };
                (key, found)
            }
            Way::Reader(reader) => {
                let key = reader.key(key, &mut room);
                let found = reader.get(key.bytes(), Get::VALUE, &mut Placed::new(target), is_fresh);
                (key, found)
            }
        };
        probes::Get::exit();
        Ok(match found? {
            Some(true) => None,
            _ => Some(otherwise(self, key.bytes(), target)),
        })
    }

    #[cold]
    fn fetch_missed(&mut self, key: &[u8], how: &Fetch<'_>, out: &mut Vec<u8>) -> Result<Begun, WriteError> {
        Key::check_len(key)?;
        either!(self, way => way.fetch_missed(key, how, out))
    }
}
