//! Plain gets, and look-ups of a key by its hash, by threads that are late: overtaken by a change, a recycler, a split, growth, or by
//! another thread's suspicion.

use crate::late::{Ground, SEGMENTS, Thread, WORDS_COME_ROUND, overtaken, recycled, value};
use crate::layout::segment::Kind;

const LEN: usize = 150;

/// Gets a key that has its first value before, and checks what comes if `change` happens before each access in turn: the first
/// value, or what `after` says. Returns how many accesses there are.
fn overtaken_everywhere(change: impl Fn(&Ground, &Thread) + Clone + 'static, after: Option<u8>) -> u64 {
    for access in 1.. {
        let ground = std::rc::Rc::new(Ground::new());
        let (late, other) = (ground.thread(0), ground.thread(1));
        other.set("key", 1, LEN);
        let (of, change) = (ground.clone(), change.clone());
        let (found, happened) = overtaken(access, move || change(&of, &other), || late.plain_get("key"));
        let before = Some(value("key", 1, LEN));
        let after = after.map(|number| value("key", number, LEN));
        assert!(
            found == before || happened && found == after,
            "overtaken at access {access}: {found:?}"
        );
        if !happened {
            return access;
        }
        assert_eq!(late.plain_get("key"), after, "after it was overtaken at access {access}");
        ground.is_sound();
    }
    unreachable!("a get ends")
}

#[test]
fn a_get_that_is_overtaken_returns_the_value_before_or_after() {
    assert!(
        overtaken_everywhere(|_, other| other.set("key", 2, LEN), Some(2)) > 8,
        "it reads more words"
    );
    overtaken_everywhere(|_, other| other.delete("key"), None);
    overtaken_everywhere(|_, other| other.flush(), None);
    let replaced = |_: &Ground, other: &Thread| {
        other.delete("key");
        other.set("key", 2, LEN);
    };
    overtaken_everywhere(replaced, Some(2));
    let emptied = |ground: &Ground, other: &Thread| {
        other.release();
        other.compact(ground.victim(ground.segment_of("key")));
    };
    overtaken_everywhere(emptied, Some(1));
    let grown = |ground: &Ground, other: &Thread| assert!(other.grow_index(40, ground.now()), "no room for the index");
    overtaken_everywhere(grown, Some(1));
}

/// The word comes back as another key's: its segment was recycled so often that the generation in the word is the same again.
#[test]
fn bytes_of_another_life_of_the_segment_are_never_returned() {
    let reused = |ground: &Ground, other: &Thread| {
        let segment = ground.segment_of("key");
        other.delete("key");
        other.release();
        other.compact(ground.victim(segment));
        recycled(&ground.region, segment, WORDS_COME_ROUND - 1);
        // Other keys' items fill every segment, that one too.
        for n in 0..2_000 {
            if ground.segments(Kind::Free).is_empty() || other.store(&format!("other-{n}"), 9, LEN).is_err() {
                break;
            }
        }
    };
    overtaken_everywhere(reused, None);
}

#[test]
fn a_session_that_is_fenced_meanwhile_ends_its_get_with_an_error() {
    for access in 1.. {
        let ground = std::rc::Rc::new(Ground::new());
        let (late, other) = (ground.thread(0), ground.thread(1));
        other.set("key", 1, LEN);
        let of = ground.clone();
        let fences = move || {
            of.seems_dead(0);
            assert_eq!(of.region.recovery().recover(), 0, "no death is certain");
            other.set("key", 2, LEN);
        };
        let (found, happened) = overtaken(access, fences, || late.plain_get("key"));
        let found = found.expect("the key always has a value");
        assert!(found == value("key", 1, LEN) || happened && found == value("key", 2, LEN));
        if !happened {
            break;
        }
        assert!(late.session().is_fenced(), "fenced before access {access}");
        assert_eq!(
            late.plain_get("key"),
            Some(value("key", 2, LEN)),
            "its gets need nothing of its own"
        );
        ground.is_sound();
    }
}

/// Another process has more memory brought into use, and puts the item there: this one does not know the segment yet.
#[test]
fn a_process_that_is_outgrown_meanwhile_finds_what_is_in_the_new_memory() {
    for access in 1.. {
        let small = Ground::of_segments(SEGMENTS / 2);
        let late = small.thread(0);
        let outgrown = small.mapped_again();
        let other = outgrown.thread(1);
        other.set("key", 1, LEN);
        let grows = move || {
            outgrown.region.mapped().grow(SEGMENTS).expect("there is memory");
            let is_new = |outgrown: &Ground| outgrown.segment_of("key") >= SEGMENTS / 2;
            for n in 0..40 {
                other.store(&format!("other-{n}"), 9, crate::late::WHOLE).expect("room");
                other.set("key", 2, LEN);
                if is_new(&outgrown) {
                    break;
                }
            }
            assert!(is_new(&outgrown), "the item is in the memory that was there before");
        };
        let (found, happened) = overtaken(access, grows, || late.plain_get("key"));
        let found = found.expect("the key always has a value");
        assert!(found == value("key", 1, LEN) || happened && found == value("key", 2, LEN));
        if !happened {
            break;
        }
        assert_eq!(
            late.plain_get("key"),
            Some(value("key", 2, LEN)),
            "outgrown before access {access}"
        );
    }
}

#[test]
fn the_key_of_a_hash_is_found_while_its_item_is_replaced() {
    for access in 1.. {
        let ground = Ground::new();
        let other = ground.thread(1);
        other.set("key", 1, LEN);
        let (region, hash, now) = (ground.region.clone(), ground.hash("key"), ground.now());
        let mut key = Vec::with_capacity(500);
        let (found, happened) = overtaken(
            access,
            move || other.set("key", 2, LEN),
            || region.index().key_of_hash(hash, now, &mut key),
        );
        assert!(found && key == b"key", "overtaken at access {access}");
        if !happened {
            break;
        }
    }
}
