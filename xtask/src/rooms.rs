//! The rooms of `keyway-region`: which of them may use which.
//!
//! A room is a folder of the crate's sources. It may use what its own files and the rooms before it in [`ROOMS`] define, and nothing of
//! later rooms: neither a name that it imports, nor a method of `Region` or `Session`, which every room extends. The two types
//! themselves are above the rooms, because each is composed of the state of several rooms.

use std::collections::{BTreeMap, BTreeSet};

/// The crate's sources.
const SOURCES: &str = "crates/keyway-region/src/";

/// The rooms, each after those that it may use. All may use `layout` and the files beside the rooms, which use no room.
const ROOMS: [&str; 17] = [
    "durable",
    "mapped",
    "clock",
    "flushes",
    "limits",
    "directory",
    "threads",
    "latencies",
    "changes",
    "trail",
    "hot",
    "watch",
    "log",
    "index",
    "recover",
    "reclaim",
    "operations",
];

/// Files that may use every room: the crate's root, the types that all rooms extend, the check of all rooms, what is left of a key, and tests.
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

/// What any room may import from a later one: types that are composed of the state of several rooms.
const TYPES: [&str; 3] = ["region::Region", "session::Session", "changes::Offered"];

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
    let mut homes: BTreeMap<&str, usize> = BTreeMap::new();
    for (name, text) in &files {
        for method in methods(text) {
            let home = homes.entry(method).or_insert(usize::MAX);
            *home = (*home).min(place(name));
        }
    }
    for (name, text) in &files {
        let room = place(name);
        let mut later = |what: &str, home: usize| {
            let which = ROOMS.get(home.wrapping_sub(1)).unwrap_or(&"no room");
            problems.push(format!(
                "{SOURCES}{name}: {what} is of the room `{which}`, which it may not know"
            ));
        };
        for (at, _) in text.match_indices("crate::") {
            let path: String = text[at + "crate::".len()..]
                .chars()
                .take_while(|c| c.is_alphanumeric() || "_:".contains(*c))
                .collect();
            let first = path.split("::").next().unwrap_or_default();
            let home = ROOMS.iter().position(|room| *room == first).map_or(0, |home| home + 1);
            let only_types = names(text, at, &path).all(|name| TYPES.contains(&name.as_str()));
            if home > room && !only_types {
                later(&format!("`crate::{path}`"), home);
            }
        }
        for method in calls(text) {
            if let Some(home) = homes.get(method.as_str()).filter(|home| **home > room) {
                later(&format!("`{method}`"), *home);
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

/// The text inside the blocks `impl Region` and `impl Session` of a file.
fn inside(text: &str) -> impl Iterator<Item = &str> {
    let mut is_inside = false;
    text.lines().filter(move |line| {
        if line.starts_with("impl") {
            is_inside = line.starts_with("impl Region {") || line.starts_with("impl Session {");
        }
        is_inside &= !line.starts_with('}');
        is_inside
    })
}

/// The methods of `Region` and `Session` that a file defines.
fn methods(text: &str) -> impl Iterator<Item = &str> {
    inside(text).filter_map(|line| {
        let (before, rest) = line.split_once("fn ")?;
        let is_method = before.starts_with("    ") && !before.starts_with("     ");
        rest.split(['(', '<']).next().filter(|_| is_method)
    })
}

/// The methods that a file calls on a region or a session, recognised by the usual names of these variables.
fn calls(text: &str) -> BTreeSet<String> {
    let own: String = inside(text).map(str::trim).collect();
    let all: String = text.lines().map(str::trim).collect();
    let found = |text: &str, receiver: &str| -> Vec<String> {
        let after = text.match_indices(receiver).map(|(at, _)| &text[at + receiver.len()..]);
        let name = |after: &str| after.split_once(['(', ':']).map(|(name, _)| name.to_owned());
        after.filter_map(name).collect()
    };
    let on_self = ["self.", "Self::"].iter().flat_map(|receiver| found(&own, receiver));
    let on_others = ["region.", "session.", "Region::", "Session::"]
        .iter()
        .flat_map(|receiver| found(&all, receiver));
    on_self.chain(on_others).collect()
}

/// The names that the path at this place of the text imports, if it is an import: the path itself, or each name in its braces.
fn names(text: &str, at: usize, path: &str) -> impl Iterator<Item = String> {
    let after = text[at + "crate::".len() + path.len()..].strip_prefix('{');
    let inside = after.and_then(|after| after.split('}').next());
    let names: Vec<String> = match inside {
        Some(inside) => inside.split(',').map(|name| format!("{path}{}", name.trim())).collect(),
        None => vec![path.to_owned()],
    };
    names.into_iter()
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
        assert_eq!(problems(&[("layout/a.rs", "use crate::region::Region;\n")]), 0);
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

    #[test]
    fn a_call_of_a_later_rooms_method_is_caught() {
        let defined = ("reclaim/b.rs", "impl Session {\n    pub(crate) fn evict_all(&self) {}\n}\n");
        assert_eq!(
            problems(&[defined, ("log/a.rs", "fn a(session: &Session) { session.evict_all(); }\n")]),
            1
        );
        assert_eq!(problems(&[defined, ("log/a.rs", "// session.evict_all();\n")]), 0);
        assert_eq!(
            problems(&[
                defined,
                ("operations/a.rs", "fn a(session: &Session) { session.evict_all(); }\n")
            ]),
            0
        );
        let in_chain = "impl Region {\n    fn a(&self) {\n        self\n            .evict_all();\n    }\n}\n";
        assert_eq!(problems(&[defined, ("log/a.rs", in_chain)]), 1);
        // A method with the same name in the room itself is another method.
        let nearer = ("log/c.rs", "impl Region {\n    fn evict_all(&self) {}\n}\n");
        assert_eq!(problems(&[defined, nearer, ("log/a.rs", in_chain)]), 0);
    }
}
