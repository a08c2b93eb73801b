//! Hot keys: what the region's counters say, with the keys that they are about.

use crate::observe::survey::Watched;
use crate::session::roster::Sessions;
use keyway_region::layout::hot::By;
use keyway_region::verbs::KEY_LEN_MAX;
use keyway_region::{HotRange, HotSnapshot, Region};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The hot-key counters of a region as they were at one moment.
#[derive(Debug)]
pub struct HotCounts {
    snapshot: HotSnapshot,
    taken: Instant,
}

impl HotCounts {
    /// See [`crate::Cache::hot_counts`].
    pub(crate) fn read(sessions: &Sessions) -> Self {
        let now = sessions.now();
        let read = |region: &Region| {
            if !sessions.is_reader() {
                region.hot().watch_hot(region.clock().tick(now));
            }
            region.hot().hot_snapshot()
        };
        Self {
            snapshot: sessions.view(read),
            taken: Instant::now(),
        }
    }

    /// How long after an earlier moment this was.
    pub fn after(&self, earlier: &Self) -> Duration {
        self.taken.saturating_duration_since(earlier.taken)
    }
}

/// A key, or the keys with a prefix, and how much was counted: operations or bytes, by all sessions of all processes. Sampling puts
/// the truth outside of the two bounds about once in twenty times.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Hot {
    /// the key or the prefix; `None`: keys of which nothing but the hash is known, because they have no item now, and are longer than
    /// 127 bytes or were not read
    pub name: Option<Vec<u8>>,
    /// its hash in this region; `None` for the keys that have no item, as a group
    pub hash: Option<u64>,
    /// the best estimate
    pub estimate: u64,
    /// at least this much
    pub at_least: u64,
    /// at most this much
    pub at_most: u64,
}

/// See [`crate::Cache::hot_keys`].
pub(crate) fn keys(sessions: &Sessions, counts: &HotCounts, since: Option<&HotCounts>, by: By, most: usize) -> Vec<Hot> {
    hottest(counts, since, by, most, |hash| of_hash(sessions, hash))
}

/// See [`crate::Cache::hot_prefixes`].
pub(crate) fn prefixes(
    sessions: &Sessions,
    counts: &HotCounts,
    since: Option<&HotCounts>,
    by: By,
    most: usize,
    separator: &[u8],
) -> Vec<Hot> {
    #[derive(Default)]
    struct Group {
        own: u64,
        bound: u64,
        variance: f64,
    }
    let mut groups: HashMap<Option<Vec<u8>>, Group> = HashMap::new();
    let mut foreign = 0u64;
    for range in counts.snapshot.ranges(by, since.map(|since| &since.snapshot)) {
        let name = of_hash(sessions, range.hash).map(|mut key| {
            let end = key.windows(separator.len().max(1)).position(|part| part == separator);
            key.truncate(end.unwrap_or(key.len()));
            key
        });
        let group = groups.entry(name).or_default();
        group.own = group.own.saturating_add(range.estimate);
        group.bound = group.bound.saturating_add(range.bound);
        group.variance += range.variance;
        foreign = range.bound.saturating_sub(range.estimate).saturating_add(foreign);
    }
    let hot = |(name, group): (Option<Vec<u8>>, Group)| {
        let error = HotRange::sampling_error(group.variance);
        Hot {
            hash: name.as_ref().and_then(|name| Some(sessions.region()?.mapped().hash(name))),
            name,
            estimate: group.bound,
            at_least: group.own.saturating_sub(error),
            at_most: group.own.saturating_add(foreign).saturating_add(error),
        }
    };
    let mut found: Vec<Hot> = groups.into_iter().map(hot).collect();
    found.sort_by(|a, b| (b.estimate, &a.name).cmp(&(a.estimate, &b.name)));
    found.truncate(most);
    found
}

/// The key with this hash. `None`: it has no item now, and its counter of gets no text.
fn of_hash(sessions: &Sessions, hash: u64) -> Option<Vec<u8>> {
    let now = sessions.now();
    sessions.view(|region| name_of_hash(region, hash, region.clock().tick(now)))
}

impl Watched {
    /// Reads the hot-key counters, as [`crate::Cache::hot_counts`], but nothing is counted more often because of that.
    pub fn hot_counts(&self) -> HotCounts {
        HotCounts {
            snapshot: self.region().hot().hot_snapshot(),
            taken: Instant::now(),
        }
    }

    /// The `most` hottest keys, the hottest first: all in all, or since an earlier moment.
    pub fn hot_keys(&self, counts: &HotCounts, since: Option<&HotCounts>, by: By, most: usize) -> Vec<Hot> {
        let (region, now) = (self.region(), self.tick());
        hottest(counts, since, by, most, |hash| name_of_hash(region, hash, now))
    }
}

/// The key with this hash: its item's, or what its counter of the gets has.
fn name_of_hash(region: &Region, hash: u64, now: u32) -> Option<Vec<u8>> {
    let mut key = Vec::with_capacity(2 * KEY_LEN_MAX);
    if region.index().key_of_hash(hash, now, &mut key) {
        return Some(key);
    }
    // An item that has gone may have left its key.
    key.clear();
    region.hot().hot_name(hash, &mut key).then_some(key)
}

/// The `most` hottest keys. `name`: the key of the item with a hash.
fn hottest(
    counts: &HotCounts,
    since: Option<&HotCounts>,
    by: By,
    most: usize,
    name: impl Fn(u64) -> Option<Vec<u8>>,
) -> Vec<Hot> {
    let mut ranges = counts.snapshot.ranges(by, since.map(|since| &since.snapshot));
    ranges.truncate(most);
    let hot = |range: HotRange| Hot {
        name: name(range.hash),
        hash: Some(range.hash),
        estimate: range.estimate,
        at_least: range.at_least(),
        at_most: range.at_most(),
    };
    ranges.into_iter().map(hot).collect()
}
