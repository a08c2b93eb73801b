//! One run of a suite: a network namespace, servers in it, and the program that runs the suite.

use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use harness::{DEADLINE, Kind, Scratch, keyway_binary, memcached_binary, run_to_end, wait_until, workspace_library};

use crate::cases::Cases;
use crate::list::{Handles, Replaced, Suite};

/// How long a suite may take before that counts as a hang.
const SUITE_DEADLINE: Duration = Duration::from_secs(900);
/// The first server's port; the second one has the next.
const PORT: u16 = 11211;
/// Debian's libmemcached.
const LIBMEMCACHED: &str = "/usr/lib/x86_64-linux-gnu/libmemcached.so.11";
/// Where the drop-in does not find a real library: what works is its own work.
const NOWHERE: &str = "/nowhere/libmemcached.so.11";

/// What stands in for what in one run.
pub struct Side {
    /// whose server, or library with its server
    pub kind: Kind,
    /// removed at the end
    pub scratch: Scratch,
    /// for suites that start a `memcached` themselves: its folder is the first of their path
    pub programs: PathBuf,
}

impl Side {
    fn new(kind: Kind, replaced: Replaced) -> Result<Self, String> {
        let scratch = Scratch::new();
        let programs = scratch.join("bin");
        // memcached insists on being told who it runs as. Debian's is built without an option that its suite gives.
        let (server, word, other) = match kind {
            Kind::Memcached => {
                let program = memcached_binary().ok_or("no memcached is installed")?;
                (format!("{} -u root", program.display()), "relaxed_privileges", "modern")
            }
            // As another user it could not write into this folder.
            Kind::Keyway => (
                format!("{} memcached -u root -e $region", keyway_binary().display()),
                "nobody",
                "root",
            ),
        };
        // A region that the drop-in is to open is a file, one for each server. Some suites start hundreds of servers, and kill them: the
        // next one removes what they leave. They also ask for a GiB, which memcached never touches, and a region has from the start.
        let (region, memory) = match replaced {
            Replaced::Server => ("region=memfd".to_owned(), ""),
            Replaced::Library(_) => (
                format!(
                    "for old in {0}/region-*; do kill -0 \"${{old##*-}}\" || rm -f \"$old\"; done 2> /dev/null\nregion={0}/region-$$",
                    scratch.path().display()
                ),
                if kind == Kind::Keyway { "-m 64" } else { "" },
            ),
        };
        let script = format!(
            "#!/bin/sh\n{region}\nfor word; do shift; [ \"$word\" = {word} ] && word={other}; set -- \"$@\" \"$word\"; done\n\
             exec {server} \"$@\" {memory}\n"
        );
        let write = || {
            std::fs::create_dir_all(&programs)?;
            let program = programs.join("memcached");
            std::fs::write(&program, script)?;
            std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755))
        };
        write().map_err(|e| format!("{}: {e}", programs.display()))?;
        Ok(Self { kind, scratch, programs })
    }

    /// A command that finds this side's `memcached` first, in a folder of its own where it may write.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new(program);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let folders = std::iter::once(self.programs.clone()).chain(std::env::split_paths(&path));
        command.env("PATH", std::env::join_paths(folders).unwrap_or(path));
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("HOME", self.scratch.path());
        command
    }

    /// Gives the command its libmemcached.
    fn give_library(&self, command: &mut Command, handles: Handles) -> Result<(), String> {
        if !Path::new(LIBMEMCACHED).exists() {
            return Err(format!("{LIBMEMCACHED} is not there to compare with"));
        }
        if self.kind == Kind::Memcached {
            command.env("LD_PRELOAD", LIBMEMCACHED);
            return Ok(());
        }
        let library = self.scratch.join("libmemcached.so.11");
        std::fs::copy(workspace_library("keyway-libmemcached", "libmemcached.so"), &library)
            .map_err(|e| format!("{}: {e}", library.display()))?;
        command.env("LD_PRELOAD", &library);
        if handles == Handles::Alone {
            command.env("KEYWAY_LIBMEMCACHED_REAL", NOWHERE);
        }
        Ok(())
    }

    /// A server on a port of loopback, or on a Unix socket; more arguments follow.
    fn server(&self, at: &str) -> Result<Serving, String> {
        let mut command = Command::new(self.programs.join("memcached"));
        let (at, more) = at.split_once(' ').unwrap_or((at, ""));
        if at.starts_with('/') {
            command.args(["-s", at]);
        } else {
            command.args(["-l", "127.0.0.1", "-p", at, "-U", "0"]);
        }
        command.args(more.split_ascii_whitespace());
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("{}: {e}", self.programs.display()))?;
        let server = Serving(child, at.starts_with('/').then(|| PathBuf::from(at)));
        wait_until("the server listens", DEADLINE, || match at.starts_with('/') {
            true => UnixStream::connect(at).map(drop).ok(),
            false => TcpStream::connect(format!("127.0.0.1:{at}")).map(drop).ok(),
        });
        Ok(server)
    }
}

/// A server that ends with this, and its socket.
struct Serving(Child, Option<PathBuf>);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        let _ = self.1.as_ref().map(std::fs::remove_file);
    }
}

/// Runs a suite once; what it printed is also in the file `log`. `Err`: why it cannot run here.
pub fn once(suite: &Suite, kind: Kind, command: &(dyn Fn(&Side) -> Command + Sync), log: &Path) -> Result<Cases, String> {
    let work = || {
        enter_network()?;
        let side = Side::new(kind, suite.replaced)?;
        let mut command = command(&side);
        let count = match suite.replaced {
            Replaced::Server => 1,
            Replaced::Library(handles) => {
                side.give_library(&mut command, handles)?;
                match handles {
                    Handles::Alone | Handles::OneServer => 1,
                    Handles::TwoServers => 2,
                }
            }
        };
        let ports = (PORT..PORT + count).map(|port| port.to_string());
        let places = ports.chain(suite.others.iter().map(|place| (*place).to_owned()));
        let servers = places.map(|at| side.server(&at)).collect::<Result<Vec<_>, _>>()?;
        let (_, output) = run_to_end(&mut command, SUITE_DEADLINE);
        drop(servers);
        let _ = std::fs::write(log, &output);
        Ok((suite.read)(&output))
    };
    // A thread leaves its network for good, and what it starts is where it is.
    std::thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|_| Err("the run panicked".to_owned()))
}

/// Moves this thread to a network of its own, with loopback only.
fn enter_network() -> Result<(), String> {
    nix::sched::unshare(nix::sched::CloneFlags::CLONE_NEWNET).map_err(|e| format!("no network namespace can be made: {e}"))?;
    let (status, output) = run_to_end(Command::new("ip").args(["link", "set", "lo", "up"]), DEADLINE);
    if status.success() {
        Ok(())
    } else {
        Err(format!("ip link set lo up: {output}"))
    }
}
