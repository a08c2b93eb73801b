//! What a server's threads share: the configuration, and owners with private state, each of which is given to who needs it.
//!
//! | owner | file | holds |
//! |---|---|---|
//! | `Workers` | `workers` | mailboxes, and what the workers have counted |
//! | `Peers` | `peers` | the connections, as `stats conns` shows them, and how many there are |
//! | `Life` | `life` | how the server ends |
//! | `Account` | `account.rs` | memory that connections hold |
//! | `MemoryLimit` | `memory.rs` | the region's memory limit |
//! | `Since`, `Census`, `Hour` | `stats/`, `census.rs`, here | from when on, by whom, and when something was counted |
//! | `Holds` | `holds.rs` | gets that wait for a value which another client computes |
//! | `Hub` | `watch/` | watchers |
//!
//! Everything here is off the hot path, or a counter with a single writer; requests of different threads meet only in the region.

mod life;
mod peers;
mod workers;

pub(crate) use life::Life;
pub(crate) use peers::{Activity, Arrivals, CloseReason, Peer, PeerAddress, Peers};
pub(crate) use workers::{Lane, Notice, Workers};

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU8, AtomicUsize};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use keyway_cache::{Cache, Counters, server};

use crate::account::Account;
use crate::auth::{Hasher, Users};
use crate::basics::{lock, size_text};
use crate::census::Census;
use crate::config::{Config, EventLoop, Sasl};
use crate::detail::Detail;
use crate::file_watch::RegionFile;
use crate::holds::Holds;
use crate::kernel::Post;
use crate::log_limiter::LogLimiter;
use crate::memory::MemoryLimit;
use crate::rate::Rates;
use crate::stats::Since;
use crate::tls::Certificates;
use crate::watch::{Hub, WatchAsked, Watcher};
use crate::{auth, hotkeys};

/// Time between two notes, and how many are kept: an hour.
const NOTED_EVERY: Duration = Duration::from_secs(60);
const NOTES_MAX: usize = 60;

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
    /// misses that are held
    pub holds: Holds,
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
            holds: Holds::new(&config.hold_misses),
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
        self.holds.stop();
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

/// What was counted in the last hour, for `keyway doctor`: what the region, this server and the kernel had counted at each minute of it.
#[derive(Default)]
struct Hour {
    notes: VecDeque<Note>,
}

/// What had been counted at a moment.
#[derive(Clone)]
struct Note {
    at: Instant,
    counters: Counters,
    /// connections that were refused
    rejected: u64,
    /// connections that were closed because their memory was short
    closed: u64,
    /// datagrams that the kernel dropped because a socket's buffer was full; `None`: it does not say
    udp_dropped: Option<u64>,
    /// packets by what the kernel door did with them
    kernel: Vec<(&'static str, u64)>,
}

impl Note {
    fn now(cache: &Cache, peers: &Peers, account: &Account, kernel: Option<&Post>) -> Self {
        Self {
            at: Instant::now(),
            counters: cache.counters(),
            rejected: peers.arrivals().rejected,
            closed: account.closed.load(Relaxed),
            udp_dropped: dropped(&peers.udp_sockets()),
            kernel: kernel.map_or_else(Vec::new, |post| post.numbers().verdicts),
        }
    }

    /// What was counted from `then` to this note, by name, after the time between them, seconds.
    fn since(&self, then: &Self) -> Vec<(String, u64)> {
        let (now, before) = (&self.counters, &then.counters);
        let mut all = vec![("seconds".to_owned(), self.at.saturating_duration_since(then.at).as_secs())];
        let counted = [
            ("evictions", now.evictions, before.evictions),
            ("came_back", now.ghost_hits, before.ghost_hits),
            ("no_memory", now.store_no_memory, before.store_no_memory),
            ("corrupt", now.corrupt, before.corrupt),
            ("rejected", self.rejected, then.rejected),
            ("closed_for_memory", self.closed, then.closed),
        ];
        let udp_dropped = self
            .udp_dropped
            .zip(then.udp_dropped)
            .map(|(now, then)| ("udp_dropped", now, then));
        all.extend(
            counted
                .into_iter()
                .chain(udp_dropped)
                .map(|(name, now, then)| (name.to_owned(), now.saturating_sub(then))),
        );
        all.extend(self.kernel.iter().map(|(word, now)| {
            let before = then
                .kernel
                .iter()
                .find(|(other, _)| other == word)
                .map_or(0, |(_, count)| *count);
            (format!("kernel_{word}"), now.saturating_sub(before))
        }));
        all
    }
}

/// Datagrams that were dropped at these sockets since each was made; `None` if the kernel does not say. Each is asked: the table of all sockets of the machine
/// (proc_pid_net(5), udp) takes the kernel seconds, if there are some ten thousand.
fn dropped(sockets: &[OwnedFd]) -> Option<u64> {
    sockets
        .iter()
        .map(|socket| server::dropped(socket.as_fd()).map(u64::from))
        .sum()
}

impl Hour {
    /// Whether a minute has passed since the last note.
    fn is_due(&self, now: Instant) -> bool {
        self.notes
            .back()
            .is_none_or(|last| now.saturating_duration_since(last.at) >= NOTED_EVERY)
    }

    /// Keeps this note, and those of the hour before it.
    fn note(&mut self, note: Note) {
        self.notes.push_back(note);
        while self.notes.len() > NOTES_MAX + 1 {
            self.notes.pop_front();
        }
    }

    /// The note of an hour ago, or the first one.
    fn first(&self) -> Option<Note> {
        self.notes.front().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    fn note(begun: Instant, minute: u32) -> Note {
        Note {
            at: begun + NOTED_EVERY * minute,
            counters: Counters::default(),
            rejected: minute.into(),
            closed: 0,
            udp_dropped: Some(0),
            kernel: Vec::new(),
        }
    }

    #[test]
    fn it_knows_an_hour_and_no_more() {
        let begun = Instant::now();
        let mut hour = Hour::default();
        assert!(hour.is_due(begun));
        hour.note(note(begun, 0));
        assert!(!hour.is_due(begun) && !hour.is_due(begun + NOTED_EVERY / 2) && hour.is_due(begun + NOTED_EVERY));
        for minute in 1..200 {
            let now = note(begun, minute);
            hour.note(now.clone());
            let counted = now.since(&hour.first().unwrap());
            let minutes = u64::from(minute.min(60));
            assert!(
                counted.contains(&("seconds".to_owned(), 60 * minutes)),
                "{minute}: {counted:?}"
            );
            assert!(counted.contains(&("rejected".to_owned(), minutes)), "{minute}: {counted:?}");
        }
    }

    #[test]
    fn each_name_is_what_was_counted_between_two_notes() {
        let begun = Instant::now();
        let (then, mut now) = (note(begun, 0), note(begun, 1));
        let mut counters = [then.counters, now.counters];
        for (number, counters) in (0..).zip(&mut counters) {
            counters.evictions = 1 + 10 * number;
            counters.ghost_hits = 2 + 20 * number;
            counters.store_no_memory = 3 + 30 * number;
            counters.corrupt = 4 + 40 * number;
        }
        let then = Note {
            counters: counters[0],
            rejected: 5,
            closed: 6,
            udp_dropped: Some(7),
            kernel: vec![("hits", 8), ("stale", 9)],
            ..then
        };
        now = Note {
            counters: counters[1],
            rejected: 55,
            closed: 66,
            udp_dropped: Some(77),
            kernel: vec![("stale", 99), ("hits", 88), ("silent", 1)],
            ..now
        };
        let wanted = [
            ("seconds", 60),
            ("evictions", 10),
            ("came_back", 20),
            ("no_memory", 30),
            ("corrupt", 40),
            ("rejected", 50),
            ("closed_for_memory", 60),
            ("udp_dropped", 70),
            ("kernel_stale", 90),
            ("kernel_hits", 80),
            ("kernel_silent", 1),
        ];
        assert_eq!(now.since(&then), wanted.map(|(name, count)| (name.to_owned(), count)));
        // What the kernel does not say is unknown, and not 0.
        now.udp_dropped = None;
        assert!(now.since(&then).iter().all(|(name, _)| name != "udp_dropped"));
    }

    #[test]
    fn datagrams_that_were_dropped_are_those_of_all_sockets() {
        let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        // More than the system lets a buffer hold by default.
        for socket in &sockets {
            (0..3_000).for_each(|_| assert_eq!(sockets[0].send_to(&[7; 1_000], socket.local_addr().unwrap()).unwrap(), 1_000));
        }
        let [first, second] = sockets.map(OwnedFd::from);
        let both = dropped(&[first.try_clone().unwrap(), second.try_clone().unwrap()]).unwrap();
        let each = [first, second].map(|socket| dropped(&[socket]).unwrap());
        assert!(each[0] > 0 && each[1] > 0 && both == each[0] + each[1], "{each:?}, {both}");
    }
}
