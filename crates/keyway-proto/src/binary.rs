//! The binary protocol: decodes packets into requests, and writes their answers.
//!
//! A packet is a header of 24 bytes and a body: extras, key, value, in this order. All numbers are big-endian.
//!
//! ```text
//! 0        1        2        4        5        6        8        12       16       24
//! | magic  | opcode | key    | extras | type   | status | body   | opaque | CAS    | extras, key, value
//! |        |        | length | length |        |        | length |        |        |
//! ```
//!
//! Which packets are refused, with which text, and whether the connection is then closed, is as in memcached (`docs/protocol.md`, "Binary
//! protocol"). The norm is memcached's `protocol_binary.h` and its wiki's page "BinaryProtocolRevamped".

use crate::command::Command;
use crate::decode::{Decoded, RefusedData, is_too_large};
use crate::request::{KEY_LEN_MAX, MetaKey, Request, StoreVerb};

/// First byte of a request; a connection that begins with it speaks the binary protocol.
pub const REQUEST: u8 = 0x80;
/// First byte of an answer.
pub const ANSWER: u8 = 0x81;
/// Length of a header.
pub const HEADER_LEN: usize = 24;
/// Longest body; memcached's largest possible item (`-I`) is not longer.
const BODY_LEN_MAX: usize = 1 << 30;
/// Longest data of a SASL packet, bytes; memcached takes as much as an item may have, from every client that has not logged in.
pub const SASL_DATA_MAX: usize = 2048;
/// The exptime of `incr` and `decr` that means: do not create the item.
const DO_NOT_CREATE: u32 = u32::MAX;

/// The status of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the norm's names")]
pub enum Status {
    Success = 0x00,
    KeyNotFound = 0x01,
    KeyExists = 0x02,
    ValueTooLarge = 0x03,
    InvalidArguments = 0x04,
    NotStored = 0x05,
    NonNumeric = 0x06,
    AuthenticationError = 0x20,
    AuthenticationContinues = 0x21,
    UnknownCommand = 0x81,
    OutOfMemory = 0x82,
    InternalError = 0x84,
}

impl Status {
    /// memcached's text for it, which is the body of an error.
    pub fn text(self) -> &'static [u8] {
        match self {
            Self::Success | Self::AuthenticationContinues => b"",
            Self::KeyNotFound => b"Not found",
            Self::KeyExists => b"Data exists for key.",
            Self::ValueTooLarge => b"Too large.",
            Self::InvalidArguments => b"Invalid arguments",
            Self::NotStored => b"Not stored.",
            Self::NonNumeric => b"Non-numeric server-side value for incr or decr",
            Self::AuthenticationError => b"Auth failure.",
            Self::UnknownCommand => b"Unknown command",
            Self::OutOfMemory => b"Out of memory allocating item",
            Self::InternalError => b"Internal error",
        }
    }
}

/// The parts of a request that its answer repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// the operation, as sent
    pub opcode: u8,
    /// bytes that have a meaning only for the client
    pub opaque: [u8; 4],
}

/// A request in the binary protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// the parts that its answer repeats
    pub head: Head,
    /// leave out the answers that the norm leaves out for quiet commands: misses of gets, successes of the others
    pub quiet: bool,
    /// the operation with its arguments
    pub operation: Operation<'a>,
}

/// The operation of a request, with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields are what the text protocol has under the same names")]
pub enum Operation<'a> {
    /// `get`, `getk`, `touch`, `gat`, `gatk`
    Get {
        key: &'a [u8],
        /// answer with the key, also on a miss
        with_key: bool,
        /// answer with the value: all but `touch`
        with_value: bool,
        /// new exptime
        exptime: Option<u32>,
    },
    /// `set`, `add`, `replace`, `append`, `prepend`; a CAS unique other than 0 makes each of the first three a `cas`
    Store {
        verb: StoreVerb,
        key: &'a [u8],
        value: &'a [u8],
        flags: u32,
        exptime: u32,
        cas: u64,
    },
    Delete {
        key: &'a [u8],
        cas: u64,
    },
    Arithmetic {
        key: &'a [u8],
        decrement: bool,
        delta: u64,
        /// value and exptime of the item that a miss creates
        create: Option<(u64, u32)>,
        cas: u64,
    },
    Flush {
        exptime: u32,
    },
    Noop,
    Version,
    Quit,
    /// `stat`; the key names the group, and is empty for the general one
    Stat {
        argument: &'a [u8],
    },
    /// a step of a login; the text protocol has another form of it
    Sasl {
        step: SaslStep,
        mechanism: &'a [u8],
        data: &'a [u8],
    },
    /// refused: it must not be executed
    Refuse {
        status: Status,
        /// the connection is closed after the answer
        close: bool,
    },
}

/// The commands of SASL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SaslStep {
    /// `sasl list mechs`: which mechanisms the server has
    List,
    /// `sasl auth`: the mechanism, and its first data if there is any
    Start,
    /// `sasl step`: more data
    Continue,
}

/// What a packet is, as far as its header says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Front {
    /// what its answer repeats
    pub head: Head,
    /// bytes after the header
    pub body_len: usize,
    /// `None`: neither of those that are answered before a login
    pub before_login: Option<EarlyPacket>,
}

/// The packets that are answered on a connection that has to log in first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EarlyPacket {
    /// `version`
    Version,
    /// `quit`, or its quiet form
    Quit {
        /// without an answer
        quiet: bool,
    },
    /// a step of a login
    Sasl,
}

/// Looks at the header of the first packet, without waiting for its body. `None`: the header is not complete.
pub fn front(input: &[u8]) -> Option<Front> {
    let header = Header::open(input)?;
    let (opcode, quiet) = plain(header.opcode);
    Some(Front {
        head: header.head(),
        body_len: header.body_len,
        before_login: match opcode {
            0x07 => Some(EarlyPacket::Quit { quiet }),
            0x0b => Some(EarlyPacket::Version),
            0x20..=0x22 => Some(EarlyPacket::Sasl),
            _ => None,
        },
    })
}

impl Operation<'_> {
    /// The command of the text protocol that does the same; `None` for a step of SASL, and for a packet that is refused.
    pub const fn in_text(&self) -> Option<Command> {
        Some(match self {
            Self::Get {
                with_value: false,
                exptime: Some(_),
                ..
            } => Command::Touch,
            Self::Get { exptime: Some(_), .. } => Command::Gats,
            Self::Get { exptime: None, .. } => Command::Gets,
            Self::Store { verb, .. } => verb.command(),
            Self::Delete { .. } => Command::Delete,
            Self::Arithmetic { decrement: false, .. } => Command::Incr,
            Self::Arithmetic { decrement: true, .. } => Command::Decr,
            Self::Flush { .. } => Command::FlushAll,
            Self::Noop => Command::MetaNoop,
            Self::Version => Command::Version,
            Self::Quit => Command::Quit,
            Self::Stat { .. } => Command::Stats,
            Self::Sasl { .. } | Self::Refuse { .. } => return None,
        })
    }

    /// Its key, if it is about an item.
    pub(crate) const fn key(&self) -> Option<&[u8]> {
        match self {
            Self::Get { key, .. } | Self::Store { key, .. } | Self::Delete { key, .. } | Self::Arithmetic { key, .. } => {
                Some(key)
            }
            Self::Flush { .. }
            | Self::Noop
            | Self::Version
            | Self::Quit
            | Self::Stat { .. }
            | Self::Sasl { .. }
            | Self::Refuse { .. } => None,
        }
    }
}

/// A decoded header.
struct Header {
    opcode: u8,
    key_len: usize,
    extras_len: usize,
    body_len: usize,
    opaque: [u8; 4],
    cas: u64,
}

impl Header {
    /// The header at the front of `input`, if it is complete.
    fn open(input: &[u8]) -> Option<Self> {
        let header = input.first_chunk::<HEADER_LEN>()?;
        let [_, opcode, k1, k0, extras, _, _, _, b3, b2, b1, b0, o0, o1, o2, o3, cas @ ..] = *header;
        Some(Self {
            opcode,
            key_len: u16::from_be_bytes([k1, k0]).into(),
            extras_len: extras.into(),
            body_len: usize::try_from(u32::from_be_bytes([b3, b2, b1, b0])).unwrap_or(usize::MAX),
            opaque: [o0, o1, o2, o3],
            cas: u64::from_be_bytes(cas),
        })
    }
}

/// A packet's parts: those that must have arrived before the packet is judged, and the value if it has arrived too.
struct Parts<'a> {
    header: Header,
    extras: &'a [u8],
    key: &'a [u8],
    /// bytes after the key that have arrived
    rest: &'a [u8],
    value_len: usize,
}

/// Decodes the first packet of `input`. `refused` takes the value of a packet that is refused but does not end the connection.
pub(crate) fn decode<'a>(input: &'a [u8], item_size_max: usize, refused: &mut RefusedData) -> Decoded<'a> {
    match input.first() {
        None => return Decoded::Incomplete { need: 1 },
        Some(&REQUEST) => {}
        // As memcached: without an answer.
        Some(_) => {
            return Decoded::Refused {
                consumed: input.len(),
                reply: b"",
                close: true,
            };
        }
    }
    let Some(header) = Header::open(input) else {
        return Decoded::Incomplete { need: HEADER_LEN };
    };
    let key_at = HEADER_LEN + header.extras_len;
    let value_at = key_at + header.key_len;
    let (Some(extras), Some(key), Some(rest)) = (
        input.get(HEADER_LEN..key_at),
        input.get(key_at..value_at),
        input.get(value_at..),
    ) else {
        return Decoded::Incomplete { need: value_at };
    };
    let Some(value_len) = header.body_len.checked_sub(header.extras_len + header.key_len) else {
        return answer_error(header.head(), value_at, Status::UnknownCommand, true);
    };
    if header.body_len > BODY_LEN_MAX || header.key_len > KEY_LEN_MAX {
        return answer_error(header.head(), value_at, Status::InvalidArguments, true);
    }
    let parts = Parts {
        header,
        extras,
        key,
        rest,
        value_len,
    };
    parts.decode(value_at, item_size_max, refused)
}

impl<'a> Parts<'a> {
    fn decode(self, value_at: usize, item_size_max: usize, refused: &mut RefusedData) -> Decoded<'a> {
        let (opcode, quiet) = plain(self.header.opcode);
        let Some(operation) = self.operation(opcode) else {
            return match opcode {
                // SASL with too much data, and all unknown commands: their bodies are dropped.
                0x20 if self.header.body_len > 0 => answer_error(self.header.head(), value_at, Status::InvalidArguments, true),
                0x21 | 0x22 if !self.extras.is_empty() || self.key.is_empty() => {
                    answer_error(self.header.head(), value_at, Status::InvalidArguments, true)
                }
                0x00..=0x10 | 0x1c | 0x1d | 0x23 => answer_error(self.header.head(), value_at, Status::InvalidArguments, true),
                _ => self.answer_error_after_value(value_at, Status::UnknownCommand, refused),
            };
        };
        if let Operation::Store { key, flags, .. } = &operation {
            if is_too_large(item_size_max, key, *flags, self.value_len as u64) {
                let len = self.value_len as u64;
                *refused = RefusedData::packet(len, self.header.head(), Status::ValueTooLarge);
                return Decoded::TooLarge {
                    consumed: value_at,
                    // Also for a `set` with a CAS unique.
                    forget: (opcode == 0x01).then(|| MetaKey::new(self.key, None)),
                };
            }
            if self.rest.len() < self.value_len {
                return Decoded::Incomplete {
                    need: value_at + self.value_len,
                };
            }
        }
        if matches!(operation, Operation::Sasl { .. }) && self.rest.len() < self.value_len {
            return Decoded::Incomplete {
                need: value_at + self.value_len,
            };
        }
        let value_len = match operation {
            Operation::Store { .. } | Operation::Sasl { .. } => self.value_len,
            _ => 0,
        };
        Decoded::Request {
            consumed: value_at + value_len,
            request: Request::Binary(Packet {
                head: self.header.head(),
                quiet,
                operation,
            }),
        }
    }

    /// The operation, if the packet has the parts that it needs. The value may not have arrived yet.
    fn operation(&self, opcode: u8) -> Option<Operation<'a>> {
        let (key, cas) = (self.key, self.header.cas);
        let has = |has_extras: bool, has_key: bool, has_value: bool| {
            has_extras && key.is_empty() != has_key && (has_value || self.value_len == 0)
        };
        let no_extras = self.extras.is_empty();
        match opcode {
            0x00 | 0x0c if has(no_extras, true, false) => Some(Operation::Get {
                key,
                with_key: opcode == 0x0c,
                with_value: true,
                exptime: None,
            }),
            // A value is allowed, and is read as the next packet: memcached does not look at any of it.
            0x1c | 0x1d | 0x23 if !key.is_empty() => Some(Operation::Get {
                key,
                with_key: opcode == 0x23,
                with_value: opcode != 0x1c,
                exptime: Some(u32::from_be_bytes(*self.extras.as_array()?)),
            }),
            0x01..=0x03 => {
                let [f0, f1, f2, f3, e0, e1, e2, e3] = *self.extras.as_array::<8>()?;
                let verb = match (cas, opcode) {
                    (0, 0x01) => StoreVerb::Set,
                    (0, 0x02) => StoreVerb::Add,
                    (0, _) => StoreVerb::Replace,
                    _ => StoreVerb::Cas,
                };
                has(true, true, true).then_some(Operation::Store {
                    verb,
                    key,
                    value: self.value(),
                    flags: u32::from_be_bytes([f0, f1, f2, f3]),
                    exptime: u32::from_be_bytes([e0, e1, e2, e3]),
                    cas,
                })
            }
            0x0e | 0x0f if has(no_extras, true, true) => Some(Operation::Store {
                verb: if opcode == 0x0e {
                    StoreVerb::Append
                } else {
                    StoreVerb::Prepend
                },
                key,
                value: self.value(),
                flags: 0,
                exptime: 0,
                cas,
            }),
            0x04 if has(no_extras, true, false) => Some(Operation::Delete { key, cas }),
            0x05 | 0x06 => {
                let extras = self.extras.as_array::<20>()?;
                let (delta, rest) = extras.split_first_chunk::<8>()?;
                let (initial, exptime) = rest.split_first_chunk::<8>()?;
                let exptime = u32::from_be_bytes(*exptime.as_array()?);
                has(true, true, false).then_some(Operation::Arithmetic {
                    key,
                    decrement: opcode == 0x06,
                    delta: u64::from_be_bytes(*delta),
                    create: (exptime != DO_NOT_CREATE).then_some((u64::from_be_bytes(*initial), exptime)),
                    cas,
                })
            }
            0x08 if no_extras && has(true, false, false) => Some(Operation::Flush { exptime: 0 }),
            0x08 => has(true, false, false).then_some(Operation::Flush {
                exptime: u32::from_be_bytes(*self.extras.as_array()?),
            }),
            0x07 if has(no_extras, false, false) => Some(Operation::Quit),
            0x0a if has(no_extras, false, false) => Some(Operation::Noop),
            0x0b if has(no_extras, false, false) => Some(Operation::Version),
            0x10 if no_extras => Some(Operation::Stat { argument: key }),
            0x20 if self.header.body_len == 0 => Some(self.sasl(SaslStep::List)),
            0x21 | 0x22 if has(no_extras, true, true) && self.value_len <= SASL_DATA_MAX => {
                Some(self.sasl(if opcode == 0x21 { SaslStep::Start } else { SaslStep::Continue }))
            }
            _ => None,
        }
    }

    fn sasl(&self, step: SaslStep) -> Operation<'a> {
        Operation::Sasl {
            step,
            mechanism: self.key,
            data: self.value(),
        }
    }

    fn value(&self) -> &'a [u8] {
        self.rest.get(..self.value_len).unwrap_or_default()
    }

    /// Refuses the packet; the answer is sent when its value has arrived.
    fn answer_error_after_value(self, value_at: usize, status: Status, refused: &mut RefusedData) -> Decoded<'a> {
        if self.value_len == 0 {
            return answer_error(self.header.head(), value_at, status, false);
        }
        *refused = RefusedData::packet(self.value_len as u64, self.header.head(), status);
        Decoded::Refused {
            consumed: value_at,
            reply: b"",
            close: false,
        }
    }
}

impl Header {
    fn head(&self) -> Head {
        Head {
            opcode: self.opcode,
            opaque: self.opaque,
        }
    }
}

/// A request whose only answer is this status.
pub(crate) fn answer_error<'a>(head: Head, consumed: usize, status: Status, close: bool) -> Decoded<'a> {
    Decoded::Request {
        consumed,
        request: Request::Binary(Packet {
            head,
            // Errors are answered even to quiet commands.
            quiet: false,
            operation: Operation::Refuse { status, close },
        }),
    }
}

/// The loud form of an opcode, and whether it was the quiet form.
fn plain(opcode: u8) -> (u8, bool) {
    match opcode {
        0x09 => (0x00, true),
        0x0d => (0x0c, true),
        0x11..=0x16 => (opcode - 0x10, true),
        0x17 | 0x18 => (opcode - 0x10, true),
        0x19 | 0x1a => (opcode - 0x0b, true),
        0x1e => (0x1d, true),
        0x24 => (0x23, true),
        _ => (opcode, false),
    }
}

/// Appends a request: its body is extras, key and value. `docs/protocol.md`, "The binary protocol", lists each command's extras.
pub fn request(out: &mut Vec<u8>, head: Head, cas: u64, body: [&[u8]; 3]) {
    packet(out, REQUEST, head, [0; 2], body.map(<[u8]>::len), cas);
    for part in body {
        out.extend_from_slice(part);
    }
}

/// Appends the header of an answer. `lengths` are in bytes. The body follows: extras, key, value.
pub fn header(out: &mut Vec<u8>, head: Head, status: Status, lengths: [usize; 3], cas: u64) {
    // Every status is less than 2^16.
    packet(out, ANSWER, head, (status as u16).to_be_bytes(), lengths, cas);
}

/// Appends the header of a packet.
#[inline]
fn packet(out: &mut Vec<u8>, magic: u8, head: Head, [s1, s0]: [u8; 2], [extras, key, value]: [usize; 3], cas: u64) {
    let clamp = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
    let [.., k1, k0] = clamp(key).to_be_bytes();
    let [.., extras_len] = clamp(extras).to_be_bytes();
    out.extend_from_slice(&[magic, head.opcode, k1, k0, extras_len, 0, s1, s0]);
    out.extend_from_slice(&clamp(extras + key + value).to_be_bytes());
    out.extend_from_slice(&head.opaque);
    out.extend_from_slice(&cas.to_be_bytes());
}

/// Appends an answer without a body.
pub fn done(out: &mut Vec<u8>, head: Head, cas: u64) {
    header(out, head, Status::Success, [0; 3], cas);
}

/// Appends an answer whose body is a value.
pub fn value(out: &mut Vec<u8>, head: Head, value: &[u8], cas: u64) {
    header(out, head, Status::Success, [0, 0, value.len()], cas);
    out.extend_from_slice(value);
}

/// Appends what precedes the value of a hit: header, client flags, and the key if it was asked for.
pub fn hit(out: &mut Vec<u8>, head: Head, key: Option<&[u8]>, flags: u32, value_len: usize, cas: u64) {
    let key = key.unwrap_or_default();
    header(out, head, Status::Success, [4, key.len(), value_len], cas);
    out.extend_from_slice(&flags.to_be_bytes());
    out.extend_from_slice(key);
}

/// Appends a miss that repeats its key.
pub fn miss(out: &mut Vec<u8>, head: Head, key: &[u8]) {
    header(out, head, Status::KeyNotFound, [0, key.len(), 0], 0);
    out.extend_from_slice(key);
}

/// Appends an error, with its standard text.
pub fn error(out: &mut Vec<u8>, head: Head, status: Status) {
    error_saying(out, head, status, status.text());
}

/// Appends an error with another text than its standard one.
pub fn error_saying(out: &mut Vec<u8>, head: Head, status: Status, text: &[u8]) {
    header(out, head, status, [0, 0, text.len()], 0);
    out.extend_from_slice(text);
}

/// Appends one of `stat`'s answers; the last one has neither name nor value.
pub fn stat(out: &mut Vec<u8>, head: Head, name: &[u8], value: &[u8]) {
    header(out, head, Status::Success, [0, name.len(), value.len()], 0);
    out.extend_from_slice(name);
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests;
