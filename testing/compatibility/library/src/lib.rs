//! The library door as programs in other languages have it: what is built here, put where an interpreter or a compiler finds it.
//!
//! [`Python`] has the package `keyway_cache` and what its tests need from PyPI, [`C`] the library with its header. Both are `Err` with
//! the reason where a tool is missing. The tests in `tests/` start programs on them: pytest's files (`bindings/python/tests`),
//! and those in `programs/`.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use clients::prepare::{self, Venv};
use harness::{DEADLINE, Scratch, Server, keyway_binary, program_on_path, run_to_end, wait_until, workspace_library};

/// How long building a library may take.
pub const BUILD_DEADLINE: Duration = Duration::from_secs(1800);

/// What the Python tests need, in fixed versions.
pub const PYTHON: Venv<'_> = Venv {
    packages: &["pymemcache==4.0.0", "pytest==9.2.0", "Django==5.2.19", "maturin==1.16.0"],
    imports: "pymemcache, pytest, django, maturin",
};

/// The workspace.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// The region that README.md's command names for this server.
///
/// # Panics
///
/// When README.md does not say how it is found, or the command fails.
pub fn region_of_the_readme(server: &Server) -> String {
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md");
    let line = readme.lines().find(|line| line.starts_with("export KEYWAY_REGION="));
    let line = line.expect("README.md says how a region is found");
    let line = line.replace("11211", &server.address().port().to_string());
    let folder = keyway_binary().parent().expect("a program is in a folder").display();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", &format!("{line}; echo $KEYWAY_REGION")])
        .env("PATH", path);
    let (status, output) = run_to_end(&mut command, DEADLINE);
    assert!(status.success(), "{line}: {status}\n{output}");
    output.trim_end().to_owned()
}

/// One of `programs/`.
pub fn program(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("programs").join(name)
}

/// The directory that this program was built into, and cargo's name of its profile.
pub fn built() -> (PathBuf, &'static str) {
    let test = std::env::current_exe().unwrap_or_else(|e| panic!("the running test's own path: {e}"));
    let folder = test.ancestors().skip(1).find(|folder| !folder.ends_with("deps"));
    let folder = folder.unwrap_or_else(|| panic!("{}: not in a target directory", test.display()));
    let profile = match folder.file_name().and_then(|name| name.to_str()) {
        Some("release") => "release",
        Some("fast") => "fast",
        _ => "dev",
    };
    (folder.to_path_buf(), profile)
}

/// Made for all tests that run at a time, and gone with the last of them: a static is never dropped, and its files would stay.
pub struct Shared<T>(Mutex<Weak<T>>);

impl<T> Shared<T> {
    /// Nothing yet.
    #[allow(clippy::new_without_default, reason = "it is for statics")]
    pub const fn new() -> Self {
        Self(Mutex::new(Weak::new()))
    }

    /// What the others have, or what `make` makes. `Err`: why it cannot.
    pub fn get(&self, make: impl FnOnce() -> Result<T, String>) -> Result<Arc<T>, String> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(made) = held.upgrade() {
            return Ok(made);
        }
        let made = Arc::new(make()?);
        *held = Arc::downgrade(&made);
        Ok(made)
    }
}

/// The package `keyway_cache` as it is installed, and an interpreter.
pub struct Python {
    /// the interpreter
    pub interpreter: PathBuf,
    /// holds the package
    packages: Scratch,
}

impl Python {
    /// `Err`: why there is none. `target` is where downloads are kept.
    pub fn new(target: &Path) -> Result<Self, String> {
        Self::with(target, &PYTHON)
    }

    /// The same with other packages from PyPI.
    pub fn with(target: &Path, packages: &Venv<'_>) -> Result<Self, String> {
        let interpreter = prepare::venv(target, packages)?;
        let packages = Scratch::new();
        let package = packages.join("keyway_cache");
        std::fs::create_dir_all(&package).unwrap_or_else(|e| panic!("{}: {e}", package.display()));
        let source = root().join("bindings/python/keyway_cache");
        let files = std::fs::read_dir(&source).unwrap_or_else(|e| panic!("{}: {e}", source.display()));
        for file in files.flatten().filter(|file| file.path().is_file()) {
            copy(&file.path(), &package.join(file.file_name()));
        }
        copy(
            &workspace_library("keyway-python", "lib_keyway.so"),
            &package.join("_keyway.abi3.so"),
        );
        Ok(Self { interpreter, packages })
    }

    /// A command that runs the interpreter with the package.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.interpreter);
        command
            .env("PYTHONPATH", self.packages.path())
            .env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }

    /// Where the package is.
    pub fn path(&self) -> &Path {
        self.packages.path()
    }
}

/// The library for C as it is installed, and a compiler.
pub struct C {
    compiler: PathBuf,
    folder: Scratch,
}

impl C {
    /// `Err`: why there is none.
    pub fn new() -> Result<Self, String> {
        let compiler = program_on_path("gcc").ok_or("gcc is not installed")?;
        let folder = Scratch::new();
        let library = workspace_library("keyway-capi", "libkeyway_capi.so");
        for name in ["libkeyway.so", "libkeyway.so.0"] {
            copy(&library, &folder.join(name));
        }
        Ok(Self { compiler, folder })
    }

    /// Compiles one of `programs/`.
    pub fn compile(&self, name: &str) {
        let mut gcc = Command::new(&self.compiler);
        gcc.args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O1", "-I"]);
        gcc.arg(root().join("crates/keyway-capi/include"));
        gcc.arg("-o").arg(self.made(name)).arg(program(name));
        gcc.arg("-L").arg(self.folder.path()).arg("-lkeyway");
        let (status, output) = run_to_end(&mut gcc, DEADLINE);
        assert!(status.success(), "{name}: {status}\n{output}");
    }

    /// A command that runs a program that was compiled.
    pub fn run(&self, name: &str) -> Command {
        let mut command = Command::new(self.made(name));
        command.env("LD_LIBRARY_PATH", self.folder.path());
        command
    }

    fn made(&self, name: &str) -> PathBuf {
        self.folder.join(name.trim_end_matches(".c"))
    }
}

/// A program that dies with its handle, also when a test fails.
pub struct Running(Child);

impl Running {
    /// Starts it.
    ///
    /// # Panics
    ///
    /// When it cannot be run.
    pub fn start(command: &mut Command) -> Self {
        Self(
            command
                .spawn()
                .unwrap_or_else(|e| panic!("{}: {e}", command.get_program().to_string_lossy())),
        )
    }

    /// How it ended, if it has.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }

    /// Waits for its end.
    ///
    /// # Panics
    ///
    /// When there is none in time.
    pub fn end(&mut self) -> ExitStatus {
        wait_until("a program ends", DEADLINE, || self.ended())
    }

    /// SIGKILL, and waits until it is gone.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }

    /// The next line that it says, whose standard output is a pipe.
    ///
    /// # Panics
    ///
    /// When it says nothing, and has ended.
    pub fn line(&mut self) -> String {
        let mut line = Vec::new();
        let output = self.0.stdout.as_mut().unwrap_or_else(|| panic!("no pipe"));
        // By the byte: what is behind the line stays in the pipe.
        let mut byte = [0];
        while output.read(&mut byte).is_ok_and(|len| len == 1) && byte != *b"\n" {
            line.extend(byte);
        }
        String::from_utf8_lossy(&line).into_owned()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

fn copy(from: &Path, to: &Path) {
    std::fs::copy(from, to).unwrap_or_else(|e| panic!("{} to {}: {e}", from.display(), to.display()));
}
