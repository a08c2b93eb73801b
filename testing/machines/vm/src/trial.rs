//! One boot: the tests of a kernel, run in the guest and judged as it reports them.

use crate::image;
use crate::kernels::{Kernel, Version};
use crate::machine::{Boot, Guest, Said};
use crate::tests::{Fails, Test, named};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Instant;

/// What was tried and what was wrong, of all boots.
pub struct Report {
    started: Instant,
    // counters only
    passed: AtomicU32,
    failed: AtomicU32,
    screen: Mutex<()>,
}

impl Default for Report {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            passed: AtomicU32::new(0),
            failed: AtomicU32::new(0),
            screen: Mutex::new(()),
        }
    }
}

impl Report {
    /// A line of progress.
    pub fn say(&self, who: &str, text: &str) {
        let _one_at_a_time = self.screen.lock();
        let mut out = std::io::stdout();
        // there may be no reader
        let _ = writeln!(out, "[{:5.1} s] {who:>4}: {text}", self.started.elapsed().as_secs_f64());
        let _ = out.flush();
    }

    /// What came of something that was tried.
    pub fn take(&self, who: &str, what: &str, verdict: Result<String, String>) {
        match verdict {
            Ok(said) => {
                self.passed.fetch_add(1, Relaxed);
                self.say(who, &format!("ok      {what}: {said}"));
            }
            Err(why) => {
                self.failed.fetch_add(1, Relaxed);
                self.say(who, &format!("FAILED  {what}: {why}"));
            }
        }
    }

    /// So many passed, so many failed.
    pub fn counts(&self) -> (u32, u32) {
        (self.passed.load(Relaxed), self.failed.load(Relaxed))
    }
}

/// A kernel with its files, ready to boot as often as is wanted.
pub struct Bench {
    kernel: Kernel,
    image: PathBuf,
    scratch: harness::Scratch,
    who: &'static str,
}

impl Bench {
    /// Makes the files for these tests.
    ///
    /// # Errors
    ///
    /// When something of it is missing, or cannot be built.
    pub fn new(version: Version, tests: &[&Test]) -> Result<Self, String> {
        let kernel = Kernel::find(version)?;
        let scratch = harness::Scratch::new();
        let image = scratch.join("files.cpio");
        std::fs::write(&image, image::make(&kernel, tests)?).map_err(|e| format!("{}: {e}", image.display()))?;
        Ok(Self {
            kernel,
            image,
            scratch,
            who: version.name(),
        })
    }

    /// Boots it.
    ///
    /// # Errors
    ///
    /// When the emulator cannot be started.
    pub fn boot(&self, run: &str, nvdimm: Option<&Path>) -> Result<Guest, String> {
        Boot {
            vmlinuz: &self.kernel.vmlinuz,
            image: &self.image,
            nvdimm,
            run,
            console: self.scratch.join("console"),
        }
        .start()
    }

    /// What reports call it.
    pub fn who(&self) -> &'static str {
        self.who
    }

    /// A path for a file that goes with it.
    pub fn file(&self, name: &str) -> PathBuf {
        self.scratch.join(name)
    }
}

/// Boots a guest, runs the tests in it and judges them.
pub fn run(report: &Report, bench: &Bench, tests: &[&Test]) {
    if tests.is_empty() {
        return;
    }
    let names: Vec<&str> = tests.iter().map(|test| test.name).collect();
    report.say(bench.who(), &format!("booting for {}", names.join(", ")));
    match bench.boot(&names.join(","), None) {
        Ok(guest) => drop(follow(report, bench.who(), &guest, &names, &mut |_| {})),
        Err(why) => report.take(bench.who(), "boot", Err(why)),
    }
}

/// Reads a guest's report until everything in `names` ran, and judges it. Other lines go to `other`. Whether nothing was wrong.
pub fn follow(report: &Report, who: &str, guest: &Guest, names: &[&str], other: &mut dyn FnMut(&str)) -> bool {
    let mut left: Vec<&str> = names.to_vec();
    let mut is_sound = true;
    while !left.is_empty() {
        let (name, verdict) = match guest.next() {
            Said::Line(line) => match judged(&line) {
                Some((name, verdict)) => (name.to_owned(), verdict),
                None => {
                    other(&line);
                    continue;
                }
            },
            how @ (Said::End | Said::Silence) => {
                let how = if how == Said::End { "ended" } else { "was silent" };
                (left[0].to_owned(), Err(format!("the guest {how} meanwhile")))
            }
        };
        let is_over = verdict.as_ref().is_err_and(|why| why.ends_with(" meanwhile"));
        let test = named(&name);
        let fails = test.map_or(Fails::Never, |test| test.fails);
        let verdict = match (fails, verdict) {
            (Fails::Always, Err(why)) if !is_over => Ok(format!("reported: {why}")),
            (Fails::WithGuest, Err(why)) if is_over => Ok(format!("reported: {why}")),
            (Fails::Always | Fails::WithGuest, Ok(_)) => Err("it was to be reported as failed".into()),
            (_, Err(why)) => Err(format!("{why}; its console:{}", guest.console())),
            (Fails::Never, Ok(said)) => Ok(said),
        };
        is_sound &= verdict.is_ok();
        let shows = test.map_or(name.as_str(), |test| test.shows);
        report.take(who, &format!("{name} ({shows})"), verdict);
        left.retain(|left| *left != name);
        if is_over || name == "boot" {
            for missed in &left {
                report.take(who, missed, Err("it did not run".into()));
            }
            return is_sound && left.is_empty();
        }
    }
    is_sound
}

/// What a line says of a test: its name, and what came of it.
fn judged(line: &str) -> Option<(&str, Result<String, String>)> {
    let (word, rest) = line.split_once(' ')?;
    let (name, said) = rest.split_once(": ").unwrap_or((rest.trim_end_matches(':'), ""));
    match word {
        "ok" => Some((name, Ok(said.to_owned()))),
        "FAILED" => Some((name, Err(said.to_owned()))),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_report_are_read() {
        assert_eq!(judged("ok pkeys: 6 faults"), Some(("pkeys", Ok("6 faults".into()))));
        assert_eq!(judged("ok pkeys: "), Some(("pkeys", Ok(String::new()))));
        assert_eq!(judged("FAILED dies: signal: 6"), Some(("dies", Err("signal: 6".into()))));
        assert_eq!(judged("begin pkeys"), None);
        assert_eq!(judged("end"), None);
    }

    #[test]
    fn names_are_of_one_test_each() {
        let all: Vec<&str> = crate::tests::ALL.iter().chain(crate::nvdimm::STEPS).map(|t| t.name).collect();
        for (i, name) in all.iter().enumerate() {
            assert!(!all[..i].contains(name), "{name} twice");
            assert!(!name.contains([',', ':', ' ']), "{name}");
        }
    }
}
