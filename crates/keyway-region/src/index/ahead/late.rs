//! What is prefetched, and what becomes of it when the keys change meanwhile. The enemy: a line that is forgotten, so that its key waits
//! alone; a prefetch that writes, or that reads where a get would not; a get after it that believes what was read before.

use super::{AHEAD_MAX, CACHE_LINE, ITEM_AHEAD};
use crate::late::{Ground, Thread, overtaken, value};
use crate::memory::tests::asked_by;
use crate::observe::{Access, Event, install};
use std::cell::Cell;

const LEN: usize = 150;

fn prefetch(ground: &Ground, keys: &[String]) {
    let region = &ground.region;
    region
        .index()
        .prefetch(&region.index().ahead(keys.iter().map(String::as_bytes)));
}

fn keys(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("key-{number}")).collect()
}

/// Bytes of the value of the key with this number: an item of one line, of several, and more than is prefetched.
fn len(number: usize) -> usize {
    [1, 100, 180, 300, 700, 3_000]
        .into_iter()
        .cycle()
        .nth(number)
        .expect("endless")
}

#[test]
fn every_line_that_a_get_reads_is_asked_for() {
    let ground = Ground::new();
    let thread = ground.thread(0);
    let names = keys(AHEAD_MAX + 1);
    for (number, name) in names.iter().enumerate() {
        thread.set(name, 1, len(number));
    }
    let region = &ground.region;
    let asked = asked_by(region.mapped().memory(), || prefetch(&ground, &names));
    let is_asked = |at: usize| asked.contains(&(at / CACHE_LINE));
    let item_of = |name: &String| ground.item(name).expect("it was stored");
    for name in names.iter().take(AHEAD_MAX) {
        let (place, _, seen) = item_of(name);
        let buckets = region
            .index()
            .buckets(ground.hash(name), region.directory().table())
            .expect("a sound directory");
        assert!(buckets.pair().iter().all(|(_, at)| is_asked(*at)), "the buckets of {name}");
        let hint = region.directory().hint_at(place.bucket).expect("a sound directory");
        assert!(is_asked(hint), "the hint of {name}");
        for offset in 0..seen.header.size().min(ITEM_AHEAD) {
            assert!(is_asked(seen.at + offset), "byte {offset} of the item of {name}");
        }
    }
    let (_, _, last) = item_of(&names[AHEAD_MAX]);
    assert!(!is_asked(last.at + len(AHEAD_MAX) / 2), "only so many keys are taken");
}

thread_local! {
    static LOADS: Cell<usize> = const { Cell::new(0) };
}

fn only_loads(event: Event) {
    match event {
        Event::Before(Access::Load) => LOADS.set(LOADS.get() + 1),
        other => panic!("a prefetch only reads: {other:?}"),
    }
}

#[test]
fn nothing_is_written() {
    let ground = Ground::new();
    let thread = ground.thread(0);
    let names = keys(AHEAD_MAX);
    names.iter().skip(3).for_each(|name| thread.set(name, 1, LEN));
    install(Some(only_loads));
    prefetch(&ground, &names);
    // Keys that no verb takes.
    prefetch(&ground, &[String::new(), "k".repeat(251), "k".repeat(100_000)]);
    prefetch(&ground, &[]);
    install(None);
    assert!(LOADS.get() > AHEAD_MAX, "words are read");
    ground.is_sound();
}

/// A change of the keys.
type Change = fn(&Ground, &Thread);

#[test]
fn a_get_after_it_returns_what_there_is_then() {
    let changes: [(Change, Option<u8>); 6] = [
        (|_, other| other.set("key-0", 2, LEN), Some(2)),
        (|_, other| other.delete("key-0"), None),
        (|_, other| other.flush(), None),
        (
            |ground, other| assert!(other.grow_index(40, ground.now()), "no room for the index"),
            Some(1),
        ),
        (
            |ground, other| {
                other.release();
                other.compact(ground.victim(ground.segment_of("key-0")));
            },
            Some(1),
        ),
        (
            |ground, other| {
                let segment = ground.segment_of("key-0");
                other.delete("key-0");
                other.release();
                other.compact(ground.victim(segment));
                // Other keys' items lie where the item was.
                for n in 0..2_000 {
                    if other.store(&format!("other-{n}"), 9, LEN).is_err() {
                        break;
                    }
                }
            },
            None,
        ),
    ];
    for (number, (change, after)) in changes.into_iter().enumerate() {
        for access in 1.. {
            let ground = std::rc::Rc::new(Ground::new());
            let (late, other) = (ground.thread(0), ground.thread(1));
            keys(3).iter().for_each(|name| other.set(name, 1, LEN));
            let of = ground.clone();
            let ((), happened) = overtaken(access, move || change(&of, &other), || prefetch(&ground, &keys(3)));
            let after = if happened { after } else { Some(1) };
            let after = after.map(|number| value("key-0", number, LEN));
            assert_eq!(late.plain_get("key-0"), after, "change {number} before access {access}");
            ground.is_sound();
            if !happened {
                assert!(access > 8, "it reads more words");
                break;
            }
        }
    }
}
