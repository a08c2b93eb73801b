//! Watchers (protocol.txt, "Watchers"): connections that get a log line for each event in this server.
//!
//! A worker that reports an event formats the line and puts it into each watcher's bounded queue. The worker that owns the watcher's
//! connection sends it. A watcher that reads too slowly loses lines, gets their number (`skipped=N`), and delays no other connection.
//! This server does not see what other doors do to the region or evict from it.

use std::io::Write;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use crate::shared::{lock, unix_time};

/// Most bytes in one watcher's queue (memcached's `watcher_logbuf_size`).
pub(crate) const QUEUE_MAX: usize = 256 * 1024;
/// Most watchers at a time (as memcached).
const WATCHERS_MAX: usize = 20;

/// A set of event kinds, one bit each.
pub(crate) type Events = u32;
pub(crate) const FETCHERS: Events = 1;
pub(crate) const MUTATIONS: Events = 1 << 1;
pub(crate) const CONNEVENTS: Events = 1 << 2;
pub(crate) const DELETIONS: Events = 1 << 3;
pub(crate) const EVICTIONS: Events = 1 << 4;

/// The events that the arguments of `watch` select (none: fetchers), or the line that refuses them.
pub(crate) fn parse(what: &[u8]) -> Result<Events, &'static [u8]> {
    let mut events = 0;
    for word in what.split(|&b| b == b' ').filter(|word| !word.is_empty()) {
        events |= match word {
            b"fetchers" => FETCHERS,
            b"mutations" => MUTATIONS,
            b"connevents" => CONNEVENTS,
            b"deletions" => DELETIONS,
            b"evictions" => EVICTIONS,
            _ => return Err(b"ERROR\r\n"),
        };
    }
    Ok(if events == 0 { FETCHERS } else { events })
}

/// All watchers of a server.
#[derive(Default)]
pub(crate) struct Hub {
    /// all events that any watcher wants, so that without watchers an event costs one relaxed load
    wanted: AtomicU32,
    watchers: Mutex<Vec<Arc<Watcher>>>,
    /// number of the next line (`gid`)
    next_line: AtomicU64,
    pub(crate) sent: AtomicU64,
    pub(crate) skipped: AtomicU64,
}

/// A connection that watches.
pub(crate) struct Watcher {
    events: Events,
    /// the worker that serves the connection, and its token there
    pub(crate) worker: usize,
    pub(crate) token: usize,
    queue: Mutex<Queue>,
}

#[derive(Default)]
struct Queue {
    lines: Vec<u8>,
    skipped: u64,
}

impl Hub {
    /// Whether any watcher wants one of these events.
    pub(crate) fn wants(&self, events: Events) -> bool {
        // Relaxed: a new watcher may miss requests of the same moment.
        self.wanted.load(Relaxed) & events != 0
    }

    /// Lines queued for watchers so far, sent or not.
    pub(crate) fn lines(&self) -> u64 {
        self.next_line.load(Relaxed)
    }

    pub(crate) fn count(&self) -> usize {
        lock(&self.watchers).len()
    }

    /// A new watcher, or `None` if there are too many.
    pub(crate) fn add(&self, events: Events, worker: usize, token: usize) -> Option<Arc<Watcher>> {
        let mut watchers = lock(&self.watchers);
        if watchers.len() >= WATCHERS_MAX {
            return None;
        }
        let watcher = Arc::new(Watcher {
            events,
            worker,
            token,
            queue: Mutex::default(),
        });
        watchers.push(Arc::clone(&watcher));
        self.wanted.fetch_or(events, Relaxed);
        Some(watcher)
    }

    pub(crate) fn remove(&self, watcher: &Arc<Watcher>) {
        let mut watchers = lock(&self.watchers);
        watchers.retain(|w| !Arc::ptr_eq(w, watcher));
        self.wanted
            .store(watchers.iter().fold(0, |events, w| events | w.events), Relaxed);
    }

    /// Queues one line for the watchers of `event`; `text` writes what follows the time and number. `wake` is called for each
    /// watcher whose queue was empty.
    pub(crate) fn send(&self, event: Events, text: impl FnOnce(&mut Vec<u8>), mut wake: impl FnMut(&Watcher)) {
        if !self.wants(event) {
            return;
        }
        let since_epoch = unix_time();
        let number = self.next_line.fetch_add(1, Relaxed) + 1;
        let mut line = Vec::with_capacity(128);
        let _ = write!(
            line,
            "ts={}.{:06} gid={number} ",
            since_epoch.as_secs(),
            since_epoch.subsec_micros()
        );
        text(&mut line);
        line.push(b'\n');
        for watcher in lock(&self.watchers).iter() {
            if watcher.events & event == 0 {
                continue;
            }
            let mut queue = lock(&watcher.queue);
            if queue.lines.len() + line.len() > QUEUE_MAX {
                queue.skipped += 1;
                self.skipped.fetch_add(1, Relaxed);
                continue;
            }
            if queue.skipped > 0 {
                let skipped = std::mem::take(&mut queue.skipped);
                let _ = writeln!(queue.lines, "skipped={skipped}");
            }
            let was_empty = queue.lines.is_empty();
            queue.lines.extend_from_slice(&line);
            self.sent.fetch_add(1, Relaxed);
            drop(queue);
            if was_empty {
                wake(watcher);
            }
        }
    }
}

impl Watcher {
    pub(crate) fn events(&self) -> Events {
        self.events
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
    fn arguments_are_parsed() {
        assert_eq!(parse(b""), Ok(FETCHERS));
        assert_eq!(parse(b"mutations  deletions"), Ok(MUTATIONS | DELETIONS));
        assert_eq!(parse(b"nonsense"), Err(&b"ERROR\r\n"[..]));
        assert_eq!(parse(b"fetchers evictions"), Ok(FETCHERS | EVICTIONS));
    }

    #[test]
    fn a_watcher_gets_what_it_wants_and_is_woken_once() {
        let hub = Hub::default();
        let watcher = hub.add(MUTATIONS, 0, 7).unwrap();
        let mut woken = 0;
        hub.send(FETCHERS, |_| unreachable!("no watcher wants it"), |_| woken += 1);
        hub.send(MUTATIONS, |line| line.extend_from_slice(b"one"), |_| woken += 1);
        hub.send(MUTATIONS, |line| line.extend_from_slice(b"two"), |_| woken += 1);
        let mut out = Vec::new();
        watcher.take(&mut out);
        let text = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), woken), (2, 1));
        assert!(lines[0].starts_with("ts=") && lines[0].ends_with(" gid=1 one"), "{text}");
        hub.remove(&watcher);
        assert!(!hub.wants(MUTATIONS));
    }

    #[test]
    fn a_slow_watcher_loses_lines_and_gets_their_number() {
        let hub = Hub::default();
        let watcher = hub.add(FETCHERS, 0, 0).unwrap();
        let send = || hub.send(FETCHERS, |line| line.resize(QUEUE_MAX / 2, b'x'), |_| ());
        (0..5).for_each(|_| send());
        let mut out = Vec::new();
        watcher.take(&mut out);
        assert!(out.len() <= QUEUE_MAX);
        assert_eq!(hub.skipped.load(Relaxed), 4);
        send();
        out.clear();
        watcher.take(&mut out);
        assert!(out.starts_with(b"skipped=4\n"));
    }
}
