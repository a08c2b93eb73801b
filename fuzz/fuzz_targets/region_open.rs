//! A region's bytes, changed anywhere: opening gives a region or an error, and every verb on it ends, without a panic and
//! without an access outside the mapping.
//!
//! The input is a list of changes, twelve bytes each: place (three bytes; it is folded so that the words which
//! lead elsewhere are hit as often as the payload), what to do, eight bytes of value.
//! Guards: P6

#![no_main]

use damage::{Image, use_it};
use libfuzzer_sys::fuzz_target;
use std::sync::{LazyLock, Mutex};

static SOUND: LazyLock<Image> = LazyLock::new(Image::small);
/// Keys that are used after each damage.
const USED: usize = 16;
/// What is damaged: one image for all inputs, because new memory takes longer than the rest.
static DAMAGED: LazyLock<Mutex<Image>> = LazyLock::new(|| Mutex::new(Image::small()));

fuzz_target!(|input: &[u8]| {
    let mut image = DAMAGED.lock().expect("no input failed");
    image.clone_from(&SOUND);
    let words = image.backed / 8;
    // The arrays before the segments, and the first segments, which are the index.
    let head = words / 8;
    let mut heal = false;
    for change in input.chunks_exact(12).take(64) {
        let place = u32::from_le_bytes([change[0], change[1], change[2], 0]) as usize;
        let value = u64::from_le_bytes(change[4..12].try_into().unwrap_or_default());
        let at = if change[3] & 1 == 0 { place % head } else { place % words };
        heal |= change[3] & 2 != 0;
        let word = image.word(at);
        *word = match change[3] >> 2 & 3 {
            0 => value,
            1 => *word ^ value,
            2 => word.wrapping_add(value),
            _ => *word & value,
        };
        if change[3] & 16 != 0 {
            image.backed = image.backed.min(place * 8);
        }
    }
    if heal && image.backed >= 4096 {
        image.heal_checksum();
    }
    if let Ok(region) = image.open() {
        use_it(&region, USED, input.len());
    }
});
