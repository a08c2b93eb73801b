//! `stats latency`: every request of every protocol is measured once. Its enemy: a request that is not counted, counted twice, or counted as
//! another one, also if its answer or its line comes in pieces.
//! Guards: P44

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use keyway_cache::{Cache, Door, Options, Place, Verb};
use keyway_server::{Config, Server};

/// Longest that any test waits for anything: only a failing test takes so long.
const PATIENCE: Duration = Duration::from_secs(30);

fn connect(address: SocketAddr) -> BufReader<TcpStream> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    BufReader::new(stream)
}

/// Sends requests, and reads lines up to one that ends the answer.
fn ask(client: &mut BufReader<TcpStream>, request: &[u8], end: &str) -> Vec<String> {
    client.get_mut().write_all(request).unwrap();
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        assert!(client.read_line(&mut line).unwrap() > 0, "the connection has ended");
        let line = line.trim_end().to_owned();
        let is_end = line == end;
        lines.push(line);
        if is_end {
            return lines;
        }
    }
}

/// What `stats latency` says of each door and verb.
fn measured(client: &mut BufReader<TcpStream>) -> BTreeMap<String, u64> {
    let lines = ask(client, b"stats latency\r\n", "END");
    let lines = lines.iter().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
    lines.map(|(name, value)| (name.to_owned(), value.parse().unwrap())).collect()
}

/// A packet of the binary protocol, as its documentation has it.
fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut packet = vec![
        0x80,
        opcode,
        0,
        u8::try_from(key.len()).unwrap(),
        u8::try_from(extras.len()).unwrap(),
    ];
    packet.extend([0; 3]);
    packet.extend(u32::try_from(extras.len() + key.len() + value.len()).unwrap().to_be_bytes());
    packet.extend([0; 12]);
    packet.extend_from_slice(extras);
    packet.extend_from_slice(key);
    packet.extend_from_slice(value);
    packet
}

/// Reads one answer of the binary protocol.
fn received(client: &mut BufReader<TcpStream>) {
    let mut head = [0; 24];
    client.read_exact(&mut head).unwrap();
    let len = u32::from_be_bytes(head[8..12].try_into().unwrap());
    client.read_exact(&mut vec![0; usize::try_from(len).unwrap()]).unwrap();
}

#[test]
fn the_counts_are_the_requests_that_clients_have_made() {
    let options = Options::new().memory(16 << 20).server(true);
    let cache = Cache::open(&Place::Memfd, &options).unwrap();
    let config = Config {
        tcp: vec!["127.0.0.1:0".parse().unwrap()],
        udp: vec!["127.0.0.1:0".parse().unwrap()],
        threads: 3,
        ..Config::default()
    };
    let server = Server::start(config, cache.clone()).unwrap();
    let (handle, tcp, udp) = (server.handle(), server.tcp_addresses()[0], server.udp_addresses()[0]);
    let running = std::thread::spawn(move || server.run().unwrap());

    const CLIENTS: u64 = 6;
    const ROUNDS: u64 = 50;
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut text = connect(tcp);
                let mut binary = connect(tcp);
                let datagrams = UdpSocket::bind("127.0.0.1:0").unwrap();
                datagrams.connect(udp).unwrap();
                datagrams.set_read_timeout(Some(PATIENCE)).unwrap();
                let key = format!("key-{client}");
                for _ in 0..ROUNDS {
                    // Several in one packet; gets of several keys; one that is not there.
                    let lines = format!(
                        "set {key} 0 0 1\r\n1\r\nadd {key} 0 0 1\r\n1\r\nget {key}\r\nget {key} {key} absent\r\nincr {key} 1\r\n\
                         touch {key} 0\r\ngat 0 {key}\r\ndelete {key}\r\ndelete {key}\r\nversion\r\nmn\r\n"
                    );
                    ask(&mut text, lines.as_bytes(), "MN");
                    let lines = format!("ms {key} 1\r\n7\r\nmg {key} v\r\nmg absent v q\r\nma {key}\r\nmd {key}\r\nmn\r\n");
                    ask(&mut text, lines.as_bytes(), "MN");
                    // set, get, get and touch, increment, delete, no-op
                    let packets = [
                        packet(1, &[0; 8], key.as_bytes(), b"5"),
                        packet(0, b"", key.as_bytes(), b""),
                        packet(0x1D, &[0; 4], key.as_bytes(), b""),
                        packet(5, &[0; 20], key.as_bytes(), b""),
                        packet(4, b"", key.as_bytes(), b""),
                        packet(0x0A, b"", b"", b""),
                    ];
                    binary.get_mut().write_all(&packets.concat()).unwrap();
                    (0..packets.len()).for_each(|_| received(&mut binary));
                    let both = [&b"\0\x07\0\0\0\x01\0\0"[..], b"get a\r\nincr a 1\r\n"].concat();
                    datagrams.send(&both).unwrap();
                    datagrams.recv(&mut [0; 1500]).unwrap();
                }
            });
        }
    });
    let all = CLIENTS * ROUNDS;
    let expected = BTreeMap::from([
        ("text:get", 2 * all),
        ("text:set", 2 * all),
        ("text:delete", 2 * all),
        ("text:arithmetic", all),
        ("text:touch", 2 * all),
        ("text:other", all),
        ("meta:get", 2 * all),
        ("meta:set", all),
        ("meta:delete", all),
        ("meta:arithmetic", all),
        ("meta:other", 2 * all),
        ("binary:get", all),
        ("binary:set", all),
        ("binary:delete", all),
        ("binary:arithmetic", all),
        ("binary:touch", all),
        ("binary:other", all),
        ("udp:get", all),
        ("udp:arithmetic", all),
    ]);
    let mut client = connect(tcp);
    let first = measured(&mut client);
    let counts: BTreeMap<&str, u64> = first
        .iter()
        .filter_map(|(name, count)| Some((name.strip_suffix(":measured")?, *count)))
        .collect();
    assert_eq!(counts, expected);
    for name in expected.keys() {
        let of = |what: &str| first[&format!("{name}:{what}")];
        let quantiles = ["p50_ns", "p90_ns", "p99_ns", "p999_ns"].map(of);
        assert!(
            quantiles.is_sorted() && quantiles[0] >= 64 && of("mean_ns") > 0,
            "{name}: {quantiles:?}"
        );
    }
    // The region has the same, without asking the server. That request is the only one since.
    assert_eq!(cache.latencies().of(Door::Text, Verb::Get).count(), 2 * all);
    assert_eq!(cache.latencies().of(Door::Text, Verb::Other).count(), all + 1);

    // A line of more keys than are decoded at once is one request; so is one whose answer its client takes in pieces.
    let value = vec![b'v'; 900_000];
    let set = [format!("set big 0 0 {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat();
    ask(&mut client, &set, "STORED");
    let keys = " absent-key".repeat(30_000);
    assert_eq!(ask(&mut client, format!("get{keys}\r\n").as_bytes(), "END"), ["END"]);
    let lines = ask(&mut client, b"get big big big big big big big big\r\n", "END");
    assert_eq!(lines.len(), 17);
    // What is refused, or too large, is not executed, and not measured.
    assert_eq!(ask(&mut client, b"nonsense\r\n", "ERROR"), ["ERROR"]);
    let later = measured(&mut client);
    assert_eq!(later["text:get:measured"] - first["text:get:measured"], 2);
    assert_eq!(later["text:set:measured"] - first["text:set:measured"], 1);
    assert_eq!(later["text:other:measured"] - first["text:other:measured"], 1);

    // From `stats reset` on, they are counted from 0: the reset itself is the first.
    ask(&mut client, b"stats reset\r\n", "RESET");
    let counts: Vec<(String, u64)> = measured(&mut client)
        .into_iter()
        .filter(|(name, _)| name.ends_with(":measured"))
        .collect();
    assert_eq!(counts, [("text:other:measured".to_owned(), 1)]);
    assert!(
        cache.latencies().of(Door::Text, Verb::Get).count() > 2 * all,
        "the region's go on"
    );
    handle.shutdown();
    running.join().unwrap();
}
