//! A request of text whose line is complete: which command it is, and the arguments of the classic commands on items: retrieval, storage,
//! deletion, arithmetic, touch (protocol.txt, sections of those names).
//!
//! Words after those that a command needs are ignored, as in memcached; `noreply` counts if it is the last word.

mod admin;
mod meta;

use super::{
    BAD_CHUNK, BAD_EXPTIME, BAD_FORMAT, Decoded, Decoder, LINE_END, RefusedData, TOO_LARGE, VALUE_LEN_MAX, answer_error, discard,
    is_too_large, unless,
};
use crate::command::Command;
use crate::request::{Admin, KEY_LEN_MAX, Keys, Meta, MetaKey, Request, Store, StoreVerb};
use crate::token::{Tokens, parse_i32, parse_i64, parse_u64};

const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";
const NOREPLY: &[u8] = b"noreply";

/// A request whose line is complete: the input of every command parser.
struct Line<'a, 'd> {
    /// the line without its end
    text: &'a [u8],
    /// length of the line with its end
    consumed: usize,
    /// what has arrived after the line
    data: &'a [u8],
    decoder: &'d mut Decoder,
}

/// A data block, or why there is none.
enum Block<'a> {
    /// the block without its line end, and the length of line and block together
    Whole(&'a [u8], usize),
    /// it has not arrived; the input must hold this many bytes
    Late(usize),
    /// not followed by a line end; the length of line and block together
    Unended(usize),
}

/// Decodes a line, given without its `\n`, and what has arrived after it.
#[inline]
pub(super) fn decode<'a>(line: &'a [u8], data: &'a [u8], decoder: &mut Decoder) -> Decoded<'a> {
    Line {
        // A single "\n" also ends a line; only the last "\r" belongs to the line end.
        text: line.strip_suffix(b"\r").unwrap_or(line),
        consumed: line.len() + 1,
        data,
        decoder,
    }
    .decode()
}

impl<'a> Line<'a, '_> {
    #[inline]
    fn decode(self) -> Decoded<'a> {
        let mut words = Tokens(self.text);
        // Spaces before the name are skipped: memcached does so for some commands or for all, depending on its version.
        let name = words.next().unwrap_or_default();
        let Some(command) = Command::named(name) else {
            return self.unknown(words);
        };
        match command {
            Command::Get => self.get(words, false),
            Command::Set => self.store(StoreVerb::Set, words),
            Command::MetaGet => self.meta_get(words),
            Command::MetaSet => self.meta_set(words),
            Command::Gets => self.get(words, true),
            Command::MetaDelete => self.meta_delete(words),
            Command::MetaArithmetic => self.meta_arithmetic(words),
            Command::MetaNoop => self.accept(Request::Meta(Meta::Noop)),
            Command::MetaDebug => self.meta_debug(words),
            Command::Add => self.store(StoreVerb::Add, words),
            Command::Replace => self.store(StoreVerb::Replace, words),
            Command::Append => self.store(StoreVerb::Append, words),
            Command::Prepend => self.store(StoreVerb::Prepend, words),
            Command::Cas => self.store(StoreVerb::Cas, words),
            Command::Delete => self.delete(words),
            Command::Incr => self.arithmetic(words, false),
            Command::Decr => self.arithmetic(words, true),
            Command::Touch => self.touch(words),
            Command::Gat => self.get_and_touch(words, false),
            Command::Gats => self.get_and_touch(words, true),
            Command::LeaseGet => self.lease_get(words),
            Command::LeaseSet => self.lease_set(words),
            Command::Version => self.admin(Admin::Version),
            Command::Quit => self.admin(Admin::Quit),
            Command::Stats => self.stats(words),
            Command::Watch => self.watch(words),
            Command::FlushAll => self.flush_all(words),
            Command::Verbosity => self.verbosity(words),
            Command::CacheMemlimit => self.cache_memlimit(words),
            Command::Shutdown => self.shutdown(words),
            Command::RefreshCerts => self.refresh_certs(words),
            Command::LruCrawler => self.lru_crawler(words),
            Command::Slabs => self.slabs(words),
            Command::Lru => self.lru(words),
        }
    }

    /// `get <key>*`, `gets <key>*`
    #[inline]
    fn get(self, words: Tokens<'a>, with_cas: bool) -> Decoded<'a> {
        match checked_keys(words) {
            Some(keys) => self.accept(Request::Get { keys, with_cas }),
            None => self.answer_error(BAD_FORMAT),
        }
    }

    /// `gat <exptime> <key>*`, `gats <exptime> <key>*`
    fn get_and_touch(self, mut words: Tokens<'a>, with_cas: bool) -> Decoded<'a> {
        let (Some(exptime), Some(_)) = (words.next(), words.clone().next()) else {
            return self.answer_error(BAD_FORMAT);
        };
        let Some(exptime) = parse_i32(exptime) else {
            return self.answer_error(BAD_EXPTIME);
        };
        match checked_keys(words) {
            Some(keys) => self.accept(Request::GetAndTouch { exptime, keys, with_cas }),
            None => self.answer_error(BAD_FORMAT),
        }
    }

    /// `lease-get <key> [<milliseconds>]`
    fn lease_get(self, mut words: Tokens<'a>) -> Decoded<'a> {
        let (key, wait, rest) = (words.next(), words.next(), words.next());
        let wait_ms = wait.and_then(parse_u64).and_then(|ms| u32::try_from(ms).ok());
        match key {
            Some(key) if key.len() <= KEY_LEN_MAX && wait.is_some() == wait_ms.is_some() && rest.is_none() => {
                self.accept(Request::LeaseGet { key, wait_ms })
            }
            _ => self.answer_error(BAD_FORMAT),
        }
    }

    /// `lease-set <key> <token> <flags> <exptime> <bytes> [noreply]`
    fn lease_set(self, mut words: Tokens<'a>) -> Decoded<'a> {
        let (Some(key), Some(token)) = (words.next(), words.next()) else {
            return self.answer_error(BAD_FORMAT);
        };
        self.store_of((StoreVerb::Lease, key, Some(token)), words)
    }

    /// `set|add|replace|append|prepend <key> <flags> <exptime> <bytes> [noreply]`, `cas … <bytes> <cas unique> [noreply]`
    #[inline]
    fn store(self, verb: StoreVerb, mut words: Tokens<'a>) -> Decoded<'a> {
        match words.next() {
            Some(key) => self.store_of((verb, key, None), words),
            None => self.answer_error(BAD_FORMAT),
        }
    }

    /// What follows the key of a store, and the token of one that has it there.
    fn store_of(self, (verb, key, token): (StoreVerb, &'a [u8], Option<&'a [u8]>), mut words: Tokens<'a>) -> Decoded<'a> {
        let (Some(flags), Some(exptime), Some(len)) = (words.next(), words.next(), words.next()) else {
            return self.answer_error(BAD_FORMAT);
        };
        // Without a length the end of the data block is unknown: what follows is read as the next command.
        let Some(value_len) = parse_u64(len).filter(|&len| len <= VALUE_LEN_MAX) else {
            return self.answer_error(BAD_FORMAT);
        };
        let cas = words.clone().next();
        let noreply = is_noreply(words);
        let (Some(flags), Some(exptime)) = (parse_flags(flags), parse_stored_exptime(exptime)) else {
            return self.answer_error_after_data(unless(noreply, BAD_FORMAT), value_len);
        };
        let cas = match verb {
            StoreVerb::Cas => cas.and_then(parse_u64),
            StoreVerb::Lease => token.and_then(parse_u64),
            _ => Some(0),
        };
        let (Some(cas), true) = (cas, key.len() <= KEY_LEN_MAX) else {
            return self.answer_error_after_data(unless(noreply, BAD_FORMAT), value_len);
        };
        if self.is_too_large(key, flags, value_len) {
            // After a failed set no client may read the old value; the other verbs do not promise to replace it.
            let forget = (verb == StoreVerb::Set).then(|| MetaKey::new(key, None));
            return self.answer_too_large(unless(noreply, TOO_LARGE), value_len, forget);
        }
        match self.block(value_len) {
            Block::Whole(value, consumed) => {
                let request = Request::Store(Store {
                    verb,
                    key,
                    flags,
                    exptime,
                    cas,
                    noreply,
                    value,
                });
                Decoded::Request { consumed, request }
            }
            Block::Late(need) => Decoded::Incomplete { need },
            // The whole block is dropped; what follows it is read as the next command.
            Block::Unended(consumed) => answer_error(consumed, unless(noreply, BAD_CHUNK)),
        }
    }

    /// `delete <key> [noreply]`
    fn delete(self, mut words: Tokens<'a>) -> Decoded<'a> {
        let Some(key) = words.next() else {
            return self.answer_error(BAD_FORMAT);
        };
        let noreply = is_noreply(words);
        if key.len() > KEY_LEN_MAX {
            return self.answer_error(unless(noreply, BAD_FORMAT));
        }
        self.accept(Request::Delete { key, noreply })
    }

    /// `incr <key> <value> [noreply]`, `decr <key> <value> [noreply]`
    fn arithmetic(self, mut words: Tokens<'a>, decrement: bool) -> Decoded<'a> {
        let (Some(key), noreply, Some(delta)) = (words.next(), is_noreply(words.clone()), words.next()) else {
            return self.answer_error(BAD_FORMAT);
        };
        if key.len() > KEY_LEN_MAX {
            return self.answer_error(unless(noreply, BAD_FORMAT));
        }
        match parse_u64(delta) {
            Some(delta) => self.accept(Request::Arithmetic {
                key,
                delta,
                decrement,
                noreply,
            }),
            None => self.answer_error(unless(noreply, BAD_DELTA)),
        }
    }

    /// `touch <key> <exptime> [noreply]`
    fn touch(self, mut words: Tokens<'a>) -> Decoded<'a> {
        let (Some(key), noreply, Some(exptime)) = (words.next(), is_noreply(words.clone()), words.next()) else {
            return self.answer_error(BAD_FORMAT);
        };
        if key.len() > KEY_LEN_MAX {
            return self.answer_error(unless(noreply, BAD_FORMAT));
        }
        match parse_i32(exptime) {
            Some(exptime) => self.accept(Request::Touch { key, exptime, noreply }),
            None => self.answer_error(unless(noreply, BAD_EXPTIME)),
        }
    }

    fn admin(self, admin: Admin<'a>) -> Decoded<'a> {
        self.accept(Request::Admin(admin))
    }

    fn accept(self, request: Request<'a>) -> Decoded<'a> {
        Decoded::Request {
            consumed: self.consumed,
            request,
        }
    }

    /// The line is answered with an error; it has no data block.
    fn answer_error(self, reply: &'static [u8]) -> Decoded<'a> {
        answer_error(self.consumed, reply)
    }

    /// The line and the data block of `value_len` bytes that follows it are answered with an error, sent when the block has arrived.
    fn answer_error_after_data(self, reply: &'static [u8], value_len: u64) -> Decoded<'a> {
        self.decoder.refused = RefusedData::text(value_len + LINE_END.len() as u64, reply);
        discard(self.consumed)
    }

    /// A value that `Limits::item_size_max` does not allow is answered with an error, sent when it has arrived.
    fn answer_too_large(self, reply: &'static [u8], value_len: u64, forget: Option<MetaKey<'a>>) -> Decoded<'a> {
        self.decoder.refused = RefusedData::text(value_len + LINE_END.len() as u64, reply);
        Decoded::TooLarge {
            consumed: self.consumed,
            forget,
        }
    }

    fn is_too_large(&self, key: &[u8], client_flags: u32, value_len: u64) -> bool {
        is_too_large(self.decoder.limits.item_size_max, key, client_flags, value_len)
    }

    /// Reads the data block of `value_len` bytes.
    #[inline]
    fn block(&self, value_len: u64) -> Block<'a> {
        // Lengths within `is_too_large` fit a usize: `item_size_max` is one.
        let value_len = usize::try_from(value_len).unwrap_or(usize::MAX);
        let block_len = value_len.saturating_add(LINE_END.len());
        let whole_len = self.consumed.saturating_add(block_len);
        match self.data.get(..block_len).and_then(|block| block.split_at_checked(value_len)) {
            Some((value, LINE_END)) => Block::Whole(value, whole_len),
            Some(_) => Block::Unended(whole_len),
            None => Block::Late(whole_len),
        }
    }
}

/// The keys of a retrieval command. One key that is too long refuses all of them, as in memcached.
#[inline]
fn checked_keys(words: Tokens<'_>) -> Option<Keys<'_>> {
    let words = Tokens(words.rest());
    are_keys(words.clone()).then_some(Keys { words, is_last: true })
}

/// Whether there are words, and all of them short enough to be keys.
#[inline]
pub(super) fn are_keys(mut words: Tokens<'_>) -> bool {
    // A short line cannot hold a long key.
    !words.0.is_empty() && (words.0.len() <= KEY_LEN_MAX || words.all(|key| key.len() <= KEY_LEN_MAX))
}

/// Whether the last of the remaining words is `noreply` (protocol.txt, "Storage commands", "noreply").
#[inline]
fn is_noreply(words: Tokens<'_>) -> bool {
    // Most lines are too short to hold the word, and are not searched.
    words.0.len() >= NOREPLY.len() && words.last() == Some(NOREPLY)
}

/// Client flags: 32 bits. memcached keeps the low 32 bits of anything longer.
fn parse_flags(token: &[u8]) -> Option<u32> {
    parse_u64(without_plus(token)).and_then(|flags| u32::try_from(flags & u64::from(u32::MAX)).ok())
}

/// The exptime of storage commands: up to 64 bits, of which the low 32 count, with their sign. So 4294967295, which a client
/// may send for its -1, is -1, as in memcached.
fn parse_stored_exptime(token: &[u8]) -> Option<i32> {
    let [a, b, c, d, ..] = parse_i64(without_plus(token))?.to_le_bytes();
    Some(i32::from_le_bytes([a, b, c, d]))
}

/// memcached parses flags and exptime of storage commands with the C library, which accepts a plus sign.
fn without_plus(token: &[u8]) -> &[u8] {
    match token {
        [b'+', digits @ ..] if !digits.starts_with(b"-") => digits,
        _ => token,
    }
}
