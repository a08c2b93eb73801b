//! What the tests that cross doors share: servers that are started and stopped, raw sockets, scratch directories, shared
//! words, seeded randomness, and the words in which a test says that it cannot run here.
//!
//! [`Server`] is a Keyway or a memcached that a test started itself; it dies with its handle. [`Wire`] is a socket that
//! speaks bytes and has a deadline on every read. Nothing here waits by sleeping a fixed time: [`wait_until`] polls a
//! condition until a deadline. What is asked for is each test's own matter.
//!
//! Environment:
//!
//! - `KEYWAY_BIN`: the `keyway` binary to test; without it, the workspace's own is built.
//! - `KEYWAY_MEMCACHED`: the memcached to compare with; without it, `memcached` on the path.
//! - `KEYWAY_TESTS_AGAINST`: `keyway`, `memcached` or both, separated by commas; without it, both.
//! - `KEYWAY_TESTS_REQUIRE_ALL=1`: what would be skipped fails instead.
//! - `KEYWAY_TESTS_SEED`: the seed of every random choice.
//! - `KEYWAY_TESTS_FULL=1`: tests that have a short and a full form run the full one.
//! - `KEYWAY_TESTS_KERNEL_TCP=1`: servers answer for hot keys in the kernel (`--kernel lo --kernel-tcp`).
//! - `KEYWAY_TESTS_SERVERS_IN`: the network namespace of a [`Network`] in which servers are started (the program `weathered` sets it).
//! - `KEYWAY_TESTS_OUTSIDE`: the network namespace from which clients are downloaded (likewise).
//! - `KEYWAY_TESTS_KEEP=1`: scratch directories stay, and are named.

mod binary;
mod http;
mod kernel;
mod network;
mod pages;
mod random;
mod scratch;
mod server;
mod tls;
mod wire;

pub use binary::{
    copy_program, keyway_binary, link_to_preload, memcached_binary, own_test, program_on_path, test_path, workspace_binary,
    workspace_library,
};
pub use http::{HttpAnswer, http_get, http_over};
pub use kernel::{has_kernel_door, is_across_a_network, kernel_arguments};
pub use network::{Narrow, Network, Weather, lose_on_loopback};
pub use pages::Pages;
pub use random::{Random, mix};
pub use scratch::Scratch;
pub use server::{Kind, ServeOptions, Server, Transport, free_port, keyway_check, run_to_end, wait_for_ready};
pub use tls::{Authority, Identity, TlsClient, Validity};
pub use wire::{Fetched, Wire, liar, printable};

use std::io::Write;
use std::time::{Duration, Instant};

/// How long anything that should happen soon may take before a test calls it a hang. Generous: machines that run tests are
/// busy, and no test measures time.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Says something to the person who runs the tests, also when the test passes: the test framework's capture of standard
/// output would swallow it.
pub fn say(text: &str) {
    // a closed standard error is no reason to fail
    let _ = writeln!(std::io::stderr().lock(), "{text}");
}

/// Says that a test, or a part of it, cannot run here. With `KEYWAY_TESTS_REQUIRE_ALL=1` that is a failure.
///
/// # Panics
///
/// When nothing may be skipped.
pub fn skip(what: &str, because: &str) {
    assert!(
        !is_set("KEYWAY_TESTS_REQUIRE_ALL"),
        "{what} must run here (KEYWAY_TESTS_REQUIRE_ALL is set), but {because}"
    );
    say(&format!("SKIP: {what}, because {because}"));
}

/// Whether tests with a short and a full form shall run the full one.
pub fn full_run() -> bool {
    is_set("KEYWAY_TESTS_FULL")
}

fn is_set(variable: &str) -> bool {
    std::env::var_os(variable).is_some_and(|value| !value.is_empty() && value != "0")
}

/// Polls until `probe` gives something.
///
/// # Panics
///
/// When `deadline` passes first; the message names `what` was awaited.
pub fn wait_until<T>(what: &str, deadline: Duration, mut probe: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = probe() {
            return found;
        }
        assert!(start.elapsed() < deadline, "{what}: not within {deadline:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
