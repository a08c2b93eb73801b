//! memcached's UDP frame, as a client has it: one datagram asks, one or more answer (protocol.txt, "UDP protocol").
//!
//! A socket has one request on the way. Answers to earlier ones, which come late, are dropped by their number; so are answers whose
//! datagrams come in another order, which the request's owner then takes for lost.

use keyway_proto::frame::FRAME_LEN;
use rustix::net::{self, RecvFlags, SendFlags};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

/// Longest request sent, bytes: what one IPv4 datagram holds, less the headers.
const REQUEST_LEN_MAX: usize = 65_507 - FRAME_LEN;

/// A socket that speaks to one server.
#[derive(Debug)]
pub struct Datagrams {
    socket: UdpSocket,
    /// number of the request on the way
    request: u16,
    /// sequence number of the datagram that comes next
    next: u16,
    frame: Vec<u8>,
}

impl Datagrams {
    /// A socket of its own port. Nothing is sent, so a server that is not there is noticed only by the first request.
    pub fn open(server: SocketAddr) -> io::Result<Self> {
        let any: SocketAddr = match server {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let socket = UdpSocket::bind(any)?;
        socket.connect(server)?;
        Ok(Self {
            socket,
            request: 0,
            next: 0,
            frame: Vec::new(),
        })
    }
}

impl Write for Datagrams {
    /// Sends `bytes` as the next request; the rest of the answer to the one before is dropped.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > REQUEST_LEN_MAX {
            let why = format!("a request of {} bytes: a datagram holds {REQUEST_LEN_MAX}", bytes.len());
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        self.frame.clear();
        self.frame.extend_from_slice(&self.request.wrapping_add(1).to_be_bytes());
        self.frame.extend_from_slice(&[0, 0, 0, 1, 0, 0]);
        self.frame.extend_from_slice(bytes);
        net::send(&self.socket, &self.frame, SendFlags::empty())?;
        self.request = self.request.wrapping_add(1);
        self.next = 0;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Datagrams {
    /// The payload of the next datagram of the answer.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let (len, _) = net::recv(&self.socket, &mut *buffer, RecvFlags::empty())?;
            let Some((frame, payload)) = buffer[..len].split_first_chunk::<FRAME_LEN>() else {
                return Err(io::Error::other(format!("a datagram of {len} bytes has no frame")));
            };
            let [request, sequence, total] =
                [[frame[0], frame[1]], [frame[2], frame[3]], [frame[4], frame[5]]].map(u16::from_be_bytes);
            // Of a get of several keys, memcached 1.6 sends each value as the only datagram of an answer of its own, in their order.
            let is_whole = sequence == 0 && total == 1;
            if request == self.request && (sequence == self.next || is_whole) {
                let payload_len = payload.len();
                self.next = self.next.wrapping_add(1);
                buffer.copy_within(FRAME_LEN..len, 0);
                if payload_len > 0 {
                    return Ok(payload_len); // 0 would say that the server has closed
                }
            }
        }
    }
}

impl AsFd for Datagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const PATIENCE: Duration = Duration::from_secs(10);

    #[test]
    fn late_and_disordered_answers_are_dropped() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut client = Datagrams::open(server.local_addr().unwrap()).unwrap();
        client.socket.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(b"version\r\n").unwrap();
        client.write_all(b"get a\r\n").unwrap();
        let mut buffer = [0; 1500];
        let (len, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(buffer[..len], *b"\0\x01\0\0\0\x01\0\0version\r\n");
        let (len, _) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(buffer[..len], *b"\0\x02\0\0\0\x01\0\0get a\r\n");
        for answer in [
            &b"\0\x01\0\0\0\x01\0\0late"[..],
            b"\0\x02\0\x01\0\x02\0\0too early",
            b"\0\x02\0\0\0\x02\0\0first",
            b"\0\x02\0\x01\0\x02\0\0second",
        ] {
            server.send_to(answer, from).unwrap();
        }
        for expected in [&b"first"[..], b"second"] {
            let len = client.read(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], expected);
        }
    }

    #[test]
    fn values_that_come_as_answers_of_their_own_are_one_answer() {
        let server = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut client = Datagrams::open(server.local_addr().unwrap()).unwrap();
        client.socket.set_read_timeout(Some(PATIENCE)).unwrap();
        client.write_all(b"get a b\r\n").unwrap();
        let mut buffer = [0; 1500];
        let (_, from) = server.recv_from(&mut buffer).unwrap();
        for answer in [&b"\0\x01\0\0\0\x01\0\0first"[..], b"\0\x01\0\0\0\x01\0\0second"] {
            server.send_to(answer, from).unwrap();
        }
        for expected in [&b"first"[..], b"second"] {
            let len = client.read(&mut buffer).unwrap();
            assert_eq!(&buffer[..len], expected);
        }
    }

    #[test]
    fn what_no_datagram_holds_is_refused() {
        let mut client = Datagrams::open("127.0.0.1:9".parse().unwrap()).unwrap();
        assert_eq!(client.write(&[0; 65_507]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
}
