//! memcached and `keyway serve` as child processes that end with their handle.

use crate::client::{Connection, Target};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a server may take until it accepts connections.
const START_MAX: Duration = Duration::from_secs(20);

/// A running server.
pub struct Server {
    child: Child,
    /// where it listens: TCP first, then the Unix socket, as far as it has them
    targets: Vec<Target>,
    folder: PathBuf,
}

/// What both servers are told.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// memory limit, MiB
    pub memory_mib: u64,
    /// worker threads
    pub threads: usize,
    /// listen on a Unix socket; memcached then has no TCP
    pub unix: bool,
}

impl Server {
    /// Debian's memcached, or what `KEYWAY_MEMCACHED` names. `None`: it is not installed.
    pub fn memcached(settings: Settings) -> io::Result<Option<Self>> {
        let Some(program) = memcached_path() else { return Ok(None) };
        let (port, folder) = (free_port()?, folder("memcached")?);
        let mut command = Command::new(program);
        command.args([
            "-m",
            &settings.memory_mib.to_string(),
            "-t",
            &settings.threads.to_string(),
            "-c",
            "1024",
            "-U",
            "0",
        ]);
        // memcached refuses to run as root unless it is told a user; anybody else's choice it ignores.
        command.args(["-u", "root"]);
        let target = if settings.unix {
            let path = folder.join("socket");
            command.arg("-s").arg(&path);
            Target::Unix(path)
        } else {
            command.args(["-l", "127.0.0.1", "-p", &port.to_string()]);
            Target::Tcp(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))
        };
        Self::start(command, vec![target], folder).map(Some)
    }

    /// `keyway serve`, on TCP and a Unix socket, with a region in anonymous memory.
    pub fn keyway(settings: Settings) -> io::Result<Self> {
        let program = keyway_path()?;
        let (port, folder) = (free_port()?, folder("keyway")?);
        let (listen, socket) = (SocketAddr::from((Ipv4Addr::LOCALHOST, port)), folder.join("socket"));
        let mut command = Command::new(program);
        command
            .args(["serve", "--listen", &listen.to_string(), "--region", "memfd"])
            .arg("--socket")
            .arg(&socket);
        command.args([
            "--memory",
            &format!("{}M", settings.memory_mib),
            "--threads",
            &settings.threads.to_string(),
        ]);
        Self::start(command, vec![Target::Tcp(listen), Target::Unix(socket)], folder)
    }

    fn start(mut command: Command, targets: Vec<Target>, folder: PathBuf) -> io::Result<Self> {
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn()?;
        let mut server = Self { child, targets, folder };
        let since = Instant::now();
        for target in server.targets.clone() {
            while let Err(e) = Connection::open(&target) {
                if let Some(status) = server.child.try_wait()? {
                    return Err(io::Error::other(format!("{command:?} ended at once: {status}")));
                }
                if since.elapsed() > START_MAX {
                    return Err(io::Error::other(format!(
                        "{command:?} does not accept connections on {target:?}: {e}"
                    )));
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(server)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Where it listens on TCP or on its Unix socket.
    pub fn target(&self, unix: bool) -> Option<&Target> {
        self.targets.iter().find(|t| matches!(t, Target::Unix(_)) == unix)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Where memcached is: `KEYWAY_MEMCACHED`, or on the PATH, or where Debian puts it.
pub fn memcached_path() -> Option<PathBuf> {
    if let Some(named) = std::env::var_os("KEYWAY_MEMCACHED") {
        return Some(named.into());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/bin"), PathBuf::from("/usr/local/bin")]);
    folders.map(|f| f.join("memcached")).find(|p| p.is_file())
}

/// The program that `cargo build --release` made, or what `KEYWAY_BIN` names.
pub fn keyway_path() -> io::Result<PathBuf> {
    if let Some(named) = std::env::var_os("KEYWAY_BIN") {
        return Ok(named.into());
    }
    // This is target/release/deps/network-0123456789abcdef.
    let me = std::env::current_exe()?;
    let beside = me.parent().and_then(Path::parent).map(|release| release.join("keyway"));
    match beside.filter(|p| p.is_file()) {
        Some(found) => Ok(found),
        None => Err(io::Error::other(
            "no keyway beside this program: cargo build --release first, or name it in KEYWAY_BIN",
        )),
    }
}

/// memcached's version line, for the table.
pub fn memcached_version() -> String {
    let output = memcached_path().and_then(|p| Command::new(p).arg("-V").output().ok());
    output.map_or_else(
        || "memcached".into(),
        |o| String::from_utf8_lossy(&o.stdout).trim().to_owned(),
    )
}

fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// A new folder of this process's own; two servers of a process differ by the clock.
fn folder(name: &str) -> io::Result<PathBuf> {
    let nanos = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    let folder = std::env::temp_dir().join(format!("keyway-bench-{name}-{}-{nanos}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}
