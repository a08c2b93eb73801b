//! Flights: who computes, who is woken, and who has a place under a limit. Its enemies: a late store that lands, a wake that comes too early
//! or not at all, a death that keeps a flight or a place, a copy of an item that loses its record.
//! Guards: P53

use crate::private::{Page, UNIX_S, region_of};
use keyway_region::fetch::{Fetched, Flight, Freshness, Refreshed};
use keyway_region::layout::session::Tenant;
use keyway_region::verbs::{Arithmetic, Delete, Deleted, Get, Read, Store, StoreMode, Stored};
use keyway_region::{Fetches, Holder, Host, Life, Moment, Region, Session, Turn, check};
use std::ops::Range;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

const KEY: &[u8] = b"key";

/// What the host is told, and what it says.
#[derive(Default)]
struct System {
    /// the processes that are dead, a bit each
    dead: AtomicU64,
    /// for each wake: what a get of the key finds then
    woken: Mutex<Vec<Option<Vec<u8>>>>,
    /// wakes of one waiter
    woken_singly: AtomicU64,
    region: OnceLock<Weak<Region>>,
}

struct Machine {
    system: Arc<System>,
    len: usize,
}

impl Host for Machine {
    fn life(&self, tenant: &Tenant) -> Life {
        match self.system.dead.load(SeqCst) & 1 << tenant.slot {
            0 => Life::Alive,
            _ => Life::Dead,
        }
    }
    fn prepare(&self, _: &[Range<usize>], _: bool, _: bool) {}
    fn write_back(&self, _: Range<usize>) -> bool {
        true
    }
    fn file_len(&self) -> usize {
        self.len
    }
    fn back(&self, _: Range<usize>) -> std::io::Result<()> {
        Err(std::io::ErrorKind::StorageFull.into())
    }
    fn wake(&self, _: usize, at_most: u32) {
        if at_most == 1 {
            self.system.woken_singly.fetch_add(1, SeqCst);
            return;
        }
        let region = self.system.region.get().and_then(Weak::upgrade).expect("it has been made");
        let mut value = Vec::new();
        let found = region.index().read(KEY, Get::VALUE, now(&region), &mut value);
        let value = matches!(found, Ok(Read::Hit(_))).then_some(value);
        self.system.woken.lock().unwrap().push(value);
    }
}

fn now(region: &Region) -> u32 {
    region.clock().tick(Moment::from_secs(UNIX_S + 100))
}

/// A region with sessions of different processes.
struct World {
    sessions: Vec<Session>,
    region: Arc<Region>,
    system: Arc<System>,
    now: u32,
    /// last: the region lies in it
    _pages: Vec<Page>,
}

impl World {
    fn new() -> Self {
        let system: Arc<System> = Arc::default();
        let host = Arc::clone(&system);
        let (pages, region) = region_of(4 << 20, 0, |_, len| Box::new(Machine { system: host, len }));
        system.region.set(Arc::downgrade(&region)).unwrap();
        let sessions = (0..3).map(|slot| {
            let process = region.recovery().attach(slot, 1, UNIX_S);
            region.session(process).expect("a slot")
        });
        Self {
            sessions: sessions.collect(),
            now: now(&region),
            region,
            system,
            _pages: pages,
        }
    }

    fn begin(&mut self, who: usize, how: &Freshness) -> (Fetched, Vec<u8>) {
        let mut value = Vec::new();
        let now = self.now;
        (
            Fetches::of(&mut self.sessions[who]).begin(KEY, how, now, &mut value).unwrap(),
            value,
        )
    }

    fn computes(&mut self, who: usize) -> Flight {
        match self.begin(who, &Freshness::default()) {
            (Fetched::Compute(flight, _), _) => flight,
            (other, _) => panic!("{other:?}"),
        }
    }

    fn store(&mut self, who: usize, flight: Flight, value: &[u8], how: &Refreshed) -> bool {
        let now = self.now;
        Fetches::of(&mut self.sessions[who])
            .store(KEY, flight, value, how, now)
            .unwrap()
    }

    fn get(&self) -> Option<Vec<u8>> {
        let mut value = Vec::new();
        let found = self.region.index().read(KEY, Get::VALUE, self.now, &mut value);
        matches!(found, Ok(Read::Hit(_))).then_some(value)
    }

    fn woken(&self) -> Vec<Option<Vec<u8>>> {
        std::mem::take(&mut self.system.woken.lock().unwrap())
    }

    /// The process of this number has died.
    fn kill(&mut self, who: usize) {
        self.system.dead.fetch_or(1 << who, SeqCst);
        self.sessions[who].abandon();
    }
}

/// A value with its time and its windows.
fn refreshed(exptime: i64, keep_s: u32) -> Refreshed {
    Refreshed {
        exptime,
        keep_s,
        flags: 7,
        ..Refreshed::default()
    }
}

#[test]
fn whoever_waits_is_woken_when_the_value_is_there() {
    let mut world = World::new();
    let flight = world.computes(0);
    assert!(matches!(world.begin(1, &Freshness::default()).0, Fetched::Elsewhere(other) if other == flight));
    let hash = world.region.mapped().hash(KEY);
    world.region.flights().arm(hash);
    assert!(world.store(0, flight, b"value", &refreshed(0, 0)));
    assert_eq!(world.woken(), [Some(b"value".to_vec())], "one wake, behind the store");
    assert!(!world.store(0, flight, b"again", &refreshed(0, 0)));
    assert_eq!(world.woken(), [], "nobody waits");
    assert!(check::check(&world.region, |_| {}).is_sound());
}

#[test]
fn every_change_of_the_key_wakes_and_voids() {
    type Change = fn(&mut Session, u32);
    let changes: [(&str, Change, Option<&[u8]>); 6] = [
        (
            "set",
            |s, now| assert!(s.set(KEY, b"newer", 0, 0, now).is_ok()),
            Some(b"newer"),
        ),
        (
            "add",
            |s, now| {
                let add = Store {
                    mode: StoreMode::Add,
                    ..Store::default()
                };
                assert!(matches!(s.store(KEY, b"newer", &add, now), Ok(Stored::Stored { .. })));
            },
            Some(b"newer"),
        ),
        (
            "delete",
            |s, now| assert_eq!(s.delete(KEY, &Delete::default(), now), Ok(Deleted::NotFound)),
            None,
        ),
        (
            "a delete with a condition for another item",
            |s, now| {
                let invalidate = Delete {
                    invalidate: true,
                    ..Delete::default()
                };
                assert_eq!(s.delete(KEY, &invalidate, now), Ok(Deleted::NotFound));
            },
            None,
        ),
        ("flush", |s, now| s.flush_all(0, now).unwrap(), None),
        (
            "incr",
            |s, now| {
                let vivify = Arithmetic {
                    delta: 1,
                    vivify: Some((5, 0)),
                    ..Arithmetic::default()
                };
                s.arithmetic(KEY, &vivify, now).unwrap();
            },
            Some(b"5"),
        ),
    ];
    let mut world = World::new();
    for (name, change, left) in changes {
        let now = world.now;
        world.sessions[2].delete(KEY, &Delete::default(), now).unwrap();
        let flight = world.computes(0);
        world.region.flights().arm(world.region.mapped().hash(KEY));
        change(&mut world.sessions[1], now);
        assert_eq!(world.woken().len(), 1, "{name}");
        assert!(!world.store(0, flight, b"late", &refreshed(0, 0)), "{name}");
        assert_eq!(world.get().as_deref(), left, "{name}");
    }
    let compares = Delete {
        compare_cas: Some(1),
        ..Delete::default()
    };
    let now = world.now;
    world.sessions[2].delete(KEY, &Delete::default(), now).unwrap();
    let flight = world.computes(0);
    assert_eq!(world.sessions[1].delete(KEY, &compares, now), Ok(Deleted::NotFound));
    assert!(
        world.store(0, flight, b"value", &refreshed(0, 0)),
        "a delete of one item says nothing of another"
    );
}

#[test]
fn a_later_flight_of_the_same_thread_is_another_one() {
    let mut world = World::new();
    let now = world.now;
    let first = world.computes(0);
    // One whose wait is over computes in the same flight.
    assert!(matches!(world.begin(1, &Freshness::default()).0, Fetched::Elsewhere(other) if other == first));
    world.sessions[2].delete(KEY, &Delete::default(), now).unwrap();
    let second = world.computes(0);
    assert!(!world.store(1, first, b"old", &refreshed(0, 0)), "the delete came between");
    assert!(world.store(0, second, b"new", &refreshed(0, 0)));
    assert_eq!(world.get().unwrap(), b"new");
}

#[test]
fn the_dead_are_succeeded_and_store_nothing() {
    let mut world = World::new();
    let flight = world.computes(0);
    world.kill(0);
    assert!(
        matches!(world.begin(1, &Freshness::default()).0, Fetched::Elsewhere(_)),
        "nobody has looked yet"
    );
    world.region.recovery().take_back_dead(world.sessions[2].holder());
    assert!(
        matches!(world.begin(1, &Freshness::default()).0, Fetched::Elsewhere(_)),
        "another one is no matter"
    );
    world.region.recovery().take_back_dead(flight.holder);
    assert!(!world.region.flights().is_held(flight.holder));
    let next = world.computes(1);
    assert!(!world.store(2, flight, b"late", &refreshed(0, 0)));
    assert!(world.store(1, next, b"value", &refreshed(0, 0)));
}

#[test]
fn a_stale_value_is_seen_by_fetches_only() {
    let mut world = World::new();
    let flight = world.computes(0);
    assert!(world.store(0, flight, b"first", &refreshed(10, 100)));
    let while_stale = Freshness {
        stale_s: 50,
        old_s: 100,
        ..Freshness::default()
    };
    assert!(matches!(world.begin(1, &while_stale).0, Fetched::Fresh(item) if item.flags == 7 && !item.win_sent));
    world.now += 30;
    assert_eq!(world.get(), None);
    let (begun, old) = world.begin(0, &while_stale);
    let Fetched::Compute(flight, Some(item)) = begun else {
        panic!("{begun:?}")
    };
    assert_eq!((old.as_slice(), item.flags), (&b"first"[..], 7));
    let (begun, old) = world.begin(1, &while_stale);
    assert!(matches!(begun, Fetched::Stale(_)) && old == b"first", "{begun:?}");
    assert!(
        matches!(world.begin(1, &Freshness::default()).0, Fetched::Elsewhere(_)),
        "who wants no stale value waits"
    );
    assert_eq!(world.get(), None);
    let now = world.now;
    assert!(Fetches::of(&mut world.sessions[0]).abandon(KEY, flight, now).unwrap());
    world.now += 30;
    let (begun, old) = world.begin(1, &while_stale);
    let Fetched::Compute(flight, Some(_)) = begun else {
        panic!("{begun:?}")
    };
    assert_eq!(old, b"first", "for an error it is still there");
    assert!(
        matches!(world.begin(2, &while_stale).0, Fetched::Elsewhere(_)),
        "but too old for those who wait"
    );
    world.now += 60;
    assert!(
        !world.store(1, flight, b"second", &refreshed(10, 100)),
        "it is not kept for ever"
    );
    assert!(matches!(world.begin(2, &while_stale).0, Fetched::Compute(_, None)));
}

#[test]
fn marks_and_touches_keep_what_belongs_to_fetches() {
    let mut world = World::new();
    let flight = world.computes(0);
    assert!(world.store(0, flight, b"41", &refreshed(10, 100)));
    let now = world.now;
    assert!(world.sessions[1].touch(KEY, 20, now).unwrap());
    world.sessions[1].incr(KEY, 1, now).unwrap();
    world.now += 100;
    let stale = Freshness {
        stale_s: 90,
        old_s: 90,
        ..Freshness::default()
    };
    let (begun, old) = world.begin(0, &stale);
    let Fetched::Compute(flight, Some(_)) = begun else {
        panic!("{begun:?}")
    };
    assert_eq!(old, b"42");
    assert!(world.store(0, flight, b"43", &refreshed(1000, 100)));
    let now = world.now;
    let invalidate = Delete {
        invalidate: true,
        ..Delete::default()
    };
    assert_eq!(world.sessions[1].delete(KEY, &invalidate, now), Ok(Deleted::Deleted));
    let (begun, old) = world.begin(0, &stale);
    let Fetched::Compute(flight, Some(_)) = begun else {
        panic!("{begun:?}: a stale mark makes a value stale")
    };
    assert_eq!(old, b"43");
    // Whoever invalidates it again voids the flight.
    assert_eq!(world.sessions[1].delete(KEY, &invalidate, now), Ok(Deleted::Deleted));
    assert!(!world.store(0, flight, b"late", &refreshed(0, 0)));
    // A client's win is no thread's flight.
    let wins = Get {
        value: true,
        details: true,
        win_stale: true,
        ..Get::default()
    };
    let won = world.sessions[1].get(KEY, &wins, now, &mut Vec::new()).unwrap().unwrap();
    assert!(won.win && won.stale);
    let other = world.sessions[2].get(KEY, &wins, now, &mut Vec::new()).unwrap().unwrap();
    assert!(!other.win && other.win_sent);
    assert!(matches!(world.begin(0, &stale).0, Fetched::Stale(_)), "a client computes");
}

#[test]
fn whoever_waits_for_all_keys_is_woken_with_each() {
    let mut world = World::new();
    let flight = world.computes(0);
    let hash = world.region.mapped().hash(KEY);
    let flights = world.region.flights().clone();
    let (one, all) = (flights.arm(hash), flights.arm_any());
    assert!(!flights.has_ended(one) && !flights.has_ended(all));
    assert!(world.store(0, flight, b"value", &refreshed(0, 0)));
    assert!(flights.has_ended(one) && flights.has_ended(all));
    // What no caller waits for wakes no caller.
    let all = flights.arm_any();
    flights.wake(hash);
    assert!(!flights.has_ended(all));
    flights.wake_any();
    assert!(flights.has_ended(all));
}

#[test]
fn a_get_that_wins_holds_the_flight_of_all_doors() {
    let mut world = World::new();
    let now = world.now;
    let get = Get {
        value: true,
        details: true,
        vivify: Some(1000),
        ..Get::default()
    };
    let wins = |world: &mut World, who: usize| {
        let item = world.sessions[who].get(KEY, &get, now, &mut Vec::new()).unwrap().unwrap();
        (item.win, item.win_sent)
    };
    // A fetch that computes goes on when a get makes an item that all see.
    let flight = world.computes(0);
    assert_eq!(wins(&mut world, 1), (false, true));
    assert!(world.store(0, flight, b"value", &refreshed(0, 0)));
    assert_eq!(wins(&mut world, 1), (false, false));
    world.sessions[0].delete(KEY, &Delete::default(), now).unwrap();
    // Who has won is waited for, whatever the item has.
    assert_eq!(wins(&mut world, 1), (true, false));
    assert_eq!(wins(&mut world, 2), (false, true));
    let (found, _) = world.begin(0, &Freshness::default());
    assert!(
        matches!(found, Fetched::Elsewhere(flight) if flight.holder.is_by_get()),
        "{found:?}"
    );
    // The dead win nothing.
    world.system.dead.fetch_or(1 << 1, SeqCst);
    world.region.recovery().recover();
    assert_eq!(wins(&mut world, 2), (true, false));
    assert_eq!(wins(&mut world, 0), (false, true));
}

#[test]
fn records_outlive_their_segments() {
    let mut world = World::new();
    let now = world.now;
    let flight = world.computes(0);
    let stored = |world: &mut World, key: &str, value: &[u8]| {
        world.sessions[1].set(key.as_bytes(), value, 0, 0, now).unwrap();
    };
    // Other items around it die, so that its segment is compacted.
    for round in 0..40u32 {
        for n in 0..2_000u32 {
            stored(&mut world, &format!("other:{}", n % 700), &[1; 900]);
        }
        world.sessions[1].upkeep(now);
        if world.region.threads().counters().relocations > 200 && round > 4 {
            break;
        }
    }
    assert!(world.region.threads().counters().relocations > 0, "nothing was copied");
    assert!(
        world.store(0, flight, b"value", &refreshed(0, 0)),
        "the flight is still there"
    );
    assert!(check::check(&world.region, |_| {}).is_sound());
}

#[test]
fn places_are_counted_by_who_lives() {
    let mut world = World::new();
    let holders: Vec<Holder> = world.sessions.iter().map(Session::holder).collect();
    let enter = |world: &World, prefix: u64, limit: usize, who: usize| -> Turn {
        world.region.flights().enter(prefix, limit, holders[who])
    };
    let Turn::In(first) = enter(&world, 7, 2, 0) else { panic!() };
    let Turn::In(_) = enter(&world, 7, 2, 0) else { panic!() };
    assert_eq!(enter(&world, 7, 2, 1), Turn::Full);
    assert!(matches!(enter(&world, 8, 1, 1), Turn::In(_)), "another prefix");
    assert!(world.region.flights().arm_place(9).is_none(), "a prefix without a limit");
    let [waits, of_another] = [7, 8].map(|prefix| world.region.flights().arm_place(prefix).expect("its row"));
    assert!(!world.region.flights().has_ended(waits), "as many compute as may");
    world.region.flights().leave(first);
    world.region.flights().leave(first);
    assert_eq!(
        world.system.woken_singly.load(SeqCst),
        1,
        "a place is for one of those who wait"
    );
    assert!(world.region.flights().has_ended(waits) && !world.region.flights().has_ended(of_another));
    assert!(matches!(enter(&world, 7, 2, 1), Turn::In(_)));
    assert_eq!(enter(&world, 7, 2, 1), Turn::Full, "a place that is given back twice is one");
    world.kill(0);
    assert_eq!(enter(&world, 7, 2, 2), Turn::Full, "nobody has looked yet");
    let dead: Vec<Holder> = world.region.flights().holders(7).collect();
    dead.into_iter()
        .for_each(|holder| world.region.recovery().take_back_dead(holder));
    assert!(matches!(enter(&world, 7, 2, 2), Turn::In(_)));
    assert_eq!(enter(&world, 7, 2, 2), Turn::Full);
    // Prefixes without end: the rows of those that nobody uses serve others, and then there is no limit.
    let taken = (100..200)
        .filter(|prefix| matches!(enter(&world, *prefix, 1, 1), Turn::In(_)))
        .count();
    assert!((10..=14).contains(&taken), "{taken}");
    assert_eq!(enter(&world, 300, 1, 1), Turn::Unlimited);
}

#[test]
fn a_wait_ends_at_once_if_something_has_ended_before() {
    let mut world = World::new();
    let flight = world.computes(0);
    let hash = world.region.mapped().hash(KEY);
    let armed = world.region.flights().arm(hash);
    assert!(world.store(0, flight, b"value", &refreshed(0, 0)));
    let again = world.region.flights().arm(hash);
    assert!(
        format!("{armed:?}") != format!("{again:?}"),
        "the word has changed: a sleeper would not fall asleep"
    );
    world.region.flights().wait(armed, Duration::ZERO);
}
