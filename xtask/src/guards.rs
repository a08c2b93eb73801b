//! The promises of `docs/promises.md`, and the tests that guard them.
//!
//! A test says in its header which promises it guards: a line with `Guards: P3, P12` after the comment's mark, in any language. [`check`] finds a
//! promise that no test guards, a guard of a promise that does not exist, and a guard in a file that is no test. It does not judge whether
//! a test would notice that its promise is broken.

use std::collections::{BTreeMap, BTreeSet};

/// The page with the promises.
pub const PAGE: &str = "docs/promises.md";

/// Lines at a file's beginning in which a header without marks on every line (Python, C) may say what it guards.
const HEADER_LINES: usize = 80;

/// Endings of files whose headers are read.
const ENDINGS: &[&str] = &[".rs", ".py", ".c", ".h", ".sh", ".php", ".rb", ".java", ".js", ".go"];

/// A row of the page.
struct Promise<'a> {
    id: &'a str,
    sentence: &'a str,
}

/// The rows of the page: those whose first cell is an identifier.
fn promises(page: &str) -> Vec<Promise<'_>> {
    let rows = page.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.split(" | ");
        let (id, sentence) = (cells.next()?.trim(), cells.next()?.trim());
        is_id(id).then_some(Promise { id, sentence })
    });
    rows.collect()
}

fn is_id(word: &str) -> bool {
    word.strip_prefix('P')
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

/// The lines of a file that may say what it guards.
fn header<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
    if name.ends_with(".rs") {
        return text.lines().take_while(|line| line.starts_with("//!")).collect();
    }
    text.lines().take(HEADER_LINES).collect()
}

/// What a file says it guards: words that should be identifiers.
fn guarded<'a>(name: &str, text: &'a str) -> Vec<&'a str> {
    let said = header(name, text).into_iter().filter_map(|line| {
        let words = line.trim_start_matches(['/', '!', '#', '*', '"', ' ']);
        words.strip_prefix("Guards:")
    });
    said.flat_map(|list| list.split([',', ' ']))
        .map(|word| word.trim_end_matches(['.', '"']))
        .filter(|word| !word.is_empty())
        .collect()
}

/// Whether a file is a test, or a part of a program that tests a promise.
fn is_test(name: &str, text: &str) -> bool {
    let below = ["testing/", "model/", "fuzz/"].iter().any(|folder| name.starts_with(folder));
    below || name.contains("/tests/") || text.contains("#[test]")
}

/// Whether a file of this name is read for guards.
pub fn is_read(name: &str) -> bool {
    ENDINGS.iter().any(|ending| name.ends_with(ending))
}

/// One line for each problem. `files` are names and texts of tracked files that [`is_read`] names.
pub fn check(page: &str, files: &[(String, String)]) -> Vec<String> {
    let promises = promises(page);
    let mut problems = Vec::new();
    if promises.is_empty() {
        problems.push(format!("{PAGE}: no row begins with `| P1 |`"));
    }
    let mut known = BTreeSet::new();
    for promise in &promises {
        if !known.insert(promise.id) {
            problems.push(format!("{PAGE}: {} has two rows", promise.id));
        }
    }
    let mut kept = BTreeSet::new();
    for (name, text) in files {
        for id in guarded(name, text) {
            if !known.contains(id) {
                problems.push(format!("{name}: guards {id}, of which {PAGE} has no row"));
            } else if !is_test(name, text) {
                problems.push(format!("{name}: guards {id}, and is no test"));
            } else {
                kept.insert(id);
            }
        }
    }
    for promise in promises.iter().filter(|promise| !kept.contains(promise.id)) {
        problems.push(format!(
            "{PAGE}: no test guards {}: say `Guards: {}` in the header of the one that does",
            promise.id, promise.id
        ));
    }
    problems
}

/// The promises, each with the files that guard it.
pub fn table(page: &str, files: &[(String, String)]) -> String {
    let mut guards: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (name, text) in files {
        for id in guarded(name, text) {
            guards.entry(id).or_default().push(name);
        }
    }
    let mut table = String::new();
    for Promise { id, sentence } in promises(page) {
        table += &format!("{id:4} {sentence}\n");
        for name in guards.get(id).into_iter().flatten() {
            table += &format!("       {name}\n");
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROWS: &str = "| id | promise | broken by |\n|---|---|---|\n| P1 | It works. | a fault |\n| P2 | It lasts. | time |\n";

    fn files(of: &[(&str, &str)]) -> Vec<(String, String)> {
        of.iter()
            .map(|(name, text)| ((*name).to_owned(), (*text).to_owned()))
            .collect()
    }

    #[test]
    fn promises_with_guards_pass_and_are_listed() {
        let all = files(&[
            ("crates/a/tests/b.rs", "//! A test.\n//! Guards: P1\nuse std::fs;\n"),
            ("model/c.py", "\"\"\"A model.\n\nGuards: P1, P2.\n\"\"\"\n"),
        ]);
        assert_eq!(check(ROWS, &all), Vec::<String>::new());
        assert_eq!(
            table(ROWS, &all),
            "P1   It works.\n       crates/a/tests/b.rs\n       model/c.py\nP2   It lasts.\n       model/c.py\n"
        );
    }

    #[test]
    fn a_promise_without_a_guard_is_caught() {
        let problems = check(ROWS, &files(&[("crates/a/tests/b.rs", "//! A test.\n//! Guards: P1\n")]));
        assert_eq!(
            problems,
            ["docs/promises.md: no test guards P2: say `Guards: P2` in the header of the one that does"]
        );
    }

    #[test]
    fn a_guard_without_a_promise_is_caught() {
        let all = files(&[
            ("testing/a.rs", "//! Guards: P1 P2 P3\n"),
            ("testing/b.rs", "//! Guards: everything\n"),
        ]);
        assert_eq!(
            check(ROWS, &all),
            [
                "testing/a.rs: guards P3, of which docs/promises.md has no row",
                "testing/b.rs: guards everything, of which docs/promises.md has no row"
            ]
        );
    }

    #[test]
    fn a_guard_that_is_no_test_or_not_in_the_header_does_not_count() {
        let all = files(&[
            ("crates/a/src/lib.rs", "//! Code.\n//! Guards: P1\n"),
            ("crates/a/tests/b.rs", "//! A test.\nuse std::fs;\n//! Guards: P1\n"),
            ("crates/a/src/d.rs", "//! Code.\n//! Guards: P2\n#[test]\nfn d() {}\n"),
        ]);
        let problems = check(ROWS, &all);
        assert_eq!(problems.len(), 2, "{problems:?}");
        assert_eq!(problems[0], "crates/a/src/lib.rs: guards P1, and is no test");
        assert!(problems[1].starts_with("docs/promises.md: no test guards P1"));
    }

    #[test]
    fn a_page_without_rows_or_with_a_row_twice_is_caught() {
        assert_eq!(check("# Promises\n", &[]).len(), 1);
        let twice = format!("{ROWS}| P1 | Again. | a fault |\n");
        let all = files(&[("testing/a.rs", "//! Guards: P1, P2\n")]);
        assert_eq!(check(&twice, &all), ["docs/promises.md: P1 has two rows"]);
    }
}
