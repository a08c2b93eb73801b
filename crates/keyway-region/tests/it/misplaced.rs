//! Words that lead to items of other keys, where neither a get nor a reclaim looks for them. Its enemy: a caller whose key was another one when
//! it was hashed than when it was written, and a write of another process over a key. No verb publishes such an item; a region that has some
//! is reclaimed, grows and is checked, and all other keys have their values.
//! Guards: P6

use crate::private;
use harness::Random;
use keyway_region::check::check;
use keyway_region::verbs::{Delete, Get};
use keyway_region::{Limits, Moment, Session};
use private::{Page, UNIX_S};

const MEMORY: u64 = 4 << 20;
const STRAYS: usize = 40;

/// Gives this many keys in the memory other bytes, as long as before.
fn rename(pages: &mut [Page], from: &str, to: &str) -> usize {
    assert_eq!(from.len(), to.len());
    let bytes: Vec<u8> = private::words(pages).flat_map(|word| word.to_le_bytes()).collect();
    let found: Vec<usize> = (0..bytes.len())
        .filter(|at| bytes[*at..].starts_with(from.as_bytes()))
        .collect();
    let mut words: Vec<&mut u64> = private::words(pages).collect();
    for at in &found {
        for (i, byte) in to.bytes().enumerate() {
            let mut word = words[(at + i) / 8].to_le_bytes();
            word[(at + i) % 8] = byte;
            *words[(at + i) / 8] = u64::from_le_bytes(word);
        }
    }
    found.len()
}

fn get(session: &mut Session, key: &str, now: u32) -> Option<Vec<u8>> {
    let mut value = Vec::new();
    let found = session.get(key, Get::VALUE, now, &mut value).expect("a key");
    found.map(|_| value)
}

#[test]
fn a_region_with_items_of_other_keys_in_its_slots_is_used_as_any_other() {
    let (mut pages, region) = private::region(MEMORY);
    let process = region.recovery().attach(0, 1, UNIX_S);
    region.limits().write(&Limits {
        item_size_max: 1 << 18,
        evict: true,
        ..Limits::default()
    });
    let now = region.clock().tick(Moment::from_secs(UNIX_S));
    let mut session = region.session(process).expect("a slot");
    let names = |begin: &str, number: usize| format!("{begin}-{number:03}");
    for number in 0..STRAYS {
        let name = names("stray", number);
        session.set(&name, name.as_bytes(), 0, 0, now).expect("a set");
        session
            .set(names("stays", number).as_str(), b"stays", 0, 0, now)
            .expect("a set");
    }
    for number in 0..STRAYS {
        // The value is not the first thing with these bytes, but only the key counts.
        let renamed = rename(&mut pages, &names("stray", number), &names("moved", number));
        assert!(renamed >= 2, "the key and the value of an item");
    }
    let report = check(&region, |_| ());
    assert_eq!((report.problems.len(), report.unlisted), (STRAYS, 0), "{:?}", report.problems);
    assert!(
        report.problems.iter().all(|problem| problem.contains("moved-")),
        "{:?}",
        report.problems
    );
    for number in 0..STRAYS {
        assert_eq!(
            get(&mut session, &names("stray", number), now),
            None,
            "its key is another one"
        );
        assert_eq!(
            get(&mut session, &names("stays", number), now).as_deref(),
            Some(&b"stays"[..])
        );
    }
    // The index doubles more than once, and each segment is used many times.
    let buckets = region.directory().index_buckets();
    let mut random = Random::new(7);
    for round in 0..4_u64 {
        for number in 0..12_000_u64 {
            let key = format!("key-{}", number % 9_000);
            let len =
                [8, 20, 300, 6_000][usize::from(number % 50 == 0) * 3 + (number % 3) as usize * usize::from(number % 50 != 0)];
            let value = format!("{key}/{round}/{}", "x".repeat(len));
            session.set(&key, value.as_bytes(), 0, 0, now).expect("a set");
            let other = format!("key-{}", random.below(9_000));
            if let Some(value) = get(&mut session, &other, now) {
                assert!(
                    value.starts_with(format!("{other}/").as_bytes()),
                    "{other}: {}",
                    value.escape_ascii()
                );
            }
            let stray = names(["stray", "moved"][random.index(2)], random.index(STRAYS));
            match random.below(3) {
                0 => drop(session.set(&stray, stray.as_bytes(), 0, 0, now).expect("a set")),
                1 => drop(session.delete(&stray, &Delete::default(), now).expect("a delete")),
                _ => assert!(
                    get(&mut session, &stray, now).is_none_or(|value| value == stray.as_bytes()),
                    "{stray}"
                ),
            }
        }
        session.upkeep(now);
    }
    assert!(region.directory().index_buckets() > buckets, "the index grew");
    session.release_extents();
    let report = check(&region, |_| ());
    let problems = report.problems.len() + report.unlisted;
    assert!(problems <= STRAYS, "{:?}", report.problems);
    // Of the words that lead nowhere, and of no other.
    let of_strays =
        |problem: &&String| problem.contains("moved-") || problem.contains("leads nowhere") || problem.contains("no item begins");
    assert_eq!(
        report.problems.iter().filter(of_strays).count(),
        report.problems.len(),
        "{:?}",
        report.problems
    );
    drop(session);
}
