//! TLS beside memcached's: gets over connections that are open, and handshakes, of two servers in turn.
//!
//! The client is rustls on one thread, or on a few for handshakes. It does about as much work as the server, so the server's CPU time says more
//! than the rate.

use harness::{Authority, TlsClient, Validity};
use keyway_bench::machine::{self, Usage};
use keyway_bench::medians::Sides;
use keyway_bench::plan::Door;
use keyway_bench::servers::{Folder, Server, Settings};
use keyway_bench::table::{Entry, columns};
use keyway_bench::wire::Target;
use rustix::event::epoll;
use rustls::{ClientConnection, HandshakeKind};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Items that are stored, and asked for in turn.
const ITEMS: usize = 1000;
/// Memory of each server, MiB: room for all of them.
const MEMORY_MIB: u64 = 256;
/// Clients that shake hands at a time.
const SHAKERS: usize = 4;
/// How long a server may be silent before it counts as dead.
const SILENCE_MAX: Duration = Duration::from_secs(10);
/// Bytes that are read at a time: a record and more.
const READ_SIZE: usize = 32 << 10;

/// What is measured, and how.
#[derive(Clone, Debug)]
pub struct How {
    /// the program `keyway`
    pub program: PathBuf,
    /// numbers of connections
    pub connections: Vec<usize>,
    /// bytes of a value
    pub value_size: usize,
    /// length of one measurement
    pub seconds: Duration,
    /// measurements of each kind of each server
    pub repeat: usize,
    /// the CPUs of the servers; none: any
    pub server_cpus: Vec<usize>,
    /// the CPUs of the client; none: any
    pub client_cpus: Vec<usize>,
    /// more options for Keyway
    pub server_options: Vec<String>,
}

/// One measurement.
#[derive(Clone, Copy, Debug)]
struct Measured {
    /// requests or handshakes a second
    rate: f64,
    /// the server's CPU time for each, µs
    cpu_us: f64,
}

/// What both servers did, round by round.
#[derive(Clone, Debug)]
pub struct Row {
    /// what was measured
    pub name: String,
    /// a second: thousands of gets, or handshakes
    pub rate: Sides,
    /// µs of the server
    pub cpu: Sides,
}

/// What is asked of a server.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// gets over so many connections, one in flight on each
    Gets(usize),
    /// connections that are made, asked once, and closed
    Handshakes { resumed: bool },
}

impl Work {
    fn name(self) -> String {
        match self {
            Self::Gets(1) => "get, 1 connection, k/s".to_owned(),
            Self::Gets(count) => format!("get, {count} connections, k/s"),
            Self::Handshakes { resumed: false } => "handshakes/s".to_owned(),
            Self::Handshakes { resumed: true } => "resumed handshakes/s".to_owned(),
        }
    }
}

/// A server with TLS.
struct Side {
    server: Server,
    address: SocketAddr,
}

/// Measures both servers, in turn.
///
/// # Errors
///
/// There is no memcached with TLS, a server does not start, or an answer is wrong.
pub fn measure(how: &How) -> io::Result<Vec<Row>> {
    let authority = Authority::new();
    let folder = Folder::new(&std::env::temp_dir(), "tls")?;
    let files = authority.signs("server", Validity::Valid).write_to(folder.path(), "server");
    let all = machine::allowed_cpus()?;
    let or_all = |cpus: &[usize]| if cpus.is_empty() { all.clone() } else { cpus.to_vec() };
    machine::pin(&or_all(&how.server_cpus))?;
    let sides = [keyway(how, &files)?, memcached(how, &files)?];
    machine::pin(&or_all(&how.client_cpus))?;
    let work: Vec<Work> = (how.connections.iter().copied().map(Work::Gets))
        .chain([false, true].map(|resumed| Work::Handshakes { resumed }))
        .collect();
    for side in &sides {
        fill(&authority, side.address, how.value_size)?;
    }
    let mut rows = Vec::new();
    for work in work {
        let mut rounds = [Vec::new(), Vec::new()];
        for round in 0..=how.repeat {
            for (side, measured) in sides.iter().zip(&mut rounds) {
                // The first round warms up.
                let seconds = if round == 0 { how.seconds / 5 } else { how.seconds };
                let once = once(&authority, side, work, how.value_size, seconds)?;
                if round > 0 {
                    measured.push(once);
                }
            }
        }
        let [keyway, memcached] = rounds;
        let of = |what: fn(&Measured) -> f64| {
            let [keyway, memcached] = [&keyway, &memcached].map(|rounds| rounds.iter().map(what).collect::<Vec<_>>());
            Sides::of(&keyway, &memcached)
        };
        let rate: fn(&Measured) -> f64 = match work {
            Work::Gets(_) => |measured| measured.rate / 1000.0,
            Work::Handshakes { .. } => |measured| measured.rate,
        };
        rows.push(Row {
            name: work.name(),
            rate: of(rate),
            cpu: of(|measured| measured.cpu_us),
        });
    }
    Ok(rows)
}

fn keyway(how: &How, (certificate, key): &(PathBuf, PathBuf)) -> io::Result<Side> {
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let mut more = vec!["--listen".to_owned(), format!("tls://{address}")];
    more.extend(["--tls-cert".to_owned(), certificate.display().to_string()]);
    more.extend(["--tls-key".to_owned(), key.display().to_string()]);
    more.extend(how.server_options.clone());
    let server = Server::keyway(
        Path::new(&how.program),
        &Settings {
            memory_mib: MEMORY_MIB,
            more: &more,
            ..Settings::default()
        },
    )?;
    Ok(Side { server, address })
}

fn memcached(_: &How, (certificate, key): &(PathBuf, PathBuf)) -> io::Result<Side> {
    let files = format!(
        "ssl_chain_cert={},ssl_key={},ssl_session_cache",
        certificate.display(),
        key.display()
    );
    let more = ["-Z".to_owned(), "-o".to_owned(), files];
    let server = Server::memcached(&Settings {
        memory_mib: MEMORY_MIB,
        more: &more,
        ..Settings::default()
    });
    let hint = "KEYWAY_MEMCACHED must name a memcached that was built with --enable-tls";
    let server = server.map_err(|e| io::Error::other(format!("{e}; {hint}")))?;
    let server = server.ok_or_else(|| io::Error::other(hint))?;
    match server.target(Door::Tcp) {
        Some(Target::Tcp(address)) => Ok(Side { server, address }),
        _ => Err(io::Error::other("a memcached without TCP")),
    }
}

fn once(authority: &Authority, side: &Side, work: Work, value_size: usize, seconds: Duration) -> io::Result<Measured> {
    let (count, usage, elapsed) = match work {
        Work::Gets(connections) => {
            let client = TlsClient::trusting(authority);
            let mut load = Load::open(&client, side.address, connections, value_size)?;
            let (before, start) = (Usage::of(side.server.pid())?, Instant::now());
            let count = load.run(start + seconds)?;
            (count, Usage::of(side.server.pid())?.since(before), start.elapsed())
        }
        Work::Handshakes { resumed } => {
            let (before, start) = (Usage::of(side.server.pid())?, Instant::now());
            let count = shake_hands(authority, side.address, resumed, start + seconds)?;
            (count, Usage::of(side.server.pid())?.since(before), start.elapsed())
        }
    };
    #[allow(clippy::cast_precision_loss, reason = "far fewer than 2^53 in a measurement")]
    let count = count.max(1) as f64;
    Ok(Measured {
        rate: count / elapsed.as_secs_f64(),
        cpu_us: usage.cpu.as_secs_f64() * 1e6 / count,
    })
}

fn key(item: usize) -> String {
    format!("{:016x}", item.wrapping_mul(0x9e37_79b9_7f4a_7c15))
}

fn value(item: usize, size: usize) -> Vec<u8> {
    let mut value = key(item).into_bytes();
    value.resize(size, b'v');
    value
}

fn get(item: usize) -> Vec<u8> {
    format!("get {}\r\n", key(item)).into_bytes()
}

fn answer(item: usize, value_size: usize) -> Vec<u8> {
    let mut answer = format!("VALUE {} 0 {value_size}\r\n", key(item)).into_bytes();
    answer.extend_from_slice(&value(item, value_size));
    answer.extend_from_slice(b"\r\nEND\r\n");
    answer
}

/// A connection that blocks.
struct Blocking {
    tcp: TcpStream,
    tls: ClientConnection,
}

impl Blocking {
    fn open(client: &TlsClient, address: SocketAddr) -> io::Result<Self> {
        let tcp = TcpStream::connect_timeout(&address, SILENCE_MAX)?;
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(SILENCE_MAX))?;
        let tls = client.session();
        Ok(Self { tcp, tls })
    }

    fn ask(&mut self, request: &[u8], answer: &[u8]) -> io::Result<()> {
        let mut stream = rustls::Stream::new(&mut self.tls, &mut self.tcp);
        stream.write_all(request)?;
        let mut got = vec![0; answer.len()];
        stream.read_exact(&mut got)?;
        is_right(&got, answer)
    }
}

fn is_right(got: &[u8], answer: &[u8]) -> io::Result<()> {
    if got == answer {
        return Ok(());
    }
    let told = String::from_utf8_lossy(got.get(..200).unwrap_or(got)).into_owned();
    Err(io::Error::other(format!("a wrong answer: {told}")))
}

fn fill(authority: &Authority, address: SocketAddr, value_size: usize) -> io::Result<()> {
    let mut connection = Blocking::open(&TlsClient::trusting(authority), address)?;
    for item in 0..ITEMS {
        let mut set = format!("set {} 0 0 {value_size}\r\n", key(item)).into_bytes();
        set.extend_from_slice(&value(item, value_size));
        set.extend_from_slice(b"\r\n");
        connection.ask(&set, b"STORED\r\n")?;
    }
    Ok(())
}

/// Connections with one get in flight on each.
struct Load {
    connections: Vec<Connection>,
    ready: rustix::fd::OwnedFd,
    gets: Vec<Vec<u8>>,
    answers: Vec<Vec<u8>>,
    next: usize,
}

struct Connection {
    tcp: TcpStream,
    tls: ClientConnection,
    /// the item that is asked for
    item: usize,
    got: Vec<u8>,
}

impl Load {
    fn open(client: &TlsClient, address: SocketAddr, count: usize, value_size: usize) -> io::Result<Self> {
        let ready = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut connections = Vec::new();
        for number in 0..count {
            let mut blocking = Blocking::open(client, address)?;
            // The handshake, and what comes with it.
            blocking.ask(&get(0), &answer(0, value_size))?;
            let Blocking { tcp, tls } = blocking;
            tcp.set_nonblocking(true)?;
            epoll::add(&ready, &tcp, epoll::EventData::new_u64(number as u64), epoll::EventFlags::IN)?;
            connections.push(Connection {
                tcp,
                tls,
                item: 0,
                got: Vec::new(),
            });
        }
        Ok(Self {
            connections,
            ready,
            gets: (0..ITEMS).map(get).collect(),
            answers: (0..ITEMS).map(|item| answer(item, value_size)).collect(),
            next: 0,
        })
    }

    /// Asks until then. Returns how many answers came.
    fn run(&mut self, until: Instant) -> io::Result<u64> {
        let (mut count, mut in_flight) = (0, 0);
        let mut events = Vec::with_capacity(self.connections.len());
        let mut room = vec![0; READ_SIZE];
        for number in 0..self.connections.len() {
            self.ask(number)?;
            in_flight += 1;
        }
        while in_flight > 0 {
            events.clear();
            let silence = rustix::event::Timespec { tv_sec: 10, tv_nsec: 0 };
            epoll::wait(&self.ready, rustix::buffer::spare_capacity(&mut events), Some(&silence))?;
            if events.is_empty() {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the server is silent"));
            }
            let is_over = Instant::now() >= until;
            for event in &events {
                let number = usize::try_from(event.data.u64()).unwrap_or(0);
                let answers = &self.answers;
                let Some(connection) = self.connections.get_mut(number) else {
                    continue;
                };
                if !connection.receive(&mut room, answers)? {
                    continue;
                }
                count += 1;
                if is_over {
                    in_flight -= 1;
                } else {
                    self.ask(number)?;
                }
            }
        }
        Ok(count)
    }

    fn ask(&mut self, number: usize) -> io::Result<()> {
        self.next = (self.next + 1) % ITEMS;
        let connection = &mut self.connections[number];
        connection.item = self.next;
        connection.got.clear();
        connection.tls.writer().write_all(&self.gets[self.next])?;
        // A request is shorter than what a socket takes.
        connection.tls.write_tls(&mut connection.tcp).map(drop)
    }
}

impl Connection {
    /// Whether the whole answer is there.
    fn receive(&mut self, room: &mut [u8], answers: &[Vec<u8>]) -> io::Result<bool> {
        let count = match self.tcp.read(room) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            Err(error) => return Err(error),
        };
        let mut rest = &room[..count];
        while !rest.is_empty() {
            self.tls.read_tls(&mut rest)?;
            let state = self.tls.process_new_packets().map_err(io::Error::other)?;
            let start = self.got.len();
            self.got.resize(start + state.plaintext_bytes_to_read(), 0);
            self.tls.reader().read_exact(&mut self.got[start..])?;
        }
        let answer = &answers[self.item];
        if self.got.len() < answer.len() {
            return Ok(false);
        }
        is_right(&self.got, answer).map(|()| true)
    }
}

/// Connects, asks once and closes, until then. Returns how often.
fn shake_hands(authority: &Authority, address: SocketAddr, resumed: bool, until: Instant) -> io::Result<u64> {
    let (count, others) = (AtomicU64::new(0), AtomicU64::new(0));
    let shaker = || -> io::Result<()> {
        let mut client = TlsClient::trusting(authority);
        let wanted = if resumed {
            HandshakeKind::Resumed
        } else {
            HandshakeKind::Full
        };
        while Instant::now() < until {
            if !resumed {
                client = client.without_sessions();
            }
            let mut connection = Blocking::open(&client, address)?;
            connection.ask(b"mn\r\n", b"MN\r\n")?;
            count.fetch_add(1, Relaxed);
            if connection.tls.handshake_kind() != Some(wanted) {
                others.fetch_add(1, Relaxed);
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let shakers: Vec<_> = (0..SHAKERS).map(|_| scope.spawn(shaker)).collect();
        shakers.into_iter().try_for_each(|shaker| {
            let ended = shaker.join();
            ended.unwrap_or_else(|_| Err(io::Error::other("a client failed")))
        })
    })?;
    let (count, others) = (count.into_inner(), others.into_inner());
    // The first of each client cannot resume anything.
    let others_max = if resumed { SHAKERS as u64 } else { 0 };
    if others > others_max {
        let kind = if resumed { "resumed" } else { "in full" };
        return Err(io::Error::other(format!("{others} of {count} handshakes were not {kind}")));
    }
    Ok(count)
}

/// The rows as a table.
pub fn table(rows: &[Row]) -> String {
    let head = ["", "memcached", "Keyway", "ratio", "CPU µs: memcached", "Keyway", "ratio"].map(str::to_owned);
    let entry = |spread, digits| Entry::of(spread, digits).text();
    let lines = rows.iter().map(|row| {
        [
            row.name.clone(),
            entry(row.rate.of_peer(), 1),
            entry(row.rate.of_keyway(), 1),
            entry(row.rate.of_ratio(), 2),
            entry(row.cpu.of_peer(), 2),
            entry(row.cpu.of_keyway(), 2),
            entry(row.cpu.of_ratio(), 2),
        ]
    });
    columns(&std::iter::once(head).chain(lines).collect::<Vec<_>>())
}
