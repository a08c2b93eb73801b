//! What is stopped: every operation of the design's table, with what may lie in its path.

use crate::ground::{self, Ground, RECOVERER, STOPPED};
use crate::operation::{Cas, Door, Op, Player, Step, cas_of};
use crate::step::Work;
use keyway_cache::Counters;
use keyway_region::Region;
use keyway_region::fetch::Fetched;
use keyway_region::verbs::{Delete, Get, Store, StoreMode};
use mutants::Mutant;
use std::sync::Arc;

/// Segments of a region: enough for every kind of them, few enough to fill in no time.
pub const SEGMENTS: usize = 20;
/// An absent key. No other key of a trial takes the slot that an insert of it chooses, so an insert that is stopped before its publish and
/// then resumed publishes there.
const UNCROWDED: &[u8] = b"key-1";
/// Segments of a region of which a session fills its own: 64 for each, of which there are never more than three.
const ROOMY: usize = 200;
/// Bytes of a large value's part in a segment of 16 KiB.
pub const PART: usize = (16 << 10) - 32;
/// Steps that a setup takes at most to bring about what it waits for.
const APPROACH_MAX: usize = 5000;

/// Writes that are repeated until the next one is the one to stop.
#[derive(Clone, Copy)]
pub struct Approach {
    /// write number `i`
    pub write: fn(usize) -> Op,
    /// whether a write was one of those wanted, by the counters before and behind it
    pub is_it: fn(&Counters, &Counters) -> bool,
}

/// An operation in a state.
#[derive(Clone)]
pub struct Scenario {
    /// for people
    pub name: &'static str,
    /// of its region
    pub segments: usize,
    setup: fn(&mut Player),
    approach: Option<Approach>,
    /// the operation (with an approach: set by [`Scenario::rehearse`])
    pub op: Op,
    /// writes of the approach before it
    writes: usize,
    /// whether the short form has it
    pub is_short: bool,
}

impl Scenario {
    /// Finds out how many writes come before the one that is wanted: the same ones do the same in every region.
    ///
    /// # Errors
    ///
    /// What is wanted never happens.
    pub fn rehearse(&mut self) -> Result<(), String> {
        let Some(approach) = self.approach else { return Ok(()) };
        let ground = Ground::new(self.segments, false);
        let mut player = Player::attach(ground.create(), STOPPED);
        (self.setup)(&mut player);
        for i in 0..APPROACH_MAX {
            let before = player.region.threads().counters();
            let op = (approach.write)(i);
            op.perform(&mut player, 0);
            if (approach.is_it)(&before, &player.region.threads().counters()) {
                (self.writes, self.op) = (i, op);
                return Ok(());
            }
        }
        Err(format!(
            "{}: {APPROACH_MAX} writes did not bring about what is wanted",
            self.name
        ))
    }

    /// The child's part, on this region; the operation may be a broken one.
    pub fn work(&self, region: Arc<Region>, mutant: Option<Mutant>) -> impl Work + use<> {
        Performance {
            scenario: self.clone(),
            mutant,
            region: Some(region),
            player: None,
            noted_cas: 0,
        }
    }

    /// The CAS unique that the child notes: that of the operation's key when the setup is over.
    pub fn noted_cas(&self, door: &mut dyn Door) -> u64 {
        self.op.key().map_or(0, |key| cas_of(door, key))
    }
}

struct Performance {
    scenario: Scenario,
    mutant: Option<Mutant>,
    region: Option<Arc<Region>>,
    player: Option<Player>,
    noted_cas: u64,
}

impl Work for Performance {
    fn setup(&mut self) {
        let Some(region) = self.region.take() else { return };
        let mut player = Player::attach(region, STOPPED);
        (self.scenario.setup)(&mut player);
        if let Some(approach) = self.scenario.approach {
            for i in 0..self.scenario.writes {
                (approach.write)(i).perform(&mut player, 0);
            }
        }
        self.noted_cas = self.scenario.noted_cas(&mut player);
        self.player = Some(player);
    }

    fn operate(&mut self) -> String {
        let noted_cas = self.noted_cas;
        let op = &self.scenario.op;
        mutants::set(self.mutant);
        self.player
            .as_mut()
            .map_or_else(String::new, |player| op.perform(player, noted_cas))
    }

    fn end(&mut self) {
        self.player = None;
    }
}

/// A process that takes back what a dead one left, in a region where it died.
pub struct Recovery {
    /// the region
    pub region: Option<Arc<Region>>,
    /// who does it
    pub player: Option<Player>,
}

impl Work for Recovery {
    fn setup(&mut self) {}

    fn operate(&mut self) -> String {
        if let Some(region) = self.region.take() {
            let mut player = Player::attach(region, RECOVERER);
            player.region.recovery().recover();
            player.upkeep();
            self.player = Some(player);
        }
        "done".into()
    }

    fn end(&mut self) {
        self.player = None;
    }
}

/// A large value's bytes. All versions are the same but for a few bytes in each part, so that writing one over the rests of
/// another changes the region a few times and not at every byte; which version a part is of can still be told.
pub fn large(version: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| match i % PART {
            0..4 | 8000..8004 | 16_340..PART => version,
            at => (at % 251).to_le_bytes()[0],
        })
        .collect()
}

/// All of them.
pub fn all() -> Vec<Scenario> {
    let big = |version| large(version, 2 * PART - 500);
    let simple = |name, op, is_short| Scenario {
        name,
        segments: SEGMENTS,
        setup: plain,
        approach: None,
        op,
        writes: 0,
        is_short,
    };
    let cas = |key: &[u8], how| Op::Store(key.to_vec(), b"compared".to_vec(), StoreMode::Set, how);
    let count = |key: &[u8], decrement, vivify| Op::Count {
        key: key.to_vec(),
        decrement,
        vivify,
    };
    let key = |text: &str| text.as_bytes().to_vec();
    let fetch = |name, setup, key: &[u8], step, is_short| Scenario {
        setup,
        ..simple(name, Op::Fetch(key.to_vec(), step), is_short)
    };
    let mut list = vec![
        simple("get, present", Op::Get(key("by-3")), true),
        simple("get, absent", Op::Get(key("nobody")), false),
        simple("get, large", Op::Get(key("big")), false),
        simple("set, absent", Op::set(UNCROWDED, b"fresh value"), true),
        simple("set, present", Op::set(b"by-3", b"another value"), true),
        simple("set, a kilobyte", Op::set(b"by-4", &[0xA5; 1024]), false),
        simple("set, large, absent", Op::set(UNCROWDED, &big(3)), true),
        simple("set, large over large", Op::set(b"big", &big(4)), false),
        simple("set, inline over large", Op::set(b"big", b"small now"), false),
        simple("set, large over inline", Op::set(b"by-5", &big(5)), false),
        simple("add, absent", Op::store(b"new", b"added", StoreMode::Add), false),
        simple("add, present", Op::store(b"by-3", b"added", StoreMode::Add), false),
        simple("replace, absent", Op::store(b"new", b"replaced", StoreMode::Replace), false),
        simple("replace, present", Op::store(b"by-3", b"replaced", StoreMode::Replace), false),
        simple("append, absent", Op::store(b"new", b"tail", StoreMode::Append), false),
        simple("append, present", Op::store(b"by-3", b"tail", StoreMode::Append), false),
        simple("append, large", Op::store(b"big", b"tail", StoreMode::Append), false),
        simple("prepend, present", Op::store(b"by-3", b"head", StoreMode::Prepend), false),
        simple("cas, absent", cas(b"new", Cas::Wrong), false),
        simple("cas, matching", cas(b"by-3", Cas::Noted), false),
        simple("cas, not matching", cas(b"by-3", Cas::Wrong), false),
        simple("cas, matching, large", cas(b"big", Cas::Noted), false),
        simple("delete, absent", Op::Delete(key("nobody")), false),
        simple("delete, present", Op::Delete(key("by-3")), true),
        simple("delete, large", Op::Delete(key("big")), true),
        simple("mark stale", Op::MarkStale(key("by-3")), false),
        simple("mark stale, large", Op::MarkStale(key("big")), false),
        simple("incr, absent", count(b"new", false, false), false),
        simple("incr, absent, vivified", count(b"new", false, true), false),
        simple("incr, present", count(b"n", false, false), true),
        simple("decr, present", count(b"n", true, false), false),
        simple("touch, absent", Op::Touch(key("nobody")), false),
        simple("touch, present", Op::Touch(key("by-3")), false),
        simple("touch, large", Op::Touch(key("big")), true),
        simple("get and touch, present", Op::GetAndTouch(key("by-3")), false),
        simple("get and touch, large", Op::GetAndTouch(key("big")), false),
        fetch("fetch begins, absent", plain, b"new", Step::Begin, true),
        fetch("fetch begins, stale", stale, b"by-3", Step::Begin, false),
        fetch("fetch stores", begun, b"new", Step::Store(key("computed")), true),
        fetch("fetch stores, large", begun, b"new", Step::Store(big(3)), false),
        fetch(
            "fetch stores, stale",
            begun_stale,
            b"by-3",
            Step::Store(key("computed")),
            false,
        ),
        fetch("fetch stores nothing", begun, b"new", Step::StoreNothing, false),
        fetch("fetch gives up", begun, b"new", Step::GiveUp, false),
        fetch("fetch gives up, stale", begun_stale, b"by-3", Step::GiveUp, false),
        simple("flush_all", Op::Flush, true),
        simple("a session comes and goes", Op::ComeAndGo(key("guest")), true),
        simple("extents given up", Op::Release, false),
        Scenario {
            segments: ROOMY,
            ..simple(
                "a session comes and goes, with a segment of its own",
                Op::ComeAndGo(key("guest")),
                true,
            )
        },
        Scenario {
            segments: ROOMY,
            ..simple("segments of its own given up", Op::Release, true)
        },
        Scenario {
            segments: ROOMY,
            setup: nearly_full,
            ..simple(
                "set, absent, into the next segment of its own",
                Op::set(b"new", b"behind which there is room"),
                true,
            )
        },
        simple("memory is raised", Op::Raise, true),
        Scenario {
            setup: crowded,
            ..simple("memory is raised, full before", Op::Raise, false)
        },
        simple("the memory limit is lowered", Op::Lower, false),
        Scenario {
            setup: limited,
            ..simple("memory goes out of use and back to the system", Op::Shrink, true)
        },
        Scenario {
            setup: limited_and_crowded,
            ..simple("memory goes out of use, full before", Op::Shrink, false)
        },
        Scenario {
            setup: shrunk,
            ..simple("memory is used again", Op::Raise, true)
        },
        Scenario {
            setup: flushed,
            ..simple("upkeep, dead segments", Op::Upkeep, false)
        },
        Scenario {
            setup: full_pair,
            ..simple("set, absent, both buckets full", Op::set(&pair_key(16), b"one more"), true)
        },
        Scenario {
            setup: full_pair_with_room,
            ..simple(
                "set, absent, both buckets full, room to grow",
                Op::set(&pair_key(16), b"one more"),
                false,
            )
        },
        Scenario {
            setup: full_three,
            ..simple("set, absent, all buckets full", Op::set(&pair_key(16), b"one more"), true)
        },
        Scenario {
            setup: full_of_large,
            ..simple("set, large, evicting", Op::set(b"new", &large(6, 3 * PART)), true)
        },
    ];
    let approaching = |name, setup, write, is_it, is_short| Scenario {
        setup,
        approach: Some(Approach { write, is_it }),
        ..simple(name, Op::Release, is_short)
    };
    list.extend([
        approaching("set, absent, evicting", crowded, fresh, evicts, true),
        approaching("set, present, evicting", crowded, refresh, recycles, false),
        approaching("append, evicting", crowded, extend, recycles, false),
        approaching("set, absent, evicting large values", full_of_large, fresh, evicts, true),
        approaching("set, present, compacting", half_full, refresh_in_no_order, relocates, true),
        approaching("set, absent, reclaiming flushed", crowded_and_flushed, fresh, recycles, false),
        approaching("set, absent, first split of a doubling", nothing, tiny, splits, true),
        approaching("set, absent, splits of a doubling", doubling, tiny_more, splits, false),
        approaching(
            "set, absent, evicting while the index doubles",
            doubling_and_crowded,
            fresh,
            recycles,
            false,
        ),
    ]);
    list
}

fn fresh(i: usize) -> Op {
    Op::set(format!("fresh-{i}").as_bytes(), &vec![1; 100 + i * 37 % 380])
}

fn refresh(i: usize) -> Op {
    Op::set(format!("item-{}", i * 7 % 300).as_bytes(), &vec![2; 200 + i * 53 % 300])
}

/// In an order in which no segment dies as a whole: what is left in it must be copied.
fn refresh_in_no_order(i: usize) -> Op {
    refresh(i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40)
}

fn extend(i: usize) -> Op {
    Op::store(format!("item-{}", i * 7 % 300).as_bytes(), b"and more", StoreMode::Append)
}

fn tiny(i: usize) -> Op {
    Op::set(format!("t{i}").as_bytes(), b"v")
}

fn tiny_more(i: usize) -> Op {
    Op::set(format!("u{i}").as_bytes(), b"v")
}

fn evicts(before: &Counters, after: &Counters) -> bool {
    after.evictions > before.evictions && after.segments_recycled > before.segments_recycled
}

fn recycles(before: &Counters, after: &Counters) -> bool {
    after.segments_recycled > before.segments_recycled
}

fn relocates(before: &Counters, after: &Counters) -> bool {
    after.relocations > before.relocations
}

fn splits(before: &Counters, after: &Counters) -> bool {
    after.splits > before.splits
}

fn put(door: &mut dyn Door, key: &[u8], value: &[u8]) {
    let stored = door.store(key, value, &Store::default());
    assert!(stored.is_ok(), "a setup's set failed: {stored:?}");
}

fn nothing(_: &mut Player) {}

fn plain(player: &mut Player) {
    let region = Arc::clone(&player.region);
    furnish(player, &region);
}

/// Some items of every kind, and free segments that hold the rests of large values.
pub fn furnish(door: &mut dyn Door, region: &Region) {
    let free = || region.segments().free_segments();
    // More than once round: each time other segments are left over.
    for _ in 0..3 {
        let mut pieces = 0;
        while free() > 5 {
            put(door, format!("piece-{pieces}").as_bytes(), &large(9, 2 * PART));
            pieces += 1;
        }
        for i in 0..pieces {
            let _ = door.delete(format!("piece-{i}").as_bytes(), &Delete::default());
        }
    }
    for i in 0..30 {
        put(door, format!("by-{i}").as_bytes(), &vec![3; i * 29 % 400]);
    }
    put(door, b"n", b"41");
    put(door, b"big", &large(1, 2 * PART - 1000));
    for i in 0..5 {
        let _ = door.get(format!("by-{i}").as_bytes(), &Get::default(), &mut Vec::new());
    }
}

fn stale(player: &mut Player) {
    plain(player);
    Op::MarkStale(b"by-3".to_vec()).perform(player, 0);
}

/// Its process computes.
fn begun(player: &mut Player) {
    plain(player);
    begin(player, b"new");
}

fn begun_stale(player: &mut Player) {
    stale(player);
    begin(player, b"by-3");
}

fn begin(player: &mut Player, key: &[u8]) {
    let begun = player.begin(key);
    assert!(
        matches!(begun, Ok(Fetched::Compute(..))),
        "a setup's fetch answered {begun:?}"
    );
}

fn limited(player: &mut Player) {
    plain(player);
    assert_eq!(player.lower(), "true", "a setup's limit is too low");
}

fn limited_and_crowded(player: &mut Player) {
    crowded(player);
    assert_eq!(player.lower(), "true", "a setup's limit is too low");
}

fn shrunk(player: &mut Player) {
    limited(player);
    player.shrink();
    assert_eq!(player.region.mapped().given_back(), crate::ground::WITHHELD);
}

fn flushed(player: &mut Player) {
    for i in 0..60 {
        put(player, format!("item-{i}").as_bytes(), &vec![4; 900]);
    }
    put(player, b"gone", &large(2, 2 * PART));
    let _ = player.flush_all(0);
    put(player, b"by-3", b"after the flush");
}

/// An item that leaves nothing of its segment.
fn nearly_full(player: &mut Player) {
    put(player, b"first", &large(9, 16_300));
}

/// Memory is full of items, some of which were hit.
fn crowded(player: &mut Player) {
    for i in 0..1200 {
        put(player, format!("item-{i}").as_bytes(), &vec![5; 100 + i * 61 % 380]);
        if i % 3 == 0 {
            let _ = player.get(format!("item-{i}").as_bytes(), &Get::default(), &mut Vec::new());
        }
    }
}

fn crowded_and_flushed(player: &mut Player) {
    crowded(player);
    let _ = player.flush_all(0);
}

/// Memory is full of large items.
fn full_of_large(player: &mut Player) {
    for i in 0..20 {
        put(player, format!("large-{i}").as_bytes(), &large(8, 2 * PART - 100));
    }
}

/// Items that fit, and have been rewritten for a while.
fn half_full(player: &mut Player) {
    for i in 0..1000 {
        put(player, format!("item-{}", i % 300).as_bytes(), &vec![6; 300 + i * 53 % 200]);
    }
}

/// The index has begun to double.
fn doubling(player: &mut Player) {
    for i in 0..APPROACH_MAX {
        if player.region.threads().counters().splits > 0 {
            return;
        }
        tiny(i).perform(player, 0);
    }
}

fn doubling_and_crowded(player: &mut Player) {
    doubling(player);
    crowded(player);
}

/// The pair of buckets that is filled.
const PAIR: [u64; 2] = [10, 21];

/// A key's buckets.
fn buckets(key: &[u8]) -> [u64; 3] {
    const SEED: u64 = 3;
    let first_index = ground::shape(1).buckets_initial as u64;
    keyway_region::all_choices(keyway_region::hash(SEED, key)).map(|choice| choice % first_index)
}

/// The key of this number of those whose first two buckets are these.
fn key_of(pair: [u64; 2], n: usize) -> Vec<u8> {
    (0u32..)
        .map(|i| format!("p{i}").into_bytes())
        .filter(|key| buckets(key)[..2].iter().all(|bucket| pair.contains(bucket)))
        .nth(n)
        .unwrap_or_default()
}

/// Keys of one pair of buckets.
fn pair_key(n: usize) -> Vec<u8> {
    key_of(PAIR, n)
}

/// All three buckets of a key are full; the items in them have other buckets, too.
fn full_three(player: &mut Player) {
    full_pair_with_room(player);
    let [.., third] = buckets(&pair_key(16));
    // A pair differs in the lowest bit.
    let other = PAIR.into_iter().find(|bucket| (bucket ^ third) & 1 == 1).unwrap_or_default();
    for n in 0..8 {
        put(player, &key_of([other, third], n), b"one of many");
    }
}

/// Both buckets of a pair are full, and so is memory: the index does not grow now.
fn full_pair(player: &mut Player) {
    for i in 0..200 {
        put(player, format!("item-{i}").as_bytes(), &vec![7; 2000]);
    }
    full_pair_with_room(player);
}

fn full_pair_with_room(player: &mut Player) {
    for n in 0..16 {
        put(player, &pair_key(n), b"one of many");
    }
}
