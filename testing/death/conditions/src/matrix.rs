//! Many cells, some at once, and the table of what came of them.

use crate::cell::{self, Action, Spec, Verdict};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Cells at once: each has two processes that mostly wait for a processor.
const AT_ONCE: usize = 3;

/// A row's name and its cells.
pub type Row = (String, Vec<Spec>);

/// Runs all cells; verdicts by row and action.
pub fn run(rows: &[Row]) -> BTreeMap<(usize, usize), Verdict> {
    let cells: Vec<(usize, &Spec)> = rows
        .iter()
        .enumerate()
        .flat_map(|(row, (_, specs))| specs.iter().map(move |spec| (row, spec)))
        .collect();
    let (next, verdicts) = (AtomicUsize::new(0), Mutex::new(BTreeMap::new()));
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                // PAIRS: itself; every cell is taken once.
                while let Some((row, spec)) = cells.get(next.fetch_add(1, Relaxed)) {
                    let verdict = cell::run(spec);
                    let column = Action::ALL.iter().position(|(a, _)| *a == spec.action).unwrap_or(0);
                    if let Ok(mut verdicts) = verdicts.lock() {
                        verdicts.insert((*row, column), verdict);
                    }
                }
            });
        }
    });
    verdicts.into_inner().unwrap_or_default()
}

/// The verdicts as a table, and below it what was noted where something was wrong.
pub fn table(rows: &[Row], verdicts: &BTreeMap<(usize, usize), Verdict>) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let mut text = String::new();
    let header: Vec<_> = Action::ALL.iter().map(|(_, name)| *name).collect();
    let _ = writeln!(text, "{:width$} | {}", "", header.join(" | "));
    let mut notes = String::new();
    for (number, (name, _)) in rows.iter().enumerate() {
        let mut cells = Vec::new();
        for (column, (_, action)) in Action::ALL.iter().enumerate() {
            let verdict = verdicts.get(&(number, column));
            cells.push(verdict.map_or_else(|| "-".to_owned(), Verdict::short));
            if let Some(Verdict::Violated(_, note)) = verdict {
                let _ = writeln!(notes, "  {name} × {action}: {note}");
            }
        }
        let _ = writeln!(text, "{name:width$} | {}", cells.join(" | "));
    }
    text + &notes
}
