//! TLS from outside, by clients that have certificates of their own making. The conformance table is held over TLS elsewhere
//! (`cargo test -p conformance`); this is what only TLS has: certificates, handshakes, sessions, broken records.
//! Guards: P38

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use harness::{
    Authority, DEADLINE, Identity, Kind, Random, Scratch, ServeOptions, Server, TlsClient, Transport, Validity, free_port,
    full_run, program_on_path, run_to_end, say, skip, wait_for_ready, wait_until,
};
use rustls::HandshakeKind;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;

/// A server with certificates that the test makes, in files that the test may change.
struct Secured {
    server: Server,
    address: SocketAddr,
    authority: Authority,
    folder: Scratch,
}

impl Secured {
    fn start(arguments: &[&str]) -> Self {
        Self::start_with(arguments, |_, _| Vec::new())
    }

    /// `more`: further arguments, which may name files in the folder.
    fn start_with(arguments: &[&str], more: impl FnOnce(&Authority, &Scratch) -> Vec<String>) -> Self {
        let (authority, folder) = (Authority::new(), Scratch::new());
        authority.signs("first", Validity::Valid).write_to(folder.path(), "server");
        let more = more(&authority, &folder);
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut all = own_arguments(&folder, address);
        all.extend(arguments.iter().map(|&argument| argument.to_owned()));
        all.extend(more);
        let server = Server::start(Kind::Keyway, &options(all));
        Self {
            server,
            address,
            authority,
            folder,
        }
    }

    fn client(&self) -> TlsClient {
        TlsClient::trusting(&self.authority)
    }

    fn connect(&self) -> Client {
        Client::new(&self.client(), self.address).expect("a connection")
    }

    /// Whether a client with this configuration is served.
    fn serves(&self, client: &TlsClient) -> bool {
        Client::new(client, self.address)
            .is_ok_and(|mut client| client.ask("version").is_ok_and(|line| line.starts_with("VERSION")))
    }

    /// Puts another certificate in the place of the server's.
    fn renew(&self, identity: &Identity) {
        identity.write_to(self.folder.path(), "server");
    }

    fn stat(&self, name: &str) -> u64 {
        self.server.stat(name)
    }
}

fn own_arguments(folder: &Scratch, address: SocketAddr) -> Vec<String> {
    let file = |name: &str| folder.join(name).display().to_string();
    let listen = format!("tls://{address}");
    [
        "--listen",
        &listen,
        "--tls-cert",
        &file("server.pem"),
        "--tls-key",
        &file("server.key"),
        "-v",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn options(keyway_arguments: Vec<String>) -> ServeOptions {
    ServeOptions {
        keyway_arguments,
        threads: 2,
        ..ServeOptions::default()
    }
}

/// A client, and the certificate that it was shown.
struct Client {
    stream: BufReader<UnixStream>,
    shown: CertificateDer<'static>,
}

impl Client {
    fn new(client: &TlsClient, address: SocketAddr) -> io::Result<Self> {
        let (stream, shown) = client.connect(address)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        Ok(Self {
            stream: BufReader::new(stream),
            shown,
        })
    }

    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(line.trim_end().to_owned()),
        }
    }

    fn ask(&mut self, request: &str) -> io::Result<String> {
        self.send(format!("{request}\r\n").as_bytes())?;
        self.line()
    }
}

fn der(identity: &Identity) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(identity.certificate.as_bytes()).expect("a certificate")
}

fn hang_up(pid: u32) {
    let status = Command::new("/bin/sh").args(["-c", &format!("kill -HUP {pid}")]).status();
    assert!(status.is_ok_and(|status| status.success()));
}

#[test]
fn both_versions_are_spoken_and_the_older_one_is_refused_on_request() {
    for (arguments, speaks_12) in [(&[][..], true), (&["--tls-min-version", "1.3"], false)] {
        let server = Secured::start(arguments);
        assert!(server.serves(&TlsClient::speaking(&server.authority, &rustls::version::TLS13)));
        let old = TlsClient::speaking(&server.authority, &rustls::version::TLS12);
        assert_eq!(server.serves(&old), speaks_12, "{arguments:?}");
        assert_eq!(server.stat("ssl_handshake_errors"), u64::from(!speaks_12));
        assert!(server.stat("keyway_certificate_days_left") > 365);
    }
}

#[test]
fn large_values_come_whole_and_a_client_that_does_not_read_is_not_read_either() {
    let server = Secured::start(&["--max-item", "4m"]);
    let value: Vec<u8> = (0..3_000_000_u32).map(|n| u8::try_from(n % 251).unwrap()).collect();
    let mut client = server.connect();
    client.send(format!("set large 7 0 {}\r\n", value.len()).as_bytes()).unwrap();
    client.send(&value).unwrap();
    assert_eq!(client.ask("").unwrap(), "STORED");
    // Twenty of them are 60 MB, asked for before any is read.
    let times = 20;
    client.send("get large\r\n".repeat(times).as_bytes()).unwrap();
    wait_until("the server stops sending to a client that does not read", DEADLINE, || {
        let before = server.stat("bytes_written");
        std::thread::sleep(Duration::from_millis(50));
        // What `stats` itself takes is written too.
        (server.stat("bytes_written") - before < 100_000).then_some(())
    });
    assert!(server.stat("keyway_connection_memory") < 16 << 20);
    for _ in 0..times {
        assert_eq!(client.line().unwrap(), format!("VALUE large 7 {}", value.len()));
        let mut got = vec![0; value.len()];
        client.stream.read_exact(&mut got).unwrap();
        assert!(got == value);
        assert_eq!(
            (client.line().unwrap(), client.line().unwrap()),
            (String::new(), "END".to_owned())
        );
    }
}

#[test]
fn the_end_of_a_connection_is_announced_so_that_no_answer_is_cut_unnoticed() {
    let server = Secured::start(&[]);
    let mut tcp = TcpStream::connect(server.address).unwrap();
    tcp.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut session = server.client().session();
    let mut stream = rustls::Stream::new(&mut session, &mut tcp);
    stream.write_all(b"version\r\nquit\r\n").unwrap();
    let mut answer = String::new();
    // Without the alert close_notify rustls fails here (UnexpectedEof).
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("VERSION "), "{answer}");
}

#[test]
fn a_session_is_resumed_without_a_new_agreement_on_keys() {
    let server = Secured::start(&[]);
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let client = TlsClient::speaking(&server.authority, version);
        let mut kinds = Vec::new();
        for _ in 0..2 {
            let mut tcp = TcpStream::connect(server.address).unwrap();
            tcp.set_read_timeout(Some(DEADLINE)).unwrap();
            let mut session = client.session();
            let mut stream = rustls::Stream::new(&mut session, &mut tcp);
            stream.write_all(b"version\r\n").unwrap();
            // The ticket comes with the first answer.
            assert!(stream.read(&mut [0; 256]).unwrap() > 0);
            kinds.push(session.handshake_kind());
        }
        assert_eq!(kinds, [Some(HandshakeKind::Full), Some(HandshakeKind::Resumed)]);
    }
    assert_eq!(server.stat("ssl_new_sessions"), 2);
}

#[test]
fn clients_need_the_certificates_that_the_options_ask_for() {
    let stranger = Authority::new();
    for optional in [false, true] {
        let server = Secured::start_with(&[], |authority, folder| {
            let file = folder.join("clients.pem");
            std::fs::write(&file, authority.certificate()).unwrap();
            let mut arguments = vec!["--tls-client-ca".to_owned(), file.display().to_string()];
            arguments.extend(optional.then(|| "--tls-client-optional".to_owned()));
            arguments
        });
        let has = |identity: &Identity| TlsClient::with_identity(&server.authority, identity);
        let good = server.authority.signs("a client", Validity::Valid);
        assert!(server.serves(&has(&good)));
        assert_eq!(server.serves(&server.client()), optional, "without a certificate");
        assert!(!server.serves(&has(&server.authority.signs("a client", Validity::Expired))));
        assert!(!server.serves(&has(&stranger.signs("a client", Validity::Valid))));
        assert_eq!(server.stat("ssl_handshake_errors"), if optional { 2 } else { 3 });
    }
}

#[test]
fn a_new_certificate_is_for_new_connections_and_a_bad_one_changes_nothing() {
    let server = Secured::start(&[]);
    let mut first = server.connect();
    let second = server.authority.signs("second", Validity::Valid);
    server.renew(&second);
    assert_ne!(server.connect().shown, der(&second));
    assert_eq!(first.ask("refresh_certs").unwrap(), "OK");
    assert_eq!(server.connect().shown, der(&second));

    let third = server.authority.signs("third", Validity::Valid);
    server.renew(&third);
    hang_up(server.server.pid());
    wait_until("SIGHUP brings the third certificate", DEADLINE, || {
        (server.connect().shown == der(&third)).then_some(())
    });

    // A key of another certificate, no certificate at all, and none in the file.
    let other = server.authority.signs("another", Validity::Valid);
    let bad = [
        Identity {
            certificate: other.certificate.clone(),
            key: third.key.clone(),
        },
        Identity {
            certificate: "-----BEGIN CERTIFICATE-----\nbm9uZQ==\n-----END CERTIFICATE-----\n".to_owned(),
            key: other.key.clone(),
        },
        Identity {
            certificate: String::new(),
            key: other.key,
        },
    ];
    for identity in bad {
        server.renew(&identity);
        let answer = first.ask("refresh_certs").unwrap();
        assert!(
            answer.starts_with("SERVER_ERROR") && answer.contains("the old one stays"),
            "{answer}"
        );
        assert_eq!(server.connect().shown, der(&third));
    }
    let log = server.server.log();
    assert_eq!(log.matches("the old certificate stays in force").count(), 3, "{log}");
    assert!(
        first.ask("version").unwrap().starts_with("VERSION "),
        "an established connection goes on"
    );
}

#[test]
fn certificates_are_renewed_under_load_and_no_connection_fails() {
    let server = Secured::start(&[]);
    let times = if full_run() { 1000 } else { 60 };
    let (is_over, asked) = (AtomicBool::new(false), AtomicU64::new(0));
    let identities = ["one", "two"].map(|name| server.authority.signs(name, Validity::Valid));
    std::thread::scope(|scope| {
        for reconnects in [false, false, true, true] {
            let (server, is_over, asked) = (&server, &is_over, &asked);
            scope.spawn(move || {
                let mut client = server.connect();
                while !is_over.load(Relaxed) {
                    if reconnects {
                        client = server.connect();
                    }
                    assert!(client.ask("version").expect("an answer").starts_with("VERSION "));
                    asked.fetch_add(1, Relaxed);
                }
            });
        }
        let mut admin = server.connect();
        for time in 0..times {
            let before = asked.load(Relaxed);
            server.renew(&identities[time % 2]);
            assert_eq!(admin.ask("refresh_certs").unwrap(), "OK");
            wait_until("the clients go on", DEADLINE, || {
                (asked.load(Relaxed) > before + 4).then_some(())
            });
        }
        is_over.store(true, Relaxed);
    });
    assert_eq!((server.stat("ssl_handshake_errors"), server.stat("ssl_proto_errors")), (0, 0));
}

#[test]
fn handshakes_that_dawdle_end_at_their_deadline_and_are_counted() {
    let server = Secured::start(&[]);
    let hello = client_hello(&server.client());
    let start = Instant::now();
    let mut dawdlers: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    // One says nothing, one the first half, and one sends a byte now and then, which must not help.
    dawdlers[1].write_all(&hello[..hello.len() / 2]).unwrap();
    for byte in &hello[..8] {
        dawdlers[2].write_all(&[*byte]).unwrap();
        std::thread::sleep(Duration::from_millis(500));
    }
    for mut dawdler in dawdlers {
        dawdler.set_read_timeout(Some(DEADLINE)).unwrap();
        // The end, or a reset because the server had unread bytes: not the timeout.
        let end = dawdler.read_to_end(&mut Vec::new());
        assert!(end.as_ref().is_ok_and(|&count| count == 0) || end.is_err_and(|e| e.kind() == io::ErrorKind::ConnectionReset));
    }
    assert!(
        start.elapsed() >= Duration::from_secs(9),
        "they had their time: {:?}",
        start.elapsed()
    );
    assert_eq!(server.stat("ssl_handshake_errors"), 3);
    assert!(server.serves(&server.client()));
}

/// The first flight of a handshake.
fn client_hello(client: &TlsClient) -> Vec<u8> {
    let mut hello = Vec::new();
    client.session().write_tls(&mut hello).expect("bytes");
    hello
}

/// The first `len` bytes of a handshake whose first message is one byte longer than they are.
fn unfinished_hello(len: usize) -> Vec<u8> {
    const RECORD: usize = 16_000;
    let body_len = u32::try_from(len).unwrap().to_be_bytes();
    let mut message = [
        &[1, body_len[1], body_len[2], body_len[3], 3, 3][..],
        &[7; 32],
        &[0, 0, 2, 0x13, 1, 1, 0],
    ]
    .concat();
    let extension_len = u16::try_from((len - 47).min(65_000)).unwrap();
    message.extend_from_slice(&(extension_len + 4).to_be_bytes());
    message.extend_from_slice(&[0xff, 1]);
    message.extend_from_slice(&extension_len.to_be_bytes());
    message.resize(len, 7);
    let records = message.chunks(RECORD).map(|part| {
        let part_len = u16::try_from(part.len()).unwrap().to_be_bytes();
        [&[22, 3, 1, part_len[0], part_len[1]][..], part].concat()
    });
    let mut sent = records.collect::<Vec<_>>().concat();
    sent.truncate(len);
    sent
}

#[test]
fn an_unfinished_handshake_holds_at_most_32_kib_which_count() {
    const EACH_MAX: u64 = 32 << 10;
    const COUNT: u64 = 300;
    let server = Secured::start(&["--connections", "1000"]);
    assert!(server.serves(&server.client()));
    let before = server.server.anonymous_memory();
    // As much as a client may send, and no more.
    let hello = unfinished_hello((20 << 10) - 1);
    let mut waiting: Vec<TcpStream> = (0..COUNT).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    waiting.iter_mut().for_each(|stream| stream.write_all(&hello).unwrap());
    wait_until("what they hold is counted", DEADLINE, || {
        let held = server.stat("keyway_connection_memory");
        assert!(held <= COUNT * EACH_MAX, "{held}");
        (held >= COUNT * hello.len() as u64).then_some(())
    });
    if let (Some(before), Some(after)) = (before, server.server.anonymous_memory()) {
        let each = after.saturating_sub(before) / COUNT;
        say(&format!("{each} bytes for each unfinished handshake"));
        assert!(each <= EACH_MAX, "{each}");
    }
    drop(waiting);
    wait_until("it is given back", DEADLINE, || {
        (server.stat("keyway_connection_memory") == 0).then_some(())
    });
    let failed = server.stat("ssl_handshake_errors");
    assert_eq!(failed, COUNT);
    // More than that ends the connection, without waiting for the time that a handshake has.
    let mut endless = TcpStream::connect(server.address).unwrap();
    let _ = endless.write_all(&unfinished_hello(65_000));
    wait_until("the server has enough of it", DEADLINE, || {
        (server.stat("ssl_handshake_errors") > failed).then_some(())
    });
    assert!(
        server.server.log().contains("20480 bytes have come"),
        "{}",
        server.server.log()
    );
}

#[test]
fn an_unfinished_record_of_an_established_session_counts() {
    let server = Secured::start(&[]);
    let mut tcp = TcpStream::connect(server.address).unwrap();
    tcp.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut session = server.client().session();
    let mut stream = rustls::Stream::new(&mut session, &mut tcp);
    stream.write_all(b"mn\r\n").unwrap();
    assert_eq!(stream.read(&mut [0; 4]).unwrap(), 4);
    let value = [b"set k 0 0 16000\r\n", &[b'v'; 16_000][..], b"\r\n"].concat();
    session.writer().write_all(&value).unwrap();
    let mut record = Vec::new();
    session.write_tls(&mut record).unwrap();
    let (last, most) = record.split_last().unwrap();
    tcp.write_all(most).unwrap();
    wait_until("what rustls keeps of it is counted", DEADLINE, || {
        (server.stat("keyway_connection_memory") >= most.len() as u64).then_some(())
    });
    tcp.write_all(&[*last]).unwrap();
    let mut answer = [0; 8];
    rustls::Stream::new(&mut session, &mut tcp).read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"STORED\r\n");
    wait_until("it is given back", DEADLINE, || {
        (server.stat("keyway_connection_memory") == 0).then_some(())
    });
}

#[test]
fn broken_records_end_their_own_connection_only_and_are_counted() {
    let server = Secured::start(&[]);
    let mut healthy = server.connect();
    let hello = client_hello(&server.client());
    let mut random = Random::new(Random::seed_for("broken records"));
    let mut firsts: Vec<Vec<u8>> = vec![
        b"get key\r\n".to_vec(),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        [&b"\x80\x0b"[..], &[0; 22]].concat(),
        vec![0x16, 3, 1, 0xff, 0xff, 1, 2, 3, 4],
        vec![0x17, 3, 3, 0, 1, 0],
        [&hello[..], &hello[..]].concat(),
    ];
    for _ in 0..64 {
        let mut changed = hello.clone();
        let place = random.index(changed.len());
        changed[place] ^= 1 << random.below(8);
        firsts.push(changed);
    }
    for first in &firsts {
        let mut stream = TcpStream::connect(server.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        stream.write_all(first).unwrap();
        let _ = stream.shutdown(std::net::Shutdown::Write);
        // An alert, or an answer to what was a hello all the same, then the end.
        let _ = stream.read_to_end(&mut Vec::new());
    }
    let failed = server.stat("ssl_handshake_errors");
    assert_eq!(failed, u64::try_from(firsts.len()).unwrap(), "each is one failed handshake");

    // A record of an established session with one bit changed.
    let mut tcp = TcpStream::connect(server.address).unwrap();
    let mut session = server.client().session();
    rustls::Stream::new(&mut session, &mut tcp).write_all(b"version\r\n").unwrap();
    let mut record = Vec::new();
    session.writer().write_all(b"version\r\n").unwrap();
    session.write_tls(&mut record).unwrap();
    *record.last_mut().unwrap() ^= 1;
    tcp.write_all(&record).unwrap();
    tcp.set_read_timeout(Some(DEADLINE)).unwrap();
    let _ = tcp.read_to_end(&mut Vec::new());
    assert_eq!(server.stat("ssl_proto_errors"), 1);
    assert!(healthy.ask("version").unwrap().starts_with("VERSION "));
}

#[test]
fn a_login_works_through_tls_as_without() {
    let server = Secured::start_with(&[], |_, folder| {
        use std::os::unix::fs::PermissionsExt;
        let file = folder.join("users");
        std::fs::write(&file, "anna:secret\n").unwrap();
        std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
        vec!["--auth-file".to_owned(), file.display().to_string()]
    });
    let mut client = server.connect();
    assert_eq!(client.ask("get key").unwrap(), "CLIENT_ERROR unauthenticated");
    assert_eq!(client.ask("set login 0 0 11\r\nanna secret").unwrap(), "STORED");
    assert_eq!(client.ask("get key").unwrap(), "END");
}

#[test]
fn a_certificate_takes_the_place_of_a_password() {
    let server = Secured::start_with(&[], |authority, folder| {
        let (users, clients) = (folder.join("users"), folder.join("clients.pem"));
        std::fs::write(&clients, authority.certificate()).unwrap();
        std::fs::write(&users, "anna:secret\ncert:web server::rw:prefix=web:\ncert:reader::ro\n").unwrap();
        std::fs::set_permissions(&users, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let options = [
            "--auth-file",
            &users.display().to_string(),
            "--tls-client-optional",
            "--tls-client-ca",
        ]
        .map(str::to_owned);
        options.into_iter().chain([clients.display().to_string()]).collect()
    });
    let of = |name: &str| {
        let identity = server.authority.signs(name, Validity::Valid);
        TlsClient::with_identity(&server.authority, &identity)
    };
    let connect = |client: &TlsClient| Client::new(client, server.address).unwrap();
    // The second connection resumes the session of the first one: the certificate holds as well.
    let web = of("web server");
    for _ in 0..2 {
        let mut client = connect(&web);
        assert_eq!(client.ask("set web:a 0 0 1\r\n1").unwrap(), "STORED");
        assert_eq!(
            client.ask("get other").unwrap(),
            "CLIENT_ERROR this user may only use keys with its prefix"
        );
    }
    assert_eq!(
        connect(&of("reader")).ask("md web:a").unwrap(),
        "CLIENT_ERROR this user may only read"
    );
    for name in ["another", "", "web", "web server2"] {
        let mut client = connect(&of(name));
        assert_eq!(client.ask("get web:a").unwrap(), "CLIENT_ERROR unauthenticated", "{name}");
        assert_eq!(client.ask("set x 0 0 11\r\nanna secret").unwrap(), "STORED");
    }
    assert_eq!(server.connect().ask("get web:a").unwrap(), "CLIENT_ERROR unauthenticated");
    // Every certificate of this authority is for this DNS name too.
    let users = server.folder.join("users");
    std::fs::write(&users, "cert:localhost::ro\n").unwrap();
    let hung_up = Command::new("/bin/sh")
        .args(["-c", &format!("kill -HUP {}", server.server.pid())])
        .status();
    assert!(hung_up.unwrap().success());
    wait_until("the file is read again", DEADLINE, || {
        (connect(&of("another")).ask("mn").ok()? == "MN").then_some(())
    });
    assert_eq!(connect(&web).ask("md web:a").unwrap(), "CLIENT_ERROR this user may only read");
}

#[test]
fn openssl_speaks_resumes_and_may_not_renegotiate() {
    let Some(openssl) = program_on_path("openssl") else {
        return skip("openssl s_client", "openssl is not installed");
    };
    let server = Secured::start(&[]);
    let file = |name: &str| server.folder.join(name);
    std::fs::write(file("ca.pem"), server.authority.certificate()).unwrap();
    let run = |version: &str, more: &str, input: &str| {
        let (openssl, ca, session) = (openssl.display(), file("ca.pem"), file("session"));
        let script = format!(
            "({input}) | timeout 30 {openssl} s_client -connect {} -CAfile {} -verify_return_error {version} {} 2>&1",
            server.address,
            ca.display(),
            more.replace("SESSION", &session.display().to_string())
        );
        run_to_end(Command::new("/bin/sh").args(["-c", &script]), DEADLINE).1
    };
    let quit = "sleep 0.2; printf 'version\\r\\n'; sleep 0.3; printf 'quit\\r\\n'; sleep 0.3";
    for version in ["-tls1_2", "-tls1_3"] {
        let first = run(version, "-sess_out SESSION -quiet -ign_eof", quit);
        assert!(first.contains("VERSION "), "{version}: {first}");
        let again = run(version, "-sess_in SESSION", quit);
        assert!(again.contains("Reused, TLS"), "{version}: {again}");
    }
    assert!(run("-tls1_1", "", quit).contains("alert"), "TLS 1.1 is not spoken");
    let before = server.stat("ssl_proto_errors");
    // `R` on a line of its own asks openssl to renegotiate.
    let refused = run(
        "-tls1_2",
        "",
        "sleep 0.2; printf 'R\\n'; sleep 0.5; printf 'version\\r\\n'; sleep 0.3",
    );
    assert!(!refused.contains("VERSION "), "{refused}");
    assert_eq!(server.stat("ssl_proto_errors"), before + 1, "{refused}");
}

#[test]
fn memcacheds_command_line_has_tls_and_addresses_without_it() {
    let (authority, folder) = (Authority::new(), Scratch::new());
    let (certificate, key) = authority.signs("server", Validity::Valid).write_to(folder.path(), "server");
    let [secure, plain] = [free_port(), free_port()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let files = format!("ssl_chain_cert={},ssl_key={}", certificate.display(), key.display());
    let mut server = Command::new(harness::keyway_binary())
        .args(["memcached", "-Z", "-o", &files, "-e", "memfd", "-u", "root", "-l"])
        .arg(format!("{secure},notls:{plain}"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for_ready(&mut server);
    let mut over_tls = Client::new(&TlsClient::trusting(&authority), secure).unwrap();
    assert!(over_tls.ask("version").unwrap().starts_with("VERSION "));
    let mut tcp = BufReader::new(TcpStream::connect(plain).unwrap());
    tcp.get_mut().write_all(b"version\r\n").unwrap();
    let mut line = String::new();
    tcp.read_line(&mut line).unwrap();
    assert!(line.starts_with("VERSION "), "{line}");
    server.kill().unwrap();
    server.wait().unwrap();
}

/// Which clients are served: with a certificate of the authority, an expired one, one of another authority, none, and with TLS 1.2.
#[test]
fn memcacheds_options_say_which_clients_are_served() {
    let (authority, stranger, folder) = (Authority::new(), Authority::new(), Scratch::new());
    let (certificate, key) = authority.signs("server", Validity::Valid).write_to(folder.path(), "server");
    std::fs::write(folder.join("ca.pem"), authority.certificate()).unwrap();
    let has = |identity: &Identity| TlsClient::with_identity(&authority, identity);
    let clients = [
        has(&authority.signs("a client", Validity::Valid)),
        has(&authority.signs("a client", Validity::Expired)),
        has(&stranger.signs("a client", Validity::Valid)),
        TlsClient::trusting(&authority),
        TlsClient::speaking(&authority, &rustls::version::TLS12),
    ];
    let files = format!(
        "ssl_chain_cert={},ssl_key={},ssl_ca_cert={}",
        certificate.display(),
        key.display(),
        folder.join("ca.pem").display()
    );
    for (options, serves) in [
        ("", [true, true, true, true, true]),
        (",ssl_verify_mode=0", [true, true, true, true, true]),
        (",ssl_verify_mode=1", [true, false, false, true, true]),
        (",ssl_verify_mode=2", [true, false, false, false, false]),
        (",ssl_verify_mode=3", [true, false, false, false, false]),
        (",ssl_min_version=2", [true, true, true, true, true]),
        (",ssl_min_version=3", [true, true, true, true, false]),
    ] {
        let [secure, plain] = [free_port(), free_port()].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        let child = Command::new(harness::keyway_binary())
            .args([
                "memcached",
                "-Z",
                "-o",
                &format!("{files}{options}"),
                "-e",
                "memfd",
                "-u",
                "root",
            ])
            .args(["-t", "1", "-l", &format!("{secure},notls:{plain}")])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut child = Ends(child);
        // Both listen only when it says so.
        wait_for_ready(&mut child.0);
        let mut admin = harness::Wire::from_tcp(TcpStream::connect(plain).unwrap()).unwrap();
        let stat = |admin: &mut harness::Wire, name: &str| {
            let stats = admin.stats("").unwrap();
            let found = stats.iter().find(|(known, _)| known == name).unwrap();
            found.1.parse::<u64>().unwrap()
        };
        let answers = clients
            .each_ref()
            .map(|client| Client::new(client, secure).and_then(|mut client| client.ask("version")));
        let served = answers
            .each_ref()
            .map(|answer| answer.as_ref().is_ok_and(|line| line.starts_with("VERSION")));
        assert_eq!(served, serves, "{options}: {answers:?}");
        let refused = serves.iter().filter(|&&serves| !serves).count();
        assert_eq!(stat(&mut admin, "ssl_handshake_errors"), refused as u64, "{options}");
        if !options.is_empty() {
            continue;
        }
        // The age of the certificate begins again, however long the server takes.
        wait_until("the certificate is some seconds old", DEADLINE, || {
            (stat(&mut admin, "time_since_server_cert_refresh") >= 2).then_some(())
        });
        wait_until("a new certificate", DEADLINE, || {
            assert_eq!(admin.ask("refresh_certs").unwrap(), "OK");
            (stat(&mut admin, "time_since_server_cert_refresh") < 2).then_some(())
        });
        assert!(child.0.try_wait().unwrap().is_none());
    }
}

/// Killed at its end.
struct Ends(std::process::Child);

impl Drop for Ends {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn files_that_cannot_be_used_are_refused_with_the_reason() {
    let (authority, folder) = (Authority::new(), Scratch::new());
    let good = authority.signs("server", Validity::Valid);
    let refusal = |identity: &Identity, more: &[&str]| {
        identity.write_to(folder.path(), "server");
        let mut arguments = own_arguments(&folder, SocketAddr::from(([127, 0, 0, 1], free_port())));
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        Server::try_start(Kind::Keyway, &options(arguments)).expect_err("it must not start")
    };
    let of = |certificate: &str, key: &str| Identity {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
    };
    let other = authority.signs("another", Validity::Valid);
    let missing: PathBuf = folder.join("missing.pem");
    for (identity, more, why) in [
        (of("", &good.key), vec![], "server.pem: has no certificate in PEM form"),
        (
            of(&good.certificate, "no key"),
            vec![],
            "server.key: has no private key in PEM form",
        ),
        (of(&good.certificate, &other.key), vec![], "cannot be used with its key"),
        (
            good.clone(),
            vec!["--tls-client-ca", missing.to_str().unwrap()],
            "missing.pem: cannot be read",
        ),
        (good.clone(), vec!["--tls-min-version", "1.1"], "1.2 or 1.3"),
        (good.clone(), vec!["--tls-client-optional"], "--tls-client-ca"),
    ] {
        let said = refusal(&identity, &more);
        assert!(said.contains(why), "{why}: {said}");
    }
    // The table of `stats settings` names what is in force.
    good.write_to(folder.path(), "server");
    let server = Server::start(
        Kind::Keyway,
        &options(own_arguments(&folder, SocketAddr::from(([127, 0, 0, 1], free_port())))),
    );
    let settings = server.connect(Transport::Tcp).stats("settings").unwrap();
    let setting = |name: &str| {
        settings
            .iter()
            .find(|(known, _)| known == name)
            .map(|(_, value)| value.clone())
    };
    assert_eq!(setting("ssl_enabled").as_deref(), Some("yes"));
    assert_eq!(setting("ssl_min_version").as_deref(), Some("tlsv1.2"));
    assert_eq!(setting("ssl_key"), Some(folder.join("server.key").display().to_string()));
}

/// Signs a request without extensions, as a script for `openssl x509 -req` does: OpenSSL 3.0 then makes a certificate of version 1. `None`: this
/// one does not.
fn version_1(folder: &Scratch, name: &str, authority: Option<&str>) -> Option<(PathBuf, PathBuf)> {
    let [certificate, key, request] = [".pem", ".key", ".csr"].map(|end| folder.join(&format!("{name}{end}")));
    let signer = match authority {
        None => vec!["-signkey".into(), key.clone()],
        Some(ca) => vec![
            "-CA".into(),
            folder.join(&format!("{ca}.pem")),
            "-CAkey".into(),
            folder.join(&format!("{ca}.key")),
            "-CAcreateserial".into(),
        ],
    };
    let mut asks = Command::new("openssl");
    asks.args([
        "req",
        "-new",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=localhost",
        "-keyout",
    ]);
    let asked = asks.arg(&key).arg("-out").arg(&request).output().ok()?;
    let mut signs = Command::new("openssl");
    signs
        .args(["x509", "-req", "-days", "2", "-in"])
        .arg(&request)
        .arg("-out")
        .arg(&certificate);
    let signed = signs.args(&signer).output().ok()?;
    let shown = Command::new("openssl")
        .args(["x509", "-noout", "-text", "-in"])
        .arg(&certificate)
        .output()
        .ok()?;
    let is_first = String::from_utf8_lossy(&shown.stdout).contains("Version: 1 ");
    (asked.status.success() && signed.status.success() && is_first).then_some((certificate, key))
}

#[test]
fn a_certificate_of_version_1_is_served_and_the_log_says_why_a_client_is_refused() {
    let (authority, stranger, folder) = (Authority::new(), Authority::new(), Scratch::new());
    let Some(_) = version_1(&folder, "server", None) else {
        return skip("certificates of version 1", "this openssl makes none, or there is none");
    };
    let ca = folder.join("clients.pem");
    let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let start = |more: &[&str]| {
        let mut arguments = own_arguments(&folder, address);
        // What is said without it.
        arguments.retain(|argument| argument != "-v");
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        Server::start(Kind::Keyway, &options(arguments))
    };
    let asks = |more: &[&str]| {
        let more = more.join(" ");
        let line =
            format!("(printf 'version\\r\\n'; sleep 1) | timeout 20 openssl s_client -quiet -connect {address} {more} 2>&1");
        run_to_end(Command::new("/bin/sh").args(["-c", &line]), DEADLINE).1
    };
    let server = start(&[]);
    let said = asks(&[]);
    assert!(said.contains("VERSION"), "{said}");
    drop(server);

    // Each by a server of its own: what is said again and again is said once a while.
    authority.signs("server", Validity::Valid).write_to(folder.path(), "server");
    std::fs::write(&ca, authority.certificate()).unwrap();
    let has = |identity: &Identity| TlsClient::with_identity(&authority, identity);
    for (client, why) in [
        (has(&authority.signs("a client", Validity::Expired)), "xpired"),
        (has(&stranger.signs("a client", Validity::Valid)), "invalid peer certificate"),
        (TlsClient::trusting(&authority), "no certificate"),
    ] {
        let server = start(&["--tls-client-ca", ca.to_str().unwrap()]);
        let served = Client::new(&client, address).and_then(|mut client| client.ask("version"));
        assert!(!served.is_ok_and(|line| line.starts_with("VERSION")), "{why}");
        wait_until(why, DEADLINE, || {
            let log = server.log();
            (log.contains("the TLS handshake failed: ") && log.contains(why)).then_some(())
        });
    }
    version_1(&folder, "authority", None).expect("an authority");
    let (certificate, key) = version_1(&folder, "client", Some("authority")).expect("a client");
    let server = start(&["--tls-client-ca", folder.join("authority.pem").to_str().unwrap()]);
    asks(&["-cert", certificate.to_str().unwrap(), "-key", key.to_str().unwrap()]);
    wait_until("the version in the log", DEADLINE, || {
        server
            .log()
            .contains("version 1 of X.509; sign it with an extension")
            .then_some(())
    });
}
