//! CPUs on a command line: `0-3,6`.

use std::path::Path;
use std::time::Duration;

use keyway_server::EventLoop;
use nix::sched::CpuSet;

/// The CPUs that `text` lists, in its order.
pub(crate) fn parse(text: &str) -> Result<Vec<usize>, String> {
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let number = |word: &str| {
            word.parse::<usize>()
                .ok()
                .filter(|cpu| *cpu < CpuSet::count())
                .ok_or_else(|| format!("{part:?} is no CPU or range of CPUs below {}, such as 0-3,6", CpuSet::count()))
        };
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(format!("{part:?} ends before it starts"));
        }
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

/// The set of them, for the whole process.
pub(crate) fn set(cpus: &[usize]) -> Result<CpuSet, nix::errno::Errno> {
    let mut set = CpuSet::new();
    cpus.iter().try_for_each(|cpu| set.set(*cpu))?;
    Ok(set)
}

/// Where the kernel describes NUMA nodes (Documentation/ABI/stable/sysfs-devices-node).
pub(crate) const NODES: &str = "/sys/devices/system/node";

/// The machine's CPUs, as the kernel lists them.
pub(crate) fn online() -> String {
    let list = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    match list.trim() {
        "" => "those in /proc/cpuinfo".to_owned(),
        list => list.to_owned(),
    }
}

/// The NUMA nodes of these CPUs, in order; none if the kernel describes none.
pub(crate) fn nodes(described_in: &Path, cpus: &[usize]) -> Vec<usize> {
    let Ok(folders) = std::fs::read_dir(described_in) else {
        return Vec::new();
    };
    let has_any = |list: &str| parse(list.trim()).is_ok_and(|its| its.iter().any(|cpu| cpus.contains(cpu)));
    let mut nodes: Vec<usize> = folders
        .flatten()
        .filter_map(|folder| {
            let node = folder.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            // A node that has only memory has an empty list.
            let list = std::fs::read_to_string(folder.path().join("cpulist")).ok()?;
            has_any(&list).then_some(node)
        })
        .collect();
    nodes.sort_unstable();
    nodes
}

/// The event loop with this name.
pub(crate) fn parse_event_loop(text: &str) -> Result<EventLoop, String> {
    [EventLoop::Auto, EventLoop::Epoll, EventLoop::IoUring]
        .into_iter()
        .find(|event_loop| event_loop.name() == text)
        .ok_or_else(|| format!("{text:?} is none of auto, epoll, io_uring"))
}

/// Microseconds, at most a second.
pub(crate) fn parse_busy_poll(text: &str) -> Result<Duration, String> {
    match text.parse::<u64>() {
        Ok(us @ 0..=1_000_000) => Ok(Duration::from_micros(us)),
        _ => Err(format!("{text:?} is no number of microseconds, 0 to 1000000")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_ranges_keep_their_order() {
        assert_eq!(parse("2,0-1,7-7"), Ok(vec![2, 0, 1, 7]));
        for wrong in ["", "a", "1-", "-1", "3-2", "1,,2", "99999999"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn cpus_have_their_nodes() {
        let folder = std::env::temp_dir().join(format!("keyway-nodes-{}", std::process::id()));
        for (name, list) in [
            ("node0", "0-3,8\n"),
            ("node1", "4-7\n"),
            ("node2", "\n"),
            ("has_cpu", "0-1\n"),
            ("node10", "9\n"),
        ] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
            std::fs::write(folder.join(name).join("cpulist"), list).unwrap();
        }
        for (cpus, expected) in [
            (vec![8], vec![0]),
            (vec![3, 4], vec![0, 1]),
            (vec![9, 0], vec![0, 10]),
            (vec![11], vec![]),
        ] {
            assert_eq!(nodes(&folder, &cpus), expected, "{cpus:?}");
        }
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(nodes(&folder, &[0]), [0; 0]);
        let here = Path::new(NODES);
        assert_eq!(
            here.is_dir(),
            !nodes(here, &(0..CpuSet::count()).collect::<Vec<_>>()).is_empty()
        );
    }

    #[test]
    fn event_loops_have_names() {
        assert_eq!(parse_event_loop("io_uring"), Ok(EventLoop::IoUring));
        assert!(parse_event_loop("select").is_err());
        assert_eq!(parse_busy_poll("50"), Ok(Duration::from_micros(50)));
        assert!(parse_busy_poll("1000001").is_err());
    }
}
