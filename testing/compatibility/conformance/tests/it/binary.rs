//! The binary protocol: `table/binary.packets` against Keyway and a real memcached, byte for byte but for CAS uniques, over TCP,
//! Unix sockets and UDP.
//! Guards: P35

use std::fmt::Write as _;

use harness::{Kind, ServeOptions, Server, Transport, Wire, say};

/// Length of a packet's header.
const HEADER_LEN: usize = 24;
const TABLE: &str = include_str!("../../table/binary.packets");
/// Commands by their numbers in the norm.
const COMMANDS: [(&str, u8); 35] = [
    ("get", 0x00),
    ("set", 0x01),
    ("add", 0x02),
    ("replace", 0x03),
    ("delete", 0x04),
    ("incr", 0x05),
    ("decr", 0x06),
    ("quit", 0x07),
    ("flush", 0x08),
    ("getq", 0x09),
    ("noop", 0x0a),
    ("version", 0x0b),
    ("getk", 0x0c),
    ("getkq", 0x0d),
    ("append", 0x0e),
    ("prepend", 0x0f),
    ("stat", 0x10),
    ("setq", 0x11),
    ("addq", 0x12),
    ("replaceq", 0x13),
    ("deleteq", 0x14),
    ("incrq", 0x15),
    ("decrq", 0x16),
    ("quitq", 0x17),
    ("flushq", 0x18),
    ("appendq", 0x19),
    ("prependq", 0x1a),
    ("touch", 0x1c),
    ("gat", 0x1d),
    ("gatq", 0x1e),
    ("sasl_list_mechs", 0x20),
    ("sasl_auth", 0x21),
    ("sasl_step", 0x22),
    ("gatk", 0x23),
    ("gatkq", 0x24),
];
/// Opaque of the noop that ends the answers to a packet.
const FENCE: [u8; 4] = [0xfe, 0xed, 0xfa, 0xce];
/// Longest packet that is sent as a datagram.
const DATAGRAM_LEN_MAX: usize = 30_000;
/// A part longer than this is written as its length.
const SHOWN_LEN_MAX: usize = 100;

/// The conversations of a table, without remarks and empty lines.
fn conversations(table: &str) -> Vec<Vec<&str>> {
    let lines = table.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut all: Vec<Vec<&str>> = Vec::new();
    for line in lines {
        if line.starts_with("== ") {
            all.push(Vec::new());
        }
        all.last_mut().expect("a table begins with ==").push(line);
    }
    all
}

/// CAS uniques of a conversation, in the order in which they came up.
#[derive(Default)]
struct Uniques(Vec<u64>);

impl Uniques {
    fn name(&mut self, unique: u64) -> usize {
        let found = self.0.iter().position(|&known| known == unique);
        1 + found.unwrap_or_else(|| {
            self.0.push(unique);
            self.0.len() - 1
        })
    }

    fn value(&self, text: &str) -> u64 {
        match text.strip_prefix('c') {
            // One that has not come up is 0, so that what follows departs and is reported.
            Some(number) => number
                .parse::<usize>()
                .ok()
                .and_then(|n| self.0.get(n - 1))
                .copied()
                .unwrap_or(0),
            None => text.parse().expect("a CAS unique is a number, or c and a number"),
        }
    }
}

fn hex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|two| u8::from_str_radix(std::str::from_utf8(two).expect("ASCII"), 16).expect("hexadecimal digits"))
        .collect()
}

fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some((plain, coded)) = rest.split_once('%') {
        bytes.extend_from_slice(plain.as_bytes());
        bytes.extend(hex(&coded[..2]));
        rest = &coded[2..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

fn escape(bytes: &[u8], plain_space: bool) -> String {
    bytes.iter().fold(String::new(), |mut text, &byte| {
        match byte {
            b' ' if plain_space => text.push(' '),
            0x21..=0x7e if byte != b'%' => text.push(byte.into()),
            _ => write!(text, "%{byte:02x}").expect("strings take everything"),
        }
        text
    })
}

/// The bytes of a `>` line.
fn packet(line: &str, uniques: &Uniques) -> Vec<u8> {
    let mut words = line.split(' ');
    let name = words.next().unwrap_or_default();
    if let Some(raw) = name.strip_prefix("raw=") {
        return hex(raw);
    }
    let opcode = COMMANDS.iter().find(|(known, _)| *known == name).map_or_else(
        || u8::from_str_radix(name, 16).expect("a command's name or number"),
        |(_, opcode)| *opcode,
    );
    let (mut extras, mut key, mut value) = (Vec::new(), Vec::new(), Vec::new());
    let (mut cas, mut body, mut magic, mut data_type, mut vbucket, mut opaque) = (0, None, 0x80, 0, 0_u16, vec![0; 4]);
    for word in words {
        if let Some((part, count)) = word.split_once('*') {
            let letters = vec![b'v'; count.parse().expect("a count")];
            *(if part == "k" { &mut key } else { &mut value }) = letters;
            continue;
        }
        let (part, text) = word.split_once('=').expect("part=text");
        match part {
            "x" => extras = hex(text),
            "k" => key = unescape(text),
            "v" => value = unescape(text),
            "cas" => cas = uniques.value(text),
            "body" => body = Some(text.parse().expect("a length")),
            "magic" => magic = hex(text)[0],
            "type" => data_type = text.parse().expect("a byte"),
            "vbucket" => vbucket = text.parse().expect("a number"),
            "opaque" => opaque = hex(text),
            _ => panic!("{line}: what is {part}?"),
        }
    }
    let key_len = u16::try_from(key.len()).expect("keys are short");
    let all_len = u32::try_from(extras.len() + key.len() + value.len()).expect("packets are short");
    let mut bytes = vec![magic, opcode];
    bytes.extend(key_len.to_be_bytes());
    bytes.extend([u8::try_from(extras.len()).expect("extras are short"), data_type]);
    bytes.extend(vbucket.to_be_bytes());
    bytes.extend(body.unwrap_or(all_len).to_be_bytes());
    bytes.extend(opaque);
    bytes.extend(cas.to_be_bytes());
    [bytes, extras, key, value].concat()
}

/// A packet that has come, as a `<` line.
fn shown(bytes: &[u8], uniques: &mut Uniques) -> String {
    let opcode = bytes[1];
    let name = COMMANDS.iter().find(|(_, known)| *known == opcode);
    let name = name.map_or_else(|| format!("{opcode:02x}"), |(name, _)| (*name).to_owned());
    let mut line = format!("< {name} {:02x}", u16::from_be_bytes([bytes[6], bytes[7]]));
    let mut add = |text: String| {
        line.push(' ');
        line.push_str(&text);
    };
    if bytes[0] != 0x81 || bytes[5] != 0 {
        add(format!("magic={:02x} type={:02x}", bytes[0], bytes[5]));
    }
    if bytes[12..16] != [0; 4] {
        add(format!(
            "opaque={}",
            bytes[12..16].iter().map(|b| format!("{b:02x}")).collect::<String>()
        ));
    }
    let unique = u64::from_be_bytes(bytes[16..24].try_into().expect("8 bytes"));
    if unique != 0 {
        add(format!("cas=c{}", uniques.name(unique)));
    }
    let body = &bytes[HEADER_LEN..];
    let (extras, rest) = body.split_at(bytes[4].into());
    let (key, value) = rest.split_at(u16::from_be_bytes([bytes[2], bytes[3]]).into());
    if !extras.is_empty() {
        add(format!("x={}", extras.iter().map(|b| format!("{b:02x}")).collect::<String>()));
    }
    for (part, bytes, plain_space) in [("k", key, false), ("v", value, true)] {
        match bytes.len() {
            0 => {}
            len if len > SHOWN_LEN_MAX => add(format!("{part}*{len}")),
            _ => add(format!("{part}={}", escape(bytes, plain_space))),
        }
    }
    line
}

/// The next packet; `None` at the end of the connection.
fn receive(wire: &mut Wire) -> Option<Vec<u8>> {
    let header = wire.exactly(HEADER_LEN).ok()?;
    let body_len = u32::from_be_bytes(header[8..12].try_into().expect("4 bytes"));
    let body = wire.exactly(body_len.try_into().expect("32 bits")).ok()?;
    Some([header, body].concat())
}

/// Holds a conversation: the table's lines as the server made them.
fn hold(wire: &mut Wire, lines: &[&str]) -> Vec<String> {
    let mut uniques = Uniques::default();
    let fence = packet("noop opaque=feedface", &uniques);
    let ends = lines.contains(&"<end");
    let last = lines.iter().rposition(|line| line.starts_with('>'));
    let mut held = vec![lines[0].to_owned()];
    for (at, line) in lines.iter().enumerate() {
        let Some(request) = line.strip_prefix("> ") else { continue };
        held.push((*line).to_owned());
        let sent = wire
            .send(&packet(request, &uniques))
            .and_then(|()| if ends && Some(at) == last { Ok(()) } else { wire.send(&fence) });
        if sent.is_err() {
            held.push("<end".to_owned());
            return held;
        }
        loop {
            match receive(wire) {
                Some(answer) if answer[12..16] == FENCE => break,
                Some(answer) => held.push(shown(&answer, &mut uniques)),
                None => {
                    held.push("<end".to_owned());
                    return held;
                }
            }
        }
    }
    held
}

/// Conversations of the table that can be held in datagrams: none ends its connection or is about the server, and all packets fit.
fn suits_datagrams(lines: &[&str]) -> bool {
    let fits = |line: &&str| {
        line.strip_prefix("> ").is_none_or(|request| {
            let is_about_items = !["stat", "flush"].iter().any(|name| request.starts_with(name));
            is_about_items && packet(request, &Uniques(vec![1; 9])).len() < DATAGRAM_LEN_MAX
        })
    };
    !lines.contains(&"<end") && lines.iter().all(fits)
}

fn against(kind: Kind, transport: Transport, keyway_arguments: &[&str]) -> Vec<String> {
    let server = Server::start(
        kind,
        &ServeOptions {
            transport,
            // A memcached's threads share one UDP socket, and answer in whatever order.
            threads: if transport == Transport::Udp { 1 } else { 4 },
            keyway_arguments: keyway_arguments.iter().map(|&argument| argument.to_owned()).collect(),
            ..ServeOptions::default()
        },
    );
    let mut departures = Vec::new();
    let (mut count, mut packets) = (0, 0);
    for lines in conversations(TABLE) {
        if transport == Transport::Udp && !suits_datagrams(&lines) {
            continue;
        }
        let held = hold(&mut server.connect(transport), &lines);
        if held != lines {
            departures.push(format!("{}\n--- is\n{}", lines.join("\n"), held.join("\n")));
        }
        count += 1;
        packets += held.iter().filter(|line| line.starts_with('>')).count();
    }
    say(&format!(
        "conformance: {}: {count} conversations with {packets} packets over {transport:?}",
        kind.name()
    ));
    departures
}

#[test]
fn both_servers_answer_packets_alike() {
    for kind in Kind::to_test("the table of binary packets") {
        for transport in [Transport::Tcp, Transport::Unix, Transport::Udp] {
            let long_answers: &[&str] = match transport {
                Transport::Udp => &["--udp-answer-max", "64m"],
                _ => &[],
            };
            let departures = against(kind, transport, long_answers);
            assert!(
                departures.is_empty(),
                "{} {transport:?}:\n{}",
                kind.name(),
                departures.join("\n\n")
            );
        }
    }
}

/// A server that is wrong in one thing is found out: here one that shows no CAS uniques, and one that forbids to flush.
#[test]
fn the_checker_rejects_wrong_packets() {
    if Kind::keyway_is_wanted() {
        let departures = against(Kind::Keyway, Transport::Tcp, &["--no-flush"]);
        assert_eq!(
            departures.len(),
            1,
            "only the conversation that flushes departs: {departures:#?}"
        );
    }
    let mut uniques = Uniques::default();
    let right = packet("noop opaque=01020304 cas=7 k=key v=value magic=81", &uniques);
    assert_eq!(shown(&right, &mut uniques), "< noop 00 opaque=01020304 cas=c1 k=key v=value");
    for at in 0..right.len() {
        // Lengths decide where parts end, so a wrong one may not even be taken apart.
        if !(2..5).contains(&at) && !(8..12).contains(&at) {
            let mut wrong = right.clone();
            wrong[at] ^= 1;
            let shown = shown(&wrong, &mut Uniques(vec![7]));
            assert_ne!(shown, "< noop 00 opaque=01020304 cas=c1 k=key v=value", "byte {at}");
        }
    }
}

/// What differs from server to server is only looked at for its form.
#[test]
fn versions_and_statistics_come_in_packets() {
    for kind in Kind::to_test("version and stat in packets") {
        let server = Server::start(kind, &ServeOptions::default());
        let mut wire = server.connect(Transport::Tcp);
        let uniques = Uniques::default();
        wire.send(&packet("version", &uniques)).expect("it takes a request");
        let version = receive(&mut wire).expect("an answer");
        assert!(version[HEADER_LEN..].starts_with(b"1."), "{version:?}");
        for argument in ["", "k=settings", "k=items", "k=slabs"] {
            wire.send(&packet(format!("stat {argument}").trim_end(), &uniques))
                .expect("it takes a request");
            let mut count = 0;
            loop {
                let answer = receive(&mut wire).expect("an answer");
                assert_eq!((answer[1], answer[6], answer[7]), (0x10, 0, 0), "{argument}: {answer:?}");
                if answer.len() == HEADER_LEN {
                    break;
                }
                assert!(answer[2..4] != [0, 0], "a statistic has a name");
                count += 1;
            }
            assert!(
                count > 10 || argument == "k=items" || argument == "k=slabs",
                "{}: {argument}: {count}",
                kind.name()
            );
        }
    }
}
