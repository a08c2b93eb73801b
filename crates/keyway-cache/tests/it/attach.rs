//! Attaching while others attach, detach and swap names. Its enemies: a name that leads to another file from one look to the next, a
//! clean mark on a region that a process has just attached, a region that is thrown away because two words were read in the wrong
//! moment.
//! Guards: P20, P22

use keyway_cache::{Cache, Options, Owners, Place, Session};
use keyway_region::layout::superblock::Superblock;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

/// A folder on a disk, removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("attach-{}-{name}", std::process::id()));
        let _ = std::fs::remove_dir_all(&path);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Set however the block that it stands in ends.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn options() -> Options {
    Options::new()
        .memory(2 << 20)
        .item_size_max(1 << 19)
        // One test gives regions several names.
        .owners(Owners::Any)
}

fn open(path: &Path) -> Cache {
    Cache::open(&Place::at(path), &options()).unwrap()
}

fn word(path: &Path, offset: usize) -> u64 {
    let mut bytes = [0; 8];
    File::open(path).unwrap().read_exact_at(&mut bytes, offset as u64).unwrap();
    u64::from_le_bytes(bytes)
}

fn set_word(path: &Path, offset: usize, value: u64) {
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(&value.to_le_bytes(), offset as u64).unwrap();
}

fn clean(path: &Path) -> bool {
    word(path, std::mem::offset_of!(Superblock, clean)) == 1
}

fn value_of(session: &mut Session, key: &[u8]) -> Option<Vec<u8>> {
    session.get(key).unwrap()
}

#[test]
fn a_region_that_a_process_has_just_attached_is_not_marked_clean() {
    let folder = Folder::new("clean");
    let path = folder.file("region");
    for round in 0..100 {
        let leaving = open(&path);
        let staying = std::thread::scope(|scope| {
            let staying = scope.spawn(|| open(&path));
            leaving.close();
            staying.join().unwrap()
        });
        assert!(!clean(&path), "round {round}");
        assert!(staying.close() && clean(&path), "the last one marks it");
    }
}

#[test]
fn a_region_that_was_stopped_cleanly_is_never_taken_for_one_that_was_cut_off() {
    let folder = Folder::new("boot");
    let path = folder.file("region");
    let cache = open(&path);
    cache.session().unwrap().set(b"key", b"kept", 0).unwrap();
    assert!(cache.close());
    for round in 0..50u64 {
        // As another boot has left it.
        set_word(&path, std::mem::offset_of!(Superblock, boot_id), round);
        let caches = std::thread::scope(|scope| {
            let opening: Vec<_> = (0..3).map(|_| scope.spawn(|| open(&path))).collect();
            opening.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        let kept = value_of(&mut caches[0].session().unwrap(), b"key");
        assert_eq!(
            kept.as_deref(),
            Some(&b"kept"[..]),
            "round {round}: the items were thrown away"
        );
        let last = caches.into_iter().fold(false, |_, cache| cache.close());
        assert!(last && clean(&path));
    }
}

#[test]
fn a_name_that_changes_hands_is_one_region_or_the_other() {
    let folder = Folder::new("swap");
    let (path, swap) = (folder.file("region"), folder.file("swap"));
    let stable = [folder.file("a"), folder.file("b")];
    for file in &stable {
        open(file).close();
    }
    std::fs::hard_link(&stable[0], &path).unwrap();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _over = SetAtEnd(&is_over);
        scope.spawn(|| {
            for next in (0..).take_while(|_| !is_over.load(Relaxed)) {
                std::fs::hard_link(&stable[next % 2], &swap).unwrap();
                std::fs::rename(&swap, &path).unwrap();
                // Two links of one file: rename(2) does nothing then.
                let _ = std::fs::remove_file(&swap);
            }
        });
        for round in 0..100 {
            let cache = open(&path);
            let mut session = cache.session().unwrap();
            session.set(b"key", b"value", 0).unwrap();
            for file in &stable {
                // Another handle asks who is alive, in the region and in the other one.
                let other = open(file);
                let mut asking = other.session().unwrap();
                asking.upkeep();
                let counters = other.counters();
                assert_eq!(
                    (counters.recoveries, counters.fences),
                    (0, 0),
                    "round {round}: a living one was taken for dead"
                );
            }
            session.set(b"key", b"value", 0).unwrap();
            drop(session);
            cache.close();
        }
    });
}
