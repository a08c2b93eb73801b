//! Two hosts in this machine: a network namespace for servers, one for clients, and a pair of virtual Ethernet interfaces between them.
//!
//! Neither namespace has a name or a file: they are there as long as somebody holds their descriptors or runs in them, which is this process
//! and the servers that it starts. These end with it, however it ends, and the kernel then removes namespaces, interfaces, and what is attached to them.
//! Nothing is left to sweep up, and nothing outside them is touched.
//!
//! # Safety
//!
//! The only `unsafe` here puts a thread that was started for it, and does nothing else, into a namespace of its own (unshare(2), CLONE_NEWNET): it
//! concerns which network that thread sees, and no memory.
#![allow(unsafe_code, reason = "one system call of a thread of its own; contract above")]

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::fs::File;
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};
use std::thread;

/// The servers' address. No other host is there, so any private one will do.
pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
/// The clients'.
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// Both, as `--udp-allow` takes it.
pub const NETWORK: &str = "10.0.0.0/24";
/// The interface at either end.
pub const INTERFACE: &str = "veth";
/// The namespace of the calling thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// Both namespaces, connected.
#[derive(Debug)]
pub struct Link {
    servers: File,
    clients: File,
}

impl Link {
    /// Makes it.
    ///
    /// # Errors
    ///
    /// This takes root (CAP_SYS_ADMIN and CAP_NET_ADMIN), the program `ip`, and a kernel with veth; the reason says which is missing.
    pub fn new() -> io::Result<Self> {
        let link = Self {
            servers: namespace()?,
            clients: namespace()?,
        };
        // Another process finds a descriptor of this one by its path.
        let clients = format!("/proc/{}/fd/{}", std::process::id(), link.clients.as_raw_fd());
        let make = format!("link add {INTERFACE} type veth peer name {INTERFACE} netns {clients}");
        within(&link.servers, || ip(&[&make, &up(SERVER)]))?;
        within(&link.clients, || ip(&[&up(CLIENT)]))?;
        Ok(link)
    }

    /// Does something where servers are: what it starts stays there.
    pub fn at_servers<T>(&self, what: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        within(&self.servers, what)
    }

    /// Does something where clients are: sockets that it opens stay there, whichever thread uses them.
    pub fn at_clients<T>(&self, what: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        within(&self.clients, what)
    }
}

/// Equal only to itself.
impl PartialEq for Link {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
    }
}

impl Eq for Link {}

/// A new network namespace.
fn namespace() -> io::Result<File> {
    let made = thread::spawn(|| {
        // SAFETY: no descriptors are unshared, only the network of this thread, which ends at once.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?;
        File::open(OWN)
    });
    let made = made.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    made.map_err(|e| {
        let why = "the kernel door is measured between two network namespaces, and making one takes root (CAP_SYS_ADMIN and CAP_NET_ADMIN)";
        io::Error::new(e.kind(), format!("{why}: {e}"))
    })
}

/// Does something with the calling thread in a namespace, and brings it back.
fn within<T>(namespace: &File, what: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let enter = |namespace: &File| move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network));
    let own = File::open(OWN)?;
    enter(namespace)?;
    let done = what();
    enter(&own)?;
    done
}

/// Commands that give an address to this end and bring it up.
fn up(address: Ipv4Addr) -> String {
    format!("addr add {address}/24 dev {INTERFACE}\nlink set lo up\nlink set {INTERFACE} up")
}

/// Has iproute2's program do these commands, in the namespace of the calling thread.
fn ip(commands: &[&str]) -> io::Result<()> {
    let missing = |e: io::Error| io::Error::new(e.kind(), format!("ip, of the package iproute2, connects the namespaces: {e}"));
    let mut command = Command::new("ip");
    let piped = command.args(["-batch", "-"]).stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = piped.spawn().map_err(missing)?;
    let mut input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
    input.write_all((commands.join("\n") + "\n").as_bytes())?;
    drop(input);
    let output = child.wait_with_output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(io::Error::other(format!("ip -batch: {said}; a kernel with veth is needed")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;
    use std::time::Duration;

    /// The link, or why there is none on this machine.
    fn link() -> Option<Link> {
        match Link::new() {
            Ok(link) => Some(link),
            Err(e) if std::env::var_os("KEYWAY_TESTS_REQUIRE_ALL").is_none_or(|value| value != "1") => {
                #[allow(clippy::print_stderr, reason = "a test says that it is skipped")]
                {
                    eprintln!("SKIP: a link of two namespaces: {e}");
                }
                None
            }
            Err(e) => panic!("{e}"),
        }
    }

    #[test]
    fn what_is_sent_at_one_end_arrives_at_the_other_and_nowhere_else() {
        let Some(link) = link() else { return };
        let server = link.at_servers(|| UdpSocket::bind((SERVER, 7))).unwrap();
        let client = link.at_clients(|| UdpSocket::bind((CLIENT, 0))).unwrap();
        server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        client.send_to(b"hello", (SERVER, 7)).unwrap();
        let mut buffer = [0; 9];
        let (len, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!((&buffer[..len], from.ip()), (&b"hello"[..], CLIENT.into()));
        assert!(UdpSocket::bind((SERVER, 0)).is_err(), "this thread is not there any more");
    }
}
