//! How many requests each source may make (`--max-request-rate`), and how many of its logins may fail: a rate and a burst for each address,
//! or user of this machine.
//!
//! A source has one word (GCRA): the time at which all requests so far would be over if they came at exactly the rate. A request is allowed
//! while that time is less than a burst ahead. The table is bounded: a new source that finds its part of the table full takes the place of
//! the one whose time is earliest, which was silent for longest. The hash is keyed, so no client can choose its part.
//!
//! Never: answers or closes anything; a connection above the rate waits (`connection`), a datagram is dropped (`udp`).

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::basics::lock;

/// Parts of the table; each has a lock of its own.
const PARTS: usize = 1024;
/// Sources in a part.
const PART_SIZE: usize = 16;
/// Longest time after which a paused connection asks again, if its source has not waited for a whole request.
const PAUSE: Duration = Duration::from_millis(100);

/// Whose requests are counted together.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub(crate) enum Source {
    /// a loopback address: a process of this machine has all of 127.0.0.0/8, and ::1 too
    Loopback,
    /// another IPv4 address
    V4(u32),
    /// the first 64 bits of an IPv6 address: one host has all addresses after them
    V6(u64),
    /// a user of this machine, at a Unix socket
    User(u32),
    /// the system does not say
    Unknown,
}

impl Source {
    /// The source at an address. An IPv4-mapped IPv6 address counts as its IPv4 address.
    pub(crate) fn at(address: IpAddr) -> Self {
        match address.to_canonical() {
            address if address.is_loopback() => Self::Loopback,
            IpAddr::V4(address) => Self::V4(address.to_bits()),
            IpAddr::V6(address) => Self::V6(u64::try_from(address.to_bits() >> 64).unwrap_or(0)),
        }
    }
}

/// The table.
pub(crate) struct Rates {
    /// time that a request takes at the rate, and that of a burst: nanoseconds
    each_ns: u64,
    burst_ns: u64,
    pause: Duration,
    started: Instant,
    hasher: RandomState,
    parts: Vec<Mutex<Vec<Entry>>>,
}

struct Entry {
    source: Source,
    /// when its requests would be over, nanoseconds after the start
    over_ns: u64,
}

impl Rates {
    /// `rate` requests a second, and `burst` at once after a pause; both at least 1.
    pub(crate) fn new(rate: u32, burst: u32) -> Self {
        let each_ns = (1_000_000_000 / u64::from(rate.max(1))).max(1);
        let burst_ns = each_ns * u64::from(burst.max(1));
        Self {
            each_ns,
            burst_ns,
            // Half a burst, so that the pauses themselves do not make the rate lower.
            pause: Duration::from_nanos(each_ns).max(PAUSE.min(Duration::from_nanos(burst_ns / 2))),
            started: Instant::now(),
            hasher: RandomState::new(),
            parts: (0..PARTS).map(|_| Mutex::default()).collect(),
        }
    }

    /// How many of `wanted` requests this source may make now; they count as made.
    pub(crate) fn take(&self, source: Source, wanted: usize, now: Instant) -> usize {
        let now_ns = self.since_start_ns(now);
        self.with(source, now_ns, |over_ns| {
            let begin = (*over_ns).max(now_ns);
            let room = (now_ns + self.burst_ns).saturating_sub(begin);
            let granted = (room / self.each_ns).min(wanted as u64);
            *over_ns = begin + granted * self.each_ns;
            usize::try_from(granted).unwrap_or(wanted)
        })
    }

    /// Whether this source may make a request now. None counts as made.
    pub(crate) fn has_room(&self, source: Source, now: Instant) -> bool {
        let now_ns = self.since_start_ns(now);
        let part = lock(self.part(source));
        let found = part.iter().find(|entry| entry.source == source);
        found.is_none_or(|entry| entry.over_ns.max(now_ns) + self.each_ns <= now_ns + self.burst_ns)
    }

    /// Requests that were taken, and not made after all.
    pub(crate) fn give_back(&self, source: Source, count: usize, now: Instant) {
        if count > 0 {
            let now_ns = self.since_start_ns(now);
            self.with(source, now_ns, |over_ns| {
                *over_ns = over_ns.saturating_sub(count as u64 * self.each_ns);
            });
        }
    }

    /// Requests that were made without asking, after one that was allowed.
    pub(crate) fn charge(&self, source: Source, count: usize, now: Instant) {
        let now_ns = self.since_start_ns(now);
        self.with(source, now_ns, |over_ns| {
            *over_ns = (*over_ns).max(now_ns) + count as u64 * self.each_ns;
        });
    }

    /// When a connection of a source that may make no request now asks again.
    pub(crate) fn again_at(&self, now: Instant) -> Instant {
        now + self.pause
    }

    fn since_start_ns(&self, now: Instant) -> u64 {
        u64::try_from(now.saturating_duration_since(self.started).as_nanos()).unwrap_or(u64::MAX / 2)
    }

    /// The part of the table for this source.
    fn part(&self, source: Source) -> &Mutex<Vec<Entry>> {
        let part = usize::try_from(self.hasher.hash_one(source) % PARTS as u64).unwrap_or(0);
        &self.parts[part]
    }

    fn with<R>(&self, source: Source, now_ns: u64, act: impl FnOnce(&mut u64) -> R) -> R {
        let mut part = lock(self.part(source));
        let found = part.iter().position(|entry| entry.source == source);
        let index = found.unwrap_or_else(|| {
            let new = Entry { source, over_ns: now_ns };
            if part.len() < PART_SIZE {
                part.push(new);
                return part.len() - 1;
            }
            let oldest = (0..part.len()).min_by_key(|&index| part[index].over_ns).unwrap_or(0);
            part[oldest] = new;
            oldest
        });
        act(&mut part[index].over_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(text: &str) -> Source {
        Source::at(text.parse().unwrap())
    }

    #[test]
    fn asking_for_room_takes_none() {
        let rates = Rates::new(10, 2);
        let (start, one) = (Instant::now(), v4("10.0.0.1"));
        for charged in 0..2 {
            assert!((0..9).all(|_| rates.has_room(one, start)), "after {charged}");
            rates.charge(one, 1, start);
        }
        assert!(!rates.has_room(one, start) && rates.has_room(v4("10.0.0.2"), start));
        assert!(!rates.has_room(one, start + Duration::from_millis(99)));
        assert!(rates.has_room(one, start + Duration::from_millis(100)));
    }

    #[test]
    fn a_source_has_its_burst_and_then_its_rate() {
        let rates = Rates::new(10, 5);
        let (start, one) = (Instant::now(), v4("10.0.0.1"));
        assert_eq!(rates.take(one, 3, start), 3);
        assert_eq!(rates.take(one, 20, start), 2);
        assert_eq!(rates.take(one, 1, start), 0);
        assert_eq!(rates.take(v4("10.0.0.2"), 1, start), 1, "another source has its own");
        let later = start + Duration::from_millis(250);
        assert_eq!(rates.take(one, 20, later), 2);
        assert_eq!(
            rates.take(one, 20, start + Duration::from_secs(100)),
            5,
            "silence saves up no more than a burst"
        );
    }

    #[test]
    fn what_was_not_used_comes_back_and_what_was_used_beyond_is_owed() {
        let rates = Rates::new(10, 5);
        let (start, one) = (Instant::now(), Source::User(7));
        assert_eq!(rates.take(one, 5, start), 5);
        rates.give_back(one, 4, start);
        assert_eq!(rates.take(one, 9, start), 4);
        rates.charge(one, 10, start);
        assert_eq!(rates.take(one, 1, start + Duration::from_millis(1000)), 0);
        assert_eq!(rates.take(one, 1, start + Duration::from_millis(1100)), 1);
    }

    #[test]
    fn an_ipv6_host_is_one_source_whatever_its_last_64_bits() {
        assert_eq!(v4("2001:db8::1"), v4("2001:db8::ffff:1:2:3"));
        assert_ne!(v4("2001:db8::1"), v4("2001:db8:0:1::1"));
        assert_eq!(v4("::ffff:10.0.0.1"), v4("10.0.0.1"));
    }

    #[test]
    fn a_process_of_this_machine_is_one_source_whatever_its_loopback_address() {
        for address in ["127.0.0.1", "127.0.0.2", "127.255.255.254", "::1", "::ffff:127.9.9.9"] {
            assert_eq!(v4(address), Source::Loopback, "{address}");
        }
        for address in ["126.255.255.255", "128.0.0.0", "::2", "::ffff:128.0.0.1"] {
            assert_ne!(v4(address), Source::Loopback, "{address}");
        }
    }

    #[test]
    fn the_table_is_bounded() {
        let rates = Rates::new(1, 1);
        let start = Instant::now();
        for number in 0..100_000 {
            rates.take(Source::V4(number), 1, start + Duration::from_nanos(number.into()));
        }
        let largest = rates.parts.iter().map(|part| lock(part).len()).max();
        assert_eq!(largest, Some(PART_SIZE));
        // The last of each part is still known.
        assert_eq!(rates.take(Source::V4(99_999), 1, start + Duration::from_millis(1)), 0);
    }

    #[test]
    fn a_pause_does_not_lower_the_rate() {
        for (rate, burst) in [(1, 1), (10, 1), (1000, 1000), (1_000_000, 10), (u32::MAX, 1)] {
            let rates = Rates::new(rate, burst);
            assert!(
                rates.pause.as_nanos() <= u128::from(rates.burst_ns.max(rates.each_ns)),
                "{rate}:{burst}"
            );
        }
    }
}
