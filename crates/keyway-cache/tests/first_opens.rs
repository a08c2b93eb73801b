//! Children that are forked while another thread of their parent opens the first cache of the process. Its enemy: a lock or a once-cell
//! that this thread holds, for which the child waits for ever, because it does not have the thread.
//!
//! The test is alone in its program: in its own process no cache is ever opened.
//!
//! # Safety
//!
//! The only `unsafe` is `fork` and `_exit`: children use no more than a cache, and a thread that they start.
//! Guards: P26
#![allow(unsafe_code, reason = "forks; contract above")]

use keyway_cache::{Cache, Options, Place};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, alarm, fork};
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::time::{Duration, Instant};

const ROUNDS: u64 = 1_000;
/// An open takes about 0.1 ms.
const SPREAD_NS: u64 = 150_000;
/// After this a child is ended: it takes no time.
const HANGS_AFTER_S: u32 = 60;

struct Region(PathBuf);

impl Drop for Region {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// How a child ends that runs this.
fn forked(child: impl FnOnce() -> bool) -> WaitStatus {
    // SAFETY: see the top of the file.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            alarm::set(HANGS_AFTER_S);
            let well = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
            // SAFETY: ends the child without running what belongs to its parent.
            unsafe { nix::libc::_exit(i32::from(!well)) }
        }
        ForkResult::Parent { child } => waitpid(child, None).unwrap(),
    }
}

fn use_it(path: &Path) -> bool {
    let options = Options::new();
    let cache = Cache::open(&Place::Path(path.to_owned()), &options).unwrap();
    let stored = cache.with_session(|session, _| session.set(b"key", b"value", 0));
    stored.is_ok_and(|stored| stored.is_ok())
}

#[test]
fn a_child_that_is_forked_in_the_middle_of_the_first_open_opens_the_region() {
    let region = Region(format!("/dev/shm/keyway-first-opens-{}", std::process::id()).into());
    let path = region.0.as_path();
    let is_well = |status: WaitStatus| matches!(status, WaitStatus::Exited(_, 0));
    assert!(is_well(forked(|| {
        let options = Options::new().memory(8 << 20);
        Cache::open(&Place::Path(path.to_owned()), &options).unwrap().close()
    })));
    for round in 0..ROUNDS {
        let status = forked(|| {
            let begin = &Barrier::new(2);
            std::thread::scope(|scope| {
                let opener = scope.spawn(|| {
                    begin.wait();
                    use_it(path)
                });
                begin.wait();
                let begun = Instant::now();
                let after = Duration::from_nanos(round * 7_919 % SPREAD_NS);
                while begun.elapsed() < after {
                    std::hint::spin_loop();
                }
                let child = forked(|| use_it(path));
                is_well(child) && opener.join().unwrap()
            })
        });
        assert!(is_well(status), "round {round}: {status:?}");
    }
}
