//! The memory that connections hold: input that is not complete, output that is not taken, what dumps and watchers keep.
//!
//! Each connection has a [`Charge`] on the server's [`Account`], set anew when a turn ends. What is small is not charged one by one
//! (an idle connection holds nothing but itself), so that ordinary traffic never touches the shared counter. A request that is larger than
//! what is read at a time is charged in full before more of it is read: those that are let in find the room to be completed.
//!
//! | of the limit in use | what happens |
//! |---|---|
//! | up to half | nothing |
//! | more | of a connection that holds nothing no more is read than [`SMALL`]; none is served that leaves more than [`UNSENT_TIGHT`] unread |
//! | seven eighths | a large request is not read on until there is room for all of it below that |
//! | so that one waits for longer than [`PATIENCE`] (and [`PAUSED_MAX`] at most) | of those that make no progress ([`STALLED_S`], [`HELD_MAX_S`]) the one that holds most is closed, one every [`BETWEEN`] |
//! | all | those are closed at once, and then the ones that hold most, until what is left is within the limit |

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use crate::shared::Peer;

/// A connection that holds no more than this is not charged, bytes.
pub(crate) const SMALL: usize = 4 * 1024;
/// Unsent bytes above which a connection is not served, when memory is tight.
pub(crate) const UNSENT_TIGHT: usize = 16 * 1024;
/// How long a connection waits for memory before the one that holds most is closed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);
/// How long it waits at most: it ends then.
pub(crate) const PAUSED_MAX: Duration = Duration::from_secs(10);
/// How often it looks.
pub(crate) const PAUSE: Duration = Duration::from_millis(10);
/// A connection that holds memory, and has sent nothing for so many seconds, makes no progress.
const STALLED_S: u32 = 2;
/// Nor does one that holds memory for so many seconds.
const HELD_MAX_S: u32 = 10;
/// Between two connections that are closed for memory.
const BETWEEN: Duration = Duration::from_millis(10);

/// What all connections hold.
pub(crate) struct Account {
    limit: usize,
    started: Instant,
    used: AtomicUsize,
    /// the most that was in use
    peak: AtomicUsize,
    /// times that a connection was not read for want of memory
    pub(crate) paused: AtomicU64,
    /// connections closed for memory
    pub(crate) closed: AtomicU64,
    /// when one was closed last, milliseconds after the server's start
    closed_at_ms: AtomicU64,
}

/// One connection's part of it.
pub(crate) struct Charge {
    account: Arc<Account>,
    peer: Arc<Peer>,
}

impl Account {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            limit,
            started: Instant::now(),
            used: AtomicUsize::new(0),
            peak: AtomicUsize::new(0),
            paused: AtomicU64::new(0),
            closed: AtomicU64::new(0),
            closed_at_ms: AtomicU64::new(0),
        }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn used(&self) -> usize {
        self.used.load(Relaxed)
    }

    pub(crate) fn peak(&self) -> usize {
        self.peak.load(Relaxed)
    }

    /// Whether connections are to hold less than they otherwise may.
    pub(crate) fn is_tight(&self) -> bool {
        self.used() > self.limit / 2
    }

    pub(crate) fn is_over(&self) -> bool {
        self.used() > self.limit
    }

    /// Whether a connection may take so much more.
    pub(crate) fn has_room(&self, more: usize) -> bool {
        self.used().saturating_add(more) <= self.limit / 8 * 7
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

    /// Whether a connection may be closed for memory now; at most one at a time gets leave.
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

    /// The connection holds so much now.
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
