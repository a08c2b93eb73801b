//! Attacks by datagrams, whose sender may be forged.

use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use harness::{Kind, Server, Transport};

use crate::attack::{Attack, Form, Outcome, judge};
use crate::siege::one_worker;
use crate::time::{get_line, packet, store_large};

/// The attacks.
pub const ALL: &[Attack] = &[
    Attack {
        name: "datagrams-change-nothing",
        attack: "cache_memlimit, flush_all, shutdown, verbosity, dumps, watch and the rest by datagram, in text and binary",
        promise: "each is refused, and the server is as it was",
        run: change_nothing,
    },
    Attack {
        name: "amplification",
        attack: "15 bytes that ask for 1 MB, multi-gets and requests by the thousand in a datagram",
        promise: "an answer is at most --udp-answer-max (16 KiB) long, and says that it was cut",
        run: amplification,
    },
];

/// The payload that answers this one, and the bytes on the wire that it took.
fn ask(server: &Server, payload: &[u8]) -> (Vec<u8>, usize) {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    socket.connect(server.address()).expect("an address");
    socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a timeout");
    socket
        .send(&[&[0, 1, 0, 0, 0, 1, 0, 0], payload].concat())
        .expect("a datagram may be sent");
    let (mut answer, mut wire_len, mut room) = (Vec::new(), 0, [0; 2048]);
    loop {
        let len = socket.recv(&mut room).expect("an answer");
        answer.extend_from_slice(&room[8..len]);
        wire_len += len;
        let number = |at: usize| u16::from_be_bytes([room[at], room[at + 1]]);
        if number(2) + 1 >= number(4) {
            return (answer, wire_len);
        }
    }
}

fn change_nothing(_: Form) -> Outcome {
    let mut server = Server::start(Kind::Keyway, &one_worker(&["--allow-shutdown"]));
    let mut wire = server.connect(Transport::Tcp);
    assert_eq!(wire.ask("set kept 0 0 1\r\nx").expect("an answer"), "STORED");
    let requests = [
        "cache_memlimit 1024",
        "flush_all",
        "flush_all noreply",
        "shutdown",
        "verbosity 3",
        "stats reset",
        "stats detail on",
        "stats detail dump",
        "stats cachedump 1 0",
        "stats conns",
        "lru_crawler metadump all",
        "lru_crawler mgdump all",
        "watch fetchers",
        "slabs automove 1",
        "refresh_certs",
    ];
    let limit = server.stat("limit_maxbytes");
    for request in requests {
        let (answer, _) = ask(&server, format!("{request}\r\n").as_bytes());
        if answer != b"SERVER_ERROR not over UDP; use TCP or a Unix socket\r\n" {
            return Err(format!("{request}: {}", answer.escape_ascii()));
        }
    }
    for (opcode, key) in [
        (0x08, b"".as_slice()),
        (0x18, b""),
        (0x10, b"reset"),
        (0x10, b"detail on"),
        (0x10, b"detail dump"),
    ] {
        let (answer, _) = ask(&server, &packet(opcode, b"", key, b""));
        if !answer.ends_with(b"not over UDP; use TCP or a Unix socket") {
            return Err(format!("opcode {opcode:#x}: {}", answer.escape_ascii()));
        }
    }
    let settings = settings(&server);
    let is_same = wire.ask("get kept").expect("an answer") == "VALUE kept 0 1"
        && server.stat("limit_maxbytes") == limit
        && settings.contains("STAT verbosity 0")
        && settings.contains("STAT detail_enabled no")
        && server.ended().is_none();
    judge(is_same, format!("{} requests were refused", requests.len() + 5))
}

fn settings(server: &Server) -> String {
    let mut wire = server.connect(Transport::Tcp);
    wire.send(b"stats settings\r\n").expect("a request may be sent");
    let mut text = String::new();
    while !text.ends_with("END\n") {
        text.push_str(&String::from_utf8_lossy(&wire.line().expect("an answer")));
        text.push('\n');
    }
    text
}

fn amplification(_: Form) -> Outcome {
    const ANSWER_MAX: usize = 16 << 10;
    const CUT: &[u8] = b"SERVER_ERROR the rest is too long for UDP; use TCP or a Unix socket\r\n";
    let server = Server::start(Kind::Keyway, &one_worker(&[]));
    store_large(&server);
    let mut wire = server.connect(Transport::Tcp);
    let value = "v".repeat(1000);
    assert_eq!(
        wire.ask(&format!("set small 0 0 1000\r\n{value}")).expect("an answer"),
        "STORED"
    );
    let mut longest = 0;
    for payload in [
        b"get large\r\n".to_vec(),
        b"mg large v\r\n".to_vec(),
        b"gat 0 large\r\n".to_vec(),
        get_line("small", 10_000),
        b"get small\r\n".repeat(5000),
        b"mg small v\r\n".repeat(5000),
        b"stats\r\n".repeat(8000),
        b"mn\r\n".repeat(15_000),
    ] {
        let (answer, wire_len) = ask(&server, &payload);
        longest = longest.max(wire_len);
        // 12 datagrams with 8 bytes each before what they carry.
        if answer.len() > ANSWER_MAX || wire_len > ANSWER_MAX + 12 * 8 || !answer.ends_with(CUT) {
            let head = payload[..payload.len().min(20)].escape_ascii();
            return Err(format!(
                "{head}… bought {wire_len} bytes that end {}",
                answer[answer.len().saturating_sub(80)..].escape_ascii()
            ));
        }
    }
    let (answer, _) = ask(&server, &packet(0x00, b"", b"large", b""));
    longest = longest.max(answer.len());
    // Who asks for more by the server's options gets it. (As much as this socket holds at a time.)
    let roomy = Server::start(Kind::Keyway, &one_worker(&["--udp-answer-max", "1m"]));
    let value = "x".repeat(50_000);
    let stored = roomy.connect(Transport::Tcp).ask(&format!("set longer 0 0 50000\r\n{value}"));
    assert_eq!(stored.expect("an answer"), "STORED");
    let (whole, _) = ask(&roomy, b"get longer\r\n");
    judge(
        longest <= ANSWER_MAX + 12 * 8 && whole.ends_with(b"x\r\nEND\r\n"),
        format!("the longest answer was {longest} bytes; with --udp-answer-max 1m a value of 50 KB came whole"),
    )
}
