//! What an observer sees of a region in use: the threads that are attached, and what its segments are used for.
//!
//! Never: stores anything. What is read may be of different moments.

use crate::atomics::Relaxed;
use crate::layout::segment::{Kind, State};
use crate::layout::session::{Entrance, Lease};
use crate::layout::stats::Counters;
use crate::mapped::Mapped;
use crate::threads::SessionId;

/// A thread slot that has a tenant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadInUse {
    /// the slot and its lease word: together, another tenancy has others
    pub tenancy: (usize, u64),
    /// the process slot of its process
    pub process: usize,
    /// what the slot's tenants have counted, the present one and earlier ones
    pub counters: Counters,
    /// segments that it keeps from being recycled
    pub protects: usize,
    /// it is in a call that may change items
    pub is_writing: bool,
    /// its process is suspected to be dead
    pub is_fenced: bool,
}

/// What segments are used for, in the order of [`Overview::segments_by_use`].
pub const USES: [&str; 9] = [
    "free",
    "claimed",
    "log",
    "large",
    "index",
    "hints",
    "emptied",
    "ghosts",
    "withdrawn",
];

/// What an observer sees of a region in use.
pub struct Overview<'r>(pub(super) &'r Mapped);

impl Overview<'_> {
    /// The thread slots that have a tenant.
    pub fn seated(&self) -> Vec<ThreadInUse> {
        let slots = 0..self.0.layout().shape.thread_slots;
        let of = |slot: usize| {
            let thread = self.0.thread(slot);
            let lease = Lease(thread.lease.load(Relaxed));
            if !lease.is_leased() {
                return None;
            }
            let mut counters = Counters::default();
            thread.add_counters_to(&mut counters);
            Some(ThreadInUse {
                tenancy: (slot, lease.0),
                process: lease.process(),
                counters,
                protects: thread.hazards.iter().filter(|hazard| hazard.load(Relaxed) != 0).count(),
                is_writing: thread.writing.load(Relaxed) != 0,
                is_fenced: lease.is_fenced(),
            })
        };
        slots.filter_map(of).collect()
    }

    /// What the process in this process slot is, and when it came, Unix seconds.
    pub fn entrance(&self, slot: usize) -> (Entrance, u64) {
        let process = self.0.process(slot);
        (
            Entrance::of(process.entrance.load(Relaxed)),
            process.since_unix_s.load(Relaxed),
        )
    }

    /// Segments by their use, in the order of [`USES`].
    pub fn segments_by_use(&self) -> [u64; USES.len()] {
        self.uses_of(0..self.0.segments())
    }

    /// The region as at most `parts_max` equal parts, the last one possibly smaller: for each, the use of most of its segments, as an
    /// index into [`USES`]; and the segments of a part.
    pub fn segment_map(&self, parts_max: usize) -> (Vec<u8>, usize) {
        let all = self.0.segments();
        let each = all.div_ceil(parts_max.max(1)).max(1);
        let most = |start: usize| {
            let uses = self.uses_of(start..all.min(start + each));
            (0u8..)
                .zip(uses)
                .max_by_key(|(_, number)| *number)
                .map_or(0, |(most, _)| most)
        };
        ((0..all).step_by(each).map(most).collect(), each)
    }

    fn uses_of(&self, segments: std::ops::Range<usize>) -> [u64; USES.len()] {
        let mut uses = [0; USES.len()];
        for segment in segments {
            let kind = State(self.0.header(segment).state.load(Relaxed))
                .kind()
                .unwrap_or(Kind::Claimed);
            if let Some(number) = uses.get_mut(kind as usize) {
                *number += 1;
            }
        }
        uses
    }

    /// The counters of one thread slot: what this session and the slot's earlier tenants have counted.
    pub fn counters_of(&self, id: SessionId) -> Counters {
        let mut counters = Counters::default();
        let slot = usize::from(id.0.slot);
        if slot < self.0.layout().shape.thread_slots {
            self.0.thread(slot).add_counters_to(&mut counters);
        }
        counters
    }
}
