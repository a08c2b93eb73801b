//! The cases of a run, and how each ended, from what the programs that run suites print.

use std::collections::BTreeMap;

/// Each case with how it ended: `passed`, `failed` or `skipped`, or for a file of checks which of them failed.
pub type Cases = BTreeMap<String, String>;

/// Of `pytest --verbose`: `FILE::NAME RESULT [ NN%]`.
pub fn of_pytest(output: &str) -> Cases {
    let results = [
        (" PASSED", "passed"),
        (" FAILED", "failed"),
        (" ERROR", "failed"),
        (" SKIPPED", "skipped"),
        (" XFAIL", "passed"),
        (" XPASS", "failed"),
    ];
    let mut cases = Cases::new();
    for line in output.lines().filter(|line| line.contains("::")) {
        let found = results.iter().find_map(|(word, how)| {
            let at = line.rfind(word)?;
            let is_result = line[at + word.len()..].starts_with([' ', '(']) || line.len() == at + word.len();
            is_result.then(|| (line[..at].trim().to_owned(), (*how).to_owned()))
        });
        // What fails after its case has passed, while it is taken down, has a second line.
        if let Some((name, how)) = found.filter(|(name, _)| !name.starts_with("ERROR") && !name.starts_with("FAILED"))
            && cases.get(&name).is_none_or(|known| known == "passed")
        {
            cases.insert(name, how);
        }
    }
    cases
}

/// Of `go test -v`: `--- RESULT: NAME (0.00s)`.
pub fn of_go(output: &str) -> Cases {
    let case = |line: &str| {
        let (result, rest) = line.trim_start().strip_prefix("--- ")?.split_once(": ")?;
        let how = match result {
            "PASS" => "passed",
            "FAIL" => "failed",
            _ => "skipped",
        };
        Some((rest.split_once(" (")?.0.to_owned(), how.to_owned()))
    };
    output.lines().filter_map(case).collect()
}

/// What marks a check of TAP that its author expects to fail, in two parts: it is no remark of this file.
const EXPECTED: &str = concat!("# TO", "DO");

/// Of files that print TAP, each after a line `== FILE` and before one `== ends STATUS`.
pub fn of_tap(output: &str) -> Cases {
    let mut cases = Cases::new();
    let (mut file, mut failed, mut ran, mut planned) = (String::new(), Vec::new(), 0, None);
    let mut is_skipped = false;
    for line in output.lines() {
        if let Some(status) = line.strip_prefix("== ends ") {
            let how = match (failed.is_empty(), planned) {
                _ if is_skipped => "skipped".to_owned(),
                (true, Some(planned)) if planned == ran && status == "0" => "passed".to_owned(),
                (true, Some(planned)) if ran < planned => format!("stops after {ran} of {planned}"),
                (true, _) => format!("ends with {status} after {ran}"),
                (false, Some(planned)) if ran < planned => format!("fails {}, stops after {ran} of {planned}", failed.join(" ")),
                (false, _) => format!("fails {}", failed.join(" ")),
            };
            cases.insert(std::mem::take(&mut file), how);
        } else if let Some(name) = line.strip_prefix("== ") {
            file = name.to_owned();
            (failed, ran, planned, is_skipped) = (Vec::new(), 0, None, false);
        } else if let Some(plan) = line.strip_prefix("1..") {
            let (count, rest) = plan.split_once(' ').unwrap_or((plan, ""));
            planned = count.trim().parse::<usize>().ok();
            is_skipped = planned == Some(0) && rest.to_ascii_lowercase().contains("skip");
        } else if line.starts_with("ok ") || line == "ok" {
            ran += 1;
        } else if line.starts_with("not ok") {
            ran += 1;
            // What its author expects to fail counts as passed.
            if !line.contains(EXPECTED) {
                failed.push(ran.to_string());
            }
        }
    }
    cases
}

/// Of programs that print TAP, a case for each check: `ok N NAME`. `N` may be missing. What follows `#` are remarks.
pub fn of_named_checks(output: &str) -> Cases {
    let case = |line: &str| {
        let (rest, how) = match line.strip_prefix("not ok ") {
            Some(rest) => (rest, "failed"),
            None => (line.strip_prefix("ok ")?, "passed"),
        };
        let (name, remark) = rest.split_once(" # ").unwrap_or((rest, ""));
        let name = name
            .trim_start_matches(|sign: char| sign.is_ascii_digit())
            .trim_start_matches(" - ");
        let how = if remark.starts_with("SKIP") { "skipped" } else { how };
        Some((name.trim().to_owned(), how.to_owned()))
    };
    output.lines().filter_map(case).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(cases: &Cases) -> Vec<(&str, &str)> {
        cases.iter().map(|(name, how)| (name.as_str(), how.as_str())).collect()
    }

    #[test]
    fn results_of_pytest_are_read() {
        let output = "t/a.py::A::one PASSED [ 20%]\nt/a.py::two[x PASSED] FAILED   [ 40%]\nt/b.py::three SKIPPED (no server) [ 60%]\n\
                      t/b.py::four PASSED [ 80%]\nt/b.py::four ERROR [ 80%]\nERROR t/b.py::four - gone\n=== 3 passed ===\n";
        let expected = [
            ("t/a.py::A::one", "passed"),
            ("t/a.py::two[x PASSED]", "failed"),
            ("t/b.py::four", "failed"),
            ("t/b.py::three", "skipped"),
        ];
        assert_eq!(pairs(&of_pytest(output)), expected);
    }

    #[test]
    fn results_of_go_are_read() {
        let output = "=== RUN   TestA\n--- PASS: TestA (0.10s)\n    --- FAIL: TestA/sub (0.00s)\n--- SKIP: TestB (0.00s)\nFAIL\n";
        assert_eq!(
            pairs(&of_go(output)),
            [("TestA", "passed"), ("TestA/sub", "failed"), ("TestB", "skipped")]
        );
    }

    #[test]
    fn results_of_files_of_checks_are_read() {
        let output = format!(
            "== t/a.t\n1..3\nok 1\nok 2 - x\nok 3\n== ends 0\n== t/b.t\n1..3\nok 1\nnot ok 2 - y\n== ends 29\n== t/c.t\n1..0 # SKIP no TLS\n\
                      == ends 0\n== t/d.t\nok 1\nnot ok 2 - z {EXPECTED}\n1..2\n== ends 0\n== t/e.t\n1..9\nok 1\n== ends 124\n== t/f.t\n1..1\nok 1\n== ends 1\n\
                      == t/g.t\n1..2\nnot ok 1\nok 2\n== ends 1\n"
        );
        let expected = [
            ("t/a.t", "passed"),
            ("t/b.t", "fails 2, stops after 2 of 3"),
            ("t/c.t", "skipped"),
            ("t/d.t", "passed"),
            ("t/e.t", "stops after 1 of 9"),
            ("t/f.t", "ends with 1 after 1"),
            ("t/g.t", "fails 1"),
        ];
        assert_eq!(pairs(&of_tap(&output)), expected);
    }

    #[test]
    fn results_of_named_checks_are_read() {
        let output =
            "1..4\nok 1 first one\nnot ok 2 - second\nok 3 third # SKIP no host\n# tests 3\nok bin/fourth\nAssertionError: ok\n";
        let expected = [
            ("bin/fourth", "passed"),
            ("first one", "passed"),
            ("second", "failed"),
            ("third", "skipped"),
        ];
        assert_eq!(pairs(&of_named_checks(output)), expected);
    }
}
