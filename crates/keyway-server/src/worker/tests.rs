//! How many requests of other connections a worker serves between two turns of one connection.
//!
//! The worker runs in the test's thread, a round at a time, and its clients are the other ends of pairs of sockets. What a round serves then
//! depends on what was written before it, and not on time: no turn here has so much work that it reads the clock (`effort`).

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use keyway_cache::{Cache, Options, Place};
use mio::Events;

use super::{MESSAGES_PER_ROUND, Worker};
use crate::config::{Config, EventLoop};
use crate::connection::Stream;
use crate::effort::{REQUEST, TURN_WORK};
use crate::shared::{Message, Peer, PeerAddress};
use crate::udp::UdpSockets;
use crate::{Server, StartError};

/// Requests that a turn executes at most, as configured here.
const PER_TURN: usize = 20;
const NOOP: &[u8] = b"mn\r\n";
const ANSWER: &[u8] = b"MN\r\n";

/// A worker without a thread, and its clients.
struct Bench {
    worker: Worker,
    clients: Vec<UnixStream>,
    events: Events,
    messages: Vec<Message>,
    udp: UdpSockets,
}

/// A new client, and the message that brings it to the worker.
fn arrival(id: u64) -> Result<(UnixStream, Message), StartError> {
    let (client, served) = UnixStream::pair()?;
    client.set_nonblocking(true)?;
    served.set_nonblocking(true)?;
    let stream = Stream::Unix(mio::net::UnixStream::from_std(served));
    let peer = Peer::new(id, 0, PeerAddress::Unix, 0, true, 0);
    Ok((client, Message::Adopt(stream, Arc::new(peer))))
}

impl Bench {
    /// With so many clients, each of which has had a turn before.
    fn new(clients: usize) -> Result<Self, StartError> {
        let config = Config {
            threads: 1,
            event_loop: EventLoop::Epoll,
            may_listen_nowhere: true,
            requests_per_turn: PER_TURN,
            ..Config::default()
        };
        let cache = Cache::open(&Place::Memfd, &Options::default()).expect("a region in anonymous memory");
        let mut server = Server::start(config, cache)?;
        let mut worker = server.workers.pop().expect("one worker was asked for");
        worker.settle();
        let mut bench = Self {
            worker,
            clients: Vec::new(),
            events: Events::with_capacity(512),
            messages: Vec::new(),
            udp: UdpSockets::default(),
        };
        for id in 0..clients {
            let (client, message) = arrival(id as u64)?;
            bench.worker.take(message);
            bench.clients.push(client);
        }
        // A new connection counts as one with long turns, until it has had one.
        for client in 0..clients {
            bench.send(client, 1);
        }
        while bench.served() < clients as u64 {
            bench.round();
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

    /// One round of the worker; returns how many requests it has served.
    fn round(&mut self) -> u64 {
        let before = self.served();
        self.worker.round(&mut self.events, &mut self.messages, &mut self.udp);
        self.served() - before
    }

    /// Requests that the worker has served.
    fn served(&self) -> u64 {
        self.worker.desk.executor.counters().cmd_meta.get()
    }
}

#[test]
fn many_clients_with_small_requests_delay_another_one_by_two_long_turns() -> Result<(), StartError> {
    const MANY: usize = 64;
    const REQUESTS: usize = 40 * PER_TURN;
    // The work of two long turns, and what the last turn of each may add to it.
    let bound = 2 * (TURN_WORK / REQUEST + PER_TURN as u64) + 1;
    let mut bench = Bench::new(MANY + 1)?;
    for client in 0..MANY {
        bench.send(client, REQUESTS);
    }
    // All of them have something new, so all have a turn in the first round.
    bench.send(MANY, 1);
    let first = bench.round();
    assert!(
        first > 2 * bound,
        "enough clients to exceed the bound: {first} requests in the first round"
    );
    let mut left = (MANY * REQUESTS + 1) as u64 - first;
    while left > 0 {
        assert_eq!(bench.answers(MANY), 1, "the other client has a turn in each round");
        bench.send(MANY, 1);
        let served = bench.round();
        assert!(served <= bound, "{served} requests in a round, at most {bound}");
        assert!(served > 1, "a round in which only the other client is served");
        left -= served - 1;
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
    for id in 0..NEW {
        let (client, message) = arrival(id as u64 + 1)?;
        bench.worker.desk.executor.shared.mailboxes[0].send(message);
        others.push(client);
    }
    let mut adopted = 1;
    while adopted < 1 + NEW {
        bench.send(0, 1);
        bench.round();
        assert_eq!(bench.answers(0), 1, "the client has a turn in each round");
        let now = bench.worker.connections.len();
        assert!(
            (adopted + 1..=adopted + MESSAGES_PER_ROUND).contains(&now),
            "{adopted} connections, then {now}"
        );
        adopted = now;
    }
    Ok(())
}

#[test]
fn few_clients_with_small_requests_have_a_turn_in_each_round() -> Result<(), StartError> {
    const FEW: usize = 8;
    const ROUNDS: usize = 10;
    let mut bench = Bench::new(FEW)?;
    for client in 0..FEW {
        bench.send(client, ROUNDS * PER_TURN);
    }
    for _ in 0..ROUNDS {
        bench.round();
        for client in 0..FEW {
            assert_eq!(bench.answers(client), PER_TURN);
        }
    }
    Ok(())
}
