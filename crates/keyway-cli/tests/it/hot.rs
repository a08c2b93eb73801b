//! Hot keys, seen from outside: what library processes and clients of the server ask for most is what `keyway hot` and `stats hotkeys`
//! show, while some of these processes are killed. The numbers of operations are fixed, and no time is asserted.
//! Guards: P46

use keyway_cache::{Cache, HotBy, HotCounts, Options, Place};
use serde_json::Value;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use harness::{Random, Scratch, wait_for_ready};

/// Keys of each workload.
const KEYS: usize = 10_000;
/// Gets by each of the processes that live, by each that is killed, and by the client of the server.
const LIBRARY: usize = 600_000;
const KILLED: usize = 200_000;
const NETWORK: usize = 400_000;
/// Keys of a request.
const TOGETHER: usize = 100;
/// Set in a process that this test starts as a user of the library: workload, seed, region.
const ROLE: &str = "KEYWAY_TEST_ROLE";

/// Ranks with a Zipf distribution. From one phase to the next the ranks belong to other keys.
struct Zipf {
    sums: Vec<f64>,
    random: Random,
    phase: usize,
}

impl Zipf {
    fn new(exponent: f64, phase: usize, seed: u64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=KEYS).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Self {
            sums: sums.collect(),
            random: Random::new(seed),
            phase,
        }
    }

    fn key(&self, rank: usize) -> String {
        format!("user:{}", (rank + 1_000 * self.phase) % KEYS)
    }

    fn next(&mut self) -> String {
        let unit = (self.random.next() >> 11) as f64 / (1u64 << 53) as f64;
        let wanted = unit * self.sums[KEYS - 1];
        self.key(self.sums.partition_point(|sum| *sum < wanted).min(KEYS - 1))
    }
}

/// The value of a key: some bytes more for some keys than for others, and never so many that bytes have another order than gets.
fn value(key: &str) -> Vec<u8> {
    vec![b'v'; 100 + key.len()]
}

/// Not a test: what a process does that a test below has started.
#[test]
fn a_process_with_the_library() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let parts: Vec<&str> = role.split(' ').collect();
    let [exponent, phase, seed, count, place] = parts.as_slice() else {
        panic!("{role}")
    };
    let cache = Cache::open(&Place::at(place), &Options::new()).unwrap();
    let mut session = cache.session().unwrap();
    let mut zipf = Zipf::new(exponent.parse().unwrap(), phase.parse().unwrap(), seed.parse().unwrap());
    let mut found = Vec::new();
    for _ in 0..count.parse::<usize>().unwrap() {
        found.clear();
        assert!(session.get_append(zipf.next().as_bytes(), &mut found).unwrap().is_some());
    }
    println!("\nall asked");
    std::io::stdout().flush().unwrap();
    // Until it is ended, or killed: it still has its session then.
    let _ = std::io::stdin().read(&mut [0]);
}

struct World {
    server: Child,
    folder: Scratch,
    cache: Cache,
}

impl World {
    fn new() -> Self {
        let folder = Scratch::new();
        let mut server = Command::new(env!("CARGO_BIN_EXE_keyway"));
        server
            .args([
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--memory",
                "64m",
                "--threads",
                "2",
                "--socket",
            ])
            .arg(folder.path().join("socket"))
            .arg("--region")
            .arg(folder.path().join("region"));
        let mut server = server.stdout(Stdio::piped()).spawn().unwrap();
        wait_for_ready(&mut server);
        let cache = Cache::open(&Place::at(folder.path().join("region")), &Options::new()).unwrap();
        let mut session = cache.session().unwrap();
        for key in 0..KEYS {
            let key = format!("user:{key}");
            session.set(key.as_bytes(), &value(&key), 0).unwrap();
        }
        drop(session);
        cache.hot_counts();
        Self { server, folder, cache }
    }

    fn connect(&self) -> BufReader<UnixStream> {
        BufReader::new(UnixStream::connect(self.folder.path().join("socket")).unwrap())
    }

    fn process(&self, exponent: f64, phase: usize, seed: u64, count: usize) -> Child {
        let region = self.folder.path().join("region");
        harness::own_test(&[], module_path!(), "a_process_with_the_library")
            .env(ROLE, format!("{exponent} {phase} {seed} {count} {}", region.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    /// Two library processes that live, two that are killed in the middle, and a client of the server, all at the same time.
    fn work(&self, exponent: f64, phase: usize) {
        let seed = |n: u64| n + 10 * phase as u64;
        let living = [1, 2].map(|n| self.process(exponent, phase, seed(n), LIBRARY));
        let mut killed: Vec<Child> = [3, 4]
            .map(|n| self.process(exponent, phase, seed(n), if n == 3 { KILLED } else { usize::MAX }))
            .into();
        let mut zipf = Zipf::new(exponent, phase, seed(5));
        let mut connection = self.connect();
        for round in 0..NETWORK / TOGETHER {
            if round % 100 == 0 {
                // As a program that looks at the counters all the time.
                self.cache.hot_counts();
            }
            let mut request = "get".to_owned();
            for _ in 0..TOGETHER {
                request.push(' ');
                request.push_str(&zipf.next());
            }
            request.push_str("\r\n");
            connection.get_mut().write_all(request.as_bytes()).unwrap();
            let mut line = String::new();
            while line != "END\r\n" {
                line.clear();
                assert!(connection.read_line(&mut line).unwrap() > 0);
            }
            if round == NETWORK / TOGETHER / 2 {
                // One is in the middle of its gets, the other one has made all of them, or not yet.
                for mut process in killed.drain(..) {
                    process.kill().unwrap();
                    process.wait().unwrap();
                }
            }
        }
        for mut process in living {
            let mut lines = BufReader::new(process.stdout.take().unwrap()).lines().map_while(Result::ok);
            assert!(lines.any(|line| line == "all asked"));
            drop(process.stdin.take());
            lines.for_each(drop);
            assert!(process.wait().unwrap().success());
        }
    }

    /// The true top 10 are in the first 12 that these have, with ranges that the truth is in.
    fn judge(&self, what: &str, exponent: f64, phase: usize, counts: &HotCounts, since: Option<&HotCounts>) {
        let zipf = Zipf::new(exponent, phase, 1);
        for by in [HotBy::Gets, HotBy::Bytes] {
            let shown = self.cache.hot_keys(counts, since, by, 12);
            let shown: Vec<Vec<u8>> = shown.into_iter().filter_map(|hot| hot.name).collect();
            for rank in 0..10 {
                let key = zipf.key(rank);
                assert!(
                    shown.iter().any(|name| *name == key.as_bytes()),
                    "{what}, {by:?}: {key} is missing: {:?}",
                    shown.iter().map(|name| name.escape_ascii().to_string()).collect::<Vec<_>>()
                );
            }
        }
    }

    fn keyway_hot(&self, arguments: &[&str]) -> String {
        let output = Command::new(env!("CARGO_BIN_EXE_keyway"))
            .args(["hot", "--once", "--seconds", "1", "--region"])
            .arg(self.folder.path().join("region"))
            .args(arguments)
            .output()
            .unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn stats_hotkeys(&self, more: &str) -> Vec<String> {
        let mut connection = self.connect();
        connection
            .get_mut()
            .write_all(format!("stats hotkeys{more}\r\n").as_bytes())
            .unwrap();
        let lines = connection.lines().map_while(Result::ok);
        lines.take_while(|line| line != "END").collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn zipf(name: &str, exponent: f64) {
    let world = World::new();
    world.work(exponent, 0);
    let counts = world.cache.hot_counts();
    world.judge(name, exponent, 0, &counts, None);

    // The ranges: the truth of the living ones is exact, and of the killed ones, the first has asked at most `KILLED` times.
    let counters = world.cache.counters();
    let zipf = Zipf::new(exponent, 0, 1);
    let gets = counters.cmd_get() as f64;
    let mut outside = 0;
    for hot in world.cache.hot_keys(&counts, None, HotBy::Gets, 100) {
        let name = String::from_utf8(hot.name.clone().unwrap()).unwrap();
        let rank: usize = name.strip_prefix("user:").unwrap().parse().unwrap();
        let share = ((rank + 1) as f64).powf(-exponent) / zipf.sums[KEYS - 1];
        // Its count itself differs from the expected one by a few deviations.
        let (truth, deviation) = (gets * share, 3.0 * (gets * share).sqrt());
        let is_in = (hot.at_least as f64) <= truth + deviation && truth - deviation <= hot.at_most as f64;
        outside += usize::from(!is_in);
        assert!(hot.at_least <= hot.estimate && hot.estimate <= hot.at_most, "{hot:?}");
        // Many more deviations than any run will see.
        assert!(
            (hot.estimate as f64) < 2.0 * truth + 10_000.0,
            "{rank}: {hot:?}, expected {truth}"
        );
    }
    assert!(outside <= 20, "{outside} of 100 ranges are beside the truth");
}

#[test]
fn the_hottest_of_zipf_0_99_are_shown() {
    zipf("hot-zipf-099", 0.99);
}

#[test]
fn the_hottest_of_zipf_1_2_are_shown() {
    zipf("hot-zipf-120", 1.2);
}

#[test]
fn a_hot_set_that_shifts_is_followed() {
    let world = World::new();
    let mut since = world.cache.hot_counts();
    for phase in 0..3 {
        world.work(0.99, phase);
        let counts = world.cache.hot_counts();
        world.judge("shifting", 0.99, phase, &counts, Some(&since));
        since = counts;
    }
}

#[test]
fn the_command_and_the_server_show_the_same_keys() {
    let world = World::new();
    let mut session = world.cache.session().unwrap();
    // By sets, by gets and by bytes other keys are first.
    let long = vec![b'v'; 50_000];
    session.set(b"page:long", &long, 0).unwrap();
    for _ in 0..20_000 {
        session.set(b"user:1", b"v", 0).unwrap();
        session.incr(b"none", 1).unwrap();
        session.get(b"user:2").unwrap();
        session.get(b"user:2").unwrap();
        session.get(b"user:none").unwrap();
    }
    for _ in 0..10_000 {
        session.get(b"page:long").unwrap();
    }
    let first = |lines: &[String], kind: &str| {
        let begin = format!("STAT {kind}:1:");
        let of_first: HashMap<String, String> = lines
            .iter()
            .filter_map(|line| line.strip_prefix(&begin)?.split_once(' '))
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        of_first
    };
    let lines = world.stats_hotkeys("");
    assert!(
        !lines.iter().any(|line| line.contains("recent_")),
        "nothing is known of the time before: {lines:?}"
    );
    assert_eq!(first(&lines, "gets")["key"], "user%3A2");
    assert_eq!(first(&lines, "bytes")["key"], "page%3Along");
    let lines = world.stats_hotkeys("");
    assert!(lines.iter().any(|line| line.starts_with("STAT hotkeys_seconds ")));

    let json: Value = serde_json::from_str(&world.keyway_hot(&["--json"])).unwrap();
    let all = &json["since_start"];
    assert_eq!(all["gets"][0]["key"], "user:2");
    assert_eq!(all["bytes"][0]["key"], "page:long");
    let gets = all["gets"].as_array().unwrap();
    let estimate = gets[0]["estimate"].as_u64().unwrap();
    assert!((30_000..50_000).contains(&estimate), "{estimate} of 40,000");
    let bytes = all["bytes"][0]["estimate"].as_u64().unwrap();
    assert!((350_000_000..650_000_000).contains(&bytes), "{bytes} of 500,000,000");
    // A key without an item is no less hot, and has the name that was asked for; but not by sets alone.
    assert!(gets[..3].iter().any(|hot| hot["key"] == "user:none"), "{gets:?}");
    let sets: Vec<&Value> = all["sets"].as_array().unwrap()[..2].iter().map(|hot| &hot["key"]).collect();
    assert!(
        sets.contains(&&Value::from("user:1")) && sets.contains(&&Value::Null),
        "{sets:?}"
    );
    assert_eq!(
        json["recent"]["gets"],
        Value::from(Vec::<Value>::new()),
        "no operation in that second"
    );

    let text = world.keyway_hot(&["--top", "2"]);
    assert!(
        text.contains("by gets, since the region was made") && text.contains("user:2"),
        "{text}"
    );
    let redacted = world.keyway_hot(&["--redact"]);
    assert!(
        !redacted.contains("user:") && !redacted.contains("page:") && redacted.contains('#'),
        "{redacted}"
    );
    let redacted = world.keyway_hot(&["--redact", "--prefix", ":", "--json"]);
    assert!(!redacted.contains("user") && !redacted.contains("page"), "{redacted}");

    let json: Value = serde_json::from_str(&world.keyway_hot(&["--prefix", ":", "--json"])).unwrap();
    let prefixes = json["since_start"]["gets"].as_array().unwrap();
    assert_eq!(prefixes[0]["prefix"], "user");
    assert!(prefixes.iter().any(|hot| hot["prefix"] == "page"), "{prefixes:?}");
    assert!(prefixes.iter().all(|hot| hot["at_least"].as_u64() <= hot["at_most"].as_u64()));

    // The server has the same groups, and the same numbers of them.
    let lines = world.stats_hotkeys(" prefix");
    let user = first(&lines, "gets");
    assert_eq!(user["prefix"], "user");
    assert_eq!(user["estimate"], prefixes[0]["estimate"].to_string());
    assert_eq!(first(&lines, "bytes")["prefix"], "page");
    assert!(
        lines
            .iter()
            .any(|line| line == "STAT sets:2:absent yes" || line == "STAT sets:1:absent yes"),
        "{lines:?}"
    );
    assert!(!lines.iter().any(|line| line.contains(":key ")), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("STAT hotkeys_seconds ")));
    assert_eq!(first(&world.stats_hotkeys(" prefix :l"), "bytes")["prefix"], "page");
    assert_eq!(first(&world.stats_hotkeys(" prefix a"), "bytes")["prefix"], "p");
    assert_eq!(first(&world.stats_hotkeys(" prefix /"), "gets")["prefix"], "user%3A2");
}
