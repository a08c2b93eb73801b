//! The program's own C, compiled for this machine's CPU instead of the kernel: for tests and fuzzers, which can call it millions of
//! times with every access checked.
//!
//! # Safety
//!
//! `host.c` reads the index, pages, stripes and control block that [`World`] borrows, within the lengths that its config
//! states, which [`Program::decide`] checks before; it writes the scratch memory, which is its own and of the size that it
//! states itself, and one word of a copy. A connection's memory is a [`Connection`]'s own. Frames and keys are copied in whole, after their lengths were checked.
#![allow(unsafe_code)]

use std::net::IpAddr;
use std::sync::atomic::AtomicU64;

use crate::config::{Config, Verdict};
use crate::hot::{HotSet, PAGE_SIZE, STRIPES};

/// Longest frame that is examined.
const FRAME_LEN_MAX: usize = 1900;
/// Longest key.
const KEY_LEN_MAX: usize = 250;

/// What the program reads besides a packet.
#[derive(Clone, Copy, Debug)]
pub struct World<'a> {
    /// its configuration
    pub config: &'a Config,
    /// the copies
    pub hot: HotSet<'a>,
    /// CLOCK_MONOTONIC, ns
    pub now_ns: u64,
    /// every source is above its rate
    pub over_rate: bool,
    /// this host sends nothing to the source through the interface that the packet arrived by
    pub no_path: bool,
}

/// The program, with its scratch memory.
pub struct Program {
    scratch: Vec<u64>,
}

/// `struct kw_host`
#[repr(C)]
struct Host {
    index: *const AtomicU64,
    pages: *const AtomicU64,
    stripes: *const AtomicU64,
    control: *const AtomicU64,
    config: *const Config,
    now_ns: u64,
    over_rate: u32,
    no_path: u32,
}

unsafe extern "C" {
    safe fn kw_host_scratch_size() -> usize;
    safe fn kw_host_time_bucket(ns: u64) -> u32;
    fn kw_host_hash(scratch: *mut u64, seed: u64, key: *const u8, len: u32) -> u64;
    fn kw_host_decide(
        host: *const Host,
        scratch: *mut u64,
        frame: *const u8,
        len: u32,
        v6: i32,
        answer: *mut *const u8,
        answer_len: *mut u32,
    ) -> i32;
}

impl Default for Program {
    fn default() -> Self {
        Self {
            scratch: vec![0; kw_host_scratch_size().div_ceil(8)],
        }
    }
}

/// The bucket in which the program counts a time.
pub fn time_bucket(ns: u64) -> usize {
    kw_host_time_bucket(ns) as usize
}

impl Program {
    /// The program's hash of a key, or `None` if the key is too long.
    pub fn hash(&mut self, seed: u64, key: &[u8]) -> Option<u64> {
        let len = u32::try_from(key.len()).ok().filter(|_| key.len() <= KEY_LEN_MAX)?;
        // SAFETY: the scratch memory is as large as the C side says; the key has `len` bytes, and there is room for 250.
        Some(unsafe { kw_host_hash(self.scratch.as_mut_ptr(), seed, key.as_ptr(), len) })
    }

    /// The program's verdict on an Ethernet frame to the configured address, and the answer of a hit.
    ///
    /// # Panics
    ///
    /// When the world's parts are smaller than its config says.
    pub fn decide(&mut self, world: &World<'_>, frame: &[u8]) -> (Verdict, &[u8]) {
        let hot = &world.hot;
        assert!(hot.bucket_mask() >= world.config.bucket_mask(), "the index is too small");
        assert!(
            hot.pages.len() * 8 >= world.config.pages() * PAGE_SIZE,
            "there are too few pages"
        );
        assert!(hot.stripes.len() > STRIPES && hot.control.len() >= crate::hot::CONTROL_WORDS);
        let Some(len) = u32::try_from(frame.len()).ok().filter(|_| frame.len() <= FRAME_LEN_MAX) else {
            return (Verdict::OddPacket, &[]);
        };
        let host = Host {
            index: hot.index.as_ptr(),
            pages: hot.pages.as_ptr(),
            stripes: hot.stripes.as_ptr(),
            control: hot.control.as_ptr(),
            config: world.config,
            now_ns: world.now_ns,
            over_rate: world.over_rate.into(),
            no_path: world.no_path.into(),
        };
        let v6 = matches!(world.config.address(), IpAddr::V6(_));
        let (mut answer, mut answer_len) = (std::ptr::null(), 0);
        // SAFETY: every part of the world is as long as its config says (asserted above) and lives until the call is over; the
        // scratch memory is as large as the C side says; the frame has `len` bytes.
        let verdict = unsafe {
            kw_host_decide(
                &raw const host,
                self.scratch.as_mut_ptr(),
                frame.as_ptr(),
                len,
                v6.into(),
                &raw mut answer,
                &raw mut answer_len,
            )
        };
        let verdict = Verdict::from_number(verdict);
        if verdict != Verdict::Hit {
            return (verdict, &[]);
        }
        // SAFETY: with a hit, the answer is this many bytes of the scratch memory, which `self` keeps borrowed.
        (verdict, unsafe { std::slice::from_raw_parts(answer, answer_len as usize) })
    }
}

/// What is done with a segment of a client, and the numbers of what goes out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Decision {
    /// 0: to the socket; 1: answered; 2: the last answer again; 3: the socket is asked for an acknowledgement
    pub step: u32,
    /// sequence number for the socket
    pub seq: u32,
    /// acknowledgement for the socket
    pub ack: u32,
    /// not 0: the socket gets the headers of what is answered
    pub tells: u32,
    /// sequence number of the answer
    pub reply_seq: u32,
    /// its acknowledgement
    pub reply_ack: u32,
    /// its length
    pub reply_len: u32,
}

/// The server's socket, as the program sees it. Numbers are the socket's.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Socket {
    /// 1: established (linux/tcp_states.h)
    pub state: u32,
    /// after the last byte received in order
    pub received: u32,
    /// after the last byte sent
    pub sent: u32,
    /// after the last byte that it was given to send
    pub written: u32,
    /// longest data of a segment, bytes
    pub mss: u32,
    /// segments that it believes not acknowledged
    pub in_flight: u32,
    /// shift of the client's window
    pub scale: u32,
}

/// What the program finds of a segment in a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Reading {
    /// sequence number
    pub seq: u32,
    /// acknowledgement
    pub ack: u32,
    /// length of the data, bytes
    pub len: u32,
    /// window, not scaled
    pub window: u32,
    /// both ports, as they are in the packet
    pub ports: [u8; 4],
    /// the sender's timestamp as it is in the packet; of a segment without one, whatever is there
    pub stamp: [u8; 4],
    /// the flags
    pub flags: u32,
    /// 1: its options begin with a timestamp as Linux writes it
    pub is_stamped: u32,
    /// not 0: it has IP options, or is a part of a packet
    pub is_odd: u32,
}

/// A packet, as the kernel has it besides its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Form {
    /// so many of its first bytes lie together
    pub linear: usize,
    /// not 0: it is several segments with so many bytes of data each
    pub gso_size: u32,
    /// hardware will write the checksum
    pub is_partial: bool,
    /// from the client
    pub is_incoming: bool,
    /// a TCP socket of this machine has sent it
    pub from_socket: bool,
}

/// What became of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Translated {
    /// not TCP, or of another address or port
    NotOurs,
    /// no whole segment
    Refused,
    /// it has the other end's numbers
    Done(Reading),
    /// it could not be changed
    Failed,
}

/// A TCP connection as the program knows it.
pub struct Connection {
    memory: Vec<u64>,
    scratch: Vec<u64>,
}

unsafe extern "C" {
    safe fn kw_host_connection_size() -> usize;
    fn kw_host_arrive(
        connection: *mut u64,
        header: *const u8,
        len: u32,
        is_part: i32,
        socket: *const Socket,
        bytes_received: u64,
        word: u64,
        answer_len: u32,
        now_ns: u64,
        decision: *mut Decision,
    );
    fn kw_host_answered(connection: *mut u64);
    fn kw_host_depart(connection: *mut u64, len: u32, flags: u8, now_ns: u64, numbers: *mut u32);
    fn kw_host_options(connection: *const u64, scratch: *mut u64, options: *mut u8, len: u32, to_client: i32);
    fn kw_host_translate(
        connection: *const u64,
        scratch: *mut u64,
        config: *const Config,
        packet: *mut u8,
        len: u32,
        linear: u32,
        gso_size: u32,
        is_partial: i32,
        is_incoming: i32,
        from_socket: i32,
        reading: *mut Reading,
    ) -> i32;
    fn kw_host_make(
        scratch: *mut u64,
        frame: *const u8,
        len: u32,
        numbers: *const u32,
        answer: *const u8,
        answer_len: u32,
        v6: i32,
        made: *mut u8,
    ) -> u32;
}

impl Default for Connection {
    fn default() -> Self {
        Self {
            memory: vec![0; kw_host_connection_size().div_ceil(8)],
            scratch: vec![0; kw_host_scratch_size().div_ceil(8)],
        }
    }
}

impl Connection {
    /// Decides on a segment of `len` bytes of data with this TCP header, or on the first part of one, with `len` bytes of it; `answer_len` is the length of its answer, 0 if it has none. `now_ns`
    /// is CLOCK_MONOTONIC.
    #[expect(
        clippy::too_many_arguments,
        reason = "what the program sees of a segment, of its socket and of the server"
    )]
    pub fn arrive(
        &mut self,
        header: &[u8; 32],
        len: u32,
        is_part: bool,
        socket: &Socket,
        bytes_received: u64,
        word: u64,
        answer_len: u32,
        now_ns: u64,
    ) -> Decision {
        let mut decision = Decision::default();
        // SAFETY: the connection's memory is as large as the C side says; the header has the 32 bytes that are read at most.
        unsafe {
            kw_host_arrive(
                self.memory.as_mut_ptr(),
                header.as_ptr(),
                len,
                is_part.into(),
                socket,
                bytes_received,
                word,
                answer_len,
                now_ns,
                &raw mut decision,
            );
        }
        decision
    }

    /// The answer to the last request has been written.
    pub fn answered(&mut self) {
        // SAFETY: the connection's memory is as large as the C side says.
        unsafe { kw_host_answered(self.memory.as_mut_ptr()) }
    }

    /// The client's numbers for a segment of the socket: sequence number and acknowledgement.
    pub fn depart(&mut self, seq: u32, ack: u32, len: u32, flags: u8, now_ns: u64) -> (u32, u32) {
        let mut numbers = [seq, ack];
        // SAFETY: the connection's memory is as large as the C side says; there are two numbers.
        unsafe { kw_host_depart(self.memory.as_mut_ptr(), len, flags, now_ns, numbers.as_mut_ptr()) }
        (numbers[0], numbers[1])
    }

    /// Translates the selective acknowledgements in these options, which are those of a segment to the client, or of one from it.
    ///
    /// # Panics
    ///
    /// With more options than TCP has room for.
    pub fn translate(&mut self, options: &mut [u8], to_client: bool) {
        assert!(options.len() <= 40, "TCP has room for 40 bytes of options");
        let len = u32::try_from(options.len()).unwrap_or(0);
        // SAFETY: both memories are as large as the C side says; it reads and writes `len` bytes of options, of which it has room for 40.
        unsafe {
            kw_host_options(
                self.memory.as_ptr(),
                self.scratch.as_mut_ptr(),
                options.as_mut_ptr(),
                len,
                to_client.into(),
            );
        }
    }

    /// Gives a packet the numbers of the other end.
    ///
    /// # Panics
    ///
    /// When its form does not fit its length.
    pub fn translate_packet(&mut self, config: &Config, packet: &mut [u8], form: Form) -> Translated {
        assert!(form.linear <= packet.len(), "no packet has more bytes together than it has");
        let (len, linear) = (
            u32::try_from(packet.len()).unwrap_or(0),
            u32::try_from(form.linear).unwrap_or(0),
        );
        let mut reading = Reading::default();
        // SAFETY: both memories are as large as the C side says; the packet has `len` bytes, which the C side checks before each access, or `linear`.
        let family = unsafe {
            kw_host_translate(
                self.memory.as_ptr(),
                self.scratch.as_mut_ptr(),
                config,
                packet.as_mut_ptr(),
                len,
                linear,
                form.gso_size,
                form.is_partial.into(),
                form.is_incoming.into(),
                form.from_socket.into(),
                &raw mut reading,
            )
        };
        match family {
            0 => Translated::NotOurs,
            -1 => Translated::Refused,
            -2 => Translated::Failed,
            _ => Translated::Done(reading),
        }
    }

    /// The frame with `answer` to a plain TCP frame, with these numbers: sequence number, acknowledgement, timestamp. `None` if the checksum of the frame is wrong.
    ///
    /// # Panics
    ///
    /// When the frame or the answer has not 96 to 1,400 bytes.
    pub fn make(&mut self, frame: &[u8], numbers: [u32; 3], answer: &[u8], v6: bool) -> Option<Vec<u8>> {
        assert!(
            (96..=1400).contains(&frame.len()) && answer.len() <= 1392,
            "too short or too long"
        );
        let mut made = vec![0; 96 + answer.len()];
        let (len, answer_len) = (u32::try_from(frame.len()).ok()?, u32::try_from(answer.len()).ok()?);
        // SAFETY: the scratch memory is as large as the C side says; the frame has the 96 bytes that are read at least; the C side writes
        // at most 96 bytes of headers, and the answer.
        let made_len = unsafe {
            kw_host_make(
                self.scratch.as_mut_ptr(),
                frame.as_ptr(),
                len,
                numbers.as_ptr(),
                answer.as_ptr(),
                answer_len,
                v6.into(),
                made.as_mut_ptr(),
            )
        };
        made.truncate(made_len as usize);
        (made_len > 0).then_some(made)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_region_s() {
        // A test of keyway-region has the same values.
        const KNOWN: [(u64, usize, u64); 8] = [
            (0, 0, 0x6B94_2094_2DC2_136B),
            (1, 1, 0xE87A_0112_261F_243B),
            (1, 3, 0x4B4A_94E8_C6D7_D523),
            (1, 7, 0x331F_F853_F490_AD9B),
            (1, 8, 0x6B74_80A2_4D16_57B1),
            (0x1234_5678_9ABC_DEF0, 16, 0x518E_FCF1_83F0_00C1),
            (0x1234_5678_9ABC_DEF0, 17, 0x815F_288F_9C6E_18C6),
            (0x1234_5678_9ABC_DEF0, 250, 0xBA74_B5BC_5246_235C),
        ];
        let mut program = Program::default();
        for (seed, len, known) in KNOWN {
            let key: Vec<u8> = (0..len).map(|i| (i * 37 + 200).to_le_bytes()[0]).collect();
            assert_eq!(program.hash(seed, &key), Some(known), "{len} bytes");
        }
        assert_eq!(program.hash(0, &[0; 251]), None);
    }
}
