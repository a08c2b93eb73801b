//! What is said while a region in durable mode is repaired. Its enemy: a start that is silent for minutes, in the process that repairs and
//! in those that wait for it.
//!
//! The region is on ordinary memory, and another boot is played by changing the boot's identity in it. One test: the log is the process's.
//! Guards: P47

use keyway_cache::{Cache, Options, Place};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Condvar, Mutex};

/// Offsets in the superblock (`docs/region.md`).
const BOOT_ID: u64 = 968;
const CLOCK: u64 = 536;
/// So many that the index is read in several parts: progress is reported after each.
const ITEMS: u64 = 60_000;

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());
static MORE: Condvar = Condvar::new();

struct Listener;

impl log::Log for Listener {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        if record.level() <= log::Level::Warn {
            SAID.lock().unwrap().push(record.args().to_string());
            MORE.notify_all();
        }
    }
    fn flush(&self) {}
}

fn reboot(path: &Path) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    for (at, change) in [(BOOT_ID, 1), (CLOCK, 0x10_1234_5678)] {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, at).unwrap();
        let changed = u64::from_le_bytes(word) ^ change;
        file.write_all_at(&changed.to_le_bytes(), at).unwrap();
    }
}

/// Locks the byte under which a region is repaired, as a process that repairs it does, until the file is closed.
fn lock_as_its_repairer(file: &File) {
    let lock = libc::flock {
        l_type: libc::F_WRLCK.try_into().unwrap(),
        l_whence: libc::SEEK_SET.try_into().unwrap(),
        l_start: 0,
        l_len: 1,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_SETLK(&lock)).expect("no other process has the lock");
}

#[test]
fn a_repair_says_how_far_it_is_and_a_process_that_waits_for_it_says_so() {
    log::set_logger(&Listener).unwrap();
    log::set_max_level(log::LevelFilter::Warn);
    let path = Path::new("/dev/shm").join(format!("keyway-test-{}-repair", std::process::id()));
    let options = Options::new().memory(32 << 20).durable(true).durable_rehearsed(true);
    let open = || Cache::open(&Place::Path(path.clone()), &options).unwrap();
    let cache = open();
    let mut session = cache.session().unwrap();
    for i in 0..ITEMS {
        session.set(&i.to_le_bytes(), b"value", 0).unwrap();
    }
    drop((session, cache));
    assert_eq!(SAID.lock().unwrap().as_slice(), [""; 0], "the same boot");

    reboot(&path);
    let other = File::options().read(true).write(true).open(&path).unwrap();
    lock_as_its_repairer(&other);
    let cache = std::thread::scope(|scope| {
        let opened = scope.spawn(open);
        let said = SAID.lock().unwrap();
        drop(MORE.wait_while(said, |said| said.is_empty()).unwrap());
        drop(other);
        opened.join().unwrap()
    });
    std::fs::remove_file(&path).unwrap();
    assert_eq!(cache.counters().curr_items, ITEMS);

    let said = SAID.lock().unwrap();
    assert!(
        said.iter().all(|line| line.contains("keyway-test-")),
        "each names the region: {said:#?}"
    );
    let [waits, begins, tenths @ .., ends] = said.as_slice() else {
        panic!("{said:#?}")
    };
    assert!(waits.contains("another process repairs"), "{waits}");
    assert!(begins.contains("is repaired, which takes"), "{begins}");
    assert!(ends.ends_with(&format!("is repaired and has {ITEMS} items")), "{ends}");
    let percents: Vec<u32> = tenths
        .iter()
        .map(|line| {
            let before = line.split(" % of the region is repaired").next().unwrap();
            before.rsplit(' ').next().unwrap().parse().expect(line)
        })
        .collect();
    assert!(
        percents.is_sorted_by(|a, b| a / 10 < b / 10),
        "once for each tenth: {percents:?}"
    );
    assert!(percents.len() > 5 && percents.last() == Some(&100), "{percents:?}");
}
