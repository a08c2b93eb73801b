//! `stats sizes` where it was asked for, of Keyway and of a real memcached. Enemy: counts that do not add up to the items that there are.

use harness::{Kind, ServeOptions, Server, Transport, Wire};

/// Sizes and how many items have them.
fn sizes(wire: &mut Wire) -> Vec<(usize, usize)> {
    let rows = wire.stats("sizes").expect("it takes requests");
    let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("no size and count: {rows:?}"));
    rows.iter().map(|(size, count)| (number(size), number(count))).collect()
}

#[test]
fn items_are_counted_by_their_sizes_where_that_was_asked_for() {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    for kind in Kind::to_test("stats sizes") {
        let options = ServeOptions {
            keyway_arguments: words(&["--track-sizes"]),
            memcached_arguments: words(&["-o", "track_sizes"]),
            ..ServeOptions::default()
        };
        let server = Server::start(kind, &options);
        let mut wire = server.connect(Transport::Tcp);
        assert_eq!(sizes(&mut wire), [], "{}", kind.name());
        let mut stores = Vec::new();
        for (prefix, count, len) in [("small", 700, 10), ("large", 30, 5_000)] {
            for i in 0..count {
                let value = "v".repeat(len);
                stores.extend(format!("set {prefix}-{i:03} 0 0 {len} noreply\r\n{value}\r\n").bytes());
            }
        }
        wire.send(&stores).expect("it takes requests");
        assert_eq!(wire.ask("delete small-000").expect("an answer"), "DELETED");
        let found = sizes(&mut wire);
        let [(small, 699), (large, 30)] = found[..] else {
            panic!("{}: {found:?}", kind.name());
        };
        assert!(
            small % 32 == 0 && large % 32 == 0 && (32..160).contains(&small) && (5_000..5_200).contains(&large),
            "{}: {found:?}",
            kind.name()
        );
    }
}
