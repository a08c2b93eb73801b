//! Any bytes, in any chunks: the decoder does not panic, makes progress, and says the same as on the whole stream.
//! Guards: P37

#![no_main]

use keyway_fuzz::converse;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    // The first bytes are the chunk sizes: 8 of them, so that the stream stays readable in a corpus.
    let Some((sizes, stream)) = input.split_at_checked(8) else {
        return;
    };
    let whole = converse(stream, &[], |_| ());
    assert_eq!(converse(stream, sizes, |_| ()), whole);
    assert_eq!(converse(stream, &[1], |_| ()), whole);
});
