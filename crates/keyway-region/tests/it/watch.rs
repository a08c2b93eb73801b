//! Events for watchers, with the library's sessions and no other process: what is told, in which order, and what is counted as lost. Its
//! enemies: a watcher that is gone, one that reads too seldom, more sessions than rings, and words that another process has written.
//! Guards: P45

use crate::private;
use harness::Random;
use keyway_region::fetch::{Fetched, Flight, Freshness, Refreshed};
use keyway_region::layout::plan::{Layout, Shape};
use keyway_region::layout::watch::{self as events, ALL, Command, Kind, Status};
use keyway_region::verbs::{Arithmetic, Delete, Deleted, Get, Store, StoreMode};
use keyway_region::{Delivery, Event, Fetches, Limits, Moment, Process, Region, Session, WATCHED_S, Watching};
use private::UNIX_S;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

fn session(region: &Arc<Region>) -> Session {
    region.limits().write(&Limits {
        item_size_max: 1 << 18,
        evict: true,
        ..Limits::default()
    });
    region.session(Process { slot: 0, incarnation: 1 }).expect("a session")
}

/// A region, its memory, and a watcher of these kinds.
fn watched(memory: u64, kinds: u64) -> (Vec<private::Page>, Arc<Region>, Watching) {
    let (pages, region) = private::region(memory);
    region.recovery().attach(0, 1, UNIX_S);
    let watching = Watching::new(region.watch());
    region.watch().want_events(kinds, now(&region));
    (pages, region, watching)
}

fn now(region: &Region) -> u32 {
    region.clock().tick(Moment::from_secs(UNIX_S))
}

/// What is told now, and how many events are lost.
fn told(watching: &mut Watching, seconds: u64) -> (Vec<Event>, u64) {
    let (mut told, mut lost) = (Vec::new(), 0);
    watching.poll(Duration::from_secs(seconds), &mut |one| match one {
        Delivery::Event(event) => told.push(event),
        Delivery::Lost { count, .. } => lost += count,
    });
    (told, lost)
}

#[test]
fn each_verb_tells_what_it_did() {
    let (_pages, region, mut watching) = watched(16 << 20, ALL & !Kind::Connection.bit());
    let mut session = session(&region);
    let now = now(&region);
    let add = Store {
        mode: StoreMode::Add,
        ..Store::default()
    };
    session.set(b"k", b"7", 0, 30, now).expect("a store");
    session.store(b"k", b"11", &add, now).expect("a store");
    session.incr(b"k", 1, now).expect("a sum");
    session.touch(b"k", 100, now).expect("a touch");
    let how = Get {
        value: true,
        ..Get::default()
    };
    session.get(b"k", &how, now, &mut Vec::new()).expect("a get");
    session.delete(b"k", &Delete::default(), now).expect("a delete");
    session.delete(b"k", &Delete::default(), now).expect("a delete");
    session
        .arithmetic(
            b"n",
            &Arithmetic {
                vivify: Some((5, 0)),
                ..Arithmetic::default()
            },
            now,
        )
        .expect("a sum");
    session.flush_all(0, now).expect("a flush");
    let (told, lost) = told(&mut watching, 0);
    let found: Vec<(Kind, Command, Status, u32, i32)> = told
        .iter()
        .map(|event| (event.kind, event.command, event.status, event.size, event.ttl_s))
        .collect();
    let expected = [
        (Kind::Fetch, Command::Set, Status::NotFound, 0, 0),
        (Kind::Mutation, Command::Set, Status::Stored, 1, 30),
        (Kind::Fetch, Command::Add, Status::Found, 1, 0),
        (Kind::Mutation, Command::Add, Status::NotStored, 2, 0),
        (Kind::Fetch, Command::Incr, Status::Found, 1, 0),
        (Kind::Update, Command::Incr, Status::Stored, 1, 0),
        (Kind::Fetch, Command::Touch, Status::Found, 1, 0),
        (Kind::Update, Command::Touch, Status::Stored, 1, 100),
        (Kind::Fetch, Command::Get, Status::Found, 1, 0),
        (Kind::Fetch, Command::Delete, Status::Found, 1, 0),
        (Kind::Deletion, Command::Delete, Status::Stored, 1, 0),
        (Kind::Fetch, Command::Get, Status::NotFound, 0, 0),
        (Kind::Fetch, Command::Add, Status::NotFound, 0, 0),
        (Kind::Mutation, Command::Add, Status::Stored, 1, 0),
        (Kind::Update, Command::None, Status::NotFound, 0, 0),
    ];
    assert_eq!((found.as_slice(), lost), (expected.as_slice(), 0));
    assert!(told.is_sorted_by_key(|event| event.stamp));
}

#[test]
fn the_store_of_a_fetch_is_told_as_one() {
    let (_pages, region, mut watching) = watched(16 << 20, Kind::Mutation.bit());
    let mut session = session(&region);
    let now = now(&region);
    let fetches = Fetches::of(&mut session);
    for key in [b"stored", b"voided"] {
        let begun = fetches.begin(key, &Freshness::default(), now, &mut Vec::new());
        let Ok(Fetched::Compute(flight, _)) = begun else {
            panic!("{begun:?}")
        };
        let how = Refreshed {
            exptime: 30,
            ..Refreshed::default()
        };
        let flight = match key {
            b"stored" => flight,
            _ => Flight { serial: 1, ..flight },
        };
        fetches.store(key, flight, b"computed", &how, now).expect("a store");
    }
    let (told, _) = told(&mut watching, 0);
    let found: Vec<_> = told
        .iter()
        .map(|event| (event.command, event.status, event.size, event.ttl_s))
        .collect();
    assert_eq!(found, [(Command::Set, Status::Stored, 8, 30)]);
}

#[test]
fn what_sessions_do_one_after_the_other_is_told_in_that_order() {
    let (_pages, region, mut watching) = watched(16 << 20, ALL & !Kind::Connection.bit());
    let mut sessions: Vec<Session> = (0..3).map(|_| session(&region)).collect();
    let now = now(&region);
    let how = Get {
        value: true,
        ..Get::default()
    };
    let mut random = Random::new(11);
    let (mut made, mut found) = (Vec::new(), Vec::new());
    for round in 0..3000 {
        let session = random.index(3);
        let (slot, session) = (u16::try_from(session).expect("few"), &mut sessions[session]);
        match random.index(3) {
            0 => {
                session.set(b"k", b"v", 0, 0, now).expect("a store");
                made.push((Kind::Mutation, Status::Stored, slot));
            }
            1 => {
                let deleted = session.delete(b"k", &Delete::default(), now).expect("a delete");
                made.push(match deleted {
                    Deleted::Deleted => (Kind::Deletion, Status::Stored, slot),
                    _ => (Kind::Fetch, Status::NotFound, slot),
                });
            }
            _ => {
                let hit = session.get(b"k", &how, now, &mut Vec::new()).expect("a get").is_some();
                made.push((Kind::Fetch, if hit { Status::Found } else { Status::NotFound }, slot));
            }
        }
        if round % 20 == 0 {
            let (told, lost) = told(&mut watching, 0);
            assert_eq!(lost, 0);
            let told = told.iter().filter(|event| event.text == b"k");
            let told = told.filter(|event| event.kind != Kind::Fetch || event.command == Command::Get);
            found.extend(told.map(|event| (event.kind, event.status, event.slot)));
        }
    }
    made.truncate(found.len());
    assert!(found.len() > 1500 && found == made);
}

#[test]
fn what_threads_look_up_is_told_in_each_threads_order_and_none_of_it_is_lost() {
    let (_pages, region, mut watching) = watched(64 << 20, ALL & !Kind::Connection.bit());
    let now = now(&region);
    let calls = 5_000;
    let seen = [const { AtomicU64::new(0) }; 2];
    let is_broken = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let threads = [("a", &seen[0]), ("b", &seen[1])].map(|(name, seen)| {
            let (mut session, is_broken) = (session(&region), &is_broken);
            scope.spawn(move || {
                for call in 0..calls {
                    let value = [b'v'; 100];
                    session
                        .set(name.as_bytes(), &value[..1 + call % 100], 0, 0, now)
                        .expect("a store");
                    for _ in 0..3 {
                        let how = Get::default();
                        session
                            .get(name.as_bytes(), &how, now, &mut Vec::new())
                            .expect("a get")
                            .expect("an item");
                    }
                    // The watcher keeps up: the ring holds the events of more calls.
                    while seen.load(Relaxed) + 20 < call as u64 && !is_broken.load(Relaxed) {
                        std::thread::yield_now();
                    }
                }
            })
        });
        let mut last = [0; 2];
        let mut count = 0;
        let mut is_over = false;
        while !is_over {
            is_over = threads.iter().all(|thread| thread.is_finished());
            let (told, lost) = told(&mut watching, 0);
            is_broken.store(lost != 0, Relaxed);
            assert_eq!(lost, 0);
            count += told.len();
            for event in told {
                let thread = usize::from(event.text == b"b");
                if event.kind == Kind::Mutation {
                    seen[thread].fetch_add(1, Relaxed);
                    last[thread] = event.size;
                } else if event.command == Command::Get {
                    is_broken.store(event.size != last[thread], Relaxed);
                    assert_eq!(
                        event.size, last[thread],
                        "the get is printed after the set whose value it has returned"
                    );
                }
            }
        }
        assert_eq!(count, 2 * 5 * calls);
    });
}

#[test]
fn evicted_items_are_told_with_whether_they_were_read() {
    let (_pages, region, mut watching) = watched(2 << 20, Kind::Eviction.bit());
    let mut session = session(&region);
    let now = now(&region);
    let (mut evicted, mut lost) = (0, 0);
    for number in 0..3000 {
        let key = format!("key{number}");
        session.set(key.as_bytes(), &[b'v'; 2000], 0, 0, now).expect("a store");
        let (told, lost_now) = told(&mut watching, 0);
        for event in &told {
            assert_eq!(
                (event.kind, event.size, event.ttl_s, event.fetched),
                (Kind::Eviction, 2000, -1, false)
            );
        }
        evicted += told.len() as u64;
        lost += lost_now;
    }
    assert!(evicted > 1000);
    assert_eq!(evicted + lost, region.threads().counters().evictions);
}

#[test]
fn a_watcher_that_is_gone_is_forgotten() {
    let (_pages, region, mut watching) = watched(16 << 20, Kind::Mutation.bit());
    let mut session = session(&region);
    let mut set_at = |seconds: u64| {
        let moment = Moment::from_secs(UNIX_S + i64::try_from(seconds).expect("few"));
        region.clock().note_use(moment);
        session.set(b"k", b"v", 0, 0, region.clock().tick(moment)).expect("a store");
        told(&mut watching, seconds).0.len()
    };
    assert_eq!(
        [0, WATCHED_S - 1, WATCHED_S + 1, WATCHED_S + 2].map(&mut set_at),
        [1, 1, 0, 0]
    );
    assert_eq!(region.threads().counters().events_lost, 0);
    // It was, until it said so again.
    let later = region.clock().tick(Moment::from_secs(UNIX_S + 100));
    assert!(!region.watch().want_events(Kind::Mutation.bit(), later));
    assert!(region.watch().want_events(Kind::Mutation.bit(), later));
    assert_eq!(set_at(100), 1);
}

#[test]
fn what_is_overwritten_is_counted() {
    for batch in [1, 10, 300, 5000, 70_000] {
        let (_pages, region, mut watching) = watched(16 << 20, Kind::Mutation.bit());
        let mut session = session(&region);
        let mut random = Random::new(batch);
        let (mut seen, mut last) = (0, 0);
        let now = now(&region);
        let stores = 210_000;
        for number in 1..=stores {
            let key = vec![b'k'; 1 + random.index(250)];
            session.set(&key, number.to_string().as_bytes(), 0, 0, now).expect("a store");
            if number % batch == 0 {
                let (told, lost) = told(&mut watching, 0);
                assert!(
                    told.iter()
                        .all(|event| std::mem::replace(&mut last, event.stamp) <= event.stamp)
                );
                seen += told.len() as u64 + lost;
                assert_eq!(seen, number, "batches of {batch}");
                assert!(batch > 10 || lost == 0);
            }
        }
        assert_eq!(seen, stores);
    }
}

#[test]
fn sessions_without_a_ring_count_what_they_lose() {
    let (_pages, region, mut watching) = watched(64 << 20, Kind::Mutation.bit());
    let mut sessions: Vec<Session> = (0..events::RINGS + 3).map(|_| session(&region)).collect();
    let set_all = |sessions: &mut [Session]| {
        for session in sessions {
            session.set(b"k", b"v", 0, 0, now(&region)).expect("a store");
        }
    };
    set_all(&mut sessions);
    let (some, lost) = told(&mut watching, 0);
    assert_eq!((some.len(), lost), (events::RINGS, 3));
    // The ring of a session that has ended has another owner, and not at once.
    sessions.remove(0);
    for _ in 0..2000 {
        set_all(&mut sessions);
        let (some, lost) = told(&mut watching, 0);
        assert_eq!(some.len() as u64 + lost, sessions.len() as u64);
    }
    set_all(&mut sessions);
    let (some, lost) = told(&mut watching, 0);
    assert_eq!((some.len(), lost), (events::RINGS, 2));
}

#[test]
fn scribbled_rings_are_survived() {
    let memory = 16 << 20;
    let (mut pages, region, mut watching) = watched(memory, ALL);
    let mut session = session(&region);
    let mut random = Random::new(7);
    let mut shape = Shape::for_memory(memory, 4096);
    shape.segments_max = Layout::new(shape).segments_for(memory);
    let layout = Layout::new(shape);
    let rings = layout.rings / 8..(layout.rings + events::size(layout.ring_cells)) / 8;
    let now = now(&region);
    let mut told_in_all = 0;
    for round in 0..20_000u64 {
        let at = match round % 3 {
            // The head of the session's own ring, and the cells after it.
            0 => rings.start + random.index(16),
            _ => rings.start + random.index(rings.len()),
        };
        let word = match round % 4 {
            0 => u64::MAX,
            1 => random.below(1 << 20),
            _ => random.next(),
        };
        *private::words(&mut pages).nth(at).expect("a word") = word;
        for _ in 0..3 {
            session.set(b"key", b"value", 0, 0, now).expect("a store");
            session.delete(b"key", &Delete::default(), now).expect("a delete");
        }
        let (told, _) = told(&mut watching, round);
        told_in_all += told.len();
        assert!(told.iter().all(|event| event.text.len() <= 250));
    }
    // Most are told all the same.
    assert!(told_in_all > 20_000, "{told_in_all}");
    drop(session);
    let report = keyway_region::check::check(&region, |_| ());
    assert!(report.is_sound(), "{report:?}");
}

#[test]
fn a_session_that_is_about_to_tell_is_waited_for_and_then_is_not() {
    let memory = 16 << 20;
    let (mut pages, region, mut watching) = watched(memory, Kind::Mutation.bit());
    let (mut one, other) = (session(&region), session(&region));
    let now = now(&region);
    // The other session has said that its next stamp is 3 or more, and does not go on.
    let layout = Layout::new(Shape::for_memory(memory, 4096));
    let event = std::mem::offset_of!(keyway_region::layout::session::ThreadSlot, event);
    let slot = (layout.threads + size_of::<keyway_region::layout::session::ThreadSlot>() + event) / 8;
    *private::words(&mut pages).nth(slot).expect("a word") = 3 + 1;
    for _ in 0..5 {
        one.set(b"k", b"v", 0, 0, now).expect("a store");
    }
    let stamps = |told: (Vec<Event>, u64)| told.0.iter().map(|event| event.stamp).collect::<Vec<_>>();
    assert_eq!(stamps(told(&mut watching, 0)), [0, 1, 2]);
    assert_eq!(stamps(told(&mut watching, 0)), []);
    // Patience ends.
    assert_eq!(stamps(told(&mut watching, 2)), [3, 4]);
    drop(other);
}
