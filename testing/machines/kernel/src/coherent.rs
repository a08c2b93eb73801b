//! Never stale: writers through the library and the server's sockets, killed and stopped at random, and readers through the kernel program,
//! the sockets and the library, over UDP and TCP. Every key's history must be linearizable, whichever door answered.
//!
//! A round runs in a network namespace of its own, on its `lo`. The server is this program again, with the kernel door on; workers are this
//! program again, each with a journal in shared memory, so that a SIGKILL loses nothing of what it was told. Built with
//! faults (`testing/mutants`), the region can be one whose changes are not counted as they must be: such rounds must be rejected.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitCode};
use std::time::{Duration, Instant};

use harness::{Random, Scratch};
use histories::choose::{Chooser, Mix};
use histories::{Answer, Call, Door, Key, Operation, Rules, Verb, judge_all, value};
use keyway_cache::{Cache, Options, Place};
use keyway_server::{Config, Kernel, RegionSocket, Server, UnixSocket};
use mutants::Mutant;
use nix::sys::signal::Signal;
use storm::door::{Library, Network};
use storm::journal::Journal;
use storm::system;
use storm::worker::Control;

use crate::traffic::Namespace;

/// First arguments of the sides.
const PLAY: &str = "play-coherently";
const SERVE: &str = "serve-coherently";
const WORK: &str = "work-coherently";
const HAMMER: &str = "hammer-a-key";
const PORT: u16 = 21_311;
/// Calls of a worker in a round at most.
const CAPACITY: usize = 60_000;
/// How many answers must be the kernel's at least, over UDP and over TCP.
const HITS_MIN: u64 = 1000;
/// An answer that has not come by then is lost.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long a stripe may be without answers after its writer's death: the server looks once a second.
const MENDED_WITHIN: Duration = Duration::from_secs(10);
/// Threads of each of its writers: the more, the likelier that one dies between its two counts.
const HAMMERS: usize = 12;
/// The key of [`recovers`].
const HAMMERED: &str = "hammered";

/// A round over a region.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// small, evicting all the time; otherwise it has room for everything, and no item may vanish
    pub evicting: bool,
    /// what is broken
    pub mutant: Option<Mutant>,
    /// how long it lasts
    pub lasts: Duration,
    /// of all choices
    pub seed: u64,
}

impl Round {
    fn mix(self) -> Mix {
        Mix {
            texts: 5,
            numbers: 2,
            fill: if self.evicting { 800 } else { 100 },
            fill_max: if self.evicting { 60_000 } else { 200 },
            fill_len: if self.evicting { 6_000 } else { 60 },
            flush: 100,
            len_max: 900,
            expiring: false,
        }
    }

    fn memory(self) -> u64 {
        if self.evicting { 2 << 20 } else { 32 << 20 }
    }
}

/// Runs a round: what was judged, and how many answers were the kernel's.
///
/// # Errors
///
/// What was not linearizable, or did not work.
pub fn run(round: Round) -> Result<String, String> {
    elsewhere(round, 0)
}

/// Writers of one key are killed at full speed, so many times; after each death the kernel must come to answer for the key again.
///
/// # Errors
///
/// It did not, or no stripe was ever left between two counts.
pub fn recovers(round: Round, kills: u32) -> Result<String, String> {
    elsewhere(round, kills)
}

/// Does it in a namespace of its own: with `kills`, the one, otherwise the other.
fn elsewhere(round: Round, kills: u32) -> Result<String, String> {
    let namespace = Namespace::new("c")?;
    namespace.ip(&["link", "set", "lo", "up"])?;
    let words = [
        PLAY.to_owned(),
        u8::from(round.evicting).to_string(),
        number(round.mutant),
        round.lasts.as_millis().to_string(),
        round.seed.to_string(),
        kills.to_string(),
    ];
    let played = namespace.run(&words.each_ref().map(String::as_str))?;
    let output = played.wait_with_output().map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if output.status.success() { Ok(said) } else { Err(said) }
}

/// Plays a side, if this process was started as one.
pub fn part_of_it() -> Option<ExitCode> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let result = match words.as_slice() {
        [PLAY, evicting, mutant, lasts_ms, seed, kills] => {
            let round = Round {
                evicting: *evicting == "1",
                mutant: mutant_of(mutant),
                lasts: Duration::from_millis(lasts_ms.parse().unwrap_or(0)),
                seed: seed.parse().unwrap_or(0),
            };
            match kills.parse().unwrap_or(0) {
                0 => storm_over(round),
                kills => kill_and_look(round, kills),
            }
        }
        [SERVE, folder, evicting, mutant] => serve(Path::new(folder), *evicting == "1", mutant_of(mutant)),
        [WORK, folder, role, writer, evicting, mutant, seed] => {
            let round = Round {
                evicting: *evicting == "1",
                mutant: mutant_of(mutant),
                lasts: Duration::ZERO,
                seed: seed.parse().unwrap_or(0),
            };
            work(Path::new(folder), role, writer.parse().unwrap_or(0), round)
        }
        [HAMMER, folder, mutant] => hammer(Path::new(folder), mutant_of(mutant)),
        _ => return None,
    };
    let (said, code) = match result {
        Ok(said) => (said, ExitCode::SUCCESS),
        Err(why) => (why, ExitCode::FAILURE),
    };
    let _ = writeln!(std::io::stdout(), "{said}");
    Some(code)
}

fn number(mutant: Option<Mutant>) -> String {
    mutant.map_or(0, |mutant| mutant as u32).to_string()
}

fn mutant_of(number: &str) -> Option<Mutant> {
    Mutant::COUNTING
        .into_iter()
        .find(|mutant| (*mutant as u32).to_string() == number)
}

/// A storm in this namespace, and its judgement.
fn storm_over(round: Round) -> Result<String, String> {
    let world = World::start(round)?;
    let mut random = Random::new(round.seed);
    let control = Control::open(world.folder());
    let roles = ["library", "library", "library", "network", "kernel", "kernel", "tcp", "tcp"];
    let mut workers: Vec<(&str, Child)> = Vec::new();
    for role in roles {
        workers.push((role, world.work(role, &control)?));
    }
    let (end, mut killed, mut stopped) = (Instant::now() + round.lasts, 0, 0);
    while Instant::now() < end && !control.is_stopped() {
        std::thread::sleep(Duration::from_millis(20 + random.below(100)));
        // Of the library's; what else is killed proves nothing here.
        let Some((role, worker)) = workers.get_mut(random.index(3)) else {
            continue;
        };
        let pid = i32::try_from(worker.id()).unwrap_or(0);
        if random.below(2) == 0 {
            system::signal(pid, Signal::SIGKILL);
            let _ = worker.wait();
            *worker = world.work(role, &control)?;
            killed += 1;
        } else {
            system::signal(pid, Signal::SIGSTOP);
            std::thread::sleep(Duration::from_millis(random.below(60)));
            system::signal(pid, Signal::SIGCONT);
            stopped += 1;
        }
    }
    control.stop();
    for (role, mut worker) in workers {
        let status = worker.wait().map_err(|error| error.to_string())?;
        if !status.success() {
            return Err(format!("a {role} worker ended with {status}"));
        }
    }
    let operations: Vec<Operation> = (1..=control.last_writer())
        .filter_map(|writer| Journal::open(world.folder(), writer))
        .flat_map(|journal| journal.operations())
        // A read whose answer was lost says nothing.
        .filter(|operation| operation.answer.is_some() || operation.call.verb != Verb::Get)
        .collect();
    let (hits, tcp_hits) = (world.stat("keyway_kernel_hits")?, world.stat("keyway_kernel_tcp_hits")?);
    world.stop()?;
    let rules = Rules {
        may_vanish: round.evicting,
        flights_may_end: false,
    };
    let verdict = judge_all(&operations, rules);
    if let Some(first) = verdict.violations.first() {
        return Err(format!("not linearizable: {first}"));
    }
    if hits < HITS_MIN || tcp_hits < HITS_MIN {
        return Err(format!(
            "only {hits} answers over UDP and {tcp_hits} over TCP were the kernel's: nothing is shown"
        ));
    }
    Ok(format!(
        "{} calls on {} keys are linearizable ({} undecided), {hits} answers over UDP and {tcp_hits} over TCP were the kernel's, {killed} writers killed, {stopped} stopped",
        verdict.operations, verdict.keys, verdict.undecided
    ))
}

/// The deaths of [`recovers`], in this namespace.
fn kill_and_look(round: Round, kills: u32) -> Result<String, String> {
    let world = World::start(round)?;
    let mut udp = Udp::new(0);
    let mut random = Random::new(round.seed);
    let (mut kill, mut mended) = (0, 0);
    // Not every death is between two counts: as many as are asked for, and then until one was.
    while kill < kills || (mended == 0 && kill < 10 * kills) {
        kill += 1;
        let folder = world.scratch.path().display().to_string();
        let workers = [0, 1].map(|_| again(&[HAMMER, &folder, &number(round.mutant)]));
        std::thread::sleep(Duration::from_millis(120 + random.below(40)));
        for worker in workers {
            let mut worker = worker?;
            system::signal(i32::try_from(worker.id()).unwrap_or(0), Signal::SIGKILL);
            let _ = worker.wait();
        }
        let before = world.stat("keyway_kernel_hits")?;
        let deadline = Instant::now() + MENDED_WITHIN;
        while world.stat("keyway_kernel_hits")? == before {
            if Instant::now() > deadline {
                return Err(format!("after {kill} deaths the kernel does not answer for the key any more"));
            }
            (0..20).for_each(|_| drop(udp.ask(HAMMERED)));
            std::thread::sleep(Duration::from_millis(10));
        }
        mended = world.stat("keyway_kernel_mended")?;
    }
    world.stop()?;
    if mended == 0 {
        return Err(format!("{kill} deaths, and none between two counts: nothing is shown"));
    }
    Ok(format!(
        "{} writers killed, {mended} stripes left between two counts and answered from again",
        2 * kill
    ))
}

/// The server of a round.
struct World {
    scratch: Scratch,
    server: Child,
    round: Round,
}

impl World {
    fn start(round: Round) -> Result<Self, String> {
        let scratch = Scratch::new();
        let folder = scratch.path().display().to_string();
        let evicting = u8::from(round.evicting).to_string();
        let mut server = again(&[SERVE, &folder, &evicting, &number(round.mutant)])?;
        let mut ready = String::new();
        let output = server.stdout.take().ok_or("no output")?;
        BufReader::new(output)
            .read_line(&mut ready)
            .map_err(|error| error.to_string())?;
        if ready.trim() != "ready" {
            let _ = server.wait();
            return Err(format!("the server said: {ready}"));
        }
        Ok(Self { scratch, server, round })
    }

    fn folder(&self) -> &Path {
        self.scratch.path()
    }

    fn work(&self, role: &str, control: &Control) -> Result<Child, String> {
        let (folder, writer) = (self.folder().display().to_string(), control.next_writer().to_string());
        let (evicting, seed) = (u8::from(self.round.evicting).to_string(), self.round.seed.to_string());
        again(&[WORK, &folder, role, &writer, &evicting, &number(self.round.mutant), &seed])
    }

    /// A number of the server's statistics.
    fn stat(&self, name: &str) -> Result<u64, String> {
        let mut stream =
            std::os::unix::net::UnixStream::connect(self.folder().join("socket")).map_err(|error| error.to_string())?;
        stream.write_all(b"stats\r\nquit\r\n").map_err(|error| error.to_string())?;
        let mut text = String::new();
        stream.read_to_string(&mut text).map_err(|error| error.to_string())?;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix("STAT ")?.strip_prefix(name)?.strip_prefix(' '));
        value
            .and_then(|value| value.trim().parse().ok())
            .ok_or_else(|| format!("stats has no {name}"))
    }

    fn stop(mut self) -> Result<(), String> {
        drop(self.server.stdin.take());
        let status = self.server.wait().map_err(|error| error.to_string())?;
        if status.success() {
            Ok(())
        } else {
            Err(format!("the server ended with {status}"))
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.server.stdin.take());
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// This program again, in this namespace.
fn again(arguments: &[&str]) -> Result<Child, String> {
    let program: PathBuf = std::env::current_exe().map_err(|error| error.to_string())?;
    std::process::Command::new(program)
        .args(arguments)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())
}

fn address() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, PORT))
}

/// The server's life: until its input ends.
fn serve(folder: &Path, evicting: bool, mutant: Option<Mutant>) -> Result<String, String> {
    mutants::set(mutant);
    let round = Round {
        evicting,
        mutant,
        lasts: Duration::ZERO,
        seed: 0,
    };
    let options = Options::new().memory(round.memory()).item_size_max(1 << 16);
    let cache = Cache::open(&Place::Path(folder.join("region")), &options).map_err(|error| error.to_string())?;
    let config = Config {
        tcp: vec![address()],
        udp: vec![address()],
        unix: Some(UnixSocket {
            path: folder.join("socket"),
            mode: 0o700,
        }),
        region_socket: Some(RegionSocket {
            path: folder.join("region-socket"),
            ..RegionSocket::default()
        }),
        kernel: Some(Kernel {
            tcp: true,
            interfaces: vec!["lo".to_owned()],
            memory: 1 << 20,
            ..Kernel::default()
        }),
        threads: 2,
        ..Config::default()
    };
    let server = Server::start(config, cache).map_err(|error| error.to_string())?;
    let handle = server.handle();
    std::fs::write(folder.join("server"), address().to_string()).map_err(|error| error.to_string())?;
    writeln!(std::io::stdout(), "ready").map_err(|error| error.to_string())?;
    std::thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        handle.shutdown();
    });
    server.run().map_err(|error| error.to_string())?;
    Ok("stopped".to_owned())
}

fn attach(folder: &Path) -> Result<Cache, String> {
    let options = Options::new().item_size_max(1 << 16);
    // Refused for a moment while the dead hold the places.
    let open = || Cache::open(&Place::Socket(folder.join("region-socket")), &options);
    let mut opened = open();
    for _ in 0..100 {
        if opened.is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
        opened = open();
    }
    opened.map_err(|error| error.to_string())
}

/// A worker's life: until it gets the order to stop, or is killed.
fn work(folder: &Path, role: &str, writer: u32, round: Round) -> Result<String, String> {
    mutants::set(round.mutant);
    system::step_back();
    let control = Control::open(folder);
    let random = Random::new(round.seed).fork(u64::from(writer));
    let mut worker = Worker {
        journal: Journal::create(folder, writer, CAPACITY),
        chooser: Chooser::new(random.fork(1), round.mix(), writer),
        random,
        control,
    };
    match role {
        "library" => {
            let cache = attach(folder)?;
            let session = cache.session().map_err(|error| error.to_string())?;
            worker.write(&mut Library::new(session, 0), round.evicting);
        }
        "network" | "tcp" => {
            let mut door = Network::new(folder.join("server"), 0);
            if !door.is_connected() {
                return Err("no server".to_owned());
            }
            match role {
                "network" => worker.write(&mut door, round.evicting),
                // On one connection, for which the kernel may answer.
                _ => worker.read(&mut door, round.mix()),
            }
            if !door.is_connected_still() {
                return Err("the connection has ended".to_owned());
            }
        }
        _ => worker.read(&mut Udp::new(writer), round.mix()),
    }
    Ok(String::new())
}

struct Worker {
    journal: Journal,
    chooser: Chooser,
    random: Random,
    control: Control,
}

impl Worker {
    fn goes_on(&self) -> bool {
        self.journal.has_room() && !self.control.is_stopped()
    }

    fn call(&mut self, call: Call, door: &mut impl Door) {
        self.journal.begin(&call);
        let answer = door.call(&call);
        self.journal.end(answer.as_ref());
        match answer {
            Some(Answer::Torn) => self.control.stop(),
            Some(answer) => self.chooser.learn(&call, &answer),
            None => {}
        }
    }

    /// Writes, and reads now and then, with pauses in which the kernel can come to answer.
    fn write(&mut self, door: &mut impl Door, without_pause: bool) {
        while self.goes_on() {
            let call = self.chooser.next_call();
            self.call(call, door);
            if !(without_pause && call.key.is_filler()) {
                std::thread::sleep(Duration::from_micros(self.random.below(4000)));
            }
        }
    }

    fn read(&mut self, door: &mut impl Door, mix: Mix) {
        while self.goes_on() {
            let n = u32::try_from(self.random.below(u64::from(mix.texts + mix.numbers))).unwrap_or(0);
            let key = if n < mix.texts { Key(n) } else { Key::number(n - mix.texts) };
            self.call(Call::new(Verb::Get, key), door);
            if self.random.below(8) == 0 {
                std::thread::sleep(Duration::from_micros(self.random.below(400)));
            }
        }
    }
}

/// A key is written as fast as can be.
fn hammer(folder: &Path, mutant: Option<Mutant>) -> Result<String, String> {
    mutants::set(mutant);
    let cache = attach(folder)?;
    let forever = || -> Result<String, String> {
        let mut session = cache.session().map_err(|error| error.to_string())?;
        loop {
            let stored = session.set(HAMMERED.as_bytes(), b"value", 0);
            stored.map_err(|error| error.to_string())?;
        }
    };
    std::thread::scope(|scope| {
        let hammering: Vec<_> = (0..HAMMERS).map(|_| scope.spawn(forever)).collect();
        let ended = hammering.into_iter().map(|thread| thread.join());
        ended
            .map(|result| result.unwrap_or_else(|_| Err("a panic".to_owned())))
            .collect()
    })
}

/// Reading over UDP, whichever door answers.
struct Udp {
    socket: UdpSocket,
    id: u16,
}

impl Udp {
    fn new(writer: u32) -> Self {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap_or_else(|error| panic!("a UDP socket: {error}"));
        socket
            .connect(address())
            .unwrap_or_else(|error| panic!("{}: {error}", address()));
        let _ = socket.set_read_timeout(Some(PATIENCE));
        Self {
            socket,
            id: u16::try_from(writer % 997).unwrap_or(0),
        }
    }

    /// The answer to `gets`; `None`: it was lost.
    fn ask(&mut self, key: &str) -> Option<Vec<u8>> {
        self.id = self.id.wrapping_add(1);
        let id = self.id.to_be_bytes();
        let request = [&id[..], &[0, 0, 0, 1, 0, 0], format!("gets {key}\r\n").as_bytes()].concat();
        self.socket.send(&request).ok()?;
        let mut datagram = [0; 2048];
        let mut parts: Vec<Option<Vec<u8>>> = Vec::new();
        while parts.is_empty() || parts.iter().any(Option::is_none) {
            let len = self.socket.recv(&mut datagram).ok()?;
            let number = |at: usize| usize::from(u16::from_be_bytes([datagram[at], datagram[at + 1]]));
            if datagram[..2] == id {
                // A long answer is user space's, and comes in parts.
                parts.resize(number(4), None);
                *parts.get_mut(number(2))? = Some(datagram.get(8..len)?.to_vec());
            }
        }
        Some(parts.into_iter().flatten().collect::<Vec<_>>().concat())
    }
}

/// What no server can have answered.
#[allow(clippy::print_stderr, reason = "a worker's standard error is the log")]
fn torn(call: &Call, bytes: &[u8]) -> Answer {
    let shown = harness::printable(&bytes[..bytes.len().min(200)]);
    eprintln!("{call:?} was answered by {} bytes that make no sense: {shown}", bytes.len());
    Answer::Torn
}

impl Door for Udp {
    fn call(&mut self, call: &Call) -> Option<Answer> {
        let answer = self.ask(&call.key.name(0))?;
        if answer == b"END\r\n" {
            return Some(Answer::Miss);
        }
        let read = || {
            let end = answer.windows(2).position(|two| two == b"\r\n")?;
            let head = std::str::from_utf8(answer.get(..end)?).ok()?;
            let ["VALUE", _, _, len, unique] = head.split(' ').collect::<Vec<_>>()[..] else {
                return None;
            };
            let (from, len): (usize, usize) = (end + 2, len.parse().ok()?);
            let value = value::read(call.key, answer.get(from..from + len)?)?;
            (answer.get(from + len..)? == b"\r\nEND\r\n").then_some(Answer::Hit {
                value,
                cas: unique.parse().ok()?,
            })
        };
        Some(read().unwrap_or_else(|| torn(call, &answer)))
    }
}
