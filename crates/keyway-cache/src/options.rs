//! How a region is opened.

use crate::error::OpenError;
use crate::gate::Gate;
#[cfg(doc)]
use crate::{Cache, WriteError};
use keyway_region::ITEM_SIZES;
use keyway_region::Limits;
use keyway_region::layout::plan::Shape;
use keyway_region::layout::plan::THREAD_SLOTS_MIN;
use keyway_region::layout::plan::{MEMORY_MAX, MEMORY_MIN};
use keyway_region::layout::session::Entrance;

/// How to open a region. Each option has a method that sets it, so that a program names only those that it needs:
///
/// ```
/// use keyway_cache::{Cache, Options, Place};
///
/// let options = Options::new().memory(32 << 20).item_size_max(4 << 20).checksums(true);
/// let cache = Cache::open(&Place::Memfd, &options)?;
/// assert_eq!(cache.info().item_size_max, 4 << 20);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// [`Cache::open`] checks the limits: the error has the value, the least and the most. [`Options::check`] does so without
/// opening anything.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Options {
    /// Size of the region, bytes, everything included, at least 2 MiB. An absent region is made. A smaller existing one grows to it,
    /// with all its items; a larger one keeps its size, and so does every one with `keep_memory`.
    ///
    /// `None`: no region is made, and an existing one keeps its size; an absent one is an error ([`OpenError::Absent`]), which names
    /// those that there are. Only [`crate::Place::Memfd`] then has [`Self::MEMORY_DEFAULT`].
    pub memory: Option<u64>,
    /// ask for huge pages
    pub huge_pages: bool,
    /// fault every page in now instead of at its first use
    pub prefault: bool,
    /// Largest item, bytes, counted as memcached counts (its -I), 1 KiB to 1 GiB and at most half of the memory. `None`: 1 MiB.
    ///
    /// This option, `evict` and `flush` are rules of the region, which hold for all its users ([`Cache::limits`]): those of a new
    /// region. An existing one keeps its own, unless a server opens it with another value.
    pub item_size_max: Option<usize>,
    /// file mode of a new region, whatever the process's umask
    pub mode: u32,
    /// Evict when the region is full; otherwise a store then fails with [`WriteError::OutOfMemory`] (memcached's -M). `None`: evict. A
    /// rule of the region, as `item_size_max`.
    pub evict: Option<bool>,
    /// Allow [`crate::Session::flush_all`]; otherwise it fails with [`WriteError::FlushRefused`] (memcached's -F). `None`: allow it. A
    /// rule of the region, as `item_size_max`.
    pub flush: Option<bool>,
    /// `memory` is for a new region: an existing one keeps its own
    pub keep_memory: bool,
    /// whose regions may be opened
    pub owners: Owners,
    /// thread slots of a new region, for all processes, from 32 to one for each 4 KiB of its memory and at most 32,768; one
    /// in eight, and at least 16, are reserved for servers. `None`: one for each 512 KiB, from 32 to 4,096. An existing region
    /// keeps its number
    pub sessions: Option<usize>,
    /// this process is a server, which may take the process slots and thread slots that are reserved for servers
    pub server: bool,
    /// sessions of this server. A new region gets thread slots for them, and for as many of a server that takes over, besides those of
    /// programs, unless `sessions` says how many there are
    #[doc(hidden)]
    pub server_sessions: usize,
    /// the program was written for libmemcached: its calls are shown apart from those of other programs
    #[doc(hidden)]
    pub drop_in: bool,
    /// durable mode: every acknowledged change survives a power failure. A new region then needs persistent memory (DAX); an
    /// existing one must have been made so. The mode of a region holds for all its users, requested or not
    pub durable: bool,
    /// With `durable`, for a measurement: on ordinary memory, each persist barrier 100 ns slower than the instruction, as pmemcached's
    /// authors had it. Nothing outlives a power failure.
    #[doc(hidden)]
    pub durable_rehearsed: bool,
    /// every item of a new region has a checksum that every reader verifies, so data that a process overwrites by mistake is
    /// a miss or an error for the others. An existing region must have been made so. This holds for all its users, requested
    /// or not
    pub checksums: bool,
    /// after this many seconds without any user, [`Self::gap`] applies; `None`: never
    pub gap_max_s: Option<u64>,
    /// what to do with the items after a longer gap
    pub gap: Gap,
    /// whether the region's mapping is inaccessible outside calls
    pub gate: Gate,
    /// Keep no descriptor that can read or write the region, or be mapped. The cache can then not [`Cache::grow`] and not be
    /// handed out. Where this user may not open the file by itself, it does not notice the death of other processes (others
    /// do). A forked child does not have it ([`OpenError::KeptOut`])
    pub sealed: bool,
}

/// Writes a method for each option.
macro_rules! setters {
    ($($name:ident: $kind:ty,)*) => {$(
        #[doc = concat!("Sets [`Self::", stringify!($name), "`](#structfield.", stringify!($name), ").")]
        #[must_use]
        pub fn $name(mut self, $name: $kind) -> Self {
            self.$name = $name;
            self
        }
    )*};
}

impl Options {
    /// Memory of a new region unless the caller requests another size, bytes: memcached's default.
    pub const MEMORY_DEFAULT: u64 = 64 << 20;

    /// The default options: the region that is there, or one with items to 1 MiB and file mode 0600; all else off.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        huge_pages: bool,
        prefault: bool,
        mode: u32,
        keep_memory: bool,
        owners: Owners,
        durable: bool,
        checksums: bool,
        gap: Gap,
        gate: Gate,
        sealed: bool,
    }

    /// Sets [`Self::memory`](#structfield.memory): bytes, or `None` for a region that is there.
    #[must_use]
    pub fn memory(mut self, memory: impl Into<Option<u64>>) -> Self {
        self.memory = memory.into();
        self
    }

    /// Sets [`Self::sessions`](#structfield.sessions): a number, or `None` for the default.
    #[must_use]
    pub fn sessions(mut self, sessions: impl Into<Option<usize>>) -> Self {
        self.sessions = sessions.into();
        self
    }

    /// Sets [`Self::item_size_max`](#structfield.item_size_max): bytes, or `None` for the region's own.
    #[must_use]
    pub fn item_size_max(mut self, item_size_max: impl Into<Option<usize>>) -> Self {
        self.item_size_max = item_size_max.into();
        self
    }

    /// Sets [`Self::evict`](#structfield.evict): whether, or `None` for the region's own rule.
    #[must_use]
    pub fn evict(mut self, evict: impl Into<Option<bool>>) -> Self {
        self.evict = evict.into();
        self
    }

    /// Sets [`Self::flush`](#structfield.flush): whether, or `None` for the region's own rule.
    #[must_use]
    pub fn flush(mut self, flush: impl Into<Option<bool>>) -> Self {
        self.flush = flush.into();
        self
    }

    /// Sets [`Self::gap_max_s`](#structfield.gap_max_s): seconds, or `None` for never.
    #[must_use]
    pub fn gap_max_s(mut self, gap_max_s: impl Into<Option<u64>>) -> Self {
        self.gap_max_s = gap_max_s.into();
        self
    }

    /// Whether a new region can be made with these options; without `memory`, whether one of any memory can.
    ///
    /// ```
    /// use keyway_cache::Options;
    ///
    /// let error = Options::new().memory(1 << 20).check().unwrap_err();
    /// assert_eq!(
    ///     error.to_string(),
    ///     "1048576 bytes of memory were requested: a region has at least 2097152 bytes (2 MiB); request more",
    /// );
    /// ```
    ///
    /// # Errors
    ///
    /// [`OpenError::Memory`], [`OpenError::ItemSize`], [`OpenError::Sessions`] and [`OpenError::Mode`] name the value, the
    /// limits and the remedy.
    pub fn check(&self) -> Result<(), OpenError> {
        self.check_limits()?;
        check_item_size(
            self.limits(Limits::default()).item_size_max,
            self.memory.unwrap_or(MEMORY_MAX),
        )?;
        check_sessions(self, self.memory.unwrap_or(MEMORY_MAX))
    }

    /// These rules, and for the others those of the region.
    pub(crate) fn limits(&self, of_region: Limits) -> Limits {
        Limits {
            item_size_max: self.item_size_max.unwrap_or(of_region.item_size_max),
            evict: self.evict.unwrap_or(of_region.evict),
            flush: self.flush.unwrap_or(of_region.flush),
        }
    }

    /// Memory of a region that is made with these options, bytes.
    pub(crate) fn memory_of_new(&self) -> u64 {
        self.memory.unwrap_or(Self::MEMORY_DEFAULT)
    }

    /// What the process is.
    pub(crate) fn entrance(&self) -> Entrance {
        match (self.server, self.drop_in) {
            (true, _) => Entrance::Server,
            (false, true) => Entrance::DropIn,
            (false, false) => Entrance::Library,
        }
    }

    /// The limits that hold for existing regions too.
    pub(crate) fn check_limits(&self) -> Result<(), OpenError> {
        if let Some(asked) = self.memory.filter(|memory| !(MEMORY_MIN..=MEMORY_MAX).contains(memory)) {
            return Err(OpenError::Memory {
                asked,
                least: MEMORY_MIN,
                most: MEMORY_MAX,
            });
        }
        match self.mode & !MODE_BITS {
            0 => Ok(()),
            _ => Err(OpenError::Mode { asked: self.mode }),
        }
    }
}

/// The permission bits of a file's mode (chmod(2)).
const MODE_BITS: u32 = 0o777;

/// For the server and its tests.
#[doc(hidden)]
impl Options {
    setters! {
        server: bool,
        server_sessions: usize,
        drop_in: bool,
        durable_rehearsed: bool,
    }
}

impl Default for Options {
    /// The region that is there; file mode 0600.
    fn default() -> Self {
        Self {
            memory: None,
            huge_pages: false,
            prefault: false,
            item_size_max: None,
            mode: 0o600,
            evict: None,
            flush: None,
            keep_memory: false,
            owners: Owners::AsNamed,
            sessions: None,
            server: false,
            server_sessions: 0,
            drop_in: false,
            durable: false,
            durable_rehearsed: false,
            checksums: false,
            gap_max_s: None,
            gap: Gap::Serve,
            gate: Gate::WherePossible,
            sealed: false,
        }
    }
}

/// Which owners of a region's file are accepted. The owner of a file can read and change it at any time, and end the
/// processes that have it mapped by truncating it (SIGBUS). Except with [`Owners::Any`], a file must also have only one name
/// (no hard links), because another user may have made the others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Owners {
    /// for a file: this process's effective user, and no other user may write it unless [`Options::mode`] permits it (`o+w`).
    /// For a region from a server's socket: any owner, because the caller named the socket
    #[default]
    AsNamed,
    /// this process's effective user, root, and these users (by number), for a place that another process has named
    Only(Vec<u32>),
    /// any owner, any mode, any number of names
    Any,
}

/// What to do with the items of a region that no process has used for longer than [`Options::gap_max_s`]. The originals may
/// have changed during this time, and no process could delete the items.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gap {
    /// serve them as usual
    #[default]
    Serve,
    /// serve them as stale: a meta get reports this (flag X), and one client wins the right to fetch the item again (flag W)
    Stale,
    /// flush them
    Flush,
}

/// Smallest page, bytes: the number of thread slots is the same for all page sizes.
const PAGE_SIZE_MIN: usize = 4096;
/// Whether a region of this memory can have as many thread slots as requested, or as this server needs.
pub(crate) fn check_sessions(options: &Options, memory: u64) -> Result<(), OpenError> {
    let (least, most) = (THREAD_SLOTS_MIN, Shape::thread_slots_max(memory));
    let needed = shape_of(options, memory, PAGE_SIZE_MIN).thread_slots;
    match options.sessions {
        Some(asked) if !(least..=most).contains(&asked) => Err(OpenError::Sessions { asked, least, most }),
        None if needed > most => Err(OpenError::ServerSessions {
            sessions: options.server_sessions,
            needed,
            most,
        }),
        _ => Ok(()),
    }
}

/// The shape of a new region.
pub(crate) fn shape_of(options: &Options, memory: u64, page_size: usize) -> Shape {
    let shape = Shape::for_memory(memory, page_size);
    match options.sessions {
        Some(asked) => shape.with_thread_slots(asked),
        None => shape.with_server(options.server_sessions),
    }
}

/// Whether a region of this memory can have items of the requested size.
pub(crate) fn check_item_size(asked: usize, memory: u64) -> Result<(), OpenError> {
    // The memory of a region is a little less than requested, but never a MiB less.
    let half = usize::try_from(memory.next_multiple_of(1 << 20) / 2).unwrap_or(usize::MAX);
    let (least, most) = (*ITEM_SIZES.start(), half.min(*ITEM_SIZES.end()));
    if asked < least || asked > most {
        Err(OpenError::ItemSize { asked, least, most })
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cache, Place};

    #[test]
    fn each_limit_is_named_with_the_value_and_the_remedy() {
        let small = Options::new().memory(4 << 20);
        for (options, parts) in [
            (
                small.clone().memory(1),
                ["1 bytes of memory", "at least 2097152 bytes (2 MiB)", "request more"],
            ),
            (
                small.clone().memory(1 << 60),
                ["1152921504606846976 bytes", "at most", "request less"],
            ),
            (
                small.clone().item_size_max(1),
                ["item of 1 bytes", "1024 to 2097152 bytes", "request another size"],
            ),
            (
                small.clone().item_size_max(3 << 20),
                ["3145728 bytes", "1024 to 2097152", "or more memory"],
            ),
            (
                small.clone().sessions(31),
                ["31 thread slots", "32 to 1024", "request another number"],
            ),
            (
                small.clone().sessions(1025),
                ["1025 thread slots", "32 to 1024", "or more memory"],
            ),
            (
                small.clone().mode(0o1777),
                ["0o1777", "0 to 0o777", "leave the other bits out"],
            ),
        ] {
            let checked = options.check().expect_err("a limit").to_string();
            let opened = Cache::open(&Place::Memfd, &options).err().expect("a limit").to_string();
            assert_eq!(checked, opened);
            for part in parts {
                assert!(checked.contains(part), "{part:?} is not in {checked:?}");
            }
        }
        for options in [
            small.clone(),
            small.clone().item_size_max(2 << 20).mode(0o666),
            small.sessions(1024),
        ] {
            options.check().unwrap();
            Cache::open(&Place::Memfd, &options).unwrap();
        }
    }
}
