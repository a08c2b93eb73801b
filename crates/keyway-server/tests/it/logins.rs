//! Logins, and what a user may do after its login. The enemies: a client without a password, or with too few rights, that reads or changes
//! an item all the same; and a login that makes others wait.
//! Guards: P38

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::refusals::{Refusal, refusals};
use argon2::PasswordHasher;
use harness::{Random, Scratch, say, skip, wait_until};
use keyway_cache::{Cache, Options, Place};
use keyway_proto::binary::{self, Head};
use keyway_proto::{Command, EXAMPLE_KEY};
use keyway_server::{Config, EventLoop, Handle, Sasl, Server, UnixSocket, auth_line};

/// Longest that a test waits for an answer: only a failing test takes so long.
const PATIENCE: Duration = Duration::from_secs(20);
const READ_ONLY: &str = "CLIENT_ERROR this user may only read";
const OUTSIDE: &str = "CLIENT_ERROR this user may only use keys with its prefix";
const NOT_ALLOWED: &str = "CLIENT_ERROR not allowed for this user";
/// Commands of the binary protocol.
const GET: u8 = 0x00;
const SET: u8 = 0x01;
const NOOP: u8 = 0x0a;
const VERSION: u8 = 0x0b;
const LIST: u8 = 0x20;
const AUTH: u8 = 0x21;
const STEP: u8 = 0x22;

struct Running {
    handle: Handle,
    address: SocketAddr,
    socket: PathBuf,
    thread: Option<JoinHandle<()>>,
    _folder: Scratch,
}

impl Running {
    /// A server with one thread, and these lines in its authentication file.
    fn start(users: &str, change: impl FnOnce(&mut Config)) -> Self {
        let folder = Scratch::new();
        let file = folder.join("users");
        std::fs::write(&file, users).unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
        let socket = folder.join("socket");
        let mut config = Config {
            tcp: vec!["127.0.0.1:0".parse().unwrap()],
            unix: Some(UnixSocket {
                path: socket.clone(),
                mode: 0o700,
            }),
            threads: 1,
            shutdown_enabled: true,
            auth_file: Some(file),
            ..Config::default()
        };
        change(&mut config);
        let options = Options::new().memory(64 << 20).item_size_max(8 << 10);
        let server = Server::start(config, Cache::open(&Place::Memfd, &options).unwrap()).unwrap();
        let (handle, address) = (server.handle(), server.tcp_addresses()[0]);
        Self {
            handle,
            address,
            socket,
            thread: Some(std::thread::spawn(move || server.run().unwrap())),
            _folder: folder,
        }
    }

    fn connect(&self) -> Client<TcpStream> {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client(BufReader::new(stream))
    }

    /// A client of the text protocol that has logged in.
    /// A connection from another address of this machine.
    fn connect_from(&self, address: Ipv4Addr) -> Client<TcpStream> {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((address, 0)).into()).unwrap();
        socket.connect(&self.address.into()).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client(BufReader::new(stream))
    }

    fn log_in(&self, user: &str, password: &str) -> Client<TcpStream> {
        let mut client = self.connect();
        assert_eq!(client.log_in(user, password), "STORED");
        client
    }

    /// The same in the binary protocol.
    fn log_in_by_sasl(&self, user: &str, password: &str) -> Client<TcpStream> {
        let mut client = self.connect();
        assert_eq!(client.auth(user, password), (0, b"Authenticated".to_vec()));
        client
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.handle.shutdown();
        if let Some(thread) = self.thread.take()
            && !std::thread::panicking()
        {
            thread.join().unwrap();
        }
    }
}

struct Client<S>(BufReader<S>);

impl<S: Read + Write> Client<S> {
    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    /// The next line without its end; empty when the connection is closed.
    fn line(&mut self) -> String {
        let mut line = Vec::new();
        self.0.read_until(b'\n', &mut line).unwrap();
        String::from_utf8_lossy(&line).trim_end().to_owned()
    }

    fn ask(&mut self, request: &str) -> String {
        self.send(format!("{request}\r\n").as_bytes());
        self.line()
    }

    /// All lines that answer these requests.
    fn ask_all(&mut self, requests: &[u8]) -> Vec<String> {
        self.send(&[requests, b"mn\r\n"].concat());
        std::iter::from_fn(|| Some(self.line()).filter(|line| line != "MN")).collect()
    }

    fn log_in(&mut self, user: &str, password: &str) -> String {
        let token = format!("{user} {password}");
        self.ask(&format!("set x 0 0 {}\r\n{token}", token.len()))
    }

    fn stat(&mut self, name: &str) -> String {
        let lines = self.ask_all(b"stats\r\n");
        let found = lines.iter().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        found.unwrap_or_default().to_owned()
    }

    /// Status and body of an answer; the opcode and the opaque are compared.
    fn packet(&mut self, opcode: u8) -> (u8, Vec<u8>) {
        let mut header = [0; 24];
        self.0.read_exact(&mut header).unwrap();
        assert_eq!((header[0], header[1], &header[12..16]), (0x81, opcode, &b"abcd"[..]));
        let len = u32::from_be_bytes(header[8..12].try_into().unwrap());
        let mut body = vec![0; usize::try_from(len).unwrap()];
        self.0.read_exact(&mut body).unwrap();
        assert_eq!(header[6], 0);
        (header[7], body)
    }

    fn exchange(&mut self, opcode: u8, body: [&[u8]; 3]) -> (u8, Vec<u8>) {
        self.send(&packet(opcode, body));
        self.packet(opcode)
    }

    fn auth(&mut self, user: &str, password: &str) -> (u8, Vec<u8>) {
        self.exchange(AUTH, [b"", b"PLAIN", format!("\0{user}\0{password}").as_bytes()])
    }

    fn is_closed(&mut self) -> bool {
        self.0.read(&mut [0]).is_ok_and(|count| count == 0)
    }
}

fn packet(opcode: u8, body: [&[u8]; 3]) -> Vec<u8> {
    let mut out = Vec::new();
    let head = Head {
        opcode,
        opaque: *b"abcd",
    };
    binary::request(&mut out, head, 0, body);
    out
}

const FAILED: (u8, &[u8]) = (0x20, b"Auth failure.");

fn failed() -> (u8, Vec<u8>) {
    (FAILED.0, FAILED.1.to_vec())
}

#[test]
fn the_binary_protocol_has_a_login() {
    for event_loop in [EventLoop::Auto, EventLoop::Epoll] {
        let server = Running::start("ann:secret\n", |config| config.event_loop = event_loop);
        let mut client = server.connect();
        assert_eq!(client.exchange(LIST, [b"", b"", b""]), (0, b"PLAIN".to_vec()));
        assert_eq!(client.exchange(VERSION, [b"", b"", b""]).0, 0);
        // With the requests after it in the same packet.
        let login = packet(AUTH, [b"", b"PLAIN", b"\0ann\0secret"]);
        let set = packet(SET, [&[0; 8], b"key", b"value"]);
        client.send(&[login.clone(), set, packet(GET, [b"", b"key", b""])].concat());
        assert_eq!(client.packet(AUTH), (0, b"Authenticated".to_vec()));
        assert_eq!(client.packet(SET).0, 0);
        assert_eq!(client.packet(GET), (0, b"\0\0\0\0value".to_vec()));
        // By pieces, and in two steps.
        let mut slow = server.connect();
        slow.0.get_ref().set_nodelay(true).unwrap();
        for byte in &login {
            slow.send(&[*byte]);
        }
        assert_eq!(slow.packet(AUTH).0, 0);
        let mut stepwise = server.connect();
        assert_eq!(stepwise.exchange(AUTH, [b"", b"PLAIN", b""]), (0x21, Vec::new()));
        assert_eq!(
            stepwise.exchange(STEP, [b"", b"PLAIN", b"\0ann\0secret"]),
            (0, b"Authenticated".to_vec())
        );
        // The text protocol is as it was.
        let mut text = server.connect();
        assert_eq!(text.ask("get key"), "CLIENT_ERROR unauthenticated");
        assert_eq!(text.log_in("ann", "secret"), "STORED");
        assert_eq!(
            (text.stat("auth_cmds"), text.stat("auth_errors")),
            ("4".to_owned(), "0".to_owned())
        );
    }
}

#[test]
fn packets_before_a_login_are_refused_and_end_the_connection() {
    let server = Running::start("ann:secret\n", |_| ());
    for opcode in (0..=0xff).filter(|opcode| ![0x07, 0x17, VERSION, LIST, AUTH, STEP].contains(opcode)) {
        let mut client = server.connect();
        client.send(&packet(opcode, [b"", b"", b""]));
        assert_eq!(client.packet(opcode), failed(), "{opcode:#x}");
        assert!(client.is_closed(), "{opcode:#x}");
    }
    let mut quiet = server.connect();
    quiet.send(&packet(0x17, [b"", b"", b""]));
    assert!(quiet.is_closed());
}

#[test]
fn wrong_passwords_are_slow_counted_and_end_the_connection() {
    let hashed = auth_line("eve", b"hashed", false, None).unwrap();
    let server = Running::start(&format!("ann:secret\n{hashed}\n"), |_| ());
    let started = Instant::now();
    let mut guessers: Vec<_> = (0..3).map(|_| server.connect()).collect();
    let guesses = [("ann", "Secret"), ("eve", "Hashed"), ("nobody", "secret")];
    for (guesser, (user, password)) in guessers.iter_mut().zip(guesses) {
        let message = format!("\0{user}\0{password}");
        guesser.send(&packet(AUTH, [b"", b"PLAIN", message.as_bytes()]).repeat(4));
    }
    for mut guesser in guessers {
        for _ in 0..3 {
            assert_eq!(guesser.packet(AUTH), failed());
        }
        assert!(guesser.is_closed());
    }
    // Three delays of a second, whose answers a clock may show a little early.
    assert!(started.elapsed() > Duration::from_millis(2900));
    let mut client = server.log_in("ann", "secret");
    assert_eq!(
        (client.stat("auth_cmds"), client.stat("auth_errors")),
        ("10".to_owned(), "9".to_owned())
    );
    for wrong in [&b"ann\0ann"[..], b"eve\0ann\0secret", b"ann secret", b"\0ann\0secret\0"] {
        let mut client = server.connect();
        assert_eq!(client.exchange(AUTH, [b"", b"PLAIN", wrong]), failed(), "{wrong:?}");
    }
    let mut other = server.connect();
    assert_eq!(other.exchange(AUTH, [b"", b"CRAM-MD5", b"\0ann\0secret"]), failed());
}

#[test]
fn a_source_whose_logins_fail_all_the_time_has_to_wait_and_another_has_not() {
    let server = Running::start("ann:secret\n", |_| ());
    let mut other = Client(BufReader::new(UnixStream::connect(&server.socket).unwrap()));
    assert_eq!(other.log_in("ann", "secret"), "STORED");
    assert_eq!(other.stat("keyway_auth_delays"), "0");
    // Connections that do not wait for their answers. All of a batch are judged, or wait, before the next one: so few of them wait.
    let begun = Instant::now();
    let mut guessers = Vec::new();
    while other.stat("keyway_auth_delays") == "0" {
        assert!(
            guessers.len() < 600,
            "{} guesses in {:?}, and none waits",
            guessers.len(),
            begun.elapsed()
        );
        for _ in 0..20 {
            // Each from another loopback address.
            let number = u8::try_from(guessers.len() % 250).unwrap();
            let mut guesser = server.connect_from([127, 1, number, 1 + number].into());
            guesser.send(b"set x 0 0 9\r\nann wrong\r\n");
            guessers.push(guesser);
        }
        wait_until("the guesses have arrived", PATIENCE, || {
            let counted = ["auth_errors", "keyway_auth_delays"].map(|name| other.stat(name).parse::<usize>().unwrap());
            (counted.iter().sum::<usize>() >= guessers.len()).then_some(())
        });
    }
    assert!(guessers.len() > 100, "as many as may fail at once: {}", guessers.len());
    let mut another = Client(BufReader::new(UnixStream::connect(&server.socket).unwrap()));
    assert_eq!(another.log_in("ann", "secret"), "STORED");
    // The source's own right login waits for its turn, and comes before the end of its time.
    drop(guessers);
    server.log_in("ann", "secret");
}

#[test]
fn hashed_passwords_work_in_both_protocols() {
    let lines = [
        auth_line("ann", b"a:b c", false, None).unwrap(),
        auth_line("bob", b"b", true, None).unwrap(),
    ];
    let server = Running::start(&lines.join("\n"), |_| ());
    for _ in 0..2 {
        assert_eq!(server.log_in("ann", "a:b c").ask("set k 0 0 1\r\nv"), "STORED");
        assert_eq!(server.log_in_by_sasl("bob", "b").exchange(GET, [b"", b"k", b""]).0, 0);
        assert_eq!(server.log_in("bob", "b").ask("set k 0 0 1\r\nv"), READ_ONLY);
    }
}

#[test]
fn a_login_that_is_being_verified_holds_up_no_other_connection() {
    // As much work as a hash may need.
    let salt = argon2::password_hash::SaltString::encode_b64(b"somesalt").unwrap();
    let params = argon2::Params::new(64 << 10, 4, 1, None).unwrap();
    let hash = argon2::Argon2::new(argon2::Algorithm::Argon2id, argon2::Version::V0x13, params)
        .hash_password(b"x", &salt)
        .unwrap();
    let users = ["slow", "two", "three", "four", "five"].map(|user| format!("{user}:{hash}\n"));
    let users = format!("ann:secret\n{}", users.concat());
    let server = Running::start(&users, |_| ());
    let mut other = server.log_in("ann", "secret");
    let mut waiting = server.connect();
    waiting.send(&packet(AUTH, [b"", b"PLAIN", b"\0slow\0x"]));
    let (mut answers, mut slowest) = (0, Duration::ZERO);
    let sent = Instant::now();
    waiting.0.get_ref().set_nonblocking(true).unwrap();
    while waiting
        .0
        .get_ref()
        .peek(&mut [0])
        .is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
    {
        let asked = Instant::now();
        assert_eq!(other.ask("mn"), "MN");
        (answers, slowest) = (answers + 1, slowest.max(asked.elapsed()));
        assert!(sent.elapsed() < PATIENCE);
    }
    say(&format!(
        "{answers} answers to another connection of the same thread in {:?}, the slowest in {slowest:?}",
        sent.elapsed()
    ));
    assert!(answers > 100, "{answers} answers in {:?}", sent.elapsed());
    waiting.0.get_ref().set_nonblocking(false).unwrap();
    assert_eq!(waiting.packet(AUTH), (0, b"Authenticated".to_vec()));
    // A stopping server waits for no login, and one whose connection goes away is left out.
    for user in ["two", "three", "four", "five"] {
        let mut another = server.connect();
        another.send(&packet(AUTH, [b"", b"PLAIN", format!("\0{user}\0x").as_bytes()]));
        assert_eq!(other.ask("mn"), "MN");
        if user == "five" {
            std::mem::forget(another);
        }
    }
    let stopping = Instant::now();
    drop(server);
    say(&format!("stopped in {:?}", stopping.elapsed()));
}

/// An address of this machine that is not a loopback address.
fn address_of_a_network() -> Option<IpAddr> {
    let addresses = nix::ifaddrs::getifaddrs().ok()?;
    let v4 = addresses.filter_map(|interface| Some(interface.address?.as_sockaddr_in()?.ip()));
    v4.filter(|ip| !ip.is_loopback()).map(IpAddr::V4).next()
}

#[test]
fn sasl_needs_tls_unless_told_otherwise() {
    let Some(ip) = address_of_a_network() else {
        return skip("SASL from another machine", "this machine has only loopback addresses");
    };
    for sasl in [Sasl::Off, Sasl::Protected, Sasl::Everywhere] {
        let server = Running::start("ann:secret\n", |config| {
            config.sasl = sasl;
            config.tcp.push(SocketAddr::new(ip, 0));
            config.tcp.rotate_right(1);
        });
        assert_eq!(server.address.ip(), ip);
        for (opcode, key, value) in [
            (LIST, &b""[..], &b""[..]),
            (AUTH, b"PLAIN", b"\0ann\0secret"),
            (AUTH, b"PLAIN", b""),
        ] {
            let mut client = server.connect();
            let (status, text) = client.exchange(opcode, [b"", key, value]);
            match sasl {
                Sasl::Off => assert_eq!((status, text), failed()),
                Sasl::Protected => {
                    let text = String::from_utf8(text).unwrap();
                    assert!(status == 0x20 && text.contains("--auth-without-tls"), "{text}");
                    assert!(client.is_closed());
                }
                Sasl::Everywhere => assert!([0, 0x21].contains(&status)),
            }
        }
        // The text protocol's login is memcached's, which asks for no TLS.
        assert_eq!(server.log_in("ann", "secret").ask("mn"), "MN");
        let unix = UnixStream::connect(&server.socket).unwrap();
        let status = Client(BufReader::new(unix)).auth("ann", "secret").0;
        assert_eq!(status, if sasl == Sasl::Off { 0x20 } else { 0 }, "over a Unix socket");
    }
}

#[test]
fn a_client_may_log_in_again_as_another_user() {
    for event_loop in [EventLoop::Auto, EventLoop::Epoll] {
        let server = Running::start("ann:secret\nbob:b:ro\n", |config| config.event_loop = event_loop);
        let mut client = server.log_in_by_sasl("ann", "secret");
        let set = [&[0; 8][..], b"k", b"v"];
        assert_eq!(client.exchange(SET, set).0, 0);
        assert_eq!(client.auth("bob", "b").0, 0);
        assert_eq!(client.exchange(SET, set), (0x20, b"this user may only read".to_vec()));
        assert_eq!(client.exchange(GET, [b"", b"k", b""]).0, 0);
        assert_eq!(client.auth("ann", "wrong"), failed());
        // It has no role any more.
        client.send(&packet(GET, [b"", b"k", b""]));
        assert_eq!(client.packet(GET), failed());
        assert!(client.is_closed());
    }
}

#[test]
fn a_user_of_this_machine_needs_no_password() {
    let me = nix::unistd::geteuid();
    let server = Running::start(&format!("ann:secret\npeer:{me}::rw:prefix=shop:\n"), |_| ());
    let mut client = Client(BufReader::new(UnixStream::connect(&server.socket).unwrap()));
    assert_eq!(client.ask("set shop:a 0 0 1\r\nv"), "STORED");
    assert_eq!(client.ask("set other 0 0 1\r\nv"), OUTSIDE);
    let mut binary = Client(BufReader::new(UnixStream::connect(&server.socket).unwrap()));
    assert_eq!(binary.exchange(GET, [b"", b"shop:a", b""]).0, 0);
    // One that logs in is another user.
    assert_eq!(binary.auth("ann", "secret").0, 0);
    assert_eq!(binary.exchange(SET, [&[0; 8], b"other", b"v"]).0, 0);
    let mut tcp = server.connect();
    assert_eq!(tcp.ask("get shop:a"), "CLIENT_ERROR unauthenticated", "over TCP it needs one");
    // Another user of this machine has to log in.
    let stranger = me.as_raw() + 1;
    let server = Running::start(&format!("peer:{stranger}::rw\n"), |_| ());
    let mut client = Client(BufReader::new(UnixStream::connect(&server.socket).unwrap()));
    assert_eq!(client.ask("get k"), "CLIENT_ERROR unauthenticated");
}

fn answer(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::ReadOnly => READ_ONLY,
        Refusal::OutsidePrefix => OUTSIDE,
        Refusal::NotForThisUser => NOT_ALLOWED,
    }
}

#[test]
fn every_command_obeys_the_role_of_its_user() {
    let users = "ann:x\nreader:x:ro\nshop:x:rw:prefix=exam\nother:x:rw:prefix=other:\n";
    for command in Command::ALL.iter().copied() {
        let server = Running::start(users, |_| ());
        let mut ann = server.log_in("ann", "x");
        for (user, refusal) in ["reader", "shop", "other"]
            .iter()
            .zip(refusals(command).map(|refusal| refusal.map(answer)))
        {
            ann.ask_all(format!("set {EXAMPLE_KEY} 0 0 1\r\n1\r\n").as_bytes());
            let before = ann.ask_all(format!("gets {EXAMPLE_KEY}\r\n").as_bytes());
            let mut client = server.log_in(user, "x");
            client.send(command.facts().example);
            let line = client.line();
            match refusal {
                Some(refusal) => {
                    assert_eq!(line, refusal, "{command:?} by {user}");
                    assert_eq!(ann.ask_all(format!("gets {EXAMPLE_KEY}\r\n").as_bytes()), before);
                }
                None => assert!(!line.starts_with("CLIENT_ERROR"), "{command:?} by {user}: {line}"),
            }
        }
        let mut ann = server.log_in("ann", "x");
        ann.send(command.facts().example);
        let line = ann.line();
        assert!(!line.starts_with("CLIENT_ERROR"), "{command:?} by ann: {line}");
    }
}

#[test]
fn arguments_and_long_lines_obey_too() {
    let server = Running::start("ann:x\nreader:x:ro\nshop:x:rw:prefix=shop:\n", |_| ());
    let mut ann = server.log_in("ann", "x");
    let mut reader = server.log_in("reader", "x");
    let mut shop = server.log_in("shop", "x");
    for key in ["shop:a", "other"] {
        assert_eq!(ann.ask(&format!("set {key} 0 0 1\r\n1")), "STORED");
    }
    for (line, refusal) in [
        ("stats reset", NOT_ALLOWED),
        ("stats detail on", NOT_ALLOWED),
        ("mg other T0", READ_ONLY),
        ("mg new N0", READ_ONLY),
        ("mg other R1", READ_ONLY),
    ] {
        assert_eq!(reader.ask(line), refusal, "{line}");
    }
    for (line, refusal) in [
        ("stats conns", NOT_ALLOWED),
        ("stats settings", NOT_ALLOWED),
        ("stats cachedump 1 0", NOT_ALLOWED),
        ("stats detail dump", NOT_ALLOWED),
        ("get shop:a other", OUTSIDE),
        ("mg b3RoZXI= v b", OUTSIDE),
    ] {
        assert_eq!(shop.ask(line), refusal, "{line}");
    }
    assert_eq!(shop.ask_all(b"mg c2hvcDph v b\r\n"), ["VA 1", "1"]);
    assert!(reader.ask_all(b"lru_crawler metadump all\r\n").len() == 3);
    // A line that is answered while it arrives ends where the first other key is.
    let many = " shop:a".repeat(30_000);
    let long = format!("get{many} other{many}\r\n");
    let lines = shop.ask_all(long.as_bytes());
    assert_eq!(lines.last().map(String::as_str), Some(OUTSIDE));
    assert!(
        !lines.iter().any(|line| line.starts_with("VALUE other")),
        "{} lines",
        lines.len()
    );
    // Without an answer, and still without an effect.
    let requests = b"set other 0 0 1 noreply\r\n2\r\ndelete other noreply\r\nincr other 1 noreply\r\n";
    assert_eq!((shop.ask_all(requests), reader.ask_all(requests)), (Vec::new(), Vec::new()));
    // A value that is too large deletes the item of its key, if its sender might.
    let large = |key: &str| format!("set {key} 0 0 9000\r\n{}\r\n", "x".repeat(9000));
    for (is_reader, key) in [(false, "other"), (true, "other"), (true, "shop:a")] {
        let client = if is_reader { &mut reader } else { &mut shop };
        assert_eq!(
            client.ask_all(large(key).as_bytes()),
            ["SERVER_ERROR object too large for cache"]
        );
        assert_eq!(ann.ask_all(format!("get {key}\r\n").as_bytes())[1], "1");
    }
    shop.ask_all(large("shop:a").as_bytes());
    assert_eq!(ann.ask("get shop:a"), "END");
}

#[test]
fn a_reader_does_not_take_a_stale_item_over() {
    let server = Running::start("ann:x\nreader:x:ro\n", |_| ());
    let (mut ann, mut reader) = (server.log_in("ann", "x"), server.log_in("reader", "x"));
    assert_eq!(ann.ask("set k 0 0 1\r\n1"), "STORED");
    assert_eq!(ann.ask("md k I"), "HD");
    for _ in 0..2 {
        assert_eq!(reader.ask("mg k s"), "HD s1 X", "it wins nothing");
    }
    assert_eq!(ann.ask("mg k s"), "HD s1 X W", "a user that may refresh it wins");
    assert_eq!(reader.ask("mg k s"), "HD s1 Z X");
}

/// One random request of any kind in the text protocol, about a key that may have the prefix or not.
fn request(random: &mut Random, keys: &[&str]) -> Vec<u8> {
    let key = keys[random.index(keys.len())];
    let other = keys[random.index(keys.len())];
    let noreply = ["", " noreply"][random.index(2)];
    let verbs = [
        "set", "add", "replace", "append", "prepend", "cas", "delete", "incr", "decr", "touch",
    ];
    let verb = verbs[random.index(verbs.len())];
    match random.below(8) {
        0 => format!("{} {key} {other}\r\n", ["get", "gets", "gat 0", "gats 5000"][random.index(4)]),
        1..=3 => match verb {
            "delete" => format!("delete {key}{noreply}\r\n"),
            "incr" | "decr" | "touch" => format!("{verb} {key} 7000{noreply}\r\n"),
            "cas" => format!("cas {key} 0 0 1 {}{noreply}\r\n5\r\n", random.below(9)),
            _ => format!("{verb} {key} 0 0 1{noreply}\r\n5\r\n"),
        },
        4 => format!(
            "mg {key} {}\r\n",
            ["v", "s v t k", "v T9000", "N9000 v", "R9 c", "k q v u"][random.index(6)]
        ),
        5 => format!(
            "ms {key} 1 {}\r\n5\r\n",
            ["", "MA", "MP", "MR", "ME", "MA N5000", "I", "q"][random.index(8)]
        ),
        6 => format!("md {key} {}\r\n", ["", "I T1000", "q", "x"][random.index(4)]),
        _ => format!("{} {key} {}\r\n", ["ma", "me"][random.index(2)], ["", "MD"][random.index(2)]),
    }
    .into_bytes()
}

/// The same in the binary protocol.
fn random_packet(random: &mut Random, keys: &[&str]) -> Vec<u8> {
    let key = keys[random.index(keys.len())].as_bytes();
    let opcode = [
        0x00, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x09, 0x0c, 0x0d, 0x0e, 0x0f, 0x11, 0x14, 0x15, 0x19, 0x1c, 0x1d, 0x1e, 0x23,
        0x24,
    ][random.index(21)];
    match opcode {
        0x01..=0x03 | 0x11 => packet(opcode, [&[0; 8], key, b"5"]),
        0x05 | 0x06 | 0x15 => packet(opcode, [&[0; 20], key, b""]),
        0x0e | 0x0f | 0x19 => packet(opcode, [b"", key, b"5"]),
        0x1c..=0x1e | 0x23 | 0x24 => packet(opcode, [&[0, 0, 9, 0], key, b""]),
        _ => packet(opcode, [b"", key, b""]),
    }
}

#[test]
fn random_requests_neither_see_nor_change_what_is_outside_the_prefix() {
    const REQUESTS: usize = 4000;
    /// The value of every item that a user may not use.
    const SECRET: &str = "98765432109";
    let seed = Random::seed_for("random_requests_neither_see_nor_change_what_is_outside_the_prefix");
    let mut random = Random::new(seed);
    let server = Running::start("ann:x\nshop:x:rw:prefix=shop:\nreader:x:ro:prefix=shop:\n", |_| ());
    let mut ann = server.log_in("ann", "x");
    let outside = ["shop", "shop;a", "Shop:a", "other", "sho", "shop%3Aa", "xshop:a"];
    let inside = ["shop:", "shop:a", "shop:b", "shop:c"];
    for key in outside {
        assert_eq!(ann.ask(&format!("set {key} 3 1000 {}\r\n{SECRET}", SECRET.len())), "STORED");
    }
    let keys: Vec<&str> = inside.iter().chain(&outside).copied().collect();
    // The CAS unique changes with every change, and the second shows the exptime to within this test's time.
    let state = |ann: &mut Client<TcpStream>, keys: &[&str]| -> Vec<Vec<String>> {
        let mut ask = |key: &&str| ann.ask_all(format!("gets {key}\r\nmg {key} s f c k\r\n").as_bytes());
        keys.iter().map(&mut ask).collect()
    };
    let before = state(&mut ann, &outside);
    for user in ["shop", "reader"] {
        // The first look at a stale item wins the right to store it again (W), and changes what later looks show.
        state(&mut ann, &inside);
        let readable = state(&mut ann, &inside);
        let mut client = server.log_in(user, "x");
        let mut binary = server.log_in_by_sasl(user, "x");
        let mut stored = 0;
        for _ in 0..REQUESTS / 20 {
            let requests: Vec<u8> = (0..20).flat_map(|_| request(&mut random, &keys)).collect();
            let lines = client.ask_all(&requests);
            stored += lines.iter().filter(|line| *line == "STORED").count();
            let seen = lines.iter().find(|line| line.contains(SECRET));
            assert_eq!(seen, None, "seed {seed}: {}", requests.escape_ascii());
            let mut requests: Vec<u8> = (0..20).flat_map(|_| random_packet(&mut random, &keys)).collect();
            requests.extend(packet(NOOP, [b"", b"", b""]));
            binary.send(&requests);
            loop {
                let mut header = [0; 24];
                binary.0.read_exact(&mut header).unwrap();
                let len = u32::from_be_bytes(header[8..12].try_into().unwrap());
                let mut body = vec![0; usize::try_from(len).unwrap()];
                binary.0.read_exact(&mut body).unwrap();
                let shows = body.windows(SECRET.len()).any(|part| part == SECRET.as_bytes());
                assert!(!shows, "seed {seed}: {}", requests.escape_ascii());
                if header[1] == NOOP {
                    break;
                }
            }
        }
        assert_eq!(state(&mut ann, &outside), before, "seed {seed}: by {user}");
        match user {
            "reader" => assert_eq!(state(&mut ann, &inside), readable, "seed {seed}: a reader changes nothing"),
            _ => assert!(stored > 40, "{stored} of its stores succeeded"),
        }
        // For the reader to read.
        ann.ask("set shop:a 0 0 1\r\n1");
    }
    // A user without a role finds them all: a random request reaches every key.
    let mut reached = Vec::new();
    while reached.len() < outside.len() {
        let lines = ann.ask_all(&request(&mut random, &outside));
        let found = lines.iter().filter_map(|line| line.strip_prefix("VALUE ")?.split(' ').next());
        for key in found {
            if !reached.contains(&key.to_owned()) {
                reached.push(key.to_owned());
            }
        }
    }
}
