//! What `stats detail` counts of the requests. Watchers are told by the sessions themselves.

use super::Executor;

impl Executor {
    /// Counts a fetch.
    #[inline]
    pub(crate) fn fetched(&self, key: &[u8], hit: bool) {
        if self.shared.detail.is_enabled() {
            self.shared.detail.count(key, |counts| {
                counts.gets += 1;
                counts.hits += u64::from(hit);
            });
        }
    }

    /// Counts a store.
    #[inline]
    pub(crate) fn mutated(&self, key: &[u8]) {
        if self.shared.detail.is_enabled() {
            self.shared.detail.count(key, |counts| counts.sets += 1);
        }
    }

    /// Counts a delete.
    #[inline]
    pub(crate) fn deleted(&self, key: &[u8]) {
        if self.shared.detail.is_enabled() {
            self.shared.detail.count(key, |counts| counts.deletes += 1);
        }
    }
}
