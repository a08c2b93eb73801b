//! A server's confinement: its enemy is something that a server which is taken over could still do, and something that a server can do no
//! more although it must.
//! Guards: P33

use harness::{DEADLINE, Kind, Scratch, ServeOptions, Server, Transport, Wire, keyway_binary, run_to_end, wait_until};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// What a process's status says under this name.
fn status(pid: u32, name: &str) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    value.unwrap_or_default().trim().to_owned()
}

fn started(arguments: &[&str]) -> Server {
    let options = ServeOptions {
        keyway_arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        ..ServeOptions::default()
    };
    Server::start(Kind::Keyway, &options)
}

/// What `confined` says of each of its attempts.
fn tried(more: &[&str]) -> BTreeMap<String, String> {
    let (region, again) = (Scratch::new(), Scratch::new());
    for folder in [&region, &again] {
        std::fs::write(folder.join("file"), [0; 4096]).expect("a file");
        std::fs::write(folder.join("other"), "other").expect("a file");
    }
    let program = harness::workspace_binary("gate", "confined");
    let mut command = Command::new(program);
    command.arg(region.join("file")).arg(again.join("file")).args(more);
    let (ended, said) = run_to_end(&mut command, DEADLINE);
    assert!(ended.success() && said.contains("end\n"), "{ended}: {said}");
    let lines = said.lines().filter_map(|line| line.split_once(' '));
    lines.map(|(name, outcome)| (name.to_owned(), outcome.to_owned())).collect()
}

#[test]
fn what_is_confined_can_do_what_serving_takes_and_no_more() {
    let all = tried(&[]);
    let wrong: Vec<_> = all
        .iter()
        .filter(|(_, outcome)| *outcome != "refused" && *outcome != "works")
        .collect();
    assert!(wrong.is_empty() && all.len() > 40, "{} tried, wrong: {wrong:#?}", all.len());
    // What an option takes opens that, and nothing else.
    for (needs, open) in [("rings", &["io-uring"][..]), ("door", &["bpf", "netlink"])] {
        let differs: Vec<String> = tried(&[needs])
            .into_iter()
            .filter(|(name, outcome)| all.get(name) != Some(outcome))
            .map(|(name, _)| name)
            .collect();
        assert_eq!(differs, open, "{needs}");
    }
}

#[test]
fn a_server_is_confined_unless_an_option_says_otherwise() {
    let mut server = started(&["-v"]);
    let pid = server.pid();
    let log = server.log();
    assert!(log.contains("confined: files of its options (Landlock)"), "{log}");
    for task in std::fs::read_dir(format!("/proc/{pid}/task")).expect("its threads").flatten() {
        let thread = task.file_name().to_string_lossy().parse().expect("a number");
        let told = ["Seccomp", "NoNewPrivs", "CapEff", "CapPrm"].map(|name| status(thread, name));
        assert_eq!(told, ["2", "1", "0000000000000000", "0000000000000000"], "thread {thread}");
    }
    server.terminate();
    let server = started(&["-v", "--no-sandbox"]);
    let told = ["Seccomp", "NoNewPrivs"].map(|name| status(server.pid(), name));
    let own = ["Seccomp", "NoNewPrivs"].map(|name| status(std::process::id(), name));
    assert_eq!(told, own);
    assert!(server.log().contains("not confined: --no-sandbox"), "{}", server.log());
}

/// A server that lets in only who authenticates, killed with its handle.
struct Guarded(Child, PathBuf);

impl Guarded {
    fn start(folder: &Scratch, users: &Path) -> Self {
        let mut command = Command::new(keyway_binary());
        let socket = folder.join("socket");
        command.args(["serve", "--memory", "4M", "--threads", "1", "--region"]);
        command
            .arg(folder.join("region"))
            .arg("--auth-file")
            .arg(users)
            .arg("--socket")
            .arg(&socket);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("keyway starts");
        let mut ready = String::new();
        let output = child.stdout.take().expect("its output");
        BufReader::new(output).read_line(&mut ready).expect("a line");
        assert!(ready.contains("ready: "), "it says {ready:?}");
        Self(child, socket)
    }

    fn lets_in(&self, user: &str) -> bool {
        let mut wire = Wire::from_unix(UnixStream::connect(&self.1).expect("a connection")).expect("a connection");
        wire.ask(&format!("set login 0 0 {}\r\n{user}", user.len()))
            .expect("an answer")
            == "STORED"
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_confined_server_reads_its_users_again_though_the_file_is_another_one() {
    let folder = Scratch::new();
    let (users, new) = (folder.join("users"), folder.join("new"));
    let written = |path: &Path, text: &str| {
        std::fs::write(path, text).expect("a file");
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o600)).expect("its mode");
    };
    written(&users, "one:first\n");
    let server = Guarded::start(&folder, &users);
    wait_until("it is confined", DEADLINE, || {
        (status(server.0.id(), "Seccomp") == "2").then_some(())
    });
    assert!(server.lets_in("one first") && !server.lets_in("two second"));
    // Replaced by a rename, as editors do.
    written(&new, "two:second\n");
    std::fs::rename(&new, &users).expect("a rename");
    let hung_up = Command::new("kill").args(["-HUP", &server.0.id().to_string()]).status();
    assert!(hung_up.expect("kill").success());
    wait_until("the users are read again", DEADLINE, || {
        server.lets_in("two second").then_some(())
    });
}

#[test]
fn a_confined_server_does_what_its_options_need_later() {
    let folder = Scratch::new();
    let region_socket = folder.join("region-socket");
    let mut server = started(&["-v", "--region-socket", &region_socket.display().to_string()]);
    assert_eq!(status(server.pid(), "Seccomp"), "2");
    // The region is handed out.
    let options = keyway_cache::Options::new();
    let cache = keyway_cache::Cache::open(&keyway_cache::Place::Socket(region_socket.clone()), &options).expect("the region");
    cache.session().expect("a session").set(b"key", b"value", 0).expect("a store");
    drop(cache);
    let mut wire = server.connect(Transport::Tcp);
    assert_eq!(wire.ask("mg key").expect("an answer"), "HD");
    // Memory is taken and given back: more large values than it holds.
    let value = "v".repeat(500_000);
    for number in 0..200 {
        let stored = wire.ask(&format!("set big{number} 0 0 500000\r\n{value}"));
        assert_eq!(stored.expect("an answer"), "STORED", "{number}");
    }
    // The place is looked after.
    std::fs::remove_file(server.region()).expect("the region's file");
    wait_until("the server misses its region's file", DEADLINE, || {
        server.log().contains("was removed").then_some(())
    });
    let socket = server.socket().to_owned();
    assert!(socket.exists() && region_socket.exists());
    assert!(server.terminate().success(), "{}", server.log());
    assert!(!socket.exists() && !region_socket.exists(), "its sockets are left");
    let log = server.log();
    assert!(!log.contains("ermission") && !log.contains("not permitted"), "{log}");
}
