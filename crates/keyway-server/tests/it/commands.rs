//! The table of commands in `keyway-proto` held against a server: whatever a row says, the server does. The enemy: a command that is
//! added and known to one part of the server only, or a row that is wrong.
//! Guards: P35

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::thread::JoinHandle;
use std::time::Duration;

use keyway_cache::{Cache, Options, Place};
use keyway_proto::{BeforeLogin, Command, EXAMPLE_KEY, Needs, OverUdp};
use keyway_server::{Config, Handle, Server};

/// Longest that a test waits for an answer: only a failing test takes so long.
const PATIENCE: Duration = Duration::from_secs(10);
/// A request whose answer shows that all requests before it are done.
const MARK: (&str, &str) = ("mn\r\n", "MN");
const NOT_OVER_UDP: &str = "SERVER_ERROR not over UDP";

struct Running {
    handle: Handle,
    address: SocketAddr,
    udp: Option<SocketAddr>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    /// A server with one thread, so that requests are executed in the order of their arrival.
    fn start(change: impl FnOnce(&mut Config)) -> Self {
        Self::start_in(&Options::default(), change)
    }

    /// The same with a region of these options.
    fn start_in(options: &Options, change: impl FnOnce(&mut Config)) -> Self {
        let cache = Cache::open(&Place::Memfd, options).unwrap();
        let mut config = Config {
            tcp: vec!["127.0.0.1:0".parse().unwrap()],
            udp: vec!["127.0.0.1:0".parse().unwrap()],
            threads: 1,
            ..Config::default()
        };
        change(&mut config);
        let server = Server::start(config, cache).unwrap();
        let (handle, address, udp) = (
            server.handle(),
            server.tcp_addresses()[0],
            server.udp_addresses().first().copied(),
        );
        Self {
            handle,
            address,
            udp,
            thread: Some(std::thread::spawn(move || server.run().unwrap())),
        }
    }

    fn connect(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client(BufReader::new(stream))
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

struct Client(BufReader<TcpStream>);

impl Client {
    fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).unwrap();
    }

    /// The next line without its end; `None` when the connection is closed.
    fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        let len = self.0.read_until(b'\n', &mut line).unwrap();
        (len > 0).then(|| String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    /// The lines that answer these requests, up to the one that answers [`MARK`] or the end of the connection.
    fn ask(&mut self, requests: &[u8]) -> Vec<String> {
        self.send(&[requests, MARK.0.as_bytes()].concat());
        std::iter::from_fn(|| self.line()).take_while(|line| line != MARK.1).collect()
    }

    /// Stores the item that examples find.
    fn prepare(&mut self) {
        self.ask(format!("set {EXAMPLE_KEY} 0 0 1 noreply\r\n1\r\n").as_bytes());
    }

    /// The statistics that commands move.
    fn counters(&mut self) -> BTreeMap<String, u64> {
        let is_counter = |name: &str| {
            name.starts_with("cmd_")
                || ["_hits", "_misses", "_badval"].iter().any(|end| name.ends_with(end)) && !name.contains("ghost")
        };
        let lines = self.ask(b"stats\r\n");
        let parts = lines.iter().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
        let counters = parts.filter(|(name, _)| is_counter(name));
        counters
            .map(|(name, count)| (name.to_owned(), count.parse().unwrap()))
            .collect()
    }
}

/// Sends a command's example on a connection of its own; the lines of the answer.
fn answer(server: &Running, command: Command) -> Vec<String> {
    let mut client = server.connect();
    if command == Command::Watch {
        // What follows on this connection is log lines, not answers.
        client.send(command.facts().example);
        return client.line().into_iter().collect();
    }
    client.ask(command.facts().example)
}

#[test]
fn each_command_is_answered_and_moves_the_counters_of_its_row() {
    let server = Running::start(|_| ());
    let mut client = server.connect();
    for &command in Command::ALL {
        client.prepare();
        let before = client.counters();
        let lines = answer(&server, command);
        assert!(!lines.iter().any(|line| line == "ERROR"), "{command:?}: {lines:?}");
        let after = client.counters();
        let mut moved: BTreeMap<&str, u64> = after
            .iter()
            .map(|(name, count)| (name.as_str(), count - before[name]))
            .collect();
        // Of these commands, and two marks: one behind the first statistics, one behind the example if its connection takes any.
        let marks = if [Command::Quit, Command::Watch].contains(&command) {
            1
        } else {
            2
        };
        *moved.get_mut("cmd_meta").unwrap() -= marks;
        moved.retain(|_, count| *count > 0);
        let expected: BTreeMap<&str, u64> = command.facts().counters.iter().map(|name| (*name, 1)).collect();
        assert_eq!(moved, expected, "{command:?}");
    }
}

#[test]
fn each_command_tells_watchers_what_its_row_says() {
    let server = Running::start(|_| ());
    let (mut client, mut watcher) = (server.connect(), server.connect());
    watcher.send(b"watch fetchers mutations deletions\r\n");
    assert_eq!(watcher.line().as_deref(), Some("OK"));
    // The kinds of the lines up to the one of a get that closes them.
    let mut told = |client: &mut Client| {
        client.ask(b"get the-end\r\n");
        let lines = std::iter::from_fn(|| watcher.line()).take_while(|line| !line.contains("key=the-end"));
        let kind = |line: String| {
            line.split(' ')
                .find_map(|word| word.strip_prefix("type="))
                .unwrap()
                .to_owned()
        };
        lines.map(kind).collect::<Vec<_>>()
    };
    for &command in Command::ALL {
        client.prepare();
        told(&mut client);
        answer(&server, command);
        assert_eq!(told(&mut client), command.facts().watched, "{command:?}");
    }
}

#[test]
fn the_kernel_door_is_offered_the_keys_that_its_programs_know() {
    let rows = Command::ALL.iter().filter(|command| command.facts().by_kernel);
    assert_eq!(rows.map(|command| command.name()).collect::<Vec<_>>(), ["get", "mg", "gets"]);
}

#[test]
fn datagrams_may_ask_for_what_the_rows_say() {
    let server = Running::start(|_| ());
    let udp = UdpSocket::bind("127.0.0.1:0").unwrap();
    udp.connect(server.udp.unwrap()).unwrap();
    udp.set_read_timeout(Some(PATIENCE)).unwrap();
    let is_refused = |request: &[u8]| {
        for (id, payload) in [(1, request), (2, MARK.0.as_bytes())] {
            udp.send(&[&[0, id, 0, 0, 0, 1, 0, 0], payload].concat()).unwrap();
        }
        let mut refused = false;
        loop {
            let mut datagram = [0; 2048];
            let len = udp.recv(&mut datagram).unwrap();
            if datagram[1] == 2 {
                return refused;
            }
            refused |= datagram[8..len].starts_with(NOT_OVER_UDP.as_bytes());
        }
    };
    for &command in Command::ALL {
        let with_argument = [command.facts().name, b" settings\r\n"].concat();
        let (bare, more) = match command.facts().over_udp {
            OverUdp::Answered => (false, false),
            OverUdp::AnsweredBare => (false, true),
            OverUdp::Refused => (true, true),
        };
        assert_eq!(is_refused(command.facts().example), bare, "{command:?}");
        if command.facts().over_udp == OverUdp::AnsweredBare {
            assert_eq!(is_refused(&with_argument), more, "{command:?}");
        }
    }
}

#[test]
fn before_a_login_each_command_does_what_its_row_says() {
    let path = std::env::temp_dir().join(format!("keyway-commands-{}", std::process::id()));
    std::fs::write(&path, "ann:secret\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    let server = Running::start(|config| {
        config.auth_file = Some(path.clone());
        config.udp.clear();
    });
    std::fs::remove_file(&path).unwrap();
    for &command in Command::ALL {
        let mut client = server.connect();
        client.send(command.facts().example);
        let said = client.line();
        let expected = match command.facts().before_login {
            BeforeLogin::Refused => Some("CLIENT_ERROR unauthenticated"),
            // The example's value is no user and password.
            BeforeLogin::LogsIn => Some("CLIENT_ERROR bad authentication token format"),
            BeforeLogin::Ends => None,
        };
        assert_eq!(said.as_deref(), expected, "{command:?}");
    }
}

#[test]
fn what_the_configuration_forbids_is_refused() {
    let server = Running::start_in(&Options::new().flush(false), |config| {
        config.dump_enabled = false;
        config.watch_enabled = false;
        config.shutdown_enabled = false;
    });
    let mut refused = Vec::new();
    for &command in Command::ALL {
        let lines = answer(&server, command);
        let is_refused = lines
            .iter()
            .any(|line| line.ends_with("not allowed") || line.ends_with("not enabled"));
        let is_forbidden = match command.facts().needs {
            // This client is on the server's machine.
            Needs::Nothing | Needs::Trust => false,
            Needs::Flushing | Needs::Dumping | Needs::Watching | Needs::ShuttingDown => true,
        };
        assert_eq!(is_refused, is_forbidden, "{command:?}: {lines:?}");
        refused.extend(is_refused.then(|| command.name()));
    }
    // The server follows the table, so the table is held against names: what `-F`, `-X`, `-W` and the want of `-A` forbid.
    assert_eq!(refused, ["watch", "flush_all", "shutdown", "lru_crawler"]);
}
