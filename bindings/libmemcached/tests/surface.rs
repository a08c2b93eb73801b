//! A C program over libmemcached's whole surface: enemy, an answer of the drop-in's that differs from libmemcached's and memcached's.

mod common;

use common::{Dropin, Library, Pair, assert_same, has_memcached, printed};
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
