//! `keyway serve --local-bypass`: clients cannot tell it from TCP, whatever happens to the programs and the servers.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use harness::{
    DEADLINE, Kind, Random, Scratch, ServeOptions, Server, Transport, cgroup, free_port, keyway_binary, run_to_end, say, skip,
    wait_until,
};

/// The cgroup, or `None` where the test cannot run.
fn place(test: &str) -> Option<String> {
    if !nix::unistd::geteuid().is_root() {
        skip(test, "this is not root, which may load its programs");
        return None;
    }
    match cgroup() {
        Ok(folder) => Some(folder.display().to_string()),
        Err(why) => {
            skip(test, &why);
            None
        }
    }
}

/// A server that dies with its handle.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(scratch: &Scratch, name: &str, address: SocketAddr, more: &[&str]) -> Process {
    let path = scratch.join(name);
    let log = File::create(&path).unwrap();
    let mut command = Command::new(keyway_binary());
    command.args(["serve", "--listen", &address.to_string(), "--memory", "256m", "--region"]);
    command.arg(scratch.join("region")).args(more);
    command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log);
    let mut process = Process(command.spawn().unwrap());
    wait_until("the server is ready", DEADLINE, || {
        let said = std::fs::read_to_string(&path).unwrap();
        assert!(process.0.try_wait().unwrap().is_none(), "it ended: {said}");
        said.contains(" ready: ").then_some(())
    });
    process
}

fn connect(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&address, DEADLINE).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    stream.set_write_timeout(Some(DEADLINE)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

fn expect(stream: &mut TcpStream, what: &str, expected: &[u8]) {
    let mut got = vec![0; expected.len()];
    stream.read_exact(&mut got).unwrap_or_else(|error| panic!("{what}: {error}"));
    let differs = got.iter().zip(expected).position(|(a, b)| a != b);
    assert_eq!(differs, None, "{what}: at this byte of {}", expected.len());
}

/// A client with keys of its own, and what each answer must be.
struct Client {
    random: Random,
    name: usize,
    values: HashMap<u64, Vec<u8>>,
}

impl Client {
    fn value(&mut self) -> Vec<u8> {
        let longest = [1, 100, 100, 4_000, 70_000, 1_000_000][self.random.index(6)];
        let len = self.random.index(longest + 1);
        let mut value = self.random.bytes(len.min(1_000));
        value.resize(len, self.random.next().to_le_bytes()[0]);
        value
    }

    /// A request in the text or meta protocol, and its answer.
    fn request(&mut self) -> (Vec<u8>, Vec<u8>) {
        let key = self.random.below(8);
        let name = format!("c{}k{key}", self.name);
        let known = self.values.get(&key);
        match self.random.below(8) {
            0 | 1 => {
                let value = self.value();
                let is_meta = self.random.below(2) == 0;
                let head = if is_meta {
                    format!("ms {name} {}\r\n", value.len())
                } else {
                    format!("set {name} 0 0 {}\r\n", value.len())
                };
                let request = [head.as_bytes(), &value, b"\r\n"].concat();
                self.values.insert(key, value);
                (request, if is_meta { b"HD\r\n".to_vec() } else { b"STORED\r\n".to_vec() })
            }
            2 => {
                let answer: &[u8] = if known.is_some() { b"DELETED\r\n" } else { b"NOT_FOUND\r\n" };
                let request = format!("delete {name}\r\n").into_bytes();
                self.values.remove(&key);
                (request, answer.to_vec())
            }
            3 => {
                // No answer; the next one shows that it was taken.
                let value = self.value();
                let head = format!("set {name} 0 0 {} noreply\r\n", value.len());
                let request = [head.as_bytes(), &value, b"\r\nmn\r\n"].concat();
                self.values.insert(key, value);
                (request, b"MN\r\n".to_vec())
            }
            4 => {
                let answer = match known {
                    Some(value) => [format!("VA {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat(),
                    None => b"EN\r\n".to_vec(),
                };
                (format!("mg {name} v\r\n").into_bytes(), answer)
            }
            _ => {
                let mut answer = Vec::new();
                if let Some(value) = known {
                    answer.extend_from_slice(format!("VALUE {name} 0 {}\r\n", value.len()).as_bytes());
                    answer.extend_from_slice(value);
                    answer.extend_from_slice(b"\r\n");
                }
                answer.extend_from_slice(b"END\r\n");
                (format!("get {name}\r\n").into_bytes(), answer)
            }
        }
    }

    /// A set and a get in the binary protocol, on a connection of their own.
    fn binary(&mut self, address: SocketAddr) {
        let (key, value) = (self.random.below(8), self.value());
        let name = format!("c{}k{key}", self.name);
        let header = |opcode: u8, extras: usize, body: usize| {
            let mut header = vec![0x80, opcode, 0, 0, 0, 0, 0, 0];
            header[3] = name.len().to_le_bytes()[0];
            header[4] = extras.to_le_bytes()[0];
            header.extend_from_slice(&u32::try_from(extras + name.len() + body).unwrap().to_be_bytes());
            header.resize(24, 0);
            header
        };
        let set = [&header(1, 8, value.len())[..], &[0; 8], name.as_bytes(), &value].concat();
        let mut stream = connect(address);
        stream.write_all(&set).unwrap();
        stream.write_all(&[header(0, 0, 0), name.into_bytes()].concat()).unwrap();
        let mut answer = [0; 24];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..8], [0x81, 1, 0, 0, 0, 0, 0, 0]);
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer[..8], [0x81, 0, 0, 0, 4, 0, 0, 0]);
        expect(&mut stream, "the flags", &[0; 4]);
        expect(&mut stream, "a value in the binary protocol", &value);
        self.values.insert(key, value);
    }

    fn run(mut self, address: SocketAddr, operations: usize) -> usize {
        let mut stream = connect(address);
        let mut done = 0;
        while done < operations {
            match self.random.below(30) {
                0 => self.binary(address),
                1 => {
                    // Ends without asking, in the middle of answers: none of the keys changes.
                    if self.random.below(2) == 0 {
                        socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
                    }
                    for _ in 0..self.random.below(5) {
                        stream.write_all(format!("get c{}k0\r\n", self.name).as_bytes()).unwrap();
                    }
                    stream = connect(address);
                }
                2 => {
                    // A half-close: all is answered, then the end.
                    let (request, answer) = self.request();
                    stream.write_all(&request).unwrap();
                    stream.shutdown(std::net::Shutdown::Write).unwrap();
                    let mut all = Vec::new();
                    // The kernel may wake a reader of a bypassed socket for the half-close itself.
                    wait_until("the end", DEADLINE, || match stream.read_to_end(&mut all) {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => None,
                        result => Some(result.unwrap()),
                    });
                    assert!(
                        all == answer,
                        "{} bytes instead of {} before the end",
                        all.len(),
                        answer.len()
                    );
                    stream = connect(address);
                }
                _ => {
                    // A pipeline, read when all of it is sent, as long as that cannot fill the buffers.
                    let most = [1, 1, 5, 40][self.random.index(4)];
                    let (mut requests, mut answers) = (Vec::new(), Vec::new());
                    for _ in 0..1 + self.random.below(most) {
                        let (request, answer) = self.request();
                        requests.extend_from_slice(&request);
                        answers.extend_from_slice(&answer);
                        done += 1;
                    }
                    let mut sender = stream.try_clone().unwrap();
                    let piece_len = 1 + self.random.index(requests.len());
                    std::thread::scope(|scope| {
                        scope.spawn(move || {
                            // In pieces, at any place.
                            for piece in requests.chunks(piece_len.max(requests.len() / 100)) {
                                sender.write_all(piece).unwrap();
                            }
                        });
                        let mut got = vec![0; answers.len()];
                        let mut at = 0;
                        wait_until("the answers", DEADLINE, || {
                            while at < got.len() {
                                match stream.read(&mut got[at..]) {
                                    // Woken by room for the other thread's data, and nothing is there.
                                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => return None,
                                    result => {
                                        let len = result.unwrap();
                                        assert_ne!(len, 0, "it ended after {at} of {} bytes", answers.len());
                                        at += len;
                                    }
                                }
                            }
                            Some(())
                        });
                        assert!(got == answers, "{:?}", got.iter().zip(&answers).position(|(a, b)| a != b));
                    });
                }
            }
        }
        done
    }
}

/// Requests of all protocols and lengths, resets and half-closes, while servers take over from each other, each with programs of its own, or
/// with none: every answer is what a model says, byte for byte.
fn storm(event_loop: &str) {
    let Some(cgroup) = place("operations through the bypass") else {
        return;
    };
    let seed = Random::seed_for("local bypass");
    say(&format!("seed {seed}, {event_loop}"));
    let operations = if std::env::var_os("KEYWAY_TESTS_FULL").is_some() {
        100_000
    } else {
        2_500
    };
    let scratch = Scratch::new();
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let with = ["--event-loop", event_loop, "--local-bypass", &cgroup];
    let mut server = start(&scratch, "log", address, &with);
    let stop = AtomicBool::new(false);
    let (mut exchanges, mut handed) = (0, 0);
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..4)
            .map(|name| {
                let client = Client {
                    random: Random::new(seed).fork(name),
                    name: usize::try_from(name).unwrap(),
                    values: HashMap::new(),
                };
                scope.spawn(move || client.run(address, operations))
            })
            .collect();
        let stop = &stop;
        let waiting = scope.spawn(move || {
            let results: Vec<_> = clients.into_iter().map(std::thread::ScopedJoinHandle::join).collect();
            stop.store(true, SeqCst);
            results.into_iter().map(Result::unwrap).sum::<usize>()
        });
        while !stop.load(SeqCst) {
            let with = if exchanges % 3 == 2 { &with[..2] } else { &with[..] };
            let arguments = [with, &["--take-over"]].concat();
            let next = start(&scratch, &format!("log-{exchanges}"), address, &arguments);
            assert!(server.0.wait().unwrap().success(), "the one before ends in peace");
            server = next;
            exchanges += 1;
            std::thread::sleep(Duration::from_millis(300));
            handed += stat(address, "keyway_bypass_messages");
        }
        say(&format!("{} operations, {exchanges} exchanges", waiting.join().unwrap()));
    });
    assert!(exchanges > 0 && handed > 0, "{exchanges} exchanges, {handed} messages");
}

/// A number of `stats`; 0 if there is none.
fn stat(address: SocketAddr, name: &str) -> u64 {
    let mut wire = harness::Wire::from_tcp(connect(address)).unwrap();
    let all = wire.stats("").unwrap();
    all.iter()
        .find(|(known, _)| known == name)
        .map_or(0, |(_, value)| value.parse().unwrap())
}

#[test]
fn a_storm_of_operations_with_io_uring_is_answered_as_by_a_model() {
    storm("auto");
}

#[test]
fn a_storm_of_operations_with_epoll_is_answered_as_by_a_model() {
    storm("epoll");
}

/// What a server had answered before it was killed is still read, and then the end.
#[test]
fn answers_of_a_killed_server_are_read() {
    let Some(cgroup) = place("a killed server with a bypass") else {
        return;
    };
    let scratch = Scratch::new();
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let mut server = start(&scratch, "log", address, &["--local-bypass", &cgroup]);
    let mut client = connect(address);
    client.write_all(b"set k 0 0 5\r\nhello\r\n").unwrap();
    expect(&mut client, "a set", b"STORED\r\n");
    let before = stat(address, "cmd_get");
    client.write_all(&b"get k\r\n".repeat(100)).unwrap();
    wait_until("all is answered", DEADLINE, || {
        (stat(address, "cmd_get") == before + 100).then_some(())
    });
    // It counts before it sends: another answer on the same connection has to wait for these.
    let mut peeked = vec![0; 25 * 100];
    wait_until("all has arrived", DEADLINE, || {
        (client.peek(&mut peeked).unwrap() == peeked.len()).then_some(())
    });
    assert!(stat(address, "keyway_bypass_messages") > 0);
    server.0.kill().unwrap();
    server.0.wait().unwrap();
    let mut all = Vec::new();
    let end = client.read_to_end(&mut all);
    assert!(end.is_ok() || end.unwrap_err().kind() == io::ErrorKind::ConnectionReset);
    assert!(all == b"VALUE k 0 5\r\nhello\r\nEND\r\n".repeat(100), "{} bytes", all.len());
}

/// TLS is bytes as well.
#[test]
fn tls_is_bypassed_too() {
    let Some(cgroup) = place("TLS through the bypass") else {
        return;
    };
    let options = ServeOptions {
        transport: Transport::Tls,
        keyway_arguments: vec!["--local-bypass".into(), cgroup],
        ..ServeOptions::default()
    };
    let server = Server::start(Kind::Keyway, &options);
    let before = server.stat("keyway_bypass_bytes");
    let mut wire = server.connect(Transport::Tls);
    let value = "x".repeat(500_000);
    assert_eq!(wire.ask(&format!("set k 0 0 {}\r\n{value}", value.len())).unwrap(), "STORED");
    let got = wire.get(false, &["k"]).unwrap();
    assert!(got.len() == 1 && got[0].value == value.as_bytes());
    assert!(server.stat("keyway_bypass_bytes") > before + 500_000);
}

/// A client in another network namespace, over veth, is served by TCP; one of this namespace is not, by the same address.
#[test]
fn a_client_in_another_network_namespace_is_served_by_tcp() {
    const INSIDE: &str = "KEYWAY_TEST_INSIDE";
    const ADDRESS: ([u8; 4], u16) = ([10, 99, 0, 1], 11211);
    let Some(cgroup) = place("a client of another network namespace") else {
        return;
    };
    if std::env::var_os(INSIDE).is_none() {
        let mut again = Command::new("unshare");
        again.args(["--net", "--mount"]).arg(std::env::current_exe().unwrap());
        again.env(INSIDE, "1");
        again.args([
            "--exact",
            "a_client_in_another_network_namespace_is_served_by_tcp",
            "--nocapture",
        ]);
        let (status, said) = run_to_end(&mut again, 2 * DEADLINE);
        assert!(status.success(), "{said}");
        return;
    }
    let run = |line: &str| {
        let mut words = line.split(' ');
        let (status, said) = run_to_end(Command::new(words.next().unwrap()).args(words), DEADLINE);
        assert!(status.success(), "{line}: {said}");
        said
    };
    run("mount -t tmpfs none /run");
    for line in [
        "ip netns add peer",
        "ip link add here type veth peer name there netns peer",
        "ip addr add 10.99.0.1/24 dev here",
        "ip -n peer addr add 10.99.0.2/24 dev there",
        "ip link set lo up",
        "ip link set here up",
        "ip -n peer link set there up",
    ] {
        run(line);
    }
    let scratch = Scratch::new();
    let address = SocketAddr::from(ADDRESS);
    let _server = start(&scratch, "log", address, &["--local-bypass", &cgroup]);
    let mut client = connect(address);
    client.write_all(b"set k 0 0 5\r\nhello\r\n").unwrap();
    expect(&mut client, "a set", b"STORED\r\n");
    // This one and those of `stat`.
    let before = stat(address, "keyway_bypass_connections");
    assert_eq!(before, 2);
    let mut peer = Command::new("ip");
    peer.args(["netns", "exec", "peer", "bash", "-c"]);
    peer.arg("exec 3<>/dev/tcp/10.99.0.1/11211; printf 'get k\\r\\nquit\\r\\n' >&3; cat <&3");
    let (status, said) = run_to_end(&mut peer, DEADLINE);
    assert!(status.success() && said == "VALUE k 0 5\r\nhello\r\nEND\r\n", "{said}");
    assert_eq!(stat(address, "keyway_bypass_connections"), before + 1);
}

#[test]
fn what_cannot_be_is_refused_with_the_reason() {
    let Some(cgroup) = place("refusals of the bypass") else {
        return;
    };
    let scratch = Scratch::new();
    let refused = |prefix: &[&str], arguments: &[&str]| {
        let mut words = prefix.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
        words.push(keyway_binary().display().to_string());
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).args(["serve", "--region", "memfd"]).args(arguments);
        let (status, said) = run_to_end(&mut command, DEADLINE);
        assert!(!status.success(), "{said}");
        said
    };
    let listen = format!("127.0.0.1:{}", free_port());
    let at = |folder: &str| refused(&[], &["--listen", &listen, "--local-bypass", folder]);
    let said = at(&scratch.join("absent").display().to_string());
    assert!(said.contains("no cgroup") && said.contains("No such file"), "{said}");
    let said = at(&scratch.path().display().to_string());
    assert!(said.contains("is not a folder of a cgroup2 file system"), "{said}");
    let without = [
        "setpriv",
        "--bounding-set=-bpf,-sys_admin,-perfmon",
        "--inh-caps=-bpf,-sys_admin,-perfmon",
    ];
    let said = refused(&without, &["--listen", &listen, "--local-bypass", &cgroup]);
    assert!(said.contains("this process lacks CAP_BPF, CAP_PERFMON"), "{said}");
    let child = format!("{cgroup}/keyway-test-{}", std::process::id());
    std::fs::create_dir(&child).unwrap();
    let said = at(&child);
    std::fs::remove_dir(&child).unwrap();
    assert!(said.contains("start the server in that cgroup or below it"), "{said}");
}
