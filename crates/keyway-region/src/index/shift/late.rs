//! Shifts by threads that are late, or die, and what meets them.

use crate::atomics::Relaxed;
use crate::hash::all_choices;
use crate::index::lookup::Place;
use crate::late::{Ground, LARGE, Thread, dies, overtaken, value};
use crate::layout::bucket::SLOTS;
use crate::layout::slot::Slot;
use crate::verbs::{StoreMode, Stored};
use std::rc::Rc;

const KEY: &str = "key";
const LEN: usize = 20;
/// What another thread does with the key.
const CHANGES: [&str; 6] = ["set", "delete", "append", "add", "touch", "shift"];

/// A region with the key, which was shifted this many times, and a thread that did all that.
fn filled(shifts: usize) -> (Ground, Thread) {
    let ground = Ground::new();
    let writer = ground.thread(0);
    writer.set(KEY, 1, LEN);
    for _ in 0..shifts {
        shift(&writer, &ground);
    }
    (ground, writer)
}

/// Shifts the key's item, as a thread that finds the slot's word now.
fn shift(thread: &Thread, ground: &Ground) {
    let (place, word, _) = ground.item(KEY).expect("an item of the key");
    let table = ground.region.table();
    assert!(
        thread.session().shift(place, word, table, ground.now()),
        "no space for a copy"
    );
    thread.session().end_operation();
}

/// The same in the middle of something else of another thread, where the word may be any.
fn shifts(thread: &Thread, ground: &Ground) -> impl FnOnce() + 'static {
    let (thread, region, now) = (thread.clone(), ground.region.clone(), ground.now());
    let found = ground.item(KEY).expect("an item of the key");
    move || {
        thread.session().shift(found.0, found.1, region.table(), now);
        thread.session().end_operation();
    }
}

fn change(thread: &Thread, ground: &Ground, how: &str) {
    match how {
        "set" => thread.set(KEY, 2, LEN),
        "delete" => thread.delete(KEY),
        "append" => assert!(matches!(thread.append(KEY, b"+"), Ok(Stored::Stored { .. }))),
        "add" => assert!(matches!(thread.store_as(StoreMode::Add, KEY, b"+"), Ok(Stored::NotStored))),
        "touch" => thread.touch(KEY),
        _ => {
            if let Some((place, word, _)) = ground.item(KEY) {
                thread.session().shift(place, word, ground.region.table(), ground.now());
                thread.session().end_operation();
            }
        }
    }
}

/// The key is what the change has made of it, once, and the region is sound.
fn is_changed(thread: &Thread, ground: &Ground, how: &str, access: u64) {
    let expected = match how {
        "set" => Some(value(KEY, 2, LEN)),
        "delete" => None,
        "append" => Some([value(KEY, 1, LEN).as_slice(), b"+"].concat()),
        _ => Some(value(KEY, 1, LEN)),
    };
    let found = thread.plain_get(KEY);
    assert_eq!(found, expected, "{how}, at access {access}");
    assert_eq!(thread.get(KEY).map(|(_, found)| found), expected, "{how}, at access {access}");
    ground.is_sound();
}

/// The index has one word of the key, confirmed, or none.
fn is_settled(ground: &Ground, how: &str, access: u64) {
    let words: Vec<Slot> = ground.words().map(|(_, word)| word).collect();
    let count = usize::from(how != "delete");
    assert!(
        words.len() == count && words.iter().all(|word| !word.is_frozen()),
        "{how}, at access {access}: {words:?}"
    );
}

/// Splits buckets until the next split divides this one.
fn split_until(thread: &Thread, ground: &Ground, bucket: u64) {
    while ground.region.table().next_split(ground.region.buckets_initial()).source != bucket {
        assert!(thread.session().grow(1, ground.now()), "no space for the index");
    }
}

#[test]
fn a_shift_goes_to_another_bucket_and_keeps_what_is_known_of_the_item() {
    let (ground, writer) = filled(0);
    let (before, ..) = ground.item(KEY).expect("an item of the key");
    for _ in 0..5 {
        writer.plain_get(KEY);
    }
    let item = writer.get(KEY).expect("an item of the key").0;
    let frequency = ground.item(KEY).expect("an item of the key").1.frequency();
    shift(&writer, &ground);
    let (after, word, _) = ground.item(KEY).expect("an item of the key");
    let hint = |place: Place| ground.region.hint(place.bucket, place.index).expect("a hint").load(Relaxed);
    assert!(before.bucket != after.bucket && frequency > 1 && word.frequency() == frequency);
    assert_eq!(hint(before), hint(after));
    let shifted = writer.get(KEY).expect("an item of the key").0;
    assert!(shifted.fetched && shifted.cas == item.cas && shifted.idle_s == item.idle_s);
    is_settled(&ground, "shift", 0);
    ground.is_sound();
}

#[test]
fn an_item_that_is_shifted_is_there_all_the_time() {
    for before in 0..3 {
        for plain in [false, true] {
            for access in 1.. {
                let (ground, writer) = filled(before);
                let reader = ground.thread(1);
                let (found, happened) = overtaken(access, shifts(&writer, &ground), || {
                    if plain {
                        reader.plain_get(KEY)
                    } else {
                        reader.get(KEY).map(|(_, found)| found)
                    }
                });
                assert_eq!(
                    found,
                    Some(value(KEY, 1, LEN)),
                    "overtaken at access {access}, {before} shifts before"
                );
                ground.is_sound();
                if !happened {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_thread_that_shifts_is_late() {
    for before in 0..3 {
        for how in CHANGES {
            for access in 1.. {
                let (ground, writer) = filled(before);
                let other = ground.thread(1);
                let (ground, late) = (Rc::new(ground), writer);
                let (there, too) = (ground.clone(), other.clone());
                let (place, word, _) = ground.item(KEY).expect("an item of the key");
                let changes = move || {
                    assert!(too.plain_get(KEY).is_some(), "not there at access {access}");
                    change(&too, &there, how);
                };
                let (_, happened) = overtaken(access, changes, || {
                    late.session().shift(place, word, ground.region.table(), ground.now());
                    late.session().end_operation();
                });
                if !happened {
                    break;
                }
                is_changed(&other, &ground, how, access);
                is_settled(&ground, how, access);
            }
        }
    }
}

#[test]
fn a_change_is_overtaken_by_a_shift() {
    for before in 0..3 {
        for how in CHANGES {
            for access in 1.. {
                let (ground, writer) = filled(before);
                let late = ground.thread(1);
                let (_, happened) = overtaken(access, shifts(&writer, &ground), || change(&late, &ground, how));
                is_changed(&writer, &ground, how, access);
                is_settled(&ground, how, access);
                if !happened {
                    break;
                }
            }
        }
    }
}

#[test]
fn an_insert_is_overtaken_by_another_one_whose_item_is_shifted() {
    for shifts in 0..3 {
        for access in 1.. {
            let ground = Rc::new(Ground::new());
            let (late, other) = (ground.thread(0), ground.thread(1));
            // From now on third buckets are searched.
            late.set(KEY, 1, LEN);
            shift(&late, &ground);
            late.delete(KEY);
            let there = ground.clone();
            let inserts = move || {
                other.set(KEY, 2, LEN);
                for _ in 0..shifts {
                    change(&other, &there, "shift");
                }
            };
            let (stored, happened) = overtaken(access, inserts, || late.store_as(StoreMode::Add, KEY, b"+"));
            if !happened {
                break;
            }
            let found = late.plain_get(KEY);
            assert!(found.is_some(), "overtaken at access {access}: {stored:?}");
            is_settled(&ground, "add", access);
            ground.is_sound();
        }
    }
}

#[test]
fn a_thread_that_shifts_dies() {
    for before in 0..3 {
        for how in ["", "set", "delete", "append", "add", "touch", "shift", "split", "recover"] {
            for access in 1.. {
                let (ground, writer) = filled(before);
                let late = ground.thread(1);
                let died = dies(access, || shift(&late, &ground));
                late.forget();
                ground.dies(1);
                assert_eq!(writer.plain_get(KEY), Some(value(KEY, 1, LEN)), "dead at access {access}");
                ground.is_sound();
                match how {
                    "" => {}
                    "split" => {
                        for choice in all_choices(ground.hash(KEY)) {
                            split_until(&writer, &ground, ground.region.table().bucket(choice));
                            assert!(writer.session().grow(1, ground.now()));
                        }
                    }
                    "recover" => {
                        ground.region.recover();
                        assert!(ground.words().all(|(_, word)| !word.is_tentative()));
                    }
                    how => change(&writer, &ground, how),
                }
                is_changed(&writer, &ground, how, access);
                ground.region.recover();
                is_changed(&writer, &ground, how, access);
                if !died {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_split_divides_the_bucket_of_a_shift() {
    for late_splits in [false, true] {
        for which in 0..2 {
            for access in 1.. {
                let (ground, writer) = filled(0);
                let other = ground.thread(1);
                // The bucket that the item leaves, or the one in which it arrives.
                let hash = ground.hash(KEY);
                let table = ground.region.table();
                let (place, ..) = ground.item(KEY).expect("an item of the key");
                let arrives = ground
                    .region
                    .empty_elsewhere(hash, table, place.bucket)
                    .expect("an empty slot");
                split_until(&writer, &ground, [place.bucket, arrives.bucket][which]);
                let (region, now, too) = (ground.region.clone(), ground.now(), other.clone());
                let happened = if late_splits {
                    overtaken(access, shifts(&other, &ground), || {
                        writer.session().grow(1, now);
                    })
                    .1
                } else {
                    let (place, word, _) = ground.item(KEY).expect("an item of the key");
                    let splits = move || assert!(too.session().grow(1, now));
                    overtaken(access, splits, || {
                        writer.session().shift(place, word, region.table(), now);
                        writer.session().end_operation();
                    })
                    .1
                };
                if !happened {
                    break;
                }
                writer.has(KEY, 1, LEN, access);
                other.set(KEY, 2, LEN);
                writer.has(KEY, 2, LEN, access);
                ground.is_sound();
            }
        }
    }
}

#[test]
fn a_shift_and_the_purge_of_either_segment() {
    for late_purges in [false, true] {
        for access in 1.. {
            let (ground, writer) = filled(0);
            writer.release();
            let other = ground.thread(1);
            let segment = ground.segment_of(KEY);
            let victim = || ground.victim(segment);
            let happened = if late_purges {
                overtaken(access, shifts(&other, &ground), || {
                    writer.compact(victim());
                })
                .1
            } else {
                let (too, victim, shifts) = (writer.clone(), victim(), shifts(&other, &ground));
                let purges = move || {
                    too.compact(victim);
                };
                overtaken(access, purges, shifts).1
            };
            if !happened {
                break;
            }
            writer.has(KEY, 1, LEN, access);
            ground.is_sound();
            for thread in [&writer, &other] {
                thread.release();
            }
            let copy = ground.segment_of(KEY);
            writer.compact(ground.victim(copy));
            other.has(KEY, 1, LEN, access);
            ground.is_sound();
        }
    }
}

#[test]
fn no_word_of_a_dead_threads_copy_is_left_when_its_segment_is_freed() {
    for access in 1.. {
        let (ground, writer) = filled(0);
        writer.release();
        let late = ground.thread(1);
        let died = dies(access, || shift(&late, &ground));
        late.forget();
        ground.dies(1);
        ground.region.recover();
        let copy = ground.segment_of(KEY);
        assert!(writer.compact(ground.victim(copy)), "dead at access {access}: not freed");
        writer.has(KEY, 1, LEN, access);
        is_settled(&ground, "purge", access);
        ground.is_sound();
        if !died {
            break;
        }
    }
}

#[test]
fn the_head_of_a_large_value_is_shifted_while_it_is_looked_for() {
    for access in 1.. {
        let ground = Ground::new();
        let writer = ground.thread(0);
        writer.set(KEY, 1, LARGE);
        shift(&writer, &ground);
        let looker = ground.thread(1);
        let part = ground.parts(KEY)[0];
        let victim = ground.victim(part);
        let (freed, happened) = overtaken(access, shifts(&writer, &ground), || looker.compact(victim));
        assert!(!freed, "overtaken at access {access}: a part is freed");
        writer.has(KEY, 1, LARGE, access);
        ground.is_sound();
        if !happened {
            break;
        }
    }
}

#[test]
fn a_key_with_full_buckets_is_stored_and_no_item_is_evicted() {
    for evicts in [false, true] {
        let ground = Ground::new();
        let writer = if evicts { ground.evictor(0) } else { ground.thread(0) };
        let table = ground.region.table();
        let homes = |key: &str| all_choices(ground.hash(key)).map(|choice| table.bucket(choice));
        let [a, b, c] = homes(KEY);
        let numbers = || (0..).map(|n| format!("fill-{n}"));
        let is_of = |key: &str, pair: [u64; 2]| homes(key)[..2].iter().all(|bucket| pair.contains(bucket));
        // A pair differs in the lowest bit.
        let other = if (a ^ c) & 1 == 1 { a } else { b };
        let both = numbers().filter(|key| is_of(key, [a, b])).take(2 * SLOTS);
        let third = numbers().filter(|key| is_of(key, [other, c])).take(SLOTS);
        let keys: Vec<String> = both.chain(third).chain([KEY.to_owned()]).collect();
        let (last, filler) = keys.split_last().expect("a key");
        for key in filler {
            writer.set(key, 1, LEN);
        }
        let taken = |bucket: &u64| ground.words().filter(|(place, _)| place.bucket == *bucket).count();
        assert!(
            [a, b, c].iter().all(|bucket| taken(bucket) == SLOTS),
            "a bucket is not full: the test shows nothing"
        );
        writer.set(last, 1, LEN);
        for key in &keys {
            writer.has(key, 1, LEN, 0);
        }
        let counters = ground.region.counters();
        assert_eq!((counters.evictions, counters.relocations), (0, 1));
        ground.is_sound();
    }
}
