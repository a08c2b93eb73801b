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

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use clap::Args;
use keyway_cache::Counters;
use keyway_cache::server::Seen;
use serde_json::json;

use crate::exit::{self, Failure};
use crate::wire::Access;
use crate::{commands, terminal};
use checks::{Finding, Is};
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

/// All of it.
#[derive(Clone, Debug, Default)]
struct Facts {
    place: String,
    seen: Seen,
    /// what had been counted when the observation began, and how many seconds ago that was: an hour, if a server knows
    before: Counters,
    looked_s: u64,
    disk: Disk,
    /// bytes of the region that are swapped out
    swapped: Option<u64>,
    machine: Machine,
    /// those that are attached
    processes: Vec<Attached>,
    /// `stats` and `stats settings` of the server that is asked
    server: Option<BTreeMap<String, String>>,
}

/// The file system of the region's file.
#[derive(Clone, Debug, Default)]
struct Disk {
    /// statfs(2)
    magic: i64,
    /// bytes; 0: it has no limit of its own
    size: u64,
    available: u64,
    /// of the region's file
    owner: u32,
}

/// A process that is attached for writing.
#[derive(Clone, Debug, Default)]
struct Attached {
    pid: u64,
    is_server: bool,
    /// threads in a call that may change items
    in_call: usize,
    /// segments that it keeps from being recycled
    protects: usize,
    /// sessions that are fenced
    fenced: usize,
    /// `None`: it is of another process namespace, or of another user
    process: Option<Process>,
    /// datagrams for it that were dropped because its sockets' buffers were full, and in how many seconds
    udp_dropped: u64,
    udp_looked_s: u64,
}

/// The machine. What cannot be read is absent.
#[derive(Clone, Debug, Default)]
struct Machine {
    /// bytes
    memory: Option<u64>,
    available: Option<u64>,
    swap_free: u64,
    commit_limit: Option<u64>,
    committed: Option<u64>,
    /// vm.overcommit_memory is 2: memory that processes ask for is counted in full
    commits_strictly: bool,
    clocksource: Option<String>,
    /// net.core.rmem_max, bytes
    receive_max: Option<u64>,
    /// logind removes what a user has in /dev/shm when the user's last session ends (logind.conf(5), RemoveIPC)
    removes_ipc: bool,
    /// users whose processes go on after their last session (loginctl(1), enable-linger)
    lingering: BTreeSet<String>,
}

/// A process, as far as this user may know.
#[derive(Clone, Debug, Default)]
struct Process {
    name: String,
    /// a thread of it is stopped, by a signal or a debugger
    is_stopped: bool,
    /// open files, and the most that it may open
    files: Option<(u64, u64)>,
    /// it was asked to lock its memory (-k)
    locks: bool,
    /// bytes locked, and the most that it may lock
    locked: Option<(u64, u64)>,
    /// files of its program and of Keyway's libraries that were replaced or removed since it started
    replaced: Vec<String>,
    /// the region in its memory
    mapped: Option<Mapped>,
    /// its UDP sockets, and the datagrams that were dropped at them since each was made
    udp: Option<(usize, u64)>,
}

/// A region in the memory of a process, bytes (proc_pid_smaps(5)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Mapped {
    /// in memory
    resident: u64,
    /// of this, in huge pages
    huge: u64,
    /// swapped out
    swapped: u64,
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
