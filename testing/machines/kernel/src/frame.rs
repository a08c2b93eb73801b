//! Ethernet frames with UDP in them: made for the program, and taken apart again.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Port that is served.
pub const PORT: u16 = 11211;
/// Length of Ethernet, IP and UDP headers.
const HEADS: [usize; 2] = [42, 62];

/// A request's frame, every part of which can be made wrong.
#[derive(Clone, Debug)]
pub struct Frame {
    /// source and target
    pub addresses: [IpAddr; 2],
    /// source and target
    pub ports: [u16; 2],
    /// after the UDP header
    pub datagram: Vec<u8>,
}

/// How the UDP checksum is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// in full
    Full,
    /// only the pseudo header's, as packets that do not leave the machine have it
    Partial,
    /// none was made
    Absent,
}

impl Frame {
    /// A request to the served address.
    pub fn new(v6: bool, payload: &[u8]) -> Self {
        let addresses = if v6 {
            [Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).into(), served(true)]
        } else {
            [Ipv4Addr::new(10, 0, 0, 2).into(), served(false)]
        };
        Self {
            addresses,
            ports: [40_000, PORT],
            datagram: [b"\x12\x34\0\0\0\x01\0\0", payload].concat(),
        }
    }

    /// Its bytes.
    pub fn bytes(&self, checksum: Checksum) -> Vec<u8> {
        let udp_len = half(self.datagram.len() + 8);
        let mut bytes = vec![0; 6];
        bytes.extend(*b"\x02\0\0\0\0\x07");
        let ip_start = 14;
        match self.addresses {
            [IpAddr::V4(source), IpAddr::V4(target)] => {
                bytes.extend(*b"\x08\0\x45\0");
                bytes.extend((udp_len + 20).to_be_bytes());
                bytes.extend(*b"\xab\xcd\x40\0\x40\x11\0\0");
                bytes.extend(source.octets());
                bytes.extend(target.octets());
                let sum = !fold(sum(&bytes[ip_start..]));
                bytes[ip_start + 10..ip_start + 12].copy_from_slice(&sum.to_be_bytes());
            }
            [IpAddr::V6(source), IpAddr::V6(target)] => {
                bytes.extend(*b"\x86\xdd\x60\0\0\0");
                bytes.extend(udp_len.to_be_bytes());
                bytes.extend(*b"\x11\x40");
                bytes.extend(source.octets());
                bytes.extend(target.octets());
            }
            _ => panic!("two families in one packet"),
        }
        let udp_start = bytes.len();
        bytes.extend(self.ports[0].to_be_bytes());
        bytes.extend(self.ports[1].to_be_bytes());
        bytes.extend(udp_len.to_be_bytes());
        bytes.extend([0, 0]);
        bytes.extend(&self.datagram);
        let pseudo = pseudo_sum(&bytes, self.addresses[0].is_ipv6());
        let field = match checksum {
            Checksum::Full => match !fold(pseudo + sum(&bytes[udp_start..])) {
                0 => u16::MAX,
                sum => sum,
            },
            Checksum::Partial => fold(pseudo),
            Checksum::Absent => 0,
        };
        bytes[udp_start + 6..udp_start + 8].copy_from_slice(&field.to_be_bytes());
        bytes
    }

    /// The payload of `answer`, if it is a sound answer to this frame, in every bit.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn answered(&self, answer: &[u8], checksum: Checksum) -> Result<Vec<u8>, String> {
        let head = HEADS[usize::from(self.addresses[0].is_ipv6())] + 8;
        let payload = answer.get(head..).ok_or("it is shorter than its headers")?;
        let expected = Frame {
            addresses: [self.addresses[1], self.addresses[0]],
            ports: [self.ports[1], self.ports[0]],
            datagram: [&self.datagram[..2], &[0, 0, 0, 1, 0, 0], payload].concat(),
        };
        let checksum = if checksum == Checksum::Absent {
            Checksum::Full
        } else {
            checksum
        };
        let mut expected = expected.bytes(checksum);
        let macs = [&b"\x02\0\0\0\0\x07"[..], &[0; 6]].concat();
        expected[..12].copy_from_slice(&macs);
        if !self.addresses[0].is_ipv6() {
            // an answer has an identification of its own and may be cut into pieces, and so has another sum
            expected[18..20].copy_from_slice(answer.get(18..20).ok_or("it is shorter than its headers")?);
            expected[20..22].copy_from_slice(&[0, 0]);
            expected[24..26].copy_from_slice(&[0, 0]);
            let sum = !fold(sum(&expected[14..34]));
            expected[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        match answer.iter().zip(&expected).position(|(a, b)| a != b) {
            Some(at) => Err(format!("byte {at} is {:#x}, not {:#x}", answer[at], expected[at])),
            None if answer.len() != expected.len() => Err(format!("{} bytes, not {}", answer.len(), expected.len())),
            None => Ok(payload.to_vec()),
        }
    }
}

/// Longest answer that the program sends in a datagram, its frame header not counted.
pub fn answer_max(v6: bool) -> usize {
    // 1400 bytes as memcached, and with IPv6 what every path takes (RFC 8200, section 5).
    if v6 { 1280 - 40 - 8 - 8 } else { 1400 - 8 }
}

/// The address that is served.
pub fn served(v6: bool) -> IpAddr {
    if v6 {
        Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 1).into()
    } else {
        Ipv4Addr::new(10, 0, 0, 1).into()
    }
}

/// Makes the checksums of a frame right again after something in it was changed. Lengths in it are believed, if they can be.
pub fn seal(bytes: &mut [u8], v6: bool) {
    let head = HEADS[usize::from(v6)];
    if bytes.len() < head {
        return;
    }
    if !v6 {
        bytes[24..26].copy_from_slice(&[0, 0]);
        let sum = !fold(sum(&bytes[14..34]));
        bytes[24..26].copy_from_slice(&sum.to_be_bytes());
    }
    let udp = head - 8;
    bytes[udp + 6..udp + 8].copy_from_slice(&[0, 0]);
    let len = usize::from(u16::from_be_bytes([bytes[udp + 4], bytes[udp + 5]])).clamp(8, bytes.len() - udp);
    let sum = match !fold(pseudo_sum(bytes, v6) + sum(&bytes[udp..udp + len])) {
        0 => u16::MAX,
        sum => sum,
    };
    bytes[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
}

fn half(len: usize) -> u16 {
    u16::try_from(len).unwrap_or_else(|_| panic!("{len} bytes are no datagram"))
}

/// RFC 768, RFC 8200 section 8.1.
fn pseudo_sum(bytes: &[u8], v6: bool) -> u64 {
    let addresses = if v6 { &bytes[22..54] } else { &bytes[26..34] };
    let udp = HEADS[usize::from(v6)] - 8;
    sum(addresses) + 17 + u64::from(u16::from_be_bytes([bytes[udp + 4], bytes[udp + 5]]))
}

/// RFC 1071: 16-bit words, high byte first; an odd last byte is the high one of its word.
fn sum(bytes: &[u8]) -> u64 {
    bytes
        .chunks(2)
        .map(|pair| u64::from(pair[0]) << 8 | u64::from(pair.get(1).copied().unwrap_or(0)))
        .sum()
}

fn fold(mut sum: u64) -> u16 {
    while sum > 0xFFFF {
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or(0)
}
