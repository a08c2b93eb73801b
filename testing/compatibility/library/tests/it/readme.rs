//! README.md's program in Rust, compiled and run as it stands. Enemy: lines that a reader copies, and that do not work.
//! (Those for C and Python are tried by `keyway-capi` and in `python.rs`.)

use harness::{DEADLINE, Kind, Scratch, ServeOptions, Server, Transport, run_to_end, workspace_library};
use library::{region_of_the_readme, root};
use std::process::Command;

#[test]
fn the_readmes_lines_for_rust_work_as_they_stand() {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md");
    let program = readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    let scratch = Scratch::new();
    let (source, binary) = (scratch.join("hello.rs"), scratch.join("hello"));
    std::fs::write(&source, program.expect("README.md has a Rust program")).expect("a source file");
    let library = workspace_library("keyway-cache", "libkeyway_cache.rlib");
    let dependencies = library.parent().expect("a folder").join("deps");
    let mut rustc = Command::new(std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    rustc
        .args(["--edition", "2024", "-D", "warnings", "-o"])
        .arg(&binary)
        .arg(&source);
    rustc.arg("--extern").arg(format!("keyway_cache={}", library.display()));
    rustc.arg("-L").arg(format!("dependency={}", dependencies.display()));
    let (status, output) = run_to_end(&mut rustc, DEADLINE);
    assert!(status.success(), "{status}\n{output}");
    // On the region of a server as `make run` starts it, found as the README finds it.
    let server = Server::start(
        Kind::Keyway,
        &ServeOptions {
            default_place: true,
            ..ServeOptions::default()
        },
    );
    let place = readme
        .split("`cargo run -- ")
        .nth(1)
        .and_then(|rest| rest.split('`').next())
        .expect("README.md says how to run it");
    let line = format!("{} {place}", binary.display());
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", &line])
        .env("KEYWAY_REGION", region_of_the_readme(&server));
    let (status, output) = run_to_end(&mut command, DEADLINE);
    assert!(status.success() && output == "hello\n", "{line}: {status}\n{output}");
    // Its main returns the error, and Rust prints that for it.
    for (wrong, says) in [
        (scratch.join("absent").display().to_string(), "there is no region"),
        (server.address().to_string(), "is the address of a server"),
    ] {
        let (status, output) = run_to_end(Command::new(&binary).arg(&wrong), DEADLINE);
        let is_whole = output.starts_with("Error: ") && output.contains(&wrong) && output.contains(says) && !output.contains('{');
        assert!(!status.success() && is_whole, "{wrong}: {status}\n{output}");
    }
    let told = server.connect(Transport::Tcp).ask("mg greeting s");
    assert_eq!(told.expect("an answer"), "HD s5", "program and server share a region");
}

/// What the README says of the server's region is so as long as this is how `make run` starts it.
#[test]
fn make_run_serves_on_the_port_of_the_readmes_region() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).expect("Makefile");
    let line = "\texec $(BUILT)/keyway serve --listen 127.0.0.1:11211 $(ARGS)";
    assert!(
        makefile.lines().any(|known| known == line),
        "the Makefile does not say: {line}"
    );
}
