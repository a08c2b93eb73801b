//! A region's bytes, changed anywhere: opening gives a region or an error, and every verb on it ends, without a panic and
//! without an access outside the mapping.
//!
//! The input is a list of changes ([`Image::change`]).
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
    image.change(input);
    if let Ok(region) = image.open() {
        use_it(&region, USED, input.len());
    }
});
