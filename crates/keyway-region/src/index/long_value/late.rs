//! What a get of a long value asks for. Wrong are: lines for which the copy waits one after the other; lines that are not read.

use crate::late::{Ground, value};
use crate::memory::CACHE_LINE;
use crate::memory::tests::asked_by;

/// Lines after an item that may be asked for: its key may be shorter than expected.
const AFTER: usize = 3;

#[test]
fn all_of_a_long_item_is_asked_for_whatever_the_last_one_was_and_no_more() {
    let ground = Ground::new();
    let (thread, region) = (ground.thread(0), &ground.region);
    for len in [100, 2_100, 3_000, 3_000, 5_000, 2_100, 100, 5_000, 5_000] {
        let key = format!("key-{len}");
        thread.set(&key, 1, len);
        let (place, _, seen) = ground.item(&key).expect("it was stored");
        let asked = asked_by(region.mapped().memory(), || {
            assert_eq!(thread.plain_get(&key), Some(value(&key, 1, len)));
        });
        let end = seen.at + seen.header.size();
        let is_asked = |at: usize| asked.contains(&(at / CACHE_LINE));
        assert!((seen.at..end).all(|at| len < 200 || is_asked(at)), "the item of {len} bytes");
        let after = end + AFTER * CACHE_LINE;
        assert!(!(after..after + 8_192).any(is_asked), "after the item of {len} bytes");
        let hint = region.directory().hint_at(place.bucket).expect("a sound directory");
        assert_eq!(is_asked(hint), len > 200, "the hint of the item of {len} bytes");
    }
}
