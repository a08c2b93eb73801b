//! The memcached verbs as data: the requests and the answers.
//!
//! `exptime` is always memcached's (protocol.txt, "Expiration times"): 0 is never, negative is immediately, up to 30 days are
//! relative seconds, above that a Unix time.

/// Longest key, bytes (protocol.txt, "Keys").
pub const KEY_LEN_MAX: usize = 250;
/// Above this an exptime is a Unix time (protocol.txt, "Expiration times").
pub const RELATIVE_EXPTIME_MAX: i64 = 60 * 60 * 24 * 30;

/// What is known of an item besides its key and value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// length of the value, bytes
    pub value_len: usize,
    /// client flags
    pub flags: u32,
    /// CAS unique (0 unless [`Get::details`] was requested)
    pub cas: u64,
    /// seconds left; `None`: never expires
    pub ttl_s: Option<u32>,
    /// seconds since the last access before this one, rounded down to about 16 (with [`Get::details`])
    pub idle_s: u32,
    /// whether it had been fetched before this operation (with [`Get::details`])
    pub fetched: bool,
    /// it was marked stale
    pub stale: bool,
    /// this caller won the right to recache it
    pub win: bool,
    /// another caller has won before
    pub win_sent: bool,
    /// its key is opaque bytes, which a text protocol has to encode
    pub opaque_key: bool,
    /// bytes it takes in the region, header included
    pub size: usize,
}

/// The time of an operation, as a tick of the region's clock ([`crate::Clock::tick`]), for a caller that reads its clock only
/// where that decides something.
pub trait Now {
    /// The present tick.
    fn tick(&mut self) -> u32;

    /// A recent tick, for what is only noted as a hint. `noted`: the region's note of its last use ([`crate::Clock::seen`]).
    #[inline(always)]
    fn recent(&mut self, noted: u64) -> u32 {
        let _ = noted;
        self.tick()
    }
}

impl Now for u32 {
    #[inline(always)]
    fn tick(&mut self) -> u32 {
        *self
    }
}

impl<N: Now> Now for &mut N {
    #[inline(always)]
    fn tick(&mut self) -> u32 {
        N::tick(self)
    }

    #[inline(always)]
    fn recent(&mut self, noted: u64) -> u32 {
        N::recent(self, noted)
    }
}

/// The options of a get. Further fields may be added: end it with `..Get::default()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Get {
    /// copy the value
    pub value: bool,
    /// also fill in [`Item::cas`], [`Item::idle_s`] and [`Item::fetched`], which are in other cache lines
    pub details: bool,
    /// do not copy the value if the CAS unique equals this (needs `details`)
    pub unless_cas: Option<u64>,
    /// do not copy a value of more bytes than this
    pub at_most: Option<usize>,
    /// a stale item that no client has won yet is won by this get (`mg`)
    pub win_stale: bool,
    /// leave recency, frequency and "fetched" alone
    pub no_bump: bool,
    /// new exptime (touch)
    pub exptime: Option<i64>,
    /// on a miss create an empty item with this exptime, and win
    pub vivify: Option<i64>,
    /// win if the TTL left is below this many seconds
    pub recache_s: Option<i64>,
    /// `recache_s` applies to the TTL that `exptime` gives (flag R after flag T), not to the one before
    pub recache_after_touch: bool,
    /// CAS unique to give to an item created here
    pub new_cas: Option<u64>,
    /// the key of an item created here is opaque bytes
    pub opaque_key: bool,
}

impl Get {
    /// Whether this get wins the right to recache (protocol.txt, "Meta Get", flags N, R and the answer W).
    pub(crate) fn wins(&self, item: &Item, ttl_s: Option<u32>) -> bool {
        if item.win_sent {
            return false;
        }
        let soon = self
            .recache_s
            .is_some_and(|limit| ttl_s.is_some_and(|ttl| i64::from(ttl) < limit));
        soon || (item.stale && self.win_stale)
    }

    /// The value, and what is known of the item without other cache lines.
    pub const VALUE: &'static Self = &Self {
        value: true,
        details: false,
        unless_cas: None,
        at_most: None,
        win_stale: false,
        no_bump: false,
        exptime: None,
        vivify: None,
        recache_s: None,
        recache_after_touch: false,
        new_cas: None,
        opaque_key: false,
    };

    /// Whether it asks for no more than the value, the client flags and the time left.
    #[inline(always)]
    pub(crate) fn is_plain(&self) -> bool {
        !(self.details || self.win_stale)
            && self.unless_cas.is_none()
            && self.exptime.is_none()
            && self.vivify.is_none()
            && self.recache_s.is_none()
    }

    /// Whether it may change the item, or create one.
    #[inline]
    pub fn may_change(&self) -> bool {
        self.win_stale || self.exptime.is_some() || self.vivify.is_some() || self.recache_s.is_some()
    }
}

/// The result of a reader's get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// the item is present
    Hit(Item),
    /// it is absent, or it is corrupted
    Miss,
    /// it has expired; its memory is not reused yet
    Expired,
    /// the get requests a change, which a reader cannot make
    Change,
}

/// The condition of a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoreMode {
    /// always
    #[default]
    Set,
    /// only if absent
    Add,
    /// only if present
    Replace,
    /// after the present value
    Append,
    /// before the present value
    Prepend,
}

/// The options of a store. Further fields may be added: end it with `..Store::default()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Store {
    /// condition
    pub mode: StoreMode,
    /// client flags (append and prepend keep the old ones)
    pub flags: u32,
    /// exptime (append and prepend keep the old one)
    pub exptime: i64,
    /// store only if the item's CAS unique equals this
    pub compare_cas: Option<u64>,
    /// CAS unique to give instead of a new one
    pub new_cas: Option<u64>,
    /// a lower `compare_cas` stores too, and marks the item stale
    pub invalidate: bool,
    /// append and prepend: on a miss create the item with this exptime
    pub vivify: Option<i64>,
    /// the key is opaque bytes
    pub opaque_key: bool,
}

impl Store {
    /// Whether it stores whatever is there, and gives the item nothing but its value, client flags and exptime.
    #[inline(always)]
    pub fn is_plain(&self) -> bool {
        self.replaces_anything() && self.new_cas.is_none() && !self.opaque_key
    }

    /// Whether it is a set, which stores whatever is there. One for which there is no room removes what is there: the errors of
    /// [`WriteError::is_for_room`].
    #[inline(always)]
    pub fn replaces_anything(&self) -> bool {
        self.mode == StoreMode::Set && self.compare_cas.is_none()
    }
}

/// The result of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// the value is stored
    Stored {
        /// CAS unique of the new item
        cas: u64,
        /// length of the value as it is now, bytes
        value_len: usize,
        /// bytes it takes in the region
        size: usize,
    },
    /// add: present; replace, append, prepend: absent
    NotStored,
    /// the CAS unique did not match
    Exists,
    /// `compare_cas` was given and the key is absent
    NotFound,
}

/// The options of a delete. Further fields may be added: end it with `..Delete::default()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delete {
    /// only if the item's CAS unique equals this
    pub compare_cas: Option<u64>,
    /// CAS unique of an item that stays
    pub new_cas: Option<u64>,
    /// mark as stale instead
    pub invalidate: bool,
    /// with `invalidate` or `remove_value`: new exptime
    pub exptime: Option<i64>,
    /// keep the item, drop its value and client flags; it lives until `exptime`, or for ever
    pub remove_value: bool,
    /// no client requested this: it is not counted as a delete
    pub uncounted: bool,
}

/// The result of a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// removed, or marked
    Deleted,
    /// the key was absent
    NotFound,
    /// the CAS unique did not match
    Exists,
}

/// The options of an increment or decrement. Further fields may be added: end it with `..Arithmetic::default()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arithmetic {
    /// the amount
    pub delta: u64,
    /// subtract, and stop at 0; otherwise add, modulo 2^64
    pub decrement: bool,
    /// on a miss create the item with this value and exptime
    pub vivify: Option<(u64, i64)>,
    /// new exptime
    pub exptime: Option<i64>,
    /// only if the item's CAS unique equals this
    pub compare_cas: Option<u64>,
    /// CAS unique to give instead of a new one
    pub new_cas: Option<u64>,
    /// the key is opaque bytes
    pub opaque_key: bool,
}

/// The result of an increment or decrement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// the number is now `value`
    Value {
        /// the number
        value: u64,
        /// the item as it is now
        item: Item,
    },
    /// the key was absent
    NotFound,
    /// the CAS unique did not match
    Exists,
    /// the value is not a decimal number below 2^64
    NotANumber,
}

/// The outcome of arithmetic for a caller that needs only the number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Number {
    /// the number as it is now
    Is(u64),
    /// the key was absent
    NotFound,
    /// the value is not a decimal number below 2^64
    NotANumber,
}

impl From<Counted> for Number {
    /// From a request that did not compare CAS uniques.
    fn from(counted: Counted) -> Self {
        match counted {
            Counted::Value { value, .. } => Self::Is(value),
            Counted::NotFound | Counted::Exists => Self::NotFound,
            Counted::NotANumber => Self::NotANumber,
        }
    }
}

/// Why a write could not be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum WriteError {
    /// the key is empty or longer than [`KEY_LEN_MAX`]
    KeyLength {
        /// its length, bytes
        len: usize,
    },
    /// the item is larger than the largest allowed
    TooLarge {
        /// bytes that it would take, as memcached counts them
        size: usize,
        /// largest allowed
        limit: usize,
    },
    /// nothing can be evicted (or eviction is off and the region is full)
    OutOfMemory,
    /// the region is not to be flushed (-F)
    FlushRefused,
    /// this process has no memory for a copy that the operation needs; the region has memory, and is unchanged
    NoMemory {
        /// bytes of the value
        len: usize,
    },
    /// shared memory is corrupted: it holds a value that no version of Keyway writes; `keyway check` says where
    Corrupt,
    /// the session belongs to another process (inherited by a fork); or its thread slot was given back and none is free
    Detached,
    /// a server answers from copies of items (the kernel door), and this process cannot count its changes for it
    KernelDoor,
    /// this process may only read, and the server that writes for it could not be reached, or its answer was not understood
    Unserved,
    /// a fetch of a key that this thread is computing: it would wait for itself
    OwnFlight,
}

impl core::fmt::Display for WriteError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::KeyLength { len } => write!(f, "a key has 1 to {KEY_LEN_MAX} bytes, this one {len}"),
            Self::TooLarge { size, limit } => {
                write!(
                    f,
                    "the item takes {size} bytes, and the region allows {limit} (start its server with a larger -I, or --max-item)"
                )
            }
            Self::OutOfMemory => f.write_str(
                "out of memory: the region is full, and nothing can be evicted, or may be (give it more memory; where it was made with -M, \
                 or --no-evict, start its server with evictions on)",
            ),
            Self::FlushRefused => {
                f.write_str("flush_all is not allowed in this region (start its server with flushes on: without -F, or --no-flush)")
            }
            Self::NoMemory { len } => write!(
                f,
                "this process has no memory for a copy of {len} bytes (its limit is `ulimit -v`, its control group's or the machine's)"
            ),
            Self::Detached => {
                f.write_str("the session is not attached: in a forked child reopen the region; otherwise ask for a new one")
            }
            Self::KernelDoor => f.write_str(
                "a server answers from the kernel (--kernel), and this process cannot tell it of changes: open the region through \
                 the server's --region-socket, or write through one of its sockets",
            ),
            Self::Unserved => f.write_str(
                "this process may only read the region, and the server that writes for it does not answer: see whether it runs",
            ),
            Self::OwnFlight => f.write_str(
                "this thread is computing the value of this key already: a fetch of it from within its own computation would wait for itself",
            ),
            Self::Corrupt => f.write_str("the region is damaged: run `keyway check` on it, or recreate it"),
        }
    }
}

impl WriteError {
    /// Whether the region has no room for the item: a set that fails so has removed the item that it was to replace.
    #[inline]
    pub fn is_for_room(&self) -> bool {
        matches!(self, Self::TooLarge { .. } | Self::OutOfMemory)
    }
}

impl core::error::Error for WriteError {}
