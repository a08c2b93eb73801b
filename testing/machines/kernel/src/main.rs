//! `cargo xtask kernel`: tries the kernel door on packets, on the host and in the kernel.
//! Guards: P41, P42
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command-line tool talks to its terminal"
)]

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::ExitCode;
use std::time::Duration;

use harness::Random;
use kernel::coherent::{self, Round};
use kernel::frame::{Checksum, Frame, PORT};
use kernel::stage::{Outcome, Stage, monotonic_ns};
use kernel::world::{Memory, fill, items, settings};
use kernel::{random, served, session, strangers, table, traffic};
use keyway_region::CALLS_PER_SAMPLE;
use keyway_region::layout::latency::{bucket_of, bucket_start_ns};
use keyway_xdp::Times;
use keyway_xdp::config::{Settings, Verdict};
use keyway_xdp::door::{Door, DoorError};
use keyway_xdp::host::Program;
use mutants::Mutant;

const HELP: &str = "\
cargo xtask kernel: the kernel door answers exactly what user space would, or leaves a packet as it came

    cargo xtask kernel              all of it, with 10 million random packets and as many TCP segments on the host
    cargo xtask kernel --short      the gate's form: fewer random packets
    cargo xtask kernel --in-kernel  only what is tried in the kernel
    cargo xtask kernel --packets N  so many random packets on the host, and a tenth of that in the kernel
    cargo xtask kernel --as-started only keyway itself, over veth
    cargo xtask kernel --never-stale --seconds N   only the last part, for so many seconds
    cargo xtask kernel --seed N     the seed of the random ones

The program's C runs on the host, and, with the privileges that loading needs (CAP_BPF, CAP_NET_ADMIN, CAP_PERFMON, or root), in
the kernel through BPF_PROG_TEST_RUN, and on interfaces of network namespaces that are made for it and removed again (veth and lo).
Nothing is attached to this machine's own interfaces.

Then keyway itself, over veth: the program attached and pinned by one process and used by a server without capabilities, which is killed, started
again and stopped; one whose hot items are changed, and hot again before a client asks; and the lab's measurements of the kernel door, killed, and its presets, in a form of seconds.

Last, a server with its kernel door on, and writers through the library and its sockets, killed and stopped at random, and readers
through the kernel, the sockets and the library, for ten minutes (--short: seconds): every key's history must be linearizable. Writers
are killed between their two counts, and the kernel must come to answer for their keys again. Regions that do not count changes as
they must are rejected.
";

/// Broken regions that have been seen to be rejected.
const REJECTED: [Mutant; 3] = [Mutant::ChangesUncounted, Mutant::FlushUncounted, Mutant::StripeForgotten];
/// Those of the gate's form.
const SHORT: [Mutant; 1] = [Mutant::ChangesUncounted];
/// Rounds in which a broken region must be rejected.
const ROUNDS_MAX: u64 = 10;

struct Options {
    packets: u64,
    seed: u64,
    on_host: bool,
    /// packets are tried
    packets_at_all: bool,
    /// how long writers and readers meet
    seconds: u64,
    short: bool,
    as_started_alone: bool,
}

/// What was tried, and what was wrong.
#[derive(Default)]
struct Report {
    passed: u64,
    failed: u64,
}

impl Report {
    fn end(&self) -> ExitCode {
        println!("{} passed, {} failed", self.passed, self.failed);
        if self.failed == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        }
    }

    fn take(&mut self, what: &str, result: Result<String, String>) {
        match result {
            Ok(said) => {
                self.passed += 1;
                println!("passed: {what}: {said}");
            }
            Err(why) => {
                self.failed += 1;
                println!("FAILED: {what}: {why}");
            }
        }
    }
}

fn main() -> ExitCode {
    if let Some(result) = traffic::part_of_it()
        .or_else(coherent::part_of_it)
        .or_else(served::part_of_it)
        .or_else(strangers::part_of_it)
    {
        return result;
    }
    let options = match options() {
        Ok(Some(options)) => options,
        Ok(None) => {
            print!("{HELP}");
            return ExitCode::SUCCESS;
        }
        Err(why) => {
            eprintln!("kernel: {why}");
            return ExitCode::from(2);
        }
    };
    println!("seed {}", options.seed);
    let mut report = Report::default();
    if options.as_started_alone {
        as_started(&mut report);
        return report.end();
    }
    for v6 in [false, true].into_iter().filter(|_| options.packets_at_all) {
        let settings = settings(v6);
        if options.on_host {
            on_host(&mut report, &options, &settings, v6);
        }
        in_kernel(&mut report, &options, &settings, v6);
    }
    if options.on_host && options.packets_at_all {
        let tally = session::hold(&mut Random::new(options.seed), options.packets);
        report.take(
            "TCP segments on the host, against the reference",
            tally.map(|tally| format!("{tally:?}")),
        );
        as_started(&mut report);
    }
    if options.seconds > 0 {
        never_stale(&mut report, &options);
    }
    report.end()
}

fn options() -> Result<Option<Options>, String> {
    let mut options = Options {
        packets: 10_000_000,
        seed: Random::seed_for("kernel"),
        on_host: true,
        packets_at_all: true,
        seconds: 600,
        short: false,
        as_started_alone: false,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || {
            let value = arguments.next().and_then(|value| value.parse().ok());
            value.ok_or_else(|| format!("{argument} needs a number after it"))
        };
        match argument.as_str() {
            "--help" | "-h" => return Ok(None),
            "--in-kernel" => (options.on_host, options.seconds) = (false, 0),
            "--as-started" => options.as_started_alone = true,
            "--never-stale" => options.packets_at_all = false,
            "--seconds" => options.seconds = number()?,
            "--short" => (options.packets, options.seconds, options.short) = (200_000, 4, true),
            "--packets" => options.packets = number()?,
            "--seed" => options.seed = number()?,
            other => return Err(format!("there is no option {other}; --help lists them")),
        }
    }
    Ok(Some(options))
}

/// The door as `keyway` starts it.
fn as_started(report: &mut Report) {
    if let Err(error @ DoorError::NotPermitted) = Door::load(&settings(false)) {
        return harness::skip("the kernel door as keyway starts it", &error.to_string());
    }
    report.take(
        "keyway kernel attach, and a server without capabilities, over veth",
        served::pinned(),
    );
    report.take("hot items that are changed, over veth", served::renewed());
    report.take("two servers on one interface", served::beside());
    report.take("more that is hot than there is memory for", served::crowded());
    report.take("the lab's kernel door, killed", served::killed());
    report.take("lab reproduce, presets of the kernel door", served::presets());
}

/// Writers and readers meet, killed and stopped; then over regions that do not count their changes as they must.
fn never_stale(report: &mut Report, options: &Options) {
    if let Err(error @ DoorError::NotPermitted) = Door::load(&settings(false)) {
        return harness::skip("whether the kernel door is ever stale", &error.to_string());
    }
    let random = Random::new(options.seed);
    let round = |n: u64, evicting: bool, mutant: Option<Mutant>, seconds: u64| Round {
        evicting,
        mutant,
        lasts: Duration::from_secs(seconds),
        seed: random.fork(n).next(),
    };
    let each = if options.short { 2 } else { 5 };
    for n in 0..options.seconds.div_ceil(each) {
        let evicting = n % 2 == 1;
        let kind = if evicting { "an evicting" } else { "a lasting" };
        report.take(
            &format!("never stale, over {kind} region"),
            coherent::run(round(n, evicting, None, each)),
        );
    }
    let kills = if options.short { 6 } else { 60 };
    report.take(
        "a killed writer's stripe",
        coherent::recovers(round(1000, false, None, 0), kills),
    );
    if !mutants::BUILT_IN {
        return;
    }
    let broken: &[Mutant] = if options.short { &SHORT } else { &REJECTED };
    for mutant in broken {
        let rejected = (0..ROUNDS_MAX).find_map(|n| {
            // Without room, everything vanishes and little is shown; but only there is anything evicted.
            let evicting = *mutant == Mutant::EvictionsUncounted;
            match mutant {
                Mutant::StripeForgotten => coherent::recovers(round(n, false, Some(*mutant), 0), 20),
                _ => coherent::run(round(n, evicting, Some(*mutant), each)),
            }
            .err()
        });
        let what = format!("a region with {mutant:?} is rejected");
        let short = |why: String| why.chars().take(160).collect::<String>().replace('\n', " ");
        report.take(
            &what,
            rejected.map(short).ok_or_else(|| format!("not in {ROUNDS_MAX} rounds")),
        );
    }
}

fn family(v6: bool) -> &'static str {
    if v6 { "IPv6" } else { "IPv4" }
}

fn on_host(report: &mut Report, options: &Options, settings: &Settings, v6: bool) {
    let items = items();
    let memory = match Memory::new(settings) {
        Ok(memory) => memory,
        Err(error) => return report.take("settings", Err(error.to_string())),
    };
    fill(&memory.hot(), &items);
    let mut stage = Stage::Host {
        program: Program::default(),
        config: &memory.config,
        hot: memory.hot(),
        over_rate: false,
        no_path: false,
    };
    try_all(report, &mut stage, &items, v6, options.packets / 2, options.seed);
    if let Stage::Host { over_rate, .. } = &mut stage {
        *over_rate = true;
    }
    report.take(
        "a source above its rate on the host",
        ask_once(&mut stage, v6, Outcome::Up(Some(Verdict::OverRate))),
    );
    if let Stage::Host { over_rate, no_path, .. } = &mut stage {
        (*over_rate, *no_path) = (false, true);
    }
    report.take(
        "a source without a path on the host",
        ask_once(&mut stage, v6, Outcome::Up(Some(Verdict::NoPath))),
    );
    report.take("random packets notice one wrong byte", wrong_copy(&memory, v6));
    let mut program = Program::default();
    report.take("hashes on the host", hashes(&mut program, options.seed));
    report.take("times on the host", times(options.seed));
}

fn in_kernel(report: &mut Report, options: &Options, settings: &Settings, v6: bool) {
    // With its TCP half, so that its kernel is seen to accept it.
    let settings = &Settings {
        tcp_port: Some(PORT),
        ..settings.clone()
    };
    let door = match Door::load(settings) {
        Ok(door) => door,
        Err(error @ DoorError::NotPermitted) => {
            return harness::skip(
                &format!("the {} half of the kernel door's tests", family(v6)),
                &error.to_string(),
            );
        }
        Err(error) => return report.take("loading the program", Err(error.to_string())),
    };
    let verified = door.instructions_verified().unwrap_or(0);
    report.take(
        "loading the program",
        Ok(format!("the verifier accepts it, after {verified} instructions")),
    );
    let items = items();
    fill(&door.hot(), &items);
    let mut stage = Stage::Kernel(&door);
    try_all(report, &mut stage, &items, v6, options.packets / 20, options.seed);
    report.take("the lease in the kernel", lease(&door, v6));
    report.take("a source's rate in the kernel", rate(settings, v6));
    report.take("the time of a hit in the kernel", time(&door, v6));
    report.take("times of answers in the kernel", timed(&door, v6));
    for interface in ["veth", "lo"] {
        report.take(
            &format!("{} traffic over {interface}", family(v6)),
            traffic::try_interface(interface, v6),
        );
    }
    report.take(
        &format!("{} frames of strangers on the wire", family(v6)),
        strangers::kept_out(v6),
    );
}

fn try_all(report: &mut Report, stage: &mut Stage<'_>, items: &[kernel::world::Hot], v6: bool, packets: u64, seed: u64) {
    let rows = table::rows(items, v6);
    let wrong: Vec<String> = rows.iter().filter_map(|row| table::hold(stage, row).err()).collect();
    let what = format!("{} packets of the {} table {}", rows.len(), family(v6), stage.name());
    report.take(
        &what,
        if wrong.is_empty() {
            Ok("each as it must".into())
        } else {
            Err(format!(
                "{} wrong\n    {}",
                wrong.len(),
                wrong[..wrong.len().min(20)].join("\n    ")
            ))
        },
    );
    let mut random = Random::new(seed);
    let what = format!("{packets} random {} packets {}", family(v6), stage.name());
    let tally = random::hold(stage, items, v6, &mut random, packets);
    report.take(
        &what,
        tally.map(|tally| format!("{} answered, {} passed up", tally.answered, tally.up)),
    );
}

/// The checker's own check: with one byte of one copy changed, random packets must find a wrong answer.
fn wrong_copy(memory: &Memory, v6: bool) -> Result<String, String> {
    let items = items();
    let mut wrong = items.clone();
    let changed = wrong.iter_mut().find(|item| item.value.len() > 20).ok_or("no item")?;
    changed.value[7] ^= 1;
    fill(&memory.hot(), &wrong);
    let mut stage = Stage::Host {
        program: Program::default(),
        config: &memory.config,
        hot: memory.hot(),
        over_rate: false,
        no_path: false,
    };
    match random::hold(&mut stage, &items, v6, &mut Random::new(1), 100_000) {
        Err(why) if why.contains("not user space's") => Ok("they do".into()),
        Err(why) => Err(why),
        Ok(_) => Err("they do not".into()),
    }
}

/// A request for an item that is hot must meet this fate.
fn ask_once(stage: &mut Stage<'_>, v6: bool, expected: Outcome) -> Result<String, String> {
    let outcome = stage.run(&Frame::new(v6, b"get z\r\n").bytes(Checksum::Full))?;
    if outcome == expected {
        Ok(format!("{outcome:?}"))
    } else {
        Err(format!("{outcome:?}, not {expected:?}"))
    }
}

/// A program whose lease has run out is silent, whatever it has; and it is silent before the first one.
fn lease(door: &Door, v6: bool) -> Result<String, String> {
    let frame = Frame::new(v6, b"get z\r\n").bytes(Checksum::Full);
    let answers = |lease_ns: u64| {
        door.hot().renew(lease_ns, 0);
        door.try_frame(&frame, 1)
            .map(|(_, after, _)| after != frame)
            .map_err(|error| error.to_string())
    };
    match (answers(u64::MAX)?, answers(monotonic_ns())?, answers(0)?) {
        (true, false, false) => Ok("silent when it has run out".into()),
        other => Err(format!("{other:?}")),
    }
}

/// Of a burst, so many are answered as are allowed at once.
fn rate(settings: &Settings, v6: bool) -> Result<String, String> {
    let settings = Settings {
        rate: Some((1, 5)),
        ..settings.clone()
    };
    let door = Door::load(&settings).map_err(|error| error.to_string())?;
    fill(&door.hot(), &items());
    let mut stage = Stage::Kernel(&door);
    let start = std::time::Instant::now();
    let mut from = |host: u8, count: usize| -> Result<usize, String> {
        let mut frame = Frame::new(v6, b"get z\r\n");
        frame.addresses[0] = match frame.addresses[0] {
            IpAddr::V4(address) => IpAddr::V4(Ipv4Addr::from_bits(address.to_bits() + u32::from(host))),
            IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() + u128::from(host))),
        };
        let outcomes = (0..count).map(|_| stage.run(&frame.bytes(Checksum::Full)));
        let answered = outcomes.filter(|outcome| matches!(outcome, Ok(Outcome::Answered(_))));
        Ok(answered.count())
    };
    let answered = (from(0, 50)?, from(1, 50)?);
    // each second that passes brings one more
    let most = 6 + usize::try_from(start.elapsed().as_secs()).unwrap_or(0);
    match answered {
        (first, second) if (5..=most).contains(&first) && (5..=most).contains(&second) => Ok("each source has its own".into()),
        other => Err(format!("{other:?} of 50 answered, 5 are allowed at once and 1 a second")),
    }
}

/// How long a hit takes: the median of single runs, the call of the program included. Nothing is demanded of it here, because
/// machines that run tests are busy.
fn time(door: &Door, v6: bool) -> Result<String, String> {
    door.hot().renew(u64::MAX, 0);
    let key: Vec<u8> = items().swap_remove(15).key;
    let frame = Frame::new(v6, &[b"get ", &key[..], b"\r\n"].concat()).bytes(Checksum::Full);
    let mut times = Vec::new();
    for _ in 0..2001 {
        let (_, after, took_ns) = door.try_frame(&frame, 1).map_err(|error| error.to_string())?;
        if after == frame {
            return Err("there was no answer".into());
        }
        times.push(took_ns);
    }
    times.sort_unstable();
    Ok(format!(
        "{} ns for a key of {} bytes (median of {})",
        times[1000],
        key.len(),
        times.len()
    ))
}

/// The C hash is the region's, for keys of every length.
fn hashes(program: &mut Program, seed: u64) -> Result<String, String> {
    let mut random = Random::new(seed);
    let mut count = 0;
    for len in 0..=250 {
        for _ in 0..40 {
            let (seed, key) = (random.next(), random.bytes(len));
            if program.hash(seed, &key) != Some(keyway_region::hash(seed, &key)) {
                return Err(format!("seed {seed}, key {key:?}"));
            }
            count += 1;
        }
    }
    Ok(format!("{count} as the region's"))
}

/// The C sorts times as the region does.
fn times(seed: u64) -> Result<String, String> {
    let edges = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1, 3 << bit >> 1]);
    let mut random = Random::new(seed);
    let others: Vec<u64> = (0..100_000).map(|i| random.next() >> (i % 64)).collect();
    for ns in edges.chain(others).chain([u64::MAX]) {
        let (here, there) = (keyway_xdp::host::time_bucket(ns), bucket_of(ns));
        if here != there {
            return Err(format!("{ns} ns: bucket {here}, and {there} in the region"));
        }
    }
    Ok("in the region's buckets".into())
}

/// Of the answers over UDP one in 256 is timed, and no packet that goes up.
fn timed(door: &Door, v6: bool) -> Result<String, String> {
    const EXPECTED: u64 = 400;
    door.hot().renew(u64::MAX, 0);
    let times = || door.maps().times().map_err(|error| error.to_string());
    let ask = |line: &[u8], is_answered: bool| -> Result<[Times; 2], String> {
        let before = times()?;
        let frame = Frame::new(v6, line).bytes(Checksum::Full);
        for _ in 0..CALLS_PER_SAMPLE * u32::try_from(EXPECTED).unwrap_or(0) {
            let (_, after, _) = door.try_frame(&frame, 1).map_err(|error| error.to_string())?;
            if (after != frame) != is_answered {
                return Err("another outcome than expected".into());
            }
        }
        let after = times()?;
        let since = |row: usize| {
            let mut since = after[row];
            since.sum_ns -= before[row].sum_ns;
            since
                .counts
                .iter_mut()
                .zip(before[row].counts)
                .for_each(|(count, before)| *count -= before);
            since
        };
        Ok([since(0), since(1)])
    };
    if ask(b"get unknown\r\n", false)? != [Times::default(); 2] {
        return Err("packets that go up are timed".into());
    }
    let [udp, tcp] = ask(b"get z\r\n", true)?;
    // Six deviations of a binomial count.
    if !(EXPECTED - 120..=EXPECTED + 120).contains(&udp.count()) || tcp.count() > 0 {
        return Err(format!(
            "{} timed over UDP, and {} over TCP, not about {EXPECTED}",
            udp.count(),
            tcp.count()
        ));
    }
    // The sum is that of times in these buckets.
    let least: u64 = (0..Times::BUCKETS)
        .map(|bucket| bucket_start_ns(bucket) * udp.counts[bucket])
        .sum();
    let most: u64 = (0..Times::BUCKETS)
        .map(|bucket| bucket_start_ns(bucket + 1) * udp.counts[bucket])
        .sum();
    if !(least..most).contains(&udp.sum_ns) {
        return Err(format!("{} ns in all, and {least} to {most} by buckets", udp.sum_ns));
    }
    Ok(format!(
        "{} of {} in {} ns each",
        udp.count(),
        EXPECTED * 256,
        udp.sum_ns / udp.count()
    ))
}
