//! The hot-key counters against an exact count of what they were given. Its enemies: bounds that do not hold, a window that counts what was
//! before it, and counters in which another process has written anything.
//! Guards: P46
#![allow(clippy::cast_precision_loss, reason = "a test: its numbers are small")]

use crate::private;
use harness::Random;
use keyway_region::layout::hot::By;
use keyway_region::{HotSnapshot, Region, Session};
use private::session;
use std::collections::HashMap;

/// What a sample of a session stands for that no process looks at.
const WEIGHT: u64 = 256;

/// Samples some keys often and many others seldom; from one phase to the next the often ones are others.
fn work(session: &Session, random: &mut Random, region: &Region, phase: u64, truth: &mut HashMap<u64, u64>) {
    for _ in 0..20_000 {
        let key = match random.next() % 4 {
            0 => random.next() % 100_000,
            _ => 1_000_000 + 10 * phase + random.next() % 10,
        };
        let hash = region.mapped().hash(&key.to_le_bytes());
        session.sampling().sample_get(hash, &key.to_le_bytes(), 3);
        session.sampling().sample_set(hash);
        *truth.entry(hash).or_default() += WEIGHT;
    }
}

fn judge(counts: &HotSnapshot, since: Option<&HotSnapshot>, truth: &HashMap<u64, u64>) {
    for (by, each) in [(By::Gets, 1), (By::Sets, 1), (By::Bytes, 3)] {
        let ranges = counts.ranges(by, since);
        for range in &ranges {
            let true_one = truth.get(&range.hash).copied().unwrap_or(0) * each;
            assert!(
                range.estimate <= true_one && true_one <= range.bound,
                "{by:?}: {true_one} is not in {range:?}"
            );
            assert!(range.variance >= 0.0 && range.at_least() <= range.estimate && range.bound <= range.at_most());
        }
        let all: u64 = ranges.iter().map(|range| range.bound).sum();
        assert_eq!(
            all,
            truth.values().sum::<u64>() * each,
            "{by:?}: each sample is in one counter"
        );
        assert!(ranges.is_sorted_by(|a, b| a.estimate >= b.estimate));
        // The ten of this phase, whatever was before.
        let mut hottest: Vec<(u64, u64)> = truth.iter().map(|(hash, count)| (*count, *hash)).collect();
        hottest.sort_unstable();
        let first = |range: &keyway_region::HotRange| hottest.iter().rev().take(10).any(|(_, hash)| *hash == range.hash);
        assert_eq!(ranges.iter().take(10).filter(|range| first(range)).count(), 10, "{by:?}");
    }
}

#[test]
fn the_truth_is_within_the_bounds_all_in_all_and_in_each_window() {
    let (_pages, region) = private::region(16 << 20);
    let session = session(&region);
    let mut random = Random::new(20);
    let (mut all, mut since) = (HashMap::new(), region.hot().hot_snapshot());
    for phase in 0..4 {
        let mut of_phase = HashMap::new();
        work(&session, &mut random, &region, phase, &mut of_phase);
        let counts = region.hot().hot_snapshot();
        judge(&counts, Some(&since), &of_phase);
        for (hash, count) in of_phase {
            *all.entry(hash).or_default() += count;
        }
        if phase == 0 {
            judge(&counts, None, &all);
        }
        since = counts;
    }
    for range in since.ranges(By::Gets, None) {
        let truth = all.get(&range.hash).copied().unwrap_or(0);
        assert!(range.estimate <= truth && truth <= range.bound, "{truth} is not in {range:?}");
    }
}

#[test]
fn samples_are_seldom_until_a_process_looks() {
    let (_pages, region) = private::region(4 << 20);
    let session = session(&region);
    let interval = || (0..10_000).map(|_| f64::from(session.sampling().first_sample())).sum::<f64>() / 10_000.0;
    let near = |interval: f64, due: f64| (0.9 * due..1.1 * due).contains(&interval);
    let now = region.clock().seen().clock_s();
    assert!(near(interval(), 256.0));
    region.hot().watch_hot(now);
    assert!(near(interval(), 16.0));
    region.hot().watch_hot(now.saturating_sub(61));
    assert!(near(interval(), 256.0), "it has looked a minute ago");
    region
        .mapped()
        .superblock()
        .hot_until
        .store(u64::MAX, std::sync::atomic::Ordering::Relaxed);
    assert!(near(interval(), 256.0), "no process looks so far ahead");
}

#[test]
fn a_sample_stands_for_what_it_was_chosen_for() {
    let (_pages, region) = private::region(4 << 20);
    let session = session(&region);
    session.sampling().first_sample();
    // The store was chosen before a process looked, as one in 256; so was the first get, but not the second.
    region.hot().watch_hot(region.clock().seen().clock_s());
    session.sampling().sample_get(7, b"", 0);
    session.sampling().sample_get(7, b"", 0);
    session.sampling().sample_set(7);
    let counts = region.hot().hot_snapshot();
    assert_eq!(counts.ranges(By::Gets, None)[0].estimate, 256 + 16);
    assert_eq!(counts.ranges(By::Sets, None)[0].estimate, 256);
}

#[test]
fn any_bytes_in_the_counters_harm_no_process() {
    let (mut pages, region) = private::region(4 << 20);
    let session = session(&region);
    let mut random = Random::new(21);
    work(&session, &mut random, &region, 0, &mut HashMap::new());
    let layout = *region.mapped().layout();
    let mut before = region.hot().hot_snapshot();
    for _ in 0..200 {
        let words = private::words(&mut pages).take(layout.words / 8).skip(layout.hot / 8);
        for word in words {
            match random.next() % 8 {
                0 => *word = random.next(),
                1 => *word = u64::MAX,
                2 => *word = f64::NAN.to_bits(),
                3 => *word = f64::NEG_INFINITY.to_bits(),
                _ => {}
            }
        }
        let counts = region.hot().hot_snapshot();
        for by in By::ALL {
            for since in [None, Some(&before)] {
                for range in counts.ranges(by, since) {
                    assert!(
                        range.at_least() <= range.estimate && range.estimate <= range.bound,
                        "{range:?}"
                    );
                    assert!(range.bound <= range.at_most() && range.variance.is_finite(), "{range:?}");
                }
            }
        }
        session.sampling().sample_get(random.next(), &random.next().to_le_bytes(), 7);
        let mut key = Vec::with_capacity(600);
        let hash = random.next();
        assert!(!region.hot().hot_name(hash, &mut key) || region.mapped().hash(&key) == hash);
        session.sampling().sample_set(random.next());
        before = counts;
    }
}

#[test]
fn a_key_without_an_item_has_the_name_that_its_counter_has() {
    let (mut pages, region) = private::region(4 << 20);
    let session = session(&region);
    let name = |hash: u64| {
        let mut key = Vec::with_capacity(600);
        region.hot().hot_name(hash, &mut key).then_some(key)
    };
    let get = |key: &[u8]| {
        session.sampling().sample_get(region.mapped().hash(key), key, 0);
        name(region.mapped().hash(key))
    };
    for len in [1, 7, 8, 100, 127] {
        let key = vec![b'k'; len];
        assert_eq!(get(&key), Some(key), "{len} bytes");
    }
    assert_eq!(get(&[b'k'; 128]), None, "no text is so long");
    assert_eq!(name(region.mapped().hash(b"never read")), None);
    // A key that takes a counter has its text; the one that had it has none any more.
    let layout = *region.mapped().layout();
    let first = |key: &[u8]| keyway_region::layout::hot::group(region.mapped().hash(key), layout.hot_groups);
    let others: Vec<Vec<u8>> = (0..10_000u32).map(|number| format!("other-{number}").into_bytes()).collect();
    let of_group: Vec<&Vec<u8>> = others.iter().filter(|key| first(key) == 0).take(9).collect();
    for key in &of_group {
        assert_eq!(get(key).as_ref(), Some(*key));
    }
    let named = of_group
        .iter()
        .filter(|key| name(region.mapped().hash(key)).is_some())
        .count();
    assert_eq!(named, 8, "as many as a group has counters");
    // Spoiled texts, as of sessions that write at the same time, or of a process that writes anything: nothing is shown until the key is
    // sampled again.
    let at = layout.hot_texts / 8;
    let texts = layout.trail / 8 - at;
    for word in private::words(&mut pages).skip(at).take(texts) {
        *word ^= 1 << 40;
    }
    for key in of_group {
        assert_eq!(name(region.mapped().hash(key)), None);
        assert_eq!(get(key).as_ref(), Some(key));
    }
}
