//! The machine: which CPU runs what, and how much of it a process has used.

use std::io;
use std::time::Duration;

/// Lets the calling thread, and what it starts from now on, run on `cpus` only.
pub fn pin(cpus: &[usize]) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for &cpu in cpus {
        set.set(cpu);
    }
    rustix::thread::sched_setaffinity(None, &set)?;
    Ok(())
}

/// How many CPUs this thread may use.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// CPU time of a process, all its threads together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// outside the kernel
    pub user: Duration,
    /// inside the kernel
    pub system: Duration,
}

/// Ticks a second in `/proc/PID/stat` (proc(5), utime): USER_HZ, which is 100 on every Linux that Rust supports.
const TICK: Duration = Duration::from_millis(10);

impl CpuTime {
    /// What the process `pid` has used so far, in steps of 10 ms.
    pub fn of(pid: u32) -> io::Result<Self> {
        parse_stat(&std::fs::read_to_string(format!("/proc/{pid}/stat"))?)
            .ok_or_else(|| io::Error::other(format!("/proc/{pid}/stat has no utime and stime")))
    }

    /// User and system time together.
    pub fn total(self) -> Duration {
        self.user + self.system
    }

    /// What was used since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            user: self.user.saturating_sub(earlier.user),
            system: self.system.saturating_sub(earlier.system),
        }
    }
}

/// Fields 14 and 15 of proc(5)'s stat. The second field, the name in parentheses, may hold anything, so count from its end.
fn parse_stat(stat: &str) -> Option<CpuTime> {
    let after_name = stat.rsplit_once(')')?.1;
    let mut fields = after_name.split_ascii_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u32>().ok();
    Some(CpuTime {
        user: TICK * ticks()?,
        system: TICK * ticks()?,
    })
}

/// Resident memory of the process `pid`, bytes (proc(5), VmRSS).
pub fn resident_bytes(pid: u32) -> io::Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|l| l.strip_prefix("VmRSS:"));
    let kib = line
        .and_then(|l| l.trim().strip_suffix("kB"))
        .and_then(|n| n.trim().parse::<u64>().ok());
    kib.map(|kib| kib * 1024)
        .ok_or_else(|| io::Error::other(format!("/proc/{pid}/status has no VmRSS")))
}

/// One line about where the figures come from.
pub fn describe() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let model = read("/proc/cpuinfo")
        .lines()
        .find(|l| l.starts_with("model name"))
        .and_then(|l| l.split(": ").nth(1))
        .map(str::to_owned);
    let load = read("/proc/loadavg");
    format!(
        "{} x {}, Linux {}, load {}",
        cpus(),
        model.unwrap_or_else(|| "unknown CPU".into()),
        read("/proc/sys/kernel/osrelease").trim(),
        load.split(' ').next().unwrap_or("unknown")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_spaces_and_parentheses_does_not_shift_the_fields() {
        let stat = "42 (a) b (c)) S 1 42 42 0 -1 4194560 100 0 0 0 250 150 0 0 20 0 4 0 1 1 1";
        let time = parse_stat(stat).unwrap();
        assert_eq!(
            time,
            CpuTime {
                user: Duration::from_millis(2500),
                system: Duration::from_millis(1500)
            }
        );
        assert_eq!(parse_stat("42 (a) S 1"), None);
    }

    #[test]
    fn this_process_has_memory_and_a_clock() {
        assert!(resident_bytes(std::process::id()).unwrap() > 100_000);
        assert!(CpuTime::of(std::process::id()).is_ok());
    }
}
