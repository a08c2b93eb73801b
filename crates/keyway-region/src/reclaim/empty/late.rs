//! Reclaims by late threads, and reclaims beside late threads.
//! Guards: P3

use crate::late::{Ground, LARGE, Thread, WHOLE, WORDS_COME_ROUND, overtaken, recycled, twins, victim};
use crate::layout::segment::Spare;
use crate::verbs::Stored;
use std::cell::Cell;
use std::rc::Rc;

/// Bytes of a small value.
const LEN: usize = 20;

/// Removes an item as a thread does that dies before it frees the value's segments.
fn remove_and_leave_parts(thread: &Thread, ground: &Ground, key: &str) {
    let (place, word, _) = ground.item(key).expect("an item");
    assert!(thread.session().index().publisher().evict_slot(place, word));
}

/// Checks every segment, as a sweep after a death does.
fn sweep(thread: &Thread, now: u32) {
    let session = thread.session();
    for segment in 0..session.region().mapped().segments() {
        session.reclaimer().reclaim_if_lost(segment, now);
    }
}

/// Compacts every segment except this one.
fn compact_all_but(thread: &Thread, kept: Option<usize>) {
    let region = thread.session().region().clone();
    for segment in (0..region.mapped().segments()).filter(|segment| Some(*segment) != kept) {
        thread.compact(victim(&region, segment));
    }
}

#[test]
fn a_walk_over_dead_items_ends_at_what_lives_at_its_bound_and_at_the_tail() {
    let ground = Ground::new();
    let writer = ground.thread(0);
    let keys = ["a", "b", "c", "d"];
    for key in keys {
        writer.set(key, 1, LEN);
    }
    let items = keys.map(|key| ground.item(key).expect("an item").2);
    for key in ["a", "b", "c"] {
        writer.delete(key);
    }
    let [a, b, c, d] = items.map(|item| item.offset);
    let size = items[0].header.size();
    assert_eq!([b, c, d], [a + size, a + 2 * size, a + 3 * size], "one after the other");
    let at = ground.region.mapped().segment(items[0].segment);
    let walk = |tail, until| ground.region.victims().skip_dead(at, a, tail, until);
    assert_eq!(walk(d + size, usize::MAX), (d, 3), "the last one lives");
    assert_eq!(walk(d + size, b), (b, 1), "items that begin before the bound");
    assert_eq!(walk(d + size, b + 1), (c, 2), "items that begin before the bound");
    assert_eq!(walk(d, usize::MAX), (d, 3), "the third one ends at the tail");
    assert_eq!(walk(d - 4, usize::MAX), (c, 2), "the third one is cut by the tail");
}

#[test]
fn a_claim_that_a_dead_thread_left_does_not_end_the_extents_in_its_segment() {
    let ground = Ground::new();
    let (writer, late, sweeper) = (ground.thread(0), ground.thread(1), ground.thread(2));
    writer.set("one", 1, LEN);
    let segment = ground.segment_of("one");
    // The late thread slept since an earlier generation of the segment, and dies before it gives the segment back.
    assert!(late.session().log().claims().claim(segment, ground.state(segment)));
    late.forget();
    ground.dies(1);
    sweeper.upkeep();
    sweep(&sweeper, ground.now());
    writer.set("two", 2, LEN);
    writer.has("one", 1, LEN, 0);
    writer.has("two", 2, LEN, 0);
    ground.is_sound();
}

#[test]
fn a_reclaim_finds_what_splits_move_meanwhile() {
    for access in 1.. {
        let ground = Ground::new();
        let (writer, late) = (ground.thread(0), ground.thread(1));
        let keys: Vec<String> = (0..8).map(|n| format!("key-{n}")).collect();
        for key in &keys {
            writer.set(key, 1, LEN);
        }
        writer.release();
        let (victim, now) = (ground.victim(ground.segment_of("key-0")), ground.now());
        let splitter = writer.clone();
        let splits = move || assert!(splitter.grow_index(256, now));
        let (_, happened) = overtaken(access, splits, || late.compact(victim));
        if !happened {
            break;
        }
        for key in &keys {
            writer.has(key, 1, LEN, access);
        }
        ground.is_sound();
    }
}

#[test]
fn the_segment_of_a_copy_stays_until_the_copy_is_published() {
    for access in 1.. {
        let ground = Ground::new();
        let (writer, late) = (ground.thread(0), ground.thread(1));
        // The copy of the second item does not fit after that of the first one, and almost fills a segment: its extent is closed
        // as soon as it is written.
        writer.set("small", 1, 600);
        writer.set("whole", 1, WHOLE);
        writer.release();
        let victims = ["small", "whole"].map(|key| ground.victim(ground.segment_of(key)));
        late.compact(victims[0]);
        let other = writer.clone();
        let compacts = move || compact_all_but(&other, Some(victims[1].segment));
        let (_, happened) = overtaken(access, compacts, || late.compact(victims[1]));
        if !happened {
            break;
        }
        writer.has("small", 1, 600, access);
        writer.has("whole", 1, WHOLE, access);
        ground.is_sound();
    }
}

#[test]
fn a_large_value_of_another_life_is_not_freed_for_the_one_that_was() {
    let mut came_round = 0;
    for access in 1.. {
        let ground = Ground::new();
        let (writer, late) = (ground.thread(0), ground.thread(1));
        writer.set("old", 1, LARGE);
        let parts = ground.parts("old");
        let state = ground.state(parts[0]);
        // What the late thread does after a look at the state, while others free the segment.
        remove_and_leave_parts(&writer, &ground, "old");
        for part in &parts {
            assert!(writer.session().log().claims().claim(*part, ground.state(*part)));
        }
        let protected = writer
            .session()
            .region()
            .threads()
            .protected_by_others(writer.session().thread().owner());
        let (other, freed, is_back) = (writer.clone(), parts.clone(), Rc::new(Cell::new(false)));
        let (region, seen) = (ground.region.clone(), is_back.clone());
        let frees = move || {
            for part in &freed {
                if other.session().log().claims().bump_large(*part, &protected) {
                    other.session().log().claims().free_segment(*part);
                }
            }
            other.set("new", 2, LARGE);
            seen.set(region.mapped().header(freed[0]).state.load(crate::atomics::Relaxed) == state.0);
        };
        let now = ground.now();
        let (_, happened) = overtaken(access, frees, || {
            late.session().reclaimer().reclaim_large(parts[0], state, None, now)
        });
        if !happened {
            break;
        }
        came_round += usize::from(is_back.get());
        writer.has("new", 2, LARGE, access);
        ground.is_sound();
    }
    assert!(came_round > 0, "no segment was in the same state again");
}

#[test]
fn a_large_value_whose_head_is_replaced_meanwhile_is_no_orphan() {
    for access in 1.. {
        let ground = Ground::new();
        let (writer, late) = (ground.thread(0), ground.thread(1));
        writer.set("large", 1, LARGE);
        let part = ground.parts("large")[0];
        let (other, now) = (writer.clone(), ground.now());
        let (_, happened) = overtaken(
            access,
            move || other.touch("large"),
            || late.session().reclaimer().reclaim_if_lost(part, now),
        );
        if !happened {
            break;
        }
        writer.has("large", 1, LARGE, access);
        ground.is_sound();
    }
}

#[test]
fn an_orphan_that_others_free_and_use_again_is_not_freed_twice() {
    let mut came_round = 0;
    for access in 1.. {
        let ground = Ground::new();
        let (writer, late) = (ground.thread(0), ground.thread(1));
        writer.set("old", 1, LARGE);
        let part = ground.parts("old")[0];
        remove_and_leave_parts(&writer, &ground, "old");
        let state = ground.state(part);
        let (other, region, is_back) = (writer.clone(), ground.region.clone(), Rc::new(Cell::new(false)));
        let (seen, now) = (is_back.clone(), ground.now());
        let uses_again = move || {
            sweep(&other, now);
            other.set("new", 2, LARGE);
            seen.set(region.mapped().header(part).state.load(crate::atomics::Relaxed) == state.0);
        };
        let (_, happened) = overtaken(access, uses_again, || late.session().reclaimer().reclaim_if_lost(part, now));
        if !happened {
            break;
        }
        came_round += usize::from(is_back.get());
        writer.has("new", 2, LARGE, access);
        ground.is_sound();
    }
    assert!(came_round > 0, "no segment was in the same state again");
}

#[test]
fn a_chain_that_others_free_and_use_again_is_not_freed_by_one_who_walks_over_it() {
    for access in 1.. {
        let ground = Ground::new();
        let (writer, late) = (ground.thread(0), ground.thread(1));
        writer.set("old", 1, LARGE);
        let (_, _, seen) = ground.item("old").expect("an item");
        let first = ground.region.items().chain(&seen).expect("a large value").first;
        remove_and_leave_parts(&writer, &ground, "old");
        let (other, now) = (writer.clone(), ground.now());
        let uses_again = move || {
            sweep(&other, now);
            // The segments that were left to be reclaimed as logs without items.
            compact_all_but(&other, None);
            other.set("new", 2, LARGE);
        };
        let (_, happened) = overtaken(access, uses_again, || late.session().log().claims().free_chain(first));
        if !happened {
            break;
        }
        writer.has("new", 2, LARGE, access);
        ground.is_sound();
    }
}

#[test]
fn a_large_value_that_is_being_written_is_not_lost() {
    for access in 1.. {
        let ground = Ground::new();
        let (sweeper, late) = (ground.thread(0), ground.thread(1));
        let (other, now) = (sweeper.clone(), ground.now());
        let (_, happened) = overtaken(access, move || sweep(&other, now), || late.set("large", 1, LARGE));
        if !happened {
            break;
        }
        sweeper.has("large", 1, LARGE, access);
        ground.is_sound();
    }
}

#[test]
fn a_large_item_is_evicted_under_its_own_word_only() {
    let [first, twin] = twins(&Ground::new());
    let mut came_round = 0;
    for access in 1.. {
        let ground = Ground::new();
        let (writer, late) = (ground.evictor(0), ground.evictor(1));
        writer.set(&first, 1, LARGE);
        let (place, word, seen) = ground.item(&first).expect("an item");
        let (segment, part) = (seen.segment, ground.parts(&first)[0]);
        let (other, its, is_back) = (writer.clone(), ground.victim(segment), Rc::new(Cell::new(false)));
        let (region, back, gone, new) = (ground.region.clone(), is_back.clone(), first.clone(), twin.clone());
        let again = move || {
            other.delete(&gone);
            other.release();
            if other.compact(its) {
                recycled(&region, segment, WORDS_COME_ROUND - 1);
                other.set(&new, 2, 300);
                other.set("behind", 3, LEN);
                back.set(word.same_but_frequency(region.slots().word_in(place)));
            }
        };
        let (state, now) = (ground.state(part), ground.now());
        let (_, happened) = overtaken(access, again, || {
            late.session()
                .reclaimer()
                .reclaim_large(part, state, Some(Spare::Nothing), now)
        });
        if !happened {
            break;
        }
        if is_back.get() {
            came_round += 1;
            writer.has(&twin, 2, 300, access);
            writer.has("behind", 3, LEN, access);
        }
        ground.is_sound();
    }
    assert!(came_round > 0, "the word was never the same again");
}

#[test]
fn an_operation_does_not_evict_the_large_item_that_it_is_at() {
    let ground = Ground::new();
    let writer = ground.evictor(0);
    writer.set("own", 1, LARGE);
    let mut others = 0;
    while ground.free() > 5 {
        writer.set(&format!("other-{others}"), 1, LARGE);
        others += 1;
    }
    // Until every segment was reclaimed in turn.
    for round in 0..2 * others {
        let stored = writer.append("own", b"more");
        assert!(matches!(stored, Ok(Stored::Stored { .. })), "append {round}: {stored:?}");
    }
    let (item, _) = writer.get("own").expect("an item");
    assert_eq!(item.value_len, LARGE + 4 * 2 * others);
}
