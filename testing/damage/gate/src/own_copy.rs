//! `own-copy`: a Rust program with the library in it, prepared for `keyway exec`. It stores and reads, and says what comes of it; then
//! waits until its input ends.

#![allow(clippy::print_stdout, reason = "its answers")]

use keyway_cache::{Cache, Options, Place};

#[allow(unsafe_code, reason = "a list that the loader reads")]
mod start {
    keyway_harden::hardened_at_start!();
}

fn main() {
    let place = std::env::args_os().nth(1).expect("own-copy PLACE");
    println!("{}", tried(&Place::at(place)));
    let _ = std::io::stdin().read_line(&mut String::new());
}

fn tried(place: &Place) -> String {
    let options = Options::new();
    let cache = match Cache::open(place, &options) {
        Ok(cache) => cache,
        Err(error) => return format!("not opened: {error}"),
    };
    let mut value = Vec::new();
    let done = cache.session().map(|mut session| {
        let stored = session.set(b"key", b"value", 0).is_ok();
        stored && session.get_append(b"key", &mut value).is_ok_and(|found| found.is_some()) && value == b"value"
    });
    let left = std::env::vars_os().any(|(name, _)| name.to_string_lossy().starts_with("KEYWAY_EXEC"));
    format!("works: {done:?}, gate {}, left in the environment: {left}", cache.info().gate)
}
