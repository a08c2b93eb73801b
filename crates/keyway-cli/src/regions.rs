//! `keyway regions`: the regions of this machine, and removing those that no process uses.
//!
//! A region is found by its name in a folder, or because a process has it mapped (proc_pid_maps(5)).

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, IsTerminal, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::Args;
use keyway_cache::server::{Described, Removal, SHARED_MEMORY, describe, is_default_place, remove_unused};
use keyway_cache::{OpenError, Owners, Unusable};
use keyway_server::size_text;
use nix::fcntl::OFlag;
use nix::unistd::{Uid, User};
use serde_json::json;

use crate::commands;
use crate::exit::{self, Failure};
use crate::numbers::counted;
use crate::terminal::{self, LEFT, Table};
use crate::top::server::region_of;
use crate::wire::Access;

pub(crate) const HELP: &str = "\
`unknown` is what this user may not know of another user's region.

Examples:
  keyway regions
  keyway regions /run/keyway --json
  export KEYWAY_REGION=$(keyway regions --server 127.0.0.1:11211)
      where the region of this server is, for this user: for other commands,
      and for programs that use the library
  keyway regions --prune --unused-for 2d
      remove those of this user that no process has used for two days, after
      asking";

/// Arguments of `keyway regions`.
#[derive(Args)]
pub(crate) struct Regions {
    /// Files, or folders whose files are looked at [default: /dev/shm, and what processes have mapped]
    places: Vec<PathBuf>,
    /// Print only where this user finds the region of this server, which is its file or its region socket: [tls://]ADDR[:PORT], or the path
    /// of a Unix socket
    #[arg(long, value_name = "PLACE", conflicts_with_all = ["places", "prune", "json"])]
    server: Option<String>,
    #[command(flatten)]
    access: Access,
    /// Remove the regions of this user that no process has used for long (--unused-for), after asking
    #[arg(long)]
    prune: bool,
    /// How long a region is unused before --prune removes it: a number with s, m, h or d
    #[arg(long, value_name = "TIME", default_value = "7d", value_parser = parse_time, requires = "prune")]
    unused_for: Duration,
    /// Remove without asking
    #[arg(long, requires = "prune")]
    yes: bool,
    /// Print one JSON object for each region
    #[arg(long, conflicts_with = "prune")]
    json: bool,
}

/// Seconds, minutes, hours or days.
fn parse_time(text: &str) -> Result<Duration, String> {
    let seconds = match text.chars().last() {
        Some('s') => 1,
        Some('m') => 60,
        Some('h') => 3_600,
        Some('d') => 86_400,
        _ => 0,
    };
    let number = text
        .get(..text.len().saturating_sub(1))
        .and_then(|digits| digits.parse::<u64>().ok());
    number
        .filter(|_| seconds > 0)
        .and_then(|number| number.checked_mul(seconds))
        .map(Duration::from_secs)
        .ok_or_else(|| format!("{text} is no time: a number with s, m, h or d belongs there, such as 12h"))
}

/// A file, whatever its name: device and inode.
type Id = (u64, u64);

/// A region that was found.
struct RegionFile {
    path: PathBuf,
    id: Id,
    owner: u32,
    /// bytes that the file takes on its file system
    taken: u64,
    /// processes of this process namespace that have it mapped
    mapped_by: Vec<u32>,
    /// when the file was changed last, Unix seconds
    changed: i64,
    region: Result<Described, OpenError>,
}

impl RegionFile {
    /// What is at `path`, if that is a region. `open`: the name by which it is opened, where that is another one.
    fn at(path: &Path, open: &Path, users: &BTreeMap<Id, Vec<u32>>) -> Option<Self> {
        // Devices and pipes are not even opened.
        let meta = std::fs::metadata(open).ok().filter(std::fs::Metadata::is_file)?;
        let by_link = if open == path { OFlag::O_NOFOLLOW } else { OFlag::empty() };
        let flags = (by_link | OFlag::O_NONBLOCK).bits();
        let opened = File::options().read(true).custom_flags(flags).open(open);
        let region = match opened {
            Ok(file) => describe(file, path, &Owners::AsNamed),
            // Of files that may not be read, a name like a default place's is the only sign.
            Err(_) if !is_default_place(path) => return None,
            Err(source) => Err(OpenError::Io {
                what: "open",
                path: path.to_owned(),
                source,
            }),
        };
        let is_none = |why: &OpenError| {
            let OpenError::Unusable { why, .. } = why else {
                return !is_default_place(path);
            };
            matches!(why, Unusable::NotARegion | Unusable::Truncated { .. })
        };
        // A region can be made in an empty file, but nothing shows that the file was meant for one.
        if meta.len() == 0 || region.as_ref().is_err_and(is_none) {
            return None;
        }
        let id = (meta.dev(), meta.ino());
        Some(Self {
            path: path.to_owned(),
            id,
            owner: meta.uid(),
            taken: meta.blocks() * 512,
            mapped_by: users.get(&id).cloned().unwrap_or_default(),
            changed: meta.mtime().max(meta.ctime()),
            region,
        })
    }

    /// The processes that use it, as far as they are known. One of another process namespace is attached by its number there, and has the
    /// region mapped by its number here: the second one counts.
    fn pids(&self) -> Vec<u64> {
        let here = |pid: &u32| u64::from(*pid);
        let elsewhere: Vec<u64> = self.mapped_by.iter().flat_map(|pid| numbers_elsewhere(*pid)).collect();
        let attached = self.region.iter().flat_map(|region| region.pids.iter().copied());
        let attached = attached.filter(|pid| !elsewhere.contains(pid) || self.mapped_by.iter().any(|own| here(own) == *pid));
        let mut pids: Vec<u64> = self.mapped_by.iter().map(here).chain(attached).collect();
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Its place, and of which user it is, if that is another one.
    fn named(&self) -> String {
        let place = self.path.to_string_lossy().escape_debug().to_string();
        match self.owner == nix::unistd::geteuid().as_raw() {
            true => place,
            false => format!("{place} of user {}", user_name(self.owner)),
        }
    }

    /// Whether it is known which processes use it: it can be read, or this user may look at all processes.
    fn knows_processes(&self) -> bool {
        self.region.is_ok() || nix::unistd::geteuid().is_root()
    }

    /// When it was last used, Unix seconds.
    fn last_used(&self) -> i64 {
        self.region.as_ref().map_or(self.changed, |region| region.last_used_unix_s)
    }

    /// How long no process has used it; zero while one does.
    fn unused_for(&self) -> Duration {
        let seconds = now_s().saturating_sub(self.last_used());
        match self.pids().is_empty() {
            true => Duration::from_secs(u64::try_from(seconds).unwrap_or(0)),
            false => Duration::ZERO,
        }
    }

    /// Why nothing is known of what is in it, in a few words.
    fn unknown(&self) -> Option<String> {
        let why = self.region.as_ref().err()?;
        Some(match why {
            OpenError::AnotherUsers { .. } => "another user's".to_owned(),
            OpenError::Io { source, .. } if source.kind() == std::io::ErrorKind::PermissionDenied => "not readable".to_owned(),
            OpenError::Unusable {
                why: Unusable::Layout { made_by, .. },
                ..
            } => format!("of {made_by}"),
            OpenError::Unusable {
                why: Unusable::Unfinished,
                ..
            } => "unfinished".to_owned(),
            why => why.to_string(),
        })
    }

    fn row(&self) -> [String; 7] {
        let pids = self.pids();
        let used = match pids.is_empty() {
            true if !self.knows_processes() => "unknown".to_owned(),
            true => format!("{} ago", time_text(self.unused_for())),
            false => "now".to_owned(),
        };
        let (items, memory, version) = match &self.region {
            Ok(region) => (
                region.items.to_string(),
                size_text(region.limit_bytes),
                region.version.clone(),
            ),
            Err(_) => ("-".to_owned(), size_text(self.taken), self.unknown().unwrap_or_default()),
        };
        let processes = match pids.as_slice() {
            [] if !self.knows_processes() => "unknown".to_owned(),
            [] => "0".to_owned(),
            pids => {
                let few: Vec<String> = pids.iter().take(PIDS_SHOWN).map(u64::to_string).collect();
                let more = if pids.len() > PIDS_SHOWN { ",…" } else { "" };
                format!("{} ({}{more})", pids.len(), few.join(","))
            }
        };
        let place = self.path.to_string_lossy().escape_debug().to_string();
        [place, user_name(self.owner), memory, items, processes, used, version]
    }

    fn json(&self) -> serde_json::Value {
        let region = self.region.as_ref();
        json!({
            "place": self.path.to_string_lossy(),
            "owner": user_name(self.owner),
            "file_bytes": self.taken,
            "memory_bytes": region.map(|region| region.limit_bytes).ok(),
            "items": region.map(|region| region.items).ok(),
            "pids": self.knows_processes().then(|| self.pids()),
            "last_used_unix_s": self.knows_processes().then(|| self.last_used()),
            "created_unix_s": region.map(|region| region.created_unix_s).ok(),
            "version": region.map(|region| region.version.clone()).ok(),
            "unknown": self.unknown(),
        })
    }
}

/// Process numbers in a row; the JSON form has all.
const PIDS_SHOWN: usize = 4;

const HEAD: [&str; 7] = ["PLACE", "OWNER", "MEMORY", "ITEMS", "PROCESSES", "USED", "VERSION"];

/// Lists regions, or removes those that are unused.
pub(crate) fn run(how: &Regions) -> Result<(), Failure> {
    if let Some(server) = &how.server {
        return commands::say(region_of(server, &how.access)?.display());
    }
    let found = find(&how.places)?;
    if how.prune {
        return prune(how, &found);
    }
    let mut text = String::new();
    if how.json {
        found.iter().for_each(|region| text.push_str(&format!("{}\n", region.json())));
    } else if found.is_empty() {
        text.push_str("no regions\n");
    } else {
        let rows: Vec<[String; 7]> = found.iter().map(RegionFile::row).collect();
        text = table(&rows);
    }
    commands::written(std::io::stdout().write_all(text.as_bytes()))
}

/// The regions in these places; without places, those of this machine.
fn find(places: &[PathBuf]) -> Result<Vec<RegionFile>, Failure> {
    let mapped = mapped();
    let users = mapped.iter().map(|(id, found)| (*id, found.pids.clone())).collect();
    let mut found = Vec::new();
    for place in places {
        let meta = std::fs::metadata(place)
            .map_err(|e| Failure::new(exit::NO_REGION, format_args!("cannot look at {}: {e}", place.display())))?;
        if meta.is_dir() {
            found.extend(files_in(place)?.iter().filter_map(|path| RegionFile::at(path, path, &users)));
        } else {
            found.extend(RegionFile::at(place, place, &users));
        }
    }
    if places.is_empty() {
        let folder = Path::new(SHARED_MEMORY);
        found.extend(files_in(folder)?.iter().filter_map(|path| RegionFile::at(path, path, &users)));
        for (id, mapped) in &mapped {
            if found.iter().all(|other| other.id != *id) {
                found.extend(mapped.region(*id, &users));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// Regions that an error names.
const NAMED_MAX: usize = 4;

/// What there is where a region was looked for in vain: a part of a sentence.
pub(crate) fn others() -> String {
    let found = find(&[]).unwrap_or_default();
    let mut names: Vec<String> = found.iter().take(NAMED_MAX).map(RegionFile::named).collect();
    if found.len() > names.len() {
        names.push("others".to_owned());
    }
    match names.is_empty() {
        true => "this machine has none".to_owned(),
        false => format!(
            "there are: {} (`keyway regions` lists them; --region, --port or KEYWAY_REGION names one; --server ADDRESS asks the server of \
             another user's)",
            names.join(", ")
        ),
    }
}

/// The rows under their head.
fn table(rows: &[[String; 7]]) -> String {
    let mut table = Table::new(&[LEFT; 7], 0);
    table.head(HEAD);
    rows.iter().for_each(|row| table.row(row.clone()));
    table.text(terminal::columns())
}

fn prune(how: &Regions, found: &[RegionFile]) -> Result<(), Failure> {
    let me = nix::unistd::geteuid().as_raw();
    let is_unused =
        |region: &&RegionFile| region.owner == me && region.pids().is_empty() && region.unused_for() >= how.unused_for;
    let unused: Vec<&RegionFile> = found.iter().filter(is_unused).collect();
    let mut out = std::io::stdout();
    if unused.is_empty() {
        let line = format!("no region of this user is unused for {}\n", time_text(how.unused_for));
        return commands::written(out.write_all(line.as_bytes()));
    }
    let rows: Vec<[String; 7]> = unused.iter().map(|region| region.row()).collect();
    commands::written(out.write_all(table(&rows).as_bytes()))?;
    if !how.yes {
        if !std::io::stdin().is_terminal() {
            return Err(Failure::usage(
                "nothing is removed without an answer from a terminal; --yes removes without asking",
            ));
        }
        commands::written(write!(
            out,
            "Remove {} with all their items? [y/N] ",
            counted(unused.len() as u64, "region")
        ))?;
        commands::written(out.flush())?;
        let mut answer = String::new();
        let read = std::io::stdin().lock().read_line(&mut answer);
        if read.is_err() || !["y", "yes"].contains(&answer.trim().to_lowercase().as_str()) {
            return Err(Failure::new(exit::NO, "nothing removed"));
        }
    }
    let mut failed = 0;
    for region in unused {
        let shown = region.path.display();
        match remove_unused(&region.path, region.id, &Owners::AsNamed) {
            Ok(Removal::Removed) => commands::written(writeln!(out, "removed {shown}"))?,
            Ok(Removal::InUse) => commands::written(writeln!(out, "kept {shown}: a process may use it"))?,
            Ok(Removal::Replaced) => commands::written(writeln!(out, "kept {shown}: another file is there now"))?,
            Err(why) => {
                log::error!("{why}");
                failed += 1;
            }
        }
    }
    match failed {
        0 => Ok(()),
        _ => Err(Failure::new(
            exit::SYSTEM,
            format_args!("not removed: {}", counted(failed, "region")),
        )),
    }
}

/// The files of a folder, without those in folders below it.
fn files_in(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = std::fs::read_dir(folder)
        .map_err(|e| Failure::new(exit::NO_REGION, format_args!("cannot list {}: {e}", folder.display())))?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

/// A file that processes have mapped and share.
struct MappedFile {
    /// its name in the mount namespace of such a process, or what the kernel says instead
    path: PathBuf,
    /// a name by which it can be opened, with more rights: one of its mappings (proc_pid_map_files(5))
    mapping: PathBuf,
    pids: Vec<u32>,
}

impl MappedFile {
    /// The region in it, if it is one. In this process's mount namespace its name may lead to another file, which stays what it is: that
    /// one is not what the processes have mapped.
    fn region(&self, id: Id, users: &BTreeMap<Id, Vec<u32>>) -> Option<RegionFile> {
        let id_of = |path: &Path| std::fs::metadata(path).map(|meta| (meta.dev(), meta.ino())).ok();
        // A file of overlayfs or btrfs is of another device for its mappings.
        let (named, mapped) = (id_of(&self.path), id_of(&self.mapping));
        let open = match named {
            Some(found) if found == id || mapped == Some(found) => &self.path,
            _ => &self.mapping,
        };
        RegionFile::at(&self.path, open, users)
    }
}

/// The files that the processes of this namespace have mapped and share, as far as this user may know.
fn mapped() -> BTreeMap<Id, MappedFile> {
    let mut found: BTreeMap<Id, MappedFile> = BTreeMap::new();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let maps = std::fs::read(entry.path().join("maps")).unwrap_or_default();
        for line in String::from_utf8_lossy(&maps).lines() {
            let Some((range, id, path)) = shared_file(line) else {
                continue;
            };
            let mapped = found.entry(id).or_insert_with(|| MappedFile {
                path: PathBuf::from(path),
                mapping: entry.path().join("map_files").join(range),
                pids: Vec::new(),
            });
            if !mapped.pids.contains(&pid) {
                mapped.pids.push(pid);
            }
        }
    }
    found
}

/// The numbers that a process has in namespaces inside this one (proc_pid_status(5), "NSpid").
fn numbers_elsewhere(pid: u32) -> Vec<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    inner_numbers(&status)
}

/// The numbers in inner namespaces by the text of a process's status: the first number is that of this namespace, and left out.
fn inner_numbers(status: &str) -> Vec<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("NSpid:"))
        .unwrap_or_default();
    line.split_whitespace()
        .skip(1)
        .filter_map(|number| number.parse().ok())
        .collect()
}

/// Range, file and name of a line of proc_pid_maps(5), if the mapping is shared.
fn shared_file(line: &str) -> Option<(&str, Id, &str)> {
    let mut rest = line;
    let mut field = || {
        let (field, after) = rest.split_once(' ')?;
        rest = after.trim_start();
        Some(field)
    };
    let (range, mode, _, device, inode) = (field()?, field()?, field()?, field()?, field()?);
    let (major, minor) = device.split_once(':')?;
    let number = |digits| u64::from_str_radix(digits, 16).ok();
    let device = nix::sys::stat::makedev(number(major)?, number(minor)?);
    (mode.ends_with('s') && rest.starts_with('/')).then_some((range, (device, inode.parse().ok()?), rest))
}

/// Whether a file is named as the region of a server that was started without `--region`.
pub(crate) fn user_name(uid: u32) -> String {
    match User::from_uid(Uid::from_raw(uid)) {
        Ok(Some(user)) => user.name,
        _ => uid.to_string(),
    }
}

fn now_s() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

/// A time in its largest whole unit.
fn time_text(time: Duration) -> String {
    let seconds = time.as_secs();
    let units = [(86_400, "d"), (3_600, "h"), (60, "m")];
    match units.into_iter().find(|(unit, _)| seconds >= *unit) {
        Some((unit, name)) => format!("{}{name}", seconds / unit),
        None => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_number_with_a_unit() {
        assert_eq!(parse_time("12h"), Ok(Duration::from_secs(43_200)));
        assert_eq!(parse_time("0s"), Ok(Duration::ZERO));
        for wrong in [
            "",
            "7",
            "d",
            "-1d",
            "1w",
            "1é",
            "99999999999999999999d",
            "999999999999999999d",
        ] {
            assert!(parse_time(wrong).is_err_and(|why| why.contains("12h")), "{wrong}");
        }
        let shown = [59, 60, 7_199, 7_200, 172_800].map(|seconds| time_text(Duration::from_secs(seconds)));
        assert_eq!(shown, ["59s", "1m", "1h", "2h", "2d"]);
    }

    #[test]
    fn a_process_of_another_namespace_counts_once() {
        assert_eq!(inner_numbers("Name:\tx\nNSpid:\t4711\t23\t1\n"), [23, 1]);
        assert_eq!(inner_numbers("NSpid:\t4711\n"), [0; 0]);
        assert_eq!(inner_numbers(""), [0; 0]);
        let region = RegionFile {
            path: PathBuf::from("/dev/shm/x"),
            id: (0, 0),
            owner: 0,
            taken: 0,
            mapped_by: vec![std::process::id()],
            changed: 0,
            region: Err(OpenError::NotAFile { path: PathBuf::new() }),
        };
        assert_eq!(region.pids(), [u64::from(std::process::id())]);
    }

    #[test]
    fn a_servers_record_is_not_taken_for_a_region() {
        assert!(is_default_place(Path::new("/dev/shm/keyway-0-11211")));
        assert!(!is_default_place(Path::new("/dev/shm/keyway-at-0-127.0.0.1:11211")));
    }

    #[test]
    fn only_shared_files_of_a_map_are_looked_at() {
        let line = "7f00-7f10 rw-s 00000000 00:1b 4321                       /dev/shm/keyway-0-11211";
        let id = (nix::sys::stat::makedev(0, 0x1b), 4321);
        assert_eq!(shared_file(line), Some(("7f00-7f10", id, "/dev/shm/keyway-0-11211")));
        let with_blank = "7f00-7f10 r--s 00000000 fe:00 12 /a b (deleted)";
        assert_eq!(shared_file(with_blank).map(|(_, _, path)| path), Some("/a b (deleted)"));
        for other in [
            "7f00-7f10 rw-p 00000000 fe:00 12 /lib/libc.so.6",
            "7f00-7f10 rw-s 00000000 00:00 0 ",
            "7f00-7f10 rw-s 00000000 00:0e 7 anon_inode:[io_uring]",
            "",
        ] {
            assert_eq!(shared_file(other), None, "{other}");
        }
    }
}
