//! The TCP door's side in this process: which connections the program may answer for, and when they are at rest.
//!
//! What the program knows of a connection is stored at the server's socket (`BPF_MAP_TYPE_SK_STORAGE`), so it ends with the socket. A
//! server makes this entry when it *enrols* the connection, and afterwards publishes one word whenever the connection is at rest.

use std::collections::HashSet;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::Release;

use libbpf_rs::{Iter, Link, MapCore, MapFlags, MapHandle};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::time::{ClockId, clock_gettime};

use crate::door::DoorError;
use crate::memory::Mapping;

/// Size of `struct kw_connection`, and the places of what the server writes there.
const CONNECTION_LEN: usize = 1488;
const SLOT_AT: usize = 4;
const TICKET_AT: usize = 8;
const ENROLLED_AT: usize = 16;
/// The protocol's number (RFC 9293).
const TCP: u8 = 6;
/// Words of `struct kw_rest`: a cache line.
const REST_WORDS: usize = 8;

/// Connections for which the program may answer.
pub struct Connections {
    rests: Mapping,
    map: MapHandle,
    translated: Link,
}

impl Connections {
    /// Number of connections that can be enrolled at the same time (`KW_RESTS`).
    pub const SLOTS: u32 = 1 << 14;
    pub(crate) const WORDS: usize = Self::SLOTS as usize * REST_WORDS;

    pub(crate) fn new(rests: Mapping, map: MapHandle, translated: Link) -> Self {
        Self { rests, map, translated }
    }

    /// Lets the program answer on the connection of this socket, which this process has accepted, when it is at rest. `slot` is where this
    /// process publishes that; it belongs to this connection alone. `ticket` is a random number.
    ///
    /// # Errors
    ///
    /// That of `bpf(BPF_MAP_UPDATE_ELEM)`, as text: EEXIST if the socket was enrolled before or a segment for it came in parts, ENOMEM if it may use no more memory
    /// (`net.core.optmem_max`), EPERM if this process may not use the map.
    pub fn enrol(&self, socket: BorrowedFd<'_>, slot: u32, ticket: u64) -> io::Result<()> {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC)?;
        let now_ns = u64::try_from(now.tv_sec()).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec()).unwrap_or(0);
        let mut connection = [0; CONNECTION_LEN];
        connection[SLOT_AT..][..4].copy_from_slice(&slot.to_ne_bytes());
        connection[TICKET_AT..][..8].copy_from_slice(&ticket.to_ne_bytes());
        connection[ENROLLED_AT..][..8].copy_from_slice(&now_ns.to_ne_bytes());
        self.map
            .update(&socket.as_raw_fd().to_ne_bytes(), &connection, MapFlags::NO_EXIST)
            .map_err(|error| match error.kind() {
                libbpf_rs::ErrorKind::AlreadyExists => io::Error::other("its segments arrive in parts"),
                _ => io::Error::other(format!("{error:#}")),
            })
    }

    /// Publishes that the connection with this slot is at rest: `word` is its ticket plus the number of bytes that this process has
    /// read from its socket since it was accepted. All of them are executed, all answers are in the socket, and nothing will be written before
    /// more is read. 0: it is not at rest.
    pub fn publish(&self, slot: u32, word: u64) {
        if let Some(rest) = self.rests.words().get(slot as usize * REST_WORDS) {
            // PAIRS: the program's load of the word. What was written to the socket before was written by a system call.
            rest.store(word, Release);
        }
    }

    /// Number of the sockets, of this process and of others, whose connections have other numbers than their clients: the program has
    /// answered for them, and translates until they have ended.
    pub fn translated(&self) -> Result<usize, DoorError> {
        count(&self.translated)
    }

    pub(crate) fn iterator(&self) -> &Link {
        &self.translated
    }

    /// Publishes of no connection that it is at rest.
    pub fn clear(&self) {
        self.rests
            .words()
            .iter()
            .step_by(REST_WORDS)
            .for_each(|rest| rest.store(0, Release));
    }
}

/// Size of `struct kw_ends`.
const ENDS_LEN: usize = 44;
/// linux/sock_diag.h, linux/netlink.h
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const SOCK_DESTROY: u16 = 21;
const REQUEST_ACK: u16 = 5;
const REQUEST_DUMP: u16 = 0x301;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// linux/socket.h
const AF_INET: u8 = 2;
const AF_INET6: u8 = 10;
/// FIN_WAIT2 and TIME_WAIT (linux/tcp_states.h)
const REMAINS: u32 = 1 << 5 | 1 << 6;
/// Size of `struct kw_peer`: address, and port in network byte order.
const PEER_LEN: usize = 20;
/// Where `struct inet_diag_sockid` is in an answer, and its size: ports 4, addresses 2 × 16, interface 4, cookie 8.
const ID_AT: usize = NETLINK_HEAD_LEN + 4;
const ID_LEN: usize = 48;
/// Where the inode of `struct inet_diag_msg` is: 0, if no process has the socket.
const INODE_AT: usize = NETLINK_HEAD_LEN + 68;
const NETLINK_HEAD_LEN: usize = 16;
/// Size of `struct inet_diag_req_v2`.
const DIAG_LEN: usize = 56;
/// "Whatever its cookie is" (`INET_DIAG_NOCOOKIE`).
const ANY_COOKIE: [u8; 8] = [0xFF; 8];
/// How long the kernel may take to end a connection.
const END_MAX_S: i64 = 5;

/// Number of connections that an iterator of `kw_translated` lists.
pub(crate) fn count(translated: &Link) -> Result<usize, DoorError> {
    list(translated).map(|ends| ends.len() / ENDS_LEN)
}

/// Resets the connections that the iterator lists, or those of them that last used this interface, on both sides (sock_diag(7), `SOCK_DESTROY`):
/// how many there were.
pub(crate) fn reset(translated: &Link, interface: Option<i32>) -> Result<usize, DoorError> {
    let all = list(translated)?;
    let is_wanted = |ends: &&[u8]| interface.is_none_or(|interface| ends[40..] == interface.to_ne_bytes());
    let wanted: Vec<&[u8]> = all.chunks_exact(ENDS_LEN).filter(is_wanted).collect();
    if wanted.is_empty() {
        return Ok(0);
    }
    let netlink = netlink()?;
    for ends in &wanted {
        let id = [&ends[2..6], &ends[8..40], &[0; 4], &ANY_COOKIE].concat();
        destroy(&netlink, ends[0], &id)?;
    }
    Ok(wanted.len())
}

/// Removes what is left of connections that the socket at `local` has closed and whose numbers were translated, which `closing` has: no
/// one will translate for them any more. A client that sends something is then told that there is no connection, instead of getting numbers
/// that mean nothing to it. Returns how many there were.
pub(crate) fn end_closed(closing: &MapHandle, local: SocketAddr) -> Result<usize, DoorError> {
    let peers: HashSet<Vec<u8>> = closing.keys().collect();
    if peers.is_empty() {
        return Ok(0);
    }
    let netlink = netlink()?;
    let mut ended = 0;
    // A socket of IPv6 may have a client of IPv4.
    for family in [AF_INET, AF_INET6] {
        for id in remains(&netlink, family, local.port())? {
            let peer = peer(family, &id[20..36], &id[2..4]);
            let address = mapped(family, &id[4..20]);
            if peers.contains(&peer[..PEER_LEN]) && address == of(local) {
                destroy(&netlink, family, &id)?;
                ended += 1;
            }
        }
    }
    Ok(ended)
}

/// A `struct kw_peer`.
fn peer(family: u8, address: &[u8], port: &[u8]) -> [u8; PEER_LEN] {
    let mut peer = [0; PEER_LEN];
    peer[..16].copy_from_slice(&mapped(family, address));
    peer[16..18].copy_from_slice(port);
    peer
}

/// An address as one of IPv6.
fn mapped(family: u8, address: &[u8]) -> [u8; 16] {
    let mut mapped = [0; 16];
    if family == AF_INET {
        mapped[10..12].fill(0xFF);
        mapped[12..].copy_from_slice(&address[..4]);
    } else {
        mapped.copy_from_slice(address);
    }
    mapped
}

fn of(local: SocketAddr) -> [u8; 16] {
    match local.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

fn refused(error: nix::Error) -> DoorError {
    DoorError::Kernel("ending connections whose numbers are translated", error.to_string())
}

fn netlink() -> Result<OwnedFd, DoorError> {
    let netlink = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkSockDiag,
    )
    .map_err(refused)?;
    setsockopt(&netlink, sockopt::ReceiveTimeout, &TimeVal::seconds(END_MAX_S)).map_err(refused)?;
    Ok(netlink)
}

/// The `struct inet_diag_sockid` of each socket with this local port that is closed and waits for its client.
fn remains(netlink: &OwnedFd, family: u8, port: u16) -> Result<Vec<[u8; ID_LEN]>, DoorError> {
    let mut id = [0; ID_LEN];
    id[..2].copy_from_slice(&port.to_be_bytes());
    let request = request(SOCK_DIAG_BY_FAMILY, REQUEST_DUMP, family, REMAINS, &id);
    send(netlink, &request)?;
    let (mut found, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let len = recv(netlink.as_raw_fd(), &mut buffer, MsgFlags::empty()).map_err(refused)?;
        let mut rest = &buffer[..len];
        while rest.len() >= NETLINK_HEAD_LEN {
            let len = u32::from_ne_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
            let kind = u16::from_ne_bytes([rest[4], rest[5]]);
            if kind == NLMSG_DONE || kind == NLMSG_ERROR || len < NETLINK_HEAD_LEN {
                return Ok(found);
            }
            let id = rest
                .get(ID_AT..ID_AT + ID_LEN)
                .and_then(|id| <[u8; ID_LEN]>::try_from(id).ok());
            let is_closed = rest.get(INODE_AT..INODE_AT + 4) == Some(&[0; 4]);
            found.extend(id.filter(|_| is_closed));
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        }
    }
}

/// Ends a socket, if it is still there.
fn destroy(netlink: &OwnedFd, family: u8, id: &[u8]) -> Result<(), DoorError> {
    send(netlink, &request(SOCK_DESTROY, REQUEST_ACK, family, u32::MAX, id))?;
    let mut answer = [0; 256];
    recv(netlink.as_raw_fd(), &mut answer, MsgFlags::empty()).map_err(refused)?;
    let error = -i32::from_ne_bytes([answer[16], answer[17], answer[18], answer[19]]);
    // It may have ended by itself; older kernels end no socket that is closed, which then takes a minute.
    match error {
        0 | nix::libc::ENOENT | nix::libc::ESTALE | nix::libc::EOPNOTSUPP => Ok(()),
        error => Err(refused(nix::Error::from_raw(error))),
    }
}

fn send(netlink: &OwnedFd, request: &[u8]) -> Result<(), DoorError> {
    sendto(netlink.as_raw_fd(), request, &NetlinkAddr::new(0, 0), MsgFlags::empty())
        .map(drop)
        .map_err(refused)
}

/// A message with a `struct inet_diag_req_v2`: family, protocol, extensions, padding, states, and which socket.
fn request(kind: u16, flags: u16, family: u8, states: u32, id: &[u8]) -> Vec<u8> {
    let mut request = Vec::with_capacity(NETLINK_HEAD_LEN + DIAG_LEN);
    request.extend((NETLINK_HEAD_LEN + DIAG_LEN).try_into().unwrap_or(0_u32).to_ne_bytes());
    request.extend(kind.to_ne_bytes());
    request.extend(flags.to_ne_bytes());
    request.extend([0; 8]);
    request.extend([family, TCP, 0, 0]);
    request.extend(states.to_ne_bytes());
    request.extend(id);
    request
}

fn list(translated: &Link) -> Result<Vec<u8>, DoorError> {
    let refused = |error: String| DoorError::Kernel("listing the connections whose numbers are translated", error);
    let mut ends = Vec::new();
    let mut iter = Iter::new(translated).map_err(|error| refused(format!("{error:#}")))?;
    iter.read_to_end(&mut ends).map_err(|error| refused(error.to_string()))?;
    Ok(ends)
}
