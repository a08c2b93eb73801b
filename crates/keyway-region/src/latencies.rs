//! How long operations took: the pages in which sessions count, and their sum.
//!
//! Never: takes a count away. A session that dies in the middle has counted its operation or has not.

use crate::atomics::Relaxed;
use crate::layout::latency::{Door, Latencies, LatencyRow, Verb, pages, row_at, row_of, rows};
use crate::mapped::Mapped;
use std::sync::Arc;

/// The pages in which sessions count how long operations took.
#[derive(Clone)]
pub struct LatencyTable {
    mapped: Arc<Mapped>,
}

impl LatencyTable {
    pub(crate) fn new(mapped: &Arc<Mapped>) -> Self {
        Self {
            mapped: Arc::clone(mapped),
        }
    }

    /// Where a session in this thread slot counts operations of this door and verb. `None`: the door has no such verb.
    pub(crate) fn latency_row(&self, slot: usize, door: Door, verb: Verb) -> Option<&LatencyRow> {
        let page = slot % pages(self.mapped.layout().shape.thread_slots);
        Some(
            self.mapped
                .memory()
                .get(row_at(self.mapped.layout(), page, row_of(door, verb)?)),
        )
    }

    /// How long the operations of all sessions took, since the region was created. Of the doors that are sampled, one in 256.
    pub fn sum(&self) -> Latencies {
        let mut sum = Latencies::default();
        for (door, verb) in rows() {
            let Some(of_both) = sum.of_mut(door, verb) else { continue };
            for page in 0..pages(self.mapped.layout().shape.thread_slots) {
                let Some(row) = self.latency_row(page, door, verb) else {
                    continue;
                };
                for (sum, count) in of_both.counts.iter_mut().zip(&row.counts) {
                    *sum = sum.wrapping_add(count.load(Relaxed));
                }
                of_both.sum_ns = of_both.sum_ns.wrapping_add(row.sum_ns.load(Relaxed));
            }
        }
        sum
    }
}
