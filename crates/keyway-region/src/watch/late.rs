//! Events of a thread that has died, whose slot the next thread takes.

use crate::atomics::Relaxed;
use crate::late::Ground;

#[test]
fn an_event_that_a_dead_thread_did_not_write_is_counted_as_lost_by_the_next_one_in_its_slot() {
    let ground = Ground::new();
    let dead = ground.thread(0);
    let slot = {
        let session = dead.session();
        // It had said that its next event has no stamp below this, and its slot was vacated without a look at that.
        session.thread().slot().event.store(7, Relaxed);
        session.thread().leave_slot();
        session.thread().owner().slot
    };
    dead.forget();
    let lost = || ground.region.threads().counters().events_lost;
    assert_eq!(lost(), 0);
    let next = ground.thread(0);
    let session = next.session();
    assert_eq!(session.thread().owner().slot, slot);
    assert_eq!(
        (session.thread().slot().event.load(Relaxed), lost()),
        (0, 1),
        "a watcher would wait for it"
    );
}
