//! On which NUMA nodes a region's memory is.
//!
//! One thread allocates all of a region's memory, when it creates or grows the region. So without further measures the
//! memory would be on that thread's node, and fill it. A process that works on several nodes names them with
//! [`spread_over`]. Pages then come from these nodes in turn (set_mempolicy(2), MPOL_INTERLEAVE), because it cannot be
//! known on which node an item will be requested. This does not concern what a thread allocates for itself: that comes
//! from its own node.
//!
//! # Safety
//!
//! The `unsafe` here is two system calls about the calling thread's memory policy, each with a bit set of its own, which
//! the kernel reads or writes during the call; and a pointer to a list that is never changed nor freed.
#![allow(
    unsafe_code,
    reason = "two system calls with a bit set each, and a list for ever; contract above"
)]

use nix::libc;
use std::io;
use std::ptr::null_mut;
use std::sync::atomic::AtomicPtr;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Number of nodes that a set has room for: the most that any kernel is built for (CONFIG_NODES_SHIFT is at most 10).
const NODES_MAX: usize = 1024;
/// linux/mempolicy.h.
const MPOL_INTERLEAVE: libc::c_int = 3;

/// The nodes of this process; NULL: it has not named any. Forked children have their parent's. PAIRS: the store in
/// [`spread_over`] and the load in [`named`].
static NODES: AtomicPtr<Vec<usize>> = AtomicPtr::new(null_mut());

/// From now on, memory that this process gives to regions comes from these NUMA nodes in turn. With no nodes, it comes
/// from the node of the thread that allocates it.
pub fn spread_over(nodes: &[usize]) {
    // A list that was named before stays: another thread may be reading it. A process names its nodes once.
    // PAIRS: once: the list is written before another thread finds it.
    NODES.store(Box::into_raw(Box::new(nodes.to_vec())), Release);
}

fn named() -> &'static [usize] {
    // PAIRS: once: a list that is found is written.
    // SAFETY: NULL, or a list that is neither changed nor freed.
    unsafe { NODES.load(Acquire).as_ref() }.map_or(&[], Vec::as_slice)
}

/// A thread's memory policy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Policy {
    mode: libc::c_int,
    nodes: [u64; NODES_MAX / 64],
}

impl Policy {
    fn interleaved(nodes: &[usize]) -> Self {
        let mut policy = Self {
            mode: MPOL_INTERLEAVE,
            nodes: [0; NODES_MAX / 64],
        };
        for node in nodes {
            if let Some(word) = policy.nodes.get_mut(node / 64) {
                *word |= 1 << (node % 64);
            }
        }
        policy
    }

    fn of_this_thread() -> io::Result<Self> {
        let mut policy = Self::interleaved(&[]);
        // SAFETY: the kernel writes both during the call, the set up to its length in bits. The call asks about no
        // address.
        let answer = unsafe {
            libc::syscall(
                libc::SYS_get_mempolicy,
                &raw mut policy.mode,
                policy.nodes.as_mut_ptr(),
                NODES_MAX,
                0,
                0,
            )
        };
        if answer == 0 {
            Ok(policy)
        } else {
            Err(io::Error::last_os_error())
        }
    }

    fn take(&self) -> io::Result<()> {
        let is_empty = self.nodes.iter().all(|word| *word == 0);
        let set = if is_empty { std::ptr::null() } else { self.nodes.as_ptr() };
        // One more than the set has bits: the kernel subtracts one (set_mempolicy(2), notes on maxnode).
        let bits = if is_empty { 0 } else { NODES_MAX + 1 };
        // SAFETY: the kernel reads the set during the call, up to its length in bits.
        let answer = unsafe { libc::syscall(libc::SYS_set_mempolicy, self.mode, set, bits) };
        if answer == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

/// As long as it lives, pages that its thread allocates come from the process's nodes in turn.
pub(crate) struct Spread(Option<Policy>);

impl Spread {
    /// Without nodes, or if the kernel has no memory policies, nothing changes.
    pub(crate) fn begin() -> Self {
        let nodes = named();
        if nodes.is_empty() {
            return Self(None);
        }
        let begun = Policy::of_this_thread().and_then(|before| Policy::interleaved(nodes).take().map(|()| before));
        match begun {
            Ok(before) => Self(Some(before)),
            Err(error) => {
                log::debug!("memory is not spread over the NUMA nodes {nodes:?}: {error}");
                Self(None)
            }
        }
    }
}

impl Drop for Spread {
    fn drop(&mut self) {
        if let Some(before) = &self.0
            && let Err(error) = before.take()
        {
            log::warn!("this thread's memory goes on coming from several NUMA nodes: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::print_stdout, reason = "says that it cannot run here")]
    fn pages_come_from_the_nodes_in_turn_as_long_as_memory_is_given() {
        let before = match Policy::of_this_thread() {
            Ok(policy) => policy,
            Err(error) => {
                assert!(std::env::var_os("KEYWAY_TESTS_REQUIRE_ALL").is_none(), "no policies: {error}");
                println!("SKIP: this kernel has no memory policies: {error}");
                return;
            }
        };
        assert!(Spread::begin().0.is_none(), "no option says which nodes");
        spread_over(&[0]);
        let spread = Spread::begin();
        assert_eq!(Policy::of_this_thread().unwrap(), Policy::interleaved(&[0]));
        drop(spread);
        assert_eq!(Policy::of_this_thread().unwrap(), before);
        // With nodes that do not exist, allocation works as before, without an error.
        spread_over(&[NODES_MAX - 1, NODES_MAX + 7]);
        drop(Spread::begin());
        assert_eq!(Policy::of_this_thread().unwrap(), before);
        spread_over(&[]);
    }

    #[test]
    fn sets_have_a_bit_a_node() {
        let policy = Policy::interleaved(&[0, 3, 64]);
        assert_eq!(policy.nodes[..3], [0b1001, 1, 0]);
    }
}
