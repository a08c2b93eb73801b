//! The guest's side: `/init`, which mounts what programs expect, loads the modules, and runs what the kernel's command line names,
//! one test after the other, each in a process of its own.
//!
//! The report goes to the second serial line: `begin NAME`, then `ok NAME: …` or `FAILED NAME: …`, and `end`. What tests and the
//! programs that they start print goes to the console.

pub mod broken;
pub mod gate;
pub mod kernel_door;
pub mod machine;
pub mod nvdimm;
#[cfg(target_arch = "x86_64")]
pub mod pkeys;
#[cfg(not(target_arch = "x86_64"))]
pub mod pkeys {
    //! This processor has none; and guests are of x86-64.
    use crate::tests::Verdict;

    /// Says so.
    pub fn fault() -> Verdict {
        Err("there are no guests of this processor".into())
    }
}

use crate::image::{MODULES, PROGRAMS};
use crate::machine::PARAMETER;
use crate::tests::{self, Verdict};
use nix::mount::{MsFlags, mount};
use std::fs::File;
use std::io::Write;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

/// What this program is called in the guest.
pub const INIT: &str = "/init";
/// How long a test may take. Emulation is slow, and the host may be busy.
pub const LIMIT: Duration = Duration::from_secs(120);
/// How long the test that hangs may take.
const LIMIT_OF_HANG: Duration = Duration::from_secs(1);
/// The report.
const REPORT: &str = "/dev/ttyS1";
/// Where a test leaves what it said.
const VERDICT: &str = "/run/verdict";

/// Plays the guest's side, if this process is of a guest.
pub fn part_of_it() -> Option<ExitCode> {
    let mut arguments = std::env::args();
    if arguments.next()? != INIT {
        return None;
    }
    if std::process::id() == 1 {
        return Some(init());
    }
    let name = arguments.next().unwrap_or_default();
    let arguments: Vec<String> = arguments.collect();
    let verdict = match tests::named(&name) {
        Some(test) => (test.run)(&arguments),
        None => Err("there is no such test".into()),
    };
    let (said, code) = match verdict {
        Ok(said) => (said, ExitCode::SUCCESS),
        Err(why) => (why, ExitCode::FAILURE),
    };
    Some(match std::fs::write(VERDICT, said) {
        Ok(()) => code,
        Err(_) => ExitCode::FAILURE,
    })
}

/// A line for the host, at once.
///
/// # Panics
///
/// When there is no line to it: then this is not a guest.
pub fn report(line: &str) {
    let written = File::options().write(true).open(REPORT);
    let written = written.and_then(|mut port| port.write_all(format!("{line}\n").as_bytes()));
    written.unwrap_or_else(|e| panic!("{REPORT}: {e}"));
}

/// The first process. Its end is the guest's.
fn init() -> ExitCode {
    if let Err(why) = prepare() {
        println(&why);
        report(&format!("FAILED boot: {why}"));
    } else {
        let parameters = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
        let named = parameters.split_whitespace().find_map(|word| word.strip_prefix(PARAMETER));
        for test in named.unwrap_or_default().split(',').filter(|name| !name.is_empty()) {
            run(test);
        }
        report("end");
    }
    nix::unistd::sync();
    let _ = nix::sys::reboot::reboot(nix::sys::reboot::RebootMode::RB_AUTOBOOT);
    ExitCode::FAILURE
}

/// Mounts, modules, names.
fn prepare() -> Result<(), String> {
    let mounts = [
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("devtmpfs", "/dev"),
        ("tmpfs", "/dev/shm"),
        ("tmpfs", "/run"),
        ("tmpfs", "/tmp"),
        ("bpf", "/sys/fs/bpf"),
    ];
    for (kind, place) in mounts {
        mount_at(kind, kind, place, None)?;
    }
    let var = std::fs::create_dir("/var").and_then(|()| std::os::unix::fs::symlink("/run", "/var/run"));
    var.map_err(|e| format!("/var/run: {e}"))?;
    let mut modules: Vec<_> = std::fs::read_dir(MODULES)
        .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
        .unwrap_or_default();
    modules.sort();
    for module in modules {
        let image = std::fs::read(&module).map_err(|e| format!("{}: {e}", module.display()))?;
        nix::kmod::init_module(&image, c"").map_err(|e| format!("loading {}: {e}", module.display()))?;
    }
    Ok(())
}

/// Mounts a file system, making its place.
///
/// # Errors
///
/// When the kernel refuses.
pub fn mount_at(what: &str, kind: &str, place: &str, options: Option<&str>) -> Result<(), String> {
    std::fs::create_dir_all(place).map_err(|e| format!("{place}: {e}"))?;
    mount(Some(what), place, Some(kind), MsFlags::empty(), options).map_err(|e| format!("mounting {place}: {e}"))
}

/// Runs a test, given as its name and its arguments with colons between them, and reports.
fn run(test: &str) {
    let mut words = test.split(':');
    let name = words.next().unwrap_or_default();
    report(&format!("begin {name}"));
    // left by the one before
    let _ = std::fs::remove_file(VERDICT);
    let limit = if name == "hangs" { LIMIT_OF_HANG } else { LIMIT };
    match in_process(name, words, limit) {
        Ok(said) => report(&format!("ok {name}: {}", one_line(&said))),
        Err(why) => report(&format!("FAILED {name}: {}", one_line(&why))),
    }
}

fn in_process<'a>(name: &str, arguments: impl Iterator<Item = &'a str>, limit: Duration) -> Verdict {
    let mut command = Command::new(INIT);
    command.arg(name).args(arguments).current_dir("/tmp");
    // What cannot run here is a failure: the guest is made for it.
    command.env("KEYWAY_TESTS_REQUIRE_ALL", "1");
    command.env("PATH", PROGRAMS).env("HOME", "/tmp").env("RUST_BACKTRACE", "0");
    let mut child = command.spawn().map_err(|e| format!("{INIT}: {e}"))?;
    let started = Instant::now();
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if started.elapsed() < limit => std::thread::sleep(Duration::from_millis(5)),
            Ok(None) => {
                // it goes with the guest otherwise
                let _ = child.kill();
                let _ = child.wait();
                return Err(format!("it did not end within {} s and was killed", limit.as_secs()));
            }
            Err(e) => return Err(e.to_string()),
        }
    };
    let said = std::fs::read_to_string(VERDICT);
    match (status.code(), said) {
        (Some(0), Ok(said)) => Ok(said),
        (Some(_), Ok(why)) => Err(why),
        (Some(code), Err(_)) => Err(format!("it ended with status {code} and no word")),
        (None, _) => Err(format!("it was killed by signal {}", status.signal().unwrap_or(0))),
    }
}

fn one_line(text: &str) -> String {
    text.trim().replace('\n', " | ")
}

/// A line on the console.
pub fn println(line: &str) {
    // there may be no reader
    let _ = writeln!(std::io::stdout(), "{line}");
}
