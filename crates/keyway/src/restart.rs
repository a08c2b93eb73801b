//! Restart: what becomes of a region that is found, by who stopped it, when, and in which boot.
//!
//! | last use | this boot | file | then |
//! |---|---|---|---|
//! | ended, or its process died | the same | any | used as it is |
//! | ended cleanly | another | any | used as it is: everything was written back |
//! | cut off | another | forgets with the boot (tmpfs) | there is none |
//! | cut off | another | ordinary | discarded: parts of it may be on the disk and others not |
//! | cut off | another | strict, on persistent memory | repaired |
//!
//! After that, and whatever it was, a gap longer than allowed has its own consequence ([`crate::Gap`]).

use crate::attach::{
    Access, Attachment, Inspected, Mapping, boot_id, byte_lock, check_item_size, create_at, inspect, io, is_durable, unusable,
};
use crate::error::OpenError;
use crate::{Gap, Options, clock};
use keyway_region::{Region, layout::superblock};
use nix::fcntl::{FcntlArg, RenameFlags, fcntl};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::Duration;

/// Between two looks at a region that another process replaces or repairs.
const PATIENCE: Duration = Duration::from_millis(10);

/// What to do with a region's file.
pub(crate) enum Restart {
    /// attach to it
    Use,
    /// look again: it was replaced or repaired, or somebody else is at it
    Again {
        /// its items are gone
        cold: bool,
    },
}

/// Decides by the table above, and discards or repairs.
pub(crate) fn before_use(file: &File, path: &Path, options: &Options) -> Result<Restart, OpenError> {
    let inspected = inspect(file, path, Access::Write)?;
    if !is_cut_off(file, path)? || !(inspected.strict || is_durable(file)) {
        return Ok(Restart::Use);
    }
    // One process does it; its lock on the file's first byte goes with its descriptor.
    if fcntl(file, FcntlArg::F_OFD_SETLK(&byte_lock(0))).is_err() {
        std::thread::sleep(PATIENCE);
        return Ok(Restart::Again { cold: !inspected.strict });
    }
    // Somebody may have been faster.
    let still_there =
        std::fs::metadata(path).is_ok_and(|m| file.metadata().is_ok_and(|f| (m.dev(), m.ino()) == (f.dev(), f.ino())));
    if inspected.strict {
        if still_there && is_cut_off(file, path)? {
            repair(file, path, &inspected)?;
        }
        return Ok(Restart::Again { cold: false });
    }
    if still_there {
        check_item_size(options.item_size_max, options.memory)?;
        let like_it = Options {
            checksums: options.checksums || inspected.checksums,
            ..options.clone()
        };
        create_at(path, &like_it, RenameFlags::empty())?;
    }
    Ok(Restart::Again { cold: true })
}

/// Whether the region's last use ended with a boot that is over, and not cleanly.
fn is_cut_off(file: &File, path: &Path) -> Result<bool, OpenError> {
    let mapping = Mapping::new(file, superblock::SIZE).map_err(|e| io("map", path, e))?;
    let memory = mapping.memory();
    let sb: &superblock::Superblock = memory.get(0);
    let same_boot = sb.boot_id.iter().zip(boot_id()).all(|(w, b)| w.load(Relaxed) == b);
    Ok(!same_boot && sb.clean.load(Acquire) != 1)
}

/// Whether another process holds the lock under which a region is repaired. That takes as long as reading the index and the
/// items' headers does.
pub(crate) fn is_being_repaired(path: &Path) -> bool {
    let Ok(file) = File::options().read(true).write(true).open(path) else {
        return false;
    };
    inspect(&file, path, Access::Write).is_ok_and(|found| found.strict)
        && fcntl(&file, FcntlArg::F_OFD_SETLK(&byte_lock(0))).is_err()
}

fn repair(file: &File, path: &Path, inspected: &Inspected) -> Result<(), OpenError> {
    let mapping = Mapping::of(file, inspected.layout.len_max, true, &Options::default(), path)?;
    let memory = mapping.memory();
    let probe = std::sync::Arc::new(file.try_clone().map_err(|e| io("dup", path, e))?);
    let host = Box::new(Attachment {
        probe: Some(probe),
        mapping,
    });
    let region = Region::open(memory, host).map_err(|why| unusable(path, why))?;
    region.repair(clock::unix_s(), |_| {}).map_err(|why| unusable(path, why))?;
    region.begin_use(boot_id(), clock::unix_s());
    Ok(())
}

/// Applies the consequence of a gap, if there was one: nobody else is attached, and nobody was for longer than allowed.
pub(crate) fn after_gap(region: &Region, own: usize, last_seen_unix_s: i64, options: &Options) {
    let Some(most) = options.gap_max_s else { return };
    let gap = u64::try_from(clock::unix_s().saturating_sub(last_seen_unix_s)).unwrap_or(0);
    let alone = || (0..region.layout().shape.process_slots).all(|slot| slot == own || !region.is_process_alive(slot));
    if gap <= most || !alone() {
        return;
    }
    match options.gap {
        Gap::Serve => {}
        Gap::Stale => region.make_stale(),
        Gap::Flush => region.flush_now(),
    }
}
