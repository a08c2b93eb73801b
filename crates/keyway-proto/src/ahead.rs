//! The keys of requests that wait in a buffer, read off before the requests are decoded: for hints only.
//!
//! [`keys_ahead`] knows just enough of each request to find its key and its end. A decoder may see the same bytes otherwise (as
//! the value of a refused request, say, or as a key in base64), so nothing but a hint may depend on the keys.

use crate::binary;
use crate::token::{find_byte, parse_u32, tokens};

/// Bytes of a line that are searched for its end. A line of many keys may be longer: no key is looked for after it.
const LINE_AHEAD: usize = 320;

/// The first key of each request in `input`, up to one that is incomplete or not known to have a key.
///
/// ```
/// let keys: Vec<_> = keyway_proto::keys_ahead(b"get a\r\nset b 0 0 5\r\nget x\r\nmg c v\r\nstats\r\nget d\r\n").collect();
/// assert_eq!(keys, [b"a", b"b", b"c"]);
/// ```
#[inline]
pub fn keys_ahead(input: &[u8]) -> KeysAhead<'_> {
    KeysAhead(input)
}

/// The iterator of [`keys_ahead`]: what has not been looked at yet.
#[derive(Clone, Debug)]
pub struct KeysAhead<'a>(&'a [u8]);

impl<'a> Iterator for KeysAhead<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (key, rest) = match self.0.first()? {
            &binary::REQUEST => of_packet(self.0),
            _ => of_line(self.0),
        }?;
        self.0 = rest;
        Some(key)
    }
}

/// The key of the request of text at the front, and what follows the request.
fn of_line(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = find_byte(input.get(..LINE_AHEAD).unwrap_or(input), b'\n')?;
    let (line, rest) = input.split_at_checked(end)?;
    let mut words = tokens(line.strip_suffix(b"\r").unwrap_or(line));
    let name = words.next()?;
    let key = match name {
        b"gat" | b"gats" => words.nth(1)?,
        _ => words.next()?,
    };
    let data = match name {
        b"get" | b"gets" | b"gat" | b"gats" | b"mg" | b"md" | b"ma" | b"delete" | b"incr" | b"decr" | b"touch" => None,
        b"set" | b"add" | b"replace" | b"append" | b"prepend" | b"cas" => Some(words.nth(2)?),
        b"ms" => Some(words.next()?),
        _ => return None,
    };
    // "\n", and a value with "\r\n" after it.
    let behind = match data {
        None => 1,
        Some(len) => 1 + usize::try_from(parse_u32(len)?).ok()? + 2,
    };
    Some((key, rest.get(behind..).unwrap_or_default()))
}

/// The key of the binary packet at the front, and what follows the packet.
fn of_packet(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let [_, _, k, l, extras, _, _, _, body @ ..] = input.first_chunk::<{ binary::HEADER_LEN }>()?;
    let key_at = binary::HEADER_LEN + usize::from(*extras);
    let key = input.get(key_at..key_at + usize::from(u16::from_be_bytes([*k, *l])))?;
    let body_len = usize::try_from(u32::from_be_bytes(*body.first_chunk()?)).ok()?;
    let rest = input.get(binary::HEADER_LEN + body_len..).unwrap_or_default();
    (!key.is_empty()).then_some((key, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Decoded, Decoder, Limits, Request};

    fn ahead(input: &[u8]) -> Vec<&[u8]> {
        keys_ahead(input).collect()
    }

    #[test]
    fn each_request_with_a_key_gives_its_first_key() {
        let text = b"get a b\r\ngets c\r\ngat 5 d e\r\ngats 0 f\r\nmg g v t\r\nmd h q\r\nma i\r\ndelete j\r\nincr k 1\r\ndecr l 1 noreply\r\ntouch m 0\n\
            set n 1 0 7\r\nget x\r\n\r\nadd o 0 0 0\r\n\r\nreplace p 0 0 1\r\n1\r\nappend q 0 0 1\r\n1\r\nprepend r 0 0 1\r\n1\r\n\
            cas s 0 0 1 9\r\n1\r\nms t 3 c\r\nget\r\nget u\r\n";
        let keys: Vec<u8> = ahead(text).into_iter().flatten().copied().collect();
        assert_eq!(keys, b"acdfghijklmnopqrstu");
    }

    #[test]
    fn the_keys_are_those_that_the_decoder_finds() {
        let text: &[u8] = b"get one two\r\nset three 0 0 9\r\nget four \r\nget  five\r\nget six\r\nget seven";
        let (mut decoder, mut rest, mut decoded) = (Decoder::new(Limits::default()), text, Vec::new());
        while let Decoded::Request { consumed, request } = decoder.decode(rest) {
            decoded.push(match request {
                Request::Get { mut keys, .. } => keys.next().expect("it has a key"),
                Request::Store(store) => store.key,
                request => panic!("{request:?}"),
            });
            rest = &rest[consumed..];
        }
        assert_eq!(decoded.len(), 4);
        assert_eq!(ahead(text), decoded);
    }

    #[test]
    fn packets_give_their_keys() {
        let packet = |extras: u8, key: &[u8], value: &[u8]| {
            let body = usize::from(extras) + key.len() + value.len();
            let mut packet = vec![
                binary::REQUEST,
                0,
                0,
                u8::try_from(key.len()).expect("short"),
                extras,
                0,
                0,
                0,
            ];
            packet.extend_from_slice(&u32::try_from(body).expect("short").to_be_bytes());
            packet.resize(binary::HEADER_LEN + usize::from(extras), 0);
            [&packet, key, value].concat()
        };
        let packets = [packet(0, b"one", b""), packet(8, b"two", b"value"), packet(4, b"three", b"")].concat();
        assert_eq!(ahead(&packets), [b"one".as_slice(), b"two", b"three"]);
        assert_eq!(ahead(&packets[..packets.len() - 1]), [b"one".as_slice(), b"two"]);
        assert!(ahead(&packet(0, b"", b"")).is_empty());
    }

    #[test]
    fn any_bytes_end_it() {
        let long = [b"get ".as_slice(), &[b'k'; 2 * LINE_AHEAD], b"\r\nget b\r\n"].concat();
        let lengths = b"set a 0 0 99999999999\r\nset b 0 0 4294967295\r\nset c 0 0 -1\r\n";
        for bytes in [
            b"".as_slice(),
            b"\n",
            b"\r\n\r\n",
            b"get\r\n",
            b"get a",
            b"stats\r\n",
            b"\x80",
            &[0x80; 40],
            &long,
            lengths,
        ] {
            assert!(ahead(bytes).is_empty(), "{bytes:?}");
        }
        assert_eq!(ahead(b"set b 0 0 4294967295\r\nget c\r\n"), [b"b"]);
    }
}
