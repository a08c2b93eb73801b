//! The memory limit beside late threads, and threads that die.

use crate::atomics::Relaxed;
use crate::check;
use crate::late::{Ground, SEGMENTS, Thread, WHOLE, dies, overtaken};
use crate::layout::segment::Kind;

/// Segments that the limit keeps out of use.
const OUT: usize = 4;
/// Page sizes: a segment has several pages, and two segments share a page.
const PAGES: [usize; 2] = [4096, 32 << 10];
/// Seconds after which the pages of withdrawn segments are due.
const LATER_S: u32 = 10;

fn lower(thread: &Thread) {
    let allowed = thread.session().region().victims().lower(SEGMENTS - OUT, 0);
    assert!(allowed <= SEGMENTS - OUT, "{allowed} segments are needed");
}

fn lower_and_withdraw(thread: &Thread) {
    lower(thread);
    thread.shrink(0);
}

fn withdraw(thread: &Thread) {
    thread.shrink(0);
}

fn give_back(thread: &Thread) {
    thread.shrink(LATER_S);
}

fn lower_and_give_back(thread: &Thread) {
    lower_and_withdraw(thread);
    give_back(thread);
}

fn grow(thread: &Thread) {
    thread.session().region().mapped().grow(SEGMENTS).expect("there is memory");
}

/// Takes one segment into use; others stay out of use.
fn add_one(thread: &Thread) {
    let region = thread.session().region().clone();
    region.mapped().grow(region.mapped().allowed() + 1).expect("there is memory");
}

fn item(i: usize) -> String {
    format!("item {i}")
}

fn add_and_use(thread: &Thread) {
    grow(thread);
    // The first segments are used first, so that the reserve does not consist of those that were out of use.
    thread.session().region().mapped().superblock().free_hint.store(0, Relaxed);
    for i in 0..SEGMENTS {
        let _ = thread.store(&item(i), 1, WHOLE);
    }
}

fn add_and_lower(thread: &Thread) {
    grow(thread);
    lower_and_give_back(thread);
}

/// Several times: each time other segments are out of use, and in the end perhaps the same ones.
fn add_and_lower_often(thread: &Thread) {
    for _ in 0..3 {
        add_and_lower(thread);
    }
}

/// Only a segment out of use may be without pages, and it has no item.
fn pages_are_where_they_must_be(ground: &Ground, when: &str) {
    let withdrawn = ground.segments(Kind::Withdrawn);
    let without = ground.without_pages();
    assert!(
        without.is_subset(&withdrawn),
        "{when}: {without:?} have no pages, {withdrawn:?} are out of use"
    );
    let used = (0..SEGMENTS).filter_map(|i| Some(ground.item(&item(i))?.2.segment));
    for segment in used {
        assert!(
            !withdrawn.contains(&segment),
            "{when}: {segment} is out of use, and has an item"
        );
    }
}

/// Segments out of use that share their pages with no segment in use.
fn in_whole_pages(ground: &Ground) -> usize {
    let (together, withdrawn) = (ground.region.mapped().segments_of_a_page(), ground.segments(Kind::Withdrawn));
    let is_whole = |segment: &&usize| {
        let first = **segment / together * together;
        (first..first + together).all(|segment| withdrawn.contains(&segment))
    };
    withdrawn.iter().filter(is_whole).count()
}

/// Reaches the limit, and lifts it again; checks all counts.
fn goes_down_and_up(ground: &Ground, thread: &Thread, when: &str) {
    let counts = || check::check(&ground.region, |_| {}).counts;
    lower(thread);
    for round in 2..5 {
        thread.shrink(round * LATER_S);
        pages_are_where_they_must_be(ground, when);
    }
    let down = counts();
    assert_eq!((down.withdrawn, down.withdrawn_counted), (OUT, OUT as u64), "{when}");
    let due = in_whole_pages(ground);
    assert_eq!(ground.without_pages().len(), due, "{when}");
    // The count may be off by one until it approaches the other one.
    let counted = ground.region.mapped().given_back();
    assert!(
        counted == due || due < OUT && counted < OUT,
        "{when}: {counted} counted, {due} given back"
    );
    assert_eq!(ground.region.mapped().is_shrinking(), due < OUT, "{when}");
    grow(thread);
    assert!(ground.without_pages().is_empty(), "{when}");
    thread.shrink(5 * LATER_S);
    let up = counts();
    assert_eq!(
        (up.withdrawn, up.withdrawn_counted, up.free_counted),
        (0, 0, up.free as u64),
        "{when}"
    );
    assert_eq!(ground.region.mapped().given_back(), 0, "{when}");
    ground.is_sound();
}

type Act = fn(&Thread);

/// Runs `late`, overtaken by `other` at each of its accesses in turn.
fn beside(before: Act, late: Act, other: Act, then: impl Fn(&Ground, &str)) {
    for page_size in PAGES {
        for access in 1.. {
            let ground = Ground::of_pages(page_size);
            let (sleeper, overtaker) = (ground.evictor(0), ground.evictor(1));
            before(&sleeper);
            let by = overtaker.clone();
            let ((), happened) = overtaken(access, move || other(&by), || late(&sleeper));
            let when = format!("pages of {page_size}, overtaken at access {access}");
            pages_are_where_they_must_be(&ground, &when);
            ground.is_sound();
            then(&ground, &when);
            overtaker.release();
            sleeper.release();
            goes_down_and_up(&ground, &overtaker, &when);
            if !happened {
                break;
            }
        }
    }
}

/// A thread that dies at each of its accesses in turn loses nothing. Either the end of its session is known, or it had none.
fn one_dies(before: Act, dying: Act, had_session: bool) {
    for page_size in PAGES {
        for access in 1.. {
            let ground = Ground::of_pages(page_size);
            let (dead, heir) = (ground.evictor(1), ground.evictor(0));
            before(&dead);
            let died = dies(access, || dying(&dead));
            dead.forget();
            if had_session {
                ground.dies(1);
            }
            let when = format!("pages of {page_size}, died at access {access}");
            pages_are_where_they_must_be(&ground, &when);
            for _ in 0..4 {
                heir.upkeep();
                pages_are_where_they_must_be(&ground, &when);
            }
            let counts = check::check(&ground.region, |_| {}).counts;
            let withheld = ground.region.mapped().withheld();
            assert_eq!(
                (counts.withdrawn, counts.withdrawn_counted),
                (withheld, withheld as u64),
                "{when}"
            );
            goes_down_and_up(&ground, &heir, &when);
            if !died {
                break;
            }
        }
    }
}

#[test]
fn a_late_raiser_frees_no_segment_without_pages() {
    for other in [add_and_lower, add_and_lower_often, give_back, add_and_use] {
        beside(lower_and_give_back, grow, other, |_, _| ());
    }
}

#[test]
fn a_late_raiser_of_a_part_frees_no_segment_without_pages() {
    for other in [add_one, grow, add_and_use, add_and_lower, lower_and_give_back] {
        beside(lower_and_give_back, add_one, other, |_, _| ());
        beside(lower_and_withdraw, add_one, other, |_, _| ());
    }
}

#[test]
fn what_a_raiser_takes_into_use_is_not_withdrawn_again() {
    beside(lower_and_give_back, grow, withdraw, |ground, when| {
        assert!(ground.segments(Kind::Withdrawn).is_empty(), "{when}");
    });
}

#[test]
fn one_that_gives_back_late_takes_no_pages_that_are_in_use() {
    for other in [grow, add_and_use, add_one, give_back, add_and_lower] {
        beside(lower_and_withdraw, give_back, other, |_, _| ());
    }
}

#[test]
fn one_that_withdraws_late_withdraws_no_more_and_no_less() {
    for other in [withdraw, grow, add_and_use] {
        beside(lower, withdraw, other, |ground, when| {
            assert!(ground.without_pages().is_empty(), "{when}: given back at once");
            let withdrawn = ground.segments(Kind::Withdrawn).len();
            assert!(withdrawn <= OUT, "{when}: {withdrawn} are out of use");
        });
    }
}

#[test]
fn one_that_dies_on_the_way_down_or_up_loses_nothing() {
    one_dies(lower, withdraw, true);
    one_dies(lower_and_withdraw, give_back, true);
    one_dies(lower_and_give_back, grow, true);
    one_dies(lower_and_withdraw, add_one, true);
}

#[test]
fn one_without_a_session_that_dies_on_the_way_up_loses_nothing() {
    one_dies(lower_and_give_back, grow, false);
    one_dies(lower_and_withdraw, add_one, false);
}

#[test]
fn a_count_that_a_dead_raiser_left_too_high_is_counted_again() {
    let ground = Ground::new();
    let thread = ground.evictor(0);
    thread.shrink(0);
    let withdrawn = &ground.region.mapped().superblock().withdrawn;
    withdrawn.fetch_add(1, Relaxed);
    thread.upkeep();
    thread.upkeep();
    assert_eq!(withdrawn.load(Relaxed), 0);
}

#[test]
fn pages_that_come_back_with_a_neighbour_do_not_count_as_given_back() {
    let ground = Ground::of_pages(PAGES[1]);
    let thread = ground.evictor(0);
    lower_and_give_back(&thread);
    let without = ground.without_pages().len();
    add_one(&thread);
    assert_eq!(ground.without_pages().len(), without - 2);
    assert_eq!(ground.region.mapped().given_back(), without - 2);
}

#[test]
fn one_that_reclaims_late_leaves_a_segment_out_of_use_as_it_is() {
    let ground = Ground::new();
    let thread = ground.evictor(0);
    lower_and_give_back(&thread);
    for segment in ground.segments(Kind::Withdrawn) {
        let state = ground.state(segment);
        assert!(!thread.compact(ground.victim(segment)));
        assert_eq!(ground.state(segment), state);
    }
}
