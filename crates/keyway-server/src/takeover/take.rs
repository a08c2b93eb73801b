//! The new server's side of a take-over.
//!
//! Never: serves a client before the running server has given up the role, or has died.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use keyway_cache::server::Presence;
use nix::sys::socket::{getsockopt, sockopt::PeerCredentials};
use nix::unistd::geteuid;

use super::{Channel, Message, PATIENCE, Received, VERSION};
use crate::config::KEYWAY_VERSION;
use crate::connection::Inherited;
use crate::given::{Given, Purpose, Role};
use crate::listener::take_over_name;

/// How long the other server may take to end after it has closed the connection, until it counts as alive.
const DEATH_MAX: Duration = Duration::from_secs(2);

/// How often a connection that is closed without a word is tried again.
const ATTEMPTS: usize = 3;

/// A running server that is about to be taken over.
pub struct TakeOver {
    channel: Channel,
    running: RunningServer,
    given: Given,
    /// sockets that have a place of their own in a server
    special: Vec<(Purpose, OwnedFd)>,
}

struct RunningServer {
    /// `None`: it has not said anything yet
    presence: Option<Presence>,
    process: u32,
}

/// The server before this one, as far as the kernel door is concerned.
#[derive(Debug, Default)]
#[cfg_attr(not(feature = "kernel"), allow(dead_code, reason = "only the kernel door reads it"))]
pub(crate) struct Predecessor {
    pub(crate) presence: Option<Presence>,
    /// its lock on a pinned program
    pub(crate) pinned: Option<File>,
}

/// Why a running server was not taken over. It goes on.
#[derive(Debug)]
pub struct TakeOverError(String);

impl fmt::Display for TakeOverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "--take-over: {}", self.0)
    }
}

impl std::error::Error for TakeOverError {}

/// What becomes of a request for the role.
enum Answer {
    Welcome(Box<TakeOver>),
    /// the connection was closed without a word: the server has just ended, or it will say why to the next request
    Closed,
    Died,
}

/// What the running server says next.
enum Said {
    This(Received),
    /// it has closed the connection before it said anything
    Nothing,
    /// it has died
    Died,
}

impl TakeOver {
    /// Asks the server of the region in this file for the role, and gets its sockets. It still serves. `None`: there is no such server, or
    /// it has just died.
    ///
    /// # Errors
    ///
    /// The server refuses, or is of another user; the text says what to do.
    pub fn begin(region: &Path) -> Result<Option<Self>, TakeOverError> {
        for _ in 0..ATTEMPTS {
            match Self::connect(region)?.map(Self::ask).transpose()? {
                Some(Answer::Closed) => {}
                Some(Answer::Welcome(this)) => return Ok(Some(*this)),
                None | Some(Answer::Died) => return Ok(None),
            }
        }
        Err(TakeOverError(
            "the running server closes the connection and says nothing; its log may say why".to_owned(),
        ))
    }

    /// A connection to the server of this region. `None`: there is none.
    fn connect(region: &Path) -> Result<Option<Channel>, TakeOverError> {
        use std::os::unix::fs::MetadataExt;
        let failed = |error: io::Error| TakeOverError(format!("region {}: {error}", region.display()));
        let identity = match std::fs::metadata(region) {
            Ok(file) => (file.dev(), file.ino()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let stream = match UnixStream::connect_addr(&take_over_name(identity).map_err(failed)?) {
            Ok(stream) => stream,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Ok(None),
            Err(error) => return Err(TakeOverError(format!("cannot reach the running server: {error}"))),
        };
        let user = getsockopt(&stream, PeerCredentials)
            .map_err(|error| failed(error.into()))?
            .uid();
        if user != geteuid().as_raw() {
            return Err(TakeOverError(format!(
                "the process that has the name of the region's server is of user {user}, and this one of user {}; start the new server as the \
                 user of the running one",
                geteuid()
            )));
        }
        Channel::new(stream).map(Some).map_err(failed)
    }

    fn ask(channel: Channel) -> Result<Answer, TakeOverError> {
        let hello = Message::Hello {
            version: VERSION,
            program: KEYWAY_VERSION.to_owned(),
            process: std::process::id(),
        };
        // If this fails, so does the next step, which knows why.
        let _ = channel.say(&hello);
        let mut this = Self {
            channel,
            running: RunningServer {
                presence: None,
                process: 0,
            },
            given: Given::shared(),
            special: Vec::new(),
        };
        let mut sockets = 0;
        loop {
            let said = match this.running.receive(&this.channel)? {
                Said::This(said) => said,
                Said::Nothing => return Ok(Answer::Closed),
                Said::Died => return Ok(Answer::Died),
            };
            match (said.message, said.descriptor) {
                (Message::Welcome { process, program }, Some(presence)) => {
                    this.running = RunningServer {
                        presence: Some(presence.into()),
                        process,
                    };
                    log::info!("taking over process {process} (keyway {program})");
                }
                (Message::Socket(socket), Some(fd)) => {
                    sockets += 1;
                    this.add(socket.purpose, &socket.label, socket.removes_file, fd)?;
                }
                (Message::AllSockets { count }, None) if count == sockets && this.running.presence.is_some() => {
                    return Ok(Answer::Welcome(Box::new(this)));
                }
                (Message::AllSockets { .. } | Message::Welcome { .. } | Message::Socket(_), _) => {
                    return Err(TakeOverError(
                        "the sockets of the running server did not all arrive: this process has no free descriptors; raise ulimit -n".to_owned(),
                    ));
                }
                _ => return Err(this.running.out_of_turn()),
            }
        }
    }

    fn add(&mut self, purpose: Purpose, label: &str, removes_file: bool, fd: OwnedFd) -> Result<(), TakeOverError> {
        let role = match purpose {
            Purpose::Clients => Role::Clients,
            Purpose::Tls => Role::Tls,
            Purpose::RegionSocket => Role::RegionSocket,
            Purpose::Http => Role::Http,
            Purpose::Lines | Purpose::TakeOver | Purpose::PinnedProgram => {
                self.special.push((purpose, fd));
                return Ok(());
            }
        };
        let added = self.given.add(fd, label, role, removes_file);
        added.map_err(|error| TakeOverError(format!("of process {}: {error}", self.running.process)))
    }

    /// The running server's sockets; none the second time.
    pub(crate) fn given(&mut self) -> Given {
        std::mem::take(&mut self.given)
    }

    /// What the kernel door needs to know of the running server.
    pub(crate) fn predecessor(&mut self) -> io::Result<Predecessor> {
        let place = self
            .special
            .iter()
            .position(|(purpose, _)| *purpose == Purpose::PinnedProgram);
        let presence = self
            .running
            .presence
            .as_ref()
            .map(|presence| presence.as_fd().try_clone_to_owned());
        Ok(Predecessor {
            presence: presence.transpose()?.map(Presence::from),
            pinned: place.map(|place| self.special.swap_remove(place).1.into()),
        })
    }

    /// Those that have a place of their own; none the second time.
    pub(crate) fn special(&mut self) -> Vec<(Purpose, OwnedFd)> {
        std::mem::take(&mut self.special)
    }

    /// The running server's number.
    pub fn process(&self) -> u32 {
        self.running.process
    }

    /// Everything that can fail has been done: gets the connections, and then the role.
    ///
    /// # Errors
    ///
    /// The running server goes on.
    pub(crate) fn finish(self) -> Result<Taken, TakeOverError> {
        let Self { channel, running, .. } = self;
        let mut connections = Vec::new();
        let _ = channel.say(&Message::Prepared);
        let is_complete = loop {
            let Said::This(said) = running.receive(&channel)? else {
                break false;
            };
            match (said.message, said.descriptor) {
                (Message::Connection(carried), Some(fd)) => connections.push(Inherited::new(fd, carried, said.bytes)),
                (Message::AllConnections { count }, None) if count == connections.len() => break true,
                (Message::Connection(_) | Message::AllConnections { .. }, _) => {
                    return Err(TakeOverError(format!(
                        "the connections of process {} did not all arrive: this process has no free descriptors; raise ulimit -n, or -c",
                        running.process
                    )));
                }
                _ => return Err(running.out_of_turn()),
            }
        };
        if is_complete {
            let _ = channel.say(&Message::Ready);
            match running.receive(&channel)? {
                Said::Died
                | Said::This(Received {
                    message: Message::Commit,
                    ..
                }) => {}
                Said::This(_) | Said::Nothing => return Err(running.out_of_turn()),
            }
        }
        // From here on this process has the role: the other one waits for this message or for this process's end.
        let _ = channel.say(&Message::Taken);
        Ok(Taken {
            connections,
            process: running.process,
        })
    }
}

/// What a server has got with the role.
pub(crate) struct Taken {
    pub(crate) connections: Vec<Inherited>,
    pub(crate) process: u32,
}

impl RunningServer {
    /// The next message.
    fn receive(&self, channel: &Channel) -> Result<Said, TakeOverError> {
        match channel.receive_within(2 * PATIENCE, || true) {
            Ok(Received {
                message: Message::Refused { why },
                ..
            }) => Err(TakeOverError(format!("refused: {why}"))),
            Ok(Received {
                message: Message::Resumed { why },
                ..
            }) => Err(TakeOverError(format!("process {} goes on serving: {why}", self.process))),
            Ok(said) => Ok(Said::This(said)),
            Err(error) if is_closed(&error) && self.presence.is_none() => Ok(Said::Nothing),
            Err(error) if is_closed(&error) && self.has_died() => {
                log::warn!("process {}, which was to be taken over, has died", self.process);
                Ok(Said::Died)
            }
            Err(error) => Err(TakeOverError(format!(
                "process {} broke off, and goes on serving: {error}; its log says more",
                self.process
            ))),
        }
    }

    /// Whether the running server is no more. That it has closed the connection proves nothing: it does so too when it resumes.
    fn has_died(&self) -> bool {
        self.presence.as_ref().is_some_and(|presence| presence.ends_within(DEATH_MAX))
    }

    fn out_of_turn(&self) -> TakeOverError {
        TakeOverError(format!("process {} answers out of turn", self.process))
    }
}

fn is_closed(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe
    )
}
