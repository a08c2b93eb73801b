//! The package `keyway_cache` for Python: what its own tests say (`bindings/python/tests`), Django's, and the wheel as pip installs it.
//! Enemy: a client that is not what a user of pymemcache or Django expects, a file that the wheel lacks, lines in README.md that
//! do not work.
//! Guards: P30

use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use clients::prepare;
use harness::{DEADLINE, Kind, Scratch, ServeOptions, Server, Transport, keyway_binary, memcached_binary, run_to_end, say, skip};
use keyway_cache::{Cache, Options, Place};
use library::{BUILD_DEADLINE, PYTHON, Python, Shared, built, region_of_the_readme, root};

/// Where downloads are kept.
fn target() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

/// `None`: said aloud why not.
fn python(test: &str) -> Option<Arc<Python>> {
    static PYTHON: Shared<Python> = Shared::new();
    let python = PYTHON.get(|| Python::new(target()));
    python.map_err(|because| skip(test, &because)).ok()
}

/// Runs one file of pytest's.
fn pytest(file: &str) {
    let Some(python) = python(file) else { return };
    let scratch = Scratch::new();
    let socket = scratch.join("region.sock");
    let server = Server::start(
        Kind::Keyway,
        &ServeOptions {
            keyway_arguments: vec!["--region-socket".into(), socket.display().to_string()],
            ..ServeOptions::default()
        },
    );
    let mut command = python.command();
    command
        .args(["-m", "pytest", "-q", "-p", "no:cacheprovider"])
        .arg(root().join("bindings/python/tests").join(file))
        .env("KEYWAY", keyway_binary())
        .env("KEYWAY_TEST_ARGUMENT", server.socket())
        .env("KEYWAY_TEST_PLACE", &socket);
    let peer = memcached_binary().map(|_| {
        let options = ServeOptions {
            transport: Transport::Unix,
            ..ServeOptions::default()
        };
        Server::start(Kind::Memcached, &options)
    });
    if let Some(peer) = &peer {
        command.env("MEMCACHED_SERVER", peer.socket());
    }
    let (status, output) = run_to_end(&mut command, DEADLINE * 3);
    assert!(status.success(), "{file}: {status}\n{output}\n{}", server.log());
    say(&format!("{file}: {}", output.lines().last().unwrap_or_default()));
}

#[test]
fn outcomes_agree_with_pymemcaches() {
    pytest("test_agreement.py");
}

#[test]
fn the_client() {
    pytest("test_client.py");
}

#[test]
fn arguments_that_change() {
    pytest("test_changing.py");
}

#[test]
fn forks_and_killed_processes() {
    pytest("test_processes.py");
}

#[test]
fn fetches() {
    pytest("test_fetch.py");
}

#[test]
fn several_interpreters_in_a_process() {
    pytest("test_interpreters.py");
}

#[test]
fn the_backend_for_django() {
    pytest("test_django.py");
}

/// And, so that it is seen that the tests are not at fault when they fail, against Django's own backend and a memcached.
#[test]
fn djangos_own_tests() {
    let Some(python) = python("Django's own cache tests") else {
        return;
    };
    let version = PYTHON.packages.iter().find_map(|package| package.strip_prefix("Django=="));
    let tests = match prepare::django_tests(target(), &python.interpreter, version.expect("a version of Django")) {
        Ok(tests) => tests,
        Err(because) => return skip("Django's own cache tests", &because),
    };
    let run = |location: String, backend: &[&str]| {
        let mut command = python.command();
        command
            .arg(root().join("bindings/python/tests/django_own_tests.py"))
            .arg(&tests)
            .arg(location)
            .args(backend);
        let (status, output) = run_to_end(&mut command, DEADLINE * 3);
        let verdict = output.lines().last().unwrap_or_default();
        assert!(
            status.success() && verdict.starts_with("OK"),
            "{backend:?}: {status}\n{output}"
        );
        say(&format!("Django's own cache tests {backend:?}: {verdict}"));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let scratch = Scratch::new();
            run(scratch.join("region").display().to_string(), &[]);
        });
        if memcached_binary().is_some() {
            scope.spawn(|| {
                let options = ServeOptions {
                    transport: Transport::Unix,
                    ..ServeOptions::default()
                };
                let peer = Server::start(Kind::Memcached, &options);
                let location = format!("unix:{}", peer.socket().display());
                run(location, &["django.core.cache.backends.memcached.PyMemcacheCache"]);
            });
        }
    });
}

/// As short as it can be: it checks every side's answers before it takes times.
#[test]
fn the_figures_can_be_taken() {
    let test = "benches/python.py";
    let Some(python) = python(test) else { return };
    let mut command = python.command();
    command.arg(root().join(test)).args(["--seconds", "0.001", "--repeats", "1"]);
    if let Some(memcached) = memcached_binary() {
        command.env("KEYWAY_MEMCACHED", memcached);
    }
    let (status, output) = run_to_end(&mut command, DEADLINE);
    assert!(status.success(), "{test}: {status}\n{output}");
    let rows = output.lines().filter(|line| line.starts_with("| get")).count();
    let sides = output.lines().next().map_or(0, |head| head.matches('|').count() - 2);
    assert!(
        rows >= 4 && sides == if memcached_binary().is_some() { 3 } else { 1 },
        "{output}"
    );
}

#[test]
fn the_readmes_lines_for_python_work_as_they_stand() {
    let test = "the README's Python program";
    let Some(python) = python(test) else { return };
    let readme = std::fs::read_to_string(root().join("README.md")).expect("README.md");
    let line = "pip install ./bindings/python";
    assert!(readme.contains(line), "README.md does not say: {line}");
    let program = readme
        .split("```python\nfrom keyway_cache")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let program = format!(
        "from keyway_cache{}",
        program.expect("README.md has a program on keyway for Python")
    );

    let site = Scratch::new();
    let (folder, profile) = built();
    let bin = python.interpreter.parent().expect("an interpreter is in a folder");
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap_or_default());
    let mut install = Command::new("/bin/sh");
    install.args(["-c", line]).current_dir(root()).env("PATH", &path);
    // With the maturin that is there already, in the profile of this test, and to a folder of its own.
    install
        .env("PIP_NO_BUILD_ISOLATION", "0")
        .env("PIP_NO_DEPS", "1")
        .env("PIP_TARGET", site.path());
    install
        .env("PIP_DISABLE_PIP_VERSION_CHECK", "1")
        .env("MATURIN_PEP517_ARGS", format!("--profile {profile}"));
    install.env("CARGO_TARGET_DIR", folder.parent().expect("a target directory"));
    let (status, output) = run_to_end(&mut install, BUILD_DEADLINE);
    assert!(status.success(), "{line}: {status}\n{output}");
    for file in [
        "__init__.py",
        "__init__.pyi",
        "_keyway.pyi",
        "_keyway.abi3.so",
        "django.py",
        "fetching.py",
        "fetching.pyi",
        "tasks.py",
        "py.typed",
    ] {
        assert!(
            site.join("keyway_cache").join(file).is_file(),
            "the wheel has no keyway_cache/{file}"
        );
    }

    is_described(site.path());
    fits_manylinux(&site.join("keyway_cache/_keyway.abi3.so"));

    // On the region of a server as `make run` starts it, but for the port.
    let server = Server::start(
        Kind::Keyway,
        &ServeOptions {
            default_place: true,
            ..ServeOptions::default()
        },
    );
    let mut command = Command::new(&python.interpreter);
    command
        .args(["-c", &program])
        .env("KEYWAY_REGION", region_of_the_readme(&server))
        .env("PYTHONPATH", site.path());
    let (status, output) = run_to_end(&mut command, DEADLINE);
    assert!(status.success(), "{status}\n{output}");
    assert_eq!(output, "b'hello'\n");
    let told = server.connect(Transport::Tcp).ask("mg greeting s");
    assert_eq!(told.expect("an answer"), "HD s5", "program and server share a region");
}

/// What `pip show` prints of the package that was installed to this folder.
fn is_described(site: &Path) {
    let version = env!("CARGO_PKG_VERSION");
    let metadata = site.join(format!("keyway_cache-{version}.dist-info/METADATA"));
    let metadata = std::fs::read_to_string(&metadata).unwrap_or_else(|e| panic!("{}: {e}", metadata.display()));
    for line in [
        "Name: keyway-cache",
        &format!("Version: {version}"),
        "Summary: A memcached-compatible cache in shared memory, as function calls",
        "License-Expression: Apache-2.0",
        "License-File: LICENSE",
        "Requires-Python: >=3.10",
        "Classifier: Framework :: Django",
        "Classifier: Typing :: Typed",
        "# keyway-cache",
    ] {
        assert!(metadata.lines().any(|has| has == line), "no line {line:?} in\n{metadata}");
    }
    assert!(!metadata.contains("Home-page:"), "there is no page to name");
}

/// glibc's version in the tag of `make wheel`, `manylinux_2_28`.
const GLIBC: (u32, u32) = (2, 28);
/// Functions that older versions of glibc have too, in another of its libraries or under another name: where the wheel is linked
/// for an older version, they are found there.
const MOVED: [&str; 3] = ["pthread_", "dl", "sem_"];
const RENAMED: [&str; 7] = ["stat", "lstat", "fstat", "stat64", "lstat64", "fstat64", "fstatat64"];

/// Whether the library needs no function that is newer than the tag of the wheel. (Weak ones may be absent.)
fn fits_manylinux(library: &Path) {
    let (status, output) = run_to_end(
        Command::new("nm").args(["--dynamic", "--undefined-only"]).arg(library),
        DEADLINE,
    );
    assert!(status.success(), "nm: {status}\n{output}");
    let needed = output
        .lines()
        .filter_map(|line| line.trim().strip_prefix("U ")?.split_once("@GLIBC_"));
    let needed: Vec<(&str, &str)> = needed.collect();
    assert!(needed.len() > 20, "nm names few functions:\n{output}");
    for (name, version) in needed {
        let (major, minor) = version.split_once('.').expect("a version of glibc");
        let minor = minor.split('.').next().unwrap_or(minor);
        let version = (major.parse().expect("a number"), minor.parse().expect("a number"));
        let is_old = version <= GLIBC || RENAMED.contains(&name) || MOVED.iter().any(|start| name.starts_with(start));
        assert!(
            is_old,
            "{name} came with glibc {version:?}, and make wheel promises {GLIBC:?}"
        );
    }
}

#[test]
fn under_keyway_exec_the_region_is_attached_before_main() {
    let test = "Python under keyway exec";
    let python = match Python::new(Path::new(env!("CARGO_TARGET_TMPDIR"))) {
        Ok(python) => python,
        Err(because) => return skip(test, &because),
    };
    let scratch = Scratch::new();
    let region = scratch.join("region");
    Cache::open(&Place::at(&region), &Options::new().memory(8 << 20)).expect("a region");
    let program = "\
import os, sys, keyway_cache
client = keyway_cache.Client(sys.argv[1])
client.set('key', b'value', noreply=False)
if os.fork() == 0:
    try:
        print('the child has', client.get('key'))
    except keyway_cache.exceptions.MemcacheRegionError as error:
        print('the child gets the error:', error)
    sys.stdout.flush()
    os._exit(0)
os.wait()
print(client.get('key'))
";
    let exec = |library: &Path| {
        let folder = Scratch::new();
        let mut command = Command::new(harness::keyway_binary());
        for (name, value) in python.command().get_envs() {
            command.env(name, value.unwrap_or_default());
        }
        command
            .args(["exec", "--region"])
            .arg(&region)
            .arg("--library")
            .arg(harness::link_to_preload(library, &folder))
            .arg("--");
        command.arg(&python.interpreter).args(["-c", program]).arg(&region);
        run_to_end(&mut command, DEADLINE)
    };
    let (status, said) = exec(&python.path().join("keyway_cache/_keyway.abi3.so"));
    assert!(status.success() && said.contains("\nb'value'"), "{status}\n{said}");
    let told = said.lines().find(|line| line.starts_with("the child gets the error"));
    assert!(
        told.is_some_and(|line| line.contains("use threads instead of forked children")),
        "{said}"
    );
    let (status, said) = exec(&harness::workspace_library("keyway-capi", "libkeyway_capi.so"));
    assert!(
        !status.success() && said.contains("keyway exec --library"),
        "{status}\n{said}"
    );
}
