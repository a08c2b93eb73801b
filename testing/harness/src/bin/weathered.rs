//! Runs a program of tests where its servers have the kernel door, and the network loses segments.
//!
//! ```text
//! weathered veth [LOSS REPEAT DELAY] COMMAND...   clients and servers in namespaces of their own; shares in percent
//! weathered lo LOSS COMMAND...                    one namespace
//! ```
//!
//! Needs root. The exit code is the program's.

use std::process::{Command, ExitCode};

use harness::{Network, Random, lose_on_loopback, say};
use nix::sched::{CloneFlags, unshare};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some((place, rest)) = arguments.split_first() else {
        return usage();
    };
    let shares: Vec<f64> = rest.iter().map_while(|word| word.parse().ok()).collect();
    let mut words = rest[shares.len()..].iter();
    let Some(program) = words.next() else {
        return usage();
    };
    let mut command = Command::new(program);
    command
        .args(words)
        .env("KEYWAY_TESTS_KERNEL_TCP", "1")
        .env("KEYWAY_TESTS_AGAINST", "keyway")
        // The namespace of what has started this, which has the registries.
        .env(
            "KEYWAY_TESTS_OUTSIDE",
            format!("/proc/{}/ns/net", std::os::unix::process::parent_id()),
        );
    let _network;
    match (place.as_str(), shares[..].try_into()) {
        ("veth", weather) => {
            let network = Network::start("weathered", Random::seed_for("the weather"), weather.ok());
            command.env("KEYWAY_TESTS_SERVERS_IN", network.namespace("s"));
            network.enter("c");
            _network = network;
        }
        ("lo", Err(_)) if shares.len() == 1 => {
            if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
                say(&format!("a network namespace: {error}"));
                return ExitCode::FAILURE;
            }
            let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
            if !up.is_ok_and(|status| status.success()) {
                say("ip link set lo up has failed");
                return ExitCode::FAILURE;
            }
            lose_on_loopback(shares[0]);
        }
        _ => return usage(),
    }
    match command.status() {
        Ok(status) if status.success() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            say(&format!("{program}: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn usage() -> ExitCode {
    say("weathered veth [LOSS REPEAT DELAY] COMMAND... | weathered lo LOSS COMMAND...");
    ExitCode::from(2)
}
