//! What the load generator says on a connection, and what it makes of the answers: requests of operations, their replies, and the steps that
//! follow them. `keyway-proto` writes and reads the bytes.
//!
//! Never: reads or writes a socket, or waits.

use super::{Client, Peer};
use crate::load::Load;
use crate::measurement::Window;
use crate::mix::{Kind, Operation};
use keyway_proto::client::{self, Answer, Received};
use keyway_proto::{Store, StoreVerb};
use std::time::Instant;

impl Client {
    /// Appends the next operation's first request.
    pub(super) fn request(&mut self, number: usize, start: Instant) {
        let Operation { kind, item } = self.load.stream.draw();
        let pending = |step| Pending {
            step,
            item,
            keys: 1,
            left: 0,
            start,
        };
        match kind {
            Kind::Get => self.get(number, pending(Step::Get), self.shape.keys_per_get - 1),
            Kind::GetNew => self.get(number, pending(Step::Get), 0),
            Kind::ReadModifyWrite => self.get(number, pending(Step::GetThenSet), 0),
            Kind::Set | Kind::Insert => self.store(number, pending(Step::Set)),
            Kind::Add => self.store(number, pending(Step::Add)),
            Kind::Delete => self.store(number, pending(Step::SetThenDelete)),
            Kind::Remove => self.delete(number, pending(Step::Remove)),
            Kind::Incr => {
                let items = &self.load.items;
                let key = |out: &mut Vec<u8>| items.push_key(item, out);
                client::arithmetic(&mut self.peers[number].out, key, 1, false, false);
                self.push(number, pending(Step::Incr));
            }
        }
    }

    /// A get of the operation's item and `more` others.
    fn get(&mut self, number: usize, mut pending: Pending, more: usize) {
        let Peer { out, items: asked, .. } = &mut self.peers[number];
        let Load { stream, items, .. } = &mut self.load;
        let items = &*items;
        let others = (0..more).map(|_| stream.draw_item());
        let keys = std::iter::once(pending.item).chain(others).map(|item| {
            asked.push_back(item);
            move |out: &mut Vec<u8>| items.push_key(item, out)
        });
        client::get(out, false, keys);
        pending.keys = 1 + more;
        pending.left = 1 + more;
        self.push(number, pending);
    }

    fn store(&mut self, number: usize, pending: Pending) {
        let (item, items, write) = (pending.item, &self.load.items, self.write);
        let store = Store {
            verb: if pending.step == Step::Add {
                StoreVerb::Add
            } else {
                StoreVerb::Set
            },
            key: b"",
            flags: 0,
            exptime: 0,
            cas: 0,
            noreply: false,
            value: b"",
        };
        let key = |out: &mut Vec<u8>| items.push_key(item, out);
        let value = |out: &mut Vec<u8>| items.push_value(item, write, out);
        let value_len = items.lengths(item).1;
        client::store_made(&mut self.peers[number].out, &store, key, value_len, value);
        self.write += 1;
        self.push(number, pending);
    }

    fn delete(&mut self, number: usize, pending: Pending) {
        let items = &self.load.items;
        let key = |out: &mut Vec<u8>| items.push_key(pending.item, out);
        client::delete(&mut self.peers[number].out, key, false);
        self.push(number, pending);
    }

    fn push(&mut self, number: usize, pending: Pending) {
        let peer = &mut self.peers[number];
        if peer.connection.is_one_at_a_time() {
            peer.asked = self.now;
        }
        peer.pending.push_back(pending);
        self.owed += 1;
    }

    pub(super) fn pop(&mut self, number: usize) {
        self.peers[number].pending.pop_front();
        self.owed -= 1;
    }

    /// Takes whole replies; returns how many bytes they were.
    pub(super) fn replies(&mut self, number: usize, bytes: &[u8], now: Instant, window: Window) -> usize {
        let mut at = 0;
        while self.peers[number].alive && at < bytes.len() {
            let problem = match client::receive(&bytes[at..]) {
                Received::Incomplete { .. } => break,
                Received::Broken(why) => why,
                Received::Answer { consumed, answer } => match self.reply(number, &answer, now, window) {
                    Ok(()) => {
                        at += consumed;
                        continue;
                    }
                    Err(why) => why,
                },
            };
            self.ran.wrong.values += 1;
            let start = bytes[at..].escape_ascii().to_string();
            let start = start.chars().take(80).collect::<String>();
            self.ran.wrong.describe(|| format!("{problem}: {start}"));
            self.lose(number, "its replies can no longer be separated");
        }
        at
    }

    /// One answer, or one item of a get's; an error says why it is none to the request that waits.
    #[inline]
    fn reply(&mut self, number: usize, answer: &Answer<'_>, now: Instant, window: Window) -> Result<(), &'static str> {
        let Some(pending) = self.peers[number].pending.front().copied() else {
            return Err("a reply to no request");
        };
        let counted = pending.start >= window.from;
        match (pending.step, answer) {
            (
                Step::Get | Step::GetThenSet,
                Answer::Value {
                    key,
                    flags: 0,
                    cas: None,
                    value,
                },
            ) => {
                return self.value(number, key, value, counted);
            }
            (_, Answer::Error(line)) => {
                self.ran.wrong.errors += 1;
                self.ran
                    .wrong
                    .describe(|| format!("the server answers {}", line.escape_ascii()));
                self.peers[number].items.drain(..pending.left);
                self.pop(number);
            }
            (Step::Get | Step::GetThenSet, Answer::End) => {
                self.pop(number);
                self.misses(number, pending, counted);
                for item in std::mem::take(&mut self.peers[number].fills) {
                    let fill = Pending {
                        item,
                        ..pending.then(Step::Fill, now)
                    };
                    self.store(number, fill);
                }
                if pending.step == Step::GetThenSet {
                    self.store(number, pending.then(Step::Set, pending.start));
                } else {
                    self.done(pending, now, counted);
                }
            }
            (Step::Fill, Answer::Stored) => self.pop(number),
            (Step::Add, Answer::Stored | Answer::NotStored)
            | (Step::Remove, Answer::Deleted | Answer::NotFound)
            | (Step::Set, Answer::Stored)
            | (Step::Delete, Answer::Deleted)
            | (Step::Incr, Answer::Number(_)) => {
                self.pop(number);
                self.done(pending, now, counted);
            }
            (Step::SetThenDelete, Answer::Stored) => {
                self.pop(number);
                self.delete(number, pending.then(Step::Delete, now));
            }
            // Another connection may have deleted it first, or it was evicted.
            (Step::Delete | Step::Incr, Answer::NotFound) => {
                self.pop(number);
                self.ran.misses += u64::from(counted);
                self.done(pending, now, counted);
            }
            _ => return Err("a reply to something else"),
        }
        Ok(())
    }

    /// One item of a get. Items come in the order of their keys; those that are absent are left out.
    #[inline]
    fn value(&mut self, number: usize, key: &[u8], value: &[u8], counted: bool) -> Result<(), &'static str> {
        loop {
            let peer = &mut self.peers[number];
            let asked = peer
                .pending
                .front_mut()
                .filter(|pending| pending.left > 0)
                .zip(peer.items.pop_front());
            let Some((pending, item)) = asked else {
                return Err("a value of a key that was not asked for");
            };
            pending.left -= 1;
            self.key.clear();
            self.load.items.push_key(item, &mut self.key);
            if self.key != key {
                let pending = *pending;
                self.ran.misses += u64::from(counted);
                self.missed(number, pending, item);
                continue;
            }
            self.ran.hits += u64::from(counted);
            if !self.load.items.is_value(item, value) {
                self.ran.wrong.values += 1;
                let shown = value[..value.len().min(32)].escape_ascii().to_string();
                self.ran.wrong.describe(|| {
                    let (key, len) = (key.escape_ascii(), value.len());
                    format!("key {key}: a value of {len} bytes that was never written to it, starting {shown}")
                });
            }
            return Ok(());
        }
    }

    /// The items of a get that are still to come are absent: they are stored, if the load says so.
    fn misses(&mut self, number: usize, pending: Pending, counted: bool) {
        if counted {
            self.ran.misses += pending.left as u64;
        }
        for _ in 0..pending.left {
            let Some(item) = self.peers[number].items.pop_front() else {
                return;
            };
            self.missed(number, pending, item);
        }
    }

    fn missed(&mut self, number: usize, pending: Pending, item: u64) {
        if self.load.fill && pending.step == Step::Get {
            self.peers[number].fills.push(item);
        }
    }

    fn done(&mut self, pending: Pending, now: Instant, counted: bool) {
        if !counted {
            return;
        }
        self.ran.operations += pending.keys as u64;
        self.record(pending, now);
    }

    pub(super) fn record(&mut self, pending: Pending, now: Instant) {
        let latencies = match pending.step {
            Step::Get => &mut self.ran.reads,
            _ => &mut self.ran.writes,
        };
        latencies.record(now.saturating_duration_since(pending.start));
    }
}

/// What a request is, and what follows its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Get,
    GetThenSet,
    Set,
    Add,
    SetThenDelete,
    Delete,
    Remove,
    Incr,
    /// a set of what a get missed, which is no operation of its own
    Fill,
}

/// A request on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pending {
    step: Step,
    item: u64,
    /// of a get: how many were asked for, and how many of them are still to come
    keys: usize,
    left: usize,
    /// when it was sent (closed loop) or due (open loop)
    pub(super) start: Instant,
}

impl Pending {
    /// The request that follows it, of the same operation.
    fn then(self, step: Step, start: Instant) -> Self {
        Self {
            step,
            keys: 1,
            left: 0,
            start,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::Measurement;
    use crate::mix::Stream;
    use crate::sockets::Shape;
    use crate::wire::Target;
    use crate::workload::Ranks;
    use crate::workloads;
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::net::UnixListener;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    /// What a client makes of these bytes as the answer to its first get; `KEY` stands for the key that was asked for.
    fn answered(name: &str, answer: &str) -> Measurement {
        let path = std::env::temp_dir().join(format!("keyway-bench-answered-{}-{name}", std::process::id()));
        let listener = UnixListener::bind(&path).unwrap();
        let answer = answer.to_owned();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(stream.try_clone().unwrap()).read_line(&mut request).unwrap();
            let key = request.trim_end().strip_prefix("get ").expect("a load of gets");
            stream.write_all(answer.replace("KEY", key).as_bytes()).unwrap();
        });
        let mut workload = workloads::find("20b").unwrap();
        workload.mix = vec![(Kind::Get, 1)];
        let newest = Arc::new(AtomicU64::new(100));
        let load = Load {
            stream: Stream::new(&workload, 100, &Ranks::new(workload.access, 100), newest, 1),
            items: workload.items(100),
            fill: false,
            rate: None,
            thread: 1,
        };
        let shape = Shape {
            connections: 1,
            depth: 1,
            keys_per_get: 1,
            silence_max: Duration::from_secs(10),
        };
        let client = Client::open(&Target::Unix(path.clone()), shape, load).unwrap();
        // The connection ends when the server has answered once, so the run does not take that long.
        let ran = client.run(Window::begin(Duration::ZERO, Duration::from_secs(10)));
        std::fs::remove_file(path).unwrap();
        server.join().unwrap();
        ran
    }

    #[test]
    fn a_miss_is_an_answer() {
        let ran = answered("miss", "END\r\n");
        assert_eq!((ran.misses, ran.wrong.values, ran.wrong.errors), (1, 0, 0));
    }

    #[test]
    fn an_error_is_counted_and_described() {
        let ran = answered("error", "SERVER_ERROR out of memory\r\n");
        assert_eq!((ran.wrong.values, ran.wrong.errors), (0, 1));
        assert!(ran.wrong.described[0].contains("out of memory"), "{:?}", ran.wrong.described);
    }

    #[test]
    fn what_is_no_answer_to_a_get_ends_the_conversation() {
        for (name, answer, why) in [
            ("flags", "VALUE KEY 7 1\r\nx\r\nEND\r\n", "something else"),
            ("cas", "VALUE KEY 0 1 9\r\nx\r\nEND\r\n", "something else"),
            ("key", "VALUE other 0 1\r\nx\r\nEND\r\n", "not asked for"),
            ("twice", "END\r\nEND\r\n", "no request"),
            ("stored", "STORED\r\n", "something else"),
            ("line", "VALUE KEY 0\r\n", "get's answer"),
            ("length", "VALUE KEY 0 1\r\nxyz\r\n", "longer or shorter"),
        ] {
            let ran = answered(name, answer);
            assert_eq!(ran.wrong.values, 1, "{answer:?}");
            assert!(ran.wrong.described[0].contains(why), "{answer:?}: {:?}", ran.wrong.described);
        }
    }

    #[test]
    fn a_value_that_was_never_written_is_counted() {
        let value = "x".repeat(20);
        let ran = answered("value", &format!("VALUE KEY 0 20\r\n{value}\r\nEND\r\n"));
        assert_eq!((ran.hits, ran.wrong.values), (1, 1));
        assert!(
            ran.wrong.described[0].contains("never written to it"),
            "{:?}",
            ran.wrong.described
        );
    }
}
