//! Attaching to read only: a mapping, and a connection to the server that executes this process's writes.
//!
//! Never: takes a lock, a process slot or a session, so no other process needs to know of a reader.

use super::file::{Inspected, inspect, io, unusable};
use super::{check_clock, whole};
use crate::clock::Clock;
use crate::descriptor::file_id;
use crate::error::OpenError;
use crate::fork::PerProcess;
use crate::gate::{Gate, GateState, Latch};
use crate::liveness::{Attachment, Liveness, open_harmless};
use crate::mapping::{self, Mapping};
use crate::peer::Peer;
use crate::sessions::{Role, Sessions};
use crate::trust::{self, Source};
use crate::{Inner, Options, Place, kernel};
use keyway_region::Region;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Attaches to a region that may only be read: there is no lock, no process slot and no session, so no other process
/// needs to know of it.
pub(super) fn attach_to_read(place: &Place, path: &Path, file: File, peer: Peer, options: &Options) -> Result<Inner, OpenError> {
    let source = match place {
        Place::Socket(_) => Source::Server,
        Place::Path(_) | Place::Memfd => Source::Path,
    };
    trust::check(&file, source, path, options)?;
    let found = inspect(&file, path)?;
    found.check(options, path)?;
    if found.durable {
        let source = std::io::Error::other(
            "a region in durable mode cannot be used for reading only: its readers must write back what they rely on",
        );
        return Err(io("map", path, source));
    }
    let (region, liveness, mapped) = map(file, path, &found, options.sealed)?;
    let clock = Clock::here();
    check_clock(&region, clock, clock.now(), path)?;
    let place = whole(place);
    Ok(Inner {
        sessions: Arc::new(Sessions::new(
            Arc::new(region),
            Arc::clone(&liveness),
            Role::Reader(Arc::new(peer)),
            (0, options.entrance()),
            Latch::NONE,
            clock,
            place.clone(),
        )),
        doorway: kernel::Doorway::default(),
        mapped,
        warm: true,
        discarded: false,
        attached_in: Duration::ZERO,
        on_disk: false,
        place,
        options: options.clone(),
        gate: match options.gate {
            Gate::Off => GateState::Off,
            _ => GateState::Unavailable("this process may only read, and the kernel enforces it".to_owned()),
        },
        again: PerProcess::new(),
    })
}

/// Maps a region's file to read it: the region, what says who lives, and where it is mapped.
pub(crate) fn map(
    file: File,
    path: &Path,
    found: &Inspected,
    sealed: bool,
) -> Result<(Region, Arc<Liveness>, std::ops::Range<usize>), OpenError> {
    let len = found.layout.len_max;
    let mapping = Mapping::to_read(&file, len).map_err(|e| mapping::refused(e, len, path))?;
    let memory = mapping.memory();
    let mapped = memory.addresses();
    let id = file_id(&file).map_err(|e| io("stat", path, e))?;
    let probe = open_harmless(id, Some(file.as_raw_fd()), None).unwrap_or(file);
    let liveness = Liveness::new(id, Some(probe), None, sealed).map_err(|e| io("keep a descriptor of", path, e))?;
    liveness.seal();
    let liveness = Arc::new(liveness);
    let attachment = Attachment {
        liveness: Arc::clone(&liveness),
        mapping,
    };
    let region = Region::open(memory, Box::new(attachment)).map_err(|why| unusable(path, why))?;
    Ok((region, liveness, mapped))
}
