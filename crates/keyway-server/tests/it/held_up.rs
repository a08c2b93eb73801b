//! Writes behind the dead owner of a kernel door: enemy, one that makes every other connection of its thread wait until the program of the
//! dead one has fallen silent, or that is refused although it only had to wait.
//!
//! Server and owner are one process here, with a mapping each; a plain file plays the kernel program's array.
//! Guards: P37, P42

use keyway_cache::server::ServerCache as _;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use keyway_cache::server::KernelDoor;
use keyway_cache::{Cache, Options, Place};
use keyway_server::{Config, Server};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// How long the program of the dead owner may answer, and what is added for answers under way (`keyway-cache/src/session/kernel.rs`).
const LEASE: Duration = KernelDoor::LEASE;
const PATIENCE: Duration = Duration::from_secs(20);
/// What no other connection may wait longer for.
const STATED: Duration = Duration::from_millis(10);

struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn options(server: bool) -> Options {
    Options::new().memory(4 << 20).server(server)
}

/// One connection.
struct Wire(TcpStream);

impl Wire {
    fn open(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    fn read(&mut self, len: usize) -> Vec<u8> {
        let mut answer = vec![0; len];
        self.0.read_exact(&mut answer).unwrap();
        answer
    }

    /// How long each of many gets takes, until this instant.
    fn waits(&mut self, until: Instant) -> Vec<Duration> {
        let mut waits = Vec::new();
        while Instant::now() < until {
            let start = Instant::now();
            self.0.write_all(b"get key\r\n").unwrap();
            assert_eq!(self.read(24), b"VALUE key 0 3\r\nold\r\nEND\r\n"[..24]);
            self.read(1);
            waits.push(start.elapsed());
        }
        waits
    }
}

#[test]
fn a_write_behind_a_dead_owner_waits_by_itself_and_is_done() {
    let folder = Folder(PathBuf::from(format!("/dev/shm/keyway-test-{}-held-up", std::process::id())));
    std::fs::create_dir_all(&folder.0).unwrap();
    let place = Place::Path(folder.0.join("region"));
    let config = Config {
        tcp: vec!["127.0.0.1:0".parse().unwrap()],
        udp: vec!["127.0.0.1:0".parse().unwrap()],
        threads: 1,
        ..Config::default()
    };
    let server = Server::start(config, Cache::open(&place, &options(true)).unwrap()).unwrap();
    let (tcp, udp) = (server.tcp_addresses()[0], server.udp_addresses()[0]);
    let handle = server.handle();
    let running = std::thread::spawn(move || server.run().unwrap());

    let mut other = Wire::open(tcp);
    other.0.write_all(b"set key 0 0 3\r\nold\r\n").unwrap();
    assert_eq!(other.read(8), b"STORED\r\n");
    let control = other.waits(Instant::now() + LEASE / 4);

    // Another server turns its kernel door on, and dies.
    let owner = Cache::open(&place, &options(true)).unwrap();
    let array = File::from(memfd_create(c"stripes", MFdFlags::MFD_CLOEXEC).unwrap());
    array.set_len(9 * 4096).unwrap();
    let door = owner.turn_kernel_door_on(array).unwrap();
    let until = Instant::now() + PATIENCE;
    while !door.is_acknowledged() {
        assert!(Instant::now() < until, "the door is never acknowledged");
        std::thread::yield_now();
    }
    let end = owner.monotonic() + LEASE;
    door.renew(u64::try_from(end.as_nanos()).unwrap());
    door.abandon();
    let clock = owner.monotonic();
    drop(owner);
    let silent_at = Instant::now() + end.saturating_sub(clock);

    // Four that write at once: a line and the next one, a quiet line and one with an answer, a binary one, and one whose line is decoded
    // in pieces, of which the first that has keys is also the last.
    let mut lines = Wire::open(tcp);
    lines.0.write_all(b"set number 0 0 1\r\n7\r\nincr number 1\r\n").unwrap();
    let mut meta = Wire::open(tcp);
    meta.0.write_all(b"ms quiet 1 q\r\n1\r\nmn\r\n").unwrap();
    let mut binary = Wire::open(tcp);
    let mut set = [0; 24];
    (set[0], set[1], set[3], set[4], set[11]) = (0x80, 0x01, 3, 8, 12);
    binary.0.write_all(&[&set[..], &[0; 8], b"bin", b"1"].concat()).unwrap();
    let keys = 511;
    let mut touching = Wire::open(tcp);
    let line = format!("gat 0{}\r\n", " key".repeat(keys));
    assert_eq!(line.len(), 2 * 1024 + 3, "a little longer than other lines may be");
    touching.0.write_all(line.as_bytes()).unwrap();
    // Over UDP no client waits.
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(PATIENCE)).unwrap();
    client.send_to(b"\0\x01\0\0\0\x01\0\0set udp 0 0 1\r\n1\r\n", udp).unwrap();
    let mut answer = [0; 512];
    let len = client.recv(&mut answer).unwrap();
    assert!(
        answer[8..len].starts_with(b"SERVER_ERROR "),
        "{}",
        answer[8..len].escape_ascii()
    );
    assert!(Instant::now() < silent_at, "an answer over UDP has waited");

    // The rare ones are this machine's: the same share of them may come without any writer, and all together they are shorter than the
    // wait of the writers, which took nearly a whole lease.
    let held = other.waits(silent_at);
    let rank = |waits: &[Duration]| {
        let mut sorted = waits.to_vec();
        sorted.sort_unstable();
        (sorted[sorted.len() * 9 / 10], sorted[sorted.len() - 1])
    };
    let ((usual, longest), (before, _)) = (rank(&held), rank(&control));
    assert!(
        usual <= STATED.max(3 * before) && longest < LEASE * 3 / 4,
        "of {} gets beside writes that wait nine in ten took {usual:?} ({before:?} before), and one {longest:?}",
        held.len(),
    );

    assert_eq!(lines.read(11), b"STORED\r\n8\r\n");
    assert_eq!(meta.read(4), b"MN\r\n");
    assert_eq!(binary.read(24)[6..8], [0, 0], "the binary set's status");
    let touched = format!("{}END\r\n", "VALUE key 0 3\r\nold\r\n".repeat(keys));
    assert_eq!(String::from_utf8_lossy(&touching.read(touched.len())), touched);
    assert!(
        Instant::now() >= silent_at,
        "something was written while the program could still answer"
    );
    other.0.write_all(b"mg quiet v\r\nmg bin v\r\n").unwrap();
    assert_eq!(other.read(18), b"VA 1\r\n1\r\nVA 1\r\n1\r\n");
    handle.shutdown();
    drop((other, lines, meta, binary, touching));
    running.join().unwrap();
}
