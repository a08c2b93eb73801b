//! `keyway ping`: enemy, a health check that succeeds where clients get no answer, or fails where they do.
//! Guards: P48

use std::fs;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use harness::{Authority, DEADLINE, Scratch, Validity, Wire, free_port, run_to_end, skip, wait_until};

struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn serve(arguments: &[&str]) -> Serving {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
    command.args(["serve", "--region", "memfd", "--memory", "4m"]).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    // Its line.
    let mut byte = [0];
    child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
    Serving(child)
}

fn ping(place: &str) -> (Option<i32>, String) {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_keyway"))
        .args(["ping", place])
        .output()
        .unwrap();
    (status.code(), String::from_utf8([stdout, stderr].concat()).unwrap())
}

fn path(path: PathBuf) -> String {
    path.to_str().unwrap().to_owned()
}

#[test]
fn every_door_of_a_server_is_asked_and_nothing_is_left() {
    let scratch = Scratch::new();
    let (address, http) = (format!("127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
    let socket = path(scratch.join("socket"));
    let _serving = serve(&["--listen", &address, "--socket", &socket, "--http", &http]);
    let (code, said) = ping(&http);
    assert!(
        code == Some(1) && said.contains("HTTP/1.1 400 Bad Request; it speaks HTTP: write http://"),
        "{said}"
    );
    for place in [&address, &socket, &format!("http://{http}"), &format!("http://{http}/")] {
        let (code, said) = ping(place);
        assert!(
            code == Some(0) && said.contains("stored, read and deleted"),
            "{place}: {said}"
        );
    }
    let mut wire = Wire::from_tcp(std::net::TcpStream::connect(&address).unwrap()).unwrap();
    let mut line = wire.ask("stats").unwrap();
    while !line.contains("curr_items") {
        line = String::from_utf8(wire.line().unwrap()).unwrap();
    }
    assert_eq!(line.trim_end(), "STAT curr_items 0");
    assert_eq!(ping("127.0.0.1:x").0, Some(64));
}

#[test]
fn a_server_with_logins_or_tls_is_asked_as_it_can_be() {
    let scratch = Scratch::new();
    let (users, http) = (scratch.join("users"), format!("127.0.0.1:{}", free_port()));
    fs::write(&users, "user:secret\n").unwrap();
    fs::set_permissions(&users, fs::Permissions::from_mode(0o600)).unwrap();
    let plain = format!("127.0.0.1:{}", free_port());
    let _with_logins = serve(&["--listen", &plain, "--auth-file", users.to_str().unwrap(), "--http", &http]);
    let (code, said) = ping(&plain);
    assert!(code == Some(0) && said.contains("asks for a login"), "{said}");
    assert_eq!(ping(&format!("http://{http}")).0, Some(0));

    let authority = Authority::new();
    let (certificate, key) = authority.signs("server", Validity::Valid).write_to(scratch.path(), "server");
    let tls = format!("127.0.0.1:{}", free_port());
    let listen = format!("tls://{tls}");
    let (certificate, key) = (path(certificate), path(key));
    let _with_tls = serve(&["--listen", &listen, "--tls-cert", &certificate, "--tls-key", &key]);
    let (code, said) = ping(&tls);
    assert!(code == Some(1) && said.contains("tls://"), "{said}");
    let (code, said) = ping(&listen);
    assert!(code != Some(0) && said.contains("--tls-ca"), "{said}");
    // What the first certificate of most people is.
    let (certificate, key) = (path(scratch.join("own.pem")), path(scratch.join("own.key")));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=localhost"])
        .args([
            "-addext",
            "subjectAltName=IP:127.0.0.1",
            "-keyout",
            &key,
            "-out",
            &certificate,
        ])
        .output();
    if made.is_ok_and(|made| made.status.success()) {
        let own = format!("tls://127.0.0.1:{}", free_port());
        let _with_own = serve(&["--listen", &own, "--tls-cert", &certificate, "--tls-key", &key]);
        let output = Command::new(env!("CARGO_BIN_EXE_keyway"))
            .args(["ping", &own, "--tls-ca", &certificate])
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        let is_told = said.contains("basicConstraints=critical,CA:FALSE") && !said.contains("OtherError");
        assert!(output.status.code() == Some(1) && is_told, "{said}");
    } else {
        skip("a server with a certificate of its own", "no openssl makes one");
    }
    let (code, said) = ping(&format!("ftp://{tls}"));
    assert!(code == Some(64) && said.contains("ftp:// is not known"), "{said}");
}

/// What a server answers, each time to the next request, until it closes the connection. It takes what its client still sends: a socket
/// that is closed with bytes in it resets the connection, and the client may lose the last answer.
fn pretends(answers: &'static [&'static str]) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut bytes = [0; 4096];
        for answer in answers {
            let Ok(1..) = stream.read(&mut bytes) else { return };
            stream.write_all(answer.as_bytes()).unwrap();
        }
        stream.shutdown(Shutdown::Write).unwrap();
        while let Ok(1..) = stream.read(&mut bytes) {}
    });
    address
}

#[test]
fn what_is_no_working_cache_fails_with_the_reason() {
    for (answers, why) in [
        (
            &["END\r\n", "STORED\r\n", "VALUE other 0 5\r\nwrong\r\nEND\r\n", "DELETED\r\n"][..],
            "another value",
        ),
        (&["END\r\n", "SERVER_ERROR out of memory storing object\r\n"], "out of memory"),
        (&["SSH-2.0-OpenSSH_9.2\r\n"], "answers a get with"),
        (&["END\r\n", "STORED\r\n"], "closes the connection"),
        (
            &[
                "END\r\n",
                "STORED\r\n",
                "END\r\n",
                "NOT_FOUND\r\n",
                "STORED\r\n",
                "END\r\n",
                "NOT_FOUND\r\n",
                "STORED\r\n",
                "END\r\n",
                "NOT_FOUND\r\n",
            ],
            "is gone, 3 times",
        ),
    ] {
        let (code, said) = ping(&pretends(answers));
        assert!(code == Some(1) && said.contains(why), "{answers:?}: {said}");
    }
    let nothing = format!("127.0.0.1:{}", free_port());
    for place in [&nothing, "/nonexistent/socket", &format!("http://{nothing}")] {
        let (code, said) = ping(place);
        assert!(code == Some(1) && said.contains("no server answers"), "{said}");
    }
    let (code, said) = ping(&format!(
        "http://{}",
        pretends(&["HTTP/1.1 503 x\r\n\r\nnot ready: the reason\n"])
    ));
    assert!(code == Some(1) && said.contains("not ready: the reason"), "{said}");
}

#[test]
fn a_server_that_takes_no_connection_holds_no_check_up() {
    use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket};
    use std::os::fd::AsRawFd;
    let scratch = Scratch::new();
    let place = path(scratch.join("socket"));
    let address = UnixAddr::new(place.as_str()).unwrap();
    let new = || socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_NONBLOCK, None).unwrap();
    let listener = new();
    bind(listener.as_raw_fd(), &address).unwrap();
    listen(&listener, Backlog::new(1).unwrap()).unwrap();
    let mut waiting = vec![new()];
    while connect(waiting[waiting.len() - 1].as_raw_fd(), &address).is_ok() {
        waiting.push(new());
    }
    let (code, said) = ping(&place);
    assert!(code == Some(1) && said.contains("queue"), "{said}");
}

#[test]
fn a_reload_takes_over_the_services_server_or_none() {
    let scratch = Scratch::new();
    let address = format!("127.0.0.1:{}", free_port());
    let region = path(scratch.join("region"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
    command.args(["serve", "--memory", "4m", "--listen", &address, "--region", &region]);
    let mut serving = Serving(command.stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap());
    wait_until("a server", DEADLINE, || (ping(&address).0 == Some(0)).then_some(()));
    let reload = |main: u32, region: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
        command.args([
            "serve",
            "--memory",
            "4m",
            "--listen",
            "127.0.0.1:0",
            "--take-over",
            "--region",
            region,
        ]);
        command.arg("--socket").arg(scratch.join("socket"));
        run_to_end(command.env("MAINPID", main.to_string()), DEADLINE)
    };
    // Another process's, and a region without a server.
    for (main, place) in [(1, &*region), (serving.0.id(), &*path(scratch.join("other")))] {
        let (status, said) = reload(main, place);
        assert!(status.code() == Some(1) && said.contains("(MAINPID)"), "{status}: {said}");
    }
    assert!(serving.0.try_wait().unwrap().is_none());
    assert_eq!(ping(&address).0, Some(0));
}
