//! Leases by late threads, and leases beside late threads.

use crate::hash::Key;
use crate::late::{Ground, LARGE, WHOLE, overtaken, recycled, value};
use crate::layout::segment::{ADMISSION, LifetimeClass, Stream};
use crate::memory::CACHE_LINE;
use crate::memory::tests::asked_by;
use crate::verbs::{StoreMode, Stored};

/// Bytes of a small value.
const LEN: usize = 20;
/// How often a segment is recycled until a lease word of an old generation fits it again.
const LEASES_COME_ROUND: u64 = 1 << 16;

const STREAM: Stream = Stream {
    pool: ADMISSION,
    class: 0,
    lifetime_class: LifetimeClass::Plain,
};

#[test]
fn an_extent_is_of_the_epoch_that_was_asked_for() {
    let mut came_round = 0;
    for access in 1.. {
        let ground = Ground::new();
        let (writer, late) = (ground.thread(0), ground.thread(1));
        writer.set("one", 1, LEN);
        writer.release();
        let (segment, epoch) = (
            ground.segment_of("one"),
            ground.region.mapped().segment_life(ground.segment_of("one")).epoch,
        );
        let (other, victim, region) = (writer.clone(), ground.victim(segment), ground.region.clone());
        let again = move || {
            other.delete("one");
            if other.compact(victim) {
                recycled(&region, segment, LEASES_COME_ROUND - 1);
                other.flush();
                other.set("two", 2, LEN);
                other.release();
            }
        };
        let (extent, happened) = overtaken(access, again, || {
            late.session().log().extents().lease_in(segment, LEN, 1, epoch, STREAM)
        });
        if !happened {
            break;
        }
        came_round += usize::from(ground.region.mapped().segment_life(segment).epoch > epoch);
        let of = extent.map_or(epoch, |extent| extent.life.epoch);
        assert_eq!(of, epoch, "overtaken at access {access}: an extent of another life");
        ground.is_sound();
    }
    assert!(came_round > 0, "the segment was never in another life");
}

/// A thread leases in a segment, while another one compacts the segment and puts an item into it that fills it.
fn lease_beside_a_reclaim(sealed: bool) {
    for access in 1.. {
        let ground = Ground::new();
        let (writer, late) = (ground.thread(0), ground.thread(1));
        writer.set("one", 1, LEN);
        writer.release();
        let segment = ground.segment_of("one");
        if sealed {
            writer
                .session()
                .log()
                .claims()
                .seal(segment, ground.region.mapped().segment_life(segment).generation);
        }
        let (other, victim) = (writer.clone(), ground.victim(segment));
        let uses_again = move || {
            if other.compact(victim) {
                other.set("whole", 2, WHOLE);
            }
        };
        let (_, happened) = overtaken(access, uses_again, || late.set("late", 3, LEN));
        if !happened {
            break;
        }
        writer.has("one", 1, LEN, access);
        writer.has("late", 3, LEN, access);
        if writer.get("whole").is_some() {
            writer.has("whole", 2, WHOLE, access);
        }
        // If the thread has an extent there now, no other thread reclaims the segment.
        writer.compact(ground.victim(segment));
        late.set("later", 4, LEN);
        writer.has("later", 4, LEN, access);
        ground.is_sound();
    }
}

#[test]
fn a_segment_in_which_a_thread_leases_is_not_reclaimed() {
    lease_beside_a_reclaim(false);
}

#[test]
fn no_thread_leases_in_a_segment_that_is_about_to_be_reclaimed() {
    lease_beside_a_reclaim(true);
}

#[test]
fn the_cells_behind_an_extent_are_given_to_one() {
    for access in 1.. {
        let ground = Ground::new();
        let (writer, late) = (ground.thread(0), ground.thread(1));
        late.set("first", 1, LEN);
        let other = writer.clone();
        let (_, happened) = overtaken(access, move || other.set("beside", 2, LEN), || late.set("longer", 3, 5000));
        if !happened {
            break;
        }
        for (key, number, len) in [("first", 1, LEN), ("beside", 2, LEN), ("longer", 3, 5000)] {
            writer.has(key, number, len, access);
        }
        writer.set("behind", 4, LEN);
        late.set("more", 5, LEN);
        for (key, number, len) in [("beside", 2, LEN), ("longer", 3, 5000), ("behind", 4, LEN), ("more", 5, LEN)] {
            writer.has(key, number, len, access);
        }
        ground.is_sound();
    }
}

#[test]
fn a_segment_is_free_when_it_has_its_next_generation() {
    for access in 1.. {
        let ground = Ground::new();
        let (writer, late) = (ground.thread(0), ground.thread(1));
        writer.set("one", 1, LEN);
        writer.release();
        let segment = ground.segment_of("one");
        let (other, region) = (writer.clone(), ground.region.clone());
        let takes = move || {
            // The search for a free segment begins here.
            region
                .mapped()
                .superblock()
                .free_hint
                .store(segment as u64, crate::atomics::Relaxed);
            other.set("whole", 2, WHOLE);
        };
        let victim = ground.victim(segment);
        let (_, happened) = overtaken(access, takes, || late.compact(victim));
        if !happened {
            break;
        }
        writer.has("one", 1, LEN, access);
        writer.has("whole", 2, WHOLE, access);
        ground.is_sound();
    }
}

#[test]
fn what_an_orphan_is_is_not_decided_by_a_later_value_of_its_key() {
    let ground = Ground::new();
    let (writer, late) = (ground.thread(0), ground.thread(1));
    writer.set("key", 1, LEN);
    let free = ground.free();
    let now = ground.now();
    let key = Key {
        bytes: b"key",
        hash: ground.hash("key"),
    };
    // Its writer dies before it has published the head.
    {
        let session = late.session();
        let chain = session
            .log()
            .claims()
            .write_chain(session.reclaimer(), &key, &value("key", 2, LARGE), (STREAM, 0), now);
        assert!(chain.is_ok());
    }
    late.forget();
    ground.dies(1);
    writer.set("key", 3, LARGE);
    let orphans = free - ground.free() - ground.parts("key").len();
    assert_eq!(orphans, ground.parts("key").len());
    ground.region.recovery().recover();
    writer
        .session()
        .reclaimer()
        .reclaim_lost(ground.region.mapped().segments(), now);
    assert_eq!(ground.free(), free - ground.parts("key").len(), "an orphan is left");
    writer.has("key", 3, LARGE, 0);
    ground.is_sound();
}

#[test]
fn room_that_gives_too_low_a_unique_is_not_held_for_ever() {
    for mode in [StoreMode::Set, StoreMode::Replace] {
        let ground = Ground::new();
        let (writer, beside, later) = (ground.thread(0), ground.thread(1), ground.thread(2));
        writer.set("small", 1, LEN);
        let segment = ground.segment_of("small");
        beside.set("beside", 1, LEN);
        later.set("key", 1, WHOLE);
        // Longer than the rest of the writer's extent, which has another one after it. The extent that is leased for it has less
        // space left than that.
        let stored = writer.store_as(mode, "key", &value("key", 2, 5000));
        assert!(matches!(stored, Ok(Stored::Stored { .. })), "{stored:?}");
        for thread in [&writer, &beside, &later] {
            thread.release();
        }
        assert!(writer.compact(ground.victim(segment)), "{mode:?}: the segment is held");
        writer.has("key", 2, 5000, 0);
        ground.is_sound();
    }
}

/// The enemy: a long item whose place is fetched line by line while it is written; lines of another thread's extent that are taken
/// from it.
#[test]
fn the_place_of_the_next_long_item_is_prefetched_as_far_as_the_extent_goes() {
    const LONG: usize = 700;
    let ground = Ground::new();
    let thread = ground.thread(0);
    let memory = &ground.region.mapped().memory();
    let (mut whole, mut cut) = (0, 0);
    for number in 0..20 {
        let asked = asked_by(memory, || thread.set(&format!("key-{number}"), 1, LONG));
        let extent = thread
            .session()
            .log()
            .extents()
            .extent(STREAM)
            .expect("the extent of a new item");
        let at = |offset: usize| ground.region.mapped().segment(extent.segment) + offset;
        let lines = |from: usize, to: usize| at(from) / CACHE_LINE..at(to).div_ceil(CACHE_LINE);
        let end = extent.leased.min(extent.next + LONG);
        assert!(lines(extent.next, end).all(|line| asked.contains(&line)), "item {number}");
        // As after any item, so that the next one may be the first of the next extent.
        let after = lines(extent.leased.max(extent.next + 5 * CACHE_LINE), extent.leased + LONG);
        assert!(
            after.skip(1).all(|line| !asked.contains(&line)),
            "after item {number}, beyond the extent"
        );
        *(if end < extent.leased { &mut whole } else { &mut cut }) += 1;
    }
    assert!(whole > 5 && cut > 2, "{whole} places were in the extent, and {cut} not");
}
