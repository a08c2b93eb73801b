//! memcached and `keyway serve` as child processes that end with their handle, and with this process however it ends.
//!
//! # Safety
//!
//! The only `unsafe` here lets a child ask the kernel for a signal at its parent's death (prctl(2), PR_SET_PDEATHSIG), between
//! fork and exec, where only calls that are safe in a signal handler are allowed: it is one system call, without memory.
#![allow(unsafe_code, reason = "one system call between fork and exec; contract above")]

use crate::machine;
use crate::plan::Door;
use crate::wire::{Admin, Connection, Target};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take until it accepts connections.
const START_MAX: Duration = Duration::from_secs(20);
/// How long one may take to end when it is asked to.
const STOP_MAX: Duration = Duration::from_secs(20);

/// A running server.
pub struct Server {
    child: Child,
    /// where it listens: TCP first, then the Unix socket, then UDP, as far as it has them
    targets: Vec<Target>,
    /// of its socket
    _folder: Folder,
    options: String,
}

/// The options of both servers.
#[derive(Clone, Copy, Debug)]
pub struct Settings<'a> {
    /// memory limit, MiB
    pub memory_mib: u64,
    /// worker threads
    pub threads: usize,
    /// most connections
    pub connections: usize,
    /// where to listen, at a port that is free
    pub host: IpAddr,
    /// listen on a Unix socket; memcached then has no TCP
    pub unix: bool,
    /// listen on UDP, at the port of TCP
    pub udp: bool,
    /// answer gets on TCP in the kernel, on `lo`; memcached cannot
    pub kernel_tcp: bool,
    /// TCP is TLS, by options in `more`
    pub tls: bool,
    /// largest item, bytes; `None`: the server's default
    pub item_max: Option<usize>,
    /// more options, as the server's own command line has them
    pub more: &'a [String],
}

impl Default for Settings<'_> {
    fn default() -> Self {
        Self {
            memory_mib: 64,
            threads: 1,
            connections: 1024,
            host: Ipv4Addr::LOCALHOST.into(),
            unix: false,
            udp: false,
            kernel_tcp: false,
            tls: false,
            item_max: None,
            more: &[],
        }
    }
}

impl Settings<'_> {
    fn listen(&self) -> io::Result<SocketAddr> {
        TcpListener::bind((self.host, 0))?.local_addr()
    }
}

impl Server {
    /// Debian's memcached, or what `KEYWAY_MEMCACHED` names. `None`: it is not installed.
    pub fn memcached(settings: &Settings<'_>) -> io::Result<Option<Self>> {
        let Some(program) = memcached_path() else { return Ok(None) };
        let (listen, folder) = (settings.listen()?, Folder::new(&std::env::temp_dir(), "memcached")?);
        let mut command = Command::new(program);
        command.args(["-m", &settings.memory_mib.to_string(), "-t", &settings.threads.to_string()]);
        command.args(["-c", &settings.connections.to_string()]);
        // As root, memcached runs only with this option; as another user it ignores it.
        command.args(["-u", "root"]);
        let mut targets = vec![Target::Tcp(listen)];
        if settings.unix {
            let path = folder.path().join("socket");
            command.args(["-U", "0", "-s"]).arg(&path);
            targets = vec![Target::Unix(path)];
        } else {
            let (host, port) = (settings.host, listen.port());
            let udp_port = if settings.udp { port } else { 0 };
            command.args(["-l", &host.to_string(), "-p", &port.to_string(), "-U", &udp_port.to_string()]);
            targets.extend(settings.udp.then_some(Target::Udp(listen)));
        }
        command.args(settings.item_max.map(|bytes| format!("-I{bytes}")));
        command.args(settings.more);
        Self::start("memcached", command, (targets, settings.tls), folder).map(Some)
    }

    /// `program serve`, on TCP and a Unix socket, with a region in anonymous memory.
    pub fn keyway(program: &Path, settings: &Settings<'_>) -> io::Result<Self> {
        Self::keyway_at(Path::new("memfd"), program, settings)
    }

    /// `program serve`, on TCP and a Unix socket, with the region at this path, which may have one already.
    pub fn keyway_at(region: &Path, program: &Path, settings: &Settings<'_>) -> io::Result<Self> {
        let (listen, folder) = (settings.listen()?, Folder::new(&std::env::temp_dir(), "keyway")?);
        let socket = folder.path().join("socket");
        let mut command = Command::new(program);
        command.arg0("keyway");
        command
            .args(["serve", "--listen", &listen.to_string(), "--region"])
            .arg(region);
        command.args([
            "--memory",
            &format!("{}M", settings.memory_mib),
            "--threads",
            &settings.threads.to_string(),
        ]);
        command
            .args(["--connections", &settings.connections.to_string(), "--socket"])
            .arg(&socket);
        let mut targets = vec![Target::Tcp(listen), Target::Unix(socket)];
        if settings.udp {
            // Values of any length, as memcached answers them.
            command.args(["--udp", &listen.to_string(), "--udp-answer-max", "64m"]);
            targets.push(Target::Udp(listen));
        }
        if settings.kernel_tcp {
            command.args(["--kernel", "lo", "--kernel-tcp"]);
        }
        command.args(settings.item_max.map(|bytes| format!("--max-item={bytes}")));
        command.args(settings.more);
        Self::start("keyway", command, (targets, settings.tls), folder)
    }

    fn start(name: &str, mut command: Command, (targets, tls): (Vec<Target>, bool), folder: Folder) -> io::Result<Self> {
        let options: Vec<_> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        let child = end_with_parent(&mut command)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| machine::cannot_start(&command.get_program().to_string_lossy(), &error))?;
        let mut server = Self {
            child,
            targets,
            _folder: folder,
            options: options.join(" "),
        };
        let since = Instant::now();
        for target in server.targets.clone() {
            loop {
                // A socket that listens does not serve yet: what comes after may still fail.
                let served = match &target {
                    Target::Udp(_) => Connection::open(&target).map(drop),
                    // Without a handshake there is no answer.
                    Target::Tcp(_) if tls => Connection::open(&target).map(drop),
                    _ => Admin::open(&target).and_then(|mut admin| admin.barrier()),
                };
                // The process that answers must be the child: its port may have been taken by another program meanwhile.
                if let Some(status) = server.child.try_wait()? {
                    return Err(io::Error::other(format!(
                        "a server that was started for the measurement ended at once ({status}), and has said why: {name} {}",
                        server.options
                    )));
                }
                match served {
                    Ok(()) => break,
                    Err(e) if since.elapsed() > START_MAX => {
                        return Err(io::Error::other(format!(
                            "a server that was started for the measurement accepts no connections on {target}: {e}: {name} {}",
                            server.options
                        )));
                    }
                    Err(_) => std::thread::sleep(Duration::from_millis(1)),
                }
            }
        }
        Ok(server)
    }

    /// Asks it to end with this signal, and waits until it has. Dropping it kills it.
    pub fn stop(mut self, signal: Signal) -> io::Result<()> {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal)?;
        let since = Instant::now();
        while self.child.try_wait()?.is_none() {
            if since.elapsed() > STOP_MAX {
                return Err(io::Error::other(format!(
                    "a server does not end {STOP_MAX:?} after {signal:?}"
                )));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// The options that it was started with.
    pub fn options(&self) -> &str {
        &self.options
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where it is reached through this door.
    pub fn target(&self, door: Door) -> Option<Target> {
        self.targets.iter().find_map(|target| match (target, door) {
            (Target::Tcp(_), Door::Tcp | Door::KernelTcp) | (Target::Unix(_), Door::Unix) | (Target::Udp(_), Door::Udp) => {
                Some(target.clone())
            }
            (Target::Udp(address), Door::Split) => Some(Target::Split(*address)),
            _ => None,
        })
    }

    /// Where it is filled and asked about itself: any door but UDP.
    pub fn admin(&self) -> &Target {
        &self.targets[0]
    }
}

/// Lets the kernel kill what `command` starts when the thread that starts it is gone.
fn end_with_parent(command: &mut Command) -> &mut Command {
    // SAFETY: the closure makes one system call and touches no memory of the parent's.
    unsafe { command.pre_exec(|| set_parent_process_death_signal(Some(Signal::KILL)).map_err(io::Error::from)) }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where memcached is: what `KEYWAY_MEMCACHED` names (nowhere, if it is empty), or on the PATH, or where Debian puts it.
pub fn memcached_path() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("KEYWAY_MEMCACHED") {
        return Some(PathBuf::from(named)).filter(|path| !path.as_os_str().is_empty());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/bin"), PathBuf::from("/usr/local/bin")]);
    folders.map(|f| f.join("memcached")).find(|p| p.is_file())
}

/// The program `keyway` that is measured: what `KEYWAY_BIN` names, or the one that was built with this program.
pub fn keyway_path() -> io::Result<PathBuf> {
    if let Some(named) = std::env::var_os("KEYWAY_BIN") {
        return Ok(named.into());
    }
    let me = std::env::current_exe()?;
    // A benchmark is target/release/deps/NAME-0123456789abcdef.
    let found = me
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("keyway"))
        .find(|path| path.is_file());
    found.ok_or_else(|| {
        let why =
            "no keyway is built beside this program: cargo build -p keyway-cli, in the same profile, or name it in KEYWAY_BIN";
        io::Error::new(io::ErrorKind::NotFound, why)
    })
}

/// memcached's version line, for the table.
pub fn memcached_version() -> String {
    let output = memcached_path().and_then(|p| Command::new(p).arg("-V").output().ok());
    output.map_or_else(
        || "memcached".into(),
        |o| String::from_utf8_lossy(&o.stdout).trim().to_owned(),
    )
}

/// A folder of this process's own, removed with its handle; if the process is killed, by the next one that makes such a folder beside it.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// itself, locked as long as its process lives
    _held: File,
}

/// What the name of such a folder begins with. After it come a word, the process's number and the time.
const FOLDER: &str = "keyway-bench-";

impl Folder {
    /// Two folders of a process differ by the clock.
    pub fn new(parent: &Path, name: &str) -> io::Result<Self> {
        let now = std::time::SystemTime::now();
        let nanos = now.duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let path = parent.join(format!("{FOLDER}{name}-{}-{nanos}", std::process::id()));
        remove_leftovers(parent);
        std::fs::create_dir_all(&path).map_err(|error| {
            let why = format!(
                "cannot make {}: {error}; TMPDIR names another folder than /tmp",
                path.display()
            );
            io::Error::new(error.kind(), why)
        })?;
        let held = File::open(&path)?;
        // Some file systems have no locks; processes that see this one's number need none.
        let _ = held.try_lock();
        Ok(Self { path, _held: held })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// Removes this user's folders of processes that were killed: no process here has their number, and none elsewhere their lock.
fn remove_leftovers(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(owner);
        let is_ours = || {
            let meta = entry.metadata();
            meta.is_ok_and(|meta| meta.is_dir() && meta.uid() == rustix::process::geteuid().as_raw())
        };
        if number.is_none_or(|number| Path::new(&format!("/proc/{number}")).exists()) || !is_ours() {
            continue;
        }
        if File::open(entry.path()).is_ok_and(|folder| folder.try_lock().is_ok()) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// The number of the process that made a folder of this name.
fn owner(name: &str) -> Option<u32> {
    let mut parts = name.strip_prefix(FOLDER)?.rsplit('-');
    let (_nanos, number): (u128, _) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    parts.next().map(|_| number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_killed_go_and_those_of_the_living_stay() {
        let parent = Folder::new(&std::env::temp_dir(), "leftovers").unwrap();
        let mut dead = Command::new("true").spawn().unwrap();
        dead.wait().unwrap();
        let make = |name: String| {
            let path = parent.path().join(name);
            std::fs::create_dir_all(path.join("within")).unwrap();
            path
        };
        let left = make(format!("{FOLDER}keyway-{}-17", dead.id()));
        let elsewhere = make(format!("{FOLDER}memcached-{}-18", dead.id()));
        let lock = File::open(&elsewhere).unwrap();
        lock.lock().unwrap();
        let others = [
            elsewhere.clone(),
            make(format!("{FOLDER}keyway-{}-19", std::process::id())),
            make(format!("{FOLDER}{}-20", dead.id())),
            make(format!("something-else-{}-21", dead.id())),
        ];
        drop(Folder::new(parent.path(), "new").unwrap());
        assert!(!left.exists());
        others.iter().for_each(|path| assert!(path.exists(), "{}", path.display()));
        drop(lock);
        drop(Folder::new(parent.path(), "new").unwrap());
        assert!(!elsewhere.exists() && others[1..].iter().all(|path| path.exists()));
    }
}
