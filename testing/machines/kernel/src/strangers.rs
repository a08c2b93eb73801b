//! Strangers on the wire: frames that no client's kernel would send, to a program that is attached in a network namespace.
//!
//! The server's namespace has two wires, and nothing there filters sources (`rp_filter` is off): what is not answered, the program
//! itself has not answered. A stranger has a raw socket at the other end of the first wire. It may write any source into a frame,
//! among them this host's own and `lo`'s, and every one of them is in the list of those who may ask.
//!
//! # Safety
//!
//! The `unsafe` here gives the kernel an address of a socket, of the length that is given.
#![allow(unsafe_code, reason = "a packet socket is bound by its own kind of address; contract above")]

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use nix::libc;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockProtocol, SockType, setsockopt, socket,
    sockopt::{ReceiveTimeout, UdpGsoSegment},
};
use nix::sys::time::{TimeVal, TimeValLike};

use crate::frame::{Checksum, Frame, PORT, served};
use crate::traffic::{Namespace, SERVE, UPSTAIRS, connect_by};

/// First argument of the stranger's side.
const FORGE: &str = "forge-in-namespace";
const PATIENCE: Duration = Duration::from_secs(20);
/// One attempt at what may be lost at first.
const ATTEMPT_MS: i64 = 200;
/// What is hot, and asked for.
const REQUEST: &[u8] = b"get z\r\n";
/// The server's link address on the first wire, and one that no interface has.
const TARGET: &str = "02:00:00:00:00:01";
const NOBODYS: [u8; 6] = [2, 0, 0, 0, 0, 0x99];
const BROADCAST: [u8; 6] = [0xFF; 6];

/// Frames of strangers.
///
/// # Errors
///
/// The program has answered one that it must leave alone, or has not answered a client.
pub fn kept_out(v6: bool) -> Result<String, String> {
    let server = Namespace::new("a")?;
    let [first, second] = if v6 {
        [["fd00::1/64", "fd00::2/64"], ["fd01::1/64", "fd01::2/64"]]
    } else {
        [["10.0.0.1/24", "10.0.0.2/24"], ["10.0.1.1/24", "10.0.1.2/24"]]
    };
    let stranger = connect_by(&server, "b", "veth", first)?;
    let _other = connect_by(&server, "c", "wire", second)?;
    server.ip(&["link", "set", "veth", "address", TARGET])?;
    let address = served(v6).to_string();
    let mut serving = server.run(&[SERVE, "veth,wire", &address])?;
    let mut lines = BufReader::new(serving.stdout.take().ok_or("no output")?);
    let mut ready = String::new();
    lines.read_line(&mut ready).map_err(|error| error.to_string())?;
    if ready.trim() != "ready" {
        return Err(format!("the server said: {ready}"));
    }
    let forged = stranger
        .run(&[FORGE, &address])?
        .wait_with_output()
        .map_err(|error| error.to_string())?;
    drop(serving.stdin.take());
    let mut counts = String::new();
    let _ = lines.read_to_string(&mut counts);
    let _ = serving.wait();
    let said = String::from_utf8_lossy(&forged.stdout).trim().to_owned();
    if !forged.status.success() {
        return Err(format!("{said}; the program counted {}", counts.trim()));
    }
    Ok(format!("{said}; the program counted {}", counts.trim()))
}

/// Plays the stranger, if this process was started as one.
pub fn part_of_it() -> Option<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let [FORGE, address] = words.as_slice() else {
        return None;
    };
    let (said, code) = match forge(address) {
        Ok(said) => (said, ExitCode::SUCCESS),
        Err(why) => (why, ExitCode::FAILURE),
    };
    let _ = writeln!(std::io::stdout(), "{said}");
    Some(code)
}

fn forge(address: &str) -> Result<String, String> {
    let address: IpAddr = address.parse().map_err(|_| "no address")?;
    let v6 = address.is_ipv6();
    let own = std::fs::read_to_string("/sys/class/net/veth/address").map_err(|error| error.to_string())?;
    let (own, target) = (link(&own)?, link(TARGET)?);
    let mut wire = Wire::open()?;

    // Until a client's own request is answered by the program: then the way here is known.
    let client = UdpSocket::bind(if v6 { "[::]:0" } else { "0.0.0.0:0" }).map_err(|error| error.to_string())?;
    client.connect((address, PORT)).map_err(|error| error.to_string())?;
    setsockopt(&client, ReceiveTimeout, &TimeVal::milliseconds(ATTEMPT_MS)).map_err(|error| error.to_string())?;
    let until = Instant::now() + PATIENCE;
    while !ask(&client, REQUEST).is_some_and(|answer| answer.starts_with(b"VALUE z")) {
        if Instant::now() > until {
            return Err("a client is never answered by the program".to_owned());
        }
    }

    let forged: &[&str] = if v6 {
        &["::1", "fd00::1", "fd01::1", "fd01::2", "fd00::77", "2001:db8::9"]
    } else {
        &[
            "127.0.0.1",
            "127.1.2.3",
            "10.0.0.1",
            "10.0.1.1",
            "10.0.1.2",
            "10.0.0.77",
            "198.51.100.9",
        ]
    };
    let ours = if v6 { "fd00::2" } else { "10.0.0.2" };
    let mut id = 0x4000;
    // What is sent, under which number, and what may come of it: `None`: no answer of the program, or one to this link address.
    let mut sent: Vec<(u16, String, Option<[u8; 6]>)> = Vec::new();
    let mut send = |wire: &mut Wire, what: &str, source: &str, link: [[u8; 6]; 2], tag: &[u8], due| -> Result<(), String> {
        id += 1;
        let mut frame = Frame::new(v6, REQUEST);
        frame.datagram[..2].copy_from_slice(&u16::to_be_bytes(id));
        frame.addresses[0] = source.parse().map_err(|_| "no address")?;
        let mut bytes = frame.bytes(Checksum::Full);
        bytes[..6].copy_from_slice(&link[0]);
        bytes[6..12].copy_from_slice(&link[1]);
        bytes.splice(12..12, tag.iter().copied());
        sent.push((id, format!("{what} ({source})"), due));
        wire.0.write_all(&bytes).map_err(|error| format!("{what}: {error}"))
    };
    for source in forged {
        send(&mut wire, "a forged source", source, [target, own], &[], None)?;
    }
    send(&mut wire, "a broadcast", ours, [BROADCAST, own], &[], None)?;
    send(&mut wire, "a multicast", ours, [[1, 0, 0x5E, 0, 0, 1], own], &[], None)?;
    send(&mut wire, "another host's frame", ours, [NOBODYS, own], &[], None)?;
    send(&mut wire, "a VLAN tag", ours, [target, own], &[0x81, 0, 0, 5], None)?;
    send(&mut wire, "a priority tag", ours, [target, own], &[0x81, 0, 0xE0, 0], None)?;
    send(
        &mut wire,
        "two VLAN tags",
        ours,
        [target, own],
        &[0x88, 0xA8, 0, 5, 0x81, 0, 0, 6],
        None,
    )?;
    // In a client's name: the answer is the client's, wherever the frame says that it comes from.
    send(&mut wire, "a client's source", ours, [target, NOBODYS], &[], Some(own))?;
    send(&mut wire, "a client", ours, [target, own], &[], Some(own))?;
    let last = sent.len() - 1;

    // One answer after the other; the last request's is the end.
    let until = Instant::now() + PATIENCE;
    let mut answered = vec![false; sent.len()];
    while !answered[last] {
        if Instant::now() > until {
            return Err("the last request, a client's, is never answered by the program".to_owned());
        }
        let Some((to, id, payload)) = wire.answer(v6) else { continue };
        let Some(number) = sent.iter().position(|(sent, ..)| *sent == id) else {
            continue;
        };
        if payload == UPSTAIRS {
            continue;
        }
        let (_, what, due) = &sent[number];
        match due {
            None => return Err(format!("{what} is answered by the program: {}", payload.escape_ascii())),
            Some(due) if *due != to => return Err(format!("{what}: the answer goes to {to:x?}, not to {due:x?}")),
            Some(_) => answered[number] = true,
        }
    }
    if !answered[last - 1] {
        return Err(format!("{} is not answered", sent[last - 1].1));
    }
    together(&client)?;
    Ok(format!(
        "{} frames of strangers left alone, and two datagrams that were sent as one",
        sent.len() - 2
    ))
}

/// Two datagrams that the kernel passes on as one (UDP_SEGMENT): together they look like a request, and neither is one.
fn together(client: &UdpSocket) -> Result<(), String> {
    let told = |error: nix::Error| format!("UDP_SEGMENT: {error}");
    let whole = b"\x77\x77\0\0\0\x01\0\0get z z z\r\n";
    setsockopt(client, UdpGsoSegment, &16).map_err(told)?;
    let until = Instant::now() + PATIENCE;
    let answer = loop {
        client.send(whole).map_err(|error| error.to_string())?;
        let mut answer = [0; 2048];
        match client.recv(&mut answer) {
            Ok(len) if answer.starts_with(&whole[..2]) => break answer.get(8..len).unwrap_or_default().to_vec(),
            Ok(_) => {}
            Err(_) if Instant::now() > until => return Err("datagrams sent together: no answer".to_owned()),
            Err(_) => {}
        }
    };
    setsockopt(client, UdpGsoSegment, &0).map_err(told)?;
    if answer == UPSTAIRS {
        Ok(())
    } else {
        Err(format!(
            "two datagrams that were sent together are answered as one: {}",
            answer.escape_ascii()
        ))
    }
}

fn ask(client: &UdpSocket, request: &[u8]) -> Option<Vec<u8>> {
    client.send(&[b"\x11\x11\0\0\0\x01\0\0", request].concat()).ok()?;
    let mut answer = [0; 2048];
    let len = client.recv(&mut answer).ok()?;
    Some(answer.get(8..len)?.to_vec())
}

fn link(text: &str) -> Result<[u8; 6], String> {
    let bytes: Option<Vec<u8>> = text.trim().split(':').map(|byte| u8::from_str_radix(byte, 16).ok()).collect();
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| format!("{text:?} is no link address"))
}

/// A raw socket at `veth`.
struct Wire(File);

impl Wire {
    fn open() -> Result<Self, String> {
        let told = |error: nix::Error| format!("a packet socket: {error}");
        let socket = socket(AddressFamily::Packet, SockType::Raw, SockFlag::empty(), SockProtocol::EthAll).map_err(told)?;
        setsockopt(&socket, ReceiveTimeout, &TimeVal::milliseconds(ATTEMPT_MS)).map_err(told)?;
        let number = std::fs::read_to_string("/sys/class/net/veth/ifindex").map_err(|error| error.to_string())?;
        let address = libc::sockaddr_ll {
            sll_family: u16::try_from(libc::AF_PACKET).unwrap_or(0),
            sll_protocol: u16::try_from(libc::ETH_P_ALL).unwrap_or(0).to_be(),
            sll_ifindex: number.trim().parse().map_err(|_| "no interface")?,
            sll_hatype: 0,
            sll_pkttype: 0,
            sll_halen: 0,
            sll_addr: [0; 8],
        };
        let len = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or(0);
        // SAFETY: an address of this length, which the kernel copies.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), len) };
        if bound != 0 {
            return Err(format!("a packet socket: {}", std::io::Error::last_os_error()));
        }
        Ok(Self(socket.into()))
    }

    /// A datagram from the served port that has come by: the link address that it is for, its number, and its payload.
    fn answer(&mut self, v6: bool) -> Option<([u8; 6], u16, Vec<u8>)> {
        let mut frame = [0; 4096];
        let len = self.0.read(&mut frame).ok()?;
        let frame = &frame[..len];
        let (kind, udp): (&[u8], usize) = if v6 { (b"\x86\xdd", 54) } else { (b"\x08\0", 34) };
        let is_answer = frame.get(12..14)? == kind && frame.get(udp..udp + 2)? == PORT.to_be_bytes();
        if !is_answer {
            return None;
        }
        let number = u16::from_be_bytes(frame.get(udp + 8..udp + 10)?.try_into().ok()?);
        Some((frame.get(..6)?.try_into().ok()?, number, frame.get(udp + 16..)?.to_vec()))
    }
}
