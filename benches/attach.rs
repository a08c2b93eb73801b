//! How long a process takes to attach to a region that exists, and until its first hit.
//!
//! Each measurement is a new process of this program, so that nothing is mapped or warm in it. Half of them attach after the
//! last user closed the region, the others after the last user was killed (`SIGKILL`) in the middle of its writes.

use benches::machine;
use benches::report::{Args, Samples, head, row, say};
use benches::workload::key;
use keyway_cache::{Cache, Options, Place, Store};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Instant;

const HELP: &str = "\
attach: time to attach to an existing region

    --items N      items in the region (1000000, then 10000000)
    --repeats N    processes that attach, after a close and after a kill each (20)
    --folder DIR   where the region's file is (/dev/shm)";

const VALUE_LEN: usize = 64;
/// Bytes of region for each item of 16 + 64 bytes: ample, so that none is evicted.
const ITEM_BYTES_MAX: u64 = 256;

fn main() {
    let role: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    match role.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["role", "fill", path, items] => return fill(Path::new(path), items.parse().expect("a number of items")),
        ["role", "hold", path] => return hold(Path::new(path)),
        ["role", "attach", path] => return attach(Path::new(path)),
        _ => {}
    }
    let args = Args::parse(HELP);
    let repeats: usize = args.number("--repeats", 20);
    let sizes = args
        .value("--items")
        .map_or(vec![1_000_000, 10_000_000], |_| vec![args.number("--items", 0)]);
    let folder = PathBuf::from(args.value("--folder").unwrap_or("/dev/shm"));
    say(machine::describe());
    say(head(&["items", "region", "last user", "attach, µs", "to the first hit, µs"]));
    for items in sizes {
        let region = Region(folder.join(format!("keyway-bench-attach-{}", std::process::id())));
        Helper::start(&["fill", &region.name(), &items.to_string()]).finish();
        let size_mib = std::fs::metadata(&region.0).map_or(0, |m| m.len() >> 20);
        for killed in [false, true] {
            let (mut open, mut hit) = (Samples::default(), Samples::default());
            for _ in 0..repeats {
                let holder = Helper::start(&["hold", &region.name()]);
                if killed {
                    holder.kill();
                } else {
                    holder.finish();
                }
                let line = Helper::start(&["attach", &region.name()]).finish();
                let mut numbers = line.split(' ').filter_map(|n| n.parse::<f64>().ok());
                open.push(numbers.next().expect("microseconds until attached"));
                hit.push(numbers.next().expect("microseconds until the first hit"));
            }
            let last = if killed { "killed" } else { "closed" };
            say(row(&[
                items.to_string(),
                format!("{size_mib} MiB"),
                last.to_owned(),
                open.show(0),
                hit.show(0),
            ]));
        }
    }
}

/// The region's file, removed at the end.
struct Region(PathBuf);

impl Region {
    fn name(&self) -> String {
        self.0.to_string_lossy().into_owned()
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Another process of this program. It prints one line when it is ready and ends when its input does.
struct Helper {
    child: Child,
    input: Option<ChildStdin>,
    line: String,
}

impl Helper {
    fn start(role: &[&str]) -> Self {
        let me = std::env::current_exe().expect("the name of this program");
        let mut child = Command::new(me)
            .arg("role")
            .args(role)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("another process of this program");
        let mut line = String::new();
        let output = child.stdout.take().expect("its output is a pipe");
        BufReader::new(output).read_line(&mut line).expect("a line of text");
        assert!(!line.is_empty(), "{role:?} ended without an answer");
        let input = child.stdin.take();
        Self {
            child,
            input,
            line: line.trim().to_owned(),
        }
    }

    /// Lets it end by itself; gives the line that it printed.
    fn finish(mut self) -> String {
        drop(self.input.take());
        assert!(self.child.wait().is_ok_and(|s| s.success()));
        self.line
    }

    fn kill(mut self) {
        self.child.kill().expect("the child is this process's own");
        self.child.wait().expect("a killed process ends");
    }
}

/// Tells the parent.
fn ready(line: &str) {
    say(line);
    std::io::stdout().flush().expect("the parent reads");
}

/// Blocks until the parent has closed this process's input.
fn until_told() {
    let _ = std::io::stdin().lock().read_line(&mut String::new());
}

fn open(path: &Path, memory: u64) -> Cache {
    Cache::open(&Place::Path(path.to_owned()), &Options::new().memory(memory)).expect("the region")
}

fn fill(path: &Path, items: u64) {
    let cache = open(path, (items * ITEM_BYTES_MAX).max(64 << 20));
    let mut session = cache.session().expect("the first session");
    for index in 0..items {
        session
            .store(&key(index), &[b'v'; VALUE_LEN], &Store::default())
            .expect("a set is not refused");
    }
    drop(session);
    assert_eq!(
        (cache.counters().evictions, cache.counters().curr_items),
        (0, items),
        "all items fit"
    );
    ready("filled");
    until_told();
    cache.close();
}

/// Overwrites items until it gets the order to end, or is killed.
fn hold(path: &Path) {
    let cache = open(path, 64 << 20);
    let mut session = cache.session().expect("a session");
    std::thread::scope(|scope| {
        let told = scope.spawn(until_told);
        for index in (0..1000).cycle() {
            session
                .store(&key(index), &[b'v'; VALUE_LEN], &Store::default())
                .expect("a set is not refused");
            if index == 999 {
                break;
            }
        }
        ready("holding");
        for index in (0..1000).cycle() {
            session
                .store(&key(index), &[b'v'; VALUE_LEN], &Store::default())
                .expect("a set is not refused");
            if told.is_finished() {
                break;
            }
        }
    });
    drop(session);
    cache.close();
}

fn attach(path: &Path) {
    let started = Instant::now();
    let cache = open(path, 64 << 20);
    let opened = started.elapsed();
    let mut session = cache.session().expect("a session");
    let mut value = Vec::new();
    let found = session.get_append(&key(0), &mut value).unwrap();
    let hit = started.elapsed();
    assert!(found.is_some() && cache.info().warm, "the region is warm");
    ready(&format!("{} {}", opened.as_secs_f64() * 1e6, hit.as_secs_f64() * 1e6));
    until_told();
    drop(session);
    cache.close();
}
