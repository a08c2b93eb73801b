//! Networks of a test's own: namespaces for a client and a server, and the weather between them.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};

use nix::sched::{CloneFlags, setns};

/// Shares of the segments that are lost, repeated and delayed, in percent: `[0.5, 1.0, 5.0]`.
pub type Weather = [f64; 3];

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

    /// The namespace of the client (`c`), of the server (`s`), or between them (`w`).
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
        for which in ["c", "s", "w"] {
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
