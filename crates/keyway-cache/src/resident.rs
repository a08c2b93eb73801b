//! What a hardened program needs of its cache (`keyway exec`): the cache exists before the program could open it, and
//! from then on nothing of it can be changed.
//!
//! # Safety
//!
//! The only `unsafe` here is a system call about this crate's own mapping.
#![allow(unsafe_code, reason = "mseal; contract above")]

use crate::fork::PerProcess;
use crate::{Cache, Place};

/// Linux's number of the call on every processor (6.10).
const SYS_MSEAL: nix::libc::c_long = 462;

/// A forked child does not have its parent's.
static RESIDENT: PerProcess<Cache> = PerProcess::new();

/// The cache that this process keeps for good, if it is the cache of this place.
pub(crate) fn of(place: &Place) -> Option<Cache> {
    let cache = RESIDENT.get()?;
    (cache.inner.place == crate::attach::whole(place)).then(|| cache.clone())
}

impl Cache {
    /// From now on, opening this place in this process returns this cache, whatever the options. The first cache that is
    /// made resident stays.
    pub fn make_resident(&self) {
        RESIDENT.get_or(|_| self.clone());
    }

    /// Where the region is mapped.
    pub fn mapped(&self) -> std::ops::Range<usize> {
        self.inner.mapped.clone()
    }

    /// Seals the mapping (mseal(2)): no code in this process can unmap, move or replace it, nor change its access rights.
    ///
    /// # Errors
    ///
    /// The kernel's: ENOSYS before Linux 6.10.
    pub fn seal(&self) -> std::io::Result<()> {
        let range = self.mapped();
        // SAFETY: takes numbers; forbids changes of a mapping that this crate never changes before it is dropped with the
        // process.
        let done = unsafe { nix::libc::syscall(SYS_MSEAL, range.start, range.end - range.start, 0) };
        if done == 0 {
            Ok(())
        } else {
            Err(std::io::Error::last_os_error())
        }
    }
}
