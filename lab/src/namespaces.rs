//! Hosts in this machine: the calling thread's own network namespace for clients, and one for each server, connected to it by a pair of virtual
//! Ethernet interfaces.
//!
//! No namespace has a name or a file: they are there as long as a process holds their descriptors or runs in them, which is this process
//! and the servers that it starts. These end with it, however it ends, and the kernel then removes namespaces, interfaces, and what is attached to
//! them. Nothing is left behind, and nothing outside them is touched.
//!
//! # Safety
//!
//! The only `unsafe` here puts the calling thread into a namespace of its own (unshare(2), CLONE_NEWNET): it concerns which network that
//! thread sees, and no memory.
#![allow(unsafe_code, reason = "one system call that concerns no memory; contract above")]

use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};

/// A server's interface in its own namespace.
pub const INTERFACE: &str = "veth";
/// The namespace of the calling thread.
const OWN: &str = "/proc/thread-self/ns/net";

/// The clients' network: the calling thread's, and that of the threads and servers that it starts.
#[derive(Debug)]
pub struct Clients {
    links: Cell<u8>,
}

impl Clients {
    /// Moves the calling thread, for good, to a network of its own, which has nothing but `lo`.
    ///
    /// # Errors
    ///
    /// This takes root (CAP_SYS_ADMIN and CAP_NET_ADMIN) and the program `ip`; the reason says which is missing.
    pub fn enter() -> io::Result<Self> {
        leave_network()?;
        ip(&["link set lo up"])?;
        Ok(Self { links: Cell::new(0) })
    }

    /// Connects a new network for one server.
    ///
    /// # Errors
    ///
    /// The kernel has no veth, or allows no more namespaces.
    pub fn link(&self) -> io::Result<Link> {
        let number = self.links.get() % 250 + 1;
        self.links.set(number);
        let own = File::open(OWN)?;
        leave_network()?;
        let link = Link {
            namespace: File::open(OWN)?,
            number,
        };
        enter(&own)?;
        let [server, client] = [1, 2].map(|host| Ipv4Addr::new(10, 0, number, host));
        // Another process finds a descriptor of this one by its path.
        let namespace = format!("/proc/{}/fd/{}", std::process::id(), link.namespace.as_raw_fd());
        let near = format!("{INTERFACE}{number}");
        ip(&[
            &format!("link add {near} type veth peer name {INTERFACE} netns {namespace}"),
            &up(client, &near),
        ])?;
        link.at_server(|| ip(&["link set lo up", &up(server, INTERFACE)]))?;
        Ok(link)
    }
}

/// The way to a server's network.
#[derive(Debug)]
pub struct Link {
    namespace: File,
    number: u8,
}

impl Link {
    /// The server's address.
    pub fn address(&self) -> IpAddr {
        Ipv4Addr::new(10, 0, self.number, 1).into()
    }

    /// Both ends, as `--udp-allow` takes it.
    pub fn network(&self) -> String {
        format!("10.0.{}.0/24", self.number)
    }

    /// Does something where the server is to be: what it starts stays there.
    ///
    /// # Errors
    ///
    /// Those of `what`; a thread that may not change its network.
    pub fn at_server<T>(&self, what: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
        let own = File::open(OWN)?;
        enter(&self.namespace)?;
        let done = what();
        enter(&own)?;
        done
    }
}

fn leave_network() -> io::Result<()> {
    // SAFETY: no descriptors are unshared, only the network of this thread.
    let left = unsafe { unshare_unsafe(UnshareFlags::NEWNET) };
    left.map_err(|e| {
        let e = io::Error::from(e);
        let why =
            "the kernel door is measured between network namespaces, and making one takes root (CAP_SYS_ADMIN and CAP_NET_ADMIN)";
        io::Error::new(e.kind(), format!("{why}: {e}"))
    })
}

fn enter(namespace: &File) -> io::Result<()> {
    Ok(move_into_link_name_space(
        namespace.as_fd(),
        Some(LinkNameSpaceType::Network),
    )?)
}

/// Commands that give an address to an interface and bring it up.
fn up(address: Ipv4Addr, interface: &str) -> String {
    format!("addr add {address}/24 dev {interface}\nlink set {interface} up")
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

    #[test]
    fn what_is_sent_at_one_end_arrives_at_the_other_and_nowhere_else() {
        let clients = match Clients::enter() {
            Ok(clients) => clients,
            Err(e) => return harness::skip("a link of two namespaces", &e.to_string()),
        };
        let [link, other] = [clients.link().unwrap(), clients.link().unwrap()];
        let server = link.at_server(|| UdpSocket::bind((link.address(), 7))).unwrap();
        let client = UdpSocket::bind("0.0.0.0:0").unwrap();
        server.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        client.send_to(b"hello", (link.address(), 7)).unwrap();
        let mut buffer = [0; 9];
        let (len, from) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(
            (&buffer[..len], from.ip()),
            (&b"hello"[..], Ipv4Addr::new(10, 0, 1, 2).into())
        );
        assert!(
            UdpSocket::bind((link.address(), 0)).is_err(),
            "this thread is not there any more"
        );
        assert_ne!(link.address(), other.address());
    }
}
