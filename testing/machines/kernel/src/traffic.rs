//! Real traffic: two network namespaces with a pair of virtual Ethernet interfaces between them, or the `lo` of one.
//!
//! In the first one the program is attached, and a socket behind it takes what goes up and answers with [`UPSTAIRS`]; in the
//! second one (or the same, for `lo`) a client asks. Each side is this program again, started in its namespace by `ip netns exec`
//! with words that only [`part_of_it`] knows. The namespaces have this process's number in their names, and go with it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use keyway_xdp::config::Settings;
use keyway_xdp::door::Door;

use crate::frame::{PORT, answer_max};
use crate::stage::monotonic_ns;
use crate::world::{Hot, NOW_S, State, fill, items, reference, settings};

/// The answer to what goes up.
pub(crate) const UPSTAIRS: &[u8] = b"SERVER_ERROR upstairs\r\n";
/// First arguments of the two sides.
pub(crate) const SERVE: &str = "serve-in-namespace";
const ASK: &str = "ask-in-namespace";
const PATIENCE: Duration = Duration::from_secs(20);
/// How often a request is sent that the program left to the socket, and what is waited in between: a kernel that had no memory
/// takes a moment to have some.
const ATTEMPTS_MAX: usize = 20;
const PAUSE: Duration = Duration::from_millis(20);
/// The number of requests that only look whether there is a way; no other request has it.
const PROBE_ID: [u8; 2] = [0xFF, 0xFF];

/// Tries an interface, `veth` or `lo`.
///
/// # Errors
///
/// What went wrong, or was answered wrongly.
pub fn try_interface(interface: &str, v6: bool) -> Result<String, String> {
    let server = Namespace::new("a")?;
    server.ip(&["link", "set", "lo", "up"])?;
    let client = if interface == "lo" {
        None
    } else {
        Some(connect(&server, v6)?)
    };
    let address = if interface == "lo" { "127.0.0.1" } else { "10.0.0.1" };
    let address = match (v6, interface) {
        (false, _) => address,
        (true, "lo") => "::1",
        (true, _) => "fd00::1",
    };
    let mut serving = server.run(&[SERVE, interface, address])?;
    let mut lines = BufReader::new(serving.stdout.take().ok_or("no output")?);
    let mut ready = String::new();
    lines.read_line(&mut ready).map_err(|error| error.to_string())?;
    let asked = if ready.trim() == "ready" {
        let asking = client.as_ref().unwrap_or(&server).run(&[ASK, address])?;
        let asked = asking.wait_with_output().map_err(|error| error.to_string())?;
        Some((
            asked.status.success(),
            String::from_utf8_lossy(&asked.stdout).trim().to_owned(),
        ))
    } else {
        None
    };
    // the end of its input ends the server
    drop(serving.stdin.take());
    let mut counts = String::new();
    let _ = lines.read_to_string(&mut counts);
    let _ = serving.wait();
    match asked {
        Some((true, said)) => Ok(format!("{said}; the program counted {}", counts.trim())),
        Some((false, said)) => Err(format!("{said}; the program counted {}", counts.trim())),
        None => Err(format!("the server said: {ready}{counts}")),
    }
}

/// A second namespace, and the pair of interfaces between them.
pub(crate) fn connect(server: &Namespace, v6: bool) -> Result<Namespace, String> {
    let (ours, theirs) = if v6 {
        ("fd00::1/64", "fd00::2/64")
    } else {
        ("10.0.0.1/24", "10.0.0.2/24")
    };
    connect_by(server, "b", "veth", [ours, theirs])
}

/// Another namespace, and a pair of interfaces of this name between it and the server's.
pub(crate) fn connect_by(server: &Namespace, which: &str, name: &str, addresses: [&str; 2]) -> Result<Namespace, String> {
    let client = Namespace::new(which)?;
    server.ip(&[
        "link",
        "add",
        name,
        "type",
        "veth",
        "peer",
        "name",
        name,
        "netns",
        &client.name,
    ])?;
    for (namespace, address) in [server, &client].into_iter().zip(addresses) {
        // an IPv6 address is usable at once only if the kernel does not wait for others to claim it
        let nodad: &[&str] = if address.contains(':') { &["nodad"] } else { &[] };
        namespace.ip(&[&["addr", "add", address, "dev", name], nodad].concat())?;
        namespace.ip(&["link", "set", "lo", "up"])?;
        namespace.ip(&["link", "set", name, "up"])?;
    }
    Ok(client)
}

/// A network namespace, removed when this is dropped.
pub(crate) struct Namespace {
    name: String,
}

impl Namespace {
    pub(crate) fn new(which: &str) -> Result<Self, String> {
        let name = format!("keyway-test-{}-{which}", std::process::id());
        run(Command::new("ip").args(["netns", "add", &name]))?;
        Ok(Self { name })
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn ip(&self, arguments: &[&str]) -> Result<(), String> {
        run(Command::new("ip").args(["-n", &self.name]).args(arguments))
    }

    /// Starts this program in the namespace.
    pub(crate) fn run(&self, arguments: &[&str]) -> Result<Child, String> {
        let program: PathBuf = std::env::current_exe().map_err(|error| error.to_string())?;
        Command::new("ip")
            .args(["netns", "exec", &self.name])
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| format!("ip netns exec: {error}"))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = run(Command::new("ip").args(["netns", "delete", &self.name]));
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) => Err(format!("{command:?}: {error} (it is in the package iproute2)")),
    }
}

/// Plays a side, if this process was started as one.
pub fn part_of_it() -> Option<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let played = match words.as_slice() {
        [SERVE, interfaces, address] => serve(interfaces, address),
        [ASK, address] => ask(address),
        _ => return None,
    };
    let (said, code) = match played {
        Ok(said) => (said, ExitCode::SUCCESS),
        Err(why) => (why, ExitCode::FAILURE),
    };
    let _ = writeln!(std::io::stdout(), "{said}");
    Some(code)
}

fn traffic_settings(address: &str) -> Result<Settings, String> {
    let address: IpAddr = address.parse().map_err(|_| format!("{address} is no address"))?;
    let everybody = if address.is_ipv6() { "::" } else { "0.0.0.0" };
    Ok(Settings {
        address,
        allow: vec![(everybody.parse().map_err(|_| "no address")?, 0)],
        ..settings(address.is_ipv6())
    })
}

/// The server's side: the program on the interfaces, and a socket behind it.
fn serve(interfaces: &str, address: &str) -> Result<String, String> {
    let settings = traffic_settings(address)?;
    let door = Door::load(&settings).map_err(|error| error.to_string())?;
    fill(&door.hot(), &items());
    let mut attached = Vec::new();
    // What comes is the program's to refuse, not a filter's of this namespace.
    for name in interfaces.split(',').chain(["all"]) {
        std::fs::write(format!("/proc/sys/net/ipv4/conf/{name}/rp_filter"), "0")
            .map_err(|error| format!("rp_filter: {error}"))?;
    }
    for interface in interfaces.split(',') {
        let number = std::fs::read_to_string(format!("/sys/class/net/{interface}/ifindex")).ok();
        // `ip netns exec` mounts the namespace's own /sys
        let number = number
            .and_then(|text| text.trim().parse().ok())
            .ok_or_else(|| format!("no interface {interface}"))?;
        attached.push(door.attach(number).map_err(|error| error.to_string())?);
    }
    door.hot().renew(u64::MAX, u64::from(NOW_S) * 1_000_000_000 - monotonic_ns());
    let socket = UdpSocket::bind(SocketAddr::new(settings.address, PORT)).map_err(|error| error.to_string())?;
    let answering = socket.try_clone().map_err(|error| error.to_string())?;
    std::thread::spawn(move || {
        let mut datagram = [0; 2048];
        while let Ok((len, from)) = answering.recv_from(&mut datagram) {
            let answer = [&datagram[..len.min(2)], &[0, 0, 0, 1, 0, 0], UPSTAIRS].concat();
            let _ = answering.send_to(&answer, from);
        }
    });
    let mut output = std::io::stdout();
    writeln!(output, "ready").map_err(|error| error.to_string())?;
    let _ = std::io::stdin().read(&mut [0]);
    drop(attached);
    let counts = door.counts().map_err(|error| error.to_string())?;
    let seen: Vec<_> = counts.iter().filter(|(_, count)| *count > 0).collect();
    Ok(format!("{seen:?}"))
}

/// The client's side: asks for everything, and holds the answers against what user space would say.
fn ask(address: &str) -> Result<String, String> {
    let settings = traffic_settings(address)?;
    let any: IpAddr = if settings.address.is_ipv6() { "::" } else { "0.0.0.0" }
        .parse()
        .map_err(|_| "no address")?;
    let socket = UdpSocket::bind((any, 0)).map_err(|error| error.to_string())?;
    socket.set_read_timeout(Some(PATIENCE)).map_err(|error| error.to_string())?;
    socket.connect((settings.address, PORT)).map_err(|error| error.to_string())?;
    wait_for_path(&socket)?;
    let items = items();
    let (mut answered, mut up, mut again) = (0, 0, 0);
    for (number, payload) in requests(&items).into_iter().enumerate() {
        let complain = |why: &str| format!("{}: {why}", payload.escape_ascii());
        let expected = reference(&items, &payload).filter(|answer| answer.len() <= answer_max(settings.address.is_ipv6()));
        let mut attempts = 0;
        loop {
            // Each attempt is another datagram: one in 65536 has a sum that is right both as a whole one and as a partial one, and is the socket's.
            let id = u16::try_from((number + attempts * 4096) % 65535).unwrap_or(0).to_be_bytes();
            let head = [&id[..], &[0, 0, 0, 1, 0, 0]].concat();
            let answer = exchange(&socket, &[&head, &payload[..]].concat()).map_err(|error| complain(&error.to_string()))?;
            let said = answer.strip_prefix(&head[..]);
            if said.is_some() && said == Some(expected.as_deref().unwrap_or(UPSTAIRS)) {
                break;
            }
            attempts += 1;
            // What the program cannot do at the moment it leaves to the socket, as a kernel without memory for a longer packet makes it.
            if said != Some(UPSTAIRS) || attempts == ATTEMPTS_MAX {
                return Err(complain(&format!("the answer is {}", answer.escape_ascii())));
            }
            again += 1;
            std::thread::sleep(PAUSE);
        }
        if expected.is_some() { answered += 1 } else { up += 1 }
    }
    Ok(format!(
        "{answered} answered by the program, {up} by the socket behind it, {again} asked again"
    ))
}

/// Sends a request; the first datagram that comes back and does not answer a probe.
fn exchange(socket: &UdpSocket, request: &[u8]) -> std::io::Result<Vec<u8>> {
    socket.send(request)?;
    let mut answer = [0; 2048];
    loop {
        let len = socket.recv(&mut answer)?;
        if answer[..2] != PROBE_ID {
            return Ok(answer[..len].to_vec());
        }
    }
}

/// Interfaces that have just come up may lose what is sent at first, until both sides have found each other.
fn wait_for_path(socket: &UdpSocket) -> Result<(), String> {
    let probe = [&PROBE_ID[..], &[0, 0, 0, 1, 0, 0], b"get z\r\n"].concat();
    socket
        .set_read_timeout(Some(PATIENCE / 100))
        .map_err(|error| error.to_string())?;
    harness::wait_until("the server is reached", PATIENCE, || {
        let _ = socket.send(&probe);
        socket.recv(&mut [0; 2048]).ok()
    });
    socket.set_read_timeout(Some(PATIENCE)).map_err(|error| error.to_string())
}

/// Requests for everything that does not change with time.
fn requests(items: &[Hot]) -> Vec<Vec<u8>> {
    let steady = items
        .iter()
        .filter(|item| item.expires_s == 0 && item.flush_s == 0 && item.state == State::Current);
    let mut requests: Vec<Vec<u8>> = steady
        .flat_map(|item| {
            [&b"get "[..], b"gets ", b"mg "].map(|verb| {
                let flags: &[u8] = if verb == b"mg " { b" v k c" } else { b"" };
                [verb, &item.key, flags, b"\r\n"].concat()
            })
        })
        .collect();
    requests.extend(
        [
            &b"get unknown\r\n"[..],
            b"get z unknown\r\n",
            b"set z 0 0 1\r\n1\r\n",
            b"get z",
        ]
        .map(<[u8]>::to_vec),
    );
    requests.push([&b"get"[..], &b" z".repeat(64), b"\r\n"].concat());
    requests
}
