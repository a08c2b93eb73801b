//! Sending a value from the region to a socket without copying it in this process: the kernel reads it in its place.
//!
//! The call does not wait. What the socket does not take at once is copied, and the caller sends it later. During the
//! call a hazard pointer (hazard pointer) keeps the value's segment from being recycled ([`keyway_region::PinnedValue`]), so the bytes
//! that the kernel copies are the item's. After the call, the socket refers to nothing in the region.
//!
//! # Safety
//!
//! The `unsafe` here is one system call, sendmsg(2). It reads three areas: two slices, and the borrowed value, which is
//! mapped for as long as it is borrowed. No Rust reference to the region's bytes is made.
#![allow(
    unsafe_code,
    reason = "a system call that is given an address in the region; contract above"
)]

use keyway_region::PinnedValue;
use nix::libc;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sends `before`, the value and `behind`, as far as the socket takes them at once. Returns the number of bytes sent. An
/// error counts as 0 bytes: the caller meets it again when it sends the rest.
pub(crate) fn send(socket: BorrowedFd<'_>, before: &[u8], value: &PinnedValue<'_>, behind: &[u8]) -> usize {
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
