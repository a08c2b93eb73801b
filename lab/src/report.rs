//! A report of the lab: that of `keyway bench`, with the papers' tables.

use crate::page;
use crate::presets::Reproduced;
use crate::table::PaperTable;
use keyway_bench::compare::Comparison;
use keyway_bench::html;
use keyway_bench::report::{Report, Row};
use serde::{Deserialize, Serialize};

/// Everything that one invocation found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabReport {
    /// cells, notes, failures
    #[serde(flatten)]
    pub report: Report,
    /// figures and tables of papers, with what was measured beside them
    #[serde(default)]
    pub papers: Vec<PaperTable>,
}

impl LabReport {
    /// Of what presets gave.
    pub fn new(reproduced: Reproduced, command: String) -> Self {
        Self {
            report: Report::of(&reproduced.outcome, reproduced.conditions.join("\n"), command),
            papers: reproduced.tables,
        }
    }

    /// What [`Self::to_json`] wrote.
    ///
    /// # Errors
    ///
    /// It is no report, or of another format.
    pub fn from_json(text: &str) -> Result<Self, String> {
        Report::from_json(text)?;
        serde_json::from_str(text).map_err(|e| e.to_string())
    }

    /// The whole of it, for programs.
    ///
    /// # Errors
    ///
    /// None that a report can have; a format's library may fail in general.
    pub fn to_json(&self) -> Result<String, String> {
        serde_json::to_string_pretty(self).map_err(|e| e.to_string())
    }

    /// The page of a browser.
    pub fn page(&self, changes: Option<&Comparison>) -> String {
        html::page_with(&self.report, changes, page::section(&self.papers).into_iter().collect())
    }

    /// What changed since an old report, papers' rows included.
    ///
    /// # Errors
    ///
    /// They have no row in common.
    pub fn since(&self, old: &Self, threshold: f64) -> Result<Comparison, String> {
        Comparison::new(&old.comparable(), &self.comparable(), threshold)
    }

    fn comparable(&self) -> Report {
        let mut report = self.report.clone();
        for table in &self.papers {
            let cell = format!("{}, {}", table.preset, table.title);
            report.rows.extend(table.rows.iter().map(|row| Row {
                name: format!("{cell}: {}", row.name),
                cell: cell.clone(),
                figure: row.name.clone(),
                unit: row.unit.clone(),
                digits: row.digits,
                better: row.better,
                sides: row.sides,
            }));
        }
        report
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::table::tests::table;
    use keyway_bench::compare::THRESHOLD_PERCENT;
    use keyway_bench::run::Outcome;

    fn report() -> LabReport {
        let reproduced = Reproduced {
            outcome: Outcome::default(),
            conditions: vec!["once".to_owned()],
            tables: vec![table()],
        };
        LabReport::new(reproduced, "lab".to_owned())
    }

    #[test]
    fn figures_beside_papers_are_compared_too() {
        let old = report();
        let mut new = old.clone();
        let get = &mut new.papers[0].rows[0];
        assert_eq!((get.name.as_str(), get.sides.ratio), ("get", Some(0.1)));
        let sides = &mut get.sides;
        for ratio in [&mut sides.ratio, &mut sides.ratio_low, &mut sides.ratio_high] {
            *ratio = Some(0.9);
        }
        let comparison = new.since(&old, THRESHOLD_PERCENT).unwrap();
        let worse: Vec<_> = comparison.worse().iter().map(|change| change.new.name.clone()).collect();
        assert_eq!(worse, ["hodor-fig5, mean latency: get"], "a latency: less is better");
        assert_eq!(comparison.changes.len(), 3);
    }

    #[test]
    fn what_is_written_is_read_again() {
        let report = report();
        assert_eq!(LabReport::from_json(&report.to_json().unwrap()), Ok(report));
        assert!(LabReport::from_json("{}").unwrap_err().contains("no report"));
    }

    #[test]
    fn the_page_has_the_papers_numbers_and_ours() {
        let page = report().page(None);
        for part in [
            "Beside the papers",
            "memcached, Unix socket",
            "hodor-fig5",
            "rect class=\"bar paper\"",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
    }
}
