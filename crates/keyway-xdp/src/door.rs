//! Loading the program, and attaching it to interfaces.
//!
//! Loading needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, or root. Dropping an [`Attached`] detaches the program. A process that
//! dies leaves its filters on the interface. They answer nothing once the lease has run out, and the next [`Door::attach`] on the
//! interface removes them, unless they translate for TCP connections that are still open.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use libbpf_rs::{ErrorKind, Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, PrintLevel, ProgramInput, set_print};

use libbpf_rs::query::{ProgInfoIter, ProgInfoQueryOptions, ProgramInfo};

use crate::config::{Config, Settings, TooManyNetworks, Verdict};
use crate::filters::{self, Filter, Filters, LOOPBACK};
use crate::hot::HotSet;
use crate::maps::{self, Maps};
use crate::tcp;
use nix::net::if_::if_nameindex;

/// The compiled program. Aligned, because it is an ELF file that libbpf reads in place.
static PROGRAM: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/door.bpf.o")));

/// The kernel's BTF: where its structures have their fields.
const BTF: &str = "/sys/kernel/btf/vmlinux";
/// How long connections that are reset may take to end, and how often that is looked at.
const RESET_MAX: Duration = Duration::from_secs(5);
const RESET_PAUSE: Duration = Duration::from_millis(5);
/// Of its programs those for TCP; the others are for UDP.
const TCP_PROGRAMS: [&str; 3] = ["kw_tcp_in", "kw_tcp_out", maps::TRANSLATED];

#[repr(align(8))]
struct Aligned<T: ?Sized>(T);

/// A loaded program and its hot set.
pub struct Door {
    object: Object,
    maps: Maps,
    /// UDP, and TCP
    serves: (bool, bool),
}

/// The program on an interface; dropping this detaches it.
#[derive(Debug)]
pub struct Attached {
    interface: i32,
    filters: Vec<Filters>,
}

/// Why the program cannot be loaded, attached or pinned.
#[derive(Debug)]
pub enum DoorError {
    /// the settings are not possible
    Settings(TooManyNetworks),
    /// this process may not load programs
    NotPermitted,
    /// the kernel is too old for the program
    TooOld(String),
    /// the kernel does not say where its structures have their fields
    NoTypes,
    /// nothing is pinned in this folder
    NothingPinned(PathBuf),
    /// a program is pinned in this folder already
    AlreadyPinned(PathBuf),
    /// the program pinned in this folder was loaded with other settings
    OtherSettings(PathBuf),
    /// another process uses the program pinned in this folder
    InUse(PathBuf),
    /// this folder is not in a BPF file system
    NoBpfFileSystem(PathBuf),
    /// the program translates the sequence numbers of this many TCP connections
    Translating(usize),
    /// the kernel refused this step, with this message
    Kernel(&'static str, String),
}

impl Door {
    /// Loads the program. It is not attached, and it answers nothing until its lease is renewed.
    pub fn load(settings: &Settings) -> Result<Self, DoorError> {
        Self::load_from(&PROGRAM.0, settings)
    }

    fn load_from(program: &[u8], settings: &Settings) -> Result<Self, DoorError> {
        let config = Config::new(settings).map_err(DoorError::Settings)?;
        check_kernel()?;
        if !Path::new(BTF).exists() {
            return Err(DoorError::NoTypes);
        }
        // Otherwise libbpf writes to standard error.
        set_print(Some((PrintLevel::Warn, |_, text| log::debug!("libbpf: {}", text.trim_end()))));
        let refused = |what| move |error: libbpf_rs::Error| DoorError::Kernel(what, format!("{error:#}"));
        let mut open = ObjectBuilder::default()
            .open_memory(program)
            .map_err(refused("opening the program"))?;
        let buckets = config.bucket_mask + 1;
        let (udp, tcp) = config.serves();
        for mut program in open.progs_mut() {
            let is_for_tcp = TCP_PROGRAMS.iter().any(|name| program.name() == *name);
            program.set_autoload(if is_for_tcp { tcp } else { udp });
        }
        for mut map in open.maps_mut() {
            let name = map.name().to_string_lossy().into_owned();
            match name.as_str() {
                "kw_index" => map.set_max_entries(buckets).map_err(refused("sizing the index"))?,
                "kw_pages" => map.set_max_entries(config.pages).map_err(refused("sizing the pages"))?,
                ".rodata.config" => {
                    let section = map.initial_value_mut().unwrap_or_default();
                    let bytes = config.bytes();
                    if section.len() != bytes.len() {
                        let lens = format!("{} bytes there, {} here", section.len(), bytes.len());
                        return Err(DoorError::Kernel("configuring the program", lens));
                    }
                    section.copy_from_slice(&bytes);
                }
                _ => {}
            }
        }
        let object = open.load().map_err(|error| match error.kind() {
            // Two error numbers become this kind: EPERM (1) for missing capabilities, EACCES (13) from the verifier. Only the text shows which.
            ErrorKind::PermissionDenied if format!("{error:#}").contains("(os error 1)") => DoorError::NotPermitted,
            ErrorKind::PermissionDenied => refused(
                "the kernel's verifier refuses the program, as it does without CAP_PERFMON (libbpf's words are logged)",
            )(error),
            _ => refused("loading the program")(error),
        })?;
        let maps = Maps::new(
            &config,
            |name| handle(&object, name),
            |connections| iterate(&object, connections.as_fd()),
        )?;
        Ok(Self {
            object,
            maps,
            serves: (udp, tcp),
        })
    }

    /// The hot set that the program reads.
    pub fn hot(&self) -> HotSet<'_> {
        self.maps.hot()
    }

    /// Its maps.
    pub fn maps(&self) -> &Maps {
        &self.maps
    }

    /// Attaches the program to the interface with this number, beside other programs. Removes the filters of processes that have died.
    pub fn attach(&self, interface: i32) -> Result<Attached, DoorError> {
        let filters = self.hang(interface, false, &|| {})?;
        Ok(Attached { interface, filters })
    }

    /// Attaches it again, to the interface that now has this number, after the filters of `lost` have vanished. Meanwhile segments of
    /// connections whose numbers are translated have passed as they were, and nobody can say what their ends made of them: those of that
    /// interface are reset.
    pub fn attach_again(&self, interface: i32, lost: i32) -> Result<Attached, DoorError> {
        let end_translated = || {
            let reset = self.maps.translated().map(|translated| tcp::reset(translated, Some(lost)));
            match reset.transpose() {
                Ok(None | Some(0)) => {}
                Ok(Some(count)) => log::warn!(
                    "the kernel door has reset {count} TCP connections that it had answered: what passed while its program was gone may \
                     have had wrong numbers"
                ),
                Err(error) => log::warn!("{error}"),
            }
        };
        let filters = self.hang(interface, false, &end_translated)?;
        Ok(Attached { interface, filters })
    }

    /// One filter each for UDP and TCP, as far as they are served. `between` is called when what the sockets send by TCP is translated and what
    /// arrives is not yet.
    fn hang(&self, interface: i32, pinned: bool, between: &dyn Fn()) -> Result<Vec<Filters>, DoorError> {
        let (udp, tcp) = self.serves;
        // What arrives on `lo` was sent by this host, so there is nothing to learn for UDP.
        let pairs = [
            (udp, "kw_tc", "kw_sent", interface == LOOPBACK),
            (tcp, "kw_tcp_in", "kw_tcp_out", false),
        ];
        let is_needed = |filter: &Filter| self.is_needed(filter);
        let served = pairs.into_iter().filter(|(is_served, ..)| *is_served);
        served
            .map(|(_, ingress, egress, only_ingress)| {
                let nothing: &dyn Fn() = &|| {};
                let between = if ingress == "kw_tcp_in" { between } else { nothing };
                let (ingress, egress) = (self.program(ingress)?, self.program(egress)?);
                let egress = (!only_ingress).then(|| egress.as_fd());
                Filters::attach(interface, ingress.as_fd(), egress, pinned, &is_needed, between)
                    .map_err(|error| DoorError::Kernel("attaching to the interface", error))
            })
            .collect()
    }

    /// Whether a filter that a dead process has left still translates for connections, as far as this process can tell.
    fn is_needed(&self, filter: &Filter) -> bool {
        if !filter.what.contains("kw_tcp") {
            return false;
        }
        let count = translated_by(&self.object, filter).and_then(|link| link.map_or(Ok(0), |link| tcp::count(&link)));
        match count {
            Ok(0) => {
                if let Err(error) = end_closed_by(filter) {
                    log::warn!("{error}");
                }
                false
            }
            Ok(count) => {
                log::info!(
                    "a server that has ended left {count} connections whose numbers are translated; its program stays for them"
                );
                true
            }
            Err(error) => {
                log::warn!("the program of a server that has ended stays: {error}");
                true
            }
        }
    }

    /// To be called after the program has left its interfaces: removes what is left of connections that the server has closed, if their
    /// numbers were translated. Returns how many there were.
    pub fn end_closed(&self) -> Result<usize, DoorError> {
        let (_, tcp) = self.serves;
        if !tcp {
            return Ok(0);
        }
        end_closed(&handle(&self.object, maps::CLOSING)?, &handle(&self.object, maps::CONFIG)?)
    }

    /// How many packets got each verdict since the program was loaded, summed over all CPUs.
    pub fn counts(&self) -> Result<Vec<(Verdict, u64)>, DoorError> {
        let counts = self.maps.counts()?.per_cpu()?;
        Ok(counts
            .into_iter()
            .map(|(verdict, counts)| (verdict, counts.iter().sum()))
            .collect())
    }

    /// Pins the program and its maps in this folder, which it creates, and makes this user their owner.
    pub fn pin(&self, folder: &Path, user: Option<u32>) -> Result<(), DoorError> {
        maps::make_folder(folder)?;
        let refused = |error: String| DoorError::Kernel("pinning the program", error);
        let pinned = || -> Result<(), DoorError> {
            let (_, tcp) = self.serves;
            if tcp {
                let path = maps::pin_of(folder, maps::TRANSLATED);
                let mut link = iterate(&self.object, handle(&self.object, "kw_connections")?.as_fd())?;
                link.pin(&path)
                    .map_err(|error| refused(format!("{}: {error:#}", path.display())))?;
                chown(&path, user, None).map_err(|error| refused(format!("{}: {error}", path.display())))?;
            }
            let for_tcp = maps::FOR_TCP.into_iter().filter(|_| tcp);
            for name in maps::SHARED.into_iter().chain(for_tcp) {
                let path = maps::pin_of(folder, name);
                let mut map = handle(&self.object, name)?;
                map.pin(&path)
                    .map_err(|error| refused(format!("{}: {error:#}", path.display())))?;
                chown(&path, user, None).map_err(|error| refused(format!("{}: {error}", path.display())))?;
            }
            chown(folder, user, None).map_err(|error| refused(format!("{}: {error}", folder.display())))
        };
        pinned().inspect_err(|_| drop(unpin(folder, false)))
    }

    /// Attaches the program to the TC ingress of an interface permanently: it stays after this process ends, and answers nothing until a process
    /// renews its lease. The folder in which it is pinned records the interface.
    pub fn attach_for_good(&self, folder: &Path, interface: i32) -> Result<(), DoorError> {
        let mut filters = self.hang(interface, true, &|| {})?;
        for filter in &filters {
            let mark = maps::interface_folder(folder, interface, filter.handle());
            if let Err(error) = std::fs::create_dir(&mark) {
                filters.drain(..).for_each(Filters::remove);
                return Err(DoorError::Kernel(
                    "pinning the program",
                    format!("{}: {error}", mark.display()),
                ));
            }
        }
        Ok(())
    }

    /// Runs the TC program on a frame, as if it had arrived on `lo` (`BPF_PROG_TEST_RUN`). Returns its action, the frame after it,
    /// and the mean time of `repeat` runs, ns. With more than 1, each run gets the frame as the run before left it.
    pub fn try_frame(&self, frame: &[u8], repeat: u32) -> Result<(i32, Vec<u8>, u32), DoorError> {
        let program = self.program("kw_tc")?;
        let mut after = vec![0; 4096];
        let input = ProgramInput {
            data_in: Some(frame),
            data_out: Some(&mut after),
            repeat,
            ..ProgramInput::default()
        };
        let output = program
            .test_run(input)
            .map_err(|error| DoorError::Kernel("running the program on a frame", format!("{error:#}")))?;
        let len = output.data.map_or(0, |data| data.len());
        let (action, took_ns) = (output.return_value.cast_signed(), output.duration.as_nanos());
        after.truncate(len);
        Ok((action, after, u32::try_from(took_ns).unwrap_or(u32::MAX)))
    }

    /// Instructions that the verifier processed for the program that needed most. The kernel's limit is a million.
    pub fn instructions_verified(&self) -> Option<u32> {
        let ours = |info: &ProgramInfo| info.name.as_encoded_bytes().starts_with(b"kw_");
        ProgInfoIter::default().filter(ours).map(|info| info.verified_insns).max()
    }

    fn program(&self, name: &'static str) -> Result<libbpf_rs::ProgramMut<'_>, DoorError> {
        self.object
            .progs_mut()
            .find(|program| program.name() == name)
            .ok_or_else(|| DoorError::Kernel("finding a program", name.to_owned()))
    }
}

fn handle(object: &Object, name: &'static str) -> Result<MapHandle, DoorError> {
    let map = object
        .maps()
        // In the library, a section's name follows the program's name.
        .find(|map| map.name() == name || (name == maps::CONFIG && map.name().as_encoded_bytes().ends_with(name.as_bytes())))
        .ok_or_else(|| DoorError::Kernel("finding a map", name.to_owned()))?;
    MapHandle::try_from(&map).map_err(|error| DoorError::Kernel("opening a map", format!("{name}: {error:#}")))
}

/// An iterator over the connections in this map of a program.
fn iterate(object: &Object, connections: BorrowedFd<'_>) -> Result<Link, DoorError> {
    let program = object.progs_mut().find(|program| program.name() == maps::TRANSLATED);
    let program = program.ok_or_else(|| DoorError::Kernel("finding a program", maps::TRANSLATED.to_owned()))?;
    program
        .attach_iter(connections)
        .map_err(|error| DoorError::Kernel("making the iterator over connections", format!("{error:#}")))
}

/// The iterator over the connections for which the program of this filter translates; `None`: it has none.
fn translated_by(object: &Object, filter: &Filter) -> Result<Option<Link>, DoorError> {
    let connections = maps_of(filter)?.into_iter().find(|map| map.name() == "kw_connections");
    connections.map(|map| iterate(object, map.as_fd())).transpose()
}

/// The maps of the program of a filter.
fn maps_of(filter: &Filter) -> Result<Vec<MapHandle>, DoorError> {
    let program = ProgInfoIter::with_query_opts(ProgInfoQueryOptions::default().include_map_ids(true))
        .find(|program| Some(program.id) == filter.program)
        .ok_or_else(|| DoorError::Kernel("looking at a program that is left", "it has gone".to_owned()))?;
    let maps = program
        .map_ids
        .into_iter()
        .map(MapHandle::from_map_id)
        .collect::<Result<_, _>>();
    maps.map_err(|error: libbpf_rs::Error| DoorError::Kernel("looking at a program that is left", format!("{error:#}")))
}

/// See [`Door::end_closed`]; of a program with these maps.
fn end_closed(closing: &MapHandle, config: &MapHandle) -> Result<usize, DoorError> {
    let bytes = config.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY);
    let bytes = bytes.map_err(|error| DoorError::Kernel("reading a program's settings", format!("{error:#}")))?;
    let local = bytes.and_then(|bytes| Config::tcp_address(&bytes));
    local.map_or(Ok(0), |local| tcp::end_closed(closing, local))
}

/// Removes what is left of connections that the server has closed, of the program of this filter. Returns how many there were.
fn end_closed_by(filter: &Filter) -> Result<usize, DoorError> {
    let (mut closing, mut config) = (None, None);
    for map in maps_of(filter)? {
        match map.name().to_str() {
            Some(maps::CLOSING) => closing = Some(map),
            Some(maps::CONFIG) => config = Some(map),
            _ => {}
        }
    }
    closing
        .zip(config)
        .map_or(Ok(0), |(closing, config)| end_closed(&closing, &config))
}

/// Ends the connections for which programs that are left on this network namespace's interfaces translate, and removes these
/// programs: how many connections there were. Programs of servers that run are not touched.
pub fn reset_left_behind() -> Result<usize, DoorError> {
    // Only its iterator is used.
    let door = Door::load(&Settings {
        address: Ipv4Addr::LOCALHOST.into(),
        udp_port: None,
        tcp_port: Some(1),
        allow: Vec::new(),
        memory: 0,
        rate: None,
    })?;
    let interfaces = if_nameindex().map_err(|error| DoorError::Kernel("listing the interfaces", error.to_string()))?;
    let ended = Cell::new(0);
    let failure = Cell::new(None);
    let is_needed = |filter: &Filter| {
        let reset = translated_by(&door.object, filter).and_then(|link| link.map_or(Ok(0), |link| reset(&link)));
        match reset {
            Ok(count) => ended.set(ended.get() + count),
            Err(error) => failure.set(Some(error)),
        }
        false
    };
    for interface in &interfaces {
        filters::sweep(interface.index().cast_signed(), &is_needed);
    }
    failure.take().map_or(Ok(ended.get()), Err)
}

/// Ends the connections that the iterator lists, and waits until they have ended: how many there were.
fn reset(translated: &Link) -> Result<usize, DoorError> {
    let (ended, until) = (tcp::reset(translated, None)?, Instant::now() + RESET_MAX);
    loop {
        match tcp::count(translated)? {
            0 => return Ok(ended),
            left if Instant::now() > until => return Err(DoorError::Translating(left)),
            _ => std::thread::sleep(RESET_PAUSE),
        }
    }
}

/// Detaches the program that is pinned in this folder from its interfaces, and removes the folder. An interface that is gone is skipped.
///
/// A program that translates for TCP connections stays, silent, and this fails with [`DoorError::Translating`]; with `resets` these
/// connections are ended first. Returns how many there were.
pub fn unpin(folder: &Path, resets: bool) -> Result<usize, DoorError> {
    let refused = |error: io::Error| DoorError::Kernel("removing the pinned program", format!("{}: {error}", folder.display()));
    if !folder.exists() {
        return Err(DoorError::NothingPinned(folder.to_owned()));
    }
    let mut ended = 0;
    if maps::pin_of(folder, maps::TRANSLATED).exists() {
        let translated = maps::translated_at(folder)?;
        maps::silence(folder)?;
        match tcp::count(&translated)? {
            0 => {}
            _ if resets => ended = reset(&translated)?,
            left => return Err(DoorError::Translating(left)),
        }
    }
    for (interface, handle) in maps::filters_at(folder) {
        Filters::pinned(interface, handle).remove();
    }
    // One that an older version has pinned has no such file.
    if maps::pin_of(folder, maps::CLOSING).exists() {
        end_closed(&maps::map_at(folder, maps::CLOSING)?, &maps::map_at(folder, maps::CONFIG)?)?;
    }
    for entry in std::fs::read_dir(folder).map_err(refused)?.flatten() {
        let path = entry.path();
        let removed = if path.is_dir() {
            std::fs::remove_dir(&path)
        } else {
            std::fs::remove_file(&path)
        };
        removed.map_err(refused)?;
    }
    std::fs::remove_dir(folder).map_err(refused)?;
    Ok(ended)
}

impl Attached {
    /// Other programs and filters that see packets from this interface, as text.
    pub fn others(&self) -> Vec<String> {
        let own: Vec<u32> = self.filters.iter().map(Filters::handle).collect();
        filters::others(self.interface, &own)
    }

    /// The number of the interface.
    pub fn interface(&self) -> i32 {
        self.interface
    }

    /// Whether the program is still there. Its filters disappear with the interface, and with clsact.
    pub fn is_there(&self) -> io::Result<bool> {
        are_there(&self.filters)
    }

    /// Leaves the program on the interface: it goes on translating for the connections that it has answered for. The next server there
    /// removes it when the last of them has ended.
    pub fn leave(mut self) {
        self.filters.clear();
    }
}

/// Where a pinned program was attached. Looking there needs no capability.
#[derive(Debug)]
pub struct PinnedFilters(Vec<Filters>);

impl PinnedFilters {
    /// Those of the program that is pinned in this folder.
    pub fn of(folder: &Path) -> Self {
        let filters = maps::filters_at(folder).into_iter();
        Self(
            filters
                .map(|(interface, handle)| Filters::pinned(interface, handle))
                .collect(),
        )
    }

    /// The numbers of the interfaces, and whether the program is still there.
    pub fn interfaces(&self) -> io::Result<BTreeMap<i32, bool>> {
        let mut found = BTreeMap::new();
        for filters in &self.0 {
            let is_there = filters.are_there()?;
            *found.entry(filters.interface()).or_insert(true) &= is_there;
        }
        Ok(found)
    }
}

fn are_there(filters: &[Filters]) -> io::Result<bool> {
    for filter in filters {
        if !filter.are_there()? {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Drop for Attached {
    fn drop(&mut self) {
        self.filters.drain(..).for_each(Filters::remove);
    }
}

/// The capabilities that loading needs and this process does not have (capabilities(7)).
fn missing_capabilities() -> Vec<&'static str> {
    const SYS_ADMIN: u32 = 21;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let held = line.and_then(|line| u64::from_str_radix(line.trim(), 16).ok()).unwrap_or(0);
    let has = |bit: u32| held >> bit & 1 != 0;
    [("CAP_BPF", 39, true), ("CAP_NET_ADMIN", 12, false), ("CAP_PERFMON", 38, true)]
        .into_iter()
        .filter(|(_, bit, by_admin)| !(has(*bit) || (*by_admin && has(SYS_ADMIN))))
        .map(|(name, ..)| name)
        .collect()
}

/// The capabilities that a process which may not load programs lacks, as the end of a sentence.
fn lacks() -> String {
    match missing_capabilities().as_slice() {
        [] => "; this process has them, but not in the machine's first user namespace".to_owned(),
        missing => format!("; this process lacks {}", missing.join(", ")),
    }
}

/// Refuses kernels that lack a feature that the program uses.
fn check_kernel() -> Result<(), DoorError> {
    let release = nix::sys::utsname::uname().map_or_else(|_| String::new(), |name| name.release().to_string_lossy().into_owned());
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse::<u32>().unwrap_or(0));
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if version < (6, 1) {
        Err(DoorError::TooOld(release))
    } else {
        Ok(())
    }
}

impl fmt::Display for DoorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Settings(error) => error.fmt(f),
            Self::NotPermitted => {
                f.write_str("the kernel door: loading a program needs root, or CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON")?;
                f.write_str(&lacks())?;
                f.write_str(": become root, or let root do this step once (`keyway kernel attach --user USER`), and start the server with --kernel-pinned")
            }
            Self::TooOld(release) => write!(f, "the kernel door needs Linux 6.1 or newer, and this is {release}"),
            Self::NoTypes => write!(
                f,
                "the kernel door needs {BTF}, which a kernel with CONFIG_DEBUG_INFO_BTF has"
            ),
            Self::NothingPinned(folder) => write!(
                f,
                "the kernel door: nothing is pinned at {}: use `keyway kernel attach` first",
                folder.display()
            ),
            Self::AlreadyPinned(folder) => write!(
                f,
                "the kernel door: something is already pinned at {}: `keyway kernel detach` removes it",
                folder.display()
            ),
            Self::OtherSettings(folder) => write!(
                f,
                "the kernel door: what is pinned at {} was attached with other settings (addresses, TCP, networks, memory or rate): \
                 attach it again with those of the server",
                folder.display()
            ),
            Self::InUse(folder) => write!(
                f,
                "the kernel door: another server uses the program that is pinned at {}",
                folder.display()
            ),
            Self::NoBpfFileSystem(folder) => write!(
                f,
                "the kernel door: {} is not in a BPF file system: choose a folder below /sys/fs/bpf, or mount one on a new, empty folder (`mkdir DIR && mount -t \
                 bpf bpf DIR`) and name one below that",
                folder.display()
            ),
            Self::Translating(count) => write!(
                f,
                "the kernel door: its program answers nothing any more, but translates the sequence numbers of {count} TCP connections, \
                 so it stays until they have ended: detach it again later, or end them with `keyway kernel detach --reset`"
            ),
            Self::Kernel(what, error) => write!(f, "the kernel door: {what}: {error}"),
        }
    }
}

impl std::error::Error for DoorError {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{IpAddr, Ipv6Addr};

    /// The program as it is on processors that do not load in the program's order.
    static REORDERED: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/door.reordered.bpf.o")));
    /// `BPF_STX | BPF_ATOMIC | BPF_DW`, and `BPF_ADD | BPF_FETCH` (RFC 9669, sections 4.3 and 5.3).
    const ATOMIC: u8 = 0xDB;
    const FETCH_AND_ADD: u32 = 0x01;

    fn barriers(program: &[u8]) -> usize {
        let is_barrier = |instruction: &[u8]| instruction[0] == ATOMIC && instruction[4..] == FETCH_AND_ADD.to_le_bytes();
        program.chunks_exact(8).filter(|instruction| is_barrier(instruction)).count()
    }

    #[test]
    fn the_program_has_barriers_where_loads_may_be_reordered() {
        let own = barriers(&PROGRAM.0);
        // Around each copy that is read, after the lease, and after the word of a connection at rest; functions are inlined.
        let all = barriers(&REORDERED.0);
        assert!(all >= 8, "{all}");
        assert_eq!(own, if cfg!(target_arch = "x86_64") { 0 } else { all });
    }

    #[test]
    fn the_verifier_accepts_the_program_with_barriers() {
        if !nix::unistd::geteuid().is_root() {
            return harness::skip("the program with barriers", "this is not root, which may load programs");
        }
        for address in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
            let settings = Settings {
                address,
                udp_port: Some(1),
                tcp_port: Some(1),
                allow: Vec::new(),
                memory: 1 << 20,
                rate: None,
            };
            let loaded = Door::load_from(&REORDERED.0, &settings);
            assert!(loaded.is_ok(), "{:?}", loaded.err());
        }
    }
}
