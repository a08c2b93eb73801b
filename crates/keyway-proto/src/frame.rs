//! The frame of UDP datagrams: the request's id, and which part of an answer this is (protocol.txt, "UDP protocol").
//!
//! ```text
//! 0        2          4       6          8
//! +--------+----------+-------+----------+---------
//! | id     | sequence | total | reserved | payload …      16-bit numbers, high byte first
//! +--------+----------+-------+----------+---------
//! ```
//!
//! A request is one datagram. An answer is as many datagrams as its length needs, numbered from 0, each with the request's id. Their
//! payloads, one after the other, are the answer that a connection would get.

/// Length of the frame header, bytes.
pub const FRAME_LEN: usize = 8;
/// Longest datagram of an answer, header included, bytes: as memcached, so that it fits an Ethernet frame.
pub const DATAGRAM_LEN_MAX: usize = 1400;
/// Longest payload of a datagram of an answer, bytes.
pub const PAYLOAD_LEN_MAX: usize = DATAGRAM_LEN_MAX - FRAME_LEN;
/// Longest answer, bytes: the number of its datagrams has 16 bits.
pub const ANSWER_LEN_MAX: usize = PAYLOAD_LEN_MAX * 65535;

/// A request's frame, opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Framed<'a> {
    /// the number by which the client recognises the answer
    pub id: [u8; 2],
    /// the requests, never empty
    pub payload: &'a [u8],
}

/// Why a datagram is no request. memcached does not answer such datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoRequest {
    /// nothing after the header, or less than a header
    Empty,
    /// a part of a request of several datagrams, or of 0 datagrams
    Part,
}

impl std::fmt::Display for NoRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Empty => "it has no payload",
            Self::Part => "it says to be part of a request of several datagrams",
        })
    }
}

impl<'a> Framed<'a> {
    /// Reads the frame of a datagram. As in memcached, sequence number and reserved bytes may have any value.
    #[inline]
    pub fn open(datagram: &'a [u8]) -> Result<Self, NoRequest> {
        match datagram {
            //= protocol.txt, "UDP protocol": requests must be contained in a single UDP datagram
            [id_high, id_low, _, _, 0, 1, _, _, payload @ ..] if !payload.is_empty() => Ok(Self {
                id: [*id_high, *id_low],
                payload,
            }),
            [_, _, _, _, _, _, _, _, _, ..] => Err(NoRequest::Part),
            _ => Err(NoRequest::Empty),
        }
    }
}

/// The datagrams of an answer: for each its header and the range of its payload in the answer's `len` bytes. None for an
/// empty answer; an answer of more than [`ANSWER_LEN_MAX`] bytes is cut there.
pub fn datagrams(id: [u8; 2], len: usize) -> impl Iterator<Item = ([u8; FRAME_LEN], std::ops::Range<usize>)> {
    let len = len.min(ANSWER_LEN_MAX);
    let total = u16::try_from(len.div_ceil(PAYLOAD_LEN_MAX)).unwrap_or(u16::MAX);
    let [total_high, total_low] = total.to_be_bytes();
    (0..total).map(move |sequence| {
        let [high, low] = sequence.to_be_bytes();
        let start = usize::from(sequence) * PAYLOAD_LEN_MAX;
        let header = [id[0], id[1], high, low, total_high, total_low, 0, 0];
        (header, start..len.min(start + PAYLOAD_LEN_MAX))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_one_datagram_with_something_in_it() {
        let opened = Framed::open(b"\x12\x34\0\0\0\x01\0\0mn\r\n");
        assert_eq!(
            opened,
            Ok(Framed {
                id: [0x12, 0x34],
                payload: b"mn\r\n"
            })
        );
        // fields that memcached does not check
        assert!(Framed::open(b"\0\0\xff\xff\0\x01\xff\xffm").is_ok());
        for part in [b"\0\0\0\0\0\x02\0\0m", b"\0\0\0\0\0\0\0\0m", b"\0\0\0\0\x01\x01\0\0m"] {
            assert_eq!(Framed::open(part), Err(NoRequest::Part));
        }
        for len in 0..=FRAME_LEN {
            assert_eq!(Framed::open(&b"\0\0\0\0\0\x01\0\0"[..len]), Err(NoRequest::Empty));
        }
    }

    #[test]
    fn an_answer_is_cut_into_datagrams_that_make_it_whole_again() {
        for len in [0, 1, 1391, 1392, 1393, 2 * 1392, 2 * 1392 + 1, 100_000] {
            let parts: Vec<_> = datagrams([7, 9], len).collect();
            assert_eq!(parts.len(), len.div_ceil(1392));
            let mut next = 0;
            for (at, (header, place)) in parts.iter().enumerate() {
                let (sequence, total) = (at.to_be_bytes(), parts.len().to_be_bytes());
                assert_eq!(header[..2], [7, 9]);
                assert_eq!(
                    (&header[2..4], &header[4..6], &header[6..]),
                    (&sequence[6..], &total[6..], &[0, 0][..])
                );
                assert_eq!(place.start, next);
                assert!(!place.is_empty() && place.len() + FRAME_LEN <= DATAGRAM_LEN_MAX);
                next = place.end;
            }
            assert_eq!(next, len);
        }
        assert_eq!(datagrams([0, 0], ANSWER_LEN_MAX + 1).count(), 65535);
    }
}
