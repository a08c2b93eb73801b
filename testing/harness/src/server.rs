//! A server that a test started itself, on loopback, in a scratch directory, and that dies with its handle.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use nix::sys::socket::{AddressFamily, SockFlag, SockType, SockaddrIn, bind, getsockname, setsockopt, socket, sockopt};

use crate::kernel::{keyway_command, server_address};
use crate::{
    Authority, DEADLINE, Scratch, TlsClient, Validity, Wire, kernel_arguments, keyway_binary, memcached_binary, wait_until,
};

/// How long a datagram that asks whether a server is up may take, until it is asked again.
const DATAGRAM_MAX: Duration = Duration::from_secs(5);

/// Which server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// the workspace's own
    Keyway,
    /// a real memcached
    Memcached,
}

/// Which socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP on loopback
    Tcp,
    /// a Unix stream socket
    Unix,
    /// UDP on loopback, a request a datagram; the server listens for TCP as well
    Udp,
    /// TLS on loopback, on another port than TCP; Keyway only
    Tls,
}

/// How a server is started.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// size of the cache, megabytes
    pub memory_mb: u32,
    /// worker threads
    pub threads: u32,
    /// Keyway's region; without it, a fresh file in the scratch directory
    pub region: Option<PathBuf>,
    /// leave Keyway's region to Keyway: it is where `make run`'s is, but for the port, and removed at the end
    pub default_place: bool,
    /// the socket that a memcached listens on; Keyway listens on both
    pub transport: Transport,
    /// start Keyway by `keyway memcached` and memcached's own command line, instead of `keyway serve`
    pub memcached_command_line: bool,
    /// further arguments for `keyway serve`, or `keyway memcached`
    pub keyway_arguments: Vec<String>,
    /// further arguments for memcached
    pub memcached_arguments: Vec<String>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            memory_mb: 64,
            threads: 4,
            region: None,
            default_place: false,
            transport: Transport::Tcp,
            memcached_command_line: false,
            keyway_arguments: Vec::new(),
            memcached_arguments: Vec::new(),
        }
    }
}

impl ServeOptions {
    /// Size, threads, and leave to run as root, on memcached's command line.
    fn as_memcacheds(&self) -> [String; 6] {
        let (memory, threads) = (self.memory_mb.to_string(), self.threads.to_string());
        ["-m".into(), memory, "-t".into(), threads, "-u".into(), "root".into()]
    }
}

/// The event loop that Keyway's servers are to use, if `KEYWAY_TESTS_EVENT_LOOP` names one.
fn event_loop() -> Option<String> {
    std::env::var("KEYWAY_TESTS_EVENT_LOOP").ok()
}

/// A running server.
#[derive(Debug)]
pub struct Server {
    kind: Kind,
    child: Child,
    address: SocketAddr,
    socket: PathBuf,
    log: PathBuf,
    region: PathBuf,
    tls: Option<Tls>,
    has_default_place: bool,
    _scratch: Scratch,
}

/// Where a server speaks TLS, and who trusts it.
#[derive(Debug)]
struct Tls {
    address: SocketAddr,
    client: TlsClient,
    /// the certificate of the authority
    authority: PathBuf,
}

impl Kind {
    /// Whether Keyway is to be tested: `KEYWAY_TESTS_AGAINST` may name memcached alone.
    pub fn keyway_is_wanted() -> bool {
        Self::wanted().contains(&Kind::Keyway)
    }

    /// The servers to test, as `KEYWAY_TESTS_AGAINST` and what is installed allow; says what is left out.
    ///
    /// # Panics
    ///
    /// When the variable names something else, or nothing may be skipped and no memcached is there.
    pub fn to_test(test: &str) -> Vec<Kind> {
        let mut kinds = Self::wanted();
        if kinds.contains(&Kind::Memcached) && memcached_binary().is_none() {
            crate::skip(&format!("{test} against memcached"), "no memcached is installed");
            kinds.retain(|&kind| kind != Kind::Memcached);
        }
        kinds
    }

    fn wanted() -> Vec<Kind> {
        let names = std::env::var("KEYWAY_TESTS_AGAINST").unwrap_or_else(|_| "keyway,memcached".into());
        let kind = |name: &str| match name.trim() {
            "keyway" => Kind::Keyway,
            "memcached" => Kind::Memcached,
            other => panic!("KEYWAY_TESTS_AGAINST={other}: it takes keyway, memcached, or both with a comma"),
        };
        names.split(',').map(kind).collect()
    }

    /// Its name, for messages.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Keyway => "keyway",
            Kind::Memcached => "memcached",
        }
    }
}

impl Server {
    /// Starts a server and waits until it accepts connections.
    ///
    /// # Panics
    ///
    /// When it does not come up; the message holds its log.
    pub fn start(kind: Kind, options: &ServeOptions) -> Self {
        Self::try_start(kind, options).unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Starts a server; `Err` holds what it said when it ended instead of serving.
    ///
    /// # Panics
    ///
    /// When it neither serves nor ends within the deadline, or cannot be run at all.
    pub fn try_start(kind: Kind, options: &ServeOptions) -> Result<Self, String> {
        // Between choosing a free port and binding it, another program may take it: then choose again.
        let mut attempts_left = 5;
        loop {
            let mut server = Self::spawn(kind, options);
            match server.wait_ready(options.transport) {
                Ok(()) => return Ok(server),
                Err(_) if attempts_left > 0 && server.log().to_lowercase().contains("address already in use") => {
                    attempts_left -= 1
                }
                Err(status) => return Err(format!("{} ended with {status}:\n{}", kind.name(), server.log())),
            }
        }
    }

    /// Starts a server and kills it after `life`, however far it got.
    pub fn start_and_kill(kind: Kind, options: &ServeOptions, life: Duration) {
        let mut server = Self::spawn(kind, options);
        std::thread::sleep(life);
        server.kill();
    }

    fn spawn(kind: Kind, options: &ServeOptions) -> Self {
        Self::spawn_at(kind, options, free_port())
    }

    fn spawn_at(kind: Kind, options: &ServeOptions, port: u16) -> Self {
        let scratch = Scratch::new();
        let is_keyway_serve = kind == Kind::Keyway && !options.memcached_command_line;
        let ip = if is_keyway_serve {
            server_address()
        } else {
            Ipv4Addr::LOCALHOST
        };
        let address = SocketAddr::from((ip, port));
        let socket = scratch.join("socket");
        let log = scratch.join("log");
        let region = match &options.region {
            Some(region) => region.clone(),
            None if options.default_place => default_place(address.port()),
            None => scratch.join("region"),
        };
        let mut tls = None;
        let mut command = match kind {
            Kind::Keyway if options.memcached_command_line => {
                let mut command = Command::new(keyway_binary());
                command
                    .args(["memcached", "-l", "127.0.0.1", "-p", &address.port().to_string(), "-s"])
                    .arg(&socket);
                command.args(options.as_memcacheds());
                // what units and scripts of many years carry along
                command.args(["-c", "1024", "-P"]).arg(scratch.join("pid")).args([
                    "-f",
                    "1.25",
                    "-n",
                    "48",
                    "-o",
                    "modern,slab_reassign",
                ]);
                command.arg("-e").arg(&region);
                command.args(&options.keyway_arguments);
                if let Some(event_loop) = event_loop() {
                    command.args(["-o", &format!("event_loop={event_loop}")]);
                }
                command
            }
            Kind::Keyway => {
                let mut command = keyway_command();
                command
                    .args(["serve", "--listen", &address.to_string(), "--socket"])
                    .arg(&socket);
                if !options.default_place {
                    command.arg("--region").arg(&region);
                }
                command.args([
                    "--memory",
                    &format!("{}m", options.memory_mb),
                    "--threads",
                    &options.threads.to_string(),
                ]);
                if options.transport == Transport::Udp {
                    command.args(["--udp", &address.to_string()]);
                }
                if options.transport == Transport::Tls {
                    let authority = Authority::new();
                    let identity = authority.signs("a server for tests", Validity::Valid);
                    let (certificate, key) = identity.write_to(scratch.path(), "server");
                    let address = SocketAddr::from((ip, free_port()));
                    command.args(["--listen", &format!("tls://{address}"), "--tls-cert"]);
                    command.arg(certificate).arg("--tls-key").arg(key);
                    let file = scratch.join("authority.pem");
                    std::fs::write(&file, authority.certificate()).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
                    tls = Some(Tls {
                        address,
                        authority: file,
                        client: TlsClient::trusting(&authority),
                    });
                }
                if let Some(event_loop) = event_loop() {
                    command.args(["--event-loop", &event_loop]);
                }
                command.args(kernel_arguments());
                command.args(&options.keyway_arguments);
                command
            }
            Kind::Memcached => {
                let binary = memcached_binary().unwrap_or_else(|| panic!("no memcached is installed"));
                let mut command = Command::new(binary);
                command.args(options.as_memcacheds());
                match options.transport {
                    Transport::Tcp => command.args(["-l", "127.0.0.1", "-p", &address.port().to_string()]),
                    Transport::Unix => command.arg("-s").arg(&socket),
                    Transport::Udp => {
                        let port = address.port().to_string();
                        command.args(["-l", "127.0.0.1", "-p", &port, "-U", &port])
                    }
                    Transport::Tls => panic!("Debian's memcached has no TLS"),
                };
                command.args(&options.memcached_arguments);
                command
            }
        };
        let log_file = File::create(&log).unwrap_or_else(|e| panic!("{}: {e}", log.display()));
        let log_too = log_file.try_clone().unwrap_or_else(|e| panic!("{}: {e}", log.display()));
        let child = command
            .stdin(Stdio::null())
            .stdout(log_file)
            .stderr(log_too)
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", command.get_program().to_string_lossy()));
        Self {
            kind,
            child,
            address,
            socket,
            log,
            region,
            tls,
            has_default_place: options.default_place,
            _scratch: scratch,
        }
    }

    /// Polls until a connection is answered; `Err` when the server ended first.
    fn wait_ready(&mut self, transport: Transport) -> Result<(), ExitStatus> {
        let sockets: &[Transport] = match (self.kind, transport) {
            (Kind::Keyway, Transport::Udp) => &[Transport::Tcp, Transport::Unix, Transport::Udp],
            (Kind::Keyway, Transport::Tls) => &[Transport::Tcp, Transport::Unix, Transport::Tls],
            (Kind::Keyway, _) => &[Transport::Tcp, Transport::Unix],
            (Kind::Memcached, _) => &[transport],
        };
        let begun = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return Err(status);
            }
            let mut answers = sockets.iter().map(|&t| (t, self.answers(t)));
            let Some((transport, answer)) = answers.find(|(_, answer)| !matches!(answer, Ok(true))) else {
                return Ok(());
            };
            if begun.elapsed() >= DEADLINE && self.ended().is_none() {
                panic!(
                    "{} accepts no connections within {DEADLINE:?}; over {transport:?} it said {answer:?}; its log:\n{}",
                    self.kind.name(),
                    self.log()
                );
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether the process that was started answers.
    fn answers(&self, transport: Transport) -> io::Result<bool> {
        let mut wire = self.try_connect(transport)?;
        if transport == Transport::Udp {
            // A datagram may be lost. A connection that is not answered, however, is a failure.
            wire.set_timeout(DATAGRAM_MAX)?;
        }
        let line = wire.ask("version")?;
        // A server whose clients have to log in is up as well, and tells no more.
        if line == "CLIENT_ERROR unauthenticated" {
            return Ok(true);
        }
        // Another server may have taken the port since it was chosen: this one is about to find that out, and to end.
        Ok(line.starts_with("VERSION ") && self.is_who_answers(&mut wire)?)
    }

    /// Whether the server on this connection is the process that was started, as far as it tells.
    fn is_who_answers(&self, wire: &mut Wire) -> io::Result<bool> {
        match wire.stats("") {
            Ok(all) => Ok(all
                .iter()
                .all(|(name, value)| name != "pid" || *value == self.pid().to_string())),
            // An error line: it does not tell.
            Err(error) if error.kind() == io::ErrorKind::Other => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// One of the numbers that `stats` tells.
    ///
    /// # Panics
    ///
    /// When it tells none of this name.
    pub fn stat(&self, name: &str) -> u64 {
        let all = self.connect(Transport::Tcp).stats("");
        let all = all.unwrap_or_else(|e| panic!("stats of {}: {e}", self.kind.name()));
        let value = all.iter().find(|(known, _)| known == name);
        let number = value.and_then(|(_, value)| value.parse().ok());
        number.unwrap_or_else(|| panic!("stats tells no number {name}: {all:?}"))
    }

    /// Opens a connection.
    ///
    /// # Panics
    ///
    /// When the server does not take it.
    pub fn connect(&self, transport: Transport) -> Wire {
        self.try_connect(transport)
            .unwrap_or_else(|e| panic!("connecting to {} over {transport:?}: {e}", self.kind.name()))
    }

    /// Opens a connection, or says why not.
    pub fn try_connect(&self, transport: Transport) -> io::Result<Wire> {
        match transport {
            Transport::Tcp => TcpStream::connect_timeout(&self.address, DEADLINE).and_then(Wire::from_tcp),
            Transport::Unix => UnixStream::connect(&self.socket).and_then(Wire::from_unix),
            Transport::Udp => Wire::to_udp(self.address),
            Transport::Tls => {
                let tls = self.tls.as_ref().ok_or(io::ErrorKind::Unsupported)?;
                Wire::from_unix(tls.client.connect(tls.address)?.0)
            }
        }
    }

    /// Which server it is.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Where it listens for TCP, and for UDP if it was asked to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it listens for TLS, and the file with the certificate of the authority that its clients trust.
    ///
    /// # Panics
    ///
    /// When it was not started with [`Transport::Tls`].
    pub fn tls(&self) -> (SocketAddr, &Path) {
        let tls = self.tls.as_ref().expect("it was started with TLS");
        (tls.address, &tls.authority)
    }

    /// Its Unix socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Keyway's region file.
    pub fn region(&self) -> &Path {
        &self.region
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it wrote to its standard output and standard error so far.
    pub fn log(&self) -> String {
        std::fs::read(&self.log)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// SIGKILL, and waits until the process is gone.
    pub fn kill(&mut self) {
        // an error means that it has ended already
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to end (SIGTERM) and waits until it has.
    ///
    /// # Panics
    ///
    /// When it does not end within the deadline.
    pub fn terminate(&mut self) -> ExitStatus {
        // the shell's own kill: the program of that name is not installed everywhere
        let status = Command::new("/bin/sh")
            .args(["-c", &format!("kill -TERM {}", self.pid())])
            .status();
        assert!(status.as_ref().is_ok_and(ExitStatus::success), "kill -TERM: {status:?}");
        wait_until("the server ends after SIGTERM", DEADLINE, || self.ended())
    }

    /// Its private resident memory in bytes (proc(5), `RssAnon`): what it allocates itself, without the pages of the region,
    /// which are a file's; `None` where there is no procfs.
    pub fn anonymous_memory(&self) -> Option<u64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
        let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
        Some(kilobytes * 1024)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        if self.has_default_place {
            // What is not there need not go.
            let _ = std::fs::remove_file(&self.region);
        }
    }
}

/// Where a server of this user on this port has its region.
fn default_place(port: u16) -> PathBuf {
    use std::os::unix::fs::MetadataExt;
    let user = std::fs::metadata("/proc/self").map_or(0, |meta| meta.uid());
    PathBuf::from(format!("/dev/shm/keyway-{user}-{port}"))
}

/// A TCP port on loopback that no other program is given while this one runs.
///
/// A socket stays bound to it and does not listen: so the kernel gives the port to no socket that names none (bind(2) with port 0, connect(2)).
/// A server that names it gets it if it sets `SO_REUSEADDR`, as servers do (socket(7)), again and again.
///
/// # Panics
///
/// When there is none.
pub fn free_port() -> u16 {
    static KEPT: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());
    let bound = || -> nix::Result<(OwnedFd, u16)> {
        let socket = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
        setsockopt(&socket, sockopt::ReuseAddr, &true)?;
        bind(socket.as_raw_fd(), &SockaddrIn::new(127, 0, 0, 1, 0))?;
        let port = getsockname::<SockaddrIn>(socket.as_raw_fd())?.port();
        Ok((socket, port))
    };
    let (socket, port) = bound().unwrap_or_else(|e| panic!("no free port on loopback: {e}"));
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).push(socket);
    port
}

/// Waits until a server whose standard output is a pipe says that it is ready, and returns its line. It listens everywhere then.
///
/// # Panics
///
/// When the output is no pipe, or cannot be read.
pub fn wait_for_ready(server: &mut Child) -> String {
    let mut line = String::new();
    let output = server.stdout.take().expect("a server with its output on a pipe");
    BufReader::new(output).read_line(&mut line).expect("a line");
    line
}

/// `keyway check` on a region file: whether it passed, and what it printed.
///
/// # Panics
///
/// When it cannot be run, or takes longer than the deadline.
pub fn keyway_check(region: &Path) -> (ExitStatus, String) {
    run_to_end(Command::new(keyway_binary()).arg("check").arg(region), DEADLINE)
}

/// Runs a program to its end and returns what it printed on both channels.
///
/// # Panics
///
/// When it cannot be run, or takes longer than `deadline` (it is killed then).
pub fn run_to_end(command: &mut Command, deadline: Duration) -> (ExitStatus, String) {
    let scratch = Scratch::new();
    let path = scratch.join("output");
    let name = command.get_program().to_string_lossy().into_owned();
    let output = File::create(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let output_too = output.try_clone().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let mut child = command
        .stdin(Stdio::null())
        .stdout(output)
        .stderr(output_too)
        .spawn()
        .unwrap_or_else(|e| panic!("{name}: {e}"));
    let read = || {
        std::fs::read(&path)
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    };
    let start = std::time::Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return (status, read()),
            Ok(None) if start.elapsed() < deadline => std::thread::sleep(Duration::from_millis(2)),
            other => {
                let _ = child.kill();
                let _ = child.wait();
                panic!("{name} did not end within {deadline:?} ({other:?}):\n{}", read());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two tests may choose the same port: who comes second must not take the first one's server for its own.
    #[test]
    fn a_server_on_a_port_that_another_has_taken_is_not_taken_for_the_own() {
        for kind in Kind::to_test("two servers on one port") {
            let options = ServeOptions::default();
            let first = Server::start(kind, &options);
            let mut second = Server::spawn_at(kind, &options, first.address().port());
            assert!(second.wait_ready(Transport::Tcp).is_err(), "{}", kind.name());
            assert!(
                second.log().to_lowercase().contains("address already in use"),
                "{}",
                second.log()
            );
        }
    }
}
