//! How long operations took: counts by door, verb and time.
//!
//! ```text
//! latency page: a row for each verb of each door ([`Door::verbs`]); row: counts by bucket, then the sum of the times
//! ```
//!
//! Buckets are half octaves of nanoseconds: their bounds are 64, 96, 128, 192, 256, 384, …, 2^29. So the value that
//! [`Latency::quantile_ns`] gives is at most a fifth from each time that it stands for. What is shorter or longer than all that has a
//! bucket at either end. The region has several pages, so that sessions of different numbers count in different lines; each count is
//! added atomically, so sessions that share a page lose none. Nothing takes a count away.

use super::plan::Layout;
use crate::atomics::AtomicU64;
use crate::memory::Shared;

/// Through which door an operation came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Door {
    /// a program's own calls
    Library = 0,
    /// calls of a program that was written for libmemcached
    DropIn = 1,
    /// memcached's text protocol, without the meta commands
    Text = 2,
    /// meta commands
    Meta = 3,
    /// the binary protocol
    Binary = 4,
    /// datagrams, whatever their protocol
    Udp = 5,
    /// datagrams that the kernel door's program answers
    KernelUdp = 6,
    /// segments of TCP that it answers
    KernelTcp = 7,
}

impl Door {
    /// All of them, by number.
    pub const ALL: [Self; 8] = [
        Self::Library,
        Self::DropIn,
        Self::Text,
        Self::Meta,
        Self::Binary,
        Self::Udp,
        Self::KernelUdp,
        Self::KernelTcp,
    ];

    /// Its name in statistics and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Library => "library",
            Self::DropIn => "drop_in",
            Self::Text => "text",
            Self::Meta => "meta",
            Self::Binary => "binary",
            Self::Udp => "udp",
            Self::KernelUdp => "kernel_udp",
            Self::KernelTcp => "kernel_tcp",
        }
    }

    /// Whether only one in 256 of its operations is measured: a call of a function takes hardly longer than two looks at the clock, and
    /// the kernel door's program has no time for two looks at each packet.
    pub const fn is_sampled(self) -> bool {
        matches!(self, Self::Library | Self::DropIn) || self.is_kernel()
    }

    /// Whether the kernel door's program answers. It emits no events, and a server adds how long its operations took.
    pub const fn is_kernel(self) -> bool {
        matches!(self, Self::KernelUdp | Self::KernelTcp)
    }

    /// What it does: these verbs have a row.
    pub const fn verbs(self) -> &'static [Verb] {
        if self.is_kernel() { &[Verb::Get] } else { &Verb::ALL }
    }

    /// The rows of the doors before this one: the kernel doors, which have one each, are the last ones.
    const fn first_row(self) -> usize {
        let (number, kernel) = (self as usize, Self::KernelUdp as usize);
        if number < kernel {
            number * Verb::ALL.len()
        } else {
            kernel * Verb::ALL.len() + number - kernel
        }
    }
}

/// What an operation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Verb {
    /// a look-up, of several keys too
    Get = 0,
    /// any store
    Set = 1,
    /// a delete
    Delete = 2,
    /// incr and decr
    Arithmetic = 3,
    /// a touch, get-and-touch included
    Touch = 4,
    /// everything else
    Other = 5,
}

impl Verb {
    /// All of them, by number.
    pub const ALL: [Self; 6] = [Self::Get, Self::Set, Self::Delete, Self::Arithmetic, Self::Touch, Self::Other];

    /// Its name in statistics and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Set => "set",
            Self::Delete => "delete",
            Self::Arithmetic => "arithmetic",
            Self::Touch => "touch",
            Self::Other => "other",
        }
    }
}

/// Buckets of a row.
pub const BUCKETS: usize = 48;
/// Times below this many nanoseconds, a power of two, are in the first bucket.
pub const SHORTEST_NS: u64 = 1 << SHORTEST_LOG2;
const SHORTEST_LOG2: u32 = 6;
/// Rows of a page.
pub const ROWS: usize = Door::KernelTcp.first_row() + Door::KernelTcp.verbs().len();

/// The bucket of a time in nanoseconds.
pub const fn bucket_of(ns: u64) -> usize {
    if ns < SHORTEST_NS {
        return 0;
    }
    let octave = ns.ilog2();
    let half = (ns >> (octave - 1)) & 1;
    let bucket = 1 + 2 * (octave - SHORTEST_LOG2) as usize + super::index(half);
    if bucket < BUCKETS { bucket } else { BUCKETS - 1 }
}

/// The shortest time in a bucket, nanoseconds.
pub const fn bucket_start_ns(bucket: usize) -> u64 {
    if bucket == 0 {
        return 0;
    }
    let octave = SHORTEST_NS << ((bucket - 1) / 2);
    if bucket % 2 == 1 { octave } else { octave + octave / 2 }
}

/// A row of a page.
#[repr(C)]
pub struct LatencyRow {
    /// operations, by bucket
    pub counts: [AtomicU64; BUCKETS],
    /// the sum of their times, nanoseconds
    pub sum_ns: AtomicU64,
}

super::fields!(LatencyRow { counts, sum_ns });
// SAFETY: `repr(C)`, nothing but atomics.
#[allow(unsafe_code, reason = "the type is nothing but atomics")]
unsafe impl Shared for LatencyRow {}

/// Bytes of a page: whole cache lines.
pub const PAGE_SIZE: usize = (ROWS * size_of::<LatencyRow>()).next_multiple_of(64);
/// Sessions for each page.
const SESSIONS_PER_PAGE: usize = 16;
/// Most pages of a region: on a machine with more processors than that, some sessions share lines.
const PAGES_MAX: usize = 64;

/// Pages of a region with so many thread slots.
pub const fn pages(thread_slots: usize) -> usize {
    let pages = thread_slots / SESSIONS_PER_PAGE;
    if pages < 1 {
        1
    } else if pages > PAGES_MAX {
        PAGES_MAX
    } else {
        pages
    }
}

/// The number of a row in its page. `None`: the door has no such verb.
pub const fn row_of(door: Door, verb: Verb) -> Option<usize> {
    // The verbs of each door are the first ones.
    if (verb as usize) < door.verbs().len() {
        Some(door.first_row() + verb as usize)
    } else {
        None
    }
}

/// All doors with their verbs, in the order of their rows.
pub fn rows() -> impl Iterator<Item = (Door, Verb)> {
    Door::ALL
        .into_iter()
        .flat_map(|door| door.verbs().iter().map(move |verb| (door, *verb)))
}

/// Offset in the region of a row; `page` and `row` are below [`pages`] and [`ROWS`].
pub const fn row_at(layout: &Layout, page: usize, row: usize) -> usize {
    layout.latencies + page * PAGE_SIZE + row * size_of::<LatencyRow>()
}

/// The operations of one door and verb by their time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// operations, by bucket
    pub counts: [u64; BUCKETS],
    /// the sum of their times, nanoseconds
    pub sum_ns: u64,
}

impl Default for Latency {
    fn default() -> Self {
        Self {
            counts: [0; BUCKETS],
            sum_ns: 0,
        }
    }
}

impl Latency {
    /// Operations.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }

    /// The time in nanoseconds that so many of a thousand operations do not exceed, at most a fifth too high or too low. Below 64 ns it
    /// is 64, and above 2^29 ns it is 2^29. `None`: there are no operations.
    pub fn quantile_ns(&self, of_1000: u64) -> Option<u64> {
        let count = self.count();
        // In 128 bits: another process may have written any count.
        let rank = (u128::from(count) * u128::from(of_1000)).div_ceil(1000).max(1);
        let mut before = 0;
        let bucket = self.counts.iter().position(|count| {
            before += u128::from(*count);
            before >= rank
        })?;
        if bucket == 0 {
            return Some(SHORTEST_NS);
        }
        let start = bucket_start_ns(bucket);
        if bucket == BUCKETS - 1 {
            return Some(start);
        }
        // As far from both ends, as a share of them.
        let end = bucket_start_ns(bucket + 1);
        Some(2 * start * end / (start + end))
    }

    /// Adds what another one has counted.
    pub fn add(&mut self, other: &Self) {
        for (sum, count) in self.counts.iter_mut().zip(other.counts) {
            *sum = sum.wrapping_add(count);
        }
        self.sum_ns = self.sum_ns.wrapping_add(other.sum_ns);
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut since = *self;
        for (count, before) in since.counts.iter_mut().zip(earlier.counts) {
            *count = count.saturating_sub(before);
        }
        since.sum_ns = since.sum_ns.saturating_sub(earlier.sum_ns);
        since
    }
}

/// The operations of all doors and verbs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Latencies {
    rows: Vec<Latency>,
}

impl Default for Latencies {
    fn default() -> Self {
        Self {
            rows: vec![Latency::default(); ROWS],
        }
    }
}

impl Latencies {
    /// Those of one door and verb.
    pub fn of(&self, door: Door, verb: Verb) -> &Latency {
        const NONE: &Latency = &Latency {
            counts: [0; BUCKETS],
            sum_ns: 0,
        };
        row_of(door, verb).and_then(|row| self.rows.get(row)).unwrap_or(NONE)
    }

    /// The latencies of one door and verb, to be changed. `None`: the door has no such verb.
    pub fn of_mut(&mut self, door: Door, verb: Verb) -> Option<&mut Latency> {
        self.rows.get_mut(row_of(door, verb)?)
    }

    /// Those with a count, with their door and verb.
    pub fn counted(&self) -> impl Iterator<Item = (Door, Verb, &Latency)> {
        rows()
            .map(|(door, verb)| (door, verb, self.of(door, verb)))
            .filter(|(_, _, latency)| latency.count() > 0)
    }

    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let rows = self.rows.iter().zip(&earlier.rows);
        Self {
            rows: rows.map(|(now, earlier)| now.since(earlier)).collect(),
        }
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test")]
mod tests {
    use super::*;

    /// Numbers as if at random (xorshift64).
    fn random(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    #[test]
    fn each_time_is_between_the_bounds_of_its_bucket() {
        let edges = (0..64).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1, 3 << bit >> 1]);
        let mut state = 7;
        let others: Vec<u64> = (0..100_000).map(|i| random(&mut state) >> (i % 64)).collect();
        for ns in edges.chain(others).chain([u64::MAX]) {
            let bucket = bucket_of(ns);
            assert!(bucket_start_ns(bucket) <= ns, "{ns}: bucket {bucket}");
            assert!(
                bucket == BUCKETS - 1 || ns < bucket_start_ns(bucket + 1),
                "{ns}: bucket {bucket}"
            );
        }
        assert_eq!((bucket_start_ns(1), bucket_start_ns(2), bucket_start_ns(3)), (64, 96, 128));
        assert_eq!(bucket_start_ns(BUCKETS - 1), 1 << 29);
    }

    #[test]
    fn a_quantile_is_at_most_a_fifth_from_the_true_one() {
        let mut state = 42;
        for round in 0..300 {
            // Over all octaves, over one, and of two heaps far apart.
            let mut times: Vec<u64> = (0..1 + random(&mut state) % 5000)
                .map(|_| match round % 3 {
                    0 => (64 + random(&mut state) % (1 << 20)) >> (random(&mut state) % 14),
                    1 => 1000 + random(&mut state) % 1000,
                    _ => 100 + random(&mut state) % 50 + 1_000_000 * u64::from(random(&mut state).is_multiple_of(20)),
                })
                .map(|ns| ns.max(SHORTEST_NS))
                .collect();
            let mut latency = Latency::default();
            for ns in &times {
                latency.counts[bucket_of(*ns)] += 1;
            }
            times.sort_unstable();
            for of_1000 in [1, 10, 500, 900, 990, 999, 1000] {
                let rank = (times.len() as u64 * of_1000).div_ceil(1000).max(1);
                let exact = times[usize::try_from(rank).unwrap() - 1];
                let found = latency.quantile_ns(of_1000).unwrap();
                assert!(
                    found.abs_diff(exact) * 5 <= exact,
                    "{of_1000} of 1000: {found} ns instead of {exact} ns"
                );
            }
        }
        assert_eq!(Latency::default().quantile_ns(500), None);
    }

    #[test]
    fn ends_and_odd_counts_are_survived() {
        let mut latency = Latency::default();
        latency.counts[0] = 1;
        assert_eq!(latency.quantile_ns(500), Some(SHORTEST_NS));
        latency.counts[BUCKETS - 1] = 1;
        assert_eq!(latency.quantile_ns(1000), Some(1 << 29));
        latency.counts = [u64::MAX; BUCKETS];
        assert!(latency.quantile_ns(999).is_some());
    }

    #[test]
    fn what_was_counted_since_then_is_the_difference() {
        let (mut earlier, mut now) = (Latencies::default(), Latencies::default());
        earlier.of_mut(Door::Text, Verb::Set).unwrap().counts[3] = 2;
        let row = now.of_mut(Door::Text, Verb::Set).unwrap();
        (row.counts[3], row.sum_ns) = (5, 700);
        let since = now.since(&earlier);
        let counted: Vec<_> = since
            .counted()
            .map(|(door, verb, row)| (door, verb, row.count(), row.sum_ns))
            .collect();
        assert_eq!(counted, [(Door::Text, Verb::Set, 3, 700)]);
    }

    #[test]
    fn no_two_doors_and_verbs_share_a_row() {
        let numbers: Vec<usize> = rows().map(|(door, verb)| row_of(door, verb).unwrap()).collect();
        assert_eq!(numbers, (0..ROWS).collect::<Vec<_>>());
        for door in Door::ALL {
            let with_row: Vec<Verb> = Verb::ALL.into_iter().filter(|verb| row_of(door, *verb).is_some()).collect();
            assert_eq!(with_row, door.verbs(), "{door:?}");
            assert_eq!(Door::ALL[door as usize], door, "the number of a door is its place");
        }
        assert_eq!(row_of(Door::KernelTcp, Verb::Get), Some(ROWS - 1));
    }
}
