//! Meta commands (`mg`, `ms`, `md`, `ma`, `me`): what their flags ask for, as verbs of the session, and their answers.
//!
//! Never: parses flags (`keyway-proto` does), or decides what a verb does.

use keyway_cache::server::ServerSession as _;
use keyway_cache::{Arithmetic, Counted, Delete, Deleted, Get, Item, RELATIVE_EXPTIME_MAX, Read, Store, StoreMode, Stored};
use keyway_proto::reply::{self, ItemFacts, MetaCode, MetaCommand};
use keyway_proto::{Flags, Meta, MetaArithmetic, MetaDelete, MetaGet, MetaKey, MetaSet, MetaSetMode};

use super::miss::Miss;
use super::{Items, Origin, Outcome, as_memcached, refusal};
use crate::stats::CLASS;

/// What a meta command's flags say about expiry.
struct Times {
    /// exptime of an item that the command creates
    vivify: Option<i64>,
    /// the TTL to report, if it differs from the item's TTL afterwards; inner `None`: the item does not expire
    ttl_before_s: Option<Option<u64>>,
}

/// Answers these commands.
pub(super) struct MetaCommands<'a>(pub(super) &'a mut Items);

impl MetaCommands<'_> {
    pub(super) fn answer(&mut self, meta: &Meta<'_>, out: &mut Vec<u8>, origin: &Origin<'_>) -> Outcome {
        match meta {
            Meta::Get(get) => return self.get(get, out, origin),
            Meta::Set(set) => self.set(set, out, origin.is_line),
            Meta::Delete(delete) => self.delete(delete, out),
            Meta::Arithmetic(arithmetic) => self.arithmetic(arithmetic, out),
            Meta::Noop => self.noop(out),
            Meta::Debug { key } => self.debug(key, out),
        }
        Outcome::Done
    }

    fn get(&mut self, get: &MetaGet<'_>, out: &mut Vec<u8>, origin: &Origin<'_>) -> Outcome {
        self.0.counters().cmd_meta.add(1);
        let key = get.key.stored();
        let (how, times) = self.asked(get, origin.may_write);
        let cas_enabled = self.0.shows_cas();
        let mut head = |item: &Item, out: &mut Vec<u8>| {
            let code = if get.wants_value(item.cas) {
                MetaCode::Value
            } else {
                MetaCode::Done
            };
            reply::meta(
                out,
                MetaCommand::Get,
                code,
                &get.flags,
                &ItemFacts {
                    ttl_before_s: times.ttl_before_s,
                    ..facts(key, item, cas_enabled)
                },
            );
        };
        let mut found = self.0.session.get_with(key, &how, out, &mut head);
        if let Ok(None) = found {
            match self.0.missed(key, origin) {
                Miss::Answer => {}
                Miss::Again => found = self.0.session.get_with(key, &how, out, &mut head),
                Miss::Hold(until) => return Outcome::Hold { keys_done: 0, until },
            }
        }
        match found {
            Ok(Some(item)) => {
                self.0.found(key, &item, origin);
                if get.wants_value(item.cas) {
                    out.extend_from_slice(reply::LINE_END);
                }
                self.0.fetched(key, true);
            }
            Ok(None) => {
                self.0.fetched(key, false);
                if !(get.quiet && reply::is_hidden(MetaCommand::Get, MetaCode::Miss)) {
                    let facts = ItemFacts {
                        key,
                        is_binary: get.key.is_binary(),
                        ..ItemFacts::default()
                    };
                    reply::meta(out, MetaCommand::Get, MetaCode::Miss, &get.flags, &facts);
                }
            }
            Err(error) => out.extend_from_slice(refusal(error)),
        }
        Outcome::Done
    }

    /// What a get with these flags asks for.
    fn asked(&mut self, get: &MetaGet<'_>, may_write: bool) -> (Get, Times) {
        let how = what_is_asked(get, may_write);
        let times = self.times(get.key.stored(), &get.flags, how.exptime, how.vivify);
        let vivify = times.vivify;
        (Get { vivify, ..how }, times)
    }

    /// Evaluates flags T and N. They take effect from left to right, and so does the `t` that asks for the TTL. A new item does not expire
    /// unless `N` gives it a TTL, which a later `T` changes.
    fn times(&mut self, key: &[u8], flags: &Flags<'_>, exptime: Option<i64>, vivify: Option<i64>) -> Times {
        let mut times = Times {
            vivify,
            ttl_before_s: None,
        };
        if exptime.is_none() && vivify.is_none() {
            return times;
        }
        let place = |letter| flags.clone().position(|flag| flag.first() == Some(&letter));
        let (asked, touched, created) = (place(b't'), place(b'T'), place(b'N'));
        let is_before = |one: Option<usize>, other: Option<usize>| one.is_some() && one < other;
        if is_before(created, touched) {
            times.vivify = exptime;
        }
        let (before_touch, before_creation) = (is_before(asked, touched), is_before(asked, created));
        if !before_touch && !before_creation {
            return times;
        }
        times.ttl_before_s = match self.0.session.look(key) {
            Ok(Read::Hit(item)) => before_touch.then(|| item.ttl_s.map(u64::from)),
            Ok(_) if before_creation => Some(None),
            Ok(_) => vivify
                .filter(|_| is_before(created, touched))
                .map(|exptime| self.ttl_of(exptime)),
            Err(_) => None,
        };
        times
    }

    /// The number of seconds from now that an exptime means; `None`: it never expires.
    fn ttl_of(&mut self, exptime: i64) -> Option<u64> {
        let ttl_s = match exptime {
            0 => return None,
            ..=RELATIVE_EXPTIME_MAX => exptime,
            _ => exptime - self.0.session.now_unix_s(),
        };
        Some(u64::try_from(ttl_s).unwrap_or(0))
    }

    fn set(&mut self, set: &MetaSet<'_>, out: &mut Vec<u8>, is_line: bool) {
        self.0.counters().cmd_meta.add(1);
        let key = set.key.stored();
        let joins = matches!(set.mode, MetaSetMode::Append | MetaSetMode::Prepend);
        let how = Store {
            mode: match set.mode {
                MetaSetMode::Set => StoreMode::Set,
                MetaSetMode::Add => StoreMode::Add,
                MetaSetMode::Replace => StoreMode::Replace,
                MetaSetMode::Append => StoreMode::Append,
                MetaSetMode::Prepend => StoreMode::Prepend,
            },
            flags: set.client_flags,
            exptime: set.exptime.into(),
            // As in memcached: for an append 0 is not compared, and with flag I it does not count as a CAS unique older than the item's.
            compare_cas: set.compare_cas.filter(|&cas| cas != 0 || !joins),
            new_cas: set.new_cas,
            invalidate: set.invalidate && set.compare_cas != Some(0),
            vivify: set.vivify.map(i64::from),
            opaque_key: set.key.is_binary(),
        };
        let stored = self.0.session.store(key, set.value, &how);
        self.0.mutated(key);
        let stored = match stored {
            Err(error) if is_line => return out.extend_from_slice(refusal(error)),
            stored => as_memcached(how.mode, stored),
        };
        let mut facts = ItemFacts {
            key,
            is_binary: set.key.is_binary(),
            value_len: set.value.len(),
            ..ItemFacts::default()
        };
        let code = match stored {
            Ok(Stored::Stored { cas, value_len, .. }) => {
                facts.cas = if self.0.shows_cas() { cas } else { 0 };
                facts.value_len = value_len;
                MetaCode::Done
            }
            Ok(Stored::NotStored) => MetaCode::NotStored,
            Ok(Stored::Exists) => MetaCode::Exists,
            Ok(Stored::NotFound) => MetaCode::NotFound,
            Err(error) => {
                // As memcached: a meta set for which there is no room removes the item, whatever its mode.
                if error.is_for_room() {
                    self.0.forget(key);
                }
                return out.extend_from_slice(refusal(error));
            }
        };
        if !(set.quiet && reply::is_hidden(MetaCommand::Set, code)) {
            reply::meta(out, MetaCommand::Set, code, &set.flags, &facts);
        }
    }

    fn delete(&mut self, delete: &MetaDelete<'_>, out: &mut Vec<u8>) {
        self.0.counters().cmd_meta.add(1);
        let key = delete.key.stored();
        let how = Delete {
            compare_cas: delete.compare_cas,
            new_cas: delete.new_cas,
            invalidate: delete.invalidate,
            exptime: delete.exptime.map(i64::from),
            remove_value: delete.remove_value,
            ..Delete::default()
        };
        let code = match self.0.session.delete(key, &how) {
            Ok(Deleted::Deleted) => MetaCode::Done,
            Ok(Deleted::NotFound) => MetaCode::NotFound,
            Ok(Deleted::Exists) => MetaCode::Exists,
            Err(error) => return out.extend_from_slice(refusal(error)),
        };
        self.0.deleted(key);
        if !(delete.quiet && reply::is_hidden(MetaCommand::Delete, code)) {
            let facts = ItemFacts {
                key,
                is_binary: delete.key.is_binary(),
                ..ItemFacts::default()
            };
            reply::meta(out, MetaCommand::Delete, code, &delete.flags, &facts);
        }
    }

    fn arithmetic(&mut self, arithmetic: &MetaArithmetic<'_>, out: &mut Vec<u8>) {
        self.0.counters().cmd_meta.add(1);
        let key = arithmetic.key.stored();
        let how = Arithmetic {
            delta: arithmetic.delta,
            decrement: arithmetic.decrement,
            vivify: arithmetic.vivify.map(|exptime| (arithmetic.initial, exptime.into())),
            exptime: arithmetic.exptime.map(i64::from),
            // As in memcached: 0 is no CAS unique to compare with.
            compare_cas: arithmetic.compare_cas.filter(|&cas| cas != 0),
            new_cas: arithmetic.new_cas,
            // memcached does not mark an item that `ma` creates, so `mg` shows its key as it is.
            opaque_key: false,
        };
        let vivify = how.vivify.map(|(_, exptime)| exptime);
        let times = self.times(key, &arithmetic.flags, how.exptime, vivify);
        let how = Arithmetic {
            vivify: times.vivify.map(|exptime| (arithmetic.initial, exptime)),
            ..how
        };
        let mut facts = ItemFacts {
            key,
            is_binary: arithmetic.key.is_binary(),
            ..ItemFacts::default()
        };
        let mut number = None;
        let code = match self.0.session.arithmetic(key, &how) {
            Ok(Counted::Value { value, item }) => {
                let counted = self::facts(key, &item, self.0.shows_cas());
                // `k` shows the key as this request wrote it, while `mg` shows it as the client that stored the item wrote it.
                facts = ItemFacts {
                    ttl_before_s: times.ttl_before_s,
                    is_binary: facts.is_binary,
                    ..counted
                };
                facts.value_len = value.checked_ilog10().unwrap_or(0) as usize + 1;
                number = Some(value);
                if arithmetic.value { MetaCode::Value } else { MetaCode::Done }
            }
            Ok(Counted::NotFound) => MetaCode::NotFound,
            Ok(Counted::Exists) => MetaCode::Exists,
            Ok(Counted::NotANumber) => return out.extend_from_slice(reply::NON_NUMERIC),
            Err(error) => return out.extend_from_slice(refusal(error)),
        };
        if arithmetic.quiet && reply::is_hidden(MetaCommand::Arithmetic, code) {
            return;
        }
        reply::meta(out, MetaCommand::Arithmetic, code, &arithmetic.flags, &facts);
        if let (MetaCode::Value, Some(number)) = (code, number) {
            reply::number(out, number);
        }
    }

    fn noop(&self, out: &mut Vec<u8>) {
        self.0.counters().cmd_meta.add(1);
        out.extend_from_slice(reply::META_NOOP);
    }

    fn debug(&mut self, key: &MetaKey<'_>, out: &mut Vec<u8>) {
        self.0.counters().cmd_meta.add(1);
        let stored = key.stored();
        let cas_enabled = self.0.shows_cas();
        let how = Get {
            details: true,
            no_bump: true,
            ..Get::default()
        };
        let found = self.0.session.get_with(stored, &how, out, |item, out| {
            let facts = reply::DebugFacts {
                key: stored,
                is_binary: item.opaque_key,
                ttl_s: item.ttl_s.map(u64::from),
                idle_s: item.idle_s.into(),
                cas: if cas_enabled { item.cas } else { 0 },
                fetched: item.fetched,
                class: CLASS,
                size: item.counted_size(stored.len()) as u64,
            };
            reply::debug(out, &facts);
        });
        if !matches!(found, Ok(Some(_))) {
            out.extend_from_slice(reply::META_MISS);
        }
    }
}

fn facts<'a>(key: &'a [u8], item: &Item, cas_enabled: bool) -> ItemFacts<'a> {
    ItemFacts {
        key,
        is_binary: item.opaque_key,
        value_len: item.value_len,
        client_flags: item.flags,
        cas: if cas_enabled { item.cas } else { 0 },
        ttl_s: item.ttl_s.map(u64::from),
        ttl_before_s: None,
        idle_s: item.idle_s.into(),
        fetched: item.fetched,
        win_sent: item.win_sent,
        stale: item.stale,
        win: item.win,
    }
}

/// A get with these flags.
fn what_is_asked(get: &MetaGet<'_>, may_write: bool) -> Get {
    Get {
        value: get.value,
        details: get.unless_cas.is_some() || get.flags.clone().any(|flag| matches!(flag, [b'c' | b'l' | b'h', ..])),
        unless_cas: get.unless_cas,
        at_most: None,
        win_stale: may_write,
        no_bump: get.no_bump,
        exptime: get.exptime.map(i64::from),
        vivify: get.vivify.map(i64::from),
        recache_s: get.recache_s.map(i64::from),
        recache_after_touch: is_touched_before_recache(&get.flags),
        new_cas: get.new_cas,
        opaque_key: get.key.is_binary(),
    }
}

/// Whether flag T stands before flag R: flags take effect from left to right (protocol.txt, "Meta Get").
fn is_touched_before_recache(flags: &Flags<'_>) -> bool {
    let mut order = flags
        .clone()
        .filter_map(|flag| flag.first())
        .filter(|letter| matches!(letter, b'T' | b'R'));
    order.next() == Some(&b'T')
}
