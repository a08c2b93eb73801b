//! Tells a service manager how the server fares (sd_notify(3)): state, status lines, the watchdog's signs of life, and memory that it is to
//! keep for the next start.
//!
//! The socket is connected at the start, because a confined server opens none. What cannot be sent is logged once, and the server goes on.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use keyway_server::{Manager, News};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use nix::time::{ClockId, clock_gettime};

use crate::inherited::REGION_MEMORY;

/// The service manager, if there is one that wants to be told.
#[derive(Clone, Debug)]
pub(crate) struct Notifier {
    socket: Arc<UnixDatagram>,
    watchdog: Option<Duration>,
    has_failed: Arc<AtomicBool>,
}

impl Notifier {
    /// The service manager that `NOTIFY_SOCKET` names.
    pub(crate) fn of_environment() -> Option<Self> {
        let name = std::env::var_os("NOTIFY_SOCKET")?;
        let address = match name.as_bytes() {
            [b'@', name @ ..] => SocketAddr::from_abstract_name(name),
            _ => SocketAddr::from_pathname(&name),
        };
        let connected = address.and_then(|address| {
            let socket = UnixDatagram::unbound()?;
            socket.connect_addr(&address)?;
            // The accepting thread must not wait for a service manager that does not read.
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        match connected {
            Ok(socket) => {
                let variable = |name| std::env::var(name).ok();
                Some(Self {
                    socket: Arc::new(socket),
                    watchdog: watchdog(
                        variable("WATCHDOG_USEC").as_deref(),
                        variable("WATCHDOG_PID").as_deref(),
                        std::process::id(),
                    ),
                    has_failed: Arc::default(),
                })
            }
            Err(error) => {
                log::warn!(
                    "the service manager (NOTIFY_SOCKET {}) cannot be reached: {error}",
                    name.display()
                );
                None
            }
        }
    }

    /// Has it keep the region's memory for the next start. The descriptor must have a file description without locks.
    pub(crate) fn keep(&self, memory: &impl AsFd) {
        let text = format!("FDSTORE=1\nFDNAME={REGION_MEMORY}\n");
        let number = [memory.as_fd().as_raw_fd()];
        let sent = sendmsg::<()>(
            self.socket.as_raw_fd(),
            &[IoSlice::new(text.as_bytes())],
            &[ControlMessage::ScmRights(&number)],
            MsgFlags::MSG_NOSIGNAL,
            None,
        );
        self.check(sent.map(drop).map_err(io::Error::from));
    }

    /// Has it drop the memory that it has kept.
    pub(crate) fn drop_kept(&self) {
        self.send(&format!("FDSTOREREMOVE=1\nFDNAME={REGION_MEMORY}\n"));
    }

    fn send(&self, text: &str) {
        self.check(self.socket.send(text.as_bytes()).map(drop));
    }

    fn check(&self, sent: io::Result<()>) {
        match sent {
            Ok(()) => self.has_failed.store(false, Relaxed),
            Err(error) if !self.has_failed.swap(true, Relaxed) => {
                log::warn!("cannot notify the service manager: {error}");
            }
            Err(_) => {}
        }
    }
}

impl Manager for Notifier {
    fn report(&self, news: News) {
        let now_us = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| now.tv_sec() * 1_000_000 + now.tv_nsec() / 1000);
        self.send(&message(news, now_us));
    }

    fn watchdog(&self) -> Option<Duration> {
        self.watchdog
    }
}

/// `now_us`: the monotonic clock, microseconds.
fn message(news: News, now_us: i64) -> String {
    match news {
        News::Serving(status) => format!("READY=1\nSTATUS={status}\n"),
        News::Alive(status) => format!("WATCHDOG=1\nSTATUS={status}\n"),
        News::Hanging(status) => format!("STATUS={status}\n"),
        News::Reloading => format!("RELOADING=1\nMONOTONIC_USEC={now_us}\nSTATUS=reading files again\n"),
        News::Reloaded(status) => format!("READY=1\nSTATUS={status}\n"),
        // From this process, because the service manager may listen to the main process only.
        News::TakenOver(process) => format!("MAINPID={process}\n"),
        News::Stopping => "STOPPING=1\nSTATUS=stopping: clients get the answers to what they have sent\n".to_owned(),
    }
}

/// The longest time between two signs of life, if they are asked of this process (sd_watchdog_enabled(3)).
fn watchdog(usec: Option<&str>, pid: Option<&str>, own: u32) -> Option<Duration> {
    let is_for_us = pid.is_none_or(|pid| pid.parse() == Ok(own));
    let usec: u64 = usec?.parse().ok()?;
    (is_for_us && usec > 0).then_some(Duration::from_micros(usec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watchdog_of_another_process_is_not_ours() {
        assert_eq!(watchdog(Some("30000000"), Some("5"), 5), Some(Duration::from_secs(30)));
        assert_eq!(watchdog(Some("1000"), None, 5), Some(Duration::from_millis(1)));
        for (usec, pid) in [
            (None, Some("5")),
            (Some("1"), Some("6")),
            (Some("0"), None),
            (Some("x"), None),
        ] {
            assert_eq!(watchdog(usec, pid, 5), None);
        }
    }

    #[test]
    fn a_reload_says_when_it_began() {
        assert!(message(News::Reloading, 12_345).starts_with("RELOADING=1\nMONOTONIC_USEC=12345\n"));
        assert!(message(News::Reloaded("x".into()), 0).starts_with("READY=1\nSTATUS=x\n"));
        assert_eq!(message(News::TakenOver(7), 0), "MAINPID=7\n");
    }
}
