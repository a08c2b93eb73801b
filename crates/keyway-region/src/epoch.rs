//! Flush epochs: which items a flush has made absent, and how the numbers are used again.
//!
//! The flush word has the epoch in force, each segment's word the one of its items. An item is absent if its epoch is older. A flush begins
//! an even epoch, and the first session to open a segment after it begins the odd one that follows; all stamps are odd. So a flush in
//! an even epoch has nothing to flush, and takes no number.
//!
//! The numbers go round, and of two epochs the older one is told by the sign of their difference: right as long as no word of the index
//! leads to an item that is half a round old. **Passes over the index** see to that, sixteen in a round: in each, whatever is of an older
//! epoch than the one in which the pass became due is taken out of the index. The bucket at which a pass goes on is in the superblock;
//! anybody does the next step, and a step that is done twice does no harm. Words move only to buckets with higher numbers (by
//! splits), so a pass that goes from the first bucket to the last one meets them all. No flush goes further than two passes ahead.
//!
//! A thread that slept for half a round knows an epoch that tells it nothing. A reader has then been asked at a time when the key was
//! absent, and may say so. A writer looks again once it holds the item that it is about to replace ([`Region::is_epoch_yet`]); from then on
//! its compare-and-swap succeeds only if no pass has met the item. An insert looks again before it is confirmed, and a pass takes
//! its tentative word out.

use crate::atomics::{Acquire, Relaxed, Release};
use crate::layout::bucket::SLOTS;
use crate::layout::segment::EPOCH_BITS;
use crate::layout::session::OPERATION;
use crate::layout::slot::Slot;
use crate::layout::superblock::{FlushWord, Renewal};
use crate::lookup::{ATTEMPTS_MAX, Look, Place};
use crate::region::Region;
use crate::session::Session;

/// Passes that a session's flush may be ahead of the one that was begun last.
const AHEAD_MAX: u32 = 2;
/// The same for a flush that no session makes: a delayed one, which begins by itself, or one before anybody has a session.
const AHEAD_MAX_ALONE: u32 = AHEAD_MAX + 1;
/// Buckets of a step, unless the index is so large that a part of a round has fewer steps.
const STEP: u64 = 64;
/// Flushes in which a pass shall be done: in a part of a round half as many epochs are odd.
const STEPS_MAX_BITS: u32 = EPOCH_BITS - 4 - 1;

/// Whether an item of epoch `a` is absent in epoch `b`.
#[inline(always)]
pub(crate) const fn is_older(a: u32, b: u32) -> bool {
    (a.wrapping_sub(b) << (u32::BITS - EPOCH_BITS)).cast_signed() < 0
}

/// The newer one of two epochs.
#[inline(always)]
pub(crate) const fn newer(a: u32, b: u32) -> u32 {
    if is_older(a, b) { b } else { a }
}

/// Whether nothing was flushed since epoch `read`, in which something was stored since: if the present one is even, it is of another round.
#[inline(always)]
pub(crate) const fn is_used(now: u32, read: u32) -> bool {
    now == read | 1
}

impl Region {
    /// Whether nothing was flushed since this epoch was read, for what is still to be written.
    pub(crate) fn is_epoch_yet(&self, epoch: u32) -> bool {
        // PAIRS: flush: the exchange in `replace_flush`, as in `epoch`.
        let now = FlushWord(self.superblock().flush.load(Acquire)).epoch();
        now == epoch || is_used(now, epoch)
    }

    /// The same for what has been written in it.
    #[inline(always)]
    pub(crate) fn is_epoch_used(&self, epoch: u32) -> bool {
        // PAIRS: flush: the exchange in `replace_flush`, as in `epoch`.
        is_used(FlushWord(self.superblock().flush.load(Acquire)).epoch(), epoch)
    }

    /// The stamp of what is stored in this epoch. From now on a flush has something to flush.
    pub(crate) fn use_epoch(&self, epoch: u32) -> u32 {
        let flush = &self.superblock().flush;
        let mut word = FlushWord(flush.load(Relaxed));
        while word.epoch() == epoch && !word.is_used() {
            // Relaxed: whoever sees what is published after this sees this; and a read-modify-write goes on with what a flush released.
            match flush.compare_exchange(word.0, word.0 | 1, Relaxed, Relaxed) {
                Ok(_) => break,
                Err(now) => word = FlushWord(now),
            }
        }
        epoch | 1
    }

    /// Whether a flush outside a session may begin another epoch.
    pub(crate) fn can_flush(&self) -> bool {
        self.renewal().behind(self.flush_word().epoch()) <= AHEAD_MAX_ALONE
    }

    fn renewal(&self) -> Renewal {
        // PAIRS: renewal: the exchange in `renew_a_little`: a thread that sees a pass go on sees the words that it met taken out.
        Renewal(self.superblock().renewal.load(Acquire))
    }
}

impl Session {
    /// Before a flush: a step of the pass that is due, or as many as it takes for the flush to be allowed. `false`: the index is damaged.
    pub(crate) fn renew(&self, now: u32) -> bool {
        // A pass that was begun long ago comes first, and then the one that is due.
        loop {
            let is_well = self.renew_a_little(now);
            if self.region.renewal().behind(self.region.flush_word().epoch()) <= AHEAD_MAX {
                return true;
            }
            if !is_well {
                return false;
            }
        }
    }

    /// A step of the pass that is due, if one is. `false`: the index is damaged.
    pub(crate) fn renew_a_little(&self, now: u32) -> bool {
        let region = &*self.region;
        let word = &region.superblock().renewal;
        let mut renewal = region.renewal();
        let bucket = match renewal.bucket() {
            Some(bucket) => bucket,
            None => {
                let epoch = region.flush_word().epoch();
                if renewal.behind(epoch) == 0 {
                    return true;
                }
                let next = Renewal::new(Renewal::pass_of(epoch), 0);
                if word.compare_exchange(renewal.0, next.0, Relaxed, Relaxed).is_err() {
                    return true;
                }
                renewal = next;
                0
            }
        };
        let count = region.table().count;
        let to = bucket + STEP.max((count >> STEPS_MAX_BITS) + 1);
        let is_well = (bucket..to.min(count)).all(|bucket| self.drop_older(bucket, renewal.base(), now));
        self.relent(OPERATION);
        if !is_well {
            return false;
        }
        let next = if to < region.table().count {
            Renewal::new(renewal.pass(), to)
        } else {
            renewal.done()
        };
        // PAIRS: renewal: the load in `Region::renewal`.
        let _ = word.compare_exchange(renewal.0, next.0, Release, Relaxed);
        true
    }

    /// Takes the words out of a bucket that lead to items older than this epoch. `false`: the directory lacks it, or it never rests.
    fn drop_older(&self, bucket: u64, base: u32, now: u32) -> bool {
        let region = &*self.region;
        let Some(bucket_at) = region.bucket(bucket) else {
            return false;
        };
        (0..SLOTS).all(|index| {
            let place = Place::new(bucket, bucket_at, index);
            (0..ATTEMPTS_MAX).any(|_| self.drop_if_older(place, base, now))
        })
    }

    /// The same for a slot. `false`: it has changed, look again.
    fn drop_if_older(&self, place: Place, base: u32, now: u32) -> bool {
        let region = &*self.region;
        let slot = region.slot(place.at);
        // PAIRS: item: the publish of the word that stands there. PAIRS: freeze: as in `freeze`: the table word is read after it.
        let word = Slot(slot.load(Acquire));
        if word.is_frozen() {
            self.unfreeze(place, word);
            return false;
        }
        if word.is_dirty() {
            region.persist_word(place.at, word);
            return false;
        }
        if word.is_empty() || word == Slot::UNSET {
            return true;
        }
        let seen = match region.look(slot, word) {
            Look::Got(seen) => seen,
            Look::Moved => return false,
            Look::Corrupt => {
                self.drop_corrupt(place, word);
                return false;
            }
        };
        let (stamp, epoch) = (seen.word.epoch(), region.epoch(now));
        if !is_older(stamp, base) || !is_older(stamp, epoch) {
            return true;
        }
        if word.is_tentative() {
            region.abort(place.at, word);
        } else {
            self.evict_word(place, word, epoch, now);
        }
        false
    }
}
