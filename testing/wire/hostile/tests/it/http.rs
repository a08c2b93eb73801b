//! Clients that mean harm to the HTTP port: ones that never finish, endless requests, floods of connections. Others are served meanwhile, the
//! bad ones are closed, memory and descriptors stay bounded, and the memcached clients notice nothing.
//! Guards: P37, P45

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use harness::{DEADLINE, HttpAnswer, Kind, ServeOptions, Server, Transport, free_port, http_get, wait_until};
use hostile::is_served;

/// Most connections that the port holds at a time (`keyway_http::CONNECTIONS_MAX`).
const CONNECTIONS_MAX: usize = 32;
/// What the server's memory may grow by whatever these clients send: 32 connections of 8 KiB, and the allocator's own, generously.
const GROWTH_MAX: u64 = 8 << 20;

struct Target {
    server: Server,
    http: SocketAddr,
}

impl Target {
    fn start() -> Self {
        for _ in 0..5 {
            let http = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
            let options = ServeOptions {
                keyway_arguments: vec!["--http".into(), http.to_string()],
                ..ServeOptions::default()
            };
            match Server::try_start(Kind::Keyway, &options) {
                Ok(server) => return Self { server, http },
                Err(failure) => assert!(failure.contains("in use"), "{failure}"),
            }
        }
        panic!("no free port for HTTP")
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect_timeout(&self.http, DEADLINE).expect("a connection");
        stream.set_read_timeout(Some(DEADLINE)).expect("a deadline");
        stream
    }

    fn assert_serves(&self) {
        for path in ["/healthz", "/readyz", "/metrics"] {
            let answer = http_get(self.http, path, "*/*").unwrap_or_else(|error| panic!("{path}: {error}"));
            assert_eq!(answer.status, 200, "{path}: {}", answer.body);
        }
        is_served(&mut self.server.connect(Transport::Tcp), 1);
        assert!(!self.server.log().contains("panicked"), "{}", self.server.log());
    }

    /// Sends until the server has enough; the status of its answer, if that arrived. Meanwhile its memory must stay below `memory_max`.
    fn refusal_of(&self, pieces: impl Iterator<Item = Vec<u8>>, memory_max: u64) -> Option<u16> {
        let mut stream = self.connect();
        let mut sent = 0;
        let sent_all = pieces.into_iter().all(|piece| {
            sent += piece.len();
            let memory = self.server.anonymous_memory().unwrap_or(0);
            assert!(memory <= memory_max, "{memory} bytes after {sent} of a request");
            stream.write_all(&piece).is_ok()
        });
        assert!(!sent_all || is_closed(&stream), "it takes everything");
        HttpAnswer::read(stream).ok().map(|answer| answer.status)
    }

    /// Those of a server that has answered everything once: what it opens at the first request is there.
    fn descriptors_at_rest(&self) -> usize {
        self.assert_serves();
        self.descriptors()
    }

    fn descriptors(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.server.pid())).map_or(0, Iterator::count)
    }
}

/// Whether the server ends the connection, within the deadline; nothing is read that an answer needs.
fn is_closed(stream: &TcpStream) -> bool {
    let mut byte = [0];
    match stream.peek(&mut byte) {
        Ok(_) => true,
        Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
    }
}

#[test]
fn clients_that_never_finish_a_request_hold_no_memory_and_no_other_client() {
    const SLOW: usize = 200;
    let target = Target::start();
    let descriptors = target.descriptors_at_rest();
    let mut slow: Vec<TcpStream> = (0..SLOW).map(|_| target.connect()).collect();
    for byte in b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nX-Slow: " {
        for stream in &mut slow {
            // Most of them have been closed by then.
            let _ = stream.write_all(&[*byte]);
        }
        assert_eq!(http_get(target.http, "/healthz", "*/*").expect("an answer").status, 200);
        let held = target.descriptors().saturating_sub(descriptors);
        assert!(held <= CONNECTIONS_MAX + 8, "{held} descriptors");
    }
    target.assert_serves();
    // The last ones are closed by their deadline, although they go on.
    for stream in &mut slow {
        stream.set_read_timeout(Some(Duration::from_millis(20))).expect("a deadline");
        wait_until("a slow client is closed", DEADLINE, || {
            let _ = stream.write_all(b"x");
            is_closed(stream).then_some(())
        });
    }
    wait_until("its descriptors are closed", DEADLINE, || {
        (target.descriptors() <= descriptors + 2).then_some(())
    });
}

#[test]
fn requests_without_end_are_refused_in_little_memory() {
    let target = Target::start();
    target.assert_serves();
    let memory_max = target.server.anonymous_memory().unwrap_or(u64::MAX / 2) + GROWTH_MAX;
    let line = |text: &str| text.as_bytes().to_vec();
    for round in 0..4 {
        // A request line of up to 64 MiB.
        let endless = std::iter::once(line("GET /")).chain((0..1024).map(|_| vec![b'a'; 64 << 10]));
        let status = target.refusal_of(endless, memory_max);
        assert!(
            status.is_none_or(|status| status == 414 || status == 431),
            "{round}: {status:?}"
        );
        // 10,000 headers.
        let headers = (0..100).map(|n| (0..100).flat_map(|m| line(&format!("H{n}{m}: x\r\n"))).collect());
        let status = target.refusal_of(std::iter::once(line("GET / HTTP/1.1\r\n")).chain(headers), memory_max);
        assert!(status.is_none_or(|status| status == 431), "{round}: {status:?}");
        // One header of 64 MiB.
        let huge = std::iter::once(line("GET / HTTP/1.1\r\nH: ")).chain((0..1024).map(|_| vec![b'h'; 64 << 10]));
        let status = target.refusal_of(huge, memory_max);
        assert!(status.is_none_or(|status| status == 431), "{round}: {status:?}");
    }
    let mut stream = target.connect();
    let headers: String = (0..100).map(|n| format!("H{n}: x\r\n")).collect();
    stream
        .write_all(format!("GET / HTTP/1.1\r\nHost: localhost\r\n{headers}\r\n").as_bytes())
        .expect("few bytes");
    assert_eq!(HttpAnswer::read(stream).expect("an answer").status, 431);
    target.assert_serves();
}

#[test]
fn bodies_and_garbage_are_not_read() {
    let target = Target::start();
    let before = target.server.anonymous_memory();
    for request in [
        &b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000000\r\n\r\n"[..],
        b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffff\r\n",
    ] {
        let mut stream = target.connect();
        stream.write_all(request).expect("few bytes");
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).expect("an answer before the body");
        assert_eq!(&answer, b"HTTP/1.1 200");
        let body = vec![b'b'; 64 << 10];
        assert!((0..1600).any(|_| stream.write_all(&body).is_err()), "it takes 100 MB of body");
    }
    for garbage in [
        &b"\0\x01\x02\r\n\r\n"[..],
        b"set k 0 0 1\r\nx\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        &[0xFF; 9000],
    ] {
        let mut stream = target.connect();
        let _ = stream.write_all(garbage);
        let answer = HttpAnswer::read(stream).ok();
        assert!(answer.is_none_or(|answer| (400..500).contains(&answer.status)), "{garbage:?}");
    }
    if let (Some(before), Some(after)) = (before, target.server.anonymous_memory()) {
        assert!(after <= before + GROWTH_MAX, "{before} bytes, then {after}");
    }
    target.assert_serves();
}

#[test]
fn a_flood_of_connections_leaves_descriptors_to_the_clients() {
    let target = Target::start();
    let descriptors = target.descriptors_at_rest();
    let mut flood = Vec::new();
    for _ in 0..1000 {
        flood.push(target.connect());
        let held = target.descriptors().saturating_sub(descriptors);
        assert!(held <= CONNECTIONS_MAX + 8, "{held} descriptors");
    }
    target.assert_serves();
}

#[test]
fn a_client_that_never_reads_its_answer_is_closed() {
    let target = Target::start();
    let descriptors = target.descriptors_at_rest();
    let unread: Vec<TcpStream> = (0..CONNECTIONS_MAX)
        .map(|_| {
            let mut stream = target.connect();
            stream
                .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
                .expect("few bytes");
            stream
        })
        .collect();
    wait_until("their descriptors are closed", DEADLINE, || {
        (target.descriptors() <= descriptors + 2).then_some(())
    });
    target.assert_serves();
    drop(unread);
}
