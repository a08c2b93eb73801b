//! The program's filters at the TC hooks of an interface (clsact), beside those of other owners.
//!
//! Every owner has filters of its own. A handle identifies their owner: [`OWNED`] and a number for a process, [`PINNED`] and a
//! number for a program that stays when its process ends. A process that owns a number holds a Unix socket with an abstract
//! name. The name belongs to the network namespace, as the interface does, and disappears when the process ends, however it ends. So a
//! filter whose name no process holds was left by a process that died, and the next process that attaches removes it.
//!
//! The filters of an interface are read with a netlink dump (rtnetlink(7), `RTM_GETTFILTER`), because libbpf finds a filter only by its
//! handle and priority.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::{Duration, Instant};

use libbpf_rs::query::{LinkInfoIter, LinkTypeInfo};
use libbpf_rs::{ErrorKind, TC_EGRESS, TC_INGRESS, TcAttachPoint, TcHook, TcHookBuilder};
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};

/// Handles of processes, and of pinned programs: one of these and a number.
const OWNED: u32 = 0x4B57_0000;
const PINNED: u32 = 0x4B58_0000;
/// Number of owners per interface.
const NUMBERS: u32 = 256;
/// Filters of the same priority and kind run one after the other, while each passes a packet on.
const PRIORITY: u32 = 1;
/// `lo`, in every network namespace (Linux, `LOOPBACK_IFINDEX`).
pub(crate) const LOOPBACK: i32 = 1;
/// How long a process waits for another one that attaches to the same interface, or detaches from it.
const TURN_MAX: Duration = Duration::from_secs(1);
const TURN_PAUSE: Duration = Duration::from_millis(1);
/// How long the kernel may take for a part of a dump.
const DUMP_MAX_S: i64 = 5;

/// rtnetlink(7), linux/rtnetlink.h, linux/pkt_sched.h, linux/pkt_cls.h
const RTM_NEWTFILTER: u16 = 44;
const RTM_GETTFILTER: u16 = 46;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
const REQUEST_DUMP: u16 = 0x301;
const PARENT_INGRESS: u32 = 0xFFFF_FFF2;
const PARENT_EGRESS: u32 = 0xFFFF_FFF3;
const TCA_KIND: u16 = 1;
const TCA_OPTIONS: u16 = 2;
const TCA_BPF_NAME: u16 = 7;
const TCA_BPF_ID: u16 = 11;
/// Lengths of `nlmsghdr` and `tcmsg`.
const HEAD_LEN: usize = 16;
const TCMSG_LEN: usize = 20;

/// The filters of one owner on an interface.
#[derive(Debug)]
pub(crate) struct Filters {
    interface: i32,
    handle: u32,
    /// at both hooks
    has_egress: bool,
    /// held while the filters belong to this process; `None` for a pinned program
    _name: Option<UnixDatagram>,
}

/// A filter of an interface.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Filter {
    handle: u32,
    priority: u32,
    /// its kind, and the name of a BPF program
    pub(crate) what: String,
    /// the number of a BPF program
    pub(crate) program: Option<u32>,
}

impl Filters {
    /// Attaches the programs for ingress and egress, with a number that no other owner has. Removes the filters of owners that have
    /// died, but for those that are needed. Calls `between` when the program for egress is there and the other one is not yet.
    pub(crate) fn attach(
        interface: i32,
        ingress: BorrowedFd<'_>,
        egress: Option<BorrowedFd<'_>>,
        pinned: bool,
        is_needed: &dyn Fn(&Filter) -> bool,
        between: &dyn Fn(),
    ) -> Result<Self, String> {
        let _turn = Turn::take(interface);
        if !pinned {
            remove_left_behind(interface, is_needed);
        }
        // The qdisc of the filters; an existing one is used.
        hook(interface, TC_INGRESS, 0)
            .create()
            .map_err(|error| format!("{error:#}"))?;
        let mut taken = String::new();
        for number in 0..NUMBERS {
            let (handle, name) = if pinned {
                (PINNED + number + 1, None)
            } else {
                let Ok(name) = hold(&name_of(interface, number)) else {
                    continue;
                };
                (OWNED + number + 1, Some(name))
            };
            let filters = Self {
                interface,
                handle,
                has_egress: egress.is_some(),
                _name: name,
            };
            match filters.hang(ingress, egress, between) {
                Ok(()) => return Ok(filters),
                // Another process has this handle: try the next one.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => taken = format!("{error:#}"),
                Err(error) => {
                    filters.detach();
                    let others = others(interface, &[handle]);
                    return Err(if others.is_empty() {
                        format!("{error:#}")
                    } else {
                        format!("{error:#}; there are {}", others.join(", "))
                    });
                }
            }
        }
        Err(format!("{NUMBERS} servers have programs there; {taken}"))
    }

    /// The filters of a pinned program that was attached with this handle.
    pub(crate) fn pinned(interface: i32, handle: u32) -> Self {
        Self {
            interface,
            handle,
            has_egress: false,
            _name: None,
        }
    }

    /// Whether they are still where they were attached: at ingress, and at egress if this process has attached them there.
    pub(crate) fn are_there(&self) -> io::Result<bool> {
        let is_at = |parent| {
            Ok::<_, io::Error>(
                found(self.interface, parent)?
                    .iter()
                    .any(|filter| filter.handle == self.handle),
            )
        };
        Ok(is_at(PARENT_INGRESS)? && (!self.has_egress || is_at(PARENT_EGRESS)?))
    }

    pub(crate) fn interface(&self) -> i32 {
        self.interface
    }

    pub(crate) fn handle(&self) -> u32 {
        self.handle
    }

    fn hang(&self, ingress: BorrowedFd<'_>, egress: Option<BorrowedFd<'_>>, between: &dyn Fn()) -> libbpf_rs::Result<()> {
        let at = |program: BorrowedFd<'_>, point: TcAttachPoint| {
            TcHookBuilder::new(program)
                .ifindex(self.interface)
                .handle(self.handle)
                .priority(PRIORITY)
                .hook(point)
                .attach()
        };
        // First the egress program, which learns, so that it misses nothing; it does not answer.
        if let Some(egress) = egress {
            at(egress, TC_EGRESS)?;
        }
        between();
        at(ingress, TC_INGRESS).map(drop).inspect_err(|_| {
            let _ = hook(self.interface, TC_EGRESS, self.handle).detach();
        })
    }

    /// Removes the filters, and the qdisc if none is left.
    pub(crate) fn remove(self) {
        let _turn = Turn::take(self.interface);
        self.detach();
        tidy(self.interface);
    }

    fn detach(&self) {
        for point in [TC_INGRESS, TC_EGRESS] {
            // Fails also if the interface is gone; there is nothing to do then.
            if let Err(error) = hook(self.interface, point, self.handle).detach() {
                log::debug!("detaching from interface {}: {error:#}", self.interface);
            }
        }
    }
}

/// Other programs and filters than those with these handles that see packets from this interface, for the operator: one that runs before this
/// program can drop or redirect packets.
pub(crate) fn others(interface: i32, own: &[u32]) -> Vec<String> {
    let filters = found(interface, PARENT_INGRESS).unwrap_or_default();
    let mut others: Vec<String> = filters
        .into_iter()
        .filter(|filter| !own.contains(&filter.handle))
        .map(|filter| match filter.handle & 0xFFFF_0000 {
            OWNED => format!("the program of another Keyway ({})", filter.what),
            PINNED => format!("a pinned program of Keyway ({})", filter.what),
            _ => format!("{} (priority {}, handle {:#x})", filter.what, filter.priority, filter.handle),
        })
        .collect();
    let at_tcx = |link: &LinkTypeInfo| matches!(link, LinkTypeInfo::Tcx(tcx) if i32::try_from(tcx.ifindex) == Ok(interface));
    let tcx = LinkInfoIter::default().filter(|link| at_tcx(&link.info));
    others.extend(tcx.map(|link| format!("program {} at tcx, before all filters", link.prog_id)));
    others
}

/// Removes the filters of owners that have died, but for those that are needed, and the qdisc if it has no filter any more.
pub(crate) fn sweep(interface: i32, is_needed: &dyn Fn(&Filter) -> bool) {
    let _turn = Turn::take(interface);
    remove_left_behind(interface, is_needed);
    tidy(interface);
}

/// Removes the filters of owners that have died, but for those that are needed.
fn remove_left_behind(interface: i32, is_needed: &dyn Fn(&Filter) -> bool) {
    let all = [PARENT_INGRESS, PARENT_EGRESS].map(|parent| found(interface, parent).unwrap_or_default());
    let mut needed = Vec::new();
    for filter in all
        .into_iter()
        .flatten()
        .filter(|filter| filter.handle & 0xFFFF_0000 == OWNED)
    {
        let number = (filter.handle & 0xFFFF).wrapping_sub(1);
        if needed.contains(&filter.handle) {
            continue;
        }
        if let Ok(name) = hold(&name_of(interface, number)) {
            if is_needed(&filter) {
                needed.push(filter.handle);
                continue;
            }
            let left = Filters {
                interface,
                handle: filter.handle,
                has_egress: true,
                _name: Some(name),
            };
            left.detach();
        }
    }
}

/// Removes the qdisc if it has no filter any more.
fn tidy(interface: i32) {
    let is_empty = |parent| found(interface, parent).is_ok_and(|filters| filters.is_empty());
    if is_empty(PARENT_INGRESS) && is_empty(PARENT_EGRESS) {
        let _ = hook(interface, TC_INGRESS | TC_EGRESS, 0).destroy();
    }
}

/// A hook without a program, which is enough to find a filter.
fn hook(interface: i32, point: TcAttachPoint, handle: u32) -> TcHook {
    // The descriptor is not used.
    let mut hook = TcHook::new(std::io::stdin().as_fd());
    hook.ifindex(interface).attach_point(point).handle(handle);
    if handle != 0 {
        hook.priority(PRIORITY);
    }
    hook
}

fn name_of(interface: i32, number: u32) -> String {
    format!("keyway-kernel-door-{interface}-{number}")
}

/// Binds an abstract name, unless another process holds it.
fn hold(name: &str) -> io::Result<UnixDatagram> {
    let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
    // Nothing is ever read from this socket.
    socket.shutdown(Shutdown::Both)?;
    Ok(socket)
}

/// Lets one process at a time attach to an interface or detach from it, so that none removes the qdisc while another uses it.
struct Turn {
    _held: Option<UnixDatagram>,
}

impl Turn {
    fn take(interface: i32) -> Self {
        let until = Instant::now() + TURN_MAX;
        loop {
            match hold(&format!("keyway-kernel-door-{interface}")) {
                Ok(held) => return Self { _held: Some(held) },
                Err(_) if Instant::now() < until => std::thread::sleep(TURN_PAUSE),
                Err(_) => return Self { _held: None },
            }
        }
    }
}

/// The filters at one hook of an interface; none if there is no such hook.
fn found(interface: i32, parent: u32) -> io::Result<Vec<Filter>> {
    let netlink = socket(
        AddressFamily::Netlink,
        SockType::Raw,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    setsockopt(&netlink, sockopt::ReceiveTimeout, &TimeVal::seconds(DUMP_MAX_S))?;
    let mut request = Vec::with_capacity(HEAD_LEN + TCMSG_LEN);
    request.extend(u32::try_from(HEAD_LEN + TCMSG_LEN).unwrap_or(0).to_ne_bytes());
    request.extend(RTM_GETTFILTER.to_ne_bytes());
    request.extend(REQUEST_DUMP.to_ne_bytes());
    request.extend([0; 8]);
    // struct tcmsg: family and padding, interface, handle, parent, info
    request.extend([0; 4]);
    request.extend(interface.to_ne_bytes());
    request.extend([0; 4]);
    request.extend(parent.to_ne_bytes());
    request.extend([0; 4]);
    let kernel = NetlinkAddr::new(0, 0);
    sendto(netlink.as_raw_fd(), &request, &kernel, MsgFlags::empty())?;
    let mut filters = Vec::new();
    let mut piece = vec![0; 64 << 10];
    loop {
        let len = recv(netlink.as_raw_fd(), &mut piece, MsgFlags::empty())?;
        let mut rest = &piece[..len];
        while let Some((kind, message, after)) = next(rest, 4) {
            match kind {
                NLMSG_DONE => return Ok(filters),
                NLMSG_ERROR => return Err(io::ErrorKind::InvalidData.into()),
                RTM_NEWTFILTER => filters.extend(filter(message, interface)),
                _ => {}
            }
            rest = after;
        }
    }
}

/// The next netlink message (`len_len` 4) or attribute (2): its kind, its content, and what follows it. Both begin with their length and
/// kind, and are padded to a multiple of four.
fn next(bytes: &[u8], len_len: usize) -> Option<(u16, &[u8], &[u8])> {
    let head = if len_len == 4 { HEAD_LEN } else { 4 };
    let len = match len_len {
        4 => usize::try_from(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?)).ok()?,
        _ => usize::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?)),
    };
    let kind = u16::from_ne_bytes(bytes.get(len_len..len_len + 2)?.try_into().ok()?);
    let content = bytes.get(head..len)?;
    Some((kind, content, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
}

fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    // The two highest bits are flags.
    while let Some((kind, content, after)) = next(bytes, 2) {
        if kind & 0x3FFF == wanted {
            return Some(content);
        }
        bytes = after;
    }
    None
}

/// The filter that a message describes; `None` for a message that only describes a group of filters.
fn filter(message: &[u8], interface: i32) -> Option<Filter> {
    let number = |at: usize| Some(u32::from_ne_bytes(message.get(at..at + 4)?.try_into().ok()?));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
    let handle = number(8)?;
    if handle == 0 || number(4)? != interface.cast_unsigned() {
        return None;
    }
    let attributes = message.get(TCMSG_LEN..)?;
    let kind = attribute(attributes, TCA_KIND).map(text).unwrap_or_default();
    let options = attribute(attributes, TCA_OPTIONS).filter(|_| kind == "bpf");
    let name = options.and_then(|options| attribute(options, TCA_BPF_NAME));
    let program = options.and_then(|options| attribute(options, TCA_BPF_ID));
    Some(Filter {
        handle,
        priority: number(16)? >> 16,
        what: match name {
            Some(name) => format!("{kind} {}", text(name)),
            None => kind,
        },
        program: program.and_then(|id| Some(u32::from_ne_bytes(id.try_into().ok()?))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An attribute with this content.
    fn attribute_of(kind: u16, content: &[u8]) -> Vec<u8> {
        let mut bytes = u16::try_from(content.len() + 4).unwrap().to_ne_bytes().to_vec();
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(content);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }

    #[test]
    fn a_filter_is_read_and_what_is_cut_short_is_not() {
        let options = [
            attribute_of(8, &[1, 0, 0, 0]),
            attribute_of(TCA_BPF_ID, &[7, 1, 0, 0]),
            attribute_of(TCA_BPF_NAME, b"kw_tc:[7]\0"),
        ]
        .concat();
        let mut message = vec![0; 4];
        for word in [3, OWNED | 1, PARENT_INGRESS, 1 << 16 | 3] {
            message.extend(u32::to_ne_bytes(word));
        }
        message.extend(attribute_of(TCA_KIND, b"bpf\0"));
        message.extend(attribute_of(TCA_OPTIONS | 0x8000, &options));
        let expected = Filter {
            handle: OWNED | 1,
            priority: 1,
            what: "bpf kw_tc:[7]".to_owned(),
            program: Some(263),
        };
        assert_eq!(filter(&message, 3), Some(expected));
        assert_eq!(filter(&message, 4), None);
        for len in 0..message.len() {
            let cut = filter(&message[..len], 3);
            assert!(cut.is_none_or(|found| found.what.len() < "bpf kw_tc:[7]".len()), "{len}");
        }
        assert_eq!(next(&[3, 0, 0, 0], 2), None, "an attribute shorter than its head");
    }

    #[test]
    fn a_name_is_held_by_one() {
        let name = format!("keyway-test-{}", std::process::id());
        let held = hold(&name).unwrap();
        assert_eq!(hold(&name).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(held);
        hold(&name).unwrap();
    }
}
