//! The region's clock, with the machine's clocks set by the test. Its enemy: Unix time that is wrong in one process, is set forward and back, or was
//! another one in the last boot; two processes that begin a boot at once; a region that is older than its expiries have bits.
//! Guards: P16

use crate::private;
use keyway_region::layout::superblock::ClockWord;
use keyway_region::verbs::{Get, RELATIVE_EXPTIME_MAX, Store};
use keyway_region::{Limits, Moment, Region, Session, seconds_of};
use private::{Page, UNIX_S};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// In which [`private::region`] makes its regions.
const FIRST_BOOT: [u64; 2] = [4, 5];
const NEXT_BOOT: [u64; 2] = [6, 7];
const YEAR_S: i64 = 31_557_600;

struct World {
    region: Arc<Region>,
    session: Session,
    _pages: Vec<Page>,
}

impl World {
    fn new() -> Self {
        let (pages, region) = private::region(2 << 20);
        let process = region.recovery().attach(0, 1, UNIX_S);
        region.limits().write(&Limits {
            item_size_max: 1 << 19,
            evict: true,
            ..Limits::default()
        });
        let session = region.session(process).expect("a slot");
        Self {
            region,
            session,
            _pages: pages,
        }
    }

    fn set(&mut self, key: &str, exptime: i64, now: Moment) {
        let how = Store {
            exptime,
            ..Store::default()
        };
        let now = self.region.clock().tick(now);
        self.session
            .store(key.as_bytes(), b"value", &how, now)
            .expect("there is room");
    }

    /// Seconds left of an item that is there; `None` of it never expires.
    fn ttl(&mut self, key: &str, now: Moment) -> Option<Option<u32>> {
        let now = self.region.clock().tick(now);
        let mut out = Vec::new();
        let found = self.session.get(key.as_bytes(), &Get::default(), now, &mut out);
        found.expect("a good key").map(|item| item.ttl_s)
    }

    fn has(&mut self, key: &str, now: Moment) -> bool {
        self.ttl(key, now).is_some()
    }
}

/// A moment at which the boot clock says this and Unix time that, both seconds after the creation.
fn at(boot_s: i64, unix_s: i64) -> Moment {
    Moment {
        boot: Moment::from_secs(UNIX_S + boot_s).boot,
        unix: Moment::from_secs(UNIX_S + unix_s).unix,
    }
}

#[test]
fn unix_time_moves_nothing_within_a_boot() {
    let mut world = World::new();
    let start = world.region.clock().tick(at(0, 0));
    world.set("short", 5, at(0, 0));
    world.set("long", 5000, at(0, 0));
    // A year ahead, an hour back, and as it was: each notes that it is there.
    for (boot_s, off) in [(1, YEAR_S), (2, -3600), (3, 0), (4, YEAR_S)] {
        let now = at(boot_s, boot_s + off);
        assert!(!world.region.clock().start_clock(FIRST_BOOT, now));
        assert!(world.region.restarts().begin_use(FIRST_BOOT, now), "the same boot");
        world.region.clock().note_use(now);
        assert_eq!(i64::from(world.region.clock().tick(now) - start), boot_s);
        assert!(world.has("short", now) && world.has("long", now), "{boot_s} s");
    }
    assert!(!world.has("short", at(5, 5)) && !world.has("short", at(6, YEAR_S)) && world.has("long", at(6, YEAR_S)));
    let later = at(4000, 4000 - 3600);
    assert_eq!(world.ttl("long", later), Some(Some(1000)));
}

#[test]
fn a_unix_time_is_translated_at_the_call_by_the_callers_clock() {
    let mut world = World::new();
    for off in [0, YEAR_S, -3600] {
        let own = at(10, 10 + off);
        world.session.set_wall_clock(own);
        let exptime = own.unix_s() + 60;
        assert!(exptime > RELATIVE_EXPTIME_MAX);
        world.set("key", exptime, own);
        assert_eq!(world.ttl("key", at(10, 10)), Some(Some(60)), "{off} s off");
        assert!(world.has("key", at(69, YEAR_S)) && !world.has("key", at(70, 70)));
        // One that is over is over.
        world.set("over", own.unix_s() - 1, own);
        assert!(!world.has("over", own));
    }
    // Its second begins with that of Unix time, whatever is between two readings.
    let unix = Duration::from_millis(Moment::from_secs(UNIX_S + 20).unix.as_secs() * 1000 + 999);
    for later_ms in [0, 400] {
        let own = Moment {
            unix,
            boot: unix + Duration::from_millis(later_ms),
        };
        world.session.set_wall_clock(own);
        world.set("key", UNIX_S + 60, at(20, 20));
        assert_eq!(world.ttl("key", at(20, 20)), Some(Some(40)));
    }
}

#[test]
fn no_time_is_too_late_whatever_the_wall_clock_says() {
    let mut world = World::new();
    // A wall clock that was set to 1970: an earlier time than the region's.
    let own = Moment {
        unix: Duration::from_secs(1),
        ..at(10, 0)
    };
    world.session.set_wall_clock(own);
    for exptime in [i64::MAX, i64::MAX - 1, i64::MAX / 2] {
        world.set("key", exptime, own);
        assert!(
            world.has("key", at(10, 10)) && world.has("key", at(YEAR_S, YEAR_S)),
            "{exptime}"
        );
    }
    world.set("key", i64::MIN, own);
    assert!(!world.has("key", at(10, 10)));
    // Nor for a boot that begins with such a clock.
    let far = Moment {
        boot: Duration::from_secs(7),
        unix: Duration::new(u64::MAX / 2, 999_999_999),
    };
    assert!(world.region.clock().start_clock(NEXT_BOOT, far));
    let _ = world.region.clock().tick(far);
}

#[test]
fn a_delayed_flush_begins_whichever_clock_is_off() {
    let mut world = World::new();
    world.set("key", 0, at(0, 0));
    let now = world.region.clock().tick(at(1, YEAR_S));
    world.session.flush_all(5, now).expect("epochs are left");
    assert_eq!(world.region.flushes().flush_at_s(), Some(seconds_of(now) + 5));
    assert!(world.has("key", at(5, -3600)) && !world.has("key", at(6, -3600)));
    world.set("later", 0, at(7, 7));
    assert!(world.has("later", at(8, 8)));
}

#[test]
fn the_clock_goes_on_in_the_next_boot_and_never_goes_back() {
    // Unix seconds after the creation in the next boot, and what is left of 1000 s that were set 100 s before the last note.
    for (unix_s, left) in [(100, 900), (300, 700), (1050, 0), (-5000, 900), (YEAR_S, 0)] {
        let mut world = World::new();
        world.set("key", 1000, at(0, 0));
        world.set("over", 50, at(0, 0));
        world.region.clock().note_use(at(100, 100));
        assert!(!world.has("over", at(100, 100)));
        // The machine has just booted.
        let mut now = Moment {
            boot: Duration::from_millis(12_345),
            unix: at(0, unix_s).unix,
        };
        assert!(world.region.clock().start_clock(NEXT_BOOT, now) && !world.region.clock().start_clock(NEXT_BOOT, now));
        assert!(!world.region.restarts().begin_use(NEXT_BOOT, now), "another boot");
        let ttl = world.ttl("key", now).map(|ttl| ttl.expect("it expires"));
        assert_eq!(ttl.unwrap_or(0), left, "{unix_s} s");
        assert!(!world.has("over", now), "what was over stays over");
        now.boot += Duration::from_secs(u64::from(left));
        now.unix = at(0, -7 * YEAR_S).unix;
        assert!(!world.has("key", now));
    }
}

#[test]
fn the_greatest_note_counts() {
    let world = World::new();
    for (boot_s, unix_s) in [(100, 100), (50, 50), (70, YEAR_S)] {
        world.region.clock().note_use(at(boot_s, unix_s));
    }
    let seen = world.region.clock().seen();
    assert_eq!(i64::from(seen.unix_s()), UNIX_S + 100);
    assert_eq!(u64::from(seen.clock_s()), seconds_of(world.region.clock().tick(at(100, 0))));
    assert_eq!(world.region.clock().clock_error_s(at(160, 160)), 0);
    assert_eq!(
        world.region.clock().clock_error_s(at(160 + YEAR_S, 160)),
        YEAR_S.unsigned_abs()
    );
    assert_eq!(world.region.clock().clock_error_s(at(160 - 3600, 160)), 3600);
}

#[test]
fn two_processes_that_begin_a_boot_at_once_have_one_clock() {
    for round in 0..200 {
        let world = World::new();
        let now = Duration::from_secs(30 + round);
        let start = std::sync::Barrier::new(2);
        let stored: Vec<bool> = std::thread::scope(|scope| {
            let both = [0, 3600].map(|ahead_s| {
                let (region, start) = (&world.region, &start);
                let now = Moment {
                    boot: now,
                    unix: at(0, 500 + ahead_s).unix,
                };
                scope.spawn(move || {
                    start.wait();
                    let stored = region.clock().start_clock(NEXT_BOOT, now);
                    (stored, region.clock().tick(now))
                })
            });
            let [one, two] = both.map(|thread| thread.join().expect("no panic"));
            assert_eq!(one.1, two.1, "the same boot clock, the same tick");
            vec![one.0, two.0]
        });
        assert_eq!(stored.iter().filter(|stored| **stored).count(), 1, "{stored:?}");
    }
}

#[test]
fn a_boot_that_cannot_be_known_leaves_the_clock_alone_unless_it_would_go_back() {
    let world = World::new();
    world.region.clock().note_use(at(100, 100));
    assert!(!world.region.clock().start_clock([0, 0], at(150, YEAR_S)));
    // A boot clock that begins anew.
    let booted = Moment {
        boot: Duration::from_secs(20),
        unix: at(0, 200).unix,
    };
    assert!(world.region.clock().start_clock([0, 0], booted));
    assert_eq!(
        world.region.clock().tick(booted)
            - world.region.clock().tick(Moment {
                boot: Duration::from_secs(10),
                ..booted
            }),
        10
    );
    assert!(
        !world.region.clock().start_clock(NEXT_BOOT, booted),
        "who knows the boot goes by that, too"
    );
}

#[test]
fn items_expire_in_a_region_that_is_older_than_seventeen_years() {
    let mut world = World::new();
    world.set("far", at(0, 60 * YEAR_S).unix_s(), at(0, 0));
    for years in [1, 12, 13, 17, 18, 30, 55] {
        let now = |s: i64| at(years * YEAR_S + s, years * YEAR_S + s);
        world.session.set_wall_clock(now(0));
        world.set("ttl", 100, now(0));
        world.set("unix", now(100).unix_s(), now(0));
        assert!(world.has("ttl", now(80)) && world.has("unix", now(80)), "{years} years");
        assert!(!world.has("ttl", now(120)) && !world.has("unix", now(120)), "{years} years");
        assert!(world.has("far", now(0)), "{years} years");
    }
    assert!(!world.has("far", at(60 * YEAR_S + 120, 0)));
    // Behind the end of the clock nothing is over at once.
    let end = Moment {
        boot: Moment::from_secs(UNIX_S + 200 * YEAR_S).boot,
        unix: Duration::ZERO,
    };
    world.set("ttl", 1, end);
    assert!(world.has("ttl", end));
}

#[test]
fn words_hold_what_they_are_given() {
    for units in [0, 1, -1, (1 << 35) - 1, -(1 << 35)] {
        for boot in [0, 1, (1 << 28) - 1] {
            let word = ClockWord::new(boot, units);
            assert!(
                word.units() == units && word.is_of(boot) && !word.is_of(boot ^ 1),
                "{units} {boot}"
            );
        }
    }
    assert_eq!(ClockWord::boot([0, 0]), 0);
    assert_ne!(ClockWord::boot([0, 1]), ClockWord::boot([1, 0]));
    let world = World::new();
    assert!(ClockWord(world.region.mapped().superblock().clock.load(Relaxed)).is_of(ClockWord::boot(FIRST_BOOT)));
}
