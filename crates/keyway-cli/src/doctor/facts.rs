//! What `keyway doctor` looks at, before anything is judged.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use keyway_cache::server::{Attached as Known, Entrance, Seen};
use keyway_cache::{Counters, Owners};
use nix::sys::statfs::fstatfs;

use super::{Attached, Disk, Facts, Machine, Process, machine};
use crate::exit::{self, Failure};
use crate::place;
use crate::top::server::Server;
use crate::wire::Access;

impl Facts {
    pub(super) fn gather(
        path: &Path,
        owners: &Owners,
        seconds: u64,
        server: Option<&str>,
        access: &Access,
    ) -> Result<Self, Failure> {
        let (file, watched) = place::open_to_look(path, owners)?;
        let disk = fstatfs(&file).map(|fs| {
            let block = u64::try_from(fs.block_size()).unwrap_or(0);
            Disk {
                magic: fs.filesystem_type().0,
                size: fs.blocks().saturating_mul(block),
                available: fs.blocks_available().saturating_mul(block),
                owner: file.metadata().map_or(0, |meta| meta.uid()),
            }
        });
        let Seen {
            counters: before,
            processes: here,
            ..
        } = watched.look();
        let here = here.iter().filter(|process| process.is_known_here);
        let dropped = |pid: u64| machine::udp(&Path::new("/proc").join(pid.to_string())).map_or(0, |(_, dropped)| dropped);
        let dropped_before: BTreeMap<u64, u64> = here.map(|process| (process.pid, dropped(process.pid))).collect();
        std::thread::sleep(Duration::from_secs(seconds));
        let seen = watched.look();
        let (_, inode) = watched.identity();
        let said = server.map(|place| asked(place, access, watched.identity())).transpose()?;
        let number = |name: &str| said.as_ref()?.get(name)?.parse::<u64>().ok();
        let processes = seen.processes.iter().map(|process| {
            let known = process
                .is_known_here
                .then(|| Process::read(Path::new("/proc"), process.pid, inode));
            let mut attached = Attached::new(process, known.flatten());
            attached.udp_dropped -= (*dropped_before.get(&process.pid).unwrap_or(&0)).min(attached.udp_dropped);
            attached.udp_looked_s = seconds;
            // The server that was asked knows more than these looks.
            if let Some(dropped) = number("keyway_hour_udp_dropped").filter(|_| number("pid") == Some(process.pid)) {
                attached.udp_dropped = dropped;
                attached.udp_looked_s = number("keyway_hour_seconds").unwrap_or(seconds);
            }
            attached
        });
        let own = (before, seconds);
        let (before, looked_s) = said.as_ref().and_then(|said| hour_ago(said, &seen.counters)).unwrap_or(own);
        Ok(Self {
            place: path.display().to_string(),
            disk: disk.unwrap_or_default(),
            swapped: machine::mapped(Path::new("/proc/self"), inode).map(|mapped| mapped.swapped),
            machine: Machine::read(Path::new("/")),
            processes: processes.collect(),
            server: said,
            seen,
            before,
            looked_s,
        })
    }

    /// What was counted during the look.
    pub(super) fn lately(&self, of: impl Fn(&Counters) -> u64) -> u64 {
        of(&self.seen.counters).saturating_sub(of(&self.before))
    }
}

impl Attached {
    /// With all datagrams that were dropped so far.
    fn new(seen: &Known, process: Option<Process>) -> Self {
        let threads = || seen.threads.iter();
        Self {
            pid: seen.pid,
            is_server: seen.entrance == Entrance::Server,
            in_call: threads().filter(|thread| thread.is_writing).count(),
            protects: threads().map(|thread| thread.protects).sum(),
            fenced: threads().filter(|thread| thread.is_fenced).count(),
            udp_dropped: process
                .as_ref()
                .and_then(|process| process.udp)
                .map_or(0, |(_, dropped)| dropped),
            udp_looked_s: 0,
            process,
        }
    }
}

/// What the server says of itself.
fn asked(place: &str, access: &Access, region: (u64, u64)) -> Result<BTreeMap<String, String>, Failure> {
    let mut server = Server::connect(place, access, region)?;
    let mut ask = |request| {
        let said = server.stats(request);
        said.map_err(|why| Failure::new(exit::NO, format_args!("{place}: {why}")))
    };
    let mut said = ask("stats\r\n")?;
    said.extend(ask("stats settings\r\n")?);
    Ok(said)
}

/// What had been counted an hour ago, or when the server started, and how many seconds ago that was, by what the server says.
fn hour_ago(said: &BTreeMap<String, String>, now: &Counters) -> Option<(Counters, u64)> {
    let number = |name: &str| said.get(&format!("keyway_hour_{name}"))?.parse::<u64>().ok();
    let seconds = number("seconds").filter(|seconds| *seconds > 0)?;
    let before = |name: &str, now: u64| number(name).map(|counted| now.saturating_sub(counted));
    let mut then = *now;
    then.evictions = before("evictions", now.evictions)?;
    then.ghost_hits = before("came_back", now.ghost_hits)?;
    then.store_no_memory = before("no_memory", now.store_no_memory)?;
    then.corrupt = before("corrupt", now.corrupt)?;
    Some((then, seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_knows_the_last_hour() {
        let mut now = Counters::default();
        (now.evictions, now.corrupt) = (100, 7);
        let mut said = BTreeMap::new();
        assert_eq!(hour_ago(&said, &now), None);
        for (name, value) in [
            ("seconds", "3600"),
            ("evictions", "90"),
            ("came_back", "0"),
            ("no_memory", "0"),
            ("corrupt", "0"),
        ] {
            said.insert(format!("keyway_hour_{name}"), value.to_owned());
        }
        let (then, seconds) = hour_ago(&said, &now).unwrap();
        assert_eq!((then.evictions, then.corrupt, seconds), (10, 7, 3600));
        said.insert("keyway_hour_seconds".to_owned(), "0".to_owned());
        assert_eq!(hour_ago(&said, &now), None, "the server has just started");
    }
}
