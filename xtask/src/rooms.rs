//! The rooms of `keyway-region`: which of them may use which.
//!
//! A room is a folder of the crate's sources, with owners whose fields are private: what a room may do with another one, the compiler
//! says. This says only which rooms a room may import from: those before it in [`ROOMS`].

/// The crate's sources.
const SOURCES: &str = "crates/keyway-region/src/";

/// The rooms, each after those that it may use. All may use `layout` and the files beside the rooms, which use no room.
const ROOMS: [&str; 18] = [
    "durable",
    "mapped",
    "clock",
    "flushes",
    "limits",
    "directory",
    "threads",
    "latencies",
    "changes",
    "flights",
    "trail",
    "hot",
    "watch",
    "log",
    "index",
    "recover",
    "reclaim",
    "operations",
];

/// Files that may use every room: the crate's root, where the owners meet, the check of all rooms, what is left of a key, and tests.
const ABOVE: [&str; 9] = [
    "lib.rs",
    "region/mod.rs",
    "region/create.rs",
    "region/overview.rs",
    "session.rs",
    "check.rs",
    "trace.rs",
    "layout/fingerprint.rs",
    "late.rs",
];

/// Returns one line for each use of a later room, and for each crate that reads the superblock without the region's own functions. `files`:
/// name in the repository, and text.
pub fn check<'f>(files: impl Iterator<Item = (&'f str, &'f str)> + Clone) -> Vec<String> {
    let mut problems: Vec<String> = files
        .clone()
        .filter(|(name, _)| name.starts_with("crates/") && !name.starts_with("crates/keyway-region/"))
        .filter(|(_, text)| code(text).contains(".superblock()"))
        .map(|(name, _)| format!("{name}: `superblock()` is the region's own: it has a function for what others may know"))
        .collect();
    let files: Vec<(&str, String)> = files
        .filter_map(|(name, text)| Some((name.strip_prefix(SOURCES)?, code(text))))
        .filter(|(name, _)| !ABOVE.contains(name) && !name.ends_with("/late.rs"))
        .collect();
    for (name, text) in &files {
        let room = place(name);
        for (at, _) in text.match_indices("crate::") {
            let path: String = text[at + "crate::".len()..]
                .chars()
                .take_while(|c| c.is_alphanumeric() || "_:".contains(*c))
                .collect();
            let first = path.split("::").next().unwrap_or_default();
            let is_above = ["region", "session"].contains(&first);
            let home = ROOMS.iter().position(|room| *room == first).map_or(0, |home| home + 1);
            if is_above && room != 0 && room != ROOMS.len() || home > room {
                problems.push(format!(
                    "{SOURCES}{name}: `crate::{path}` is of a later room, which it may not know"
                ));
            }
        }
    }
    problems
}

/// The number of a file's room, from 1; 0 for files outside the rooms, which all rooms may use.
fn place(name: &str) -> usize {
    let folder = name.split('/').next().map(|first| first.trim_end_matches(".rs"));
    ROOMS
        .iter()
        .position(|room| Some(*room) == folder)
        .map_or(0, |place| place + 1)
}

/// A file without its comments and its tests.
fn code(text: &str) -> String {
    let lines = text.lines().take_while(|line| *line != "#[cfg(test)]");
    let code: Vec<&str> = lines.map(|line| line.split("//").next().unwrap_or_default()).collect();
    code.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(of: &[(&str, &str)]) -> usize {
        let files: Vec<(String, &str)> = of.iter().map(|(name, text)| (format!("{SOURCES}{name}"), *text)).collect();
        check(files.iter().map(|(name, text)| (name.as_str(), *text))).len()
    }

    #[test]
    fn an_import_of_a_later_room_is_caught() {
        assert_eq!(problems(&[("log/a.rs", "use crate::index::Place;\n")]), 1);
        assert_eq!(problems(&[("log/a.rs", "use crate::mapped::{Mapped, number};\n")]), 0);
        assert_eq!(problems(&[("layout/a.rs", "use crate::mapped::{Mapped, number};\n")]), 1);
        assert_eq!(problems(&[("log/a.rs", "use crate::region::Region;\n")]), 1);
        assert_eq!(problems(&[("operations/a.rs", "use crate::session::Session;\n")]), 0);
        assert_eq!(problems(&[("index/a.rs", "use crate::log::ItemView;\n")]), 0);
        assert_eq!(problems(&[("heap.rs", "use crate::log::ItemView;\n")]), 1);
        assert_eq!(problems(&[("check.rs", "use crate::log::ItemView;\n")]), 0);
    }

    #[test]
    fn a_superblock_word_that_another_crate_reads_is_caught() {
        let found = |name| check([(name, "fn a() { region.superblock().free.load(Relaxed); }")].into_iter()).len();
        assert_eq!(
            (
                found("crates/keyway-cache/src/a.rs"),
                found("crates/keyway-region/tests/a.rs")
            ),
            (1, 0)
        );
    }
}
