//! What watchers and `stats detail` see of the requests: one event for each look-up, store, delete and eviction.
//!
//! Never: changes an item, or what a client is answered. Without watchers and `stats detail` no look-up is made for them.

use std::io::Write;

use keyway_cache::{Item, Read, Stored, WriteError};
use keyway_proto::{Command, StoreVerb, reply};

use super::{Executor, Origin};
use crate::shared::Message;
use crate::stats::CLASS;
use crate::watch;

impl Executor {
    /// Whether any watcher wants the events of commands on items.
    pub(super) fn is_watched(&self) -> bool {
        self.shared.watch.wants(watch::FETCHERS | watch::MUTATIONS | watch::DELETIONS)
    }

    /// Before a command that is not a fetch: reports to watchers the look-up that memcached would make for it, and returns the length of the
    /// value that is there. Without watchers there is no look-up.
    #[inline]
    pub(crate) fn looked_up(&mut self, key: &[u8], origin: &Origin<'_>) -> Option<usize> {
        if !self.is_watched() {
            return None;
        }
        let found = self.session.look(key);
        self.send_fetch_to_watchers(key, found, origin);
        match found {
            Ok(Read::Hit(item)) => Some(item.value_len),
            _ => None,
        }
    }

    /// Reports to watchers what this worker's session has evicted.
    #[cold]
    pub(super) fn send_evictions_to_watchers(&mut self) {
        for (key, item) in self.session.take_evicted() {
            let fetched = if item.fetched { "yes" } else { "no" };
            let ttl = item.ttl_s.map_or(-1, i64::from);
            self.send_to_watchers(watch::EVICTIONS, |line| {
                line.extend_from_slice(b"type=eviction key=");
                reply::uri_encode(line, &key);
                let _ = write!(
                    line,
                    " fetch={fetched} ttl={ttl} la={} clsid={CLASS} size={}",
                    item.idle_s, item.value_len
                );
            });
        }
    }

    fn send_fetch_to_watchers(&self, key: &[u8], found: Result<Read, WriteError>, origin: &Origin<'_>) {
        let (status, size) = match found {
            Ok(Read::Hit(item)) => ("found", item.value_len),
            Ok(Read::Expired) => ("expired", 0),
            _ => ("not_found", 0),
        };
        self.send_to_watchers(watch::FETCHERS, |line| {
            line.extend_from_slice(b"type=item_get key=");
            reply::uri_encode(line, key);
            let _ = write!(line, " status={status} clsid={CLASS} cfd={} size={size}", origin.peer.fd);
        });
    }

    /// Reports a fetch to watchers and `stats detail`.
    #[inline]
    pub(crate) fn fetched(&mut self, key: &[u8], item: Option<&Item>, origin: &Origin<'_>) {
        if self.shared.watch.wants(watch::FETCHERS) {
            let found = match (item, self.session.look(key)) {
                (Some(item), _) => Ok(Read::Hit(*item)),
                (None, Ok(Read::Expired)) => Ok(Read::Expired),
                (None, _) => Ok(Read::Miss),
            };
            self.send_fetch_to_watchers(key, found, origin);
        }
        if self.shared.detail.is_enabled() {
            self.shared.detail.count(key, |counts| {
                counts.gets += 1;
                counts.hits += u64::from(item.is_some());
            });
        }
    }

    /// Reports a store to them.
    #[inline]
    pub(crate) fn mutated(
        &mut self,
        key: &[u8],
        stored: &Result<Stored, WriteError>,
        verb: StoreVerb,
        exptime: i64,
        size: usize,
        origin: &Origin<'_>,
    ) {
        if self.shared.watch.wants(watch::MUTATIONS) {
            let status = match stored {
                Ok(Stored::Stored { .. }) => "stored",
                Ok(Stored::NotStored) => "not_stored",
                Ok(Stored::Exists) => "exists",
                Ok(Stored::NotFound) => "not_found",
                Err(WriteError::TooLarge { .. }) => "too_large",
                Err(_) => "no_memory",
            };
            let size = match stored {
                // The whole length: for an append, the old value's and the new one's.
                Ok(Stored::Stored { value_len, .. }) => *value_len,
                _ => size,
            };
            let ttl = self.ttl_of(exptime).unwrap_or(0);
            self.send_to_watchers(watch::MUTATIONS, |line| {
                line.extend_from_slice(b"type=item_store key=");
                reply::uri_encode(line, key);
                let (fd, verb) = (origin.peer.fd, verb.command().name());
                let _ = write!(
                    line,
                    " status={status} cmd={verb} ttl={ttl} clsid={CLASS} cfd={fd} size={size}"
                );
            });
        }
        if self.shared.detail.is_enabled() {
            self.shared.detail.count(key, |counts| counts.sets += 1);
        }
    }

    /// Reports a delete to them; `gone` is the length of the value that was deleted, if one was.
    #[inline]
    pub(crate) fn deleted(&self, key: &[u8], verb: Command, gone: Option<usize>) {
        if let Some(size) = gone
            && self.shared.watch.wants(watch::DELETIONS)
        {
            self.send_to_watchers(watch::DELETIONS, |line| {
                line.extend_from_slice(b"type=deleted key=");
                reply::uri_encode(line, key);
                let _ = write!(line, " cmd={} clsid={CLASS} size={size}", verb.name());
            });
        }
        if self.shared.detail.is_enabled() {
            self.shared.detail.count(key, |counts| counts.deletes += 1);
        }
    }

    /// Queues a line for the watchers, and wakes those whose queue was empty.
    #[cold]
    pub(crate) fn send_to_watchers(&self, event: watch::Events, text: impl FnOnce(&mut Vec<u8>)) {
        let mailboxes = &self.shared.mailboxes;
        self.shared.watch.send(event, text, |watcher| {
            mailboxes[watcher.worker].send(Message::Turn(watcher.token))
        });
    }
}
