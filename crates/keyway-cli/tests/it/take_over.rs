//! `keyway serve --take-over`, with real processes. Its enemies: a request that is lost or done twice while a connection changes its server, a
//! connection that is closed, and a moment in which no server serves, or two do.
//!
//! It cannot see a machine that stops, and no death between two given instructions: SIGKILL comes at times spread over the whole take-over,
//! before and after each message between two servers, and at each message that a test sends itself.
//! Guards: P39

#![allow(clippy::print_stderr, reason = "figures for the person who runs the tests")]

use std::fs::File;
use std::io::{IoSlice, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use harness::{
    Authority, DEADLINE, Random, Scratch, TlsClient, Validity, Wire, free_port, full_run, keyway_binary, keyway_check, say,
    wait_until,
};
use keyway_cache::server::handout;
use keyway_cache::{Begun, Cache, Door, Fetch, Latency, Options, Place, Verb};
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde_json::{Value, json};

/// The version of the messages that these tests speak.
const VERSION: u32 = 1;
const LOOPS: [&str; 2] = ["io_uring", "epoll"];

/// The servers of one region, one after the other.
struct World {
    scratch: Scratch,
    address: SocketAddr,
    arguments: Vec<String>,
    started: AtomicU64,
}

/// A server's process; killed when it is dropped.
struct Process {
    child: Child,
    log: PathBuf,
}

impl World {
    fn new(arguments: &[&str]) -> Self {
        Self {
            scratch: Scratch::new(),
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())),
            arguments: arguments.iter().map(|&word| word.to_owned()).collect(),
            started: AtomicU64::new(0),
        }
    }

    fn region(&self) -> PathBuf {
        self.scratch.join("region")
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(keyway_binary());
        command.args(["serve", "-v", "--listen", &self.address.to_string(), "--socket"]);
        command.arg(self.scratch.join("socket")).arg("--region").arg(self.region());
        command.args(&self.arguments).args(more);
        command
    }

    fn spawn(&self, more: &[&str]) -> Process {
        let log = self.scratch.join(&format!("log-{}", self.started.fetch_add(1, SeqCst)));
        let file = File::create(&log).unwrap();
        let mut command = self.command(more);
        command.stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        Process {
            child: command.spawn().unwrap(),
            log,
        }
    }

    fn start(&self, more: &[&str]) -> Process {
        let mut process = self.spawn(more);
        process.wait_ready();
        process
    }

    /// Starts a server that takes over the running one, and waits until that has ended.
    fn take_over(&self, running: &mut Process, more: &[&str]) -> Process {
        let new = self.start(&[&["--take-over"], more].concat());
        assert!(running.wait().success(), "{}", running.text());
        new
    }

    fn tcp(&self) -> Wire {
        Wire::from_tcp(TcpStream::connect_timeout(&self.address, DEADLINE).unwrap()).unwrap()
    }

    fn unix(&self) -> Wire {
        Wire::from_unix(UnixStream::connect(self.scratch.join("socket")).unwrap()).unwrap()
    }

    /// A connection like that of a server that wants to take over.
    fn role(&self) -> UnixStream {
        let file = std::fs::metadata(self.region()).unwrap();
        let name = format!("keyway-take-over {}:{}", file.dev(), file.ino());
        let name = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
        let stream = UnixStream::connect_addr(&name).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream
    }
}

impl Process {
    fn text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    fn wait(&mut self) -> ExitStatus {
        wait_until("a server ends", DEADLINE, || self.ended())
    }

    fn wait_ready(&mut self) {
        wait_until("a server is ready", DEADLINE, || {
            let status = self.ended();
            let text = self.text();
            assert!(status.is_none(), "it ended ({status:?}):\n{text}");
            text.contains(" ready: ").then_some(())
        });
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Whether a thread of it is about to give its role away.
    fn is_giving(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let name = |task: std::io::Result<std::fs::DirEntry>| std::fs::read_to_string(task.ok()?.path().join("comm")).ok();
        // The kernel keeps 15 bytes of a name.
        tasks.filter_map(name).any(|name| name.trim_end() == "keyway-take-ove")
    }

    /// SIGTERM; its exit status.
    fn end(&mut self) -> ExitStatus {
        let pid = nix::unistd::Pid::from_raw(i32::try_from(self.child.id()).unwrap());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        self.wait()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a request and expects this answer.
fn talk(wire: &mut Wire, request: &[u8], answer: &[u8]) {
    wire.send(request).unwrap();
    receive(wire, answer);
}

fn receive(wire: &mut Wire, answer: &[u8]) {
    let got = wire.exactly(answer.len()).unwrap();
    assert_eq!(got.escape_ascii().to_string(), answer.escape_ascii().to_string());
}

/// Expects that the server closes the connection, and says nothing before.
fn receive_close(wire: &mut Wire) {
    assert!(!wire.fill().unwrap(), "{}", wire.pending().escape_ascii());
}

/// A binary request packet.
fn packet(opcode: u8, extras: &[u8], key: &[u8], value: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let head = keyway_proto::binary::Head { opcode, opaque: [9; 4] };
    keyway_proto::binary::request(&mut bytes, head, 0, [extras, key, value]);
    bytes
}

/// Status and body of the next binary answer.
fn answer(wire: &mut Wire) -> (u16, Vec<u8>) {
    let head = wire.exactly(24).unwrap();
    assert_eq!((head[0], &head[12..16]), (0x81, &[9; 4][..]));
    let len = u32::from_be_bytes(head[8..12].try_into().unwrap());
    (
        u16::from_be_bytes(head[6..8].try_into().unwrap()),
        wire.exactly(usize::try_from(len).unwrap()).unwrap(),
    )
}

/// One round of a client's work on its own key: every answer is known exactly.
fn work(wire: &mut Wire, client: usize, round: u64) {
    let key = format!("client{client}");
    let value = format!("{round:0width$}", width = 1 + client * 37 % 3000);
    let len = value.len();
    match client % 5 {
        0 => {
            talk(wire, format!("set {key} 5 0 {len}\r\n{value}\r\n").as_bytes(), b"STORED\r\n");
            talk(
                wire,
                format!("get {key}\r\n").as_bytes(),
                format!("VALUE {key} 5 {len}\r\n{value}\r\nEND\r\n").as_bytes(),
            );
        }
        1 => {
            let set = format!("set {key} 0 0 {len}\r\n{value}\r\nget {key}\r\n").repeat(20);
            let got = format!("STORED\r\nVALUE {key} 0 {len}\r\n{value}\r\nEND\r\n").repeat(20);
            talk(wire, set.as_bytes(), got.as_bytes());
        }
        2 => {
            talk(
                wire,
                format!("ms {key} {len} T0\r\n{value}\r\nmg {key} v\r\nmn\r\n").as_bytes(),
                format!("HD\r\nVA {len}\r\n{value}\r\nMN\r\n").as_bytes(),
            );
            // Exactly once.
            let number = (round + 1).to_string();
            talk(
                wire,
                format!("ma n{client} N0 J1 v\r\n").as_bytes(),
                format!("VA {}\r\n{number}\r\n", number.len()).as_bytes(),
            );
        }
        3 => {
            wire.send(
                &[
                    packet(1, &[0; 8], key.as_bytes(), value.as_bytes()),
                    packet(0, b"", key.as_bytes(), b""),
                ]
                .concat(),
            )
            .unwrap();
            assert_eq!(answer(wire).0, 0);
            assert_eq!(answer(wire), (0, [&[0; 4], value.as_bytes()].concat()));
        }
        _ => {
            // In pieces, with a line of many keys that is answered while it arrives.
            let keys = format!(" {key}").repeat(600);
            let request = format!("set {key} 0 0 {len}\r\n{value}\r\nget{keys}\r\n");
            for piece in request.as_bytes().chunks(1500) {
                wire.send(piece).unwrap();
                std::thread::yield_now();
            }
            receive(wire, b"STORED\r\n");
            receive(wire, format!("VALUE {key} 0 {len}\r\n{value}\r\n").repeat(600).as_bytes());
            receive(wire, b"END\r\n");
        }
    }
}

#[test]
fn clients_under_load_notice_no_take_over() {
    let takeovers = if full_run() { 50 } else { 6 };
    let world = World::new(&[]);
    let udp = world.address.to_string();
    let common = ["--udp", &udp];
    let mut server = world.start(&[&common[..], &["--memory", "64m", "--event-loop", LOOPS[0]]].concat());
    let mut first = world.tcp();
    (0..1000).for_each(|n| talk(&mut first, format!("set kept{n} 0 0 3\r\nold\r\n").as_bytes(), b"STORED\r\n"));
    let mut halted_us = Vec::new();
    let (stop, requests, longest_us) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let repeat = |mut once: Box<dyn FnMut(u64) + '_>| {
        let mut round = 0;
        while !stop.load(SeqCst) {
            let begun = Instant::now();
            once(round);
            longest_us.fetch_max(u64::try_from(begun.elapsed().as_micros()).unwrap(), SeqCst);
            requests.fetch_add(1, SeqCst);
            round += 1;
        }
    };
    std::thread::scope(|scope| {
        for client in 0..64 {
            let (world, repeat) = (&world, &repeat);
            scope.spawn(move || {
                let mut wire = if client % 2 == 0 { world.tcp() } else { world.unix() };
                repeat(Box::new(move |round| work(&mut wire, client, round)));
            });
        }
        scope.spawn(|| {
            let mut wire = Wire::to_udp(world.address).unwrap();
            repeat(Box::new(move |_| {
                wire.send(b"get kept7\r\n").unwrap();
                receive(&mut wire, b"VALUE kept7 0 3\r\nold\r\nEND\r\n");
            }));
        });
        scope.spawn(|| {
            let cache = Cache::open(&Place::Path(world.region()), &Options::new()).unwrap();
            let mut session = cache.session().unwrap();
            repeat(Box::new(move |round| {
                session.set(b"library", round.to_string().as_bytes(), 0).unwrap();
                assert_eq!(session.get(b"library").unwrap(), Some(round.to_string().into_bytes()));
            }));
        });
        // New connections, too.
        scope.spawn(|| {
            repeat(Box::new(|round| {
                let mut wire = if round % 2 == 0 { world.tcp() } else { world.unix() };
                talk(&mut wire, b"get kept3\r\n", b"VALUE kept3 0 3\r\nold\r\nEND\r\n");
            }));
        });
        let failed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for number in 0..takeovers {
                let enough = requests.load(SeqCst) + 300;
                wait_until("clients work", DEADLINE, || (requests.load(SeqCst) >= enough).then_some(()));
                let (threads, memory) = ([4, 2, 6][number % 3].to_string(), format!("{}m", 64 + number));
                // All four changes of the event loop.
                let event_loop = LOOPS[[1, 1, 0, 0][number % 4]];
                let changed = ["--threads", &threads, "--memory", &memory, "--event-loop", event_loop];
                let new = world.take_over(&mut server, &[&common[..], &changed].concat());
                let text = server.text();
                let halted = text
                    .split("clients waited for ")
                    .nth(1)
                    .and_then(|rest| rest.split(' ').next());
                halted_us.push(halted.and_then(|number| number.parse::<u64>().ok()).unwrap());
                server = new;
            }
        }));
        stop.store(true, SeqCst);
        failed.unwrap();
    });
    halted_us.sort_unstable();
    for n in 0..1000 {
        talk(
            &mut first,
            format!("get kept{n}\r\n").as_bytes(),
            format!("VALUE kept{n} 0 3\r\nold\r\nEND\r\n").as_bytes(),
        );
    }
    let stats = first.stats("").unwrap();
    let stat = |name: &str| stats.iter().find(|(known, _)| known == name).unwrap().1.clone();
    assert_eq!(stat("curr_connections").parse::<usize>().unwrap(), 1 + 4, "and UDP sockets");
    assert_eq!(stat("pid"), server.child.id().to_string());
    assert!(server.end().success());
    assert!(!world.scratch.join("socket").exists(), "the last server removes the file");
    let (status, text) = keyway_check(&world.region());
    assert!(status.success(), "{text}");
    say(&format!(
        "{takeovers} take-overs: {} rounds of requests, none failed; the longest took {} µs; the servers halted for {} µs (median), {} µs \
         (longest)",
        requests.load(SeqCst),
        longest_us.load(SeqCst),
        halted_us[halted_us.len() / 2],
        halted_us[halted_us.len() - 1],
    ));
}

#[test]
fn what_a_connection_has_said_and_not_been_told_goes_with_it() {
    for (old, new) in [(0, 1), (1, 0), (0, 0)] {
        let world = World::new(&[]);
        let mut server = world.start(&["--event-loop", LOOPS[old], "--threads", "1"]);
        let mut other = world.tcp();
        let big = vec![b'x'; 100_000];
        talk(
            &mut other,
            &[b"set big 0 0 100000\r\n", &big[..], b"\r\n"].concat(),
            b"STORED\r\n",
        );
        talk(&mut other, b"set k 0 0 1\r\nv\r\n", b"STORED\r\n");
        // Half a line, half a value, half a packet, and each after a whole request.
        let mut half = world.tcp();
        talk(&mut half, b"mn\r\nget ", b"MN\r\n");
        let mut value = world.unix();
        talk(&mut value, b"mn\r\nset w 0 0 10\r\n01234", b"MN\r\n");
        let mut binary = world.tcp();
        let get = packet(0, b"", b"k", b"");
        binary.send(&[&get[..], &get[..20]].concat()).unwrap();
        assert_eq!(answer(&mut binary).1, b"\0\0\0\0v");
        // A reader that has stopped: most of its answers are unsent, and its last requests unread.
        let mut slow = world.tcp();
        slow.send(&b"get big\r\n".repeat(200)).unwrap();
        // One that has closed its side.
        let mut closing = world.tcp();
        closing.send(b"get k\r\n").unwrap();
        closing.shutdown(std::net::Shutdown::Write).unwrap();
        let mut watcher = world.tcp();
        talk(&mut watcher, b"watch mutations\r\n", b"OK\r\n");
        let mut many = world.tcp();
        many.send(&[b"get".as_slice(), &b" k".repeat(3000)].concat()).unwrap();
        // All of it has arrived when a later request of the only thread is answered.
        talk(&mut other, b"mn\r\n", b"MN\r\n");
        let mut server = world.take_over(&mut server, &["--event-loop", LOOPS[new]]);
        talk(&mut half, b"k\r\n", b"VALUE k 0 1\r\nv\r\nEND\r\n");
        talk(
            &mut value,
            b"56789\r\nget w\r\n",
            b"STORED\r\nVALUE w 0 10\r\n0123456789\r\nEND\r\n",
        );
        binary.send(&get[20..]).unwrap();
        assert_eq!(answer(&mut binary).1, b"\0\0\0\0v");
        for _ in 0..200 {
            receive(&mut slow, b"VALUE big 0 100000\r\n");
            assert!(slow.exactly(big.len()).unwrap() == big);
            receive(&mut slow, b"\r\nEND\r\n");
        }
        receive(&mut closing, b"VALUE k 0 1\r\nv\r\nEND\r\n");
        receive_close(&mut closing);
        talk(
            &mut many,
            b"\r\n",
            &[&b"VALUE k 0 1\r\nv\r\n".repeat(3000)[..], b"END\r\n"].concat(),
        );
        talk(&mut other, b"set seen 0 0 1\r\nv\r\n", b"STORED\r\n");
        while !String::from_utf8_lossy(watcher.pending()).contains("key=seen") {
            assert!(watcher.fill().unwrap(), "the watcher is closed");
        }
        assert!(server.end().success());
    }
}

/// What is computed is a program's, which the take-over does not concern.
#[test]
fn a_get_that_is_held_is_answered_by_the_next_server() {
    let world = World::new(&["--hold-misses", "60000:user:"]);
    let mut server = world.start(&["--event-loop", LOOPS[0]]);
    let cache = Cache::open(&Place::Path(world.region()), &Options::new()).unwrap();
    let mut session = cache.session().unwrap();
    for (round, event_loop) in LOOPS.into_iter().cycle().skip(1).take(3).enumerate() {
        let key = format!("user:{round}");
        let Begun::Compute(token) = session
            .fetch_begin(key.as_bytes(), &Fetch::default(), &mut Vec::new())
            .unwrap()
        else {
            panic!("{key} is there");
        };
        let (mut held, mut other) = (world.tcp(), world.tcp());
        let mut count = || {
            let stats = other.stats("").unwrap();
            let found = stats.into_iter().find(|(name, _)| name == "keyway_misses_held:user:");
            found.map(|(_, value)| value)
        };
        let before = count();
        held.send(format!("get {key}\r\nmn\r\n").as_bytes()).unwrap();
        wait_until("the get is held", DEADLINE, || (count() != before).then_some(()));
        server = world.take_over(&mut server, &["--event-loop", event_loop]);
        assert!(
            session
                .fetch_store(key.as_bytes(), token, b"computed", &Fetch::default())
                .unwrap()
        );
        receive(&mut held, format!("VALUE {key} 0 8\r\ncomputed\r\nEND\r\nMN\r\n").as_bytes());
    }
    assert!(server.end().success());
}

#[test]
fn logins_are_kept_and_a_new_file_asks_for_new_ones() {
    let world = World::new(&[]);
    let users = world.scratch.join("users");
    std::fs::write(&users, "ann:secret\nbob:secret:ro:prefix=b:\n").unwrap();
    std::fs::set_permissions(&users, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let with_users = ["--auth-file", users.to_str().unwrap()];
    let mut server = world.start(&with_users);
    let log_in = |name: &str| {
        let mut wire = world.tcp();
        let login = format!("{name} secret");
        talk(
            &mut wire,
            format!("set x 0 0 {}\r\n{login}\r\n", login.len()).as_bytes(),
            b"STORED\r\n",
        );
        wire
    };
    let (mut ann, mut bob, mut stranger) = (log_in("ann"), log_in("bob"), world.tcp());
    stranger.send(b"set x 0 0 10\r\nann ").unwrap();
    talk(&mut ann, b"set b:k 0 0 1\r\nv\r\n", b"STORED\r\n");
    let mut second = world.take_over(&mut server, &with_users);
    talk(&mut ann, b"set b:k 0 0 1\r\nw\r\n", b"STORED\r\n");
    talk(&mut bob, b"get b:k\r\n", b"VALUE b:k 0 1\r\nw\r\nEND\r\n");
    talk(
        &mut bob,
        b"set b:k 0 0 1\r\nx\r\n",
        b"CLIENT_ERROR this user may only read\r\n",
    );
    talk(&mut stranger, b"secret\r\n", b"STORED\r\n");
    // Without logins, then with them again: a client that has not said who it is there has to.
    let mut third = world.take_over(&mut second, &[]);
    let mut open = world.tcp();
    for wire in [&mut ann, &mut bob, &mut open] {
        talk(wire, b"set b:k 0 0 1\r\ny\r\n", b"STORED\r\n");
    }
    let _fourth = world.take_over(&mut third, &with_users);
    talk(&mut open, b"get b:k\r\n", b"CLIENT_ERROR unauthenticated\r\n");
}

#[test]
fn what_is_not_handed_over_is_served_to_the_end_of_its_request() {
    for event_loop in LOOPS {
        let world = World::new(&["--event-loop", event_loop, "--max-item", "4m"]);
        let authority = Authority::new();
        let (certificate, key) = authority
            .signs("first", Validity::Valid)
            .write_to(world.scratch.path(), "server");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let listen = format!("tls://{address}");
        let tls = [
            "--listen",
            &listen,
            "--tls-cert",
            certificate.to_str().unwrap(),
            "--tls-key",
            key.to_str().unwrap(),
        ];
        let mut server = world.start(&tls);
        let client = TlsClient::trusting(&authority);
        let mut secure = Wire::from_unix(client.connect(address).unwrap().0).unwrap();
        talk(&mut secure, b"set k 0 0 1\r\nv\r\n", b"STORED\r\n");
        let value = vec![b'x'; 3_000_000];
        let mut large = world.tcp();
        large.send(b"set large 0 0 3000000\r\n").unwrap();
        large.send(&value[..2_000_000]).unwrap();
        // Values that are refused, for the whole of which the answer waits.
        let refused: [(&[u8], usize, &[u8]); 4] = [
            (
                b"set r bad 0 100000\r\n",
                100_002,
                b"CLIENT_ERROR bad command line format\r\n",
            ),
            (
                b"ms r 100000 MX\r\n",
                100_002,
                b"CLIENT_ERROR invalid mode for ms M token\r\n",
            ),
            (
                b"set r 0 0 5000000\r\n",
                5_000_002,
                b"SERVER_ERROR object too large for cache\r\n",
            ),
            (
                &packet(1, &[0; 8], b"r", &vec![b'x'; 5_000_000])[..33],
                5_000_000,
                b"\x81\x01\0\0\0\0\0\x03",
            ),
        ];
        let mut refused: Vec<_> = refused
            .into_iter()
            .map(|(head, len, answer)| {
                let mut wire = world.tcp();
                wire.send(&[head, &vec![b'\n'; len / 2]].concat()).unwrap();
                (wire, len - len / 2, answer)
            })
            .collect();
        let mut plain = world.tcp();
        let sent = 2_000_000 + 2 * 50_000 + 2 * 2_500_000;
        wait_until("the server has most of the values", DEADLINE, || {
            let conns = plain.stats("").unwrap();
            let read = conns.iter().find(|(name, _)| name == "bytes_read").unwrap();
            (read.1.parse::<u64>().unwrap() > sent).then_some(())
        });
        // The certificate is another one from here on.
        authority
            .signs("second", Validity::Valid)
            .write_to(world.scratch.path(), "server");
        let mut new = world.start(&[&["--take-over"], &tls[..]].concat());
        // The old server goes on until the value is there.
        receive_close(&mut secure);
        assert_eq!(server.ended(), None, "{}", server.text());
        large.send(&value[2_000_000..]).unwrap();
        talk(&mut large, b"\r\n", b"STORED\r\n");
        receive_close(&mut large);
        for (wire, left, answer) in &mut refused {
            talk(wire, &vec![b'\n'; *left], answer);
        }
        assert!(server.wait().success(), "{}", server.text());
        talk(&mut plain, b"mg large s\r\n", b"HD s3000000\r\n");
        let mut secure = Wire::from_unix(client.connect(address).unwrap().0).unwrap();
        talk(&mut secure, b"get k\r\n", b"VALUE k 0 1\r\nv\r\nEND\r\n");
        assert!(new.end().success());
    }
}

/// Sends a message of a take-over.
fn tell(stream: &mut UnixStream, message: &Value) {
    let text = message.to_string();
    let lengths = [u32::try_from(text.len()).unwrap().to_le_bytes(), [0; 4]].concat();
    // The server may have closed the connection.
    let _ = stream.write_all(&[&lengths, text.as_bytes()].concat());
}

/// The name of the next message of a take-over, and the message; its descriptor is lost.
fn told(stream: &mut UnixStream) -> Option<(String, Value)> {
    let mut lengths = [0; 8];
    stream.read_exact(&mut lengths).ok()?;
    let length = |bytes: &[u8]| usize::try_from(u32::from_le_bytes(bytes.try_into().unwrap())).unwrap();
    let mut text = vec![0; length(&lengths[..4])];
    stream.read_exact(&mut text).unwrap();
    stream.read_exact(&mut vec![0; length(&lengths[4..])]).unwrap();
    let message: Value = serde_json::from_slice(&text).unwrap();
    let name = match &message {
        Value::String(name) => name.clone(),
        other => other.as_object().unwrap().keys().next().unwrap().clone(),
    };
    Some((name, message))
}

fn hello(version: u32) -> Value {
    json!({"hello": {"version": version, "program": "9.9.9", "process": 1}})
}

/// Receives messages until the one with this name; otherwise what was said last.
fn awaited(stream: &mut UnixStream, name: &str) -> Result<Value, String> {
    let mut last = Value::Null;
    while let Some((found, message)) = told(stream) {
        if found == name {
            return Ok(message);
        }
        last = message;
    }
    Err(format!("{name} does not come after {last}"))
}

/// The same, where it has to come.
fn until(stream: &mut UnixStream, name: &str) -> Value {
    awaited(stream, name).unwrap_or_else(|why| panic!("{why}"))
}

/// What a new server does until it dies, in this order.
const STEPS: [&str; 9] = [
    "connect",
    "half a hello",
    "hello",
    "all_sockets",
    "prepared",
    "connection",
    "all_connections",
    "ready",
    "commit",
];

/// Is a new server that dies after this step. An error says what the running server answered instead: it may have lost patience, if the
/// machine is busy.
fn die_after(step: &str, role: &mut UnixStream) -> Result<(), String> {
    if step == "half a hello" {
        role.write_all(&[7, 0, 0]).unwrap();
    }
    let last = STEPS.iter().position(|&known| known == step).unwrap();
    for &next in STEPS.iter().take(last + 1).skip(2) {
        match next {
            "hello" => tell(role, &hello(VERSION)),
            "prepared" | "ready" => tell(role, &json!(next)),
            _ => _ = awaited(role, next)?,
        }
    }
    Ok(())
}

#[test]
fn a_new_server_that_dies_at_any_message_changes_nothing() {
    for event_loop in LOOPS {
        let world = World::new(&["--event-loop", event_loop]);
        let mut server = world.start(&[]);
        let mut clients: Vec<Wire> = (0..8).map(|n| if n % 2 == 0 { world.tcp() } else { world.unix() }).collect();
        let big = vec![b'x'; 100_000];
        talk(
            &mut clients[0],
            &[b"set big 0 0 100000\r\n", &big[..], b"\r\n"].concat(),
            b"STORED\r\n",
        );
        for step in STEPS {
            // Unfinished business in the middle of it: half a request, and answers that are not read.
            clients.iter_mut().for_each(|wire| wire.send(b"get b").unwrap());
            let mut slow = world.tcp();
            slow.send(&b"get big\r\n".repeat(100)).unwrap();
            wait_until(&format!("a new server dies after {step}"), DEADLINE, || {
                // One at a time is admitted, and the last one's end may not have been noticed yet.
                (!server.is_giving()).then(|| die_after(step, &mut world.role()).ok())?
            });
            for wire in &mut clients {
                wire.send(b"ig\r\n").unwrap();
                receive(wire, b"VALUE big 0 100000\r\n");
                assert!(wire.exactly(big.len()).unwrap() == big, "{step}");
                receive(wire, b"\r\nEND\r\n");
            }
            for _ in 0..100 {
                receive(&mut slow, b"VALUE big 0 100000\r\n");
                assert!(slow.exactly(big.len()).unwrap() == big, "{step}");
                receive(&mut slow, b"\r\nEND\r\n");
            }
            talk(&mut world.tcp(), b"mn\r\n", b"MN\r\n");
            talk(&mut world.unix(), b"mn\r\n", b"MN\r\n");
        }
        // And it can still be taken over.
        wait_until("the last attempt is over", DEADLINE, || (!server.is_giving()).then_some(()));
        assert!(server.text().contains("was not taken over"), "{}", server.text());
        let _new = world.take_over(&mut server, &[]);
        talk(&mut clients[3], b"mn\r\n", b"MN\r\n");
    }
}

#[test]
fn a_new_server_that_says_nothing_more_is_left_and_gets_no_role_later() {
    let world = World::new(&[]);
    let mut server = world.start(&[]);
    let mut client = world.tcp();
    let mut role = world.role();
    tell(&mut role, &hello(VERSION));
    until(&mut role, "all_sockets");
    // Meanwhile there is no room for another one.
    let mut second = world.role();
    let refused = until(&mut second, "refused").to_string();
    assert!(refused.contains("try again"), "{refused}");
    tell(&mut role, &json!("prepared"));
    until(&mut role, "all_connections");
    // Clients wait until the running server has lost patience.
    talk(&mut client, b"mn\r\n", b"MN\r\n");
    tell(&mut role, &json!("ready"));
    until(&mut role, "resumed");
    assert!(told(&mut role).is_none(), "it gets no role");
    let _new = world.take_over(&mut server, &[]);
    talk(&mut client, b"mn\r\n", b"MN\r\n");
}

#[test]
fn another_version_is_refused_by_either_server_with_what_to_do() {
    let world = World::new(&[]);
    let mut server = world.start(&[]);
    let mut role = world.role();
    tell(&mut role, &hello(VERSION + 1));
    let why = until(&mut role, "refused").to_string();
    for word in [
        &format!("version {VERSION} "),
        &format!("version {}", VERSION + 1),
        "9.9.9",
        "without --take-over",
    ] {
        assert!(why.contains(word), "{why}");
    }
    talk(&mut world.tcp(), b"mn\r\n", b"MN\r\n");
    assert!(server.end().success());
    // A server that is older, newer, or none at all has the name.
    let file = std::fs::metadata(world.region()).unwrap();
    let name = std::os::unix::net::SocketAddr::from_abstract_name(format!("keyway-take-over {}:{}", file.dev(), file.ino()));
    let listener = std::os::unix::net::UnixListener::bind_addr(&name.unwrap()).unwrap();
    for (said, word) in [
        (
            json!({"refused": {"why": "this is version 7; stop it"}}),
            "this is version 7; stop it",
        ),
        (json!("resumed"), "broke off"),
        (json!({"all_sockets": {"count": 3}}), "did not all arrive"),
        (json!("commit"), "out of turn"),
    ] {
        let mut new = world.spawn(&["--take-over"]);
        let mut stream = listener.accept().unwrap().0;
        assert_eq!(told(&mut stream).unwrap().1["hello"]["version"], VERSION);
        tell(&mut stream, &said);
        assert_eq!(new.wait().code(), Some(1));
        assert!(new.text().contains(word), "{}", new.text());
    }
}

#[test]
fn a_new_server_with_a_bad_option_leaves_the_running_one_as_it_is() {
    let world = World::new(&[]);
    let mut server = world.start(&[]);
    let mut client = world.unix();
    talk(&mut client, b"set k 0 0 1\r\nv\r\n", b"STORED\r\n");
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    for (options, code, word) in [
        (&["--threads", "0"][..], 64, "--threads"),
        (&["--auth-file", "/nowhere"], 71, "/nowhere"),
        (&["--listen", &taken], 71, "choose another"),
        (&["--http", "/nowhere/http"], 71, "/nowhere/http"),
        (&["--max-item", "40m"], 64, "--max-item"),
        // More sessions than the region has slots.
        (&["--threads", "400"], 71, "thread slots of the region"),
    ] {
        let mut new = world.spawn(&[&["--take-over"], options].concat());
        assert_eq!(new.wait().code(), Some(code), "{options:?}: {}", new.text());
        assert!(new.text().contains(word), "{}", new.text());
        talk(&mut client, b"get k\r\n", b"VALUE k 0 1\r\nv\r\nEND\r\n");
        talk(&mut world.tcp(), b"mn\r\n", b"MN\r\n");
        assert_eq!(server.ended(), None);
        assert!(world.scratch.join("socket").exists(), "{options:?}");
    }
}

#[test]
fn only_the_servers_user_may_take_over() {
    if !nix::unistd::geteuid().is_root() {
        return harness::skip("taking over as another user", "this is not root, which could be another user");
    }
    let world = World::new(&[]);
    let _server = world.start(&[]);
    std::fs::set_permissions(world.scratch.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut client = world.tcp();
    // The new server refuses to trust a server of another user.
    let binary = world.scratch.join("keyway");
    harness::copy_program(keyway_binary(), &binary);
    let mut other = Command::new(&binary);
    other
        .args(["serve", "--take-over", "--region"])
        .arg(world.region())
        .uid(65534)
        .gid(65534);
    let output = other.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("of user 0, and this one of user 65534"),
        "{said}"
    );
    // The running server refuses one that does not care: this test once more, as that user.
    let test = world.scratch.join("test");
    harness::copy_program(std::env::current_exe().unwrap(), &test);
    let mut other = Command::new(&test);
    let name = harness::test_path(module_path!(), "as_another_user");
    other
        .args(["--exact", &name, "--ignored", "--nocapture"])
        .env("KEYWAY_TEST_PLACE", world.region())
        .uid(65534)
        .gid(65534);
    let output = other.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("only user 0") && said.contains("of user 65534"), "{said}");
    talk(&mut client, b"mn\r\n", b"MN\r\n");
}

/// Not a test of its own: a process of another user that asks for the role, and prints the answer.
#[test]
#[ignore = "started by only_the_servers_user_may_take_over"]
fn as_another_user() {
    let file = std::fs::metadata(std::env::var_os("KEYWAY_TEST_PLACE").unwrap()).unwrap();
    let name = format!("keyway-take-over {}:{}", file.dev(), file.ino());
    let name = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
    let mut stream = UnixStream::connect_addr(&name).unwrap();
    tell(&mut stream, &hello(VERSION));
    eprintln!("{}", told(&mut stream).unwrap().1);
    assert!(told(&mut stream).is_none(), "nothing else comes");
}

#[test]
fn without_a_running_server_it_starts_as_usual() {
    let world = World::new(&[]);
    let mut server = world.start(&["--take-over"]);
    talk(&mut world.tcp(), b"set k 0 0 1\r\nv\r\n", b"STORED\r\n");
    server.kill();
    // Dead, with its region and its socket's file left behind.
    let _next = world.start(&["--take-over"]);
    talk(&mut world.unix(), b"get k\r\n", b"VALUE k 0 1\r\nv\r\nEND\r\n");
    // The server at this address has another region.
    let other = World {
        address: world.address,
        ..World::new(&[])
    };
    let mut refused = other.spawn(&["--take-over"]);
    assert_eq!(refused.wait().code(), Some(71));
    for word in [
        "choose another address",
        "no server of this user has the region",
        other.region().to_str().unwrap(),
    ] {
        assert!(refused.text().contains(word), "{word}: {}", refused.text());
    }
}

/// What a service manager hears: every line of the messages that have come.
fn received(manager: &UnixDatagram) -> Vec<String> {
    let mut lines = Vec::new();
    let mut bytes = [0; 4096];
    while let Ok(len) = manager.recv(&mut bytes) {
        lines.extend(String::from_utf8_lossy(&bytes[..len]).lines().map(str::to_owned));
    }
    lines
}

#[test]
fn the_service_manager_hears_of_the_new_main_process() {
    let world = World::new(&[]);
    let path = world.scratch.join("notify");
    let manager = UnixDatagram::bind(&path).unwrap();
    manager.set_nonblocking(true).unwrap();
    let start = |more: &[&str]| {
        let log = world.scratch.join(&format!("log-{}", world.started.fetch_add(1, SeqCst)));
        let mut command = world.command(more);
        command.env("NOTIFY_SOCKET", &path).stdin(Stdio::null());
        command.stdout(File::create(&log).unwrap()).stderr(Stdio::null());
        let mut process = Process {
            child: command.spawn().unwrap(),
            log,
        };
        process.wait_ready();
        process
    };
    let mut server = start(&[]);
    let mut lines = Vec::new();
    wait_until("the first server is ready", DEADLINE, || {
        lines.extend(received(&manager));
        lines.contains(&"READY=1".to_owned()).then_some(())
    });
    lines.clear();
    let mut new = start(&["--take-over"]);
    assert!(server.wait().success());
    let main = format!("MAINPID={}", new.child.id());
    wait_until("both have said what they have to say", DEADLINE, || {
        lines.extend(received(&manager));
        (lines.contains(&main) && lines.contains(&"READY=1".to_owned())).then_some(())
    });
    assert!(!lines.contains(&"STOPPING=1".to_owned()), "{lines:?}");
    assert!(new.end().success());
    assert!(received(&manager).contains(&"STOPPING=1".to_owned()));
}

#[test]
#[cfg_attr(not(feature = "kernel"), ignore = "this build has no kernel door")]
fn the_kernel_door_is_exchanged_and_never_stale() {
    exchange_kernel_door("the_kernel_door_is_exchanged_and_never_stale", false);
}

/// The program that `keyway kernel attach` has pinned stays, and another server feeds it.
#[test]
#[cfg_attr(not(feature = "kernel"), ignore = "this build has no kernel door")]
fn a_pinned_kernel_door_is_handed_over_and_never_stale() {
    exchange_kernel_door("a_pinned_kernel_door_is_handed_over_and_never_stale", true);
}

fn exchange_kernel_door(test: &str, is_pinned: bool) {
    /// Answers of each server's program.
    const HITS_EACH: u64 = 10_000;
    const INSIDE: &str = "KEYWAY_TEST_ROLE";
    if std::env::var_os(INSIDE).is_none() {
        if !nix::unistd::geteuid().is_root() {
            return harness::skip(
                "the kernel door over a take-over",
                "this is not root, which may load its program",
            );
        }
        // In a network namespace of its own, on its loopback interface.
        let mut again = harness::own_test(&["unshare", "--net", "--mount"], module_path!(), test);
        let output = again.env(INSIDE, "1").output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&said));
        return;
    }
    assert!(
        Command::new("ip")
            .args(["link", "set", "lo", "up"])
            .status()
            .unwrap()
            .success()
    );
    let world = World::new(&[]);
    let udp = world.address.to_string();
    let pin = world.scratch.join("bpf");
    let mut options = vec!["--udp", &udp, "--kernel", "lo"];
    let pinned = pin.join("keyway").display().to_string();
    if is_pinned {
        std::fs::create_dir(&pin).unwrap();
        let mounted = Command::new("mount").args(["-t", "bpf", "bpf"]).arg(&pin).status();
        assert!(mounted.unwrap().success());
        let mut attach = Command::new(keyway_binary());
        attach.args(["kernel", "attach", "lo", "--pin", &pinned, "--udp", &udp]);
        let (status, said) = harness::run_to_end(&mut attach, DEADLINE);
        assert!(status.success(), "{said}");
        options = vec!["--udp", &udp, "--kernel-pinned", &pinned];
    }
    let mut server = world.start(&options);
    // How long answers took is in the region, which outlives the servers.
    let ends = Arc::new(AtomicBool::new(false));
    let cache = Cache::open(&Place::Path(world.region()), &Options::new()).unwrap();
    let looking = std::thread::spawn({
        let ends = Arc::clone(&ends);
        move || {
            let mut before = Latency::default();
            loop {
                let last = ends.load(SeqCst);
                let now = *cache.latencies().of(Door::KernelUdp, Verb::Get);
                let falls = before.counts.iter().zip(now.counts).any(|(before, now)| now < *before);
                assert!(!falls && now.sum_ns >= before.sum_ns, "{before:?}, and later {now:?}");
                before = now;
                if last {
                    return now.count();
                }
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    });
    let (mut answered, asked) = (0, AtomicU64::new(0));
    let (mut tcp, mut datagrams) = (world.tcp(), Wire::to_udp(world.address).unwrap());
    let (stop, version) = (AtomicBool::new(false), AtomicU64::new(1));
    talk(&mut tcp, b"set k 0 0 1\r\n1\r\n", b"STORED\r\n");
    talk(&mut tcp, b"set steady 0 0 1\r\n1\r\n", b"STORED\r\n");
    std::thread::scope(|scope| {
        // Through a connection that changes its server each time.
        let mut changed = world.tcp();
        let (stop, version, asked) = (&stop, &version, &asked);
        scope.spawn(move || {
            while !stop.load(SeqCst) {
                let next = (version.load(SeqCst) + 1).to_string();
                talk(
                    &mut changed,
                    format!("set k 0 0 {}\r\n{next}\r\n", next.len()).as_bytes(),
                    b"STORED\r\n",
                );
                version.fetch_add(1, SeqCst);
                std::thread::sleep(std::time::Duration::from_millis(5));
            }
        });
        scope.spawn(move || {
            while !stop.load(SeqCst) {
                let least = version.load(SeqCst);
                datagrams.send(b"get k\r\n").unwrap();
                asked.fetch_add(1, SeqCst);
                let head = String::from_utf8(datagrams.line().unwrap()).unwrap();
                assert!(head.starts_with("VALUE k 0 "), "{head}");
                let value: u64 = String::from_utf8(datagrams.line().unwrap()).unwrap().parse().unwrap();
                assert_eq!(datagrams.line().unwrap(), b"END");
                // One that is being stored may be seen before its answer.
                assert!((least..=version.load(SeqCst) + 1).contains(&value), "{least} {value}");
            }
        });
        let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut hits = move || {
                let stats = tcp.stats("").unwrap();
                let hits = stats.iter().find(|(name, _)| name == "keyway_kernel_hits").unwrap();
                hits.1.parse::<u64>().unwrap()
            };
            let mut answered = 0;
            for _ in 0..3 {
                // A server's own program begins to count at 0.
                let before = hits();
                let mut steady = Wire::to_udp(world.address).unwrap();
                answered += wait_until("the kernel door answers", DEADLINE, || {
                    asked.fetch_add(500, SeqCst);
                    (0..500).for_each(|_| assert_eq!(steady.get(false, &["steady"]).unwrap().len(), 1));
                    Some(hits() - before).filter(|hits| *hits > HITS_EACH)
                });
                server = world.take_over(&mut server, &options);
            }
            answered
        }));
        stop.store(true, SeqCst);
        answered = worked.unwrap();
    });
    assert!(server.end().success());
    ends.store(true, SeqCst);
    let timed = looking.join().unwrap();
    // One in 256 answers was timed, and six deviations. Each take-over ends a program whose last answers are not in `answered`.
    let (least, most) = (answered / 256, asked.load(SeqCst) / 256);
    assert!(
        timed + 6 * least.isqrt() > least && timed < most + 6 * most.isqrt(),
        "{timed} of at least {answered} answers to {asked:?} requests"
    );
    if is_pinned {
        // The program has counted for all servers; the region has each once.
        let (status, said) = harness::run_to_end(
            Command::new(keyway_binary()).args(["kernel", "status", "--pin", &pinned]),
            DEADLINE,
        );
        assert!(status.success(), "{said}");
        assert!(
            said.contains(&format!("kernel_udp:get:measured {timed}\n")),
            "{timed}: {said}"
        );
        let unmounted = Command::new("umount").arg(&pin).status();
        assert!(unmounted.unwrap().success());
    }
}

#[test]
fn either_server_may_be_killed_at_any_time() {
    let attempts = if full_run() { 300 } else { 24 };
    let world = World::new(&["--memory", "16m"]);
    let mut random = Random::new(Random::seed_for("take-over"));
    let mut server = world.start(&[]);
    // How long a take-over takes here, from the start of the process on.
    let begun = Instant::now();
    server = world.take_over(&mut server, &[]);
    let whole = begun.elapsed();
    let mut counts = [0; 4];
    for attempt in 0..attempts {
        let mut client = world.tcp();
        talk(
            &mut client,
            format!("set a{attempt} 0 0 1\r\nv\r\n").as_bytes(),
            b"STORED\r\n",
        );
        let kills_new = attempt % 2 == 0;
        let event_loop = LOOPS[attempt / 2 % 2];
        let mut new = world.spawn(&["--take-over", "--event-loop", event_loop]);
        // More often early: much of the time is the start of the process and the end of the other one.
        let part = f64::from(u32::try_from(random.below(1000)).unwrap()) / 1000.0;
        std::thread::sleep(whole.mul_f64(part * part));
        if kills_new {
            new.kill();
            // Either it had the role, or the running server goes on with its clients.
            client.send(format!("get a{attempt}\r\n").as_bytes()).unwrap();
            let expected = format!("VALUE a{attempt} 0 1\r\nv\r\nEND\r\n");
            match client.exactly(expected.len()) {
                Ok(got) => {
                    assert_eq!(got, expected.as_bytes());
                    counts[0] += 1;
                    assert_eq!(server.ended(), None, "{}", server.text());
                }
                Err(_) => {
                    counts[1] += 1;
                    assert!(server.wait().success(), "{}", server.text());
                    assert!(server.text().contains("has taken over"), "{}\n{}", server.text(), new.text());
                    server = world.start(&[]);
                }
            }
        } else {
            server.kill();
            new.wait_ready();
            client.send(format!("get a{attempt}\r\n").as_bytes()).unwrap();
            let expected = format!("VALUE a{attempt} 0 1\r\nv\r\nEND\r\n");
            match client.exactly(expected.len()) {
                Ok(got) => {
                    assert_eq!(got, expected.as_bytes());
                    counts[2] += 1;
                }
                Err(_) => counts[3] += 1,
            }
            server = new;
        }
        let mut fresh = world.tcp();
        (0..=attempt).for_each(|n| {
            talk(
                &mut fresh,
                format!("get a{n}\r\n").as_bytes(),
                format!("VALUE a{n} 0 1\r\nv\r\nEND\r\n").as_bytes(),
            );
        });
    }
    assert!(server.end().success());
    let (status, text) = keyway_check(&world.region());
    assert!(status.success(), "{text}");
    say(&format!(
        "new server killed: {} times the old one went on, {} times the new one had the role; old server killed: {} times the new one had its \
         client, {} times only its region",
        counts[0], counts[1], counts[2], counts[3]
    ));
}

/// Passes on what two servers say to each other, each message with its bytes and its descriptor, until one of them closes its connection.
/// `at` is asked before and after the first message of each name; when it says so, both connections are closed. `is_cut` is shared by both
/// directions: nothing is passed on in one while `at` is asked in the other, or after it has said so.
fn relay(from: &UnixStream, to: &UnixStream, is_cut: &Mutex<bool>, at: &(dyn Fn(&str, Moment) -> bool + Sync)) {
    let mut seen: Vec<String> = Vec::new();
    'messages: loop {
        let (mut head, mut got, mut files) = ([0; 8], 0, Vec::new());
        while got < head.len() {
            match handout::receive(from, &mut head[got..]) {
                Ok((0, _)) | Err(_) => break 'messages,
                Ok((count, came)) => {
                    got += count;
                    files.extend(came);
                }
            }
        }
        let length = |bytes: &[u8]| usize::try_from(u32::from_le_bytes(bytes.try_into().unwrap())).unwrap();
        let (text_len, len) = (length(&head[..4]), length(&head[4..]));
        let mut whole = head.to_vec();
        whole.resize(head.len() + text_len + len, 0);
        if (&*from).read_exact(&mut whole[head.len()..]).is_err() {
            break;
        }
        let name = match serde_json::from_slice(&whole[head.len()..head.len() + text_len]).unwrap() {
            Value::String(name) => name,
            other => other.as_object().unwrap().keys().next().unwrap().clone(),
        };
        let is_first = !seen.contains(&name);
        let mut is_cut = is_cut.lock().unwrap();
        if !*is_cut && is_first {
            *is_cut = at(&name, Moment::Before);
        }
        if *is_cut {
            break;
        }
        let rights: Vec<_> = files.iter().map(AsRawFd::as_raw_fd).collect();
        let control = [ControlMessage::ScmRights(&rights)];
        let control = if rights.is_empty() { &[][..] } else { &control };
        let flags = MsgFlags::MSG_NOSIGNAL;
        let sent = sendmsg::<()>(to.as_raw_fd(), &[IoSlice::new(&whole)], control, flags, None);
        if !sent.is_ok_and(|sent| (&*to).write_all(&whole[sent..]).is_ok()) {
            break;
        }
        drop(files);
        if is_first && at(&name, Moment::After) {
            *is_cut = true;
            break;
        }
        seen.push(name);
    }
    for stream in [from, to] {
        // It may be closed already.
        let _ = stream.shutdown(std::net::Shutdown::Both);
    }
}

/// Of a message that is passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Moment {
    Before,
    After,
}

/// A new server whose messages, and those to it, pass through this process, which kills one of the two servers at one of them. It believes
/// to speak to the other server: it is in a network namespace of its own, where this process has the name.
///
/// `ours` is a connection to the old server.
fn take_over_that_is_cut_off(
    world: &World,
    server: &mut Process,
    ours: &UnixStream,
    kills_new: bool,
    at: (&str, Moment),
) -> Process {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).expect("this is root");
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
    assert!(up.unwrap().success());
    let file = std::fs::metadata(world.region()).unwrap();
    let name = format!("keyway-take-over {}:{}", file.dev(), file.ino());
    let name = std::os::unix::net::SocketAddr::from_abstract_name(name).unwrap();
    let listener = std::os::unix::net::UnixListener::bind_addr(&name).unwrap();
    let new = Mutex::new(world.spawn(&["--take-over"]));
    let theirs = listener.accept().unwrap().0;
    drop(listener);
    let server = Mutex::new(server);
    let has_killed = AtomicBool::new(false);
    let kill = |name: &str, moment: Moment| {
        let is_now = (name, moment) == at && !has_killed.swap(true, SeqCst);
        if is_now && kills_new {
            new.lock().unwrap().kill();
        } else if is_now {
            server.lock().unwrap().kill();
        }
        is_now
    };
    let is_cut = Mutex::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| relay(ours, &theirs, &is_cut, &kill));
        relay(&theirs, ours, &is_cut, &kill);
    });
    assert!(has_killed.into_inner(), "the servers have not said {at:?}");
    new.into_inner().unwrap()
}

#[test]
fn either_server_may_be_killed_at_each_message() {
    if !nix::unistd::geteuid().is_root() {
        return harness::skip(
            "deaths at each message",
            "this is not root, which may have a network of its own",
        );
    }
    let world = World::new(&["--memory", "16m"]);
    let mut server = world.start(&[]);
    talk(&mut world.unix(), b"set kept 0 0 1\r\nv\r\n", b"STORED\r\n");
    let names = [
        "hello",
        "welcome",
        "socket",
        "all_sockets",
        "prepared",
        "connection",
        "all_connections",
        "ready",
        "commit",
        "taken",
    ];
    let mut went_on = [0; 2];
    for (number, name) in names.into_iter().enumerate() {
        for moment in [Moment::Before, Moment::After] {
            for kills_new in [false, true] {
                let what = format!(
                    "{name}, {moment:?}, the {} server dies",
                    if kills_new { "new" } else { "old" }
                );
                let mut client = world.unix();
                talk(&mut client, format!("set a{number} 0 0 1\r\nv\r\n").as_bytes(), b"STORED\r\n");
                let role = world.role();
                role.set_read_timeout(None).unwrap();
                let mut new = std::thread::scope(|scope| {
                    let (world, server) = (&world, &mut server);
                    let at = (name, moment);
                    let relayed = scope.spawn(move || take_over_that_is_cut_off(world, server, &role, kills_new, at));
                    relayed.join().unwrap_or_else(|_| panic!("{what}"))
                });
                let has_taken = (name, moment) == ("taken", Moment::After);
                let expected = b"VALUE kept 0 1\r\nv\r\nEND\r\n";
                // An error means that its server has died with it.
                let answer = client.send(b"get kept\r\n").and_then(|()| client.exactly(expected.len()));
                if kills_new && !has_taken {
                    let answer = answer.unwrap_or_else(|error| panic!("{what}: {error}: {}", server.text()));
                    assert_eq!(answer, expected, "{what}: the old one goes on with its clients");
                    assert_eq!(server.ended(), None, "{what}: {}", server.text());
                    wait_until("the attempt is over", DEADLINE, || (!server.is_giving()).then_some(()));
                    went_on[0] += 1;
                } else if kills_new {
                    assert!(server.wait().success(), "{what}: {}", server.text());
                } else {
                    new.wait_ready();
                    let has_clients = answer.is_ok_and(|answer| answer == expected);
                    let has_all = names.iter().position(|&known| known == "all_connections").unwrap();
                    assert!(
                        has_clients || (number, moment) < (has_all, Moment::After),
                        "{what}: {}",
                        new.text()
                    );
                    went_on[1] += usize::from(has_clients);
                }
                let is_served = !kills_new || !has_taken;
                if is_served {
                    let mut fresh = world.unix();
                    for key in (0..=number).map(|n| format!("a{n}")) {
                        talk(
                            &mut fresh,
                            format!("get {key}\r\n").as_bytes(),
                            format!("VALUE {key} 0 1\r\nv\r\nEND\r\n").as_bytes(),
                        );
                    }
                }
                // The next one is of this network again.
                if !(kills_new && is_served) {
                    new.kill();
                    drop(server);
                    server = world.start(&[]);
                }
            }
        }
    }
    assert!(server.end().success());
    let (status, text) = keyway_check(&world.region());
    assert!(status.success(), "{text}");
    say(&format!(
        "{} times the old server went on, {} times the new one had the old one's client",
        went_on[0], went_on[1]
    ));
}
