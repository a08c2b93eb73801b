//! The checker itself: each invariant broken in a sound region, on purpose, must be reported under its number. Its enemy: a
//! check that passes whatever it is shown.
//! Guards: P46

use damage::Image;
use keyway_region::check::check;
use keyway_region::layout::bucket::SLOTS;
use keyway_region::layout::plan::Layout;

/// Whether a slot's word names an item: confirmed, not empty, not unset.
fn names_an_item(word: u64) -> bool {
    word != 0 && word & 0x1_FFFF != 0x1_FFFF && word >> 62 == 0
}

/// The index's first segment is the region's first: its words.
fn slots(image: &mut Image, layout: &Layout) -> Vec<(usize, u64)> {
    let first = layout.segments / 8;
    (first..first + layout.shape.segment_size / 8)
        .map(|i| (i, *image.word(i)))
        .collect()
}

/// The numbers of the invariants that the check finds broken.
fn broken(image: &mut Image) -> Vec<u32> {
    let region = image.open().expect("the superblock is sound");
    let report = check(&region, |_| {});
    let number = |problem: &String| problem.strip_prefix("invariant ")?.split(':').next()?.parse().ok();
    let mut numbers: Vec<u32> = report.problems.iter().filter_map(number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

fn sound() -> (Image, Layout, Vec<(usize, u64)>) {
    sound_with(false)
}

fn sound_with(checksums: bool) -> (Image, Layout, Vec<(usize, u64)>) {
    let mut image = Image::filled_with(checksums);
    let layout = *image.open().expect("just made").mapped().layout();
    assert_eq!(broken(&mut image), []);
    let slots = slots(&mut image, &layout);
    (image, layout, slots)
}

fn some_item(slots: &[(usize, u64)]) -> (usize, u64) {
    *slots.iter().find(|(_, word)| names_an_item(*word)).expect("it has items")
}

#[test]
fn a_segment_in_no_known_state() {
    let (mut image, layout, _) = sound();
    // A segment's state is the first word of its header.
    *image.word(layout.headers / 8 + 50 * 8) = 0xF;
    assert!(broken(&mut image).contains(&1));
}

#[test]
fn a_directory_that_names_a_log_segment() {
    let (mut image, layout, _) = sound();
    *image.word(layout.bucket_directory / 8) ^= 0x20;
    assert!(broken(&mut image).contains(&2));
}

#[test]
fn an_unset_slot_and_a_tentative_one_without_an_owner() {
    let (mut image, _, slots) = sound();
    let (at, word) = some_item(&slots);
    *image.word(at) = 0;
    assert_eq!(broken(&mut image), [3]);
    *image.word(at) = word | 1 << 63;
    assert_eq!(broken(&mut image), [3]);
    *image.word(at) = word;
    assert_eq!(broken(&mut image), []);
}

#[test]
fn a_word_of_another_generation_and_one_that_points_between_items() {
    let (mut image, _, slots) = sound();
    let (at, word) = some_item(&slots);
    *image.word(at) = word ^ 1 << 37;
    assert_eq!(broken(&mut image), [4]);
    *image.word(at) = word + 1;
    assert_eq!(broken(&mut image), [4]);
}

#[test]
fn a_wrong_tag_and_a_wrong_bucket() {
    let (mut image, _, slots) = sound();
    let (at, word) = some_item(&slots);
    *image.word(at) = word ^ 1 << 47;
    assert_eq!(broken(&mut image), [5]);
    *image.word(at) = word;
    // The same item in a bucket eight further on, which is not its own.
    let (free, _) = *slots
        .iter()
        .find(|(i, w)| *w == 0x1_FFFF && (i - at % SLOTS) / SLOTS % 16 == (at / SLOTS + 8) % 16)
        .expect("an empty slot");
    *image.word(free) = word;
    let found = broken(&mut image);
    assert!(found == [5] || found == [6], "{found:?}");
}

#[test]
fn a_key_with_two_entries() {
    let (mut image, _, slots) = sound();
    // A second word for an item, in an empty slot of its own bucket.
    let (at, word) = *slots
        .iter()
        .find(|(at, word)| names_an_item(*word) && (0..SLOTS).any(|i| *image.word(at - at % SLOTS + i) == 0x1_FFFF))
        .expect("a bucket with room");
    let bucket = at - at % SLOTS;
    let free = (bucket..bucket + SLOTS).find(|i| *image.word(*i) == 0x1_FFFF).expect("room");
    *image.word(free) = word;
    assert_eq!(broken(&mut image), [6]);
}

#[test]
fn an_item_whose_header_cannot_be() {
    let (mut image, layout, slots) = sound();
    let (_, word) = some_item(&slots);
    let (segment, offset) = (word >> 17 & 0xF_FFFF, word & 0x1_FFFF);
    let at =
        layout.segments + usize::try_from(segment).unwrap() * layout.shape.segment_size + usize::try_from(offset).unwrap() * 4;
    // The header is one half of a word.
    *image.word(at / 8) &= if at.is_multiple_of(8) { !0 << 32 } else { !0 >> 32 };
    assert!(broken(&mut image).contains(&7));
}

#[test]
fn a_chain_that_belongs_to_another_key() {
    let (mut image, layout, _) = sound();
    // A large segment's third word is its key's hash.
    let large = (0..)
        .find(|segment| *image.word(layout.headers / 8 + segment * 8) & 0xF == 3)
        .expect("large values");
    *image.word((layout.segments + large * layout.shape.segment_size) / 8 + 2) ^= 1;
    assert_eq!(broken(&mut image), [8]);
}

#[test]
fn an_item_and_a_part_of_a_large_value_that_do_not_match_their_checksums() {
    let (mut image, layout, slots) = sound_with(true);
    let place = |word: u64| {
        let (segment, offset) = (word >> 17 & 0xF_FFFF, word & 0x1_FFFF);
        (layout.segments + usize::try_from(segment).unwrap() * layout.shape.segment_size) / 8 + usize::try_from(offset).unwrap()
    };
    // The value begins in the second or third word of an item, and its length is in the lowest 20 bits of the first.
    let (_, word) = *slots
        .iter()
        .find(|(_, word)| names_an_item(*word) && (100..300).contains(&(*image.word(place(*word)) & 0xF_FFFF)))
        .expect("it has items of such values");
    *image.word(place(word) + 5) ^= 1 << 60;
    assert_eq!(broken(&mut image), [10]);
    *image.word(place(word) + 5) ^= 1 << 60;
    let large = (0..)
        .find(|segment| *image.word(layout.headers / 8 + segment * 8) & 0xF == 3)
        .expect("large values");
    *image.word((layout.segments + large * layout.shape.segment_size) / 8 + 100) ^= 1 << 20;
    assert_eq!(broken(&mut image), [10]);
}
