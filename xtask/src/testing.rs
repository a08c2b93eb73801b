//! The tests of the workspace, in two stages: `test`, and `long`, which has what takes longest, what needs other systems' tools, the network
//! door's tests a second time with epoll and with the kernel door, and the region's that watch every access.
//!
//! Cargo runs the programs of tests one after the other, and most of them wait for something most of the time. So cargo only builds and
//! lists them here, and the checks run them in [`lanes`].

use crate::figures;
use crate::lanes::{self, Job};
use crate::run::{Context, Outcome};
use serde_json::Value;
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The network door's tests, which run a second time with the event loop for systems without io_uring.
const NETWORK_TESTS: [&str; 9] = [
    "binary", "clients", "frames", "table", "region", "seccomp", "readers", "server", "tls",
];

/// The tests that run once more with the kernel door for TCP, as root.
const KERNEL_TESTS: [&str; 3] = ["binary", "clients", "table"];

/// Of them, those that run again where the network loses, repeats and delays segments, and how (`testing/harness/src/bin/weathered.rs`).
/// Hostile clients do not: a server never learns of a reset that is lost.
const WEATHERED_TESTS: [&str; 2] = ["clients clients", "conformance table"];
const WEATHERS: [&[&str]; 3] = [&["veth"], &["veth", "0.5", "1", "5"], &["lo", "0.5"]];

/// Tests that need the machine for themselves, and why.
const ALONE: &[(&str, &str)] = &[
    (
        "conditions matrix",
        "within so many rounds of its own a process must take back what dead ones and their children had",
    ),
    (
        "hostile clients",
        "ten thousand connections at once, of the 28,000 ports that the machine has for them",
    ),
    (
        "keyway-server held_up",
        "a lease of one second, within which three connections must have got a turn",
    ),
];

/// Tests of the stage `long`; a name that ends in a blank stands for all tests of its package.
const LONG: &[&str] = &[
    // distributions, containers, guests' tools
    "packages ",
    // other programs: a browser, Prometheus, web servers, bpftrace
    "keyway-bench page",
    "monitoring ",
    "applications ",
    "keyway-cli probes",
    // measure
    "keyway-cli bench",
    "lab ",
    // network namespaces, and all of a machine's processes
    "keyway-cli kernel_paths",
    "keyway-cli kernel_tcp",
    "keyway-xdp tcp",
    "conditions matrix",
];

/// The program that has all files of tests of a package. Each of its modules runs in a process of its own, with a name of its own.
const TOGETHER: &str = "it";

/// Tests that take longest: with them first, no lane is still busy when the others have nothing left.
const FIRST: [&str; 9] = [
    "library python",
    "clients clients",
    "keyway-cache served",
    "keyway-cache clock",
    "keyway-cli bench",
    "packages debian",
    "monitoring exporter",
    "keyway-bench page",
    "lab presets",
];

const DOCUMENTED: &[&str] = &["test", "--quiet", "--locked", "--workspace", "--doc"];

/// The region's tests that stop a thread before an access, or let another thread overtake it there. Their build is a separate one, which
/// reports every access.
const WATCHED_TESTS: &[&str] = &[
    "test",
    "--quiet",
    "--locked",
    "--package",
    "keyway-region",
    "--features",
    "observe",
    "--lib",
    "--test",
    "chains",
    "--test",
    "reads",
];

/// A program of tests, or a module of one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Program {
    /// the package's folder, where it runs
    folder: PathBuf,
    /// its name in the package; a library's unit tests have the library's
    target: String,
    /// whether it is a file of `tests/`, and not the unit tests of a library or program
    integration: bool,
    executable: PathBuf,
    /// of these tests; empty: of all
    tests: Vec<String>,
}

impl Program {
    /// From cargo's message about a part that it has built; `None` if that is no program of tests.
    fn from_message(line: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        let text = |value: &Value| value.as_str().map(str::to_owned);
        if !message["profile"]["test"].as_bool()? {
            return None;
        }
        Some(Self {
            folder: Path::new(&text(&message["manifest_path"])?).parent()?.to_path_buf(),
            target: text(&message["target"]["name"])?,
            integration: message["target"]["kind"][0] == "test",
            executable: text(&message["executable"])?.into(),
            tests: Vec::new(),
        })
    }

    /// Its modules, each as a program, if it has the package's files of tests.
    fn by_module(self) -> Result<Vec<Self>, String> {
        if !self.integration || self.target != TOGETHER {
            return Ok(vec![self]);
        }
        let listed = Command::new(&self.executable)
            .args(["--list", "--format", "terse"])
            .output()
            .map_err(|why| format!("{}: {why}", self.executable.display()))?;
        Ok(self.modules(&String::from_utf8_lossy(&listed.stdout)))
    }

    /// From the list of its tests.
    fn modules(&self, listed: &str) -> Vec<Self> {
        let mut modules: BTreeMap<&str, Vec<String>> = BTreeMap::new();
        for test in listed.lines().filter_map(|line| line.strip_suffix(": test")) {
            let module = test.split_once("::").map_or(TOGETHER, |(module, _)| module);
            modules.entry(module).or_default().push(test.to_owned());
        }
        let modules = modules.into_iter();
        modules
            .map(|(module, tests)| Self {
                target: module.to_owned(),
                tests,
                ..self.clone()
            })
            .collect()
    }

    /// The arguments that choose its tests.
    fn arguments(&self) -> impl Iterator<Item = &str> {
        let exact = (!self.tests.is_empty()).then_some("--exact");
        exact.into_iter().chain(self.tests.iter().map(String::as_str))
    }

    /// Its package's folder and its own name.
    fn name(&self) -> String {
        let package = self.folder.file_name().unwrap_or_default().to_string_lossy();
        let what = if self.integration { "" } else { " (unit tests)" };
        format!("{package} {}{what}", self.target)
    }

    /// Whether it belongs to the stage `long`.
    fn is_long(&self) -> bool {
        let name = self.name();
        LONG.iter()
            .any(|long| *long == name || long.ends_with(' ') && name.starts_with(long))
    }

    /// `with`: name and value of a variable for this run, and what it is called.
    fn job<'a>(&self, context: &'a Context<'a>, with: Option<[&str; 3]>) -> Job<'a> {
        let mut command = context.command(&self.executable.to_string_lossy(), &[]);
        context.name_programs(command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder));
        command.args(self.arguments());
        let name = self.name();
        let alone = ALONE.iter().any(|(test, _)| *test == name);
        if let Some([variable, value, called]) = with {
            command.env(variable, value);
            return Job::command(context, format!("{name} with {called}"), alone, command);
        }
        Job::command(context, name, alone, command)
    }

    /// With the kernel door, where the network is like that.
    fn weathered_job<'a>(&self, context: &'a Context<'a>, weather: &[&str]) -> Job<'a> {
        let built = self.executable.parent().and_then(Path::parent).unwrap_or(Path::new(""));
        let mut command = context.command(&built.join("weathered").to_string_lossy(), weather);
        context.name_programs(command.current_dir(&self.folder).env("CARGO_MANIFEST_DIR", &self.folder));
        command.arg(&self.executable).args(self.arguments());
        Job::command(
            context,
            format!("{} with the kernel door, {}", self.name(), weather.join(" ")),
            false,
            command,
        )
    }
}

/// The stage `test`.
pub fn short(context: &Context<'_>) -> Outcome {
    with_programs(context, &[], |programs| {
        let mut jobs: Vec<_> = programs
            .iter()
            .filter(|p| !p.is_long())
            .map(|p| p.job(context, None))
            .collect();
        jobs.push(cargo(context, "examples in documentation", DOCUMENTED));
        jobs
    })
}

/// The stage `long`.
pub fn long(context: &Context<'_>) -> Outcome {
    with_programs(context, &[], |programs| {
        let is_root = std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0);
        // These two build a little of their own.
        let mut jobs = vec![cargo(context, "watched tests of the region", WATCHED_TESTS)];
        if is_root {
            jobs.push(Job {
                name: "figures in short".into(),
                alone: false,
                work: Box::new(|| figures::run(context, &["--short"])),
            });
        }
        jobs.extend(programs.iter().filter(|p| p.is_long()).map(|p| p.job(context, None)));
        let network = programs
            .iter()
            .filter(|p| p.integration && NETWORK_TESTS.contains(&&*p.target));
        let epoll = ["KEYWAY_TESTS_EVENT_LOOP", "epoll", "epoll"];
        jobs.extend(network.map(|program| program.job(context, Some(epoll))));
        let kernel_door = ["KEYWAY_TESTS_KERNEL_TCP", "1", "the kernel door"];
        let privileged = programs
            .iter()
            .filter(|p| is_root && p.integration && KERNEL_TESTS.contains(&&*p.target));
        for program in privileged {
            jobs.push(program.job(context, Some(kernel_door)));
            if WEATHERED_TESTS.contains(&&*program.name()) {
                jobs.extend(WEATHERS.iter().map(|weather| program.weathered_job(context, weather)));
            }
        }
        jobs
    })
}

/// The tests of the stage `test` in these packages' folders, built without default features.
pub fn of(context: &Context<'_>, is_chosen: impl Fn(&Path) -> bool) -> Outcome {
    with_programs(context, &["--no-default-features"], |programs| {
        let chosen = programs.iter().filter(|p| is_chosen(&p.folder) && !p.is_long());
        chosen.map(|p| p.job(context, None)).collect()
    })
}

/// Builds the programs of tests and what they start, with these arguments of cargo, and runs the jobs that `jobs` makes of them.
fn with_programs<'a>(context: &'a Context<'a>, with: &[&str], jobs: impl FnOnce(&[Program]) -> Vec<Job<'a>>) -> Outcome {
    match context.build_all(with) {
        Outcome::Passed => {}
        other => return other,
    }
    match programs(context, with) {
        Ok((programs, is_complete)) => match lanes::run(context, jobs(&programs)) {
            Outcome::Passed if !is_complete => Outcome::Late(format!("{} programs of tests were built in time", programs.len())),
            outcome => outcome,
        },
        Err(why) => Outcome::Failed(why),
    }
}

fn cargo<'a>(context: &'a Context<'a>, name: &str, arguments: &[&str]) -> Job<'a> {
    Job::command(context, name.into(), false, context.command("cargo", arguments))
}

/// Builds all programs of tests; cargo names them. Those that take longest come first. If the time is limited, half of what is left is for
/// building; `false`: it was not enough for all.
fn programs(context: &Context<'_>, with: &[&str]) -> Result<(Vec<Program>, bool), String> {
    let what = [
        "test",
        "--locked",
        "--workspace",
        "--no-run",
        "--message-format=json-render-diagnostics",
    ];
    let within = context.left().map(|left| left / 2);
    let (messages, is_complete) = context.output_in("cargo", &[&what[..], with].concat(), within)?;
    let mut programs = Vec::new();
    for program in messages.lines().filter_map(Program::from_message) {
        programs.extend(program.by_module()?);
    }
    // Without features some tests are not built.
    let listed = ALONE.iter().map(|(test, _)| test).chain(LONG).chain(&FIRST);
    for test in listed.filter(|_| with.is_empty() && is_complete) {
        if !programs.iter().any(|program| program.name().starts_with(test)) {
            return Err(format!("xtask/src/testing.rs lists the test '{test}', which does not exist"));
        }
    }
    programs.sort_by_cached_key(|program| {
        let name = program.name();
        (FIRST.iter().position(|first| *first == name).unwrap_or(FIRST.len()), name)
    });
    Ok((programs, is_complete))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_test_is_named_alone_or_with_all_of_its_package() {
        let is_long = |package: &str, target: &str| {
            let program = Program {
                folder: Path::new("/w").join(package),
                target: target.into(),
                integration: true,
                executable: PathBuf::new(),
                tests: Vec::new(),
            };
            program.is_long()
        };
        assert!(is_long("packages", "debian") && is_long("keyway-bench", "page"));
        assert!(!is_long("packages-of-others", "debian") && !is_long("keyway-bench", "pages"));
    }

    #[test]
    fn programs_of_tests_are_told_from_other_parts() {
        let line = r#"{"reason":"compiler-artifact","manifest_path":"/w/crates/one/Cargo.toml","target":{"kind":["test"],"name":"server"},
            "profile":{"test":true},"executable":"/t/server-1"}"#;
        let program = Program::from_message(line).unwrap();
        assert_eq!(program.name(), "one server");
        assert_eq!(program.folder, Path::new("/w/crates/one"));
        assert_eq!(program.executable, Path::new("/t/server-1"));
        let unit = Program::from_message(&line.replace(r#"["test"]"#, r#"["lib"]"#)).unwrap();
        assert_eq!(unit.name(), "one server (unit tests)");
        let listed = "chains::one: test\nlimits::one: test\nlimits::two: test\n\n3 tests, 0 benchmarks\n";
        let modules = program.modules(listed);
        let names: Vec<_> = modules.iter().map(Program::name).collect();
        assert_eq!(names, ["one chains", "one limits"]);
        assert_eq!(
            modules[1].arguments().collect::<Vec<_>>(),
            ["--exact", "limits::one", "limits::two"]
        );
        assert_eq!(program.arguments().count(), 0);
        for other in [
            line.replace("true", "false"),
            line.replace(r#""/t/server-1""#, "null"),
            r#"{"reason":"build-finished","success":true}"#.into(),
        ] {
            assert_eq!(Program::from_message(&other), None, "{other}");
        }
    }
}
