//! One trial: the program `gate` under `keyway exec`, and what came of each way beside the table in `docs/security.md`.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// The page with the table.
const PAGE: &str = include_str!("../../../../docs/security.md");
/// What the program needs the gate for, to be stopped.
const BY_GATE: [&str; 5] = ["stray-read", "stray-write", "other-thread", "pointers", "signal-handler"];
/// What is tried only where there are protection keys.
const ONLY_WITH_KEYS: [&str; 4] = ["own-wrpkru", "forged-sigreturn", "gate-jump", "signal-stack"];
/// What kernels before Linux 6.12 stop: they write a signal's frame with the rights of the program.
const BY_OLD_KERNEL: &str = "signal-stack";
/// What a kernel without PR_SET_MDWE does not stop.
const BY_MDWE: &str = "writable-code";

/// The table: ways, and whether they are stopped.
pub type Table = BTreeMap<String, String>;

/// What was tried.
pub struct Trial {
    /// each way, and whether it was stopped
    pub outcomes: BTreeMap<String, bool>,
    /// what `keyway exec` said
    pub said: String,
}

/// Starts the program under `keyway exec`, with a region by its file or by a server's region socket (and its file's path then), and hears its answers. None of them: it was not started.
///
/// # Errors
///
/// `keyway` could not be started, or the program ended before its time.
pub fn run(
    keyway: &Path,
    library: &Path,
    program: &Path,
    (place, file): (&Path, &Path),
    options: &[&str],
) -> Result<Trial, String> {
    let is_socket = place.metadata().is_ok_and(|meta| meta.file_type().is_socket());
    let mut child = Command::new(keyway)
        .args(["exec", "-v", "--library"])
        .arg(library)
        .arg(if is_socket { "--region-socket" } else { "--region" })
        .arg(place)
        .args(options)
        .arg("--")
        .arg(program)
        .arg(place)
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("{}: {e}", keyway.display()))?;
    let piped = "a stream that was to be piped is not";
    let mut input = child.stdin.take().ok_or(piped)?;
    let errors = BufReader::new(child.stderr.take().ok_or(piped)?);
    let output = BufReader::new(child.stdout.take().ok_or(piped)?);
    let teller = std::thread::spawn(move || {
        let mut said = String::new();
        for line in errors.lines().map_while(Result::ok) {
            if let Some((_, at)) = line.split_once("mapped at ") {
                let _ = writeln!(input, "{at}");
            }
            said.push_str(&line);
            said.push('\n');
        }
        said
    });
    let mut outcomes = BTreeMap::new();
    let mut is_whole = false;
    for line in output.lines().map_while(Result::ok) {
        is_whole |= line == "end";
        if let Some((way, outcome)) = line.split_once(' ') {
            outcomes.insert(way.to_owned(), outcome == "stopped");
        }
    }
    let said = teller.join().map_err(|_| "the reader panicked")?;
    let status = child.wait().map_err(|e| e.to_string())?;
    if (status.success() && is_whole) || (!status.success() && outcomes.is_empty()) {
        Ok(Trial { outcomes, said })
    } else {
        Err(format!("{status}: {outcomes:?}\n{said}"))
    }
}

impl Trial {
    /// Whether there was a gate.
    pub fn has_gate(&self) -> bool {
        !self.said.contains("there is no gate")
    }

    /// Where a row of the table and what was tried differ. Rows that need what this machine does not have do not apply.
    pub fn differences(&self, table: &Table) -> Vec<String> {
        let lacks_gate = !self.has_gate();
        let lacks_mdwe = self.said.contains("PR_SET_MDWE");
        let needs_gate = |way: &str| BY_GATE.contains(&way) || ONLY_WITH_KEYS.contains(&way);
        let lacks = |way: &str| (lacks_gate && needs_gate(way)) || (lacks_mdwe && way == BY_MDWE);
        let mut differences = Vec::new();
        for (way, claim) in table.iter().filter(|(way, _)| !lacks(way)) {
            let stopped = self.outcomes.get(way);
            let is_by_kernel = way == BY_OLD_KERNEL && has_old_signals();
            if stopped != Some(&(claim.starts_with("stopped") || is_by_kernel)) {
                differences.push(format!("{way}: the table says {claim:?}, stopped: {stopped:?}"));
            }
        }
        let unlisted = self.outcomes.keys().filter(|way| !table.contains_key(*way));
        differences.extend(unlisted.map(|way| format!("{way}: not in the table")));
        differences
    }
}

/// Whether this kernel is older than 6.12.
fn has_old_signals() -> bool {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split('.').map(|number| number.parse::<u32>().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < (6, 12)
}

/// The table of `docs/security.md`.
pub fn table() -> Table {
    let (_, table) = PAGE.split_once("| way | test | ").unwrap_or_default();
    let mut rows = Table::new();
    for row in table.lines().skip(2).take_while(|row| row.starts_with('|')) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, _, ways, claim, ..] = cells.as_slice() else { continue };
        for way in ways.split(", ").filter_map(|way| way.strip_prefix('`')?.strip_suffix('`')) {
            rows.insert(way.to_owned(), (*claim).to_owned());
        }
    }
    rows
}
