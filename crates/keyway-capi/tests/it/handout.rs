//! A region that a server hands out: enemy, a client that gets it and should not, or should and cannot: another user, a file
//! that it may not open or cannot even see, another mount and pid namespace.
//! Guards: P34

use crate::common::{HERE, Installed};
use harness::{DEADLINE, Kind, ServeOptions, Server, Transport, Wire, run_to_end, skip, wait_until};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A user that no server runs as: "nobody", on most systems.
const STRANGER: &str = "65534";

struct Ground {
    installed: Installed,
    server: Server,
    socket: PathBuf,
    program: PathBuf,
}

impl Ground {
    /// `None`: said aloud why not.
    fn new(test: &str, writers: Option<&str>) -> Option<Self> {
        Self::with(test, writers.map(|writers| ["--region-writers", writers]))
    }

    fn with(test: &str, right: Option<[&str; 2]>) -> Option<Self> {
        let installed = Installed::new(test)?;
        let program = installed.compile(&Path::new(HERE).join("tests/c/attached.c"));
        let socket = installed.scratch.join("region.sock");
        let mut keyway_arguments = vec!["--region-socket".to_owned(), socket.display().to_string()];
        keyway_arguments.extend(right.into_iter().flatten().map(str::to_owned));
        let options = ServeOptions {
            // Few slots, so that they can be taken.
            memory_mb: 2,
            keyway_arguments,
            ..ServeOptions::default()
        };
        let server = Server::start(Kind::Keyway, &options);
        let stored = server.connect(Transport::Tcp).ask("set from-server 0 0 5\r\nhello");
        assert_eq!(stored.expect("an answer"), "STORED");
        Some(Self {
            installed,
            server,
            socket,
            program,
        })
    }

    /// Runs the program behind these words; how it ended, and what it printed.
    fn run(&self, before: &[&str], how: &[&str]) -> (std::process::ExitStatus, String) {
        self.run_at(&self.socket, before, how)
    }

    /// The same at this place.
    fn run_at(&self, place: &Path, before: &[&str], how: &[&str]) -> (std::process::ExitStatus, String) {
        let mut words = before.iter().map(|word| word.to_string()).collect::<Vec<_>>();
        words.extend([self.program.display().to_string(), place.display().to_string()]);
        words.extend(how.iter().map(|word| word.to_string()));
        let mut command = Command::new(&words[0]);
        command
            .args(&words[1..])
            .env("LD_LIBRARY_PATH", self.installed.scratch.path());
        run_to_end(&mut command, DEADLINE)
    }

    fn attaches(&self, before: &[&str]) {
        let (status, output) = self.run(before, &[]);
        assert!(status.success(), "{status}\n{output}");
        assert_eq!(output, "OK\n");
        assert_eq!(statistic(&mut self.server.connect(Transport::Tcp), "cmd_set"), "2");
    }

    fn is_refused(&self, before: &[&str]) {
        let (status, output) = self.run(before, &["refused"]);
        assert!(status.success(), "{status}\n{output}");
        assert!(output.contains(STRANGER) && output.contains("--region-writers"), "{output}");
    }
}

fn statistic(wire: &mut Wire, name: &str) -> String {
    wire.send(b"stats\r\n").expect("a server that takes requests");
    let mut found = None;
    loop {
        let line = wire.line().expect("a line");
        let line = String::from_utf8_lossy(&line).into_owned();
        if line == "END" {
            return found.unwrap_or_else(|| panic!("no statistic is called {name}"));
        }
        if let Some(value) = line.strip_prefix(&format!("STAT {name} ")) {
            found = Some(value.to_owned());
        }
    }
}

/// Whether this command works here; says aloud if not.
fn can(test: &str, command: &[&str]) -> bool {
    let works = Command::new(command[0])
        .args(&command[1..])
        .output()
        .is_ok_and(|o| o.status.success());
    if !works {
        skip(test, &format!("`{}` does not work here (it needs root)", command.join(" ")));
    }
    works
}

const AS_STRANGER: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

#[test]
fn a_stranger_is_refused_by_name() {
    let test = "another user's program";
    if can(test, &[&AS_STRANGER[..], &["true"]].concat())
        && let Some(ground) = Ground::new(test, None)
    {
        ground.is_refused(&AS_STRANGER);
        ground.attaches(&["env"]);
    }
}

#[test]
fn a_user_or_group_that_is_named_may_have_what_it_could_not_open() {
    let test = "another user's program that is allowed";
    if !can(test, &[&AS_STRANGER[..], &["true"]].concat()) {
        return;
    }
    for writers in [STRANGER, "0,:65534"] {
        let Some(ground) = Ground::new(test, Some(writers)) else {
            return;
        };
        let region = ground.server.region().display().to_string();
        let (readable, _) = run_to_end(
            Command::new(AS_STRANGER[0]).args(&AS_STRANGER[1..]).args(["cat", &region]),
            DEADLINE,
        );
        assert!(!readable.success(), "the file itself is not for strangers");
        ground.attaches(&AS_STRANGER);
    }
}

#[test]
fn a_reader_reads_and_stores_what_it_may_not_write() {
    let test = "another user's program that may read";
    if !can(test, &[&AS_STRANGER[..], &["true"]].concat()) {
        return;
    }
    for readers in [STRANGER, "0,:65534"] {
        let Some(ground) = Ground::with(test, Some(["--region-readers", readers])) else {
            return;
        };
        ground.attaches(&AS_STRANGER);
        // Killed in the middle, it leaves nothing to take back.
        let mut wire = ground.server.connect(Transport::Tcp);
        let sessions = statistic(&mut wire, "keyway_sessions");
        let (status, output) = ground.run(&AS_STRANGER, &["killed"]);
        assert!(!status.success(), "{output}");
        assert_eq!(statistic(&mut wire, "keyway_sessions"), sessions);
        let log = ground.server.log();
        assert!(log.is_empty() || !log.contains("panicked"), "{log}");
    }
}

#[test]
fn a_reader_in_namespaces_of_its_own_needs_nothing_but_the_socket() {
    let test = "a reader in namespaces of its own";
    let namespaces = ["unshare", "--mount", "--pid", "--net", "--fork", "--kill-child"];
    if !can(test, &[&namespaces[..], &["true"]].concat()) {
        return;
    }
    let Some(ground) = Ground::with(test, Some(["--region-readers", "0"])) else {
        return;
    };
    let folder = ground.server.region().parent().expect("a file is in a directory");
    let hidden = format!("mount -t tmpfs none {} && {{ \"$@\"; exit $?; }}", folder.display());
    let within = [&namespaces[..], &["sh", "-c", &hidden, "sh"]].concat();
    ground.attaches(&within);
}

#[test]
fn another_mount_and_pid_namespace_is_no_obstacle() {
    let test = "a client in namespaces of its own";
    let namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"];
    if !can(test, &[&namespaces[..], &["true"]].concat()) {
        return;
    }
    let Some(ground) = Ground::new(test, None) else { return };
    // Where the region's file is, the client sees an empty directory instead; its process number means nothing outside.
    let folder = ground.server.region().parent().expect("a file is in a directory");
    let hidden = format!(
        "mount -t tmpfs none {0} && ! test -e {1} && test $$ -lt 10 && {{ \"$@\"; exit $?; }}",
        folder.display(),
        ground.server.region().display()
    );
    let within = [&namespaces[..], &["sh", "-c", &hidden, "sh"]].concat();
    ground.attaches(&within);

    // Killed in there, it is noticed out here: its lock goes with it, not its number.
    let mut wire = ground.server.connect(Transport::Tcp);
    let before = statistic(&mut wire, "keyway_sessions");
    let recovered: u64 = statistic(&mut wire, "keyway_recoveries").parse().expect("a number");
    let (status, output) = ground.run(&within, &["killed"]);
    assert!(!status.success(), "{output}");
    wait_until("the server takes back what the killed client held", DEADLINE, || {
        let now: u64 = statistic(&mut wire, "keyway_recoveries").parse().expect("a number");
        (now > recovered && statistic(&mut wire, "keyway_sessions") == before).then_some(())
    });
}

#[test]
fn a_program_that_finds_no_slot_is_served() {
    let test = "programs on a region without slots";
    let Some(ground) = Ground::new(test, None) else { return };
    let region = ground.server.region().to_path_buf();
    let options = keyway_cache::Options::new();
    let mut others = Vec::new();
    loop {
        let cache =
            keyway_cache::Cache::open(&keyway_cache::Place::Path(region.clone()), &options).expect("the region, or its server");
        if cache.is_reader() {
            break;
        }
        others.push(cache);
    }
    let served = |place: &Path, before: &[&str]| {
        let (status, output) = ground.run_at(place, before, &[]);
        assert!(
            status.success() && output == "OK\n",
            "{} {before:?}: {status}\n{output}",
            place.display()
        );
    };
    let fails = |place: &Path, before: &[&str], how: &str| {
        let (status, output) = ground.run_at(place, before, &[how]);
        assert!(status.success(), "{} {before:?}: {status}\n{output}", place.display());
        output
    };
    served(&region, &[]);
    served(&ground.socket, &[]);
    assert_eq!(statistic(&mut ground.server.connect(Transport::Tcp), "cmd_set"), "3");
    if can(test, &["unshare", "--net", "true"]) {
        served(&ground.socket, &["unshare", "--net"]);
        // Its socket with the region's name is another network's.
        let said = fails(&region, &["unshare", "--net"], "full");
        assert!(said.contains("keyway serve") && said.contains("--sessions"), "{said}");
    }
    if can(test, &[&AS_STRANGER[..], &["true"]].concat()) {
        // The server answers only users with write access to the region's file.
        let asked = ask_for_line(&region);
        assert!(asked.is_none_or(|answer| answer.contains(&format!("user {STRANGER}"))));
        let scratch = region.parent().expect("a folder");
        std::fs::set_permissions(scratch, std::fs::Permissions::from_mode(0o755)).expect("a folder of ours");
        let allow = |mode| std::fs::set_permissions(&region, std::fs::Permissions::from_mode(mode)).expect("a file of ours");
        allow(0o666);
        let said = fails(&region, &AS_STRANGER, "refused");
        assert!(said.contains("belongs to user 0"), "{said}");
        let said = fails(&region, &AS_STRANGER, "any-owner");
        assert_eq!(said, "OK\n");
        assert!(ask_for_line(&region).is_none_or(|answer| answer.starts_with("keyway-region 1 line ")));
        allow(0o600);
    }
    drop(others);
    served(&region, &[]);
}

/// What a stranger is answered who asks the server of this region for a line, without having the region. `None`: said aloud why not.
fn ask_for_line(region: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    const ASK: &str = "import socket, sys\ns = socket.socket(socket.AF_UNIX)\ns.bind('')\ns.connect(chr(0) + sys.argv[1])\nprint(s.recv(512).decode())";
    // The system's Python, which every user may run: the first one on PATH may be in a home folder.
    const PYTHON: &str = "/usr/bin/python3";
    if !can(
        "a stranger that asks for a line",
        &[&AS_STRANGER[..], &[PYTHON, "-c", ""]].concat(),
    ) {
        return None;
    }
    let file = std::fs::metadata(region).expect("a file");
    let name = keyway_cache::server::handout::line_name((file.dev(), file.ino()));
    let mut command = Command::new(AS_STRANGER[0]);
    command.args(&AS_STRANGER[1..]).arg(PYTHON).args(["-c", ASK]);
    command.arg(String::from_utf8(name).expect("plain text"));
    let (status, output) = run_to_end(&mut command, DEADLINE);
    assert!(status.success(), "{output}");
    Some(output)
}

#[test]
fn an_address_is_no_place() {
    let Some(ground) = Ground::new("a C program that opens an address", None) else {
        return;
    };
    let address = ground.server.address().to_string();
    let (status, said) = ground.run_at(Path::new(&address), &[], &["argument"]);
    assert!(status.success(), "{status}\n{said}");
    assert!(
        said.contains("is the address of a server") && said.contains("--region-socket"),
        "{said}"
    );
    assert!(!Path::new(&address).exists());
}
