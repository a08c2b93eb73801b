//! `keyway regions`. Enemies: a region that it does not find; one that it removes although it is used, or was not asked to remove.
//! Guards: P23

use harness::{Scratch, skip, wait_until};
use keyway_cache::{Cache, Options, Place};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

fn region(folder: &Scratch, name: &str, items: u32) -> Cache {
    let place = Place::Path(folder.join(name));
    let cache = Cache::open(&place, &Options::new().memory(4 << 20)).unwrap();
    fill(&cache, items);
    cache
}

fn names(folder: &Scratch) -> Vec<String> {
    let entries = std::fs::read_dir(folder.path()).unwrap().flatten();
    let mut names: Vec<_> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn prune(folder: &Scratch, more: &[&str]) -> Output {
    let folder = folder.path().to_str().unwrap();
    regions(&[&[folder, "--prune"], more].concat())
}

fn fill(cache: &Cache, items: u32) {
    let mut session = cache.session().unwrap();
    for key in 0..items {
        session.set(format!("key-{key}").as_bytes(), b"value", 0).unwrap();
    }
}

fn regions(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_keyway"));
    command.arg("regions").args(arguments).stdin(Stdio::null());
    command.output().unwrap()
}

/// The regions at these places (the machine's, if there are none), by the last part of their name.
fn listed(arguments: &[&str]) -> BTreeMap<String, serde_json::Value> {
    let output = regions(&[&["--json"], arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let rows = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let named = |(number, row): (usize, serde_json::Value)| {
        let name = row["place"].as_str().unwrap().rsplit('/').next().unwrap().to_owned();
        // Regions without a name are all called the same.
        let name = if name.starts_with("memfd:") {
            format!("{name} {number}")
        } else {
            name
        };
        (name, row)
    };
    rows.enumerate().map(named).collect()
}

/// [`listed`], once that is true: a child that another test starts has this process's regions until it runs its own program.
fn listed_once(
    arguments: &[&str],
    is_true: impl Fn(&BTreeMap<String, serde_json::Value>) -> bool,
) -> BTreeMap<String, serde_json::Value> {
    wait_until("what is listed", Duration::from_secs(20), || {
        Some(listed(arguments)).filter(|listed| is_true(listed))
    })
}

/// The processes of a region that only this one uses.
fn own() -> serde_json::Value {
    serde_json::json!([std::process::id()])
}

/// Where a superblock has the fingerprint of its layout, and the version of its maker (docs/region.md).
const FINGERPRINT: u64 = 136;
const PROGRAM: u64 = 144;

#[test]
fn regions_are_listed_with_what_is_in_them() {
    let folder = Scratch::new();
    let used = region(&folder, "used", 7);
    assert!(region(&folder, "unused", 3).close());
    std::fs::write(folder.join("text"), "no region".repeat(1_000)).unwrap();
    assert!(region(&folder, "other", 1).close());
    let other = File::options().write(true).open(folder.join("other")).unwrap();
    other.write_all_at(&0x1234_u64.to_le_bytes(), FINGERPRINT).unwrap();
    other.write_all_at(b"9.8.7\0", PROGRAM).unwrap();
    std::os::unix::fs::symlink(folder.join("used"), folder.join("link")).unwrap();
    nix::unistd::mkfifo(&folder.join("pipe"), nix::sys::stat::Mode::S_IRUSR).unwrap();
    let listed = listed_once(&[folder.path().to_str().unwrap()], |listed| {
        listed["used"]["pids"] == own() && listed["unused"]["pids"] == serde_json::json!([])
    });
    assert_eq!(listed.keys().collect::<Vec<_>>(), ["other", "unused", "used"]);
    assert_eq!((&listed["used"]["items"], &listed["unused"]["items"]), (&7.into(), &3.into()));
    assert_eq!(listed["used"]["memory_bytes"], used.info().limit_bytes);
    assert!(listed["other"]["items"].is_null());
    assert!(listed["other"]["unknown"].as_str().is_some_and(|why| why.contains("9.8.7")));
    let text = String::from_utf8(regions(&[folder.path().to_str().unwrap()]).stdout).unwrap();
    let of = |name| {
        text.lines()
            .find(|line| line.contains(name))
            .unwrap_or_else(|| panic!("{text}"))
    };
    assert!(
        of("/used").contains(" now ") && of("/used").contains(&std::process::id().to_string()),
        "{text}"
    );
    assert!(
        of("/unused").contains("s ago") && of("/unused").ends_with(env!("CARGO_PKG_VERSION")),
        "{text}"
    );
}

#[test]
fn a_region_without_a_name_is_found_where_it_is_mapped() {
    let folder = Scratch::new();
    let (_named, memfd) = (
        region(&folder, "named", 5),
        Cache::open(&Place::Memfd, &Options::new().memory(4 << 20)).unwrap(),
    );
    fill(&memfd, 11);
    let is_ours = |row: &&serde_json::Value| row["pids"] == own() && row["items"] == 11;
    let is_root = nix::unistd::geteuid().is_root();
    let listed = listed_once(&[], |listed| {
        listed["named"]["pids"] == own() && (!is_root || listed.values().any(|row| is_ours(&row)))
    });
    assert_eq!(listed["named"]["items"], 5);
    // To open what has no name takes a capability.
    if is_root {
        assert_eq!(listed.values().filter(is_ours).count(), 1, "{listed:?}");
    } else {
        eprintln!("SKIP: only root may open what a process has mapped without a name");
    }
}

#[test]
fn only_unused_regions_are_removed_and_only_when_told() {
    let folder = Scratch::new();
    let used = region(&folder, "used", 1);
    assert!(region(&folder, "unused", 1).close());
    std::fs::write(folder.join("text"), "no region").unwrap();
    // A region can be made in it, but nothing shows that it was meant for one.
    std::fs::write(folder.join("empty"), "").unwrap();
    let all = ["empty", "text", "unused", "used"];
    let unanswered = prune(&folder, &["--unused-for", "0s"]);
    assert_eq!(unanswered.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&unanswered.stderr).contains("--yes"));
    assert_eq!(names(&folder), all);
    let young = prune(&folder, &["--yes"]);
    assert!(young.status.success() && String::from_utf8_lossy(&young.stdout).contains("7d"));
    assert_eq!(names(&folder), all);
    let pruned = prune(&folder, &["--unused-for", "0s", "--yes"]);
    assert!(pruned.status.success(), "{pruned:?}");
    let said = String::from_utf8_lossy(&pruned.stdout);
    assert!(said.contains("/unused") && !said.contains("/used"), "{said}");
    assert_eq!(names(&folder), ["empty", "text", "used"]);
    assert!(used.close());
    assert!(prune(&folder, &["--unused-for", "0s", "--yes"]).status.success());
    assert_eq!(names(&folder), ["empty", "text"]);
}

/// The enemy: another user's program, which has a file of this name mapped in a mount namespace of its own.
#[test]
fn a_region_that_a_mapping_of_another_mount_namespace_names_is_not_taken_for_it() {
    let unshare = |arguments: &[&str]| {
        let mut command = Command::new("unshare");
        command
            .arg("--mount")
            .args(arguments)
            .stdin(Stdio::null())
            .stderr(Stdio::null());
        command
    };
    if !unshare(&["mount", "-t", "tmpfs", "none", "/mnt"])
        .status()
        .is_ok_and(|status| status.success())
    {
        return harness::skip("mappings of other mount namespaces", "it needs root, for a mount namespace");
    }
    let folder = Scratch::new();
    assert!(region(&folder, "here", 3).close());
    let path = folder.join("here");
    let script = "mount -t tmpfs none \"$0\" && exec \"$1\" serve --listen 127.0.0.1:0 --region \"$0/here\" --memory 4m --socket \"$0/socket\"";
    let place = folder.path().to_str().unwrap();
    let mut other = unshare(&["sh", "-c", script, place, env!("CARGO_BIN_EXE_keyway")])
        .spawn()
        .unwrap();
    harness::wait_until("the other namespace's region is mapped", harness::DEADLINE, || {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", other.id())).unwrap_or_default();
        maps.contains(path.to_str().unwrap()).then_some(())
    });
    let listed = listed(&[]);
    other.kill().unwrap();
    other.wait().unwrap();
    let found: Vec<_> = listed.values().filter(|row| row["place"] == path.to_str().unwrap()).collect();
    assert!(
        found.iter().all(|row| row["items"] != 3),
        "the region of this mount namespace: {found:?}"
    );
    assert!(
        found
            .iter()
            .all(|row| row["items"] == 0 && row["pids"].as_array().is_some_and(|pids| !pids.is_empty()))
    );
}

/// A process of another process namespace attaches by its number there, and has the region mapped by its number here.
#[test]
fn a_process_of_another_namespace_is_one_process() {
    if !nix::unistd::geteuid().is_root() {
        return skip("a process of another namespace", "only root can make one");
    }
    let folder = Scratch::new();
    let cache = region(&folder, "used", 1);
    let mut command = Command::new("unshare");
    command.args([
        "--pid",
        "--fork",
        "--kill-child",
        env!("CARGO_BIN_EXE_keyway"),
        "watch",
        "--region",
    ]);
    command.arg(folder.join("used")).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    assert!(line.starts_with("keyway: watching"), "{line}");
    let listed = listed(&[folder.path().to_str().unwrap()]);
    let pids = listed["used"]["pids"].as_array().unwrap();
    assert!(pids.len() == 2 && pids.contains(&std::process::id().into()), "{pids:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    drop(cache);
}

/// Of a region that this user may not look into, neither the processes nor the last use are known: that is not none.
#[test]
fn what_is_not_known_of_another_users_region_is_said_to_be_unknown() {
    if !nix::unistd::geteuid().is_root() {
        return skip("a region of another user", "only root can ask as one");
    }
    let folder = Scratch::new();
    let cache = region(&folder, "used", 1);
    let program = folder.join("keyway");
    harness::copy_program(env!("CARGO_BIN_EXE_keyway"), &program);
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    // Only a default name shows that a file which may not be read is a region.
    let place = format!("/dev/shm/keyway-0-test-{}", std::process::id());
    let named = Cache::open(&Place::at(&place), &Options::new().memory(4 << 20)).unwrap();
    let asked = |more: &[&str]| {
        let mut command = Command::new(&program);
        command.args(["regions", &place]).args(more).uid(65_534).gid(65_534);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let (text, json) = (asked(&[]), asked(&["--json"]));
    drop(named);
    std::fs::remove_file(&place).unwrap();
    let row: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(row["pids"].is_null() && row["last_used_unix_s"].is_null(), "{row}");
    assert_eq!(text.lines().nth(1).unwrap().matches("unknown").count(), 2, "{text}");
    drop(cache);
}

/// A command that is given a server's address only finds the server's region: its file, or for another user the socket that hands it out.
#[test]
fn the_region_of_a_server_is_found_by_its_address() {
    let folder = Scratch::new();
    std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let (region, socket) = (folder.join("region"), folder.join("region.sock"));
    let (region, socket) = (region.to_str().unwrap(), socket.to_str().unwrap());
    let program = folder.join("keyway");
    harness::copy_program(env!("CARGO_BIN_EXE_keyway"), &program);
    let keyway = |uid: Option<u32>, arguments: &[&str]| {
        let mut command = Command::new(&program);
        // What the environment names is not what the command line asks for.
        command
            .args(arguments)
            .env("KEYWAY_REGION", "/dev/null/none")
            .stdin(Stdio::null());
        uid.map(|uid| command.uid(uid).gid(uid));
        let output = command.output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    let address = format!("127.0.0.1:{}", harness::free_port());
    let serving = |more: &[&str]| {
        let mut command = Command::new(&program);
        command
            .args(["serve", "--threads", "1", "--memory", "4m", "--listen", &address])
            .args(more);
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        child
    };

    let mut server = serving(&["--region", region, "--region-socket", socket]);
    let asked = ["regions", "--server", &address];
    assert_eq!(keyway(None, &asked), (Some(0), format!("{region}\n")));
    if nix::unistd::geteuid().is_root() {
        assert_eq!(keyway(Some(65_534), &asked), (Some(0), format!("{socket}\n")));
    }
    for command in ["stats", "top", "doctor"] {
        let once = if command == "top" { &["--once"][..] } else { &[] };
        let (_, text) = keyway(None, &[&[command, "--json", "--server", &address], once].concat());
        let line = text.lines().next().unwrap_or_default();
        let said: serde_json::Value = serde_json::from_str(line).unwrap_or_else(|why| panic!("{command}: {why}: {text}"));
        assert_eq!(said["place"], region, "{command}: {said}");
        let server = if command == "doctor" {
            said["server"].is_null()
        } else {
            said["server"]["pid"] == server.id()
        };
        assert!(server, "{command}: {said}");
    }
    // Another file in its place is not the server's region.
    let away = folder.join("away");
    std::fs::rename(region, &away).unwrap();
    std::fs::write(region, "another").unwrap();
    let replaced = keyway(None, &asked);
    std::fs::rename(&away, region).unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(replaced, (Some(0), format!("{socket}\n")));

    let mut server = serving(&["--region", "memfd"]);
    let (code, said) = keyway(None, &asked);
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(code == Some(1) && said.contains("--region-socket"), "{code:?}: {said}");
}
