//! The kernel door's part in a process: the words in which changes are counted ([`keyway_region::Stripes`]), and the
//! rules for turning the kernel door on and off. The words are mapped from the descriptor that the owner of the kernel
//! program hands out.
//!
//! The words are an array of the BPF program (`BPF_F_MMAPABLE`). Its descriptor is closed after it is mapped, because
//! with the descriptor a process could do more than write these words.
//!
//! If an owner dies, the kernel door stays on. The program stops answering when its lease has ended. The next process that finds
//! the owner dead after that turns the kernel door off.

use crate::file::mapping::Mapping;
use crate::gate::Latch;
use crate::place::Place;
use crate::process::wait;
use crate::remote::handout;
use crate::remote::handout::Handed;
use crate::session::roster::{Role, Sessions};
use keyway_region::layout::superblock::DoorWord;
use keyway_region::{Region, STRIPE_WORDS, Stripes};
use std::fmt;
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Pages of the array (an mmapable one has whole pages; bpf(2)).
const MAP_LEN: usize = (STRIPE_WORDS * 8).next_multiple_of(4096);
/// How long an answer may still be in progress in the kernel after its program has read the lease.
const MARGIN: Duration = Duration::from_millis(100);

/// What this process can hand out, if it has turned the kernel door on.
#[derive(Default)]
pub(crate) struct Doorway(Mutex<Option<(DoorWord, Arc<File>)>>);

/// The kernel door, turned on by this process; dropping it turns it off.
pub struct KernelDoor {
    sessions: Arc<Sessions>,
    doorway: Arc<Doorway>,
    word: DoorWord,
    is_abandoned: bool,
}

/// Why the kernel door was not turned on.
#[derive(Debug)]
#[non_exhaustive]
pub enum KernelDoorError {
    /// another process has turned it on
    Taken,
    /// the last owner has died, and its program may still answer for this time
    StillAnswering(Duration),
    /// the words could not be mapped
    Io(io::Error),
}

impl Doorway {
    fn set(&self, what: Option<(DoorWord, Arc<File>)>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = what;
    }

    /// The door word and the array of the stripes.
    pub(crate) fn handed_out(&self) -> Option<(u64, Arc<File>)> {
        let doorway = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        doorway.as_ref().map(|(word, map)| (word.0, Arc::clone(map)))
    }
}

/// See [`crate::server::ServerCache::is_shut_out`].
pub(crate) fn is_shut_out(sessions: &Sessions) -> bool {
    if sessions.is_reader() || !sessions.is_here() {
        return false;
    }
    follow_door(sessions);
    sessions.inside(|region| region.changes().door().is_on() && !region.changes().has_stripes())
}

impl KernelDoor {
    /// See [`crate::server::ServerCache::turn_kernel_door_on`].
    pub(crate) fn turn_on(sessions: &Arc<Sessions>, doorway: &Arc<Doorway>, map: File) -> Result<Self, KernelDoorError> {
        let Role::Writer(process) = *sessions.role() else {
            return Err(KernelDoorError::Io(std::io::ErrorKind::PermissionDenied.into()));
        };
        match retire(sessions) {
            Retired::Off | Retired::Done => {}
            Retired::Owned => return Err(KernelDoorError::Taken),
            Retired::StillAnswering(left) => return Err(KernelDoorError::StillAnswering(left)),
        }
        let stripes = stripes(&map, sessions.latch()).map_err(KernelDoorError::Io)?;
        let word = sessions
            .inside(|region| region.changes().turn_door_on(process, stripes))
            .ok_or(KernelDoorError::Taken)?;
        doorway.set(Some((word, Arc::new(map))));
        Ok(Self {
            sessions: Arc::clone(sessions),
            doorway: Arc::clone(doorway),
            word,
            is_abandoned: false,
        })
    }

    /// How long the program answers without a renewal.
    pub const LEASE: Duration = Duration::from_secs(1);

    /// Whether every session now counts its changes. This is a system call that takes milliseconds.
    pub fn is_acknowledged(&self) -> bool {
        self.sessions.inside(|region| {
            region.recovery().recover();
            region.changes().is_door_acknowledged()
        })
    }

    /// The program answers from copies until this instant of [`ServerCache::monotonic`](crate::server::ServerCache::monotonic). Set it here before the program gets it.
    pub fn renew(&self, until_ns: u64) {
        self.sessions.inside(|region| region.changes().renew_door_lease(until_ns));
    }

    /// Repairs the stripes in which a dead thread had begun a change. Returns their number.
    pub fn mend(&self) -> usize {
        self.sessions.inside(|region| {
            region.recovery().recover();
            region.changes().mend_stripes()
        })
    }

    /// Leaves the kernel door on without an owner, as the death of a process does.
    pub fn abandon(mut self) {
        self.is_abandoned = true;
    }

    /// Waits until no run of a program that was silenced or detached is in progress.
    pub fn settle(&self) {
        if !self.sessions.inside(|region| region.mapped().host().fence_everywhere()) {
            std::thread::sleep(MARGIN);
        }
    }
}

impl Drop for KernelDoor {
    fn drop(&mut self) {
        self.doorway.set(None);
        if !self.is_abandoned {
            self.sessions.inside(|region| region.changes().turn_door_off(self.word));
        }
    }
}

impl fmt::Display for KernelDoorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Taken => f.write_str("another server's kernel door is on for this region: only one at a time is possible"),
            Self::StillAnswering(left) => write!(
                f,
                "the BPF program of a dead server may still answer for {} ms: try again later",
                left.as_millis()
            ),
            Self::Io(error) => write!(f, "the program's stripes cannot be mapped: {error}"),
        }
    }
}

impl std::error::Error for KernelDoorError {}

/// The stripes of this array. Their mapping is as inaccessible outside calls as the region's.
fn stripes(map: &File, latch: Latch) -> io::Result<Stripes> {
    let mapping = Mapping::new(map, MAP_LEN)?;
    mapping.protect(latch)?;
    let memory = mapping.memory();
    Stripes::new(memory, Box::new(mapping)).ok_or_else(|| io::ErrorKind::InvalidInput.into())
}

/// Takes in what a server has handed out with the region.
pub(crate) fn take_in(sessions: &Sessions, word: u64, map: File) -> io::Result<()> {
    sessions
        .region_inside()
        .changes()
        .offer_stripes(DoorWord(word), stripes(&map, sessions.latch())?);
    Ok(())
}

/// The result of an attempt to turn off a kernel door that was found on.
enum Retired {
    /// it was off
    Off,
    /// its owner has died, and it is off now
    Done,
    /// its owner has died, and the owner's program may still answer
    StillAnswering(Duration),
    /// its owner lives
    Owned,
}

/// Turns the kernel door off if its owner has died and its program no longer answers.
fn retire(sessions: &Sessions) -> Retired {
    let now = sessions.monotonic();
    sessions.inside(|region| retire_at(region, now))
}

fn retire_at(region: &Region, now: Duration) -> Retired {
    let door = region.changes().door();
    if !door.is_on() {
        return Retired::Off;
    }
    if region.changes().is_door_owned() {
        return Retired::Owned;
    }
    let mut end = Duration::from_nanos(region.changes().door_lease_ns());
    let latest = now + KernelDoor::LEASE;
    if end > latest {
        // No server writes that. The program may answer for one lease from now at most, so that is what is waited for.
        end = latest;
        region
            .changes()
            .renew_door_lease(u64::try_from(latest.as_nanos()).unwrap_or(u64::MAX));
    }
    let left = (end + MARGIN).saturating_sub(now);
    if !left.is_zero() {
        return Retired::StillAnswering(left);
    }
    region.changes().turn_door_off(door);
    Retired::Done
}

/// To be called when the region was last used in another boot, or no process was attached: what its door word says is
/// over.
pub(crate) fn forget(region: &Region) {
    let door = region.changes().door();
    if door.is_on() && !region.changes().is_door_owned() {
        region.changes().turn_door_off(door);
    }
}

/// Whether a write has to be delayed, because the program of a dead owner may still answer.
#[cold]
pub(crate) fn is_held_up(sessions: &Sessions) -> bool {
    sessions.inside(|region| !region.changes().has_stripes()) && matches!(retire(sessions), Retired::StillAnswering(_))
}

/// The kernel door has been turned on or off since a session of this process wrote last. If the region came through the
/// socket of the server that turned it on, this gets the stripes from that server. If the owner has died, this turns the
/// kernel door off.
#[cold]
pub(crate) fn follow_door(sessions: &Sessions) {
    if sessions.inside(|region| !region.changes().door().is_on() || region.changes().has_stripes()) {
        return;
    }
    match (retire(sessions), sessions.place()) {
        // A server delays its writes ([`crate::Session::is_held_up`]). A write that it has not delayed fails.
        (Retired::StillAnswering(_), _) if sessions.is_server() => {}
        (Retired::StillAnswering(left), _) => {
            // About a lease at most, once after the death of a server.
            wait::sleep(left);
            retire(sessions);
        }
        (Retired::Owned, Place::Socket(path)) => {
            if let Ok(Handed::ToWrite {
                doorway: Some((word, map)),
                ..
            }) = handout::ask(path)
            {
                // Without the stripes, writes fail and report it.
                let _ = take_in(sessions, word, map);
            }
        }
        _ => {}
    }
}
