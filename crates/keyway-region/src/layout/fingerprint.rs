//! The layout's fingerprint: one number for everything that two programs must agree on to share a region.
//!
//! It is computed at compile time from [`INPUTS`]: the offset of each field of each shared structure, the bits of each word's
//! fields, the offsets of a region's arrays, the order of the counters, and the constants that give stored bytes their meaning.
//! A region's superblock contains it, and a program uses only regions that have the program's own. A change that no input shows
//! (another meaning of the same bits) increments [`superblock::VERSION`], which is an input too.

use super::bucket::{self, Table};
use super::flight::{self, Holder, LimitRow};
use super::hot::{HotCounter, HotGroup, HotText};
use super::item::{self, Header, flag};
use super::latency::{self, Door, LatencyRow, Verb};
use super::plan::{Layout, Shape};
use super::segment::{
    self, ADMISSION, Cursor, ExtentWord, Kind, LeaseWord, LifetimeClass, Link, MAIN, Owner, SegmentHeader, SegmentWords, Spare,
    State, Stream, TailWord,
};
use super::session::{self, Hold, Lease, ProcessSlot, Tenancy, ThreadSlot};
use super::slot::{self, Slot};
use super::stats::Counters;
use super::superblock::{self, DoorWord, FlushAt, FlushWord, Superblock};
use super::trail::{self, TrailEntry, TrailHead, TrailWord};
use super::watch::{self, Cell, Command, Ring, Status, Tag};
use crate::changes;
use crate::index;
use crate::log;
use crate::{clock, hash, verbs};

/// The layout of this program.
pub const FINGERPRINT: u64 = of(INPUTS, &Counters::NAMES);

/// An input of the fingerprint: its name and its value.
type Input = (&'static str, u64);

const INPUTS: &[&[Input]] = &[
    Superblock::FIELDS,
    ProcessSlot::FIELDS,
    ThreadSlot::FIELDS,
    LatencyRow::FIELDS,
    HotCounter::FIELDS,
    HotGroup::FIELDS,
    HotText::FIELDS,
    TrailHead::FIELDS,
    TrailEntry::FIELDS,
    LimitRow::FIELDS,
    Ring::FIELDS,
    Cell::FIELDS,
    EVENTS,
    SegmentWords::FIELDS,
    SegmentHeader::FIELDS,
    WORDS,
    ITEMS,
    INDEX,
    &arrays(Shape {
        segment_size: segment::SIZE_MIN,
        segments_max: 1 << 13,
        process_slots: 16,
        thread_slots: 32,
        server_threads: 16,
        buckets_initial: 256,
        page_size: 4096,
    }),
    &arrays(Shape {
        segment_size: segment::SIZE_MAX,
        segments_max: 99_999,
        process_slots: 1021,
        thread_slots: 4093,
        server_threads: 511,
        buckets_initial: 1 << 17,
        page_size: 2 << 20,
    }),
    MEANINGS,
];

/// The words of events.
const EVENTS: &[Input] = &[
    ("ring owner", Ring::owner_of(u16::MAX, u32::MAX)),
    ("cell tag: position", Tag::new(u64::MAX, 0, 0).0),
    ("cell tag: event", Tag::new(0, u64::MAX, 0).0),
    ("event: text", watch::TEXT_MAX as u64),
    ("event: last kind", watch::KINDS as u64),
    ("event: last command", Command::None as u64),
    ("event: last status", Status::NoMemory as u64),
];

/// Words with every bit of one field set.
const WORDS: &[Input] = &[
    ("state word: free", Kind::Free as u64),
    ("state word: claimed", Kind::Claimed as u64),
    ("state word: open", Kind::Open as u64),
    ("state word: large", Kind::Large as u64),
    ("state word: index", Kind::Index as u64),
    ("state word: hints", Kind::Hints as u64),
    ("state word: retired", Kind::Retired as u64),
    ("state word: ghosts", Kind::Ghosts as u64),
    ("state word: withdrawn", Kind::Withdrawn as u64),
    (
        "state word of a withdrawn segment: generation",
        State::withdrawn(u64::MAX, false).0,
    ),
    ("state word of a withdrawn segment: no pages", State::withdrawn(0, true).0),
    (
        "state word: main pool",
        State::of(Kind::Free, stream(MAIN, 0, LifetimeClass::Plain)).0,
    ),
    (
        "state word: settled",
        State::of(Kind::Free, stream(ADMISSION, 0, LifetimeClass::LongLived)).0,
    ),
    (
        "state word: class",
        State::of(Kind::Free, stream(ADMISSION, segment::CLASSES_MAX - 1, LifetimeClass::Plain)).0,
    ),
    ("state word: owner's slot", State::owned(Kind::Free, owner(u16::MAX, 0)).0),
    (
        "state word: owner's incarnation",
        State::owned(Kind::Free, owner(0, u32::MAX)).0,
    ),
    ("cursor word: generation", cursor(0, 0, Spare::Nothing).word(u64::MAX)),
    ("cursor word: offset", cursor(0xF_FFFF, 0, Spare::Nothing).word(0)),
    ("cursor word: relocated", cursor(0, 0xF_FFFF, Spare::Nothing).word(0)),
    ("cursor word: promoted", cursor(0, 0, Spare::Promoted).word(0)),
    ("cursor word: hit", cursor(0, 0, Spare::Hit).word(0)),
    ("cursor word: all", cursor(0, 0, Spare::All).word(0)),
    ("lease word of a segment: generation", LeaseWord::new(u64::MAX).0),
    ("lease word of a segment: sealed", LeaseWord::new(0).seal().0),
    (
        "lease word of a segment: cells",
        LeaseWord::new(0).lease(segment::CELLS_MAX, false).0,
    ),
    (
        "lease word of a segment: starts",
        LeaseWord::new(0).lease(3, true).lease(3, true).0,
    ),
    (
        "lease word of a segment: hands of the last extent",
        LeaseWord::new(0).lease(1, true).hand_on().expect("it was never handed on").0,
    ),
    ("extent: hands", ExtentWord::new(0, 0).in_hands(u64::MAX).0),
    ("extent: generation", ExtentWord::new((1 << 40) - 1, 0).0),
    ("extent: owner", ExtentWord::new(0, u16::MAX).0),
    ("extent: closed", ExtentWord::new(0, 0).close().0),
    ("extent: tail", TailWord::new(0xFFFF_FFFF, 0).0),
    ("extent: incarnation", TailWord::new(0, u32::MAX).0),
    ("link: segment", Link::new(slot::SEGMENTS_MAX - 1, 0).0),
    ("link: generation", Link::new(0, (1 << 40) - 1).0),
    ("lease word of a thread: incarnation", Lease::new(u32::MAX, 0, 0).0),
    ("lease word of a thread: process", Lease::new(0, u32::MAX, 0).0),
    ("lease word of a thread: process's incarnation", Lease::new(0, 0, u64::MAX).0),
    ("lease word of a thread: fenced", Lease::new(0, 0, 0).fenced().0),
    ("tenancy word: incarnation", Tenancy::new((1 << 61) - 1, Hold::None).0),
    ("tenancy word: attaching", Tenancy::new(0, Hold::Attaching).0),
    ("tenancy word: mapping", Tenancy::new(0, Hold::Mapping).0),
    ("tenancy word: descriptor", Tenancy::new(0, Hold::Descriptor).0),
    ("tenancy word: presence", Tenancy::new(0, Hold::Presence).0),
    ("flush word: epoch", FlushWord::new(u64::MAX).0),
    ("flush word: watched", FlushWord::WATCHED),
    ("flush word: delayed", FlushWord::new(0).delayed().0),
    ("flush-at word: epoch", FlushAt::new(u64::MAX, 0).0),
    ("flush-at word: at", FlushAt::new(0, u32::MAX).0),
    ("flush word, table word: dirty", superblock::DIRTY),
    ("door word: number", DoorWord(0).next(0, 0).0),
    ("door word: incarnation", DoorWord(0).next(0, u64::MAX).0),
    ("door word: slot", DoorWord(0).next(usize::MAX, 0).0),
    ("trail word: shift", TrailWord::new(1, 0).0),
    ("trail: place of a hash", trail::SPREAD),
    ("trail: bits of a key", trail::KEY_BITS as u64),
    ("refuses: eviction", superblock::REFUSES_EVICTION as u64),
    ("refuses: flushes", superblock::REFUSES_FLUSHES as u64),
    ("feature: durable", superblock::DURABLE),
    ("feature: checksums", superblock::CHECKSUMS),
];

const ITEMS: &[Input] = &[
    ("item: client flags", flag::CLIENT_FLAGS),
    ("item: CAS unique", flag::CAS),
    ("item: dead", flag::DEAD),
    ("item: lifetime", flag::LIFETIME),
    ("item: stale", flag::STALE),
    ("item: record", flag::RECORD),
    (
        "item: record's place",
        Header(flag::LIFETIME | flag::CLIENT_FLAGS).record_offset() as u64,
    ),
    ("item: bytes of a record", item::RECORD_SIZE as u64),
    ("item: expired from the start", item::EXPIRED as u64),
    (
        "holder: slot",
        Holder::of(Owner {
            slot: u16::MAX,
            incarnation: 0,
        })
        .0,
    ),
    (
        "holder: incarnation",
        Holder::of(Owner {
            slot: 0,
            incarnation: u32::MAX,
        })
        .0,
    ),
    (
        "flight: words, and those of rows",
        (flight::WORDS << 8 | flight::ROW_WORDS) as u64,
    ),
    ("flight: waited for, ended", (flight::WAITED_FOR << 8 | flight::ENDED) as u64),
    ("holder: by a get", Holder::NONE.by_get().0),
    ("holder: of an item without a value", Holder::NONE.of_empty().0),
    ("item: binary key", flag::OPAQUE_KEY),
    ("item: key length", SAMPLE.key_len() as u64),
    ("item: value length", SAMPLE.value_len() as u64),
    ("item: expiry", SAMPLE.expiry() as u64),
    ("item: a large value's length", item::LARGE as u64),
    ("item: a large value's body", item::LARGE_BODY_SIZE as u64),
    ("item: header", item::HEADER_SIZE as u64),
    ("item: lifetime's place", item::LIFETIME_OFFSET as u64),
    ("item: bytes of a lifetime", item::LIFETIME_SIZE as u64),
    ("item: CAS unique's place", Header(flag::LIFETIME).cas_offset() as u64),
    (
        "item: client flags' place",
        Header(flag::LIFETIME | flag::CAS).client_flags_offset() as u64,
    ),
    ("item: alignment", item::ALIGNMENT as u64),
    ("item: checksum", item::CHECKSUM_SIZE as u64),
    ("item: latest expiry", item::EXPIRY_MAX as u64),
    ("item: longest key", verbs::KEY_LEN_MAX as u64),
    ("segment: most cells", segment::CELLS_MAX as u64),
    ("segment: smallest cell", segment::CELL_SIZE_MIN as u64),
    ("segment: smallest", segment::SIZE_MIN as u64),
    ("segment: largest", segment::SIZE_MAX as u64),
    ("extent: header", segment::EXTENT_HEADER_SIZE as u64),
    ("chain: header", segment::CHAIN_HEADER_SIZE as u64),
    ("chain: length's word", segment::CHAIN_LEN_WORD as u64),
];

const INDEX: &[Input] = &[
    ("slot: tag", Slot::confirmed(u64::MAX, 0, 0, 0).0),
    ("slot: generation", Slot::confirmed(0, u64::MAX, 0, 0).0),
    ("slot: segment", Slot::confirmed(0, 0, slot::SEGMENTS_MAX - 1, 0).0),
    (
        "slot: offset",
        Slot::confirmed(0, 0, 0, segment::SIZE_MAX - item::ALIGNMENT).0,
    ),
    ("slot: empty", Slot::EMPTY.0),
    ("slot: unset", Slot::UNSET.0),
    ("slot: tentative", Slot::UNSET.tentative().0),
    ("slot: dirty", slot::DIRTY_BIT),
    ("slot: frequency", Slot::UNSET.with_frequency(slot::FREQUENCY_MAX).0),
    ("slot: fetched", Slot::UNSET.fetched().0),
    ("slot: frozen, first round", Slot::UNSET.freeze(0).0),
    ("slot: frozen, last round", Slot::UNSET.freeze(slot::ROUNDS_MAX - 1).0),
    ("slot: rounds", slot::ROUNDS_MAX as u64),
    ("bucket: slots", bucket::SLOTS as u64),
    ("bucket: of a choice, split", Table::new(13).bucket(0b10_1011)),
    ("bucket: of a choice, not split", Table::new(13).bucket(0b10_1110)),
    ("hash: first bucket", hash::choices(KEY_HASH)[0]),
    ("hash: second bucket", hash::choices(KEY_HASH)[1]),
    ("hash: third bucket", hash::third_choice(KEY_HASH)),
    ("hash: tag", hash::tag(KEY_HASH)),
    ("hash: of a sample", hash::sample()),
    ("hint: seconds", index::HINT_SECONDS as u64),
    ("hint: unit, seconds", index::HINT_UNIT_S as u64),
    ("hint: units", index::HINT_UNITS as u64),
    ("hint: longer ago", index::HINT_OLD as u64),
    ("ghost: bits", log::GHOST_BITS as u64),
    ("ghost: bytes of a line", log::GHOST_LINE_SIZE as u64),
    ("ghost: place of a hash", log::GHOST_SPREAD),
];

/// The meaning of other stored numbers.
const MEANINGS: &[Input] = &[
    ("format", superblock::VERSION),
    ("clock: seconds at creation", clock::START_S),
    ("clock: units in a second", superblock::CLOCK_UNITS_PER_S.cast_unsigned()),
    ("clock word: boot and offset", superblock::ClockWord::new(0xBAD, -5).0),
    ("seen word: clock and Unix time", superblock::SeenWord::new(0xBAD, 5).0),
    ("ticks: seconds each", clock::FINE_TICKS as u64),
    ("ticks: seconds of a coarse one", clock::COARSE_S),
    ("stripes", changes::STRIPES as u64),
    ("latency: page", latency::PAGE_SIZE as u64),
    ("latency: row of a door", latency_row(Door::Udp, Verb::Get)),
    ("latency: row of a verb", latency_row(Door::Library, Verb::Other)),
    (
        "latency: row of the kernel door, UDP",
        latency_row(Door::KernelUdp, Verb::Get),
    ),
    (
        "latency: row of the kernel door, TCP",
        latency_row(Door::KernelTcp, Verb::Get),
    ),
    ("latency: bucket", latency::bucket_of(1_000_000) as u64),
    ("latency: start of a bucket", latency::bucket_start_ns(24)),
    ("entrance: drop-in", session::Entrance::DropIn as u64),
    ("entrance: server", session::Entrance::Server as u64),
    ("sparse: levels", superblock::SPARSE_LEVELS as u64),
    ("sparse: ways", superblock::SPARSE_WAYS as u64),
    ("clean: stopped", superblock::STOPPED),
    ("clean: stopping", superblock::STOPPING),
    ("hazard: operation", session::OPERATION as u64),
    ("hazard: upkeep", session::UPKEEP as u64),
    ("hazard: leasing", session::LEASING as u64),
    ("hazard: written", session::WRITTEN as u64),
    ("hazard: freeing", session::FREEING as u64),
    ("class 1: most seconds", log::CLASS_TTL_S[0] as u64),
    ("class 2: most seconds", log::CLASS_TTL_S[1] as u64),
    ("class 3: most seconds", log::CLASS_TTL_S[2] as u64),
    ("class 4: most seconds", log::CLASS_TTL_S[3] as u64),
    ("class 5: most seconds", log::CLASS_TTL_S[4] as u64),
    ("class 6: most seconds", log::CLASS_TTL_S[5] as u64),
    ("class 7: most seconds", log::CLASS_TTL_S[6] as u64),
    ("class 1 of few: most seconds", log::CLASS_TTL_FEW_S[0] as u64),
];

/// A header with different bits in all of its fields, and a key's hash.
const SAMPLE: Header = Header(0x0123_4567_89AB_CDEF);
const KEY_HASH: u64 = 0xFEDC_BA98_7654_3210;

const fn latency_row(door: Door, verb: Verb) -> u64 {
    match latency::row_of(door, verb) {
        Some(row) => row as u64,
        None => u64::MAX,
    }
}

const fn stream(pool: usize, class: usize, lifetime_class: LifetimeClass) -> Stream {
    Stream {
        pool,
        class,
        lifetime_class,
    }
}

const fn owner(slot: u16, incarnation: u32) -> Owner {
    Owner { slot, incarnation }
}

const fn cursor(offset: usize, relocated: usize, spare: Spare) -> Cursor {
    Cursor {
        offset,
        relocated,
        spare,
    }
}

/// The offsets of the arrays in a region of this shape.
const fn arrays(shape: Shape) -> [Input; 22] {
    let layout = Layout::new(shape);
    [
        ("process slots", layout.processes as u64),
        ("thread slots", layout.threads as u64),
        ("latency pages", layout.latencies as u64),
        ("latency pages: their number", latency::pages(shape.thread_slots) as u64),
        ("hot-key counters", layout.hot as u64),
        ("hot-key groups", layout.hot_groups as u64),
        ("hot-key texts", layout.hot_texts as u64),
        ("trail", layout.trail as u64),
        ("trail: entries", layout.trail_entries as u64),
        ("rings", layout.rings as u64),
        ("flights", layout.flights as u64),
        ("flights: rows", layout.flight_row(0) as u64),
        ("cells of a ring", layout.ring_cells as u64),
        ("segment words", layout.words as u64),
        ("segment headers", layout.headers as u64),
        ("bucket directory", layout.bucket_directory as u64),
        ("hint directory", layout.hint_directory as u64),
        ("ghost directory", layout.ghost_directory as u64),
        ("segments", layout.segments as u64),
        ("largest file", layout.len_max as u64),
        ("cell", shape.cell_size() as u64),
        ("ghost segments", Shape::ghosts_max(shape.segments_max) as u64),
    ]
}

/// The fingerprint of these inputs, and of names whose order matters: FNV-1a with 64 bits (Fowler, Noll and Vo;
/// draft-eastlake-fnv).
const fn of(inputs: &[&[Input]], names: &[&str]) -> u64 {
    let mut sum = 0xCBF2_9CE4_8422_2325;
    let mut groups = inputs;
    while let [group, following @ ..] = groups {
        let mut rest = *group;
        while let [(name, value), following @ ..] = rest {
            sum = add(add(sum, name.as_bytes()), &value.to_le_bytes());
            rest = following;
        }
        groups = following;
    }
    let mut rest = names;
    while let [name, following @ ..] = rest {
        // A byte that no name contains separates them.
        sum = add(add(sum, name.as_bytes()), &[0]);
        rest = following;
    }
    sum
}

const fn add(mut sum: u64, bytes: &[u8]) -> u64 {
    let mut rest = bytes;
    while let [byte, following @ ..] = rest {
        sum = (sum ^ *byte as u64).wrapping_mul(0x0100_0000_01B3);
        rest = following;
    }
    sum
}

#[cfg(test)]
#[allow(clippy::indexing_slicing, reason = "a test")]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// The inputs with one of them changed.
    fn changed(group: usize, input: usize, change: impl Fn(&mut Input)) -> u64 {
        let mut inputs: Vec<Vec<Input>> = INPUTS.iter().map(|group| group.to_vec()).collect();
        change(&mut inputs[group][input]);
        let groups: Vec<&[Input]> = inputs.iter().map(Vec::as_slice).collect();
        of(&groups, &Counters::NAMES)
    }

    #[test]
    fn every_input_counts() {
        let mut seen = HashSet::from([FINGERPRINT]);
        for (group, inputs) in INPUTS.iter().enumerate() {
            for (input, (name, value)) in inputs.iter().enumerate() {
                assert!(seen.insert(changed(group, input, |i| i.1 = value + 1)), "{name}: by one");
                assert!(
                    seen.insert(changed(group, input, |i| i.1 = value ^ 1 << 63)),
                    "{name}: top bit"
                );
                assert_ne!(changed(group, input, |i| i.0 = "another"), FINGERPRINT, "{name}: its name");
            }
        }
        let mut names = Counters::NAMES;
        names.swap(3, 4);
        assert_ne!(of(INPUTS, &names), FINGERPRINT, "the order of the counters");
        assert_ne!(of(INPUTS, &names[1..]), FINGERPRINT, "their number");
    }

    /// No two fields of a word share a bit, and the fields of a slot and of an item's header use all bits.
    #[test]
    fn the_samples_show_the_fields() {
        let slot: Vec<u64> = INDEX[..4].iter().chain(&INDEX[6..10]).map(|input| input.1).collect();
        let frozen = Slot::UNSET.freeze(0).0 & !Slot::EMPTY.0;
        assert_eq!(
            slot.iter().fold(frozen, |all, field| all | field) & !Slot::EMPTY.0,
            !Slot::EMPTY.0
        );
        let bits: u32 = slot.iter().map(|field| field.count_ones()).sum();
        assert!(bits >= 63, "{bits}");
        assert_eq!(SAMPLE.key_len() | SAMPLE.value_len() << 8, 0x9A | 0xB_CDEF << 8);
        assert_eq!(u64::from(SAMPLE.expiry()), SAMPLE.0 >> 35);
    }
}
