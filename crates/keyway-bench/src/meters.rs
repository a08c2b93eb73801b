//! What the machine counts by itself, where it does and lets us read it: instructions outside the kernel (perf_event_open(2)) and energy
//! (RAPL, the kernel's powercap/powercap.rst). Elsewhere CPU time has to do.
//!
//! # Safety
//!
//! The only `unsafe` here is one system call, which reads a structure of this module's and gives a new descriptor, and the taking over of
//! that descriptor.
#![allow(unsafe_code, reason = "one system call without a wrapper; contract above")]

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::FromRawFd;
use std::path::{Path, PathBuf};

/// perf_event_attr as its first version had it (include/uapi/linux/perf_event.h, PERF_ATTR_SIZE_VER0), which every kernel takes.
#[repr(C)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    breakpoint_kind: u32,
    config1: u64,
}

const _: () = assert!(size_of::<Attributes>() == 64);

/// PERF_TYPE_HARDWARE and PERF_COUNT_HW_INSTRUCTIONS.
const HARDWARE: u32 = 0;
const INSTRUCTIONS: u64 = 1;
/// Bits of the flags: exclude_kernel and exclude_hv.
const USER_ONLY: u64 = 1 << 5 | 1 << 6;
/// PERF_FLAG_FD_CLOEXEC.
const CLOSE_ON_EXEC: libc::c_ulong = 1 << 3;

/// Instructions that the threads of a process execute outside the kernel, from now on. Threads that it starts later are not counted.
#[derive(Debug)]
pub struct Instructions(Vec<File>);

impl Instructions {
    /// Of all threads that the process has now.
    ///
    /// # Errors
    ///
    /// The machine does not count them (ENOENT, ENODEV: as virtual ones often do not), or does not say (EACCES).
    pub fn of(pid: u32) -> io::Result<Self> {
        let mut counters = Vec::new();
        for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let name = task?.file_name();
            let Some(thread) = name.to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            match count_thread(thread) {
                Ok(counter) => counters.push(counter),
                // It has ended since.
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                Err(e) => return Err(e),
            }
        }
        Ok(Self(counters))
    }

    /// How many so far; `None`: a counter cannot be read. Threads that have ended keep their count.
    pub fn count(&self) -> Option<u64> {
        let counted = self.0.iter().map(|mut counter| {
            let mut count = [0; 8];
            counter.read_exact(&mut count).ok().map(|()| u64::from_ne_bytes(count))
        });
        counted.sum()
    }
}

fn count_thread(thread: libc::pid_t) -> io::Result<File> {
    let attributes = Attributes {
        kind: HARDWARE,
        size: 64,
        config: INSTRUCTIONS,
        sample_period: 0,
        sample_type: 0,
        read_format: 0,
        flags: USER_ONLY,
        wakeup_events: 0,
        breakpoint_kind: 0,
        config1: 0,
    };
    let (any_cpu, no_group): (libc::c_int, libc::c_int) = (-1, -1);
    // SAFETY: the structure is as long as it says and outlives the call, which only reads it.
    let opened = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attributes,
            thread,
            any_cpu,
            no_group,
            CLOSE_ON_EXEC,
        )
    };
    match i32::try_from(opened) {
        // SAFETY: a new descriptor, which nobody else has.
        Ok(descriptor) if descriptor >= 0 => Ok(unsafe { File::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Where the kernel shows energy counters.
const POWERCAP: &str = "/sys/class/powercap";

/// Energy that the processor packages have used, µJ each, up to where each begins again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Energy(Vec<Package>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Package {
    folder: PathBuf,
    used_uj: u64,
    range_uj: u64,
}

impl Energy {
    /// So far.
    ///
    /// # Errors
    ///
    /// There are no such counters, or only root may read them.
    pub fn now() -> io::Result<Self> {
        Self::at(Path::new(POWERCAP))
    }

    /// The same of a folder laid out as [`POWERCAP`] is: a package is `intel-rapl:N`; parts of it, which have another colon, are in it.
    fn at(powercap: &Path) -> io::Result<Self> {
        let number = |path: PathBuf| -> io::Result<u64> {
            let text = std::fs::read_to_string(path)?;
            text.trim().parse().map_err(io::Error::other)
        };
        let mut packages = Vec::new();
        for zone in std::fs::read_dir(powercap)? {
            let folder = zone?.path();
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if name.strip_prefix("intel-rapl:").is_some_and(|zone| !zone.contains(':')) {
                packages.push(Package {
                    used_uj: number(folder.join("energy_uj"))?,
                    range_uj: number(folder.join("max_energy_range_uj"))?,
                    folder,
                });
            }
        }
        if packages.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        packages.sort_by(|a, b| a.folder.cmp(&b.folder));
        Ok(Self(packages))
    }

    /// Joules used since `earlier`, when no counter has begun again more than once; `None`: other packages were there then.
    #[allow(clippy::cast_precision_loss, reason = "a difference of µJ is below 2^53")]
    pub fn joules_since(&self, earlier: &Self) -> Option<f64> {
        if self.0.len() != earlier.0.len() {
            return None;
        }
        let used = self.0.iter().zip(&earlier.0).map(|(now, then)| {
            let same = now.folder == then.folder;
            // The counter goes up to its range, and then from 0.
            let around = if now.used_uj < then.used_uj { now.range_uj } else { 0 };
            same.then(|| (now.used_uj + around).saturating_sub(then.used_uj) as f64 / 1e6)
        });
        used.sum()
    }
}

/// What this machine does not count, as a note for the report; `None`: it counts both.
pub fn missing() -> Option<String> {
    let instructions = Instructions::of(std::process::id())
        .err()
        .map(|e| format!("instructions ({e})"));
    let energy = Energy::now().err().map(|e| format!("energy ({e})"));
    let both: Vec<String> = [instructions, energy].into_iter().flatten().collect();
    (!both.is_empty()).then(|| format!("this machine does not count {}: CPU time stands for it", both.join(" and ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers::Folder;

    fn zone(powercap: &Path, name: &str, used_uj: u64) {
        let folder = powercap.join(name);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("energy_uj"), format!("{used_uj}\n")).unwrap();
        std::fs::write(folder.join("max_energy_range_uj"), "1000000\n").unwrap();
    }

    #[test]
    fn packages_are_added_up_and_their_parts_are_not() {
        let folder = Folder::new(&std::env::temp_dir(), "powercap").unwrap();
        let powercap = folder.path();
        assert!(Energy::at(powercap).is_err(), "there is none yet");
        zone(powercap, "intel-rapl:0", 100_000);
        zone(powercap, "intel-rapl:1", 900_000);
        zone(powercap, "intel-rapl:0:0", 5);
        std::fs::create_dir(powercap.join("intel-rapl")).unwrap();
        let before = Energy::at(powercap).unwrap();
        assert_eq!(before.joules_since(&before), Some(0.0));
        zone(powercap, "intel-rapl:0", 600_000);
        zone(powercap, "intel-rapl:0:0", 500_000);
        // The second one has begun again.
        zone(powercap, "intel-rapl:1", 200_000);
        let used = Energy::at(powercap).unwrap().joules_since(&before).unwrap();
        assert!((used - (0.5 + 0.3)).abs() < 1e-9, "{used}");
        zone(powercap, "intel-rapl:2", 0);
        assert_eq!(Energy::at(powercap).unwrap().joules_since(&before), None);
    }

    #[test]
    fn what_cannot_be_read_is_no_energy() {
        let folder = Folder::new(&std::env::temp_dir(), "powercap").unwrap();
        zone(folder.path(), "intel-rapl:0", 1);
        std::fs::write(folder.path().join("intel-rapl:0/energy_uj"), "much").unwrap();
        assert!(Energy::at(folder.path()).is_err());
        assert!(Energy::at(&folder.path().join("nowhere")).is_err());
    }

    /// Where instructions are counted, more work is more of them; where not, the report is told so.
    #[test]
    fn instructions_grow_with_work_or_their_absence_is_told() {
        let Ok(counter) = Instructions::of(std::process::id()) else {
            return assert!(missing().unwrap().contains("instructions"));
        };
        let before = counter.count().unwrap();
        let sum: u64 = (0..100_000_u64).map(std::hint::black_box).sum();
        assert!(std::hint::black_box(sum) > 0);
        assert!(counter.count().unwrap() >= before + 100_000);
    }
}
