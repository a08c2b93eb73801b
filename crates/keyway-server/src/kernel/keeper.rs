//! The keeper's work: it copies items for the program, renews the lease, writes stale copies again, and publishes how long answers took.
//!
//! Never: blocks for longer than a tick, or answers a client.

use keyway_cache::server::ServerCache as _;
use keyway_cache::server::ServerSession as _;
use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

use keyway_cache::server::{KernelDoor, KernelDoorError, Presence, SessionId};
use keyway_cache::{Cache, Get, Session};
use keyway_xdp::Maps;
use keyway_xdp::config::{Settings, Verdict};
use keyway_xdp::copy::{ChangeCounts, HotCopy, Item};
use keyway_xdp::door::{Door, PinnedFilters};
use keyway_xdp::store::{Put, Store, is_good};

use super::interfaces::{Interface, look_at_pinned};
use super::times::Published;
use super::{Enrolments, Post, settings};
use crate::config::{Config, Kernel};
use crate::shared::Shared;
use crate::takeover::{Halt, HaltVerdict, Predecessor, Stage};

/// Time between two renewals of the lease.
const TICK: Duration = Duration::from_millis(100);
/// Number of ticks in which each copy is checked once for hits.
const SWEEP_TICKS: usize = 10;
/// Pages that are checked in one step.
const SWEPT_AT_ONCE: usize = 16;
/// Least time between two fences, after which emptied pages are used again. If more is hot than the memory holds, copies are not
/// made faster than that, and user space serves what does not fit.
const FENCE_PAUSE: Duration = Duration::from_millis(20);
/// Ticks between two searches for stripes of dead writers.
const MEND_TICKS: u64 = 10;
/// Time between two looks whether the program is still on its interfaces.
const WATCH: Duration = Duration::from_secs(1);
/// Ticks between two lines in the log.
const LOG_TICKS: u64 = 600;
/// Least time between two checks for stale copies while there are some. A check costs as much as several renewals before it has renewed
/// anything (a wake-up, and the words of all stripes), and an item that has changed twice in between is renewed once.
const LOOK_PAUSE: Duration = Duration::from_micros(500);
/// The pause after a check is this many times as long as the check, so checks take at most a ninth of a CPU.
const LOOK_REST: u32 = 8;
/// Copies that one check handles; the next check does the rest. Workers may wait for the CPU meanwhile.
const LOOKED_AT: usize = 64;

/// At the end, connections get this time to end before the program is left behind to translate for them.
const ENDS_WITHIN: Duration = Duration::from_secs(1);
/// How often that, and whether all workers have ended, is looked at.
const END_PAUSE: Duration = Duration::from_millis(10);

/// How long a start waits until the program of a dead server stops answering.
const SILENCE_MAX: Duration = Duration::from_secs(3);

/// The keeper's own state.
pub(crate) struct Keeper {
    post: Arc<Post>,
    program: Program,
    /// `None` while another server has, or may have, its own
    door: Option<KernelDoor>,
    /// the server that was taken over: the door stays off until it has ended
    predecessor: Option<Presence>,
    /// that the door cannot be turned on has been logged
    has_complained: bool,
    cache: Cache,
    session: Session,
    store: Store,
    /// buffer for the value of the item that is copied
    value: Vec<u8>,
    cas_enabled: bool,
    is_on: bool,
    ticks: u64,
    next_tick: Instant,
    /// when the interfaces are looked at next
    next_watch: Instant,
    /// when the lease is renewed next
    next_renewal: Instant,
    /// earliest time of the next fence
    next_fence: Instant,
    /// copies in the pages that this round of the sweep has checked, and how many pages remain
    counted: usize,
    unswept: usize,
    /// hits and packets passed up, at the last log line
    logged: u64,
    /// how long the program's answers took, as far as the region has it
    published: Published,
}

/// The program: loaded here, or pinned before.
enum Program {
    Loaded(Door, Vec<Interface>),
    Pinned(Maps, PinnedFilters),
}

impl Program {
    fn maps(&self) -> &Maps {
        match self {
            Self::Loaded(door, _) => door.maps(),
            Self::Pinned(maps, _) => maps,
        }
    }

    /// On how many interfaces it was put.
    fn interfaces(&self) -> usize {
        match self {
            Self::Loaded(_, interfaces) => interfaces.len(),
            Self::Pinned(_, filters) => filters.interfaces().map_or(0, |found| found.len()),
        }
    }

    /// Looks whether it is still where it was attached, and attaches it again: the number of interfaces that it is on, of `before`, and how
    /// many times it was attached.
    fn keep_attached(&mut self, before: usize) -> (usize, usize) {
        match self {
            Self::Loaded(door, interfaces) => {
                let again = interfaces
                    .iter_mut()
                    .filter_map(|interface| interface.keep(door).then_some(()))
                    .count();
                (interfaces.iter().filter(|interface| interface.is_attached()).count(), again)
            }
            Self::Pinned(_, filters) => (look_at_pinned(filters, before), 0),
        }
    }
}

/// Loads and attaches the program, or opens the pinned one, and turns the door on: now, or when the server that is to be taken over has
/// ended. The error text is for the operator.
pub(crate) fn start(
    config: &Config,
    kernel: &Kernel,
    udp: &[SocketAddr],
    tcp: &[SocketAddr],
    cache: &Cache,
    predecessor: Option<Predecessor>,
) -> Result<(Keeper, Arc<Post>), String> {
    let (settings, tcp) = settings(config, kernel, udp, tcp)?;
    let Predecessor { presence, pinned } = predecessor.unwrap_or_default();
    let program = program(kernel, &settings, pinned)?;
    let counts = program.maps().counts().map_err(|error| error.to_string())?;
    let enrolments = program
        .maps()
        .connections()
        .zip(tcp)
        .map(|(connections, address)| Arc::new(Enrolments::new(connections, address)));
    if enrolments.is_some() && config.request_rate.is_some() {
        log::warn!("the kernel door answers no TCP connection, because requests are counted (--max-request-rate)");
    }
    let deadline = Instant::now() + SILENCE_MAX;
    let door = match presence {
        Some(_) => None,
        None => loop {
            match turn_on(cache, &program) {
                Err(KernelDoorError::StillAnswering(left)) if Instant::now() < deadline => std::thread::sleep(left),
                other => break Some(other.map_err(|error| error.to_string())?),
            }
        },
    };
    let post = Arc::new(Post::new(counts, enrolments, program.interfaces()));
    let session = cache.session().map_err(|error| error.to_string())?;
    let mut keeper = Keeper::new(Arc::clone(&post), program, door, cache.clone(), session, config.cas_enabled);
    keeper.follow(presence);
    Ok((keeper, post))
}

/// Turns the door on, with an empty hot set.
fn turn_on(cache: &Cache, program: &Program) -> Result<KernelDoor, KernelDoorError> {
    let maps = program.maps();
    // The lease of an earlier server, if the program was pinned.
    maps.hot().renew(0, 0);
    maps.hot().clear();
    let door = cache.turn_kernel_door_on(maps.stripes_file().map_err(KernelDoorError::Io)?)?;
    maps.hot().set_seed(cache.hash_seed());
    Ok(door)
}

fn program(kernel: &Kernel, settings: &Settings, pinned: Option<File>) -> Result<Program, String> {
    if let Some(folder) = &kernel.pinned {
        return Maps::pinned(folder, settings, pinned)
            .map(|maps| Program::Pinned(maps, PinnedFilters::of(folder)))
            .map_err(|error| error.to_string());
    }
    let door = Door::load(settings).map_err(|error| error.to_string())?;
    let interfaces = kernel
        .interfaces
        .iter()
        .map(|name| Interface::attach(&door, name))
        .collect::<Result<_, _>>()?;
    if settings.tcp_port.is_some() {
        log::info!(
            "the kernel door answers on TCP connections (--kernel-tcp), which is experimental: its programs run for every packet of {}, and \
             their CPU time is in no process (keyway_kernel_tcp_cpu_us)",
            kernel.interfaces.join(",")
        );
    }
    Ok(Program::Loaded(door, interfaces))
}

impl Keeper {
    /// A keeper of this program; `None`: its door is off.
    fn new(
        post: Arc<Post>,
        program: Program,
        door: Option<KernelDoor>,
        cache: Cache,
        session: Session,
        cas_enabled: bool,
    ) -> Self {
        let pages = program.maps().pages();
        Self {
            post,
            store: Store::new(pages),
            value: Vec::new(),
            program,
            door,
            predecessor: None,
            has_complained: false,
            session,
            cache,
            cas_enabled,
            is_on: false,
            ticks: 0,
            next_tick: Instant::now(),
            next_watch: Instant::now(),
            next_renewal: Instant::now(),
            next_fence: Instant::now(),
            counted: 0,
            unswept: pages,
            logged: 0,
            published: Published::default(),
        }
    }

    /// The thread slot with which it reads items.
    pub(crate) fn session_id(&self) -> Option<SessionId> {
        self.session.id()
    }

    /// Runs the kernel door until the server stops.
    pub(crate) fn run(mut self, shared: &Shared, halt: &Halt) {
        self.post.candidates.keep();
        let mut pause = TICK;
        let mut candidates = Vec::new().into_iter();
        let mut is_taken_over = false;
        while !shared.life.is_stopping() && !is_taken_over {
            if halt.is_wanted(Stage::Everyone) {
                self.turn_off();
                if halt.wait(Ok(Vec::new())) == HaltVerdict::End {
                    is_taken_over = true;
                    continue;
                }
            }
            if Instant::now() >= self.next_tick {
                self.next_tick = Instant::now() + TICK;
                self.tick();
                self.watch();
            }
            if candidates.len() == 0 {
                candidates = self.post.candidates.take().into_iter();
            }
            if self.is_on {
                // First what has become stale: an offer of it is then one of a current copy.
                pause = self.look(pause);
                while Instant::now() < self.next_tick
                    && let Some(key) = candidates.next()
                {
                    let hash = self.cache.hash(&key);
                    if self.store.is_wanted(&self.program.maps().hot(), hash) {
                        self.take_in(hash, &key);
                    }
                }
            } else {
                candidates = Vec::new().into_iter();
            }
            if candidates.len() == 0 {
                std::thread::park_timeout(pause.min(self.next_tick.saturating_duration_since(Instant::now())));
            }
        }
        self.end(shared, is_taken_over);
    }

    /// Silences the program. When all connections are closed, or another server has them, the program is removed, unless it translates for
    /// connections that are left.
    fn end(mut self, shared: &Shared, is_taken_over: bool) {
        let had_door = self.door.is_some();
        self.turn_off();
        if had_door {
            self.program.maps().hot().clear();
        }
        while shared.workers.running().1 > 0 {
            std::thread::park_timeout(END_PAUSE);
        }
        let (Program::Loaded(door, interfaces), Some(enrolments)) = (&mut self.program, &self.post.enrolments) else {
            return;
        };
        let until = Instant::now() + if is_taken_over { Duration::ZERO } else { ENDS_WITHIN };
        let left = loop {
            match enrolments.translated() {
                Ok(0) => {
                    interfaces.iter_mut().for_each(Interface::detach);
                    if let Err(error) = door.end_closed() {
                        log::warn!("{error}");
                    }
                    return;
                }
                Ok(_) if Instant::now() < until => std::thread::park_timeout(END_PAUSE),
                Ok(left) => break left.to_string(),
                Err(error) => {
                    log::warn!("{error}");
                    break "an unknown number of".to_owned();
                }
            }
        };
        log::warn!(
            "the kernel door leaves its program on the interfaces: it has answered for {left} TCP connections that are still open, and goes on \
             translating their sequence numbers until they have ended; `keyway kernel detach --reset` ends them"
        );
        interfaces.iter_mut().for_each(Interface::leave);
    }

    /// Attaches the program again where it has vanished.
    fn watch(&mut self) {
        let now = Instant::now();
        if now < self.next_watch {
            return;
        }
        self.next_watch = now + WATCH;
        let before = usize::try_from(self.post.interfaces.load(Relaxed)).unwrap_or(usize::MAX);
        let (there, again) = self.program.keep_attached(before);
        self.post.interfaces.store(there as u64, Relaxed);
        self.post.reattached.fetch_add(again as u64, Relaxed);
        self.breathe();
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
        let lease_ns = now_ns + nanoseconds(KernelDoor::LEASE);
        // Read after `now_ns`, so the program's clock is not earlier than the region's.
        let clock_ns = nanoseconds(self.session.clock());
        door.renew(lease_ns);
        self.program.maps().hot().renew(lease_ns, clock_ns.wrapping_sub(now_ns));
    }

    /// Waits with turning the door on until this process has ended.
    pub(super) fn follow(&mut self, predecessor: Option<Presence>) {
        self.predecessor = predecessor;
    }

    /// The lock on a pinned program, for a server that takes over.
    pub(crate) fn pinned(&self) -> io::Result<Option<File>> {
        self.program.maps().lock()
    }

    /// Turns the door on, unless the server that was taken over may still change items.
    fn turn_on(&mut self) {
        if self
            .predecessor
            .as_ref()
            .is_some_and(|other| !other.ends_within(Duration::ZERO))
        {
            return;
        }
        self.predecessor = None;
        match turn_on(&self.cache, &self.program) {
            Ok(door) => {
                let pages = self.program.maps().pages();
                (self.store, self.counted, self.unswept) = (Store::new(pages), 0, pages);
                self.door = Some(door);
                self.has_complained = false;
            }
            // The next tick tries again.
            Err(error) if !std::mem::replace(&mut self.has_complained, true) => {
                log::warn!("the kernel door is still off: {error}; trying again");
            }
            Err(_) => {}
        }
    }

    /// Turns the door off; the program stays where it is, and passes all packets on.
    fn turn_off(&mut self) {
        let Some(door) = self.door.take() else { return };
        self.program.maps().hot().renew(0, 0);
        door.settle();
        door.renew(0);
        // No run of the program is left, so this is all.
        if std::mem::take(&mut self.is_on) {
            self.published.publish(self.program.maps(), &self.session);
        }
    }

    fn tick(&mut self) {
        if self.door.is_none() {
            self.turn_on();
        }
        let Some(door) = &self.door else { return };
        self.ticks += 1;
        if !self.is_on {
            self.is_on = door.is_acknowledged();
            if !self.is_on {
                return;
            }
            log::info!("the kernel door is on");
            // The program answers nothing before the lease is renewed. A pinned one has answered for other servers.
            self.published.begin(self.program.maps());
        }
        self.breathe();
        self.published.publish(self.program.maps(), &self.session);
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
        let seen = ChangeCounts {
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
    fn copy_of(&mut self, key: &[u8], seen: ChangeCounts) -> Option<HotCopy> {
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
        // Without the door, another server may have the lease and the copies of a pinned program.
        if self.door.is_some() {
            self.program.maps().hot().renew(0, 0);
        }
        if let Program::Loaded(_, interfaces) = &mut self.program {
            interfaces.iter_mut().for_each(Interface::detach);
        }
        if self.door.is_some() {
            self.turn_off();
            self.program.maps().hot().clear();
        }
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
