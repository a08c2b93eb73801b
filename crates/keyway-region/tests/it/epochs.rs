//! Flush epochs are never used up, and of delayed flushes the last one counts. Their enemies: clients that flush as fast as they can, a
//! session that slept meanwhile, flushes and delayed flushes at once.
//! Guards: P17

use crate::private;
use keyway_region::verbs::{Get, Store, StoreMode, Stored};
use keyway_region::{Limits, Region, Session, seconds_of};
use private::{Page, UNIX_S};
use std::sync::Arc;

/// More than 24 bits can count.
const MANY: u64 = 17 << 20;

/// A region, its memory, and sessions of one process in it.
struct World {
    sessions: Vec<Session>,
    region: Arc<Region>,
    now: u32,
    _pages: Vec<Page>,
}

impl World {
    fn new(sessions: usize) -> Self {
        let (pages, region) = private::region(1 << 20);
        let process = region.recovery().attach(0, 1, UNIX_S);
        region.limits().write(&Limits {
            item_size_max: 1 << 20,
            evict: true,
            ..Limits::default()
        });
        let session = || region.session(process).expect("a slot");
        Self {
            sessions: (0..sessions).map(|_| session()).collect(),
            now: region.clock().tick(keyway_region::Moment::from_secs(UNIX_S + 10)),
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
            .get(key.as_bytes(), &how, self.now, &mut value)
            .expect("a good key")
            .map(|_| value)
    }

    fn flush(&mut self, session: usize, exptime: i64) {
        self.sessions[session].flush_all(exptime, self.now).expect("a flush");
    }

    fn visible(&self) -> usize {
        let mut items = 0;
        let end = self.region.index().walk(0, usize::MAX, self.now, |_, _| items += 1);
        assert_eq!(end, None);
        items
    }
}

#[test]
fn epochs_do_not_run_out_and_bring_no_item_back() {
    let mut world = World::new(3);
    world.set(1, "idle", b"old");
    world.set(1, "large idle", &vec![7; 100_000]);
    for round in 0..3 {
        for _ in 0..MANY / 3 {
            world.flush(0, 0);
        }
        for step in 0..100 {
            world.set(0, "key", b"1");
            assert!(world.get(2, "key").is_some(), "round {round}, step {step}");
            world.flush(2, 0);
            assert_eq!(world.get(0, "key"), None, "round {round}, step {step}");
        }
        assert_eq!(world.get(0, "idle"), None, "round {round}");
        assert_eq!(world.visible(), 0, "round {round}");
    }
    // Who slept all the while goes on in what he had begun.
    assert!(world.store(1, "idle", b"new", StoreMode::Add), "it is absent");
    world.set(1, "other", b"new");
    assert_eq!(world.get(0, "idle").as_deref(), Some(&b"new"[..]));
    assert_eq!(world.visible(), 2);
    world.flush(0, 0);
    assert_eq!(world.visible(), 0);
}

#[test]
fn of_delayed_flushes_the_last_one_counts_and_a_flush_takes_it_back() {
    let mut world = World::new(2);
    for round in 0..50 {
        world.set(0, "key", b"value");
        world.flush(0, 100);
        world.flush(1, 3);
        assert_eq!(
            world.region.flushes().flush_at_s(),
            Some(seconds_of(world.now + 3)),
            "round {round}"
        );
        world.now += 2;
        assert!(world.get(1, "key").is_some(), "round {round}: it is not due");
        assert_eq!(world.visible(), 1, "round {round}");
        world.now += 1;
        // A walk applies the delayed flush too, but does not change the flush word.
        assert_eq!(world.visible(), 0, "round {round}");
        assert!(world.region.flushes().flush_at_s().is_some(), "round {round}");
        assert_eq!(world.get(1, "key"), None, "round {round}");
        assert_eq!(world.region.flushes().flush_at_s(), None, "round {round}: it has begun");

        world.flush(0, 5);
        world.flush(1, 0);
        assert_eq!(world.region.flushes().flush_at_s(), None, "round {round}: taken back");
        world.set(0, "stays", b"value");
        world.now += 6;
        assert!(world.get(1, "stays").is_some(), "round {round}");
        world.flush(1, 0);
    }
}

#[test]
fn a_delayed_flush_that_is_set_beside_others_begins_if_none_of_them_was_later() {
    let mut world = World::new(3);
    let now = world.now;
    for round in 0..200 {
        world.set(0, "key", b"value");
        let mut sessions = world.sessions.drain(..);
        let threads: Vec<_> = [0, 7, 9]
            .into_iter()
            .map(|exptime| {
                let mut session = sessions.next().expect("three");
                std::thread::spawn(move || {
                    for _ in 0..200 {
                        session.flush_all(exptime, now).expect("a flush");
                    }
                    session
                })
            })
            .collect();
        drop(sessions);
        world.sessions = threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
        let left = world.region.flushes().flush_at_s();
        assert!(
            [None, Some(seconds_of(now + 7)), Some(seconds_of(now + 9))].contains(&left),
            "round {round}: {left:?}"
        );
        assert_eq!(world.get(1, "key"), None, "round {round}");
        world.set(1, "key", b"value");
        world.flush(1, 7);
        assert_eq!(
            world.region.flushes().flush_at_s(),
            Some(seconds_of(now + 7)),
            "round {round}"
        );
        world.now = now + 8;
        assert_eq!(world.get(2, "key"), None, "round {round}");
        world.now = now;
    }
}
