//! The kernel door of a server: its program, and the keeper, the thread that decides which items the program may answer.
//!
//! Workers send the keeper the keys that they have served over UDP twice ([`Served`]). The keeper reads such an item from the region,
//! checks the words that count changes before and after, and writes a copy where the program finds it. Ten times a second it renews the
//! program's lease and clock, and checks which copies the program has served. It reports those to the region, so that the region does not
//! evict items whose hits only the kernel sees.
//!
//! A change makes all copies of its stripe stale. The keeper reads the stripes' words, whichever process changes them, and writes those copies
//! again that were served lately ([`Store::voided`]): soon after the change while there are such copies, and at the latest with the next tick.
//! A worker that changes an item while the keeper sleeps wakes it ([`Post::changed`]); the worker itself does none of this work.
//!
//! Order of turning on: the program is loaded and answers nothing; the region's door word is set; every session has acknowledged it; then copies
//! and lease. Order of turning off: the lease, the program's interfaces, a fence after which no run of it is left, the door word.
//!
//! The lease is renewed on time, however much else there is to do: all work is split into steps of a few milliseconds, with a call of
//! [`Keeper::breathe`] between them.

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

use keyway::server::{KernelDoor, KernelDoorError};
use keyway::{Cache, Get, Session};
use keyway_proto::reply::{self, stat};
use keyway_proto::{Protocol, Request};
use keyway_xdp::config::{Settings, Verdict};
use keyway_xdp::copy::{HotCopy, Item, Seen};
use keyway_xdp::door::{Attached, Door};
use keyway_xdp::store::{Put, Store, is_good};
use keyway_xdp::{Counts, Maps};
use nix::net::if_::if_nametoindex;

use crate::config::{Config, Kernel};
use crate::shared::{Shared, lock};

/// Time between two renewals of the lease.
const TICK: Duration = Duration::from_millis(100);
/// How long the program answers without a renewal.
const LEASE: Duration = Duration::from_secs(1);
/// Most keys that wait for the keeper; further ones are dropped, and user space serves them again.
const CANDIDATES_MAX: usize = 4096;
/// Number of ticks in which each copy is checked once for hits.
const SWEEP_TICKS: usize = 10;
/// Pages that are checked in one step.
const SWEPT_AT_ONCE: usize = 16;
/// Least time between two fences, after which emptied pages are used again. If more is hot than the memory holds, copies are not
/// made faster than that, and user space serves what does not fit.
const FENCE_PAUSE: Duration = Duration::from_millis(20);
/// Ticks between two searches for stripes of dead writers.
const MEND_TICKS: u64 = 10;
/// Ticks between two lines in the log.
const LOG_TICKS: u64 = 600;
/// How long a start waits until the program of a dead server stops answering.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// Least time between two checks for stale copies while there are some, so that wake-ups stay a small part of a CPU.
const LOOK_PAUSE: Duration = Duration::from_micros(200);
/// The pause after a check is this many times as long as the check, so checks take at most a ninth of a CPU.
const LOOK_REST: u32 = 8;
/// Copies that one check handles; the next check does the rest. Workers may wait for the CPU meanwhile.
const LOOKED_AT: usize = 64;
/// Least memory for the hot set, bytes.
const MEMORY_MIN: usize = 512 << 10;

/// The state of the kernel door that other threads use.
pub(crate) struct Post {
    candidates: Mutex<Vec<Vec<u8>>>,
    keeper: OnceLock<Thread>,
    counts: Counts,
    /// copies held; copies written
    held: AtomicU64,
    filled: AtomicU64,
    /// copies written again after changes
    renewed: AtomicU64,
    /// stripes of dead writers that the program can serve again
    mended: AtomicU64,
    /// the keeper checks for stale copies by itself, so workers need not wake it
    attentive: AtomicBool,
}

/// The keeper's own state.
pub(crate) struct Keeper {
    post: Arc<Post>,
    program: Program,
    /// `None` only while it is being dropped
    door: Option<KernelDoor>,
    cache: Cache,
    session: Session,
    store: Store,
    /// buffer for the value of the item that is copied
    value: Vec<u8>,
    cas_enabled: bool,
    is_on: bool,
    ticks: u64,
    next_tick: Instant,
    /// when the lease is renewed next
    next_renewal: Instant,
    /// earliest time of the next fence
    next_fence: Instant,
    /// copies in the pages that this round of the sweep has checked, and how many pages remain
    counted: usize,
    unswept: usize,
    /// hits and packets passed up, at the last log line
    logged: u64,
}

/// The program: loaded here, or pinned before.
enum Program {
    Loaded(Door, Vec<Attached>),
    Pinned(Maps),
}

impl Program {
    fn maps(&self) -> &Maps {
        match self {
            Self::Loaded(door, _) => door.maps(),
            Self::Pinned(maps) => maps,
        }
    }
}

/// Loads and attaches the program, or opens the pinned one, and turns the door on. The error text is for the operator.
pub(crate) fn start(config: &Config, kernel: &Kernel, udp: &[SocketAddr], cache: &Cache) -> Result<(Keeper, Arc<Post>), String> {
    let settings = settings(config, kernel, udp)?;
    let program = program(kernel, &settings)?;
    let maps = program.maps();
    // The lease of an earlier server, if the program was pinned.
    maps.hot().renew(0, 0);
    maps.hot().clear();
    let counts = maps.counts().map_err(|error| error.to_string())?;
    let stripes = || maps.stripes_file().map_err(|error| error.to_string());
    let deadline = Instant::now() + SILENCE_MAX;
    let door = loop {
        match cache.turn_kernel_door_on(stripes()?) {
            Err(KernelDoorError::StillAnswering(left)) if Instant::now() < deadline => std::thread::sleep(left),
            other => break other.map_err(|error| error.to_string())?,
        }
    };
    maps.hot().set_seed(cache.hash_seed());
    let post = Arc::new(Post {
        candidates: Mutex::default(),
        keeper: OnceLock::new(),
        counts,
        held: AtomicU64::new(0),
        filled: AtomicU64::new(0),
        renewed: AtomicU64::new(0),
        mended: AtomicU64::new(0),
        attentive: AtomicBool::new(true),
    });
    let pages = maps.pages();
    let keeper = Keeper {
        post: Arc::clone(&post),
        store: Store::new(pages),
        value: Vec::new(),
        program,
        door: Some(door),
        session: cache.session().map_err(|error| error.to_string())?,
        cache: cache.clone(),
        cas_enabled: config.cas_enabled,
        is_on: false,
        ticks: 0,
        next_tick: Instant::now(),
        next_renewal: Instant::now(),
        next_fence: Instant::now(),
        counted: 0,
        unswept: pages,
        logged: 0,
    };
    Ok((keeper, post))
}

/// The program's settings for a server with this configuration.
fn settings(config: &Config, kernel: &Kernel, udp: &[SocketAddr]) -> Result<Settings, String> {
    let [address] = udp else {
        return Err(format!(
            "the kernel door answers for one UDP address, and there are {}: give one, such as --udp 127.0.0.1",
            udp.len()
        ));
    };
    if config.protocol == Protocol::Binary {
        return Err(
            "the kernel door answers the text and meta protocols, and this server speaks the binary one only (-B)".to_owned(),
        );
    }
    if kernel.memory < MEMORY_MIN {
        return Err(format!(
            "the kernel door's memory is {} bytes, the least is {MEMORY_MIN} (--kernel-memory)",
            kernel.memory
        ));
    }
    kernel_settings(
        *address,
        config
            .udp_allow
            .iter()
            .map(|network| (network.address(), network.prefix_len()))
            .collect(),
        kernel,
    )
}

/// The settings of a program for this address.
pub fn kernel_settings(address: SocketAddr, allow: Vec<(IpAddr, u8)>, kernel: &Kernel) -> Result<Settings, String> {
    if address.ip().is_unspecified() {
        return Err(format!(
            "the kernel door compares destination addresses, so it needs a specific one and not {address}; give the interface's own to --udp"
        ));
    }
    Ok(Settings {
        address: address.ip(),
        port: address.port(),
        allow,
        memory: kernel.memory,
        rate: kernel.rate,
    })
}

fn program(kernel: &Kernel, settings: &Settings) -> Result<Program, String> {
    if let Some(folder) = &kernel.pinned {
        return Maps::pinned(folder, settings)
            .map(Program::Pinned)
            .map_err(|error| error.to_string());
    }
    let door = Door::load(settings).map_err(|error| error.to_string())?;
    let mut attached = Vec::new();
    for name in &kernel.interfaces {
        let number = interface(name)?;
        let here = door.attach(number).map_err(|error| format!("{name}: {error}"))?;
        let others = here.others();
        if !others.is_empty() {
            log::warn!(
                "other programs see packets before or after the kernel door on {name}: {}",
                others.join(", ")
            );
        }
        attached.push(here);
    }
    Ok(Program::Loaded(door, attached))
}

/// The number of an interface.
pub fn interface(name: &str) -> Result<i32, String> {
    let number = if_nametoindex(name).map_err(|error| format!("the kernel door: there is no interface {name} ({error})"))?;
    i32::try_from(number).map_err(|_| format!("the kernel door: the number of {name} is too high"))
}

impl Keeper {
    /// Runs the kernel door until the server stops.
    pub(crate) fn run(mut self, shared: &Shared) {
        let _ = self.post.keeper.set(std::thread::current());
        let mut pause = TICK;
        let mut candidates = Vec::new().into_iter();
        while !shared.is_stopping() {
            if Instant::now() >= self.next_tick {
                self.next_tick = Instant::now() + TICK;
                self.tick();
            }
            if candidates.len() == 0 {
                candidates = std::mem::take(&mut *lock(&self.post.candidates)).into_iter();
            }
            if self.is_on {
                while Instant::now() < self.next_tick
                    && let Some(key) = candidates.next()
                {
                    let hash = self.cache.hash(&key);
                    self.take_in(hash, &key);
                }
                pause = self.look(pause);
            } else {
                candidates = Vec::new().into_iter();
            }
            if candidates.len() == 0 {
                std::thread::park_timeout(pause.min(self.next_tick.saturating_duration_since(Instant::now())));
            }
        }
    }

    /// Renews the lease if it is due; called between any two steps of work.
    fn breathe(&mut self) {
        let Some(door) = &self.door else { return };
        let now = Instant::now();
        if !self.is_on || now < self.next_renewal {
            return;
        }
        self.next_renewal = now + TICK;
        let now_ns = nanoseconds(self.cache.monotonic());
        let lease_ns = now_ns + nanoseconds(LEASE);
        // Read after `now_ns`, so the program's clock is not earlier than the region's.
        let clock_ns = nanoseconds(self.session.clock());
        door.renew(lease_ns);
        self.program.maps().hot().renew(lease_ns, clock_ns.wrapping_sub(now_ns));
    }

    fn tick(&mut self) {
        let Some(door) = &self.door else { return };
        self.ticks += 1;
        if !self.is_on {
            self.is_on = door.is_acknowledged();
            if !self.is_on {
                return;
            }
            log::info!("the kernel door is on");
        }
        self.breathe();
        self.sweep();
        self.make_room();
        if self.ticks.is_multiple_of(MEND_TICKS) {
            if let Some(door) = &self.door {
                let mended = door.mend();
                if mended > 0 {
                    self.post.mended.fetch_add(mended as u64, Relaxed);
                    log::info!("the kernel door answers again from {mended} stripes of writers that died");
                }
            }
            self.breathe();
        }
        if self.ticks.is_multiple_of(LOG_TICKS) {
            self.log();
        }
    }

    /// Checks a part of the copies for hits: as many as the time until the next tick allows.
    fn sweep(&mut self) {
        let mut pages = self.program.maps().pages().div_ceil(SWEEP_TICKS);
        while pages > 0 && Instant::now() < self.next_tick {
            let count = pages.min(SWEPT_AT_ONCE).min(self.unswept);
            let hot = self.program.maps().hot();
            let session = &mut self.session;
            self.counted += self.store.sweep(&hot, count, |key| session.note_hit(key));
            pages -= count;
            self.unswept -= count;
            if self.unswept == 0 {
                self.post.held.store(self.counted as u64, Relaxed);
                (self.counted, self.unswept) = (0, self.program.maps().pages());
            }
            self.breathe();
        }
    }

    fn make_room(&mut self) {
        self.breathe();
        let hot = self.program.maps().hot();
        let session = &mut self.session;
        self.store
            .make_room(&hot, |hash, copy| is_good(&hot, hash, copy), |key| session.note_hit(key));
        if self.store.needs_rest()
            && Instant::now() >= self.next_fence
            && let Some(door) = &self.door
        {
            door.settle();
            self.store.rested();
            self.next_fence = Instant::now() + FENCE_PAUSE;
        }
        self.breathe();
    }

    /// Writes stale copies again, and returns when to check next: soon, while there are such copies; at growing intervals, while changes
    /// concern nothing that is hot; with the next tick, or when a worker wakes the keeper, if nothing changes at all.
    fn look(&mut self, pause: Duration) -> Duration {
        let begun = Instant::now();
        let hot = self.program.maps().hot();
        let session = &mut self.session;
        let voided = self.store.voided(&hot, LOOKED_AT, |key| session.note_hit(key));
        let renewed = voided.keys.iter().filter(|(hash, key)| self.take_in(*hash, key)).count();
        self.post.renewed.fetch_add(renewed as u64, Relaxed);
        self.breathe();
        self.post.attentive.store(voided.any, Relaxed);
        if renewed > 0 || voided.more {
            (LOOK_REST * begun.elapsed()).clamp(LOOK_PAUSE, TICK)
        } else {
            (2 * pause).min(TICK)
        }
    }

    /// Copies an item that workers have served, unless there is a copy or the program cannot serve it; returns whether it did.
    fn take_in(&mut self, hash: u64, key: &[u8]) -> bool {
        let hot = self.program.maps().hot();
        if Store::is_current(&hot, hash) {
            return false;
        }
        // PAIRS: the thread that counts a change as finished (`Stripes::step` in keyway-region): the get below sees its publish.
        let seen = Seen {
            stripe: hot.stripe(hash).load(Acquire),
            flush: hot.flush().load(Acquire),
        };
        let is_at_rest = |word: u64| word >> 32 == word & 0xFFFF_FFFF;
        if !is_at_rest(seen.stripe) || !is_at_rest(seen.flush) {
            return false;
        }
        let Some(copy) = self.copy_of(key, seen) else { return false };
        for _ in 0..2 {
            if self.store.put(&self.program.maps().hot(), hash, &copy) == Put::Done {
                self.post.filled.fetch_add(1, Relaxed);
                return true;
            }
            self.make_room();
        }
        false
    }

    /// A copy of the item as of `seen` or later.
    fn copy_of(&mut self, key: &[u8], seen: Seen) -> Option<HotCopy> {
        // Both are read before the item, so the copy expires no later than the item does or is flushed.
        let now_s = self.session.clock_s();
        let flush_s = self.cache.flush_at_s();
        let how = Get {
            value: true,
            details: true,
            no_bump: true,
            ..Get::default()
        };
        self.value.clear();
        let item = self.session.get_with(key, &how, &mut self.value, |_, _| {}).ok()??;
        // The program cannot write the answers for such items.
        if item.stale || item.win_sent || item.opaque_key {
            return None;
        }
        let second = |second: Option<u64>| u32::try_from(second.unwrap_or(0)).ok();
        let expires_s = second(item.ttl_s.map(|ttl_s| now_s + u64::from(ttl_s)))?;
        let flush_s = second(flush_s)?;
        HotCopy::new(
            &Item {
                key,
                flags: item.flags,
                cas: if self.cas_enabled { item.cas } else { 0 },
                value: &self.value,
                expires_s,
                flush_s,
            },
            seen,
        )
    }

    fn log(&mut self) {
        let Ok(counts) = self.post.counts.per_cpu() else { return };
        let sums: Vec<(Verdict, u64)> = counts
            .into_iter()
            .map(|(verdict, counts)| (verdict, counts.iter().sum()))
            .collect();
        let all: u64 = sums.iter().map(|(_, count)| count).sum();
        if all != self.logged {
            self.logged = all;
            let said: Vec<String> = sums
                .iter()
                .filter(|(_, count)| *count > 0)
                .map(|(verdict, count)| format!("{} {count}", verdict.word()))
                .collect();
            log::info!("the kernel door: {}", said.join(", "));
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.program.maps().hot().renew(0, 0);
        if let Program::Loaded(_, attached) = &mut self.program {
            attached.clear();
        }
        if let Some(door) = self.door.take() {
            door.settle();
            door.renew(0);
        }
        self.program.maps().hot().clear();
    }
}

impl Post {
    fn offer(&self, key: &[u8]) {
        let mut candidates = lock(&self.candidates);
        if candidates.len() < CANDIDATES_MAX {
            candidates.push(key.to_vec());
        }
        let is_first = candidates.len() == 1;
        drop(candidates);
        if is_first && let Some(keeper) = self.keeper.get() {
            keeper.unpark();
        }
    }

    /// A worker reports that it has changed something.
    pub(crate) fn changed(&self) {
        if !self.attentive.load(Relaxed)
            && !self.attentive.swap(true, Relaxed)
            && let Some(keeper) = self.keeper.get()
        {
            keeper.unpark();
        }
    }

    /// The lines of `stats` about the kernel door.
    pub(crate) fn stats(&self, out: &mut Vec<u8>) {
        for (verdict, counts) in self.counts.per_cpu().unwrap_or_default() {
            if verdict != Verdict::NotOurs {
                stat(out, &format!("keyway_kernel_{}", verdict.word()), counts.iter().sum::<u64>());
            }
        }
        stat(out, "keyway_kernel_copies", self.held.load(Relaxed));
        stat(out, "keyway_kernel_copied", self.filled.load(Relaxed));
        stat(out, "keyway_kernel_renewed", self.renewed.load(Relaxed));
        stat(out, "keyway_kernel_mended", self.mended.load(Relaxed));
    }

    /// `stats kernel`: the same per CPU.
    pub(crate) fn stats_per_cpu(&self, out: &mut Vec<u8>) {
        for (verdict, counts) in self.counts.per_cpu().unwrap_or_default() {
            for (cpu, count) in counts.iter().enumerate().filter(|_| verdict != Verdict::NotOurs) {
                stat(out, &format!("cpu{cpu}:{}", verdict.word()), count);
            }
        }
        out.extend_from_slice(reply::END);
    }
}

/// Fingerprints in a worker's table of served keys.
const SERVED_LEN: usize = 1 << 15;
/// A key that was served once is forgotten after this time.
const SERVED_FOR: Duration = Duration::from_secs(10);
/// After this many further requests for a key it is offered again: the first offer may have failed.
const OFFERED_EVERY: u32 = 4;

/// What a worker has served over UDP lately: fingerprint 24, count 8.
pub(crate) struct Served {
    post: Arc<Post>,
    cache: Cache,
    table: Vec<u32>,
    emptied: Instant,
}

impl Served {
    pub(crate) fn new(post: Arc<Post>, cache: Cache) -> Self {
        Self {
            post,
            cache,
            table: vec![0; SERVED_LEN],
            emptied: Instant::now(),
        }
    }

    /// Called when a turn begins.
    pub(crate) fn turn(&mut self, now: Instant) {
        if now.saturating_duration_since(self.emptied) > SERVED_FOR {
            self.table.fill(0);
            self.emptied = now;
        }
    }

    /// Called for each request that is served.
    pub(crate) fn note(&mut self, request: &Request<'_>) {
        match request {
            Request::Get { keys, .. } => keys.clone().for_each(|key| self.note_key(key)),
            Request::MetaGet(get) => self.note_key(get.key.stored()),
            // The program passes these up, even if it has copies.
            Request::GetAndTouch { .. }
            | Request::Store(_)
            | Request::Delete { .. }
            | Request::Arithmetic { .. }
            | Request::Touch { .. }
            | Request::MetaSet(_)
            | Request::MetaDelete(_)
            | Request::MetaArithmetic(_)
            | Request::MetaNoop
            | Request::MetaDebug { .. }
            | Request::Admin(_)
            | Request::Binary(_) => {}
        }
    }

    fn note_key(&mut self, key: &[u8]) {
        let hash = self.cache.hash(key);
        let at = usize::try_from(hash).unwrap_or(0) % self.table.len();
        let Some(entry) = self.table.get_mut(at) else { return };
        let print = u32::try_from(hash >> 40).unwrap_or(0) << 8;
        let count = if *entry & !0xFF == print { *entry & 0xFF } else { 0 };
        // At the second request, and then at every `OFFERED_EVERY`-th one.
        if count % OFFERED_EVERY == 1 {
            self.post.offer(key);
        }
        *entry = print | if count < 0xFF { count + 1 } else { OFFERED_EVERY };
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
