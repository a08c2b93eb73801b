//! Flushes by threads that are late.

use crate::late::{Ground, overtaken};

#[test]
fn what_a_flush_has_taken_does_not_rise_again_by_one_that_is_late() {
    for access in 1.. {
        let ground = Ground::new();
        let (writer, late) = (ground.thread(0), ground.thread(1));
        let other = writer.clone();
        let flushes = move || {
            other.flush();
            other.set("key", 1, 20);
            other.flush();
        };
        let (_, happened) = overtaken(access, flushes, || late.flush());
        if !happened {
            break;
        }
        assert!(
            writer.get("key").is_none(),
            "overtaken at access {access}: what was flushed is there"
        );
    }
}
