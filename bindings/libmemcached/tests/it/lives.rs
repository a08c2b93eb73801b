//! Servers and programs that end, are replaced, or are something else than they seem: enemy, a program that stays on a region that
//! no process has any more, one that loses what it had, or one whose handle goes where it should not.
//! Guards: P31

use crate::common;
use common::{Dropin, Library, NOWHERE};
use harness::{DEADLINE, Kind, ServeOptions, Server, Transport, keyway_check, memcached_binary, skip, wait_until};
use keyway_cache::server::ServerCache as _;
use keyway_cache::server::record;
use keyway_cache::{Cache, Options, Place};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;

/// A program with one handle that follows orders.
struct Talk {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    errors: PathBuf,
}

impl Talk {
    fn start(dropin: &Dropin, program: &Path, servers: &str, environment: &[(&str, &str)]) -> Self {
        let mut command = Command::new(program);
        command
            .arg(servers)
            .env("LD_PRELOAD", dropin.file())
            .envs(environment.iter().copied());
        Self::by(dropin, command, servers)
    }

    /// A command that becomes it.
    fn by(dropin: &Dropin, mut command: Command, servers: &str) -> Self {
        let errors = dropin.scratch.join(&format!("errors-{}", servers.replace('/', "_")));
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        command.stderr(std::fs::File::create(&errors).expect("a file"));
        let mut child = command.spawn().expect("a program that was compiled");
        let (input, output) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        let output = BufReader::new(output);
        Self {
            child,
            input,
            output,
            errors,
        }
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.input, "{line}").expect("it reads");
        let mut answer = String::new();
        self.output.read_line(&mut answer).expect("it answers");
        answer.trim_end().to_owned()
    }

    /// Whether it has a region mapped.
    fn has_mapped(&self, region: &Path) -> bool {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.child.id())).expect("it runs");
        maps.contains(&region.display().to_string())
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.errors).expect("its errors")
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A Keyway on a certain port, which a test kills and starts again.
struct Keyway {
    child: Child,
    address: SocketAddr,
}

impl Keyway {
    fn start(address: SocketAddr, region: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new(harness::keyway_binary());
        command
            .args(["serve", "--memory", "16m", "--listen", &address.to_string(), "--region"])
            .arg(region)
            .args(arguments);
        let mut child = command.stdout(Stdio::null()).spawn().expect("a server");
        wait_until("a server that answers", DEADLINE, || {
            // Otherwise another server on this port might answer.
            assert_eq!(child.try_wait().expect("a child"), None, "it serves");
            let mut wire = harness::Wire::from_tcp(TcpStream::connect(address).ok()?).ok()?;
            wire.ask("version").ok()
        });
        Self { child, address }
    }

    fn connect(&self) -> harness::Wire {
        let stream = TcpStream::connect(self.address).expect("a server");
        harness::Wire::from_tcp(stream).expect("a socket")
    }

    fn kill(&mut self) {
        // An error means that it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Keyway {
    fn drop(&mut self) {
        self.kill();
    }
}

fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], harness::free_port()))
}

const ALONE: (&str, &str) = ("KEYWAY_LIBMEMCACHED_REAL", NOWHERE);

#[test]
fn a_program_goes_on_through_the_death_of_its_server_and_follows_it_to_another_region() {
    let dropin = Dropin::new();
    let Some(program) = dropin.compile("a server that dies", "talk.c") else {
        return;
    };
    let (first, second) = (dropin.scratch.join("first"), dropin.scratch.join("second"));
    let socket = dropin.scratch.join("region.sock");
    let handed_out = ["--region-socket", &socket.display().to_string()].map(str::to_owned);
    let handed_out: Vec<&str> = handed_out.iter().map(String::as_str).collect();
    let mut server = Keyway::start(free_address(), &first, &handed_out);
    let address = server.address;
    let mut talk = Talk::start(&dropin, &program, &address.to_string(), &[ALONE]);
    assert_eq!(talk.ask("set k one"), "SUCCESS");
    assert_eq!(talk.ask("get k"), "one");
    assert!(talk.has_mapped(&first), "it is on the region");

    server.kill();
    assert_eq!(talk.ask("get k"), "one", "the region is there without its server");
    assert_eq!(talk.ask("set k two"), "SUCCESS");

    drop(server);
    let server = Keyway::start(address, &first, &handed_out);
    assert_eq!(talk.ask("get k"), "two", "and has what was stored meanwhile");
    drop(server);

    let _server = Keyway::start(address, &second, &handed_out);
    wait_until("the other region", DEADLINE, || {
        (talk.ask("get k") == "NOT FOUND").then_some(())
    });
    assert_eq!(talk.ask("set k three"), "SUCCESS");
    let mut fresh = Talk::start(&dropin, &program, &address.to_string(), &[ALONE]);
    assert_eq!(fresh.ask("get k"), "three", "both are on the new one");
    wait_until("the old region is let go", DEADLINE, || {
        (!talk.has_mapped(&first)).then_some(())
    });
}

/// Waits until a program sleeps on a word (futex(2)).
fn wait_until_it_sleeps(talk: &Talk) {
    let call = format!("/proc/{}/syscall", talk.child.id());
    wait_until("a get that waits", DEADLINE, || {
        let call = std::fs::read_to_string(&call).ok()?;
        call.starts_with(&format!("{} ", libc::SYS_futex)).then_some(())
    });
}

#[test]
fn a_get_waits_for_the_value_that_another_program_or_a_client_computes() {
    let dropin = Dropin::new();
    let Some(program) = dropin.compile("gets that wait", "talk.c") else {
        return;
    };
    let server = Keyway::start(free_address(), &dropin.scratch.join("region"), &["--hold-misses", "50000"]);
    let address = server.address.to_string();
    let waits = ("KEYWAY_LIBMEMCACHED_WAIT_MS", "50000");
    let [mut first, mut second] = [(); 2].map(|()| Talk::start(&dropin, &program, &address, &[ALONE, waits]));
    assert_eq!(first.ask("get k"), "NOT FOUND");
    assert_eq!(first.ask("get k"), "NOT FOUND", "it does not wait for itself");
    writeln!(second.input, "get k").expect("it reads");
    wait_until_it_sleeps(&second);
    assert_eq!(first.ask("set k one"), "SUCCESS");
    let mut answer = String::new();
    second.output.read_line(&mut answer).expect("it answers");
    assert_eq!(answer.trim_end(), "one");

    // A client of the server has missed.
    let mut client = server.connect();
    assert_eq!(client.ask("get c").expect("an answer"), "END");
    writeln!(second.input, "get c").expect("it reads");
    wait_until_it_sleeps(&second);
    // It dies while others wait for it: they do not wait for ever.
    drop(client);
    answer.clear();
    second.output.read_line(&mut answer).expect("it answers");
    assert_eq!(answer.trim_end(), "NOT FOUND", "now this one computes");
    assert!(second.said().is_empty(), "{}", second.said());
    let odd = ("KEYWAY_LIBMEMCACHED_WAIT_MS", "soon");
    let mut third = Talk::start(&dropin, &program, &address, &[ALONE, odd]);
    assert_eq!(third.ask("get none"), "NOT FOUND");
    assert!(
        third.said().contains("KEYWAY_LIBMEMCACHED_WAIT_MS=soon is ignored"),
        "{}",
        third.said()
    );
}

#[test]
fn a_program_that_starts_before_the_server_gets_an_error_and_later_the_region() {
    let dropin = Dropin::new();
    let Some(program) = dropin.compile("a server that comes late", "talk.c") else {
        return;
    };
    let address = free_address();
    let region = dropin.scratch.join("region");
    let mut talk = Talk::start(&dropin, &program, &address.to_string(), &[ALONE]);
    assert_eq!(talk.ask("set k one"), "CONNECTION FAILURE");
    assert_eq!(talk.ask("set k one"), "SERVER HAS FAILED AND IS DISABLED UNTIL TIMED RETRY");
    let _server = Keyway::start(address, &region, &[]);
    wait_until("the retry timeout", DEADLINE, || {
        (talk.ask("set k one") == "SUCCESS").then_some(())
    });
    assert!(talk.has_mapped(&region));
    assert_eq!(talk.ask("clone"), "SUCCESS");
    assert_eq!(talk.ask("get cloned"), "yes");
    assert_eq!(talk.ask("fork by child"), "SUCCESS", "a forked child has the same region");
    assert_eq!(talk.ask("get by"), "child");
}

/// A program that works all the time, and one that starts in the middle of it, notice no take-over.
/// Asks once what `health.c` asks; its line, and what it says of a set.
fn ask_for_health(talk: &mut Child, output: &mut impl BufRead) -> String {
    talk.stdin.as_mut().expect("piped").write_all(b"??").expect("it reads");
    let mut line = String::new();
    output.read_line(&mut line).expect("it answers");
    // libmemcached does not ask a server again at once that it could not reach.
    line.replace("SERVER HAS FAILED AND IS DISABLED UNTIL TIMED RETRY", "CONNECTION FAILURE")
}

#[test]
fn what_is_asked_about_a_server_that_is_away_fails_and_items_stay() {
    let test = "questions about a server that is away";
    let dropin = Dropin::new();
    let Some(program) = dropin.compile(test, "health.c") else {
        return;
    };
    if memcached_binary().is_none() {
        return skip(test, "no memcached is installed");
    }
    let run = |kind, library| {
        let mut server = Server::start(kind, &ServeOptions::default());
        let address = server.address();
        let errors = dropin.scratch.join(&format!("health-{library:?}"));
        let mut command = Command::new(&program);
        command
            .arg(address.port().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        command.stderr(std::fs::File::create(&errors).expect("a file"));
        let mut talk = dropin.give(&mut command, library).spawn().expect("a program");
        let mut output = BufReader::new(talk.stdout.take().expect("piped"));
        let before = ask_for_health(&mut talk, &mut output);
        server.kill();
        let after = [(); 2].map(|()| ask_for_health(&mut talk, &mut output));
        drop(talk.stdin.take());
        assert!(talk.wait().expect("a child").success());
        // The tools end as they end with libmemcached.
        let tool = |name: &str| {
            let mut tool = Command::new(name);
            let (status, _) = harness::run_to_end(dropin.give(tool.arg(format!("--servers={address}")), library), DEADLINE);
            (name.to_owned(), status.code())
        };
        let tools = ["memcping", "memcstat"]
            .into_iter()
            .filter(|name| harness::program_on_path(name).is_some());
        let tools: Vec<_> = tools.map(tool).collect();
        (before, after, tools, std::fs::read_to_string(&errors).expect("its errors"))
    };
    let (before, after, tools, _) = run(Kind::Memcached, Library::Debian);
    assert!(before.contains("ping 1") && before.ends_with("connections +0\n"), "{before}");
    assert!(
        after[0].contains("ping 0 CONNECTION FAILURE") && tools.iter().all(|tool| tool.1 != Some(0)),
        "{after:?} {tools:?}"
    );
    for library in [Library::Preloaded, Library::Replaced] {
        let ours = run(Kind::Keyway, library);
        assert_eq!((&before, &after, &tools), (&ours.0, &ours.1, &ours.2), "{library:?}");
        assert_eq!(ours.3, "set SUCCESS\n".repeat(3), "items stay");
    }
}

#[test]
fn programs_at_work_notice_no_take_over() {
    let dropin = Dropin::new();
    let Some(program) = dropin.compile("a take-over", "talk.c") else {
        return;
    };
    let (region, address) = (dropin.scratch.join("region"), free_address());
    let servers = address.to_string();
    let mut server = Keyway::start(address, &region, &[]);
    let mut old = Talk::start(&dropin, &program, &servers, &[ALONE]);
    let mut round = 0;
    for _ in 0..if harness::full_run() { 50 } else { 5 } {
        let mut command = Command::new(harness::keyway_binary());
        command.args(["serve", "--memory", "16m", "--take-over", "--listen", &servers, "--region"]);
        command.arg(&region).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("a server");
        let mut fresh = Talk::start(&dropin, &program, &servers, &[ALONE]);
        let ended = wait_until("the old server ends", DEADLINE, || {
            round += 1;
            for (talk, name) in [(&mut old, "old"), (&mut fresh, "fresh")] {
                assert_eq!(talk.ask(&format!("set {name} {round}")), "SUCCESS", "{}", talk.said());
            }
            assert_eq!(fresh.ask("get old"), round.to_string(), "{}", fresh.said());
            assert_eq!(old.ask("get fresh"), round.to_string(), "{}", old.said());
            server.child.try_wait().expect("a child")
        });
        assert!(ended.success(), "{ended}");
        server = Keyway { child, address };
        let wire = server.connect().get(false, &["old"]).expect("an answer");
        assert_eq!(wire[0].value, round.to_string().into_bytes());
    }
}

/// Workers are recycled while their server is away: the new ones must find the region that the old ones use.
#[test]
fn a_program_that_starts_while_its_server_is_away_finds_the_region() {
    let dropin = Dropin::new();
    let Some(program) = dropin.compile("a server that is away", "talk.c") else {
        return;
    };
    let region = dropin.scratch.join("region");
    let socket = dropin.scratch.join("server.sock").display().to_string();
    let address = free_address();
    for (servers, arguments) in [
        (address.to_string(), &[][..]),
        (format!("localhost:{}", address.port()), &[]),
        (socket.clone(), &["--socket", &socket][..]),
    ] {
        let mut server = Keyway::start(address, &region, arguments);
        let mut old = Talk::start(&dropin, &program, &servers, &[ALONE]);
        assert_eq!(old.ask("set k one"), "SUCCESS", "{servers}: {}", old.said());
        server.kill();
        let mut fresh = Talk::start(&dropin, &program, &servers, &[ALONE]);
        assert_eq!(fresh.ask("get k"), "one", "{servers}: {}", fresh.said());
        assert_eq!(fresh.ask("set k two"), "SUCCESS", "{servers}: {}", fresh.said());
        assert_eq!(old.ask("get k"), "two", "{servers}");
        assert!(fresh.has_mapped(&region), "{servers}");

        let server = Keyway::start(address, &region, arguments);
        let mut wire = server.connect();
        assert_eq!(wire.get(false, &["k"]).expect("an answer")[0].value, b"two", "{servers}");
        assert_eq!(wire.ask("ms k 5\r\nthree").expect("an answer"), "HD", "{servers}: one cache");
        for talk in [&mut fresh, &mut old] {
            assert_eq!(talk.ask("get k"), "three", "{servers}");
        }
        drop(server);
    }
}

/// A program has a region by its server's record, and the server, which is stopped, takes connections: the program asks it again and
/// again, and no call waits for the answer.
#[test]
fn gets_do_not_wait_for_a_stopped_server() {
    let dropin = Dropin::new();
    let Some(program) = dropin.compile("a server that is stopped", "talk.c") else {
        return;
    };
    let (region, other) = (dropin.scratch.join("region"), dropin.scratch.join("other"));
    let address = free_address();
    let mut server = Keyway::start(address, &region, &[]);
    let servers = address.to_string();
    let mut old = Talk::start(&dropin, &program, &servers, &[ALONE]);
    assert_eq!(old.ask("set k one"), "SUCCESS");
    let signal = |server: &Keyway, name: &str| {
        let sent = Command::new("kill").args([name, &server.child.id().to_string()]).status();
        assert!(sent.expect("a command").success());
    };
    signal(&server, "-STOP");
    let mut fresh = Talk::start(&dropin, &program, &servers, &[ALONE]);
    let begun = std::time::Instant::now();
    let mut gets = 0;
    // It asks once a second.
    while gets < 100 || begun.elapsed().as_secs() < 4 {
        assert_eq!(fresh.ask("get k"), "one", "{}", fresh.said());
        gets += 1;
        assert!(begun.elapsed() < DEADLINE, "{gets} gets");
    }
    // As it is: one that went on might answer what it was asked before it is killed.
    server.kill();
    let server = Keyway::start(address, &other, &[]);
    wait_until("the other region", DEADLINE, || {
        (fresh.ask("get k") == "NOT FOUND").then_some(())
    });
    drop(server);
}

/// A server that takes connections and does not answer what the drop-in asks, as one that dies, or starts, or is no cache.
struct Mute {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<u64>>,
}

impl Mute {
    /// `treats` gets each connection, and may keep it.
    fn start(address: SocketAddr, treats: fn(TcpStream) -> Option<TcpStream>) -> Self {
        let listener = TcpListener::bind(address).expect("the port is free");
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut kept = Vec::new();
            let mut count = 0;
            for stream in listener.incoming() {
                if ends.load(Relaxed) {
                    break;
                }
                kept.extend(treats(stream.expect("a connection")));
                count += 1;
            }
            count
        });
        Self {
            address,
            is_over,
            thread: Some(thread),
        }
    }

    /// How many connections there were.
    fn end(mut self) -> u64 {
        self.is_over.store(true, Relaxed);
        drop(TcpStream::connect(self.address).expect("it listens"));
        let thread = self.thread.take().expect("it runs");
        thread.join().expect("no failure")
    }
}

/// A new worker may reach its server while that dies: what takes its connections then hangs up, and the worker is to find the region.
#[test]
fn a_program_whose_server_takes_connections_and_hangs_up_finds_the_region() {
    let dropin = Dropin::new();
    let Some(program) = dropin.compile("a server that hangs up", "talk.c") else {
        return;
    };
    let region = dropin.scratch.join("region");
    let address = free_address();
    let servers = address.to_string();
    let hangs_up = |_: TcpStream| None;
    let reads_first = |mut stream: TcpStream| {
        let _ = stream.read(&mut [0; 256]);
        None
    };
    let ends_early = |mut stream: TcpStream| {
        let _ = stream.read(&mut [0; 256]);
        let _ = stream.write_all(b"VERSION 1.6.45\r\nSTAT keyway_reg");
        None
    };
    let ways: [fn(TcpStream) -> Option<TcpStream>; 4] = [hangs_up, reads_first, ends_early, Some];
    for (number, way) in ways.into_iter().enumerate() {
        // Where no Keyway was, it is any other server.
        let mute = Mute::start(address, way);
        let mut talk = Talk::start(&dropin, &program, &servers, &[ALONE]);
        assert_eq!(talk.ask("get k"), "CONNECTION FAILURE", "way {number}");
        let why = talk.ask("message");
        assert!(why.contains("are not all this host's Keyway"), "way {number}: {why}");
        assert!(mute.end() > 0);

        let mut server = Keyway::start(address, &region, &[]);
        assert_eq!(server.connect().ask("ms k 3\r\none").expect("an answer"), "HD");
        server.kill();
        let mute = Mute::start(address, way);
        let mut talk = Talk::start(&dropin, &program, &servers, &[ALONE]);
        assert_eq!(talk.ask("get k"), "one", "way {number}: {}", talk.said());
        assert!(talk.has_mapped(&region), "way {number}");
        assert!(mute.end() > 0);
        std::fs::remove_file(&region).expect("a region");
    }
}

/// Where the port that is asked for is the only one to ask from, each connection to it is one to itself while no server listens.
#[test]
fn a_program_that_would_talk_to_itself_finds_the_region() {
    the_region_is_found_where("a port that is asked from itself", "echo $PORT $PORT > $RANGE");
}

/// The ports to ask from may all be in use, by connections of the past for a minute.
#[test]
fn a_program_without_a_port_to_ask_from_finds_the_region() {
    the_region_is_found_where(
        "no port to ask from",
        "echo $PORT $PORT > $RANGE && echo $PORT > /proc/sys/net/ipv4/ip_local_reserved_ports",
    );
}

/// A server is killed in a network namespace whose ports are restricted by a line of shell; a program asks for it there.
fn the_region_is_found_where(test: &str, restrict: &str) {
    let dropin = Dropin::new();
    let Some(program) = dropin.compile(test, "talk.c") else {
        return;
    };
    let (region, log) = (dropin.scratch.join("region"), dropin.scratch.join("log"));
    let address = free_address();
    let record = record::file_of(&record::Address::Tcp(address));
    let range = "/proc/sys/net/ipv4/ip_local_port_range";
    let script = format!(
        "ip link set lo up && {restrict} || exit 3
        $KEYWAY serve --memory 16m --listen $ADDRESS --region $REGION >$LOG 2>&1 & server=$!
        until [ -f $RECORD ]; do kill -0 $server || exit 4; sleep 0.05; done
        kill -KILL $server; wait $server
        exec env LD_PRELOAD=$DROPIN KEYWAY_LIBMEMCACHED_REAL=/nowhere $PROGRAM $ADDRESS"
    );
    let mut command = Command::new("unshare");
    command.args(["--net", "sh", "-c", &script]);
    command
        .env("PORT", address.port().to_string())
        .env("ADDRESS", address.to_string());
    command.env("KEYWAY", harness::keyway_binary()).env("RECORD", &record);
    command.env("REGION", &region).env("LOG", &log).env("RANGE", range);
    command.env("DROPIN", dropin.file()).env("PROGRAM", program);
    let mut attempt = Command::new("unshare");
    attempt.args(["--net", "sh", "-c", &format!("ip link set lo up && test -w {range}")]);
    if !attempt.output().is_ok_and(|output| output.status.success()) {
        return skip(test, "a network namespace needs root");
    }
    let mut talk = Talk::by(&dropin, command, "restricted");
    assert_eq!(
        talk.ask("set k one"),
        "SUCCESS",
        "{}\n{}",
        talk.said(),
        std::fs::read_to_string(&log).unwrap_or_default()
    );
    assert_eq!(talk.ask("get k"), "one");
    assert!(talk.has_mapped(&region));
}

/// What a record says is compared with what is there, and the server is asked as soon as it answers.
#[test]
fn a_program_that_started_without_its_server_follows_it_to_another_region() {
    let dropin = Dropin::new();
    let Some(program) = dropin.compile("a server that returns with another region", "talk.c") else {
        return;
    };
    let address = free_address();
    let servers = address.to_string();
    let (first, second) = (dropin.scratch.join("first"), dropin.scratch.join("second"));
    let mut server = Keyway::start(address, &first, &[]);
    server.kill();
    let mut early = Talk::start(&dropin, &program, &servers, &[ALONE]);
    assert_eq!(early.ask("set k one"), "SUCCESS", "{}", early.said());
    // The first region stays where it is: only the server can say that it is no longer its own.
    let mut server = Keyway::start(address, &second, &[]);
    wait_until("the other region", DEADLINE, || {
        (early.ask("get k") == "NOT FOUND").then_some(())
    });
    assert!(early.has_mapped(&second));
    server.kill();
    let mut late = Talk::start(&dropin, &program, &servers, &[ALONE]);
    assert_eq!(late.ask("get k"), "NOT FOUND", "the newest record counts");

    // Another region at the recorded place is not the server's.
    std::fs::remove_file(&second).expect("a region");
    let _other = Cache::open(&Place::Path(second.clone()), &Options::new().memory(4 << 20)).expect("a region");
    let mut none = Talk::start(&dropin, &program, &servers, &[ALONE]);
    assert_eq!(none.ask("get k"), "CONNECTION FAILURE");

    // A server whose region has no file, and one that wants logins, leave nothing to find, and remove what an earlier one left.
    let passwords = dropin.scratch.join("passwords");
    std::fs::write(&passwords, "user:secret\n").expect("a file");
    std::fs::set_permissions(&passwords, std::os::unix::fs::PermissionsExt::from_mode(0o600)).expect("a file of ours");
    let passwords = passwords.display().to_string();
    for (region, arguments) in [(Path::new("memfd"), &[][..]), (&first, &["--auth-file", &passwords])] {
        drop(Keyway::start(address, &first, &[]));
        wait_until("a record", DEADLINE, || {
            let mut talk = Talk::start(&dropin, &program, &servers, &[ALONE]);
            (talk.ask("set k one") == "SUCCESS").then_some(())
        });
        let mut server = Keyway::start(address, region, arguments);
        server.kill();
        let mut talk = Talk::start(&dropin, &program, &servers, &[ALONE]);
        assert_eq!(talk.ask("get k"), "CONNECTION FAILURE", "{}: {arguments:?}", region.display());
    }
}

#[test]
fn a_region_is_named_without_a_server() {
    let dropin = Dropin::new();
    let Some(program) = dropin.compile("keyway:PATH", "talk.c") else {
        return;
    };
    let region = dropin.scratch.join("region");
    let name = format!("keyway:{}", region.display());
    let mut one = Talk::start(&dropin, &program, &name, &[ALONE]);
    assert_eq!(one.ask("set k one"), "SUCCESS", "{}", one.said());
    let mut two = Talk::start(&dropin, &program, &name, &[ALONE]);
    assert_eq!(two.ask("get k"), "one");
    drop((one, two));
    let (status, told) = keyway_check(&region);
    assert!(status.success(), "{told}");
}

#[test]
fn a_mixed_handle_is_the_real_librarys() {
    let test = "a handle with a Keyway and a memcached";
    let dropin = Dropin::new();
    let Some(program) = dropin.compile(test, "talk.c") else {
        return;
    };
    if memcached_binary().is_none() {
        return skip(test, "no memcached is installed");
    }
    let keyway = Server::start(Kind::Keyway, &ServeOptions::default());
    let memcached = Server::start(Kind::Memcached, &ServeOptions::default());
    let both = format!("{},{}", keyway.address(), memcached.address());
    let mut talk = Talk::start(&dropin, &program, &both, &[]);
    for number in 0..40 {
        assert_eq!(
            talk.ask(&format!("set key{number} value{number}")),
            "SUCCESS",
            "{}",
            talk.said()
        );
    }
    assert!(!talk.has_mapped(keyway.region()), "no region is opened for it");
    let held = |server: &Server| {
        let mut wire = server.connect(Transport::Tcp);
        let keys: Vec<String> = (0..40).map(|number| format!("key{number}")).collect();
        keys.iter()
            .filter(|key| {
                wire.send(format!("get {key}\r\n").as_bytes())
                    .expect("a server that takes requests");
                let mut found = false;
                loop {
                    let line = wire.line().expect("a line");
                    found |= line.starts_with(b"VALUE");
                    if line.starts_with(b"END") {
                        break found;
                    }
                }
            })
            .count()
    };
    let (on_keyway, on_memcached) = (held(&keyway), held(&memcached));
    assert!(
        on_keyway > 5 && on_memcached > 5 && on_keyway + on_memcached == 40,
        "{on_keyway} and {on_memcached}"
    );
    for number in 0..40 {
        assert_eq!(talk.ask(&format!("get key{number}")), format!("value{number}"));
    }
    // The same with the library in the other's place, and of a handle that was used for something before.
    let mut alone = Talk::start(&dropin, &program, &both, &[ALONE]);
    assert_eq!(alone.ask("set k v"), "CONNECTION FAILURE");
    assert!(
        alone
            .ask("message")
            .contains("not all this host's Keyway, and there is no libmemcached"),
        "it says why"
    );
    let mut off = Talk::start(
        &dropin,
        &program,
        &keyway.address().to_string(),
        &[("KEYWAY_LIBMEMCACHED", "off")],
    );
    assert_eq!(off.ask("set off 1"), "SUCCESS");
    assert!(!off.has_mapped(keyway.region()));
    let mut on = Talk::start(&dropin, &program, &keyway.address().to_string(), &[]);
    assert_eq!(on.ask("get off"), "1");
    assert!(on.has_mapped(keyway.region()));
}

#[test]
fn a_region_of_another_version_leaves_the_socket() {
    let test = "a region of another version";
    let dropin = Dropin::new();
    let Some(program) = dropin.compile(test, "talk.c") else {
        return;
    };
    if !Path::new("/usr/lib/x86_64-linux-gnu/libmemcached.so.11").exists() {
        return skip(test, "there is no real libmemcached to go on with");
    }
    let mut keyway = Server::start(Kind::Keyway, &ServeOptions::default());
    // The format's version is behind the magic number; the server has read it already.
    let file = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(keyway.region())
        .expect("a region");
    let mut version = [0; 4];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut version, 8).expect("a version");
    std::os::unix::fs::FileExt::write_all_at(&file, &[version[0].wrapping_add(1), 0, 0, 0], 8).expect("a version");
    let mut talk = Talk::start(&dropin, &program, &keyway.address().to_string(), &[]);
    assert_eq!(talk.ask("set k one"), "SUCCESS", "{}", talk.said());
    assert_eq!(talk.ask("get k"), "one");
    assert_eq!(talk.ask("clone"), "SUCCESS");
    assert!(!talk.has_mapped(keyway.region()));
    let said = talk.said();
    assert_eq!(said.lines().count(), 1, "once: {said}");
    assert!(
        said.contains("(format 3, layout") && said.contains("this is Keyway"),
        "{said}"
    );
    std::os::unix::fs::FileExt::write_all_at(&file, &version, 8).expect("a version");
    drop(talk);
    keyway.terminate();
}

#[test]
fn what_only_a_network_has_is_refused_when_asked_to() {
    let dropin = Dropin::new();
    let Some(program) = dropin.compile("strictness", "talk.c") else {
        return;
    };
    let keyway = Server::start(Kind::Keyway, &ServeOptions::default());
    let address = keyway.address().to_string();
    for (environment, answer) in [
        (&[ALONE][..], "SUCCESS"),
        (&[ALONE, ("KEYWAY_LIBMEMCACHED_STRICT", "1")], "ACTION NOT SUPPORTED"),
    ] {
        let mut talk = Talk::start(&dropin, &program, &address, environment);
        // MEMCACHED_BEHAVIOR_NO_BLOCK, _POLL_TIMEOUT, _NUMBER_OF_REPLICAS
        for behavior in [0, 8, 29] {
            assert_eq!(talk.ask(&format!("behavior {behavior} 1")), answer);
        }
        // MEMCACHED_BEHAVIOR_SUPPORT_CAS means something.
        assert_eq!(talk.ask("behavior 7 1"), "SUCCESS");
        assert_eq!(talk.ask("set k v"), "SUCCESS");
    }
}

#[test]
fn programs_that_are_killed_in_the_middle_hurt_no_other() {
    let dropin = Dropin::new();
    let Some(busy) = dropin.compile("killed programs", "busy.c") else {
        return;
    };
    let Some(surface) = dropin.compile("killed programs", "surface.c") else {
        return;
    };
    let mut keyway = Server::start(Kind::Keyway, &ServeOptions::default());
    let address = keyway.address();
    let start = |number: usize| {
        let mut command = Command::new(&busy);
        command.args([address.ip().to_string(), address.port().to_string(), number.to_string()]);
        let mut child = dropin
            .give(&mut command, Library::Preloaded)
            .stdout(Stdio::piped())
            .spawn()
            .expect("a program");
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut line)
            .expect("it is busy");
        assert_eq!(line, "busy\n");
        child
    };
    let mut children: Vec<Child> = (0..4).map(start).collect();
    let mut random = harness::Random::new(harness::Random::seed_for("killed programs"));
    for round in 0..60 {
        let index = random.index(4);
        let child = &mut children[index];
        assert!(
            child.try_wait().expect("a child").is_none(),
            "a wrong answer in round {round}"
        );
        child.kill().expect("it runs");
        child.wait().expect("it was killed");
        *child = start(index);
    }
    // Beside those that are left, everything works.
    let arguments = [
        address.ip().to_string(),
        address.port().to_string(),
        keyway.socket().display().to_string(),
    ];
    let output = common::printed(dropin.give(Command::new(&surface).args(&arguments), Library::Preloaded));
    assert!(output.trim_end().ends_with("ok"), "{output}");
    for mut child in children {
        // The surface's flushes make them miss, which ends them with 1; a wrong value would have before.
        let _ = child.kill();
        let _ = child.wait();
    }
    keyway.terminate();
    let (status, told) = keyway_check(keyway.region());
    assert!(status.success(), "{told}");
}

/// A Keyway that answers from the kernel on the `lo` of a network namespace of its own, and has a Unix socket.
struct InKernel {
    child: Child,
    socket: PathBuf,
}

impl InKernel {
    fn start(region: &Path, socket: &Path, arguments: &[&str]) -> Self {
        let mut command = Command::new("unshare");
        command.args(["--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
        command
            .arg(harness::keyway_binary())
            .args(["serve", "--memory", "16m", "--listen", "127.0.0.1:0", "--region"]);
        command.arg(region).arg("--socket").arg(socket).args(arguments);
        let log = std::fs::File::create(socket.with_extension("log")).expect("a file");
        let child = command.stdout(Stdio::null()).stderr(log).spawn().expect("a server");
        let mut own = Self {
            child,
            socket: socket.to_path_buf(),
        };
        wait_until("a server that answers", DEADLINE, || {
            assert!(own.child.try_wait().expect("a child").is_none(), "{}", own.log());
            std::os::unix::net::UnixStream::connect(socket).ok()
        });
        own
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.socket.with_extension("log")).unwrap_or_default()
    }

    /// The same, when its door is open: no other program may write to the region by its path.
    fn with_open_door(region: &Path, socket: &Path, arguments: &[&str]) -> Self {
        let own = Self::start(region, socket, &[&KERNEL[..], arguments].concat());
        let options = Options::new();
        let cache = Cache::open(&Place::Path(region.to_path_buf()), &options).expect("a region");
        wait_until("an open door", DEADLINE, || cache.is_shut_out().then_some(()));
        own
    }
}

impl Drop for InKernel {
    fn drop(&mut self) {
        // As an init system ends it: the kernel door is closed before.
        let _ = Command::new("kill").arg(self.child.id().to_string()).status();
        let _ = self.child.wait();
    }
}

const KERNEL: [&str; 4] = ["--udp", "127.0.0.1:11999", "--kernel", "lo"];

/// Whether the kernel door can be opened; said aloud if not.
fn has_kernel_door(test: &str, dropin: &Dropin) -> bool {
    let mut attempt = Command::new("unshare");
    attempt.args(["--net", "sh", "-c", "ip link set lo up"]);
    if !attempt.output().is_ok_and(|output| output.status.success()) {
        skip(test, "a network namespace needs root");
        return false;
    }
    let (region, socket) = (dropin.scratch.join("attempt"), dropin.scratch.join("attempt.sock"));
    let server = std::panic::catch_unwind(|| InKernel::start(&region, &socket, &KERNEL));
    let opened = server.is_ok();
    drop(server);
    if !opened {
        let log = std::fs::read_to_string(socket.with_extension("log")).unwrap_or_default();
        skip(test, &format!("the kernel door does not open here: {}", log.trim()));
    }
    opened
}

#[test]
fn behind_an_open_kernel_door_a_program_moves_to_the_socket() {
    let test = "the drop-in behind the kernel door";
    let dropin = Dropin::new();
    let Some(program) = dropin.compile(test, "talk.c") else {
        return;
    };
    if !Path::new("/usr/lib/x86_64-linux-gnu/libmemcached.so.11").exists() {
        return skip(test, "there is no real libmemcached to go on with");
    }
    if !has_kernel_door(test, &dropin) {
        return;
    }
    let (region, socket) = (dropin.scratch.join("region"), dropin.scratch.join("server.sock"));
    let servers = socket.display().to_string();

    // On the region while the door is closed; on the socket from the first write behind an open one.
    let server = InKernel::start(&region, &socket, &[]);
    let mut before = Talk::start(&dropin, &program, &servers, &[]);
    assert_eq!(before.ask("set k one"), "SUCCESS", "{}", before.said());
    assert!(before.has_mapped(&region));
    drop(server);
    let server = InKernel::with_open_door(&region, &socket, &[]);
    assert_eq!(before.ask("get k"), "one");
    assert_eq!(before.ask("set k two"), "SUCCESS", "{}", before.said());
    assert_eq!(before.ask("get k"), "two");
    assert!(before.said().contains("answers from the kernel"), "{}", before.said());

    // Never on the region, if the door is open when it comes.
    let mut after = Talk::start(&dropin, &program, &servers, &[]);
    for (line, answer) in [
        ("get k", "two"),
        ("set k three", "SUCCESS"),
        ("get k", "three"),
        ("clone", "SUCCESS"),
    ] {
        assert_eq!(after.ask(line), answer, "{line}: {}", after.said());
    }
    assert_eq!(after.said().lines().count(), 1, "once: {}", after.said());
    assert!(after.said().contains("--region-socket"), "{}", after.said());
    wait_until("the region is let go", DEADLINE, || {
        assert_eq!(after.ask("get k"), "three");
        (!after.has_mapped(&region)).then_some(())
    });

    // There is no other server to ask: it gets an error.
    let mut alone = Talk::start(&dropin, &program, &format!("keyway:{}", region.display()), &[ALONE]);
    assert_eq!(alone.ask("get k"), "three", "what is there can be read");
    assert_eq!(alone.ask("set k four"), "SERVER ERROR");
    let why = alone.ask("message");
    assert!(
        why.contains("answers from the kernel") && why.contains("keyway:SOCKET"),
        "{why}"
    );
    assert_eq!(alone.ask("get k"), "three");
    drop(server);

    // A server that hands out its region counts what its programs change.
    let handed_out = dropin.scratch.join("region.sock");
    let path = handed_out.display().to_string();
    let _server = InKernel::with_open_door(&region, &socket, &["--region-socket", &path]);
    let mut direct = Talk::start(&dropin, &program, &servers, &[]);
    assert_eq!(direct.ask("set k five"), "SUCCESS", "{}", direct.said());
    assert!(direct.has_mapped(&region) && direct.said().is_empty(), "{}", direct.said());
    let mut named = Talk::start(&dropin, &program, &format!("keyway:{path}"), &[ALONE]);
    assert_eq!(named.ask("set k five"), "SUCCESS", "the message's advice: {}", named.said());
    assert!(named.has_mapped(&region));
    wait_until("the other's next connection", DEADLINE, || {
        (after.ask("get k") == "five").then_some(())
    });
}

#[test]
fn under_keyway_exec_the_region_is_attached_before_main_or_it_says_why_not() {
    let test = "the drop-in under keyway exec";
    let dropin = Dropin::new();
    let Some(program) = dropin.compile(test, "talk.c") else {
        return;
    };
    let mut server = Server::start(Kind::Keyway, &ServeOptions::default());
    let address = server.address().to_string();
    let region = server.region().to_path_buf();
    let exec = |library: &Path, environment: &[(&str, &str)]| {
        let mut command = Command::new(harness::keyway_binary());
        command.args(["exec", "--region"]).arg(&region).arg("--library").arg(library);
        command
            .arg("--")
            .arg(&program)
            .arg(&address)
            .envs(environment.iter().copied());
        Talk::by(&dropin, command, &address)
    };
    let mut talk = exec(&dropin.file(), &[ALONE]);
    assert_eq!(talk.ask("set k one"), "SUCCESS", "{}", talk.said());
    assert_eq!(talk.ask("get k"), "one");
    assert!(!talk.said().contains("libmemcached)"), "{}", talk.said());
    // A forked child gets the error that it has none, and the parent goes on.
    assert_eq!(talk.ask("fork k child"), "CONNECTION FAILURE");
    assert_eq!(talk.ask("get k"), "one");
    let mut wire = server.connect(Transport::Tcp);
    assert_eq!(wire.ask("mg k v").expect("an answer"), "VA 3");
    drop(talk);
    // The cache that is attached is another library's.
    let library = harness::workspace_library("keyway-capi", "libkeyway_capi.so");
    let library = harness::link_to_preload(&library, &dropin.scratch);
    let preload = dropin.file().display().to_string();
    let mut talk = exec(&library, &[ALONE, ("LD_PRELOAD", &preload)]);
    assert_eq!(talk.ask("get k"), "CONNECTION FAILURE");
    assert!(talk.said().contains("keyway exec --library"), "{}", talk.said());
    // The server is away: its record leads to the region that is attached already.
    server.kill();
    let mut talk = exec(&dropin.file(), &[ALONE]);
    assert_eq!(talk.ask("get k"), "one", "{}", talk.said());
}

#[test]
fn a_program_without_memory_for_a_copy_gets_an_error() {
    let dropin = Dropin::new();
    let Some(program) = dropin.compile("a program without memory", "memory.c") else {
        return;
    };
    let region = dropin.scratch.join("region");
    let _cache = Cache::open(&Place::Path(region.clone()), &Options::new().memory(4 << 20)).expect("a region");
    let mut command = Command::new(&program);
    command.arg(format!("keyway:{}", region.display()));
    let (status, told) = harness::run_to_end(dropin.give(&mut command, Library::Preloaded), DEADLINE);
    let no_memory = |len: usize| format!("MEMORY ALLOCATION FAILURE, this process has no memory for a copy of {len} bytes");
    let expected = [
        format!("set endless: {}", no_memory(usize::MAX)),
        format!("append endless: {}", no_memory(isize::MAX as usize + 1)),
        "endless result: MEMORY ALLOCATION FAILURE, 0".to_owned(),
        "set large: SUCCESS".to_owned(),
        "set small: SUCCESS".to_owned(),
        format!("no large: {}", no_memory(900_000)),
        format!("mget: {}", no_memory(900_000)),
        "fetched small".to_owned(),
        format!("append: {}", no_memory(900_000)),
        "got small: SUCCESS".to_owned(),
        "set small: SUCCESS".to_owned(),
    ];
    let told: Vec<_> = told
        .lines()
        .map(|line| line.split(" (its").next().unwrap_or_default())
        .collect();
    assert!(status.success(), "{status}\n{told:#?}");
    assert_eq!(told, expected);
}

/// The rules with which a server is started are the region's, and a set for which there is no room removes the old value, with and without
/// replies.
#[test]
fn a_program_has_the_rules_of_the_region() {
    let dropin = Dropin::new();
    let Some(program) = dropin.compile("rules of a region", "rules.c") else {
        return;
    };
    let server = Server::start(
        Kind::Keyway,
        &ServeOptions {
            memory_mb: 16,
            keyway_arguments: ["--max-item", "2m", "--no-evict", "--no-flush"].map(str::to_owned).to_vec(),
            ..ServeOptions::default()
        },
    );
    let address = server.address();
    let mut command = Command::new(&program);
    command.args([address.ip().to_string(), address.port().to_string()]);
    let (status, told) = harness::run_to_end(dropin.give(&mut command, Library::Preloaded), DEADLINE);
    assert!(status.success(), "{status}\n{told}");
    let refused = "ITEM TOO BIG";
    let round = [
        "set: SUCCESS".to_owned(),
        format!("add: {refused}"),
        format!("replace: {refused}"),
        format!("append: {refused}"),
        format!("cas: {refused}"),
        "get k: old SUCCESS".to_owned(),
        format!("set of 3 MB: {refused}"),
        "get k: - NOT FOUND".to_owned(),
    ];
    let mut expected = vec!["set of 1.5 MB: SUCCESS".to_owned()];
    expected.extend(round.clone());
    expected.extend(round);
    expected.extend([
        "set first: SUCCESS".to_owned(),
        "full: SERVER FAILED TO ALLOCATE OBJECT".to_owned(),
        "get first: 1st SUCCESS".to_owned(),
        "flush: CLIENT ERROR".to_owned(),
    ]);
    assert_eq!(told.lines().collect::<Vec<_>>(), expected, "{}", server.log());
}

/// Another user's program that listens on a port and says that it is a Keyway with a certain region.
fn impostor(rows: String) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let rows = rows.clone();
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().expect("a socket")).lines();
                while let Some(Ok(line)) = lines.next() {
                    let answer = match line.as_str() {
                        "version" => "VERSION 1.6.45\r\n".to_owned(),
                        "stats settings" => format!("{rows}END\r\n"),
                        _ => "END\r\n".to_owned(),
                    };
                    let _ = (&stream).write_all(answer.as_bytes());
                }
            });
        }
    });
    address
}

/// The enemy: any user of this host can take a port and name a file. Nothing is made for them, and what is theirs is not mapped.
#[test]
fn what_a_stranger_on_the_port_tells_of_is_neither_made_nor_mapped() {
    let dropin = Dropin::new();
    let Some(program) = dropin.compile("a stranger on the port", "talk.c") else {
        return;
    };
    // Root's files are root's.
    if std::fs::metadata("/proc/self").is_ok_and(|own| own.uid() != 0) {
        skip("a stranger's region", "only root can be another user");
        return;
    }
    let absent = dropin.scratch.join("absent");
    let tell = |path: &Path, identity: (u64, u64)| {
        format!(
            "STAT keyway_region {}:{}\r\nSTAT memory_file {}\r\n",
            identity.0,
            identity.1,
            path.display()
        )
    };
    let address = impostor(tell(&absent, (1, 1)));
    let mut talk = Talk::start(&dropin, &program, &address.to_string(), &[ALONE]);
    assert!(!talk.ask("set key value").starts_with("SUCCESS"), "there is nothing");
    assert!(!absent.exists(), "a region was made where a stranger said");

    let theirs = dropin.scratch.join("theirs");
    let options = Options::new().memory(4 << 20);
    let cache = Cache::open(&Place::Path(theirs.clone()), &options).expect("a region");
    let identity = cache.identity().expect("an identity");
    cache.close();
    const STRANGER: u32 = 54_321;
    std::os::unix::fs::chown(&theirs, Some(STRANGER), None).expect("root may");
    let address = impostor(tell(&theirs, identity));
    let mut talk = Talk::start(&dropin, &program, &address.to_string(), &[ALONE]);
    assert!(!talk.ask("set key value").starts_with("SUCCESS"), "it is another user's");
    assert!(!talk.has_mapped(&theirs), "{}", talk.said());
    assert!(talk.said().contains("KEYWAY_LIBMEMCACHED_OWNERS=54321"), "{}", talk.said());
    // Its user says that this is right.
    let listed = ("KEYWAY_LIBMEMCACHED_OWNERS", "7, 54321");
    let mut talk = Talk::start(&dropin, &program, &address.to_string(), &[ALONE, listed]);
    assert!(talk.ask("set key value").starts_with("SUCCESS"), "{}", talk.said());
    assert!(talk.has_mapped(&theirs));
}

/// A server that answers each connection but the first, of which it tells; that one it keeps.
fn answers_but_the_first(answer: &'static str) -> (u16, std::sync::mpsc::Receiver<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = listener.local_addr().expect("it listens").port();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut first = None;
        for stream in listener.incoming().flatten() {
            if first.is_none() {
                first = Some(stream);
                let _ = tell.send(());
                continue;
            }
            let _ = (&stream).read(&mut [0; 512]);
            let _ = (&stream).write_all(answer.as_bytes());
        }
    });
    (port, told)
}

#[test]
fn a_child_that_is_forked_while_a_server_is_asked_waits_for_no_thread_of_its_parent() {
    let dropin = Dropin::new();
    let Some(program) = dropin.compile("a program that forks", "fork.c") else {
        return;
    };
    let (port, asked) = answers_but_the_first("ERROR\r\n");
    let mut command = Command::new(program);
    dropin.give(&mut command, Library::Preloaded).arg(port.to_string());
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("a program that was compiled");
    asked.recv_timeout(DEADLINE).expect("its thread asks");
    child.stdin.take().expect("piped").write_all(b"\n").expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "the child ended with 0\n");
}

#[test]
fn a_message_to_a_standard_error_that_is_a_broken_pipe_does_not_end_the_program() {
    let dropin = Dropin::new();
    let Some(program) = dropin.compile("a program with a broken standard error", "talk.c") else {
        return;
    };
    // A Keyway whose region cannot be used: the library says so.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it listens");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = (&stream).read(&mut [0; 512]);
            let _ = (&stream).write_all(b"VERSION 1.6.45\r\nSTAT keyway_region 1:2\r\nEND\r\n");
        }
    });
    let talk = |errors: Stdio| {
        let mut command = Command::new(&program);
        dropin
            .give(&mut command, Library::Preloaded)
            .arg(format!("127.0.0.1:{}", address.port()));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(errors);
        let mut child = command.spawn().expect("a program that was compiled");
        child.stdin.take().expect("piped").write_all(b"get key\n").expect("it reads");
        child.wait_with_output().expect("it ends")
    };
    let told = talk(Stdio::piped());
    assert!(
        String::from_utf8_lossy(&told.stderr).contains("does not hand out its region"),
        "{told:?}"
    );
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let untold = talk(writer.into());
    assert_eq!(
        (untold.status, untold.stdout),
        (told.status, told.stdout),
        "by standard error alone"
    );
}
