//! What only servers and bindings need of a [`Cache`]: [`ServerCache`].

use super::Cache;
use crate::attach;
use crate::error::OpenError;
use crate::file::liveness::Access;
use crate::observe::survey::{Seen, see};
use crate::options::Options;
use crate::place::Place;
use crate::remote::handout::DESCRIPTORS;
use crate::session::kernel::{self, KernelDoor, KernelDoorError};
use keyway_region::layout::session::Entrance;
use keyway_region::layout::stats::Counters;
use keyway_region::{Flights, SessionId, ThreadInUse};
use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

/// What Keyway's servers and bindings need of a [`Cache`] beyond what programs do: to hand the region out, to answer from the kernel, to
/// count by session. It may change in every release.
pub trait ServerCache {
    /// Opens the anonymous memory of an earlier process, which another one has kept for a restart: its items are there.
    ///
    /// # Errors
    ///
    /// [`OpenError`]; also if the descriptor does not lead to anonymous memory of this user.
    fn open_kept(memory: &File, options: &Options) -> Result<Self, OpenError>
    where
        Self: Sized;

    /// The region's file, opened again twice, for a process that will attach to it: one descriptor to lock and map, and one
    /// to query locks, which can neither read nor write. See `remote/handout.rs`.
    ///
    /// # Errors
    ///
    /// There is neither /proc nor a name that leads to the file, or no free descriptor.
    fn descriptors(&self) -> std::io::Result<[File; DESCRIPTORS]>;

    /// The region's file, opened again for a process that may only read: the kernel refuses every write by this descriptor. A
    /// process whose user may write the file can nevertheless open it again.
    ///
    /// # Errors
    ///
    /// There is neither /proc nor a name that leads to the file, or no free descriptor; or the region is in durable mode, whose
    /// readers must write back what they rely on.
    fn descriptor_to_read(&self) -> std::io::Result<File>;

    /// Device and inode of the region's file: they identify the region, whatever its name.
    ///
    /// # Errors
    ///
    /// None: it is asked when the region is opened.
    fn identity(&self) -> std::io::Result<(u64, u64)>;

    /// Whether the mode of the region's file lets a process of this user and group write it, as open(2) would have it.
    fn may_write(&self, user: u32, group: u32) -> bool;

    /// Where the region is.
    fn place(&self) -> &Place;

    /// Turns the kernel door on: from now on every change is counted in `map`, an array of [`keyway_region::STRIPE_WORDS`]
    /// words. The program may not answer from copies before [`KernelDoor::is_acknowledged`], nor after this value is dropped.
    ///
    /// # Errors
    ///
    /// [`KernelDoorError`].
    fn turn_kernel_door_on(&self, map: File) -> Result<KernelDoor, KernelDoorError>;

    /// What a process that attaches while the kernel door is on needs in addition to the region's descriptors: the door word
    /// and the array of the stripes.
    fn doorway(&self) -> Option<(u64, Arc<File>)>;

    /// Whether this process may not change the region now: a server answers from copies (its kernel door), and this process
    /// cannot count its changes for it, because it did not get the region through that server's socket. Gets work as usual.
    fn is_shut_out(&self) -> bool;

    /// CLOCK_MONOTONIC as the kernel program sees it, whatever time namespace this process is in.
    fn monotonic(&self) -> Duration;

    /// When a delayed `flush_all` begins, seconds on the region's clock ([`clock`](crate::server::ServerSession::clock)).
    fn flush_at_s(&self) -> Option<u64>;

    /// The seed of the region's hash.
    fn hash_seed(&self) -> u64;

    /// The hash of a key in this region, by which its stripe is known.
    fn hash(&self, key: &[u8]) -> u64;

    /// The counters of the thread slot of one session (`Session::id`), since the region was created. Earlier sessions in the same slot have
    /// counted there too: subtract what it had counted when the session began ([`Counters::since`]).
    fn counters_of(&self, id: SessionId) -> Counters;

    /// The threads that have a thread slot, and what their processes are. In a forked child: none.
    fn seated(&self) -> Vec<(Entrance, ThreadInUse)>;

    /// Where callers wait for values that others compute; `None`: this process may only read.
    fn flights(&self) -> Option<Flights>;

    /// Looks at the region: what `Watched::look` shows of one that is not opened. In a forked child: nothing.
    fn look(&self) -> Seen;
}

impl ServerCache for Cache {
    fn open_kept(memory: &File, options: &Options) -> Result<Self, OpenError> {
        Self::attached_by(|| attach::open_kept(memory, options))
    }

    fn descriptors(&self) -> std::io::Result<[File; DESCRIPTORS]> {
        let liveness = self.sessions().liveness();
        Ok([liveness.open_anew(Access::Write)?, liveness.open_harmless()?])
    }

    fn descriptor_to_read(&self) -> std::io::Result<File> {
        if self.sessions().region().is_some_and(|region| region.mapped().is_durable()) {
            return Err(std::io::Error::other(
                "a region in durable mode cannot be used for reading only: its readers must write back what they rely on",
            ));
        }
        self.sessions().liveness().open_anew(Access::Read)
    }

    fn flights(&self) -> Option<Flights> {
        self.sessions().region().map(|region| region.flights().clone())
    }

    fn identity(&self) -> std::io::Result<(u64, u64)> {
        Ok(self.sessions().liveness().id())
    }

    fn may_write(&self, user: u32, group: u32) -> bool {
        use std::os::unix::fs::MetadataExt;
        let Ok(meta) = self.sessions().liveness().open_harmless().and_then(|file| file.metadata()) else {
            return false;
        };
        let both = match (user == meta.uid(), group == meta.gid()) {
            (true, _) => 0o600,
            (false, true) => 0o060,
            (false, false) => 0o006,
        };
        user == 0 || meta.mode() & both == both
    }

    fn place(&self) -> &Place {
        &self.inner.at.place
    }

    fn turn_kernel_door_on(&self, map: File) -> Result<KernelDoor, KernelDoorError> {
        KernelDoor::turn_on(self.sessions(), &self.inner.at.doorway, map)
    }

    fn doorway(&self) -> Option<(u64, Arc<File>)> {
        self.inner.at.doorway.handed_out()
    }

    fn is_shut_out(&self) -> bool {
        kernel::is_shut_out(self.sessions())
    }

    fn monotonic(&self) -> Duration {
        self.sessions().monotonic()
    }

    fn flush_at_s(&self) -> Option<u64> {
        self.sessions().view(|region| region.flushes().flush_at_s())
    }

    fn hash_seed(&self) -> u64 {
        self.sessions().view(|region| region.mapped().seed())
    }

    fn hash(&self, key: &[u8]) -> u64 {
        self.sessions().view(|region| region.mapped().hash(key))
    }

    fn counters_of(&self, id: SessionId) -> Counters {
        self.sessions().view(|region| region.overview().counters_of(id))
    }

    fn seated(&self) -> Vec<(Entrance, ThreadInUse)> {
        self.sessions().view(|region| {
            let seated = region.overview().seated().into_iter();
            seated
                .map(|seated| (region.overview().entrance(seated.process).0, seated))
                .collect()
        })
    }

    fn look(&self) -> Seen {
        let sessions = self.sessions();
        let now = sessions.now();
        sessions.view(|region| see(region, sessions.liveness(), now, |slot, _| sessions.is_there(region, slot)))
    }
}
