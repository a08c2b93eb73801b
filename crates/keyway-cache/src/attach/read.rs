//! Attaching to read only: a mapping, and a connection to the server that executes this process's writes.
//!
//! Never: takes a lock, a process slot or a session, so no other process needs to know of a reader.

use super::opened::{Opened, check_clock};
use crate::clock::Clock;
use crate::error::OpenError;
use crate::error::io;
use crate::file::inspect::inspect;
use crate::file::inspect::map_to_read;
use crate::file::trust::{self, Source};
use crate::gate::{Gate, GateState, Latch};
use crate::options::Options;
use crate::place::Place;
use crate::remote::peer::Peer;
use crate::session::roster::{Role, Sessions};
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

/// Attaches to a region that may only be read: there is no lock, no process slot and no session, so no other process
/// needs to know of it.
pub fn attach_to_read(place: &Place, path: &Path, file: File, peer: Peer, options: &Options) -> Result<Opened, OpenError> {
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
    let (region, liveness, mapped) = map_to_read(file, path, &found, options.sealed)?;
    let clock = Clock::here();
    check_clock(&region, clock, clock.now(), path)?;
    let place = place.whole();
    Ok(Opened {
        sessions: Arc::new(Sessions::new(
            Arc::new(region),
            Arc::clone(&liveness),
            Role::Reader(Arc::new(peer)),
            (0, options.entrance()),
            Latch::NONE,
            clock,
            place.clone(),
        )),
        doorway: Arc::default(),
        mapped,
        warm: true,
        discarded: false,
        on_disk: false,
        place,
        options: options.clone(),
        gate: match options.gate {
            Gate::Off => GateState::Off,
            _ => GateState::Unavailable("this process may only read, and the kernel enforces it".to_owned()),
        },
    })
}
