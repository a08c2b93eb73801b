//! A process that uses the library on the region: every verb, and every value that it is given is looked at. It tells its parent
//! ten times a second what it has seen so far; silence is a hang.

use crate::values::{KEYS, STEP, Tally, flags_of, key, value, version_of};
use harness::Random;
use keyway_cache::{Arithmetic, Cache, Counted, Delete, Get, Options, Place, Session, Store, StoreMode, WriteError};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Between two words to the parent.
const TOLD_EACH: Duration = Duration::from_millis(100);
/// Operations between two looks at the clock.
const BATCH: u64 = 64;
/// Keys that this process alone writes.
const OWN: u64 = 40;
/// Appends to one value before it is set anew.
const PIECES_MAX: usize = 20;

/// Uses the region until standard input ends.
///
/// # Errors
///
/// The region could not be opened at all, or the parent is gone.
pub fn main(path: &Path, seed: u64) -> Result<(), String> {
    let over = AtomicBool::new(false);
    let options = Options::new();
    let place = Place::Path(path.to_path_buf());
    let cache = Cache::open(&place, &options).map_err(|e| e.to_string())?;
    let mut client = Client {
        session: cache.session().ok(),
        cache,
        random: Random::new(seed),
        seed,
        versions: 0,
        own: HashMap::new(),
        tally: Tally::default(),
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = std::io::stdin().read(&mut [0]);
            over.store(true, Relaxed);
        });
        let mut told = Instant::now();
        while !over.load(Relaxed) {
            for _ in 0..BATCH {
                client.step();
            }
            // Another attaches and goes: whatever it finds, it ends with a region or an error.
            if client.random.below(50) == 0
                && let Ok(second) = Cache::open(&place, &options)
            {
                let _ = second.session().map(|mut session| session.upkeep());
            }
            if told.elapsed() > TOLD_EACH {
                write_tally(client.tally)?;
                told = Instant::now();
            }
        }
        write_tally(client.tally)
    })
}

fn write_tally(tally: Tally) -> Result<(), String> {
    let words: Vec<u8> = tally.to_words().into_iter().flat_map(u64::to_le_bytes).collect();
    let mut out = std::io::stdout().lock();
    out.write_all(&words).and_then(|()| out.flush()).map_err(|e| e.to_string())
}

struct Client {
    cache: Cache,
    /// none while the region has no slot for us, or seems to have none
    session: Option<Session>,
    random: Random,
    seed: u64,
    versions: u64,
    /// the version that each of our own keys was last told to have
    own: HashMap<u64, u64>,
    tally: Tally,
}

impl Client {
    fn step(&mut self) {
        if self.session.is_none() {
            self.session = self.cache.session().ok();
        }
        let Some(mut session) = self.session.take() else {
            self.tally.errors += 1;
            return;
        };
        let outcome = match self.random.below(20) {
            0..=6 => self.get(&mut session),
            7..=10 => self.set(&mut session),
            11 | 12 => self.own(&mut session),
            13 | 14 => self.count(&mut session),
            15 | 16 => self.append(&mut session),
            17 => session.touch(key(self.random.below(KEYS)).as_bytes(), 1000).map(drop),
            18 => {
                let how = Delete::default();
                session.delete(key(self.random.below(KEYS)).as_bytes(), &how).map(drop)
            }
            _ => self.rest(&mut session),
        };
        match outcome {
            Ok(()) => self.session = Some(session),
            Err(error) => {
                self.tally.errors += 1;
                self.session = (error != WriteError::Detached).then_some(session);
            }
        }
    }

    fn version(&mut self) -> u64 {
        self.versions += 1;
        self.seed << 40 | self.versions
    }

    fn get(&mut self, session: &mut Session) -> Result<(), WriteError> {
        let number = self.random.below(KEYS);
        let how = Get {
            value: true,
            details: self.random.below(2) == 0,
            exptime: (self.random.below(8) == 0).then_some(1000),
            ..Get::default()
        };
        let mut out = Vec::new();
        let found = session.get_with(key(number).as_bytes(), &how, &mut out, |_, _| {})?;
        match found.map(|item| (item.value_len, version_of(number, &out), item.flags)) {
            None => self.tally.none += 1,
            Some((len, Some(version), flags)) if len == out.len() && flags == flags_of(version) => self.tally.right += 1,
            Some(_) => self.wrong(number, &out),
        }
        Ok(())
    }

    fn wrong(&mut self, number: u64, bytes: &[u8]) {
        self.tally.wrong += 1;
        if self.tally.wrong < 4 {
            let shown = bytes.get(..bytes.len().min(48)).unwrap_or_default();
            harness::say(&format!("{}: {} bytes, {}", key(number), bytes.len(), shown.escape_ascii()));
        }
    }

    fn set(&mut self, session: &mut Session) -> Result<(), WriteError> {
        let (number, version) = (self.random.below(KEYS), self.version());
        let how = Store {
            flags: flags_of(version),
            exptime: i64::try_from(self.random.below(3) * 500).unwrap_or(0),
            ..Store::default()
        };
        session.store(key(number).as_bytes(), &value(number, version), &how).map(drop)
    }

    /// A key that no other client writes: whatever is found there is its last version, or none.
    fn own(&mut self, session: &mut Session) -> Result<(), WriteError> {
        let number = KEYS + self.seed * OWN + self.random.below(OWN);
        let mut out = Vec::new();
        if session
            .get_append(key(number).as_bytes(), &mut out)
            .is_ok_and(|found| found.is_some())
        {
            match (version_of(number, &out), self.own.get(&number)) {
                (None, _) => self.wrong(number, &out),
                (Some(version), Some(last)) if version < *last => self.tally.stale += 1,
                (Some(_), _) => self.tally.right += 1,
            }
        }
        let version = self.version();
        // From the attempt on: a store that fails may have taken effect.
        session.set(key(number).as_bytes(), &value(number, version), 0)?;
        self.own.insert(number, version);
        Ok(())
    }

    /// A number that is only ever a multiple.
    fn count(&mut self, session: &mut Session) -> Result<(), WriteError> {
        let key = format!("number-{}", self.random.below(20));
        let how = Arithmetic {
            delta: STEP,
            vivify: Some((STEP, 0)),
            ..Arithmetic::default()
        };
        match session.arithmetic(key.as_bytes(), &how)? {
            Counted::Value { value, .. } if value % STEP == 0 => self.tally.right += 1,
            // Where nothing tells a scribbled number from another, it is set right again.
            Counted::Value { .. } | Counted::NotANumber => {
                self.tally.wrong += 1;
                session.set(key.as_bytes(), STEP.to_string().as_bytes(), 0)?;
            }
            Counted::NotFound | Counted::Exists => self.tally.none += 1,
        }
        Ok(())
    }

    /// A value that is one piece, many times.
    fn append(&mut self, session: &mut Session) -> Result<(), WriteError> {
        let number = self.random.below(20);
        let name = format!("pieces-{number}");
        let piece = format!("[{number:06}]");
        let joined = Store {
            mode: [StoreMode::Append, StoreMode::Prepend][self.random.index(2)],
            vivify: Some(0),
            ..Store::default()
        };
        session.store(name.as_bytes(), piece.as_bytes(), &joined)?;
        let mut out = Vec::new();
        if !session
            .get_append(name.as_bytes(), &mut out)
            .is_ok_and(|found| found.is_some())
        {
            self.tally.none += 1;
            return Ok(());
        }
        let mut pieces = out.chunks(piece.len());
        let is_right = pieces.len() > 0 && pieces.all(|p| p == piece.as_bytes());
        if is_right {
            self.tally.right += 1;
        } else {
            self.wrong(number, &out);
        }
        if !is_right || out.len() > PIECES_MAX * piece.len() {
            session.set(name.as_bytes(), piece.as_bytes(), 0)?;
        }
        Ok(())
    }

    fn rest(&mut self, session: &mut Session) -> Result<(), WriteError> {
        match self.random.below(60) {
            0 => session.flush_all(0)?,
            1 => session.upkeep(),
            2 => {
                let mut cursor = Some(0);
                // Not all: it looks at every bucket that the table word says there are.
                for _ in 0..20 {
                    cursor = cursor.and_then(|at| session.walk(at, 50, |_, _| {}));
                }
            }
            3 => drop(self.cache.counters()),
            _ => {
                // Fresh keys: the log fills, segments are reclaimed, and the index would grow.
                let version = self.version();
                session.set(format!("fresh-{version}").as_bytes(), &value(0, version), 0)?;
            }
        }
        Ok(())
    }
}
