//! Which processes are alive: the lock that shows that this process is, and what can be known of other processes.
//!
//! The lock is an open-file-description lock (`fcntl(2)`, F_OFD_SETLK) on the first byte of a process slot. If the file
//! system lets a mapping hold its file description (tmpfs, ext4, hugetlbfs), the mapping alone holds the lock: the lock
//! exists exactly as long as the mapping. If a mapping holds another file (overlayfs, FUSE with passthrough), a
//! descriptor must hold the lock, and any code of the process can close it.
//!
//! A lock is believed to be free only on two conditions: the descriptor through which it was queried refers to the
//! region's file before and after the query, and the query shows this process's own slot as locked. A process that cannot
//! be queried counts as alive. After the lock, the process itself is queried ([`presence`]): while it exists, its death
//! is only suspected. So it is if its lock could not be seen here: it has the region's file by another way (overlayfs, and the
//! folder below it), or says that it is of another boot.
//!
//! A process that may only read the file can lock any byte of it for reading. Such a lock is no sign of life, but it
//! keeps other processes from locking the byte. A process that meets such a lock works without a lock of its own. It is
//! dead when the process itself is gone.
//!
//! # Safety
//!
//! The only `unsafe` here makes a structure of plain numbers, asks the kernel for random bytes, and makes
//! a system call that takes numbers (membarrier(2)).
#![allow(
    unsafe_code,
    reason = "a C structure of numbers, getrandom(2) and membarrier(2); contract above"
)]

use crate::error::{OpenError, unusable};
use crate::file::backing::back;
use crate::file::backing::give_back;
use crate::file::backing::offset;
use crate::file::blocks::{self, CopiesOnWrite};
use crate::file::mapping::Mapping;
use crate::file::presence::{self, Fate};
use crate::gate::aside;
use crate::process::descriptor::{FileId, Kept, StreamsTaken, file_id, harmless_flags};
use crate::process::wait;
use keyway_region::layout::session::{Hold, Tenant};
use keyway_region::{Host, Life, Region};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc::{F_RDLCK, F_UNLCK, F_WRLCK};
use nix::sys::mman::MmapAdvise;
use nix::sys::stat::Mode;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// The byte of a region's file whose lock says: this process makes, replaces or repairs the region, or marks it clean,
/// and no other process is attached.
const WHOLE: i64 = 0;

/// The first of the bytes for witnesses, far after the end of any region. An attacher locks one of its own among them, to
/// see whether its mapping holds locks.
const WITNESSES: i64 = 1 << 61;

/// The lock of the whole file. It is released when the value is dropped. Closing the descriptor would not release it: a
/// child that another thread forks meanwhile also has the file description, as long as the child lives.
pub(crate) struct Whole<'f>(&'f File);

impl<'f> Whole<'f> {
    /// `None`: another description has it.
    pub(crate) fn take(file: &'f File) -> Option<Self> {
        lock(file, WHOLE).then_some(Self(file))
    }

    /// Whether another description has it.
    pub(crate) fn is_taken(file: &File) -> bool {
        locked(file, WHOLE, 1) == Locked::Yes
    }
}

impl Drop for Whole<'_> {
    fn drop(&mut self) {
        unlock(self.0, WHOLE);
    }
}

/// A byte that only this process has locked, through a file description that a mapping may hold. It shows whether the
/// mapping holds this process's locks, and another process's lock cannot be mistaken for it.
struct Witness(i64);

impl Witness {
    fn lock(file: &File) -> Result<Self, NoWitness> {
        let at = WITNESSES + i64::try_from(random().ok_or(NoWitness::Lost)? >> 4).unwrap_or(0);
        if lock(file, at) {
            Ok(Self(at))
        } else if is_blocked_by_reader(file, at) {
            Err(NoWitness::BlockedByReader)
        } else {
            Err(NoWitness::Lost)
        }
    }
}

/// Why there is no witness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NoWitness {
    /// a process that may only read the file has locked the byte for reading
    BlockedByReader,
    /// the file system has no locks
    Lost,
}

/// A number from the kernel, which forked children do not share. It needs no file (getrandom(2)).
fn random() -> Option<u64> {
    let mut bytes = [0u8; 8];
    // SAFETY: a place for as many bytes as are requested; the kernel fills it in.
    let got = unsafe { nix::libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    (got == 8).then(|| u64::from_le_bytes(bytes))
}

/// A process slot that this process can have: its last tenant is certainly gone.
pub(crate) struct Vacancy {
    pub tenant: Tenant,
    /// its byte is locked; otherwise a process that may only read has a lock there
    has_lock: bool,
}

/// What holds an attacher's lock after the locked file description has been closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    By(Hold),
    /// it was lost, and another process has locked the same slot since: start again
    Overtaken,
    /// nothing holds it
    Lost,
}

/// How often a thread gives its turn to other threads while it waits for one that queries the probe. A query takes a few
/// system calls.
const TURNS_MAX: usize = 10_000;

/// Whether another file description has locked a byte of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Locked {
    No,
    Yes,
    /// it cannot be queried
    Unknown,
}

/// Queries a lock on these bytes that another file description than this one holds. Processes that may only read the file
/// can have read locks (fcntl(2)). Those are no sign of life, and are not queried.
pub(crate) fn locked(file: &File, at: i64, len: i64) -> Locked {
    match conflict(file, F_RDLCK, at, len) {
        Some(F_UNLCK) => Locked::No,
        Some(_) => Locked::Yes,
        None => Locked::Unknown,
    }
}

/// Whether this byte cannot be locked because of a read lock. Any process that may read the file can have one.
fn is_blocked_by_reader(file: &File, at: i64) -> bool {
    conflict(file, F_WRLCK, at, 1) == Some(F_RDLCK)
}

/// The kind of lock of another file description that conflicts with such a lock (`F_OFD_GETLK`). `None`: it cannot be
/// queried.
fn conflict(file: &File, kind: i32, at: i64, len: i64) -> Option<i32> {
    let mut lock = lock_of(kind, at, len);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut lock))
        .ok()
        .map(|_| i32::from(lock.l_type))
}

/// Locks one byte. `false`: another file description has locked it, or the file system has no locks.
pub(crate) fn lock(file: &File, at: i64) -> bool {
    fcntl(file, FcntlArg::F_OFD_SETLK(&lock_of(F_WRLCK, at, 1))).is_ok()
}

/// Unlocks one byte.
fn unlock(file: &File, at: i64) {
    let _ = fcntl(file, FcntlArg::F_OFD_SETLK(&lock_of(F_UNLCK, at, 1)));
}

fn lock_of(kind: i32, at: i64, len: i64) -> nix::libc::flock {
    // SAFETY: the structure is plain numbers, for which zeros are valid.
    let mut lock: nix::libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = i16::try_from(kind).unwrap_or(0);
    lock.l_whence = i16::try_from(nix::libc::SEEK_SET).unwrap_or(0);
    lock.l_start = at;
    lock.l_len = len;
    lock
}

/// How a file was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Write,
    Read,
}

/// What this process knows about which processes of a region are alive: itself, and others.
pub(crate) struct Liveness {
    id: FileId,
    /// where the file can be opened by name, if it has one for this process
    path: Option<PathBuf>,
    own: presence::Process,
    /// a descriptor that can neither read nor write, with a file description of its own: the locks of other processes are
    /// queried through it. `None` in a sealed process that may not open the file
    probe: Mutex<Option<Kept>>,
    /// the descriptor that holds the lock if the mapping does not
    holder: Mutex<Option<Kept>>,
    /// offset of the byte that this process has locked; empty if it works without a lock
    slot: OnceLock<i64>,
    is_sealed: bool,
    /// it was reported that the file has shared blocks
    has_said_why: AtomicBool,
}

impl Liveness {
    /// `probe`: a file description of the region's file that has no lock.
    fn new(id: FileId, probe: Option<File>, path: Option<&Path>, is_sealed: bool) -> io::Result<Self> {
        Ok(Self {
            id,
            path: path.map(Path::to_path_buf),
            own: presence::Process::current(id),
            probe: Mutex::new(probe.map(Kept::new).transpose()?),
            holder: Mutex::default(),
            slot: OnceLock::new(),
            is_sealed,
            has_said_why: AtomicBool::new(false),
        })
    }

    /// The identity of this process, for other processes.
    pub(crate) fn own(&self) -> presence::Process {
        self.own
    }

    /// The file that this is about.
    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// A process slot for this process among the first `slots` of a region in this file.
    pub(crate) fn find_vacancy(&self, region: &Region, slots: usize, file: &File) -> Option<Vacancy> {
        (0..slots).find_map(|slot| {
            let tenant = region.mapped().tenant(slot);
            let at = offset(tenant.lock_offset);
            if self.without_lock(&tenant) != Life::Dead {
                return None;
            }
            if !lock(file, at) {
                let goes_without = is_blocked_by_reader(file, at) && self.own.is_known();
                return goes_without.then_some(Vacancy { tenant, has_lock: false });
            }
            // The lock is free, and the tenant is still the one that was checked.
            if region.mapped().tenant(slot) == tenant {
                Some(Vacancy { tenant, has_lock: true })
            } else {
                unlock(file, at);
                None
            }
        })
    }

    /// Closes the locked file description, and returns what holds this process's lock from then on. None is needed if other processes can
    /// identify this one without it: the description is then the caller's until the slot is taken.
    pub(crate) fn settle(&self, file: File, vacancy: &Vacancy) -> (Settled, Option<File>) {
        let witness = match vacancy.has_lock {
            true => Witness::lock(&file),
            false => Err(NoWitness::BlockedByReader),
        };
        match witness {
            Ok(witness) => {
                drop(file);
                (self.settle_by(offset(vacancy.tenant.lock_offset), &witness), None)
            }
            Err(NoWitness::BlockedByReader) if self.own.is_known() => (Settled::By(Hold::Presence), Some(file)),
            Err(_) => (Settled::Lost, Some(file)),
        }
    }

    /// This process has locked its byte and the witness, and its mapping should hold both. Returns how the lock is held
    /// from now on, after the locked file description has been closed.
    fn settle_by(&self, at: i64, witness: &Witness) -> Settled {
        let _ = self.slot.set(at);
        match self.ask(|probe| locked(probe, witness.0, 1)) {
            Locked::Yes => Settled::By(Hold::Mapping),
            // A lock that may be lost is no proof of a death.
            Locked::Unknown => Settled::By(Hold::Descriptor),
            Locked::No if self.ask(|probe| locked(probe, at, 1)) == Locked::Yes => Settled::Overtaken,
            Locked::No if self.regain() => Settled::By(Hold::Descriptor),
            // The file can be opened to hold the lock. So another attacher had locked the byte, and may have unlocked it
            // since.
            Locked::No if self.open_anew(Access::Write).is_ok() => Settled::Overtaken,
            Locked::No => Settled::Lost,
        }
    }

    /// Takes this process's lock again, if it was lost. `false`: that is not possible.
    pub(crate) fn regain(&self) -> bool {
        let Some(at) = self.slot.get().copied() else { return false };
        if self.ask(|probe| locked(probe, at, 1)) != Locked::No {
            return true;
        }
        let Ok(file) = self.open_anew(Access::Write) else {
            return false;
        };
        let Ok(kept) = Kept::new(file) else { return false };
        let has_it = kept.get().is_some_and(|file| lock(file, at));
        if has_it && let Ok(mut holder) = self.holder.try_lock() {
            *holder = Some(kept);
        }
        has_it
    }

    /// In a sealed process, closes a descriptor that could read or write.
    pub(crate) fn seal(&self) {
        if self.is_sealed
            && let Ok(mut probe) = self.probe.try_lock()
        {
            *probe = probe.take().filter(Kept::is_harmless);
        }
    }

    /// Makes blocks of the file its own that it shares with a copy by now. What prevents that is reported once.
    pub(crate) fn claim_blocks(&self) -> Option<CopiesOnWrite> {
        let has_shared = self.ask(|probe| match blocks::shared(probe).is_empty() {
            true => Locked::No,
            false => Locked::Yes,
        });
        if has_shared != Locked::Yes {
            return None;
        }
        let why = blocks::claim(&self.open_anew(Access::Write).ok()?).err()?;
        // PAIRS: nothing.
        (!self.has_said_why.swap(true, Relaxed)).then_some(why)
    }

    /// The probe's number, if it still refers to the region's file. If another thread is querying the probe, this waits
    /// for it for a while, but not for ever: that thread may have left its query by a jump.
    fn probe_number(&self) -> Option<i32> {
        for _ in 0..TURNS_MAX {
            if let Ok(probe) = self.probe.try_lock() {
                return probe.as_ref()?.get().map(AsRawFd::as_raw_fd);
            }
            std::thread::yield_now();
        }
        None
    }

    /// The file, opened again, with a file description of its own.
    ///
    /// # Errors
    ///
    /// It cannot be opened: there is neither /proc nor a name that leads to it, or this user may not open it.
    pub(crate) fn open_anew(&self, access: Access) -> io::Result<File> {
        if self.is_sealed {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let flags = match access {
            Access::Write => OFlag::O_RDWR,
            Access::Read => OFlag::O_RDONLY,
        };
        let flags = flags | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK;
        let number = self.probe_number();
        open_same(self.id, number, self.path.as_deref(), flags)
    }

    /// The file, opened again, with a descriptor that can neither read nor write.
    ///
    /// # Errors
    ///
    /// It cannot be opened: there is neither /proc nor a name that leads to it, or this user may not open it.
    pub(crate) fn open_harmless(&self) -> io::Result<File> {
        if self.is_sealed {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let number = self.probe_number();
        open_harmless(self.id, number, self.path.as_deref())
    }

    /// Queries the probe. A probe that is gone is opened again if that is possible.
    fn ask(&self, question: impl Fn(&File) -> Locked) -> Locked {
        // Another thread of this process is querying the probe, or was stopped during a query. Then nothing can be
        // queried now.
        let Ok(mut probe) = self.probe.try_lock() else {
            return Locked::Unknown;
        };
        if probe.as_ref().is_none_or(|probe| probe.get().is_none()) && !self.is_sealed {
            // The number belongs to another file now, which stays as it is.
            *probe = open_harmless(self.id, None, self.path.as_deref()).and_then(Kept::new).ok();
        }
        probe.as_ref().and_then(Kept::get).map_or(Locked::Unknown, question)
    }

    /// Whether the tenant seems to be alive, as far as a process without a slot can find out.
    pub(crate) fn seems_there(&self, tenant: &Tenant) -> bool {
        let is_locked = || self.ask(|probe| locked(probe, offset(tenant.lock_offset), 1)) == Locked::Yes;
        is_locked() || tenant.tenancy.hold() == Hold::Presence && !self.is_gone(tenant)
    }

    /// Whether another process's byte is certainly free: the descriptor refers to the region's file before and after the
    /// query, and the query shows this process's own byte as locked.
    fn is_free(&self, at: i64) -> bool {
        let Some(own) = self.slot.get().copied() else { return false };
        self.ask(|probe| {
            let shows_own = || file_id(probe).is_ok_and(|id| id == self.id) && locked(probe, own, 1) == Locked::Yes;
            if locked(probe, at, 1) == Locked::No && shows_own() && locked(probe, at, 1) == Locked::No && shows_own() {
                Locked::No
            } else {
                Locked::Yes
            }
        }) == Locked::No
    }

    /// What is known of a process whose lock is free.
    pub(crate) fn without_lock(&self, tenant: &Tenant) -> Life {
        match (tenant.tenancy.hold(), self.own.fate_of(tenant.pid, tenant.identity)) {
            // It has no thread slot, or does not have one yet.
            (Hold::None | Hold::Attaching, _) | (_, Fate::Gone) => Life::Dead,
            // It has no lock that could be missing.
            (Hold::Presence, _) => Life::Alive,
            // The mapping held the lock. As the lock is gone, so is the mapping.
            (Hold::Mapping, Fate::Unknown) if self.own.shares_locks(tenant.identity) => Life::Dead,
            (Hold::Mapping | Hold::Descriptor, _) => Life::Suspect,
        }
    }

    /// Whether a process is certainly gone although its lock may be held: by a descriptor, which a child has inherited.
    /// The child does not have the mapping, so no later store can come. A process without a lock can find out only this
    /// about other processes, because it has no lock of its own to show that the probe refers to the right file.
    fn is_gone(&self, tenant: &Tenant) -> bool {
        let counts = match tenant.tenancy.hold() {
            Hold::Descriptor | Hold::Presence => true,
            Hold::Mapping => self.slot.get().is_none(),
            Hold::Attaching => false,
            Hold::None => return true,
        };
        counts && self.own.fate_of(tenant.pid, tenant.identity) == Fate::Gone
    }

    fn len(&self) -> Option<usize> {
        let probe = self.probe.try_lock().ok()?;
        let len = probe.as_ref()?.get()?.metadata().ok()?.len();
        Some(usize::try_from(len).unwrap_or(usize::MAX))
    }
}

/// Opens the file with this identity once more: by its descriptor's entry in /proc, or by its name, if the name leads to it.
fn open_same(id: FileId, number: Option<i32>, path: Option<&Path>, flags: OFlag) -> io::Result<File> {
    let _streams = StreamsTaken::new();
    let own = number.map(|number| PathBuf::from(format!("/proc/self/fd/{number}")));
    let mut refusal = io::Error::from(io::ErrorKind::NotFound);
    // A descriptor's entry is a symbolic link; a region's own name must not be one.
    let ways = [(own.as_deref(), flags), (path, flags | OFlag::O_NOFOLLOW)];
    for (way, flags) in ways.into_iter().filter_map(|(way, flags)| way.map(|way| (way, flags))) {
        match nix::fcntl::open(way, flags, Mode::empty()).map(File::from) {
            Ok(file) if file_id(&file)? == id => return Ok(file),
            Ok(_) => {}
            Err(error) => refusal = error.into(),
        }
    }
    Err(refusal)
}

/// The file of this descriptor, with a file description of its own, for reading and writing.
pub(crate) fn open_writable(id: FileId, file: &File) -> io::Result<File> {
    open_same(
        id,
        Some(file.as_raw_fd()),
        None,
        OFlag::O_RDWR | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK,
    )
}

/// Opens the file with this identity so that the descriptor can neither read nor write. If the file system does not support that,
/// for reading.
pub(crate) fn open_harmless(id: FileId, number: Option<i32>, path: Option<&Path>) -> io::Result<File> {
    let [neither, reading] = harmless_flags();
    open_same(id, number, path, neither).or_else(|_| open_same(id, number, path, reading))
}

/// Makes every thread of every process execute a full fence (membarrier(2), MEMBARRIER_CMD_GLOBAL). After it, no BPF
/// program is running that began before it.
fn fence_everywhere() -> bool {
    // SAFETY: a system call that takes numbers, and touches no memory.
    unsafe { nix::libc::syscall(nix::libc::SYS_membarrier, nix::libc::MEMBARRIER_CMD_GLOBAL, 0, 0) == 0 }
}

/// What keeps a region attached: its mapping, and what this process knows about which processes are alive.
pub(crate) struct Attachment {
    liveness: Arc<Liveness>,
    mapping: Mapping,
}

impl Attachment {
    /// Of a file that is mapped. `probe`: a file description of it that has no lock; `name`: where it can be opened, if it has a name for
    /// this process.
    pub(crate) fn new(
        mapping: Mapping,
        id: FileId,
        probe: Option<File>,
        name: Option<&Path>,
        is_sealed: bool,
    ) -> io::Result<Self> {
        let liveness = Arc::new(Liveness::new(id, probe, name, is_sealed)?);
        Ok(Self { liveness, mapping })
    }

    /// Opens the region in it.
    pub(crate) fn open(self, path: &Path) -> Result<(Region, Arc<Liveness>), OpenError> {
        let (memory, liveness) = (self.mapping.memory(), Arc::clone(&self.liveness));
        let region = Region::open(memory, Box::new(self)).map_err(|why| unusable(path, why))?;
        Ok((region, liveness))
    }
}

impl Host for Attachment {
    fn life(&self, tenant: &Tenant) -> Life {
        aside(|| {
            if self.liveness.is_free(offset(tenant.lock_offset)) {
                self.liveness.without_lock(tenant)
            } else if self.liveness.is_gone(tenant) {
                Life::Dead
            } else {
                Life::Alive
            }
        })
    }

    fn prepare(&self, ranges: &[std::ops::Range<usize>], huge_pages: bool, prefault: bool) {
        for range in ranges {
            // The kernel faults pages in with the calling thread's rights, so this happens inside the gate.
            let len = range.end - range.start;
            // All may fail. Then the kernel serves the region in small pages, which are faulted in at their first use.
            if huge_pages {
                let _ = self.mapping.advise(range.start, len, MmapAdvise::MADV_HUGEPAGE);
            }
            if prefault {
                let _ = self.mapping.advise(range.start, len, MmapAdvise::MADV_POPULATE_WRITE);
            }
            if huge_pages {
                let is_whole = self.mapping.collapse(range);
                let how_many = if is_whole { "all" } else { "not all" };
                aside(|| log::debug!("huge pages: {how_many} of {len} bytes of the region are in them"));
            }
        }
    }

    fn is_persistent(&self) -> bool {
        self.mapping.is_persistent
    }

    fn fence_everywhere(&self) -> bool {
        aside(fence_everywhere)
    }

    fn is_read_only(&self) -> bool {
        self.mapping.is_read_only
    }

    fn wait(&self, at: usize, value: u32, timeout: Duration) {
        // Inside the gate: the kernel reads the word with the calling thread's rights.
        if let Some(word) = self.mapping.word(at) {
            wait::on_word(word, value, timeout);
        }
    }

    fn wake(&self, at: usize, at_most: u32) {
        if let Some(word) = self.mapping.word(at) {
            let _ = wait::wake_word(word, at_most);
        }
    }

    fn write_back(&self, range: std::ops::Range<usize>) -> bool {
        aside(|| self.mapping.sync(range.start, range.end - range.start))
    }

    fn file_len(&self) -> usize {
        aside(|| self.liveness.len()).unwrap_or_else(|| self.mapping.backed_len())
    }

    fn back(&self, range: std::ops::Range<usize>) -> std::io::Result<()> {
        aside(|| back(&self.liveness.open_anew(Access::Write)?, range))
    }

    fn give_back(&self, range: std::ops::Range<usize>) -> std::io::Result<()> {
        aside(|| give_back(&self.liveness.open_anew(Access::Write)?, range))
    }
}
