//! Keyway's kernel door: a BPF program that answers UDP `get`, `gets` and `mg` before any socket, from copies of hot items.
//!
//! The program is C (`src/bpf`): `intf.h` is what it shares with this side, `door.bpf.c` the program, and the headers between
//! read requests (`text.h`), hash keys (`hash.h`), judge copies (`copy.h`), write answers (`reply.h`) and know packets
//! (`packet.h`). The same headers are compiled for the host, where [`host`] calls them.
//!
//! [`copy`] makes the copies that the program gives out, [`hot`] puts them where it looks, [`door`] loads the program and
//! attaches it to interfaces.
//!
//! Nothing here decides what is hot, or knows the region: it is handed keys, values, hashes and words.

pub mod copy;
pub mod door;
pub mod host;
pub mod hot;
mod memory;

// Linked for its headers; see the build script.
use libbpf_sys as _;
