//! Requests of the binary protocol: the same verbs of the session, answered in packets.
//!
//! Never: decodes a packet (`keyway-proto` does).

use keyway_cache::{Arithmetic, Counted, Delete, Deleted, Get, Item, Store, StoreMode, Stored, WriteError};
use keyway_proto::binary::{self, Head, Operation, Packet, Status};
use keyway_proto::{StoreVerb, reply};

use super::admin::Administration;
use super::miss::Miss;
use super::{Dump, Executor, Origin, Outcome, as_memcached, refusal};
use crate::config::PROTOCOL_VERSION;
use crate::shared::CloseReason;

/// Longest `stats detail dump` in a packet, bytes; in the text protocol it may have any length.
const DUMP_MAX: usize = 256 << 10;

/// Answers these packets.
pub(super) struct Binary<'a>(pub(super) &'a mut Executor);

impl Binary<'_> {
    /// Executes `request` and appends its answer to `out`.
    pub(super) fn answer(&mut self, request: &Packet<'_>, out: &mut Vec<u8>, origin: &Origin<'_>) -> Outcome {
        let (head, quiet) = (request.head, request.quiet);
        let answer = match &request.operation {
            Operation::Get {
                key,
                with_key,
                with_value,
                exptime,
            } => {
                let how = Get {
                    value: *with_value,
                    details: true,
                    exptime: exptime.map(i64::from),
                    ..Get::default()
                };
                return self.get(request, key, *with_key, &how, out, origin);
            }
            Operation::Arithmetic { .. } => return self.arithmetic(request, out),
            Operation::Store { .. } => self.store(&request.operation),
            Operation::Delete { key, cas } => self.delete(key, *cas),
            Operation::Flush { exptime } => self.flush(i64::from(*exptime), origin),
            Operation::Noop => Ok(0),
            Operation::Version => {
                binary::value(out, head, PROTOCOL_VERSION.as_bytes(), 0);
                return Outcome::Done;
            }
            Operation::Quit => {
                if !quiet {
                    binary::done(out, head, 0);
                }
                return Outcome::Close(CloseReason::Normal);
            }
            Operation::Stat { argument } => {
                self.stat(head, argument, out);
                return Outcome::Done;
            }
            Operation::Sasl { .. } if self.0.items.shared.has_sasl() => return Outcome::LogIn,
            Operation::Sasl { .. } => {
                binary::error(out, head, Status::UnknownCommand);
                return Outcome::Done;
            }
            Operation::Refuse { status, close } => {
                binary::error(out, head, *status);
                return if *close {
                    Outcome::Close(CloseReason::Error)
                } else {
                    Outcome::Done
                };
            }
        };
        match answer {
            Ok(_) if quiet => {}
            Ok(cas) => binary::done(out, head, cas),
            Err(error) => error.append_to(out, head),
        }
        Outcome::Done
    }

    fn get(
        &mut self,
        request: &Packet<'_>,
        key: &[u8],
        with_key: bool,
        how: &Get,
        out: &mut Vec<u8>,
        origin: &Origin<'_>,
    ) -> Outcome {
        let head = request.head;
        let told_key = with_key.then_some(key);
        let cas_enabled = self.0.items.shows_cas();
        let hit = |item: &Item, out: &mut Vec<u8>| {
            let value_len = if how.value { item.value_len } else { 0 };
            binary::hit(out, head, told_key, item.flags, value_len, shown_cas(item, cas_enabled));
        };
        let items = &mut self.0.items;
        let mut found = items.session.get_with(key, how, out, hit);
        if let Ok(None) = found {
            match items.missed(key, origin) {
                Miss::Answer => {}
                Miss::Again => found = items.session.get_with(key, how, out, hit),
                Miss::Hold(until) => return Outcome::Hold { keys_done: 0, until },
            }
        }
        match found {
            Ok(item) => {
                self.0.items.fetched(key, item.is_some());
                if let Some(item) = &item {
                    self.0.items.found(key, item, origin);
                }
                match (item, told_key) {
                    (None, _) if request.quiet => {}
                    (None, Some(key)) => binary::miss(out, head, key),
                    (None, None) => binary::error(out, head, Status::KeyNotFound),
                    (Some(_), _) => {}
                }
            }
            Err(error) => Refusal::from(error).append_to(out, head),
        }
        Outcome::Done
    }

    /// The CAS unique of the stored item, or why it was not stored.
    fn store(&mut self, command: &Operation<'_>) -> Result<u64, Refusal> {
        let Operation::Store {
            verb,
            key,
            value,
            flags,
            exptime,
            cas,
        } = command
        else {
            return Ok(0);
        };
        let mode = match verb {
            // No packet is a lease.
            StoreVerb::Set | StoreVerb::Cas | StoreVerb::Lease => StoreMode::Set,
            StoreVerb::Add => StoreMode::Add,
            StoreVerb::Replace => StoreMode::Replace,
            StoreVerb::Append => StoreMode::Append,
            StoreVerb::Prepend => StoreMode::Prepend,
        };
        let how = Store {
            mode,
            flags: *flags,
            exptime: (*exptime).into(),
            compare_cas: (*cas != 0).then_some(*cas),
            ..Store::default()
        };
        let stored = as_memcached(mode, self.0.items.session.store(key, value, &how));
        self.0.items.mutated(key);
        match stored {
            Ok(Stored::Stored { cas, .. }) => Ok(if self.0.items.shows_cas() { cas } else { 0 }),
            Ok(Stored::Exists) => Err(Status::KeyExists.into()),
            // An append to a missing item is not stored, with or without a CAS unique.
            Ok(Stored::NotFound) if verb != &StoreVerb::Cas => Err(Status::NotStored.into()),
            Ok(Stored::NotFound) => Err(Status::KeyNotFound.into()),
            Ok(Stored::NotStored) => Err(match verb {
                StoreVerb::Add => Status::KeyExists.into(),
                StoreVerb::Replace => Status::KeyNotFound.into(),
                _ => Status::NotStored.into(),
            }),
            Err(error) => {
                // As memcached: also a set with a CAS unique removes the item, if there is no room.
                if verb == &StoreVerb::Cas && error.is_for_room() {
                    self.0.items.forget(key);
                }
                Err(error.into())
            }
        }
    }

    fn delete(&mut self, key: &[u8], cas: u64) -> Result<u64, Refusal> {
        let how = Delete {
            compare_cas: (cas != 0).then_some(cas),
            ..Delete::default()
        };
        let deleted = self.0.items.session.delete(key, &how)?;
        self.0.items.deleted(key);
        match deleted {
            Deleted::Deleted => Ok(0),
            Deleted::NotFound => Err(Status::KeyNotFound.into()),
            Deleted::Exists => Err(Status::KeyExists.into()),
        }
    }

    fn arithmetic(&mut self, request: &Packet<'_>, out: &mut Vec<u8>) -> Outcome {
        let Operation::Arithmetic {
            key,
            decrement,
            delta,
            create,
            cas,
        } = &request.operation
        else {
            return Outcome::Done;
        };
        let how = Arithmetic {
            delta: *delta,
            decrement: *decrement,
            vivify: create.map(|(initial, exptime)| (initial, exptime.into())),
            compare_cas: (*cas != 0).then_some(*cas),
            ..Arithmetic::default()
        };
        let refusal = match self.0.items.session.arithmetic(key, &how) {
            Ok(Counted::Value { value, item }) => {
                if !request.quiet {
                    let cas = shown_cas(&item, self.0.items.shows_cas());
                    binary::value(out, request.head, &value.to_be_bytes(), cas);
                }
                return Outcome::Done;
            }
            Ok(Counted::NotFound) => Status::KeyNotFound.into(),
            Ok(Counted::Exists) => Status::KeyExists.into(),
            Ok(Counted::NotANumber) => Status::NonNumeric.into(),
            Err(error) => Refusal::from(error),
        };
        refusal.append_to(out, request.head);
        Outcome::Done
    }

    fn flush(&mut self, exptime: i64, origin: &Origin<'_>) -> Result<u64, Refusal> {
        self.0.items.session.flush_all(exptime)?;
        log::info!("{}: flush_all {exptime}", origin.peer.address);
        Ok(0)
    }

    /// The answer of `stats` in text, each line as a packet.
    fn stat(&mut self, head: Head, argument: &[u8], out: &mut Vec<u8>) {
        // For the arguments that it knows, memcached compares only the beginning.
        let argument = [&b"reset"[..], b"settings"]
            .into_iter()
            .find(|known| argument.starts_with(known))
            .unwrap_or(argument);
        let mut text = Vec::new();
        if !argument.starts_with(b"cachedump")
            && !argument.starts_with(b"conns")
            && let Outcome::Dump(mut dump) = Administration(self.0).stats(argument, &mut text)
            && !matches!(dump, Dump::Sizes(_))
        {
            // The answer is one packet, so all of it is collected first.
            while !dump.step(self.0, &mut text) {
                if text.len() > DUMP_MAX {
                    return binary::error(out, head, Status::OutOfMemory);
                }
            }
        }
        if text.starts_with(b"PREFIX ") || argument == b"detail dump" && text == reply::END {
            binary::stat(out, head, b"detailed", &text);
            return binary::stat(out, head, b"", b"");
        }
        let is_known = [reply::END, reply::RESET, reply::OK].iter().any(|end| text.ends_with(end));
        if !is_known {
            return binary::error(out, head, Status::KeyNotFound);
        }
        for line in text.split(|&byte| byte == b'\n') {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if let Some(line) = line.strip_prefix(b"STAT ") {
                let name_len = line.iter().position(|&byte| byte == b' ').unwrap_or(line.len());
                let (name, value) = line.split_at(name_len);
                binary::stat(out, head, name, value.strip_prefix(b" ").unwrap_or_default());
            }
        }
        binary::stat(out, head, b"", b"");
    }
}

fn shown_cas(item: &Item, cas_enabled: bool) -> u64 {
    if cas_enabled { item.cas } else { 0 }
}

/// Why a request was refused, in the protocol's terms.
struct Refusal {
    status: Status,
    text: &'static [u8],
}

impl Refusal {
    fn append_to(self, out: &mut Vec<u8>, head: Head) {
        binary::error_saying(out, head, self.status, self.text);
    }
}

impl From<Status> for Refusal {
    fn from(status: Status) -> Self {
        Self {
            status,
            text: status.text(),
        }
    }
}

impl From<WriteError> for Refusal {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::TooLarge { .. } => Status::ValueTooLarge.into(),
            WriteError::OutOfMemory => Status::OutOfMemory.into(),
            WriteError::FlushRefused => Status::AuthenticationError.into(),
            WriteError::KeyLength { .. } => Status::InvalidArguments.into(),
            // The text protocol's line without its line end: it says what to do.
            other => {
                let line = refusal(other);
                let text = line.strip_prefix(b"SERVER_ERROR ").unwrap_or(line);
                Self {
                    status: Status::InternalError,
                    text: text.strip_suffix(reply::LINE_END).unwrap_or(text),
                }
            }
        }
    }
}
