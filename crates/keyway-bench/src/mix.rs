//! What is asked of a cache: named workloads, and streams of their operations, drawn before the clock starts.

use crate::items::Items;
use crate::workload::{Rng, Sizes, Zipf, mix};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// read a value
    Get,
    /// store over an item that is there
    Set,
    /// store an item that is not there yet
    Insert,
    /// read a value, then store one: one operation, two requests
    ReadModifyWrite,
    /// delete an item; it is stored before, off the clock
    Delete,
    /// count a number up by one
    Incr,
}

const KINDS: [Kind; 6] = [
    Kind::Get,
    Kind::Set,
    Kind::Insert,
    Kind::ReadModifyWrite,
    Kind::Delete,
    Kind::Incr,
];

/// How operations fall on items.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Access {
    /// every item alike
    Uniform,
    /// YCSB's scrambled zipfian, exponent 0.99
    Zipf,
    /// YCSB's latest: the newest items are the most popular, zipfian with exponent 0.99
    Latest,
}

impl Access {
    /// As it is written on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
            Self::Latest => "latest",
        }
    }

    /// From a command line.
    pub fn parse(text: &str) -> Result<Self, String> {
        [Self::Uniform, Self::Zipf, Self::Latest]
            .into_iter()
            .find(|a| a.name() == text)
            .ok_or_else(|| format!("\"{text}\" is no popularity; there are uniform, zipf (exponent 0.99) and latest"))
    }
}

/// What is asked of a cache, and of which items.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// as it is written on a command line
    pub name: String,
    /// what it is and where it comes from
    pub about: String,
    /// kinds and their weights
    pub mix: Vec<(Kind, u32)>,
    /// of keys and values
    pub sizes: Sizes,
    /// which items
    pub access: Access,
}

/// A workload as the table below has it: name, about, mix, sizes, access.
type Line = (&'static str, &'static str, &'static [(Kind, u32)], Sizes, Access);

const GET: (Kind, u32) = (Kind::Get, 1);
const SET: (Kind, u32) = (Kind::Set, 1);
/// 19 gets to one set.
const READ_MOSTLY: &[(Kind, u32)] = &[(Kind::Get, 19), SET];

/// YCSB: ten fields of 100 bytes, "user" and up to 19 digits (Cooper et al., SoCC 2010).
const YCSB: Sizes = Sizes::Both(23, 1000);

#[rustfmt::skip]
const TABLE: &[Line] = &[
    ("ycsb-a", "YCSB A: 50 % get, 50 % set", &[GET, SET], YCSB, Access::Zipf),
    ("ycsb-b", "YCSB B: 95 % get, 5 % set", READ_MOSTLY, YCSB, Access::Zipf),
    ("ycsb-c", "YCSB C: get only", &[GET], YCSB, Access::Zipf),
    ("ycsb-d", "YCSB D: 95 % get of the latest, 5 % new items", &[(Kind::Get, 19), (Kind::Insert, 1)], YCSB, Access::Latest),
    ("ycsb-f", "YCSB F: 50 % get, 50 % get and then set", &[GET, (Kind::ReadModifyWrite, 1)], YCSB, Access::Zipf),
    ("128b-95", "protected library (ICPP 2020): 95 % get, 5 % set", READ_MOSTLY, Sizes::Fixed(128), Access::Zipf),
    ("128b-50", "protected library: 50 % get, 50 % set", &[GET, SET], Sizes::Fixed(128), Access::Zipf),
    ("5k-95", "protected library: 95 % get, 5 % set", READ_MOSTLY, Sizes::Fixed(5 << 10), Access::Zipf),
    ("5k-50", "protected library: 50 % get, 50 % set", &[GET, SET], Sizes::Fixed(5 << 10), Access::Zipf),
    ("get-128b", "one verb", &[GET], Sizes::Fixed(128), Access::Zipf),
    ("get-5k", "one verb", &[GET], Sizes::Fixed(5 << 10), Access::Zipf),
    ("set-128b", "one verb", &[SET], Sizes::Fixed(128), Access::Zipf),
    ("set-5k", "one verb", &[SET], Sizes::Fixed(5 << 10), Access::Zipf),
    ("delete", "one verb; each item is stored before, which counts in throughput and CPU time and not in latency", &[(Kind::Delete, 1)], Sizes::Fixed(128), Access::Uniform),
    ("incr", "one verb, on numbers of ten digits", &[(Kind::Incr, 1)], Sizes::Fixed(10), Access::Zipf),
    ("20b", "Hippos (2014): get only", &[GET], Sizes::Both(20, 20), Access::Zipf),
    ("unbuckle", "Unbuckle (2014): 90 % get, 10 % set", &[(Kind::Get, 9), SET], Sizes::UpTo(64, 1024), Access::Zipf),
    ("mica-small", "MICA's small items: 95 % get, 5 % set", READ_MOSTLY, Sizes::Both(16, 64), Access::Zipf),
    ("mica-large", "MICA's large items: 95 % get, 5 % set", READ_MOSTLY, Sizes::Both(128, 1024), Access::Zipf),
    ("etc", "Facebook's ETC as fitted by Atikoglu et al. (2012): 30 get to 1 set", &[(Kind::Get, 30), SET], Sizes::Etc, Access::Zipf),
];

impl Workload {
    /// All that have a name.
    pub fn all() -> Vec<Self> {
        let line = |&(name, about, mix, sizes, access): &Line| Self {
            name: name.to_owned(),
            about: about.to_owned(),
            mix: mix.to_vec(),
            sizes,
            access,
        };
        TABLE.iter().map(line).collect()
    }

    /// The workload of that name.
    pub fn find(name: &str) -> Result<Self, String> {
        Self::all().into_iter().find(|w| w.name == name).ok_or_else(|| {
            let names: Vec<_> = TABLE.iter().map(|line| line.0).collect();
            format!("there is no workload \"{name}\"; there are {}", names.join(", "))
        })
    }

    /// Its items.
    pub fn items(&self, count: u64) -> Items {
        Items::new(self.sizes, count, self.has(Kind::Incr))
    }

    /// Whether it has operations of this kind.
    pub fn has(&self, kind: Kind) -> bool {
        self.mix.iter().any(|(k, _)| *k == kind)
    }
}

/// Operations drawn for one stream: enough not to repeat within a cache's memory of them, few enough to draw quickly.
const DRAWN_MIN: u64 = 1 << 16;
const DRAWN_MAX: u64 = 1 << 20;
/// Where the kind is in a drawn operation; below it is the item, or its rank by age.
const KIND_SHIFT: u32 = 56;

/// The operations of one thread, over and over.
#[derive(Clone, Debug)]
pub struct Stream {
    drawn: Vec<u64>,
    at: usize,
    latest: bool,
    /// how many items there are; inserts of all threads on one cache count it up
    newest: Arc<AtomicU64>,
}

impl Stream {
    /// For `items` items; `newest` is shared by all streams that go to one cache.
    pub fn new(workload: &Workload, items: u64, zipf: &Zipf, newest: Arc<AtomicU64>, seed: u64) -> Self {
        let mut rng = Rng::new(mix(seed));
        let weights: u32 = workload.mix.iter().map(|(_, weight)| weight).sum();
        let mut draw = || {
            let mut left = rng.below(u64::from(weights));
            let kind = workload.mix.iter().find_map(|&(kind, weight)| {
                let found = left < u64::from(weight);
                left = left.saturating_sub(u64::from(weight));
                found.then_some(kind)
            });
            let kind = kind.unwrap_or(Kind::Get); // weights add up to the bound of the draw
            let item = match workload.access {
                Access::Uniform => rng.below(items),
                Access::Zipf => mix(zipf.rank(&mut rng)) % items,
                Access::Latest => zipf.rank(&mut rng),
            };
            (KINDS.iter().position(|k| *k == kind).unwrap_or(0) as u64) << KIND_SHIFT | item
        };
        Self {
            drawn: (0..(4 * items).clamp(DRAWN_MIN, DRAWN_MAX)).map(|_| draw()).collect(),
            at: 0,
            latest: workload.access == Access::Latest,
            newest,
        }
    }

    /// The next operation and its item.
    #[inline]
    pub fn draw(&mut self) -> (Kind, u64) {
        let drawn = self.drawn[self.at];
        self.at += 1;
        if self.at == self.drawn.len() {
            self.at = 0;
        }
        let kind = KINDS[usize::from(drawn.to_be_bytes()[0])];
        let item = drawn & ((1 << KIND_SHIFT) - 1);
        match kind {
            Kind::Insert => (kind, self.newest.fetch_add(1, Relaxed)),
            _ if self.latest => (kind, self.newest.load(Relaxed).saturating_sub(1 + item)),
            _ => (kind, item),
        }
    }

    /// An item to read beside another one, in a get of several keys.
    #[inline]
    pub fn draw_item(&mut self) -> u64 {
        let drawn = self.drawn[self.at] & ((1 << KIND_SHIFT) - 1);
        self.at += 1;
        if self.at == self.drawn.len() {
            self.at = 0;
        }
        if self.latest {
            self.newest.load(Relaxed).saturating_sub(1 + drawn)
        } else {
            drawn
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn stream(name: &str, items: u64, seed: u64) -> Stream {
        let newest = Arc::new(AtomicU64::new(items));
        Stream::new(&Workload::find(name).unwrap(), items, &Zipf::new(items), newest, seed)
    }

    #[test]
    fn names_are_unique_and_an_unknown_one_is_told_the_known() {
        let names: HashSet<_> = TABLE.iter().map(|line| line.0).collect();
        assert_eq!(names.len(), TABLE.len());
        assert!(Workload::find("ycsb-e").unwrap_err().contains("ycsb-d"));
        assert!(Access::parse("zipfian").unwrap_err().contains("zipf"));
    }

    #[test]
    fn mixes_have_their_shares() {
        for (name, kind, share) in [
            ("ycsb-a", Kind::Set, 0.5),
            ("ycsb-b", Kind::Set, 0.05),
            ("ycsb-d", Kind::Insert, 0.05),
            ("ycsb-f", Kind::ReadModifyWrite, 0.5),
            ("unbuckle", Kind::Set, 0.1),
            ("etc", Kind::Set, 1.0 / 31.0),
            ("delete", Kind::Delete, 1.0),
        ] {
            let mut stream = stream(name, 10_000, 1);
            let found = (0..60_000).filter(|_| stream.draw().0 == kind).count();
            assert!((found as f64 / 60_000.0 - share).abs() < 0.01, "{name}: {found}");
        }
    }

    #[test]
    fn items_are_within_bounds_and_a_seed_repeats() {
        for workload in Workload::all() {
            let [mut one, mut same, mut other] = [1, 1, 2].map(|seed| stream(&workload.name, 1000, seed));
            let mut differs = false;
            for _ in 0..10_000 {
                let (kind, item) = one.draw();
                assert_eq!((kind, item), same.draw());
                differs |= (kind, item) != other.draw();
                assert!(kind == Kind::Insert || item < one.newest.load(Relaxed), "{}", workload.name);
            }
            assert!(differs, "{}", workload.name);
        }
    }

    /// The most popular of n items has a share of 1 / zeta(n).
    #[test]
    fn the_latest_is_the_most_popular() {
        let mut stream = stream("ycsb-d", 10_000, 3);
        let (mut reads, mut newest) = (0.0, 0.0);
        for _ in 0..40_000 {
            let (kind, item) = stream.draw();
            if kind == Kind::Get {
                reads += 1.0;
                newest += f64::from(u8::from(item + 1 == stream.newest.load(Relaxed)));
            }
        }
        assert!((newest / reads - 0.0976).abs() < 0.01, "{}", newest / reads);
    }

    #[test]
    fn inserts_never_repeat_an_item_even_between_streams() {
        let mut one = stream("ycsb-d", 100, 1);
        let mut two = one.clone();
        let inserted: Vec<u64> = (0..5000)
            .flat_map(|_| [one.draw(), two.draw()])
            .filter(|(kind, _)| *kind == Kind::Insert)
            .map(|(_, item)| item)
            .collect();
        assert_eq!(inserted.iter().collect::<HashSet<_>>().len(), inserted.len());
        assert!(inserted.iter().all(|&i| i >= 100));
    }
}
