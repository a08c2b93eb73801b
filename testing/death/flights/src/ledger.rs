//! What all processes say, in a region of its own: each number is changed by one operation of the cache, so no death leaves half of one.

use keyway_cache::{Arithmetic, Cache, Counted, Options, Place, Session};
use nix::time::{ClockId, clock_gettime};
use std::io::Write;
use std::path::{Path, PathBuf};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    Hits,
    Waited,
    Computed,
    Stored,
    Void,
    Deleted,
    AfterDeath,
    AfterStop,
    AfterDelete,
    Older,
    WithoutCause,
    Needless,
}

impl Count {
    pub const ALL: [Self; 12] = [
        Self::Hits,
        Self::Waited,
        Self::Computed,
        Self::Stored,
        Self::Void,
        Self::Deleted,
        Self::AfterDeath,
        Self::AfterStop,
        Self::AfterDelete,
        Self::Older,
        Self::WithoutCause,
        Self::Needless,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Hits => "values found at once",
            Self::Waited => "values that were waited for",
            Self::Computed => "computations",
            Self::Stored => "computed values that were stored",
            Self::Void => "computed values that were dropped, because the key had changed",
            Self::Deleted => "rows changed and keys deleted",
            Self::AfterDeath => "computations beside one of a process that was killed",
            Self::AfterStop => "computations beside one of a process that was stopped, or had waited too long",
            Self::AfterDelete => "computations beside one that a delete had made void",
            Self::Older => "values older than a delete that had returned",
            Self::WithoutCause => "computations beside another one, without a cause",
            Self::Needless => "computations while there was a fresh value",
        }
    }
}

/// What a process is doing, as others see it.
#[derive(Clone, Copy, Debug)]
pub struct Doing {
    pub key: u64,
    /// how far the changes of the key's row were when it began ([`Ledger::changes`])
    pub changes: u64,
    /// when it began, microseconds
    pub at_us: u64,
}

/// See the top of the file.
pub struct Ledger {
    session: Session,
    folder: PathBuf,
}

/// CLOCK_MONOTONIC, microseconds: the same for all processes.
pub fn now_us() -> u64 {
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("a clock");
    u64::try_from(time.tv_sec()).unwrap_or(0) * 1_000_000 + u64::try_from(time.tv_nsec()).unwrap_or(0) / 1000
}

impl Ledger {
    pub fn open(folder: &Path) -> Self {
        let place = Place::Path(folder.join("ledger"));
        let cache = Cache::open(&place, &Options::new().memory(64 << 20)).expect("a region");
        Self {
            session: cache.session().expect("a session"),
            folder: folder.to_owned(),
        }
    }

    pub fn add(&mut self, name: &str, delta: u64) -> u64 {
        let how = Arithmetic {
            delta,
            vivify: Some((delta, 0)),
            ..Arithmetic::default()
        };
        match self.session.arithmetic(name.as_bytes(), &how) {
            Ok(Counted::Value { value, .. }) => value,
            other => panic!("{name}: {other:?}"),
        }
    }

    pub fn number(&mut self, name: &str) -> u64 {
        self.text(name).and_then(|text| text.trim().parse().ok()).unwrap_or(0)
    }

    fn text(&mut self, name: &str) -> Option<String> {
        let mut value = Vec::new();
        self.session.get_append(name.as_bytes(), &mut value).expect("a get")?;
        String::from_utf8(value).ok()
    }

    fn set(&mut self, name: &str, value: &str) {
        self.session.set(name.as_bytes(), value.as_bytes(), 0).expect("a set");
    }

    pub fn tally(&mut self, count: Count) {
        self.add(&format!("count {count:?}"), 1);
    }

    pub fn count(&mut self, count: Count) -> u64 {
        self.number(&format!("count {count:?}"))
    }

    /// This process computes, from now on.
    pub fn computes(&mut self, worker: usize, doing: Doing) {
        let text = format!("{} {} {}", doing.key, doing.changes, doing.at_us);
        self.set(&format!("doing {worker}"), &text);
    }

    pub fn is_done(&mut self, worker: usize) {
        self.set(&format!("doing {worker}"), "");
    }

    pub fn doing(&mut self, worker: usize) -> Option<Doing> {
        let text = self.text(&format!("doing {worker}"))?;
        let mut words = text.split(' ').map(|word| word.parse().ok());
        let mut next = || words.next().flatten();
        Some(Doing {
            key: next()?,
            changes: next()?,
            at_us: next()?,
        })
    }

    /// A new process with this number: what the last one did has ended with it.
    pub fn begins(&mut self, worker: usize) {
        self.is_done(worker);
        self.set(&format!("killed {worker}"), "");
        self.set(&format!("stopped {worker}"), "");
    }

    pub fn will_be_killed(&mut self, worker: usize) {
        self.set(&format!("killed {worker}"), &now_us().to_string());
    }

    pub fn will_be_stopped(&mut self, worker: usize) {
        self.set(&format!("stopped {worker}"), &now_us().to_string());
    }

    /// When it was killed, microseconds.
    pub fn killed_at(&mut self, worker: usize) -> Option<u64> {
        Some(self.number(&format!("killed {worker}"))).filter(|at| *at > 0)
    }

    /// When it was stopped last, microseconds.
    pub fn stopped_at(&mut self, worker: usize) -> u64 {
        self.number(&format!("stopped {worker}"))
    }

    /// How far the changes of a key's row are: one more when the row has changed, and one more when its key is deleted.
    /// `false`: a change is between these two.
    pub fn changes(&mut self, key: u64) -> (u64, bool) {
        let deleted = self.number(&format!("deleted {key}"));
        let changed = self.number(&format!("row {key}"));
        (changed + deleted, changed == deleted)
    }

    /// A value was stored that is fresh until then, microseconds, of a row that had been changed so often.
    pub fn has_stored(&mut self, key: u64, until_us: u64, changes: u64) {
        self.set(&format!("stored {key}"), &format!("{until_us} {changes}"));
    }

    /// Until when the last value is fresh, and how often the row had been changed.
    pub fn stored(&mut self, key: u64) -> Option<(u64, u64)> {
        let text = self.text(&format!("stored {key}"))?;
        let (until, changes) = text.split_once(' ')?;
        Some((until.parse().ok()?, changes.parse().ok()?))
    }

    /// Notes how long something took.
    pub fn took(&self, what: &str, us: u64) {
        let mut file = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.folder.join(what))
            .expect("a file");
        // One write, at the end: those of other processes come before or after it.
        file.write_all(format!("{us}\n").as_bytes()).expect("space");
    }

    pub fn times(&self, what: &str) -> Vec<u64> {
        let text = std::fs::read_to_string(self.folder.join(what)).unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }
}
