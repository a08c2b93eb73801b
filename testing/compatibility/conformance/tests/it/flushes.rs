//! Flushes without end: Keyway and a real memcached are held to the same.
//! Guards: P17

use std::time::Duration;

use harness::{Kind, ServeOptions, Server, Transport};

/// More than 24 bits can count.
const FLUSHES: usize = 17 << 20;

#[test]
fn flushes_are_never_used_up() {
    for kind in Kind::to_test("pipelined flushes") {
        let server = Server::start(kind, &ServeOptions::default());
        let name = kind.name();
        // A real memcached writes down each of them; fewer are enough for it.
        let flushes = if kind == Kind::Memcached { FLUSHES / 64 } else { FLUSHES };
        let mut wire = server.connect(Transport::Tcp);
        wire.set_timeout(Duration::from_secs(120)).expect("a timeout");
        assert_eq!(wire.ask("set before 0 0 1\r\n1").expect("an answer"), "STORED");
        let many = b"flush_all noreply\r\n".repeat(4096);
        for _ in 0..flushes / 4096 {
            wire.send(&many).expect("it takes them");
        }
        assert_eq!(wire.ask("mg before").expect("an answer"), "EN", "{name}");
        for round in 0..100 {
            assert_eq!(wire.ask("set key 0 0 1\r\n1").expect("an answer"), "STORED");
            if kind != Kind::Memcached {
                assert_eq!(wire.ask("mg key").expect("an answer"), "HD", "round {round}");
            }
            assert_eq!(wire.ask("flush_all").expect("an answer"), "OK", "{name}, round {round}");
            assert_eq!(wire.ask("mg key").expect("an answer"), "EN", "{name}, round {round}");
        }
    }
}
