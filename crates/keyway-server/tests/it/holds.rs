//! Flights of clients that were never changed: `--hold-misses`, the wins of `mg`, and leases. Enemies: a get that waits for a client which has
//! gone, an answer out of order, a connection that waits although nobody stores, a store that lands after a delete.
//! Guards: P53

use keyway_cache::{Cache, Fetch, Options, Place};
use keyway_server::{Config, EventLoop, Handle, HoldMisses, Server};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// No client waits so long for an answer that comes.
const PATIENCE: Duration = Duration::from_secs(60);
/// A server that holds a miss for so long holds it until the end of a test.
const LONG: &str = "50000:user:";

struct World {
    folder: PathBuf,
    place: Place,
    address: SocketAddr,
    udp: SocketAddr,
    handle: Handle,
    running: Option<JoinHandle<()>>,
}

impl World {
    fn new(event_loop: EventLoop, holds: &[&str]) -> Self {
        Self::with(2, event_loop, holds)
    }

    fn with(threads: usize, event_loop: EventLoop, holds: &[&str]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("keyway-test-{}-holds-{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
        let folder = PathBuf::from("/dev/shm").join(name);
        std::fs::create_dir_all(&folder).unwrap();
        let place = Place::Path(folder.join("region"));
        let config = Config {
            tcp: vec!["127.0.0.1:0".parse().unwrap()],
            udp: vec!["127.0.0.1:0".parse().unwrap()],
            threads,
            event_loop,
            hold_misses: holds.iter().map(|hold| HoldMisses::parse(hold).unwrap()).collect(),
            ..Config::default()
        };
        let options = Options::new().memory(8 << 20).server(true);
        let server = Server::start(config, Cache::open(&place, &options).unwrap()).unwrap();
        let (address, udp, handle) = (server.tcp_addresses()[0], server.udp_addresses()[0], server.handle());
        Self {
            folder,
            place,
            address,
            udp,
            handle,
            running: Some(std::thread::spawn(move || server.run().unwrap())),
        }
    }

    fn client(&self) -> Client {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client(stream)
    }

    /// A program with the library.
    fn program(&self) -> Cache {
        Cache::open(&self.place, &Options::new()).unwrap()
    }

    /// One number of `stats`.
    fn number(&self, name: &str) -> u64 {
        let mut client = self.client();
        client.say("stats\r\n");
        let all = client.until("END\r\n");
        let line = all.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        line.unwrap_or_else(|| panic!("{name} is not among {all}")).parse().unwrap()
    }

    /// Waits until so many gets are held.
    fn has_held(&self, count: u64) {
        let until = Instant::now() + PATIENCE;
        while self.number("keyway_misses_held:user:") < count {
            assert!(Instant::now() < until, "no get is held");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.handle.shutdown();
        let ended = self.running.take().map(JoinHandle::join);
        let _ = std::fs::remove_dir_all(&self.folder);
        if !std::thread::panicking() {
            ended.unwrap().unwrap();
        }
    }
}

struct Client(TcpStream);

impl Client {
    fn say(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap();
    }

    fn until(&mut self, end: &str) -> String {
        let (mut said, mut byte) = (Vec::new(), [0]);
        while !said.ends_with(end.as_bytes()) {
            self.0.read_exact(&mut byte).unwrap();
            said.push(byte[0]);
        }
        String::from_utf8(said).unwrap()
    }

    fn answers(&mut self, said: &str, answer: &str) {
        self.say(said);
        self.gets(answer);
    }

    fn gets(&mut self, answer: &str) {
        let mut said = vec![0; answer.len()];
        self.0.read_exact(&mut said).unwrap();
        assert_eq!(String::from_utf8_lossy(&said), answer);
    }

    fn gets_nothing(&mut self) {
        self.0.set_nonblocking(true).unwrap();
        let read = self.0.read(&mut [0; 100]);
        assert!(
            matches!(&read, Err(error) if error.kind() == ErrorKind::WouldBlock),
            "{read:?}"
        );
        self.0.set_nonblocking(false).unwrap();
    }
}

/// With both event loops, where there are two.
fn with_each_loop(test: impl Fn(EventLoop)) {
    [EventLoop::Epoll, EventLoop::Auto].into_iter().for_each(test);
}

#[test]
fn one_client_computes_and_the_others_get_its_value() {
    with_each_loop(|event_loop| {
        let world = World::new(event_loop, &[LONG]);
        let [mut first, mut second, mut meta, mut many, mut other] = std::array::from_fn(|_| world.client());
        other.answers("set user:0 0 0 3\r\nold\r\n", "STORED\r\n");
        first.answers("get user:1\r\n", "END\r\n");
        // What follows the get waits with it.
        second.say("get user:1\r\nversion\r\n");
        meta.say("mg user:1 v q\r\nmn\r\n");
        many.say("get user:0 user:1 none\r\n");
        world.has_held(3);
        many.gets("VALUE user:0 0 3\r\nold\r\n");
        for waiting in [&mut second, &mut meta, &mut many] {
            waiting.gets_nothing();
        }
        // Other keys, and who asks again, wait for nobody.
        first.answers("get user:1\r\n", "END\r\n");
        other.answers("get other:1\r\nget other:1\r\n", "END\r\nEND\r\n");
        // Any connection may store.
        other.answers("set user:1 0 0 5\r\nvalue\r\n", "STORED\r\n");
        second.gets("VALUE user:1 0 5\r\nvalue\r\nEND\r\nVERSION ");
        meta.gets("VA 5\r\nvalue\r\nMN\r\n");
        many.gets("VALUE user:1 0 5\r\nvalue\r\nEND\r\n");
        assert_eq!(world.number("keyway_misses_in_vain:user:"), 0);
        assert_eq!(world.number("keyway_misses_claimed:user:"), 1);
    });
}

#[test]
fn a_packet_waits_too() {
    let world = World::new(EventLoop::Auto, &[LONG]);
    let (mut first, mut binary) = (world.client(), world.client());
    first.answers("get user:1\r\n", "END\r\n");
    let mut get = [0u8; 24];
    (get[0], get[3], get[11]) = (0x80, 6, 6);
    binary.0.write_all(&[&get[..], b"user:1"].concat()).unwrap();
    world.has_held(1);
    first.answers("set user:1 0 0 5\r\nvalue\r\n", "STORED\r\n");
    let mut answer = [0; 24 + 4 + 5];
    binary.0.read_exact(&mut answer).unwrap();
    assert_eq!((answer[0], answer[7], &answer[28..]), (0x81, 0, &b"value"[..]));
}

#[test]
fn programs_and_clients_wait_for_each_other() {
    with_each_loop(|event_loop| {
        let world = World::new(event_loop, &[LONG]);
        let how = Fetch {
            ttl: 100,
            wait: PATIENCE,
            ..Fetch::default()
        };
        // A client waits for a program …
        let (mut client, program) = (world.client(), world.program());
        let fetched = program.fetch(b"user:1", &how, || {
            client.say("get user:1\r\n");
            world.has_held(1);
            Ok::<_, ()>(Some(b"computed".to_vec()))
        });
        assert_eq!(fetched.unwrap(), Some(b"computed".to_vec()));
        client.gets("VALUE user:1 0 8\r\ncomputed\r\nEND\r\n");
        // … and a program for a client.
        client.answers("get user:2\r\n", "END\r\n");
        let waiting = {
            let program = program.clone();
            std::thread::spawn(move || program.fetch(b"user:2", &how, || Err("it does not wait")).unwrap())
        };
        client.answers("set user:2 0 0 5\r\nvalue\r\n", "STORED\r\n");
        assert_eq!(waiting.join().unwrap(), Some(b"value".to_vec()));
    });
}

#[test]
fn who_goes_without_storing_is_waited_for_no_longer() {
    with_each_loop(|event_loop| {
        let world = World::new(event_loop, &[LONG]);
        let [mut first, mut second, mut third] = std::array::from_fn(|_| world.client());
        first.answers("get user:1\r\n", "END\r\n");
        second.say("get user:1\r\n");
        world.has_held(1);
        drop(first);
        second.gets("END\r\n");
        // Now the second one computes.
        third.say("get user:1\r\n");
        world.has_held(2);
        second.answers("delete user:1\r\n", "NOT_FOUND\r\n");
        third.gets("END\r\n");
    });
}

#[test]
fn a_get_waits_no_longer_than_is_said_and_not_for_clients_that_never_store() {
    let world = World::new(EventLoop::Auto, &["20:user:"]);
    let (mut first, mut second) = (world.client(), world.client());
    // No client stores: so many gets wait in vain, and then none waits.
    for number in 0..16 {
        first.answers(&format!("get user:{number}\r\n"), "END\r\n");
        second.answers(&format!("get user:{number}\r\nmn\r\n"), "END\r\nMN\r\n");
    }
    assert_eq!(world.number("keyway_misses_in_vain:user:"), 16);
    first.answers("get user:more\r\n", "END\r\n");
    second.answers("get user:more\r\n", "END\r\n");
    assert_eq!(world.number("keyway_misses_held:user:"), 16);
}

#[test]
fn a_get_that_waits_counts_once() {
    let world = World::new(EventLoop::Auto, &[LONG]);
    let (mut first, mut second, mut third) = (world.client(), world.client(), world.client());
    first.answers("get user:1\r\n", "END\r\n");
    second.say("get user:1\r\n");
    third.say("lease-get user:1 50000\r\n");
    world.has_held(1);
    // Meanwhile the server executes both a few times.
    std::thread::sleep(Duration::from_millis(350));
    first.answers("set user:1 0 0 5\r\nvalue\r\n", "STORED\r\n");
    second.gets("VALUE user:1 0 5\r\nvalue\r\nEND\r\n");
    third.gets("VALUE user:1 0 5\r\nvalue\r\nEND\r\n");
    assert_eq!((world.number("get_misses"), world.number("get_hits")), (1, 2));
}

#[test]
fn a_server_that_stops_answers_the_gets_that_it_holds() {
    with_each_loop(|event_loop| {
        let world = World::new(event_loop, &[LONG]);
        let (mut first, mut second) = (world.client(), world.client());
        first.answers("get user:1\r\n", "END\r\n");
        second.say("get user:1\r\nmn\r\n");
        world.has_held(1);
        world.handle.shutdown();
        second.gets("END\r\nMN\r\n");
    });
}

#[test]
fn a_win_that_is_not_stored_is_won_again_when_its_connection_ends() {
    let world = World::new(EventLoop::Auto, &[]);
    let (mut first, mut second, program) = (world.client(), world.client(), world.program());
    // A key without an item.
    first.answers("mg new v N30\r\n", "VA 0 W\r\n\r\n");
    second.answers("mg new v N30\r\n", "VA 0 Z\r\n\r\n");
    // To a program that fetches it, it is being computed.
    let given_up = Fetch {
        wait: Duration::ZERO,
        compute_after_wait: false,
        ..Fetch::default()
    };
    assert!(
        program
            .fetch(b"new", &given_up, || Err("it does not know of the win"))
            .is_err_and(|why| why.to_string().contains("comput"))
    );
    // A stale one.
    second.answers("set stale 0 0 3\r\nold\r\n", "STORED\r\n");
    second.answers("md stale I T100\r\n", "HD\r\n");
    first.answers("mg stale v\r\n", "VA 3 W X\r\nold\r\n".replace("W X", "X W").as_str());
    second.answers("mg stale v\r\n", "VA 3 Z X\r\nold\r\n");
    drop(first);
    let until = Instant::now() + PATIENCE;
    let mut answer = String::new();
    while !answer.contains(" W") {
        assert!(Instant::now() < until, "it is never won again: {answer}");
        second.say("mg new v N30\r\n");
        answer = second.until("\r\n\r\n");
    }
    second.answers("mg stale v\r\n", "VA 3 X W\r\nold\r\n");
    // What is stored ends it.
    second.answers("ms new 5\r\nvalue\r\n", "HD\r\n");
    second.answers("mg new v N30\r\n", "VA 5\r\nvalue\r\n");
}

/// The worker that has answered the datagram answers the connections, too.
#[test]
fn a_win_of_a_datagram_does_not_end_with_another_clients_connection() {
    with_each_loop(|event_loop| {
        let world = World::with(1, event_loop, &[]);
        let (mut stays, udp) = (world.client(), UdpSocket::bind("127.0.0.1:0").unwrap());
        udp.set_read_timeout(Some(PATIENCE)).unwrap();
        udp.send_to(b"\0\x01\0\0\0\x01\0\0mg new v N30\r\n", world.udp).unwrap();
        let mut answer = [0; 100];
        let len = udp.recv(&mut answer).unwrap();
        assert_eq!(answer[8..len], *b"VA 0 W\r\n\r\n");
        let mut goes = world.client();
        goes.answers("mg other v N30\r\n", "VA 0 W\r\n\r\n");
        drop(goes);
        let until = Instant::now() + PATIENCE;
        let mut answer = String::new();
        while !answer.contains(" W") {
            assert!(
                Instant::now() < until,
                "what the connection has won is never won again: {answer}"
            );
            stays.say("mg other v N30\r\n");
            answer = stays.until("\r\n\r\n");
        }
        stays.answers("mg new v N30\r\n", "VA 0 Z\r\n\r\n");
    });
}

#[test]
fn a_program_computes_while_a_client_sees_an_empty_item() {
    let world = World::new(EventLoop::Auto, &[]);
    let (mut client, program) = (world.client(), world.program());
    let fetched = program.fetch(b"key", &Fetch::default(), || {
        client.answers("mg key v N30\r\n", "VA 0 Z\r\n\r\n");
        Ok::<_, ()>(Some(b"computed".to_vec()))
    });
    assert_eq!(fetched.unwrap(), Some(b"computed".to_vec()));
    client.answers("mg key v N30\r\n", "VA 8\r\ncomputed\r\n");
}

#[test]
fn a_value_that_a_program_has_fetched_has_no_mark() {
    let world = World::new(EventLoop::Auto, &[]);
    let (mut client, program) = (world.client(), world.program());
    let how = Fetch {
        ttl: 100,
        stale_while_revalidate: 50,
        early: 1.0,
        ..Fetch::default()
    };
    program.fetch(b"key", &how, || Ok::<_, ()>(Some(b"value".to_vec()))).unwrap();
    client.answers("mg key v\r\n", "VA 5\r\nvalue\r\n");
    client.answers("mg key v R200\r\n", "VA 5 W\r\nvalue\r\n");
    client.answers("mg key v R200\r\n", "VA 5 Z\r\nvalue\r\n");
}

/// The token of a `lease-get` that has missed.
fn token(client: &mut Client) -> u64 {
    client.say("lease-get key\r\n");
    let answer = client.until("END\r\n");
    let token = answer
        .strip_prefix("LVALUE key ")
        .and_then(|rest| rest.strip_suffix(" 0 0\r\n\r\nEND\r\n"));
    token.unwrap_or_else(|| panic!("{answer}")).parse().unwrap()
}

#[test]
fn leases_are_mcrouters() {
    let world = World::new(EventLoop::Auto, &[]);
    let (mut first, mut second) = (world.client(), world.client());
    let lease = token(&mut first);
    assert!(lease > 1);
    assert_eq!(token(&mut second), 1, "another client computes");
    second.answers(&format!("lease-set key {} 7 0 5\r\nother\r\n", lease + 1), "NOT_STORED\r\n");
    first.answers(&format!("lease-set key {lease} 7 0 5\r\nvalue\r\n"), "STORED\r\n");
    second.answers("lease-get key\r\n", "VALUE key 7 5\r\nvalue\r\nEND\r\n");
    first.answers(&format!("lease-set key {lease} 7 0 5\r\nagain\r\n"), "NOT_STORED\r\n");
    // A delete voids it.
    first.answers("delete key\r\n", "DELETED\r\n");
    let lease = token(&mut first);
    second.answers("delete key\r\n", "NOT_FOUND\r\n");
    first.answers(&format!("lease-set key {lease} 0 0 4\r\nlate\r\n"), "NOT_STORED\r\n");
    first.answers("get key\r\n", "END\r\n");
    // The next one gets a new one, and that of a connection that has gone is free.
    assert!(token(&mut first) > 1);
    drop(first);
    let until = Instant::now() + PATIENCE;
    while token(&mut second) == 1 {
        assert!(Instant::now() < until, "a lease outlives its connection");
    }
}
