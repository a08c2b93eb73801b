//! Changes by threads that die.

use crate::late::{Ground, dies, value};
use crate::layout::segment::Kind;

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
