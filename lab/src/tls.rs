//! TLS beside memcached's: gets over connections that are open, and handshakes, of two servers in turn.
//!
//! The client is rustls on one thread, or on a few for handshakes. It does about as much work as the server, so the server's CPU time says more
//! than the rate.

use harness::{Authority, TlsClient, Validity};
use keyway_bench::caches::{Side, on_cpus};
use keyway_bench::measurement::{Measurement, Window};
use keyway_bench::medians::Sides;
use keyway_bench::plan::{Cell, Door, Plan};
use keyway_bench::report::values;
use keyway_bench::run::{self, CellResult, Draw, Operations, Outcome};
use keyway_bench::servers::{Folder, Server, Settings};
use keyway_bench::table::columns;
use keyway_bench::wire::{Made, Target};
use rustls::{ClientConnection, HandshakeKind, StreamOwned};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

/// Memory of each server, MiB: room for all items.
const MEMORY_MIB: u64 = 256;
/// Clients that shake hands at a time.
const SHAKERS: usize = 4;
/// How long a server may be silent before it counts as dead.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// A connection with TLS.
struct Tls(StreamOwned<ClientConnection, TcpStream>);

impl Tls {
    fn open(client: &TlsClient, address: SocketAddr) -> io::Result<Self> {
        let tcp = TcpStream::connect_timeout(&address, SILENCE_MAX)?;
        tcp.set_nodelay(true)?;
        tcp.set_read_timeout(Some(SILENCE_MAX))?;
        let mut tls = StreamOwned::new(client.session(), tcp);
        // The handshake.
        tls.conn.complete_io(&mut tls.sock)?;
        Ok(Self(tls))
    }
}

impl Read for Tls {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Tls {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl AsFd for Tls {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.sock.as_fd()
    }
}

/// Measures both servers, in turn, and gives a table. The cells of `plan` are gets over connections with one get in flight.
///
/// # Errors
///
/// There is no memcached with TLS, a server does not start, or an answer is wrong.
pub fn measure(plan: &Plan) -> io::Result<String> {
    let authority = Authority::new();
    let folder = Folder::new(&std::env::temp_dir(), "tls")?;
    let (certificate, key) = authority.signs("server", Validity::Valid).write_to(folder.path(), "server");
    let [certificate, key] = [certificate, key].map(|file| file.display().to_string());
    let own = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let mut more = [
        "--listen",
        &format!("tls://{own}"),
        "--tls-cert",
        &certificate,
        "--tls-key",
        &key,
    ]
    .map(str::to_owned)
    .to_vec();
    more.extend(plan.server_options.clone());
    let settings = Settings {
        memory_mib: MEMORY_MIB,
        threads: plan.server_threads,
        more: &more,
        ..Settings::default()
    };
    let keyway = on_cpus(plan, || Server::keyway(&plan.program, &settings))?;
    let files = format!("ssl_chain_cert={certificate},ssl_key={key},ssl_session_cache");
    let mut more = ["-Z", "-o", &files].map(str::to_owned).to_vec();
    more.extend(plan.memcached_options.clone());
    let settings = Settings {
        more: &more,
        tls: true,
        ..settings
    };
    let hint = "KEYWAY_MEMCACHED must name a memcached that was built with --enable-tls";
    let memcached = on_cpus(plan, || Server::memcached(&settings)).map_err(|e| io::Error::other(format!("{e}; {hint}")))?;
    let memcached = memcached.ok_or_else(|| io::Error::other(hint))?;
    let Some(Target::Tcp(peer)) = memcached.target(Door::Tcp) else {
        return Err(io::Error::other("a memcached without TCP"));
    };
    let at = |address: SocketAddr| {
        let client = TlsClient::trusting(&authority);
        Target::Made(Made::new(format!("tls://{address}"), move || {
            Ok(Box::new(Tls::open(&client, address)?))
        }))
    };
    let sides = [
        Side::at("Keyway", &keyway, at(own))?,
        Side::at("memcached", &memcached, at(peer))?,
    ];
    let sides = sides.each_ref();
    let mut outcome = Outcome::begin();
    let mut lines = vec![["", "memcached", "Keyway", "ratio", "CPU µs: memcached", "Keyway", "ratio"].map(str::to_owned)];
    for (number, cell) in plan.cells.iter().enumerate() {
        run::run_cell(plan, number, cell, &sides, &run::measure, &mut outcome, &mut |_| {});
        let connections = format!("get, {} {}, k/s", cell.connections, Door::Tcp.unit(cell.connections));
        lines.extend(outcome.cells.last().map(|ran| line(connections, ran, 1.0)));
    }
    for (name, resumed) in [("handshakes/s", false), ("resumed handshakes/s", true)] {
        let Some(cell) = plan.cells.first() else { break };
        let shake = |plan: &Plan, _: &Cell, side: &Side, _: &Operations, _: Draw| {
            let address = if side.name == "Keyway" { own } else { peer };
            let shakers = (0..SHAKERS).map(|_| TlsClient::trusting(&authority)).collect();
            run::at_once(plan, side, shakers, |client, window| {
                shake_hands(client, address, resumed, window)
            })
        };
        run::run_cell(plan, plan.cells.len(), cell, &sides, &shake, &mut outcome, &mut |_| {});
        lines.extend(outcome.cells.last().map(|ran| line(name.to_owned(), ran, 1e3)));
    }
    match outcome.failures.first() {
        Some(failure) => Err(io::Error::other(failure.clone())),
        None => Ok(columns(&lines)),
    }
}

fn line(name: String, ran: &CellResult, times: f64) -> [String; 7] {
    let of = |figure, times: f64| {
        let [own, peer] = [0, 1].map(|at| {
            values(&ran.sides[at], figure)
                .into_iter()
                .map(|value| value * times)
                .collect::<Vec<_>>()
        });
        let sides = Sides::of(&own, &peer);
        [(sides.of_peer(), 1), (sides.of_keyway(), 1), (sides.of_ratio(), 2)].map(|(spread, digits)| spread.text(digits))
    };
    let ([a, b, c], [d, e, f]) = (of("throughput", times), of("server CPU an operation", 1.0));
    [name, a, b, c, d, e, f]
}

/// Connects, asks once and closes, until the window is over.
fn shake_hands(mut client: TlsClient, address: SocketAddr, resumed: bool, window: Window) -> Measurement {
    let wanted = if resumed {
        HandshakeKind::Resumed
    } else {
        HandshakeKind::Full
    };
    let mut ran = Measurement::default();
    let mut once = |is_first: bool| {
        if !resumed {
            client = client.without_sessions();
        }
        let mut tls = Tls::open(&client, address)?;
        tls.write_all(b"mn\r\n")?;
        let mut answer = [0; 4];
        tls.read_exact(&mut answer)?;
        // The first one of a client cannot resume anything.
        let is_right = answer == *b"MN\r\n" && (is_first && resumed || tls.0.conn.handshake_kind() == Some(wanted));
        is_right
            .then_some(())
            .ok_or_else(|| io::Error::other("a wrong answer, or another kind of handshake"))
    };
    let mut is_first = true;
    while Instant::now() < window.until {
        let is_counted = Instant::now() >= window.from;
        if let Err(why) = once(is_first) {
            ran.wrong.connections += 1;
            ran.wrong.describe(|| why.to_string());
            break;
        }
        ran.operations += u64::from(is_counted);
        is_first = false;
    }
    ran.elapsed = window.from.elapsed();
    ran
}
