//! The kernel door for TCP, under tests that know nothing of it.

use std::net::Ipv4Addr;
use std::process::Command;

use crate::{Network, keyway_binary};

/// Whether `KEYWAY_TESTS_KERNEL_TCP` asks for Keyway's servers to have the kernel door, with TCP.
pub fn has_kernel_door() -> bool {
    crate::is_set("KEYWAY_TESTS_KERNEL_TCP")
}

/// The arguments that make a `keyway serve` have it. Little memory, because the kernel keeps it resident and tests start many servers.
pub fn kernel_arguments() -> Vec<String> {
    let interface = if is_across_a_network() { Network::INTERFACE } else { "lo" };
    match has_kernel_door() {
        true => ["--kernel", interface, "--kernel-tcp", "--kernel-memory", "2m"]
            .map(str::to_owned)
            .to_vec(),
        false => Vec::new(),
    }
}

/// Whether Keyway's servers are in another network namespace than their clients (`KEYWAY_TESTS_SERVERS_IN`). Only what TCP carries crosses
/// the weather there.
pub fn is_across_a_network() -> bool {
    crate::is_set("KEYWAY_TESTS_SERVERS_IN")
}

/// The address at which a `keyway serve` listens.
pub(crate) fn server_address() -> Ipv4Addr {
    if is_across_a_network() {
        Network::SERVER
    } else {
        Ipv4Addr::LOCALHOST
    }
}

/// The command that starts Keyway where its servers are.
pub(crate) fn keyway_command() -> Command {
    let Ok(namespace) = std::env::var("KEYWAY_TESTS_SERVERS_IN") else {
        return Command::new(keyway_binary());
    };
    // nsenter(1) becomes the program, so the process is the server's.
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{namespace}")).arg(keyway_binary());
    command
}
