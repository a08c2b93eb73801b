//! The drop-in as it is installed, and programs that are run with Debian's libmemcached against a memcached and with the drop-in on a
//! Keyway's region.
#![allow(dead_code, reason = "each test uses some of it")]

use harness::{
    DEADLINE, Kind, Scratch, ServeOptions, Server, Transport, memcached_binary, program_on_path, run_to_end, skip,
    workspace_library,
};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub const HERE: &str = env!("CARGO_MANIFEST_DIR");
/// Where programs of Debian have their libmemcached from.
pub const NOWHERE: &str = "/nowhere/libmemcached.so.11";

/// Which libmemcached a program gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    /// Debian's
    Debian,
    /// the drop-in, by LD_PRELOAD
    Preloaded,
    /// the drop-in, because it stands where the loader looks
    Replaced,
}

/// The drop-in's two files under their own names.
pub struct Dropin {
    pub scratch: Scratch,
}

impl Dropin {
    pub fn new() -> Self {
        let scratch = Scratch::new();
        // Programs of other users run here too.
        std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o755)).expect("a directory of ours");
        // Cargo does not build the drop-in for its tests: it is no library for Rust programs.
        for (package, built, name) in [
            ("keyway-libmemcached", "libmemcached.so", "libmemcached.so.11"),
            ("keyway-libmemcachedutil", "libmemcachedutil.so", "libmemcachedutil.so.2"),
        ] {
            std::fs::copy(workspace_library(package, built), scratch.join(name)).expect("a copy of the library");
        }
        Self { scratch }
    }

    pub fn file(&self) -> PathBuf {
        self.scratch.join("libmemcached.so.11")
    }

    /// Gives a program its libmemcached. With the drop-in, the real one is nowhere to be found, so that what works is the drop-in's work.
    pub fn give<'a>(&self, command: &'a mut Command, library: Library) -> &'a mut Command {
        match library {
            Library::Debian => return command,
            Library::Preloaded => command.env("LD_PRELOAD", self.file()),
            Library::Replaced => command.env("LD_LIBRARY_PATH", self.scratch.path()),
        };
        command.env("KEYWAY_LIBMEMCACHED_REAL", NOWHERE)
    }

    /// Compiles a C program against Debian's headers and library.
    pub fn compile(&self, test: &str, source: &str) -> Option<PathBuf> {
        let Some(compiler) = program_on_path("gcc") else {
            skip(test, "gcc is not installed");
            return None;
        };
        if !Path::new("/usr/include/libmemcached/memcached.h").exists() {
            skip(test, "libmemcached-dev is not installed");
            return None;
        }
        let program = self.scratch.join(&format!("{source}.program"));
        let mut gcc = Command::new(compiler);
        gcc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-o"])
            .arg(&program);
        gcc.arg(format!("{HERE}/tests/scripts/{source}"));
        gcc.args(["-lmemcached", "-lmemcachedutil", "-lhashkit", "-lpthread"]);
        let (status, output) = run_to_end(&mut gcc, DEADLINE);
        assert!(status.success(), "{source}: {status}\n{output}");
        Some(program)
    }
}

/// A server to run programs against, with both of its sockets.
pub struct Pair {
    pub tcp: Server,
    unix: Option<Server>,
}

impl Pair {
    pub fn start(library: Library) -> Self {
        let options = |transport| ServeOptions {
            transport,
            ..ServeOptions::default()
        };
        match library {
            Library::Debian => Self {
                tcp: Server::start(Kind::Memcached, &options(Transport::Tcp)),
                unix: Some(Server::start(Kind::Memcached, &options(Transport::Unix))),
            },
            _ => Self {
                tcp: Server::start(Kind::Keyway, &options(Transport::Tcp)),
                unix: None,
            },
        }
    }

    pub fn socket(&self) -> &Path {
        self.unix.as_ref().unwrap_or(&self.tcp).socket()
    }

    /// Host, port and socket, as arguments.
    pub fn arguments(&self) -> [String; 3] {
        let address = self.tcp.address();
        [
            address.ip().to_string(),
            address.port().to_string(),
            self.socket().display().to_string(),
        ]
    }
}

/// Whether there is a memcached to compare with.
pub fn has_memcached(test: &str) -> bool {
    if memcached_binary().is_none() {
        skip(test, "no memcached is installed");
    }
    memcached_binary().is_some()
}

/// Runs a program to its end; what it printed.
pub fn printed(command: &mut Command) -> String {
    let (status, output) = run_to_end(command, DEADLINE);
    assert!(status.success(), "{command:?}: {status}\n{output}");
    output
}

/// The first lines in which two outputs differ.
pub fn assert_same(what: &str, memcached: &str, region: &str) {
    let mut lines = memcached.lines().zip(region.lines()).enumerate();
    if let Some((number, (left, right))) = lines.find(|(_, (left, right))| left != right) {
        panic!(
            "{what}, line {}:\n  libmemcached and memcached: {left}\n  drop-in on the region:      {right}",
            number + 1
        );
    }
    assert_eq!(
        memcached.lines().count(),
        region.lines().count(),
        "{what}: one of them stops early"
    );
}
