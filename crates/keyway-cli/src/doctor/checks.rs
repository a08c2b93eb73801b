//! What `keyway doctor` judges. Each check is a function of the facts, and knows no other one.

use std::path::Path;

use keyway_cache::server::{SHARED_MEMORY, USES};
use keyway_server::size_text;

use super::{Attached, Facts, Process};
use crate::numbers::counted;
use crate::plan::DESCRIPTORS_SPARE;
use crate::regions::user_name;

/// Evictions from which on their kind says something.
const EVICTIONS_MIN: u64 = 1_000;
/// Least size of a region for which huge pages are worth a word, bytes.
const HUGE_PAGES_MIN: u64 = 256 << 20;
/// What a server asks for each UDP socket, bytes.
const UDP_BUFFER: u64 = 4 << 20;
/// Seconds by which Unix time may be off: less is the rounding of two clocks.
const UNIX_OFF_MAX_S: u64 = 5;
/// Packets of the kernel door from which on their ways say something.
const PACKETS_MIN: u64 = 100;
/// Clock sources that are read without a system call (vdso(7)).
const FAST_CLOCKS: [&str; 5] = [
    "tsc",
    "kvm-clock",
    "arch_sys_counter",
    "hyperv_clocksource_tsc_page",
    "riscv_clocksource",
];

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Is {
    Ok,
    Unknown,
    Wrong,
}

impl Is {
    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Unknown => "unknown",
            Self::Wrong => "WRONG",
        }
    }
}

/// What a check has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) is: Is,
    pub(super) what: String,
    /// what to do; for everything that is wrong
    pub(super) remedy: Option<String>,
}

/// Without the name of the check.
type Found = (Is, String, Option<String>);

fn ok(what: impl Into<String>) -> Vec<Found> {
    vec![(Is::Ok, what.into(), None)]
}

fn unknown(what: impl Into<String>) -> Vec<Found> {
    vec![(Is::Unknown, what.into(), None)]
}

fn wrong(what: impl Into<String>, remedy: impl Into<String>) -> Found {
    (Is::Wrong, what.into(), Some(remedy.into()))
}

/// What is wrong, or else that all is well.
fn or_ok(wrong: Vec<Found>, what: impl Into<String>) -> Vec<Found> {
    if wrong.is_empty() { ok(what) } else { wrong }
}

type Check = fn(&Facts) -> Vec<Found>;

const CHECKS: [(&str, Check); 17] = [
    ("memory", memory),
    ("evictions", evictions),
    ("damage", damage),
    ("processes", processes),
    ("versions", versions),
    ("sessions", sessions),
    ("open-files", open_files),
    ("locked", locked),
    ("connections", connections),
    ("udp", udp),
    ("kernel-door", kernel_door),
    ("file-system", file_system),
    ("logout", logout),
    ("huge-pages", huge_pages),
    ("swap", swap),
    ("machine", machine),
    ("clock", clock),
];

/// All checks, in the order of their list; one may find several things.
pub(super) fn all(facts: &Facts) -> Vec<Finding> {
    let named = |(check, run): (&'static str, Check)| {
        run(facts)
            .into_iter()
            .map(move |(is, what, remedy)| Finding { check, is, what, remedy })
    };
    CHECKS.into_iter().flat_map(named).collect()
}

fn memory(facts: &Facts) -> Vec<Found> {
    let seen = &facts.seen;
    let of = |name: &str| {
        let found = USES.iter().zip(seen.segments).find(|(other, _)| **other == name);
        found.map_or(0, |(_, count)| count)
    };
    let in_use: u64 = seen.segments.iter().sum::<u64>() - of("withdrawn");
    let protected: usize = facts.processes.iter().map(|process| process.protects).sum();
    let protected = protected as u64;
    let mut found = Vec::new();
    if in_use > 0 && protected.saturating_mul(2) >= in_use {
        found.push(wrong(
            format!("{protected} of {in_use} segments are protected by calls in progress, and cannot be evicted"),
            "let these calls end (`keyway top`, PROTECTS, names the processes), or give the region more memory (--memory, cache_memlimit)",
        ));
    }
    let refused = facts.lately(|c| c.store_no_memory);
    if refused > 0 {
        found.push(wrong(
            format!(
                "{} in the last {} s, because none of its {} could be freed",
                counted(refused, "refused store"),
                facts.looked_s,
                size_text(seen.limit_bytes)
            ),
            "more memory (--memory, cache_memlimit); with --no-evict also shorter lifetimes",
        ));
    }
    or_ok(
        found,
        format!(
            "{} of {in_use} segments are free, {protected} protected; no store was refused in the last {} s, and {} since the region was made",
            of("free"),
            facts.looked_s,
            seen.counters.store_no_memory
        ),
    )
}

/// That items are evicted which no client has read is how a full cache works on a long tail of keys. What is wrong is that they come back.
fn evictions(facts: &Facts) -> Vec<Found> {
    let (evicted, came_back) = (facts.lately(|c| c.evictions), facts.lately(|c| c.ghost_hits));
    if evicted >= EVICTIONS_MIN && came_back >= evicted / 2 {
        return vec![wrong(
            format!(
                "in the last {} s {evicted} items were evicted, and {came_back} were stored again soon after an eviction: the memory of {} is \
                 too small for what clients read",
                facts.looked_s,
                size_text(facts.seen.limit_bytes)
            ),
            "`keyway memory` says what more memory would save (--memory, cache_memlimit); `keyway big --prefix :` shows which keys take it",
        )];
    }
    let c = &facts.seen.counters;
    ok(format!(
        "{evicted} items were evicted in the last {} s; since the region was made {}, of which {} had never been read and {} came back soon",
        facts.looked_s, c.evictions, c.evicted_unfetched, c.ghost_hits
    ))
}

fn damage(facts: &Facts) -> Vec<Found> {
    let all = facts.seen.counters.corrupt;
    match facts.lately(|c| c.corrupt) {
        0 => ok(format!(
            "no damaged item was met in the last {} s, and {all} since the region was made",
            facts.looked_s
        )),
        n => vec![wrong(
            format!("{n} damaged words or items were met in the last {} s", facts.looked_s),
            format!(
                "`keyway check {}` says what is damaged; if it is, stop the users and remove the file",
                facts.place
            ),
        )],
    }
}

/// A process, for people.
fn named(attached: &Attached) -> String {
    match &attached.process {
        Some(process) => format!("process {} ({})", attached.pid, process.name),
        None => format!("process {}", attached.pid),
    }
}

/// Of each process that can be examined, what is wrong with it.
fn each(facts: &Facts, wrong: impl Fn(&Attached, &Process) -> Option<Found>, well: &str) -> Vec<Found> {
    let known = facts.processes.iter().filter_map(|a| Some((a, a.process.as_ref()?)));
    let found: Vec<Found> = known.filter_map(|(attached, process)| wrong(attached, process)).collect();
    let hidden = facts.processes.iter().filter(|attached| attached.process.is_none()).count();
    match (found.is_empty(), hidden) {
        (true, 1..) => unknown(format!(
            "{hidden} of {} attached processes cannot be examined from here: ask as their user or as root, outside of containers",
            facts.processes.len()
        )),
        _ => or_ok(found, well),
    }
}

fn processes(facts: &Facts) -> Vec<Found> {
    let mut found: Vec<Found> = facts
        .processes
        .iter()
        .filter(|attached| attached.fenced > 0)
        .map(|attached| {
            wrong(
                format!(
                    "{} seems dead, and {} of its sessions are fenced: the memory that they may still write to is set aside",
                    named(attached),
                    attached.fenced
                ),
                format!(
                    "end it for certain (`kill -9 {}`): its memory is then used again",
                    attached.pid
                ),
            )
        })
        .collect();
    let stopped = each(
        facts,
        |attached, process| {
            (process.is_stopped && (attached.in_call > 0 || attached.protects > 0)).then(|| {
                wrong(
                    format!(
                        "{} is stopped within a call, and keeps {} segments from being evicted",
                        named(attached),
                        attached.protects
                    ),
                    format!("let it go on (`kill -CONT {}`, or end its debugger), or end it", attached.pid),
                )
            })
        },
        &format!(
            "{}, of which none is stopped within a call",
            counted(facts.processes.len() as u64, "attached process")
        ),
    );
    if found.is_empty() {
        return stopped;
    }
    found.extend(stopped.into_iter().filter(|(is, ..)| *is == Is::Wrong));
    found
}

fn versions(facts: &Facts) -> Vec<Found> {
    let own = keyway_server::KEYWAY_VERSION;
    let mut found = each(
        facts,
        |attached, process| {
            let files = process.replaced.first()?;
            Some(wrong(
                format!(
                    "{} still runs {files}, which was replaced or removed since it started",
                    named(attached)
                ),
                "restart it, so that it runs what is installed; a server without a pause: `keyway serve --take-over`",
            ))
        },
        "all run the files that are installed",
    );
    let server = facts.server.as_ref().and_then(|said| said.get("keyway_version"));
    if let Some(version) = server.filter(|version| *version != own) {
        found.retain(|(is, ..)| *is == Is::Wrong);
        found.push(wrong(
            format!("the server is of version {version}, and this program of {own}"),
            "restart the server with the newer one: `keyway serve --take-over` closes no connection",
        ));
    }
    found
}

fn sessions(facts: &Facts) -> Vec<Found> {
    let (used, most) = (facts.seen.program_sessions, facts.seen.program_sessions_max);
    let kept = facts.seen.sessions_max.saturating_sub(most);
    if used >= most {
        return vec![wrong(
            format!(
                "{used} of {most} thread slots for programs are taken, and {kept} are reserved for servers: further threads write through a server"
            ),
            "make a new region with more (--sessions, Options::sessions), or keep a session for each thread and not for each call",
        )];
    }
    ok(format!(
        "{used} of the {most} thread slots that programs may take are taken, by programs or servers; {kept} more are for servers only"
    ))
}

/// What the server says, as a number.
fn said(facts: &Facts, name: &str) -> Option<u64> {
    facts.server.as_ref()?.get(name)?.parse().ok()
}

fn open_files(facts: &Facts) -> Vec<Found> {
    let asked = said(facts, "pid").zip(said(facts, "maxconns"));
    each(
        facts,
        |attached, process| {
            let (open, most) = process.files?;
            let connections = asked
                .filter(|(pid, _)| *pid == attached.pid)
                .map(|(_, connections)| connections);
            if let Some(connections) = connections.filter(|connections| most < connections.saturating_add(DESCRIPTORS_SPARE)) {
                return Some(wrong(
                    format!(
                        "{} serves up to {connections} connections (-c), and may open only {most} files (RLIMIT_NOFILE)",
                        named(attached)
                    ),
                    format!(
                        "`ulimit -n {}` before its start, LimitNOFILE= of its unit; or a lower -c",
                        connections.saturating_add(DESCRIPTORS_SPARE)
                    ),
                ));
            }
            (open >= most - most / 10).then(|| {
                wrong(
                    format!(
                        "{} has {open} files open, and may open {most} (RLIMIT_NOFILE)",
                        named(attached)
                    ),
                    "raise `ulimit -n` before its start, LimitNOFILE= of its unit",
                )
            })
        },
        match asked {
            Some(_) => "no process is near its limit, and the server's is enough for its connections",
            None => "no process is near its limit; --server also compares it with -c",
        },
    )
}

fn locked(facts: &Facts) -> Vec<Found> {
    each(
        facts,
        |attached, process| {
            let (bytes, most) = process.locked?;
            (process.locks && bytes < facts.seen.limit_bytes).then(|| {
                wrong(
                    format!(
                        "{} was asked to lock its memory (-k), and has locked {} of the region's {}; it may lock {} (RLIMIT_MEMLOCK)",
                        named(attached),
                        size_text(bytes),
                        size_text(facts.seen.limit_bytes),
                        if most == u64::MAX { "all".to_owned() } else { size_text(most) }
                    ),
                    "`ulimit -l unlimited` before its start, LimitMEMLOCK=infinity of its unit",
                )
            })
        },
        "no process lacks a lock on its memory that it was asked for",
    )
}

/// What the server has counted in the last hour. One that does not know it has counted since its start.
fn lately(facts: &Facts, name: &str, since_start: &str) -> u64 {
    let hour = said(facts, &format!("keyway_hour_{name}"));
    hour.or_else(|| said(facts, since_start)).unwrap_or(0)
}

fn connections(facts: &Facts) -> Vec<Found> {
    if facts.server.is_none() {
        return unknown("--server asks a server for connections that it refused");
    }
    let of = |name: &str| said(facts, name).unwrap_or(0);
    let mut found = Vec::new();
    let refused = lately(facts, "rejected", "rejected_connections");
    if refused > 0 {
        found.push(wrong(
            format!(
                "{refused} connections were refused in the last {} s, because {} were open (-c)",
                facts.looked_s,
                of("max_connections")
            ),
            "a higher -c (--connections), or clients that keep fewer connections",
        ));
    }
    let closed = lately(facts, "closed_for_memory", "keyway_connections_closed_for_memory");
    if closed > 0 {
        found.push(wrong(
            format!(
                "{closed} connections were closed in the last {} s, because all of them may hold {} (--connection-memory)",
                facts.looked_s,
                size_text(of("keyway_connection_memory_limit"))
            ),
            "a higher --connection-memory, or clients that read their answers sooner",
        ));
    }
    or_ok(
        found,
        format!(
            "{} of {} are open, and none was refused in the last {} s",
            of("curr_connections"),
            of("max_connections"),
            facts.looked_s
        ),
    )
}

fn udp(facts: &Facts) -> Vec<Found> {
    let receive_max = facts.machine.receive_max.unwrap_or(UDP_BUFFER);
    let is_used = |attached: &Attached| {
        let udp = attached.process.as_ref().and_then(|process| process.udp);
        attached.is_server && udp.is_some_and(|(sockets, _)| sockets > 0)
    };
    if !facts
        .processes
        .iter()
        .any(|attached| attached.is_server && attached.process.is_none() || is_used(attached))
    {
        return ok("no server of this region has a UDP socket");
    }
    let remedy = format!("`sysctl -w net.core.rmem_max={UDP_BUFFER}` before the server's start; more --threads if they are busy");
    each(
        facts,
        |attached, process| {
            let (sockets, _) = process.udp.filter(|_| is_used(attached))?;
            let (dropped, seconds) = (attached.udp_dropped, attached.udp_looked_s);
            if dropped > 0 {
                return Some(wrong(
                    format!(
                        "{dropped} datagrams for the {sockets} UDP sockets of {} were dropped in the last {seconds} s, because their buffers \
                         were full",
                        named(attached)
                    ),
                    remedy.clone(),
                ));
            }
            (receive_max < UDP_BUFFER).then(|| {
                wrong(
                    format!(
                        "{} asks for UDP buffers of {}, and may have {} (net.core.rmem_max): bursts may get lost",
                        named(attached),
                        size_text(UDP_BUFFER),
                        size_text(receive_max)
                    ),
                    remedy.clone(),
                )
            })
        },
        "no datagram was dropped, and the sockets have the buffers that they ask for",
    )
}

/// The reasons for which the kernel door passes packets on, as `stats` names them, and what to do if it is the most frequent one.
const WAYS_UP: [(&str, &str); 13] = [
    (
        "misses",
        "clients ask for items that are absent, rarely asked for, or too large for it (1387 bytes); a higher --kernel-memory holds more",
    ),
    (
        "stale",
        "items change about as often as they are read; such keys gain nothing from the kernel door",
    ),
    (
        "expired",
        "lifetimes are about as short as the time between two reads; longer ones help",
    ),
    (
        "odd_requests",
        "it answers get and gets of up to 64 keys, and mg; over UDP one of them in a datagram",
    ),
    (
        "odd_packets",
        "fragments, IP options, VLAN tags or wrong checksums: keep requests below the MTU",
    ),
    ("odd_frames", "requests in several datagrams: each one has to fit into one"),
    ("forbidden", "sources that --udp-allow does not name"),
    ("over_rate", "sources above --kernel-rate"),
    (
        "silent",
        "the server does not renew the lease: it is stopped, or its thread does not run (`keyway top`)",
    ),
    (
        "too_long",
        "answers do not fit into a packet that every path takes (1280 bytes; datagrams of IPv4 1400): smaller items, or fewer keys in a request",
    ),
    (
        "no_room",
        "answers do not fit into a packet: smaller items, or fewer keys in a request",
    ),
    (
        "no_path",
        "there is no way back to the client by the same interface (routes, neighbours)",
    ),
    (
        "tcp_busy",
        "clients send the next request before they have the answer to the last one, or send requests in parts",
    ),
];

fn kernel_door(facts: &Facts) -> Vec<Found> {
    if facts.server.is_none() {
        return unknown("--server asks a server what its kernel door passes on");
    }
    let of = |name: &str| {
        said(facts, &format!("keyway_kernel_{name}"))?;
        Some(lately(facts, &format!("kernel_{name}"), &format!("keyway_kernel_{name}")))
    };
    let Some(hits) = of("hits") else {
        return ok("the server has none");
    };
    let hits = hits.saturating_add(of("tcp_hits").unwrap_or(0));
    let ways = WAYS_UP.map(|(name, remedy)| (of(name).unwrap_or(0), name, remedy));
    let up = ways.iter().fold(0, |sum: u64, (count, ..)| sum.saturating_add(*count));
    let most = ways.iter().max_by_key(|(count, ..)| *count);
    if let Some((count, name, remedy)) = most.filter(|_| up >= PACKETS_MIN && hits < up / 10) {
        return vec![wrong(
            format!(
                "it has answered {hits} packets in the last {} s and passed on {up}, {count} of them as `{name}`",
                facts.looked_s
            ),
            *remedy,
        )];
    }
    ok(format!(
        "it has answered {hits} packets in the last {} s and passed on {up}",
        facts.looked_s
    ))
}

/// The largest number of a user of the system, whose files logind leaves alone (login.defs(5), SYS_UID_MAX).
const SYSTEM_USER_MAX: u32 = 999;

fn logout(facts: &Facts) -> Vec<Found> {
    let owner = facts.disk.owner;
    if !Path::new(&facts.place).starts_with(SHARED_MEMORY) {
        return ok("the region is not in /dev/shm, where logind removes what login users leave");
    }
    if owner <= SYSTEM_USER_MAX {
        return ok("the region is a system user's, whose files logind leaves in /dev/shm");
    }
    if !facts.machine.removes_ipc {
        return ok("logind does not remove what login users leave in /dev/shm");
    }
    let user = user_name(owner);
    if facts.machine.lingering.contains(&user) {
        return ok(format!("user {user} lingers, so logind leaves the region"));
    }
    vec![wrong(
        format!(
            "the region is user {user}'s, and logind removes what this user has in /dev/shm when the user's last session ends (RemoveIPC)"
        ),
        format!(
            "`loginctl enable-linger {user}`, or RemoveIPC=no in /etc/systemd/logind.conf, or a system user (number to {SYSTEM_USER_MAX}), or \
             another place (--region)"
        ),
    )]
}

fn file_system(facts: &Facts) -> Vec<Found> {
    let disk = &facts.disk;
    // Magic numbers of statfs(2).
    let (name, is_network) = match disk.magic & 0xffff_ffff {
        0x0102_1994 => ("tmpfs", false),
        0x9584_58f6 => ("hugetlbfs", false),
        0xef53 => ("ext4", false),
        0x5846_5342 => ("xfs", false),
        0x9123_683e => ("btrfs", false),
        0x794c_7630 => ("overlayfs", false),
        0x6573_5546 => ("FUSE", false),
        0x6969 => ("NFS", true),
        0xfe53_4d42 | 0xff53_4d42 | 0x517b => ("SMB", true),
        0x0102_1997 => ("9p", true),
        0x00c3_6400 => ("Ceph", true),
        0x0116_1970 => ("GFS2", true),
        0x5346_414f | 0x6b41_4653 => ("AFS", true),
        _ => ("another file system", false),
    };
    let mut found = Vec::new();
    if is_network {
        found.push(wrong(
            format!("the region is on {name}, a network file system: its locks and memory do not belong to one kernel"),
            "put it on tmpfs (/dev/shm, /run) or on a disk of this machine (`keyway copy` moves the items)",
        ));
    }
    // What the region has is allocated; growing, and pages that were given back, need more.
    if disk.size > 0 && disk.available < disk.size / 20 {
        found.push(wrong(
            format!(
                "{name} of the region has {} of {} left: the region cannot grow, and records of servers cannot be written",
                size_text(disk.available),
                size_text(disk.size)
            ),
            format!(
                "remove what is not needed there (`keyway regions --prune`), or enlarge it{}",
                if name == "tmpfs" {
                    " (`mount -o remount,size=`, in a container --shm-size)"
                } else {
                    ""
                }
            ),
        ));
    }
    let room = if disk.size == 0 {
        "no limit".to_owned()
    } else {
        format!("{} left", size_text(disk.available))
    };
    or_ok(found, format!("{name}, {room}"))
}

fn huge_pages(facts: &Facts) -> Vec<Found> {
    let size = facts.seen.limit_bytes;
    if size < HUGE_PAGES_MIN {
        return ok(format!("a region of {} gains little from them", size_text(size)));
    }
    let mapped: Vec<_> = facts
        .processes
        .iter()
        .filter_map(|attached| attached.process.as_ref()?.mapped)
        .collect();
    if mapped.is_empty() {
        return unknown("no attached process can be examined");
    }
    let (resident, huge) = (
        mapped.iter().map(|m| m.resident).sum::<u64>(),
        mapped.iter().map(|m| m.huge).sum::<u64>(),
    );
    if huge < resident / 2 {
        return vec![wrong(
            format!(
                "of the region's {}, processes have {} mapped, {} of it in huge pages",
                size_text(size),
                size_text(resident),
                size_text(huge)
            ),
            "--huge-pages (Options::huge_pages) at a start, on tmpfs from Linux 6.1 on; or a region on hugetlbfs",
        )];
    }
    ok(format!("{} of {} mapped memory", size_text(huge), size_text(resident)))
}

fn swap(facts: &Facts) -> Vec<Found> {
    match facts.swapped {
        None => unknown("/proc/self/smaps cannot be read"),
        Some(0) => ok("nothing of the region is swapped out"),
        Some(bytes) => vec![wrong(
            format!(
                "{} of the region are swapped out: a get of them waits for a disk",
                size_text(bytes)
            ),
            "`swapoff -a`, a lower vm.swappiness, memory.swap.max=0 of the control group, or lock the memory (-k)",
        )],
    }
}

fn machine(facts: &Facts) -> Vec<Found> {
    let machine = &facts.machine;
    let (Some(memory), Some(available)) = (machine.memory, machine.available) else {
        return unknown("/proc/meminfo cannot be read");
    };
    let mut found = Vec::new();
    let left = available.saturating_add(machine.swap_free);
    if left < memory / 20 {
        found.push(wrong(
            format!(
                "{} of the machine's {} of memory are left, swap included: the kernel may end processes",
                size_text(left),
                size_text(memory)
            ),
            "end what is not needed, or lower the region's memory limit (cache_memlimit) and other programs'",
        ));
    }
    if let (true, Some(limit), Some(committed)) = (machine.commits_strictly, machine.commit_limit, machine.committed)
        && limit.saturating_sub(committed) < limit / 20
    {
        found.push(wrong(
            format!(
                "vm.overcommit_memory is 2, and {} of {} are committed: programs soon get no memory",
                size_text(committed),
                size_text(limit)
            ),
            "`sysctl -w vm.overcommit_memory=0`, or a higher vm.overcommit_ratio",
        ));
    }
    or_ok(
        found,
        format!("{} of {} of memory are left", size_text(left), size_text(memory)),
    )
}

fn clock(facts: &Facts) -> Vec<Found> {
    let mut found = Vec::new();
    let set_by_s = facts.seen.unix_set_by_s;
    if set_by_s.unsigned_abs() > UNIX_OFF_MAX_S {
        found.push(wrong(
            format!(
                "Unix time was set {} by {} s since the region was made: lifetimes do not follow, items stored until a Unix time go that \
                 much too {}",
                if set_by_s > 0 { "forward" } else { "back" },
                set_by_s.unsigned_abs(),
                if set_by_s > 0 { "late" } else { "soon" },
            ),
            "store items with a Unix time as exptime again; let NTP slew the clock, and step it at the machine's start only",
        ));
    }
    match machine_clock(facts) {
        Ok(name) => or_ok(found, format!("{name}, and Unix time was not set since the region was made")),
        Err(slow) => {
            found.extend(slow);
            found
        }
    }
}

/// The machine's source of time, if reading it is cheap.
fn machine_clock(facts: &Facts) -> Result<&str, Vec<Found>> {
    match facts.machine.clocksource.as_deref() {
        Some(name) if !FAST_CLOCKS.contains(&name) => Err(vec![wrong(
            format!("the machine's clock source is {name}: each look at the clock is a system call"),
            format!(
                "one of {} (/sys/devices/system/clocksource/clocksource0/available_clocksource); the kernel's log says why it left another one",
                FAST_CLOCKS.join(", ")
            ),
        )]),
        name => Ok(name.unwrap_or("the clock source is not known")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{Disk, Machine, Mapped};
    use std::collections::BTreeMap;

    /// A region and a machine with which all is well.
    fn well() -> Facts {
        let mut facts = Facts {
            place: "/dev/shm/region".to_owned(),
            disk: Disk {
                magic: 0x0102_1994,
                size: 1 << 30,
                available: 1 << 29,
                owner: 0,
            },
            swapped: Some(0),
            machine: Machine {
                memory: Some(8 << 30),
                available: Some(4 << 30),
                swap_free: 0,
                commit_limit: Some(4 << 30),
                committed: Some(1 << 30),
                commits_strictly: true,
                clocksource: Some("tsc".to_owned()),
                receive_max: Some(4 << 20),
                removes_ipc: true,
                ..Machine::default()
            },
            processes: vec![Attached {
                pid: 7,
                is_server: true,
                process: Some(Process {
                    name: "keyway".to_owned(),
                    files: Some((20, 1136)),
                    locks: true,
                    locked: Some((64 << 20, u64::MAX)),
                    mapped: Some(Mapped {
                        resident: 64 << 20,
                        huge: 64 << 20,
                        swapped: 0,
                    }),
                    udp: Some((2, 0)),
                    ..Process::default()
                }),
                ..Attached::default()
            }],
            server: Some(BTreeMap::from(
                [
                    ("pid", "7"),
                    ("maxconns", "1024"),
                    ("keyway_version", keyway_server::KEYWAY_VERSION),
                    ("keyway_kernel_hits", "1000"),
                    ("keyway_kernel_misses", "10"),
                    ("keyway_kernel_copied", "100000"),
                ]
                .map(|(name, value)| (name.to_owned(), value.to_owned())),
            )),
            ..Facts::default()
        };
        facts.seen.limit_bytes = 64 << 20;
        facts.seen.sessions_max = 128;
        facts.seen.program_sessions_max = 112;
        facts.seen.segments = [100; USES.len()];
        facts
    }

    /// What is wrong after a change.
    fn after(change: impl Fn(&mut Facts)) -> Vec<Finding> {
        let mut facts = well();
        change(&mut facts);
        let mut found = all(&facts);
        found.retain(|finding| finding.is != Is::Ok);
        found
    }

    /// A change makes this check, and no other, find these words.
    #[track_caller]
    fn finds(check: &str, words: &[&str], change: impl Fn(&mut Facts)) {
        let found = after(change);
        let [finding] = &found[..] else {
            panic!("{check}: {found:?}");
        };
        assert_eq!((finding.check, finding.is), (check, Is::Wrong), "{found:?}");
        let text = format!("{} {}", finding.what, finding.remedy.as_deref().expect("a remedy"));
        for word in words {
            assert!(text.contains(word), "{text} lacks {word}");
        }
    }

    fn process(facts: &mut Facts) -> &mut Process {
        facts.processes[0].process.as_mut().unwrap()
    }

    fn says(facts: &mut Facts, name: &str, value: &str) {
        facts.server.as_mut().unwrap().insert(name.to_owned(), value.to_owned());
    }

    #[test]
    fn nothing_is_wrong_if_all_is_well() {
        assert_eq!(after(|_| {}), []);
        assert_eq!(all(&well()).len(), CHECKS.len());
    }

    #[test]
    fn the_region_is_judged() {
        finds("memory", &["400 of 800 segments", "cache_memlimit"], |facts| {
            facts.processes[0].protects = 400
        });
        assert_eq!(after(|facts| facts.processes[0].protects = 399), []);
        finds("memory", &["3 refused stores", "64 MiB"], |facts| {
            facts.seen.counters.store_no_memory = 3
        });
        finds(
            "evictions",
            &["1000 items were evicted", "500 were stored again", "keyway memory"],
            |facts| {
                (facts.seen.counters.evictions, facts.seen.counters.ghost_hits) = (1000, 500);
            },
        );
        assert_eq!(
            after(|facts| {
                (facts.seen.counters.evictions, facts.seen.counters.evicted_unfetched) = (1000, 1000);
                facts.seen.counters.ghost_hits = 499;
            }),
            []
        );
        let before_the_look = after(|facts| {
            (facts.seen.counters.evictions, facts.seen.counters.ghost_hits) = (2000, 1000);
            (facts.before.evictions, facts.before.ghost_hits) = (1500, 900);
        });
        assert_eq!(before_the_look, []);
        finds("damage", &["2 damaged", "keyway check /dev/shm/region"], |facts| {
            facts.seen.counters.corrupt = 2
        });
        finds("sessions", &["16 of 16", "and 16 are", "--sessions"], |facts| {
            facts.seen.sessions_max = 32;
            (facts.seen.program_sessions_max, facts.seen.program_sessions) = (16, 16);
        });
        finds("clock", &["back by 6 s", "soon"], |facts| facts.seen.unix_set_by_s = -6);
        assert_eq!(after(|facts| facts.seen.unix_set_by_s = 5), []);
    }

    #[test]
    fn processes_are_judged() {
        finds("processes", &["process 7 (keyway)", "2 segments", "kill -CONT 7"], |facts| {
            facts.processes[0].protects = 2;
            process(facts).is_stopped = true;
        });
        assert_eq!(after(|facts| process(facts).is_stopped = true), [], "it holds nothing");
        finds("processes", &["seems dead", "kill -9 7"], |facts| {
            facts.processes[0].fenced = 1
        });
        finds("versions", &["/usr/bin/keyway", "--take-over"], |facts| {
            process(facts).replaced = vec!["/usr/bin/keyway".to_owned()];
        });
        finds("versions", &["0.0.1", "--take-over"], |facts| {
            says(facts, "keyway_version", "0.0.1")
        });
        finds("open-files", &["1024 connections", "1135 files", "ulimit -n 1136"], |facts| {
            process(facts).files = Some((20, 1135));
        });
        finds("open-files", &["90 files open", "100"], |facts| {
            facts.server.as_mut().unwrap().remove("maxconns");
            process(facts).files = Some((90, 100));
        });
        finds("locked", &["64 KiB", "RLIMIT_MEMLOCK", "LimitMEMLOCK"], |facts| {
            process(facts).locked = Some((64 << 10, 64 << 10));
        });
        assert_eq!(
            after(|facts| {
                process(facts).locked = Some((0, 0));
                process(facts).locks = false;
            }),
            []
        );
        finds("udp", &["5 datagrams", "in the last 3600 s", "rmem_max"], |facts| {
            (facts.processes[0].udp_dropped, facts.processes[0].udp_looked_s) = (5, 3600);
        });
        let long_ago = after(|facts| process(facts).udp = Some((2, 5)));
        assert_eq!(long_ago, [], "they were dropped earlier");
        finds("udp", &["208 KiB", "rmem_max=4194304"], |facts| {
            facts.machine.receive_max = Some(212_992)
        });
    }

    #[test]
    fn the_server_is_judged() {
        finds("connections", &["4 connections were refused"], |facts| {
            says(facts, "keyway_hour_rejected", "4")
        });
        finds("connections", &["3 connections were closed"], |facts| {
            says(facts, "keyway_hour_closed_for_memory", "3")
        });
        let long_ago = after(|facts| {
            for (name, count) in [
                ("rejected_connections", "4"),
                ("keyway_hour_rejected", "0"),
                ("keyway_connections_closed_for_memory", "1"),
                ("keyway_hour_closed_for_memory", "0"),
            ] {
                says(facts, name, count);
            }
        });
        assert_eq!(long_ago, [], "it is more than an hour ago");
        finds("connections", &["5 connections were refused"], |facts| {
            says(facts, "rejected_connections", "5")
        });
        finds("connections", &["--connection-memory"], |facts| {
            says(facts, "keyway_connections_closed_for_memory", "1");
        });
        finds(
            "kernel-door",
            &["99 packets", "passed on 1010", "`stale`", "change"],
            |facts| {
                says(facts, "keyway_kernel_hits", "99");
                says(facts, "keyway_kernel_stale", "1000");
            },
        );
        let stale = |facts: &mut Facts, hour: &str| {
            says(facts, "keyway_kernel_hits", "99");
            says(facts, "keyway_kernel_stale", "1000");
            says(facts, "keyway_hour_kernel_hits", "9");
            says(facts, "keyway_hour_kernel_stale", hour);
            says(facts, "keyway_hour_kernel_misses", "0");
        };
        finds("kernel-door", &["9 packets", "passed on 900"], |facts| stale(facts, "900"));
        let long_ago = after(|facts| stale(facts, "0"));
        assert_eq!(long_ago, [], "they were passed on more than an hour ago");
    }

    #[test]
    fn a_kernel_door_that_answers_over_tcp_is_well() {
        let found = after(|facts| {
            for (name, count) in [
                ("hits", "0"),
                ("tcp_hits", "5000"),
                ("tcp_translated", "90000"),
                ("misses", "2000"),
            ] {
                says(facts, &format!("keyway_kernel_{name}"), count);
            }
        });
        assert_eq!(found, []);
    }

    /// A reason that is missing here would not be counted.
    #[cfg(feature = "kernel")]
    #[test]
    fn every_way_of_a_packet_is_known() {
        const ANSWERED: [&str; 2] = ["hits", "tcp_hits"];
        // Neither answered nor passed on for want of an answer.
        const NEITHER: [&str; 4] = ["not_ours", "tcp_repeated", "tcp_reminded", "tcp_translated"];
        let mut known: Vec<&str> = WAYS_UP.iter().map(|(name, _)| *name).chain(ANSWERED).chain(NEITHER).collect();
        let mut all: Vec<&str> = keyway_xdp::config::Verdict::ALL
            .iter()
            .map(|verdict| verdict.word())
            .collect();
        known.sort_unstable();
        all.sort_unstable();
        assert_eq!(known, all);
    }

    #[test]
    fn the_machine_is_judged() {
        finds("file-system", &["NFS", "/dev/shm"], |facts| facts.disk.magic = 0x6969);
        finds("file-system", &["SMB"], |facts| {
            facts.disk.magic = 0xff53_4d42u32.cast_signed().into()
        });
        finds("file-system", &["50 MiB of 1 GiB", "--shm-size"], |facts| {
            facts.disk.available = 50 << 20
        });
        let user = |facts: &mut Facts, owner: u32, place: &str| {
            facts.disk.owner = owner;
            facts.place = place.to_owned();
        };
        finds(
            "logout",
            &["user 4294967", "enable-linger 4294967", "RemoveIPC=no", "--region"],
            |facts| {
                user(facts, 4_294_967, "/dev/shm/region");
            },
        );
        for (owner, place) in [(SYSTEM_USER_MAX, "/dev/shm/region"), (4_294_967, "/run/keyway/region")] {
            assert_eq!(after(|facts| user(facts, owner, place)), []);
        }
        let lingers = after(|facts| {
            user(facts, 4_294_967, "/dev/shm/region");
            facts.machine.lingering.insert("4294967".to_owned());
        });
        assert_eq!(lingers, []);
        let keeps = after(|facts| {
            user(facts, 4_294_967, "/dev/shm/region");
            facts.machine.removes_ipc = false;
        });
        assert_eq!(keeps, []);
        finds("huge-pages", &["512 MiB", "31 MiB of it", "--huge-pages"], |facts| {
            facts.seen.limit_bytes = 512 << 20;
            process(facts).locks = false;
            process(facts).mapped.as_mut().unwrap().huge = 31 << 20;
        });
        finds("swap", &["8 KiB", "swapoff"], |facts| facts.swapped = Some(8 << 10));
        finds("machine", &["300 MiB", "8 GiB"], |facts| {
            facts.machine.available = Some(300 << 20)
        });
        finds("machine", &["overcommit"], |facts| facts.machine.committed = Some(4 << 30));
        assert_eq!(
            after(|facts| {
                facts.machine.committed = Some(4 << 30);
                facts.machine.commits_strictly = false;
            }),
            []
        );
        finds("clock", &["hpet", "tsc"], |facts| {
            facts.machine.clocksource = Some("hpet".to_owned())
        });
    }

    #[test]
    fn what_cannot_be_examined_is_unknown() {
        let found = after(|facts| facts.processes[0].process = None);
        assert!(
            found
                .iter()
                .all(|finding| finding.is == Is::Unknown && finding.remedy.is_none()),
            "{found:?}"
        );
        let checks: Vec<_> = found.iter().map(|finding| finding.check).collect();
        assert_eq!(checks, ["processes", "versions", "open-files", "locked", "udp"]);
        let found = after(|facts| facts.server = None);
        let checks: Vec<_> = found.iter().map(|finding| finding.check).collect();
        assert_eq!(checks, ["connections", "kernel-door"]);
    }
}
