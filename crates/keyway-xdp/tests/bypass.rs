//! The same-machine bypass in the kernel: byte order, bounds, ends of connections, and the programs' own end. Needs root, which may
//! load programs, and a cgroup2 file system.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use harness::{DEADLINE, Random, Scratch, cgroup, say, skip, wait_until};
use keyway_xdp::bypass::{Bypass, BypassError, Counts, QUEUED_MAX};
use libbpf_rs::query::ProgInfoIter;
use nix::sys::socket::sockopt::TcpUlp;
use nix::sys::socket::{MsgFlags, send, setsockopt};
use socket2::{SockRef, Socket};

/// Addresses of this machine by which a client reaches it.
const ADDRESSES: [&str; 4] = ["127.0.0.1", "127.0.0.2", "::1", "::ffff:127.0.0.1"];

/// The cgroup, or `None` where the test cannot run. One test at a time: some count programs.
fn place(test: &str) -> Option<(&'static Path, MutexGuard<'static, ()>)> {
    static ALONE: Mutex<()> = Mutex::new(());
    if !nix::unistd::geteuid().is_root() {
        skip(test, "this is not root, which may load its programs");
        return None;
    }
    match cgroup() {
        Ok(folder) => Some((folder, ALONE.lock().unwrap_or_else(PoisonError::into_inner))),
        Err(why) => {
            skip(test, &why);
            None
        }
    }
}

fn start(cgroup: &Path) -> Bypass {
    Bypass::start(cgroup, 64, true).unwrap()
}

fn listen(bypass: Option<&Bypass>, ip: &str) -> TcpListener {
    let listener = TcpListener::bind((ip, 0)).unwrap();
    if let Some(bypass) = bypass {
        serve(bypass, &listener);
    }
    listener
}

fn serve(bypass: &Bypass, listener: &TcpListener) {
    let port = listener.local_addr().unwrap().port();
    bypass.serve(listener.as_fd(), port).unwrap();
}

/// Client and server.
fn connect(listener: &TcpListener) -> (TcpStream, TcpStream) {
    connect_to(listener, listener.local_addr().unwrap())
}

fn connect_to(listener: &TcpListener, address: SocketAddr) -> (TcpStream, TcpStream) {
    let client = TcpStream::connect_timeout(&address, DEADLINE).unwrap();
    let (server, _) = listener.accept().unwrap();
    for end in [&client, &server] {
        end.set_read_timeout(Some(DEADLINE)).unwrap();
        end.set_write_timeout(Some(DEADLINE)).unwrap();
        end.set_nodelay(true).unwrap();
    }
    (client, server)
}

fn exchange(from: &mut TcpStream, to: &mut TcpStream, bytes: &[u8]) {
    from.write_all(bytes).unwrap();
    let mut got = vec![0; bytes.len()];
    to.read_exact(&mut got).unwrap();
    assert!(got == bytes, "other bytes than were sent");
}

/// What was counted since `before`.
fn since(bypass: &Bypass, before: Counts) -> Counts {
    let now = bypass.counts().unwrap();
    Counts {
        connections: now.connections - before.connections,
        closed: now.closed - before.closed,
        messages: now.messages - before.messages,
        bytes: now.bytes - before.bytes,
        behind: now.behind - before.behind,
        full: now.full - before.full,
    }
}

#[test]
fn each_kind_of_local_address_is_bypassed() {
    let Some((cgroup, _alone)) = place("the bypass of local addresses") else {
        return;
    };
    let bypass = start(cgroup);
    for address in ADDRESSES {
        let before = bypass.counts().unwrap();
        // A client by IPv4 of a server that listens for both.
        let listener = listen(Some(&bypass), if address.starts_with("::ffff") { "::" } else { address });
        let ip = address.strip_prefix("::ffff:").unwrap_or(address).parse().unwrap();
        let port = listener.local_addr().unwrap().port();
        let (mut client, mut server) = connect_to(&listener, SocketAddr::new(ip, port));
        for _ in 0..3 {
            exchange(&mut client, &mut server, b"get k\r\n");
            exchange(&mut server, &mut client, b"END\r\n");
        }
        let counted = since(&bypass, before);
        let expected = Counts {
            connections: 1,
            messages: 6,
            bytes: 36,
            ..Counts::default()
        };
        assert_eq!(counted, expected, "{address}");
        drop((client, server));
        wait_until("both ends are closed", DEADLINE, || {
            (since(&bypass, before).closed == 1).then_some(())
        });
    }
}

/// A byte of the stream that belongs to this seed.
fn byte(seed: u64, at: u64) -> u8 {
    let word = (seed ^ at >> 3).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (word >> (32 + 4 * (at & 7))).to_le_bytes()[0]
}

/// Sends `len` bytes of a stream in pieces of random lengths.
fn pour(mut stream: &TcpStream, random: &mut Random, seed: u64, len: u64) {
    let mut at = 0;
    while at < len {
        let longest = [20, 500, 5_000, 40_000, 300_000][random.index(5)];
        let piece: Vec<u8> = (at..len.min(at + 1 + random.below(longest))).map(|i| byte(seed, i)).collect();
        stream.write_all(&piece).unwrap();
        at += piece.len() as u64;
    }
}

/// Reads, and again where the kernel ends a receive of a bypassed socket early: it does so when something wakes the process, such as the
/// acknowledgement of a half-close, and nothing is there to read.
fn read(mut stream: &TcpStream, buffer: &mut [u8]) -> usize {
    wait_until("something arrives", DEADLINE, || match stream.read(buffer) {
        Err(error) if error.kind() == ErrorKind::WouldBlock => None,
        result => Some(result.unwrap()),
    })
}

/// Reads `len` bytes of a stream, in pieces of random lengths.
fn drain(stream: &TcpStream, random: &mut Random, seed: u64, len: u64) {
    let mut buffer = vec![0; 300_000];
    let mut at = 0;
    while at < len {
        let longest = [10, 1_000, 300_000][random.index(3)];
        let room = 1 + random.below(longest).min(len - at - 1);
        let got = read(stream, &mut buffer[..usize::try_from(room).unwrap()]);
        assert_ne!(got, 0, "it ended after {at} of {len} bytes");
        for (i, &found) in (at..).zip(&buffer[..got]) {
            assert_eq!(found, byte(seed, i), "byte {i} of {len}, seed {seed}");
        }
        at += got as u64;
    }
}

/// Both directions at once and in turns, both ends closing in different ways, while programs come and go.
#[test]
fn no_byte_is_lost_or_out_of_order_while_programs_come_and_go() {
    let Some((cgroup, _alone)) = place("the storm through the bypass") else {
        return;
    };
    let seed = Random::seed_for("bypass");
    say(&format!("seed {seed}"));
    let rounds: u64 = if std::env::var_os("KEYWAY_TESTS_FULL").is_some() {
        400
    } else {
        25
    };
    let listener = listen(None, "127.0.0.1");
    let (stop, sum) = (AtomicBool::new(false), Mutex::new(Counts::default()));
    /// Also if a round fails.
    struct Stopping<'a>(&'a AtomicBool);
    impl Drop for Stopping<'_> {
        fn drop(&mut self) {
            self.0.store(true, SeqCst);
        }
    }
    std::thread::scope(|scope| {
        let attacher = scope.spawn(|| {
            let mut random = Random::new(seed);
            while !stop.load(SeqCst) {
                let bypass = start(cgroup);
                let before = bypass.counts().unwrap();
                serve(&bypass, &listener);
                std::thread::sleep(Duration::from_millis(random.below(200)));
                let counts = since(&bypass, before);
                let mut sum = sum.lock().unwrap();
                sum.messages += counts.messages;
                sum.behind += counts.behind;
                sum.full += counts.full;
                drop(bypass);
                std::thread::yield_now();
            }
        });
        let stopping = Stopping(&stop);
        for round in 0..rounds {
            let pairs: Vec<_> = (0..4).map(|_| connect(&listener)).collect();
            std::thread::scope(|ends| {
                for (i, (client, server)) in (0_u64..).zip(&pairs) {
                    let seeds = [seed ^ round << 8 ^ i, seed ^ round << 8 ^ i ^ 0x80];
                    let mut plan = Random::new(seeds[0]);
                    // Turns: (bytes there, bytes back, both at once)
                    let turns: Vec<(u64, u64, bool)> = (0..1 + plan.below(16))
                        .map(|_| {
                            let longest = [60, 3_000, 90_000, 90_000, 1_000_000, 3_000_000][plan.index(6)];
                            (1 + plan.below(longest), 1 + plan.below(longest), plan.below(4) == 0)
                        })
                        .collect();
                    for (stream, is_client) in [(client, true), (server, false)] {
                        let turns = turns.clone();
                        ends.spawn(move || {
                            let mut random = Random::new(seeds[usize::from(is_client)] ^ 0x7777);
                            for (turn, (there, back, at_once)) in (0_u64..).zip(turns) {
                                let seed = |direction| harness::mix(seeds[0] ^ turn << 32 ^ direction);
                                let (out, into) = if is_client {
                                    ((seed(1), there), (seed(2), back))
                                } else {
                                    ((seed(2), back), (seed(1), there))
                                };
                                if at_once {
                                    let mut other = random.fork(turn);
                                    std::thread::scope(|both| {
                                        both.spawn(|| pour(stream, &mut other, out.0, out.1));
                                        drain(stream, &mut random, into.0, into.1);
                                    });
                                } else if is_client {
                                    pour(stream, &mut random, out.0, out.1);
                                    drain(stream, &mut random, into.0, into.1);
                                } else {
                                    drain(stream, &mut random, into.0, into.1);
                                    pour(stream, &mut random, out.0, out.1);
                                }
                            }
                            // Half-closes: the client first, which still gets the last answer and then the end.
                            let mut stream = stream;
                            if is_client {
                                stream.write_all(b"last").unwrap();
                                stream.shutdown(Shutdown::Write).unwrap();
                            }
                            let (mut rest, mut buffer) = (Vec::new(), [0; 10]);
                            loop {
                                match read(stream, &mut buffer) {
                                    0 => break,
                                    len => rest.extend_from_slice(&buffer[..len]),
                                }
                            }
                            assert_eq!(rest, if is_client { &b"answer"[..] } else { b"last" });
                            if !is_client {
                                stream.write_all(b"answer").unwrap();
                                stream.shutdown(Shutdown::Write).unwrap();
                            }
                        });
                    }
                }
            });
        }
        drop(stopping);
        attacher.join().unwrap();
    });
    let sum = sum.into_inner().unwrap();
    say(&format!("{sum:?}"));
    // It was about what it is for.
    assert!(sum.messages > 100 && sum.behind > 0 && sum.full > 0, "{sum:?}");
}

/// Sends what fits without waiting; the number of bytes.
fn fill(stream: &mut TcpStream, piece: &[u8]) -> usize {
    let mut sum = 0;
    stream.set_nonblocking(true).unwrap();
    loop {
        match stream.write(piece) {
            Ok(len) => sum += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("after {sum} bytes: {error}"),
        }
        assert!(sum < 64 << 20, "a peer that reads nothing takes everything");
    }
    stream.set_nonblocking(false).unwrap();
    sum
}

/// Sends a part of a piece without waiting; whether not all of it fitted.
fn is_stopped(stream: &TcpStream, piece: &[u8], sent: &mut usize) -> bool {
    stream.set_nonblocking(true).unwrap();
    let result = (&*stream).write(piece);
    stream.set_nonblocking(false).unwrap();
    let len = match result {
        Ok(len) => len,
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        Err(error) => panic!("{error}"),
    };
    *sent += len;
    len < piece.len()
}

/// A peer that does not read gets a bounded number of bytes by the bypass, then TCP holds the sender back; nothing is lost.
#[test]
fn a_peer_that_does_not_read_holds_the_sender_back() {
    let Some((cgroup, _alone)) = place("the bound of the bypass") else {
        return;
    };
    let bypass = start(cgroup);
    let listener = listen(Some(&bypass), "127.0.0.1");
    // And one message, of as many pages as the kernel puts into one.
    let most = QUEUED_MAX + 17 * (32 << 10);
    for (len, talks) in [
        (500, false),
        (500, true),
        (5_000, true),
        (40_000, true),
        (200_000, false),
        (1 << 20, true),
    ] {
        let before = bypass.counts().unwrap();
        let (mut client, mut server) = connect(&listener);
        let piece = vec![7; len];
        let mut sent = 0;
        let talks = if talks { 3 * QUEUED_MAX / len } else { 0 };
        for _ in 0..talks {
            // A peer that sends and never reads: as a client that pipelines and takes no answers.
            server.write_all(b"x").unwrap();
            client.read_exact(&mut [0]).unwrap();
            if is_stopped(&client, &piece, &mut sent) {
                break;
            }
        }
        sent += fill(&mut client, &piece);
        let counted = since(&bypass, before);
        let handed = usize::try_from(counted.bytes).unwrap();
        assert!(
            (QUEUED_MAX..most + talks).contains(&handed),
            "{handed} bytes unread, pieces of {len}, {talks}"
        );
        assert!(counted.full > 0, "{counted:?}");
        let mut got = vec![0; 1 << 20];
        while sent > 0 {
            let len = server.read(&mut got).unwrap();
            assert!(len > 0 && got[..len].iter().all(|&byte| byte == 7));
            sent -= len;
        }
        // All is read, and said: both directions are handed over again. After a message for which there was no room the kernel
        // sends one more without asking.
        for _ in 0..2 {
            exchange(&mut client, &mut server, b"z");
            exchange(&mut server, &mut client, b"y");
        }
        let before = bypass.counts().unwrap();
        exchange(&mut client, &mut server, b"z");
        assert_eq!(since(&bypass, before).messages, 1, "pieces of {len}");
    }
}

/// A peer that speaks before it has read all that TCP has brought does not let later data overtake it.
#[test]
fn data_does_not_overtake_what_tcp_has_brought() {
    let Some((cgroup, _alone)) = place("order after TCP") else {
        return;
    };
    let bypass = start(cgroup);
    let listener = listen(Some(&bypass), "127.0.0.1");
    let (client, mut server) = connect(&listener);
    let (mut at, mut checked) = (0, 0);
    let send = |at: &mut u64, len: u64| -> bool {
        let piece: Vec<u8> = (*at..*at + len).map(|i| byte(9, i)).collect();
        let mut sent = 0;
        let is_full = is_stopped(&client, &piece, &mut sent);
        *at += sent as u64;
        is_full
    };
    let mut take = |server: &mut TcpStream, end: u64| {
        let mut got = vec![0; usize::try_from(end - checked).unwrap()];
        server.read_exact(&mut got).unwrap();
        for (i, found) in (checked..).zip(got) {
            assert_eq!(found, byte(9, i), "byte {i}");
        }
        checked = end;
    };
    while !send(&mut at, 5_000) {}
    let filled = at;
    for word in 1..=40 {
        take(&mut server, filled * word / 41);
        server.write_all(b"x").unwrap();
        (&client).read_exact(&mut [0]).unwrap();
        send(&mut at, 1_000);
    }
    take(&mut server, at);
}

/// What was sent before the programs went away is still read; nothing of them stays when the connections are closed.
#[test]
fn connections_outlive_the_programs_and_take_what_is_left_with_them() {
    let Some((cgroup, _alone)) = place("the end of the bypass's programs") else {
        return;
    };
    let programs = || -> BTreeSet<u32> {
        let ours = ProgInfoIter::default().filter(|info| info.name.as_encoded_bytes() == b"kw_sent");
        ours.map(|info| info.id).collect()
    };
    let (before, bypass) = (programs(), start(cgroup));
    let own: Vec<u32> = programs().difference(&before).copied().collect();
    let [own] = own[..] else {
        panic!("one program is new: {own:?}")
    };
    let listener = listen(Some(&bypass), "127.0.0.1");
    let (mut client, mut server) = connect(&listener);
    exchange(&mut client, &mut server, b"ask");
    server.write_all(b"ans").unwrap();
    client.write_all(b"more").unwrap();
    drop(bypass);
    assert!(programs().contains(&own), "the connection needs the program");
    server.write_all(b"wer").unwrap();
    let (mut answer, mut asked) = ([0; 6], [0; 4]);
    client.read_exact(&mut answer).unwrap();
    server.read_exact(&mut asked).unwrap();
    assert_eq!((&answer, &asked), (b"answer", b"more"));
    exchange(&mut client, &mut server, &vec![1; 200_000]);
    exchange(&mut server, &mut client, b"still");
    // Of a server that has died the last answers are there, and then the end.
    server.write_all(b"last").unwrap();
    drop(server);
    let mut rest = Vec::new();
    client.read_to_end(&mut rest).unwrap();
    assert_eq!(rest, b"last");
    drop((client, listener));
    wait_until("the last connection takes the programs with it", DEADLINE, || {
        (!programs().contains(&own)).then_some(())
    });
}

/// Errors of a connection that ends are TCP's.
#[test]
fn ends_of_connections_are_those_of_tcp() {
    let Some((cgroup, _alone)) = place("the ends of bypassed connections") else {
        return;
    };
    let bypass = start(cgroup);
    let plain = listen(None, "127.0.0.1");
    let bypassed = listen(Some(&bypass), "127.0.0.1");
    let met = |listener: &TcpListener| -> Vec<Result<usize, ErrorKind>> {
        let kind = |result: io::Result<usize>| result.map_err(|error| error.kind());
        let mut met = Vec::new();
        let ready = |listener: &TcpListener| {
            let (mut client, mut server) = connect(listener);
            exchange(&mut client, &mut server, b"ask");
            exchange(&mut server, &mut client, b"answer");
            (client, server)
        };
        // After a half-close: no more to send, and the answer comes.
        let (mut client, mut server) = ready(listener);
        client.shutdown(Shutdown::Write).unwrap();
        met.push(kind(client.write(b"x")));
        met.push(kind(server.read(&mut [0; 8])));
        exchange(&mut server, &mut client, b"answer");
        // Closed: the other end reads the last message, then the end; it may send once, and then not.
        let (mut client, mut server) = ready(listener);
        client.write_all(b"last").unwrap();
        drop(client);
        met.push(kind(server.read(&mut [0; 8])));
        met.push(kind(server.read(&mut [0; 8])));
        met.push(kind(server.write(b"x")));
        met.push(kind(server.write(b"x")));
        // Reset: what had come is read first.
        let (client, mut server) = ready(listener);
        (&client).write_all(b"last").unwrap();
        SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
        drop(client);
        let reset = server.set_nonblocking(true);
        reset.unwrap();
        let mut reads = Vec::new();
        wait_until("the reset arrives", DEADLINE, || {
            let read = kind(server.read(&mut [0; 8]));
            let is_over = !matches!(read, Ok(1..) | Err(ErrorKind::WouldBlock));
            if read != Err(ErrorKind::WouldBlock) {
                reads.push(read);
            }
            is_over.then_some(())
        });
        // TCP itself may drop what had come with a reset.
        met.push(*reads.last().unwrap());
        met.push(kind(server.write(b"x")));
        met
    };
    let before = bypass.counts().unwrap();
    assert_eq!(met(&bypassed), met(&plain));
    assert_eq!(since(&bypass, before).connections, 3);
    // Urgent data is in the stream, as every other byte, and disturbs nothing.
    let (mut client, mut server) = connect(&bypassed);
    exchange(&mut client, &mut server, b"ask");
    assert_eq!(send(std::os::fd::AsRawFd::as_raw_fd(&client), b"!", MsgFlags::MSG_OOB), Ok(1));
    client.write_all(b"next").unwrap();
    let mut got = [0; 5];
    server.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"!next");
    exchange(&mut server, &mut client, b"answer");
}

/// Two servers' programs on one cgroup: each has its own connections.
#[test]
fn programs_of_two_servers_do_not_meet() {
    let Some((cgroup, _alone)) = place("the bypasses of two servers") else {
        return;
    };
    let (one, two) = (start(cgroup), start(cgroup));
    let listeners = [
        listen(Some(&one), "127.0.0.1"),
        listen(Some(&two), "127.0.0.1"),
        listen(None, "127.0.0.1"),
    ];
    let before = [one.counts().unwrap(), two.counts().unwrap()];
    for (number, listener) in (1..).zip(&listeners) {
        for _ in 0..number {
            let (mut client, mut server) = connect(listener);
            exchange(&mut client, &mut server, b"ask");
            exchange(&mut server, &mut client, b"answer");
        }
    }
    assert_eq!(since(&one, before[0]).connections, 1);
    assert_eq!(since(&two, before[1]).connections, 2);
    // A listening socket that both serve, as in a take-over: one has it, whichever, and it works.
    serve(&two, &listeners[0]);
    for _ in 0..20 {
        let (mut client, mut server) = connect(&listeners[0]);
        exchange(&mut client, &mut server, b"ask");
        exchange(&mut server, &mut client, &vec![1; 100_000]);
        exchange(&mut client, &mut server, b"ask");
    }
    assert_eq!(since(&one, before[0]).connections + since(&two, before[1]).connections, 23);
}

/// Kernel TLS and the bypass do not go together: it is refused, where there is one.
#[test]
fn kernel_tls_is_refused_where_there_is_a_bypass() {
    let Some((cgroup, _alone)) = place("kernel TLS beside the bypass") else {
        return;
    };
    let bypass = start(cgroup);
    let ask = |listener: &TcpListener| {
        let (client, server) = connect(listener);
        [
            setsockopt(&client, TcpUlp::default(), b"tls"),
            setsockopt(&server, TcpUlp::default(), b"tls"),
        ]
    };
    let refused = Err(nix::errno::Errno::EPERM);
    assert_eq!(ask(&listen(Some(&bypass), "127.0.0.1")), [refused; 2]);
    let plain = ask(&listen(None, "127.0.0.1"));
    assert!(!plain.contains(&refused), "{plain:?}");
    // Other options work, long ones too.
    let (client, _server) = connect(&listen(Some(&bypass), "127.0.0.1"));
    SockRef::from(&client).set_keepalive(true).unwrap();
    assert!(Socket::from(client).keepalive().unwrap());
}

#[test]
fn what_is_no_cgroup_is_refused() {
    let Some((_, _alone)) = place("the bypass's refusals") else {
        return;
    };
    let scratch = Scratch::new();
    let absent = Bypass::start(&scratch.join("absent"), 1, false);
    assert!(matches!(absent, Err(BypassError::NoCgroup(..))), "{absent:?}");
    let other = Bypass::start(scratch.path(), 1, false);
    assert!(matches!(other, Err(BypassError::NotCgroup2(_))), "{other:?}");
}

/// A process outside the cgroup is told so.
#[test]
fn a_server_outside_the_cgroup_is_refused() {
    let Some((cgroup, _alone)) = place("a bypass elsewhere") else {
        return;
    };
    let elsewhere = cgroup.join(format!("keyway-test-{}", std::process::id()));
    std::fs::create_dir(&elsewhere).unwrap();
    let result = Bypass::start(&elsewhere, 1, false);
    std::fs::remove_dir(&elsewhere).unwrap();
    assert!(matches!(result, Err(BypassError::Outside(_))), "{result:?}");
}
