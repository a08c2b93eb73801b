//! The verbs of a session, of whichever kind it is: one that executes them in the region ([`super::writer`]), or one that reads there and has a
//! server execute the rest ([`super::reader`]). Keys have a length that a key can have, and belong to the caller.
//!
//! What is only for sessions with a thread slot does nothing for others.

use keyway_region::layout::latency::{Door, Latency, Verb};
use keyway_region::verbs::{Arithmetic, Counted, Delete, Deleted, Get, Item, Number, Read, Store, Stored, WriteError};
use keyway_region::{Limits, SessionId, Shrinking};
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// See [`crate::Session`], whose methods these are.
pub trait Verbs {
    /// See [`crate::server::ServerSession::get_to`].
    fn get_to(
        &mut self,
        key: &[u8],
        how: &Get,
        socket: BorrowedFd<'_>,
        out: &mut Vec<u8>,
        head: impl FnMut(&Item, &mut Vec<u8>),
        behind: &[u8],
    ) -> Result<Option<(Item, usize)>, WriteError>;

    fn prefetch<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>);
    fn look(&mut self, key: &[u8]) -> Result<Read, WriteError>;
    fn set(&mut self, key: &[u8], value: &[u8], exptime: i64) -> Result<Stored, WriteError>;
    fn store(&mut self, key: &[u8], value: &[u8], how: &Store) -> Result<Stored, WriteError>;
    fn delete(&mut self, key: &[u8], how: &Delete) -> Result<Deleted, WriteError>;
    fn arithmetic(&mut self, key: &[u8], how: &Arithmetic) -> Result<Counted, WriteError>;
    /// Counts up, or down.
    fn count<const DOWN: bool>(&mut self, key: &[u8], delta: u64) -> Result<Number, WriteError>;
    fn touch(&mut self, key: &[u8], exptime: i64) -> Result<bool, WriteError>;
    fn flush_all(&mut self, exptime: i64) -> Result<(), WriteError>;
    fn walk(&mut self, cursor: u64, budget: usize, visit: impl FnMut(&[u8], &Item)) -> Option<u64>;
    fn limits(&self) -> Limits;
    fn clock_s(&mut self) -> u64;
    fn clock(&self) -> Duration;

    fn is_held_up(&self) -> bool {
        false
    }

    fn upkeep(&mut self) {}

    fn shrink(&mut self) -> Shrinking {
        Shrinking::Done
    }

    fn serve_as(&self, _door: Door, _is_meta: bool, _descriptor: i32) {}

    fn emits_connections(&mut self) -> bool {
        false
    }

    fn emit_connection(&mut self, _text: &[u8]) {}
    fn note_hit(&mut self, _key: &[u8]) {}
    fn note_latency(&self, _door: Door, _verb: Verb, _ns: u64) {}

    fn add_latency(&self, _door: Door, _verb: Verb, _counted: &Latency) -> bool {
        false
    }

    fn id(&self) -> Option<SessionId> {
        None
    }

    fn release(&mut self) {}
}

/// A hit whose value is in `out`: appends what follows the value. Nothing is sent.
#[inline(always)]
pub fn with_tail(found: Option<Item>, out: &mut Vec<u8>, behind: &[u8]) -> Option<(Item, usize)> {
    found.map(|item| {
        out.extend_from_slice(behind);
        (item, 0)
    })
}
