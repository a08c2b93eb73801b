//! The file systems, mounted in a mount namespace of the calling thread's own: what it starts sees them, nothing else does, and
//! they are gone with it.

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Size of those that have one, bytes as `mount(8)` and truncate(1) write them.
const SIZE: &str = "256m";
/// Huge pages of 2 MiB that the regions of three cells and their copies need at most.
const HUGE_PAGES: u64 = 256;
/// Bytes that a region on huge pages takes besides: each of its tables begins on a page.
const HUGE_TABLES: u64 = 14 << 20;

/// Where regions lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    /// in memory
    Tmpfs,
    /// on a disk, here a file
    Ext4,
    /// as a container's own file system is: mappings hold the file below
    Overlayfs,
    /// a daemon's, as a rootless container's own file system is (fuse-overlayfs)
    Fuse,
    /// huge pages
    Hugetlbfs,
    /// on a disk that copies on write
    Btrfs,
    /// on a disk whose files can share blocks
    Xfs,
}

impl FileSystem {
    /// Those on which all conditions are tried, with their names.
    pub const ALL: [(Self, &'static str); 5] = [
        (Self::Tmpfs, "tmpfs"),
        (Self::Ext4, "ext4"),
        (Self::Overlayfs, "overlayfs"),
        (Self::Fuse, "fuse"),
        (Self::Hugetlbfs, "hugetlbfs"),
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        let others = [(Self::Btrfs, "btrfs"), (Self::Xfs, "xfs")];
        let mut all = Self::ALL.iter().chain(&others);
        all.find(|(f, _)| *f == self).map_or("", |(_, name)| name)
    }

    /// Bytes that a region has to have more than elsewhere.
    pub fn memory_besides(self) -> u64 {
        match self {
            Self::Hugetlbfs => HUGE_TABLES,
            _ => 0,
        }
    }

    /// Mounts it below `base`, which is a directory in memory.
    ///
    /// # Errors
    ///
    /// What this machine lacks.
    pub fn mount(self, base: &Path) -> Result<Mounted, String> {
        let below = |name: &str| {
            let path = base.join(format!("{}-{name}", self.name()));
            std::fs::create_dir(&path).map(|()| path).map_err(|e| e.to_string())
        };
        let at = below("mounted")?;
        let mut mounted = Mounted {
            at: at.clone(),
            backing: None,
        };
        match self {
            Self::Tmpfs => do_mount("tmpfs", &at, "tmpfs", &format!("size={SIZE}"))?,
            Self::Ext4 | Self::Btrfs | Self::Xfs => {
                let image = base.join(format!("{}-image", self.name()));
                // XFS is not made any smaller.
                let size = if self == Self::Xfs { "320m" } else { SIZE };
                let (program, options): (_, &[&str]) = match self {
                    Self::Btrfs => ("mkfs.btrfs", &["-q", "-f", "-m", "single"]),
                    Self::Xfs => ("mkfs.xfs", &["-q", "-f", "-m", "reflink=1"]),
                    _ => ("mkfs.ext4", &["-q", "-F"]),
                };
                run("truncate", &["-s", size], &[&image])?;
                run(program, options, &[&image])?;
                run("mount", &["-o", "loop"], &[&image, &at])?;
            }
            Self::Overlayfs | Self::Fuse => {
                let backing = below("backing")?;
                do_mount("tmpfs", &backing, "tmpfs", &format!("size={SIZE}"))?;
                mounted.backing = Some(backing.clone());
                let mut options = Vec::new();
                for (option, name) in [("lowerdir", "lower"), ("upperdir", "upper"), ("workdir", "work")] {
                    let path = backing.join(name);
                    std::fs::create_dir(&path).map_err(|e| e.to_string())?;
                    options.push(format!("{option}={}", path.display()));
                }
                let options = options.join(",");
                if self == Self::Overlayfs {
                    do_mount("overlay", &at, "overlay", &options)?;
                } else {
                    run("fuse-overlayfs", &["-o", &options], &[&at])?;
                }
            }
            Self::Hugetlbfs => do_mount("hugetlbfs", &at, "hugetlbfs", "pagesize=2M")?,
        }
        Ok(mounted)
    }
}

/// A mounted file system, unmounted with the value.
#[derive(Debug)]
pub struct Mounted {
    at: PathBuf,
    /// what it lies on
    backing: Option<PathBuf>,
}

impl Mounted {
    /// Where regions can be made.
    pub fn path(&self) -> &Path {
        &self.at
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        for path in [Some(&self.at), self.backing.as_ref()].into_iter().flatten() {
            let _ = umount2(path, MntFlags::MNT_DETACH);
        }
    }
}

fn do_mount(source: &str, at: &Path, kind: &str, options: &str) -> Result<(), String> {
    mount(Some(source), at, Some(kind), MsFlags::empty(), Some(options)).map_err(|e| format!("{kind} cannot be mounted: {e}"))
}

fn run(program: &str, options: &[&str], paths: &[&Path]) -> Result<(), String> {
    let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
    let output = Command::new(program).env("PATH", path).args(options).args(paths).output();
    match output {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(e) => Err(format!("{program}: {e}")),
    }
}

/// Huge pages that the kernel may make of ordinary memory as they are asked for; given back with the value.
#[derive(Debug)]
pub struct HugePages {
    before: String,
}

/// Where the kernel gets their number.
const OVERCOMMIT: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_overcommit_hugepages";

impl HugePages {
    /// Lets there be as many as the cells need.
    ///
    /// # Errors
    ///
    /// The kernel has none of 2 MiB, or this process may not say so.
    pub fn allow() -> Result<Self, String> {
        let text = |e: std::io::Error| format!("{OVERCOMMIT}: {e}");
        let before = std::fs::read_to_string(OVERCOMMIT).map_err(text)?;
        let has: u64 = before.trim().parse().unwrap_or(0);
        std::fs::write(OVERCOMMIT, has.max(HUGE_PAGES).to_string()).map_err(text)?;
        Ok(Self { before })
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = std::fs::write(OVERCOMMIT, &self.before);
    }
}
