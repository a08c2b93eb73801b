//! Gets client libraries, in fixed versions, into cargo's target directory. What is missing on this machine is a reason to skip,
//! not a failure: an `Err` of these functions is that reason.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
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
/// How long a registry may take, with what is built of its answer: pip does that even where it only downloads.
const REGISTRY_DEADLINE: Duration = Duration::from_secs(900);
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
    if !is_at_home(&place) || !has_packages(&python, wanted) {
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

/// Whether the environment was made at this place: its programs name their interpreter by its whole path.
fn is_at_home(place: &Path) -> bool {
    let pip = std::fs::read_to_string(place.join("bin/pip"));
    pip.is_ok_and(|script| script.contains(&*place.to_string_lossy()))
}

fn has_packages(python: &Path, wanted: &Venv<'_>) -> bool {
    let import = format!("import {}", wanted.imports);
    python.exists()
        && run_to_end(Command::new(python).args(["-c", &import]), REGISTRY_DEADLINE)
            .0
            .success()
}

/// A source distribution from PyPI, which has the tests that packages leave out.
pub struct Sdist<'a> {
    /// as pip takes it
    pub package: &'a str,
    /// of it, too
    pub version: &'a str,
    /// the folder in the archive, which is the archive's name, too
    pub unpacked: &'a str,
    /// what has to be in that folder
    pub tests: &'a str,
}

/// The folder of an unpacked source distribution.
pub fn sdist(target: &Path, python: &Path, wanted: &Sdist<'_>) -> Result<PathBuf, String> {
    let folder = target.join(wanted.unpacked);
    if !folder.join(wanted.tests).exists() {
        let what = format!("{}=={}", wanted.package, wanted.version);
        let mut download = Command::new(python);
        download
            .args(["-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"])
            .args(["--no-binary", ":all:", "--dest"])
            .arg(target)
            .arg(&what);
        step(&format!("the source distribution of {what}"), &mut download)?;
        unpack(target, &target.join(format!("{}.tar.gz", wanted.unpacked)))?;
    }
    match folder.join(wanted.tests).exists() {
        true => Ok(folder),
        false => Err(format!("{}.tar.gz has no {}", wanted.unpacked, wanted.tests)),
    }
}

fn unpack(target: &Path, archive: &Path) -> Result<(), String> {
    let status = Command::new("tar").arg("-xf").arg(archive).arg("-C").arg(target).status();
    match status.is_ok_and(|status| status.success()) {
        true => Ok(()),
        false => Err(format!("{} could not be unpacked", archive.display())),
    }
}

/// The folder with Django's own tests, which only its source distribution has.
pub fn django_tests(target: &Path, python: &Path, version: &str) -> Result<PathBuf, String> {
    let wanted = Sdist {
        package: "Django",
        version,
        unpacked: &format!("django-{version}"),
        tests: "tests/cache/tests.py",
    };
    Ok(sdist(target, python, &wanted)?.join("tests"))
}

/// The unpacked sources of one of Debian's packages, as their authors publish them, of the release that runs here.
pub fn debian_source(target: &Path, package: &str) -> Result<PathBuf, String> {
    let place = target.join(format!("debian-{package}"));
    let unpacked = || {
        let folders = std::fs::read_dir(&place).ok()?.flatten().map(|entry| entry.path());
        folders.into_iter().find(|path| path.is_dir())
    };
    if unpacked().is_none() {
        let archives = from_debian(&place, &["source", "--download-only", "--tar-only", package])?;
        for archive in archives.iter().filter(|path| path.to_string_lossy().contains(".orig.tar.")) {
            unpack(&place, archive)?;
        }
    }
    unpacked().ok_or_else(|| format!("Debian's sources of {package} have no folder"))
}

/// The folder with the files of one of Debian's packages, which is not installed.
pub fn debian_package(target: &Path, package: &str) -> Result<PathBuf, String> {
    let place = target.join(format!("debian-{package}-installed"));
    let files = place.join("files");
    if !files.exists() {
        for archive in from_debian(&place, &["download", package])? {
            let mut unpack = Command::new("dpkg-deb");
            step("its files", unpack.arg("--extract").arg(archive).arg(&files))?;
        }
    }
    match files.exists() {
        true => Ok(files),
        false => Err(format!("Debian's package {package} has no files")),
    }
}

/// Has apt fetch something into `place`; the files there then. apt's lists are in a folder beside it, and the machine's own stay as they are.
fn from_debian(place: &Path, arguments: &[&str]) -> Result<Vec<PathBuf>, String> {
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let value = |name: &str| {
        let found = release.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        found.unwrap_or_default()
    };
    let (id, codename) = (value("ID"), value("VERSION_CODENAME"));
    if id != "debian" || codename.is_empty() {
        return Err("this is no Debian, whose packages are wanted".to_owned());
    }
    let apt = program_on_path("apt-get").ok_or("apt-get is not installed")?;
    let lists = place.with_file_name("debian-lists");
    let write = || {
        std::fs::create_dir_all(place)?;
        std::fs::create_dir_all(lists.join("lists/partial"))?;
        std::fs::create_dir_all(lists.join("cache/archives/partial"))?;
        let from = "[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian";
        let lines = format!("deb {from} {codename} main\ndeb-src {from} {codename} main\n");
        std::fs::write(lists.join("sources.list"), lines)
    };
    write().map_err(|e| format!("{}: {e}", place.display()))?;
    let apt = |arguments: &[&str]| {
        let mut command = Command::new(&apt);
        for (option, value) in [
            ("Dir::Etc::sourcelist", lists.join("sources.list")),
            ("Dir::Etc::sourceparts", PathBuf::from("/dev/null")),
            ("Dir::State::lists", lists.join("lists")),
            ("Dir::Cache", lists.join("cache")),
            ("APT::Sandbox::User", PathBuf::from("root")),
        ] {
            command.arg("-o").arg(format!("{option}={}", value.display()));
        }
        command.arg("--quiet").args(arguments).current_dir(place);
        command
    };
    static UPDATING: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = UPDATING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    step("Debian's lists of packages", &mut apt(&["update"]))?;
    step(&format!("what Debian has ({})", arguments.join(" ")), &mut apt(arguments))?;
    let found = std::fs::read_dir(place).map_err(|e| format!("{}: {e}", place.display()))?;
    Ok(found
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_file())
        .collect())
}

/// The tests of a package of a Go module that the Go client uses, built, and the folder where they run.
///
/// # Panics
///
/// When its modules are there and they do not compile.
pub fn go_module(target: &Path, package: &str) -> Result<(PathBuf, PathBuf), String> {
    let go = program_on_path("go").ok_or("go is not installed")?;
    let source = scripts().join("go");
    step(package, Command::new(&go).args(["mod", "download"]).current_dir(&source))?;
    let program = target.join(format!("{}.test", package.replace('/', "-")));
    let mut build = Command::new(&go);
    build.args(["test", "-c", "-o"]).arg(&program).arg(package);
    let (status, output) = run_to_end(
        build.current_dir(&source).env("GOCACHE", target.join("go-build")),
        BUILD_DEADLINE,
    );
    assert!(status.success(), "go test -c {package}: {status}\n{output}");
    let mut list = Command::new(&go);
    list.args(["list", "-f", "{{.Dir}}", package]).current_dir(&source);
    let (status, output) = run_to_end(&mut list, REGISTRY_DEADLINE);
    match status.success() {
        true => Ok((program, PathBuf::from(output.trim()))),
        false => Err(format!("go list {package}: {output}")),
    }
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
    let (status, output) = run_to_end(&mut build, BUILD_DEADLINE);
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

/// A folder with packages of npm in fixed versions (`NAME@VERSION`), in its `node_modules`.
pub fn npm(target: &Path, packages: &[&str]) -> Result<PathBuf, String> {
    let npm = program_on_path("npm").ok_or("npm is not installed")?;
    let place = target.join(format!("npm-{}", packages.join("-").replace('@', "-")));
    if !place.join("node_modules/.package-lock.json").exists() {
        std::fs::create_dir_all(&place).map_err(|e| format!("{}: {e}", place.display()))?;
        std::fs::write(place.join("package.json"), "{\"private\": true}\n").map_err(|e| format!("{}: {e}", place.display()))?;
        let mut install = Command::new(npm);
        install
            .args(["install", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"])
            .args(packages)
            .current_dir(&place);
        step("npm's packages", &mut install)?;
    }
    Ok(place)
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
        // Each caller has a folder of its own: other tests may want the same package at the same time.
        static DOWNLOADS: AtomicU32 = AtomicU32::new(0);
        let number = DOWNLOADS.fetch_add(1, Ordering::Relaxed);
        let download = place.join(format!("{package}.deb.{}-{number}", std::process::id()));
        std::fs::create_dir_all(&download).map_err(|e| format!("{}: {e}", download.display()))?;
        let mut get = Command::new("apt-get");
        get.args(["-qq", "-o", "APT::Sandbox::User=root", "download", package])
            .current_dir(&download);
        step(package, &mut get)?;
        let entry = std::fs::read_dir(&download).ok().and_then(|mut entries| entries.next());
        let file = entry.ok_or(format!("{package}: apt-get downloads nothing"))?;
        let file = file.map_err(|e| format!("{}: {e}", download.display()))?.path();
        let mut unpack = Command::new("dpkg-deb");
        let contents = download.join("contents");
        unpack.arg("--extract").arg(file).arg(&contents);
        step(package, &mut unpack)?;
        let moved = std::fs::rename(&contents, &unpacked);
        let _ = std::fs::remove_dir_all(&download);
        // Another caller may have been first.
        if !unpacked.join("usr").exists() {
            moved.map_err(|e| format!("{}: {e}", unpacked.display()))?;
        }
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
