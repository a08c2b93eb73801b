//! Words that all processes share, of any value, while sessions write, watch and tidy up. Its enemy: arithmetic on such a word that
//! overflows, an offset that is made of it and was not looked at, and a loop that it keeps from its end. What is found here ends a
//! program that was built with checks.
//! Guards: P6

use crate::private;
use harness::Random;
use keyway_region::layout::hot::By;
use keyway_region::layout::latency::{Door, Verb};
use keyway_region::layout::trail::Fate;
use keyway_region::layout::watch;
use keyway_region::verbs::{Arithmetic, Delete, Get, Store, StoreMode};
use keyway_region::{Limits, Moment, Region, Session, TrailPlace, Watching};
use private::{Page, UNIX_S};
use std::sync::Arc;
use std::time::Duration;

const MEMORY: u64 = 2 << 20;
const REGIONS: u64 = 60;
/// Words that get another value in each region, one after the other.
const WORDS: usize = 40;
const VERBS: usize = 60;
const SESSIONS: usize = 3;
/// Where the words begin that are not fixed when a region is made.
const SHARED_AT: usize = 512;

struct World {
    region: Arc<Region>,
    sessions: Vec<Session>,
    watching: Watching,
    trail: TrailPlace,
    now: u32,
    /// after those that use it
    pages: Vec<Page>,
}

impl World {
    fn new(is_watched: bool) -> Self {
        let (pages, region) = private::region(MEMORY);
        let process = region.recovery().attach(0, 1, UNIX_S);
        region.limits().write(&Limits {
            item_size_max: 1 << 18,
            evict: true,
            ..Limits::default()
        });
        let now = region.clock().tick(Moment::from_secs(UNIX_S));
        let watching = Watching::new(region.watch());
        if is_watched {
            region.watch().want_events(watch::ALL, now);
        }
        region.trail().keep_trail(0, now);
        Self {
            sessions: (0..SESSIONS).map(|_| region.session(process).expect("a slot")).collect(),
            trail: region.trail().end_of_trail(),
            watching,
            now,
            region,
            pages,
        }
    }

    /// Any verb; only that it comes back counts.
    fn verb(&mut self, random: &mut Random) {
        let (session, region, now) = (&mut self.sessions[random.index(SESSIONS)], &self.region, self.now);
        let key = format!("key-{}", random.below(400));
        let key = key.as_bytes();
        let value = vec![b'1'; [0, 3, 30, 300, 3_000, 9_000, 40_000][random.index(7)]];
        let exptime = [0, 0, 1, 100, 1 << 33][random.index(5)];
        let stored = |mode, compare_cas| Store {
            mode,
            compare_cas,
            invalidate: true,
            ..Store::default()
        };
        match random.below(12) {
            0..=3 => {
                let _ = session.set(key, &value, 0, exptime, now);
            }
            4 => {
                let _ = session.store(key, b"12", &stored(StoreMode::Append, None), now);
            }
            5 => {
                let _ = session.store(key, &value, &stored(StoreMode::Set, Some(1)), now);
            }
            6 => {
                let how = Arithmetic {
                    vivify: Some((1, exptime)),
                    exptime: Some(exptime),
                    ..Arithmetic::default()
                };
                let _ = (session.incr(key, 1, now), session.arithmetic(key, &how, now));
            }
            7 => {
                let how = Delete {
                    invalidate: random.below(2) == 0,
                    ..Delete::default()
                };
                let _ = session.delete(key, &how, now);
            }
            8 => {
                let _ = session.touch(key, exptime, now);
            }
            9 => {
                let how = Get {
                    details: random.below(2) == 0,
                    ..*Get::VALUE
                };
                let _ = session.get(key, &how, now, &mut Vec::new());
            }
            10 => {
                let hash = region.mapped().hash(key);
                let _ = (
                    session.sampling().sample_get(hash, b"key-1", 7),
                    session.sampling().sample_set(hash),
                );
                session.region().trail().leave_trail(hash, Fate::Gone);
                session.note_latency(Door::Library, Verb::Get, random.next());
                session.emitter().emit_connection(b"type=test");
                session.note_hit(key, now);
            }
            _ => {
                if random.below(4) == 0 {
                    session.upkeep(now);
                    let _ = session.shrink(now);
                }
                session.release_extents();
            }
        }
    }

    /// All that reads or changes the region beside the verbs.
    fn tidy(&mut self, random: &mut Random) {
        let (region, now) = (&self.region, self.now);
        self.watching.poll(Duration::from_secs(random.below(100)), &mut |_| ());
        region.trail().follow_trail(&mut self.trail, &mut Vec::new());
        let mut cursor = Some(0);
        while let Some(at) = cursor {
            cursor = region.index().walk(at, 1000, now, |_, _| ());
        }
        let _ = region.hot().hot_snapshot().ranges(By::Gets, None);
        let _ = region
            .index()
            .key_of_hash(region.mapped().hash(b"key-1"), now, &mut Vec::with_capacity(600));
        let _ = region
            .hot()
            .hot_name(region.mapped().hash(b"key-1"), &mut Vec::with_capacity(600));
        let _ = (
            region.threads().counters(),
            region.latencies().sum(),
            region.victims().ages(now),
            region.overview().seated(),
        );
        let _ = (
            region.overview().segment_map(16),
            region.threads().sessions(),
            region.flushes().flush_at_s(),
        );
        let at = Moment::from_secs(UNIX_S);
        let _ = (region.clock().clock_error_s(at), region.clock().unix_set_by_s(at));
        let _ = (
            region.mapped().grow(region.mapped().segments()),
            region.victims().lower(region.mapped().segments() - 3, 1 << 17),
        );
        region.clock().note_use(at);
        region.hot().watch_hot(now);
        region.trail().keep_trail(0, now);
        region.changes().mend_stripes();
        region.recovery().recover();
        if random.below(8) == 0 {
            let _ = self.sessions[0].flush_all([0, 5][random.index(2)], now);
        }
    }

    /// Gives a word another value: mostly one that processes share to work together.
    fn scribble(&mut self, random: &mut Random) -> String {
        let layout = self.region.mapped().layout();
        let (head, end) = (layout.segments, layout.segment(self.region.mapped().segments()));
        let (from, len) = match random.below(8) {
            0 | 1 => (SHARED_AT, 4096 - SHARED_AT),
            2 => (layout.words, 16 * self.region.mapped().segments()),
            3 | 4 => (layout.headers, 64 * self.region.mapped().segments()),
            5 => (layout.threads, 1024 * SESSIONS),
            6 => (SHARED_AT, head - SHARED_AT),
            _ => (head, end - head),
        };
        let at = (from + random.index(len)) / 8;
        let word = private::words(&mut self.pages).nth(at).expect("a word in the memory");
        let before = *word;
        *word = match random.below(9) {
            0 => 0,
            1 => u64::MAX,
            2 => before ^ 1 << random.below(64),
            3 => before.wrapping_add(1),
            4 => before.wrapping_sub(1),
            5 => 1 << 63,
            6 => u64::MAX / 2,
            7 => random.next(),
            _ => before | 0xFFFF << (16 * random.below(4)),
        };
        format!("the word at {} was {before:#x} and is {:#x}", at * 8, *word)
    }
}

#[test]
fn no_word_ends_a_program_that_writes_and_tidies_up() {
    let seed = Random::seed_for("odd_words");
    for number in 0..REGIONS {
        let mut random = Random::new(seed).fork(number);
        let mut world = World::new(number % 2 == 0);
        let mut done = Vec::new();
        for _ in 0..WORDS {
            let played = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                for _ in 0..VERBS {
                    world.verb(&mut random);
                }
                world.tidy(&mut random);
            }));
            assert!(played.is_ok(), "region {number}, after {done:#?}");
            done.push(world.scribble(&mut random));
        }
    }
}
