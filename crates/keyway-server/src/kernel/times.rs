//! How long the program's answers took, from its map to the region's latencies.
//!
//! The program counts since it was loaded, the region since it was made, and a pinned program outlives servers. So the keeper adds
//! differences: of what the map has now, and what it had when the region was last given something. No time is added twice: a server begins with what the
//! map has when it turns its door on, before the program may answer for it, and ends when no run of the program is left. What a killed server
//! had not added yet is lost.

use keyway_cache::server::ServerSession as _;
use keyway_cache::server::latency::BUCKETS;
use keyway_cache::{Door, Latency, Session, Verb};
use keyway_xdp::{Maps, Times};

const _: () = assert!(Times::BUCKETS == BUCKETS);

/// What the region has.
#[derive(Default)]
pub(super) struct Published {
    /// of UDP, and of TCP. `None`: unknown, because the map could not be read
    before: Option<[Latency; 2]>,
}

impl Published {
    /// Nothing that the map has now is this server's.
    pub(super) fn begin(&mut self, maps: &Maps) {
        self.before = read(maps);
    }

    /// Adds to the region what has come since.
    pub(super) fn publish(&mut self, maps: &Maps, session: &Session) {
        let Some(now) = read(maps) else { return };
        let Some(before) = &mut self.before else {
            self.before = Some(now);
            return;
        };
        for ((door, now), before) in [Door::KernelUdp, Door::KernelTcp].into_iter().zip(now).zip(before) {
            if now != *before && session.add_latency(door, Verb::Get, &now.since(before)) {
                *before = now;
            }
        }
    }
}

fn read(maps: &Maps) -> Option<[Latency; 2]> {
    match maps.times() {
        Ok(times) => Some(times.map(|Times { counts, sum_ns }| Latency { counts, sum_ns })),
        Err(error) => {
            log::debug!("{error}");
            None
        }
    }
}
