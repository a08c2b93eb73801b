//! A server whose workers run in their caller's thread, a round at a time. Its clients are the other ends of pairs of sockets. What is served
//! then depends on what was written before, and on no other thread. Tests have it, and builds for fuzz targets (`cfg(fuzzing)`).

use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use keyway_cache::Cache;
use mio::Events;

use super::{Transfer, Worker};
use crate::Server;
use crate::config::Config;
use crate::connection::Stream;
use crate::shared::{Notice, Peer, PeerAddress};
use crate::start::StartError;
use crate::udp::UdpSockets;

/// The pair of workers of such a server: connections are taken by the first one, and long turns are the second one's.
pub struct Driven {
    pub(super) workers: [Worker; 2],
    pub(super) udp: [UdpSockets; 2],
    pub(super) events: Events,
    addresses: Vec<SocketAddr>,
    clients: u64,
}

impl Driven {
    /// Starts a server that listens for datagrams at most: it has no thread that takes connections.
    ///
    /// # Errors
    ///
    /// [`StartError`]; by then the region is open.
    pub fn start(config: Config, cache: Cache) -> Result<Self, StartError> {
        let config = Config {
            threads: 1,
            may_listen_nowhere: true,
            ..config
        };
        let mut server = Server::start(config, cache)?;
        let (Some(mut long), Some(mut short)) = (server.workers.pop(), server.workers.pop()) else {
            return Err(StartError::NoThreads);
        };
        short.settle();
        long.settle();
        Ok(Self {
            udp: [short.open_udp(), long.open_udp()],
            workers: [short, long],
            events: Events::with_capacity(512),
            addresses: server.udp_addresses().to_vec(),
            clients: 0,
        })
    }

    /// Where it listens for datagrams.
    pub fn udp_addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// How many connections there are.
    pub fn connections(&self) -> usize {
        self.workers.iter().map(|worker| worker.connections.len()).sum()
    }

    /// A new connection. Its client's end does not block.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn connect(&mut self) -> io::Result<UnixStream> {
        let (client, transfer) = self.arrival(0)?;
        self.workers[0].take(transfer);
        Ok(client)
    }

    /// A new client, and its connection on its way to this worker.
    pub(super) fn arrival(&mut self, worker: usize) -> io::Result<(UnixStream, Transfer)> {
        let (client, served) = UnixStream::pair()?;
        client.set_nonblocking(true)?;
        served.set_nonblocking(true)?;
        let stream = Stream::Unix(mio::net::UnixStream::from_std(served));
        let peer = Peer::new(self.clients, 0, PeerAddress::Unix, worker, true, 0);
        self.clients += 1;
        Ok((client, Transfer::New(stream, Arc::new(peer))))
    }

    /// A round of each worker, which does not wait.
    pub fn rounds(&mut self) {
        for worker in 0..self.workers.len() {
            self.workers[worker].desk.shared().workers.send(worker, Notice::Answer(0));
            self.round(worker);
        }
    }

    /// A round of this worker, which waits if there is nothing to do.
    pub(super) fn round(&mut self, worker: usize) {
        self.workers[worker].round(&mut self.events, &mut self.udp[worker]);
    }
}
