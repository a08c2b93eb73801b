//! What a writer does before its power fails, and what a judge makes of what is left.
//!
//! A writer's calls are a stream that its seed repeats; each is acknowledged before the next one begins. So what a power failure may
//! leave is what the first *n* calls leave, for one *n* that is at least the number of acknowledged ones that were told.

use harness::Random;
use std::collections::{BTreeMap, BTreeSet};

/// Keys and values, as far as one writer is concerned.
pub type Items = BTreeMap<String, Vec<u8>>;

/// Keys of a writer: small values, numbers, large values.
const SMALL: usize = 160;
const NUMBERS: usize = 24;
const LARGE: usize = 16;
/// Calls that may have been acknowledged and not been told: the serial line's driver holds a page (Linux, `UART_XMIT_SIZE`), a call's
/// line has six bytes or more; this is three times as many.
const UNTOLD_MAX: u64 = 2_000;

/// A call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// set
    Store(Vec<u8>),
    /// append
    Append(Vec<u8>),
    /// delete
    Delete,
    /// incr
    Count(u64),
}

/// What a call is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// done
    Done,
    /// there is no such item
    Absent,
    /// the number is now this
    Number(u64),
}

/// The calls of one writer in one round.
pub struct Stream {
    writer: usize,
    random: Random,
}

impl Stream {
    /// Those of this seed.
    pub fn new(seed: u64, writer: usize) -> Self {
        let random = Random::new(seed).fork(writer as u64);
        Self { writer, random }
    }

    /// The next one: key and call.
    pub fn next_call(&mut self) -> (String, Call) {
        let kind = self.random.below(100);
        let at = match kind {
            0..2 => SMALL + NUMBERS + self.random.index(LARGE),
            2..20 => SMALL + self.random.index(NUMBERS),
            _ => self.random.index(SMALL),
        };
        let what = self.random.below(100);
        let call = if at >= SMALL + NUMBERS {
            match what {
                0..30 => Call::Delete,
                _ => Call::Store(self.bytes(100_000, 400_000)),
            }
        } else if at >= SMALL {
            match what {
                0..20 => Call::Delete,
                20..50 => Call::Store(self.random.below(1 << 40).to_string().into_bytes()),
                _ => Call::Count(self.random.below(1 << 40)),
            }
        } else {
            match what {
                0..25 => Call::Delete,
                25..40 => Call::Append(self.bytes(1, 60)),
                _ => Call::Store(self.bytes(0, 1500)),
            }
        };
        (name(self.writer, at), call)
    }

    fn bytes(&mut self, least: usize, most: usize) -> Vec<u8> {
        let len = least + self.random.index(most - least + 1);
        self.random.bytes(len)
    }
}

fn name(writer: usize, at: usize) -> String {
    format!("w{writer}-{at}")
}

/// All keys that a writer may write.
pub fn keys(writer: usize) -> impl Iterator<Item = String> {
    (0..SMALL + NUMBERS + LARGE).map(move |at| name(writer, at))
}

/// Does a call, and says what it is answered.
pub fn apply(items: &mut Items, key: &str, call: &Call) -> Answer {
    match (call, items.get_mut(key)) {
        (Call::Store(value), _) => {
            items.insert(key.to_owned(), value.clone());
            Answer::Done
        }
        (_, None) => Answer::Absent,
        (Call::Append(more), Some(value)) => {
            value.extend_from_slice(more);
            Answer::Done
        }
        (Call::Delete, Some(_)) => {
            items.remove(key);
            Answer::Done
        }
        (Call::Count(by), Some(value)) => {
            let number = std::str::from_utf8(value).ok().and_then(|text| text.parse::<u64>().ok());
            let number = number.unwrap_or(0).wrapping_add(*by);
            *value = number.to_string().into_bytes();
            Answer::Number(number)
        }
    }
}

/// Judges what is there after a round that began with `items`: how many calls it is the work of. `items` is then as they left it.
///
/// # Errors
///
/// When no number of calls, from the acknowledged ones on, leaves that.
pub fn explain(items: &mut Items, seed: u64, writer: usize, acknowledged: u64, found: &Items) -> Result<u64, String> {
    let mut stream = Stream::new(seed, writer);
    for _ in 0..acknowledged {
        let (key, call) = stream.next_call();
        apply(items, &key, &call);
    }
    let is_other = |items: &Items, key: &str| items.get(key) != found.get(key);
    let mut others: BTreeSet<String> = keys(writer).filter(|key| is_other(items, key)).collect();
    let first_others: Vec<String> = others.iter().take(5).map(|key| told(key, items, found)).collect();
    let strange: Vec<&String> = found.keys().filter(|key| !keys(writer).any(|known| known == **key)).collect();
    if !strange.is_empty() {
        return Err(format!("keys that were never written: {strange:?}"));
    }
    for calls in acknowledged..=acknowledged + UNTOLD_MAX {
        if others.is_empty() {
            return Ok(calls);
        }
        let (key, call) = stream.next_call();
        apply(items, &key, &call);
        if is_other(items, &key) {
            others.insert(key);
        } else {
            others.remove(&key);
        }
    }
    Err(format!(
        "after {acknowledged} acknowledged calls of writer {writer}, no later call explains: {}",
        first_others.join("; ")
    ))
}

fn told(key: &str, items: &Items, found: &Items) -> String {
    let of = |items: &Items| match items.get(key) {
        None => "nothing".to_owned(),
        Some(value) => format!("{} bytes, {}", value.len(), value[..value.len().min(12)].escape_ascii()),
    };
    format!("{key}: expected {}, found {}", of(items), of(found))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What so many calls leave.
    fn after(calls: u64) -> Items {
        let mut items = Items::new();
        let mut stream = Stream::new(7, 0);
        for _ in 0..calls {
            let (key, call) = stream.next_call();
            apply(&mut items, &key, &call);
        }
        items
    }

    #[test]
    fn what_is_left_by_the_told_calls_or_a_few_more_is_explained() {
        for calls in [1000, 1001, 1300] {
            let mut items = Items::new();
            let found = after(calls);
            let explained = explain(&mut items, 7, 0, 1000, &found).unwrap();
            assert!((1000..=calls).contains(&explained), "{explained}");
            assert_eq!(items, found);
        }
    }

    #[test]
    fn a_lost_risen_older_torn_or_foreign_item_is_found() {
        let sound = after(1000);
        let gone = keys(0).find(|key| !sound.contains_key(key)).unwrap();
        let there = sound.keys().next().unwrap().clone();
        let refuse = |change: &dyn Fn(&mut Items)| {
            let mut found = sound.clone();
            change(&mut found);
            explain(&mut Items::new(), 7, 0, 1000, &found).unwrap_err();
        };
        refuse(&|found| drop(found.remove(&there)));
        refuse(&|found| drop(found.insert(gone.clone(), b"back".to_vec())));
        refuse(&|found| found.get_mut(&there).unwrap().push(b'x'));
        refuse(&|found| drop(found.insert("other".into(), Vec::new())));
        // the last calls are lost
        assert!((900..1000).any(|calls| explain(&mut Items::new(), 7, 0, 1000, &after(calls)).is_err()));
    }
}
