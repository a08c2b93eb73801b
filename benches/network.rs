//! The network door beside memcached: throughput, the server's CPU time per request, and latency.
//!
//! Both servers run all the time, pinned to CPU 0; one of them at a time gets a load, from this thread on CPU 1 (for latency also
//! on CPU 0). Repeats interleave: memcached, Keyway, memcached, Keyway, …

use benches::client::{Admin, Door, Exchange, Load, Target};
use benches::cpu_time::CpuTime;
use benches::machine;
use benches::report::{Args, Samples, head, row, say};
use benches::requests::{Popularity, keys};
use benches::servers::{Server, Settings, keyway_path, memcached_version};
use benches::workload::{Key, key};
use std::io;
use std::time::Duration;

const HELP: &str = "\
network: Keyway's server beside memcached

    --seconds S    length of one measurement (2)
    --repeats N    measurements of each kind (5)
    --threads N    server threads; otherwise 1, then 4
    --only TEXT    rows whose name contains TEXT, such as 'unix' or 'pipelined'
    --table NAME   throughput or latency; otherwise both
    --items N      items in each server (100000)
    --value-len N  bytes of a value (128)
    --uniform      all items alike; otherwise popular as by a zipfian
    --requests N   different keys that are asked for, over and over (16384)

KEYWAY_BIN and KEYWAY_MEMCACHED name other programs than target/release/keyway and the memcached on the PATH.";

const SERVER_CPU: usize = 0;
const CLIENT_CPU: usize = 1;
const MEMORY_MIB_MIN: u64 = 1024;

struct Plan {
    length: Duration,
    repeats: usize,
    only: String,
    items: u64,
    value_len: usize,
    popularity: Popularity,
    /// loads take their requests from a list of this many, over and over
    requests: usize,
}

impl Plan {
    fn keys(&self) -> Vec<Key> {
        keys(self.items, self.popularity, self.requests, 42)
    }
}

fn main() -> io::Result<()> {
    let args = Args::parse(HELP);
    let plan = Plan {
        length: Duration::from_secs_f64(args.number("--seconds", 2.0)),
        repeats: args.number("--repeats", 5),
        only: args.value("--only").unwrap_or_default().to_owned(),
        items: args.number("--items", 100_000),
        value_len: args.number("--value-len", 128),
        popularity: if args.has("--uniform") {
            Popularity::Uniform
        } else {
            Popularity::Zipf
        },
        requests: args.number("--requests", 1 << 14),
    };
    let threads = args
        .value("--threads")
        .map_or(vec![1, 4], |_| vec![args.number("--threads", 1)]);
    let table = args.value("--table").unwrap_or_default();
    say(machine::describe());
    say(format!(
        "{}; {} items of 16 + {} bytes, {}; {} repeats of {:?}",
        memcached_version(),
        plan.items,
        plan.value_len,
        plan.popularity.name(),
        plan.repeats,
        plan.length
    ));
    if machine::cpus() <= CLIENT_CPU {
        say("SKIP: two CPUs are needed, and this process may use one");
        return Ok(());
    }
    for threads in threads {
        let Some(pair) = Pair::start(threads, &plan)? else {
            say("SKIP: memcached is not installed");
            return Ok(());
        };
        say(format!("\n{threads} server thread{}", if threads == 1 { "" } else { "s" }));
        if table != "latency" {
            throughput(&pair, &plan)?;
        }
        if table != "throughput" {
            latency(&pair, &plan)?;
        }
    }
    Ok(())
}

/// Both servers, loaded with the same items.
struct Pair {
    /// memcached has TCP or a Unix socket, never both
    memcached: [Server; 2],
    keyway: Server,
}

impl Pair {
    /// `None`: there is no memcached.
    fn start(threads: usize, plan: &Plan) -> io::Result<Option<Self>> {
        machine::pin(&[SERVER_CPU])?;
        // memcached takes about 70 bytes more for an item, and leaves some of its memory unused.
        let needed = plan.items * (plan.value_len as u64 + 16 + 120);
        let settings = |unix| Settings {
            memory_mib: MEMORY_MIB_MIN.max(needed >> 20),
            threads,
            connections: 1024,
            unix,
            ..Settings::default()
        };
        let (Some(tcp), Some(unix)) = (Server::memcached(&settings(false))?, Server::memcached(&settings(true))?) else {
            return Ok(None);
        };
        let pair = Self {
            memcached: [tcp, unix],
            keyway: Server::keyway(&keyway_path()?, &settings(true))?,
        };
        machine::pin(&[CLIENT_CPU])?;
        for server in pair.memcached.iter().chain([&pair.keyway]) {
            let mut admin = Admin::open(server.admin())?;
            let value = vec![b'v'; plan.value_len];
            for index in 0..plan.items {
                admin.set(&key(index), &value)?;
            }
            admin.barrier()?;
        }
        Ok(Some(pair))
    }

    /// memcached, then Keyway: each with where to reach it.
    fn sides(&self, unix: bool) -> io::Result<[(&Server, Target); 2]> {
        let memcached = &self.memcached[usize::from(unix)];
        let door = if unix { Door::Unix } else { Door::Tcp };
        Ok([
            (memcached, memcached.target(door).ok_or(io::ErrorKind::NotConnected)?),
            (&self.keyway, self.keyway.target(door).ok_or(io::ErrorKind::NotConnected)?),
        ])
    }
}

/// A row of the throughput table.
struct Case {
    name: String,
    load: Load,
    /// requests (of a multi-get: keys) in one exchange
    per_exchange: u64,
}

fn cases(plan: &Plan) -> Vec<Case> {
    let (order, value_len) = (plan.keys(), plan.value_len);
    let gets = || order.iter().map(|k| Exchange::get(&[k], value_len)).collect::<Vec<_>>();
    let sets = || order.iter().map(|k| Exchange::set(k, value_len)).collect::<Vec<_>>();
    // 19 gets and a set, as YCSB's B.
    let mixed = || {
        gets()
            .into_iter()
            .zip(sets())
            .enumerate()
            .map(|(i, (get, set))| if i % 20 == 0 { set } else { get })
            .collect()
    };
    let pipelined = |count| gets().chunks_exact(count).map(Exchange::pipelined).collect();
    let multi = |count| {
        order
            .chunks_exact(count)
            .map(|keys: &[Key]| Exchange::get(keys, value_len))
            .collect()
    };
    let case = |name: String, connections, exchanges, per_exchange| Case {
        name,
        load: Load { exchanges, connections },
        per_exchange,
    };
    let mut cases = Vec::new();
    for connections in [1, 4, 64] {
        cases.push(case(format!("get, {connections} conn."), connections, gets(), 1));
    }
    for connections in [4, 64] {
        cases.push(case(format!("set, {connections} conn."), connections, sets(), 1));
    }
    cases.push(case("95/5, 64 conn.".to_owned(), 64, mixed(), 1));
    for connections in [1, 4, 64] {
        cases.push(case(
            format!("get, 16 pipelined, {connections} conn."),
            connections,
            pipelined(16),
            16,
        ));
        cases.push(case(
            format!("multi-get of 16, {connections} conn."),
            connections,
            multi(16),
            16,
        ));
    }
    cases.push(case("get, 32 pipelined, 4 conn.".to_owned(), 4, pipelined(32), 32));
    cases.push(case("multi-get of 100, 4 conn.".to_owned(), 4, multi(100), 100));
    cases
}

#[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
fn throughput(pair: &Pair, plan: &Plan) -> io::Result<()> {
    say(head(&[
        "load",
        "memcached, k/s",
        "Keyway, k/s",
        "ratio",
        "memcached, µs of CPU per request",
        "Keyway, µs of CPU per request",
        "in the kernel, memcached",
        "in the kernel, Keyway",
    ]));
    for unix in [false, true] {
        for case in cases(plan) {
            let name = format!("{}, {}", if unix { "unix" } else { "tcp" }, case.name);
            if !name.contains(&plan.only) {
                continue;
            }
            let mut results = [const { [const { Samples::new() }; 3] }; 2];
            let mut ratios = Samples::new();
            for _ in 0..plan.repeats {
                let mut rates = [0.0; 2];
                for (side, (server, target)) in pair.sides(unix)?.into_iter().enumerate() {
                    case.load.run(&target, plan.length / 10)?;
                    let before = CpuTime::of(server.pid())?;
                    let ran = case.load.run(&target, plan.length)?;
                    let used = CpuTime::of(server.pid())?.since(before);
                    let requests = (ran.exchanges * case.per_exchange) as f64;
                    rates[side] = requests / ran.elapsed.as_secs_f64();
                    let kernel = used.system.as_secs_f64() / used.total().as_secs_f64();
                    let values = [rates[side] / 1e3, used.total().as_secs_f64() * 1e6 / requests, kernel * 100.0];
                    results[side]
                        .iter_mut()
                        .zip(values)
                        .for_each(|(samples, value)| samples.push(value));
                }
                ratios.push(rates[1] / rates[0]);
            }
            let [memcached, keyway] = &results;
            say(row(&[
                name,
                memcached[0].show(0),
                keyway[0].show(0),
                ratios.show(2),
                memcached[1].show(2),
                keyway[1].show(2),
                format!("{:.0} %", memcached[2].median()),
                format!("{:.0} %", keyway[2].median()),
            ]));
        }
    }
    Ok(())
}

#[allow(clippy::cast_precision_loss, reason = "nanoseconds are below 2^53")]
fn latency(pair: &Pair, plan: &Plan) -> io::Result<()> {
    say(head(&[
        "one client, mean µs",
        "memcached, same CPU",
        "Keyway, same CPU",
        "ratio",
        "memcached, two CPUs",
        "Keyway, two CPUs",
    ]));
    let (order, items, value_len) = (plan.keys(), plan.items, plan.value_len);
    // Keys of their own, so that the items that throughput reads keep their lengths.
    let own: Vec<Key> = (items..items + 1000).map(key).collect();
    let large: Vec<Key> = (2 * items..2 * items + 1000).map(key).collect();
    let counter = key(3 * items);
    let cases: Vec<(&str, Vec<Exchange>)> = vec![
        ("get", order.iter().map(|k| Exchange::get(&[k], value_len)).collect()),
        ("get 5 KB", large.iter().map(|k| Exchange::get(&[k], 5 << 10)).collect()),
        ("set", order.iter().map(|k| Exchange::set(k, value_len)).collect()),
        ("set 5 KB", large.iter().map(|k| Exchange::set(k, 5 << 10)).collect()),
        (
            "delete",
            own.iter()
                .flat_map(|k| [Exchange::set(k, value_len).untimed(), Exchange::delete(k)])
                .collect(),
        ),
        ("incr", vec![Exchange::incr(&counter, 10, b'1')]),
    ];
    for unix in [false, true] {
        for (_, target) in pair.sides(unix)? {
            let mut admin = Admin::open(&target)?;
            for key in &large {
                admin.set(key, &[b'v'; 5 << 10])?;
            }
            admin.set(&counter, b"1000000000")?;
            admin.barrier()?;
        }
        for (verb, exchanges) in &cases {
            let name = format!("{}, {verb}", if unix { "unix" } else { "tcp" });
            if !name.contains(&plan.only) {
                continue;
            }
            let load = Load {
                exchanges: exchanges.clone(),
                connections: 1,
            };
            let mut results = [const { [const { Samples::new() }; 2] }; 2];
            let mut ratios = Samples::new();
            for _ in 0..plan.repeats {
                for (place, cpu) in [SERVER_CPU, CLIENT_CPU].into_iter().enumerate() {
                    machine::pin(&[cpu])?;
                    let mut means = [0.0; 2];
                    for (side, (_, target)) in pair.sides(unix)?.into_iter().enumerate() {
                        load.latencies_ns(&target, plan.length / 10)?;
                        let latencies = load.latencies_ns(&target, plan.length / 2)?;
                        means[side] = latencies.iter().sum::<u64>() as f64 / 1e3 / latencies.len() as f64;
                        results[place][side].push(means[side]);
                    }
                    if cpu == SERVER_CPU {
                        ratios.push(means[1] / means[0]);
                    }
                }
            }
            let [[memcached, keyway], [memcached_two, keyway_two]] = &results;
            let cells = [
                memcached.show(1),
                keyway.show(1),
                ratios.show(2),
                memcached_two.show(1),
                keyway_two.show(1),
            ];
            say(row(&[&[name][..], &cells].concat()));
        }
    }
    machine::pin(&[CLIENT_CPU])
}
