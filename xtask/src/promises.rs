//! The promises of the design, each with one command that tries to break it: `cargo xtask NAME [ARGS]` runs the package of that
//! name under `testing/`.
//!
//! With `--short` (as in the checks) it is built like the tests; without, optimised (profile `fast`), because the long forms
//! run for minutes.

use crate::lanes::{self, Job};
use crate::mutants;
use crate::run::{Context, Outcome};
use crate::stages::Lane;
use std::process::Command;

/// The variant of the region that a tool is built with. Its features are off by default; a build of the whole workspace would otherwise turn
/// them on in the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Region {
    /// as in the product
    Plain,
    /// with faults that the tool must reject, which it switches on itself (`testing/mutants`)
    Faulty,
    /// with these faults, and reporting every access
    Watched,
}

/// A tool that shows a promise.
pub struct Promise {
    /// its package and program, and its name on the command line
    pub name: &'static str,
    /// what it shows
    pub shows: &'static str,
    region: Region,
    /// which command runs its short form
    lane: Lane,
    /// in the checks nothing runs beside it: it uses all CPUs, or judges who gets a turn
    alone: bool,
}

/// All tools. Those with the same variant are adjacent, because they are built together; a tool that takes long comes after the others of its
/// variant, because the checks start at the end.
pub const ALL: &[Promise] = &[
    Promise {
        name: "scribble",
        shows: "random bytes written over a region in use crash and hang no other process; with checksums no client gets a wrong value",
        region: Region::Plain,
        lane: Lane::Test,
        alone: true,
    },
    Promise {
        name: "attack",
        shows: "hostile clients delay no other client, use bounded memory, cannot get in and cannot split an answer",
        region: Region::Plain,
        lane: Lane::Test,
        alone: true,
    },
    Promise {
        name: "vm",
        shows: "properties that need another kernel, processor or memory, in guests under emulation",
        region: Region::Plain,
        lane: Lane::Gate,
        alone: false,
    },
    Promise {
        name: "suites",
        shows: "other authors' test suites say of Keyway what they say of memcached and libmemcached, but for one table",
        region: Region::Plain,
        lane: Lane::Gate,
        alone: false,
    },
    Promise {
        name: "weak-memory",
        shows: "each ordering of the region's atomics is needed, and enough, under the C11 memory model",
        region: Region::Plain,
        lane: Lane::Gate,
        alone: false,
    },
    Promise {
        name: "memory-curve",
        shows: "what is predicted for other sizes of a region is within 2 points of what regions of those sizes miss",
        region: Region::Plain,
        lane: Lane::Gate,
        alone: false,
    },
    Promise {
        name: "flights",
        shows: "of processes that fetch, killed and stopped at random, each computes for a cause, and no value is older than a delete",
        region: Region::Plain,
        lane: Lane::Gate,
        alone: true,
    },
    Promise {
        name: "storm",
        shows: "processes killed, stopped and restarted at random see one linearizable history for each key",
        region: Region::Faulty,
        lane: Lane::Gate,
        alone: true,
    },
    Promise {
        name: "kernel",
        shows: "the kernel door answers exactly what user space would, or passes a packet on unchanged",
        region: Region::Faulty,
        lane: Lane::Gate,
        alone: true,
    },
    Promise {
        name: "hit-ratio",
        shows: "fewer misses than memcached in the same memory, and as few as item-level S3-FIFO",
        region: Region::Faulty,
        lane: Lane::Gate,
        alone: false,
    },
    Promise {
        name: "growth",
        shows: "index and memory grow under traffic, and no item is lost",
        region: Region::Faulty,
        lane: Lane::Gate,
        alone: false,
    },
    Promise {
        name: "kill-points",
        shows: "a process may die or stop at any instruction of any operation",
        region: Region::Faulty,
        lane: Lane::Gate,
        alone: false,
    },
    Promise {
        name: "crash-states",
        shows: "a power failure leaves every acknowledged write, whatever the cache had written back (durable mode)",
        region: Region::Watched,
        lane: Lane::Gate,
        alone: false,
    },
    Promise {
        name: "schedules",
        shows: "threads switched before any access to shared memory see one linearizable history for each key",
        region: Region::Watched,
        lane: Lane::Gate,
        alone: false,
    },
];

/// Runs a promise's tool with these arguments.
pub fn run(context: &Context<'_>, name: &str, args: &[&str]) -> Outcome {
    let profile = if args.contains(&"--short") { "dev" } else { "fast" };
    let region = ALL
        .iter()
        .find(|promise| promise.name == name)
        .map_or(Region::Plain, |promise| promise.region);
    let mut command = match cargo(context, region, "run") {
        Ok(command) => command,
        Err(why) => return Outcome::Failed(why),
    };
    command.args(["--profile", profile, "--package", name]);
    if region == Region::Watched {
        command.args(["--features", "watched"]);
    }
    command.arg("--").args(args);
    context.expect(command)
}

/// The short forms of a command's tools: a stage of the checks.
pub fn short(context: &Context<'_>, lane: Lane) -> Outcome {
    let chosen: Vec<_> = ALL.iter().filter(|promise| promise.lane == lane).collect();
    let mut failed = Vec::new();
    for together in chosen.chunk_by(|one, next| one.region == next.region) {
        if let Outcome::Failed(why) = build(context, together) {
            failed.push(why);
        }
    }
    if !failed.is_empty() {
        return Outcome::Failed(failed.join("; "));
    }
    for promise in &chosen {
        println!("   {}: {}", promise.name, promise.shows);
    }
    lanes::run(context, chosen.iter().rev().map(|promise| job(context, promise)).collect())
}

fn job<'a>(context: &'a Context<'a>, promise: &Promise) -> Job<'a> {
    let program = context.target.join("debug").join(promise.name);
    let mut command = context.command(&program.to_string_lossy(), &["--short"]);
    context.name_programs(&mut command);
    Job::command(context, promise.name.to_owned(), promise.alone, command)
}

/// A command of cargo for tools with this region: in the tree, or in its copy with faults.
fn cargo(context: &Context<'_>, region: Region, verb: &str) -> Result<Command, String> {
    let mut command = context.command("cargo", &[verb, "--quiet"]);
    if region == Region::Plain {
        command.arg("--locked");
        return Ok(command);
    }
    command
        .current_dir(mutants::known(context)?)
        .arg("--target-dir")
        .arg(&context.target);
    Ok(command)
}

/// Builds tools with the same variant together. As a part of the workspace, so that others' code has the features that it has in
/// [`Context::build_all`], and is not compiled again.
fn build(context: &Context<'_>, together: &[&Promise]) -> Outcome {
    let region = together.first().map_or(Region::Plain, |promise| promise.region);
    if region == Region::Plain {
        return context.build_all(&[]);
    }
    let mut command = match cargo(context, region, "build") {
        Ok(command) => command,
        Err(why) => return Outcome::Failed(why),
    };
    command.arg("--workspace");
    for promise in together {
        command.args(["--bin", promise.name]);
        if region == Region::Watched {
            command.args(["--features", &format!("{}/watched", promise.name)]);
        }
    }
    context.expect(command)
}
