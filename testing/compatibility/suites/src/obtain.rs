//! Gets the suites, and says how each is run.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use clients::prepare::{Sdist, Venv, debian_package, debian_source, go_module, npm, sdist, venv};
use harness::{program_on_path, run_to_end};

use crate::list::Runner;
use crate::run::Side;

/// A suite of Python: a source distribution, and the arguments of pytest.
struct Python {
    sdist: Sdist<'static>,
    venv: Venv<'static>,
    arguments: &'static [&'static str],
    environment: &'static [(&'static str, &'static str)],
}

/// How long a suite's build may take on a busy machine.
const BUILD_DEADLINE: Duration = Duration::from_secs(900);
const PYTEST: &str = "pytest==9.1.0";

/// One suite prepares its Python at a time: some have the same one.
static PREPARING: Mutex<()> = Mutex::new(());

impl Python {
    fn obtain(&self, target: &Path) -> Result<Runner, String> {
        let _one = PREPARING.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let python = venv(target, &self.venv)?;
        let folder = sdist(target, &python, &self.sdist)?;
        let (arguments, environment) = (self.arguments, self.environment);
        Ok(Box::new(move |side| {
            let mut command = side.command(&python);
            command
                .args([
                    "-m",
                    "pytest",
                    "--verbose",
                    "--tb=no",
                    "--no-header",
                    "--continue-on-collection-errors",
                ])
                .args(["-p", "no:cacheprovider"])
                .args(arguments)
                .envs(environment.iter().copied())
                .current_dir(&folder);
            command
        }))
    }
}

pub fn pymemcache(target: &Path) -> Result<Runner, String> {
    // Left out are the measurements of compression, which ask no server for more than others do.
    let suite = Python {
        sdist: Sdist {
            package: "pymemcache",
            version: "4.0.0",
            unpacked: "pymemcache-4.0.0",
            tests: "pymemcache/test",
        },
        venv: Venv {
            packages: &[PYTEST, "pymemcache==4.0.0", "faker==40.1.0", "zstd==1.5.7.2"],
            imports: "pytest, pymemcache, faker, zstd",
        },
        arguments: &[
            "-o",
            "addopts=",
            "--server",
            "127.0.0.1",
            "-k",
            "not bench",
            "pymemcache/test",
        ],
        environment: &[],
    };
    suite.obtain(target)
}

pub fn binary_memcached(target: &Path) -> Result<Runner, String> {
    let suite = Python {
        sdist: Sdist {
            package: "python-binary-memcached",
            version: "0.33.0",
            unpacked: "python_binary_memcached-0.33.0",
            tests: "test",
        },
        venv: Venv {
            packages: &[PYTEST, "python-binary-memcached==0.33.0", "trustme==1.2.1"],
            imports: "pytest, bmemcached, trustme",
        },
        arguments: &["test"],
        environment: &[("MEMCACHED_HOST", "127.0.0.1")],
    };
    suite.obtain(target)
}

pub fn dogpile(target: &Path) -> Result<Runner, String> {
    let suite = Python {
        sdist: Sdist {
            package: "dogpile.cache",
            version: "1.4.1",
            unpacked: "dogpile_cache-1.4.1",
            tests: "tests",
        },
        venv: Venv {
            packages: &[
                PYTEST,
                "dogpile.cache==1.4.1",
                "pymemcache==4.0.0",
                "python-binary-memcached==0.33.0",
                "python-memcached==1.62",
                "pylibmc==1.6.3",
            ],
            imports: "pytest, dogpile.cache, pymemcache, bmemcached, memcache, pylibmc",
        },
        arguments: &["tests/cache/test_memcached_backend.py"],
        environment: &[("DOGPILE_MEMCACHED_PORT", "11211")],
    };
    suite.obtain(target)
}

const PYLIBMC: Python = Python {
    sdist: Sdist {
        package: "pylibmc",
        version: "1.6.3",
        unpacked: "pylibmc-1.6.3",
        tests: "tests",
    },
    venv: Venv {
        packages: &[PYTEST, "pylibmc==1.6.3"],
        imports: "pytest, pylibmc",
    },
    arguments: &["tests"],
    environment: &[],
};

pub fn pylibmc(target: &Path) -> Result<Runner, String> {
    PYLIBMC.obtain(target)
}

/// Debian's build of it, which has no libmemcached of its own, as PyPI's has.
pub fn debians_pylibmc(target: &Path) -> Result<Runner, String> {
    let suite = Python {
        venv: Venv {
            packages: &[PYTEST],
            imports: "pytest",
        },
        ..PYLIBMC
    };
    let run = suite.obtain(target)?;
    let modules = debian_package(target, "python3-pylibmc")?.join("usr/lib/python3/dist-packages");
    let python = venv(target, &suite.venv)?;
    let mut import = Command::new(&python);
    import
        .args(["-c", "import pylibmc; print(pylibmc.__file__)"])
        .env("PYTHONPATH", &modules);
    let (_, output) = run_to_end(&mut import, BUILD_DEADLINE);
    if !output.contains("dist-packages") {
        return Err(format!(
            "{} cannot be imported by {}: {output}",
            modules.display(),
            python.display()
        ));
    }
    Ok(Box::new(move |side| {
        let mut command = run(side);
        command.env("PYTHONPATH", &modules);
        command
    }))
}

/// Read by Python before the suite: the suite's one server becomes two.
const SECOND_SERVER: &str = "\
import pylibmc.test
make = pylibmc.test.make_test_client
def with_second(cls=pylibmc.Client, **how):
    def made(servers, **more):
        kind, host, port = servers[0]
        return cls([servers[0], (kind, host, port + 1)], **more)
    return make(cls=made, **how)
pylibmc.test.make_test_client = with_second
";

pub fn pylibmc_with_two_servers(target: &Path) -> Result<Runner, String> {
    let run = PYLIBMC.obtain(target)?;
    let folder = target.join("pylibmc-two-servers");
    let write = || {
        std::fs::create_dir_all(&folder)?;
        std::fs::write(folder.join("second_server.py"), SECOND_SERVER)
    };
    write().map_err(|e| format!("{}: {e}", folder.display()))?;
    Ok(Box::new(move |side| {
        let mut command = run(side);
        command.args(["-p", "second_server"]).env("PYTHONPATH", &folder);
        command
    }))
}

pub fn gomemcache(target: &Path) -> Result<Runner, String> {
    let (program, folder) = go_module(target, "github.com/bradfitz/gomemcache/memcache")?;
    Ok(Box::new(move |side| {
        let mut command = side.command(&program);
        command.arg("-test.v").current_dir(&folder);
        command
    }))
}

pub fn node_memcached(target: &Path) -> Result<Runner, String> {
    let node = program_on_path("node").ok_or("node is not installed")?;
    let place = npm(target, &["memcached@2.2.2", "mocha@11.8.0", "should@13.2.3"])?;
    Ok(Box::new(move |side| {
        let mut command = side.command(&node);
        command
            .arg(place.join("node_modules/mocha/bin/mocha.js"))
            .args(["--reporter", "tap", "--exit", "--require", "should", "test/*.test.js"])
            .env("MEMCACHED__HOST", "127.0.0.1")
            .current_dir(place.join("node_modules/memcached"));
        command
    }))
}

/// Runs each file of checks, with a limit for those that wait for what never comes. `-T` of a first line has to be said again.
/// Of what they print only the results are kept: some print their values.
const EACH_FILE: &str = "for file in t/*.t; do echo \"== $file\"; case $(head -n 1 $file) in *-*T*) taint=-T;; *) taint=;; esac; \
                         timeout 60 perl $taint \"$@\" $file 2>/dev/null; echo \"== ends $?\"; done | \
                         grep -aE '^(== |ok|not ok|1\\.\\.)' | cut -c -200";

/// The command that does so in the folder.
fn each_file(side: &Side, folder: &Path) -> Command {
    let mut command = side.command(Path::new("/bin/sh"));
    command.args(["-c", EACH_FILE, "sh"]).current_dir(folder);
    command
}

fn has_perl() -> Result<(), String> {
    program_on_path("perl")
        .map(drop)
        .ok_or_else(|| "perl is not installed".to_owned())
}

pub fn memcached(target: &Path) -> Result<Runner, String> {
    has_perl()?;
    let source = debian_source(target, "memcached")?;
    if !source.join("t/lib/MemcachedTest.pm").exists() {
        return Err(format!("{} has no t/lib/MemcachedTest.pm", source.display()));
    }
    let timedrun = target.join("timedrun");
    let write = || {
        std::fs::write(&timedrun, "#!/bin/sh\nshift\nexec \"$@\"\n")?;
        std::fs::set_permissions(&timedrun, PermissionsExt::from_mode(0o755))
    };
    write().map_err(|e| format!("{}: {e}", timedrun.display()))?;
    Ok(Box::new(move |side| {
        let folder = side.scratch.join("source");
        let copied = Command::new("cp").arg("-r").arg(&source).arg(&folder).status();
        assert!(
            copied.is_ok_and(|status| status.success()),
            "{} could not be copied",
            source.display()
        );
        // The files start two programs that are built beside them: memcached for tests, and one that ends another after a time.
        for (name, program) in [
            ("memcached-debug", side.programs.join("memcached")),
            ("timedrun", timedrun.clone()),
        ] {
            let link = folder.join(name);
            std::os::unix::fs::symlink(program, &link).unwrap_or_else(|e| panic!("{}: {e}", link.display()));
        }
        each_file(side, &folder)
    }))
}

pub fn perl_libmemcached(target: &Path) -> Result<Runner, String> {
    has_perl()?;
    let package = "libmemcached-libmemcached-perl";
    let source = debian_source(target, package)?;
    let installed = debian_package(target, package)?;
    let modules = std::fs::read_dir(installed.join("usr/lib/x86_64-linux-gnu/perl5"));
    let modules = modules.ok().and_then(|mut entries| entries.next()?.ok());
    let modules = modules
        .ok_or_else(|| format!("{} has no modules of Perl", installed.display()))?
        .path();
    Ok(Box::new(move |side| {
        let mut command = each_file(side, &source);
        command.arg("-It/lib").arg(format!("-I{}", modules.display()));
        command
    }))
}

/// Builds the suite of the sources `$1` in `$2`. It is linked to the shared library, so that another one can stand in. Three functions that
/// its author tests are not in that library's interface: they come from an object in which everything else is hidden.
const BUILD_LIBMEMCACHED: &str = "\
set -e
cmake -S \"$1\" -B \"$2\" -DBUILD_TESTING=ON -DENABLE_SASL=ON -DENABLE_MEMASLAP=OFF -DCMAKE_BUILD_TYPE=None -DCMAKE_UNITY_BUILD=ON
cmake --build \"$2\" --parallel 2 --target runtests
cd \"$2/test\"
inside=../src/libmemcached/libmemcachedinternal.a
ld -r --force-group-allocation -o inside.o --whole-archive $inside
objcopy --keep-global-symbol=_Z14memcached_flagRK12memcached_st16memcached_flag_t \\
    --keep-global-symbol=_Z23memcached_get_namespaceR12memcached_st \\
    --keep-global-symbol=_Z30memcached_parse_configure_fileR12memcached_stPKcm inside.o
sed \"s:$inside:inside.o:; s:-o runtests:-o shared-runtests:\" CMakeFiles/runtests.dir/link.txt | sh -e
";

/// Runs each case in a process namespace of its own: a crash is one case's, and servers that a case leaves end with it.
const EACH_CASE: &str = "\
./shared-runtests --list-test-names-only | while read -r name; do
    if unshare --pid --fork --kill-child --mount-proc timeout 100 ./shared-runtests \"$name\" < /dev/null
    then echo \"ok $name\"; else echo \"not ok $name\"; fi
    rm -f \"$1\"/region-*
done
";

pub fn libmemcached(target: &Path) -> Result<Runner, String> {
    let source = debian_source(target, "libmemcached")?;
    let tools: Vec<PathBuf> = ["bison", "flex", "m4", "libsigsegv2"]
        .iter()
        .map(|package| debian_package(target, package))
        .collect::<Result<_, _>>()?;
    for program in ["cmake", "c++", "ld", "objcopy", "unshare"] {
        program_on_path(program).ok_or_else(|| format!("{program} is not installed"))?;
    }
    let build = target.join("libmemcached-build");
    let suite = build.join("test/shared-runtests");
    if !suite.exists() {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = tools
            .iter()
            .map(|tool| tool.join("usr/bin"))
            .chain(std::env::split_paths(&path));
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", BUILD_LIBMEMCACHED, "sh"])
            .args([&source, &build])
            .env("PATH", std::env::join_paths(folders).unwrap_or_else(|_| path.clone()))
            .env("BISON_PKGDATADIR", tools[0].join("usr/share/bison"))
            .env("M4", tools[2].join("usr/bin/m4"))
            .env("LD_LIBRARY_PATH", tools[3].join("usr/lib/x86_64-linux-gnu"));
        let (status, output) = run_to_end(&mut command, BUILD_DEADLINE);
        if !status.success() {
            let _ = std::fs::write(target.join("libmemcached-build.log"), &output);
            return Err(format!("its build fails: see {}/libmemcached-build.log", target.display()));
        }
    }
    Ok(Box::new(move |side| {
        let mut command = side.command(Path::new("/bin/sh"));
        command
            .args(["-c", EACH_CASE, "sh"])
            .arg(side.scratch.path())
            .env("MEMCACHED_BINARY", side.programs.join("memcached"))
            .current_dir(build.join("test"));
        command
    }))
}
