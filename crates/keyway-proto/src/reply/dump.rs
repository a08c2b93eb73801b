//! Lines that show an item without its value: `me`, `lru_crawler metadump`, `lru_crawler mgdump`.

use super::{LINE_END, decimal};
use crate::base64;
use crate::token::splits_lines;

/// What `me` shows (protocol.txt, "Meta Debug").
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DebugFacts<'a> {
    /// the key as stored
    pub key: &'a [u8],
    /// whether the key is shown in base64
    pub is_binary: bool,
    /// seconds left, `None` for an item that does not expire
    pub ttl_s: Option<u64>,
    /// seconds since the last access
    pub idle_s: u64,
    /// CAS unique
    pub cas: u64,
    /// whether it was ever fetched
    pub fetched: bool,
    /// slab class
    pub class: u32,
    /// bytes that the item takes, header included
    pub size: u64,
}

/// What `lru_crawler metadump` shows (protocol.txt, "LRU_Crawler").
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DumpFacts<'a> {
    /// the key as stored
    pub key: &'a [u8],
    /// Unix time at which it expires, `None` for an item that does not
    pub expires_at: Option<u64>,
    /// Unix time of the last access
    pub accessed_at: u64,
    /// CAS unique
    pub cas: u64,
    /// whether it was ever fetched
    pub fetched: bool,
    /// slab class
    pub class: u32,
    /// bytes that the item takes, header included
    pub size: u64,
    /// client flags
    pub client_flags: u32,
}

/// `ME <key> exp=… la=… cas=… fetch=… cls=… size=…` (protocol.txt, "Meta Debug").
pub fn debug(out: &mut Vec<u8>, facts: &DebugFacts<'_>) {
    out.extend_from_slice(b"ME ");
    if facts.is_binary || splits_lines(facts.key) {
        base64::encode(out, facts.key);
    } else {
        out.extend_from_slice(facts.key);
    }
    time(out, facts.ttl_s);
    common(out, facts.idle_s, facts.cas, facts.fetched, facts.class, facts.size);
    out.extend_from_slice(LINE_END);
}

/// `key=… exp=… la=… cas=… fetch=… cls=… size=… flags=…`: one line of `lru_crawler metadump`. As in memcached, it ends with
/// a space and a bare line feed. `OK` comes before the first one, `END` after the last.
pub fn metadump(out: &mut Vec<u8>, facts: &DumpFacts<'_>) {
    out.extend_from_slice(b"key=");
    uri_encode(out, facts.key);
    time(out, facts.expires_at);
    common(out, facts.accessed_at, facts.cas, facts.fetched, facts.class, facts.size);
    out.extend_from_slice(b" flags=");
    decimal(out, facts.client_flags.into());
    out.extend_from_slice(b" \n");
}

/// `mg <key>` or `mg <base64> b`: one line of `lru_crawler mgdump`. `OK` comes before the first one, `EN` after
/// the last.
pub fn mgdump(out: &mut Vec<u8>, key: &[u8], is_binary: bool) {
    out.extend_from_slice(b"mg ");
    if is_binary || splits_lines(key) {
        base64::encode(out, key);
        out.extend_from_slice(b" b");
    } else {
        out.extend_from_slice(key);
    }
    out.extend_from_slice(LINE_END);
}

/// Appends `bytes` in URI encoding: everything but letters, digits and `-._~` as `%XX` (protocol.txt, "Watchers").
pub fn uri_encode(out: &mut Vec<u8>, bytes: &[u8]) {
    let hex = |digit: u8| if digit < 10 { b'0' + digit } else { b'A' + digit - 10 };
    for &byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => out.push(byte),
            _ => out.extend_from_slice(&[b'%', hex(byte >> 4), hex(byte & 15)]),
        }
    }
}

fn time(out: &mut Vec<u8>, time: Option<u64>) {
    out.extend_from_slice(b" exp=");
    match time {
        Some(time) => decimal(out, time),
        None => out.extend_from_slice(b"-1"),
    }
}

fn common(out: &mut Vec<u8>, accessed: u64, cas: u64, fetched: bool, class: u32, size: u64) {
    out.extend_from_slice(b" la=");
    decimal(out, accessed);
    out.extend_from_slice(b" cas=");
    decimal(out, cas);
    out.extend_from_slice(if fetched { b" fetch=yes".as_slice() } else { b" fetch=no" });
    out.extend_from_slice(b" cls=");
    decimal(out, class.into());
    out.extend_from_slice(b" size=");
    decimal(out, size);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_lines() {
        let facts = DebugFacts {
            key: b"foo",
            cas: 2,
            fetched: true,
            class: 1,
            size: 63,
            ..DebugFacts::default()
        };
        let mut out = Vec::new();
        debug(&mut out, &facts);
        debug(
            &mut out,
            &DebugFacts {
                is_binary: true,
                ttl_s: Some(90),
                idle_s: 3,
                fetched: false,
                ..facts.clone()
            },
        );
        debug(
            &mut out,
            &DebugFacts {
                key: b"a\r\nEN\r\n",
                ..facts
            },
        );
        assert_eq!(
            out.as_slice(),
            b"ME foo exp=-1 la=0 cas=2 fetch=yes cls=1 size=63\r\nME Zm9v exp=90 la=3 cas=2 fetch=no cls=1 size=63\r\n\
              ME YQ0KRU4NCg== exp=-1 la=0 cas=2 fetch=yes cls=1 size=63\r\n"
        );
    }

    #[test]
    fn metadump_lines_encode_their_keys() {
        let facts = DumpFacts {
            key: b"a b,%~\xff",
            accessed_at: 1000,
            cas: 9,
            class: 1,
            size: 70,
            ..DumpFacts::default()
        };
        let mut out = Vec::new();
        metadump(&mut out, &facts);
        metadump(
            &mut out,
            &DumpFacts {
                key: b"k",
                expires_at: Some(1234),
                fetched: true,
                client_flags: 5,
                ..facts
            },
        );
        assert_eq!(
            out.as_slice(),
            b"key=a%20b%2C%25~%FF exp=-1 la=1000 cas=9 fetch=no cls=1 size=70 flags=0 \n\
              key=k exp=1234 la=1000 cas=9 fetch=yes cls=1 size=70 flags=5 \n"
        );
    }

    #[test]
    fn mgdump_lines_can_be_sent_back() {
        let mut out = Vec::new();
        mgdump(&mut out, b"foo", false);
        mgdump(&mut out, b"foo", true);
        assert_eq!(out.as_slice(), b"mg foo\r\nmg Zm9v b\r\n");
    }
}
