//! One thread's work: it sets, deletes and counts its own keys, reads those of all, and judges every value that it gets.
//!
//! Each key has one writer. What a get gives must be no older than what was acknowledged or seen before it began, and must have
//! been sent before it ended; in a region that does not evict, what is present must be found.

use crate::ledger::{KEYS, Ledger, Role, Version, Violation, WRITERS, Word};
use crate::value::{Found, judge_number, judge_text, text};
use harness::Random;
use keyway_cache::{Begun, Cache, Delete, Deleted, Fetch, Number, Session, WriteError};
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Keys of a working thread that hold texts; the next [`NUMBERS`] hold numbers.
const TEXTS: usize = 40;
/// Keys of a working thread that are counted.
const NUMBERS: usize = 8;
/// Operations between two upkeeps. A process takes back what the dead held at each.
const UPKEEP_EVERY: u64 = 32;
/// Of how many sets one is a fetch, if it finds nothing.
const FETCHED_ONE_IN: u64 = 4;
/// Fills that are read back.
const FILLS: u64 = 64;
/// Lifetime of what expires, seconds: no test takes as long.
const LONG_S: i64 = 86_000;

/// What kind of region a cell has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// small and always full, so that segments are recycled all the time: misses are allowed
    Evicting,
    /// it has room for everything: what is present must be found
    Lasting,
}

impl Kind {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Evicting => "evicting",
            Self::Lasting => "lasting",
        }
    }

    /// Memory of the region, bytes.
    pub fn memory(self) -> u64 {
        match self {
            Self::Evicting => 4 << 20,
            Self::Lasting => 8 << 20,
        }
    }
}

/// A lie that a process tells, so that the judge can be seen to find it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// stores values whose halves belong to different versions
    Torn,
    /// stores what belongs to another key
    OtherKey,
    /// acknowledges a version and stores the one before
    Older,
    /// acknowledges what it does not store
    Lost,
    /// acknowledges a count that it does not make
    Uncounted,
    /// lets a deleted item rise again
    Risen,
    /// closes a descriptor that is not its own
    Closes,
    /// writes over the region
    Scribbles,
    /// is taken for dead and is not: what it holds cannot come back
    Undead,
    /// ends in the middle of its work
    Ends,
}

impl Fault {
    /// All of them, with what the judge must call each.
    pub const ALL: [(Self, &'static str, Violation); 10] = [
        (Self::Torn, "torn", Violation::Torn),
        (Self::OtherKey, "other-key", Violation::Wrong),
        (Self::Older, "older", Violation::Stale),
        (Self::Lost, "lost", Violation::Lost),
        (Self::Uncounted, "uncounted", Violation::Stale),
        (Self::Risen, "risen", Violation::Stale),
        (Self::Closes, "closes", Violation::Harmed),
        (Self::Scribbles, "scribbles", Violation::Problems),
        (Self::Undead, "undead", Violation::Slots),
        (Self::Ends, "ends", Violation::Ended),
    ];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(f, ..)| *f == self).map_or("", |(_, name, _)| name)
    }
}

/// See the top of the file.
pub struct Hand<'c> {
    ledger: &'c Ledger,
    cache: &'c Cache,
    session: Session,
    role: Role,
    writer: usize,
    kind: Kind,
    random: Random,
    fault: Option<Fault>,
    /// its wall clock does not step between two calls
    steady: bool,
    /// numbers that are known to be what the ledger says
    counted: [bool; NUMBERS],
    fills: u64,
    steps: u64,
    value: Vec<u8>,
    out: Vec<u8>,
}

impl<'c> Hand<'c> {
    /// A hand that writes the keys of `writer`; at most one may be alive.
    pub fn new(ledger: &'c Ledger, cache: &'c Cache, session: Session, role: Role, writer: usize, kind: Kind, seed: u64) -> Self {
        let random = Random::new(seed).fork(writer as u64);
        Self {
            ledger,
            cache,
            session,
            role,
            writer,
            kind,
            random,
            fault: None,
            steady: true,
            counted: [false; NUMBERS],
            fills: 0,
            steps: 0,
            value: Vec::new(),
            out: Vec::new(),
        }
    }

    /// The same; without a steady wall clock it says no time as a date, because it can be over when the call is made.
    pub fn with_clock(mut self, steady: bool) -> Self {
        self.steady = steady;
        self
    }

    /// The same with a lie.
    pub fn lying(mut self, fault: Option<Fault>) -> Self {
        self.fault = fault;
        self
    }

    /// One operation, chosen at random.
    pub fn step(&mut self) {
        self.ledger.keys(self.writer).store((TEXTS + NUMBERS) as u64, SeqCst);
        match self.random.below(100) {
            0..25 => {
                let payload = self.random.index(self.payload_max());
                let key = self.random.index(TEXTS);
                self.set(key, payload);
            }
            25..30 => {
                let key = self.random.index(TEXTS);
                self.delete(key);
            }
            30..42 => {
                let number = self.random.index(NUMBERS);
                self.count(number);
            }
            42..60 if self.kind == Kind::Evicting => self.fill(),
            _ => self.read_any(),
        }
        self.steps += 1;
        if self.steps.is_multiple_of(UPKEEP_EVERY) {
            self.upkeep();
        }
        self.ledger.word(self.role, Word::Operations).fetch_add(1, SeqCst);
    }

    /// What a process does for the region once in a while, with a look at how many sessions it has.
    pub fn upkeep(&mut self) {
        self.session.upkeep();
        self.ledger.write(self.role, Word::Sessions, self.cache.info().sessions);
        self.ledger.word(self.role, Word::Upkeeps).fetch_add(1, SeqCst);
    }

    /// Stores the items of a writer that stay as they are.
    pub fn store_all(&mut self, writer: usize, keys: usize, payload: usize) {
        let own = std::mem::replace(&mut self.writer, writer);
        for key in 0..keys {
            self.set(key, payload);
        }
        self.writer = own;
        self.ledger.keys(writer).store(keys as u64, SeqCst);
    }

    /// Reads every key of every writer once.
    pub fn read_all(&mut self) {
        for writer in 0..WRITERS {
            for key in 0..self.keys_of(writer) {
                self.read(writer, key);
            }
        }
    }

    /// Reads a key of any writer.
    pub fn read_any(&mut self) {
        let with_keys: Vec<usize> = (0..WRITERS).filter(|w| self.keys_of(*w) > 0).collect();
        let Some(writer) = with_keys.get(self.random.index(with_keys.len().max(1))) else {
            return;
        };
        let key = self.random.index(self.keys_of(*writer));
        self.read(*writer, key);
    }

    fn keys_of(&self, writer: usize) -> usize {
        usize::try_from(self.ledger.keys(writer).load(SeqCst)).map_or(0, |keys| keys.min(KEYS))
    }

    /// Bytes of a text: small where everything has to fit, large where segments have to fill.
    fn payload_max(&self) -> usize {
        match self.kind {
            Kind::Lasting => 1500,
            Kind::Evicting => 12_000,
        }
    }

    fn exptime(&mut self) -> i64 {
        match self.random.below(8) {
            0 => LONG_S,
            1 if self.steady => wall_clock_s() + LONG_S,
            _ => 0,
        }
    }

    fn set(&mut self, key: usize, payload: usize) {
        let name = key_name(self.writer, key);
        let number = self.next_number(key);
        let mut value = std::mem::take(&mut self.value);
        text(&name, number, payload, &mut value);
        match self.fault {
            Some(Fault::Torn) => {
                let mut other = Vec::new();
                text(&name, number + 1, payload, &mut other);
                let half = value.len() / 2;
                value.truncate(half);
                value.extend(other.into_iter().skip(half));
            }
            Some(Fault::OtherKey) => text(b"another", number, payload, &mut value),
            Some(Fault::Older) if number > 1 => text(&name, number - 1, payload, &mut value),
            _ => {}
        }
        let exptime = self.exptime();
        self.send(key, Version::stored(number));
        let stored = if self.fault == Some(Fault::Lost) {
            // Away with the version before, so that it is missed and not stale.
            self.session.delete(&name, &Delete::default()).map(|_| ())
        } else if self.random.below(FETCHED_ONE_IN) == 0 {
            self.fetch(&name, &value, exptime)
        } else {
            self.session.set(&name, &value, exptime).map(|_| ())
        };
        self.value = value;
        self.settle("set", key, Version::stored(number), stored);
    }

    /// A set that, if the key is absent, is the store of a fetch.
    fn fetch(&mut self, name: &[u8], value: &[u8], exptime: i64) -> Result<(), WriteError> {
        let how = Fetch {
            ttl: exptime,
            wait: Duration::ZERO,
            has_tasks: true,
            ..Fetch::default()
        };
        self.out.clear();
        if let Begun::Compute(token) = self.session.fetch_begin(name, &how, &mut self.out)?
            && self.session.fetch_store(name, token, value, &how)?
        {
            return Ok(());
        }
        self.session.set(name, value, exptime).map(|_| ())
    }

    fn delete(&mut self, key: usize) {
        let name = key_name(self.writer, key);
        let before = self.ledger.oldest(self.writer, key);
        let known = before.0 == self.ledger.sent(self.writer, key).load(SeqCst);
        let version = Version::deleted(self.next_number(key));
        self.send(key, version);
        if self.fault == Some(Fault::Risen) {
            return self.settle("delete", key, version, Ok(()));
        }
        let deleted = self.session.delete(&name, &Delete::default());
        if deleted == Ok(Deleted::NotFound) && known && before.is_stored() && self.kind == Kind::Lasting {
            self.violation(Violation::Lost, &name, "a delete did not find it");
        }
        self.settle("delete", key, version, deleted.map(|_| ()));
    }

    fn count(&mut self, number: usize) {
        let key = TEXTS + number;
        let name = key_name(self.writer, key);
        let next = self.next_number(key);
        self.send(key, Version::stored(next));
        let counting = self.counted.get(number).copied().unwrap_or(false);
        let mut result = Ok(());
        let mut is_set = false;
        if counting && self.fault != Some(Fault::Uncounted) {
            match self.session.incr(&name, 1) {
                Ok(Number::Is(is)) if is == next => is_set = true,
                Ok(Number::Is(is)) => {
                    let what = if is < next { Violation::Stale } else { Violation::Wrong };
                    self.violation(what, &name, &format!("counted to {is}, not {next}"));
                }
                Ok(Number::NotANumber) => self.violation(Violation::Torn, &name, "not a number"),
                Ok(Number::NotFound) if self.kind == Kind::Lasting => {
                    self.violation(Violation::Lost, &name, "a count did not find it");
                }
                Ok(Number::NotFound) => {}
                Err(error) => result = Err(error),
            }
        } else if counting {
            is_set = true;
        }
        if !is_set && result.is_ok() {
            result = self.session.set(&name, next.to_string().as_bytes(), 0).map(|_| ());
        }
        if let Some(counted) = self.counted.get_mut(number) {
            *counted = result.is_ok();
        }
        self.settle("incr", key, Version::stored(next), result);
    }

    /// Stores an item that is only there to take room, and reads back one of the last.
    pub fn fill(&mut self) {
        let name = fill_name(self.writer, self.fills);
        let payload = self.random.index(self.payload_max());
        let mut value = std::mem::take(&mut self.value);
        text(&name, self.fills + 1, payload, &mut value);
        if let Err(error) = self.session.set(&name, &value, 0) {
            self.refused("set", &name, error);
        }
        self.value = value;
        let back = self.random.below(FILLS.min(self.fills + 1));
        let back = self.fills - back;
        let name = fill_name(self.writer, back);
        self.fills += 1;
        self.out.clear();
        if self
            .session
            .get_append(&name, &mut self.out)
            .is_ok_and(|found| found.is_some())
        {
            match judge_text(&name, &self.out) {
                // A thread of this writer that was killed may have left the same name with another payload.
                Found::Whole(version) if version == back + 1 => {}
                Found::Whole(_) | Found::OtherKey => self.violation(Violation::Wrong, &name, "what fills"),
                Found::Torn => self.violation(Violation::Torn, &name, "what fills"),
            }
        }
    }

    /// Reads a key and judges what comes.
    fn read(&mut self, writer: usize, key: usize) {
        let name = key_name(writer, key);
        let oldest = self.ledger.oldest(writer, key);
        self.out.clear();
        let got = match self.session.get_append(&name, &mut self.out) {
            Ok(item) => item.is_some(),
            Err(error) => return self.refused("get", &name, error.into()),
        };
        let sent = Version(self.ledger.sent(writer, key).load(SeqCst));
        if !got {
            // Present, and no operation on it had begun when the get ended.
            if self.kind == Kind::Lasting && oldest.is_stored() && sent == oldest {
                self.violation(Violation::Lost, &name, &format!("version {} is missed", oldest.number()));
            }
            return;
        }
        let is_number = writer < GROWN_AND_STAYING && key >= TEXTS;
        let found = if is_number {
            judge_number(&self.out)
        } else {
            judge_text(&name, &self.out)
        };
        match found {
            Found::Torn => self.violation(Violation::Torn, &name, &format!("{} bytes", self.out.len())),
            Found::OtherKey => self.violation(Violation::Wrong, &name, "another key's value"),
            Found::Whole(number) if Version::stored(number) < oldest => {
                let told = format!("version {number}, after {}", oldest.number());
                self.violation(Violation::Stale, &name, &told);
            }
            Found::Whole(number) if number > sent.number() => {
                let told = format!("version {number}, and {} was sent last", sent.number());
                self.violation(Violation::Wrong, &name, &told);
            }
            Found::Whole(number) => {
                self.ledger.seen(writer, key).fetch_max(Version::stored(number).0, SeqCst);
            }
        }
    }

    fn next_number(&self, key: usize) -> u64 {
        Version(self.ledger.sent(self.writer, key).load(SeqCst)).number() + 1
    }

    fn send(&self, key: usize, version: Version) {
        self.ledger.sent(self.writer, key).store(version.0, SeqCst);
    }

    fn settle(&self, verb: &str, key: usize, version: Version, result: Result<(), WriteError>) {
        match result {
            Ok(()) => self.ledger.acknowledged(self.writer, key).store(version.0, SeqCst),
            Err(error) => self.refused(verb, &key_name(self.writer, key), error),
        }
    }

    fn refused(&self, verb: &str, name: &[u8], error: WriteError) {
        self.violation(Violation::Refused, name, &format!("{verb}: {error}"));
    }

    fn violation(&self, what: Violation, name: &[u8], told: &str) {
        let note = || format!("{} {told}", String::from_utf8_lossy(name));
        self.ledger.count(self.role, what, &note);
    }
}

/// Writers below this one work.
const GROWN_AND_STAYING: usize = crate::ledger::GROWN;

fn key_name(writer: usize, key: usize) -> Vec<u8> {
    format!("k{writer}.{key}").into_bytes()
}

fn fill_name(writer: usize, number: u64) -> Vec<u8> {
    format!("f{writer}.{number}").into_bytes()
}

/// Seconds of the process's own wall clock, which may be wrong.
fn wall_clock_s() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(0)
}
