//! One request: executed as a verb of the session, answered to the output.
//!
//! Nothing here waits. Values go from the region directly to the output buffer, or, if they are long, to the socket.

use std::io::Write;
use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};

use keyway::{
    Arithmetic, Cache, Counted, Delete, Deleted, Get, Item, RELATIVE_EXPTIME_MAX, Read, Session, Store, StoreMode, Stored,
    WriteError,
};
use keyway_proto::reply::{self, Facts, MetaCode, MetaCommand};
use keyway_proto::{
    Admin, Command, DumpFormat, Effect, Flags, Keys, MetaArithmetic, MetaDelete, MetaGet, MetaKey, MetaSet, MetaSetMode, Needs,
    Request, StoreVerb, Tokens, tokens,
};

use crate::config::PROTOCOL_VERSION;
use crate::connection::CloseReason;
use crate::dump::Dump;
use crate::effort::{Effort, KEY, STATS, TURN_WORK};
use crate::memory;
use crate::shared::{Message, Peer, PeerAddress, Shared, WorkerCounters, lock};
use crate::stats::{self, CLASS};
use crate::watch::{self, Watcher};

/// What a worker needs to execute requests.
pub(crate) struct Executor {
    pub(crate) session: Session,
    pub(crate) cache: Cache,
    pub(crate) shared: Arc<Shared>,
    /// this worker's number
    pub(crate) worker: usize,
    /// whether the session records what it evicts, because there is a watcher
    pub(crate) tells_evictions: bool,
    /// work of the present turn
    pub(crate) effort: Effort,
}

/// What a meta command's flags say about expiry.
struct Times {
    /// exptime of an item that the command creates
    vivify: Option<i64>,
    /// the TTL to report, if it differs from the item's TTL afterwards; inner `None`: the item does not expire
    ttl_before_s: Option<Option<u64>>,
}

/// What is left to do for a request.
pub(crate) enum Outcome {
    Done,
    /// the output is full after this many keys; execute the request again when the client has taken it
    Partly {
        keys_done: usize,
    },
    /// an error has ended the answer: the rest of the line is not executed
    Broken,
    Close(CloseReason),
    Dump(Dump),
    Watch(Arc<Watcher>),
    /// another thread executes it, and then gives this connection a turn
    Wait(Arc<Task>),
}

/// A long task that a separate thread does for a connection.
#[derive(Default)]
pub(crate) struct Task(OnceLock<&'static [u8]>);

impl Task {
    /// The answer, when the task is done.
    pub(crate) fn answer(&self) -> Option<&'static [u8]> {
        self.0.get().copied()
    }
}

/// Where a request comes from, and how full its output is.
pub(crate) struct Origin<'a> {
    pub(crate) peer: &'a Peer,
    /// the worker's token of the connection
    pub(crate) token: usize,
    /// leading bytes of the output that have been sent
    pub(crate) sent: usize,
    /// leading keys of a request with several keys that have been answered
    pub(crate) keys_done: usize,
    /// unsent bytes after which the output is full
    pub(crate) room: usize,
    /// it is a datagram: not even the last item may exceed `room`, and the request is not continued later
    pub(crate) is_bounded: bool,
    /// the connection's socket, if this code may send the output
    pub(crate) socket: Option<BorrowedFd<'a>>,
}

/// What follows the last value of an answer.
const VALUE_END: &[u8] = b"\r\nEND\r\n";
/// The region's changes are counted for a kernel program that this server does not feed.
const KERNEL_DOOR: &[u8] = b"SERVER_ERROR another server answers for this region from the kernel; write through that one\r\n";
/// The log level is for the operator to set.
const NO_TLS: &[u8] = b"SERVER_ERROR no TLS here, so no certificates\r\n";
const NOT_REFRESHED: &[u8] = b"SERVER_ERROR the new certificate cannot be used, the old one stays: see the log\r\n";
const VERBOSITY_REFUSED: &[u8] = b"CLIENT_ERROR verbosity not allowed from other machines without logins\r\n";
/// An error that no client can fix: a damaged region, or one whose flush epochs are used up.
const DAMAGED: &[u8] = b"SERVER_ERROR the region takes no writes here; run keyway check on it\r\n";

impl Executor {
    pub(crate) fn counters(&self) -> &WorkerCounters {
        &self.shared.doors[self.worker].counters
    }

    /// Deletes the item under `key`: its new value could not be stored, and the old one must not stay.
    pub(crate) fn forget(&mut self, key: &[u8]) {
        // The client gets the error about the value that it sent; the protocol has no place for a second one.
        let how = Delete {
            uncounted: true,
            ..Delete::default()
        };
        let _ = self.session.delete(key, &how);
    }

    /// Counts a value that is too large, and deletes the item that it should have replaced.
    pub(crate) fn too_large(&mut self, forget: Option<&MetaKey<'_>>) {
        self.counters().too_large.add(1);
        if let Some(key) = forget {
            self.forget(key.stored());
        }
    }

    /// Whether this request has to wait (without delaying other connections): it may change an item that the kernel program of a dead server
    /// may still answer.
    #[inline]
    pub(crate) fn holds_up(&self, request: &Request<'_>) -> bool {
        request.effect() != Effect::Reads && self.session.is_held_up()
    }

    /// Executes `request` and appends its answer to `out`.
    pub(crate) fn execute(&mut self, request: &Request<'_>, out: &mut Vec<u8>, origin: &Origin<'_>) -> Outcome {
        let tells = self.shared.watch.wants(watch::EVICTIONS);
        if tells != self.tells_evictions {
            self.session.remember_evicted(tells);
            self.tells_evictions = tells;
        }
        let outcome = self.execute_verb(request, out, origin);
        if tells {
            self.tell_evictions();
        }
        if let Some(post) = &self.shared.kernel
            && request.effect() == Effect::Changes
        {
            post.changed();
        }
        outcome
    }

    fn execute_verb(&mut self, request: &Request<'_>, out: &mut Vec<u8>, origin: &Origin<'_>) -> Outcome {
        match request {
            Request::Get { keys, with_cas } => return self.get(keys, None, *with_cas, out, origin),
            Request::GetAndTouch { exptime, keys, with_cas } => {
                return self.get(keys, Some((*exptime).into()), *with_cas, out, origin);
            }
            Request::Store(store) => self.store(store, out, origin),
            Request::MetaGet(get) => self.meta_get(get, out, origin),
            Request::MetaSet(set) => self.meta_set(set, out, origin),
            Request::Delete { key, noreply } => {
                let before = self.looked_up(key, origin);
                let answer = match self.session.delete(key, &Delete::default()) {
                    Ok(Deleted::Deleted) => reply::DELETED,
                    Ok(Deleted::NotFound) => reply::NOT_FOUND,
                    Ok(Deleted::Exists) => reply::EXISTS,
                    Err(error) => refusal(error),
                };
                self.deleted(
                    key,
                    Command::Delete,
                    (answer == reply::DELETED).then_some(before.unwrap_or(0)),
                );
                answer_unless(*noreply, answer, out);
            }
            Request::Arithmetic {
                key,
                delta,
                decrement,
                noreply,
            } => {
                self.looked_up(key, origin);
                self.arithmetic(
                    key,
                    &Arithmetic {
                        delta: *delta,
                        decrement: *decrement,
                        ..Arithmetic::default()
                    },
                    *noreply,
                    out,
                );
            }
            Request::Touch { key, exptime, noreply } => {
                self.looked_up(key, origin);
                let answer = match self.session.touch(key, (*exptime).into()) {
                    Ok(true) => reply::TOUCHED,
                    Ok(false) => reply::NOT_FOUND,
                    Err(error) => refusal(error),
                };
                answer_unless(*noreply, answer, out);
            }
            Request::MetaDelete(delete) => self.meta_delete(delete, out, origin),
            Request::MetaArithmetic(arithmetic) => self.meta_arithmetic(arithmetic, out, origin),
            Request::MetaNoop => {
                self.counters().cmd_meta.add(1);
                out.extend_from_slice(reply::META_NOOP);
            }
            Request::MetaDebug { key } => self.meta_debug(key, out, origin),
            Request::Binary(request) => return self.binary(request, out, origin),
            Request::Admin(request) => return self.administer(request, out, origin),
        }
        Outcome::Done
    }

    /// Requests about the server rather than about items.
    #[cold]
    fn administer(&mut self, request: &Admin<'_>, out: &mut Vec<u8>, origin: &Origin<'_>) -> Outcome {
        if let Some(refusal) = self.refuses(request, origin.peer) {
            out.extend_from_slice(refusal);
            return Outcome::Done;
        }
        match request {
            Admin::FlushAll { delay, noreply } => {
                let answer = match self.session.flush_all((*delay).into()) {
                    Err(error) => {
                        log::error!("flush_all: {error}");
                        refusal(error)
                    }
                    Ok(()) => {
                        log::info!("{}: flush_all {delay}", origin.peer.address);
                        reply::OK
                    }
                };
                answer_unless(*noreply, answer, out);
            }
            Admin::Version => reply::version(out, PROTOCOL_VERSION),
            Admin::Verbosity { level, noreply } => {
                self.set_verbosity(*level);
                answer_unless(*noreply, reply::OK, out);
            }
            Admin::Quit => return Outcome::Close(CloseReason::Normal),
            Admin::Stats { argument } => return self.stats(argument, out),
            Admin::CacheMemlimit { megabytes, noreply } => return self.memory_limit(*megabytes, *noreply, out, origin),
            Admin::Shutdown { graceful: _ } => {
                log::info!("{}: shutdown", origin.peer.address);
                self.shared.stop();
                return Outcome::Close(CloseReason::Shutdown);
            }
            Admin::Dump { format, what } => return Self::dump(*format, what, out),
            Admin::Watch { what } => return self.watch(what, out, origin),
            Admin::RefreshCerts { noreply } => {
                self.effort.spend(TURN_WORK);
                let refreshed = self.shared.refresh_certificates("refresh_certs");
                answer_unless(
                    *noreply,
                    refreshed.map_or(NO_TLS, |done| if done { reply::OK } else { NOT_REFRESHED }),
                    out,
                );
            }
            Admin::Obsolete { reply, noreply, .. } => answer_unless(*noreply, reply, out),
        }
        Outcome::Done
    }

    /// The error for a request that this server's configuration, or the client's address, does not allow; empty if the client asked for no
    /// reply.
    fn refuses(&self, request: &Admin<'_>, peer: &Peer) -> Option<&'static [u8]> {
        let config = &self.shared.config;
        let (allowed, refusal) = match request.command().facts().needs {
            Needs::Nothing => return None,
            Needs::Flushing => (config.flush_enabled, reply::FLUSH_DISABLED),
            Needs::ShuttingDown => (config.shutdown_enabled, reply::SHUTDOWN_DISABLED),
            Needs::Watching => (config.watch_enabled, reply::WATCH_DISABLED),
            Needs::Trust => (self.trusts(peer), VERBOSITY_REFUSED),
            Needs::Dumping => match request {
                // A setting of the crawler that has no effect here.
                Admin::Obsolete { .. } => return None,
                Admin::Dump {
                    format: DumpFormat::Metadump,
                    ..
                } => (config.dump_enabled, reply::METADUMP_DISABLED),
                _ => (config.dump_enabled, reply::MGDUMP_DISABLED),
            },
        };
        (!allowed).then_some(if request.is_silent() { b"" } else { refusal })
    }

    fn get(&mut self, keys: &Keys<'_>, exptime: Option<i64>, with_cas: bool, out: &mut Vec<u8>, origin: &Origin<'_>) -> Outcome {
        let how = Get {
            value: true,
            details: with_cas,
            exptime,
            // A value that no datagram can carry is not copied.
            at_most: origin.is_bounded.then_some(origin.room),
            ..Get::default()
        };
        let cas_enabled = self.shared.config.cas_enabled;
        let mut sent = 0;
        let are_last = keys.are_last();
        let mut keys = keys.clone().enumerate().skip(origin.keys_done).peekable();
        while let Some((index, key)) = keys.next() {
            let is_over = match origin.is_bounded {
                true => self.effort.is_datagram_over(),
                false => self.effort.is_over(),
            };
            // At least one key per turn.
            if out.len() - origin.sent + sent > origin.room || (index > origin.keys_done && is_over) {
                return Outcome::Partly { keys_done: index };
            }
            let before = out.len();
            let is_end = are_last && keys.peek().is_none();
            let behind = if is_end { VALUE_END } else { reply::LINE_END };
            let found = self.get_one(key, &how, out, origin, behind, |item, out| {
                let cas = with_cas.then_some(if cas_enabled { item.cas } else { 0 });
                reply::value(out, key, item.flags, item.value_len, cas);
            });
            match found {
                Ok(Some((item, _)))
                    if origin.is_bounded && (item.value_len > origin.room || out.len() - origin.sent > origin.room) =>
                {
                    out.truncate(before);
                    return Outcome::Partly { keys_done: index };
                }
                Ok(Some((item, sent_now))) => {
                    sent += sent_now;
                    self.effort.spend(KEY);
                    self.effort.spend_on_bytes(item.value_len);
                    self.fetched(key, Some(&item), origin);
                    if is_end {
                        return Outcome::Done;
                    }
                }
                Ok(None) => {
                    self.effort.spend(KEY);
                    self.fetched(key, None, origin);
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
            let found = self.session.get_with(key, how, out, head)?;
            return Ok(found.map(|item| {
                out.extend_from_slice(behind);
                (item, 0)
            }));
        };
        let found = self.session.get_to(key, how, socket, out, head, behind)?;
        if let Some((_, sent @ 1..)) = found {
            self.counters().bytes_written.add(sent as u64);
        }
        Ok(found)
    }

    fn store(&mut self, store: &keyway_proto::Store<'_>, out: &mut Vec<u8>, origin: &Origin<'_>) {
        let how = Store {
            mode: match store.verb {
                StoreVerb::Set | StoreVerb::Cas => StoreMode::Set,
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
        self.looked_up(store.key, origin);
        let stored = as_memcached(how.mode, self.session.store(store.key, store.value, &how));
        let answer = match &stored {
            Ok(Stored::Stored { .. }) => reply::STORED,
            Ok(Stored::NotStored) => reply::NOT_STORED,
            Ok(Stored::Exists) => reply::EXISTS,
            Ok(Stored::NotFound) => reply::NOT_FOUND,
            Err(error) => self.store_failed(store.key, how.mode, *error),
        };
        self.mutated(store.key, &stored, store.verb, how.exptime, store.value.len(), origin);
        answer_unless(store.noreply, answer, out);
    }

    /// The error of a store. The item that it should have replaced is deleted, as in memcached, so that no client reads a stale value.
    fn store_failed(&mut self, key: &[u8], mode: StoreMode, error: WriteError) -> &'static [u8] {
        if mode == StoreMode::Set && matches!(error, WriteError::TooLarge { .. } | WriteError::OutOfMemory) {
            self.forget(key);
        }
        refusal(error)
    }

    fn arithmetic(&mut self, key: &[u8], how: &Arithmetic, noreply: bool, out: &mut Vec<u8>) {
        let answer = match self.session.arithmetic(key, how) {
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

    fn meta_get(&mut self, get: &MetaGet<'_>, out: &mut Vec<u8>, origin: &Origin<'_>) {
        self.counters().cmd_meta.add(1);
        let key = get.key.stored();
        let how = Get {
            value: get.value,
            details: get.unless_cas.is_some() || get.flags.clone().any(|flag| matches!(flag, [b'c' | b'l' | b'h', ..])),
            unless_cas: get.unless_cas,
            at_most: None,
            win_stale: true,
            no_bump: get.no_bump,
            exptime: get.exptime.map(i64::from),
            vivify: get.vivify.map(i64::from),
            recache_s: get.recache_s.map(i64::from),
            recache_after_touch: is_touched_before_recache(&get.flags),
            new_cas: get.new_cas,
            opaque_key: get.key.is_binary(),
        };
        let times = self.times(key, &get.flags, how.exptime, how.vivify);
        let how = Get {
            vivify: times.vivify,
            ..how
        };
        let creates = how.vivify.is_some() && self.is_watched() && !matches!(self.session.look(key), Ok(Read::Hit(_)));
        let cas_enabled = self.shared.config.cas_enabled;
        let found = self.session.get_with(key, &how, out, |item, out| {
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
                &Facts {
                    ttl_before_s: times.ttl_before_s,
                    ..facts(key, item, cas_enabled)
                },
            );
        });
        match found {
            Ok(Some(item)) => {
                if get.wants_value(item.cas) {
                    out.extend_from_slice(reply::LINE_END);
                }
                self.fetched(key, (!creates).then_some(&item), origin);
            }
            Ok(None) => {
                self.fetched(key, None, origin);
                if !(get.quiet && reply::is_hidden(MetaCommand::Get, MetaCode::Miss)) {
                    let facts = Facts {
                        key,
                        is_binary: get.key.is_binary(),
                        ..Facts::default()
                    };
                    reply::meta(out, MetaCommand::Get, MetaCode::Miss, &get.flags, &facts);
                }
            }
            Err(error) => out.extend_from_slice(refusal(error)),
        }
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
        times.ttl_before_s = match self.session.look(key) {
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
            _ => exptime - self.session.now_unix_s(),
        };
        Some(u64::try_from(ttl_s).unwrap_or(0))
    }

    fn meta_set(&mut self, set: &MetaSet<'_>, out: &mut Vec<u8>, origin: &Origin<'_>) {
        self.counters().cmd_meta.add(1);
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
        self.looked_up(key, origin);
        let stored = as_memcached(how.mode, self.session.store(key, set.value, &how));
        let verb = match set.mode {
            MetaSetMode::Set | MetaSetMode::Replace if set.compare_cas.is_some() => StoreVerb::Cas,
            MetaSetMode::Set => StoreVerb::Set,
            MetaSetMode::Add => StoreVerb::Add,
            MetaSetMode::Replace => StoreVerb::Replace,
            MetaSetMode::Append => StoreVerb::Append,
            MetaSetMode::Prepend => StoreVerb::Prepend,
        };
        self.mutated(key, &stored, verb, how.exptime, set.value.len(), origin);
        let mut facts = Facts {
            key,
            is_binary: set.key.is_binary(),
            value_len: set.value.len(),
            ..Facts::default()
        };
        let code = match stored {
            Ok(Stored::Stored { cas, value_len, .. }) => {
                facts.cas = if self.shared.config.cas_enabled { cas } else { 0 };
                facts.value_len = value_len;
                MetaCode::Done
            }
            Ok(Stored::NotStored) => MetaCode::NotStored,
            Ok(Stored::Exists) => MetaCode::Exists,
            Ok(Stored::NotFound) => MetaCode::NotFound,
            Err(error) => return out.extend_from_slice(self.store_failed(key, how.mode, error)),
        };
        if !(set.quiet && reply::is_hidden(MetaCommand::Set, code)) {
            reply::meta(out, MetaCommand::Set, code, &set.flags, &facts);
        }
    }

    fn meta_delete(&mut self, delete: &MetaDelete<'_>, out: &mut Vec<u8>, origin: &Origin<'_>) {
        self.counters().cmd_meta.add(1);
        let key = delete.key.stored();
        let how = Delete {
            compare_cas: delete.compare_cas,
            new_cas: delete.new_cas,
            invalidate: delete.invalidate,
            exptime: delete.exptime.map(i64::from),
            remove_value: delete.remove_value,
            ..Delete::default()
        };
        let before = self.looked_up(key, origin);
        let code = match self.session.delete(key, &how) {
            Ok(Deleted::Deleted) => MetaCode::Done,
            Ok(Deleted::NotFound) => MetaCode::NotFound,
            Ok(Deleted::Exists) => MetaCode::Exists,
            Err(error) => return out.extend_from_slice(refusal(error)),
        };
        let gone = match (how.invalidate, how.remove_value) {
            // The item is marked stale, and still there.
            (true, _) => None,
            (false, true) => Some(0),
            (false, false) => Some(before.unwrap_or(0)),
        };
        self.deleted(key, Command::MetaDelete, gone.filter(|_| code == MetaCode::Done));
        if !(delete.quiet && reply::is_hidden(MetaCommand::Delete, code)) {
            let facts = Facts {
                key,
                is_binary: delete.key.is_binary(),
                ..Facts::default()
            };
            reply::meta(out, MetaCommand::Delete, code, &delete.flags, &facts);
        }
    }

    fn meta_arithmetic(&mut self, arithmetic: &MetaArithmetic<'_>, out: &mut Vec<u8>, origin: &Origin<'_>) {
        self.counters().cmd_meta.add(1);
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
        let before = self.looked_up(key, origin);
        let mut facts = Facts {
            key,
            is_binary: arithmetic.key.is_binary(),
            ..Facts::default()
        };
        let mut number = None;
        let code = match self.session.arithmetic(key, &how) {
            Ok(Counted::Value { value, item }) => {
                let counted = self::facts(key, &item, self.shared.config.cas_enabled);
                // `k` shows the key as this request wrote it, while `mg` shows it as the client that stored the item wrote it.
                facts = Facts {
                    ttl_before_s: times.ttl_before_s,
                    is_binary: facts.is_binary,
                    ..counted
                };
                facts.value_len = value.checked_ilog10().unwrap_or(0) as usize + 1;
                if let (true, None, Some(exptime)) = (self.is_watched(), before, times.vivify) {
                    let (cas, value_len, size) = (item.cas, facts.value_len, item.size);
                    self.mutated(
                        key,
                        &Ok(Stored::Stored { cas, value_len, size }),
                        StoreVerb::Add,
                        exptime,
                        value_len,
                        origin,
                    );
                }
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

    fn meta_debug(&mut self, key: &MetaKey<'_>, out: &mut Vec<u8>, origin: &Origin<'_>) {
        self.counters().cmd_meta.add(1);
        let stored = key.stored();
        self.looked_up(stored, origin);
        let cas_enabled = self.shared.config.cas_enabled;
        let how = Get {
            details: true,
            no_bump: true,
            ..Get::default()
        };
        let found = self.session.get_with(stored, &how, out, |item, out| {
            let facts = reply::DebugFacts {
                key: stored,
                is_binary: item.opaque_key,
                ttl_s: item.ttl_s.map(u64::from),
                idle_s: item.idle_s.into(),
                cas: if cas_enabled { item.cas } else { 0 },
                fetched: item.fetched,
                class: CLASS,
                size: item.size as u64,
            };
            reply::debug(out, &facts);
        });
        if !matches!(found, Ok(Some(_))) {
            out.extend_from_slice(reply::META_MISS);
        }
    }

    /// memcached's verbosity as a level of the log: 0 warnings, 1 the server's doings, 2 connections, 3 requests.
    fn set_verbosity(&self, level: u32) {
        let level = u8::try_from(level).unwrap_or(u8::MAX).min(3);
        self.shared.verbosity.store(level, Relaxed);
        log::set_max_level(crate::log_level(level));
    }

    /// Whether this client may do what is for the operator, such as changing the log level: it is on this machine, or has logged in.
    fn trusts(&self, peer: &Peer) -> bool {
        match &peer.address {
            PeerAddress::Unix | PeerAddress::Reader => true,
            PeerAddress::Tcp { remote, .. } => self.shared.users.is_some() || remote.ip().to_canonical().is_loopback(),
            PeerAddress::Udp { .. } => false,
        }
    }

    fn memory_limit(&self, megabytes: u64, noreply: bool, out: &mut Vec<u8>, origin: &Origin<'_>) -> Outcome {
        let memory = match megabytes.checked_mul(1 << 20) {
            Some(_) if megabytes < 8 => {
                answer_unless(noreply, b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n", out);
                return Outcome::Done;
            }
            memory => memory.unwrap_or(u64::MAX),
        };
        // The kernel clears the new memory, a third of a second for each GiB; other connections do not wait for that.
        let task = Arc::new(Task::default());
        let (done, worker, token) = (Arc::clone(&task), self.worker, origin.token);
        let (shared, cache) = (Arc::clone(&self.shared), self.cache.clone());
        let work = move || {
            let answer = match memory::set_limit(&shared, &cache, memory) {
                true => reply::OK,
                false => MEMLIMIT_FAILED,
            };
            let _ = done.0.set(if noreply { b"" } else { answer });
            shared.doors[worker].send(Message::Turn(token));
        };
        match std::thread::Builder::new().name("keyway-memory".to_owned()).spawn(work) {
            Ok(_) => Outcome::Wait(task),
            Err(error) => {
                log::warn!("cache_memlimit: no thread for it: {error}");
                answer_unless(noreply, MEMLIMIT_FAILED, out);
                Outcome::Done
            }
        }
    }

    fn dump(format: DumpFormat, what: &[u8], out: &mut Vec<u8>) -> Outcome {
        match Dump::items(format, what) {
            Ok(dump) => Outcome::Dump(dump),
            Err(refusal) => {
                out.extend_from_slice(refusal);
                Outcome::Done
            }
        }
    }

    fn watch(&self, what: &[u8], out: &mut Vec<u8>, origin: &Origin<'_>) -> Outcome {
        let answer = match watch::parse(what) {
            Err(refusal) => refusal,
            Ok(events) => match self.shared.watch.add(events, self.worker, origin.token) {
                Some(watcher) => {
                    out.extend_from_slice(reply::OK);
                    return Outcome::Watch(watcher);
                }
                None => b"WATCHER_TOO_MANY log watcher limit reached\r\n",
            },
        };
        out.extend_from_slice(answer);
        Outcome::Done
    }

    pub(crate) fn stats(&mut self, argument: &[u8], out: &mut Vec<u8>) -> Outcome {
        self.effort.spend(STATS);
        let mut words = tokens(argument);
        let (shared, cache) = (&self.shared, &self.cache);
        match words.next().unwrap_or_default() {
            b"" => stats::general(shared, cache, out),
            b"settings" => stats::settings(shared, cache, out),
            b"items" => stats::items(shared, cache, out),
            b"slabs" => stats::slabs(shared, cache, out),
            b"sizes" if shared.config.track_sizes => return Outcome::Dump(Dump::sizes()),
            b"sizes" => stats::sizes(out),
            b"sizes_enable" | b"sizes_disable" => out.extend_from_slice(b"STAT sizes_error not_available\r\nEND\r\n"),
            b"conns" => return Outcome::Dump(Dump::Connections { next: None }),
            b"kernel" => match &shared.kernel {
                Some(post) => post.stats_per_cpu(out),
                None => out.extend_from_slice(reply::ERROR),
            },
            b"reset" => {
                let baseline = stats::baseline(shared, cache);
                *lock(&shared.baseline) = baseline;
                shared.detail.clear();
                out.extend_from_slice(reply::RESET);
            }
            b"detail" if !shared.config.dump_enabled => out.extend_from_slice(b"CLIENT_ERROR stats detail not allowed\r\n"),
            b"detail" => return self.stats_detail(words, out),
            b"cachedump" if !shared.config.dump_enabled => out.extend_from_slice(b"CLIENT_ERROR stats cachedump not allowed\r\n"),
            b"cachedump" => return stats_cachedump(words, out),
            _ => out.extend_from_slice(reply::ERROR),
        }
        Outcome::Done
    }

    fn stats_detail(&self, mut words: Tokens<'_>, out: &mut Vec<u8>) -> Outcome {
        match words.next() {
            Some(b"dump") => return Outcome::Dump(Dump::Prefixes { after: None }),
            Some(b"on") => self.shared.detail.enable(true),
            Some(b"off") => self.shared.detail.enable(false),
            _ => {
                out.extend_from_slice(b"CLIENT_ERROR usage: stats detail on|off|dump\r\n");
                return Outcome::Done;
            }
        }
        out.extend_from_slice(reply::OK);
        Outcome::Done
    }

    /// Whether any watcher wants the events of commands on items.
    fn is_watched(&self) -> bool {
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
        self.tell_of_fetch(key, found, origin);
        match found {
            Ok(Read::Hit(item)) => Some(item.value_len),
            _ => None,
        }
    }

    /// Reports to watchers what this worker's session has evicted.
    #[cold]
    fn tell_evictions(&mut self) {
        for (key, item) in self.session.take_evicted() {
            let fetched = if item.fetched { "yes" } else { "no" };
            let ttl = item.ttl_s.map_or(-1, i64::from);
            self.tell(watch::EVICTIONS, |line| {
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

    fn tell_of_fetch(&self, key: &[u8], found: Result<Read, WriteError>, origin: &Origin<'_>) {
        let (status, size) = match found {
            Ok(Read::Hit(item)) => ("found", item.value_len),
            Ok(Read::Expired) => ("expired", 0),
            _ => ("not_found", 0),
        };
        self.tell(watch::FETCHERS, |line| {
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
            self.tell_of_fetch(key, found, origin);
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
            self.tell(watch::MUTATIONS, |line| {
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
            self.tell(watch::DELETIONS, |line| {
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
    pub(crate) fn tell(&self, event: watch::Events, text: impl FnOnce(&mut Vec<u8>)) {
        let doors = &self.shared.doors;
        self.shared.watch.tell(event, text, |watcher| {
            doors[watcher.worker].send(Message::Turn(watcher.token))
        });
    }
}

fn stats_cachedump(mut words: Tokens<'_>, out: &mut Vec<u8>) -> Outcome {
    let mut number = || {
        words
            .next()
            .map(|word| std::str::from_utf8(word).ok().and_then(|word| word.parse::<u32>().ok()))
    };
    match (number(), number()) {
        (None, _) | (_, None) => out.extend_from_slice(b"CLIENT_ERROR bad command line\r\n"),
        (Some(Some(class @ 0..64)), Some(Some(limit))) => {
            return Outcome::Dump(Dump::cachedump(class, usize::try_from(limit).unwrap_or(usize::MAX)));
        }
        (Some(Some(_)), Some(Some(_))) => out.extend_from_slice(b"CLIENT_ERROR Illegal slab id\r\n"),
        _ => out.extend_from_slice(reply::BAD_FORMAT),
    }
    Outcome::Done
}

const MEMLIMIT_FAILED: &[u8] = b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n";

fn facts<'a>(key: &'a [u8], item: &Item, cas_enabled: bool) -> Facts<'a> {
    Facts {
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

/// An append or prepend that finds no memory for the longer value is reported as "not stored", as in memcached.
pub(crate) fn as_memcached(mode: StoreMode, stored: Result<Stored, WriteError>) -> Result<Stored, WriteError> {
    match (mode, stored) {
        (StoreMode::Append | StoreMode::Prepend, Err(WriteError::TooLarge { .. } | WriteError::OutOfMemory)) => {
            Ok(Stored::NotStored)
        }
        (_, stored) => stored,
    }
}

pub(crate) fn refusal(error: WriteError) -> &'static [u8] {
    match error {
        WriteError::TooLarge { .. } => reply::TOO_LARGE,
        WriteError::OutOfMemory => reply::OUT_OF_MEMORY_STORING,
        WriteError::KeyLength { .. } => reply::BAD_FORMAT,
        WriteError::Corrupt | WriteError::Detached | WriteError::Unserved => DAMAGED,
        WriteError::KernelDoor => KERNEL_DOOR,
        WriteError::NoMemory { .. } => reply::OUT_OF_MEMORY,
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

fn answer_unless(noreply: bool, answer: &[u8], out: &mut Vec<u8>) {
    if !noreply {
        out.extend_from_slice(answer);
    }
}
