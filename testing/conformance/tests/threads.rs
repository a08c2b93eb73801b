//! What clients of several threads of a server see of each other: CAS uniques that rise, and flushes without end. Keyway and a real memcached
//! are held to the same.

use std::time::Duration;

use harness::{Kind, ServeOptions, Server, Transport, Wire};

/// Connections, so that each of a server's four threads has some.
const CONNECTIONS: usize = 8;
const ROUNDS: usize = 2_000;
/// More than a region has flush epochs.
const FLUSHES: usize = 17 << 20;

fn servers(test: &str) -> Vec<Server> {
    let options = ServeOptions::default();
    Kind::to_test(test)
        .into_iter()
        .map(|kind| Server::start(kind, &options))
        .collect()
}

/// The CAS unique in the answer to a request with the flag `c`.
fn unique(answer: &str) -> u64 {
    let cas = answer.strip_prefix("HD c").and_then(|cas| cas.parse().ok());
    cas.unwrap_or_else(|| panic!("no unique: {answer}"))
}

#[test]
fn a_value_from_before_the_present_one_is_stored_as_stale_whichever_threads_wrote_them() {
    for server in servers("CAS uniques of several threads") {
        let mut wires: Vec<Wire> = (0..CONNECTIONS).map(|_| server.connect(Transport::Tcp)).collect();
        let mut last = 0;
        for round in 0..ROUNDS {
            let mut ask = |step: usize, request: &str| {
                let wire = &mut wires[(round * 5 + step * 3 + round / 7) % CONNECTIONS];
                wire.ask(request).expect("an answer")
            };
            let older = unique(&ask(0, "ms k 3 c\r\nold"));
            let newer = unique(&ask(1, "ms k 3 c\r\nnew"));
            assert!(
                last < older && older < newer,
                "{}, round {round}: {last}, {older}, {newer}",
                server.kind().name()
            );
            if round % 2 == 1 {
                assert_eq!(ask(2, "md k I"), "HD");
            }
            let cas = if round % 2 == 1 { newer } else { older };
            let stored = unique(&ask(3, &format!("ms k 3 I c C{cas}\r\nrec")));
            assert!(
                stored > newer,
                "{}, round {round}: {stored} after {newer}",
                server.kind().name()
            );
            assert_eq!(ask(4, &format!("ms k 3 C{newer}\r\nnot")), "EX");
            last = stored;
        }
    }
}

#[test]
fn flushes_are_never_used_up() {
    for server in servers("pipelined flushes") {
        // A real memcached writes down each of them; fewer are enough for it.
        let flushes = if server.kind() == Kind::Memcached {
            FLUSHES / 64
        } else {
            FLUSHES
        };
        let mut wire = server.connect(Transport::Tcp);
        wire.set_timeout(Duration::from_secs(120)).expect("a timeout");
        assert_eq!(wire.ask("set before 0 0 1\r\n1").expect("an answer"), "STORED");
        let many = b"flush_all noreply\r\n".repeat(4096);
        for _ in 0..flushes / 4096 {
            wire.send(&many).expect("it takes them");
        }
        assert_eq!(wire.ask("mg before").expect("an answer"), "EN", "{}", server.kind().name());
        for round in 0..100 {
            assert_eq!(wire.ask("set key 0 0 1\r\n1").expect("an answer"), "STORED");
            if server.kind() != Kind::Memcached {
                assert_eq!(wire.ask("mg key").expect("an answer"), "HD", "round {round}");
            }
            assert_eq!(
                wire.ask("flush_all").expect("an answer"),
                "OK",
                "{}, round {round}",
                server.kind().name()
            );
            assert_eq!(
                wire.ask("mg key").expect("an answer"),
                "EN",
                "{}, round {round}",
                server.kind().name()
            );
        }
    }
}
