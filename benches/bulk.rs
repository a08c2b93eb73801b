//! Many keys in one call beside as many calls, one thread, items that are not in cache: `get_many_append` beside `get_append`, and `set_many`
//! and `delete_many` beside theirs, in turn in one process.

use benches::{Args, Turn, describe, fill, head, in_turn, keys, ns_each, on_last_cpu, region, row, say, used};
use keyway_bench::workload::Key;
use keyway_cache::{Delete, Deleted, Options, Session};
use std::cell::{Cell, RefCell};

const HELP: &str = "\
bulk: many keys in one call beside as many calls with one key, on items that are not in cache

    --items N      items in the region (10000000; each takes about 190 bytes)
    --value-len N  bytes of a value (128)
    --runs N       runs of each side, in turn (9)
    --keys N       keys of a run (200000)
    --huge-pages   ask for huge pages";

/// Keys in a call.
const COUNTS: [usize; 5] = [2, 4, 16, 32, 100];

/// Works on all keys, so many in a call; returns nanoseconds a key.
type Side = fn(&mut Session, &[Key], &[u8], usize) -> f64;
const SIDES: [Side; 3] = [get, set, delete];

fn main() {
    let args = Args::parse(HELP);
    let (items, value_len): (u64, usize) = (args.number("--items", 10_000_000), args.number("--value-len", 128));
    let (runs, count): (usize, usize) = (args.number("--runs", 9), args.number("--keys", 200_000));
    on_last_cpu();
    describe();
    let memory = items * (value_len as u64 + 64) * 5 / 4 + (64 << 20);
    let cache = region(&Options::new().memory(memory).huge_pages(args.has("--huge-pages")));
    let value = &vec![b'v'; value_len];
    let session = &RefCell::new(fill(&cache, items, value));
    // Other keys in each run, as nothing of them shall be in cache.
    let seed = &Cell::new(0);
    let turn = |side: Side, together: usize| -> Turn<'_> {
        Box::new(move || {
            seed.set(seed.get() + 1);
            side(
                &mut session.borrow_mut(),
                &keys(items, true, count, seed.get()),
                value,
                together,
            )
        })
    };
    say(format!(
        "{items} items of 16 + {value_len} bytes, uniform; medians of {runs} runs of {count} keys, in turn"
    ));
    say(head(&["keys in a call", "get, ns a key", "set", "delete"]));
    for together in COUNTS {
        let mut cells = vec![together.to_string()];
        for side in SIDES {
            let measured = in_turn(runs, &mut [("one", turn(side, 1)), ("many", turn(side, together))]);
            let [one, many] = [0, 1].map(|side| measured[side][0].median());
            cells.push(format!("{one:.0} → {many:.0} ({:.2}×)", one / many));
        }
        say(row(&cells));
    }
}

fn get(session: &mut Session, keys: &[Key], value: &[u8], together: usize) -> f64 {
    let mut out = Vec::with_capacity(2 * together * value.len());
    let mut hits = 0;
    let ns = ns_each(keys.len(), || {
        for keys in keys.chunks(together) {
            out.clear();
            match keys {
                [key] => hits += usize::from(session.get_append(key, &mut out).expect("a good key").is_some()),
                keys => session.get_many_append(keys, &mut out, |_, _| hits += 1).expect("good keys"),
            }
            used(&out);
        }
    });
    assert_eq!(hits, keys.len(), "every get hits");
    ns
}

fn set(session: &mut Session, keys: &[Key], value: &[u8], together: usize) -> f64 {
    let mut items = Vec::with_capacity(together);
    ns_each(keys.len(), || {
        for keys in keys.chunks(together) {
            match keys {
                [key] => drop(session.set(key, value, 0).expect("a set is not refused")),
                keys => {
                    items.clear();
                    items.extend(keys.iter().map(|key| (key, value)));
                    assert!(session.set_many(&items, 0).iter().all(Result::is_ok), "a set is not refused");
                }
            }
        }
    })
}

fn delete(session: &mut Session, keys: &[Key], value: &[u8], together: usize) -> f64 {
    let mut gone = 0;
    let ns = ns_each(keys.len(), || {
        let mut count = |deleted| gone += usize::from(matches!(deleted, Ok(Deleted::Deleted)));
        for keys in keys.chunks(together) {
            match keys {
                [key] => count(session.delete(key, &Delete::default())),
                keys => session.delete_many(keys).into_iter().for_each(&mut count),
            }
        }
    });
    assert!(gone > 0, "some keys had an item");
    set(session, keys, value, 1);
    ns
}
