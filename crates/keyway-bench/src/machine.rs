//! The machine: which CPU runs what, and how much of it a process has used.

use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

/// A process or threads that the system does not start: with the limit of this user, and what helps (getrlimit(2)).
pub(crate) fn cannot_start(what: &str, error: &io::Error) -> io::Error {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nproc).current;
    let limit = limit.map_or_else(String::new, |most| {
        format!("; this user may have {most} processes and threads in all (RLIMIT_NPROC, ulimit -u)")
    });
    let remedy = "raise the limit, end other processes, or measure with fewer connections and client threads";
    io::Error::new(error.kind(), format!("cannot start {what}: {error}{limit}; {remedy}"))
}

/// Lets the calling thread, and what it starts from now on, run on `cpus` only.
pub fn pin(cpus: &[usize]) -> io::Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    for &cpu in cpus {
        set.set(cpu);
    }
    rustix::thread::sched_setaffinity(None, &set)?;
    Ok(())
}

/// The CPUs that this thread may use.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// How many CPUs this thread may use.
pub fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// How many CPUs the machine has, counted to the highest that this thread may use.
pub fn cpus_online() -> usize {
    allowed_cpus()
        .ok()
        .and_then(|cpus| cpus.last().map(|cpu| cpu + 1))
        .unwrap_or(1)
        .max(cpus())
}

/// Ticks a second in `/proc/stat` (proc(5)): USER_HZ, which is 100 on every Linux that Rust supports.
const TICK: Duration = Duration::from_millis(10);

/// What the threads of a process have used so far, to the nanosecond, and how often the kernel switched away from them.
///
/// Threads that ended are not counted, so this suits processes whose threads stay: servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// time on a CPU, in and out of the kernel
    pub cpu: Duration,
    /// context switches, voluntary or not
    pub switches: u64,
}

impl Usage {
    /// Of the process `pid` so far: the sums over its threads of proc(5)'s schedstat (first field) and status (ctxt_switches).
    pub fn of(pid: u32) -> io::Result<Self> {
        let mut usage = Self::default();
        for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
            let folder = task?.path();
            // A thread may end between two looks.
            let read = |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_default();
            let on_cpu_ns = read("schedstat").split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0);
            usage.cpu += Duration::from_nanos(on_cpu_ns);
            usage.switches += parse_switches(&read("status"));
        }
        Ok(usage)
    }

    /// What was used since `earlier`.
    pub fn since(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            switches: self.switches.saturating_sub(earlier.switches),
        }
    }
}

/// What all CPUs of the machine have spent on anything but waiting so far, interrupts and what follows from them included (proc(5), stat), in steps of 10 ms.
pub fn busy() -> Option<Duration> {
    parse_busy(&std::fs::read_to_string("/proc/stat").ok()?)
}

/// user, nice, system, then idle and iowait, which are none, then irq and softirq; what follows is other machines' time, or counted before.
fn parse_busy(stat: &str) -> Option<Duration> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
    let ticks: Vec<u32> = fields.map(str::parse).collect::<Result<_, _>>().ok()?;
    let busy = [0, 1, 2, 5, 6].map(|field| ticks.get(field).copied());
    busy.into_iter()
        .try_fold(Duration::ZERO, |sum, ticks| Some(sum + TICK * ticks?))
}

fn parse_switches(status: &str) -> u64 {
    let counts = status.lines().filter_map(|line| {
        let (name, count) = line.split_once(':')?;
        let counted = matches!(name, "voluntary_ctxt_switches" | "nonvoluntary_ctxt_switches");
        counted.then(|| count.trim().parse::<u64>().ok()).flatten()
    });
    counts.sum()
}

/// CPU time of the calling thread so far.
pub fn thread_cpu() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default()
}

/// What two looks at the clock with nothing between them take: the median of a thousand.
pub fn clock_cost() -> Duration {
    let mut costs: Vec<Duration> = (0..1001).map(|_| Instant::now().elapsed()).collect();
    costs.sort_unstable();
    costs[costs.len() / 2]
}

/// Lets the calling thread sleep as exactly as the kernel can, instead of up to 50 µs longer (PR_SET_TIMERSLACK). A refusal only
/// makes latencies of open loops look longer.
pub fn precise_timers() {
    let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
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

/// Mean number of threads that wanted a CPU in the last minute (proc(5), loadavg).
pub fn load_average() -> f64 {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|n| n.parse().ok()).unwrap_or(0.0)
}

/// One line about where the figures come from.
pub fn describe() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let model = read("/proc/cpuinfo")
        .lines()
        .find(|l| l.starts_with("model name"))
        .and_then(|l| l.split(": ").nth(1))
        .map(str::to_owned);
    format!(
        "{} x {}, Linux {}, load {}",
        cpus(),
        model.unwrap_or_else(|| "unknown CPU".into()),
        read("/proc/sys/kernel/osrelease").trim(),
        load_average()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_and_stolen_time_are_no_work() {
        let stat = "cpu  100 20 3 4000 500 6 7 80 9 10\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(parse_busy(stat), Some(Duration::from_millis(1360)));
        assert_eq!(parse_busy("cpu  1 2 3"), None);
        assert!(busy().unwrap() > Duration::ZERO);
    }

    #[test]
    fn both_kinds_of_switches_count() {
        assert_eq!(
            parse_switches("Name:\tx\nvoluntary_ctxt_switches:\t12\nnonvoluntary_ctxt_switches:\t30\n"),
            42
        );
    }

    #[test]
    fn a_process_has_memory_and_clocks_that_run() {
        assert!(resident_bytes(std::process::id()).unwrap() > 100_000);
        let before = thread_cpu();
        while thread_cpu() < before + Duration::from_millis(1) {
            std::hint::black_box(parse_switches("x"));
        }
        // Not this process: other tests' threads end meanwhile.
        let mut busy = std::process::Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .unwrap();
        let (usage, begun) = (Usage::of(busy.id()).unwrap(), Instant::now());
        while Usage::of(busy.id()).unwrap().since(usage).cpu < Duration::from_millis(10) {
            assert!(begun.elapsed() < Duration::from_secs(60), "a busy process uses no CPU");
            std::thread::sleep(Duration::from_millis(1));
        }
        busy.kill().unwrap();
        busy.wait().unwrap();
    }
}
