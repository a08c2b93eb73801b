//! What the kernel says of itself and of this process in proc(5), if it is the kernel that says it.
//!
//! A container may have another file, or another file system, mounted over any file of /proc: systemd-nspawn gives each container
//! a boot id of its own. What is concluded from such a file is wrong. So a file counts only if it is on the kernel's own file
//! system, and no mount of its own.
//!
//! # Safety
//!
//! The only `unsafe` here asks the kernel about a descriptor (statx(2)), with a place for the answer.
#![allow(unsafe_code, reason = "statx(2); contract above")]

use nix::libc;
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs, statfs};
use std::fs::File;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The file system of namespaces (linux/magic.h, NSFS_MAGIC).
const NSFS_MAGIC: i64 = 0x6e73_6673;

/// The identity of this boot (`random(4)`, "boot_id"). `None`: the kernel does not say it here.
pub(crate) fn boot_id() -> Option<[u64; 2]> {
    let text = text(Path::new("/proc/sys/kernel/random/boot_id"))?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let half = |r| digits.get(r).and_then(|d| u64::from_str_radix(d, 16).ok());
    Some([half(0..16)?, half(16..32)?]).filter(|id| *id != [0; 2])
}

/// The inode of a namespace of this process. It is the namespace's, whatever process namespace /proc shows.
pub(crate) fn namespace(name: &str) -> Option<u64> {
    let path = Path::new("/proc/self/ns").join(name);
    let is_kernels = statfs(&path).is_ok_and(|fs| fs.filesystem_type().0 == NSFS_MAGIC);
    is_kernels.then(|| std::fs::metadata(&path).ok().map(|meta| meta.ino()))?
}

/// The offsets of this process's time namespace (`time_namespaces(7)`).
pub(crate) fn time_offsets() -> Option<String> {
    text(Path::new("/proc/self/timens_offsets"))
}

/// When a process started, in the clock ticks of proc_pid_stat(5), as seen from this process's time namespace; `number` is in this
/// process's own process namespace.
pub(crate) fn started(number: i32) -> Option<u64> {
    // Another namespace's /proc numbers processes otherwise: it shows this process with a number for each namespace down to its own.
    let own = text(Path::new("/proc/self/status"))?;
    let numbers = own.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    if numbers.split_whitespace().count() != 1 {
        return None;
    }
    // Field 22; the second field is a name in parentheses, which may contain anything.
    let text = text(&Path::new("/proc").join(number.to_string()).join("stat"))?;
    let (_, fields) = text.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(19)?.parse().ok()
}

fn text(path: &Path) -> Option<String> {
    let mut file = File::open(path).ok()?;
    let is_kernels = fstatfs(&file).is_ok_and(|fs| fs.filesystem_type() == PROC_SUPER_MAGIC) && !is_mounted_itself(&file)?;
    let mut text = String::new();
    (is_kernels && file.read_to_string(&mut text).is_ok()).then_some(text)
}

/// Whether a file is the root of a mount, as one is that was mounted over another (`statx(2)`, STATX_ATTR_MOUNT_ROOT, since Linux 5.8;
/// before, no file is seen as one). `None`: it cannot be asked.
fn is_mounted_itself(file: &File) -> Option<bool> {
    const MOUNT_ROOT: u64 = 0x2000;
    // SAFETY: the structure is plain numbers, for which zeros are valid.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor, an empty C string, and a place for the answer.
    let done = unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, 0, &raw mut found) };
    (done == 0).then_some(found.stx_attributes & MOUNT_ROOT != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::mount::{MsFlags, mount};
    use nix::sched::{CloneFlags, unshare};

    #[test]
    fn what_the_kernel_says_is_believed() {
        assert!(boot_id().is_some() && boot_id() == boot_id());
        assert!(namespace("pid").is_some() && namespace("nonsense").is_none());
        let pid = nix::unistd::getpid().as_raw();
        assert!(started(pid).is_some_and(|ticks| ticks > 0));
        assert!(started(1).is_none_or(|of_init| of_init <= started(pid).unwrap()));
    }

    /// The enemy: a container's own boot id, from a file of any file system.
    #[test]
    fn a_file_that_was_mounted_over_the_kernels_is_not_believed() {
        // In a thread of its own, which has a mount namespace of its own.
        std::thread::spawn(|| {
            if let Err(error) = unshare(CloneFlags::CLONE_NEWNS) {
                let why = format!("SKIP mounts over /proc: needs root, for a mount namespace ({error})");
                assert!(std::env::var_os("KEYWAY_TESTS_REQUIRE_ALL").is_none(), "{why}");
                let _ = std::io::Write::write_fmt(&mut std::io::stderr(), format_args!("{why}\n"));
                return;
            }
            let none = None::<&str>;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            let fake = std::env::temp_dir().join(format!("keyway-boot-id-{}", std::process::id()));
            std::fs::write(&fake, "01234567-89ab-cdef-0123-456789abcdef\n").unwrap();
            let boot_id_file = "/proc/sys/kernel/random/boot_id";
            // A file of another file system, and one of the kernel's own that says something else each time.
            for over in [fake.as_path(), Path::new("/proc/sys/kernel/random/uuid")] {
                mount(Some(over), boot_id_file, none, MsFlags::MS_BIND, none).unwrap();
                assert!(std::fs::read_to_string(boot_id_file).is_ok_and(|text| text.len() == 37));
                assert_eq!(boot_id(), None, "{}", over.display());
                nix::mount::umount(boot_id_file).unwrap();
                assert!(boot_id().is_some());
            }
            std::fs::remove_file(fake).unwrap();
            // A whole /proc that is not the kernel's.
            mount(Some("tmpfs"), "/proc", Some("tmpfs"), MsFlags::empty(), none).unwrap();
            std::fs::create_dir_all("/proc/sys/kernel/random").unwrap();
            std::fs::create_dir_all("/proc/self/ns").unwrap();
            std::fs::write(boot_id_file, "01234567-89ab-cdef-0123-456789abcdef\n").unwrap();
            std::fs::write("/proc/self/ns/pid", "").unwrap();
            assert_eq!((boot_id(), namespace("pid"), started(1)), (None, None, None));
        })
        .join()
        .unwrap();
    }
}
