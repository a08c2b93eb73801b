//! Several threads append to one list without losing an entry: get with the CAS unique, change, and store unless another
//! thread was faster. `cargo run --example compare_and_swap`.
#![allow(clippy::print_stdout, reason = "what it shows")]

use keyway_cache::{Cache, Get, Options, Place, Session, Store, StoreMode, Stored};

fn add_to_list(session: &mut Session, entry: &str) -> Result<(), Box<dyn std::error::Error>> {
    // `details` requests the unique, which is in another cache line than the value.
    let how = Get {
        value: true,
        details: true,
        ..Get::default()
    };
    loop {
        let mut list = Vec::new();
        let found = session.get_with(b"list", &how, &mut list, |_, _| {})?;
        list.extend_from_slice(entry.as_bytes());
        list.push(b'\n');
        let unless_changed = Store {
            mode: if found.is_some() { StoreMode::Set } else { StoreMode::Add },
            compare_cas: found.map(|item| item.cas),
            ..Store::default()
        };
        if let Stored::Stored { .. } = session.store(b"list", &list, &unless_changed)? {
            return Ok(());
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cache = Cache::open(&Place::Memfd, &Options::new())?;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let cache = &cache;
            scope.spawn(move || {
                let mut session = cache.session().expect("a region has hundreds of slots");
                for number in 0..50 {
                    add_to_list(&mut session, &format!("{thread}.{number}")).expect("an entry");
                }
            });
        }
    });
    let list = cache.session()?.get(b"list")?.ok_or("a list")?;
    println!("{} entries", String::from_utf8(list)?.lines().count());
    Ok(())
}
