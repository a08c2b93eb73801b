//! The load generator for a region that several processes share: each process is a [`Caller`] of its own.
//!
//! The parent gives each child a [`Job`] as a line of JSON, hears that all of them are ready, starts them, and takes what each of
//! them gives, another line of JSON. A child that ends early or says nothing is a failure of the measurement, not a wait.

use crate::calls::Caller;
use crate::load::Load;
use crate::machine;
use crate::measurement::{Measurement, Window};
use crate::mix::{Stream, Workload};
use crate::servers::end_with_parent;
use crate::workload::Ranks;
use keyway_cache::{Cache, Options, Place};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

/// The hidden command with which the program works for its parent.
pub const COMMAND: &str = "bench-worker";
const READY: &str = "ready";
/// How long a child may take to get ready, and to answer after its time.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a child does.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// the region's file
    pub region: PathBuf,
    /// what is asked
    pub workload: Workload,
    /// how many items there are
    pub items: u64,
    /// open loop: operations a second
    pub rate: Option<f64>,
    /// tells this process's operations from those of others
    pub thread: u64,
    /// what its sequence is drawn from
    pub seed: u64,
    /// before measuring
    pub warmup: Duration,
    /// of the measurement
    pub length: Duration,
    /// where it may run; empty: anywhere
    pub cpus: Vec<usize>,
}

/// The child's part: takes a job, says when it is ready, starts on a second line, and writes what it measured.
///
/// # Errors
///
/// The job makes no sense, or its region cannot be opened.
pub fn work(mut input: impl BufRead, mut output: impl Write) -> io::Result<()> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let job: Job = serde_json::from_str(&line)?;
    if !job.cpus.is_empty() {
        machine::pin(&job.cpus)?;
    }
    let options = Options::new().existing_only(true).prefault(true);
    let cache = Cache::open(&Place::Path(job.region), &options).map_err(io::Error::other)?;
    let newest = Arc::new(AtomicU64::new(job.items));
    let load = Load {
        stream: Stream::new(
            &job.workload,
            job.items,
            &Ranks::new(job.workload.access, job.items),
            newest,
            job.seed,
        ),
        items: job.workload.items(job.items),
        fill: job.workload.fill,
        rate: job.rate,
        thread: job.thread,
    };
    let caller = Caller::new(cache.session().map_err(io::Error::other)?, load);
    writeln!(output, "{READY}")?;
    output.flush()?;
    input.read_line(&mut line)?;
    let ran = caller.run(Window::begin(job.warmup, job.length));
    writeln!(output, "{}", serde_json::to_string(&ran)?)
}

/// Runs all jobs at the same time, each in a child of this process. The first that ends early ends all.
pub fn run(program: &Path, jobs: &[Job]) -> io::Result<Measurement> {
    let (sender, lines) = mpsc::channel();
    let mut workers = Vec::with_capacity(jobs.len());
    for (number, job) in jobs.iter().enumerate() {
        workers.push(Worker::start(program, job, number + 1, sender.clone())?);
    }
    drop(sender);
    for line in heard(&lines, jobs.len(), PATIENCE) {
        let line = line.map_err(io::Error::other)?;
        if line != READY {
            return Err(io::Error::other(format!("a process answered {line:?}")));
        }
    }
    for worker in &mut workers {
        worker.0.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?.write_all(b"go\n")?;
    }
    // An open loop that falls behind takes at most twice its time.
    let longest = jobs.iter().map(|job| job.warmup + job.length * 2 + PATIENCE).max();
    let mut all = Measurement::default();
    for line in heard(&lines, jobs.len(), longest.unwrap_or_default()) {
        match line {
            Ok(line) => all.add(&serde_json::from_str(&line)?),
            Err(why) => {
                all.wrong.connections += 1;
                all.wrong.describe(|| why);
                break;
            }
        }
    }
    Ok(all)
}

/// What a child says, or why it says no more.
type Line = Result<String, String>;

/// The next lines, one of each child, as long as patience lasts.
fn heard(lines: &Receiver<Line>, count: usize, patience: Duration) -> impl Iterator<Item = Line> + '_ {
    let until = Instant::now() + patience;
    (0..count).map(move |_| {
        let line = lines.recv_timeout(until.saturating_duration_since(Instant::now()));
        line.unwrap_or_else(|_| Err("a process gives no answer".to_owned()))
    })
}

/// A child, killed with its handle.
struct Worker(Child);

impl Worker {
    fn start(program: &Path, job: &Job, number: usize, lines: Sender<Line>) -> io::Result<Self> {
        let mut command = Command::new(program);
        command
            .arg0("keyway")
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut worker = Self(end_with_parent(&mut command).spawn()?);
        let output = worker.0.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        std::thread::spawn(move || {
            /// That it is ready, and what it measured.
            const SAYS: usize = 2;
            let mut said = 0;
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                said += 1;
                let _ = lines.send(Ok(line)); // nothing waits for it any more
            }
            if said < SAYS {
                let _ = lines.send(Err(format!("process {number}: it ended early")));
            }
        });
        let input = worker.0.stdin.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        input.write_all(format!("{}\n", serde_json::to_string(job)?).as_bytes())?;
        Ok(worker)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
