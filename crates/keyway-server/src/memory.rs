//! `cache_memlimit`: increases or decreases the region's memory limit.
//!
//! An increase is allocated before the answer, in a separate thread: only the client that asked waits. A decrease is answered at once.
//! Another thread then evicts items and gives memory back in small steps ([`keyway_cache::Session::shrink`]), until the region is within its
//! limit or the server stops. The rest is done by each worker's upkeep, and by the next server.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use keyway_cache::{Cache, Shrinking};

use crate::log_limiter::LogLimiter;
use crate::shared::{Shared, lock};
use crate::size_text;

/// Pause between two steps, so that other threads run.
const PAUSE: Duration = Duration::from_millis(1);
/// Pause after a step that had nothing to do.
const REST: Duration = Duration::from_millis(200);
/// After this many such pauses in a row (a minute) the thread ends: other sessions hold the rest, which is left to the workers' upkeep.
const RESTS_MAX: u32 = 300;

static NOT_CHANGED: LogLimiter = LogLimiter::new();

/// Sets the region's memory limit. Returns `false` if that is not possible.
pub(crate) fn set_limit(shared: &Arc<Shared>, cache: &Cache, memory: u64) -> bool {
    // One at a time: a second thread that waited here finds the first one's result.
    let _one = lock(&shared.raising);
    let limit = shared.memory_limit(&cache.info());
    let done = if memory == limit {
        Ok(())
    } else if memory > limit {
        cache.grow(memory).map(|()| raised(shared, memory))
    } else {
        cache.limit(memory).map(|in_force| lowered(shared, cache, memory, in_force))
    };
    if let Err(error) = &done
        && let Some(left_out) = NOT_CHANGED.may_speak()
    {
        log::warn!("cache_memlimit: {error}{left_out}");
    }
    done.is_ok()
}

fn raised(shared: &Shared, memory: u64) {
    shared.memory_set(memory);
    log::info!("memory limit raised to {memory} bytes");
}

fn lowered(shared: &Arc<Shared>, cache: &Cache, memory: u64, in_force: u64) {
    shared.memory_set(memory);
    if in_force > memory {
        log::warn!(
            "memory limit lowered to {}, not to {}: the region needs this much for its index, its sessions and two items of the largest size",
            size_text(in_force),
            size_text(memory)
        );
    } else {
        log::info!("memory limit lowered to {memory} bytes");
    }
    keep_within(shared, cache);
}

/// Starts the thread that brings the region within its limit, if it is needed and does not run yet.
pub(crate) fn keep_within(shared: &Arc<Shared>, cache: &Cache) {
    if !cache.is_shrinking() {
        return;
    }
    let mut thread = lock(&shared.shrinker);
    if thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
        return;
    }
    let (shared, cache) = (Arc::clone(shared), cache.clone());
    let started = std::thread::Builder::new()
        .name("keyway-shrink".to_owned())
        .spawn(move || shrink(&shared, &cache));
    match started {
        Ok(started) => *thread = Some(started),
        Err(error) => log::warn!("memory limit: cannot start a thread ({error}); the workers evict, more slowly"),
    }
}

/// Waits for that thread, which ends soon because the server stops.
pub(crate) fn join(shared: &Shared) {
    let thread: Option<JoinHandle<()>> = lock(&shared.shrinker).take();
    if let Some(thread) = thread {
        // A panic has been reported by the thread's own end.
        let _ = thread.join();
    }
}

fn shrink(shared: &Shared, cache: &Cache) {
    let mut session = match cache.session() {
        Ok(session) => session,
        Err(error) => {
            log::warn!("memory limit: no free session ({error}); the workers evict, more slowly");
            return;
        }
    };
    let mut rests = 0;
    while !shared.is_stopping() && rests < RESTS_MAX {
        match session.shrink() {
            Shrinking::Done => {
                let info = cache.info();
                log::info!(
                    "the region is within its memory limit: {} of {} segments are out of use, and the memory of {} was given back to the system",
                    info.segments_withdrawn,
                    info.segments,
                    info.segments_given_back
                );
                if info.segments_given_back < info.segments_withdrawn {
                    // A worker may have got the file system's error.
                    log::warn!("memory limit: the region's file system cannot take memory back; it stays allocated, out of use");
                }
                return;
            }
            Shrinking::More => {
                rests = 0;
                std::thread::park_timeout(PAUSE);
            }
            Shrinking::Waiting => {
                rests += 1;
                std::thread::park_timeout(REST);
            }
            Shrinking::Refused(error) => log::debug!("memory limit: {error}"),
        }
    }
}
