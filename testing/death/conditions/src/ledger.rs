//! The ledger: one page that the test and its processes share. Each key's only writer enters what it sends and what was
//! acknowledged; each reader enters what it saw; violations are counted here, and the test says here what is to be done.
//!
//! It is mapped before a process enters its condition, and needs no descriptor, path or pipe afterwards.

use harness::Pages;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::SeqCst;

/// Writers: threads that have keys of their own.
pub const WRITERS: usize = 8;
/// Most keys of a writer.
pub const KEYS: usize = 512;
/// The writer of the items that stay as they are.
pub const STAYING: usize = 7;
/// The writer of the items that are stored after the region has grown.
pub const GROWN: usize = 6;

const ROLES: usize = 3;
const HEADER: usize = 8;
const ROLE_WORDS: usize = 24;
const NOTE_BYTES: usize = 1024;
const ENTRIES: usize = HEADER + ROLES * ROLE_WORDS + WRITERS;
const NOTES: usize = ENTRIES + WRITERS * KEYS * 3;
const WORDS: usize = NOTES + ROLES * NOTE_BYTES / 8;

/// Which process of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// in plain conditions
    Neighbour,
    /// in the condition that the cell is about
    Odd,
    /// in plain conditions, and killed
    Mortal,
}

impl Role {
    /// All of them.
    pub const ALL: [Self; ROLES] = [Self::Neighbour, Self::Odd, Self::Mortal];

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Neighbour => "neighbour",
            Self::Odd => "odd",
            Self::Mortal => "mortal",
        }
    }

    /// The writers that are its threads.
    pub fn writers(self) -> &'static [usize] {
        match self {
            Self::Neighbour => &[0, 1, 2],
            Self::Odd => &[3, 4],
            Self::Mortal => &[5],
        }
    }
}

/// A word that each process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// how far it has come: see [`Phase`]
    Phase,
    /// its number in the test's pid namespace
    Pid,
    /// operations done
    Operations,
    /// upkeeps done
    Upkeeps,
    /// sessions that it sees in the region
    Sessions,
    /// what it is to do next, and the number of that order
    Order,
    /// the last order that is done
    Done,
    /// it is to detach and end
    Leave,
    /// 1: its last detach marked the region as cleanly stopped; 2: it did not
    Closed,
    /// forked children that use the cache
    Using,
    /// forked children that live on until the end
    Lingering,
    /// 1: the last order could be done; 2: it was refused, and a note says why
    Result,
    /// violations, in the order of [`Violation`]
    Violations,
}

/// How far a process has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// just started
    Started = 0,
    /// attached, in its condition, and at work
    Entered = 1,
    /// the condition does not let it attach, and it was told why
    Refused = 2,
    /// this machine cannot make the condition
    Impossible = 3,
    /// detached
    Left = 4,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Violation {
    /// another key's value, or a version that was never sent
    Wrong,
    /// a value that was never stored as it is
    Torn,
    /// older than one that was acknowledged or seen before
    Stale,
    /// a present item of a region that does not evict is missed
    Lost,
    /// a verb or a session that had to work failed
    Refused,
    /// a file or descriptor of the program itself was touched
    Harmed,
    /// thread slots of the dead that are not given back
    Slots,
    /// what the check of the region finds
    Problems,
    /// a process that ended, hung or crashed where it should not have
    Ended,
}

impl Violation {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Wrong,
        Self::Torn,
        Self::Stale,
        Self::Lost,
        Self::Refused,
        Self::Harmed,
        Self::Slots,
        Self::Problems,
        Self::Ended,
    ];

    /// Its name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wrong => "wrong",
            Self::Torn => "torn",
            Self::Stale => "stale",
            Self::Lost => "lost",
            Self::Refused => "refused",
            Self::Harmed => "harmed",
            Self::Slots => "slots",
            Self::Problems => "problems",
            Self::Ended => "ended",
        }
    }
}

/// A version as it stands in the ledger: the number above, and whether it is a deletion in the lowest bit. 0 is "never written".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u64);

impl Version {
    /// A stored version.
    pub fn stored(number: u64) -> Self {
        Self(number << 1)
    }

    /// A deletion.
    pub fn deleted(number: u64) -> Self {
        Self(number << 1 | 1)
    }

    /// Its number.
    pub fn number(self) -> u64 {
        self.0 >> 1
    }

    /// Whether it leaves the key present.
    pub fn is_stored(self) -> bool {
        self.0 != 0 && self.0 & 1 == 0
    }
}

/// See the top of the file.
#[derive(Debug)]
pub struct Ledger(Pages);

impl Ledger {
    /// The ledger in this file, made if absent.
    pub fn open(path: &Path) -> Self {
        Self(Pages::open(path, WORDS))
    }

    /// A word of a process.
    pub fn word(&self, role: Role, word: Word) -> &AtomicU64 {
        self.0.word(HEADER + role as usize * ROLE_WORDS + word as usize)
    }

    /// What a word of a process is.
    pub fn read(&self, role: Role, word: Word) -> u64 {
        self.word(role, word).load(SeqCst)
    }

    /// Sets a word of a process.
    pub fn write(&self, role: Role, word: Word, value: u64) {
        self.word(role, word).store(value, SeqCst);
    }

    /// Tells all processes to detach and end.
    pub fn stop(&self) {
        self.0.word(0).store(1, SeqCst);
    }

    /// Whether a process is to detach and end.
    pub fn is_over(&self, role: Role) -> bool {
        self.0.word(0).load(SeqCst) != 0 || self.read(role, Word::Leave) != 0
    }

    /// How far a process has come.
    pub fn phase(&self, role: Role) -> Phase {
        let all = [Phase::Started, Phase::Entered, Phase::Refused, Phase::Impossible, Phase::Left];
        let now = self.read(role, Word::Phase);
        all.into_iter().find(|p| *p as u64 == now).unwrap_or(Phase::Started)
    }

    /// Counts a violation that `role` saw; what it says is kept if it is among the first.
    pub fn count(&self, role: Role, violation: Violation, note: &dyn Fn() -> String) {
        self.add(role, violation, 1, note);
    }

    /// Counts several.
    pub fn add(&self, role: Role, violation: Violation, times: u64, note: &dyn Fn() -> String) {
        let word = HEADER + role as usize * ROLE_WORDS + Word::Violations as usize + violation as usize;
        if self.0.word(word).fetch_add(times, SeqCst) == 0 {
            self.note(role, &format!("{}: {}", violation.name(), note()));
        }
    }

    /// How often a process saw a violation.
    pub fn counted(&self, role: Role, violation: Violation) -> u64 {
        let word = HEADER + role as usize * ROLE_WORDS + Word::Violations as usize + violation as usize;
        self.0.word(word).load(SeqCst)
    }

    /// Keeps a line of text, if there is room.
    pub fn note(&self, role: Role, line: &str) {
        let base = NOTES + role as usize * NOTE_BYTES / 8;
        // The first word counts the words that are taken.
        let words = line.len().div_ceil(8) + 1;
        let start = usize::try_from(self.0.word(base).fetch_add(words as u64, SeqCst)).unwrap_or(usize::MAX);
        let line: Vec<u8> = line.bytes().chain([b'\n']).collect();
        for (i, chunk) in line.chunks(8).enumerate() {
            let at = start.saturating_add(i + 1);
            if at < NOTE_BYTES / 8 {
                let mut word = [b' '; 8];
                word.iter_mut().zip(chunk).for_each(|(to, from)| *to = *from);
                self.0.word(base + at).store(u64::from_le_bytes(word), SeqCst);
            }
        }
    }

    /// The lines that a process has left.
    pub fn notes(&self, role: Role) -> String {
        let base = NOTES + role as usize * NOTE_BYTES / 8;
        let words = (1..NOTE_BYTES / 8).map(|i| self.0.word(base + i).load(SeqCst));
        let bytes: Vec<u8> = words.take_while(|w| *w != 0).flat_map(u64::to_le_bytes).collect();
        String::from_utf8_lossy(&bytes).trim_end().to_owned()
    }

    /// How many keys a writer has.
    pub fn keys(&self, writer: usize) -> &AtomicU64 {
        self.0.word(HEADER + ROLES * ROLE_WORDS + writer)
    }

    /// What was last sent of a key.
    pub fn sent(&self, writer: usize, key: usize) -> &AtomicU64 {
        self.entry(writer, key, 0)
    }

    /// What was last acknowledged.
    pub fn acknowledged(&self, writer: usize, key: usize) -> &AtomicU64 {
        self.entry(writer, key, 1)
    }

    /// The newest version that a reader saw.
    pub fn seen(&self, writer: usize, key: usize) -> &AtomicU64 {
        self.entry(writer, key, 2)
    }

    /// The oldest version that a get that begins now may give.
    pub fn oldest(&self, writer: usize, key: usize) -> Version {
        let acknowledged = self.acknowledged(writer, key).load(SeqCst);
        Version(acknowledged.max(self.seen(writer, key).load(SeqCst)))
    }

    fn entry(&self, writer: usize, key: usize, part: usize) -> &AtomicU64 {
        self.0.word(ENTRIES + (writer * KEYS + key) * 3 + part)
    }
}
