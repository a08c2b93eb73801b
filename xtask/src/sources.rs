//! The project's rules that no compiler checks, as checks of the tracked files.
//!
//! 1. Every Rust file opens with `//!`: what it is for and what it never does.
//! 2. No `TODO` or `FIXME`: comments live in the present.
//! 3. Every relative link in a Markdown file leads to a file, and its anchor to a heading there.
//!    Public Markdown (the root's and `docs/`) wraps at [`WIDTH`] columns and avoids the phrases of [`PHRASES`].
//! 4. A crate knows only the crates that `ARCHITECTURE.md`'s arrows allow ([`ARROWS`]).
//! 5. Crates without unsafe code forbid it: `keyway-http`, `keyway-proto` and `keyway-server` allow it nowhere.
//! 6. In `keyway-region` every atomic operation that orders other accesses names its pairing: `// PAIRS: NAME: …` ([`NEAR`] says how near).
//!    `cargo xtask weak-memory` and its tests show whether there is such a pairing, and whether it needs the ordering.
//! 7. In `keyway-region` a room uses only the rooms before it (`rooms.rs`).
//! 8. Every promise of `docs/promises.md` has a test that guards it, and every guard a promise (`guards.rs`).
//! 9. No figure of the house is above its limit (`walls.rs`).
//! 10. No test is in a file whose target has none (`untested.rs`).

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::guards;
use crate::rooms;
use crate::run::Outcome;
use crate::untested;
use crate::walls;

/// The crates of this workspace on which a crate under `crates/` or `bindings/`, or `lab`, may depend, by the names of their folders. None of
/// them may depend on `lab`, which is not installed.
const ARROWS: &[(&str, &[&str])] = &[
    ("keyway-probes", &[]),
    ("keyway-region", &["keyway-probes"]),
    ("keyway-proto", &[]),
    ("keyway-cache", &["keyway-probes", "keyway-region"]),
    ("keyway-harden", &["keyway-cache"]),
    ("keyway-capi", &["keyway-cache", "keyway-harden"]),
    ("keyway-uring", &[]),
    ("keyway-http", &[]),
    (
        "keyway-server",
        &[
            "keyway-cache",
            "keyway-http",
            "keyway-probes",
            "keyway-proto",
            "keyway-uring",
            "keyway-xdp",
        ],
    ),
    ("keyway-xdp", &[]),
    ("keyway-bench", &["keyway-cache", "keyway-proto"]),
    ("libmemcached", &["keyway-cache", "keyway-harden"]),
    ("libmemcached/util", &["keyway-cache"]),
    (
        "keyway-cli",
        &[
            "keyway-cache",
            "keyway-proto",
            "keyway-server",
            "keyway-bench",
            "keyway-harden",
            "keyway-xdp",
        ],
    ),
    ("python", &["keyway-cache", "keyway-harden"]),
    ("lab", &["keyway-cache", "keyway-bench", "keyway-proto"]),
];

/// Crates whose sources may not allow unsafe code anywhere.
const NO_UNSAFE: &[&str] = &["keyway-http", "keyway-proto", "keyway-server"];

/// Most lines between a `PAIRS:` comment and the operation below it.
const NEAR: usize = 8;

/// Files of `keyway-region` that only pass orderings on.
const NO_PAIRINGS: &[&str] = &["atomics.rs", "observe.rs"];

/// Columns of prose in public Markdown. Tables, headings and code are exempt, and so is a single word on a line of its own.
const WIDTH: usize = 110;

/// Phrases that are hard to understand for a reader whose first language is not English, and what to write instead.
/// They are matched in lower case, at word boundaries, outside code.
const PHRASES: &[(&str, &str)] = &[
    ("whoever", "the actor: a reader, another thread, the server"),
    ("somebody", "the actor"),
    ("anybody", "the actor"),
    ("everybody", "\"every process\", \"every client\""),
    ("nobody", "\"no process\", \"no thread\", \"no client\""),
    ("is told", "\"gets an error\", \"returns\", \"reports\""),
    ("are told", "\"get an error\", \"return\", \"report\""),
    ("behind", "\"after\""),
    ("anew", "\"again\""),
    ("strict mode", "\"durable mode\""),
    ("of an older state", "what is, not what was"),
];

/// Root, name and text of a file; one line for each problem.
type Check = fn(&Path, &str, &str) -> Vec<String>;

/// Reads all tracked files below `root`; one line for each problem.
pub fn check(root: &Path) -> std::io::Result<Vec<String>> {
    let mut problems = Vec::new();
    let mut sources = Vec::new();
    for path in tracked(root)? {
        let name = path.to_string_lossy().into_owned();
        let checks: &[Check] = match path.extension().and_then(|e| e.to_str()) {
            Some("rs") => &[opening, unfinished, forbidden_unsafe, unpaired],
            Some("md") => &[links, unfinished, prose],
            Some("toml") if ["crates/", "bindings/", "lab/"].iter().any(|start| name.starts_with(start)) => &[arrows],
            Some("sh" | "py" | "toml") => &[unfinished],
            _ => continue,
        };
        let Ok(text) = std::fs::read_to_string(root.join(&path)) else {
            continue; // tracked, and deleted in the work tree
        };
        problems.extend(checks.iter().flat_map(|check| check(root, &name, &text)));
        if name.ends_with("Cargo.toml") {
            let read = |path: &Path| std::fs::read_to_string(root.join(path)).ok();
            problems.extend(untested::check(&name, &text, &read));
        }
        if name.ends_with(".rs") {
            sources.push((name, text));
        }
    }
    problems.extend(rooms::check(
        sources.iter().map(|(name, text)| (name.as_str(), text.as_str())),
    ));
    problems.extend(walls::check(
        &texts(root)?,
        &std::fs::read_to_string(root.join(walls::LIMITS))?,
    ));
    problems.extend(guards::check(&promises_page(root)?, &may_guard(root)?));
    Ok(problems)
}

/// All tracked files that are text, with their names.
fn texts(root: &Path) -> std::io::Result<Vec<(String, String)>> {
    let names = tracked(root)?.into_iter().map(|path| path.to_string_lossy().into_owned());
    let read = |name: String| Some((name.clone(), std::fs::read_to_string(root.join(name)).ok()?));
    Ok(names.filter_map(read).collect())
}

/// The command `walls`.
pub fn walls(root: &Path, args: &[&str]) -> Outcome {
    let table = root.join(walls::LIMITS);
    let limits = std::fs::read_to_string(&table).unwrap_or_default();
    let files = match texts(root) {
        Ok(files) => files,
        Err(e) => return Outcome::Failed(format!("cannot read the sources: {e}")),
    };
    match args {
        [] => print!("now\n{}limits\n{limits}", walls::renewed(&files, "")),
        ["--renew"] => {
            if let Err(e) = std::fs::write(&table, walls::renewed(&files, &limits)) {
                return Outcome::Failed(format!("{}: {e}", table.display()));
            }
        }
        [figure] => match walls::figures(&files).get(*figure) {
            Some(rows) => println!("{}", rows.join("\n")),
            None => {
                return Outcome::Failed(format!(
                    "no figure is called '{figure}', or it is 0; `cargo xtask walls` lists them"
                ));
            }
        },
        _ => return Outcome::Failed("walls takes --renew, or the name of a figure".into()),
    }
    Outcome::Passed
}

/// The promises, each with the tests that guard it.
///
/// # Errors
///
/// The page or the list of tracked files cannot be read.
pub fn promises(root: &Path) -> std::io::Result<String> {
    Ok(guards::table(&promises_page(root)?, &may_guard(root)?))
}

fn promises_page(root: &Path) -> std::io::Result<String> {
    std::fs::read_to_string(root.join(guards::PAGE))
}

/// Names and texts of the tracked files whose headers may say which promises they guard.
fn may_guard(root: &Path) -> std::io::Result<Vec<(String, String)>> {
    let names = tracked(root)?.into_iter().map(|path| path.to_string_lossy().into_owned());
    let read = |name: String| Some((std::fs::read_to_string(root.join(&name)).ok()?, name));
    let texts = names.filter(|name| guards::is_read(name)).filter_map(read);
    Ok(texts.map(|(text, name)| (name, text)).collect())
}

/// Paths of all files that git tracks or would track, relative to `root`.
fn tracked(root: &Path) -> std::io::Result<Vec<PathBuf>> {
    let args = ["ls-files", "-z", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").args(args).current_dir(root).output()?;
    if !output.status.success() {
        return Err(std::io::Error::other(format!(
            "git ls-files: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )));
    }
    let names = output.stdout.split(|&b| b == 0).filter(|n| !n.is_empty());
    Ok(names
        .map(|n| PathBuf::from(String::from_utf8_lossy(n).into_owned()))
        .collect())
}

/// Rule 1.
fn opening(_: &Path, name: &str, text: &str) -> Vec<String> {
    let opened = text.lines().next().is_some_and(|line| line.starts_with("//!"));
    if opened {
        vec![]
    } else {
        vec![format!("{name}:1: does not open with `//!`: say what the file is for")]
    }
}

/// Rule 2.
fn unfinished(_: &Path, name: &str, text: &str) -> Vec<String> {
    // Put together here, so that this file does not contain the words that it searches for.
    let words = [concat!("TO", "DO"), concat!("FIX", "ME")];
    let has_word = |line: &str, word: &str| {
        line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
            .any(|w| w == word)
    };
    let mut problems = Vec::new();
    for (number, line) in text.lines().enumerate() {
        if name == "xtask/src/sources.rs" && line.starts_with("//! 2.") {
            continue;
        }
        for word in words.iter().filter(|word| has_word(line, word)) {
            problems.push(format!("{name}:{}: {word}: do it, or leave the remark out", number + 1));
        }
    }
    problems
}

/// Rule 3. Links in code blocks are text and are not followed.
fn links(root: &Path, name: &str, text: &str) -> Vec<String> {
    let folder = root.join(name).parent().map(Path::to_path_buf).unwrap_or_default();
    let mut problems = Vec::new();
    let mut in_code = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        if in_code {
            continue;
        }
        for rest in line.split("](").skip(1) {
            let Some(target) = rest.split(')').next() else { continue };
            let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
            if file.contains("://") || file.starts_with("mailto:") {
                continue;
            }
            let path = folder.join(file);
            if !file.is_empty() && !path.exists() {
                problems.push(format!(
                    "{name}:{}: the link leads to {file}, which does not exist",
                    number + 1
                ));
                continue;
            }
            let page = match file {
                "" => text.to_owned(),
                _ => std::fs::read_to_string(path).unwrap_or_default(),
            };
            let has_anchors = file.is_empty() || file.ends_with(".md");
            if has_anchors && !anchor.is_empty() && !anchors(&page).any(|known| known == anchor) {
                problems.push(format!(
                    "{name}:{}: the link leads to {target}, and no heading has this anchor",
                    number + 1
                ));
            }
        }
    }
    problems
}

/// The anchors of a page's headings, as GitHub makes them: lower case, hyphens for blanks, no other punctuation.
fn anchors(page: &str) -> impl Iterator<Item = String> {
    let headings = page.lines().filter(|line| line.starts_with('#'));
    headings.map(|line| {
        let words = line.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        words.chars().filter(|c| c.is_alphanumeric() || "-_".contains(*c)).collect()
    })
}

/// Rule 3, its second half. `name` is public if it is a page of the root or of `docs/`.
fn prose(_: &Path, name: &str, text: &str) -> Vec<String> {
    let page = name.strip_prefix("docs/").unwrap_or(name);
    if page.contains('/') {
        return vec![];
    }
    let mut problems = Vec::new();
    let mut in_code = false;
    for (number, line) in text.lines().enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        if in_code || is_fence || line.starts_with("    ") && !line.trim_start().starts_with(['-', '|']) {
            continue;
        }
        let words = line.trim_start();
        let is_free = words.starts_with(['|', '#']) || !words.contains(' ');
        let width = line.chars().count();
        if width > WIDTH && !is_free {
            problems.push(format!("{name}:{}: {width} columns; prose wraps at {WIDTH}", number + 1));
        }
        // Code spans are the odd parts between backquotes.
        let outside: String = line.split('`').step_by(2).collect::<Vec<_>>().join("`").to_lowercase();
        for (phrase, instead) in PHRASES.iter().filter(|(phrase, _)| has_phrase(&outside, phrase)) {
            problems.push(format!("{name}:{}: \"{phrase}\": write {instead}", number + 1));
        }
    }
    problems
}

/// Whether `phrase` is in `line`, with no letter before or after it.
fn has_phrase(line: &str, phrase: &str) -> bool {
    line.match_indices(phrase).any(|(at, _)| {
        let before = line.get(..at).and_then(|rest| rest.chars().next_back());
        let after = line.get(at + phrase.len()..).and_then(|rest| rest.chars().next());
        ![before, after].into_iter().flatten().any(|c| c.is_alphanumeric() || c == '_')
    })
}

/// Rule 4. Development dependencies are exempt: tests may use every crate.
fn arrows(_: &Path, name: &str, text: &str) -> Vec<String> {
    let below = name
        .strip_prefix("crates/")
        .or_else(|| name.strip_prefix("bindings/"))
        .or(Some(name).filter(|name| name.starts_with("lab/")));
    let Some(krate) = below.and_then(|n| n.strip_suffix("/Cargo.toml")) else {
        return vec![];
    };
    let Some((_, allowed)) = ARROWS.iter().find(|(from, _)| *from == krate) else {
        return vec![format!(
            "{name}: no arrow is drawn for {krate}: add it to ARROWS and to ARCHITECTURE.md"
        )];
    };
    let mut problems = Vec::new();
    let mut section = "";
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            section = line;
        }
        let known = line.split(['.', '=', ' ']).next().unwrap_or_default();
        let applies = section.ends_with("dependencies]") && !section.contains("dev-dependencies");
        if applies && (known.starts_with("keyway") || known == "lab") && !allowed.contains(&known) {
            problems.push(format!(
                "{name}:{}: {krate} must not know {known} (ARCHITECTURE.md)",
                number + 1
            ));
        }
    }
    problems
}

/// Rule 5.
fn forbidden_unsafe(_: &Path, name: &str, text: &str) -> Vec<String> {
    let guarded = NO_UNSAFE
        .iter()
        .any(|krate| name.starts_with(&format!("crates/{krate}/src/")));
    let allows = |line: &str| {
        let line = line.trim_start();
        (line.starts_with("#[") || line.starts_with("#![")) && line.contains("unsafe_code") && !line.contains("forbid")
    };
    let lines = text.lines().enumerate().filter(|(_, line)| guarded && allows(line));
    lines
        .map(|(number, _)| format!("{name}:{}: this crate has no unsafe code", number + 1))
        .collect()
}

/// Rule 6. A file's tests, at its end, are exempt.
fn unpaired(_: &Path, name: &str, text: &str) -> Vec<String> {
    let Some(file) = name.strip_prefix("crates/keyway-region/src/") else {
        return vec![];
    };
    if NO_PAIRINGS.contains(&file) {
        return vec![];
    }
    let is_ordered = |line: &str| {
        let code = line.trim_start();
        let is_other = ["//", "use ", "pub use "].iter().any(|start| code.starts_with(start)) || code.contains("fn ");
        let mut words = code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let orders = ["Acquire", "Release", "AcqRel", "SeqCst", "light_fence", "store_then_fence"];
        !is_other && words.any(|word| orders.contains(&word))
    };
    let lines: Vec<&str> = text.lines().take_while(|line| *line != "#[cfg(test)]").collect();
    let is_paired = |number: usize| {
        let near = lines.get(number.saturating_sub(NEAR)..=number).unwrap_or_default();
        near.iter().any(|line| line.contains("PAIRS: "))
    };
    let unpaired = lines
        .iter()
        .enumerate()
        .filter(|(number, line)| is_ordered(line) && !is_paired(*number));
    unpaired
        .map(|(number, _)| {
            format!(
                "{name}:{}: the ordering names no pairing: say above it `// PAIRS: NAME: …`, or make it Relaxed",
                number + 1
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    //! Each check gets an input that it must reject, and one that it must accept.
    use super::*;

    fn here() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR"))
    }

    #[test]
    fn a_file_that_says_nothing_is_caught() {
        assert_eq!(opening(&here(), "a.rs", "use std::fs;\n").len(), 1);
        assert_eq!(opening(&here(), "a.rs", "").len(), 1);
        assert!(opening(&here(), "a.rs", "//! Purpose.\n").is_empty());
    }

    #[test]
    fn an_unfinished_remark_is_caught() {
        let bad = concat!("//! x\n// TO", "DO: later\n");
        assert_eq!(unfinished(&here(), "a.rs", bad).len(), 1);
        assert!(unfinished(&here(), "a.rs", "clippy::todo").is_empty());
    }

    #[test]
    fn a_dead_link_is_caught() {
        let text = "[good](Cargo.toml#x) [elsewhere](https://example.org/a)\n[bad](no-such-file.md)\n```\n[code](nothing)\n```\n\
                    ## The `gate`, and more\n[here](#the-gate-and-more)\n[dead](#the-gate)\n";
        let problems = links(&here(), "README.md", text);
        assert_eq!(
            problems,
            [
                "README.md:2: the link leads to no-such-file.md, which does not exist",
                "README.md:8: the link leads to #the-gate, and no heading has this anchor",
            ]
        );
    }

    #[test]
    fn prose_that_is_too_wide_or_hard_to_read_is_caught() {
        let of = |name: &str, text: &str| prose(&here(), name, text).len();
        let wide = "word ".repeat(WIDTH / 5 + 1);
        assert_eq!(of("README.md", &wide), 1);
        assert_eq!(of("docs/a.md", &format!("- {wide}")), 1);
        assert_eq!(
            of("docs/a.md", &format!("| {wide} |\n# {wide}\n```\n{wide}\n```\n    {wide}\n")),
            0
        );
        assert_eq!(of("docs/a.md", &"x".repeat(WIDTH + 1)), 0);
        assert_eq!(of("crates/a/README.md", &wide), 0);
        for (phrase, _) in PHRASES {
            assert_eq!(of("docs/a.md", &format!("So {phrase}, then.")), 1, "{phrase}");
        }
        assert_eq!(of("docs/a.md", "| Whoever | is told |"), 2);
        assert_eq!(of("docs/a.md", "`--user nobody` and a_whoever_b, Nobodys"), 0);
    }

    #[test]
    fn an_arrow_that_is_not_drawn_is_caught() {
        let manifest = "[package]\nname = \"keyway-server\"\n[dependencies]\nkeyway-region.workspace = true\nkeyway-cache = { path = \"..\" }\n";
        assert_eq!(arrows(&here(), "crates/keyway-server/Cargo.toml", manifest).len(), 1);
        let for_tests = "[dev-dependencies]\nkeyway-region.workspace = true\n";
        assert!(arrows(&here(), "crates/keyway-server/Cargo.toml", for_tests).is_empty());
        assert_eq!(arrows(&here(), "crates/keyway-new/Cargo.toml", "").len(), 1);
        let on_lab = "[dependencies]\nlab = { path = \"../../lab\" }\n";
        assert_eq!(arrows(&here(), "crates/keyway-cli/Cargo.toml", on_lab).len(), 1);
        let on_region = "[dependencies]\nkeyway-region.workspace = true\n";
        assert_eq!(arrows(&here(), "lab/Cargo.toml", on_region).len(), 1);
    }

    #[test]
    fn unsafe_code_in_a_safe_room_is_caught() {
        let bad = "//! x\n#![allow(unsafe_code)]\n";
        assert_eq!(forbidden_unsafe(&here(), "crates/keyway-proto/src/lib.rs", bad).len(), 1);
        assert!(forbidden_unsafe(&here(), "crates/keyway-proto/src/lib.rs", "#![forbid(unsafe_code)]").is_empty());
        assert!(forbidden_unsafe(&here(), "crates/keyway-cache/src/lib.rs", bad).is_empty());
    }

    #[test]
    fn an_ordering_without_its_pairing_is_caught() {
        let of = |name: &str, text: &str| unpaired(&here(), name, text).len();
        let bare = "//! x\nuse crate::atomics::Release;\nword.store(1, Release);\n";
        assert_eq!(of("crates/keyway-region/src/a.rs", bare), 1);
        assert_eq!(of("crates/keyway-region/src/a.rs", "//! x\nlight_fence();\n"), 1);
        let far = format!(
            "// PAIRS: tail: the load.\n{}word.store(1, Release);\n",
            "let a = 1;\n".repeat(NEAR)
        );
        assert_eq!(of("crates/keyway-region/src/a.rs", &far), 1);
        let paired =
            "// PAIRS: tail: the load.\nword.store(1, Release);\n#[cfg(test)]\nmod tests { fn a() { w.load(Acquire); } }\n";
        assert_eq!(of("crates/keyway-region/src/a.rs", paired), 0);
        assert_eq!(of("crates/keyway-region/src/a.rs", "word.store(1, Relaxed);\n"), 0);
        assert_eq!(of("crates/keyway-region/src/atomics.rs", bare), 0);
        assert_eq!(of("crates/keyway-cache/src/a.rs", bare), 0);
    }
}
