//! Whether the region's last use ended cleanly: a word in the superblock, written when a boot begins to use it, and when its
//! last process stops.

use crate::atomics::{Acquire, Relaxed, Release, SeqCst, fence};
use crate::clock::Clock;
use crate::clock::{self, Moment};
use crate::durable::{LINE, line};
use crate::layout::superblock::{ClockWord, STOPPED, STOPPING, SeenWord, Superblock};
use crate::mapped::Mapped;
use std::sync::Arc;

/// Whether a region was last in use in this boot of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LastBoot {
    /// it was
    This,
    /// it was in a boot that is over
    Another,
    /// it cannot be known
    Unknown,
}

/// What a superblock says of the region's last use.
#[derive(Clone, Copy, Debug)]
pub struct LastUse {
    is_clean: bool,
    boot_id: [u64; 2],
    clock: ClockWord,
    seen: SeenWord,
}

impl LastUse {
    /// Reads the words from the superblock.
    pub fn of(sb: &Superblock) -> Self {
        // Before the boot. PAIRS: clean: the exchanges in `Restarts::begin_use` and `end_clean_stop`.
        let is_clean = sb.clean.load(Acquire) == STOPPED;
        Self {
            is_clean,
            boot_id: std::array::from_fn(|i| sb.boot_id.get(i).map_or(0, |word| word.load(Relaxed))),
            clock: ClockWord(sb.clock.load(Relaxed)),
            seen: SeenWord(sb.seen.load(Relaxed)),
        }
    }

    /// Whether it ended with a clean stop.
    pub fn is_clean(&self) -> bool {
        self.is_clean
    }

    /// In which boot it was, for a process of this boot (`None`: it does not know its identity) to which the machine's clocks show
    /// this (`None`: it does not know what its time namespace adds).
    ///
    /// Two identities decide. Without them the clocks do, if they can: the boot clock does not go back within a boot, and between two
    /// boots it does not advance as Unix time does.
    pub fn boot(&self, boot_id: Option<[u64; 2]>, now: Option<Moment>) -> LastBoot {
        match boot_id.filter(|_| self.boot_id != [0; 2]) {
            Some(own) if own == self.boot_id => LastBoot::This,
            Some(_) => LastBoot::Another,
            None => now.map_or(LastBoot::Unknown, |now| clock::last_boot(self.clock, self.seen, now)),
        }
    }
}

/// How the last use of the region ended.
#[derive(Clone)]
pub struct Restarts {
    mapped: Arc<Mapped>,
    clock: Clock,
}

impl Restarts {
    pub(crate) fn new(mapped: &Arc<Mapped>, clock: &Clock) -> Self {
        Self {
            mapped: Arc::clone(mapped),
            clock: clock.clone(),
        }
    }

    /// Marks the region as in use in this boot, before it is used: from now on another boot finds it unclean. Returns whether it
    /// was marked already. On the file of a region in durable mode the mark is persistent after this. The region's clock
    /// continues from here.
    pub fn begin_use(&self, boot_id: [u64; 2], now: Moment) -> bool {
        self.clock.start_clock(boot_id, now);
        let sb = self.mapped.superblock();
        let mut same = true;
        for (word, id) in sb.boot_id.iter().zip(boot_id) {
            same &= word.swap(id, Relaxed) == id;
        }
        // After the boot: a process that reads "not clean" sees in which boot. PAIRS: clean: the load in `LastUse::of`.
        same &= sb.clean.swap(0, Release) == 0;
        self.clock.see(now);
        self.mapped.write_back(line::RESTART, LINE);
        self.mapped.barrier();
        same
    }

    /// First of two steps by which the last process marks a clean stop. Between them it looks for other processes.
    pub fn begin_clean_stop(&self) {
        self.mapped.superblock().clean.store(STOPPING, Relaxed);
        // PAIRS: stop: the system call with which the other process takes its lock, before the swap in `Self::begin_use`: either
        // that swap overwrites this mark, or its lock is seen.
        fence(SeqCst);
    }

    /// Second step, if this process is the last one and everything is written back. `false`: the stop is not clean, perhaps
    /// because another process has begun to use the region meanwhile.
    pub fn end_clean_stop(&self, is_last: bool) -> bool {
        let to = if is_last { STOPPED } else { 0 };
        let clean = &self.mapped.superblock().clean;
        // PAIRS: clean: the loads of the word: a process that finds the mark sees everything that was done before.
        clean.compare_exchange(STOPPING, to, Release, Relaxed).is_ok() && is_last
    }

    /// The boot in which the region is in use, for a process that cannot know its boot: no boot would look like another boot to
    /// all other processes. Zeros if the region was stopped cleanly, perhaps in an earlier boot.
    pub fn boot_in_use(&self) -> [u64; 2] {
        let sb = self.mapped.superblock();
        // PAIRS: clean: the swap in `Self::begin_use`: a process that reads "not clean" sees in which boot.
        if sb.clean.load(Acquire) == STOPPED {
            return [0; 2];
        }
        std::array::from_fn(|i| sb.boot_id.get(i).map_or(0, |word| word.load(Relaxed)))
    }

    /// Whether a power failure, or another end of the boot in which it was used, interrupted the region's last use.
    pub fn is_cut_off(&self, boot_id: [u64; 2]) -> bool {
        let last = LastUse::of(self.mapped.superblock());
        !last.is_clean() && last.boot(Some(boot_id), None) != LastBoot::This
    }
}
