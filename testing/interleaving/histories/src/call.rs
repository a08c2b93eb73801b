//! What is asked of a cache and what it answers, as far as a model can follow: keys are numbers, values are [`Value`]s.

use crate::value::{self, Value};
use keyway_proto::Command;

/// A key. What kind of key it is, is in its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(pub u32);

impl Key {
    const NUMBER: u32 = 1 << 30;
    const FILLER: u32 = 1 << 31;

    /// A key whose values are decimal numbers.
    pub fn number(n: u32) -> Self {
        Self(Self::NUMBER | n)
    }

    /// A key that one writer alone stores, once: what fills the index.
    pub fn filler(writer: u32, n: u32) -> Self {
        Self(Self::FILLER | (writer & 0x3FFF) << 16 | n & 0xFFFF)
    }

    /// Whether its values are numbers.
    pub fn is_number(self) -> bool {
        self.0 & (Self::NUMBER | Self::FILLER) == Self::NUMBER
    }

    /// Whether it is one that fills the index.
    pub fn is_filler(self) -> bool {
        self.0 & Self::FILLER != 0
    }

    /// Its name in the cache, in a round of its own.
    pub fn name(self, round: u32) -> String {
        format!("{round:x}-{:x}", self.0)
    }
}

/// The verbs.
#[allow(missing_docs, reason = "memcached's names")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Verb {
    Get,
    Gat,
    Touch,
    Set,
    Add,
    Replace,
    Append,
    Prepend,
    Cas,
    Delete,
    Incr,
    Flush,
    FetchBegin,
    FetchStore,
}

impl Verb {
    /// All of them; the place of each is its number.
    pub const ALL: [Self; 14] = [
        Self::Get,
        Self::Gat,
        Self::Touch,
        Self::Set,
        Self::Add,
        Self::Replace,
        Self::Append,
        Self::Prepend,
        Self::Cas,
        Self::Delete,
        Self::Incr,
        Self::Flush,
        Self::FetchBegin,
        Self::FetchStore,
    ];

    /// The verb by which histories hold a command of the server. `None`: another command asks for the same, or it is about the server.
    pub const fn of(command: Command) -> Option<Self> {
        Some(match command {
            Command::Get | Command::Gets => Self::Get,
            Command::Gat | Command::Gats => Self::Gat,
            Command::Touch => Self::Touch,
            Command::Set => Self::Set,
            Command::Add => Self::Add,
            Command::Replace => Self::Replace,
            Command::Append => Self::Append,
            Command::Prepend => Self::Prepend,
            Command::Cas => Self::Cas,
            Command::Delete => Self::Delete,
            Command::Incr => Self::Incr,
            Command::FlushAll => Self::Flush,
            Command::LeaseGet => Self::FetchBegin,
            Command::LeaseSet => Self::FetchStore,
            _ => return None,
        })
    }
}

/// A call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// what to do
    pub verb: Verb,
    /// to which key (of no meaning to [`Verb::Flush`])
    pub key: Key,
    /// what to store: a piece's id, or a number; what to add, for [`Verb::Incr`]; a get's answer does not depend on it
    pub argument: u64,
    /// [`Verb::Cas`]: the unique that the item must have; [`Verb::FetchStore`]: the flight
    pub compare: u64,
    /// length of the piece to store, bytes
    pub len: u32,
    /// exptime; negative: the item is gone as soon as it is there
    pub exptime: i32,
}

impl Call {
    /// A call without an argument.
    pub fn new(verb: Verb, key: Key) -> Self {
        Self {
            verb,
            key,
            argument: 0,
            compare: 0,
            len: 0,
            exptime: 0,
        }
    }

    /// The bytes to store.
    pub fn bytes(&self) -> Vec<u8> {
        if self.key.is_number() {
            self.argument.to_string().into_bytes()
        } else {
            value::make(self.key, self.argument, usize::try_from(self.len).unwrap_or(0))
        }
    }

    /// What is stored, to the model.
    pub fn value(&self) -> Value {
        if self.key.is_number() {
            Value::number(self.argument)
        } else {
            Value::piece(self.argument)
        }
    }
}

/// An answer. A CAS unique of 0 is one that was not told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// the value
    Hit {
        /// what it is
        value: Value,
        /// its unique
        cas: u64,
    },
    /// there is none
    Miss,
    /// the value is in
    Stored {
        /// its unique
        cas: u64,
    },
    /// add: there is one; replace, append, prepend: there is none
    NotStored,
    /// append, prepend: there is none, or no memory for the longer value
    NotJoined,
    /// another unique
    Exists,
    /// there is none
    NotFound,
    /// it is gone
    Deleted,
    /// the number as it is now
    Number {
        /// the number
        number: u64,
        /// its unique
        cas: u64,
    },
    /// touched
    Touched,
    /// flushed
    Flushed,
    /// there is none, and the caller computes it
    Claimed {
        /// what its store says
        flight: u64,
    },
    /// there is none, and another caller computes it
    InFlight,
    /// the flight has ended before the store
    Void,
    /// no memory for it: nothing was done
    Refused,
    /// bytes that were never stored, or an answer that makes no sense
    Torn,
}

/// A way into a cache.
pub trait Door {
    /// Calls, and waits for the answer; `None`: it was lost, and the caller does not know whether the call took effect.
    fn call(&mut self, call: &Call) -> Option<Answer>;
}
