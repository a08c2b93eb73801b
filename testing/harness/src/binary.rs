//! Finds the programs under test: the workspace's own `keyway`, and a real memcached.

use crate::Scratch;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The `keyway` binary: `KEYWAY_BIN`, or the workspace's own, built on first use in the profile of the running test.
///
/// # Panics
///
/// When it cannot be built.
pub fn keyway_binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| match std::env::var_os("KEYWAY_BIN") {
        Some(path) => PathBuf::from(path),
        None => workspace_binary("keyway-cli", "keyway"),
    })
}

/// The memcached to compare with, if there is one: `KEYWAY_MEMCACHED`, or `memcached` on the path.
pub fn memcached_binary() -> Option<&'static Path> {
    static BINARY: OnceLock<Option<PathBuf>> = OnceLock::new();
    let found = BINARY.get_or_init(|| match std::env::var_os("KEYWAY_MEMCACHED") {
        Some(path) => Some(PathBuf::from(path)),
        None => program_on_path("memcached"),
    });
    found.as_deref()
}

/// The full path of a program, if it is installed. `/usr/local/go/bin`, where Go's own archive unpacks, counts as well.
pub fn program_on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain([PathBuf::from("/usr/local/go/bin")])
        .map(|dir| dir.join(name))
        .find(|candidate| candidate.is_file())
}

/// A program of the workspace, by its package and name: the one beside `KEYWAY_BIN`, or built in the profile of the running test.
///
/// # Panics
///
/// When it cannot be built.
pub fn workspace_binary(package: &str, name: &str) -> PathBuf {
    beside_keyway(name).unwrap_or_else(|| build(package, &["--bin", name]).join(name))
}

/// Copies a program. install(1) does it: a child that another thread of this process forks meanwhile would have the copy open for writing, and
/// until that child executes its own program, the copy cannot be executed (execve(2), ETXTBSY).
///
/// # Panics
///
/// When it cannot be copied.
pub fn copy_program(from: impl AsRef<Path>, to: &Path) {
    // For other users too, whatever this one's umask is.
    let copied = Command::new("install")
        .args(["-m", "755"])
        .arg(from.as_ref())
        .arg(to)
        .status();
    assert!(copied.is_ok_and(|copied| copied.success()), "no copy at {}", to.display());
}

/// The command that runs one test of this program in a process of its own, started by these programs. `module`: `module_path!()`.
///
/// # Panics
///
/// When the system does not say where this program is.
pub fn own_test(by_way_of: &[&str], module: &str, test: &str) -> Command {
    let own = std::env::current_exe().unwrap_or_else(|e| panic!("the running test's own path: {e}"));
    let mut command = match by_way_of {
        [] => Command::new(own),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(own);
            command
        }
    };
    command.args(["--exact", &test_path(module, test), "--nocapture"]);
    command
}

/// A test's name as its program knows it: its modules below the program, and the function.
pub fn test_path(module: &str, test: &str) -> String {
    match module.split_once("::") {
        Some((_, below)) => format!("{below}::{test}"),
        None => test.to_owned(),
    }
}

/// A library of the workspace, by its package and file, found or built as [`workspace_binary`].
///
/// # Panics
///
/// When it cannot be built.
pub fn workspace_library(package: &str, file: &str) -> PathBuf {
    beside_keyway(file).unwrap_or_else(|| build(package, &["--lib"]).join(file))
}

/// A link in this folder to a library. LD_PRELOAD takes a path with a blank or a colon for two (ld.so(8)), and where the workspace lies is not
/// the tests' choice.
///
/// # Panics
///
/// When there is no link.
pub fn link_to_preload(library: &Path, folder: &Scratch) -> PathBuf {
    let link = folder.join("preloaded.so");
    std::os::unix::fs::symlink(library, &link).unwrap_or_else(|e| panic!("{}: {e}", link.display()));
    link
}

/// What was built together with the program that `KEYWAY_BIN` names: built for itself, its dependencies may have other features
/// and be compiled again.
fn beside_keyway(file: &str) -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os("KEYWAY_BIN")?).with_file_name(file);
    path.is_file().then_some(path)
}

/// Builds a part of a package; the directory that it is in then.
fn build(package: &str, what: &[&str]) -> PathBuf {
    // …/<target>/<profile>/deps/<this test>, or …/<target>/<profile>/<this program>
    let test = std::env::current_exe().unwrap_or_else(|e| panic!("the running test's own path: {e}"));
    let profile_dir = test
        .ancestors()
        .skip(1)
        .find(|folder| !folder.ends_with("deps"))
        .unwrap_or_else(|| panic!("{}: not in a target directory", test.display()));
    let target_dir = profile_dir.parent().unwrap_or(profile_dir);
    let profile = match profile_dir.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let status = Command::new(cargo)
        .args(["build", "--quiet", "--package", package, "--profile", profile])
        .args(what)
        .arg("--target-dir")
        .arg(target_dir)
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")))
        .status()
        .unwrap_or_else(|e| panic!("cargo build --package {package}: {e}"));
    assert!(status.success(), "cargo build --package {package}: {status}");
    profile_dir.to_path_buf()
}
