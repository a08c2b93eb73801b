//! What the page's charts show: the last hour, in two steps. The newest [`FINE_MOST`] seconds have a sample each; older ones are thinned to
//! one of ten seconds.
//!
//! Samples are taken once a second on the port's own thread, of counters that exist anyway. They take at most [`SIZE_MAX`] bytes, whatever
//! the server does.

use keyway_cache::server::ServerCache as _;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use keyway_cache::server::latency::BUCKETS;
use keyway_cache::server::{Entrance, ThreadInUse};
use keyway_cache::{Cache, Counters, Door, Latencies, Verb};
use serde_json::{Value, json};

use crate::overview::operations;
use crate::shared::Shared;

/// Time between two samples of each step.
const STEPS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(10)];
/// Samples of the fine step: ten minutes.
const FINE_MOST: usize = 600;
/// Samples of the coarse step: an hour.
const COARSE_MOST: usize = 360;
/// Most bytes of all samples.
const SIZE_MAX: usize = 7 << 18;
const _: () = assert!((FINE_MOST + COARSE_MOST) * size_of::<Sample>() <= SIZE_MAX);

/// The numbers of a sample besides the operations by door, in their order.
const NUMBERS: [&str; 11] = [
    "hits",
    "misses",
    "sets",
    "evictions",
    "evicted_unfetched",
    "bytes_read",
    "bytes_written",
    "items",
    "bytes",
    "connections",
    "connection_memory",
];

/// What has been counted up to a moment, and what there is at it.
struct Totals {
    at: Instant,
    counters: Counters,
    latencies: Latencies,
    /// operations of the library door, those of drop-ins included, and those of drop-ins
    library: u64,
    drop_in: u64,
    /// answers of the kernel door: datagrams, and keys of requests on TCP
    kernel_hits: [u64; 2],
    bytes_read: u64,
    bytes_written: u64,
    connections: u64,
    connection_memory: u64,
}

/// What happened between two moments.
#[derive(Clone)]
struct Sample {
    /// its end: time since the history began
    at_ms: u64,
    ms: u32,
    /// a second
    operations: [f32; Door::ALL.len()],
    /// of [`NUMBERS`]: first what is counted, a second, then what there was at the end
    numbers: [f64; NUMBERS.len()],
    /// measured operations by door and bucket of their time
    times: [[u32; BUCKETS]; Door::ALL.len()],
}

/// Samples of one step.
struct Ring {
    step: Duration,
    most: usize,
    samples: VecDeque<Sample>,
    before: Option<Totals>,
}

/// How many operations drop-ins have made. The region's counters are kept by thread slot: what a slot has counted since the last look is
/// its present tenant's.
#[derive(Default)]
struct DropIns {
    operations: u64,
    /// what each slot had counted at the last look
    slots: BTreeMap<usize, u64>,
}

/// See the top of the file.
pub(super) struct History {
    begun: Instant,
    drop_ins: DropIns,
    rings: [Ring; 2],
}

impl Totals {
    /// Reads everything.
    fn read(shared: &Shared, cache: &Cache, drop_in: u64) -> Self {
        let (bytes_read, bytes_written) = shared.workers.traffic().bytes();
        Self {
            at: Instant::now(),
            counters: shared.census.counters(cache),
            latencies: cache.latencies(),
            library: operations(&shared.census.library(cache)),
            drop_in,
            kernel_hits: shared
                .kernel
                .as_ref()
                .map_or([0; 2], |post| post.numbers().hits_by_protocol()),
            bytes_read,
            bytes_written,
            connections: shared.peers.current() as u64,
            connection_memory: shared.account.used() as u64,
        }
    }
}

impl Sample {
    fn between(before: &Totals, now: &Totals, begun: Instant) -> Self {
        let elapsed = now.at.saturating_duration_since(before.at);
        let elapsed_s = elapsed.as_secs_f64().max(1e-3);
        let per_s = |now: u64, before: u64| number(now.saturating_sub(before)) / elapsed_s;
        let mut operations = [0.0; Door::ALL.len()];
        let mut times = [[0; BUCKETS]; Door::ALL.len()];
        for ((door, operations), times) in Door::ALL.into_iter().zip(&mut operations).zip(&mut times) {
            let mut all = 0;
            for verb in Verb::ALL {
                let latency = now.latencies.of(door, verb).since(before.latencies.of(door, verb));
                for (sum, count) in times.iter_mut().zip(latency.counts) {
                    all += count;
                    *sum = u32::try_from(count).unwrap_or(u32::MAX).saturating_add(*sum);
                }
            }
            let drop_in = now.drop_in.saturating_sub(before.drop_in);
            let counted = match door {
                Door::Library => now.library.saturating_sub(before.library).saturating_sub(drop_in),
                Door::DropIn => drop_in,
                // All of their requests are measured.
                Door::Text | Door::Meta | Door::Binary | Door::Udp => all,
                Door::KernelUdp => now.kernel_hits[0].saturating_sub(before.kernel_hits[0]),
                Door::KernelTcp => now.kernel_hits[1].saturating_sub(before.kernel_hits[1]),
            };
            *operations = single(per_s(counted, 0));
        }
        let (n, b) = (&now.counters, &before.counters);
        Self {
            at_ms: milliseconds(now.at.saturating_duration_since(begun)),
            ms: u32::try_from(elapsed.as_millis()).unwrap_or(u32::MAX),
            operations,
            numbers: [
                per_s(n.get_hits, b.get_hits),
                per_s(n.get_misses, b.get_misses),
                per_s(n.cmd_set, b.cmd_set),
                per_s(n.evictions, b.evictions),
                per_s(n.evicted_unfetched, b.evicted_unfetched),
                per_s(now.bytes_read, before.bytes_read),
                per_s(now.bytes_written, before.bytes_written),
                number(n.curr_items),
                number(n.bytes),
                number(now.connections),
                number(now.connection_memory),
            ],
            times,
        }
    }

    /// `[at_ms, ms, operations by door …, numbers …, times]`; times: door, bucket and count of each that is not 0.
    fn json(&self) -> Value {
        let short = |number: f64| {
            if number.fract() == 0.0 {
                number
            } else {
                (number * 100.0).round() / 100.0
            }
        };
        let mut all = vec![self.at_ms.into(), self.ms.into()];
        all.extend(self.operations.iter().map(|per_s| Value::from(short((*per_s).into()))));
        all.extend(self.numbers.iter().map(|number| Value::from(short(*number))));
        let times = self.times.iter().enumerate().flat_map(|(door, counts)| {
            let counted = counts.iter().enumerate().filter(|(_, count)| **count > 0);
            counted.flat_map(move |(bucket, count)| [door.into(), bucket.into(), Value::from(*count)])
        });
        all.push(times.collect());
        all.into()
    }
}

impl DropIns {
    fn look(&mut self, seated: Vec<(Entrance, ThreadInUse)>) {
        for (entrance, seated) in seated {
            let (slot, now) = (seated.tenancy.0, operations(&seated.counters));
            let before = self.slots.insert(slot, now);
            if let (Entrance::DropIn, Some(before)) = (entrance, before) {
                self.operations += now.saturating_sub(before);
            }
        }
    }
}

impl History {
    pub(super) fn new() -> Self {
        let ring = |step, most| Ring {
            step,
            most,
            // Memory that is not written yet is not there yet.
            samples: VecDeque::with_capacity(most),
            before: None,
        };
        Self {
            begun: Instant::now(),
            drop_ins: DropIns::default(),
            rings: [ring(STEPS[0], FINE_MOST), ring(STEPS[1], COARSE_MOST)],
        }
    }

    /// Looks at the counters, and takes the samples that are due.
    pub(super) fn remember(&mut self, shared: &Shared, cache: &Cache) {
        self.drop_ins.look(cache.seated());
        let drop_in = self.drop_ins.operations;
        self.take(|| Totals::read(shared, cache, drop_in));
    }

    fn take(&mut self, read: impl Fn() -> Totals) {
        let now = Instant::now();
        for ring in self.rings.iter_mut().filter(|ring| ring.is_due(now)) {
            ring.take(read(), self.begun);
        }
    }

    /// The samples that ended after so many milliseconds of this history.
    pub(super) fn json(&self, after_ms: u64) -> Value {
        let steps = self.rings.iter().map(|ring| {
            let fresh = ring.samples.iter().filter(|sample| sample.at_ms > after_ms);
            json!({ "seconds": ring.step.as_secs(), "most": ring.most, "samples": fresh.map(Sample::json).collect::<Value>() })
        });
        let fields = ["at_ms", "ms"]
            .into_iter()
            .chain(Door::ALL.map(Door::name))
            .chain(NUMBERS)
            .chain(["times"]);
        json!({
            "now_ms": milliseconds(self.begun.elapsed()),
            "fields": fields.collect::<Value>(),
            "steps": steps.collect::<Value>(),
        })
    }
}

impl Ring {
    fn is_due(&self, now: Instant) -> bool {
        // A tenth early is in time: the thread's alarm comes when it comes.
        let has_passed = |before: &Totals| now.saturating_duration_since(before.at) + self.step / 10 >= self.step;
        self.before.as_ref().is_none_or(has_passed)
    }

    fn take(&mut self, now: Totals, begun: Instant) {
        if let Some(before) = &self.before {
            if self.samples.len() == self.most {
                self.samples.pop_front();
            }
            self.samples.push_back(Sample::between(before, &now, begun));
        }
        self.before = Some(now);
    }
}

fn milliseconds(time: Duration) -> u64 {
    time.as_millis().try_into().unwrap_or(u64::MAX)
}

#[expect(clippy::cast_precision_loss, reason = "for charts: 16 digits are enough")]
fn number(count: u64) -> f64 {
    count as f64
}

#[expect(clippy::cast_possible_truncation, reason = "for charts: 7 digits are enough")]
fn single(number: f64) -> f32 {
    number as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(begun: Instant, s: u64) -> Totals {
        let mut latencies = Latencies::default();
        for door in Door::ALL {
            let row = latencies.of_mut(door, Verb::Get).unwrap();
            row.counts = [s * 3; BUCKETS];
        }
        let mut counters = Counters::default();
        (counters.get_hits, counters.get_misses, counters.curr_items) = (s * 30, s * 10, s);
        Totals {
            at: begun + Duration::from_secs(s),
            counters,
            latencies,
            library: s * 11,
            drop_in: s * 4,
            kernel_hits: [s * 7, s * 9],
            bytes_read: u64::MAX,
            bytes_written: 0,
            connections: 5,
            connection_memory: 0,
        }
    }

    #[test]
    fn a_sample_has_rates_and_what_there_was() {
        let begun = Instant::now();
        let sample = Sample::between(&totals(begun, 10), &totals(begun, 20), begun);
        assert_eq!((sample.at_ms, sample.ms), (20_000, 10_000));
        let each = f32::from(u16::try_from(3 * BUCKETS).unwrap());
        assert_eq!(sample.operations, [7.0, 4.0, each, each, each, each, 7.0, 9.0]);
        assert_eq!(&sample.numbers[..3], [30.0, 10.0, 0.0]);
        assert_eq!(&sample.numbers[5..], [0.0, 0.0, 20.0, 0.0, 5.0, 0.0]);
        assert_eq!(sample.times, [[30; BUCKETS]; Door::ALL.len()]);
        // Counts that another process has put back are no rate.
        let odd = Sample::between(&totals(begun, 20), &totals(begun, 10), begun);
        assert_eq!((odd.numbers[0], odd.operations[2]), (0.0, 0.0));
        assert!(odd.numbers.iter().all(|number| number.is_finite()));
    }

    #[test]
    fn an_hour_and_more_takes_no_more_memory_than_stated() {
        let begun = Instant::now();
        let mut history = History::new();
        for ring in &mut history.rings {
            let step_s = ring.step.as_secs();
            // Two hours.
            for number in 0..=7200 / step_s {
                ring.take(totals(begun, number * step_s), begun);
            }
        }
        let [fine, coarse] = &history.rings;
        let held = |ring: &Ring| ring.samples.capacity() * size_of::<Sample>();
        assert!(held(fine) + held(coarse) <= SIZE_MAX, "{} bytes", held(fine) + held(coarse));
        assert_eq!((fine.samples.len(), coarse.samples.len()), (600, 360));
        let covered_ms =
            |ring: &Ring| ring.samples[ring.samples.len() - 1].at_ms - ring.samples[0].at_ms + u64::from(ring.samples[0].ms);
        assert_eq!((covered_ms(fine), covered_ms(coarse)), (600_000, 3_600_000));
        let all = history.json(0);
        assert_eq!(all["steps"][0]["samples"].as_array().unwrap().len(), 600);
        assert_eq!(
            all["fields"].as_array().unwrap().len(),
            all["steps"][0]["samples"][0].as_array().unwrap().len()
        );
        assert_eq!(history.json(7_199_000)["steps"][0]["samples"].as_array().unwrap().len(), 1);
        assert_eq!(history.json(7_200_000)["steps"][1]["samples"].as_array().unwrap().len(), 0);
    }

    #[test]
    fn a_slot_counts_for_its_present_tenant() {
        let mut drop_ins = DropIns::default();
        let seated = |slot: usize, gets: u64| {
            let mut counters = Counters::default();
            counters.get_hits = gets;
            ThreadInUse {
                tenancy: (slot, 0),
                counters,
                ..ThreadInUse::default()
            }
        };
        // What was counted before the first look is no rate.
        drop_ins.look(vec![(Entrance::DropIn, seated(1, 100)), (Entrance::Library, seated(2, 100))]);
        assert_eq!(drop_ins.operations, 0);
        drop_ins.look(vec![(Entrance::DropIn, seated(1, 105)), (Entrance::Library, seated(2, 150))]);
        assert_eq!(drop_ins.operations, 5);
        drop_ins.look(vec![(Entrance::DropIn, seated(2, 151)), (Entrance::Server, seated(3, 9))]);
        assert_eq!(drop_ins.operations, 6);
        assert_eq!(drop_ins.slots.len(), 3, "one for each slot");
    }

    #[test]
    fn a_sample_waits_for_its_step() {
        let mut history = History::new();
        for _ in 0..3 {
            history.take(|| totals(Instant::now(), 0));
        }
        assert!(
            history
                .rings
                .iter()
                .all(|ring| ring.samples.is_empty() && ring.before.is_some())
        );
        let long_ago = Instant::now() - Duration::from_secs(4);
        history
            .rings
            .iter_mut()
            .for_each(|ring| ring.before = Some(totals(long_ago, 0)));
        history.take(|| totals(Instant::now(), 0));
        assert_eq!(history.rings.map(|ring| ring.samples.len()), [1, 0]);
    }
}
