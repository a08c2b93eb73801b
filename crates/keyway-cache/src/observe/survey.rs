//! What a region's file says of the region, for commands that list regions: nothing is attached, locked or changed.
//!
//! Removing a region that is no longer used is here too, because it takes the lock under which a region is replaced.

use crate::clock::Clock;
use crate::error::OpenError;
use crate::error::io;
use crate::error::unusable;
use crate::file::creation::limit_bytes;
use crate::file::inspect::inspect;
use crate::file::inspect::map_to_read;
use crate::file::inspect::open_file;
use crate::file::liveness::Liveness;
use crate::file::liveness::{Locked, Whole, locked};
use crate::file::presence::Fate;
use crate::file::trust::{self, Source};
use crate::options::{Options, Owners};
use crate::process::descriptor::file_id;
use crate::remote::handout::{self, Handed};
use keyway_region::Ages;
use keyway_region::layout::latency::Latencies;
use keyway_region::layout::session::{Entrance, Tenant};
use keyway_region::layout::stats::Counters;
use keyway_region::{Life, Moment, Region, ThreadInUse, USES, Unusable};
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{Mode, fstatat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Most parts of [`Seen::segment_map`].
pub const MAP_PARTS_MAX: usize = 1024;

/// What is known of a region without attaching to it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Described {
    /// bytes of memory that it may use, everything included
    pub limit_bytes: u64,
    /// items in it
    pub items: u64,
    /// processes that are attached for writing, by their numbers in their own process namespace
    pub pids: Vec<u64>,
    /// when it was last used, Unix seconds; users note it about once a second
    pub last_used_unix_s: i64,
    /// when it was made, Unix seconds
    pub created_unix_s: i64,
    /// the version of the program that made it, as `0.2.0`
    pub version: String,
}

/// Describes the region in this file, which is open for reading; `path` is for messages.
///
/// # Errors
///
/// [`OpenError`]: the file belongs to another user, is no region, or is one of another layout.
pub fn describe(file: File, path: &Path, owners: &Owners) -> Result<Described, OpenError> {
    trust::check(&file, Source::Path, path, &Options::new().owners(owners.clone()))?;
    let found = inspect(&file, path)?;
    let (region, liveness, _) = map_to_read(file, path, &found, false)?;
    let tenants = (0..region.mapped().layout().shape.process_slots).map(|slot| region.mapped().tenant(slot));
    Ok(Described {
        limit_bytes: limit_bytes(&region),
        items: region.threads().counters().curr_items,
        pids: tenants
            .filter(|tenant| liveness.seems_there(tenant))
            .map(|tenant| tenant.pid)
            .collect(),
        last_used_unix_s: region.clock().seen().unix_s().into(),
        created_unix_s: i64::try_from(region.mapped().created_unix_s()).unwrap_or(0),
        version: region.mapped().made_by().program,
    })
}

/// The file of the region that the server at this region socket hands out.
///
/// # Errors
///
/// No server answers there, or it hands out no region to this process.
pub fn handed_out(path: &Path) -> Result<File, OpenError> {
    Ok(match handout::ask(path)? {
        Handed::ToWrite { files: [file, _], .. } => file,
        Handed::ToRead(file) => file,
    })
}

/// A region that is looked at again and again, without attaching to it: it is mapped for reading only.
pub struct Watched {
    region: Region,
    liveness: Arc<Liveness>,
    clock: Clock,
}

/// What is seen of a region at about one moment.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Seen {
    /// of all sessions of all doors, since the region was made
    pub counters: Counters,
    /// the same
    pub latencies: Latencies,
    /// of the pools
    pub ages: Ages,
    /// bytes of memory that it may use, everything included
    pub limit_bytes: u64,
    /// bytes of a segment
    pub segment_bytes: u64,
    /// segments by their use, in the order of [`USES`]
    pub segments: [u64; USES.len()],
    /// the use of most segments in each of at most [`MAP_PARTS_MAX`] equal parts of the region, as indexes into [`USES`]
    pub segment_map: Vec<u8>,
    /// segments of such a part
    pub segments_per_part: usize,
    /// the processes that are attached for writing
    pub processes: Vec<Attached>,
    /// when the region was made, Unix seconds
    pub created_unix_s: u64,
    /// thread slots
    pub sessions_max: u64,
    /// those of them that programs may take
    pub program_sessions_max: u64,
    /// how many of these are taken, by programs or by servers
    pub program_sessions: u64,
    /// by how many seconds Unix time was set since the region was made, forward or back (negative)
    pub unix_set_by_s: i64,
}

/// A process that is attached for writing.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Attached {
    /// its number in its own process namespace
    pub pid: u64,
    /// that is also its number here, so that its name can be asked for
    pub is_known_here: bool,
    /// what it is
    pub entrance: Entrance,
    /// when it attached, Unix seconds
    pub since_unix_s: u64,
    /// its threads that have a thread slot
    pub threads: Vec<ThreadInUse>,
}

impl Watched {
    /// Maps the region in this file, which is open for reading; `path` is for messages.
    ///
    /// # Errors
    ///
    /// [`OpenError`]: the file belongs to another user, is no region, or is one of another layout.
    pub fn open(file: File, path: &Path, owners: &Owners) -> Result<Self, OpenError> {
        trust::check(&file, Source::Path, path, &Options::new().owners(owners.clone()))?;
        Self::map(file, path)
    }

    /// Maps the region whose file a server has handed out ([`handed_out`]).
    ///
    /// # Errors
    ///
    /// It is no region, or one of another layout.
    pub fn open_handed_out(file: File, path: &Path) -> Result<Self, OpenError> {
        trust::check(&file, Source::Server, path, &Options::new())?;
        Self::map(file, path)
    }

    fn map(file: File, path: &Path) -> Result<Self, OpenError> {
        let found = inspect(&file, path)?;
        let (region, liveness, _) = map_to_read(file, path, &found, false)?;
        Ok(Self {
            region,
            liveness,
            clock: Clock::here(),
        })
    }

    /// The region's device and inode.
    pub fn identity(&self) -> (u64, u64) {
        self.liveness.id()
    }

    pub(crate) fn region(&self) -> &Region {
        &self.region
    }

    /// The region's time.
    pub(crate) fn tick(&self) -> u32 {
        self.region.clock().tick(self.clock.now())
    }

    /// Looks at it.
    pub fn look(&self) -> Seen {
        see(&self.region, &self.liveness, self.clock.now(), |_, tenant| {
            self.liveness.seems_there(tenant)
        })
    }
}

/// What is seen of a region: `is_there` says which processes live.
pub(crate) fn see(region: &Region, liveness: &Liveness, now: Moment, is_there: impl Fn(usize, &Tenant) -> bool) -> Seen {
    region.mapped().learn();
    let shape = region.mapped().layout().shape;
    let mut processes: Vec<(usize, Attached)> = (0..shape.process_slots)
        .map(|slot| (slot, region.mapped().tenant(slot)))
        .filter(|(slot, tenant)| is_there(*slot, tenant))
        .map(|(slot, tenant)| {
            let (entrance, since_unix_s) = region.overview().entrance(slot);
            let attached = Attached {
                pid: tenant.pid,
                is_known_here: liveness.own().fate_of(tenant.pid, tenant.identity) == Fate::There,
                entrance,
                since_unix_s,
                threads: Vec::new(),
            };
            (slot, attached)
        })
        .collect();
    let program_sessions_max = shape.thread_slots_for(false);
    let mut program_sessions = 0;
    for seated in region.overview().seated() {
        program_sessions += u64::from(seated.tenancy.0 < program_sessions_max);
        if let Some((_, attached)) = processes.iter_mut().find(|(slot, _)| *slot == seated.process) {
            attached.threads.push(seated);
        }
    }
    let (segment_map, segments_per_part) = region.overview().segment_map(MAP_PARTS_MAX);
    Seen {
        counters: region.threads().counters(),
        latencies: region.latencies().sum(),
        ages: region.victims().ages(region.clock().tick(now)),
        limit_bytes: limit_bytes(region),
        segment_bytes: shape.segment_size as u64,
        segments: region.overview().segments_by_use(),
        segment_map,
        segments_per_part,
        processes: processes.into_iter().map(|(_, attached)| attached).collect(),
        created_unix_s: region.mapped().created_unix_s(),
        sessions_max: shape.thread_slots as u64,
        program_sessions_max: program_sessions_max as u64,
        program_sessions,
        unix_set_by_s: region.clock().unix_set_by_s(now),
    }
}

/// What became of a region that was to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// it is removed
    Removed,
    /// another file is there now
    Replaced,
    /// a process uses it, or may use it: that cannot be known here
    InUse,
}

/// Removes the file at `path` if it is still this region (device and inode), and certainly no process uses it.
///
/// # Errors
///
/// The file cannot be opened, read or removed, or is no region.
pub fn remove_unused(path: &Path, id: (u64, u64), owners: &Owners) -> Result<Removal, OpenError> {
    let failed = |e: nix::errno::Errno| io("remove", path, e.into());
    // The folder is named once. Where other users can rename folders, the path may lead to another one in the next moment.
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let Some(name) = path.file_name() else {
        return Err(OpenError::NotAFile { path: path.to_owned() });
    };
    let folder =
        nix::fcntl::open(folder, OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty()).map_err(failed)?;
    let file = open_file(path, &Options::new().owners(owners.clone()))?;
    // A process that attaches locks its slot first, and then looks whether this lock is held, and whether its path still leads to
    // the file.
    let Some(_whole) = Whole::take(&file) else {
        return Ok(Removal::InUse);
    };
    let there = fstatat(&folder, name, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(failed)?;
    if file_id(&file).ok() != Some(id) || (there.st_dev, there.st_ino) != id {
        return Ok(Removal::Replaced);
    }
    // An empty file may be any program's.
    if file.metadata().map_err(|e| io("stat", path, e))?.len() == 0 {
        return Err(unusable(path, Unusable::NotARegion));
    }
    if locked(&file, 0, 0) != Locked::No || may_have_tenants(&file, path, owners)? {
        return Ok(Removal::InUse);
    }
    unlinkat(&folder, name, UnlinkatFlags::NoRemoveDir).map_err(failed)?;
    Ok(Removal::Removed)
}

/// Whether a process may be attached to a region in which nothing is locked: its lock was lost, or could not be seen here, or it has
/// none because a reader had all bytes.
fn may_have_tenants(file: &File, path: &Path, owners: &Owners) -> Result<bool, OpenError> {
    let same = file.try_clone().map_err(|e| io("open again", path, e))?;
    trust::check(&same, Source::Path, path, &Options::new().owners(owners.clone()))?;
    let found = match inspect(&same, path) {
        Ok(found) => found,
        Err(
            why @ OpenError::Unusable {
                why: Unusable::NotARegion | Unusable::Truncated { .. },
                ..
            },
        ) => return Err(why),
        // What another version made can only be judged by its locks, and so can one that is damaged, or not finished.
        Err(OpenError::Unusable { .. }) => return Ok(false),
        Err(why) => return Err(why),
    };
    let (region, liveness, _) = map_to_read(same, path, &found, false)?;
    let tenants = (0..region.mapped().layout().shape.process_slots).map(|slot| region.mapped().tenant(slot));
    Ok(tenants.into_iter().any(|tenant| liveness.without_lock(&tenant) != Life::Dead))
}
