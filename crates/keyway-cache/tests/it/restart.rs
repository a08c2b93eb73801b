//! What is found after a restart. Its enemy: items that are served although the machine stopped under them, items that are lost
//! although it stopped cleanly, a gap that is not noticed, and a copy that is not what it was made from.
//!
//! Another boot is played by changing the boot's identity in the region, and the clock's word: nothing else tells one boot from another.
//! Guards: P19, P20, P24

use keyway_cache::{Cache, CopyError, Gap, Get, OpenError, Options, Place, Session};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Offsets of words in the superblock (`docs/region.md`).
const RESTART_LINE: u64 = 960;
const BOOT_ID: u64 = RESTART_LINE + 8;
const LAST_SEEN: u64 = RESTART_LINE + 24;
const CLOCK: u64 = 536;

/// A region's file, removed at the end.
struct Region(PathBuf);

impl Region {
    /// On an ordinary file system, whose files outlive a boot.
    fn durable(name: &str) -> Self {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        Self::in_folder(&folder, name)
    }

    /// In memory.
    fn fleeting(name: &str) -> Self {
        Self::in_folder(Path::new("/dev/shm"), name)
    }

    fn in_folder(folder: &Path, name: &str) -> Self {
        let path = folder.join(format!("keyway-test-{}-restart-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Self(path)
    }

    fn open(&self, options: &Options) -> Cache {
        Cache::open(&Place::Path(self.0.clone()), options).unwrap()
    }

    fn filled(&self) -> Cache {
        let cache = self.open(&options());
        fill(&mut cache.session().unwrap());
        cache
    }

    fn change_word(&self, at: u64, change: impl Fn(u64) -> u64) {
        let file = std::fs::File::options().read(true).write(true).open(&self.0).unwrap();
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, at).unwrap();
        file.write_all_at(&change(u64::from_le_bytes(bytes)).to_le_bytes(), at)
            .unwrap();
    }

    fn reboot(&self) {
        self.change_word(BOOT_ID, |id| id ^ 1);
        // The clock's boot, and its offset: the boot clock has begun anew.
        self.change_word(CLOCK, |word| word ^ 0x10_1234_5678);
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The word of the last use, ten minutes earlier on both clocks.
fn earlier_by_600_s(seen: u64) -> u64 {
    seen - (600 << 32 | 600)
}

fn options() -> Options {
    Options::new().memory(2 << 20)
}

fn fill(session: &mut Session) {
    for i in 0..500u32 {
        let value = format!("value of {i}").repeat(1 + i as usize % 9);
        session
            .set(format!("key-{i}").as_bytes(), value.as_bytes(), i64::from(i % 3) * 1000)
            .unwrap();
    }
    session.set(b"large", &[b'l'; 100_000], 0).unwrap();
}

/// How many of the items are there, each with its own value.
fn there(session: &mut Session) -> usize {
    let mut out = Vec::new();
    let mut found = 0;
    for i in 0..500u32 {
        out.clear();
        if session.get_append(format!("key-{i}").as_bytes(), &mut out).unwrap().is_some() {
            assert_eq!(out, format!("value of {i}").repeat(1 + i as usize % 9).into_bytes());
            found += 1;
        }
    }
    out.clear();
    if session.get_append(b"large", &mut out).unwrap().is_some() {
        assert_eq!(out, [b'l'; 100_000]);
        found += 1;
    }
    found
}

fn items_after(region: &Region, options: &Options) -> (usize, bool) {
    let cache = region.open(options);
    let report = cache.check(|_| {});
    assert!(report.is_sound(), "{:?}", report.problems);
    let found = there(&mut cache.session().unwrap());
    (found, cache.info().warm)
}

#[test]
fn a_clean_stop_is_warm_in_the_next_boot_on_an_ordinary_file() {
    let region = Region::durable("clean");
    assert!(region.filled().close(), "no other process is attached");
    region.reboot();
    assert_eq!(items_after(&region, &options()), (501, true));
}

#[test]
fn a_stop_that_was_not_clean_is_warm_in_the_same_boot_and_cold_in_the_next() {
    let region = Region::durable("cut-off");
    drop(region.filled());
    assert_eq!(items_after(&region, &options()), (501, true), "the same boot");
    region.reboot();
    assert_eq!(items_after(&region, &options()), (0, false), "another boot");
}

/// A container may have a boot id of its own, or none: then the region has no boot's.
#[test]
fn without_a_boots_identity_the_clocks_tell_whether_it_is_the_same_boot() {
    const UNITS_PER_HOUR: u64 = 16 * 3_600;
    let region = Region::durable("unknown-boot");
    let forget = || (0..2).for_each(|word| region.change_word(BOOT_ID + 8 * word, |_| 0));
    // The offset of the clock, in the lowest 36 bits.
    let shift = |by: u64| region.change_word(CLOCK, |word| word & !0xF_FFFF_FFFF | word.wrapping_add(by) & 0xF_FFFF_FFFF);
    let no_boot = || region.change_word(CLOCK, |word| word & 0xF_FFFF_FFFF);
    drop(region.filled());
    forget();
    assert_eq!(
        items_after(&region, &options()),
        (501, true),
        "both clocks have advanced equally"
    );
    forget();
    no_boot();
    shift(UNITS_PER_HOUR);
    let before = std::fs::read(&region.0).unwrap();
    let why = Cache::open(&Place::Path(region.0.clone()), &options()).err().unwrap();
    assert!(matches!(why, OpenError::NoBootId { .. }), "{why}");
    assert!(
        why.to_string().contains("boot_id") && why.to_string().contains("remove it"),
        "{why}"
    );
    assert!(std::fs::read(&region.0).unwrap() == before, "the file was changed");
    // The boot clock has gone back.
    shift(2u64.pow(36) - 2 * UNITS_PER_HOUR);
    assert_eq!(items_after(&region, &options()), (0, false), "another boot");
}

#[test]
fn a_region_that_is_discarded_is_made_anew_in_the_same_file() {
    use std::os::unix::fs::MetadataExt;
    let region = Region::durable("in-place");
    let larger = options().memory(8 << 20);
    let cache = region.open(&larger);
    fill(&mut cache.session().unwrap());
    drop(cache);
    let before = region.0.metadata().unwrap();
    region.reboot();
    assert_eq!(items_after(&region, &options()), (0, false), "another boot");
    let after = region.0.metadata().unwrap();
    assert_eq!(after.ino(), before.ino());
    // What it had allocated beyond its new size is given back: it has what a region has that was never larger.
    let other = Region::durable("never-larger");
    drop(other.open(&options()));
    let new = other.0.metadata().unwrap().blocks();
    assert!(
        after.blocks() <= new && new < before.blocks(),
        "{} blocks, {new}",
        after.blocks()
    );
    assert!(
        after.len() >= before.len(),
        "a file that becomes shorter ends those that are about to attach"
    );
}

/// A program that requests no memory, or is to leave it alone, is often the first one after a power failure.
#[test]
fn a_region_that_is_discarded_keeps_its_memory_unless_another_is_requested() {
    for (name, next) in [("unsaid", Options::new()), ("kept", options().keep_memory(true))] {
        let region = Region::durable(name);
        let cache = region.open(&Options::new().memory(128 << 20));
        let before = cache.info().limit_bytes;
        cache.session().unwrap().set(b"key", b"value", 0).unwrap();
        drop(cache);
        region.reboot();
        let cache = region.open(&next);
        // What its parts are rounded to may take a segment.
        let after = cache.info().limit_bytes;
        assert!(
            after <= before && before - after < before / 1000,
            "{name}: {after} of {before} bytes"
        );
        assert_eq!(cache.counters().curr_items, 0, "{name}");
    }
}

#[test]
fn use_behind_a_clean_stop_is_not_clean_any_more() {
    let region = Region::durable("again");
    region.filled().close();
    drop(region.open(&options()));
    region.reboot();
    assert_eq!(items_after(&region, &options()), (0, false));
}

#[test]
fn behind_a_gap_items_are_served_or_stale_or_gone() {
    for (gap, gap_max_s, stale, left) in [
        (Gap::Serve, Some(60), false, 501),
        (Gap::Stale, Some(60), true, 501),
        (Gap::Flush, Some(60), false, 0),
        (Gap::Flush, Some(3600), false, 501),
        (Gap::Flush, None, false, 501),
    ] {
        let region = Region::fleeting(&format!("gap-{gap:?}-{gap_max_s:?}"));
        drop(region.filled());
        region.change_word(LAST_SEEN, earlier_by_600_s);
        let options = options().gap(gap).gap_max_s(gap_max_s);
        let cache = region.open(&options);
        let mut session = cache.session().unwrap();
        assert_eq!(there(&mut session), left, "{gap:?} {gap_max_s:?}");
        let is_stale = |session: &mut Session, key: &[u8]| {
            let item = session.get_with(key, &Get::default(), &mut Vec::new(), |_, _| {}).unwrap();
            item.is_some_and(|item| item.stale)
        };
        assert_eq!(is_stale(&mut session, b"key-7"), stale);
        assert_eq!(is_stale(&mut session, b"large"), stale);
        // What is written behind the gap is fresh, and what is only touched is not.
        session.set(b"key-7", b"fetched anew", 0).unwrap();
        session.set(b"new", b"value", 0).unwrap();
        session.touch(b"key-8", 500).unwrap();
        assert!(!is_stale(&mut session, b"key-7") && !is_stale(&mut session, b"new"));
        assert_eq!(is_stale(&mut session, b"key-8"), stale);
        // Items keep their age when they are moved for room.
        for round in 0..60u32 {
            for i in 0..100u32 {
                session.set(format!("other-{i}").as_bytes(), &[b'o'; 700], 0).unwrap();
            }
            session.upkeep();
            let _ = round;
        }
        for i in 9..500u32 {
            let key = format!("key-{i}");
            let mut out = Vec::new();
            let item = session
                .get_with(key.as_bytes(), &Get::default(), &mut out, |_, _| {})
                .unwrap();
            assert!(item.is_none_or(|item| item.stale == stale), "{key} {gap:?}");
        }
        assert!(cache.check(|_| {}).is_sound());
    }
}

#[test]
fn a_gap_is_none_while_a_process_is_attached() {
    let region = Region::fleeting("gap-attached");
    let other = region.filled();
    region.change_word(LAST_SEEN, earlier_by_600_s);
    let options = options().gap(Gap::Flush).gap_max_s(60);
    let cache = region.open(&options);
    assert_eq!(there(&mut cache.session().unwrap()), 501);
    drop(other);
}

#[test]
fn upkeep_keeps_the_time_last_seen() {
    let region = Region::fleeting("seen");
    let cache = region.filled();
    region.change_word(LAST_SEEN, earlier_by_600_s);
    cache.session().unwrap().upkeep();
    drop(cache);
    let options = options().gap(Gap::Flush).gap_max_s(60);
    assert_eq!(items_after(&region, &options).0, 501);
}

#[test]
fn durable_mode_is_refused_where_it_cannot_be() {
    let region = Region::fleeting("durable");
    let durable = options().durable(true);
    let place = Place::Path(region.0.clone());
    let why = Cache::open(&place, &durable).err().unwrap();
    assert!(matches!(why, OpenError::DurableImpossible { .. }), "{why}");
    assert!(why.to_string().contains("--durable"), "{why}");
    assert!(!region.0.exists(), "nothing is left behind");
    drop(region.filled());
    let why = Cache::open(&place, &durable).err().unwrap();
    assert!(matches!(why, OpenError::NotDurable { .. }), "{why}");
    assert_eq!(items_after(&region, &options()).0, 501, "it is as it was");
    let why = Cache::open(&Place::Memfd, &durable).err().unwrap();
    assert!(matches!(why, OpenError::DurableImpossible { .. }), "{why}");
}

#[test]
fn checksums_are_for_regions_that_were_made_with_them_and_stay_with_copies() {
    let (plain, checked, copy) = (
        Region::fleeting("plain"),
        Region::fleeting("checked"),
        Region::fleeting("checked-copy"),
    );
    drop(plain.filled());
    let with = options().checksums(true);
    let why = Cache::open(&Place::Path(plain.0.clone()), &with).err().unwrap();
    assert!(matches!(why, OpenError::NotChecksummed { .. }), "{why}");
    assert!(why.to_string().contains("--checksums"), "{why}");
    drop(Cache::open(&Place::Path(checked.0.clone()), &with).unwrap());
    // Asked for or not.
    let cache = Cache::open(&Place::Path(checked.0.clone()), &options()).unwrap();
    assert!(cache.info().checksums);
    cache.session().unwrap().set(b"key", b"value", 0).unwrap();
    assert_eq!(cache.copy_to(&copy.0, false, |_| {}).unwrap().items, 1);
    let copied = Cache::open(&Place::Path(copy.0.clone()), &options()).unwrap();
    assert!(copied.info().checksums && copied.check(|_| {}).is_sound());
}

#[test]
fn a_copy_has_every_item_and_is_never_laid_over_another_unasked() {
    let (from, to) = (Region::fleeting("from"), Region::durable("to"));
    let cache = from.filled();
    let mut session = cache.session().unwrap();
    let details = Get {
        details: true,
        ..Get::default()
    };
    let cas = |session: &mut Session| {
        let item = session.get_with(b"key-9", &details, &mut Vec::new(), |_, _| {}).unwrap();
        item.map(|i| (i.cas, i.ttl_s.is_some(), i.flags))
    };
    let mut told = Vec::new();
    let copied = cache.copy_to(&to.0, false, |percent| told.push(percent)).unwrap();
    assert_eq!((copied.items, copied.left_out), (501, 0));
    assert!(told.is_sorted() && told.last() == Some(&100), "{told:?}");
    let again = cache.copy_to(&to.0, false, |_| {});
    assert!(matches!(again, Err(CopyError::Exists { .. })), "{again:?}");
    session.set(b"later", b"value", 0).unwrap();
    assert_eq!(cache.copy_to(&to.0, true, |_| {}).unwrap().items, 502);
    // It was stopped cleanly, so it is warm on a host with another boot.
    to.reboot();
    assert_eq!(items_after(&to, &options()), (501, true));
    let copy = to.open(&options());
    assert_eq!(cas(&mut copy.session().unwrap()), cas(&mut session));
    let folder = to.0.parent().unwrap();
    let left = std::fs::read_dir(folder).unwrap().flatten().any(|e| {
        let name = e.file_name().to_string_lossy().into_owned();
        name.contains(&format!("keyway-test-{}-restart-to", std::process::id())) && name.ends_with(".copy")
    });
    assert!(!left, "the unfinished copy is gone");
}

#[test]
fn a_copy_made_while_others_write_has_whole_items_only() {
    let (from, to) = (Region::fleeting("busy"), Region::fleeting("busy-copy"));
    let cache = from.filled();
    let copies = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut session = cache.session().unwrap();
            // Bounded, should a copy fail.
            for i in 0..2_000_000u32 {
                if copies.load(Relaxed) == 5 {
                    break;
                }
                let value = [b'a' + (i % 26) as u8].repeat(10 + i as usize % 3000);
                session.set(format!("busy-{}", i % 200).as_bytes(), &value, 0).unwrap();
            }
        });
        for _ in 0..5 {
            cache.copy_to(&to.0, true, |_| {}).unwrap();
            let copy = to.open(&options());
            assert!(copy.check(|_| {}).is_sound());
            let mut session = copy.session().unwrap();
            let mut out = Vec::new();
            for i in 0..200 {
                out.clear();
                if session
                    .get_append(format!("busy-{i}").as_bytes(), &mut out)
                    .unwrap()
                    .is_some()
                {
                    assert!(out.len() >= 10 && out.iter().all(|b| *b == out[0]), "a torn value");
                }
            }
            copies.fetch_add(1, Relaxed);
        }
    });
}
