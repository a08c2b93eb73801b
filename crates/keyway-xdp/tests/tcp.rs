//! The TCP door in the kernel, with a small server of the test's own: what is answered, what is not, and that both ends see the streams
//! that they would see without it. Needs root, which may load programs.
//! Guards: P43

use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use harness::{DEADLINE, Network, Random, skip, wait_until};
use keyway_xdp::Connections;
use keyway_xdp::config::{Settings, Verdict};
use keyway_xdp::copy::{ChangeCounts, HotCopy, Item};
use keyway_xdp::door::{Attached, Door};
use keyway_xdp::host::Program;
use keyway_xdp::store::{Put, Store};
use nix::net::if_::if_nametoindex;

const LOOPBACK: i32 = 1;
/// Keys of which the program has copies; others are the server's alone.
const HOT: usize = 100;
const SEED: u64 = 0x5EED;

/// One test at a time: some count programs.
fn alone(test: &str) -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    if !nix::unistd::geteuid().is_root() {
        skip(test, "this is not root, which may load its programs");
        return None;
    }
    Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner))
}

/// A program on an interface, and its hot copies.
struct Kernel {
    door: Door,
    _attached: Attached,
}

impl Kernel {
    fn start(address: SocketAddr, interface: i32) -> Self {
        let settings = Settings {
            address: address.ip(),
            udp_port: None,
            tcp_port: Some(address.port()),
            allow: Vec::new(),
            memory: 4 << 20,
            rate: None,
        };
        let door = Door::load(&settings).unwrap();
        let hot = door.hot();
        hot.set_seed(SEED);
        let mut store = Store::new(door.maps().pages());
        for number in 0..HOT {
            let (key, value) = (key_of(number), value_of(number));
            let item = Item {
                key: key.as_bytes(),
                flags: 0,
                cas: 7,
                value: value.as_bytes(),
                expires_s: 0,
                flush_s: 0,
            };
            let copy = HotCopy::new(&item, ChangeCounts::default()).unwrap();
            let hash = Program::default().hash(SEED, key.as_bytes()).unwrap();
            assert_eq!(store.put(&hot, hash, &copy), Put::Done);
        }
        let attached = door.attach(interface).unwrap();
        let kernel = Self {
            door,
            _attached: attached,
        };
        kernel.lease(true);
        kernel
    }

    fn lease(&self, runs: bool) {
        self.door.hot().renew(if runs { u64::MAX } else { 0 }, 0);
    }

    fn connections(&self) -> Arc<Connections> {
        self.door.maps().connections().unwrap()
    }

    fn count(&self, verdict: Verdict) -> u64 {
        let counts = self.door.counts().unwrap();
        counts.into_iter().find(|(other, _)| *other == verdict).unwrap().1
    }
}

fn key_of(number: usize) -> String {
    format!("key-{number:04}")
}

fn value_of(number: usize) -> String {
    format!("{number:04}-").repeat(1 + number % 200)
}

/// What a real server would answer.
fn answer_of(key: &str, value: &[u8]) -> Vec<u8> {
    let mut answer = format!("VALUE {key} 0 {}\r\n", value.len()).into_bytes();
    answer.extend_from_slice(value);
    answer.extend_from_slice(b"\r\nEND\r\n");
    answer
}

/// A server with one thread for each connection: `get` and `set` with values of any length. Enrols each connection at its fourth request.
struct Server {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(listener: TcpListener, connections: Option<Arc<Connections>>) -> Self {
        let address = listener.local_addr().unwrap();
        listener.set_nonblocking(true).unwrap();
        let ends = Arc::new(AtomicBool::new(false));
        let until = Arc::clone(&ends);
        let thread = thread::spawn(move || {
            let items = Arc::new(Mutex::new(HashMap::new()));
            let mut slot = 0;
            while !until.load(SeqCst) {
                match listener.accept() {
                    Ok((stream, _)) => {
                        let (items, connections) = (Arc::clone(&items), connections.clone());
                        thread::spawn(move || serve(stream, &items, connections.as_deref(), slot));
                        slot += 1;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => thread::sleep(Duration::from_millis(1)),
                    Err(error) => panic!("{error}"),
                }
            }
        });
        Self {
            address,
            ends,
            thread: Some(thread),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ends.store(true, SeqCst);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn serve(stream: TcpStream, items: &Mutex<HashMap<String, Vec<u8>>>, connections: Option<&Connections>, slot: u32) {
    let ticket = 0x1234_5678_9ABC_DEF0 ^ u64::from(slot) << 20;
    stream.set_nonblocking(false).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut input = BufReader::with_capacity(1 << 20, stream.try_clone().unwrap());
    let (mut output, mut read, mut requests) = (stream, 0_u64, 0);
    loop {
        let mut line = String::new();
        match input.read_line(&mut line) {
            Ok(len) if len > 0 => read += len as u64,
            _ => return,
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words.as_slice() {
            ["get", key] => match items.lock().unwrap().get(*key) {
                Some(value) => answer_of(key, value),
                None => match key.strip_prefix("key-").and_then(|number| number.parse().ok()) {
                    Some(number) => answer_of(key, value_of(number).as_bytes()),
                    None => b"END\r\n".to_vec(),
                },
            },
            ["set", key, _, _, len] => {
                let mut value = vec![0; len.parse::<usize>().unwrap() + 2];
                if input.read_exact(&mut value).is_err() {
                    return;
                }
                read += value.len() as u64;
                value.truncate(value.len() - 2);
                items.lock().unwrap().insert((*key).to_owned(), value);
                b"STORED\r\n".to_vec()
            }
            ["quit"] => return,
            _ => b"ERROR\r\n".to_vec(),
        };
        if output.write_all(&answer).is_err() {
            return;
        }
        requests += 1;
        if let Some(connections) = connections {
            if requests == 4 {
                connections.enrol(output.as_fd(), slot, ticket).unwrap();
            }
            let at_rest = requests >= 4 && input.buffer().is_empty();
            connections.publish(slot, if at_rest { ticket + read } else { 0 });
        }
    }
}

struct Client {
    input: BufReader<TcpStream>,
    output: TcpStream,
}

impl Client {
    fn connect(address: SocketAddr) -> Self {
        let output = TcpStream::connect_timeout(&address, DEADLINE).unwrap();
        output.set_nodelay(true).unwrap();
        output.set_read_timeout(Some(DEADLINE)).unwrap();
        output.set_write_timeout(Some(DEADLINE)).unwrap();
        Self {
            input: BufReader::new(output.try_clone().unwrap()),
            output,
        }
    }

    fn send(&mut self, bytes: &[u8]) {
        self.output.write_all(bytes).unwrap();
    }

    fn expect(&mut self, expected: &[u8]) {
        let mut got = vec![0; expected.len()];
        self.input.read_exact(&mut got).unwrap();
        if let Some(at) = got.iter().zip(expected).position(|(a, b)| a != b) {
            let text =
                |bytes: &[u8]| String::from_utf8_lossy(&bytes[at.saturating_sub(20)..bytes.len().min(at + 60)]).into_owned();
            panic!(
                "{:?} at {at} of {}: {:?} instead of {:?}",
                self.output.local_addr(),
                expected.len(),
                text(&got),
                text(expected)
            );
        }
    }

    fn get(&mut self, number: usize) {
        self.send(format!("get {}\r\n", key_of(number)).as_bytes());
        self.expect(&answer_of(&key_of(number), value_of(number).as_bytes()));
    }

    /// Until the program may answer.
    fn warm(&mut self) {
        for _ in 0..5 {
            self.get(HOT + 1);
        }
        thread::sleep(Duration::from_millis(110));
        self.get(HOT + 1);
    }
}

fn listen(ip: IpAddr) -> TcpListener {
    TcpListener::bind((ip, 0)).unwrap()
}

fn loopbacks() -> [IpAddr; 2] {
    ["127.0.0.1".parse().unwrap(), "::1".parse().unwrap()]
}

#[test]
fn hot_keys_are_answered_here_and_the_server_sees_none_of_it() {
    let Some(_alone) = alone("tcp hot keys") else { return };
    for ip in loopbacks() {
        let listener = listen(ip);
        let kernel = Kernel::start(listener.local_addr().unwrap(), LOOPBACK);
        let server = Server::start(listener, Some(kernel.connections()));
        let mut client = Client::connect(server.address);
        client.warm();
        let before = kernel.count(Verdict::TcpHit);
        for number in 0..1000 {
            client.get(number % HOT);
        }
        let answered = kernel.count(Verdict::TcpHit) - before;
        // The server may publish an answer's end a moment after the client has it.
        assert!(answered >= 990, "{ip}: {answered} of 1000, {:?}", kernel.door.counts());
        assert_eq!(kernel.connections().translated().unwrap(), 1);
        drop(client);
        wait_until("the connection's end", DEADLINE, || {
            (kernel.connections().translated().unwrap() == 0).then_some(())
        });
    }
}

/// The word that the server has published says how much it has read: while more has arrived, it is as good as none.
#[test]
fn what_follows_a_half_request_is_the_servers() {
    let Some(_alone) = alone("tcp half requests") else { return };
    for ip in loopbacks() {
        let listener = listen(ip);
        let kernel = Kernel::start(listener.local_addr().unwrap(), LOOPBACK);
        let server = Server::start(listener, Some(kernel.connections()));
        let mut client = Client::connect(server.address);
        client.warm();
        for number in 0..HOT {
            let value = format!("get {}", key_of(number));
            client.send(format!("set own 0 0 {}\r\n", value.len()).as_bytes());
            // In a segment of its own: all of a request for a hot key.
            client.send(format!("{value}\r\n").as_bytes());
            client.expect(b"STORED\r\n");
            client.send(b"get own\r\n");
            client.expect(&answer_of("own", value.as_bytes()));
            client.get(number);
        }
        assert!(kernel.count(Verdict::TcpHit) > 0, "{ip}: {:?}", kernel.door.counts());
    }
}

#[test]
fn mixed_with_what_only_the_server_can_do() {
    let Some(_alone) = alone("tcp mix") else { return };
    for ip in loopbacks() {
        let listener = listen(ip);
        let kernel = Kernel::start(listener.local_addr().unwrap(), LOOPBACK);
        let server = Server::start(listener, Some(kernel.connections()));
        let clients: Vec<_> = (0..8)
            .map(|seed| {
                let address = server.address;
                thread::spawn(move || mix(address, seed, Duration::from_secs(2)))
            })
            .collect();
        let done: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
        eprintln!("{ip}: {:?}", kernel.door.counts());
        let done: u64 = done.into_iter().map(|done| done.unwrap()).sum();
        let hits = kernel.count(Verdict::TcpHit);
        eprintln!(
            "{ip}: {done} operations, {hits} answered, {:?}",
            kernel.door.counts().unwrap()
        );
        // However many a busy machine has time for.
        assert!(hits > done / 2, "{ip}: {hits} of {done}");
    }
}

/// Random operations until `time` is over; how many there were.
fn mix(address: SocketAddr, seed: u64, time: Duration) -> u64 {
    let mut random = Random::new(seed);
    let mut client = Client::connect(address);
    let (until, mut done) = (Instant::now() + time, 0);
    client.warm();
    while Instant::now() < until {
        let kind = random.below(100);
        if kind < 70 {
            client.get(usize::try_from(random.below(HOT as u64)).unwrap());
        } else if kind < 85 {
            let len = [1, 100, 5000, 70_000, 600_000][usize::try_from(random.below(5)).unwrap()];
            let (key, value) = (
                format!("own-{seed}-{}", random.below(20)),
                vec![b'a' + u8::try_from(random.below(26)).unwrap(); len],
            );
            client.send(&[format!("set {key} 0 0 {len}\r\n").as_bytes(), &value, b"\r\n"].concat());
            client.expect(b"STORED\r\n");
            client.send(format!("get {key}\r\n").as_bytes());
            client.expect(&answer_of(&key, &value));
        } else {
            // Several at once: hot ones, and some that only the server has.
            let numbers: Vec<usize> = (0..=random.below(6))
                .map(|_| usize::try_from(random.below(HOT as u64 + 20)).unwrap())
                .collect();
            let requests: String = numbers.iter().map(|number| format!("get {}\r\n", key_of(*number))).collect();
            client.send(requests.as_bytes());
            for number in numbers {
                client.expect(&answer_of(&key_of(number), value_of(number).as_bytes()));
            }
        }
        done += 1;
    }
    client.send(b"quit\r\n");
    assert_eq!(client.input.read_to_end(&mut Vec::new()).unwrap(), 0);
    done
}

#[test]
fn through_a_network_that_loses_repeats_and_delays_segments() {
    let Some(_alone) = alone("tcp weather") else { return };
    let seed = Random::seed_for("tcp weather");
    for (shares, index) in [[0.0, 0.0, 0.0], [1.0, 1.0, 5.0], [5.0, 5.0, 20.0]].into_iter().zip(0..) {
        for ip in Network::SERVER_IPS {
            let network = Network::start("weather", seed + index, Some(shares));
            let outcome = thread::scope(|scope| {
                let served = scope.spawn(|| {
                    network.enter("s");
                    let listener = listen(ip.parse().unwrap());
                    let interface = if_nametoindex(Network::INTERFACE).unwrap().cast_signed();
                    let kernel = Kernel::start(listener.local_addr().unwrap(), interface);
                    let server = Server::start(listener, Some(kernel.connections()));
                    (kernel, server)
                });
                let (kernel, server) = served.join().unwrap();
                let address = server.address;
                let clients: Vec<_> = (0..6)
                    .map(|number| {
                        let network = &network;
                        scope.spawn(move || {
                            network.enter("c");
                            mix(address, seed ^ number, Duration::from_secs(3))
                        })
                    })
                    .collect();
                let done: Vec<_> = clients.into_iter().map(|client| client.join()).collect();
                let counts = kernel.door.counts().unwrap();
                drop(server);
                // The filters are in the server's namespace.
                scope
                    .spawn(|| {
                        network.enter("s");
                        drop(kernel);
                    })
                    .join()
                    .unwrap();
                (done, counts)
            });
            let (done, counts) = outcome;
            let count = |verdict| counts.iter().find(|(other, _)| *other == verdict).unwrap().1;
            let total: u64 = done.into_iter().map(|done| done.unwrap()).sum();
            harness::say(&format!("{ip}, {shares:?}: {total} operations, {counts:?}"));
            assert!(
                count(Verdict::TcpHit) > total / 10,
                "seed {seed}, {ip}, {shares:?}: {counts:?}"
            );
            assert!(
                shares[0] < 5.0 || count(Verdict::TcpRepeated) > 0,
                "seed {seed}, {ip}: {counts:?}"
            );
        }
    }
}
