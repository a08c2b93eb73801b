//! CAS uniques: what replaces an item has a greater one, whichever session writes it, and all are small. Their enemies: sessions whose segments were opened in
//! another order than their items are written, streams of one session, and uniques that clients choose.
//! Guards: P15

use crate::private;
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
    let process = region.recovery().attach(0, 1, UNIX_S);
    region.limits().write(&Limits {
        item_size_max: 1 << 20,
        evict: true,
        ..Limits::default()
    });
    let sessions = (0..sessions).map(|_| region.session(process).expect("a slot"));
    let now = region.clock().tick(keyway_region::Moment::from_secs(UNIX_S + 10));
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
    for chosen in [5, 1 << 40, 1 << 60, u64::MAX - 1, u64::MAX] {
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
            cas > before && cas < before + (1 << 24),
            "{cas:x} after {before:x} and {chosen:x}"
        );
    }
}

/// Seconds of 20 years, a leap day in four of them.
const TWENTY_YEARS_S: u64 = 20 * 365 * 86_400 + 5 * 86_400;
/// As far as a double counts.
const DOUBLE: u64 = 1 << 53;

/// Some changes of some keys by all sessions, each with a greater unique than the one before it: how many there were, and the last unique.
fn changes(sessions: &mut [Session], count: usize, now: u32) -> (u64, u64) {
    let (mut random, mut last) = (1_u64, [0; 200]);
    for round in 0..count {
        random = random.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(1442695040888963407);
        let draw = |bound: u64| usize::try_from((random >> 33) / [1, 7, 49][round % 3] % bound).unwrap();
        let (key, who) = (draw(200), draw(4));
        let len = [1, 40, 400, 4_000, 20_000, 300_000][if draw(100) == 0 { draw(6) } else { draw(4) }];
        let name = [b'k', u8::try_from(key).unwrap()];
        if draw(50) == 0 {
            let _ = sessions[who].delete(&name, &Delete::default(), now);
            last[key] = 0;
            continue;
        }
        let cas = set(&mut sessions[who], &name, len, [0, 0, 100][draw(3)], now);
        assert!(cas > last[key], "round {round}: {cas:x} after {:x}", last[key]);
        assert_eq!(cas, cas_of(&mut sessions[(who + 1) % 4], &name, now), "round {round}");
        last[key] = cas;
    }
    (count as u64, last.into_iter().max().unwrap_or(0))
}

/// The word that has the next unique.
macro_rules! next_unique {
    ($sessions:expr) => {
        $sessions[0].region().mapped().superblock().sequence
    };
}

#[test]
fn uniques_are_small_in_a_new_region() {
    let (_pages, mut sessions, now) = world(4);
    let first = next_unique!(sessions).load(Relaxed);
    assert!((1..1 << 25).contains(&first), "{first}");
    let (_, last) = changes(&mut sessions, 40_000, now);
    assert!(first <= last && last < u64::from(u32::MAX), "{last}");
}

/// Clients that keep a unique in a double keep it exactly, for 20 years with ten million changes a second: a region whose uniques are as far as
/// they may be at its age takes one for a change and one for a segment that is opened, in every session. That stays below 14 for ten changes,
/// which is the rate at which they may be taken, although items of this test are up to 300 kB long.
#[test]
fn uniques_stay_below_what_a_double_holds_for_twenty_years_of_ten_million_changes_a_second() {
    for age_s in [0, 86_400, 365 * 86_400, 12 * 365 * 86_400, TWENTY_YEARS_S] {
        let (_pages, mut sessions, _) = world(4);
        let moment = keyway_region::Moment::from_secs(private::UNIX_S + i64::try_from(age_s).unwrap());
        let now = sessions[0].region().clock().tick(moment);
        // As far as segments take them: a little less than one in 70 ns, and 2^45 at once.
        let most = (1 << 45) + 14_000_000 * age_s;
        next_unique!(sessions).store(most + 1, Relaxed);
        let (count, last) = changes(&mut sessions, 20_000, now);
        let used = next_unique!(sessions).load(Relaxed) - most - 1;
        assert!(used * 10 < count * 14, "{used} for {count} changes at {age_s} s");
        let rest = (TWENTY_YEARS_S - age_s) * 10_000_000;
        assert!(last + rest < DOUBLE, "{last} at {age_s} s, and {rest} more");
        let report = keyway_region::check::check(sessions[0].region(), |_| {});
        assert!(report.is_sound(), "{report:?}");
        // Below it places give them again: segments that are opened from now on.
        next_unique!(sessions).store(most / 2, Relaxed);
        sessions.iter().for_each(Session::release_extents);
        let before = next_unique!(sessions).load(Relaxed);
        for round in 0..200 {
            set(&mut sessions[0], &[b'n', round], 20_000, 0, now);
        }
        assert!(next_unique!(sessions).load(Relaxed) > before + 1_000, "at {age_s} s");
    }
}

/// Another process may write any number where the next unique is: then uniques may fall, or repeat, and no more.
#[test]
fn stores_go_on_whatever_the_next_unique_is_said_to_be() {
    for said in [u64::MAX, u64::MAX / 2, 1 << 17, 0] {
        let (_pages, mut sessions, now) = world(2);
        for round in 0..200usize {
            next_unique!(sessions).store(said, Relaxed);
            let cas = set(&mut sessions[round % 2], b"k", [3, 30_000][round / 50 % 2], 0, now);
            assert_eq!(
                cas_of(&mut sessions[(round + 1) % 2], b"k", now),
                cas,
                "{said:x}, round {round}"
            );
        }
        let report = keyway_region::check::check(sessions[0].region(), |_| {});
        assert!(report.is_sound(), "{said:x}: {report:?}");
    }
}
