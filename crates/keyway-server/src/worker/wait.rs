//! Waiting for events, and what each event of the poll and of the ring means to a connection.
//!
//! Never: decides who gets a turn first (`turns`), or executes a request.

use std::io;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use keyway_uring::Event;
use mio::Events;

use super::Worker;
use crate::connection::{CloseReason, Connection, Desk};

/// The ring's token for the poll.
const POLL: usize = 1 << 40;
/// A vector larger than this is not kept for the next send: replies of 100 KB are, so that each does not take fresh pages.
const SPARE_SIZE_MAX: usize = 256 * 1024;
/// Total size of the vectors that are kept for the next sends, bytes at most.
const SPARE_SUM_MAX: usize = 4 << 20;
/// Most vectors kept for the next sends.
const SPARE_COUNT_MAX: usize = 64;

impl Worker {
    /// Waits for events, at most for `timeout`. If busy polling is configured, it spins before it sleeps.
    pub(super) fn wait(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        let spin = self.spin;
        if spin.is_zero() || timeout == Some(Duration::ZERO) {
            return self.wait_once(events, timeout);
        }
        let until = Instant::now() + timeout.map_or(spin, |timeout| timeout.min(spin));
        loop {
            self.wait_once(events, Some(Duration::ZERO))?;
            if !events.is_empty() || !self.told.is_empty() {
                return Ok(());
            }
            let now = Instant::now();
            if now >= until {
                return self.wait_once(events, timeout.map(|timeout| timeout.saturating_sub(spin)));
            }
            std::hint::spin_loop();
        }
    }

    fn wait_once(&mut self, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
        let Some(ring) = &mut self.desk.ring else {
            return self.poll.poll(events, timeout);
        };
        events.clear();
        if !self.is_poll_watched {
            // Each new watch checks readiness again, so events that are not taken at once are not lost.
            ring.watch(self.poll.as_raw_fd(), POLL)?;
            self.is_poll_watched = true;
        }
        if self.wait_for_ring(timeout)? {
            self.poll.poll(events, Some(Duration::ZERO))?;
        }
        Ok(())
    }

    /// Takes the events of the ring. Returns whether the poll has some; its watch has ended then.
    pub(super) fn wait_for_ring(&mut self, timeout: Option<Duration>) -> io::Result<bool> {
        let Some(ring) = &mut self.desk.ring else { return Ok(false) };
        ring.wait(timeout)?;
        ring.take(&mut self.told);
        let has_polled = self.told.iter().any(|event| matches!(event, Event::Ready { token: POLL }));
        self.is_poll_watched &= !has_polled;
        Ok(has_polled)
    }

    /// Handles the events of the ring.
    pub(super) fn receive(&mut self) {
        let mut told = std::mem::take(&mut self.told);
        self.desk.is_alone = told.len() == 1 && self.queue.is_empty();
        for event in told.drain(..) {
            match event {
                Event::Received { token, piece, last } => {
                    let connection = self.connections.get_mut(token);
                    let has_turn = connection.is_some_and(|connection| {
                        if connection.is_over {
                            connection.ended_receiving_if(last);
                            return false;
                        }
                        connection.received(&mut self.desk, &piece, last)
                    });
                    if let Some(ring) = &mut self.desk.ring {
                        ring.give_back(piece);
                    }
                    if has_turn {
                        self.serve(token);
                    } else {
                        self.enqueue(token);
                        self.hold_back(token);
                    }
                    if last {
                        self.part_with(token);
                    }
                }
                Event::Ended { token, result } => {
                    self.act(token, |connection, _| connection.receive_ended(result).map(|()| true))
                }
                Event::Sent {
                    token,
                    mut bytes,
                    result,
                } => {
                    bytes.clear();
                    self.keep_spare(bytes);
                    self.act(token, |connection, desk| connection.sent(desk, result));
                }
                Event::Ready { token: POLL } => {}
                Event::Ready { token } => self.act(token, |connection, _| {
                    connection.ended_receiving();
                    Ok(true)
                }),
            }
        }
        self.desk.is_alone = false;
        // Kept, so that its capacity is used again.
        self.told = told;
    }

    /// Keeps an empty vector for a later send, within bounds. Of two vectors the larger one is used first.
    fn keep_spare(&mut self, mut bytes: Vec<u8>) {
        let Desk { spare, output, .. } = &mut self.desk;
        if (output.capacity()..=SPARE_SIZE_MAX).contains(&bytes.capacity()) {
            std::mem::swap(output, &mut bytes);
        }
        let is_small = bytes.capacity() <= SPARE_SIZE_MAX && spare.len() < SPARE_COUNT_MAX;
        // Sums at most 64 small numbers, and only if vectors are large.
        let fits = |spare: &[Vec<u8>]| spare.iter().map(Vec::capacity).sum::<usize>() + bytes.capacity() <= SPARE_SUM_MAX;
        if is_small && (bytes.capacity() <= SPARE_SUM_MAX / SPARE_COUNT_MAX || fits(spare)) {
            spare.push(bytes);
        }
    }

    /// Lets a connection handle an event. The connection gets a turn if it wants one, and ends if `act` fails.
    fn act(&mut self, token: usize, act: impl FnOnce(&mut Connection, &mut Desk) -> io::Result<bool>) {
        let Some(connection) = self.connections.get_mut(token) else {
            return;
        };
        let acted = act(connection, &mut self.desk);
        if connection.is_over || connection.is_leaving && acted.is_ok() {
            return self.part_with(token);
        }
        match acted {
            Ok(true) => self.enqueue(token),
            Ok(false) => {}
            Err(error) => {
                log::debug!("{}: {error}", connection.peer.address);
                self.close(token, CloseReason::Error);
            }
        }
    }

    /// Stops the ring from receiving for a connection that has enough data waiting for its turn.
    fn hold_back(&mut self, token: usize) {
        if let Some(connection) = self.connections.get_mut(token)
            && !connection.is_over
            && let Err(error) = connection.update_interest(self.poll.registry(), &mut self.desk)
        {
            log::warn!("{}: cannot watch the connection: {error}", connection.peer.address);
            self.close(token, CloseReason::Error);
        }
    }
}
