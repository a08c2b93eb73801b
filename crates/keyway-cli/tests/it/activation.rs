//! Sockets that exist before the server: `systemd-socket-activate` binds them, and starts `keyway serve` when a client connects.
//! Guards: P48

use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use harness::{
    Authority, DEADLINE, Scratch, TlsClient, Validity, Wire, free_port, http_get, http_over, program_on_path, run_to_end,
    wait_until,
};
use keyway_cache::{Cache, Options, Place};

const TOOL: &str = "systemd-socket-activate";

/// The program that binds sockets as systemd does, or `None` after saying that the test cannot run.
fn tool(test: &str) -> Option<Command> {
    if program_on_path(TOOL).is_none() {
        harness::skip(test, "systemd-socket-activate is not installed (Debian: systemd)");
        return None;
    }
    Some(Command::new(TOOL))
}

/// A process that is killed at the end.
struct Running(Child);

impl Running {
    fn start(command: &mut Command, log: &Path) -> Self {
        let file = std::fs::File::create(log).unwrap();
        let too = file.try_clone().unwrap();
        Self(command.stdin(Stdio::null()).stdout(file).stderr(too).spawn().unwrap())
    }

    /// Asks it to end, and waits for that.
    fn terminate(mut self) {
        let pid = nix::unistd::Pid::from_raw(self.0.id().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{status}");
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Until the tool has bound it, nothing listens.
fn connected(what: &str, mut connect: impl FnMut() -> io::Result<Wire>) -> Wire {
    wait_until(what, DEADLINE, || connect().ok())
}

fn serve(command: &mut Command, region: &Path) {
    command.arg(env!("CARGO_BIN_EXE_keyway")).arg("serve");
    command.args(["--memory", "4m", "--threads", "2", "--region"]).arg(region);
}

#[test]
fn sockets_of_every_kind_are_served_by_their_names() {
    let Some(mut command) = tool("socket activation") else {
        return;
    };
    let scratch = Scratch::new();
    let address = |port| SocketAddr::from(([127, 0, 0, 1], port));
    let (plain, secure, http) = (address(free_port()), address(free_port()), address(free_port()));
    let (unix, region_socket, region) = (scratch.join("unix"), scratch.join("handout"), scratch.join("region"));
    let authority = Authority::new();
    let (certificate, key) = authority
        .signs("a server for tests", Validity::Valid)
        .write_to(scratch.path(), "server");
    for at in [
        plain.to_string(),
        secure.to_string(),
        http.to_string(),
        unix.to_string_lossy().into_owned(),
        region_socket.to_string_lossy().into_owned(),
    ] {
        command.args(["-l", &at]);
    }
    command.arg("--fdname=clients:tls:http:clients:region-socket");
    serve(&mut command, &region);
    command.arg("--tls-cert").arg(certificate).arg("--tls-key").arg(key);
    let log = scratch.join("log");
    let server = Running::start(&mut command, &log);

    let mut client = connected("the plain socket", || TcpStream::connect(plain).and_then(Wire::from_tcp));
    assert_eq!(client.ask("set key 0 0 5\r\nvalue").unwrap(), "STORED");
    let settings = client.stats("settings").unwrap();
    let of = |name: &str| settings.iter().find(|(known, _)| known == name).unwrap().1.clone();
    assert_eq!(of("tcpport"), plain.port().to_string());
    assert_eq!(of("domain_socket"), unix.to_string_lossy());
    let mut by_path = UnixStream::connect(&unix).and_then(Wire::from_unix).unwrap();
    assert_eq!(by_path.get(false, &["key"]).unwrap()[0].value, b"value");
    let stream = TlsClient::trusting(&authority).connect(secure).unwrap().0;
    let mut by_tls = Wire::from_unix(stream).unwrap();
    assert_eq!(by_tls.get(false, &["key"]).unwrap()[0].value, b"value");
    assert_eq!(http_get(http, "/readyz", "").unwrap().status, 200);
    let handed = Cache::open(&Place::Socket(region_socket.clone()), &Options::new()).unwrap();
    assert!(handed.session().unwrap().get(b"key").unwrap().is_some());
    drop(handed);

    let text = std::fs::read_to_string(&log).unwrap();
    let ready = text.lines().find(|line| line.contains(" ready: ")).unwrap();
    for socket in [
        format!("tcp {plain}"),
        format!("tls {secure}"),
        format!("unix {}", unix.display()),
    ] {
        assert!(ready.contains(&socket), "{ready}");
    }
    server.terminate();
    assert!(unix.exists() && region_socket.exists(), "the service manager's files stay");
}

#[test]
fn the_http_port_may_be_a_given_unix_socket() {
    let Some(mut command) = tool("socket activation for HTTP") else {
        return;
    };
    let scratch = Scratch::new();
    let (http, clients) = (scratch.join("http"), scratch.join("clients"));
    command
        .arg("-l")
        .arg(&http)
        .arg("-l")
        .arg(&clients)
        .arg("--fdname=http:clients");
    serve(&mut command, &scratch.join("region"));
    let _server = Running::start(&mut command, &scratch.join("log"));
    let answer = wait_until("the HTTP socket", DEADLINE, || {
        UnixStream::connect(&http)
            .and_then(|stream| {
                http_over(
                    stream,
                    "GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n",
                )
            })
            .ok()
    });
    assert_eq!(answer.status, 200);
}

#[test]
fn a_udp_socket_without_a_name_is_for_clients() {
    let Some(mut command) = tool("socket activation for UDP") else {
        return;
    };
    let scratch = Scratch::new();
    let at = SocketAddr::from(([127, 0, 0, 1], free_port()));
    command.args(["--datagram", "-l", &at.to_string()]);
    serve(&mut command, &scratch.join("region"));
    let _server = Running::start(&mut command, &scratch.join("log"));
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(std::time::Duration::from_millis(200))).unwrap();
    let mut answer = [0; 100];
    let len = wait_until("an answer to a datagram", DEADLINE, || {
        // Before the tool has bound the socket, the kernel refuses the datagram.
        client.send_to(b"\x00\x07\x00\x00\x00\x01\x00\x00version\r\n", at).ok()?;
        client.recv(&mut answer).ok()
    });
    assert!(answer[8..len].starts_with(b"VERSION "), "{:?}", &answer[..len]);
}

/// Starts `keyway serve` with these redirections of a shell as its descriptors; it must not come up.
fn refused(redirections: &str, count: usize, names: &str) -> String {
    let scratch = Scratch::new();
    let script = format!(
        "exec {redirections}; export LISTEN_PID=$$ LISTEN_FDS={count} LISTEN_FDNAMES={names}; exec \"$0\" serve --memory 4m --region memfd"
    );
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", &script, env!("CARGO_BIN_EXE_keyway")])
        .current_dir(scratch.path());
    let (status, output) = run_to_end(&mut command, DEADLINE);
    assert_eq!(status.code(), Some(71), "{output}");
    assert_eq!(output.lines().count(), 1, "{output}");
    output
}

#[test]
fn a_wrong_descriptor_is_refused_by_number_and_name() {
    for (redirections, count, names, words) in [
        ("3</dev/null", 1, "clients", ["descriptor 3 (\"clients\"", "no socket"]),
        (
            "3</dev/null 4<&-",
            2,
            "region-memory:tls",
            ["descriptor 4 (\"tls\"", "not open"],
        ),
        ("3</dev/null", 1, "tsl", ["descriptor 3 (\"tsl\"", "FileDescriptorName="]),
        ("3</dev/null", 1, "keyway.socket", ["\"keyway.socket\"", "clients, tls"]),
        ("3</dev/null", 1, "clients:tls", ["LISTEN_FDNAMES has 2", "LISTEN_FDS=1"]),
        ("3</dev/null", 99999, "x", ["LISTEN_FDS=99999", "up to 1024"]),
    ] {
        let output = refused(redirections, count, names);
        for word in words {
            assert!(output.contains(word), "{word}: {output}");
        }
    }
}

#[test]
fn memcacheds_command_line_takes_no_sockets() {
    let script = "export LISTEN_PID=$$ LISTEN_FDS=1; exec \"$0\" memcached -p 0 -U 0 3</dev/null";
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_keyway")]);
    let (status, output) = run_to_end(&mut command, DEADLINE);
    assert_eq!(status.code(), Some(64), "{output}");
    assert!(output.contains("keyway serve"), "{output}");
}
