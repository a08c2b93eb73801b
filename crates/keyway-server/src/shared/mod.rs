//! What a server's threads share: the configuration, and owners with private state, each of which is given to who needs it.
//!
//! | owner | file | holds |
//! |---|---|---|
//! | `Workers` | `workers` | mailboxes, and what the workers have counted |
//! | `Peers` | `peers` | the connections, as `stats conns` shows them, and how many there are |
//! | `Life` | `life` | how the server ends |
//! | `Account` | `account.rs` | memory that connections hold |
//! | `MemoryLimit` | `memory.rs` | the region's memory limit |
//! | `Since`, `Census`, `Hour` | `stats/`, `census.rs`, `hour.rs` | from when on, by whom, and when something was counted |
//! | `Hub` | `watch/` | watchers |
//!
//! Everything here is off the hot path, or a counter with a single writer; requests of different threads meet only in the region.

mod life;
mod peers;
mod workers;

pub(crate) use life::Life;
pub(crate) use peers::{Activity, Arrivals, CloseReason, Peer, PeerAddress, Peers};
pub(crate) use workers::{Lane, Notice, Workers};

use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicUsize};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Instant;

use keyway_cache::Cache;

use crate::account::Account;
use crate::auth::{Hasher, Users};
use crate::basics::{lock, size_text};
use crate::census::Census;
use crate::config::{Config, EventLoop, Sasl};
use crate::detail::Detail;
use crate::file_watch::RegionFile;
use crate::hour::{Hour, Note};
use crate::kernel::Post;
use crate::log_limiter::LogLimiter;
use crate::memory::MemoryLimit;
use crate::rate::Rates;
use crate::stats::Since;
use crate::tls::Certificates;
use crate::watch::{Hub, WatchAsked, Watcher};
use crate::{auth, hotkeys};

static CLOSED_FOR_MEMORY: LogLimiter = LogLimiter::new();

/// See the top of the file.
pub(crate) struct Shared {
    pub(crate) config: Config,
    pub(crate) started: Instant,
    pub(crate) udp_addresses: Vec<SocketAddr>,
    /// the event loop that the workers use
    pub(crate) event_loop: EventLoop,
    pub(crate) verbosity: AtomicU8,
    pub(crate) workers: Arc<Workers>,
    pub(crate) peers: Peers,
    pub(crate) life: Arc<Life>,
    pub(crate) account: Arc<Account>,
    pub(crate) memory: Arc<MemoryLimit>,
    /// the largest item that the region allowed when a worker last looked ([`Self::allows_items_of`])
    item_size_max: AtomicUsize,
    pub(crate) region_file: RegionFile,
    /// from when on `stats` counts
    pub(crate) since: Since,
    /// what was counted in the last hour
    hour: Mutex<Hour>,
    /// whose commands the region's counters count
    pub(crate) census: Census,
    pub(crate) hot: hotkeys::Earlier,
    pub(crate) watch: Arc<Hub>,
    pub(crate) detail: Detail,
    /// the kernel door
    pub(crate) kernel: Option<Arc<Post>>,
    /// how many requests each source may make
    pub(crate) rates: Option<Rates>,
    pub(crate) users: Option<RwLock<Users>>,
    /// how many logins of each source have failed
    pub(crate) login_failures: Rates,
    /// verifies hashed passwords
    pub(crate) hasher: Hasher,
    /// for connections with TLS
    pub(crate) certificates: Option<Certificates>,
}

/// What a server has before its threads start.
pub(crate) struct Setup {
    pub(crate) config: Config,
    pub(crate) udp_addresses: Vec<SocketAddr>,
    pub(crate) event_loop: EventLoop,
    pub(crate) workers: Workers,
    pub(crate) peers: Peers,
    pub(crate) life: Life,
    pub(crate) census: Census,
    pub(crate) kernel: Option<Arc<Post>>,
    pub(crate) users: Option<Users>,
    pub(crate) certificates: Option<Certificates>,
}

impl Shared {
    pub(crate) fn new(setup: Setup, cache: &Cache) -> Self {
        let config = setup.config;
        let item_size_max = cache.limits().item_size_max;
        Self {
            started: Instant::now(),
            udp_addresses: setup.udp_addresses,
            event_loop: setup.event_loop,
            verbosity: AtomicU8::new(config.verbosity),
            workers: Arc::new(setup.workers),
            peers: setup.peers,
            life: Arc::new(setup.life),
            account: Arc::new(Account::new(config.connection_memory_limit(item_size_max))),
            memory: Arc::new(MemoryLimit::new(config.memory)),
            item_size_max: AtomicUsize::new(item_size_max),
            region_file: RegionFile::new(cache),
            since: Since::now(cache),
            hour: Mutex::default(),
            census: setup.census,
            hot: hotkeys::Earlier::default(),
            watch: Arc::default(),
            detail: Detail::new(config.detail_delimiter.unwrap_or(b':'), config.detail_delimiter.is_some()),
            kernel: setup.kernel,
            rates: config.request_rate.map(|(rate, burst)| Rates::new(rate, burst)),
            users: setup.users.map(RwLock::new),
            login_failures: auth::failures(),
            hasher: Hasher::default(),
            certificates: setup.certificates,
            config,
        }
    }

    /// Whether clients of the binary protocol log in by SASL.
    pub(crate) fn has_sasl(&self) -> bool {
        self.users.is_some() && self.config.sasl != Sasl::Off
    }

    /// Reads the files of TLS again; if that fails, the old certificate stays in force. `None`: there is no TLS.
    pub(crate) fn refresh_certificates(&self, asked_by: &str) -> Option<bool> {
        let certificates = self.certificates.as_ref()?;
        let file = certificates.settings().certificate.display();
        match certificates.refresh() {
            Ok(()) => log::info!(
                "{asked_by}: read {file} again; it is valid for {} more days",
                certificates.days_left()
            ),
            Err(ref error) => {
                log::error!("{asked_by}: TLS: {error}; the old certificate stays in force");
                return Some(false);
            }
        }
        Some(true)
    }

    /// The region allows items of this size, perhaps since another server of it was started.
    #[inline]
    pub(crate) fn allows_items_of(&self, size: usize) {
        if self.item_size_max.load(Relaxed) != size {
            self.item_size_max.store(size, Relaxed);
            self.account.set_limit(self.config.connection_memory_limit(size));
        }
    }

    /// Most that one connection can hold, bytes.
    pub(crate) fn each_held_max(&self) -> usize {
        crate::account::each_held_max(self.item_size_max.load(Relaxed)).min(self.account.limit())
    }

    /// Ends connections to free memory: first those that make no progress, and of these the ones that hold most, until the total is within
    /// the limit. If it is within the limit, ends one that makes no progress, unless one was ended for that a moment ago.
    pub(crate) fn relieve(&self) {
        let mut excess = self.account.used().saturating_sub(self.account.limit());
        let must = excess > 0;
        if !must && !self.account.may_close() {
            return;
        }
        let holders = self.peers.holders().into_iter();
        let mut holders: Vec<_> = holders
            .map(|peer| (self.account.is_stalled(&peer), peer.held.load(Relaxed), peer))
            .filter(|(is_stalled, ..)| must || *is_stalled)
            .collect();
        holders.sort_unstable_by_key(|(is_stalled, held, _)| std::cmp::Reverse((*is_stalled, *held)));
        for (_, held, peer) in holders {
            if peer.begin_end() {
                self.end_for_memory(&peer, held);
            }
            // A connection that is ending already counts as freed.
            excess = excess.saturating_sub(held);
            if excess == 0 {
                return;
            }
        }
    }

    fn end_for_memory(&self, peer: &Arc<Peer>, held: usize) {
        self.account.closed.fetch_add(1, Relaxed);
        if let Some(left_out) = CLOSED_FOR_MEMORY.may_speak() {
            log::warn!(
                "{} holds {} of the {} that connections hold (limit {}: --connection-memory) and is closed{left_out}",
                peer.address,
                size_text(held as u64),
                size_text(self.account.used() as u64),
                size_text(self.account.limit() as u64),
            );
        }
        self.workers.end(peer, CloseReason::Memory);
    }

    /// Seconds since the start.
    pub(crate) fn uptime_s(&self) -> u32 {
        self.started.elapsed().as_secs().try_into().unwrap_or(u32::MAX)
    }

    /// Seconds from the start to `now`.
    pub(crate) fn uptime_s_at(&self, now: Instant) -> u32 {
        now.saturating_duration_since(self.started)
            .as_secs()
            .try_into()
            .unwrap_or(u32::MAX)
    }

    /// Starts a graceful shutdown; has no effect if one has started.
    pub(crate) fn stop(&self) {
        self.life.stop();
        self.hasher.stop();
        self.wake_workers();
    }

    /// Another server has the role now: stops without closing what that one has.
    pub(crate) fn give_up_role(&self, process: u32) {
        self.life.taken_over(process);
        self.stop();
    }

    /// Wakes the workers and the kernel door's keeper.
    pub(crate) fn wake_workers(&self) {
        self.workers.wake_all();
        if let Some(post) = &self.kernel {
            post.wake();
        }
    }

    /// Has a connection (`worker` and its token there) watch; `None`: there are too many watchers, or this process cannot watch.
    pub(crate) fn watch_as(&self, asked: WatchAsked, place: (usize, usize), cache: &Cache) -> Option<Arc<Watcher>> {
        self.watch.add(asked, place, cache, (&self.workers, &self.life))
    }

    /// Notes what was counted in the last minute, if none of it was noted.
    pub(crate) fn note_hour(&self, cache: &Cache) {
        let mut hour = lock(&self.hour);
        if hour.is_due(Instant::now()) {
            hour.note(self.hour_note(cache));
        }
    }

    fn hour_note(&self, cache: &Cache) -> Note {
        Note::now(cache, &self.peers, &self.account, self.kernel.as_deref())
    }

    /// What was counted in the last hour, by name.
    pub(crate) fn last_hour(&self, cache: &Cache) -> Vec<(String, u64)> {
        let first = lock(&self.hour).first();
        first.map_or_else(Vec::new, |first| self.hour_note(cache).since(&first))
    }

    /// A connection has ended.
    pub(crate) fn connection_closed(&self, peer: &Peer) {
        if self.peers.leave(peer) {
            self.life.wake_acceptor();
        }
    }
}
