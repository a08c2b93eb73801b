//! All at once: hostile connections of every kind, beside one that is ordinary.

use std::time::Duration;

use harness::{Kind, Server, Transport};

use crate::attack::{Attack, Form, Outcome, judge};
use crate::ordinary::{Ordinary, kib, median};
use crate::siege::{Siege, Weapon, one_worker};
use crate::time::{fill, get_line, packet, store_large};

/// The attack.
pub const ALL: &[Attack] = &[Attack {
    name: "crowd",
    attack: "64 hostile connections of every kind at once, and datagrams",
    promise: "an ordinary client's p99 is at most 3 times that without them, and memory stays within its bound",
    run: crowd,
}];

/// Hostile connections.
const CONNECTIONS: usize = 64;
/// How many times the p99 without them an ordinary client may see.
const TIMES_MAX: u32 = 3;
/// Waits below this are not told apart: with attackers at another server, the kernel's scheduling alone makes as much of a wait.
const GRAIN: Duration = Duration::from_micros(100);
/// In the gate's form the server is built without optimization, so a turn takes several times as long, and a get does not.
const SHORT_MAX: Duration = Duration::from_millis(20);

/// What they send.
pub const SIEGES: &[Siege] = &[Siege {
    name: "crowd",
    prepare: |server, form| {
        store_large(server);
        fill(server, form.pick(20_000, 100_000));
        let mut wire = server.connect(Transport::Tcp);
        assert_eq!(wire.ask("stats detail on").expect("an answer"), "OK");
    },
    weapons: || {
        let value = vec![b'x'; 1_000_000];
        let set = [b"set large 0 0 1000000\r\n".as_slice(), &value, b"\r\n"].concat();
        let kinds = [
            Weapon::Sends(get_line("k", 1 << 20)),
            Weapon::Deaf(get_line("large", 500)),
            Weapon::Sends(get_line("large", 500)),
            Weapon::Sends(set.clone()),
            Weapon::Sends(packet(0x01, &[0; 8], b"large", &value)),
            Weapon::Sends(packet(0x0d, b"", b"large", b"").repeat(1000)),
            Weapon::Sends(b"stats cachedump 1 0\r\n".repeat(500)),
            Weapon::Deaf(b"lru_crawler metadump all\r\n".repeat(500)),
            Weapon::Sends(b"stats\r\nstats conns\r\n".repeat(500)),
            Weapon::Deaf(b"stats detail dump\r\n".repeat(500)),
            Weapon::Sends(b"mn\r\n".repeat(16 << 10)),
            Weapon::Slow(set),
            Weapon::Slow(get_line("large", 1000)),
            Weapon::Listens(b"watch fetchers mutations\r\n".to_vec()),
            Weapon::Knocks(b"get large\r\nstats conns\r\n".to_vec()),
            Weapon::Sends(b"flush_all\r\nverbosity 0\r\n\x80garbage\r\n".repeat(100)),
        ];
        let datagrams = [
            Weapon::Datagrams(b"stats cachedump 1 0\r\n".repeat(500)),
            Weapon::Datagrams(get_line("large", 100)),
        ];
        kinds.into_iter().cycle().take(CONNECTIONS).chain(datagrams).collect()
    },
}];

fn crowd(form: Form) -> Outcome {
    // With memory for connections as small as their number allows.
    let options = one_worker(&["--connection-memory", "32m"]);
    let (server, other) = (Server::start(Kind::Keyway, &options), Server::start(Kind::Keyway, &options));
    let siege = &SIEGES[0];
    [&server, &other].into_iter().for_each(|server| (siege.prepare)(server, form));
    let mut ordinary = Ordinary::new(&server);
    let before = server.anonymous_memory();
    let (rounds, period) = form.pick((5, Duration::from_millis(500)), (11, Duration::from_secs(2)));
    let (mut control, mut elsewhere, mut attacked, mut peak) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for _ in 0..rounds {
        control.push(ordinary.waits(period).p99());
        // The same connections to another server: they take as much of the machine, and nothing of this server.
        let running = siege.begin(&other);
        elsewhere.push(ordinary.waits(period).p99());
        drop(running);
        let running = siege.begin(&server);
        attacked.push(ordinary.waits(period).p99());
        peak = peak.max(server.anonymous_memory().unwrap_or(0));
        drop(running);
    }
    let (control, elsewhere, attacked) = (median(&control), median(&elsewhere), median(&attacked));
    let growth = peak.saturating_sub(before.unwrap_or(peak));
    let bound = (32 + 24) << 20;
    let times = control.wall.max(GRAIN) * TIMES_MAX;
    let most = form.pick(times.max(SHORT_MAX), times);
    // In the gate's form a machine that has other work is not to decide.
    let wait = form.pick(attacked.work, attacked.wall);
    judge(
        wait <= most && growth <= bound,
        format!(
            "p99 {attacked}; {control} without; {elsewhere} with them at another server (medians of {rounds} rounds; at most {most:.1?} on the wall); {} more memory, {} held at most, at most {}",
            kib(growth),
            kib(server.stat("keyway_connection_memory_peak")),
            kib(bound)
        ),
    )
}
