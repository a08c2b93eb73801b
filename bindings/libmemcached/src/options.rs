//! The option string of `memcached()`, as `--SERVER=localhost --BINARY-PROTOCOL`: libmemcached's grammar, and `--SERVER=keyway:PATH`.
//!
//! The scanner takes the longest token at each place, whatever the grammar expects there; between two options is one blank. Each
//! option is a call that a program could make, so it is written down as one.
//!
//! # Safety
//!
//! As `export.rs`.
#![allow(unsafe_code, reason = "C pointers; contract above")]

use crate::behavior::{self, memcached_behavior_set, memcached_behavior_set_distribution_hash, memcached_callback_set};
use crate::error;
use crate::export::plain_functions;
use crate::handle;
use crate::server::{memcached_server_add_unix_socket_with_weight, memcached_server_add_with_weight};
use crate::setup::{Call, sets};
use crate::types::*;
use std::ffi::{CString, c_char, c_int};

/// How deep files may include files.
const INCLUDES_MAX: u32 = 20;

/// Options with a number, and the behaviours that they set.
const NUMBERS: &[(&str, u32)] = &[
    ("--REMOVE-FAILED-SERVERS=", behavior::REMOVE_FAILED_SERVERS),
    ("--CONNECT-TIMEOUT=", behavior::CONNECT_TIMEOUT),
    ("--IO-MSG-WATERMARK=", behavior::IO_MSG_WATERMARK),
    ("--IO-BYTES-WATERMARK=", behavior::IO_BYTES_WATERMARK),
    ("--IO-KEY-PREFETCH=", behavior::IO_KEY_PREFETCH),
    ("--NUMBER-OF-REPLICAS=", behavior::NUMBER_OF_REPLICAS),
    ("--POLL-TIMEOUT=", behavior::POLL_TIMEOUT),
    ("--RCV-TIMEOUT=", behavior::RCV_TIMEOUT),
    ("--RETRY-TIMEOUT=", behavior::RETRY_TIMEOUT),
    ("--SND-TIMEOUT=", behavior::SND_TIMEOUT),
    ("--SOCKET-RECV-SIZE=", behavior::SOCKET_RECV_SIZE),
    ("--SOCKET-SEND-SIZE=", behavior::SOCKET_SEND_SIZE),
];

/// Options without a value, and the behaviours that they set to true.
const SWITCHES: &[(&str, u32)] = &[
    ("--BINARY-PROTOCOL", behavior::BINARY_PROTOCOL),
    ("--BUFFER-REQUESTS", behavior::BUFFER_REQUESTS),
    ("--HASH-WITH-NAMESPACE", behavior::HASH_WITH_PREFIX_KEY),
    ("--NOREPLY", behavior::NOREPLY),
    ("--RANDOMIZE-REPLICA-READ", behavior::RANDOMIZE_REPLICA_READ),
    ("--SORT-HOSTS", behavior::SORT_HOSTS),
    ("--SUPPORT-CAS", behavior::SUPPORT_CAS),
    ("--TCP-NODELAY", behavior::TCP_NODELAY),
    ("--TCP-KEEPALIVE", behavior::TCP_KEEPALIVE),
    ("--TCP-KEEPIDLE", behavior::TCP_KEEPIDLE),
    ("--USE-UDP", behavior::USE_UDP),
    ("--VERIFY-KEY", behavior::VERIFY_KEY),
];

/// Hashes, with their numbers. HSIEH is none of libmemcached's usual builds.
const HASHES: &[(&str, u32)] = &[
    ("MD5", 1),
    ("CRC", 2),
    ("FNV1_64", 3),
    ("FNV1A_64", 4),
    ("FNV1_32", 5),
    ("FNV1A_32", 6),
    ("HSIEH", 7),
    ("MURMUR", 8),
    ("JENKINS", 9),
];

const DISTRIBUTIONS: &[(&str, u32)] = &[("MODULA", 0), ("CONSISTENT", 1), ("RANDOM", 3)];

/// The other words. Those of the last line mean nothing, and are no strings.
const WORDS: &[&str] = &[
    "--SERVER=",
    "--SOCKET=",
    "--CONFIGURE-FILE=",
    "--POOL-MIN=",
    "--POOL-MAX=",
    "--NAMESPACE=",
    "--DISTRIBUTION=",
    "--HASH=",
    "--FETCH-VERSION",
    "--USER-DATA",
    "INCLUDE",
    "RESET",
    "DEBUG",
    "END",
    "CSL_ERROR",
    "SERVERS",
    "TRUE",
    "FALSE",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    /// `=`, `,` or a blank
    Sign(u8),
    Number(i64),
    Port(i64),
    Weight(i64),
    Comment,
    /// one of the words of the tables, as it stands there
    Word(&'static str),
    Address(&'a [u8]),
    Name(&'a [u8]),
    Quoted(&'a [u8]),
    Unknown,
}

#[derive(Clone, Copy)]
struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            let (before, rest) = self.text.split_at_checked(self.at)?;
            let first = *rest.first()?;
            if matches!(first, b'\t' | b'\r' | b'\n') {
                self.at += 1;
                continue;
            }
            // Of tokens of one length, the first counts.
            let mut longest = (0, Token::Unknown);
            let mut offer = |len: usize, token: Token<'a>| {
                if len > longest.0 {
                    longest = (len, token);
                }
            };
            let digits = |from: usize| rest.iter().skip(from).take_while(|byte| byte.is_ascii_digit()).count();
            let at = |from: usize, len: usize| rest.get(from..from + len).unwrap_or_default();
            if matches!(first, b'=' | b',' | b' ') {
                offer(1, Token::Sign(first));
            }
            offer(digits(0), Token::Number(number(at(0, digits(0)))));
            let short = |from: usize| digits(from).min(5);
            if rest.starts_with(b":") && short(1) > 0 {
                offer(1 + short(1), Token::Port(number(at(1, short(1)))));
            }
            if rest.starts_with(b"/?") && short(2) > 0 {
                offer(2 + short(2), Token::Weight(number(at(2, short(2)))));
            }
            if let (b'#', None | Some(b'\n'), Some(end)) = (first, before.last(), rest.iter().position(|byte| *byte == b'\n')) {
                offer(end, Token::Comment);
            }
            let words = [NUMBERS, SWITCHES, HASHES, DISTRIBUTIONS]
                .into_iter()
                .flatten()
                .map(|(word, _)| word);
            for word in words.chain(WORDS) {
                if at(0, word.len()).eq_ignore_ascii_case(word.as_bytes()) {
                    offer(word.len(), Token::Word(word));
                }
            }
            if rest.starts_with(b"--") {
                offer(
                    2 + rest.iter().skip(2).take_while(|byte| byte.is_ascii_alphanumeric()).count(),
                    Token::Unknown,
                );
            }
            let address = address(rest);
            offer(address, Token::Address(at(0, address)));
            let name = name(rest);
            offer(name, Token::Name(at(0, name)));
            let prefix = usize::from(first.eq_ignore_ascii_case(&b'L'));
            if let Some(len) = quoted(rest.get(prefix..).unwrap_or_default()) {
                offer(prefix + len, Token::Quoted(at(1, prefix + len - 2)));
            }
            offer(1, Token::Unknown);
            self.at += longest.0;
            return Some(longest.1);
        }
    }
}

/// As atoi(3): the lower half of the nearest number that a `long` can be.
#[allow(clippy::cast_possible_truncation, reason = "what atoi(3) does")]
fn number(digits: &[u8]) -> i64 {
    let text = std::str::from_utf8(digits).unwrap_or_default();
    i64::from(text.parse().unwrap_or(if text.is_empty() { 0 } else { i64::MAX }) as i32)
}

/// The length of four numbers of up to three digits, with points between them; 0: there are none.
fn address(text: &[u8]) -> usize {
    let mut len = 0;
    for part in 0..4 {
        let digits = text.iter().skip(len).take(3).take_while(|byte| byte.is_ascii_digit()).count();
        let is_whole = digits > 0 && (part == 3 || text.get(len + digits) == Some(&b'.'));
        if !is_whole {
            return 0;
        }
        len += digits + usize::from(part < 3);
    }
    len
}

/// The length of a name: three bytes or more, the first and the last of which are letters or digits.
fn name(text: &[u8]) -> usize {
    let inside = |byte: &u8| byte.is_ascii_alphanumeric() || b".\"_-".contains(byte);
    let run = text.iter().take_while(|byte| inside(byte)).count();
    let whole = text.get(..run).unwrap_or_default();
    let len = whole.iter().rposition(u8::is_ascii_alphanumeric).map_or(0, |last| last + 1);
    if len >= 3 && whole.first().is_some_and(u8::is_ascii_alphanumeric) {
        len
    } else {
        0
    }
}

/// The length of a text in quotes, in which a backslash takes the meaning from the byte after it.
fn quoted(text: &[u8]) -> Option<usize> {
    let mut bytes = text.iter().enumerate();
    bytes.next().filter(|(_, byte)| **byte == b'"')?;
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return Some(at + 1),
            b'\\' if bytes.next()?.1 == &b'\n' => return None,
            _ => {}
        }
    }
    None
}

/// Sets up a handle as an option string says, and then as the file says that it names.
pub(crate) fn configure(st: *mut memcached_st, text: &[u8]) -> c_int {
    let code = configure_by(st, text, 0);
    match handle::ours(st).and_then(|handle| handle.filename.clone()) {
        Some(name) if code == rc::SUCCESS => configure_from_file(st, name.as_bytes(), 0),
        _ => code,
    }
}

/// Sets up a handle by the option strings in a file, one a line.
pub(crate) fn configure_from_file(st: *mut memcached_st, name: &[u8], depth: u32) -> c_int {
    use std::os::unix::ffi::OsStrExt;
    if depth > INCLUDES_MAX {
        return error::set(st, rc::PARSE_ERROR, "Failed to parse configuration file");
    }
    let text = match std::fs::read(std::ffi::OsStr::from_bytes(name)) {
        Ok(text) => text,
        Err(read) => return error::set_errno(st, rc::ERRNO, read.raw_os_error().unwrap_or(libc::EIO)),
    };
    let mut code = rc::INVALID_ARGUMENTS;
    for line in text.split_inclusive(|byte| *byte == b'\n').filter(|line| *line != b"\n") {
        code = configure_by(st, line, depth);
        if code != rc::SUCCESS {
            break;
        }
    }
    code
}

fn configure_by(st: *mut memcached_st, text: &[u8], depth: u32) -> c_int {
    let scanner = Scanner { text, at: 0 };
    let mut parser = Parser {
        st,
        scanner,
        has_hash: false,
        depth,
    };
    parser.statements().err().unwrap_or(rc::SUCCESS)
}

struct Parser<'a> {
    st: *mut memcached_st,
    scanner: Scanner<'a>,
    has_hash: bool,
    depth: u32,
}

impl<'a> Parser<'a> {
    fn statements(&mut self) -> Result<(), c_int> {
        loop {
            if self.statement()? {
                return Ok(());
            }
            match self.scanner.next() {
                None => return Ok(()),
                Some(Token::Sign(b' ')) => {}
                Some(_) => return Err(self.wrong("syntax error")),
            }
        }
    }

    fn wrong(&self, why: &str) -> c_int {
        error::set(self.st, rc::PARSE_ERROR, why)
    }

    /// `Ok`, if the call has succeeded.
    fn done(&self, code: c_int, why: &str) -> Result<bool, c_int> {
        if rc::succeeded(code) {
            Ok(false)
        } else {
            Err(self.wrong(why))
        }
    }

    /// Takes the next token, if it is what is looked for.
    fn take<T>(&mut self, wanted: impl FnOnce(Token<'a>) -> Option<T>) -> Option<T> {
        let mut ahead = self.scanner;
        let found = ahead.next().and_then(wanted);
        if found.is_some() {
            self.scanner = ahead;
        }
        found
    }

    fn expect<T>(&mut self, wanted: impl FnOnce(Token<'a>) -> Option<T>) -> Result<T, c_int> {
        self.take(wanted).ok_or_else(|| self.wrong("syntax error"))
    }

    fn string(&mut self) -> Result<CString, c_int> {
        self.expect(|token| match token {
            Token::Name(text) | Token::Quoted(text) => CString::new(text).ok(),
            _ => None,
        })
    }

    fn number(&mut self) -> Result<i64, c_int> {
        self.expect(|token| match token {
            Token::Number(number) => Some(number),
            _ => None,
        })
    }

    fn weight(&mut self) -> u32 {
        let weight = self.take(|token| match token {
            Token::Weight(weight) => Some(weight),
            _ => None,
        });
        weight.and_then(|weight| u32::try_from(weight).ok()).unwrap_or(1)
    }

    /// A word of a table.
    fn one_of(&mut self, table: &[(&str, u32)]) -> Result<u32, c_int> {
        self.expect(|token| match token {
            Token::Word(word) => found(table, word),
            _ => None,
        })
    }

    fn set(&self, behavior: u32, data: i64) -> c_int {
        // SAFETY: a handle.
        unsafe { memcached_behavior_set(self.st, behavior, data.cast_unsigned()) }
    }

    /// A setting that no call makes.
    fn set_directly(&self, set: impl Fn(&mut memcached_st) + 'static) {
        // SAFETY: a handle of ours, and one of the real library's, whose public fields are the same.
        unsafe { set(&mut *self.st) };
        if let Some(handle) = handle::ours(self.st) {
            // SAFETY: as above.
            let again = Call::new(sets::ANYTHING, 0, move |st| unsafe { set(&mut *st) });
            handle.calls.write_down(again, true);
        }
    }

    /// One option; whether it is the last one.
    fn statement(&mut self) -> Result<bool, c_int> {
        let word = match self.scanner.next() {
            Some(Token::Word(word)) => word,
            Some(Token::Comment) => return Ok(false),
            _ => return Err(self.wrong("syntax error")),
        };
        let st = self.st;
        if let Some(behavior) = found(NUMBERS, word) {
            let number = self.number()?;
            return self.done(self.set(behavior, number), "Unable to set behavior");
        }
        if let Some(behavior) = found(SWITCHES, word) {
            return self.done(self.set(behavior, 1), &format!("Could not set: {word}"));
        }
        match word {
            "--USER-DATA" | "DEBUG" => Ok(false),
            "END" => Ok(true),
            "CSL_ERROR" => Err(self.wrong("ERROR called directly")),
            "RESET" => {
                // SAFETY: a handle of ours.
                unsafe { handle::renew(st) };
                Ok(false)
            }
            "--SERVER=" => self.server(),
            "--SOCKET=" => {
                let (path, weight) = (self.string()?, self.weight());
                // SAFETY: a handle, and a C string.
                let code = unsafe { memcached_server_add_unix_socket_with_weight(st, path.as_ptr(), weight) };
                self.done(code, "Failed to add socket")
            }
            "--CONFIGURE-FILE=" => {
                let name = self.string()?;
                if let Some(handle) = handle::ours(st) {
                    handle.filename = Some(name);
                }
                Ok(false)
            }
            "INCLUDE" => {
                self.expect(|token| (token == Token::Sign(b' ')).then_some(()))?;
                let name = self.string()?;
                let code = configure_from_file(st, name.as_bytes(), self.depth + 1);
                self.done(code, "Failed to parse configuration file")
            }
            _ => self.setting(word),
        }
    }

    /// An option that is a setting of its own.
    fn setting(&mut self, word: &str) -> Result<bool, c_int> {
        let st = self.st;
        match word {
            "--POOL-MIN=" | "--POOL-MAX=" => {
                let size = low(self.number()?);
                let is_least = word == "--POOL-MIN=";
                self.set_directly(move |st| match is_least {
                    true => st.configure.initial_pool_size = size,
                    false => st.configure.max_pool_size = size,
                });
                Ok(false)
            }
            "--FETCH-VERSION" => {
                self.set_directly(|st| st.put(Flag::IsFetchingVersion, true));
                Ok(false)
            }
            "--NAMESPACE=" => {
                let name = self.string()?;
                if handle::ours(st).is_some_and(|handle| handle.namespace.is_some()) {
                    return Err(self.wrong("--NAMESPACE can only be called once"));
                }
                // SAFETY: a handle, and a C string.
                let code = unsafe { memcached_callback_set(st, 0, name.as_ptr().cast()) };
                self.done(code, "the namespace cannot be used")
            }
            "--HASH=" => {
                let hash = self.one_of(HASHES)?;
                let is_second = std::mem::replace(&mut self.has_hash, true);
                if is_second {
                    return Err(self.wrong("--HASH can only be set once"));
                }
                self.done(self.set(behavior::HASH, hash.into()), "--HASH can only be set once")
            }
            "--DISTRIBUTION=" => {
                let distribution = self.one_of(DISTRIBUTIONS)?;
                let code = self.set(behavior::DISTRIBUTION, distribution.into());
                if self.take(|token| (token == Token::Sign(b',')).then_some(())).is_none() {
                    return self.done(code, "--DISTRIBUTION can only be called once");
                }
                let hash = self.one_of(HASHES)?;
                // SAFETY: a handle.
                let code = unsafe { memcached_behavior_set_distribution_hash(st, hash) };
                self.done(code, "Unable to set the hash for the DISTRIBUTION requested")
            }
            _ => Err(self.wrong("syntax error")),
        }
    }

    /// `NAME[:PORT][/?WEIGHT]`, or `keyway:PATH`, which may stand in quotes.
    fn server(&mut self) -> Result<bool, c_int> {
        let rest = self.scanner.text.get(self.scanner.at..).unwrap_or_default();
        let quotes = usize::from(rest.starts_with(b"\""));
        let rest = rest.get(quotes..).unwrap_or_default();
        let (name, port) = if rest.starts_with(b"keyway:") {
            let end = rest.iter().position(|byte| {
                if quotes > 0 {
                    *byte == b'"'
                } else {
                    byte.is_ascii_whitespace()
                }
            });
            let (place, _) = rest.split_at(end.unwrap_or(rest.len()));
            self.scanner.at += quotes + place.len() + quotes;
            (place, 0)
        } else {
            let name = self.expect(|token| match token {
                Token::Name(name) | Token::Address(name) => Some(name),
                _ => None,
            })?;
            let port = self.take(|token| match token {
                Token::Port(port) => Some(port),
                _ => None,
            });
            (name, port.unwrap_or(0))
        };
        let weight = self.weight();
        let Ok(name) = CString::new(name) else {
            return Err(self.wrong("Failed to add server"));
        };
        // SAFETY: a handle, and a C string.
        let code = unsafe { memcached_server_add_with_weight(self.st, name.as_ptr(), low_port(port), weight) };
        self.done(code, "Failed to add server")
    }
}

/// The number of a word in a table.
fn found(table: &[(&str, u32)], word: &str) -> Option<u32> {
    table.iter().find(|(name, _)| *name == word).map(|(_, number)| *number)
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "libmemcached cuts the number so"
)]
fn low(number: i64) -> u32 {
    number as u32
}

#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "libmemcached cuts the number so"
)]
fn low_port(number: i64) -> u16 {
    number as u16
}

plain_functions! {
    fn libmemcached_check_configuration(text: *const c_char, length: usize, buffer: *mut c_char, size: usize) -> c_int = rc::FAILURE; {
        if text.is_null() || length == 0 {
            return rc::INVALID_ARGUMENTS;
        }
        let st = handle::memcached_create(std::ptr::null_mut());
        if st.is_null() {
            return rc::MEMORY_ALLOCATION_FAILURE;
        }
        let code = configure(st, std::slice::from_raw_parts(text.cast(), length));
        if !buffer.is_null() && size > 0 {
            let message = if code == rc::SUCCESS { c"" } else { std::ffi::CStr::from_ptr(error::memcached_last_error_message(st)) };
            let bytes = message.to_bytes();
            let len = bytes.len().min(size - 1);
            buffer.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), len);
            buffer.add(len).write(0);
        }
        handle::memcached_free(st);
        code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(text: &str) -> Vec<Token<'_>> {
        let mut scanner = Scanner {
            text: text.as_bytes(),
            at: 0,
        };
        std::iter::from_fn(|| scanner.next()).collect()
    }

    #[test]
    fn the_longest_token_counts() {
        assert_eq!(
            tokens("--server=h1.x:80/?5"),
            [
                Token::Word("--SERVER="),
                Token::Name(b"h1.x"),
                Token::Port(80),
                Token::Weight(5)
            ]
        );
        assert_eq!(
            tokens("md5 md5x"),
            [Token::Word("MD5"), Token::Sign(b' '), Token::Name(b"md5x")]
        );
        assert_eq!(
            tokens("1.2.3.4 1.2.3"),
            [Token::Address(b"1.2.3.4"), Token::Sign(b' '), Token::Name(b"1.2.3")]
        );
        assert_eq!(
            tokens("\"a\\\"b\" 123456"),
            [Token::Quoted(b"a\\\"b"), Token::Sign(b' '), Token::Number(123_456)]
        );
        assert_eq!(tokens("#a\n#b"), [Token::Comment, Token::Unknown, Token::Unknown]);
    }
}
