//! C programs that are compiled here and use the library on a region that a real server serves: enemy, whatever a C program
//! can do to a header, a library, or a region, all functions, failures, threads and forks included.
//! Guards: P29, P53

use crate::common::{HERE, Installed};
use harness::{DEADLINE, Kind, ServeOptions, Server, Transport, keyway_check, program_on_path, run_to_end, skip};
use keyway_cache::{Cache, Options, Place};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Runs a program; what it printed.
fn run(installed: &Installed, program: &Path, arguments: &[&Path]) -> String {
    let mut command = Command::new(program);
    command.args(arguments).env("LD_LIBRARY_PATH", installed.scratch.path());
    let (status, output) = run_to_end(&mut command, DEADLINE);
    assert!(status.success(), "{}: {status}\n{output}", program.display());
    output
}

#[test]
fn a_c_program_uses_everything_beside_a_server() {
    everything("a C program on a region's file", None);
}

#[test]
fn a_c_program_uses_everything_that_a_server_hands_out() {
    everything("a C program on a server's socket", Some("--region-writers"));
}

#[test]
fn a_c_program_that_may_only_read_uses_everything() {
    everything("a C program on a server's socket, as a reader", Some("--region-readers"));
}

/// By the region's file, or by a server's socket with this right.
fn everything(test: &str, right: Option<&str>) {
    let Some(installed) = Installed::new(test) else { return };
    let socket = installed.scratch.join("region.sock");
    let mut server = Server::start(
        Kind::Keyway,
        &ServeOptions {
            keyway_arguments: [
                &["--region-socket".to_owned(), socket.display().to_string()][..],
                &right_of_this_user(right),
            ]
            .concat(),
            ..ServeOptions::default()
        },
    );
    let mut wire = server.connect(Transport::Tcp);
    assert_eq!(wire.ask("set from-server 5 0 5\r\nhello").expect("an answer"), "STORED");
    let program = installed.compile(&Path::new(HERE).join("tests/c/library.c"));
    let region = server.region().to_path_buf();
    let place = if right.is_some() { &socket } else { &region };
    let mut arguments = vec![place.as_path(), installed.scratch.path()];
    if right == Some("--region-readers") {
        arguments.push(Path::new("reader"));
    }
    let output = run(&installed, &program, &arguments);
    assert_eq!(output, "OK\n");
    wire.send(b"get from-c\r\n").expect("a server that takes requests");
    for line in ["VALUE from-c 7 5", "world", "END"] {
        let answer = wire.line().expect("a line");
        assert_eq!(String::from_utf8_lossy(&answer).trim_end(), line);
    }
    drop(wire);
    server.terminate();
    assert!(!socket.exists(), "the server removes its socket");
    let (status, told) = keyway_check(&region);
    assert!(status.success(), "{told}");
}

/// Its arguments change while a function runs, and overlap. `KEYWAY_TESTS_FULL`: for minutes.
#[test]
fn arguments_that_change_or_overlap_harm_nobody() {
    let Some(installed) = Installed::new("a C program whose arguments change during calls") else {
        return;
    };
    let program = installed.compile(&Path::new(HERE).join("tests/c/changing.c"));
    let is_full = std::env::var_os("KEYWAY_TESTS_FULL").is_some();
    let seconds = if is_full { 40 } else { 2 };
    for how in ["thread", "process", "signal"] {
        for checksums in [false, true] {
            let region = installed.scratch.join(&format!("{how}-{checksums}"));
            let mut command = Command::new(&program);
            command.arg(&region).arg(seconds.to_string()).arg(how);
            command
                .args(checksums.then_some("checksums"))
                .env("LD_LIBRARY_PATH", installed.scratch.path());
            let (status, output) = run_to_end(&mut command, DEADLINE + Duration::from_secs(2 * seconds));
            assert!(
                status.success() && output == "OK\n",
                "{how}, checksums {checksums}: {status}\n{output}"
            );
            let cache = Cache::open(&Place::at(&region), &Options::new()).expect("its region");
            let report = cache.check(|_| ());
            assert_eq!(report.problems, [""; 0], "{how}, checksums {checksums}");
        }
    }
}

#[test]
fn one_computes_in_c_too() {
    let Some(installed) = Installed::new("a C program that fetches") else {
        return;
    };
    let program = installed.compile(&Path::new(HERE).join("tests/c/fetch.c"));
    let region = installed.scratch.join("region");
    assert_eq!(run(&installed, &program, &[&region]), "OK\n");
    let cache = Cache::open(&Place::at(&region), &Options::new()).expect("its region");
    let report = cache.check(|_| ());
    assert_eq!(report.problems, [""; 0]);
}

/// By a program that was not linked to it, which already has a thread.
#[test]
fn a_program_loads_the_library_while_it_runs() {
    let Some(installed) = Installed::new("a C program that loads the library while it runs") else {
        return;
    };
    let library = installed.scratch.join("libkeyway.so.0");
    let program = installed.compile_with(&Path::new(HERE).join("tests/c/loaded.c"), &["-ldl"]);
    assert_eq!(run(&installed, &program, &[&library]), "OK\n");
}

#[test]
fn a_program_calls_while_it_or_its_thread_is_ending() {
    let Some(installed) = Installed::new("a C program that calls at its end") else {
        return;
    };
    let program = installed.compile(&Path::new(HERE).join("tests/c/ending.c"));
    assert_eq!(run(&installed, &program, &[]), "OK\n");
}

/// `docs/library.md` says how much of the reserve for libraries that are loaded late it takes.
#[test]
fn the_library_takes_few_bytes_of_a_threads_storage() {
    const ELF_TLS: u32 = 7;
    let test = std::env::current_exe().expect("the running test has a path");
    let library = std::fs::read(test.with_file_name("libkeyway_capi.so")).expect("the library");
    let number = |at: usize, len: usize| {
        let bytes = library.get(at..at + len).expect("an ELF file");
        bytes.iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
    };
    // elf(5), 64 bits: the program headers, whose type, and size in memory.
    let (table, size, count) = (number(0x20, 8), number(0x36, 2), number(0x38, 2));
    let headers = (0..count).map(|header| table + header * size);
    let bytes: Vec<_> = headers
        .filter(|at| number(*at, 4) == ELF_TLS as usize)
        .map(|at| number(at + 0x28, 8))
        .collect();
    assert!(matches!(bytes[..], [1..=256]), "{bytes:?}");
}

/// `docs/library.md` says so: "A call needs up to 48 KiB". An unoptimised build has larger frames than a release.
#[test]
fn a_call_takes_few_bytes_of_a_threads_stack() {
    let Some(installed) = Installed::new("a C program that measures its stack") else {
        return;
    };
    let program = installed.compile(&Path::new(HERE).join("tests/c/stack.c"));
    let region = installed.scratch.join("region");
    let bytes = run(&installed, &program, &[&region]);
    let bytes: usize = bytes.trim().parse().expect("a number of bytes");
    assert!((4096..=48 << 10).contains(&bytes), "{bytes} bytes");
}

#[test]
fn a_region_of_another_version_is_refused_with_both_named() {
    use std::os::unix::fs::FileExt;
    let Some(installed) = Installed::new("a region of another version, in C") else {
        return;
    };
    let socket = installed.scratch.join("region.sock");
    let server = Server::start(
        Kind::Keyway,
        &ServeOptions {
            keyway_arguments: vec!["--region-socket".to_owned(), socket.display().to_string()],
            ..ServeOptions::default()
        },
    );
    // The format's version is behind the magic number; the server has read it already.
    let file = std::fs::File::options().write(true).open(server.region()).expect("a region");
    file.write_all_at(&7_u64.to_le_bytes(), 8).expect("a version");
    let program = installed.compile(&Path::new(HERE).join("tests/c/attached.c"));
    for place in [server.region(), &socket] {
        let told = run(&installed, &program, &[place, Path::new("unusable")]);
        assert!(
            told.contains("(format 7, layout ") && told.contains("(format 3, layout "),
            "{}: {told}",
            place.display()
        );
    }
    file.write_all_at(&2_u64.to_le_bytes(), 8).expect("a version");
}

/// The server's arguments for it.
fn right_of_this_user(right: Option<&str>) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let user = std::fs::metadata("/proc/self").map_or(0, |meta| meta.uid());
    right.map_or_else(Vec::new, |right| vec![right.to_owned(), user.to_string()])
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
    assert_eq!(run(&installed, &program, &[server.region()]), "hello\n");
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
