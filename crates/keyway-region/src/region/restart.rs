//! Whether the region's last use ended cleanly: a word in the superblock, written when a boot begins to use it, and when its
//! last process stops.

use crate::atomics::{Acquire, Relaxed, Release, SeqCst, fence};
use crate::durable::{LINE, line};
use crate::layout::superblock::{STOPPED, STOPPING};
use crate::region::Region;
use crate::region::clock::Moment;

impl Region {
    /// Marks the region as in use in this boot, before it is used: from now on another boot finds it unclean. Returns whether it
    /// was marked already. On the file of a region in durable mode the mark is persistent after this. The region's clock
    /// continues from here.
    pub fn begin_use(&self, boot_id: [u64; 2], now: Moment) -> bool {
        self.start_clock(boot_id, now);
        let sb = self.superblock();
        let mut same = true;
        for (word, id) in sb.boot_id.iter().zip(boot_id) {
            same &= word.swap(id, Relaxed) == id;
        }
        // After the boot: a process that reads "not clean" sees in which boot. PAIRS: clean: the load in `Region::is_cut_off`.
        same &= sb.clean.swap(0, Release) == 0;
        self.see(now);
        self.write_back(line::RESTART, LINE);
        self.barrier();
        same
    }

    /// First of two steps by which the last process marks a clean stop. Between them it looks for other processes.
    pub fn begin_clean_stop(&self) {
        self.superblock().clean.store(STOPPING, Relaxed);
        // PAIRS: stop: the system call with which the other process takes its lock, before the swap in `Self::begin_use`: either
        // that swap overwrites this mark, or its lock is seen.
        fence(SeqCst);
    }

    /// Second step, if this process is the last one and everything is written back. `false`: the stop is not clean, perhaps
    /// because another process has begun to use the region meanwhile.
    pub fn end_clean_stop(&self, is_last: bool) -> bool {
        let to = if is_last { STOPPED } else { 0 };
        let clean = &self.superblock().clean;
        // PAIRS: clean: the loads of the word: a process that finds the mark sees everything that was done before.
        clean.compare_exchange(STOPPING, to, Release, Relaxed).is_ok() && is_last
    }

    /// The boot in which the region is in use, for a process that cannot know its boot: no boot would look like another boot to
    /// all other processes. Zeros if the region was stopped cleanly, perhaps in an earlier boot.
    pub fn boot_in_use(&self) -> [u64; 2] {
        let sb = self.superblock();
        // PAIRS: clean: the swap in `Self::begin_use`: a process that reads "not clean" sees in which boot.
        if sb.clean.load(Acquire) == STOPPED {
            return [0; 2];
        }
        std::array::from_fn(|i| sb.boot_id.get(i).map_or(0, |word| word.load(Relaxed)))
    }

    /// Whether a power failure, or another end of the boot in which it was used, interrupted the region's last use.
    pub fn is_cut_off(&self, boot_id: [u64; 2]) -> bool {
        let sb = self.superblock();
        // Before the boot. PAIRS: clean: the exchanges in `Self::begin_use` and `end_clean_stop`.
        let is_clean = sb.clean.load(Acquire) == STOPPED;
        !is_clean && !sb.boot_id.iter().zip(boot_id).all(|(word, id)| word.load(Relaxed) == id)
    }
}
