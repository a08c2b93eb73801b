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

use crate::attach::{Inspected, inspect, io, is_durable, unusable};
use crate::clock::Clock;
use crate::creation::{check_item_size, is_at, remake};
use crate::descriptor::file_id;
use crate::error::OpenError;
use crate::liveness::{Attachment, Liveness, Locked, WHOLE, Whole, locked, offset};
use crate::mapping::Mapping;
use crate::{Gap, Options, proc};
use keyway_region::layout::superblock::{self, SeenWord};
use keyway_region::{LastBoot, LastUse, Life, Moment, Region};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

/// Time between two looks at a region that another process replaces or repairs.
pub(crate) const PATIENCE: Duration = Duration::from_millis(10);

/// What to do with a region's file.
pub(crate) enum Restart {
    /// attach to it
    Use,
    /// look again: it was replaced or repaired, or another process is working on it
    Again {
        /// its items are gone
        cold: bool,
    },
}

/// Decides by the table above, and discards or repairs the region if necessary.
pub(crate) fn before_use(file: &File, path: &Path, options: &Options) -> Result<Restart, OpenError> {
    let inspected = inspect(file, path)?;
    let forgets = !(inspected.strict || is_durable(file));
    // Locks do not survive a boot. So if any process is attached, the region is in use in this boot.
    if forgets || is_attached(file, &inspected) || !is_cut_off(file, path)? {
        return Ok(Restart::Use);
    }
    // One process does it. Its lock ends with its descriptor.
    let Some(_whole) = Whole::take(file) else {
        crate::wait::sleep(PATIENCE);
        return Ok(Restart::Again { cold: !inspected.strict });
    };
    // Another process may have done it meanwhile, or may be attaching.
    if !is_at(file, path) || is_attached(file, &inspected) || !is_cut_off(file, path)? {
        return Ok(Restart::Again { cold: false });
    }
    if inspected.strict {
        repair(file, path, &inspected)?;
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

/// Whether another process holds the lock under which a region is repaired. A repair takes as long as reading the index
/// and the headers of the items does.
pub(crate) fn is_being_repaired(path: &Path) -> bool {
    let Ok(file) = File::options().read(true).write(true).open(path) else {
        return false;
    };
    inspect(&file, path).is_ok_and(|found| found.strict) && locked(&file, WHOLE, 1) == Locked::Yes
}

fn repair(file: &File, path: &Path, inspected: &Inspected) -> Result<(), OpenError> {
    let mapping = Mapping::of(file, inspected.layout.len_max, true, &Options::default(), path)?;
    let memory = mapping.memory();
    let id = file_id(file).map_err(|e| io("stat", path, e))?;
    let liveness = Liveness::new(id, None, None, false).map_err(|e| io("describe", path, e))?;
    let host = Box::new(Attachment {
        liveness: std::sync::Arc::new(liveness),
        mapping,
    });
    let region = Region::open(memory, host).map_err(|why| unusable(path, why))?;
    region.repair(|_| {}).map_err(|why| unusable(path, why))?;
    region.begin_use(proc::boot_id().unwrap_or_default(), Clock::here().now());
    Ok(())
}

/// Applies the consequence of a gap, if there was one: no other process is attached, and none was for longer than
/// allowed.
pub(crate) fn after_gap(region: &Region, own: usize, seen: SeenWord, now: Moment, options: &Options) {
    let Some(most) = options.gap_max_s else { return };
    // On the region's clock, which continues from boot to boot.
    let gap = region.clock(now.boot).as_secs().saturating_sub(u64::from(seen.clock_s()));
    let alone = || (0..region.layout().shape.process_slots).all(|slot| slot == own || region.life(slot) == Life::Dead);
    if gap <= most || !alone() {
        return;
    }
    match options.gap {
        Gap::Serve => {}
        Gap::Stale => region.make_stale(),
        Gap::Flush => region.flush_now(),
    }
}
