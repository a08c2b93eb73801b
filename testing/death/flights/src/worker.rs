//! A process that fetches values of rows, and now and then changes a row and deletes its key.

use crate::ledger::{Count, Doing, Ledger, now_us};
use harness::Random;
use keyway_cache::{Begun, Cache, Delete, Fetch, Options, Place, Session, Token};
use std::path::Path;
use std::time::Duration;

/// How long a value is fresh, seconds.
const TTL_S: i64 = 2;
/// How long a computation takes.
const COMPUTES: Duration = Duration::from_millis(50);
/// Longer than a computation, and shorter than some stops.
const WAIT: Duration = Duration::from_millis(700);
/// The region's clock has seconds, and a value may be fresh for one of them less.
const CLOCK_US: u64 = 1_100_000;
/// Other processes that may compute: as many as are ever started.
const PROCESSES: usize = 40;

pub fn open(folder: &Path) -> Cache {
    let place = Place::Path(folder.join("region"));
    Cache::open(&place, &Options::new().memory(64 << 20)).expect("a region")
}

struct Worker {
    session: Session,
    ledger: Ledger,
    number: usize,
}

/// Works until it is killed.
pub fn run(folder: &Path, number: usize, keys: u64) {
    let mut ledger = Ledger::open(folder);
    ledger.begins(number);
    let mut worker = Worker {
        session: open(folder).session().expect("a session"),
        ledger,
        number,
    };
    let mut random = Random::new(now_us() ^ number as u64);
    loop {
        let key = random.below(keys);
        match random.below(200) {
            0 => worker.change(key),
            _ => worker.fetch(key),
        }
        // Forty processes share the processors.
        std::thread::sleep(Duration::from_micros(random.below(4000)));
    }
}

impl Worker {
    /// Changes the row, then deletes its key.
    fn change(&mut self, key: u64) {
        self.ledger.add(&format!("row {key}"), 1);
        self.session
            .delete(format!("key {key}").as_bytes(), &Delete::default())
            .expect("a delete");
        self.ledger.add(&format!("deleted {key}"), 1);
        self.ledger.tally(Count::Deleted);
    }

    fn fetch(&mut self, key: u64) {
        let how = Fetch {
            ttl: TTL_S,
            wait: WAIT,
            ..Fetch::default()
        };
        // So many changes had been deleted before the request began: what it gets is not older.
        let deleted = self.ledger.number(&format!("deleted {key}"));
        let name = format!("key {key}");
        let (begun, mut value) = (now_us(), Vec::new());
        let answer = self.session.fetch_begin(name.as_bytes(), &how, &mut value).expect("a fetch");
        let took = now_us() - begun;
        match answer {
            Begun::Hit(_) | Begun::Stale(_) => {
                let text = String::from_utf8(value).expect("text");
                let mut words = text.split(' ').map(|word| word.parse::<u64>().expect("a number"));
                let (row, stored_at) = (words.next().expect("the row"), words.next().expect("the time"));
                if row < deleted {
                    eprintln!("key {key}: {row}, after {deleted} changes had been deleted");
                    self.ledger.tally(Count::Older);
                }
                // Less may be the time for which the process had no processor.
                if took > 1000 && stored_at > begun {
                    self.ledger.tally(Count::Waited);
                    self.ledger.took("wake-up after a store", now_us().saturating_sub(stored_at));
                } else {
                    self.ledger.tally(Count::Hits);
                }
            }
            Begun::Compute(token) => self.compute(key, token, &how, begun),
            Begun::Nothing | Begun::Waited(_) => panic!("{answer:?}"),
        }
    }

    fn compute(&mut self, key: u64, token: Token, how: &Fetch<'_>, begun_us: u64) {
        let (changes, _) = self.ledger.changes(key);
        let row = self.ledger.number(&format!("row {key}"));
        let at_us = now_us();
        self.ledger.computes(self.number, Doing { key, changes, at_us });
        self.ledger.tally(Count::Computed);
        self.judge(key, changes, begun_us);
        std::thread::sleep(COMPUTES);
        self.ledger.is_done(self.number);
        let stored_at = now_us();
        let (name, value) = (format!("key {key}"), format!("{row} {stored_at}"));
        let stored = self.session.fetch_store(name.as_bytes(), token, value.as_bytes(), how);
        let stored = stored.expect("a store");
        self.ledger.tally(if stored { Count::Stored } else { Count::Void });
        if stored {
            let fresh_us = u64::try_from(TTL_S).unwrap_or(0) * 1_000_000 - CLOCK_US;
            self.ledger.has_stored(key, stored_at + fresh_us, changes);
        }
    }

    /// Whether there is a cause for this computation.
    fn judge(&mut self, key: u64, changes: u64, begun_us: u64) {
        let waited_us = now_us() - begun_us;
        if let Some((until, changes_then)) = self.ledger.stored(key)
            && until > now_us()
            && self.ledger.changes(key) == (changes_then, true)
        {
            eprintln!("key {key}: computed although it is fresh for {} µs more", until - now_us());
            self.ledger.tally(Count::Needless);
        }
        for other in (0..PROCESSES).filter(|other| *other != self.number) {
            let Some(doing) = self.ledger.doing(other).filter(|doing| doing.key == key) else {
                continue;
            };
            let (now, is_settled) = self.ledger.changes(key);
            let killed_at = self.ledger.killed_at(other);
            // What it does may have ended by now, and begun again after what is judged here.
            if self.ledger.doing(other).is_none_or(|again| again.at_us != doing.at_us) || doing.at_us > now_us() {
                continue;
            }
            if let Some(at) = killed_at {
                self.ledger.tally(Count::AfterDeath);
                if at > begun_us {
                    self.ledger.took("hand-over after a death", now_us().saturating_sub(at));
                }
            } else if now != doing.changes || changes != doing.changes || !is_settled {
                self.ledger.tally(Count::AfterDelete);
            } else if waited_us >= u64::try_from(WAIT.as_micros()).unwrap_or(0) || self.ledger.stopped_at(other) > doing.at_us {
                self.ledger.tally(Count::AfterStop);
            } else {
                eprintln!(
                    "key {key}: processes {} and {other} compute it, after {waited_us} µs",
                    self.number
                );
                self.ledger.tally(Count::WithoutCause);
            }
        }
    }
}
