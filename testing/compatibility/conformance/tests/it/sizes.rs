//! Sizes of items and names of settings, of Keyway and of a real memcached. Enemy: counts that do not add up to the items that there are, a
//! tool that looks for a setting by memcached's name.
//! Guards: P35

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
        // As the largest item is counted: 59 bytes more than key and value, rounded up to 32.
        assert_eq!((small, large), (96, 5_088), "{}: {found:?}", kind.name());
        let line = wire.ask("me small-001").expect("an answer");
        assert!(line.contains(" size=78"), "{}: {line}", kind.name());
    }
}

/// A part of memcached that Keyway does not have, or has only where it is turned on.
fn is_of_another_part(name: &str) -> bool {
    ["ext_", "ssl_"].iter().any(|part| name.starts_with(part))
}

#[test]
fn settings_have_memcacheds_names() {
    let names = |kind| -> Vec<String> {
        let server = Server::start(kind, &ServeOptions::default());
        let rows = server.connect(Transport::Tcp).stats("settings").expect("it takes requests");
        rows.into_iter().map(|(name, _)| name).collect()
    };
    let ours = names(Kind::Keyway);
    // Names that came after the memcached that this test finds.
    for name in ["watch_enabled", "client_flags_size", "slab_automove_freeratio"] {
        assert!(ours.iter().any(|known| known == name), "{name}: {ours:?}");
    }
    for kind in Kind::to_test("names of settings") {
        let missing: Vec<_> = names(kind)
            .into_iter()
            .filter(|name| !is_of_another_part(name) && !ours.contains(name))
            .collect();
        assert_eq!(missing, Vec::<String>::new(), "{}", kind.name());
    }
}
