//! The table word, and the directories that lead from it to buckets, hints and ghosts.
//!
//! Never: returns a place outside the region. A word that another process has damaged is cut to a possible value, or leads nowhere.

use crate::atomics::{Acquire, AtomicU8, AtomicU32, Relaxed, Release};
use crate::durable::line;
use crate::layout::bucket::{self, Table};
use crate::layout::plan::Shape;
use crate::layout::segment::{Kind, State};
use crate::layout::superblock::DIRTY;
use crate::layout::{self, index};
use crate::memory::View;
use crate::region::Region;

impl Region {
    /// Entry of the bucket directory.
    #[inline]
    pub(crate) fn bucket_directory(&self, i: usize) -> &AtomicU32 {
        self.memory.get(self.layout.bucket_directory + i * 4)
    }

    /// Entry of the hint directory.
    #[inline]
    pub(crate) fn hint_directory(&self, i: usize) -> &AtomicU32 {
        self.memory.get(self.layout.hint_directory + i * 4)
    }

    /// The entry of the bucket directory that leads to this bucket.
    pub(crate) fn bucket_entry(&self, bucket: u64) -> usize {
        index(bucket >> self.bucket_shift)
    }

    /// The entry of the hint directory that leads to this bucket's hints.
    pub(crate) fn hint_entry(&self, bucket: u64) -> usize {
        index(bucket >> self.hint_shift)
    }

    /// Offset of an entry of one of the directories.
    pub(crate) fn directory_entry_at(&self, kind: Kind, i: usize) -> usize {
        i * 4
            + match kind {
                Kind::Index => self.layout.bucket_directory,
                Kind::Ghosts => self.layout.ghost_directory,
                _ => self.layout.hint_directory,
            }
    }

    /// Entry of the directory of index, hint or ghost segments; `i` below [`Self::directory_len`].
    pub(crate) fn directory_entry(&self, kind: Kind, i: usize) -> &AtomicU32 {
        self.memory.get(self.directory_entry_at(kind, i))
    }

    /// Entries of that directory in use at this number of segments.
    pub(crate) fn directory_len(&self, kind: Kind) -> usize {
        match kind {
            Kind::Ghosts => Shape::ghosts_max(self.segments()),
            _ => self.segments(),
        }
    }

    /// A segment of the ghost table. Its kind is checked here, because ghosts are stored without a further check.
    pub(crate) fn ghost_segment(&self, entry: usize) -> Option<usize> {
        let [segment] = self.directory(self.memory.view(), self.layout.ghost_directory, [entry as u64])?;
        (State(self.header(segment).state.load(Relaxed)).kind() == Some(Kind::Ghosts)).then_some(segment)
    }

    /// The table word, once it is persistent. A corrupted one is cut to a possible value.
    #[inline(always)]
    pub(crate) fn table(&self) -> Table {
        // PAIRS: table: the exchange in `advance_table`: a thread that counts the new bucket sees it filled.
        let word = self.superblock().table.load(Acquire);
        let sane = (self.buckets_initial..=self.buckets_max).contains(&word);
        Table::new(if sane { word } else { self.odd_table(word) })
    }

    /// Advances the table word by one. `false`: it was not `from`.
    pub(crate) fn advance_table(&self, from: u64) -> bool {
        let to = (from + 1) | if self.is_strict() { DIRTY } else { 0 };
        // PAIRS: table: the load in `table`.
        let done = self.superblock().table.compare_exchange(from, to, Release, Relaxed).is_ok();
        // No matter which thread advanced it, the word is persistent after this.
        self.table();
        done
    }

    /// The usable value of a table word that is dirty or corrupted.
    #[cold]
    fn odd_table(&self, word: u64) -> u64 {
        let count = (word & !DIRTY).clamp(self.buckets_initial(), self.buckets_max());
        if word & DIRTY != 0 && !self.is_read_only {
            self.write_back(line::TABLE, 8);
            self.barrier();
            // PAIRS: settled: the load in `Region::table`.
            let _ = self.superblock().table.compare_exchange(word, count, Release, Relaxed);
        }
        count
    }

    /// Buckets of the first index.
    #[inline]
    pub(crate) fn buckets_initial(&self) -> u64 {
        self.buckets_initial
    }

    /// The number of buckets at which the splits have used up their marks.
    pub(crate) fn buckets_max(&self) -> u64 {
        self.buckets_max
    }

    /// Offset of a bucket, if the directory has its segment.
    #[inline]
    pub(crate) fn bucket(&self, number: u64) -> Option<usize> {
        self.buckets_in(self.memory.view(), [number]).map(|[at]| at)
    }

    /// The same of several buckets, for a caller that has the memory's view. 64 bytes are mapped at each offset.
    #[inline(always)]
    pub(crate) fn buckets_in<const N: usize>(&self, view: View<'_>, numbers: [u64; N]) -> Option<[usize; N]> {
        let entries = numbers.map(|number| number >> self.bucket_shift);
        let within = numbers.map(|number| index(number & self.bucket_mask) * bucket::SIZE);
        let segments = self.directory(view, self.layout.bucket_directory, entries)?;
        let mut at = within;
        for (at, segment) in at.iter_mut().zip(segments) {
            *at += self.segment(segment);
        }
        Some(at)
    }

    /// The hint of a slot, if the directory has its segment.
    #[inline(always)]
    pub(crate) fn hint(&self, bucket: u64, index: usize) -> Option<&AtomicU8> {
        Some(self.memory.view().get(self.hint_at(bucket)? + index))
    }

    /// Offset of the hints of a bucket, if the directory has their segment.
    #[inline(always)]
    pub(crate) fn hint_at(&self, bucket: u64) -> Option<usize> {
        let [segment] = self.directory(self.memory.view(), self.layout.hint_directory, [bucket >> self.hint_shift])?;
        Some(self.segment(segment) + layout::index(bucket & self.hint_mask) * bucket::SLOTS)
    }

    /// The segments that a directory names. Table words are bounded, so the entry is in the directory's array.
    #[inline(always)]
    fn directory<const N: usize>(&self, view: View<'_>, directory: usize, entries: [u64; N]) -> Option<[usize; N]> {
        let words = entries.map(|entry| view.get::<AtomicU32>(directory + index(entry) * 4));
        // An empty entry becomes the highest number, which no segment has.
        // PAIRS: directory: the exchange in `Session::prepare_segment`: a thread that reaches the segment sees its zeros.
        let segments = words.map(|word| (word.load(Acquire) as usize).wrapping_sub(1));
        for segment in segments {
            if !self.has(segment) {
                return None;
            }
        }
        Some(segments)
    }

    /// Buckets of the index.
    pub fn index_buckets(&self) -> u64 {
        self.table().count
    }

    /// Bytes of the index, hints included.
    pub fn index_size(&self) -> u64 {
        self.table().count * (bucket::SIZE + bucket::SLOTS) as u64
    }
}
