//! Packets of TCP connections whose numbers the program translates: what its C reads in them, and what it changes, against frames that are
//! built here with the other end's numbers.
//!
//! Packets have what networks and Linux put into them: IP options, parts of a packet, padding, the extension header of packets of more than
//! 64 KiB, several segments in one, checksums that hardware will write, and headers that do not lie together.

use harness::Random;
use keyway_xdp::config::{Config, Settings};
use keyway_xdp::host::{Connection, Form, Reading, Translated};

use crate::session::sum;

/// The numbers of a segment as it arrives, and as the other end must get them.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    pub(crate) seq: (u32, u32),
    pub(crate) ack: (u32, u32),
    /// of selective acknowledgements
    pub(crate) edges: Vec<(u32, u32)>,
    pub(crate) is_incoming: bool,
}

/// What a packet is made of.
struct Parts {
    v6: bool,
    link: Vec<u8>,
    /// the server's address and the client's, of which an IPv4 address is the first bytes
    addresses: [Vec<u8>; 2],
    /// the server's port and the client's
    ports: [u16; 2],
    protocol: u8,
    /// IPv4: options, and the word of fragments; IPv6: the extension header
    extra: Vec<u8>,
    fragment: u16,
    options: Options,
    data: Vec<u8>,
    flags: u8,
    window: u16,
    gso_size: u32,
    is_partial: bool,
    padding: usize,
    is_incoming: bool,
}

/// TCP options: before the selective acknowledgements, and the edges of these.
struct Options {
    first: Vec<u8>,
    edges: usize,
}

impl Parts {
    /// The frame with these numbers.
    fn frame(&self, seq: u32, ack: u32, edges: &[u32]) -> Vec<u8> {
        let [source, target] = if self.is_incoming { [1, 0] } else { [0, 1] };
        let mut tcp = [self.ports[source].to_be_bytes(), self.ports[target].to_be_bytes()].concat();
        tcp.extend(seq.to_be_bytes());
        tcp.extend(ack.to_be_bytes());
        let mut options = self.options.first.clone();
        if !edges.is_empty() {
            options.extend([5, u8::try_from(2 + 4 * edges.len()).unwrap_or(0)]);
            edges.iter().for_each(|edge| options.extend(edge.to_be_bytes()));
        }
        options.resize(options.len().next_multiple_of(4), 0);
        tcp.extend([u8::try_from((20 + options.len()) / 4).unwrap_or(0) << 4, self.flags]);
        tcp.extend(self.window.to_be_bytes());
        tcp.extend([0; 4]);
        tcp.extend(options);
        tcp.extend(&self.data);
        let size = if self.v6 { 16 } else { 4 };
        let (source, target) = (&self.addresses[source][..size], &self.addresses[target][..size]);
        let len = u32::try_from(tcp.len()).unwrap_or(0);
        // RFC 8200, section 8.1; for IPv4 the same sum.
        let pseudo = [source, target, &len.to_be_bytes(), &[0, 0, 0, 6]].concat();
        let field = if self.is_partial {
            sum(&pseudo)
        } else {
            !sum(&[&pseudo[..], &tcp].concat())
        };
        tcp[16..18].copy_from_slice(&field.to_be_bytes());
        // More than the field can say is 0 there.
        let field = |len: usize| u16::try_from(len).unwrap_or(0).to_be_bytes();
        let mut ip = if self.v6 {
            let next = if self.extra.is_empty() { self.protocol } else { self.extra[1] };
            [
                &b"\x60\0\0\0"[..],
                &field(self.extra.len() + tcp.len()),
                &[next, 64],
                source,
                target,
            ]
            .concat()
        } else {
            let head_len = 20 + self.extra.len();
            let mut ip = vec![0x40 | u8::try_from(head_len / 4).unwrap_or(0), 0];
            ip.extend(field(head_len + tcp.len()));
            ip.extend([1, 2]);
            ip.extend(self.fragment.to_be_bytes());
            ip.extend([64, self.protocol, 0, 0]);
            ip.extend(source);
            ip.extend(target);
            ip
        };
        if self.v6 && !self.extra.is_empty() {
            let mut extra = self.extra.clone();
            (extra[0], extra[1]) = (self.protocol, 0);
            ip.extend(extra);
        } else {
            ip.extend(&self.extra);
        }
        if !self.v6 {
            let sum = !sum(&ip);
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        let kind = if self.v6 { b"\x86\xdd" } else { b"\x08\0" };
        let mut frame = [&self.link[..], kind, &ip, &tcp].concat();
        frame.resize(frame.len() + self.padding, 0);
        frame
    }

    /// Whether it is a part of a packet other than the first.
    fn has_no_head(&self) -> bool {
        !self.v6 && self.fragment & 0x1FFF != 0
    }

    fn is_odd(&self) -> bool {
        !self.extra.is_empty() || !self.v6 && self.fragment & !0x4000 != 0
    }

    fn is_stamped(&self) -> bool {
        self.options.first.starts_with(b"\x01\x01\x08\x0a") && self.options.first.len() >= 12
    }
}

fn parts(random: &mut Random, numbers: &Numbers) -> Parts {
    let v6 = random.below(2) == 0;
    let stamps = [&b"\x01\x01\x08\x0a"[..], &random.bytes(8)].concat();
    let (first, edges) = match random.below(8) {
        0 | 1 => (Vec::new(), 0),
        2 | 3 => (stamps, 0),
        4 => ([&stamps[..], b"\x01\x01"].concat(), 2 * (1 + random.index(3))),
        5 => (b"\x01\x01".to_vec(), 2 * (1 + random.index(4))),
        6 => ([&b"\x02\x04\x05\xb4\x01\x01"[..], &stamps[2..]].concat(), 2 * random.index(3)),
        _ => (b"\x01\x01\x08".to_vec(), 0),
    };
    let gso_size = if random.below(4) == 0 { 500 } else { 0 };
    let extra = match (v6, random.below(4)) {
        (true, 0) => [&[6, 0, 0xC2, 4][..], &random.bytes(4)].concat(),
        (false, 0) => [vec![1; 3], vec![0]].concat().repeat(1 + random.index(10)),
        _ => Vec::new(),
    };
    let longest = if gso_size > 0 { 80_000 } else { 1400 };
    let data_len = [0, 1, random.index(20), random.index(longest)][random.index(4)];
    Parts {
        v6,
        link: random.bytes(12),
        addresses: [random.bytes(16), random.bytes(16)].map(|mut address| {
            // Not the address that stands for none.
            address[0] |= 1;
            address[15] |= 1;
            address
        }),
        ports: [1 + low(random.below(65_535)), low(random.below(65_536))],
        protocol: 6,
        extra,
        fragment: [0x4000, 0x4000, 0, 0x2000, 0x2010, 0x0100][random.index(6)],
        options: Options {
            first,
            edges: edges.min(numbers.edges.len()),
        },
        data: random.bytes(data_len),
        flags: [16, 24, 17, 20][random.index(4)],
        window: low(random.below(65_536)),
        gso_size,
        is_partial: random.below(3) == 0,
        padding: if gso_size == 0 && random.below(4) == 0 {
            random.index(30)
        } else {
            0
        },
        is_incoming: numbers.is_incoming,
    }
}

fn low(number: u64) -> u16 {
    u16::try_from(number).unwrap_or(u16::MAX)
}

fn config(parts: &Parts, port: u16) -> Config {
    let bytes = &parts.addresses[0];
    let address = if parts.v6 {
        <[u8; 16]>::try_from(&bytes[..]).map(Into::into)
    } else {
        <[u8; 4]>::try_from(&bytes[..4]).map(Into::into)
    };
    let settings = Settings {
        address: address.unwrap_or_else(|_| [1; 4].into()),
        udp_port: None,
        tcp_port: Some(port),
        allow: Vec::new(),
        memory: 0,
        rate: None,
    };
    Config::new(&settings).unwrap_or_else(|error| panic!("{error}"))
}

/// One packet with these numbers.
///
/// # Errors
///
/// What is read or changed wrongly.
pub(crate) fn hold(random: &mut Random, c: &mut Connection, numbers: &Numbers) -> Result<(), String> {
    let mut parts = parts(random, numbers);
    let edges = &numbers.edges[..parts.options.edges];
    let shown: Vec<u32> = edges.iter().map(|edge| edge.0).collect();
    let given = parts.frame(numbers.seq.0, numbers.ack.0, &shown);
    // A packet whose two numbers stay as they are has no others that change.
    let is_same = numbers.seq.0 == numbers.seq.1 && numbers.ack.0 == numbers.ack.1;
    let wanted = if is_same {
        given.clone()
    } else {
        let due: Vec<u32> = edges.iter().map(|edge| edge.1).collect();
        parts.frame(numbers.seq.1, numbers.ack.1, &due)
    };
    let form = |len: usize, random: &mut Random| Form {
        linear: [len, random.index(len + 1), len.min(54), len.min(66), len.min(86)][random.index(5)],
        gso_size: parts.gso_size,
        is_partial: parts.is_partial,
        is_incoming: parts.is_incoming,
        // Linux never completes the checksums of such.
        from_socket: parts.is_partial && random.below(2) == 0,
    };
    let served = config(&parts, parts.ports[0]);
    let mut got = given.clone();
    let form_of_whole = form(got.len(), random);
    let outcome = c.translate_packet(&served, &mut got, form_of_whole);
    let shown = |bytes: &[u8]| bytes[..bytes.len().min(160)].escape_ascii().to_string();
    if parts.has_no_head() {
        return (outcome == Translated::Refused && got == given)
            .then_some(())
            .ok_or_else(|| format!("a part of a packet becomes {outcome:?}, {}", shown(&got)));
    }
    let Translated::Done(reading) = outcome else {
        return Err(format!("{outcome:?}: {}, {form_of_whole:?}", shown(&given)));
    };
    let tcp_at = 14 + if parts.v6 { 40 } else { 20 } + parts.extra.len();
    let mut due = Reading {
        seq: numbers.seq.0,
        ack: numbers.ack.0,
        len: u32::try_from(parts.data.len()).unwrap_or(0),
        window: parts.window.into(),
        ports: [given[tcp_at], given[tcp_at + 1], given[tcp_at + 2], given[tcp_at + 3]],
        stamp: reading.stamp,
        flags: parts.flags.into(),
        is_stamped: parts.is_stamped().into(),
        is_odd: reading.is_odd,
    };
    if parts.is_stamped() {
        due.stamp.copy_from_slice(&given[tcp_at + 24..tcp_at + 28]);
    }
    if reading != due || (reading.is_odd != 0) != parts.is_odd() {
        return Err(format!(
            "{} reads as {reading:?}, not {due:?}, {form_of_whole:?}",
            shown(&given)
        ));
    }
    if got != wanted {
        return Err(format!(
            "{} becomes {}, not {}, {form_of_whole:?}",
            shown(&given),
            shown(&got),
            shown(&wanted)
        ));
    }
    // Not of the served port, no TCP, cut off, or with a header that is too short: as it was.
    let (mut config, mut odd) = (served, given);
    match random.below(4) {
        0 => config = self::config(&parts, parts.ports[0] ^ 1),
        1 => {
            parts.protocol = 17;
            odd = parts.frame(numbers.seq.0, numbers.ack.0, &[]);
        }
        2 if parts.gso_size == 0 => odd.truncate(random.index(odd.len() - parts.padding)),
        _ => odd[tcp_at + 12] = 0x40,
    }
    let mut got = odd.clone();
    let form_of_odd = form(odd.len(), random);
    let outcome = c.translate_packet(&config, &mut got, form_of_odd);
    if matches!(outcome, Translated::NotOurs | Translated::Refused) && got == odd {
        Ok(())
    } else {
        Err(format!("{outcome:?}: {} becomes {}", shown(&odd), shown(&got)))
    }
}
