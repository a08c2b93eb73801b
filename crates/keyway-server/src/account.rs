//! The memory that connections hold: incomplete input, output that the client has not taken, and what dumps and watchers keep.
//!
//! Each connection has a [`Charge`] on the server's [`Account`], which is updated when a turn ends. Small amounts are not charged (an
//! idle connection holds nothing but itself), so ordinary traffic never touches the shared counter. A request that is larger than one
//! read is charged in full before more of it is read, so a request that is admitted has the memory to be completed. It is charged only
//! when more of it has come: clients that begin a value and stop would hold all memory, and others would wait.
//!
//! | part of the limit in use | what happens |
//! |---|---|
//! | up to half | nothing |
//! | more | a connection without memory reserved for a large request is read only up to about [`SMALL`] bytes; one with more than [`UNSENT_TIGHT`] unsent is not served |
//! | seven eighths | a large request is read only when all of it fits below this mark |
//! | a connection has waited for longer than [`PATIENCE`] (it waits [`PAUSED_MAX`] at most) | of the connections that make no progress ([`STALLED_S`], [`HELD_MAX_S`]) the one that holds most is closed, one every [`BETWEEN`] |
//! | all | those are closed at once, then the ones that hold most, until the rest is within the limit |

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::shared::Peer;

/// Unsent bytes above which a connection is not served until its client reads. One reply may go beyond it.
pub(crate) const UNSENT_MAX: usize = 256 << 10;
/// Size of the worker's input buffer that turns borrow, bytes.
pub(crate) const INPUT_SIZE: usize = 64 * 1024;
/// A connection that holds at most this many bytes is not charged.
pub(crate) const SMALL: usize = 4 * 1024;
/// A connection with more unsent bytes than this is not served when memory is tight.
pub(crate) const UNSENT_TIGHT: usize = 16 * 1024;
/// How long a connection waits for memory before the one that holds most is closed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// How long it waits at most; then it is closed.
pub(crate) const PAUSED_MAX: Duration = Duration::from_secs(10);
/// How often a waiting connection checks for memory.
pub(crate) const PAUSE: Duration = Duration::from_millis(10);
/// A connection that holds memory and has sent nothing for this many seconds makes no progress.
const STALLED_S: u32 = 2;
/// A connection that has held memory for this many seconds makes no progress either.
const HELD_MAX_S: u32 = 10;
/// Least time between closing two connections for memory.
const BETWEEN: Duration = Duration::from_millis(10);

/// Most that one connection can hold, bytes: a request that arrives, whose buffer is there twice while it grows, and an answer that its client does not
/// read, which may have a value above [`UNSENT_MAX`].
pub(crate) fn each_held_max(item_size_max: usize) -> usize {
    let request = item_size_max.saturating_add(INPUT_SIZE);
    let answers = item_size_max.saturating_add(UNSENT_MAX);
    request.saturating_mul(2).saturating_add(answers)
}

/// The memory of all connections.
pub(crate) struct Account {
    limit: AtomicUsize,
    started: Instant,
    used: AtomicUsize,
    /// the highest value of `used`
    peak: AtomicUsize,
    /// times that a connection was not read because memory was short
    pub(crate) paused: AtomicU64,
    /// connections closed for memory
    pub(crate) closed: AtomicU64,
    /// when a connection was last closed for memory, milliseconds after the server's start
    closed_at_ms: AtomicU64,
}

/// One connection's part of the account.
pub(crate) struct Charge {
    account: Arc<Account>,
    peer: Arc<Peer>,
}

impl Account {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit: AtomicUsize::new(limit),
            started: Instant::now(),
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            paused: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            closed_at_ms: AtomicU64::new(0),
        }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit.load(Relaxed)
    }

    pub(crate) fn set_limit(&self, limit: usize) {
        self.limit.store(limit, Relaxed);
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Relaxed)
    }

    /// Whether connections have to hold less than they otherwise may.
    pub(crate) fn is_tight(&self) -> bool {
        self.used() > self.limit() / 2
    }

    pub(crate) fn is_over(&self) -> bool {
        self.used() > self.limit()
    }

    /// Whether a connection may take `more` bytes.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        self.used().saturating_add(more) <= self.limit() / 8 * 7
    }

    /// Whether a connection holds memory and makes no progress.
    pub(crate) fn is_stalled(&self, peer: &Peer) -> bool {
        let now_s = self.uptime_s();
        let since = |second: u32| now_s.saturating_sub(second);
        since(peer.last_request_s.load(Relaxed)) >= STALLED_S || since(peer.held_since_s.load(Relaxed)) >= HELD_MAX_S
    }

    fn uptime_s(&self) -> u32 {
        self.started.elapsed().as_secs().try_into().unwrap_or(u32::MAX)
    }

    /// Whether the caller may close a connection for memory now; at most one caller per [`BETWEEN`] gets `true`.
    pub(crate) fn may_close(&self) -> bool {
        let now_ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        let last_ms = self.closed_at_ms.load(Relaxed);
        let between_ms = u64::try_from(BETWEEN.as_millis()).unwrap_or(u64::MAX);
        now_ms.saturating_sub(last_ms) >= between_ms
            && self.closed_at_ms.compare_exchange(last_ms, now_ms, Relaxed, Relaxed).is_ok()
    }
}

impl Charge {
    pub(crate) fn new(account: Arc<Account>, peer: Arc<Peer>) -> Self {
        Self { account, peer }
    }

    /// Records that the connection now holds `held` bytes.
    #[inline]
    pub(crate) fn set(&mut self, held: usize) {
        let held = if held <= SMALL { 0 } else { held };
        // Only this connection's worker writes it.
        let before = self.peer.held.load(Relaxed);
        if held != before {
            self.change(before, held);
        }
    }

    fn change(&mut self, before: usize, held: usize) {
        if before == 0 {
            self.peer.held_since_s.store(self.account.uptime_s(), Relaxed);
        }
        self.peer.held.store(held, Relaxed);
        if held < before {
            self.account.used.fetch_sub(before - held, Relaxed);
        } else {
            let used = self.account.used.fetch_add(held - before, Relaxed) + (held - before);
            self.account.peak.fetch_max(used, Relaxed);
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}
