//! `keyway watch`: what happens in a region, a line for each event, from the region itself or from a server.

use std::io::{self, BufRead, BufReader, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use keyway_cache::watch::{Delivery, Watcher};
use keyway_cache::{Cache, Session};
use keyway_proto::client::{self, Received};
use keyway_server::WatchAsked;

use crate::commands::{self, Which};
use crate::exit::{self, Failure};
use crate::items::shown;
use crate::wire::{self, Access, Client};

/// Most bytes of lines that wait for the output.
const QUEUE_MAX: usize = 1 << 20;
/// How long the region is not looked at, while something happens and while nothing does.
const REST: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(5));
/// How often sessions of dead processes are looked for.
const UPKEEP_EVERY: Duration = Duration::from_secs(1);

pub(crate) const HELP: &str = "\
Events:
  fetchers     look-ups, also those that a change makes first (as memcached's
               lines)
  mutations    stores, with their results
  updates      other changes of items: incr, decr, touch, marks
  deletions    items that were deleted
  evictions    items that were evicted: whether they were ever fetched, seconds
               left and since the last access, size
  expirations  items whose time was over, when their place was reclaimed
  connevents   connections to servers, and programs' sessions, that begin and
               end
  all          all of them [default]

The lines tell of every door: programs with the library, programs written for
libmemcached, and all servers. The kernel door's own answers are not told, nor
are gets by processes that may only read the region. For each key, the lines of
its changes are in the order of the changes. Events are written into the region
only while a watcher looks, over the oldest ones. What was overwritten before it
was read is counted:
  skipped=N session=S pid=P   N events of this session are missing about here
  skipped=N                   N events are missing above: the output was not
                              read fast enough
  ts=... gid=N type=gap       this program was stopped for so long that the
                              sessions took it for dead: what is missing is
                              unknown

Examples:
  keyway watch
      everything that happens in the default region
  keyway watch mutations deletions --prefix user:
      changes of the keys that begin with user:
  keyway watch evictions --seconds 60 > evicted
      what is evicted in a minute
  keyway watch fetchers --sample 100
      the look-ups of one in a hundred keys
  keyway watch updates --command incr --door library
      increments by programs with the library
  keyway watch --server 10.0.0.7 mutations
      ask a server, by its command `watch`";

#[derive(Args)]
pub(crate) struct Events {
    /// Kinds of events, listed below
    events: Vec<String>,
    /// Only keys that begin with this
    #[arg(long, value_name = "PREFIX")]
    prefix: Option<String>,
    /// Only these commands: get, set, add, replace, append, prepend, cas, delete, md, incr, decr, touch, mark
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    command: Vec<String>,
    /// Only through these doors: library, drop_in, text, meta, binary, udp
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    door: Vec<String>,
    /// Only one in N keys, each with all its events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    sample: Option<u64>,
    /// End after so many seconds [default: at a signal]
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// Watch through this server, which may be on another machine: [tls://]ADDR[:PORT], or the path of a Unix socket
    #[arg(long, value_name = "PLACE", conflicts_with_all = ["region", "port"])]
    server: Option<String>,
    #[command(flatten)]
    access: Access,
}

impl Events {
    /// The arguments of the command `watch` of a server.
    fn words(&self) -> Result<Vec<u8>, Failure> {
        let mut words = self.events.clone();
        if words.is_empty() {
            words.push("all".to_owned());
        }
        let mut list = |name: &str, values: &[String]| {
            if !values.is_empty() {
                words.push(format!("{name}={}", values.join(",")));
            }
        };
        list("command", &self.command);
        list("door", &self.door);
        words.extend(self.sample.map(|one_in| format!("sample={one_in}")));
        words.push("detailed".to_owned());
        if let Some(prefix) = &self.prefix {
            if prefix.bytes().any(|byte| byte <= b' ' || byte == 0x7F) {
                return Err(Failure::usage("--prefix: keys have neither blanks nor control characters"));
            }
            words.push(format!("prefix={prefix}"));
        }
        Ok(words.join(" ").into_bytes())
    }

    /// A word that is not known, with what can be in its place.
    fn explain(&self, unknown: &keyway_server::WatchUnknown) -> String {
        let option = match unknown.of {
            "" => "is no kind of event",
            "command" => "in --command is no command",
            "door" => "in --door is no door",
            _ => "is no number of --sample",
        };
        format!(
            "\"{}\" {option}: there are {}",
            shown(unknown.word.as_bytes()),
            unknown.known.join(", ")
        )
    }

    fn end(&self) -> Option<Instant> {
        self.seconds.map(|seconds| Instant::now() + Duration::from_secs(seconds))
    }
}

/// Prints events until a signal ends this program, or as long as was asked for.
pub(crate) fn run(which: Which, how: &Events) -> Result<(), Failure> {
    let words = how.words()?;
    let asked = WatchAsked::parse(&words).map_err(|unknown| Failure::usage(how.explain(&unknown)))?;
    match &how.server {
        Some(place) => by_server(place, &how.access, &words, how.end()),
        None => by_region(which, asked, how.end()),
    }
}

fn is_over(end: Option<Instant>) -> bool {
    end.is_some_and(|end| Instant::now() >= end)
}

/// Passes on what a server says.
fn by_server(place: &str, access: &Access, words: &[u8], end: Option<Instant>) -> Result<(), Failure> {
    let failed = |why: &str| Failure::new(exit::NO, format_args!("{place}: {why}"));
    let mut wire = BufReader::with_capacity(1 << 16, Client::connect(place, access)?.into_wire());
    let request = [b"watch ", words, b"\r\n"].concat();
    wire.get_mut()
        .write_all(&request)
        .map_err(|error| failed(&error.to_string()))?;
    let mut out = io::stdout();
    let mut line = Vec::new();
    let mut is_answered = false;
    while !is_over(end) {
        match wire.read_until(b'\n', &mut line) {
            Ok(0) => return Err(failed("the server has closed the connection")),
            Ok(_) if !is_answered => {
                if line != b"OK\r\n" {
                    return Err(failed(&match client::receive(&line) {
                        Received::Answer { answer, .. } => wire::said(&answer),
                        _ => String::from_utf8_lossy(&line).trim_end().to_owned(),
                    }));
                }
                is_answered = true;
                commands::remark(format_args!("keyway: watching {place}\n"));
            }
            Ok(_) => {
                if let Err(error) = out.write_all(&line) {
                    return commands::written(Err(error));
                }
            }
            // Nothing has happened for a while. What has come of a line stays.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => continue,
            Err(error) => return Err(failed(&error.to_string())),
        }
        line.clear();
    }
    Ok(())
}

/// Lines that wait for the output, so that an output that is not read does not keep the region from being looked at.
#[derive(Default)]
struct Queue {
    lines: Vec<u8>,
    /// events that are not among the lines, and that no line counts
    skipped: u64,
    is_over: bool,
}

impl Queue {
    /// Adds a line, if there is room. Otherwise the events that it tells of are counted: one, or as many as it says are lost.
    fn push(&mut self, line: &[u8], events: u64) {
        if self.lines.len() + line.len() > QUEUE_MAX {
            self.skipped = self.skipped.saturating_add(events);
            return;
        }
        self.report_skipped();
        self.lines.extend_from_slice(line);
    }

    fn report_skipped(&mut self) {
        if self.skipped > 0 {
            let skipped = std::mem::take(&mut self.skipped);
            let _ = writeln!(self.lines, "skipped={skipped}");
        }
    }
}

type Shared = Arc<(Mutex<Queue>, Condvar)>;

fn lock(queue: &Mutex<Queue>) -> MutexGuard<'_, Queue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reads the events from the region.
fn by_region(which: Which, asked: WatchAsked, end: Option<Instant>) -> Result<(), Failure> {
    let path = which.path.clone();
    let cache = commands::open(which)?;
    let watcher = cache.watcher(asked.kinds());
    let watcher =
        watcher.ok_or_else(|| Failure::new(exit::NO, "this user may only read the region, and watching writes into it which events are wanted: be its owner or one of its writers, or ask a \
             server of it (--server)"))?;
    commands::remark(format_args!("keyway: watching {}\n", path.display()));
    let ending = Arc::new(commands::Ending::new()?);
    let queue = Shared::default();
    let (shared, asked_to_end) = (Arc::clone(&queue), Arc::clone(&ending));
    let reader = std::thread::Builder::new()
        .name("keyway-watch".to_owned())
        .spawn(move || {
            look(watcher, &asked, &cache, &|| is_over(end) || asked_to_end.is_asked(), &shared);
            cache.close();
        })
        .map_err(|error| Failure::new(exit::SYSTEM, format_args!("cannot start a thread: {error}")))?;
    let mut out = io::stdout();
    loop {
        let mut waiting = lock(&queue.0);
        while waiting.lines.is_empty() && !waiting.is_over {
            waiting = queue.1.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        if waiting.is_over {
            waiting.report_skipped();
        }
        let (lines, is_over) = (std::mem::take(&mut waiting.lines), waiting.is_over);
        drop(waiting);
        let written = out.write_all(&lines).and_then(|()| out.flush());
        if written.is_err() || is_over {
            lock(&queue.0).is_over = true;
            let _ = reader.join();
            ending.follow();
            return commands::written(written);
        }
    }
}

/// The thread that looks at the region.
fn look(mut watcher: Watcher, asked: &WatchAsked, cache: &Cache, is_over: &dyn Fn() -> bool, queue: &Shared) {
    // Without a free session, other processes do the upkeep.
    let mut session: Option<Session> = cache.session().ok();
    let (least, most) = REST;
    let (mut rest, mut kept_up, mut number) = (least, Instant::now(), 0);
    let (mut told, mut line) = (Vec::new(), Vec::new());
    loop {
        let polled = watcher.poll(&mut told);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut waiting = lock(&queue.0);
        let mut begin = |line: &mut Vec<u8>| {
            number += 1;
            line.clear();
            let _ = write!(line, "ts={}.{:06} gid={number} ", now.as_secs(), now.subsec_micros());
        };
        if polled.gap {
            begin(&mut line);
            line.extend_from_slice(b"type=gap\n");
            waiting.push(&line, 1);
        }
        for one in told.drain(..) {
            match one {
                Delivery::Event(event) if asked.takes(&event) => {
                    begin(&mut line);
                    asked.write(&event, &mut line);
                    line.push(b'\n');
                    waiting.push(&line, 1);
                }
                Delivery::Event(_) => {}
                Delivery::Lost { slot, pid, count } => {
                    waiting.push(format!("skipped={count} session={slot} pid={pid}\n").as_bytes(), count);
                }
            }
        }
        waiting.is_over |= is_over();
        let ends = waiting.is_over;
        queue.1.notify_one();
        drop(waiting);
        if ends {
            return;
        }
        if kept_up.elapsed() >= UPKEEP_EVERY {
            kept_up = Instant::now();
            session.iter_mut().for_each(Session::upkeep);
        }
        rest = if polled.read > 0 { least } else { (2 * rest).min(most) };
        std::thread::park_timeout(rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_line_without_room_says_to_be_lost_is_counted() {
        let mut queue = Queue::default();
        queue.push(&vec![b'x'; QUEUE_MAX], 1);
        queue.push(b"an event\n", 1);
        queue.push(b"skipped=70 session=1 pid=2\n", 70);
        queue.lines.clear();
        queue.push(b"next\n", 1);
        assert_eq!(queue.lines, b"skipped=71\nnext\n");
    }
}
