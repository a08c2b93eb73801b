//! The running server's side of a take-over: a thread of its own, which other servers' requests for the role start.
//!
//! Never: touches a connection; each worker prepares its own.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use keyway_cache::server::Presence;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;

use super::halt::{Halt, HaltVerdict, Stage};
use super::{Channel, Message, PATIENCE, PREPARATION_MAX, Received, VERSION};
use crate::config::KEYWAY_VERSION;
use crate::given::Offered;
use crate::log_limiter::LogLimiter;
use crate::shared::Shared;

static REFUSED: LogLimiter = LogLimiter::new();

/// What became of a request for the role.
enum End {
    /// this server goes on, for this reason
    Stays(String),
    /// another process has the role
    Gone {
        process: u32,
        connections: usize,
        paused: Duration,
    },
}

/// The process that asks for the role, or why it cannot have it.
pub(crate) fn admit(stream: &UnixStream) -> Result<u32, String> {
    let peer = getsockopt(stream, PeerCredentials)
        .map_err(|error| format!("the running server cannot read the credentials of this process: {error}"))?;
    let own = geteuid().as_raw();
    match peer.uid() == own {
        true => Ok(u32::try_from(peer.pid()).unwrap_or_default()),
        false => Err(format!(
            "only user {own}, as whom the server runs, may take it over, and process {} is of user {}; start the new server as that user",
            peer.pid(),
            peer.uid()
        )),
    }
}

/// Answers a server that asks for the role, and that is this process. Returns when it has the role, or this server goes on.
pub(crate) fn give(stream: UnixStream, process: u32, shared: &Shared, halt: &Halt, offered: &[Offered]) {
    let channel = Channel::new(stream).map_err(|error| error.to_string());
    match channel.map(|channel| converse(&channel, process, shared, halt, offered)) {
        Ok(End::Gone {
            process,
            connections,
            paused,
        }) => log::info!(
            "process {process} has taken over: {connections} connections were handed over, and clients waited for {} µs; this process ends \
             when it has answered its other connections",
            paused.as_micros()
        ),
        Ok(End::Stays(why)) | Err(why) => complain(&why),
    }
}

fn complain(why: &str) {
    if let Some(left_out) = REFUSED.may_speak() {
        log::warn!("this server was not taken over and goes on: {why}{left_out}");
    }
}

/// Tells a server that wants to take over why it cannot.
pub(crate) fn send_refusal(stream: UnixStream, why: &str) {
    complain(why);
    let why = why.to_owned();
    // The peer may be gone; then it needs no answer.
    let _ = Channel::new(stream).and_then(|channel| channel.say(&Message::Refused { why }));
}

fn converse(channel: &Channel, process: u32, shared: &Shared, halt: &Halt, offered: &[Offered]) -> End {
    let refuse = |why: String| {
        // The peer may be gone; then it needs no answer.
        let _ = channel.say(&Message::Refused { why: why.clone() });
        End::Stays(why)
    };
    let broken = |error: io::Error| End::Stays(format!("the new server broke off: {error}"));
    if let Err(why) = greet(channel) {
        return refuse(why);
    }
    if shared.life.is_stopping() {
        return refuse("the running server is ending; start the new one when it has ended".to_owned());
    }
    log::info!("process {process} prepares to take over");
    if let Err(error) = offer(channel, offered) {
        return broken(error);
    }
    match channel.receive_within(PREPARATION_MAX, || !shared.life.is_stopping()) {
        Ok(Received {
            message: Message::Prepared,
            ..
        }) => {}
        Ok(_) => return refuse("the new server answers out of turn".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            return refuse("the running server is ending, or the new one took too long to prepare; start it again".to_owned());
        }
        Err(error) => return broken(error),
    }
    let begun = Instant::now();
    match hand_over(channel, shared, halt) {
        Ok(connections) => {
            let paused = begun.elapsed();
            halt.let_go(HaltVerdict::End);
            shared.give_up_role(process);
            End::Gone {
                process,
                connections,
                paused,
            }
        }
        Err(why) => {
            let resumed = Message::Resumed { why: why.clone() };
            halt.let_go(HaltVerdict::Resume);
            let _ = channel.say(&resumed);
            End::Stays(why)
        }
    }
}

/// The version of the new server, if it is this one's.
fn greet(channel: &Channel) -> Result<(), String> {
    let said = channel
        .receive()
        .map_err(|error| format!("the new server says nothing: {error}"))?;
    match said.message {
        Message::Hello { version: VERSION, .. } => Ok(()),
        Message::Hello { version, program, .. } => Err(format!(
            "the running server (keyway {KEYWAY_VERSION}) speaks version {VERSION} of the hand-over, and the new one (keyway {program}) \
             version {version}: stop the running server, then start the new one without --take-over; the items stay in the region"
        )),
        _ => Err("the new server answers out of turn".to_owned()),
    }
}

fn offer(channel: &Channel, offered: &[Offered]) -> io::Result<()> {
    let own = Presence::own()?;
    let welcome = Message::Welcome {
        program: KEYWAY_VERSION.to_owned(),
        process: std::process::id(),
    };
    channel.send(&welcome, &[], Some(own.as_fd().as_raw_fd()))?;
    for Offered { socket, fd } in offered {
        channel.send(&Message::Socket(socket.clone()), &[], Some(fd.as_raw_fd()))?;
    }
    channel.say(&Message::AllSockets { count: offered.len() })
}

/// Halts this server's threads and sends their connections. Returns how many, when the new server has taken them. Otherwise the threads have
/// to resume.
fn hand_over(channel: &Channel, shared: &Shared, halt: &Halt) -> Result<usize, String> {
    let until = Instant::now() + PATIENCE;
    halt.halt(Stage::Acceptor, || shared.life.wake_acceptor(), 1, until)?;
    let everyone = 1 + shared.workers.running().0 + usize::from(shared.kernel.is_some());
    halt.halt(Stage::Everyone, || shared.wake_workers(), everyone, until)?;
    let handed = halt.handed();
    let broken = |error: io::Error| format!("the new server broke off: {error}");
    let count = handed.len();
    for connection in handed {
        let (fd, carried, bytes) = connection.parts();
        channel
            .send(&Message::Connection(carried), &[&bytes], Some(fd))
            .map_err(broken)?;
    }
    channel.say(&Message::AllConnections { count }).map_err(broken)?;
    match channel.receive_within(PATIENCE, || true).map_err(broken)?.message {
        Message::Ready => {}
        _ => return Err("the new server answers out of turn".to_owned()),
    }
    channel.say(&Message::Commit).map_err(broken)?;
    match channel.is_taken() {
        true => Ok(count),
        false => Err("the new server died before it served".to_owned()),
    }
}
