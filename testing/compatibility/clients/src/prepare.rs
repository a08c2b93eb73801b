//! Gets client libraries, in fixed versions, into cargo's target directory. What is missing on this machine is a reason to skip,
//! not a failure: an `Err` of these functions is that reason.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use harness::{program_on_path, run_to_end};

/// Packages from PyPI in fixed versions.
pub struct Venv<'a> {
    /// as pip takes them
    pub packages: &'a [&'a str],
    /// what they are imported as
    pub imports: &'a str,
}

/// The Python clients.
const PYTHON_CLIENTS: Venv<'_> = Venv {
    packages: &[
        "pymemcache==4.0.0",
        "python-memcached==1.62",
        "python-binary-memcached==0.33.0",
    ],
    imports: "pymemcache, memcache, bmemcached",
};
/// How long a registry may take.
const REGISTRY_DEADLINE: Duration = Duration::from_secs(240);
/// How long a large program may take to compile on a busy machine.
const BUILD_DEADLINE: Duration = Duration::from_secs(900);

/// The programs that use the clients.
pub fn scripts() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts")
}

/// A Python that has pymemcache, python-memcached and python-binary-memcached.
pub fn python(target: &Path) -> Result<PathBuf, String> {
    venv(target, &PYTHON_CLIENTS)
}

/// A Python that has these packages, in a virtual environment of its own.
pub fn venv(target: &Path, wanted: &Venv<'_>) -> Result<PathBuf, String> {
    let system = program_on_path("python3").ok_or("python3 is not installed")?;
    let place = target.join(format!("python-{}", wanted.packages.join("-").replace("==", "-")));
    let python = place.join("bin/python");
    if !has_packages(&python, wanted) {
        step(
            "a virtual environment for Python",
            Command::new(system).args(["-m", "venv", "--clear"]).arg(&place),
        )?;
        let mut install = Command::new(&python);
        install
            .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"])
            .args(wanted.packages);
        step("the Python packages", &mut install)?;
    }
    Ok(python)
}

fn has_packages(python: &Path, wanted: &Venv<'_>) -> bool {
    let import = format!("import {}", wanted.imports);
    python.exists()
        && run_to_end(Command::new(python).args(["-c", &import]), REGISTRY_DEADLINE)
            .0
            .success()
}

/// The folder with Django's own tests, which only its source distribution has.
pub fn django_tests(target: &Path, python: &Path, version: &str) -> Result<PathBuf, String> {
    let name = format!("django-{version}");
    let tests = target.join(&name).join("tests");
    if !tests.join("cache/tests.py").exists() {
        let mut download = Command::new(python);
        download
            .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"])
            .args(["--no-binary", ":all:", "--dest"])
            .arg(target)
            .arg(format!("Django=={version}"));
        step("Django's source distribution", &mut download)?;
        let archive = target.join(format!("{name}.tar.gz"));
        let unpack = Command::new(python)
            .args(["-m", "tarfile", "--extract"])
            .arg(archive)
            .arg(target)
            .status();
        if !unpack.is_ok_and(|status| status.success()) {
            return Err(format!("{name}.tar.gz could not be unpacked"));
        }
    }
    Ok(tests)
}

/// The program that uses gomemcache, built.
///
/// # Panics
///
/// When its modules are there and it does not compile.
pub fn go_program(target: &Path) -> Result<PathBuf, String> {
    let go = program_on_path("go").ok_or("go is not installed")?;
    let source = scripts().join("go");
    let cache = target.join("go-build");
    step("gomemcache", Command::new(&go).args(["mod", "download"]).current_dir(&source))?;
    let program = target.join("gomemcache-client");
    let mut build = Command::new(&go);
    build
        .args(["build", "-buildvcs=false", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(&source)
        .env("GOCACHE", cache);
    let (status, output) = run_to_end(&mut build, REGISTRY_DEADLINE);
    assert!(status.success(), "go build: {status}\n{output}");
    Ok(program)
}

/// A program of a Go module, built in the versions that `source` fixes (its go.mod and go.sum). Named like the package's last part.
///
/// # Panics
///
/// When its modules are there and it does not compile.
pub fn go_tool(target: &Path, source: &Path, package: &str) -> Result<PathBuf, String> {
    let go = program_on_path("go").ok_or("go is not installed")?;
    let name = package.rsplit('/').next().unwrap_or(package);
    step(name, Command::new(&go).args(["mod", "download"]).current_dir(source))?;
    let program = target.join(name);
    let mut build = Command::new(&go);
    build
        .args(["build", "-buildvcs=false", "-o"])
        .arg(&program)
        .arg(package)
        .current_dir(source)
        .env("GOCACHE", target.join("go-build"));
    let (status, output) = run_to_end(&mut build, BUILD_DEADLINE);
    assert!(status.success(), "go build {package}: {status}\n{output}");
    Ok(program)
}

/// node, and the directory of the program that uses the npm package memcached, with the package in it.
pub fn node_program(target: &Path) -> Result<(PathBuf, PathBuf), String> {
    let node = program_on_path("node").ok_or("node is not installed")?;
    let npm = program_on_path("npm").ok_or("npm is not installed")?;
    let (source, place) = (scripts().join("node"), target.join("node"));
    std::fs::create_dir_all(&place).map_err(|e| format!("{}: {e}", place.display()))?;
    for file in ["package.json", "package-lock.json", "client.js"] {
        let to = place.join(file);
        std::fs::copy(source.join(file), &to).map_err(|e| format!("{}: {e}", to.display()))?;
    }
    if !place.join("node_modules/memcached/package.json").exists() {
        let mut install = Command::new(npm);
        install
            .args(["ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
            .current_dir(&place);
        step("the Node client", &mut install)?;
    }
    Ok((node, place))
}

/// Packages of Debian, unpacked into a folder that is named for them: programs and libraries, without what they depend on.
pub fn debian(target: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    if program_on_path("apt-get").is_none() || program_on_path("dpkg-deb").is_none() {
        return Err("this is no Debian: apt-get or dpkg-deb is missing".to_owned());
    }
    let place = target.join("debian");
    for package in packages {
        let unpacked = place.join(package);
        if unpacked.join("usr").exists() {
            continue;
        }
        // A download that was cut off is begun anew.
        let download = place.join(format!("{package}.deb.d"));
        let _ = std::fs::remove_dir_all(&download);
        std::fs::create_dir_all(&download).map_err(|e| format!("{}: {e}", download.display()))?;
        let mut get = Command::new("apt-get");
        get.args(["-qq", "-o", "APT::Sandbox::User=root", "download", package])
            .current_dir(&download);
        step(package, &mut get)?;
        let entry = std::fs::read_dir(&download).ok().and_then(|mut entries| entries.next());
        let file = entry.ok_or(format!("{package}: apt-get downloads nothing"))?;
        let file = file.map_err(|e| format!("{}: {e}", download.display()))?.path();
        let mut unpack = Command::new("dpkg-deb");
        unpack.arg("--extract").arg(file).arg(&unpacked);
        step(package, &mut unpack)?;
    }
    Ok(place)
}

/// Runs one step; its failure is a reason.
fn step(what: &str, command: &mut Command) -> Result<(), String> {
    let (status, output) = run_to_end(&mut outside(command), REGISTRY_DEADLINE);
    if status.success() {
        return Ok(());
    }
    let told: Vec<&str> = output.lines().rev().filter(|line| !line.trim().is_empty()).take(3).collect();
    Err(format!(
        "{what} could not be had: {}",
        told.into_iter().rev().collect::<Vec<_>>().join(" / ")
    ))
}

/// The command in the network namespace that has the registries, if the test is in another one.
fn outside(command: &Command) -> Command {
    let mut outside = match std::env::var("KEYWAY_TESTS_OUTSIDE") {
        Ok(namespace) => {
            let mut nsenter = Command::new("nsenter");
            nsenter.arg(format!("--net={namespace}")).arg(command.get_program());
            nsenter
        }
        Err(_) => Command::new(command.get_program()),
    };
    outside.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => outside.env(name, value),
            None => outside.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        outside.current_dir(folder);
    }
    outside
}
