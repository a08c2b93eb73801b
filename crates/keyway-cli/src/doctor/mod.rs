//! `keyway doctor`: what is wrong with a region in use and with the machine for it, and what to do about it. The region is mapped for
//! reading only, so what is looked at is neither changed nor slowed down, and no server is needed.
//!
//! | file | holds |
//! |---|---|
//! | `facts` | what is looked at |
//! | `machine` | the machine's files, and those of processes |
//! | `checks` | what is judged, each check by itself |

mod checks;
mod facts;
mod machine;

use std::io::Write;

use clap::Args;
use serde_json::json;

use crate::exit::{self, Failure};
use crate::wire::Access;
use crate::{commands, terminal};
use checks::{Finding, Is};
use facts::Facts;
use terminal::wrap;

pub(crate) const HELP: &str = "\
Each check prints one line: `ok`, `unknown` with what would make it known, or
`WRONG` with the value, the limit and, in a line of its own, a remedy. The
region and the files of /proc are only read. Other users' processes can be
examined by root only. Stores, evictions, damage and refused connections are
judged by the last hour that the server (--server) knows, and without a server
by what happens while it looks (--seconds): what is over, and what is normal for
a full cache, is not wrong.

Exit codes: 0 all is well, or unknown; 1 something is wrong; 2 the region cannot
be opened.

Examples:
  keyway doctor                            the default region, with or without a
                                           server
  keyway doctor --server 127.0.0.1:11211   the region of this server, and what
                                           the server says of itself
  keyway doctor --json | jq '.checks[] | select(.is == \"wrong\")'";

#[derive(Args)]
pub(crate) struct Doctor {
    #[command(flatten)]
    region: crate::Region,
    /// Also ask this server, and look at its region if none is named: [tls://]ADDR[:PORT], or the path of a Unix socket
    #[arg(long, value_name = "PLACE")]
    server: Option<String>,
    #[command(flatten)]
    access: Access,
    /// Seconds for which stores and evictions are looked at, such as 3600 for an hour; a server (--server) knows the last hour
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Print it as a JSON object
    #[arg(long)]
    json: bool,
}

impl Doctor {
    pub(crate) fn run(self) -> Result<(), Failure> {
        let commands::Which { path, owners } = self.region.place_of(self.server.as_deref(), &self.access)?;
        let facts = Facts::gather(&path, &owners, self.seconds, self.server.as_deref(), &self.access)?;
        let findings = checks::all(&facts);
        let wrong = findings.iter().filter(|finding| finding.is == Is::Wrong).count();
        let text = match self.json {
            true => format!("{}\n", json(&facts, &findings)),
            false => text(&facts, &findings, wrong, terminal::columns()),
        };
        commands::written(std::io::stdout().write_all(text.as_bytes()))?;
        match wrong {
            0 => Ok(()),
            1 => Err(Failure::new(exit::NO, format_args!("{}: 1 thing is wrong", facts.place))),
            n => Err(Failure::new(exit::NO, format_args!("{}: {n} things are wrong", facts.place))),
        }
    }
}

fn text(facts: &Facts, findings: &[Finding], wrong: usize, columns: Option<usize>) -> String {
    let mut text = terminal::wrapped(&format!("keyway doctor  {}", facts.place), columns);
    for finding in findings {
        let names = format!("{:<8} {:<13} ", finding.is.word(), finding.check);
        text.push_str(&names);
        let has = names.len();
        wrap(&finding.what, has, has, columns, &mut text);
        if let Some(remedy) = &finding.remedy {
            text.push_str(&" ".repeat(has));
            wrap(&format!("remedy: {remedy}"), has, has, columns, &mut text);
        }
    }
    let unknown = findings.iter().filter(|finding| finding.is == Is::Unknown).count();
    let verdict = match (wrong, unknown) {
        (0, 0) => "all is well".to_owned(),
        (0, n) => format!(
            "all is well as far as it is known; {n} of {} {} unknown",
            findings.len(),
            if n == 1 { "is" } else { "are" }
        ),
        (1, _) => format!("1 of {} is wrong", findings.len()),
        (n, _) => format!("{n} of {} are wrong", findings.len()),
    };
    text.push_str(&terminal::wrapped(&verdict, columns));
    text
}

fn json(facts: &Facts, findings: &[Finding]) -> serde_json::Value {
    let checks: Vec<_> = findings
        .iter()
        .map(|finding| {
            json!({
                "check": finding.check,
                "is": finding.is.word().to_lowercase(),
                "what": finding.what,
                "remedy": finding.remedy,
            })
        })
        .collect();
    json!({ "place": facts.place, "checks": checks })
}
