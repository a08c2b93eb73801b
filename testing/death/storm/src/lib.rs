//! The storm: processes that work on one region through its doors while they are killed, stopped, resumed, forked and
//! restarted at random, and the judgement of what they were answered.
//!
//! [`round`] is one storm over one set of keys: it starts the workers ([`worker`]), does what the seeded [`weather`] says, and
//! judges the journals that the workers leave. A [`journal`] lies in shared memory, so a SIGKILL loses nothing of it. [`door`]
//! has the ways into the region; [`system`] is what the operating system is asked for. Values, calls and the judge are the crate
//! `histories`.

pub mod door;
pub mod journal;
pub mod round;
pub mod system;
pub mod weather;
pub mod worker;
