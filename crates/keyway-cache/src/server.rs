//! What Keyway's server and bindings need, and a program that uses the cache does not. It has no promise of stability: it may
//! change in every release.
//!
//! What they need of a cache is the trait [`ServerCache`]. Besides, to list regions
//! without attaching to them: [`describe`], [`remove_unused`]; to look at one again and again: [`Watched`]; to know for certain whether
//! another server has ended: [`Presence`]; to keep what a forked child must have for itself: [`PerProcess`]; to find the region of a
//! server that is away: [`record`]; to talk to a server in a program that is not its own: [`Connection`]; to let an interpreter go
//! on while this library waits: [`run_apart_by`].

pub use crate::cache::for_server::ServerCache;
pub use crate::clock::timer::Timer;
pub use crate::file::nodes::spread_over;
pub use crate::file::presence::Presence;
pub use crate::gate::{close_after_panic, is_open as gate_is_open, key as gate_key};
pub use crate::observe::survey::{
    Attached, Described, MAP_PARTS_MAX, Removal, Seen, Watched, describe, handed_out, remove_unused,
};
pub use crate::place::{SHARED_MEMORY, is_default_place};
pub use crate::process::cancel::Uncancelled;
pub use crate::process::fork::PerProcess;
pub use crate::process::wait::{RunApart, run_apart_by};
pub use crate::remote::connection::Connection;
pub use crate::session::kernel::{KernelDoor, KernelDoorError};
pub use crate::session::socket::dropped;
pub use crate::session::{BindingSession, Missed, ServerSession};
pub use keyway_region::fetch::Flight;
pub use keyway_region::layout::session::Entrance;
pub use keyway_region::{Armed, CALLS_PER_SAMPLE, Flights, KeyRoom, SessionId, ThreadInUse, USES};

/// The buckets by which operations are counted by their time.
pub mod latency {
    pub use keyway_region::layout::latency::{BUCKETS, bucket_start_ns};
}

/// What a server sends to a process that asks for the region at its region socket: each line, and how it goes on.
pub mod handout {
    pub use crate::remote::handout::{DESCRIPTORS, GRANTED, GRANTED_AND_COUNTS, GRANTED_LINE, GRANTED_TO_READ, NAME, line_name};
    pub use crate::remote::handout::{RECEIVED_MAX, receive};
}

/// Records of where a server's region is, which it leaves for programs that start while it is away.
pub mod record {
    pub use crate::observe::record::{Address, Record, file_of, find, leave, remove, remove_stale};
    pub use crate::place::is_record;
}
