//! The process that scribbles: it writes to the region's file, which is what the others have mapped, until its input ends.

use harness::Random;
use keyway_region::layout::plan::{Layout, Shape};
use keyway_region::layout::superblock::Superblock;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

/// Offset of the shape's words in the superblock.
const SHAPE_AT: u64 = std::mem::offset_of!(Superblock, shape) as u64;
/// Offset of the words that all share in the superblock; what stands before is fixed and checked when a region is opened.
const SHARED_AT: usize = 512;
/// State words end with these: a log, open or being reclaimed; claimed; part of a large value; buckets; hints.
const OF_ITEMS: [u64; 4] = [1, 2, 3, 6];
const OF_INDEX: [u64; 2] = [4, 5];

/// What is scribbled over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// logs and large values
    Items,
    /// buckets and hints
    Index,
    /// generations and flush epochs
    SegmentWords,
    /// states, leases, cursors, sequence numbers
    SegmentHeaders,
    /// what leads to buckets and hints
    Directories,
    /// process slots and thread slots
    Sessions,
    /// the words that all share
    Superblock,
    /// mostly items
    Everything,
}

impl Part {
    /// All of them, and what they are called.
    pub const ALL: [(Self, &str); 8] = [
        (Self::Items, "items"),
        (Self::Index, "index"),
        (Self::SegmentWords, "segment words"),
        (Self::SegmentHeaders, "segment headers"),
        (Self::Directories, "directories"),
        (Self::Sessions, "sessions"),
        (Self::Superblock, "superblock"),
        (Self::Everything, "everything"),
    ];

    /// What it is called.
    pub fn name(self) -> &'static str {
        Self::ALL.iter().find(|(part, _)| *part == self).map_or("", |(_, name)| *name)
    }

    /// Bytes wrong at a time, and the pause behind that: small parts would soon have no right word.
    fn pace(self) -> (usize, Duration) {
        match self {
            Self::Items | Self::Everything => (50, Duration::from_micros(500)),
            Self::Index => (4, Duration::from_millis(1)),
            _ => (1, Duration::from_millis(2)),
        }
    }
}

/// A region's file, and where its parts are.
struct Target {
    file: File,
    layout: Layout,
    segments: usize,
}

impl Target {
    fn open(path: &Path) -> std::io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        let mut words = [0; Shape::WORDS];
        for (i, word) in words.iter_mut().enumerate() {
            *word = read_word(&file, SHAPE_AT + 8 * i as u64)?;
        }
        let shape = Shape::from_words(words).ok_or(std::io::ErrorKind::InvalidData)?;
        let layout = Layout::new(shape);
        let len = usize::try_from(file.metadata()?.len()).unwrap_or(0);
        Ok(Self {
            file,
            layout,
            segments: (len - layout.segments) / shape.segment_size,
        })
    }

    /// Some byte of a part.
    fn place(&self, part: Part, random: &mut Random) -> std::io::Result<usize> {
        let layout = &self.layout;
        let within = |range: Range<usize>, random: &mut Random| range.start + random.index(range.end - range.start);
        Ok(match part {
            Part::Items => self.in_segment(&OF_ITEMS, random)?,
            Part::Index => self.in_segment(&OF_INDEX, random)?,
            Part::SegmentWords => within(layout.words..layout.words + self.segments * 16, random),
            Part::SegmentHeaders => within(layout.headers..layout.headers + self.segments * 64, random),
            Part::Directories => {
                let start = [layout.bucket_directory, layout.hint_directory][random.index(2)];
                within(start..start + 64, random)
            }
            // What a session's verbs read of others': their leases, hazard pointers and pending words come first in a slot.
            Part::Sessions => {
                let first = [layout.process(0), layout.threads][random.index(2)];
                within(first..first + 8192, random)
            }
            Part::Superblock => within(SHARED_AT..4096, random),
            Part::Everything => {
                let (part, _) = Part::ALL[random.index(Part::ALL.len() - 1)];
                // Mostly items, so that not all is lost at once.
                let part = if random.below(100) == 0 { part } else { Part::Items };
                return self.place(part, random);
            }
        })
    }

    /// Some byte of a segment in one of these states.
    fn in_segment(&self, states: &[u64], random: &mut Random) -> std::io::Result<usize> {
        let first = random.index(self.segments);
        for i in 0..self.segments {
            let segment = (first + i) % self.segments;
            let state = read_word(&self.file, (self.layout.headers + segment * 64) as u64)?;
            if states.contains(&(state & 0xF)) {
                let size = self.layout.shape.segment_size;
                return Ok(self.layout.segments + segment * size + random.index(size));
            }
        }
        Ok(self.layout.segments)
    }
}

fn read_word(file: &File, at: u64) -> std::io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, at)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Scribbles until standard input ends.
///
/// # Errors
///
/// The file cannot be written.
pub fn main(path: &Path, part: Part, seed: u64) -> std::io::Result<()> {
    let over = AtomicBool::new(false);
    let target = Target::open(path)?;
    let mut random = Random::new(seed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _ = std::io::stdin().read(&mut [0]);
            over.store(true, Relaxed);
        });
        let (burst, pause) = part.pace();
        while !over.load(Relaxed) {
            for _ in 0..burst {
                let at = target.place(part, &mut random)?;
                let bytes = random.next().to_le_bytes();
                // One byte, an aligned word, or what a stray copy leaves.
                let (at, len) = match random.below(3) {
                    0 => (at, 1),
                    1 => (at & !7, 8),
                    _ => (at, 1 + random.index(8)),
                };
                target.file.write_all_at(&bytes[..len], at as u64)?;
            }
            std::thread::sleep(pause);
        }
        Ok(())
    })
}
