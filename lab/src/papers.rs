//! One file for each paper: its experiments as presets, its numbers, and what differs here.

pub mod hippos;
pub mod hodor;
pub mod kernel_door;
pub mod pmemcached;
pub mod restart;
pub mod unbuckle;
