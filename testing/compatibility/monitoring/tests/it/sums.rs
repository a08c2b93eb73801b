//! Ten processes use a region through all doors at once: calls, each protocol over TCP, a Unix socket, UDP, and the kernel door. Their own
//! counts, added up, are what `stats`, `/metrics` and `keyway top` say, and a watcher prints each change or counts it as lost. Its enemy: an
//! operation that is counted twice, for another door, or not at all; a sum that goes backwards when processes are killed; a change that a
//! watcher does not know of, or prints out of its key's order.
//! Guards: P44, P45

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use harness::{DEADLINE, Random, ServeOptions, Transport, Wire, keyway_binary, run_to_end, say, skip};
use keyway_cache::{Cache, Delete, Deleted, Number, Options, Place, Session};
use monitoring::{Monitored, Numbers};
use nix::sched::{CloneFlags, unshare};
use serde_json::Value;

/// Operations of a process that calls, and of one that asks.
const CALLS: u64 = 300_000;
const REQUESTS: u64 = 20_000;
/// Keys that all of them share: some hold numbers, some do not.
const KEYS: u64 = 300;
/// Processes that are killed in mid-work, one after the other.
const KILLED: u32 = 8;
/// What a process is told by.
const PART: &str = "KEYWAY_TEST_ROLE";

/// What can be counted of an operation, as `stats` names it; a set is one however it ends.
const COUNTED: [&str; 9] = [
    "get_hits",
    "get_misses",
    "cmd_set",
    "delete_hits",
    "delete_misses",
    "incr_hits",
    "incr_misses",
    "touch_hits",
    "touch_misses",
];

type Counts = BTreeMap<&'static str, u64>;

/// A way to the region.
trait Way {
    /// Each says what it was, by one of the names above.
    fn get(&mut self, key: &str) -> &'static str;
    fn set(&mut self, key: &str, value: &str) -> &'static str;
    fn delete(&mut self, key: &str) -> &'static str;
    fn incr(&mut self, key: &str) -> &'static str;
    fn touch(&mut self, key: &str) -> &'static str;
}

fn which(is_hit: bool, hit: &'static str, miss: &'static str) -> &'static str {
    if is_hit { hit } else { miss }
}

struct Calls(Session);

impl Way for Calls {
    fn get(&mut self, key: &str) -> &'static str {
        which(self.0.get(key.as_bytes()).unwrap().is_some(), "get_hits", "get_misses")
    }
    fn set(&mut self, key: &str, value: &str) -> &'static str {
        self.0.set(key.as_bytes(), value.as_bytes(), 0).unwrap();
        "cmd_set"
    }
    fn delete(&mut self, key: &str) -> &'static str {
        let deleted = self.0.delete(key.as_bytes(), &Delete::default()).unwrap();
        which(deleted == Deleted::Deleted, "delete_hits", "delete_misses")
    }
    fn incr(&mut self, key: &str) -> &'static str {
        let number = self.0.incr(key.as_bytes(), 1).unwrap();
        which(number != Number::NotFound, "incr_hits", "incr_misses")
    }
    fn touch(&mut self, key: &str) -> &'static str {
        which(self.0.touch(key.as_bytes(), 3600).unwrap(), "touch_hits", "touch_misses")
    }
}

/// The text protocol, over any transport.
struct Text(Wire);

impl Text {
    fn ask(&mut self, request: &str) -> String {
        self.0.ask(request).unwrap()
    }
}

impl Way for Text {
    fn get(&mut self, key: &str) -> &'static str {
        which(self.0.get(false, &[key]).unwrap().len() == 1, "get_hits", "get_misses")
    }
    fn set(&mut self, key: &str, value: &str) -> &'static str {
        assert_eq!(self.ask(&format!("set {key} 0 0 {}\r\n{value}", value.len())), "STORED");
        "cmd_set"
    }
    fn delete(&mut self, key: &str) -> &'static str {
        which(
            self.ask(&format!("delete {key}")) == "DELETED",
            "delete_hits",
            "delete_misses",
        )
    }
    fn incr(&mut self, key: &str) -> &'static str {
        which(self.ask(&format!("incr {key} 1")) != "NOT_FOUND", "incr_hits", "incr_misses")
    }
    fn touch(&mut self, key: &str) -> &'static str {
        which(
            self.ask(&format!("touch {key} 3600")) == "TOUCHED",
            "touch_hits",
            "touch_misses",
        )
    }
}

/// Meta commands. They have no touch that brings nothing, so a touch is a get.
struct Meta(Text);

impl Meta {
    fn is_done(&mut self, request: &str) -> bool {
        let answer = self.0.ask(request);
        assert!(["HD", "EN", "NF"].contains(&&answer[..2]), "{request}: {answer}");
        answer.starts_with("HD")
    }
}

impl Way for Meta {
    fn get(&mut self, key: &str) -> &'static str {
        which(self.is_done(&format!("mg {key} s")), "get_hits", "get_misses")
    }
    fn set(&mut self, key: &str, value: &str) -> &'static str {
        assert!(self.is_done(&format!("ms {key} {}\r\n{value}", value.len())));
        "cmd_set"
    }
    fn delete(&mut self, key: &str) -> &'static str {
        which(self.is_done(&format!("md {key}")), "delete_hits", "delete_misses")
    }
    fn incr(&mut self, key: &str) -> &'static str {
        which(self.is_done(&format!("ma {key}")), "incr_hits", "incr_misses")
    }
    fn touch(&mut self, key: &str) -> &'static str {
        self.get(key)
    }
}

/// The binary protocol (memcached's protocol-binary).
struct Binary(TcpStream);

impl Binary {
    /// Sends a packet. Returns whether the answer's status is success; "not found" is the only other one.
    fn is_done(&mut self, opcode: u8, extras: &[u8], key: &str, value: &str) -> bool {
        let body = extras.len() + key.len() + value.len();
        let mut packet = vec![0; 24];
        (packet[0], packet[1]) = (0x80, opcode);
        packet[3] = u8::try_from(key.len()).unwrap();
        packet[4] = u8::try_from(extras.len()).unwrap();
        packet[8..12].copy_from_slice(&u32::try_from(body).unwrap().to_be_bytes());
        let packet = [&packet, extras, key.as_bytes(), value.as_bytes()].concat();
        self.0.write_all(&packet).unwrap();
        let mut head = [0; 24];
        self.0.read_exact(&mut head).unwrap();
        let len = u32::from_be_bytes(head[8..12].try_into().unwrap());
        self.0.read_exact(&mut vec![0; usize::try_from(len).unwrap()]).unwrap();
        assert!([[0, 0], [0, 1]].contains(&[head[6], head[7]]), "{head:?}");
        head[7] == 0
    }
}

impl Way for Binary {
    fn get(&mut self, key: &str) -> &'static str {
        which(self.is_done(0x00, &[], key, ""), "get_hits", "get_misses")
    }
    fn set(&mut self, key: &str, value: &str) -> &'static str {
        assert!(self.is_done(0x01, &[0; 8], key, value));
        "cmd_set"
    }
    fn delete(&mut self, key: &str) -> &'static str {
        which(self.is_done(0x04, &[], key, ""), "delete_hits", "delete_misses")
    }
    fn incr(&mut self, key: &str) -> &'static str {
        // By one, from zero, and not made if it is absent.
        let mut extras = [0; 20];
        extras[7] = 1;
        extras[16..].fill(0xff);
        which(self.is_done(0x05, &extras, key, ""), "incr_hits", "incr_misses")
    }
    fn touch(&mut self, key: &str) -> &'static str {
        which(
            self.is_done(0x1c, &3600_u32.to_be_bytes(), key, ""),
            "touch_hits",
            "touch_misses",
        )
    }
}

/// One operation of a seeded mix. `before` is told which kind comes.
fn operate(way: &mut dyn Way, random: &mut Random, before: impl FnOnce(usize)) -> &'static str {
    let number = random.below(KEYS);
    let key = format!("value-{number}");
    let kind = [0, 0, 0, 0, 0, 1, 1, 2, 3, 4][random.index(10)];
    before(kind);
    match kind {
        0 => way.get(&key),
        1 if random.below(2) == 0 => way.set(&format!("number-{number}"), "1"),
        1 => way.set(&key, "some value"),
        2 if random.below(2) == 0 => way.delete(&format!("number-{number}")),
        2 => way.delete(&key),
        3 => way.incr(&format!("number-{number}")),
        _ => way.touch(&key),
    }
}

/// What a process of the test is told: the way, where it is, how often, a seed, and where a process that is killed keeps its journal.
struct Part {
    way: String,
    place: String,
    operations: u64,
    seed: u64,
    journal: Option<PathBuf>,
}

impl Part {
    fn start(&self) -> Child {
        let journal = self.journal.as_deref().unwrap_or(Path::new(""));
        let told = format!("{}|{}|{}|{}", self.way, self.place, self.operations, self.seed);
        harness::own_test(&[], module_path!(), "part_of_a_process")
            .env(PART, told)
            .env("KEYWAY_TEST_PLACE", journal)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    }

    fn told() -> Option<Self> {
        let told = std::env::var(PART).ok()?;
        let words: Vec<&str> = told.split('|').collect();
        let journal = std::env::var_os("KEYWAY_TEST_PLACE").filter(|path| !path.is_empty());
        Some(Self {
            way: words[0].into(),
            place: words[1].into(),
            operations: words[2].parse().unwrap(),
            seed: words[3].parse().unwrap(),
            journal: journal.map(PathBuf::from),
        })
    }

    fn way(&self) -> Box<dyn Way> {
        let stream = || {
            let stream = TcpStream::connect(self.place.parse::<SocketAddr>().unwrap()).unwrap();
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            stream
        };
        match &*self.way {
            "library" => {
                let cache = Cache::open(&Place::Socket(self.place.clone().into()), &Options::new()).unwrap();
                Box::new(Calls(cache.session().unwrap()))
            }
            "text" => Box::new(Text(Wire::from_tcp(stream()).unwrap())),
            "meta" => Box::new(Meta(Text(Wire::from_tcp(stream()).unwrap()))),
            "binary" => Box::new(Binary(stream())),
            "unix" => Box::new(Text(Wire::from_unix(UnixStream::connect(&self.place).unwrap()).unwrap())),
            "udp" => Box::new(Text(Wire::to_udp(self.place.parse().unwrap()).unwrap())),
            other => panic!("{other}"),
        }
    }
}

/// Not a test: what a process does.
#[test]
fn part_of_a_process() {
    let Some(part) = Part::told() else { return };
    let mut way = part.way();
    let mut random = Random::new(part.seed);
    let mut counts = Counts::new();
    let journal = part.journal.as_ref().map(|path| File::create(path).unwrap());
    // Begun and ended operations of each kind.
    let mut marks = [[0_u64; 2]; 5];
    for _ in 0..part.operations {
        let mut kind = 0;
        let mark = |kind: usize, side: usize, marks: &mut [[u64; 2]; 5]| {
            marks[kind][side] += 1;
            if let Some(journal) = &journal {
                let at = (kind * 2 + side) * 8;
                journal.write_all_at(&marks[kind][side].to_le_bytes(), at as u64).unwrap();
            }
        };
        let outcome = operate(&mut *way, &mut random, |next| {
            kind = next;
            mark(kind, 0, &mut marks);
        });
        mark(kind, 1, &mut marks);
        *counts.entry(outcome).or_default() += 1;
    }
    println!("counted {}", serde_json::to_string(&counts).unwrap());
}

/// Waits for a process, and takes its counts.
fn counts_of(child: Child, what: &str) -> Counts {
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let line = said
        .lines()
        .find_map(|line| line.split_once("counted ").map(|(_, json)| json));
    let line = line.unwrap_or_else(|| panic!("{what}: {}: {said}", output.status));
    let counts: BTreeMap<String, u64> = serde_json::from_str(line).unwrap();
    COUNTED
        .iter()
        .map(|name| (*name, counts.get(*name).copied().unwrap_or(0)))
        .collect()
}

/// What an operator sees, by the names of `stats`: each door, and all of them.
struct Shown {
    stats: BTreeMap<String, u64>,
    metrics: Numbers,
    top: Value,
    page: Value,
}

impl Shown {
    fn look(monitored: &Monitored) -> Self {
        let mut wire = monitored.server.connect(Transport::Unix);
        let stats = wire.stats("").unwrap();
        let stats = stats
            .into_iter()
            .filter_map(|(name, value)| Some((name, value.parse().ok()?)));
        let region = monitored.server.region();
        let mut command = Command::new(keyway_binary());
        command
            .args(["top", "--once", "--json", "--interval", "1", "--region"])
            .arg(region);
        let (status, output) = run_to_end(&mut command, DEADLINE);
        assert!(status.success(), "{output}");
        Self {
            stats: stats.collect(),
            metrics: monitored.numbers(),
            top: serde_json::from_str(&output).unwrap(),
            page: serde_json::from_str(&monitored.get("/state.json").body).unwrap(),
        }
    }

    /// Of all doors but the kernel's: by `stats`, by `top`, and by the page.
    fn all(&self) -> [Counts; 3] {
        let of = |counted: &dyn Fn(&str) -> u64| COUNTED.iter().map(|name| (*name, counted(name))).collect();
        [
            of(&|name| self.stats[name]),
            of(&|name| self.top["counters"][name].as_u64().unwrap()),
            of(&|name| self.page["counters"][name].as_u64().unwrap()),
        ]
    }

    /// Of one door, by `/metrics`.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "counts below 2^53")]
    fn of_door(&self, door: &str) -> Counts {
        let of = |name: &&'static str| {
            let (command, status) = match name.split_once('_').unwrap() {
                ("cmd", command) => (command, "hit"),
                (command, "hits") => (command, "hit"),
                (command, _) => (command, "miss"),
            };
            let sample = format!("keyway_door_commands_total{{command=\"{command}\",door=\"{door}\",status=\"{status}\"}}");
            (*name, self.metrics.samples.get(&sample).copied().unwrap_or(0.0) as u64)
        };
        COUNTED.iter().map(of).collect()
    }

    /// That no count is lower than in an earlier look.
    fn assert_not_behind(&self, earlier: &Self) {
        for (now, before) in self.all().iter().zip(&earlier.all()) {
            for (name, count) in before {
                assert!(now[name] >= *count, "{name} went from {count} to {}", now[name]);
            }
        }
        for (name, before) in &earlier.metrics.samples {
            let base = name.split('{').next().unwrap();
            if base.ends_with("_total") || base.ends_with("_bucket") || base.ends_with("_count") {
                let now = self.metrics.samples.get(name).copied().unwrap_or(0.0);
                assert!(now >= *before, "{name} went from {before} to {now}");
            }
        }
    }
}

fn sum(counts: &[Counts]) -> Counts {
    let of = |name: &&'static str| (*name, counts.iter().map(|counts| counts[*name]).sum());
    COUNTED.iter().map(of).collect()
}

/// A watcher of all changes, which writes to a file.
struct Watch {
    child: Child,
    lines: PathBuf,
}

impl Watch {
    fn start(region: &str, lines: PathBuf) -> Self {
        let mut child = Command::new(keyway_binary())
            .args(["watch", "mutations", "updates", "deletions", "--region", region])
            .stdout(File::create(&lines).unwrap())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It says so when it watches.
        let mut said = [0; b"keyway: watching ".len()];
        child.stderr.as_mut().unwrap().read_exact(&mut said).unwrap();
        assert_eq!(&said, b"keyway: watching ");
        Self { child, lines }
    }

    /// Waits for the line of a change of this key.
    fn wait_for(&self, key: &str) {
        let wanted = format!(" key={key} ");
        harness::wait_until(key, DEADLINE, || {
            let mut file = File::open(&self.lines).unwrap();
            let from = file.metadata().unwrap().len().saturating_sub(64 << 10);
            file.seek(SeekFrom::Start(from)).unwrap();
            let mut end = String::new();
            file.read_to_string(&mut end).unwrap();
            end.contains(&wanted).then_some(())
        });
    }

    /// Changes of the storm that it has printed, events that it has counted as lost, and whether it was stopped for so long that it does
    /// not know. Each key's lines are in the order of the changes: a CAS unique follows a smaller one, except after a delete. Each time
    /// that it does not, and no delete is printed, one must be among the lost events.
    fn judge(&self) -> (u64, u64, bool) {
        let (mut printed, mut lost, mut has_gap, mut turns) = (0, 0, false, Vec::new());
        let mut last: HashMap<String, u64> = HashMap::new();
        for line in BufReader::new(File::open(&self.lines).unwrap()).lines() {
            let line = line.unwrap();
            let word = |name: &str| line.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
            lost += word("skipped").map_or(0, |count| count.parse::<u64>().unwrap());
            has_gap |= word("type") == Some("gap");
            let Some(key) = word("key").filter(|key| key.starts_with("value-") || key.starts_with("number-")) else {
                continue;
            };
            printed += 1;
            if word("type") == Some("deleted") {
                last.remove(key);
                continue;
            }
            let cas: u64 = word("cas").unwrap().parse().unwrap();
            let is_touch = ["touch", "gat"].contains(&word("cmd").unwrap());
            if let Some(before) = last.insert(key.to_owned(), cas)
                && !(before < cas || is_touch && before == cas)
            {
                turns.push(format!("{before} is printed before: {line}"));
            }
        }
        assert!(has_gap || turns.len() as u64 <= lost, "{lost} events are lost: {turns:#?}");
        (printed, lost, has_gap)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a killed process is known to have done: at least, and at most, by kind.
fn journal_of(path: &Path) -> [[u64; 2]; 5] {
    let bytes = std::fs::read(path).unwrap_or_default();
    let word = |at: usize| {
        bytes
            .get(at * 8..at * 8 + 8)
            .map_or(0, |word| u64::from_le_bytes(word.try_into().unwrap()))
    };
    std::array::from_fn(|kind| [word(kind * 2 + 1), word(kind * 2)])
}

/// By kind: gets, sets, deletes, incrs, touches.
fn by_kind(counts: &Counts) -> [u64; 5] {
    let both = |command: &str| counts[&*format!("{command}_hits")] + counts[&*format!("{command}_misses")];
    [both("get"), counts["cmd_set"], both("delete"), both("incr"), both("touch")]
}

fn storm() {
    let scratch = harness::Scratch::new();
    // Callers get the region here, and with it what the kernel door needs to know of their changes.
    let handed_out = scratch.join("region-socket").display().to_string();
    let options = ServeOptions {
        transport: Transport::Udp,
        keyway_arguments: ["--kernel", "lo", "--region-socket", &handed_out].map(String::from).into(),
        ..ServeOptions::default()
    };
    let monitored = Monitored::start(&options);
    let seed = Random::seed_for("sums");
    let address = monitored.server.address().to_string();
    let region = monitored.server.region().display().to_string();
    let socket = monitored.server.socket().display().to_string();
    let ways = [
        ("library", &handed_out, CALLS),
        ("library", &handed_out, CALLS),
        ("library", &handed_out, CALLS),
        ("library", &handed_out, CALLS),
        ("text", &address, REQUESTS),
        ("meta", &address, REQUESTS),
        ("binary", &address, REQUESTS),
        ("unix", &socket, REQUESTS),
        ("udp", &address, REQUESTS),
        ("udp", &address, REQUESTS),
    ];
    let part = |way: &str, place: &str, operations, seed, journal| Part {
        way: way.into(),
        place: place.into(),
        operations,
        seed,
        journal,
    };
    let watch = Watch::start(&region, scratch.join("watched"));
    // UDP's sockets are among them, and the one that asks.
    let connections = monitored.server.stat("curr_connections");
    let children = ways.iter().zip(1..).map(|((way, place, operations), number)| {
        let part = part(way, place, *operations, seed ^ number, None);
        (*way, part.start())
    });
    let mut children: Vec<(&str, Child)> = children.collect();

    // Meanwhile others are killed in mid-work: callers, clients, and those that look on.
    let mut random = Random::new(seed);
    let mut last = Shown::look(&monitored);
    let mut killed = Vec::new();
    for number in 0..KILLED {
        let journal = scratch.join(&format!("journal-{number}"));
        let (way, place) = [("library", &handed_out), ("text", &address)][number as usize % 2];
        let mut victim = part(way, place, u64::MAX, random.next(), Some(journal.clone())).start();
        let looking: &[&str] = match number / 2 % 2 {
            0 => &["top", "--once", "--interval", "30"],
            // No other kinds: what sessions cannot write is counted whatever its kind.
            _ => &["watch", "mutations", "updates", "deletions"],
        };
        let mut looks_on = Command::new(keyway_binary())
            .args(looking)
            .args(["--region", &region])
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        harness::wait_until("the victim works", DEADLINE, || {
            (journal_of(&journal).iter().map(|kind| kind[0]).sum::<u64>() > 100).then_some(())
        });
        std::thread::sleep(Duration::from_millis(random.below(30)));
        for child in [&mut victim, &mut looks_on] {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let now = Shown::look(&monitored);
        now.assert_not_behind(&last);
        last = now;
        killed.push((way, journal_of(&journal)));
    }
    let made: Vec<(&str, Counts)> = children.drain(..).map(|(way, child)| (way, counts_of(child, way))).collect();
    // A request whose client was killed may still be on its way.
    harness::wait_until("the killed clients' connections end", DEADLINE, || {
        (monitored.server.stat("curr_connections") <= connections).then_some(())
    });
    let shown = Shown::look(&monitored);
    shown.assert_not_behind(&last);

    // Each door exactly, but for what a killed process had begun and not ended.
    let made_by = |wanted: &dyn Fn(&str) -> bool| {
        let counts: Vec<Counts> = made
            .iter()
            .filter(|(way, _)| wanted(way))
            .map(|(_, counts)| counts.clone())
            .collect();
        sum(&counts)
    };
    let library = made_by(&|way| way == "library");
    let network = made_by(&|way| way != "library");
    let kernel = shown.of_door("kernel");
    assert!(kernel["get_hits"] > 0, "the kernel door answers: {}", monitored.server.log());
    for (way, made, counted) in [
        ("library", &library, shown.of_door("library")),
        ("text", &network, sum(&[shown.of_door("network"), kernel.clone()])),
    ] {
        let journals: Vec<_> = killed
            .iter()
            .filter(|(by, _)| *by == way)
            .map(|(_, journal)| journal)
            .collect();
        for (kind, (made, counted)) in by_kind(made).into_iter().zip(by_kind(&counted)).enumerate() {
            let [least, most] = [0, 1].map(|side| made + journals.iter().map(|journal| journal[kind][side]).sum::<u64>());
            assert!(
                (least..=most).contains(&counted),
                "{way}, kind {kind}: {counted} are counted; {least} to {most} were made"
            );
        }
    }
    // Whichever way one asks. The server's own reads for the kernel door are in all but its doors.
    let [by_stats, by_top, by_page] = shown.all();
    assert_eq!((&by_stats, &by_stats), (&by_top, &by_page));
    assert_eq!(shown.page["kernel_hits"], kernel["get_hits"]);
    for door in ["library", "network"] {
        for (name, count) in shown.of_door(door) {
            assert_eq!(shown.page[door][name], count, "{door}: {name}");
        }
    }
    let mut by_doors = sum(&[shown.of_door("library"), shown.of_door("network")]);
    let own = by_stats["get_hits"] - by_doors["get_hits"] + by_stats["get_misses"] - by_doors["get_misses"];
    assert!(
        own <= shown.stats["keyway_kernel_copied"] + shown.stats["keyway_kernel_renewed"],
        "{own}"
    );
    for name in ["get_hits", "get_misses"] {
        by_doors.insert(name, by_stats[name]);
    }
    assert_eq!(by_stats, by_doors);
    assert_eq!(shown.stats["cmd_get"], by_stats["get_hits"] + by_stats["get_misses"]);
    assert_eq!(shown.stats["evictions"], 0, "nothing else was counted away");

    // The watcher knows of each change.
    let mut session = Cache::open(&Place::Socket(handed_out.clone().into()), &Options::new())
        .unwrap()
        .session()
        .unwrap();
    // What is lost at the end is said before what comes after it.
    for key in ["watched-to-here", "and-to-here"] {
        session.set(key.as_bytes(), b"", 0).unwrap();
        watch.wait_for(key);
    }
    let (printed, lost, has_gap) = watch.judge();
    let changes: u64 = ["cmd_set", "delete_hits", "incr_hits", "touch_hits"]
        .iter()
        .map(|name| by_stats[*name])
        .sum();
    // A killed process may have published a change that it had not counted, and the other way round.
    let killed_in_it = u64::from(KILLED);
    assert!(
        has_gap || changes.abs_diff(printed + lost) <= killed_in_it,
        "{changes} changes; {printed} are printed, {lost} events are lost"
    );
    assert!(printed > 0);

    // Latencies: each request once; of calls one in 256 on average, six deviations of the sum of intervals of 1 to 511 allowed.
    let measured = |doors: &[&str]| -> f64 {
        let count = |(name, count): (&String, &f64)| {
            let of_gets = name.starts_with("keyway_latency_seconds_count{") && name.contains("verb=\"get\"");
            let wanted = of_gets && doors.iter().any(|door| name.contains(&format!("door=\"{door}\"")));
            wanted.then_some(*count)
        };
        shown.metrics.samples.iter().filter_map(count).sum()
    };
    let gets_of = |door: &str| by_kind(&shown.of_door(door))[0] as f64;
    assert_eq!(measured(&["text", "meta", "binary", "udp"]), gets_of("network"));
    let (expected, found) = (gets_of("library") / 256.0, measured(&["library"]));
    let allowed = 6.0 * (gets_of("library") * (511.0_f64.powi(2) / 12.0) / 256.0_f64.powi(3)).sqrt() + f64::from(KILLED);
    assert!((expected - found).abs() <= allowed, "{found} of {expected} ± {allowed}");
    say(&format!(
        "sums: {} calls, {} requests, {} of them answered in the kernel, {KILLED} processes killed; {printed} of {changes} changes printed",
        by_kind(&shown.of_door("library")).iter().sum::<u64>(),
        by_kind(&network).iter().sum::<u64>(),
        kernel["get_hits"],
    ));
}

#[test]
fn what_ten_processes_do_through_all_doors_adds_up() {
    // The thread gets a network namespace of its own, and so does all that it starts.
    let tried = std::thread::spawn(|| -> Result<(), String> {
        unshare(CloneFlags::CLONE_NEWNET).map_err(|error| format!("no network namespace can be made: {error}"))?;
        let (status, output) = run_to_end(Command::new("ip").args(["link", "set", "lo", "up"]), DEADLINE);
        assert!(status.success(), "{output}");
        storm();
        Ok(())
    });
    match tried.join() {
        Ok(Ok(())) => {}
        Ok(Err(because)) => skip("the sums of all doors", &because),
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
