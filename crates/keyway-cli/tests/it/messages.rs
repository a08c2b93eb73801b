//! What the program says when it cannot do what it is asked: enemy, a message without the value, the limit or the remedy, or with a wrong one.
//! Guards: P47

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::process::{Child, Command, Output, Stdio};

use harness::{Scratch, free_port, skip};
use keyway_cache::{Cache, Options, Place};

/// A command line, with `{}` for the folder of the test and `{port}` for a port without a server; its exit code; what it says; and what it does not.
struct Row {
    line: &'static str,
    code: i32,
    says: &'static [&'static str],
    never: &'static str,
}

const TABLE: &[Row] = &[
    Row {
        line: "get a --region {}/text",
        code: 2,
        says: &["/text: the file is no Keyway region", "choose another path"],
        never: "truncated",
    },
    Row {
        line: "get a --region {}/link",
        code: 2,
        says: &["/link", "symbolic link", "readlink -f"],
        never: "",
    },
    Row {
        line: "top --once --region {}/link",
        code: 2,
        says: &["symbolic link", "readlink -f"],
        never: "",
    },
    Row {
        line: "get a --region {}/absent",
        code: 2,
        says: &["/absent: there is no region", "keyway serve"],
        never: "",
    },
    Row {
        line: "serve --region {}/no/dir/x --listen 127.0.0.1:{port}",
        code: 2,
        says: &["mkdir -p", "/no/dir"],
        never: "",
    },
    Row {
        line: "serve --region memfd --listen 127.0.0.1:0 --socket {}/no/dir/x",
        code: 71,
        says: &["/no/dir/x", "its folder is absent", "mkdir -p"],
        never: "",
    },
    Row {
        line: "serve --region memfd --listen 127.0.0.1:0 --socket {}/0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789",
        code: 64,
        says: &["bytes", "at most 107", "choose a shorter one"],
        never: "SUN_LEN",
    },
    Row {
        line: "serve --memory 1m --max-item 1m",
        code: 64,
        says: &["--memory 1m", "--memory 2m is enough", "--max-item 512k"],
        never: "1048576",
    },
    Row {
        line: "serve --threads=-1",
        code: 64,
        says: &["'-1'", "--threads"],
        never: "invalid digit",
    },
    Row {
        line: "incr a 18446744073709551616 --region {}/absent",
        code: 64,
        says: &["from 0 to 18446744073709551615"],
        never: "",
    },
    Row {
        line: "incr a -3 --region {}/absent",
        code: 64,
        says: &["'-3'", "`decr` subtracts"],
        never: "use '-- -3'",
    },
    Row {
        line: "serve --connections 99999999999999999999",
        code: 64,
        says: &["99999999999999999999", "too large", "64 bits"],
        never: "it is a whole number",
    },
    Row {
        line: "ping 127.0.0.1:{port}",
        code: 1,
        says: &["no server answers", "start one"],
        never: "",
    },
    Row {
        line: "get a --server {}/absent",
        code: 1,
        says: &["no server answers", "start one"],
        never: "",
    },
    Row {
        line: "serve --region {}/x/ --listen 127.0.0.1:{port}",
        code: 2,
        says: &["/x/: create", "a region is a file", "no / at its end"],
        never: "mkdir",
    },
    Row {
        line: "serve --region /proc/x --listen 127.0.0.1:{port}",
        code: 2,
        says: &["/proc/x: create", "choose another path"],
        never: "mkdir",
    },
    Row {
        line: "serve --connection-memory 1",
        code: 64,
        says: &["--connection-memory of 1 MiB", "at least 4 MiB", "of 1 MiB: --max-item"],
        never: "4194304",
    },
    Row {
        line: "serve --listen {port}",
        code: 64,
        says: &["is a number and no address", "127.0.0.1:"],
        never: "no interface",
    },
    Row {
        line: "bench --items abc",
        code: 64,
        says: &["'abc'", "--items"],
        never: "invalid digit",
    },
    Row {
        line: "serve --connections 0",
        code: 64,
        says: &["'0'", "at least 1"],
        never: "18446744073709551615",
    },
    Row {
        line: "watch --sample 0",
        code: 64,
        says: &["'0'", "at least 1"],
        never: "18446744073709551615",
    },
    Row {
        line: "set a b --ttl abc",
        code: 64,
        says: &["'abc'", "whole number of seconds", "10m"],
        never: "invalid digit",
    },
    Row {
        line: "watch nonsense",
        code: 64,
        says: &["\"nonsense\" is no kind of event", "fetchers", "evictions"],
        never: "--help",
    },
    Row {
        line: "watch --door foo",
        code: 64,
        says: &["\"foo\" in --door", "library", "drop_in"],
        never: "--help",
    },
    Row {
        line: "watch --command foo",
        code: 64,
        says: &["\"foo\" in --command", "delete", "incr"],
        never: "--help",
    },
    Row {
        line: "hot --top 0 --once",
        code: 64,
        says: &["'0'", "at least 1"],
        never: "nothing was counted",
    },
    Row {
        line: "big --top 0",
        code: 64,
        says: &["'0'", "at least 1"],
        never: "",
    },
    Row {
        line: "ping smtp://127.0.0.1",
        code: 64,
        says: &["smtp:// is not known", "tls://", "Unix socket"],
        never: "No such file",
    },
    Row {
        line: "ping tls:///run/socket",
        code: 64,
        says: &["a Unix socket has no TLS"],
        never: "No such file",
    },
    Row {
        line: "get a --tls-ca x --server 127.0.0.1:{port}",
        code: 64,
        says: &["tls://127.0.0.1"],
        never: "",
    },
    Row {
        line: "serve --port 11",
        code: 64,
        says: &["--listen ADDR:PORT", "keyway memcached -p"],
        never: "",
    },
    Row {
        line: "start",
        code: 64,
        says: &["keyway serve"],
        never: "stats",
    },
    Row {
        line: "monitor",
        code: 64,
        says: &["keyway top", "keyway watch"],
        never: "doctor",
    },
    Row {
        line: "exec --library {}/absent.so true",
        code: 64,
        says: &["/absent.so: there is no such library", "--library"],
        never: "",
    },
    Row {
        line: "get a --user ann",
        code: 64,
        says: &["--server"],
        never: "",
    },
    Row {
        line: "copy {}/region {}/region",
        code: 1,
        says: &["exists already", "--force"],
        never: "",
    },
];

fn run(arguments: &[String]) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
    command.args(arguments).env_remove("KEYWAY_REGION").stdin(Stdio::null());
    let Output { status, stdout, stderr } = command.output().unwrap();
    (
        status.code().unwrap_or(-1),
        String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned(),
    )
}

#[test]
fn each_message_has_the_value_the_limit_and_the_remedy() {
    let scratch = Scratch::new();
    let folder = scratch.path().to_str().unwrap();
    fs::write(scratch.join("text"), "root:x:0:0:root:/root:/bin/bash\n").unwrap();
    let cache = Cache::open(&Place::at(scratch.join("region")), &Options::new().memory(4 << 20)).unwrap();
    cache.close();
    symlink(scratch.join("region"), scratch.join("link")).unwrap();
    let port = free_port().to_string();
    for Row { line, code, says, never } in TABLE {
        let words: Vec<String> = line
            .split(' ')
            .map(|word| word.replace("{}", folder).replace("{port}", &port))
            .collect();
        let (found, said) = run(&words);
        assert_eq!(found, *code, "{line}: {said}");
        for wanted in *says {
            assert!(said.contains(wanted), "{line}: no \"{wanted}\" in: {said}");
        }
        assert!(never.is_empty() || !said.contains(never), "{line}: {said}");
    }
}

/// A CPU that no machine has is refused with those that there are.
#[test]
fn the_cpus_of_the_machine_are_named() {
    let words = ["serve", "--region", "memfd", "--listen", "127.0.0.1:1", "--cpus", "1000"].map(str::to_owned);
    let (code, said) = run(&words);
    let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    assert!(
        code == 64 && said.contains(&format!("the machine has {}", online.trim())),
        "{said}"
    );
}

#[test]
fn an_item_that_is_too_large_for_its_region_needs_more_memory() {
    let scratch = Scratch::new();
    let path = scratch.join("region");
    let cache = Cache::open(&Place::at(&path), &Options::new().memory(4 << 20)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
    command.args(["set", "large", "--region"]).arg(&path);
    let mut child = command.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // It reads no more than any item can have.
    let _ = child.stdin.take().unwrap().write_all(&vec![b'x'; 5 << 20]);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("--memory") && said.contains("cache_memlimit") && said.contains("half of that"),
        "{said}"
    );
    drop(cache);
}

struct Serving(Child);

impl Serving {
    /// A server that is ready.
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
        command
            .args(["serve", "--memory", "4m", "--threads", "1"])
            .args(arguments)
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut byte = [0];
        child.stdout.as_mut().unwrap().read_exact(&mut byte).unwrap();
        Self(child)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_server_of_another_region_is_named_by_both() {
    let scratch = Scratch::new();
    let socket = scratch.join("socket");
    let _serving = Serving::start(&[
        "--listen",
        "127.0.0.1:0",
        "--region",
        scratch.join("served").to_str().unwrap(),
        "--socket",
        socket.to_str().unwrap(),
    ]);
    let cache = Cache::open(&Place::at(scratch.join("other")), &Options::new().memory(4 << 20)).unwrap();
    let socket = socket.to_str().unwrap().to_owned();
    let other = scratch.join("other").to_str().unwrap().to_owned();
    let words = [
        "stats",
        "--grouped",
        "--interval",
        "0",
        "--region",
        &other,
        "--server",
        &socket,
    ]
    .map(str::to_owned);
    let (code, said) = run(&words);
    assert!(
        code == 1 && said.contains("serves another region") && said.contains("--region"),
        "{said}"
    );
    assert_eq!(said.matches(&socket).count(), 1, "{said}");
    drop(cache);
}

#[test]
fn a_file_of_another_user_is_told_with_its_owner() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if !nix::unistd::geteuid().is_root() {
        return skip("a command of another user", "only root can run one");
    }
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let path = scratch.join("region");
    let cache = Cache::open(&Place::at(&path), &Options::new().memory(4 << 20)).unwrap();
    // Another user may not be able to reach the program where it was built.
    let program = scratch.join("keyway");
    harness::copy_program(env!("CARGO_BIN_EXE_keyway"), &program);
    let mut command = Command::new(&program);
    command.args(["get", "a", "--region"]).arg(&path).uid(65_534).gid(65_534);
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    for wanted in ["user root", "mode 0600", "sudo -u root", "--region-socket"] {
        assert!(said.contains(wanted), "no \"{wanted}\": {said}");
    }
    drop(cache);
    let socket = scratch.join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    fs::set_permissions(&socket, fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = Command::new(&program);
    command.arg("ping").arg(&socket).uid(65_534).gid(65_534);
    let said = String::from_utf8(command.output().unwrap().stderr).unwrap();
    assert!(said.contains("Permission denied") && said.contains("--socket-mode"), "{said}");
}

#[test]
fn a_server_that_wants_a_login_is_told_so_by_each_command() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    let file = |name: &str, text: &str| {
        let path = scratch.join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (users, right, wrong) = (
        file("users", "ann:secret\n"),
        file("right", "secret\n"),
        file("wrong", "other\n"),
    );
    let (region, server) = (scratch.join("region"), format!("127.0.0.1:{}", free_port()));
    let _serving = Serving::start(&[
        "--listen",
        &server,
        "--region",
        region.to_str().unwrap(),
        "--auth-file",
        &users,
    ]);
    let asked = |line: &str, more: &[&str]| {
        let words: Vec<String> = line
            .split(' ')
            .chain(["--server", &server])
            .chain(more.iter().copied())
            .map(str::to_owned)
            .collect();
        run(&words)
    };
    for line in [
        "stats --interval 0",
        "top --once",
        "doctor",
        "regions",
        "get a",
        "watch --seconds 1",
    ] {
        let (code, said) = asked(line, &[]);
        assert!(
            code == 1 && said.contains("--user") && said.contains("--password-file"),
            "{line}: {code}: {said}"
        );
        let (code, said) = asked(line, &["--user", "ann", "--password-file", &wrong]);
        assert!(code == 1 && said.contains("does not let ann in"), "{line}: {code}: {said}");
        let (code, said) = asked(line, &["--user", "ann"]);
        assert!(code == 64 && said.contains("--password-file"), "{line}: {code}: {said}");
        let (code, said) = asked(line, &["--user", "ann", "--password-file", &right]);
        let is_in = code == 0 || line.starts_with("doctor") || ["get a", "incr n", "delete a"].contains(&line) && code == 1;
        assert!(is_in && !said.contains("--user"), "{line}: {code}: {said}");
    }
}

#[test]
fn a_user_who_may_only_read_is_told_what_needs_more() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    if !nix::unistd::geteuid().is_root() {
        return skip("a command of another user", "only root can run one");
    }
    let scratch = Scratch::new();
    fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let (region, socket) = (scratch.join("region"), scratch.join("socket"));
    let _serving = Serving::start(&[
        "--listen",
        &format!("127.0.0.1:{}", free_port()),
        "--region",
        region.to_str().unwrap(),
        "--region-socket",
        socket.to_str().unwrap(),
        "--region-readers",
        "65534",
    ]);
    let program = scratch.join("keyway");
    harness::copy_program(env!("CARGO_BIN_EXE_keyway"), &program);
    for (line, wanted) in [
        (
            "watch --seconds 1",
            &["may only read the region", "one of its writers", "--server"][..],
        ),
        ("memory --seconds 1", &["may only read the region", "one of its writers"]),
    ] {
        let mut command = Command::new(&program);
        command
            .args(line.split(' '))
            .arg("--region")
            .arg(&socket)
            .uid(65_534)
            .gid(65_534);
        let output = command.output().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}: {said}");
        for wanted in wanted {
            assert!(said.contains(wanted), "{line}: no \"{wanted}\": {said}");
        }
    }
}
