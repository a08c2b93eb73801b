//! Splits by threads that are late, or die.

use crate::atomics::Relaxed;
use crate::hash::all_choices;
use crate::late::{Ground, Thread, WORDS_COME_ROUND, dies, overtaken, recycled, twins};
use crate::layout::bucket::{SLOTS, Split};
use crate::layout::slot::Slot;
use std::cell::Cell;
use std::rc::Rc;

/// Number of items: some buckets of the first index have one.
const ITEMS: usize = 100;
const LEN: usize = 20;

fn keys() -> impl Iterator<Item = String> {
    (0..ITEMS).map(|n| format!("key-{n}"))
}

/// Rounds in which splits are tried: in the later one, the mark takes the bit that says "dirty" in other words.
const ROUNDS: [u32; 2] = [0, 8];

/// A region with these items, and a thread that stored them.
fn filled() -> (Ground, Thread) {
    filled_in(0)
}

/// A region with these items after as many rounds of splits, and the thread that stored them. Then the index has a segment or
/// more.
fn filled_in(round: u32) -> (Ground, Thread) {
    let ground = if round == 0 { Ground::new() } else { Ground::of_buckets(4) };
    let writer = ground.thread(0);
    for key in keys() {
        writer.set(&key, 1, LEN);
    }
    while next_split(&ground).round < round {
        split(&writer, &ground, 1);
    }
    (ground, writer)
}

fn next_split(ground: &Ground) -> Split {
    ground
        .region
        .directory()
        .table()
        .next_split(ground.region.directory().buckets_initial())
}

/// Does this many splits.
fn split(thread: &Thread, ground: &Ground, count: usize) {
    assert!(thread.grow_index(count, ground.now()), "no room for the index");
}

/// The keys of the filled region in the bucket that the next split divides, and whether it moves them.
fn concerned(ground: &Ground) -> Vec<(String, bool)> {
    let next = next_split(ground);
    let there = |key: &String| ground.item(key).is_some_and(|(place, ..)| place.bucket == next.source);
    keys()
        .filter(there)
        .map(|key| {
            let moves = next.moves(all_choices(ground.hash(&key)));
            (key, moves)
        })
        .collect()
}

/// Splits buckets until the next one has an item that moves, or one that stays. Returns its key.
fn split_until_next(thread: &Thread, ground: &Ground, wanted: bool) -> String {
    loop {
        let found = concerned(ground).into_iter().find(|(_, moves)| *moves == wanted);
        if let Some((key, _)) = found {
            return key;
        }
        split(thread, ground, 1);
    }
}

/// Makes sure that the directories have what a new bucket needs.
fn prepare_bucket(thread: &Thread, bucket: u64, now: u32) -> bool {
    let session = thread.session();
    session
        .index()
        .publisher()
        .splits()
        .prepare_bucket(session.reclaimer(), bucket, now)
}

fn all_there(thread: &Thread, when: u64) {
    for key in keys() {
        thread.has(&key, 1, LEN, when);
    }
}

#[test]
fn a_splitter_that_is_a_round_late_leaves_the_bucket_to_the_split_under_way() {
    for late in ROUNDS.map(|round| round.max(1)) {
        a_splitter_is_a_round_late(late - 1);
    }
}

fn a_splitter_is_a_round_late(round: u32) {
    let (ground, writer) = filled_in(round);
    let first = next_split(&ground);
    while !ground.region.directory().table().is_even() || ground.region.directory().table().count == first.target {
        split(&writer, &ground, 256);
    }
    let late = loop {
        // A split of this round; a round ago its bucket was divided for the first time.
        let next = next_split(&ground);
        let moves = concerned(&ground).iter().any(|(_, moves)| *moves);
        if moves && next.source < first.target {
            break next;
        }
        split(&writer, &ground, 1);
    };
    let session = writer.session();
    assert!(prepare_bucket(&writer, late.target, ground.now()));
    for place in ground.region.index().places(late.source).expect("a bucket of the index") {
        assert!(session.index().publisher().splits().freeze(place, late));
    }
    session.index().publisher().splits().help_split(Split {
        source: late.source,
        target: late.source + first.target,
        round: first.round,
    });
    session.index().publisher().splits().help_split(late);
    drop(session);
    all_there(&writer, 0);
    ground.is_sound();
}

#[test]
fn a_slot_that_was_changed_is_not_thawed() {
    for round in ROUNDS {
        for access in 1.. {
            let (ground, writer) = filled_in(round);
            let key = split_until_next(&writer, &ground, false);
            let (late, gone) = (ground.thread(1), key.clone());
            let (_, happened) = overtaken(access, move || writer.delete(&gone), || split(&late, &ground, 1));
            if !happened {
                break;
            }
            assert!(
                late.get(&key).is_none(),
                "overtaken at access {access}: what was deleted is there"
            );
            ground.is_sound();
        }
    }
}

#[test]
fn a_slot_that_was_filled_is_not_emptied() {
    for round in ROUNDS {
        for access in 1.. {
            let (ground, writer) = filled_in(round);
            let next = next_split(&ground);
            let table = ground.region.directory().table();
            let stays = |key: &String| {
                let choices = all_choices(ground.hash(key));
                choices[..2].iter().any(|choice| table.bucket(*choice) == next.source) && !next.moves(choices)
            };
            let new: Vec<String> = (0..).map(|n| format!("new-{n}")).filter(stays).take(6).collect();
            let (late, other, stored) = (ground.thread(1), writer.clone(), new.clone());
            let store = move || stored.iter().for_each(|key| other.set(key, 2, LEN));
            let (_, happened) = overtaken(access, store, || split(&late, &ground, 1));
            if !happened {
                break;
            }
            for key in &new {
                late.has(key, 2, LEN, access);
            }
            ground.is_sound();
        }
    }
}

#[test]
fn an_insert_finishes_the_split_of_its_third_bucket() {
    let ground = Ground::of_buckets(64);
    let (table, next) = (ground.region.directory().table(), next_split(&ground));
    let buckets = |key: &String| all_choices(ground.hash(key)).map(|choice| table.bucket(choice));
    let keys = || (0..).map(|n| format!("new-{n}"));
    let in_the_third = |key: &String| {
        let [first, second, third] = buckets(key);
        third == next.source && first != third && second != third && first != second
    };
    let key = keys().find(in_the_third).expect("there is no end of keys");
    // These fill its pair. They are found before it dies, so they are worth more than what is frozen.
    let pair = &buckets(&key)[..2];
    let fill = |other: &String| *other != key && buckets(other)[..2].iter().all(|bucket| pair.contains(bucket));
    let others: Vec<String> = keys().filter(fill).take(2 * SLOTS).collect();
    for access in 1.. {
        let ground = Ground::of_buckets(64);
        let (writer, late) = (ground.thread(0), ground.thread(1));
        others.iter().for_each(|other| writer.set(other, 1, LEN));
        for other in &others {
            writer.has(other, 1, LEN, access);
        }
        assert_eq!(next_split(&ground), next, "the index has grown");
        let died = dies(access, || split(&late, &ground, 1));
        late.forget();
        ground.dies(1);
        writer.set(&key, 2, LEN);
        writer.has(&key, 2, LEN, access);
        ground.is_sound();
        if !died {
            break;
        }
    }
}

#[test]
fn two_who_give_the_index_its_next_segment_give_it_one() {
    for access in 1.. {
        let (ground, writer) = filled();
        let (late, ground_too) = (ground.thread(1), ground.region.clone());
        let now = ground.now();
        let other = writer.clone();
        let splits = move || {
            assert!(ground_too.directory().table().is_even());
            assert!(other.grow_index(256, now));
        };
        // The first new bucket needs a segment.
        let (_, happened) = overtaken(access, splits, || {
            prepare_bucket(&late, ground.region.directory().table().count, now)
        });
        if !happened {
            break;
        }
        all_there(&writer, access);
        ground.is_sound();
    }
}

#[test]
fn no_slot_stays_frozen_when_the_next_split_is_done() {
    for round in ROUNDS {
        for access in 1.. {
            let (ground, writer) = filled_in(round);
            split_until_next(&writer, &ground, true);
            let late = ground.thread(1);
            let died = dies(access, || split(&late, &ground, 1));
            late.forget();
            ground.dies(1);
            split(&writer, &ground, 1);
            for (place, word) in ground.words() {
                assert!(!word.is_frozen(), "dead at access {access}: {place:?} has {word:?}");
            }
            all_there(&writer, access);
            if !died {
                break;
            }
        }
    }
}

#[test]
fn a_segment_that_is_freed_has_no_word_in_the_bucket_that_a_dead_thread_divided() {
    for round in ROUNDS {
        for access in 1.. {
            let (ground, writer) = filled_in(round);
            let moved = split_until_next(&writer, &ground, true);
            writer.release();
            let late = ground.thread(1);
            let died = dies(access, || split(&late, &ground, 1));
            late.forget();
            ground.dies(1);
            ground.region.recovery().recover();
            let segment = ground.segment_of(&moved);
            assert!(writer.compact(ground.victim(segment)), "dead at access {access}: not freed");
            let left = ground
                .words()
                .find(|(_, word)| word.segment() == segment && !of_this_life(&ground, *word));
            assert_eq!(left, None, "dead at access {access}");
            all_there(&writer, access);
            if !died {
                break;
            }
        }
    }
}

fn of_this_life(ground: &Ground, word: Slot) -> bool {
    word.is_of_generation(ground.region.mapped().segment_life(word.segment()).generation)
}

#[test]
fn an_item_that_was_fetched_is_so_behind_a_split() {
    let (ground, reader) = filled();
    for key in keys() {
        let (item, _) = reader.get(&key).expect("an item");
        assert!(!item.fetched, "{key}");
    }
    split(&reader, &ground, 256);
    for key in keys() {
        let (item, _) = reader.get(&key).expect("an item");
        assert!(item.fetched, "{key}");
    }
}

#[test]
fn a_repair_is_of_the_item_that_it_has_read() {
    let [first, twin] = twins(&Ground::new());
    let mut came_round = 0;
    for access in 1.. {
        let ground = Ground::new();
        let (writer, late) = (ground.thread(0), ground.thread(1));
        // The only item in its segment, and in its bucket.
        writer.set(&first, 1, LEN);
        let (place, _, seen) = ground.item(&first).expect("an item");
        let segment = seen.segment;
        while next_split(&ground).source < place.bucket {
            split(&writer, &ground, 1);
        }
        let next = next_split(&ground);
        // The split is done except for its last step.
        assert!(prepare_bucket(&writer, next.target, ground.now()));
        let is_done = || ground.region.directory().table().count > next.target;
        let died = (1..).any(|at| {
            let helper = ground.thread(2);
            dies(at, || {
                helper.session().index().publisher().splits().help_split(next);
            });
            helper.forget();
            ground.dies(2);
            ground.region.recovery().recover();
            is_done()
        });
        let word = Slot(ground.region.slots().slot(place.at).load(Relaxed));
        assert!(died && word.is_frozen());
        let (other, victim) = (writer.clone(), ground.victim(segment));
        let (gone, new) = (first.clone(), twin.clone());
        let (region, is_stored) = (ground.region.clone(), Rc::new(Cell::new(false)));
        let stored = is_stored.clone();
        let again = move || {
            other.session().index().publisher().splits().finish_last_split();
            other.delete(&gone);
            other.release();
            if other.compact(victim) {
                recycled(&region, segment, WORDS_COME_ROUND - 1);
                other.set(&new, 2, LEN);
                // As by a third thread that is as late.
                other.session().index().publisher().splits().freeze(place, next);
                stored.set(Slot(region.slots().slot(place.at).load(Relaxed)) == word);
            }
        };
        let (_, happened) = overtaken(access, again, || {
            late.session().index().publisher().splits().repair(place, word, next)
        });
        if !happened {
            break;
        }
        if is_stored.get() {
            came_round += 1;
            writer.has(&twin, 2, LEN, access);
        }
        ground.is_sound();
    }
    assert!(came_round > 0, "the word was never the same again");
}
