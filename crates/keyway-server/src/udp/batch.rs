//! Batches of datagrams: those that one system call has received, and those that one system call sends.
//!
//! Never: reads a request, or decides what is answered.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::os::fd::AsRawFd;

use keyway_proto::frame::{ANSWER_LEN_MAX, FRAME_LEN, datagrams};
use mio::net::UdpSocket;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg};

use super::datagram::ANSWER_TOO_LONG;
use crate::shared::Peer;

/// Datagrams received or sent with one system call.
pub(super) const BATCH: usize = 32;
/// Room for any datagram: IPv4 and IPv6 have no longer ones (udp(7)).
const RECEIVED_LEN_MAX: usize = 1 << 16;
/// When this many bytes of answers wait, they are sent; also the capacity that is kept for them.
pub(super) const UNSENT_PAUSE: usize = 256 * 1024;

/// Datagrams that have arrived.
pub(super) struct Inbox {
    /// room for [`BATCH`] of them
    pub(super) bytes: Vec<u8>,
    headers: MultiHeaders<SockaddrStorage>,
    /// length and source of each, in the order of their places in `bytes`
    pub(super) arrived: Vec<(usize, Option<SockaddrStorage>)>,
    next: usize,
}

/// Datagrams to send, as parallel vectors, which is how the system call takes them.
pub(super) struct Outbox {
    /// the answers, one after the other
    pub(super) bytes: Vec<u8>,
    /// header, and place of the payload in `bytes`
    datagrams: Vec<([u8; FRAME_LEN], Range<usize>)>,
    targets: Vec<Option<SockaddrStorage>>,
    headers: MultiHeaders<SockaddrStorage>,
    next: usize,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self {
            // The kernel has not allocated the pages of zeroed memory yet: only pages that datagrams fill use memory.
            bytes: vec![0; BATCH * RECEIVED_LEN_MAX],
            headers: MultiHeaders::preallocate(BATCH, None),
            arrived: Vec::with_capacity(BATCH),
            next: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next == self.arrived.len()
    }

    /// Receives up to [`BATCH`] datagrams; returns their total length.
    pub(super) fn fill(&mut self, socket: &UdpSocket) -> Result<usize, Errno> {
        self.arrived.clear();
        self.next = 0;
        let mut rooms = self.bytes.chunks_exact_mut(RECEIVED_LEN_MAX);
        let mut slices: [_; BATCH] = std::array::from_fn(|_| [IoSliceMut::new(rooms.next().unwrap_or_default())]);
        let received = recvmmsg(
            socket.as_raw_fd(),
            &mut self.headers,
            slices.iter_mut(),
            MsgFlags::MSG_DONTWAIT,
            None,
        )?;
        self.arrived.extend(received.map(|message| (message.bytes, message.address)));
        Ok(self.arrived.iter().map(|(len, _)| len).sum())
    }

    /// The place in `bytes` and the source of the next datagram.
    pub(super) fn take(&mut self) -> Option<(Range<usize>, Option<SockaddrStorage>)> {
        let (len, source) = *self.arrived.get(self.next)?;
        let start = self.next * RECEIVED_LEN_MAX;
        self.next += 1;
        Some((start..start + len, source))
    }
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(UNSENT_PAUSE),
            datagrams: Vec::with_capacity(BATCH),
            targets: Vec::with_capacity(BATCH),
            headers: MultiHeaders::preallocate(BATCH, None),
            next: 0,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.next == self.datagrams.len()
    }

    pub(super) fn clear(&mut self) {
        self.next = 0;
        self.datagrams.clear();
        self.targets.clear();
        self.bytes.clear();
        // Releases the memory of an answer of many megabytes.
        self.bytes.shrink_to(2 * UNSENT_PAUSE);
    }

    /// Makes datagrams of the answer in `bytes` from `start` on.
    pub(super) fn queue(&mut self, id: [u8; 2], start: usize, target: Option<SockaddrStorage>) {
        if self.bytes.len() - start > ANSWER_LEN_MAX {
            self.bytes.truncate(start);
            self.bytes.extend_from_slice(ANSWER_TOO_LONG);
        }
        for (header, place) in datagrams(id, self.bytes.len() - start) {
            self.datagrams.push((header, start + place.start..start + place.end));
            self.targets.push(target);
        }
    }

    /// Sends as many datagrams as the socket takes; returns their total length.
    pub(super) fn send(&mut self, socket: &UdpSocket, shown: &Peer) -> usize {
        let mut sent_len = 0;
        while !self.is_empty() {
            match self.send_batch(socket) {
                Ok(count) => {
                    let sent = &self.datagrams[self.next..self.next + count];
                    sent_len += sent.iter().map(|(header, place)| header.len() + place.len()).sum::<usize>();
                    self.next += count;
                }
                Err(Errno::EAGAIN) => return sent_len,
                Err(Errno::EINTR) => {}
                Err(error) => {
                    // No route, a firewall, or no memory: this datagram is lost, which UDP allows.
                    log::debug!("{}: sending: {error}", shown.address);
                    self.next += 1;
                }
            }
        }
        self.clear();
        sent_len
    }

    fn send_batch(&mut self, socket: &UdpSocket) -> Result<usize, Errno> {
        let mut waiting = self.datagrams[self.next..].iter();
        let slices: [_; BATCH] = std::array::from_fn(|_| match waiting.next() {
            Some((header, place)) => [IoSlice::new(header), IoSlice::new(&self.bytes[place.clone()])],
            None => [IoSlice::new(&[]), IoSlice::new(&[])],
        });
        let targets = &self.targets[self.next..self.targets.len().min(self.next + BATCH)];
        let sent = sendmmsg(
            socket.as_raw_fd(),
            &mut self.headers,
            slices.iter(),
            targets,
            [],
            MsgFlags::MSG_DONTWAIT,
        )?;
        Ok(sent.count())
    }
}
