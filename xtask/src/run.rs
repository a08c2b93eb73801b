//! Runs stages one after the other and reports: a line before and after each, a table, one line with the totals.
//!
//! A stage marked `beside` starts first and runs in parallel with the others (it needs one CPU and no files of other stages). Its output is
//! held back until its turn in the table comes.

use crate::stages::Stage;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// The result of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// it did its work and found nothing wrong
    Passed,
    /// it found an error, or could not do its work
    Failed(String),
    /// it cannot run on this machine
    Skipped(String),
    /// it was not begun, or not all of it, because the time was over; what was begun has passed
    Late(String),
}

/// What a stage needs to run.
pub struct Context<'a> {
    /// the workspace's root; commands run there
    pub root: &'a Path,
    /// cargo's target directory
    pub target: PathBuf,
    /// the file for the output of a stage that runs in parallel with the others
    log: Option<PathBuf>,
    /// no work is begun after it
    until: Option<Instant>,
}

impl<'a> Context<'a> {
    /// Of the workspace at `root`, with this target directory and all output on the terminal.
    pub fn new(root: &'a Path, target: PathBuf) -> Self {
        Self {
            root,
            target,
            log: None,
            until: None,
        }
    }

    /// With work that begins within so long from now.
    #[cfg(test)]
    pub fn until(self, within: Duration) -> Self {
        Self {
            until: Some(Instant::now() + within),
            ..self
        }
    }

    /// Whether the time is over: no work is begun any more.
    pub fn is_late(&self) -> bool {
        self.left() == Some(Duration::ZERO)
    }

    /// The time in which work may begin; `None`: it is not limited.
    pub fn left(&self) -> Option<Duration> {
        self.until.map(|until| until.saturating_duration_since(Instant::now()))
    }

    /// A command that runs in the workspace's root.
    pub fn command(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(program);
        command.args(args).current_dir(self.root);
        // `cargo run` sets variables about the package that it runs; programs that are started from here must not see them.
        for (name, _) in std::env::vars_os() {
            if name
                .to_str()
                .is_some_and(|n| n.starts_with("CARGO_PKG_") || n.starts_with("CARGO_MANIFEST_"))
            {
                command.env_remove(name);
            }
        }
        command
    }

    /// Starts `command` and waits for it. If it ends with an error, `Failed` says how.
    pub fn expect(&self, mut command: Command) -> Outcome {
        self.watch(&mut command)
    }

    /// As [`Self::expect`], for a command with settings of its own.
    fn watch(&self, command: &mut Command) -> Outcome {
        if let Some(log) = &self.log {
            let streams = std::fs::File::options()
                .create(true)
                .append(true)
                .open(log)
                .and_then(|f| Ok((f.try_clone()?, f)));
            match streams {
                Ok((out, err)) => command.stdout(out).stderr(err),
                Err(e) => return Outcome::Failed(format!("cannot write {}: {e}", log.display())),
            };
        }
        let shown = show(command);
        println!("   $ {shown}");
        let _ = std::io::stdout().flush();
        let began = Instant::now();
        let status = command.stdin(Stdio::null()).spawn().and_then(|mut child: Child| child.wait());
        println!("   {:.1} s: {shown}", began.elapsed().as_secs_f64());
        match status {
            Ok(status) if status.success() => Outcome::Passed,
            Ok(status) => Outcome::Failed(format!("{shown}: {status}")),
            Err(e) => Outcome::Failed(format!("{shown}: {e}")),
        }
    }

    /// Builds the programs, libraries and examples of the workspace, which the tests start. All in one build: in separate builds, their
    /// dependencies might have other features each time and be compiled again. `with`: more arguments of cargo.
    pub fn build_all(&self, with: &[&str]) -> Outcome {
        let what = ["build", "--locked", "--workspace", "--lib", "--bins", "--examples"];
        self.expect(self.command("cargo", &[&what[..], with].concat()))
    }

    /// Sets the program `keyway` that tests use; the other programs and libraries that they need are beside it.
    pub fn name_programs(&self, command: &mut Command) {
        if std::env::var_os("KEYWAY_BIN").is_none() {
            command.env("KEYWAY_BIN", self.target.join("debug/keyway"));
        }
    }

    /// As [`Self::expect`], with the command's output in a new file instead of on the terminal.
    pub fn logged(&self, log: &Path, command: &mut Command) -> Outcome {
        let folder = log.parent().unwrap_or(Path::new("/"));
        if let Err(e) = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(log, "")) {
            return Outcome::Failed(format!("cannot write {}: {e}", log.display()));
        }
        Context {
            root: self.root,
            target: self.target.clone(),
            log: Some(log.to_path_buf()),
            until: self.until,
        }
        .watch(command)
    }

    /// What `program args…` prints, if it succeeds.
    pub fn output(&self, program: &str, args: &[&str]) -> Result<String, String> {
        let shown = || format!("{program} {}", args.join(" "));
        let output = self.command(program, args).stderr(Stdio::inherit()).output();
        let output = output.map_err(|e| format!("{}: {e}", shown()))?;
        if !output.status.success() {
            return Err(format!("{}: {}", shown(), output.status));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// As [`Self::output`], for a command that is ended when it has run for so long; and whether it has come to its end.
    pub fn output_in(&self, program: &str, args: &[&str], within: Option<Duration>) -> Result<(String, bool), String> {
        let Some(within) = within else {
            return self.output(program, args).map(|output| (output, true));
        };
        let shown = || format!("{program} {}", args.join(" "));
        let began = Instant::now();
        let mut command = self.command(program, args);
        // In a group of its own: what it has started ends with it.
        let spawned = command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = spawned.map_err(|e| format!("{}: {e}", shown()))?;
        let group = child.id();
        let mut pipe = child.stdout.take().ok_or_else(|| format!("{}: no output", shown()))?;
        let mut output = Vec::new();
        let status = std::thread::scope(|scope| {
            let reader = scope.spawn(|| pipe.read_to_end(&mut output));
            let mut status = child.try_wait();
            while let Ok(None) = status
                && began.elapsed() < within
            {
                std::thread::sleep(Duration::from_millis(100));
                status = child.try_wait();
            }
            if let Ok(None) = status {
                let kill = format!("kill -TERM -{group}");
                let _ = self.command("sh", &["-c", &kill]).status();
                let _ = child.wait();
            }
            let _ = reader.join();
            status
        });
        match status {
            Ok(Some(status)) if !status.success() => Err(format!("{}: {status}", shown())),
            Ok(status) => Ok((String::from_utf8_lossy(&output).into_owned(), status.is_some())),
            Err(e) => Err(format!("{}: {e}", shown())),
        }
    }

    /// Whether `program args…` can be started and succeeds.
    pub fn works(&self, program: &str, args: &[&str]) -> bool {
        let mut command = self.command(program, args);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|s| s.success())
    }
}

/// Runs one command outside the checks, with its output on the terminal.
pub fn alone(root: &Path, work: impl Fn(&Context<'_>) -> Outcome) -> ExitCode {
    match work(&Context::new(root, target(root))) {
        Outcome::Passed => ExitCode::SUCCESS,
        Outcome::Failed(why) | Outcome::Skipped(why) | Outcome::Late(why) => {
            println!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Cargo's target directory.
fn target(root: &Path) -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), |dir| root.join(dir))
}

/// Runs the `chosen` stages and reports. The exit code is 0 only if none failed. `within`: no stage, and no test, is begun after so long.
pub fn gate(chosen: &[&'static Stage], root: &Path, within: Option<Duration>) -> ExitCode {
    let started = Instant::now();
    let until = within.map(|within| started + within);
    let require_all = std::env::var_os("KEYWAY_TESTS_REQUIRE_ALL").is_some_and(|v| !v.is_empty() && v != "0");
    let target = target(root);
    let mut rows: Vec<(&str, Outcome, Duration)> = Vec::new();
    let is_over = within.is_some_and(|within| within.is_zero());

    std::thread::scope(|scope| {
        let beside: Vec<_> = chosen
            .iter()
            .filter(|stage| stage.beside && chosen.len() > 1 && !is_over)
            .map(|stage| {
                let log = target.join(format!("xtask-{}.log", stage.name));
                let _ = std::fs::create_dir_all(&target).and_then(|()| std::fs::write(&log, ""));
                println!("{} {}: started beside the others", stamp(started), stage.name);
                let context = Context {
                    root,
                    target: target.clone(),
                    log: Some(log.clone()),
                    until,
                };
                let worker = scope.spawn(move || {
                    let began = Instant::now();
                    ((stage.run)(&context), began.elapsed())
                });
                (stage.name, log, worker)
            })
            .collect();

        for stage in chosen.iter().filter(|stage| !stage.beside || chosen.len() == 1 || is_over) {
            println!("{} == {}: {}", stamp(started), stage.name, stage.catches);
            let began = Instant::now();
            let context = Context {
                until,
                ..Context::new(root, target.clone())
            };
            let outcome = match context.is_late() {
                true => Outcome::Late(format!("run it by hand: cargo xtask ci {}", stage.name)),
                false => judge((stage.run)(&context), require_all),
            };
            announce(started, stage.name, &outcome, began.elapsed());
            rows.push((stage.name, outcome, began.elapsed()));
        }

        for (name, log, worker) in beside {
            let (outcome, took) = worker
                .join()
                .unwrap_or_else(|_| (Outcome::Failed("the stage panicked".into()), started.elapsed()));
            let outcome = judge(outcome, require_all);
            match (&outcome, std::fs::read_to_string(&log)) {
                (Outcome::Failed(_), Ok(output)) => println!("{output}"),
                (_, Ok(output)) => println!("{}", output.lines().last().unwrap_or_default()),
                (_, Err(e)) => println!("cannot read {}: {e}", log.display()),
            }
            announce(started, name, &outcome, took);
            rows.push((name, outcome, took));
        }
    });

    rows.sort_by_key(|(name, ..)| chosen.iter().position(|s| s.name == *name));
    let (table, failed) = summary(&rows);
    println!("\n{table}");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// A skip counts as a failure if everything is required.
fn judge(outcome: Outcome, require_all: bool) -> Outcome {
    match outcome {
        Outcome::Skipped(why) if require_all => Outcome::Failed(format!("skipped, but KEYWAY_TESTS_REQUIRE_ALL=1: {why}")),
        other => other,
    }
}

fn announce(started: Instant, name: &str, outcome: &Outcome, took: Duration) {
    println!(
        "{} -- {name}: {} in {:.1} s",
        stamp(started),
        word(outcome),
        took.as_secs_f64()
    );
}

/// The table of all stages, with the line of totals last, and how many failed.
fn summary(rows: &[(&str, Outcome, Duration)]) -> (String, usize) {
    let mut text = String::new();
    let (mut passed, mut failed, mut skipped, mut late) = (0, 0, 0, 0);
    for (name, outcome, took) in rows {
        let why = match outcome {
            Outcome::Passed => {
                passed += 1;
                ""
            }
            Outcome::Failed(why) => {
                failed += 1;
                why
            }
            Outcome::Skipped(why) => {
                skipped += 1;
                why
            }
            Outcome::Late(why) => {
                late += 1;
                why
            }
        };
        text.push_str(format!("{name:10} {:8} {:7.1} s  {why}", word(outcome), took.as_secs_f64()).trim_end());
        text.push('\n');
    }
    if skipped > 0 {
        text.push_str(&format!(
            "{skipped} skipped: not passed and not failed; KEYWAY_TESTS_REQUIRE_ALL=1 counts them as failed\n"
        ));
    }
    if late > 0 {
        text.push_str(&format!(
            "{late} not begun, or not all of it: this machine is too slow for the time given\n"
        ));
    }
    text.push_str(&format!("{passed} passed, {failed} failed"));
    (text, failed)
}

fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Passed => "passed",
        Outcome::Failed(_) => "FAILED",
        Outcome::Skipped(_) => "SKIPPED",
        Outcome::Late(_) => "NOT RUN",
    }
}

/// Time of day (UTC), and seconds since the checks started.
fn stamp(started: Instant) -> String {
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default()
        .as_secs();
    let (h, m, s) = (now / 3600 % 24, now / 60 % 60, now % 60);
    format!("[{h:02}:{m:02}:{s:02}Z +{:3} s]", started.elapsed().as_secs())
}

/// A command in the form in which a user would type it.
fn show(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn the_last_line_counts_and_a_skip_is_neither() {
        let rows = [
            ("a", Outcome::Passed, SECOND),
            ("b", Outcome::Failed("broken".into()), SECOND),
            ("c", Outcome::Skipped("no".into()), SECOND),
        ];
        let (table, failed) = summary(&rows);
        assert_eq!(failed, 1);
        assert_eq!(table.lines().last(), Some("1 passed, 1 failed"));
        assert!(table.contains("broken"));
        assert!(table.contains("1 skipped"));
    }

    #[test]
    fn what_was_not_begun_is_named_and_fails_nothing() {
        let stage: &'static Stage = crate::stages::ALL.iter().find(|stage| stage.name == "fmt").unwrap();
        assert_eq!(
            gate(&[stage], Path::new("/nonexistent"), Some(Duration::ZERO)),
            ExitCode::SUCCESS
        );
        assert_eq!(gate(&[stage], Path::new("/nonexistent"), None), ExitCode::FAILURE);
        let (table, failed) = summary(&[
            ("a", Outcome::Passed, SECOND),
            ("b", Outcome::Late("run it by hand".into()), SECOND),
        ]);
        assert_eq!(failed, 0);
        assert!(table.contains("NOT RUN") && table.contains("1 not begun"), "{table}");
        assert_eq!(table.lines().last(), Some("1 passed, 0 failed"));
    }

    #[test]
    fn what_takes_too_long_is_ended_with_what_it_has_started() {
        let root = std::env::temp_dir();
        let context = Context::new(&root, root.clone());
        let run = |script: &str, within| context.output_in("sh", &["-c", script], within);
        assert_eq!(run("echo one", None), Ok(("one\n".into(), true)));
        assert_eq!(run("echo one", Some(60 * SECOND)), Ok(("one\n".into(), true)));
        let began = Instant::now();
        // The pipe is closed only when the second sleep has ended, too.
        assert_eq!(
            run("echo one; sleep 600 & sleep 600", Some(SECOND)),
            Ok(("one\n".into(), false))
        );
        assert!(began.elapsed() < 300 * SECOND);
        assert!(run("exit 3", Some(60 * SECOND)).is_err_and(|why| why.contains('3')));
    }

    #[test]
    fn a_skip_fails_where_all_is_required() {
        let skipped = Outcome::Skipped("no nightly".into());
        assert_eq!(judge(skipped.clone(), false), skipped);
        assert!(matches!(judge(skipped, true), Outcome::Failed(why) if why.contains("no nightly")));
        assert_eq!(judge(Outcome::Passed, true), Outcome::Passed);
    }

    #[test]
    fn a_command_that_fails_or_is_missing_fails_its_stage() {
        let root = std::env::temp_dir();
        let context = Context {
            root: &root,
            target: root.clone(),
            log: None,
            until: None,
        };
        assert_eq!(context.expect(context.command("true", &[])), Outcome::Passed);
        assert!(matches!(context.expect(context.command("false", &[])), Outcome::Failed(_)));
        assert!(matches!(
            context.expect(context.command("keyway-no-such-program", &[])),
            Outcome::Failed(_)
        ));
    }
}
