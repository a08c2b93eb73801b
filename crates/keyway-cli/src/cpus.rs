//! CPUs on a command line: `0-3,6`.

use std::time::Duration;

use keyway_server::EventLoop;
use nix::sched::CpuSet;

/// The CPUs that `text` names, in its order.
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

/// The event loop of this name.
pub(crate) fn parse_event_loop(text: &str) -> Result<EventLoop, String> {
    [EventLoop::Auto, EventLoop::Epoll, EventLoop::IoUring]
        .into_iter()
        .find(|event_loop| event_loop.name() == text)
        .ok_or_else(|| format!("{text:?} is none of auto, epoll, io_uring"))
}

/// Microseconds, at most a second of them.
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
    fn event_loops_have_names() {
        assert_eq!(parse_event_loop("io_uring"), Ok(EventLoop::IoUring));
        assert!(parse_event_loop("select").is_err());
        assert_eq!(parse_busy_poll("50"), Ok(Duration::from_micros(50)));
        assert!(parse_busy_poll("1000001").is_err());
    }
}
