//! Networks of a test's own: namespaces for a client and a server, and between them weather, or routers with a narrow link.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};

use nix::sched::{CloneFlags, setns};

/// What VXLAN over IPv4 takes of a packet: Ethernet, VXLAN, UDP and IP headers.
const VXLAN_LEN: u32 = 50;
/// RFC 8200, section 5
const IPV6_LEN_MIN: u32 = 1280;

/// Shares of the segments that are lost, repeated and delayed, in percent: `[0.5, 1.0, 5.0]`.
pub type Weather = [f64; 3];

/// The link between two routers, which is narrower than those on either side of them.
#[derive(Clone, Copy, Debug)]
pub struct Narrow {
    /// how long a packet may be there, bytes; below 1280 it has no IPv6
    pub mtu: u32,
    /// what the packets are in: a tunnel (VXLAN) takes 50 bytes of each
    pub has_tunnel: bool,
    /// no router says that a packet is too long
    pub is_silent: bool,
}

/// A veth pair's two ends in namespaces of their own, with addresses, and between them a third one that carries frames in
/// bad weather. It disappears with its handle. Needs root.
pub struct Network {
    name: String,
    weather: Option<Child>,
}

impl Network {
    /// The server's addresses.
    pub const SERVER_IPS: [&'static str; 2] = ["10.77.0.1", "fd77::1"];
    /// The first of them.
    pub const SERVER: Ipv4Addr = Ipv4Addr::new(10, 77, 0, 1);
    /// The name of both interfaces.
    pub const INTERFACE: &'static str = "v";

    /// A network. Without weather, frames pass as the kernel carries them between two ends of a veth: segments that are put
    /// together, and without checksums.
    ///
    /// # Panics
    ///
    /// When it cannot be made.
    pub fn start(test: &str, seed: u64, weather: Option<Weather>) -> Self {
        let mut network = Self {
            name: format!("keyway-test-{}-{test}", std::process::id()),
            weather: None,
        };
        let [client, server, between] = ["c", "s", "w"].map(|which| network.namespace(which));
        for namespace in [&client, &server] {
            ip(&["netns", "add", namespace]);
            ip(&["-n", namespace, "link", "set", "lo", "up"]);
        }
        if weather.is_some() {
            ip(&["netns", "add", &between]);
            for (end, namespace) in [("left", &client), ("right", &server)] {
                add_veth(&between, end, namespace);
                // Segments as a wire has them.
                for (namespace, name) in [(&between, end), (namespace, Self::INTERFACE)] {
                    run(Command::new("ip").args([
                        "netns", "exec", namespace, "ethtool", "-K", name, "tso", "off", "gso", "off", "gro", "off", "tx", "off",
                    ]));
                    ip(&["-n", namespace, "link", "set", name, "up"]);
                }
            }
        } else {
            add_veth(&client, Self::INTERFACE, &server);
        }
        for (namespace, addresses) in [
            (&client, ["10.77.0.2/24", "fd77::2/64"]),
            (&server, ["10.77.0.1/24", "fd77::1/64"]),
        ] {
            ip(&["-n", namespace, "link", "set", Self::INTERFACE, "up"]);
            for address in addresses {
                ip(&["-n", namespace, "address", "add", address, "dev", Self::INTERFACE, "nodad"]);
            }
            // A segment that is lost is sent again soon, as if the ends were as near as they are.
            ip(&[
                "-n",
                namespace,
                "route",
                "change",
                "10.77.0.0/24",
                "dev",
                Self::INTERFACE,
                "rto_min",
                "10ms",
            ]);
        }
        if let Some(shares) = weather {
            network.weather = Some(carry(&between, seed, shares));
        }
        network
    }

    /// A network with two routers, `q` beside the client and `r` beside the server, and this link between them.
    ///
    /// # Panics
    ///
    /// When it cannot be made.
    pub fn routed(test: &str, narrow: Narrow) -> Self {
        let network = Self {
            name: format!("keyway-test-{}-{test}", std::process::id()),
            weather: None,
        };
        let [client, server, near_client, near_server] = ["c", "s", "q", "r"].map(|which| network.namespace(which));
        for namespace in [&client, &server, &near_client, &near_server] {
            ip(&["netns", "add", namespace]);
            ip(&["-n", namespace, "link", "set", "lo", "up"]);
        }
        add_veth(&near_client, "end", &client);
        add_veth(&near_server, "end", &server);
        ip(&[
            "-n",
            &near_client,
            "link",
            "add",
            "wire",
            "type",
            "veth",
            "peer",
            "name",
            "wire",
            "netns",
            &near_server,
        ]);
        let has_v6 = narrow.mtu - if narrow.has_tunnel { VXLAN_LEN } else { 0 } >= IPV6_LEN_MIN;
        let mtu = narrow.mtu.to_string();
        for (namespace, number, other) in [(&near_client, 1, 2), (&near_server, 2, 1)] {
            ip(&["-n", namespace, "link", "set", "wire", "mtu", &mtu, "up"]);
            if narrow.has_tunnel {
                let (own, remote) = (format!("192.168.77.{number}"), format!("192.168.77.{other}"));
                ip(&["-n", namespace, "address", "add", &format!("{own}/24"), "dev", "wire"]);
                let tunnel = [
                    "type", "vxlan", "id", "7", "local", &own, "remote", &remote, "dstport", "4789",
                ];
                ip(&[&["-n", namespace, "link", "add", "tunnel"][..], &tunnel].concat());
                ip(&[
                    "-n",
                    namespace,
                    "link",
                    "set",
                    "tunnel",
                    "mtu",
                    &(narrow.mtu - VXLAN_LEN).to_string(),
                    "up",
                ]);
            }
            let families: &[&str] = if has_v6 {
                &["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"]
            } else {
                &["net.ipv4.ip_forward=1"]
            };
            run(Command::new("ip")
                .args(["netns", "exec", namespace, "sysctl", "-qw"])
                .args(families));
            if narrow.is_silent {
                for (program, protocol, kind) in [
                    ("iptables", "icmp", ["--icmp-type", "fragmentation-needed"]),
                    ("ip6tables", "icmpv6", ["--icmpv6-type", "packet-too-big"]),
                ] {
                    let rule = ["-w", "-A", "OUTPUT", "-p", protocol, kind[0], kind[1], "-j", "DROP"];
                    run(Command::new("ip").args(["netns", "exec", namespace, program]).args(rule));
                }
            }
        }
        let middle = if narrow.has_tunnel { "tunnel" } else { "wire" };
        for (namespace, interface, addresses) in [
            (&client, Self::INTERFACE, ["10.78.0.2/24", "fd78::2/64"]),
            (&near_client, "end", ["10.78.0.1/24", "fd78::1/64"]),
            (&near_client, middle, ["10.79.0.1/24", "fd79::1/64"]),
            (&near_server, middle, ["10.79.0.2/24", "fd79::2/64"]),
            (&near_server, "end", ["10.77.0.2/24", "fd77::2/64"]),
            (&server, Self::INTERFACE, ["10.77.0.1/24", "fd77::1/64"]),
        ] {
            ip(&["-n", namespace, "link", "set", interface, "up"]);
            for address in addresses.iter().take(1 + usize::from(has_v6)) {
                ip(&["-n", namespace, "address", "add", address, "dev", interface, "nodad"]);
            }
        }
        for (namespace, target, routers) in [
            (&client, "default", ["10.78.0.1", "fd78::1"]),
            (&server, "default", ["10.77.0.2", "fd77::2"]),
            (&near_client, "server", ["10.79.0.2", "fd79::2"]),
            (&near_server, "client", ["10.79.0.1", "fd79::1"]),
        ] {
            let targets = match target {
                "server" => ["10.77.0.0/24", "fd77::/64"],
                "client" => ["10.78.0.0/24", "fd78::/64"],
                _ => ["default", "default"],
            };
            for (family, (target, router)) in ["-4", "-6"]
                .into_iter()
                .zip(targets.into_iter().zip(routers))
                .take(1 + usize::from(has_v6))
            {
                ip(&["-n", namespace, family, "route", "add", target, "via", router]);
            }
        }
        network
    }

    /// The namespace of the client (`c`), of the server (`s`), between them (`w`), or of the router beside one of them (`q`, `r`).
    pub fn namespace(&self, which: &str) -> String {
        format!("{}-{which}", self.name)
    }

    /// Moves this thread, and what it starts, into a namespace.
    ///
    /// # Panics
    ///
    /// When it may not.
    pub fn enter(&self, which: &str) {
        let path = format!("/run/netns/{}", self.namespace(which));
        let namespace = File::open(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        setns(namespace, CloneFlags::CLONE_NEWNET).unwrap_or_else(|e| panic!("{path}: {e}"));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if let Some(weather) = &mut self.weather {
            drop(weather.stdin.take());
            let _ = weather.wait();
        }
        for which in ["c", "s", "w", "q", "r"] {
            let _ = Command::new("ip")
                .args(["netns", "del", &self.namespace(which)])
                .stderr(Stdio::null())
                .status();
        }
    }
}

/// Carries frames between the interfaces `left` and `right` of a namespace.
fn carry(between: &str, seed: u64, shares: Weather) -> Child {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/src/weather.py");
    let mut weather = Command::new("ip");
    weather.args(["netns", "exec", between, "python3", script, &seed.to_string()]);
    weather
        .args(shares.map(|share| share.to_string()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut weather = weather.spawn().unwrap_or_else(|e| panic!("ip: {e}"));
    let mut line = String::new();
    if let Some(said) = weather.stdout.take() {
        let _ = BufReader::new(said).read_line(&mut line);
    }
    assert_eq!(line, "ready\n", "{script} does not carry");
    weather
}

/// Loses this share of the segments on `lo` of this thread's namespace, in percent: one half before a program at TC ingress sees them, and
/// the other half after it.
///
/// # Panics
///
/// When it cannot be set up.
pub fn lose_on_loopback(share: f64) {
    for (chain, side) in [("OUTPUT", "-o"), ("INPUT", "-i")] {
        let probability = format!("{:.6}", share / 200.0);
        run(Command::new("iptables")
            .args(["-w", "-A", chain, side, "lo", "-p", "tcp"])
            .args([
                "-m",
                "statistic",
                "--mode",
                "random",
                "--probability",
                &probability,
                "-j",
                "DROP",
            ]));
    }
    for target in ["127.0.0.0/8", "127.0.0.1"] {
        ip(&[
            "route",
            "change",
            "local",
            target,
            "dev",
            "lo",
            "table",
            "local",
            "src",
            "127.0.0.1",
            "rto_min",
            "10ms",
        ]);
    }
}

/// Two interfaces with a wire between them: one with this name in a namespace, and a network's own in another.
fn add_veth(namespace: &str, name: &str, other: &str) {
    let (own, peer) = (["name", name, "type", "veth"], ["name", Network::INTERFACE, "netns", other]);
    ip(&[&["-n", namespace, "link", "add"][..], &own, &["peer"], &peer].concat());
}

fn ip(arguments: &[&str]) {
    run(Command::new("ip").args(arguments));
}

fn run(command: &mut Command) {
    let output = command.output().unwrap_or_else(|e| panic!("{command:?}: {e}"));
    assert!(
        output.status.success(),
        "{command:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
