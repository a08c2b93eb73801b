//! The machine's clocks, and what a session knows of the region's clock.
//!
//! | clock | used for | can be set by |
//! |---|---|---|
//! | CLOCK_BOOTTIME | the region's clock ([`keyway_region::Moment`]) | no process |
//! | CLOCK_MONOTONIC_COARSE | how long a session may use its last reading: until shortly before the next second | no process |
//! | the kernel's CLOCK_REALTIME | how much time passed between two boots | processes that may set the machine's time |
//! | the process's own wall clock, by the C library | exptimes that are Unix times, at the call | preloaded libraries of the process, too |
//!
//! All but the last are read without the C library, whose functions a preloaded library may replace. They are read by the
//! kernel's code in the process (`vdso(7)`), or, if that cannot be found, by system calls. In a time namespace
//! (`time_namespaces(7)`) the kernel adds an offset to the first two. It is subtracted from the first.
//!
//! A coarse clock lags by one timer tick at most (`time(7)`: 1 to 10 ms), and stops while the machine is suspended. So in the last
//! [`COARSE_LAG_MAX`] of a second a session reads the exact clock in each call: an item that one session has found expired is not
//! found present by another after that. After a suspend, a session learns of it when its own second has ended.
//!
//! # Safety
//!
//! The `unsafe` calls clock_gettime(2), under the name that the kernel's code has for it, with a place for its answer;
//! time(2) without a place; and two system calls that take numbers and return descriptors.
#![allow(unsafe_code, reason = "system calls; contract above")]

pub(crate) mod timer;

use crate::process::proc;
use crate::process::thread::open_pidfd;
use keyway_region::{Moment, Region};
use nix::libc::{self, c_int, clockid_t, timespec};
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Inode of the initial time namespace (include/uapi/linux/nsfs.h, TIME_NS_INIT_INO).
const INITIAL_NAMESPACE: u64 = 0xEFFF_FFFA;
/// include/uapi/linux/pidfd.h.
const PIDFD_GET_TIME_NAMESPACE: libc::c_ulong = 0xFF07;
const NS_PER_S: i64 = 1_000_000_000;

/// The boot clock as this process sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    /// what the process's time namespace adds to the boot clock and to the monotonic clock, nanoseconds
    added_ns: Added,
    is_known: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Added {
    boot: i64,
    monotonic: i64,
}

impl Clock {
    /// Read when a process attaches, and not later: a process that enters another time namespace must attach again.
    pub(crate) fn here() -> Self {
        match added() {
            Some(added_ns) => Self {
                added_ns,
                is_known: true,
            },
            None => Self::default(),
        }
    }

    /// Whether the time namespace of this process is known.
    pub(crate) fn is_known(self) -> bool {
        self.is_known
    }

    /// What the process's time namespace adds to the boot clock, nanoseconds. `None`: unknown.
    pub(crate) fn boot_added_ns(self) -> Option<i64> {
        self.is_known.then_some(self.added_ns.boot)
    }

    /// Now.
    pub(crate) fn now(self) -> Moment {
        Moment {
            boot: self.boot(),
            unix: duration(ask(libc::CLOCK_REALTIME)),
        }
    }

    /// Now, with the time of the process's own wall clock.
    pub(crate) fn now_by_own_wall(self) -> Moment {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Moment { boot: self.boot(), unix }
    }

    /// CLOCK_MONOTONIC as in the initial time namespace, which BPF programs see.
    pub(crate) fn monotonic(self) -> Duration {
        without(duration(ask(libc::CLOCK_MONOTONIC)), self.added_ns.monotonic)
    }

    fn boot(self) -> Duration {
        without(duration(ask(libc::CLOCK_BOOTTIME)), self.added_ns.boot)
    }
}

/// The kernel's Unix time, seconds.
pub(crate) fn unix_s() -> i64 {
    ask(libc::CLOCK_REALTIME).tv_sec
}

/// Unix seconds by the process's own wall clock.
pub(crate) fn own_unix_s() -> i64 {
    // SAFETY: NULL is allowed; nothing is stored then.
    unsafe { libc::time(std::ptr::null_mut()) }
}

/// CLOCK_MONOTONIC_COARSE, nanoseconds: a few loads.
#[inline(always)]
pub(crate) fn coarse_ns() -> i64 {
    let time = ask(libc::CLOCK_MONOTONIC_COARSE);
    time.tv_sec * NS_PER_S + time.tv_nsec
}

/// CLOCK_MONOTONIC, nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    let time = ask(libc::CLOCK_MONOTONIC);
    (time.tv_sec * NS_PER_S + time.tv_nsec).unsigned_abs()
}

/// The processor's counter of ticks, if it has one ([`has_steady_counter`]).
#[inline(always)]
pub(crate) fn counter() -> u64 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: reads a register of the processor.
    return unsafe { core::arch::x86_64::_rdtsc() };
    #[cfg(not(target_arch = "x86_64"))]
    return monotonic_ns();
}

/// Whether the processor has a counter that runs at one speed, also while the processor is slower or sleeps.
pub(crate) fn has_steady_counter() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        // Intel's Software Developer's Manual, volume 3, 19.17.1: "Invariant TSC", leaf 0x8000_0007, EDX, bit 8.
        use core::arch::x86_64::__cpuid;
        const POWER: u32 = 0x8000_0007;
        __cpuid(0x8000_0000).eax >= POWER && __cpuid(POWER).edx >> 8 & 1 != 0
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// How far the coarse clock may lag: twice the longest timer tick, because a timer interrupt may be late.
const COARSE_LAG_MAX: Duration = Duration::from_millis(20);

/// Calls of a session in a row that take a tick for recent without asking the clock.
const RECENT_MAX: u32 = 16;

/// What a session knows of the region's clock: the current tick, and when it ends.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    tick: u32,
    /// value of the coarse clock
    until_ns: i64,
    /// how often [`Watch::recent`] answers with this tick yet
    left: u32,
    /// the region's note of its last use, as it was then
    seen: u64,
    /// the region's second in which the session has last noted that the region is in use
    noted_s: Option<u64>,
}

/// A reading of the region's clock.
pub(crate) struct Reading {
    pub at: Moment,
    pub tick: u32,
    /// the region's second
    pub second: u64,
    /// time left in the region's second
    pub left: Duration,
}

impl Watch {
    /// The tick when the coarse clock has the value `coarse_ns`. `read` reads the region's clock, if that is necessary;
    /// `coarse_ns` was read before that. `note` notes that the region is in use: in the session's first reading of each second.
    #[inline(always)]
    pub(crate) fn tick(&mut self, coarse_ns: i64, read: impl FnOnce() -> Reading, note: impl FnOnce(Moment)) -> u32 {
        if coarse_ns < self.until_ns {
            self.tick
        } else {
            self.read(coarse_ns, read, note)
        }
    }

    /// The last tick, for what is only noted as a hint. `None`: the clock has to be asked, because this was called often, or
    /// because any session has noted that the region is in use (`seen`) in a later second: so an idle session does not lag.
    #[inline(always)]
    pub(crate) fn recent(&mut self, seen: u64) -> Option<u32> {
        if self.seen != seen {
            return None;
        }
        self.left = self.left.checked_sub(1)?;
        Some(self.tick)
    }

    /// From now on [`Self::recent`] answers with the last tick.
    pub(crate) fn has_asked(&mut self, seen: u64) {
        self.left = RECENT_MAX;
        self.seen = seen;
    }

    #[cold]
    #[inline(never)]
    fn read(&mut self, coarse_ns: i64, read: impl FnOnce() -> Reading, note: impl FnOnce(Moment)) -> u32 {
        let reading = read();
        if self.noted_s.replace(reading.second) != Some(reading.second) {
            note(reading.at);
        }
        self.tick = reading.tick;
        let exact = reading.left.saturating_sub(COARSE_LAG_MAX);
        self.until_ns = coarse_ns + i64::try_from(exact.as_nanos()).unwrap_or(0);
        self.tick
    }
}

/// Reads the region's clock.
pub(crate) fn read(region: &Region, now: Moment) -> Reading {
    let clock = region.clock().clock_at(now.boot);
    Reading {
        at: now,
        tick: region.clock().tick(now),
        second: clock.as_secs(),
        left: Duration::from_nanos(NS_PER_S.unsigned_abs() - u64::from(clock.subsec_nanos())),
    }
}

/// clock_gettime(2).
type GetTime = unsafe extern "C" fn(clockid_t, *mut timespec) -> c_int;

/// The function that reads the time. PAIRS: nothing; it is the address of code that is always there.
static GET_TIME: AtomicPtr<libc::c_void> = AtomicPtr::new(find_and_ask as *mut libc::c_void);

/// The time by one of the clocks that every kernel has.
#[inline(always)]
fn ask(clock: clockid_t) -> timespec {
    let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: only functions of this type are stored there; there is a place for one answer.
    unsafe { std::mem::transmute::<*mut libc::c_void, GetTime>(GET_TIME.load(Relaxed))(clock, &raw mut time) };
    time
}

/// Called the first time: finds the function, stores it and calls it.
unsafe extern "C" fn find_and_ask(clock: clockid_t, time: *mut timespec) -> c_int {
    let found = find();
    GET_TIME.store(found, Relaxed);
    // SAFETY: `find` returns functions of this type; the place is the caller's.
    unsafe { std::mem::transmute::<*mut libc::c_void, GetTime>(found)(clock, time) }
}

/// Finds the function that reads the time in this process.
fn find() -> *mut libc::c_void {
    const NAME: &std::ffi::CStr = if cfg!(target_arch = "x86_64") {
        c"__vdso_clock_gettime"
    } else {
        c"__kernel_clock_gettime"
    };
    // SAFETY: two strings that end with a zero. The kernel's code is already mapped, and stays mapped.
    let found = unsafe {
        let kernels = libc::dlopen(c"linux-vdso.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD);
        if kernels.is_null() {
            kernels
        } else {
            libc::dlsym(kernels, NAME.as_ptr())
        }
    };
    if found.is_null() {
        by_system_call as *mut libc::c_void
    } else {
        found
    }
}

/// Used if the kernel's code is not found: under valgrind, and in a static program, in which no library can come between
/// it and the C library.
unsafe extern "C" fn by_system_call(clock: clockid_t, time: *mut timespec) -> c_int {
    // SAFETY: the caller's place.
    unsafe {
        if cfg!(target_env = "gnu") {
            c_int::try_from(libc::syscall(libc::SYS_clock_gettime, clock, time)).unwrap_or(-1)
        } else {
            libc::clock_gettime(clock, time)
        }
    }
}

fn duration(time: timespec) -> Duration {
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or(0),
        u32::try_from(time.tv_nsec).unwrap_or(0),
    )
}

fn without(time: Duration, added_ns: i64) -> Duration {
    let ns = i64::try_from(time.as_nanos()).unwrap_or(i64::MAX).saturating_sub(added_ns);
    Duration::from_nanos(u64::try_from(ns).unwrap_or(0))
}

/// What the process's time namespace adds. `None`: this cannot be known.
fn added() -> Option<Added> {
    match (proc::namespace("time"), proc::namespace("time_for_children")) {
        (Some(INITIAL_NAMESPACE), _) => Some(Added::default()),
        // The file describes the namespace that children are created in.
        (Some(own), Some(of_children)) if own == of_children => parse(&proc::time_offsets()?),
        (Some(_), _) => None,
        // A kernel without time namespaces has other namespaces.
        (None, _) if proc::namespace("mnt").is_some() => Some(Added::default()),
        (None, _) => (namespace_by_pidfd()? == INITIAL_NAMESPACE).then(Added::default),
    }
}

/// Parses /proc/self/timens_offsets: a line for each clock, with seconds and nanoseconds.
fn parse(offsets: &str) -> Option<Added> {
    let of = |clock: &str| {
        let mut words = offsets.lines().find_map(|line| line.strip_prefix(clock))?.split_whitespace();
        let [seconds, ns] = [words.next()?, words.next()?].map(|word| word.parse::<i64>().ok());
        Some(seconds?.checked_mul(NS_PER_S)?.saturating_add(ns?))
    };
    Some(Added {
        boot: of("boottime")?,
        monotonic: of("monotonic")?,
    })
}

/// The inode of the process's time namespace, without /proc: Linux 6.11 (pidfd_open(2), PIDFD_GET_TIME_NAMESPACE).
fn namespace_by_pidfd() -> Option<u64> {
    let pidfd = open_pidfd(nix::unistd::getpid().as_raw(), 0).ok()?;
    // SAFETY: takes no argument, and returns a descriptor.
    let fd = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_TIME_NAMESPACE) };
    if fd < 0 {
        // A kernel without time namespaces knows the call, and reports that it has none.
        let is_without = std::io::Error::last_os_error().raw_os_error() == Some(libc::EOPNOTSUPP);
        return is_without.then_some(INITIAL_NAMESPACE);
    }
    // SAFETY: the descriptor that the call has just returned.
    let namespace = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
    namespace.metadata().ok().map(|meta| meta.ino())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// A machine whose clocks a test sets; it counts how often they are read.
    #[derive(Default)]
    struct Machine {
        boot_ms: Cell<u64>,
        coarse_ms: Cell<i64>,
        reads: Cell<u32>,
        notes: Cell<u32>,
    }

    impl Machine {
        fn runs(&self, ms: u32) {
            self.boot_ms.set(self.boot_ms.get() + u64::from(ms));
            // It lags, as the real clock does.
            self.coarse_ms.set(i64::try_from(self.boot_ms.get()).unwrap() / 4 * 4);
        }

        fn asked(&self, watch: &mut Watch) -> u32 {
            let read = || {
                self.reads.set(self.reads.get() + 1);
                let boot_ms = self.boot_ms.get();
                Reading {
                    at: Moment {
                        boot: Duration::from_millis(boot_ms),
                        unix: Duration::ZERO,
                    },
                    tick: u32::try_from(boot_ms / 1000).unwrap(),
                    second: boot_ms / 1000,
                    left: Duration::from_millis(1000 - boot_ms % 1000),
                }
            };
            let note = |at: Moment| {
                assert_eq!(at.boot, Duration::from_millis(self.boot_ms.get()));
                self.notes.set(self.notes.get() + 1);
            };
            watch.tick(self.coarse_ms.get() * 1_000_000, read, note)
        }
    }

    #[test]
    fn a_session_is_never_behind_and_reads_the_clock_seldom() {
        let (machine, mut watch) = (Machine::default(), Watch::default());
        for step in 0..20_000 {
            machine.runs([1, 2, 3][step % 3]);
            let tick = machine.asked(&mut watch);
            let now_ms = machine.boot_ms.get();
            assert_eq!(u64::from(tick), now_ms / 1000, "{now_ms} ms");
        }
        // Forty seconds: one reading for each, and one for each call at its end.
        assert!((40..600).contains(&machine.reads.get()), "{}", machine.reads.get());
    }

    #[test]
    fn a_session_notes_once_in_each_second_that_the_region_is_in_use() {
        let (machine, mut watch) = (Machine::default(), Watch::default());
        for _ in 0..4_000 {
            machine.asked(&mut watch);
            machine.runs(1);
        }
        // Each of the last 20 ms of a second reads the clock.
        assert!(machine.reads.get() > 3 * 20, "{}", machine.reads.get());
        assert_eq!(machine.notes.get(), 4);
        machine.runs(60_000);
        machine.asked(&mut watch);
        assert_eq!(machine.notes.get(), 5);
    }

    #[test]
    fn a_long_pause_is_noticed_by_the_first_call_behind_it() {
        let (machine, mut watch) = (Machine::default(), Watch::default());
        machine.runs(5_500);
        assert_eq!(machine.asked(&mut watch), 5);
        machine.runs(3_600_000);
        assert_eq!(machine.asked(&mut watch), 3605);
    }

    #[test]
    fn a_suspended_machine_counts_when_the_second_has_ended() {
        let (machine, mut watch) = (Machine::default(), Watch::default());
        machine.runs(5_300);
        assert_eq!(machine.asked(&mut watch), 5);
        // CLOCK_BOOTTIME counts an hour; the monotonic clocks count nothing.
        machine.boot_ms.set(machine.boot_ms.get() + 3_600_000);
        assert_eq!(machine.asked(&mut watch), 5, "the session's second has not ended");
        machine.coarse_ms.set(machine.coarse_ms.get() + 704);
        assert_eq!(machine.asked(&mut watch), 3605);
    }

    #[test]
    fn the_offsets_of_a_time_namespace_are_read() {
        let text = "monotonic           0         0\nboottime     31536000 500000000\n";
        let added = Added {
            boot: 31_536_000_500_000_000,
            monotonic: 0,
        };
        assert_eq!(parse(text), Some(added));
        assert_eq!(
            parse("monotonic -7 250000000\nboottime -1 0\n").map(|a| (a.boot, a.monotonic)),
            Some((-NS_PER_S, -6_750_000_000))
        );
        for odd in ["", "monotonic 0 0", "boottime x 0\nmonotonic 0 0"] {
            assert_eq!(parse(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn the_kernels_code_is_asked_if_the_process_has_it() {
        // SAFETY: getauxval(3) takes a number and gives one.
        let has_it = unsafe { libc::getauxval(libc::AT_SYSINFO_EHDR) } != 0;
        let by_call = by_system_call as *mut libc::c_void;
        assert_eq!(find() != by_call, has_it && cfg!(target_env = "gnu"));
        let mut time = timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: a place for one answer.
        assert_eq!(unsafe { by_system_call(libc::CLOCK_BOOTTIME, &raw mut time) }, 0);
        assert!(duration(time) <= duration(ask(libc::CLOCK_BOOTTIME)));
    }

    #[test]
    fn the_namespace_is_known_here_with_and_without_proc() {
        let clock = Clock::here();
        assert!(clock.is_known());
        let by_proc = std::fs::metadata("/proc/self/ns/time").map(|meta| meta.ino()).ok();
        // An older kernel does not have the call.
        if let Some(by_pidfd) = namespace_by_pidfd() {
            assert_eq!(Some(by_pidfd), by_proc);
        }
        let (one, two) = (clock.now(), clock.now());
        assert!(one.boot <= two.boot && one.unix.as_secs() > 1_500_000_000);
    }
}
