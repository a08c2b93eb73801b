//! CONTRACT SKETCH: the signatures that the server and the cli may rely on. Bodies follow.
#![allow(clippy::todo, clippy::unimplemented, missing_docs, unused)]

pub use keyway_region::verbs::*;
use std::path::PathBuf;

/// Where a region lives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place { Memfd, Path(PathBuf) }

#[derive(Clone, Debug)]
pub struct Options {
    /// all-inclusive size of a new region, bytes (an existing region keeps its own)
    pub memory: u64,
    pub huge_pages: bool,
    pub prefault: bool,
    /// largest item (memcached's -I), bytes
    pub item_size_max: usize,
    /// file mode of a new region
    pub mode: u32,
    /// evict when full; false: memcached's -M, a store then fails with OutOfMemory
    pub evict: bool,
}
impl Default for Options { fn default() -> Self { Self { memory: 64 << 20, huge_pages: false, prefault: false, item_size_max: 1 << 20, mode: 0o600, evict: true } } }

#[derive(Debug)] pub enum OpenError { }
impl std::fmt::Display for OpenError { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { unimplemented!() } }
impl std::error::Error for OpenError {}
#[derive(Debug)] pub enum SessionError { TableFull }
impl std::fmt::Display for SessionError { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { unimplemented!() } }
impl std::error::Error for SessionError {}
/// Why a store (or anything that writes) failed
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError { KeyLength { len: usize }, TooLarge { size: usize, limit: usize }, OutOfMemory, Corrupt }
impl std::fmt::Display for WriteError { fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { unimplemented!() } }
impl std::error::Error for WriteError {}

/// One region, open in this process. Cheap to clone; Send + Sync.
#[derive(Clone)]
pub struct Cache;
impl Cache {
    /// Creates the region, or attaches to it if it is there.
    pub fn open(place: &Place, options: &Options) -> Result<Cache, OpenError> { unimplemented!() }
    /// One per thread.
    pub fn session(&self) -> Result<Session, SessionError> { unimplemented!() }
    /// Counters summed over all sessions, all doors, since the region was created.
    pub fn counters(&self) -> Counters { unimplemented!() }
    pub fn info(&self) -> Info { unimplemented!() }
    /// Verifies every invariant of the region.
    pub fn check(&self) -> CheckReport { unimplemented!() }
    /// The last detach: marks the region as cleanly shut down if nobody else has it open. Call after all sessions are dropped.
    pub fn close(self) {}
}

/// A thread's way into the region. Send, not Sync.
pub struct Session;
impl Session {
    /// Copies the value of `key` to the end of `out`. On a hit, `head` is first called to append whatever belongs before
    /// the value (it may be called again, after `out` was cut back, if the item changed meanwhile). A miss leaves `out` as it was.
    pub fn get_with(&mut self, key: &[u8], how: &Get, out: &mut Vec<u8>, head: impl FnMut(&Item, &mut Vec<u8>)) -> Result<Option<Item>, WriteError> { unimplemented!() }
    /// plain get
    pub fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Option<Item> { unimplemented!() }
    pub fn store(&mut self, key: &[u8], value: &[u8], how: &Store) -> Result<Stored, WriteError> { unimplemented!() }
    pub fn delete(&mut self, key: &[u8], how: &Delete) -> Result<Deleted, WriteError> { unimplemented!() }
    pub fn arithmetic(&mut self, key: &[u8], how: &Arithmetic) -> Result<Counted, WriteError> { unimplemented!() }
    /// false: not there
    pub fn touch(&mut self, key: &[u8], exptime: i64) -> Result<bool, WriteError> { unimplemented!() }
    /// memcached's flush_all; `delay` as its argument (0: now)
    pub fn flush_all(&mut self, delay: i64) { unimplemented!() }
    /// Walks live items from `cursor` on (start with 0), at most about `budget` of them; returns the next cursor, `None` at the end.
    pub fn walk(&mut self, cursor: u64, budget: usize, visit: impl FnMut(&[u8], &Item)) -> Option<u64> { unimplemented!() }
    /// Housekeeping in a bounded step: a server calls it about once a second from one thread.
    pub fn upkeep(&mut self) { unimplemented!() }
    /// seconds of the Unix clock as the region sees them
    pub fn now_unix_s(&self) -> i64 { unimplemented!() }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    // gauges
    pub curr_items: u64, pub bytes: u64,
    // monotone
    pub cmd_get: u64, pub cmd_set: u64, pub cmd_flush: u64, pub cmd_touch: u64, pub cmd_meta: u64,
    pub get_hits: u64, pub get_misses: u64, pub get_expired: u64, pub get_flushed: u64,
    pub delete_hits: u64, pub delete_misses: u64,
    pub incr_hits: u64, pub incr_misses: u64, pub decr_hits: u64, pub decr_misses: u64,
    pub cas_hits: u64, pub cas_misses: u64, pub cas_badval: u64,
    pub touch_hits: u64, pub touch_misses: u64,
    pub total_items: u64, pub evictions: u64, pub evicted_unfetched: u64, pub expired_unfetched: u64, pub reclaimed: u64,
    pub store_too_large: u64, pub store_no_memory: u64,
    pub relocations: u64, pub segments_recycled: u64, pub splits: u64, pub recoveries: u64, pub corrupt: u64,
}

/// What a region is and how full it is.
#[derive(Clone, Debug, Default)]
pub struct Info {
    /// it existed before and was attached with its items
    pub warm: bool,
    pub limit_bytes: u64, pub segment_size: u64, pub segments: u64, pub segments_free: u64,
    pub index_buckets: u64, pub index_bytes: u64,
    pub sessions: u64, pub sessions_max: u64,
    pub created_unix_s: i64,
    pub item_size_max: usize,
}

#[derive(Clone, Debug, Default)]
pub struct CheckReport {
    /// what is wrong and where; empty: all invariants hold
    pub problems: Vec<String>,
    /// "name: value" lines for people
    pub summary: Vec<(String, String)>,
}
