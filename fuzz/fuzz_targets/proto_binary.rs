//! Binary packets in any chunks, whole ones and broken ones: no panic, progress, the same conversation however the bytes are cut,
//! and every answer as long as its header says.
//! Guards: P37

#![no_main]

use keyway_fuzz::converse;
use keyway_proto::Request;
use keyway_proto::binary::{self, HEADER_LEN, Head, Operation, Status};
use libfuzzer_sys::fuzz_target;

/// Lengths of extras that some command has, and one that none has.
const EXTRAS: [u8; 5] = [0, 4, 8, 20, 3];

fuzz_target!(|input: &[u8]| {
    let Some((sizes, recipes)) = input.split_at_checked(8) else {
        return;
    };
    let stream: Vec<u8> = recipes.chunks(6).flat_map(packet).collect();
    let whole = converse(&stream, &[], answer);
    assert_eq!(converse(&stream, sizes, answer), whole);
    assert_eq!(converse(&stream, &[1], answer), whole);
    // Bytes that nobody has put together, behind a packet that makes them packets.
    let raw = [&packet(&[0x0a]), recipes].concat();
    assert_eq!(converse(&raw, sizes, answer), converse(&raw, &[], answer));
});

/// A packet: its opcode, the lengths of its parts, what is odd about it, and what its parts consist of.
fn packet(recipe: &[u8]) -> Vec<u8> {
    let at = |index: usize| recipe.get(index).copied().unwrap_or(0);
    let key_len = u16::from(at(1)) + if at(1) > 250 { 1000 } else { 0 };
    let extras_len = EXTRAS[usize::from(at(2)) % EXTRAS.len()];
    let value_len = u32::from(at(3)) * if at(4) & 4 == 0 { 1 } else { 9 };
    let mut body_len = u32::from(extras_len) + u32::from(key_len) + value_len;
    if at(4) & 16 != 0 {
        body_len = body_len.wrapping_sub(u32::from(at(3)));
    }
    let mut bytes = vec![if at(4) & 32 == 0 { binary::REQUEST } else { at(5) }, at(0)];
    bytes.extend(key_len.to_be_bytes());
    bytes.extend([extras_len, 0, 0, 0]);
    bytes.extend(body_len.to_be_bytes());
    bytes.extend([at(5); 4]);
    bytes.extend(u64::from(at(4) & 1).to_be_bytes());
    bytes.extend((0..usize::from(extras_len) + usize::from(key_len)).map(|_| at(5)));
    bytes.extend((0..value_len).map(|_| at(5)));
    bytes
}

/// Writes the answers that a server could give.
fn answer(request: &Request<'_>) {
    let Request::Binary(request) = request else { return };
    let head = request.head;
    match &request.operation {
        Operation::Get { key, with_key, .. } => {
            whole(|out| binary::miss(out, head, key));
            whole(|out| {
                binary::hit(out, head, with_key.then_some(key), 7, 3, 9);
                out.extend_from_slice(b"abc");
            });
        }
        Operation::Stat { argument } => whole(|out| binary::stat(out, head, argument, b"1")),
        Operation::Refuse { status, .. } => whole(|out| binary::error(out, head, *status)),
        _ => whole(|out| binary::done(out, head, 1)),
    }
    whole(|out| binary::error(out, Head { ..head }, Status::OutOfMemory));
}

fn whole(write: impl FnOnce(&mut Vec<u8>)) {
    let mut out = Vec::new();
    write(&mut out);
    let header = &out[..HEADER_LEN];
    assert_eq!(header[0], binary::ANSWER);
    let body_len = u32::from_be_bytes(header[8..12].try_into().expect("4 bytes"));
    assert_eq!(out.len(), HEADER_LEN + body_len as usize, "an answer is as long as it says");
    let parts_len = usize::from(header[4]) + usize::from(u16::from_be_bytes([header[2], header[3]]));
    assert!(parts_len <= body_len as usize, "extras and key are parts of the body");
}
