//! memcached's own command line, so that units, scripts and test harnesses keep working: `keyway memcached …`, or this program
//! under the name `memcached`.
//!
//! The rules are those of getopt_long(3): bundled flags (`-vvd`), attached values (`-m64`), `--name=value`, names shortened as long as
//! they are unambiguous. An option means the same as in memcached; [`OPTIONS`] has them all. An option for a feature that Keyway
//! does not have is refused with its name, and one without a meaning here is accepted and ignored. An unknown `-o` causes a warning only,
//! because configurations contain flags of all versions.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use keyway_server::{ClientCertificates, KEYWAY_VERSION, Network, PROTOCOL_VERSION, Protocol, Tls, TlsVersion, UnixSocket};

use crate::exit::Failure;
use crate::plan::Plan;
use crate::{cpus, listen, place, size};

/// Whether an option takes a value.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Value {
    No,
    Yes,
    /// only attached, as in `--verbose=2`
    Attached,
}

/// Every option: letter, long name, value, help.
const OPTIONS: [(char, &str, Value, &str); 37] = [
    ('p', "port", Value::Yes, "TCP port (default 11211; 0: off; -1: any free one)"),
    (
        'U',
        "udp-port",
        Value::Yes,
        "UDP port (default 0: off; -1: any free one); answers this machine only, unless -o udp_allow names other networks",
    ),
    (
        's',
        "unix-socket",
        Value::Yes,
        "Unix socket; turns TCP off unless -p or -l is also given",
    ),
    ('a', "unix-mask", Value::Yes, "mode of the Unix socket, octal (default 700)"),
    ('A', "enable-shutdown", Value::No, "allow the command \"shutdown\""),
    (
        'l',
        "listen",
        Value::Yes,
        "addresses to listen on, separated by commas, each with an optional port (default: all)",
    ),
    (
        'd',
        "daemon",
        Value::No,
        "run in the background; returns when the server is ready",
    ),
    ('r', "enable-coredumps", Value::No, "allow core files"),
    ('u', "user", Value::Yes, "become this user (only as root)"),
    (
        'm',
        "memory-limit",
        Value::Yes,
        "size of the region, MiB, or with unit: 512k, 64m, 1g; includes everything (default 64)",
    ),
    (
        'M',
        "disable-evictions",
        Value::No,
        "fail stores when memory is full, instead of evicting",
    ),
    ('c', "conn-limit", Value::Yes, "most connections at a time (default 1024)"),
    ('k', "lock-memory", Value::No, "lock all memory"),
    (
        'v',
        "verbose",
        Value::Attached,
        "log more: -v events of the server, -vv connections, -vvv requests",
    ),
    ('h', "help", Value::No, "this help"),
    ('i', "license", Value::No, "the licence"),
    ('V', "version", Value::No, "the version"),
    ('P', "pidfile", Value::Yes, "write the process id to this file"),
    ('f', "slab-growth-factor", Value::Yes, "ignored: there are no slabs"),
    ('n', "slab-min-size", Value::Yes, "ignored: there are no slabs"),
    ('L', "enable-largepages", Value::No, "huge pages"),
    (
        'D',
        "prefix-delimiter",
        Value::Yes,
        "count by key prefix up to this character (\"stats detail\")",
    ),
    ('t', "threads", Value::Yes, "worker threads (default 4)"),
    (
        'R',
        "max-reqs-per-event",
        Value::Yes,
        "most requests of a connection in one turn (default 20)",
    ),
    ('C', "disable-cas", Value::No, "show no CAS uniques"),
    (
        'b',
        "listen-backlog",
        Value::Yes,
        "connections that the kernel queues (default 1024)",
    ),
    ('B', "protocol", Value::Yes, "ascii, binary or auto"),
    (
        'I',
        "max-item-size",
        Value::Yes,
        "largest item, bytes, or with unit (default 1m; 1k to 1g)",
    ),
    ('S', "enable-sasl", Value::No, "not available"),
    ('F', "disable-flush-all", Value::No, "forbid flush_all"),
    ('X', "disable-dumping", Value::No, "forbid dumps and \"stats detail\""),
    ('W', "disable-watch", Value::No, "forbid \"watch\""),
    (
        'Y',
        "auth-file",
        Value::Yes,
        "authenticate by user:password lines of this file",
    ),
    (
        'e',
        "memory-file",
        Value::Yes,
        "the region's file, or memfd (default /dev/shm/keyway-UID-PORT)",
    ),
    (
        'Z',
        "enable-ssl",
        Value::No,
        "TLS on all TCP addresses but those with notls: before them; needs -o ssl_chain_cert and -o ssl_key",
    ),
    (
        'o',
        "extended",
        Value::Yes,
        "idle_timeout=<s>, maxconns_fast, no_maxconns_fast, modern, no_modern, udp_allow=<network>, udp_answer_max=<size>, connection_memory=<size>, ssl_chain_cert=<file>, ssl_key=<file>, ssl_ca_cert=<file>, ssl_verify_mode=<0 none, 1 optional, 2 required>, ssl_min_version=<2 TLS 1.2, 3 TLS 1.3>; others are ignored",
    ),
    ('N', "napi-ids", Value::Yes, "ignored"),
];

/// `-o` names without a meaning in a store that has no slabs, LRU lists, crawlers or resizable hash table.
const WITHOUT_MEANING: [&str; 33] = [
    "hashpower",
    "no_hashexpand",
    "slab_reassign",
    "no_slab_reassign",
    "slab_automove",
    "no_slab_automove",
    "slab_automove_ratio",
    "slab_automove_window",
    "slab_automove_freeratio",
    "slab_sizes",
    "slab_chunk_max",
    "no_chunked_items",
    "tail_repair_time",
    "hash_algorithm",
    "lru_crawler",
    "no_lru_crawler",
    "lru_crawler_sleep",
    "lru_crawler_tocrawl",
    "lru_maintainer",
    "no_lru_maintainer",
    "hot_lru_pct",
    "warm_lru_pct",
    "hot_max_factor",
    "warm_max_factor",
    "temporary_ttl",
    "watcher_logbuf_size",
    "worker_logbuf_size",
    "inline_ascii_resp",
    "no_inline_ascii_resp",
    "resp_obj_mem_limit",
    "read_buf_mem_limit",
    "no_drop_privileges",
    "modern",
];

/// What a command line asks for: to serve, or to print a text.
#[derive(Debug)]
pub(crate) enum Asked {
    Serve(Box<Plan>),
    Print(String),
}

/// Parses the arguments that follow the program's name.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Asked, Failure> {
    let mut reading = Reading::default();
    for (letter, value) in options(arguments, &mut reading.plan.warnings)? {
        match letter {
            'h' => return Ok(Asked::Print(help())),
            'V' => return Ok(Asked::Print(version())),
            'i' => return Ok(Asked::Print("Keyway is under the Apache License, version 2.0.\n".to_owned())),
            _ => reading.take(letter, value.trim_start())?,
        }
    }
    Ok(Asked::Serve(Box::new(reading.finish()?)))
}

/// The first line has memcached's form, because scripts read the number in it.
fn version() -> String {
    format!("memcached {PROTOCOL_VERSION} (keyway {KEYWAY_VERSION})\n")
}

fn help() -> String {
    let mut text = version();
    for (letter, name, value, help) in OPTIONS {
        let value = if value == Value::Yes { "=<value>" } else { "" };
        text.push_str(&format!("-{letter}, {:<28} {help}\n", format!("--{name}{value}")));
    }
    text
}

/// Splits arguments into letters and values, as getopt_long does.
fn options(arguments: impl IntoIterator<Item = OsString>, warnings: &mut Vec<String>) -> Result<Vec<(char, String)>, Failure> {
    let mut found = Vec::new();
    let mut arguments = arguments.into_iter().map(|argument| {
        argument
            .into_string()
            .map_err(|raw| Failure::usage(format_args!("{} is not valid UTF-8", raw.display())))
    });
    let mut only_operands = false;
    while let Some(argument) = arguments.next().transpose()? {
        let mut next_value = |option: &str| {
            arguments
                .next()
                .transpose()?
                .ok_or_else(|| Failure::usage(format_args!("{option} needs a value after it")))
        };
        if only_operands || !argument.starts_with('-') || argument == "-" {
            warnings.push(format!(
                "\"{argument}\" is ignored: memcached's command line has options only"
            ));
        } else if argument == "--" {
            only_operands = true;
        } else if let Some(long) = argument.strip_prefix("--") {
            let (name, attached) = match long.split_once('=') {
                Some((name, value)) => (name, Some(value.to_owned())),
                None => (long, None),
            };
            let (letter, takes) = long_option(name)?;
            let value = match (takes, attached) {
                (Value::No, Some(_)) => return Err(Failure::usage(format_args!("--{name} takes no value"))),
                (Value::Yes, None) => next_value(&format!("--{name}"))?,
                (_, attached) => attached.unwrap_or_default(),
            };
            found.push((letter, value));
        } else {
            let mut letters = argument[1..].chars();
            while let Some(letter) = letters.next() {
                let takes = short_option(letter)?;
                let mut value = String::new();
                if takes == Value::Yes {
                    value = letters.as_str().to_owned();
                    letters = "".chars();
                    if value.is_empty() {
                        value = next_value(&format!("-{letter}"))?;
                    }
                }
                found.push((letter, value));
            }
        }
    }
    Ok(found)
}

fn short_option(letter: char) -> Result<Value, Failure> {
    let found = OPTIONS.iter().find(|option| option.0 == letter);
    found
        .map(|option| option.2)
        .ok_or_else(|| Failure::usage(format_args!("-{letter} is no option of memcached; -h lists them")))
}

fn long_option(name: &str) -> Result<(char, Value), Failure> {
    let candidates: Vec<_> = OPTIONS.iter().filter(|option| option.1.starts_with(name)).collect();
    match (candidates.iter().find(|option| option.1 == name), &candidates[..]) {
        (Some(option), _) | (None, [option]) => Ok((option.0, option.2)),
        (None, []) => Err(Failure::usage(format_args!(
            "--{name} is no option of memcached; -h lists them"
        ))),
        (None, [..]) => Err(Failure::usage(format_args!(
            "--{name} may be several options; write it in full"
        ))),
    }
}

/// The command line as far as it has been parsed.
struct Reading {
    plan: Plan,
    /// -1: any free port
    port: i32,
    port_given: bool,
    /// 0: no UDP; -1: any free port
    udp_port: i32,
    udp_allow: Vec<Network>,
    addresses: Vec<String>,
    socket: Option<String>,
    socket_mode: u32,
    has_tls: bool,
    tls: Tls,
}

impl Default for Reading {
    fn default() -> Self {
        let port = place::DEFAULT_PORT.into();
        Self {
            plan: Plan::default(),
            port,
            port_given: false,
            udp_port: 0,
            udp_allow: Vec::new(),
            addresses: Vec::new(),
            socket: None,
            socket_mode: 0o700,
            has_tls: false,
            tls: Tls {
                certificate: PathBuf::new(),
                key: PathBuf::new(),
                client_ca: None,
                client_certificates: ClientCertificates::Ignored,
                min_version: TlsVersion::V1_2,
            },
        }
    }
}

impl Reading {
    fn take(&mut self, letter: char, value: &str) -> Result<(), Failure> {
        let plan = &mut self.plan;
        let config = &mut plan.config;
        match letter {
            'p' => {
                self.port = number("-p", value, -1, 65535)?;
                self.port_given = true;
            }
            'U' => self.udp_port = number("-U", value, -1, 65535)?,
            'l' => self
                .addresses
                .extend(value.split([',', ';']).filter(|part| !part.is_empty()).map(str::to_owned)),
            's' => self.socket = Some(value.to_owned()),
            'a' => {
                self.socket_mode = u32::from_str_radix(value, 8)
                    .map_err(|_| Failure::usage(format_args!("-a {value} is no octal file mode, such as 700 or 0770")))?;
            }
            'A' => config.shutdown_enabled = true,
            'F' => config.flush_enabled = false,
            'X' => config.dump_enabled = false,
            'W' => config.watch_enabled = false,
            'C' => config.cas_enabled = false,
            'M' => {
                config.evict = false;
                plan.options.evict = false;
            }
            'c' => config.connections_max = number("-c", value, 1, usize::MAX)?,
            't' => config.threads = number("-t", value, 1, 4096)?,
            'R' => config.requests_per_turn = number("-R", value, 1, usize::MAX)?,
            'b' => config.backlog = number("-b", value, 1, i32::MAX)?,
            'v' => config.verbosity = config.verbosity.saturating_add(1),
            'D' => match value.bytes().next() {
                Some(delimiter) => config.detail_delimiter = Some(delimiter),
                None => return Err(Failure::usage("-D needs a character after it")),
            },
            'Y' => config.auth_file = Some(value.into()),
            'm' => plan.options.memory = size::parse_mebibytes(value).map_err(|why| Failure::usage(format_args!("-m: {why}")))?,
            'I' => {
                plan.options.item_size_max =
                    size::parse_item_size(value).map_err(|why| Failure::usage(format_args!("-I: {why}")))?
            }
            'e' => plan.place = Some(place::parse(value).map_err(Failure::usage)?),
            'L' => plan.options.huge_pages = true,
            'd' => plan.daemon = true,
            'P' => plan.pid_file = Some(value.into()),
            'u' => plan.user = Some(value.to_owned()),
            'k' => plan.lock_memory = true,
            'r' => plan.core_dumps = true,
            'B' => {
                config.protocol = match value {
                    "auto" => Protocol::Auto,
                    "ascii" => Protocol::Text,
                    "binary" => Protocol::Binary,
                    _ => {
                        return Err(Failure::usage(format_args!(
                            "-B {value}: the protocol is auto, ascii or binary"
                        )));
                    }
                };
            }
            'S' => return Err(missing("-S", "SASL", "-Y has authentication for the text protocol")),
            'Z' => self.has_tls = true,
            'o' => {
                for part in value.split(',').filter(|part| !part.is_empty()) {
                    self.take_extended(part)?;
                }
            }
            // Options without a meaning here: -f, -n, -N.
            _ => {}
        }
        Ok(())
    }

    fn take_extended(&mut self, part: &str) -> Result<(), Failure> {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let plan = &mut self.plan;
        match name {
            "idle_timeout" => {
                plan.config.idle_timeout = Duration::from_secs(number("-o idle_timeout", value, 0, u32::MAX)?.into());
            }
            "udp_allow" => {
                let network = value
                    .parse()
                    .map_err(|why| Failure::usage(format_args!("-o udp_allow: {why}")))?;
                self.udp_allow.push(network);
            }
            "udp_answer_max" => {
                plan.config.udp_answer_max =
                    size::parse_answer_size(value).map_err(|why| Failure::usage(format_args!("-o udp_answer_max: {why}")))?;
            }
            "connection_memory" => {
                let memory =
                    size::parse_mebibytes(value).map_err(|why| Failure::usage(format_args!("-o connection_memory: {why}")))?;
                plan.config.connection_memory = usize::try_from(memory).unwrap_or(usize::MAX);
            }
            "event_loop" => {
                plan.config.event_loop =
                    cpus::parse_event_loop(value).map_err(|why| Failure::usage(format_args!("-o event_loop: {why}")))?;
            }
            "busy_poll" => {
                plan.config.busy_poll =
                    cpus::parse_busy_poll(value).map_err(|why| Failure::usage(format_args!("-o busy_poll: {why}")))?;
            }
            "maxconns_fast" => plan.config.connections_fast = true,
            "no_maxconns_fast" | "no_modern" => plan.config.connections_fast = false,
            "ssl_chain_cert" => self.tls.certificate = value.into(),
            "ssl_key" => self.tls.key = value.into(),
            "ssl_ca_cert" => self.tls.client_ca = Some(value.into()),
            "ssl_verify_mode" => {
                self.tls.client_certificates = match number("-o ssl_verify_mode", value, 0, 3)? {
                    0 => ClientCertificates::Ignored,
                    1 => ClientCertificates::Optional,
                    _ => ClientCertificates::Required,
                };
            }
            "ssl_min_version" => {
                self.tls.min_version = match number("-o ssl_min_version", value, 0, 3)? {
                    3 => TlsVersion::V1_3,
                    2 => TlsVersion::V1_2,
                    _ => {
                        plan.warnings
                            .push(format!("-o ssl_min_version={value}: TLS before 1.2 is not spoken (RFC 8996)"));
                        TlsVersion::V1_2
                    }
                };
            }
            "ssl_keyformat" if number("-o ssl_keyformat", value, 0, 3)? != 1 => {
                return Err(missing(
                    "-o ssl_keyformat",
                    "key format but PEM",
                    "convert the key: openssl pkey -in KEY -out KEY.pem",
                ));
            }
            "ssl_ciphers" => plan
                .warnings
                .push("-o ssl_ciphers is ignored: only ciphers without known weakness are offered".to_owned()),
            // Sessions are resumed by tickets; a record has at most 16 KiB; the kernel encrypts nothing.
            "ssl_keyformat" | "ssl_session_cache" | "ssl_wbuf_size" | "ssl_kernel_tls" => {}
            _ if name.starts_with("ext_") => {
                return Err(missing(
                    &format!("-o {name}"),
                    "external storage",
                    "give the region more memory with -m",
                ));
            }
            _ if name.starts_with("proxy_") => {
                return Err(missing(&format!("-o {name}"), "the proxy", "run memcached's own for that"));
            }
            "track_sizes" => plan.config.track_sizes = true,
            "no_track_sizes" => plan.config.track_sizes = false,
            "drop_privileges" => {
                plan.sandbox = true;
            }
            _ if WITHOUT_MEANING.contains(&name) => {}
            _ => plan.warnings.push(format!("-o {name} is unknown, and ignored")),
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Plan, Failure> {
        self.plan.check_item_size("-I", "-m")?;
        self.plan.check_connection_memory("-o connection_memory", "-I")?;
        if self.plan.config.auth_file.is_some() && self.plan.config.protocol == Protocol::Binary {
            return Err(Failure::usage("-Y with -B binary: a login is a line of text; leave one out"));
        }
        // memcached listens on a Unix socket instead of TCP. Keyway can do both, but only if both are requested: otherwise a
        // second server on one machine would compete for the port, and a private cache would become public.
        let tcp_is_off = self.socket.is_some() && !self.port_given && self.addresses.is_empty();
        if self.udp_port != 0 && !self.port_given {
            self.port = self.udp_port;
        }
        if !tcp_is_off {
            (self.plan.config.tcp, self.plan.config.tls_tcp) = self.tcp_addresses()?;
            // Without -l, memcached accepts that only one address family is free.
            self.plan.config.tcp_where_free = self.addresses.is_empty();
        }
        if self.has_tls {
            for (option, path) in [("ssl_chain_cert", &self.tls.certificate), ("ssl_key", &self.tls.key)] {
                if path.as_os_str().is_empty() {
                    return Err(Failure::usage(format_args!("-Z needs -o {option}=<file>")));
                }
            }
            self.plan.config.tls = Some(self.tls.clone());
        }
        if self.udp_port != 0 {
            self.plan.config.udp = self.addresses(self.udp_port, |_| true)?;
        }
        if !self.udp_allow.is_empty() {
            self.plan.config.udp_allow = std::mem::take(&mut self.udp_allow);
        } else if self.plan.config.udp.iter().any(|address| !address.ip().is_loopback()) {
            self.plan
                .warnings
                .push("UDP (-U) answers this machine only; -o udp_allow=<network> names others".to_owned());
        }
        if self.port == -1 && self.plan.place.is_none() {
            // With a new port at each start there is no region to reopen.
            self.plan.place = Some(keyway::Place::Memfd);
        }
        self.plan.config.may_listen_nowhere = true;
        if self.plan.config.tcp_and_tls().next().is_none() && self.plan.config.udp.is_empty() && self.socket.is_none() {
            self.plan
                .warnings
                .push("-p 0 leaves no socket that a client could connect to; -s or -U gives one".to_owned());
        }
        let mode = self.socket_mode;
        self.plan.config.unix = self.socket.map(|path| UnixSocket { path: path.into(), mode });
        if self.plan.user.is_none() && nix::unistd::geteuid().is_root() {
            self.plan
                .warnings
                .push("running as root; -u gives this up (memcached insists on it)".to_owned());
        }
        Ok(self.plan)
    }

    /// The TCP addresses without TLS, and those with it.
    fn tcp_addresses(&self) -> Result<(Vec<SocketAddr>, Vec<SocketAddr>), Failure> {
        if !self.has_tls {
            if let Some(text) = self.addresses.iter().find(|text| text.starts_with(NO_TLS)) {
                return Err(Failure::usage(format_args!(
                    "-l {text}: {NO_TLS} is for servers with TLS (-Z); leave it out"
                )));
            }
            return Ok((self.addresses(self.port, |_| true)?, Vec::new()));
        }
        let is_plain = |text: &str| text.starts_with(NO_TLS);
        let (has_plain, has_tls) = (
            self.addresses.iter().any(|text| is_plain(text)),
            self.addresses.is_empty() || self.addresses.iter().any(|text| !is_plain(text)),
        );
        Ok((
            if has_plain {
                self.addresses(self.port, is_plain)?
            } else {
                Vec::new()
            },
            if has_tls {
                self.addresses(self.port, |text| !is_plain(text))?
            } else {
                Vec::new()
            },
        ))
    }

    /// The addresses of `-l` that are `wanted`, with this port; 0 turns them off.
    fn addresses(&self, port: i32, wanted: impl Fn(&str) -> bool) -> Result<Vec<SocketAddr>, Failure> {
        let any_port = port == -1;
        // 1 is a placeholder for "any" until all addresses are known, because 0 means "off" to the parser.
        let port = if any_port { 1 } else { u16::try_from(port).unwrap_or(0) };
        let mut addresses = Vec::new();
        for text in self.addresses.iter().filter(|text| wanted(text)) {
            addresses
                .extend(listen::parse(without_prefixes(text)?, port).map_err(|why| Failure::usage(format_args!("-l: {why}")))?);
        }
        if self.addresses.is_empty() && port != 0 {
            addresses = listen::everywhere(port);
        }
        let mut seen = std::collections::HashSet::new();
        addresses.retain(|address| seen.insert(*address));
        if any_port {
            addresses
                .iter_mut()
                .filter(|address| address.port() == 1)
                .for_each(|address| address.set_port(0));
        }
        Ok(addresses)
    }
}

/// Before an address of `-l` that has no TLS (`-Z`).
const NO_TLS: &str = "notls:";

/// Removes `notls:`, `proto[…]:` and `tag[…]:` from a listener of memcached 1.6.
fn without_prefixes(mut text: &str) -> Result<&str, Failure> {
    for tls in ["btls:", "mtls:"] {
        if text.starts_with(tls) {
            return Err(missing(
                &format!("-l {tls}"),
                "verification of clients per address",
                "-o ssl_verify_mode holds for all addresses with TLS",
            ));
        }
    }
    text = text.strip_prefix(NO_TLS).unwrap_or(text);
    if let Some((protocol, rest)) = text.strip_prefix("proto[").and_then(|rest| rest.split_once("]:")) {
        if !["ascii", "negotiating"].contains(&protocol) {
            return Err(missing(&format!("-l proto[{protocol}]"), "this protocol", "use proto[ascii]"));
        }
        text = rest;
    }
    if let Some((_, rest)) = text.strip_prefix("tag[").and_then(|rest| rest.split_once("]:")) {
        text = rest;
    } else if let Some((_, rest)) = text.strip_prefix("tag_").and_then(|rest| rest.split_once("_:")) {
        text = rest;
    }
    Ok(text)
}

fn missing(option: &str, feature: &str, instead: &str) -> Failure {
    Failure::usage(format_args!(
        "{option}: this version has no {}; {instead}",
        feature.trim_start_matches("the ")
    ))
}

fn number<N>(option: &str, value: &str, least: N, most: N) -> Result<N, Failure>
where
    N: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    match value.trim().parse::<N>() {
        Ok(number) if number >= least && number <= most => Ok(number),
        _ => Err(Failure::usage(format_args!(
            "{option} {value}: a whole number from {least} to {most} belongs there"
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::USAGE;

    fn asked(line: &str) -> Result<Asked, Failure> {
        parse(line.split_whitespace().map(OsString::from))
    }

    fn plan(line: &str) -> Plan {
        match asked(line) {
            Ok(Asked::Serve(plan)) => *plan,
            other => panic!("{line}: {other:?}"),
        }
    }

    fn tcp(line: &str) -> Vec<String> {
        plan(line).config.tcp.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn defaults_are_memcacheds() {
        let plan = plan("");
        assert_eq!((plan.options.memory, plan.options.item_size_max), (64 << 20, 1 << 20));
        let config = &plan.config;
        assert_eq!(
            (
                config.connections_max,
                config.threads,
                config.backlog,
                config.requests_per_turn
            ),
            (1024, 4, 1024, 20)
        );
        assert!(config.connections_fast && config.flush_enabled && config.dump_enabled && !config.shutdown_enabled);
        assert_eq!(tcp(""), ["0.0.0.0:11211", "[::]:11211"]);
    }

    #[test]
    fn flags_are_bundled_attached_and_named_as_getopt_allows() {
        for line in [
            "-m 128 -c 50 -vv -F",
            "-m128 -c50 -vvF",
            "-Fvvm128 -c 50",
            "--memory-limit=128 --conn-limit 50 -v -v -F",
        ] {
            let plan = plan(line);
            assert_eq!((plan.options.memory, plan.config.connections_max), (128 << 20, 50), "{line}");
            assert_eq!((plan.config.verbosity, plan.config.flush_enabled), (2, false), "{line}");
        }
        assert_eq!(plan("--memory-l=1g").options.memory, 1 << 30);
        assert!(plan("-o drop_privileges").sandbox && !plan("-o no_drop_privileges").sandbox);
        assert_eq!(plan("--verbose=1 --disable-f").config.verbosity, 1);
        assert_eq!(asked("--disable").unwrap_err().code, USAGE);
        assert_eq!(asked("--nonsense").unwrap_err().code, USAGE);
        assert_eq!(asked("-q").unwrap_err().code, USAGE);
        assert_eq!(asked("-m").unwrap_err().code, USAGE);
    }

    #[test]
    fn real_command_lines_of_the_wild() {
        // Debian's unit, a container image, and a configuration from memcached 1.4.
        let debian = plan("-m 64 -p 11211 -u memcache -l 127.0.0.1 -l ::1 -P /var/run/memcached/memcached.pid");
        assert_eq!(debian.user.as_deref(), Some("memcache"));
        assert_eq!(
            tcp("-m 64 -p 11211 -u memcache -l 127.0.0.1 -l ::1"),
            ["127.0.0.1:11211", "[::1]:11211"]
        );
        assert_eq!(plan("-m 1024m -I 5m -o modern").options.memory, 1 << 30);
        let old =
            plan("-d -m 512 -f 1.08 -n 72 -o slab_reassign,slab_automove,lru_crawler,hash_algorithm=murmur3,maxconns_fast -U 0");
        assert!(
            old.daemon && old.warnings.iter().all(|warning| warning.contains("root")),
            "{:?}",
            old.warnings
        );
    }

    #[test]
    fn listeners_come_in_memcacheds_forms() {
        assert_eq!(tcp("-l 127.0.0.1:1,127.0.0.2 -p 7"), ["127.0.0.1:1", "127.0.0.2:7"]);
        assert_eq!(tcp("-l proto[ascii]:tag[web]:127.0.0.1:5"), ["127.0.0.1:5"]);
        assert_eq!(tcp("-l 127.0.0.1 -l 127.0.0.1:11211"), ["127.0.0.1:11211"]);
        assert_eq!(tcp("-l tag_web_:[::1]:5"), ["[::1]:5"]);
        assert_eq!(tcp("-p -1 -l 127.0.0.1"), ["127.0.0.1:0"]);
        assert_eq!(plan("-p -1").place, Some(keyway::Place::Memfd));
        assert!(asked("-l proto[binary]:127.0.0.1").is_err());
        assert!(asked("-p 70000").is_err());
    }

    #[test]
    fn a_unix_socket_turns_tcp_off_unless_both_are_asked_for() {
        let only = plan("-s /tmp/s -a 0777");
        assert_eq!(
            only.config.unix,
            Some(UnixSocket {
                path: "/tmp/s".into(),
                mode: 0o777
            })
        );
        assert!(only.config.tcp.is_empty());
        assert_eq!(tcp("-s /tmp/s -l 127.0.0.1"), ["127.0.0.1:11211"]);
        assert!(tcp("-s /tmp/s -p 0").is_empty());
        let warned = |line: &str| {
            plan(line)
                .warnings
                .iter()
                .any(|warning| warning.contains("-p 0 leaves no socket"))
        };
        assert!(warned("-p 0") && !warned("-s /tmp/s -p 0") && !warned("-p 0 -U 7"));
    }

    #[test]
    fn udp_is_off_until_asked_for_and_answers_this_machine_until_told_otherwise() {
        let udp = |line: &str| plan(line).config.udp.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert!(udp("").is_empty() && udp("-U 0").is_empty() && udp("-l 127.0.0.1:5 -U 0").is_empty());
        assert_eq!(udp("-U 7"), ["0.0.0.0:7", "[::]:7"]);
        assert_eq!(tcp("-U 7"), ["0.0.0.0:7", "[::]:7"], "TCP follows, as in memcached");
        assert_eq!(tcp("-U 7 -p 8 -l 127.0.0.1"), ["127.0.0.1:8"]);
        assert_eq!(udp("-U 7 -p 8 -l 127.0.0.1"), ["127.0.0.1:7"]);
        assert_eq!(udp("-U -1 -l ::1"), ["[::1]:0"]);
        assert_eq!(tcp("-U -1 -l ::1"), ["[::1]:0"]);
        assert_eq!(tcp("-U -1 -p 5 -l ::1"), ["[::1]:5"]);
        let warned = |line: &str| plan(line).warnings.iter().any(|warning| warning.contains("udp_allow"));
        assert!(warned("-U 7") && !warned("-U 7 -l 127.0.0.1") && !warned(""));
        let allowing = plan("-U 7 -o udp_allow=10.0.0.0/8,modern,udp_allow=::1");
        let allowed: Vec<_> = allowing.config.udp_allow.iter().map(ToString::to_string).collect();
        assert_eq!(allowed, ["10.0.0.0/8", "::1/128"]);
        assert!(!allowing.warnings.iter().any(|warning| warning.contains("udp_allow")));
    }

    #[test]
    fn tls_is_on_all_tcp_addresses_but_those_that_say_otherwise() {
        let files =
            "-o ssl_chain_cert=c.pem,ssl_key=k.pem,ssl_ca_cert=a.pem,ssl_verify_mode=1,ssl_min_version=3,ssl_wbuf_size=32";
        let addresses = |line: &str| {
            let config = plan(&format!("{line} {files}")).config;
            let texts = |addresses: &[SocketAddr]| addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
            (texts(&config.tcp), texts(&config.tls_tcp))
        };
        let pair = |plain: &str, secure: &str| (plain.to_owned(), secure.to_owned());
        assert_eq!(addresses("-Z"), pair("", "0.0.0.0:11211 [::]:11211"));
        assert_eq!(
            addresses("-Z -l 127.0.0.1,notls:127.0.0.1:7"),
            pair("127.0.0.1:7", "127.0.0.1:11211")
        );
        assert_eq!(addresses("-Z -l notls:127.0.0.1"), pair("127.0.0.1:11211", ""));
        let tls = plan(&format!("-Z {files}")).config.tls.unwrap();
        assert_eq!((tls.certificate, tls.key), ("c.pem".into(), "k.pem".into()));
        assert_eq!(tls.client_certificates, ClientCertificates::Optional);
        assert_eq!(tls.min_version, TlsVersion::V1_3);
        assert!(plan("-o ssl_key=k.pem").config.tls.is_none(), "without -Z there is no TLS");
    }

    #[test]
    fn what_is_missing_is_refused_by_name() {
        for (line, word) in [
            ("-Z", "ssl_chain_cert"),
            ("-Z -o ssl_chain_cert=x", "ssl_key"),
            ("-o ssl_keyformat=2", "PEM"),
            ("-S", "SASL"),
            ("-B both", "-B"),
            ("-B binary -Y users", "-Y"),
            ("-U x", "-U"),
            ("-U 1 -o udp_allow=10.0.0.1/8", "10.0.0.0/8"),
            ("-o ext_path=/x:1G", "external storage"),
            ("-o proxy_config=x", "proxy"),
            ("-l notls:127.0.0.1", "-Z"),
            ("-l mtls:127.0.0.1", "ssl_verify_mode"),
        ] {
            let failure = asked(line).unwrap_err();
            assert!(failure.code == USAGE && failure.reason.contains(word), "{line}: {failure:?}");
        }
    }

    #[test]
    fn unknown_sub_options_warn_and_never_stop_the_start() {
        let plan = plan("-o fancy_new=1,idle_timeout=30,no_maxconns_fast");
        assert!(plan.warnings.iter().any(|warning| warning.contains("fancy_new")));
        assert_eq!(plan.config.idle_timeout, Duration::from_secs(30));
        assert!(!plan.config.connections_fast);
    }

    #[test]
    fn limits_are_memcacheds() {
        assert!(asked("-I 2g").is_err());
        assert!(asked("-I 512").is_err());
        assert!(asked("-m 64 -I 33m").unwrap_err().reason.contains("half"));
        assert!(asked("-c 0").is_err());
        assert!(asked("-t 0").is_err());
    }

    #[test]
    fn version_and_help_are_as_scripts_expect_them() {
        assert!(matches!(asked("-V"), Ok(Asked::Print(text)) if text.starts_with("memcached 1.6.")));
        assert!(matches!(asked("-h"), Ok(Asked::Print(text)) if text.contains("--memory-limit=")));
    }
}
