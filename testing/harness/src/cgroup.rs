//! A cgroup (version 2) that has this process in it, and what it starts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The folder of a cgroup2 file system that has this process below it: the mounted one, or one that is mounted for this purpose at a fixed
/// place and stays. `Err` says why there is none.
pub fn cgroup() -> Result<&'static Path, String> {
    static FOUND: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let found = FOUND.get_or_init(|| mounted().map_or_else(mount, Ok));
    found.as_deref().map_err(Clone::clone)
}

/// The arguments that make a `keyway serve` bypass TCP, if `KEYWAY_TESTS_LOCAL_BYPASS` asks for it.
///
/// # Panics
///
/// When there is no cgroup.
pub fn bypass_arguments() -> Vec<String> {
    if !crate::is_set("KEYWAY_TESTS_LOCAL_BYPASS") {
        return Vec::new();
    }
    let folder = cgroup().unwrap_or_else(|why| panic!("KEYWAY_TESTS_LOCAL_BYPASS is set, but {why}"));
    vec!["--local-bypass".to_owned(), folder.display().to_string()]
}

/// Where the first cgroup2 file system is mounted whose root this is (proc_pid_mountinfo(5)).
fn mounted() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    mounts.lines().find_map(|line| {
        let (place, kind) = line.split_once(" - ")?;
        let mut words = place.split(' ').skip(3);
        let (root, folder) = (words.next()?, words.next()?);
        (kind.starts_with("cgroup2 ") && root == "/").then(|| folder.into())
    })
}

fn mount() -> Result<PathBuf, String> {
    let folder = std::env::temp_dir().join("keyway-tests-cgroup2");
    fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let mut mount = Command::new("mount");
    let output = mount.args(["-t", "cgroup2", "none"]).arg(&folder).output();
    let output = output.map_err(|error| format!("mount: {error}"))?;
    match output.status.success() {
        true => Ok(folder),
        false => Err(format!("no cgroup2: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}
