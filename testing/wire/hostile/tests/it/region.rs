//! Bad region files: truncated, with bits flipped, of another version, empty, a directory, another program's file. The server and
//! `keyway check` give a clear error or carry on with misses; they never crash, hang, or lose the file silently.
//! Guards: P6, P22

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;

use harness::{Kind, Random, Scratch, ServeOptions, Server, Transport, full_run, keyway_check, printable, say};

const MEMORY_MB: u32 = 4;

/// What became of a server that was given a bad region.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
enum Fate {
    /// it ended with an error of its own
    Refused,
    /// it serves, and at least one value is still there
    Served,
    /// it serves, and nothing is there
    ServedEmpty,
}

/// A region that a server filled and left in good order.
fn good_region(scratch: &Scratch) -> Vec<u8> {
    let path = scratch.join("good");
    let mut server = Server::start(Kind::Keyway, &options(&path));
    let mut wire = server.connect(Transport::Tcp);
    for n in 0..KEYS {
        let value = value(n);
        wire.send(&[format!("set key:{n} {n} 0 {}\r\n", value.len()).as_bytes(), &value, b"\r\n"].concat())
            .expect("a set");
        assert_eq!(wire.line().expect("an answer"), b"STORED");
    }
    drop(wire);
    let status = server.terminate();
    assert!(status.success(), "SIGTERM: {status}\n{}", server.log());
    drop(server);
    std::fs::read(&path).expect("the region is a file")
}

const KEYS: usize = 400;

fn value(n: usize) -> Vec<u8> {
    format!("value {n} ").repeat(1 + n % 60).into_bytes()
}

fn options(region: &Path) -> ServeOptions {
    ServeOptions {
        memory_mb: MEMORY_MB,
        threads: 2,
        region: Some(region.into()),
        ..ServeOptions::default()
    }
}

/// Starts a server and `keyway check` on a bad file; panics on a crash, a hang, or an error without a word.
fn try_region(case: &str, path: &Path) -> Fate {
    let (status, report) = keyway_check(path);
    assert!(
        status.code().is_some(),
        "{case}: keyway check died of signal {:?}:\n{report}",
        status.signal()
    );
    assert!(!report.contains("panicked"), "{case}: keyway check:\n{report}");
    assert!(
        status.success() || !report.trim().is_empty(),
        "{case}: keyway check fails without a word"
    );

    let mut server = match Server::try_start(Kind::Keyway, &options(path)) {
        Err(report) => {
            assert!(!report.contains("panicked") && !report.contains("signal"), "{case}: {report}");
            assert!(report.lines().count() > 1, "{case}: the server ends without a word: {report}");
            return Fate::Refused;
        }
        Ok(server) => server,
    };
    let mut wire = server.connect(Transport::Tcp);
    let mut present = 0;
    for n in 0..KEYS {
        present += usize::from(reads_well_formed(case, &mut wire, n));
    }
    // it is a cache that works
    for n in 0..50 {
        let stored = wire
            .ask(&format!("set fresh:{n} 0 0 5\r\nfresh"))
            .unwrap_or_else(|e| panic!("{case}: set: {e}\n{}", server.log()));
        assert!(
            stored == "STORED" || stored.starts_with("SERVER_ERROR "),
            "{case}: set: {stored}"
        );
    }
    let _ = wire.ask("incr key:1 1");
    let _ = wire.ask("touch key:2 100");
    let _ = wire.ask("delete key:3");
    let flushed = wire
        .ask("flush_all")
        .unwrap_or_else(|e| panic!("{case}: flush_all: {e}\n{}", server.log()));
    assert_eq!(flushed, "OK", "{case}");
    drop(wire);
    let status = server.terminate();
    assert!(status.signal().is_none(), "{case}: after SIGTERM: {status}\n{}", server.log());
    assert!(!server.log().contains("panicked"), "{case}:\n{}", server.log());
    if present == 0 { Fate::ServedEmpty } else { Fate::Served }
}

/// Whether key `n` is there; its answer must have the protocol's form, whatever was done to the region.
fn reads_well_formed(case: &str, wire: &mut harness::Wire, n: usize) -> bool {
    let head = wire
        .ask(&format!("get key:{n}"))
        .unwrap_or_else(|e| panic!("{case}: get key:{n}: {e}"));
    if head == "END" {
        return false;
    }
    let words: Vec<&str> = head.split(' ').collect();
    let ["VALUE", name, _, len] = words[..] else {
        panic!("{case}: get key:{n}: {head}")
    };
    assert_eq!(name, format!("key:{n}"), "{case}");
    let len: usize = len.parse().unwrap_or_else(|e| panic!("{case}: {head}: {e}"));
    wire.exactly(len).unwrap_or_else(|e| panic!("{case}: key:{n}: {e}"));
    let end = wire.exactly(7).unwrap_or_else(|e| panic!("{case}: key:{n}: {e}"));
    assert_eq!(end, b"\r\nEND\r\n", "{case}: key:{n}: {}", printable(&end));
    true
}

fn print_fates(test: &str, fates: &[Fate]) {
    let mut counts = BTreeMap::new();
    for fate in fates {
        *counts.entry(fate).or_insert(0) += 1;
    }
    say(&format!("{test}: {} regions: {counts:?}", fates.len()));
}

#[test]
fn a_region_that_nothing_was_done_to_is_warm() {
    if !Kind::keyway_is_wanted() {
        return;
    }
    let scratch = Scratch::new();
    let bytes = good_region(&scratch);
    let path = scratch.join("copy");
    std::fs::write(&path, bytes).expect("a copy");
    let (status, report) = keyway_check(&path);
    assert!(status.success(), "{status}\n{report}");
    // a copy is another file: whether it is warm is the server's policy, that it works is not
    assert_ne!(try_region("a copy", &path), Fate::Refused);
}

#[test]
fn truncated_regions() {
    if !Kind::keyway_is_wanted() {
        return;
    }
    let scratch = Scratch::new();
    let bytes = good_region(&scratch);
    let mut fates = Vec::new();
    for len in [
        1,
        7,
        8,
        63,
        64,
        4_095,
        4_096,
        4_097,
        bytes.len() / 3,
        bytes.len() / 2,
        bytes.len() - 4_096,
        bytes.len() - 1,
    ] {
        let path = scratch.join(&format!("truncated-{len}"));
        fates.push(kept_if_refused(&format!("truncated to {len} bytes"), &path, &bytes[..len]));
    }
    // longer than it says
    let longer = [bytes.as_slice(), &[7; 5_000]].concat();
    fates.push(kept_if_refused("5,000 bytes too long", &scratch.join("longer"), &longer));
    print_fates("truncated regions", &fates);
}

/// Tries a file of bad bytes, which a server that refuses it must leave as it is.
fn kept_if_refused(case: &str, path: &Path, bytes: &[u8]) -> Fate {
    std::fs::write(path, bytes).expect("a file");
    let fate = try_region(case, path);
    if fate == Fate::Refused {
        let after = std::fs::read(path).unwrap_or_default();
        assert!(bytes == after, "{case}: the server refused the file and changed it");
    }
    let _ = std::fs::remove_file(path);
    fate
}

#[test]
fn regions_with_flipped_bits() {
    if !Kind::keyway_is_wanted() {
        return;
    }
    let scratch = Scratch::new();
    let bytes = good_region(&scratch);
    let seed = Random::seed_for("regions with flipped bits");
    let mut random = Random::new(seed);
    let cases = if full_run() { 1_000 } else { 60 };
    let mut fates = Vec::new();
    for case in 0..cases {
        let mut broken = bytes.clone();
        // where the bookkeeping is, most harm can be done
        let reach = match case % 4 {
            0 => 512,
            1 => 64 << 10,
            _ => broken.len(),
        };
        let flips = [1, 3, 50, 5_000][random.index(4)];
        for _ in 0..flips {
            let at = random.index(reach.min(broken.len()));
            broken[at] ^= 1 << random.below(8);
        }
        let path = scratch.join("flipped");
        std::fs::write(&path, &broken).expect("a copy");
        fates.push(try_region(
            &format!("case {case}, {flips} bits in the first {reach} bytes, seed {seed}"),
            &path,
        ));
        let _ = std::fs::remove_file(&path);
    }
    print_fates("regions with flipped bits", &fates);
}

#[test]
fn every_byte_of_the_first_line_counts_or_does_not_matter() {
    if !Kind::keyway_is_wanted() {
        return;
    }
    // magic, format version and feature bits are somewhere here: each byte in turn says something else
    let scratch = Scratch::new();
    let bytes = good_region(&scratch);
    let mut fates = Vec::new();
    for at in 0..64 {
        let mut other = bytes.clone();
        other[at] = other[at].wrapping_add(1);
        fates.push(kept_if_refused(
            &format!("byte {at} is one more"),
            &scratch.join("other"),
            &other,
        ));
    }
    assert!(fates.contains(&Fate::Refused), "no byte of the first 64 is looked at");
    print_fates("regions of another version", &fates);
}

#[test]
fn what_is_no_region_is_left_alone() {
    if !Kind::keyway_is_wanted() {
        return;
    }
    let scratch = Scratch::new();
    let mut random = Random::new(Random::seed_for("files that are no region"));
    let text = "Dear diary, this file is no cache.\n".repeat(10_000).into_bytes();
    let foreign = [
        ("a text", text),
        ("random bytes", random.bytes(3 << 20)),
        ("zeros", vec![0; 3 << 20]),
        ("one byte", vec![b'x']),
    ];
    for (case, bytes) in foreign {
        let fate = kept_if_refused(case, &scratch.join("foreign"), &bytes);
        if case != "zeros" {
            assert_eq!(fate, Fate::Refused, "{case} is taken for a region");
        }
    }

    let path = scratch.join("empty");
    std::fs::write(&path, []).expect("a file");
    try_region("an empty file", &path);

    let path = scratch.join("directory");
    std::fs::create_dir(&path).expect("a directory");
    std::fs::write(path.join("inside"), "still here").expect("a file");
    assert_eq!(try_region("a directory", &path), Fate::Refused);
    assert!(path.join("inside").exists());

    assert_eq!(try_region("a device", Path::new("/dev/null")), Fate::Refused);
    assert_eq!(
        try_region("a path in no directory", &scratch.join("no/such/directory/region")),
        Fate::Refused
    );
}
