//! A cell of the matrix: one region, an innocent neighbour, a process in a condition, and something that they do. Everything that
//! is wrong is counted.

use crate::condition::{Condition, Decoy, GROUP, OWNER, leave_cgroup};
use crate::hand::{Fault, Hand, Kind};
use crate::ledger::{Ledger, Phase, Role, STAYING, Violation, Word};
use crate::process::{Job, Order};
use crate::value::{Found, judge_text};
use harness::{DEADLINE, Random, Scratch, ServeOptions, Server};
use keyway_cache::{Cache, Options, Owners, Place};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};

/// Between two looks at the ledger.
const POLL: Duration = Duration::from_millis(1);
/// Upkeeps of the neighbour within which everything that the dead had is back.
const UPKEEPS_MAX: u64 = 400;

/// What the processes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// the odd process attaches and detaches, again and again
    Attach,
    /// both work
    Work,
    /// the odd process is killed, again and again
    Die,
    /// a third one is killed, again and again, and the odd process takes part in finding out
    Recover,
    /// the neighbour gives the region more memory
    Grow,
    /// each copies the region
    Copy,
    /// all detach, and attach again in the other order
    Restart,
}

impl Action {
    /// All of them, with their names.
    pub const ALL: [(Self, &'static str); 7] = [
        (Self::Attach, "attach"),
        (Self::Work, "work"),
        (Self::Die, "die"),
        (Self::Recover, "recover"),
        (Self::Grow, "grow"),
        (Self::Copy, "copy"),
        (Self::Restart, "restart"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(a, _)| *a == self).map_or("", |(_, name)| name)
    }

    fn kind(self) -> Kind {
        match self {
            Self::Attach | Self::Work | Self::Die | Self::Recover => Kind::Evicting,
            Self::Grow | Self::Copy | Self::Restart => Kind::Lasting,
        }
    }
}

/// Which cell.
#[derive(Clone, Debug)]
pub struct Spec {
    /// the program `conditions`
    pub program: PathBuf,
    /// a directory on the file system
    pub place: PathBuf,
    /// the odd process's condition
    pub condition: Condition,
    /// what is done
    pub action: Action,
    /// the kind of region, if it is not the action's usual one
    pub kind: Option<Kind>,
    /// bytes of memory that the region has besides what its kind has
    pub memory_besides: u64,
    /// a lie of the odd process
    pub fault: Option<Fault>,
    /// of all choices
    pub seed: u64,
    /// how many times as long as in the gate
    pub scale: u64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// nothing was wrong
    Sound,
    /// nothing was wrong, and the odd process was refused, with this reason
    Refused(String),
    /// this machine cannot make the condition
    Impossible(String),
    /// how often what was wrong, and what was noted first
    Violated(Vec<(Violation, u64)>, String),
}

impl Verdict {
    /// In the table.
    pub fn short(&self) -> String {
        match self {
            Self::Sound => "ok".to_owned(),
            Self::Refused(_) => "ok, refused".to_owned(),
            Self::Impossible(_) => "skipped".to_owned(),
            Self::Violated(counts, _) => {
                let count = |(what, n): &(Violation, u64)| format!("{n} {}", what.name());
                counts.iter().map(count).collect::<Vec<_>>().join(", ")
            }
        }
    }
}

/// Why a cell ends early.
enum Early {
    /// the odd process was refused, or ended by a limit
    Refused(String),
    Impossible(String),
    /// a process hangs, or has ended: said as a violation
    Ended(String),
}

/// Runs a cell.
pub fn run(spec: &Spec) -> Verdict {
    adopt_orphans();
    let mut cell = Cell::new(spec);
    let played = cell.play();
    let early = match played {
        Ok(()) => None,
        Err(Early::Ended(why)) => {
            cell.ledger.count(Role::Neighbour, Violation::Ended, &|| why.clone());
            None
        }
        Err(early) => Some(early),
    };
    if let Some(Early::Impossible(why)) = early {
        return Verdict::Impossible(why);
    }
    if let Err(Early::Ended(why)) = cell.finish() {
        cell.ledger.count(Role::Neighbour, Violation::Ended, &|| why.clone());
    }
    cell.verdict(early)
}

struct Cell<'s> {
    spec: &'s Spec,
    scratch: Scratch,
    ledger: Ledger,
    folder: PathBuf,
    region: PathBuf,
    kind: Kind,
    random: Random,
    children: Vec<(Role, Child)>,
    /// process groups: a process and those that it forked
    groups: Vec<Pid>,
    /// the region's, if the condition wants one
    server: Option<Server>,
    /// sessions of the neighbour and of the server
    own_sessions: u64,
}

impl<'s> Cell<'s> {
    fn new(spec: &'s Spec) -> Self {
        let scratch = Scratch::new();
        let ledger_path = scratch.join("ledger");
        let ledger = Ledger::open(&ledger_path);
        let opened = std::fs::set_permissions(&ledger_path, PermissionsExt::from_mode(0o666));
        opened.unwrap_or_else(|e| panic!("{}: {e}", ledger_path.display()));
        let name = scratch.path().file_name().unwrap_or_default();
        let place = spec.place.join(name);
        for path in [&place, &scratch.join("aside")] {
            std::fs::create_dir(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        }
        if spec.condition.has_users() {
            let owned = std::os::unix::fs::chown(&place, Some(OWNER), Some(GROUP));
            owned.unwrap_or_else(|e| panic!("{}: {e}", place.display()));
        }
        Self {
            spec,
            ledger,
            folder: scratch.path().to_path_buf(),
            region: place.join("region"),
            kind: spec.kind.unwrap_or_else(|| spec.action.kind()),
            random: Random::new(spec.seed),
            children: Vec::new(),
            groups: Vec::new(),
            server: None,
            own_sessions: Role::Neighbour.writers().len() as u64,
            scratch,
        }
    }

    fn job(&self, role: Role) -> Job {
        Job {
            role,
            ledger: self.scratch.join("ledger"),
            region: self.region.clone(),
            kind: self.kind,
            condition: self.spec.condition,
            memory_besides: self.spec.memory_besides,
            fault: self.spec.fault,
            seed: self.spec.seed,
            folder: self.folder.clone(),
        }
    }

    /// The action.
    fn play(&mut self) -> Result<(), Early> {
        self.spawn(Role::Neighbour)?;
        if self.spec.condition == Condition::Served {
            self.start_server()?;
        }
        let scale = self.spec.scale;
        match self.spec.action {
            Action::Attach => {
                for _ in 0..3 * scale {
                    self.spawn(Role::Odd)?;
                    self.weather()?;
                    self.operations(&[(Role::Odd, 150), (Role::Neighbour, 500)])?;
                    self.order(Role::Odd, Order::Reopen)?;
                    self.leave(Role::Odd)?;
                }
            }
            Action::Work => {
                self.spawn(Role::Odd)?;
                for _ in 0..scale {
                    self.weather()?;
                    self.operations(&[(Role::Odd, 6_000), (Role::Neighbour, 12_000)])?;
                }
                self.leave(Role::Odd)?;
                self.slots_are_back()?;
            }
            Action::Die => {
                // One that is only taken for dead cannot be followed by another.
                let rounds = if self.spec.fault == Some(Fault::Undead) {
                    1
                } else {
                    5 * scale
                };
                for _ in 0..rounds {
                    self.spawn(Role::Odd)?;
                    self.weather()?;
                    let operations = self.random.below(800);
                    self.operations(&[(Role::Odd, operations)])?;
                    self.kill(Role::Odd)?;
                    self.operations(&[(Role::Neighbour, 1_000)])?;
                }
                self.slots_are_back()?;
            }
            Action::Recover => {
                self.spawn(Role::Odd)?;
                for _ in 0..5 * scale {
                    self.spawn(Role::Mortal)?;
                    let operations = self.random.below(400);
                    self.operations(&[(Role::Mortal, operations)])?;
                    self.kill(Role::Mortal)?;
                    self.weather()?;
                    self.operations(&[(Role::Odd, 500), (Role::Neighbour, 1_000)])?;
                }
                self.kill(Role::Odd)?;
                self.slots_are_back()?;
            }
            Action::Grow => {
                self.spawn(Role::Odd)?;
                self.operations(&[(Role::Odd, 300)])?;
                self.must_obey(Role::Neighbour, Order::Grow)?;
                for _ in 0..scale {
                    self.weather()?;
                    self.order(Role::Odd, Order::ReadAll)?;
                    self.order(Role::Neighbour, Order::ReadAll)?;
                    self.operations(&[(Role::Odd, 2_000), (Role::Neighbour, 4_000)])?;
                }
                self.order(Role::Odd, Order::Grow)?;
                self.order(Role::Neighbour, Order::ReadAll)?;
            }
            Action::Copy => {
                self.spawn(Role::Odd)?;
                for _ in 0..scale {
                    self.operations(&[(Role::Odd, 1_000)])?;
                    self.must_obey(Role::Neighbour, Order::Copy)?;
                    self.judge_copy(Role::Neighbour);
                    self.weather()?;
                    if self.order(Role::Odd, Order::Copy)? {
                        self.judge_copy(Role::Odd);
                    }
                    self.operations(&[(Role::Odd, 1_000), (Role::Neighbour, 2_000)])?;
                }
            }
            Action::Restart => {
                for _ in 0..2 * scale {
                    self.spawn(Role::Odd)?;
                    self.weather()?;
                    self.operations(&[(Role::Odd, 300), (Role::Neighbour, 300)])?;
                    self.leave(Role::Odd)?;
                    self.slots_are_back()?;
                    self.leave(Role::Neighbour)?;
                    if self.ledger.read(Role::Neighbour, Word::Closed) != 1 {
                        let note = || "the last one did not mark it as cleanly stopped".to_owned();
                        self.ledger.count(Role::Neighbour, Violation::Problems, &note);
                    }
                    self.spawn(Role::Odd)?;
                    self.order(Role::Odd, Order::Reopen)?;
                    self.spawn(Role::Neighbour)?;
                    self.order(Role::Neighbour, Order::Reopen)?;
                    self.order(Role::Neighbour, Order::ReadAll)?;
                    self.order(Role::Odd, Order::ReadAll)?;
                    self.leave(Role::Odd)?;
                }
            }
        }
        Ok(())
    }

    /// Starts a process and waits until it is at work.
    fn spawn(&mut self, role: Role) -> Result<(), Early> {
        for word in [Word::Phase, Word::Leave, Word::Order, Word::Done, Word::Closed] {
            self.ledger.write(role, word, 0);
        }
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.scratch.join("said"));
        let log = log.unwrap_or_else(|e| panic!("the processes' log: {e}"));
        let mut command = Command::new(&self.spec.program);
        command
            .args(self.job(role).to_args())
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        let child = command.stderr(log).process_group(0).spawn();
        let child = child.unwrap_or_else(|e| panic!("{}: {e}", self.spec.program.display()));
        self.groups.push(Pid::from_raw(i32::try_from(child.id()).unwrap_or(i32::MAX)));
        self.children.push((role, child));
        let phase = self.wait("starting", |cell| match cell.ledger.phase(role) {
            Phase::Started => None,
            phase => Some(phase),
        })?;
        match phase {
            Phase::Entered | Phase::Left | Phase::Started => Ok(()),
            Phase::Impossible => Err(Early::Impossible(self.ledger.notes(role))),
            Phase::Refused => {
                let _ = self.wait_for_end(role)?;
                let why = self.ledger.notes(role);
                if role == Role::Odd && self.spec.condition.is_limit() {
                    Err(Early::Refused(why))
                } else {
                    Err(Early::Ended(format!("{}: {why}", role.name())))
                }
            }
        }
    }

    /// Starts a server of the region, and waits until the neighbour sees its sessions.
    fn start_server(&mut self) -> Result<(), Early> {
        let options = ServeOptions {
            threads: 1,
            region: Some(self.region.clone()),
            ..ServeOptions::default()
        };
        let server = Server::try_start(harness::Kind::Keyway, &options);
        self.server = Some(server.map_err(|why| Early::Ended(format!("the server: {why}")))?);
        let upkeeps = self.ledger.read(Role::Neighbour, Word::Upkeeps);
        self.own_sessions = self.wait("seeing the server", |cell| {
            let has_looked = cell.ledger.read(Role::Neighbour, Word::Upkeeps) > upkeeps + 3;
            has_looked.then(|| cell.ledger.read(Role::Neighbour, Word::Sessions))
        })?;
        Ok(())
    }

    /// What happens to the odd process from outside.
    fn weather(&mut self) -> Result<(), Early> {
        if self.spec.condition != Condition::Stopped {
            return Ok(());
        }
        for _ in 0..3 {
            self.signal(Role::Odd, Signal::SIGSTOP);
            let upkeeps = self.ledger.read(Role::Neighbour, Word::Upkeeps);
            self.wait("recovering beside a stopped process", |cell| {
                (cell.ledger.read(Role::Neighbour, Word::Upkeeps) > upkeeps + 30).then_some(())
            })?;
            self.signal(Role::Odd, Signal::SIGCONT);
            self.operations(&[(Role::Odd, 50)])?;
        }
        Ok(())
    }

    /// Waits until each has done so many operations more.
    fn operations(&mut self, each: &[(Role, u64)]) -> Result<(), Early> {
        let due = |(role, more): &(Role, u64)| (*role, self.ledger.read(*role, Word::Operations) + more);
        let due: Vec<(Role, u64)> = each.iter().map(due).collect();
        self.wait("working", |cell| {
            let done = |(role, due): &(Role, u64)| cell.ledger.read(*role, Word::Operations) >= *due;
            due.iter().all(done).then_some(())
        })
    }

    /// Has a process do something. Whether it could.
    fn order(&mut self, role: Role, order: Order) -> Result<bool, Early> {
        let number = (self.ledger.read(role, Word::Order) >> 8) + 1;
        let order = number << 8 | order as u64;
        self.ledger.write(role, Word::Order, order);
        self.wait("obeying", |cell| (cell.ledger.read(role, Word::Done) == order).then_some(()))?;
        Ok(self.ledger.read(role, Word::Result) == 1)
    }

    fn must_obey(&mut self, role: Role, order: Order) -> Result<(), Early> {
        if self.order(role, order)? {
            return Ok(());
        }
        let note = || format!("{order:?} failed: {}", self.ledger.notes(role));
        self.ledger.count(role, Violation::Refused, &note);
        Ok(())
    }

    /// Lets a process detach and end.
    fn leave(&mut self, role: Role) -> Result<(), Early> {
        self.ledger.write(role, Word::Leave, 1);
        let status = self.wait_for_end(role)?;
        if status.success() {
            return Ok(());
        }
        Err(self.judge_end(role, status))
    }

    /// Kills a process in the middle of what it does.
    fn kill(&mut self, role: Role) -> Result<(), Early> {
        if self.spec.fault == Some(Fault::Undead) {
            self.signal(role, Signal::SIGSTOP);
            return Ok(());
        }
        self.signal(role, Signal::SIGKILL);
        self.wait_for_end(role).map(|_| ())
    }

    fn signal(&self, role: Role, signal: Signal) {
        if let Ok(pid) = i32::try_from(self.ledger.read(role, Word::Pid)) {
            let _ = kill(Pid::from_raw(pid), signal);
        }
    }

    /// Waits until the neighbour sees no sessions but its own and the server's.
    fn slots_are_back(&mut self) -> Result<(), Early> {
        let own = self.own_sessions;
        let mut upkeeps = self.ledger.read(Role::Neighbour, Word::Upkeeps);
        let left = self.wait("taking back", |cell| {
            if cell.ledger.read(Role::Odd, Word::Using) > 0 {
                // Children have sessions of their own.
                upkeeps = cell.ledger.read(Role::Neighbour, Word::Upkeeps);
            }
            let sessions = cell.ledger.read(Role::Neighbour, Word::Sessions);
            let looked = cell.ledger.read(Role::Neighbour, Word::Upkeeps) - upkeeps;
            ((sessions == own && looked > 3) || looked > UPKEEPS_MAX).then_some(sessions)
        })?;
        if left != own {
            let note = || format!("{left} sessions are left, {own} are the neighbour's and the server's");
            self.ledger.add(Role::Neighbour, Violation::Slots, left.abs_diff(own), &note);
        }
        Ok(())
    }

    /// Polls until `probe` gives something, as long as those that are alive stay so.
    fn wait<T>(&mut self, what: &str, mut probe: impl FnMut(&Self) -> Option<T>) -> Result<T, Early> {
        let start = Instant::now();
        loop {
            if let Some(found) = probe(self) {
                return Ok(found);
            }
            let ended = self
                .children
                .iter_mut()
                .position(|(_, child)| !matches!(child.try_wait(), Ok(None)));
            if let Some(at) = ended {
                // It may have done what is waited for, just before.
                if let Some(found) = probe(self) {
                    return Ok(found);
                }
                let (role, mut child) = self.children.swap_remove(at);
                let status = child.wait().unwrap_or_default();
                return Err(self.judge_end(role, status));
            }
            if start.elapsed() > DEADLINE {
                return Err(Early::Ended(format!("{what}: not within {DEADLINE:?}")));
            }
            std::thread::sleep(POLL);
        }
    }

    /// What it means that a process has ended.
    fn judge_end(&self, role: Role, status: ExitStatus) -> Early {
        let why = format!("{} ended: {status}; {}{}", role.name(), self.ledger.notes(role), self.said());
        if role == Role::Odd && self.spec.condition.is_limit() {
            Early::Refused(why)
        } else {
            Early::Ended(why)
        }
    }

    fn wait_for_end(&mut self, role: Role) -> Result<ExitStatus, Early> {
        let Some(at) = self.children.iter().position(|(r, _)| *r == role) else {
            return Err(Early::Ended(format!("{} is not there", role.name())));
        };
        let (_, mut child) = self.children.swap_remove(at);
        let start = Instant::now();
        loop {
            match child.try_wait() {
                Ok(Some(status)) => return Ok(status),
                _ if start.elapsed() > DEADLINE => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(Early::Ended(format!("{} hangs at its end", role.name())));
                }
                _ => std::thread::sleep(POLL),
            }
        }
    }

    fn said(&self) -> String {
        let said = std::fs::read_to_string(self.scratch.join("said")).unwrap_or_default();
        said.chars().take(600).collect()
    }

    /// All end; then the region is judged.
    fn finish(&mut self) -> Result<(), Early> {
        self.ledger.stop();
        for role in [Role::Mortal, Role::Odd, Role::Neighbour] {
            if self.children.iter().any(|(r, _)| *r == role) {
                self.signal(role, Signal::SIGCONT);
                let status = self.wait_for_end(role)?;
                if !status.success()
                    && let Early::Ended(why) = self.judge_end(role, status)
                {
                    return Err(Early::Ended(why));
                }
            }
        }
        self.wait("ending of children that outlive", |cell| {
            cell.groups.iter().all(|group| !reap_group(*group)).then_some(())
        })?;
        if let Some(mut server) = self.server.take() {
            server.terminate();
        }
        self.judge_region();
        let decoy = self.job(Role::Odd).decoy();
        if self.spec.condition == Condition::Reused && !Decoy::is_untouched(&decoy) {
            let note = || "the program's own file was changed".to_owned();
            self.ledger.count(Role::Odd, Violation::Harmed, &note);
        }
        leave_cgroup(&self.folder.join("aside"));
        Ok(())
    }

    fn judge_region(&self) {
        let problem = |note: String| self.ledger.count(Role::Neighbour, Violation::Problems, &|| note.clone());
        if self.spec.fault == Some(Fault::Scribbles) {
            scribble(&self.region);
        }
        let cache = match open(&self.region) {
            Ok(cache) => cache,
            Err(error) => return problem(format!("it cannot be opened any more: {error}")),
        };
        match cache.session() {
            Ok(session) => {
                Hand::new(
                    &self.ledger,
                    &cache,
                    session,
                    Role::Neighbour,
                    STAYING,
                    self.kind,
                    self.spec.seed,
                )
                .read_all();
            }
            Err(error) => problem(format!("no session at the end: {error}")),
        }
        for found in cache.check(|_| {}).problems {
            problem(found);
        }
        let sessions = cache.info().sessions;
        if sessions > 0 {
            let note = || format!("{sessions} sessions are left when all have ended");
            self.ledger.add(Role::Neighbour, Violation::Slots, sessions, &note);
        }
        let left = leftovers(self.region.parent().unwrap_or(&self.region), &self.expected_files());
        if !left.is_empty() {
            problem(format!("left beside the region: {left:?}"));
        }
    }

    fn expected_files(&self) -> Vec<PathBuf> {
        let copies = Role::ALL.map(|role| self.job(role).copy(role));
        copies.into_iter().chain([self.region.clone()]).collect()
    }

    /// Judges a copy: it is sound, what stays is in it, and every value is whole.
    fn judge_copy(&self, role: Role) {
        let problem = |note: String| self.ledger.count(role, Violation::Problems, &|| note.clone());
        let path = self.job(role).copy(role);
        if role == Role::Odd && !path.exists() {
            // It has another root.
            return;
        }
        let cache = match open(&path) {
            Ok(cache) => cache,
            Err(error) => return problem(format!("a copy: {error}")),
        };
        cache.check(|_| {}).problems.into_iter().for_each(problem);
        let Ok(mut session) = cache.session() else {
            return problem("a copy gives no session".to_owned());
        };
        let mut value = Vec::new();
        for key in 0..self.ledger.keys(STAYING).load(SeqCst) {
            let name = format!("k{STAYING}.{key}").into_bytes();
            value.clear();
            let found = session.get_append(&name, &mut value).is_ok_and(|found| found.is_some());
            let wrong = match judge_text(&name, &value) {
                _ if !found => Violation::Lost,
                Found::Whole(_) => continue,
                Found::OtherKey => Violation::Wrong,
                Found::Torn => Violation::Torn,
            };
            self.ledger.count(role, wrong, &|| format!("item {key} in a copy"));
        }
    }

    fn verdict(&self, early: Option<Early>) -> Verdict {
        let count = |what: Violation| (what, Role::ALL.into_iter().map(|r| self.ledger.counted(r, what)).sum::<u64>());
        let counts: Vec<_> = Violation::ALL.into_iter().map(count).filter(|(_, n)| *n > 0).collect();
        if !counts.is_empty() {
            let lines = |role: Role| format!("{}: {}", role.name(), self.ledger.notes(role).replace('\n', "; "));
            let notes: Vec<_> = Role::ALL
                .into_iter()
                .filter(|r| !self.ledger.notes(*r).is_empty())
                .map(lines)
                .collect();
            return Verdict::Violated(counts, notes.join(" | "));
        }
        match early {
            Some(Early::Refused(why)) => Verdict::Refused(why),
            _ => Verdict::Sound,
        }
    }
}

impl Drop for Cell<'_> {
    fn drop(&mut self) {
        self.ledger.stop();
        for (role, child) in &mut self.children {
            let pid = self.ledger.read(*role, Word::Pid);
            if let Ok(pid) = i32::try_from(pid) {
                let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            let _ = child.kill();
            let _ = child.wait();
        }
        for group in &self.groups {
            // A group that still has members, in a cell that failed: nothing else can have its number.
            if reap_group(*group) {
                let _ = killpg(*group, Signal::SIGKILL);
            }
        }
        if let Some(place) = self.region.parent() {
            let _ = std::fs::remove_dir_all(place);
        }
    }
}

fn open(path: &Path) -> Result<Cache, keyway_cache::OpenError> {
    let options = Options::new().owners(Owners::Any);
    Cache::open(&Place::Path(path.to_path_buf()), &options)
}

/// Children whose parent has ended become this process's, which waits for them.
fn adopt_orphans() {
    let adopted = nix::sys::prctl::set_child_subreaper(true);
    adopted.unwrap_or_else(|e| panic!("PR_SET_CHILD_SUBREAPER: {e}"));
}

/// Whether a process group, whose first process has been waited for, still has members.
fn reap_group(group: Pid) -> bool {
    loop {
        match waitpid(Pid::from_raw(-group.as_raw()), Some(WaitPidFlag::WNOHANG)) {
            Ok(WaitStatus::StillAlive) => return true,
            Ok(_) | Err(Errno::EINTR) => {}
            Err(_) => return false,
        }
    }
}

/// Files in a directory that no option asked for.
fn leftovers(directory: &Path, expected: &[PathBuf]) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|e| e.path()).filter(|path| !expected.contains(path)).collect()
}

/// Writes over what no verb writes so.
fn scribble(region: &Path) {
    use std::os::unix::fs::FileExt;
    let Ok(file) = std::fs::File::options().write(true).open(region) else {
        return;
    };
    let len = file.metadata().map_or(0, |m| m.size());
    for at in (64 << 10..len / 2).step_by(4096) {
        let _ = file.write_all_at(&[0x5a; 64], at);
    }
}
