//! The classic commands on items: retrieval, storage, deletion, arithmetic, touch (protocol.txt, sections of those names).
//!
//! Words after those that a command needs are ignored, as in memcached; `noreply` counts if it is the last word.

use super::{BAD_CHUNK, BAD_EXPTIME, BAD_FORMAT, Block, Decoded, Line, TOO_LARGE, VALUE_LEN_MAX, answer_error, unless};
use crate::request::{KEY_LEN_MAX, Keys, MetaKey, Request, Store, StoreVerb};
use crate::token::{Tokens, parse_i32, parse_i64, parse_u64};

const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";
const NOREPLY: &[u8] = b"noreply";

impl<'a> Line<'a, '_> {
    /// `get <key>*`, `gets <key>*`
    #[inline]
    pub(super) fn get(self, words: Tokens<'a>, with_cas: bool) -> Decoded<'a> {
        match checked_keys(words) {
            Some(keys) => self.accept(Request::Get { keys, with_cas }),
            None => self.answer_error(BAD_FORMAT),
        }
    }

    /// `gat <exptime> <key>*`, `gats <exptime> <key>*`
    pub(super) fn get_and_touch(self, mut words: Tokens<'a>, with_cas: bool) -> Decoded<'a> {
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

    /// `set|add|replace|append|prepend <key> <flags> <exptime> <bytes> [noreply]`, `cas … <bytes> <cas unique> [noreply]`
    #[inline]
    pub(super) fn store(self, verb: StoreVerb, mut words: Tokens<'a>) -> Decoded<'a> {
        let (Some(key), Some(flags), Some(exptime), Some(len)) = (words.next(), words.next(), words.next(), words.next()) else {
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
    pub(super) fn delete(self, mut words: Tokens<'a>) -> Decoded<'a> {
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
    pub(super) fn arithmetic(self, mut words: Tokens<'a>, decrement: bool) -> Decoded<'a> {
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
    pub(super) fn touch(self, mut words: Tokens<'a>) -> Decoded<'a> {
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
pub(super) fn is_noreply(words: Tokens<'_>) -> bool {
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
