//! The kernel door as people start it: `keyway` itself, over veth, with a client in another namespace.
//!
//! [`pinned`]: the program is attached and pinned by `keyway kernel attach`, and `keyway serve --kernel-pinned` runs as a user without any capability. [`beside`]: two servers with
//! `--kernel` on one interface, and a filter of somebody else's. [`crowded`]: more is hot than the memory for copies holds. [`renewed`]: what is changed is hot again without being asked for. [`presets`] and [`killed`]: the lab's measurements of the kernel door, whose namespaces it makes itself.
//!
//! Each side is this program again, in its namespace. The server's has mounts of its own (ip-netns(8)), so the BPF file system that is mounted there goes with it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::traffic::{Namespace, connect};

/// First arguments of the sides.
const PLAY_PINNED: &str = "play-pinned";
const PLAY_BESIDE: &str = "play-beside";
const PLAY_CROWDED: &str = "play-crowded";
const PLAY_RENEWED: &str = "play-renewed";
const ASK: &str = "ask-served";
const ADDRESS: &str = "10.0.0.1:21411";
/// Of a second server.
const OTHER: &str = "10.0.0.1:21412";
const ALLOWED: &str = "10.0.0.0/24";
/// Nobody's number, on every Linux that we know.
const NOBODY: u32 = 65_534;
/// Those of `lab reproduce` that measure the kernel door.
const PRESETS: [&str; 11] = [
    "hippos-fig7",
    "hippos-fig9",
    "hippos-fig10",
    "hippos-table4",
    "hippos-surge",
    "unbuckle-fig4.3b",
    "unbuckle-fig4.6",
    "unbuckle-fig4.7",
    "unbuckle-fig4.8",
    "unbuckle-fig4.9",
    "unbuckle-table4.1",
];
/// Counts copies made anew behind changes.
const RENEWED: &str = "keyway_kernel_renewed";
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// An answer that has not come by then is none.
const ANSWER_MAX: Duration = Duration::from_millis(400);
/// How long a server is asked for more than it can hold.
const CROWDED_FOR: Duration = Duration::from_secs(5);

/// A server without capabilities, on a program that somebody else has pinned: killed, started again, and taken away.
///
/// # Errors
///
/// What was otherwise than it must be.
pub fn pinned() -> Result<String, String> {
    between_namespaces(PLAY_PINNED)
}

/// Two servers on one interface: each answers from the kernel whatever becomes of the other one.
///
/// # Errors
///
/// What was otherwise than it must be.
pub fn beside() -> Result<String, String> {
    between_namespaces(PLAY_BESIDE)
}

/// A server that is asked for far more than its memory for copies holds, all the time: its program is never silent.
///
/// # Errors
///
/// What was otherwise than it must be.
pub fn crowded() -> Result<String, String> {
    between_namespaces(PLAY_CROWDED)
}

/// A server whose hot items are changed: each is answered by the kernel from the first get on that follows its change, with what it is by then.
///
/// # Errors
///
/// What was otherwise than it must be.
pub fn renewed() -> Result<String, String> {
    between_namespaces(PLAY_RENEWED)
}

/// Presets of the lab that need the kernel door, in a form of seconds.
///
/// # Errors
///
/// One failed, or has no table with the kernel door in it.
pub fn presets() -> Result<String, String> {
    let mut command = lab();
    command.args(["reproduce", &PRESETS.join(",")]);
    let output = finish(command.args(["--seconds", "0.03", "--warmup", "0", "--repeat", "1", "--items", "100"]))?;
    let (mut rows, mut figures) = (0, 0);
    for preset in PRESETS {
        let tables: Vec<&str> = output
            .split("\n\n")
            .filter(|part| part.trim_start().starts_with(&format!("{preset}: ")))
            .collect();
        let of_door: Vec<&str> = tables
            .iter()
            .flat_map(|table| table.lines().filter(|line| line.contains("kernel door")))
            .collect();
        demand(!of_door.is_empty(), || {
            format!("{preset} has no row of the kernel door: {output}")
        })?;
        rows += of_door.len();
        // A busy machine may have no time for any answer in so short a time, but not everywhere.
        figures += of_door.iter().filter(|line| line.contains('(')).count();
    }
    demand(figures > 0, || format!("none of {rows} rows has a figure: {output}"))?;
    Ok(format!(
        "{} presets, {rows} rows of the kernel door, {figures} with figures",
        PRESETS.len()
    ))
}

/// The lab is killed amid a measurement: its servers, and so their namespaces with all that is in them, go with it.
///
/// # Errors
///
/// Something is left.
pub fn killed() -> Result<String, String> {
    let own = network_of("self").ok_or("this process has no network")?;
    // Who is killed cannot remove the directories of its servers' sockets.
    let folder = Folder(std::env::temp_dir().join(format!("keyway-test-{}-bench", std::process::id())));
    std::fs::create_dir_all(&folder.0).map_err(|error| format!("{}: {error}", folder.0.display()))?;
    let bench = lab()
        .env("TMPDIR", &folder.0)
        .args([
            "kernel",
            "--way",
            "kernel",
            "--items",
            "100",
            "--connections",
            "1",
            "--seconds",
            "60",
        ])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut bench = Served(bench.map_err(|error| error.to_string())?, PathBuf::new());
    let until = Instant::now() + PATIENCE;
    let mut made: Vec<PathBuf> = Vec::new();
    while made.is_empty() {
        demand(Instant::now() < until, || {
            "no server was ever started in a network of its own".to_owned()
        })?;
        made = processes()
            .filter(|pid| parent_of(pid) == Some(bench.0.id()))
            .filter_map(|pid| network_of(&pid))
            .collect();
        made.retain(|network| *network != own);
    }
    bench.kill()?;
    let is_left = |pid: &String| network_of(pid).is_some_and(|network| made.contains(&network));
    while let Some(pid) = processes().find(is_left) {
        demand(Instant::now() < until, || {
            format!("process {pid} is still in a network of the bench's")
        })?;
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(format!("{} networks, nobody is left in them", made.len()))
}

/// `lab`, which measures the same `keyway` as these tests.
fn lab() -> Command {
    let mut command = Command::new(harness::workspace_binary("lab", "lab"));
    command.env("KEYWAY_BIN", harness::keyway_binary());
    command
}

fn processes() -> impl Iterator<Item = String> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()))
}

fn network_of(pid: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/net")).ok()
}

fn parent_of(pid: &str) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    status
        .lines()
        .find_map(|line| line.strip_prefix("PPid:")?.trim().parse().ok())
}

fn between_namespaces(play: &str) -> Result<String, String> {
    let keyway = harness::keyway_binary().display().to_string();
    // Where programs may be run from, and by everybody, which is not sure of a directory in memory.
    let folder = Folder(std::env::temp_dir().join(format!("keyway-test-{}-{play}", std::process::id())));
    std::fs::create_dir_all(&folder.0).map_err(|error| format!("{}: {error}", folder.0.display()))?;
    let server = Namespace::new("a")?;
    let client = connect(&server, false)?;
    let played = server.run(&[play, &keyway, &folder.0.display().to_string(), client.name()])?;
    let output = played.wait_with_output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() { Ok(said) } else { Err(said) }
}

/// A directory, removed with its handle.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Plays a side, if this process was started as one.
pub fn part_of_it() -> Option<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let played = match words.as_slice() {
        [PLAY_PINNED, keyway, folder, client] => Play::new(keyway, folder, client).and_then(|play| play.pinned()),
        [PLAY_BESIDE, keyway, folder, client] => Play::new(keyway, folder, client).and_then(|play| play.beside()),
        [PLAY_CROWDED, keyway, folder, client] => Play::new(keyway, folder, client).and_then(|play| play.crowded()),
        [PLAY_RENEWED, keyway, folder, client] => Play::new(keyway, folder, client).and_then(|play| play.renewed()),
        [ASK, what, address] => ask(what, address),
        _ => return None,
    };
    let (said, code) = match played {
        Ok(said) => (said, ExitCode::SUCCESS),
        Err(why) => (why, ExitCode::FAILURE),
    };
    let _ = writeln!(std::io::stdout(), "{said}");
    Some(code)
}

/// The server's side.
struct Play<'a> {
    /// a copy that everybody may run
    keyway: PathBuf,
    folder: PathBuf,
    client: &'a str,
}

impl<'a> Play<'a> {
    fn new(keyway: &str, folder: &str, client: &'a str) -> Result<Self, String> {
        let folder = PathBuf::from(folder);
        let told = |error: std::io::Error| format!("{}: {error}", folder.display());
        std::fs::set_permissions(&folder, PermissionsExt::from_mode(0o755)).map_err(told)?;
        let own = folder.join("keyway");
        std::fs::hard_link(keyway, &own)
            .or_else(|_| std::fs::copy(keyway, &own).map(drop))
            .map_err(told)?;
        Ok(Self {
            keyway: own,
            folder,
            client,
        })
    }

    fn pinned(&self) -> Result<String, String> {
        let mount = self.folder.join("bpf");
        std::fs::create_dir(&mount).map_err(|error| error.to_string())?;
        finish(
            Command::new("mount")
                .args(["-t", "bpf", "-o", "mode=0755", "bpf"])
                .arg(&mount),
        )?;
        let pin = mount.join("keyway").display().to_string();
        let settings = ["--udp", ADDRESS, "--udp-allow", ALLOWED, "--kernel-memory", "1m"];
        let attach = [
            &["kernel", "attach", "veth", "--pin", &pin, "--user", "nobody"][..],
            &settings[..],
        ]
        .concat();
        let said = finish(self.keyway().args(&attach))?;
        demand(said.contains("attached to veth"), || format!("attach said {said}"))?;
        let again = refused(self.keyway().args(&attach))?;
        demand(again.contains(&pin), || format!("a second attach said {again}"))?;

        let serve = [&["--kernel-pinned", &pin][..], &settings[..]].concat();
        let mut server = self.serve(&serve, Some(NOBODY))?;
        server.has_no_capability()?;
        self.ask("fresh")?;
        // What is pinned has one user at a time, and was loaded with settings of its own.
        let other = |serve: &[&str]| refused(self.serve_command(serve, Some(NOBODY)).args(["--listen", "127.0.0.1:21412"]));
        let second = other(&serve)?;
        demand(second.contains("another"), || format!("a second server said {second}"))?;
        server.kill()?;
        self.ask("silent")?;
        let larger: Vec<&str> = serve.iter().map(|word| if *word == "1m" { "2m" } else { *word }).collect();
        let differs = other(&larger)?;
        demand(differs.contains("settings"), || {
            format!("a server with other settings said {differs}")
        })?;

        // The next one has an empty region, and the same program.
        let mut server = self.serve(&serve, Some(NOBODY))?;
        server.has_no_capability()?;
        self.ask("fresh")?;
        let status = finish(self.keyway().args(["kernel", "status", "--pin", &pin]))?;
        let hits = status
            .lines()
            .find_map(|line| line.strip_prefix("hits ")?.parse::<u64>().ok());
        demand(hits > Some(0) && status.contains("interfaces veth"), || {
            format!("status said {status}")
        })?;
        server.stop()?;
        self.ask("silent")?;
        finish(self.keyway().args(["kernel", "detach", "--pin", &pin]))?;
        demand(!Path::new(&pin).exists(), || format!("{pin} is still there"))?;
        nothing_attached()?;
        Ok(format!(
            "served without a capability, killed, silent, started again, stopped and detached; {} hits",
            hits.unwrap_or(0)
        ))
    }

    fn beside(&self) -> Result<String, String> {
        let serve = |address: &'static str| {
            let options = [
                "--udp",
                address,
                "--udp-allow",
                ALLOWED,
                "--kernel-memory",
                "1m",
                "--kernel",
                "veth",
            ];
            self.serve_at(address, &options, None)
        };
        // Somebody else's filter, and what it hangs on: neither is touched.
        finish(Command::new("tc").args(["qdisc", "add", "dev", "veth", "clsact"]))?;
        let foreign = [
            "filter",
            "add",
            "dev",
            "veth",
            "ingress",
            "pref",
            "7",
            "bpf",
            "bytecode",
            "1,6 0 0 0,",
        ];
        finish(Command::new("tc").args(foreign))?;
        let mut first = serve(ADDRESS)?;
        let mut second = serve(OTHER)?;
        let said = second.said();
        demand(
            said.contains("the kernel door on veth") && said.contains("another Keyway") && said.contains("priority 7"),
            || format!("the second server does not say what else is there: {said:?}"),
        )?;
        let of_two = filters_of_ours()?;
        self.ask("fresh")?;
        self.ask_at("fresh", OTHER)?;
        // The first one still answers, then the second one without it.
        self.ask("hot")?;
        first.kill()?;
        self.ask_at("hot", OTHER)?;
        // What the dead one has left is removed, and nothing else.
        let mut third = serve(ADDRESS)?;
        let now = filters_of_ours()?;
        demand(now == of_two, || {
            format!("two servers had {of_two} filters; with those that a dead one left, there are {now}")
        })?;
        self.ask("fresh")?;
        self.ask_at("hot", OTHER)?;
        second.stop()?;
        self.ask("hot")?;
        third.stop()?;
        let left = finish(Command::new("tc").args(["filter", "show", "dev", "veth", "ingress"]))?;
        demand(left.contains("pref 7") && !left.contains("kw_tc"), || format!("left: {left}"))?;
        finish(Command::new("tc").args(["filter", "delete", "dev", "veth", "ingress"]))?;
        // Behind the last filter the qdisc goes too.
        let mut last = serve(ADDRESS)?;
        last.stop()?;
        nothing_attached()?;
        Ok("each has its own filters, whoever comes, goes or dies; clsact goes with the last".to_owned())
    }

    fn crowded(&self) -> Result<String, String> {
        let udp = ["--udp", ADDRESS, "--udp-allow", ALLOWED];
        let kernel = ["--kernel", "veth", "--kernel-memory", "512k"];
        let mut server = self.serve(&[udp, kernel].concat(), None)?;
        self.ask("fresh")?;
        let silent = stat(ADDRESS, "keyway_kernel_silent")?;
        let copied = stat(ADDRESS, "keyway_kernel_copied")?;
        self.ask("crowd")?;
        let (silenced, copied) = (
            stat(ADDRESS, "keyway_kernel_silent")? - silent,
            stat(ADDRESS, "keyway_kernel_copied")? - copied,
        );
        demand(silenced == 0, || {
            format!("{silenced} packets came while the lease had run out, and {copied} copies were made")
        })?;
        server.stop()?;
        Ok(format!("{copied} copies were made, and the program was never silent"))
    }

    fn renewed(&self) -> Result<String, String> {
        let udp = ["--udp", ADDRESS, "--udp-allow", ALLOWED];
        let kernel = ["--kernel", "veth", "--kernel-memory", "1m"];
        let mut server = self.serve(&[udp, kernel].concat(), None)?;
        self.ask("fresh")?;
        self.ask("renewed")?;
        self.ask("flushed-later")?;
        let renewed = stat(ADDRESS, RENEWED)?;
        server.stop()?;
        Ok(format!(
            "{renewed} copies were made anew behind changes, before anybody asked"
        ))
    }

    fn keyway(&self) -> Command {
        Command::new(&self.keyway)
    }

    fn serve_command(&self, options: &[&str], user: Option<u32>) -> Command {
        let mut command = self.keyway();
        command
            .args(["serve", "--region", "memfd", "--memory", "16M", "--threads", "1"])
            .args(options);
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        command
    }

    fn serve(&self, options: &[&str], user: Option<u32>) -> Result<Served, String> {
        self.serve_at(ADDRESS, options, user)
    }

    fn serve_at(&self, address: &str, options: &[&str], user: Option<u32>) -> Result<Served, String> {
        let mut command = self.serve_command(options, user);
        let log = self.folder.join(format!("log-{}", address.replace([':', '.'], "-")));
        let written = std::fs::File::create(&log).map_err(|error| error.to_string())?;
        let started = command
            .args(["--listen", address])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(written)
            .spawn();
        let mut child = started.map_err(|error| format!("{}: {error}", self.keyway.display()))?;
        let mut ready = String::new();
        let output = child.stdout.take().ok_or("no output")?;
        let read = BufReader::new(output).read_line(&mut ready);
        let served = Served(child, log);
        demand(read.is_ok() && ready.contains("ready: "), || {
            format!("the server said {ready:?} {}", served.said())
        })?;
        Ok(served)
    }

    /// Has the client's side do something.
    fn ask(&self, what: &str) -> Result<(), String> {
        self.ask_at(what, ADDRESS)
    }

    fn ask_at(&self, what: &str, address: &str) -> Result<(), String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        finish(
            Command::new("ip")
                .args(["netns", "exec", self.client])
                .arg(program)
                .args([ASK, what, address]),
        )
        .map(drop)
    }
}

/// How many filters of Keyway's programs are at both hooks of the interface.
fn filters_of_ours() -> Result<usize, String> {
    let mut count = 0;
    for hook in ["ingress", "egress"] {
        let filters = finish(Command::new("tc").args(["filter", "show", "dev", "veth", hook]))?;
        count += filters.matches("handle 0x4b57").count();
    }
    Ok(count)
}

/// A server, killed with its handle.
struct Served(Child, PathBuf);

impl Served {
    /// What it has logged so far.
    fn said(&self) -> String {
        std::fs::read_to_string(&self.1).unwrap_or_default()
    }

    fn has_no_capability(&self) -> Result<(), String> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.0.id())).map_err(|error| error.to_string())?;
        let held: Vec<&str> = status
            .lines()
            .filter(|line| ["CapPrm:", "CapEff:", "CapAmb:"].iter().any(|name| line.starts_with(name)))
            .collect();
        let none = |line: &&str| line.trim_end().ends_with("\t0000000000000000");
        demand(held.len() == 3 && held.iter().all(none), || {
            format!("the server holds {held:?}")
        })
    }

    fn kill(&mut self) -> Result<(), String> {
        self.0
            .kill()
            .and_then(|()| self.0.wait())
            .map(drop)
            .map_err(|error| error.to_string())
    }

    fn stop(&mut self) -> Result<(), String> {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap_or(0));
        kill(pid, Signal::SIGTERM).map_err(|error| error.to_string())?;
        let status = self.0.wait().map_err(|error| error.to_string())?;
        demand(status.success(), || format!("the server ended with {status}"))
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.kill();
    }
}

fn demand(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

/// What a command says that must succeed.
fn finish(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| format!("{command:?}: {error}"))?;
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat())
        .trim()
        .to_owned();
    if output.status.success() {
        Ok(said)
    } else {
        Err(format!("{command:?} ended with {}: {said}", output.status))
    }
}

/// What a command says that must not succeed.
fn refused(command: &mut Command) -> Result<String, String> {
    match finish(command) {
        Ok(said) => Err(format!("{command:?} was not refused: {said}")),
        Err(said) => Ok(said),
    }
}

/// No filter is on the interface any more, nor what filters hang on.
fn nothing_attached() -> Result<(), String> {
    let hooks = finish(Command::new("tc").args(["qdisc", "show", "dev", "veth"]))?;
    demand(!hooks.contains("clsact"), || format!("still attached: {hooks}"))
}

/// A number of the server's statistics.
fn stat(address: &str, name: &str) -> Result<u64, String> {
    let told = |error: std::io::Error| format!("stats: {error}");
    let mut stream = TcpStream::connect(address).map_err(told)?;
    stream.set_read_timeout(Some(PATIENCE)).map_err(told)?;
    stream.write_all(b"stats\r\nquit\r\n").map_err(told)?;
    let mut text = String::new();
    stream.read_to_string(&mut text).map_err(told)?;
    let value = text
        .lines()
        .find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' '));
    let value = value.and_then(|value| value.trim().parse().ok());
    value.ok_or_else(|| format!("stats has no {name}"))
}

/// The client's side: `fresh` is a server without items, `silent` none, `renewed` one with a hot item.
fn ask(what: &str, address: &str) -> Result<String, String> {
    let mut asker = Asker::new(address)?;
    match what {
        "silent" => asker.is_silent(),
        "renewed" => asker.is_renewed(),
        "hot" => asker.is_hot("another"),
        "flushed-later" => asker.is_flushed_later(),
        "crowd" => asker.crowd(),
        _ => asker.is_fresh(),
    }
}

struct Asker {
    address: String,
    socket: UdpSocket,
    id: u16,
}

impl Asker {
    fn new(address: &str) -> Result<Self, String> {
        let open = || -> std::io::Result<UdpSocket> {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            socket.connect(address.parse::<SocketAddr>().map_err(std::io::Error::other)?)?;
            socket.set_read_timeout(Some(ANSWER_MAX))?;
            Ok(socket)
        };
        open()
            .map(|socket| Self {
                address: address.to_owned(),
                socket,
                id: 0,
            })
            .map_err(|error| error.to_string())
    }

    /// `None`: no answer.
    fn exchange(&mut self, request: &[u8]) -> Option<Vec<u8>> {
        self.id = self.id.wrapping_add(1);
        let id = self.id.to_be_bytes();
        self.socket.send(&[&id[..], &[0, 0, 0, 1, 0, 0], request].concat()).ok()?;
        let mut answer = [0; 2048];
        loop {
            let len = self.socket.recv(&mut answer).ok()?;
            if answer[..2] == id {
                return Some(answer.get(8..len)?.to_vec());
            }
        }
    }

    /// The same until there is an answer: what is sent first may be lost.
    fn answer(&mut self, request: &[u8]) -> Result<Vec<u8>, String> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self.exchange(request) {
                Some(answer) => return Ok(answer),
                None if Instant::now() > until => return Err(format!("{}: no answer", request.escape_ascii())),
                None => {}
            }
        }
    }

    /// Nothing of an earlier server is there; what is stored is answered by the kernel, and so is what replaces it, never the one before.
    fn is_fresh(&mut self) -> Result<String, String> {
        let first = self.answer(b"get key\r\n")?;
        demand(first == b"END\r\n", || {
            format!("a server that has nothing answered {}", first.escape_ascii())
        })?;
        for value in ["one", "another"] {
            let stored = self.answer(format!("set key 0 0 {}\r\n{value}\r\n", value.len()).as_bytes())?;
            demand(stored == b"STORED\r\n", || {
                format!("a set was answered {}", stored.escape_ascii())
            })?;
            self.is_hot(value)?;
        }
        Ok("fresh".to_owned())
    }

    /// The key has this value, and the kernel says so.
    fn is_hot(&mut self, value: &str) -> Result<String, String> {
        let expected = format!("VALUE key 0 {}\r\n{value}\r\nEND\r\n", value.len());
        let (before, until) = (self.kernel_hits()?, Instant::now() + PATIENCE);
        loop {
            let answer = self.answer(b"get key\r\n")?;
            demand(answer == expected.as_bytes(), || {
                format!("the key has {value:?}, and the answer is {}", answer.escape_ascii())
            })?;
            if self.kernel_hits()? > before + 3 {
                return Ok("hot".to_owned());
            }
            demand(Instant::now() < until, || "the kernel never answers".to_owned())?;
        }
    }

    /// The line that answers a command over TCP: datagrams change a server's items, and nothing else.
    fn line_by_tcp(&self, command: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(self.address.as_str())?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        stream.write_all(format!("{command}\r\n").as_bytes())?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line)?;
        Ok(line)
    }

    /// A flush that is ahead is nobody's TTL: neither the kernel nor the server shows it.
    fn is_flushed_later(&mut self) -> Result<String, String> {
        for (exptime, due) in [("0", "-1"), ("3000", "3000"), ("1000", "1000")] {
            let stored = self.answer(format!("set later 0 {exptime} 1\r\n1\r\n").as_bytes())?;
            demand(stored == b"STORED\r\n", || {
                format!("a set was answered {}", stored.escape_ascii())
            })?;
            let flushed = self
                .line_by_tcp("flush_all 2000")
                .map_err(|error| format!("a flush: {error}"))?;
            demand(flushed == "OK\r\n", || format!("a flush was answered {flushed:?}"))?;
            let (before, until) = (self.kernel_hits()?, Instant::now() + PATIENCE);
            while self.kernel_hits()? < before + 3 {
                let answer = self.answer(b"mg later t\r\n")?;
                let ttl = String::from_utf8_lossy(&answer);
                let ttl = ttl.trim_end().strip_prefix("HD t").and_then(|ttl| ttl.parse::<i64>().ok());
                // The test may take a few seconds.
                let due: i64 = due.parse().unwrap_or(0);
                demand(
                    ttl.is_some_and(|ttl| ttl == due || (due > 0 && (due - 100..due).contains(&ttl))),
                    || {
                        format!(
                            "with exptime {exptime} and a flush in 2000 s, mg with t answers {}",
                            answer.escape_ascii()
                        )
                    },
                )?;
                demand(Instant::now() < until, || "the kernel never answers".to_owned())?;
            }
        }
        Ok("later".to_owned())
    }

    /// Many more large items than there is memory for are asked for, each often enough to be hot.
    fn crowd(&mut self) -> Result<String, String> {
        const ITEMS: usize = 4000;
        let value = "v".repeat(1000);
        for item in 0..ITEMS {
            let stored = self.answer(format!("set crowd{item} 0 0 1000\r\n{value}\r\n").as_bytes())?;
            demand(stored == b"STORED\r\n", || {
                format!("a set was answered {}", stored.escape_ascii())
            })?;
        }
        let until = Instant::now() + CROWDED_FOR;
        while Instant::now() < until {
            for item in 0..ITEMS {
                let answer = self.answer(format!("get crowd{item}\r\n").as_bytes())?;
                demand(answer.len() > 1000, || format!("crowd{item}: {}", answer.escape_ascii()))?;
            }
        }
        Ok("crowded".to_owned())
    }

    fn stat(&self, name: &str) -> Result<u64, String> {
        stat(&self.address, name)
    }

    fn kernel_hits(&self) -> Result<u64, String> {
        self.stat("keyway_kernel_hits")
    }

    /// A hot item is changed, and the first get behind the change is the kernel's.
    fn is_renewed(&mut self) -> Result<String, String> {
        let changes: [(&str, &str, &str, &str); 7] = [
            ("set key 0 0 2\r\n10\r\n", "STORED\r\n", "0", "10"),
            ("append key 0 0 1\r\n7\r\n", "STORED\r\n", "0", "107"),
            ("incr key 5\r\n", "112\r\n", "0", "112"),
            ("touch key 1000\r\n", "TOUCHED\r\n", "0", "112"),
            ("replace key 9 0 3\r\nnew\r\n", "STORED\r\n", "9", "new"),
            ("ms key 2 F3\r\nms\r\n", "HD\r\n", "3", "ms"),
            ("gat 0 key\r\n", "VALUE key 3 2\r\nms\r\nEND\r\n", "3", "ms"),
        ];
        for (request, answer, flags, value) in changes {
            self.changes(request, answer, flags, value)?;
        }
        let deleted = self.answer(b"delete key\r\n")?;
        demand(deleted == b"DELETED\r\n", || {
            format!("a delete was answered {}", deleted.escape_ascii())
        })?;
        let absent = self.answer(b"get key\r\n")?;
        demand(absent == b"END\r\n", || {
            format!("the key is deleted, and the answer is {}", absent.escape_ascii())
        })?;
        self.changes("set key 0 0 5\r\nagain\r\n", "STORED\r\n", "0", "again")?;
        Ok("renewed".to_owned())
    }

    /// One change, and the get behind it.
    fn changes(&mut self, request: &str, answer: &str, flags: &str, value: &str) -> Result<(), String> {
        let (renewed, until) = (self.stat(RENEWED)?, Instant::now() + PATIENCE);
        // Not twice: an append is not to be repeated. What is lost on this machine's own interfaces is lost by somebody's fault.
        let said = self.exchange(request.as_bytes()).unwrap_or_default();
        demand(said == answer.as_bytes(), || {
            format!("{} was answered {}", request.escape_debug(), said.escape_ascii())
        })?;
        while self.stat(RENEWED)? == renewed {
            demand(Instant::now() < until, || {
                format!("no copy is made anew behind {}", request.escape_debug())
            })?;
        }
        let before = self.kernel_hits()?;
        let got = self.answer(b"get key\r\n")?;
        let expected = format!("VALUE key {flags} {}\r\n{value}\r\nEND\r\n", value.len());
        demand(got == expected.as_bytes(), || {
            format!("behind {} a get was answered {}", request.escape_debug(), got.escape_ascii())
        })?;
        demand(self.kernel_hits()? > before, || {
            format!("the get behind {} was not the kernel's", request.escape_debug())
        })
    }

    /// Answers stop, at the latest when the lease has run out.
    fn is_silent(&mut self) -> Result<String, String> {
        let until = Instant::now() + PATIENCE;
        while let Some(answer) = self.exchange(b"get key\r\n") {
            demand(Instant::now() < until, || {
                format!("nobody serves, and the answer is {}", answer.escape_ascii())
            })?;
        }
        Ok("silent".to_owned())
    }
}
