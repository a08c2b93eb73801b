//! Holds Keyway and a real memcached to the whole table, over TCP and over a Unix socket, in every manner of sending, and Keyway over TLS; to
//! what of it datagrams can ask for, over UDP; and
//! shows that the checker rejects a server that says something else.
//! Guards: P35

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use conformance::generated;
use conformance::play::{Departure, Manner, play};
use conformance::table::{Conversation, Version, parse, read_directory};
use harness::{
    DEADLINE, Kind, ServeOptions, Server, Transport, Wire, has_kernel_door, is_across_a_network, liar, say, wait_until,
};

/// How often a conversation is held for which the client asks again ([`Departure::is_to_be_asked_again`]).
const ATTEMPTS_MAX: usize = 10;
/// How many answers must be the kernel's at least, where servers have the kernel door.
const KERNEL_HITS_MIN: u64 = 200;

fn whole_table() -> Vec<Conversation> {
    let mut table = read_directory(concat!(env!("CARGO_MANIFEST_DIR"), "/table").as_ref());
    table.extend(generated::conversations());
    match std::env::var("KEYWAY_TESTS_ONLY") {
        Ok(part) => table.into_iter().filter(|c| c.title().contains(&part)).collect(),
        Err(_) => table,
    }
}

/// What went wrong, and how much was done.
#[derive(Default)]
struct Tally {
    conversations: AtomicUsize,
    requests: AtomicUsize,
    /// answers that came from the kernel, where servers have the kernel door
    kernel_hits: AtomicU64,
    /// by conversation: how it was held, and what was wrong then
    departures: Mutex<BTreeMap<String, Vec<(String, String)>>>,
}

#[test]
fn both_servers_keep_to_the_table() {
    let table = whole_table();
    let steps: usize = table.iter().map(|c| c.steps.len()).sum();
    let areas: BTreeSet<_> = table.iter().map(|c| c.area.as_str()).collect();
    say(&format!(
        "conformance: {} conversations with {steps} exchanges in {} areas",
        table.len(),
        areas.len()
    ));

    let tally = Tally::default();
    for kind in Kind::to_test("the conformance table") {
        let before = (
            tally.conversations.load(Ordering::Relaxed),
            tally.requests.load(Ordering::Relaxed),
        );
        let held: Vec<_> = table.iter().filter(|c| is_held(kind, c)).collect();
        if held.len() < table.len() {
            let version = memcached_version()
                .filter(|_| kind == Kind::Memcached)
                .map(|v| format!(" {v}"))
                .unwrap_or_default();
            say(&format!(
                "conformance: {}{version} is not held to {} conversations: they are newer, or the table says why",
                kind.name(),
                table.len() - held.len()
            ));
        }
        std::thread::scope(|scope| {
            let transports: &[_] = if is_across_a_network() {
                &[Transport::Tcp]
            } else {
                &[Transport::Tcp, Transport::Unix]
            };
            for transport in transports.iter().copied() {
                for manner in Manner::ALL {
                    let (held, tally) = (&held, &tally);
                    scope.spawn(move || shared_server(kind, transport, manner, held, tally));
                }
                let (held, tally) = (&held, &tally);
                scope.spawn(move || own_servers(kind, transport, held, tally));
            }
            if kind == Kind::Keyway && has_kernel_door() {
                // Over a Unix socket, where there is no kernel door, nothing else may be the answer.
                for transport in transports.iter().copied() {
                    let (held, tally) = (&held, &tally);
                    scope.spawn(move || shared_server(kind, transport, Manner::Repeated, held, tally));
                }
            }
            if is_across_a_network() {
                return;
            }
            if kind == Kind::Keyway {
                // A byte at a time would be a record each: that is TLS's matter.
                for manner in [Manner::Stepwise, Manner::Pipelined] {
                    let tally = &tally;
                    let held: Vec<_> = held.iter().copied().filter(|c| !speaks_of_tls(c)).collect();
                    scope.spawn(move || shared_server(kind, Transport::Tls, manner, &held, tally));
                }
            }
            let by_datagram: Vec<_> = held.iter().copied().filter(|c| c.suits_datagrams()).collect();
            let (tally, requests) = (&tally, by_datagram.iter().map(|c| c.steps.len()).sum::<usize>());
            say(&format!(
                "conformance: {}: {} conversations with {requests} exchanges over UDP",
                kind.name(),
                by_datagram.len()
            ));
            scope.spawn(move || {
                shared_server(kind, Transport::Udp, Manner::Stepwise, &by_datagram, tally);
                own_servers(kind, Transport::Udp, &by_datagram, tally);
            });
        });
        say(&format!(
            "conformance: {}: {} conversations held, {} exchanges, over TCP and Unix, stepwise, pipelined and byte by byte, over UDP, and (Keyway) over TLS",
            kind.name(),
            tally.conversations.load(Ordering::Relaxed) - before.0,
            tally.requests.load(Ordering::Relaxed) - before.1,
        ));
    }

    let kernel_hits = tally.kernel_hits.load(Ordering::Relaxed);
    if has_kernel_door() && Kind::keyway_is_wanted() {
        say(&format!("conformance: {kernel_hits} answers over TCP came from the kernel"));
    }

    let departures = tally.departures.into_inner().expect("no thread panicked");
    let report: Vec<String> = departures
        .iter()
        .map(|(title, ways)| {
            let (first, why) = &ways[0];
            let others = ways
                .iter()
                .skip(1)
                .map(|(way, _)| way.as_str())
                .collect::<Vec<_>>()
                .join(", ");
            format!("{title}\n    {first}: {why}\n    also departs: {others}")
        })
        .collect();
    assert!(
        report.is_empty(),
        "{} conversations depart from the table:\n{}",
        report.len(),
        report.join("\n")
    );
    // Over one transport, and where half of the connections are slow.
    let hits_min = if is_across_a_network() {
        KERNEL_HITS_MIN / 5
    } else {
        KERNEL_HITS_MIN
    };
    let is_shown = !has_kernel_door() || !Kind::keyway_is_wanted() || std::env::var_os("KEYWAY_TESTS_ONLY").is_some();
    assert!(
        is_shown || kernel_hits >= hits_min,
        "only {kernel_hits} answers over TCP came from the kernel: nothing is shown"
    );
}

/// `keyway memcached …`, started as memcached is, is the same server.
#[test]
fn memcacheds_command_line_serves_the_same() {
    if !Kind::keyway_is_wanted() {
        return;
    }
    let options = ServeOptions {
        memcached_command_line: true,
        ..ServeOptions::default()
    };
    let server = Server::start(Kind::Keyway, &options);
    let tally = Tally::default();
    let table = whole_table();
    for conversation in table
        .iter()
        .filter(|c| c.area == "storage" && !c.own_server && is_held(Kind::Keyway, c))
    {
        hold(&server, Transport::Tcp, Manner::Stepwise, conversation, &tally);
    }
    let departures = tally.departures.into_inner().expect("no thread panicked");
    assert!(departures.is_empty(), "{departures:#?}");
}

/// Whether a server that has TLS answers something else.
fn speaks_of_tls(conversation: &Conversation) -> bool {
    conversation.title() == "admin: refresh_certs"
}

fn is_held(kind: Kind, conversation: &Conversation) -> bool {
    // What only a client on the server's machine may do.
    if is_across_a_network() && conversation.title().starts_with("admin: verbosity") {
        return false;
    }
    if conversation.only.is_some_and(|only| only != kind) {
        return false;
    }
    match kind {
        Kind::Keyway => true,
        Kind::Memcached => memcached_version().is_some_and(|version| conversation.holds_for(version)),
    }
}

fn memcached_version() -> Option<Version> {
    static VERSION: std::sync::OnceLock<Option<Version>> = std::sync::OnceLock::new();
    *VERSION.get_or_init(|| {
        let server = Server::start(Kind::Memcached, &ServeOptions::default());
        let line = server.connect(Transport::Tcp).ask("version").ok()?;
        Version::parse(line.strip_prefix("VERSION ")?)
    })
}

/// Over UDP memcached answers whatever its length.
fn long_answers(transport: Transport) -> Vec<String> {
    match transport {
        Transport::Udp => vec!["--udp-answer-max".into(), "64m".into()],
        _ => Vec::new(),
    }
}

/// One conversation after the other on one server, which is flushed in between.
fn shared_server(kind: Kind, transport: Transport, manner: Manner, table: &[&Conversation], tally: &Tally) {
    let server = Server::start(
        kind,
        &ServeOptions {
            transport,
            // A memcached's threads share one UDP socket, and answer in whatever order.
            threads: if transport == Transport::Udp { 1 } else { 4 },
            keyway_arguments: long_answers(transport),
            ..ServeOptions::default()
        },
    );
    // The kernel door answers on connections that have lasted for a while: there, conversations share one as long as it lasts.
    let is_kept = kind == Kind::Keyway && transport == Transport::Tcp && has_kernel_door();
    let mut kept: Option<Wire> = None;
    for conversation in table.iter().filter(|c| !c.own_server && manner.suits(c)) {
        if is_kept && kept.is_none() {
            kept = Some(enrolled(&server));
        }
        // Nothing is flushed over UDP.
        let by = if transport == Transport::Udp {
            Transport::Tcp
        } else {
            transport
        };
        for attempts_left in (0..ATTEMPTS_MAX).rev() {
            let flushed = server.connect(by).ask("flush_all");
            if !matches!(&flushed, Ok(line) if line == "OK") {
                depart(
                    tally,
                    kind,
                    transport,
                    manner,
                    conversation,
                    &format!("flush_all before it: {flushed:?}"),
                );
                return;
            }
            let mut wire = kept.take().unwrap_or_else(|| server.connect(transport));
            let outcome = play(conversation, &mut wire, manner);
            kept = (is_kept && outcome.is_ok() && conversation.leaves_connection()).then_some(wire);
            match outcome {
                Err(departure) if attempts_left > 0 && departure.is_to_be_asked_again(conversation, kind, transport) => {}
                outcome => {
                    note(&server, transport, manner, conversation, outcome, tally);
                    break;
                }
            }
        }
    }
    if is_kept {
        tally
            .kernel_hits
            .fetch_add(server.stat("keyway_kernel_tcp_hits"), Ordering::Relaxed);
    }
}

/// A connection for which the kernel has answered.
fn enrolled(server: &Server) -> Wire {
    let mut wire = server.connect(Transport::Tcp);
    let stored = wire.ask("set a-key-of-this-test 0 0 1\r\n1");
    assert_eq!(stored.expect("an answer"), "STORED");
    let before = server.stat("keyway_kernel_tcp_hits");
    wait_until("the kernel answers on a connection", DEADLINE, || {
        let got = wire.get(false, &["a-key-of-this-test"]).expect("an answer");
        assert_eq!(got.len(), 1);
        (server.stat("keyway_kernel_tcp_hits") > before).then_some(())
    });
    wire
}

/// Conversations that wait or change what others would see: each has a server of its own, a dozen at a time.
fn own_servers(kind: Kind, transport: Transport, table: &[&Conversation], tally: &Tally) {
    let own: Vec<_> = table.iter().filter(|c| c.own_server).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                while let Some(conversation) = own.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let options = ServeOptions {
                        transport,
                        memory_mb: 8,
                        threads: if transport == Transport::Udp { 1 } else { 2 },
                        keyway_arguments: long_answers(transport),
                        ..ServeOptions::default()
                    };
                    // A client that was too slow knows nothing of the server; one that always is too slow does not pass.
                    for attempts_left in (0..ATTEMPTS_MAX).rev() {
                        let server = Server::start(kind, &options);
                        let mut wire = server.connect(transport);
                        match play(conversation, &mut wire, Manner::Stepwise) {
                            Err(departure)
                                if attempts_left > 0 && departure.is_to_be_asked_again(conversation, kind, transport) => {}
                            outcome => {
                                note(&server, transport, Manner::Stepwise, conversation, outcome, tally);
                                break;
                            }
                        }
                    }
                }
            });
        }
    });
}

fn hold(server: &Server, transport: Transport, manner: Manner, conversation: &Conversation, tally: &Tally) {
    let mut wire = server.connect(transport);
    let outcome = play(conversation, &mut wire, manner);
    note(server, transport, manner, conversation, outcome, tally);
}

fn note(
    server: &Server,
    transport: Transport,
    manner: Manner,
    conversation: &Conversation,
    outcome: Result<(), Departure>,
    tally: &Tally,
) {
    if let Err(Departure { why, took, .. }) = outcome {
        let why = format!("{why} (after {took:?})");
        depart(tally, server.kind(), transport, manner, conversation, &why);
    }
    tally.conversations.fetch_add(1, Ordering::Relaxed);
    tally.requests.fetch_add(conversation.steps.len(), Ordering::Relaxed);
}

fn depart(tally: &Tally, kind: Kind, transport: Transport, manner: Manner, conversation: &Conversation, why: &str) {
    let way = format!("{} {transport:?} {manner:?}", kind.name());
    let mut departures = tally.departures.lock().expect("no thread panicked");
    departures.entry(conversation.title()).or_default().push((way, why.into()));
}

/// A command that is added needs conversations.
#[test]
fn every_command_stands_in_the_table() {
    let table = read_directory(concat!(env!("CARGO_MANIFEST_DIR"), "/table").as_ref());
    for command in keyway_proto::Command::ALL {
        let asks = table.iter().any(|conversation| conversation.asks_for(*command));
        assert!(
            asks,
            "no conversation in testing/compatibility/conformance/table asks for {}",
            command.name()
        );
    }
}

#[test]
fn the_checker_rejects_wrong_replies() {
    let text = "== a\n> get a\n< VALUE a 0 3 {num=c1}\n< abc\n< END\n\n== b\n> quit\n<close\n\n== c\n> stats\n<block END\n\
                <+ STAT pid {num}\n<= STAT {word} {line}\n";
    let table = parse("checker", text).expect("it parses");
    let rejects = |index: usize, reply: &'static [u8]| play(&table[index], &mut liar(reply), Manner::Stepwise).is_err();
    let accepts = |index: usize, reply: &'static [u8]| !rejects(index, reply);

    assert!(accepts(0, b"VALUE a 0 3 17\r\nabc\r\nEND\r\nMN\r\n"));
    assert!(rejects(0, b"VALUE a 0 3 17\r\nabd\r\nEND\r\nMN\r\n"), "a wrong byte");
    assert!(rejects(0, b"VALUE a 0 3 x\r\nabc\r\nEND\r\nMN\r\n"), "no number");
    assert!(rejects(0, b"VALUE a 0 3 17\r\nabc\r\nEND\r\n"), "a connection that ends");
    assert!(
        rejects(0, b"VALUE a 0 3 17\r\nabc\r\nEND\r\nEND\r\nMN\r\n"),
        "a reply too many"
    );
    assert!(rejects(0, b"VALUE a 0 3 17\r\nabc\r\nEND\n"), "a line end too short");
    assert!(rejects(0, b""), "silence");

    assert!(accepts(1, b""));
    assert!(rejects(1, b"OK\r\n"), "an answer where a close is due");

    assert!(accepts(2, b"STAT pid 12\r\nSTAT x y\r\nEND\r\nMN\r\n"));
    assert!(rejects(2, b"STAT x y\r\nEND\r\nMN\r\n"), "a missing line");
    assert!(
        rejects(2, b"STAT pid 12\r\nSTAX x y\r\nEND\r\nMN\r\n"),
        "a line of an unknown form"
    );
}

/// A wrong answer to a client that was quick is a departure; to one that was slow it says nothing.
#[test]
fn lateness_is_told_from_a_departure() {
    let table = parse("late", "== a\n@within 1\n> get a\n< END\n\n== b\n> get a\n< END\n").expect("it parses");
    let departure =
        |index: usize, reply: &'static [u8]| play(&table[index], &mut liar(reply), Manner::Stepwise).expect_err("a wrong answer");
    assert!(!departure(0, b"VALUE a 0 1\r\n").is_late(&table[0]));
    let slow = Departure {
        took: std::time::Duration::from_millis(1001),
        ..departure(0, b"VALUE a 0 1\r\n")
    };
    assert!(slow.is_late(&table[0]) && !slow.is_late(&table[1]));
}

/// A client asks again for a datagram of memcached's that did not come, and for nothing else.
#[test]
fn a_lost_datagram_is_told_from_a_departure() {
    let table = parse("lost", "== a\n> get a\n< END\n").expect("it parses");
    let wrong = play(&table[0], &mut liar(b"VALUE a 0 1\r\n"), Manner::Stepwise).expect_err("a wrong answer");
    let again = |departure: &Departure, kind, transport| departure.is_to_be_asked_again(&table[0], kind, transport);
    assert!(!again(&wrong, Kind::Memcached, Transport::Udp));
    let silent = Departure {
        unanswered: true,
        ..wrong
    };
    assert!(again(&silent, Kind::Memcached, Transport::Udp));
    assert!(!again(&silent, Kind::Memcached, Transport::Tcp) && !again(&silent, Kind::Keyway, Transport::Udp));
}

#[test]
fn versions_decide_who_is_held_to_what() {
    let text = "== new\n@since 1.6.20\n> mn\n< MN\n\n== old\n@until 1.6.40 reason\n> mn\n< MN\n";
    let table = parse("versions", text).expect("it parses");
    let holds = |index: usize, version: &str| table[index].holds_for(Version::parse(version).expect("a version"));
    assert!(!holds(0, "1.6.18") && holds(0, "1.6.20") && holds(0, "1.6.45_2_gabc"));
    assert!(holds(1, "1.6.18") && !holds(1, "1.6.40"));
}
