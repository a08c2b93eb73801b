//! The same-machine bypass of a server: its programs, and the listening sockets whose local connections they join.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use keyway_proto::reply::stat;
use keyway_xdp::bypass;

use crate::config::Config;
use crate::shared::BypassNumbers;

/// The programs, on their cgroup as long as this lives.
pub(crate) struct Bypass(bypass::Bypass);

impl Bypass {
    /// Attaches the programs, for connections to these listening sockets. The error text is for the operator.
    pub(crate) fn start<'a>(
        config: &Config,
        cgroup: &Path,
        listeners: impl Iterator<Item = (BorrowedFd<'a>, u16)>,
    ) -> Result<Self, String> {
        let room = u32::try_from(config.connections_max).unwrap_or(u32::MAX).min(ROOM_MAX);
        let bypass = bypass::Bypass::start(cgroup, room, !config.tls_tcp.is_empty()).map_err(|error| error.to_string())?;
        let mut count = 0;
        for (listener, port) in listeners {
            bypass
                .serve(listener, port)
                .map_err(|error| format!("{error} (socket {})", listener.as_raw_fd()))?;
            count += 1;
        }
        if count == 0 {
            return Err("the local bypass is for TCP connections, and this server listens for none (--listen)".to_owned());
        }
        Ok(Self(bypass))
    }

    /// The lines of `stats` about it.
    pub(crate) fn stats(&self, out: &mut Vec<u8>) {
        let numbers = self.numbers();
        stat(out, "keyway_bypass_connections", numbers.total);
        stat(out, "keyway_bypass_curr_connections", numbers.open);
        stat(out, "keyway_bypass_messages", numbers.messages);
        stat(out, "keyway_bypass_bytes", numbers.bytes);
        for (reason, count) in numbers.by_tcp {
            stat(out, &format!("keyway_bypass_{reason}"), count);
        }
    }

    /// The same as numbers.
    pub(crate) fn numbers(&self) -> BypassNumbers {
        let counts = self.0.counts().unwrap_or_default();
        BypassNumbers {
            total: counts.connections,
            open: counts.connections.saturating_sub(counts.closed),
            messages: counts.messages,
            bytes: counts.bytes,
            by_tcp: [("behind", counts.behind), ("full", counts.full)],
        }
    }
}

/// Most connections that the tables have room for. Their memory is used only by those that are there.
const ROOM_MAX: u32 = 1 << 20;
