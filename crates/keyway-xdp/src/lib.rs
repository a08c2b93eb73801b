//! Keyway's kernel door: a BPF program that answers UDP `get`, `gets` and `mg` before any socket, from copies of hot items.
//!
//! The program is written in C (`src/bpf`): `intf.h` is what it shares with this side, `door.bpf.c` the program. The other headers
//! read requests (`text.h`), hash keys (`hash.h`), check copies (`copy.h`), write answers (`reply.h`), handle packets
//! (`packet.h`) and sort times (`times.h`). The same headers are compiled for the host, where [`host`] calls them.
//!
//! [`config`] holds the program's settings, [`copy`] makes the copies that it sends, [`hot`] puts them where it reads them, `door`
//! loads it and attaches it to interfaces. Without the feature `load` there is no `door`, and the build needs no BPF tools.
//!
//! Nothing here decides what is hot, or knows the region: the caller passes keys, values, hashes and words.

pub mod config;
pub mod copy;
#[cfg(feature = "load")]
pub mod door;
#[cfg(feature = "load")]
mod filters;
pub mod host;
pub mod hot;
#[cfg(feature = "load")]
mod maps;
#[cfg(feature = "load")]
mod memory;
pub mod store;
#[cfg(feature = "load")]
mod tcp;

#[cfg(feature = "load")]
pub use maps::{Counts, Maps, PIN_FOLDER, Times};
#[cfg(feature = "load")]
pub use tcp::Connections;

// Linked for its headers; see the build script.
#[cfg(feature = "load")]
use libbpf_sys as _;
