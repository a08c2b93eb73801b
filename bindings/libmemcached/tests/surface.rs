//! A C program over libmemcached's whole surface: enemy, an answer of the drop-in's that differs from libmemcached's and memcached's.

mod common;

use common::{Dropin, Library, NOWHERE, Pair, assert_same, has_memcached, printed};
use harness::{Kind, ServeOptions, Server};
use std::process::Command;

#[test]
fn the_whole_surface_answers_as_libmemcached_does() {
    let test = "a C program over libmemcached's surface";
    let dropin = Dropin::new();
    let Some(program) = dropin.compile(test, "surface.c") else {
        return;
    };
    if !has_memcached(test) {
        return;
    }
    let run = |library| {
        let pair = Pair::start(library);
        printed(dropin.give(Command::new(&program).args(pair.arguments()), library))
    };
    let expected = run(Library::Debian);
    assert!(expected.lines().count() > 900, "it does much:\n{expected}");
    assert_same("by LD_PRELOAD", &expected, &run(Library::Preloaded));
    assert_same("in its place", &expected, &run(Library::Replaced));
}

/// What one program encodes, another one decodes, with the drop-in or without it.
#[test]
fn values_are_encoded_as_libmemcached_encodes_them() {
    let dropin = Dropin::new();
    let Some(program) = dropin.compile("values under an encoding key", "encoded.c") else {
        return;
    };
    let server = Server::start(Kind::Keyway, &ServeOptions::default());
    let command = || {
        let mut command = Command::new(&program);
        command.arg(server.address().port().to_string());
        command
    };
    let expected = printed(&mut command());
    assert!(expected.contains("keyed: SUCCESS 6120736563726574"), "{expected}");
    assert_same(
        "by LD_PRELOAD",
        &expected,
        &printed(command().env("LD_PRELOAD", dropin.file())),
    );
    // Without the real library nothing is encoded, and that is said.
    let mut alone = command();
    alone
        .env("LD_PRELOAD", dropin.file())
        .env("KEYWAY_LIBMEMCACHED_REAL", NOWHERE);
    let told = printed(&mut alone);
    assert!(told.contains("key: 28") && !told.contains("key: 0"), "{told}");
}
