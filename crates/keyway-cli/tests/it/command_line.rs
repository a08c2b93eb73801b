//! The program from outside: what a shell, an init system and a person see of it.
//! Guards: P47, P50

use keyway_cache::{Cache, Options, Place};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longest that anything here may take, on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(60);

fn keyway(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_keyway")).args(arguments).output().unwrap()
}

fn code(arguments: &[&str]) -> i32 {
    keyway(arguments).status.code().unwrap()
}

fn stdout(arguments: &[&str]) -> String {
    let output = keyway(arguments);
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A folder of this test's own, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("keyway-cli-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// `keyway serve` on a Unix socket, killed at the end if it still runs.
struct Serving {
    child: Child,
    ready_line: String,
}

impl Serving {
    fn start(folder: &Folder) -> Self {
        Self::spawn(Self::command(folder))
    }

    fn command(folder: &Folder) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
        command
            .args(["serve", "--listen", "127.0.0.1:0", "--memory", "2m", "--threads", "1"])
            .args(["--socket", &folder.path("socket"), "--region", &folder.path("region")])
            .stdout(Stdio::piped());
        command
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let mut ready_line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut ready_line)
            .unwrap();
        Self { child, ready_line }
    }

    fn signal(&self, name: &str) {
        signal(&self.child.id().to_string(), name);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn signal(pid: &str, name: &str) {
    assert!(Command::new("kill").args([name, pid]).status().unwrap().success());
}

fn ask(mut stream: impl Read + Write, request: &str, lines: usize) -> String {
    stream.write_all(request.as_bytes()).unwrap();
    let mut reader = BufReader::new(stream);
    let mut reply = String::new();
    for _ in 0..lines {
        reader.read_line(&mut reply).unwrap();
    }
    reply
}

fn until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "never: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn help_and_version_teach() {
    assert!(stdout(&["--help"]).contains("keyway serve --listen 0.0.0.0 --memory 4g"));
    assert!(stdout(&["serve", "--help"]).contains("[default: 64m]"));
    assert!(stdout(&["version"]).starts_with("keyway "));
    assert!(stdout(&["memcached", "-V"]).starts_with("memcached 1.6."));
    assert!(stdout(&["memcached", "-h"]).contains("--conn-limit"));
}

#[test]
fn exit_codes_tell_what_went_wrong() {
    let folder = Folder::new("codes");
    let (absent, junk) = (folder.path("absent"), folder.path("junk"));
    std::fs::write(&junk, "no region".repeat(1000)).unwrap();
    assert_eq!(code(&["nonsense"]), 64);
    assert_eq!(code(&["serve", "--memory", "x"]), 64);
    assert_eq!(code(&["memcached", "-Z"]), 64);
    assert_eq!(code(&["memcached", "-a", "7777"]), 64);
    assert_eq!(code(&["bench", "--memory", "1k"]), 64);
    // A number that the kernel's masks have, and no machine.
    let no_cpu = keyway(&["serve", "--cpus", "0,1000", "--listen", "127.0.0.1:1", "--region", &absent]);
    let said = String::from_utf8_lossy(&no_cpu.stderr);
    assert!(
        no_cpu.status.code() == Some(64) && said.contains("cannot run on CPU 1000"),
        "{said}"
    );
    assert_eq!(code(&["memcached", "--enable-ssl"]), 64);
    assert_eq!(code(&["check", &absent]), 2);
    assert_eq!(code(&["check", &junk]), 2);
    for looks in [
        &["get", "k"][..],
        &["top", "--once"],
        &["doctor"],
        &["stats", "--grouped"],
        &["stats", "--plain"],
    ] {
        let output = keyway(&[looks, &["--region", &absent]].concat());
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            output.status.code() == Some(2) && said.contains("keyway serve"),
            "{looks:?}: {said}"
        );
    }
    for no_socket in [&["--region", "memfd"][..], &["--check"]] {
        assert_eq!(code(&[&["serve", "--listen", "127.0.0.1:0"], no_socket].concat()), 64);
    }
    assert!(!Path::new(&absent).exists(), "looking must not create a region");
    assert_eq!(std::fs::read_to_string(&junk).unwrap(), "no region".repeat(1000));
}

#[test]
fn a_key_that_no_item_can_have_and_a_copy_to_nowhere_have_codes_of_their_own() {
    let folder = Folder::new("keys");
    let region = folder.path("region");
    Cache::open(&Place::at(&region), &Options::new().memory(2 << 20)).unwrap();
    let long = "k".repeat(251);
    let nowhere = folder.path("no-folder/copy");
    let output = keyway(&["copy", &region, &nowhere]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.code() == Some(71) && said.contains(&format!("{nowhere}: ")),
        "{said}"
    );
    for command in [&["get", &long][..], &["set", "", "x"], &["delete", &long], &["trace", ""]] {
        assert_eq!(code(&[command, &["--region", &region]].concat()), 64, "{command:?}");
    }
}

#[test]
fn output_that_nothing_reads_is_no_failure_and_output_without_room_is_one() {
    let ended = |arguments: &[&str], out: Stdio| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
        let output = command.args(arguments).stdout(out).stderr(Stdio::piped()).spawn().unwrap();
        let output = output.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    for arguments in [
        &["version"][..],
        &["memcached", "-h"],
        &["bench", "--list"],
        &["serve", "--check"],
    ] {
        let (unread, out) = std::io::pipe().unwrap();
        drop(unread);
        assert_eq!(ended(arguments, out.into()), (Some(0), String::new()), "{arguments:?}");
        let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let (code, said) = ended(arguments, full.into());
        assert!(
            code == Some(71) && said.contains("cannot write"),
            "{arguments:?}: {code:?} {said}"
        );
    }
    // A message that nothing reads changes no exit code.
    let (unread, err) = std::io::pipe().unwrap();
    drop(unread);
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
    let status = command.args(["check", "/nowhere/region"]).stderr(err).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

#[test]
fn a_pipe_in_the_place_of_a_region_holds_no_command_up() {
    let folder = Folder::new("pipe");
    let pipe = folder.path("region");
    nix::unistd::mkfifo(&*pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for looks in [
        &["top", "--once"][..],
        &["doctor"],
        &["stats", "--grouped"],
        &["stats", "--plain"],
        &["get", "k"],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
        let mut child = command
            .args(looks)
            .args(["--region", &pipe])
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut ended = None;
        until(&format!("{looks:?} ends"), || {
            ended = child.try_wait().unwrap();
            ended.is_some()
        });
        assert_eq!(ended.and_then(|status| status.code()), Some(2), "{looks:?}");
    }
    let socket = folder.path("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let output = keyway(&["top", "--once", "--region", &socket]);
    assert!(output.status.code() == Some(2) && String::from_utf8_lossy(&output.stderr).contains("--region-socket"));
}

#[test]
fn a_dump_is_no_access_and_leaves_stale_items_out() {
    let folder = Folder::new("dump");
    let region = folder.path("region");
    let cache = Cache::open(&Place::at(&region), &Options::new().memory(2 << 20)).unwrap();
    let mut session = cache.session().unwrap();
    session.set(b"good", b"1", 0).unwrap();
    session.set(b"stale", b"2", 0).unwrap();
    let mark = keyway_cache::Delete {
        invalidate: true,
        ..keyway_cache::Delete::default()
    };
    session.delete(b"stale", &mark).unwrap();
    assert_eq!(stdout(&["dump", "--region", &region]), "mn\r\nset good 0 0 1\r\n1\r\nmn\r\n");
    let details = keyway_cache::Get {
        details: true,
        ..keyway_cache::Get::default()
    };
    let item = session
        .get_with(b"good", &details, &mut Vec::new(), |_, _| {})
        .unwrap()
        .unwrap();
    assert!(!item.fetched, "a dump marked the item as fetched");
}

/// A line of an authentication file, or why there is none.
fn password(arguments: &[&str], input: &[u8]) -> (bool, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_keyway"))
        .arg("password")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(input).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

#[test]
fn a_password_becomes_a_line_that_a_server_takes() {
    let (_, line) = password(&["ann", "--read-only", "--prefix", "shop:"], b"secret\nmore\n");
    assert!(line.starts_with("ann:$argon2id$v=19$m=19456,t=2,p=1$") && line.ends_with(":ro:prefix=shop:\n"));
    let folder = Folder::new("password");
    let users = folder.path("users");
    std::fs::write(&users, line).unwrap();
    std::fs::set_permissions(&users, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let mut command = Serving::command(&folder);
    command.args(["--auth-file", &users]);
    let _serving = Serving::spawn(command);
    let stream = || UnixStream::connect(folder.path("socket")).unwrap();
    let login = "set x 0 0 10\r\nann secret\r\n";
    assert_eq!(
        ask(stream(), &format!("{login}get shop:a\r\nget a\r\ndelete shop:a\r\n"), 4),
        "STORED\r\nEND\r\nCLIENT_ERROR this user may only use keys with its prefix\r\nCLIENT_ERROR this user may only read\r\n"
    );
    for (arguments, input, reason) in [
        (&["ann"][..], &b""[..], "the password is empty"),
        (&["a:b"], b"x\n", "cannot be the name of a user"),
        (&["ann", "--prefix", "a b"], b"x\n", "cannot be a key prefix"),
    ] {
        let (is_made, said) = password(arguments, input);
        assert!(!is_made && said.contains(reason), "{arguments:?}: {said}");
    }
}

#[test]
fn a_served_region_is_open_to_people_and_outlives_kill_9() {
    let folder = Folder::new("warm");
    let region = folder.path("region");
    let mut first = Serving::start(&folder);
    assert!(
        first.ready_line.contains("ready: unix ") && first.ready_line.contains("2 MiB, empty"),
        "{}",
        first.ready_line
    );
    assert_eq!(
        code(&[
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--socket",
            &folder.path("socket"),
            "--region",
            &region
        ]),
        71
    );

    let stream = UnixStream::connect(folder.path("socket")).unwrap();
    assert_eq!(ask(stream, "set a 5 0 3\r\none\r\n", 1), "STORED\r\n");
    assert_eq!(stdout(&["get", "a", "--region", &region]), "one");
    assert_eq!(stdout(&["set", "b", "two", "--flags", "7", "--region", &region]), "");
    assert_eq!(code(&["get", "c", "--region", &region]), 1);
    let stream = UnixStream::connect(folder.path("socket")).unwrap();
    assert_eq!(ask(stream, "get b\r\n", 3), "VALUE b 7 3\r\ntwo\r\nEND\r\n");

    first.signal("-KILL");
    first.child.wait().unwrap();
    assert!(stdout(&["check", &region]).contains("all invariants hold"));

    let mut second = Serving::start(&folder);
    assert!(second.ready_line.contains("warm: 2 items"), "{}", second.ready_line);
    let mut keys: Vec<String> = stdout(&["keys", "--region", &region]).lines().map(str::to_owned).collect();
    keys.sort();
    assert_eq!(keys, ["a", "b"]);
    assert_eq!(code(&["delete", "a", "--region", &region]), 0);
    assert_eq!(code(&["delete", "a", "--region", &region]), 1);
    assert_eq!(stdout(&["dump", "--region", &region]), "mn\r\nset b 7 0 3\r\ntwo\r\nmn\r\n");
    assert!(stdout(&["stats", "--region", &region]).contains("items                1"));
    let checked = |code: i32| {
        let output = keyway(&["check", "--json", &region]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
        serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap()
    };
    let said = checked(3);
    assert!(
        said["in_use"] == true && said["is_sound"] == true && said["items_read"] == 1,
        "{said}"
    );

    second.signal("-TERM");
    assert_eq!(second.child.wait().unwrap().code(), Some(0));
    assert!(!Path::new(&folder.path("socket")).exists());
    assert!(stdout(&["check", &region]).contains("all invariants hold"));
    let said = checked(0);
    assert!(
        said["in_use"] == false && said["is_sound"] == true && said["problems"] == serde_json::json!([]),
        "{said}"
    );
}

#[test]
fn a_second_signal_ends_a_server_that_waits_for_a_slow_reader() {
    let folder = Folder::new("twice");
    let mut serving = Serving::start(&folder);
    let mut stream = UnixStream::connect(folder.path("socket")).unwrap();
    stream
        .write_all(
            &[
                b"set k 0 0 500000\r\n",
                &[b'v'; 500_000][..],
                b"\r\n",
                &b"get k\r\n".repeat(20),
            ]
            .concat(),
        )
        .unwrap();
    // The first answer is here, so the server is at work on the others, which no client reads.
    stream.read_exact(&mut [0; 10]).unwrap();
    serving.signal("-TERM");
    until("it does not listen any more", || {
        UnixStream::connect(folder.path("socket")).is_err()
    });
    assert_eq!(serving.child.try_wait().unwrap(), None, "it should wait for its reader");
    serving.signal("-INT");
    assert_eq!(serving.child.wait().unwrap().code(), Some(1));
    // Its region needs no farewell.
    assert!(stdout(&["check", &folder.path("region")]).contains("all invariants hold"));
}

#[test]
fn memcacheds_daemon_mode_returns_when_it_serves() {
    let folder = Folder::new("daemon");
    let (ports, pid_file) = (folder.path("ports"), folder.path("pid"));
    let started = Command::new(env!("CARGO_BIN_EXE_keyway"))
        .args([
            "memcached",
            "-d",
            "-m8",
            "-I1m",
            "-p",
            "-1",
            "-l127.0.0.1",
            "-t1",
            "-P",
            &pid_file,
        ])
        .env("MEMCACHED_PORT_FILENAME", &ports)
        .status()
        .unwrap();
    assert_eq!(started.code(), Some(0));
    // All is there when the first process has ended: nothing to wait for.
    let ports = std::fs::read_to_string(&ports).unwrap();
    let port = ports.trim().strip_prefix("TCP INET: ").unwrap_or_else(|| panic!("{ports}"));
    let stream = TcpStream::connect(("127.0.0.1", port.parse().unwrap())).unwrap();
    assert_eq!(ask(stream, "version\r\n", 1), "VERSION 1.6.45\r\n");
    let pid = std::fs::read_to_string(&pid_file).unwrap();
    signal(pid.trim(), "-TERM");
    until("the daemon is gone", || !Path::new(&pid_file).exists());
}

#[test]
fn a_memcached_on_a_socket_leaves_no_memory_behind() {
    let folder = Folder::new("leaves");
    let socket = folder.path("socket");
    let name = format!(
        "keyway-{}-{}",
        nix::unistd::geteuid(),
        socket.trim_start_matches('/').replace('/', "-")
    );
    let region = Path::new("/dev/shm").join(name);
    let start = |more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
        command.args(["memcached", "-m2", "-I512k", "-t1", "-s", &socket]).args(more);
        Serving::spawn({
            command.stdout(Stdio::piped());
            command
        })
    };
    let end = |mut serving: Serving| {
        serving.signal("-TERM");
        assert_eq!(serving.child.wait().unwrap().code(), Some(0));
    };
    for more in [&[][..], &["-o", "drop_privileges"]] {
        let mut killed = start(more);
        let stream = UnixStream::connect(&socket).unwrap();
        assert_eq!(ask(stream, "set a 0 0 1\r\n1\r\n", 1), "STORED\r\n");
        killed.signal("-KILL");
        killed.child.wait().unwrap();
        // What killed it, it survives.
        let again = start(more);
        assert!(again.ready_line.contains("warm: 1 items"), "{}", again.ready_line);
        // A program that uses the region keeps it.
        let program = Cache::open(&Place::at(&region), &Options::new()).unwrap();
        end(again);
        assert!(region.exists(), "{more:?}");
        assert!(program.close());
        end(start(more));
        assert!(!region.exists(), "{more:?}");
    }
    let named = folder.path("named");
    end(start(&["-e", &named]));
    assert!(Path::new(&named).exists() && !region.exists());
}

#[test]
fn a_daemon_that_cannot_start_says_so() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let output = keyway(&["memcached", "-d", "-l", "127.0.0.1", "-p", &port, "-e", "memfd"]);
    assert_eq!(output.status.code(), Some(71));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("cannot listen on tcp"),
        "{output:?}"
    );
}

/// The length of a file, and what it holds.
fn as_it_is(path: &str) -> (u64, Vec<u8>) {
    let bytes = std::fs::read(path).unwrap();
    (std::fs::metadata(path).unwrap().len(), bytes)
}

#[test]
fn a_server_that_cannot_bind_leaves_the_region_as_it_is() {
    let folder = Folder::new("bind");
    let (region, absent) = (folder.path("region"), folder.path("absent"));
    let mut serving = Serving::start(&folder);
    serving.signal("-TERM");
    serving.child.wait().unwrap();
    let before = as_it_is(&region);

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let tcp = taken.local_addr().unwrap().to_string();
    let taken_udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let udp = taken_udp.local_addr().unwrap().to_string();
    let (busy, fresh) = (folder.path("busy"), folder.path("fresh"));
    let _listening = std::os::unix::net::UnixListener::bind(&busy).unwrap();
    let ways: [&[&str]; 4] = [
        &["--listen", &tcp],
        &["--listen", "127.0.0.1:0", "--socket", &busy],
        &["--listen", "127.0.0.1:0", "--socket", &fresh, "--udp", &udp],
        &["--listen", "127.0.0.1:0", "--socket", &fresh, "--region-socket", &busy],
    ];
    for way in ways {
        for place in [&region, &absent] {
            let arguments = [&["serve", "--memory", "16m", "--region", place], way].concat();
            assert_eq!(code(&arguments), 71, "{arguments:?}");
        }
        assert_eq!(as_it_is(&region), before, "{way:?}");
        assert!(!Path::new(&absent).exists(), "{way:?}");
    }
    let port = taken.local_addr().unwrap().port().to_string();
    for place in [&region, &absent] {
        assert_eq!(
            code(&["memcached", "-l", "127.0.0.1", "-p", &port, "-m", "16", "-e", place]),
            71
        );
    }
    assert!(as_it_is(&region) == before && !Path::new(&absent).exists());
}

fn stat(socket: &str, name: &str) -> String {
    let mut reader = BufReader::new(UnixStream::connect(socket).unwrap());
    reader.get_mut().write_all(b"stats\r\n").unwrap();
    let prefix = format!("STAT {name} ");
    let mut found = String::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        if let Some(value) = line.strip_prefix(&prefix) {
            found = value.trim_end().to_owned();
        }
        if line == "END\r\n" {
            return found;
        }
        assert!(!line.is_empty(), "no END");
    }
}

#[test]
fn a_region_that_is_removed_or_replaced_under_a_server_is_said_once_and_shown() {
    let folder = Folder::new("lookout");
    let (region, aside, socket) = (folder.path("region"), folder.path("aside"), folder.path("socket"));
    let log = folder.path("log");
    let mut command = Serving::command(&folder);
    command.stderr(std::fs::File::create(&log).unwrap());
    let _serving = Serving::spawn(command);
    assert_eq!(stat(&socket, "keyway_region_state"), "in_place");
    let becomes = |state: &str, words: &str| {
        until(state, || stat(&socket, "keyway_region_state") == state);
        until(words, || std::fs::read_to_string(&log).unwrap().contains(words));
    };
    std::fs::rename(&region, &aside).unwrap();
    becomes("removed", "was removed");
    std::fs::write(&region, "another file").unwrap();
    becomes("replaced", "was replaced by another file");
    std::fs::rename(&aside, &region).unwrap();
    becomes("in_place", "is at its place again");
    let said = std::fs::read_to_string(&log).unwrap();
    assert_eq!(said.matches("warning: region ").count(), 3, "each is said once:\n{said}");
    assert!(said.contains("restart this server"), "{said}");
}

/// Offset of the boot's identity in the superblock (`docs/region.md`).
const BOOT_ID: u64 = 960 + 8;

#[test]
fn a_discarded_region_is_said_without_being_asked() {
    use std::os::unix::fs::FileExt;
    // On a file system that outlives a boot.
    let folder = Folder(PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("discarded-{}", std::process::id())));
    std::fs::create_dir_all(&folder.0).unwrap();
    let (region, socket) = (folder.path("region"), folder.path("socket"));
    // Another boot, as far as the region can tell, and no clean stop of the last.
    let reboot = || {
        let file = std::fs::File::options().read(true).write(true).open(&region).unwrap();
        let mut id = [0; 8];
        file.read_exact_at(&mut id, BOOT_ID).unwrap();
        file.write_all_at(&(u64::from_le_bytes(id) ^ 1).to_le_bytes(), BOOT_ID)
            .unwrap();
    };
    let log = folder.path("log");
    let start = || {
        let mut command = Serving::command(&folder);
        command.stderr(std::fs::File::create(&log).unwrap());
        let mut serving = Serving::spawn(command);
        let stream = UnixStream::connect(&socket).unwrap();
        assert_eq!(ask(stream, "set a 0 0 1\r\n1\r\n", 1), "STORED\r\n");
        serving.signal("-KILL");
        serving.child.wait().unwrap();
        std::fs::read_to_string(&log).unwrap()
    };
    assert_eq!(start(), "", "a new region is nothing to be said");
    assert_eq!(start(), "", "nor one that was killed in this boot");
    reboot();
    let said = start();
    assert!(said.contains("warning: region ") && said.contains("was discarded"), "{said}");
    reboot();
    let output = keyway(&["keys", "--region", &region]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("was discarded") && output.stdout.is_empty(), "{output:?}");
}

#[test]
fn check_of_a_region_in_use_says_so_and_not_that_it_is_damaged() {
    let folder = Folder::new("in-use");
    let (region, socket) = (folder.path("region"), folder.path("socket"));
    let mut serving = Serving::start(&folder);
    let stream = UnixStream::connect(&socket).unwrap();
    assert_eq!(
        ask(stream, "set a 0 0 1\r\n1\r\nset b 0 0 1\r\n2\r\n", 2),
        "STORED\r\nSTORED\r\n"
    );
    // A writer that never rests, so that there is always something half done.
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let done = scope.spawn(|| {
            let mut stream = UnixStream::connect(&socket).unwrap();
            let mut round = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let mut batch = Vec::new();
                for key in 0..200 {
                    round += 1;
                    let len = 1 + (round * 7919) % 3000;
                    batch.extend_from_slice(format!("set k{key} 0 0 {len} noreply\r\n").as_bytes());
                    batch.extend_from_slice(&vec![b'v'; len]);
                    batch.extend_from_slice(b"\r\n");
                }
                stream.write_all(&batch).unwrap();
            }
        });
        for _ in 0..10 {
            let output = keyway(&["check", &region]);
            let (told, said) = (
                String::from_utf8_lossy(&output.stdout),
                String::from_utf8_lossy(&output.stderr),
            );
            assert_eq!(output.status.code(), Some(3), "{told}{said}");
            assert!(
                told.contains("in use by 1 other process; superblock and layout are sound"),
                "{told}"
            );
            assert!(said.contains("is in use") && said.contains("keyway copy"), "{said}");
            assert!(!told.contains("damaged") && !said.contains("remove it"), "{told}{said}");
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        done.join().unwrap();
    });
    serving.signal("-TERM");
    serving.child.wait().unwrap();
    assert!(stdout(&["check", &region]).contains("all invariants hold"));
}

#[test]
fn an_address_is_no_region() {
    let folder = Folder::new("address");
    for text in ["127.0.0.1:11211", "localhost", "cache.example.org:11211"] {
        for arguments in [
            &["serve", "--listen", "127.0.0.1:0", "--socket", "socket", "--region", text][..],
            &["get", "key", "--region", text],
            &["check", text],
        ] {
            let output = Command::new(env!("CARGO_BIN_EXE_keyway"))
                .args(arguments)
                .current_dir(&folder.0)
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(64), "{arguments:?}: {said}");
            assert!(
                said.contains("is the address of a server") && said.contains("--region-socket"),
                "{said}"
            );
            assert!(!folder.0.join(text).exists(), "{arguments:?}");
        }
    }
    // A file that has such a name is a file.
    std::fs::write(folder.path("localhost:1"), "no region").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_keyway"))
        .args(["check", "localhost:1"])
        .current_dir(&folder.0)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2), "{output:?}");
}

#[test]
fn room_for_more_threads_is_asked_for_at_the_making() {
    let folder = Folder::new("sessions");
    let start = |sessions: &str| {
        let mut command = Serving::command(&folder);
        command.args(["--sessions", sessions]).stderr(Stdio::piped());
        let mut serving = Serving::spawn(command);
        let shown = ["keyway_sessions_max", "keyway_sessions_of_servers"].map(|name| stat(&folder.path("socket"), name));
        serving.signal("-TERM");
        serving.child.wait().unwrap();
        let mut said = String::new();
        serving.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        (shown, said)
    };
    assert_eq!(start("300"), (["300".to_owned(), "37".to_owned()], String::new()));
    let (shown, said) = start("64");
    assert_eq!(shown, ["300", "37"]);
    assert!(said.contains("has slots for 300 threads, not the requested 64"), "{said}");
    for refused in ["31", "513"] {
        let arguments = [
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--socket",
            &folder.path("other"),
            "--region",
        ];
        let absent = folder.path("absent");
        let output = keyway(
            &[
                &arguments[..],
                &[&absent, "--memory", "2m", "--sessions", refused, "--max-item", "1k"],
            ]
            .concat(),
        );
        assert_eq!(output.status.code(), Some(64), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("32 to 512"), "{output:?}");
        assert!(!Path::new(&absent).exists());
    }
}

#[test]
fn a_program_that_is_started_without_standard_streams_has_them() {
    let folder = Folder::new("streams");
    let socket = folder.path("socket");
    let serve = format!(
        "exec '{}' serve --listen 127.0.0.1:0 --memory 2m --threads 1 --socket '{socket}' --region '{}' <&- >&- 2>&-",
        env!("CARGO_BIN_EXE_keyway"),
        folder.path("region")
    );
    let child = Command::new("/bin/sh").args(["-c", &serve]).spawn().unwrap();
    let serving = Serving {
        child,
        ready_line: String::new(),
    };
    until("it serves", || UnixStream::connect(&socket).is_ok());
    let stream = UnixStream::connect(&socket).unwrap();
    assert_eq!(ask(stream, "set a 0 0 1\r\n1\r\n", 1), "STORED\r\n");
    for number in 0..3 {
        let leads_to = std::fs::read_link(format!("/proc/{}/fd/{number}", serving.child.id())).unwrap();
        assert_eq!(leads_to, Path::new("/dev/null"), "descriptor {number}");
    }
    // The same of memcached's daemon, whose copy reports by a pipe that it serves.
    let (ports, pid_file) = (folder.path("ports"), folder.path("pid"));
    let daemon = format!(
        "'{}' memcached -d -m8 -I1m -p -1 -l127.0.0.1 -t1 -P '{pid_file}' <&- >&- 2>&-",
        env!("CARGO_BIN_EXE_keyway")
    );
    let started = Command::new("/bin/sh")
        .args(["-c", &daemon])
        .env("MEMCACHED_PORT_FILENAME", &ports)
        .status()
        .unwrap();
    assert_eq!(started.code(), Some(0));
    let pid = std::fs::read_to_string(&pid_file).unwrap();
    for number in 0..3 {
        let leads_to = std::fs::read_link(format!("/proc/{}/fd/{number}", pid.trim())).unwrap();
        assert_eq!(leads_to, Path::new("/dev/null"), "descriptor {number}");
    }
    signal(pid.trim(), "-TERM");
    until("the daemon is gone", || !Path::new(&pid_file).exists());
}

/// Runs memcached's command line until its ports are known, and gives them: lines like `TCP INET: 11211`.
fn memcached_ports(folder: &Folder, arguments: &[&str]) -> (std::process::Child, String) {
    let ports = folder.path("ports");
    let _ = std::fs::remove_file(&ports);
    let child = Command::new(env!("CARGO_BIN_EXE_keyway"))
        .args(["memcached", "-m8", "-I1m", "-t1", "-ememfd"])
        .args(arguments)
        .env("MEMCACHED_PORT_FILENAME", &ports)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the ports are written", || Path::new(&ports).exists());
    (child, std::fs::read_to_string(&ports).unwrap())
}

/// As memcached: without -l, the family of addresses that is free is enough; and one that is named need not be alone on its port.
#[test]
fn without_addresses_the_family_that_is_free_is_served() {
    let folder = Folder::new("family");
    let Ok(taken) = std::net::TcpListener::bind("[::1]:0") else {
        eprintln!("SKIP: a family of addresses that is taken, because this machine has no IPv6");
        return;
    };
    let port = taken.local_addr().unwrap().port();
    let (mut child, ports) = memcached_ports(&folder, &["-p", &port.to_string()]);
    assert_eq!(ports, format!("TCP INET: {port}\n"));
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    assert_eq!(ask(stream, "version\r\n", 1), "VERSION 1.6.45\r\n");
    // Both are taken now.
    let refused = keyway(&["memcached", "-p", &port.to_string(), "-e", "memfd"]);
    assert_eq!(refused.status.code(), Some(71), "{refused:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    drop(taken);
    // The other way round: an IPv6 address beside another server's IPv4.
    let other = std::net::TcpListener::bind("0.0.0.0:0").unwrap();
    let port = other.local_addr().unwrap().port();
    let (mut child, ports) = memcached_ports(&folder, &["-l::1", "-p", &port.to_string()]);
    assert_eq!(ports, format!("TCP INET6: {port}\n"));
    child.kill().unwrap();
    child.wait().unwrap();
}

/// memcached's t/issue_67.t: -p 0 leaves no port, and -U -1 chooses one for both.
#[test]
fn ports_are_off_or_any_as_in_memcached() {
    let folder = Folder::new("ports");
    let (mut child, ports) = memcached_ports(&folder, &["-p", "0"]);
    assert_eq!(ports, "");
    assert!(child.try_wait().unwrap().is_none(), "it runs all the same");
    child.kill().unwrap();
    child.wait().unwrap();
    let (mut child, ports) = memcached_ports(&folder, &["-U", "-1", "-l", "127.0.0.1"]);
    let names: Vec<&str> = ports
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, _)| name)
        .collect();
    assert_eq!(names, ["TCP INET", "UDP INET"]);
    assert!(!ports.contains(": 11211") && !ports.contains(": 0\n"), "{ports}");
    child.kill().unwrap();
    child.wait().unwrap();
}
