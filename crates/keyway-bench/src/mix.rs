//! What is asked of a cache: workloads, and streams of their operations, drawn before the clock starts.

use crate::items::Items;
use crate::workload::{Ranks, Rng, Sizes, Zipf, mix};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// read a value
    Get,
    /// read a value of an item that is not there yet: a miss
    GetNew,
    /// store over an item that is there
    Set,
    /// store an item that is not there yet
    Insert,
    /// store, unless it is there
    Add,
    /// read a value, then store one: one operation, two requests
    ReadModifyWrite,
    /// delete an item; it is stored before, off the clock
    Delete,
    /// delete an item, if it is there
    Remove,
    /// count a number up by one
    Incr,
}

const KINDS: [Kind; 9] = [
    Kind::Get,
    Kind::GetNew,
    Kind::Set,
    Kind::Insert,
    Kind::Add,
    Kind::ReadModifyWrite,
    Kind::Delete,
    Kind::Remove,
    Kind::Incr,
];

impl Kind {
    /// Whether it makes items that were not there before.
    fn is_new(self) -> bool {
        matches!(self, Self::GetNew | Self::Insert)
    }
}

/// How operations fall on items.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Access {
    /// every item alike
    Uniform,
    /// scrambled zipfian with this exponent, below 1: popular items lie anywhere, not side by side
    Zipf(f64),
    /// YCSB's latest: the newest items are the most popular, zipfian with exponent 0.99
    Latest,
}

impl Access {
    /// YCSB's scrambled zipfian.
    pub const YCSB: Self = Self::Zipf(Zipf::THETA);

    /// As it is written on a command line.
    pub fn name(self) -> String {
        match self {
            Self::Uniform => "uniform".to_owned(),
            Self::Zipf(exponent) => format!("zipf:{exponent}"),
            Self::Latest => "latest".to_owned(),
        }
    }

    /// From a command line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let exponent = text.strip_prefix("zipf:").and_then(|exponent| exponent.parse::<f64>().ok());
        match (text, exponent) {
            ("uniform", _) => Ok(Self::Uniform),
            ("zipf", _) => Ok(Self::YCSB),
            ("latest", _) => Ok(Self::Latest),
            (_, Some(exponent)) if exponent > 0.0 && exponent < 1.0 => Ok(Self::Zipf(exponent)),
            _ => Err(format!(
                "\"{text}\" is no popularity; there are uniform, zipf (exponent 0.99), zipf:EXPONENT (above 0, below 1) and latest"
            )),
        }
    }
}

/// What is asked of a cache, and of which items.
#[derive(Clone, Debug, PartialEq)]
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
    /// what a get missed is stored, as an application does
    pub fill: bool,
}

/// Such as 128 B, 5 KB.
pub fn size_text(bytes: usize) -> String {
    match bytes {
        n if n >= 1 << 20 && n.is_multiple_of(1 << 20) => format!("{} MB", n >> 20),
        n if n >= 1 << 10 && n.is_multiple_of(1 << 10) => format!("{} KB", n >> 10),
        n => format!("{n} B"),
    }
}

impl Workload {
    /// This workload with values of so many bytes.
    #[must_use]
    pub fn with_values(&self, bytes: usize) -> Self {
        Self {
            name: format!("{}, values of {bytes} B", self.name),
            about: format!("{}, values of {}", self.about, size_text(bytes)),
            sizes: Sizes::Both(self.sizes.of(0).0, bytes),
            ..self.clone()
        }
    }

    /// Its items.
    pub fn items(&self, count: u64) -> Items {
        Items::new(self.sizes, count, self.has(Kind::Incr))
    }

    /// Whether it has operations of this kind.
    pub fn has(&self, kind: Kind) -> bool {
        self.mix.iter().any(|(k, _)| *k == kind)
    }

    /// Whether it stores anything.
    pub fn stores(&self) -> bool {
        let reads = |kind: Kind| matches!(kind, Kind::Get | Kind::GetNew | Kind::Remove | Kind::Incr);
        self.mix.iter().any(|(kind, _)| !reads(*kind))
    }

    /// Whether it makes items that were not there before.
    pub fn grows(&self) -> bool {
        self.mix.iter().any(|(kind, _)| kind.is_new())
    }
}

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operation {
    /// what it does
    pub kind: Kind,
    /// number of its item
    pub item: u64,
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
    /// For `items` items, whose popularity `ranks` has; `newest` is shared by all streams that go to one cache.
    pub fn new(workload: &Workload, items: u64, ranks: &Ranks, newest: Arc<AtomicU64>, seed: u64) -> Self {
        let mut rng = Rng::new(mix(seed));
        let latest = workload.access == Access::Latest;
        let mut draw = || {
            let kind = weighted(&workload.mix, &mut rng).unwrap_or(Kind::Get);
            let item = match (ranks.rank(&mut rng), workload.access) {
                (None, _) => rng.below(items),
                (Some(rank), Access::Latest) => rank,
                (Some(rank), _) => mix(rank) % items,
            };
            (KINDS.iter().position(|k| *k == kind).unwrap_or(0) as u64) << KIND_SHIFT | item
        };
        let drawn = (0..(4 * items).clamp(DRAWN_MIN, DRAWN_MAX)).map(|_| draw()).collect();
        Self {
            drawn,
            at: 0,
            latest,
            newest,
        }
    }

    /// The next operation.
    #[inline]
    pub fn draw(&mut self) -> Operation {
        let drawn = self.advance();
        let kind = KINDS[usize::from(drawn.to_be_bytes()[0])];
        let item = drawn & ((1 << KIND_SHIFT) - 1);
        let item = match kind {
            _ if kind.is_new() => self.newest.fetch_add(1, Relaxed),
            _ if self.latest => self.newest.load(Relaxed).saturating_sub(1 + item),
            _ => item,
        };
        Operation { kind, item }
    }

    /// An item to read beside another one, in a get of several keys.
    #[inline]
    pub fn draw_item(&mut self) -> u64 {
        let item = self.advance() & ((1 << KIND_SHIFT) - 1);
        if self.latest {
            self.newest.load(Relaxed).saturating_sub(1 + item)
        } else {
            item
        }
    }

    fn advance(&mut self) -> u64 {
        let drawn = self.drawn[self.at];
        self.at += 1;
        if self.at == self.drawn.len() {
            self.at = 0;
        }
        drawn
    }
}

/// One of them, as their weights say; `None` of none.
fn weighted<T: Copy>(weights: &[(T, u32)], rng: &mut Rng) -> Option<T> {
    let all: u32 = weights.iter().map(|(_, weight)| weight).sum();
    let mut left = rng.below(u64::from(all));
    weights.iter().find_map(|&(what, weight)| {
        let found = left < u64::from(weight);
        left = left.saturating_sub(u64::from(weight));
        found.then_some(what)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads;
    use std::collections::HashSet;

    fn stream(name: &str, items: u64, seed: u64) -> Stream {
        let newest = Arc::new(AtomicU64::new(items));
        let workload = workloads::find(name).unwrap();
        Stream::new(&workload, items, &Ranks::new(workload.access, items), newest, seed)
    }

    #[test]
    fn a_popularity_is_read_as_it_is_written() {
        for access in [Access::Uniform, Access::YCSB, Access::Latest, Access::Zipf(0.7)] {
            assert_eq!(Access::parse(&access.name()), Ok(access));
        }
        for bad in ["zipfian", "zipf:0", "zipf:1", "zipf:x", ""] {
            assert!(Access::parse(bad).unwrap_err().contains("zipf:EXPONENT"), "{bad}");
        }
    }

    #[test]
    fn mixes_have_their_shares() {
        for (name, kind, share) in [
            ("ycsb-a", Kind::Set, 0.5),
            ("ycsb-b", Kind::Set, 0.05),
            ("ycsb-d", Kind::Insert, 0.05),
            ("ycsb-f", Kind::ReadModifyWrite, 0.5),
            ("etc", Kind::Set, 1.0 / 31.0),
            ("delete", Kind::Delete, 1.0),
        ] {
            let mut stream = stream(name, 10_000, 1);
            let found = (0..60_000).filter(|_| stream.draw().kind == kind).count();
            assert!((found as f64 / 60_000.0 - share).abs() < 0.01, "{name}: {found}");
        }
    }

    #[test]
    fn items_are_within_bounds_and_a_seed_repeats() {
        for workload in workloads::all() {
            let [mut one, mut same, mut other] = [1, 1, 2].map(|seed| stream(&workload.name, 1000, seed));
            let mut differs = false;
            for _ in 0..10_000 {
                let operation = one.draw();
                assert_eq!(operation, same.draw());
                differs |= operation != other.draw();
                assert!(operation.item < one.newest.load(Relaxed), "{}", workload.name);
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
            let Operation { kind, item } = stream.draw();
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
            .filter(|operation| operation.kind == Kind::Insert)
            .map(|operation| operation.item)
            .collect();
        assert_eq!(inserted.iter().collect::<HashSet<_>>().len(), inserted.len());
        assert!(inserted.iter().all(|&i| i >= 100));
    }
}
