//! `cache_memlimit`: increases or decreases the region's memory limit.
//!
//! An increase is allocated before the answer, in a separate thread: only the client that asked waits. A decrease is answered at once.
//! Another thread then evicts items and gives memory back in small steps ([`keyway_cache::Session::shrink`]), until the region is within its
//! limit or the server stops. The rest is done by each worker's upkeep, and by the next server.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use keyway_cache::{Cache, Info, Shrinking};

use crate::basics::{lock, size_text};
use crate::log_limiter::LogLimiter;
use crate::shared::Life;

/// Pause between two steps, so that other threads run.
const PAUSE: Duration = Duration::from_millis(1);
/// Pause after a step that had nothing to do.
const REST: Duration = Duration::from_millis(200);
/// After this many such pauses in a row (a minute) the thread ends: other sessions hold the rest, which is left to the workers' upkeep.
const RESTS_MAX: u32 = 300;

static NOT_CHANGED: LogLimiter = LogLimiter::new();

/// The region's memory limit, and the thread that brings the region within it.
pub(crate) struct MemoryLimit {
    /// what was asked for last, bytes: at the start, or by `cache_memlimit`
    asked: AtomicU64,
    /// held by the thread that changes the limit
    changing: Mutex<()>,
    shrinker: Mutex<Option<JoinHandle<()>>>,
}

impl MemoryLimit {
    pub(crate) fn new(asked: u64) -> Self {
        Self {
            asked: AtomicU64::new(asked),
            changing: Mutex::default(),
            shrinker: Mutex::default(),
        }
    }

    /// The limit, bytes: the number that was asked for, if the region was made for it. The region uses only whole segments of
    /// that, and tools compare this number with what they configured.
    pub(crate) fn limit(&self, info: &Info) -> u64 {
        let asked = self.asked.load(Relaxed);
        match asked.checked_sub(info.limit_bytes) {
            Some(rest) if rest < 2 * info.segment_bytes => asked,
            _ => info.limit_bytes,
        }
    }

    /// Waits for the thread, which ends soon because the server stops.
    pub(crate) fn join(&self) {
        let thread: Option<JoinHandle<()>> = lock(&self.shrinker).take();
        if let Some(thread) = thread {
            // A panic has been reported by the thread's own end.
            let _ = thread.join();
        }
    }

    /// Sets the region's memory limit. Returns `false` if that is not possible.
    pub(crate) fn set(self: &Arc<Self>, life: &Arc<Life>, cache: &Cache, memory: u64) -> bool {
        // One at a time: a second thread that waited here finds the first one's result.
        let _one = lock(&self.changing);
        let limit = self.limit(&cache.info());
        let done = if memory == limit {
            Ok(())
        } else if memory > limit {
            cache.grow(memory).map(|()| self.grown(memory))
        } else {
            cache
                .limit(memory)
                .map(|in_force| self.lowered(life, cache, memory, in_force))
        };
        if let Err(error) = &done
            && let Some(left_out) = NOT_CHANGED.may_speak()
        {
            log::warn!("cache_memlimit: {error}{left_out}");
        }
        done.is_ok()
    }

    fn grown(&self, memory: u64) {
        self.asked.store(memory, Relaxed);
        log::info!("memory limit raised to {memory} bytes");
    }

    fn lowered(self: &Arc<Self>, life: &Arc<Life>, cache: &Cache, memory: u64, in_force: u64) {
        self.asked.store(memory, Relaxed);
        if in_force > memory {
            log::warn!(
                "memory limit lowered to {}, not to {}: the region needs this much for its index, its sessions and two items of the largest size",
                size_text(in_force),
                size_text(memory)
            );
        } else {
            log::info!("memory limit lowered to {memory} bytes");
        }
        self.keep_within(life, cache);
    }

    /// Starts the thread that brings the region within its limit, if it is needed and does not run yet.
    pub(crate) fn keep_within(self: &Arc<Self>, life: &Arc<Life>, cache: &Cache) {
        if !cache.is_shrinking() {
            return;
        }
        let mut thread = lock(&self.shrinker);
        if thread.as_ref().is_some_and(|thread| !thread.is_finished()) {
            return;
        }
        let (life, cache) = (Arc::clone(life), cache.clone());
        let started = std::thread::Builder::new()
            .name("keyway-shrink".to_owned())
            .spawn(move || shrink(&life, &cache));
        match started {
            Ok(started) => *thread = Some(started),
            Err(error) => log::warn!("memory limit: cannot start a thread ({error}); the workers evict, more slowly"),
        }
    }
}

fn shrink(life: &Life, cache: &Cache) {
    let mut session = match cache.session() {
        Ok(session) => session,
        Err(error) => {
            log::warn!("memory limit: no free session ({error}); the workers evict, more slowly");
            return;
        }
    };
    let mut rests = 0;
    while !life.is_stopping() && rests < RESTS_MAX {
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
