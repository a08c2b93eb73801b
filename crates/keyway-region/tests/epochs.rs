//! Flush epochs are never used up. Their enemies: clients that flush as fast as they can, with nothing to flush or with an item each time; a
//! number that is used again while an item of its last use can be reached; a session that slept meanwhile.
//!
//! With the feature `small` the numbers go round every 16 flushes, otherwise every eight million.

mod private;

use keyway_region::verbs::{Delete, Get, Store, StoreMode, Stored};
use keyway_region::{Limits, Region, Session};
use private::{Page, UNIX_S};
use std::sync::Arc;

/// More than there are numbers.
const MORE_THAN_ALL: u64 = 17 << 20;
/// Flushes in which the numbers go round several times, if there are few of them.
const MANY: u64 = 500;

/// A region, its memory, and sessions of one process in it.
struct World {
    sessions: Vec<Session>,
    region: Arc<Region>,
    now: u32,
    _pages: Vec<Page>,
}

impl World {
    fn new(memory: u64, sessions: usize, evict: bool) -> Self {
        let (pages, region) = private::region(memory);
        let process = region.attach(0, 1, UNIX_S);
        let limits = Limits {
            item_size_max: 1 << 20,
            evict,
        };
        let session = || region.session(process, limits).expect("a slot");
        Self {
            sessions: (0..sessions).map(|_| session()).collect(),
            now: region.tick(keyway_region::Moment::from_secs(UNIX_S + 10)),
            region,
            _pages: pages,
        }
    }

    fn store(&mut self, session: usize, key: &str, value: &[u8], mode: StoreMode) -> bool {
        let how = Store {
            mode,
            ..Store::default()
        };
        let stored = self.sessions[session].store(key.as_bytes(), value, &how, self.now);
        matches!(stored.expect("there is room"), Stored::Stored { .. })
    }

    fn set(&mut self, session: usize, key: &str, value: &[u8]) {
        assert!(self.store(session, key, value, StoreMode::Set), "{key}");
    }

    fn get(&mut self, session: usize, key: &str) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        let how = Get {
            value: true,
            ..Get::default()
        };
        self.sessions[session]
            .get_with(key.as_bytes(), &how, self.now, &mut value, |_, _| {})
            .expect("a good key")
            .map(|_| value)
    }

    fn flush(&mut self, session: usize) {
        self.sessions[session]
            .flush_all(0, self.now)
            .expect("a flush is never refused");
    }

    fn visible(&self) -> usize {
        let mut items = 0;
        let end = self.region.walk(0, usize::MAX, self.now, |_, _| items += 1);
        assert_eq!(end, None);
        items
    }
}

#[test]
fn flushes_of_nothing_take_no_number() {
    let mut world = World::new(1 << 20, 1, true);
    world.set(0, "before", b"1");
    for _ in 0..MORE_THAN_ALL {
        world.flush(0);
    }
    assert_eq!(world.get(0, "before"), None);
    for round in 0..100 {
        world.set(0, "key", b"1");
        assert!(world.get(0, "key").is_some(), "round {round}");
        world.flush(0);
        assert_eq!(world.get(0, "key"), None, "round {round}");
    }
}

#[test]
fn numbers_that_are_used_again_bring_no_item_back() {
    // The second session fills nothing more: its segment is kept from being recycled, and what is in it can be reached until a pass.
    for memory in [1 << 20, 64 << 20] {
        let mut world = World::new(memory, 3, true);
        world.set(1, "idle", b"old");
        world.set(1, "large idle", &vec![7; 100_000]);
        for round in 0..MANY {
            let key = format!("key {round}");
            world.set(0, &key, b"value");
            if round % 7 == 3 {
                world.set(2, &format!("seldom {round}"), &[3; 500]);
            }
            assert!(world.get(2, &key).is_some(), "{key}");
            world.flush(if round % 2 == 0 { 0 } else { 2 });
            assert_eq!(world.visible(), 0, "round {round}");
            assert_eq!(world.get(0, "idle"), None, "round {round}");
            assert_eq!(world.get(2, &key), None, "round {round}");
        }
        // Who slept all the while goes on in what he had begun.
        assert!(world.store(1, "idle", b"new", StoreMode::Add), "it is absent");
        world.set(1, "other", b"new");
        assert_eq!(world.get(0, "idle").as_deref(), Some(&b"new"[..]));
        assert_eq!(world.visible(), 2);
        world.flush(0);
        assert_eq!(world.visible(), 0);
        assert_eq!(
            world.sessions[1].delete(b"other", &Delete::default(), world.now),
            Ok(keyway_region::verbs::Deleted::NotFound)
        );
    }
}

#[test]
fn what_is_not_flushed_stays_whatever_the_passes_do() {
    // No eviction: whatever is missing was lost. The index grows meanwhile, and passes go through it while it does.
    let mut world = World::new(16 << 20, 2, false);
    for round in 0..MANY / 10 {
        for key in 0..200 * round {
            world.set((key % 2) as usize, &format!("{round} {key}"), b"value");
        }
        for _ in 0..3 {
            world.sessions[0].upkeep(world.now);
        }
        assert_eq!(world.visible() as u64, 200 * round, "round {round}");
        world.flush(0);
        assert_eq!(world.visible(), 0, "round {round}");
    }
}

#[test]
fn delayed_flushes_go_round_too() {
    let mut world = World::new(1 << 20, 2, true);
    world.set(1, "idle", b"old");
    for round in 0..MANY {
        world.set(0, "key", b"value");
        world.sessions[0].flush_all(1, world.now).expect("a flush is never refused");
        assert!(world.get(0, "key").is_some(), "round {round}");
        world.now += 2;
        assert_eq!(world.get(0, "key"), None, "round {round}");
        assert_eq!(world.visible(), 0, "round {round}");
        if round % 3 == 0 {
            // A flush of nothing takes a delayed one back all the same.
            world.sessions[0].flush_all(1, world.now).expect("a flush is never refused");
            world.flush(0);
            world.set(0, "stays", b"value");
            world.now += 2;
            assert!(world.get(1, "stays").is_some(), "round {round}");
        }
    }
}
