//! The stages of the checks: name, what each catches, command. Cheap ones come first, so that a simple mistake is reported early.
//!
//! `make test` runs those that say that the tree works, `make gate` the rest: what takes long, or needs other toolchains, guests or
//! distributions.

use crate::arm;
use crate::deny;
use crate::lanes::{self, Job};
use crate::mutants;
use crate::promises;
use crate::run::{Context, Outcome};
use crate::sources;
use crate::testing;
use std::path::{Path, PathBuf};

/// Which command runs a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// `make test`
    Test,
    /// `make gate`
    Gate,
}

/// One stage of the checks.
pub struct Stage {
    /// its name on the command line
    pub name: &'static str,
    /// which command runs it
    pub lane: Lane,
    /// what it would catch
    pub catches: &'static str,
    /// it runs in parallel with the others from the start: it needs one CPU and none of their files
    pub beside: bool,
    /// does the work
    pub run: fn(&Context<'_>) -> Outcome,
}

/// All stages, in order.
pub const ALL: &[Stage] = &[
    Stage {
        name: "fmt",
        lane: Lane::Test,
        catches: "code that rustfmt would write differently",
        beside: false,
        run: fmt,
    },
    Stage {
        name: "sources",
        lane: Lane::Test,
        catches: "rules that no compiler knows: file headers, documents, dependencies, unsafe code, promises without a test, figures above a wall",
        beside: false,
        run: source_rules,
    },
    Stage {
        name: "test",
        lane: Lane::Test,
        catches: "tests and programs that do not compile; wrong behaviour: unit, integration, conformance, clients, other languages, crash, damage, hostile clients",
        beside: false,
        run: testing::short,
    },
    Stage {
        name: "damage",
        lane: Lane::Test,
        catches: "bytes of a region, or clients, that break a promise (short forms)",
        beside: false,
        run: |context| promises::short(context, Lane::Test),
    },
    Stage {
        name: "clippy",
        lane: Lane::Gate,
        catches: "lints, in every crate and target, benches included; a fault of the list that does not compile",
        beside: false,
        run: clippy,
    },
    Stage {
        name: "deny",
        lane: Lane::Gate,
        catches: "dependencies with a licence that is not allowed, from another source than crates.io, or in two versions",
        beside: false,
        run: deny::deny,
    },
    Stage {
        name: "msrv",
        lane: Lane::Gate,
        catches: "code that the oldest supported compiler (rust-version) does not build",
        beside: false,
        run: deny::msrv,
    },
    Stage {
        name: "doc",
        lane: Lane::Gate,
        catches: "broken links and bad markup in the API's documentation",
        beside: false,
        run: doc,
    },
    Stage {
        name: "package",
        lane: Lane::Gate,
        catches: "a crate that could not be published: a dependency without a version, a manifest that lacks something",
        beside: false,
        run: package,
    },
    Stage {
        name: "long",
        lane: Lane::Gate,
        catches: "wrong behaviour that shows in long tests, with epoll, with the kernel door, or in packages",
        beside: false,
        run: testing::long,
    },
    Stage {
        name: "arm",
        lane: Lane::Gate,
        catches: "code that is wrong on arm64, or with pages of 16 or 64 KiB (under user-mode emulation); packages that do not work there",
        beside: false,
        run: arm::run,
    },
    Stage {
        name: "promises",
        lane: Lane::Gate,
        catches: "a death, a crash, a growth or an eviction that breaks a promise of the design (short forms)",
        beside: false,
        run: |context| promises::short(context, Lane::Gate),
    },
    Stage {
        name: "model",
        lane: Lane::Gate,
        catches: "an interleaving that breaks the region's protocol",
        beside: true,
        run: model,
    },
    Stage {
        name: "fuzz",
        lane: Lane::Gate,
        catches: "input that makes a parser or the region panic or read out of bounds",
        beside: false,
        run: fuzz,
    },
];

pub fn fmt(context: &Context<'_>) -> Outcome {
    match context.expect(context.command("cargo", &["fmt", "--all", "--check"])) {
        // Outside the workspace, because it needs another toolchain.
        Outcome::Passed => context.expect(context.command("cargo", &["fmt", "--manifest-path", "fuzz/Cargo.toml", "--check"])),
        other => other,
    }
}

pub fn source_rules(context: &Context<'_>) -> Outcome {
    match sources::check(context.root) {
        Ok(problems) if problems.is_empty() => Outcome::Passed,
        Ok(problems) => {
            for problem in &problems {
                println!("   {problem}");
            }
            Outcome::Failed(format!("{} problems, the first: {}", problems.len(), problems[0]))
        }
        Err(e) => Outcome::Failed(format!("cannot read the sources: {e}")),
    }
}

fn clippy(context: &Context<'_>) -> Outcome {
    match clippy_with(context, &[]) {
        Outcome::Passed => mutants::compile(context),
        failed => failed,
    }
}

/// With these arguments of cargo.
pub fn clippy_with(context: &Context<'_>, with: &[&str]) -> Outcome {
    let what = ["clippy", "--locked", "--workspace", "--all-targets"];
    context.expect(context.command("cargo", &[&what[..], with, &["--", "-D", "warnings"]].concat()))
}

/// Packages every crate that is published; each depends on the others by version instead of by path. Nothing is built or uploaded.
fn package(context: &Context<'_>) -> Outcome {
    let names = match published(context.root) {
        Ok(names) => names,
        Err(e) => return Outcome::Failed(e.to_string()),
    };
    let mut arguments = vec!["package", "--quiet", "--locked", "--offline", "--no-verify", "--allow-dirty"];
    arguments.extend(names.iter().flat_map(|name| ["--package", name]));
    context.expect(context.command("cargo", &arguments))
}

/// Names of the crates under `crates/` and `bindings/` that are published.
fn published(root: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for folder in ["crates", "bindings", "bindings/libmemcached"] {
        for entry in std::fs::read_dir(root.join(folder))? {
            let krate = entry?.path();
            let Ok(text) = std::fs::read_to_string(krate.join("Cargo.toml")) else {
                continue;
            };
            let name = text
                .lines()
                .find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
            let Some(name) = name.filter(|_| !text.contains("publish = false")) else {
                continue;
            };
            if !krate.join("LICENSE").exists() {
                let why = format!("{} has no LICENSE: link it to the one of the repository", krate.display());
                return Err(std::io::Error::new(std::io::ErrorKind::NotFound, why));
            }
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

/// `--lib`: otherwise the program `keyway` would overwrite the library's pages. `--examples`: with what only they and tests use, others' code has
/// the features that `clippy` has checked it with, and is not checked again. Pages for private items are made too, so links to them work.
fn doc(context: &Context<'_>) -> Outcome {
    let mut command = context.command(
        "cargo",
        &[
            "doc",
            "--locked",
            "--workspace",
            "--lib",
            "--examples",
            "--no-deps",
            "--document-private-items",
        ],
    );
    command.env("RUSTDOCFLAGS", "-D warnings -A rustdoc::private_intra_doc_links");
    context.expect(command)
}

fn model(context: &Context<'_>) -> Outcome {
    if !context.works("python3", &["--version"]) {
        return Outcome::Skipped("python3 is not installed".into());
    }
    let models: [&[&str]; 4] = [
        &["model/coherence.py"],
        &["model/flights.py"],
        &["model/tcp_door.py", "--quick"],
        &["model/region_protocol.py", "--quick"],
    ];
    for model in models {
        match context.expect(context.command("python3", model)) {
            Outcome::Passed => {}
            other => return other,
        }
    }
    Outcome::Passed
}

/// Runs every target for a short time, from its seeds, as many in parallel as there are CPUs.
fn fuzz(context: &Context<'_>) -> Outcome {
    let targets = match fuzz_targets(&context.root.join("fuzz/fuzz_targets")) {
        Ok(targets) if targets.is_empty() => return Outcome::Failed("fuzz/fuzz_targets holds no target".into()),
        Ok(targets) => targets,
        Err(e) => return Outcome::Failed(format!("cannot list fuzz/fuzz_targets: {e}")),
    };
    if !context.works("cargo", &["+nightly", "--version"]) {
        return Outcome::Skipped("no nightly toolchain; rustup toolchain install nightly".into());
    }
    if !context.works("cargo", &["+nightly", "fuzz", "--version"]) {
        return Outcome::Skipped("no cargo-fuzz; cargo install cargo-fuzz --locked".into());
    }
    let built = context.expect(context.command("cargo", &["+nightly", "fuzz", "build"]));
    if built != Outcome::Passed {
        return built;
    }
    let jobs = targets.iter().map(|target| Job {
        name: target.clone(),
        alone: false,
        work: Box::new(|| fuzz_target(context, target)),
    });
    lanes::run(context, jobs.collect())
}

/// Runs one target. Inputs that it discovers stay in the target directory.
fn fuzz_target(context: &Context<'_>, target: &str) -> Outcome {
    // The checks decide about a change, not about the luck of a seed; a longer search draws its own.
    let (seconds, seed) = match std::env::var("KEYWAY_FUZZ_SECONDS") {
        Ok(seconds) => (seconds, "0"),
        Err(_) => ("20".to_owned(), "1"),
    };
    let found = context.target.join("fuzz-corpus").join(target);
    if let Err(e) = std::fs::create_dir_all(&found) {
        return Outcome::Failed(format!("cannot create {}: {e}", found.display()));
    }
    // libFuzzer writes to the first directory and only reads the others.
    let kept: Vec<PathBuf> = ["seeds", "corpus"]
        .iter()
        .map(|d| context.root.join("fuzz").join(d).join(target))
        .filter(|d| d.is_dir())
        .collect();
    let mut command = context.command("cargo", &["+nightly", "fuzz", "run", target]);
    let limit = format!("-max_total_time={seconds}");
    let seed = format!("-seed={seed}");
    command
        .arg(found)
        .args(kept)
        .args(["--", &limit, &seed, "-print_final_stats=1"]);
    // libFuzzer writes a long log; only its success counts, and how many inputs it tried.
    let log = context.target.join(format!("xtask-fuzz-{target}.log"));
    let outcome = context.logged(&log, &mut command);
    let output = std::fs::read(&log).unwrap_or_default();
    let output = String::from_utf8_lossy(&output);
    if outcome == Outcome::Passed {
        let tried = output.lines().find(|line| line.starts_with("stat::number_of_executed_units"));
        println!("   {target}: {}", tried.unwrap_or("libFuzzer says nothing of its work"));
    } else {
        println!("{output}");
    }
    outcome
}

/// The names of the fuzz targets, sorted.
fn fuzz_targets(folder: &Path) -> std::io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "rs") {
            names.extend(path.file_stem().map(|s| s.to_string_lossy().into_owned()));
        }
    }
    names.sort();
    Ok(names)
}
