//! Fetches, and gets that win, by threads that are late.

use crate::Fetches;
use crate::fetch::{Fetched, Freshness, Refreshed};
use crate::late::{Ground, overtaken};
use crate::verbs::{Delete, Get};

const KEY: &[u8] = b"key";

#[test]
fn a_flight_that_has_ended_does_not_rise_again_by_a_late_get_that_wins() {
    let how = Get {
        vivify: Some(0),
        ..Get::default()
    };
    for access in 1.. {
        let ground = Ground::new();
        let (computes, late, now) = (ground.thread(0), ground.thread(1), ground.now());
        let begun = Fetches::of(&mut computes.session_mut()).begin(KEY, &Freshness::default(), now, &mut Vec::new());
        let Ok(Fetched::Compute(flight, None)) = begun else {
            panic!("{begun:?}")
        };
        let other = computes.clone();
        let stores_and_deletes = move || {
            let stored = Fetches::of(&mut other.session_mut()).store(KEY, flight, b"value", &Refreshed::default(), now);
            assert_eq!(stored, Ok(true));
            other
                .session_mut()
                .delete(KEY, &Delete::default(), now)
                .expect("a key that can be deleted");
        };
        let gets = || late.session_mut().get(KEY, &how, now, &mut Vec::new());
        let (found, happened) = overtaken(access, stores_and_deletes, gets);
        if !happened {
            break;
        }
        let item = found
            .expect("memory for an empty item")
            .expect("a get that makes an item finds one");
        let only_look = Freshness {
            only_look: true,
            ..Freshness::default()
        };
        let left = Fetches::of(&mut computes.session_mut()).begin(KEY, &only_look, now, &mut Vec::new());
        match left {
            Ok(Fetched::Elsewhere(held)) => assert!(
                item.win && !held.holder.is_same(flight.holder),
                "overtaken at access {access}: {held:?} of {flight:?}, {item:?}"
            ),
            // The empty item was there before the delete, or the get has found the value.
            Ok(Fetched::Unclaimed(None)) => {}
            other => panic!("overtaken at access {access}: {other:?}"),
        }
        ground.is_sound();
    }
}
