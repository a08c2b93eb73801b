//! Attacks on the server's memory: clients that make it hold what they sent, or what they do not read.

use std::io::ErrorKind;
use std::time::Duration;

use harness::{Kind, ServeOptions, Server, Transport, Wire};

use crate::attack::{Attack, Form, Outcome, judge};
use crate::ordinary::{Ordinary, kib};
use crate::time::{get_line, store_large};

/// The attacks.
pub const ALL: &[Attack] = &[
    Attack {
        name: "endless-get",
        attack: "get lines of 64 MiB without an end, on many connections",
        promise: "a line of keys binds at most 64 KiB and a little, whatever its length",
        run: endless_get,
    },
    Attack {
        name: "unread-answers",
        attack: "large values, dumps, prefixes and statistics that no client reads, on many connections",
        promise: "a connection binds 256 KiB of answers and one value",
        run: unread_answers,
    },
    Attack {
        name: "unfinished-values",
        attack: "sets of 1 MB that stop short of their end, on as many connections as there may be, half of which then also trickle",
        promise: "all connections together hold no more than --connection-memory, the worst ones are closed, and others are served",
        run: unfinished_values,
    },
    Attack {
        name: "before-login",
        attack: "bytes of all kinds from connections that have not logged in",
        promise: "each of them binds a few KiB",
        run: before_login,
    },
];

/// What a server may grow by besides what connections hold: its threads' own buffers, and what the allocator keeps.
const SLACK: u64 = 24 << 20;

/// What answers alone may make a server grow by without the account's knowing.
const UNCOUNTED: u64 = 8 << 20;

fn server(arguments: &[&str]) -> Server {
    let options = ServeOptions {
        threads: 2,
        memory_mb: 128,
        keyway_arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
        ..ServeOptions::default()
    };
    Server::start(Kind::Keyway, &options)
}

/// Sends as much of it as the server takes; the connection, unless the server has closed it.
fn send_what_goes(server: &Server, bytes: &[u8]) -> Option<Wire> {
    let mut wire = server.try_connect(Transport::Tcp).ok()?;
    wire.set_timeout(Duration::from_millis(100)).expect("a timeout");
    match wire.send(bytes) {
        Err(e) if !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => None,
        _ => Some(wire),
    }
}

/// Serves an ordinary client for a while, then compares what the server has grown by with what it may.
fn within(server: &Server, before: Option<u64>, count: usize, each: u64) -> Outcome {
    let mut ordinary = Ordinary::new(server);
    ordinary.waits(Duration::from_millis(500));
    let bound = count as u64 * each + SLACK;
    let (Some(before), Some(after)) = (before, server.anonymous_memory()) else {
        return Ok("no procfs here".to_owned());
    };
    let growth = after.saturating_sub(before);
    judge(
        growth <= bound,
        format!(
            "{count} connections: {} more, {} held for them at most; at most {}",
            kib(growth),
            kib(server.stat("keyway_connection_memory_peak")),
            kib(bound)
        ),
    )
}

fn endless_get(form: Form) -> Outcome {
    let server = server(&[]);
    Ordinary::new(&server).waits(Duration::from_millis(100));
    let before = server.anonymous_memory();
    let count = form.pick(12, 64);
    let line = [get_line(&"k".repeat(250), form.pick(4, 64) << 12), b"k".repeat(200)].concat();
    let line: Vec<u8> = line.into_iter().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect();
    let wires: Vec<_> = (0..count).filter_map(|_| send_what_goes(&server, &line)).collect();
    assert_eq!(wires.len(), count, "no connection is closed for it");
    within(&server, before, count, 128 << 10)
}

fn unread_answers(form: Form) -> Outcome {
    let server = server(&[]);
    store_large(&server);
    let mut wire = server.connect(Transport::Tcp);
    assert_eq!(wire.ask("stats detail on").expect("an answer"), "OK");
    let prefixes: String = (0..70_000).map(|n| format!("mg {n:0200}:x q\r\n")).collect();
    wire.send(format!("{prefixes}mn\r\n").as_bytes()).expect("gets may be sent");
    assert_eq!(wire.line().expect("an answer"), b"MN");
    assert_eq!(wire.ask("stats detail off").expect("an answer"), "OK");
    let before = server.anonymous_memory();
    let requests = [
        b"get large\r\n".repeat(300),
        get_line("large", 300),
        b"mg large v\r\n".repeat(300),
        b"stats detail dump\r\n".repeat(100),
        b"stats\r\nstats settings\r\n".repeat(2000),
        b"lru_crawler metadump all\r\n".repeat(2000),
    ];
    let count = form.pick(48, 200);
    let wires: Vec<_> = requests
        .iter()
        .cycle()
        .take(count)
        .filter_map(|request| send_what_goes(&server, request))
        .collect();
    assert_eq!(wires.len(), count, "no connection is closed for it");
    // The account has what is held: with the room that a buffer has, and not only what is in it. So its peak bounds the growth.
    Ordinary::new(&server).waits(Duration::from_millis(500));
    let (Some(before), Some(after)) = (before, server.anonymous_memory()) else {
        return Ok("no procfs here".to_owned());
    };
    let (growth, peak) = (after.saturating_sub(before), server.stat("keyway_connection_memory_peak"));
    judge(
        growth <= peak + UNCOUNTED && peak <= 64 << 20,
        format!(
            "{count} connections: {} more, {} in the account at most",
            kib(growth),
            kib(peak)
        ),
    )
}

fn unfinished_values(form: Form) -> Outcome {
    const LIMIT: u64 = 16 << 20;
    let server = server(&["--connection-memory", "16m"]);
    Ordinary::new(&server).waits(Duration::from_millis(100));
    let before = server.anonymous_memory();
    let part = [b"set begun 0 0 1000000\r\n".as_slice(), &[b'x'; 700_000]].concat();
    let count = form.pick(60, 400);
    let mut wires: Vec<_> = (0..count).filter_map(|_| send_what_goes(&server, &part)).collect();
    for wire in wires.iter_mut().step_by(2) {
        let _ = wire.send(b"x");
    }
    // Others get their large values through: the connection that is in the way ends.
    store_large(&server);
    let mut wire = server.connect(Transport::Tcp);
    wire.send(b"get large\r\n").expect("a get may be sent");
    wire.exactly(1_000_000).expect("a value");
    let closed = server.stat("keyway_connections_closed_for_memory");
    let log = server.log();
    if closed == 0 || !log.contains("--connection-memory") {
        return Err(format!(
            "{closed} connections were closed for memory, and the log says: {log}"
        ));
    }
    let grown = within(&server, before, 1, LIMIT)?;
    Ok(format!("{closed} were closed, with a line in the log; {grown}"))
}

fn before_login(form: Form) -> Outcome {
    let scratch = harness::Scratch::new();
    let file = crate::logins::password_file(&scratch);
    let server = server(&["--auth-file", &file]);
    let mut ordinary = server.connect(Transport::Tcp);
    assert_eq!(ordinary.ask("set auth 0 0 8\r\nann pass").expect("an answer"), "STORED");
    ordinary.ask("mn").expect("an answer");
    let before = server.anonymous_memory();
    let openings: [Vec<u8>; 6] = [
        vec![b'x'; 2000],
        [b"set auth 0 0 2000\r\n".as_slice(), &[b'x'; 1999]].concat(),
        get_line("k", 900),
        vec![0x80; 20],
        b"set auth 0 0 20\r\n".to_vec(),
        b"mn\r\n".repeat(100_000),
    ];
    let count = form.pick(300, 900);
    let wires: Vec<_> = openings
        .iter()
        .cycle()
        .take(count)
        .filter_map(|opening| send_what_goes(&server, opening))
        .collect();
    for _ in 0..100 {
        ordinary.ask("mn").expect("an answer");
    }
    let (Some(before), Some(after)) = (before, server.anonymous_memory()) else {
        return Ok("no procfs here".to_owned());
    };
    let (growth, bound) = (after.saturating_sub(before), wires.len() as u64 * (8 << 10) + (2 << 20));
    judge(
        growth <= bound,
        format!("{} connections: {} more; at most {}", wires.len(), kib(growth), kib(bound)),
    )
}
