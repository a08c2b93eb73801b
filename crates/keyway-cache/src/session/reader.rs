//! The verbs of a process that may only read, and of a thread that has found no slot. Gets read the mapping, and no other
//! process needs to know of it. The server executes everything else.
//!
//! A reader has no thread slot, no hazard pointer and no lock. It reads as the region's other readers do: it
//! copies, and the copy is valid if the segment's generation is still the same after it. So no thread waits for a reader,
//! and a reader may stop anywhere.
//!
//! These verbs are marked cold, so that the verbs of a process that may write are compiled as if there were none.

use crate::clock::{self, Watch};
use crate::remote::peer::{Client, Peer};
use crate::session::buffer::{Walked, pass};
use crate::session::roster::Sessions;
use keyway_region::verbs::{Arithmetic, Counted, Delete, Deleted, Get, Item, Number, Read, Store, Stored, WriteError};
use keyway_region::{Key, KeyRoom, Limits, Sink, seconds_of};
use std::sync::Arc;
use std::time::Duration;

/// One in this many hits is reported to the server, which counts it as one hit. Otherwise items that are read only here
/// would look unused.
const HITS_REPORTED_ONE_IN: u32 = 32;
/// Number of keys of hits that are reported together.
const HITS_REPORTED: usize = 16;

/// See the top of the file.
pub struct Reader {
    sessions: Arc<Sessions>,
    peer: Arc<Peer>,
    client: Client,
    watch: Watch,
    hits: u32,
    /// keys to be reported
    hits_to_report: Vec<Vec<u8>>,
}

impl Reader {
    pub fn new(sessions: Arc<Sessions>, peer: Arc<Peer>) -> Self {
        Self {
            sessions,
            peer,
            client: Client::default(),
            watch: Watch::default(),
            hits: 0,
            hits_to_report: Vec::new(),
        }
    }

    fn now(&mut self) -> u32 {
        let sessions = &self.sessions;
        let read = || {
            let _inside = sessions.latch.open();
            clock::read(&sessions.region, sessions.clock.now())
        };
        // A process that may only read notes nothing.
        self.watch.tick(clock::coarse_ns(), read, |_| ())
    }

    /// A caller's key, copied to the room: every verb goes by that copy.
    pub fn key<'r>(&self, given: &[u8], room: &'r mut KeyRoom) -> Key<'r> {
        self.sessions.region.mapped().key(given, room)
    }

    /// The connection and the server, unless this is a forked child.
    fn served(&mut self) -> Result<(&mut Client, &Peer), WriteError> {
        if self.sessions.home.is_here() {
            Ok((&mut self.client, &self.peer))
        } else {
            Err(WriteError::Detached)
        }
    }

    /// Prefetches for gets of these keys. The keys are read before the gate opens.
    #[cold]
    #[inline(never)]
    pub fn prefetch<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>) {
        if self.sessions.home.is_here() {
            let region = &self.sessions.region;
            let ahead = region.index().ahead(keys);
            let _inside = self.sessions.latch.open();
            region.index().prefetch(&ahead);
        }
    }

    #[cold]
    #[inline(never)]
    pub fn get<S: Sink>(&mut self, key: &[u8], how: &Get, sink: &mut S) -> Result<Option<Item>, WriteError> {
        if !self.sessions.home.is_here() {
            return Err(WriteError::Detached);
        }
        match self.read(key, how, sink)? {
            Read::Miss | Read::Expired => Ok(None),
            Read::Change => {
                let (client, peer) = self.served()?;
                let Some((item, value)) = client.get(peer, key, how)? else {
                    return Ok(None);
                };
                pass(sink, &item, &value)?;
                Ok(Some(item))
            }
            Read::Hit(item) => {
                if !how.no_bump {
                    self.report_hit(key);
                }
                Ok(Some(item))
            }
        }
    }

    pub fn look(&mut self, key: &[u8]) -> Result<Read, WriteError> {
        self.read(key, &Get::default(), &mut Vec::new())
    }

    /// Reads from the mapping. If the mapping has a gate, the caller's memory is not accessed while the gate is open. Code of the
    /// caller runs once.
    fn read<S: Sink>(&mut self, key: &[u8], how: &Get, sink: &mut S) -> Result<Read, WriteError> {
        let now = self.now();
        let (region, latch) = (&self.sessions.region, self.sessions.latch);
        if !latch.is_on() && !S::IS_FOREIGN && sink.reach().is_some() {
            return region.index().read(key, how, now, sink);
        }
        let (key, mut value) = (key.to_vec(), Vec::new());
        let read = {
            let _inside = latch.open();
            region.index().read(&key, how, now, &mut value)?
        };
        if let Read::Hit(item) = &read {
            pass(sink, item, &value)?;
        }
        Ok(read)
    }

    #[inline]
    fn report_hit(&mut self, key: &[u8]) {
        self.hits += 1;
        if self.hits >= HITS_REPORTED_ONE_IN {
            self.hits = 0;
            self.hits_to_report.push(key.to_vec());
            if self.hits_to_report.len() >= HITS_REPORTED {
                let keys = std::mem::take(&mut self.hits_to_report);
                if let Ok((client, peer)) = self.served() {
                    client.report_hits(peer, &keys);
                }
            }
        }
    }

    #[cold]
    #[inline(never)]
    pub fn set(&mut self, key: &[u8], value: &[u8], flags: u32, exptime: i64) -> Result<Stored, WriteError> {
        let how = Store {
            flags,
            exptime,
            ..Store::default()
        };
        self.store(key, value, &how)
    }

    #[cold]
    #[inline(never)]
    pub fn store(&mut self, key: &[u8], value: &[u8], how: &Store) -> Result<Stored, WriteError> {
        let limits = self.limits();
        let (client, peer) = self.served()?;
        client.store(peer, key, value, how, &limits)
    }

    #[cold]
    #[inline(never)]
    pub fn delete(&mut self, key: &[u8], how: &Delete) -> Result<Deleted, WriteError> {
        let (client, peer) = self.served()?;
        client.delete(peer, key, how)
    }

    #[cold]
    #[inline(never)]
    pub fn arithmetic(&mut self, key: &[u8], how: &Arithmetic) -> Result<Counted, WriteError> {
        let (client, peer) = self.served()?;
        client.arithmetic(peer, key, how)
    }

    pub fn incr(&mut self, key: &[u8], delta: u64) -> Result<Number, WriteError> {
        self.count(key, delta, false)
    }

    pub fn decr(&mut self, key: &[u8], delta: u64) -> Result<Number, WriteError> {
        self.count(key, delta, true)
    }

    fn count(&mut self, key: &[u8], delta: u64, decrement: bool) -> Result<Number, WriteError> {
        let how = Arithmetic {
            delta,
            decrement,
            ..Arithmetic::default()
        };
        self.arithmetic(key, &how).map(Number::from)
    }

    #[cold]
    #[inline(never)]
    pub fn touch(&mut self, key: &[u8], exptime: i64) -> Result<bool, WriteError> {
        let how = Get {
            exptime: Some(exptime),
            ..Get::default()
        };
        let (client, peer) = self.served()?;
        Ok(client.get(peer, key, &how)?.is_some())
    }

    #[cold]
    #[inline(never)]
    pub fn flush_all(&mut self, exptime: i64) -> Result<(), WriteError> {
        let (client, peer) = self.served()?;
        client.flush_all(peer, exptime)
    }

    #[cold]
    #[inline(never)]
    pub fn walk(&mut self, cursor: u64, budget: usize, visit: impl FnMut(&[u8], &Item)) -> Option<u64> {
        self.served().ok()?;
        let mut walked = Walked::default();
        let now = self.now();
        let next = {
            let _inside = self.sessions.latch.open();
            let note = |key: &[u8], item: &Item| walked.note(key, item);
            self.sessions.region.index().walk(cursor, budget, now, note)
        };
        walked.hand_over(visit);
        next
    }

    pub fn limits(&self) -> Limits {
        let _inside = self.sessions.latch.open();
        self.sessions.region.limits().read()
    }

    pub fn clock_s(&mut self) -> u64 {
        seconds_of(self.now())
    }

    pub fn clock(&self) -> Duration {
        let now = self.sessions.clock.now().boot;
        let _inside = self.sessions.latch.open();
        self.sessions.region.clock().clock_at(now)
    }
}
