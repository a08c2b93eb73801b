//! A suite with the real one and with Keyway: which cases end otherwise, and whether the table says so.

use std::path::Path;

use harness::Kind;

use crate::cases::Cases;
use crate::differences::{ALL, Row};
use crate::list::Suite;
use crate::run;

/// The result of a suite.
pub enum Verdict {
    /// it cannot be had or run here, for this reason
    Absent(String),
    Compared {
        /// cases of the run with the real one, and how many of them pass
        cases: usize,
        real: usize,
        /// how many pass with Keyway
        keyway: usize,
        /// what is wrong
        problems: Vec<String>,
    },
}

impl Verdict {
    /// What is said of it.
    pub fn line(&self, suite: &Suite) -> String {
        match self {
            Self::Absent(why) => format!("{}: ABSENT: {why}", suite.name),
            Self::Compared {
                cases,
                real,
                keyway,
                problems,
            } => {
                let mut text = format!(
                    "{}: {cases} cases, {real} pass with the real one, {keyway} with Keyway; {} problems",
                    suite.name,
                    problems.len()
                );
                problems.iter().for_each(|problem| text += &format!("\n    {problem}"));
                text
            }
        }
    }
}

/// Runs the suite with both. What goes wrong counts only if it goes wrong twice: cases of others have deadlines of their own.
pub fn both(suite: &Suite, target: &Path) -> Verdict {
    let command = match (suite.obtain)(target) {
        Ok(command) => command,
        Err(why) => return Verdict::Absent(why),
    };
    let attempt = || {
        let run = |kind: Kind| {
            let log = target.join(format!("suite-{}-{}.log", suite.name.replace([' ', ','], "-"), kind.name()));
            run::once(suite, kind, command.as_ref(), &log)
        };
        // A socket has one path for both.
        if suite.others.iter().any(|place| place.starts_with('/')) {
            return Ok::<_, String>((run(Kind::Memcached)?, run(Kind::Keyway)?));
        }
        let (real, keyway) = std::thread::scope(|scope| {
            let real = scope.spawn(|| run(Kind::Memcached));
            let keyway = run(Kind::Keyway);
            (real.join(), keyway)
        });
        let real = real.unwrap_or_else(|_| Err("the run panicked".to_owned()));
        Ok((real?, keyway?))
    };
    let (mut real, mut keyway) = match attempt() {
        Ok(runs) => runs,
        Err(why) => return Verdict::Absent(why),
    };
    let mut found = problems(suite, ALL, &real, &keyway);
    if !found.is_empty() {
        match attempt() {
            Ok(runs) => {
                (real, keyway) = runs;
                let again = problems(suite, ALL, &real, &keyway);
                found.retain(|problem| again.contains(problem));
            }
            Err(why) => return Verdict::Absent(why),
        }
    }
    let passed = |cases: &Cases| cases.values().filter(|how| *how == "passed").count();
    Verdict::Compared {
        cases: real.len(),
        real: passed(&real),
        keyway: passed(&keyway),
        problems: found,
    }
}

/// What is not as the table has it.
fn problems(suite: &Suite, table: &[Row], real: &Cases, keyway: &Cases) -> Vec<String> {
    let absent = "does not run".to_owned();
    let rows: Vec<(&str, &str)> = table
        .iter()
        .filter(|row| row.suite == suite.name)
        .flat_map(|row| row.cases)
        .copied()
        .collect();
    let mut found = Vec::new();
    if real.len() < suite.cases_min {
        found.push(format!(
            "only {} cases ran, of at least {}: see the log",
            real.len(),
            suite.cases_min
        ));
    }
    let names: std::collections::BTreeSet<&String> = real.keys().chain(keyway.keys()).collect();
    for name in &names {
        let [real, keyway] = [real, keyway].map(|cases| cases.get(*name).unwrap_or(&absent));
        let row = rows.iter().find(|(case, _)| case == name);
        match row {
            None if real != keyway => found.push(format!(
                "{name}: {real}, and with Keyway {keyway}; no row of the table says so"
            )),
            Some((_, told)) if real == keyway => found.push(format!("{name}: {real} with both, but the table says {told}")),
            Some((_, told)) if !is_as_told(keyway, told) => {
                found.push(format!("{name}: with Keyway {keyway}, but the table says {told}"));
            }
            _ => {}
        }
    }
    for (case, _) in rows.iter().filter(|(case, _)| !names.iter().any(|name| name == case)) {
        found.push(format!("{case}: it is in the table, but no case"));
    }
    found
}

/// Whether a case ends as a row has it.
fn is_as_told(how: &str, told: &str) -> bool {
    told.strip_suffix('…')
        .map_or(how == told, |beginning| how.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::list;

    fn cases(pairs: &[(&str, &str)]) -> Cases {
        pairs
            .iter()
            .map(|(name, how)| ((*name).to_owned(), (*how).to_owned()))
            .collect()
    }

    #[test]
    fn a_difference_without_a_row_and_a_row_without_a_difference_fail() {
        let suite = Suite {
            cases_min: 2,
            ..list::ALL[0]
        };
        let row = |cases| Row {
            suite: list::ALL[0].name,
            cases,
            requires: "",
            why: "",
            link: "",
        };
        let real = cases(&[("a", "passed"), ("b", "passed")]);
        let other = cases(&[("a", "passed"), ("b", "failed")]);
        let count = |table: &[Row], keyway: &Cases| problems(&suite, table, &real, keyway).len();
        assert_eq!(count(&[], &real), 0);
        assert_eq!(count(&[], &other), 1, "a difference that is in no row");
        assert_eq!(count(&[row(&[("b", "failed")])], &other), 0);
        assert_eq!(count(&[row(&[("b", "fai…")])], &other), 0);
        assert_eq!(
            count(&[row(&[("b", "fails 3")])], &other),
            1,
            "another difference than the row's"
        );
        assert_eq!(
            count(&[row(&[("b", "failed")])], &real),
            1,
            "a row that is no difference any more"
        );
        assert_eq!(count(&[row(&[("c", "failed")])], &real), 1, "a row without a case");
        assert_eq!(count(&[], &cases(&[("a", "passed")])), 1, "a case that does not run");
        assert_eq!(
            problems(&suite, &[], &Cases::new(), &Cases::new()).len(),
            1,
            "a suite that runs nothing"
        );
    }
}
