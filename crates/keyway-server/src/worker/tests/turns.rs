//! How many requests of other connections a worker serves between two turns of one connection.
//!
//! The workers are [`driven`](super::super::driven). What a round serves depends on what was written before it, and not on time: no turn here has so
//! much work that it reads the clock (`cpu_budget`).

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keyway_cache::{Cache, Options, Place};
use keyway_uring::Ring;
use socket2::SockRef;

use super::super::driven::Driven;
use super::super::{LETTERS_PER_ROUND, Transfer, Worker};
use crate::account::{Charge, UNSENT_TIGHT};
use crate::config::{Config, EventLoop};
use crate::connection::HEAVY_FOR;
use crate::cpu_budget::{KEY, REQUEST, TURN_WORK};
use crate::shared::{CloseReason, Notice, Peer, PeerAddress};
use crate::start::StartError;

/// Requests that a turn executes at most, as configured here.
const PER_TURN: usize = 20;
const NOOP: &[u8] = b"mn\r\n";
const ANSWER: &[u8] = b"MN\r\n";
/// A test that waits for an answer fails after this time.
const DEADLINE: Duration = Duration::from_secs(60);
/// Rounds of both workers after which nothing more happens without new events.
const SETTLING: usize = 20;

/// A worker for short turns, its partner, and their clients.
struct Bench {
    driven: Driven,
    clients: Vec<UnixStream>,
}

/// Requests that a worker has served.
fn served(worker: &Worker) -> u64 {
    worker.desk.executor.counters().cmd_meta.get()
}

impl Bench {
    /// With so many clients of the worker, each of which has had a turn before.
    fn new(clients: usize) -> Result<Self, StartError> {
        Self::with(EventLoop::Epoll, clients)
    }

    fn with(event_loop: EventLoop, clients: usize) -> Result<Self, StartError> {
        let config = Config {
            event_loop,
            requests_per_turn: PER_TURN,
            ..Config::default()
        };
        let cache = Cache::open(&Place::Memfd, &Options::default()).expect("a region in anonymous memory");
        let mut bench = Self {
            driven: Driven::start(config, cache)?,
            clients: Vec::new(),
        };
        for _ in 0..clients {
            bench.clients.push(bench.driven.connect()?);
        }
        // They are new until they have had a turn.
        for client in 0..clients {
            bench.send(client, 1);
        }
        while served(bench.worker()) < clients as u64 {
            bench.round();
        }
        if event_loop == EventLoop::IoUring {
            // The ring sends later.
            (0..SETTLING).for_each(|_| bench.driven.rounds());
        }
        for client in 0..clients {
            assert_eq!(bench.answers(client), 1);
        }
        Ok(bench)
    }

    /// A client sends so many requests at once.
    fn send(&mut self, client: usize, requests: usize) {
        self.clients[client]
            .write_all(&NOOP.repeat(requests))
            .expect("the socket has room");
    }

    /// The answers that have arrived at a client since the last call.
    fn answers(&mut self, client: usize) -> usize {
        let mut bytes = Vec::new();
        match self.clients[client].read_to_end(&mut bytes) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            other => panic!("the worker closed the connection: {other:?}"),
        }
        assert_eq!(bytes.len() % ANSWER.len(), 0);
        assert!(bytes.chunks(ANSWER.len()).all(|answer| answer == ANSWER));
        bytes.len() / ANSWER.len()
    }

    /// A client of the partner. The server's end of its socket takes little at a time.
    fn slow_client(&mut self) -> Result<UnixStream, StartError> {
        let (client, transfer) = self.driven.arrival(1)?;
        if let Transfer::New(stream, _) = &transfer {
            SockRef::from(stream).set_send_buffer_size(0)?;
        }
        self.partner().take(transfer);
        Ok(client)
    }

    /// Another thread gives this worker a connection.
    fn transfer(&mut self, worker: usize, transfer: Transfer) {
        let to = &self.driven.workers[worker];
        to.mail.transfers.send(worker, transfer, &to.desk.shared().workers);
    }

    /// Whether the worker could end now.
    fn closes_mail(&mut self) -> bool {
        let worker = self.worker();
        worker.mail.close(&worker.desk.shared().workers)
    }

    fn worker(&mut self) -> &mut Worker {
        &mut self.driven.workers[0]
    }

    fn partner(&mut self) -> &mut Worker {
        &mut self.driven.workers[1]
    }

    /// One round of the worker; returns how many requests it has served.
    fn round(&mut self) -> u64 {
        self.round_of(0)
    }

    /// One round of its partner.
    fn partners_round(&mut self) -> u64 {
        self.round_of(1)
    }

    fn round_of(&mut self, worker: usize) -> u64 {
        let before = served(&self.driven.workers[worker]);
        self.driven.round(worker);
        served(&self.driven.workers[worker]) - before
    }
}

/// The answer of a client that is alone leaves in the round that served it, without waiting for the ring's next system call. The answers of
/// several leave together: by that call, or in the same round.
#[test]
fn requests_that_arrive_together_are_served_in_one_round_and_one_alone_is_answered_in_it() -> Result<(), StartError> {
    const CYCLES: usize = 20;
    let event_loops = match Ring::open() {
        Ok(_) => vec![EventLoop::Epoll, EventLoop::IoUring],
        Err(error) => {
            harness::skip("the event loop io_uring", &error.to_string());
            vec![EventLoop::Epoll]
        }
    };
    for event_loop in event_loops {
        for clients in [1, 2, 16] {
            let mut bench = Bench::with(event_loop, clients)?;
            for cycle in 0..CYCLES {
                (0..clients).for_each(|client| bench.send((client + cycle) % clients, 1));
                let name = format!("{event_loop:?}, {clients} clients, cycle {cycle}");
                assert_eq!(bench.round(), clients as u64, "{name}");
                if clients > 1 && event_loop == EventLoop::IoUring {
                    assert_eq!(bench.round(), 0, "{name}");
                }
                for client in 0..clients {
                    assert_eq!(bench.answers(client), 1, "{name}, client {client}");
                }
            }
        }
    }
    Ok(())
}

#[test]
fn many_clients_with_pipelines_delay_no_other_one() -> Result<(), StartError> {
    const MANY: usize = 64;
    const REQUESTS: usize = 40 * PER_TURN;
    // The work of a long turn, and what its last part may add to it.
    let bound = TURN_WORK / REQUEST + PER_TURN as u64;
    let mut bench = Bench::new(MANY + 1)?;
    for client in 0..MANY {
        bench.send(client, REQUESTS);
    }
    // All of them have something new, so all have a turn in the first round.
    bench.send(MANY, 1);
    assert_eq!(bench.round(), (MANY * PER_TURN + 1) as u64);
    assert_eq!((bench.worker().connections.len(), bench.answers(MANY)), (1, 1));
    let mut left = (MANY * (REQUESTS - PER_TURN)) as u64;
    while left > 0 {
        bench.send(MANY, 1);
        assert_eq!((bench.round(), bench.answers(MANY)), (1, 1), "the other client alone");
        let served = bench.partners_round();
        assert!(served <= bound, "{served} requests in a round, at most {bound}");
        left -= served;
    }
    for client in 0..MANY {
        assert_eq!(bench.answers(client), REQUESTS);
    }
    Ok(())
}

#[test]
fn a_crowd_of_new_clients_does_not_hold_up_the_others() -> Result<(), StartError> {
    const NEW: usize = 100;
    let mut bench = Bench::new(1)?;
    let mut others = Vec::new();
    for _ in 0..NEW {
        let (client, transfer) = bench.driven.arrival(0)?;
        bench.transfer(0, transfer);
        others.push(client);
    }
    let mut adopted = 1;
    while adopted < 1 + NEW {
        bench.send(0, 1);
        bench.round();
        assert_eq!(bench.answers(0), 1, "the client has a turn in each round");
        let now = bench.worker().connections.len();
        assert!(
            (adopted + 1..=adopted + LETTERS_PER_ROUND).contains(&now),
            "{adopted} connections, then {now}"
        );
        adopted = now;
    }
    Ok(())
}

#[test]
fn few_clients_with_pipelines_have_a_turn_in_each_round() -> Result<(), StartError> {
    const FEW: usize = 8;
    const ROUNDS: usize = 10;
    let mut bench = Bench::new(FEW)?;
    for client in 0..FEW {
        bench.send(client, ROUNDS * PER_TURN);
    }
    for round in 0..ROUNDS {
        match round {
            0 => bench.round(),
            _ => bench.partners_round(),
        };
        for client in 0..FEW {
            assert_eq!(bench.answers(client), PER_TURN);
        }
    }
    Ok(())
}

#[test]
fn a_connection_is_served_where_its_turns_belong() -> Result<(), StartError> {
    let mut bench = Bench::new(0)?;
    let (client, transfer) = bench.driven.arrival(1)?;
    bench.clients.push(client);
    bench.partner().take(transfer);
    bench.send(0, 1);
    bench.partners_round();
    assert_eq!(
        (bench.answers(0), bench.partner().connections.len()),
        (1, 0),
        "its first turn was short"
    );
    bench.round();
    assert_eq!(bench.worker().connections.len(), 1);

    // Each time it takes twice as many short turns until it is served as one with short turns again.
    for most in [2 * HEAVY_FOR, 4 * HEAVY_FOR] {
        // The work of two turns, and a request after it.
        let keys: String = (0..2 * TURN_WORK / KEY).map(|n| format!(" key-{n}")).collect();
        bench.clients[0]
            .write_all(format!("get{keys}\r\n").as_bytes())
            .expect("the socket has room");
        bench.send(0, 1);
        bench.round();
        assert_eq!(bench.worker().connections.len(), 0, "a long turn");
        let mut answer = [0; 32];
        let whole = [b"END\r\n", ANSWER].concat();
        let mut len = 0;
        while len < whole.len() {
            bench.partners_round();
            len += bench.clients[0].read(&mut answer[len..]).unwrap_or(0);
        }
        assert_eq!(answer[..len], whole, "all of the answer, and that of the next request");

        let mut short_turns = 0;
        while bench.partner().connections.len() == 1 {
            bench.send(0, 1);
            bench.partners_round();
            assert_eq!(bench.answers(0), 1);
            short_turns += 1;
        }
        assert!(
            (most / 2 + 1..=most).contains(&short_turns),
            "{short_turns} short turns of {most}"
        );
        bench.send(0, 1);
        bench.round();
        assert_eq!((bench.answers(0), bench.worker().connections.len()), (1, 1));
    }
    Ok(())
}

#[test]
fn a_connection_whose_partner_has_ended_or_halted_stays() -> Result<(), StartError> {
    let mut bench = Bench::new(0)?;
    assert!(bench.closes_mail());
    let (client, transfer) = bench.driven.arrival(1)?;
    bench.clients.push(client);
    bench.partner().take(transfer);
    bench.send(0, 1);
    bench.partners_round();
    bench.send(0, 1);
    bench.partners_round();
    assert_eq!((bench.answers(0), bench.partner().connections.len()), (2, 1));
    // It had only halted.
    bench.worker().mail.open();
    bench.send(0, 1);
    bench.partners_round();
    assert_eq!((bench.answers(0), bench.partner().connections.len()), (1, 0));
    Ok(())
}

#[test]
fn a_datagram_is_answered_in_the_round_that_takes_it() -> Result<(), StartError> {
    let config = Config {
        event_loop: EventLoop::Epoll,
        udp: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        ..Config::default()
    };
    let cache = Cache::open(&Place::Memfd, &Options::default()).expect("a region in anonymous memory");
    let mut driven = Driven::start(config, cache)?;
    let client = UdpSocket::bind("127.0.0.1:0")?;
    client.set_nonblocking(true)?;
    client.connect(driven.udp_addresses()[0])?;
    client.send(&[b"\0\x07\0\0\0\x01\0\0", NOOP].concat())?;
    driven.rounds();
    let mut answer = [0; 64];
    let len = client.recv(&mut answer)?;
    assert_eq!(answer[..len], [b"\0\x07\0\0\0\x01\0\0", ANSWER].concat());
    Ok(())
}

#[test]
fn a_worker_ends_only_when_no_mail_waits() -> Result<(), StartError> {
    let mut bench = Bench::new(0)?;
    bench.worker().desk.shared().workers.send(0, Notice::Turn(0));
    assert!(!bench.closes_mail());
    bench.round();
    assert!(bench.closes_mail());
    bench.worker().mail.open();
    let (_client, transfer) = bench.driven.arrival(0)?;
    bench.transfer(0, transfer);
    assert!(!bench.closes_mail());
    bench.round();
    assert!(bench.closes_mail());
    Ok(())
}

#[test]
fn an_end_follows_a_connection_that_is_on_its_way() -> Result<(), StartError> {
    let mut bench = Bench::new(0)?;
    let mut ended = None;
    // More than a round takes: the notice waits behind all of them.
    for number in 0..=LETTERS_PER_ROUND {
        let (client, transfer) = bench.driven.arrival(0)?;
        if let Transfer::New(_, peer) = &transfer {
            ended = Some(Arc::clone(peer)).filter(|_| number == LETTERS_PER_ROUND);
        }
        bench.clients.push(client);
        bench.transfer(0, transfer);
    }
    let ended = ended.expect("the last one");
    bench.worker().desk.shared().workers.end(&ended, CloseReason::Memory);
    bench.round();
    bench.round();
    assert_eq!(bench.driven.connections(), LETTERS_PER_ROUND);
    Ok(())
}

#[test]
fn an_end_follows_a_connection_that_has_moved() -> Result<(), StartError> {
    let mut bench = Bench::new(0)?;
    let (client, transfer) = bench.driven.arrival(1)?;
    let Transfer::New(_, peer) = &transfer else {
        panic!("an arrival")
    };
    let peer = Arc::clone(peer);
    bench.clients.push(client);
    bench.partner().take(transfer);
    bench.send(0, 1);
    bench.partners_round();
    // It is on the way to the worker, and this notice was meant for the partner.
    bench.partner().heed(Notice::End(peer, CloseReason::Memory));
    bench.round();
    bench.round();
    assert_eq!(bench.driven.connections(), 0);
    let mut rest = Vec::new();
    assert!(bench.clients[0].read_to_end(&mut rest).is_ok(), "closed");
    Ok(())
}

#[test]
fn what_a_client_sends_before_it_has_taken_its_answer_is_served_when_memory_is_tight() -> Result<(), StartError> {
    for event_loop in [EventLoop::Epoll, EventLoop::IoUring] {
        if event_loop == EventLoop::IoUring
            && let Err(error) = Ring::open()
        {
            harness::skip("the event loop io_uring", &error.to_string());
            continue;
        }
        let mut bench = Bench::with(event_loop, 0)?;
        // Another connection holds more than half.
        let account = Arc::clone(&bench.worker().desk.shared().account);
        let holder = Arc::new(Peer::new(9, 0, PeerAddress::Unix, 0, true, 0));
        let mut charge = Charge::new(Arc::clone(&account), holder);
        charge.set(account.limit() / 2 + 1);
        let value = vec![b'v'; 6 * UNSENT_TIGHT];
        let stored = bench.worker().desk.executor.session().set(b"big", &value, 0);
        stored.expect("room");

        let mut client = bench.slow_client()?;
        // It moves after its first turn, and then stays.
        for request in [NOOP, b"get big\r\n", NOOP] {
            client.write_all(request)?;
            (0..SETTLING).for_each(|_| bench.driven.rounds());
        }
        let answer = [ANSWER, b"VALUE big 0 98304\r\n", &value[..], b"\r\nEND\r\n", ANSWER].concat();
        let (mut got, mut bytes, until) = (Vec::new(), vec![0; answer.len()], Instant::now() + DEADLINE);
        while got.len() < answer.len() {
            assert!(
                Instant::now() < until,
                "{event_loop:?}: {} bytes of {}",
                got.len(),
                answer.len()
            );
            let count = client.read(&mut bytes).unwrap_or(0);
            got.extend_from_slice(&bytes[..count]);
            bench.driven.rounds();
        }
        assert!(got == answer, "{event_loop:?}");
    }
    Ok(())
}

#[test]
fn what_the_ring_sends_is_charged_with_the_room_of_its_vector() -> Result<(), StartError> {
    if let Err(error) = Ring::open() {
        harness::skip("the event loop io_uring", &error.to_string());
        return Ok(());
    }
    let mut bench = Bench::with(EventLoop::IoUring, 0)?;
    let value = vec![b'v'; 6 * UNSENT_TIGHT];
    let stored = bench.worker().desk.executor.session().set(b"big", &value, 0);
    stored.expect("room");
    let mut client = bench.slow_client()?;
    // The first turn of a connection may move it.
    client.write_all(NOOP)?;
    (0..SETTLING).for_each(|_| bench.driven.rounds());
    // The answer goes into a vector that an earlier answer has left, and that is not yet so large that it is exchanged.
    let room = value.len() + value.len() / 2;
    for worker in &mut bench.driven.workers {
        worker.desk.set_output_capacity(room);
    }
    client.write_all(b"get big\r\n")?;
    (0..SETTLING).for_each(|_| bench.driven.rounds());
    let used = bench.worker().desk.shared().account.used();
    assert!(used >= room, "{used} bytes are charged of {room}");
    Ok(())
}
