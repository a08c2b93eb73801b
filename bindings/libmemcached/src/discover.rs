//! Which servers are this host's Keyway, and where their region is.
//!
//! A server that is named by loopback or by a Unix socket is asked once (`version`, `stats settings`). A Keyway server
//! reports which region it has (`keyway_region`: device and inode), and where to open it: the path of its region socket
//! (`keyway_region_socket`), or the region's file (`memory_file`). What is opened there must be that region. It must
//! belong to this process's user, to root, or to a user that KEYWAY_LIBMEMCACHED_OWNERS lists, because any user of this
//! host can listen on a port and send such answers. `keyway:PATH` names a region, or a region socket, directly. All
//! handles of the process share what was found.
//!
//! If no server is there, the record that it has left says where its region is ([`record`]), and the same holds for what is
//! opened there. A server that dies or starts may also cut its connections off, or leave them unanswered: that counts as no
//! server if a record says that a Keyway was there.
//!
//! The handles that use a region check it once a second: if its file or socket has been replaced, the server is asked
//! again. A server whose region was found by a record is asked as soon as it answers. Meanwhile the region stays in use: no
//! call waits for a server that has a region already.

use crate::say::say;
use keyway_cache::server::ServerCache as _;
use keyway_cache::server::{Connection, PerProcess, record};
use keyway_cache::{Cache, OpenError, Options, Owners, Place};
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// The prefix of a name that is itself a place.
const PREFIX: &str = "keyway:";
/// How long an answer may take. A Keyway on this host answers at once.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a program that has a region waits when it asks the server again. What comes later is read at a later call.
const AT_FIRST: Duration = Duration::from_millis(10);
/// How long a server that is not a Keyway is not asked again.
const STRANGER: Duration = Duration::from_secs(5);
/// How long to wait while another thread asks a server. A thread that was cancelled meanwhile, or left by a jump, never answers.
const LOOK: Duration = Duration::from_secs(10);
/// Longest answer that is read.
const ANSWER_MAX: usize = 1 << 20;
/// The variable that lists users by number (`id -u NAME`), separated by commas. Their regions are used if a server
/// reports one.
const OWNERS: &str = "KEYWAY_LIBMEMCACHED_OWNERS";
/// The version to report if no server reports one: that of the protocol, as Keyway speaks it.
const VERSION: [u8; 3] = [1, 6, 45];

/// Why an existing region is used through its server only.
const SHUT_OUT: &str = "it answers from the kernel, and what this program changes in its region cannot be counted for it; start it with \
                        --region-socket to have the region used directly";

/// Where a server is, on this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    Tcp(Vec<SocketAddr>),
    Unix(PathBuf),
    Place(PathBuf),
}

impl Target {
    /// `None`: it may be on any host.
    pub(crate) fn of(hostname: &str, port: u16) -> Option<Self> {
        if let Some(place) = hostname.strip_prefix(PREFIX) {
            return Some(Self::Place(place.into()));
        }
        if hostname.starts_with('/') {
            return Some(Self::Unix(hostname.into()));
        }
        let addresses = if hostname.eq_ignore_ascii_case("localhost") {
            vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)]
        } else {
            let bare = hostname.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
            let address: IpAddr = bare.unwrap_or(hostname).parse().ok()?;
            vec![address]
        };
        let here = addresses.iter().all(IpAddr::is_loopback);
        here.then(|| Self::Tcp(addresses.into_iter().map(|address| SocketAddr::new(address, port)).collect()))
    }

    /// A connection to the server. `None`: there is no server.
    fn connect(&self, deadline: Instant) -> Option<std::io::Result<Connection>> {
        match self {
            Self::Place(_) => None,
            Self::Unix(path) => Some(Connection::to_file(path, deadline)),
            Self::Tcp(addresses) => {
                let mut last = std::io::Error::from(ErrorKind::ConnectionRefused);
                for address in addresses {
                    match Connection::to_tcp(address, deadline) {
                        Ok(connection) => return Some(Ok(connection)),
                        Err(error) => last = error,
                    }
                }
                Some(Err(last))
            }
        }
    }

    /// Sends a request to the server, over the connection that is kept from the last one, or over a new one. Returns the lines up
    /// to the first that ends an answer, without that line. `None`: there is no server.
    pub(crate) fn ask(&self, kept: &mut Option<Connection>, request: &str) -> Option<std::io::Result<Vec<String>>> {
        let deadline = Instant::now() + PATIENCE;
        let answer = |question: std::io::Result<Question>| {
            let mut question = question?;
            let lines = question.answer(deadline)?;
            Ok((lines, question.connection))
        };
        let own = kept.take().filter(Connection::is_own);
        let answered = match own.map(|connection| answer(Question::over(connection, request, deadline))) {
            Some(Ok(answered)) => Ok(answered),
            // The server may have closed it since, or be another one by now.
            Some(Err(_)) | None => answer(Question::new(self, request, deadline)?),
        };
        Some(answered.map(|(lines, connection)| {
            *kept = Some(connection);
            lines
        }))
    }
}

/// A request to a server, and what it has answered so far.
struct Question {
    connection: Connection,
    begun: Instant,
    lines: Vec<String>,
    /// bytes of the answer so far
    len: usize,
}

impl Question {
    /// Sends the request by the deadline. `None`: there is no server.
    fn new(target: &Target, request: &str, deadline: Instant) -> Option<std::io::Result<Self>> {
        Some(
            target
                .connect(deadline)?
                .and_then(|connection| Self::over(connection, request, deadline)),
        )
    }

    fn over(mut connection: Connection, request: &str, deadline: Instant) -> std::io::Result<Self> {
        connection.send(request.as_bytes(), deadline)?;
        Ok(Self {
            connection,
            begun: Instant::now(),
            lines: Vec::new(),
            len: 0,
        })
    }

    /// The answer, if it is complete by the deadline. After [`ErrorKind::TimedOut`] this can be called again.
    fn answer(&mut self, deadline: Instant) -> std::io::Result<Vec<String>> {
        loop {
            let received = self.connection.received();
            let Some(end) = received.iter().position(|byte| *byte == b'\n') else {
                if self.len + received.len() > ANSWER_MAX {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                self.connection.receive(deadline)?;
                continue;
            };
            let line: Vec<u8> = received.drain(..=end).collect();
            self.len += line.len();
            let line = String::from_utf8_lossy(&line).trim_end().to_owned();
            if ["END", "OK", "RESET"].contains(&&*line) {
                return Ok(std::mem::take(&mut self.lines));
            }
            let failed = ["ERROR", "CLIENT_ERROR", "SERVER_ERROR"]
                .iter()
                .any(|word| line.starts_with(word));
            self.lines.push(line);
            if failed {
                return Ok(std::mem::take(&mut self.lines));
            }
        }
    }
}

/// What is known of a server in addition to its region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) version: [u8; 3],
}

/// The result of asking a server.
pub(crate) enum Discovery {
    /// its region is open
    Region(Open),
    /// it is not a Keyway, or its region cannot be opened: it is treated like any other server
    Stranger,
    /// no server is there
    NoServer(i32),
}

/// No server is there: the system's error.
pub(crate) struct NoServer(pub(crate) i32);

/// An open region.
#[derive(Clone)]
pub(crate) struct Open {
    pub(crate) cache: Cache,
    /// device and inode of the region's file
    pub(crate) identity: (u64, u64),
    pub(crate) facts: Facts,
    place: PathBuf,
    stamp: Stamp,
    source: Source,
}

/// Who has said where a region is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// the server, or the program itself
    Asked,
    /// a record, because no server was there: with the system's error
    Record(i32),
}

/// A region that is known and not yet open.
#[derive(Clone)]
struct Known {
    place: PathBuf,
    /// the region that it must be
    region: Option<(u64, u64)>,
    facts: Facts,
    source: Source,
}

/// A server that this process has asked.
pub(crate) struct Entry {
    target: Target,
    /// a forked child begins with what its parent knew, unless one of the parent's threads was asking
    state: PerProcess<Mutex<State>>,
    /// what it is asked while its region is in use; a forked child does not read what its parent has asked for
    question: PerProcess<Mutex<Option<Question>>>,
    /// incremented when its region is replaced by another one. PAIRS: Release and Acquire, though the lock protects what
    /// it announces.
    generation: AtomicU64,
    /// the message that explains why it is a stranger was printed. PAIRS: nothing.
    said: AtomicBool,
}

#[derive(Clone)]
enum State {
    Unknown,
    /// it has a region, which is opened only when a handle needs it
    Found(Known),
    Region(Open),
    Stranger(Instant),
}

/// Identifies a file or socket, to find out whether it was replaced.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stamp {
    device: u64,
    inode: u64,
    changed: (i64, i64),
}

impl Stamp {
    /// What is at this path; all zeros: nothing. A region's file changes all the time, a socket never changes.
    fn of(path: &Path) -> Self {
        use std::os::unix::fs::FileTypeExt;
        match std::fs::metadata(path) {
            Ok(meta) => Self {
                device: meta.dev(),
                inode: meta.ino(),
                changed: if meta.file_type().is_socket() {
                    (meta.ctime(), meta.ctime_nsec())
                } else {
                    (0, 0)
                },
            },
            Err(_) => Self {
                device: 0,
                inode: 0,
                changed: (0, 0),
            },
        }
    }
}

/// The process's entry for a server. It stays for ever.
pub(crate) fn entry(target: &Target) -> Option<&'static Entry> {
    static ENTRIES: PerProcess<Mutex<Vec<&'static Entry>>> = PerProcess::new();
    let mut entries = patient(ENTRIES.get_or(|parents| Mutex::new(parents.and_then(copied).unwrap_or_default())))?;
    if let Some(entry) = entries.iter().find(|entry| entry.target == *target) {
        return Some(entry);
    }
    let entry: &'static Entry = Box::leak(Box::new(Entry::new(target.clone())));
    entries.push(entry);
    Some(entry)
}

/// A copy of what is behind a lock of a forked child's parent. `None`: a thread has it that the child does not have.
fn copied<T: Clone>(parents: &Mutex<T>) -> Option<T> {
    parents.try_lock().ok().map(|value| value.clone())
}

/// Locks, unless a thread that never unlocks it holds the lock.
fn patient<T>(lock: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    let begun = Instant::now();
    loop {
        match lock.try_lock() {
            Ok(guard) => return Some(guard),
            Err(std::sync::TryLockError::Poisoned(error)) => return Some(error.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) if begun.elapsed() > LOOK => return None,
            Err(std::sync::TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
}

impl Entry {
    /// A server of which nothing is known yet.
    pub(crate) fn new(target: Target) -> Self {
        Self {
            target,
            state: PerProcess::new(),
            question: PerProcess::new(),
            generation: AtomicU64::new(0),
            said: AtomicBool::new(false),
        }
    }

    pub(crate) fn target(&self) -> &Target {
        &self.target
    }

    #[inline]
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Acquire)
    }

    fn state(&self) -> Option<MutexGuard<'_, State>> {
        patient(self.own_state())
    }

    fn own_state(&self) -> &Mutex<State> {
        self.state
            .get_or(|parents| Mutex::new(parents.and_then(copied).unwrap_or(State::Unknown)))
    }

    fn question(&self) -> &Mutex<Option<Question>> {
        self.question.get_or(|_| Mutex::new(None))
    }

    /// Whether the server has a region for us, as far as is known; otherwise asks it. Opens nothing.
    pub(crate) fn has_region(&self) -> Result<bool, NoServer> {
        let Some(mut state) = self.state() else { return Ok(false) };
        match &*state {
            State::Found(_) | State::Region(_) => Ok(true),
            State::Stranger(since) if since.elapsed() < STRANGER => Ok(false),
            _ => self.find(&mut state),
        }
    }

    /// The server's region.
    pub(crate) fn discover(&self) -> Discovery {
        let Some(mut state) = self.state() else {
            return Discovery::Stranger;
        };
        match &*state {
            State::Region(open) => Discovery::Region(open.clone()),
            State::Stranger(since) if since.elapsed() < STRANGER => Discovery::Stranger,
            State::Found(_) => self.open(&mut state),
            _ => self.find_and_open(&mut state),
        }
    }

    /// Checks whether the region is still the server's. If it is not, finds out what the server is now, now or at a later call:
    /// this does not wait for the server.
    pub(crate) fn look_again(&self) {
        // Another thread that has the lock looks itself.
        let Ok(mut state) = self.own_state().try_lock() else { return };
        let State::Region(open) = &*state else { return };
        let is_same = Stamp::of(&open.place) == open.stamp;
        if is_same && open.source == Source::Asked {
            self.take_question();
            return;
        }
        let probe = match self.probe_without_waiting() {
            None => return,
            Some(Probe::NoServer(_) | Probe::NoAnswer(_)) if is_same => return,
            Some(probe) => probe,
        };
        let old = open.clone();
        match self.conclude_and_open(&mut state, probe) {
            Discovery::Region(new) if new.identity == old.identity => {
                // The server was restarted on the same region: its users continue with the open cache.
                new.cache.leave();
                *state = State::Region(Open { cache: old.cache, ..new });
            }
            Discovery::Region(_) | Discovery::Stranger => {
                self.generation.fetch_add(1, Release);
            }
            // The region remains usable without its server.
            Discovery::NoServer(_) => *state = State::Region(old),
        }
    }

    /// The server answers from the kernel, and this program must not change its region.
    pub(crate) fn shut_out(&self) {
        let Some(mut state) = self.state() else { return };
        if matches!(&*state, State::Region(open) if open.cache.is_shut_out()) {
            self.stranger(&mut state, Some(SHUT_OUT));
            self.generation.fetch_add(1, Release);
        }
    }

    /// The question that was asked at an earlier call of this process.
    fn take_question(&self) -> Option<Question> {
        let question = self.question().try_lock().ok().and_then(|mut question| question.take());
        question.filter(|question| question.connection.is_own())
    }

    /// Asks the server, or reads its answer to the question of an earlier call. `None`: it has not answered yet.
    fn probe_without_waiting(&self) -> Option<Probe> {
        if let Target::Place(path) = &self.target {
            return Some(named(path));
        }
        let (question, deadline) = match self.take_question() {
            Some(question) => (Some(Ok(question)), Instant::now()),
            None => {
                let deadline = Instant::now() + AT_FIRST;
                (Question::new(&self.target, WHO_ARE_YOU, deadline), deadline)
            }
        };
        let mut question = match question? {
            Ok(question) => question,
            Err(error) => return Some(judge(Some(Err(error)))),
        };
        match question.answer(deadline) {
            Err(error) if error.kind() == ErrorKind::TimedOut && question.begun.elapsed() < PATIENCE => {
                if let Ok(mut place) = self.question().try_lock() {
                    *place = Some(question);
                }
                None
            }
            answer => Some(judge(Some(answer))),
        }
    }

    fn find(&self, state: &mut State) -> Result<bool, NoServer> {
        self.conclude(state, probe(&self.target))
    }

    /// What the server is, by what it has said.
    fn conclude(&self, state: &mut State, probe: Probe) -> Result<bool, NoServer> {
        let mut why = None;
        let known = match probe {
            Probe::Region(known) => Some(known),
            Probe::Keyway => {
                why = Some("it does not hand out its region; start it with --region-socket to use the region directly");
                None
            }
            Probe::Stranger => None,
            Probe::NoServer(error) => Some(recorded(&self.target, error).ok_or(NoServer(error))?),
            // Not every server can answer the question: proxies hang up on commands that they do not know.
            Probe::NoAnswer(error) => recorded(&self.target, error),
        };
        let is_known = known.is_some();
        match known {
            Some(known) => *state = State::Found(known),
            None => self.stranger(state, why),
        }
        Ok(is_known)
    }

    fn find_and_open(&self, state: &mut State) -> Discovery {
        self.conclude_and_open(state, probe(&self.target))
    }

    fn conclude_and_open(&self, state: &mut State, probe: Probe) -> Discovery {
        match self.conclude(state, probe) {
            Ok(true) => self.open(state),
            Ok(false) => Discovery::Stranger,
            Err(NoServer(error)) => Discovery::NoServer(error),
        }
    }

    fn open(&self, state: &mut State) -> Discovery {
        let State::Found(known) = &*state else {
            return Discovery::Stranger;
        };
        let is_named = matches!(self.target, Target::Place(_));
        let why = match open(&known.place, is_named) {
            Ok((cache, identity, _)) if !is_named && known.region != Some(identity) => {
                cache.leave();
                format!(
                    "{} is not its region; the server and this program see different files",
                    known.place.display()
                )
            }
            // A place that is named directly has no server to fall back to. Its region can at least be read.
            Ok((cache, ..)) if !is_named && cache.is_shut_out() => {
                cache.leave();
                SHUT_OUT.to_owned()
            }
            Ok((cache, identity, stamp)) => {
                let open = Open {
                    cache,
                    identity,
                    facts: known.facts.clone(),
                    place: known.place.clone(),
                    stamp,
                    source: known.source,
                };
                *state = State::Region(open.clone());
                return Discovery::Region(open);
            }
            Err(why) => why,
        };
        // What a record says is worth no message: the server is asked as soon as it answers.
        if let Source::Record(error) = known.source {
            *state = State::Unknown;
            return Discovery::NoServer(error);
        }
        self.stranger(state, Some(&why));
        Discovery::Stranger
    }

    /// The real library gets the server's handles. The reason is printed once.
    fn stranger(&self, state: &mut State, why: Option<&str>) {
        if let Some(why) = why
            && !self.said.swap(true, Relaxed)
        {
            say(&format!("{}: {why}", self.target));
        }
        *state = State::Stranger(Instant::now());
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(addresses) => match addresses.first() {
                Some(address) => address.fmt(f),
                None => f.write_str("?"),
            },
            Self::Unix(path) => path.display().fmt(f),
            Self::Place(path) => write!(f, "{PREFIX}{}", path.display()),
        }
    }
}

enum Probe {
    Region(Known),
    /// a Keyway that does not share its region
    Keyway,
    Stranger,
    /// it does not answer: a server that dies or starts, or a stranger
    NoAnswer(i32),
    NoServer(i32),
}

/// The region of a server that is away, by the record that it has left.
fn recorded(target: &Target, error: i32) -> Option<Known> {
    let owners = Owners::Only(trusted().ok()?);
    let addresses = match target {
        Target::Tcp(addresses) => addresses.iter().copied().map(record::Address::Tcp).collect(),
        Target::Unix(path) => vec![record::Address::Unix(path.clone())],
        Target::Place(_) => return None,
    };
    let found = addresses.iter().find_map(|address| record::find(address, &owners))?;
    Some(Known {
        place: found.place,
        region: Some(found.region),
        facts: Facts { version: VERSION },
        source: Source::Record(error),
    })
}

/// What a server is asked.
pub(crate) const WHO_ARE_YOU: &str = "version\r\nstats settings\r\n";

/// Asks a server. One that ended in the middle of its answer is asked once more: then it is mostly away, or another one is there.
fn probe(target: &Target) -> Probe {
    if let Target::Place(path) = target {
        return named(path);
    }
    judge(match target.ask(&mut None, WHO_ARE_YOU) {
        Some(Err(error)) if is_cut_off(&error) => target.ask(&mut None, WHO_ARE_YOU),
        answer => answer,
    })
}

/// A region that the program itself has named.
fn named(path: &Path) -> Probe {
    Probe::Region(Known {
        place: path.to_path_buf(),
        region: None,
        facts: Facts { version: VERSION },
        source: Source::Asked,
    })
}

fn is_cut_off(error: &std::io::Error) -> bool {
    let kinds = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe, ErrorKind::UnexpectedEof];
    kinds.contains(&error.kind())
}

/// What a server is, by its answer.
fn judge(answer: Option<std::io::Result<Vec<String>>>) -> Probe {
    let lines = match answer {
        Some(Ok(lines)) => lines,
        Some(Err(error)) if matches!(error.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => {
            return Probe::NoServer(error.raw_os_error().unwrap_or(libc::ECONNREFUSED));
        }
        // A server that dies closes its listening sockets one after another, so a second one may be cut off too.
        Some(Err(error)) if is_cut_off(&error) => {
            return Probe::NoAnswer(error.raw_os_error().unwrap_or(libc::ECONNRESET));
        }
        Some(Err(error)) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
            return Probe::NoAnswer(libc::ETIMEDOUT);
        }
        // No local port is free to ask from.
        Some(Err(error)) if error.kind() == ErrorKind::AddrNotAvailable => {
            return Probe::NoAnswer(libc::EADDRNOTAVAIL);
        }
        _ => return Probe::Stranger,
    };
    let row = |name: &str| {
        let mut rows = lines.iter().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
        rows.find(|(row, _)| *row == name).map(|(_, value)| value)
    };
    let facts = Facts {
        version: version_among(&lines).unwrap_or(VERSION),
    };
    let Some((device, inode)) = row("keyway_region").and_then(|region| region.split_once(':')) else {
        return Probe::Stranger;
    };
    let region = device.parse().ok().zip(inode.parse().ok());
    let socket = row("keyway_region_socket").filter(|path| path.starts_with('/'));
    match socket.or_else(|| row("memory_file").filter(|path| path.starts_with('/'))) {
        Some(path) => Probe::Region(Known {
            place: path.into(),
            region,
            facts,
            source: Source::Asked,
        }),
        None => Probe::Keyway,
    }
}

/// The version in an answer to [`WHO_ARE_YOU`].
pub(crate) fn version_among(lines: &[String]) -> Option<[u8; 3]> {
    lines.iter().find_map(|line| line.strip_prefix("VERSION ")).and_then(version)
}

/// Three numbers, parsed as libmemcached does.
fn version(text: &str) -> Option<[u8; 3]> {
    let mut numbers = text.split(['.', '-', '_', ' ']).map_while(|number| number.parse().ok());
    Some([numbers.next()?, numbers.next()?, numbers.next().unwrap_or(0)])
}

/// Opens the region at the place. Makes a region only if the program itself has named a file, and the file is absent.
fn open(place: &Path, is_named: bool) -> Result<(Cache, (u64, u64), Stamp), String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let options = Options::new()
        .drop_in(true)
        .owners(if is_named { Owners::AsNamed } else { Owners::Only(trusted()?) });
    let place_is = Place::at(place);
    let cache = match (&place_is, Cache::open(&place_is, &options)) {
        (Place::Path(_), Err(OpenError::Absent { .. })) if is_named => {
            Cache::open(&place_is, &options.clone().memory(Options::MEMORY_DEFAULT))
        }
        (_, opened) => opened,
    };
    let cache = cache.map_err(|error| match error {
        OpenError::AnotherUsers { path, owner, .. } if !is_named => format!(
            "{} belongs to user {owner}, who could change the items of this program, and end it; to accept this, set {OWNERS}={owner}",
            path.display()
        ),
        error => failed(&error),
    })?;
    // A process that cannot get a session cannot use the region.
    cache.with_session(|_, _| ()).map_err(|error| failed(&error))?;
    let stamp = Stamp::of(place);
    let identity = cache.identity().map_err(|error| failed(&error))?;
    Ok((cache, identity, stamp))
}

/// The users that are trusted in addition to this process's own user and root.
fn trusted() -> Result<Vec<u32>, String> {
    let listed = std::env::var(OWNERS).unwrap_or_default();
    let numbers = listed.split(',').map(str::trim).filter(|name| !name.is_empty());
    numbers
        .map(|name| {
            name.parse()
                .map_err(|_| format!("{OWNERS} lists \"{name}\": give users by number, as `id -u {name}` prints it"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_on_this_host_is_asked() {
        for (name, port) in [
            ("localhost", 11211),
            ("127.0.0.1", 1),
            ("[::1]", 2),
            ("::1", 3),
            ("/run/x.sock", 0),
        ] {
            assert!(Target::of(name, port).is_some(), "{name}");
        }
        for name in ["", "example.org", "10.0.0.1", "localhost.example.org", "0.0.0.0"] {
            assert_eq!(Target::of(name, 11211), None, "{name}");
        }
        assert_eq!(
            Target::of("keyway:/dev/shm/x", 11211),
            Some(Target::Place("/dev/shm/x".into()))
        );
    }

    #[test]
    fn versions_are_read_as_libmemcached_reads_them() {
        assert_eq!(version("1.6.45"), Some([1, 6, 45]));
        assert_eq!(version("1.6.18_1"), Some([1, 6, 18]));
        assert_eq!(version("what"), None);
    }
}
