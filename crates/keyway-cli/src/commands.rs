//! `check`, `copy`: commands on a whole region, through the library door. They need no server. Also what all commands share: opening a
//! region, and printing.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use keyway_cache::{Cache, CheckReport, CopyError, Get, Options, Owners, Place, Session, WriteError};
use serde_json::{Map, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::exit::{self, Failure};
use crate::numbers::counted;
use crate::{place, terminal};

/// Items visited between two writes to the output.
const ITEMS_PER_STEP: usize = 1024;

/// Largest item of any region, bytes.
pub(crate) const ITEM_SIZE_MAX: usize = 1 << 30;

/// How all items are read: to look at each of them once makes none worth keeping.
const READ_ONLY: Get = Get {
    no_bump: true,
    ..*Get::VALUE
};

/// The region that a command works on.
#[derive(Clone)]
pub(crate) struct Which {
    pub(crate) path: PathBuf,
    pub(crate) owners: Owners,
}

/// Opens the region, but never creates one: a user who wants to look into a region does not
/// want a new one.
pub(crate) fn open(which: Which) -> Result<Cache, Failure> {
    let options = Options::new().owners(which.owners);
    place::open(&Place::at(which.path), &options, 0)
}

pub(crate) fn session(cache: &Cache) -> Result<Session, Failure> {
    cache.session().map_err(|error| Failure::new(exit::NO_REGION, error))
}

pub(crate) fn written(result: std::io::Result<()>) -> Result<(), Failure> {
    match result {
        // The reader has closed the pipe, as in `keyway keys | head`.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        result => result.map_err(|error| Failure::new(exit::SYSTEM, format_args!("cannot write: {error}"))),
    }
}

/// Prints `text`, and a line end. `println!` would panic where standard output is closed or full.
pub(crate) fn say(text: impl std::fmt::Display) -> Result<(), Failure> {
    written(std::io::stdout().write_all(format!("{text}\n").as_bytes()))
}

/// Prints lines for people, as they fit a terminal.
pub(crate) fn tell(text: impl std::fmt::Display) -> Result<(), Failure> {
    let text = terminal::wrapped(&text.to_string(), terminal::columns());
    written(std::io::stdout().write_all(text.as_bytes()))
}

/// Writes `text` to standard error as it is. A closed one is no failure of the command, and makes `eprint!` panic.
pub(crate) fn remark(text: impl std::fmt::Display) {
    let _ = std::io::stderr().write_all(text.to_string().as_bytes());
}

/// Copies a region, which may be in use.
pub(crate) fn copy(from: Which, to: &Path, force: bool) -> Result<(), Failure> {
    let cache = open(from)?;
    let progress = std::io::stderr().is_terminal();
    let ending = Ending::new()?;
    let copied = cache.copy_to_while(to, force, |percent| {
        if progress {
            remark(format_args!("\r{percent} %\r"));
        }
        !ending.is_asked()
    });
    let copied = match copied {
        Ok(copied) => copied,
        Err(error) => {
            cache.close();
            if matches!(error, CopyError::Interrupted { .. }) {
                ending.follow();
            }
            let code = match error {
                CopyError::Exists { .. } => exit::NO,
                CopyError::Rename { .. } | CopyError::NotWritten { .. } => exit::SYSTEM,
                _ => exit::NO_REGION,
            };
            return Err(Failure::new(code, error));
        }
    };
    let left_out = match copied.left_out {
        0 => String::new(),
        n => format!(", {n} left out: no room"),
    };
    let line = format!("{}: {}{left_out}", to.display(), counted(copied.items, "item"));
    cache.close();
    tell(line)
}

/// Lets a program that looks at a region for long end by itself when a signal asks it to, so that it leaves no session behind that others
/// would have to recover.
pub(crate) struct Ending(Arc<AtomicUsize>);

impl Ending {
    pub(crate) fn new() -> Result<Self, Failure> {
        let asked = asked_to_end();
        asked
            .map(Self)
            .map_err(|error| Failure::new(exit::SYSTEM, format_args!("cannot catch signals: {error}")))
    }

    /// Whether a signal has come.
    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Relaxed) != 0
    }

    /// Sleeps until `end`, or until a signal comes; in short steps, because a signal may come just before the sleep.
    pub(crate) fn sleep_until(&self, end: Instant) {
        while !self.is_asked() {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(NOTICED));
        }
    }

    /// Does what the signal does to a program that does not catch it, so that the parent process sees which one it was.
    pub(crate) fn follow(&self) {
        let signal = i32::try_from(self.0.load(Relaxed)).unwrap_or(SIGTERM);
        if signal != 0 {
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
    }
}

/// A signal to end is noticed after so long.
const NOTICED: Duration = Duration::from_millis(50);

/// From now on, the signal that has asked this program to end; 0: none yet. A signal that was ignored when it started (nohup(1)) stays ignored.
fn asked_to_end() -> std::io::Result<Arc<AtomicUsize>> {
    let asked = Arc::new(AtomicUsize::new(0));
    for signal in [SIGHUP, SIGINT, SIGTERM].into_iter().filter(|signal| !is_ignored(*signal)) {
        let number = usize::try_from(signal).unwrap_or(0);
        signal_hook::flag::register_usize(signal, Arc::clone(&asked), number)?;
    }
    Ok(asked)
}

/// Whether this process ignores a signal (proc_pid_status(5), "SigIgn").
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// Verifies every invariant; prints a summary and every error. If other processes have the region attached, it verifies only what
/// holds at any moment, and says so.
pub(crate) fn check(which: Which, is_json: bool) -> Result<(), Failure> {
    let shown = which.path.display().to_string();
    let cache = open(which)?;
    if others(&cache) > 0 {
        return check_in_use(&cache, &shown, is_json);
    }
    let progress = std::io::stderr().is_terminal();
    let report = cache.check(|percent| {
        if progress {
            remark(format_args!("\r{percent} %\r"));
        }
    });
    let count = report.problems.len() + report.unlisted;
    // Another process may have attached meanwhile; its unfinished operations look like errors.
    if count > 0 && others(&cache) > 0 {
        return check_in_use(&cache, &shown, is_json);
    }
    show_check(&shown, &report, count, is_json)?;
    cache.close();
    match count {
        0 => Ok(()),
        _ => Err(Failure::new(
            exit::NO,
            format_args!(
                "{shown} is damaged ({}): remove it and make a new one",
                counted(count as u64, "problem")
            ),
        )),
    }
}

fn show_check(shown: &str, report: &CheckReport, count: usize, is_json: bool) -> Result<(), Failure> {
    if is_json {
        let summary: Map<_, _> = report
            .summary
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.as_str().into()))
            .collect();
        let object = json!({
            "place": shown,
            "in_use": false,
            "is_sound": count == 0,
            "summary": summary,
            "problems": report.problems,
            "problems_not_listed": report.unlisted,
        });
        return say(object);
    }
    let mut text = String::new();
    for (name, value) in &report.summary {
        text.push_str(&format!("{name}: {value}\n"));
    }
    for problem in &report.problems {
        text.push_str(&format!("PROBLEM {problem}\n"));
    }
    text.push_str(&match count {
        0 => format!("{shown}: all invariants hold\n"),
        _ => format!(
            "{shown}: {}, {} of them listed\n",
            counted(count as u64, "problem"),
            report.problems.len()
        ),
    });
    tell(text)
}

/// Other processes that have the region attached for writing.
fn others(cache: &Cache) -> usize {
    cache.processes().saturating_sub(usize::from(!cache.is_reader()))
}

/// Reads every item as a client does. The region's superblock and layout were verified when it was opened.
fn check_in_use(cache: &Cache, shown: &str, is_json: bool) -> Result<(), Failure> {
    let mut session = session(cache)?;
    let damaged_before = cache.counters().corrupt;
    let (mut read, mut cursor, mut value) = (0u64, Some(0), Vec::new());
    while let Some(from) = cursor {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        cursor = session.walk(from, ITEMS_PER_STEP, |key, _| keys.push(key.to_vec()));
        for key in keys {
            value.clear();
            // An item that was deleted since the walk found it is no error.
            match session.get_with(&key, &READ_ONLY, &mut value, |_, _| {}) {
                Ok(found) => read += u64::from(found.is_some()),
                Err(WriteError::Corrupt) => {}
                Err(error) => return Err(Failure::new(exit::SYSTEM, format_args!("{}: {error}", key.escape_ascii()))),
            }
        }
    }
    let damaged = cache.counters().corrupt.saturating_sub(damaged_before);
    let processes = match others(cache) {
        1 => "1 other process".to_owned(),
        n => format!("{n} other processes"),
    };
    match is_json {
        true => say(
            json!({ "place": shown, "in_use": true, "is_sound": damaged == 0, "items_read": read, "damaged_places": damaged }),
        ),
        false => tell(format_args!(
            "{shown}: in use by {processes}; superblock and layout are sound, {} could be read",
            counted(read, "item")
        )),
    }?;
    match damaged {
        0 => Err(Failure::new(
            exit::IN_USE,
            format_args!(
                "{shown} is in use: the rest can be verified when its users have stopped, or on a copy (`keyway copy {shown} COPY`)"
            ),
        )),
        n => Err(Failure::new(
            exit::NO,
            format_args!(
                "{shown} is in use, and {} found while its items were read: stop its users and check it again",
                counted(n, "damaged place")
            ),
        )),
    }
}
