//! Attacks on what is written: keys that would be lines of their own, and log lines by the thousand.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;

use harness::{Kind, Scratch, ServeOptions, Server, Transport, Wire};

use crate::attack::{Attack, Form, Outcome, judge};
use crate::time::packet;

/// The attacks.
pub const ALL: &[Attack] = &[
    Attack {
        name: "keys-with-line-ends",
        attack: "keys that hold line ends and whole answers, stored by the binary protocol, then asked for and dumped in text",
        promise: "no such key is ever printed as it is: each answer has the lines that it should",
        run: keys_with_line_ends,
    },
    Attack {
        name: "log-flood",
        attack: "a thousand connects at the region's socket that are refused",
        promise: "a line a second at most, with the number of those left out",
        run: log_flood,
    },
    Attack {
        name: "verbosity",
        attack: "verbosity 3 by a client",
        promise: "only of this machine, or logged in; every line of the log has its time and level",
        run: verbosity,
    },
];

const KEY: &[u8] = b"pre\r\nEND\r\nVALUE forged 0 1:x";
const KEY_BASE64: &str = "cHJlDQpFTkQNClZBTFVFIGZvcmdlZCAwIDE6eA==";

fn keys_with_line_ends(_: Form) -> Outcome {
    let server = Server::start(Kind::Keyway, &ServeOptions::default());
    let mut text = server.connect(Transport::Tcp);
    assert_eq!(text.ask("stats detail on").expect("an answer"), "OK");
    let mut binary = server.connect(Transport::Tcp);
    binary.send(&packet(0x01, &[0; 8], KEY, b"v")).expect("a packet may be sent");
    assert_eq!(binary.exactly(24).expect("an answer")[6..8], [0, 0]);
    let mut wrong = Vec::new();
    let mut lines_of = |request: &str, expected: &[&str]| {
        text.send(format!("{request}\r\nversion\r\n").as_bytes())
            .expect("a request may be sent");
        let mut seen = Vec::new();
        loop {
            let line = text.line().expect("an answer");
            if line.starts_with(b"VERSION ") {
                break;
            }
            // metadump ends its lines with a line feed alone.
            seen.extend(
                line.split(|&b| b == b'\n')
                    .map(|line| String::from_utf8_lossy(line).into_owned()),
            );
        }
        let agrees = seen.len() == expected.len() && seen.iter().zip(expected).all(|(seen, start)| seen.starts_with(start));
        if !agrees {
            wrong.push(format!("{request}: {seen:?}"));
        }
    };
    let key = KEY_BASE64;
    lines_of(&format!("mg {key} b k v"), &[&format!("VA 1 k{key} b"), "v"]);
    lines_of(&format!("me {key} b"), &[&format!("ME {key} exp=-1")]);
    lines_of(&format!("ms {key} 1 b k MS\r\nw"), &[&format!("HD k{key} b")]);
    lines_of(&format!("md {key} b k I"), &[&format!("HD k{key} b")]);
    lines_of(
        "stats detail dump",
        &["PREFIX pre%0D%0AEND%0D%0AVALUE%20forged%200%201 get ", "END"],
    );
    lines_of("lru_crawler mgdump all", &[&format!("mg {key} b"), "EN"]);
    lines_of("lru_crawler metadump all", &["key=pre%0D%0AEND", "END"]);
    lines_of("stats cachedump 1 0", &["END"]);
    judge(
        wrong.is_empty(),
        if wrong.is_empty() {
            "8 answers in text, none of them split".to_owned()
        } else {
            wrong.join("; ")
        },
    )
}

/// A connection of a client whose socket has a name, which the kernel chooses (unix(7), "Autobind feature").
fn named(path: &std::path::Path) -> nix::Result<UnixStream> {
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, bind, connect, socket};
    use std::os::fd::AsRawFd;
    let own = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    bind(own.as_raw_fd(), &UnixAddr::new_unnamed())?;
    connect(own.as_raw_fd(), &UnixAddr::new(path)?)?;
    Ok(UnixStream::from(own))
}

fn log_flood(form: Form) -> Outcome {
    let scratch = Scratch::new();
    let socket = scratch.join("region-socket");
    let user = std::fs::metadata("/proc/self")
        .map(|facts| std::os::unix::fs::MetadataExt::uid(&facts))
        .unwrap_or(0);
    let server = Server::start(
        Kind::Keyway,
        &ServeOptions {
            // A client with a name of its own asks for a connection, and there is none to be had.
            keyway_arguments: [
                "--region-socket",
                &socket.display().to_string(),
                "--region-readers",
                &user.to_string(),
                "--connections",
                "1",
            ]
            .map(str::to_owned)
            .to_vec(),
            ..ServeOptions::default()
        },
    );
    let mut only = harness::wait_until("the one connection is free", harness::DEADLINE, || {
        let mut wire = server.try_connect(Transport::Tcp).ok()?;
        (wire.ask("mn").ok()? == "MN").then_some(wire)
    });
    let start = std::time::Instant::now();
    let count = form.pick(1000, 10_000);
    let mut refused = 0;
    for _ in 0..count {
        let mut said = String::new();
        let mut stream = named(&socket).expect("every user may connect");
        let _ = stream.read_to_string(&mut said);
        refused += usize::from(said.contains("reached its limit of connections"));
    }
    let seconds = usize::try_from(start.elapsed().as_secs()).unwrap_or(usize::MAX);
    only.ask("mn").expect("an answer");
    let log = server.log();
    let lines = log.lines().filter(|line| line.contains("was not served")).count();
    judge(
        refused == count && (1..=seconds + 2).contains(&lines),
        format!("{refused} of {count} were refused, in {seconds} s; {lines} lines in the log"),
    )
}

/// An address of this machine that is not loopback's, with a free port: who comes by it comes from elsewhere, as far as a server can tell. Nothing
/// is sent to find it.
fn outer_address() -> Option<SocketAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).ok()?;
    let own = socket.local_addr().ok()?.ip();
    TcpListener::bind((own, 0)).and_then(|listener| listener.local_addr()).ok()
}

fn verbosity(_: Form) -> Outcome {
    let outer = outer_address();
    let listen = outer.map(|address| vec!["--listen".to_owned(), address.to_string()]);
    let server = Server::start(
        Kind::Keyway,
        &ServeOptions {
            keyway_arguments: listen.unwrap_or_default(),
            ..ServeOptions::default()
        },
    );
    let mut local = server.connect(Transport::Tcp);
    if local.ask("verbosity 2").expect("an answer") != "OK" {
        return Err("a client of this machine may not set it".to_owned());
    }
    let stranger = match outer {
        None => "there is no other address here to come from".to_owned(),
        Some(address) => {
            let stream = TcpStream::connect(address).expect("it listens there too");
            let mut wire = Wire::from_tcp(stream).expect("a connection");
            let answer = wire.ask("verbosity 3").expect("an answer");
            if !answer.starts_with("CLIENT_ERROR verbosity not allowed") {
                return Err(format!("a client from elsewhere is answered {answer}"));
            }
            format!("from {} it was refused", address.ip())
        }
    };
    // It makes lines.
    server.stat("pid");
    let log = server.log();
    let lines: Vec<&str> = log.lines().filter(|line| !line.contains(" ready: ")).collect();
    let is_dated = |line: &&str| {
        let (time, rest) = line.split_once(' ').unwrap_or_default();
        time.len() == "2026-11-22T18:27:39.123Z".len()
            && time.ends_with('Z')
            && ["error: ", "warning: ", "info: ", "debug: ", "trace: "]
                .iter()
                .any(|level| rest.starts_with(level))
    };
    let odd: Vec<&str> = lines.iter().copied().filter(|line| !is_dated(line)).collect();
    judge(
        !lines.is_empty() && odd.is_empty(),
        format!("{stranger}; {} lines, all with time and level{}", lines.len(), odd.join("\n")),
    )
}
