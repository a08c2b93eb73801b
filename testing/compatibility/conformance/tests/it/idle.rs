//! How long ago an item was used (`mg l`), of Keyway and of a real memcached: to the second, by the item's own lifetime, which counts down
//! meanwhile (memcached's own `t/metaget.t` asks two seconds behind a store).
//! Guards: P35

use harness::{DEADLINE, Kind, ServeOptions, Server, Transport, wait_until};

#[test]
fn idle_time_counts_up_as_the_ttl_counts_down() {
    for kind in Kind::to_test("idle times") {
        let server = Server::start(kind, &ServeOptions::default());
        let mut wire = server.connect(Transport::Tcp);
        wire.send(b"ms idle 1 T1000\r\na\r\n").expect("it takes requests");
        assert_eq!(wire.line().expect("an answer"), b"HD");
        let mut last = 0;
        wait_until("five seconds without an access", DEADLINE, || {
            // Without a bump: asking is no use of it.
            let answer = wire.ask("mg idle t l u").expect("an answer");
            let number = |flag: char| -> i64 {
                let word = answer.split(' ').find_map(|word| word.strip_prefix(flag));
                word.and_then(|digits| digits.parse().ok())
                    .unwrap_or_else(|| panic!("{}: {answer}", kind.name()))
            };
            let (gone, idle) = (1000 - number('t'), number('l'));
            assert!(
                (gone - idle).abs() <= 1 && idle >= last,
                "{}: {idle} seconds idle after {gone}: {answer}",
                kind.name()
            );
            last = idle;
            (idle >= 5).then_some(())
        });
    }
}
