//! `keyway serve`: its options, and the plan that they make.
//!
//! Never: binds, opens or starts anything; [`Plan::run`] does.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args};
use keyway_cache::{Gap, Options, Place};
use keyway_server::{
    Allowed, ClientCertificates, Config, EventLoop, Given, HoldMisses, Kernel, LOOPBACK, Network, RegionSocket, Role, Sasl, Tls,
    TlsVersion, UnixSocket,
};

use crate::exit::{self, Failure};
use crate::plan::Plan;
use crate::{Owner, allowed, cpus, listen, logger, place, size};

#[derive(Args)]
pub(crate) struct Serve {
    /// Take options from this file, too: TOML with the same names, such as memory = "1g" or listen = ["10.0.0.1", "::1"]. An option of the
    /// command line takes precedence over the file's
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Only tell whether the options are right, those of --config included, and start nothing
    #[arg(long)]
    pub(crate) check: bool,
    /// Address to listen on, with port 11211 if none is given; tls:// before it: with TLS; may be repeated; port 0: no TCP
    /// [default: 127.0.0.1, unless the service manager has given a socket (LISTEN_FDS)]
    #[arg(long, short = 'l', value_name = "[tls://]ADDR[:PORT]")]
    listen: Vec<String>,
    /// Unix socket to listen on, in addition to TCP
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Mode of the Unix socket, octal
    #[arg(long, value_name = "MODE", default_value = "700", value_parser = parse_mode)]
    socket_mode: u32,
    /// Unix socket through which the region is handed out to programs that use the library
    #[arg(long, value_name = "PATH")]
    region_socket: Option<PathBuf>,
    /// Users and groups that get the region there, in addition to this user: names or numbers, groups after a colon, such as www-data,:33
    #[arg(long, value_name = "USER,:GROUP,...", requires = "region_socket", value_parser = allowed::parse)]
    region_writers: Option<Allowed>,
    /// Users and groups that get it for reading only; the server executes their writes. A user in both lists may write. A user in this
    /// list only may not write, even the one that the server runs as
    #[arg(long, value_name = "USER,:GROUP,...", requires = "region_socket", value_parser = allowed::parse)]
    region_readers: Option<Allowed>,
    /// UDP address to serve in addition, with port 11211 if none is given; answers this machine only unless --udp-allow names other networks
    #[arg(long, value_name = "ADDR[:PORT]")]
    udp: Option<String>,
    /// Networks whose datagrams are answered, such as 10.0.0.0/8; other datagrams are ignored; may be repeated [default: loopback]
    #[arg(long, value_name = "CIDR", requires = "udp", value_delimiter = ',')]
    udp_allow: Vec<Network>,
    /// Longest answer to a datagram; a longer answer is cut, with an error. A plain number counts bytes
    #[arg(long, value_name = "SIZE", requires = "udp", default_value = "16k", value_parser = size::parse_answer_size)]
    udp_answer_max: usize,
    /// HTTP port for metrics (/metrics, for Prometheus), health (/healthz, /readyz) and a page for people (/): an address, with port 11212
    /// if none is given, or the path of a Unix socket. It has no login, so give an address that only those reach who may see the numbers
    /// [default: none]
    #[arg(long, value_name = "ADDR[:PORT]|PATH")]
    http: Option<String>,
    /// A name by which clients ask for the HTTP port, besides its addresses, localhost, this machine's name and the name in --http; may be
    /// given several times. A request over TCP for another host is refused: a page of another site could have a browser send it
    #[arg(long, value_name = "NAME", requires = "http", value_parser = listen::parse_host)]
    http_host: Vec<String>,
    /// Show hot keys on the page of the HTTP port, and not only their hashes
    #[arg(long, requires = "http")]
    http_keys: bool,
    /// Interfaces on which a BPF program answers gets of hot items before they reach the server, such as eth0,lo: over UDP, at the address
    /// of --udp, and over TCP with --kernel-tcp
    #[arg(long, value_name = "IFACE,...", value_delimiter = ',')]
    kernel: Vec<String>,
    /// Use the program that `keyway kernel attach` has pinned in this folder: this process then needs no capability
    #[arg(long, value_name = "FOLDER", conflicts_with = "kernel")]
    kernel_pinned: Option<PathBuf>,
    /// Experimental: the program answers on TCP connections, too, at the --listen without TLS that has the address of --udp, or, without
    /// --udp, at the first one. It translates every later segment of such a connection, and its CPU time is taken from every program
    /// that uses these interfaces
    #[arg(long)]
    kernel_tcp: bool,
    /// Memory for the program's copies and their index
    #[arg(long, value_name = "SIZE", default_value = "64m", value_parser = size::parse_mebibytes)]
    kernel_memory: u64,
    /// Answers per second that the program gives to one source, and the burst; further requests go to the server
    #[arg(long, value_name = "N[:BURST]", value_parser = parse_rate)]
    kernel_rate: Option<(u32, u32)>,
    /// An option that no longer exists: its value is refused with what replaces it
    #[arg(long, value_name = "CGROUP", hide = true, value_parser = refuse_local_bypass)]
    local_bypass: Option<Infallible>,
    /// The region's file, which is made if absent, or memfd: memory that is lost when the server ends [default: /dev/shm/keyway-UID-PORT]
    #[arg(long, value_name = "PATH|memfd", value_parser = place::parse)]
    region: Option<Place>,
    #[command(flatten)]
    owner: Owner,
    /// Size of the region, index and headers included: 512k, 64m, 1g; a plain number counts MiB. A smaller existing region grows to it;
    /// without this option it keeps its memory [default: 64m for a new region]
    #[arg(long, short = 'm', value_name = "SIZE", value_parser = size::parse_mebibytes)]
    memory: Option<u64>,
    /// Largest item, 1k to 1g; a plain number counts bytes. A rule of the region, for all its users: without this option a region keeps
    /// its own [default: 1m for a new region]
    #[arg(long, short = 'I', value_name = "SIZE", value_parser = size::parse_item_size)]
    max_item: Option<usize>,
    /// Worker threads: pairs of one thread for short turns and one for long ones
    #[arg(long, short = 't', value_name = "N", default_value_t = 4, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..=4096))]
    threads: usize,
    /// CPUs for the pairs of threads, one each in turn, such as 0-3,6; a new region's memory is interleaved over their NUMA nodes
    #[arg(long, value_name = "LIST")]
    cpus: Option<String>,
    /// Microseconds for which a worker looks for work before it sleeps: lower latency, but each worker uses a whole CPU
    #[arg(long, value_name = "US", default_value = "0", value_parser = cpus::parse_busy_poll)]
    busy_poll: Duration,
    /// How workers wait for connections: io_uring, epoll, or auto, which is io_uring where the system has it
    #[arg(long, value_name = "auto|epoll|io_uring", default_value = "auto", value_parser = cpus::parse_event_loop)]
    event_loop: EventLoop,
    /// Most connections at a time
    #[arg(long, short = 'c', value_name = "N", default_value_t = 1024, value_parser = clap::builder::RangedU64ValueParser::<usize>::new().range(1..))]
    connections: usize,
    /// Memory that all connections together may hold for requests and answers. Near the limit connections are read later; at the limit
    /// the one that holds most is closed [default: a quarter of --memory, at least 64m and 4 x --max-item]
    #[arg(long, value_name = "SIZE", value_parser = size::parse_mebibytes)]
    connection_memory: Option<u64>,
    /// Requests per second that one source may make, and the burst [default: as many as the rate]: above it, its connections wait and its
    /// datagrams are dropped. A source is an IPv4 address, 64 bits of an IPv6 address, or a user at a Unix socket [default: no limit]
    #[arg(long, value_name = "N[:BURST]", value_parser = parse_rate)]
    max_request_rate: Option<(u32, u32)>,
    /// Gets of keys with this beginning that miss wait for the value, for so many milliseconds at most, if another client missed the key
    /// before and has not stored it yet; may be repeated [default: none waits]
    #[arg(long, value_name = "MS[:PREFIX]", value_parser = HoldMisses::parse)]
    hold_misses: Vec<HoldMisses>,
    /// Close connections that are idle for this many seconds; 0: never
    #[arg(long, value_name = "S", default_value_t = 0)]
    idle_timeout: u32,
    /// Back the region with huge pages
    #[arg(long)]
    huge_pages: bool,
    /// Fault in all of the region's memory at the start, and not at first use
    #[arg(long)]
    prefault: bool,
    /// Fail stores when memory is full, instead of evicting. A rule of the region, for all its users: it stays until a server of the
    /// region is started with --evict
    #[arg(long)]
    no_evict: bool,
    /// Evict when memory is full, also in a region that has --no-evict
    #[arg(long, conflicts_with = "no_evict")]
    evict: bool,
    /// Durable mode: every acknowledged change survives a power failure; needs a file on persistent memory (DAX)
    #[arg(long, alias = "strict")]
    durable: bool,
    /// Give every item of a new region a checksum that every reader verifies: data that a process overwrites by mistake becomes a miss,
    /// not a wrong value
    #[arg(long)]
    checksums: bool,
    /// Thread slots of a new region, for all processes, at least 32; one in eight, and at least 16, is reserved for servers
    /// [default: one for each 512 KiB of memory, 32 to 4096]
    #[arg(long, value_name = "N")]
    sessions: Option<usize>,
    /// Apply --gap if no process has used the region for more than this many seconds [default: never]
    #[arg(long, value_name = "S")]
    max_gap: Option<u64>,
    /// What to do with the items after a longer gap: serve them, serve them as stale (meta flag X), or flush them
    #[arg(long, value_name = "serve|stale|flush", default_value = "serve", requires = "max_gap", value_parser = parse_gap)]
    gap: Gap,
    /// Do not confine the server. By default it gives up everything that it does not need once it serves (Landlock, seccomp,
    /// capabilities, no_new_privs)
    #[arg(long)]
    no_sandbox: bool,
    /// Clients must log in: a file with lines USER:SECRET[:ro|:rw[:prefix=PREFIX]]. SECRET is a password or its hash (keyway password);
    /// lines cert:NAME::ro and peer:USER::ro let in certificates and users of this machine. Read again on SIGHUP
    #[arg(long, value_name = "PATH")]
    auth_file: Option<PathBuf>,
    /// Let clients log in by SASL (binary protocol) without TLS from other machines, too: their passwords can be read on the network
    #[arg(long, requires = "auth_file")]
    auth_without_tls: bool,
    /// The server's certificate for TLS, followed by those that lead to its authority: a PEM file, read again on SIGHUP
    #[arg(long, value_name = "PATH", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The certificate's private key: a PEM file
    #[arg(long, value_name = "PATH", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Clients must have a certificate that an authority of this PEM file has signed
    #[arg(long, value_name = "PATH", requires = "tls_cert")]
    tls_client_ca: Option<PathBuf>,
    /// Let clients without a certificate in, too; a certificate that a client has must be valid
    #[arg(long, requires = "tls_client_ca")]
    tls_client_optional: bool,
    /// Oldest version of TLS: 1.2 or 1.3
    #[arg(long, value_name = "1.2|1.3", default_value = "1.2", value_parser = parse_tls_version)]
    tls_min_version: TlsVersion,
    /// Let `stats sizes` count the items by size, each time by a walk over all items
    #[arg(long)]
    track_sizes: bool,
    /// Take over the server of the same region, which runs with this user: get its sockets and its clients' connections, so that no client
    /// notices, and let it end. If this fails, that server goes on. Without such a server, start as usual
    #[arg(long)]
    take_over: bool,
    /// Forbid flush_all. A rule of the region, for all its users: it stays until a server of the region is started with --flush
    #[arg(long)]
    no_flush: bool,
    /// Allow flush_all, also in a region that has --no-flush
    #[arg(long, conflicts_with = "no_flush")]
    flush: bool,
    /// Allow the command `shutdown`
    #[arg(long)]
    allow_shutdown: bool,
    /// Log more: -v events of the server, -vv connections, -vvv requests
    #[arg(long, short = 'v', action = ArgAction::Count)]
    pub(crate) verbose: u8,
    /// How a line of the log looks: text, or a JSON object with time, level, target and message
    #[arg(long, value_name = "text|json", default_value = "text", value_parser = logger::parse)]
    pub(crate) log_format: logger::Format,
}

impl Serve {
    /// What to do, with these sockets that exist already.
    pub(crate) fn plan(mut self, given: &Given) -> Result<Plan, Failure> {
        if self.take_over && self.region == Some(Place::Memfd) {
            return Err(Failure::usage(
                "--take-over with --region memfd: this memory has no name by which the running server is found; give the region a path",
            ));
        }
        let plan = Plan {
            place: self.region.take(),
            take_over: self.take_over,
            options: self.options(),
            sandbox: !self.no_sandbox,
            keeps_memory: true,
            config: self.config(given)?,
            ..Plan::default()
        };
        plan.check_item_size("--max-item", "--memory")?;
        plan.check_connection_memory("--connection-memory", "--max-item")?;
        plan.config.check().map_err(Failure::usage)?;
        Ok(plan)
    }

    fn config(mut self, given: &Given) -> Result<Config, Failure> {
        let kernel = self.kernel_door()?;
        let (tcp, tls_tcp) = self.tcp_addresses(given)?;
        let tls = self.tls(!tls_tcp.is_empty() || given.has(Role::Tls))?;
        let (udp, udp_allow) = self.udp_addresses()?;
        let http = self.http.as_deref().map(listen::parse_http).transpose();
        let http = http.map_err(Failure::of("--http"))?;
        let cpus = self.cpus.as_deref().map(cpus::parse).transpose();
        let cpus = cpus.map_err(Failure::of("--cpus"))?.unwrap_or_default();
        let http_hosts = self.http.as_deref().and_then(listen::http_host).into_iter();
        let http_hosts = http_hosts.chain(self.http_host).collect();
        let mode = self.socket_mode;
        let mut config = Config {
            tcp,
            tls_tcp,
            tls,
            unix: self.socket.map(|path| UnixSocket { path, mode }),
            region_socket: self.region_socket.map(|path| RegionSocket {
                path,
                writers: self.region_writers.unwrap_or_default(),
                readers: self.region_readers.unwrap_or_default(),
            }),
            udp,
            udp_allow,
            http,
            http_hosts,
            http_keys: self.http_keys,
            kernel,
            threads: self.threads,
            event_loop: self.event_loop,
            cpus,
            busy_poll: self.busy_poll,
            connections_max: self.connections,
            connection_memory: self
                .connection_memory
                .map_or(0, |size| usize::try_from(size).unwrap_or(usize::MAX)),
            request_rate: self.max_request_rate,
            hold_misses: self.hold_misses,
            udp_answer_max: self.udp_answer_max,
            idle_timeout: Duration::from_secs(self.idle_timeout.into()),
            auth_file: self.auth_file,
            sasl: match self.auth_without_tls {
                true => Sasl::Everywhere,
                false => Sasl::Protected,
            },
            track_sizes: self.track_sizes,
            shutdown_enabled: self.allow_shutdown,
            verbosity: self.verbose,
            ..Config::default()
        };
        given
            .ask_for(&mut config)
            .map_err(|error| Failure::new(exit::SYSTEM, error))?;
        Ok(config)
    }

    /// The addresses for UDP, and the networks from which packets are answered.
    fn udp_addresses(&self) -> Result<(Vec<SocketAddr>, Vec<Network>), Failure> {
        let udp = self.udp.as_deref().map(|text| listen::parse(text, place::DEFAULT_PORT));
        let udp = udp.transpose().map_err(Failure::of("--udp"))?.unwrap_or_default();
        let allowed = match self.udp_allow.as_slice() {
            [] => LOOPBACK.to_vec(),
            given => given.to_vec(),
        };
        Ok((udp, allowed))
    }

    fn kernel_door(&mut self) -> Result<Option<Kernel>, Failure> {
        let has_kernel_door = !self.kernel.is_empty() || self.kernel_pinned.is_some();
        if self.kernel_tcp && !has_kernel_door {
            return Err(Failure::usage(
                "--kernel-tcp is a part of the kernel door: give --kernel IFACE, or --kernel-pinned FOLDER",
            ));
        }
        Ok(has_kernel_door.then(|| Kernel {
            interfaces: std::mem::take(&mut self.kernel),
            pinned: self.kernel_pinned.take(),
            tcp: self.kernel_tcp,
            memory: usize::try_from(self.kernel_memory).unwrap_or(usize::MAX),
            rate: self.kernel_rate,
        }))
    }

    /// What a new region is like, and the rules of an old one.
    fn options(&self) -> Options {
        Options::new()
            .memory(self.memory.unwrap_or(Options::MEMORY_DEFAULT))
            .keep_memory(self.memory.is_none())
            .huge_pages(self.huge_pages)
            .prefault(self.prefault)
            .item_size_max(self.max_item)
            .evict(rule(self.evict, self.no_evict))
            .flush(rule(self.flush, self.no_flush))
            .durable(self.durable)
            .checksums(self.checksums)
            .owners(self.owner.owners())
            .sessions(self.sessions)
            .gap_max_s(self.max_gap)
            .gap(self.gap)
    }

    /// The TCP addresses without TLS, and those with it.
    fn tcp_addresses(&self, given: &Given) -> Result<(Vec<SocketAddr>, Vec<SocketAddr>), Failure> {
        let (mut tcp, mut tls_tcp): (Vec<SocketAddr>, Vec<SocketAddr>) = (Vec::new(), Vec::new());
        let listen = if self.listen.is_empty() && !given.has_clients() {
            vec!["127.0.0.1".to_owned()]
        } else {
            self.listen.clone()
        };
        for text in &listen {
            let (addresses, text) = match text.strip_prefix("tls://") {
                Some(text) => (&mut tls_tcp, text),
                None => (&mut tcp, text.as_str()),
            };
            addresses.extend(listen::parse(text, place::DEFAULT_PORT).map_err(Failure::of("--listen"))?);
        }
        Ok((tcp, tls_tcp))
    }

    /// What TLS needs, if any address has it.
    fn tls(&self, has_tls: bool) -> Result<Option<Tls>, Failure> {
        match (&self.tls_cert, &self.tls_key) {
            (Some(certificate), Some(key)) if has_tls => Ok(Some(Tls {
                certificate: certificate.clone(),
                key: key.clone(),
                client_certificates: match (&self.tls_client_ca, self.tls_client_optional) {
                    (None, _) => ClientCertificates::Ignored,
                    (Some(_), true) => ClientCertificates::Optional,
                    (Some(_), false) => ClientCertificates::Required,
                },
                client_ca: self.tls_client_ca.clone(),
                min_version: self.tls_min_version,
            })),
            (Some(_), _) => Err(Failure::usage(
                "--tls-cert: no address has TLS; write --listen tls://ADDR[:PORT], and leave out addresses without tls:// to have nothing else",
            )),
            (None, _) if has_tls => Err(Failure::usage(
                "--listen tls://…, or a socket with the name tls: TLS needs --tls-cert and --tls-key",
            )),
            (None, _) => Ok(None),
        }
    }
}

/// A rate: how many per second, and how many at once after a pause.
pub(crate) fn parse_rate(text: &str) -> Result<(u32, u32), String> {
    let (rate, burst) = text.split_once(':').unwrap_or((text, text));
    match (rate.parse(), burst.parse()) {
        (Ok(rate), Ok(burst)) if rate > 0 && burst > 0 => Ok((rate, burst)),
        _ => Err(format!(
            "\"{text}\" is not a rate: write how many per second and the burst, as in 1000:100, each from 1 to {}",
            u32::MAX
        )),
    }
}

fn parse_gap(text: &str) -> Result<Gap, String> {
    match text {
        "serve" => Ok(Gap::Serve),
        "stale" => Ok(Gap::Stale),
        "flush" => Ok(Gap::Flush),
        _ => Err("it must be serve, stale or flush".to_owned()),
    }
}

fn parse_tls_version(text: &str) -> Result<TlsVersion, String> {
    match text {
        "1.2" => Ok(TlsVersion::V1_2),
        "1.3" => Ok(TlsVersion::V1_3),
        _ => Err("it must be 1.2 or 1.3; older versions are not spoken (RFC 8996)".to_owned()),
    }
}

fn refuse_local_bypass(_: &str) -> Result<Infallible, &'static str> {
    Err(
        "the same-machine bypass no longer exists. Faster than TCP on this machine are a Unix socket (--socket PATH) and the library",
    )
}

/// The mode of a socket.
pub(crate) fn parse_mode(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o777 => Ok(mode),
        _ => Err(format!("\"{text}\" is not an octal file mode, such as 700 or 0770")),
    }
}

/// A rule of the region, if either option is given.
fn rule(on: bool, off: bool) -> Option<bool> {
    (on || off).then_some(on)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cli, Command};
    use clap::Parser;
    use keyway_server::HttpAddress;

    fn plan(line: &str) -> Result<Plan, Failure> {
        let words = ["keyway", "serve"].into_iter().chain(line.split_whitespace());
        match Cli::try_parse_from(words).map(|cli| cli.command) {
            Ok(Some(Command::Serve(serve))) => serve.plan(&Given::default()),
            Ok(_) => panic!("{line}"),
            Err(error) => Err(Failure::usage(error)),
        }
    }

    #[test]
    fn serve_has_the_defaults_that_it_tells() {
        let plan = plan("").unwrap();
        assert_eq!(plan.config.tcp, ["127.0.0.1:11211".parse().unwrap()]);
        assert_eq!(
            (plan.options.memory, plan.options.item_size_max, plan.config.threads),
            (Some(64 << 20), None, 4)
        );
        assert_eq!(plan.place, None);
    }

    #[test]
    fn serve_takes_its_options() {
        let plan =
            plan("--listen 127.0.0.1:5 --listen [::1]:6 --socket /s --socket-mode 770 --region memfd --memory 8 -vv").unwrap();
        assert_eq!(plan.config.tcp, ["127.0.0.1:5".parse().unwrap(), "[::1]:6".parse().unwrap()]);
        assert_eq!(
            plan.config.unix,
            Some(UnixSocket {
                path: "/s".into(),
                mode: 0o770
            })
        );
        assert_eq!(
            (plan.place, plan.options.memory, plan.config.verbosity),
            (Some(Place::Memfd), Some(8 << 20), 2)
        );
    }

    #[test]
    fn tls_is_where_an_address_asks_for_it() {
        let line = "-l tls://127.0.0.1 -l 127.0.0.1:5 --tls-cert c.pem --tls-key k.pem --tls-client-ca a.pem";
        let config = plan(line).unwrap().config;
        assert_eq!(config.tcp, ["127.0.0.1:5".parse().unwrap()]);
        assert_eq!(config.tls_tcp, ["127.0.0.1:11211".parse().unwrap()]);
        assert_eq!(config.tls.unwrap().client_certificates, ClientCertificates::Required);
        for (line, word) in [
            ("-l tls://127.0.0.1", "--tls-cert"),
            ("--tls-cert c.pem --tls-key k.pem", "tls://"),
        ] {
            let failure = plan(line).unwrap_err();
            assert!(failure.reason.contains(word), "{line}: {failure:?}");
        }
    }

    #[test]
    fn a_given_socket_takes_the_place_of_the_default_address() {
        let socket = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let mut given = Given::default();
        given.add(socket.into(), "descriptor 3", Role::Tls, false).unwrap();
        let plan = |line: &str| {
            let words = ["keyway", "serve"].into_iter().chain(line.split_whitespace());
            match Cli::try_parse_from(words).unwrap().command {
                Some(Command::Serve(serve)) => serve.plan(&given),
                _ => panic!("{line}"),
            }
        };
        let config = plan("--tls-cert c.pem --tls-key k.pem").unwrap().config;
        assert_eq!((config.tcp, config.tls_tcp), (vec![], vec![address]));
        assert!(plan("").unwrap_err().reason.contains("--tls-cert"));
        let both = plan("-l 127.0.0.1:5 --tls-cert c.pem --tls-key k.pem").unwrap().config;
        assert_eq!(both.tcp, ["127.0.0.1:5".parse().unwrap()]);
    }

    #[test]
    fn udp_is_off_until_asked_for_and_answers_this_machine_until_told_otherwise() {
        assert_eq!(
            (plan("").unwrap().config.udp, plan("").unwrap().config.udp_allow),
            (vec![], LOOPBACK.to_vec())
        );
        let config = plan("--udp 127.0.0.1:7 --udp-allow 10.0.0.0/8,::1 --udp-allow 1.2.3.4")
            .unwrap()
            .config;
        assert_eq!(config.udp, ["127.0.0.1:7".parse().unwrap()]);
        let allowed: Vec<_> = config.udp_allow.iter().map(ToString::to_string).collect();
        assert_eq!(allowed, ["10.0.0.0/8", "::1/128", "1.2.3.4/32"]);
        assert_eq!(
            plan("--udp 127.0.0.1").unwrap().config.udp,
            ["127.0.0.1:11211".parse().unwrap()]
        );
    }

    #[test]
    fn the_http_port_is_off_until_asked_for() {
        assert_eq!(plan("").unwrap().config.http, None);
        let http = plan("--http [::1]").unwrap().config.http;
        assert_eq!(http, Some(HttpAddress::Tcp(vec!["[::1]:11212".parse().unwrap()])));
        let config = plan("--http localhost:1 --http-host cache.example --http-host shop")
            .unwrap()
            .config;
        assert_eq!(config.http_hosts, ["localhost", "cache.example", "shop"]);
    }

    #[test]
    fn threads_and_what_they_wait_with_are_reported() {
        let config = plan("--cpus 1,0 --busy-poll 50 --event-loop epoll").unwrap().config;
        assert_eq!((config.cpus, config.busy_poll), (vec![1, 0], Duration::from_micros(50)));
        assert_eq!(config.event_loop, EventLoop::Epoll);
        assert_eq!(plan("").unwrap().config.event_loop, EventLoop::Auto);
    }

    #[test]
    fn the_kernel_door_is_off_until_asked_for() {
        assert_eq!(plan("--udp 127.0.0.1").unwrap().config.kernel, None);
        let line = "--udp 127.0.0.1 --kernel eth0,lo --kernel-memory 8m --kernel-rate 5:2";
        let kernel = plan(line).unwrap().config.kernel.unwrap();
        assert_eq!(kernel.interfaces, ["eth0", "lo"]);
        assert_eq!((kernel.memory, kernel.rate, kernel.tcp), (8 << 20, Some((5, 2)), false));
        let kernel = plan("--kernel lo --kernel-tcp").unwrap().config.kernel.unwrap();
        assert!(kernel.tcp);
        let kernel = plan("--udp 127.0.0.1 --kernel-pinned /sys/fs/bpf/x")
            .unwrap()
            .config
            .kernel
            .unwrap();
        assert_eq!((kernel.pinned, kernel.memory), (Some("/sys/fs/bpf/x".into()), 64 << 20));
    }

    #[test]
    fn serve_refuses_what_cannot_be() {
        for line in [
            "--cpus 3-1",
            "--busy-poll -1",
            "--event-loop kqueue",
            "--threads 0",
            "--memory x",
            "--max-item 1",
            "--memory 1m --max-item 1m",
            "--listen nowhere:x",
            "--socket-mode 9",
            "--udp nowhere:x",
            "--http-host cache.example",
            "--http 127.0.0.1 --http-host http://cache.example/",
            "--http 127.0.0.1 --http-host cache.example:80",
            "--http nowhere:x",
            "--http 127.0.0.1:0",
            "--udp 127.0.0.1 --kernel-tcp",
            "--udp 127.0.0.1 --kernel lo --kernel-rate 0",
            "--udp 127.0.0.1 --kernel lo --kernel-pinned /p",
            "--udp-allow 10.0.0.0/8",
            "--take-over --region memfd",
            "--listen 127.0.0.1:0",
            "--udp 127.0.0.1 --auth-file users",
            "--udp 127.0.0.1 --udp-allow 10.0.0.1/8",
        ] {
            assert!(plan(line).is_err(), "{line}");
        }
    }
}
