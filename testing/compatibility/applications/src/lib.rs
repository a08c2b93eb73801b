//! Web applications as people run them, unchanged, with memcached or Keyway as their cache: see `tests/`, and
//! `cargo run --release -p lab -- applications`.
//!
//! [`Site`] is a PHP page under php-fpm and nginx, or a Django page under gunicorn, which this process started; it ends with
//! its handle. [`load`] asks for its pages. Each page makes 12 cache calls and checks every answer.

pub mod load;

use clients::prepare::Venv;
use harness::{DEADLINE, Scratch, program_on_path, wait_until, workspace_library};
use library::Python;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Django and the server that it runs under.
const DJANGO: Venv<'_> = Venv {
    packages: &["Django==5.2.19", "gunicorn==23.0.0", "pymemcache==4.0.0"],
    imports: "django, gunicorn, pymemcache",
};
/// Worker processes of a site.
pub const WORKERS: usize = 4;

/// What a site has as its cache.
#[derive(Clone, Copy, Debug)]
pub enum CacheOf<'a> {
    /// the server at this address, by its protocol
    Server(SocketAddr),
    /// the Keyway at this address, by the drop-in (PHP)
    DropIn(SocketAddr),
    /// the region in this file, by `keyway_cache.django` (Django)
    Region(&'a Path),
}

/// A web site.
pub struct Site {
    address: SocketAddr,
    /// the parent of the workers
    master: Child,
    /// nginx, before it
    front: Child,
    log: PathBuf,
    /// Python's package, while it is used
    _python: Option<Python>,
    scratch: Scratch,
}

impl Site {
    /// The PHP page. Each worker is replaced after `recycled` pages. `Err`: what is not installed.
    ///
    /// # Panics
    ///
    /// When the site does not start.
    pub fn php(cache: CacheOf<'_>, recycled: u64) -> Result<Self, String> {
        let fpm = installed(&["php-fpm", "php-fpm8.2", "php-fpm8.3", "php-fpm8.4"], "php-fpm")?;
        let scratch = Scratch::new();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, harness::free_port()));
        let (server, dropin) = match cache {
            CacheOf::Server(server) => (server, false),
            CacheOf::DropIn(server) => (server, true),
            CacheOf::Region(region) => return Err(format!("PHP knows no region such as {}", region.display())),
        };
        let page = site("page.php").display().to_string();
        let (host, port) = (server.ip().to_string(), server.port().to_string());
        let pass = [("@PAGE@", &*page), ("@CACHE_HOST@", &*host), ("@CACHE_PORT@", &*port)];
        write(&scratch, "php-fpm.conf", &[("@RECYCLED@", &recycled.to_string())])?;
        let log = scratch.join("log");
        let mut command = Command::new(fpm);
        // As root it must be told that its workers may be root's too.
        command.args(["-R", "-F", "-y"]).arg(scratch.join("php-fpm.conf"));
        if dropin {
            let library = scratch.join("libmemcached.so.11");
            std::fs::copy(workspace_library("keyway-libmemcached", "libmemcached.so"), &library)
                .map_err(|e| format!("{}: {e}", library.display()))?;
            command.env("LD_PRELOAD", library);
            // With the real library nowhere, what works is the drop-in's work.
            command.env("KEYWAY_LIBMEMCACHED_REAL", "/nowhere/libmemcached.so.11");
        }
        let front = nginx(&scratch, address, "php-site.conf", &pass, &log)?;
        let master = start(&mut command, &log);
        let own = Self {
            address,
            master,
            front,
            log,
            _python: None,
            scratch,
        };
        Ok(own.ready())
    }

    /// The Django page. `target` is where its packages are kept. `Err`: what is not installed.
    ///
    /// # Panics
    ///
    /// When the site does not start.
    pub fn django(target: &Path, cache: CacheOf<'_>, recycled: u64) -> Result<Self, String> {
        let python = Python::with(target, &DJANGO)?;
        let scratch = Scratch::new();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, harness::free_port()));
        let (backend, location) = match cache {
            CacheOf::Server(server) => ("django.core.cache.backends.memcached.PyMemcacheCache", server.to_string()),
            CacheOf::Region(region) => ("keyway_cache.django.KeywayCache", region.display().to_string()),
            CacheOf::DropIn(_) => return Err("Django's client is not libmemcached".to_owned()),
        };
        let log = scratch.join("log");
        let front = nginx(&scratch, address, "django-site.conf", &[], &log)?;
        let mut command = python.command();
        command.args(["-m", "gunicorn", "app", "--preload"]);
        command.args(["--workers", &WORKERS.to_string(), "--max-requests", &recycled.to_string()]);
        command
            .arg("--bind")
            .arg(format!("unix:{}", scratch.join("site.sock").display()));
        command.args(["--log-level", "error"]);
        command
            .arg("--worker-tmp-dir")
            .arg(scratch.path())
            .arg("--chdir")
            .arg(site(""));
        command.env("CACHE_BACKEND", backend).env("CACHE_LOCATION", location);
        let own = Self {
            address,
            master: start(&mut command, &log),
            front,
            log,
            _python: Some(python),
            scratch,
        };
        Ok(own.ready())
    }

    fn ready(mut self) -> Self {
        wait_until("a site that answers", DEADLINE, || {
            let ended = self.master.try_wait().ok().flatten();
            assert!(ended.is_none(), "it ended: {ended:?}\n{}", self.log());
            TcpStream::connect(self.address).ok()?;
            (self.workers().len() >= WORKERS).then_some(())
        });
        self
    }

    /// Where its pages are.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The processes that make pages.
    pub fn workers(&self) -> Vec<u32> {
        let children = format!("/proc/{0}/task/{0}/children", self.master.id());
        let children = std::fs::read_to_string(children).unwrap_or_default();
        children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
    }

    /// SIGKILL to a worker.
    pub fn kill_worker(&self, random: &mut harness::Random) {
        let workers = self.workers();
        if workers.is_empty() {
            return;
        }
        let pid = workers[random.index(workers.len())];
        // It may have ended by itself: its number is not given again as long as its parent has not waited for it.
        let mut kill = Command::new("/bin/sh");
        let _ = kill.args(["-c", &format!("kill -KILL {pid}")]).stderr(Stdio::null()).status();
    }

    /// The last lines that its processes said.
    pub fn log(&self) -> String {
        let folder = self.scratch.path();
        let logs = [&self.log, &folder.join("nginx-error.log"), &folder.join("php-error.log")];
        let all = logs.map(|log| std::fs::read_to_string(log).unwrap_or_default()).concat();
        let lines: Vec<&str> = all.lines().rev().take(30).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        for child in [&mut self.master, &mut self.front] {
            // Its workers end with it.
            let _ = Command::new("/bin/sh")
                .args(["-c", &format!("kill -TERM {}", child.id())])
                .status();
            wait_until("a site that ends", DEADLINE, || child.try_wait().ok().flatten());
        }
    }
}

/// A file of the sites.
fn site(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("sites").join(name)
}

/// The first of these programs that is installed; services are not on every user's path.
fn installed(names: &[&str], package: &str) -> Result<PathBuf, String> {
    let in_system = |name: &&str| Some(Path::new("/usr/sbin").join(name)).filter(|path| path.is_file());
    let found = names
        .iter()
        .find_map(|name| program_on_path(name).or_else(|| in_system(name)));
    found.ok_or_else(|| format!("{package} is not installed"))
}

/// Writes a file of the sites to the scratch folder, with these words replaced and `@FOLDER@`.
fn write(scratch: &Scratch, name: &str, words: &[(&str, &str)]) -> Result<(), String> {
    let text = std::fs::read_to_string(site(name)).map_err(|e| format!("{name}: {e}"))?;
    let folder = scratch.path().display().to_string();
    let text = text.replace("@FOLDER@", &folder);
    let text = words.iter().fold(text, |text, (word, value)| text.replace(word, value));
    std::fs::write(scratch.join(name), text).map_err(|e| format!("{name}: {e}"))
}

/// nginx at an address, which passes requests on as `how` says.
fn nginx(scratch: &Scratch, address: SocketAddr, how: &str, words: &[(&str, &str)], log: &Path) -> Result<Child, String> {
    let program = installed(&["nginx"], "nginx-light")?;
    write(scratch, how, words)?;
    write(scratch, "nginx.conf", &[("@LISTEN@", &address.to_string()), ("@SITE@", how)])?;
    let mut command = Command::new(program);
    command
        .arg("-p")
        .arg(scratch.path())
        .arg("-c")
        .arg(scratch.join("nginx.conf"));
    command.args(["-e", "nginx-error.log", "-g", "daemon off;"]);
    Ok(start(&mut command, log))
}

fn start(command: &mut Command, log: &Path) -> Child {
    let file = File::options().append(true).create(true).open(log);
    let file = file.unwrap_or_else(|e| panic!("{}: {e}", log.display()));
    let too = file.try_clone().unwrap_or_else(|e| panic!("{}: {e}", log.display()));
    let started = command.stdin(Stdio::null()).stdout(file).stderr(too).spawn();
    started.unwrap_or_else(|e| panic!("{}: {e}", command.get_program().to_string_lossy()))
}
