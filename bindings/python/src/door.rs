//! The regions that this process has open. Clients of one place share one attachment: programs make clients freely, and each
//! attachment takes one of the region's process slots.

use crate::failure::Failure;
use keyway_cache::server::PerProcess;
use keyway_cache::{Cache, Gate, OpenError, Options, Owners, Place};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The open regions that clients share. The lock is held for moments. A forked child knows those of its parent, unless one of the
/// parent's threads was changing the list: one of another interpreter of the process, or beside a fork that is not Python's.
static OPEN: PerProcess<Mutex<Vec<Known>>> = PerProcess::new();

/// An attachment, and the options with which it was requested.
#[derive(Clone)]
struct Known {
    place: Place,
    asked: Asked,
    /// device and inode of the file or socket at the place when it was opened
    file: Option<(u64, u64)>,
    region: Weak<Region>,
}

/// A client's requests for the region. `None`: as the region is, or the default for a new one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    pub(crate) memory: Option<u64>,
    pub(crate) item_size_max: Option<usize>,
    pub(crate) mode: Option<u32>,
    pub(crate) huge_pages: bool,
    pub(crate) prefault: bool,
    pub(crate) evict: Option<bool>,
    pub(crate) checksums: bool,
    pub(crate) gate: bool,
    pub(crate) any_owner: bool,
}

/// An attachment of this process. It is detached when the last client closes it.
pub(crate) struct Region {
    /// present until the region is dropped
    cache: Option<Cache>,
}

impl Region {
    /// The attachment.
    #[inline]
    pub(crate) fn cache(&self) -> Result<&Cache, Failure> {
        self.cache.as_ref().ok_or_else(|| OpenError::Forked.into())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(cache) = self.cache.take() {
            cache.leave();
            cache.close();
        }
    }
}

/// The place that a client was given: a path, a path after `unix:`, or `memfd`.
pub(crate) fn place_of(server: PathBuf) -> Place {
    let stripped = server.to_str().and_then(|text| text.strip_prefix("unix:")).map(PathBuf::from);
    let path = stripped.unwrap_or(server);
    if path.as_os_str() == "memfd" {
        Place::Memfd
    } else {
        Place::at(path)
    }
}

/// The region at this path. Attaches to it if this process has not done so yet.
pub(crate) fn open(py: Python<'_>, server: PathBuf, asked: &Asked) -> Result<Arc<Region>, Failure> {
    let place = place_of(server);
    if place == Place::Memfd {
        let cache = py.detach(|| Cache::open(&place, &asked.options()))?;
        return Ok(Arc::new(Region { cache: Some(cache) }));
    }
    let file = file_at(&place);
    if let Some(region) = known(&place, asked, file) {
        return Ok(region);
    }
    let cache = py.detach(|| Cache::open(&place, &asked.options()))?;
    // Another thread may have opened it meanwhile: then all clients use that attachment, and this one is dropped.
    let file = file_at(&place);
    if let Some(region) = known(&place, asked, file) {
        cache.close();
        return Ok(region);
    }
    let region = Arc::new(Region { cache: Some(cache) });
    let mut open = lock();
    open.retain(|known| known.region.strong_count() > 0);
    open.push(Known {
        place,
        asked: asked.clone(),
        file,
        region: Arc::downgrade(&region),
    });
    Ok(region)
}

/// The attachment of a client with the same requests, if the file at the place is still the same.
fn known(place: &Place, asked: &Asked, file: Option<(u64, u64)>) -> Option<Arc<Region>> {
    let open = lock();
    let known = open
        .iter()
        .filter(|known| known.place == *place && known.asked == *asked && known.file == file && file.is_some());
    known.filter_map(|known| known.region.upgrade()).next()
}

fn lock() -> MutexGuard<'static, Vec<Known>> {
    let copied = |parents: &Mutex<Vec<Known>>| parents.try_lock().ok().map(|list| list.clone());
    let own = OPEN.get_or(|parents| Mutex::new(parents.and_then(copied).unwrap_or_default()));
    own.lock().unwrap_or_else(PoisonError::into_inner)
}

fn file_at(place: &Place) -> Option<(u64, u64)> {
    match place {
        Place::Path(path) | Place::Socket(path) => std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino())),
        _ => None,
    }
}

impl Asked {
    /// Whether a region can be made so. Without a memory size the largest item depends on the region that is there.
    pub(crate) fn checked(self) -> PyResult<Self> {
        match self.options().check() {
            Ok(()) => Ok(self),
            Err(why) => Err(PyValueError::new_err(why.to_string())),
        }
    }

    fn options(&self) -> Options {
        let default = Options::new();
        Options::new()
            .memory(self.memory)
            .item_size_max(self.item_size_max)
            .mode(self.mode.unwrap_or(default.mode))
            .huge_pages(self.huge_pages)
            .prefault(self.prefault)
            .evict(self.evict)
            .checksums(self.checksums)
            .gate(if self.gate { Gate::WherePossible } else { Gate::Off })
            .owners(if self.any_owner { Owners::Any } else { Owners::AsNamed })
    }
}
