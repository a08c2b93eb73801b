//! What was counted in the last hour, for `keyway doctor`: what the region, this server and the kernel had counted at each minute of it.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use keyway_cache::{Cache, Counters, server};

use crate::account::Account;
use crate::kernel::Post;
use crate::shared::Peers;

/// Time between two notes, and how many are kept: an hour.
const EVERY: Duration = Duration::from_secs(60);
const MOST: usize = 60;

/// See the top of the file.
#[derive(Default)]
pub(crate) struct Hour {
    notes: VecDeque<Note>,
}

/// What had been counted at a moment.
#[derive(Clone)]
pub(crate) struct Note {
    at: Instant,
    counters: Counters,
    /// connections that were refused
    rejected: u64,
    /// connections that were closed because their memory was short
    closed: u64,
    /// datagrams that the kernel dropped because a socket's buffer was full; `None`: it does not say
    udp_dropped: Option<u64>,
    /// packets by what the kernel door did with them
    kernel: Vec<(&'static str, u64)>,
}

impl Note {
    pub(crate) fn now(cache: &Cache, peers: &Peers, account: &Account, kernel: Option<&Post>) -> Self {
        Self {
            at: Instant::now(),
            counters: cache.counters(),
            rejected: peers.arrivals().rejected,
            closed: account.closed.load(Relaxed),
            udp_dropped: dropped(&peers.udp_sockets()),
            kernel: kernel.map_or_else(Vec::new, |post| post.numbers().verdicts),
        }
    }

    /// What was counted from `then` to this note, by name, after the time between them, seconds.
    pub(crate) fn since(&self, then: &Self) -> Vec<(String, u64)> {
        let (now, before) = (&self.counters, &then.counters);
        let mut all = vec![("seconds".to_owned(), self.at.saturating_duration_since(then.at).as_secs())];
        let counted = [
            ("evictions", now.evictions, before.evictions),
            ("came_back", now.ghost_hits, before.ghost_hits),
            ("no_memory", now.store_no_memory, before.store_no_memory),
            ("corrupt", now.corrupt, before.corrupt),
            ("rejected", self.rejected, then.rejected),
            ("closed_for_memory", self.closed, then.closed),
        ];
        let udp_dropped = self
            .udp_dropped
            .zip(then.udp_dropped)
            .map(|(now, then)| ("udp_dropped", now, then));
        all.extend(
            counted
                .into_iter()
                .chain(udp_dropped)
                .map(|(name, now, then)| (name.to_owned(), now.saturating_sub(then))),
        );
        all.extend(self.kernel.iter().map(|(word, now)| {
            let before = then
                .kernel
                .iter()
                .find(|(other, _)| other == word)
                .map_or(0, |(_, count)| *count);
            (format!("kernel_{word}"), now.saturating_sub(before))
        }));
        all
    }
}

/// Datagrams that were dropped at these sockets since each was made; `None` if the kernel does not say. Each is asked: the table of all sockets of the machine
/// (proc_pid_net(5), udp) takes the kernel seconds, if there are some ten thousand.
fn dropped(sockets: &[OwnedFd]) -> Option<u64> {
    sockets
        .iter()
        .map(|socket| server::dropped(socket.as_fd()).map(u64::from))
        .sum()
}

impl Hour {
    /// Whether a minute has passed since the last note.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.notes
            .back()
            .is_none_or(|last| now.saturating_duration_since(last.at) >= EVERY)
    }

    /// Keeps this note, and those of the hour before it.
    pub(crate) fn note(&mut self, note: Note) {
        self.notes.push_back(note);
        while self.notes.len() > MOST + 1 {
            self.notes.pop_front();
        }
    }

    /// The note of an hour ago, or the first one.
    pub(crate) fn first(&self) -> Option<Note> {
        self.notes.front().cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    fn note(begun: Instant, minute: u32) -> Note {
        Note {
            at: begun + EVERY * minute,
            counters: Counters::default(),
            rejected: minute.into(),
            closed: 0,
            udp_dropped: Some(0),
            kernel: Vec::new(),
        }
    }

    #[test]
    fn it_knows_an_hour_and_no_more() {
        let begun = Instant::now();
        let mut hour = Hour::default();
        assert!(hour.is_due(begun));
        hour.note(note(begun, 0));
        assert!(!hour.is_due(begun) && !hour.is_due(begun + EVERY / 2) && hour.is_due(begun + EVERY));
        for minute in 1..200 {
            let now = note(begun, minute);
            hour.note(now.clone());
            let counted = now.since(&hour.first().unwrap());
            let minutes = u64::from(minute.min(60));
            assert!(
                counted.contains(&("seconds".to_owned(), 60 * minutes)),
                "{minute}: {counted:?}"
            );
            assert!(counted.contains(&("rejected".to_owned(), minutes)), "{minute}: {counted:?}");
        }
    }

    #[test]
    fn each_name_is_what_was_counted_between_two_notes() {
        let begun = Instant::now();
        let (then, mut now) = (note(begun, 0), note(begun, 1));
        let mut counters = [then.counters, now.counters];
        for (number, counters) in (0..).zip(&mut counters) {
            counters.evictions = 1 + 10 * number;
            counters.ghost_hits = 2 + 20 * number;
            counters.store_no_memory = 3 + 30 * number;
            counters.corrupt = 4 + 40 * number;
        }
        let then = Note {
            counters: counters[0],
            rejected: 5,
            closed: 6,
            udp_dropped: Some(7),
            kernel: vec![("hits", 8), ("stale", 9)],
            ..then
        };
        now = Note {
            counters: counters[1],
            rejected: 55,
            closed: 66,
            udp_dropped: Some(77),
            kernel: vec![("stale", 99), ("hits", 88), ("silent", 1)],
            ..now
        };
        let wanted = [
            ("seconds", 60),
            ("evictions", 10),
            ("came_back", 20),
            ("no_memory", 30),
            ("corrupt", 40),
            ("rejected", 50),
            ("closed_for_memory", 60),
            ("udp_dropped", 70),
            ("kernel_stale", 90),
            ("kernel_hits", 80),
            ("kernel_silent", 1),
        ];
        assert_eq!(now.since(&then), wanted.map(|(name, count)| (name.to_owned(), count)));
        // What the kernel does not say is unknown, and not 0.
        now.udp_dropped = None;
        assert!(now.since(&then).iter().all(|(name, _)| name != "udp_dropped"));
    }

    #[test]
    fn datagrams_that_were_dropped_are_those_of_all_sockets() {
        let sockets = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        // More than the system lets a buffer hold by default.
        for socket in &sockets {
            (0..3_000).for_each(|_| assert_eq!(sockets[0].send_to(&[7; 1_000], socket.local_addr().unwrap()).unwrap(), 1_000));
        }
        let [first, second] = sockets.map(OwnedFd::from);
        let both = dropped(&[first.try_clone().unwrap(), second.try_clone().unwrap()]).unwrap();
        let each = [first, second].map(|socket| dropped(&[socket]).unwrap());
        assert!(each[0] > 0 && each[1] > 0 && both == each[0] + each[1], "{each:?}, {both}");
    }
}
