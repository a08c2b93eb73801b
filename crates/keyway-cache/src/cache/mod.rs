//! [`Cache`]: a region, open in this process. It owns what [`attach`] brings together, and passes each request to the owner that answers it.
//!
//! Here: opening, sessions, properties, memory. `local` has a session for each thread, `fetch` computes what is not there, `copy` copies a region, `for_server` has
//! what only servers and bindings need. Never: a rule of the region.

mod copy;
mod fetch;
pub(crate) mod for_server;
mod local;

pub use copy::{Copied, CopyError};

use crate::attach;
use crate::attach::opened::Opened;
use crate::cache::fetch::Fetching;
use crate::error::{FetchError, GrowError, OpenError, SessionError};
use crate::file::{creation, mapping};
use crate::gate::GateState;
use crate::observe::curve::MemoryCurve;
use crate::observe::hot::{self, Hot, HotCounts};
use crate::observe::watch::Watcher;
use crate::options::Options;
use crate::place::Place;
use crate::process::fork::PerProcess;
use crate::remote::peer::Peer;
use crate::session::roster::Sessions;
use crate::session::{Fetch, Session};
use keyway_region::check::Report as CheckReport;
use keyway_region::layout::hot::By as HotBy;
use keyway_region::layout::latency::Latencies;
use keyway_region::layout::stats::Counters;
use keyway_region::{Ages, Limits, Region, Trace};
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// What all clones of a cache share.
struct Inner {
    at: Opened,
    attached_in: Duration,
    /// a forked child's own
    again: PerProcess<Cache>,
}

/// A forked child does not have its parent's.
static RESIDENT: PerProcess<Cache> = PerProcess::new();

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
        if let Some(cache) = RESIDENT.get().filter(|cache| cache.inner.at.place == place.whole()) {
            return Ok(cache.clone());
        }
        Self::attached_by(|| attach::open(place, options))
    }

    /// The cache of this process. In a forked child it is opened again at the first call, with a process slot of its own. The
    /// parent's mapping and sessions do not belong to the child, and using them there fails with an error.
    ///
    /// # Errors
    ///
    /// The region is gone, is anonymous memory, was opened [`Options::sealed`], or has no process slot left.
    #[inline]
    pub fn here(&self) -> Result<&Self, OpenError> {
        if self.sessions().is_here() {
            Ok(self)
        } else {
            self.open_again()
        }
    }

    fn attached_by(attach: impl FnOnce() -> Result<Opened, OpenError>) -> Result<Self, OpenError> {
        let begun = Instant::now();
        let at = attach()?;
        let inner = Inner {
            at,
            attached_in: begun.elapsed(),
            again: PerProcess::new(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What the threads of this process share of the region.
    fn sessions(&self) -> &Arc<Sessions> {
        &self.inner.at.sessions
    }

    #[cold]
    fn open_again(&self) -> Result<&Self, OpenError> {
        let inner = &*self.inner;
        if let Some(own) = inner.again.get() {
            return Ok(own);
        }
        let path = match &inner.at.place {
            Place::Memfd => return Err(OpenError::Forked),
            Place::Path(path) | Place::Socket(path) => path.clone(),
        };
        if inner.at.options.sealed {
            // The file cannot be opened, and a server would hand the region out again without the seal.
            return Err(OpenError::KeptOut { path });
        }
        let options = inner.at.options.clone().memory(None);
        inner.again.get_or_try(|_| Self::open(&inner.at.place, &options))
    }

    /// A session for the calling thread. Their number is limited (a region of 64 MiB has 128, 16 of them for servers): keep
    /// one per thread, not one per call.
    ///
    /// # Errors
    ///
    /// Living threads have all thread slots, and no server serves the region, which would execute the writes of a session
    /// that only reads; or this is a forked child ([`Cache::here`]).
    pub fn session(&self) -> Result<Session, SessionError> {
        let region = self.sessions().region().ok_or(SessionError::Forked)?;
        if let Some(session) = Session::new(self.sessions()) {
            return Ok(session);
        }
        self.served_session().ok_or(SessionError::TableFull {
            slots: region.mapped().layout().shape.thread_slots_for(self.inner.at.options.server),
        })
    }

    /// A session without a slot: its gets read the region, and the region's server executes everything else. `None`:
    /// there is no such server.
    #[cold]
    #[inline(never)]
    fn served_session(&self) -> Option<Session> {
        let (at, sessions) = (&self.inner.at, self.sessions());
        if at.options.server || sessions.region()?.mapped().is_durable() {
            return None;
        }
        let file = sessions.liveness().open_harmless().ok()?;
        let peer = Peer::new(at.place.socket(), &file).ok()?;
        Some(Session::served(sessions, peer))
    }

    /// The value of `key`. If there is none, `compute` makes it, in one caller of all processes and threads; the others wait for that
    /// one, or get what is stale ([`Fetch`]). `None`: `compute` says that there is no value. What was computed is not stored if the key was
    /// deleted, flushed or stored meanwhile, so nothing that was read before a delete is found after it.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Fetch, FetchError, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
    /// let how = Fetch { ttl: 60, stale_while_revalidate: 30, ..Fetch::default() };
    /// let row = cache.fetch(b"row:7", &how, || Ok::<_, std::io::Error>(Some(b"from the database".to_vec())))?;
    /// assert_eq!(row.as_deref(), Some(&b"from the database"[..]));
    /// let again = cache.fetch(b"row:7", &how, || -> Result<_, std::io::Error> { unreachable!("it is stored") })?;
    /// assert_eq!(again, row);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`FetchError::Compute`] with the error of `compute`, unless `stale_if_error` allows the old value: then one of those who wait computes.
    /// The others: see [`FetchError`].
    pub fn fetch<E>(
        &self,
        key: &[u8],
        how: &Fetch<'_>,
        compute: impl FnOnce() -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<Vec<u8>>, FetchError<E>> {
        Fetching(self).one(key, how, compute)
    }

    /// The values of these keys, in the keys' order, each as by [`Cache::fetch`]. `compute` is called once, with the keys that nobody else
    /// computes, and returns their values in the same order; it is called again, with one key, where another caller has given up.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Fetch, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
    /// cache.session()?.set(b"one", b"1", 0)?;
    /// let values = cache.fetch_many(&["one", "two", "three"], &Fetch::default(), |keys| {
    ///     assert_eq!(keys, [&b"two"[..], b"three"]);
    ///     Ok::<_, std::io::Error>(vec![Some(b"2".to_vec()), None])
    /// })?;
    /// assert_eq!(values, [Some(b"1".to_vec()), Some(b"2".to_vec()), None]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`Cache::fetch`]. Other callers then compute what was not computed.
    pub fn fetch_many<K: AsRef<[u8]>, E>(
        &self,
        keys: &[K],
        how: &Fetch<'_>,
        compute: impl FnMut(&[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, E>,
    ) -> Result<Vec<Option<Vec<u8>>>, FetchError<E>> {
        Fetching(self).many(keys, how, compute)
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
        self.resize(|region| creation::grow(region, memory))?
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
        self.resize(|region| {
            creation::lower(region, memory);
            creation::limit_bytes(region)
        })
    }

    /// Whether there is anything for [`Session::shrink`] to do.
    pub fn is_shrinking(&self) -> bool {
        self.sessions().view(|region| region.mapped().is_shrinking())
    }

    /// Works on the region, if this process can change how much memory it has.
    fn resize<R>(&self, work: impl FnOnce(&Region) -> R) -> Result<R, GrowError> {
        if self.is_reader() {
            let source = std::io::Error::new(std::io::ErrorKind::PermissionDenied, "this process may only read the region");
            return Err(GrowError::Io { source });
        }
        self.sessions().here(work).ok_or_else(|| GrowError::Io {
            source: std::io::Error::other(SessionError::Forked),
        })
    }

    /// Whether this process may only read the region: the server executes the writes of its sessions.
    pub fn is_reader(&self) -> bool {
        self.sessions().is_reader()
    }

    /// The counters of all sessions of all doors since the region was created.
    pub fn counters(&self) -> Counters {
        self.sessions().view(|region| region.threads().counters())
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
        self.sessions().view(|region| region.latencies().sum())
    }

    /// The age of the oldest segments of the log in use, since they were opened: no item is older. In a large region it is
    /// the oldest of a sample.
    pub fn ages(&self) -> Ages {
        let now = self.sessions().now();
        self.sessions().view(|region| region.victims().ages(region.clock().tick(now)))
    }

    /// Properties of the region and how full it is. In a forked child: zeros.
    pub fn info(&self) -> Info {
        self.sessions().view(|region| self.info_of(region))
    }

    fn info_of(&self, region: &Region) -> Info {
        let at = &self.inner.at;
        // Another process may have given the region more memory. This process has touched nothing of that yet.
        region.mapped().learn();
        let layout = region.mapped().layout();
        let limits = region.limits().read();
        Info {
            warm: at.warm,
            attached_in: self.inner.attached_in,
            limit_bytes: creation::limit_bytes(region),
            segment_bytes: layout.shape.segment_size as u64,
            segments: region.mapped().segments() as u64,
            segments_free: region.segments().free_segments().min(region.mapped().segments()) as u64,
            segments_withdrawn: region.mapped().withdrawn().min(region.mapped().segments()) as u64,
            segments_given_back: region.mapped().given_back().min(region.mapped().segments()) as u64,
            index_buckets: region.directory().index_buckets(),
            index_bytes: region.directory().index_size(),
            sessions: region.threads().sessions() as u64,
            sessions_max: layout.shape.thread_slots as u64,
            sessions_of_servers: (layout.shape.thread_slots - layout.shape.thread_slots_for(false)) as u64,
            processes_max: layout.shape.process_slots as u64,
            discarded: at.discarded,
            created_unix_s: i64::try_from(region.mapped().created_unix_s()).unwrap_or(0),
            item_size_max: limits.item_size_max,
            evict: limits.evict,
            flush: limits.flush,
            checksums: region.items().has_checksums(),
            gate: at.gate.clone(),
        }
    }

    /// The limits of the region, for every program that uses it: those with which it was made, or with which its last server was started. In a
    /// forked child: the defaults.
    pub fn limits(&self) -> Limits {
        self.sessions().view(|region| region.limits().read())
    }

    /// Processes that are attached for writing, including this one if it is. A process that may have died counts until its
    /// death is certain. In a forked child: 0.
    pub fn processes(&self) -> usize {
        self.sessions().view(|region| {
            let slots = 0..region.mapped().layout().shape.process_slots;
            slots.filter(|slot| self.sessions().is_there(region, *slot)).count()
        })
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
        let Place::Path(path) = &self.inner.at.place else {
            return AtPlace::Same;
        };
        match std::fs::symlink_metadata(path) {
            Ok(meta) if (meta.dev(), meta.ino()) == self.sessions().liveness().id() => AtPlace::Same,
            Ok(_) => AtPlace::Another,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => AtPlace::Nothing,
            Err(_) => AtPlace::Unknown,
        }
    }

    /// Verifies every invariant of the region; see [`keyway_region::check`]. The result is meaningful only while no thread
    /// writes. `progress` gets the percentage done, 0 to 100.
    pub fn check(&self, progress: impl FnMut(u8)) -> CheckReport {
        if self.sessions().is_here() {
            self.sessions().dismiss_ended(usize::MAX);
        }
        // This is not a verb: what it reports, and the progress callback, run inside too.
        let checked = self.sessions().here(|region| {
            if !self.is_reader() {
                region.recovery().recover();
            }
            keyway_region::check::check(region, progress)
        });
        checked.unwrap_or_else(|| {
            let mut report = CheckReport::default();
            report.problems.push(SessionError::Forked.to_string());
            report
        })
    }

    /// Reads the hot-key counters, about 200 KiB. For a minute from now on sessions count one in 16 operations and not one in 256, unless
    /// this process may only read. In a forked child the counters are empty.
    pub fn hot_counts(&self) -> HotCounts {
        HotCounts::read(self.sessions())
    }

    /// The `most` hottest keys, the hottest first: all in all, or since an earlier moment.
    ///
    /// ```
    /// # use keyway_cache::{HotBy, Cache, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
    /// # let mut session = cache.session()?;
    /// let begun = cache.hot_counts();
    /// session.set(b"greeting", b"hello", 60)?;
    /// for _ in 0..10_000 {
    ///     session.get(b"greeting")?;
    /// }
    /// let hot = cache.hot_keys(&cache.hot_counts(), Some(&begun), HotBy::Gets, 10);
    /// assert_eq!(hot[0].name.as_deref(), Some(&b"greeting"[..]));
    /// assert!((5_000..20_000).contains(&hot[0].estimate));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn hot_keys(&self, counts: &HotCounts, since: Option<&HotCounts>, by: HotBy, most: usize) -> Vec<Hot> {
        hot::keys(self.sessions(), counts, since, by, most)
    }

    /// The `most` hottest prefixes: what is before the first `separator` of a key; the whole key, if it has none. An estimate
    /// includes what was counted for keys of the prefix that have a counter, and for their counters' earlier keys in their name;
    /// the bounds hold whatever these were.
    pub fn hot_prefixes(
        &self,
        counts: &HotCounts,
        since: Option<&HotCounts>,
        by: HotBy,
        most: usize,
        separator: &[u8],
    ) -> Vec<Hot> {
        hot::prefixes(self.sessions(), counts, since, by, most, separator)
    }

    /// What is known of this key: its newest item, or what is left of it. All segments are searched, without a lock and
    /// without an access that counts. In a forked child nothing is known.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Delete, Options, Place, Whereabouts};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
    /// # let mut session = cache.session()?;
    /// session.set(b"greeting", b"hello", 60)?;
    /// session.delete(b"greeting", &Delete::default())?;
    /// let trace = cache.trace(b"greeting");
    /// assert_eq!(trace.newest.map(|left| left.whereabouts), Some(Whereabouts::Dead));
    /// assert!(trace.is_complete, "no memory was used twice yet");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn trace(&self, key: &[u8]) -> Trace {
        let now = self.sessions().now();
        self.sessions()
            .view(|region| keyway_region::trace(region, key, region.clock().tick(now)))
    }

    /// A watcher of these kinds of events, from now on. `None`: this process may only read the region, or is a forked child.
    pub fn watcher(&self, kinds: u64) -> Option<Watcher> {
        Watcher::new(self.sessions(), kinds)
    }

    /// Begins to follow the trail. With a session, the simulations begin with the items that the region has now; reading them takes about
    /// a second for ten million. `None`: this process may only read the region, or it is a forked child.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new().memory(4 << 20))?;
    /// # let mut session = cache.session()?;
    /// let mut curve = cache.memory_curve(None).ok_or("a reader")?;
    /// for number in 0..200_000_u32 {
    ///     let key = (number.wrapping_mul(2_654_435_761) % 100_000).to_string();
    ///     if session.get(key.as_bytes())?.is_none() {
    ///         session.set(key.as_bytes(), &[b'v'; 100], 0)?;
    ///     }
    ///     if number % 100 == 0 {
    ///         curve.follow();
    ///     }
    /// }
    /// let predictions = curve.predictions();
    /// assert!(predictions.sizes.is_sorted_by(|small, large| small.miss_ratio >= large.miss_ratio));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn memory_curve(&self, session: Option<&mut Session>) -> Option<MemoryCurve> {
        MemoryCurve::new(self.sessions(), session)
    }

    /// From now on, opening this place in this process returns this cache, whatever the options. The first cache that is
    /// made resident stays.
    pub fn make_resident(&self) {
        RESIDENT.get_or(|_| self.clone());
    }

    /// Where the region is mapped.
    pub fn mapped(&self) -> std::ops::Range<usize> {
        self.inner.at.mapped.clone()
    }

    /// Seals the mapping (mseal(2)): no code in this process can unmap, move or replace it, nor change its access rights.
    ///
    /// # Errors
    ///
    /// The kernel's: ENOSYS before Linux 6.10.
    pub fn seal(&self) -> std::io::Result<()> {
        mapping::seal(&self.mapped())
    }

    /// Detaches. If this was the last process, marks the region as cleanly stopped, after everything is written back where
    /// that matters (a file that survives a reboot). All sessions must have been dropped; otherwise, or while other processes
    /// are attached, it only detaches. Returns whether it was marked.
    pub fn close(self) -> bool {
        let Some(inner) = Arc::into_inner(self.inner) else {
            return false;
        };
        if inner.at.sessions.is_here() {
            attach::close(&inner.at)
        } else {
            inner.again.into_inner().is_some_and(Self::close)
        }
    }
}
