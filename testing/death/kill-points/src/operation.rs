//! The operations that are stopped, and the doors that they go through: a session of the tiny region, or the library's own.

use keyway_region::fetch::{Fetched, Flight, Freshness, Refreshed};
use keyway_region::verbs::{Arithmetic, Counted, Delete, Deleted, Get, Item, Store, StoreMode, Stored, WriteError};
use keyway_region::{Fetches, Process, Region, Session, Shrinking};
use std::sync::Arc;

/// The verbs, whichever door offers them.
pub trait Door {
    /// a get of any kind; the value to the end of `out`
    fn get(&mut self, key: &[u8], how: &Get, out: &mut Vec<u8>) -> Result<Option<Item>, WriteError>;
    /// a store of any kind
    fn store(&mut self, key: &[u8], value: &[u8], how: &Store) -> Result<Stored, WriteError>;
    /// a delete of any kind
    fn delete(&mut self, key: &[u8], how: &Delete) -> Result<Deleted, WriteError>;
    /// counting
    fn arithmetic(&mut self, key: &[u8], how: &Arithmetic) -> Result<Counted, WriteError>;
    /// a new exptime
    fn touch(&mut self, key: &[u8], exptime: i64) -> Result<bool, WriteError>;
    /// everything goes
    fn flush_all(&mut self, exptime: i64) -> Result<(), WriteError>;
    /// a step of a fetch, by who can
    fn fetch(&mut self, _key: &[u8], _step: &Step) -> Result<String, WriteError> {
        Ok("false".into())
    }
    /// housekeeping, by who can
    fn upkeep(&mut self) {}
    /// a second session comes and works, and goes
    fn come_and_go(&mut self, key: &[u8]) -> String {
        format!("{:?}", self.store(key, b"guest", &Store::default()).is_ok())
    }
    /// room reserved for later writes is given up
    fn release(&mut self) {}
    /// the region gets more memory, by who can
    fn grow(&mut self) -> String {
        "false".into()
    }
    /// the memory limit is lowered, by who can
    fn lower(&mut self) -> String {
        "false".into()
    }
    /// steps towards it
    fn shrink(&mut self) {}
}

/// A process in the tiny region, with a session.
pub struct Player {
    /// the region
    pub region: Arc<Region>,
    /// its process slot
    pub process: Process,
    /// its session
    pub session: Session,
    /// the time, which stands still
    pub now: u32,
    /// the flight that it has begun last
    flight: Option<Flight>,
}

impl Player {
    /// Attaches as the process of this slot.
    ///
    /// # Panics
    ///
    /// If no thread slot is free.
    pub fn attach(region: Arc<Region>, slot: usize) -> Self {
        let process = region.recovery().attach(slot, 1, crate::ground::NOW);
        let session = region.session(process).expect("a thread slot");
        let now = region.clock().tick(keyway_region::Moment::from_secs(crate::ground::NOW));
        Self {
            region,
            process,
            session,
            now,
            flight: None,
        }
    }

    /// Begins a flight of a key, unless there is a value, or another process computes one.
    ///
    /// # Errors
    ///
    /// Those of a write.
    pub fn begin(&mut self, key: &[u8]) -> Result<Fetched, WriteError> {
        let fetched = Fetches::of(&mut self.session).begin(key, &Freshness::default(), self.now, &mut Vec::new());
        if let Ok(Fetched::Compute(flight, _)) = fetched {
            self.flight = Some(flight);
        }
        fetched
    }
}

impl Door for Player {
    fn get(&mut self, key: &[u8], how: &Get, out: &mut Vec<u8>) -> Result<Option<Item>, WriteError> {
        self.session.get(key, how, self.now, out)
    }
    fn store(&mut self, key: &[u8], value: &[u8], how: &Store) -> Result<Stored, WriteError> {
        self.session.store(key, value, how, self.now)
    }
    fn delete(&mut self, key: &[u8], how: &Delete) -> Result<Deleted, WriteError> {
        self.session.delete(key, how, self.now)
    }
    fn arithmetic(&mut self, key: &[u8], how: &Arithmetic) -> Result<Counted, WriteError> {
        self.session.arithmetic(key, how, self.now)
    }
    fn touch(&mut self, key: &[u8], exptime: i64) -> Result<bool, WriteError> {
        self.session.touch(key, exptime, self.now)
    }
    fn flush_all(&mut self, exptime: i64) -> Result<(), WriteError> {
        self.session.flush_all(exptime, self.now)
    }
    fn fetch(&mut self, key: &[u8], step: &Step) -> Result<String, WriteError> {
        if let Step::Begin = step {
            return Ok(match self.begin(key)? {
                Fetched::Fresh(_) => "a value".into(),
                Fetched::Compute(..) => "its own".into(),
                other => format!("{other:?}"),
            });
        }
        let Some(flight) = self.flight.take() else {
            return Ok("false".into());
        };
        let fetches = Fetches::of(&mut self.session);
        let ended = match step {
            Step::Begin | Step::GiveUp => fetches.abandon(key, flight, self.now)?,
            Step::Store(value) => fetches.store(key, flight, value, &Refreshed::default(), self.now)?,
            Step::StoreNothing => fetches.store_nothing(key, flight, 1000, self.now)?,
        };
        Ok(format!("{ended:?}"))
    }
    fn upkeep(&mut self) {
        self.session.upkeep(self.now);
    }
    fn come_and_go(&mut self, key: &[u8]) -> String {
        match self.region.session(self.process) {
            Some(mut session) => format!("{:?}", session.store(key, b"guest", &Store::default(), self.now).is_ok()),
            None => "no slot".into(),
        }
    }
    fn release(&mut self) {
        self.session.release_extents();
    }
    fn grow(&mut self) -> String {
        format!(
            "{:?}",
            self.region
                .mapped()
                .grow(self.region.mapped().layout().shape.segments_max)
                .is_ok()
        )
    }
    fn lower(&mut self) -> String {
        let lower = self.region.mapped().segments() - crate::ground::WITHHELD;
        format!("{:?}", self.region.victims().lower(lower, 0) == lower)
    }
    fn shrink(&mut self) {
        // Of what the first ones withdraw the pages are due for the others.
        for now in [self.now, self.now + 10] {
            while matches!(self.session.shrink(now), Shrinking::More) {}
        }
    }
}

impl Door for keyway_cache::Session {
    fn get(&mut self, key: &[u8], how: &Get, out: &mut Vec<u8>) -> Result<Option<Item>, WriteError> {
        self.get_with(key, how, out, |_, _| {})
    }
    fn store(&mut self, key: &[u8], value: &[u8], how: &Store) -> Result<Stored, WriteError> {
        self.store(key, value, how)
    }
    fn delete(&mut self, key: &[u8], how: &Delete) -> Result<Deleted, WriteError> {
        self.delete(key, how)
    }
    fn arithmetic(&mut self, key: &[u8], how: &Arithmetic) -> Result<Counted, WriteError> {
        self.arithmetic(key, how)
    }
    fn touch(&mut self, key: &[u8], exptime: i64) -> Result<bool, WriteError> {
        self.touch(key, exptime)
    }
    fn flush_all(&mut self, exptime: i64) -> Result<(), WriteError> {
        self.flush_all(exptime)
    }
    fn upkeep(&mut self) {
        self.upkeep();
    }
    fn release(&mut self) {
        self.release();
    }
}

/// Which CAS unique a store compares with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cas {
    /// none
    No,
    /// the one that the key had when the setup ended
    Noted,
    /// one that no item has
    Wrong,
}

/// A step of a fetch.
#[derive(Clone, Debug)]
pub enum Step {
    /// one caller of all gets the right to compute
    Begin,
    /// what it has computed
    Store(Vec<u8>),
    /// there is no value, for a while
    StoreNothing,
    /// another may compute
    GiveUp,
}

/// An operation.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "named like the verbs; the first field is the key")]
pub enum Op {
    Get(Vec<u8>),
    Store(Vec<u8>, Vec<u8>, StoreMode, Cas),
    Delete(Vec<u8>),
    MarkStale(Vec<u8>),
    Count { key: Vec<u8>, decrement: bool, vivify: bool },
    Touch(Vec<u8>),
    GetAndTouch(Vec<u8>),
    Fetch(Vec<u8>, Step),
    Flush,
    Upkeep,
    ComeAndGo(Vec<u8>),
    Release,
    Raise,
    Lower,
    Shrink,
}

/// The exptime that touches give.
const EXPTIME: i64 = 5000;

impl Op {
    /// A plain set.
    pub fn set(key: &[u8], value: &[u8]) -> Self {
        Self::Store(key.to_vec(), value.to_vec(), StoreMode::Set, Cas::No)
    }

    /// A store with a condition.
    pub fn store(key: &[u8], value: &[u8], mode: StoreMode) -> Self {
        Self::Store(key.to_vec(), value.to_vec(), mode, Cas::No)
    }

    /// The key that it is about.
    pub fn key(&self) -> Option<&[u8]> {
        match self {
            Self::Get(key)
            | Self::Store(key, ..)
            | Self::Delete(key)
            | Self::MarkStale(key)
            | Self::Count { key, .. }
            | Self::Touch(key)
            | Self::GetAndTouch(key)
            | Self::Fetch(key, _)
            | Self::ComeAndGo(key) => Some(key),
            Self::Flush | Self::Upkeep | Self::Release | Self::Raise | Self::Lower | Self::Shrink => None,
        }
    }

    /// Does it, and says what it answered: everything but what no two runs have in common (CAS uniques).
    pub fn perform(&self, door: &mut dyn Door, noted_cas: u64) -> String {
        let got = |result: Result<Option<Item>, WriteError>, out: &[u8]| match result {
            Ok(Some(item)) => format!("hit {:?}", Seen::new(&item, out)),
            Ok(None) => "miss".into(),
            Err(e) => format!("error: {e}"),
        };
        let mut out = Vec::new();
        match self {
            Self::Get(key) => {
                let how = Get {
                    value: true,
                    ..Get::default()
                };
                got(door.get(key, &how, &mut out), &out)
            }
            Self::GetAndTouch(key) => {
                let how = Get {
                    value: true,
                    exptime: Some(EXPTIME),
                    ..Get::default()
                };
                got(door.get(key, &how, &mut out), &out)
            }
            Self::Store(key, value, mode, cas) => {
                let compare_cas = match cas {
                    Cas::No => None,
                    Cas::Noted => Some(noted_cas),
                    Cas::Wrong => Some(12_345),
                };
                let how = Store {
                    mode: *mode,
                    flags: 7,
                    compare_cas,
                    ..Store::default()
                };
                match door.store(key, value, &how) {
                    Ok(Stored::Stored { .. }) => "stored".into(),
                    Ok(other) => format!("{other:?}"),
                    Err(e) => format!("error: {e}"),
                }
            }
            Self::Delete(key) => format!("{:?}", door.delete(key, &Delete::default())),
            Self::MarkStale(key) => {
                let how = Delete {
                    invalidate: true,
                    ..Delete::default()
                };
                format!("{:?}", door.delete(key, &how))
            }
            Self::Count { key, decrement, vivify } => {
                let how = Arithmetic {
                    delta: 1,
                    decrement: *decrement,
                    vivify: vivify.then_some((500, 0)),
                    ..Arithmetic::default()
                };
                match door.arithmetic(key, &how) {
                    Ok(Counted::Value { value, .. }) => format!("now {value}"),
                    other => format!("{other:?}"),
                }
            }
            Self::Touch(key) => format!("{:?}", door.touch(key, EXPTIME)),
            Self::Fetch(key, step) => door.fetch(key, step).unwrap_or_else(|e| format!("error: {e}")),
            Self::Flush => format!("{:?}", door.flush_all(0)),
            Self::Upkeep => {
                door.upkeep();
                "done".into()
            }
            Self::ComeAndGo(key) => door.come_and_go(key),
            Self::Release => {
                door.release();
                "done".into()
            }
            Self::Raise => door.grow(),
            Self::Lower => door.lower(),
            Self::Shrink => {
                door.shrink();
                "done".into()
            }
        }
    }
}

/// What a get shows of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    len: usize,
    hash: u64,
    flags: u32,
    expires: bool,
    stale: bool,
}

impl core::fmt::Debug for Seen {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "{} bytes #{:04x} flags {}", self.len, self.hash & 0xFFFF, self.flags)?;
        write!(
            f,
            "{}{}",
            if self.expires { " expiring" } else { "" },
            if self.stale { " stale" } else { "" }
        )
    }
}

impl Seen {
    /// Of this item with this value.
    pub fn new(item: &Item, value: &[u8]) -> Self {
        Self {
            len: item.value_len,
            hash: xxhash_rust::xxh64::xxh64(value, 0),
            flags: item.flags,
            expires: item.ttl_s.is_some(),
            stale: item.stale,
        }
    }
}

/// What a get of each key shows.
pub type View = std::collections::BTreeMap<Vec<u8>, Option<Seen>>;

/// Looks at these keys without leaving a trace on them.
///
/// # Errors
///
/// A get that fails.
pub fn view<'k>(door: &mut dyn Door, keys: impl IntoIterator<Item = &'k Vec<u8>>) -> Result<View, String> {
    let how = Get {
        value: true,
        no_bump: true,
        ..Get::default()
    };
    let mut out = Vec::new();
    keys.into_iter()
        .map(|key| {
            out.clear();
            let item = door
                .get(key, &how, &mut out)
                .map_err(|e| format!("get {}: {e}", key.escape_ascii()))?;
            Ok((key.clone(), item.map(|item| Seen::new(&item, &out))))
        })
        .collect()
}

/// The CAS unique of a key, 0 if it is absent.
pub fn cas_of(door: &mut dyn Door, key: &[u8]) -> u64 {
    let how = Get {
        details: true,
        no_bump: true,
        ..Get::default()
    };
    door.get(key, &how, &mut Vec::new()).ok().flatten().map_or(0, |item| item.cas)
}
