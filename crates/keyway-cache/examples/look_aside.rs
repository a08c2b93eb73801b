//! The usual way to use a cache for a slow source: of many clients that miss at the same time, only one does the work:
//! `cargo run --example look_aside`.
//!
//! The first client that misses creates an empty item (`vivify`) and wins: it computes the value and stores it. Other clients find
//! the empty item, see that another client has won, and wait. Shortly before the value expires, one more client wins
//! (`recache_s`) and computes it again, while the others still get the old value.
#![allow(clippy::print_stdout, reason = "what it shows")]

use keyway_cache::{Cache, Get, Options, Place, Session, Store};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// How often the slow thing was done. PAIRS: nothing; a count.
static COMPUTED: AtomicU32 = AtomicU32::new(0);

fn slow(key: &str) -> String {
    COMPUTED.fetch_add(1, Relaxed);
    key.to_uppercase()
}

fn look_up(session: &mut Session, key: &str) -> Result<String, Box<dyn std::error::Error>> {
    let how = Get {
        value: true,
        vivify: Some(30),
        recache_s: Some(10),
        ..Get::default()
    };
    loop {
        let mut value = Vec::new();
        let item = session.get_with(key.as_bytes(), &how, &mut value, |_, _| {})?;
        let item = item.ok_or("an item is there in any case")?;
        if item.win {
            let value = slow(key);
            let for_an_hour = Store {
                exptime: 3600,
                ..Store::default()
            };
            session.store(key.as_bytes(), value.as_bytes(), &for_an_hour)?;
            return Ok(value);
        }
        if !value.is_empty() {
            return Ok(String::from_utf8(value)?);
        }
        std::thread::yield_now();
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cache = Cache::open(&Place::Memfd, &Options::new())?;
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut session = cache.session().expect("a region has hundreds of slots");
                for key in ["one", "two", "three"] {
                    let value = look_up(&mut session, key).expect("a value");
                    assert_eq!(value, key.to_uppercase());
                }
            });
        }
    });
    println!("8 threads looked up 3 keys, {} were computed", COMPUTED.load(Relaxed));
    Ok(())
}
