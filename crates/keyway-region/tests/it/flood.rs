//! Keys with one hash. A client that does not know the region's seed cannot choose such keys; these tests know it, and show what the worst luck, or
//! a seed that was betrayed, would cost: the three buckets of those keys, and no other key anything.
//! Guards: P18

use crate::private;
use keyway_region::verbs::{Get, Store, Stored, WriteError};
use keyway_region::{Limits, Region, Session, hash};
use private::UNIX_S;
use std::sync::Arc;

/// The seed that [`private::region`] gives.
const SEED: u64 = 3;
/// Items that three buckets hold.
const THREE_BUCKETS: usize = 24;
const COLLIDING: u64 = 4_096;
const HONEST: u64 = 15_000;

/// The second secret of the first pair makes no difference where the first word takes the first one away.
fn colliding(number: u64) -> Vec<u8> {
    let mut z = SEED.wrapping_add(0x9E37_79B9_7F4A_7C15u64.wrapping_mul(3));
    z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    let first = (z ^ z >> 31).wrapping_neg();
    [first.to_le_bytes(), number.to_le_bytes()].concat()
}

fn honest(number: u64) -> Vec<u8> {
    format!("honest {number}").into_bytes()
}

struct World {
    session: Session,
    region: Arc<Region>,
    now: u32,
    _pages: Vec<private::Page>,
}

impl World {
    fn new(evict: bool) -> Self {
        let (pages, region) = private::region(16 << 20);
        let process = region.recovery().attach(0, 1, UNIX_S);
        region.limits().write(&Limits {
            item_size_max: 1 << 20,
            evict,
            ..Limits::default()
        });
        Self {
            session: region.session(process).expect("a slot"),
            now: region.clock().tick(keyway_region::Moment::from_secs(UNIX_S + 10)),
            region,
            _pages: pages,
        }
    }

    fn set(&mut self, key: &[u8]) -> Result<(), WriteError> {
        let stored = self.session.store(key, b"value", &Store::default(), self.now);
        stored.map(|stored| assert!(matches!(stored, Stored::Stored { .. })))
    }

    fn is_there(&mut self, key: &[u8]) -> bool {
        let item = self.session.get(key, &Get::default(), self.now, &mut Vec::new());
        item.expect("a good key").is_some()
    }

    fn honest_left(&mut self) -> u64 {
        (0..HONEST).map(|number| u64::from(self.is_there(&honest(number)))).sum()
    }
}

#[test]
fn the_keys_collide() {
    assert!((0..COLLIDING).all(|number| hash(SEED, &colliding(number)) == hash(SEED, &colliding(0))));
    assert_ne!(hash(SEED + 1, &colliding(1)), hash(SEED + 1, &colliding(0)));
}

#[test]
fn keys_that_collide_evict_one_another_and_no_more() {
    for before in [0, HONEST] {
        let mut world = World::new(true);
        for number in 0..before {
            world.set(&honest(number)).expect("there is room");
        }
        let index = world.region.directory().index_size();
        for _ in 0..3 {
            for number in 0..COLLIDING {
                world.set(&colliding(number)).expect("a store is never refused");
                assert!(world.is_there(&colliding(number)), "{number}");
            }
        }
        assert_eq!(
            world.region.directory().index_size(),
            index,
            "the index does not grow for them"
        );
        let left = (0..COLLIDING).filter(|number| world.is_there(&colliding(*number))).count();
        assert!(left <= THREE_BUCKETS, "{left}");
        for number in before..HONEST {
            world.set(&honest(number)).expect("there is room");
        }
        let lost = HONEST - world.honest_left();
        assert!(lost <= 2 * THREE_BUCKETS as u64, "{lost}");
        let found = keyway_region::check::check(&world.region, |_| {});
        assert!(found.is_sound());
    }
}

#[test]
fn without_eviction_keys_that_collide_are_refused_and_no_others() {
    let mut world = World::new(false);
    let index = world.region.directory().index_size();
    let stored = (0..COLLIDING).filter(|number| world.set(&colliding(*number)).is_ok()).count();
    assert_eq!(stored, THREE_BUCKETS);
    // Where nothing is evicted, each insert adds four buckets in advance: 72 bytes with their hints.
    let grown = world.region.directory().index_size() - index;
    assert_eq!(
        grown,
        THREE_BUCKETS as u64 * 4 * 72,
        "the index does not grow for those that are refused"
    );
    for number in 0..HONEST {
        world.set(&honest(number)).expect("there is room");
    }
    assert_eq!(world.honest_left(), HONEST);
}
