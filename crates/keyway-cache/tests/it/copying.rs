//! Copies of a region on their way to their name. Its enemy: a name that another user can know before the file is there; what a killed
//! copy leaves; and a file that only looks like that, or is still being written, and goes.
//! Guards: P24

use harness::Scratch;
use keyway_cache::{Cache, CopyError, Options, Place};
use nix::fcntl::{FcntlArg, fcntl};
use std::fs::File;
use std::os::unix::fs::{MetadataExt, symlink};

fn open(folder: &Scratch, name: &str, is_there: bool) -> Result<Cache, keyway_cache::OpenError> {
    let options = Options::new().memory((!is_there).then_some(2 << 20)).item_size_max(1 << 19);
    Cache::open(&Place::Path(folder.join(name)), &options)
}

/// A lock of this description on one byte of the file.
fn lock(file: &File, at: i64) {
    let lock = nix::libc::flock {
        l_type: i16::try_from(nix::libc::F_WRLCK).unwrap(),
        l_whence: i16::try_from(nix::libc::SEEK_SET).unwrap(),
        l_start: at,
        l_len: 1,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_SETLK(&lock)).unwrap();
}

#[test]
fn an_unfinished_copy_has_a_name_of_its_own_and_is_this_users_alone() {
    let folder = Scratch::new();
    let cache = open(&folder, "from", false).unwrap();
    let mut seen = Vec::new();
    for _ in 0..2 {
        let copied = cache.copy_to(&folder.join("to"), true, |percent| {
            if percent < 100 {
                let name = folder.names().into_iter().find(|name| name.ends_with(".copy")).unwrap();
                assert_eq!(folder.join(&name).metadata().unwrap().mode() & 0o777, 0o600);
                seen.push(name);
            }
        });
        assert_eq!(copied.unwrap().items, 0);
    }
    seen.dedup();
    let [one, other] = seen.as_slice() else { panic!("{seen:?}") };
    for name in [one, other] {
        let digits = name.strip_prefix(".to.").and_then(|name| name.strip_suffix(".copy")).unwrap();
        assert!(digits.len() == 32 && digits.bytes().all(|b| b.is_ascii_hexdigit()), "{name}");
    }
    assert_eq!(folder.names(), ["from", "to"]);
}

#[test]
fn an_interrupted_copy_leaves_nothing() {
    let folder = Scratch::new();
    let cache = open(&folder, "from", false).unwrap();
    // At its start, and when all items are copied.
    for rounds in [0, 1] {
        let mut told = 0;
        let copied = cache.copy_to_while(&folder.join("to"), false, |_| {
            told += 1;
            told <= rounds
        });
        assert!(matches!(copied, Err(CopyError::Interrupted { .. })), "{copied:?}");
        assert_eq!(folder.names(), ["from"]);
    }
}

#[test]
fn what_a_killed_copy_left_goes_and_nothing_else() {
    let folder = Scratch::new();
    let cache = open(&folder, "from", false).unwrap();
    let digits = "0123456789abcdef0123456789abcdef";
    let left = format!(".to.{digits}.copy");
    let others = [
        format!(".to.{}.copy", &digits[1..]),
        format!(".to.{digits}0.copy"),
        format!(".to.{digits}.copies"),
        format!(".to.{}z.copy", &digits[1..]),
        format!(".other.{digits}.copy"),
        format!("to.{digits}.copy"),
    ];
    let linked = format!(".to.{}.copy", digits.replace('0', "f"));
    for name in &others {
        std::fs::write(folder.join(name), b"").unwrap();
    }
    symlink(folder.join(&others[0]), folder.join(&linked)).unwrap();
    // In work: whatever is locked in it.
    let locked: Vec<(String, File)> = [(1, '1'), (0, '2'), (4096 + 64 * 7, '3')]
        .into_iter()
        .map(|(at, digit)| {
            let name = format!(".to.{}.copy", digits.replace('0', &digit.to_string()));
            let file = File::create(folder.join(&name)).unwrap();
            lock(&file, at);
            (name, file)
        })
        .collect();
    let mut kept: Vec<String> = others.iter().cloned().chain([linked, "from".into()]).collect();
    kept.extend(locked.iter().map(|(name, _)| name.clone()));
    kept.sort();
    let put = || std::fs::write(folder.join(&left), b"half of a region").unwrap();
    // At the next open of the place, though there is nothing.
    put();
    assert!(open(&folder, "to", true).is_err());
    assert_eq!(folder.names(), kept);
    // At the next copy there.
    put();
    cache.copy_to(&folder.join("to"), false, |_| {}).unwrap();
    kept.push("to".into());
    kept.sort();
    assert_eq!(folder.names(), kept);
    put();
    drop(open(&folder, "to", true).unwrap());
    assert_eq!(folder.names(), kept);
    drop(locked);
    drop(open(&folder, "to", false).unwrap());
    assert_eq!(folder.names().len(), kept.len() - 3);
}

/// `keyway copy` opens a region with the largest items that it can have, also when its memory limit was lowered below two of them.
#[test]
fn a_region_whose_limit_was_lowered_can_be_copied() {
    let folder = Scratch::new();
    let place = Place::Path(folder.join("from"));
    let options = Options::new().memory(16 << 20);
    let server = Cache::open(&place, &options.clone().item_size_max(1 << 19)).unwrap();
    server.session().unwrap().set(b"key", b"value", 0).unwrap();
    let other = Cache::open(&place, &options.item_size_max(8_000_000).memory(None)).unwrap();
    let limit = server.limit(6 << 20).unwrap();
    assert!(limit < 8 << 20, "{limit}");
    let copied = other.copy_to(&folder.join("to"), false, |_| {});
    assert_eq!(copied.unwrap().items, 1);
}
