//! A child process on the region: it writes items and tells its parent, eight bytes at a time, how far it is.

use crate::items;
use keyway_cache::{Cache, Options, Place, WriteError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

/// The first argument of a process that is a worker.
pub const ARGUMENT: &str = "--worker";
/// Items between two words to the parent.
const BATCH: u64 = 64;

/// What a worker is to do.
#[derive(Clone, Debug)]
pub struct Task {
    /// the region
    pub region: PathBuf,
    /// its first item
    pub first: u64,
    /// the item behind its last
    pub end: u64,
    /// bytes of a value
    pub value_len: usize,
    /// raise the region's memory to this before each batch; 0: do not
    pub grow_to: u64,
    /// evict when full; otherwise the first refusal is the end
    pub evict: bool,
    /// where the region is full and nothing is evicted: try again until it has grown
    pub patient: bool,
}

impl Task {
    fn to_args(&self) -> Vec<String> {
        vec![
            ARGUMENT.into(),
            self.region.display().to_string(),
            self.first.to_string(),
            self.end.to_string(),
            self.value_len.to_string(),
            self.grow_to.to_string(),
            u8::from(self.evict).to_string(),
            u8::from(self.patient).to_string(),
        ]
    }

    fn from_args(args: &[String]) -> Option<Self> {
        let [_, region, first, end, value_len, grow_to, evict, patient] = args else {
            return None;
        };
        Some(Self {
            region: region.into(),
            first: first.parse().ok()?,
            end: end.parse().ok()?,
            value_len: value_len.parse().ok()?,
            grow_to: grow_to.parse().ok()?,
            evict: evict == "1",
            patient: patient == "1",
        })
    }
}

/// Does what the arguments of a worker's process say.
///
/// # Errors
///
/// What went wrong, which its parent finds on standard error.
pub fn main(args: &[String]) -> Result<(), String> {
    let task = Task::from_args(args).ok_or("wrong arguments for a worker")?;
    let options = Options::new().evict(task.evict).item_size_max(1 << 16);
    let cache = Cache::open(&Place::Path(task.region.clone()), &options).map_err(|e| e.to_string())?;
    let mut session = cache.session().map_err(|e| e.to_string())?;
    let mut out = std::io::stdout().lock();
    let mut tell = |n: u64| {
        out.write_all(&n.to_le_bytes())
            .and_then(|()| out.flush())
            .map_err(|e| e.to_string())
    };
    let mut scratch = Vec::new();
    for n in task.first..task.end {
        if n % BATCH == 0 {
            tell(n)?;
            if task.grow_to > 0 {
                cache.grow(task.grow_to).map_err(|e| e.to_string())?;
            }
            // One of its own from before, while others split and grow around it.
            let earlier = task.first + (n - task.first) / 2;
            if n > task.first
                && cache.counters().evictions == 0
                && !items::is_there(&mut session, earlier, task.value_len, &mut scratch)?
            {
                return Err(format!("item {earlier} is gone"));
            }
        }
        loop {
            match items::store(&mut session, n, task.value_len, &mut scratch) {
                Ok(()) => break,
                Err(WriteError::OutOfMemory) if task.patient => std::thread::yield_now(),
                Err(WriteError::OutOfMemory) if !task.evict => return tell(n),
                Err(e) => return Err(e.to_string()),
            }
        }
    }
    tell(task.end)
}

/// A worker that was started.
pub struct Worker {
    child: Child,
    task: Task,
    told: Arc<AtomicU64>,
    listener: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts one.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn start(task: Task) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|e| e.to_string())?;
        let mut child = Command::new(program)
            .args(task.to_args())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .map_err(|e| e.to_string())?;
        let told = Arc::new(AtomicU64::new(task.first));
        let mut pipe = child.stdout.take().ok_or("no pipe")?;
        let word = Arc::clone(&told);
        let listener = std::thread::spawn(move || {
            let mut bytes = [0; 8];
            while pipe.read_exact(&mut bytes).is_ok() {
                word.store(u64::from_le_bytes(bytes), Ordering::Release);
            }
        });
        Ok(Self {
            child,
            task,
            told,
            listener: Some(listener),
        })
    }

    /// The item before which all are acknowledged.
    pub fn told(&self) -> u64 {
        self.told.load(Ordering::Acquire)
    }

    /// What it was asked to do.
    pub fn task(&self) -> &Task {
        &self.task
    }

    /// SIGKILL. What it had acknowledged.
    ///
    /// # Errors
    ///
    /// The system's.
    pub fn kill(mut self) -> Result<u64, String> {
        self.child.kill().map_err(|e| e.to_string())?;
        self.end().map(|_| self.told())
    }

    /// Waits for its end. What it had acknowledged.
    ///
    /// # Errors
    ///
    /// It ended badly.
    pub fn finish(mut self) -> Result<u64, String> {
        let status = self.end()?;
        if status.success() {
            Ok(self.told())
        } else {
            Err(format!(
                "a worker on items {} to {} ended with {status}",
                self.task.first, self.task.end
            ))
        }
    }

    /// Whether it has ended.
    pub fn is_over(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)) | Err(_))
    }

    fn end(&mut self) -> Result<ExitStatus, String> {
        let status = self.child.wait().map_err(|e| e.to_string())?;
        if let Some(listener) = self.listener.take() {
            let _ = listener.join();
        }
        Ok(status)
    }
}

/// A region's file.
pub fn place(path: &Path) -> Place {
    Place::Path(path.to_path_buf())
}
