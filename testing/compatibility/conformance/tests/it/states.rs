//! `stats conns`, of Keyway and of a real memcached: what a connection is at. Enemy: a client in the middle of its value that is shown as
//! one that is idle (memcached's own `t/stats-conns.t` asks).
//! Guards: P35

use harness::{DEADLINE, Kind, ServeOptions, Server, Transport, Wire, wait_until};

/// The states of all connections.
fn states(wire: &mut Wire) -> Vec<String> {
    wire.send(b"stats conns\r\n").expect("it takes requests");
    let mut states = Vec::new();
    loop {
        let line = String::from_utf8(wire.line().expect("an answer")).expect("text");
        if line == "END" {
            return states;
        }
        if let Some((_, state)) = line.split_once(":state ") {
            states.push(state.to_owned());
        }
    }
}

#[test]
fn connections_are_in_the_states_that_memcacheds_are_in() {
    for kind in Kind::to_test("states of connections") {
        let server = Server::start(kind, &ServeOptions::default());
        let mut asking = server.connect(Transport::Tcp);
        for (what, request, state) in [
            ("within a value", &b"set foo 0 0 6\r\n"[..], "conn_nread"),
            ("within a large value", b"set foo 0 0 100000\r\nabc", "conn_nread"),
            ("within a meta value", b"ms foo 6\r\nabcdef\r", "conn_nread"),
            ("within a refused value", b"set foo 0 0 90000000\r\nabc", "conn_swallow"),
        ] {
            let mut client = server.connect(Transport::Tcp);
            client.send(request).expect("it takes requests");
            wait_until(&format!("{}: {what}: {state}", kind.name()), DEADLINE, || {
                states(&mut asking).iter().any(|known| known == state).then_some(())
            });
        }
        let seen = states(&mut asking);
        for state in ["conn_listening", "conn_parse_cmd"] {
            assert!(seen.iter().any(|known| known == state), "{}: {seen:?}", kind.name());
        }
    }
}
