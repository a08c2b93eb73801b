//! Verifies every invariant of a region to which no session is writing.
//!
//! The invariants, each by the number under which a problem is reported:
//!
//!  1. every segment is in a known state, and the free count is the number of free ones;
//!  2. the directories name each index and hint segment exactly once, and cover the table word;
//!  3. every slot of a live bucket is empty, confirmed, frozen by its bucket's last split, or tentative on record of a session;
//!     every slot of a bucket that is not live yet is unset;
//!  4. a confirmed word's segment is a log segment of that generation, and the word's place is before an extent's tail;
//!  5. the item there parses, and its key's tag and one of its buckets are the word's;
//!  6. no key has two confirmed entries;
//!  7. every extent parses from its start to its tail;
//!  8. a large value's chain has exactly the segments for its length, each naming the head's key and the chain's last
//!     segment, and belongs to one head;
//!  9. unneeded segments: large ones without a head, claimed ones without a live owner (reported as reclaimable; they are taken
//!     back when space is needed);
//! 10. in a region with checksums, every item matches its own, and every part of a large value.

use crate::atomics::{Acquire, Relaxed};
use crate::hash::{all_choices, tag};
use crate::index::{Followed, Place};
use crate::layout::bucket::{SLOTS, Split};
use crate::layout::item;
use crate::layout::segment::{CHAIN_HEADER_SIZE, EXTENT_HEADER_SIZE, ExtentWord, Kind, LeaseWord, Link, State, TailWord};
use crate::layout::session::Lease;
use crate::layout::slot::Slot;
use crate::log::{ItemView, counts_samples};
use crate::region::Region;
use crate::sink::Unread;
use std::collections::{HashMap, HashSet};

/// Problems listed; more are counted.
const LISTED_MAX: usize = 100;

/// The result of a check.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Report {
    /// each with its invariant's number and its place
    pub problems: Vec<String>,
    /// problems that are not listed
    pub unlisted: usize,
    /// "name", "value" for people
    pub summary: Vec<(&'static str, String)>,
    /// what was counted
    pub counts: Counts,
}

/// What a check counted: segments by their kind, and words.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "the first are named like the states of segments")]
pub struct Counts {
    pub log: usize,
    pub large: usize,
    pub index: usize,
    pub hints: usize,
    pub ghosts: usize,
    pub claimed: usize,
    pub free: usize,
    pub withdrawn: usize,
    /// free segments by the superblock's count
    pub free_counted: u64,
    /// segments out of use by the superblock's count
    pub withdrawn_counted: u64,
    /// unneeded segments: invariant 9
    pub reclaimable: usize,
    /// items in the index
    pub items: usize,
    /// tentative words
    pub tentative: usize,
    /// frozen words
    pub frozen: usize,
    /// items in their keys' third buckets
    pub thirds: usize,
    /// bytes of log segments that no item uses, and that no thread will fill, unless their reclaim has begun
    pub dead: usize,
    /// the same by the counts in the segments' headers
    pub dead_counted: u64,
    /// dead bytes that are in no header's count; 0 for segments that count samples
    pub uncounted: usize,
    /// bytes of items that no word names, although they are not marked dead: never published, or their thread died before it marked them
    pub unmarked: usize,
}

impl Report {
    fn problem(&mut self, invariant: u32, text: String) {
        if self.problems.len() < LISTED_MAX {
            self.problems.push(format!("invariant {invariant}: {text}"));
        } else {
            self.unlisted += 1;
        }
    }

    /// Whether every invariant holds.
    pub fn is_sound(&self) -> bool {
        self.problems.is_empty()
    }
}

/// Checks a region. `progress` gets the share that is done, 0 to 100.
pub fn check(region: &Region, mut progress: impl FnMut(u8)) -> Report {
    region.mapped().learn();
    let mut report = Report::default();
    let mut census = Census::default();
    check_segments(region, &mut report, &mut census);
    check_directories(region, &mut report, &census);
    check_index(region, &mut report, &mut census, &mut progress);
    check_chains(region, &mut report, &mut census);
    count_dead(region, &mut census);
    summarise(region, &mut report, &census);
    report
}

/// What the check has met.
#[derive(Default)]
struct Census {
    counts: Counts,
    /// items that start before their extent's tail, by segment: offsets
    index_segments: HashSet<usize>,
    hint_segments: HashSet<usize>,
    /// segments of large values, and whether a live thread is still writing them
    large: HashMap<usize, bool>,
    starts: HashMap<usize, HashSet<usize>>,
    /// bytes of items in the index, by segment
    live: HashMap<usize, usize>,
    chained: HashMap<usize, String>,
    chains: Vec<(ItemView, String, u64)>,
    bytes: usize,
    /// the present value
    value: Vec<u8>,
}

fn check_segments(region: &Region, report: &mut Report, census: &mut Census) {
    for segment in 0..region.mapped().segments() {
        // PAIRS: open, large, owner: as in `Reclaimer::empty_step`.
        let state = State(region.mapped().header(segment).state.load(Acquire));
        let dead = state.owner().is_some_and(|owner| !region.threads().is_held(owner));
        let counts = &mut census.counts;
        match state.kind() {
            None => report.problem(1, format!("segment {segment} has state {:#x}", state.0)),
            Some(Kind::Free) => counts.free += 1,
            Some(Kind::Withdrawn) => {
                counts.withdrawn += 1;
                counts.reclaimable += usize::from(dead);
            }
            Some(Kind::Claimed) => {
                counts.claimed += 1;
                counts.reclaimable += usize::from(dead);
            }
            Some(Kind::Open | Kind::Retired) => {
                counts.log += 1;
                check_extents(region, segment, report, census);
            }
            Some(Kind::Large) => {
                counts.large += 1;
                census.large.insert(segment, state.owner().is_some() && !dead);
            }
            Some(kind @ (Kind::Index | Kind::Hints | Kind::Ghosts)) => {
                *match kind {
                    Kind::Index => &mut counts.index,
                    Kind::Hints => &mut counts.hints,
                    _ => &mut counts.ghosts,
                } += 1;
                match kind {
                    Kind::Index => census.index_segments.insert(segment),
                    Kind::Hints => census.hint_segments.insert(segment),
                    _ => true,
                };
                let entry = usize::try_from(region.mapped().header(segment).sequence.load(Relaxed)).unwrap_or(usize::MAX);
                let named = entry < region.directory().directory_len(kind)
                    && region.directory().directory_entry(kind, entry).load(Relaxed) as usize == segment + 1;
                // About to join the directory, or left there by a dead thread.
                counts.reclaimable += usize::from(!named && dead);
            }
        }
    }
    census.counts.free_counted = region.mapped().superblock().free.load(Relaxed);
    census.counts.withdrawn_counted = region.mapped().superblock().withdrawn.load(Relaxed);
    // A thread that dies between the state and the count leaves the count off by one.
    let drift = census.counts.free_counted.abs_diff(census.counts.free as u64);
    if drift > 0 && drift < u64::MAX / 2 {
        report.summary.push(("free count off by", drift.to_string()));
    }
    let drift = census.counts.withdrawn_counted.abs_diff(census.counts.withdrawn as u64);
    if drift > 0 {
        report.summary.push(("count of withdrawn segments off by", drift.to_string()));
    }
}

fn check_extents(region: &Region, segment: usize, report: &mut Report, census: &mut Census) {
    let shape = region.mapped().layout().shape;
    let generation = region.mapped().segment_life(segment).generation;
    // PAIRS: leasing: the exchange in `Extents::lease_in`.
    let lease = LeaseWord(region.mapped().header(segment).lease.load(Acquire));
    if !lease.is_of_generation(generation) {
        return;
    }
    if lease.cells() > shape.cells() {
        report.problem(
            7,
            format!("segment {segment} has {} cells leased of {}", lease.cells(), shape.cells()),
        );
        return;
    }
    let starts = census.starts.entry(segment).or_default();
    for (first, end) in lease.extents() {
        let (start, end) = (first * shape.cell_size(), end * shape.cell_size());
        let at = region.mapped().segment(segment) + start;
        // PAIRS: extent: the store in `Extents::begin_extent`.
        if ExtentWord(region.mapped().word(at).load(Acquire)).generation() != generation {
            continue;
        }
        // PAIRS: tail: the store in `Extents::commit`.
        let tail = TailWord(region.mapped().word(at + 8).load(Acquire)).tail();
        let mut offset = start + EXTENT_HEADER_SIZE;
        if tail < offset || tail > end {
            report.problem(
                7,
                format!("segment {segment}: the extent at {start} ends at {end}, its tail is {tail}"),
            );
            continue;
        }
        while offset + item::SIZE_MIN <= tail {
            let header = region.items().item_header(region.mapped().segment(segment) + offset);
            let Some(header) = header.validate(tail - offset) else {
                report.problem(
                    7,
                    format!("segment {segment}: what is at {offset} is no item ({:#018x})", header.0),
                );
                break;
            };
            starts.insert(offset);
            offset += header.size();
        }
    }
}

fn check_directories(region: &Region, report: &mut Report, census: &Census) {
    let table = region.directory().table();
    let word = region.mapped().superblock().table.load(Relaxed);
    if word != table.count {
        report.problem(
            2,
            format!(
                "the table word is {word}, allowed are {} to {}",
                region.directory().buckets_initial(),
                region.directory().buckets_max()
            ),
        );
    }
    let per_segment = region.mapped().layout().shape.buckets_per_segment() as u64;
    let needed = [
        table.count.div_ceil(per_segment),
        table.count.div_ceil(per_segment * SLOTS as u64),
    ];
    for (what, needed, segments) in [
        ("bucket", needed[0], &census.index_segments),
        ("hint", needed[1], &census.hint_segments),
    ] {
        let mut named = HashSet::new();
        for entry in 0..region.mapped().segments() {
            let directory = if what == "bucket" {
                region.directory().bucket_directory(entry)
            } else {
                region.directory().hint_directory(entry)
            };
            let Some(segment) = (directory.load(Relaxed) as usize).checked_sub(1) else {
                if (entry as u64) < needed {
                    report.problem(
                        2,
                        format!("the {what} directory has no segment for entry {entry}, the table needs it"),
                    );
                }
                continue;
            };
            if !segments.contains(&segment) {
                report.problem(
                    2,
                    format!("the {what} directory's entry {entry} names segment {segment}, which is none of its kind"),
                );
            }
            if !named.insert(segment) {
                report.problem(2, format!("the {what} directory names segment {segment} twice"));
            }
        }
    }
}

fn check_index(region: &Region, report: &mut Report, census: &mut Census, progress: &mut impl FnMut(u8)) {
    let table = region.directory().table();
    let mut keys: HashSet<Vec<u8>> = HashSet::new();
    let pending: HashSet<(u64, u64)> = (0..region.mapped().layout().shape.thread_slots)
        .map(|slot| region.mapped().thread(slot))
        // PAIRS: vacate: the end of the session.
        .filter(|t| Lease(t.lease.load(Acquire)).is_leased())
        .map(|t| (t.pending_slot.load(Relaxed), t.pending_word.load(Relaxed)))
        .collect();
    for bucket in 0..table.count {
        if bucket % 4096 == 0 {
            progress(u8::try_from(bucket * 100 / table.count).unwrap_or(100));
        }
        let Some(bucket_at) = region.directory().bucket(bucket) else {
            continue;
        };
        for index in 0..SLOTS {
            let place = Place::new(bucket, bucket_at, index);
            let word = region.slots().word_in(place);
            check_slot(region, place, word, &pending, &mut keys, report, census);
        }
    }
    let covered = table
        .count
        .next_multiple_of(region.mapped().layout().shape.buckets_per_segment() as u64);
    for bucket in table.count..covered {
        let Some(bucket_at) = region.directory().bucket(bucket) else {
            continue;
        };
        // A split that died in step 2 has filled part of the next bucket.
        for index in 0..SLOTS {
            // PAIRS: item: the publish.
            let word = Slot(region.mapped().word(bucket_at + index * 8).load(Acquire));
            if word != Slot::UNSET && bucket > table.count {
                report.problem(3, format!("bucket {bucket} is not live and its slot {index} is {word:?}"));
            }
        }
    }
    progress(100);
}

fn check_slot(
    region: &Region,
    place: Place,
    word: Slot,
    pending: &HashSet<(u64, u64)>,
    keys: &mut HashSet<Vec<u8>>,
    report: &mut Report,
    census: &mut Census,
) {
    if check_word(region, place, word, pending, report, census)
        && let Some(seen) = check_way(region, place, word, report, census)
        && let Some(named) = check_key(region, place, word, &seen, report, census)
    {
        check_item(region, (place, word), &seen, named, keys, report, census);
    }
}

/// Checks a slot's word by itself. `true`: it leads to an item.
fn check_word(
    region: &Region,
    place: Place,
    word: Slot,
    pending: &HashSet<(u64, u64)>,
    report: &mut Report,
    census: &mut Census,
) -> bool {
    let Place { bucket, index, .. } = place;
    let table = region.directory().table();
    if word == Slot::UNSET {
        report.problem(3, format!("bucket {bucket}, slot {index} is unset"));
        return false;
    }
    if word.is_frozen() {
        census.counts.frozen += 1;
        let split = Split::of(bucket, word.mark(), region.directory().buckets_initial());
        if split.is_none_or(|s| s.target > table.count) {
            report.problem(
                3,
                format!("bucket {bucket}, slot {index} is frozen by a split that has not begun: {word:?}"),
            );
        }
    }
    if word.is_tentative() {
        census.counts.tentative += 1;
        if !pending.iter().any(|(at, pending)| place.is_at(*at) && *pending == word.0) {
            report.problem(
                3,
                format!("bucket {bucket}, slot {index} is tentative, on no session's record: {word:?}"),
            );
        }
        return false;
    }
    !word.payload_is_empty()
}

/// Checks where a slot's word leads, and returns what is there if that can be an item.
fn check_way(region: &Region, place: Place, word: Slot, report: &mut Report, census: &Census) -> Option<ItemView> {
    let Place { bucket, index, .. } = place;
    let seen = match region.index().look_in(place, word) {
        Followed::Got(seen) => seen,
        Followed::Moved | Followed::Corrupt => {
            report.problem(4, format!("bucket {bucket}, slot {index} leads nowhere: {word:?}"));
            return None;
        }
    };
    // PAIRS: open, large, owner: as in `Reclaimer::empty_step`.
    let state = State(region.mapped().header(seen.segment).state.load(Acquire));
    if !matches!(state.kind(), Some(Kind::Open | Kind::Retired | Kind::Claimed)) {
        report.problem(
            4,
            format!(
                "bucket {bucket}, slot {index} names segment {} in state {:?}",
                seen.segment,
                state.kind()
            ),
        );
        return None;
    }
    if state.kind() != Some(Kind::Claimed) && !census.starts.get(&seen.segment).is_some_and(|s| s.contains(&seen.offset)) {
        report.problem(
            4,
            format!("bucket {bucket}, slot {index}: no item begins there before a tail: {word:?}"),
        );
        return None;
    }
    Some(seen)
}

/// An item's key, with its hash, and as messages show it.
struct Named {
    key: Vec<u8>,
    key_hash: u64,
    shown: String,
}

/// Checks that an item's key belongs in its slot, and returns the key, unless a split has left the word there.
fn check_key(
    region: &Region,
    place: Place,
    word: Slot,
    seen: &ItemView,
    report: &mut Report,
    census: &mut Census,
) -> Option<Named> {
    let Place { bucket, index, .. } = place;
    let table = region.directory().table();
    let mut key = Vec::with_capacity(seen.header.key_len());
    let _ = region
        .mapped()
        .memory()
        .append_to(seen.at + seen.header.key_offset(), seen.header.key_len(), &mut key);
    let key_hash = region.mapped().hasher().hash(&key);
    let shown = key.escape_ascii().to_string();
    if tag(key_hash) != word.tag() {
        report.problem(5, format!("bucket {bucket}, slot {index}: key '{shown}' has another tag"));
        return None;
    }
    let homes = all_choices(key_hash).map(|c| table.bucket(c));
    if !homes.contains(&bucket) {
        // The last split's frozen words may be in a bucket that their key has left.
        if !word.is_frozen() {
            report.problem(
                5,
                format!("bucket {bucket}, slot {index}: key '{shown}' belongs in buckets {homes:?}"),
            );
        }
        return None;
    }
    if bucket == homes[2] && !region.index().has_thirds() && !word.is_frozen() {
        report.problem(
            5,
            format!("bucket {bucket}, slot {index}: key '{shown}' is in its third bucket, where nobody looks"),
        );
    }
    census.counts.thirds += usize::from(bucket == homes[2]);
    Some(Named { key, key_hash, shown })
}

/// Checks an item in its right slot.
fn check_item(
    region: &Region,
    (place, word): (Place, Slot),
    seen: &ItemView,
    Named { key, key_hash, shown }: Named,
    keys: &mut HashSet<Vec<u8>>,
    report: &mut Report,
    census: &mut Census,
) {
    let Place { bucket, index, .. } = place;
    if seen.header.has(item::flag::DEAD) {
        report.problem(
            4,
            format!("bucket {bucket}, slot {index}: key '{shown}' names an item that is marked dead"),
        );
    }
    let item = region.index().facts(seen, (place, word), true, 0);
    if region.items().has_checksums()
        && let Err(unread) = region.items().append_verified(seen, &key, &item, true, &mut census.value)
    {
        let what = match unread {
            Unread::Changed => "does not match its checksums",
            Unread::NoMemory => "could not be looked at: no memory for a copy",
        };
        report.problem(10, format!("bucket {bucket}, slot {index}: the item of key '{shown}' {what}"));
    }
    census.value.clear();
    census.counts.items += 1;
    *census.live.entry(seen.segment).or_default() += seen.header.size();
    census.bytes = census.bytes.saturating_add(region.items().size(seen));
    if !keys.insert(key) {
        report.problem(6, format!("bucket {bucket}, slot {index}: key '{shown}' has a second entry"));
    }
    if region.items().chain(seen).is_some() {
        census.chains.push((*seen, shown, key_hash));
    }
}

fn check_chains(region: &Region, report: &mut Report, census: &mut Census) {
    let room = region.mapped().layout().shape.segment_size - CHAIN_HEADER_SIZE;
    for (seen, key, key_hash) in std::mem::take(&mut census.chains) {
        let Some(chain) = region.items().chain(&seen) else { continue };
        let parts = chain.value_len.div_ceil(room).max(1);
        let mut link = chain.first;
        for part in 0..parts.min(region.mapped().segments()) {
            let segment = link.segment();
            let known =
                census.large.contains_key(&segment) && region.mapped().segment_life(segment).generation == link.generation();
            if !known {
                report.problem(
                    8,
                    format!("large value of '{key}': part {part} of {parts} is segment {segment}, which is not its"),
                );
                break;
            }
            let at = region.mapped().segment(segment);
            let [last, owner] = [8, 16].map(|o| region.mapped().word(at + o).load(Relaxed));
            if Link(last) != chain.last || owner != key_hash {
                report.problem(8, format!("large value of '{key}': segment {segment} names another head"));
            }
            if let Some(other) = census.chained.insert(segment, key.clone()) {
                report.problem(
                    8,
                    format!("segment {segment} belongs to the large values of '{other}' and of '{key}'"),
                );
            }
            if part + 1 == parts && link != chain.last {
                report.problem(8, format!("large value of '{key}': its last segment is not the chain's"));
            }
            link = Link(region.mapped().word(at).load(Relaxed));
        }
    }
    let orphans = census
        .large
        .iter()
        .filter(|(s, written)| !**written && !census.chained.contains_key(s));
    census.counts.reclaimable += orphans.count();
}

/// What is dead, and what of it is in the segments' counts. No invariant: a death costs them what was about to be counted. A segment whose
/// reclaim has begun needs no count.
fn count_dead(region: &Region, census: &mut Census) {
    let is_exact = !counts_samples(region.mapped().layout().shape.segment_size);
    let is_open = |segment: &usize| State(region.mapped().header(*segment).state.load(Relaxed)).kind() == Some(Kind::Open);
    for segment in census.starts.keys().filter(|segment| is_open(segment)) {
        let live = census.live.get(segment).copied().unwrap_or(0);
        let given = region
            .segments()
            .given_to_items(*segment)
            .saturating_sub(region.segments().rest_being_filled(*segment));
        let (dead, marked) = (given.saturating_sub(live), region.segments().dead_bytes(*segment));
        let counted = region.mapped().header(*segment).dead.load(Relaxed);
        let counts = &mut census.counts;
        counts.dead += dead;
        // A damaged count may be any number.
        counts.dead_counted = counts.dead_counted.saturating_add(counted);
        counts.unmarked += dead.saturating_sub(marked);
        if is_exact {
            counts.uncounted += dead.saturating_sub(usize::try_from(counted).unwrap_or(usize::MAX));
        }
    }
}

fn summarise(region: &Region, report: &mut Report, census: &Census) {
    let shape = region.mapped().layout().shape;
    let counters = region.threads().counters();
    report.counts = census.counts;
    let Counts {
        log,
        large,
        index,
        hints,
        ghosts,
        claimed,
        free,
        withdrawn,
        reclaimable,
        items,
        tentative,
        frozen,
        thirds,
        dead,
        dead_counted,
        ..
    } = census.counts;
    let kinds = format!(
        "log {log}, large {large}, index {index}, hints {hints}, ghosts {ghosts}, claimed {claimed}, free {free}, withdrawn {withdrawn}"
    );
    let table = region.directory().table();
    let load = items as f64 / (table.count as f64 * SLOTS as f64);
    let mut line = |name, value: String| report.summary.push((name, value));
    line(
        "segments",
        format!("{} of {} KiB: {kinds}", region.mapped().segments(), shape.segment_size >> 10),
    );
    line(
        "index",
        format!(
            "{} buckets, {:.0} % full, {tentative} tentative, {frozen} frozen, {thirds} items in third buckets",
            table.count,
            load * 100.0
        ),
    );
    line(
        "items",
        format!(
            "{items} with {} bytes (counted: {} with {})",
            census.bytes, counters.curr_items, counters.bytes
        ),
    );
    line(
        "sessions",
        format!(
            "{} of {} thread slots leased",
            region.threads().sessions(),
            shape.thread_slots
        ),
    );
    line("dead", format!("{dead} bytes of items and rests (counted: {dead_counted})"));
    line("reclaimable", format!("{reclaimable} segments"));
}
