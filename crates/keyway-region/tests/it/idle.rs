//! How long ago an item was used. The enemy: a clock of few bits that begins anew before it is looked at.
//! Guards: P14

use crate::private;
use keyway_region::verbs::{Get, Store};
use keyway_region::{Limits, Moment, Session};
use private::UNIX_S;

/// Seconds up to which the time is exact, and by how much it is too small at most from then on.
const EXACT_S: u32 = 16;
const COARSE_S: u32 = 30;
/// From here on it is the time since the item's segment was opened, or so long at least.
const OLD_S: u32 = 500;

#[test]
fn idle_times_are_exact_for_some_seconds_and_not_too_long_for_minutes() {
    let (_pages, region) = private::region(4 << 20);
    let process = region.recovery().attach(0, 1, UNIX_S);
    region.limits().write(&Limits {
        item_size_max: 1 << 20,
        evict: true,
        ..Limits::default()
    });
    let mut session = region.session(process).expect("a slot");
    // At every place of the clock's few bits.
    for start in [0, 1, 13, 63, 64, 997, 1007, 1008, 5000] {
        let then = region.clock().tick(Moment::from_secs(UNIX_S)) + start;
        let key = format!("key-{start}");
        session
            .store(key.as_bytes(), b"value", &Store::default(), then)
            .expect("there is room");
        for gone in 0..3000 {
            let now = then + gone;
            session.upkeep(now);
            let how = Get {
                details: true,
                no_bump: true,
                ..Get::default()
            };
            let found = session.get(key.as_bytes(), &how, now, &mut Vec::new());
            let idle = found.expect("a good key").expect("it is there").idle_s;
            let least = if gone < EXACT_S {
                gone
            } else {
                gone.min(OLD_S).saturating_sub(COARSE_S)
            };
            let most = if gone < OLD_S { gone } else { gone + start };
            assert!(
                (least..=most).contains(&idle),
                "{idle} seconds instead of {gone}, stored at {start}"
            );
        }
    }
}

#[test]
fn the_age_of_what_was_evicted_last_is_known() {
    let (_pages, region) = private::region(2 << 20);
    let process = region.recovery().attach(0, 1, UNIX_S);
    let mut session = region.session(process).expect("a slot");
    let then = region.clock().tick(Moment::from_secs(UNIX_S));
    let fill = |session: &mut Session, from: u32, now: u32| {
        let evicted = region.threads().counters().evictions;
        for number in from.. {
            let key = format!("key-{number}");
            session.set(key.as_bytes(), &[b'v'; 1_000], 0, 0, now).expect("there is room");
            if region.threads().counters().evictions > evicted {
                return number + 1;
            }
        }
        unreachable!("the memory is bounded")
    };
    assert_eq!(region.victims().ages(then).evicted_s, 0);
    let next = fill(&mut session, 0, then);
    assert_eq!(
        region.victims().ages(then).evicted_s,
        0,
        "as old as the one that took its place"
    );
    for gone in 0..100 {
        session.upkeep(then + gone);
    }
    fill(&mut session, next, then + 100);
    let age = region.victims().ages(then + 100).evicted_s;
    assert!((100 - COARSE_S..=100).contains(&age), "{age} s");
}
