//! Who counted what: the commands of this server's own sessions, of the library door, and of the readiness probe.
//!
//! A region's counters are kept by thread slot, and their sum covers every process and door. The slots of this server's sessions are known,
//! so the difference between now and the server's start in these slots is the network door's share; the rest is the library door's. No
//! worker does anything for it.
//!
//! The probe of `/readyz` sets, gets and deletes an item. The statistics leave its commands out ([`Census::counters`]), so that a load balancer
//! that asks every second does not improve the hit ratio.

use keyway_cache::server::ServerCache as _;
use keyway_cache::server::ServerSession as _;
use keyway_cache::server::SessionId;
use keyway_cache::{Cache, Counters, Session};

/// A thread slot, and what had been counted there when the server started.
type Share = (SessionId, Counters);

/// See the top of the file.
#[derive(Default)]
pub(crate) struct Census {
    at_start: Counters,
    workers: Vec<Share>,
    probe: Option<Share>,
    /// the kernel door's keeper, which reads the items that it copies
    keeper: Option<Share>,
}

impl Census {
    /// To be called before the sessions are used.
    pub(crate) fn new(cache: &Cache, workers: &[Session], probe: Option<&Session>, keeper: Option<SessionId>) -> Self {
        let share = |id: SessionId| (id, cache.counters_of(id));
        Self {
            at_start: cache.counters(),
            workers: workers.iter().filter_map(Session::id).map(share).collect(),
            probe: probe.and_then(Session::id).map(share),
            keeper: keeper.map(share),
        }
    }

    /// The region's counters, without the commands of the probe since this server's start.
    pub(crate) fn counters(&self, cache: &Cache) -> Counters {
        // First: the sum then contains at least these.
        let probes = self.probe.map(|share| counted(cache, share)).unwrap_or_default();
        let mut all = cache.counters();
        for (count, own) in [
            (&mut all.cmd_set, probes.cmd_set),
            (&mut all.get_hits, probes.get_hits),
            (&mut all.get_misses, probes.get_misses),
            (&mut all.get_expired, probes.get_expired),
            (&mut all.get_flushed, probes.get_flushed),
            (&mut all.delete_hits, probes.delete_hits),
            (&mut all.delete_misses, probes.delete_misses),
            (&mut all.total_items, probes.total_items),
            (&mut all.store_no_memory, probes.store_no_memory),
        ] {
            *count = count.wrapping_sub(own);
        }
        all
    }

    /// What this server's workers have counted since its start: the network door's commands.
    pub(crate) fn network(&self, cache: &Cache) -> Counters {
        let shares = self.workers.iter().map(|share| counted(cache, *share));
        shares.fold(Counters::default(), |sum, share| combined(&sum, &share, u64::wrapping_add))
    }

    /// What all other sessions have counted since then: the library door's commands, of all processes.
    pub(crate) fn library(&self, cache: &Cache) -> Counters {
        let own = self.workers.iter().chain(&self.keeper).map(|share| counted(cache, *share));
        let own = own.fold(Counters::default(), |sum, share| combined(&sum, &share, u64::wrapping_add));
        // Own counts first: the sum then contains at least these.
        combined(&since(&self.counters(cache), &self.at_start), &own, u64::saturating_sub)
    }
}

fn counted(cache: &Cache, (id, before): Share) -> Counters {
    cache.counters_of(id).since(&before)
}

/// What was counted between two readings. Two readings at nearly the same time may differ by a command of the probe that only one of them
/// leaves out: such a difference below zero is 0.
pub(crate) fn since(now: &Counters, earlier: &Counters) -> Counters {
    let difference = now.since(earlier);
    combined(&difference, &Counters::default(), |count, _| {
        if count > u64::MAX / 2 { 0 } else { count }
    })
}

/// The commands of two sets of counters, combined one by one; what is no command's count is 0.
fn combined(one: &Counters, other: &Counters, by: impl Fn(u64, u64) -> u64) -> Counters {
    let mut result = *one;
    macro_rules! each {
        ($($name:ident)*) => { $(result.$name = by(one.$name, other.$name);)* };
    }
    each!(cmd_set cmd_flush get_hits get_misses get_expired get_flushed delete_hits delete_misses);
    each!(incr_hits incr_misses decr_hits decr_misses cas_hits cas_misses cas_badval touch_hits touch_misses);
    each!(total_items store_too_large store_no_memory);
    result
}

#[cfg(test)]
mod tests {
    use super::*;
    use keyway_cache::{Options, Place};

    #[test]
    fn each_session_has_its_share_and_the_probe_none() {
        let options = Options::new().memory(4 << 20);
        let cache = Cache::open(&Place::Memfd, &options).unwrap();
        let mut earlier = cache.session().unwrap();
        earlier.set(b"k", b"v", 0).unwrap();
        drop(earlier);
        // The worker's session takes the slot in which another one has counted.
        let mut workers = [cache.session().unwrap()];
        let mut probe = cache.session().unwrap();
        let mut keeper = cache.session().unwrap();
        let census = Census::new(&cache, &workers, Some(&probe), keeper.id());
        let mut elsewhere = cache.session().unwrap();
        let base = census.counters(&cache);
        for _ in 0..3 {
            workers[0].get(b"k").unwrap();
        }
        elsewhere.get(b"absent").unwrap();
        keeper.get(b"k").unwrap();
        for _ in 0..5 {
            probe.set(b"p", b"v", 0).unwrap();
            probe.get(b"p").unwrap();
        }
        let all = since(&census.counters(&cache), &base);
        assert_eq!(
            (all.cmd_get(), all.get_hits, all.get_misses, all.cmd_set, all.total_items),
            (5, 4, 1, 0, 0)
        );
        let (network, library) = (census.network(&cache), census.library(&cache));
        assert_eq!((network.get_hits, network.get_misses, network.cmd_set), (3, 0, 0));
        assert_eq!((library.get_hits, library.get_misses, library.cmd_set), (0, 1, 0));
    }

    #[test]
    fn a_difference_below_zero_is_zero() {
        let (now, mut earlier) = (Counters::default(), Counters::default());
        earlier.get_hits = 1;
        assert_eq!(since(&now, &earlier).get_hits, 0);
    }
}
