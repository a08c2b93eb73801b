//! Threads without a slot, and processes that may only read: what a server does for them, over connections that this library
//! keeps in programs that are not its own. Enemy: a program that closes every descriptor and uses the numbers again, a server
//! that is stopped, signals that come all the time, and a program that is killed while its command waits to be read.
//!
//! The programs are this test itself, started again with a role.
//!
//! # Safety
//!
//! The `unsafe` makes system calls on descriptor numbers of this process, forks, and sets a signal's handler that does
//! nothing.
//! Guards: P26, P27
#![allow(
    unsafe_code,
    reason = "acts as a program that uses descriptor numbers freely; contract above"
)]

use harness::{DEADLINE, Kind, Scratch, ServeOptions, Server, Transport, wait_until};
use keyway_cache::server::ServerSession as _;
use keyway_cache::server::{Connection, run_apart_by};
use keyway_cache::{Cache, Options, Place, Session, WriteError};
use nix::libc;
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, sigaction};
use nix::unistd::Pid;
use std::ffi::CString;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// The variable that says what a program does, and the one that says where its region is.
const ROLE: &str = "KEYWAY_TEST_ROLE";
const PLACE: &str = "KEYWAY_TEST_PLACE";
/// Gets in which hundreds of reports of hits are due.
const MANY: usize = 200_000;

/// A server, and sessions that have taken every slot of its region for programs.
struct Ground {
    server: Server,
    socket: PathBuf,
    cache: Cache,
    sessions: Vec<Session>,
    _scratch: Scratch,
}

impl Ground {
    /// `readers`: the server gives its region for reading only.
    fn new(readers: bool) -> Self {
        let scratch = Scratch::new();
        let socket = scratch.join("region.sock");
        let mut arguments = vec!["--region-socket".to_owned(), socket.display().to_string()];
        if readers {
            arguments.extend(["--region-readers".to_owned(), nix::unistd::geteuid().to_string()]);
        }
        let server = Server::start(
            Kind::Keyway,
            &ServeOptions {
                memory_mb: 2,
                threads: 2,
                keyway_arguments: arguments,
                ..ServeOptions::default()
            },
        );
        let cache = open(&Place::at(server.region()));
        // Beside readers, sessions are made when they are needed.
        let all = std::iter::repeat_with(|| cache.session().unwrap()).take_while(|session| session.id().is_some());
        let sessions: Vec<Session> = if readers { Vec::new() } else { all.collect() };
        Self {
            server,
            socket,
            cache,
            sessions,
            _scratch: scratch,
        }
    }

    fn session(&mut self) -> Session {
        self.sessions.pop().unwrap_or_else(|| self.cache.session().unwrap())
    }

    /// A program in this role, which is served.
    fn program(&self, role: &str) -> Program {
        let place = if self.sessions.is_empty() {
            &self.socket
        } else {
            self.server.region()
        };
        let mut command = harness::own_test(&[], module_path!(), "program");
        command.env(ROLE, role).env(PLACE, place);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Program {
            child,
            input,
            output: BufReader::new(output),
        }
    }

    /// Stops the server, and waits until each of its threads is stopped.
    fn stop(&self) {
        kill(self.process(), Signal::SIGSTOP).unwrap();
        let tasks = format!("/proc/{}/task", self.server.pid());
        let is_stopped = |task: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap();
            stat.rsplit_once(") ").is_some_and(|(_, fields)| fields.starts_with('T'))
        };
        wait_until("the server is stopped", DEADLINE, || {
            std::fs::read_dir(&tasks).unwrap().all(is_stopped).then_some(())
        });
    }

    fn resume(&self) {
        kill(self.process(), Signal::SIGCONT).unwrap();
    }

    fn process(&self) -> Pid {
        Pid::from_raw(self.server.pid().cast_signed())
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        self.resume();
    }
}

fn open(place: &Place) -> Cache {
    let options = Options::new().item_size_max(512 << 10);
    Cache::open(place, &options).unwrap()
}

struct Program {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Program {
    /// The next line that the program says.
    fn says(&mut self) -> String {
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).unwrap() > 0, "the program has ended");
            if let Some((_, said)) = line.trim_end().split_once("@ ") {
                return said.to_owned();
            }
        }
    }

    fn go_on(&mut self) {
        writeln!(self.input, "go on").unwrap();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The programs.
#[test]
fn program() {
    let Ok(role) = std::env::var(ROLE) else { return };
    // It ends if something hangs.
    nix::unistd::alarm::set(u32::try_from(DEADLINE.as_secs() * 3).unwrap());
    let place = Place::at(std::env::var(PLACE).unwrap());
    let cache = open(&place);
    let mut session = cache.session().unwrap();
    assert!(session.id().is_none(), "it is served");
    match role.as_str() {
        "closes and opens files" => closes_and_opens(&mut session, own_files),
        "closes and opens sockets" => closes_and_opens(&mut session, own_sockets),
        "gets" => gets(&mut session),
        "writes" => writes(&mut session, false),
        "writes, and has a child" => writes(&mut session, true),
        "waits between signals" => waits_between_signals(&mut session),
        other => panic!("no role is called {other}"),
    }
}

fn say(what: &str) {
    let mut output = std::io::stdout();
    writeln!(output, "@ {what}").unwrap();
}

fn wait_for_word() {
    std::io::stdin().read_line(&mut String::new()).unwrap();
}

/// Closes all descriptors, opens its own under their numbers, and goes on with the cache.
fn closes_and_opens(session: &mut Session, open: fn(&[i32]) -> Box<dyn FnOnce()>) {
    session.set(b"mine", b"1", 0).unwrap();
    for round in 0..3_u8 {
        let numbers: Vec<i32> = std::fs::read_dir("/proc/self/fd")
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok())
            .filter(|number| *number > 2)
            .collect();
        // SAFETY: see the top of the file.
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
        let are_untouched = open(&numbers);
        session.set(b"secretkey", &[b'v', round], 0).unwrap();
        assert_eq!(session.get(b"secretkey").unwrap().unwrap(), [b'v', round]);
        are_untouched();
    }
    say("untouched");
}

fn identity(number: i32) -> Option<(u64, u64)> {
    // SAFETY: borrowed for the call.
    let file = unsafe { std::os::fd::BorrowedFd::borrow_raw(number) };
    nix::sys::stat::fstat(file).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

/// Makes this number the program's own file's.
fn put_at(file: &OwnedFd, number: i32) {
    // SAFETY: see the top of the file.
    unsafe { libc::dup2(file.as_raw_fd(), number) };
}

fn own_files(numbers: &[i32]) -> Box<dyn FnOnce()> {
    let name = CString::new("own").unwrap();
    let file = nix::sys::memfd::memfd_create(name.as_c_str(), nix::sys::memfd::MFdFlags::empty()).unwrap();
    let numbers: Vec<i32> = numbers.iter().copied().filter(|number| *number != file.as_raw_fd()).collect();
    numbers.iter().for_each(|number| put_at(&file, *number));
    Box::new(move || {
        let own = identity(file.as_raw_fd());
        for number in numbers {
            assert_eq!(identity(number), own, "descriptor {number}");
        }
        assert_eq!(nix::sys::stat::fstat(&file).unwrap().st_size, 0);
    })
}

fn own_sockets(numbers: &[i32]) -> Box<dyn FnOnce()> {
    let mut own = Vec::new();
    let (first, first_other) = UnixStream::pair().unwrap();
    let taken = [first.as_raw_fd(), first_other.as_raw_fd()];
    let first = OwnedFd::from(first);
    for number in numbers.iter().filter(|number| !taken.contains(number)) {
        put_at(&first, *number);
        own.push(*number);
    }
    Box::new(move || {
        for number in own {
            assert_eq!(identity(number), identity(first.as_raw_fd()), "descriptor {number}");
        }
        first_other.set_nonblocking(true).unwrap();
        let read = (&first_other).read(&mut [0; 100]);
        assert_eq!(
            read.unwrap_err().kind(),
            ErrorKind::WouldBlock,
            "nothing was sent there, and it is open"
        );
    })
}

/// Gets, before it has a connection of its own and with one, while its server is stopped.
fn gets(session: &mut Session) {
    for _ in 0..2 {
        say("stop it");
        wait_for_word();
        for _ in 0..MANY {
            assert_eq!(session.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
        }
        say("resume it");
        wait_for_word();
        session.set(b"own", b"1", 0).unwrap();
    }
    say("done");
    // For as long as the server has not counted its hits.
    while session.get(b"until").unwrap().is_none() {
        session.get(b"key").unwrap();
    }
}

/// Sets a value, and another one on request; it says when it waits for the server.
fn writes(session: &mut Session, has_child: bool) {
    session.set(b"key", b"first", 0).unwrap();
    if has_child {
        // SAFETY: the child only waits for its end.
        match unsafe { nix::unistd::fork() }.unwrap() {
            nix::unistd::ForkResult::Child => loop {
                std::thread::park();
            },
            nix::unistd::ForkResult::Parent { child } => say(&child.to_string()),
        }
    }
    say("stop it");
    wait_for_word();
    run_apart_by(|wait| {
        say("waits");
        wait();
    });
    let _ = session.set(b"key", b"of the dead", 0);
}

static HAS_WAITED: AtomicBool = AtomicBool::new(false);

/// A write to a stopped server, while signals come all the time. Another thread sends them until the write has failed.
fn waits_between_signals(session: &mut Session) {
    extern "C" fn nothing(_: i32) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: see the top of the file.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
    session.set(b"key", b"first", 0).unwrap();
    say("stop it");
    wait_for_word();
    let (process, thread) = (nix::unistd::getpid().as_raw(), nix::unistd::gettid().as_raw());
    let signals = std::thread::spawn(move || {
        while !HAS_WAITED.load(SeqCst) {
            // SAFETY: numbers.
            unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1) };
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let set = session.set(b"key", b"given up", 0);
    HAS_WAITED.store(true, SeqCst);
    signals.join().unwrap();
    assert_eq!(set, Err(WriteError::Unserved));
    say("given up");
    wait_for_word();
    session.set(b"next", b"1", 0).unwrap();
    say("done");
}

#[test]
fn descriptors_that_became_the_programs_are_neither_used_nor_closed() {
    for readers in [false, true] {
        let ground = Ground::new(readers);
        for role in ["closes and opens files", "closes and opens sockets"] {
            assert_eq!(ground.program(role).says(), "untouched", "{role}, readers: {readers}");
        }
    }
}

#[test]
fn gets_do_not_wait_for_a_stopped_server_and_their_hits_are_counted_when_it_goes_on() {
    for readers in [false, true] {
        let mut ground = Ground::new(readers);
        let mut session = ground.session();
        session.set(b"key", b"value", 0).unwrap();
        let mut program = ground.program("gets");
        for _ in 0..2 {
            assert_eq!(program.says(), "stop it");
            ground.stop();
            program.go_on();
            assert_eq!(program.says(), "resume it");
            ground.resume();
            program.go_on();
        }
        assert_eq!(program.says(), "done");
        let hits = ground.server.stat("get_hits");
        wait_until("more hits are reported", DEADLINE, || {
            (ground.server.stat("get_hits") > hits + 100).then_some(())
        });
        session.set(b"until", b"now", 0).unwrap();
        assert!(program.child.wait().unwrap().success());
    }
}

/// A child of a program, which outlives it.
struct Orphan(i32);

impl Drop for Orphan {
    fn drop(&mut self) {
        let _ = kill(Pid::from_raw(self.0), Signal::SIGKILL);
    }
}

/// How many programs' connections the server has.
fn lines(server: &Server) -> usize {
    let rows = server.connect(Transport::Tcp).stats("conns").unwrap();
    let is = |which: &str, what: &str, value: &str| rows.contains(&(format!("{which}:{what}"), value.to_owned()));
    let unix = rows.iter().filter(|(_, value)| value.starts_with("unix"));
    let sockets = unix.filter_map(|(name, _)| name.strip_suffix(":addr"));
    sockets.filter(|which| !is(which, "state", "conn_listening")).count()
}

#[test]
fn what_a_killed_program_has_sent_is_not_executed_after_the_write_of_its_successor() {
    for (readers, role) in [
        (false, "writes"),
        (true, "writes"),
        (false, "writes, and has a child"),
        (true, "writes, and has a child"),
    ] {
        let mut ground = Ground::new(readers);
        let mut session = ground.session();
        let mut program = ground.program(role);
        let _child = role.ends_with("child").then(|| Orphan(program.says().parse().unwrap()));
        assert_eq!(program.says(), "stop it");
        assert!(lines(&ground.server) > 0);
        ground.stop();
        program.go_on();
        // Its command is in the server's socket.
        assert_eq!(program.says(), "waits");
        program.child.kill().unwrap();
        program.child.wait().unwrap();
        session.set(b"key", b"of its successor", 0).unwrap();
        ground.resume();
        wait_until("the server closes its line", DEADLINE, || {
            (lines(&ground.server) == 0).then_some(())
        });
        assert_eq!(
            session.get(b"key").unwrap().as_deref(),
            Some(&b"of its successor"[..]),
            "{role}, readers: {readers}"
        );
    }
}

#[test]
fn a_write_ends_in_time_whatever_signals_come_and_is_not_executed_later() {
    let mut ground = Ground::new(false);
    let mut session = ground.session();
    let mut program = ground.program("waits between signals");
    assert_eq!(program.says(), "stop it");
    ground.stop();
    program.go_on();
    assert_eq!(program.says(), "given up");
    ground.resume();
    program.go_on();
    assert_eq!(program.says(), "done");
    assert_eq!(session.get(b"key").unwrap().as_deref(), Some(&b"first"[..]));
    assert!(program.child.wait().unwrap().success());
}

#[test]
fn a_deadline_stays_where_it_is_while_signals_come() {
    extern "C" fn nothing(_: i32) {}
    let action = SigAction::new(SigHandler::Handler(nothing), SaFlags::SA_RESTART, SigSet::empty());
    // SAFETY: see the top of the file.
    unsafe { sigaction(Signal::SIGUSR1, &action) }.unwrap();
    let scratch = Scratch::new();
    let path = scratch.join("socket");
    let _server = UnixListener::bind(&path).unwrap();
    let (process, thread) = (nix::unistd::getpid().as_raw(), nix::unistd::gettid().as_raw());
    let (is_over, hangs) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let begun = Instant::now();
            while !is_over.load(SeqCst) && !hangs.load(SeqCst) {
                hangs.store(begun.elapsed() > DEADLINE / 3, SeqCst);
                // SAFETY: numbers.
                unsafe { libc::syscall(libc::SYS_tgkill, process, thread, libc::SIGUSR1) };
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let deadline = Instant::now() + Duration::from_millis(300);
        let mut connection = Connection::to_file(&path, deadline).unwrap();
        let received = connection.receive(deadline).unwrap_err();
        is_over.store(true, SeqCst);
        assert_eq!(received.kind(), ErrorKind::TimedOut);
        assert!(Instant::now() >= deadline && !hangs.load(SeqCst));
    });
}
