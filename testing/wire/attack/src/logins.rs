//! Attacks on a server whose clients have to log in, by those who cannot.

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use harness::{DEADLINE, Kind, Scratch, ServeOptions, Server, Transport, Wire, wait_until};

use crate::attack::{Attack, Form, Outcome, judge};
use crate::ordinary::kib;
use crate::time::packet;

/// The attacks.
pub const ALL: &[Attack] = &[
    Attack {
        name: "trickled-logins",
        attack: "as many connections as there may be that send a byte now and then, and never log in",
        promise: "who knows the password gets in at once, and the others are closed 10 s after their connect",
        run: trickled_logins,
    },
    Attack {
        name: "guessed-passwords",
        attack: "one password after the other, on several connections",
        promise: "each guess takes a second, three end a connection; they are counted, and logged once a second",
        run: guessed_passwords,
    },
    Attack {
        name: "open-password-file",
        attack: "the password file can be read by all users",
        promise: "the server does not start, and says what to do; a second look (SIGHUP) leaves the old users in force",
        run: open_password_file,
    },
    Attack {
        name: "before-any-login",
        attack: "quit, other commands and packets of the binary protocol before a login, and data that is no login",
        promise: "quit ends the connection, the others are refused, and a packet gets the error in the binary protocol",
        run: before_any_login,
    },
];

const LOGIN: &str = "set auth 0 0 8\r\nann pass";

/// A file with one user, for this one to read.
pub fn password_file(scratch: &Scratch) -> String {
    let path = scratch.join("passwords");
    std::fs::write(&path, "ann:pass\n").expect("a file in the scratch directory");
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).expect("its mode can be set");
    path.display().to_string()
}

fn options(arguments: &[&str]) -> ServeOptions {
    ServeOptions {
        threads: 2,
        keyway_arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
        ..ServeOptions::default()
    }
}

fn start(arguments: &[&str]) -> (Server, Scratch) {
    let scratch = Scratch::new();
    let file = password_file(&scratch);
    let server = Server::start(Kind::Keyway, &options(&[&["--auth-file", &file], arguments].concat()));
    (server, scratch)
}

fn stat_after_login(server: &Server, name: &str) -> u64 {
    let mut wire = server.connect(Transport::Tcp);
    assert_eq!(wire.ask(LOGIN).expect("an answer"), "STORED");
    wire.send(b"stats\r\n").expect("a request may be sent");
    let prefix = format!("STAT {name} ");
    loop {
        let line = String::from_utf8_lossy(&wire.line().expect("an answer")).into_owned();
        if let Some(value) = line.strip_prefix(&prefix) {
            return value.parse().expect("a number");
        }
        assert_ne!(line, "END", "stats has {name}");
    }
}

fn trickled_logins(_: Form) -> Outcome {
    const CONNECTIONS: usize = 50;
    let (server, _scratch) = start(&["--connections", "50"]);
    let mut strangers: Vec<Wire> = (0..CONNECTIONS).map(|_| server.connect(Transport::Tcp)).collect();
    let mut ended = [false; CONNECTIONS];
    let start = Instant::now();
    let (mut slowest, mut logins) = (Duration::ZERO, 0);
    // Others hold their places as long as they can, and one byte at a time.
    while start.elapsed() < Duration::from_secs(14) && ended.iter().any(|ended| !ended) {
        for (wire, ended) in strangers.iter_mut().zip(&mut ended) {
            wire.set_timeout(Duration::from_millis(1)).expect("a timeout");
            *ended |= wire.send(b"s").is_err() || wire.fill().is_ok_and(|more| !more);
        }
        let asked = Instant::now();
        let mut friend = server.connect(Transport::Tcp);
        match friend.ask(LOGIN).as_deref() {
            Ok("STORED") => slowest = slowest.max(asked.elapsed()),
            other => return Err(format!("after {:?} a login is answered {other:?}", start.elapsed())),
        }
        logins += 1;
        std::thread::sleep(Duration::from_millis(100));
    }
    let left = ended.iter().filter(|ended| !**ended).count();
    judge(
        left == 0 && slowest < Duration::from_secs(3),
        format!(
            "{logins} logins meanwhile, the slowest in {slowest:.1?}; {left} strangers are left after {:.1?}",
            start.elapsed()
        ),
    )
}

fn guessed_passwords(_: Form) -> Outcome {
    const GUESSERS: usize = 8;
    let (server, _scratch) = start(&[]);
    let start = Instant::now();
    let mut guessers: Vec<Wire> = (0..GUESSERS).map(|_| server.connect(Transport::Tcp)).collect();
    for wire in &mut guessers {
        wire.send("set auth 0 0 8\r\nann past\r\n".repeat(10).as_bytes())
            .expect("guesses may be sent");
    }
    let mut answers = 0;
    for wire in &mut guessers {
        while let Ok(line) = wire.line() {
            if line != b"CLIENT_ERROR authentication failure" {
                return Err(format!("a guess is answered {}", line.escape_ascii()));
            }
            answers += 1;
        }
    }
    let (seconds, errors) = (start.elapsed().as_secs_f32(), stat_after_login(&server, "auth_errors"));
    let log = server.log();
    let lines = log.lines().filter(|line| line.contains("a login failed")).count();
    judge(
        answers == 3 * GUESSERS
            && errors == 3 * GUESSERS as u64
            && seconds >= 2.9
            && (1..=6).contains(&lines)
            && log.contains("tcp:127.0.0.1:"),
        format!(
            "{answers} of {} guesses were answered, in {seconds:.1} s; auth_errors {errors}; {lines} lines in the log",
            10 * GUESSERS
        ),
    )
}

fn open_password_file(_: Form) -> Outcome {
    let scratch = Scratch::new();
    let file = password_file(&scratch);
    let mode = |mode| std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).expect("its mode can be set");
    mode(0o644);
    let said = match Server::try_start(Kind::Keyway, &options(&["--auth-file", &file])) {
        Ok(_) => return Err("a server uses a file that all users can read".to_owned()),
        Err(said) => said,
    };
    if !said.contains("644") || !said.contains("chmod 600") {
        return Err(format!("it says: {said}"));
    }
    mode(0o600);
    let server = Server::start(Kind::Keyway, &options(&["--auth-file", &file, "-v"]));
    std::fs::write(&file, "eve:word\n").expect("the file can be written");
    mode(0o666);
    let hung_up = std::process::Command::new("/bin/sh")
        .args(["-c", &format!("kill -HUP {}", server.pid())])
        .status();
    assert!(hung_up.is_ok_and(|status| status.success()), "a signal can be sent");
    wait_until("the file is looked at again", DEADLINE, || {
        server.log().contains("the old users remain valid").then_some(())
    });
    let friend = server.connect(Transport::Tcp).ask(LOGIN).expect("an answer");
    judge(
        friend == "STORED",
        format!("the start was refused; after SIGHUP the old user is answered {friend}"),
    )
}

fn before_any_login(_: Form) -> Outcome {
    let (server, _scratch) = start(&[]);
    let ends = |wire: &mut Wire| wire.fill().is_ok_and(|more| !more);
    let mut wire = server.connect(Transport::Tcp);
    wire.send(b"quit\r\n").expect("it may be sent");
    let quit_ends = ends(&mut wire);
    let mut wire = server.connect(Transport::Tcp);
    for request in ["get a", "stats", "flush_all", "shutdown", "mn", "watch fetchers"] {
        let answer = wire.ask(request).expect("an answer");
        if answer != "CLIENT_ERROR unauthenticated" {
            return Err(format!("{request}: {answer}"));
        }
    }
    let mut refused = 0;
    for opcode in [0x00, 0x01, 0x08, 0x0a, 0x10, 0x1b, 0x22] {
        let mut wire = server.connect(Transport::Tcp);
        let (mechanism, data): (&[u8], &[u8]) = if opcode == 0x22 {
            (b"PLAIN", b"\0ann\0past")
        } else {
            (b"", b"")
        };
        wire.send(&packet(opcode, b"", mechanism, data))
            .expect("a packet may be sent");
        if opcode == 0x22 {
            // A wrong password does not end it, but three do.
            wire.send(&packet(opcode, b"", mechanism, data).repeat(2))
                .expect("packets may be sent");
            for _ in 0..2 {
                let head = wire.exactly(24).expect("an answer");
                wire.exactly(head[11].into()).expect("its text");
            }
        }
        let head = wire.exactly(24).expect("an answer");
        let text = wire.exactly(head[11].into()).expect("its text");
        refused +=
            usize::from(head[..2] == [0x81, opcode] && head[6..8] == [0, 0x20] && text == b"Auth failure." && ends(&mut wire));
    }
    let mut wire = server.connect(Transport::Tcp);
    wire.send(&packet(0x07, b"", b"", b"")).expect("a packet may be sent");
    let binary_quit_ends = wire.exactly(24).is_ok() && ends(&mut wire);
    judge(
        quit_ends && binary_quit_ends && refused == 7,
        format!(
            "{refused} of 7 packets were refused; quit ends: {quit_ends}, in binary: {binary_quit_ends}; {}",
            kib(server.anonymous_memory().unwrap_or(0))
        ),
    )
}
