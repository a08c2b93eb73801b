//! The part of docs/testing.md that is generated from the list of suites and the table of differences.

use crate::differences;
use crate::list::{self, Handles, Replaced};

/// The tables.
pub fn generated() -> String {
    let mut text = String::from(
        "| suite | from | Keyway stands in for | in the gate | cases, at least | that differ |\n|---|---|---|---|---|---|\n",
    );
    for suite in list::ALL {
        let replaced = match suite.replaced {
            Replaced::Server => "memcached",
            Replaced::Library(Handles::Alone) => "libmemcached, which is not there; handles on the region",
            Replaced::Library(Handles::OneServer) => "libmemcached, handles on the region",
            Replaced::Library(Handles::TwoServers) => "libmemcached, handles of several servers",
        };
        let rows = differences::ALL
            .iter()
            .filter(|row| row.suite == suite.name)
            .map(|row| row.cases.len())
            .sum::<usize>();
        let gate = if suite.is_short { "yes" } else { "with `KEYWAY_TESTS_FULL=1`" };
        text += &format!(
            "| {} | {} | {replaced} | {gate} | {} | {rows} |\n",
            suite.name, suite.source, suite.cases_min
        );
    }
    if !differences::ALL.is_empty() {
        text += "\n| suite | cases | what they require | why |\n|---|---|---|---|\n";
    }
    for row in differences::ALL {
        let cases: Vec<_> = row
            .cases
            .iter()
            .map(|(case, _)| format!("`{}`", case.replace('|', "\\|")))
            .collect();
        text += &format!(
            "| {} | {} | {} | [{}]({}) |\n",
            row.suite,
            cases.join(", "),
            row.requires,
            row.why,
            row.link
        );
    }
    text += "\n| suite that is not run | why |\n|---|---|\n";
    for (name, why) in list::NOT_HAD {
        text += &format!("| {name} | {why} |\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    const BEGIN: &str = "<!-- suites: written by `KEYWAY_TESTS_RENEW=1 cargo test -p suites` -->\n";
    const END: &str = "<!-- end of suites -->\n";

    #[test]
    fn the_document_has_the_tables() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/testing.md");
        let page = std::fs::read_to_string(&path).expect("docs/testing.md");
        let (before, rest) = page.split_once(BEGIN).expect("where the tables begin");
        let (now, after) = rest.split_once(END).expect("where the tables end");
        let wanted = format!("\n{}\n", generated());
        if std::env::var_os("KEYWAY_TESTS_RENEW").is_some() {
            std::fs::write(&path, format!("{before}{BEGIN}{wanted}{END}{after}")).expect("docs/testing.md");
        } else {
            assert_eq!(now, wanted, "KEYWAY_TESTS_RENEW=1 writes the tables again");
        }
    }

    #[test]
    fn every_row_is_of_suites_that_there_are() {
        for row in differences::ALL {
            assert!(list::ALL.iter().any(|suite| suite.name == row.suite), "{}", row.suite);
        }
    }
}
