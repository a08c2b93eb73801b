//! The library as it is installed, and C programs that are compiled against it.

use harness::{DEADLINE, Scratch, program_on_path, run_to_end, skip};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

pub const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// The library as it is installed: under its own names.
pub struct Installed {
    /// where it is
    pub scratch: Scratch,
    compiler: PathBuf,
}

impl Installed {
    /// `None`: said aloud that there is no compiler.
    pub fn new(test: &str) -> Option<Self> {
        let Some(compiler) = program_on_path("gcc") else {
            skip(test, "gcc is not installed");
            return None;
        };
        let scratch = Scratch::new();
        // Programs of other users run here too.
        std::fs::set_permissions(scratch.path(), std::fs::Permissions::from_mode(0o755)).expect("a directory of ours");
        let test = std::env::current_exe().expect("the running test has a path");
        let library = test.with_file_name("libkeyway_capi.so");
        for name in ["libkeyway.so", "libkeyway.so.0"] {
            // A copy: other users and other mount namespaces may not see the target directory.
            std::fs::copy(&library, scratch.join(name)).expect("a copy of the library");
        }
        Some(Self { scratch, compiler })
    }

    /// Compiles a program that is linked to the library.
    pub fn compile(&self, source: &Path) -> PathBuf {
        self.compile_with(source, &["-lkeyway"])
    }

    /// Compiles a program.
    pub fn compile_with(&self, source: &Path, libraries: &[&str]) -> PathBuf {
        let program = self.scratch.join("program");
        let mut gcc = Command::new(&self.compiler);
        gcc.args(["-std=c99", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1", "-pthread"]);
        gcc.arg(format!("-DEXPECTED_VERSION=\"{}\"", env!("CARGO_PKG_VERSION")));
        gcc.args(["-I", &format!("{HERE}/include"), "-o"]).arg(&program).arg(source);
        gcc.arg("-L").arg(self.scratch.path()).args(libraries);
        let (status, output) = run_to_end(&mut gcc, DEADLINE);
        assert!(status.success(), "{}: {status}\n{output}", source.display());
        program
    }
}
