//! The ring: submits requests, returns events.
//!
//! Each request carries a number that identifies its completion: the kind in the top byte, below it the caller's token or
//! the index of the vector that is being sent.
//!
//! # Safety
//!
//! A request may name memory only if that memory lives until its completion has been taken. Receives name none (the kernel takes a
//! buffer of the ring). Sends name the heap of a vector in `sends`, which only their completion takes out again. Requests in
//! flight are counted, and a ring with any in flight leaks its memory when it is dropped.

#![allow(
    unsafe_code,
    reason = "submissions name memory for the kernel; the contract is in the module's documentation"
)]

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, cqueue, opcode, squeue};
use slab::Slab;

use crate::buffers::{Buffers, COUNT, Piece};

/// Requests that can wait for one system call; further ones cause a system call of their own.
const REQUESTS: u32 = 256;
/// Completions for which the ring has room; further ones the kernel has to store elsewhere.
const COMPLETIONS: u32 = 2048;
/// How many times, each of [`DROP_WAIT`], a ring that is dropped waits for the requests that it has cancelled.
const DROP_ROUNDS: usize = 50;
const DROP_WAIT: Duration = Duration::from_millis(10);
/// The only group of buffers.
const GROUP: u16 = 0;

const KIND_SHIFT: u32 = 56;
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
const WATCH: u64 = 3;
const CANCEL: u64 = 4;

/// The result of a request.
#[derive(Debug)]
pub enum Event {
    /// bytes have arrived; with `last`, the receive has ended with them
    Received {
        /// the socket's token
        token: usize,
        /// to be read with [`Ring::bytes`] and given back
        piece: Piece,
        /// no more will come of this receive
        last: bool,
    },
    /// a receive has ended: at the end of the input with 0, or with a negative error number
    Ended {
        /// the socket's token
        token: usize,
        /// 0, or a negative error number
        result: i32,
    },
    /// a send has ended
    Sent {
        /// the socket's token
        token: usize,
        /// the vector, as it was given
        bytes: Vec<u8>,
        /// how many bytes were sent, less than all only if the connection is broken; or a negative error number
        result: i32,
    },
    /// a watched descriptor is readable, or broken
    Ready {
        /// the descriptor's token
        token: usize,
    },
}

/// An io_uring instance of one thread, with buffers for received data.
pub struct Ring {
    ring: IoUring,
    buffers: Buffers,
    /// vectors that the kernel reads, with their sockets' tokens
    sends: Slab<(usize, Vec<u8>)>,
    /// requests whose last completion has not been taken
    in_flight: usize,
}

impl Ring {
    /// Opens a ring for the calling thread, if the system supports it. Its memory is on that thread's NUMA node.
    pub fn open() -> io::Result<Self> {
        let ring: IoUring = IoUring::builder()
            .dontfork()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .setup_taskrun_flag()
            .setup_cqsize(COMPLETIONS)
            .build(REQUESTS)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed = [
            opcode::RecvMulti::CODE,
            opcode::Send::CODE,
            opcode::PollAdd::CODE,
            opcode::AsyncCancel2::CODE,
        ];
        if !needed.into_iter().all(|code| probe.is_supported(code)) || !ring.params().is_feature_ext_arg() {
            return Err(io::ErrorKind::Unsupported.into());
        }
        let mut buffers = Buffers::new();
        // SAFETY: the area of addresses lives until the kernel no longer uses the ring (`Drop`).
        unsafe {
            ring.submitter()
                .register_buf_ring_with_flags(buffers.address(), COUNT, GROUP, 0)
        }?;
        buffers.give_all();
        Ok(Self {
            ring,
            buffers,
            sends: Slab::new(),
            in_flight: 0,
        })
    }

    /// Receives from a socket, again and again, until [`Event::Ended`] or a last [`Event::Received`]. The descriptor must
    /// be in blocking mode: with `O_NONBLOCK` the kernel would not wait for data.
    pub fn receive(&mut self, fd: RawFd, token: usize) -> io::Result<()> {
        let request = opcode::RecvMulti::new(Fd(fd), GROUP).build();
        // SAFETY: names no memory: the kernel takes a buffer of the group.
        unsafe { self.push(request, RECEIVE, token) }
    }

    /// Cancels the receive of `token`; its last event is still to come.
    pub fn cancel_receive(&mut self, token: usize) -> io::Result<()> {
        let request = opcode::AsyncCancel2::new(CancelBuilder::user_data(number(RECEIVE, token))).build();
        // SAFETY: names no memory.
        unsafe { self.push(request, CANCEL, token) }
    }

    /// Sends `bytes`, from index `from` on, to a stream socket. The caller must wait for its event before it sends again on this socket.
    pub fn send(&mut self, fd: RawFd, token: usize, bytes: Vec<u8>, from: usize) -> io::Result<()> {
        let rest = bytes.get(from..).unwrap_or_default();
        // Of an answer above 4 GiB only a part is sent; the event says how much.
        let len = u32::try_from(rest.len()).unwrap_or(u32::MAX);
        let address = rest.as_ptr();
        let place = self.sends.insert((token, bytes));
        let request = opcode::Send::new(Fd(fd), address, len)
            .flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
            .build();
        // SAFETY: the vector's heap stays where it is, unchanged, while the vector is in `sends`.
        let pushed = unsafe { self.push(request, SEND, place) };
        if pushed.is_err() {
            self.sends.remove(place);
        }
        pushed
    }

    /// Cancels the send on the socket of `token`, if there is one; its event still comes, and says how many bytes were sent: fewer than all,
    /// or -ECANCELED if none.
    pub fn cancel_send(&mut self, token: usize) -> io::Result<()> {
        let Some((place, _)) = self.sends.iter().find(|(_, (socket, _))| *socket == token) else {
            return Ok(());
        };
        let request = opcode::AsyncCancel2::new(CancelBuilder::user_data(number(SEND, place))).build();
        // SAFETY: names no memory.
        unsafe { self.push(request, CANCEL, token) }
    }

    /// Reports once, with [`Event::Ready`], that a descriptor is readable or broken.
    pub fn watch(&mut self, fd: RawFd, token: usize) -> io::Result<()> {
        let flags = u32::from((libc::POLLIN | libc::POLLRDHUP).cast_unsigned());
        let request = opcode::PollAdd::new(Fd(fd), flags).build();
        // SAFETY: names no memory.
        unsafe { self.push(request, WATCH, token) }
    }

    /// Cancels the watch of `token`; its event still comes.
    pub fn cancel_watch(&mut self, token: usize) -> io::Result<()> {
        let request = opcode::AsyncCancel2::new(CancelBuilder::user_data(number(WATCH, token))).build();
        // SAFETY: names no memory.
        unsafe { self.push(request, CANCEL, token) }
    }

    /// Submits the queued requests and waits until there is an event, at most for `timeout`.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if timeout == Some(Duration::ZERO) && !self.needs_kernel() {
            return Ok(());
        }
        let submitter = self.ring.submitter();
        let waited = match timeout {
            None => submitter.submit_and_wait(1),
            // Without a wait: completions are fetched if the kernel reports that there are some.
            Some(Duration::ZERO) => submitter.submit(),
            Some(timeout) => {
                let time = Timespec::new().sec(timeout.as_secs()).nsec(timeout.subsec_nanos());
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&time))
            }
        };
        match waited {
            // A timeout; a signal; or the kernel accepts no more before completions are taken.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::ETIME | libc::EINTR | libc::EBUSY | libc::EAGAIN)
                ) =>
            {
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// Whether requests are queued, or the kernel reports that it has completions that it has not stored.
    fn needs_kernel(&mut self) -> bool {
        let requests = self.ring.submission();
        !requests.is_empty() || requests.taskrun() || requests.cq_overflow()
    }

    /// Takes the events that have arrived.
    pub fn take(&mut self, events: &mut Vec<Event>) {
        for completion in self.ring.completion() {
            let (kind, value) = kind(completion.user_data());
            let (result, flags) = (completion.result(), completion.flags());
            let last = !cqueue::more(flags);
            self.in_flight -= usize::from(last);
            match kind {
                RECEIVE => {
                    let len = usize::try_from(result).ok();
                    let piece = len
                        .zip(cqueue::buffer_select(flags))
                        .and_then(|(len, number)| Buffers::piece(number, len));
                    match piece {
                        Some(piece) if result > 0 => events.push(Event::Received {
                            token: value,
                            piece,
                            last,
                        }),
                        other => {
                            if let Some(piece) = other {
                                self.buffers.give_back(piece);
                            }
                            if last {
                                events.push(Event::Ended { token: value, result });
                            }
                        }
                    }
                }
                SEND => {
                    if let Some((token, bytes)) = self.sends.try_remove(value) {
                        events.push(Event::Sent { token, bytes, result });
                    }
                }
                WATCH => events.push(Event::Ready { token: value }),
                // A cancellation; the cancelled request has a completion of its own.
                _ => {}
            }
        }
    }

    /// The bytes of a piece.
    pub fn bytes(&self, piece: &Piece) -> &[u8] {
        self.buffers.bytes(piece)
    }

    /// Gives a piece's buffer back to the kernel.
    pub fn give_back(&mut self, piece: Piece) {
        self.buffers.give_back(piece);
    }

    /// Queues a request.
    ///
    /// # Safety
    ///
    /// Memory that the request names must live until its last completion has been taken. Until then nothing may change it, or, if the kernel
    /// writes to it, access it.
    unsafe fn push(&mut self, request: squeue::Entry, kind: u64, value: usize) -> io::Result<()> {
        let request = request.user_data(number(kind, value));
        for _ in 0..2 {
            // SAFETY: the caller's promise, above.
            if unsafe { self.ring.submission().push(&request) }.is_ok() {
                self.in_flight += 1;
                return Ok(());
            }
            self.wait(Some(Duration::ZERO))?;
        }
        Err(io::ErrorKind::ResourceBusy.into())
    }

    /// Cancels everything and waits for it, within bounds; returns true if nothing is in flight any more.
    fn drain(&mut self) -> bool {
        if self.in_flight == 0 {
            return true;
        }
        let request = opcode::AsyncCancel2::new(CancelBuilder::any().all()).build();
        // SAFETY: names no memory.
        let _ = unsafe { self.push(request, CANCEL, 0) };
        let mut events = Vec::new();
        for _ in 0..DROP_ROUNDS {
            if self.wait(Some(DROP_WAIT)).is_err() {
                break;
            }
            self.take(&mut events);
            if self.in_flight == 0 {
                return true;
            }
        }
        false
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if !self.drain() {
            self.buffers.leak();
            std::mem::forget(std::mem::take(&mut self.sends));
        }
    }
}

fn number(kind: u64, value: usize) -> u64 {
    kind << KIND_SHIFT | value as u64 & ((1 << KIND_SHIFT) - 1)
}

#[allow(clippy::cast_possible_truncation, reason = "the value was a usize")]
fn kind(number: u64) -> (u64, usize) {
    (number >> KIND_SHIFT, (number & ((1 << KIND_SHIFT) - 1)) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    /// A ring and a pair of sockets, unless the system does not allow rings.
    fn ring() -> Option<(Ring, UnixStream, UnixStream)> {
        let ring = match Ring::open() {
            Ok(ring) => ring,
            Err(error) => {
                assert!(std::env::var_os("KEYWAY_TESTS_REQUIRE_ALL").is_none(), "no io_uring: {error}");
                return None;
            }
        };
        let (ours, theirs) = UnixStream::pair().unwrap();
        Some((ring, ours, theirs))
    }

    /// Waits until there is an event.
    fn events(ring: &mut Ring) -> Vec<Event> {
        let mut events = Vec::new();
        while events.is_empty() {
            ring.wait(Some(Duration::from_secs(10))).unwrap();
            ring.take(&mut events);
        }
        events
    }

    #[test]
    fn bytes_come_in_order_until_the_end() {
        let Some((mut ring, ours, mut theirs)) = ring() else { return };
        let sent: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251).try_into().unwrap()).collect();
        ring.receive(ours.as_raw_fd(), 7).unwrap();
        let writer = std::thread::spawn({
            let sent = sent.clone();
            move || theirs.write_all(&sent).unwrap()
        });
        let (mut got, mut over) = (Vec::new(), false);
        while !over {
            for event in events(&mut ring) {
                match event {
                    Event::Received { token: 7, piece, last } => {
                        got.extend_from_slice(ring.bytes(&piece));
                        ring.give_back(piece);
                        if last {
                            ring.receive(ours.as_raw_fd(), 7).unwrap();
                        }
                    }
                    // All buffers were in use.
                    Event::Ended { token: 7, result } if result == -libc::ENOBUFS => ring.receive(ours.as_raw_fd(), 7).unwrap(),
                    Event::Ended { token: 7, result: 0 } => over = true,
                    other => panic!("{other:?}"),
                }
            }
        }
        writer.join().unwrap();
        assert!(got == sent, "{} bytes of {}", got.len(), sent.len());
    }

    #[test]
    fn without_a_wait_requests_go_out_and_events_come_in() {
        let Some((mut ring, ours, mut theirs)) = ring() else { return };
        theirs.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        for _ in 0..3 {
            ring.send(ours.as_raw_fd(), 1, b"answer".to_vec(), 0).unwrap();
            ring.wait(Some(Duration::ZERO)).unwrap();
            theirs.read_exact(&mut [0; 6]).expect("the request is the kernel's");
        }
        ring.receive(ours.as_raw_fd(), 2).unwrap();
        ring.wait(Some(Duration::ZERO)).unwrap();
        theirs.write_all(b"request").unwrap();
        let (mut told, begun) = (Vec::new(), std::time::Instant::now());
        while !told.iter().any(|event| matches!(event, Event::Received { token: 2, .. })) {
            assert!(begun.elapsed() < Duration::from_secs(10), "{told:?}");
            ring.wait(Some(Duration::ZERO)).unwrap();
            ring.take(&mut told);
        }
    }

    #[test]
    fn a_send_is_whole_however_slowly_it_is_read_and_gives_its_vector_back() {
        let Some((mut ring, ours, mut theirs)) = ring() else { return };
        let bytes = vec![b'x'; 5_000_000];
        ring.send(ours.as_raw_fd(), 3, bytes.clone(), 0).unwrap();
        ring.wait(Some(Duration::ZERO)).unwrap();
        let reader = std::thread::spawn(move || {
            let mut got = vec![0; 5_000_000];
            theirs.read_exact(&mut got).unwrap();
            got
        });
        match events(&mut ring).as_slice() {
            [
                Event::Sent {
                    token: 3,
                    bytes: back,
                    result: 5_000_000,
                },
            ] => assert!(*back == bytes),
            other => panic!("{} events", other.len()),
        }
        assert!(reader.join().unwrap() == bytes);
    }

    #[test]
    fn a_send_that_is_cancelled_says_how_much_was_sent() {
        let Some((mut ring, ours, mut theirs)) = ring() else { return };
        let bytes: Vec<u8> = (0..5_000_000_u32).map(|i| (i % 251).try_into().unwrap()).collect();
        for _ in 0..2 {
            ring.send(ours.as_raw_fd(), 3, bytes.clone(), 0).unwrap();
            ring.wait(Some(Duration::ZERO)).unwrap();
            ring.cancel_send(3).unwrap();
            let sent = match events(&mut ring).as_slice() {
                [
                    Event::Sent {
                        token: 3,
                        bytes: back,
                        result,
                    },
                ] => {
                    assert!(*back == bytes);
                    assert!(*result >= 0 || *result == -libc::ECANCELED, "{result}");
                    usize::try_from(*result).unwrap_or(0)
                }
                other => panic!("{other:?}"),
            };
            assert!(sent < bytes.len());
            let mut got = vec![0; sent];
            theirs.read_exact(&mut got).unwrap();
            assert!(got == bytes[..sent]);
            theirs.set_nonblocking(true).unwrap();
            assert_eq!(
                theirs.read(&mut [0]).unwrap_err().kind(),
                io::ErrorKind::WouldBlock,
                "not a byte more"
            );
            theirs.set_nonblocking(false).unwrap();
        }
        ring.cancel_send(3).unwrap();
    }

    #[test]
    fn a_receive_that_is_cancelled_ends_and_loses_nothing() {
        let Some((mut ring, mut ours, mut theirs)) = ring() else {
            return;
        };
        ring.receive(ours.as_raw_fd(), 1).unwrap();
        ring.wait(Some(Duration::ZERO)).unwrap();
        ring.cancel_receive(1).unwrap();
        let ended = events(&mut ring);
        assert!(
            matches!(ended[..], [Event::Ended { token: 1, result }] if result == -libc::ECANCELED),
            "{ended:?}"
        );
        theirs.write_all(b"after").unwrap();
        let mut got = [0; 5];
        ours.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"after");
    }

    #[test]
    fn a_watch_tells_once_and_a_broken_peer_is_an_error() {
        let Some((mut ring, ours, mut theirs)) = ring() else { return };
        ring.watch(ours.as_raw_fd(), 9).unwrap();
        theirs.write_all(b"x").unwrap();
        assert!(matches!(events(&mut ring)[..], [Event::Ready { token: 9 }]));
        drop(theirs);
        ring.send(ours.as_raw_fd(), 2, b"nobody".to_vec(), 0).unwrap();
        assert!(matches!(events(&mut ring)[..], [Event::Sent { token: 2, result, .. }] if result == -libc::EPIPE));
    }

    #[test]
    fn a_ring_may_be_dropped_with_everything_in_flight() {
        let Some((mut ring, ours, theirs)) = ring() else { return };
        ring.receive(ours.as_raw_fd(), 0).unwrap();
        ring.send(ours.as_raw_fd(), 0, vec![0; 5_000_000], 0).unwrap();
        ring.watch(theirs.as_raw_fd(), 1).unwrap();
        ring.wait(Some(Duration::ZERO)).unwrap();
        drop(ring);
        assert!(matches!(Ring::open().map(drop), Ok(())));
    }
}
