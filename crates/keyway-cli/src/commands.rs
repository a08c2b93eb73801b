//! `get`, `set`, `delete`, `keys`, `dump`, `check`, `copy`: commands on a region, through the library door. They need no server.

use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use keyway_cache::{Cache, CopyError, Delete, Deleted, Get, Options, Owners, Place, Session, Store, Stored, WriteError};
use keyway_proto::is_plain;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::exit::{self, Failure};
use crate::place;

/// Items visited between two writes to the output.
const ITEMS_PER_STEP: usize = 1024;

/// Largest item of any region, bytes.
const ITEM_SIZE_MAX: usize = 1 << 30;

/// How all items are read: to look at each of them once makes none worth keeping.
const READ_ONLY: Get = Get {
    no_bump: true,
    ..*Get::VALUE
};

/// The region that a command works on.
#[derive(Clone)]
pub(crate) struct Which {
    /// `None`: at the default place
    pub(crate) path: Option<PathBuf>,
    pub(crate) owners: Owners,
}

/// Opens the region, but never creates one: a user who wants to look into a region does not
/// want a new one.
pub(crate) fn open(which: Which) -> Result<Cache, Failure> {
    let path = which.path.unwrap_or_else(|| place::default_path(place::DEFAULT_PORT));
    let options = Options::new().existing_only(true).owners(which.owners);
    place::open(&Place::at(path), &options, 0)
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

/// The failure of an operation on `key`: a key that no item can have is a wrong command line.
pub(crate) fn failed(key: &str, code: u8, error: impl Into<WriteError>) -> Failure {
    let error = error.into();
    let code = match error {
        WriteError::KeyLength { .. } => exit::USAGE,
        _ => code,
    };
    Failure::new(code, format_args!("{key}: {error}"))
}

/// Prints `text`, and a line end. `println!` would panic where standard output is closed or full.
pub(crate) fn say(text: impl std::fmt::Display) -> Result<(), Failure> {
    written(std::io::stdout().write_all(format!("{text}\n").as_bytes()))
}

/// Writes `text` to standard error as it is. A closed one is no failure of the command, and makes `eprint!` panic.
pub(crate) fn remark(text: impl std::fmt::Display) {
    let _ = std::io::stderr().write_all(text.to_string().as_bytes());
}

/// Prints the value of `key` and nothing else; on a terminal, followed by a line end.
pub(crate) fn get(region: Which, key: &str) -> Result<(), Failure> {
    let cache = open(region)?;
    let found = session(&cache)?
        .get(key.as_bytes())
        .map_err(|error| failed(key, exit::SYSTEM, error))?;
    let Some(mut value) = found else {
        return Err(Failure::new(exit::NO, format_args!("{key}: not found")));
    };
    let mut out = std::io::stdout();
    if out.is_terminal() {
        value.push(b'\n');
    }
    written(out.write_all(&value).and_then(|()| out.flush()))
}

/// Stores `value`, or standard input if it is `None`.
pub(crate) fn set(region: Which, key: &str, value: Option<String>, ttl_s: i64, flags: u32) -> Result<(), Failure> {
    let cache = open(region)?;
    let mut bytes = Vec::new();
    match value {
        Some(value) => bytes = value.into_bytes(),
        None => {
            // One byte more than any item has: what does not end is refused as too large.
            let read = std::io::stdin().take(ITEM_SIZE_MAX as u64 + 1).read_to_end(&mut bytes);
            read.map_err(|error| Failure::new(exit::SYSTEM, format_args!("cannot read standard input: {error}")))?;
        }
    }
    let how = Store {
        flags,
        exptime: ttl_s,
        ..Store::default()
    };
    match session(&cache)?.store(key.as_bytes(), &bytes, &how) {
        Ok(Stored::Stored { .. }) => Ok(()),
        Ok(other) => Err(Failure::new(exit::NO, format_args!("{key}: {other:?}"))),
        Err(error) => Err(failed(key, exit::NO, error)),
    }
}

/// Deletes `key`.
pub(crate) fn delete(region: Which, key: &str) -> Result<(), Failure> {
    let cache = open(region)?;
    match session(&cache)?.delete(key.as_bytes(), &Delete::default()) {
        Ok(Deleted::Deleted) => Ok(()),
        Ok(_) => Err(Failure::new(exit::NO, format_args!("{key}: not found"))),
        Err(error) => Err(failed(key, exit::NO, error)),
    }
}

/// Prints every key, one per line; bytes other than printable ASCII as `\xNN`.
pub(crate) fn keys(region: Which) -> Result<(), Failure> {
    let cache = open(region)?;
    let mut session = session(&cache)?;
    let mut out = std::io::stdout().lock();
    let mut cursor = Some(0);
    while let Some(from) = cursor {
        let mut lines = Vec::new();
        cursor = session.walk(from, ITEMS_PER_STEP, |key, _| {
            let _ = writeln!(lines, "{}", key.escape_ascii());
        });
        if let Err(error) = out.write_all(&lines) {
            return written(Err(error));
        }
    }
    Ok(())
}

/// Prints every item as the `set` command that would store it, so that a dump can be sent to a server.
pub(crate) fn dump(region: Which) -> Result<(), Failure> {
    let cache = open(region)?;
    let mut session = session(&cache)?;
    let mut out = std::io::stdout().lock();
    let mut cursor = Some(0);
    while let Some(from) = cursor {
        let mut found: Vec<(Vec<u8>, bool)> = Vec::new();
        cursor = session.walk(from, ITEMS_PER_STEP, |key, item| found.push((key.to_vec(), item.opaque_key)));
        for (key, is_binary) in found {
            if is_binary || !is_plain(&key) {
                log::warn!("{}: left out, because the text protocol cannot name it", key.escape_ascii());
                continue;
            }
            let mut value = Vec::new();
            let found = session.get_with(&key, &READ_ONLY, &mut value, |_, _| {});
            let found = found.map_err(|error| failed(&key.escape_ascii().to_string(), exit::SYSTEM, error))?;
            // Deleted since the walk found it, or marked as stale, for which `set` has no word: it would come back as a good one.
            let Some(item) = found.filter(|item| !item.stale) else {
                continue;
            };
            // A Unix time and not the time left: it stays right whenever the dump is loaded, and however far away it is.
            let exptime = item.ttl_s.map_or(0, |ttl_s| session.now_unix_s() + i64::from(ttl_s));
            let arguments = format!(" {} {exptime} {} noreply\r\n", item.flags, value.len());
            let command = [b"set ", &key[..], arguments.as_bytes(), &value, b"\r\n"].concat();
            if let Err(error) = out.write_all(&command) {
                return written(Err(error));
            }
        }
    }
    Ok(())
}

/// Copies a region, which may be in use.
pub(crate) fn copy(from: Which, to: &Path, force: bool) -> Result<(), Failure> {
    let cache = open(from)?;
    let progress = std::io::stderr().is_terminal();
    let asked_to_end =
        asked_to_end().map_err(|error| Failure::new(exit::SYSTEM, format_args!("cannot catch signals: {error}")))?;
    let copied = cache.copy_to_while(to, force, |percent| {
        if progress {
            remark(format_args!("\r{percent} %\r"));
        }
        asked_to_end.load(Relaxed) == 0
    });
    let copied = match copied {
        Ok(copied) => copied,
        Err(error) => {
            cache.close();
            if matches!(error, CopyError::Interrupted { .. }) {
                // The signal's default action, so that the parent process sees which signal ended this program.
                let signal = i32::try_from(asked_to_end.load(Relaxed)).unwrap_or(SIGTERM);
                let _ = signal_hook::low_level::emulate_default_handler(signal);
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
    let line = format!("{}: {} items{left_out}\n", to.display(), copied.items);
    cache.close();
    written(std::io::stdout().write_all(line.as_bytes()))
}

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
pub(crate) fn check(which: Which) -> Result<(), Failure> {
    let shown = which.path.as_deref().unwrap_or(Path::new("")).display().to_string();
    let cache = open(which)?;
    if others(&cache) > 0 {
        return check_in_use(&cache, &shown);
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
        return check_in_use(&cache, &shown);
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
        _ => format!("{shown}: {count} problems, {} of them listed\n", report.problems.len()),
    });
    written(std::io::stdout().write_all(text.as_bytes()))?;
    cache.close();
    match count {
        0 => Ok(()),
        _ => Err(Failure::new(
            exit::NO,
            format_args!("{shown} is damaged ({count} problems): remove it and make a new one"),
        )),
    }
}

/// Other processes that have the region attached for writing.
fn others(cache: &Cache) -> usize {
    cache.processes().saturating_sub(usize::from(!cache.is_reader()))
}

/// Reads every item as a client does. The region's superblock and layout were verified when it was opened.
fn check_in_use(cache: &Cache, shown: &str) -> Result<(), Failure> {
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
    let line = format!("{shown}: in use by {processes}; superblock and layout are sound, {read} items could be read\n");
    written(std::io::stdout().write_all(line.as_bytes()))?;
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
                "{shown} is in use, and {n} damaged places were found while its items were read: stop its users and check it again"
            ),
        )),
    }
}
