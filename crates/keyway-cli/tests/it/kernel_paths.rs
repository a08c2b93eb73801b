//! The kernel door in networks as they are: links that are narrower than the server's, tunnels, routers that say so or do not, segments that arrive in
//! parts, and interfaces that are removed and made again. No client waits for ever, no request is executed twice, and the server says what it
//! has lost.
//!
//! Needs root.
//! Guards: P43

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicU16;
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

use harness::{DEADLINE, Narrow, Network, Scratch, Wire, keyway_binary, run_to_end, say, skip, wait_until};
use socket2::SockRef;

const PORT: u16 = 11_211;
/// After this time without an answer or an end, a connection hangs.
const PATIENCE: Duration = Duration::from_secs(20);
const TCP_HITS: &str = "keyway_kernel_tcp_hits";
const UDP_HITS: &str = "keyway_kernel_hits";
/// Lengths of hot values: for each there is a path of those below on which its answer is too long for one packet, or just not.
const LENS: [usize; 7] = [1, 480, 560, 1000, 1150, 1190, 1340];
/// The longest of which the answer over TCP is the program's, and over IPv6.
const LONGEST: usize = 1150;
/// A value that only the server has.
const HUGE: usize = 60_000;

fn is_root(test: &str) -> bool {
    let is_root = nix::unistd::geteuid().is_root();
    if !is_root {
        skip(test, "this is not root, which may load its programs");
    }
    is_root
}

/// Does something in a namespace of the network.
fn inside<R: Send>(network: &Network, which: &str, does: impl FnOnce() -> R + Send) -> R {
    let work = || {
        network.enter(which);
        does()
    };
    thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|why| std::panic::resume_unwind(why))
}

fn run(line: &str) -> String {
    let mut words = line.split(' ');
    let (status, said) = run_to_end(Command::new(words.next().unwrap()).args(words), DEADLINE);
    assert!(status.success(), "{line}: {said}");
    said
}

/// A server in the network, that dies with its handle.
struct Server<'a> {
    network: &'a Network,
    address: SocketAddr,
    child: Child,
    scratch: Scratch,
}

impl<'a> Server<'a> {
    fn start(network: &'a Network, ip: &str, more: &[&str]) -> Self {
        let address = SocketAddr::new(ip.parse().unwrap(), PORT);
        let scratch = Scratch::new();
        let log = File::create(scratch.join("log")).unwrap();
        let listen = address.to_string();
        let mut command = Command::new("nsenter");
        command
            .arg(format!("--net=/run/netns/{}", network.namespace("s")))
            .arg(keyway_binary())
            .args([
                "serve", "-v", "--memory", "64m", "--region", "memfd", "--listen", &listen, "--udp", &listen,
            ])
            .args([
                "--udp-allow",
                "10.0.0.0/8,fd00::/8",
                "--kernel",
                Network::INTERFACE,
                "--kernel-memory",
                "4m",
            ])
            .args(more)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let mut server = Self {
            network,
            address,
            child: command.spawn().unwrap(),
            scratch,
        };
        wait_until("the kernel door is on", DEADLINE, || {
            let said = server.log();
            assert!(server.child.try_wait().unwrap().is_none(), "it ended: {said}");
            said.contains("the kernel door is on").then_some(())
        });
        server
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.scratch.join("log")).unwrap()
    }

    /// A number of `stats`, asked for where the server is.
    fn stat(&self, name: &str) -> u64 {
        let all = inside(self.network, "s", || {
            Wire::from_tcp(TcpStream::connect(self.address).unwrap())
                .unwrap()
                .stats("")
                .unwrap()
        });
        let found = all.iter().find(|(known, _)| known == name);
        found.unwrap_or_else(|| panic!("no {name}: {all:?}")).1.parse().unwrap()
    }

    /// A connection of the thread's namespace.
    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect_timeout(&self.address, PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_write_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    }

    /// A socket for datagrams to it.
    fn datagrams(&self) -> UdpSocket {
        let any: IpAddr = if self.address.is_ipv6() { "::" } else { "0.0.0.0" }.parse().unwrap();
        let socket = UdpSocket::bind((any, 0)).unwrap();
        socket.connect(self.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(2))).unwrap();
        socket
    }

    /// Stores the values, and asks for them until the program has copies: from where nothing is too long for the path.
    fn make_hot(&self, from: &str) {
        inside(self.network, from, || {
            let mut stream = self.connect();
            for len in LENS.into_iter().chain([HUGE]) {
                ask(&mut stream, &set(len), b"STORED\r\n");
            }
            for len in LENS.into_iter().filter(|len| *len <= LONGEST) {
                self.until_answered(TCP_HITS, || ask(&mut stream, &get(len), &answer(len)));
            }
        });
    }

    fn until_answered(&self, hits: &str, mut ask: impl FnMut()) {
        let before = self.stat(hits);
        wait_until("the kernel answers", DEADLINE, || {
            (0..20).for_each(|_| ask());
            (self.stat(hits) > before).then_some(())
        });
    }
}

impl Drop for Server<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn value(len: usize) -> Vec<u8> {
    (0..len).map(|at| b"0123456789abcdefghijklmnopqrstuvwxyz-"[at % 37]).collect()
}

fn set(len: usize) -> Vec<u8> {
    [format!("set k{len} 0 0 {len}\r\n").as_bytes(), &value(len), b"\r\n"].concat()
}

fn get(len: usize) -> Vec<u8> {
    format!("get k{len}\r\n").into_bytes()
}

fn answer(len: usize) -> Vec<u8> {
    [format!("VALUE k{len} 0 {len}\r\n").as_bytes(), &value(len), b"\r\nEND\r\n"].concat()
}

/// Sends a request and reads its answer, which comes within the connection's time.
fn ask(stream: &mut TcpStream, request: &[u8], answer: &[u8]) {
    let shown = || String::from_utf8_lossy(&request[..request.len().min(40)]).into_owned();
    stream.write_all(request).unwrap();
    let (mut got, mut len) = (vec![0; answer.len()], 0);
    while len < answer.len() {
        len += match stream.read(&mut got[len..]) {
            Ok(0) => panic!("{}: an end after {len} bytes", shown()),
            Ok(more) => more,
            Err(error) if error.kind() == ErrorKind::Interrupted => 0,
            Err(error) => panic!("{}: {error}, after {len} of {} bytes", shown(), answer.len()),
        };
        assert!(got[..len] == answer[..len], "{}: another answer", shown());
    }
}

/// Asks in a datagram; whether the right answer comes. What comes late for another request is passed over.
fn exchange(socket: &UdpSocket, len: usize) -> Option<()> {
    static REQUESTS: AtomicU16 = AtomicU16::new(0);
    let id = REQUESTS.fetch_add(1, SeqCst).to_be_bytes();
    let head = [id[0], id[1], 0, 0, 0, 1, 0, 0];
    socket.send(&[&head[..], &get(len)].concat()).unwrap();
    let mut got = vec![0; 2000];
    loop {
        let got_len = socket.recv(&mut got).ok()?;
        if got[..2] == id {
            assert!(got[..got_len] == [&head[..], &answer(len)].concat(), "another answer");
            return Some(());
        }
    }
}

fn describe(narrow: Narrow) -> String {
    let Narrow {
        mtu,
        has_tunnel,
        is_silent,
    } = narrow;
    let tunnel = if has_tunnel { ", in a tunnel" } else { "" };
    format!("{mtu} bytes{tunnel}{}", if is_silent { ", routers silent" } else { "" })
}

/// Paths, and whether they have IPv6.
const PATHS: [(Narrow, bool); 6] = [
    (path(1300, false, false), true),
    (path(1300, false, true), true),
    (path(1400, true, false), true),
    (path(1250, true, false), false),
    (path(600, false, false), false),
    (path(600, false, true), false),
];

const fn path(mtu: u32, has_tunnel: bool, is_silent: bool) -> Narrow {
    Narrow {
        mtu,
        has_tunnel,
        is_silent,
    }
}

#[test]
fn answers_on_tcp_reach_clients_behind_every_path() {
    let test = "answers_on_tcp_reach_clients_behind_every_path";
    if !is_root(test) {
        return;
    }
    for (narrow, has_v6) in PATHS {
        let network = Network::routed("paths", narrow);
        for ip in Network::SERVER_IPS.into_iter().take(1 + usize::from(has_v6)) {
            let server = Server::start(&network, ip, &["--kernel-tcp"]);
            server.make_hot("r");
            if narrow.is_silent {
                // So that the server's socket, too, finds out what no router says (tcp(7)): one request in ten seconds is its own.
                inside(&network, "s", || {
                    std::fs::write("/proc/sys/net/ipv4/tcp_mtu_probing", "1").unwrap()
                });
            }
            let name = format!("{}, to {ip}", describe(narrow));
            let long = inside(&network, "c", || {
                let mut long = 0;
                for _ in 0..3 {
                    let mut stream = server.connect();
                    server.until_answered(TCP_HITS, || ask(&mut stream, &get(1), &answer(1)));
                    for len in LENS.into_iter().chain(LENS) {
                        // The program's last answer is acknowledged, so this one may be its own.
                        ask(&mut stream, &get(1), &answer(1));
                        let before = server.stat(TCP_HITS);
                        if len <= LONGEST || !narrow.is_silent {
                            ask(&mut stream, &get(len), &answer(len));
                        }
                        let is_kernels = server.stat(TCP_HITS) > before;
                        assert!(
                            len <= LONGEST || !is_kernels,
                            "{name}: {len} bytes are too long for a packet of 1280"
                        );
                        long += u64::from(len > 500 && is_kernels);
                    }
                    if !narrow.is_silent {
                        // Through the server's socket, in many segments, on a connection whose numbers are translated.
                        ask(&mut stream, &get(HUGE), &answer(HUGE));
                        ask(&mut stream, &set(HUGE), b"STORED\r\n");
                        ask(&mut stream, &get(HUGE), &answer(HUGE));
                    }
                }
                long
            });
            let repeated = server.stat("keyway_kernel_tcp_repeated");
            say(&format!(
                "shown: {name}: {long} long answers of the kernel, {repeated} pieces"
            ));
            assert!(long > 0, "{name}: no long answer is the kernel's");
            let is_too_narrow = narrow.mtu < 1200 || narrow.has_tunnel && narrow.mtu < 1280;
            assert!(!is_too_narrow || repeated > 0, "{name}: nothing was repeated in pieces");
        }
    }
}

#[test]
fn answers_in_datagrams_reach_clients_behind_every_path() {
    if !is_root("answers_in_datagrams_reach_clients_behind_every_path") {
        return;
    }
    for (narrow, has_v6) in PATHS {
        let network = Network::routed("datagrams", narrow);
        for ip in Network::SERVER_IPS.into_iter().take(1 + usize::from(has_v6)) {
            let server = Server::start(&network, ip, &[]);
            let is_v6 = server.address.is_ipv6();
            // What is longer goes to the server's socket, whose datagrams disappear where a router is silent.
            let lens = || LENS.into_iter().filter(|len| !is_v6 || *len <= LONGEST);
            inside(&network, "r", || {
                let mut stream = server.connect();
                LENS.into_iter().for_each(|len| ask(&mut stream, &set(len), b"STORED\r\n"));
                let socket = server.datagrams();
                // Twice, and the program would have a copy of any.
                LENS.into_iter()
                    .for_each(|len| (0..2).for_each(|_| assert_eq!(exchange(&socket, len), Some(()))));
                lens().for_each(|len| server.until_answered(UDP_HITS, || assert_eq!(exchange(&socket, len), Some(()))));
            });
            inside(&network, "c", || {
                let socket = server.datagrams();
                if is_v6 && !narrow.is_silent {
                    // Longer than what the program sends over IPv6: the socket's own, which learns of the path.
                    let longer = LENS[LENS.len() - 1];
                    wait_until("a path", DEADLINE, || exchange(&socket, 1));
                    let before = server.stat(UDP_HITS);
                    wait_until("a long answer of the socket", DEADLINE, || exchange(&socket, longer));
                    assert_eq!(
                        server.stat(UDP_HITS),
                        before,
                        "{longer} bytes are too long for a packet of 1280"
                    );
                }
                for len in lens() {
                    let name = format!("{}, to {ip}, {len} bytes", describe(narrow));
                    // One request in ten seconds shows the path to the program; its answer may be too long for it.
                    wait_until(&name, DEADLINE, || exchange(&socket, 1));
                    let before = server.stat(UDP_HITS);
                    wait_until(&name, DEADLINE, || {
                        exchange(&socket, len);
                        (server.stat(UDP_HITS) > before).then_some(())
                    });
                    // And each that the program answers arrives.
                    let answered = || {
                        let before = server.stat(UDP_HITS);
                        let arrived = exchange(&socket, len);
                        (server.stat(UDP_HITS) > before).then_some(arrived)
                    };
                    assert_eq!(wait_until(&name, DEADLINE, answered), Some(()), "{name}");
                }
            });
        }
    }
}

/// A client that does not look for the path's width: a router cuts its segments into parts.
#[test]
fn segments_that_a_router_cuts_are_executed_once() {
    if !is_root("segments_that_a_router_cuts_are_executed_once") {
        return;
    }
    let network = Network::routed("cut", path(600, false, false));
    let server = Server::start(&network, Network::SERVER_IPS[0], &["--kernel-tcp"]);
    server.make_hot("r");
    inside(&network, "c", || {
        std::fs::write("/proc/sys/net/ipv4/ip_no_pmtu_disc", "1").unwrap();
        for _ in 0..3 {
            let mut stream = server.connect();
            server.until_answered(TCP_HITS, || ask(&mut stream, &get(1), &answer(1)));
            for round in 0..20 {
                ask(&mut stream, &set(HUGE + round), b"STORED\r\n");
                ask(&mut stream, &get(HUGE + round), &answer(HUGE + round));
                LENS.into_iter().for_each(|len| ask(&mut stream, &get(len), &answer(len)));
            }
        }
    });
    let cut = run(&format!("ip netns exec {} nstat -asz IpFragCreates", network.namespace("q")));
    let count = cut
        .split_whitespace()
        .skip_while(|word| *word != "IpFragCreates")
        .nth(1)
        .unwrap();
    assert!(count.parse::<f64>().unwrap() > 100.0, "the router has cut nothing: {cut}");
}

#[test]
fn a_request_that_was_answered_is_not_executed_in_any_other_form() {
    if !is_root("a_request_that_was_answered_is_not_executed_in_any_other_form") {
        return;
    }
    let network = Network::start("parts", 0, None);
    let link = run(&format!(
        "ip netns exec {} cat /sys/class/net/{}/address",
        network.namespace("s"),
        Network::INTERFACE
    ));
    for ip in Network::SERVER_IPS {
        let server = Server::start(&network, ip, &["--kernel-tcp"]);
        let mut client = Command::new("ip");
        client.args(["netns", "exec", &network.namespace("c"), "python3"]);
        client.args([
            concat!(env!("CARGO_MANIFEST_DIR"), "/tests/parts.py"),
            ip,
            Network::INTERFACE,
            link.trim(),
        ]);
        let (status, said) = run_to_end(&mut client, 2 * DEADLINE);
        assert!(status.success(), "{ip}: {said}{}", server.log());
        let tried = said.lines().filter(|line| line.starts_with("tried: ")).count();
        assert!(tried >= 4, "{ip}: {said}");
    }
}

#[test]
fn a_program_whose_filters_vanish_is_attached_again() {
    if !is_root("a_program_whose_filters_vanish_is_attached_again") {
        return;
    }
    let network = Network::start("vanish", 0, None);
    let (client, served, interface) = (network.namespace("c"), network.namespace("s"), Network::INTERFACE);
    let server = Server::start(&network, Network::SERVER_IPS[0], &["--kernel-tcp"]);
    assert!(!server.log().contains("another Keyway"), "{}", server.log());
    let said = |text: &str, times: usize| {
        wait_until(text, DEADLINE, || (server.log().matches(text).count() == times).then_some(()));
    };
    let connected = || {
        inside(&network, "c", || {
            let mut stream = server.connect();
            ask(&mut stream, &set(1), b"STORED\r\n");
            server.until_answered(TCP_HITS, || ask(&mut stream, &get(1), &answer(1)));
            stream
        })
    };
    let answers_datagrams = || {
        inside(&network, "c", || {
            let socket = server.datagrams();
            server.until_answered(UDP_HITS, || assert_eq!(exchange(&socket, 1), Some(())));
        });
    };
    // A connection whose numbers were translated ends: what passed meanwhile is not known.
    let is_over = |mut stream: TcpStream| {
        let end = stream.write_all(&get(1)).and_then(|()| stream.read(&mut [0; 100]));
        assert!(
            end.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset),
            "{end:?}"
        );
    };
    let mut before = connected();
    answers_datagrams();
    // One that was never answered goes on.
    let mut plain = inside(&network, "c", || server.connect());
    ask(&mut plain, &set(2), b"STORED\r\n");
    run(&format!("ip netns exec {served} tc qdisc del dev {interface} clsact"));
    said("the kernel door is off on v: its filters have vanished", 1);
    said("the kernel door is on v again", 1);
    said("the kernel door has reset 1 TCP connections", 1);
    is_over(std::mem::replace(&mut before, connected()));
    ask(&mut plain, &get(2), &answer(2));
    answers_datagrams();
    // A filter alone.
    let filters = run(&format!("ip netns exec {served} tc filter show dev {interface} egress"));
    let handle = filters
        .split_whitespace()
        .skip_while(|word| *word != "handle")
        .nth(1)
        .unwrap();
    run(&format!(
        "ip netns exec {served} tc filter del dev {interface} egress pref 1 handle {handle} bpf"
    ));
    said("the kernel door is on v again", 2);
    drop(before);
    drop(connected());
    answers_datagrams();
    assert_eq!(server.stat("keyway_kernel_interfaces"), 1);
    // The interface is removed, and another one gets its name.
    run(&format!("ip -n {served} link del {interface}"));
    said("there is no interface v", 1);
    run(&format!(
        "ip -n {served} link add {interface} type veth peer name {interface} netns {client}"
    ));
    for (namespace, address) in [(&served, "10.77.0.1/24"), (&client, "10.77.0.2/24")] {
        run(&format!("ip -n {namespace} address add {address} dev {interface}"));
        run(&format!("ip -n {namespace} link set {interface} up"));
    }
    said("the kernel door is on v again", 3);
    drop(connected());
    answers_datagrams();
    assert!(!server.log().contains("another Keyway"), "{}", server.log());
    assert_eq!(server.stat("keyway_kernel_reattached"), 3);
    assert!(server.stat("keyway_kernel_tcp_cpu_us") > 0 && server.stat("keyway_kernel_udp_cpu_us") > 0);
    let _ = SockRef::from(&plain).set_linger(Some(Duration::ZERO));
}
