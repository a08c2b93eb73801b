//! How many misses the region would have with more memory, or less: miniature simulations of its eviction, fed by the trail that its
//! sessions leave ([`keyway_region`]'s room `trail`).

mod miniature;

use std::sync::Arc;
use std::time::{Duration, Instant};

use keyway_region::layout::plan::{Layout, MEMORY_MIN, Shape};
use keyway_region::layout::stats::Counters;
use keyway_region::layout::trail::{Fate, Footprint, SHIFT_MAX};
use keyway_region::{Trail, TrailPlace, TrailStep, is_among, seconds_of};

use crate::file::creation::limit_bytes;
use crate::session::Session;
use crate::session::roster::Sessions;
use miniature::{GROUPS, Miniature, group_of};

/// The sizes, as parts of the region's: numerator and denominator.
const SIZES: [(u64, u64); 7] = [(1, 8), (1, 4), (1, 2), (1, 1), (2, 1), (4, 1), (8, 1)];
/// Which of them is the region's own.
const OWN: usize = 3;
/// Items of the sample that a region of the own size holds, at least and at most.
const ITEMS_WANTED: (u64, usize) = (8192, 16384);
/// Bytes of an item, while it is not known how many there are.
const ITEM_SIZE_GUESSED: u64 = 512;
/// The trail is asked for again, and the counters are read, after so long.
const REFRESH: Duration = Duration::from_millis(250);
/// The part of the log's bytes that live items take, while nothing is known of it: per cent.
const LIVE_GUESSED: u64 = 92;
/// Items of the simulation from which their mean size is taken; it differs by one in so many bytes from the region's at most.
const ITEMS_FOR_SIZE: usize = 1000;
const SIZES_DIFFER: u64 = 5;
/// Buckets and items of the region that are looked at between two looks at the trail, while its items are read.
const WALK: usize = 4096;
/// Sizes are named in units of this many bytes.
const ROUNDED: u64 = 1 << 20;
/// Steps that are enough for the first window.
const WINDOW_MIN: u64 = 4096;

/// What is predicted for one size.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct Prediction {
    /// the size, bytes of the region
    pub memory: u64,
    /// the size as a part of the region's
    pub part: f64,
    /// the share of the gets that miss
    pub miss_ratio: f64,
    /// what it may differ from the truth, either way: two standard deviations of the sampling, or the difference between what the
    /// simulation and the region of today's size missed, if that is more
    pub error: f64,
    /// what the simulation has seen of this size
    pub state: PredictionState,
}

/// How far a simulation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PredictionState {
    /// It has space left, so what it missed were first requests: a region of this size misses so many at most.
    Filling,
    /// It is full, but some of what it held when it began is still there.
    Settling,
    /// It has put in, since it began, as much as it holds.
    Settled,
}

/// What is predicted, and from how much.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Predictions {
    /// how long the trail was followed
    pub followed: Duration,
    /// the time from which the numbers are
    pub window: Duration,
    /// gets of all sessions in that time
    pub gets: u64,
    /// those that missed
    pub misses: u64,
    /// how many of the misses were followed, as a part of them: about 1, or less if some sessions had not seen yet that the trail is kept
    pub seen: f64,
    /// items evicted in that time
    pub evictions: u64,
    /// of those evicted then or before without a hit, how many were stored again in that time, as far as the region remembers
    pub came_back: u64,
    /// steps of the trail in that time, for all sizes
    pub steps: u64,
    /// steps that were lost, all in all
    pub lost: u64,
    /// one key in this many is on the trail
    pub one_in: u64,
    /// bytes that the region may use, to the next MiB
    pub memory: u64,
    /// one of each size that a region can have, the smallest first
    pub sizes: Vec<Prediction>,
}

/// Sums since the beginning, at one moment.
#[derive(Clone, Copy)]
struct Mark {
    at: Instant,
    steps: u64,
    counters: Counters,
    /// misses of the region's own gets that are on the trail, by group of keys, and of the simulations: those of all keys, estimated
    real: [u64; GROUPS],
    simulated: [[u64; GROUPS]; SIZES.len()],
}

/// Follows the trail of a region, and simulates other sizes. While one lives, and is asked to [`MemoryCurve::follow`] every few seconds,
/// all sessions of the region look at each of their operations; otherwise they do not.
pub struct MemoryCurve {
    sessions: Arc<Sessions>,
    shift: u32,
    place: TrailPlace,
    sizes: [Miniature; SIZES.len()],
    real: [u64; GROUPS],
    steps: u64,
    lost: u64,
    taken: Vec<TrailStep>,
    begun: Instant,
    refreshed: Instant,
    now_s: u64,
    flushes: u64,
    /// sums at the beginning, and whenever there were twice as many steps as at the one before
    marks: Vec<Mark>,
}

impl MemoryCurve {
    /// See [`crate::Cache::memory_curve`].
    pub(crate) fn new(sessions: &Arc<Sessions>, session: Option<&mut Session>) -> Option<Self> {
        if sessions.is_reader() {
            return None;
        }
        let now = Instant::now();
        let mut curve = Self {
            sessions: Arc::clone(sessions),
            shift: 0,
            place: sessions.here(|region| region.trail().end_of_trail())?,
            sizes: Default::default(),
            real: [0; GROUPS],
            steps: 0,
            lost: 0,
            taken: Vec::new(),
            begun: now,
            refreshed: now,
            now_s: 0,
            flushes: sessions.view(|region| region.threads().counters()).cmd_flush,
            marks: Vec::new(),
        };
        curve.shift = curve.shift_wanted();
        curve.sizes.iter_mut().for_each(|size| size.weight = 1 << curve.shift);
        curve.refresh();
        if let Some(session) = session {
            curve.seed(session);
        }
        curve.restart();
        Some(curve)
    }

    fn counters(&self) -> Counters {
        self.sessions.view(|region| region.threads().counters())
    }

    /// Takes the steps since the last call. To be called often: the ring in the region has 512 to 8,192 of them.
    pub fn follow(&mut self) {
        if self.refreshed.elapsed() >= REFRESH {
            self.refresh();
        }
        self.take_steps();
        while self.sizes[OWN].len() > ITEMS_WANTED.1 && self.shift < SHIFT_MAX {
            self.thin_out(self.shift + 1);
        }
        let next = self.marks.last().map_or(0, |mark| (2 * mark.steps).max(WINDOW_MIN));
        if self.steps >= next {
            self.marks.push(self.mark());
        }
    }

    /// Counts from now on.
    pub fn restart(&mut self) {
        self.take_steps();
        self.steps = 0;
        self.marks = vec![self.mark()];
    }

    /// What is predicted from the steps so far. The window is the later half of them, or up to three quarters.
    pub fn predictions(&self) -> Predictions {
        let now = self.mark();
        let is_early = |mark: &&Mark| 2 * mark.steps <= now.steps;
        let since = self.marks.iter().rev().find(is_early).unwrap_or(&now);
        self.predict(since, &now)
    }

    /// What is predicted from the steps since the last [`MemoryCurve::restart`].
    pub fn predictions_since_restart(&self) -> Predictions {
        let now = self.mark();
        self.predict(self.marks.first().unwrap_or(&now), &now)
    }

    fn predict(&self, since: &Mark, now: &Mark) -> Predictions {
        let counted = now.counters.since(&since.counters);
        let gets = counted.cmd_get();
        // The limit is of whole segments: a little less than what the region was made with.
        let memory = self.sessions.view(limit_bytes).next_multiple_of(ROUNDED);
        let one_in = 1u64 << self.shift;
        let ratio = |misses: f64| if gets == 0 { 0.0 } else { misses / gets as f64 };
        let simulated = |size: usize| window(now.simulated[size], since.simulated[size]);
        // What a size misses more than the own one, of the same keys: most of what the choice of the keys does is in both, and so is
        // most of what the simulation leaves out.
        let own = simulated(OWN);
        let more = |size: usize| -> [f64; GROUPS] {
            let of_size = simulated(size);
            std::array::from_fn(|group| of_size[group] - own[group])
        };
        let real = window(now.real, since.real);
        let real: f64 = real.iter().sum();
        let bias = ratio(own.iter().sum::<f64>() - real).abs();
        let one = |(size, (many, parts)): (usize, (u64, u64))| {
            let of_size = memory / parts * many;
            let more = more(size);
            let sum: f64 = more.iter().sum();
            let mean = sum / GROUPS as f64;
            let variance = more.iter().map(|one| (one - mean) * (one - mean)).sum::<f64>() / (GROUPS - 1) as f64;
            let deviation = ratio((variance * GROUPS as f64).sqrt());
            Prediction {
                memory: of_size,
                part: many as f64 / parts as f64,
                miss_ratio: ratio(counted.get_misses as f64 + sum).clamp(0.0, 1.0),
                error: bias.max(2.0 * deviation),
                state: state_of(&self.sizes[size]),
            }
        };
        Predictions {
            followed: self.begun.elapsed(),
            window: now.at.saturating_duration_since(since.at),
            gets,
            misses: counted.get_misses,
            seen: if counted.get_misses == 0 {
                1.0
            } else {
                real / counted.get_misses as f64
            },
            evictions: counted.evictions,
            came_back: counted.ghost_hits,
            steps: now.steps.saturating_sub(since.steps),
            lost: self.lost.saturating_add(self.place.lost),
            one_in,
            memory,
            sizes: SIZES
                .into_iter()
                .enumerate()
                .map(one)
                .filter(|size| size.memory >= MEMORY_MIN)
                .collect(),
        }
    }

    fn mark(&self) -> Mark {
        Mark {
            at: Instant::now(),
            steps: self.steps,
            counters: self.counters(),
            real: self.real,
            simulated: std::array::from_fn(|size| self.sizes[size].misses),
        }
    }

    fn take_steps(&mut self) {
        let mut taken = std::mem::take(&mut self.taken);
        let lost = self.place.lost;
        let place = &mut self.place;
        self.sessions.here(|region| region.trail().follow_trail(place, &mut taken));
        for step in taken.drain(..) {
            self.take(step);
        }
        self.taken = taken;
        if self.place.lost > lost && self.sizes[OWN].len() > ITEMS_WANTED.1 / 4 && self.shift < SHIFT_MAX {
            // Fewer steps are easier to follow.
            self.thin_out(self.shift + 1);
        }
    }

    fn take(&mut self, step: TrailStep) {
        if !is_among(step.key, self.shift) {
            return;
        }
        self.steps += 1;
        if step.fate == Fate::Missed {
            self.real[group_of(step.key)] += 1 << self.shift;
        }
        for size in &mut self.sizes {
            size.step(step.key, step.fate, self.now_s);
        }
    }

    /// Asks for the trail again, and looks at how large the region is.
    fn refresh(&mut self) {
        self.refreshed = Instant::now();
        let now = self.sessions.now();
        let wanted = self.shift;
        let kept = self.sessions.here(|region| {
            let tick = region.clock().tick(now);
            (region.trail().keep_trail(wanted, tick), seconds_of(tick))
        });
        if let Some((shift, now_s)) = kept {
            self.now_s = now_s;
            self.thin_out(shift);
        }
        let counters = self.counters();
        if counters.cmd_flush != self.flushes {
            self.flushes = counters.cmd_flush;
            self.sizes.iter_mut().for_each(Miniature::clear);
        }
        self.fit_capacities(&counters);
    }

    /// Goes over to a smaller share of the keys.
    fn thin_out(&mut self, shift: u32) {
        while self.shift < shift.min(SHIFT_MAX) {
            self.shift += 1;
            for size in &mut self.sizes {
                size.halve(|key| is_among(key, self.shift));
            }
        }
    }

    /// Gives each simulation the bytes of items that a region of its size has room for.
    fn fit_capacities(&mut self, counters: &Counters) {
        let (segment_bytes, segments, free, withdrawn) = self.sessions.view(|region| {
            region.mapped().learn();
            let segments = region.mapped().segments();
            (
                region.mapped().layout().shape.segment_size as u64,
                segments as u64,
                region.segments().free_segments().min(segments) as u64,
                region.mapped().withdrawn().min(segments) as u64,
            )
        });
        let log_bytes = |segments: u64| segments * segment_bytes;
        let in_use =
            // Both counts are approximate.
            log_bytes(segments.saturating_sub(free.saturating_add(withdrawn)));
        let free = log_bytes(free);
        // Of a region that has evicted, it is known how much it holds. Otherwise the free segments will be as full as most are.
        let held = if counters.evictions > 0 {
            counters.bytes
        } else {
            counters.bytes + free / 100 * LIVE_GUESSED
        };
        let held = held.min(in_use + free);
        let held = self.on_trail(held, counters);
        let limit_bytes = self.sessions.view(limit_bytes);
        let own = usable(limit_bytes).max(1);
        for ((many, parts), size) in SIZES.into_iter().zip(&mut self.sizes) {
            let of_size = usable(limit_bytes / parts * many);
            let share = u128::from(held) * u128::from(of_size) / u128::from(own);
            size.capacity = u64::try_from(share >> self.shift).unwrap_or(u64::MAX);
        }
    }

    /// Bytes of the region's items as they are on the trail. They are fewer: an item that was moved has its CAS unique in its bytes, and
    /// the trail has the size that it had before.
    fn on_trail(&self, bytes: u64, counters: &Counters) -> u64 {
        let own = &self.sizes[OWN];
        if own.len() < ITEMS_FOR_SIZE || counters.curr_items == 0 || counters.bytes == 0 {
            return bytes;
        }
        let of_trail = u128::from(own.used().saturating_mul(counters.curr_items) / own.len() as u64);
        let scaled = u128::from(bytes) * of_trail / u128::from(counters.bytes);
        let most = bytes / SIZES_DIFFER;
        u64::try_from(scaled).unwrap_or(u64::MAX).clamp(bytes - most, bytes + most)
    }

    /// The share of the keys of which this region holds enough items.
    fn shift_wanted(&self) -> u32 {
        let (counters, limit_bytes) = (self.counters(), self.sessions.view(limit_bytes));
        let items = match counters.curr_items {
            items if counters.evictions > 0 => items,
            items => items.max(limit_bytes / ITEM_SIZE_GUESSED),
        };
        (items / ITEMS_WANTED.0).max(1).ilog2().min(SHIFT_MAX)
    }

    /// Puts the items that the region has now into the simulations, those first that were used longest ago.
    fn seed(&mut self, session: &mut Session) {
        let mut found: Vec<(u32, u64, Footprint, bool)> = Vec::new();
        let mut cursor = Some(0);
        while let Some(from) = cursor {
            let (hash, shift) = (&self.sessions, self.shift);
            cursor = session.walk(from, WALK, |key, item| {
                let Some(name) = hash
                    .here(|region| Trail::on_trail(region.mapped().hash(key), shift))
                    .flatten()
                else {
                    return;
                };
                let footprint = Footprint {
                    size: u32::try_from(item.size).unwrap_or(u32::MAX),
                    ttl_s: item.ttl_s,
                };
                found.push((item.idle_s, name, footprint, item.fetched));
            });
        }
        found.sort_by_key(|(idle_s, ..)| std::cmp::Reverse(*idle_s));
        for size in &mut self.sizes {
            for (_, name, footprint, is_fetched) in &found {
                size.seed(*name, *footprint, *is_fetched, self.now_s);
            }
        }
    }
}

/// Bytes of segments in a region of so much memory.
fn usable(memory: u64) -> u64 {
    let shape = Shape::for_memory(memory.max(MEMORY_MIN), 4096);
    (Layout::new(shape).segments_for(memory) * shape.segment_size) as u64
}

/// What was counted between two marks, by groups of keys.
fn window(now: [u64; GROUPS], since: [u64; GROUPS]) -> [f64; GROUPS] {
    std::array::from_fn(|group| now[group].wrapping_sub(since[group]) as f64)
}

/// How much a simulation can say.
fn state_of(simulation: &Miniature) -> PredictionState {
    match simulation {
        simulation if simulation.evicted == 0 => PredictionState::Filling,
        simulation if simulation.inserted < simulation.capacity => PredictionState::Settling,
        _ => PredictionState::Settled,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cache;
    use crate::{Delete, Options, Place};

    #[test]
    fn every_verb_is_on_the_trail() {
        let cache = Cache::open(&Place::Memfd, &Options::new().memory(4 << 20)).unwrap();
        let mut session = cache.session().unwrap();
        let mut curve = cache.memory_curve(None).unwrap();
        for _ in 0..2000 {
            session.set(b"number", b"1", 0).unwrap();
            session.get(b"number").unwrap();
            curve.follow();
        }
        curve.restart();
        let mut after = |steps: u64, items: usize| {
            curve.follow();
            assert_eq!((curve.steps, curve.sizes[OWN].len()), (steps, items));
        };
        session.set(b"key", b"value", 0).unwrap();
        after(1, 2);
        session.incr(b"number", 1).unwrap();
        session.touch(b"key", 60).unwrap();
        session.get(b"key").unwrap();
        session.get(b"absent").unwrap();
        after(5, 2);
        session.delete(b"key", &Delete::default()).unwrap();
        after(6, 1);
    }
}
