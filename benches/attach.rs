//! How long a process takes to attach to a region that exists, and until its first hit; and how long the repair of a region in durable mode
//! takes, which the first process to open it after a power failure waits for.
//!
//! Each attach is a new process of this program, so that nothing is mapped or warm in it. Half of them attach after the
//! last user closed the region, the others after the last user was killed (`SIGKILL`) in the middle of its writes. A repaired
//! region is on ordinary memory, which is read faster than persistent memory is; another boot is played by changing the boot's identity in it.

use benches::{Args, fill, head, row, say};
use keyway_bench::machine;
use keyway_bench::medians::Samples;
use keyway_bench::servers::Folder;
use keyway_bench::workload::key;
use keyway_cache::{Cache, Options, Place};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const HELP: &str = "\
attach: time to attach to an existing region; and to repair one in durable mode

    --items N,...  items in the region (1000000,10000000)
    --repeats N    processes that attach, after a close and after a kill each, and repairs (20)
    --folder DIR   where the region's file is (/dev/shm)
    --repair       of a region in durable mode, after a power failure";

const VALUE: [u8; 64] = [b'v'; 64];
/// Bytes of region for each item of 16 + 64 bytes: ample, so that none is evicted.
const ITEM_BYTES_MAX: u64 = 256;
/// Offset of the boot's identity in the superblock (docs/region.md), and of the word with the clock's boot.
const BOOT_ID: u64 = 968;
const CLOCK: u64 = 536;

fn main() {
    let args = Args::parse(HELP);
    match args.role().as_deref() {
        Some(["hold", path]) => return hold(Path::new(path)),
        Some(["attach", path]) => return attach(Path::new(path)),
        _ => {}
    }
    let (repeats, repair): (usize, bool) = (args.number("--repeats", 20), args.has("--repair"));
    let folder = Folder::new(Path::new(args.value("--folder").unwrap_or("/dev/shm")), "attach").expect("a new folder");
    let path = folder.path().join("region");
    say(machine::describe());
    if repair {
        say(head(&["items", "region", "opened and repaired, ms"]));
    } else {
        say(head(&["items", "region", "last user", "attach, µs", "to the first hit, µs"]));
    }
    for items in args.numbers("--items", &[1_000_000, 10_000_000]) {
        let options = Options::new().memory((items * ITEM_BYTES_MAX).max(64 << 20));
        let cache = open(&path, &options.durable(repair).durable_rehearsed(repair));
        drop(fill(&cache, items, &VALUE));
        if repair {
            drop(cache)
        } else {
            cache.close();
        }
        let size = format!("{} MiB", std::fs::metadata(&path).map_or(0, |m| m.len() >> 20));
        if repair {
            let times: Samples = (0..repeats).map(|_| repaired(&path, items)).collect();
            say(row(&[items.to_string(), size.clone(), times.show(0)]));
        }
        for killed in [false, true].into_iter().filter(|_| !repair) {
            let mut times = [Samples::default(), Samples::default()];
            for _ in 0..repeats {
                use_and_leave(&path, killed);
                let output = role("attach", &path).output().expect("another process of this program");
                let text = String::from_utf8_lossy(&output.stdout);
                assert!(output.status.success(), "{text}");
                let numbers = text.split_whitespace().map(|n| n.parse().expect("microseconds"));
                times.iter_mut().zip(numbers).for_each(|(times, us)| times.push(us));
            }
            let last = if killed { "killed" } else { "closed" };
            let [open, hit] = times.map(|times| times.show(0));
            say(row(&[items.to_string(), size.clone(), last.to_owned(), open, hit]));
        }
        std::fs::remove_file(&path).expect("the region's file is this program's own");
    }
}

fn open(path: &Path, options: &Options) -> Cache {
    Cache::open(&Place::Path(path.to_owned()), options).expect("the region")
}

/// Another process of this program.
fn role(name: &str, path: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("the name of this program"));
    command.args(["role", name]).arg(path).stderr(Stdio::inherit());
    command
}

/// A process that writes items, until it is told to close the region, or killed.
fn use_and_leave(path: &Path, killed: bool) {
    let mut child = role("hold", path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("another process");
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("a pipe"))
        .read_line(&mut line)
        .expect("a line of text");
    assert_eq!(line, "holding\n");
    if killed {
        child.kill().expect("the child is this process's own");
    }
    drop(child.stdin.take());
    assert_eq!(child.wait().is_ok_and(|status| status.success()), !killed);
}

/// Overwrites items until its input ends, or it is killed.
fn hold(path: &Path) {
    let cache = open(path, &Options::new());
    let mut session = cache.session().expect("a session");
    let mut round = || {
        (0..1000)
            .map(key)
            .for_each(|key| session.set(&key, &VALUE, 0).map(drop).expect("a set is not refused"))
    };
    round();
    let told = std::thread::spawn(|| std::io::stdin().lock().read_to_end(&mut Vec::new()));
    say("holding");
    while !told.is_finished() {
        round();
    }
    drop(session);
    cache.close();
}

fn attach(path: &Path) {
    let started = Instant::now();
    let cache = open(path, &Options::new());
    let opened = started.elapsed();
    let mut session = cache.session().expect("a session");
    let found = session.get_append(&key(0), &mut Vec::new()).expect("a good key");
    let hit = started.elapsed();
    assert!(found.is_some() && cache.info().warm, "the region is warm");
    say(format!("{} {}", opened.as_secs_f64() * 1e6, hit.as_secs_f64() * 1e6));
    drop(session);
    cache.close();
}

/// Milliseconds until a region is open whose last use was cut off in another boot.
fn repaired(path: &Path, items: u64) -> f64 {
    let file = File::options().read(true).write(true).open(path).expect("the region's file");
    for (at, change) in [(BOOT_ID, 1), (CLOCK, 0x10_1234_5678)] {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, at).expect("a superblock");
        let changed = u64::from_le_bytes(word) ^ change;
        file.write_all_at(&changed.to_le_bytes(), at).expect("a superblock");
    }
    let started = Instant::now();
    let cache = open(path, &Options::new().durable(true).durable_rehearsed(true));
    let took = started.elapsed();
    assert_eq!(cache.counters().curr_items, items, "every acknowledged item is there");
    took.as_secs_f64() * 1e3
}
