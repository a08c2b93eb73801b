//! `keyway top`, in a terminal of its own, and for scripts; and what other commands do on a terminal. Its enemy: a number that is not the
//! region's or the server's, a key that does nothing, a line that is wider than the terminal, a password that is shown, a terminal that is
//! left unusable, and a region that is changed by being looked at.
//! Guards: P44

use harness::Scratch;
use keyway_cache::server::ServerCache as _;
use keyway_cache::server::ServerSession as _;
use keyway_cache::{Cache, Door, Options, Place, Session, Verb};
use nix::fcntl::OFlag;
use nix::pty::{Winsize, grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::File;
use std::io::{Read, Write};
use std::num::NonZero;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest that any test waits for anything: only a failing test takes so long.
const PATIENCE: Duration = Duration::from_secs(60);
const COLUMNS: u16 = 100;
const LINES: u16 = 30;

fn nonzero(number: u16) -> NonZero<u16> {
    NonZero::new(number).unwrap()
}

fn open(path: &Path) -> Cache {
    Cache::open(&Place::Path(path.to_owned()), &Options::new().memory(8 << 20)).unwrap()
}

/// Gets and sets, so many each.
fn work(session: &mut Session, count: usize) {
    for _ in 0..count {
        session.set(b"key", b"value", 0).unwrap();
        assert!(session.get(b"key").unwrap().is_some());
    }
}

fn once(arguments: &[&str]) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_keyway"))
        .args(["top", "--once", "--json"])
        .args(arguments)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The program in a terminal.
struct Terminal {
    pid: Pid,
    file: File,
    parser: vt100::Parser,
    /// all that it has sent
    sent: Vec<u8>,
}

impl Terminal {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
        command.arg("top").args(arguments);
        Self::of(command)
    }

    /// Another program in a terminal.
    fn of(command: Command) -> Self {
        Self::sized(command, COLUMNS)
    }

    /// A program in a terminal of so many columns.
    #[allow(unsafe_code, reason = "the child makes the terminal its own, and does nothing else")]
    fn sized(mut command: Command, columns: u16) -> Self {
        // Closed in all programs that other tests start meanwhile: a terminal is gone when nothing has it open.
        let master = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let ours = File::options()
            .read(true)
            .write(true)
            .custom_flags(OFlag::O_NOCTTY.bits())
            .open(ptsname_r(&master).unwrap())
            .unwrap();
        command
            .stdin(ours.try_clone().unwrap())
            .stdout(ours.try_clone().unwrap())
            .stderr(ours);
        let own_terminal = || {
            nix::unistd::setsid()?;
            // SAFETY: standard input is a terminal, and it takes no pointer (ioctl_tty(2)).
            match unsafe { nix::libc::ioctl(0, nix::libc::TIOCSCTTY, 0) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        // SAFETY: two system calls, which are allowed between fork(2) and execve(2).
        unsafe { command.pre_exec(own_terminal) };
        let mut terminal = Self {
            pid: Pid::from_raw(0),
            file: File::from(OwnedFd::from(master)),
            parser: vt100::Parser::new(nonzero(LINES), nonzero(columns), 0),
            sent: Vec::new(),
        };
        terminal.resize(LINES, columns);
        terminal.pid = Pid::from_raw(command.spawn().unwrap().id().cast_signed());
        terminal
    }

    /// Waits until the screen is as wanted.
    fn until(&mut self, what: &str, wanted: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let screen = self.parser.screen().contents();
            if wanted(&screen) {
                return screen;
            }
            assert!(begun.elapsed() < PATIENCE, "{what}: the screen is\n{screen}");
            self.take();
        }
    }

    /// Waits until this text has been sent, even if it is not on the screen any more.
    fn until_sent(&mut self, text: &str) {
        let begun = Instant::now();
        while !self.sent.windows(text.len()).any(|bytes| bytes == text.as_bytes()) {
            assert!(
                begun.elapsed() < PATIENCE,
                "no '{text}' in {:?}",
                String::from_utf8_lossy(&self.sent)
            );
            self.take();
        }
    }

    /// Takes what it sends, for a while.
    fn take(&mut self) -> bool {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut asked = [PollFd::new(self.file.as_fd(), PollFlags::POLLIN)];
        poll(&mut asked, PollTimeout::from(100u8)).unwrap();
        if asked[0].any() != Some(true) {
            return true;
        }
        let mut bytes = [0; 8192];
        match self.file.read(&mut bytes) {
            Ok(0) | Err(_) => false,
            Ok(len) => {
                self.parser.process(&bytes[..len]);
                self.sent.extend_from_slice(&bytes[..len]);
                true
            }
        }
    }

    /// Changes its size; the program hears of it by a signal.
    #[allow(unsafe_code, reason = "an ioctl")]
    fn resize(&mut self, lines: u16, columns: u16) {
        let size = Winsize {
            ws_row: lines,
            ws_col: columns,
            ws_xpixel: 0,
            ws_ypixel: 0,
        };
        // SAFETY: it reads the struct, which lives.
        let failed = unsafe { nix::libc::ioctl(self.file.as_raw_fd(), nix::libc::TIOCSWINSZ, &raw const size) };
        assert_eq!(failed, 0);
        self.parser.screen_mut().set_size(nonzero(lines), nonzero(columns));
    }

    fn press(&mut self, keys: &str) {
        self.file.write_all(keys.as_bytes()).unwrap();
    }

    /// How it ended. The terminal has its screen and its cursor again.
    fn end(mut self) -> WaitStatus {
        while self.take() {}
        let status = waitpid(self.pid, None).unwrap();
        let screen = self.parser.screen();
        assert!(
            !screen.alternate_screen() && !screen.hide_cursor(),
            "the terminal is left as it was used"
        );
        status
    }
}

/// A process that works on the region until it is killed.
struct Worker(Child);

impl Worker {
    fn start(path: &Path) -> Self {
        let mut child = harness::own_test(&[], module_path!(), "part_of_a_worker")
            .env("KEYWAY_TEST_PLACE", path)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = String::new();
        let out = child.stdout.as_mut().unwrap();
        while !said.contains("works") {
            let mut byte = [0];
            out.read_exact(&mut byte).unwrap();
            said.push(byte[0].into());
        }
        Self(child)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// Not a test: what a worker does.
#[test]
fn part_of_a_worker() {
    let Some(path) = std::env::var_os("KEYWAY_TEST_PLACE").map(PathBuf::from) else {
        return;
    };
    let cache = open(&path);
    let mut session = cache.session().unwrap();
    work(&mut session, 10_000);
    std::io::stdout().write_all(b"works\n").unwrap();
    loop {
        work(&mut session, 1_000);
    }
}

#[test]
fn it_says_for_scripts_what_the_region_has_counted() {
    let folder = Scratch::new();
    let path = folder.join("region");
    let cache = open(&path);
    work(&mut cache.session().unwrap(), 20_000);
    let worker_session = cache.session().unwrap();
    (0..7).for_each(|_| worker_session.note_latency(Door::Meta, Verb::Delete, 1000));
    let before = std::fs::read(&path).unwrap();
    let said = once(&["--region", path.to_str().unwrap()]);
    assert_eq!(
        std::fs::read(&path).unwrap(),
        before,
        "a region that is looked at stays as it is"
    );
    for (name, count) in cache.counters().named() {
        assert_eq!(said["counters"][name], count, "{name}");
    }
    assert_eq!(said["limit_bytes"], cache.info().limit_bytes);
    let segments: u64 = said["segments"]
        .as_object()
        .unwrap()
        .values()
        .map(|n| n.as_u64().unwrap())
        .sum();
    assert_eq!(
        (segments, &said["segments"]["free"]),
        (cache.info().segments, &cache.info().segments_free.into())
    );
    let latencies = cache.latencies();
    let doors = said["doors"].as_array().unwrap();
    assert_eq!(doors.len(), latencies.counted().count());
    for (row, (door, verb, latency)) in doors.iter().zip(latencies.counted()) {
        assert_eq!((&row["door"], &row["verb"]), (&door.name().into(), &verb.name().into()));
        assert_eq!(row["measured"], latency.count());
        assert_eq!(row["p99_ns"].as_u64(), latency.quantile_ns(990));
        assert_eq!(row["per_second"], 0.0, "none came in between");
    }
    let processes = said["processes"].as_array().unwrap();
    assert_eq!(processes.len(), 1);
    let own = &processes[0];
    assert_eq!((&own["pid"], &own["door"]), (&std::process::id().into(), &"library".into()));
    assert_eq!(own["threads"], 1, "the sessions that have ended are gone");
    assert!(own["command"].as_str().unwrap().starts_with("it-"), "{own}");
}

#[test]
fn it_shows_the_hottest_keys_and_on_request_their_hashes() {
    let folder = Scratch::new();
    let path = folder.join("region");
    let cache = open(&path);
    let mut session = cache.session().unwrap();
    // By gets, sets and bytes another key is first.
    session.set(b"long", &[b'v'; 20_000], 0).unwrap();
    session.set(b"read", b"v", 0).unwrap();
    for _ in 0..20_000 {
        session.get(b"read").unwrap();
        session.get(b"read").unwrap();
        session.get(b"long").unwrap();
        session.set(b"written", b"v", 0).unwrap();
    }
    let region = path.to_str().unwrap();
    let said = once(&["--region", region]);
    let first = |said: &Value, by: &str| said["hot"]["since_start"][by][0].clone();
    for (by, key) in [("gets", "read"), ("sets", "written"), ("bytes", "long")] {
        assert_eq!(first(&said, by)["key"], key, "{by}");
    }
    let gets = first(&said, "gets")["estimate"].as_u64().unwrap();
    assert!((30_000..50_000).contains(&gets), "{gets} of 40,000");
    assert_eq!(
        said["hot"]["recent"]["gets"],
        Value::from(Vec::<Value>::new()),
        "no get in that second"
    );
    let redacted = once(&["--region", region, "--redact"]);
    assert_eq!(first(&redacted, "gets")["key"], Value::Null);
    assert_eq!(first(&redacted, "gets")["hash"], format!("{:016x}", cache.hash(b"read")));

    // On the screen those of the last interval, by what is chosen.
    let worker = Worker::start(&path);
    let shown = |screen: &str, name: &str| {
        screen
            .lines()
            .any(|line| line.trim_start().starts_with('~') && line.trim_end().ends_with(name))
    };
    let mut terminal = Terminal::start(&["--region", region]);
    for (by, press) in [("GETS", "k"), ("SETS", "k"), ("BYTES", "k"), ("GETS", "")] {
        terminal.until(by, |screen| {
            screen.contains(&format!("{by} PER SECOND")) && shown(screen, "  key")
        });
        terminal.press(press);
    }
    terminal.press("/key\r");
    terminal.until("the filter", |screen| {
        screen.contains("[filter key]") && shown(screen, "  key")
    });
    // A key at once after escape would be one with Alt.
    terminal.press("x/\x1b");
    terminal.until("no filter", |screen| {
        !screen.contains("filter key") && !screen.contains("filter: ")
    });
    terminal.press("/read\r");
    terminal.until("another filter", |screen| {
        screen.contains("[filter read]") && !shown(screen, "  key")
    });
    terminal.press("q");
    assert!(matches!(terminal.end(), WaitStatus::Exited(_, 0)));
    let mut terminal = Terminal::start(&["--region", region, "--redact"]);
    let hash = format!("  #{:016x}", cache.hash(b"key"));
    terminal.until("a hash", |screen| shown(screen, &hash) && !shown(screen, "  key"));
    terminal.press("q");
    assert!(matches!(terminal.end(), WaitStatus::Exited(_, 0)));
    drop(worker);
}

#[test]
fn it_shows_a_region_live_and_obeys_keys() {
    let folder = Scratch::new();
    let path = folder.join("region");
    let cache = open(&path);
    work(&mut cache.session().unwrap(), 5_000);
    let _idle = cache.session().unwrap();
    let worker = Worker::start(&path);
    let pid = worker.0.id().to_string();
    let own = std::process::id().to_string();
    let mut terminal = Terminal::start(&["--region", path.to_str().unwrap()]);
    // The worker counts while this is shown, at a rate that is no zero.
    let rate = |screen: &str, pid: &str| -> Option<f64> {
        let line = screen.lines().find(|line| line.split_whitespace().next() == Some(pid))?;
        line.split_whitespace().nth(4)?.replace(',', "").parse().ok()
    };
    // One call in 256 is measured: on a busy machine an interval may have none.
    let measured = |screen: &str| {
        let get = screen.lines().find(|line| line.starts_with("library   get"));
        get.is_some_and(|get| get.contains('~') && (get.contains("ns") || get.contains("us")))
    };
    let screen = terminal.until("rates and latencies", |screen| {
        rate(screen, &pid).is_some_and(|rate| rate > 0.0) && measured(screen)
    });
    assert!(
        screen.contains("1 item in") && screen.contains("hit ratio 100.0 % now"),
        "{screen}"
    );
    assert!(screen.contains("segments: free "), "{screen}");
    assert_eq!(rate(&screen, &own), Some(0.0), "this process does nothing");
    let first = screen.lines().position(|line| line.contains(&pid));
    assert!(
        first < screen.lines().position(|line| line.trim_start().starts_with(&own)),
        "sorted by rate"
    );
    terminal.press("ss");
    terminal.until("the order", |screen| {
        let at = |pid: &str| screen.lines().position(|line| line.split_whitespace().next() == Some(pid));
        let is_rising = own.parse::<u32>().unwrap() < pid.parse().unwrap();
        let (Some(own), Some(other)) = (at(&own), at(&pid)) else {
            return false;
        };
        screen.contains("[sorted by pid]") && (own < other) == is_rising
    });
    terminal.press(&format!("/{own}\r"));
    terminal.until("the filter", |screen| {
        screen.contains(&format!("[filter {own}]")) && rate(screen, &own).is_some() && rate(screen, &pid).is_none()
    });
    terminal.press("\x1b");
    terminal.until("no filter", |screen| rate(screen, &pid).is_some());
    terminal.press("\x1b[B");
    terminal.until("all but the first", |screen| {
        screen.contains("[process 2 of 2]") && [&pid, &own].iter().filter(|pid| rate(screen, pid).is_some()).count() == 1
    });
    terminal.press("\x1b[A");
    terminal.until("all processes", |screen| {
        rate(screen, &pid).is_some() && rate(screen, &own).is_some() && !screen.contains("[process ")
    });
    terminal.press(" ");
    terminal.until("the pause", |screen| screen.contains("[paused]"));
    terminal.press(" ");
    terminal.until("the end of the pause", |screen| !screen.contains("[paused]"));
    drop(worker);
    terminal.until("the end of the worker", |screen| {
        rate(screen, &pid).is_none() && screen.contains(&own)
    });
    terminal.press("q");
    assert!(matches!(terminal.end(), WaitStatus::Exited(_, 0)));
}

#[test]
fn a_signal_ends_it_and_the_terminal_is_as_it_was() {
    let folder = Scratch::new();
    let path = folder.join("region");
    let _cache = open(&path);
    let mut terminal = Terminal::start(&["--region", path.to_str().unwrap()]);
    terminal.until("the first screen", |screen| screen.contains("keyway top"));
    kill(terminal.pid, Signal::SIGTERM).unwrap();
    assert!(matches!(terminal.end(), WaitStatus::Exited(_, 0)));
}

#[test]
#[allow(unsafe_code, reason = "a signal is ignored")]
fn it_ends_with_its_terminal() {
    let folder = Scratch::new();
    let path = folder.join("region");
    let _cache = open(&path);
    // Under nohup(1) no signal says that the terminal is gone.
    for is_ignored in [false, true] {
        if is_ignored {
            // SAFETY: it runs nothing.
            unsafe { signal(Signal::SIGHUP, SigHandler::SigIgn) }.unwrap();
        }
        let mut terminal = Terminal::start(&["--region", path.to_str().unwrap()]);
        terminal.until("the first screen", |screen| screen.contains("keyway top"));
        let Terminal { pid, file, .. } = terminal;
        drop(file);
        let begun = Instant::now();
        while waitpid(pid, Some(WaitPidFlag::WNOHANG)).unwrap() == WaitStatus::StillAlive {
            if begun.elapsed() > PATIENCE {
                kill(pid, Signal::SIGKILL).unwrap();
                panic!("it goes on without a terminal (SIGHUP ignored: {is_ignored})");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

#[test]
fn it_follows_the_size_of_its_terminal() {
    let folder = Scratch::new();
    let path = folder.join("region");
    let cache = open(&path);
    work(&mut cache.session().unwrap(), 1000);
    let mut terminal = Terminal::start(&["--region", path.to_str().unwrap()]);
    terminal.until("the first screen", |screen| {
        screen.contains("PROTECTS") && screen.contains("q quit")
    });
    for (lines, columns) in [(12, 40), (5, 10), (50, 200)] {
        terminal.resize(lines, columns);
        terminal.until("the other size", |screen| {
            let last = screen.lines().last().unwrap_or_default();
            screen.starts_with("keyway top") && screen.lines().count() == usize::from(lines) && last.starts_with("[sorted b")
        });
    }
    terminal.press("q");
    assert!(matches!(terminal.end(), WaitStatus::Exited(_, 0)));
}

#[test]
fn its_help_explains_it_and_goes_away() {
    let folder = Scratch::new();
    let path = folder.join("region");
    let _cache = open(&path);
    let mut terminal = Terminal::start(&["--region", path.to_str().unwrap()]);
    for (opens, closes) in [("?", "?"), ("h", "\x1b")] {
        terminal.until("the first screen", |screen| screen.starts_with("keyway top"));
        terminal.press(opens);
        terminal.until("the help", |screen| {
            screen.starts_with("keys") && screen.contains("admission pool")
        });
        terminal.press(closes);
    }
    terminal.until("the end of the help", |screen| screen.starts_with("keyway top"));
    terminal.press("q");
    assert!(matches!(terminal.end(), WaitStatus::Exited(_, 0)));
}

#[test]
fn it_stops_and_goes_on_with_its_shell() {
    let folder = Scratch::new();
    let path = folder.join("region");
    let _cache = open(&path);
    // A shell with job control, as a user has one.
    let mut shell = Command::new("sh");
    shell
        .arg("-c")
        .arg("set -m; \"$0\" top --region \"$1\"; echo it stops; fg; echo it ends");
    shell.arg(env!("CARGO_BIN_EXE_keyway")).arg(&path);
    let mut terminal = Terminal::of(shell);
    terminal.until("the first screen", |screen| screen.starts_with("keyway top"));
    terminal.press("\x1a");
    terminal.until_sent("it stops");
    terminal.until("the screen again", |screen| screen.starts_with("keyway top"));
    terminal.press("q");
    terminal.until("the end", |screen| screen.contains("it ends"));
    assert!(matches!(terminal.end(), WaitStatus::Exited(_, 0)));
}

#[test]
fn what_it_cannot_do_is_said_with_the_reason() {
    let folder = Scratch::new();
    let said = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_keyway"))
            .arg("top")
            .args(arguments)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    let absent = folder.join("absent");
    let (code, why) = said(&["--once", "--region", absent.to_str().unwrap()]);
    assert!(code == 2 && why.contains("absent"), "{code}: {why}");
    let path = folder.join("region");
    let _cache = open(&path);
    let (code, why) = said(&["--region", path.to_str().unwrap()]);
    assert!(code == 64 && why.contains("--once"), "{code}: {why}");
}

/// A server with this region and socket, which listens.
fn serve(path: &Path, socket: &Path) -> Worker {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
    command.arg("serve").arg("--region").arg(path).arg("--socket").arg(socket);
    command.args(["--listen", "127.0.0.1:0", "--memory", "8m", "--threads", "2"]);
    let child = command
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let begun = Instant::now();
    while std::os::unix::net::UnixStream::connect(socket).is_err() {
        assert!(begun.elapsed() < PATIENCE, "the server does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    Worker(child)
}

#[test]
fn with_a_server_it_says_what_that_says() {
    let folder = Scratch::new();
    let (path, socket) = (folder.join("region"), folder.join("socket"));
    let server = serve(&path, &socket);
    let mut client = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.write_all(b"set a 0 0 1\r\n1\r\nget a\r\nget b\r\nget c\r\n").unwrap();
    let mut answer = [0; b"STORED\r\nVALUE a 0 1\r\n1\r\nEND\r\nEND\r\nEND\r\n".len()];
    client.read_exact(&mut answer).unwrap();
    let arguments = ["--region", path.to_str().unwrap(), "--server", socket.to_str().unwrap()];
    let said = once(&arguments);
    assert_eq!(said["server"]["pid"], server.0.id());
    // This client, the one that asks, and perhaps the one that has found that the server listens.
    let connections = said["server"]["connections"].as_u64().unwrap();
    assert!((2..=3).contains(&connections), "{connections}");
    assert_eq!(said["server"]["threads"], 2);
    let of = |verb: &str| {
        let rows = said["doors"].as_array().unwrap().iter();
        let mut rows = rows.filter(|row| row["door"] == "text" && row["verb"] == verb);
        rows.next().map(|row| row["measured"].as_u64().unwrap())
    };
    assert_eq!((of("get"), of("set")), (Some(3), Some(1)));
    let door = |pid: u32| {
        let rows = said["processes"].as_array().unwrap();
        rows.iter().find(|row| row["pid"] == pid).map(|row| row["door"].clone())
    };
    assert_eq!(door(server.0.id()), Some("server".into()));

    // A server of another region is refused.
    let (other, other_socket) = (folder.join("other"), folder.join("other-socket"));
    let _another = serve(&other, &other_socket);
    let output = Command::new(env!("CARGO_BIN_EXE_keyway"))
        .args(["top", "--once", "--region", path.to_str().unwrap()])
        .arg("--server")
        .arg(&other_socket)
        .output()
        .unwrap();
    let why = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(1) && why.contains("serves another region"),
        "{why}"
    );
}

/// Lines of what a command prints on a terminal of so many columns, and its exit code.
fn lines_on_terminal(columns: u16, folder: &Path, line: &str) -> (Vec<String>, i32) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
    command.args(line.split(' ')).current_dir(folder);
    let mut terminal = Terminal::sized(command, columns);
    while terminal.take() {}
    let WaitStatus::Exited(_, code) = waitpid(terminal.pid, None).unwrap() else {
        panic!("{line}: killed");
    };
    let sent = String::from_utf8(terminal.sent).unwrap();
    let sent = sent.replace("\x1b[K", "").replace("\r\n", "\n");
    (sent.split(['\r', '\n']).map(str::to_owned).collect(), code)
}

#[test]
fn what_commands_print_fits_a_terminal_of_40_columns() {
    let folder = Scratch::new();
    let (path, socket) = (folder.join("region"), folder.join("socket"));
    let cache = open(&path);
    let mut session = cache.session().unwrap();
    work(&mut session, 20_000);
    session.set(&[b'k'; 60], b"value", 0).unwrap();
    let _server = serve(&path, &socket);
    let _worker = Worker::start(&path);
    for (line, code, shown) in [
        ("stats --region region", 0, "\nreads\n  gets\n    TOTAL       "),
        ("stats --region region --server ./socket", 0, "\nserver\n  process\n    "),
        ("regions .", 0, "\n  PROCESSES  3 ("),
        (
            "regions . --prune --yes --unused-for 1s",
            0,
            "no region of this user is unused for 1s",
        ),
        ("big --region region", 0, "\n  VALUE BYTES  5\n"),
        ("big --region region --prefix :", 0, "\n  ITEMS        1\n"),
        ("hot --region region --once --seconds 1", 0, "  AT LEAST  AT MOST  KEY\n"),
        ("top --region region --once", 0, "\nlibrary\n  VERB        get\n"),
        ("doctor --region region --server ./socket", 0, "\nok       memory        "),
        ("trace absent --region region", 1, "absent"),
        ("copy region copy", 0, "copy: 2 items"),
        ("ping ./socket", 0, "an item was stored"),
        ("memory --region region --seconds 1", 0, "Too little to say more"),
        ("bench --list", 0, "ycsb-b"),
        (
            "bench --workload ycsb-b --door unix,library --against none --items 100 --seconds 0.1 --warmup 0 --repeat 1",
            0,
            "throughput, k/s",
        ),
    ] {
        let (lines, ended) = lines_on_terminal(40, folder.path(), line);
        // What has no blank is not broken.
        let is_too_wide = |line: &&String| line.chars().count() > 40 && line.trim().contains(' ');
        assert_eq!(lines.iter().find(is_too_wide), None, "{line}: {lines:#?}");
        assert!(lines.join("\n").contains(shown), "{line}: {lines:#?}");
        assert!(ended == code || line.starts_with("doctor"), "{line}: {ended}: {lines:#?}");
    }
}

#[test]
fn a_password_is_asked_for_on_the_terminal() {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
    command.args(["password", "ann"]);
    let again = |first: &str, second: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
        command.args(["password", "ann"]);
        let mut terminal = Terminal::of(command);
        terminal.until_sent("Password for ann: ");
        terminal.press(first);
        terminal.until_sent("Again: ");
        terminal.press(second);
        while terminal.take() {}
        let WaitStatus::Exited(_, code) = waitpid(terminal.pid, None).unwrap() else {
            panic!("killed");
        };
        (code, String::from_utf8(terminal.sent).unwrap())
    };
    let (code, said) = again("secret\r", "secret\r");
    assert!(code == 0 && said.contains("\nann:") && !said.contains("secret"), "{said}");
    let (code, said) = again("secret\r", "other\r");
    assert!(code == 64 && said.contains("the two passwords differ"), "{said}");
    // Ctrl-C ends it at once, by the signal that it stands for.
    let mut terminal = Terminal::of(command);
    terminal.until_sent("Password for ann: ");
    terminal.press("sec\x03");
    while terminal.take() {}
    let ended = waitpid(terminal.pid, None).unwrap();
    assert_eq!(ended, WaitStatus::Signaled(terminal.pid, Signal::SIGINT, false));
}
