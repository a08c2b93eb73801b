//! One round: a server, clients and a scribbler on a fresh region, and what became of them.

use crate::ROLE;
use crate::scribbler::Part;
use crate::values::{KEYS, Tally, flags_of, key, value, version_of};
use harness::{DEADLINE, Kind, Random, ServeOptions, Server, Transport, Wire, wait_until};
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Processes that use the library.
const CLIENTS: u64 = 2;
/// Memory of the region: small, so that segments are reclaimed all the time.
const MEMORY_MB: u32 = 8;

/// What a round is to be.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// what is scribbled over
    pub part: Part,
    /// whether items carry checksums
    pub checksums: bool,
    /// how long
    pub time: Duration,
    /// of all random choices
    pub seed: u64,
}

/// Plays a round: what the clients saw, or who crashed or hung.
///
/// # Errors
///
/// Who crashed or hung, and how.
pub fn play(round: Round) -> Result<Tally, String> {
    let options = ServeOptions {
        memory_mb: MEMORY_MB,
        threads: 2,
        keyway_arguments: if round.checksums {
            vec!["--checksums".to_owned()]
        } else {
            Vec::new()
        },
        ..ServeOptions::default()
    };
    let mut server = Server::start(Kind::Keyway, &options);
    let region = server.region().to_path_buf();
    let clients: Vec<Player> = (1..=CLIENTS)
        .map(|n| Player::start(&["client", &text(&region), &(round.seed % 1000 * 10 + n).to_string()]))
        .collect();
    let network = Network::start(server.connect(Transport::Tcp), round.seed);
    // Before the first stray byte every process has something to lose.
    wait_until("the clients begin", DEADLINE, || {
        clients.iter().all(|c| c.words() > 0).then_some(())
    });
    let scribbler = Player::start(&["scribbler", &text(&region), round.part.name(), &round.seed.to_string()]);
    let outcome = watch(round, &mut server, &clients, &network);
    scribbler.end("the scribbler")?;
    outcome?;
    let mut tally = network.end()?;
    for client in clients {
        tally.add(client.end("a client")?);
    }
    // Whatever the region is by now, the server answers and ends at a signal.
    let version = server
        .connect(Transport::Tcp)
        .ask("version")
        .map_err(|e| format!("the server: {e}"))?;
    if !version.starts_with("VERSION ") {
        return Err(format!("the server answers {version}"));
    }
    let status = server.terminate();
    match status.code() {
        Some(_) => Ok(tally),
        None => Err(format!("the server ended with {status}: {}", server.log())),
    }
}

/// Lets it go on for its time, as long as every process does.
fn watch(round: Round, server: &mut Server, clients: &[Player], network: &Network) -> Result<(), String> {
    let begun = Instant::now();
    let mut seen: Vec<(u64, Instant)> = vec![(0, begun); clients.len() + 1];
    while begun.elapsed() < round.time {
        std::thread::sleep(Duration::from_millis(20));
        if let Some(status) = server.ended() {
            return Err(format!("the server ended with {status}: {}", server.log()));
        }
        let counts = clients.iter().map(Player::words).chain([network.answers.load(Relaxed)]);
        for ((last, at), now) in seen.iter_mut().zip(counts) {
            if now != *last {
                (*last, *at) = (now, Instant::now());
            } else if at.elapsed() > DEADLINE {
                return Err(format!("nothing from a client for {DEADLINE:?}"));
            }
        }
    }
    Ok(())
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// A process of this program that plays a part until its input ends.
struct Player {
    child: Child,
    words: Arc<AtomicU64>,
    listener: JoinHandle<Tally>,
}

impl Player {
    fn start(role: &[&str]) -> Self {
        let program = std::env::current_exe().expect("this program has a path");
        let mut child = Command::new(program)
            .arg(ROLE)
            .args(role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program starts");
        let mut said = child.stdout.take().expect("piped");
        let words = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&words);
        let listener = std::thread::spawn(move || {
            let mut last = Tally::default();
            let mut bytes = [0; 40];
            while said.read_exact(&mut bytes).is_ok() {
                let word = |i: usize| u64::from_le_bytes(std::array::from_fn(|b| bytes[i * 8 + b]));
                last = Tally::from_words(std::array::from_fn(word));
                counter.fetch_add(1, Relaxed);
            }
            last
        });
        Self { child, words, listener }
    }

    /// How often it has told something.
    fn words(&self) -> u64 {
        self.words.load(Relaxed)
    }

    /// Ends its input and waits for its end.
    fn end(mut self, who: &str) -> Result<Tally, String> {
        drop(self.child.stdin.take());
        let begun = Instant::now();
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if begun.elapsed() < DEADLINE => std::thread::sleep(Duration::from_millis(2)),
                _ => {
                    let _ = self.child.kill();
                    let _ = self.child.wait();
                    return Err(format!("{who} hangs"));
                }
            }
        };
        let tally = self.listener.join().map_err(|_| format!("{who} is not understood"))?;
        status.success().then_some(tally).ok_or(format!("{who} ended with {status}"))
    }
}

/// A client of the server, by memcached's protocol.
struct Network {
    over: Arc<AtomicBool>,
    answers: Arc<AtomicU64>,
    thread: JoinHandle<Result<Tally, String>>,
}

impl Network {
    fn start(wire: Wire, seed: u64) -> Self {
        let (over, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stop, count) = (Arc::clone(&over), Arc::clone(&answers));
        let thread = std::thread::spawn(move || talk(wire, seed, &stop, &count));
        Self { over, answers, thread }
    }

    fn end(self) -> Result<Tally, String> {
        self.over.store(true, Relaxed);
        self.thread.join().map_err(|_| "the network's client panicked".to_owned())?
    }
}

fn talk(mut wire: Wire, seed: u64, over: &AtomicBool, answers: &AtomicU64) -> Result<Tally, String> {
    let mut random = Random::new(seed ^ 0xFEED);
    let mut tally = Tally::default();
    let mut versions = 0;
    let lost = |e: std::io::Error| format!("the server's connection: {e}");
    while !over.load(Relaxed) {
        let number = random.below(KEYS);
        if random.below(3) == 0 {
            versions += 1;
            let version = 1 << 60 | versions;
            let bytes = value(number, version);
            let mut request = format!("set {} {} 0 {}\r\n", key(number), flags_of(version), bytes.len()).into_bytes();
            request.extend_from_slice(&bytes);
            request.extend_from_slice(b"\r\n");
            wire.send(&request).map_err(lost)?;
            let line = wire.line().map_err(lost)?;
            tally.errors += u64::from(!line.starts_with(b"STORED"));
        } else {
            wire.send(format!("get {}\r\n", key(number)).as_bytes()).map_err(lost)?;
            receive(&mut wire, number, &mut tally).map_err(lost)?;
        }
        answers.fetch_add(1, Relaxed);
    }
    Ok(tally)
}

/// Takes the answer to a get.
fn receive(wire: &mut Wire, number: u64, tally: &mut Tally) -> std::io::Result<()> {
    let line = String::from_utf8_lossy(&wire.line()?).trim_end().to_owned();
    let words: Vec<&str> = line.split(' ').collect();
    match words.as_slice() {
        ["END"] => tally.none += 1,
        ["VALUE", name, flags, len] => {
            let len: usize = len.parse().map_err(std::io::Error::other)?;
            let bytes = wire.exactly(len)?;
            wire.exactly(2)?;
            wire.line()?;
            let version = version_of(number, &bytes);
            let is_right = *name == key(number) && version.is_some_and(|v| *flags == flags_of(v).to_string());
            *(if is_right { &mut tally.right } else { &mut tally.wrong }) += 1;
        }
        _ => tally.errors += 1,
    }
    Ok(())
}
