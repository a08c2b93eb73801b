//! `cargo xtask flights race`: rows are changed, and then their keys deleted, while others fetch them through all doors.
//! Enemy: a value that is older than a delete which had returned before the get began.

use crate::door::{Asks, Client, Door, Fetched, Library};
use harness::{Kind, Random, ServeOptions, Server};
use keyway_cache::{Cache, Fetch, Options, Place};
use std::process::ExitCode;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// So few that threads often meet at one.
const KEYS: usize = 16;
/// Of how many requests of a thread one changes a row.
const CHANGES_ONE_IN: u64 = 3;

/// The data base: how often each row was changed, and how many of these changes had been deleted.
#[derive(Default)]
struct Rows {
    changed: [AtomicU64; KEYS],
    deleted: [AtomicU64; KEYS],
}

/// What was counted.
#[derive(Default)]
struct Counts {
    computed: AtomicU64,
    dropped: AtomicU64,
    found: AtomicU64,
    older: AtomicU64,
}

/// How values are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Fetch,
    GetAndSet,
}

/// So many computations in each way.
pub fn run(rounds: u64, seed: u64) -> ExitCode {
    println!("flights race: {rounds} computations, seed {seed}");
    let fetched = race(Way::Fetch, rounds, seed);
    let plain = race(Way::GetAndSet, rounds.min(200_000), seed);
    for (name, counts) in [("fetch", &fetched), ("get, compute, set", &plain)] {
        println!(
            "  {name}: {} computations, {} of them dropped because the key had changed, {} values found, {} older than a delete",
            counts.computed.load(Relaxed),
            counts.dropped.load(Relaxed),
            counts.found.load(Relaxed),
            counts.older.load(Relaxed)
        );
    }
    let mut wrong = Vec::new();
    if fetched.older.load(Relaxed) > 0 {
        wrong.push("a fetch has returned what was older than a delete");
    }
    if fetched.dropped.load(Relaxed) == 0 || plain.older.load(Relaxed) == 0 {
        wrong.push("the race was not met");
    }
    wrong.iter().for_each(|why| println!("  WRONG: {why}"));
    let failed = u64::from(!wrong.is_empty());
    println!("{} passed, {failed} failed", 1 - failed);
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn race(way: Way, rounds: u64, seed: u64) -> Counts {
    let server = Server::start(Kind::Keyway, &ServeOptions::default());
    let cache = Cache::open(&Place::Path(server.region().to_owned()), &Options::new()).expect("the server's region");
    let how = Fetch {
        wait: Duration::from_millis(5),
        ..Fetch::default()
    };
    let library = || Box::new(Library::new(cache.session().expect("a session"), how)) as Box<dyn Door>;
    let client = |asks| Box::new(Client::new(&server, asks)) as Box<dyn Door>;
    let doors = [library(), library(), client(Asks::Leases), client(Asks::Wins)];
    let (rows, counts) = (Rows::default(), Counts::default());
    std::thread::scope(|scope| {
        for (number, mut door) in doors.into_iter().enumerate() {
            let (rows, counts, mut random) = (&rows, &counts, Random::new(seed).fork(number as u64));
            scope.spawn(move || {
                while counts.computed.load(Relaxed) < rounds {
                    act(&mut *door, way, rows, counts, &mut random);
                }
            });
        }
    });
    counts
}

fn act(door: &mut dyn Door, way: Way, rows: &Rows, counts: &Counts, random: &mut Random) {
    let number = random.index(KEYS);
    let key = format!("row-{number}");
    if random.below(CHANGES_ONE_IN) == 0 {
        let change = rows.changed[number].fetch_add(1, SeqCst) + 1;
        door.delete(&key);
        rows.deleted[number].fetch_max(change, SeqCst);
        return;
    }
    let deleted = rows.deleted[number].load(SeqCst);
    let long = random.below(8) == 0;
    let mut compute = || {
        let row = rows.changed[number].load(SeqCst);
        if long {
            std::thread::yield_now();
        }
        // Numbers begin with 1: an empty item is none.
        row + 1
    };
    let answer = match way {
        Way::Fetch => door.fetch(&key, &mut compute),
        Way::GetAndSet => door.get_and_set(&key, &mut compute),
    };
    match answer {
        Fetched::Elsewhere => {}
        Fetched::Found(row) => {
            counts.found.fetch_add(1, Relaxed);
            counts.older.fetch_add(u64::from(row < deleted + 1), Relaxed);
        }
        Fetched::Computed(_, is_stored) => {
            counts.computed.fetch_add(1, Relaxed);
            counts.dropped.fetch_add(u64::from(!is_stored), Relaxed);
        }
    }
}
