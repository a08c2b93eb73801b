//! The kernel door's tests: packets in, packets out.
//!
//! [`frame`] makes frames and takes answers apart, [`world`] is a small cache and what user space would answer from it,
//! [`table`] has the packets that are written down, [`random`] those that are not, and [`stage`] runs either on the host or in the
//! kernel. [`traffic`] sends real packets through interfaces of its own; [`strangers`] sends those that no client would; [`coherent`] shows that no answer is stale; [`served`] starts the door as people do. [`session`] has TCP connections, on the host.

#[cfg(feature = "load")]
pub mod coherent;
pub mod frame;
mod packets;
#[cfg(feature = "load")]
pub mod random;
#[cfg(feature = "load")]
pub mod served;
pub mod session;
#[cfg(feature = "load")]
pub mod stage;
#[cfg(feature = "load")]
pub mod strangers;
#[cfg(feature = "load")]
pub mod table;
#[cfg(feature = "load")]
pub mod traffic;
pub mod world;
