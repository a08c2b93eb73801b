//! Leaves out each write-back and each barrier of the sources, one at a time: each must be missed by some scenario.
//!
//! What is left out changes what is on the medium, and nothing that a thread does. So every scenario is recorded once, and a
//! site is tried on the recordings that pass it, the cheapest first, until an image is rejected.

use crate::explore::{Effort, Outcome, Recording};
use crate::record::Site;
use harness::Random;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Calls that nothing would miss, with the proof: source file, function, what the line contains, proof.
const REDUNDANT: &[(&str, &str, &str, &str)] = &[];

/// Calls that no scenario comes to, with the reason: source file, function, what the line contains, reason.
const UNREACHED: &[(&str, &str, &str, &str)] = &[
    (
        "index/change.rs",
        "put_absent",
        "self.publisher().index.slots.abort(place, word);",
        "the word is not dirty, so nothing is written back: the scan that found it has made every dirty one with its tag persistent",
    ),
    (
        "index/insert.rs",
        "rescan",
        "self.index.slots.abort(place, word);",
        "the word is not dirty, so nothing is written back: a dirty one with its tag has ended the rescan before",
    ),
];

/// A call, in the sources, of what writes back or waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    /// file of the region's sources
    pub file: String,
    /// line in it
    pub line: u32,
    /// function in which it is
    pub function: String,
    /// the line
    pub text: String,
}

/// What came of leaving a call out.
#[derive(Clone, Debug)]
pub enum Verdict {
    /// an image was rejected: by which scenario, and why
    Caught(String),
    /// nothing missed it, and the proof says why
    Redundant(&'static str),
    /// no scenario comes to it, for this reason
    Unreached(&'static str),
    /// nothing missed it, or it was said to be redundant and is not, or nothing comes to it
    Failed(String),
}

/// Tries every call in turn, and tells of each: what it is, what came of it, images looked at. How many were as they must be, and how many not.
pub fn each_left_out(
    runs: &[Recording],
    efforts: &[Effort],
    random: &mut Random,
    mut tell: impl FnMut(&Call, &str, &Verdict, usize),
) -> (usize, usize) {
    let mut passed: BTreeMap<Site, Vec<&Recording>> = BTreeMap::new();
    for run in runs {
        for site in run.sites().keys() {
            passed.entry(*site).or_default().push(run);
        }
    }
    let calls = calls();
    let (mut good, mut bad) = (0, 0);
    let mut count = |verdict: &Verdict| match verdict {
        Verdict::Failed(_) => bad += 1,
        _ => good += 1,
    };
    for call in &calls {
        let sites = passed.iter_mut().filter(|(site, _)| call.is(site));
        let mut reached = false;
        for (site, runs) in sites {
            reached = true;
            runs.sort_by_key(|run| run.cost());
            let (verdict, images) = left_out(call, *site, runs, efforts, random);
            count(&verdict);
            tell(call, if site.barrier { "barrier" } else { "write-back" }, &verdict, images);
        }
        if !reached {
            let verdict =
                listed(UNREACHED, call).map_or_else(|| Verdict::Failed("no scenario comes to it".into()), Verdict::Unreached);
            count(&verdict);
            tell(call, "call", &verdict, 0);
        }
    }
    for site in passed.keys().filter(|site| !calls.iter().any(|call| call.is(site))) {
        let call = Call {
            file: file_of(site).into(),
            line: site.line,
            function: String::new(),
            text: String::new(),
        };
        let verdict = Verdict::Failed("a call that was not found in the sources".into());
        count(&verdict);
        tell(&call, "call", &verdict, 0);
    }
    (good, bad)
}

/// One call, with more and more effort.
fn left_out(call: &Call, site: Site, runs: &[&Recording], efforts: &[Effort], random: &mut Random) -> (Verdict, usize) {
    let mut images = 0;
    let wrong = efforts
        .iter()
        .flat_map(|effort| runs.iter().map(move |run| (effort, run)))
        .find_map(|(effort, run)| {
            let Outcome { images: seen, wrong, .. } = run.examine(effort, Some(site), random);
            images += seen;
            wrong
        });
    let verdict = match (wrong, listed(REDUNDANT, call)) {
        (Some(wrong), None) => Verdict::Caught(wrong),
        (None, Some(proof)) => Verdict::Redundant(proof),
        (Some(wrong), Some(_)) => Verdict::Failed(format!("said to be redundant, but: {wrong}")),
        (None, None) => Verdict::Failed(format!("nothing missed it ({} runs): {}", runs.len(), call.text)),
    };
    (verdict, images)
}

fn listed(list: &[(&str, &str, &str, &'static str)], call: &Call) -> Option<&'static str> {
    list.iter()
        .find(|(file, function, text, _)| call.file == *file && call.function == *function && call.text.contains(text))
        .map(|(.., why)| *why)
}

fn file_of(site: &Site) -> &str {
    site.file.rsplit("/src/").next().unwrap_or(site.file)
}

impl Call {
    fn is(&self, site: &Site) -> bool {
        file_of(site) == self.file && site.line == self.line
    }
}

fn region_sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../crates/keyway-region/src")
}

/// Every call in the sources. What a function does that is known by its callers (`track_caller`) is theirs.
fn calls() -> Vec<Call> {
    let root = region_sources();
    let mut found = Vec::new();
    let mut folders = vec![root.clone()];
    while let Some(folder) = folders.pop() {
        let entries = std::fs::read_dir(&folder).expect("the region's sources are there");
        for path in entries.flatten().map(|entry| entry.path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let file = path.strip_prefix(&root).unwrap_or(&path).to_string_lossy().into_owned();
                let text = std::fs::read_to_string(&path).expect("a source can be read");
                found.extend(calls_in(&file, &text));
            }
        }
    }
    found.sort();
    found
}

fn calls_in(file: &str, text: &str) -> Vec<Call> {
    const CALLS: [&str; 8] = [
        ".write_back(",
        ".write_back_header(",
        ".write_back_words(",
        ".write_back_buckets(",
        ".barrier()",
        ".persist_word(",
        ".vacate(",
        ".abort(",
    ];
    let mut found = Vec::new();
    let mut function = String::new();
    let (mut tracked, mut attribute) = (false, false);
    for (line, number) in text.lines().zip(1..) {
        let line = line.trim();
        if line.starts_with("//") {
            continue;
        }
        attribute |= line.contains("track_caller");
        if let Some(name) = line.split("fn ").nth(1).and_then(|rest| rest.split(['(', '<']).next()) {
            function = name.to_string();
            tracked = std::mem::take(&mut attribute);
        }
        if !tracked && CALLS.iter().any(|call| line.contains(call)) {
            found.push(Call {
                file: file.into(),
                line: number,
                function: function.clone(),
                text: line.into(),
            });
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_found_with_their_functions() {
        let text = "\
            fn a() {\n// x.barrier()\nx.barrier();\n}\n\
            #[cfg_attr(feature = \"observe\", track_caller)]\nfn b<T>() {\nx.write_back(1, 2);\n}\n\
            fn c(at: usize) {\nx.write_back(at, 2);\n}\n";
        let found: Vec<(u32, String)> = calls_in("f.rs", text).into_iter().map(|c| (c.line, c.function)).collect();
        assert_eq!(found, [(3, "a".to_string()), (10, "c".to_string())]);
    }
}
