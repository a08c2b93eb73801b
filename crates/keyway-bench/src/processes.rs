//! The load generator for a region that several processes share: each process is a [`Caller`] of its own.
//!
//! The parent gives each child a [`Job`] as a line of JSON, hears that all of them are ready, starts them, and takes what each of
//! them gives, another line of JSON. A child that ends early or says nothing is a failure of the measurement, not a wait.

use crate::calls::Caller;
use crate::load::Load;
use crate::machine;
use crate::mix::{Stream, Workload};
use crate::ran::{Ran, Window};
use crate::servers::end_with_parent;
use crate::workload::Ranks;
use keyway::{Cache, Options, Place};
use serde::{Deserialize, Serialize};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{self, Receiver};
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

/// The child's part: takes a job, says when it is ready, starts when it is told, and says what came out.
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
    let options = Options {
        existing_only: true,
        prefault: true,
        ..Options::default()
    };
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

/// Runs all jobs at the same time, each in a child of this process.
pub fn run(program: &Path, jobs: &[Job]) -> io::Result<Ran> {
    let mut workers = jobs
        .iter()
        .map(|job| Worker::start(program, job))
        .collect::<io::Result<Vec<_>>>()?;
    for worker in &workers {
        let line = worker.line(PATIENCE)?;
        if line != READY {
            return Err(io::Error::other(format!("a process answered {line:?}")));
        }
    }
    for worker in &mut workers {
        worker
            .child
            .stdin
            .as_mut()
            .ok_or(io::ErrorKind::BrokenPipe)?
            .write_all(b"go\n")?;
    }
    let begun = Instant::now();
    let mut all = Ran::default();
    for (number, (worker, job)) in workers.iter().zip(jobs).enumerate() {
        // An open loop that falls behind takes at most twice its time.
        let longest = job.warmup + job.length * 2 + PATIENCE;
        match worker.line(longest.saturating_sub(begun.elapsed())) {
            Ok(line) => all.add(&serde_json::from_str(&line)?),
            Err(e) => {
                all.wrong.connections += 1;
                all.wrong.tell(|| format!("process {}: {e}", number + 1));
            }
        }
    }
    Ok(all)
}

/// A child, killed with its handle.
struct Worker {
    child: Child,
    lines: Receiver<String>,
}

impl Worker {
    fn start(program: &Path, job: &Job) -> io::Result<Self> {
        let mut command = Command::new(program);
        command
            .arg0("keyway")
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = end_with_parent(&mut command).spawn()?;
        let output = child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let worker = Self { child, lines };
        let line = format!("{}\n", serde_json::to_string(job)?);
        worker
            .child
            .stdin
            .as_ref()
            .ok_or(io::ErrorKind::BrokenPipe)?
            .write_all(line.as_bytes())?;
        Ok(worker)
    }

    fn line(&self, patience: Duration) -> io::Result<String> {
        self.lines.recv_timeout(patience).map_err(|e| match e {
            mpsc::RecvTimeoutError::Timeout => io::Error::new(io::ErrorKind::TimedOut, "it gives no answer"),
            mpsc::RecvTimeoutError::Disconnected => io::Error::new(io::ErrorKind::BrokenPipe, "it ended early"),
        })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
