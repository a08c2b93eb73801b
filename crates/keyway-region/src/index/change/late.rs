//! Changes by threads that die, or whose caller panics.

use crate::atomics::Relaxed;
use crate::late::{Ground, dies, value};
use crate::layout::segment::Kind;
use crate::layout::session::OPERATION;
use crate::sink::{Placed, Target};
use crate::verbs::{Get, Item};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn an_item_that_a_dead_thread_was_about_to_replace_lives() {
    for access in 1.. {
        let ground = Ground::new();
        let (writer, late) = (ground.thread(0), ground.thread(1));
        writer.set("key", 1, 20);
        writer.release();
        let appends = || assert!(late.append("key", b"more").is_ok());
        let died = dies(access, appends);
        if died {
            late.forget();
            ground.dies(1);
        } else {
            late.release();
        }
        writer.upkeep();
        for segment in ground.segments(Kind::Open) {
            writer.compact(ground.victim(segment));
        }
        let (_, found) = writer
            .get("key")
            .unwrap_or_else(|| panic!("dead at access {access}: the item is gone"));
        let (old, new) = (value("key", 1, 20), [&value("key", 1, 20)[..], b"more"].concat());
        assert!(found == old || found == new, "dead at access {access}: {found:?}");
        ground.is_sound();
        if !died {
            break;
        }
    }
}

/// Memory of a caller who panics when an item is found.
struct Panics;

impl Target for Panics {
    fn make_room(&mut self, _: &Item) -> bool {
        panic!("as a test wants it")
    }

    fn room(&mut self) -> &mut [MaybeUninit<u8>] {
        &mut []
    }
}

#[test]
fn a_caller_that_panics_in_a_change_leaves_nothing_of_it() {
    let ground = Ground::new();
    let writer = ground.thread(0);
    writer.set("key", 1, 20);
    let how = Get {
        value: true,
        exptime: Some(100),
        ..Get::default()
    };
    let now = ground.now();
    let gets = || writer.session_mut().get(b"key", &how, now, &mut Placed::new(&mut Panics));
    assert!(catch_unwind(AssertUnwindSafe(gets)).is_err());
    let session = writer.session();
    let thread = session.thread().slot();
    let held = [&thread.writing, &thread.hazards[OPERATION]].map(|word| word.load(Relaxed));
    assert_eq!(held, [0, 0]);
    drop(session);
    writer.has("key", 1, 20, 0);
}
