//! TCP: any options, any frame, any packet, and any seed of two ends. The kernel program's C reads and writes nothing outside its memory; of
//! options it changes the numbers of selective acknowledgements only, and of packets nothing before the sequence number; segments get the
//! numbers of the reference.
//! Guards: P43
#![no_main]

use std::cell::RefCell;
use std::net::IpAddr;

use harness::Random;
use kernel::session;
use keyway_xdp::config::{Config, Settings};
use keyway_xdp::host::{Connection, Form, Socket, Translated};
use libfuzzer_sys::fuzz_target;

thread_local! {
    static CONNECTION: RefCell<Connection> = RefCell::default();
}

fuzz_target!(|data: &[u8]| {
    let Some((&mode, data)) = data.split_first() else { return };
    CONNECTION.with_borrow_mut(|connection| match mode % 4 {
        0 if data.len() <= 40 => {
            // nothing was answered on this connection, so every number is translated to itself
            let mut options = data.to_vec();
            connection.translate(&mut options, mode & 64 != 0);
            assert_eq!(options, data);
        }
        1 if (96..=1400).contains(&data.len()) => {
            let answer = &data[..data.len() - 90];
            if let Some(made) = connection.make(data, [1, 2, 3], answer, mode & 64 != 0) {
                assert!(made.ends_with(answer));
            }
        }
        2 => {
            if let Some(seed) = data.first_chunk() {
                session::hold(&mut Random::new(u64::from_le_bytes(*seed)), 500).unwrap();
            }
        }
        3 if data.len() > 60 => packet(mode, data),
        _ => {}
    });
});

/// A packet of a connection that was answered once.
fn packet(mode: u8, data: &[u8]) {
    thread_local! {
        static ANSWERED: RefCell<Connection> = RefCell::new(answered());
    }
    let is_incoming = mode & 4 != 0;
    let (linear, data) = (usize::from(data[0]), &data[1..]);
    // To or from the served address, wherever that is.
    let at = |v4: usize, v6: usize| if data[12..14] == [0x86, 0xDD] { v6 } else { v4 };
    let place = if is_incoming { at(30, 38) } else { at(26, 22) };
    let address: IpAddr = match (data[12..14] == [0x86, 0xDD], data.get(place..place + 16)) {
        (true, Some(bytes)) => <[u8; 16]>::try_from(bytes).unwrap().into(),
        _ => <[u8; 4]>::try_from(&data[place..place + 4]).unwrap().into(),
    };
    let port_at = at(34, 54) + if is_incoming { 2 } else { 0 };
    let port = data
        .get(port_at..port_at + 2)
        .map_or(1, |port| u16::from_be_bytes([port[0], port[1]]));
    let settings = Settings {
        address,
        udp_port: None,
        tcp_port: Some(port),
        allow: Vec::new(),
        memory: 0,
        rate: None,
    };
    let mut packet = data.to_vec();
    let form = Form {
        linear: linear.min(packet.len()),
        gso_size: u32::from(mode & 8),
        is_partial: mode & 16 != 0,
        is_incoming,
        from_socket: mode & 32 != 0,
    };
    let config = Config::new(&settings).unwrap();
    let outcome = ANSWERED.with_borrow_mut(|connection| connection.translate_packet(&config, &mut packet, form));
    match outcome {
        Translated::Done(_) | Translated::Failed => assert_eq!(packet[..34], data[..34]),
        Translated::NotOurs | Translated::Refused => assert_eq!(packet, data),
    }
}

fn answered() -> Connection {
    let mut connection = Connection::default();
    let mut header = [0; 32];
    (header[12], header[13]) = (0x50, 16);
    header[14..16].fill(0xFF);
    let socket = |received| Socket {
        state: 1,
        received,
        mss: 1400,
        scale: 14,
        ..Socket::default()
    };
    connection.depart(0, 0, 0, 16, 0);
    connection.arrive(&header, 10, false, &socket(0), 0, 0, 0, 1);
    header[4..8].copy_from_slice(&10_u32.to_be_bytes());
    let decision = connection.arrive(&header, 20, false, &socket(10), 10, 10, 100, 200_000_000);
    assert_eq!(decision.step, 1, "it is answered");
    connection
}
