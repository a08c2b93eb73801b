//! What a region still knows of a key: for people who look for it.

use crate::Cache;
use keyway_region::{Region, Trace};

impl Cache {
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
        let now = self.inner.sessions.clock.now();
        let _inside = self.inner.sessions.latch.open();
        let of = |region: &Region| region.trace(key, region.clock().tick(now));
        self.region().map_or_else(Trace::default, of)
    }
}
