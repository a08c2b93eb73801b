//! Recovery beside threads that are late.
//! Guards: P2

use crate::late::{Ground, overtaken};
use std::cell::Cell;
use std::rc::Rc;

#[test]
fn what_a_dead_process_left_is_taken_back_while_the_next_one_in_its_slot_sleeps() {
    let mut taken_back_by_others = 0;
    for access in 1.. {
        let ground = Ground::new();
        // Its thread exists, but does nothing any more.
        ground.thread(1).forget();
        let last = ground.region.mapped().tenant(1);
        let (region, is_taken_over) = (ground.region.clone(), Rc::new(Cell::new(false)));
        let seen = is_taken_over.clone();
        let recovers = move || {
            seen.set(region.mapped().tenant(1).tenancy != last.tenancy);
            region.recovery().recover();
            assert_eq!(
                region.threads().sessions(),
                usize::from(!seen.get()),
                "overtaken at access {access}"
            );
        };
        let (process, happened) = overtaken(access, recovers, || ground.region.recovery().take_over(&last, 7, 0));
        assert!(process.is_some());
        taken_back_by_others += usize::from(is_taken_over.get());
        if !happened {
            break;
        }
    }
    assert!(taken_back_by_others > 0, "it was never overtaken between its two steps");
}
