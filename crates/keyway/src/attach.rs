//! Attaching to a region: its file is opened, checked, locked and mapped.
//!
//! The file is opened and mapped (forks do not inherit the mapping). The byte of a free process slot is locked, and the
//! file is closed. From then on the mapping alone holds the file description, and with it the lock ([`crate::liveness`]).
//! A second file description without locks is kept to query the locks of other processes. Descriptors identify the file,
//! never names: both have the same inode, and the name still leads to it when the lock is held.
//!
//! **The whole file.** A process that makes, replaces or repairs a region locks the byte [`WHOLE`]. It goes on only if it
//! then sees no process slot locked; otherwise it leaves the file alone. An attacher locks its process slot. It goes on
//! only if it then sees `WHOLE` unlocked; otherwise it unlocks its slot and starts again. The kernel orders the locks, so
//! at least one of the two processes sees the other. A process that marks a region as cleanly stopped does so in two
//! steps. Between them it checks that no process slot is locked. An attacher undoes the first step.

use crate::clock::{self, Clock};
use crate::creation::{self, check_item_size, create_in, raise};
use crate::descriptor::{StreamsTaken, file_id};
use crate::error::OpenError;
use crate::fork;
use crate::gate::{self, Gate, GateState, Latch};
use crate::handout::Handed;
use crate::liveness::{
    Attachment, Liveness, Locked, NoWitness, Settled, WHOLE, Witness, is_blocked_by_reader, lock, locked, offset, open_harmless,
    unlock,
};
use crate::mapping::{self, Mapping};
use crate::peer::Peer;
use crate::restart::{self, Restart};
use crate::sessions::{Role, Sessions};
use crate::trust::{self, Source};
use crate::{Inner, Options, Place, copy, handout, kernel};
use keyway_region::layout::plan::Layout;
use keyway_region::layout::session::{Hold, Tenant};
use keyway_region::layout::superblock;
use keyway_region::{Life, Limits, Moment, Process, Region, Unusable};
use nix::fcntl::OFlag;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::statfs::{HUGETLBFS_MAGIC, TMPFS_MAGIC, fstatfs};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// How long to wait for another process that is replacing a region.
const BUSY_MAX: Duration = Duration::from_secs(5);

/// What a process does that needs the whole file to itself for a long time.
const AT_IT: &str = "is replacing or repairing the region, or marking it as cleanly stopped,";

/// Attaches to a region, or creates it.
pub(crate) fn open(place: &Place, options: &Options) -> Result<Inner, OpenError> {
    fork::watch().map_err(|e| io("mmap", Path::new("a page for telling forks"), e))?;
    // In a program that was started without standard streams, a file that is opened here must not become one.
    let _streams = StreamsTaken::new();
    options.check_limits()?;
    match place {
        Place::Memfd => {
            check_item_size(options.item_size_max, options.memory)?;
            let name = PathBuf::from("memfd:keyway");
            let fd = memfd_create(c"keyway", MFdFlags::MFD_CLOEXEC).map_err(|e| io("memfd_create", &name, e.into()))?;
            let file = File::from(fd);
            // Created with its mode. Otherwise a process that was given a descriptor for reading could open that again,
            // and write.
            create_in(&file, &name, options)?;
            let files = described_twice(file, None).map_err(|e| io("open /proc/self/fd for", &name, e))?;
            let attached = attach(place, &name, files, options, false)?;
            // No other process has it yet.
            attached.ok_or(OpenError::Busy {
                path: name,
                doing: AT_IT,
            })
        }
        Place::Socket(path) => {
            let ([file, probe], doorway) = match handout::ask(path)? {
                Handed::ToWrite { files, doorway } => (files, doorway),
                Handed::ToRead(file, line) => {
                    let peer = Peer::new(&whole_path(path), &file, line).map_err(|e| io("stat", path, e))?;
                    return attach_to_read(place, path, file, peer, options);
                }
            };
            let same = file_id(&file)
                .ok()
                .filter(|id| file_id(&probe).is_ok_and(|other| other == *id));
            if same.is_none() {
                return Err(OpenError::NotAFile { path: path.clone() });
            }
            trust::check(&file, Source::Server, path, options)?;
            let options = options.clone().existing_only(true);
            let probe = open_harmless(
                file_id(&probe).map_err(|e| io("stat", path, e))?,
                Some(probe.as_raw_fd()),
                None,
            )
            .unwrap_or(probe);
            // The server is attached, so no process replaces or repairs the file.
            let inner = match attach(place, path, (file, probe), &options, true) {
                Err(why) => return without_slot(place, path, &options, why),
                Ok(attached) => attached.ok_or_else(|| OpenError::Busy {
                    path: path.clone(),
                    doing: AT_IT,
                })?,
            };
            if let Some((word, map)) = doorway {
                kernel::take_in(&inner.sessions, word, map).map_err(|e| io("map the stripes of", path, e))?;
            }
            Ok(inner)
        }
        Place::Path(path) => {
            copy::remove_leftovers(path);
            let mut deadline = Instant::now() + BUSY_MAX;
            let (mut warm, mut discarded) = (true, false);
            loop {
                let found = open_file(path, options)
                    .and_then(|file| restart::before_use(&file, path, options).map(|found| (found, file)));
                let used = found.and_then(|(found, file)| match found {
                    Restart::Use => match described_twice(file, Some(path)) {
                        Ok(files) => attach(place, path, files, options, warm),
                        Err(_) => Ok(None),
                    },
                    Restart::Again { cold } => {
                        (warm, discarded) = (warm && !cold, discarded || cold);
                        Ok(None)
                    }
                });
                match used {
                    Ok(Some(inner)) => return Ok(Inner { discarded, ..inner }),
                    Ok(None) => std::thread::sleep(restart::PATIENCE),
                    Err(OpenError::Absent { .. }) if place.names_a_server() => {
                        return Err(OpenError::Address { path: path.clone() });
                    }
                    Err(why @ OpenError::ProcessesFull { .. }) => return without_slot(place, path, options, why),
                    Err(OpenError::Absent { .. }) if options.existing_only => {
                        return Err(OpenError::Absent { path: path.clone() });
                    }
                    Err(
                        OpenError::Absent { .. }
                        | OpenError::Unusable {
                            why: Unusable::Unfinished,
                            ..
                        },
                    ) => {
                        check_item_size(options.item_size_max, options.memory)?;
                        if creation::make(path, options)? {
                            warm = false;
                        }
                        deadline = Instant::now() + BUSY_MAX;
                    }
                    Err(e) => return Err(e),
                }
                if Instant::now() > deadline && !restart::is_being_repaired(path) {
                    return Err(OpenError::Busy {
                        path: path.clone(),
                        doing: AT_IT,
                    });
                }
            }
        }
    }
}

/// Marks the region as cleanly stopped if no other process is attached.
pub(crate) fn close(inner: &Inner) -> bool {
    let Role::Writer(process) = inner.sessions.role else {
        return false;
    };
    let _inside = inner.sessions.latch.open();
    let region = &inner.sessions.region;
    // A process that attaches from now on undoes this, at the latest when it begins to use the region.
    region.begin_clean_stop();
    let layout = region.layout();
    let is_other = |slot| slot != process.slot && region.life(slot) != Life::Dead;
    let mut is_last = !(0..layout.shape.process_slots).any(is_other) && region.sessions() == 0;
    if is_last {
        region.note_use(inner.sessions.clock.now());
        let mut parts = layout.backed(region.segments()).into_iter();
        is_last = !inner.durable || parts.all(|range| region.host().write_back(range));
    }
    region.end_clean_stop(is_last) && (!inner.durable || region.host().write_back(0..superblock::SIZE))
}

/// The file with a second file description of it, which can neither read nor write.
fn described_twice(file: File, path: Option<&Path>) -> std::io::Result<(File, File)> {
    let probe = open_harmless(file_id(&file)?, Some(file.as_raw_fd()), path)?;
    Ok((file, probe))
}

pub(crate) fn io(what: &'static str, path: &Path, source: std::io::Error) -> OpenError {
    OpenError::Io {
        what,
        path: path.to_path_buf(),
        source,
    }
}

/// Opens a region's file for reading and writing, with a file description of its own.
pub(crate) fn open_file(path: &Path, options: &Options) -> Result<File, OpenError> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let opened = File::options().read(true).write(true).custom_flags(flags.bits()).open(path);
    let file = match opened {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            return Err(OpenError::Absent {
                path: path.to_path_buf(),
            });
        }
        Err(e) if e.kind() == std::io::ErrorKind::IsADirectory => {
            return Err(OpenError::NotAFile {
                path: path.to_path_buf(),
            });
        }
        Err(e) if e.kind() == std::io::ErrorKind::PermissionDenied && is_hardened() => {
            return Err(OpenError::KeptOut {
                path: path.to_path_buf(),
            });
        }
        Err(e) => return Err(io("open", path, e)),
    };
    trust::check(&file, Source::Path, path, options)?;
    Ok(file)
}

/// Whether this process is hardened as `keyway exec` does it: other processes cannot inspect it, and it cannot gain
/// rights.
fn is_hardened() -> bool {
    use nix::sys::prctl::{get_dumpable, get_no_new_privs};
    matches!((get_dumpable(), get_no_new_privs()), (Ok(false), Ok(true)))
}

/// Attaches to the region in a file that has two file descriptions. `None`: another process is working on the whole file,
/// or the name leads to another file now, so the caller starts again.
fn attach(
    place: &Place,
    path: &Path,
    (file, probe): (File, File),
    options: &Options,
    warm: bool,
) -> Result<Option<Inner>, OpenError> {
    let found = inspect(&file, path)?;
    found.check(options, path)?;
    let Inspected { layout, strict, .. } = found;
    let id = file_id(&file).map_err(|e| io("stat", path, e))?;
    let durable = is_durable(&probe);
    let mapping = Mapping::of(&file, layout.len_max, strict, options, path)?;
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
    let mut region = Region::open(memory, Box::new(attachment)).map_err(|why| unusable(path, why))?;
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
    if options.strict_rehearsed {
        region.at_barrier(wait_100_ns);
    }
    let seen = region.seen();
    let clock = Clock::here();
    let now = clock.now();
    let boot_id = boot_id().unwrap_or_else(|| region.boot_in_use());
    if region.is_clock_started(boot_id) {
        check_clock(&region, clock, now, path)?;
    }
    // "In use since this boot" must be on the medium before the first change can be there.
    if !region.begin_use(boot_id, now) {
        kernel::forget(&region);
        if durable && !region.host().write_back(0..superblock::SIZE) {
            return Err(io("write back", path, std::io::Error::last_os_error()));
        }
    }
    // A program that opens the region with a size of its own choice does not lift the limit that an operator has set.
    let is_larger = layout.segments_for(options.memory) > region.segments();
    if !options.existing_only && (options.server || is_larger) {
        raise(&region, options.memory).map_err(|why| OpenError::NotGrown {
            path: path.to_path_buf(),
            why,
        })?;
    }
    check_item_size(options.item_size_max, layout.backed_len(region.segments()))?;
    region.host().prepare(&region.in_use(), options.huge_pages, options.prefault);
    let Some(process) = move_in(&region, &liveness, &tenant, hold) else {
        return Ok(None);
    };
    restart::after_gap(&region, process.slot, seen, now, options);
    region.recover();
    liveness.seal();
    let limits = Limits {
        item_size_max: options.item_size_max,
        evict: options.evict,
    };
    Ok(Some(Inner {
        sessions: Arc::new(Sessions::new(
            Arc::new(region),
            Arc::clone(&liveness),
            Role::Writer(process),
            (limits, layout.shape.thread_slots_for(options.server), options.server),
            latch,
            clock,
            whole(place),
        )),
        doorway: kernel::Doorway::default(),
        mapped,
        warm,
        discarded: false,
        attached_in: Duration::ZERO,
        durable,
        place: whole(place),
        options: options.clone(),
        gate,
        again: OnceLock::new(),
    }))
}

/// A process slot for this process among the first `slots`: its last tenant is certainly gone. `true`: `file` has locked
/// the slot's byte. `false`: a process that may only read has a lock there.
fn free_slot(region: &Region, slots: usize, file: &File, liveness: &Liveness) -> Option<(Tenant, bool)> {
    (0..slots).find_map(|slot| {
        let tenant = region.tenant(slot);
        let at = offset(tenant.lock_offset);
        if liveness.without_lock(&tenant) != Life::Dead {
            return None;
        }
        if !lock(file, at) {
            let goes_without = is_blocked_by_reader(file, at) && liveness.can_go_without_lock();
            return goes_without.then_some((tenant, false));
        }
        // The lock is free, and the tenant is still the one that was checked.
        if region.tenant(slot) == tenant {
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
    let process = region.take_over(tenant, std::process::id(), clock::unix_s())?;
    region.identify(process, hold, own.identity).then_some(process)
}

/// A process could not attach. If the reason is that there is no free process slot, and a server would execute its
/// writes, it gets the region for reading. Otherwise it fails with that reason.
fn without_slot(place: &Place, path: &Path, options: &Options, why: OpenError) -> Result<Inner, OpenError> {
    if options.server || !matches!(why, OpenError::ProcessesFull { .. }) {
        return Err(why);
    }
    let read = || {
        let file = match place {
            Place::Socket(path) => match handout::ask(path)? {
                Handed::ToWrite { files: [file, _], .. } => file,
                Handed::ToRead(file, _) => file,
            },
            Place::Path(_) | Place::Memfd => open_file(path, options)?,
        };
        // Without /proc the same descriptor must be used. The mapping is for reading in both cases.
        let own = format!("/proc/self/fd/{}", file.as_raw_fd());
        let file = File::open(own).unwrap_or(file);
        let peer = Peer::of_region(socket_of(place), &file).map_err(|e| io("ask the server of", path, e))?;
        attach_to_read(place, path, file, peer, options)
    };
    // That the region is full is the more important error, not why there is no server.
    read().map_err(|_: OpenError| why)
}

/// The socket at which the server of the place's region is asked for connections, if it is known.
pub(crate) fn socket_of(place: &Place) -> Option<&Path> {
    match place {
        Place::Socket(path) => Some(path),
        Place::Path(_) | Place::Memfd => None,
    }
}

/// Attaches to a region that may only be read: there is no lock, no process slot and no session, so no other process
/// needs to know of it.
fn attach_to_read(place: &Place, path: &Path, file: File, peer: Peer, options: &Options) -> Result<Inner, OpenError> {
    let source = match place {
        Place::Socket(_) => Source::Server,
        Place::Path(_) | Place::Memfd => Source::Path,
    };
    trust::check(&file, source, path, options)?;
    let found = inspect(&file, path)?;
    found.check(options, path)?;
    if found.strict {
        let source = std::io::Error::other(
            "a region in durable mode cannot be used for reading only: its readers must write back what they rely on",
        );
        return Err(io("map", path, source));
    }
    let len = found.layout.len_max;
    let mapping = Mapping::to_read(&file, len).map_err(|e| mapping::refused(e, len, path))?;
    let memory = mapping.memory();
    let mapped = memory.addresses();
    let id = file_id(&file).map_err(|e| io("stat", path, e))?;
    let probe = open_harmless(id, Some(file.as_raw_fd()), None).unwrap_or(file);
    let liveness = Liveness::new(id, Some(probe), None, options.sealed).map_err(|e| io("keep a descriptor of", path, e))?;
    liveness.seal();
    let liveness = Arc::new(liveness);
    let attachment = Attachment {
        liveness: Arc::clone(&liveness),
        mapping,
    };
    let region = Region::open(memory, Box::new(attachment)).map_err(|why| unusable(path, why))?;
    let clock = Clock::here();
    check_clock(&region, clock, clock.now(), path)?;
    let limits = Limits {
        item_size_max: options.item_size_max,
        evict: options.evict,
    };
    let place = whole(place);
    Ok(Inner {
        sessions: Arc::new(Sessions::new(
            Arc::new(region),
            Arc::clone(&liveness),
            Role::Reader(Arc::new(peer)),
            (limits, 0, options.server),
            Latch::NONE,
            clock,
            place.clone(),
        )),
        doorway: kernel::Doorway::default(),
        mapped,
        warm: true,
        discarded: false,
        attached_in: Duration::ZERO,
        durable: false,
        place,
        options: options.clone(),
        gate: match options.gate {
            Gate::Off => GateState::Off,
            _ => GateState::Unavailable("this process may only read, and the kernel enforces it".to_owned()),
        },
        again: OnceLock::new(),
    })
}

/// If the time namespace of this process cannot be known, the process is taken to be in the initial one, provided that
/// its clock agrees with the region's.
fn check_clock(region: &Region, clock: Clock, now: Moment, path: &Path) -> Result<(), OpenError> {
    const ERROR_MAX_S: u64 = 2;
    let error_s = region.clock_error_s(now);
    if clock.is_known() || error_s <= ERROR_MAX_S {
        Ok(())
    } else {
        Err(OpenError::ClockUnknown {
            path: path.to_path_buf(),
            error_s,
        })
    }
}

/// The place by a name that stays correct when this process changes its directory.
pub(crate) fn whole(place: &Place) -> Place {
    match place {
        Place::Memfd => Place::Memfd,
        Place::Path(path) => Place::Path(whole_path(path)),
        Place::Socket(path) => Place::Socket(whole_path(path)),
    }
}

fn whole_path(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

/// The delay that pmemcached's authors gave each persist barrier (HotStorage 2017).
fn wait_100_ns() {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_nanos(100) {
        std::hint::spin_loop();
    }
}

/// How a file was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Write,
    Read,
}

/// What a file says about the region in it.
pub(crate) struct Inspected {
    pub layout: Layout,
    pub strict: bool,
    pub checksums: bool,
}

impl Inspected {
    /// Checks that the region has what was requested: a region lacks what it was not made with.
    fn check(&self, options: &Options, path: &Path) -> Result<(), OpenError> {
        let path = path.to_path_buf();
        if options.strict && !self.strict {
            Err(OpenError::NotStrict { path })
        } else if options.checksums && !self.checksums {
            Err(OpenError::NotChecksummed { path })
        } else {
            Ok(())
        }
    }
}

/// What the file says about the region in it.
pub(crate) fn inspect(file: &File, path: &Path) -> Result<Inspected, OpenError> {
    let len = || file.metadata().map(|meta| usize::try_from(meta.len()).unwrap_or(usize::MAX));
    if creation::is_unfinished(file).map_err(|e| io("read", path, e))? {
        return Err(unusable(path, Unusable::Unfinished));
    }
    let now = len().map_err(|e| io("stat", path, e))?;
    if now < superblock::SIZE {
        return Err(unusable(
            path,
            Unusable::Truncated {
                len: now,
                wanted: superblock::SIZE,
            },
        ));
    }
    // From a copy: a dead maker may have left the file, and another process may be emptying it.
    let mapping = Mapping::copied(file, superblock::SIZE).map_err(|e| io("read", path, e))?;
    let memory = mapping.memory();
    let (layout, _) = Region::inspect(&memory, || len().unwrap_or(0)).map_err(|why| unusable(path, why))?;
    let sb: &superblock::Superblock = memory.get(0);
    let features = sb.incompatible.load(Relaxed);
    Ok(Inspected {
        layout,
        strict: features & superblock::STRICT != 0,
        checksums: features & superblock::CHECKSUMS != 0,
    })
}

pub(crate) fn unusable(path: &Path, why: Unusable) -> OpenError {
    OpenError::Unusable {
        path: path.to_path_buf(),
        why,
    }
}

/// Whether the file survives the next boot.
pub(crate) fn is_durable(file: &File) -> bool {
    fstatfs(file).is_ok_and(|fs| fs.filesystem_type() != TMPFS_MAGIC && fs.filesystem_type() != HUGETLBFS_MAGIC)
}

/// The identity of this boot (`random(4)`, "boot_id"). `None`: /proc is hidden, or is another file system.
pub(crate) fn boot_id() -> Option<[u64; 2]> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let half = |r| digits.get(r).and_then(|d| u64::from_str_radix(d, 16).ok());
    Some([half(0..16)?, half(16..32)?])
}
