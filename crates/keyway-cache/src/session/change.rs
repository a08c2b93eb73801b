//! Changes of a key, each as a value: what it needs of the clock and of the caller's memory, and how it is made. It is made in one way,
//! whether it is a sample or not ([`super::writer`]).

use crate::gate::{Bytes, callers};
use crate::session::slot::RegionTime;
use keyway_region::layout::latency::Verb;
use keyway_region::verbs::{Arithmetic, Counted, Number, Store, Stored, WriteError};
use keyway_region::{Key, Session};

/// A change of a key.
pub trait Change: Copy {
    /// What the caller learns.
    type Done;
    /// As what it is measured.
    const VERB: Verb;
    /// The value, in the caller's memory.
    #[inline(always)]
    fn place(&self) -> Bytes<'_> {
        &[]
    }
    /// Its exptime, and that of an item which it makes; 0 if it has none.
    #[inline(always)]
    fn exptimes(&self) -> [i64; 2] {
        [0; 2]
    }
    /// Makes it, inside the gate. Compiled into the verb.
    fn make(self, session: &mut Session, key: Key<'_>, now: RegionTime<'_>) -> Result<Self::Done, WriteError>;
}

/// A value with these client flags and this exptime, stored whatever is there.
#[derive(Clone, Copy)]
pub struct Put<'v>(pub &'v [u8], pub u32, pub i64);

impl Change for Put<'_> {
    type Done = Stored;
    const VERB: Verb = Verb::Set;

    #[inline(always)]
    fn place(&self) -> Bytes<'_> {
        callers(self.0)
    }

    #[inline(always)]
    fn exptimes(&self) -> [i64; 2] {
        [self.2, 0]
    }

    #[inline(always)]
    fn make(self, session: &mut Session, key: Key<'_>, now: RegionTime<'_>) -> Result<Stored, WriteError> {
        session.set(key, self.0, self.1, self.2, now)
    }
}

/// A value stored by these rules.
#[derive(Clone, Copy)]
pub struct Ruled<'v>(pub &'v Store, pub &'v [u8]);

impl Change for Ruled<'_> {
    type Done = Stored;
    const VERB: Verb = Verb::Set;

    #[inline(always)]
    fn place(&self) -> Bytes<'_> {
        callers(self.1)
    }

    #[inline(always)]
    fn exptimes(&self) -> [i64; 2] {
        [self.0.exptime, 0]
    }

    #[inline(always)]
    fn make(self, session: &mut Session, key: Key<'_>, now: RegionTime<'_>) -> Result<Stored, WriteError> {
        session.store(key, self.1, self.0, now)
    }
}

/// A number counted up, or down, by so much.
#[derive(Clone, Copy)]
pub struct Count<const DOWN: bool>(pub u64);

impl<const DOWN: bool> Change for Count<DOWN> {
    type Done = Number;
    const VERB: Verb = Verb::Arithmetic;

    #[inline(always)]
    fn make(self, session: &mut Session, key: Key<'_>, now: RegionTime<'_>) -> Result<Number, WriteError> {
        match DOWN {
            true => session.decr(key, self.0, now),
            false => session.incr(key, self.0, now),
        }
    }
}

impl Change for &Arithmetic {
    type Done = Counted;
    const VERB: Verb = Verb::Arithmetic;

    #[inline(always)]
    fn exptimes(&self) -> [i64; 2] {
        [self.exptime.unwrap_or(0), self.vivify.map_or(0, |(_, exptime)| exptime)]
    }

    #[inline(always)]
    fn make(self, session: &mut Session, key: Key<'_>, now: RegionTime<'_>) -> Result<Counted, WriteError> {
        session.arithmetic(key, self, now)
    }
}
