//! A region's creation under other people's conditions. Its enemy: many processes that open an absent region at once, and each allocate
//! it; a maker that is killed or stopped anywhere; what it leaves; a file that is no region, and is changed all the same; a region of
//! another layout that is taken for one of this program's.
//! Guards: P22

use harness::Scratch;
use keyway_cache::{Cache, OpenError, Options, Owners, Place};
use nix::sys::signal::{Signal, kill};
use nix::sys::statvfs::statvfs;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long something may take that takes no time: for hangs only.
const HANGS_AFTER: Duration = Duration::from_secs(60);

/// A folder of a test's own, removed at the end; perhaps a file system of its own.
struct Folder {
    scratch: Scratch,
    is_mounted: bool,
}

impl Folder {
    fn new() -> Self {
        Self {
            scratch: Scratch::new(),
            is_mounted: false,
        }
    }

    /// A tmpfs of so many MiB, or why there is none.
    fn mounted(mib: u64) -> Result<Self, String> {
        let mut folder = Self::new();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={mib}m"), "keyway-creation"]);
        let output = mount.arg(folder.scratch.path()).output().map_err(|e| format!("mount: {e}"))?;
        folder.is_mounted = output.status.success();
        match folder.is_mounted {
            true => Ok(folder),
            false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        }
    }

    fn region(&self) -> PathBuf {
        self.scratch.join("region")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = Command::new("umount").arg("-l").arg(self.scratch.path()).status();
        }
    }
}

fn skip(what: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIP {what}: {why}");
    assert!(
        std::env::var_os("KEYWAY_TESTS_REQUIRE_ALL").is_none(),
        "a skip is a failure here"
    );
}

fn options(mib: u64) -> Options {
    Options::new().memory(mib << 20)
}

/// Makes no region.
fn existing() -> Options {
    Options::new()
}

fn open(path: &Path, options: &Options) -> Result<Cache, OpenError> {
    Cache::open(&Place::Path(path.to_path_buf()), options)
}

/// The error as text.
fn refused(path: &Path, options: &Options) -> String {
    open(path, options).map(drop).unwrap_err().to_string()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < HANGS_AFTER, "{what}: not after {HANGS_AFTER:?}");
        std::thread::yield_now();
    }
}

/// The environment variables by which a test tells its child what to open, and of what size.
const PATH: &str = "KEYWAY_TEST_PLACE";
const MEMORY: &str = "KEYWAY_TEST_ARGUMENT";

/// What a child's region allows when it is made.
const MODE: u32 = 0o640;

/// The permissions of a file.
fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o777
}

/// The child's side: opens the region when its input ends, stores a key of its own, and says so.
#[test]
fn part_of_a_child() {
    let (Ok(path), Ok(mib)) = (std::env::var(PATH), std::env::var(MEMORY)) else {
        return;
    };
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
    let cache = open(Path::new(&path), &options(mib.parse().unwrap()).mode(MODE)).unwrap();
    let key = format!("child-{}", std::process::id());
    cache.session().unwrap().set(key.as_bytes(), b"was here", 0).unwrap();
}

fn child(path: &Path, mib: u64, begin: impl Into<Stdio>) -> Child {
    harness::own_test(&[], module_path!(), "part_of_a_child")
        .env(PATH, path)
        .env(MEMORY, mib.to_string())
        .stdin(begin)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn pid(child: &Child) -> Pid {
    Pid::from_raw(child.id().try_into().unwrap())
}

#[test]
fn many_that_open_an_absent_region_at_once_share_one() {
    const PROCESSES: usize = 16;
    const ROUNDS: usize = 20;
    // One region of 16 MiB fits, and not a quarter of another.
    let folder = match Folder::mounted(19) {
        Ok(folder) => folder,
        Err(why) => return skip("many that create a region at once", &why),
    };
    for round in 0..ROUNDS {
        let (begin, all_begin) = std::io::pipe().unwrap();
        let children: Vec<Child> = (0..PROCESSES)
            .map(|_| child(&folder.region(), 16, OwnedFd::from(begin.try_clone().unwrap())))
            .collect();
        drop((begin, all_begin));
        let pids: Vec<u32> = children.iter().map(Child::id).collect();
        for child in children {
            let output = child.wait_with_output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "round {round}: {said}");
        }
        let cache = open(&folder.region(), &existing()).unwrap();
        let mut session = cache.session().unwrap();
        for pid in pids {
            let key = format!("child-{pid}");
            assert!(
                session.get_append(key.as_bytes(), &mut Vec::new()).unwrap().is_some(),
                "{key} is elsewhere"
            );
        }
        let fs = statvfs(folder.scratch.path()).unwrap();
        let used = (fs.blocks() - fs.blocks_free()) * fs.fragment_size();
        assert!(used <= 16 << 20, "{used} bytes are allocated");
        assert_eq!(folder.scratch.names(), ["region"]);
        drop(session);
        std::fs::remove_file(folder.region()).unwrap();
    }
}

/// The region's first word, if there is one.
fn magic(path: &Path) -> Option<[u8; 8]> {
    let mut bytes = [0; 8];
    File::open(path).ok()?.read_exact_at(&mut bytes, 0).ok()?;
    Some(bytes)
}

const MAGIC: [u8; 8] = *b"KEYWAYR\n";

/// A child that makes a region, caught when so many blocks of it are there (0: when it is open).
fn maker(path: &Path, mib: u64, blocks: u64) -> Child {
    let mut child = child(path, mib, Stdio::null());
    until("a maker at work", || {
        child.try_wait().unwrap().is_some() || path.symlink_metadata().is_ok_and(|meta| meta.blocks() >= blocks)
    });
    child
}

#[test]
fn a_killed_maker_leaves_what_the_next_one_makes_anew() {
    const MIB: u64 = 64;
    const ROUNDS: u64 = 40;
    let folder = Folder::new();
    let path = folder.region();
    let mut unfinished = 0;
    for round in 0..ROUNDS {
        let mut maker = maker(&path, MIB, round * (MIB << 11) / ROUNDS);
        maker.kill().unwrap();
        maker.wait().unwrap();
        let is_made = magic(&path) == Some(MAGIC);
        unfinished += u64::from(!is_made);
        if round % 2 == 1 && !is_made {
            let why = open(&path, &existing()).map(drop).unwrap_err();
            assert!(matches!(why, OpenError::Absent { .. }), "{why}");
            assert_eq!(folder.scratch.names(), [""; 0], "round {round}: what was left goes");
        }
        let cache = open(&path, &options(MIB)).unwrap();
        let report = cache.check(|_| {});
        assert!(report.is_sound(), "round {round}: {:?}", report.problems);
        assert!(is_made || !cache.info().warm, "round {round}");
        cache.session().unwrap().set(b"key", b"value", 0).unwrap();
        assert_eq!(folder.scratch.names(), ["region"], "round {round}");
        std::fs::remove_file(&path).unwrap();
    }
    assert!(unfinished > 0, "no maker was killed while it was at work");
}

#[test]
fn a_stopped_maker_is_waited_for_and_named() {
    const MIB: u64 = 256;
    let folder = Folder::new();
    let path = folder.region();
    let mut stopped = None;
    // One that has finished before it is stopped is of no use here.
    for _ in 0..100 {
        let mut maker = maker(&path, MIB, MIB << 8);
        let _ = kill(pid(&maker), Signal::SIGSTOP);
        let is_stopped = matches!(
            waitpid(pid(&maker), Some(WaitPidFlag::WUNTRACED)),
            Ok(WaitStatus::Stopped(..))
        );
        if is_stopped && magic(&path) != Some(MAGIC) {
            stopped = Some(maker);
            break;
        }
        let _ = maker.kill();
        let _ = maker.wait();
        let _ = std::fs::remove_file(&path);
    }
    let mut maker = stopped.expect("a maker that is stopped at its work");
    assert_eq!(mode(&path), 0o600, "no other user opens what is being made");
    for options in [options(MIB), existing()] {
        let why = open(&path, &options).map(drop).unwrap_err();
        assert!(matches!(why, OpenError::Busy { .. }), "{why}");
        let why = why.to_string();
        assert!(why.contains("is making the region") && why.contains("first byte"), "{why}");
    }
    kill(pid(&maker), Signal::SIGCONT).unwrap();
    assert!(maker.wait().unwrap().success());
    assert_eq!(mode(&path), MODE);
    let cache = open(&path, &existing()).unwrap();
    let key = format!("child-{}", maker.id());
    assert!(
        cache
            .session()
            .unwrap()
            .get_append(key.as_bytes(), &mut Vec::new())
            .unwrap()
            .is_some()
    );
    assert_eq!(folder.scratch.names(), ["region"]);
}

#[test]
fn what_is_no_region_is_left_as_it_is() {
    let folder = Folder::new();
    let path = folder.region();
    let state = |path: &Path| {
        let meta = path.symlink_metadata().unwrap();
        (
            meta.ino(),
            meta.len(),
            meta.mode(),
            meta.mtime(),
            meta.mtime_nsec(),
            meta.ctime_nsec(),
        )
    };
    let unlike = b"KEYWAYX\n".repeat(1000);
    for bytes in [b"K".as_slice(), b"KEYWAYu", b"a text", &[0; 4096], &unlike] {
        std::fs::write(&path, bytes).unwrap();
        let before = state(&path);
        for options in [options(2), existing()] {
            let why = refused(&path, &options);
            assert!(why.contains("the file was not changed"), "{why}");
        }
        assert_eq!((state(&path), std::fs::read(&path).unwrap()), (before, bytes.to_vec()));
        std::fs::remove_file(&path).unwrap();
    }
    std::fs::create_dir(&path).unwrap();
    let why = open(&path, &options(2)).map(drop).unwrap_err();
    assert!(matches!(why, OpenError::NotAFile { .. }), "{why}");
    std::fs::remove_dir(&path).unwrap();
    // Through a link nothing is made, nor used, though what it leads to is empty.
    let (empty, absent) = (folder.scratch.join("empty"), folder.scratch.join("absent"));
    std::fs::write(&empty, b"").unwrap();
    for target in [&empty, &absent] {
        symlink(target, &path).unwrap();
        refused(&path, &options(2));
        std::fs::remove_file(&path).unwrap();
    }
    assert_eq!((state(&empty).1, absent.exists()), (0, false));
}

#[test]
fn an_unfinished_file_of_another_user_is_left_as_it_is() {
    let folder = Folder::new();
    let path = folder.region();
    std::fs::write(&path, b"KEYWAYu\n").unwrap();
    if let Err(why) = nix::unistd::chown(&path, Some(nix::unistd::Uid::from_raw(65534)), None) {
        return skip("another user's unfinished region", &format!("chown: {why}"));
    }
    for options in [options(2), existing()] {
        let why = refused(&path, &options);
        assert!(why.contains("user 65534"), "{why}");
        let any = options.owners(Owners::Any);
        let why = refused(&path, &any);
        assert!(
            why.contains("not finished") && why.contains("the file was not changed"),
            "{why}"
        );
    }
    assert_eq!(std::fs::read(&path).unwrap(), b"KEYWAYu\n");
}

#[test]
fn a_leftover_is_made_anew_for_no_more_than_who_makes_it_allows() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let path = folder.region();
    std::fs::write(&path, b"KEYWAYu\n").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o660)).unwrap();
    let inode = path.metadata().unwrap().ino();
    drop(open(&path, &options(2)).unwrap());
    assert_eq!((mode(&path), path.metadata().unwrap().ino()), (0o600, inode));
}

#[test]
fn a_region_as_large_as_its_file_system_leaves_room_for_small_files() {
    let folder = match Folder::mounted(64) {
        Ok(folder) => folder,
        Err(why) => return skip("a region as large as its file system", &why),
    };
    let free = || {
        let fs = statvfs(folder.scratch.path()).unwrap();
        fs.blocks_available() * fs.fragment_size()
    };
    let held = |options: &Options| open(&folder.region(), options).unwrap().info().limit_bytes;
    // Made, opened again, made anew, and grown to it: each time a server asks for all of it.
    let first = held(&options(64));
    let left = 64 << 10..1 << 20;
    assert!(left.contains(&free()), "{}", free());
    assert_eq!(held(&options(64)), first);
    assert!(left.contains(&free()), "{}", free());
    std::fs::write(folder.region(), b"KEYWAYu\n").unwrap();
    assert_eq!(held(&options(64)), first);
    assert!(left.contains(&free()), "{}", free());
    std::fs::remove_file(folder.region()).unwrap();
    // A child that another test has forked may hold it for a moment.
    let due = std::time::Instant::now() + std::time::Duration::from_secs(30);
    while free() < 60 << 20 {
        assert!(
            std::time::Instant::now() < due,
            "the file is gone, and its memory is not: {}",
            free()
        );
        std::thread::yield_now();
    }
    assert!(held(&options(32)) <= 32 << 20);
    assert!(held(&options(64)) > 60 << 20);
    assert!(left.contains(&free()), "{}", free());
    std::fs::write(folder.scratch.join("small"), [0; 4096]).unwrap();
    // One that needs more than there is, is refused.
    let why = open(&folder.region(), &options(65)).map(drop).unwrap_err();
    assert!(matches!(why, OpenError::NotGrown { .. }), "{why}");
    assert!(why.to_string().contains("64 KiB stay free"), "{why}");
}

#[test]
fn a_creation_that_fails_leaves_nothing() {
    let folder = match Folder::mounted(8) {
        Ok(folder) => folder,
        Err(why) => return skip("a creation without room", &why),
    };
    let why = open(&folder.region(), &options(64)).map(drop).unwrap_err();
    assert!(matches!(why, OpenError::NoSpace { .. }), "{why}");
    let why = why.to_string();
    assert!(
        why.contains("for a region of 6") && why.contains("it has 8188 KiB free") && why.contains("KiB are needed"),
        "{why}"
    );
    assert_eq!(folder.scratch.names(), [""; 0]);
    let fs = statvfs(folder.scratch.path()).unwrap();
    assert_eq!(fs.blocks(), fs.blocks_free());
    // The same where not even the first page has room.
    let full = folder.scratch.join("full");
    assert!(std::fs::write(&full, vec![0; 9 << 20]).is_err(), "it is filled");
    let why = open(&folder.region(), &options(64)).map(drop).unwrap_err();
    assert!(matches!(why, OpenError::NoSpace { .. }), "{why}");
    let why = why.to_string();
    assert!(
        why.contains("for a region of 64 MiB") && why.contains("request less memory"),
        "{why}"
    );
    assert_eq!(folder.scratch.names(), ["full"]);
    std::fs::remove_file(full).unwrap();
    assert!(open(&folder.region(), &options(4)).is_ok());
}

/// A region of an older format, from its superblock's words, and as long as it was.
fn older(folder: &Folder, image: &str) -> PathBuf {
    let path = folder.scratch.join("older");
    let file = File::create(&path).unwrap();
    for line in image.lines() {
        if let Some((_, len)) = line.split_once("File length, bytes: ") {
            file.set_len(len.parse().unwrap()).unwrap();
        } else {
            let (at, word) = line.split_once(' ').unwrap();
            let word = u64::from_str_radix(word, 16).unwrap();
            file.write_all_at(&word.to_le_bytes(), at.parse().unwrap()).unwrap();
        }
    }
    path
}

#[test]
fn regions_of_older_formats_and_layouts_are_refused_with_both_versions() {
    let folder = Folder::new();
    let version = env!("CARGO_PKG_VERSION");
    let format_1 = "made by an older Keyway (format 1)";
    for (image, made_by) in [
        (include_str!("../images/format-1-plain.txt"), format_1),
        (include_str!("../images/format-1-larger.txt"), format_1),
        (include_str!("../images/format-1-checksums.txt"), format_1),
        (
            include_str!("../images/format-2-short-lived.txt"),
            "made by Keyway 0.2.0 (format 2, layout e8eef821fc51c9f6)",
        ),
        (
            include_str!("../images/format-2-plain.txt"),
            "made by Keyway 0.2.0 (format 2, layout ed96d1ffa0dd447f)",
        ),
        (
            include_str!("../images/format-3-moving.txt"),
            "made by Keyway 0.2.0 (format 3, layout 51c1191d8896cc81)",
        ),
    ] {
        let path = older(&folder, image);
        let before = std::fs::read(&path).unwrap();
        for options in [options(2), existing()] {
            let why = refused(&path, &options);
            assert!(why.contains(made_by), "{why}");
            assert!(why.contains(&format!("this is Keyway {version} (format 3, layout ")), "{why}");
            assert!(why.contains("keyway dump") && why.contains("another path"), "{why}");
        }
        assert_eq!(std::fs::read(&path).unwrap(), before);
    }
}

#[test]
fn a_region_of_another_layout_is_refused_with_both_versions() {
    /// Where a superblock has the fingerprint, and the version of its maker (`docs/region.md`).
    const FINGERPRINT: u64 = 136;
    const PROGRAM: u64 = 144;
    let folder = Folder::new();
    let path = folder.region();
    open(&path, &options(2)).unwrap().close();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let mut program = [0; 32];
    file.read_exact_at(&mut program, PROGRAM).unwrap();
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(String::from_utf8_lossy(&program).trim_end_matches('\0'), version);
    file.write_all_at(&0x1234_u64.to_le_bytes(), FINGERPRINT).unwrap();
    file.write_all_at(b"9.8.7\0", PROGRAM).unwrap();
    let why = refused(&path, &options(2));
    assert!(
        why.contains("made by Keyway 9.8.7 (format 3, layout 0000000000001234)"),
        "{why}"
    );
    assert!(why.contains(&format!("this is Keyway {version} (format 3, layout ")), "{why}");
}

#[test]
fn a_region_is_in_no_core_dump_and_takes_little_address_space() {
    let folder = Folder::new();
    let in_file = open(&folder.region(), &options(64)).unwrap();
    let anonymous = Cache::open(&Place::Memfd, &options(64)).unwrap();
    let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut mapping, mut seen) = (String::new(), 0);
    for line in smaps.lines() {
        if line.contains(folder.region().to_str().unwrap()) || line.contains("memfd:keyway") {
            mapping = line.to_owned();
        } else if let Some(flags) = line.strip_prefix("VmFlags:")
            && !mapping.is_empty()
        {
            assert!(flags.split(' ').any(|flag| flag == "dd"), "{mapping}: {flags}");
            let (begin, end) = mapping.split_once(' ').unwrap().0.split_once('-').unwrap();
            let address = |text| u64::from_str_radix(text, 16).unwrap();
            let len = address(end) - address(begin);
            assert!(len < (1 << 30) + (16 << 20), "{mapping}: {len} bytes");
            (mapping, seen) = (String::new(), seen + 1);
        }
    }
    assert_eq!(seen, 2);
    drop((in_file, anonymous));
}

/// A mistyped path is no second, private cache: what would have to be made is not made without a size, and the message says what there is.
#[test]
fn no_region_is_made_without_its_memory_and_the_message_has_those_that_there_are() {
    let folder = Folder::new();
    let there = PathBuf::from(format!("/dev/shm/keyway-test-there-{}", std::process::id()));
    let cache = open(&there, &options(2)).unwrap();
    let why = open(&folder.region(), &Options::new()).map(drop).unwrap_err();
    std::fs::remove_file(&there).unwrap();
    assert_eq!(folder.scratch.names(), [""; 0]);
    let OpenError::Absent { there: listed, .. } = &why else {
        panic!("{why}");
    };
    assert!(listed.contains(&there), "{listed:?}");
    let said = why.to_string();
    for part in [
        folder.region().to_str().unwrap(),
        listed.first().unwrap().to_str().unwrap(),
        "there is no region",
        "keyway serve",
        "Options::memory",
        "memory=",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let memory = cache.info().limit_bytes;
    assert_eq!(open(&folder.region(), &options(2)).unwrap().info().limit_bytes, memory);
    // One that is there keeps its memory.
    assert_eq!(open(&folder.region(), &Options::new()).unwrap().info().limit_bytes, memory);
}
