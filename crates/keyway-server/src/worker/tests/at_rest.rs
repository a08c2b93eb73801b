//! When a connection is published as at rest, and when it is not.
//!
//! Enemy: a word that lets the kernel door answer while the server may still write, or while a request waits here.
//!
//! The workers run in the test's thread, a round at a time, with both event loops. Clients are TCP connections over loopback. The program's
//! side is a record, which answers as the program would: a word counts only if it is the ticket and the number of bytes that the client has
//! sent, because that is what the server's socket has received.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use keyway_cache::{Cache, Options, Place};
use keyway_uring::{Event, Ring};
use socket2::SockRef;

use super::super::driven::Driven;
use super::super::{Transfer, Worker};
use crate::basics::lock;
use crate::config::{Config, EventLoop};
use crate::connection::{Handed, Inherited, Stream};
use crate::kernel::{Candidates, Enrolments, ProgramSide, Served};
use crate::shared::{CloseReason, Peer, PeerAddress};

/// A test that waits for an answer fails after this time.
const DEADLINE: Duration = Duration::from_secs(60);
/// Rounds of both workers after which nothing more happens without new events.
const SETTLING: usize = 20;
/// Buffers of both sockets of a connection, bytes. The kernel doubles what it is asked for, and may hold a segment more.
const BUFFER: usize = 64 << 10;
const BUFFERED_MAX: usize = 450_000;
/// A request that brings a connection to rest, and counts as a get.
const GET: &[u8] = b"get absent\r\n";
const END: &[u8] = b"END\r\n";

/// What a program would know.
#[derive(Default)]
struct Record {
    /// slot and ticket, in the order of their enrolment
    enrolled: Mutex<Vec<(u32, u64)>>,
    words: Mutex<BTreeMap<u32, u64>>,
    refuses: AtomicBool,
}

struct Side(Arc<Record>);

impl ProgramSide for Side {
    fn slots(&self) -> u32 {
        2
    }

    fn enrol(&self, _: BorrowedFd<'_>, slot: u32, ticket: u64) -> io::Result<()> {
        if self.0.refuses.load(Relaxed) {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        assert_eq!(
            lock(&self.0.words).get(&slot).copied().unwrap_or(0),
            0,
            "the slot was not cleared"
        );
        lock(&self.0.enrolled).push((slot, ticket));
        Ok(())
    }

    fn publish(&self, slot: u32, word: u64) {
        lock(&self.0.words).insert(slot, word);
    }

    fn translated(&self) -> Result<usize, String> {
        Ok(0)
    }
}

/// A driven pair of workers, and where their clients come from.
struct Bench {
    driven: Driven,
    listener: TcpListener,
    record: Arc<Record>,
    enrolments: Arc<Enrolments>,
    candidates: Arc<Candidates>,
    cache: Cache,
    clients: u64,
    /// new connections have small buffers
    is_tight: bool,
}

/// A client of the workers.
struct Client {
    stream: TcpStream,
    sent: u64,
    peer: Arc<Peer>,
}

/// The event loops that there are here.
fn event_loops() -> Vec<EventLoop> {
    match Ring::open() {
        Ok(_) => vec![EventLoop::Epoll, EventLoop::IoUring],
        Err(error) => {
            harness::skip("the event loop io_uring", &error.to_string());
            vec![EventLoop::Epoll]
        }
    }
}

impl Bench {
    fn new(event_loop: EventLoop, config: Config) -> Self {
        let config = Config { event_loop, ..config };
        let cache = Cache::open(&Place::Memfd, &Options::default()).expect("a region in anonymous memory");
        let mut driven = Driven::start(config, cache.clone()).expect("a server");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let record = Arc::new(Record::default());
        let enrolments = Arc::new(Enrolments::new(Arc::new(Side(Arc::clone(&record))), address));
        let candidates = Arc::new(Candidates::default());
        for worker in &mut driven.workers {
            let served = Served::new(Arc::clone(&candidates), cache.clone());
            worker.desk.executor.serve_beside(Arc::clone(&enrolments), served);
        }
        Self {
            driven,
            listener,
            record,
            enrolments,
            candidates,
            cache,
            clients: 0,
            is_tight: false,
        }
    }

    fn address(&self) -> SocketAddr {
        self.listener.local_addr().expect("an address")
    }

    /// A client that has connected, and the server's end.
    fn accepted(&mut self) -> (Client, TcpStream) {
        let stream = TcpStream::connect(self.address()).expect("a connection");
        stream.set_nonblocking(true).expect("a socket");
        stream.set_nodelay(true).expect("a socket");
        let (served, remote) = self.listener.accept().expect("a client");
        if self.is_tight {
            SockRef::from(&stream).set_recv_buffer_size(BUFFER).expect("a socket");
            SockRef::from(&served).set_send_buffer_size(BUFFER).expect("a socket");
        }
        served.set_nonblocking(true).expect("a socket");
        let address = PeerAddress::Tcp {
            remote,
            local: served.local_addr().ok(),
            is_secure: false,
        };
        self.clients += 1;
        let peer = Arc::new(Peer::new(self.clients, 0, address, 1, true, 0));
        (Client { stream, sent: 0, peer }, served)
    }

    /// A client that the workers serve.
    fn client(&mut self) -> Client {
        let (client, served) = self.accepted();
        let stream = Stream::Tcp(mio::net::TcpStream::from_std(served));
        self.driven.workers[1].take(Transfer::New(stream, Arc::clone(&client.peer)));
        client
    }

    /// A client that is enrolled and at rest.
    fn enrolled(&mut self) -> Client {
        let mut client = self.client();
        for _ in 0..4 {
            self.ask(&mut client, GET, END);
        }
        self.settle();
        assert!(self.may_answer(&client), "at rest");
        client
    }

    fn round(&mut self) {
        self.driven.rounds();
    }

    fn settle(&mut self) {
        (0..SETTLING).for_each(|_| self.round());
    }

    /// Sends a request and waits for its answer.
    fn ask(&mut self, client: &mut Client, request: &[u8], answer: &[u8]) {
        client.send(request);
        self.await_answer(client, answer);
    }

    fn await_answer(&mut self, client: &mut Client, answer: &[u8]) {
        let until = Instant::now() + DEADLINE;
        let mut got = Vec::new();
        while got.len() < answer.len() {
            assert!(Instant::now() < until, "{}", String::from_utf8_lossy(&got));
            self.round();
            client.read(&mut got);
        }
        assert_eq!(String::from_utf8_lossy(&got), String::from_utf8_lossy(answer));
    }

    /// The word of a client that was enrolled as the `number`-th one.
    fn word(&self, number: usize) -> u64 {
        let (slot, _) = lock(&self.record.enrolled)[number];
        lock(&self.record.words).get(&slot).copied().unwrap_or(0)
    }

    /// Whether the program may answer the next request of the client that was enrolled first.
    fn may_answer(&self, client: &Client) -> bool {
        let first = lock(&self.record.enrolled).first().copied();
        first.is_some_and(|(_, ticket)| self.word(0) == ticket.wrapping_add(client.sent))
    }

    /// The worker that serves the only connection, and the worker's token for it.
    fn place(&self) -> (usize, usize) {
        let mut places = (0..2).flat_map(|worker| {
            self.driven.workers[worker]
                .connections
                .iter()
                .map(move |(token, _)| (worker, token))
        });
        places.next().expect("a connection")
    }
}

impl Client {
    fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("the socket has room");
        self.sent += bytes.len() as u64;
    }

    /// Appends what has arrived.
    fn read(&mut self, got: &mut Vec<u8>) {
        let mut bytes = [0; 64 << 10];
        match self.stream.read(&mut bytes) {
            Ok(0) => panic!("the connection is closed"),
            Ok(count) => got.extend_from_slice(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn every_kind_of_request_ends_at_rest() {
    let long_key = format!("get {}\r\n", "k".repeat(251));
    let many = format!("get{}\r\n", " a".repeat(5000));
    let asked: [(&[u8], &[u8]); 21] = [
        (b"set k 5 0 3\r\nabc\r\n", b"STORED\r\n"),
        (b"get k\r\n", b"VALUE k 5 3\r\nabc\r\nEND\r\n"),
        (b"get k absent\r\n", b"VALUE k 5 3\r\nabc\r\nEND\r\n"),
        (b"mg k v\r\n", b"VA 3\r\nabc\r\n"),
        (b"mg absent v\r\n", b"EN\r\n"),
        (b"mg absent v q\r\nmn\r\n", b"MN\r\n"),
        (b"get k\r\nget absent\r\n", b"VALUE k 5 3\r\nabc\r\nEND\r\nEND\r\n"),
        (b"ms k 3\r\nxyz\r\n", b"HD\r\n"),
        (b"append k 0 0 1\r\n!\r\n", b"STORED\r\n"),
        (b"touch k 100\r\n", b"TOUCHED\r\n"),
        (b"gat 100 k\r\n", b"VALUE k 0 4\r\nxyz!\r\nEND\r\n"),
        (b"set n 0 0 1\r\n7\r\n", b"STORED\r\n"),
        (b"incr n 2\r\n", b"9\r\n"),
        (b"ma n\r\n", b"HD\r\n"),
        (b"delete n\r\n", b"DELETED\r\n"),
        (b"md n\r\n", b"NF\r\n"),
        (b"nonsense\r\n", b"ERROR\r\n"),
        (b"verbosity 0\r\n", b"OK\r\n"),
        (long_key.as_bytes(), b"CLIENT_ERROR bad command line format\r\n"),
        (b"flush_all\r\n", b"OK\r\n"),
        (many.as_bytes(), b"END\r\n"),
    ];
    for event_loop in event_loops() {
        let mut bench = Bench::new(event_loop, Config::default());
        let mut client = bench.enrolled();
        for (request, answer) in asked {
            bench.ask(&mut client, request, answer);
            bench.settle();
            assert!(bench.may_answer(&client), "{event_loop:?}: {}", request.escape_ascii());
        }
        // Without an answer.
        for request in [
            &b"set k 0 0 1 noreply\r\nx\r\n"[..],
            b"mg absent v q\r\n",
            b"touch k 9 noreply\r\n",
        ] {
            client.send(request);
            bench.settle();
            assert!(bench.may_answer(&client), "{event_loop:?}: {}", request.escape_ascii());
        }
    }
}

#[test]
fn a_connection_is_enrolled_at_its_fourth_rest_with_a_get() {
    for event_loop in event_loops() {
        let mut bench = Bench::new(event_loop, Config::default());
        let mut client = bench.client();
        for number in 0..3 {
            bench.ask(&mut client, GET, END);
            bench.settle();
            assert!(lock(&bench.record.enrolled).is_empty(), "{number}");
        }
        bench.ask(&mut client, GET, END);
        bench.settle();
        assert!(bench.may_answer(&client));
        let numbers = bench.enrolments.numbers();
        assert_eq!((numbers.total, numbers.current, numbers.failures), (1, 1, 0));

        // Without a get it takes longer.
        let mut other = bench.client();
        for _ in 0..6 {
            bench.ask(&mut other, b"mn\r\n", b"MN\r\n");
            bench.settle();
        }
        assert_eq!(lock(&bench.record.enrolled).len(), 1);
        bench.ask(&mut other, b"mg absent v\r\n", b"EN\r\n");
        bench.settle();
        assert_eq!(lock(&bench.record.enrolled).len(), 2);
    }
}

#[test]
fn a_part_of_a_request_is_no_rest() {
    for event_loop in event_loops() {
        let mut bench = Bench::new(event_loop, Config::default());
        let mut client = bench.enrolled();
        let requests: [(&[&[u8]], &[u8]); 3] = [
            (&[b"ge", b"t absent\r", b"\n"], END),
            (&[b"set k 0 0 6\r\n", b"abc", b"def\r", b"\n"], b"STORED\r\n"),
            (&[b"mn\r\nset k 0 0 6\r\nabc", b"def\r\n"], b"MN\r\nSTORED\r\n"),
        ];
        for (parts, answer) in requests {
            let (last, first) = parts.split_last().expect("parts");
            for part in first {
                client.send(part);
                bench.settle();
                assert!(!bench.may_answer(&client), "{event_loop:?}: after {}", part.escape_ascii());
                if part.starts_with(b"mn") {
                    bench.await_answer(&mut client, b"MN\r\n");
                }
            }
            let answer = answer.strip_prefix(b"MN\r\n").unwrap_or(answer);
            bench.ask(&mut client, last, answer);
            bench.settle();
            assert!(bench.may_answer(&client), "{event_loop:?}");
        }
        client.send(b"set k 0 0 2000000\r\nabc");
        bench.settle();
        assert!(!bench.may_answer(&client), "{event_loop:?}: the value is being dropped");
        let rest = vec![b'x'; 2_000_000 - 3];
        let mut sent = 0;
        while sent < rest.len() {
            match client.stream.write(&rest[sent..]) {
                Ok(count) => sent += count,
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            bench.round();
            client.sent = 0;
        }
        client.stream.write_all(b"\r\n").expect("room");
        bench.await_answer(&mut client, b"SERVER_ERROR object too large for cache\r\n");
        bench.settle();
        let (_, ticket) = lock(&bench.record.enrolled)[0];
        let counted = bench.word(0).wrapping_sub(ticket);
        bench.ask(&mut client, GET, END);
        bench.settle();
        assert_eq!(
            bench.word(0).wrapping_sub(ticket),
            counted + GET.len() as u64,
            "all bytes are counted"
        );
    }
}

#[test]
fn a_line_of_keys_that_has_not_ended_is_no_rest() {
    for event_loop in event_loops() {
        let mut bench = Bench::new(event_loop, Config::default());
        let mut client = bench.enrolled();
        // Longer than what is checked before the first key is answered.
        client.send(format!("get{} ", " key".repeat(20_000)).as_bytes());
        bench.settle();
        assert!(!bench.may_answer(&client), "{event_loop:?}");
        client.send(b" key ");
        bench.settle();
        assert!(!bench.may_answer(&client), "{event_loop:?}");
        bench.ask(&mut client, b"\r\n", END);
        bench.settle();
        assert!(bench.may_answer(&client), "{event_loop:?}");
        // A refused one is dropped as it arrives.
        client.send(format!("get {}{}", "k".repeat(251), " key".repeat(20_000)).as_bytes());
        bench.await_answer(&mut client, b"CLIENT_ERROR bad command line format\r\n");
        bench.settle();
        assert!(!bench.may_answer(&client), "{event_loop:?}: refused");
        client.send(b" key\r\n");
        bench.settle();
        assert!(bench.may_answer(&client), "{event_loop:?}: refused");
    }
}

#[test]
fn output_that_the_socket_has_not_taken_is_no_rest() {
    for event_loop in event_loops() {
        let mut bench = Bench::new(event_loop, Config::default());
        bench.is_tight = true;
        let mut client = bench.enrolled();
        let len = 900_000;
        let value = "v".repeat(len);
        let mut session = bench.cache.session().expect("a session");
        session.set(b"big", value.as_bytes(), 0).expect("room");
        drop(session);
        // One answer, and answers of requests that wait behind them.
        for count in [1, 4] {
            client.send(&b"get big\r\n".repeat(count));
            bench.settle();
            assert!(!bench.may_answer(&client), "{event_loop:?}: {count}");
            let answer = format!("VALUE big 0 {len}\r\n{value}\r\nEND\r\n").len() * count;
            let (mut got, until) = (Vec::new(), Instant::now() + DEADLINE);
            while got.len() < answer {
                assert!(Instant::now() < until);
                assert!(
                    !bench.may_answer(&client) || got.len() + BUFFERED_MAX > answer,
                    "{event_loop:?}: at rest with output left"
                );
                client.read(&mut got);
                bench.round();
            }
            bench.settle();
            assert!(bench.may_answer(&client), "{event_loop:?}: {count}");
        }
    }
}

#[test]
fn a_dump_and_a_watch_are_no_rest() {
    for event_loop in event_loops() {
        let mut bench = Bench::new(event_loop, Config::default());
        let mut client = bench.enrolled();
        let mut session = bench.cache.session().expect("a session");
        for number in 0..40_000 {
            session.set(format!("key-{number}").as_bytes(), b"v", 0).expect("room");
        }
        drop(session);
        client.send(b"lru_crawler metadump all\r\n");
        bench.settle();
        let (mut got, until) = (Vec::new(), Instant::now() + DEADLINE);
        assert!(!bench.may_answer(&client), "{event_loop:?}");
        while !got.ends_with(b"END\r\n") {
            assert!(Instant::now() < until);
            client.read(&mut got);
            bench.round();
        }
        bench.settle();
        assert!(bench.may_answer(&client), "{event_loop:?}");

        bench.ask(&mut client, b"watch evictions\r\n", b"OK\r\n");
        bench.settle();
        assert!(!bench.may_answer(&client) && bench.word(0) == 0, "{event_loop:?}");
        client.send(b"get absent\r\n");
        bench.settle();
        assert!(!bench.may_answer(&client), "{event_loop:?}");
    }
}

#[test]
fn the_word_is_cleared_before_the_server_ends_a_connection() {
    for event_loop in event_loops() {
        for reason in [CloseReason::IdleTimeout, CloseReason::Memory, CloseReason::Error] {
            let mut bench = Bench::new(event_loop, Config::default());
            let client = bench.enrolled();
            let (worker, token) = bench.place();
            bench.driven.workers[worker].close(token, reason);
            assert!(bench.word(0) == 0, "{event_loop:?}");
            // Its slot is given to the next one, with another ticket.
            bench.settle();
            let _next = {
                let mut next = bench.client();
                (0..4).for_each(|_| bench.ask(&mut next, GET, END));
                next
            };
            bench.settle();
            let enrolled = lock(&bench.record.enrolled).clone();
            assert!(enrolled[0].0 == enrolled[1].0 && enrolled[0].1 != enrolled[1].1);
            assert!(!bench.may_answer(&client));
            assert_eq!((bench.enrolments.numbers().total, bench.enrolments.numbers().current), (2, 1));
        }
        let mut bench = Bench::new(event_loop, Config::default());
        let client = bench.enrolled();
        let (worker, _) = bench.place();
        bench.driven.workers[worker].stop();
        for _ in 0..SETTLING {
            assert!(bench.word(0) == 0, "{event_loop:?}: stopping");
            bench.round();
        }
        assert!(!bench.may_answer(&client));
    }
}

#[test]
fn the_end_of_the_input_is_no_rest() {
    for event_loop in event_loops() {
        let mut bench = Bench::new(event_loop, Config::default());
        let client = bench.enrolled();
        client.stream.shutdown(Shutdown::Write).expect("a socket");
        let until = Instant::now() + DEADLINE;
        while bench.word(0) != 0 {
            assert!(Instant::now() < until, "{event_loop:?}");
            bench.round();
        }
    }
}

#[test]
fn a_connection_that_the_program_keeps_silent_is_not_taken_for_idle() {
    for event_loop in event_loops() {
        let mut bench = Bench::new(event_loop, Config::default());
        let mut client = bench.enrolled();
        let (worker, token) = bench.place();
        let connection = &mut bench.driven.workers[worker].connections[token];
        let later = connection.last_active() + Duration::from_secs(60);
        connection.doubt_idleness(later - Duration::from_secs(61), later);
        assert!(connection.last_active() < later, "it was active a moment ago");
        connection.doubt_idleness(later - Duration::from_secs(30), later);
        assert_eq!(connection.last_active(), later);
        assert_eq!(bench.word(0), 0);
        // Until it shows itself.
        bench.driven.workers[worker].enqueue(token);
        bench.settle();
        assert_eq!(bench.word(0), 0);
        bench.ask(&mut client, GET, END);
        bench.settle();
        assert!(bench.may_answer(&client), "{event_loop:?}");
        // One that does not is doubted once, and not again and again.
        let (worker, token) = bench.place();
        let connection = &mut bench.driven.workers[worker].connections[token];
        let later = connection.last_active().max(later) + Duration::from_secs(60);
        connection.doubt_idleness(later, later);
        connection.doubt_idleness(later + Duration::from_secs(60), later + Duration::from_secs(60));
        assert_eq!(connection.last_active(), later);
    }
}

impl Worker {
    /// Waits until the ring, if there is one, has received something, and leaves that for later.
    fn wait_for_data(&mut self) {
        let is_data = |event: &Event| matches!(event, Event::Received { .. });
        let Some(ring) = &mut self.desk.ring else { return };
        while !self.waiting.completed().iter().any(is_data) {
            self.waiting.wait_for_ring(ring, Some(DEADLINE)).expect("a ring");
        }
    }
}

/// Brings the only connection to where it can be handed over.
fn handed(bench: &mut Bench) -> Handed {
    let (worker, token) = bench.place();
    let worker = &mut bench.driven.workers[worker];
    worker.let_go().expect("the ring lets go");
    worker.connections[token].handed(&worker.desk).expect("at a request boundary")
}

#[test]
fn what_is_handed_over_is_cleared_and_never_enrolled_there() {
    for event_loop in event_loops() {
        let mut bench = Bench::new(event_loop, Config::default());
        let mut client = bench.enrolled();
        let (_, carried, bytes) = handed(&mut bench).parts();
        assert_eq!(bench.word(0), 0, "{event_loop:?}");
        // The other server gives up.
        let (worker, token) = bench.place();
        bench.driven.workers[worker].connections[token].resume();
        bench.driven.workers[worker].enqueue(token);
        bench.settle();
        assert!(bench.may_answer(&client), "{event_loop:?}: it goes on here");
        bench.ask(&mut client, GET, END);
        bench.settle();
        assert!(bench.may_answer(&client), "{event_loop:?}");
        // Bytes that arrive while it halts are counted.
        client.send(b"get ab");
        let (worker, _) = bench.place();
        bench.driven.workers[worker].wait_for_data();
        handed(&mut bench);
        client.send(b"sent\r\n");
        let (worker, token) = bench.place();
        bench.driven.workers[worker].connections[token].resume();
        bench.driven.workers[worker].enqueue(token);
        bench.await_answer(&mut client, END);
        bench.settle();
        assert!(bench.may_answer(&client), "{event_loop:?}: all bytes are counted");
        // One that another server has served so far.
        let (mut taken, served) = bench.accepted();
        let fd = served.as_fd().try_clone_to_owned().expect("a descriptor");
        let inherited = Box::new(Inherited::new(fd, carried, bytes));
        bench.driven.workers[1].take(Transfer::Inherited(inherited, Arc::clone(&taken.peer)));
        for _ in 0..8 {
            bench.ask(&mut taken, GET, END);
            bench.settle();
        }
        assert_eq!(lock(&bench.record.enrolled).len(), 1, "{event_loop:?}");
    }
}

#[test]
fn one_that_is_drained_is_not_at_rest() {
    for event_loop in event_loops() {
        let mut bench = Bench::new(event_loop, Config::default());
        let client = bench.enrolled();
        let _ = handed(&mut bench);
        let (worker, token) = bench.place();
        bench.driven.workers[worker].connections[token].drain();
        bench.driven.workers[worker].enqueue(token);
        bench.settle();
        assert!(!bench.may_answer(&client) && bench.word(0) == 0, "{event_loop:?}");
    }
}

#[test]
fn only_certain_connections_are_enrolled() {
    let serve = |bench: &mut Bench, mut client: Client| {
        for _ in 0..8 {
            bench.ask(&mut client, GET, END);
            bench.settle();
        }
        lock(&bench.record.enrolled).len()
    };
    for event_loop in event_loops() {
        // A limit of requests.
        let limited = Config {
            request_rate: Some((1_000_000, 1_000_000)),
            ..Config::default()
        };
        let mut bench = Bench::new(event_loop, limited);
        let client = bench.client();
        assert_eq!(serve(&mut bench, client), 0, "{event_loop:?}: a rate");
        // Another address or port of this server.
        let mut bench = Bench::new(event_loop, Config::default());
        bench.listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let client = bench.client();
        assert_eq!(serve(&mut bench, client), 0, "{event_loop:?}: another port");
        // A Unix socket.
        let mut bench = Bench::new(event_loop, Config::default());
        let (mut client, served) = std::os::unix::net::UnixStream::pair().expect("a pair");
        served.set_nonblocking(true).expect("a socket");
        let peer = Arc::new(Peer::new(9, 0, PeerAddress::Unix, 1, true, 0));
        let stream = Stream::Unix(mio::net::UnixStream::from_std(served));
        bench.driven.workers[1].take(Transfer::New(stream, peer));
        for _ in 0..8 {
            client.write_all(GET).expect("room");
            bench.settle();
            client.read_exact(&mut [0; 5]).expect("an answer");
        }
        assert!(lock(&bench.record.enrolled).is_empty(), "{event_loop:?}: a Unix socket");
        // The binary protocol: a noop.
        let mut bench = Bench::new(event_loop, Config::default());
        let mut client = bench.client();
        let mut noop = [0; 24];
        (noop[0], noop[1]) = (0x80, 0x0a);
        for _ in 0..8 {
            client.send(&noop);
            bench.settle();
        }
        assert!(lock(&bench.record.enrolled).is_empty(), "{event_loop:?}: binary");
    }
}

#[test]
fn a_failure_leaves_the_connection_with_the_server() {
    for event_loop in event_loops() {
        let mut bench = Bench::new(event_loop, Config::default());
        bench.record.refuses.store(true, Relaxed);
        let mut client = bench.client();
        for _ in 0..8 {
            bench.ask(&mut client, GET, END);
            bench.settle();
        }
        let numbers = bench.enrolments.numbers();
        assert_eq!(
            (numbers.total, numbers.current, numbers.failures),
            (0, 0, 1),
            "{event_loop:?}"
        );
        bench.record.refuses.store(false, Relaxed);
        // Two slots, three connections.
        let mut clients: Vec<Client> = (0..3).map(|_| bench.client()).collect();
        for client in &mut clients {
            for _ in 0..5 {
                bench.ask(client, GET, END);
                bench.settle();
            }
        }
        let numbers = bench.enrolments.numbers();
        assert_eq!(
            (numbers.total, numbers.current, numbers.failures),
            (2, 2, 2),
            "{event_loop:?}"
        );
    }
}

#[test]
fn keys_of_enrolled_connections_are_offered() {
    for event_loop in event_loops() {
        let mut bench = Bench::new(event_loop, Config::default());
        let mut client = bench.client();
        for _ in 0..4 {
            bench.ask(&mut client, GET, END);
            bench.settle();
        }
        assert!(bench.candidates.take().is_empty(), "{event_loop:?}: only enrolled ones");
        bench.ask(&mut client, b"mg other v\r\n", b"EN\r\n");
        assert!(bench.candidates.take().is_empty(), "{event_loop:?}: at the second request");
        bench.ask(&mut client, b"get other third\r\n", END);
        bench.ask(&mut client, b"set third 0 0 1\r\nx\r\n", b"STORED\r\n");
        assert_eq!(bench.candidates.take(), [b"other".to_vec()], "{event_loop:?}");
    }
}

#[test]
fn a_login_comes_first_and_a_prefix_keeps_a_connection_here() {
    let folder = std::env::temp_dir().join(format!("keyway-at-rest-{}", std::process::id()));
    std::fs::write(&folder, "all:secret\nreader:secret:ro\npart:secret:rw:prefix=p\n").expect("a file");
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o600)).expect("a mode");
    for event_loop in event_loops() {
        for (user, is_enrolled) in [("all", true), ("reader", true), ("part", false)] {
            let config = Config {
                auth_file: Some(folder.clone()),
                ..Config::default()
            };
            let mut bench = Bench::new(event_loop, config);
            let mut client = bench.client();
            bench.settle();
            let login = format!("{user} secret");
            let login = format!("set auth 0 0 {}\r\n{login}\r\n", login.len());
            bench.ask(&mut client, login.as_bytes(), b"STORED\r\n");
            for _ in 0..8 {
                bench.ask(&mut client, b"get p\r\n", END);
                bench.settle();
            }
            assert_eq!(bench.may_answer(&client), is_enrolled, "{event_loop:?}: {user}");
            assert_eq!(
                lock(&bench.record.enrolled).len(),
                usize::from(is_enrolled),
                "{event_loop:?}: {user}"
            );
        }
    }
    std::fs::remove_file(&folder).expect("the file");
}
