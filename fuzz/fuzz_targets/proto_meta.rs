//! Meta commands in any chunks, put together from the alphabet of the language, and answered: no panic, progress, the same
//! conversation however the bytes are cut, and every answer one line.
//! Guards: P37

#![no_main]

use keyway_fuzz::converse;
use keyway_proto::reply::{ItemFacts, MetaCode, MetaCommand, meta};
use keyway_proto::{Flags, Meta, MetaKey, Request};
use libfuzzer_sys::fuzz_target;

/// What each byte of the input stands for. Bytes beyond the list stand for themselves.
const WORDS: [&[u8]; 44] = [
    b"mg ",
    b"ms ",
    b"md ",
    b"ma ",
    b"me ",
    b"mn",
    b"\r\n",
    b"\n",
    b" ",
    b" b",
    b" c",
    b" C",
    b" D",
    b" E",
    b" F",
    b" f",
    b" h",
    b" I",
    b" J",
    b" k",
    b" l",
    b" M",
    b" N",
    b" O",
    b" P",
    b" L",
    b" q",
    b" R",
    b" s",
    b" T",
    b" t",
    b" u",
    b" v",
    b" x",
    b"0",
    b"1",
    b"2",
    b"-",
    b"18446744073709551615",
    b"Zm9v",
    b"=",
    b"kkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkkk",
    b" 2\r\nhi\r\n",
    b" 300\r\n",
];

fuzz_target!(|input: &[u8]| {
    let Some((sizes, letters)) = input.split_at_checked(8) else {
        return;
    };
    let stream: Vec<u8> = letters
        .iter()
        .flat_map(|letter| {
            WORDS
                .get(usize::from(*letter))
                .copied()
                .unwrap_or(std::slice::from_ref(letter))
        })
        .copied()
        .collect();
    let whole = converse(&stream, &[], answer);
    assert_eq!(converse(&stream, sizes, answer), whole);
    assert_eq!(converse(&stream, &[1], answer), whole);
});

/// Writes the answers that a server could give.
fn answer(request: &Request<'_>) {
    match request {
        Request::Meta(Meta::Get(get)) => lines(
            MetaCommand::Get,
            &[MetaCode::Value, MetaCode::Done, MetaCode::Miss],
            &get.flags,
            &get.key,
        ),
        Request::Meta(Meta::Set(set)) => lines(MetaCommand::Set, &[MetaCode::Done, MetaCode::NotStored], &set.flags, &set.key),
        Request::Meta(Meta::Delete(delete)) => lines(
            MetaCommand::Delete,
            &[MetaCode::Done, MetaCode::Exists],
            &delete.flags,
            &delete.key,
        ),
        Request::Meta(Meta::Arithmetic(count)) => {
            lines(
                MetaCommand::Arithmetic,
                &[MetaCode::Value, MetaCode::NotFound],
                &count.flags,
                &count.key,
            );
        }
        _ => {}
    }
}

fn lines(command: MetaCommand, codes: &[MetaCode], flags: &Flags<'_>, key: &MetaKey<'_>) {
    let facts = ItemFacts {
        key: key.stored(),
        is_binary: key.is_binary(),
        win: true,
        ..ItemFacts::default()
    };
    for code in codes {
        let mut out = Vec::new();
        meta(&mut out, command, *code, flags, &facts);
        assert!(out.ends_with(b"\r\n"));
        assert_eq!(out.iter().filter(|&&byte| byte == b'\n').count(), 1, "an answer is one line");
        assert!(out.len() < 4096, "as long as a request line at most");
    }
}
