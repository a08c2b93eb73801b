//! memcached's own command line, so that units, scripts and test harnesses keep working: `keyway memcached …`, or this program
//! under the name `memcached`.
//!
//! The rules are those of getopt_long(3): bundled flags (`-vvd`), attached values (`-m64`), `--name=value`, names shortened as long as
//! they are unambiguous. An option means the same as in memcached; [`OPTIONS`] (`options`) has them all. An option for a feature that Keyway
//! does not have is refused with its name, and one without a meaning here is accepted and ignored. An unknown `-o` causes a warning only,
//! because configurations contain flags of all versions.

mod options;
#[cfg(test)]
mod tests;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, ArgAction, Command};
use keyway_cache::Options;
use keyway_server::{
    ClientCertificates, HoldMisses, KEYWAY_VERSION, Network, PROTOCOL_VERSION, Protocol, Sasl, Tls, TlsVersion, UnixSocket,
    UserLines,
};

use self::options::{OPTIONS, Value, WITHOUT_MEANING, options};
use crate::exit::Failure;
use crate::plan::Plan;
use crate::serve::{parse_mode, parse_rate};
use crate::{cpus, listen, logger, place, size};

/// What a command line asks for: to serve, or to print a text.
#[derive(Debug)]
pub(crate) enum CommandLine {
    Serve(Box<Plan>),
    Print(String),
}

/// Parses the arguments that follow the program's name.
pub(crate) fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<CommandLine, Failure> {
    let mut reading = Reading::default();
    for (letter, value) in options(arguments, &mut reading.plan.warnings)? {
        match letter {
            'h' => return Ok(CommandLine::Print(help())),
            'V' => return Ok(CommandLine::Print(version())),
            'i' => {
                return Ok(CommandLine::Print(
                    "Keyway is under the Apache License, version 2.0.\n".to_owned(),
                ));
            }
            _ => reading.take(letter, value.trim_start())?,
        }
    }
    Ok(CommandLine::Serve(Box::new(reading.finish()?)))
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

/// The options in `command`, for its manual page and the completions of shells; only [`parse`] reads a command line.
pub(crate) fn define(command: Command) -> Command {
    let options = OPTIONS.map(|(letter, name, value, help)| {
        let option = Arg::new(name).short(letter).long(name).help(help);
        match value {
            Value::No => option.action(ArgAction::SetTrue),
            Value::Yes => option.value_name("VALUE"),
            Value::Attached => option.action(ArgAction::Count),
        }
    });
    Command::new("memcached")
        .about(command.get_about().cloned().unwrap_or_default())
        .disable_help_flag(true)
        .disable_version_flag(true)
        .args(options)
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
    has_sasl: bool,
    has_tls: bool,
    tls: Tls,
}

impl Default for Reading {
    fn default() -> Self {
        let port = place::DEFAULT_PORT.into();
        Self {
            plan: Plan {
                options: Options::new().memory(Options::MEMORY_DEFAULT).keep_memory(true),
                ..Plan::default()
            },
            port,
            port_given: false,
            udp_port: 0,
            udp_allow: Vec::new(),
            addresses: Vec::new(),
            socket: None,
            socket_mode: 0o700,
            has_sasl: false,
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

/// The value of `-B`.
fn protocol(value: &str) -> Result<Protocol, Failure> {
    match value {
        "auto" => Ok(Protocol::Auto),
        "ascii" => Ok(Protocol::Text),
        "binary" => Ok(Protocol::Binary),
        _ => Err(Failure::usage(format_args!(
            "-B {value}: the protocol is auto, ascii or binary"
        ))),
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
            'a' => self.socket_mode = parse_mode(value).map_err(Failure::of("-a"))?,
            'A' => config.shutdown_enabled = true,
            'F' => plan.options.flush = Some(false),
            'X' => config.dump_enabled = false,
            'W' => config.watch_enabled = false,
            'C' => config.cas_enabled = false,
            'M' => plan.options.evict = Some(false),
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
            'm' => {
                let memory = size::parse_mebibytes(value).map_err(Failure::of("-m"))?;
                plan.options.memory = Some(memory);
                plan.options.keep_memory = false;
            }
            'I' => {
                let size = size::parse_item_size(value).map_err(Failure::of("-I"))?;
                plan.options.item_size_max = Some(size);
            }
            'e' => plan.place = Some(place::parse(value).map_err(Failure::usage)?),
            'L' => plan.options.huge_pages = true,
            'd' => plan.daemon = true,
            'P' => plan.pid_file = Some(value.into()),
            'u' => plan.user = Some(value.to_owned()),
            'k' => plan.lock_memory = true,
            'r' => plan.core_dumps = true,
            'B' => config.protocol = protocol(value)?,
            'S' => self.has_sasl = true,
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
        if self.take_tls(name, value)? {
            return Ok(());
        }
        let plan = &mut self.plan;
        match name {
            "idle_timeout" => {
                plan.config.idle_timeout = Duration::from_secs(number("-o idle_timeout", value, 0, u32::MAX)?.into())
            }
            "udp_allow" => {
                let network = value.parse().map_err(Failure::of("-o udp_allow"))?;
                self.udp_allow.push(network);
            }
            "udp_answer_max" => {
                plan.config.udp_answer_max = size::parse_answer_size(value).map_err(Failure::of("-o udp_answer_max"))?
            }
            "http" => {
                plan.config.http = Some(listen::parse_http(value).map_err(Failure::of("-o http"))?);
                plan.config.http_hosts.extend(listen::http_host(value));
            }
            "http_host" => {
                let host = listen::parse_host(value).map_err(Failure::of("-o http_host"))?;
                plan.config.http_hosts.push(host);
            }
            "http_keys" => plan.config.http_keys = true,
            "connection_memory" => {
                let memory = size::parse_mebibytes(value).map_err(Failure::of("-o connection_memory"))?;
                plan.config.connection_memory = usize::try_from(memory).unwrap_or(usize::MAX);
            }
            "max_request_rate" => plan.config.request_rate = Some(parse_rate(value).map_err(Failure::of("-o max_request_rate"))?),
            "hold_misses" => (plan.config.hold_misses).push(HoldMisses::parse(value).map_err(Failure::of("-o hold_misses"))?),
            "log_format" => plan.log_format = logger::parse(value).map_err(Failure::of("-o log_format"))?,
            "event_loop" => plan.config.event_loop = cpus::parse_event_loop(value).map_err(Failure::of("-o event_loop"))?,
            "busy_poll" => plan.config.busy_poll = cpus::parse_busy_poll(value).map_err(Failure::of("-o busy_poll"))?,
            "maxconns_fast" => plan.config.connections_fast = true,
            "no_maxconns_fast" | "no_modern" => plan.config.connections_fast = false,
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
            "evict" => plan.options.evict = Some(true),
            "flush" => plan.options.flush = Some(true),
            "track_sizes" => plan.config.track_sizes = true,
            "no_track_sizes" => plan.config.track_sizes = false,
            "drop_privileges" => plan.sandbox = true,
            _ if WITHOUT_MEANING.contains(&name) => {}
            _ => plan.warnings.push(format!("-o {name} is unknown, and ignored")),
        }
        Ok(())
    }

    /// Takes an extended option of TLS; `false`: it is none.
    fn take_tls(&mut self, name: &str, value: &str) -> Result<bool, Failure> {
        match name {
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
                        self.plan
                            .warnings
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
            "ssl_ciphers" => self
                .plan
                .warnings
                .push("-o ssl_ciphers is ignored: only ciphers without known weakness are offered".to_owned()),
            // Sessions are resumed by tickets; a record has at most 16 KiB; the kernel encrypts nothing.
            "ssl_keyformat" | "ssl_session_cache" | "ssl_wbuf_size" | "ssl_kernel_tls" => {}
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn finish(mut self) -> Result<Plan, Failure> {
        self.plan.check_item_size("-I", "-m")?;
        self.plan.check_connection_memory("-o connection_memory", "-I")?;
        self.take_logins()?;
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
            self.plan.config.tls = Some(self.tls_files()?);
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
            self.plan.place = Some(keyway_cache::Place::Memfd);
        }
        // memcached's memory ends with it. Only the server on memcached's port keeps a region that was not named: others, started by a test or for a
        // socket, would leave memory behind for ever.
        self.plan.remove_region = self.plan.place.is_none() && (tcp_is_off || self.port != i32::from(place::DEFAULT_PORT));
        self.plan.without_file = true;
        self.plan.config.may_listen_nowhere = true;
        if self.plan.config.tcp_and_tls().next().is_none() && self.plan.config.udp.is_empty() && self.socket.is_none() {
            self.plan
                .warnings
                .push("-p 0 leaves no socket that a client could connect to; -s or -U gives one".to_owned());
        }
        let mode = self.socket_mode;
        self.plan.config.unix = self.socket.map(|path| UnixSocket { path: path.into(), mode });
        self.plan.config.check().map_err(Failure::usage)?;
        if self.plan.user.is_none() && nix::unistd::geteuid().is_root() {
            self.plan
                .warnings
                .push("running as root; -u gives this up (memcached insists on it)".to_owned());
        }
        Ok(self.plan)
    }

    /// What `-Z` needs of its options.
    fn tls_files(&mut self) -> Result<Tls, Failure> {
        for (option, path) in [("ssl_chain_cert", &self.tls.certificate), ("ssl_key", &self.tls.key)] {
            if path.as_os_str().is_empty() {
                return Err(Failure::usage(format_args!("-Z needs -o {option}=<file>")));
            }
        }
        if self.tls.client_ca.is_none() && self.tls.client_certificates == ClientCertificates::Optional {
            self.tls.client_certificates = ClientCertificates::Ignored;
            self.plan.warnings.push(
                "-o ssl_verify_mode=1 without ssl_ca_cert asks no client for a certificate: nothing could verify one".to_owned(),
            );
        }
        Ok(self.tls.clone())
    }

    /// `-Y` is the login of the text protocol, and `-S` that of the binary protocol; with both, a client may use either.
    fn take_logins(&mut self) -> Result<(), Failure> {
        let config = &mut self.plan.config;
        let has_text = config.auth_file.is_some();
        config.sasl = if self.has_sasl { Sasl::Everywhere } else { Sasl::Off };
        match (self.has_sasl, has_text, config.protocol) {
            (false, true, Protocol::Binary) => Err(Failure::usage(
                "-Y with -B binary: its login is a line of text; leave one out, or add -S for a login in the binary protocol",
            )),
            (true, _, Protocol::Text) => Err(Failure::usage(
                "-S with -B ascii: SASL is of the binary protocol; leave one out",
            )),
            (true, false, _) => {
                let file = std::env::var_os("MEMCACHED_SASL_PWDB").filter(|file| !file.is_empty());
                config.auth_file = Some(file.map(PathBuf::from).ok_or_else(|| {
                    Failure::usage(
                        "-S: there are no users; give a file of user:password lines with -Y, or in MEMCACHED_SASL_PWDB",
                    )
                })?);
                config.auth_lines = UserLines::of_memcached();
                config.protocol = Protocol::Binary;
                Ok(())
            }
            _ => Ok(()),
        }
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
            addresses.extend(listen::parse(without_prefixes(text)?, port).map_err(Failure::of("-l"))?);
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
