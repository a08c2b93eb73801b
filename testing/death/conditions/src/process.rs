//! The processes of a cell: each opens the region, works with a few threads, does what the test orders, and detaches.

use crate::condition::{Condition, Decoy, OWNER, become_user};
use crate::hand::{Fault, Hand, Kind};
use crate::ledger::{GROWN, Ledger, Phase, Role, STAYING, Violation, Word};
use crate::system;
use keyway_cache::server::ServerSession as _;
use keyway_cache::{Cache, LocalError, OpenError, Options, Owners, Place, Session, SessionError};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize};
use std::time::Duration;

/// Between two looks at what is ordered.
const POLL: Duration = Duration::from_millis(1);
/// Operations of a thread before the condition is entered: it has looked up, stored and evicted, and has a segment open.
const WARM_UP: usize = 40;
/// Items that stay as they are, and their payload, bytes.
const STAYING_ITEMS: (usize, usize) = (400, 300);
/// Items that are stored after the region has grown, and their payload, bytes: more than it had room for.
const GROWN_ITEMS: (usize, usize) = (500, 14_000);
/// Times that the cache is opened and closed again at one order.
const REOPENED: usize = 4;
/// Operations between two times that a thread opens the cache once more while another one forks.
const REOPEN_EVERY: u64 = 100;
/// Operations between two execs.
const EXEC_EVERY: u64 = 400;
/// Children of a process at a time.
const CHILDREN: usize = 6;
/// Of these, children that live on until the end.
const LINGERING: u64 = 3;
/// In place of a thread's number: it has not said it yet.
const STARTING: i32 = -1;
/// Bytes of stack of a thread that ends without a word, which are lost.
const STACK: usize = 128 << 10;

/// What a process can be ordered to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// to give the region twice the memory, and, if it is the neighbour, to fill it
    Grow = 1,
    /// to copy the region
    Copy = 2,
    /// to read every key once
    ReadAll = 3,
    /// to open the cache again and close it, a few times
    Reopen = 4,
}

/// What a process gets at its start.
#[derive(Clone, Debug)]
pub struct Job {
    /// which one it is
    pub role: Role,
    /// the ledger's file
    pub ledger: PathBuf,
    /// the region's file
    pub region: PathBuf,
    /// the region's kind
    pub kind: Kind,
    /// the cell's condition, which the odd process enters
    pub condition: Condition,
    /// bytes of memory that the region has besides what its kind has
    pub memory_besides: u64,
    /// a lie
    pub fault: Option<Fault>,
    /// of all choices
    pub seed: u64,
    /// a directory of the cell's own
    pub folder: PathBuf,
}

impl Job {
    /// As arguments of the program.
    pub fn to_args(&self) -> Vec<String> {
        let path = |p: &Path| p.display().to_string();
        vec![
            self.role.name().to_owned(),
            path(&self.ledger),
            path(&self.region),
            self.kind.name().to_owned(),
            self.condition.name().to_owned(),
            self.memory_besides.to_string(),
            self.fault.map_or("none", Fault::name).to_owned(),
            self.seed.to_string(),
            path(&self.folder),
        ]
    }

    /// From arguments of the program.
    pub fn from_args(args: &[String]) -> Option<Self> {
        let [role, ledger, region, kind, condition, memory_besides, fault, seed, folder] = args else {
            return None;
        };
        Some(Self {
            role: Role::ALL.into_iter().find(|r| r.name() == role)?,
            ledger: ledger.into(),
            region: region.into(),
            kind: [Kind::Evicting, Kind::Lasting].into_iter().find(|k| k.name() == kind)?,
            condition: Condition::ALL.into_iter().find(|(_, name)| name == condition)?.0,
            memory_besides: memory_besides.parse().ok()?,
            fault: Fault::ALL.into_iter().find(|(_, name, _)| name == fault).map(|(f, ..)| f),
            seed: seed.parse().ok()?,
            folder: folder.into(),
        })
    }

    /// The file that the odd program keeps open everywhere.
    pub fn decoy(&self) -> PathBuf {
        self.folder.join("decoy")
    }

    /// Where a process of this role copies the region to.
    pub fn copy(&self, role: Role) -> PathBuf {
        self.region.with_extension(role.name())
    }

    /// How the region is opened: made by the neighbour only.
    pub fn options(&self) -> Options {
        Options::new()
            .memory((self.role == Role::Neighbour).then(|| self.kind.memory() + self.memory_besides))
            .item_size_max(256 << 10)
            // A small region has 16 for programs, and where deaths go unnoticed for a while more are taken at once.
            .sessions(40)
            .mode(0o660)
            .evict(self.kind == Kind::Evicting)
            .owners(if self.condition.has_users() {
                Owners::Any
            } else {
                Owners::AsNamed
            })
    }

    fn is_odd(&self) -> bool {
        self.role == Role::Odd
    }
}

/// A process's life; its exit code. The calling process has one thread.
pub fn run(job: &Job, set_clock: SetClock) -> i32 {
    nix::sys::stat::umask(nix::sys::stat::Mode::from_bits_truncate(0o007));
    let ledger = Ledger::open(&job.ledger);
    ledger.write(job.role, Word::Pid, u64::from(std::process::id()));
    let own = std::env::current_exe().unwrap_or_default();
    let mut place = job.region.clone();
    if job.is_odd() {
        set_clock(job.condition.clock_off_s(0));
        let directory = job.region.parent().unwrap_or(&job.folder);
        let aside = job.folder.join("aside");
        if let Err(why) = job.condition.before(&ledger, job.role, &aside, directory) {
            ledger.note(job.role, &why);
            ledger.write(job.role, Word::Phase, Phase::Impossible as u64);
            return 0;
        }
        if job.condition == Condition::MountNamespace {
            place = aside.join(job.region.file_name().unwrap_or_default());
        }
    } else if job.condition.has_users()
        && let Err(why) = become_user(OWNER, crate::condition::GROUP)
    {
        ledger.note(job.role, &why);
        ledger.write(job.role, Word::Phase, Phase::Impossible as u64);
        return 0;
    }
    // Other users have none.
    let decoy = if job.is_odd() { Decoy::new(&job.decoy()).ok() } else { None }.unwrap_or_default();
    let place = Place::Path(place);
    match Cache::open(&place, &job.options()) {
        Ok(cache) => Life {
            job,
            ledger: &ledger,
            place,
            own,
            decoy,
            set_clock,
            ending: Arc::default(),
            children: AtomicUsize::new(0),
        }
        .live(cache),
        Err(error) => {
            ledger.note(job.role, &format!("open: {error}"));
            ledger.write(job.role, Word::Phase, Phase::Refused as u64);
            0
        }
    }
}

/// Sets the process's wall clock off by so many seconds.
pub type SetClock = fn(i64);

struct Life<'j> {
    job: &'j Job,
    ledger: &'j Ledger,
    place: Place,
    /// this program
    own: PathBuf,
    decoy: Decoy,
    set_clock: SetClock,
    /// the last thread that ended without a word, or is about to
    ending: Arc<AtomicI32>,
    /// children that have not been reaped
    children: AtomicUsize,
}

impl Life<'_> {
    fn live(&self, cache: Cache) -> i32 {
        let (ledger, role) = (self.ledger, self.job.role);
        if role == Role::Neighbour && self.job.kind == Kind::Lasting && ledger.keys(STAYING).load(SeqCst) == 0 {
            let (keys, payload) = STAYING_ITEMS;
            self.with_hand(&cache, |hand| hand.store_all(STAYING, keys, payload));
        }
        let crowd = if self.job.is_odd() && self.job.condition == Condition::Served {
            self.take_slots(&cache)
        } else {
            Vec::new()
        };
        let (ready, entered) = (AtomicUsize::new(0), AtomicBool::new(false));
        let done = std::thread::scope(|scope| {
            for &writer in role.writers() {
                let (cache, ready, entered) = (&cache, &ready, &entered);
                scope.spawn(move || self.work(cache, writer, ready, entered));
            }
            while ready.load(Acquire) < role.writers().len() {
                std::thread::yield_now();
            }
            let after = if self.job.is_odd() {
                self.job.condition.after(&self.job.folder.join("aside"), &self.decoy)
            } else {
                Ok(())
            };
            entered.store(true, Release);
            match &after {
                Ok(()) => {
                    ledger.write(role, Word::Phase, Phase::Entered as u64);
                    self.attend(&cache);
                }
                Err(why) => {
                    ledger.note(role, why);
                    ledger.write(role, Word::Leave, 1);
                }
            }
            after.is_ok()
        });
        drop(crowd);
        self.look_at_decoy("before the cache was closed");
        let closed = cache.close();
        self.look_at_decoy("when the cache was closed");
        ledger.write(role, Word::Closed, if closed { 1 } else { 2 });
        let phase = if done { Phase::Left } else { Phase::Impossible };
        ledger.write(role, Word::Phase, phase as u64);
        0
    }

    /// A thread's work, until the end.
    fn work(&self, cache: &Cache, writer: usize, ready: &AtomicUsize, entered: &AtomicBool) {
        let Some(mut hand) = self.hand(cache, writer) else {
            ready.fetch_add(1, Release);
            return;
        };
        for _ in 0..WARM_UP {
            hand.step();
        }
        ready.fetch_add(1, Release);
        while !entered.load(Acquire) {
            std::thread::yield_now();
        }
        let mut turn = 0;
        while !self.ledger.is_over(self.job.role) {
            hand.step();
            turn += 1;
            if self.job.is_odd() {
                self.be_odd_in_thread(turn);
            }
        }
    }

    fn hand<'c>(&'c self, cache: &'c Cache, writer: usize) -> Option<Hand<'c>> {
        let seed = self.job.seed ^ u64::from(std::process::id()) << 32;
        let steady = self.job.condition != Condition::ClockStepped || !self.job.is_odd();
        match cache.session() {
            Ok(session) => {
                let hand = Hand::new(self.ledger, cache, session, self.job.role, writer, self.job.kind, seed);
                Some(
                    hand.with_clock(steady)
                        .lying(if self.job.is_odd() { self.job.fault } else { None }),
                )
            }
            Err(error) => {
                self.refused("a session", &error);
                None
            }
        }
    }

    fn with_hand(&self, cache: &Cache, work: impl FnOnce(&mut Hand<'_>)) {
        if let Some(mut hand) = self.hand(cache, GROWN) {
            work(&mut hand);
        }
    }

    /// Sessions that have all thread slots that were free: a server of the region writes for the next one.
    fn take_slots(&self, cache: &Cache) -> Vec<Session> {
        let mut crowd = Vec::new();
        loop {
            match cache.session() {
                Ok(session) if session.id().is_some() => crowd.push(session),
                Ok(_) => return crowd,
                Err(error) => {
                    self.refused("a session that is served", &error);
                    return crowd;
                }
            }
        }
    }

    fn refused(&self, what: &str, error: &dyn std::fmt::Display) {
        let note = || format!("{what}: {error}");
        self.ledger.count(self.job.role, Violation::Refused, &note);
    }

    /// What a thread of the odd process does between its operations.
    fn be_odd_in_thread(&self, turn: u64) {
        match self.job.condition {
            Condition::Reused => self.decoy.write(turn),
            Condition::Forks if turn.is_multiple_of(REOPEN_EVERY) => self.reopen_beside_forks(),
            Condition::NoStdio if turn.is_multiple_of(16) => (1..3).for_each(|n| system::print(n, b"a program that prints\n")),
            _ => {}
        }
        match self.job.fault {
            Some(Fault::Closes) if turn == 100 => system::close(5),
            Some(Fault::Ends) if turn == 100 => std::process::abort(),
            _ => {}
        }
    }

    /// The first thread: does what is ordered, and what the condition wants, until the end.
    fn attend(&self, cache: &Cache) {
        let (ledger, role) = (self.ledger, self.job.role);
        let began = ledger.read(role, Word::Operations);
        let mut turn = 0;
        while !ledger.is_over(role) {
            let order = ledger.read(role, Word::Order);
            if order != ledger.read(role, Word::Done) {
                let result = self.obey(cache, order & 0xff);
                if let Err(why) = &result {
                    ledger.note(role, &format!("order {}: {why}", order & 0xff));
                }
                ledger.write(role, Word::Result, if result.is_ok() { 1 } else { 2 });
                ledger.write(role, Word::Done, order);
            }
            turn += 1;
            if self.job.is_odd() {
                self.be_odd(cache, turn, began);
            }
            std::thread::sleep(POLL);
        }
        // Children see the end as well.
        while waitpid(None, None).is_ok() {}
    }

    fn be_odd(&self, cache: &Cache, turn: u64, began: u64) {
        match self.job.condition {
            Condition::Forks => self.fork(cache, turn),
            Condition::ClockStepped => (self.set_clock)(self.job.condition.clock_off_s(turn)),
            Condition::RawExits | Condition::RawExitsNoProc => self.let_thread_end(cache),
            Condition::Execs if self.ledger.read(self.job.role, Word::Operations) > began + EXEC_EVERY => {
                let error = Command::new(&self.own).args(self.job.to_args()).exec();
                self.refused("exec", &error);
            }
            _ => {}
        }
    }

    fn obey(&self, cache: &Cache, order: u64) -> Result<(), String> {
        let text = |e: &dyn std::fmt::Display| e.to_string();
        match order {
            o if o == Order::Grow as u64 => {
                let has = cache.info().limit_bytes.next_multiple_of(1 << 20);
                cache.grow(has * 2).map_err(|e| text(&e))?;
                if self.job.role == Role::Neighbour {
                    let (keys, payload) = GROWN_ITEMS;
                    self.with_hand(cache, |hand| hand.store_all(GROWN, keys, payload));
                }
            }
            o if o == Order::Copy as u64 => {
                let to = self.job.copy(self.job.role);
                cache.copy_to(&to, true, |_| {}).map_err(|e| text(&e))?;
            }
            o if o == Order::ReadAll as u64 => self.with_hand(cache, |hand| hand.read_all()),
            _ => {
                for _ in 0..REOPENED {
                    self.reopen().map_err(|e| text(&e))?;
                }
            }
        }
        Ok(())
    }

    /// Opens the cache once more, uses it and closes it.
    fn reopen(&self) -> Result<(), OpenError> {
        let options = self.job.options().memory(None);
        let again = Cache::open(&self.place, &options)?;
        if let Some(mut hand) = self.hand(&again, GROWN) {
            (0..20).for_each(|_| hand.read_any());
        }
        again.close();
        Ok(())
    }

    /// The same while another thread forks: a child can get a descriptor that was there for a moment only.
    fn reopen_beside_forks(&self) {
        match self.reopen() {
            // As many as this can be alive at once.
            Ok(()) | Err(OpenError::ProcessesFull { .. }) => {}
            Err(error) => self.refused("the cache opened again", &error),
        }
    }

    /// Forks a child that ends at once, uses the cache, or outlives this process.
    fn fork(&self, cache: &Cache, turn: u64) {
        let (ledger, role) = (self.ledger, self.job.role);
        while reap() {
            self.children.fetch_sub(1, Relaxed);
        }
        if self.children.load(Relaxed) >= CHILDREN {
            return;
        }
        let (using, lingering) = (ledger.word(role, Word::Using), ledger.word(role, Word::Lingering));
        let uses = turn % 2 == 1;
        let lingers = turn % 4 == 2 && lingering.load(SeqCst) < LINGERING;
        let child = system::fork_to(|| {
            using.fetch_add(u64::from(uses), SeqCst);
            lingering.fetch_add(u64::from(lingers), SeqCst);
            match turn % 4 {
                1 => self.read_in_child(cache),
                3 => {
                    let read =
                        cache.with_session(|session, out| session.get_append(b"k0.1", out).is_ok_and(|found| found.is_some()));
                    if let Err(error) = read
                        && !is_full_local(&error)
                    {
                        self.refused("a session in a child", &error);
                    }
                }
                _ if lingers => {
                    while !ledger.is_over(role) {
                        std::thread::sleep(POLL);
                    }
                }
                _ => {}
            }
            using.fetch_sub(u64::from(uses), SeqCst);
            lingering.fetch_sub(u64::from(lingers), SeqCst);
            0
        });
        match child {
            Ok(_) => _ = self.children.fetch_add(1, Relaxed),
            Err(error) => self.refused("fork", &error),
        }
    }

    fn read_in_child(&self, cache: &Cache) {
        match cache.here() {
            Ok(own) => {
                if let Some(mut hand) = self.hand(own, GROWN) {
                    (0..20).for_each(|_| hand.read_any());
                }
            }
            // As many as this can be alive at once.
            Err(OpenError::ProcessesFull { .. }) => {}
            Err(error) => self.refused("the cache in a child", &error),
        }
    }

    /// A thread that takes a session, uses it and ends without giving it back.
    fn let_thread_end(&self, cache: &Cache) {
        let last = self.ending.load(Acquire);
        if last == STARTING || system::has_thread(last) {
            // One at a time: what it had is free when the next one comes.
            return;
        }
        let info = cache.info();
        if info.sessions + NEIGHBOURS_SLOTS > info.sessions_max {
            // What ended threads had comes back with this process's upkeep. Until then the neighbour keeps slots for its own threads.
            return;
        }
        self.ending.store(STARTING, Release);
        let ending = Arc::clone(&self.ending);
        // A thread of its own, not of the scope: that would wait for it, and it never says that it has ended.
        let (ledger, role, kind, seed) = (self.job.ledger.clone(), self.job.role, self.job.kind, self.job.seed);
        let cache = cache.clone();
        let begun = std::thread::Builder::new().stack_size(STACK).spawn(move || {
            let ledger = Ledger::open(&ledger);
            match cache.session() {
                Ok(session) => {
                    let mut hand = Hand::new(&ledger, &cache, session, role, GROWN, kind, seed);
                    (0..5).for_each(|_| hand.read_any());
                    std::mem::forget(hand);
                    std::mem::forget(cache);
                }
                Err(error) => ledger.count(role, Violation::Refused, &|| format!("a session after raw exits: {error}")),
            }
            ending.store(system::thread_id(), Release);
            system::end_thread()
        });
        if let Err(error) = begun {
            self.ending.store(0, Release);
            self.refused("a thread", &error);
        }
    }

    fn look_at_decoy(&self, when: &str) {
        if self.job.is_odd()
            && self.job.condition == Condition::Reused
            && let Some(number) = self.decoy.missing_number()
        {
            let note = || format!("descriptor {number} of the program was closed {when}");
            self.ledger.count(self.job.role, Violation::Harmed, &note);
        }
    }
}

/// Thread slots that are left to the neighbour.
const NEIGHBOURS_SLOTS: u64 = 6;

/// All slots are taken by the living: children can be many.
fn is_full_local(error: &LocalError) -> bool {
    match error {
        LocalError::Session(SessionError::TableFull { .. }) => true,
        LocalError::Open(why) => matches!(**why, OpenError::ProcessesFull { .. }),
        _ => false,
    }
}

/// Reaps a child that has ended. Whether there was one.
fn reap() -> bool {
    matches!(
        waitpid(None, Some(WaitPidFlag::WNOHANG)),
        Ok(WaitStatus::Exited(..) | WaitStatus::Signaled(..))
    )
}
