//! Handles that are not the region's: enemy, a key that goes to another server than with libmemcached, so that a fleet's caches are cold,
//! or have old copies.
//! Guards: P31

use crate::common::{Dropin, assert_same, has_memcached, printed};
use harness::{Kind, ServeOptions, Server, Transport};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

/// Every order of up to four of fifteen calls, made so many times: what `tests/scripts/placement.c` prints.
fn orders(program: &Path, what: &[&str], environment: &[(&str, &str)]) -> String {
    printed(Command::new(program).args(what).envs(environment.iter().copied()))
}

#[test]
fn each_key_goes_to_the_server_that_libmemcached_chooses() {
    let dropin = Dropin::new();
    let Some(program) = dropin.compile("the servers of keys", "placement.c") else {
        return;
    };
    let file = dropin.file().display().to_string();
    let (preload, off) = (("LD_PRELOAD", file.as_str()), ("KEYWAY_LIBMEMCACHED", "off"));
    let (elsewhere, here) = (
        ["print", "10.1.2.3", "24001", "24002", "24003"],
        ["print", "127.0.0.1", "1", "2", "3"],
    );
    let cases = [
        ("servers on another host", ["1", "1"], elsewhere, &[preload][..]),
        ("the same calls again and again", ["29", "5"], elsewhere, &[preload]),
        ("servers that are away", ["601", "1"], here, &[preload]),
        ("every handle is the real library's", ["29", "1"], here, &[preload, off]),
    ];
    std::thread::scope(|scope| {
        for (what, [every, times], servers, environment) in cases {
            let arguments = [&[every, times], &servers[..]].concat();
            let program = &program;
            scope.spawn(move || {
                let expected = orders(program, &arguments, &[]);
                assert!(
                    expected.lines().count() > 50 && !expected.contains('!'),
                    "{what}:\n{expected}"
                );
                assert_same(what, &expected, &orders(program, &arguments, environment));
            });
        }
    });
}

/// Takes these keys, with their prefix or without, out of a memcached. Those that it had.
fn taken(server: &Server, keys: &[String]) -> BTreeSet<String> {
    let mut wire = server.connect(Transport::Tcp);
    let whole = keys.iter().flat_map(|key| [key.clone(), format!("space:{key}")]);
    whole
        .filter(|key| wire.ask(&format!("delete {key}")).expect("an answer") == "DELETED")
        .collect()
}

#[test]
fn servers_have_the_keys_that_libmemcached_would_have_sent_them() {
    let test = "the keys of servers";
    let dropin = Dropin::new();
    let Some(program) = dropin.compile(test, "placement.c") else {
        return;
    };
    if !has_memcached(test) {
        return;
    }
    let servers: Vec<Server> = (0..3)
        .map(|_| Server::start(Kind::Memcached, &ServeOptions::default()))
        .collect();
    let ports: Vec<String> = servers.iter().map(|server| server.address().port().to_string()).collect();
    let arguments = ["1201", "1", "store", "127.0.0.1", &ports[0], &ports[1], &ports[2]];
    let file = dropin.file().display().to_string();
    let contents = |environment: &[(&str, &str)]| {
        let said = orders(&program, &arguments, environment);
        // The number after it is the query's.
        let keys = said
            .lines()
            .filter_map(|line| line.strip_prefix("SUCCESS ")?.split(' ').next());
        let keys: Vec<String> = keys.map(str::to_owned).collect();
        let contents: Vec<_> = servers.iter().map(|server| taken(server, &keys)).collect();
        (said, contents)
    };
    let expected = contents(&[]);
    assert!(expected.1.iter().all(|keys| keys.len() > 100), "each has some: {expected:?}");
    assert_eq!(expected, contents(&[("LD_PRELOAD", &file)]));
    assert_eq!(expected, contents(&[("LD_PRELOAD", &file), ("KEYWAY_LIBMEMCACHED", "off")]));
}
