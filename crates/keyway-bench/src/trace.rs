//! Traces: requests that were recorded, as CSV with the columns key, op, size, ttl.
//!
//! Columns may stand in any order if the first line names them; others are ignored. `op` is get, gets, set, add, delete, or another
//! storing one, which counts as set; `size` is the value's length in bytes (of a get: what is stored if it misses); `ttl` is in
//! seconds, 0 for none. Each thread replays the requests of its own share of the keys, in their order, over and over.

use crate::mix::Kind;
use std::collections::HashMap;
use std::path::Path;

/// Longest key and value that are replayed: memcached's limits.
const KEY_LEN_MAX: usize = 250;
const VALUE_LEN_MAX: u32 = 1 << 20;
/// Longer times to live would be read as points in time (protocol.txt, "Expiration times").
const TTL_S_MAX: u32 = 2_592_000;

/// One recorded request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// what it does
    pub kind: Kind,
    /// number of its key
    pub item: u32,
    /// of the value
    pub value_len: u32,
    /// of the value
    pub ttl_s: u32,
}

/// A trace in memory.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// all keys, one after the other
    keys: Vec<u8>,
    /// where each ends, and the first length of its value
    items: Vec<(usize, u32)>,
    /// in their order
    pub requests: Vec<Recorded>,
}

impl Trace {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// It cannot be read, has no requests, or a line makes no sense; the reason names the line.
    pub fn read(path: &Path) -> Result<Self, String> {
        let text = std::fs::read_to_string(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
        Self::parse(&text).map_err(|why| format!("{}: {why}", path.display()))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut trace = Self::default();
        let mut numbers: HashMap<&str, u32> = HashMap::new();
        let mut columns = Columns::default();
        for (number, line) in text.lines().enumerate() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(named) = Columns::named(line) {
                columns = named;
                continue;
            }
            let why = |what: &str| format!("line {}: {what}: {line}", number + 1);
            let fields: Vec<&str> = line.split(',').map(str::trim).collect();
            let field = |column: usize| fields.get(column).copied().unwrap_or_default();
            let key = field(columns.key);
            if key.is_empty() || key.len() > KEY_LEN_MAX || !key.bytes().all(|b| b.is_ascii_graphic()) {
                return Err(why("a key is 1 to 250 visible ASCII characters"));
            }
            let kind = kind(field(columns.op)).ok_or_else(|| why("no operation of memcached's"))?;
            let count = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u32>().ok() };
            let value_len = count(field(columns.size)).filter(|len| *len <= VALUE_LEN_MAX);
            let value_len = value_len.ok_or_else(|| why("a size is 0 to 1048576 bytes"))?;
            let ttl_s = count(field(columns.ttl))
                .ok_or_else(|| why("a ttl is a number of seconds"))?
                .min(TTL_S_MAX);
            let next = u32::try_from(trace.items.len()).map_err(|_| why("there are too many keys"))?;
            let item = *numbers.entry(key).or_insert_with(|| {
                trace.keys.extend_from_slice(key.as_bytes());
                trace.items.push((trace.keys.len(), value_len));
                next
            });
            trace.requests.push(Recorded {
                kind,
                item,
                value_len,
                ttl_s,
            });
        }
        if trace.requests.is_empty() {
            return Err("there is no request in it".to_owned());
        }
        Ok(trace)
    }

    /// How many keys there are.
    pub fn keys(&self) -> u64 {
        self.items.len() as u64
    }

    /// The key of an item, and the first length of its value.
    pub fn item(&self, item: usize) -> (&[u8], u32) {
        let start = item.checked_sub(1).map_or(0, |before| self.items[before].0);
        let (end, value_len) = self.items[item];
        (&self.keys[start..end], value_len)
    }

    /// The longest value.
    pub fn longest(&self) -> usize {
        self.requests.iter().map(|request| request.value_len).max().unwrap_or(0) as usize
    }
}

#[derive(Clone, Copy)]
struct Columns {
    key: usize,
    op: usize,
    size: usize,
    ttl: usize,
}

impl Default for Columns {
    fn default() -> Self {
        Self {
            key: 0,
            op: 1,
            size: 2,
            ttl: 3,
        }
    }
}

impl Columns {
    /// Of a line that names them.
    fn named(line: &str) -> Option<Self> {
        let names: Vec<&str> = line.split(',').map(str::trim).collect();
        let at = |name| names.iter().position(|n| *n == name);
        Some(Self {
            key: at("key")?,
            op: at("op")?,
            size: at("size")?,
            ttl: at("ttl").unwrap_or(usize::MAX),
        })
    }
}

fn kind(op: &str) -> Option<Kind> {
    match op {
        "get" | "gets" => Some(Kind::Get),
        "set" | "replace" | "cas" | "append" | "prepend" | "incr" | "decr" => Some(Kind::Set),
        "add" => Some(Kind::Add),
        "delete" => Some(Kind::Remove),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_have_an_order_or_names() {
        let plain = Trace::parse("a,get,10,0\nbb,set,20,60\n\na,delete,,\n").unwrap();
        let named = Trace::parse("ts,op,key,size\n1,get,a,10\n2,set,bb,20\n3,delete,a,\n").unwrap();
        assert_eq!(plain.requests[1].ttl_s, 60);
        assert_eq!(named.requests[1].ttl_s, 0);
        for trace in [plain, named] {
            assert_eq!((trace.keys(), trace.longest()), (2, 20));
            assert_eq!([trace.item(0), trace.item(1)], [(&b"a"[..], 10), (&b"bb"[..], 20)]);
            let kinds: Vec<_> = trace.requests.iter().map(|r| (r.kind, r.item, r.value_len)).collect();
            assert_eq!(kinds, [(Kind::Get, 0, 10), (Kind::Set, 1, 20), (Kind::Remove, 0, 0)]);
        }
    }

    #[test]
    fn a_line_that_makes_no_sense_is_named() {
        for (text, words) in [
            ("", "no request"),
            ("a,get,1,0\nb,fly,1,0", "line 2: no operation"),
            (",get,1,0", "line 1: a key"),
            ("a b,get,1,0", "line 1: a key"),
            ("a,get,x,0", "line 1: a size"),
            ("a,get,1048577,0", "line 1: a size"),
            ("a,get,1,-1", "line 1: a ttl"),
        ] {
            let why = Trace::parse(text).unwrap_err();
            assert!(why.contains(words), "{text}: {why}");
        }
    }
}
