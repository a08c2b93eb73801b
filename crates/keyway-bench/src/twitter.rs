//! Workloads like those of Twitter's cache clusters, one for each, from the figures that their authors published.
//!
//! A preset has a cluster's mean sizes, its mix of operations, its times to live, its popularity, and its share of keys that were
//! never asked for before. It does not have what was not published: the order of requests, and how sizes vary. What was missed is
//! stored, as an application does. `gets` counts as get; `cas`, `incr` and `prepend` as set.

use crate::mix::{Access, Kind, Workload};
use crate::workload::Sizes;

const CLUSTERS: &str = include_str!("twitter.csv");
/// Weights of a mix are parts of so many.
const PARTS: f64 = 10_000.0;
/// Longer times to live would be read as points in time (protocol.txt, "Expiration times").
const TTL_S_MAX: f64 = 2_592_000.0;

/// All of them: `twitter-1` to `twitter-54`.
pub fn clusters() -> Vec<Workload> {
    let lines = CLUSTERS.lines().filter(|line| !line.starts_with('#')).skip(1);
    lines.filter_map(cluster).collect()
}

fn cluster(line: &str) -> Option<Workload> {
    let mut fields = line.split(';');
    let mut field = || fields.next();
    let (number, key_len, value_len) = (field()?, field()?.parse().ok()?, field()?.parse().ok()?);
    let new_share = field()?.parse::<f64>().ok()? / 100.0;
    let ttls = pairs(field()?)
        .map(|(ttl, share)| Some((seconds(ttl)?, parts(share))))
        .collect::<Option<_>>()?;
    let mut mix = Vec::new();
    for (operation, share) in pairs(field()?) {
        let (old, new) = kinds(operation)?;
        mix.push((old, parts(share * (1.0 - new_share))));
        mix.push((new, parts(share * new_share)));
    }
    mix.retain(|(_, weight)| *weight > 0);
    let access = match field()? {
        "" | "0" => Access::Uniform,
        exponent => Access::Skewed(exponent.parse().ok()?),
    };
    Some(Workload {
        name: format!("twitter-{number}"),
        about: format!("like Twitter's cluster {number} of March 2020 (Yang, Yue, Rashmi, OSDI 2020)"),
        mix,
        sizes: Sizes::Both(key_len, value_len),
        access,
        ttls,
        fill: true,
        trace: None,
    })
}

/// An operation on an item that was asked for before, and on one that was not.
fn kinds(operation: &str) -> Option<(Kind, Kind)> {
    match operation {
        "get" | "gets" => Some((Kind::Get, Kind::GetNew)),
        "set" | "cas" | "incr" | "prepend" => Some((Kind::Set, Kind::Insert)),
        "add" => Some((Kind::Add, Kind::Insert)),
        "delete" => Some((Kind::Remove, Kind::GetNew)),
        _ => None,
    }
}

/// `name:share` words.
fn pairs(text: &str) -> impl Iterator<Item = (&str, f64)> {
    text.split(' ')
        .filter_map(|word| word.split_once(':'))
        .filter_map(|(name, share)| Some((name, share.parse().ok()?)))
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share is 0 to 1")]
fn parts(share: f64) -> u32 {
    (share * PARTS).round() as u32
}

/// Such as 240s, 1.5h, 4d.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "bounded by the constant"
)]
fn seconds(text: &str) -> Option<u32> {
    let (number, unit) = text.split_at(text.len().checked_sub(1)?);
    let factor = match unit {
        "s" => 1.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => return None,
    };
    Some((number.parse::<f64>().ok()? * factor).clamp(1.0, TTL_S_MAX) as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_workload() {
        let lines = CLUSTERS
            .lines()
            .filter(|line| line.starts_with(|c: char| c.is_ascii_digit()))
            .count();
        let all = clusters();
        assert_eq!(all.len(), lines);
        assert_eq!(lines, 53);
        for workload in &all {
            assert!(!workload.mix.is_empty() && !workload.ttls.is_empty(), "{workload:?}");
            let weights: u32 = workload.mix.iter().map(|(_, weight)| weight).sum();
            assert!((9_000..=11_000).contains(&weights), "{workload:?}");
        }
    }

    #[test]
    fn a_cluster_is_as_published() {
        let four = clusters().into_iter().find(|w| w.name == "twitter-4").unwrap();
        assert_eq!(four.sizes, Sizes::Both(67, 2439));
        assert_eq!(four.access, Access::Skewed(1.1004));
        assert_eq!(four.ttls[..3], [(60, 3900), (300, 2400), (3600, 1300)]);
        let share = |kind| four.mix.iter().find(|(k, _)| *k == kind).map_or(0, |(_, weight)| *weight);
        assert_eq!([share(Kind::Get), share(Kind::Set)], [8949, 674]);
        assert_eq!([share(Kind::GetNew), share(Kind::Insert)], [351, 26]);
    }

    #[test]
    fn times_have_units() {
        assert_eq!(
            [seconds("240s"), seconds("1.5h"), seconds("2d"), seconds("92.6d")],
            [Some(240), Some(5400), Some(172_800), Some(2_592_000)]
        );
        assert_eq!([seconds("5"), seconds(""), seconds("xs")], [None; 3]);
    }
}
