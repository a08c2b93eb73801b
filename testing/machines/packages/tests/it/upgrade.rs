//! An upgrade of the package while clients use the service: enemy, a request that fails because there is a new release. The service manager is
//! this test: it starts and reloads the service by the lines of the shipped unit, and hears what the servers tell it.
//!
//! It cannot see what systemd itself makes of the messages.
//! Guards: P39, P49

use harness::{DEADLINE, Scratch, free_port, skip, wait_until};
use packages::{System, build, file_name, missing, root};
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::time::Duration;

/// The manager inside the system: starts the service, and then runs a command for each line that it reads. All in one process namespace.
const MANAGER: &str = r#"
cd /run/manager
eval "set -- $(sed -n 's/^ExecStart=//p' /lib/systemd/system/keyway.service)"
NOTIFY_SOCKET=/run/manager/notify WATCHDOG_USEC=1000000 \
    runuser -u keyway -- sh -c 'echo $$ >main; exec "$@"' sh "$@" >>log 2>&1 </dev/null &
while read -r line; do
    sh -c "$line" >>log 2>&1 </dev/null && echo "done" || echo "failed"
done
"#;

/// Its systemctl, which packages call.
const SYSTEMCTL: &str = r#"#!/bin/sh
echo "$@" >>/run/manager/asked
case "$*" in
*is-enabled*) echo enabled ;;
*list-units*) echo 'keyway.service loaded active running Keyway' ;;
reload*)
    MAINPID=$(cat /run/manager/main)
    eval "set -- $(sed -n 's/^ExecReload=//p' /lib/systemd/system/keyway.service)"
    exec env -i PATH="$PATH" MAINPID="$MAINPID" runuser -u keyway -- "$@"
    ;;
esac
"#;

/// The service manager's two halves: the commands, and what it hears.
struct Manager<'a> {
    system: &'a System,
    child: Child,
    commands: ChildStdin,
    outcomes: BufReader<ChildStdout>,
    socket: UnixDatagram,
    received: Mutex<Vec<String>>,
}

impl<'a> Manager<'a> {
    fn start(system: &'a System) -> Self {
        let folder = system.root().join("run/manager");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o777)).unwrap();
        let socket = UnixDatagram::bind(folder.join("notify")).unwrap();
        fs::set_permissions(folder.join("notify"), Permissions::from_mode(0o777)).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        fs::create_dir_all(system.root().join("run/systemd/system")).unwrap();
        let systemctl = system.root().join("usr/bin/systemctl");
        fs::write(&systemctl, SYSTEMCTL).unwrap();
        fs::set_permissions(&systemctl, Permissions::from_mode(0o755)).unwrap();
        let mut command = system.command(&["sh", "-c", MANAGER]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        Self {
            system,
            commands: child.stdin.take().unwrap(),
            outcomes: BufReader::new(child.stdout.take().unwrap()),
            child,
            socket,
            received: Mutex::default(),
        }
    }

    fn file(&self, name: &str) -> String {
        fs::read_to_string(self.system.root().join("run/manager").join(name)).unwrap_or_default()
    }

    fn main(&self) -> String {
        self.file("main").trim().to_owned()
    }

    /// Takes in what has been told, as systemd does: a new main process, if there is one, is the one of the next reload.
    fn listen(&self) {
        let mut bytes = [0; 4096];
        while let Ok(len) = self.socket.recv(&mut bytes) {
            for line in String::from_utf8_lossy(&bytes[..len]).lines() {
                if let Some(process) = line.strip_prefix("MAINPID=") {
                    fs::write(self.system.root().join("run/manager/main"), process).unwrap();
                }
                self.received.lock().unwrap().push(line.to_owned());
            }
        }
    }

    /// Waits until one of the next messages has this line.
    fn wait_for(&self, line: &str) {
        wait_until(line, DEADLINE, || {
            self.listen();
            let mut received = self.received.lock().unwrap();
            let place = received
                .iter()
                .position(|known| known == line || line.ends_with('=') && known.starts_with(line))?;
            received.drain(..=place);
            Some(())
        });
    }

    fn forget(&self) {
        self.listen();
        self.received.lock().unwrap().clear();
        let _ = fs::remove_file(self.system.root().join("run/manager/asked"));
    }

    /// Runs a command in the system to its end; whether it succeeded.
    fn run(&mut self, command: &str) -> bool {
        writeln!(self.commands, "{command}").unwrap();
        let mut line = String::new();
        self.outcomes.read_line(&mut line).unwrap();
        line == "done\n"
    }

    /// Installs the package with this revision.
    fn install(&mut self, folder: &Scratch, revision: u32) {
        let name = file_name("keyway", revision);
        fs::copy(folder.join(&name), self.system.root().join(&name)).unwrap();
        let done = self.run(&format!(
            "DEBIAN_FRONTEND=noninteractive dpkg --force-confdef --force-confold -i /{name}"
        ));
        assert!(done, "{}", self.file("log"));
    }
}

impl Drop for Manager<'_> {
    fn drop(&mut self) {
        // With unshare everything in its process namespace ends.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that sets and gets all the time on one connection, until it is stopped; the first wrong answer ends the test.
fn client(port: u16, number: usize, stop: &AtomicBool, requests: &AtomicU64) {
    let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let mut answers = BufReader::new(stream.try_clone().unwrap());
    for round in 0_u64.. {
        if stop.load(SeqCst) {
            return;
        }
        (&stream)
            .write_all(format!("set key-{number} 0 0 20\r\n{round:020}\r\nget key-{number}\r\n").as_bytes())
            .unwrap();
        for wanted in ["STORED", &format!("VALUE key-{number} 0 20"), &format!("{round:020}"), "END"] {
            let mut line = String::new();
            answers.read_line(&mut line).unwrap();
            assert_eq!(line.trim_end(), wanted, "client {number}, round {round}");
        }
        requests.fetch_add(2, SeqCst);
    }
}

#[test]
fn an_upgrade_of_the_package_fails_no_request() {
    if let Some(why) = missing() {
        return skip("the packages for Debian", why);
    }
    let (old, new) = (Scratch::new(), Scratch::new());
    build(old.path(), 1);
    build(new.path(), 2);
    let system = System::new();
    system.install(old.path(), &["keyway"], 1);
    let port = free_port();
    let file = system.root().join("etc/keyway/keyway.toml");
    let settings = |more: &str| format!("listen = \"127.0.0.1:{port}\"\nmemory = \"8m\"\n{more}");
    fs::write(&file, settings("")).unwrap();
    let mut manager = Manager::start(&system);
    manager.wait_for("READY=1");

    let (stop, requests) = (AtomicBool::new(false), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for number in 0..8 {
            let (stop, requests) = (&stop, &requests);
            scope.spawn(move || client(port, number, stop, requests));
        }
        // Ended with the scope, also by a failure.
        struct Stop<'a>(&'a AtomicBool);
        impl Drop for Stop<'_> {
            fn drop(&mut self) {
                self.0.store(true, SeqCst);
            }
        }
        let _stop = Stop(&stop);
        let under_load = || {
            let begun = requests.load(SeqCst);
            wait_until("requests", DEADLINE, || (requests.load(SeqCst) > begun + 1000).then_some(()));
        };

        // The second time the running server is one that has taken over.
        for _ in 0..2 {
            under_load();
            manager.forget();
            let before = manager.main();
            manager.install(&new, 2);
            manager.wait_for("MAINPID=");
            assert_ne!(manager.main(), before);
            under_load();
            let asked = manager.file("asked");
            assert!(
                asked.contains("reload keyway.service") && !asked.contains("restart"),
                "{asked}"
            );
            assert!(
                manager.run("test /proc/$(cat /run/manager/main)/exe -ef /usr/bin/keyway"),
                "the installed program serves: {}",
                manager.file("log")
            );
            assert!(
                !manager.run(&format!("test -e /proc/{before}/exe")),
                "the old server is still there"
            );
            // The new main process knows that it is watched.
            manager.wait_for("WATCHDOG=1");
        }

        // A program that has not changed reads its files again, in the same process.
        manager.forget();
        let before = manager.main();
        assert!(manager.run("systemctl reload keyway.service"), "{}", manager.file("log"));
        manager.wait_for("RELOADING=1");
        assert_eq!(manager.main(), before);

        // What the new program cannot do leaves the old one serving, and the package asks for a restart.
        for (more, why) in [
            ("threads = 0\n", "threads"),
            (
                "region = \"/dev/shm/another\"\n",
                "is no process, and not the service's main process",
            ),
        ] {
            fs::write(&file, settings(more)).unwrap();
            manager.forget();
            manager.install(&new, 2);
            let (asked, log) = (manager.file("asked"), manager.file("log"));
            assert!(asked.contains("try-restart keyway.service"), "{asked}");
            assert!(log.contains(why), "{log}");
            assert_eq!(manager.main(), before);
            under_load();
        }
    });
    let done = requests.load(SeqCst);
    harness::say(&format!("{done} requests during two upgrades of the package, none failed"));
}

#[test]
fn sockets_of_the_service_manager_are_not_lost_by_a_reload() {
    // In the place of a server that systemd has given a socket.
    let mut running = Command::new("sleep").arg("600").env("LISTEN_FDS", "1").spawn().unwrap();
    let output = Command::new(root().join("packaging/systemd/reload"))
        .args([&running.id().to_string(), "serve"])
        .output()
        .unwrap();
    let still_runs = running.try_wait().unwrap().is_none();
    running.kill().unwrap();
    running.wait().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && said.contains("restart the service"),
        "{output:?}"
    );
    assert!(still_runs);
}
