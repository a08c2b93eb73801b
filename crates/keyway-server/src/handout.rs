//! Handing out the region: a process that connects to the region's socket gets descriptors of its file, or an error that says why not.
//!
//! A process of a permitted writer gets the region for writing. A process of a permitted reader gets it for reading, and then asks for a
//! line, a connection for its writes, as a process without a slot does.
//!
//! The exchange is [`keyway_cache::server::handout`]'s. The server reads nothing from the client, so the client cannot send wrong or incomplete data
//! or delay the server. The server sends one message, for which a new socket always has room, and closes the connection.

use keyway_cache::server::ServerCache as _;
use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;

use keyway_cache::Cache;
use keyway_cache::server::handout::{GRANTED, GRANTED_AND_COUNTS, GRANTED_LINE, GRANTED_TO_READ, NAME};
use mio::net::UnixStream;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{ControlMessage, MsgFlags, UnixCredentials, getsockopt, sendmsg};
use nix::unistd::geteuid;

use crate::config::{Allowed, RegionSocket};
use crate::log_limiter::LogLimiter;

static REFUSED: LogLimiter = LogLimiter::new();
static LINE_REFUSED: LogLimiter = LogLimiter::new();

/// What a process may do with the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    Write,
    Read,
    Nothing,
}

/// Answers a process that has connected.
pub(crate) fn answer(stream: &UnixStream, cache: &Cache, socket: &RegionSocket) {
    match hand_out(stream, cache, socket) {
        Ok((peer, what)) => log::info!(
            "the region was handed out {what} to process {} of user {}, group {}",
            peer.pid(),
            peer.uid(),
            peer.gid()
        ),
        Err(why) => {
            if let Some(left_out) = REFUSED.may_speak() {
                log::warn!("the region was not handed out: {why}{left_out}");
            }
            // If the peer has closed the connection, it needs no answer.
            let _ = send(stream, &format!("{NAME} {why}\n"), &[]);
        }
    }
}

fn hand_out(stream: &UnixStream, cache: &Cache, socket: &RegionSocket) -> Result<(UnixCredentials, &'static str), String> {
    let peer = getsockopt(stream, PeerCredentials)
        .map_err(|error| format!("the server cannot read the credentials of this process: {error}"))?;
    let not_opened = |error: io::Error| format!("the server cannot open its region's file again: {error}");
    let not_taken = |error: io::Error| format!("process {} does not accept it: {error}", peer.pid());
    match socket.right(peer.uid(), peer.gid(), geteuid().as_raw()) {
        Right::Write => {
            let files = cache.descriptors().map_err(not_opened)?;
            let mut descriptors: Vec<i32> = files.iter().map(AsRawFd::as_raw_fd).collect();
            let doorway = cache.doorway();
            let line = match &doorway {
                Some((word, map)) => {
                    descriptors.push(map.as_raw_fd());
                    format!("{GRANTED_AND_COUNTS}{word}\n")
                }
                None => GRANTED.to_owned(),
            };
            send(stream, &line, &descriptors).map_err(not_taken)?;
            Ok((peer, "for writing"))
        }
        Right::Read => {
            let file = cache.descriptor_to_read().map_err(not_opened)?;
            send(stream, GRANTED_TO_READ, &[file.as_raw_fd()]).map_err(not_taken)?;
            Ok((peer, "for reading"))
        }
        Right::Nothing => Err(format!(
            "the server does not give its region to user {}, group {}; name one of them in its --region-writers or --region-readers, or use its socket for clients",
            peer.uid(),
            peer.gid()
        )),
    }
}

/// Answers a process that has the region, but may only read it or found no slot in it. Returns whether this connection becomes its line to
/// the server. The process need not log in: a reader was named for that, and with a free slot others could do the same themselves.
pub(crate) fn give_line(stream: &UnixStream, cache: &Cache, socket: Option<&RegionSocket>, has_room: bool) -> bool {
    let given = getsockopt(stream, PeerCredentials)
        .map_err(|error| format!("the server cannot read the credentials of this process: {error}"))
        .and_then(|peer| {
            let (user, group) = (peer.uid(), peer.gid());
            let own = geteuid().as_raw();
            let right = socket.map_or(Right::Nothing, |socket| socket.right(user, group, own));
            if user != own && right == Right::Nothing && !cache.may_write(user, group) {
                return Err(format!(
                    "the server serves only processes here that may write its region; user {user}, group {group} may not"
                ));
            }
            if !has_room {
                return Err("the server has reached its limit of connections (--connections)".to_owned());
            }
            let (device, inode) = cache.identity().map_err(|error| error.to_string())?;
            let line = format!("{GRANTED_LINE}{device}:{inode}\n");
            send(stream, &line, &[]).map_err(|error| format!("process {} does not accept a connection: {error}", peer.pid()))?;
            Ok((peer, right))
        });
    match given {
        Ok((_, Right::Read)) => true,
        Ok((peer, _)) => {
            log::info!(
                "process {} of user {} found no slot in the region: this server serves it now; use fewer processes and threads, or make a \
                 new region with more slots (--sessions)",
                peer.pid(),
                peer.uid()
            );
            true
        }
        Err(why) => {
            if let Some(left_out) = LINE_REFUSED.may_speak() {
                log::warn!("a program without a slot was not served: {why}{left_out}");
            }
            // If the peer has closed the connection, it needs no answer.
            let _ = send(stream, &format!("{NAME} {why}\n"), &[]);
            false
        }
    }
}

fn send(stream: &UnixStream, line: &str, descriptors: &[i32]) -> io::Result<()> {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let control = if descriptors.is_empty() { &[][..] } else { &rights };
    let parts = [IoSlice::new(line.as_bytes())];
    sendmsg::<()>(stream.as_raw_fd(), &parts, control, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

impl RegionSocket {
    /// What a process of this user and group may do with the region of a server of user `own`.
    fn right(&self, user: u32, group: u32, own: u32) -> Right {
        if self.writers.include(user, group) {
            Right::Write
        } else if self.readers.include(user, group) {
            Right::Read
        } else if user == own {
            Right::Write
        } else {
            Right::Nothing
        }
    }
}

impl Allowed {
    fn include(&self, user: u32, group: u32) -> bool {
        self.users.contains(&user) || self.groups.contains(&group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_own_user_and_those_named_may_have_it() {
        let unset = RegionSocket::default();
        let some = RegionSocket {
            writers: Allowed {
                users: vec![1000],
                groups: vec![33],
            },
            readers: Allowed {
                users: vec![7, 2000],
                groups: vec![33, 44],
            },
            ..RegionSocket::default()
        };
        assert_eq!(unset.right(7, 7, 7), Right::Write);
        assert_eq!(unset.right(8, 7, 7), Right::Nothing);
        assert_eq!(unset.right(0, 0, 7), Right::Nothing, "root is a user like others here");
        assert_eq!([some.right(1000, 5, 7), some.right(5, 33, 7)], [Right::Write; 2]);
        assert_eq!(some.right(33, 1000, 7), Right::Nothing, "numbers of users are none of groups");
        assert_eq!([some.right(2000, 5, 7), some.right(5, 44, 7)], [Right::Read; 2]);
        assert_eq!(some.right(7, 7, 7), Right::Read, "the server's own user, named");
        assert_eq!(some.right(1000, 44, 7), Right::Write, "writers first");
    }
}
