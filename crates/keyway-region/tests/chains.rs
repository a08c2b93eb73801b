//! Two threads that free one chain, each stopped where the other must not surprise it. Its enemy: a segment that is freed for a value
//! that has had it before.
//!
//! One thread deletes a large value, and stops between two accesses; another one finds the value's segments without a head, and stops
//! between its look at hazard pointers and the next generation; the first goes on by a few accesses; the second ends, a third value gets the
//! freed segments, and the first ends. That value must be whole.
//! Guards: P3

#[path = "it/private/mod.rs"]
mod private;

use keyway_region::observe::{Access, Event, install};
use keyway_region::verbs::{Delete, Get, Store};
use keyway_region::{Limits, Session, check};
use private::UNIX_S;
use std::cell::{Cell, RefCell};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Bytes of the values: several segments each.
const LEN: usize = 40_000;

/// How a thread is stopped: it says so, and waits to be told at which access it stops next.
struct Stops {
    next: Cell<usize>,
    seen: RefCell<Vec<Access>>,
    says: Sender<()>,
    told: Receiver<usize>,
}

thread_local! {
    static STOPS: RefCell<Option<Stops>> = const { RefCell::new(None) };
}

fn observer(event: Event) {
    let Event::Before(access) = event else { return };
    STOPS.with_borrow(|stops| {
        let Some(stops) = stops else { return };
        let number = stops.seen.borrow().len();
        if number == stops.next.get() {
            stops.says.send(()).expect("the test is there");
            stops.next.set(stops.told.recv().unwrap_or(usize::MAX));
        }
        stops.seen.borrow_mut().push(access);
    });
}

/// A thread that is stopped between accesses.
struct Stopped<'scope> {
    thread: Option<std::thread::ScopedJoinHandle<'scope, Vec<Access>>>,
    says: Receiver<()>,
    tells: Sender<usize>,
}

impl<'scope> Stopped<'scope> {
    /// Begins the work, up to the access of this number. Numbers count from the work's first access.
    fn new<'env>(scope: &'scope std::thread::Scope<'scope, 'env>, next: usize, work: impl FnOnce() + Send + 'scope) -> Self {
        let (says, received) = channel();
        let (tells, told) = channel();
        let thread = scope.spawn(move || {
            STOPS.set(Some(Stops {
                next: Cell::new(next),
                seen: RefCell::default(),
                says,
                told,
            }));
            install(Some(observer));
            work();
            install(None);
            STOPS.take().map(|stops| stops.seen.take()).unwrap_or_default()
        });
        let stopped = Self {
            thread: Some(thread),
            says: received,
            tells,
        };
        // An error: it has ended.
        let _ = stopped.says.recv();
        stopped
    }

    /// Lets it go on up to this access.
    fn go_on(&self, next: usize) {
        if self.tells.send(next).is_ok() {
            let _ = self.says.recv();
        }
    }

    /// Lets it come to its end; what it did.
    fn end(mut self) -> Vec<Access> {
        self.go_on(usize::MAX);
        self.thread
            .take()
            .map(|thread| thread.join().expect("no panic"))
            .unwrap_or_default()
    }
}

/// What the two threads did, and what was wrong at the end.
fn try_once(first: usize, again: usize, second: usize) -> (Vec<Access>, Vec<Access>, Option<String>) {
    let (_pages, region) = private::region(2 << 20);
    let process = region.recovery().attach(0, 1, UNIX_S);
    region.limits().write(&Limits {
        item_size_max: 1 << 20,
        evict: false,
        ..Limits::default()
    });
    let session = || region.session(process).expect("a slot");
    let (mut deletes, mut sweeps, mut writes) = (session(), session(), session());
    let now = region.clock().tick(keyway_region::Moment::from_secs(UNIX_S));
    let put = |session: &mut Session, key: &[u8], byte: u8| {
        let stored = session.store(key, &vec![byte; LEN], &Store::default(), now);
        stored.expect("room");
    };
    put(&mut writes, b"first", 1);
    // A thread that ends without giving its slot back: every segment is to be looked at.
    let mut lost = session();
    let id = lost.id();
    lost.abandon();
    assert!(region.recovery().take_back_own(process, id));
    let did = std::thread::scope(|scope| {
        let deleter = Stopped::new(scope, first, || {
            deletes.delete(b"first", &Delete::default(), now).expect("a good key");
        });
        let sweeper = Stopped::new(scope, second, || sweeps.upkeep(now));
        if again != first {
            deleter.go_on(again);
        }
        let swept = sweeper.end();
        put(&mut writes, b"third", 3);
        (deleter.end(), swept)
    });
    let mut value = Vec::new();
    let how = Get {
        value: true,
        ..Get::default()
    };
    let found = writes.get(b"third", &how, now, &mut value).expect("a good key").is_some();
    let mut wrong = (!found || value != vec![3; LEN]).then(|| format!("the value is lost: found {found}, {} bytes", value.len()));
    drop((deletes, sweeps, writes));
    wrong = wrong.or_else(|| check::check(&region, |_| {}).problems.first().cloned());
    (did.0, did.1, wrong)
}

#[test]
fn a_value_keeps_the_segments_that_another_ones_deleter_and_sweeper_both_freed() {
    let (deleted, _, _) = try_once(usize::MAX, usize::MAX, usize::MAX);
    let exchanges = deleted.iter().enumerate().filter(|(_, access)| **access == Access::Exchange);
    let mut tried = 0;
    let mut wrong = Vec::new();
    for (first, _) in exchanges {
        let (_, swept, _) = try_once(first, first, usize::MAX);
        // The first store after a fence: what the hazard pointers said is about to be acted upon.
        let mut is_after_fence = false;
        let mut stops = Vec::new();
        for (number, access) in swept.iter().enumerate() {
            match access {
                Access::Fence => is_after_fence = true,
                Access::Store if is_after_fence => {
                    stops.push(number);
                    is_after_fence = false;
                }
                _ => {}
            }
        }
        for second in stops.into_iter().take(4) {
            for again in first + 1..first + 9 {
                tried += 1;
                let (_, _, problem) = try_once(first, again, second);
                wrong.extend(problem.map(|problem| format!("stops at {first}, {second}, {again}: {problem}")));
            }
        }
    }
    assert!(tried > 20, "{tried} ways are too few");
    assert!(wrong.is_empty(), "{} of {tried}: {wrong:#?}", wrong.len());
}
