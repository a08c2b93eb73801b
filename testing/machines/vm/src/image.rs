//! What a guest has: its programs, their libraries and the kernel's modules, in one archive that the kernel unpacks into memory.
//!
//! The archive is `cpio`'s newc format (Linux, Documentation/driver-api/early-userspace/buffer-format.rst), not compressed: unpacking would take longer
//! than reading.

use crate::kernels::Kernel;
use crate::tests::{Program, Test};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where modules are, named with a number, in the order in which they are loaded.
pub const MODULES: &str = "/modules";
/// Where programs are.
pub const PROGRAMS: &str = "/bin";

/// Makes the archive for these tests.
///
/// # Errors
///
/// When something of it is missing, or cannot be built.
pub fn make(kernel: &Kernel, tests: &[&Test]) -> Result<Vec<u8>, String> {
    let mut archive = Archive::default();
    // What `/init` is given as its input and output, before anything is mounted.
    archive.device("/dev/console", 5, 1);
    archive.device("/dev/null", 1, 3);
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    archive.program("/init", &own)?;
    let programs: Vec<Program> = tests.iter().flat_map(|t| t.programs.iter().copied()).collect();
    for (i, program) in programs.iter().enumerate() {
        if !programs[..i].contains(program) {
            let (name, path) = find(*program)?;
            archive.program(&format!("{PROGRAMS}/{name}"), &path)?;
        }
    }
    let names: Vec<&str> = tests.iter().flat_map(|t| t.modules.iter().copied()).collect();
    for (i, (name, contents)) in kernel.modules(&names)?.iter().enumerate() {
        archive.file(&format!("{MODULES}/{i:02}-{name}"), 0o644, contents);
    }
    archive.file(
        "/etc/passwd",
        0o644,
        b"root:x:0:0::/root:/bin/false\nnobody:x:65534:65534::/:/bin/false\n",
    );
    archive.file("/etc/group", 0o644, b"root:x:0:\nnogroup:x:65534:\n");
    Ok(archive.finish())
}

fn find(program: Program) -> Result<(&'static str, PathBuf), String> {
    match program {
        Program::Ours("keyway-cli", name) => Ok((name, harness::keyway_binary().to_path_buf())),
        Program::Ours(package, name) => Ok((name, harness::workspace_binary(package, name))),
        Program::Library(package, name) => Ok((name, harness::workspace_library(package, name))),
        Program::System(name) => {
            let standard = ["/usr/sbin", "/sbin"].map(|folder| Path::new(folder).join(name));
            let found = harness::program_on_path(name).or_else(|| standard.into_iter().find(|path| path.is_file()));
            Ok((name, found.ok_or_else(|| format!("{name} is not installed"))?))
        }
    }
}

/// An archive in the making.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    names: BTreeSet<PathBuf>,
}

impl Archive {
    /// A program, without what only a debugger reads, and the libraries that it is linked to.
    fn program(&mut self, name: &str, path: &Path) -> Result<(), String> {
        self.file(name, 0o755, &stripped(path)?);
        let output = Command::new("ldd").arg(path).output().map_err(|e| format!("ldd: {e}"))?;
        for library in libraries(&String::from_utf8_lossy(&output.stdout)) {
            let contents = std::fs::read(&library).map_err(|e| format!("{library}: {e}"))?;
            self.file(&library, 0o755, &contents);
        }
        Ok(())
    }

    /// A file, with the folders that lead to it; if there is one of that name already, nothing.
    fn file(&mut self, name: &str, mode: u32, contents: &[u8]) {
        self.entry(Path::new(name), 0o100_000 | mode, (0, 0), contents);
    }

    fn device(&mut self, name: &str, major: u32, minor: u32) {
        self.entry(Path::new(name), 0o020_666, (major, minor), &[]);
    }

    fn entry(&mut self, name: &Path, mode: u32, device: (u32, u32), contents: &[u8]) {
        if !self.names.insert(name.to_path_buf()) {
            return;
        }
        if let Some(folder) = name.parent().filter(|folder| *folder != Path::new("/")) {
            self.entry(folder, 0o040_755, (0, 0), &[]);
        }
        let name = name.strip_prefix("/").unwrap_or(name).to_string_lossy().into_owned();
        self.put(&name, mode, device, contents);
    }

    fn put(&mut self, name: &str, mode: u32, (major, minor): (u32, u32), contents: &[u8]) {
        self.entries += 1;
        let size = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        // inode, mode, owner, group, links, time, size, device, device of the node, name's length, sum
        let (links, len, name_len) = (1, size(contents.len()), size(name.len() + 1));
        let fields = [self.entries, mode, 0, 0, links, 0, len, 0, 0, major, minor, name_len, 0];
        self.bytes.extend_from_slice(b"070701");
        for field in fields {
            self.bytes.extend_from_slice(format!("{field:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(contents);
        self.pad();
    }

    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }

    fn finish(mut self) -> Vec<u8> {
        self.put("TRAILER!!!", 0, (0, 0), &[]);
        self.bytes
    }
}

/// A program's bytes without symbols and line tables: they are most of it. Where there is no `strip`, all of them.
fn stripped(path: &Path) -> Result<Vec<u8>, String> {
    let scratch = harness::Scratch::new();
    let small = scratch.join("stripped");
    let done = Command::new("strip").arg("-o").arg(&small).arg(path).status();
    let path = if done.is_ok_and(|status| status.success()) {
        &small
    } else {
        path
    };
    std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))
}

/// The paths in what `ldd` prints.
fn libraries(listed: &str) -> Vec<String> {
    let words = listed
        .lines()
        .map(|line| line.split_once("=>").map_or(line, |(_, path)| path));
    let paths = words.filter_map(|line| line.split_whitespace().next());
    paths.filter(|path| path.starts_with('/')).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_listed() {
        let text = "\tlinux-vdso.so.1 (0x0)\n\tlibc.so.6 => /lib/libc.so.6 (0x1)\n\t/lib64/ld-linux-x86-64.so.2 (0x2)\n";
        assert_eq!(libraries(text), ["/lib/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
        assert!(libraries("\tstatically linked\n").is_empty());
    }

    #[test]
    fn folders_come_before_what_is_in_them_and_once() {
        let mut archive = Archive::default();
        archive.file("/a/b/one", 0o644, b"1");
        archive.file("/a/b/two", 0o644, b"22");
        let text = String::from_utf8_lossy(&archive.finish()).into_owned();
        let places: Vec<_> = ["a\0", "a/b\0", "a/b/one\0", "a/b/two\0", "TRAILER!!!\0"]
            .map(|name| text.find(name).unwrap())
            .to_vec();
        assert!(places.is_sorted(), "{places:?}");
        assert_eq!(text.matches("070701").count(), 5);
    }
}
