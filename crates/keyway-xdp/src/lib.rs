//! Keyway's kernel door: a BPF program that answers UDP `get`, `gets` and `mg` before any socket, from copies of hot items.
//!
//! The program is C (`src/bpf`): `intf.h` is what it shares with this side, `door.bpf.c` the program, and the headers between
//! read requests (`text.h`), hash keys (`hash.h`), judge copies (`copy.h`), write answers (`reply.h`) and know packets
//! (`packet.h`). The same headers are compiled for the host, where [`host`] calls them.
//!
//! [`config`] is what the program is told, [`copy`] makes the copies that it gives out, [`hot`] puts them where it looks, `door`
//! loads it and attaches it to interfaces. Without the feature `load` there is no `door`, and nothing of BPF is needed to build.
//!
//! Nothing here decides what is hot, or knows the region: it is handed keys, values, hashes and words.

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
pub use maps::{Counts, Maps, PIN_FOLDER, interfaces_at};

// Linked for its headers; see the build script.
#[cfg(feature = "load")]
use libbpf_sys as _;
