//! A service manager's side of `keyway serve`: a notify socket of this test's own in the place of systemd's, and the shipped units.
//! Guards: P48

use std::fs::File;
use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use harness::{DEADLINE, Scratch, Wire, free_port, program_on_path, run_to_end};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;

/// What the server sent: its lines, and a descriptor that came with them.
struct Message {
    text: String,
    fd: Option<OwnedFd>,
}

impl Message {
    fn has(&self, line: &str) -> bool {
        self.text.lines().any(|known| known == line)
    }
}

/// The notify socket.
struct Manager {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Manager {
    fn new(scratch: &Scratch) -> Self {
        let path = scratch.join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        Self { socket, path }
    }

    /// The next message that comes within this time.
    fn receive(&self, within: Duration) -> Option<Message> {
        self.socket.set_read_timeout(Some(within)).unwrap();
        let mut bytes = [0; 4096];
        let mut room = nix::cmsg_space!([i32; 4], nix::libc::ucred);
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg::<()>(
            self.socket.as_raw_fd(),
            &mut slices,
            Some(&mut room),
            MsgFlags::MSG_CMSG_CLOEXEC,
        );
        let received = received.ok()?;
        let fd = received.cmsgs().unwrap().find_map(|message| match message {
            // The kernel has just made it for this message.
            ControlMessageOwned::ScmRights(numbers) => numbers.first().map(|&number| owned(number)),
            _ => None,
        });
        let len = received.bytes;
        Some(Message {
            text: String::from_utf8(bytes[..len].to_vec()).unwrap(),
            fd,
        })
    }

    /// Waits for a message with this line, and returns it with those before it.
    fn wait_for(&self, line: &str) -> Vec<Message> {
        let begun = Instant::now();
        let mut received = Vec::new();
        loop {
            if let Some(message) = self.receive(Duration::from_millis(100)) {
                received.push(message);
                if received.last().unwrap().has(line) {
                    return received;
                }
            }
            let texts: Vec<_> = received.iter().map(|message| &message.text).collect();
            assert!(begun.elapsed() < DEADLINE, "never: {line}; received {texts:?}");
        }
    }
}

/// Takes ownership of a descriptor that a message has brought.
#[allow(unsafe_code, reason = "a descriptor in a message is a number, and belongs to its receiver")]
fn owned(number: i32) -> OwnedFd {
    // SAFETY: the kernel has made it for this process, and no other value owns it.
    unsafe { OwnedFd::from_raw_fd(number) }
}

/// `keyway serve`, killed at the end if it still runs.
struct Service {
    child: Child,
    address: SocketAddr,
    log: PathBuf,
}

impl Service {
    /// Starts it through a shell, which can hand over descriptors: `before` is what the shell does first.
    fn start(scratch: &Scratch, manager: &Manager, before: &str, arguments: &[&str]) -> Self {
        Self::start_at(
            SocketAddr::from(([127, 0, 0, 1], free_port())),
            scratch,
            manager,
            before,
            arguments,
        )
    }

    fn start_at(address: SocketAddr, scratch: &Scratch, manager: &Manager, before: &str, arguments: &[&str]) -> Self {
        let log = scratch.join("log");
        let file = File::options().create(true).append(true).open(&log).unwrap();
        // dash knows no descriptor above 9, and tests beside this one may have those below.
        let mut command = Command::new("bash");
        command.args([
            "-c",
            &format!("{before} exec \"$0\" \"$@\""),
            env!("CARGO_BIN_EXE_keyway"),
            "serve",
        ]);
        command
            .args(["--listen", &address.to_string(), "--memory", "4m"])
            .args(arguments);
        command.env("NOTIFY_SOCKET", &manager.path).stdin(Stdio::null());
        command.stdout(file.try_clone().unwrap()).stderr(file);
        Self {
            child: command.spawn().unwrap(),
            address,
            log,
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).unwrap();
    }

    fn wire(&self) -> Wire {
        Wire::from_tcp(std::net::TcpStream::connect(self.address).unwrap()).unwrap()
    }

    fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// The thread with this name.
    fn thread(&self, name: &str) -> Pid {
        let folder = format!("/proc/{}/task", self.child.id());
        let found = std::fs::read_dir(folder)
            .unwrap()
            .map(Result::unwrap)
            .find(|task| std::fs::read_to_string(task.path().join("comm")).is_ok_and(|comm| comm.trim() == name));
        Pid::from_raw(found.unwrap().file_name().to_str().unwrap().parse().unwrap())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn ready_is_reported_when_it_serves_and_stopping_before_it_ends() {
    let scratch = Scratch::new();
    let manager = Manager::new(&scratch);
    let region = scratch.join("region");
    let mut service = Service::start(&scratch, &manager, "", &["--region", region.to_str().unwrap()]);
    let received = manager.wait_for("READY=1");
    assert_eq!(service.wire().ask("set key 0 0 1\r\n1").unwrap(), "STORED");
    let status = format!("STATUS=serving on tcp {}: 0 connections, 0 items", service.address);
    assert!(received.last().unwrap().has(&status), "{}", received.last().unwrap().text);
    assert!(
        received.iter().all(|message| message.fd.is_none()),
        "a region in a file needs no keeping"
    );
    service.signal(Signal::SIGTERM);
    manager.wait_for("STOPPING=1");
    assert!(service.child.wait().unwrap().success());
    assert!(manager.receive(Duration::from_millis(1)).is_none());
}

#[test]
fn a_reload_is_reported_with_its_time_and_its_result() {
    let scratch = Scratch::new();
    let manager = Manager::new(&scratch);
    let users = scratch.join("users");
    let write = |text: &str| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::write(&users, text).unwrap();
        std::fs::set_permissions(&users, std::fs::Permissions::from_mode(0o600)).unwrap();
    };
    write("user:secret\n");
    let arguments = ["--region", "memfd", "--auth-file", users.to_str().unwrap()];
    let service = Service::start(&scratch, &manager, "", &arguments);
    manager.wait_for("READY=1");
    for (text, result) in [
        ("user:other\n", "STATUS=reloaded"),
        ("nonsense\n", "STATUS=reload failed: the old users stay in force; see the log"),
    ] {
        write(text);
        service.signal(Signal::SIGHUP);
        let begun = manager.wait_for("RELOADING=1");
        let time = begun
            .last()
            .unwrap()
            .text
            .lines()
            .find_map(|line| line.strip_prefix("MONOTONIC_USEC="));
        assert!(time.is_some_and(|time| time.parse::<u64>().is_ok_and(|time| time > 0)));
        assert!(manager.wait_for("READY=1").last().unwrap().has(result), "{result}");
    }
}

/// A thread that is stopped until this is dropped. A process with a stopped thread could not be killed and waited for.
struct Stopped(Pid);

impl Stopped {
    fn new(thread: Pid) -> nix::Result<Self> {
        ptrace::seize(thread, ptrace::Options::empty())?;
        ptrace::interrupt(thread)?;
        waitpid(thread, Some(WaitPidFlag::__WALL))?;
        Ok(Self(thread))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = ptrace::detach(self.0, None);
    }
}

#[test]
fn a_worker_that_hangs_stops_the_signs_of_life() {
    let scratch = Scratch::new();
    let manager = Manager::new(&scratch);
    let mut service = Service::start(
        &scratch,
        &manager,
        "WATCHDOG_USEC=400000; export WATCHDOG_USEC;",
        &["--region", "memfd", "--threads", "2"],
    );
    manager.wait_for("READY=1");
    for _ in 0..3 {
        manager.wait_for("WATCHDOG=1");
    }
    let stopped = match Stopped::new(service.thread("keyway-1")) {
        Ok(stopped) => stopped,
        Err(error) => {
            let because = format!("this machine lets no process stop a thread (ptrace: {error})");
            return harness::skip("a hung worker", &because);
        }
    };
    // Only one of two workers has stopped; the other one, the accepting thread and the process live.
    let complaint = "STATUS=worker threads [1] have not turned for";
    let begun = Instant::now();
    while !manager
        .receive(Duration::from_millis(100))
        .is_some_and(|message| message.text.starts_with(complaint))
    {
        assert!(begun.elapsed() < DEADLINE, "never: {complaint}");
    }
    let silence = manager.receive(Duration::from_secs(2));
    assert!(silence.is_none(), "{:?}", silence.map(|message| message.text));
    assert!(service.child.try_wait().unwrap().is_none() && service.log().contains("[1] have not turned"));
    drop(stopped);
    manager.wait_for("WATCHDOG=1");
}

#[test]
fn items_of_a_memfd_outlive_a_server_that_is_killed() {
    let scratch = Scratch::new();
    let manager = Manager::new(&scratch);
    let arguments = ["--region", "memfd"];
    let mut first = Service::start(&scratch, &manager, "", &arguments);
    let mut received = manager.wait_for("READY=1");
    let stored = received
        .iter_mut()
        .find(|message| message.has("FDSTORE=1"))
        .expect("it is stored before it is ready");
    assert!(stored.has("FDNAME=region-memory"), "{}", stored.text);
    let memory = stored.fd.take().unwrap();
    assert_eq!(first.wire().ask("set key 0 0 5\r\nvalue").unwrap(), "STORED");
    first.child.kill().unwrap();
    first.child.wait().unwrap();

    // As with systemd, the file description that is kept and the one that a server gets are the same.
    fcntl(&memory, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    let hands_over = format!(
        "exec 3<&{} {0}<&-; export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=region-memory;",
        memory.as_raw_fd()
    );
    for _ in 0..2 {
        let mut next = Service::start(&scratch, &manager, &hands_over, &arguments);
        let received = manager.wait_for("READY=1");
        assert!(!received.iter().any(|message| message.has("FDSTORE=1")), "it is kept already");
        assert!(
            received.last().unwrap().text.contains(" 1 items"),
            "{}",
            received.last().unwrap().text
        );
        assert_eq!(next.wire().get(false, &["key"]).unwrap()[0].value, b"value");
        let stats = next.wire().stats("").unwrap();
        let (_, sessions) = stats.iter().find(|(name, _)| name == "keyway_sessions").unwrap();
        assert_eq!(sessions, "8", "those of its own workers: no dead server looks alive");
        next.child.kill().unwrap();
        next.child.wait().unwrap();
    }

    // A server with its region elsewhere has no use for it.
    let region = scratch.join("region");
    let _third = Service::start(&scratch, &manager, &hands_over, &["--region", region.to_str().unwrap()]);
    let received = manager.wait_for("READY=1");
    let removed = received
        .iter()
        .find(|message| message.has("FDSTOREREMOVE=1"))
        .expect("it is given up");
    assert!(removed.has("FDNAME=region-memory"));
}

#[test]
fn kept_memory_that_is_no_region_is_given_up_and_replaced() {
    let scratch = Scratch::new();
    let file = scratch.join("file");
    std::fs::write(&file, vec![7; 8192]).unwrap();
    for (before, why) in [
        (format!("exec 3<>{};", file.display()), "not to anonymous memory"),
        ("exec 3</dev/null;".to_owned(), "not a regular file"),
    ] {
        let manager_at = Scratch::new();
        let manager = Manager::new(&manager_at);
        let before = format!("{before} export LISTEN_PID=$$ LISTEN_FDS=1 LISTEN_FDNAMES=region-memory;");
        let service = Service::start(&manager_at, &manager, &before, &["--region", "memfd"]);
        let received = manager.wait_for("READY=1");
        assert!(service.log().contains(why), "{}", service.log());
        let position = |line: &str| received.iter().position(|message| message.has(line));
        assert!(position("FDSTOREREMOVE=1").unwrap() < position("FDSTORE=1").unwrap());
        assert_eq!(service.wire().ask("set key 0 0 1\r\n1").unwrap(), "STORED");
    }
    assert_eq!(std::fs::read(&file).unwrap(), vec![7; 8192]);
}

#[test]
fn each_line_of_the_json_log_is_an_object_and_none_has_a_value() {
    let scratch = Scratch::new();
    let manager = Manager::new(&scratch);
    let mut service = Service::start(&scratch, &manager, "", &["--region", "memfd", "--log-format", "json", "-vvv"]);
    manager.wait_for("READY=1");
    let mut wire = service.wire();
    assert_eq!(wire.ask("set key 0 0 9\r\nvaluable1").unwrap(), "STORED");
    assert_eq!(wire.ask("\u{1b}[2J\u{7}").unwrap(), "ERROR");
    // A value that is too large is dropped as it comes, in pieces.
    let large = vec![b'v'; 2 << 20];
    wire.send(b"set large 0 0 2097152\r\n").unwrap();
    wire.send(&[&large, &b"\nvaluable2\r\n"[..]].concat()).unwrap();
    // set, in the binary protocol: no extras are needed to see that its value is not shown
    let mut binary = service.wire();
    let mut packet = vec![0x80, 0x01, 0, 3, 8, 0, 0, 0, 0, 0, 0, 20];
    packet.resize(24 + 8, 0);
    packet.extend_from_slice(b"keyvaluable3");
    binary.send(&packet).unwrap();
    assert_eq!(binary.exactly(24).unwrap()[..2], [0x81, 0x01]);
    service.signal(Signal::SIGTERM);
    assert!(service.child.wait().unwrap().success());
    let log = service.log();
    let mut messages = Vec::new();
    for line in log.lines().filter(|line| !line.contains(" ready: ")) {
        let object: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        let fields: Vec<_> = object.as_object().unwrap().keys().cloned().collect();
        assert_eq!(fields, ["level", "message", "target", "time"], "{line}");
        messages.push(object["message"].as_str().unwrap().to_owned());
    }
    for shown in ["< set key 0 0 9\\r", "< \\x1b[2J\\x07", "< packet 0x01 key"] {
        assert!(messages.iter().any(|message| message.contains(shown)), "{shown}: {log}");
    }
    assert!(!log.contains("valuable") && !log.contains("vvvv"), "{log}");
}

#[test]
fn one_more_server_on_the_same_address_says_so_in_one_line() {
    let scratch = Scratch::new();
    let manager = Manager::new(&scratch);
    let socket = scratch.join("socket");
    let socket = socket.to_str().unwrap();
    let service = Service::start(&scratch, &manager, "", &["--region", "memfd", "--socket", socket]);
    manager.wait_for("READY=1");
    let address = service.address.to_string();
    for (arguments, taken, option) in [
        (["--listen", &address], format!("tcp {address}"), "--listen"),
        (["--socket", socket], format!("unix {socket}"), "--socket"),
    ] {
        let free = SocketAddr::from(([127, 0, 0, 1], free_port())).to_string();
        let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
        command.args(["serve", "--region", "memfd", "--memory", "4m"]).args(arguments);
        if option == "--socket" {
            command.args(["--listen", &free]);
        }
        let (status, output) = run_to_end(&mut command, DEADLINE);
        assert_eq!((status.code(), output.lines().count()), (Some(71), 1), "{output}");
        for word in [&*taken, "another server is running there: stop it, or choose another", option] {
            assert!(output.contains(word), "{word}: {output}");
        }
    }
}

fn units() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/systemd")
}

/// Runs systemd-analyze on the shipped units, in a folder where they name the program of this build and where `edit` may change them. Beside
/// them is a unit that another package could have, about which systemd warns.
fn analyze(test: &str, arguments: &[&str], edit: impl Fn(String) -> String, examine: impl Fn(&str, bool)) {
    if program_on_path("systemd-analyze").is_none() {
        return harness::skip(test, "systemd-analyze is not installed (Debian: systemd)");
    }
    let scratch = Scratch::new();
    let others = scratch.join("others/sysinit.target.wants");
    std::fs::create_dir_all(&others).unwrap();
    let old_unit = "[Service]\nExecStart=/bin/true\nPIDFile=/var/run/other.pid\nStandardOutput=syslog\n";
    std::fs::write(others.with_file_name("other-package.service"), old_unit).unwrap();
    std::os::unix::fs::symlink("../other-package.service", others.join("other-package.service")).unwrap();
    // An empty last part stands for the usual folders (systemd.unit(5)).
    let unit_path = format!("{}:", others.parent().unwrap().display());
    let mut paths = Vec::new();
    for name in [
        "keyway.service",
        "keyway@.service",
        "keyway.socket",
        "examples/keyway-tls.socket",
    ] {
        let text = std::fs::read_to_string(units().join(name)).unwrap();
        let path = scratch.join(Path::new(name).file_name().unwrap().to_str().unwrap());
        let text = text.replace("/usr/lib/keyway/reload", units().join("reload").to_str().unwrap());
        let text = edit(text.replace("/usr/bin/keyway", env!("CARGO_BIN_EXE_keyway")));
        std::fs::write(&path, text).unwrap();
        paths.push(path);
    }
    let is_service = |path: &&PathBuf| arguments[0] != "security" || path.extension().is_some_and(|end| end == "service");
    for path in paths.iter().filter(is_service) {
        let mut command = Command::new("systemd-analyze");
        let (status, output) = run_to_end(
            command.env("SYSTEMD_UNIT_PATH", &unit_path).args(arguments).arg(path),
            DEADLINE,
        );
        examine(&output, status.success());
    }
}

/// The result is that of the units which are named: other packages' units, which theirs depend on, decide nothing.
const VERIFY: [&str; 3] = ["verify", "--man=no", "--recursive-errors=no"];

#[test]
fn the_units_are_sound() {
    analyze(
        "verifying the units",
        &VERIFY,
        |text| text,
        |output, is_sound| assert!(is_sound && output.is_empty(), "{output}"),
    );
}

#[test]
fn a_unit_with_a_mistake_is_not_sound() {
    for section in ["[Service]", "[Socket]"] {
        let mistaken = |text: String| text.replace(section, &format!("{section}\nNoSuchKey=yes"));
        analyze("verifying units with a mistake", &VERIFY, mistaken, |output, is_sound| {
            assert_eq!(is_sound, !output.contains("NoSuchKey"), "{output}");
        });
    }
}

#[test]
fn the_services_are_exposed_to_little() {
    analyze(
        "the services' exposure",
        &["security", "--offline=yes", "--threshold=20"],
        |text| text,
        |output, is_below| {
            assert!(is_below && output.contains("Overall exposure level"), "{output}");
        },
    );
}

#[test]
fn the_units_allow_every_system_call_that_the_server_allows_itself() {
    if program_on_path("systemd-analyze").is_none() {
        return harness::skip(
            "the units' system calls",
            "systemd-analyze is not installed (Debian: systemd)",
        );
    }
    let (_, groups) = run_to_end(
        Command::new("systemd-analyze").args(["syscall-filter", "--no-pager"]),
        DEADLINE,
    );
    let sandbox = include_str!("../../../keyway-harden/src/confine.rs");
    let needed = sandbox.split("libc::SYS_").skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap();
        &rest[..end]
    });
    // bpf is the kernel door's, which has a drop-in of its own.
    let needed: Vec<&str> = needed.filter(|&call| call != "bpf").collect();
    assert!(needed.len() > 100, "{}", needed.len());
    for name in ["keyway.service", "keyway@.service"] {
        let unit = std::fs::read_to_string(units().join(name)).unwrap();
        let mut allowed = members(&groups, "@default");
        for line in unit.lines().filter_map(|line| line.strip_prefix("SystemCallFilter=")) {
            let (is_forbidden, words) = line.strip_prefix('~').map_or((false, line), |rest| (true, rest));
            for call in words.split_whitespace().flat_map(|word| members(&groups, word)) {
                allowed.retain(|known| !is_forbidden || *known != call);
                allowed.extend((!is_forbidden).then_some(call));
            }
        }
        let missing: Vec<_> = needed
            .iter()
            .filter(|call| !allowed.iter().any(|known| known == *call))
            .collect();
        assert!(missing.is_empty(), "{name}: {missing:?}");
    }
}

/// The calls of a group, by the listing of `systemd-analyze syscall-filter`; a call stands for itself.
fn members(groups: &str, word: &str) -> Vec<String> {
    if !word.starts_with('@') {
        return vec![word.to_owned()];
    }
    let inside = groups
        .lines()
        .skip_while(|line| *line != word)
        .skip(1)
        .take_while(|line| line.starts_with("    "));
    let words = inside.map(str::trim).filter(|line| !line.starts_with('#'));
    words.flat_map(|member| members(groups, member)).collect()
}
