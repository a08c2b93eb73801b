//! CAS uniques: what replaces an item has a greater one, whichever session writes it. Their enemies: sessions whose segments were opened in
//! another order than their items are written, streams of one session, and uniques that clients choose.

mod private;

use keyway_region::verbs::{Delete, Get, Number, Store, StoreMode, Stored};
use keyway_region::{Limits, Session};
use private::UNIX_S;
use std::sync::atomic::Ordering::Relaxed;

fn store(session: &mut Session, key: &[u8], value: &[u8], how: &Store, now: u32) -> Stored {
    session.store(key, value, how, now).expect("there is room")
}

fn set(session: &mut Session, key: &[u8], len: usize, exptime: i64, now: u32) -> u64 {
    let how = Store {
        exptime,
        ..Store::default()
    };
    match store(session, key, &vec![b'v'; len], &how, now) {
        Stored::Stored { cas, .. } => cas,
        other => panic!("{other:?}"),
    }
}

fn cas_of(session: &mut Session, key: &[u8], now: u32) -> u64 {
    let how = Get {
        details: true,
        ..Get::default()
    };
    let item = session.get(key, &how, now, &mut Vec::new());
    item.expect("a good key").expect("it is there").cas
}

fn world(sessions: usize) -> (Vec<private::Page>, Vec<Session>, u32) {
    let (pages, region) = private::region(64 << 20);
    let process = region.attach(0, 1, UNIX_S);
    region.set_limits(&Limits {
        item_size_max: 1 << 20,
        evict: true,
        ..Limits::default()
    });
    let sessions = (0..sessions).map(|_| region.session(process).expect("a slot"));
    let now = region.tick(keyway_region::Moment::from_secs(UNIX_S + 10));
    (pages, sessions.collect(), now)
}

#[test]
fn uniques_of_a_key_rise_whichever_session_writes_it() {
    let (_pages, mut sessions, now) = world(4);
    // Short and long ones, some of which need segments of their own; with lifetimes and without: streams of their own.
    let lens = [1, 30, 3_000, 30_000, 200_000];
    for key in [b"a", b"b"] {
        let mut last = 0;
        for round in 0..2_000usize {
            let who = round * 7 % 13 % sessions.len();
            let session = &mut sessions[who];
            let cas = match round % 11 {
                3 => {
                    let Stored::Stored { cas, .. } = store(session, key, b"7", &Store::default(), now) else {
                        panic!("it is not stored");
                    };
                    assert!(cas > last);
                    last = cas;
                    assert_eq!(session.incr(key, 1, now), Ok(Number::Is(8)));
                    cas_of(session, key, now)
                }
                5 => {
                    let how = Store {
                        mode: StoreMode::Append,
                        ..Store::default()
                    };
                    match store(session, key, b"more", &how, now) {
                        Stored::Stored { cas, .. } => cas,
                        other => panic!("{other:?}"),
                    }
                }
                8 => {
                    let how = Delete {
                        invalidate: true,
                        ..Delete::default()
                    };
                    session.delete(key, &how, now).expect("a good key");
                    cas_of(session, key, now)
                }
                _ => set(session, key, lens[round % lens.len()], [0, 100, 5_000][round % 3], now),
            };
            assert_eq!(cas, cas_of(&mut sessions[(who + 1) % 4], key, now));
            assert!(cas > last, "round {round}: {cas:x} after {last:x}");
            last = cas;
        }
    }
}

#[test]
fn two_sessions_that_alternate_have_older_values_stored_as_stale() {
    let (_pages, mut sessions, now) = world(2);
    for round in 0..20_000usize {
        let (a, b) = (round % 2, round / 2 % 2);
        let older = set(&mut sessions[a], b"k", 3, 0, now);
        let newer = set(&mut sessions[b], b"k", 3, 0, now);
        assert!(newer > older, "round {round}");
        let how = Store {
            compare_cas: Some(older),
            invalidate: true,
            ..Store::default()
        };
        assert!(
            matches!(store(&mut sessions[a], b"k", b"old", &how, now), Stored::Stored { .. }),
            "round {round}"
        );
    }
}

#[test]
fn no_two_items_have_the_same_unique() {
    let (_pages, mut sessions, now) = world(3);
    let mut seen = std::collections::HashSet::new();
    for round in 0..30_000usize {
        let key = [b'k', (round % 5).to_le_bytes()[0]];
        let cas = set(&mut sessions[round * 5 % 7 % 3], &key, 10, 0, now);
        assert!(seen.insert(cas), "round {round}");
    }
}

#[test]
fn a_session_with_an_older_segment_needs_no_word_that_all_write() {
    let (_pages, mut sessions, now) = world(2);
    // The first session's segment is opened first.
    set(&mut sessions[0], b"a", 50, 0, now);
    set(&mut sessions[1], b"b", 50, 0, now);
    for round in 0..100 {
        let newer = set(&mut sessions[1], b"k", 50, 0, now);
        // Its place gives it one of the same segment each time, above those that follow the last.
        for step in 1..=5 {
            let older = set(&mut sessions[0], b"k", 50, 0, now);
            assert_eq!(older, newer + step, "round {round}");
            assert_eq!(older, cas_of(&mut sessions[1], b"k", now));
        }
    }
    // A number's item: 12 bytes, so that only two numbers follow that of its place.
    store(&mut sessions[1], b"n", b"7", &Store::default(), now);
    let newer = cas_of(&mut sessions[0], b"n", now);
    let mut seen = vec![newer];
    for value in 8..14 {
        assert_eq!(sessions[0].incr(b"n", 1, now), Ok(Number::Is(value)));
        seen.push(cas_of(&mut sessions[0], b"n", now));
    }
    assert_eq!(seen[1], newer + 1);
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:x?}");
}

#[test]
fn uniques_that_follow_others_are_of_one_item_each() {
    let (_pages, mut sessions, now) = world(3);
    let mut seen = std::collections::HashSet::new();
    let mut last = [0; 50];
    let mut random = 1_u64;
    for round in 0..100_000 {
        random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1442695040888963407);
        let draw = |bound: u64| usize::try_from((random >> 33) / 7_u64.pow(round % 3) % bound).unwrap();
        // The smallest items are of two words: one number follows.
        let (key, who, len) = (draw(50), draw(3), draw(9));
        let name = [b'k', u8::try_from(key).unwrap()];
        if draw(100) == 0 {
            let _ = sessions[who].delete(&name, &Delete::default(), now);
            last[key] = 0;
            continue;
        }
        let cas = set(
            &mut sessions[who],
            &name[..if key % 2 == 0 { 2 } else { 1 + key / 49 }],
            len,
            0,
            now,
        );
        assert!(seen.insert(cas), "round {round}: {cas:x} again");
        if key % 2 == 0 {
            assert!(cas > last[key], "round {round}");
            last[key] = cas;
        }
    }
}

#[test]
fn what_a_client_has_chosen_is_not_outdone() {
    let (_pages, mut sessions, now) = world(2);
    for chosen in [5, 1 << 40, u64::MAX - 1, u64::MAX] {
        let before = set(&mut sessions[1], b"other", 3, 0, now);
        let how = Store {
            new_cas: Some(chosen),
            ..Store::default()
        };
        assert!(matches!(
            store(&mut sessions[0], b"k", b"v", &how, now),
            Stored::Stored { .. }
        ));
        assert_eq!(cas_of(&mut sessions[1], b"k", now), chosen);
        let cas = set(&mut sessions[1], b"k", 3, 0, now);
        assert!(
            cas > before && cas >> 40 == before >> 40,
            "{cas:x} after {before:x} and {chosen:x}"
        );
    }
}

#[test]
fn uniques_rise_whatever_the_last_one_is_said_to_be() {
    for said in [u64::MAX, u64::MAX / 2, 1 << 17, 0] {
        let (_pages, mut sessions, now) = world(2);
        let mut last = 0;
        for round in 0..20usize {
            // Before each one that needs a unique of its own: another process may write there what it likes.
            let uniques = &sessions[0].region().superblock().uniques;
            if said == u64::MAX || uniques.load(Relaxed) < said {
                uniques.store(said, Relaxed);
            }
            let cas = set(&mut sessions[round % 2], b"k", 3, 0, now);
            assert!(
                cas > last || said == u64::MAX / 2,
                "{said:x}, round {round}: {cas:x} after {last:x}"
            );
            last = cas;
        }
    }
}
