//! Decodes bytes into requests: where a request ends, which ones are refused, and which bytes are skipped.
//!
//! [`Decoder`] finds the command line and passes it to [`mod@line`], which knows the commands.
//! It keeps a few numbers and no bytes: how much of a refused data block is still to be skipped, what is answered after that, how far
//! the waiting bytes were searched for a line end, and whether a line of many keys has begun. So a declared length costs
//! nothing until its bytes arrive.
//!
//! A line of many keys that is longer than other lines may be ([`LINE_LEN_MAX`]) is decoded in pieces of that length, each a request
//! of its own. So neither its length nor its number of keys takes much memory or time: an answered piece needs no memory any more.

mod line;
#[cfg(test)]
mod tests;

use crate::binary;
use crate::command::{Command, ManyKeys};
use crate::request::{Keys, MetaKey, Request};
use crate::token::{Tokens, find_byte, parse_i32};

/// Longest command line, without its `\n`, except for the retrieval commands of many keys. memcached closes a
/// connection that has sent more than this without a line end.
pub const LINE_LEN_MAX: usize = 2048;
/// Longest value length that memcached's parser accepts; a larger one is a malformed line, not a value that is too large.
const VALUE_LEN_MAX: u64 = i32::MAX as u64 - 2;
/// What memcached adds to key and value when it compares an item with `-I`: its item header with CAS (56 bytes) and the
/// byte that ends the key. It is counted here so that Keyway and memcached refuse the same values.
const ITEM_OVERHEAD: u64 = 57;
/// Length of the longest name of a command whose line may be of any length.
const NAME_LEN_MAX: usize = {
    let (mut longest, mut at) = (0, Command::ALL);
    while let [command, rest @ ..] = at {
        let len = command.facts().name.len();
        if command.facts().many_keys.is_some() && len > longest {
            longest = len;
        }
        at = rest;
    }
    longest
};
/// The line end after every data block.
const LINE_END: &[u8] = b"\r\n";

pub(crate) const ERROR: &[u8] = b"ERROR\r\n";
pub(crate) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
pub(crate) const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
pub(crate) const BAD_CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
pub(crate) const TOO_LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";

/// The sizes above which the decoder refuses a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest item in bytes, counted as memcached's `-I` counts it: key, value and memcached's own item header.
    pub item_size_max: usize,
    /// How much of a line of many keys is checked before the first key is answered, bytes. A key in this part that is too long
    /// refuses the whole line, as in memcached, which checks lines of any length. Such a key after it ends the answer there.
    pub keys_checked_len: usize,
}

impl Default for Limits {
    /// Items of 1 MiB, as in memcached; 64 KiB of keys, which is about what a server reads at a time.
    fn default() -> Self {
        Self {
            item_size_max: 1 << 20,
            keys_checked_len: 64 << 10,
        }
    }
}

/// What the first bytes of the input are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decoded<'a> {
    /// No complete request yet; not worth calling again before the input holds `need` bytes.
    Incomplete {
        /// total length of the input to wait for, always more than there is
        need: usize,
    },
    /// A complete request.
    Request {
        /// its length, data block included
        consumed: usize,
        /// the request itself
        request: Request<'a>,
    },
    /// A value that is too large is arriving: drop `consumed` bytes, delete the item under `forget`. The reply follows when the
    /// value has arrived, because a client that is still sending does not expect one.
    TooLarge {
        /// how many bytes to drop
        consumed: usize,
        /// key whose item must be deleted, because this value should have replaced it
        forget: Option<MetaKey<'a>>,
    },
    /// Refused: drop `consumed` bytes, send `reply`, then close if `close`.
    Refused {
        /// how many bytes to drop
        consumed: usize,
        /// the complete reply, line end included; may be empty
        reply: &'static [u8],
        /// whether the connection ends here
        close: bool,
    },
}

/// The protocol of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// the one that the first byte belongs to
    #[default]
    Auto,
    /// text: classic and meta commands
    Text,
    /// binary packets
    Binary,
}

/// Decoder of one connection's byte stream.
///
/// The caller passes the bytes that are not consumed yet, again and again, each time with what has arrived since.
#[derive(Clone, Debug)]
pub struct Decoder {
    limits: Limits,
    protocol: Protocol,
    /// the rest of the data block of a refused request, which is to be dropped
    refused: RefusedData,
    /// leading bytes of the input that are known to hold no line end, so that a long line is searched once
    scanned: usize,
    /// the line whose middle the input begins with
    within: Within,
    /// the same before the latest request was decoded
    was_within: Within,
}

/// A line that has begun and not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Within {
    /// none
    Nothing,
    /// one of many keys
    Keys {
        /// its command
        command: ManyKeys,
        /// the exptime before its keys; 0 if the command takes none
        exptime: i32,
    },
    /// a refused line
    Refused,
}

/// What a decoder knows between two requests, for another one that continues with the same stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// the protocol; `Auto` if nothing has come
    pub protocol: Protocol,
    /// the line whose middle the input begins with
    pub within: Within,
}

impl Decoder {
    /// A decoder for a new connection, whose first byte decides its protocol.
    pub fn new(limits: Limits) -> Self {
        Self::speaking(limits, Protocol::Auto)
    }

    /// A decoder for a new connection with this protocol.
    pub fn speaking(limits: Limits, protocol: Protocol) -> Self {
        Self {
            limits,
            protocol,
            refused: RefusedData::default(),
            scanned: 0,
            within: Within::Nothing,
            was_within: Within::Nothing,
        }
    }

    /// A decoder that continues where another one was.
    pub fn continuing(limits: Limits, progress: Progress) -> Self {
        Self {
            within: progress.within,
            ..Self::speaking(limits, progress.protocol)
        }
    }

    /// The sizes above which it refuses a request.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// From now on items of this size are allowed ([`Limits::item_size_max`]).
    #[inline]
    pub fn allow_items_of(&mut self, size: usize) {
        self.limits.item_size_max = size;
    }

    /// What another decoder needs to continue here. `None`: the value of a refused request is being dropped.
    pub fn progress(&self) -> Option<Progress> {
        (!self.is_dropping()).then_some(Progress {
            protocol: self.protocol,
            within: self.within,
        })
    }

    /// From the next request on, the connection speaks this protocol. No request has begun.
    pub fn speak(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// The caller has not consumed the latest request: the next input begins with it again.
    pub fn repeat(&mut self) {
        self.within = self.was_within;
    }

    /// An error has ended the answer: the rest of the line of many keys gets no answer.
    pub fn end_answer(&mut self) {
        if self.within != Within::Nothing {
            self.within = Within::Refused;
        }
    }

    /// Whether the value of a refused request is being dropped.
    pub fn is_dropping(&self) -> bool {
        self.refused.len > 0
    }

    /// Whether the input begins with a request, and not in the middle of one that has been consumed in part.
    pub fn is_between_requests(&self) -> bool {
        !self.is_dropping() && self.within == Within::Nothing
    }

    /// Whether the first request of `input` is incomplete and lacks only its value.
    pub fn is_in_value(&self, input: &[u8]) -> bool {
        let head = input.get(..=LINE_LEN_MAX).unwrap_or(input);
        match self.protocol {
            Protocol::Binary => head.len() >= binary::HEADER_LEN,
            _ => find_byte(head, b'\n').is_some(),
        }
    }

    /// Decodes the first request of `input`.
    #[inline]
    pub fn decode<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
        if self.refused.len > 0 {
            return self.refused.skip(input);
        }
        self.was_within = self.within;
        if self.within != Within::Nothing {
            return self.go_on(input);
        }
        if self.protocol != Protocol::Text {
            return self.decode_other(input);
        }
        self.decode_text(input)
    }

    /// Decodes binary packets, and the first byte of a connection.
    fn decode_other<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
        match (self.protocol, input.first()) {
            (Protocol::Binary, _) => binary::decode(input, self.limits.item_size_max, &mut self.refused),
            (_, None) => Decoded::Incomplete { need: 1 },
            (_, Some(first)) => {
                self.protocol = if *first == binary::REQUEST {
                    Protocol::Binary
                } else {
                    Protocol::Text
                };
                self.decode(input)
            }
        }
    }

    #[inline]
    fn decode_text<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
        let searched = self.scanned.min(input.len());
        let Some(found) = input.get(searched..).and_then(|fresh| find_byte(fresh, b'\n')) else {
            return self.wait_for_line_end(input);
        };
        self.scanned = 0;
        let line_len = searched + found;
        let Some((line, rest)) = input.split_at_checked(line_len) else {
            return Decoded::Incomplete { need: input.len() + 1 };
        };
        if line_len > LINE_LEN_MAX {
            return self.begin_long(input, Some(line_len));
        }
        line::decode(line, rest.get(1..).unwrap_or_default(), self)
    }

    fn wait_for_line_end<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
        let many_keys = input.len() > LINE_LEN_MAX && many_keys(input).is_some();
        let len_max = if many_keys {
            self.limits.keys_checked_len
        } else {
            LINE_LEN_MAX
        };
        if input.len() > len_max {
            self.scanned = 0;
            return self.begin_long(input, None);
        }
        self.scanned = input.len();
        Decoded::Incomplete { need: input.len() + 1 }
    }

    /// Begins a line of more than [`LINE_LEN_MAX`] bytes, whose end may have arrived or not: checks as much of it as the
    /// limits say, and drops what precedes the first key.
    fn begin_long<'a>(&mut self, input: &'a [u8], line_len: Option<usize>) -> Decoded<'a> {
        let Some(command) = many_keys(input) else {
            return close(input.len());
        };
        let whole = line_len.filter(|&len| len <= self.limits.keys_checked_len);
        let text = match whole.and_then(|len| input.get(..len)) {
            Some(line) => line.strip_suffix(b"\r").unwrap_or(line),
            // A word that is cut off here is checked when it is complete.
            None => match input.get(..self.limits.keys_checked_len) {
                Some(part) => part
                    .iter()
                    .rposition(|&b| b == b' ')
                    .and_then(|end| part.get(..end))
                    .unwrap_or(part),
                None => input,
            },
        };
        let mut words = Tokens(text);
        // Skips the name, which is known already.
        words.next();
        let exptime = command.takes_exptime().then(|| words.next().unwrap_or_default());
        let exptime = exptime.map_or(Some(0), parse_i32);
        let keys = words.rest();
        let refusal = if keys.is_empty() {
            Some(BAD_FORMAT)
        } else if exptime.is_none() {
            Some(BAD_EXPTIME)
        } else if !line::are_keys(Tokens(keys)) {
            Some(BAD_FORMAT)
        } else {
            None
        };
        match (refusal, whole) {
            (Some(reply), Some(line_len)) => return answer_error(line_len + 1, reply),
            (Some(_), None) => self.within = Within::Refused,
            (None, _) => {
                self.within = Within::Keys {
                    command,
                    exptime: exptime.unwrap_or_default(),
                }
            }
        }
        answer_error(text.len() - keys.len(), refusal.unwrap_or_default())
    }

    /// The next piece of the line that has begun.
    fn go_on<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
        let Within::Keys { command, exptime } = self.within else {
            return self.drop_line(input);
        };
        let piece = input.get(..LINE_LEN_MAX).unwrap_or(input);
        let line_end = find_byte(piece, b'\n');
        let (text, consumed) = match (line_end, piece.iter().rposition(|&b| b == b' ')) {
            (Some(end), _) => (piece.get(..end).unwrap_or(piece), end + 1),
            (None, _) if piece.len() < LINE_LEN_MAX => return Decoded::Incomplete { need: input.len() + 1 },
            // Without the last word, which may be incomplete.
            (None, Some(end)) => (piece.get(..end).unwrap_or(piece), end + 1),
            (None, None) => (piece, piece.len()),
        };
        let is_last = line_end.is_some();
        let text = if is_last {
            text.strip_suffix(b"\r").unwrap_or(text)
        } else {
            text
        };
        self.within = if is_last { Within::Nothing } else { self.within };
        let words = Tokens(Tokens(text).rest());
        if !words.0.is_empty() && !line::are_keys(words.clone()) {
            self.end_answer();
            return answer_error(consumed, BAD_FORMAT);
        }
        let keys = Keys { words, is_last };
        let request = match command {
            ManyKeys::Get => Request::Get { keys, with_cas: false },
            ManyKeys::Gets => Request::Get { keys, with_cas: true },
            ManyKeys::Gat => Request::GetAndTouch {
                exptime,
                keys,
                with_cas: false,
            },
            ManyKeys::Gats => Request::GetAndTouch {
                exptime,
                keys,
                with_cas: true,
            },
        };
        Decoded::Request { consumed, request }
    }

    /// Drops the bytes of a refused line that have arrived.
    fn drop_line<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
        let line_end = find_byte(input, b'\n');
        if line_end.is_some() {
            self.within = Within::Nothing;
        }
        match line_end.map_or(input.len(), |end| end + 1) {
            0 => Decoded::Incomplete { need: 1 },
            consumed => discard(consumed),
        }
    }
}

/// The retrieval of many keys with which the line begins, if it does; such a line may be of any length.
fn many_keys(line: &[u8]) -> Option<ManyKeys> {
    let head = line.get(..NAME_LEN_MAX + 1).unwrap_or(line);
    let name = head.get(..find_byte(head, b' ')?)?;
    Command::named(name)?.facts().many_keys
}

/// The data block of a refused request. It is dropped as it arrives, and then the request is answered. memcached does the same, and
/// clients rely on it: a client that reads nothing before it has sent its value takes an earlier answer for a broken connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct RefusedData {
    /// bytes that are still to be dropped
    len: u64,
    answer: RefusedAnswer,
}

#[derive(Clone, Debug)]
enum RefusedAnswer {
    Text(&'static [u8]),
    Packet(binary::Head, binary::Status),
}

impl Default for RefusedAnswer {
    fn default() -> Self {
        Self::Text(b"")
    }
}

impl RefusedData {
    fn text(len: u64, reply: &'static [u8]) -> Self {
        Self {
            len,
            answer: RefusedAnswer::Text(reply),
        }
    }

    pub(crate) fn packet(len: u64, head: binary::Head, status: binary::Status) -> Self {
        Self {
            len,
            answer: RefusedAnswer::Packet(head, status),
        }
    }

    /// Drops what has arrived, and answers if that was all of it.
    fn skip<'a>(&mut self, input: &'a [u8]) -> Decoded<'a> {
        if input.is_empty() {
            return Decoded::Incomplete { need: 1 };
        }
        let consumed = usize::try_from(self.len).unwrap_or(usize::MAX).min(input.len());
        self.len -= consumed as u64;
        if self.len > 0 {
            return discard(consumed);
        }
        match std::mem::take(&mut self.answer) {
            RefusedAnswer::Text(reply) => answer_error(consumed, reply),
            RefusedAnswer::Packet(head, status) => binary::answer_error(head, consumed, status, false),
        }
    }
}

/// Whether memcached would refuse an item with `-I item_size_max`.
pub(crate) fn is_too_large(item_size_max: usize, key: &[u8], client_flags: u32, value_len: u64) -> bool {
    // Client flags take 4 bytes in memcached, and none when they are 0.
    let flags_len = if client_flags == 0 { 0 } else { 4 };
    let item_size = ITEM_OVERHEAD + key.len() as u64 + flags_len + value_len + LINE_END.len() as u64;
    item_size > item_size_max as u64
}

/// Bytes whose only answer is this error.
fn answer_error<'a>(consumed: usize, reply: &'static [u8]) -> Decoded<'a> {
    Decoded::Refused {
        consumed,
        reply,
        close: false,
    }
}

/// Bytes without an answer, at least for now.
fn discard<'a>(consumed: usize) -> Decoded<'a> {
    answer_error(consumed, b"")
}

fn close<'a>(consumed: usize) -> Decoded<'a> {
    Decoded::Refused {
        consumed,
        reply: b"",
        close: true,
    }
}

/// `reply`, or nothing if the client asked for no reply.
fn unless(noreply: bool, reply: &'static [u8]) -> &'static [u8] {
    if noreply { b"" } else { reply }
}
