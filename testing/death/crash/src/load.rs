//! A client that writes its own keys over one raw connection, pipelined, checks every reply at once, and records what it sent
//! and what was acknowledged.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use harness::{Random, Wire};

use crate::history::{History, Operation, State};

/// Keys of one writer. Every third holds a number.
pub const KEYS: usize = 400;
/// A text value is replaced by a short one when it has grown beyond this.
const TEXT_LEN_MAX: usize = 8_192;

/// A writer's keys are its own: their names start with its number.
pub fn key_name(writer: usize, index: usize) -> String {
    format!("w{writer}:key:{index}")
}

/// Writes until the connection breaks or `stop` says so. `Err` is a reply that must not be.
pub fn write_until_cut(
    writer: usize,
    wire: &mut Wire,
    history: &mut History,
    random: &mut Random,
    acknowledged: &AtomicU64,
) -> Result<(), String> {
    loop {
        let outcome = if random.below(8) == 0 {
            compare_and_swap(writer, wire, history, random)
        } else {
            pipeline(writer, wire, history, random)
        };
        match outcome {
            // PAIRS: nothing; a count for the one who decides when to kill
            Ok(Ok(count)) => acknowledged.fetch_add(count, Ordering::Relaxed),
            Ok(Err(wrong)) => return Err(wrong),
            Err(_cut) => return Ok(()),
        };
    }
}

/// One to sixteen operations in one write, then their replies.
fn pipeline(writer: usize, wire: &mut Wire, history: &mut History, random: &mut Random) -> io::Result<Result<u64, String>> {
    let count = 1 + random.index(16);
    let (mut request, mut keys) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let index = random.index(KEYS);
        let key = key_name(writer, index);
        let operation = choose(index, &history.current(&key), &key, random);
        write_request(&mut request, &key, &operation);
        history.sent(&key, operation);
        keys.push(key);
    }
    // what was not sent whole may still have arrived in part: it stays pending
    wire.send(&request)?;
    for key in &keys {
        let reply = wire.line()?;
        if let Err(wrong) = history.replied(key, &String::from_utf8_lossy(&reply)) {
            return Ok(Err(wrong));
        }
    }
    Ok(Ok(count as u64))
}

/// `gets`, then `cas` with the unique that it returned.
fn compare_and_swap(
    writer: usize,
    wire: &mut Wire,
    history: &mut History,
    random: &mut Random,
) -> io::Result<Result<u64, String>> {
    let index = random.index(KEYS);
    let key = key_name(writer, index);
    let Some((value, unique)) = gets(wire, &key)? else {
        let fits = history.may_evict || history.current(&key).is_none();
        return Ok(if fits {
            Ok(0)
        } else {
            Err(format!("{key} is gone while the server lives"))
        });
    };
    if Some(&value) != history.current(&key).as_ref() {
        return Ok(Err(format!(
            "{key} has another value than its writer gave it while the server lives"
        )));
    }
    let new = if index.is_multiple_of(3) {
        number(random)
    } else {
        text(&key, random)
    };
    let request = [format!("cas {key} 0 0 {} {unique}\r\n", new.len()).as_bytes(), &new, b"\r\n"].concat();
    history.sent(&key, Operation::Swap(new));
    wire.send(&request)?;
    let reply = wire.line()?;
    Ok(history.replied(&key, &String::from_utf8_lossy(&reply)).map(|()| 1))
}

/// Value and unique of a key.
fn gets(wire: &mut Wire, key: &str) -> io::Result<Option<(Vec<u8>, u64)>> {
    let found = wire.get(true, &[key])?.pop();
    Ok(found.map(|item| (item.value, item.cas)))
}

fn choose(index: usize, state: &State, key: &str, random: &mut Random) -> Operation {
    if index.is_multiple_of(3) {
        return match random.below(10) {
            0..=1 => Operation::Set(number(random)),
            2 => Operation::Delete,
            _ => Operation::Increment(random.below(1_000_000)),
        };
    }
    let grown = state.as_ref().is_some_and(|value| value.len() > TEXT_LEN_MAX);
    match random.below(10) {
        0 => Operation::Delete,
        1..=2 if !grown => Operation::Append(text(key, random)),
        3 if !grown => Operation::Prepend(text(key, random)),
        _ => Operation::Set(text(key, random)),
    }
}

fn number(random: &mut Random) -> Vec<u8> {
    random.below(1 << 40).to_string().into_bytes()
}

/// A value that names its key and is never the same twice: mostly short, sometimes tens of kilobytes, rarely a large part of a
/// segment.
fn text(key: &str, random: &mut Random) -> Vec<u8> {
    let len = match random.below(300) {
        0 => random.index(300_000),
        1..=12 => random.index(20_000),
        _ => random.index(300),
    };
    let mut value = format!("[{key} {:016x}]", random.next()).into_bytes();
    value.extend(random.bytes(len));
    value
}

fn write_request(out: &mut Vec<u8>, key: &str, operation: &Operation) {
    let (verb, value) = match operation {
        Operation::Set(value) => ("set", value),
        // a pipeline knows no uniques
        Operation::Swap(value) => ("replace", value),
        Operation::Append(value) => ("append", value),
        Operation::Prepend(value) => ("prepend", value),
        Operation::Delete => return out.extend(format!("delete {key}\r\n").bytes()),
        Operation::Increment(delta) => return out.extend(format!("incr {key} {delta}\r\n").bytes()),
    };
    out.extend(format!("{verb} {key} 0 0 {}\r\n", value.len()).bytes());
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Reads every key of a history over a fresh connection and judges it; returns how many were there.
pub fn verify(wire: &mut Wire, history: &mut History) -> Result<usize, String> {
    let keys: Vec<String> = history.keys().map(String::from).collect();
    let mut present = 0;
    for batch in keys.chunks(50) {
        let mut found = get_many(wire, batch).map_err(|e| format!("reading back after the restart: {e}"))?;
        for key in batch {
            let state = found.remove(key);
            present += usize::from(state.is_some());
            history.found(key, state)?;
        }
        if let Some(stranger) = found.keys().next() {
            return Err(format!("{stranger} came back, which was not asked for"));
        }
    }
    Ok(present)
}

fn get_many(wire: &mut Wire, keys: &[String]) -> io::Result<std::collections::BTreeMap<String, Vec<u8>>> {
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let found = wire.get(false, &keys)?;
    Ok(found.into_iter().map(|item| (item.key, item.value)).collect())
}
