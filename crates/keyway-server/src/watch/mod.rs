//! Watchers (protocol.txt, "Watchers"): connections that get a log line for each event in the region, through whatever door it came.
//!
//! While there are watchers, one thread reads the events that the sessions of all processes write into the region, and puts a line for each
//! into each watcher's bounded queue. The worker that owns the watcher's connection sends it. A watcher that reads too slowly loses lines,
//! gets their number (`skipped=N`), and delays no other connection. So does a watcher of events that the region could not hold; then the
//! line says whose they were.

mod asked;

pub use asked::{WatchAsked, WatchUnknown};

use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use keyway_cache::Cache;
use keyway_cache::watch::{Delivery, Watcher as Source};

use crate::basics::{lock, unix_time};
use crate::shared::{Life, Notice, Workers};

/// Most bytes in one watcher's queue (memcached's `watcher_logbuf_size`).
pub(crate) const QUEUE_MAX: usize = 256 * 1024;
/// Most watchers at a time (as memcached).
const WATCHERS_MAX: usize = 20;
/// How long the thread sleeps between two looks at the region: the shorter, the more was there at the last one.
const REST: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(5));

/// All watchers of a server.
#[derive(Default)]
pub(crate) struct Hub {
    /// locked before the others
    source: Mutex<Option<Source>>,
    watchers: Mutex<Vec<Arc<Watcher>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// number of the next line (`gid`)
    next_line: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) skipped: AtomicU64,
}

/// A connection that watches.
pub(crate) struct Watcher {
    asked: WatchAsked,
    /// the worker that serves the connection, and its token there
    pub(crate) worker: usize,
    pub(crate) token: usize,
    queue: Mutex<LineQueue>,
}

#[derive(Default)]
struct LineQueue {
    lines: Vec<u8>,
    /// events that the watcher has not got, whose loss no line reports yet
    skipped: u64,
}

impl LineQueue {
    /// Queues a line, if there is room. Otherwise the events that it tells of are counted: one, or as many as it says are lost. Returns
    /// whether the queue was empty.
    fn push(&mut self, line: &[u8], events: u64, hub: &Hub) -> bool {
        if self.lines.len() + line.len() > QUEUE_MAX {
            self.skipped = self.skipped.saturating_add(events);
            hub.skipped.fetch_add(1, Relaxed);
            return false;
        }
        let was_empty = self.lines.is_empty();
        if self.skipped > 0 {
            let skipped = std::mem::take(&mut self.skipped);
            let _ = writeln!(self.lines, "skipped={skipped}");
        }
        self.lines.extend_from_slice(line);
        hub.sent.fetch_add(1, Relaxed);
        was_empty
    }
}

impl Hub {
    /// Lines queued for watchers so far, sent or not.
    pub(crate) fn lines(&self) -> u64 {
        self.next_line.load(Relaxed)
    }

    pub(crate) fn count(&self) -> usize {
        lock(&self.watchers).len()
    }

    /// A new watcher, or `None` if there are too many, or if this process cannot watch.
    pub(crate) fn add(
        self: &Arc<Self>,
        asked: WatchAsked,
        (worker, token): (usize, usize),
        cache: &Cache,
        (workers, life): (&Arc<Workers>, &Arc<Life>),
    ) -> Option<Arc<Watcher>> {
        let mut source = lock(&self.source);
        let mut watchers = lock(&self.watchers);
        if watchers.len() >= WATCHERS_MAX {
            return None;
        }
        match &mut *source {
            Some(source) => source.watch_also(asked.kinds()),
            None => *source = Some(cache.watcher(asked.kinds())?),
        }
        let watcher = Arc::new(Watcher {
            asked,
            worker,
            token,
            queue: Mutex::default(),
        });
        watchers.push(Arc::clone(&watcher));
        let mut thread = lock(&self.thread);
        if thread.as_ref().is_none_or(JoinHandle::is_finished) {
            let (hub, workers, life) = (Arc::clone(self), Arc::clone(workers), Arc::clone(life));
            let started = std::thread::Builder::new()
                .name("keyway-watch".to_owned())
                .spawn(move || run(&hub, &workers, &life));
            match started {
                Ok(started) => *thread = Some(started),
                Err(error) => {
                    log::warn!("watch: cannot start a thread: {error}");
                    watchers.pop();
                    return None;
                }
            }
        }
        Some(watcher)
    }

    pub(crate) fn remove(&self, watcher: &Arc<Watcher>) {
        let mut source = lock(&self.source);
        let mut watchers = lock(&self.watchers);
        watchers.retain(|w| !Arc::ptr_eq(w, watcher));
        let kinds = watchers.iter().fold(0, |kinds, watcher| kinds | watcher.asked.kinds());
        match kinds {
            0 => *source = None,
            kinds => source.iter_mut().for_each(|source| source.watch_only(kinds)),
        }
    }

    /// Reads what has happened, and queues it for the watchers. Returns how many events were read; `None`: there is no watcher.
    pub(crate) fn pump(&self, workers: &Workers) -> Option<usize> {
        let mut told = Vec::new();
        // Held to the end, so that the lines of two calls are not mixed.
        let mut source = lock(&self.source);
        let polled = source.as_mut()?.poll(&mut told);
        let watchers = lock(&self.watchers).clone();
        if polled.gap {
            self.send_to_all(b"type=gap", &watchers, workers);
        }
        for one in told {
            match one {
                Delivery::Event(event) => {
                    let takers = watchers.iter().filter(|watcher| watcher.asked.takes(&event));
                    let (mut plain, mut detailed) = (Vec::new(), Vec::new());
                    for watcher in takers {
                        let line = if watcher.asked.is_detailed() {
                            &mut detailed
                        } else {
                            &mut plain
                        };
                        if line.is_empty() {
                            self.begin(line);
                            watcher.asked.write(&event, line);
                            line.push(b'\n');
                        }
                        queue(watcher, line, 1, self, workers);
                    }
                }
                Delivery::Lost { slot, pid, count } => {
                    self.skipped.fetch_add(count, Relaxed);
                    let line = format!("skipped={count} session={slot} pid={pid}\n");
                    watchers
                        .iter()
                        .for_each(|watcher| queue(watcher, line.as_bytes(), count, self, workers));
                }
            }
        }
        Some(polled.read)
    }

    fn send_to_all(&self, text: &[u8], watchers: &[Arc<Watcher>], workers: &Workers) {
        let mut line = Vec::new();
        self.begin(&mut line);
        line.extend_from_slice(text);
        line.push(b'\n');
        watchers.iter().for_each(|watcher| queue(watcher, &line, 1, self, workers));
    }

    /// The time, and the number of the line.
    fn begin(&self, line: &mut Vec<u8>) {
        asked::begin(line, unix_time(), self.next_line.fetch_add(1, Relaxed) + 1);
    }

    /// The thread may end, if there still is no watcher. From then on, a new watcher starts another one, even if this one has not ended yet.
    fn may_end(&self) -> bool {
        let source = lock(&self.source);
        let is_idle = source.is_none();
        if is_idle {
            *lock(&self.thread) = None;
        }
        is_idle
    }

    /// Waits for the thread, which ends soon because the server stops.
    pub(crate) fn join(&self) {
        let thread = lock(&self.thread).take();
        if let Some(thread) = thread {
            // A panic has been reported by the thread's own end.
            let _ = thread.join();
        }
        *lock(&self.source) = None;
    }
}

/// Queues a line that tells of so many events, and wakes the watcher's worker if its queue was empty.
fn queue(watcher: &Watcher, line: &[u8], events: u64, hub: &Hub, workers: &Workers) {
    if lock(&watcher.queue).push(line, events, hub) {
        workers.send(watcher.worker, Notice::Turn(watcher.token));
    }
}

/// The thread: until there is no watcher, or the server stops.
fn run(hub: &Hub, workers: &Workers, life: &Life) {
    let (least, most) = REST;
    let mut rest = least;
    while !life.is_stopping() {
        match hub.pump(workers) {
            None if hub.may_end() => return,
            // A watcher has come in the meantime.
            None => {}
            Some(0) => rest = (2 * rest).min(most),
            Some(_) => rest = least,
        }
        std::thread::park_timeout(rest);
    }
}

impl Watcher {
    pub(crate) fn asked(&self) -> &WatchAsked {
        &self.asked
    }

    /// Moves the queued lines to `out`.
    pub(crate) fn take(&self, out: &mut Vec<u8>) {
        out.append(&mut lock(&self.queue).lines);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_about_to_end_is_not_relied_on() {
        let (hub, (end, ended)) = (Hub::default(), std::sync::mpsc::channel::<()>());
        let thread = std::thread::spawn(move || ended.recv().unwrap_or(()));
        *lock(&hub.thread) = Some(thread);
        assert!(hub.may_end());
        let has_thread = lock(&hub.thread).is_some();
        drop(end);
        assert!(!has_thread, "a watcher that comes now would wait for this thread's lines");
    }

    #[test]
    fn a_slow_watcher_loses_lines_and_gets_their_number() {
        let (hub, mut queue) = (Hub::default(), LineQueue::default());
        let line = vec![b'x'; QUEUE_MAX / 2];
        let woken: Vec<bool> = (0..5).map(|_| queue.push(&line, 1, &hub)).collect();
        assert_eq!(woken, [true, false, false, false, false]);
        assert_eq!((queue.lines.len(), hub.skipped.load(Relaxed)), (QUEUE_MAX, 3));
        queue.lines.clear();
        assert!(queue.push(b"next\n", 1, &hub));
        assert_eq!(queue.lines, b"skipped=3\nnext\n");
        // What a line that has no room says to be lost is lost all the same.
        queue.lines = vec![b'x'; QUEUE_MAX];
        assert!(!queue.push(b"skipped=70 session=1 pid=2\n", 70, &hub));
        queue.lines.clear();
        assert!(queue.push(b"next\n", 1, &hub));
        assert_eq!(queue.lines, b"skipped=70\nnext\n");
    }
}
