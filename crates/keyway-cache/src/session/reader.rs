//! The verbs of a process that may only read, and of a thread that has found no slot. Gets read the mapping, and no other
//! process needs to know of it. The server executes everything else.
//!
//! A reader has no thread slot, no hazard pointer and no lock. It reads as the region's other readers do: it
//! copies, and the copy is valid if the segment's generation is still the same after it. So no thread waits for a reader,
//! and a reader may stop anywhere.
//!
//! These verbs are marked cold, so that the verbs of a process that may write are compiled as if there were none.

use crate::clock::{self, Watch};
use crate::remote::peer::{Client, Leased, Peer};
use crate::session::ServerSession;
use crate::session::buffer::{Walked, pass};
use crate::session::fetch::{Begun, Fetch, Token, WAIT_MAX, WaitedFor};
use crate::session::roster::Sessions;
use crate::session::verbs::{Verbs, with_tail};
use keyway_region::verbs::{Arithmetic, Counted, Delete, Deleted, Get, Item, Number, Read, Store, Stored, WriteError};
use keyway_region::{Headed, Key, KeyRoom, Limits, Sink, seconds_of};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

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

    /// A caller's key, copied to the room.
    pub fn key<'r>(&self, given: &[u8], room: &'r mut KeyRoom) -> Key<'r> {
        self.sessions.key(given, room)
    }

    fn now(&mut self) -> u32 {
        let sessions = &self.sessions;
        let read = || sessions.inside(|region| clock::read(region, sessions.now()));
        // A process that may only read notes nothing.
        self.watch.tick(clock::coarse_ns(), read, |_| ())
    }

    /// What the server executes, by a copy of the key; not in a forked child.
    fn served<R>(
        &mut self,
        key: &[u8],
        ask: impl FnOnce(&mut Client, &Peer, &[u8]) -> Result<R, WriteError>,
    ) -> Result<R, WriteError> {
        if !self.sessions.is_here() {
            return Err(WriteError::Detached);
        }
        let mut room = KeyRoom::new();
        let key = self.sessions.key(key, &mut room);
        ask(&mut self.client, &self.peer, key.bytes())
    }

    /// Gets to the sink; the caller needs only what `hit` returns.
    #[cold]
    #[inline(never)]
    pub fn get<S: Sink, R>(
        &mut self,
        key: &[u8],
        how: &Get,
        sink: &mut S,
        hit: impl Fn(Item) -> R,
    ) -> Result<Option<R>, WriteError> {
        Ok(self.get_item(key, how, sink)?.map(hit))
    }

    fn get_item<S: Sink>(&mut self, key: &[u8], how: &Get, sink: &mut S) -> Result<Option<Item>, WriteError> {
        if !self.sessions.is_here() {
            return Err(WriteError::Detached);
        }
        let mut room = KeyRoom::new();
        let sessions = Arc::clone(&self.sessions);
        let key = sessions.key(key, &mut room).bytes();
        match self.read(key, how, sink)? {
            Read::Miss | Read::Expired => Ok(None),
            Read::Change => {
                let Some((item, value)) = self.client.get(&self.peer, key, how)? else {
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

    /// Reads from the mapping. If the mapping has a gate, the caller's memory is not accessed while the gate is open. Code of the
    /// caller runs once.
    fn read<S: Sink>(&mut self, key: &[u8], how: &Get, sink: &mut S) -> Result<Read, WriteError> {
        let now = self.now();
        let (region, latch) = (self.sessions.region_inside(), self.sessions.latch());
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
                self.client.report_hits(&self.peer, &keys);
            }
        }
    }
}

/// An exptime that is over.
const OVER: i64 = -1;

impl Reader {
    /// The server's lease of a key, for which it waits so long. `None`: there is none to be had, for such a key or without a server.
    fn lease(&mut self, key: &[u8], wait: Duration) -> Result<Option<Leased>, WriteError> {
        match self.served(key, |client, peer, key| client.lease(peer, key, wait)) {
            Err(WriteError::Unserved) => Ok(None),
            leased => leased,
        }
    }

    /// Gives a lease up: what is stored with it is over at once. `false`: it was void.
    fn end_lease(&mut self, key: &[u8], token: &Token) -> Result<bool, WriteError> {
        let Some(lease) = token.lease() else { return Ok(false) };
        self.served(key, |client, peer, key| client.store_leased(peer, key, lease, b"", (0, OVER)))
    }
}

impl Verbs for Reader {
    fn prefetch<'k>(&mut self, keys: impl Iterator<Item = &'k [u8]>) {
        if self.sessions.is_here() {
            // The keys are read before the gate opens.
            let ahead = self.sessions.region_inside().index().ahead(keys);
            self.sessions.inside(|region| region.index().prefetch(&ahead));
        }
    }

    #[cold]
    #[inline(never)]
    fn set(&mut self, key: &[u8], value: &[u8], exptime: i64) -> Result<Stored, WriteError> {
        let how = Store {
            exptime,
            ..Store::default()
        };
        self.store(key, value, &how)
    }

    #[cold]
    #[inline(never)]
    fn store(&mut self, key: &[u8], value: &[u8], how: &Store) -> Result<Stored, WriteError> {
        let limits = self.limits();
        self.served(key, |client, peer, key| client.store(peer, key, value, how, &limits))
    }

    #[cold]
    #[inline(never)]
    fn delete(&mut self, key: &[u8], how: &Delete) -> Result<Deleted, WriteError> {
        self.served(key, |client, peer, key| client.delete(peer, key, how))
    }

    #[cold]
    #[inline(never)]
    fn arithmetic(&mut self, key: &[u8], how: &Arithmetic) -> Result<Counted, WriteError> {
        self.served(key, |client, peer, key| client.arithmetic(peer, key, how))
    }

    #[cold]
    #[inline(never)]
    fn count<const DOWN: bool>(&mut self, key: &[u8], delta: u64) -> Result<Number, WriteError> {
        let how = Arithmetic {
            delta,
            decrement: DOWN,
            ..Arithmetic::default()
        };
        self.arithmetic(key, &how).map(Number::from)
    }

    fn touch(&mut self, key: &[u8], exptime: i64) -> Result<bool, WriteError> {
        let how = Get {
            exptime: Some(exptime),
            ..Get::default()
        };
        self.served(key, |client, peer, key| Ok(client.get(peer, key, &how)?.is_some()))
    }

    fn flush_all(&mut self, exptime: i64) -> Result<(), WriteError> {
        self.served(&[], |client, peer, _| client.flush_all(peer, exptime))
    }

    fn fetch_missed(&mut self, key: &[u8], how: &Fetch<'_>, out: &mut Vec<u8>) -> Result<Begun, WriteError> {
        let deadline = Instant::now() + how.wait.min(WAIT_MAX);
        loop {
            if let Some(item) = self.get(key, Get::VALUE, out, |item| item)? {
                return Ok(Begun::Hit(item));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            return Ok(match self.lease(key, left)? {
                Some(Leased::Token(token)) => Begun::Compute(Token::leased(token)),
                Some(Leased::Nothing) => Begun::Nothing,
                // It is in the region by now, or gone again.
                Some(Leased::Present) if !left.is_zero() => continue,
                Some(Leased::Present | Leased::Elsewhere) if !how.compute_after_wait => Begun::Waited(WaitedFor::Flight),
                Some(Leased::Present | Leased::Elsewhere) | None => Begun::Compute(Token::unnoted()),
            });
        }
    }

    fn fetch_store(&mut self, key: &[u8], token: Token, value: &[u8], how: &Fetch<'_>) -> Result<bool, WriteError> {
        let limits = self.limits();
        if let Some(error) = limits.too_large(key.len(), value.len(), how.flags) {
            self.end_lease(key, &token)?;
            return Err(error);
        }
        let Some(lease) = token.lease() else { return Ok(false) };
        let kept = (how.flags, how.ttl);
        self.served(key, |client, peer, key| client.store_leased(peer, key, lease, value, kept))
    }

    fn fetch_store_nothing(&mut self, key: &[u8], token: Token, _: &Fetch<'_>) -> Result<bool, WriteError> {
        self.end_lease(key, &token)
    }

    fn fetch_abandon(&mut self, key: &[u8], token: Token) -> Result<bool, WriteError> {
        self.end_lease(key, &token)
    }

    fn fetch_wait(&mut self, key: &[u8], timeout: Duration) -> Result<(), WriteError> {
        if let Some(Leased::Token(token)) = self.lease(key, timeout.min(WAIT_MAX))? {
            // The next caller that fetches it computes.
            self.end_lease(key, &Token::leased(token))?;
        }
        Ok(())
    }

    fn walk(&mut self, cursor: u64, budget: usize, visit: impl FnMut(&[u8], &Item)) -> Option<u64> {
        if !self.sessions.is_here() {
            return None;
        }
        let mut walked = Walked::default();
        let now = self.now();
        let note = |key: &[u8], item: &Item| walked.note(key, item);
        let next = self.sessions.inside(|region| region.index().walk(cursor, budget, now, note));
        walked.hand_over(visit);
        next
    }
}

impl ServerSession for Reader {
    fn get_to(
        &mut self,
        key: &[u8],
        how: &Get,
        (_, behind): (BorrowedFd<'_>, &[u8]),
        out: &mut Vec<u8>,
        head: impl FnMut(&Item, &mut Vec<u8>),
    ) -> Result<Option<(Item, usize)>, WriteError> {
        let found = self.get_item(key, how, &mut Headed::new(&mut *out, head))?;
        Ok(with_tail(found, out, behind))
    }

    fn look(&mut self, key: &[u8]) -> Result<Read, WriteError> {
        if !self.sessions.is_here() {
            return Err(WriteError::Detached);
        }
        let mut room = KeyRoom::new();
        let sessions = Arc::clone(&self.sessions);
        let key = sessions.key(key, &mut room);
        self.read(key.bytes(), &Get::default(), &mut Vec::new())
    }

    fn limits(&self) -> Limits {
        self.sessions.inside(|region| region.limits().read())
    }

    fn clock_s(&mut self) -> u64 {
        seconds_of(self.now())
    }

    fn clock(&self) -> Duration {
        let now = self.sessions.now().boot;
        self.sessions.inside(|region| region.clock().clock_at(now))
    }
}
