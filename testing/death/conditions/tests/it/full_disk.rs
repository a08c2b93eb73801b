//! Regions on disks that copy on write, and then are full. Enemy: a write to the mapping that needs a new block, and ends its program
//! (SIGBUS): on btrfs, for a file that shares blocks with a copy of it, and for a copy, which has holes.
//! Guards: P25

use conditions::condition::private_mounts;
use conditions::place::FileSystem;
use harness::{DEADLINE, Scratch, skip, wait_until};
use keyway_cache::{Cache, CopiesOnWrite, GrowError, OpenError, Options, Place, Shrinking};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

const MEMORY: u64 = 24 << 20;
/// More than fit: segments are written again and again.
const ITEMS: u32 = 3_000;

fn open(path: &Path) -> Result<Cache, OpenError> {
    Cache::open(&Place::Path(path.to_owned()), &Options::new().memory(MEMORY))
}

/// Writes all of the region's memory several times, and has it written back meanwhile: only what the disk has is copied on write.
fn write_all(cache: &Cache, region: &Path) {
    let mut session = cache.session().unwrap();
    let file = File::open(region).unwrap();
    for round in 0..3 {
        for item in 0..ITEMS {
            session.set(format!("key-{item}").as_bytes(), &[round; 20_000], 0).unwrap();
        }
        file.sync_all().unwrap();
    }
    assert!(cache.check(|_| {}).is_sound());
}

/// Takes all space of a file system.
fn fill(folder: &Path) {
    let mut file = File::create(folder.join("fill")).unwrap();
    // What is not written back yet may need more space than it will have.
    for size in [1 << 20, 64 << 10, 4096, 4096] {
        let bytes = vec![0x5a; size];
        while file.write_all(&bytes).is_ok() {}
        let _ = file.sync_all();
    }
}

fn copy(kind: &str, from: &Path, to: &Path) {
    let status = Command::new("cp").arg(kind).arg(from).arg(to).status().unwrap();
    assert!(status.success(), "cp {kind}: {status}");
}

/// Runs a test on such a disk, or says aloud why not.
fn on(file_system: FileSystem, test: impl FnOnce(&Path)) {
    let title = format!("regions on {}", file_system.name());
    if let Err(why) = private_mounts() {
        return skip(&title, &format!("it needs root, for mount namespaces ({why})"));
    }
    let scratch = Scratch::new();
    match file_system.mount(scratch.path()) {
        Ok(mounted) => test(mounted.path()),
        Err(why) => skip(&title, &why),
    }
}

#[test]
fn a_region_on_btrfs_is_written_in_place() {
    on(FileSystem::Btrfs, |folder| {
        let region = folder.join("region");
        let cache = open(&region).unwrap();
        write_all(&cache, &region);
        // The file's attribute "no copy on write" (lsattr(1)). A full btrfs answers too slowly to be waited for here.
        let attributes = Command::new("lsattr").arg(&region).output().unwrap();
        let attributes = String::from_utf8_lossy(&attributes.stdout).into_owned();
        assert!(attributes.split(' ').next().unwrap().contains('C'), "{attributes}");
        copy("--reflink=auto", &region, &folder.join("copy"));
        assert!(cache.close());
        // The copy is written elsewhere, and refused with what to do.
        let why = open(&folder.join("copy")).err().unwrap();
        assert!(
            matches!(
                &why,
                OpenError::CopiesOnWrite {
                    why: CopiesOnWrite::All,
                    ..
                }
            ),
            "{why}"
        );
        assert!(why.to_string().contains("chattr +C"), "{why}");
    });
}

#[test]
fn a_region_on_btrfs_that_shares_blocks_is_refused() {
    on(FileSystem::Btrfs, |folder| {
        let (volume, region) = (folder.join("volume"), folder.join("volume/region"));
        let subvolume = |arguments: &[&str], paths: &[&Path]| {
            let run = Command::new("btrfs")
                .arg("subvolume")
                .args(arguments)
                .args(paths)
                .output()
                .unwrap();
            assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        };
        subvolume(&["create"], &[&volume]);
        let cache = open(&region).unwrap();
        write_all(&cache, &region);
        assert!(cache.close());
        subvolume(&["snapshot"], &[&volume, &folder.join("snapshot")]);
        let why = open(&region).err().unwrap();
        assert!(
            matches!(
                &why,
                OpenError::CopiesOnWrite {
                    why: CopiesOnWrite::Shared { .. },
                    ..
                }
            ),
            "{why}"
        );
        assert!(why.to_string().contains("snapshot"), "{why}");
        subvolume(&["delete", "--commit-after"], &[&folder.join("snapshot")]);
    });
}

#[test]
fn a_region_on_xfs_has_blocks_of_its_own_again_after_it_was_copied() {
    on(FileSystem::Xfs, |folder| {
        let region = folder.join("region");
        let cache = open(&region).unwrap();
        write_all(&cache, &region);
        // While it is in use: the upkeep of its users finds it.
        copy("--reflink=always", &region, &folder.join("copy-1"));
        cache.session().unwrap().upkeep();
        fill(folder);
        write_all(&cache, &region);
        assert!(cache.close());
        std::fs::remove_file(folder.join("fill")).unwrap();
        std::fs::remove_file(folder.join("copy-1")).unwrap();
        // While it is not: those that open it do.
        copy("--reflink=always", &region, &folder.join("copy-2"));
        let cache = open(&region).unwrap();
        fill(folder);
        write_all(&cache, &region);
        assert!(cache.close());
        std::fs::remove_file(folder.join("fill")).unwrap();
        // Without space for that.
        copy("--reflink=always", &region, &folder.join("copy-3"));
        fill(folder);
        let why = open(&region).err().unwrap();
        assert!(
            matches!(
                &why,
                OpenError::CopiesOnWrite {
                    why: CopiesOnWrite::Shared { bytes: 1.., .. },
                    ..
                }
            ),
            "{why}"
        );
        assert!(
            why.to_string().contains("No space left") && why.to_string().contains("remove that copy"),
            "{why}"
        );
        std::fs::remove_file(folder.join("copy-3")).unwrap();
        std::fs::remove_file(folder.join("fill")).unwrap();
        write_all(&open(&region).unwrap(), &region);
    });
}

#[test]
fn a_copy_of_a_region_is_allocated_in_full_or_refused() {
    for file_system in [FileSystem::Xfs, FileSystem::Ext4, FileSystem::Tmpfs] {
        on(file_system, |folder| {
            let (region, copied, full) = (folder.join("region"), folder.join("copy"), folder.join("fill"));
            // Most of it is never written: cp(1) leaves that out.
            let cache = open(&region).unwrap();
            cache.session().unwrap().set(b"key", b"value", 0).unwrap();
            assert!(cache.close());
            copy("--reflink=never", &region, &copied);
            let blocks = |path: &Path| std::fs::metadata(path).unwrap().blocks();
            assert!(blocks(&copied) < blocks(&region) / 2, "{}", file_system.name());
            std::fs::remove_file(&region).unwrap();
            fill(folder);
            let why = open(&copied).err().unwrap();
            assert!(
                matches!(
                    &why,
                    OpenError::CopiesOnWrite {
                        why: CopiesOnWrite::Holes { bytes: 1.., .. },
                        ..
                    }
                ),
                "{}: {why}",
                file_system.name()
            );
            assert!(why.to_string().contains("give the disk as much space"), "{why}");
            std::fs::remove_file(&full).unwrap();
            let cache = open(&copied).unwrap();
            fill(folder);
            assert_eq!(cache.session().unwrap().get(b"key").unwrap(), Some(b"value".to_vec()));
            write_all(&cache, &copied);
            assert!(cache.close());
        });
    }
}

#[test]
fn a_region_that_has_given_memory_back_is_written_on_a_full_disk() {
    let lower = |cache: &Cache| {
        let limit = cache.limit(MEMORY / 2).unwrap();
        let mut session = cache.session().unwrap();
        wait_until("all memory above the limit given back", DEADLINE, || {
            matches!(session.shrink(), Shrinking::Done).then_some(())
        });
        limit
    };
    for file_system in [FileSystem::Xfs, FileSystem::Ext4, FileSystem::Tmpfs] {
        on(file_system, |folder| {
            let (region, copied, full) = (folder.join("region"), folder.join("copy"), folder.join("fill"));
            let cache = open(&region).unwrap();
            write_all(&cache, &region);
            let limit = lower(&cache);
            let taken = std::fs::metadata(&region).unwrap().blocks() * 512;
            let keeps = !matches!(file_system, FileSystem::Tmpfs);
            assert_eq!(taken >= MEMORY, keeps, "{}: {taken} of {limit}", file_system.name());
            fill(folder);
            write_all(&cache, &region);
            assert!(cache.close());
            std::fs::remove_file(&full).unwrap();
            std::fs::remove_file(&region).unwrap();
            // A copy, with holes where memory was given back that was never written.
            let cache = open(&region).unwrap();
            for item in 0..ITEMS / 10 {
                cache.session().unwrap().set(&item.to_le_bytes(), &[7; 20_000], 0).unwrap();
            }
            lower(&cache);
            assert!(cache.close());
            copy("--reflink=never", &region, &copied);
            std::fs::remove_file(&region).unwrap();
            let cache = open(&copied).unwrap();
            fill(folder);
            write_all(&cache, &copied);
            assert!(cache.close());
        });
    }
}

#[test]
fn memory_that_a_disk_does_not_have_is_refused_before_a_part_of_it_is_taken() {
    for file_system in [FileSystem::Xfs, FileSystem::Ext4] {
        on(file_system, |folder| {
            let (region, larger) = (folder.join("region"), folder.join("larger"));
            let cache = open(&region).unwrap();
            let disk = || nix::sys::statvfs::statvfs(folder).unwrap();
            let taken = || std::fs::metadata(&region).unwrap().blocks() * 512;
            let before = taken();
            let size = disk().blocks_free() * disk().fragment_size() + (64 << 20);
            let refused = cache.grow(MEMORY + size);
            assert!(
                matches!(refused, Err(GrowError::NoSpace { .. })),
                "{}: {refused:?}",
                file_system.name()
            );
            // The arrays in front of the segments may have grown.
            let more = taken() - before;
            assert!(more < size / 64, "{}: {more} bytes of {size}", file_system.name());
            let left = disk().blocks_free();
            let why = Cache::open(&Place::Path(larger.clone()), &Options::new().memory(size))
                .err()
                .unwrap();
            assert!(matches!(&why, OpenError::NoSpace { .. }), "{}: {why}", file_system.name());
            assert!(!larger.exists(), "{}", file_system.name());
            // XFS frees the blocks of a removed file in the background.
            wait_until("the disk as before", DEADLINE, || {
                (disk().blocks_free() >= left).then_some(())
            });
            assert!(cache.close());
        });
    }
}
