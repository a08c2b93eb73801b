//! Whether the system gives a server its threads. It is asked before anything is taken over and before the server says that it is ready.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Mutex;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use crate::basics::lock;

/// Why the system does not give as many threads.
#[derive(Debug)]
pub struct NoThreads {
    /// how many the server needs
    needed: usize,
    error: io::Error,
    /// the limits that may be the reason
    limits: Vec<String>,
}

/// Starts so many threads at the same time, and ends them.
pub(crate) fn try_out(needed: usize) -> Result<(), NoThreads> {
    let gate = Mutex::new(());
    let closed = lock(&gate);
    let started = std::thread::scope(|scope| {
        let start = |_| {
            let thread = std::thread::Builder::new();
            thread.spawn_scoped(scope, || drop(lock(&gate))).map(drop)
        };
        let started = (0..needed).try_for_each(start);
        drop(closed);
        started
    });
    started.map_err(|error| NoThreads {
        needed,
        error,
        limits: limits_of_threads(),
    })
}

/// The limits of threads that are in force for this process (getrlimit(2); Documentation/admin-guide/cgroup-v2.rst, "PID").
pub fn limits_of_threads() -> Vec<String> {
    let mut limits = Vec::new();
    if let Ok((most, _)) = getrlimit(Resource::RLIMIT_NPROC)
        && most != RLIM_INFINITY
    {
        limits.push(format!(
            "this user may have {most} processes and threads in all (RLIMIT_NPROC, ulimit -u)"
        ));
    }
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    limits.extend(
        groups
            .lines()
            .flat_map(|line| limits_of_groups(line, Path::new("/sys/fs/cgroup"))),
    );
    limits
}

/// The limits of a control group, which is a line of /proc/self/cgroup (cgroups(7)), and of those above it.
fn limits_of_groups(line: &str, mounted: &Path) -> Vec<String> {
    let mut fields = line.splitn(3, ':').skip(1);
    let (Some(controllers), Some(path)) = (fields.next(), fields.next()) else {
        return Vec::new();
    };
    let root = match controllers {
        "" => mounted.to_owned(),
        "pids" => mounted.join("pids"),
        _ => return Vec::new(),
    };
    let limit = |group: &Path| {
        let file = root.join(group).join("pids.max");
        let most: u64 = std::fs::read_to_string(&file).ok()?.trim().parse().ok()?;
        Some(format!("{} allows {most} processes and threads", file.display()))
    };
    Path::new(path.trim_start_matches('/'))
        .ancestors()
        .filter_map(limit)
        .collect()
}

impl fmt::Display for NoThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { needed, error, limits } = self;
        write!(f, "the system does not give the server its {needed} threads: {error}")?;
        if error.kind() != ErrorKind::WouldBlock {
            return f.write_str("; a seccomp filter, perhaps of a container, refuses clone(2): allow it");
        }
        for limit in limits {
            write!(f, "; {limit}")?;
        }
        f.write_str("; raise the limit, or start with fewer threads (--threads, -t)")
    }
}

impl std::error::Error for NoThreads {}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::errno::Errno;

    #[test]
    fn threads_that_the_system_has_are_given() {
        try_out(0).unwrap();
        try_out(40).unwrap();
    }

    #[test]
    fn limits_of_control_groups_are_found_in_each_that_has_one() {
        let mounted = std::env::temp_dir().join(format!("keyway-pids-{}", std::process::id()));
        let set = |group: &str, text: &str| {
            std::fs::create_dir_all(mounted.join(group)).unwrap();
            std::fs::write(mounted.join(group).join("pids.max"), text).unwrap();
        };
        set("a/b", "max\n");
        set("a", "20\n");
        set("pids/c", "7\n");
        let found = |line: &str| limits_of_groups(line, &mounted);
        assert_eq!(
            found("0::/a/b"),
            [format!(
                "{} allows 20 processes and threads",
                mounted.join("a/pids.max").display()
            )]
        );
        assert_eq!(found("4:pids:/c").len(), 1);
        for line in ["4:memory:/a", "0::/none", "0::/", "", "x"] {
            assert_eq!(found(line), Vec::<String>::new(), "{line}");
        }
        std::fs::remove_dir_all(mounted).unwrap();
    }

    #[test]
    fn a_refusal_names_the_limit_and_the_remedy() {
        let text = |error: Errno| {
            let error = io::Error::from(error);
            let limits = vec!["this user may have 5 processes".to_owned()];
            NoThreads {
                needed: 9,
                error,
                limits,
            }
            .to_string()
        };
        let full = text(Errno::EAGAIN);
        assert!(
            full.contains("its 9 threads") && full.contains("may have 5") && full.contains("fewer threads (--threads, -t)"),
            "{full}"
        );
        assert!(text(Errno::EPERM).contains("seccomp"), "{}", text(Errno::EPERM));
    }
}
