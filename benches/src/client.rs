//! A memcached client that costs little: requests are rendered before the clock starts, and replies are counted, not parsed.
//!
//! Counting is sound because every measured request has one possible reply length: keys and values have fixed lengths, items
//! are loaded before and none is evicted. [`Load::run`] checks the first byte of each reply and that it ends where it must,
//! and gives up otherwise.

use keyway_proto::client;
use keyway_proto::{Store, StoreVerb};
use rustix::event::{Timespec, epoll};
use std::io::{self, Read, Write};
use std::time::{Duration, Instant};

pub use keyway_bench::plan::Door;
pub use keyway_bench::wire::{Admin, Connection, Target};

/// A request, as it goes over the wire, and the only reply that it may get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exchange {
    /// all bytes to send; several requests if they are pipelined
    pub request: Vec<u8>,
    /// length of all their replies, bytes
    pub reply_len: usize,
    /// first byte of the reply
    pub reply_first: u8,
    /// whether its time counts; the others prepare the ground
    pub timed: bool,
}

/// Exchanges of the classic protocol. Values consist of the letter `v`.
impl Exchange {
    fn new(write: impl FnOnce(&mut Vec<u8>), reply_len: usize, reply_first: u8) -> Self {
        let mut request = Vec::new();
        write(&mut request);
        Self {
            request,
            reply_len,
            reply_first,
            timed: true,
        }
    }

    /// `get` of items that are there: one request that names all keys.
    pub fn get<K: AsRef<[u8]>>(keys: &[K], value_len: usize) -> Self {
        let item_len = |key: &K| format!("VALUE  0 {value_len}\r\n\r\n").len() + key.as_ref().len() + value_len;
        let reply_len = keys.iter().map(item_len).sum::<usize>() + b"END\r\n".len();
        Self::new(|out| client::get(out, false, keys.iter().map(AsRef::as_ref)), reply_len, b'V')
    }

    /// `set`
    pub fn set(key: &[u8], value_len: usize) -> Self {
        Self::store(key, &vec![b'v'; value_len])
    }

    /// `set` of a number
    pub fn set_number(key: &[u8], number: u64) -> Self {
        Self::store(key, number.to_string().as_bytes())
    }

    fn store(key: &[u8], value: &[u8]) -> Self {
        let store = Store {
            verb: StoreVerb::Set,
            key,
            flags: 0,
            exptime: 0,
            cas: 0,
            noreply: false,
            value,
        };
        Self::new(|out| client::store(out, &store), b"STORED\r\n".len(), b'S')
    }

    /// `incr` by one of an item whose number keeps `digits` digits and its first digit
    pub fn incr(key: &[u8], digits: usize, first: u8) -> Self {
        Self::new(|out| client::arithmetic(out, key, 1, false, false), digits + 2, first)
    }

    /// `delete` of an item that is there
    pub fn delete(key: &[u8]) -> Self {
        Self::new(|out| client::delete(out, key, false), b"DELETED\r\n".len(), b'D')
    }

    /// Sends a request and reads its whole reply, in as few calls as the server allows.
    fn over(&self, connection: &mut Connection, buffer: &mut [u8]) -> io::Result<()> {
        connection.write_all(&self.request)?;
        let mut got = 0;
        while got < self.reply_len {
            match connection.read(&mut buffer[got..])? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => got += n,
            }
            if buffer[0] != self.reply_first {
                break;
            }
        }
        if got != self.reply_len {
            return Err(unexpected(&buffer[..got], self.reply_len));
        }
        check(self, buffer[0], buffer[got - 1])
    }

    /// The same, off the clock.
    pub fn untimed(mut self) -> Self {
        self.timed = false;
        self
    }

    /// Several requests in one write.
    pub fn pipelined(all: &[Self]) -> Self {
        Self::new(
            |out| all.iter().for_each(|e| out.extend_from_slice(&e.request)),
            all.iter().map(|e| e.reply_len).sum(),
            all.first().map_or(0, |e| e.reply_first),
        )
    }
}

fn unexpected(got: &[u8], expected_len: usize) -> io::Error {
    let start = String::from_utf8_lossy(&got[..got.len().min(60)]).into_owned();
    io::Error::other(format!(
        "a reply of {} bytes was expected, {} came, starting {start:?}",
        expected_len,
        got.len()
    ))
}

/// What a run of a load gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ran {
    /// exchanges that were answered
    pub exchanges: u64,
    /// from the first request to the last reply
    pub elapsed: Duration,
}

/// Exchanges that connections take in turn, over and over.
#[derive(Clone, Debug)]
pub struct Load {
    /// what to send
    pub exchanges: Vec<Exchange>,
    /// how many connections, each with one exchange in flight
    pub connections: usize,
}

impl Load {
    /// Runs for about `length` from this thread. One connection blocks; more of them share one epoll instance.
    pub fn run(&self, target: &Target, length: Duration) -> io::Result<Ran> {
        if self.connections == 1 {
            self.run_blocking(target, length)
        } else {
            self.run_polling(target, length, None)
        }
    }

    /// The same at an offered rate: so many exchanges a second begin as long as there are connections whose last one has ended. What is late
    /// is made up for.
    pub fn run_at(&self, target: &Target, length: Duration, per_s: f64) -> io::Result<Ran> {
        self.run_polling(target, length, Some(per_s))
    }

    fn buffer(&self) -> Vec<u8> {
        let longest = self.exchanges.iter().map(|e| e.reply_len).max().unwrap_or(0);
        vec![0; longest + 4096]
    }

    fn run_blocking(&self, target: &Target, length: Duration) -> io::Result<Ran> {
        let (mut connection, mut buffer) = (Connection::open(target)?, self.buffer());
        let started = Instant::now();
        let mut exchanges = 0;
        for exchange in self.exchanges.iter().cycle() {
            exchange.over(&mut connection, &mut buffer)?;
            exchanges += 1;
            if exchanges % 64 == 0 && started.elapsed() >= length {
                break;
            }
        }
        Ok(Ran {
            exchanges,
            elapsed: started.elapsed(),
        })
    }

    #[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
    fn run_polling(&self, target: &Target, length: Duration, per_s: Option<f64>) -> io::Result<Ran> {
        struct Peer<'a> {
            connection: Connection,
            exchange: &'a Exchange,
            got: usize,
        }
        let mut next = self.exchanges.iter().cycle();
        let mut take = || next.next().ok_or_else(|| io::Error::other("a load without exchanges"));
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut peers = Vec::with_capacity(self.connections);
        for _ in 0..self.connections {
            let connection = Connection::open(target)?;
            connection.set_nonblocking()?;
            epoll::add(
                &poll,
                &connection,
                epoll::EventData::new_u64(peers.len() as u64),
                epoll::EventFlags::IN,
            )?;
            peers.push(Peer {
                connection,
                exchange: take()?,
                got: 0,
            });
        }
        let mut buffer = self.buffer();
        let mut events = Vec::with_capacity(self.connections);
        let started = Instant::now();
        // When the next exchange is due, seconds after the start. Without a rate, each is due when the one before has ended.
        let due_s = |begun: u64| per_s.map_or(0.0, |per_s| begun as f64 / per_s);
        let mut idle: Vec<usize> = (0..peers.len()).collect();
        let (mut exchanges, mut begun, mut over) = (0, 0, false);
        loop {
            let elapsed = started.elapsed();
            over = over || elapsed >= length;
            while !over
                && due_s(begun) <= elapsed.as_secs_f64()
                && let Some(peer) = idle.pop()
            {
                let peer = &mut peers[peer];
                (peer.exchange, peer.got) = (take()?, 0);
                // Requests are shorter than any socket's buffer, and only one is under way: the kernel takes them whole.
                peer.connection.write_all(&peer.exchange.request)?;
                begun += 1;
            }
            if over && idle.len() == peers.len() {
                break;
            }
            let rest_s = if over || idle.is_empty() {
                None
            } else {
                Some((due_s(begun) - elapsed.as_secs_f64()).max(0.0))
            };
            let rest = rest_s
                .map(Duration::from_secs_f64)
                .map(Timespec::try_from)
                .transpose()
                .ok()
                .flatten();
            events.clear();
            epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), rest.as_ref())?;
            for event in &events {
                let Ok(number) = usize::try_from(event.data.u64()) else {
                    continue;
                };
                let Some(peer) = peers.get_mut(number) else { continue };
                let n = match peer.connection.read(&mut buffer) {
                    Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                    Ok(n) => n,
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => continue,
                    Err(e) => return Err(e),
                };
                let first = if peer.got == 0 { buffer[0] } else { peer.exchange.reply_first };
                peer.got += n;
                if peer.got < peer.exchange.reply_len && first == peer.exchange.reply_first {
                    continue;
                }
                if peer.got != peer.exchange.reply_len {
                    return Err(unexpected(&buffer[..n], peer.exchange.reply_len));
                }
                check(peer.exchange, first, buffer[n - 1])?;
                exchanges += 1;
                if over || per_s.is_some() {
                    idle.push(number);
                    continue;
                }
                (peer.exchange, peer.got) = (take()?, 0);
                peer.connection.write_all(&peer.exchange.request)?;
            }
        }
        Ok(Ran {
            exchanges,
            elapsed: started.elapsed(),
        })
    }

    /// Nanoseconds of each timed exchange, one after the other over one connection, for about `length`.
    pub fn latencies_ns(&self, target: &Target, length: Duration) -> io::Result<Vec<u64>> {
        let (mut connection, mut buffer) = (Connection::open(target)?, self.buffer());
        let mut latencies = Vec::with_capacity(1 << 20);
        let started = Instant::now();
        for exchange in self.exchanges.iter().cycle() {
            let sent = Instant::now();
            exchange.over(&mut connection, &mut buffer)?;
            let took = sent.elapsed();
            if exchange.timed {
                latencies.push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
            }
            if started.elapsed() >= length {
                break;
            }
        }
        Ok(latencies)
    }
}

fn check(exchange: &Exchange, first: u8, last: u8) -> io::Result<()> {
    if first == exchange.reply_first && last == b'\n' {
        return Ok(());
    }
    let asked = String::from_utf8_lossy(&exchange.request[..exchange.request.len().min(60)]).into_owned();
    Err(io::Error::other(format!(
        "{asked:?} got a reply that starts with {:?}",
        char::from(first)
    )))
}

#[cfg(test)]
mod tests {
    //! A server of a few lines that always gives one reply stands in for a cache.
    use super::*;
    use crate::workload::key;
    use std::net::TcpListener;

    /// Answers every line with `reply`, in pieces of `piece` bytes.
    fn serve(reply: &'static [u8], piece: usize) -> Target {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let target = Target::Tcp(listener.local_addr().unwrap());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                stream.set_nodelay(true).unwrap();
                std::thread::spawn(move || {
                    let mut buffer = [0; 4096];
                    while let Ok(n @ 1..) = stream.read(&mut buffer) {
                        for _ in buffer[..n].iter().filter(|&&b| b == b'\n') {
                            for part in reply.chunks(piece) {
                                if stream.write_all(part).is_err() {
                                    return;
                                }
                            }
                        }
                    }
                });
            }
        });
        target
    }

    fn load(connections: usize, value_len: usize) -> Load {
        Load {
            exchanges: vec![Exchange::get(&[key(1)], value_len)],
            connections,
        }
    }

    const HIT: &[u8] = b"VALUE 0123456789abcdef 0 5\r\nhello\r\nEND\r\n";
    const SHORT: Duration = Duration::from_millis(20);

    #[test]
    fn the_length_of_a_reply_is_known_beforehand() {
        assert_eq!(Exchange::get(&[key(1)], 5).reply_len, HIT.len());
        assert_eq!(
            Exchange::get(&[key(1), key(2)], 5).reply_len,
            2 * HIT.len() - b"END\r\n".len()
        );
        assert_eq!(Exchange::set(b"k", 3).request, b"set k 0 0 3\r\nvvv\r\n");
    }

    #[test]
    fn replies_are_counted_whole_or_in_pieces_on_one_connection_or_many() {
        for piece in [1, 7, HIT.len()] {
            let target = serve(HIT, piece);
            for connections in [1, 4] {
                let ran = load(connections, 5).run(&target, SHORT).unwrap();
                assert!(ran.exchanges >= 1 && ran.elapsed >= SHORT, "{ran:?}");
            }
        }
        assert!(!load(1, 5).latencies_ns(&serve(HIT, HIT.len()), SHORT).unwrap().is_empty());
    }

    #[test]
    fn a_rate_is_kept_and_no_more_is_asked_for() {
        let target = serve(HIT, HIT.len());
        let length = Duration::from_millis(200);
        let ran = load(4, 5).run_at(&target, length, 500.0).unwrap();
        // The first one is due at once.
        assert!((1..=100).contains(&ran.exchanges) && ran.elapsed >= length, "{ran:?}");
        // More than any server answers: as without a rate.
        assert!(load(4, 5).run_at(&target, SHORT, 1e12).unwrap().exchanges >= 1);
    }

    #[test]
    fn a_miss_an_error_or_another_length_is_not_counted_as_an_answer() {
        for reply in [
            &b"END\r\n"[..],
            b"SERVER_ERROR out of memory\r\n",
            b"VALUE 0123456789abcdef 0 6\r\nhello!\r\nEND\r\n",
        ] {
            for connections in [1, 3] {
                assert!(load(connections, 5).run(&serve(reply, 1000), SHORT).is_err(), "{reply:?}");
            }
        }
    }

    #[test]
    fn the_admin_reads_numbers_and_hits() {
        let mut admin = Admin::open(&serve(b"STAT a 1\r\nSTAT curr_items 42\r\nEND\r\n", 3)).unwrap();
        assert_eq!(admin.stat("curr_items").unwrap(), 42);
        assert!(admin.stat("nothing").is_err());
        let mut admin = Admin::open(&serve(b"VALUE a 0 2\r\n\r\n\r\nVALUE b 0 0\r\n\r\nEND\r\n", 2)).unwrap();
        assert_eq!(admin.hits(&["a", "b"]).unwrap(), (2, 4));
    }
}
