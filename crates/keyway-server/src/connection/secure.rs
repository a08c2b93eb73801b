//! TLS on one connection: what arrives is decrypted into the input, and the output is encrypted before it is sent.
//!
//! rustls keeps what it has of a record that has not arrived completely, 18 KiB at most, and before the end of the handshake of all messages
//! that are not complete, [`HANDSHAKE_MAX`] bytes at most. [`Secure::held`] is for the account.
//!
//! rustls does the protocol, by its buffered interface: the other one expects that its caller never offers it a connection's bytes again
//! after an error, and panics otherwise. Nothing here reads or writes a socket except through a [`Read`].

use std::io::{self, BufRead, Read, Write};
use std::sync::Arc;

use rustls::{HandshakeKind, ServerConfig, ServerConnection};

use super::buffer::Buffer;
use super::output::Output;
use crate::tls;

/// Bytes that are read from a socket at a time.
const READ_SIZE: usize = 64 * 1024;
/// Plain bytes that are encrypted at a time. rustls holds the result until it is in the output.
const SEAL_SIZE: usize = 256 * 1024;
/// Room for plain bytes that is kept for the next output.
const PLAIN_KEPT_MAX: usize = 256 * 1024;

/// Most bytes that a client may send before its handshake ends: a hello with keys of several kinds, and a chain of certificates. With what
/// rustls adds, a connection then holds 32 KiB at most.
const HANDSHAKE_MAX: usize = 20 * 1024;
/// Room that rustls makes for each read beside what it keeps, bytes (`DeframerVecBuffer::prepare_read`).
const RUSTLS_READ_SIZE: usize = 4096;
/// Length of a record's header, whose last two bytes are the length of the rest (RFC 8446, 5.1).
const RECORD_HEADER_LEN: usize = 5;

/// The TLS of a connection.
pub(crate) struct Secure {
    tls: ServerConnection,
    /// bytes that arrived while the client shook hands
    shaken: usize,
    arriving: Record,
    /// the client has broken the protocol: nothing is decrypted or encrypted any more
    is_broken: bool,
}

/// The record that is arriving.
#[derive(Debug, Default)]
struct Record {
    header: [u8; RECORD_HEADER_LEN],
    /// bytes of it, header included, that have arrived; 0: it has not begun
    arrived: usize,
}

/// A socket in which nothing has arrived.
struct Silent;

/// The result of reading.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Arrived {
    /// plain bytes that were added to the input
    pub(super) count: usize,
    /// the socket may hold more
    pub(super) filled: bool,
    /// the client sends no more
    pub(super) at_end: bool,
}

impl Secure {
    pub(crate) fn new(config: Arc<ServerConfig>) -> Result<Self, rustls::Error> {
        let mut tls = ServerConnection::new(config)?;
        // What may wait to be sent is the connection's decision.
        tls.set_buffer_limit(None);
        Ok(Self {
            tls,
            shaken: 0,
            arriving: Record::default(),
            is_broken: false,
        })
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Whether the client has sent anything.
    pub(super) fn has_begun(&self) -> bool {
        self.shaken > 0
    }

    /// Memory that rustls holds for what has not arrived completely, bytes.
    pub(super) fn held(&self) -> usize {
        let kept = if self.is_handshaking() {
            self.shaken
        } else {
            self.arriving.arrived
        };
        if kept == 0 { 0 } else { kept + RUSTLS_READ_SIZE }
    }

    /// Whether the client continued an earlier session; `None` before the end of the handshake.
    pub(super) fn is_resumed(&self) -> Option<bool> {
        Some(self.tls.handshake_kind()? == HandshakeKind::Resumed)
    }

    /// The names of the client's certificate, after the handshake; none if it has no certificate. rustls has verified it.
    pub(super) fn client_names(&self) -> Vec<Vec<u8>> {
        let chain = self.tls.peer_certificates().unwrap_or_default();
        chain.first().map(|first| tls::names(first)).unwrap_or_default()
    }

    /// Reads the socket once, at most `most` bytes, into `room`, and decrypts what is complete. What TLS itself has to send goes to the
    /// output.
    ///
    /// # Errors
    ///
    /// Those of the socket. The client broke the protocol: [`io::ErrorKind::InvalidData`] with the [`rustls::Error`]. The output then ends
    /// with the alert that says so to the client. It sent [`HANDSHAKE_MAX`] bytes without an end of its handshake: the same without an alert.
    pub(super) fn receive(
        &mut self,
        socket: &mut impl Read,
        room: &mut Vec<u8>,
        input: &mut Buffer,
        need: usize,
        most: usize,
        output: &mut Output,
    ) -> io::Result<Arrived> {
        room.resize(READ_SIZE, 0);
        let mut offered = READ_SIZE.min(most);
        if self.is_handshaking() {
            offered = offered.min(HANDSHAKE_MAX - self.shaken);
        }
        if offered == 0 {
            output.take_plain();
            self.is_broken = true;
            let why = format!("{HANDSHAKE_MAX} bytes have come, and no end of the handshake; send fewer or smaller certificates");
            return Err(io::Error::new(io::ErrorKind::InvalidData, why));
        }
        let count = socket.read(&mut room[..offered])?;
        if self.is_handshaking() {
            self.shaken += count;
        }
        self.arriving.pass(&room[..count]);
        let mut arrived = Arrived {
            count: 0,
            filled: count == offered,
            at_end: count == 0,
        };
        let mut rest = &room[..count];
        while !rest.is_empty() && !arrived.at_end {
            self.decrypt(&mut rest, input, need, output, &mut arrived)?;
        }
        if self.arriving.arrived == 0 && !self.is_handshaking() {
            // rustls gives back the room of a large record when it reads next. This is such a read.
            let _ = self.tls.read_tls(&mut Silent);
        }
        if self.tls.wants_write() {
            // Before the plain bytes, which are not encrypted yet.
            let plain = output.take_plain();
            self.take_records(output);
            output.bytes().extend_from_slice(&plain);
        }
        Ok(arrived)
    }

    /// Decrypts what is complete of these bytes, which the socket has given, or a part of it.
    fn decrypt(
        &mut self,
        rest: &mut &[u8],
        input: &mut Buffer,
        need: usize,
        output: &mut Output,
        arrived: &mut Arrived,
    ) -> io::Result<()> {
        self.tls.read_tls(rest)?;
        let state = match self.tls.process_new_packets() {
            Ok(state) => state,
            Err(error) => {
                // What was not encrypted before is dropped: the client would not take it after the alert.
                output.take_plain();
                self.take_records(output);
                self.is_broken = true;
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
        };
        let mut left = state.plaintext_bytes_to_read();
        arrived.count += left;
        let mut reader = self.tls.reader();
        while left > 0 {
            let plain = reader.fill_buf()?;
            let len = plain.len();
            input.append(plain, need);
            reader.consume(len);
            left -= len;
        }
        arrived.at_end = state.peer_has_closed();
        Ok(())
    }

    /// Encrypts the plain bytes of the output, with `plain` as room for them. Returns how many there were.
    pub(super) fn seal(&mut self, output: &mut Output, plain: &mut Vec<u8>) -> io::Result<usize> {
        if !output.has_plain() || self.tls.is_handshaking() {
            return Ok(0);
        }
        // All connections of the worker share it. An error may have left another one's bytes.
        plain.clear();
        let count = output.move_plain(plain);
        if !self.is_broken {
            for part in plain.chunks(SEAL_SIZE) {
                self.tls.writer().write_all(part)?;
                self.take_records(output);
            }
        }
        plain.clear();
        plain.shrink_to(PLAIN_KEPT_MAX);
        Ok(count)
    }

    /// Announces to the client, after what the output holds, that nothing more comes. The output is sealed.
    pub(super) fn close(&mut self, output: &mut Output) {
        if !self.is_broken {
            self.tls.send_close_notify();
            self.take_records(output);
        }
    }

    /// Moves the records that rustls has made to the output, which holds no plain bytes.
    fn take_records(&mut self, output: &mut Output) {
        let tls = &mut self.tls;
        output.add_sealed(|bytes| {
            while tls.wants_write() {
                // A vector takes everything.
                if tls.write_tls(bytes).is_err() {
                    break;
                }
            }
        });
    }
}

impl Record {
    /// These bytes of the client's stream have arrived.
    fn pass(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            let left = self.len() - self.arrived;
            let (now, later) = bytes.split_at(left.min(bytes.len()));
            if let Some(header) = self.header.get_mut(self.arrived..) {
                let count = header.len().min(now.len());
                header[..count].copy_from_slice(&now[..count]);
            }
            self.arrived += now.len();
            if self.arrived >= RECORD_HEADER_LEN && self.arrived == self.len() {
                *self = Self::default();
            }
            bytes = later;
        }
    }

    /// Its length, or that of its header before that has arrived.
    fn len(&self) -> usize {
        let body = u16::from_be_bytes([self.header[3], self.header[4]]);
        RECORD_HEADER_LEN + if self.arrived < RECORD_HEADER_LEN { 0 } else { body.into() }
    }
}

impl Read for Silent {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_that_is_arriving_is_known_whatever_the_pieces() {
        let lens = [0, 1, 300, 16_384, 0, 5];
        let mut stream = Vec::new();
        // Where each record begins.
        let mut begins = vec![0];
        for len in lens {
            stream.extend_from_slice(&[23, 3, 3]);
            stream.extend_from_slice(&u16::to_be_bytes(len));
            stream.extend(std::iter::repeat_n(0xff, len.into()));
            begins.push(stream.len());
        }
        for piece in [1, 2, 3, 5, 6, 7, 100, 4096, usize::MAX] {
            let (mut record, mut at) = (Record::default(), 0);
            for part in stream.chunks(piece.min(stream.len())) {
                record.pass(part);
                at += part.len();
                let begin = begins.iter().rev().find(|begin| **begin <= at).unwrap();
                assert_eq!(record.arrived, at - begin, "{piece} {at}");
            }
        }
    }
}
