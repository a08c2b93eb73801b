//! Metrics in Prometheus's binary format, which alone has native histograms: messages of
//! `io.prometheus.client`, each after its length (<https://github.com/prometheus/client_model>, `metrics.proto`).
//!
//! A native histogram has a bucket for each power of a base, here the square root of two (schema 1), so that histograms of many servers
//! have the same buckets. Own buckets are in those that have their middle.

use std::collections::BTreeMap;

use prost::Message;

use crate::exposition::Kind;

/// Buckets of a native histogram for each doubling of the value: two to the power of its schema.
const PER_DOUBLING: f64 = 2.0;
const SCHEMA: i32 = 1;
/// Values up to this are zero, to Prometheus's own clients: 2 to the power of -128.
const ZERO_THRESHOLD: f64 = 2.938_735_877_055_719e-39;

/// A metric with all its samples.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Family {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    help: Option<String>,
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
    #[prost(message, repeated, tag = "4")]
    samples: Vec<Sample>,
    #[prost(string, optional, tag = "5")]
    unit: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(message, repeated, tag = "1")]
    labels: Vec<Label>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Number>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Number>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    value: Option<String>,
}

/// A gauge or counter.
#[derive(Clone, Copy, PartialEq, Message)]
struct Number {
    #[prost(double, optional, tag = "1")]
    value: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(uint64, optional, tag = "1")]
    count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    sum: Option<f64>,
    #[prost(message, repeated, tag = "3")]
    classic: Vec<Bucket>,
    #[prost(sint32, optional, tag = "5")]
    schema: Option<i32>,
    #[prost(double, optional, tag = "6")]
    zero_threshold: Option<f64>,
    #[prost(uint64, optional, tag = "7")]
    zero_count: Option<u64>,
    #[prost(message, repeated, tag = "12")]
    spans: Vec<Span>,
    #[prost(sint64, repeated, tag = "13")]
    deltas: Vec<i64>,
}

/// A bucket of a classic histogram.
#[derive(Clone, Copy, PartialEq, Message)]
struct Bucket {
    #[prost(uint64, optional, tag = "1")]
    events_below: Option<u64>,
    #[prost(double, optional, tag = "2")]
    bound: Option<f64>,
}

/// Buckets of a native histogram that follow one another.
#[derive(Clone, Copy, PartialEq, Message)]
struct Span {
    /// the number of the first bucket, or how many are left out since the span before
    #[prost(sint32, optional, tag = "1")]
    offset: Option<i32>,
    #[prost(uint32, optional, tag = "2")]
    length: Option<u32>,
}

impl Family {
    pub(crate) fn new(name: &str, kind: Kind, help: &str, unit: Option<&str>) -> Self {
        // The values of the enum `MetricType`.
        let kind = match kind {
            Kind::Counter => 0,
            Kind::Gauge => 1,
            Kind::Histogram => 4,
        };
        Self {
            name: Some(name.to_owned()),
            help: Some(help.to_owned()),
            kind: Some(kind),
            samples: Vec::new(),
            unit: unit.map(str::to_owned),
        }
    }

    pub(crate) fn sample(&mut self, labels: &[(&str, &str)], value: f64) {
        let number = Some(Number { value: Some(value) });
        let labels = named(labels);
        self.samples.push(match self.kind {
            Some(0) => Sample {
                labels,
                counter: number,
                ..Sample::default()
            },
            _ => Sample {
                labels,
                gauge: number,
                ..Sample::default()
            },
        });
    }

    /// `buckets`: upper bounds, in rising order, with the number of events in each; `count`: all events.
    pub(crate) fn histogram(&mut self, labels: &[(&str, &str)], buckets: &[(f64, u64)], count: u64, sum: f64) {
        let mut below = 0u64;
        let classic: Vec<_> = buckets
            .iter()
            .map(|(bound, events)| {
                below = below.saturating_add(*events);
                Bucket {
                    events_below: Some(below),
                    bound: Some(*bound),
                }
            })
            .collect();
        let (spans, deltas) = native(buckets, count.saturating_sub(below));
        let histogram = Histogram {
            count: Some(count),
            sum: Some(sum),
            classic,
            schema: Some(SCHEMA),
            zero_threshold: Some(ZERO_THRESHOLD),
            zero_count: Some(0),
            spans,
            deltas,
        };
        self.samples.push(Sample {
            labels: named(labels),
            histogram: Some(histogram),
            ..Sample::default()
        });
    }
}

/// All families, each after its length.
pub(crate) fn encoded(families: &[Family]) -> Vec<u8> {
    families.iter().flat_map(Message::encode_length_delimited_to_vec).collect()
}

fn named(labels: &[(&str, &str)]) -> Vec<Label> {
    let label = |(name, value): &(&str, &str)| Label {
        name: Some((*name).to_owned()),
        value: Some((*value).to_owned()),
    };
    labels.iter().map(label).collect()
}

/// The same buckets as those of a native histogram. `above`: events above the last bound.
fn native(buckets: &[(f64, u64)], above: u64) -> (Vec<Span>, Vec<i64>) {
    let mut counts = BTreeMap::<i32, u64>::new();
    let mut lower = buckets.first().map_or(0.0, |(bound, _)| bound / 2.0);
    let last = buckets.last().map_or(1.0, |(bound, _)| *bound);
    for (upper, events) in buckets.iter().copied().chain([(1.5 * last, above)]) {
        if events > 0 {
            let count = counts.entry(number_of((lower * upper).sqrt())).or_default();
            *count = count.saturating_add(events);
        }
        lower = upper;
    }
    let (mut spans, mut deltas) = (Vec::<Span>::new(), Vec::new());
    let (mut next, mut before) = (0, 0i64);
    for (number, count) in counts {
        let count = i64::try_from(count).unwrap_or(i64::MAX);
        match spans.last_mut() {
            Some(span) if number == next => span.length = Some(span.length().saturating_add(1)),
            _ => spans.push(Span {
                offset: Some(number - next),
                length: Some(1),
            }),
        }
        deltas.push(count - before);
        (next, before) = (number + 1, count);
    }
    (spans, deltas)
}

/// The native bucket of a value: number `n` ends at `2^(n / PER_DOUBLING)`.
#[expect(clippy::cast_possible_truncation, reason = "a logarithm is small, and `as` saturates")]
fn number_of(value: f64) -> i32 {
    (PER_DOUBLING * value.log2()).ceil() as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bucket_is_in_the_native_one_of_its_middle() {
        let span = |offset, length| Span {
            offset: Some(offset),
            length: Some(length),
        };
        // Half doublings, as the region has them, follow one another: their middles are 1.06, 1.73, 2.45, 3.46 and 4.90.
        let halves = |counts: [u64; 4]| {
            native(
                &std::array::from_fn::<_, 4, _>(|half| ([1.5, 2.0, 3.0, 4.0][half], counts[half])),
                9,
            )
        };
        assert_eq!(halves([7, 1, 5, 2]), (vec![span(1, 5)], vec![7, -6, 4, -3, 7]));
        assert_eq!(halves([7, 0, 0, 2]), (vec![span(1, 1), span(2, 2)], vec![7, -5, 7]));
        assert_eq!(native(&[], 0), (Vec::new(), Vec::new()));
        // Counts of a damaged region.
        assert_eq!(native(&[(1.5, u64::MAX), (2.0, u64::MAX)], u64::MAX).1, [i64::MAX, 0, 0]);
    }
}
