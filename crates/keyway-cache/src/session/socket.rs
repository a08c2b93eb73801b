//! Sending a value from the region to a socket without copying it in this process: the kernel reads it in its place; and what a socket has
//! dropped.
//!
//! The call that sends does not wait. What the socket does not take at once is copied, and the caller sends it later. During the
//! call a hazard pointer keeps the value's segment from being recycled ([`keyway_region::PinnedValue`]), so the bytes
//! that the kernel copies are the item's. After the call, the socket refers to nothing in the region.
//!
//! # Safety
//!
//! The `unsafe` here is two system calls. sendmsg(2) reads three areas: two slices, and the borrowed value, which is
//! mapped for as long as it is borrowed; no Rust reference to the region's bytes is made. getsockopt(2) writes to an array of its own.
#![allow(
    unsafe_code,
    reason = "system calls, one of which is given an address in the region; contract above"
)]

use keyway_region::PinnedValue;
use nix::libc;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sends `out`, the value and what follows it. What the socket does not take at once is in `out` afterwards.
pub(crate) fn send_or_copy(to: BorrowedFd<'_>, out: &mut Vec<u8>, value: &PinnedValue<'_>, behind: &[u8]) -> usize {
    let sent = send(to, out, value, behind);
    let of_value = sent.saturating_sub(out.len());
    let of_tail = of_value.saturating_sub(value.len());
    out.drain(..sent.min(out.len()));
    if of_value < value.len() {
        value.append_from(of_value, out);
    }
    out.extend_from_slice(behind.get(of_tail..).unwrap_or_default());
    sent
}

/// Sends `before`, the value and `behind`, as far as the socket takes them at once. Returns the number of bytes sent. An
/// error counts as 0 bytes: the caller meets it again when it sends the rest.
fn send(socket: BorrowedFd<'_>, before: &[u8], value: &PinnedValue<'_>, behind: &[u8]) -> usize {
    let area = |address: *const u8, len| libc::iovec {
        iov_base: address.cast_mut().cast(),
        iov_len: len,
    };
    let mut areas = [
        area(before.as_ptr(), before.len()),
        area(value.address(), value.len()),
        area(behind.as_ptr(), behind.len()),
    ];
    // SAFETY: a message header of zeros is valid, and refers to nothing.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = areas.as_mut_ptr();
    message.msg_iovlen = areas.len();
    // SAFETY: the kernel only reads the areas, which live throughout the call.
    let sent = unsafe {
        libc::sendmsg(
            socket.as_raw_fd(),
            &raw const message,
            libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL,
        )
    };
    usize::try_from(sent).unwrap_or(0)
}

/// Words that the kernel has of a socket's memory (linux/sock_diag.h, `SK_MEMINFO_VARS`), with room for later ones.
const MEMORY_WORDS: u32 = 16;

/// Datagrams that the kernel has dropped at a socket because its buffer was full, since it was made; `None` if the kernel does not say.
pub fn dropped(socket: BorrowedFd<'_>) -> Option<u32> {
    let mut words = [0_u32; MEMORY_WORDS as usize];
    let mut len = 4 * MEMORY_WORDS;
    // SAFETY: the kernel writes `len` bytes at most, which the array has.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            words.as_mut_ptr().cast(),
            &raw mut len,
        )
    };
    // An old kernel does not know the option, or has fewer words.
    let is_said = failed == 0 && len > 4 * libc::SK_MEMINFO_DROPS.cast_unsigned();
    is_said.then_some(words[libc::SK_MEMINFO_DROPS as usize])
}

#[cfg(test)]
mod tests {
    use super::dropped;
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    #[test]
    fn what_is_no_socket_says_nothing() {
        assert_eq!(dropped(std::fs::File::open("/dev/null").unwrap().as_fd()), None);
    }

    #[test]
    fn datagrams_that_a_full_buffer_drops_are_counted() {
        let [full, other, client] = [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        full.set_nonblocking(true).unwrap();
        // Larger than any default of a buffer (net.core.rmem_default).
        let sent = 3_000;
        for _ in 0..sent {
            client.send_to(&[7; 1_000], full.local_addr().unwrap()).unwrap();
        }
        let mut taken = 0;
        while full.recv(&mut [0; 1_000]).is_ok() {
            taken += 1;
        }
        assert!(taken < sent, "nothing was dropped");
        assert_eq!((dropped(full.as_fd()), dropped(other.as_fd())), (Some(sent - taken), Some(0)));
    }
}
