//! Stores a value and gets it back: `cargo run --example greeting [REGION]`. The region's file is made if it is absent. All
//! processes that open it, and all clients of a server on it, see the same items.
#![allow(clippy::print_stdout, reason = "what it shows")]

use keyway_cache::{Cache, Options, Place};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "/dev/shm/keyway.region".into());
    let cache = Cache::open(&Place::at(path), &Options::new().memory(64 << 20))?;
    let mut session = cache.session()?;
    session.set(b"greeting", b"hello", 60)?;
    let mut value = Vec::new();
    if let Some(item) = session.get_append(b"greeting", &mut value)? {
        println!("{} ({} s left)", String::from_utf8_lossy(&value), item.ttl_s.unwrap_or(0));
    }
    Ok(())
}
