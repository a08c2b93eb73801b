//! Commands on single items, and backups: enemy, a tool that loses an item, or says of one what is not true. The same table is played on a region
//! and on a server, with TLS and a login.
//! Guards: P24

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::process::{Child, Command, Output, Stdio};
use std::time::Instant;

use harness::{Authority, Scratch, Validity, free_port, full_run};
use keyway_cache::{Cache, Get, Options, Place, Session, Store};

/// A command without a terminal and with nothing in its environment that names a region.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
    command.args(arguments).env_remove("KEYWAY_REGION");
    command
}

fn run_with(mut command: Command, input: &[u8]) -> (i32, Vec<u8>, String) {
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // A command may end before it has read everything.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    writer.join().unwrap();
    (status.code().unwrap(), stdout, String::from_utf8(stderr).unwrap())
}

fn run(arguments: &[&str]) -> (i32, String) {
    let (code, stdout, stderr) = run_with(command(arguments), b"");
    (code, String::from_utf8(stdout).unwrap() + &stderr)
}

fn region(scratch: &Scratch, name: &str, memory: u64) -> (String, Cache) {
    let path = scratch.join(name).to_str().unwrap().to_owned();
    let cache = Cache::open(&Place::at(&path), &Options::new().memory(memory)).unwrap();
    (path, cache)
}

struct Serving(Child);

impl Serving {
    fn start(arguments: &[&str]) -> Self {
        let mut command = command(&["serve", "--threads", "1"]);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut byte = [0];
        child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
        Self(child)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server with TLS and a user, and what a command needs to get in.
fn guarded(scratch: &Scratch) -> (Serving, Vec<String>) {
    let authority = Authority::new();
    let (certificate, key) = authority.signs("server", Validity::Valid).write_to(scratch.path(), "server");
    let [ca, users, secret] = ["ca.pem", "users", "secret"].map(|name| scratch.join(name).to_str().unwrap().to_owned());
    fs::write(&ca, authority.certificate()).unwrap();
    fs::write(&users, "ann:long secret\n").unwrap();
    fs::write(&secret, "long secret\n").unwrap();
    fs::set_permissions(&users, fs::Permissions::from_mode(0o600)).unwrap();
    let address = format!("tls://127.0.0.1:{}", free_port());
    let (certificate, key) = (certificate.to_str().unwrap(), key.to_str().unwrap());
    let serving = Serving::start(&[
        "--region",
        "memfd",
        "--memory",
        "4m",
        "--listen",
        &address,
        "--tls-cert",
        certificate,
        "--tls-key",
        key,
        "--auth-file",
        &users,
    ]);
    let at = [
        "--server",
        &address,
        "--user",
        "ann",
        "--password-file",
        &secret,
        "--tls-ca",
        &ca,
    ];
    (serving, at.map(str::to_owned).to_vec())
}

/// Every verb, its exit code and what it prints.
const TABLE: &[(&[&str], i32, &str)] = &[
    (&["set", "a", "one", "--flags", "7"], 0, ""),
    (&["get", "a"], 0, "one"),
    (&["ttl", "a"], 0, "-1\n"),
    (&["touch", "a", "1d"], 0, ""),
    (&["get", "a", "--info"], 0, "flags    7\nvalue    3 bytes\n"),
    (&["get", "a", "--info", "--json"], 0, "\"flags\":7"),
    (&["set", "a b", "two"], 0, ""),
    (&["get", "a b"], 0, "two"),
    (&["incr", "n"], 1, "keyway: n: not found\n"),
    (&["incr", "n", "5", "--initial", "40"], 0, "40\n"),
    (&["incr", "n", "2"], 0, "42\n"),
    (&["decr", "n", "50"], 0, "0\n"),
    (&["incr", "a"], 1, "a: "),
    (&["keys", "--prefix", "a "], 0, "a b\n"),
    (&["keys", "--prefix", "n", "--json"], 0, "{\"key\":\"n\"}\n"),
    (&["delete", "a b"], 0, ""),
    (&["delete", "a b"], 1, "keyway: a b: not found\n"),
    (&["touch", "a b", "5"], 1, "keyway: a b: not found\n"),
    (&["get", "\u{1b}[2J"], 1, "keyway: \\x1b[2J: not found\n"),
    (&["flush"], 0, "all items are gone\n"),
    (&["get", "a"], 1, "keyway: a: not found\n"),
];

#[test]
fn each_verb_does_the_same_in_a_region_and_on_a_server() {
    let scratch = Scratch::new();
    let (path, _cache) = region(&scratch, "region", 4 << 20);
    let (_serving, guarded) = guarded(&scratch);
    for at in [vec!["--region".to_owned(), path], guarded] {
        for (verb, code, said) in TABLE {
            let words: Vec<&str> = verb.iter().copied().chain(at.iter().map(String::as_str)).collect();
            let (found, output) = run(&words);
            assert_eq!(found, *code, "{words:?}: {output}");
            match said.is_empty() {
                true => assert_eq!(output, "", "{words:?}"),
                false => assert!(output.contains(said), "{words:?}: {output}"),
            }
        }
        let left = run(&[
            &["set", "t", "x", "--ttl", "10m"][..],
            &at.iter().map(String::as_str).collect::<Vec<_>>(),
        ]
        .concat());
        assert_eq!(left.0, 0, "{}", left.1);
        let left = run(&[&["ttl", "t"][..], &at.iter().map(String::as_str).collect::<Vec<_>>()].concat()).1;
        assert!((1..=600).contains(&left.trim().parse::<u32>().unwrap()), "{left}");
    }
}

#[test]
fn a_server_that_does_not_let_a_client_in_is_told() {
    let scratch = Scratch::new();
    let (_serving, guarded) = guarded(&scratch);
    let [_, place, _, _, _, secret, _, ca] = guarded.iter().map(String::as_str).collect::<Vec<_>>()[..] else {
        panic!("{guarded:?}");
    };
    let (code, said) = run(&["get", "a", "--server", place, "--tls-ca", ca]);
    assert!(
        code == 1 && said.contains("wants a login") && said.contains("--user"),
        "{said}"
    );
    fs::write(secret, "wrong\n").unwrap();
    let (code, said) = run(&[
        "get",
        "a",
        "--server",
        place,
        "--tls-ca",
        ca,
        "--user",
        "ann",
        "--password-file",
        secret,
    ]);
    assert!(code == 1 && said.contains("does not let ann in"), "{said}");
    let (code, said) = run(&["get", "a", "--server", place, "--tls-ca", ca, "--user", "ann"]);
    assert!(code == 64 && said.contains("--password-file"), "{said}");
    let plain = place.trim_start_matches("tls://");
    let (code, said) = run(&["get", "a", "--server", plain]);
    assert!(code == 1 && said.contains("tls://"), "{said}");
}

/// Items by their keys: value, client flags, seconds left, and whether the key is opaque bytes.
type Found = BTreeMap<Vec<u8>, (Vec<u8>, u32, Option<u32>, bool)>;

/// All of a region's items.
fn all(session: &mut Session) -> Found {
    let mut keys: Vec<Vec<u8>> = Vec::new();
    let mut cursor = Some(0);
    while let Some(from) = cursor {
        cursor = session.walk(from, 1 << 12, |key, _| keys.push(key.to_vec()));
    }
    let mut found = BTreeMap::new();
    for key in keys {
        let mut value = Vec::new();
        let item = session
            .get_with(&key, &Get::default(), &mut value, |_, _| {})
            .unwrap()
            .unwrap();
        found.insert(key, (value, item.flags, item.ttl_s, item.opaque_key));
    }
    found
}

/// Items of all kinds: keys with blanks, line ends and bytes that are no text; values of all lengths; flags; lifetimes.
fn fill(session: &mut Session, count: u32) {
    for number in 0..count {
        let key = match number % 8 {
            0 => format!("with blanks {number}").into_bytes(),
            1 => [&number.to_le_bytes()[..], b"\r\n\0\xff"].concat(),
            _ => format!("key:{number}").into_bytes(),
        };
        let len = if number % 1_009 == 0 { 30_000 } else { number as usize % 50 };
        let value: Vec<u8> = number.to_le_bytes().into_iter().cycle().take(len).collect();
        let how = Store {
            flags: number,
            // Minutes to years; never; a Unix time.
            exptime: [0, 600, 86_400 * 30, 2_000_000_000][number as usize % 4],
            opaque_key: number % 16 == 1,
            ..Store::default()
        };
        session.store(&key, &value, &how).unwrap();
    }
}

/// What was loaded is what was dumped so many times, except for the time that has passed. Each dump and each load counts whole seconds.
fn same(before: &Found, after: &Found, copies: u32, begun: Instant) {
    let passed_s = u32::try_from(begun.elapsed().as_secs()).unwrap() + 1 + 2 * copies;
    assert_eq!(before.len(), after.len());
    for ((key, (value, flags, ttl, opaque)), (other, (other_value, other_flags, other_ttl, other_opaque))) in
        before.iter().zip(after)
    {
        assert_eq!((key, flags), (other, other_flags));
        assert!(value == other_value, "{}", key.escape_ascii());
        // A key that a line cannot hold comes back as opaque bytes.
        assert!(opaque == other_opaque || *other_opaque, "{}", key.escape_ascii());
        match (ttl, other_ttl) {
            (None, None) => {}
            (Some(before), Some(after)) => {
                assert!(
                    *after <= before + 1 && before <= &(after + passed_s),
                    "{}: {before} {after}",
                    key.escape_ascii()
                );
            }
            _ => panic!("{}: {ttl:?} {other_ttl:?}", key.escape_ascii()),
        }
    }
}

#[test]
fn a_backup_restores_each_of_a_million_items() {
    let count = if full_run() { 1_000_000 } else { 100_000 };
    let scratch = Scratch::new();
    let memory = if full_run() { 512 << 20 } else { 64 << 20 };
    let begun = Instant::now();
    let (from, cache) = region(&scratch, "from", memory);
    let mut session = cache.session().unwrap();
    fill(&mut session, count);
    let before = all(&mut session);
    assert_eq!(before.len(), count as usize);
    assert_eq!(cache.counters().evictions, 0);

    let dump = scratch.join("dump");
    let file = dump.to_str().unwrap();
    let (code, stdout, stderr) = run_with(command(&["dump", "--region", &from]), b"");
    assert_eq!((code, stderr.as_str()), (0, ""));
    fs::write(&dump, &stdout).unwrap();
    let (to, other) = region(&scratch, "to", memory);
    let (code, said) = run(&["load", file, "--region", &to]);
    assert_eq!(code, 0, "{said}");
    assert!(
        said.contains(&format!("{count} items stored in {to}, 0 refused, 0 had expired")),
        "{said}"
    );
    let after = all(&mut other.session().unwrap());
    same(&before, &after, 1, begun);
    drop((session, cache, other));

    // The same through a server's sockets, both ways.
    let (place, socket) = (scratch.join("served"), scratch.join("socket"));
    let (place, socket) = (place.to_str().unwrap(), socket.to_str().unwrap());
    let megabytes = format!("{}b", memory);
    let _serving = Serving::start(&[
        "--region",
        place,
        "--memory",
        &megabytes,
        "--listen",
        "127.0.0.1:0",
        "--socket",
        socket,
    ]);
    let (code, said) = run(&["load", file, "--server", socket]);
    assert!(
        code == 0 && said.contains(&format!("{count} items stored in {socket}")),
        "{said}"
    );
    let (code, again, stderr) = run_with(command(&["dump", "--server", socket]), b"");
    assert_eq!((code, stderr.as_str()), (0, ""));
    let (last, third) = region(&scratch, "last", memory);
    let (code, _, stderr) = run_with(command(&["load", "-", "--region", &last]), &again);
    assert_eq!((code, stderr.as_str()), (0, ""));
    let after = all(&mut third.session().unwrap());
    same(&before, &after, 2, begun);
}

#[test]
fn what_is_not_restored_is_said() {
    let scratch = Scratch::new();
    let (path, _cache) = region(&scratch, "region", 4 << 20);
    let address = format!("127.0.0.1:{}", free_port());
    let _serving = Serving::start(&["--region", "memfd", "--memory", "8m", "--listen", &address]);
    let ways = [["--region", &path], ["--server", &address]];
    let load = |at: [&str; 2], input: &[u8]| {
        let (code, stdout, stderr) = run_with(command(&["load", "-", at[0], at[1]]), input);
        (code, String::from_utf8(stdout).unwrap() + &stderr)
    };
    let large = [
        &b"set large 0 0 3000000\r\n"[..],
        &vec![b'x'; 3_000_000],
        b"\r\nset small 0 0 1\r\n1\r\n",
    ]
    .concat();
    let old = format!("set old 0 {} 1\r\n1\r\nset new 0 0 1\r\n1\r\n", 1_700_000_000);
    for at in ways {
        let (code, said) = load(at, &large);
        assert!(code == 1 && said.contains("1 item stored"), "{at:?}: {said}");
        assert!(said.contains("large: ") && said.contains("1 refused"), "{at:?}: {said}");
        let (code, said) = load(at, old.as_bytes());
        assert!(code == 0 && said.contains("1 had expired"), "{at:?}: {said}");
        let (code, said) = load(at, b"add small 0 0 1\r\n2\r\n");
        assert!(code == 1 && said.contains("small: there is another item"), "{at:?}: {said}");
        // A part of a dump, at the end of an item and within one.
        let (code, said) = load(at, b"mn\r\nset a 0 0 1\r\n1\r\n");
        assert!(code == 1 && said.contains("part of a dump"), "{at:?}: {said}");
        let (code, said) = load(at, b"mn\r\nset a 0 0 1\r\n1\r\nset b 0 0 9\r\n1");
        assert!(
            code == 1 && said.contains("byte 20") && said.contains("in the middle"),
            "{at:?}: {said}"
        );
        // What is no dump.
        let (code, said) = load(at, b"set a 0 0 1\r\n1\r\nhello\x1b[2J\r\n");
        assert!(code == 1 && said.contains("\"hello\\x1b[2J\\r\" is no set"), "{at:?}: {said}");
        let (code, said) = load(at, b"flush_all\r\n");
        assert!(code == 1 && said.contains("`flush_all`"), "{at:?}: {said}");
        // From before there was `keyway load`.
        let (code, said) = load(at, b"set quiet 5 0 1 noreply\r\n1\r\n");
        assert!(code == 0 && said.contains("0 refused"), "{at:?}: {said}");
        assert_eq!(run(&["get", "quiet", at[0], at[1]]), (0, "1".to_owned()));
    }
    let (code, said) = run(&["load", "/no/such/file", "--region", &path]);
    assert!(code == 1 && said.contains("/no/such/file: cannot be read"), "{said}");
    // Less memory than the items need.
    let many: Vec<u8> = (0..6_000)
        .flat_map(|n| format!("set {n} 0 0 1000\r\n{}\r\n", "x".repeat(1000)).into_bytes())
        .collect();
    for at in ways {
        let many = [
            many.clone(),
            many.iter().map(|byte| if *byte == b'x' { b'y' } else { *byte }).collect(),
        ]
        .concat();
        let more: Vec<u8> = (6_000..12_000)
            .flat_map(|n| format!("set {n} 0 0 1000\r\n{}\r\n", "x".repeat(1000)).into_bytes())
            .collect();
        let (code, said) = load(at, &[many, more].concat());
        assert!(
            code == 1 && said.contains("evicted meanwhile") && said.contains("--memory"),
            "{at:?}: {said}"
        );
    }
}

#[test]
fn lines_of_standard_input_are_commands_of_the_shell() {
    let scratch = Scratch::new();
    let (path, _cache) = region(&scratch, "region", 4 << 20);
    let input = b"set greeting 'hello world'\nget greeting --info\nnonsense\nget absent\n\nset lacking\nincr n --initial 3\nhelp\nquit\nget greeting\n";
    let (code, stdout, stderr) = run_with(command(&["--region", &path]), input);
    let stdout = String::from_utf8(stdout).unwrap();
    assert!(
        stdout.contains("value    11 bytes") && stdout.contains("3\n") && stdout.contains("Print the value"),
        "{stdout}"
    );
    assert!(!stdout.contains("hello world"), "after quit: {stdout}");
    for reason in ["nonsense", "absent: not found", "the value is missing", "3 commands failed"] {
        assert!(stderr.contains(reason), "{reason}: {stderr}");
    }
    assert_eq!(code, 1);
    let (code, _, stderr) = run_with(command(&["--region", &path, "get", "x"]), b"");
    assert!(code == 64, "{stderr}");
    // Nothing is named, and there is no terminal.
    let (code, stdout, _) = run_with(command(&[]), b"");
    assert!(code == 64 && String::from_utf8(stdout).unwrap().contains("Commands:"));
}

#[test]
fn the_environment_and_a_port_name_a_region() {
    let scratch = Scratch::new();
    let (path, cache) = region(&scratch, "region", 4 << 20);
    cache.session().unwrap().set(b"a", b"1", 0).unwrap();
    let mut named = command(&["get", "a"]);
    named.env("KEYWAY_REGION", &path);
    assert_eq!(run_with(named, b"").1, b"1");
    // The command line comes first.
    let mut named = command(&["get", "a", "--port", "1"]);
    named.env("KEYWAY_REGION", &path);
    let (code, _, said) = run_with(named, b"");
    assert!(code == 2 && said.contains("-1: there is no region"), "{said}");
    assert!(said.contains("keyway regions"), "{said}");
}

#[test]
fn a_region_socket_is_a_region_for_every_command_that_looks() {
    let scratch = Scratch::new();
    let [path, socket] = ["region", "handout"].map(|name| scratch.join(name).to_str().unwrap().to_owned());
    let _serving = Serving::start(&[
        "--region",
        &path,
        "--memory",
        "4m",
        "--listen",
        "127.0.0.1:0",
        "--socket",
        &format!("{socket}.s"),
        "--region-socket",
        &socket,
    ]);
    assert_eq!(run(&["set", "a", "1", "--region", &socket]).0, 0);
    for look in [
        &["stats", "--grouped", "--interval", "0"][..],
        &["stats", "--plain"],
        &["top", "--once"],
        &["doctor", "--json"],
        &["get", "a"],
    ] {
        let (code, said) = run(&[look, &["--region", &socket]].concat());
        // Whether the machine is well is not asked here.
        assert!(code == 0 || (look[0] == "doctor" && code == 1), "{look:?}: {said}");
        assert!(said.contains('1') && !said.contains("is a socket"), "{look:?}: {said}");
    }
}
