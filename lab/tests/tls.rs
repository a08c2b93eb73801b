//! `lab tls` in a short form, beside a memcached with TLS.

use std::process::Command;
use std::time::Duration;

#[test]
fn both_servers_are_measured_in_every_row() {
    let help = harness::memcached_binary().map(|memcached| Command::new(memcached).arg("-h").output().unwrap());
    if !help.is_some_and(|help| String::from_utf8_lossy(&help.stdout).contains("enable-ssl")) {
        return harness::skip("lab tls", "there is no memcached that was built with TLS");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_lab"));
    command.env("KEYWAY_BIN", harness::keyway_binary());
    command.args([
        "tls",
        "--connections",
        "1,3",
        "--value-size",
        "40000",
        "--seconds",
        "0.1",
        "--repeat",
        "2",
    ]);
    let (status, said) = harness::run_to_end(&mut command, Duration::from_secs(300));
    assert!(status.success(), "{said}");
    for row in [
        "get, 1 connection, k/s",
        "get, 3 connections, k/s",
        "handshakes/s",
        "resumed handshakes/s",
    ] {
        let line = said.lines().find_map(|line| line.trim().strip_prefix(row));
        let figures = line.unwrap_or_else(|| panic!("no {row} in\n{said}"));
        // Rate and CPU time of both, and their ratios.
        assert_eq!(figures.matches('(').count(), 6, "{row}: {figures}");
    }
}
