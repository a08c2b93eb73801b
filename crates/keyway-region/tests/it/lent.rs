//! Values that are lent where they lie. The enemy: a recycler that puts other bytes there while the kernel reads.
//! Guards: P3

use crate::private;
use keyway_region::verbs::{Get, Store};
use keyway_region::{Limits, Pinning, Session};
use private::UNIX_S;

const MEMORY: u64 = 4 << 20;
const LEN: usize = 6000;
/// Sets of that length that go through all of the memory several times.
const ROUNDS: u32 = 3000;
const LIMITS: Limits = Limits {
    item_size_max: 1 << 20,
    evict: true,
    flush: true,
};

/// Asks for values, of more than so many bytes where they lie.
fn long() -> Get {
    Get {
        value: true,
        at_most: Some(1000),
        ..Get::default()
    }
}

/// A value in which neighbours differ: bytes from a wrong place show.
fn value() -> Vec<u8> {
    (0..LEN).map(|i| u8::try_from(i % 251).expect("below 251")).collect()
}

fn set(session: &mut Session, key: &str, value: &[u8], now: u32) {
    session
        .store(key.as_bytes(), value, &Store::default(), now)
        .expect("room by evicting");
}

fn overwrite_all(session: &mut Session, which: &str, now: u32) {
    for i in 0..ROUNDS {
        set(session, &format!("{which}-{i}"), &[b'o'; LEN], now);
    }
}

#[test]
fn what_is_pinned_stays_what_it_is_and_is_recycled_afterwards() {
    let (pages, region) = private::region(MEMORY);
    region.limits().write(&LIMITS);
    let process = region.recovery().attach(0, 1, UNIX_S);
    let [mut reader, mut writer] = [(); 2].map(|()| region.session(process).expect("a slot"));
    let now = region.clock().tick(keyway_region::Moment::from_secs(UNIX_S));
    let value = value();
    set(&mut writer, "key", &value, now);
    let (mut out, mut pinned_at) = (Vec::new(), std::ptr::null());
    let found = reader
        .get(
            b"key",
            &long(),
            now,
            &mut Pinning::new(
                &mut out,
                |item, out| out.extend_from_slice(format!("{}:", item.value_len).as_bytes()),
                |lent, out| {
                    assert_eq!(lent.len(), LEN);
                    overwrite_all(&mut writer, "meanwhile", now);
                    lent.append_from(0, out);
                    lent.append_from(LEN - 3, out);
                    pinned_at = lent.address();
                },
            ),
        )
        .expect("a good key");
    assert_eq!(found.map(|item| item.value_len), Some(LEN));
    assert!(
        out == [b"6000:", &value[..], &value[LEN - 3..]].concat(),
        "the value changed while it was lent"
    );
    // With the loan's end, the same writes put others there: the first ones would have, too.
    assert!(private::bytes_at(&pages, pinned_at, LEN) == value);
    overwrite_all(&mut writer, "afterwards", now);
    assert!(
        private::bytes_at(&pages, pinned_at, LEN) != value,
        "its memory was not recycled"
    );
    assert!(keyway_region::check::check(&region, |_| {}).is_sound());
}

#[test]
fn short_values_and_those_with_segments_of_their_own_are_copied() {
    let (_pages, region) = private::region(MEMORY);
    region.limits().write(&LIMITS);
    let process = region.recovery().attach(0, 1, UNIX_S);
    let mut session = region.session(process).expect("a slot");
    let now = region.clock().tick(keyway_region::Moment::from_secs(UNIX_S));
    for len in [0, 1, 1000, 300_000] {
        let value = vec![b'v'; len];
        set(&mut session, "key", &value, now);
        let mut out = b"before".to_vec();
        let found = session
            .get(
                b"key",
                &long(),
                now,
                &mut Pinning::new(&mut out, |_, out| out.push(b':'), |_, _| panic!("lent")),
            )
            .expect("a good key");
        assert_eq!(found.map(|item| item.value_len), Some(len));
        assert!(out == [b"before:", &value[..]].concat(), "{len}");
    }
}

#[test]
fn a_session_that_has_given_its_slot_back_leaves_the_next_ones_hazard_pointers_alone() {
    let (pages, region) = private::region(MEMORY);
    region.limits().write(&LIMITS);
    let process = region.recovery().attach(0, 1, UNIX_S);
    let now = region.clock().tick(keyway_region::Moment::from_secs(UNIX_S));
    let mut gone = region.session(process).expect("a slot");
    let value = value();
    set(&mut gone, "key", &value, now);
    set(&mut gone, "other", &[b'x'; LEN], now);
    // As after a fence, if there was no other slot for it: it may still read.
    gone.end();
    let mut reader = region.session(process).expect("a slot");
    let mut writer = region.session(process).expect("a slot");
    let (mut out, mut pinned_at) = (Vec::new(), std::ptr::null());
    let mut other = Vec::new();
    reader
        .get(
            b"key",
            &long(),
            now,
            &mut Pinning::new(
                &mut out,
                |_, _| (),
                |lent, _| {
                    let lent_to_it = &mut Pinning::new(&mut other, |_, _| (), |_, _| panic!("lent without a slot"));
                    let found = gone.get(b"other", &long(), now, lent_to_it).expect("a good key");
                    assert_eq!(found.map(|item| item.value_len), Some(LEN));
                    overwrite_all(&mut writer, "meanwhile", now);
                    pinned_at = lent.address();
                },
            ),
        )
        .expect("a good key");
    assert!(other == [b'x'; LEN], "it is copied");
    assert!(
        private::bytes_at(&pages, pinned_at, LEN) == value,
        "the value changed while it was lent"
    );
}
