//! What a word says is not believed: neither that a tag is a key, nor that a segment is still in the life that the word names, nor that a
//! session is still its thread's. Its enemy: each of these looks left out, which only rare chance or damage would show.
//! Guards: P2

use crate::private;
use keyway_region::layout::slot::Slot;
use keyway_region::verbs::{Delete, Deleted, Get, Store};
use keyway_region::{Life, Limits, Moment, Process, Region, Session, check};
use private::UNIX_S;
use std::sync::Arc;

const MEMORY: u64 = 2 << 20;

fn session(region: &Arc<Region>, process: Process) -> Session {
    region.limits().write(&Limits {
        item_size_max: 1 << 18,
        evict: false,
        ..Limits::default()
    });
    region.session(process).expect("a slot")
}

fn set(session: &mut Session, key: &str, value: &[u8], now: u32) {
    session.store(key.as_bytes(), value, &Store::default(), now).expect("room");
}

fn get(session: &mut Session, key: &str, now: u32) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    let how = Get {
        value: true,
        ..Get::default()
    };
    let item = session.get(key.as_bytes(), &how, now, &mut value);
    item.expect("a good key").map(|_| value)
}

/// Twelve bits of tag and some of the bucket's number: of so many keys some are like another one in both.
#[test]
fn a_key_is_all_of_its_bytes() {
    let (_pages, region) = private::region(MEMORY);
    let mut session = session(&region, region.recovery().attach(0, 1, UNIX_S));
    let now = region.clock().tick(Moment::from_secs(UNIX_S));
    for n in 0..3_000 {
        set(&mut session, &format!("there-{n:06}"), format!("{n}").as_bytes(), now);
    }
    for n in 0..30_000 {
        let absent = format!("never-{n:06}");
        assert_eq!(get(&mut session, &absent, now), None, "{absent}");
        let deleted = session.delete(absent.as_bytes(), &Delete::default(), now);
        assert!(matches!(deleted, Ok(Deleted::NotFound)), "{absent}");
    }
    for n in 0..3_000 {
        let value = get(&mut session, &format!("there-{n:06}"), now);
        assert_eq!(value, Some(format!("{n}").into_bytes()), "there-{n:06}");
    }
}

/// No operation leaves such a word: only damage does, and then the item may be of any key.
#[test]
fn a_word_that_names_another_life_of_its_segment_leads_to_nothing() {
    /// The lowest bit of a word's generation.
    const GENERATION: u64 = 1 << 37;
    let (mut pages, region) = private::region(MEMORY);
    let mut session = session(&region, region.recovery().attach(0, 1, UNIX_S));
    let now = region.clock().tick(Moment::from_secs(UNIX_S));
    set(&mut session, "key", b"value", now);
    let seed = region.mapped().seed();
    let tag = keyway_region::hash(seed, b"key") >> 52;
    let index = region.mapped().layout().segments / 8;
    let found = private::words(&mut pages)
        .skip(index)
        .find(|word| Slot(**word).is_item_with(tag));
    *found.expect("a word with the tag") ^= GENERATION;
    assert_eq!(get(&mut session, "key", now), None);
    set(&mut session, "key", b"again", now);
    assert_eq!(get(&mut session, "key", now), Some(b"again".to_vec()));
    drop(session);
    let report = check::check(&region, |_| {});
    assert!(report.is_sound(), "{:?}", report.problems);
}

/// It may be alive: then it learns of it, and until it has given its slot back no other session has that.
#[test]
fn a_session_that_is_taken_for_dead_gets_an_error_and_keeps_its_slot() {
    let (_pages, region) = private::region_where(MEMORY, Life::Suspect);
    let process = region.recovery().attach(0, 1, UNIX_S);
    let now = region.clock().tick(Moment::from_secs(UNIX_S));
    let mut first = session(&region, process);
    set(&mut first, "key", b"value", now);
    assert!(!first.is_fenced());
    assert_eq!(region.recovery().recover(), 0, "no session's death is certain");
    assert!(first.is_fenced());
    // The operation that it is in comes to its end.
    set(&mut first, "key", b"other", now);
    let mut second = session(&region, process);
    assert!(!second.is_fenced());
    assert_eq!(region.threads().sessions(), 2);
    assert_eq!(get(&mut second, "key", now), Some(b"other".to_vec()));
    first.end();
    assert_eq!(region.threads().sessions(), 1);
    assert!(!session(&region, process).is_fenced());
}

/// A session keeps what it counts to itself for a while. What a thread had not told when it ended, whoever takes its slot back tells.
#[test]
fn what_the_dead_had_counted_is_reported() {
    let (_pages, region) = private::region(MEMORY);
    let process = region.recovery().attach(0, 1, UNIX_S);
    let now = region.clock().tick(Moment::from_secs(UNIX_S));
    let mut ends = session(&region, process);
    for n in 0..10 {
        set(&mut ends, &format!("key-{n}"), b"value", now);
    }
    let told = || region.mapped().superblock().items.load(std::sync::atomic::Ordering::Relaxed);
    assert_eq!(
        told(),
        0,
        "the counts are told as soon as they are made: there is nothing to see here"
    );
    let id = ends.id();
    ends.abandon();
    drop(ends);
    assert!(region.recovery().take_back_own(process, id));
    assert_eq!(told(), 10);
}
