//! The trail. Its enemies: an operation that is on it twice or not at all, a reader that is too slow, a thread that dies between its number
//! and its words, and bytes that another process has written.
//! Guards: P45

use crate::private;
use harness::Random;
use keyway_region::layout::trail::{Fate, Footprint, KEY_BITS, SHIFT_MAX, TrailWord};
use keyway_region::{Region, Trail, TrailStep, is_among};
use private::session;
use std::sync::atomic::Ordering::Relaxed;

fn stored(size: u32) -> Fate {
    Fate::Stored(Footprint { size, ttl_s: None })
}

fn now(region: &Region) -> u32 {
    region.clock().seen().clock_s()
}

#[test]
fn the_trail_is_kept_for_some_seconds_after_it_was_asked_for() {
    let (_pages, region) = private::region(4 << 20);
    let now = now(&region);
    assert_eq!((region.trail().kept_trail(), region.trail().on_kept_trail(7)), (None, None));
    assert_eq!(region.trail().keep_trail(0, now), 0);
    assert!(region.trail().on_kept_trail(7).is_some(), "every key");
    assert_eq!(region.trail().keep_trail(3, now), 3);
    assert_eq!(
        region.trail().keep_trail(1, now),
        3,
        "while it is kept, the share only gets smaller"
    );
    region.trail().keep_trail(1, now - 11);
    assert_eq!(region.trail().kept_trail(), None, "it was asked for eleven seconds ago");
    assert_eq!(region.trail().keep_trail(1, now), 1, "it begins again");
    for word in [u64::MAX, TrailWord::new(5, 1 << 55).0, 1] {
        region.mapped().superblock().trail.store(word, Relaxed);
        assert_eq!(region.trail().kept_trail(), None, "{word:x}: no process asks so far ahead");
    }
}

#[test]
fn operations_are_looked_at_while_the_trail_is_kept_and_samples_stay_as_many() {
    let (_pages, region) = private::region(4 << 20);
    let session = session(&region);
    let mut left = session.sampling().first_sample();
    let mut samples = || {
        let (mut samples, mut looks) = (0, 0);
        for _ in 0..200_000 {
            left -= 1;
            if left == 0 {
                samples += u32::from(session.sampling().is_set_sample());
                looks += 1;
                left = session.sampling().sample_set(7);
            }
        }
        (samples, looks)
    };
    let (seldom, looks) = samples();
    assert!(seldom == looks && (600..1000).contains(&seldom), "{seldom} of 200,000");
    region.trail().keep_trail(0, now(&region));
    let (samples_then, looks) = samples();
    assert!((600..1000).contains(&samples_then), "{samples_then} of 200,000");
    assert!(looks > 199_000, "all but those before the first: {looks}");
    region.trail().keep_trail(0, now(&region) - 20);
    let (after, looks) = samples();
    assert!((600..1000).contains(&after) && looks < 1000, "{after} samples, {looks} looks");
}

#[test]
fn a_share_of_the_keys_is_on_it_and_a_smaller_share_is_a_part_of_that() {
    let (_pages, region) = private::region(4 << 20);
    for shift in [0, 3, 6] {
        let on: Vec<u64> = (0..100_000u64)
            .filter_map(|key| Trail::on_trail(region.mapped().hash(&key.to_le_bytes()), shift))
            .collect();
        let due = 100_000.0 / f64::from(1 << shift);
        assert!((0.9 * due..1.1 * due).contains(&(on.len() as f64)), "{} of 100,000", on.len());
        let fewer = on.iter().filter(|key| is_among(**key, shift + 1)).count() as f64;
        assert!((0.4 * due..0.6 * due).contains(&fewer), "{fewer} of {due}");
        assert!(on.iter().all(|key| *key < 1 << KEY_BITS && is_among(*key, shift)));
    }
    assert!(!is_among(u64::MAX, SHIFT_MAX + 40), "any number");
}

#[test]
fn a_reader_gets_each_step_once_or_counts_it_as_lost() {
    let (_pages, region) = private::region(4 << 20);
    let session = session(&region);
    let mut place = region.trail().end_of_trail();
    let mut random = Random::new(3);
    let (mut written, mut steps) = (0u64, Vec::new());
    for _ in 0..200 {
        let many = match random.next() % 20 {
            0 => 5000,
            _ => random.next() % 400,
        };
        for _ in 0..many {
            session.region().trail().leave_trail(written, stored(16));
            written += 1;
        }
        region.trail().follow_trail(&mut place, &mut steps);
    }
    assert_eq!(steps.len() as u64 + place.lost, written);
    assert!(place.lost > 0 && place.lost < written / 2, "{} of {written}", place.lost);
    assert!(steps.is_sorted_by(|a, b| a.key < b.key), "in their order");
    assert!(steps.iter().all(|step| step.fate == stored(16)));
    assert_eq!(steps.last().map(|step| step.key), Some(written - 1));
}

#[test]
fn a_step_that_a_dead_thread_did_not_write_is_lost_and_no_other() {
    let (mut pages, region) = private::region(4 << 20);
    let session = session(&region);
    let mut place = region.trail().end_of_trail();
    let mut steps = Vec::new();
    session.region().trail().leave_trail(1, Fate::Gone);
    session.region().trail().leave_trail(2, Fate::Gone);
    session.region().trail().leave_trail(3, Fate::Missed);
    session.region().trail().leave_trail(5, stored(777));
    // The first word of the second is not there: its thread died when it had its number. That of the fourth died one store later.
    let lap = 1 << KEY_BITS;
    for word in private::words(&mut pages) {
        if *word == lap | 2 || *word == lap | stored(777).bits() {
            *word = 0;
        }
    }
    region.trail().follow_trail(&mut place, &mut steps);
    assert_eq!(steps.len(), 1, "its thread may be about to write it");
    for _ in 0..100 {
        session.region().trail().leave_trail(4, Fate::Missed);
    }
    region.trail().follow_trail(&mut place, &mut steps);
    assert_eq!((steps.len(), place.lost), (102, 2));
    assert_eq!(
        steps[..2],
        [
            TrailStep {
                key: 1,
                fate: Fate::Gone
            },
            TrailStep {
                key: 3,
                fate: Fate::Missed
            }
        ]
    );
}

#[test]
fn any_bytes_in_the_ring_harm_no_reader() {
    let (mut pages, region) = private::region(4 << 20);
    let session = session(&region);
    let from = region.mapped().layout().trail / 8;
    let words = region.mapped().layout().trail_entry(region.mapped().layout().trail_entries) / 8 - from;
    let mut random = Random::new(5);
    let mut place = region.trail().end_of_trail();
    let mut steps = Vec::new();
    for round in 0..300 {
        for word in private::words(&mut pages).skip(from).take(words) {
            match (round + random.next()) % 3 {
                0 => *word = random.next(),
                1 => *word = u64::MAX - random.next() % 5000,
                _ => {}
            }
        }
        session.region().trail().leave_trail(random.next(), stored(u32::MAX));
        steps.clear();
        region.trail().follow_trail(&mut place, &mut steps);
        assert!(steps.len() <= region.mapped().layout().trail_entries);
        assert!(steps.iter().all(|step| step.key < 1 << KEY_BITS));
    }
}
