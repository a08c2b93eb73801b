//! Stores a value and gets it back: `cargo run --example greeting [REGION]`. The region's file is created if it is absent. All
//! processes that open it, and all clients of a server on it, see the same items.
#![allow(clippy::print_stdout, reason = "what it shows")]

use keyway::{Cache, Options, Place, Store};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "/dev/shm/keyway.region".into());
    let cache = Cache::open(&Place::at(path), &Options::default())?;
    let mut session = cache.session()?;
    let for_a_minute = Store {
        exptime: 60,
        ..Store::default()
    };
    session.store(b"greeting", b"hello", &for_a_minute)?;
    let mut value = Vec::new();
    if let Some(item) = session.get(b"greeting", &mut value) {
        println!("{} ({} s left)", String::from_utf8_lossy(&value), item.ttl_s.unwrap_or(0));
    }
    Ok(())
}
