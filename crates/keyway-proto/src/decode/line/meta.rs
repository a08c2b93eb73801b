//! The meta commands (protocol.txt, "Meta Commands" and the sections after it).
//!
//! Every command accepts every known flag letter, and ignores those that have no meaning for it. A letter may occur once. If
//! several flags are wrong, the answer is the last one's error, as in memcached.

use super::{Block, Line};
use crate::base64;
use crate::decode::{BAD_CHUNK, BAD_FORMAT, Decoded, TOO_LARGE, VALUE_LEN_MAX, answer_error};
use crate::request::{
    Flags, KEY_LEN_MAX, META_TOKENS_MAX, Meta, MetaArithmetic, MetaDelete, MetaGet, MetaKey, MetaSet, MetaSetMode,
    OPAQUE_LEN_MAX, Request,
};
use crate::token::{Tokens, parse_i32, parse_u32, parse_u64};

const TOO_MANY_FLAGS: &[u8] = b"CLIENT_ERROR options flags are too long\r\n";
const DUPLICATE_FLAG: &[u8] = b"CLIENT_ERROR duplicate flag\r\n";
const INVALID_FLAG: &[u8] = b"CLIENT_ERROR invalid flag\r\n";
const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad token in command line format\r\n";
const BAD_KEY: &[u8] = b"CLIENT_ERROR error decoding key\r\n";
const BAD_INITIAL: &[u8] = b"CLIENT_ERROR invalid numeric initial value\r\n";
const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta value\r\n";
const OPAQUE_TOO_LONG: &[u8] = b"CLIENT_ERROR opaque token too long\r\n";
const BAD_SET_MODE: &[u8] = b"CLIENT_ERROR invalid mode for ms M token\r\n";
const BAD_ARITHMETIC_MODE: &[u8] = b"CLIENT_ERROR invalid mode for ma M token\r\n";
const BAD_ARITHMETIC_FLAG: &[u8] = b"CLIENT_ERROR invalid or duplicate flag\r\n";

/// All flags of a line, with the meaning of the letters that all commands share.
#[derive(Default)]
struct Parsed {
    binary_key: bool,
    value: bool,
    quiet: bool,
    no_bump: bool,
    invalidate: bool,
    remove_value: bool,
    opaque_too_long: bool,
    /// the letter after `M`; `Some(0)` if there is none
    mode: Option<u8>,
    client_flags: u32,
    exptime: Option<i32>,
    vivify: Option<i32>,
    recache_s: Option<i32>,
    compare_cas: Option<u64>,
    new_cas: Option<u64>,
    delta: Option<u64>,
    initial: u64,
}

impl Parsed {
    /// Reads the flags of a line that has `words_before` words in front of them. `Err` is the reply.
    #[inline]
    fn read(flags: &Tokens<'_>, words_before: usize) -> Result<Self, &'static [u8]> {
        let flags_max = META_TOKENS_MAX - words_before;
        // More flags than this need more bytes (a letter and a space each); nearly all lines are shorter, and are not counted.
        if flags.0.len() > 2 * flags_max && flags.clone().count() > flags_max {
            return Err(TOO_MANY_FLAGS);
        }
        let mut parsed = Self::default();
        let mut error = None;
        let mut seen = 0u128;
        for flag in flags.clone() {
            let Some((&letter, argument)) = flag.split_first() else {
                continue;
            };
            if !letter.is_ascii() {
                return Err(INVALID_FLAG);
            }
            let bit = 1u128 << letter;
            if seen & bit != 0 {
                return Err(DUPLICATE_FLAG);
            }
            seen |= bit;
            error = parsed.take(letter, argument)?.or(error);
        }
        error.map_or(Ok(parsed), Err)
    }

    /// One flag. `Ok(Some(_))` is an error that a later flag may override, `Err` one that stops the reading.
    #[inline]
    fn take(&mut self, letter: u8, argument: &[u8]) -> Result<Option<&'static [u8]>, &'static [u8]> {
        match letter {
            b'b' => self.binary_key = true,
            b'v' => self.value = true,
            b'q' => self.quiet = true,
            b'u' => self.no_bump = true,
            b'I' => self.invalidate = true,
            b'x' => self.remove_value = true,
            b'c' | b'f' | b'h' | b'k' | b'l' | b's' | b't' | b'P' | b'L' => {}
            b'O' => self.opaque_too_long = argument.len() >= OPAQUE_LEN_MAX,
            b'M' => self.mode = Some(argument.first().copied().unwrap_or(0)),
            b'T' => return Ok(put(&mut self.exptime, parse_i32(argument), BAD_TOKEN)),
            b'N' => return Ok(put(&mut self.vivify, parse_i32(argument), BAD_TOKEN)),
            b'R' => return Ok(put(&mut self.recache_s, parse_i32(argument), BAD_TOKEN)),
            b'C' => return Ok(put(&mut self.compare_cas, parse_u64(argument), BAD_TOKEN)),
            b'E' => return Ok(put(&mut self.new_cas, parse_u64(argument), BAD_TOKEN)),
            b'D' => return Ok(put(&mut self.delta, parse_u64(argument), BAD_DELTA)),
            b'J' => match parse_u64(argument) {
                Some(initial) => self.initial = initial,
                None => return Ok(Some(BAD_INITIAL)),
            },
            b'F' => match parse_u32(argument) {
                Some(flags) => self.client_flags = flags,
                None => return Ok(Some(BAD_FORMAT)),
            },
            _ => return Err(INVALID_FLAG),
        }
        Ok(None)
    }

    /// The key as stored; `Err` is the reply.
    #[inline]
    fn key<'a>(&self, sent: &'a [u8]) -> Result<MetaKey<'a>, &'static [u8]> {
        if !self.binary_key {
            return Ok(MetaKey::new(sent, None));
        }
        base64::decode(sent)
            .map(|decoded| MetaKey::new(sent, Some(decoded)))
            .ok_or(BAD_KEY)
    }
}

impl<'a> Line<'a, '_> {
    /// `mg <key> <flags>*`
    #[inline]
    pub(super) fn meta_get(self, words: Tokens<'a>) -> Decoded<'a> {
        let (sent, flags, parsed) = match self.meta_line(words) {
            Ok(line) => line,
            Err(reply) => return self.answer_error(reply),
        };
        match parsed.key(sent) {
            Err(reply) => self.answer_error(reply),
            Ok(_) if parsed.opaque_too_long => self.answer_error(OPAQUE_TOO_LONG),
            Ok(key) => self.accept(Request::Meta(Meta::Get(MetaGet {
                key,
                flags,
                value: parsed.value,
                quiet: parsed.quiet,
                no_bump: parsed.no_bump,
                unless_cas: parsed.compare_cas,
                new_cas: parsed.new_cas,
                vivify: parsed.vivify,
                recache_s: parsed.recache_s,
                exptime: parsed.exptime,
            }))),
        }
    }

    /// `ms <key> <datalen> <flags>*`
    #[inline(never)]
    pub(super) fn meta_set(self, mut words: Tokens<'a>) -> Decoded<'a> {
        let (Some(sent), Some(len)) = (words.next(), words.next()) else {
            return self.answer_error(BAD_FORMAT);
        };
        // Without a length the end of the data block is unknown: what follows is read as the next command.
        let Some(value_len) = parse_u64(len).filter(|&len| len <= VALUE_LEN_MAX) else {
            return self.answer_error(BAD_FORMAT);
        };
        if sent.len() > KEY_LEN_MAX {
            return self.answer_error_after_data(BAD_FORMAT, value_len);
        }
        let flags = Tokens(words.rest());
        let parsed = match Parsed::read(&flags, 3) {
            Ok(parsed) => parsed,
            Err(reply) => return self.answer_error_after_data(reply, value_len),
        };
        let key = match parsed.key(sent) {
            Ok(key) => key,
            Err(reply) => return self.answer_error_after_data(reply, value_len),
        };
        //= protocol.txt, "Meta Set", M
        let mode = match parsed.mode {
            None | Some(b'S') => MetaSetMode::Set,
            Some(b'E') => MetaSetMode::Add,
            Some(b'A') => MetaSetMode::Append,
            Some(b'P') => MetaSetMode::Prepend,
            Some(b'R') => MetaSetMode::Replace,
            Some(_) => return self.answer_error_after_data(BAD_SET_MODE, value_len),
        };
        if parsed.opaque_too_long {
            return self.answer_error_after_data(OPAQUE_TOO_LONG, value_len);
        }
        if self.is_too_large(key.stored(), parsed.client_flags, value_len) {
            return self.answer_too_large(TOO_LARGE, value_len, Some(key));
        }
        match self.block(value_len) {
            Block::Whole(value, consumed) => {
                let request = Request::Meta(Meta::Set(MetaSet {
                    key,
                    flags: Flags(flags),
                    mode,
                    quiet: parsed.quiet,
                    client_flags: parsed.client_flags,
                    exptime: parsed.exptime.unwrap_or(0),
                    compare_cas: parsed.compare_cas,
                    new_cas: parsed.new_cas,
                    invalidate: parsed.invalidate,
                    vivify: parsed.vivify,
                    value,
                }));
                Decoded::Request { consumed, request }
            }
            Block::Late(need) => Decoded::Incomplete { need },
            // The whole block is dropped; what follows it is read as the next command.
            Block::Unended(consumed) => answer_error(consumed, BAD_CHUNK),
        }
    }

    /// `md <key> <flags>*`
    pub(super) fn meta_delete(self, words: Tokens<'a>) -> Decoded<'a> {
        let (sent, flags, parsed) = match self.meta_line(words) {
            Ok(line) => line,
            Err(reply) => return self.answer_error(reply),
        };
        match parsed.key(sent) {
            Err(reply) => self.answer_error(reply),
            Ok(_) if parsed.opaque_too_long => self.answer_error(OPAQUE_TOO_LONG),
            Ok(key) => self.accept(Request::Meta(Meta::Delete(MetaDelete {
                key,
                flags,
                quiet: parsed.quiet,
                compare_cas: parsed.compare_cas,
                new_cas: parsed.new_cas,
                invalidate: parsed.invalidate,
                exptime: parsed.exptime,
                remove_value: parsed.remove_value,
            }))),
        }
    }

    /// `ma <key> <flags>*`
    pub(super) fn meta_arithmetic(self, words: Tokens<'a>) -> Decoded<'a> {
        let (sent, flags, parsed) = match self.meta_line(words) {
            Ok(line) => line,
            Err(reply @ (BAD_FORMAT | TOO_MANY_FLAGS)) => return self.answer_error(reply),
            Err(_) => return self.answer_error(BAD_ARITHMETIC_FLAG),
        };
        let Ok(key) = parsed.key(sent) else {
            return self.answer_error(BAD_ARITHMETIC_FLAG);
        };
        //= protocol.txt, "Meta Arithmetic", M
        let decrement = match parsed.mode {
            None | Some(b'I' | b'+') => false,
            Some(b'D' | b'-') => true,
            Some(_) => return self.answer_error(BAD_ARITHMETIC_MODE),
        };
        if parsed.opaque_too_long {
            return self.answer_error(OPAQUE_TOO_LONG);
        }
        self.accept(Request::Meta(Meta::Arithmetic(MetaArithmetic {
            key,
            flags,
            quiet: parsed.quiet,
            value: parsed.value,
            decrement,
            delta: parsed.delta.unwrap_or(1),
            initial: parsed.initial,
            vivify: parsed.vivify,
            exptime: parsed.exptime,
            compare_cas: parsed.compare_cas,
            new_cas: parsed.new_cas,
        })))
    }

    /// `me <key> [b]`
    pub(super) fn meta_debug(self, mut words: Tokens<'a>) -> Decoded<'a> {
        let Some(sent) = words.next().filter(|sent| sent.len() <= KEY_LEN_MAX) else {
            return self.answer_error(BAD_FORMAT);
        };
        let parsed = Parsed {
            binary_key: words.next() == Some(b"b"),
            ..Parsed::default()
        };
        match parsed.key(sent) {
            Ok(key) => self.accept(Request::Meta(Meta::Debug { key })),
            Err(_) => self.answer_error(BAD_FORMAT),
        }
    }

    /// Key and flags of a command without data block; `Err` is the reply.
    #[inline]
    fn meta_line(&self, mut words: Tokens<'a>) -> Result<(&'a [u8], Flags<'a>, Parsed), &'static [u8]> {
        let sent = words.next().filter(|sent| sent.len() <= KEY_LEN_MAX).ok_or(BAD_FORMAT)?;
        let flags = Tokens(words.rest());
        let parsed = Parsed::read(&flags, 2)?;
        Ok((sent, Flags(flags), parsed))
    }
}

/// Stores an argument, or returns the error to report.
fn put<T>(place: &mut Option<T>, argument: Option<T>, error: &'static [u8]) -> Option<&'static [u8]> {
    *place = argument;
    place.is_none().then_some(error)
}
