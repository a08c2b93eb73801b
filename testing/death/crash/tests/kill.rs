//! `kill -9` of the server under load, a hundred times in a row: after each restart `keyway check` passes, and every key holds
//! its last acknowledged value or a newer one that was sent.
//! Guards: P19

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crash::history::History;
use crash::load::{verify, write_until_cut};
use harness::{DEADLINE, Kind, Random, Scratch, ServeOptions, Server, Transport, keyway_check, say, wait_until};

/// Clients that write at once; half of them over TCP, half over the Unix socket.
const WRITERS: usize = 4;

struct Plan {
    name: &'static str,
    kills: u32,
    memory_mb: u32,
    evicting: Evicting,
    /// a kill comes after this many acknowledged operations at least
    operations_min: u64,
    /// … and this many at most, or a little later
    operations_max: u64,
}

/// What is expected of evictions in a plan.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Evicting {
    Never,
    Perhaps,
    Always,
}

#[test]
fn nothing_acknowledged_is_lost_in_a_hundred_kills() {
    // 100 rounds write about 150 MB in all: no segment needs to be recycled, so nothing may be evicted
    run(&Plan {
        name: "kill -9",
        kills: 100,
        memory_mb: 256,
        evicting: Evicting::Never,
        operations_min: 20,
        operations_max: 2_000,
    });
}

#[test]
fn nothing_old_or_torn_comes_back_when_killed_while_recycling() {
    // about 4 MB live, and some ten times the region written: segments are emptied and used again all the time. Little or nothing
    // is evicted here, but that is a matter of efficiency, which the summary tells and nothing asserts.
    run(&Plan {
        name: "kill -9 while recycling",
        kills: 30,
        memory_mb: 24,
        evicting: Evicting::Perhaps,
        operations_min: 500,
        operations_max: 12_000,
    });
}

#[test]
fn nothing_old_or_torn_comes_back_when_killed_while_evicting() {
    run(&Plan {
        name: "kill -9 while evicting",
        kills: 25,
        memory_mb: 2,
        evicting: Evicting::Always,
        operations_min: 2_000,
        operations_max: 8_000,
    });
}

fn run(plan: &Plan) {
    if !Kind::keyway_is_wanted() {
        return;
    }
    let seed = Random::seed_for(plan.name);
    let mut random = Random::new(seed);
    let scratch = Scratch::new();
    let options = ServeOptions {
        memory_mb: plan.memory_mb,
        region: Some(scratch.join("region")),
        ..ServeOptions::default()
    };
    let mut histories = vec![History::new(plan.evicting != Evicting::Never); WRITERS];
    let (mut operations, mut present, mut evictions, mut ready) = (0, 0, 0, String::new());
    let start = Instant::now();
    for kill in 0..=plan.kills {
        // the process that repairs may die as well, in the middle of it
        for _ in 0..random.below(3) {
            Server::start_and_kill(Kind::Keyway, &options, Duration::from_micros(random.below(15_000)));
        }
        let mut server = Server::start(Kind::Keyway, &options);
        ready = ready_line(&server);
        present = 0;
        for history in &mut histories {
            present += verify(&mut server.connect(Transport::Tcp), history)
                .unwrap_or_else(|why| panic!("after kill {kill} of {}, seed {seed}: {why}", plan.name));
        }
        if kill == plan.kills {
            match plan.evicting {
                Evicting::Never => assert_eq!(evictions, 0, "the region is large enough that nothing is evicted"),
                Evicting::Always => assert!(evictions > 0, "the region is small enough that something is evicted"),
                Evicting::Perhaps => {}
            }
            break;
        }
        let target = plan.operations_min + random.below(plan.operations_max - plan.operations_min);
        let (acknowledged, evicted) = load_then_kill(&mut server, &mut histories, &random.fork(u64::from(kill)), target);
        operations += acknowledged;
        evictions += evicted;
        let (status, report) = keyway_check(&scratch.join("region"));
        assert!(
            status.success(),
            "after kill {} of {}, seed {seed}: keyway check: {status}\n{report}",
            kill + 1,
            plan.name
        );
    }
    say(&format!(
        "{}: {} kills in {:.1?}, {operations} operations acknowledged, {evictions} evictions, {present} keys present at the end; last start: {}",
        plan.name,
        plan.kills,
        start.elapsed(),
        ready.trim()
    ));
}

/// Lets all writers write until `target` operations are acknowledged, then kills the server in the middle of their work.
fn load_then_kill(server: &mut Server, histories: &mut [History], random: &Random, target: u64) -> (u64, u64) {
    let acknowledged = AtomicU64::new(0);
    let mut evictions = 0;
    let wires: Vec<_> = (0..WRITERS)
        .map(|writer| server.connect(if writer % 2 == 0 { Transport::Tcp } else { Transport::Unix }))
        .collect();
    std::thread::scope(|scope| {
        let writers: Vec<_> = histories
            .iter_mut()
            .zip(wires)
            .enumerate()
            .map(|(writer, (history, mut wire))| {
                let (mut random, acknowledged) = (random.fork(1 + writer as u64), &acknowledged);
                scope.spawn(move || write_until_cut(writer, &mut wire, history, &mut random, acknowledged))
            })
            .collect();
        wait_until("the writers get their acknowledgements", DEADLINE, || {
            let done = acknowledged.load(Ordering::Relaxed) >= target || writers.iter().any(|w| w.is_finished());
            done.then_some(())
        });
        // the counters die with the server; if a writer has found something wrong, they say more about it
        let counters = statistics(server);
        evictions = statistic(&counters, "evictions");
        server.kill();
        for writer in writers {
            if let Err(wrong) = writer.join().expect("a writer does not panic") {
                let (status, report) = keyway_check(server.region());
                panic!("{wrong}\n{}\nkeyway check: {status}\n{report}\n{counters}", server.log());
            }
        }
    });
    (acknowledged.load(Ordering::Relaxed), evictions)
}

/// The load itself, and the judge of it, without a kill: only the clients' halves of the connections are closed, in the middle of everything. Both servers
/// pass, so what the judge calls a loss is one.
#[test]
fn the_judge_finds_nothing_where_no_process_was_killed() {
    let seed = Random::seed_for("cut connections");
    let random = Random::new(seed);
    for kind in Kind::to_test("cut connections") {
        let server = Server::start(
            kind,
            &ServeOptions {
                memory_mb: 256,
                ..ServeOptions::default()
            },
        );
        let mut histories = vec![History::new(false); WRITERS];
        for round in 0..5 {
            let acknowledged = AtomicU64::new(0);
            std::thread::scope(|scope| {
                for (writer, history) in histories.iter_mut().enumerate() {
                    let mut wire = server.connect(Transport::Tcp);
                    let cutter = wire.try_clone().expect("a second handle");
                    let (mut random, acknowledged) = (random.fork(round << 8 | writer as u64), &acknowledged);
                    scope.spawn(move || {
                        write_until_cut(writer, &mut wire, history, &mut random, acknowledged)
                            .unwrap_or_else(|why| panic!("seed {seed}: {why}"));
                        // the server closes its half when it has carried out all that reached it
                        while wire.fill().expect("an end of the stream") {}
                    });
                    scope.spawn(move || {
                        wait_until("the writers get their acknowledgements", DEADLINE, || {
                            (acknowledged.load(Ordering::Relaxed) > 2_000).then_some(())
                        });
                        // an error means that the writer has ended already
                        let _ = cutter.shutdown(std::net::Shutdown::Write);
                    });
                }
            });
            for history in &mut histories {
                verify(&mut server.connect(Transport::Tcp), history)
                    .unwrap_or_else(|why| panic!("{}, seed {seed}: {why}", kind.name()));
            }
        }
    }
}

/// What the server says about its start, the time to attach included.
fn ready_line(server: &Server) -> String {
    let log = server.log();
    let told = log
        .lines()
        .find(|line| line.contains("attach"))
        .or_else(|| log.lines().find(|line| line.contains("ready")));
    told.unwrap_or_default().to_string()
}

/// One number of what `stats` told.
fn statistic(told: &str, name: &str) -> u64 {
    let prefix = format!("STAT {name} ");
    let value = told.lines().find_map(|line| line.strip_prefix(&prefix)?.parse().ok());
    value.unwrap_or_else(|| panic!("stats tells no {name}:\n{told}"))
}

/// Everything that `stats` tells.
fn statistics(server: &Server) -> String {
    let told = server.connect(Transport::Tcp).stats("").expect("stats may be asked for");
    told.iter().map(|(name, value)| format!("STAT {name} {value}\n")).collect()
}
