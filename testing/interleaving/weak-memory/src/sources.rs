//! The `PAIRS:` comments of the region's sources, held against the table of the pairings.
//!
//! A comment says `PAIRS: NAME: …`, or `PAIRS: NAME, NAME: …`, once or more often, and stands above the operation that it is for, or on
//! its line. `PAIRS: nothing` is for a word that orders nothing.

use crate::pairings::{Pairing, Shape};
use loom::sync::atomic::Ordering;
use std::path::Path;

/// How far above its operation a comment may stand, lines.
const NEAR: usize = 8;

/// An ordered operation of the sources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ordered {
    /// file and line
    pub at: String,
    /// the pairings that its comment names
    pub pairings: Vec<String>,
    /// what it is
    pub shape: Shape,
}

/// What only hands orderings on: the atomic types, and what watches them.
const NO_PAIRINGS: [&str; 2] = ["atomics.rs", "observe.rs"];

/// The ordered operations of every Rust file below a folder.
pub fn read(root: &Path) -> std::io::Result<Vec<Ordered>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_path_buf()];
    while let Some(folder) = folders.pop() {
        let mut entries = std::fs::read_dir(&folder)?.collect::<Result<Vec<_>, _>>()?;
        entries.sort_by_key(std::fs::DirEntry::path);
        for path in entries.iter().map(std::fs::DirEntry::path) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root).unwrap_or(&path).to_string_lossy().into_owned();
                if !NO_PAIRINGS.contains(&name.as_str()) {
                    found.extend(ordered(&name, &std::fs::read_to_string(&path)?));
                }
            }
        }
    }
    Ok(found)
}

/// The ordered operations of a file, up to its tests; and as [`Shape::None`] the comments that no such operation follows.
pub fn ordered(name: &str, text: &str) -> Vec<Ordered> {
    let lines: Vec<&str> = text.lines().take_while(|line| *line != "#[cfg(test)]").collect();
    let mut found = Vec::new();
    let mut used = vec![false; lines.len()];
    for (number, line) in lines.iter().enumerate() {
        let Some(shape) = shape(line) else { continue };
        let from = number.saturating_sub(NEAR);
        let near = lines.get(from..=number).unwrap_or_default();
        let last = near.iter().rposition(|line| line.contains("PAIRS:")).unwrap_or(0);
        // A comment of several lines, and the operation's own line.
        let first = (0..last).rev().take_while(|at| is_comment(near[*at])).last().unwrap_or(last);
        used[from + first..=from + last].fill(true);
        found.push(Ordered {
            at: format!("{name}:{}", number + 1),
            pairings: near[first..].iter().flat_map(|line| names(line)).collect(),
            shape,
        });
    }
    let left = lines.iter().zip(used).enumerate().filter(|(_, (_, used))| !used);
    found.extend(left.filter_map(|(number, (line, _))| {
        let (at, pairings) = (format!("{name}:{}", number + 1), names(line));
        let shape = Shape::None;
        (!pairings.is_empty()).then_some(Ordered { at, pairings, shape })
    }));
    found
}

/// Where code and table differ; one line for each difference.
pub fn differences(found: &[Ordered], table: &[Pairing]) -> Vec<String> {
    let mut problems = Vec::new();
    for Ordered { at, pairings, shape } in found {
        if *shape == Shape::None {
            problems.push(format!(
                "{at}: names the pairing {}, and no ordered operation follows",
                pairings.join(", ")
            ));
            continue;
        }
        if pairings.is_empty() {
            problems.push(format!("{at}: {shape:?} names no pairing: say `PAIRS: NAME: …`"));
        }
        for name in pairings {
            match table.iter().find(|pairing| pairing.name == name) {
                None => problems.push(format!("{at}: there is no pairing {name}: add its skeleton to pairings.rs")),
                Some(_) if has(table, name, *shape) => {}
                Some(_) if pairings.iter().any(|other| has(table, other, *shape)) => {}
                Some(_) => problems.push(format!(
                    "{at}: the pairing {name} has no {shape:?}: change the code, or its skeleton"
                )),
            }
        }
    }
    for pairing in table {
        for operation in pairing.operations.iter().filter(|operation| !operation.elsewhere) {
            let is_there = |one: &&Ordered| one.shape == operation.shape && one.pairings.iter().any(|name| name == pairing.name);
            if !found.iter().any(|one| is_there(&one)) {
                problems.push(format!(
                    "the pairing {}: the code has no {:?} for its \"{}\"",
                    pairing.name, operation.shape, operation.name
                ));
            }
        }
    }
    problems
}

fn has(table: &[Pairing], name: &str, shape: Shape) -> bool {
    let of_name = table.iter().filter(|pairing| pairing.name == name);
    of_name
        .flat_map(|pairing| pairing.operations)
        .any(|operation| operation.shape == shape)
}

fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//")
}

/// The pairings that a line names.
fn names(line: &str) -> Vec<String> {
    let named = line.split("PAIRS: ").skip(1);
    let lists = named.filter_map(|rest| rest.split_once(':').map(|(names, _)| names));
    let is_name = |name: &&str| !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
    lists
        .flat_map(|names| names.split(", ").filter(is_name).map(str::to_owned))
        .collect()
}

/// What a line's ordered operation is. `None`: it has none.
fn shape(line: &str) -> Option<Shape> {
    let code = line.trim_start();
    if is_comment(line) || code.starts_with("use ") || code.starts_with("pub use ") || code.contains("fn ") {
        return None;
    }
    if ["store_then_fence(", "light_fence(", "mapped.host().fence_everywhere("]
        .iter()
        .any(|call| code.contains(call))
    {
        return Some(Shape::Fence(Ordering::SeqCst));
    }
    let order = code
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .find_map(|word| match word {
            "Acquire" => Some(Ordering::Acquire),
            "Release" => Some(Ordering::Release),
            "AcqRel" => Some(Ordering::AcqRel),
            "SeqCst" => Some(Ordering::SeqCst),
            _ => None,
        })?;
    let shape = if code.contains("fence(") {
        Shape::Fence
    } else if code.contains("compare_exchange(") {
        Shape::Exchange
    } else if code.contains(".store(") {
        Shape::Store
    } else if code.contains(".load(") {
        Shape::Load
    } else {
        Shape::Exchange
    };
    Some(shape(order))
}
