//! Instructions that an operation takes, counted by callgrind: the one figure that a busy machine does not move.
//!
//! Each operation is run twice in a process of its own, with few and with many repetitions; the difference, divided, is free of
//! what starting costs. What the loop takes without an operation is subtracted.

use benches::{Args, head, region, row, say};
use keyway_bench::workload::{Key, key};
use keyway_cache::server::BindingSession as _;
use keyway_cache::{Arithmetic, Begun, Delete, Deleted, Fetch, Gate, Get, Item, Options, Session, Target};
use std::hint::black_box;
use std::mem::MaybeUninit;
use std::process::{Command, Stdio};

const HELP: &str = "\
instructions: instructions per operation, counted by callgrind (apt-get install valgrind)

    cargo bench -p benches --bench instructions
    cargo bench -p benches --bench instructions -- --checksums     in a region with checksums
    cargo bench -p benches --bench instructions -- --gate          behind a gate, with a note in the place of each write of the register";

const ITEMS: u64 = 1_000;
const VALUE_LEN: usize = 128;
const FEW: u64 = 100_000;
const MANY: u64 = 300_000;

/// What is counted, and how it is called on the command line.
const OPERATIONS: [(&str, &str); 11] = [
    ("get", "get of 128 B"),
    ("fetch", "fetch that finds it"),
    ("get_into", "get into a caller's buffer"),
    ("fetch_into", "fetch into a caller's buffer"),
    ("miss", "get of an absent key"),
    ("set", "set over an item"),
    ("add", "set of a new key, and delete"),
    ("remove", "delete"),
    ("delete", "delete of an absent key"),
    ("incr", "incr: the number"),
    ("arithmetic", "the same, and what is known of the item"),
];

fn main() {
    let args = Args::parse(HELP);
    if let Some([operation, count, how]) = args.role().as_deref() {
        return run(operation, count.parse().expect("a number of operations"), how);
    }
    let how = match (args.has("--checksums"), args.has("--gate")) {
        (true, _) => "checksums",
        (false, true) => "gate",
        (false, false) => "plain",
    };
    if Command::new("valgrind")
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_err()
    {
        return say("SKIP: valgrind is not installed");
    }
    let each = |operation: &str| {
        let [few, many] = [FEW, MANY].map(|count| counted(operation, count, how));
        (many - few) / (MANY - FEW)
    };
    let loop_alone = each("nothing");
    say(head(&["operation", "instructions"]));
    for (operation, name) in OPERATIONS {
        say(row(&[name.to_owned(), (each(operation) - loop_alone).to_string()]));
    }
}

/// Instructions of a process that does so many operations; `how`: `plain`, or with `checksums`, or behind a `gate`.
fn counted(operation: &str, count: u64, how: &str) -> u64 {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(std::env::current_exe().expect("this program has a path"))
        .args(["role", operation, &count.to_string(), how])
        .output()
        .expect("valgrind starts");
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text
        .lines()
        .find_map(|line| line.split_once("Collected : "))
        .map(|(_, n)| n.trim());
    collected
        .and_then(|n| n.parse().ok())
        .unwrap_or_else(|| panic!("callgrind counted nothing: {text}"))
}

fn run(operation: &str, count: u64, how: &str) {
    let gate = if how == "gate" { Gate::Rehearsed } else { Gate::Off };
    let options = Options::new().memory(128 << 20).checksums(how == "checksums").gate(gate);
    let cache = region(&options);
    let session = &mut cache.session().expect("the first session");
    let keys: Vec<Key> = (0..ITEMS).map(key).collect();
    let counts = matches!(operation, "incr" | "arithmetic");
    let value: &[u8] = if counts { b"1000000" } else { &[b'v'; VALUE_LEN] };
    if counts || matches!(operation, "get" | "fetch" | "get_into" | "fetch_into" | "set") {
        for key in &keys {
            session.set(key, value, 0).expect("a set is not refused");
        }
    }
    let mut out = Vec::with_capacity(2 * VALUE_LEN);
    let mut buffer = Buffer([MaybeUninit::uninit(); VALUE_LEN]);
    let plain = Fetch::default();
    let (how, count) = (Delete::default(), usize::try_from(count).expect("a count fits"));
    // A loop for each operation: the choice between them is not counted.
    match operation {
        "nothing" => each(session, &keys, count, |_, key| {
            black_box(key);
        }),
        "get" => each(session, &keys, count, |session, key| {
            out.clear();
            assert!(session.get_append(key, &mut out).unwrap().is_some());
        }),
        "get_into" => each(session, &keys, count, |session, key| {
            assert!(session.get_into(key, Get::VALUE, &mut buffer).expect("a key of 16 B"));
        }),
        "fetch" => each(session, &keys, count, |session, key| {
            out.clear();
            let begun = session.fetch_begin(key, &plain, &mut out).expect("a key of 16 B");
            assert!(matches!(begun, Begun::Hit(_)));
        }),
        "fetch_into" => each(session, &keys, count, |session, key| {
            let missed = session.get_fresh(key, &mut buffer, |_, _, _| ()).expect("a key of 16 B");
            assert!(missed.is_none());
        }),
        "miss" => each(session, &keys, count, |session, key| {
            assert!(session.get_append(key, &mut out).unwrap().is_none());
        }),
        "set" => each(session, &keys, count, |session, key| {
            session.set(key, black_box(value), 0).expect("a set is not refused");
        }),
        "incr" => each(session, &keys, count, |session, key| {
            session.incr(key, 1).expect("there is room");
        }),
        "arithmetic" => {
            let by_one = Arithmetic {
                delta: 1,
                ..Arithmetic::default()
            };
            each(session, &keys, count, |session, key| {
                session.arithmetic(key, &by_one).expect("there is room");
            });
        }
        "add" => each(session, &keys, count, |session, key| {
            session.set(key, value, 0).expect("a set is not refused");
            session.delete(key, &how).expect("a delete needs no room");
        }),
        "remove" => {
            let keys: Vec<Key> = (0..MANY).map(key).collect();
            for key in &keys {
                session.set(key, &[b'v'; VALUE_LEN], 0).expect("a set is not refused");
            }
            each(session, &keys, count, |session, key| {
                assert_eq!(session.delete(key, &how), Ok(Deleted::Deleted));
            });
        }
        _ => each(session, &keys, count, |session, key| {
            assert_eq!(session.delete(key, &how), Ok(Deleted::NotFound));
        }),
    }
}

/// Works with so many keys, whose length is not known when this is compiled.
#[inline(never)]
fn each(session: &mut Session, keys: &[Key], count: usize, mut work: impl FnMut(&mut Session, &[u8])) {
    for key in keys.iter().cycle().take(count) {
        work(session, black_box(key.as_slice()));
    }
}

/// Memory of a caller for a value.
struct Buffer([MaybeUninit<u8>; VALUE_LEN]);

impl Target for Buffer {
    fn reach(&self) -> Option<[&[MaybeUninit<u8>]; 2]> {
        Some([&self.0, &[]])
    }

    fn make_room(&mut self, item: &Item) -> bool {
        item.value_len <= self.0.len()
    }

    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        &mut self.0
    }
}
