//! The same-machine bypass: loading its programs (`src/bpf/bypass.bpf.c`), and attaching them to a cgroup.
//!
//! Loading needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, or root. A server has a [`Bypass`] of its own, with its own maps: it joins only
//! connections that its own listening sockets accept ([`Bypass::serve`]). Dropping it, or the death of the process, takes the programs off
//! the cgroup, so no further connection joins. Connections that have joined keep what they need until they close.

use std::fmt;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use libbpf_rs::{ErrorKind, Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel, set_print};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

use crate::door::{Aligned, BTF, lacks};

/// The compiled programs. Aligned, because they are an ELF file that libbpf reads in place.
static PROGRAMS: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/bypass.bpf.o")));

/// `KW_QUEUED_MAX`: most bytes that have been handed over and not read when another message is handed over
pub const QUEUED_MAX: usize = 1 << 20;
/// `sizeof(struct kw_end)`
const END_SIZE: usize = 128;
/// `KW_LISTENER`, the role of a listening socket
const LISTENER: u32 = 2;
/// Length of the trial's messages.
const TRIAL_LEN: usize = 64 << 10;
/// Deadline of each step of the trial; they take microseconds.
const TRIAL_MAX: Duration = Duration::from_secs(10);

/// The programs on a cgroup.
#[derive(Debug)]
pub struct Bypass {
    _links: Vec<Link>,
    sockets: MapHandle,
    ends: MapHandle,
    ports: MapHandle,
    counts: MapHandle,
    /// cookie of this process's network namespace
    namespace: u64,
    /// what the trial has counted
    trial: Counts,
}

/// What the programs have counted since they were loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// connections of which both ends joined
    pub connections: u64,
    /// of these, those that have closed since
    pub closed: u64,
    /// messages that were handed over
    pub messages: u64,
    /// bytes that were handed over
    pub bytes: u64,
    /// messages that took TCP because not all that was sent before by TCP is known to have been read
    pub behind: u64,
    /// messages that took TCP because the other end has not read enough
    pub full: u64,
}

/// Why there is no bypass.
#[derive(Debug)]
pub enum BypassError {
    /// this folder cannot be opened
    NoCgroup(PathBuf, io::Error),
    /// this folder is not in a cgroup2 file system
    NotCgroup2(PathBuf),
    /// this process may not load programs
    NotPermitted,
    /// the kernel lacks this
    Lacking(String),
    /// another program has the cgroup for itself
    Taken(PathBuf),
    /// connections of this process do not reach the programs on this cgroup
    Outside(PathBuf),
    /// the kernel refused this step, with this message
    Kernel(&'static str, String),
}

impl Bypass {
    /// Loads the programs, puts them on the cgroup, and tries them on a connection of this process with itself. `connections_max` is
    /// the number of connections that have room; `refuses_kernel_tls` is for servers with TLS.
    ///
    /// # Errors
    ///
    /// [`BypassError`]; nothing is attached then.
    pub fn start(cgroup: &Path, connections_max: u32, refuses_kernel_tls: bool) -> Result<Self, BypassError> {
        let folder = File::open(cgroup).map_err(|error| BypassError::NoCgroup(cgroup.to_owned(), error))?;
        if !statfs(cgroup).is_ok_and(|found| found.filesystem_type() == CGROUP2_SUPER_MAGIC) {
            return Err(BypassError::NotCgroup2(cgroup.to_owned()));
        }
        let mut object = load(connections_max, refuses_kernel_tls)?;
        let map = |name: &str| map_of(&object, name);
        let mut bypass = Self {
            sockets: map("kw_sockets")?,
            ends: map("kw_ends")?,
            ports: map("kw_ports")?,
            counts: map("kw_bypassed")?,
            _links: Vec::new(),
            namespace: 0,
            trial: Counts::default(),
        };
        bypass._links = bypass.attach(&mut object, cgroup, &folder)?;
        bypass.try_out(cgroup)?;
        Ok(bypass)
    }

    fn attach(&self, object: &mut Object, cgroup: &Path, folder: &File) -> Result<Vec<Link>, BypassError> {
        let mut links = Vec::new();
        for program in object.progs_mut() {
            if !program.autoload() {
                continue;
            }
            if program.name() == "kw_sent" {
                program
                    .attach_sockmap(self.sockets.as_fd().as_raw_fd())
                    .map_err(|error| BypassError::Kernel("attaching to the table of sockets", format!("{error:#}")))?;
                continue;
            }
            let link = program
                .attach_cgroup(folder.as_raw_fd())
                .map_err(|error| match error.kind() {
                    ErrorKind::PermissionDenied => BypassError::Taken(cgroup.to_owned()),
                    _ => BypassError::Kernel("attaching to the cgroup", format!("{error:#}")),
                })?;
            links.push(link);
        }
        Ok(links)
    }

    /// From now on local connections that this listening socket accepts are bypassed, if both ends are in the cgroup.
    ///
    /// # Errors
    ///
    /// [`BypassError::Kernel`]
    pub fn serve(&self, listener: BorrowedFd<'_>, port: u16) -> Result<(), BypassError> {
        let mut end = [0; END_SIZE];
        end[..4].copy_from_slice(&LISTENER.to_ne_bytes());
        let refused = |error: libbpf_rs::Error| BypassError::Kernel("marking a listening socket", format!("{error:#}"));
        self.ends
            .update(&listener.as_raw_fd().to_ne_bytes(), &end, MapFlags::ANY)
            .map_err(refused)?;
        if self.namespace != 0 {
            self.ports
                .update(&port_key(self.namespace, port), &1_u32.to_ne_bytes(), MapFlags::ANY)
                .map_err(refused)?;
        }
        Ok(())
    }

    /// What the programs have counted, on all CPUs together.
    ///
    /// # Errors
    ///
    /// [`BypassError::Kernel`]
    pub fn counts(&self) -> Result<Counts, BypassError> {
        let mut sums = [0; 6];
        for (sum, key) in sums.iter_mut().zip(0_u32..) {
            let values = self
                .counts
                .lookup_percpu(&key.to_ne_bytes(), MapFlags::ANY)
                .map_err(|error| BypassError::Kernel("reading the counters", format!("{error:#}")))?;
            let count = |value: Vec<u8>| value.try_into().map_or(0, u64::from_ne_bytes);
            *sum = values.unwrap_or_default().into_iter().map(count).sum();
        }
        let [connections, closed, messages, bytes, behind, full] = sums;
        let trial = &self.trial;
        Ok(Counts {
            connections: connections.saturating_sub(trial.connections),
            closed: closed.saturating_sub(trial.closed),
            messages: messages.saturating_sub(trial.messages),
            bytes: bytes.saturating_sub(trial.bytes),
            behind: behind.saturating_sub(trial.behind),
            full: full.saturating_sub(trial.full),
        })
    }

    /// Whether the kernel does all that the bypass relies on, and this process's sockets are in the cgroup.
    fn try_out(&mut self, cgroup: &Path) -> Result<(), BypassError> {
        let failed = |error: io::Error| BypassError::Kernel("trying it on a connection of this process", error.to_string());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .or_else(|_| TcpListener::bind((Ipv6Addr::LOCALHOST, 0)))
            .map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        self.serve(listener.as_fd(), address.port())?;
        // The first connection shows which network namespace this is: the program enters the port.
        drop(ends_of(&listener, address).map_err(failed)?);
        let key = self
            .ports
            .keys()
            .find(|key| key[8..] == u64::from(address.port()).to_ne_bytes());
        let Some(key) = key else {
            return Err(BypassError::Outside(cgroup.to_owned()));
        };
        let (mut client, mut server) = ends_of(&listener, address).map_err(failed)?;
        let (message, mut received) = (vec![b'x'; TRIAL_LEN], [0; 1]);
        let mut exchange = || -> io::Result<()> {
            // Until more is unread than may be. Each byte of the server tells how much is.
            for _ in 0..QUEUED_MAX / TRIAL_LEN + 2 {
                client.write_all(&message)?;
                server.write_all(b"y")?;
                client.read_exact(&mut received)?;
            }
            Ok(())
        };
        exchange().map_err(failed)?;
        let counts = self.counts()?;
        if counts.connections == 0 || counts.messages == 0 {
            return Err(BypassError::Outside(cgroup.to_owned()));
        }
        if counts.full == 0 {
            return Err(BypassError::Lacking(
                "to count handed-over data as memory of the socket (Linux 6.13, or an older one to which this was brought)"
                    .to_owned(),
            ));
        }
        // Both ends are closed here, or will be without another message.
        self.trial = Counts {
            closed: counts.connections,
            ..counts
        };
        self.namespace = key[..8].try_into().map_or(0, u64::from_ne_bytes);
        self.ports
            .delete(&key)
            .map_err(|error| BypassError::Kernel("forgetting the trial", format!("{error:#}")))
    }
}

/// Both ends of a new connection.
fn ends_of(listener: &TcpListener, address: SocketAddr) -> io::Result<(TcpStream, TcpStream)> {
    let client = TcpStream::connect_timeout(&address, TRIAL_MAX)?;
    let (server, _) = listener.accept()?;
    for end in [&client, &server] {
        end.set_read_timeout(Some(TRIAL_MAX))?;
        end.set_write_timeout(Some(TRIAL_MAX))?;
    }
    Ok((client, server))
}

/// `struct kw_port`
fn port_key(namespace: u64, port: u16) -> [u8; 16] {
    let mut key = [0; 16];
    key[..8].copy_from_slice(&namespace.to_ne_bytes());
    key[8..].copy_from_slice(&u64::from(port).to_ne_bytes());
    key
}

fn load(connections_max: u32, refuses_kernel_tls: bool) -> Result<Object, BypassError> {
    // Otherwise libbpf writes to standard error.
    set_print(Some((PrintLevel::Warn, |_, text| log::debug!("libbpf: {}", text.trim_end()))));
    if !Path::new(BTF).exists() {
        return Err(BypassError::Lacking(format!("{BTF} (CONFIG_DEBUG_INFO_BTF)")));
    }
    let refused = |what| move |error: libbpf_rs::Error| BypassError::Kernel(what, format!("{error:#}"));
    let mut open: OpenObject = ObjectBuilder::default()
        .open_memory(&PROGRAMS.0)
        .map_err(refused("opening the programs"))?;
    for mut map in open.maps_mut() {
        let entries = match map.name().to_str() {
            Some("kw_sockets") => connections_max.saturating_mul(2),
            Some("kw_pairs") => connections_max,
            _ => continue,
        };
        map.set_max_entries(entries.max(2)).map_err(refused("sizing a table"))?;
    }
    for mut program in open.progs_mut() {
        if program.name() == "kw_option" && !refuses_kernel_tls {
            program.set_autoload(false);
        }
    }
    open.load().map_err(|error| {
        let text = format!("{error:#}");
        match error.kind() {
            // Two error numbers become this kind: EPERM (1) for missing capabilities, EACCES (13) from the verifier. Only the text shows which.
            ErrorKind::PermissionDenied if text.contains("(os error 1)") => BypassError::NotPermitted,
            ErrorKind::PermissionDenied | ErrorKind::InvalidInput => {
                BypassError::Lacking(format!("what the programs use ({text})"))
            }
            _ => BypassError::Kernel("loading the programs", text),
        }
    })
}

fn map_of(object: &Object, name: &str) -> Result<MapHandle, BypassError> {
    let map = object.maps().find(|map| map.name() == name);
    let found = map.ok_or_else(|| BypassError::Kernel("finding a map", name.to_owned()))?;
    MapHandle::try_from(&found).map_err(|error| BypassError::Kernel("opening a map", format!("{name}: {error:#}")))
}

impl fmt::Display for BypassError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the local bypass: ")?;
        match self {
            Self::NoCgroup(path, error) => write!(f, "no cgroup {}: {error} (--local-bypass)", path.display()),
            Self::NotCgroup2(path) => write!(
                f,
                "{} is not a folder of a cgroup2 file system; version 1 has no such programs (mount -t cgroup2 none FOLDER, --local-bypass FOLDER)",
                path.display()
            ),
            Self::NotPermitted => {
                f.write_str("loading its programs needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON")?;
                f.write_str(&lacks())
            }
            Self::Lacking(what) => write!(f, "this kernel lacks {what}"),
            Self::Taken(path) => write!(
                f,
                "the kernel does not let programs be added to {}: one that is there wants to be alone, or CAP_NET_ADMIN is missing",
                path.display()
            ),
            Self::Outside(path) => write!(
                f,
                "connections of this process do not reach the programs on {}: start the server in that cgroup or below it (/proc/self/cgroup)",
                path.display()
            ),
            Self::Kernel(step, why) => write!(f, "{step}: {why}"),
        }
    }
}

impl std::error::Error for BypassError {}
