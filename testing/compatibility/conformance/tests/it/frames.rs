//! Frames of UDP datagrams, byte by byte: what Keyway and a real memcached answer to each, and what both leave unanswered.
//! Guards: P35

use std::net::{Ipv4Addr, UdpSocket};

use harness::{DEADLINE, Kind, ServeOptions, Server, Transport, printable, say};

/// What a datagram is answered with.
#[derive(Debug)]
enum Answer {
    /// nothing
    Silence,
    /// datagrams with these headers, whose payloads together are this
    Message(Vec<[u8; 8]>, Vec<u8>),
}

/// Datagrams and their answers, in this order.
fn table() -> Vec<(Vec<u8>, Answer)> {
    let ask = |header: &[u8; 8], payload: &[u8]| [&header[..], payload].concat();
    let one = |id: [u8; 2], payload: &[u8]| Answer::Message(vec![[id[0], id[1], 0, 0, 0, 1, 0, 0]], payload.to_vec());
    let hit = &b"VALUE a 5 3\r\nabc\r\nEND\r\n"[..];
    let mut rows = vec![
        (
            ask(b"\x00\x07\0\0\0\x01\0\0", b"set a 5 0 3\r\nabc\r\n"),
            one([0, 7], b"STORED\r\n"),
        ),
        (ask(b"\x00\x00\0\0\0\x01\0\0", b"get a\r\n"), one([0, 0], hit)),
        (ask(b"\xff\xfe\0\0\0\x01\0\0", b"get a\n"), one([0xff, 0xfe], hit)),
        (
            ask(b"\x80\x01\0\0\0\x01\0\0", b"gets nothing\r\n"),
            one([0x80, 1], b"END\r\n"),
        ),
        (
            ask(b"\x12\x34\0\0\0\x01\0\0", b"mg a v k O9\r\n"),
            one([0x12, 0x34], b"VA 3 ka O9\r\nabc\r\n"),
        ),
        // a sequence number and reserved bytes that no request has are not looked at
        (ask(b"\x00\x01\0\x05\0\x01\0\0", b"get a\r\n"), one([0, 1], hit)),
        (ask(b"\x00\x02\0\0\0\x01\xff\xff", b"get a\r\n"), one([0, 2], hit)),
        // a part of a longer request, or of none
        (ask(b"\x00\x03\0\0\0\x02\0\0", b"get a\r\n"), Answer::Silence),
        (ask(b"\x00\x03\0\x01\0\x02\0\0", b"get a\r\n"), Answer::Silence),
        (ask(b"\x00\x03\0\0\0\0\0\0", b"get a\r\n"), Answer::Silence),
        (ask(b"\x00\x03\0\0\x01\x01\0\0", b"get a\r\n"), Answer::Silence),
        (ask(b"\x00\x03\0\0\0\x01\0\0", b""), Answer::Silence),
        // no line end, no data block, nothing to say
        (ask(b"\x00\x03\0\0\0\x01\0\0", b"get a"), Answer::Silence),
        (
            ask(b"\x00\x03\0\0\0\x01\0\0", b"set a 0 0 1 noreply\r\n1\r\n"),
            Answer::Silence,
        ),
        (ask(b"\x00\x03\0\0\0\x01\0\0", b"mg nothing v q\r\n"), Answer::Silence),
        (
            ask(b"\x00\x04\0\0\0\x01\0\0", b"get a\r\n"),
            one([0, 4], b"VALUE a 0 1\r\n1\r\nEND\r\n"),
        ),
    ];
    rows.extend((0..8).map(|len| (b"\0\x03\0\0\0\x01\0\0"[..len].to_vec(), Answer::Silence)));
    // answers of one datagram, of one and a byte, of many
    for (at, len) in [1368_usize, 1369, 1370, 1371, 1372, 1373, 2760, 2761, 2762, 20_000]
        .into_iter()
        .enumerate()
    {
        let id = [9, u8::try_from(at).unwrap()];
        let header = [id[0], id[1], 0, 0, 0, 1, 0, 0];
        let value = vec![b'v'; len];
        let set = [format!("set e 0 0 {len}\r\n").as_bytes(), &value, b"\r\n"].concat();
        rows.push((ask(&header, &set), one(id, b"STORED\r\n")));
        let answer = [format!("VALUE e 0 {len}\r\n").as_bytes(), &value, b"\r\nEND\r\n"].concat();
        let total = u8::try_from(answer.len().div_ceil(1392)).unwrap();
        let headers = (0..total)
            .map(|sequence| [id[0], id[1], 0, sequence, 0, total, 0, 0])
            .collect();
        rows.push((ask(&header, b"get e\r\n"), Answer::Message(headers, answer)));
    }
    rows
}

/// What departs from the table, in the order of its rows.
fn departures(server: &Server) -> Vec<String> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.connect(server.address()).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    let fence = b"\xf0\xf0\0\0\0\x01\0\0mn\r\n";
    let mut wrong = Vec::new();
    for (request, expected) in table() {
        socket.send(&request).unwrap();
        socket.send(fence).unwrap();
        let (mut headers, mut payload) = (Vec::new(), Vec::new());
        loop {
            let mut datagram = [0; 1401];
            let len = socket.recv(&mut datagram).unwrap();
            if datagram[..len] == *b"\xf0\xf0\0\0\0\x01\0\0MN\r\n" {
                break;
            }
            let header: [u8; 8] = datagram[..8].try_into().unwrap();
            headers.push(header);
            payload.extend_from_slice(&datagram[8..len]);
            if len > 1400 {
                wrong.push(format!("{}: a datagram of more than 1400 bytes", printable(&request)));
            }
        }
        if !agrees(&expected, &headers, &payload) {
            let came = format!("{headers:?} {}", printable(&payload));
            wrong.push(format!("{}: {came}", printable(&request)));
        }
    }
    wrong
}

fn agrees(expected: &Answer, headers: &[[u8; 8]], payload: &[u8]) -> bool {
    match expected {
        Answer::Silence => headers.is_empty(),
        Answer::Message(expected, answer) => headers == *expected && payload == *answer,
    }
}

#[test]
fn the_checker_rejects_wrong_datagrams() {
    let header = [0, 1, 0, 0, 0, 1, 0, 0];
    let expected = Answer::Message(vec![header], b"MN\r\n".to_vec());
    assert!(agrees(&expected, &[header], b"MN\r\n") && agrees(&Answer::Silence, &[], b""));
    assert!(!agrees(&expected, &[], b""), "silence");
    assert!(!agrees(&expected, &[header], b"MM\r\n"), "a wrong byte");
    assert!(!agrees(&expected, &[header, header], b"MN\r\n"), "a datagram too many");
    for at in 0..8 {
        let mut wrong = header;
        wrong[at] ^= 2;
        assert!(!agrees(&expected, &[wrong], b"MN\r\n"), "byte {at} of the header");
    }
    assert!(
        !agrees(&Answer::Silence, &[header], b""),
        "an empty datagram where nothing is due"
    );
}

#[test]
fn both_servers_frame_alike() {
    for kind in Kind::to_test("the table of frames") {
        let options = ServeOptions {
            transport: Transport::Udp,
            // A memcached's threads share one UDP socket, and answer in whatever order.
            threads: 1,
            keyway_arguments: vec!["--udp-answer-max".into(), "64m".into()],
            ..ServeOptions::default()
        };
        let wrong = departures(&Server::start(kind, &options));
        say(&format!("conformance: {}: {} datagrams over UDP", kind.name(), table().len()));
        assert!(wrong.is_empty(), "{}:\n{}", kind.name(), wrong.join("\n"));
    }
}
