//! README.md's program in Rust, compiled and run as it stands. Enemy: lines that a reader copies, and that do not work.
//! (Those for C and Python are tried by `keyway-capi` and in `python.rs`.)

use harness::{DEADLINE, Scratch, run_to_end, workspace_library};
use library::root;
use std::process::Command;

#[test]
fn the_readmes_lines_for_rust_work_as_they_stand() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md");
    let program = readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    let scratch = Scratch::new();
    let (source, binary) = (scratch.join("hello.rs"), scratch.join("hello"));
    std::fs::write(&source, program.expect("README.md has a Rust program")).expect("a source file");
    let library = workspace_library("keyway", "libkeyway.rlib");
    let dependencies = library.parent().expect("a folder").join("deps");
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc
        .args(["--edition", "2024", "-D", "warnings", "-o"])
        .arg(&binary)
        .arg(&source);
    rustc.arg("--extern").arg(format!("keyway={}", library.display()));
    rustc.arg("-L").arg(format!("dependency={}", dependencies.display()));
    let (status, output) = run_to_end(&mut rustc, DEADLINE);
    assert!(status.success(), "{status}\n{output}");
    let (status, output) = run_to_end(Command::new(&binary).arg(scratch.join("region")), DEADLINE);
    assert!(status.success() && output == "hello\n", "{status}\n{output}");
}
