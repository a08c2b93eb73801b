//! The examples, run as they stand. Enemy: an example that compiles and does not do what it says.

use std::path::PathBuf;
use std::process::Command;

/// Runs an example; what it printed. The gate has built it; on a desk it may be old, and is built again.
fn run(name: &str) -> String {
    let test = std::env::current_exe().unwrap();
    let built = test.ancestors().nth(2).unwrap();
    if std::env::var_os("KEYWAY_BIN").is_none() {
        let mut build = Command::new(env!("CARGO"));
        build.args([
            "build",
            "--quiet",
            "--package",
            "keyway-cache",
            "--example",
            name,
            "--target-dir",
        ]);
        build.arg(built.parent().unwrap()).current_dir(env!("CARGO_MANIFEST_DIR"));
        if built.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success(), "cargo build --example {name}");
    }
    let region = PathBuf::from(format!("/dev/shm/keyway-example-{}-{name}", std::process::id()));
    let output = Command::new(built.join("examples").join(name)).arg(&region).output().unwrap();
    let _ = std::fs::remove_file(&region);
    assert!(output.status.success(), "{name}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn greeting() {
    assert_eq!(run("greeting"), "hello (60 s left)\n");
}

#[test]
fn look_aside() {
    assert_eq!(run("look_aside"), "8 threads looked up 3 keys, 3 were computed\n");
}

#[test]
fn compare_and_swap() {
    assert_eq!(run("compare_and_swap"), "200 entries\n");
}

#[test]
fn processes() {
    assert_eq!(run("processes"), "4 processes counted to 4000\n");
}
