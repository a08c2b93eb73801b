//! The operations: each of the design's table, and pairs of them in which one thread stands still in the middle.

use crate::world::{BUCKETS, SEED, Size, World};
use keyway_region::fetch::{Fetched, Flight, Freshness, Refreshed};
use keyway_region::layout::bucket::SLOTS;
use keyway_region::verbs::{Arithmetic, Delete, Get, Store, StoreMode};
use keyway_region::{Fetches, Session, Shrinking, all_choices, hash};
use std::sync::OnceLock;

/// One operation.
pub type Operation = fn(&mut Session, u32);

/// A region, and what is done to it.
#[derive(Clone, Copy)]
pub struct Scenario {
    /// what it is called
    pub name: &'static str,
    /// the region
    pub size: Size,
    /// what is in it before; not recorded, on the medium
    pub before: fn(&mut Session, u32),
    /// what is recorded, one after the other; each is acknowledged when it returns
    pub operations: &'static [Operation],
    /// what other threads do meanwhile, each begun in the middle of the operation before it, and keys that it only looks at
    pub meanwhile: &'static [(Operation, &'static [&'static str])],
    /// at each moment at which it matters, not at some of them
    pub has_every_moment: bool,
    /// how many barriers each operation may take
    pub barriers: Option<&'static [usize]>,
    /// the first thread is dead from then on, and does not go on
    pub dies: bool,
    /// keys that are looked at
    pub watched: fn() -> Vec<Vec<u8>>,
    /// seconds later at which it is looked at
    pub later_s: u32,
    /// whether items are evicted on the way
    pub evicts: bool,
    /// begin with a region that was stopped cleanly and comes into use
    pub from_clean: bool,
    /// a region with checksums, and a value of which bits are turned behind the region's back before the first operation
    pub damaged: Option<&'static str>,
}

const SMALL: Size = Size { segments: 12, most: 12 };
const FULL: Size = Size { segments: 9, most: 9 };

const PLAIN: Scenario = Scenario {
    name: "",
    size: SMALL,
    before: few,
    operations: &[],
    meanwhile: &[],
    has_every_moment: false,
    barriers: None,
    dies: false,
    watched: few_keys,
    later_s: 0,
    evicts: false,
    from_clean: false,
    damaged: None,
};

/// The writes take more than one segment.
const OPENING: Scenario = Scenario {
    operations: &[
        |s, now| fill(s, "fill", 0..12, 700, now),
        |s, now| fill(s, "fill", 12..24, 700, now),
        |s, now| set(s, "fill-3", "over", now),
    ],
    watched: || keys(&["a", "b", "fill-0", "fill-3", "fill-11", "fill-12", "fill-23"]),
    ..PLAIN
};

/// Full, so that sets evict.
const EVICTING: Scenario = Scenario {
    size: FULL,
    evicts: true,
    before: |s, now| {
        few(s, now);
        fill(s, "old", 0..136, 700, now);
    },
    ..PLAIN
};

/// A large value that a small one takes the place of, while others need its segments.
const LARGE: Scenario = Scenario {
    size: FULL,
    evicts: true,
    before: |s, now| {
        few(s, now);
        set(s, "large", &large('p', 30_000), now);
    },
    operations: &[|s, now| set(s, "large", "small now", now)],
    meanwhile: &[(
        |s, now| {
            for (i, c) in ['q', 'r', 's'].into_iter().enumerate() {
                set(s, &format!("large-{i}"), &large(c, 30_000), now);
            }
        },
        &[],
    )],
    watched: || keys(&["a", "large", "large-2"]),
    ..PLAIN
};

/// The next insert splits.
const SPLITTING: Scenario = Scenario {
    size: Size { segments: 24, most: 24 },
    before: |s, now| fill(s, "i", 0..1343, 8, now),
    operations: &[|s, now| fill(s, "i", 1343..1344, 8, now)],
    ..PLAIN
};

/// A key all of whose buckets are full, of others' items.
const CROWDED: Scenario = Scenario {
    before: |s, now| {
        for key in &crowd()[1..] {
            set(s, key, "of the crowd", now);
        }
    },
    operations: &[|s, now| set(s, &crowd()[0], "the newcomer", now)],
    evicts: true,
    watched: || crowd().iter().map(|key| key.as_bytes().to_vec()).collect(),
    ..PLAIN
};

/// All of them.
pub const ALL: &[Scenario] = &[
    Scenario {
        name: "set of an absent key",
        operations: &[|s, now| set(s, "new", "fresh value", now)],
        barriers: Some(&[2]),
        ..PLAIN
    },
    Scenario {
        name: "set of a present key",
        operations: &[|s, now| set(s, "a", "second value of a", now)],
        barriers: Some(&[2]),
        ..PLAIN
    },
    Scenario {
        name: "first change behind a clean stop",
        operations: &[|s, now| set(s, "a", "second value of a", now)],
        from_clean: true,
        ..PLAIN
    },
    Scenario {
        name: "set, delete, set again, delete again",
        operations: &[
            |s, now| set(s, "new", "one", now),
            |s, now| delete(s, "new", now),
            |s, now| set(s, "new", "two", now),
            |s, now| delete(s, "new", now),
        ],
        barriers: Some(&[2, 1, 2, 1]),
        ..PLAIN
    },
    Scenario {
        name: "delete",
        operations: &[|s, now| delete(s, "a", now)],
        ..PLAIN
    },
    Scenario {
        name: "a fetch that stores, and one that the failure ends",
        operations: &[
            |s, now| {
                let flight = begin_fetch(s, "new", now);
                let stored = Fetches::of(s).store("new".as_bytes(), flight, b"computed", &Refreshed::default(), now);
                assert!(stored.expect("there is room"), "the flight was void");
            },
            |s, now| {
                begin_fetch(s, "other", now);
            },
        ],
        watched: || keys(&["a", "b", "new", "other"]),
        ..PLAIN
    },
    Scenario {
        name: "append, incr, cas, touch",
        operations: &[
            |s, now| store(s, "a", " and more", StoreMode::Append, now),
            |s, now| {
                let how = Arithmetic {
                    delta: 5,
                    ..Arithmetic::default()
                };
                s.arithmetic(b"n", &how, now).expect("there is room");
            },
            cas,
            |s, now| {
                s.touch(b"b", 1000, now).expect("there is room");
            },
        ],
        ..PLAIN
    },
    Scenario {
        name: "set with an expiry, twice",
        operations: &[
            |s, now| expiring(s, "a", "short", 100, now),
            |s, now| expiring(s, "b", "longer", 110, now),
        ],
        ..PLAIN
    },
    Scenario {
        name: "expiring items that fill a segment, each later than the last",
        before: |s, now| {
            few(s, now);
            for i in 0..17 {
                expiring(s, &format!("e-{i}"), &large('e', 700), 90, now);
            }
        },
        operations: &[
            |s, now| expiring(s, "e-17", &large('e', 700), 100, now),
            |s, now| expiring(s, "e-18", &large('e', 700), 106, now),
            |s, now| expiring(s, "e-19", &large('e', 700), 107, now),
            |s, now| expiring(s, "e-20", &large('e', 700), 108, now),
            |s, now| expiring(s, "e-21", &large('e', 500), 109, now),
        ],
        later_s: 105,
        watched: || keys(&["a", "e-3", "e-17", "e-18", "e-19", "e-20", "e-21"]),
        ..PLAIN
    },
    Scenario {
        name: "set of a large value, over it a smaller one, and deleted",
        operations: &[
            |s, now| set(s, "large", &large('x', 40_000), now),
            |s, now| set(s, "large", &large('y', 20_000), now),
            |s, now| delete(s, "large", now),
        ],
        ..PLAIN
    },
    Scenario {
        name: "touch of a large value, then its segments for another",
        before: |s, now| {
            few(s, now);
            set(s, "large", &large('x', 80_000), now);
        },
        operations: &[
            |s, now| {
                s.touch(b"large", 1000, now).expect("there is room");
            },
            |s, now| delete(s, "large", now),
            |s, now| set(s, "a", &large('z', 80_000), now),
        ],
        watched: || keys(&["a", "large", "b"]),
        ..PLAIN
    },
    Scenario {
        name: "flush_all, then set",
        operations: &[
            |s, now| s.flush_all(0, now).expect("epochs are left"),
            |s, now| set(s, "a", "after the flush", now),
        ],
        ..PLAIN
    },
    Scenario {
        name: "delayed flush_all that comes due",
        operations: &[
            |s, now| s.flush_all(10, now).expect("epochs are left"),
            |s, now| set(s, "a", "after the flush", now + 11),
        ],
        later_s: 11,
        ..PLAIN
    },
    Scenario {
        name: "writes that open another segment",
        ..OPENING
    },
    Scenario {
        name: "writes that open another segment, each session its own",
        // 64 for each of those that there ever are.
        size: Size {
            segments: 200,
            most: 200,
        },
        ..OPENING
    },
    Scenario {
        name: "sets that evict",
        operations: &[
            |s, now| fill(s, "fill", 0..6, 700, now),
            |s, now| fill(s, "fill", 6..14, 700, now),
            |s, now| set(s, "old-120", "over", now),
            |s, now| fill(s, "fill", 14..24, 700, now),
        ],
        watched: || {
            keys(&[
                "a", "old-30", "old-60", "old-90", "old-120", "old-135", "fill-0", "fill-5", "fill-9", "fill-23",
            ])
        },
        ..EVICTING
    },
    Scenario {
        name: "overwrites that compact",
        size: FULL,
        evicts: true,
        before: |s, now| {
            few(s, now);
            fill(s, "old", 0..52, 700, now);
        },
        operations: &[
            |s, now| {
                for i in (0..52).step_by(2) {
                    set(s, &format!("old-{i}"), &large('o', 690), now);
                }
            },
            |s, now| fill(s, "old", 20..40, 680, now),
        ],
        watched: || keys(&["a", "b", "old-39", "old-50", "old-51"]),
        ..PLAIN
    },
    Scenario {
        name: "large values that evict each other",
        size: FULL,
        evicts: true,
        before: |s, now| {
            few(s, now);
            set(s, "large-0", &large('p', 30_000), now);
            fill(s, "old", 0..86, 700, now);
        },
        operations: &[
            |s, now| set(s, "large-1", &large('q', 30_000), now),
            |s, now| set(s, "large-2", &large('r', 30_000), now),
        ],
        watched: || keys(&["a", "old-85", "large-0", "large-1", "large-2"]),
        ..PLAIN
    },
    Scenario {
        name: "inserts that split",
        operations: &[
            |s, now| fill(s, "i", 1343..1346, 8, now),
            |s, now| set(s, "i-7", "over", now),
            |s, now| delete(s, "i-1000", now),
        ],
        watched: || {
            (0..1340)
                .step_by(11)
                .map(|i| format!("i-{i}").into_bytes())
                .chain(keys(&["i-7", "i-1000", "i-1343", "i-1344", "i-1345"]))
                .collect()
        },
        ..SPLITTING
    },
    Scenario {
        name: "get while a set stands still",
        operations: &[|s, now| set(s, "a", "second value of a", now)],
        meanwhile: &[(|s, now| get(s, "a", now), &["a"])],
        ..PLAIN
    },
    Scenario {
        name: "get while an insert stands still",
        operations: &[|s, now| set(s, "new", "fresh", now)],
        meanwhile: &[(|s, now| get(s, "new", now), &["new"])],
        ..PLAIN
    },
    Scenario {
        name: "set while a set stands still",
        operations: &[|s, now| set(s, "a", "one of two", now)],
        meanwhile: &[(|s, now| set(s, "a", "the other of two", now), &["a"])],
        ..PLAIN
    },
    Scenario {
        name: "add while a delete stands still",
        operations: &[|s, now| delete(s, "a", now)],
        meanwhile: &[(|s, now| store(s, "a", "added anew", StoreMode::Add, now), &["a"])],
        ..PLAIN
    },
    Scenario {
        name: "get while a delete stands still",
        operations: &[|s, now| delete(s, "a", now)],
        meanwhile: &[(|s, now| get(s, "a", now), &["a"])],
        ..PLAIN
    },
    Scenario {
        name: "delete while a set stands still",
        operations: &[|s, now| set(s, "a", "second value of a", now)],
        meanwhile: &[(|s, now| delete(s, "a", now), &["a"])],
        ..PLAIN
    },
    Scenario {
        name: "get while flush_all stands still",
        operations: &[|s, now| s.flush_all(0, now).expect("epochs are left")],
        meanwhile: &[(|s, now| get(s, "a", now), &["a"])],
        ..PLAIN
    },
    Scenario {
        name: "set while a segment is opened",
        before: |s, now| {
            few(s, now);
            fill(s, "fill", 0..19, 700, now);
        },
        operations: &[|s, now| fill(s, "fill", 20..23, 700, now)],
        meanwhile: &[(|s, now| set(s, "b", "the other thread's", now), &[])],
        ..PLAIN
    },
    Scenario {
        name: "sets while a segment is opened behind a flush",
        size: Size { segments: 24, most: 24 },
        before: |s, now| {
            s.flush_all(0, now).expect("epochs are left");
            few(s, now);
            fill(s, "old", 0..86, 700, now);
        },
        operations: &[|s, now| set(s, "a", &large('o', 3_000), now)],
        meanwhile: &[(|s, now| fill(s, "fill", 0..6, 700, now), &[])],
        watched: || keys(&["a", "old-85", "fill-0", "fill-5"]),
        ..PLAIN
    },
    Scenario {
        name: "set while a split stands still",
        meanwhile: &[(
            |s, now| {
                for i in (0..300).step_by(13) {
                    set(s, &format!("i-{i}"), "meanwhile", now);
                }
            },
            &[],
        )],
        watched: || (0..1340).step_by(13).map(|i| format!("i-{i}").into_bytes()).collect(),
        ..SPLITTING
    },
    Scenario {
        name: "inserts while a split stands still",
        meanwhile: &[(|s, now| fill(s, "j", 0..3, 8, now), &[])],
        watched: || {
            (0..1340)
                .step_by(17)
                .map(|i| format!("i-{i}").into_bytes())
                .chain(keys(&["j-0", "j-1", "j-2"]))
                .collect()
        },
        ..SPLITTING
    },
    Scenario {
        name: "sets that evict while a set stands still",
        operations: &[|s, now| set(s, "old-80", "over", now)],
        meanwhile: &[(|s, now| fill(s, "fill", 0..30, 700, now), &[])],
        watched: || keys(&["old-40", "old-80", "old-100", "fill-29"]),
        ..EVICTING
    },
    Scenario {
        name: "large values while a large set stands still",
        ..LARGE
    },
    Scenario {
        name: "add while an insert stands still",
        operations: &[|s, now| set(s, "new", "fresh", now)],
        meanwhile: &[(|s, now| store(s, "new", "added", StoreMode::Add, now), &["new"])],
        ..PLAIN
    },
    Scenario {
        name: "replace while a delete stands still",
        operations: &[|s, now| delete(s, "a", now)],
        meanwhile: &[(|s, now| store(s, "a", "replaced", StoreMode::Replace, now), &["a"])],
        ..PLAIN
    },
    Scenario {
        name: "walk while a set stands still",
        operations: &[|s, now| set(s, "a", "second value of a", now)],
        meanwhile: &[(
            |s, now| {
                s.region().index().walk(0, usize::MAX, now, |_, _| {});
            },
            &["a"],
        )],
        ..PLAIN
    },
    Scenario {
        name: "a gap that makes all stale, then set",
        operations: &[|s, _| s.region().mapped().make_stale(), |s, now| set(s, "a", "fresh", now)],
        ..PLAIN
    },
    Scenario {
        name: "expiry, then a clock that was set back",
        before: |s, now| {
            few(s, now);
            expiring(s, "new", "short", 100, now);
        },
        operations: &[|s, _| {
            s.region()
                .clock()
                .note_use(keyway_region::Moment::from_secs(crate::world::NOW + 200));
        }],
        ..PLAIN
    },
    Scenario {
        name: "more memory, and writes that need it",
        size: Size { segments: 9, most: 12 },
        before: |s, now| {
            few(s, now);
            fill(s, "old", 0..70, 700, now);
        },
        operations: &[
            |s, _| s.region().mapped().grow(12).expect("there is memory"),
            |s, now| fill(s, "fill", 0..24, 700, now),
            |s, now| fill(s, "fill", 24..110, 700, now),
        ],
        evicts: true,
        watched: || keys(&["a", "old-30", "old-69", "fill-0", "fill-23", "fill-24", "fill-109"]),
        ..PLAIN
    },
    Scenario {
        name: "memory goes out of use, back to the system, and writes that need room",
        size: Size { segments: 24, most: 24 },
        before: |s, now| {
            few(s, now);
            fill(s, "old", 0..70, 700, now);
        },
        operations: &[
            |s, _| assert_eq!(s.region().victims().lower(21, 0), 21),
            |s, now| while matches!(s.shrink(now), Shrinking::More) {},
            |s, now| while matches!(s.shrink(now + 10), Shrinking::More) {},
            |s, now| fill(s, "fill", 0..40, 700, now),
        ],
        evicts: true,
        watched: || keys(&["a", "old-69", "fill-0", "fill-39"]),
        ..PLAIN
    },
    Scenario {
        name: "splits while a set stands still",
        size: Size { segments: 24, most: 24 },
        before: |s, now| fill(s, "i", 0..1344, 8, now),
        operations: &[|s, now| set(s, "i-6", "over", now)],
        meanwhile: &[(|s, now| fill(s, "j", 0..20, 8, now), &[])],
        watched: || {
            (0..1340)
                .step_by(31)
                .map(|i| format!("i-{i}").into_bytes())
                .chain(keys(&["i-6", "j-0", "j-19"]))
                .collect()
        },
        ..PLAIN
    },
    Scenario {
        name: "sets that evict behind a thread that died in a set",
        operations: &[|s, now| set(s, "old-80", "over", now)],
        meanwhile: &[(|s, now| fill(s, "fill", 0..70, 700, now), &[])],
        dies: true,
        watched: || keys(&["old-80", "old-100", "fill-69"]),
        ..EVICTING
    },
    Scenario {
        name: "large values behind a thread that died in a large set",
        dies: true,
        ..LARGE
    },
    Scenario {
        name: "get while a purge stands still that met what died in a delete",
        // The first one that the next set evicts behind those of the set that finds the region full.
        operations: &[|s, now| delete(s, "old-67", now)],
        meanwhile: &[
            (|s, now| fill(s, "fill", 0..2, 700, now), &[]),
            (|s, now| get(s, "old-67", now), &["old-67"]),
        ],
        dies: true,
        watched: || keys(&["old-67", "old-100", "fill-1"]),
        ..EVICTING
    },
    Scenario {
        name: "a set into new segments while growth stands still",
        size: Size { segments: 9, most: 16 },
        before: |s, now| {
            few(s, now);
            fill(s, "old", 0..140, 700, now);
        },
        operations: &[|s, _| s.region().mapped().grow(16).expect("there is memory")],
        meanwhile: &[(|s, now| fill(s, "fill", 0..120, 700, now), &[])],
        evicts: true,
        // Not one of the first, which it evicts again before it is through.
        watched: || keys(&["a", "old-139", "fill-110", "fill-119"]),
        ..PLAIN
    },
    Scenario {
        name: "a value that was damaged in the caches is met, set and deleted",
        damaged: Some("first value of a"),
        operations: &[
            |s, now| get(s, "a", now),
            |s, now| set(s, "a", "second value of a", now),
            |s, now| delete(s, "a", now),
        ],
        ..PLAIN
    },
    Scenario {
        name: "insert into full buckets",
        ..CROWDED
    },
    Scenario {
        name: "get while an insert into full buckets stands still that met a delete lifetime_class still",
        operations: &[|s, now| delete(s, MEMBER, now)],
        meanwhile: &[
            (|s, now| set(s, &crowd()[0], "the newcomer", now), &[]),
            (|s, now| get(s, MEMBER, now), &[MEMBER]),
        ],
        ..CROWDED
    },
    Scenario {
        name: "get while a split stands still that met a set lifetime_class still",
        // Enough that another session knows of it.
        before: |s, now| fill(s, "i", 0..1375, 8, now),
        // In one of the buckets that the next insert splits.
        operations: &[|s, now| set(s, "i-102", "over", now)],
        meanwhile: &[
            (|s, now| fill(s, "i", 1375..1376, 8, now), &[]),
            (|s, now| get(s, "i-102", now), &["i-102"]),
        ],
        // One pair of them, of 37, is behind the freezing of the word and before its copy.
        has_every_moment: true,
        watched: || keys(&["i-102", "i-1375"]),
        ..SPLITTING
    },
];

/// One of those that fill the newcomer's buckets.
const MEMBER: &str = "member";

/// A key that is absent, then the keys that fill all of its buckets; `MEMBER` is the first of these.
fn crowd() -> &'static [String] {
    static CROWD: OnceLock<Vec<String>> = OnceLock::new();
    CROWD.get_or_init(|| {
        let buckets = |key: &str| all_choices(hash(SEED, key.as_bytes())).map(|c| c % BUCKETS);
        let in_pair = |key: &str, pair: &[u64]| buckets(key)[..2].iter().all(|bucket| pair.contains(bucket));
        let others = |name: &'static str| (0..).map(move |i| format!("{name}-{i}"));
        let pair = &buckets(MEMBER)[..2];
        let newcomer = others("newcomer")
            .find(|key| in_pair(key, pair))
            .expect("there is no end of them");
        let third = buckets(&newcomer)[2];
        // With another one, whose number differs in bit 0 as a pair's do.
        let beside = (0..BUCKETS)
            .find(|b| b % 2 != third % 2 && !pair.contains(b))
            .expect("there are many");
        let both = others("crowd").filter(|key| in_pair(key, pair)).take(2 * SLOTS - 1);
        let of_third = others("crowd").filter(|key| in_pair(key, &[third, beside])).take(2 * SLOTS);
        [newcomer, MEMBER.into()].into_iter().chain(both).chain(of_third).collect()
    })
}

fn few(s: &mut Session, now: u32) {
    set(s, "a", "first value of a", now);
    set(s, "b", "first value of b", now);
    set(s, "n", "41", now);
    set(s, "c", "first value of c", now);
    delete(s, "c", now);
}

fn few_keys() -> Vec<Vec<u8>> {
    keys(&["a", "b", "c", "n", "new", "large", "fill-20", "fill-22"])
}

fn keys(names: &[&str]) -> Vec<Vec<u8>> {
    names.iter().map(|n| n.as_bytes().to_vec()).collect()
}

fn store(s: &mut Session, key: &str, value: &str, mode: StoreMode, now: u32) {
    let how = Store {
        mode,
        ..Store::default()
    };
    s.store(key.as_bytes(), value.as_bytes(), &how, now).expect("there is room");
}

fn set(s: &mut Session, key: &str, value: &str, now: u32) {
    store(s, key, value, StoreMode::Set, now);
}

fn expiring(s: &mut Session, key: &str, value: &str, exptime: i64, now: u32) {
    let how = Store {
        exptime,
        ..Store::default()
    };
    s.store(key.as_bytes(), value.as_bytes(), &how, now).expect("there is room");
}

fn cas(s: &mut Session, now: u32) {
    let how = Get {
        details: true,
        ..Get::default()
    };
    let item = s.get(b"b", &how, now, &mut Vec::new()).expect("a good key");
    let how = Store {
        compare_cas: item.map(|i| i.cas),
        ..Store::default()
    };
    s.store(b"b", b"compared and set", &how, now).expect("there is room");
}

fn begin_fetch(s: &mut Session, key: &str, now: u32) -> Flight {
    let begun = Fetches::of(s).begin(key.as_bytes(), &Freshness::default(), now, &mut Vec::new());
    match begun.expect("there is room") {
        Fetched::Compute(flight, _) => flight,
        other => panic!("{key} is absent, and a fetch of it answered {other:?}"),
    }
}

fn delete(s: &mut Session, key: &str, now: u32) {
    s.delete(key.as_bytes(), &Delete::default(), now).expect("a good key");
}

fn get(s: &mut Session, key: &str, now: u32) {
    let how = Get {
        value: true,
        ..Get::default()
    };
    s.get(key.as_bytes(), &how, now, &mut Vec::new()).expect("a good key");
}

fn fill(s: &mut Session, name: &str, range: std::ops::Range<usize>, len: usize, now: u32) {
    for i in range {
        let value = format!("{name} {i} of length {len} ");
        let value: String = value.chars().cycle().take(len).collect();
        set(s, &format!("{name}-{i}"), &value, now);
    }
}

fn large(c: char, len: usize) -> String {
    std::iter::repeat_n(c, len).collect()
}

/// A world in which a scenario begins.
pub fn begin(scenario: &Scenario) -> (World, u32) {
    let mut world = World::new(scenario.size, scenario.damaged.is_some());
    let now = world
        .region()
        .clock()
        .tick(keyway_region::Moment::from_secs(crate::world::NOW + 5));
    let mut session = world.session(0);
    (scenario.before)(&mut session, now);
    world.give_back(0, session);
    if scenario.from_clean {
        world.stop_cleanly();
    } else {
        world.use_again();
    }
    (world, now)
}
