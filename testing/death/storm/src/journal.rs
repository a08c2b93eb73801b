//! A thread's journal: every call, written before it is made, and every answer, written after it came. It lies in a shared
//! mapping of a file in memory, so what was written stays when its writer is killed between any two instructions.
//!
//! ```text
//! header: pid | threads of the process | order | 5 reserved          a record: invoked | verb, exptime < 0, key | argument | compare
//!         (8 words each)                                                       answer, pieces | value | unique | responded
//! ```

use crate::system::now_ns;
use harness::Pages;
use histories::value::Value;
use histories::{Answer, Call, Key, Operation, Verb};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const HEADER_WORDS: usize = 8;
const RECORD_WORDS: usize = 8;
const PID: usize = 0;
const ORDER: usize = 1;

/// A journal.
#[derive(Debug)]
pub struct Journal {
    pages: Pages,
    written: usize,
}

impl Journal {
    /// Where the journal of a writer lies.
    pub fn path(folder: &Path, writer: u32) -> PathBuf {
        folder.join(format!("journal-{writer}"))
    }

    /// A writer's own, with room for `capacity` calls.
    pub fn create(folder: &Path, writer: u32, capacity: usize) -> Self {
        let pages = Pages::open(&Self::path(folder, writer), HEADER_WORDS + capacity * RECORD_WORDS);
        pages.word(PID).store(u64::from(std::process::id()), Release);
        Self { pages, written: 0 }
    }

    /// Another worker's, if it has been begun.
    pub fn open(folder: &Path, writer: u32) -> Option<Self> {
        let path = Self::path(folder, writer);
        let words = usize::try_from(std::fs::metadata(&path).ok()?.len()).ok()? / 8;
        if words < HEADER_WORDS {
            return None;
        }
        let journal = Self {
            pages: Pages::open(&path, words),
            written: 0,
        };
        (journal.pid() != 0).then_some(journal)
    }

    /// The writer's process.
    pub fn pid(&self) -> i32 {
        i32::try_from(self.pages.word(PID).load(Acquire)).unwrap_or(0)
    }

    /// Asks the writer to fork.
    pub fn order_fork(&self) {
        self.pages.word(ORDER).store(1, Relaxed);
    }

    /// Whether the writer is asked to fork; asked once.
    pub fn takes_order(&self) -> bool {
        self.pages.word(ORDER).load(Relaxed) != 0 && self.pages.word(ORDER).swap(0, Relaxed) != 0
    }

    /// Whether another call fits.
    pub fn has_room(&self) -> bool {
        HEADER_WORDS + (self.written + 1) * RECORD_WORDS <= self.pages.words()
    }

    /// Writes a call that is about to be made.
    pub fn begin(&mut self, call: &Call) {
        let at = HEADER_WORDS + self.written * RECORD_WORDS;
        let what = u64::from(call.verb as u8) << 56 | u64::from(call.exptime < 0) << 48 | u64::from(call.key.0);
        self.pages.word(at + 1).store(what, Relaxed);
        self.pages.word(at + 2).store(call.argument, Relaxed);
        self.pages.word(at + 3).store(call.compare, Relaxed);
        // PAIRS: Acquire in `operations`: who sees the time sees the call. The clock is read before the call is made.
        self.pages.word(at).store(now_ns(), Release);
    }

    /// Writes its answer, or that there is none.
    pub fn end(&mut self, answer: Option<&Answer>) {
        let at = HEADER_WORDS + self.written * RECORD_WORDS;
        self.written += 1;
        let Some(answer) = answer else { return };
        let (code, value, cas) = encode(answer);
        self.pages.word(at + 4).store(code << 32 | u64::from(value.pieces), Relaxed);
        self.pages.word(at + 5).store(value.hash, Relaxed);
        self.pages.word(at + 6).store(cas, Relaxed);
        // PAIRS: Acquire in `operations`.
        self.pages.word(at + 7).store(now_ns(), Release);
    }

    /// Calls begun so far, seen from outside: those behind `from` are counted.
    pub fn progress(&self, from: usize) -> usize {
        (from..self.capacity())
            .find(|i| self.invoked(*i) == 0)
            .unwrap_or(self.capacity())
    }

    fn capacity(&self) -> usize {
        (self.pages.words() - HEADER_WORDS) / RECORD_WORDS
    }

    fn invoked(&self, i: usize) -> u64 {
        self.pages.word(HEADER_WORDS + i * RECORD_WORDS).load(Acquire)
    }

    /// All that was written.
    pub fn operations(&self) -> Vec<Operation> {
        (0..self.capacity())
            .map_while(|i| {
                let invoked = self.invoked(i);
                (invoked != 0).then(|| self.operation(i, invoked))
            })
            .collect()
    }

    fn operation(&self, i: usize, invoked: u64) -> Operation {
        let word = |n: usize| self.pages.word(HEADER_WORDS + i * RECORD_WORDS + n).load(Acquire);
        let responded = word(7);
        let what = word(1);
        let low = |n: u64| u32::try_from(n & 0xFFFF_FFFF).unwrap_or(0);
        let verb = usize::try_from(what >> 56).ok().and_then(|n| Verb::ALL.get(n).copied());
        let call = Call {
            argument: word(2),
            compare: word(3),
            exptime: if what >> 48 & 1 != 0 { -1 } else { 0 },
            ..Call::new(verb.unwrap_or(Verb::Get), Key(low(what)))
        };
        let value = Value {
            hash: word(5),
            pieces: low(word(4)),
        };
        Operation {
            invoked,
            responded: (responded != 0).then_some(responded),
            call,
            answer: (responded != 0).then(|| decode(word(4) >> 32, value, word(6))),
        }
    }
}

fn encode(answer: &Answer) -> (u64, Value, u64) {
    let plain = |code| (code, Value::number(0), 0);
    match *answer {
        Answer::Torn => plain(0),
        Answer::Hit { value, cas } => (1, value, cas),
        Answer::Miss => plain(2),
        Answer::Stored { cas } => (3, Value::number(0), cas),
        Answer::NotStored => plain(4),
        Answer::Exists => plain(5),
        Answer::NotFound => plain(6),
        Answer::Deleted => plain(7),
        Answer::Number { number, cas } => (8, Value::number(number), cas),
        Answer::Touched => plain(9),
        Answer::Flushed => plain(10),
        Answer::Refused => plain(11),
        Answer::NotJoined => plain(12),
        Answer::Claimed { flight } => (13, Value::number(0), flight),
        Answer::InFlight => plain(14),
        Answer::Void => plain(15),
    }
}

fn decode(code: u64, value: Value, cas: u64) -> Answer {
    match code {
        1 => Answer::Hit { value, cas },
        2 => Answer::Miss,
        3 => Answer::Stored { cas },
        4 => Answer::NotStored,
        5 => Answer::Exists,
        6 => Answer::NotFound,
        7 => Answer::Deleted,
        8 => Answer::Number { number: value.hash, cas },
        9 => Answer::Touched,
        10 => Answer::Flushed,
        11 => Answer::Refused,
        12 => Answer::NotJoined,
        13 => Answer::Claimed { flight: cas },
        14 => Answer::InFlight,
        15 => Answer::Void,
        _ => Answer::Torn,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        let scratch = harness::Scratch::new();
        let mut journal = Journal::create(scratch.path(), 3, 100);
        let answers = [
            Answer::Torn,
            Answer::Hit {
                value: Value::piece(7),
                cas: 9,
            },
            Answer::Miss,
            Answer::Stored { cas: 12 },
            Answer::NotStored,
            Answer::Exists,
            Answer::NotFound,
            Answer::Deleted,
            Answer::Number { number: 1 << 60, cas: 3 },
            Answer::Touched,
            Answer::Flushed,
            Answer::Refused,
            Answer::Claimed { flight: 77 },
            Answer::Void,
        ];
        for (verb, answer) in Verb::ALL.into_iter().zip(answers) {
            let call = Call {
                argument: 5,
                compare: 6,
                exptime: -1,
                ..Call::new(verb, Key::filler(3, 4))
            };
            journal.begin(&call);
            journal.end(Some(&answer));
        }
        journal.begin(&Call::new(Verb::Delete, Key(1)));
        let read = Journal::open(scratch.path(), 3).map_or(Vec::new(), |j| j.operations());
        assert_eq!(read.len(), 15);
        for (operation, (verb, answer)) in read.iter().zip(Verb::ALL.into_iter().zip(answers)) {
            assert_eq!((operation.call.verb, operation.answer), (verb, Some(answer)));
            assert_eq!((operation.call.key, operation.call.exptime), (Key::filler(3, 4), -1));
            assert!(operation.responded >= Some(operation.invoked));
        }
        assert_eq!((read[14].responded, read[14].answer), (None, None), "killed in the call");
    }
}
