//! What clients of several threads of a server see of each other's writes: CAS uniques of a key rise. Keyway and a real memcached are held to the
//! same.
//! Guards: P15

use harness::{Kind, ServeOptions, Server, Transport, Wire};

/// Connections, so that each of a server's four threads has some.
const CONNECTIONS: usize = 8;
const ROUNDS: usize = 2_000;

/// The CAS unique in the answer to a request with the flag `c`.
fn unique(answer: &str) -> u64 {
    let cas = answer.strip_prefix("HD c").and_then(|cas| cas.parse().ok());
    cas.unwrap_or_else(|| panic!("no unique: {answer}"))
}

#[test]
fn a_value_from_before_the_present_one_is_stored_as_stale_whichever_threads_wrote_them() {
    for kind in Kind::to_test("CAS uniques of several threads") {
        let server = Server::start(kind, &ServeOptions::default());
        let name = kind.name();
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
                "{name}, round {round}: {last}, {older}, {newer}"
            );
            if round % 2 == 1 {
                assert_eq!(ask(2, "md k I"), "HD");
            }
            let cas = if round % 2 == 1 { newer } else { older };
            let stored = unique(&ask(3, &format!("ms k 3 I c C{cas}\r\nrec")));
            assert!(stored > newer, "{name}, round {round}: {stored} after {newer}");
            assert_eq!(ask(4, &format!("ms k 3 C{newer}\r\nnot")), "EX");
            last = stored;
        }
    }
}
