//! Writers that store far more than a region holds, in sizes whose mix shifts, and know what they wrote.
//!
//! The enemy is the cache that refuses a `set` while plenty could be evicted, as memcached does when its slab classes hold the
//! memory that another size needs. A [`Writer`] fails on any reply but success, and on any value that is read back and is not
//! exactly the last one it wrote under that key.

use std::io;
use std::sync::Arc;

use harness::{Random, Wire, printable};

/// Keys of one writer.
pub const KEYS: usize = 40_000;
/// The largest value, bytes.
pub const VALUE_LEN_MAX: usize = 512 << 10;
/// What one item counts besides its value, so that tiny values make progress too.
const ITEM_OVERHEAD: usize = 60;
/// A pipeline ends when it is this long, bytes.
const PIPELINE_LEN: usize = 1 << 20;

/// A range of value sizes, both ends included.
#[derive(Clone, Copy, Debug)]
pub struct Sizes(pub usize, pub usize);

/// The mix shifts from phase to phase, as far as it can: whatever memory the last phase bound must be given up for this one.
pub const PHASES: [Sizes; 10] = [
    Sizes(1, 64),
    Sizes(256 << 10, VALUE_LEN_MAX),
    Sizes(64, 1 << 10),
    Sizes(1, VALUE_LEN_MAX),
    Sizes(4 << 10, 32 << 10),
    Sizes(1, 16),
    Sizes(100 << 10, 200 << 10),
    Sizes(VALUE_LEN_MAX, VALUE_LEN_MAX),
    Sizes(200, 300),
    Sizes(1, VALUE_LEN_MAX),
];

/// How a writer stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// `set`, each answered with `STORED`
    Answered,
    /// `ms … q`, then `mn`: only failures are answered
    Quiet,
    /// `set … noreply`, then `mn`: nothing is answered, failures show when values are read back
    Silent,
}

/// One connection's keys and what they hold.
#[derive(Debug)]
pub struct Writer {
    number: usize,
    style: Style,
    random: Random,
    /// how often each key was written
    versions: Vec<u32>,
    /// random bytes that values are cut from
    block: Arc<Vec<u8>>,
    /// values read back and found right
    pub present: u64,
    /// keys read back and found absent
    pub absent: u64,
    /// sets sent
    pub sets: u64,
}

/// Random bytes for all writers to cut their values from.
pub fn block(random: &mut Random) -> Arc<Vec<u8>> {
    Arc::new(random.bytes(2 * VALUE_LEN_MAX))
}

impl Writer {
    /// A writer that has not written yet.
    pub fn new(number: usize, style: Style, random: Random, block: Arc<Vec<u8>>) -> Self {
        Self {
            number,
            style,
            random,
            versions: vec![0; KEYS],
            block,
            present: 0,
            absent: 0,
            sets: 0,
        }
    }

    /// Writes `budget` bytes in values of these sizes, and reads some back after each pipeline.
    pub fn write(&mut self, wire: &mut Wire, sizes: Sizes, budget: usize) -> Result<(), String> {
        let mut written = 0;
        while written < budget {
            written += self.pipeline(wire, sizes)?;
            for _ in 0..4 {
                let key = self.random.index(KEYS);
                self.read_back(wire, key)?;
            }
        }
        Ok(())
    }

    /// Reads back every key that was ever written.
    pub fn read_back_all(&mut self, wire: &mut Wire) -> Result<(), String> {
        (0..KEYS)
            .filter(|&key| self.versions[key] > 0)
            .collect::<Vec<_>>()
            .into_iter()
            .try_for_each(|key| self.read_back(wire, key))
    }

    fn pipeline(&mut self, wire: &mut Wire, sizes: Sizes) -> Result<usize, String> {
        let (mut request, mut keys, mut counted) = (Vec::new(), Vec::new(), 0);
        while request.len() < PIPELINE_LEN && keys.len() < 200 {
            let key = self.random.index(KEYS);
            let len = self.size(sizes);
            self.versions[key] += 1;
            let name = self.name(key);
            let head = match self.style {
                Style::Answered => format!("set {name} {} 0 {len}\r\n", self.versions[key]),
                Style::Quiet => format!("ms {name} {len} q F{}\r\n", self.versions[key]),
                Style::Silent => format!("set {name} {} 0 {len} noreply\r\n", self.versions[key]),
            };
            request.extend_from_slice(head.as_bytes());
            request.extend_from_slice(self.value(key, len));
            request.extend_from_slice(b"\r\n");
            counted += len + ITEM_OVERHEAD;
            keys.push(key);
        }
        if self.style != Style::Answered {
            request.extend_from_slice(b"mn\r\n");
        }
        self.sets += keys.len() as u64;
        wire.send(&request).map_err(|e| format!("sending sets: {e}"))?;
        self.replies(wire, keys.len())?;
        Ok(counted)
    }

    /// Reads the replies to a pipeline; anything but success is an error.
    pub fn replies(&self, wire: &mut Wire, sets: usize) -> Result<(), String> {
        let (due, count) = if self.style == Style::Answered {
            ("STORED", sets)
        } else {
            ("MN", 1)
        };
        for _ in 0..count {
            let line = wire.line().map_err(|e| format!("a reply to a set: {e}"))?;
            if line != due.as_bytes() {
                return Err(format!(
                    "a set of writer {} was answered with {}",
                    self.number,
                    printable(&line)
                ));
            }
        }
        Ok(())
    }

    /// Reads one key: it is absent, or holds exactly what was written last.
    pub fn read_back(&mut self, wire: &mut Wire, key: usize) -> Result<(), String> {
        let name = self.name(key);
        let found = fetch(wire, &name).map_err(|e| format!("get {name}: {e}"))?;
        let Some((version, value)) = found else {
            self.absent += 1;
            return Ok(());
        };
        if version != self.versions[key] {
            return Err(format!(
                "{name} holds version {version}, the last one written is {}",
                self.versions[key]
            ));
        }
        let due = self.value(key, value.len());
        if value != due {
            let at = value.iter().zip(due).position(|(a, b)| a != b).unwrap_or_default();
            return Err(format!(
                "{name}: version {version} of {} bytes is wrong from byte {at} on",
                value.len()
            ));
        }
        self.present += 1;
        Ok(())
    }

    fn name(&self, key: usize) -> String {
        format!("writer{}:{key}", self.number)
    }

    /// Log-uniform between the bounds, so that each magnitude has its share.
    fn size(&mut self, Sizes(low, high): Sizes) -> usize {
        let doublings = u64::from((high / low).max(1).ilog2()) + 1;
        let magnitude = self.random.below(doublings);
        let floor = low << magnitude;
        (floor + self.random.index(floor)).clamp(low, high)
    }

    /// The value of a key in its present version: where it is cut from the block tells key and version apart.
    fn value(&self, key: usize, len: usize) -> &[u8] {
        let mut mix = Random::new((key as u64) << 32 | u64::from(self.versions[key]) ^ (self.number as u64) << 56);
        let start = mix.index(self.block.len() - VALUE_LEN_MAX);
        &self.block[start..start + len]
    }
}

/// Client flags and value of a key.
fn fetch(wire: &mut Wire, key: &str) -> io::Result<Option<(u32, Vec<u8>)>> {
    let found = wire.get(false, &[key])?.pop();
    Ok(found.map(|item| (item.flags, item.value)))
}
