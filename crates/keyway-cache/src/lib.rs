//! Keyway's library door: a memcached-compatible cache as function calls on shared memory.
//!
//! It works with or without a running server: the first process creates the region, and every process sees what another
//! one stores.
//!
//! ```
//! use keyway_cache::{Cache, Options, Place};
//!
//! let options = Options::new().memory(64 << 20);
//! let cache = Cache::open(&Place::Memfd, &options)?;   // or Place::at("/dev/shm/keyway.region")
//! let mut session = cache.session()?;                  // one per thread
//! session.set(b"greeting", b"hello", 60)?;             // for 60 seconds
//! assert_eq!(session.get(b"greeting")?, Some(b"hello".to_vec()));
//! assert_eq!(session.get(b"absent")?, None);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! | to | use | it fails with |
//! |---|---|---|
//! | open a region | [`Cache::open`] with a [`Place`] and [`Options`] | [`OpenError`] |
//! | attach a thread | [`Cache::session`], or [`Cache::with_session`], which keeps one for each thread | [`SessionError`], [`LocalError`] |
//! | read | [`Session::get`], [`Session::get_append`]; with conditions [`Session::get_with`] and a [`Get`] | [`ReadError`]; [`WriteError`] |
//! | read, write or delete many keys at once | [`Session::get_many`], [`Session::set_many`], …; before other verbs [`Session::prefetch`] | the same |
//! | write | [`Session::set`], [`Session::incr`], [`Session::delete`], …; with conditions [`Store`], [`Arithmetic`], [`Delete`] | [`WriteError`] |
//! | change the memory of a region | [`Cache::grow`], [`Cache::limit`] | [`GrowError`] |
//! | copy or verify a region | [`Cache::copy_to`], [`Cache::check`] | [`CopyError`] |
//!
//! The structs [`Get`], [`Store`], [`Delete`] and [`Arithmetic`] may get further fields: end them with `..Get::default()`.
//!
//! What only Keyway's own server and bindings need is in [`server`].
//!
//! Only this crate knows the operating system's side of a region: files, mappings, locks, the clock. It never knows a
//! wire protocol, except in `peer.rs`, which sends the writes of a reader.

/// The README's program.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod attach;
mod blocks;
mod buffer;
mod bulk;
mod cancel;
mod clock;
mod connection;
mod copy;
mod creation;
mod curve;
mod descriptor;
mod error;
mod fork;
mod gate;
mod handout;
mod here;
mod hot;
mod kernel;
mod limits;
mod liveness;
mod local;
mod mapping;
mod nodes;
mod options;
mod pages;
mod peer;
mod place;
mod presence;
mod proc;
mod reader;
mod record;
mod resident;
mod restart;
pub mod server;
mod session;
mod sessions;
mod socket;
mod survey;
mod timer;
mod trace;
mod trust;
mod wait;
pub mod watch;
mod writer;

use attach::Access;
use keyway_region::{Life, Region, SessionId};
use sessions::{Role, Sessions};
use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use blocks::CopiesOnWrite;
pub use copy::{Copied, CopyError};
pub use curve::{MemoryCurve, Prediction, PredictionState, Predictions};
pub use error::{GrowError, LocalError, OpenError, ReadError, SessionError};
pub use gate::{Gate, GateState};
pub use hot::{Hot, HotCounts};
pub use keyway_region::AHEAD_MAX;
pub use keyway_region::Ages;
pub use keyway_region::Limits;
pub use keyway_region::Shrinking;
pub use keyway_region::Target;
pub use keyway_region::Unusable;
pub use keyway_region::check::Report as CheckReport;
pub use keyway_region::layout::hot::By as HotBy;
pub use keyway_region::layout::latency::{Door, Latencies, Latency, Verb};
pub use keyway_region::layout::stats::Counters;
pub use keyway_region::verbs::*;
pub use keyway_region::{Left, Trace, Whereabouts};
pub use limits::Limit;
pub use options::{Gap, Options, Owners};
pub use session::Session;

/// Where a region is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// in anonymous memory of this process; it is lost when the process ends
    Memfd,
    /// in a file: on tmpfs (`/dev/shm`), hugetlbfs or any other file system
    Path(PathBuf),
    /// at a server, which hands it out through this Unix socket (`keyway serve --region-socket`): it exists already, and
    /// keeps its size
    Socket(PathBuf),
}

impl Place {
    /// The place at this path: a server's region socket if it is a socket, otherwise a region's file, which may be created.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        use std::os::unix::fs::FileTypeExt;
        let path = path.into();
        match std::fs::metadata(&path) {
            Ok(meta) if meta.file_type().is_socket() => Self::Socket(path),
            _ => Self::Path(path),
        }
    }
}

impl Place {
    /// Whether no file is at this place and its name looks like the address of a server: `Cache::open` then refuses it
    /// ([`OpenError::Address`]), and a binding may refuse it earlier.
    pub fn names_a_server(&self) -> bool {
        match self {
            Self::Path(path) => place::is_address(path) && !path.exists(),
            Self::Memfd | Self::Socket(_) => false,
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memfd => f.write_str("memfd"),
            Self::Path(path) | Self::Socket(path) => path.display().fmt(f),
        }
    }
}

/// Properties of a region and how full it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names and units say it")]
#[non_exhaustive]
pub struct Info {
    /// it existed before, and was attached with its items
    pub warm: bool,
    /// how long the attach (or the creation) took
    pub attached_in: Duration,
    /// bytes of memory that it may use, everything included: its size, or a lower limit ([`Cache::limit`])
    pub limit_bytes: u64,
    pub segment_bytes: u64,
    pub segments: u64,
    pub segments_free: u64,
    /// out of use, because of the limit
    pub segments_withdrawn: u64,
    /// those of them whose memory was given back to the system
    pub segments_given_back: u64,
    pub index_buckets: u64,
    pub index_bytes: u64,
    /// threads attached, of all processes
    pub sessions: u64,
    pub sessions_max: u64,
    /// how many of `sessions_max` are reserved for servers
    pub sessions_of_servers: u64,
    /// process slots, those reserved for servers included
    pub processes_max: u64,
    /// the old region at the place was discarded when this process attached: the machine stopped while it was in use, so
    /// parts of it may be missing on the disk
    pub discarded: bool,
    pub created_unix_s: i64,
    /// largest item that it allows, bytes
    pub item_size_max: usize,
    /// whether it evicts when it is full
    pub evict: bool,
    /// whether it may be flushed
    pub flush: bool,
    pub checksums: bool,
    /// whether the mapping is inaccessible to this process outside calls
    pub gate: GateState,
}

/// What is now at the place where a region was opened. Without a name (anonymous memory, or a server's socket) it is always
/// the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtPlace {
    /// the region
    Same,
    /// another file, which a process that opens the place now gets
    Another,
    /// nothing: a process that opens the place now makes a new region
    Nothing,
    /// the system does not say
    Unknown,
}

/// One region, open in this process. Cheap to clone; usable from every thread.
#[derive(Clone)]
pub struct Cache {
    inner: Arc<Inner>,
}

struct Inner {
    sessions: Arc<Sessions>,
    /// where the region is mapped
    mapped: std::ops::Range<usize>,
    warm: bool,
    /// a region that was cut off by the end of a boot was at the place, and was discarded
    discarded: bool,
    attached_in: Duration,
    /// whether what is in memory must be written back to outlive the machine's next boot
    on_disk: bool,
    place: Place,
    options: Options,
    doorway: kernel::Doorway,
    gate: GateState,
    /// a forked child's own
    again: fork::PerProcess<Cache>,
}

impl Cache {
    /// Attaches to the region at `place`, or makes it, if the options say how much memory it has.
    ///
    /// ```
    /// use keyway_cache::{Cache, OpenError, Options, Place};
    ///
    /// let path = std::env::temp_dir().join(format!("keyway-doc-{}", std::process::id()));
    /// let options = Options::new().memory(16 << 20);
    /// let cache = Cache::open(&Place::at(&path), &options)?;               // makes the file
    /// let same = Cache::open(&Place::at(&path), &Options::new())?;
    /// cache.session()?.set(b"key", b"value", 0)?;
    /// assert!(same.session()?.get(b"key")?.is_some());
    ///
    /// let other = path.with_extension("text");
    /// std::fs::write(&other, "no region")?;
    /// assert!(matches!(Cache::open(&Place::at(&other), &options), Err(OpenError::Unusable { .. })), "and it is left as it is");
    /// # std::fs::remove_file(&path)?;
    /// # std::fs::remove_file(&other)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`OpenError`] names the file, what is wrong with it, and what to do. A file that is not a region is never overwritten.
    pub fn open(place: &Place, options: &Options) -> Result<Self, OpenError> {
        if let Some(cache) = resident::of(place) {
            return Ok(cache);
        }
        let begun = Instant::now();
        let mut inner = attach::open(place, options)?;
        inner.attached_in = begun.elapsed();
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Opens the anonymous memory of an earlier process, which another one has kept for a restart: its items are there.
    ///
    /// # Errors
    ///
    /// [`OpenError`]; also if the descriptor does not lead to anonymous memory of this user.
    #[doc(hidden)]
    pub fn open_kept(memory: &std::fs::File, options: &Options) -> Result<Self, OpenError> {
        let begun = Instant::now();
        let mut inner = attach::open_kept(memory, options)?;
        inner.attached_in = begun.elapsed();
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The cache of this process. In a forked child it is opened again at the first call, with a process slot of its own. The
    /// parent's mapping and sessions do not belong to the child, and using them there fails with an error.
    ///
    /// # Errors
    ///
    /// The region is gone, is anonymous memory, was opened [`Options::sealed`], or has no process slot left.
    #[inline]
    pub fn here(&self) -> Result<&Self, OpenError> {
        if self.inner.sessions.home.is_here() {
            Ok(self)
        } else {
            self.open_again()
        }
    }

    #[cold]
    fn open_again(&self) -> Result<&Self, OpenError> {
        let inner = &*self.inner;
        if let Some(own) = inner.again.get() {
            return Ok(own);
        }
        let path = match &inner.place {
            Place::Memfd => return Err(OpenError::Forked),
            Place::Path(path) | Place::Socket(path) => path.clone(),
        };
        if inner.options.sealed {
            // The file cannot be opened, and a server would hand the region out again without the seal.
            return Err(OpenError::KeptOut { path });
        }
        let options = inner.options.clone().memory(None);
        inner.again.get_or_try(|_| Self::open(&inner.place, &options))
    }

    /// A session for the calling thread. Their number is limited (a region of 64 MiB has 128, 16 of them for servers): keep
    /// one per thread, not one per call.
    ///
    /// # Errors
    ///
    /// Living threads have all thread slots, and no server serves the region, which would execute the writes of a session
    /// that only reads; or this is a forked child ([`Cache::here`]).
    pub fn session(&self) -> Result<Session, SessionError> {
        let region = self.region().ok_or(SessionError::Forked)?;
        if let Some(session) = Session::new(&self.inner.sessions) {
            return Ok(session);
        }
        self.served_session().ok_or(SessionError::TableFull {
            slots: region.mapped().layout().shape.thread_slots_for(self.inner.options.server),
        })
    }

    /// A session without a slot: its gets read the region, and the region's server executes everything else. `None`:
    /// there is no such server.
    #[cold]
    #[inline(never)]
    fn served_session(&self) -> Option<Session> {
        let inner = &*self.inner;
        if inner.options.server || inner.sessions.region.mapped().is_durable() {
            return None;
        }
        let file = inner.sessions.liveness.open_harmless().ok()?;
        let peer = peer::Peer::new(attach::socket_of(&inner.place), &file).ok()?;
        Some(Session::served(&inner.sessions, peer))
    }

    /// Whether the mode of the region's file lets a process of this user and group write it, as open(2) would have it.
    #[doc(hidden)]
    pub fn may_write(&self, user: u32, group: u32) -> bool {
        use std::os::unix::fs::MetadataExt;
        let Ok(meta) = self.inner.sessions.liveness.open_harmless().and_then(|file| file.metadata()) else {
            return false;
        };
        let both = match (user == meta.uid(), group == meta.gid()) {
            (true, _) => 0o600,
            (false, true) => 0o060,
            (false, false) => 0o006,
        };
        user == 0 || meta.mode() & both == both
    }

    /// The region, unless this is a forked child of the process that attached.
    fn region(&self) -> Option<&Region> {
        let sessions = &self.inner.sessions;
        sessions.home.is_here().then_some(&*sessions.region)
    }

    /// Grows the region to at least `memory` bytes, everything included, while it is in use; a lower limit ([`Cache::limit`])
    /// is raised to that. Every other attached process finds the new memory by itself. The call takes about as long as the
    /// kernel needs to clear the memory.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Options, Place};
    /// let cache = Cache::open(&Place::Memfd, &Options::new().memory(4 << 20))?;
    /// cache.grow(8 << 20)?;
    /// assert!(cache.info().limit_bytes > 4 << 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`GrowError`]: the region then keeps its memory.
    pub fn grow(&self, memory: u64) -> Result<(), GrowError> {
        let region = self.may_resize()?;
        let _inside = self.inner.sessions.latch.open();
        creation::grow(region, memory)
    }

    /// Lowers the memory limit to `memory` bytes, everything included, while the region is in use; a limit that is already
    /// lower stays. Returns the limit in force, bytes: higher than `memory` if the region cannot work with so little (its
    /// index, the largest item, memory that its sessions hold).
    ///
    /// The call itself evicts nothing. [`Session::shrink`] evicts in bounded steps, and gives the memory back to the system.
    /// Servers of the region do so too, and so does every session that writes. [`Cache::grow`] raises the limit.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Options, Place, Shrinking};
    /// let cache = Cache::open(&Place::Memfd, &Options::new().memory(32 << 20))?;
    /// assert!(cache.limit(16 << 20)? <= 16 << 20);
    /// let mut session = cache.session()?;
    /// while matches!(session.shrink(), Shrinking::More) {}
    /// assert!(cache.info().segments_withdrawn > 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`GrowError::Io`]: this process cannot write the region.
    pub fn limit(&self, memory: u64) -> Result<u64, GrowError> {
        let region = self.may_resize()?;
        let _inside = self.inner.sessions.latch.open();
        creation::lower(region, memory);
        Ok(creation::limit_bytes(region))
    }

    /// Whether there is anything for [`Session::shrink`] to do.
    pub fn is_shrinking(&self) -> bool {
        let _inside = self.inner.sessions.latch.open();
        self.region().is_some_and(|region| region.mapped().is_shrinking())
    }

    /// The region, if this process can change how much memory it has.
    fn may_resize(&self) -> Result<&Region, GrowError> {
        let region = self.region().ok_or_else(|| GrowError::Io {
            source: std::io::Error::other(SessionError::Forked),
        })?;
        if self.is_reader() {
            let source = std::io::Error::new(std::io::ErrorKind::PermissionDenied, "this process may only read the region");
            return Err(GrowError::Io { source });
        }
        Ok(region)
    }

    /// Bytes that the region uses, or may use at once.
    pub(crate) fn held_bytes(&self) -> u64 {
        let _inside = self.inner.sessions.latch.open();
        self.region().map_or(0, creation::held_bytes)
    }

    /// The region's file, opened again twice, for a process that will attach to it: one descriptor to lock and map, and one
    /// to query locks, which can neither read nor write. See [`server::handout`].
    ///
    /// # Errors
    ///
    /// There is neither /proc nor a name that leads to the file, or no free descriptor.
    #[doc(hidden)]
    pub fn descriptors(&self) -> std::io::Result<[File; handout::DESCRIPTORS]> {
        let liveness = &self.inner.sessions.liveness;
        Ok([liveness.open_anew(Access::Write)?, liveness.open_harmless()?])
    }

    /// Device and inode of the region's file: they identify the region, whatever its name.
    ///
    /// # Errors
    ///
    /// None: it is asked when the region is attached.
    #[doc(hidden)]
    pub fn identity(&self) -> std::io::Result<(u64, u64)> {
        Ok(self.inner.sessions.liveness.id())
    }

    /// The region's file, opened again for a process that may only read: the kernel refuses every write by this descriptor. A
    /// process whose user may write the file can nevertheless open it again.
    ///
    /// # Errors
    ///
    /// There is neither /proc nor a name that leads to the file, or no free descriptor; or the region is in durable mode, whose
    /// readers must write back what they rely on.
    #[doc(hidden)]
    pub fn descriptor_to_read(&self) -> std::io::Result<File> {
        if self.region().is_some_and(|region| region.mapped().is_durable()) {
            return Err(std::io::Error::other(
                "a region in durable mode cannot be used for reading only: its readers must write back what they rely on",
            ));
        }
        self.inner.sessions.liveness.open_anew(Access::Read)
    }

    /// Whether this process may only read the region: the server executes the writes of its sessions.
    pub fn is_reader(&self) -> bool {
        matches!(self.inner.sessions.role, Role::Reader(_))
    }

    /// The counters of all sessions of all doors since the region was created.
    pub fn counters(&self) -> Counters {
        let _inside = self.inner.sessions.latch.open();
        self.region()
            .map_or_else(Counters::default, |region| region.threads().counters())
    }

    /// The counters of the thread slot of one session ([`Session::id`]), since the region was created. Earlier sessions in the same slot have
    /// counted there too: subtract what it had counted when the session began ([`Counters::since`]).
    #[doc(hidden)]
    pub fn counters_of(&self, id: SessionId) -> Counters {
        let _inside = self.inner.sessions.latch.open();
        self.region().map_or_else(Counters::default, |region| region.counters_of(id))
    }

    /// How long the operations of all sessions of all doors took, since the region was created: every request of servers' clients, and
    /// one in 256 of the library's calls.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Door, Options, Place, Verb};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
    /// # let mut session = cache.session()?;
    /// for _ in 0..10_000 {
    ///     session.get(b"absent")?;
    /// }
    /// let latencies = cache.latencies();
    /// let gets = latencies.of(Door::Library, Verb::Get);
    /// assert!(gets.count() > 10 && gets.quantile_ns(500) > Some(0));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn latencies(&self) -> Latencies {
        let _inside = self.inner.sessions.latch.open();
        self.region()
            .map_or_else(Latencies::default, |region| region.latencies().sum())
    }

    /// The age of the oldest segments of the log in use, since they were opened: no item is older. In a large region it is
    /// the oldest of a sample.
    pub fn ages(&self) -> Ages {
        let _inside = self.inner.sessions.latch.open();
        let now = self.inner.sessions.clock.now();
        self.region()
            .map_or_else(Ages::default, |region| region.ages(region.clock().tick(now)))
    }

    /// Properties of the region and how full it is. In a forked child: zeros.
    pub fn info(&self) -> Info {
        let Some(region) = self.region() else {
            return Info::default();
        };
        let gate = self.inner.gate.clone();
        let _inside = self.inner.sessions.latch.open();
        // Another process may have given the region more memory. This process has touched nothing of that yet.
        region.mapped().learn();
        let layout = region.mapped().layout();
        let limits = region.limits().read();
        Info {
            warm: self.inner.warm,
            attached_in: self.inner.attached_in,
            limit_bytes: creation::limit_bytes(region),
            segment_bytes: layout.shape.segment_size as u64,
            segments: region.mapped().segments() as u64,
            segments_free: region.free_segments().min(region.mapped().segments()) as u64,
            segments_withdrawn: region.mapped().withdrawn().min(region.mapped().segments()) as u64,
            segments_given_back: region.mapped().given_back().min(region.mapped().segments()) as u64,
            index_buckets: region.directory().index_buckets(),
            index_bytes: region.directory().index_size(),
            sessions: region.threads().sessions() as u64,
            sessions_max: layout.shape.thread_slots as u64,
            sessions_of_servers: (layout.shape.thread_slots - layout.shape.thread_slots_for(false)) as u64,
            processes_max: layout.shape.process_slots as u64,
            discarded: self.inner.discarded,
            created_unix_s: i64::try_from(region.mapped().created_unix_s()).unwrap_or(0),
            item_size_max: limits.item_size_max,
            evict: limits.evict,
            flush: limits.flush,
            checksums: region.has_checksums(),
            gate,
        }
    }

    /// What the region allows now, whoever uses it: the rules with which it was made, or with which its last server was started. In a
    /// forked child: the defaults.
    pub fn limits(&self) -> Limits {
        let Some(region) = self.region() else {
            return Limits::default();
        };
        let _inside = self.inner.sessions.latch.open();
        region.limits().read()
    }

    /// Processes that are attached for writing, including this one if it is. A process that may have died counts until its
    /// death is certain. In a forked child: 0.
    pub fn processes(&self) -> usize {
        let Some(region) = self.region() else { return 0 };
        let _inside = self.inner.sessions.latch.open();
        let is_there = |slot: &usize| match self.is_reader() {
            // This process has no lock of its own, which would show whether locks can be queried.
            true => self.inner.sessions.liveness.seems_there(&region.mapped().tenant(*slot)),
            false => region.mapped().life(*slot) != Life::Dead,
        };
        (0..region.mapped().layout().shape.process_slots).filter(is_there).count()
    }

    /// Where the region is.
    #[doc(hidden)]
    pub fn place(&self) -> &Place {
        &self.inner.place
    }

    /// Whether the region is still at its place. This is a system call: do not use it before every verb.
    ///
    /// ```
    /// # use keyway_cache::{AtPlace, Cache, Options, Place};
    /// # let path = std::env::temp_dir().join(format!("keyway-doc-place-{}", std::process::id()));
    /// let cache = Cache::open(&Place::Path(path.clone()), &Options::new().memory(4 << 20))?;
    /// assert_eq!(cache.at_place(), AtPlace::Same);
    /// std::fs::remove_file(&path)?;
    /// assert_eq!(cache.at_place(), AtPlace::Nothing);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn at_place(&self) -> AtPlace {
        use std::os::unix::fs::MetadataExt;
        let Place::Path(path) = &self.inner.place else {
            return AtPlace::Same;
        };
        match std::fs::symlink_metadata(path) {
            Ok(meta) if (meta.dev(), meta.ino()) == self.inner.sessions.liveness.id() => AtPlace::Same,
            Ok(_) => AtPlace::Another,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => AtPlace::Nothing,
            Err(_) => AtPlace::Unknown,
        }
    }

    /// Verifies every invariant of the region; see [`keyway_region::check`]. The result is meaningful only while no thread
    /// writes. `progress` gets the percentage done, 0 to 100.
    pub fn check(&self, progress: impl FnMut(u8)) -> CheckReport {
        let Some(region) = self.region() else {
            let mut report = CheckReport::default();
            report.problems.push(SessionError::Forked.to_string());
            return report;
        };
        self.inner.sessions.dismiss_ended(usize::MAX);
        // This is not a verb: what it reports, and the progress callback, run inside too.
        let _inside = self.inner.sessions.latch.open();
        if !self.is_reader() {
            region.recover();
        }
        keyway_region::check::check(region, progress)
    }

    /// Copies the region's items to a new region at `to`, while writers continue: each item is whole in the copy or absent.
    /// The copy gets its name when it is complete; an existing file is replaced only with `force`. `progress` gets the
    /// percentage done, 0 to 100.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new().memory(4 << 20))?;
    /// # let path = std::env::temp_dir().join(format!("keyway-doc-copy-{}", std::process::id()));
    /// cache.session()?.set(b"key", b"value", 0)?;
    /// let copied = cache.copy_to(&path, false, |_| {})?;
    /// assert_eq!(copied.items, 1);
    /// # std::fs::remove_file(&path)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`CopyError`]; nothing is left at `to` then, nor changed.
    pub fn copy_to(&self, to: &std::path::Path, force: bool, mut progress: impl FnMut(u8)) -> Result<Copied, CopyError> {
        self.copy_to_while(to, force, |percent| {
            progress(percent);
            true
        })
    }

    /// Copies the region to the file `to`, as [`Self::copy_to`], as long as `goes_on`, which gets the percentage done, returns
    /// true.
    ///
    /// # Errors
    ///
    /// [`CopyError`], and [`CopyError::Interrupted`] if it returns false; then nothing is left at `to`, and nothing is
    /// changed there.
    pub fn copy_to_while(&self, to: &std::path::Path, force: bool, goes_on: impl FnMut(u8) -> bool) -> Result<Copied, CopyError> {
        copy::copy(self, to, force, goes_on)
    }

    /// Detaches. If this was the last process, marks the region as cleanly stopped, after everything is written back where
    /// that matters (a file that survives a reboot). All sessions must have been dropped; otherwise, or while other processes
    /// are attached, it only detaches. Returns whether it was marked.
    pub fn close(self) -> bool {
        let Some(inner) = Arc::into_inner(self.inner) else {
            return false;
        };
        if inner.sessions.home.is_here() {
            attach::close(&inner)
        } else {
            inner.again.into_inner().is_some_and(Self::close)
        }
    }
}
