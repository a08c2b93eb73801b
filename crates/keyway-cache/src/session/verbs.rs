//! The verbs of a session, of whichever kind it is: one that executes them in the region ([`super::writer`]), or one that reads there and has a
//! server execute the rest ([`super::reader`]). Keys have a length that a key can have, and belong to the caller.
//!
//! What is only for sessions with a thread slot does nothing for others.

use crate::session::fetch::{Begun, Fetch, Token};
use keyway_region::fetch::Flight;
use keyway_region::layout::latency::{Door, Latency, Verb};
use keyway_region::verbs::{Arithmetic, Counted, Delete, Deleted, Get, Item, Number, Read, Store, Stored, WriteError};
use keyway_region::{Armed, Limits, SessionId, Shrinking, Target};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// See [`crate::Session`], whose methods these are; those for servers and bindings are in [`ServerSession`].
pub trait Verbs: ServerSession {
    fn prefetch<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>);
    fn set(&mut self, key: &[u8], value: &[u8], exptime: i64) -> Result<Stored, WriteError>;
    fn store(&mut self, key: &[u8], value: &[u8], how: &Store) -> Result<Stored, WriteError>;
    fn delete(&mut self, key: &[u8], how: &Delete) -> Result<Deleted, WriteError>;
    fn arithmetic(&mut self, key: &[u8], how: &Arithmetic) -> Result<Counted, WriteError>;
    /// Counts up, or down.
    fn count<const DOWN: bool>(&mut self, key: &[u8], delta: u64) -> Result<Number, WriteError>;
    fn touch(&mut self, key: &[u8], exptime: i64) -> Result<bool, WriteError>;
    fn flush_all(&mut self, exptime: i64) -> Result<(), WriteError>;
    fn walk(&mut self, cursor: u64, budget: usize, visit: impl FnMut(&[u8], &Item)) -> Option<u64>;
    fn fetch_missed(&mut self, key: &[u8], how: &Fetch<'_>, out: &mut Vec<u8>) -> Result<Begun, WriteError>;
    fn fetch_store(&mut self, key: &[u8], token: Token, value: &[u8], how: &Fetch<'_>) -> Result<bool, WriteError>;
    fn fetch_store_nothing(&mut self, key: &[u8], token: Token, how: &Fetch<'_>) -> Result<bool, WriteError>;
    fn fetch_abandon(&mut self, key: &[u8], token: Token) -> Result<bool, WriteError>;
    fn fetch_wait(&mut self, key: &[u8], timeout: Duration) -> Result<(), WriteError>;
    fn upkeep(&mut self) {}

    fn shrink(&mut self) -> Shrinking {
        Shrinking::Done
    }

    fn release(&mut self) {}
}

/// What Keyway's servers and bindings need of a [`crate::Session`] beyond what programs do: answers on sockets, the kernel's answers, counts of one
/// session, the region's clock. It may change in every release. What is only for sessions with a thread slot does nothing for others.
pub trait ServerSession {
    /// [`crate::Session::get_with`] for answers on a socket, `to` which it goes with what follows the value. A long value is sent to the socket from its
    /// place in the region, after all of `out`, as far as the socket takes it at once. A hit returns how many bytes were
    /// sent; the rest is in `out`.
    ///
    /// # Errors
    ///
    /// A key of a wrong length; a session that is detached; no memory in this process for a copy of the value; and, if `how`
    /// requests a change, the errors of a write. A socket's error shows when the rest is sent.
    fn get_to(
        &mut self,
        key: &[u8],
        how: &Get,
        to: (BorrowedFd<'_>, &[u8]),
        out: &mut Vec<u8>,
        head: impl FnMut(&Item, &mut Vec<u8>),
    ) -> Result<Option<(Item, usize)>, WriteError>;

    /// The properties of an item, without counting it or marking it as fetched.
    ///
    /// # Errors
    ///
    /// [`WriteError::KeyLength`]: the key is empty or too long; [`WriteError::Detached`]: the session is detached.
    fn look(&mut self, key: &[u8]) -> Result<Read, WriteError>;

    /// Whether writes have to be delayed: the owner of the kernel door has died, and its program may still answer from
    /// copies, for about a second. A process that is not a server ([`crate::Options::server`]) waits that long in its first
    /// write. A server's threads serve other clients during this time, and their writes fail with [`WriteError::KernelDoor`]
    /// until it ends.
    fn is_held_up(&self) -> bool {
        false
    }

    /// The next verbs are those of a connection: watchers see its door, whether it is a meta command, and the connection's descriptor.
    fn serve_as(&self, _door: Door, _is_meta: bool, _descriptor: i32) {}

    /// Whether any watcher wants to see that connections begin and end.
    fn emits_connections(&mut self) -> bool {
        false
    }

    /// Tells watchers that a connection begins or ends: `text` begins with `type=`.
    fn emit_connection(&mut self, _text: &[u8]) {}

    /// Reports a hit on a copy of the item (of the kernel door): the item counts as used, as if it had been fetched here.
    fn note_hit(&mut self, _key: &[u8]) {}

    /// For a get that has found nothing, of one of the caller's clients: notes that this client computes the value, unless somebody else
    /// does. `for_s`: it has so many seconds to store it, by any store.
    ///
    /// # Errors
    ///
    /// Those of a write.
    fn claim(&mut self, _key: &[u8], _for_s: u32) -> Result<Missed, WriteError> {
        Ok(Missed::Absent)
    }

    /// A get that has found nothing is executed again later: only then it counts.
    fn uncount_miss(&mut self) {}

    /// What a client has that has won by a get (`mg`), which gave it this CAS unique.
    fn won(&self, _cas: u64) -> Option<Flight> {
        None
    }

    /// A client will not store what it has claimed or won: another one may.
    fn release_claim(&mut self, _key: &[u8], _flight: Flight) {}

    /// Stores what was computed, if nothing has changed the key since the client claimed it with this CAS unique; `false`: it has changed.
    ///
    /// # Errors
    ///
    /// Those of a write.
    fn store_claimed(&mut self, _key: &[u8], _cas: u64, _value: &[u8], _flags: u32, _exptime: i64) -> Result<bool, WriteError> {
        Ok(false)
    }

    /// Notes that a request, for which this session was used or not, took so long.
    fn note_latency(&self, _door: Door, _verb: Verb, _ns: u64) {}

    /// Adds operations that were counted elsewhere; returns whether that was possible.
    fn add_latency(&self, _door: Door, _verb: Verb, _counted: &Latency) -> bool {
        false
    }

    /// The session's thread slot, for [`counters_of`](crate::server::ServerCache::counters_of). `None` if it has none: a server executes its writes.
    fn id(&self) -> Option<SessionId> {
        None
    }

    /// The second on the region's clock by which this session's next get goes, or the one before it (`docs/region.md`, "Clock").
    fn clock_s(&mut self) -> u64;

    /// [`crate::Cache::limits`].
    fn limits(&self) -> Limits;

    /// What the region's clock says. No process can set it, and it does not go back.
    fn clock(&self) -> Duration;
}

/// What becomes of a get that has found nothing.
#[derive(Clone, Copy, Debug)]
pub enum Missed {
    /// the client computes
    Claimed(Flight),
    /// this flight's client, or program, does; with what has ended when that has
    InFlight(Flight, Armed),
    /// there is a value now
    Present,
    /// it is remembered that there is none
    Absent,
}

/// [`crate::Session::fetch_begin`] in two steps, for bindings: the value goes to the caller's memory, and how the key is fetched is asked for
/// only if there is nothing fresh. It may change in every release.
pub trait BindingSession {
    /// Gets as [`crate::Session::get_into`] does. `None`: there is a value that is fresh. Otherwise the result of `otherwise`, which gets the
    /// copy of the key that was looked for: the caller's own may have changed meanwhile, or the value may have gone over it. What the target
    /// got is meaningless then.
    ///
    /// # Errors
    ///
    /// A key of a wrong length; a session that is detached; no memory in this process for a copy of the value.
    fn get_fresh<T: Target, R>(
        &mut self,
        key: &[u8],
        target: &mut T,
        otherwise: impl FnOnce(&mut Self, &[u8], &mut T) -> R,
    ) -> Result<Option<R>, WriteError>;

    /// [`crate::Session::fetch_begin`] of a key that a get has not found, or that is to be refreshed early: without another get before it.
    ///
    /// # Errors
    ///
    /// As there.
    fn fetch_missed(&mut self, key: &[u8], how: &Fetch<'_>, out: &mut Vec<u8>) -> Result<Begun, WriteError>;
}

/// A hit whose value is in `out`: appends what follows the value. Nothing is sent.
#[inline(always)]
pub fn with_tail(found: Option<Item>, out: &mut Vec<u8>, behind: &[u8]) -> Option<(Item, usize)> {
    found.map(|item| {
        out.extend_from_slice(behind);
        (item, 0)
    })
}
