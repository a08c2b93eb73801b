//! C programs that are compiled here and use the library on a region that a real server serves: enemy, whatever a C program
//! can do to a header, a library, or a region, all functions, failures, threads and forks included.

use harness::{DEADLINE, Kind, Scratch, ServeOptions, Server, Transport, keyway_check, program_on_path, run_to_end, skip};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// The library as it is installed: under its own names.
struct Installed {
    scratch: Scratch,
    compiler: PathBuf,
}

impl Installed {
    /// `None`: said aloud that there is no compiler.
    fn new(test: &str) -> Option<Self> {
        let Some(compiler) = program_on_path("gcc") else {
            skip(test, "gcc is not installed");
            return None;
        };
        let scratch = Scratch::new();
        let test = std::env::current_exe().expect("the running test has a path");
        let library = test.with_file_name("libkeyway_capi.so");
        for name in ["libkeyway.so", "libkeyway.so.0"] {
            symlink(&library, scratch.join(name)).expect("a link to the library");
        }
        Some(Self { scratch, compiler })
    }

    /// Compiles a program.
    fn compile(&self, source: &Path) -> PathBuf {
        let program = self.scratch.join("program");
        let mut gcc = Command::new(&self.compiler);
        gcc.args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-pthread"]);
        gcc.arg(format!("-DEXPECTED_VERSION=\"{}\"", env!("CARGO_PKG_VERSION")));
        gcc.args(["-I", &format!("{HERE}/include"), "-o"]).arg(&program).arg(source);
        gcc.arg("-L").arg(self.scratch.path()).arg("-lkeyway");
        let (status, output) = run_to_end(&mut gcc, DEADLINE);
        assert!(status.success(), "{}: {status}\n{output}", source.display());
        program
    }

    /// Runs one; what it printed.
    fn run(&self, program: &Path, arguments: &[&Path]) -> String {
        let mut command = Command::new(program);
        command.args(arguments).env("LD_LIBRARY_PATH", self.scratch.path());
        let (status, output) = run_to_end(&mut command, DEADLINE);
        assert!(status.success(), "{}: {status}\n{output}", program.display());
        output
    }
}

#[test]
fn a_c_program_uses_everything_beside_a_server() {
    let Some(installed) = Installed::new("the C interface") else {
        return;
    };
    let mut server = Server::start(Kind::Keyway, &ServeOptions::default());
    let mut wire = server.connect(Transport::Tcp);
    assert_eq!(wire.ask("set from-server 5 0 5\r\nhello").expect("an answer"), "STORED");
    let program = installed.compile(&Path::new(HERE).join("tests/c/library.c"));
    let output = installed.run(&program, &[server.region(), installed.scratch.path()]);
    assert_eq!(output, "OK\n");
    wire.send(b"get from-c\r\n").expect("a server that takes requests");
    for line in ["VALUE from-c 7 5", "world", "END"] {
        let answer = wire.line().expect("a line");
        assert_eq!(String::from_utf8_lossy(&answer).trim_end(), line);
    }
    let region = server.region().to_path_buf();
    drop(wire);
    server.terminate();
    let (status, told) = keyway_check(&region);
    assert!(status.success(), "{told}");
}

#[test]
fn the_readmes_lines_for_c_work_as_they_stand() {
    let Some(installed) = Installed::new("the README's C program") else {
        return;
    };
    let readme = std::fs::read_to_string(Path::new(HERE).join("../../README.md")).expect("README.md");
    let program = readme.split("```c\n").nth(1).and_then(|rest| rest.split("```").next());
    let source = installed.scratch.join("hello.c");
    std::fs::write(&source, program.expect("README.md has a C program")).expect("a source file");
    let server = Server::start(Kind::Keyway, &ServeOptions::default());
    let program = installed.compile(&source);
    assert_eq!(installed.run(&program, &[server.region()]), "hello\n");
}

#[test]
fn the_header_is_cplusplus_too() {
    let Some(compiler) = program_on_path("g++") else {
        return skip("keyway.h in C++", "g++ is not installed");
    };
    let mut command = Command::new(compiler);
    command.args(["-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-x", "c++"]);
    let (status, output) = run_to_end(command.arg(format!("{HERE}/include/keyway.h")), DEADLINE);
    assert!(status.success(), "{output}");
}
