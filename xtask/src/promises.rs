//! The promises of the design, each with one command that tries to break it: `cargo xtask NAME [ARGS]` runs the package of that
//! name under `testing/`.
//!
//! With `--short` (the gate's form) it is built like the tests; without, optimised (profile `fast`), because the long forms do
//! work for minutes.

use crate::run::{Context, Outcome};
use std::path::Path;

/// A tool that shows a promise.
pub struct Promise {
    /// its package, and what it is called on the command line
    pub name: &'static str,
    /// what it shows
    pub shows: &'static str,
}

/// All of them, in the order of the gate.
pub const ALL: &[Promise] = &[
    Promise {
        name: "kill-points",
        shows: "a process may die or stop at any instruction of any operation",
    },
    Promise {
        name: "crash-states",
        shows: "a power failure leaves every acknowledged write, whatever the cache had written back (strict mode)",
    },
    Promise {
        name: "storm",
        shows: "processes killed, stopped and restarted at random see one linearizable history for each key",
    },
    Promise {
        name: "schedules",
        shows: "threads switched before any access to shared memory see one linearizable history for each key",
    },
    Promise {
        name: "growth",
        shows: "index and memory grow under traffic, and no item is lost",
    },
    Promise {
        name: "scribble",
        shows: "random bytes written over a region in use crash and hang nobody; with checksums nobody is given a wrong value",
    },
    Promise {
        name: "kernel",
        shows: "the kernel door answers exactly what user space would, or leaves a packet as it came",
    },
    Promise {
        name: "vm",
        shows: "what needs another kernel, processor or memory holds there, in guests under emulation",
    },
    Promise {
        name: "hit-ratio",
        shows: "fewer misses than memcached in the same memory, and as few as item-level S3-FIFO",
    },
];

/// Runs a promise's tool with these arguments.
pub fn run(context: &Context<'_>, name: &str, args: &[&str]) -> Outcome {
    let profile = if args.contains(&"--short") { "dev" } else { "fast" };
    let mut command = context.command(
        "cargo",
        &["run", "--quiet", "--locked", "--profile", profile, "--package", name],
    );
    if has_mutants(context.root, name) {
        command.args(["--features", "mutants"]);
    }
    command.arg("--").args(args);
    context.expect(command)
}

/// Whether the tool tries broken variants of the region too. The feature is not on by default: a build of the whole workspace
/// would give it to the product.
fn has_mutants(root: &Path, name: &str) -> bool {
    let manifest = root.join("testing").join(name).join("Cargo.toml");
    std::fs::read_to_string(manifest).is_ok_and(|text| text.lines().any(|line| line.starts_with("mutants = [")))
}

/// The short form of every one: a stage of the gate.
pub fn all_short(context: &Context<'_>) -> Outcome {
    let mut failed = Vec::new();
    for promise in ALL {
        println!("   {}: {}", promise.name, promise.shows);
        if let Outcome::Failed(why) = run(context, promise.name, &["--short"]) {
            failed.push(why);
        }
    }
    if failed.is_empty() {
        Outcome::Passed
    } else {
        Outcome::Failed(failed.join("; "))
    }
}
