//! Attaching to write: a process slot, the lock on its byte, and what a process does once before it uses the region.
//!
//! Never: decides what happens if there is no slot (`attach` does).

use super::opened::{Opened, check_clock};
use crate::clock::{self, Clock};
use crate::error::OpenError;
use crate::error::copies;
use crate::error::io;
use crate::file::creation::grow;
use crate::file::inspect::Inspected;
use crate::file::inspect::inspect;
use crate::file::liveness::{Attachment, Liveness, Settled, Whole};
use crate::file::mapping::Mapping;
use crate::file::restart;
use crate::file::{backing, blocks};
use crate::gate::{self, GateState, Latch};
use crate::options::Options;
use crate::options::check_item_size;
use crate::place::Place;
use crate::place::whole_path;
use crate::process::descriptor::file_id;
use crate::process::proc;
use crate::session::kernel;
use crate::session::roster::{Role, Sessions};
use keyway_region::layout::session::{Hold, Tenant};
use keyway_region::layout::superblock;
use keyway_region::{Moment, Process, Region};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Attaches to the region in a file that has two file descriptions. `None`: another process is working on the whole file,
/// or the name leads to another file now, so the caller starts again.
pub fn attach(
    place: &Place,
    path: &Path,
    (file, probe): (File, File),
    options: &Options,
    warm: bool,
) -> Result<Option<Opened>, OpenError> {
    let found = inspect(&file, path)?;
    found.check(options, path)?;
    blocks::claim(&file).map_err(|why| copies(path, why))?;
    let Inspected { layout, durable, .. } = found;
    let on_disk = backing::is_on_disk(&probe);
    let mapping = Mapping::of(&file, layout.len_max, durable, options, path)?;
    let (latch, gate) = Latch::of(options.gate);
    if let GateState::Unavailable(why) = &gate {
        gate::say_once(why);
    }
    mapping.protect(latch).map_err(|e| io("lay a protection key on", path, e))?;
    // Attaching is not a verb: all of it is inside the gate.
    let _inside = latch.open();
    let mapped = mapping.memory().addresses();
    let name = matches!(place, Place::Path(_)).then(|| whole_path(path));
    let id = file_id(&file).map_err(|e| io("stat", path, e))?;
    let attachment = Attachment::new(mapping, id, Some(probe), name.as_deref(), options.sealed);
    let (region, liveness) = attachment.map_err(|e| io("keep a descriptor of", path, e))?.open(path)?;
    blocks::fill(&file, &region.mapped().in_use()).map_err(|why| copies(path, why))?;
    let Some((tenant, hold, _locked)) = take_slot(&region, &liveness, file, path, name.is_some(), options)? else {
        return Ok(None);
    };
    let seen = region.clock().seen();
    let clock = Clock::here();
    let now = clock.now();
    begin_use(&region, (clock, now), on_disk, options, path)?;
    let Some(process) = move_in(&region, &liveness, &tenant, hold) else {
        return Ok(None);
    };
    region.recovery().note_entrance(process, options.entrance());
    restart::after_gap(&region, process.slot, seen, now, options);
    region.recovery().recover();
    liveness.seal();
    Ok(Some(Opened {
        sessions: Arc::new(Sessions::new(
            Arc::new(region),
            Arc::clone(&liveness),
            Role::Writer(process),
            (layout.shape.thread_slots_for(options.server), options.entrance()),
            latch,
            clock,
            place.whole(),
        )),
        doorway: Arc::default(),
        mapped,
        warm,
        discarded: false,
        on_disk,
        place: place.whole(),
        options: options.clone(),
        gate,
    }))
}

/// Finds a process slot, and locks it for as long as the region is attached. `None`: the caller starts again.
fn take_slot(
    region: &Region,
    liveness: &Liveness,
    file: File,
    path: &Path,
    has_name: bool,
    options: &Options,
) -> Result<Option<(Tenant, Hold, Option<File>)>, OpenError> {
    let slots = region.mapped().layout().shape.process_slots_for(options.server);
    let Some(vacancy) = liveness.find_vacancy(region, slots, &file) else {
        return Err(OpenError::ProcessesFull {
            path: path.to_path_buf(),
            slots,
        });
    };
    let leads_elsewhere = || {
        let found = std::fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino()));
        has_name && !found.is_ok_and(|found| found == liveness.id())
    };
    if Whole::is_taken(&file) || leads_elsewhere() {
        return Ok(None);
    }
    match liveness.settle(file, &vacancy) {
        (Settled::By(hold), locked) => Ok(Some((vacancy.tenant, hold, locked))),
        (Settled::Overtaken, _) => Ok(None),
        (Settled::Lost, _) => Err(OpenError::LockLost {
            path: path.to_path_buf(),
        }),
    }
}

/// Marks the region as in use since this boot, and gives it what the options say of its size and rules.
fn begin_use(
    region: &Region,
    (clock, now): (Clock, Moment),
    on_disk: bool,
    options: &Options,
    path: &Path,
) -> Result<(), OpenError> {
    if options.durable_rehearsed {
        region.mapped().at_barrier(wait_100_ns);
    }
    let boot_id = proc::boot_id().unwrap_or_else(|| region.restarts().boot_in_use());
    if region.clock().is_clock_started(boot_id) {
        check_clock(region, clock, now, path)?;
    }
    // "In use since this boot" must be on the medium before the first change can be there.
    if !region.restarts().begin_use(boot_id, now) {
        kernel::forget(region);
        write_back(region, on_disk, path)?;
    }
    // A program that opens the region with a size of its own choice does not lift the limit that an operator has set.
    let wanted = options.memory.filter(|_| !options.keep_memory);
    let segments = |memory| region.mapped().layout().segments_for(memory);
    if let Some(memory) = wanted.filter(|memory| options.server || segments(*memory) > region.mapped().segments()) {
        grow(region, memory).map_err(|why| OpenError::NotGrown {
            path: path.to_path_buf(),
            why,
        })?;
    }
    if options.server && options.memory.is_some() {
        rule(region, options, on_disk, path)?;
    }
    region
        .mapped()
        .host()
        .prepare(&region.mapped().in_use(), options.huge_pages, options.prefault);
    Ok(())
}

/// Writes a region's rules back to the disk that it is on.
fn write_back(region: &Region, on_disk: bool, path: &Path) -> Result<(), OpenError> {
    if on_disk && !region.mapped().host().write_back(0..superblock::SIZE) {
        return Err(io("write back", path, std::io::Error::last_os_error()));
    }
    Ok(())
}

/// Gives the region the rules that its server is started with. They hold for all its users, at once.
fn rule(region: &Region, options: &Options, on_disk: bool, path: &Path) -> Result<(), OpenError> {
    let (old, new) = (region.limits().read(), options.limits(region.limits().read()));
    if options.item_size_max.is_some() {
        check_item_size(
            new.item_size_max,
            region.mapped().layout().backed_len(region.mapped().segments()),
        )?;
    }
    if new != old {
        region.limits().write(&new);
        write_back(region, on_disk, path)?;
    }
    Ok(())
}

/// Takes the process slot. `None`: the lock was lost meanwhile, and another process has it.
fn move_in(region: &Region, liveness: &Liveness, tenant: &Tenant, hold: Hold) -> Option<Process> {
    let own = liveness.own();
    let process = region.recovery().take_over(tenant, std::process::id(), clock::unix_s())?;
    region.recovery().identify(process, hold, own.identity).then_some(process)
}

/// The delay that pmemcached's authors gave each persist barrier (HotStorage 2017).
fn wait_100_ns() {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_nanos(100) {
        std::hint::spin_loop();
    }
}
