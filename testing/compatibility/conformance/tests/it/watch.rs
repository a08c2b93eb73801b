//! What `watch` tells, line by line, of Keyway and of a real memcached: the look-ups that commands make, misses included, what they store,
//! and what is evicted for it. Enemy: a log that leaves out what memcached's tells (its own `t/watcher*.t` read it).
//! Guards: P35

use std::time::Duration;

use harness::{DEADLINE, Kind, ServeOptions, Server, Transport, Wire, wait_until};

/// A watching connection, which gets every line from then on.
fn watch(server: &Server, client: &mut Wire, what: &str) -> Wire {
    let mut watcher = server.connect(Transport::Tcp);
    assert_eq!(watcher.ask(&format!("watch {what}")).expect("an answer"), "OK");
    // memcached's workers hear of a watcher one after the other.
    watcher.set_timeout(Duration::from_millis(20)).expect("a timeout");
    wait_until("the watcher gets a line about a fetch", DEADLINE, || {
        client.send(b"get warm\r\nmn\r\n").expect("it takes requests");
        while client.line().expect("an answer") != b"MN" {}
        watcher.fill().is_ok_and(|open| open).then_some(())
    });
    watcher.set_timeout(DEADLINE).expect("a timeout");
    watcher
}

/// The next line without what differs from run to run.
fn told(watcher: &mut Wire) -> String {
    let line = loop {
        if let Some(end) = watcher.pending().iter().position(|&byte| byte == b'\n') {
            let line = String::from_utf8_lossy(&watcher.pending()[..end]).into_owned();
            watcher.consume(end + 1);
            break line;
        }
        assert!(watcher.fill().expect("a line"), "the watcher's connection ended");
    };
    let differs = |word: &&str| !["ts=", "gid=", "cfd=", "clsid="].iter().any(|known| word.starts_with(known));
    line.split_ascii_whitespace().filter(differs).collect::<Vec<_>>().join(" ")
}

/// Requests in order, and the lines that each makes.
const TOLD: [(&str, &[&str]); 22] = [
    ("get none", &["type=item_get key=none status=not_found size=0"]),
    ("mg none v", &["type=item_get key=none status=not_found size=0"]),
    ("gat 10 none", &["type=item_get key=none status=not_found size=0"]),
    ("touch none 10", &["type=item_get key=none status=not_found size=0"]),
    ("incr none 1", &["type=item_get key=none status=not_found size=0"]),
    ("delete none", &["type=item_get key=none status=not_found size=0"]),
    ("md none", &["type=item_get key=none status=not_found size=0"]),
    ("ma none", &["type=item_get key=none status=not_found size=0"]),
    ("me none", &["type=item_get key=none status=not_found size=0"]),
    (
        "set k 0 0 1\r\na",
        &[
            "type=item_get key=k status=not_found size=0",
            "type=item_store key=k status=stored cmd=set ttl=0 size=1",
        ],
    ),
    (
        "set k 0 0 2\r\nab",
        &[
            "type=item_get key=k status=found size=1",
            "type=item_store key=k status=stored cmd=set ttl=0 size=2",
        ],
    ),
    (
        "append k 0 0 1\r\nc",
        &[
            "type=item_get key=k status=found size=2",
            "type=item_store key=k status=stored cmd=append ttl=0 size=3",
        ],
    ),
    (
        "add k 0 0 1\r\na",
        &[
            "type=item_get key=k status=found size=3",
            "type=item_store key=k status=not_stored cmd=add ttl=0 size=1",
        ],
    ),
    (
        "ms k 1 C999999999\r\na",
        &[
            "type=item_get key=k status=found size=3",
            "type=item_store key=k status=exists cmd=cas ttl=0 size=1",
        ],
    ),
    (
        "ms m 1 MA\r\na",
        &[
            "type=item_get key=m status=not_found size=0",
            "type=item_store key=m status=not_stored cmd=append ttl=0 size=1",
        ],
    ),
    (
        "ms m 1 T30\r\n7",
        &[
            "type=item_get key=m status=not_found size=0",
            "type=item_store key=m status=stored cmd=set ttl=30 size=1",
        ],
    ),
    ("incr m 1", &["type=item_get key=m status=found size=1"]),
    ("touch m 100", &["type=item_get key=m status=found size=1"]),
    ("mg viv N30", &["type=item_get key=viv status=not_found size=0"]),
    ("mg viv", &["type=item_get key=viv status=found size=0"]),
    ("md k I", &["type=item_get key=k status=found size=3"]),
    ("get k", &["type=item_get key=k status=found size=3"]),
];

#[test]
fn watchers_get_the_lines_that_memcacheds_get() {
    for kind in Kind::to_test("what watchers get") {
        let server = Server::start(kind, &ServeOptions::default());
        let mut client = server.connect(Transport::Tcp);
        let mut watcher = watch(&server, &mut client, "fetchers mutations");
        for (number, (request, expected)) in TOLD.iter().enumerate() {
            // A fetch behind it says that its lines are over.
            client
                .send(format!("{request}\r\nget fence{number}\r\nmn\r\n").as_bytes())
                .expect("it takes requests");
            while client.line().expect("an answer") != b"MN" {}
            let fence = format!("type=item_get key=fence{number} status=not_found size=0");
            let mut lines = Vec::new();
            loop {
                match told(&mut watcher) {
                    line if line == fence => break,
                    // Of the time before the first request.
                    line if line.contains("key=warm ") => {}
                    line => lines.push(line),
                }
            }
            assert_eq!(lines, *expected, "{}: {request}", kind.name());
        }
    }
}

/// An item that has expired is told from one that never was.
#[test]
fn watchers_get_lines_about_expired_items() {
    for kind in Kind::to_test("what watchers get about expired items") {
        let server = Server::start(kind, &ServeOptions::default());
        let mut client = server.connect(Transport::Tcp);
        let mut watcher = watch(&server, &mut client, "fetchers");
        client
            .send(b"set e 0 -1 1\r\na\r\nget e\r\nmn\r\n")
            .expect("it takes requests");
        while client.line().expect("an answer") != b"MN" {}
        let expected = "type=item_get key=e status=expired size=0";
        let mut lines = Vec::new();
        while lines.last().is_none_or(|line| line != expected) {
            lines.push(told(&mut watcher));
            assert!(
                lines.last().is_none_or(|line| line.contains("not_found") || line == expected),
                "{}: {lines:?}",
                kind.name()
            );
        }
    }
}

#[test]
fn watchers_get_lines_about_evictions() {
    for kind in Kind::to_test("what watchers get about evictions") {
        let options = ServeOptions {
            memory_mb: 16,
            ..ServeOptions::default()
        };
        let server = Server::start(kind, &options);
        let mut client = server.connect(Transport::Tcp);
        let value = "v".repeat(11_000);
        let mut number = 0;
        let mut set = |client: &mut Wire| {
            number += 1;
            let line = format!("set n,{number} 0 0 {}\r\n{value}", value.len());
            assert_eq!(client.ask(&line).expect("an answer"), "STORED", "{}", kind.name());
        };
        (0..3_000).for_each(|_| set(&mut client));
        let mut watcher = watch(&server, &mut client, "evictions fetchers");
        watcher.set_timeout(Duration::from_millis(1)).expect("a timeout");
        let line = wait_until("an eviction is reported", DEADLINE, || {
            set(&mut client);
            // An error: nothing has come yet.
            let _ = watcher.fill();
            let ended = watcher.pending().iter().rposition(|&byte| byte == b'\n')?;
            let text = String::from_utf8_lossy(&watcher.pending()[..ended]).into_owned();
            text.lines().find(|line| line.contains("type=eviction")).map(str::to_owned)
        });
        let mut words = line.split_ascii_whitespace().skip_while(|word| !word.starts_with("type="));
        for expected in [
            "type=eviction",
            "key=n%2C",
            "fetch=no",
            "ttl=-1",
            "la=",
            "clsid=",
            "size=11000",
        ] {
            let word = words.next().unwrap_or_default();
            assert!(word.starts_with(expected), "{}: {word} in {line}", kind.name());
        }
        assert_eq!(words.next(), None, "{line}");
    }
}
