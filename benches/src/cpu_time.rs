//! CPU time of a process, in and out of the kernel.

use std::io;
use std::time::Duration;

/// Ticks a second in `/proc/PID/stat` (proc(5), utime): USER_HZ, which is 100 on every Linux that Rust supports.
const TICK: Duration = Duration::from_millis(10);

/// CPU time of a process, all its threads together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// outside the kernel
    pub user: Duration,
    /// inside the kernel
    pub system: Duration,
}

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
}
