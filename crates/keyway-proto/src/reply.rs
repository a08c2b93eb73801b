//! Writers of every answer: each appends whole lines to a buffer that the caller owns.
//!
//! Except for statistics nothing is formatted: an answer is a few copies and a number or two. The rules of each answer are
//! here ([`meta()`]: which flags are echoed, which lines quiet mode hides), so that a server has no rules of its own.

mod dump;
mod meta;

pub use dump::{DebugFacts, DumpFacts, debug, metadump, mgdump, uri_encode};
pub use meta::{ItemFacts, MetaCode, MetaCommand, is_hidden, meta};

use std::io::Write;

/// The end of every line and data block.
pub const LINE_END: &[u8] = b"\r\n";

/// "STORED" (protocol.txt, "Storage commands").
pub const STORED: &[u8] = b"STORED\r\n";
/// "NOT_STORED" (protocol.txt, "Storage commands").
pub const NOT_STORED: &[u8] = b"NOT_STORED\r\n";
/// "EXISTS" (protocol.txt, "Storage commands").
pub const EXISTS: &[u8] = b"EXISTS\r\n";
/// "NOT_FOUND" (protocol.txt, "Storage commands" and others).
pub const NOT_FOUND: &[u8] = b"NOT_FOUND\r\n";
/// The end of values, statistics and `metadump` (protocol.txt, "Retrieval command").
pub const END: &[u8] = b"END\r\n";
/// "DELETED" (protocol.txt, "Deletion").
pub const DELETED: &[u8] = b"DELETED\r\n";
/// "TOUCHED" (protocol.txt, "Touch").
pub const TOUCHED: &[u8] = b"TOUCHED\r\n";
/// "OK": settings, `flush_all`, the first line of a watcher (protocol.txt, "Other commands").
pub const OK: &[u8] = b"OK\r\n";
/// The answer to `stats reset`.
pub const RESET: &[u8] = b"RESET\r\n";
/// A miss of `mg` and `me`, and the end of `mgdump` (protocol.txt, "Meta Get").
pub const META_MISS: &[u8] = b"EN\r\n";
/// The answer to `mn` (protocol.txt, "Meta No-Op").
pub const META_NOOP: &[u8] = b"MN\r\n";
/// Not a command (protocol.txt, "Error strings").
pub const ERROR: &[u8] = crate::decode::ERROR;
/// A malformed command line, with memcached's text.
pub const BAD_FORMAT: &[u8] = crate::decode::BAD_FORMAT;
/// A value that is too large, with memcached's text.
pub const TOO_LARGE: &[u8] = crate::decode::TOO_LARGE;
/// `incr`, `decr` or `ma` on a value that is not a number, with memcached's text.
pub const NON_NUMERIC: &[u8] = b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n";
/// No memory for a value, with memcached's text.
pub const OUT_OF_MEMORY_STORING: &[u8] = b"SERVER_ERROR out of memory storing object\r\n";
/// No memory for something else that an operation needs, with memcached's text.
pub const OUT_OF_MEMORY: &[u8] = b"SERVER_ERROR out of memory\r\n";
/// `shutdown` on a server that does not allow it (protocol.txt, "Other commands").
pub const SHUTDOWN_DISABLED: &[u8] = b"SERVER_ERROR: shutdown not enabled\r\n";
/// `flush_all` on a server that does not allow it.
pub const FLUSH_DISABLED: &[u8] = b"CLIENT_ERROR flush_all not allowed\r\n";
/// `watch` on a server that does not allow it.
pub const WATCH_DISABLED: &[u8] = b"CLIENT_ERROR watch commands not allowed\r\n";
/// `lru_crawler metadump` on a server that does not allow it.
pub const METADUMP_DISABLED: &[u8] = b"ERROR metadump not allowed\r\n";
/// `lru_crawler mgdump` on a server that does not allow it.
pub const MGDUMP_DISABLED: &[u8] = b"ERROR key dump not allowed\r\n";
/// Any command but the fake `set` before authentication (protocol.txt, "Authentication").
pub const UNAUTHENTICATED: &[u8] = b"CLIENT_ERROR unauthenticated\r\n";
/// Wrong user or password (protocol.txt, "Authentication").
pub const AUTHENTICATION_FAILURE: &[u8] = b"CLIENT_ERROR authentication failure\r\n";
/// The payload of the fake `set` is not "user password" (protocol.txt, "Authentication").
pub const BAD_AUTHENTICATION: &[u8] = b"CLIENT_ERROR bad authentication token format\r\n";

/// `VALUE <key> <flags> <bytes> [<cas unique>]`: the line before a data block of `value_len` bytes, which
/// [`LINE_END`] must follow (protocol.txt, "Retrieval command").
#[inline]
pub fn value(out: &mut Vec<u8>, key: &[u8], client_flags: u32, value_len: usize, cas: Option<u64>) {
    // One reservation for the line, so that the pushes below never grow the buffer.
    out.reserve(key.len() + 80);
    out.extend_from_slice(b"VALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    decimal(out, client_flags.into());
    out.push(b' ');
    decimal(out, value_len as u64);
    if let Some(cas) = cas {
        out.push(b' ');
        decimal(out, cas);
    }
    out.extend_from_slice(LINE_END);
}

/// A number on a line of its own: the answer to `incr` and `decr` (protocol.txt, "Increment/Decrement").
pub fn number(out: &mut Vec<u8>, number: u64) {
    decimal(out, number);
    out.extend_from_slice(LINE_END);
}

/// The end of `lease-get` without a value: `LVALUE <key> <token> 0 0`, and no value. A token of 1 says that somebody computes (mcrouter,
/// `AsciiSerialized.cpp`, `McLeaseGetReply`).
pub fn lease(out: &mut Vec<u8>, key: &[u8], token: u64) {
    out.extend_from_slice(b"LVALUE ");
    out.extend_from_slice(key);
    out.push(b' ');
    decimal(out, token);
    out.extend_from_slice(b" 0 0\r\n\r\nEND\r\n");
}

/// `VERSION <version>` (protocol.txt, "Other commands").
pub fn version(out: &mut Vec<u8>, version: &str) {
    out.extend_from_slice(b"VERSION ");
    out.extend_from_slice(version.as_bytes());
    out.extend_from_slice(LINE_END);
}

/// `STAT <name> <value>` (protocol.txt, "Statistics").
pub fn stat(out: &mut Vec<u8>, name: &str, value: impl std::fmt::Display) {
    // Writing to a vector cannot fail.
    let _ = write!(out, "STAT {name} {value}\r\n");
}

/// Appends `number` in decimal.
#[inline]
pub fn decimal(out: &mut Vec<u8>, number: u64) {
    match u8::try_from(number) {
        Ok(digit @ 0..=9) => out.push(b'0' + digit),
        _ => out.extend_from_slice(Digits::default().of(number)),
    }
}

/// Space for the decimal digits of any `u64`.
#[derive(Default)]
struct Digits([u8; 20]);

impl Digits {
    /// The digits of `number`, two per division.
    fn of(&mut self, mut number: u64) -> &[u8] {
        let mut start = self.0.len();
        let (pairs, _) = self.0.as_chunks_mut::<2>();
        for pair in pairs.iter_mut().rev() {
            let [tens, ones] = pair;
            // Both remainders are below 10: the fallback is never taken.
            *tens = b'0' + u8::try_from(number % 100 / 10).unwrap_or(0);
            *ones = b'0' + u8::try_from(number % 10).unwrap_or(0);
            start -= if number >= 10 { 2 } else { 1 };
            number /= 100;
            if number == 0 {
                break;
            }
        }
        self.0.get(start..).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(write: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        write(&mut out);
        String::from_utf8(out).unwrap_or_default()
    }

    #[test]
    fn decimals_agree_with_the_standard_formatter() {
        let mut numbers: Vec<u64> = vec![0, u64::MAX, u64::from(u32::MAX)];
        let mut power = 1u64;
        while let Some(next) = power.checked_mul(10) {
            numbers.extend([power - 1, power, power + 1, power * 9]);
            power = next;
        }
        numbers.extend(0..1000);
        for number in numbers {
            assert_eq!(written(|out| decimal(out, number)), number.to_string());
        }
    }

    #[test]
    fn classic_lines() {
        assert_eq!(written(|out| value(out, b"k", 0, 0, None)), "VALUE k 0 0\r\n");
        assert_eq!(
            written(|out| value(out, b"key", u32::MAX, 1048576, Some(u64::MAX))),
            "VALUE key 4294967295 1048576 18446744073709551615\r\n"
        );
        assert_eq!(written(|out| number(out, 42)), "42\r\n");
        assert_eq!(written(|out| version(out, "1.6.45")), "VERSION 1.6.45\r\n");
        assert_eq!(written(|out| stat(out, "pid", 7)), "STAT pid 7\r\n");
    }
}
