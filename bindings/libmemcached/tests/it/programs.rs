//! Programs of other authors, unchanged: enemy, an answer that they get from the drop-in on a region and would not have got from
//! Debian's libmemcached and a memcached.
//! Guards: P31

use crate::common;
use clients::prepare::{Venv, debian, venv};
use common::{Dropin, HERE, Library, Pair, assert_same, has_memcached, printed};
use harness::{DEADLINE, Kind, ServeOptions, Server, program_on_path, run_to_end, skip};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const PYLIBMC: Venv<'_> = Venv {
    packages: &["pylibmc==1.6.3"],
    imports: "pylibmc",
};

/// Cargo's target directory.
fn target() -> &'static Path {
    static TARGET: OnceLock<PathBuf> = OnceLock::new();
    TARGET.get_or_init(|| {
        let place = std::env::current_exe().expect("the running test has a path");
        place.ancestors().nth(3).expect("a target directory").to_owned()
    })
}

fn script(name: &str) -> String {
    format!("{HERE}/tests/scripts/{name}")
}

/// Runs a program with each library, against its server; the outputs must be the same but for the server's address.
fn same(test: &str, libraries: &[Library], mut command: impl FnMut(&Pair, Library) -> Command) {
    if !has_memcached(test) {
        return;
    }
    let dropin = Dropin::new();
    let mut expected = String::new();
    for &library in libraries {
        let pair = Pair::start(library);
        let mut command = command(&pair, library);
        let output = printed(dropin.give(&mut command, library)).replace(&pair.tcp.address().to_string(), "SERVER");
        if library == Library::Debian {
            expected = output;
        } else {
            assert_same(&format!("{test}, {library:?}"), &expected, &output);
        }
    }
}

const ALL: &[Library] = &[Library::Debian, Library::Preloaded, Library::Replaced];

#[test]
fn php_memcached() {
    let test = "php-memcached";
    let Some(php) = program_on_path("php") else {
        return skip(test, "php is not installed");
    };
    let (_, modules) = run_to_end(Command::new(&php).arg("-m"), DEADLINE);
    if !modules.lines().any(|line| line == "memcached") {
        return skip(test, "php-memcached is not installed");
    }
    same(test, ALL, |pair, _| {
        let mut command = Command::new(&php);
        command.arg(script("memcached.php")).args(pair.arguments());
        command
    });
}

#[test]
fn pylibmc() {
    let test = "pylibmc";
    let python = match venv(target(), &PYLIBMC) {
        Ok(python) => python,
        Err(why) => return skip(test, &why),
    };
    let debian = Path::new("/usr/lib/x86_64-linux-gnu/libmemcached.so.11");
    if !debian.exists() {
        return skip(test, "Debian's libmemcached is not there to compare with");
    }
    // The wheel brings a library of its own, under another name: only LD_PRELOAD gets before it, with Debian's as well.
    same(test, &[Library::Debian, Library::Preloaded], |pair, library| {
        let mut command = Command::new(&python);
        command.arg(script("pylibmc_client.py")).args(pair.arguments());
        if library == Library::Debian {
            command.env("LD_PRELOAD", debian);
        }
        command
    });
}

/// Debian's package has no library of its own: it is linked to libmemcached, and has the functions of Cyrus SASL by it.
#[test]
fn debians_pylibmc() {
    let test = "Debian's python3-pylibmc";
    let unpacked = match debian(target(), &["python3-pylibmc"]) {
        Ok(unpacked) => unpacked,
        Err(why) => return skip(test, &why),
    };
    let modules = unpacked.join("python3-pylibmc/usr/lib/python3/dist-packages");
    let python = Path::new("/usr/bin/python3");
    let mut import = Command::new(python);
    import.args(["-c", "import pylibmc"]).env("PYTHONPATH", &modules);
    let (status, output) = run_to_end(&mut import, DEADLINE);
    if !status.success() {
        return skip(test, &format!("it cannot be imported with Debian's library: {output}"));
    }
    same(test, ALL, |pair, _| {
        let mut command = Command::new(python);
        command.arg(script("pylibmc_client.py")).args(pair.arguments());
        command.env("PYTHONPATH", &modules);
        command
    });
}

#[test]
fn libmemcached_tools() {
    let test = "libmemcached-tools";
    if program_on_path("memccat").is_none() {
        return skip(test, "libmemcached-tools are not installed");
    }
    same(test, ALL, |pair, _| {
        let mut command = Command::new("/bin/sh");
        command.arg(script("tools.sh")).arg(pair.tcp.address().to_string());
        command
    });
}

#[test]
fn the_readmes_lines_work_as_they_stand() {
    let test = "the README's lines for libmemcached";
    if program_on_path("memccat").is_none() {
        return skip(test, "libmemcached-tools are not installed");
    }
    let readme = std::fs::read_to_string(Path::new(HERE).join("../../README.md")).expect("README.md");
    let blocks = readme.split("```sh\n").skip(1).filter_map(|rest| rest.split("```").next());
    let lines = blocks
        .into_iter()
        .find(|block| block.contains("LD_PRELOAD"))
        .expect("README.md says how");
    let dropin = Dropin::new();
    let place = dropin.scratch.join("lib/keyway");
    std::fs::create_dir_all(&place).expect("a directory");
    std::fs::copy(dropin.file(), place.join("libmemcached.so.11")).expect("a copy of the library");
    let keyway = Server::start(Kind::Keyway, &ServeOptions::default());
    let mut shell = Command::new("/bin/sh");
    shell.args(["-e", "-c", lines]).current_dir(dropin.scratch.path());
    shell
        .env("PREFIX", dropin.scratch.path())
        .env("PORT", keyway.address().port().to_string());
    assert_eq!(printed(shell.env("KEYWAY_LIBMEMCACHED_REAL", common::NOWHERE)), "hello\n\n");
}

/// A PostgreSQL of the test's own. It does not run as root, so the region must be handed out to its user.
struct Postgres {
    bin: PathBuf,
    place: PathBuf,
}

impl Postgres {
    fn find(test: &str) -> Option<PathBuf> {
        let found = std::fs::read_dir("/usr/lib/postgresql").ok().into_iter().flatten().flatten();
        let mut found = found
            .map(|entry| entry.path())
            .filter(|path| path.join("lib/pgmemcache.so").exists());
        let Some(found) = found.next() else {
            skip(test, "postgresql with pgmemcache is not installed");
            return None;
        };
        let root = run_to_end(Command::new("id").arg("-u"), DEADLINE).1.trim() == "0";
        if !root || program_on_path("runuser").is_none() {
            skip(test, "only root can start a PostgreSQL as another user (runuser)");
            return None;
        }
        Some(found.join("bin"))
    }

    fn as_its_user(&self, program: &str) -> Command {
        let mut command = Command::new("runuser");
        command
            .args(["-u", "postgres", "--"])
            .arg(self.bin.join(program))
            .current_dir(&self.place);
        command
    }

    /// Runs the SQL in a fresh cluster that is started with a library.
    fn run(&self, dropin: &Dropin, library: Library, server: &Server) -> String {
        let data = self.place.join(format!("{library:?}"));
        let options = format!(
            "-c listen_addresses= -c unix_socket_directories={} -c fsync=off",
            self.place.display()
        );
        printed(self.as_its_user("initdb").args(["-A", "trust", "-N", "-D"]).arg(&data));
        let mut start = self.as_its_user("pg_ctl");
        start
            .arg("-D")
            .arg(&data)
            .args(["-o", &options, "-w", "-l"])
            .arg(self.place.join("log"))
            .arg("start");
        // Its daemon keeps what it inherits.
        start.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        assert!(dropin.give(&mut start, library).status().expect("pg_ctl").success());
        let mut psql = self.as_its_user("psql");
        psql.arg("-h")
            .arg(&self.place)
            .args(["-d", "postgres", "-v", &format!("server={}", server.address())]);
        let (status, output) = run_to_end(psql.args(["-f", &script("pgmemcache.sql")]), DEADLINE);
        let mut stop = self.as_its_user("pg_ctl");
        printed(stop.arg("-D").arg(&data).args(["-m", "immediate", "stop"]));
        assert!(status.success(), "{output}");
        output
    }
}

#[test]
fn pgmemcache() {
    let test = "pgmemcache";
    let Some(bin) = Postgres::find(test) else { return };
    if !has_memcached(test) {
        return;
    }
    let dropin = Dropin::new();
    let place = dropin.scratch.join("postgres");
    std::fs::create_dir(&place).expect("a directory");
    printed(Command::new("chown").arg("postgres").arg(&place));
    let postgres = Postgres { bin, place };
    let memcached = Server::start(Kind::Memcached, &ServeOptions::default());
    let expected = postgres.run(&dropin, Library::Debian, &memcached);
    assert!(expected.contains("changed"), "{expected}");
    for library in [Library::Preloaded, Library::Replaced] {
        let socket = dropin.scratch.join(&format!("{library:?}.sock"));
        let options = ServeOptions {
            keyway_arguments: [
                "--region-socket",
                &socket.display().to_string(),
                "--region-writers",
                "postgres",
            ]
            .map(str::to_owned)
            .to_vec(),
            ..ServeOptions::default()
        };
        let keyway = Server::start(Kind::Keyway, &options);
        assert_same(
            &format!("pgmemcache, {library:?}"),
            &expected,
            &postgres.run(&dropin, library, &keyway),
        );
        assert!(keyway.log().contains("ready"), "{}", keyway.log());
    }
}
