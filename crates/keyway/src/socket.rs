//! A value from the region to a socket without a copy of ours: the kernel reads it where it lies.
//!
//! The call does not wait: what the socket does not take at once is copied, and sent by whoever asked later. During the call an intent
//! keeps the value's segment from being recycled ([`keyway_region::Lent`]), so the bytes that the kernel copies are the item's. Nothing
//! of the region is referred to by the socket afterwards.
//!
//! # Safety
//!
//! The `unsafe` here is one system call, sendmsg(2), that reads three areas: two slices, and the lent value, which is mapped for as long as
//! it is lent. No Rust reference to the region's bytes is made.
#![allow(
    unsafe_code,
    reason = "a system call that is given an address in the region; contract above"
)]

use keyway_region::Lent;
use nix::libc;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Sends `before`, the value and `behind` as far as the socket takes them at once; how many bytes that was. An error is no bytes: it meets
/// whoever sends the rest.
pub(crate) fn send(socket: BorrowedFd<'_>, before: &[u8], value: &Lent<'_>, behind: &[u8]) -> usize {
    let area = |address: *const u8, len| libc::iovec {
        iov_base: address.cast_mut().cast(),
        iov_len: len,
    };
    let mut areas = [
        area(before.as_ptr(), before.len()),
        area(value.address(), value.len()),
        area(behind.as_ptr(), behind.len()),
    ];
    // SAFETY: a message header of zeros names nothing.
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
