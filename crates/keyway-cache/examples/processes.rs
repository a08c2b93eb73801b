//! Processes that count together, without a server: `cargo run --example processes [REGION]` starts itself four times. Each of
//! them may be killed at any instruction without harm to the others.
#![allow(clippy::print_stdout, reason = "what it shows")]

use keyway_cache::{Arithmetic, Cache, Counted, Options, Place};
use std::process::Command;

fn count(path: &str, times: u32) -> Result<u64, Box<dyn std::error::Error>> {
    let cache = Cache::open(&Place::at(path), &Options::new().memory(64 << 20))?;
    let up = Arithmetic {
        delta: 1,
        vivify: Some((1, 0)),
        ..Arithmetic::default()
    };
    let mut last = 0;
    for _ in 0..times {
        // A session for this thread, kept between calls.
        if let Counted::Value { value, .. } = cache.with_session(|session, _| session.arithmetic(b"count", &up))?? {
            last = value;
        }
    }
    Ok(last)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().unwrap_or_else(|| "/dev/shm/keyway.region".into());
    if arguments.next().is_some() {
        count(&path, 1000)?;
        return Ok(());
    }
    let before = count(&path, 1)?;
    let itself = std::env::current_exe()?;
    let children: Result<Vec<_>, _> = (0..4).map(|_| Command::new(&itself).args([&path, "child"]).spawn()).collect();
    for mut child in children? {
        assert!(child.wait()?.success(), "a child counts");
    }
    println!("4 processes counted to {}", count(&path, 1)? - before - 1);
    Ok(())
}
