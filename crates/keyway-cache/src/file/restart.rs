//! Restart: what happens to an existing region, depending on how, when and in which boot its last use ended.
//!
//! | last use | this boot | file | then |
//! |---|---|---|---|
//! | ended, or its process died | the same | any | used as it is |
//! | ended cleanly | another | any | used as it is: everything was written back |
//! | cut off | another | lost with the boot (tmpfs) | there is no file |
//! | cut off | another | ordinary | discarded: some parts of it may be on the disk and others not |
//! | cut off | another | durable mode, on persistent memory | repaired |
//!
//! In all of these cases, a gap longer than allowed has its own consequence afterwards ([`crate::Gap`]).

use crate::clock::Clock;
use crate::error::OpenError;
use crate::error::io;
use crate::error::unusable;
use crate::file::backing::is_on_disk;
use crate::file::backing::offset;
use crate::file::creation::remake;
use crate::file::inspect::Inspected;
use crate::file::inspect::inspect;
use crate::file::liveness::{Attachment, Locked, Whole, locked};
use crate::file::mapping::Mapping;
use crate::file::unfinished::is_at;
use crate::options::check_item_size;
use crate::options::{Gap, Options};
use crate::process::descriptor::file_id;
use crate::process::proc;
use keyway_region::layout::superblock::{self, SeenWord};
use keyway_region::{LastBoot, LastUse, Life, Moment, Region};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long another process may be at work on a region without visible progress.
const BUSY_MAX: Duration = Duration::from_secs(5);
/// Time between two looks at a region that another process replaces or repairs.
pub(crate) const PATIENCE: Duration = Duration::from_millis(10);

/// What to do with a region's file.
pub(crate) enum Restart {
    /// attach to it
    Use,
    /// look again: it was replaced or repaired
    Again {
        /// its items are gone
        cold: bool,
    },
    /// look again: another process is at work on it
    Busy {
        /// it repairs the region, and does not replace it
        repairs: bool,
    },
}

/// Until when an opening looks again.
pub(crate) struct Deadline(Instant);

impl Deadline {
    pub(crate) fn new(now: Instant) -> Self {
        Self(now + BUSY_MAX)
    }

    /// Notes what was found: what this process has done itself, and a repair, may take as long as they need.
    fn note(&mut self, found: &Restart, now: Instant) {
        if matches!(found, Restart::Again { .. } | Restart::Busy { repairs: true }) {
            *self = Self::new(now);
        }
    }

    pub(crate) fn has_passed(&self, now: Instant) -> bool {
        now > self.0
    }
}

/// Decides by the table above, and discards or repairs the region if necessary. What was found may move the opening's deadline.
pub(crate) fn before_use(file: &File, path: &Path, options: &Options, deadline: &mut Deadline) -> Result<Restart, OpenError> {
    let found = decide(file, path, options)?;
    deadline.note(&found, Instant::now());
    Ok(found)
}

fn decide(file: &File, path: &Path, options: &Options) -> Result<Restart, OpenError> {
    let inspected = inspect(file, path)?;
    let forgets = !(inspected.durable || is_on_disk(file));
    // Locks do not survive a boot. So if any process is attached, the region is in use in this boot.
    if forgets || is_attached(file, &inspected) || !is_cut_off(file, path)? {
        return Ok(Restart::Use);
    }
    // One process does it. Its lock ends with its descriptor.
    let Some(_whole) = Whole::take(file) else {
        crate::process::wait::sleep(PATIENCE);
        return Ok(Restart::Busy {
            repairs: inspected.durable,
        });
    };
    // Another process may have done it meanwhile, or may be attaching.
    if !is_at(file, path) || is_attached(file, &inspected) || !is_cut_off(file, path)? {
        return Ok(Restart::Again { cold: false });
    }
    if inspected.durable {
        repair(file, path, &inspected, options)?;
        return Ok(Restart::Again { cold: false });
    }
    // The region's rules, as far as the options do not say otherwise.
    let limits = options.limits(inspected.limits);
    let memory = options.memory.filter(|_| !options.keep_memory).unwrap_or(inspected.memory);
    check_item_size(limits.item_size_max, memory)?;
    let like_it = options
        .clone()
        .memory(memory)
        .item_size_max(limits.item_size_max)
        .evict(limits.evict)
        .flush(limits.flush)
        .checksums(options.checksums || inspected.checksums)
        .mode(file.metadata().map_err(|e| io("stat", path, e))?.mode() & 0o777);
    remake(file, path, &like_it)?;
    Ok(Restart::Again { cold: true })
}

/// Whether any process is attached. A lock that cannot be queried counts as an attached process.
fn is_attached(file: &File, inspected: &Inspected) -> bool {
    let layout = &inspected.layout;
    let slots = layout.process(0)..layout.process(layout.shape.process_slots);
    locked(file, offset(slots.start), offset(slots.end - slots.start)) != Locked::No
}

/// Whether the region's last use was not ended cleanly, in a boot that is over.
///
/// # Errors
///
/// It cannot be found out which boot this is, and the region was not stopped cleanly.
fn is_cut_off(file: &File, path: &Path) -> Result<bool, OpenError> {
    let mapping = Mapping::copied(file, superblock::SIZE).map_err(|e| io("read", path, e))?;
    let last = LastUse::of(mapping.memory().get(0));
    let clock = Clock::here();
    match last.boot(proc::boot_id(), clock.is_known().then(|| clock.now())) {
        _ if last.is_clean() => Ok(false),
        LastBoot::This => Ok(false),
        LastBoot::Another => Ok(true),
        LastBoot::Unknown => Err(OpenError::NoBootId {
            path: path.to_path_buf(),
        }),
    }
}

/// Repairs a region, and tells in the log how far it is.
fn repair(file: &File, path: &Path, inspected: &Inspected, options: &Options) -> Result<(), OpenError> {
    let mapping = Mapping::of(file, inspected.layout.len_max, true, options, path)?;
    let id = file_id(file).map_err(|e| io("stat", path, e))?;
    let unowned = Attachment::new(mapping, id, None, None, false).map_err(|e| io("describe", path, e))?;
    let (region, _) = unowned.open(path)?;
    let shown = path.display();
    log::warn!(
        "{shown}: the machine stopped while this region was in use; it is repaired, which takes a second or two for each million items"
    );
    let mut tenths = 0;
    let progress = |percent: u8| {
        if percent / 10 > tenths {
            tenths = percent / 10;
            log::warn!("{shown}: {percent} % of the region is repaired");
        }
    };
    let repaired = region.recovery().repair(progress).map_err(|why| unusable(path, why))?;
    let lost = match repaired.lost {
        0 => String::new(),
        lost => format!("; {lost} others were damaged and are gone"),
    };
    log::warn!("{shown}: the region is repaired and has {} items{lost}", repaired.items);
    region
        .restarts()
        .begin_use(proc::boot_id().unwrap_or_default(), Clock::here().now());
    Ok(())
}

/// Applies the consequence of a gap, if there was one: no other process is attached, and none was for longer than
/// allowed.
pub(crate) fn after_gap(region: &Region, own: usize, seen: SeenWord, now: Moment, options: &Options) {
    let Some(most) = options.gap_max_s else { return };
    // On the region's clock, which continues from boot to boot.
    let gap = region
        .clock()
        .clock_at(now.boot)
        .as_secs()
        .saturating_sub(u64::from(seen.clock_s()));
    let alone =
        || (0..region.mapped().layout().shape.process_slots).all(|slot| slot == own || region.mapped().life(slot) == Life::Dead);
    if gap <= most || !alone() {
        return;
    }
    match options.gap {
        Gap::Serve => {}
        Gap::Stale => region.mapped().make_stale(),
        Gap::Flush => region.flushes().flush_now(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cache, Place};
    use std::os::unix::fs::FileExt;

    /// Offsets in the superblock of what tells boots apart (`docs/region.md`).
    const BOOT_ID: u64 = 968;
    const CLOCK: u64 = 536;

    #[test]
    fn an_opening_waits_as_long_as_another_process_repairs() {
        let path = Path::new("/dev/shm").join(format!("keyway-test-{}-deadline", std::process::id()));
        let options = Options::new().memory(4 << 20).durable(true).durable_rehearsed(true);
        drop(Cache::open(&Place::Path(path.clone()), &options).unwrap());
        let open = || File::options().read(true).write(true).open(&path).unwrap();
        let (file, other) = (open(), open());
        std::fs::remove_file(&path).unwrap();
        for (at, change) in [(BOOT_ID, 1), (CLOCK, 0x10_1234_5678)] {
            let mut word = [0; 8];
            file.read_exact_at(&mut word, at).unwrap();
            let other_boot = u64::from_le_bytes(word) ^ change;
            file.write_all_at(&other_boot.to_le_bytes(), at).unwrap();
        }
        let _repairs = Whole::take(&other).expect("no other process has the lock");
        let mut deadline = Deadline::new(Instant::now() - 2 * BUSY_MAX);
        let found = before_use(&file, &path, &options, &mut deadline).unwrap();
        assert!(matches!(found, Restart::Busy { repairs: true }));
        assert!(!deadline.has_passed(Instant::now()), "it moves with what is found");
    }

    #[test]
    fn a_repair_of_minutes_ends_no_opening_and_a_replacement_without_progress_does() {
        let begun = Instant::now();
        let after_a_minute = begun + Duration::from_secs(60);
        for (found, has_passed) in [
            (Restart::Again { cold: false }, false),
            (Restart::Again { cold: true }, false),
            (Restart::Busy { repairs: true }, false),
            (Restart::Busy { repairs: false }, true),
            (Restart::Use, true),
        ] {
            let mut deadline = Deadline::new(begun);
            assert!(!deadline.has_passed(begun));
            deadline.note(&found, after_a_minute);
            assert_eq!(deadline.has_passed(after_a_minute), has_passed);
        }
    }
}
