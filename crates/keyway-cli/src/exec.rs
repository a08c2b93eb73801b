//! `keyway exec`: starts a program that cannot open the gate by any of the known ways. This file checks that the program can be
//! hardened at all; the program does the rest itself, before its `main` (`keyway-harden`).

use crate::exit::{self, Failure};
use crate::{Owner, place};
use keyway_harden::spec::{LIBRARY, PRELOAD, PRELOAD_BEFORE, Spec};
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The text that `--help` shows below the options.
pub(crate) const HELP: &str = "\
libkeyway is preloaded and attaches the region before PROGRAM's main. PROGRAM's
own keyway_open() of the same place returns that cache. If the program's cache
is in another library, name it by --library: the drop-in (libmemcached.so.11),
the Python package's module (keyway_cache/_keyway.abi3.so), or PROGRAM's own
file, if it is a Rust program that is prepared for this. Then the following
holds permanently, for PROGRAM and all programs that it starts:

  the gate       where the processor has protection keys, the region's memory is
                 accessible inside calls only
  mseal          the region's mapping cannot be unmapped, moved, replaced or
                 given other permissions (Linux 6.10)
  PR_SET_MDWE    no memory that is or was writable becomes executable, unless
                 --allow-jit (Linux 6.3)
  seccomp        ptrace, process_vm_readv, process_vm_writev, bpf, io_uring,
                 userfaultfd, pkey_* and others fail with EPERM, and so do
                 chmod, chown and setxattr of any file (unless --allow-chmod)
  Landlock       the region's file and /proc/PID (memory, descriptors) cannot be
                 opened (Linux 5.13)
  descriptors    no descriptor of the region remains open
  scan           WRPKRU and XRSTOR in the mapped code are reported
                 (--strict-scan: refused, and so is code that is mapped later)

Protection that the kernel does not have is reported and left out. Forked
children of PROGRAM, and programs that it starts, have no cache.
docs/security.md lists what is stopped, what is not, and what no process can
close for itself.

Examples:
  keyway exec -- ./my-program --its-option
  keyway exec --region /run/cache/region \\
      --library /usr/local/lib/keyway/libmemcached.so.11 -- php worker.php
  keyway exec --region-socket /run/keyway.region --strict-scan -- ./my-program";

/// The longest chain of scripts whose interpreters are scripts again (execve(2) allows four).
const SCRIPTS: usize = 4;
/// Where Debian has the library, for each architecture.
const DEBIAN: &str = match cfg!(target_arch = "aarch64") {
    true => "../lib/aarch64-linux-gnu/libkeyway.so.0",
    false => "../lib/x86_64-linux-gnu/libkeyway.so.0",
};
/// Names of the library, beside this program or in the library folder that belongs to it: with `make install`, in Debian, in Fedora.
const LIBRARIES: [&str; 6] = [
    "../lib/libkeyway.so.0",
    DEBIAN,
    "../lib64/libkeyway.so.0",
    "libkeyway.so.0",
    "libkeyway.so",
    "libkeyway_capi.so",
];

#[derive(clap::Args)]
pub(crate) struct Exec {
    /// The region's file [default: /dev/shm/keyway-UID-11211]
    #[arg(long, value_name = "PATH", conflicts_with = "region_socket")]
    region: Option<PathBuf>,
    /// The server's Unix socket that hands out its region
    #[arg(long, value_name = "PATH")]
    region_socket: Option<PathBuf>,
    #[command(flatten)]
    owner: Owner,
    /// Refuse to start if code that could open the gate is mapped (except the C library's own), and forbid mapping code later (dlopen)
    #[arg(long)]
    strict_scan: bool,
    /// Allow memory to be written and then executed, for programs with a just-in-time compiler
    #[arg(long)]
    allow_jit: bool,
    /// Allow changes of modes, owners and extended attributes of files (chmod, chown, setxattr). This includes the region's file, so other
    /// users could get access to it
    #[arg(long)]
    allow_chmod: bool,
    /// The library that contains the program's cache [default: the libkeyway beside this program]
    #[arg(long, value_name = "PATH")]
    library: Option<PathBuf>,
    /// Print more
    #[arg(long, short = 'v')]
    verbose: bool,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    program: Vec<OsString>,
}

impl Exec {
    /// Replaces this process by the program, or says why not.
    pub(crate) fn run(self) -> Failure {
        let spec = Spec {
            place: place::chosen(self.region.or(self.region_socket), None),
            library: PathBuf::new(),
            any_owner: self.owner.any_owner,
            strict_scan: self.strict_scan,
            allow_jit: self.allow_jit,
            allow_chmod: self.allow_chmod,
            verbose: self.verbose,
        };
        run(&spec, self.library, &self.program)
    }
}

/// Replaces this process by the program; returns only if that is impossible.
fn run(spec: &Spec, library: Option<PathBuf>, program: &[OsString]) -> Failure {
    match command(spec, library, program) {
        Ok(mut command) => {
            let error = command.exec();
            Failure::new(exit::SYSTEM, format_args!("{}: {error}", command.get_program().display()))
        }
        Err(failure) => failure,
    }
}

fn command(spec: &Spec, library: Option<PathBuf>, program: &[OsString]) -> Result<Command, Failure> {
    let (name, arguments) = program
        .split_first()
        .ok_or_else(|| Failure::usage("there is no program to start"))?;
    let path = on_path(name).ok_or_else(|| Failure::usage(format_args!("{}: there is no such program", name.display())))?;
    can_be_hardened(&path).map_err(|why| Failure::usage(format_args!("{}: {why}", path.display())))?;
    let library = match library {
        Some(library) => library,
        None => beside()?,
    };
    let library = std::path::absolute(&library).unwrap_or(library);
    if !library.is_file() {
        return Err(Failure::usage(format_args!(
            "{}: there is no such library; --library names libkeyway.so, and without it the installed one is taken",
            library.display()
        )));
    }
    if !has_cache(&library) {
        return Err(Failure::usage(format_args!(
            "{}: it contains no cache that could be attached before main; docs/security.md lists what --library can name",
            library.display()
        )));
    }
    let mut command = Command::new(&path);
    command.args(arguments).arg0(name);
    let spec = Spec {
        library: library.clone(),
        ..spec.clone()
    };
    command.envs(spec.variables());
    let before = std::env::var_os(PRELOAD).filter(|before| !before.is_empty());
    if let Some(before) = &before {
        command.env(PRELOAD_BEFORE, before);
    }
    // A program that contains the cache hardens itself.
    if !is_same(&library, &path) {
        if splits(&library) {
            return Err(Failure::usage(format_args!(
                "{}: the loader takes a path with a blank, a colon or $ for others (LD_PRELOAD, ld.so(8)), and the program would start without \
                 the library: name a link to it, at another path",
                library.display()
            )));
        }
        let mut preload = library.into_os_string();
        if let Some(before) = before {
            preload.push(":");
            preload.push(&before);
        }
        command.env(PRELOAD, preload);
    }
    Ok(command)
}

/// The program that a shell would start for this name.
fn on_path(name: &OsString) -> Option<PathBuf> {
    let direct = Path::new(name);
    let is_program = |path: &Path| path.is_file() && path.metadata().is_ok_and(|meta| meta.permissions().mode() & 0o111 != 0);
    if direct.components().count() > 1 {
        return is_program(direct).then(|| direct.to_path_buf());
    }
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders)
        .map(|folder| folder.join(name))
        .find(|path| is_program(path))
}

/// The library that was installed or built with this program.
fn beside() -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().map_err(|e| Failure::new(exit::SYSTEM, e))?;
    let folder = own.parent().unwrap_or(Path::new("/"));
    LIBRARIES
        .iter()
        .map(|name| folder.join(name))
        .find(|path| path.is_file())
        .ok_or_else(|| {
            Failure::usage(format_args!(
                "libkeyway is neither in {0} nor in {0}/../lib: say where it is with --library",
                folder.display()
            ))
        })
}

/// Whether a file contains the code that runs before `main`: it contains the name of the variable that this code reads.
fn has_cache(library: &Path) -> bool {
    let name = LIBRARY.as_bytes();
    std::fs::read(library).is_ok_and(|bytes| bytes.windows(name.len()).any(|window| window == name))
}

fn is_same(one: &Path, other: &Path) -> bool {
    let identity = |path: &Path| path.metadata().ok().map(|meta| (meta.dev(), meta.ino()));
    identity(one).is_some() && identity(one) == identity(other)
}

/// Whether the dynamic loader would preload a library for this program. If not, the program would run without being hardened.
fn can_be_hardened(path: &Path) -> Result<(), String> {
    let mut path = path.to_path_buf();
    for _ in 0..SCRIPTS {
        let meta = path.metadata().map_err(|e| e.to_string())?;
        if meta.permissions().mode() & 0o6000 != 0 {
            return Err("it changes its user or group (setuid): nothing can be preloaded into it".to_owned());
        }
        let mut head = Vec::new();
        let file = std::fs::File::open(&path).map_err(|e| format!("it cannot be read: {e}"))?;
        file.take(64 << 10).read_to_end(&mut head).map_err(|e| e.to_string())?;
        match kind(&head) {
            Executable::Dynamic => return Ok(()),
            Executable::Static => return Err("it is linked statically: nothing can be preloaded into it".to_owned()),
            Executable::Script(interpreter) => path = interpreter,
            Executable::Other => return Err("it is not a program of this machine (ELF, 64 bits, little-endian)".to_owned()),
        }
    }
    Err("its interpreter is a script whose interpreter is a script, too many times".to_owned())
}

#[derive(Debug, PartialEq, Eq)]
enum Executable {
    Dynamic,
    Static,
    Script(PathBuf),
    Other,
}

/// The kind of a file, by its first bytes (elf(5); execve(2), "Interpreter scripts").
fn kind(head: &[u8]) -> Executable {
    if let Some(line) = head.strip_prefix(b"#!") {
        let line = line.split(|b| *b == b'\n').next().unwrap_or_default();
        let line = String::from_utf8_lossy(line);
        return line
            .split_whitespace()
            .next()
            .map_or(Executable::Other, |name| Executable::Script(name.into()));
    }
    // Magic, 64 bits, little-endian.
    if !head.starts_with(&[0x7F, b'E', b'L', b'F', 2, 1]) {
        return Executable::Other;
    }
    const PT_INTERP: u64 = 3;
    let number = |at: usize, len: usize| {
        let bytes = head.get(at..at + len)?;
        Some(bytes.iter().rev().fold(0u64, |n, b| n << 8 | u64::from(*b)))
    };
    let header = |index: u64| {
        let (first, size) = (number(0x20, 8)?, number(0x36, 2)?);
        number(usize::try_from(first + index * size).ok()?, 4)
    };
    let count = number(0x38, 2).unwrap_or(0);
    match (0..count).any(|index| header(index) == Some(PT_INTERP)) {
        true => Executable::Dynamic,
        false => Executable::Static,
    }
}

/// Whether LD_PRELOAD cannot name this path.
fn splits(library: &Path) -> bool {
    library
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .any(|&byte| byte.is_ascii_whitespace() || b":$".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_that_the_loader_would_not_find_is_known_before() {
        for (path, splits_it) in [
            ("/a/lib.so", false),
            ("/a b/lib.so", true),
            ("/a:b/lib.so", true),
            ("/a/$LIB/lib.so", true),
        ] {
            assert_eq!(splits(Path::new(path)), splits_it, "{path}");
        }
    }

    #[test]
    fn programs_are_told_apart() {
        assert_eq!(
            kind(b"#! /usr/bin/env python3\nimport x"),
            Executable::Script("/usr/bin/env".into())
        );
        assert_eq!(kind(b"#!"), Executable::Other);
        assert_eq!(kind(b"text"), Executable::Other);
        assert_eq!(kind(b"\x7fELF\x02\x01"), Executable::Static);
        assert_eq!(can_be_hardened(&std::env::current_exe().unwrap()), Ok(()));
        assert!(can_be_hardened(Path::new("/etc/passwd")).is_err());
    }

    #[test]
    fn a_program_is_found_as_a_shell_finds_it() {
        assert!(on_path(&"sh".into()).is_some_and(|path| path.is_absolute()));
        assert_eq!(on_path(&"no-such-program-anywhere".into()), None);
        assert_eq!(on_path(&"/etc/passwd".into()), None);
    }
}
