//! Attacks on the server's time: requests that are much work, beside an ordinary client of the same worker.

use std::time::{Duration, Instant};

use harness::{Authority, Kind, ServeOptions, Server, TlsClient, Transport};
use keyway_proto::binary;

use crate::attack::{Attack, Form, Outcome, judge};
use crate::ordinary::{Ordinary, median};
use crate::siege::{Siege, WAIT_MAX, Weapon, one_worker, worst_wait, worst_wait_on};

const PROMISE: &str = "no other connection of the same worker waits more than 10 ms longer";

/// The attacks; each is the siege of its name.
pub const ALL: &[Attack] = &[
    Attack {
        name: "long-get",
        attack: "one get line of 64 MiB, again and again",
        promise: PROMISE,
        run: |form| besiege("long-get", form),
    },
    Attack {
        name: "get-of-large-values",
        attack: "get lines of 500 values of 1 MB",
        promise: PROMISE,
        run: |form| besiege("get-of-large-values", form),
    },
    Attack {
        name: "meta-runs",
        attack: "64 KiB of mn, of mg and of binary quiet gets at a time",
        promise: PROMISE,
        run: |form| besiege("meta-runs", form),
    },
    Attack {
        name: "large-sets",
        attack: "sets of 1 MB, ms and binary ones as well, pipelined",
        promise: PROMISE,
        run: |form| besiege("large-sets", form),
    },
    Attack {
        name: "handshakes",
        attack: "the first flight of a TLS handshake, answered and left, on connection after connection, 64 at a time",
        promise: PROMISE,
        run: |form| {
            let options = ServeOptions {
                transport: Transport::Tls,
                ..one_worker(&[])
            };
            let server = Server::start(Kind::Keyway, &options);
            let siege = SIEGES
                .iter()
                .find(|siege| siege.name == "handshakes")
                .expect("a siege of this name");
            worst_wait_on(&server, server.tls().0, siege, form)
        },
    },
    Attack {
        name: "stats",
        attack: "stats, stats settings, items, slabs, sizes, pipelined",
        promise: PROMISE,
        run: |form| besiege("stats", form),
    },
    Attack {
        name: "stats-conns",
        attack: "stats conns, pipelined, with hundreds of connections",
        promise: PROMISE,
        run: |form| besiege("stats-conns", form),
    },
    Attack {
        name: "cachedump",
        attack: "stats cachedump of a full region, and of one that was flushed, pipelined",
        promise: PROMISE,
        run: |form| besiege("cachedump", form),
    },
    Attack {
        name: "metadump",
        attack: "lru_crawler metadump and mgdump of a region whose items were all flushed",
        promise: PROMISE,
        run: |form| besiege("metadump", form),
    },
    Attack {
        name: "detail-dump",
        attack: "stats detail on, as many prefixes as are counted, then dumps and resets, in text and binary",
        promise: PROMISE,
        run: |form| besiege("detail-dump", form),
    },
    Attack {
        name: "cache-memlimit",
        attack: "cache_memlimit raises the region to many times its size",
        promise: "only the client that sent it waits",
        run: raise_memory,
    },
    Attack {
        name: "cache-memlimit-lower",
        attack: "cache_memlimit lowers a region full of small items, step by step",
        promise: PROMISE,
        run: lower_memory,
    },
    Attack {
        name: "watchers",
        attack: "twenty watchers of everything, half of which never read, and a client that makes lines for them",
        promise: PROMISE,
        run: |form| besiege("watchers", form),
    },
    Attack {
        name: "large-datagrams",
        attack: "datagrams of 10 KB with 500 stats cachedump, and of 60 KB with gets and keys",
        promise: PROMISE,
        run: |form| besiege("large-datagrams", form),
    },
];

fn besiege(name: &str, form: Form) -> Outcome {
    let siege = SIEGES.iter().find(|siege| siege.name == name);
    worst_wait(siege.expect("each attack on time is a siege"), form)
}

fn raise_memory(form: Form) -> Outcome {
    let options = one_worker(&[]);
    let server = Server::start(Kind::Keyway, &options);
    let mut ordinary = Ordinary::new(&server);
    let memory_mb = options.memory_mb * form.pick(8, 16);
    let mut wire = server.connect(Transport::Tcp);
    let start = Instant::now();
    let mut longest = Duration::ZERO;
    let raised = std::thread::scope(|scope| {
        let raising = scope.spawn(|| wire.ask(&format!("cache_memlimit {memory_mb}")));
        while !raising.is_finished() {
            longest = longest.max(ordinary.waits(Duration::from_millis(5)).worst().wall);
        }
        raising.join().expect("no panic").expect("an answer")
    });
    let took = start.elapsed();
    assert_eq!(raised, "OK", "memory for the region");
    // A worker that did it itself would let the ordinary client wait for all of that time.
    judge(
        longest <= took / 4,
        format!(
            "{memory_mb} MiB were made in {took:.1?}, and the longest wait meanwhile was {longest:.1?}; at most a quarter of it"
        ),
    )
}

fn lower_memory(form: Form) -> Outcome {
    let options = one_worker(&[]);
    let server = Server::start(Kind::Keyway, &options);
    fill(&server, form.pick(1_200_000, 2_000_000));
    let mut ordinary = Ordinary::new(&server);
    let control = ordinary.waits(Duration::from_secs(1)).worst();
    let mut wire = server.connect(Transport::Tcp);
    let mut rounds = Vec::new();
    for eighths in [6, 5, 4, 3] {
        let memory_mb = options.memory_mb * eighths / 8;
        assert_eq!(wire.ask(&format!("cache_memlimit {memory_mb}")).expect("an answer"), "OK");
        // Until the memory is back with the system, or for half a minute.
        let start = Instant::now();
        let wanted = server.stat("keyway_segments") * u64::from(8 - eighths) / 8;
        let mut longest = control;
        while server.stat("keyway_segments_given_back") < wanted.saturating_sub(1) && start.elapsed() < Duration::from_secs(30) {
            longest = longest.max(ordinary.waits(Duration::from_millis(100)).worst());
        }
        rounds.push(longest);
    }
    let (given_back, evictions) = (server.stat("keyway_segments_given_back"), server.stat("evictions"));
    let all = server.stat("keyway_segments");
    let lowered = median(&rounds);
    judge(
        lowered.work <= control.work + WAIT_MAX && given_back >= all / 2 && evictions > 0,
        format!(
            "{given_back} of {all} segments were given back, {evictions} items evicted; the longest wait was {lowered}; {control} without \
             (median of {} steps; at most {WAIT_MAX:?} more)",
            rounds.len()
        ),
    )
}

/// What they send.
pub const SIEGES: &[Siege] = &[
    Siege {
        name: "handshakes",
        prepare: |_, _| {},
        weapons: || {
            let mut hello = Vec::new();
            let mut session = TlsClient::trusting(&Authority::new()).session();
            session.write_tls(&mut hello).expect("bytes");
            vec![Weapon::Greets(hello); 64]
        },
    },
    Siege {
        name: "long-get",
        prepare: |_, _| {},
        weapons: || {
            vec![
                Weapon::Sends(get_line("k", 32 << 20)),
                Weapon::Sends(get_line("ordinary", 7 << 20)),
            ]
        },
    },
    Siege {
        name: "get-of-large-values",
        prepare: |server, _| store_large(server),
        weapons: || vec![Weapon::Sends(get_line("large", 500)), Weapon::Deaf(get_line("large", 500))],
    },
    Siege {
        name: "meta-runs",
        prepare: |_, _| {},
        weapons: || {
            vec![
                Weapon::Sends(b"mn\r\n".repeat(16 << 10)),
                Weapon::Sends(b"mg ordinary v k O1\r\n".repeat(3 << 10)),
                Weapon::Sends(packet(0x0d, b"", b"ordinary", b"").repeat(2 << 10)),
            ]
        },
    },
    Siege {
        name: "large-sets",
        prepare: |_, _| {},
        weapons: || {
            let value = vec![b'x'; 1_000_000];
            vec![
                Weapon::Sends([b"set large 0 0 1000000\r\n".as_slice(), &value, b"\r\n"].concat()),
                Weapon::Sends([b"ms large 1000000\r\n".as_slice(), &value, b"\r\n"].concat()),
                Weapon::Sends(packet(0x01, &[0; 8], b"large", &value)),
            ]
        },
    },
    Siege {
        name: "stats",
        prepare: |_, _| {},
        weapons: || {
            vec![Weapon::Sends(b"stats\r\nstats settings\r\nstats items\r\nstats slabs\r\nstats sizes\r\n".repeat(100)); 2]
        },
    },
    Siege {
        name: "stats-conns",
        prepare: |_, _| {},
        weapons: || {
            let idle = std::iter::repeat_with(|| Weapon::Listens(b"mn\r\n".to_vec())).take(400);
            let ask = Weapon::Sends(b"stats conns\r\n".repeat(100));
            idle.chain([ask]).collect()
        },
    },
    Siege {
        name: "cachedump",
        prepare: |server, form| fill(server, form.pick(60_000, 400_000)),
        weapons: || vec![Weapon::Sends(b"stats cachedump 1 0\r\n".repeat(500)); 2],
    },
    Siege {
        name: "metadump",
        prepare: |server, form| {
            fill(server, form.pick(60_000, 400_000));
            let flushed = server.connect(Transport::Tcp).ask("flush_all");
            assert_eq!(flushed.expect("an answer"), "OK");
        },
        weapons: || vec![Weapon::Sends(b"lru_crawler metadump all\r\nlru_crawler mgdump all\r\n".repeat(100)); 2],
    },
    Siege {
        name: "detail-dump",
        prepare: |server, _| {
            let mut wire = server.connect(Transport::Tcp);
            assert_eq!(wire.ask("stats detail on").expect("an answer"), "OK");
        },
        weapons: || {
            let gets: Vec<u8> = (0..70_000)
                .flat_map(|n| format!("mg {n:0200}:x q\r\n").into_bytes())
                .collect();
            vec![
                Weapon::Sends(gets),
                Weapon::Sends(b"stats detail dump\r\n".repeat(20)),
                Weapon::Deaf(b"stats detail dump\r\n".repeat(20)),
                Weapon::Sends(packet(0x10, b"", b"detail dump", b"").repeat(20)),
                Weapon::Sends([b"mn\r\n".repeat(100_000), b"stats reset\r\n".to_vec()].concat()),
            ]
        },
    },
    Siege {
        name: "watchers",
        prepare: |_, _| {},
        weapons: || {
            let watch = b"watch fetchers mutations deletions connevents\r\n".to_vec();
            let deaf = std::iter::repeat_with(|| Weapon::Slow([watch.clone(), vec![b'\n'; 100_000]].concat())).take(10);
            let loud = std::iter::repeat_with(|| Weapon::Listens(watch.clone())).take(10);
            let work = Weapon::Sends(b"mg ordinary\r\nset a 0 0 1\r\nx\r\ndelete a\r\n".repeat(100));
            deaf.chain(loud).chain([work]).collect()
        },
    },
    Siege {
        name: "large-datagrams",
        prepare: |server, form| fill(server, form.pick(20_000, 200_000)),
        weapons: || {
            vec![
                Weapon::Datagrams(b"stats cachedump 1 0\r\n".repeat(500)),
                Weapon::Datagrams(b"stats\r\n".repeat(8000)),
                Weapon::Datagrams(b"mg ordinary v\r\n".repeat(4000)),
                Weapon::Datagrams(get_line("k", 30_000)),
            ]
        },
    },
];

/// A `get` of one key, many times.
pub fn get_line(key: &str, count: usize) -> Vec<u8> {
    [b"get".as_slice(), &format!(" {key}").into_bytes().repeat(count), b"\r\n"].concat()
}

/// A packet of the binary protocol.
pub fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let (mut bytes, opaque) = (Vec::new(), [0; 4]);
    binary::request(&mut bytes, binary::Head { opcode, opaque }, 0, [extras, key, value]);
    bytes
}

/// Stores a value of 1 MB under `large`.
pub fn store_large(server: &Server) {
    let mut wire = server.connect(Transport::Tcp);
    wire.send(&[b"set large 0 0 1000000\r\n".as_slice(), &[b'x'; 1_000_000], b"\r\n"].concat())
        .expect("a set may be sent");
    assert_eq!(wire.line().expect("an answer"), b"STORED");
}

/// Stores this many small items.
pub fn fill(server: &Server, count: usize) {
    let mut wire = server.connect(Transport::Tcp);
    for first in (0..count).step_by(1000) {
        let sets: String = (first..first + 1000)
            .map(|n| format!("ms item:{n} 20 q\r\n{n:020}\r\n"))
            .collect();
        wire.send(format!("{sets}mn\r\n").as_bytes()).expect("sets may be sent");
        assert_eq!(wire.line().expect("an answer"), b"MN");
    }
}
