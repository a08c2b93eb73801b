//! Gets and sets of large values beside the plain copies that they contain, in one process, in turn: `get_append` beside a
//! `memcpy` from as many places as there are items, and `set` beside writing the same bytes round a ring as long as the region's log.

use benches::{Args, Turn, describe, each, fill, head, in_turn, indices, keys, on_last_cpu, region, row, say, used};
use keyway_bench::workload::Key;
use keyway_cache::Options;
use std::hint::black_box;

const HELP: &str = "\
copies: gets and sets of large values beside plain copies of as many bytes

    --value-len N  bytes of a value (5120)
    --runs N       runs of each side, in turn (15)
    --items N,...  items of the gets (64,20000)
    --huge-pages   ask for huge pages for the region

KEYWAY_GATE=off leaves the gate open, as in most figures of docs/performance.md; with KEYWAY_GATE=on a machine must have one.";

/// Items that are set.
const SET: u64 = 10_000;

fn main() {
    let args = Args::parse(HELP);
    let (len, runs): (usize, usize) = (args.number("--value-len", 5120), args.number("--runs", 15));
    on_last_cpu();
    describe();
    say(format!("values of {len} bytes; medians of {runs} runs, in turn"));
    say(head(&["", "items", "plain copy, ns", "Keyway, ns", "ratio"]));
    let options = |items| {
        Options::new()
            .memory(memory(items, len))
            .prefault(true)
            .huge_pages(args.has("--huge-pages"))
    };
    for items in args.numbers("--items", &[64, 20_000]) {
        let cache = region(&options(items));
        let mut session = fill(&cache, items, &vec![b'v'; len]);
        let (order, places) = (keys(items, true, 1 << 15, 7), indices(items, true, 1 << 15, 7));
        let from = vec![b'v'; usize::try_from(items).expect("items in memory") * len];
        let (mut copy, mut at, mut out) = (vec![0; len], places.iter().cycle(), Vec::with_capacity(2 * len));
        let plain = move |_: &Key| {
            let place = at.next().map_or(0, |place| usize::try_from(*place).unwrap_or(0));
            copy.copy_from_slice(&from[black_box(place * len)..][..len]);
            used(&copy);
        };
        let keyway = |key: &Key| {
            out.clear();
            assert!(session.get_append(black_box(key), &mut out).expect("a good key").is_some());
            used(&out);
        };
        compare("get", items, runs, [each(&order, plain), each(&order, keyway)]);
    }
    let value = vec![b'w'; len];
    let cache = region(&options(SET));
    let mut session = fill(&cache, SET, &value);
    let order = keys(SET, true, 1 << 14, 7);
    let (mut ring, mut at) = (vec![0_u8; usize::try_from(memory(SET, len)).expect("a region in memory")], 0);
    let plain = |_: &Key| {
        at = if at + len > ring.len() { 0 } else { at };
        ring[at..at + len].copy_from_slice(black_box(&value));
        at += len;
        used(&ring);
    };
    let keyway = |key: &Key| {
        let stored = session.set(black_box(key), black_box(&value), 0);
        assert!(stored.is_ok(), "a set is not refused");
    };
    compare("set over an item", SET, runs, [each(&order, plain), each(&order, keyway)]);
}

fn compare(what: &str, items: u64, runs: usize, [plain, keyway]: [Turn<'_>; 2]) {
    let measured = in_turn(runs, &mut [("plain", plain), ("Keyway", keyway)]);
    let [[plain, _], [keyway, ratio]] = &measured[..] else {
        return;
    };
    say(row(&[
        what.to_owned(),
        items.to_string(),
        plain.show(0),
        keyway.show(0),
        ratio.show(2),
    ]));
}

/// The memory for this many items, twice.
fn memory(items: u64, len: usize) -> u64 {
    2 * items * (len as u64 + 64) + (64 << 20)
}
