//! Handing out the region: whoever connects to the region's socket gets descriptors of its file, or is told why not.
//!
//! The exchange is [`keyway::handout`]'s. Nothing is read from the client, so there is nothing that it could send, hold back or
//! get wrong; one message is sent, which a fresh socket always takes, and the connection is closed.

use std::io::{self, IoSlice};
use std::os::fd::AsRawFd;

use keyway::Cache;
use keyway::handout::{GRANTED, GRANTED_AND_COUNTS, NAME};
use mio::net::UnixStream;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{ControlMessage, MsgFlags, UnixCredentials, getsockopt, sendmsg};
use nix::unistd::geteuid;

use crate::config::Writers;

/// Answers a process that has connected.
pub(crate) fn answer(stream: &UnixStream, cache: &Cache, writers: &Writers) {
    match hand_out(stream, cache, writers) {
        Ok(peer) => log::info!(
            "the region was handed out to process {} of user {}, group {}",
            peer.pid(),
            peer.uid(),
            peer.gid()
        ),
        Err(why) => {
            log::warn!("the region was not handed out: {why}");
            // A peer that has gone needs no answer.
            let _ = send(stream, &format!("{NAME} {why}\n"), &[]);
        }
    }
}

fn hand_out(stream: &UnixStream, cache: &Cache, writers: &Writers) -> Result<UnixCredentials, String> {
    let peer = getsockopt(stream, PeerCredentials).map_err(|error| format!("the server cannot tell who asks: {error}"))?;
    if !writers.include(peer.uid(), peer.gid(), geteuid().as_raw()) {
        return Err(format!(
            "the server does not give its region to user {}, group {}; name one of them in its --region-writers, or use its socket for clients",
            peer.uid(),
            peer.gid()
        ));
    }
    let files = cache.descriptors();
    let files = files.map_err(|error| format!("the server cannot open its region's file again: {error}"))?;
    let mut descriptors: Vec<i32> = files.iter().map(AsRawFd::as_raw_fd).collect();
    let doorway = cache.doorway();
    let line = match &doorway {
        Some((word, map)) => {
            descriptors.push(map.as_raw_fd());
            format!("{GRANTED_AND_COUNTS}{word}\n")
        }
        None => GRANTED.to_owned(),
    };
    send(stream, &line, &descriptors).map_err(|error| format!("process {} does not take it: {error}", peer.pid()))?;
    Ok(peer)
}

fn send(stream: &UnixStream, line: &str, descriptors: &[i32]) -> io::Result<()> {
    let rights = [ControlMessage::ScmRights(descriptors)];
    let control = if descriptors.is_empty() { &[][..] } else { &rights };
    let parts = [IoSlice::new(line.as_bytes())];
    sendmsg::<()>(stream.as_raw_fd(), &parts, control, MsgFlags::MSG_NOSIGNAL, None)?;
    Ok(())
}

impl Writers {
    /// Whether a process of this user and group may have the region of a server of user `own`.
    fn include(&self, user: u32, group: u32, own: u32) -> bool {
        user == own || self.users.contains(&user) || self.groups.contains(&group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_own_user_and_those_named_may_have_it() {
        let nobody = Writers::default();
        let some = Writers {
            users: vec![1000],
            groups: vec![33],
        };
        assert!(nobody.include(7, 7, 7));
        assert!(!nobody.include(8, 7, 7));
        assert!(!nobody.include(0, 0, 7), "root is a user like others here");
        assert!(some.include(1000, 5, 7) && some.include(5, 33, 7));
        assert!(!some.include(33, 1000, 7), "numbers of users are none of groups");
    }
}
