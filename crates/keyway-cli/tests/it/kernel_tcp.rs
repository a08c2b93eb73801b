//! `keyway serve --kernel lo --kernel-tcp` with clients that know nothing of it, while servers are killed, stopped, and taken over, and programs are
//! detached: no connection hangs, and no answer is another than a model's.
//!
//! Each test runs in a network namespace of its own, on its `lo`, with a BPF file system of its own. Needs root.
//! Guards: P43

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv6Addr, Shutdown, SocketAddr, TcpStream};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};

use harness::{DEADLINE, Random, Scratch, Wire, keyway_binary, run_to_end, say, skip, wait_until};
use keyway_cache::{Cache, Door, Options, Place, Verb};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use socket2::{SockRef, TcpKeepalive};

const INSIDE: &str = "KEYWAY_TEST_ROLE";
const ADDRESS: ([u8; 4], u16) = ([127, 0, 0, 1], 11_211);
const PIN: &str = "/sys/fs/bpf/keyway";
/// After this time without an answer or an end, a connection hangs.
const PATIENCE: Duration = Duration::from_secs(15);
const CLIENTS: usize = 12;
/// Keys of each client.
const KEYS: usize = 6;
const HITS: &str = "keyway_kernel_tcp_hits";

/// Whether the test goes on: it is in a network namespace of its own. Otherwise it has run there, or cannot.
fn is_inside(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        for line in ["ip link set lo up", "mount -t bpf -o mode=0755 bpf /sys/fs/bpf"] {
            assert_eq!(command(line), "", "{line}");
        }
        return true;
    }
    if !nix::unistd::geteuid().is_root() {
        skip(test, "this is not root, which may load its programs");
        return false;
    }
    let mut again = harness::own_test(&["unshare", "--net", "--mount"], module_path!(), test);
    again.env(INSIDE, "1");
    let (status, said) = run_to_end(&mut again, 4 * DEADLINE);
    assert!(status.success(), "{said}");
    said.lines().filter(|line| line.starts_with("shown: ")).for_each(say);
    false
}

fn command(line: &str) -> String {
    let mut words = line.split(' ');
    let (status, said) = run_to_end(Command::new(words.next().unwrap()).args(words), DEADLINE);
    assert!(status.success(), "{line}: {said}");
    said
}

fn keyway(arguments: &[&str]) -> (ExitStatus, String) {
    run_to_end(Command::new(keyway_binary()).args(arguments), DEADLINE)
}

/// Number of programs that see what arrives.
fn programs() -> usize {
    let filters = command("tc filter show dev lo ingress");
    filters.lines().filter(|line| line.contains(" handle ")).count()
}

fn address() -> SocketAddr {
    SocketAddr::from(ADDRESS)
}

/// A server that dies with its handle.
struct Process(Child, std::path::PathBuf);

impl Process {
    fn start(scratch: &Scratch, name: &str, before: &[&str], more: &[&str]) -> Self {
        let path = scratch.join(name);
        let log = File::create(&path).unwrap();
        let mut program = keyway_binary().to_path_buf();
        if !before.is_empty() {
            // Where it was built, another user may not reach it.
            program = scratch.join("keyway");
            harness::copy_program(keyway_binary(), &program);
        }
        let (binary, listen) = (program.display().to_string(), address().to_string());
        let listen: &[_] = if more.contains(&"--listen") {
            &[]
        } else {
            &["--listen", &listen]
        };
        let line = [before, &[&binary, "serve", "--memory", "64m"], listen, more].concat();
        let mut command = Command::new(line[0]);
        command
            .args(&line[1..])
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        let mut process = Self(command.spawn().unwrap(), path);
        wait_until("the server is ready", DEADLINE, || {
            let said = process.log();
            assert!(process.0.try_wait().unwrap().is_none(), "it ended: {said}");
            said.contains(" ready: ").then_some(())
        });
        process
    }

    /// With a kernel door of its own, and a region that the next one opens again.
    fn with_door(scratch: &Scratch, name: &str, more: &[&str]) -> Self {
        let region = scratch.join("region").display().to_string();
        let door = ["--region", &region, "--kernel", "lo", "--kernel-tcp", "--kernel-memory", "4m"];
        Self::start(scratch, name, &[], &[&door, more].concat())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.1).unwrap()
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn stop(&mut self) {
        kill(Pid::from_raw(i32::try_from(self.0.id()).unwrap()), Signal::SIGTERM).unwrap();
        let status = wait_until("the server ends after SIGTERM", DEADLINE, || self.0.try_wait().unwrap());
        assert!(status.success(), "{}", self.log());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn try_connect() -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address(), PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// A number of `stats`.
fn stat(name: &str) -> u64 {
    let all = Wire::from_tcp(try_connect().unwrap()).unwrap().stats("").unwrap();
    let found = all.iter().find(|(known, _)| known == name);
    found.unwrap_or_else(|| panic!("no {name}: {all:?}")).1.parse().unwrap()
}

/// Sends a request and reads its answer. Another answer is noticed where it differs from the right one, also if it is shorter.
fn ask(stream: &mut TcpStream, request: &[u8], answer: &[u8]) -> io::Result<()> {
    stream.write_all(request)?;
    let (mut got, mut len) = (vec![0; answer.len()], 0);
    while len < answer.len() {
        let count = match stream.read(&mut got[len..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => {
                let asked = String::from_utf8_lossy(&request[..request.len().min(60)]).into_owned();
                let text = format!("{asked}: {error}, after {len} of {} bytes", answer.len());
                return Err(io::Error::new(error.kind(), text));
            }
        };
        let is_right = got[len..len + count] == answer[len..len + count];
        len += count;
        assert!(
            is_right,
            "{}: not the right answer in its first {len} bytes: {}",
            String::from_utf8_lossy(&request[..request.len().min(60)]),
            String::from_utf8_lossy(&got[..len.min(200)])
        );
    }
    Ok(())
}

const HOT: (&[u8], &[u8]) = (b"get hot\r\n", b"VALUE hot 0 5\r\nvalue\r\nEND\r\n");

/// A connection whose numbers the program translates.
fn translated() -> TcpStream {
    let mut stream = try_connect().unwrap();
    ask(&mut stream, b"set hot 0 0 5\r\nvalue\r\n", b"STORED\r\n").unwrap();
    let before = stat(HITS);
    wait_until("the kernel answers", DEADLINE, || {
        ask(&mut stream, HOT.0, HOT.1).unwrap();
        (stat(HITS) > before).then_some(())
    });
    stream
}

/// How a connection ended: at once, with nothing before the end.
fn is_over(stream: &mut TcpStream) {
    match stream.read(&mut [0; 100]) {
        Ok(0) => {}
        Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
        other => panic!("no end: {other:?}"),
    }
}

/// What the clients of a storm share.
#[derive(Default)]
struct Storm {
    ends: AtomicBool,
    /// whether servers are killed, so that connections may end at any time
    kills: AtomicBool,
    operations: AtomicUsize,
    ended: AtomicUsize,
    /// servers that were killed, and of how many of them each client has noticed it
    killed: AtomicUsize,
    noticed: [AtomicUsize; CLIENTS],
}

/// A client with keys of its own, and their values.
struct Client<'a> {
    storm: &'a Storm,
    number: usize,
    random: Random,
    name: String,
    values: HashMap<usize, Vec<u8>>,
}

impl Client<'_> {
    fn run(mut self) {
        while !self.storm.ends.load(SeqCst) {
            let Err(error) = self.live() else { continue };
            let is_hang = matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
            assert!(!is_hang, "{}: a connection hangs: {error}", self.name);
            assert!(self.storm.kills.load(SeqCst), "{}: {error}", self.name);
            if error.kind() != ErrorKind::ConnectionRefused {
                self.storm.ended.fetch_add(1, SeqCst);
            }
            // It has no connection, or not even got one.
            self.storm.noticed[self.number].store(self.storm.killed.load(SeqCst), SeqCst);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Until the end, or until the connection fails.
    fn live(&mut self) -> io::Result<()> {
        let mut stream = try_connect()?;
        // What a lost request has done is unknown. The values of all lives together would not fit into the region.
        self.values.clear();
        (0..KEYS).try_for_each(|key| self.delete(&mut stream, key))?;
        while !self.storm.ends.load(SeqCst) {
            self.storm.operations.fetch_add(1, SeqCst);
            match self.random.below(1000) {
                0..2 => {
                    // A reset, in the middle of an answer.
                    SockRef::from(&stream).set_linger(Some(Duration::ZERO))?;
                    stream.write_all(HOT.0)?;
                    stream = try_connect()?;
                }
                2..4 => {
                    // A half-close after the last request: its answer, and the end.
                    let (request, answer) = self.get(0);
                    ask(&mut stream, &request, &answer)?;
                    stream.write_all(&request)?;
                    stream.shutdown(Shutdown::Write)?;
                    let mut got = Vec::new();
                    stream.read_to_end(&mut got)?;
                    // A killed server may have said nothing more.
                    assert!(got == answer || (got.is_empty() && self.storm.kills.load(SeqCst)), "{got:?}");
                    stream = try_connect()?;
                }
                4..60 => self.set(&mut stream)?,
                60..80 => {
                    // Several at once.
                    let several: Vec<_> = (0..5).map(|key| self.get(key)).collect();
                    let (requests, answers): (Vec<_>, Vec<_>) = several.into_iter().unzip();
                    ask(&mut stream, &requests.concat(), &answers.concat())?;
                }
                80..110 => {
                    // A change without an answer, and at once a request of its own, which must see the change.
                    let value = vec![b'A' + u8::try_from(self.random.below(26)).unwrap(); 20];
                    let head = format!("set {}-k1 0 0 20 noreply\r\n", self.name);
                    stream.write_all(&[head.as_bytes(), &value, b"\r\n"].concat())?;
                    self.values.insert(1, value);
                    let (request, answer) = self.get(1);
                    ask(&mut stream, &request, &answer)?;
                }
                110..140 => {
                    // A value that reads as a request for a hot key, sent after its head.
                    let (request, _) = self.get(1);
                    let value = &request[..request.len() - 2];
                    stream.write_all(format!("set {}-k2 0 0 {}\r\n", self.name, value.len()).as_bytes())?;
                    ask(&mut stream, &request, b"STORED\r\n")?;
                    self.values.insert(2, value.to_vec());
                }
                choice => {
                    let (request, answer) = self.get(usize::try_from(choice).unwrap() % KEYS);
                    ask(&mut stream, &request, &answer)?;
                }
            }
        }
        Ok(())
    }

    fn get(&self, key: usize) -> (Vec<u8>, Vec<u8>) {
        let name = format!("{}-k{key}", self.name);
        let mut answer = Vec::new();
        if let Some(value) = self.values.get(&key) {
            answer = [format!("VALUE {name} 0 {}\r\n", value.len()).as_bytes(), value, b"\r\n"].concat();
        }
        answer.extend_from_slice(b"END\r\n");
        (format!("get {name}\r\n").into_bytes(), answer)
    }

    /// Deletes an item that may be there.
    fn delete(&self, stream: &mut TcpStream, key: usize) -> io::Result<()> {
        stream.write_all(format!("delete {}-k{key}\r\n", self.name).as_bytes())?;
        let mut line = Vec::new();
        while !line.ends_with(b"\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            line.push(byte[0]);
        }
        assert!(
            [&b"DELETED\r\n"[..], b"NOT_FOUND\r\n"].contains(&&line[..]),
            "{}",
            line.escape_ascii()
        );
        Ok(())
    }

    fn set(&mut self, stream: &mut TcpStream) -> io::Result<()> {
        let longest = [10, 100, 1_000, 5_000, 70_000, 1_000_000][self.random.index(6)];
        let value = vec![b'a' + u8::try_from(self.random.below(26)).unwrap(); self.random.index(longest + 1)];
        let key = self.random.index(KEYS);
        let request = [
            format!("set {}-k{key} 0 0 {}\r\n", self.name, value.len()).as_bytes(),
            &value,
            b"\r\n",
        ]
        .concat();
        // The answer comes when all has arrived, so nothing has to be read meanwhile.
        ask(stream, &request, b"STORED\r\n")?;
        self.values.insert(key, value);
        Ok(())
    }
}

/// Runs clients while `happens` does.
fn storm(test: &str, storm: &Storm, happens: impl FnOnce()) {
    let seed = Random::seed_for(test);
    std::thread::scope(|scope| {
        for (number, stream) in (0..CLIENTS).zip(0..) {
            let client = Client {
                storm,
                number,
                random: Random::new(seed).fork(stream),
                name: format!("c{number}"),
                values: HashMap::new(),
            };
            scope.spawn(|| client.run());
        }
        // Also when it panics.
        let happened = std::panic::catch_unwind(std::panic::AssertUnwindSafe(happens));
        storm.ends.store(true, SeqCst);
        happened.unwrap_or_else(|why| std::panic::resume_unwind(why));
    });
}

/// Until the kernel has answered so many requests.
fn hits(count: u64) -> u64 {
    wait_until("answers from the kernel", DEADLINE, || {
        Some(stat(HITS)).filter(|hits| *hits >= count)
    })
}

#[test]
fn clients_of_killed_servers_see_an_end_and_are_served_again() {
    if !is_inside("clients_of_killed_servers_see_an_end_and_are_served_again") {
        return;
    }
    let scratch = Scratch::new();
    let mut server = Process::with_door(&scratch, "log", &[]);
    let shared = Storm::default();
    shared.kills.store(true, SeqCst);
    let (mut total, mut left) = (0, 0);
    storm("killed servers", &shared, || {
        for round in 0..5 {
            total += hits(500);
            server.kill();
            let killed = 1 + shared.killed.fetch_add(1, SeqCst);
            wait_until("the ends of connections", PATIENCE, || {
                let have_all = shared.noticed.iter().all(|noticed| noticed.load(SeqCst) == killed);
                have_all.then_some(())
            });
            left = left.max(programs());
            server = Process::with_door(&scratch, &format!("log-{round}"), &[]);
        }
        total += hits(500);
    });
    assert!(left >= 1, "a killed server leaves its program");
    // All that was translated has ended: a server removes what those before it left.
    drop(server);
    wait_until("what was left is removed", DEADLINE, || {
        let server = Process::with_door(&scratch, "log-last", &[]);
        let count = programs();
        drop(server);
        (count == 1).then_some(())
    });
    let (operations, ended) = (shared.operations.load(SeqCst), shared.ended.load(SeqCst));
    say(&format!(
        "shown: killed: {operations} operations, {total} answers from the kernel, {ended} connections ended"
    ));
}

#[test]
fn connections_go_on_when_servers_take_over() {
    if !is_inside("connections_go_on_when_servers_take_over") {
        return;
    }
    let scratch = Scratch::new();
    let mut server = Process::with_door(&scratch, "log", &[]);
    let shared = Storm::default();
    let (mut total, mut most) = (0, 0);
    storm("servers that take over", &shared, || {
        for round in 0..5 {
            total += hits(300);
            let next = Process::with_door(&scratch, &format!("log-{round}"), &["--take-over"]);
            wait_until("the one before ends", DEADLINE, || server.0.try_wait().unwrap());
            most = most.max(programs());
            server = next;
        }
        // Connections that a server has taken over stay in user space. New ones come by resets and half-closes.
        total += hits(300);
    });
    assert!(most > 1, "what translates stays");
    drop(server);
    wait_until("what was left is removed", DEADLINE, || {
        let server = Process::with_door(&scratch, "log-last", &[]);
        let count = programs();
        drop(server);
        (count == 1).then_some(())
    });
    let operations = shared.operations.load(SeqCst);
    say(&format!(
        "shown: taken over: {operations} operations, {total} answers from the kernel, {most} programs at most"
    ));
}

/// How long answers took is in the region: it has those of servers that have ended.
#[test]
fn answers_are_timed_by_protocol() {
    const ANSWERS: u64 = 50_000;
    if !is_inside("answers_are_timed_by_protocol") {
        return;
    }
    let scratch = Scratch::new();
    let udp_address = address().to_string();
    let mut server = Process::with_door(&scratch, "log", &["--udp", &udp_address]);
    let place = Place::Path(scratch.join("region"));
    let cache = Cache::open(&place, &Options::new()).unwrap();
    let counts = || [Door::KernelUdp, Door::KernelTcp].map(|door| cache.latencies().of(door, Verb::Get).count());
    // One in 256, and six deviations of a binomial count.
    let is_about = |count: u64, answers: u64| {
        let expected = answers / 256;
        (expected.saturating_sub(6 * expected.isqrt())..=expected + 6 * expected.isqrt()).contains(&count)
    };
    let mut client = translated();
    while stat(HITS) < ANSWERS {
        (0..1_000).for_each(|_| ask(&mut client, HOT.0, HOT.1).unwrap());
    }
    let tcp = stat(HITS);
    let shown = wait_until("stats show the region's", DEADLINE, || {
        let stats = Wire::from_tcp(try_connect().unwrap()).unwrap().stats("latency").unwrap();
        let of_door = |name: &str| {
            stats
                .iter()
                .find(|(known, _)| known == name)
                .map_or(0, |(_, count)| count.parse().unwrap())
        };
        let shown = ["kernel_udp:get:measured", "kernel_tcp:get:measured"].map(of_door);
        // The last answers come with the next tick of the server.
        (shown == counts() && is_about(shown[1], tcp)).then_some(shown)
    });
    assert_eq!(shown[0], 0, "no datagram was answered");

    let mut datagrams = Wire::to_udp(address()).unwrap();
    while stat("keyway_kernel_hits") < ANSWERS {
        for _ in 0..1_000 {
            assert_eq!(datagrams.get(false, &["hot"]).unwrap().len(), 1);
        }
    }
    let udp = stat("keyway_kernel_hits");
    assert_eq!(
        stat("keyway_hour_kernel_hits"),
        udp,
        "the server's hour has begun with its start"
    );
    assert_eq!(stat(HITS), tcp);
    // A server that stops has added all.
    server.stop();
    let before = counts();
    assert!(
        is_about(before[0], udp) && is_about(before[1], tcp),
        "{before:?} of {udp} and {tcp}"
    );
    say(&format!(
        "shown: timed: {before:?} of {udp} answers over UDP and {tcp} over TCP"
    ));
    drop(Process::with_door(&scratch, "log-next", &["--udp", &udp_address]));
    assert_eq!(
        counts(),
        before,
        "a server has nothing to add for a program that has answered nothing"
    );
}

/// Clients have not read all when the server has ended: the program stays until they have, or until their connections are reset.
#[test]
fn a_server_that_stops_leaves_what_translates() {
    if !is_inside("a_server_that_stops_leaves_what_translates") {
        return;
    }
    let scratch = Scratch::new();
    let mut server = Process::with_door(&scratch, "log", &[]);
    let mut clients: Vec<_> = (0..8).map(|_| translated()).collect();
    let value = "v".repeat(1_000_000);
    let set = format!("set large 0 0 {}\r\n{value}\r\n", value.len());
    ask(&mut clients[0], set.as_bytes(), b"STORED\r\n").unwrap();
    let answer = format!("VALUE large 0 {}\r\n{value}\r\nEND\r\n", value.len());
    for client in &mut clients {
        client.write_all(b"get large\r\n").unwrap();
        // It begins. What the client's window has no room for stays with the server's socket.
        assert_ne!(client.peek(&mut [0; 10]).unwrap(), 0);
    }
    server.stop();
    assert_eq!(programs(), 1, "{}", server.log());
    let mut unread = clients.split_off(4);
    for client in &mut clients {
        let mut rest = Vec::new();
        client.read_to_end(&mut rest).unwrap();
        assert!(rest == answer.as_bytes(), "{} bytes", rest.len());
    }
    let (status, said) = keyway(&["kernel", "detach", "--reset", "--pin", PIN]);
    assert!(status.success() && said.contains("4 TCP connections were ended"), "{said}");
    assert_eq!(programs(), 0);
    for client in &mut unread {
        let error = client.read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }
    // Nothing is left of connections whose clients have all: idle ones, which see the end, and closed ones.
    let mut server = Process::with_door(&scratch, "log-idle", &[]);
    let mut clients: Vec<_> = (0..8).map(|_| translated()).collect();
    clients.truncate(4);
    server.stop();
    clients.iter_mut().for_each(is_over);
    assert_eq!(programs(), 0, "{}", server.log());
}

/// Idle connections see the server's end, and their clients get rid of them, although nothing translates any more: numbers are further apart
/// than a window here.
#[test]
fn idle_connections_end_when_the_server_stops() {
    if !is_inside("idle_connections_end_when_the_server_stops") {
        return;
    }
    let scratch = Scratch::new();
    let mut server = Process::with_door(&scratch, "log", &[]);
    let mut clients: Vec<_> = (0..8).map(|_| translated()).collect();
    let (requests, answers) = (HOT.0.repeat(16), HOT.1.repeat(16));
    let before = stat(HITS);
    for client in &mut clients[..4] {
        (0..2000).for_each(|_| ask(client, &requests, &answers).unwrap());
    }
    assert!(stat(HITS) - before > 4 * 16 * 1000, "{}", server.log());
    let begun = Instant::now();
    server.stop();
    let took = begun.elapsed();
    say(&format!("shown: it ended after {took:?}"));
    // The last acknowledgement of an end may have been on its way, and then the program stays; the log says so.
    assert_eq!(programs(), 0, "{}", server.log());
    clients.iter_mut().for_each(is_over);
    // One half closes, the other half sends a request first, which has no answer.
    for (number, mut client) in clients.into_iter().enumerate() {
        if number % 2 == 0 {
            let _ = client.write_all(HOT.0);
            let mut rest = Vec::new();
            // A reset, or nothing.
            let _ = client.read_to_end(&mut rest);
            assert!(rest.is_empty(), "{rest:?}");
        }
    }
    wait_until("the clients' sockets are gone", PATIENCE, || {
        let all = std::fs::read_to_string("/proc/net/tcp").unwrap();
        let port = format!(":{:04X} ", ADDRESS.1);
        // Remote address, and a state that is not TIME_WAIT.
        let left = all.lines().skip(1).filter(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            format!("{} ", words[2]).ends_with(&port) && words[3] != "06"
        });
        (left.count() == 0).then_some(())
    });
}

#[test]
fn ten_thousand_connections_some_of_which_are_reset() {
    const CONNECTIONS: usize = 10_000;
    const OPERATIONS: usize = 60_000;
    let test = "ten_thousand_connections_some_of_which_are_reset";
    if !is_inside(test) {
        return;
    }
    // For the server, too, which inherits it.
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, most, most).unwrap();
    let scratch = Scratch::new();
    let server = Process::with_door(&scratch, "log", &["-c", "10100", "--threads", "2"]);
    ask(&mut try_connect().unwrap(), b"set hot 0 0 5\r\nvalue\r\n", b"STORED\r\n").unwrap();
    let mut random = Random::new(Random::seed_for(test));
    let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| (try_connect().unwrap(), 0)).collect();
    let own = |number: usize, version: usize| {
        let value = format!("{number} {version}");
        format!("VALUE own{number} 0 {}\r\n{value}\r\nEND\r\n", value.len())
    };
    for operation in 0..OPERATIONS {
        // At first each, so that all are open at the same time and used.
        let number = if operation < CONNECTIONS {
            operation
        } else {
            random.index(CONNECTIONS)
        };
        let (stream, version) = &mut clients[number];
        match random.below(100) {
            0..5 => {
                // With an answer on its way.
                SockRef::from(&*stream).set_linger(Some(Duration::ZERO)).unwrap();
                stream.write_all(HOT.0).unwrap();
                *stream = try_connect().unwrap();
            }
            5..20 => {
                *version += 1;
                let value = format!("{number} {version}");
                let set = format!("set own{number} 0 0 {}\r\n{value}\r\n", value.len());
                ask(stream, set.as_bytes(), b"STORED\r\n").unwrap();
            }
            20..40 if *version > 0 => {
                ask(
                    stream,
                    format!("get own{number}\r\n").as_bytes(),
                    own(number, *version).as_bytes(),
                )
                .unwrap();
            }
            _ => ask(stream, HOT.0, HOT.1).unwrap(),
        }
    }
    let answered = stat(HITS);
    say(format!("shown: {OPERATIONS} operations on {CONNECTIONS} connections, {answered} answered by the kernel").as_str());
    // Most are the first of their connection, which the server answers.
    assert!(answered > OPERATIONS as u64 / 20, "{answered}: {}", server.log());
    assert!(stat("curr_connections") >= CONNECTIONS as u64);
}

#[test]
fn connections_over_ipv6_are_answered_and_translated() {
    if !is_inside("connections_over_ipv6_are_answered_and_translated") {
        return;
    }
    let scratch = Scratch::new();
    let address = SocketAddr::from((Ipv6Addr::LOCALHOST, ADDRESS.1));
    let region = scratch.join("region").display().to_string();
    let _server = Process::start(
        &scratch,
        "log",
        &[],
        &[
            "--listen",
            &address.to_string(),
            "--region",
            &region,
            "--kernel",
            "lo",
            "--kernel-tcp",
            "--kernel-memory",
            "4m",
        ],
    );
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_nodelay(true).unwrap();
    ask(&mut stream, b"set hot 0 0 5\r\nvalue\r\n", b"STORED\r\n").unwrap();
    let mut rounds = 0;
    let mut wire = Wire::from_tcp(TcpStream::connect(address).unwrap()).unwrap();
    wait_until("answers from the kernel", DEADLINE, || {
        // Longer than a packet, in each direction, and translated.
        rounds += 1;
        let value = "v".repeat(100_000 + rounds);
        let set = format!("set long 0 0 {}\r\n{value}\r\n", value.len());
        ask(&mut stream, set.as_bytes(), b"STORED\r\n").unwrap();
        let answer = format!("VALUE long 0 {}\r\n{value}\r\nEND\r\n", value.len());
        ask(&mut stream, b"get long\r\n", answer.as_bytes()).unwrap();
        (0..50).for_each(|_| ask(&mut stream, HOT.0, HOT.1).unwrap());
        let stats = wire.stats("").unwrap();
        let hits = stats.iter().find(|(name, _)| name == HITS).unwrap();
        (hits.1.parse::<u64>().unwrap() >= 500).then_some(())
    });
}

#[test]
fn a_kernel_without_types_is_named() {
    if !is_inside("a_kernel_without_types_is_named") {
        return;
    }
    assert_eq!(command("mount -t tmpfs none /sys/kernel/btf"), "");
    let listen = address().to_string();
    let (status, said) = keyway(&[
        "serve",
        "--listen",
        &listen,
        "--region",
        "memfd",
        "--kernel",
        "lo",
        "--kernel-tcp",
    ]);
    assert!(!status.success(), "{said}");
    assert!(said.contains("the kernel door needs /sys/kernel/btf/vmlinux, "), "{said}");
}

#[test]
fn idle_and_half_closed_connections() {
    if !is_inside("idle_and_half_closed_connections") {
        return;
    }
    let scratch = Scratch::new();
    let _server = Process::with_door(&scratch, "log", &[]);
    let mut client = translated();
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(1))
        .with_interval(Duration::from_secs(1));
    SockRef::from(&client).set_tcp_keepalive(&keepalive.with_retries(2)).unwrap();
    // Keepalives have no answer that could be waited for, but without one the connection would end after three seconds.
    let end = Instant::now() + Duration::from_secs(5);
    client.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    while Instant::now() < end {
        let silence = client.read(&mut [0; 10]);
        assert!(
            silence.as_ref().is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
            "{silence:?}"
        );
    }
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    let before = stat(HITS);
    ask(&mut client, HOT.0, HOT.1).unwrap();
    client.write_all(HOT.0).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, HOT.1);
    assert!(stat(HITS) > before, "the first request after a pause is the kernel's");
}

#[test]
fn a_pinned_program_and_servers_without_privileges() {
    if !is_inside("a_pinned_program_and_servers_without_privileges") {
        return;
    }
    let scratch = Scratch::new();
    let attach = [
        "kernel",
        "attach",
        "lo",
        "--tcp",
        "127.0.0.1",
        "--kernel-memory",
        "4m",
        "--user",
        "nobody",
        "--pin",
        PIN,
    ];
    let (status, said) = keyway(&attach);
    assert!(status.success(), "{said}");
    let user = [
        "setpriv",
        "--reuid",
        "nobody",
        "--clear-groups",
        "--bounding-set=-all",
        "--inh-caps=-all",
    ];
    let serve = [
        "--region",
        "memfd",
        "--kernel-pinned",
        PIN,
        "--kernel-tcp",
        "--kernel-memory",
        "4m",
    ];
    for round in 0..3 {
        let mut server = Process::start(&scratch, &format!("log-{round}"), &user, &serve);
        let mut client = translated();
        server.kill();
        is_over(&mut client);
        assert_eq!(programs(), 1);
    }
    let mut server = Process::start(&scratch, "log-last", &user, &serve);
    let mut clients: Vec<_> = (0..8).map(|_| translated()).collect();
    server.stop();
    clients.iter_mut().for_each(is_over);
    // The last acknowledgement of an end may be on its way.
    wait_until("the program is removed", DEADLINE, || {
        keyway(&["kernel", "detach", "--pin", PIN]).0.success().then_some(())
    });
    assert_eq!(programs(), 0);
    assert!(!std::path::Path::new(PIN).exists());
}

/// Connections that are in use end at once, when a privileged user says so.
#[test]
fn detaching_ends_connections_in_use() {
    if !is_inside("detaching_ends_connections_in_use") {
        return;
    }
    let scratch = Scratch::new();
    let (status, said) = keyway(&[
        "kernel",
        "attach",
        "lo",
        "--tcp",
        "127.0.0.1",
        "--kernel-memory",
        "4m",
        "--pin",
        PIN,
    ]);
    assert!(status.success(), "{said}");
    let _server = Process::start(
        &scratch,
        "log",
        &[],
        &[
            "--region",
            "memfd",
            "--kernel-pinned",
            PIN,
            "--kernel-tcp",
            "--kernel-memory",
            "4m",
        ],
    );
    let mut clients: Vec<_> = (0..8).map(|_| translated()).collect();
    let (status, said) = keyway(&["kernel", "detach", "--pin", PIN]);
    assert!(!status.success() && said.contains("8"), "{said}");
    // They go on.
    for client in &mut clients {
        ask(client, HOT.0, HOT.1).unwrap();
    }
    let (status, said) = keyway(&["kernel", "detach", "--reset", "--pin", PIN]);
    assert!(status.success() && said.contains("8 TCP connections were ended"), "{said}");
    clients.iter_mut().for_each(is_over);
    assert_eq!(programs(), 0);
    // The server goes on without it.
    let mut client = try_connect().unwrap();
    for _ in 0..20 {
        ask(&mut client, HOT.0, HOT.1).unwrap();
    }
}

/// A server without capabilities cannot put it back, but says so.
#[test]
fn a_pinned_program_that_vanishes_is_named() {
    if !is_inside("a_pinned_program_that_vanishes_is_named") {
        return;
    }
    let scratch = Scratch::new();
    let (status, said) = keyway(&[
        "kernel",
        "attach",
        "lo",
        "--udp",
        "127.0.0.1",
        "--kernel-memory",
        "4m",
        "--user",
        "nobody",
        "--pin",
        PIN,
    ]);
    assert!(status.success(), "{said}");
    let user = [
        "setpriv",
        "--reuid",
        "nobody",
        "--clear-groups",
        "--bounding-set=-all",
        "--inh-caps=-all",
    ];
    let udp = address().to_string();
    let serve = [
        "--udp",
        &udp,
        "--region",
        "memfd",
        "--kernel-pinned",
        PIN,
        "--kernel-memory",
        "4m",
    ];
    let server = Process::start(&scratch, "log", &user, &serve);
    let shown = |interfaces: &str| {
        let (status, said) = keyway(&["kernel", "status", "--pin", PIN]);
        assert!(status.success(), "{said}");
        assert!(
            said.contains(&format!("interfaces {interfaces}\n")) && said.contains("\nudp_cpu_us "),
            "{said}"
        );
        let (status, said) = keyway(&["kernel", "status", "--json", "--pin", PIN]);
        let json: serde_json::Value = serde_json::from_str(&said).unwrap();
        assert!(
            status.success() && json["pinned_at"] == PIN && json["counts"]["udp_cpu_us"].is_u64(),
            "{said}"
        );
        let is_there = !interfaces.ends_with("(gone)");
        let name = interfaces.trim_end_matches(" (gone)");
        assert_eq!(
            json["interfaces"],
            serde_json::json!([{ "name": name, "is_there": is_there }]),
            "{said}"
        );
    };
    shown("lo");
    assert_eq!(stat("keyway_kernel_interfaces"), 1);
    command("tc qdisc del dev lo clsact");
    wait_until("the server says it", DEADLINE, || {
        server
            .log()
            .contains("the pinned program is on 0 of the 1 interfaces that it was on")
            .then_some(())
    });
    shown("lo (gone)");
    assert_eq!(stat("keyway_kernel_interfaces"), 0);
}
