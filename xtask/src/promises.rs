//! The promises of the design, each with one command that tries to break it: `cargo xtask NAME [ARGS]` runs the package of that
//! name under `testing/`.
//!
//! With `--short` (as in the checks) it is built like the tests; without, optimised (profile `fast`), because the long forms
//! run for minutes.

use crate::run::{Context, Outcome};

/// The variant of the region that a tool is built with. Its features are off by default; a build of the whole workspace would otherwise turn
/// them on in the product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Region {
    /// as in the product
    Plain,
    /// with its broken variants, which the tool must reject
    Broken,
    /// with the broken variants, and reporting every access
    Watched,
}

/// A tool that shows a promise.
pub struct Promise {
    /// its package and program, and its name on the command line
    pub name: &'static str,
    /// what it shows
    pub shows: &'static str,
    region: Region,
    /// in the checks it runs in parallel with the one before: each of the two needs one CPU, and judges no times
    beside: bool,
}

/// All tools, in the order of the checks; those with the same variant are adjacent, because they are built together.
pub const ALL: &[Promise] = &[
    Promise {
        name: "scribble",
        shows: "random bytes written over a region in use crash and hang no other process; with checksums no client gets a wrong value",
        region: Region::Plain,
        beside: false,
    },
    Promise {
        name: "attack",
        shows: "hostile clients delay no other client, use bounded memory, cannot get in and cannot split an answer",
        region: Region::Plain,
        beside: false,
    },
    Promise {
        name: "weak-memory",
        shows: "each ordering of the region's atomics is needed, and enough, under the C11 memory model",
        region: Region::Plain,
        beside: false,
    },
    Promise {
        name: "vm",
        shows: "properties that need another kernel, processor or memory, in guests under emulation",
        region: Region::Plain,
        beside: false,
    },
    Promise {
        name: "kill-points",
        shows: "a process may die or stop at any instruction of any operation",
        region: Region::Broken,
        beside: false,
    },
    Promise {
        name: "hit-ratio",
        shows: "fewer misses than memcached in the same memory, and as few as item-level S3-FIFO",
        region: Region::Broken,
        beside: true,
    },
    Promise {
        name: "storm",
        shows: "processes killed, stopped and restarted at random see one linearizable history for each key",
        region: Region::Broken,
        beside: false,
    },
    Promise {
        name: "growth",
        shows: "index and memory grow under traffic, and no item is lost",
        region: Region::Broken,
        beside: false,
    },
    Promise {
        name: "kernel",
        shows: "the kernel door answers exactly what user space would, or passes a packet on unchanged",
        region: Region::Broken,
        beside: false,
    },
    Promise {
        name: "crash-states",
        shows: "a power failure leaves every acknowledged write, whatever the cache had written back (durable mode)",
        region: Region::Watched,
        beside: false,
    },
    Promise {
        name: "schedules",
        shows: "threads switched before any access to shared memory see one linearizable history for each key",
        region: Region::Watched,
        beside: true,
    },
];

/// Runs a promise's tool with these arguments.
pub fn run(context: &Context<'_>, name: &str, args: &[&str]) -> Outcome {
    let profile = if args.contains(&"--short") { "dev" } else { "fast" };
    let mut command = context.command(
        "cargo",
        &["run", "--quiet", "--locked", "--profile", profile, "--package", name],
    );
    if ALL
        .iter()
        .any(|promise| promise.name == name && promise.region != Region::Plain)
    {
        command.args(["--features", "mutants"]);
    }
    command.arg("--").args(args);
    context.expect(command)
}

/// The short form of every tool: a stage of the checks.
pub fn all_short(context: &Context<'_>) -> Outcome {
    let mut failed = Vec::new();
    for together in ALL.chunk_by(|one, next| one.region == next.region) {
        if let Outcome::Failed(why) = build(context, together) {
            failed.push(why);
            continue;
        }
        for at_once in together.chunk_by(|_, next| next.beside) {
            failed.extend(short(context, at_once));
        }
    }
    if failed.is_empty() {
        Outcome::Passed
    } else {
        Outcome::Failed(failed.join("; "))
    }
}

/// Runs the short forms of these tools at the same time, and says what failed. The output of all but the first is held back until they end.
fn short(context: &Context<'_>, at_once: &[Promise]) -> Vec<String> {
    let log = |promise: &Promise| context.target.join(format!("xtask-{}.log", promise.name));
    let run = |at: usize, promise: &Promise| {
        println!("   {}: {}", promise.name, promise.shows);
        let program = context.target.join("debug").join(promise.name);
        let mut command = context.command(&program.to_string_lossy(), &["--short"]);
        context.name_programs(&mut command);
        let outcome = if at == 0 {
            context.expect(command)
        } else {
            context.logged(log(promise), command)
        };
        if let Outcome::Failed(why) = outcome { Some(why) } else { None }
    };
    let outcomes: Vec<Option<String>> = std::thread::scope(|scope| {
        let run = &run;
        let workers: Vec<_> = at_once
            .iter()
            .enumerate()
            .map(|(at, promise)| scope.spawn(move || run(at, promise)))
            .collect();
        let panicked = |_| Some("a thread of the checks panicked".to_owned());
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(panicked))
            .collect()
    });
    for promise in at_once.iter().skip(1) {
        let output = std::fs::read(log(promise)).unwrap_or_default();
        println!("   {}:\n{}", promise.name, String::from_utf8_lossy(&output));
    }
    outcomes.into_iter().flatten().collect()
}

/// Builds tools with the same variant together, so that their common dependencies are compiled once.
fn build(context: &Context<'_>, together: &[Promise]) -> Outcome {
    if together.iter().all(|promise| promise.region == Region::Plain) {
        return context.build_all();
    }
    let mut command = context.command("cargo", &["build", "--quiet", "--locked", "--bins"]);
    for promise in together {
        command.args(["--package", promise.name, "--features"]);
        command.arg(format!("{}/mutants", promise.name));
    }
    context.expect(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_that_fails_is_reported_also_in_parallel() {
        let folder = std::env::temp_dir().join(format!("keyway-xtask-promises-{}", std::process::id()));
        let programs = folder.join("debug");
        std::fs::create_dir_all(&programs).unwrap();
        let promise = |name: &'static str| Promise {
            name,
            shows: "",
            region: Region::Plain,
            beside: true,
        };
        for (name, program) in [("good", "/bin/true"), ("bad", "/bin/false"), ("worse", "/bin/false")] {
            std::os::unix::fs::symlink(program, programs.join(name)).unwrap();
        }
        let context = Context::new(&folder, folder.clone());
        let failed = |names: &[&'static str]| short(&context, &names.iter().copied().map(promise).collect::<Vec<_>>());
        assert_eq!(failed(&["good", "good"]), Vec::<String>::new());
        let both = failed(&["bad", "good", "worse"]);
        assert!(
            both.len() == 2 && both[0].contains("bad") && both[1].contains("worse"),
            "{both:?}"
        );
        std::fs::remove_dir_all(folder).unwrap();
    }
}
