//! Changes by threads that die.

use crate::late::{Ground, dies, value};
use crate::layout::segment::Kind;

#[test]
fn an_item_whose_overwriter_died_is_no_dead_one() {
    for access in 1.. {
        let ground = Ground::new();
        let (writer, late) = (ground.thread(0), ground.thread(1));
        writer.set("key", 1, 20);
        writer.release();
        let died = dies(access, || late.set("key", 2, 20));
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
        let found = writer.get("key").map(|(_, found)| found);
        assert!(
            found == Some(value("key", 1, 20)) || found == Some(value("key", 2, 20)),
            "dead at access {access}: {found:?}"
        );
        ground.is_sound();
        if !died {
            break;
        }
    }
}
