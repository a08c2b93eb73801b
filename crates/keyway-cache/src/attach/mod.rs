//! Attaching to a region: its file is opened, checked, locked and mapped.
//!
//! The file is opened and mapped (forks do not inherit the mapping). The byte of a free process slot is locked, and the
//! file is closed. From then on the mapping alone holds the file description, and with it the lock ([`crate::file::liveness`]).
//! A second file description without locks is kept to query the locks of other processes. Descriptors identify the file,
//! never names: both have the same inode, and the name still leads to it when the lock is held.
//!
//! **The whole file.** A process that makes, replaces or repairs a region locks the byte `WHOLE`. It goes on only if it
//! then sees no process slot locked; otherwise it leaves the file alone. An attacher locks its process slot. It goes on
//! only if it then sees `WHOLE` unlocked; otherwise it unlocks its slot and starts again. The kernel orders the locks, so
//! at least one of the two processes sees the other. A process that marks a region as cleanly stopped does so in two
//! steps. Between them it checks that no process slot is locked. An attacher undoes the first step.
//!
//! This file finds or makes the region at a place, and ends its use; `file` reads what a file says, `write` takes a process
//! slot, `read` maps a region for reading only. Never: hands out sessions (`sessions`).

pub(crate) mod opened;
mod read;
mod write;

use self::read::attach_to_read;
use self::write::attach;
use crate::attach::opened::Opened;
use crate::error::OpenError;
use crate::error::io;
use crate::file::backing;
use crate::file::creation::{self, create_in};
use crate::file::inspect::{described_twice, open_file};
use crate::file::liveness::{open_harmless, open_writable};
use crate::file::restart::{self, Restart};
use crate::file::trust::{self, Source};
use crate::file::unfinished::remove_leftovers;
use crate::options::Options;
use crate::options::check_item_size;
use crate::place::{Place, at_default_places};
use crate::process::descriptor::{StreamsTaken, file_id};
use crate::process::{fork, wait};
use crate::remote::handout;
use crate::remote::handout::Handed;
use crate::remote::peer::Peer;
use crate::session::kernel::{self};
use crate::session::roster::Role;
use keyway_region::layout::session::Tenant;
use keyway_region::layout::superblock;
use keyway_region::{Life, Limits, Unusable};
use nix::sys::memfd::{MFdFlags, memfd_create};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// What a process does that needs the whole file to itself for a long time.
const AT_IT: &str = "is replacing or repairing the region, or marking it as cleanly stopped,";

/// Attaches to a region, or creates it.
pub(crate) fn open(place: &Place, options: &Options) -> Result<Opened, OpenError> {
    fork::watch().map_err(|e| io("mmap", Path::new("a page for telling forks"), e))?;
    // In a program that was started without standard streams, a file that is opened here must not become one.
    let _streams = StreamsTaken::new();
    options.check_limits()?;
    match place {
        Place::Memfd => open_memfd(options),
        Place::Socket(path) => open_handed_out(place, path, options),
        Place::Path(path) => open_path(place, path, options),
    }
}

/// Makes a region in anonymous memory of this process, and attaches to it.
fn open_memfd(options: &Options) -> Result<Opened, OpenError> {
    check_item_size(options.limits(Limits::default()).item_size_max, options.memory_of_new())?;
    let name = PathBuf::from("memfd:keyway");
    let fd = memfd_create(c"keyway", MFdFlags::MFD_CLOEXEC).map_err(|e| io("memfd_create", &name, e.into()))?;
    let (file, probe) = described_twice(File::from(fd), None).map_err(|_| OpenError::NoProc {
        path: name.clone(),
        needs: "anonymous memory has no other name than /proc/self/fd, which cannot be opened",
    })?;
    // Created with its mode. Otherwise a process that was given a descriptor for reading could open that again,
    // and write.
    create_in(&file, &name, options)?;
    let opened = attach(&Place::Memfd, &name, (file, probe), options, false)?;
    // No other process has it yet.
    opened.ok_or(OpenError::Busy {
        path: name,
        doing: AT_IT,
    })
}

/// Attaches to the region that the server at this socket hands out.
fn open_handed_out(place: &Place, path: &Path, options: &Options) -> Result<Opened, OpenError> {
    let ([file, probe], doorway) = match handout::ask(path)? {
        Handed::ToWrite { files, doorway } => (files, doorway),
        Handed::ToRead(file) => {
            let peer = Peer::new(Some(path), &file).map_err(|e| io("ask the server of", path, e))?;
            return attach_to_read(place, path, file, peer, options);
        }
    };
    let are_same = file_id(&file).is_ok_and(|id| file_id(&probe).is_ok_and(|other| other == id));
    if !are_same {
        return Err(OpenError::NotAFile {
            path: path.to_path_buf(),
        });
    }
    trust::check(&file, Source::Server, path, options)?;
    let options = options.clone().memory(None);
    let probe = open_harmless(
        file_id(&probe).map_err(|e| io("stat", path, e))?,
        Some(probe.as_raw_fd()),
        None,
    )
    .unwrap_or(probe);
    // The server is attached, so no process replaces or repairs the file.
    let inner = match attach(place, path, (file, probe), &options, true) {
        Err(why) => return without_slot(place, path, &options, why),
        Ok(found) => found.ok_or_else(|| OpenError::Busy {
            path: path.to_path_buf(),
            doing: AT_IT,
        })?,
    };
    if let Some((word, map)) = doorway {
        kernel::take_in(&inner.sessions, word, map).map_err(|e| io("map the stripes of", path, e))?;
    }
    Ok(inner)
}

/// Attaches to the region in the file at this path, which is made if it is absent. While another process replaces or repairs it, or attaches
/// at the same moment, this is tried again.
fn open_path(place: &Place, path: &Path, options: &Options) -> Result<Opened, OpenError> {
    remove_leftovers(path);
    let mut deadline = restart::Deadline::new(Instant::now());
    let (mut warm, mut discarded) = (true, false);
    let mut says_repairing = true;
    loop {
        let found =
            open_file(path, options).and_then(|file| Ok((restart::before_use(&file, path, options, &mut deadline)?, file)));
        let used = found.and_then(|(found, file)| match found {
            Restart::Use => match described_twice(file, Some(path)) {
                Ok(files) => attach(place, path, files, options, warm),
                Err(_) => Ok(None),
            },
            Restart::Again { cold } => {
                (warm, discarded) = (warm && !cold, discarded || cold);
                Ok(None)
            }
            Restart::Busy { repairs: false } => {
                (warm, discarded) = (false, true);
                Ok(None)
            }
            Restart::Busy { repairs: true } => {
                if std::mem::take(&mut says_repairing) {
                    log::warn!("{}: another process repairs the region; waiting for it", path.display());
                }
                Ok(None)
            }
        });
        match used {
            Ok(Some(opened)) => return Ok(Opened { discarded, ..opened }),
            Ok(None) => wait::sleep(restart::PATIENCE),
            Err(OpenError::Absent { .. }) if place.names_a_server() => {
                return Err(OpenError::Address {
                    path: path.to_path_buf(),
                });
            }
            Err(why @ OpenError::ProcessesFull { .. }) => return without_slot(place, path, options, why),
            Err(OpenError::Absent { .. }) if options.memory.is_none() => return Err(absent(path)),
            Err(
                OpenError::Absent { .. }
                | OpenError::Unusable {
                    why: Unusable::Unfinished,
                    ..
                },
            ) => {
                warm = !make(path, options)? && warm;
                deadline = restart::Deadline::new(Instant::now());
            }
            Err(e) => return Err(e),
        }
        if deadline.has_passed(Instant::now()) {
            return Err(OpenError::Busy {
                path: path.to_path_buf(),
                doing: AT_IT,
            });
        }
    }
}

/// Makes a region at a path. Returns whether this process has made it, and no other.
fn make(path: &Path, options: &Options) -> Result<bool, OpenError> {
    check_item_size(options.limits(Limits::default()).item_size_max, options.memory_of_new())?;
    creation::make(path, options).map_err(|why| match why {
        // What a dead maker left is gone.
        OpenError::Absent { .. } => absent(path),
        why => why,
    })
}

/// No region is at this path, and none is made.
fn absent(path: &Path) -> OpenError {
    OpenError::Absent {
        path: path.to_path_buf(),
        there: at_default_places(),
    }
}

/// Attaches to anonymous memory that an earlier process has left in the keeping of another one, by its descriptor.
///
/// The region is attached by a file description of its own: a lock of the given one would be held as long as the keeper lives.
pub(crate) fn open_kept(given: &File, options: &Options) -> Result<Opened, OpenError> {
    fork::watch().map_err(|e| io("mmap", Path::new("a page for telling forks"), e))?;
    let _streams = StreamsTaken::new();
    options.check_limits()?;
    let name = PathBuf::from("memfd:keyway");
    trust::check(given, Source::Path, &name, options)?;
    let meta = given.metadata().map_err(|e| io("stat", &name, e))?;
    if meta.nlink() > 0 || backing::is_on_disk(given) {
        return Err(OpenError::NotAnonymous { path: name });
    }
    let id = file_id(given).map_err(|e| io("stat", &name, e))?;
    let file = open_writable(id, given).map_err(|e| io("open /proc/self/fd for", &name, e))?;
    let files = described_twice(file, None).map_err(|e| io("open /proc/self/fd for", &name, e))?;
    let opened = attach(&Place::Memfd, &name, files, options, true)?;
    opened.ok_or(OpenError::Busy {
        path: name,
        doing: AT_IT,
    })
}

/// Marks the region as cleanly stopped if no other process is opened.
pub(crate) fn close(opened: &Opened) -> bool {
    let Role::Writer(process) = *opened.sessions.role() else {
        return false;
    };
    let _inside = opened.sessions.latch().open();
    let region = opened.sessions.region_inside();
    // A process that attaches from now on undoes this, at the latest when it begins to use the region.
    region.restarts().begin_clean_stop();
    let layout = region.mapped().layout();
    let others = (0..layout.shape.process_slots).filter(|slot| *slot != process.slot);
    let others: Vec<Tenant> = others.map(|slot| region.mapped().tenant(slot)).collect();
    let mut is_last =
        others.iter().all(|tenant| region.mapped().host().life(tenant) == Life::Dead) && region.threads().sessions() == 0;
    if is_last {
        // The next boot cannot know that they are dead.
        others.iter().for_each(|tenant| region.recovery().dismiss(tenant));
        region.recovery().detach(process);
        region.clock().note_use(opened.sessions.now());
        let mut parts = layout.backed(region.mapped().segments()).into_iter();
        is_last = !opened.on_disk || parts.all(|range| region.mapped().host().write_back(range));
    }
    region.restarts().end_clean_stop(is_last) && (!opened.on_disk || region.mapped().host().write_back(0..superblock::SIZE))
}

/// A process could not attach. If the reason is that there is no free process slot, and a server would execute its
/// writes, it gets the region for reading. Otherwise it fails with that reason.
fn without_slot(place: &Place, path: &Path, options: &Options, why: OpenError) -> Result<Opened, OpenError> {
    if options.server || !matches!(why, OpenError::ProcessesFull { .. }) {
        return Err(why);
    }
    let read = || {
        let file = match place {
            Place::Socket(path) => match handout::ask(path)? {
                Handed::ToWrite { files: [file, _], .. } => file,
                Handed::ToRead(file) => file,
            },
            Place::Path(_) | Place::Memfd => open_file(path, options)?,
        };
        // Without /proc the same descriptor must be used. The mapping is for reading in both cases.
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        let file = File::open(own).unwrap_or(file);
        let peer = Peer::new(place.socket(), &file).map_err(|e| io("ask the server of", path, e))?;
        attach_to_read(place, path, file, peer, options)
    };
    // That the region is full is the more important error, not why there is no server.
    read().map_err(|_: OpenError| why)
}
