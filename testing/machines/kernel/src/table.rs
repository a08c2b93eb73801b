//! The packets that are written down, each with what must become of it.

use keyway_xdp::config::Verdict;

use crate::frame::{Checksum, Frame, answer_max, seal};
use crate::stage::{Outcome, Stage};
use crate::world::{Hot, State, reference};

/// A frame and its fate.
#[derive(Clone, Debug)]
pub struct Row {
    name: String,
    frame: Vec<u8>,
    expected: Expected,
}

#[derive(Clone, Debug)]
enum Expected {
    /// an answer to this request, with this payload
    Answer(Frame, Checksum, Vec<u8>),
    /// nothing is touched; with this verdict, if it is known
    Up(Option<Verdict>),
}

/// All rows of one family.
pub fn rows(items: &[Hot], v6: bool) -> Vec<Row> {
    let mut rows = Rows {
        items,
        v6,
        rows: Vec::new(),
    };
    rows.requests();
    rows.checksums();
    rows.lengths();
    rows.damage();
    rows.headers();
    rows.rows
}

/// Whether the stage does with the row's frame what it must.
///
/// # Errors
///
/// What it did instead.
pub fn hold(stage: &mut Stage<'_>, row: &Row) -> Result<(), String> {
    let held = stage.run(&row.frame).and_then(|outcome| judge(row, &outcome));
    held.map_err(|why| format!("{}: {why}", row.name))
}

fn judge(row: &Row, outcome: &Outcome) -> Result<(), String> {
    match (&row.expected, outcome) {
        (Expected::Up(None), Outcome::Up(_)) | (Expected::Up(_), Outcome::Up(None)) => Ok(()),
        (Expected::Up(Some(expected)), Outcome::Up(Some(verdict))) if expected == verdict => Ok(()),
        (Expected::Answer(request, checksum, payload), Outcome::Answered(answer)) => {
            let got = request.answered(answer, *checksum)?;
            if got == *payload {
                Ok(())
            } else {
                Err(format!(
                    "the answer is {}, not {}",
                    harness::printable(&got),
                    harness::printable(payload)
                ))
            }
        }
        (expected, outcome) => {
            let short = |text: String| text.chars().take(200).collect::<String>();
            Err(format!(
                "{}, not {}",
                short(format!("{outcome:?}")),
                short(format!("{expected:?}"))
            ))
        }
    }
}

struct Rows<'a> {
    items: &'a [Hot],
    v6: bool,
    rows: Vec<Row>,
}

impl Rows<'_> {
    fn up(&mut self, name: impl Into<String>, frame: Vec<u8>, verdict: impl Into<Option<Verdict>>) {
        self.rows.push(Row {
            name: name.into(),
            frame,
            expected: Expected::Up(verdict.into()),
        });
    }

    fn answer(&mut self, name: impl Into<String>, request: Frame, frame: Vec<u8>, checksum: Checksum) {
        let name = name.into();
        let payload = reference(self.items, &request.datagram[8..]).unwrap_or_else(|| panic!("{name}: user space has no answer"));
        self.rows.push(Row {
            name,
            frame,
            expected: Expected::Answer(request, checksum, payload),
        });
    }

    /// A request that is answered.
    fn hit(&mut self, request: &[u8]) {
        let frame = Frame::new(self.v6, request);
        let bytes = frame.bytes(Checksum::Full);
        self.answer(format!("{}", request.escape_ascii()), frame, bytes, Checksum::Full);
    }

    /// A request that is not.
    fn miss(&mut self, request: &[u8], verdict: Verdict) {
        let bytes = Frame::new(self.v6, request).bytes(Checksum::Full);
        self.up(format!("{}", request.escape_ascii()), bytes, verdict);
    }

    fn requests(&mut self) {
        for item in self.items {
            let verdict = match item.state {
                State::Current => None,
                State::Expired => Some(Verdict::Expired),
                _ => Some(Verdict::Stale),
            };
            for (before, after) in [
                (&b"get "[..], &b"\r\n"[..]),
                (b"gets ", b"\r\n"),
                (b"mg ", b" v k f c q Oabc s t\r\n"),
                (b"mg ", b"\r\n"),
            ] {
                let request = [before, &item.key, after].concat();
                let len = reference(self.items, &request).map(|answer| answer.len());
                match (verdict, len) {
                    (Some(verdict), _) => self.miss(&request, verdict),
                    (None, Some(len)) if len <= answer_max(self.v6) => self.hit(&request),
                    (None, _) => self.miss(&request, Verdict::TooLong),
                }
            }
        }
        let key = |number: usize| String::from_utf8_lossy(&self.items[number].key).into_owned();
        let (one, two) = (key(0), key(19));
        for request in [
            "get {}\n",
            "get {} {2}\r\n",
            "gets {2} {} {2}\r\n",
            "mg {} v\n",
            "mg {} t k\r\n",
            "mg {} q\r\n",
        ] {
            self.hit(request.replace("{}", &one).replace("{2}", &two).as_bytes());
        }
        for flag in ["v", "k", "f", "c", "q", "O", "O1234567890123456789012345678901", "s", "t"] {
            self.hit(format!("mg {two} {flag}\r\n").as_bytes());
            self.hit(
                format!("mg {two} v {flag}x\r\n")
                    .replace(&format!("{flag}x"), if flag == "v" { "k" } else { flag })
                    .as_bytes(),
            );
        }
        for flags in [
            "vx",
            "k1",
            "b",
            "h",
            "l",
            "u",
            "E1",
            "N0",
            "R0",
            "T0",
            "C1",
            "v v",
            "v  k",
            "v ",
            "",
            "O12345678901234567890123456789012",
            "M",
            "P",
            "5",
            "\x7f",
        ] {
            self.miss(format!("mg {two} {flags}\r\n").as_bytes(), Verdict::OddRequest);
        }
        for request in [
            "get\r\n",
            "get \r\n",
            "get {} \r\n",
            "get  {}\r\n",
            " get {}\r\n",
            "get {}",
            "get {}\r",
            "get {}\r\n\r\n",
            "get {}\r\nget {}\r\n",
            "get {}\rx\r\n",
            "get {}\t{}\r\n",
            "get {}\0\r\n",
            "GET {}\r\n",
            "gat 0 {}\r\n",
            "gets\r\n",
            "set {} 0 0 1\r\n1\r\n",
            "delete {}\r\n",
            "mg\r\n",
            "mg \r\n",
            "mn\r\n",
            "md {}\r\n",
            "stats\r\n",
            "\r\n",
            "\n",
            "x",
            "getx {}\r\n",
            "get {} {}\n\n",
            "me {}\r\n",
        ] {
            self.miss(request.replace("{}", &one).as_bytes(), Verdict::OddRequest);
        }
        for request in [
            "get unknown\r\n",
            "get {} unknown\r\n",
            "get unknown {}\r\n",
            "mg unknown v\r\n",
        ] {
            self.miss(request.replace("{}", &one).as_bytes(), Verdict::Miss);
        }
        let many = |count: usize| format!("get {}\r\n", vec!["z"; count].join(" "));
        self.hit(many(64).as_bytes());
        self.miss(many(65).as_bytes(), Verdict::OddRequest);
        self.miss(&[b"get ", &[b'k'; 250][..], b"\r\n"].concat(), Verdict::Miss);
        self.miss(&[b"get ", &[b'k'; 251][..], b"\r\n"].concat(), Verdict::OddRequest);
        self.miss(&[b"mg ", &[b'k'; 300][..], b" v\r\n"].concat(), Verdict::OddRequest);
    }

    /// Answers of up to and above one datagram.
    fn lengths(&mut self) {
        for filler in 1..=250 {
            let request = [b"get value1000 value100 ", &self.items[filler - 1].key[..], b"\r\n"].concat();
            let len = reference(self.items, &request).map_or(0, |answer| answer.len());
            if len <= answer_max(self.v6) {
                self.hit(&request);
            } else {
                self.miss(&request, Verdict::TooLong);
            }
        }
        for len in 1340..=1392 {
            // a request as long as an answer may be, and one longer
            let key = vec![b'k'; 120];
            let mut request = b"get".to_vec();
            while request.len() + 1 + key.len() < len {
                request.push(b' ');
                request.extend(&key);
            }
            request.truncate(len - 2);
            request.extend(b"\r\n");
            self.miss(&request, Verdict::Miss);
        }
        self.miss(&[b"get ", &[b'k'; 1390][..], b"\r\n"].concat(), Verdict::OddFrame);
    }

    fn checksums(&mut self) {
        for checksum in [Checksum::Full, Checksum::Partial, Checksum::Absent] {
            for value in ["value0", "value1", "value500", "value1180"] {
                let frame = Frame::new(self.v6, format!("get {value}\r\n").as_bytes());
                let bytes = frame.bytes(checksum);
                let name = format!("checksum {checksum:?} of {value}");
                if checksum == Checksum::Absent && self.v6 {
                    self.up(name, bytes, Verdict::OddPacket);
                } else {
                    self.answer(name, frame, bytes, checksum);
                }
            }
        }
    }

    /// Every byte cut off, every bit turned: nothing sums up any more.
    fn damage(&mut self) {
        let frame = Frame::new(self.v6, b"get value100 value9\r\n");
        let whole = frame.bytes(Checksum::Full);
        for len in 0..whole.len() {
            self.up(format!("truncated to {len} bytes"), whole[..len].to_vec(), None);
        }
        for padding in [1, 2, 3, 18, 100] {
            let padded = [&whole[..], &vec![0xee; padding]].concat();
            self.answer(format!("padded by {padding} bytes"), frame.clone(), padded, Checksum::Full);
        }
        // traffic class, flow label and hop limit are in no checksum of IPv6, and in no answer
        let v6 = self.v6;
        let free = |at: usize, bit: u8| v6 && (at == 14 && bit < 4 || (15..18).contains(&at) || at == 21);
        for at in 12..whole.len() {
            for bit in 0..8 {
                let mut turned = whole.clone();
                turned[at] ^= 1 << bit;
                let name = format!("bit {bit} of byte {at} turned");
                if free(at, bit) {
                    self.answer(name, frame.clone(), turned, Checksum::Full);
                } else {
                    self.up(name, turned, None);
                }
            }
        }
    }

    /// Headers that are wrong, and sum up.
    fn headers(&mut self) {
        let frame = Frame::new(self.v6, b"get value100\r\n");
        let whole = frame.bytes(Checksum::Full);
        let (v6, udp) = (self.v6, if self.v6 { 54 } else { 34 });
        let changed = |change: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = whole.clone();
            change(&mut bytes);
            seal(&mut bytes, v6);
            bytes
        };
        for by in [-9_i16, -1, 1, 2, 100, i16::MAX] {
            for (name, at) in [("UDP", udp + 4), ("IP", if v6 { 18 } else { 16 })] {
                let bytes = changed(&|bytes| {
                    let len = u16::from_be_bytes([bytes[at], bytes[at + 1]]).wrapping_add_signed(by);
                    bytes[at..at + 2].copy_from_slice(&len.to_be_bytes());
                });
                self.up(format!("{name} length off by {by}"), bytes, Verdict::OddPacket);
            }
        }
        for (at, byte) in [(2, 1), (3, 1), (4, 1), (5, 0), (5, 2), (6, 1), (7, 1)] {
            let bytes = changed(&|bytes| bytes[udp + 8 + at] = byte);
            self.up(format!("byte {at} of the frame header is {byte}"), bytes, Verdict::OddFrame);
        }
        let bytes = changed(&|bytes| bytes[udp..udp + 2].fill(0));
        self.up("source port 0", bytes, Verdict::OddPacket);
        let bytes = changed(&|bytes| bytes[udp + 3] ^= 1);
        self.up("another port", bytes, Verdict::NotOurs);
        let target = if v6 { 53 } else { 33 };
        let bytes = changed(&|bytes| bytes[target] ^= 0x80);
        self.up("another address", bytes, Verdict::NotOurs);
        let bytes = changed(&|bytes| bytes[if v6 { 29 } else { 28 }] ^= 1);
        self.up("a source in another network", bytes, Verdict::Forbidden);
        let tagged = [&whole[..12], b"\x81\0\0\x05", &whole[12..]].concat();
        self.up("a VLAN tag", tagged, None);
        if v6 {
            for next in [0, 6, 43, 44, 58, 60] {
                self.up(
                    format!("next header {next}"),
                    changed(&|bytes| bytes[20] = next),
                    Verdict::OddPacket,
                );
            }
            self.up("version 5", changed(&|bytes| bytes[14] = 0x50), Verdict::OddPacket);
            return;
        }
        for first in [0x44, 0x46, 0x4f, 0x55, 0x05] {
            self.up(
                format!("version and header length {first:#x}"),
                changed(&|bytes| bytes[14] = first),
                None,
            );
        }
        let options = [&whole[..34], b"\x01\x01\x01\x01", &whole[34..]].concat();
        let mut with_options = options;
        with_options[14] = 0x46;
        with_options[17] += 4;
        self.up("IP options", with_options, None);
        for (name, word) in [
            ("more fragments", 0x2000_u16),
            ("a later fragment", 1),
            ("a last fragment", 0x0100),
            ("the reserved bit", 0x8000),
        ] {
            let bytes = changed(&|bytes| bytes[20..22].copy_from_slice(&word.to_be_bytes()));
            self.up(name, bytes, Verdict::OddPacket);
        }
        let bytes = changed(&|bytes| bytes[20] = 0);
        self.answer("may be fragmented", frame.clone(), bytes, Checksum::Full);
        self.up("another protocol", changed(&|bytes| bytes[23] = 6), None);
        let mut wrong = whole.clone();
        wrong[24] ^= 1;
        self.up("a wrong IP checksum", wrong, Verdict::OddPacket);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The checker's own check: an answer with any bit wrong, or where none is due, is seen.
    #[test]
    fn wrong_answers_are_rejected() {
        let items = crate::world::items();
        let request = Frame::new(false, b"get value9\r\n");
        let payload = reference(&items, b"get value9\r\n").unwrap();
        let row = Row {
            name: String::new(),
            frame: request.bytes(Checksum::Full),
            expected: Expected::Answer(request.clone(), Checksum::Full, payload.clone()),
        };
        let mut answer = Frame {
            addresses: [request.addresses[1], request.addresses[0]],
            ports: [request.ports[1], request.ports[0]],
            datagram: [&b"\x12\x34\0\0\0\x01\0\0"[..], &payload].concat(),
        }
        .bytes(Checksum::Full);
        answer[..12].copy_from_slice(b"\x02\0\0\0\0\x07\0\0\0\0\0\0");
        answer[20..22].fill(0);
        seal(&mut answer, false);
        assert_eq!(judge(&row, &Outcome::Answered(answer.clone())), Ok(()));
        for at in 0..answer.len() * 8 {
            let mut wrong = answer.clone();
            wrong[at / 8] ^= 1 << (at % 8);
            assert!(judge(&row, &Outcome::Answered(wrong)).is_err(), "bit {at}");
        }
        assert!(judge(&row, &Outcome::Up(None)).is_err());
        let up = Row {
            expected: Expected::Up(Some(Verdict::Miss)),
            ..row
        };
        assert!(judge(&up, &Outcome::Answered(answer)).is_err());
        assert!(judge(&up, &Outcome::Up(Some(Verdict::Stale))).is_err());
        assert_eq!(judge(&up, &Outcome::Up(Some(Verdict::Miss))), Ok(()));
    }
}
