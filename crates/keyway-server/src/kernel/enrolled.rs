//! The TCP connections whose requests the program may answer: their slots, and the words that are published for them.
//!
//! A connection is enrolled with its socket and a *ticket*, a random number. While the connection is at rest, the word in its slot is the
//! ticket and the number of bytes that were read from its socket. The program compares this with the number of bytes that the socket has
//! received, so a word needs no change when more bytes arrive. When anything else may follow, the word is 0.
//! `connection/rest.rs` decides which connections are enrolled, and when one is at rest.
//!
//! Always: a slot belongs to one connection of this process at a time, and its word is 0 before the next connection gets it. A word that an
//! earlier process has left there has another ticket.
//!
//! Never: reads or writes a socket.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

use keyway_xdp::Connections;
use ring::rand::{SecureRandom, SystemRandom};

use crate::basics::lock;
use crate::stats::EnrolledNumbers;

/// The program's side; tests have one without a program.
pub(crate) trait ProgramSide: Send + Sync {
    /// Number of slots.
    fn slots(&self) -> u32;
    /// Makes the program look at this socket's segments.
    fn enrol(&self, socket: BorrowedFd<'_>, slot: u32, ticket: u64) -> io::Result<()>;
    /// Publishes a word; 0: not at rest.
    fn publish(&self, slot: u32, word: u64);
    /// Number of live sockets whose sequence numbers the program translates.
    fn translated(&self) -> Result<usize, String>;
}

impl ProgramSide for Connections {
    fn slots(&self) -> u32 {
        Self::SLOTS
    }

    fn enrol(&self, socket: BorrowedFd<'_>, slot: u32, ticket: u64) -> io::Result<()> {
        self.enrol(socket, slot, ticket)
    }

    fn publish(&self, slot: u32, word: u64) {
        self.publish(slot, word);
    }

    fn translated(&self) -> Result<usize, String> {
        self.translated().map_err(|error| error.to_string())
    }
}

/// All enrolled connections of this process.
pub(crate) struct Enrolments {
    program: Arc<dyn ProgramSide>,
    /// the address, on this side, of the connections that may be enrolled
    local: SocketAddr,
    slots: Mutex<Slots>,
    total: AtomicU64,
    current: AtomicU64,
    failures: AtomicU64,
}

struct Slots {
    /// slots of connections that have ended
    free: Vec<u32>,
    /// the first slot that no connection has had
    next: u32,
}

/// A connection that is enrolled, until this is dropped.
pub(crate) struct Enrolment {
    enrolments: Arc<Enrolments>,
    slot: u32,
    ticket: u64,
    /// published last
    word: u64,
}

impl Enrolments {
    /// For the connections at this address, which is the program's own.
    pub(crate) fn new(program: Arc<dyn ProgramSide>, local: SocketAddr) -> Self {
        Self {
            program,
            local,
            slots: Mutex::new(Slots {
                free: Vec::new(),
                next: 0,
            }),
            total: AtomicU64::new(0),
            current: AtomicU64::new(0),
            failures: AtomicU64::new(0),
        }
    }

    /// Whether a connection that came to this address may be enrolled.
    pub(crate) fn admits(&self, local: SocketAddr) -> bool {
        local.ip() == self.local.ip() && local.port() == self.local.port()
    }

    /// Enrols a connection with this socket. `None`: it stays in user space; the reason is logged once.
    pub(crate) fn enrol(self: &Arc<Self>, socket: BorrowedFd<'_>) -> Option<Enrolment> {
        match self.try_to_enrol(socket) {
            Ok(enrolment) => Some(enrolment),
            Err(error) => {
                if self.failures.fetch_add(1, Relaxed) == 0 {
                    log::warn!(
                        "the kernel door cannot serve a TCP connection, which stays with the server: {error}; further failures are only counted"
                    );
                }
                None
            }
        }
    }

    fn try_to_enrol(self: &Arc<Self>, socket: BorrowedFd<'_>) -> io::Result<Enrolment> {
        let mut random = [0; 8];
        SystemRandom::new()
            .fill(&mut random)
            .map_err(|_| io::Error::other("no random numbers"))?;
        let ticket = u64::from_ne_bytes(random);
        let slot = self.take_slot().ok_or_else(|| {
            let most = self.program.slots();
            io::Error::other(format!("{most} connections are served already, which is the most"))
        })?;
        self.current.fetch_add(1, Relaxed);
        // Dropping it gives the slot back.
        let enrolment = Enrolment {
            enrolments: Arc::clone(self),
            slot,
            ticket,
            word: 0,
        };
        self.program.enrol(socket, slot, ticket)?;
        self.total.fetch_add(1, Relaxed);
        Ok(enrolment)
    }

    fn take_slot(&self) -> Option<u32> {
        let mut slots = lock(&self.slots);
        if let Some(slot) = slots.free.pop() {
            return Some(slot);
        }
        let slot = slots.next;
        (slot < self.program.slots()).then(|| {
            slots.next += 1;
            slot
        })
    }

    /// Number of live sockets whose sequence numbers the program translates, those of other servers that use the same program included.
    pub(crate) fn translated(&self) -> Result<usize, String> {
        self.program.translated()
    }

    /// How many there were and are.
    pub(crate) fn numbers(&self) -> EnrolledNumbers {
        EnrolledNumbers {
            total: self.total.load(Relaxed),
            current: self.current.load(Relaxed),
            failures: self.failures.load(Relaxed),
        }
    }
}

impl Enrolment {
    /// So many bytes were read from the socket, all requests in them are executed, and all output is in the socket.
    pub(crate) fn is_at_rest(&mut self, read: u64) {
        // The sum is 0 once in 2^64 tickets: that connection is then not at rest.
        self.publish(self.ticket.wrapping_add(read));
    }

    /// The server may do something that does not follow from bytes that it reads.
    pub(crate) fn is_not_at_rest(&mut self) {
        self.publish(0);
    }

    /// Whether the program may answer now, if no bytes have arrived.
    pub(crate) fn is_published(&self) -> bool {
        self.word != 0
    }

    fn publish(&mut self, word: u64) {
        if self.word != word {
            self.word = word;
            self.enrolments.program.publish(self.slot, word);
        }
    }
}

impl Drop for Enrolment {
    fn drop(&mut self) {
        self.is_not_at_rest();
        self.enrolments.current.fetch_sub(1, Relaxed);
        lock(&self.enrolments.slots).free.push(self.slot);
    }
}
