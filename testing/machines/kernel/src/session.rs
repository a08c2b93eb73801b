//! TCP connections on which the kernel door answers: the program's C against a reference that counts differently.
//!
//! The program keeps one splice a direction and numbers of 32 bits. [`Reference`] keeps 64-bit positions in both streams and every range
//! that only one end has. Two ends, with a network that loses, repeats and reorders, send segments through both, and every decision and every
//! number must be the same. The first numbers are often just below 2^32, and at times one end sends gigabytes.

use harness::Random;
use keyway_xdp::host::{Connection, Decision, Socket};

use crate::packets::{self, Numbers};

const PASS: u32 = 0;
const REPLY: u32 = 1;
const REPEAT: u32 = 2;
const REMIND: u32 = 3;
const FIN: u8 = 1;
const ACK: u8 = 16;
const TICKET: u64 = 1 << 40;
/// After that the socket learns from an answered request what the client has acknowledged (`KW_TELL_NS`).
const TELL_NS: u64 = 50_000_000;
/// How long after it was enrolled, at 0, a connection is left alone (`KW_SETTLE_NS`), and how long after the socket has last sent something
/// requests are answered (`KW_PATH_NS`).
const SETTLE_NS: u64 = 100_000_000;
const PATH_NS: u64 = 10_000_000_000;
/// Most bytes of an answer that is sent again (`KW_PIECE`), and of a packet.
const PIECE: u64 = 512;
const WHOLE: u64 = 65_535;

/// What was tried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// segments, of both ends
    pub segments: u64,
    /// answered
    pub answered: u64,
    /// answered again
    pub repeated: u64,
    /// selective acknowledgements
    pub options: u64,
    /// frames of answers
    pub frames: u64,
    /// packets of either end
    pub packets: u64,
    /// sessions
    pub sessions: u64,
}

/// Bytes that the outer stream has and the inner one has not.
#[derive(Clone, Copy, Debug)]
struct Range {
    start: u64,
    len: u64,
    /// bytes in the ranges before it
    before: u64,
}

/// One direction of a connection.
#[derive(Clone, Debug, Default)]
struct Stream {
    first: u32,
    ranges: Vec<Range>,
}

fn low(number: u64) -> u32 {
    let bytes = number.to_le_bytes();
    u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

impl Stream {
    fn number(&self, position: u64) -> u32 {
        self.first.wrapping_add(low(position))
    }

    fn inner(&self, outer: u64) -> u64 {
        let count = self.ranges.partition_point(|range| range.start < outer);
        match self.ranges[..count].last() {
            Some(range) => outer - range.before - range.len.min(outer - range.start),
            None => outer,
        }
    }

    fn outer(&self, inner: u64) -> u64 {
        let count = self.ranges.partition_point(|range| range.start - range.before <= inner);
        inner + self.ranges[..count].last().map_or(0, |range| range.before + range.len)
    }

    fn add(&mut self, start: u64, len: u64) {
        let before = self.ranges.last().map_or(0, |range| range.before + range.len);
        self.ranges.push(Range { start, len, before });
    }

    /// The last range, unless it is so far behind that it is only an offset.
    fn last(&self) -> Option<Range> {
        self.ranges.last().copied()
    }

    /// From which outer position on translation is exact: what lies before the last range but one is old at both ends.
    fn exact_from(&self) -> u64 {
        self.ranges
            .len()
            .checked_sub(2)
            .map_or(0, |i| self.ranges[i].start + self.ranges[i].len)
    }
}

/// A segment of the client, in outer positions.
#[derive(Clone, Copy, Debug)]
struct Up {
    seq: u64,
    len: u64,
    ack: u64,
    fin: bool,
    window: u16,
    flags: u8,
    /// of a segment that comes in parts the first one, which has `len` bytes of it
    is_part: bool,
}

/// What the socket sends, in inner positions.
#[derive(Clone, Copy, Debug)]
struct Down {
    seq: u64,
    len: u64,
    ack: u64,
    fin: bool,
}

/// The socket, in inner positions.
#[derive(Clone, Copy, Debug, Default)]
struct Server {
    received: u64,
    sent: u64,
    written: u64,
    acked: u64,
    done: u64,
    published: Option<u64>,
    is_closed: bool,
}

#[derive(Clone, Debug, Default)]
struct Reference {
    up: Stream,
    down: Stream,
    next: Option<u64>,
    is_owed: bool,
    is_written: bool,
    has_received: bool,
    has_parts: bool,
    received_ns: u64,
}

impl Reference {
    /// What must be done with a segment; positions, not numbers.
    fn arrive(
        &mut self,
        segment: &Up,
        server: &Server,
        socket: &Socket,
        answer_len: u64,
        now_ns: u64,
    ) -> (u32, u64, u64, bool, [u64; 3]) {
        let (removed, made) = (self.up.last(), self.down.last());
        let lacks = made.is_some_and(|made| segment.ack < made.start + made.len);
        self.is_owed &= lacks;
        self.has_parts |= segment.is_part;
        let end = segment.seq + segment.len;
        let end_at_most = if segment.is_part { segment.seq + WHOLE } else { end };
        let is_reset = segment.flags & 4 != 0;
        let after = removed.map_or(0, |range| range.start + range.len);
        let is_taken = !is_reset
            && removed.is_some_and(|range| {
                if segment.len == 0 && !segment.is_part {
                    range.start < segment.seq && segment.seq < after
                } else {
                    segment.seq < after && range.start < end_at_most
                }
            });
        let (inner_seq, inner_ack) = (self.up.inner(segment.seq), self.down.inner(segment.ack));
        let piece = made.zip(removed).map_or([0; 3], |(made, removed)| {
            let from = segment.ack.saturating_sub(made.start).min(made.len - 2);
            let len = (made.len - from).min(PIECE).min(socket.mss.into());
            // Only the last piece acknowledges the request.
            let ack = if from + len == made.len { after } else { removed.start };
            [made.start + from, ack, len]
        });
        if is_taken {
            let step = if lacks && self.is_written { REPEAT } else { REMIND };
            let at = removed.map_or(0, |range| range.start - range.before);
            return (step, at.wrapping_sub(1), inner_ack, true, piece);
        }
        if lacks
            && self.is_owed
            && self.is_written
            && segment.len == 0
            && segment.seq >= after
            && !segment.fin
            && segment.flags & 6 == 0
        {
            return (REPEAT, inner_seq, inner_ack, true, piece);
        }
        let is_open = now_ns <= self.received_ns + PATH_NS && now_ns >= SETTLE_NS;
        let is_at_rest = is_open
            && !self.has_parts
            && !server.is_closed
            && self.has_received
            && server.published == Some(server.received)
            && self.next == Some(segment.seq)
            && segment.seq == self.up.outer(server.received)
            && server.sent == server.written
            && segment.ack == self.down.outer(server.written);
        let fits = (segment.flags & !8) == ACK
            && !segment.fin
            && answer_len <= u64::from(socket.mss)
            && answer_len <= u64::from(segment.window) << socket.scale;
        if answer_len > 0 && is_at_rest && fits {
            self.up.add(segment.seq, segment.len);
            self.down.add(segment.ack, answer_len);
            self.next = Some(end);
            (self.is_owed, self.is_written) = (true, false);
            return (
                REPLY,
                inner_seq,
                inner_ack,
                socket.in_flight > 1 || (socket.in_flight == 1 && now_ns >= self.received_ns + TELL_NS),
                [segment.ack, end, answer_len],
            );
        }
        let end = end + u64::from(segment.fin);
        if end != segment.seq && self.next.is_none_or(|next| next < end) {
            self.next = Some(end);
        }
        (PASS, inner_seq, inner_ack, true, piece)
    }

    fn depart(&mut self, sending: &Down, now_ns: u64) -> (u64, u64) {
        (self.has_received, self.received_ns) = (true, now_ns);
        let end = sending.seq + sending.len + u64::from(sending.fin);
        let (mut seq, mut ack) = (self.down.outer(sending.seq), self.up.outer(sending.ack));
        let Some((made, removed)) = self.down.last().zip(self.up.last()) else {
            return (seq, ack);
        };
        let at = made.start - made.before;
        if sending.seq < at && at < end {
            seq = if self.is_owed {
                made.start.wrapping_sub(end - sending.seq)
            } else {
                sending.seq + made.before + made.len
            };
        }
        if self.is_owed && end <= at.max(sending.seq) {
            ack = ack.min(removed.start);
        }
        (seq, ack)
    }
}

/// Tries sessions until so many segments have been compared.
///
/// # Errors
///
/// The first difference.
pub fn hold(random: &mut Random, segments: u64) -> Result<Tally, String> {
    let mut tally = Tally::default();
    while tally.segments < segments {
        tally.sessions += 1;
        let seed = random.next();
        Session::new(Random::new(seed))
            .run(&mut tally)
            .map_err(|why| format!("session {seed:#x}: {why}"))?;
    }
    Ok(tally)
}

struct Session {
    random: Random,
    c: Connection,
    reference: Reference,
    server: Server,
    /// the client's positions: written, acknowledged, received
    written: u64,
    una: u64,
    got: u64,
    /// on their way; positions, length of data and acknowledgement
    to_program: Vec<Up>,
    to_socket: Vec<(u64, u64, u64)>,
    to_client: Vec<(u64, u64, u64)>,
    scale: u32,
    mss: u32,
    now_ns: u64,
}

impl Session {
    fn new(mut random: Random) -> Self {
        let mut first = || match random.below(3) {
            0 => low(random.next()),
            1 => u32::MAX - low(random.below(5000)),
            _ => (1 << 31) - low(random.below(5000)),
        };
        let (up, down) = (first(), first());
        let (scale, mss) = (low(random.below(15)), 536 + low(random.below(900)));
        Self {
            random,
            c: Connection::default(),
            reference: Reference {
                up: Stream {
                    first: up,
                    ..Stream::default()
                },
                down: Stream {
                    first: down,
                    ..Stream::default()
                },
                ..Reference::default()
            },
            server: Server::default(),
            written: 0,
            una: 0,
            got: 0,
            to_program: Vec::new(),
            to_socket: Vec::new(),
            to_client: Vec::new(),
            scale,
            mss,
            now_ns: 1,
        }
    }

    fn run(&mut self, tally: &mut Tally) -> Result<(), String> {
        for _ in 0..1000 {
            self.now_ns += [0, 1, 20_000_000, 50_000_000][self.random.index(4)];
            match self.random.below(16) {
                0 => self.written += self.written_more(),
                1 | 2 => self.client_sends(),
                3 | 4 => self.segment_arrives(tally)?,
                5 | 6 => self.socket_receives(),
                7 => self.server_works(),
                8 | 9 => self.socket_sends(tally)?,
                10 | 11 => self.client_receives(),
                12 if self.random.below(8) == 0 => self.silence(tally)?,
                13 => {
                    self.options(tally)?;
                    self.packet(tally)?;
                }
                _ => self.exchange(tally)?,
            }
        }
        self.frames(tally)
    }

    fn written_more(&mut self) -> u64 {
        if self.written - self.una > 4000 {
            0
        } else {
            5 + self.random.below(60)
        }
    }

    /// Something of what is not acknowledged, or an empty segment, or a keepalive.
    fn client_sends(&mut self) {
        let (mut seq, mut len) = (self.una, 0);
        match self.random.below(8) {
            0 => seq = self.una.saturating_sub(1),
            1 => (seq, len) = (self.una.saturating_sub(1), u64::from(self.una > 0)),
            2 => seq = self.written,
            3 => {
                seq = self.una + self.random.below(self.written - self.una + 1);
                len = self.random.below(self.written - seq + 1);
            }
            _ => len = (self.written - self.una).min(1400),
        }
        let window = low(self.random.next()).to_le_bytes();
        let segment = Up {
            seq,
            len,
            ack: self.got,
            // Neither an end of stream nor a reset changes the ends here: sessions go on.
            fin: seq + len == self.written && self.random.below(500) == 0,
            window: if self.random.below(8) == 0 {
                0
            } else {
                u16::from_le_bytes([window[0], window[1]])
            },
            flags: ACK | [8, 8, 0, 0, 0, 0, 0, 4][self.random.index(8)],
            // Nothing more is answered afterwards.
            is_part: self.random.below(2000) == 0,
        };
        self.to_program.push(segment);
    }

    /// One of those on their way: it may stay there, for another time, or be lost.
    fn pick<T: Copy>(random: &mut Random, from: &mut Vec<T>) -> Option<T> {
        if from.is_empty() {
            return None;
        }
        let at = random.index(from.len());
        if from.len() > 24 || random.below(8) != 0 {
            let found = from.swap_remove(at);
            return (random.below(20) != 0).then_some(found);
        }
        Some(from[at])
    }

    fn segment_arrives(&mut self, tally: &mut Tally) -> Result<(), String> {
        let Some(segment) = Self::pick(&mut self.random, &mut self.to_program) else {
            return Ok(());
        };
        self.arrive(segment, tally)
    }

    fn arrive(&mut self, segment: Up, tally: &mut Tally) -> Result<(), String> {
        tally.segments += 1;
        let answer_len = if segment.len >= 5 && self.random.below(4) != 0 {
            // No answer is shorter.
            2 + self.random.below(1391)
        } else {
            0
        };
        let (up, down, server) = (&self.reference.up, &self.reference.down, self.server);
        let mut header = [0; 32];
        header[4..8].copy_from_slice(&up.number(segment.seq).to_be_bytes());
        header[8..12].copy_from_slice(&down.number(segment.ack).to_be_bytes());
        header[12] = 0x50;
        header[13] = segment.flags | if segment.fin { FIN } else { 0 };
        header[14..16].copy_from_slice(&segment.window.to_be_bytes());
        let socket = Socket {
            state: if server.is_closed { 4 } else { 1 },
            received: up.number(server.received),
            sent: down.number(server.sent),
            written: down.number(server.written),
            mss: self.mss,
            in_flight: if server.acked < server.sent {
                1 + low(self.random.below(2))
            } else {
                0
            },
            scale: self.scale,
        };
        let word = server.published.map_or(0, |published| published.wrapping_add(TICKET));
        let is_old = segment.seq < up.exact_from() || segment.ack < down.exact_from();
        let is_exact_ack = segment.ack >= down.exact_from();
        // The connection has no ticket of its own here: the program adds 0.
        let decision = self.c.arrive(
            &header,
            low(segment.len),
            segment.is_part,
            &socket,
            server.received.wrapping_add(TICKET),
            word,
            low(answer_len),
            self.now_ns,
        );
        let (step, seq, ack, tells, reply) = self.reference.arrive(&segment, &server, &socket, answer_len, self.now_ns);
        let (up, down) = (&self.reference.up, &self.reference.down);
        let mut expected = Decision {
            step,
            seq: up.number(seq),
            ack: down.number(ack),
            tells: tells.into(),
            reply_seq: down.number(reply[0]),
            reply_ack: up.number(reply[1]),
            reply_len: low(reply[2]),
        };
        let mut got = decision;
        if step == PASS || step == REMIND {
            (expected.reply_seq, expected.reply_ack, expected.reply_len) = (0, 0, 0);
            (got.reply_seq, got.reply_ack, got.reply_len) = (0, 0, 0);
            (expected.tells, got.tells) = (0, 0);
        }
        if is_old {
            // Both ends have all that is so old: what counts is that it remains old.
            let seq_of_old = got.seq.wrapping_sub(up.number(server.received)).cast_signed();
            let ack_of_old = got.ack.wrapping_sub(down.number(server.written)).cast_signed();
            if seq_of_old > 0 && seq <= server.received || ack_of_old > 0 {
                return Err(format!("{segment:?} is old, and becomes {got:?}, not {expected:?}"));
            }
            (expected.seq, got.seq) = (0, 0);
            if !is_exact_ack {
                (expected.ack, got.ack) = (0, 0);
            }
        }
        if got != expected {
            return Err(format!("{segment:?} becomes {got:?}, not {expected:?}; {server:?}"));
        }
        match step {
            REPLY => {
                tally.answered += 1;
                self.to_client.push((reply[0], reply[2], reply[1]));
                if tells {
                    self.to_socket.push((seq, 0, ack));
                }
                if self.random.below(4) != 0 {
                    self.c.answered();
                    self.reference.is_written = true;
                }
            }
            REPEAT => {
                tally.repeated += 1;
                self.to_client.push((reply[0], reply[2], reply[1]));
                self.to_socket.push((seq, 0, ack));
            }
            _ if segment.flags & 4 != 0 => {}
            _ => self.to_socket.push((seq, if step == PASS { segment.len } else { 0 }, ack)),
        }
        Ok(())
    }

    fn socket_receives(&mut self) {
        if let Some((seq, len, ack)) = Self::pick(&mut self.random, &mut self.to_socket) {
            self.deliver(seq, len, ack);
        }
    }

    fn server_works(&mut self) {
        if self.random.below(3) == 0 && !self.reference.is_written && self.reference.down.last().is_some() {
            self.c.answered();
            self.reference.is_written = true;
        }
        let server = &mut self.server;
        if server.done < server.received {
            server.done = server.received;
            server.written += [0, 0, 8, 1000, 5000][self.random.index(5)];
        } else if server.published != Some(server.done) && self.random.below(2) == 0 {
            server.published = Some(server.done);
        }
    }

    fn socket_sends(&mut self, tally: &mut Tally) -> Result<(), String> {
        let server = self.server;
        let (mut seq, mut len) = (server.sent, 0);
        match self.random.below(6) {
            0 => seq = server.acked.saturating_sub(1),
            1 | 2 => {}
            3 => {
                seq = server.acked + self.random.below(server.sent - server.acked + 1);
                len = self.random.below(server.written - seq + 1);
            }
            _ => {
                seq = if self.random.below(3) == 0 {
                    server.acked
                } else {
                    server.sent
                };
                len = (server.written - seq).min(1400);
            }
        }
        let fin = seq + len == server.written && self.random.below(8) == 0;
        self.depart(
            Down {
                seq,
                len,
                ack: server.received,
                fin,
            },
            tally,
        )
    }

    fn depart(&mut self, sending: Down, tally: &mut Tally) -> Result<(), String> {
        tally.segments += 1;
        let (up, down) = (&self.reference.up, &self.reference.down);
        let is_old = self
            .reference
            .down
            .last()
            .is_some_and(|made| sending.seq < made.start - made.before && down.outer(sending.seq) < down.exact_from());
        let (seq, ack) = self.c.depart(
            down.number(sending.seq),
            up.number(sending.ack),
            low(sending.len),
            ACK | if sending.fin { FIN } else { 0 },
            self.now_ns,
        );
        let (want_seq, want_ack) = self.reference.depart(&sending, self.now_ns);
        let (up, down) = (&self.reference.up, &self.reference.down);
        let wanted = (down.number(want_seq), up.number(want_ack));
        if (!is_old && seq != wanted.0) || ack != wanted.1 {
            return Err(format!(
                "{sending:?} becomes {:?}, not {wanted:?}; {:?}",
                (seq, ack),
                self.reference.down.last()
            ));
        }
        self.server.sent = self.server.sent.max(sending.seq + sending.len);
        self.to_client.push((want_seq, sending.len, want_ack));
        Ok(())
    }

    fn client_receives(&mut self) {
        let Some((seq, len, ack)) = Self::pick(&mut self.random, &mut self.to_client) else {
            return;
        };
        if ack > self.una && ack <= self.written {
            self.una = ack;
        }
        if seq <= self.got && seq.saturating_add(len) > self.got {
            self.got = seq + len;
        }
    }

    /// Everything comes to rest, and a request is answered: what the others rarely reach.
    fn exchange(&mut self, tally: &mut Tally) -> Result<(), String> {
        if self.random.below(3) != 0 {
            return Ok(());
        }
        self.settle(tally)?;
        if self.random.below(2) == 0 {
            // The last acknowledgement of the client was lost: the request has it too.
            self.server.acked -= self.random.below(1000).min(self.server.acked);
        }
        if self.random.below(8) == 0 {
            // The socket has sent nothing for some time.
            self.now_ns += self.random.below(2 * PATH_NS);
        }
        self.written += 5 + self.random.below(60);
        let segment = Up {
            seq: self.una,
            len: self.written - self.una,
            ack: self.got,
            fin: false,
            window: u16::MAX,
            flags: ACK | 8,
            is_part: false,
        };
        if self.random.below(4) == 0 {
            self.to_program.push(segment);
        }
        self.arrive(segment, tally)
    }

    /// What is on its way is lost, and both ends send until nothing is left.
    fn settle(&mut self, tally: &mut Tally) -> Result<(), String> {
        self.to_client.clear();
        self.to_socket.clear();
        if self.reference.down.last().is_some() {
            self.c.answered();
            self.reference.is_written = true;
        }
        for _ in 0..8 {
            let server = &mut self.server;
            server.done = server.received;
            server.published = Some(server.done);
            let (seq, len, ack) = (server.acked, server.written - server.acked, server.received);
            self.depart(
                Down {
                    seq,
                    len,
                    ack,
                    fin: false,
                },
                tally,
            )?;
            let segment = Up {
                seq: self.una,
                len: self.written - self.una,
                ack: self.got,
                fin: false,
                window: 0,
                flags: ACK,
                is_part: false,
            };
            self.arrive(segment, tally)?;
            while let Some((seq, len, ack)) = self.to_socket.pop() {
                self.deliver(seq, len, ack);
            }
            let server = &mut self.server;
            server.done = server.received;
            let (seq, ack) = (server.sent, server.received);
            self.depart(
                Down {
                    seq,
                    len: 0,
                    ack,
                    fin: false,
                },
                tally,
            )?;
            while !self.to_client.is_empty() {
                let (seq, len, ack) = self.to_client.remove(0);
                self.una = self.una.max(ack.min(self.written));
                if seq <= self.got && seq.saturating_add(len) > self.got {
                    self.got = seq + len;
                }
            }
            let segment = Up {
                seq: self.written,
                len: 0,
                ack: self.got,
                fin: false,
                window: 0,
                flags: ACK,
                is_part: false,
            };
            self.arrive(segment, tally)?;
            while let Some((seq, len, ack)) = self.to_socket.pop() {
                self.deliver(seq, len, ack);
            }
            if self.una == self.written
                && self.server.acked == self.server.written
                && self.got == self.reference.down.outer(self.server.written)
            {
                self.server.published = Some(self.server.done);
                return Ok(());
            }
        }
        Err(format!(
            "nothing is lost any more, and {} of {} bytes are acknowledged; {:?}, the client has {}",
            self.una, self.written, self.server, self.got
        ))
    }

    /// A segment reaches the socket. One at the very beginning may have a number before it.
    fn deliver(&mut self, seq: u64, len: u64, ack: u64) {
        let server = &mut self.server;
        if ack > server.acked && ack <= server.sent {
            server.acked = ack;
        }
        if seq <= server.received && seq.saturating_add(len) > server.received {
            server.received = seq + len;
        }
    }

    /// Gigabytes in one direction. What was on its way before is no longer.
    fn silence(&mut self, tally: &mut Tally) -> Result<(), String> {
        self.settle(tally)?;
        self.to_program.clear();
        let is_up = self.random.below(2) == 0;
        for _ in 0..self.random.below(12) {
            let len = 200_000_000 + self.random.below(300_000_000);
            if is_up {
                self.written += len;
            } else {
                self.server.written += len;
            }
            self.settle(tally)?;
        }
        Ok(())
    }

    /// Options with selective acknowledgements, of either end.
    fn options(&mut self, tally: &mut Tally) -> Result<(), String> {
        tally.options += 1;
        let to_client = self.random.below(2) == 0;
        let (stream, base) = if to_client {
            (&self.reference.up, self.server.received)
        } else {
            (
                &self.reference.down,
                self.reference.down.exact_from().max(self.got.saturating_sub(2000)),
            )
        };
        let least = stream.last().map_or(0, |range| range.start - range.before);
        let base = if to_client { base.max(least) } else { base };
        let (mut given, mut wanted) = (Vec::new(), Vec::new());
        given.resize(self.random.index(3), 1);
        if self.random.below(2) == 0 {
            given.extend(b"\x08\x0a\x01\x02\x03\x04\x05\x06\x07\x08");
        }
        wanted.clone_from(&given);
        let blocks = 1 + self.random.index(3);
        let head = [5, low(2 + 8 * blocks as u64).to_le_bytes()[0]];
        given.extend(head);
        wanted.extend(head);
        for _ in 0..2 * blocks {
            let at = base + self.random.below(4000);
            given.extend(stream.number(at).to_be_bytes());
            wanted.extend(
                stream
                    .number(if to_client { stream.outer(at) } else { stream.inner(at) })
                    .to_be_bytes(),
            );
        }
        let before = given.clone();
        self.c.translate(&mut given, to_client);
        if given == wanted {
            Ok(())
        } else {
            Err(format!("options {before:x?} become {given:x?}, not {wanted:x?}"))
        }
    }

    /// A packet of either end.
    fn packet(&mut self, tally: &mut Tally) -> Result<(), String> {
        tally.packets += 1;
        let is_incoming = self.random.below(2) == 0;
        let (up, down) = (&self.reference.up, &self.reference.down);
        let (received, written) = (self.server.received, self.server.written);
        let random = &mut self.random;
        // From a little before what the socket has, but not from before what is exact.
        let mut of_client = |stream: &Stream, socket_has: u64| {
            let from = stream.exact_from().max(stream.outer(socket_has).saturating_sub(2000));
            let at = from + random.below(4000);
            (stream.number(at), stream.number(stream.inner(at)))
        };
        let (seq, ack) = (of_client(up, received), of_client(down, written));
        let edges: Vec<_> = (0..8).map(|_| of_client(down, written)).collect();
        let mut of_socket = |stream: &Stream, socket_has: u64| {
            let from = stream.inner(stream.exact_from()).max(socket_has.saturating_sub(2000));
            let at = from + random.below(4000);
            (stream.number(at), stream.number(stream.outer(at)))
        };
        let numbers = if is_incoming {
            Numbers {
                seq,
                ack,
                edges,
                is_incoming,
            }
        } else {
            Numbers {
                seq: of_socket(down, written),
                ack: of_socket(up, received),
                edges: (0..8).map(|_| of_socket(up, received)).collect(),
                is_incoming,
            }
        };
        packets::hold(&mut self.random, &mut self.c, &numbers)
    }

    /// The frame of an answer.
    fn frames(&mut self, tally: &mut Tally) -> Result<(), String> {
        for _ in 0..8 {
            tally.frames += 1;
            let (v6, is_stamped, is_partial) = (
                self.random.below(2) == 0,
                self.random.below(2) == 0,
                self.random.below(3) == 0,
            );
            let (data_len, answer_len) = (50 + self.random.index(1200), 1 + self.random.index(1392));
            let (data, answer) = (self.random.bytes(data_len), self.random.bytes(answer_len));
            let random = self.random.bytes(64);
            let numbers = [low(self.random.next()), low(self.random.next()), low(self.random.next())];
            let (link, host, peer) = (&random[..12], &random[12..28], &random[28..44]);
            let stamps = [&b"\x01\x01\x08\x0a"[..], &random[44..52]].concat();
            let tcp = [
                &random[52..64],
                &[if is_stamped { 0x80 } else { 0x50 }, ACK, 1, 2],
                &[0; 4],
                if is_stamped { &stamps } else { &[] },
            ]
            .concat();
            let frame = frame(link, peer, host, &tcp, &data, v6, is_partial);
            let turned = [&link[6..12], &link[..6]].concat();
            let back = [
                &tcp[2..4],
                &tcp[..2],
                &numbers[0].to_be_bytes(),
                &numbers[1].to_be_bytes(),
                &[tcp[12], ACK | 8, 0x34, 0x12],
                &[0; 4],
                &if is_stamped {
                    [&b"\x01\x01\x08\x0a"[..], &numbers[2].to_be_bytes(), &random[44..48]].concat()
                } else {
                    Vec::new()
                },
            ]
            .concat();
            let wanted = self::frame(&turned, host, peer, &back, &answer, v6, is_partial);
            let Some(made) = self.c.make(&frame, numbers, &answer, v6) else {
                // 1 of 65536 sums is right in two ways.
                if self::frame(link, peer, host, &tcp, &data, v6, !is_partial) == frame {
                    continue;
                }
                return Err(format!("the checksum of {} is found wrong", frame.escape_ascii()));
            };
            if made != wanted {
                return Err(format!(
                    "the answer's frame is {}, not {}",
                    made.escape_ascii(),
                    wanted.escape_ascii()
                ));
            }
            let mut broken = frame;
            let at = tcp_at(v6) + self.random.index(broken.len() - tcp_at(v6));
            if at != tcp_at(v6) + 12 && !is_partial {
                broken[at] ^= 1 << self.random.below(8);
                if self.c.make(&broken, numbers, &answer, v6).is_some() && !is_stamped {
                    return Err(format!("the checksum of {} is found right", broken.escape_ascii()));
                }
            }
        }
        Ok(())
    }
}

fn tcp_at(v6: bool) -> usize {
    if v6 { 54 } else { 34 }
}

/// An Ethernet frame with these headers, and its checksums.
fn frame(link: &[u8], from: &[u8], to: &[u8], tcp: &[u8], data: &[u8], v6: bool, is_partial: bool) -> Vec<u8> {
    let len = (tcp.len() + data.len()).to_be_bytes();
    let (tcp_len, ip_len) = (&len[6..], (tcp.len() + data.len() + 20).to_be_bytes());
    let size = if v6 { 16 } else { 4 };
    let mut ip = if v6 {
        [&b"\x60\0\0\0"[..], tcp_len, &[6, 64], &from[..16], &to[..16]].concat()
    } else {
        [
            &b"\x45\0"[..],
            &ip_len[6..],
            b"\0\0\x40\0",
            &[64, 6],
            &[0; 2],
            &from[..4],
            &to[..4],
        ]
        .concat()
    };
    if !v6 {
        let sum = !sum(&ip);
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
    }
    let pseudo = [&from[..size], &to[..size], &[0, 6], tcp_len].concat();
    let mut segment = [tcp, data].concat();
    let field = if is_partial {
        sum(&pseudo)
    } else {
        !sum(&[&pseudo[..], &segment].concat())
    };
    segment[16..18].copy_from_slice(&field.to_be_bytes());
    [link, if v6 { b"\x86\xdd" } else { b"\x08\0" }, &ip, &segment].concat()
}

/// The Internet checksum's sum (RFC 1071).
pub(crate) fn sum(bytes: &[u8]) -> u16 {
    let mut sum = 0_u32;
    for pair in bytes.chunks(2) {
        sum += u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
        sum = (sum & 0xFFFF) + (sum >> 16);
    }
    u16::try_from(sum).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_get_the_same_numbers_as_from_the_reference() {
        let tally = hold(&mut Random::new(1), 200_000).unwrap();
        println!("{tally:?}");
        assert!(tally.answered > 0 && tally.repeated > 0, "{tally:?}");
    }
}
