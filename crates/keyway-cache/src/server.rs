//! What Keyway's server and bindings need, and a program that uses the cache does not. It has no promise of stability: it may
//! change in every release.
//!
//! The methods that go with it are not listed in these pages, so that the pages show what a program needs. They are documented
//! in the sources:
//!
//! - to open anonymous memory that a service manager has kept: `Cache::open_kept`;
//! - to hand a region out to another process: `Cache::descriptors`, `descriptor_to_read`, `identity`, `may_write`;
//! - to answer from the kernel: `Cache::turn_kernel_door_on`, `doorway`, `hash`, `hash_seed`, `monotonic`, `flush_at_s`,
//!   `is_shut_out`, `Session::note_hit`, `clock`, `clock_s`;
//! - to answer on sockets: `Session::get_to`, `look`, `is_held_up`, [`dropped`];
//! - to tell watchers: `Session::serve_as`, `emit_connection`;
//! - to count by session: `Session::id`, `Cache::counters_of`, `seated`, `Session::note_latency`, `Session::add_latency`, [`Timer`];
//! - to take the slots that are reserved for servers: `Options::server`;
//! - to list regions without attaching to them: [`describe`], [`remove_unused`]; to look at one again and again: [`Watched`],
//!   or `Cache::look` of one that is attached;
//! - to know for certain whether another server has ended: [`Presence`];
//! - to keep what a forked child must have for itself: [`PerProcess`];
//! - to find the region of a server that is away: [`record`];
//! - to talk to a server in a program that is not its own: [`Connection`]; to let an interpreter go on while this library
//!   waits: [`run_apart_by`].

pub use crate::cancel::Uncancelled;
pub use crate::connection::Connection;
pub use crate::fork::PerProcess;
pub use crate::gate::{close_after_panic, is_open as gate_is_open, key as gate_key};
pub use crate::kernel::{KernelDoor, KernelDoorError};
pub use crate::nodes::spread_over;
pub use crate::presence::Presence;
pub use crate::socket::dropped;
pub use crate::survey::{
    Attached, Described, MAP_PARTS_MAX, Removal, SHARED_MEMORY, Seen, Watched, describe, handed_out, is_default_place,
    remove_unused,
};
pub use crate::timer::Timer;
pub use crate::wait::{RunApart, run_apart_by};
pub use keyway_region::layout::session::Entrance;
pub use keyway_region::{CALLS_PER_SAMPLE, KeyRoom, SessionId, ThreadInUse, USES};

/// The buckets by which operations are counted by their time.
pub mod latency {
    pub use keyway_region::layout::latency::{BUCKETS, bucket_start_ns};
}

/// What a server sends to a process that asks for the region at its region socket: each line, and how it goes on.
pub mod handout {
    pub use crate::handout::{DESCRIPTORS, GRANTED, GRANTED_AND_COUNTS, GRANTED_LINE, GRANTED_TO_READ, NAME, line_name};
    pub use crate::handout::{RECEIVED_MAX, receive};
}

/// Records of where a server's region is, which it leaves for programs that start while it is away.
pub mod record {
    pub use crate::record::{Address, Record, file_of, find, is_record, leave, remove, remove_stale};
}
