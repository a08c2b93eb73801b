//! Bad clients: slow ones, ones that never read, very many, half-closed ones, and ones that send garbage. Meanwhile an ordinary
//! client must be served, the server's own memory must stay bounded, and afterwards nothing of them may be left.
//! Guards: P37

use std::io::ErrorKind;
use std::net::Shutdown;
use std::time::Duration;

use harness::{DEADLINE, Kind, Random, ServeOptions, Server, Transport, Wire, say, wait_until};
use hostile::is_served;

/// Runs a test against each server there is.
fn against_each(test: &str, options: &ServeOptions, attack: impl Fn(&Server)) {
    for kind in Kind::to_test(test) {
        let mut server = Server::start(kind, options);
        attack(&server);
        is_served(&mut server.connect(options.transport), 1);
        assert_eq!(server.ended(), None, "{test}: {} ended:\n{}", kind.name(), server.log());
        assert!(
            !server.log().contains("panicked"),
            "{test}: {}:\n{}",
            kind.name(),
            server.log()
        );
    }
}

#[test]
fn slow_clients_hold_no_other_up() {
    const SLOW: usize = 200;
    against_each("slow-loris", &ServeOptions::default(), |server| {
        let mut slow: Vec<Wire> = (0..SLOW).map(|_| server.connect(Transport::Tcp)).collect();
        let mut ordinary = server.connect(Transport::Tcp);
        let request = |n: usize| format!("set slow:{n} 0 0 20\r\n01234567890123456789\r\nget slow:{n}\r\n").into_bytes();
        let longest = request(SLOW).len();
        for round in 0..longest {
            for (n, wire) in slow.iter_mut().enumerate() {
                if let Some(byte) = request(n).get(round) {
                    wire.send(&[*byte]).expect("a slow client may send");
                }
            }
            is_served(&mut ordinary, round);
        }
        for (n, wire) in slow.iter_mut().enumerate() {
            assert_eq!(wire.line().expect("an answer"), b"STORED");
            assert_eq!(wire.line().expect("an answer"), format!("VALUE slow:{n} 0 20").as_bytes());
            assert_eq!(wire.line().expect("an answer"), b"01234567890123456789");
            assert_eq!(wire.line().expect("an answer"), b"END");
        }
    });
}

/// What the server's own memory may grow by while clients do not read: its buffers for eight connections, generously.
const GROWTH_MAX: u64 = 96 << 20;

#[test]
fn clients_that_never_read_bind_no_memory() {
    const VALUE_LEN: usize = 1_000_000;
    against_each(
        "clients that never read",
        &ServeOptions {
            memory_mb: 256,
            ..ServeOptions::default()
        },
        |server| {
            let mut ordinary = server.connect(Transport::Tcp);
            let value = vec![b'x'; VALUE_LEN];
            let set = [format!("set big 0 0 {VALUE_LEN}\r\n").as_bytes(), &value, b"\r\n"].concat();
            ordinary.send(&set).expect("a set may be sent");
            assert_eq!(ordinary.line().expect("an answer"), b"STORED");
            // a first answer lets the server allocate what it needs for one
            ordinary.send(b"get big\r\n").expect("a get may be sent");
            ordinary
                .exactly(format!("VALUE big 0 {VALUE_LEN}\r\n").len() + VALUE_LEN + "\r\nEND\r\n".len())
                .expect("a value");
            let before = server.anonymous_memory();

            let one_by_one = "get big\r\n".repeat(2_000);
            let in_one_line = format!("get{}\r\n", " big".repeat(400));
            let meta = "mg big v\r\n".repeat(2_000);
            let dumps = "stats\r\n".repeat(2_000);
            let mut deaf: Vec<Wire> = Vec::new();
            for request in [&one_by_one, &in_one_line, &meta, &dumps].into_iter().cycle().take(8) {
                let mut wire = server.connect(Transport::Tcp);
                wire.set_timeout(Duration::from_millis(200)).expect("a timeout");
                match wire.send(request.as_bytes()) {
                    // a server that has stopped reading is right to
                    Err(e) if !matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => panic!("sending: {e}"),
                    _ => deaf.push(wire),
                }
                is_served(&mut ordinary, deaf.len());
            }
            for round in 0..200 {
                is_served(&mut ordinary, round);
            }
            if let (Some(before), Some(after)) = (before, server.anonymous_memory()) {
                let growth = after.saturating_sub(before);
                say(&format!(
                    "clients that never read: {} grew by {} KB",
                    server.kind().name(),
                    growth >> 10
                ));
                // memcached's items are anonymous memory too; it takes them in pages of 1 MB
                assert!(
                    growth < GROWTH_MAX,
                    "{} grew by {growth} bytes for 8 clients that do not read",
                    server.kind().name()
                );
            }
            drop(deaf);
            is_served(&mut ordinary, 0);
        },
    );
}

#[test]
fn values_that_are_only_begun_bind_no_memory() {
    const BEGUN: usize = 400;
    if !Kind::keyway_is_wanted() {
        // memcached takes an item for each at once, and then has none left: it cannot be a model here
        return;
    }
    let server = Server::start(
        Kind::Keyway,
        &ServeOptions {
            memory_mb: 16,
            ..ServeOptions::default()
        },
    );
    let mut ordinary = server.connect(Transport::Tcp);
    is_served(&mut ordinary, 0);
    let before = server.anonymous_memory();
    let begin = |n: usize| {
        let mut wire = server.connect(if n.is_multiple_of(2) {
            Transport::Tcp
        } else {
            Transport::Unix
        });
        let request = if n.is_multiple_of(3) {
            format!("ms begun:{n} 1000000\r\nbegun")
        } else {
            format!("set begun:{n} 0 0 1000000\r\nbegun")
        };
        wire.send(request.as_bytes()).expect("a part may be sent");
        wire
    };
    let begun: Vec<Wire> = (0..BEGUN).map(begin).collect();
    for round in 0..200 {
        is_served(&mut ordinary, round);
    }
    if let (Some(before), Some(after)) = (before, server.anonymous_memory()) {
        let growth = after.saturating_sub(before);
        say(&format!("values that are only begun: keyway grew by {} KB", growth >> 10));
        assert!(
            growth < GROWTH_MAX,
            "keyway grew by {growth} bytes for {BEGUN} values of which 5 bytes have come"
        );
    }
    // A client that goes on is served at once: those that do not hold no memory that it would have to wait for.
    for n in [BEGUN, BEGUN + 2] {
        let mut last = begin(n);
        last.send(&[vec![b'x'; 999_995], b"\r\n".to_vec()].concat())
            .expect("the rest may be sent");
        let answer = if n.is_multiple_of(3) { "HD" } else { "STORED" };
        assert_eq!(String::from_utf8_lossy(&last.line().expect("an answer")), answer);
    }
    for counter in ["keyway_connections_paused", "keyway_connections_closed_for_memory"] {
        assert_eq!(server.stat(counter), 0, "{counter}");
    }
    // With the ordinary client, and the one that asks.
    let (there, all) = (server.stat("curr_connections"), u64::try_from(BEGUN + 2).expect("few"));
    assert!(there >= all, "{there} of {all} connections are there");
    drop(begun);
}

#[test]
fn ten_thousand_connections_leave_nothing() {
    const BATCHES: usize = 50;
    const BATCH: usize = 200;
    const THREADS: u32 = 4;
    let options = ServeOptions {
        threads: THREADS,
        ..ServeOptions::default()
    };
    against_each("10,000 connections", &options, |server| {
        // Only what is served has been accepted, and a thread opens files of its own before it serves: one for each thread at least,
        // which stay open.
        let mut first: Vec<_> = (0..THREADS * 2).map(|_| server.connect(Transport::Tcp)).collect();
        first.iter_mut().for_each(|wire| is_served(wire, 0));
        let mut ordinary = first.pop().expect("there are some");
        let before = open_files(server);
        let openings: [&[u8]; 5] = [b"", b"get a", b"set a 0 0 100\r\nabc", b"get a\r\nget b\r\n", b"\x80"];
        for batch in 0..BATCHES {
            let mut wires = Vec::with_capacity(BATCH);
            for n in 0..BATCH {
                let mut wire = server.connect(Transport::Tcp);
                // the server may refuse when it is slower to close than this is to open
                let _ = wire.send(openings[n % openings.len()]);
                wires.push(wire);
            }
            drop(wires);
            is_served(&mut ordinary, batch);
        }
        if let Some(before) = before {
            wait_until("the server closes what was dropped", DEADLINE, || {
                open_files(server).filter(|&now| now <= before).map(|_| ())
            });
        }
        say(&format!(
            "10,000 connections: {} opened and dropped on {}",
            BATCHES * BATCH,
            server.kind().name()
        ));
    });
}

/// How many file descriptors the server has open; `None` where there is no procfs.
fn open_files(server: &Server) -> Option<usize> {
    std::fs::read_dir(format!("/proc/{}/fd", server.pid()))
        .ok()
        .map(Iterator::count)
}

#[test]
fn the_connection_limit_is_kept_and_given_back() {
    let options = ServeOptions {
        keyway_arguments: vec!["--connections".into(), "60".into()],
        memcached_arguments: vec!["-c".into(), "60".into()],
        ..ServeOptions::default()
    };
    against_each("the connection limit", &options, |server| {
        let mut wires = Vec::new();
        let refused = loop {
            let mut wire = server.connect(Transport::Tcp);
            match wire.ask("mn") {
                Ok(line) if line == "MN" => wires.push(wire),
                other => break other,
            }
            assert!(wires.len() <= 60, "more connections than the limit allows");
        };
        // memcached counts every descriptor it has open among the connections
        assert!(wires.len() >= 20, "only {} of 60 connections are served", wires.len());
        match refused {
            Ok(line) => assert_eq!(line, "ERROR Too many open connections"),
            // the refusal may be overtaken by the reset
            Err(e) => assert_eq!(e.kind(), ErrorKind::UnexpectedEof, "{e}"),
        }
        for wire in &mut wires {
            assert_eq!(wire.ask("mn").expect("those within the limit are served"), "MN");
        }
        wires.truncate(10);
        wait_until("a place is given back", DEADLINE, || {
            let answer = server.try_connect(Transport::Tcp).and_then(|mut wire| wire.ask("mn"));
            answer.is_ok_and(|line| line == "MN").then_some(())
        });
    });
}

#[test]
fn a_half_closed_client_gets_its_answers() {
    for transport in [Transport::Tcp, Transport::Unix] {
        let options = ServeOptions {
            transport,
            ..ServeOptions::default()
        };
        against_each("half-closed sockets", &options, |server| {
            let mut wire = server.connect(transport);
            wire.send("set half 0 0 4\r\nhalf\r\nget half\r\n".repeat(50).as_bytes())
                .expect("requests may be sent");
            wire.shutdown(Shutdown::Write).expect("half can be closed");
            for _ in 0..50 {
                for due in ["STORED", "VALUE half 0 4", "half", "END"] {
                    assert_eq!(wire.line().expect("an answer"), due.as_bytes());
                }
            }
            assert!(!wire.fill().expect("an end"), "{} closes its half too", server.kind().name());

            // a request that is cut off in the middle is not carried out
            let mut wire = server.connect(transport);
            wire.send(b"set half 0 0 10\r\nonly").expect("a part may be sent");
            wire.shutdown(Shutdown::Write).expect("half can be closed");
            assert!(!wire.fill().expect("an end"), "nothing is answered");
            let mut wire = server.connect(transport);
            assert_eq!(wire.ask("get half").expect("an answer"), "VALUE half 0 4");

            // one that closes its receiving half only
            let mut wire = server.connect(transport);
            wire.shutdown(Shutdown::Read).expect("half can be closed");
            let _ = wire.send("get half\r\n".repeat(1000).as_bytes());
        });
    }
}

#[test]
fn garbage_harms_no_other_client() {
    against_each("garbage", &ServeOptions::default(), |server| {
        let seed = Random::seed_for("garbage");
        let mut random = Random::new(seed);
        let mut ordinary = server.connect(Transport::Tcp);
        let rounds = 300;
        for round in 0..rounds {
            let transport = if server.kind() == Kind::Keyway && round % 2 == 0 {
                Transport::Unix
            } else {
                Transport::Tcp
            };
            let mut wire = server.connect(transport);
            let bytes = match round % 3 {
                0 => {
                    let len = random.index(20_000);
                    random.bytes(len)
                }
                1 => words(&mut random),
                _ => mutated(&mut random),
            };
            wire.set_timeout(Duration::from_millis(500)).expect("a timeout");
            // the server may close at any byte of this
            let _ = wire.send(&bytes);
            let _ = wire.shutdown(Shutdown::Write);
            // whatever it answers, it ends: there is nothing more to come
            wire.set_timeout(DEADLINE).expect("a timeout");
            while wire.fill().unwrap_or_else(|e| panic!("round {round}, seed {seed}: {e}")) {
                let len = wire.pending().len();
                wire.consume(len);
            }
            is_served(&mut ordinary, round);
        }
        say(&format!(
            "garbage: {rounds} connections full of it on {}",
            server.kind().name()
        ));
    });
}

/// Lines of words that mean something, in an order that does not.
fn words(random: &mut Random) -> Vec<u8> {
    const WORDS: [&str; 28] = [
        "get",
        "set",
        "cas",
        "incr",
        "mg",
        "ms",
        "md",
        "ma",
        "me",
        "mn",
        "stats",
        "touch",
        "gat",
        "delete",
        "0",
        "1",
        "-1",
        "4294967296",
        "key",
        "noreply",
        "v",
        "T30",
        "C1",
        "O",
        "b",
        "MA",
        "18446744073709551616",
        "\0",
    ];
    let mut out = Vec::new();
    for _ in 0..200 {
        for _ in 0..random.below(8) {
            out.extend_from_slice(WORDS[random.index(WORDS.len())].as_bytes());
            out.push(b' ');
        }
        out.extend_from_slice(if random.below(4) == 0 { b"\n" } else { b"\r\n" });
    }
    out
}

/// Good requests with some bytes changed, dropped or doubled.
fn mutated(random: &mut Random) -> Vec<u8> {
    let good = "set a 0 0 5\r\nhello\r\nget a b c\r\nms a 3 T30 F5 c\r\nabc\r\nmg a v t f s k\r\nma n N0 J1 v\r\nmd a I T30\r\n\
                incr n 1\r\ncas a 0 0 1 5\r\nx\r\ngats 30 a\r\n";
    let mut bytes = good.repeat(10).into_bytes();
    for _ in 0..1 + random.below(30) {
        let at = random.index(bytes.len());
        match random.below(3) {
            0 => bytes[at] = u8::try_from(random.below(256)).unwrap_or(0),
            1 => drop(bytes.remove(at)),
            _ => bytes.insert(at, bytes[at]),
        }
    }
    bytes
}
