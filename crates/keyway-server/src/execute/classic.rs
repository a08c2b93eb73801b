//! Where each request is answered: by the file of its group, or here, if it is a command of the classic text protocol on items (get, gat, set
//! and its relatives, incr and decr, delete, touch).
//!
//! Never: knows meta flags or packets. Values go from the region directly to the output buffer, or, if they are long, to the socket.

use keyway_cache::server::ServerSession as _;
use keyway_cache::{AHEAD_MAX, Arithmetic, Counted, Delete, Deleted, Get, Item, Store, StoreMode, Stored, WriteError};
use keyway_proto::{Keys, Request, StoreVerb, reply};

use super::admin::Administration;
use super::binary::Binary;
use super::meta::MetaCommands;
use super::miss::{ANOTHER_COMPUTES, Lease, Miss};
use super::{Executor, Items, Origin, Outcome, answer_unless, as_memcached, refusal};
use crate::cpu_budget::{CpuBudget, KEY};

/// What follows the last value of an answer.
const VALUE_END: &[u8] = b"\r\nEND\r\n";

/// Answers these commands.
struct Classic<'a> {
    items: &'a mut Items,
    cpu_budget: &'a mut CpuBudget,
}

impl Executor {
    /// Executes `request` and appends its answer to `out`.
    pub(super) fn answer(&mut self, request: &Request<'_>, out: &mut Vec<u8>, origin: &Origin<'_>) -> Outcome {
        match request {
            Request::Get { keys, with_cas } => return self.classic().get(keys, None, *with_cas, out, origin),
            Request::GetAndTouch { exptime, keys, with_cas } => {
                return self.classic().get(keys, Some((*exptime).into()), *with_cas, out, origin);
            }
            Request::LeaseGet { key, wait_ms } => return self.classic().lease_get(key, *wait_ms, out, origin),
            Request::Store(store) if store.verb == StoreVerb::Lease => self.classic().lease_set(store, out),
            Request::Store(store) => self.classic().store(store, out),
            Request::Meta(meta) => return MetaCommands(&mut self.items).answer(meta, out, origin),
            Request::Delete { key, noreply } => self.classic().delete(key, *noreply, out),
            Request::Arithmetic {
                key,
                delta,
                decrement,
                noreply,
            } => {
                let how = Arithmetic {
                    delta: *delta,
                    decrement: *decrement,
                    ..Arithmetic::default()
                };
                self.classic().arithmetic(key, &how, *noreply, out);
            }
            Request::Touch { key, exptime, noreply } => self.classic().touch(key, *exptime, *noreply, out),
            Request::Binary(request) => return Binary(self).answer(request, out, origin),
            Request::Admin(request) => return Administration(self).answer(request, out, origin),
        }
        Outcome::Done
    }

    fn classic(&mut self) -> Classic<'_> {
        Classic {
            items: &mut self.items,
            cpu_budget: &mut self.cpu_budget,
        }
    }
}

impl Classic<'_> {
    fn get(&mut self, keys: &Keys<'_>, exptime: Option<i64>, with_cas: bool, out: &mut Vec<u8>, origin: &Origin<'_>) -> Outcome {
        let how = Get {
            value: true,
            details: with_cas,
            exptime,
            // A value that no datagram can carry is not copied.
            at_most: origin.is_bounded.then_some(origin.room),
            ..Get::default()
        };
        let cas_enabled = self.items.shows_cas();
        let mut sent = 0;
        let are_last = keys.are_last();
        let mut keys = keys.clone().enumerate().skip(origin.keys_done).peekable();
        let mut ahead = origin.keys_done;
        while let Some((index, key)) = keys.next() {
            let is_over = match origin.is_bounded {
                true => self.cpu_budget.is_datagram_over(),
                false => self.cpu_budget.is_over(),
            };
            // At least one key per turn.
            if out.len() - origin.sent + sent > origin.room || (index > origin.keys_done && is_over) {
                return Outcome::Partly { keys_done: index };
            }
            let before = out.len();
            let is_last = keys.peek().is_none();
            if index == ahead && !is_last {
                let following = keys.clone().map(|(_, key)| key);
                self.items.session.prefetch(std::iter::once(key).chain(following));
                ahead += AHEAD_MAX;
            }
            let is_end = are_last && is_last;
            let behind = if is_end { VALUE_END } else { reply::LINE_END };
            let head = |item: &Item, out: &mut Vec<u8>| {
                let cas = with_cas.then_some(if cas_enabled { item.cas } else { 0 });
                reply::value(out, key, item.flags, item.value_len, cas);
            };
            let mut found = self.get_one(key, &how, out, origin, behind, head);
            if let Ok(None) = found {
                match self.items.missed(key, origin) {
                    Miss::Answer => {}
                    Miss::Again => found = self.get_one(key, &how, out, origin, behind, head),
                    Miss::Hold(until) => return Outcome::Hold { keys_done: index, until },
                }
            }
            match found {
                Ok(Some((item, _)))
                    if origin.is_bounded && (item.value_len > origin.room || out.len() - origin.sent > origin.room) =>
                {
                    out.truncate(before);
                    return Outcome::Partly { keys_done: index };
                }
                Ok(Some((item, sent_now))) => {
                    sent += sent_now;
                    self.cpu_budget.spend(KEY);
                    self.cpu_budget.spend_on_bytes(item.value_len);
                    self.items.fetched(key, true);
                    self.items.found(key, &item, origin);
                    if is_end {
                        return Outcome::Done;
                    }
                }
                Ok(None) => {
                    self.cpu_budget.spend(KEY);
                    self.items.fetched(key, false);
                }
                Err(error) => {
                    // As memcached: the error line ends the answer, without END.
                    out.extend_from_slice(refusal(error));
                    return Outcome::Broken;
                }
            }
        }
        if are_last {
            out.extend_from_slice(reply::END);
        }
        Outcome::Done
    }

    /// Writes an item, with the text before and after its value, to the output or, if the value is long, to the socket. Returns how many
    /// bytes were sent.
    #[inline]
    fn get_one(
        &mut self,
        key: &[u8],
        how: &Get,
        out: &mut Vec<u8>,
        origin: &Origin<'_>,
        behind: &[u8],
        head: impl FnMut(&Item, &mut Vec<u8>),
    ) -> Result<Option<(Item, usize)>, WriteError> {
        let Some(socket) = origin.socket else {
            let found = self.items.session.get_with(key, how, out, head)?;
            return Ok(found.map(|item| {
                out.extend_from_slice(behind);
                (item, 0)
            }));
        };
        let found = self.items.session.get_to(key, how, (socket, behind), out, head)?;
        if let Some((_, sent @ 1..)) = found {
            self.items.counters().bytes_written.add(sent as u64);
        }
        Ok(found)
    }

    /// A get that answers a miss with a lease: the right to store the value, unless another client has it.
    fn lease_get(&mut self, key: &[u8], wait_ms: Option<u32>, out: &mut Vec<u8>, origin: &Origin<'_>) -> Outcome {
        let head = |item: &Item, out: &mut Vec<u8>| reply::value(out, key, item.flags, item.value_len, None);
        let mut found = self.get_one(key, Get::VALUE, out, origin, VALUE_END, head);
        let mut token = None;
        if let Ok(None) = found {
            match self.items.lease(key, wait_ms, origin) {
                Ok(Lease::Hold(until)) => return Outcome::Hold { keys_done: 0, until },
                Ok(Lease::Present) => found = self.get_one(key, Get::VALUE, out, origin, VALUE_END, head),
                Ok(Lease::Token(given)) => token = Some(given),
                Err(error) => found = Err(error),
            }
        }
        self.items.fetched(key, matches!(found, Ok(Some(_))));
        match found {
            Ok(Some(_)) => {}
            // Without a token the value has gone again: its client asks again, as if another one computed it.
            Ok(None) => reply::lease(out, key, token.unwrap_or(ANOTHER_COMPUTES)),
            Err(error) => out.extend_from_slice(refusal(error)),
        }
        Outcome::Done
    }

    fn lease_set(&mut self, store: &keyway_proto::Store<'_>, out: &mut Vec<u8>) {
        let (session, exptime) = (&mut self.items.session, store.exptime.into());
        let answer = match session.store_claimed(store.key, store.cas, store.value, store.flags, exptime) {
            Ok(true) => reply::STORED,
            Ok(false) => reply::NOT_STORED,
            Err(error) => refusal(error),
        };
        self.items.mutated(store.key);
        answer_unless(store.noreply, answer, out);
    }

    fn store(&mut self, store: &keyway_proto::Store<'_>, out: &mut Vec<u8>) {
        let how = Store {
            mode: match store.verb {
                StoreVerb::Set | StoreVerb::Cas | StoreVerb::Lease => StoreMode::Set,
                StoreVerb::Add => StoreMode::Add,
                StoreVerb::Replace => StoreMode::Replace,
                StoreVerb::Append => StoreMode::Append,
                StoreVerb::Prepend => StoreMode::Prepend,
            },
            flags: store.flags,
            exptime: store.exptime.into(),
            compare_cas: (store.verb == StoreVerb::Cas).then_some(store.cas),
            ..Store::default()
        };
        let stored = as_memcached(how.mode, self.items.session.store(store.key, store.value, &how));
        let answer = match &stored {
            Ok(Stored::Stored { .. }) => reply::STORED,
            Ok(Stored::NotStored) => reply::NOT_STORED,
            Ok(Stored::Exists) => reply::EXISTS,
            Ok(Stored::NotFound) => reply::NOT_FOUND,
            Err(error) => refusal(*error),
        };
        self.items.mutated(store.key);
        answer_unless(store.noreply, answer, out);
    }

    fn arithmetic(&mut self, key: &[u8], how: &Arithmetic, noreply: bool, out: &mut Vec<u8>) {
        let answer = match self.items.session.arithmetic(key, how) {
            Ok(Counted::Value { value, .. }) => {
                if !noreply {
                    reply::number(out, value);
                }
                return;
            }
            Ok(Counted::NotFound) => reply::NOT_FOUND,
            Ok(Counted::Exists) => reply::EXISTS,
            Ok(Counted::NotANumber) => reply::NON_NUMERIC,
            Err(error) => refusal(error),
        };
        answer_unless(noreply, answer, out);
    }

    fn delete(&mut self, key: &[u8], noreply: bool, out: &mut Vec<u8>) {
        let answer = match self.items.session.delete(key, &Delete::default()) {
            Ok(Deleted::Deleted) => reply::DELETED,
            Ok(Deleted::NotFound) => reply::NOT_FOUND,
            Ok(Deleted::Exists) => reply::EXISTS,
            Err(error) => refusal(error),
        };
        self.items.deleted(key);
        answer_unless(noreply, answer, out);
    }

    fn touch(&mut self, key: &[u8], exptime: i32, noreply: bool, out: &mut Vec<u8>) {
        let answer = match self.items.session.touch(key, exptime.into()) {
            Ok(true) => reply::TOUCHED,
            Ok(false) => reply::NOT_FOUND,
            Err(error) => refusal(error),
        };
        answer_unless(noreply, answer, out);
    }
}
