//! A C program over libmemcached's whole surface: enemy, an answer of the drop-in's that differs from libmemcached's and memcached's.
//! Guards: P31

use crate::common::{Dropin, Library, NOWHERE, Pair, assert_same, has_memcached, printed};
use harness::{Kind, ServeOptions, Server};
use keyway_cache::{Cache, Options, Place};
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

/// A list of option strings, and many that differ from those by some bytes.
#[test]
fn option_strings_mean_what_they_mean_to_libmemcached() {
    let dropin = Dropin::new();
    let Some(program) = dropin.compile("option strings", "options.c") else {
        return;
    };
    let run = |library| {
        let mut command = Command::new(&program);
        // No configuration in the environment is a handle without servers.
        command.arg("50000").env("LIBMEMCACHED", "");
        printed(dropin.give(&mut command, library))
    };
    let expected = run(Library::Debian);
    let made = expected.lines().filter(|line| line.contains(" made ")).count();
    assert!(made > 2000 && made < 30000, "{made} are accepted");
    assert_same("option strings", &expected, &run(Library::Preloaded));
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

/// The arguments of its functions change while they run. `KEYWAY_TESTS_FULL`: for minutes.
#[test]
fn arguments_that_change_during_a_call_harm_nobody() {
    let dropin = Dropin::new();
    let Some(program) = dropin.compile("arguments that change during calls", "changing.c") else {
        return;
    };
    let is_full = std::env::var_os("KEYWAY_TESTS_FULL").is_some();
    for checksums in [false, true] {
        let region = dropin.scratch.join(&format!("region-{checksums}"));
        let options = Options::new().memory(16 << 20).checksums(checksums);
        let cache = Cache::open(&Place::at(&region), &options).expect("a region");
        let mut command = Command::new(&program);
        command
            .arg(format!("keyway:{}", region.display()))
            .arg(if is_full { "40" } else { "4" });
        assert_eq!(
            printed(dropin.give(&mut command, Library::Replaced)),
            "OK\n",
            "checksums {checksums}"
        );
        assert_eq!(cache.check(|_| ()).problems, [""; 0], "checksums {checksums}");
        assert_eq!(cache.counters().corrupt, 0);
    }
}
