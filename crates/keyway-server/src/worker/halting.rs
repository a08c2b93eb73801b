//! What a worker does when another server takes over: it brings its connections to a request boundary, waits for the verdict, and then either
//! continues or has only those connections left that were not handed over.
//!
//! Never: executes a request of a connection that is handed over.

use std::io;
use std::time::{Duration, Instant};

use keyway_uring::Event;

use super::Worker;
use crate::shared::CloseReason;
use crate::takeover::HaltVerdict;
use crate::udp::UdpSockets;

/// How long a ring may take to end what it does for the connections: cancellations are done at once.
const LETTING_GO_MAX: Duration = Duration::from_secs(1);
const LETTING_GO_STEP: Duration = Duration::from_millis(10);

impl Worker {
    /// Halts until there is a verdict, and follows it.
    pub(super) fn halt(&mut self, udp: &mut UdpSockets) {
        self.desk.begin_round();
        // The acceptor has halted, and the partner keeps its connections from now on, so these are all.
        while !self.mail.close(&self.desk.shared().workers) {
            self.take_mail();
        }
        udp.finish_batches(&mut self.desk, self.waiting.registry());
        let mut tokens = Vec::new();
        let handed = self.let_go().map(|()| {
            let connections = self.connections.iter_mut();
            let handed = connections.filter_map(|(token, connection)| Some((token, connection.handed(&self.desk)?)));
            let (given, handed) = handed.unzip();
            tokens = given;
            handed
        });
        let handed = handed.map_err(|error| format!("a ring does not let go of its connections: {error}"));
        match self.halt.wait(handed) {
            HaltVerdict::Resume => {
                self.mail.open();
                for token in self.tokens(|connection| !connection.is_over()) {
                    self.connections[token].resume();
                    self.enqueue(token);
                }
                udp.resume();
            }
            HaltVerdict::End => {
                udp.leave(&self.desk, self.waiting.registry());
                self.leave(tokens);
            }
        }
    }

    /// Ends what the ring does for the connections.
    pub(super) fn let_go(&mut self) -> io::Result<()> {
        let until = Instant::now() + LETTING_GO_MAX;
        for token in self.tokens(|connection| connection.is_held_by_ring()) {
            if let Some(ring) = &mut self.desk.ring {
                self.connections[token].let_go(ring)?;
            }
        }
        while self.connections.iter().any(|(_, connection)| connection.is_held_by_ring()) {
            if Instant::now() > until {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // Events of the poll stay there.
            if let Some(ring) = &mut self.desk.ring {
                self.waiting.wait_for_ring(ring, Some(LETTING_GO_STEP))?;
            }
            self.handle_last_completions();
        }
        Ok(())
    }

    /// Handles events of the ring without executing requests.
    fn handle_last_completions(&mut self) {
        let mut completions = self.waiting.completions();
        let mut others = Vec::new();
        for event in completions.drain(..) {
            let token = match event {
                Event::Received { token, .. }
                | Event::Ended { token, .. }
                | Event::Sent { token, .. }
                | Event::Ready { token } => token,
            };
            let is_held = self
                .connections
                .get(token)
                .is_some_and(|connection| connection.is_held_by_ring());
            match event {
                Event::Received { piece, last, .. } if is_held => {
                    self.connections[token].keep(&mut self.desk, &piece, 0);
                    if last {
                        self.connections[token].ended_receiving();
                    }
                    if let Some(ring) = &mut self.desk.ring {
                        ring.give_back(piece);
                    }
                }
                Event::Sent { bytes, result, .. } if is_held => {
                    if let Err(error) = self.connections[token].take_back(&self.desk, &bytes, result) {
                        log::debug!("{}: {error}", self.connections[token].peer.address);
                        self.close(token, CloseReason::Error);
                    }
                }
                // Those execute nothing.
                other => others.push(other),
            }
        }
        self.waiting.keep(others);
        self.handle_completions();
    }

    /// Another server has the connections with these tokens. The others are drained.
    fn leave(&mut self, handed: Vec<usize>) {
        for token in handed {
            let connection = self.connections.remove(token);
            if let Err(error) = connection.part(&self.desk, self.waiting.registry()) {
                log::debug!("a connection that was handed over is still watched: {error}");
            }
        }
        self.upkeep.stop(&self.desk);
        for token in self.tokens(|connection| !connection.is_over()) {
            self.connections[token].drain();
            self.enqueue(token);
        }
    }
}
