//! Packets that no author wrote down: requests over the items, mostly sound, some with their bytes changed, cut or doubled.
//!
//! Two things are held against each answer: it must be, in every bit, what user space would answer; and a sound request for
//! items that are all hot must have one.

use harness::Random;

use crate::frame::{Checksum, Frame, answer_max, seal};
use crate::stage::{Outcome, Stage};
use crate::world::{Hot, hold_answer, reference};

/// How many packets met which fate.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// answered
    pub answered: u64,
    /// passed up
    pub up: u64,
}

/// Tries `count` packets; the first that is treated wrongly ends it.
///
/// # Errors
///
/// That packet, and what became of it.
pub fn hold(stage: &mut Stage<'_>, items: &[Hot], v6: bool, random: &mut Random, count: u64) -> Result<Tally, String> {
    let mut tally = Tally::default();
    for number in 0..count {
        let (payload, is_sound) = request(items, random);
        let mut frame = Frame::new(v6, &payload);
        frame.datagram[..2].copy_from_slice(&random.bytes(2));
        let checksum = match random.below(8) {
            0 => Checksum::Partial,
            1 if !v6 => Checksum::Absent,
            _ => Checksum::Full,
        };
        let mut bytes = frame.bytes(checksum);
        let is_broken = random.below(8) == 0;
        if is_broken {
            break_frame(&mut bytes, v6, random);
        }
        let complain = |why: &str| {
            format!(
                "packet {number} of {}: {why}: {}",
                if v6 { "IPv6" } else { "IPv4" },
                bytes.escape_ascii()
            )
        };
        match stage.run(&bytes).map_err(|why| complain(&why))? {
            // What was changed may still be a request; then its answer must be that one's.
            Outcome::Answered(answer) if is_broken => {
                tally.answered += 1;
                hold_answer(&bytes, &answer, items, v6).map_err(|why| complain(&why))?;
            }
            Outcome::Answered(answer) => {
                tally.answered += 1;
                let got = frame.answered(&answer, checksum).map_err(|why| complain(&why))?;
                if reference(items, &payload) != Some(got) {
                    return Err(complain("the answer is not user space's"));
                }
            }
            Outcome::Up(_) => {
                tally.up += 1;
                // 1 of 65536 sums is right in two ways, and such a packet is user space's.
                let fits = reference(items, &payload).is_some_and(|answer| answer.len() <= answer_max(v6));
                if is_sound && !is_broken && fits && !is_ambiguous(&frame) {
                    return Err(complain("there is no answer"));
                }
            }
        }
    }
    Ok(tally)
}

/// A payload, and whether the program has to answer it if all its items are there.
fn request(items: &[Hot], random: &mut Random) -> (Vec<u8>, bool) {
    let key = |random: &mut Random| match random.below(40) {
        0 => random.bytes(3),
        _ => items[random.index(items.len())].key.clone(),
    };
    let mut payload = Vec::new();
    if random.below(2) == 0 {
        payload.extend(if random.below(2) == 0 { &b"get"[..] } else { b"gets" });
        for _ in 0..[1, 1, 2, 3, 5, 20][random.index(6)] {
            payload.push(b' ');
            payload.extend(key(random));
        }
    } else {
        payload.extend(b"mg ");
        payload.extend(key(random));
        let mut flags = vec!["v", "k", "f", "c", "q", "Oopaque", "s", "t"];
        for _ in 0..random.index(9) {
            payload.push(b' ');
            payload.extend(flags.swap_remove(random.index(flags.len())).as_bytes());
        }
    }
    payload.extend(if random.below(8) == 0 { &b"\n"[..] } else { b"\r\n" });
    payload.truncate(1391);
    let is_sound = random.below(4) != 0;
    if !is_sound {
        for _ in 0..=random.below(3) {
            change(&mut payload, random);
        }
    }
    // a key of random bytes may be anything
    let is_plain = payload.iter().all(|byte| *byte >= b' ' || matches!(byte, b'\r' | b'\n'));
    (payload, is_sound && is_plain)
}

fn change(payload: &mut Vec<u8>, random: &mut Random) {
    if payload.is_empty() {
        return payload.push(b'\n');
    }
    let at = random.index(payload.len());
    match random.below(5) {
        0 => payload[at] = b" \r\n\0\tvkget"[random.index(10)],
        1 => payload[at] ^= 1 << random.below(8),
        2 => drop(payload.remove(at)),
        3 => payload.insert(at, b" \r\n"[random.index(3)]),
        _ => payload.truncate(at),
    }
    payload.truncate(1391);
}

/// Changes a header or the length; half of the time the sums are right again.
fn break_frame(bytes: &mut Vec<u8>, v6: bool, random: &mut Random) {
    let head = if v6 { 70 } else { 50 };
    for _ in 0..=random.below(2) {
        let at = 12 + random.index(head - 12);
        if let Some(byte) = bytes.get_mut(at) {
            *byte = if random.below(2) == 0 {
                *byte ^ (1 << random.below(8))
            } else {
                u8::try_from(random.below(256)).unwrap_or(0)
            };
        }
    }
    match random.below(4) {
        0 => bytes.truncate(14 + random.index(bytes.len() - 14)),
        1 => bytes.extend(vec![0; random.index(60)]),
        _ => {}
    }
    if random.below(2) == 0 {
        seal(bytes, v6);
    }
}

/// Whether the full checksum of a frame is also the sum of its pseudo header.
fn is_ambiguous(frame: &Frame) -> bool {
    frame.bytes(Checksum::Full) == frame.bytes(Checksum::Partial)
}
