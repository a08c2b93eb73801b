//! What the files of /proc and /sys say of the machine and of processes (proc(5), sysfs(5)).

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use super::{Machine, Mapped, Process};

/// Where the settings of logind are: of the files of one name the first counts, and of a setting the last.
const LOGIND: [&str; 4] = ["etc/systemd", "run/systemd", "usr/local/lib/systemd", "usr/lib/systemd"];

/// Whether logind runs and removes what users leave in /dev/shm: it does so unless its configuration forbids it.
fn removes_ipc(root: &Path) -> bool {
    if !root.join("run/systemd/users").is_dir() {
        return false;
    }
    let mut parts = BTreeMap::new();
    for folder in LOGIND.iter().rev() {
        let files = fs::read_dir(root.join(folder).join("logind.conf.d"));
        let files = files.into_iter().flatten().flatten().map(|file| file.path());
        let files = files.filter(|path| path.extension().is_some_and(|end| end == "conf"));
        parts.extend(files.map(|path| (path.file_name().map(ToOwned::to_owned), path)));
    }
    let main = LOGIND
        .map(|folder| root.join(folder).join("logind.conf"))
        .into_iter()
        .find(|path| path.is_file());
    let texts = main
        .into_iter()
        .chain(parts.into_values())
        .filter_map(|path| fs::read_to_string(path).ok());
    let mut removes = true;
    for text in texts {
        for line in text.lines().filter_map(|line| line.trim().strip_prefix("RemoveIPC")) {
            if let Some(value) = line.trim_start().strip_prefix('=') {
                // An empty value is the default again (systemd.syntax(7)).
                removes = !["no", "n", "false", "f", "off", "0"].contains(&value.trim().to_ascii_lowercase().as_str());
            }
        }
    }
    removes
}

impl Machine {
    pub(super) fn read(root: &Path) -> Self {
        let text = |path: &str| fs::read_to_string(root.join(path)).ok();
        let info = text("proc/meminfo").unwrap_or_default();
        let bytes = |name: &str| field(&info, name).map(|kib| kib.saturating_mul(1024));
        Self {
            memory: bytes("MemTotal:"),
            available: bytes("MemAvailable:"),
            swap_free: bytes("SwapFree:").unwrap_or(0),
            commit_limit: bytes("CommitLimit:"),
            committed: bytes("Committed_AS:"),
            commits_strictly: text("proc/sys/vm/overcommit_memory").is_some_and(|mode| mode.trim() == "2"),
            clocksource: text("sys/devices/system/clocksource/clocksource0/current_clocksource")
                .map(|name| name.trim().to_owned()),
            receive_max: text("proc/sys/net/core/rmem_max").and_then(|max| max.trim().parse().ok()),
            removes_ipc: removes_ipc(root),
            lingering: fs::read_dir(root.join("var/lib/systemd/linger"))
                .into_iter()
                .flatten()
                .flatten()
                .map(|file| file.file_name().to_string_lossy().into_owned())
                .collect(),
        }
    }
}

impl Process {
    /// Reads what `proc` has of it. `region`: the inode of the region's file.
    pub(super) fn read(proc: &Path, pid: u64, region: u64) -> Option<Self> {
        let folder = proc.join(pid.to_string());
        let text = |name: &str| fs::read_to_string(folder.join(name)).ok();
        let name = text("comm")?;
        let (status, limits) = (text("status").unwrap_or_default(), text("limits").unwrap_or_default());
        let arguments = fs::read(folder.join("cmdline")).unwrap_or_default();
        let locks = arguments
            .split(|byte| *byte == 0)
            .any(|word| word == b"-k" || word == b"--lock-memory");
        let locked = field(&status, "VmLck:").zip(limit(&limits, "Max locked memory"));
        let open = fs::read_dir(folder.join("fd"))
            .ok()
            .map(|files| files.flatten().count() as u64);
        Some(Self {
            // A process chooses its name: it does not write to this terminal.
            name: name.trim_end_matches('\n').escape_default().to_string(),
            is_stopped: is_stopped(&folder),
            files: open.zip(limit(&limits, "Max open files")),
            locks,
            locked: locked.map(|(kib, most)| (kib.saturating_mul(1024), most)),
            replaced: replaced(&folder),
            mapped: mapped(&folder, region),
            udp: udp(&folder),
        })
    }
}

/// UDP sockets of a process, and the datagrams that were dropped at them since each was made.
pub(super) fn udp(folder: &Path) -> Option<(usize, u64)> {
    let files = fs::read_dir(folder.join("fd")).ok()?.flatten();
    let links = files.filter_map(|file| fs::read_link(file.path()).ok());
    let sockets = links.filter_map(|link| {
        let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse();
        inode.ok()
    });
    let tables = ["net/udp", "net/udp6"].map(|name| fs::read_to_string(folder.join(name)).unwrap_or_default());
    Some(udp_dropped(&sockets.collect(), &tables))
}

/// How many of these UDP sockets (inodes) are in these tables, and the datagrams that were dropped at them because their buffers were full
/// (proc_pid_net(5), udp).
fn udp_dropped(sockets: &BTreeSet<u64>, tables: &[String]) -> (usize, u64) {
    let mut all = (0, 0);
    for line in tables.iter().flat_map(|table| table.lines().skip(1)) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number = |word: Option<&&str>| word.and_then(|word| word.parse::<u64>().ok());
        if number(words.get(9)).is_some_and(|inode| sockets.contains(&inode)) {
            all.0 += 1;
            all.1 += number(words.last()).unwrap_or(0);
        }
    }
    all
}

/// Whether a thread is stopped (proc_pid_stat(5), state).
fn is_stopped(folder: &Path) -> bool {
    let tasks = fs::read_dir(folder.join("task")).into_iter().flatten().flatten();
    tasks
        .filter_map(|task| fs::read_to_string(task.path().join("stat")).ok())
        .any(|stat| {
            // The name before it may contain anything.
            let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
            matches!(state, Some('T' | 't'))
        })
}

/// What a process has mapped of the file with this inode. `None`: nothing, or this user may not know.
pub(super) fn mapped(folder: &Path, inode: u64) -> Option<Mapped> {
    parse_mapped(&fs::read_to_string(folder.join("smaps")).ok()?, inode)
}

fn parse_mapped(smaps: &str, inode: u64) -> Option<Mapped> {
    let (mut all, mut is_found, mut is_here) = (Mapped::default(), false, false);
    for line in smaps.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [name, value, ..] = words[..] else { continue };
        if !name.ends_with(':') {
            // The line of a mapping: range, mode, offset, device, inode, name.
            is_here = words.get(4).and_then(|word| word.parse().ok()) == Some(inode);
            is_found |= is_here;
            continue;
        }
        let bytes = value.parse::<u64>().unwrap_or(0).saturating_mul(1024);
        let sum = match name {
            "Rss:" => &mut all.resident,
            "ShmemPmdMapped:" | "FilePmdMapped:" | "Shared_Hugetlb:" | "Private_Hugetlb:" => &mut all.huge,
            "Swap:" => &mut all.swapped,
            _ => continue,
        };
        if is_here {
            *sum = sum.saturating_add(bytes);
        }
    }
    is_found.then_some(all)
}

/// Files of a process's program and of Keyway's libraries that have no name any more.
fn replaced(folder: &Path) -> Vec<String> {
    const GONE: &str = " (deleted)";
    let mut found = BTreeSet::new();
    let program = fs::read_link(folder.join("exe")).ok();
    let program = program.map(|path| path.to_string_lossy().into_owned());
    if let Some(name) = program.as_deref().and_then(|path| path.strip_suffix(GONE)) {
        found.insert(name.to_owned());
    }
    for line in fs::read_to_string(folder.join("maps")).unwrap_or_default().lines() {
        let (mode, path) = (line.split_whitespace().nth(1), line.find('/').and_then(|at| line.get(at..)));
        let name = path.and_then(|path| path.strip_suffix(GONE)).unwrap_or_default();
        let is_ours = ["keyway", "libmemcached"]
            .iter()
            .any(|part| name.rsplit('/').next().unwrap_or("").contains(part));
        if is_ours && mode.is_some_and(|mode| mode.contains('x')) {
            found.insert(name.to_owned());
        }
    }
    found.into_iter().map(|name| name.escape_default().to_string()).collect()
}

/// The number after a name at the begin of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

/// A soft limit (proc_pid_limits(5)).
fn limit(limits: &str, name: &str) -> Option<u64> {
    let line = limits.lines().find_map(|line| line.strip_prefix(name))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_are_counted_of_the_sockets_of_a_process() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
                     1: 0100007F:2BCB 00000000:0000 07 0:0 00:0 0 0 0 11 2 0 5\n 2: 0100007F:2BCC 00000000:0000 07 0:0 00:0 0 0 0 12 2 0 7\n";
        // As in the kernel: queue, timer and the like are one word each.
        let table = table.replace("0:0 00:0 0 0 0", "00000000:00000000 00:00000000 00000000 0 0");
        assert_eq!(udp_dropped(&BTreeSet::from([12, 13]), &[table]), (1, 7));
    }

    #[test]
    fn a_mapping_is_found_by_its_inode() {
        let smaps = "7f00-7f10 rw-s 00000000 00:19 77 /dev/shm/a b\nRss: 100 kB\nShmemPmdMapped: 64 kB\nSwap: 8 kB\n\
                     7f10-7f20 rw-s 00000000 00:19 78 /dev/shm/other\nRss: 9 kB\nSwap: 9 kB\n\
                     7f20-7f30 r--s 00000000 00:19 77 /dev/shm/a b\nRss: 20 kB\nSwap: 0 kB\nVmFlags: rd sh\n";
        let wanted = Mapped {
            resident: 120 << 10,
            huge: 64 << 10,
            swapped: 8 << 10,
        };
        assert_eq!(parse_mapped(smaps, 77), Some(wanted));
        assert_eq!(parse_mapped(smaps, 79), None);
    }

    #[test]
    fn limits_are_soft_ones_and_may_be_none() {
        let limits = "Limit  Soft Limit  Hard Limit Units\nMax open files            64    4096  files\nMax locked memory  unlimited unlimited bytes\n";
        assert_eq!(limit(limits, "Max open files"), Some(64));
        assert_eq!(limit(limits, "Max locked memory"), Some(u64::MAX));
        assert_eq!(limit(limits, "Max cpu time"), None);
    }

    #[test]
    fn logind_removes_unless_the_setting_that_counts_says_no() {
        let root = harness::Scratch::new();
        let write = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        assert!(!removes_ipc(root.path()), "no logind");
        fs::create_dir_all(root.join("run/systemd/users")).unwrap();
        assert!(removes_ipc(root.path()), "its default");
        write("usr/lib/systemd/logind.conf", "[Login]\nRemoveIPC=no\n");
        assert!(!removes_ipc(root.path()));
        write("etc/systemd/logind.conf", "[Login]\n#RemoveIPC=no\n");
        assert!(removes_ipc(root.path()), "it hides the other one");
        write("usr/lib/systemd/logind.conf.d/10-a.conf", "[Login]\n RemoveIPC = False\n");
        assert!(!removes_ipc(root.path()));
        write("etc/systemd/logind.conf.d/10-a.conf", "[Login]\n");
        assert!(removes_ipc(root.path()), "a file of the same name hides it");
        write(
            "run/systemd/logind.conf.d/20-b.conf",
            "[Login]\nRemoveIPC=off\nRemoveIPC=yes\n",
        );
        assert!(removes_ipc(root.path()), "the last one counts");
    }
}
