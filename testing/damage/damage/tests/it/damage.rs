//! Regions with random damage. Its enemy: a byte from shared memory that is believed. Whatever the bytes, opening gives a
//! region or an error, and every operation ends with an answer or an error, without a panic and in bounded time.
//! Guards: P6, P7
#![allow(
    clippy::cast_possible_truncation,
    clippy::print_stdout,
    reason = "a test: its numbers are small, its output is for people"
)]

use damage::{Answers, Image, answers, use_it, write_over_all};
use harness::Random;
use keyway_region::layout::segment::{EXTENT_HEADER_SIZE, Kind, SegmentHeader, State};
use std::path::Path;

#[test]
fn damaged_anywhere() {
    let sound = Image::filled();
    let layout = *sound.clone().open().unwrap().mapped().layout();
    // Most of the damage goes where it does most: the words that lead elsewhere.
    let parts = [
        0..4096,
        layout.threads..layout.words,
        layout.words..layout.headers,
        layout.headers..layout.bucket_directory,
        layout.bucket_directory..layout.segments,
        layout.segments..layout.segments + layout.shape.segment_size * 2,
        layout.segments..sound.backed,
    ];
    let mut opened = 0;
    for seed in 1..=400u64 {
        let mut rng = Random::new(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let mut bytes = sound.clone();
        let part = parts[(seed % parts.len() as u64) as usize].clone();
        for _ in 0..1 + rng.next() % 200 {
            let at = (part.start + (rng.next() as usize) % (part.end - part.start)) / 8;
            *bytes.word(at) = match rng.next() % 4 {
                0 => rng.next(),
                1 => *bytes.word(at) ^ 1 << (rng.next() % 64),
                2 => *bytes.word((part.start + (rng.next() as usize) % (part.end - part.start)) / 8),
                _ => u64::MAX >> (rng.next() % 64),
            };
        }
        // The superblock's own damage is found by its checksum; heal that, to get past it.
        if seed % 2 == 0 {
            bytes.heal_checksum();
        }
        if let Ok(region) = bytes.open() {
            opened += 1;
            use_it(&region, 60, seed as usize);
        }
    }
    println!("400 damaged regions, {opened} opened");
    assert!(opened > 200);
}

/// What the fuzzer begins with, and what it has found: the fuzz target `region_open` does the same.
#[test]
fn damaged_as_a_fuzzer_did() {
    let seeds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fuzz/seeds/region_open");
    let mut tried = 0;
    for seed in std::fs::read_dir(&seeds).unwrap() {
        let list = std::fs::read(seed.unwrap().path()).unwrap();
        let mut image = Image::small();
        image.change(&list);
        if let Ok(region) = image.open() {
            use_it(&region, 16, list.len());
        }
        tried += 1;
    }
    assert!(tried > 3, "{}", seeds.display());
}

/// Where items were there is one byte over and over, in segments that are whole otherwise: their reclaim has to come to an end.
#[test]
fn reclaimed_where_nothing_is_an_item() {
    for byte in [0, 0x01, 0x40, 0x41, 0xFF] {
        let mut image = Image::filled();
        let layout = *image.clone().open().unwrap().mapped().layout();
        let segment_words = layout.shape.segment_size / 8;
        let mut overwritten = 0;
        for segment in 0..(image.backed - layout.segments) / layout.shape.segment_size {
            let state = *image.word((layout.headers + segment * size_of::<SegmentHeader>()) / 8);
            if State(state).kind() != Some(Kind::Open) {
                continue;
            }
            overwritten += 1;
            let first = layout.segments / 8 + segment * segment_words;
            for word in first + EXTENT_HEADER_SIZE / 8..first + segment_words {
                *image.word(word) = u64::from_le_bytes([byte; 8]);
            }
        }
        assert!(overwritten > 1, "there were items");
        write_over_all(&image.open().unwrap());
    }
}

/// The answers of an image in whose segments (items, large values, buckets, hints) random bytes are wrong.
fn answers_of_damaged(checksums: bool, seeds: u64) -> Answers {
    let sound = Image::filled_with(checksums);
    let layout = *sound.clone().open().unwrap().mapped().layout();
    let part = layout.segments..sound.backed;
    let mut sum = Answers::default();
    for seed in 1..=seeds {
        let mut rng = Random::new(seed.wrapping_mul(0xD134_2543_DE82_EF95));
        let mut bytes = sound.clone();
        for _ in 0..1 << (seed % 12) {
            let at = part.start / 8 + rng.next() as usize % ((part.end - part.start) / 8);
            *bytes.word(at) ^= match rng.next() % 3 {
                0 => rng.next(),
                1 => 1 << (rng.next() % 64),
                _ => (rng.next() & 0xFF) << (rng.next() % 8 * 8),
            };
        }
        let found = answers(&bytes.open().unwrap());
        sum = Answers {
            right: sum.right + found.right,
            none: sum.none + found.none,
            wrong: sum.wrong + found.wrong,
        };
    }
    sum
}

#[test]
fn with_checksums_no_damaged_byte_is_given_out() {
    let found = answers_of_damaged(true, 60);
    println!("with checksums: {found:?}");
    assert_eq!(found.wrong, 0);
    assert!(found.right > 10_000 && found.none > 1_000, "{found:?}");
    // The broken thing: the same damage where no check looks for it.
    let found = answers_of_damaged(false, 12);
    println!("without: {found:?}");
    assert!(found.wrong > 10);
}

#[test]
fn truncated_or_of_another_kind() {
    let mut bytes = Image::filled();
    let whole = bytes.backed;
    for backed in [0, 1, 4095, 4096, 8192, whole / 2, whole - 1] {
        bytes.backed = backed;
        assert!(bytes.open().is_err(), "{backed} of {whole} bytes");
    }
    bytes.backed = whole;
    assert!(bytes.open().is_ok());
    let say = |bytes: &mut Image| bytes.open().err().unwrap().to_string();
    for (word, value, wanted) in [
        (0, 0, "no Keyway region"),
        (1, 4, "made by Keyway 0.2.0 (format 4, layout "),
        (
            1,
            1,
            "made by Keyway 0.2.0 (format 1), and this is Keyway 0.2.0 (format 3, layout ",
        ),
        (17, 4, "made by Keyway 0.2.0 (format 3, layout 0000000000000004), and this is"),
        (2, 1 << 40, "features that this program does not know"),
        (7, 99, "checksum"),
    ] {
        let kept = std::mem::replace(bytes.word(word), value);
        let said = say(&mut bytes);
        assert!(said.contains(wanted), "{said}");
        *bytes.word(word) = kept;
    }
}
