//! Logins by SASL, as `keyway memcached -S` and a real `memcached -S` answer them. Debian's memcached asks Cyrus SASL, which asks this
//! test (saslauthd's protocol), whether a password is right.
//! Guards: P38

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use harness::{DEADLINE, Kind, Scratch, free_port, keyway_binary, memcached_binary, say, wait_until};
use keyway_proto::binary::{Head, request};

/// A command, its key and its value.
type Packet = (u8, &'static [u8], &'static [u8]);

const LIST: Packet = (0x20, b"", b"");
const RIGHT: Packet = (0x21, b"PLAIN", b"\0ann\0secret");
const WRONG: Packet = (0x21, b"PLAIN", b"\0ann\0wrong");
const BEGIN: Packet = (0x21, b"PLAIN", b"");
const STEP: Packet = (0x22, b"PLAIN", b"\0ann\0secret");
const GET: Packet = (0x00, b"key", b"");
const NOOP: Packet = (0x0a, b"", b"");

/// Packets, and what both servers answer: the status, and `!` where the connection ends.
const CASES: &[(&str, &[Packet], &str)] = &[
    ("the mechanisms", &[LIST], "00 PLAIN"),
    ("the mechanisms, with a body", &[(0x20, b"x", b"")], "04 Invalid arguments!"),
    ("a get without a login", &[GET], "20 Auth failure.!"),
    ("a noop without a login", &[NOOP], "20 Auth failure.!"),
    ("an unknown command without a login", &[(0x1b, b"", b"")], "20 Auth failure.!"),
    ("a login", &[RIGHT, GET, NOOP], "00 Authenticated|01 Not found|00 "),
    (
        "the mechanisms after a login, which they end",
        &[RIGHT, LIST, GET],
        "00 Authenticated|00 PLAIN|20 Auth failure.!",
    ),
    ("a wrong password", &[WRONG], "20 Auth failure."),
    (
        "a get after a wrong password",
        &[WRONG, GET],
        "20 Auth failure.|20 Auth failure.!",
    ),
    (
        "a login after a wrong password",
        &[WRONG, RIGHT, NOOP],
        "20 Auth failure.|00 Authenticated|00 ",
    ),
    (
        "a wrong password after a login",
        &[RIGHT, WRONG, GET],
        "00 Authenticated|20 Auth failure.|20 Auth failure.!",
    ),
    ("a login in two steps", &[BEGIN, STEP, NOOP], "21 |00 Authenticated|00 "),
    ("a step without a start", &[STEP], "20 Auth failure."),
    ("another mechanism", &[(0x21, b"FOO", b"x")], "20 Auth failure."),
    ("no mechanism", &[(0x21, b"", b"x")], "04 Invalid arguments!"),
    (
        "a mechanism in small letters",
        &[(0x21, b"plain", b"\0ann\0secret")],
        "00 Authenticated",
    ),
    (
        "a login for another user",
        &[(0x21, b"PLAIN", b"bob\0ann\0secret")],
        "20 Auth failure.",
    ),
    (
        "a login for oneself",
        &[(0x21, b"PLAIN", b"ann\0ann\0secret")],
        "00 Authenticated",
    ),
];

/// A server that ends with this.
struct Running(Child, SocketAddr);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(kind: Kind, scratch: &Scratch) -> Running {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
    let program = match kind {
        Kind::Keyway => keyway_binary(),
        Kind::Memcached => memcached_binary().expect("it is installed"),
    };
    let mut command = Command::new(program);
    if kind == Kind::Keyway {
        command.args(["memcached", "-e", "memfd"]);
    }
    command.args(["-S", "-u", "root", "-l", "127.0.0.1", "-p", &address.port().to_string()]);
    command.env("SASL_CONF_PATH", scratch.path());
    command.env("MEMCACHED_SASL_PWDB", scratch.join("users"));
    let child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let running = Running(child, address);
    wait_until("the server listens", DEADLINE, || TcpStream::connect(address).ok());
    running
}

/// Answers one question of Cyrus SASL after the other: user, password, service and realm, each after its length.
fn answer_questions(listener: &UnixListener) {
    fn part(stream: &mut UnixStream) -> Option<Vec<u8>> {
        let mut len = [0; 2];
        stream.read_exact(&mut len).ok()?;
        let mut part = vec![0; u16::from_be_bytes(len).into()];
        stream.read_exact(&mut part).ok()?;
        Some(part)
    }
    for mut stream in listener.incoming().map_while(Result::ok) {
        let parts: Vec<_> = (0..4).map_while(|_| part(&mut stream)).collect();
        let is_right = parts.len() == 4 && parts[0] == b"ann" && parts[1] == b"secret";
        let _ = stream.write_all(if is_right { b"\0\x02OK" } else { b"\0\x02NO" });
    }
}

/// Sends the packets one after the other; the answers as the table has them.
fn converse(address: SocketAddr, packets: &[Packet]) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(DEADLINE)).expect("a socket");
    let mut answers = Vec::new();
    for &(opcode, key, value) in packets {
        let mut packet = Vec::new();
        let head = Head {
            opcode,
            opaque: *b"abcd",
        };
        request(&mut packet, head, 0, [b"", key, value]);
        stream.write_all(&packet).expect("it reads");
        let mut header = [0; 24];
        stream.read_exact(&mut header).expect("an answer");
        let mut body = vec![0; usize::from(header[11])];
        stream.read_exact(&mut body).expect("its body");
        assert_eq!((header[0], header[1], &header[12..16]), (0x81, opcode, &b"abcd"[..]));
        answers.push(format!("{:02x} {}", header[7], String::from_utf8_lossy(&body)));
    }
    // A server that ends the connection does so at once.
    stream.set_read_timeout(Some(Duration::from_millis(200))).expect("a socket");
    let is_over = stream.read(&mut [0]).is_ok_and(|count| count == 0);
    answers.join("|") + if is_over { "!" } else { "" }
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).expect("a file");
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).expect("its mode can be set");
}

#[test]
fn logins_by_sasl_are_memcacheds() {
    for kind in Kind::to_test("SASL") {
        let scratch = Scratch::new();
        write(&scratch.join("users"), "ann:secret\n");
        let socket = scratch.join("mux");
        let config = format!(
            "pwcheck_method: saslauthd\nmech_list: plain\nsaslauthd_path: {}\n",
            socket.display()
        );
        write(&scratch.join("memcached.conf"), &config);
        let listener = UnixListener::bind(&socket).expect("a socket");
        std::thread::spawn(move || answer_questions(&listener));
        let server = start(kind, &scratch);
        for (name, packets, expected) in CASES {
            assert_eq!(&converse(server.1, packets), expected, "{name} against {}", kind.name());
        }
        say(&format!("{} conversations by SASL against {}", CASES.len(), kind.name()));
    }
}

#[test]
fn files_of_memcacheds_users_let_their_users_in() {
    let scratch = Scratch::new();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("/proc");
    let host = host.trim_end();
    let lines = [
        format!("ann@{host}:secret"),
        format!("bob@{host}:secret:::::::"),
        "cid:secret".to_owned(),
        "dan:secret:::::::".to_owned(),
        "# eve:secret".to_owned(),
        format!("cid@elsewhere{host}:other"),
    ];
    write(&scratch.join("users"), &(lines.join("\n") + "\n"));
    let server = start(Kind::Keyway, &scratch);
    for user in [
        "ann",
        "bob",
        "cid",
        "dan",
        &format!("ann@{host}"),
        "# eve",
        &format!("cid@{host}"),
    ] {
        let plain = format!("\0{user}\0secret").leak().as_bytes();
        let expected = match user.starts_with(['a', 'b']) || ["cid", "dan"].contains(&user) {
            true => "00 Authenticated|00 ",
            false => "20 Auth failure.|20 Auth failure.!",
        };
        assert_eq!(converse(server.1, &[(0x21, b"PLAIN", plain), NOOP]), expected, "{user}");
    }
}
