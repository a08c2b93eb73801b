//! What is refused before its value has come is answered behind its value, by Keyway as by a real memcached: a client that is still
//! sending takes an answer for a broken connection (spymemcached does). Nothing of the value is kept meanwhile.
//! Guards: P35

use std::time::Duration;

use harness::{DEADLINE, Kind, ServeOptions, Server, Transport, Wire, wait_until};

/// More than what sockets hold.
const VALUE_LEN: usize = 20 << 20;
/// How much of the value is sent before the answer is looked for.
const FIRST_LEN: usize = 64 << 10;
/// What a server may keep of a value that it drops, bytes: its buffers.
const KEPT_MAX: u64 = 4 << 20;

/// A request that is refused by its first bytes: these, the value, the rest, and what is answered.
struct Refused {
    what: &'static str,
    head: Vec<u8>,
    end: &'static [u8],
    answer: Vec<u8>,
}

fn text(what: &'static str, line: &str, answer: &str) -> Refused {
    Refused {
        what,
        head: format!("{line}\r\n").into_bytes(),
        end: b"\r\n",
        answer: format!("{answer}\r\n").into_bytes(),
    }
}

fn packet(what: &'static str, opcode: u8) -> Refused {
    let body = "Too large.";
    let header = |magic: u8, key: u8, extras: u8, status: u8, len: usize| {
        let len = u32::try_from(len).expect("32 bits").to_be_bytes();
        let mut bytes = vec![magic, opcode, 0, key, extras, 0, 0, status];
        bytes.extend(len);
        bytes.extend([1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0]);
        bytes
    };
    Refused {
        what,
        head: [&header(0x80, 4, 8, 0, VALUE_LEN + 12)[..], &[0; 8], b"late"].concat(),
        end: b"",
        answer: [&header(0x81, 0, 0, 3, body.len())[..], body.as_bytes()].concat(),
    }
}

fn cases() -> Vec<Refused> {
    let (len, large) = (VALUE_LEN, "SERVER_ERROR object too large for cache");
    let bad = "CLIENT_ERROR bad command line format";
    vec![
        text("set", &format!("set late 0 0 {len}"), large),
        text("add", &format!("add late 0 0 {len}"), large),
        text("append", &format!("append late 0 0 {len}"), large),
        text("cas", &format!("cas late 0 0 {len} 1"), large),
        text("ms", &format!("ms late {len}"), large),
        text("set with bad flags", &format!("set late x 0 {len}"), bad),
        text("ms with a bad flag", &format!("ms late {len} !"), "CLIENT_ERROR invalid flag"),
        packet("binary set", 0x01),
        packet("binary add", 0x02),
    ]
}

/// Requests that memcacheds answer in ways of their own: 1.6.18 reads the value of the first as commands, and 1.6.45 closes at the second.
const NOT_MEMCACHEDS: [&str; 2] = ["set with bad flags", "ms with a bad flag"];

/// Sends the request in two parts; nothing may come between them, and the answer behind the second.
fn hold(server: &Server, wire: &mut Wire, case: &Refused) {
    let (what, name) = (case.what, server.kind().name());
    let read_before = server.stat("bytes_read");
    let memory_before = server.anonymous_memory();
    let value = vec![b'v'; VALUE_LEN];
    wire.send(&case.head).expect("the head");
    wire.send(&value[..FIRST_LEN]).expect("the first part of the value");
    // The server has one worker: it answers another connection when it has done what it does with those bytes.
    let sent = (case.head.len() + FIRST_LEN) as u64;
    wait_until("the server has read what was sent", DEADLINE, || {
        (server.stat("bytes_read") - read_before >= sent).then_some(())
    });
    server.stat("bytes_read");
    wire.set_timeout(Duration::from_millis(1)).expect("a timeout");
    let early = wire.fill();
    assert!(
        early.is_err() && wire.pending().is_empty(),
        "{name}: {what}: {early:?} before the value is complete: {}",
        wire.pending().escape_ascii()
    );
    wire.set_timeout(DEADLINE).expect("a timeout");
    let (middle, last) = value[FIRST_LEN..].split_at(VALUE_LEN - FIRST_LEN - 1);
    wire.send(middle).expect("nearly all of the value");
    if let (Some(before), Some(now)) = (memory_before, server.anonymous_memory()) {
        assert!(
            now.saturating_sub(before) < KEPT_MAX,
            "{name}: {what}: {} bytes are kept of a value that is refused",
            now - before
        );
    }
    wire.send(&[last, case.end].concat()).expect("the rest");
    let answer = wire.exactly(case.answer.len()).expect("an answer");
    assert_eq!(
        answer.escape_ascii().to_string(),
        case.answer.escape_ascii().to_string(),
        "{name}: {what}"
    );
}

#[test]
fn a_refused_value_is_answered_when_it_has_come() {
    for kind in Kind::to_test("late answers to refused values") {
        let server = Server::start(
            kind,
            &ServeOptions {
                threads: 1,
                ..ServeOptions::default()
            },
        );
        for case in cases() {
            if kind == Kind::Memcached && NOT_MEMCACHEDS.contains(&case.what) {
                continue;
            }
            let mut wire = server.connect(Transport::Tcp);
            hold(&server, &mut wire, &case);
            // What follows is in step.
            if case.end.is_empty() {
                wire.send(&[&[0x80, 0x0a][..], &[0; 22]].concat()).expect("a noop");
                assert_eq!(wire.exactly(24).expect("its answer")[..2], [0x81, 0x0a]);
            } else {
                assert_eq!(wire.ask("mn").expect("an answer"), "MN", "{}", case.what);
            }
        }
    }
}

/// The item that a refused value was to replace is gone when its line has come, not when its value has: as in memcached.
#[test]
fn a_refused_value_takes_its_item_away_at_once() {
    for kind in Kind::to_test("what a refused value replaces") {
        let server = Server::start(
            kind,
            &ServeOptions {
                threads: 1,
                ..ServeOptions::default()
            },
        );
        let mut other = server.connect(Transport::Tcp);
        other.send(b"set late 0 0 1\r\na\r\n").expect("it takes a request");
        assert_eq!(other.line().expect("an answer"), b"STORED");
        let mut wire = server.connect(Transport::Tcp);
        wire.send(format!("set late 0 0 {VALUE_LEN}\r\n").as_bytes())
            .expect("the line");
        wait_until("the old value is gone", DEADLINE, || {
            (other.ask("mg late").expect("an answer") == "EN").then_some(())
        });
    }
}
