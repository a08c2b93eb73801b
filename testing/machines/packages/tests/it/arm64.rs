//! The packages for arm64: enemy, a program of another processor in them, and a package that nothing but a machine with that processor would
//! find broken. The stage `arm` builds the programs and runs this test; the installed program runs under user-mode emulation.
//! Guards: P49

use harness::{DEADLINE, Scratch, Wire, free_port, wait_until};
use packages::{ALL, Built, run};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What the stage says: the folder with the programs for arm64, and the one with libraries that they are linked to.
fn given(name: &str) -> PathBuf {
    std::env::var_os(name)
        .unwrap_or_else(|| panic!("cargo xtask ci arm sets {name}"))
        .into()
}

#[test]
#[ignore = "run by cargo xtask ci arm, which builds the programs"]
fn the_packages_are_for_arm64_and_the_program_in_them_serves() {
    let scratch = Scratch::new();
    Built {
        architecture: "arm64",
        folder: given("KEYWAY_TEST_PLACE"),
    }
    .pack(scratch.path(), 1);
    let unpacked = scratch.join("unpacked");
    for package in ALL {
        let name = format!("{package}_{}-1_arm64.deb", env!("CARGO_PKG_VERSION"));
        let path = scratch.join(&name);
        let field = |field: &str| run(Command::new("dpkg-deb").arg("--field").arg(&path).arg(field));
        assert_eq!(field("Architecture").trim(), "arm64", "{package}");
        run(Command::new("dpkg-deb").arg("--extract").arg(&path).arg(&unpacked));
    }

    // Each program, library and object in an archive.
    let files = run(Command::new("find").arg(&unpacked).args(["-type", "f"]));
    let mut machines = 0;
    for file in files.lines().map(Path::new) {
        let begin = std::fs::read(file).unwrap();
        if !begin.starts_with(b"\x7fELF") && !begin.starts_with(b"!<arch>") {
            continue;
        }
        let headers = run(Command::new("readelf").args(["--file-header", "--wide"]).arg(file));
        for machine in headers.lines().filter_map(|line| line.trim().strip_prefix("Machine:")) {
            assert_eq!(machine.trim(), "AArch64", "{}", file.display());
            machines += 1;
        }
    }
    assert!(
        machines > ALL.len(),
        "{machines} objects: one in each package, and many in the archive"
    );
    for file in [
        "usr/lib/aarch64-linux-gnu/libkeyway.so.0",
        "usr/lib/aarch64-linux-gnu/keyway/libmemcached.so.11",
        "usr/lib/python3/dist-packages/keyway_cache/_keyway.abi3.so",
        "usr/share/doc/keyway/licences.gz",
    ] {
        assert!(unpacked.join(file).exists(), "{file}");
    }

    let keyway = |arguments: &[&str]| {
        let mut command = Command::new("qemu-aarch64-static");
        command.args(["-L", "/usr/aarch64-linux-gnu", "-E"]);
        command.arg(format!("LD_LIBRARY_PATH={}", given("KEYWAY_TEST_ARGUMENT").display()));
        command
            .arg(unpacked.join("usr/bin/keyway"))
            .args(arguments)
            .stdin(Stdio::null());
        command
    };
    let (port, region) = (free_port(), scratch.join("region"));
    let (address, place) = (format!("127.0.0.1:{port}"), region.to_str().unwrap());
    let mut command = keyway(&["serve", "--listen", &address, "--region", place, "--memory", "4m"]);
    let mut serving = Serving(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    let mut wire = wait_until("a server for arm64", DEADLINE, || {
        assert!(serving.0.try_wait().unwrap().is_none(), "it ended");
        TcpStream::connect(&address)
            .ok()
            .and_then(|stream| Wire::from_tcp(stream).ok())
    });
    assert_eq!(wire.ask("set key 0 0 5\r\nvalue").unwrap(), "STORED");
    assert!(run(&mut keyway(&["ping", &address])).contains("stored, read and deleted"));
    assert_eq!(run(&mut keyway(&["get", "--region", place, "key"])), "value");
    // The kernel door is in it.
    assert!(run(&mut keyway(&["kernel", "--help"])).contains("attach"));
    drop(serving);
    assert!(run(&mut keyway(&["check", place])).contains("all invariants hold"));
}
