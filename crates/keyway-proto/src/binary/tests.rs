//! Packets of the binary protocol, as they are read and written.

use super::*;
use crate::{Decoder, Limits, Protocol};

/// A packet with these parts.
fn packet(opcode: u8, cas: u64, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let (mut out, opaque) = (Vec::new(), *b"abcd");
    request(&mut out, Head { opcode, opaque }, cas, [extras, key, value]);
    out
}

fn decoder() -> Decoder {
    Decoder::new(Limits {
        item_size_max: 1024,
        ..Limits::default()
    })
}

fn operation(bytes: &[u8]) -> (usize, bool, Operation<'_>) {
    match decoder().decode(bytes) {
        Decoded::Request {
            consumed,
            request: Request::Binary(request),
        } => (consumed, request.quiet, request.operation),
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_command_has_its_parts() {
    let eight = [&7u32.to_be_bytes()[..], &9u32.to_be_bytes()].concat();
    let twenty = [&5u64.to_be_bytes()[..], &6u64.to_be_bytes(), &8u32.to_be_bytes()].concat();
    let set = packet(0x11, 0, &eight, b"k", b"value");
    assert_eq!(
        operation(&set),
        (
            set.len(),
            true,
            Operation::Store {
                verb: StoreVerb::Set,
                key: b"k",
                value: b"value",
                flags: 7,
                exptime: 9,
                cas: 0
            }
        )
    );
    let counting = packet(0x06, 3, &twenty, b"n", b"");
    let (_, _, counted) = operation(&counting);
    assert_eq!(
        counted,
        Operation::Arithmetic {
            key: b"n",
            decrement: true,
            delta: 5,
            create: Some((6, 8)),
            cas: 3
        }
    );
    assert!(matches!(
        operation(&packet(0x24, 0, &[0, 0, 0, 1], b"k", b"")),
        (
            _,
            true,
            Operation::Get {
                with_key: true,
                with_value: true,
                exptime: Some(1),
                ..
            }
        )
    ));
    assert!(matches!(
        operation(&packet(0x02, 4, &eight, b"k", b"v")).2,
        Operation::Store {
            verb: StoreVerb::Cas,
            ..
        }
    ));
    for (opcode, expected) in [
        (0x07, Operation::Quit),
        (0x0a, Operation::Noop),
        (0x0b, Operation::Version),
        (0x08, Operation::Flush { exptime: 0 }),
    ] {
        assert_eq!(operation(&packet(opcode, 0, b"", b"", b"")).2, expected);
    }
}

#[test]
fn a_packet_may_come_byte_by_byte() {
    let set = packet(0x01, 0, &[0; 8], b"key", b"value");
    let mut decoder = decoder();
    for len in 0..set.len() {
        let decoded = decoder.decode(&set[..len]);
        assert!(
            matches!(decoded, Decoded::Incomplete { need } if need > len && need <= set.len()),
            "{len}: {decoded:?}"
        );
    }
    assert!(matches!(decoder.decode(&set), Decoded::Request { consumed, .. } if consumed == set.len()));
}

#[test]
fn what_has_other_parts_is_refused_and_ends_the_connection() {
    for wrong in [
        packet(0x00, 0, b"x", b"k", b""),
        packet(0x00, 0, b"", b"", b""),
        packet(0x00, 0, b"", b"k", b"v"),
        packet(0x01, 0, b"", b"k", b"v"),
        packet(0x0a, 0, b"", b"k", b""),
        packet(0x05, 0, &[0; 8], b"k", b""),
        packet(0x1c, 0, b"", b"k", b""),
        packet(0x04, 0, b"", &[b'k'; 251], b""),
        packet(0x20, 0, b"", b"k", b""),
    ] {
        assert!(
            matches!(
                operation(&wrong).2,
                Operation::Refuse {
                    status: Status::InvalidArguments,
                    close: true,
                    ..
                }
            ),
            "{wrong:?}"
        );
    }
    let mut short = packet(0x00, 0, b"", b"k", b"");
    short[11] = 0;
    assert!(matches!(
        operation(&short).2,
        Operation::Refuse {
            status: Status::UnknownCommand,
            close: true,
            ..
        }
    ));
}

#[test]
fn what_is_unknown_or_too_large_is_dropped_with_its_body() {
    let unknown = packet(0x1b, 0, &[0; 4], b"", b"rest");
    let mut fresh = decoder();
    let Decoded::Refused {
        consumed: 28,
        reply: b"",
        ..
    } = fresh.decode(&unknown)
    else {
        panic!("its value comes first");
    };
    let Decoded::Request {
        consumed: 4,
        request: Request::Binary(Packet { operation: refused, .. }),
    } = fresh.decode(&unknown[28..])
    else {
        panic!("then it is answered");
    };
    assert!(matches!(
        refused,
        Operation::Refuse {
            status: Status::UnknownCommand,
            close: false
        }
    ));

    let large = packet(0x01, 0, &[0; 8], b"k", &[b'v'; 2000]);
    let after = packet(0x0a, 0, b"", b"", b"");
    let mut decoder = decoder();
    let Decoded::TooLarge {
        consumed: 33,
        forget: Some(key),
    } = decoder.decode(&large[..100])
    else {
        panic!("the item goes at once");
    };
    assert_eq!(key.stored(), b"k");
    assert!(
        matches!(
            decoder.decode(&large[33..100]),
            Decoded::Refused {
                consumed: 67,
                reply: b"",
                close: false,
            }
        ),
        "nothing is said before the value is complete"
    );
    let rest = [&large[100..], &after].concat();
    let Decoded::Request { consumed, request } = decoder.decode(&rest) else {
        panic!("the value is complete");
    };
    assert_eq!(consumed, large.len() - 100);
    assert!(matches!(
        request,
        Request::Binary(Packet {
            head: Head { opcode: 0x01, .. },
            operation: Operation::Refuse {
                status: Status::ValueTooLarge,
                close: false
            },
            ..
        })
    ));
    assert!(matches!(
        decoder.decode(&rest[consumed..]),
        Decoded::Request {
            request: Request::Binary(Packet {
                operation: Operation::Noop,
                ..
            }),
            ..
        }
    ));
}

#[test]
fn the_first_byte_decides_for_good() {
    let noop = packet(0x0a, 0, b"", b"", b"");
    let mut binary = decoder();
    assert!(matches!(binary.decode(&noop), Decoded::Request { .. }));
    assert!(matches!(
        binary.decode(b"get k\r\n"),
        Decoded::Refused {
            reply: b"",
            close: true,
            ..
        }
    ));
    let mut text = decoder();
    assert!(matches!(text.decode(b"mn\r\n"), Decoded::Request { .. }));
    assert!(!matches!(text.decode(&noop), Decoded::Request { .. }));
    let mut told = Decoder::speaking(Limits::default(), Protocol::Text);
    assert!(!matches!(told.decode(&noop), Decoded::Request { .. }));
    let mut told = Decoder::speaking(Limits::default(), Protocol::Binary);
    assert!(matches!(told.decode(b"version\r\n"), Decoded::Refused { close: true, .. }));
}
