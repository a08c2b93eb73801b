//! The client's half of the text protocol: encodes requests, and decodes answers.
//!
//! A client appends requests to a buffer ([`get`], [`store`], [`meta`] and the others) and sends it. It passes the bytes that have
//! arrived to [`receive`], again and again, each time those that are not consumed yet. Nothing here reads a socket, and decoding does not
//! allocate.
//!
//! ```
//! use keyway_proto::client::{self, Answer, Received};
//!
//! let mut out = Vec::new();
//! client::get(&mut out, false, [&b"color"[..], b"shape"]);
//! assert_eq!(out, b"get color shape\r\n");
//! let arrived = b"VALUE color 0 3\r\nred\r\nEND\r\n";
//! let Received::Answer { consumed, answer: Answer::Value { key: b"color", value: b"red", .. } } = client::receive(arrived) else { panic!() };
//! assert_eq!(client::receive(&arrived[consumed..]), Received::Answer { consumed: 5, answer: Answer::End });
//! ```

use crate::base64;
use crate::command::Command;
use crate::reply::decimal;
use crate::request::Store;
use crate::token::{Tokens, find_byte, is_plain, parse_u32, parse_u64, tokens};

/// Longest line of an answer, bytes: a key of 250 bytes, each as `%XX`, and the rest of a line of a dump, several times over.
const LINE_MAX: usize = 8192;
/// Longest value of an answer, bytes: no server stores a longer one.
const VALUE_MAX: usize = 1 << 30;
const LINE_END: &[u8] = b"\r\n";
const NOREPLY: &[u8] = b" noreply";

/// A key of a request: its bytes, or a function that appends them, which saves a client that makes its keys a copy of each.
pub trait Key {
    /// Appends the key, which has neither spaces nor control characters.
    fn append_to(self, out: &mut Vec<u8>);
}

impl Key for &[u8] {
    #[inline]
    fn append_to(self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl<F: FnOnce(&mut Vec<u8>)> Key for F {
    #[inline]
    fn append_to(self, out: &mut Vec<u8>) {
        self(out);
    }
}

/// Appends `get <key>*`, or `gets <key>*`, which asks for CAS uniques as well.
pub fn get(out: &mut Vec<u8>, with_cas: bool, keys: impl IntoIterator<Item: Key>) {
    begin(out, if with_cas { Command::Gets } else { Command::Get });
    words(out, keys);
    out.extend_from_slice(LINE_END);
}

/// Appends `gat <exptime> <key>*`, or `gats <exptime> <key>*`.
pub fn get_and_touch<'k>(out: &mut Vec<u8>, exptime: i32, with_cas: bool, keys: impl IntoIterator<Item = &'k [u8]>) {
    begin(out, if with_cas { Command::Gats } else { Command::Gat });
    number(out, exptime.into());
    words(out, keys);
    out.extend_from_slice(LINE_END);
}

/// Appends a storage command with its data block. The CAS unique counts for `cas`, and for `lease-set`, whose token it is.
pub fn store(out: &mut Vec<u8>, store: &Store<'_>) {
    let value = |out: &mut Vec<u8>| out.extend_from_slice(store.value);
    store_made(out, store, store.key, store.value.len(), value);
}

/// Appends a storage command whose key and value are made on the way, in the place of those in `store`. `value` appends
/// `value_len` bytes.
pub fn store_made(out: &mut Vec<u8>, store: &Store<'_>, key: impl Key, value_len: usize, value: impl FnOnce(&mut Vec<u8>)) {
    let command = store.verb.command();
    begin(out, command);
    words(out, [key]);
    if command == Command::LeaseSet {
        unsigned(out, store.cas);
    }
    number(out, store.flags.into());
    number(out, store.exptime.into());
    number(out, value_len.try_into().unwrap_or(i64::MAX));
    if command == Command::Cas {
        unsigned(out, store.cas);
    }
    end(out, store.noreply);
    let start = out.len();
    value(out);
    debug_assert_eq!(
        out.len() - start,
        value_len,
        "the value has another length than its line says"
    );
    out.extend_from_slice(LINE_END);
}

/// Appends `delete <key>`.
pub fn delete(out: &mut Vec<u8>, key: impl Key, noreply: bool) {
    begin(out, Command::Delete);
    words(out, [key]);
    end(out, noreply);
}

/// Appends `incr <key> <delta>`, or `decr <key> <delta>`.
pub fn arithmetic(out: &mut Vec<u8>, key: impl Key, delta: u64, decrement: bool, noreply: bool) {
    begin(out, if decrement { Command::Decr } else { Command::Incr });
    words(out, [key]);
    unsigned(out, delta);
    end(out, noreply);
}

/// Appends `touch <key> <exptime>`.
pub fn touch(out: &mut Vec<u8>, key: &[u8], exptime: i32, noreply: bool) {
    begin(out, Command::Touch);
    words(out, [key]);
    number(out, exptime.into());
    end(out, noreply);
}

/// Appends a command that has no function of its own here (those that are not about items, `mn`, `lease-get`): its name and arguments.
pub fn other<'w>(out: &mut Vec<u8>, command: Command, arguments: impl IntoIterator<Item = &'w [u8]>) {
    begin(out, command);
    words(out, arguments);
    out.extend_from_slice(LINE_END);
}

/// Appends a meta command about a key, with its flags as given (each with its argument, separated by spaces), and for `ms` with the
/// value. A key that a line cannot hold is sent in base64, with flag `b`.
pub fn meta(out: &mut Vec<u8>, command: Command, key: &[u8], value: Option<&[u8]>, flags: &str) {
    meta_as(out, command, key, key.is_empty() || !is_plain(key), value, flags);
}

/// Appends a meta command about a key of opaque bytes, which the server is to keep as such: it is sent in base64 even if a line
/// could hold it.
pub fn meta_opaque(out: &mut Vec<u8>, command: Command, key: &[u8], value: Option<&[u8]>, flags: &str) {
    meta_as(out, command, key, true, value, flags);
}

fn meta_as(out: &mut Vec<u8>, command: Command, key: &[u8], in_base64: bool, value: Option<&[u8]>, flags: &str) {
    begin(out, command);
    out.push(b' ');
    if in_base64 {
        base64::encode(out, key);
    } else {
        out.extend_from_slice(key);
    }
    if let Some(value) = value {
        number(out, value.len().try_into().unwrap_or(i64::MAX));
    }
    if in_base64 {
        out.extend_from_slice(b" b");
    }
    words(out, tokens(flags.as_bytes()));
    out.extend_from_slice(LINE_END);
    if let Some(value) = value {
        out.extend_from_slice(value);
        out.extend_from_slice(LINE_END);
    }
}

fn begin(out: &mut Vec<u8>, command: Command) {
    out.extend_from_slice(command.facts().name);
}

fn words(out: &mut Vec<u8>, words: impl IntoIterator<Item: Key>) {
    for word in words {
        out.push(b' ');
        word.append_to(out);
    }
}

fn number(out: &mut Vec<u8>, number: i64) {
    out.extend_from_slice(if number < 0 { b" -" } else { b" " });
    decimal(out, number.unsigned_abs());
}

fn unsigned(out: &mut Vec<u8>, number: u64) {
    out.push(b' ');
    decimal(out, number);
}

fn end(out: &mut Vec<u8>, noreply: bool) {
    out.extend_from_slice(if noreply { NOREPLY } else { b"" });
    out.extend_from_slice(LINE_END);
}

/// What the first bytes of the input are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// No complete answer yet; not worth calling again before the input holds `need` bytes.
    Incomplete {
        /// total length of the input to wait for, always more than there is
        need: usize,
    },
    /// A complete answer, or a complete piece of a longer one (of items or statistics).
    Answer {
        /// its length
        consumed: usize,
        /// what it says
        answer: Answer<'a>,
    },
    /// Bytes that no server sends, and why not: it is unknown where the next answer begins.
    Broken(&'static str),
}

/// A server's answer, or one piece of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer<'a> {
    /// `VALUE <key> <flags> <bytes> [<cas unique>]` and its data block; more may follow, up to [`Answer::End`]
    Value {
        /// as the client asked for it
        key: &'a [u8],
        /// client flags
        flags: u32,
        /// only for `gets` and `gats`
        cas: Option<u64>,
        /// the data block, without its line end
        value: &'a [u8],
    },
    /// `END`: the end of items, of statistics, of a dump
    End,
    /// `STORED`
    Stored,
    /// `NOT_STORED`
    NotStored,
    /// `EXISTS`
    Exists,
    /// `NOT_FOUND`
    NotFound,
    /// `DELETED`
    Deleted,
    /// `TOUCHED`
    Touched,
    /// `OK`
    Ok,
    /// the value after `incr` or `decr`
    Number(u64),
    /// `STAT <name> <value>`; more may follow, up to [`Answer::End`]
    Stat {
        /// without spaces
        name: &'a [u8],
        /// the rest of the line
        value: &'a [u8],
    },
    /// `VERSION <version>`
    Version(&'a [u8]),
    /// two letters, and what follows them: an answer to a meta command
    Meta {
        /// `HD`, `VA`, `EN`, `NF`, `NS`, `EX`, `MN` or `ME`
        code: [u8; 2],
        /// the words after the code, or after the length for `VA`
        flags: Tokens<'a>,
        /// only for `VA`, without its line end
        value: Option<&'a [u8]>,
    },
    /// `ERROR`, `CLIENT_ERROR <text>` or `SERVER_ERROR <text>`: the whole line
    Error(&'a [u8]),
    /// any other line: of a dump, of a watcher, of a sub-command
    Line(&'a [u8]),
}

impl<'a> Answer<'a> {
    /// The argument of a meta answer's flag; empty if the flag has none.
    pub fn flag(&self, letter: u8) -> Option<&'a [u8]> {
        let Self::Meta { flags, .. } = self else { return None };
        flags.clone().find_map(|flag| flag.strip_prefix(&[letter]))
    }
}

/// Reads the first answer of `input`.
pub fn receive(input: &[u8]) -> Received<'_> {
    let head = input.get(..LINE_MAX).unwrap_or(input);
    let Some(line_len) = find_byte(head, b'\n') else {
        return if head.len() < LINE_MAX {
            Received::Incomplete { need: input.len() + 1 }
        } else {
            Received::Broken("a line without an end")
        };
    };
    let line = head.get(..line_len).unwrap_or_default();
    let Some(line) = line.strip_suffix(b"\r").or_else(|| ends_bare(line).then_some(line)) else {
        return Received::Broken("a line that ends without a carriage return");
    };
    let consumed = line_len + 1;
    let mut words = tokens(line);
    let answer = match words.next().unwrap_or_default() {
        // A decrement pads the shorter number with spaces.
        digits @ [b'0'..=b'9', ..] => match (parse_u64(digits), words.next()) {
            (Some(number), None) => Answer::Number(number),
            _ => Answer::Line(line),
        },
        b"VALUE" => return item(input, consumed, words),
        b"VA" => return meta_value(input, consumed, words),
        b"END" => Answer::End,
        b"STORED" => Answer::Stored,
        b"NOT_STORED" => Answer::NotStored,
        b"EXISTS" => Answer::Exists,
        b"NOT_FOUND" => Answer::NotFound,
        b"DELETED" => Answer::Deleted,
        b"TOUCHED" => Answer::Touched,
        b"OK" => Answer::Ok,
        b"VERSION" => Answer::Version(words.rest()),
        b"STAT" => Answer::Stat {
            name: words.next().unwrap_or_default(),
            value: words.rest(),
        },
        b"ERROR" | b"CLIENT_ERROR" | b"SERVER_ERROR" | b"SERVER_ERROR:" => Answer::Error(line),
        &[a, b] if matches!(&[a, b], b"HD" | b"EN" | b"NF" | b"NS" | b"EX" | b"MN" | b"ME") => Answer::Meta {
            code: [a, b],
            flags: words,
            value: None,
        },
        _ => Answer::Line(line),
    };
    Received::Answer { consumed, answer }
}

/// memcached ends the lines of a dump, and of its log, with `\n` alone.
fn ends_bare(line: &[u8]) -> bool {
    line.starts_with(b"key=") || line.starts_with(b"ts=") || line.starts_with(b"mg ")
}

/// `VALUE <key> <flags> <bytes> [<cas unique>]`; the first word has been read.
fn item<'a>(input: &'a [u8], line_len: usize, mut words: Tokens<'a>) -> Received<'a> {
    let (key, flags) = (words.next(), words.next().and_then(parse_u32));
    let (len, cas) = (words.next().and_then(length), words.next());
    let cas = cas.map(parse_u64);
    let (Some(key), Some(flags), Some(len), None | Some(Some(_))) = (key, flags, len, cas) else {
        return Received::Broken("no line of a get's answer");
    };
    block(input, line_len, len, |value| Answer::Value {
        key,
        flags,
        cas: cas.flatten(),
        value,
    })
}

/// `VA <bytes> <flags>*`; the first word has been read.
fn meta_value<'a>(input: &'a [u8], line_len: usize, mut words: Tokens<'a>) -> Received<'a> {
    let Some(len) = words.next().and_then(length) else {
        return Received::Broken("no line of a meta get's answer");
    };
    block(input, line_len, len, |value| Answer::Meta {
        code: *b"VA",
        flags: words,
        value: Some(value),
    })
}

fn length(word: &[u8]) -> Option<usize> {
    let len = usize::try_from(parse_u64(word)?).ok()?;
    (len <= VALUE_MAX).then_some(len)
}

/// The answer that has a data block of `len` bytes.
fn block<'a>(input: &'a [u8], line_len: usize, len: usize, answer: impl FnOnce(&'a [u8]) -> Answer<'a>) -> Received<'a> {
    let need = line_len + len + LINE_END.len();
    let Some(block) = input.get(line_len..need) else {
        return Received::Incomplete { need };
    };
    match block.split_at_checked(len) {
        Some((value, LINE_END)) => Received::Answer {
            consumed: need,
            answer: answer(value),
        },
        _ => Received::Broken("a value that is longer or shorter than its line says"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Meta;
    use crate::command::EXAMPLE_KEY;
    use crate::reply::{self, ItemFacts, MetaCode, MetaCommand};
    use crate::request::{Request, StoreVerb};
    use crate::{Decoded, Decoder, Limits};
    use std::collections::BTreeSet;

    const KEY: &[u8] = EXAMPLE_KEY.as_bytes();

    fn with(write: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
        let mut out = Vec::new();
        write(&mut out);
        out
    }

    fn stores(verb: StoreVerb) -> (Command, Vec<u8>) {
        let request = Store {
            verb,
            key: KEY,
            flags: 0,
            exptime: 0,
            cas: if verb == StoreVerb::Lease { 2 } else { 1 },
            noreply: false,
            value: b"1",
        };
        (verb.command(), with(|out| store(out, &request)))
    }

    #[test]
    fn each_command_about_items_is_written_as_its_example() {
        let written = [
            (Command::Get, with(|out| get(out, false, [KEY]))),
            (Command::Gets, with(|out| get(out, true, [KEY]))),
            (Command::Gat, with(|out| get_and_touch(out, 0, false, [KEY]))),
            (Command::Gats, with(|out| get_and_touch(out, 0, true, [KEY]))),
            (Command::LeaseGet, with(|out| other(out, Command::LeaseGet, [KEY]))),
            (Command::Delete, with(|out| delete(out, KEY, false))),
            (Command::Incr, with(|out| arithmetic(out, KEY, 1, false, false))),
            (Command::Decr, with(|out| arithmetic(out, KEY, 1, true, false))),
            (Command::Touch, with(|out| touch(out, KEY, 0, false))),
            (Command::MetaGet, with(|out| meta(out, Command::MetaGet, KEY, None, "v"))),
            (Command::MetaSet, with(|out| meta(out, Command::MetaSet, KEY, Some(b"1"), ""))),
            (Command::MetaDelete, with(|out| meta(out, Command::MetaDelete, KEY, None, ""))),
            (
                Command::MetaArithmetic,
                with(|out| meta(out, Command::MetaArithmetic, KEY, None, "")),
            ),
            (Command::MetaDebug, with(|out| meta(out, Command::MetaDebug, KEY, None, ""))),
            stores(StoreVerb::Set),
            stores(StoreVerb::Add),
            stores(StoreVerb::Replace),
            stores(StoreVerb::Append),
            stores(StoreVerb::Prepend),
            stores(StoreVerb::Cas),
            stores(StoreVerb::Lease),
        ];
        for (command, bytes) in &written {
            assert_eq!(bytes, command.facts().example, "{command:?}");
        }
        let has_key = |command: &&Command| command.facts().example.windows(KEY.len()).any(|part| part == KEY);
        let names: BTreeSet<_> = written.iter().map(|(command, _)| command.name()).collect();
        let expected: BTreeSet<_> = Command::ALL.iter().filter(has_key).map(|command| command.name()).collect();
        assert_eq!(names, expected, "no function here writes one of them");
        for &command in Command::ALL.iter().filter(|command| !has_key(command)) {
            let example = command.facts().example;
            let arguments = tokens(example.trim_ascii_end()).skip(1);
            assert_eq!(with(|out| other(out, command, arguments)), example);
        }
    }

    #[test]
    fn silence_and_arguments_arrive() {
        let silent = [
            with(|out| delete(out, KEY, true)),
            with(|out| arithmetic(out, KEY, u64::MAX, true, true)),
            with(|out| touch(out, KEY, -1, true)),
        ];
        for bytes in silent {
            let Decoded::Request { request, .. } = Decoder::new(Limits::default()).decode(&bytes) else {
                panic!("{bytes:?}");
            };
            let (Request::Delete { noreply, .. } | Request::Arithmetic { noreply, .. } | Request::Touch { noreply, .. }) =
                request
            else {
                panic!("{request:?}");
            };
            assert!(noreply);
        }
    }

    #[test]
    fn keys_that_no_line_holds_go_in_base64() {
        for key in [&b"two words"[..], b"line\r\nend", b"\0"] {
            let bytes = with(|out| meta(out, Command::MetaSet, key, Some(b"v"), "k"));
            let Decoded::Request {
                request: Request::Meta(Meta::Set(set)),
                consumed,
            } = Decoder::new(Limits::default()).decode(&bytes)
            else {
                panic!("{bytes:?}");
            };
            assert_eq!((set.key.stored(), set.value, consumed), (key, &b"v"[..], bytes.len()));
        }
    }

    fn received(bytes: &[u8]) -> Answer<'_> {
        for len in 0..bytes.len() {
            let early = receive(bytes.get(..len).unwrap_or_default());
            assert!(
                matches!(early, Received::Incomplete { need } if need > len && need <= bytes.len()),
                "{len}: {early:?}"
            );
        }
        match receive(bytes) {
            Received::Answer { consumed, answer } if consumed == bytes.len() => answer,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_the_servers_half_writes_is_heard() {
        let item = [&with(|out| reply::value(out, b"k", 7, 5, Some(9)))[..], b"a\r\nbc\r\n"].concat();
        let value = Answer::Value {
            key: b"k",
            flags: 7,
            cas: Some(9),
            value: b"a\r\nbc",
        };
        assert_eq!(received(&item), value);
        for (bytes, answer) in [
            (reply::END, Answer::End),
            (reply::STORED, Answer::Stored),
            (reply::NOT_STORED, Answer::NotStored),
            (reply::EXISTS, Answer::Exists),
            (reply::NOT_FOUND, Answer::NotFound),
            (reply::DELETED, Answer::Deleted),
            (reply::TOUCHED, Answer::Touched),
            (reply::OK, Answer::Ok),
            (reply::ERROR, Answer::Error(b"ERROR")),
            (reply::SHUTDOWN_DISABLED, Answer::Error(b"SERVER_ERROR: shutdown not enabled")),
            (reply::TOO_LARGE, Answer::Error(b"SERVER_ERROR object too large for cache")),
            (reply::RESET, Answer::Line(b"RESET")),
            (b"12\r\n", Answer::Number(12)),
            (
                b"STAT version 1.6.45 beta\r\n",
                Answer::Stat {
                    name: b"version",
                    value: b"1.6.45 beta",
                },
            ),
            (b"VERSION 1.6.45\r\n", Answer::Version(b"1.6.45")),
        ] {
            assert_eq!(received(bytes), answer);
        }
        let Decoded::Request {
            request: Request::Meta(Meta::Get(get)),
            ..
        } = Decoder::new(Limits::default()).decode(b"mg key v t c Oabc\r\n")
        else {
            panic!("a meta get");
        };
        let facts = ItemFacts {
            key: b"key",
            value_len: 2,
            cas: 41,
            ..ItemFacts::default()
        };
        let mut bytes = with(|out| reply::meta(out, MetaCommand::Get, MetaCode::Value, &get.flags, &facts));
        bytes.extend_from_slice(b"hi\r\n");
        let answer = received(&bytes);
        assert_eq!(
            [b't', b'c', b'O', b'x'].map(|letter| answer.flag(letter)),
            [Some(&b"-1"[..]), Some(b"41"), Some(b"abc"), None]
        );
        assert!(matches!(
            answer,
            Answer::Meta {
                code: [b'V', b'A'],
                value: Some(b"hi"),
                ..
            }
        ));
    }

    #[test]
    fn keys_and_values_that_are_made_on_the_way_are_those_that_are_there() {
        fn made(out: &mut Vec<u8>) {
            out.extend_from_slice(KEY);
        }
        let request = Store {
            verb: StoreVerb::Cas,
            key: KEY,
            flags: u32::MAX,
            exptime: -5,
            cas: u64::MAX,
            noreply: true,
            value: b"abc",
        };
        let absent = Store {
            key: b"",
            value: b"",
            ..request.clone()
        };
        let on_the_way = with(|out| store_made(out, &absent, made, 3, |out| out.extend_from_slice(b"abc")));
        assert_eq!(on_the_way, with(|out| store(out, &request)));
        let line = b" 4294967295 -5 3 18446744073709551615 noreply\r\nabc\r\n";
        assert_eq!(on_the_way, [b"cas ", KEY, line].concat());
        assert_eq!(
            with(|out| get(out, true, [made, made])),
            with(|out| get(out, true, [KEY, KEY]))
        );
        assert_eq!(with(|out| delete(out, made, false)), with(|out| delete(out, KEY, false)));
        assert_eq!(
            with(|out| arithmetic(out, made, 7, true, false)),
            with(|out| arithmetic(out, KEY, 7, true, false))
        );
    }

    #[test]
    fn what_no_server_sends_breaks_the_conversation() {
        for (wrong, why) in [
            (&b"VALUE k 0 1\r\nabc\r\n"[..], "longer or shorter"),
            (b"VALUE k 0\r\n", "get's answer"),
            (b"VALUE k 0 x\r\n", "get's answer"),
            (b"VALUE k 0 1 x\r\na\r\n", "get's answer"),
            (b"VALUE k 0 99999999999\r\n", "get's answer"),
            (b"VA\r\n", "meta get's answer"),
            (b"VA 1\r\nabc", "longer or shorter"),
            (b"STORED\n", "carriage return"),
            (&[b'x'; LINE_MAX], "without an end"),
        ] {
            let received = receive(wrong);
            assert!(
                matches!(received, Received::Broken(said) if said.contains(why)),
                "{:?}: {received:?}",
                wrong.get(..20)
            );
        }
    }
}
