//! Attaching to write: a process slot, the lock on its byte, and what a process does once before it uses the region.
//!
//! Never: decides what happens if there is no slot (`attach` does).

use super::opened::{Opened, check_clock};
use crate::clock::{self, Clock};
use crate::error::OpenError;
use crate::error::copies;
use crate::error::io;
use crate::error::unusable;
use crate::file::backing::offset;
use crate::file::blocks;
use crate::file::creation::grow;
use crate::file::inspect::Inspected;
use crate::file::inspect::inspect;
use crate::file::liveness::{
    Attachment, Liveness, Locked, NoWitness, Settled, WHOLE, Witness, is_blocked_by_reader, lock, locked, unlock,
};
use crate::file::mapping::Mapping;
use crate::file::restart;
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
use keyway_region::{Life, Process, Region};
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
    let id = file_id(&file).map_err(|e| io("stat", path, e))?;
    let on_disk = blocks::is_on_disk(&probe);
    let mapping = Mapping::of(&file, layout.len_max, durable, options, path)?;
    let (latch, gate) = Latch::of(options.gate);
    if let GateState::Unavailable(why) = &gate {
        gate::say_once(why);
    }
    mapping.protect(latch).map_err(|e| io("lay a protection key on", path, e))?;
    // Attaching is not a verb: all of it is inside the gate.
    let _inside = latch.open();
    let memory = mapping.memory();
    let mapped = memory.addresses();
    let name = matches!(place, Place::Path(_)).then(|| whole_path(path));
    let liveness =
        Liveness::new(id, Some(probe), name.as_deref(), options.sealed).map_err(|e| io("keep a descriptor of", path, e))?;
    let liveness = Arc::new(liveness);
    let attachment = Attachment {
        liveness: Arc::clone(&liveness),
        mapping,
    };
    let region = Region::open(memory, Box::new(attachment)).map_err(|why| unusable(path, why))?;
    blocks::fill(&file, &region.mapped().in_use()).map_err(|why| copies(path, why))?;
    let slots = layout.shape.process_slots_for(options.server);
    let Some((tenant, has_lock)) = free_slot(&region, slots, &file, &liveness) else {
        return Err(OpenError::ProcessesFull {
            path: path.to_path_buf(),
            slots,
        });
    };
    let leads_elsewhere = || {
        let found = std::fs::symlink_metadata(path).map(|meta| (meta.dev(), meta.ino()));
        name.is_some() && !found.is_ok_and(|found| found == id)
    };
    if locked(&file, WHOLE, 1) == Locked::Yes || leads_elsewhere() {
        return Ok(None);
    }
    let own_lock = offset(tenant.lock_offset);
    let lost = || OpenError::LockLost {
        path: path.to_path_buf(),
    };
    let witness = if has_lock {
        Witness::lock(&file)
    } else {
        Err(NoWitness::BlockedByReader)
    };
    let hold = match witness {
        Ok(witness) => {
            drop(file);
            match liveness.settle(own_lock, &witness) {
                Settled::By(hold) => hold,
                Settled::Overtaken => return Ok(None),
                Settled::Lost => return Err(lost()),
            }
        }
        Err(NoWitness::BlockedByReader) if liveness.can_go_without_lock() => Hold::Presence,
        Err(_) => return Err(lost()),
    };
    if options.durable_rehearsed {
        region.mapped().at_barrier(wait_100_ns);
    }
    let seen = region.clock().seen();
    let clock = Clock::here();
    let now = clock.now();
    let boot_id = proc::boot_id().unwrap_or_else(|| region.restarts().boot_in_use());
    if region.clock().is_clock_started(boot_id) {
        check_clock(&region, clock, now, path)?;
    }
    // "In use since this boot" must be on the medium before the first change can be there.
    if !region.restarts().begin_use(boot_id, now) {
        kernel::forget(&region);
        if on_disk && !region.mapped().host().write_back(0..superblock::SIZE) {
            return Err(io("write back", path, std::io::Error::last_os_error()));
        }
    }
    // A program that opens the region with a size of its own choice does not lift the limit that an operator has set.
    let wanted = options.memory.filter(|_| !options.keep_memory);
    if let Some(memory) = wanted.filter(|memory| options.server || layout.segments_for(*memory) > region.mapped().segments()) {
        grow(&region, memory).map_err(|why| OpenError::NotGrown {
            path: path.to_path_buf(),
            why,
        })?;
    }
    if options.server && options.memory.is_some() {
        rule(&region, options, on_disk, path)?;
    }
    region
        .mapped()
        .host()
        .prepare(&region.mapped().in_use(), options.huge_pages, options.prefault);
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
        if on_disk && !region.mapped().host().write_back(0..superblock::SIZE) {
            return Err(io("write back", path, std::io::Error::last_os_error()));
        }
    }
    Ok(())
}

/// A process slot for this process among the first `slots`: its last tenant is certainly gone. `true`: `file` has locked
/// the slot's byte. `false`: a process that may only read has a lock there.
fn free_slot(region: &Region, slots: usize, file: &File, liveness: &Liveness) -> Option<(Tenant, bool)> {
    (0..slots).find_map(|slot| {
        let tenant = region.mapped().tenant(slot);
        let at = offset(tenant.lock_offset);
        if liveness.without_lock(&tenant) != Life::Dead {
            return None;
        }
        if !lock(file, at) {
            let goes_without = is_blocked_by_reader(file, at) && liveness.can_go_without_lock();
            return goes_without.then_some((tenant, false));
        }
        // The lock is free, and the tenant is still the one that was checked.
        if region.mapped().tenant(slot) == tenant {
            Some((tenant, true))
        } else {
            unlock(file, at);
            None
        }
    })
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
