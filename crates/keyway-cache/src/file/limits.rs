//! Limits: what a process may not exceed, found out before memory is allocated.
//!
//! A program does not survive some of the kernel's reactions to exceeding a limit: SIGXFSZ for a file that is too long
//! (setrlimit(2), RLIMIT_FSIZE), and the out-of-memory killer for memory in tmpfs (cgroups(7), memory.max; the machine's
//! own). So these limits are checked first, and the error contains the numbers. What the kernel refuses with an error
//! (space of a file system, huge pages, address space) is left to it; this module adds the numbers.
//!
//! Memory that other processes take between the check and the allocation is not seen. Control groups are searched where
//! systemd and container runtimes mount them, below /sys/fs/cgroup. One that is mounted elsewhere, or hidden, does not
//! limit anything here.

use crate::file::pages::page_size;
use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statfs::{Statfs, TMPFS_MAGIC, XFS_SUPER_MAGIC, fstatfs};
use std::fmt;
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::path::{Path, PathBuf};

/// Bytes of a tmpfs that a region leaves free, for small files beside it: those by which a server is found, and a file is at least a page.
pub(crate) const LEFT_FREE: u64 = 64 << 10;

/// What forbids a region its memory. All numbers are bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are what the messages name")]
#[non_exhaustive]
pub enum Limit {
    /// the memory limit of this process's control group, or of one above it; `file` is where the limit is set
    ControlGroup {
        file: PathBuf,
        wanted: u64,
        limit: u64,
        used: u64,
    },
    /// the machine's memory
    Memory { wanted: u64, available: u64, total: u64 },
    /// RLIMIT_FSIZE
    FileSize { wanted: u64, limit: u64 },
    /// RLIMIT_AS
    AddressSpace { wanted: u64, limit: u64, used: u64 },
}

impl Limit {
    /// The limit that an error is about, or the error itself.
    pub(crate) fn of(error: Error) -> Result<Self, Error> {
        error.downcast()
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ControlGroup {
                file,
                wanted,
                limit,
                used,
            } => write!(
                f,
                "{} more of memory are not available: {} allows {}, of which {} are in use; request less memory, or raise that limit",
                Mib(*wanted),
                file.display(),
                Mib(*limit),
                Mib(*used)
            ),
            Self::Memory {
                wanted,
                available,
                total,
            } => write!(
                f,
                "{} more of memory are not available: of the machine's {} (swap included) {} are available; request less memory",
                Mib(*wanted),
                Mib(*total),
                Mib(*available)
            ),
            Self::FileSize { wanted, limit } => write!(
                f,
                "its file needs a length of {} (mostly holes), and this process may write files of {} (RLIMIT_FSIZE); request less memory, or \
                 raise `ulimit -f`",
                Mib(*wanted),
                Mib(*limit)
            ),
            Self::AddressSpace { wanted, limit, used } => write!(
                f,
                "its mapping takes {} of address space, including space to grow, and this process may have {}, of which {} are in use \
                 (RLIMIT_AS); raise `ulimit -v`: a region may grow to 16 times its first size, and to 1 GiB at least",
                Mib(*wanted),
                Mib(*limit),
                Mib(*used)
            ),
        }
    }
}

impl std::error::Error for Limit {}

impl From<Limit> for Error {
    fn from(limit: Limit) -> Self {
        let kind = match limit {
            Limit::FileSize { .. } => ErrorKind::FileTooLarge,
            _ => ErrorKind::OutOfMemory,
        };
        Self::new(kind, limit)
    }
}

/// From so many bytes on, parts of a MiB are left out.
const PARTS_COUNT: u64 = 64 << 20;

/// Bytes, printed for people.
pub(crate) struct Mib(pub(crate) u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            // A part of a MiB counts where there are few: otherwise what is needed and what there is may look the same.
            n if n >= PARTS_COUNT || n % (1 << 20) == 0 => write!(f, "{} MiB", n >> 20),
            n => write!(f, "{} KiB", n >> 10),
        }
    }
}

/// Checks whether a file of this process may have this length.
pub(crate) fn file_size(wanted: u64) -> Result<(), Limit> {
    match getrlimit(Resource::RLIMIT_FSIZE) {
        Ok((limit, _)) if wanted > limit => Err(Limit::FileSize { wanted, limit }),
        _ => Ok(()),
    }
}

/// The error for a refused mapping of this many bytes.
pub(crate) fn not_mapped(error: Error, wanted: usize) -> Error {
    match getrlimit(Resource::RLIMIT_AS) {
        Ok((limit, _)) if error.kind() == ErrorKind::OutOfMemory && limit != nix::libc::RLIM_INFINITY => Limit::AddressSpace {
            wanted: wanted as u64,
            limit,
            used: address_space(),
        }
        .into(),
        _ => error,
    }
}

/// Bytes of address space that this process uses (proc_pid_statm(5)); 0 if that cannot be read.
fn address_space() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages: u64 = statm.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
    pages * page_size() as u64
}

/// Of this many bytes more for this file, how many the file system has only by giving up [`LEFT_FREE`].
pub(crate) fn beyond(file: &File, wanted: u64) -> u64 {
    match fstatfs(file).ok().and_then(|fs| free(&fs)) {
        Some((free, left)) if wanted <= free => wanted.saturating_sub(free.saturating_sub(left)),
        _ => 0,
    }
}

/// Bytes that a file system has free, and those of them that a region leaves free. `None`: it has no limit of its own, or is an XFS:
/// that frees the blocks of removed files in the background, counts them as used until then, and waits for them only where it would
/// refuse to allocate (and it refuses before it allocates a part).
fn free(fs: &Statfs) -> Option<(u64, u64)> {
    let free = fs.blocks_free().saturating_mul(u64::try_from(fs.block_size()).unwrap_or(0));
    let left = if fs.filesystem_type() == TMPFS_MAGIC { LEFT_FREE } else { 0 };
    (fs.blocks() != 0 && fs.filesystem_type() != XFS_SUPER_MAGIC).then_some((free, left))
}

/// Checks whether this file can get this many more bytes, as far as that can be known before an attempt.
pub(crate) fn memory(file: &File, wanted: u64) -> Result<(), Error> {
    let Ok(fs) = fstatfs(file) else { return Ok(()) };
    if let Some((free, left)) = free(&fs).filter(|(free, left)| wanted > free.saturating_sub(*left)) {
        let kept = if left == 0 {
            String::new()
        } else {
            format!(", of which {} stay free", Mib(left))
        };
        let text = format!("it has {} free{kept}, and {} are needed", Mib(free), Mib(wanted));
        return Err(Error::new(ErrorKind::StorageFull, text));
    }
    if fs.filesystem_type() != TMPFS_MAGIC {
        return Ok(());
    }
    Ok(Machine::default().memory(wanted)?)
}

/// The folders in which the kernel describes the machine.
struct Machine<'a> {
    proc: &'a Path,
    cgroup: &'a Path,
}

impl Default for Machine<'_> {
    fn default() -> Self {
        Self {
            proc: Path::new("/proc"),
            cgroup: Path::new("/sys/fs/cgroup"),
        }
    }
}

/// The names of one version of control groups (cgroups(7); Documentation/admin-guide/cgroup-v1/memory.rst, cgroup-v2.rst).
struct Names {
    limit: &'static str,
    used: &'static str,
    /// in memory.stat: memory in use that can be reclaimed
    reclaimable: [&'static str; 2],
}

const V1: Names = Names {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    reclaimable: ["total_inactive_file", "total_active_file"],
};
const V2: Names = Names {
    limit: "memory.max",
    used: "memory.current",
    reclaimable: ["inactive_file", "active_file"],
};

impl Machine<'_> {
    /// Checks whether there is this much memory for this process.
    fn memory(&self, wanted: u64) -> Result<(), Limit> {
        let groups = std::fs::read_to_string(self.proc.join("self/cgroup")).unwrap_or_default();
        for line in groups.lines() {
            let mut parts = line.splitn(3, ':').skip(1);
            let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
                continue;
            };
            if controllers.split(',').any(|name| name == "memory") {
                self.group(&self.cgroup.join("memory"), path, &V1, wanted)?;
            } else if controllers.is_empty() {
                self.group(self.cgroup, path, &V2, wanted)?;
                self.group(&self.cgroup.join("unified"), path, &V2, wanted)?;
            }
        }
        let info = std::fs::read_to_string(self.proc.join("meminfo")).unwrap_or_default();
        let bytes = |name: &str| field(&info, name).map(|kib| kib * 1024);
        let swap = |name: &str| bytes(name).unwrap_or(0);
        match (bytes("MemTotal:"), bytes("MemAvailable:")) {
            (Some(total), Some(available)) if wanted > available + swap("SwapFree:") => Err(Limit::Memory {
                wanted,
                available: available + swap("SwapFree:"),
                total: total + swap("SwapTotal:"),
            }),
            _ => Ok(()),
        }
    }

    /// Checks whether a control group and those above it have this much left. In a container the group's own path may be
    /// absent: what is mounted is then the group itself.
    fn group(&self, mount: &Path, path: &str, names: &Names, wanted: u64) -> Result<(), Limit> {
        let mut least: Option<(u64, Limit)> = None;
        for group in Path::new(path.trim_start_matches('/')).ancestors() {
            let folder = mount.join(group);
            let number = |name: &str| -> Option<u64> { std::fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok() };
            // "max" is not a number, and not a limit.
            let (Some(limit), Some(used)) = (number(names.limit), number(names.used)) else {
                continue;
            };
            let stat = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
            let reclaimable: u64 = names.reclaimable.iter().filter_map(|name| field(&stat, name)).sum();
            let used = used.saturating_sub(reclaimable);
            let room = limit.saturating_sub(used);
            if wanted > room && least.as_ref().is_none_or(|(least, _)| room < *least) {
                let file = folder.join(names.limit);
                least = Some((
                    room,
                    Limit::ControlGroup {
                        file,
                        wanted,
                        limit,
                        used,
                    },
                ));
            }
        }
        least.map_or(Ok(()), |(_, limit)| Err(limit))
    }
}

/// The number after a name at the beginning of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    let mut words = text
        .lines()
        .map(str::split_ascii_whitespace)
        .find_map(|mut words| (words.next() == Some(name)).then_some(words))?;
    words.next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder that stands for /proc and /sys/fs/cgroup, removed at the end.
    struct Played(PathBuf);

    impl Played {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let folder = std::env::temp_dir().join(format!("keyway-test-{}-limits-{name}", std::process::id()));
            for (path, text) in files {
                let path = folder.join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            Self(folder)
        }

        fn memory(&self, mib: u64) -> Result<(), Limit> {
            let (proc, cgroup) = (self.0.join("proc"), self.0.join("cgroup"));
            let machine = Machine {
                proc: &proc,
                cgroup: &cgroup,
            };
            machine.memory(mib << 20)
        }
    }

    impl Drop for Played {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const ROOMY: (&str, &str) = (
        "proc/meminfo",
        "MemTotal: 16777216 kB\nMemFree: 1 kB\nMemAvailable: 8388608 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
    );

    #[test]
    fn the_least_of_the_groups_above_decides() {
        // 100 MiB in use, of which 36 are page cache.
        let stat = "anon 1\ninactive_file 33554432\nactive_file 4194304\n";
        let played = Played::new(
            "v2",
            &[
                ROOMY,
                ("proc/self/cgroup", "0::/a/b\n"),
                ("cgroup/a/b/memory.max", "max\n"),
                ("cgroup/a/b/memory.current", "104857600\n"),
                ("cgroup/a/memory.max", "268435456\n"),
                ("cgroup/a/memory.current", "104857600\n"),
                ("cgroup/a/memory.stat", stat),
            ],
        );
        assert_eq!(played.memory(192), Ok(()));
        let why = played.memory(193).unwrap_err();
        let text = why.to_string();
        assert!(
            text.contains("cgroup/a/memory.max allows 256 MiB, of which 64 MiB are in use"),
            "{text}"
        );
        assert!(text.contains("193 MiB more"), "{text}");
    }

    #[test]
    fn version_1_is_asked_where_the_memory_controller_is() {
        let played = Played::new(
            "v1",
            &[
                ROOMY,
                ("proc/self/cgroup", "4:memory,hugetlb:/one/two\n3:cpu:/\n0::/\n"),
                ("cgroup/memory/one/two/memory.limit_in_bytes", "67108864\n"),
                ("cgroup/memory/one/two/memory.usage_in_bytes", "0\n"),
                ("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
                ("cgroup/memory/memory.usage_in_bytes", "1000000000\n"),
            ],
        );
        assert_eq!(played.memory(64), Ok(()));
        assert!(matches!(
            played.memory(65),
            Err(Limit::ControlGroup { limit: 67_108_864, .. })
        ));
    }

    /// In a container the path in /proc is that of the host, and what is mounted is the container's group.
    #[test]
    fn a_group_that_is_mounted_itself_counts() {
        let played = Played::new(
            "container",
            &[
                ROOMY,
                ("proc/self/cgroup", "0::/system.slice/container-1\n"),
                ("cgroup/memory.max", "1048576\n"),
                ("cgroup/memory.current", "2097152\n"),
            ],
        );
        assert!(
            matches!(played.memory(1), Err(Limit::ControlGroup { .. })),
            "more in use than allowed: nothing left"
        );
    }

    #[test]
    fn the_machines_memory_counts_with_its_swap() {
        let meminfo = "MemTotal: 1048576 kB\nMemAvailable: 524288 kB\nSwapTotal: 262144 kB\nSwapFree: 131072 kB\n";
        let played = Played::new("machine", &[("proc/meminfo", meminfo)]);
        assert_eq!(played.memory(640), Ok(()));
        let text = played.memory(641).unwrap_err().to_string();
        assert!(text.contains("1280 MiB (swap included) 640 MiB are available"), "{text}");
    }

    #[test]
    fn what_cannot_be_seen_forbids_nothing() {
        assert_eq!(Played::new("hidden", &[]).memory(1 << 40), Ok(()));
    }

    #[test]
    fn an_error_carries_its_limit() {
        let limit = Limit::FileSize { wanted: 2, limit: 1 };
        assert_eq!(Limit::of(Error::from(limit.clone())).unwrap(), limit);
        assert!(Limit::of(Error::from(ErrorKind::StorageFull)).is_err());
    }
}
