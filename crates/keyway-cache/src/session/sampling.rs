//! Which calls of a session are samples: their keys are counted for `keyway hot`, mostly they are measured, and while the region keeps its
//! trail they leave a step there. All other calls are counted down, and nothing else.

use crate::clock::timer::{Sampler, Timer};
use crate::session::slot::Slot;
use keyway_region::layout::latency::Verb;
use keyway_region::layout::trail::{Fate, Footprint};
use keyway_region::verbs::{Get, Item, Read, WriteError};
use keyway_region::{Key, Trail};

/// See the top of the file.
pub struct Sampling {
    /// gets until the next sample, that one included
    gets: u32,
    /// changes until the next sample, that one included
    changes: u32,
    /// whether the region's trail was kept when the session last looked: then deletes and touches are on it
    on_trail: bool,
    /// deletes, touches and flushes
    others: Sampler,
    /// on the heap: used in few calls; a server measures its requests itself
    timer: Option<Box<Timer>>,
}

/// A change that is a sample.
pub struct Sample {
    /// the next one is this one of the changes to come
    next: u32,
    /// the timer's reading, if it is measured
    begun: Option<u64>,
}

impl Sampling {
    pub fn new(slot: &Slot) -> Self {
        let timer = slot.sessions().door().map(|_| Box::new(Timer::new()));
        let first = slot.inside(|session| session.sampling().first_sample());
        Self {
            gets: first,
            changes: first,
            on_trail: false,
            others: Sampler::new(timer.as_ref().map_or(1, |timer| timer.now().rotate_left(17) ^ slot.number())),
            timer,
        }
    }

    /// Counts a get. Whether it is a sample: until [`Self::end_get`] the next one is, if this one fails.
    #[inline(always)]
    pub fn is_get_due(&mut self) -> bool {
        is_last(&mut self.gets)
    }

    /// Whether the get that was just counted is a sample.
    #[inline(always)]
    pub fn is_get_sample(&self) -> bool {
        self.gets == 0
    }

    /// Counts a change. Whether it is a sample.
    #[inline(always)]
    pub fn is_change_due(&mut self) -> bool {
        is_last(&mut self.changes)
    }

    /// Counts a delete, a touch or a flush. Whether it is a sample.
    #[inline(always)]
    pub fn is_other_due(&mut self) -> bool {
        self.others.is_due()
    }

    /// Whether deletes and touches are on the region's trail.
    #[inline(always)]
    pub fn is_on_trail(&self) -> bool {
        self.on_trail
    }

    /// Before a get that is a sample. It is made as any other, and not counted again.
    pub fn begin_get(&mut self, slot: &mut Slot) -> Result<Option<u64>, WriteError> {
        // If it fails, the next one is the sample.
        self.gets = 1;
        slot.ready()?;
        let is_timed = slot.inside(|session| {
            self.on_trail = session.region().trail().kept_trail().is_some();
            session.sampling().is_get_timed()
        });
        Ok(self.begun(is_timed))
    }

    /// After it.
    pub fn end_get(&mut self, slot: &Slot, key: Key<'_>, how: &Get, found: Option<&Item>) {
        let given = found.map_or(0, |item| if how.value { item.value_len } else { 0 });
        self.gets = slot.inside(|session| {
            let next = session.sampling().sample_get(key.hash(), key.bytes(), given);
            let trail = session.region().trail();
            if let Some(name) = trail.on_kept_trail(key.hash()) {
                trail.leave_trail(name, found.map_or(Fate::Missed, |item| Fate::Hit(footprint_of(item))));
            }
            next
        });
    }

    /// Before a change that is a sample: its key is counted. The change is then made as any other.
    #[cold]
    #[inline(never)]
    pub fn begin_change(&mut self, slot: &mut Slot, key: Key<'_>) -> Sample {
        // If it fails, the next one is the sample.
        let mut sample = Sample { next: 1, begun: None };
        if slot.ready().is_ok() {
            let is_timed = slot.inside(|session| {
                let is_timed = session.sampling().is_set_timed();
                sample.next = session.sampling().sample_set(key.hash());
                is_timed
            });
            sample.begun = self.begun(is_timed);
        }
        sample
    }

    /// After it: mostly it is measured.
    #[cold]
    #[inline(never)]
    pub fn end_change(&mut self, slot: &mut Slot, sample: &Sample, verb: Verb, key: Key<'_>) {
        self.end_measure(slot, sample.begun, verb);
        self.changes = sample.next;
        self.leave_trail(slot, key);
    }

    /// Before a delete, a touch or a flush that is measured. It is made as any other, and asked again whether it is due.
    pub fn begin_other(&mut self, slot: &Slot) -> Option<u64> {
        self.others.begin_again();
        if slot.is_ready() {
            self.on_trail = slot.inside(|session| session.region().trail().kept_trail().is_some());
        }
        self.begun(true)
    }

    fn begun(&self, is_timed: bool) -> Option<u64> {
        self.timer.as_ref().filter(|_| is_timed).map(|timer| timer.now())
    }

    /// Notes how long a verb took, if it was measured from `begun` on.
    pub fn end_measure(&mut self, slot: &Slot, begun: Option<u64>, verb: Verb) {
        if let (Some(begun), Some(timer), Some(door)) = (begun, &mut self.timer, slot.sessions().door()) {
            let ns = timer.ns_between(begun, timer.now());
            if slot.is_ready() {
                slot.inside(|session| session.note_latency(door, verb, ns));
            }
        }
    }

    /// After a delete or a touch that is not a sample: it leaves a step while the trail is kept.
    pub fn stay_on_trail(&mut self, slot: &mut Slot, key: Key<'_>) {
        if self.on_trail {
            self.leave_trail(slot, key);
        }
    }

    /// After a change: if the region's trail is kept, and the key is on it, says there what the change has left.
    #[cold]
    #[inline(never)]
    fn leave_trail(&mut self, slot: &mut Slot, key: Key<'_>) {
        if !slot.is_ready() {
            return;
        }
        let kept = slot.inside(|session| session.region().trail().kept_trail());
        self.on_trail = kept.is_some();
        let name = kept.and_then(|shift| Trail::on_trail(key.hash(), shift));
        if let Some(name) = name
            && let Ok(found) = look(slot, key)
        {
            let fate = match &found {
                Read::Hit(item) => Fate::Stored(footprint_of(item)),
                _ => Fate::Gone,
            };
            slot.inside(|session| session.region().trail().leave_trail(name, fate));
        }
    }
}

/// The properties of an item, without counting it.
pub fn look(slot: &mut Slot, key: Key<'_>) -> Result<Read, WriteError> {
    slot.ready()?;
    slot.verb(|session, now| session.region().index().read(key, &Get::default(), now, &mut Vec::new()))
}

/// What the trail says of an item.
fn footprint_of(item: &Item) -> Footprint {
    Footprint {
        size: u32::try_from(item.size).unwrap_or(u32::MAX),
        ttl_s: item.ttl_s,
    }
}

/// Counts an operation. Whether it is the one that was waited for.
#[inline(always)]
fn is_last(left: &mut u32) -> bool {
    *left = left.wrapping_sub(1);
    *left == 0
}
