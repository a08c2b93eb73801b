//! `make install`: enemy, a file that is missing, in another place, or under a name that compilers, linkers and loaders do not
//! look for.
//! Guards: P29, P49

use harness::{DEADLINE, Kind, Scratch, ServeOptions, Server, Transport, program_on_path, run_to_end, skip};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long building what is to be installed may take.
const BUILD_DEADLINE: Duration = Duration::from_secs(900);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn run(command: &mut Command, deadline: Duration) -> String {
    let (status, output) = run_to_end(command, deadline);
    assert!(status.success(), "{command:?}: {status}\n{output}");
    output
}

/// A make of the workspace, for the directory and profile that this test was built in.
fn make(target: &str) -> Command {
    let test = std::env::current_exe().expect("the running test has a path");
    let built = test.ancestors().nth(2).expect("a target directory");
    let profile = match built.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => "dev",
        Some(name) => name,
    };
    let mut command = Command::new("make");
    command.current_dir(root()).args([target, &format!("PROFILE={profile}")]);
    command.env("CARGO_TARGET_DIR", built.parent().expect("a target directory"));
    command
}

/// Enemy: files that are installed to half of a path.
#[test]
fn a_path_with_a_blank_is_refused_with_the_reason() {
    if program_on_path("make").is_none() {
        return skip("a path with a blank", "there is no make");
    }
    let mut install = make("install");
    install.arg("-n").env("CARGO_TARGET_DIR", "/nowhere/a b");
    let (status, output) = run_to_end(&mut install, DEADLINE);
    assert!(
        !status.success() && output.contains("CARGO_TARGET_DIR has a blank") && output.contains("cargo build"),
        "{output}"
    );
    // The help is printed at any path.
    let (status, output) = run_to_end(make("help").env("CARGO_TARGET_DIR", "/nowhere/a b"), DEADLINE);
    assert!(status.success() && output.contains("make install"), "{status}\n{output}");
}

/// Enemy: the build of libbpf, which is a make, and puts its headers where this one's variables say.
#[test]
fn a_build_is_not_told_where_it_will_be_installed() {
    if program_on_path("make").is_none() {
        return skip("make build", "make is not installed");
    }
    let home = Scratch::new();
    let cargo = home.join(".cargo/bin/cargo");
    std::fs::create_dir_all(cargo.parent().expect("a folder")).expect("a folder");
    std::fs::write(&cargo, "#!/bin/sh\necho called\nenv\n").expect("a program");
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).expect("a program");
    let mut build = make("build");
    build.args(["--old-file=program", "PREFIX=/somewhere", "DESTDIR=/elsewhere"]);
    let output = run(build.env("HOME", home.path()), DEADLINE);
    assert!(output.lines().any(|line| line == "called"), "{output}");
    assert!(!output.contains("/somewhere") && !output.contains("/elsewhere"), "{output}");
}

#[test]
fn what_is_installed_compiles_and_runs() {
    for tool in ["make", "pkg-config", "gcc"] {
        if program_on_path(tool).is_none() {
            return skip("make install", &format!("{tool} is not installed"));
        }
    }
    // The gate has built everything; on a desk it may be old.
    if std::env::var_os("KEYWAY_BIN").is_none() {
        run(&mut make("build"), BUILD_DEADLINE);
    }
    let scratch = Scratch::new();
    let prefix = scratch.join("usr");
    run(make("install").arg(format!("PREFIX={}", prefix.display())), BUILD_DEADLINE);
    for name in [
        "bin/keyway",
        "lib/libkeyway.so",
        "lib/libkeyway.a",
        "include/keyway.h",
        "lib/pkgconfig/keyway.pc",
        "lib/keyway/libmemcached.so.11",
        "lib/keyway/libmemcachedutil.so.2",
        "bin/.debug/keyway.debug",
        "share/man/man1/keyway-serve.1",
        "share/bash-completion/completions/keyway",
        "share/zsh/site-functions/_keyway",
        "share/fish/vendor_completions.d/keyway.fish",
        "share/doc/keyway/keyway.toml",
    ] {
        assert!(prefix.join(name).is_file(), "{name} is not there");
    }
    // The line tables are beside the program, which names their file.
    let sections = run(
        Command::new("readelf")
            .args(["--wide", "--sections", "--string-dump=.gnu_debuglink"])
            .arg(prefix.join("bin/keyway")),
        DEADLINE,
    );
    assert!(
        sections.contains("keyway.debug") && !sections.contains(".debug_line"),
        "{sections}"
    );
    let version = run(Command::new(prefix.join("bin/keyway")).arg("version"), DEADLINE);
    assert!(version.contains(env!("CARGO_PKG_VERSION")), "{version}");

    // As the README compiles its program and runs it: with what pkg-config says, and on the region of a server as `make run` starts it.
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md");
    let program = readme.split("```c\n").nth(1).and_then(|rest| rest.split("```").next());
    std::fs::write(scratch.join("hello.c"), program.expect("README.md has a C program")).expect("a source file");
    let lines = readme
        .split("```sh\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .find(|block| block.contains("pkg-config"))
        .expect("README.md says how to compile its C program");
    let server = Server::start(
        Kind::Keyway,
        &ServeOptions {
            default_place: true,
            ..ServeOptions::default()
        },
    );
    let shell = |line: &str| {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", line]).current_dir(scratch.path());
        command.env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
        command.env("LD_LIBRARY_PATH", prefix.join("lib"));
        command.env("KEYWAY_REGION", server.region());
        run(&mut command, DEADLINE)
    };
    assert_eq!(shell(lines), "hello\n");
    let mut wire = server.connect(Transport::Tcp);
    assert_eq!(
        wire.ask("mg greeting s").expect("an answer"),
        "HD s5",
        "program and server share a region"
    );
    // Without a region it says so, instead of going on with none.
    let told = shell("./a.out /nowhere/region 2>&1 || echo ended with $?");
    assert!(told.contains("/nowhere/region") && told.ends_with("ended with 1\n"), "{told}");
    let found = shell("pkg-config --modversion keyway");
    assert_eq!(found.trim_end(), env!("CARGO_PKG_VERSION"));

    // The static library needs no library at run time.
    shell(
        "cc hello.c -o static $(pkg-config --cflags keyway) -Wl,-Bstatic $(pkg-config --libs keyway) -Wl,-Bdynamic $(pkg-config --static --libs-only-l keyway | sed s/-lkeyway//)",
    );
    assert_eq!(shell("env -u LD_LIBRARY_PATH ./static $KEYWAY_REGION"), "hello\n");
    // And a program that is static as a whole needs none at all. A debug build's archive has functions that nothing calls, which name
    // symbols of the shared C library only: they are left out.
    shell("cc -static -Wl,--gc-sections hello.c -o alone $(pkg-config --static --cflags --libs keyway)");
    assert_eq!(shell("env -u LD_LIBRARY_PATH ./alone $KEYWAY_REGION"), "hello\n");
}

/// In a folder where the loader looks, `make install` updates the loader's cache; for any other folder it tells the user what to do.
#[test]
fn an_installed_library_is_found_or_it_is_said_how() {
    if program_on_path("make").is_none() {
        return skip("make install and ldconfig", "make is not installed");
    }
    let scratch = Scratch::new();
    let told = |line: &str| {
        let output = run(make("loader").arg(line), DEADLINE);
        output.contains(&format!("LD_LIBRARY_PATH={}/lib", scratch.path().display()))
    };
    assert!(
        told(&format!("PREFIX={}", scratch.path().display())),
        "it is not where the loader looks"
    );
    // A package is not installed yet: its loader is another one's.
    let package = format!("DESTDIR={}", scratch.path().display());
    assert_eq!(run(make("loader").arg("--silent").arg(package), DEADLINE), "");
}

#[test]
fn makefile_and_library_agree_on_its_name() {
    let makefile = std::fs::read_to_string(root().join("Makefile")).expect("Makefile");
    let build = std::fs::read_to_string(root().join("crates/keyway-capi/build.rs")).expect("build.rs");
    let name = build.split("-soname,").nth(1).and_then(|rest| rest.split('"').next());
    let name = name.expect("build.rs names the library");
    assert!(makefile.lines().any(|line| line == format!("SONAME = {name}")), "{name}");
}
