//! Regions that are described and removed without attaching. Enemy: a region that is removed while a process uses it, or another
//! file that is removed in its place.
//! Guards: P23

use harness::Scratch;
use keyway_cache::server::{Removal, describe, remove_unused};
use keyway_cache::{Cache, OpenError, Options, Owners, Place};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

fn region(path: &Path) -> Cache {
    Cache::open(&Place::Path(path.to_owned()), &Options::new().memory(4 << 20)).unwrap()
}

fn id(path: &Path) -> (u64, u64) {
    let meta = std::fs::metadata(path).unwrap();
    (meta.dev(), meta.ino())
}

#[test]
fn a_region_is_described_without_being_changed() {
    let folder = Scratch::new();
    let path = folder.join("described");
    let cache = region(&path);
    let mut session = cache.session().unwrap();
    for key in 0..10 {
        session.set(format!("key-{key}").as_bytes(), b"value", 0).unwrap();
    }
    let described = || describe(File::open(&path).unwrap(), &path, &Owners::AsNamed).unwrap();
    let used = described();
    assert_eq!((used.items, used.limit_bytes), (10, cache.info().limit_bytes));
    assert_eq!(used.pids, [u64::from(std::process::id())]);
    assert!(used.last_used_unix_s >= used.created_unix_s && used.created_unix_s == cache.info().created_unix_s);
    assert_eq!(used.version, env!("CARGO_PKG_VERSION"));
    drop(session);
    assert!(cache.close());
    let before = std::fs::read(&path).unwrap();
    let unused = described();
    assert_eq!((unused.items, unused.pids.len()), (10, 0));
    assert_eq!(std::fs::read(&path).unwrap(), before);
}

#[test]
fn a_region_is_removed_only_if_no_process_uses_it() {
    let folder = Scratch::new();
    let path = folder.join("removed");
    let cache = region(&path);
    let remove = |id| remove_unused(&path, id, &Owners::AsNamed);
    assert_eq!(remove(id(&path)).unwrap(), Removal::InUse);
    assert!(path.exists());
    assert!(cache.close());
    assert_eq!(remove((0, 0)).unwrap(), Removal::Replaced);
    assert_eq!(remove(id(&path)).unwrap(), Removal::Removed);
    // An empty file, in which a region could be made, may be any program's.
    std::fs::write(&path, "").unwrap();
    assert!(matches!(remove(id(&path)), Err(OpenError::Unusable { .. })));
    assert!(path.exists());
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(
        remove_unused(&path, (0, 0), &Owners::AsNamed),
        Err(OpenError::Absent { .. })
    ));
}

/// The enemy: a process whose lock was lost, or is not seen from here, and which is not certainly dead.
#[test]
fn a_region_with_a_tenant_that_cannot_be_asked_is_kept() {
    use keyway_region::layout::session::{Hold, ProcessSlot, Tenancy};
    use std::os::unix::fs::FileExt;
    let folder = Scratch::new();
    let path = folder.join("kept");
    assert!(region(&path).close());
    // The first process slot is on the second page (docs/region.md).
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let at = 4096 + std::mem::offset_of!(ProcessSlot, tenancy) as u64;
    let mut before = [0; 8];
    file.read_exact_at(&mut before, at).unwrap();
    let tenancy = Tenancy(u64::from_le_bytes(before));
    assert_eq!((tenancy.hold(), tenancy.incarnation()), (Hold::None, 1), "the closer's own");
    let other = Tenancy::new(tenancy.incarnation() + 1, Hold::Descriptor);
    // Of another boot.
    file.write_all_at(&1u64.to_le_bytes(), 4096 + std::mem::offset_of!(ProcessSlot, identity) as u64)
        .unwrap();
    file.write_all_at(&other.0.to_le_bytes(), at).unwrap();
    assert_eq!(remove_unused(&path, id(&path), &Owners::AsNamed).unwrap(), Removal::InUse);
    file.write_all_at(&before, at).unwrap();
    assert_eq!(remove_unused(&path, id(&path), &Owners::AsNamed).unwrap(), Removal::Removed);
}

#[test]
fn what_is_no_region_is_not_described() {
    let folder = Scratch::new();
    let path = folder.join("text");
    std::fs::write(&path, "no region".repeat(1_000)).unwrap();
    let described = describe(File::open(&path).unwrap(), &path, &Owners::AsNamed);
    assert!(matches!(described, Err(OpenError::Unusable { .. })));
}
