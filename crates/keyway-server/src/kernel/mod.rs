//! The kernel door of a server: its program, and the keeper, the thread that decides which items the program may answer.
//!
//! Workers send the keeper the keys that they have served twice, over UDP or to TCP connections that are enrolled ([`Served`]). The keeper reads such an item from the region,
//! checks the words that count changes before and after, and writes a copy where the program finds it. Ten times a second it renews the
//! program's lease and clock, and checks which copies the program has served. It reports those to the region, so that the region does not
//! evict items whose hits only the kernel sees.
//!
//! A change makes all copies of its stripe stale. The keeper reads the stripes' words, whichever process changes them, and writes those copies
//! again that were served lately (`Store::voided`): soon after the change while there are such copies, and at the latest with the next tick.
//! A worker that changes an item while the keeper sleeps wakes it ([`Post::changed`]); the worker itself does none of this work.
//!
//! Order of turning on: the program is loaded and answers nothing; the region's door word is set; every session has acknowledged it; then copies
//! and lease. Order of turning off: the lease, the program's interfaces, a fence after which no run of it is left, the door word.
//!
//! If another server takes over, the door is turned off before that server gets the role, and turned on again if it does not get it. The new
//! server loads its program before, and turns its door on when the old process has ended: until then that one may still change items, which
//! it could not count for the new program. Meanwhile the programs pass all packets to the sockets.
//!
//! A TCP connection is answered by the program only if a worker has *enrolled* it, and while the worker publishes that it is at rest
//! ([`Enrolments`]). The program then translates the sequence numbers of that connection as long as it lives. So at the end of the server,
//! the program stays on the interfaces if such connections are left.
//!
//! The lease is renewed on time, however much else there is to do: all work is split into steps of a few milliseconds, with a call of
//! `Keeper::breathe` between them.
//!
//! This file holds what other threads use of the door ([`Post`]); `keeper` turns it on, and has the thread's work, `interfaces` where the program is, `served`
//! what a worker has served, `enrolled` the TCP connections, `times` how long answers took.

mod enrolled;
mod interfaces;
mod keeper;
mod served;
mod times;

#[cfg(test)]
pub(crate) use enrolled::ProgramSide;
pub(crate) use enrolled::{Enrolment, Enrolments};
pub use interfaces::interface;
pub(crate) use keeper::{Keeper, start};
#[cfg(test)]
pub(crate) use served::Candidates;
pub(crate) use served::Served;

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

use keyway_cache::Cache;
use keyway_proto::Protocol;
use keyway_proto::reply::{self, stat};
use keyway_xdp::Counts;
use keyway_xdp::config::{Settings, Verdict};

use crate::config::{Config, Kernel};
use crate::stats::KernelNumbers;

/// Least memory for the hot set, bytes.
const MEMORY_MIN: usize = 512 << 10;

/// The state of the kernel door that other threads use.
pub(crate) struct Post {
    candidates: Arc<served::Candidates>,
    /// `None`: the program was loaded without TCP
    enrolments: Option<Arc<Enrolments>>,
    counts: Counts,
    /// copies held; copies written
    held: AtomicU64,
    filled: AtomicU64,
    /// copies written again after changes
    renewed: AtomicU64,
    /// stripes of dead writers that the program can serve again
    mended: AtomicU64,
    /// interfaces that the program is on; how many times it was attached again
    interfaces: AtomicU64,
    reattached: AtomicU64,
    /// the keeper checks for stale copies by itself, so workers need not wake it
    attentive: AtomicBool,
}

/// The program's settings for a server with this configuration and these bound addresses, and the TCP address that it serves.
fn settings(
    config: &Config,
    kernel: &Kernel,
    udp: &[SocketAddr],
    tcp: &[SocketAddr],
) -> Result<(Settings, Option<SocketAddr>), String> {
    let udp = match udp {
        [] => None,
        [address] => Some(*address),
        more => {
            return Err(format!(
                "the kernel door answers for one UDP address, and there are {}: give one, such as --udp 127.0.0.1",
                more.len()
            ));
        }
    };
    let tcp = kernel.tcp.then(|| served_tcp(udp, tcp)).transpose()?;
    if config.protocol == Protocol::Binary {
        return Err(
            "the kernel door answers the text and meta protocols, and this server speaks the binary one only (-B)".to_owned(),
        );
    }
    if kernel.memory < MEMORY_MIN {
        return Err(format!(
            "the kernel door's memory is {} bytes, the least is {MEMORY_MIN} (--kernel-memory)",
            kernel.memory
        ));
    }
    let allow = config.udp_allow.iter();
    let allow = allow.map(|network| (network.address(), network.prefix_len())).collect();
    Ok((kernel_settings(udp, tcp, allow, kernel)?, tcp))
}

/// The TCP address that the program serves: the one with the UDP address, or, without UDP, the first one. `listening`: those without TLS.
/// The rest is logged.
fn served_tcp(udp: Option<SocketAddr>, listening: &[SocketAddr]) -> Result<SocketAddr, String> {
    let served = match udp {
        None => *listening
            .first()
            .ok_or("--kernel-tcp answers at a --listen without TLS, and there is none: give one, such as --listen 127.0.0.1")?,
        Some(udp) => {
            let own = listening.iter().find(|address| address.ip() == udp.ip());
            let covers = |address: &&SocketAddr| address.ip().is_unspecified() && address.is_ipv4() == udp.is_ipv4();
            let found = own.or_else(|| listening.iter().find(covers)).ok_or_else(|| {
                format!(
                    "--kernel-tcp answers at the address of --udp, {}, and no --listen without TLS has it: give one, such as --listen {}",
                    udp.ip(),
                    udp
                )
            })?;
            SocketAddr::new(udp.ip(), found.port())
        }
    };
    log_unserved(served, listening);
    Ok(served)
}

fn log_unserved(served: SocketAddr, listening: &[SocketAddr]) {
    let others: Vec<String> = listening
        .iter()
        .filter(|address| address.port() != served.port() || !(address.ip() == served.ip() || address.ip().is_unspecified()))
        .map(ToString::to_string)
        .collect();
    if !others.is_empty() {
        log::info!(
            "the kernel door serves TCP at {served} only, and not at {}",
            others.join(", ")
        );
    }
}

/// The settings of a program for these addresses: of UDP, of TCP, or the same of both.
pub fn kernel_settings(
    udp: Option<SocketAddr>,
    tcp: Option<SocketAddr>,
    allow: Vec<(IpAddr, u8)>,
    kernel: &Kernel,
) -> Result<Settings, String> {
    let Some(address) = udp.or(tcp) else {
        return Err(
            "the kernel door answers datagrams, and there is no UDP address: give one, such as --udp 127.0.0.1 (or, experimental, \
             --kernel-tcp for TCP connections)"
                .to_owned(),
        );
    };
    if let Some(tcp) = tcp.filter(|tcp| tcp.ip() != address.ip()) {
        return Err(format!(
            "the kernel door answers for one address, and UDP is at {}, TCP at {}: give both the same",
            address.ip(),
            tcp.ip()
        ));
    }
    if address.ip().is_unspecified() {
        let option = if udp.is_some() { "--udp" } else { "--listen" };
        return Err(format!(
            "the kernel door compares destination addresses, so it needs a specific one and not {address}; give the interface's own to {option}"
        ));
    }
    Ok(Settings {
        address: address.ip(),
        udp_port: udp.map(|udp| udp.port()),
        tcp_port: tcp.map(|tcp| tcp.port()),
        // Without a UDP socket the program must answer no datagram.
        allow: if udp.is_some() { allow } else { Vec::new() },
        memory: kernel.memory,
        rate: kernel.rate,
    })
}

impl Post {
    /// Of a program on this many interfaces.
    fn new(counts: Counts, enrolments: Option<Arc<Enrolments>>, interfaces: usize) -> Self {
        Self {
            candidates: Arc::default(),
            enrolments,
            counts,
            held: AtomicU64::new(0),
            filled: AtomicU64::new(0),
            renewed: AtomicU64::new(0),
            mended: AtomicU64::new(0),
            interfaces: AtomicU64::new(interfaces as u64),
            reattached: AtomicU64::new(0),
            attentive: AtomicBool::new(true),
        }
    }

    /// A worker's record of what it has served.
    pub(crate) fn served(&self, cache: Cache) -> Served {
        Served::new(Arc::clone(&self.candidates), cache)
    }

    /// The TCP connections that the program may answer. `None`: it was loaded without TCP.
    pub(crate) fn enrolments(&self) -> Option<Arc<Enrolments>> {
        self.enrolments.clone()
    }

    /// Ends the keeper's pause.
    pub(crate) fn wake(&self) {
        self.candidates.wake();
    }

    /// A worker reports that it has changed something.
    pub(crate) fn changed(&self) {
        if !self.attentive.load(Relaxed) && !self.attentive.swap(true, Relaxed) {
            self.wake();
        }
    }

    /// The numbers that are shown of it.
    pub(crate) fn numbers(&self) -> KernelNumbers {
        let verdicts = self.counts.per_cpu().unwrap_or_default().into_iter();
        let counted = verdicts.filter(|(verdict, _)| *verdict != Verdict::NotOurs);
        KernelNumbers {
            verdicts: counted
                .map(|(verdict, counts)| (verdict.word(), counts.iter().sum()))
                .collect(),
            copies: self.held.load(Relaxed),
            copied: self.filled.load(Relaxed),
            renewed: self.renewed.load(Relaxed),
            mended: self.mended.load(Relaxed),
            interfaces: self.interfaces.load(Relaxed),
            reattached: self.reattached.load(Relaxed),
            cpu_time: self.counts.cpu_time().map_or_else(
                |_| Vec::new(),
                |[udp, tcp]| {
                    let has_tcp = self.enrolments.is_some();
                    [("udp", udp)].into_iter().chain(has_tcp.then_some(("tcp", tcp))).collect()
                },
            ),
            enrolled: self.enrolments.as_ref().map(|enrolments| enrolments.numbers()),
        }
    }

    /// `stats kernel`: the same per CPU.
    pub(crate) fn stats_per_cpu(&self, out: &mut Vec<u8>) {
        for (verdict, counts) in self.counts.per_cpu().unwrap_or_default() {
            for (cpu, count) in counts.iter().enumerate().filter(|_| verdict != Verdict::NotOurs) {
                stat(out, &format!("cpu{cpu}:{}", verdict.word()), count);
            }
        }
        out.extend_from_slice(reply::END);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(udp: &[&str], tcp: &[&str], kernel: &Kernel) -> Result<(Settings, Option<SocketAddr>), String> {
        let parse = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<SocketAddr>>();
        settings(&Config::default(), kernel, &parse(udp), &parse(tcp))
    }

    #[test]
    fn one_address_is_served_over_udp_and_tcp() {
        let kernel = Kernel {
            tcp: true,
            ..Kernel::default()
        };
        for (udp, tcp, address, ports) in [
            (&["10.0.0.1:5"][..], &["10.0.0.1:6"][..], "10.0.0.1", (Some(5), Some(6))),
            (
                &["10.0.0.1:5"],
                &["127.0.0.1:7", "10.0.0.1:6"],
                "10.0.0.1",
                (Some(5), Some(6)),
            ),
            (&["10.0.0.1:5"], &["0.0.0.0:7"], "10.0.0.1", (Some(5), Some(7))),
            (&[], &["[::1]:6", "127.0.0.1:7"], "::1", (None, Some(6))),
        ] {
            let (settings, served) = made(udp, tcp, &kernel).unwrap();
            assert_eq!(
                (settings.address.to_string(), (settings.udp_port, settings.tcp_port)),
                (address.to_owned(), ports),
                "{udp:?} {tcp:?}"
            );
            assert_eq!(served, settings.tcp_port.map(|port| SocketAddr::new(settings.address, port)));
            assert_eq!(
                settings.allow.is_empty(),
                udp.is_empty(),
                "no datagram is answered without a UDP socket"
            );
        }
    }

    #[test]
    fn what_cannot_be_served_is_refused() {
        let without_tcp = Kernel::default();
        let with_tcp = Kernel {
            tcp: true,
            ..Kernel::default()
        };
        for (udp, tcp, kernel, word) in [
            (&[][..], &[][..], &with_tcp, "--listen"),
            (&[], &["127.0.0.1:5"], &without_tcp, "--udp"),
            (&["0.0.0.0:5"], &["0.0.0.0:5"], &without_tcp, "not 0.0.0.0:5"),
            (&[], &["[::]:5"], &with_tcp, "to --listen"),
            (&["10.0.0.1:5"], &["[::]:7"], &with_tcp, "such as --listen 10.0.0.1:5"),
            (&["10.0.0.1:5"], &["127.0.0.1:5"], &with_tcp, "such as --listen 10.0.0.1:5"),
            (&["10.0.0.1:5"], &[], &with_tcp, "such as --listen 10.0.0.1:5"),
            (&["10.0.0.1:5", "10.0.0.2:5"], &[], &without_tcp, "there are 2"),
        ] {
            let error = made(udp, tcp, kernel).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
        let (udp, tcp) = ("10.0.0.1:5".parse().ok(), "10.0.0.2:5".parse().ok());
        let error = kernel_settings(udp, tcp, Vec::new(), &Kernel::default()).unwrap_err();
        assert!(error.contains("give both the same"), "{error}");
        let (settings, _) = made(&["10.0.0.1:5"], &["10.0.0.1:5"], &without_tcp).unwrap();
        assert_eq!(settings.tcp_port, None);
    }
}
