//! Room `directory`: the table word, and the directories that lead from it to buckets, hints and ghosts.
//!
//! Never: returns a place outside the region. A word that another process has damaged is cut to a possible value, or leads nowhere.

mod known;

use crate::atomics::{Acquire, AtomicU8, AtomicU32, Relaxed, Release};
use crate::directory::known::Known;
use crate::durable::line;
use crate::layout::bucket::{self, Table};
use crate::layout::index;
use crate::layout::plan::Shape;
use crate::layout::segment::{Kind, State};
use crate::layout::slot::ROUNDS_MAX;
use crate::layout::superblock::{DIRTY, Superblock};
use crate::mapped::Mapped;
use std::cell::Cell;
use std::sync::Arc;

/// Where the index's buckets and their hints are: the table word, the directories, and what this process has found there.
pub struct Directory {
    mapped: Arc<Mapped>,
    /// the bits of a bucket's number that give its place in its segment; below, the same for its hints
    bucket_mask: u64,
    hint_mask: u64,
    bucket_shift: u32,
    hint_shift: u32,
    buckets_initial: u64,
    buckets_max: u64,
    known_buckets: Known,
    known_hints: Known,
}

impl Directory {
    pub(super) fn new(mapped: &Arc<Mapped>) -> Self {
        let shape = mapped.layout().shape;
        let bucket_shift = shape.buckets_per_segment().ilog2();
        // One hint segment has a byte for each slot of eight times as many buckets as fit into a segment.
        let hint_shift = bucket_shift + bucket::SLOTS.ilog2();
        let buckets_initial = shape.buckets_initial as u64;
        let buckets_max = buckets_initial << ROUNDS_MAX;
        Self {
            mapped: Arc::clone(mapped),
            bucket_mask: (1 << bucket_shift) - 1,
            hint_mask: (1 << hint_shift) - 1,
            bucket_shift,
            hint_shift,
            buckets_initial,
            buckets_max,
            known_buckets: Known::new(buckets_max >> bucket_shift),
            known_hints: Known::new(buckets_max >> hint_shift),
        }
    }

    /// Entry of the bucket directory.
    #[inline]
    pub(crate) fn bucket_directory(&self, i: usize) -> &AtomicU32 {
        self.mapped.memory().get(self.mapped.layout().bucket_directory + i * 4)
    }

    /// Entry of the hint directory.
    #[inline]
    pub(crate) fn hint_directory(&self, i: usize) -> &AtomicU32 {
        self.mapped.memory().get(self.mapped.layout().hint_directory + i * 4)
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
                Kind::Index => self.mapped.layout().bucket_directory,
                Kind::Ghosts => self.mapped.layout().ghost_directory,
                _ => self.mapped.layout().hint_directory,
            }
    }

    /// Entry of the directory of index, hint or ghost segments; `i` below [`Self::directory_len`].
    pub(crate) fn directory_entry(&self, kind: Kind, i: usize) -> &AtomicU32 {
        self.mapped.memory().get(self.directory_entry_at(kind, i))
    }

    /// Entries of that directory in use at this number of segments.
    pub(crate) fn directory_len(&self, kind: Kind) -> usize {
        match kind {
            Kind::Ghosts => Shape::ghosts_max(self.mapped.segments()),
            _ => self.mapped.segments(),
        }
    }

    /// A segment of the ghost table. Its kind is checked here, because ghosts are stored without a further check.
    pub(crate) fn ghost_segment(&self, entry: usize) -> Option<usize> {
        let segment = self.segment_named(self.directory_entry_at(Kind::Ghosts, entry))?;
        (State(self.mapped.header(segment).state.load(Relaxed)).kind() == Some(Kind::Ghosts)).then_some(segment)
    }

    /// The table word, once it is persistent. A corrupted one is cut to a possible value.
    #[inline(always)]
    pub(crate) fn table(&self) -> Table {
        // PAIRS: table: the exchange in `advance_table`: a thread that counts the new bucket sees it filled.
        let word = self.mapped.superblock().table.load(Acquire);
        let sane = (self.buckets_initial..=self.buckets_max).contains(&word);
        Table::new(if sane { word } else { self.odd_table(word) })
    }

    /// The table word, once it is persistent, by way of `kept`, in which a caller keeps it from one operation to the next.
    #[inline(always)]
    pub(crate) fn table_kept(&self, superblock: &Superblock, kept: &Cell<Table>) -> Table {
        // PAIRS: table: as in `table`: the word is the same, and so is all that follows from it.
        if superblock.table.load(Acquire) != kept.get().count {
            self.keep_table(kept);
        }
        kept.get()
    }

    /// Whether the table word is still that of this table, and persistent.
    #[inline(always)]
    pub(crate) fn is_table(superblock: &Superblock, table: Table) -> bool {
        // PAIRS: table: as in `table`.
        superblock.table.load(Acquire) == table.count
    }

    #[cold]
    #[inline(never)]
    fn keep_table(&self, kept: &Cell<Table>) {
        kept.set(self.table());
    }

    /// Advances the table word by one. `false`: it was not `from`.
    pub(crate) fn advance_table(&self, from: u64) -> bool {
        let to = (from + 1) | if self.mapped.is_durable() { DIRTY } else { 0 };
        // PAIRS: table: the load in `table`.
        let done = self
            .mapped
            .superblock()
            .table
            .compare_exchange(from, to, Release, Relaxed)
            .is_ok();
        // No matter which thread advanced it, the word is persistent after this.
        self.table();
        done
    }

    /// The usable value of a table word that is dirty or corrupted.
    #[cold]
    fn odd_table(&self, word: u64) -> u64 {
        let count = (word & !DIRTY).clamp(self.buckets_initial(), self.buckets_max());
        if word & DIRTY != 0 && !self.mapped.is_read_only() {
            self.mapped.write_back(line::TABLE, 8);
            self.mapped.barrier();
            // PAIRS: settled: the load in `Directory::table`.
            let _ = self.mapped.superblock().table.compare_exchange(word, count, Release, Relaxed);
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

    /// Offset of a bucket, if the directory has its segment. 64 bytes are mapped there.
    #[inline(always)]
    pub(crate) fn bucket(&self, number: u64) -> Option<usize> {
        self.buckets_at([number]).map(|[at]| at)
    }

    /// Offsets of several buckets. `None`: the directory lacks the segment of one of them. 64 bytes are mapped at each offset.
    #[inline(always)]
    pub(crate) fn buckets_at<const N: usize>(&self, numbers: [u64; N]) -> Option<[usize; N]> {
        let (shift, mask) = (self.bucket_shift, self.bucket_mask);
        let mut at = numbers.map(|number| index(number & mask) * bucket::SIZE);
        for (at, number) in at.iter_mut().zip(numbers) {
            let entry = index(number >> shift);
            *at += match self.known_buckets.get(entry) {
                Some(segment_at) => segment_at,
                None => self.find_segment(Kind::Index, entry)?,
            };
        }
        Some(at)
    }

    /// The hint of a slot, if the directory has its segment.
    #[inline(always)]
    #[allow(unsafe_code, reason = "a byte of a segment that there is")]
    pub(crate) fn hint(&self, bucket: u64, index: usize) -> Option<&AtomicU8> {
        debug_assert!(index < bucket::SLOTS);
        let at = self.hint_at(bucket)? + index;
        // SAFETY: a bucket has a hint for each slot, and its hints are in the segment.
        Some(unsafe { self.mapped.memory().view().at(at) })
    }

    /// Offset of the hints of a bucket, if the directory has their segment.
    #[inline(always)]
    pub(crate) fn hint_at(&self, bucket: u64) -> Option<usize> {
        let entry = index(bucket >> self.hint_shift);
        let segment_at = match self.known_hints.get(entry) {
            Some(at) => at,
            None => self.find_segment(Kind::Hints, entry)?,
        };
        Some(segment_at + index(bucket & self.hint_mask) * bucket::SLOTS)
    }

    /// The segment that an entry of a directory names, by the entry's offset.
    pub(super) fn segment_named(&self, entry_at: usize) -> Option<usize> {
        // An empty entry becomes the highest number, which no segment has.
        // PAIRS: directory: the exchange in `Claims::prepare_segment`: a thread that reaches the segment sees its zeros.
        let segment = (self.mapped.memory().get::<AtomicU32>(entry_at).load(Acquire) as usize).wrapping_sub(1);
        self.mapped.has(segment).then_some(segment)
    }

    /// Buckets of the index.
    pub fn index_buckets(&self) -> u64 {
        self.table().count
    }

    /// Bytes of the index, hints included.
    pub fn index_size(&self) -> u64 {
        self.table().count * (bucket::SIZE + bucket::SLOTS) as u64
    }

    /// The offset of the segment that an entry of the directory of the index or of its hints names. It is kept if the segment says
    /// the same of itself.
    #[cold]
    #[inline(never)]
    fn find_segment(&self, kind: Kind, entry: usize) -> Option<usize> {
        if entry >= self.mapped.layout().shape.segments_max {
            return None;
        }
        let segment = self.segment_named(self.directory_entry_at(kind, entry))?;
        let at = self.mapped.segment(segment);
        if State(self.mapped.header(segment).state.load(Relaxed)).kind() == Some(kind) {
            self.known(kind).note(entry, at);
        }
        Some(at)
    }

    #[inline(always)]
    fn known(&self, kind: Kind) -> &Known {
        if kind == Kind::Index {
            &self.known_buckets
        } else {
            &self.known_hints
        }
    }

    /// Forgets all of it: the directories were repaired, or a test wants them to be read again.
    #[doc(hidden)]
    pub fn forget_segments(&self) {
        self.known_buckets.forget();
        self.known_hints.forget();
    }
}
