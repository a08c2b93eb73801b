//! The readiness probe: sets an item, gets it and deletes it, through the region, as every client's commands go.
//!
//! The key contains a space, which no text or meta command can have in a key, and 128 bits that come from a keyed hash with a random secret and
//! change with every probe, so that a client of the binary protocol or of the library cannot guess it. The item lives for microseconds.

use keyway_cache::server::ServerSession as _;
use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use keyway_cache::{Delete, Session};

/// How often an item that was just stored may be absent: another client may have flushed everything, or the region may have evicted it.
const TRIES: u32 = 3;
/// Seconds after which an item expires that a probe could not delete, because its process died.
const EXPTIME_S: i64 = 60;
/// Seconds after which such an item expires where nothing is evicted: it shares its segments with those that never expire. In
/// segments of its own class the probe would find the room of its earlier probes, when there is none for clients.
const EXPTIME_LONG_S: i64 = 30 * 24 * 60 * 60;

/// A probe's outcome is the answer for this long: requests that come faster cost no store.
const PROBE_EVERY: Duration = Duration::from_secs(1);

/// See the top of the file.
pub(crate) struct Prober {
    session: Session,
    /// keep the room that a probe has begun to fill for the next one. Where nothing is evicted, that room would hide that there is none for
    /// others
    keeps_room: bool,
    last: Option<(Instant, Result<(), String>)>,
    secret: [RandomState; 2],
    probes: u64,
}

impl Prober {
    pub(crate) fn new(session: Session, evicts: bool) -> Self {
        Self {
            session,
            keeps_room: evicts,
            last: None,
            secret: [RandomState::new(), RandomState::new()],
            probes: 0,
        }
    }

    /// Whether an item could be stored and read less than a second before `now`; otherwise why not, and what to do.
    pub(crate) fn ask(&mut self, now: Instant) -> Result<(), String> {
        match &self.last {
            Some((at, outcome)) if now.saturating_duration_since(*at) < PROBE_EVERY => outcome.clone(),
            _ => {
                let outcome = self.probe();
                self.last = Some((now, outcome.clone()));
                outcome
            }
        }
    }

    /// Probes now: whether an item can be stored and read; otherwise why not, and what to do.
    fn probe(&mut self) -> Result<(), String> {
        if self.session.is_held_up() {
            return Err("writes wait until the kernel door of a server that died stops answering, about a second".to_owned());
        }
        let outcome = self.try_out();
        if !self.keeps_room {
            self.session.release();
        }
        outcome
    }

    fn try_out(&mut self) -> Result<(), String> {
        for _ in 0..TRIES {
            let key = self.new_key();
            let exptime = if self.keeps_room { EXPTIME_S } else { EXPTIME_LONG_S };
            self.session
                .set(&key, &key, exptime)
                .map_err(|error| format!("the region cannot be written: {error}"))?;
            let found = self
                .session
                .get(&key)
                .map_err(|error| format!("the region cannot be read: {error}"))?;
            // It may have been flushed or evicted meanwhile.
            let _ = self.session.delete(&key, &Delete::default());
            match found {
                Some(value) if value == key => return Ok(()),
                Some(_) => {
                    return Err("an item has another value than the one stored: run `keyway check` on the region".to_owned());
                }
                None => {}
            }
        }
        Err(format!(
            "an item that was stored a moment ago is gone, {TRIES} times in a row: the region is flushed all the time, or has too little memory (--memory)"
        ))
    }

    fn new_key(&mut self) -> Vec<u8> {
        self.probes += 1;
        let [high, low] = &self.secret;
        let (high, low) = (high.hash_one(self.probes), low.hash_one(self.probes));
        format!("keyway readiness {high:016x}{low:016x}").into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keyway_cache::{Cache, Options, Place};

    #[test]
    fn a_probe_leaves_nothing_and_uses_each_key_once() {
        let cache = Cache::open(&Place::Memfd, &Options::new().memory(4 << 20)).unwrap();
        let mut prober = Prober::new(cache.session().unwrap(), true);
        for _ in 0..100 {
            prober.probe().unwrap();
        }
        let mut session = cache.session().unwrap();
        let (mut items, mut cursor) = (0, Some(0));
        while let Some(from) = cursor {
            cursor = session.walk(from, 1000, |_, _| items += 1);
        }
        assert_eq!((items, cache.counters().curr_items), (0, 0));
        let keys: std::collections::HashSet<_> = (0..1000).map(|_| prober.new_key()).collect();
        assert_eq!(keys.len(), 1000);
        assert!(keys.iter().all(|key| key.contains(&b' ')), "no text command can name it");
        assert!(!keys.contains(&Prober::new(cache.session().unwrap(), true).new_key()));
    }

    #[test]
    fn a_region_that_refuses_a_store_is_not_ready_until_there_is_room() {
        let options = Options::new().memory(4 << 20).item_size_max(16 << 10).evict(false);
        let cache = Cache::open(&Place::Memfd, &options).unwrap();
        let (mut prober, mut session) = (Prober::new(cache.session().unwrap(), false), cache.session().unwrap());
        prober.probe().unwrap();
        let mut number = 0;
        // What one session leaves another may fill.
        let why = loop {
            for len in [8000, 800, 80, 1] {
                while session.set(format!("key-{number}").as_bytes(), &vec![b'x'; len], 0).is_ok() {
                    number += 1;
                }
            }
            session.release();
            if let Err(why) = prober.probe() {
                break why;
            }
            assert!(number < 1_000_000, "the region takes everything");
        };
        assert!(why.contains("cannot be written") && why.contains("memory"), "{why}");
        session.flush_all(0).unwrap();
        prober.probe().unwrap();
    }

    #[test]
    fn questions_within_a_second_get_the_same_probes_answer() {
        let cache = Cache::open(&Place::Memfd, &Options::new().memory(4 << 20)).unwrap();
        let mut prober = Prober::new(cache.session().unwrap(), true);
        let start = Instant::now();
        let sets = |cache: &Cache| cache.counters().cmd_set;
        for ms in [0, 1, 500, 999] {
            prober.ask(start + Duration::from_millis(ms)).unwrap();
        }
        assert_eq!(sets(&cache), 1);
        prober.ask(start + Duration::from_millis(1000)).unwrap();
        assert_eq!(sets(&cache), 2);
        // An answer that was no is a second old, too.
        prober.last = Some((start, Err("no".to_owned())));
        assert_eq!(prober.ask(start + Duration::from_millis(999)), Err("no".to_owned()));
        assert_eq!(prober.ask(start + Duration::from_millis(1000)), Ok(()));
    }

    /// The enemy: probes that evict what a cache holds, because each begins a piece of memory that nobody fills.
    #[test]
    fn probes_take_no_memory_from_others() {
        let cache = Cache::open(&Place::Memfd, &Options::new().memory(4 << 20)).unwrap();
        let mut session = cache.session().unwrap();
        let mut keys = 0;
        // Half of the memory.
        while cache.counters().bytes < 2 << 20 {
            session.set(format!("key-{keys}").as_bytes(), &[b'x'; 150], 0).unwrap();
            keys += 1;
        }
        let mut prober = Prober::new(cache.session().unwrap(), true);
        for _ in 0..10_000 {
            prober.probe().unwrap();
        }
        assert_eq!(cache.counters().evictions, 0);
        assert!((0..keys).all(|key| session.get(format!("key-{key}").as_bytes()).unwrap().is_some()));
    }
}
