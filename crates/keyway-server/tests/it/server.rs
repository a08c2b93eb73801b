//! The server from outside: sockets in, bytes out. What the enemy is, each test's name says.
//!
//! Nothing sleeps to wait for a state: a test polls for it with a deadline, or blocks in a read with a timeout.
//! Guards: P35

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use harness::Random;
use keyway_cache::{Cache, Options, Place};
use keyway_server::{Config, EventLoop, Handle, Server, UnixSocket};

/// Longest that any test waits for anything: only a failing test takes so long.
const PATIENCE: Duration = Duration::from_secs(10);

/// The event loop that `KEYWAY_TESTS_EVENT_LOOP` names.
fn event_loop() -> EventLoop {
    match std::env::var("KEYWAY_TESTS_EVENT_LOOP").as_deref() {
        Ok("epoll") => EventLoop::Epoll,
        Ok("io_uring") => EventLoop::IoUring,
        _ => EventLoop::Auto,
    }
}

struct Running {
    handle: Handle,
    address: SocketAddr,
    udp: Option<SocketAddr>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(change: impl FnOnce(&mut Config)) -> Self {
        Self::start_in(&Options::new(), change)
    }

    /// The same with a region that has these rules, apart from the largest item.
    fn start_in(options: &Options, change: impl FnOnce(&mut Config)) -> Self {
        let options = options.clone().memory(64 << 20).item_size_max(8 << 20);
        let cache = Cache::open(&Place::Memfd, &options).unwrap();
        let mut config = Config {
            tcp: vec!["127.0.0.1:0".parse().unwrap()],
            threads: 2,
            event_loop: event_loop(),
            ..Config::default()
        };
        change(&mut config);
        let server = Server::start(config, cache).unwrap();
        let (handle, address) = (server.handle(), server.tcp_addresses()[0]);
        let udp = server.udp_addresses().first().copied();
        Self {
            handle,
            address,
            udp,
            thread: Some(std::thread::spawn(move || server.run().unwrap())),
        }
    }

    fn connect(&self) -> Client<TcpStream> {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client(BufReader::new(stream))
    }

    fn stop(&mut self) {
        self.handle.shutdown();
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
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

struct Client<S: Read>(BufReader<S>);

impl<S: Read + Write> Client<S> {
    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line
    }

    /// A line without its end.
    fn said(&mut self) -> String {
        self.line().trim_end().to_owned()
    }

    /// Reads exactly what is expected.
    fn expect(&mut self, expected: &[u8]) {
        let mut got = vec![0; expected.len()];
        self.0.read_exact(&mut got).unwrap();
        assert!(
            got == expected,
            "{:?}\n!= {:?}",
            got[..got.len().min(300)].escape_ascii().to_string(),
            text(expected)
        );
    }

    fn ask(&mut self, request: &[u8], reply: &[u8]) {
        self.send(request);
        self.expect(reply);
    }

    /// The lines up to END.
    fn stats(&mut self, request: &str) -> Vec<String> {
        self.send(request.as_bytes());
        let mut lines = Vec::new();
        loop {
            match self.line() {
                line if line == "END\r\n" => return lines,
                line => lines.push(line.trim_end().to_owned()),
            }
        }
    }

    fn stat(&mut self, name: &str) -> String {
        let prefix = format!("STAT {name} ");
        let lines = self.stats("stats\r\n");
        lines
            .iter()
            .find_map(|line| line.strip_prefix(&prefix))
            .unwrap_or_else(|| panic!("no {name} in {lines:?}"))
            .to_owned()
    }

    fn is_closed(&mut self) -> bool {
        match self.0.read(&mut [0]) {
            Ok(count) => count == 0,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }
}

fn text(bytes: &[u8]) -> String {
    bytes[..bytes.len().min(300)].escape_ascii().to_string()
}

/// Polls until `done`.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn socket_path(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("keyway-server-{}-{name}", std::process::id()))
}

#[test]
fn the_common_commands_answer_over_tcp_and_unix() {
    let path = socket_path("both");
    let mut server = Running::start(|config| {
        config.unix = Some(UnixSocket {
            path: path.clone(),
            mode: 0o700,
        })
    });
    let mut tcp = server.connect();
    let stream = UnixStream::connect(&path).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut unix = Client(BufReader::new(stream));
    tcp.ask(b"set k 7 0 5\r\nhello\r\n", b"STORED\r\n");
    unix.ask(b"get k\r\n", b"VALUE k 7 5\r\nhello\r\nEND\r\n");
    unix.ask(b"mg k s v f\r\n", b"VA 5 s5 f7\r\nhello\r\n");
    unix.ask(b"delete k\r\nget k\r\n", b"DELETED\r\nEND\r\n");
    tcp.ask(b"mn\r\n", b"MN\r\n");
    tcp.ask(b"version\r\n", b"VERSION 1.6.45\r\n");
    tcp.ask(b"nonsense\r\n", b"ERROR\r\n");
    tcp.send(b"quit\r\n");
    assert!(tcp.is_closed());
    server.stop();
    assert!(!path.exists(), "the socket file stays behind");
}

#[test]
fn a_hundred_requests_in_one_packet_are_answered_in_order() {
    let server = Running::start(|_| ());
    let mut client = server.connect();
    let mut requests = Vec::new();
    let mut replies = Vec::new();
    for i in 0..100 {
        requests.extend(format!("set k{i} 0 0 3\r\n{i:03}\r\nget k{i}\r\n").bytes());
        replies.extend(format!("STORED\r\nVALUE k{i} 0 3\r\n{i:03}\r\nEND\r\n").bytes());
    }
    client.ask(&requests, &replies);
    assert_ne!(client.stat("conn_yields"), "0");
}

#[test]
fn requests_may_come_a_byte_at_a_time() {
    let server = Running::start(|_| ());
    let mut client = server.connect();
    client.0.get_mut().set_nodelay(true).unwrap();
    for byte in b"set k 1 0 5\r\nab\r\nc\r\nget k\r\nms m 2\r\nhi\r\nmg m v\r\n" {
        client.send(&[*byte]);
    }
    client.expect(b"STORED\r\nVALUE k 1 5\r\nab\r\nc\r\nEND\r\nHD\r\nVA 2\r\nhi\r\n");
}

#[test]
fn requests_may_be_cut_anywhere() {
    let server = Running::start(|_| ());
    let mut client = server.connect();
    client.0.get_mut().set_nodelay(true).unwrap();
    let requests = b"set a 0 0 5\r\nhello\r\nget a b\r\nset a 0 0 2\r\nlongnonsense\r\nms m 3 T0\r\nabc\r\nmg m v\r\n\
                     set m 0 0 2 noreply\r\nxy\r\ngets c\r\nincr a 1\r\nmn\r\n";
    let replies = b"STORED\r\nVALUE a 0 5\r\nhello\r\nEND\r\nCLIENT_ERROR bad data chunk\r\nERROR\r\nHD\r\nVA 3\r\nabc\r\n\
                    END\r\nCLIENT_ERROR cannot increment or decrement non-numeric value\r\nMN\r\n";
    for cut in 0..=requests.len() {
        let (first, second) = requests.split_at(cut);
        client.send(first);
        // The rest comes later, as far as that can be had without waiting long.
        std::thread::sleep(Duration::from_micros(500));
        client.ask(second, replies);
    }
}

#[test]
fn large_values_go_both_ways() {
    let server = Running::start(|_| ());
    let mut client = server.connect();
    let value: Vec<u8> = (0..4_000_000_u32).map(|i| (i % 253).try_into().unwrap()).collect();
    let head = format!("set big 0 0 {}\r\n", value.len());
    client.ask(&[head.as_bytes(), &value, b"\r\n"].concat(), b"STORED\r\n");
    let head = format!("VALUE big 0 {}\r\n", value.len());
    client.ask(b"get big\r\n", &[head.as_bytes(), &value, b"\r\nEND\r\n"].concat());
}

#[test]
fn a_value_above_the_limit_is_swallowed_and_the_connection_goes_on() {
    let server = Running::start(|_| ());
    let mut client = server.connect();
    let value = vec![b'x'; 9 << 20];
    let head = format!("set big 0 0 {}\r\n", value.len());
    client.send(&[head.as_bytes(), &value, b"\r\nmn\r\n"].concat());
    client.expect(b"SERVER_ERROR object too large for cache\r\nMN\r\n");
}

#[test]
fn a_client_that_never_reads_is_not_read_either_and_others_are_served() {
    let server = Running::start(|config| config.threads = 1);
    let mut other = server.connect();
    let value = vec![b'v'; 100_000];
    other.ask(&[b"set k 0 0 100000\r\n", &value[..], b"\r\n"].concat(), b"STORED\r\n");

    let mut greedy = server.connect();
    greedy.0.get_mut().set_nonblocking(true).unwrap();
    let requests = b"get k\r\n".repeat(1000);
    // It asks until its own socket is full: by then the server has stopped reading.
    let mut asked = 0;
    let mut quiet_since = Instant::now();
    while quiet_since.elapsed() < Duration::from_millis(50) {
        match greedy.0.get_mut().write(&requests[asked % 7..]) {
            Ok(count) => {
                asked += count;
                quiet_since = Instant::now();
            }
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        other.ask(b"mn\r\n", b"MN\r\n");
        assert!(asked < 1 << 30, "the server takes requests without end");
    }
    let states = other.stats("stats conns\r\n");
    assert!(states.iter().any(|line| line.ends_with("state conn_mwrite")), "{states:?}");
    // What the server holds for it: what its socket takes, and little more than a mebibyte.
    let executed: u64 = other.stat("cmd_get").parse().unwrap();
    assert!(executed < 200, "{executed} replies of 100 kB were made");

    // When it reads at last, all its answers are there.
    greedy.0.get_mut().set_nonblocking(false).unwrap();
    let reply = [b"VALUE k 0 100000\r\n", &value[..], b"\r\nEND\r\n"].concat();
    let whole_requests = asked / 7;
    let mut got = vec![0; reply.len()];
    for _ in 0..whole_requests.min(300) {
        greedy.0.read_exact(&mut got).unwrap();
        assert!(got == reply);
    }
}

#[test]
fn a_multi_get_larger_than_the_output_limit_comes_whole() {
    let server = Running::start(|_| ());
    let mut client = server.connect();
    let value = vec![b'v'; 500_000];
    let mut replies = Vec::new();
    for i in 0..20 {
        let head = format!("set k{i} 0 0 {}\r\n", value.len());
        client.ask(&[head.as_bytes(), &value, b"\r\n"].concat(), b"STORED\r\n");
        replies.extend_from_slice(format!("VALUE k{i} 0 {}\r\n", value.len()).as_bytes());
        replies.extend_from_slice(&value);
        replies.extend_from_slice(b"\r\n");
    }
    let keys: String = (0..20).map(|i| format!(" k{i}")).collect();
    client.ask(
        format!("get{keys}\r\nmn\r\n").as_bytes(),
        &[&replies[..], b"END\r\nMN\r\n"].concat(),
    );
}

/// The memory of keys that wait in the input is fetched before their requests are decoded. Its enemy: a request that is then answered
/// twice, not at all, or by what was there before the request in front of it.
#[test]
fn requests_sent_together_are_answered_as_one_after_the_other() {
    let server = Running::start(|_| ());
    let (mut together, mut alone) = (server.connect(), server.connect());
    let mut random = Random::new(Random::seed_for("requests sent together"));
    let large = "v".repeat(40_000);
    for round in 0..40 {
        let mut requests = Vec::new();
        for _ in 0..random.next() % 70 {
            let mut key = || format!("-{round}-{}", random.next() % 9);
            let (a, b) = (key(), key());
            requests.push(match random.next() % 10 {
                0 => format!("set P{a} 0 0 1\r\n7\r\n"),
                // A value that looks like requests.
                1 => format!("set P{a} 3 0 11\r\nget X\r\nmn\r\n\r\n"),
                2 => format!("set P{a} 0 0 {}\r\n{large}\r\n", large.len()),
                3 => format!("delete P{a}\r\n"),
                4 => format!("incr P{a} 5\r\n"),
                5 => format!("mg P{a} v t\r\n"),
                6 => format!("ms P{a} 3\r\nabc\r\n"),
                7 => format!("gat 0 P{a} P{b}\r\n"),
                8 => format!("get{}\r\n", format!(" P{a} P{b} P-none P{a}").repeat(12)),
                _ => format!("get P{a}\r\n"),
            });
        }
        let mut due = Vec::new();
        for request in &requests {
            let request = request.replace('P', "alone");
            alone.send(format!("{request}mn\r\n").as_bytes());
            loop {
                let line = alone.line();
                if line == "MN\r\n" {
                    break;
                }
                due.extend_from_slice(line.replace("alone", "together").as_bytes());
            }
        }
        due.extend_from_slice(b"MN\r\n");
        together.send((requests.concat().replace('P', "together") + "mn\r\n").as_bytes());
        together.expect(&due);
    }
}

#[test]
fn a_line_of_keys_longer_than_any_buffer_is_answered_whole() {
    const KEYS: usize = 60_000;
    let server = Running::start(|_| ());
    let mut client = server.connect();
    client.ask(b"set hit 7 0 3\r\nabc\r\n", b"STORED\r\n");
    for (name, cas) in [("get", false), ("gets", true), ("gat 0", false)] {
        // Every third key is there.
        let keys: String = (0..KEYS)
            .map(|n| if n % 3 == 0 { " hit".to_owned() } else { format!(" miss:{n}") })
            .collect();
        let line = format!("{name}{keys}\r\nmn\r\n");
        let writer = client.0.get_ref().try_clone().unwrap();
        let sending = std::thread::spawn(move || {
            let mut writer = writer;
            // In pieces that cut words anywhere.
            line.as_bytes()
                .chunks(7919)
                .for_each(|piece| writer.write_all(piece).unwrap());
        });
        for _ in 0..KEYS / 3 {
            let head = client.said();
            assert!(
                head.starts_with("VALUE hit 7 3") && (head.matches(' ').count() == 4) == cas,
                "{head}"
            );
            assert_eq!(client.said(), "abc");
        }
        assert_eq!((client.said().as_str(), client.said().as_str()), ("END", "MN"));
        sending.join().unwrap();
    }
    // A long key far behind ends the answer, and the next command is one again.
    let line = [
        b"get".as_slice(),
        &b" hit".repeat(KEYS),
        b" ",
        &[b'k'; 300],
        b" hit\r\nmn\r\n",
    ]
    .concat();
    client.send(&line);
    let mut values = 0;
    loop {
        match client.said().as_str() {
            "VALUE hit 7 3" => values += 1,
            "abc" => {}
            other => {
                assert_eq!(other, "CLIENT_ERROR bad command line format");
                break;
            }
        }
    }
    assert!(values > KEYS / 2, "{values}");
    assert_eq!(client.said(), "MN");
}

#[test]
fn memory_that_clients_hold_makes_them_wait_and_then_go_on() {
    const LEN: usize = 700_000;
    let server = Running::start(|config| config.connection_memory = 16 << 20);
    let part = [format!("set k 0 0 {LEN}\r\n").as_bytes(), &vec![b'x'; LEN - 1]].concat();
    let mut clients: Vec<_> = (0..24).map(|_| server.connect()).collect();
    let senders: Vec<_> = clients
        .iter()
        .map(|client| {
            let (mut writer, part) = (client.0.get_ref().try_clone().unwrap(), part.clone());
            std::thread::spawn(move || writer.write_all(&[&part, b"x\r\n".as_slice()].concat()))
        })
        .collect();
    // Each is a request that will be complete: none is in another's way for long, and all are stored.
    for client in &mut clients {
        client.expect(b"STORED\r\n");
    }
    senders.into_iter().for_each(|sender| sender.join().unwrap().unwrap());
    let mut client = server.connect();
    assert_eq!(client.stat("keyway_connection_memory_limit"), (16 << 20).to_string());
    until("what was held is given back", || {
        client.stat("keyway_connection_memory") == "0"
    });
}

#[test]
fn a_client_that_asks_and_half_closes_gets_all_its_answers() {
    let server = Running::start(|_| ());
    let mut client = server.connect();
    client.send(
        &[
            b"set k 0 0 100000\r\n",
            &[b'v'; 100_000][..],
            b"\r\n",
            &b"get k\r\n".repeat(100),
        ]
        .concat(),
    );
    client.0.get_mut().shutdown(std::net::Shutdown::Write).unwrap();
    let mut all = Vec::new();
    client.0.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), 8 + 100 * (18 + 100_000 + 2 + 5));
}

#[test]
fn idle_connections_are_closed_and_counted() {
    let server = Running::start(|config| config.idle_timeout = Duration::from_millis(50));
    let mut idle = server.connect();
    idle.ask(b"mn\r\n", b"MN\r\n");
    assert!(idle.is_closed());
    assert_eq!(server.connect().stat("idle_kicks"), "1");
}

#[test]
fn after_a_long_silence_requests_are_answered_as_before() {
    let mut server = Running::start(|_| ());
    let mut clients: Vec<_> = (0..40).map(|_| server.connect()).collect();
    for client in &mut clients {
        client.ask(b"mn\r\n", b"MN\r\n");
    }
    // Long enough for the ring to have let go of them; some ask while it does.
    for pause_ms in [5_600, 900, 1_500, 0] {
        std::thread::sleep(Duration::from_millis(pause_ms));
        for client in clients.iter_mut().take(20) {
            client.ask(b"set k 0 0 2\r\nhi\r\nget k\r\n", b"STORED\r\nVALUE k 0 2\r\nhi\r\nEND\r\n");
        }
    }
    for client in &mut clients {
        client.ask(b"get k\r\n", b"VALUE k 0 2\r\nhi\r\nEND\r\n");
    }
    drop(clients.split_off(20));
    server.stop();
    assert!(clients.iter_mut().all(Client::is_closed));
}

#[test]
fn above_the_limit_connections_get_an_error_and_are_closed() {
    let server = Running::start(|config| config.connections_max = 2);
    let mut first = server.connect();
    let mut second = server.connect();
    first.ask(b"mn\r\n", b"MN\r\n");
    second.ask(b"mn\r\n", b"MN\r\n");
    let mut third = server.connect();
    assert_eq!(third.line(), "ERROR Too many open connections\r\n");
    assert!(third.is_closed());
    assert_eq!(first.stat("rejected_connections"), "1");
    drop(second);
    until("a place is free", || first.stat("curr_connections") == "1");
    server.connect().ask(b"mn\r\n", b"MN\r\n");
}

#[test]
fn without_maxconns_fast_the_surplus_waits_its_turn() {
    let server = Running::start(|config| {
        config.connections_max = 1;
        config.connections_fast = false;
    });
    let mut first = server.connect();
    first.ask(b"mn\r\n", b"MN\r\n");
    let mut second = server.connect();
    second.send(b"mn\r\n");
    until("accepting stops", || first.stat("accepting_conns") == "0");
    assert_eq!(first.stat("listen_disabled_num"), "1");
    drop(first);
    second.expect(b"MN\r\n");
}

#[test]
fn thousands_of_connections_come_and_go() {
    // On a busy machine the server may still have all of them open when the last one comes.
    let server = Running::start(|config| config.connections_max = 4096);
    for _ in 0..2000 {
        drop(TcpStream::connect(server.address).unwrap());
    }
    let mut client = server.connect();
    until("they are gone", || client.stat("curr_connections") == "1");
    assert_eq!(client.stat("total_connections"), "2001");
}

#[test]
fn a_shutdown_answers_what_has_arrived() {
    let mut server = Running::start(|_| ());
    let mut idle = server.connect();
    idle.ask(b"mn\r\n", b"MN\r\n");
    let mut busy = server.connect();
    busy.ask(b"set k 0 0 1\r\nv\r\n", b"STORED\r\n");
    busy.send(&b"get k\r\n".repeat(200));
    server.stop();
    busy.expect(&b"VALUE k 0 1\r\nv\r\nEND\r\n".repeat(200));
    assert!(busy.is_closed());
    assert!(idle.is_closed());
    assert!(TcpStream::connect(server.address).is_err());
}

#[test]
fn a_client_that_does_not_read_cannot_hold_up_a_shutdown() {
    let mut server = Running::start(|config| config.shutdown_grace = Duration::ZERO);
    let mut client = server.connect();
    let value = vec![b'v'; 1_000_000];
    client.ask(&[b"set k 0 0 1000000\r\n", &value[..], b"\r\n"].concat(), b"STORED\r\n");
    client.send(&b"get k\r\n".repeat(30));
    server.stop();
}

#[test]
fn the_shutdown_command_needs_permission() {
    let server = Running::start(|_| ());
    server
        .connect()
        .ask(b"shutdown\r\n", b"SERVER_ERROR: shutdown not enabled\r\n");
    let mut server = Running::start(|config| config.shutdown_enabled = true);
    let mut client = server.connect();
    client.send(b"shutdown graceful\r\n");
    assert!(client.is_closed());
    server.thread.take().unwrap().join().unwrap();
}

#[test]
fn switches_forbid_their_commands() {
    let server = Running::start_in(&Options::new().flush(false), |config| {
        config.dump_enabled = false;
        config.watch_enabled = false;
    });
    let mut client = server.connect();
    client.ask(b"flush_all\r\n", b"CLIENT_ERROR flush_all not allowed\r\n");
    client.ask(b"lru_crawler metadump all\r\n", b"ERROR metadump not allowed\r\n");
    client.ask(b"lru_crawler mgdump all\r\n", b"ERROR key dump not allowed\r\n");
    client.ask(b"stats cachedump 1 0\r\n", b"CLIENT_ERROR stats cachedump not allowed\r\n");
    client.ask(b"watch\r\n", b"CLIENT_ERROR watch commands not allowed\r\n");
}

#[test]
fn strangers_are_kept_out_until_they_log_in() {
    let path = socket_path("users");
    std::fs::write(&path, "ann:secret\n").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let server = Running::start(|config| config.auth_file = Some(path.clone()));
    std::fs::remove_file(&path).unwrap();
    let mut client = server.connect();
    client.ask(b"get k\r\n", b"CLIENT_ERROR unauthenticated\r\n");
    client.ask(b"set x 0 0 9\r\nann wrong\r\n", b"CLIENT_ERROR authentication failure\r\n");
    client.ask(b"set x 0 0 10\r\nann secret\r\nget x\r\n", b"STORED\r\nEND\r\n");
    assert_eq!(
        (client.stat("auth_cmds"), client.stat("auth_errors")),
        ("2".to_owned(), "1".to_owned())
    );
}

#[test]
fn a_dump_has_every_item_and_others_are_served_meanwhile() {
    let server = Running::start(|config| config.threads = 1);
    let mut client = server.connect();
    for i in 0..3000 {
        client.send(format!("set k{i} 0 0 1 noreply\r\nv\r\n").as_bytes());
    }
    client.ask(b"mn\r\n", b"MN\r\n");
    let mut other = server.connect();
    client.send(b"lru_crawler metadump all\r\n");
    other.ask(b"mn\r\n", b"MN\r\n");
    let mut keys: Vec<String> = Vec::new();
    loop {
        let line = client.line();
        if line == "END\r\n" {
            break;
        }
        assert!(line.contains(" exp=-1 ") && line.contains(" cls=1 "), "{line}");
        keys.push(line.split(' ').next().unwrap().to_owned());
    }
    keys.sort();
    keys.dedup();
    assert_eq!(keys.len(), 3000);
    client.ask(b"mn\r\n", b"MN\r\n");
    assert_eq!(client.stats("stats cachedump 1 5\r\n").len(), 5);
}

#[test]
fn watchers_see_this_servers_traffic() {
    let server = Running::start(|_| ());
    let mut watcher = server.connect();
    watcher.ask(b"watch fetchers mutations deletions connevents\r\n", b"OK\r\n");
    let mut client = server.connect();
    client.ask(
        b"set a%b 0 9 2\r\nvv\r\nget a%b\r\ndelete a%b\r\n",
        b"STORED\r\nVALUE a%b 0 2\r\nvv\r\nEND\r\nDELETED\r\n",
    );
    for part in [
        "type=conn_new rip=127.0.0.1 ",
        // As memcached, which looks up what it is about to change.
        "type=item_get key=a%25b status=not_found ",
        "type=item_store key=a%25b status=stored cmd=set ttl=9 ",
        "type=item_get key=a%25b status=found ",
        "type=item_get key=a%25b status=found ",
        "type=deleted key=a%25b cmd=delete ",
    ] {
        let line = watcher.line();
        assert!(line.starts_with("ts=") && line.contains(part), "{line} has no {part}");
    }
    drop(watcher);
    until("the watcher is gone", || client.stat("log_watchers") == "0");
}

#[test]
fn stats_have_what_exporters_need() {
    let server = Running::start(|_| ());
    let mut client = server.connect();
    client.ask(b"set k 0 0 1\r\nv\r\nget k\r\n", b"STORED\r\nVALUE k 0 1\r\nv\r\nEND\r\n");
    let general = client.stats("stats\r\n");
    for name in [
        "cmd_set 1",
        "get_hits 1",
        "curr_items 1",
        "version 1.6.45",
        "accepting_conns 1",
        "threads 2",
        "cas_badval 0",
    ] {
        assert!(general.contains(&format!("STAT {name}")), "{name} in {general:?}");
    }
    let slabs = client.stats("stats slabs\r\n");
    for name in ["1:cmd_set 1", "1:cas_hits 0", "1:cas_badval 0", "active_slabs 1"] {
        assert!(slabs.contains(&format!("STAT {name}")), "{name} in {slabs:?}");
    }
    assert!(
        !slabs.iter().any(|line| line.contains("mem_requested")),
        "exporters want it in stats items only: {slabs:?}"
    );
    assert!(client.stats("stats items\r\n").contains(&"STAT items:1:number 1".to_owned()));
    until("the items have an age", || {
        let items = client.stats("stats items\r\n");
        ["age", "age_hot"].iter().all(|name| {
            let age = items
                .iter()
                .find_map(|line| line.strip_prefix(&format!("STAT items:1:{name} ")).map(str::to_owned));
            age.is_some_and(|age| age.parse::<u32>().is_ok_and(|age| (1..60).contains(&age)))
        })
    });
    let settings = client.stats("stats settings\r\n");
    for name in [
        "maxconns 1024",
        "item_size_max 8388608",
        // Exporters show these eight, if the first one is yes.
        "lru_crawler yes",
        "lru_crawler_sleep 0",
        "lru_crawler_tocrawl 0",
        "lru_maintainer_thread no",
        "hot_lru_pct 0",
        "warm_lru_pct 0",
        "hot_max_factor 0.00",
        "warm_max_factor 0.00",
    ] {
        assert!(settings.contains(&format!("STAT {name}")), "{name} in {settings:?}");
    }
    client.ask(b"stats reset\r\n", b"RESET\r\n");
    assert_eq!(
        (client.stat("cmd_set"), client.stat("curr_items")),
        ("0".to_owned(), "1".to_owned())
    );
    client.ask(b"stats nonsense\r\n", b"ERROR\r\n");
    client.ask(b"stats detail\r\n", b"CLIENT_ERROR usage: stats detail on|off|dump\r\n");
    client.ask(
        b"stats detail on\r\nget a:b\r\nstats detail dump\r\n",
        b"OK\r\nEND\r\nPREFIX a get 1 hit 0 set 0 del 0\r\nEND\r\n",
    );
}

#[test]
fn garbage_never_stops_the_server() {
    let server = Running::start(|_| ());
    let mut random = Random::new(1);
    for _ in 0..50 {
        let garbage = random.bytes(5000);
        let mut client = server.connect();
        let _ = client.0.get_mut().write_all(&garbage);
    }
    server.connect().ask(b"mn\r\n", b"MN\r\n");
}

/// A UDP client: requests in datagrams, answers put together again.
struct Datagrams(UdpSocket);

impl Datagrams {
    fn to(address: SocketAddr) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(socket)
    }

    fn send(&self, id: u16, payload: &[u8]) {
        let mut datagram = id.to_be_bytes().to_vec();
        datagram.extend_from_slice(&[0, 0, 0, 1, 0, 0]);
        datagram.extend_from_slice(payload);
        self.0.send(&datagram).unwrap();
    }

    /// The answer to the request of this number, every datagram of which must be in its place.
    fn answer(&self, id: u16) -> Vec<u8> {
        let mut answer = Vec::new();
        let mut datagram = [0; 2000];
        for sequence in 0_u16.. {
            let len = self.0.recv(&mut datagram).unwrap();
            let total = u16::from_be_bytes([datagram[4], datagram[5]]);
            assert_eq!(datagram[..2], id.to_be_bytes());
            assert_eq!((&datagram[2..4], &datagram[6..8]), (&sequence.to_be_bytes()[..], &[0, 0][..]));
            assert!(len <= 1400 && len > 8, "{len}");
            answer.extend_from_slice(&datagram[8..len]);
            if sequence + 1 == total {
                break;
            }
            assert_eq!(len, 1400, "a datagram before the last one is full");
        }
        answer
    }

    fn ask(&self, payload: &[u8], answer: &[u8]) {
        self.send(0x1234, payload);
        assert_eq!(text(&self.answer(0x1234)), text(answer));
    }
}

fn with_udp(allow: &[&str], change: impl FnOnce(&mut Config)) -> (Running, SocketAddr) {
    let mut server = Running::start(|config| {
        config.udp = vec!["127.0.0.1:0".parse().unwrap()];
        config.udp_answer_max = 1 << 20;
        if !allow.is_empty() {
            config.udp_allow = allow.iter().map(|network| network.parse().unwrap()).collect();
        }
        change(config);
    });
    let address = server.udp.take().unwrap();
    (server, address)
}

#[test]
fn a_datagram_is_answered_by_one_message_whatever_it_asks_for() {
    let (server, address) = with_udp(&[], |_| ());
    let udp = Datagrams::to(address);
    udp.ask(b"set a 5 0 3\r\nabc\r\n", b"STORED\r\n");
    udp.ask(
        b"get a b a\r\nmg a v\r\nmn\r\n",
        b"VALUE a 5 3\r\nabc\r\nVALUE a 5 3\r\nabc\r\nEND\r\nVA 3\r\nabc\r\nMN\r\n",
    );
    server.connect().ask(b"get a\r\n", b"VALUE a 5 3\r\nabc\r\nEND\r\n");
    for len in [1369, 1370, 3000, 60_000] {
        let value = vec![b'x'; len];
        udp.ask(
            &[format!("set e 0 0 {len}\r\n").as_bytes(), &value, b"\r\n"].concat(),
            b"STORED\r\n",
        );
        let answer = [format!("VALUE e 0 {len}\r\n").as_bytes(), &value, b"\r\nEND\r\n"].concat();
        udp.ask(b"get e\r\n", &answer);
    }
}

#[test]
fn what_is_no_whole_request_is_dropped_and_spoils_nothing_for_others() {
    let (server, address) = with_udp(&[], |config| config.threads = 1);
    let (udp, other) = (Datagrams::to(address), Datagrams::to(address));
    udp.ask(b"set a 0 0 1\r\n1\r\n", b"STORED\r\n");
    for dropped in [&b"get a"[..], b"set a 0 0 10\r\nabc", b"\r", b"set a 0 0 1\r\n"] {
        udp.send(1, dropped);
        other.ask(b"get a\r\n", b"VALUE a 0 1\r\n1\r\nEND\r\n");
    }
    for raw in [
        &b""[..],
        b"x",
        b"\0\0\0\0\0\x01\0\0",
        b"\0\0\0\0\0\x02\0\0get a\r\n",
        b"\0\0\0\0\0\0\0\0get a\r\n",
    ] {
        udp.0.send(raw).unwrap();
    }
    // an answer without a byte is no datagram, and what follows `quit` is not looked at
    udp.send(2, b"quit\r\nget a\r\n");
    udp.ask(b"mn\r\nquit\r\nget a\r\n", b"MN\r\n");
    assert_eq!(server.connect().stat("keyway_udp_dropped"), "9");
}

/// Else two servers, or a server and its own echo, would send each other errors for ever.
#[test]
fn an_error_is_not_answered_by_an_error() {
    let (server, address) = with_udp(&[], |config| config.threads = 1);
    let udp = Datagrams::to(address);
    for error in [
        &b"ERROR\r\n"[..],
        b"CLIENT_ERROR bad data chunk\r\n",
        b"SERVER_ERROR out of memory\r\nget a\r\n",
    ] {
        udp.send(1, error);
    }
    udp.send(2, b"VALUE a 0 1\r\n");
    assert_eq!(text(&udp.answer(2)), "ERROR\\r\\n");
    assert_eq!(server.connect().stat("keyway_udp_dropped"), "3");
}

#[test]
fn datagrams_from_elsewhere_are_neither_executed_nor_answered() {
    let (server, address) = with_udp(&["127.0.0.2/32"], |config| config.threads = 1);
    let stranger = Datagrams::to(address);
    stranger.send(1, b"set a 0 0 1\r\n1\r\n");
    let friend = UdpSocket::bind("127.0.0.2:0").unwrap();
    friend.connect(address).unwrap();
    friend.set_read_timeout(Some(PATIENCE)).unwrap();
    Datagrams(friend).ask(b"get a\r\n", b"END\r\n");
    stranger.0.set_nonblocking(true).unwrap();
    assert_eq!(stranger.0.recv(&mut [0; 100]).unwrap_err().kind(), ErrorKind::WouldBlock);
    let mut client = server.connect();
    assert_eq!(
        (client.stat("keyway_udp_refused").as_str(), client.stat("cmd_set").as_str()),
        ("1", "0")
    );
}

#[test]
fn a_source_above_its_rate_waits_and_another_is_served() {
    for event_loop in [EventLoop::Epoll, event_loop()] {
        let path = socket_path("rates");
        let server = Running::start(|config| {
            config.event_loop = event_loop;
            config.request_rate = Some((20, 10));
            config.unix = Some(UnixSocket {
                path: path.clone(),
                mode: 0o700,
            });
        });
        let mut fast = server.connect();
        fast.send(&b"mn\r\n".repeat(30));
        let mut other = Client(BufReader::new(UnixStream::connect(&path).unwrap()));
        other.ask(b"mn\r\n", b"MN\r\n");
        // Nothing is refused: all are answered in the end.
        fast.expect(&b"MN\r\n".repeat(30));
        let pauses: u64 = other.stat("keyway_rate_pauses").parse().unwrap();
        assert!((1..1000).contains(&pauses), "{pauses}");
    }
}

#[test]
fn datagrams_above_the_rate_of_their_source_are_dropped_and_counted() {
    let path = socket_path("over-rate");
    let (_server, address) = with_udp(&[], |config| {
        config.request_rate = Some((1, 5));
        config.unix = Some(UnixSocket {
            path: path.clone(),
            mode: 0o700,
        });
    });
    let udp = Datagrams::to(address);
    // Each of its requests counts, so this source has used up its burst, and owes most of a minute.
    udp.send(1, &b"mn\r\n".repeat(60));
    assert_eq!(udp.answer(1), b"MN\r\n".repeat(60));
    udp.send(2, b"mn\r\n");
    let mut other = Client(BufReader::new(UnixStream::connect(&path).unwrap()));
    let deadline = Instant::now() + PATIENCE;
    while other.stat("keyway_udp_over_rate") != "1" {
        assert!(Instant::now() < deadline);
    }
}

#[test]
fn endless_answers_need_a_connection_and_long_ones_end_with_the_reason() {
    let (server, address) = with_udp(&[], |config| config.shutdown_enabled = true);
    let udp = Datagrams::to(address);
    for request in [
        &b"watch\r\n"[..],
        b"lru_crawler metadump all\r\n",
        b"lru_crawler mgdump all\r\n",
        b"shutdown\r\n",
    ] {
        udp.ask(request, b"SERVER_ERROR not over UDP; use TCP or a Unix socket\r\n");
    }
    let mut client = server.connect();
    client.ask(
        &[b"set big 0 0 700000\r\n", &vec![b'x'; 700_000][..], b"\r\n"].concat(),
        b"STORED\r\n",
    );
    // more datagrams than this client's socket may hold at once: what matters is that the server does not go on for ever
    udp.send(1, &[b"get", &b" big".repeat(1000)[..], b"\r\n"].concat());
    udp.send(2, &b"get big\r\n".repeat(1000));
    let written = || -> u64 { server.connect().stat("bytes_written").parse().unwrap() };
    let deadline = Instant::now() + PATIENCE;
    while written() < 2 * 700_000 {
        assert!(Instant::now() < deadline, "{}", written());
    }
    let fresh = Datagrams::to(address);
    fresh.ask(b"mn\r\n", b"MN\r\n");
    assert!(written() < 3 * 700_000);
}

#[test]
fn udp_sockets_are_shown_as_connections_and_go_with_the_server() {
    let (mut server, address) = with_udp(&[], |config| config.threads = 3);
    let mut client = server.connect();
    assert_eq!(client.stat("curr_connections"), "4");
    let settings = client.stats("stats settings\r\n");
    for line in [
        format!("STAT udpport {}", address.port()),
        "STAT num_threads_per_udp 3".to_owned(),
    ] {
        assert!(settings.contains(&line), "{line} in {settings:?}");
    }
    // Each worker opens its own when it begins.
    let deadline = Instant::now() + PATIENCE;
    let mut shown = || {
        let conns = client.stats("stats conns\r\n");
        conns
            .iter()
            .filter(|line| line.ends_with(&format!(":addr udp:{address}")))
            .count()
    };
    while shown() != 3 {
        assert!(Instant::now() < deadline, "{} of 3 sockets are shown", shown());
    }
    drop(client);
    server.stop();
    UdpSocket::bind(address).unwrap();
}

#[test]
fn a_udp_address_in_use_is_reported_at_the_start() {
    let (_server, address) = with_udp(&[], |_| ());
    let cache = Cache::open(&Place::Memfd, &Options::default()).unwrap();
    let config = Config {
        udp: vec![address],
        ..Config::default()
    };
    let error = Server::start(config, cache).err().unwrap().to_string();
    assert!(
        error.contains(&format!("udp {address}")) && error.contains("choose another"),
        "{error}"
    );
}

#[test]
fn the_memory_limit_follows_the_region_that_any_process_grows() {
    let path = PathBuf::from(format!("/dev/shm/keyway-test-{}-limit", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let options = Options::new().memory(8 << 20);
    let cache = Cache::open(&Place::Path(path.clone()), &options).unwrap();
    // Attached as another process is: what it knows of the region it finds out by itself.
    let other = Cache::open(&Place::Path(path.clone()), &options).unwrap();
    let config = Config {
        tcp: vec!["127.0.0.1:0".parse().unwrap()],
        threads: 2,
        event_loop: event_loop(),
        memory: options.memory.unwrap(),
        ..Config::default()
    };
    let server = Server::start(config, cache).unwrap();
    let mut running = Running {
        handle: server.handle(),
        address: server.tcp_addresses()[0],
        udp: None,
        thread: Some(std::thread::spawn(move || server.run().unwrap())),
    };
    let mut client = running.connect();
    let mut limits = || {
        let settings = client.stats("stats settings\r\n");
        let maxbytes = settings
            .iter()
            .find_map(|line| line.strip_prefix("STAT maxbytes "))
            .unwrap()
            .to_owned();
        (client.stat("limit_maxbytes"), maxbytes)
    };
    let both = |limit: u64| (limit.to_string(), limit.to_string());
    assert_eq!(limits(), both(8 << 20));
    other.grow(16 << 20).unwrap();
    let has = other.info().limit_bytes;
    assert!(has > 15 << 20);
    assert_eq!(limits(), both(has), "another process has grown it");
    running.connect().ask(b"cache_memlimit 32\r\n", b"OK\r\n");
    assert_eq!(limits(), both(32 << 20), "a client has");
    running.connect().ask(b"cache_memlimit 20\r\n", b"OK\r\n");
    assert_eq!(limits(), both(20 << 20), "a client has lowered it");
    other.limit(12 << 20).unwrap();
    let has = other.info().limit_bytes;
    assert_eq!(limits(), both(has), "another process has lowered it");
    running.connect().ask(b"cache_memlimit 32\r\n", b"OK\r\n");
    assert_eq!(limits(), both(32 << 20), "back");
    running.stop();
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn a_lower_memory_limit_evicts_in_the_background_and_gives_memory_back() {
    use std::os::unix::fs::MetadataExt;
    let path = PathBuf::from(format!("/dev/shm/keyway-test-{}-memlimit", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let options = Options::new().memory(64 << 20).server(true);
    let cache = Cache::open(&Place::Path(path.clone()), &options).unwrap();
    let config = || Config {
        tcp: vec!["127.0.0.1:0".parse().unwrap()],
        threads: 2,
        event_loop: event_loop(),
        memory: options.memory.unwrap(),
        ..Config::default()
    };
    let start = |cache| {
        let server = Server::start(config(), cache).unwrap();
        Running {
            handle: server.handle(),
            address: server.tcp_addresses()[0],
            udp: None,
            thread: Some(std::thread::spawn(move || server.run().unwrap())),
        }
    };
    let mut running = start(cache);
    let mut client = running.connect();
    let value = "v".repeat(10_000);
    for key in 0..6_000 {
        client.ask(
            format!("set key-{key} 0 0 {}\r\n{value}\r\n", value.len()).as_bytes(),
            b"STORED\r\n",
        );
    }
    let allocated = || std::fs::metadata(&path).unwrap().blocks() * 512;
    assert!(allocated() > 63 << 20);
    client.ask(b"cache_memlimit 24\r\n", b"OK\r\n");
    assert_eq!(client.stat("limit_maxbytes"), (24 << 20).to_string(), "at once");
    let deadline = Instant::now() + Duration::from_secs(60);
    while allocated() > 24 << 20 {
        assert!(Instant::now() < deadline, "{} bytes after a minute", allocated());
        // A client is served meanwhile, and what it writes is there.
        client.ask(b"set one 0 0 3\r\nyes\r\n", b"STORED\r\n");
        client.ask(b"get one\r\n", b"VALUE one 0 3\r\nyes\r\nEND\r\n");
    }
    let number = |client: &mut Client<TcpStream>, name: &str| client.stat(name).parse::<u64>().unwrap();
    assert!(number(&mut client, "bytes") < 24 << 20 && number(&mut client, "curr_items") > 1_500);
    assert!(number(&mut client, "evictions") > 3_000);
    let withdrawn = number(&mut client, "keyway_segments_withdrawn");
    assert_eq!(withdrawn, number(&mut client, "keyway_segments_given_back"));
    // Far below what it can work with: the limit goes as low as that.
    client.ask(b"cache_memlimit 8\r\n", b"OK\r\n");
    let low = number(&mut client, "limit_maxbytes");
    assert!((4 << 20..14 << 20).contains(&low), "{low}");
    client.ask(b"cache_memlimit 9 noreply\r\nmn\r\n", b"MN\r\n");
    running.stop();

    // The next server goes on with the limit if it is given no more, and ends what the last one began.
    let limited = options.clone().memory(2 << 20);
    let mut running = start(Cache::open(&Place::Path(path.clone()), &limited).unwrap());
    let mut client = running.connect();
    assert!(number(&mut client, "limit_maxbytes") < 14 << 20);
    while allocated() > low.max(9 << 20) {
        assert!(Instant::now() < deadline, "{} bytes after a minute", allocated());
        client.ask(b"mn\r\n", b"MN\r\n");
    }
    client.ask(b"cache_memlimit 64\r\n", b"OK\r\n");
    assert!(allocated() > 63 << 20);
    assert_eq!(number(&mut client, "keyway_segments_withdrawn"), 0);
    running.stop();
    std::fs::remove_file(&path).unwrap();
}
