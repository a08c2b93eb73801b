//! A server as the command line describes it, and running it: `keyway serve` and `keyway memcached` both use this.

use keyway_cache::server::ServerCache as _;
use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use keyway_cache::server::record::{self, Address, Record};
use keyway_cache::server::{Removal, remove_unused};
use keyway_cache::{Cache, Gate, Limits, Options, Place};
use keyway_harden::confine::{self, Confined, Needs};
use keyway_server::{Config, Given, HttpAddress, Manager, RunError, Server, Sockets, StartError, TakeOver, size_text};
use nix::errno::Errno;
use nix::sched::sched_setaffinity;
use nix::sys::mman::{MlockAllFlags, mlockall};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::unistd::{Pid, User, geteuid, setgid, setgroups, setuid};

use crate::exit::{self, Failure};
use crate::inherited::Inherited;
use crate::left::{self, PidFile};
use crate::notify::Notifier;
use crate::{background, cpus, logger, place, size};

/// Descriptors that a server needs besides its clients' connections: sockets, polls, regions, standard streams, connections of the HTTP port,
/// and a reserve.
pub(crate) const DESCRIPTORS_SPARE: u64 = 112;

/// How long the addresses of a process that dies may stay in use, and how often that is looked at.
const DEATH_MAX: Duration = Duration::from_secs(5);
const DEATH_STEP: Duration = Duration::from_millis(10);

/// A largest item of half the memory may become smaller by this fraction, because the memory is divided into segments.
const ITEM_SIZE_SLACK: usize = 64;

/// A server that is to start, and what its process does before.
#[derive(Clone, Debug, Default)]
pub(crate) struct Plan {
    pub(crate) config: Config,
    /// `None`: the default place
    pub(crate) place: Option<Place>,
    pub(crate) options: Options,
    pub(crate) daemon: bool,
    pub(crate) pid_file: Option<PathBuf>,
    /// the user to switch to, if this process is root
    pub(crate) user: Option<String>,
    pub(crate) lock_memory: bool,
    pub(crate) core_dumps: bool,
    pub(crate) log_format: logger::Format,
    /// once it serves, give up all rights that serving does not need
    pub(crate) sandbox: bool,
    /// a service manager keeps the memory of a region without a file for the next start
    pub(crate) keeps_memory: bool,
    /// if the file system of the default place has no room for the region, it is in memory without a file
    pub(crate) without_file: bool,
    /// the region is removed at a clean end, unless another process uses it
    pub(crate) remove_region: bool,
    /// the region's running server, if there is one, gives its sockets and clients to this one
    pub(crate) take_over: bool,
    /// warnings for standard error, once the log is open
    pub(crate) warnings: Vec<String>,
}

/// Least memory for connections, bytes.
const CONNECTION_MEMORY_MIN: usize = 4 << 20;

impl Plan {
    /// Memory of a new region, bytes.
    fn memory(&self) -> u64 {
        self.options.memory.unwrap_or(Options::MEMORY_DEFAULT)
    }

    /// Refuses a largest item above half of the memory; the error names both options.
    pub(crate) fn check_item_size(&self, item_option: &str, memory_option: &str) -> Result<(), Failure> {
        let Some(item) = self.options.item_size_max else {
            return Ok(());
        };
        let memory = self.memory();
        if item as u64 <= memory / 2 {
            return Ok(());
        }
        let reason = "the largest item may take at most half of the memory";
        Err(Failure::usage(format_args!(
            "{memory_option} {}, and the largest item ({item_option}, 1m if it is left out) is {}: {reason}; {memory_option} {} is enough, or \
             {item_option} {}",
            size::written(memory),
            size::written(item as u64),
            size::written((item as u64).saturating_mul(2)),
            size::written(memory / 2)
        )))
    }

    /// Refuses what the start would refuse, as far as options, files, interfaces and CPUs of this machine show it. The region is not looked
    /// at, and no address is taken.
    pub(crate) fn check_here(&self) -> Result<(), Failure> {
        self.options
            .clone()
            .server_sessions(self.config.sessions())
            .check()
            .map_err(place::failure)?;
        self.config.check_here().map_err(|error| Failure::new(exit::SYSTEM, error))?;
        raise_descriptor_limit(&self.config)?;
        self.take_cpus()
    }

    /// Largest item of a new region, bytes.
    fn item_size_max(&self) -> usize {
        self.options.item_size_max.unwrap_or(Limits::default().item_size_max)
    }

    /// Refuses memory for connections in which a few of the largest items do not fit at the same time.
    pub(crate) fn check_connection_memory(&self, option: &str, item_option: &str) -> Result<(), Failure> {
        let (item, memory) = (self.item_size_max(), self.config.connection_memory);
        let least = CONNECTION_MEMORY_MIN.max(item.saturating_mul(4));
        if memory == 0 || memory >= least {
            return Ok(());
        }
        let [memory, least, item] = [memory, least, item].map(|bytes| size_text(bytes as u64));
        Err(Failure::usage(format_args!(
            "{option} of {memory}: it must be at least {least}, enough to receive four of the largest items (of {item}: {item_option}) at the same time"
        )))
    }

    /// Serves until it is asked to stop, with what was handed over at the start.
    pub(crate) fn run(mut self, inherited: Inherited) -> Result<(), Failure> {
        if self.daemon {
            if !background::is_child() {
                return background::start();
            }
            self.become_daemon()?;
        }
        self.prepare()?;
        // Before the region is opened, made or enlarged: a server that cannot start leaves it unchanged.
        let mut running = self.running_server()?;
        let sockets = self.bind(running.as_mut(), inherited.sockets)?;
        let notifier = Notifier::of_environment();
        let cache = self.open_region(inherited.memory, notifier.as_ref())?;
        self.config.signals = true;
        let mut server = Server::start_on(sockets, self.config.clone(), cache.clone()).map_err(refused)?;
        if let Some(running) = running {
            server.take_over(running).map_err(|error| Failure::new(exit::NO, error))?;
        }
        write_port_file(server.tcp_addresses(), server.udp_addresses());
        self.leave_records(&server, &cache);
        let pid_file = self.pid_file.as_deref().and_then(PidFile::write);
        let line = server.ready_line();
        let waiting = self.daemon.then(background::leave_output).transpose().map_err(refused)?;
        let addresses = self.addresses(&server);
        if self.sandbox {
            self.confine(&server);
        } else {
            log::info!("not confined: --no-sandbox");
        }
        let handle = server.handle();
        let manager = notifier.map(|notifier| -> Box<dyn Manager> { Box::new(notifier) });
        let running = server.begin().map_err(refused_run)?;
        // The last step before serving: all that could fail has not.
        match waiting {
            Some(waiting) => waiting.ready(&line, self.config.verbosity > 0).map_err(refused)?,
            // Standard output may be closed; the server serves all the same.
            None => drop(writeln!(std::io::stdout(), "{line}")),
        }
        let ended = running.serve(manager);
        if handle.is_taken_over() {
            // The file names the new server.
            std::mem::forget(pid_file);
            log::info!("taken over");
            return ended.map_err(|error| Failure::new(exit::NO, error));
        }
        drop(pid_file);
        match ended {
            Ok(()) => {
                if self.remove_region {
                    self.remove_region(cache, &addresses);
                }
                log::info!("stopped");
                Ok(())
            }
            Err(error) => Err(refused_run(error)),
        }
    }

    /// Says what is to be known, and takes limits, user, memory and CPUs of this process.
    fn prepare(&self) -> Result<(), Failure> {
        self.warnings.iter().for_each(|warning| log::warn!("{warning}"));
        for address in self.config.open_addresses() {
            log::warn!(
                "{address} is open to other machines without a login: every client that reaches it may read, change and flush all items; \
                 --auth-file (-Y) asks for logins, --listen (-l) 127.0.0.1 keeps it to this machine"
            );
        }
        if self.core_dumps {
            allow_core_dumps()?;
        }
        raise_descriptor_limit(&self.config)?;
        if let Some(user) = &self.user {
            become_user(user)?;
        }
        if self.lock_memory
            && let Err(error) = mlockall(MlockAllFlags::MCL_CURRENT | MlockAllFlags::MCL_FUTURE)
        {
            log::warn!("cannot lock memory (-k): {error}; raise the limit of locked memory (ulimit -l)");
        }
        self.take_cpus()
    }

    /// The sockets, of which a running server hands over its own.
    fn bind(&self, running: Option<&mut TakeOver>, inherited: Given) -> Result<Sockets, Failure> {
        let is_alone = running.is_none();
        let sockets = match running {
            Some(running) => Sockets::bind_to_take_over(&self.config, running),
            None if self.take_over && inherited.is_empty() => self.bind_after_a_death(),
            None => Sockets::bind_beside(&self.config, inherited),
        };
        sockets.map_err(|error| match self.region_path().filter(|_| self.take_over && is_alone) {
            Some(path) => {
                let path = path.display();
                Failure::new(
                    exit::SYSTEM,
                    format_args!("{error}; --take-over: no server of this user has the region {path}"),
                )
            }
            None => refused(error),
        })
    }

    /// Binds the sockets. The server that was to be taken over may have died just now: then its own disappear one after the other.
    fn bind_after_a_death(&self) -> Result<Sockets, StartError> {
        let until = Instant::now() + DEATH_MAX;
        loop {
            match Sockets::bind(&self.config) {
                Err(StartError::Bind(error)) if error.is_taken() && Instant::now() < until => std::thread::sleep(DEATH_STEP),
                bound => return bound,
            }
        }
    }

    /// The file of the region, if it has one.
    fn region_path(&self) -> Option<PathBuf> {
        match &self.place {
            Some(Place::Path(path)) => Some(path.clone()),
            Some(_) => None,
            None => Some(self.default_path()),
        }
    }

    /// The server that is to be taken over.
    fn running_server(&self) -> Result<Option<TakeOver>, Failure> {
        if !self.take_over {
            return Ok(None);
        }
        let Some(path) = self.region_path() else {
            return Ok(None);
        };
        let running = TakeOver::begin(&path).map_err(|error| Failure::new(exit::NO, error))?;
        let process = running.as_ref().map(|running| running.process().to_string());
        // A service manager that reloads names the server that it means; a server beside that one would be unknown to it.
        if let Some(main) = std::env::var("MAINPID").ok().filter(|main| process.as_ref() != Some(main)) {
            let (region, found) = (path.display(), process.unwrap_or_else(|| "no process".to_owned()));
            return Err(Failure::new(
                exit::NO,
                format_args!(
                    "--take-over: the server of region {region} is {found}, and not the service's main process {main} (MAINPID): the region or \
                     the port has changed; restart the service"
                ),
            ));
        }
        if running.is_none() {
            log::info!("--take-over: no server of {} runs; starting as usual", path.display());
        }
        Ok(running)
    }

    /// The addresses by which programs on this machine may ask for the region.
    fn addresses(&self, server: &Server) -> Vec<Address> {
        let has_tls = |address: &SocketAddr| self.config.tls_tcp.contains(address);
        let tcp = server.tcp_addresses().iter().filter(|address| !has_tls(address));
        let unix = self.config.unix.iter().map(|socket| Address::Unix(whole(&socket.path)));
        tcp.copied().map(Address::Tcp).chain(unix).collect()
    }

    /// Leaves a record of the region's place for each address ([`record`]), or removes those of an earlier server. A server that
    /// would not name its region to a client that asks leaves none: one whose region is in no file, and one with logins.
    fn leave_records(&self, server: &Server, cache: &Cache) {
        record::remove_stale();
        let place = match &self.place {
            Some(Place::Path(path)) if self.config.auth_file.is_none() => Some(path),
            _ => None,
        };
        let record = place.zip(cache.identity().ok()).map(|(path, region)| Record {
            place: whole(path),
            region,
        });
        let addresses = self.addresses(server);
        let done = addresses.iter().map(|address| match &record {
            Some(record) => record::leave(address, record),
            None => record::remove(address),
        });
        for (address, error) in addresses
            .iter()
            .zip(done)
            .filter_map(|(address, done)| Some((address, done.err()?)))
        {
            log::warn!(
                "{}: {error}; a program that starts while this server is away does not find the region of {address}",
                record::file_of(address).display()
            );
        }
    }

    /// Removes the region that this server has used, if it is still at its place and no other process uses it.
    fn remove_region(&self, cache: Cache, addresses: &[Address]) {
        let (Some(Place::Path(path)), Ok(id)) = (&self.place, cache.identity()) else {
            return;
        };
        cache.close();
        let shown = path.display();
        match remove_unused(path, id, &self.options.owners) {
            Ok(Removal::Removed) => {
                // One that stays leads to no region.
                let _ = addresses.iter().try_for_each(record::remove);
                log::info!("region {shown} is removed: it had no name of its own (-e)");
            }
            Ok(Removal::InUse | Removal::Replaced) => log::info!("region {shown} stays: another process uses it, or its place"),
            Err(why) => log::warn!("region {shown} stays: {why}"),
        }
    }

    /// From here on the process can only do what serving needs. If an old kernel lacks a feature, that is logged and the server continues.
    fn confine(&self, server: &Server) {
        let sockets = server.removed_at_end();
        let sockets = sockets.iter().map(PathBuf::as_path);
        let region = match &self.place {
            Some(Place::Path(path)) if self.remove_region => Some(path.as_path()),
            _ => None,
        };
        let records = region.map(|_| self.addresses(server)).into_iter().flatten();
        let records = records.map(|address| record::file_of(&address));
        let needs = Needs {
            files: match &self.place {
                Some(Place::Path(path)) => vec![whole(path)],
                _ => Vec::new(),
            },
            read_again: self.read_again().map(whole).collect(),
            removed_at_end: sockets
                .chain(self.pid_file.as_deref())
                .chain(region)
                .map(whole)
                .chain(records)
                .collect(),
            core_files: self.core_dumps.then(std::env::current_dir).and_then(Result::ok),
            io_uring: server.has_io_uring(),
            kernel_door: self.config.kernel.is_some(),
            locked_memory: self.lock_memory,
        };
        match confine::confine(&needs) {
            Ok(Confined { landlock, capabilities }) => {
                if !landlock {
                    log::warn!("files are not confined: this kernel has no Landlock (Linux 5.13, and CONFIG_SECURITY_LANDLOCK)");
                }
                log::info!(
                    "confined: {}system calls that serving needs (seccomp), no_new_privs, capabilities {capabilities:#x}",
                    if landlock { "files of its options (Landlock), " } else { "" },
                );
            }
            Err(why) => log::warn!("not confined, or only in part: {why} (--no-sandbox leaves it out)"),
        }
    }

    /// Files that the server reads again while it runs.
    fn read_again(&self) -> impl Iterator<Item = &Path> {
        let of_tls = self.config.tls.iter().flat_map(|tls| {
            let files = [Some(&tls.certificate), Some(&tls.key), tls.client_ca.as_ref()];
            files.into_iter().flatten().map(PathBuf::as_path)
        });
        self.config.auth_file.as_deref().into_iter().chain(of_tls)
    }

    /// A daemon leaves its folder, so that file systems can be unmounted; relative paths become absolute first.
    fn become_daemon(&mut self) -> Result<(), Failure> {
        let whole = |path: &mut PathBuf| *path = whole(path);
        self.pid_file.iter_mut().for_each(whole);
        self.config.auth_file.iter_mut().for_each(whole);
        if let Some(tls) = &mut self.config.tls {
            whole(&mut tls.certificate);
            whole(&mut tls.key);
            tls.client_ca.iter_mut().for_each(whole);
        }
        self.config.unix.iter_mut().for_each(|socket| whole(&mut socket.path));
        self.config
            .region_socket
            .iter_mut()
            .for_each(|socket| whole(&mut socket.path));
        if let Some(HttpAddress::Unix(socket)) = &mut self.config.http {
            whole(&mut socket.path);
        }
        if let Some(Place::Path(path)) = &mut self.place {
            whole(path);
        }
        background::detach(self.core_dumps).map_err(|error| Failure::new(exit::SYSTEM, error))
    }

    /// From here on, runs on the workers' CPUs and interleaves the region's memory over all their NUMA nodes (numa(7)).
    fn take_cpus(&self) -> Result<(), Failure> {
        if self.config.cpus.is_empty() {
            return Ok(());
        }
        let take = |cpus: &[usize]| cpus::set(cpus).and_then(|set| sched_setaffinity(Pid::from_raw(0), &set));
        // EINVAL: this process cannot run on any of these CPUs (sched_setaffinity(2)). So each is tried alone.
        let refused = |cpu: &&usize| take(std::slice::from_ref(*cpu)) == Err(Errno::EINVAL);
        if let Some(cpu) = self.config.cpus.iter().find(refused) {
            return Err(Failure::usage(format_args!(
                "--cpus: this process cannot run on CPU {cpu}: the machine has {}, and the control group of this process may allow fewer \
                 (cpuset.cpus.effective)",
                cpus::online()
            )));
        }
        if let Err(error) = take(&self.config.cpus) {
            log::warn!("cannot run on CPUs {:?} (--cpus): {error}", self.config.cpus);
        }
        let nodes = cpus::nodes(Path::new(cpus::NODES), &self.config.cpus);
        log::info!("CPUs {:?} are of the NUMA nodes {nodes:?}", self.config.cpus);
        keyway_cache::server::spread_over(&nodes);
        Ok(())
    }

    /// Opens the region: the memory that was kept for it, or what is at its place.
    fn open_region(&mut self, kept: Option<File>, notifier: Option<&Notifier>) -> Result<Cache, Failure> {
        let without_file = self.without_file && self.place.is_none();
        let mut place = match self.place.take() {
            Some(place) => place,
            None => Place::Path(self.default_path()),
        };
        // The server's own code makes no stray pointers (it has no `unsafe`), so the gate would only cost time at each request.
        let server_sessions = self.config.sessions();
        let options = self
            .options
            .clone()
            .gate(Gate::Off)
            .server(true)
            .server_sessions(server_sessions);
        let slack = self.item_size_max() / ITEM_SIZE_SLACK;
        let had_kept = kept.is_some();
        let kept = match (kept, &place) {
            (Some(memory), Place::Memfd) => kept_region(&memory, &options, slack)?,
            _ => None,
        };
        let is_kept = kept.is_some();
        let cache = match kept {
            Some(cache) => cache,
            None => match place::try_open(&place, &options, slack) {
                Err(error) if without_file && place::is_unusable_for_a_file(&error) => {
                    log::warn!(
                        "the region is in memory without a file, and ends with this server: {error} (in a container: --shm-size)"
                    );
                    place = Place::Memfd;
                    place::open(&place, &options, slack)?
                }
                opened => opened.map_err(place::failure)?,
            },
        };
        self.config.region = place.to_string();
        if let Some(notifier) = notifier.filter(|_| !is_kept && self.keeps_memory) {
            keep(notifier, had_kept, &place, &cache);
        }
        self.place = Some(place);
        let info = cache.info();
        let keeps_memory = info.warm && self.options.keep_memory;
        self.config.memory = if keeps_memory { info.limit_bytes } else { self.memory() };
        if let (Some(asked), true) = (self.options.sessions, info.warm)
            && asked as u64 != info.sessions_max
        {
            let (name, has) = (&self.config.region, info.sessions_max);
            log::warn!(
                "region {name} has slots for {has} threads, not the requested {asked}: their number does not change after a region is made (--sessions)"
            );
        }
        // A region consists of whole segments, so its size is never exactly the requested one.
        let (limit, wanted) = (info.limit_bytes, self.config.memory);
        if info.warm && limit.saturating_sub(wanted) > wanted / 16 {
            let (name, limit, wanted) = (&self.config.region, size_text(limit), size_text(wanted));
            log::warn!(
                "region {name} keeps its {limit}, not the requested {wanted}: a start does not lower the memory limit; send cache_memlimit, or remove the file"
            );
        }
        Ok(cache)
    }

    fn default_path(&self) -> PathBuf {
        match (self.config.tcp_and_tls().next(), &self.config.unix) {
            (None, Some(socket)) => place::default_path_for_socket(&socket.path),
            (None, None) => place::default_path(self.config.udp.first().map_or(place::DEFAULT_PORT, SocketAddr::port)),
            (address, _) => place::default_path(address.map_or(place::DEFAULT_PORT, |address| address.port())),
        }
    }
}

/// The region in memory that the service manager has kept. `None`: it cannot be used, so the server starts with an empty one.
fn kept_region(memory: &File, options: &Options, slack: usize) -> Result<Option<Cache>, Failure> {
    match place::open_kept(memory, options, slack) {
        Ok(cache) => Ok(Some(cache)),
        Err(error) if place::is_askers_fault(&error) => Err(place::failure(error)),
        Err(error) => {
            log::warn!("the memory that the service manager has kept cannot be used, and the region starts empty: {error}");
            Ok(None)
        }
    }
}

/// Has the service manager keep the memory of a region without a file, in place of what it has kept.
fn keep(notifier: &Notifier, had_kept: bool, place: &Place, cache: &Cache) {
    if had_kept {
        notifier.drop_kept();
    }
    if *place != Place::Memfd {
        return;
    }
    match cache.descriptors() {
        Ok([memory, _]) => notifier.keep(&memory),
        Err(error) => log::warn!("the region's memory does not outlive a restart: it cannot be opened once more: {error}"),
    }
}

fn refused(error: impl std::fmt::Display) -> Failure {
    Failure::new(exit::SYSTEM, error)
}

fn refused_run(error: RunError) -> Failure {
    match error {
        RunError::WorkerPanicked => Failure::new(exit::NO, error),
        RunError::System(_) => Failure::new(exit::SYSTEM, error),
    }
}

/// A path that stays correct when this process changes its folder.
fn whole(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn allow_core_dumps() -> Result<(), Failure> {
    let refused = |error| Failure::new(exit::SYSTEM, format_args!("cannot allow core files (-r): {error}"));
    let (_, hard) = getrlimit(Resource::RLIMIT_CORE).map_err(refused)?;
    setrlimit(Resource::RLIMIT_CORE, RLIM_INFINITY, RLIM_INFINITY)
        .or_else(|_| setrlimit(Resource::RLIMIT_CORE, hard, hard))
        .map_err(refused)
}

/// Raises the limit so that the process can have a descriptor for each allowed connection. Refuses one with which no client could connect.
fn raise_descriptor_limit(config: &Config) -> Result<(), Failure> {
    let (connections, own) = (config.connections_max, config.descriptors());
    let wanted = u64::try_from(connections)
        .unwrap_or(u64::MAX)
        .saturating_add(own.max(DESCRIPTORS_SPARE));
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else {
        return Ok(());
    };
    if soft >= wanted || setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted)).is_ok() {
        return Ok(());
    }
    let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    if hard <= own {
        let threads = config.threads;
        return Err(Failure::new(
            exit::SYSTEM,
            format_args!(
                "this process may open {hard} files (RLIMIT_NOFILE), and a server with {threads} threads needs {own}, and one for each client; \
                 raise ulimit -n (systemd: LimitNOFILE=), or start with fewer threads (--threads, -t)"
            ),
        ));
    }
    let possible = hard.saturating_sub(own);
    log::warn!("{connections} connections (-c) are more than this process may open, about {possible}; raise ulimit -n");
    Ok(())
}

fn become_user(name: &str) -> Result<(), Failure> {
    if !geteuid().is_root() {
        return Ok(());
    }
    let user = User::from_name(name).ok().flatten();
    let user = user.ok_or_else(|| Failure::new(exit::NO_USER, format_args!("cannot become user {name} (-u): no such user")))?;
    let refused = |error| Failure::new(exit::SYSTEM, format_args!("cannot become user {name} (-u): {error}"));
    match setgroups(&[user.gid]) {
        // In a container this may be forbidden to a process that has no groups to give up.
        Ok(()) | Err(nix::errno::Errno::EPERM) => {}
        Err(error) => return Err(refused(error)),
    }
    setgid(user.gid).and_then(|()| setuid(user.uid)).map_err(refused)
}

/// Writes the ports to a file for the process that started this one with port -1, as memcached does for test harnesses.
fn write_port_file(tcp: &[SocketAddr], udp: &[SocketAddr]) {
    let Some(path) = std::env::var_os("MEMCACHED_PORT_FILENAME").map(PathBuf::from) else {
        return;
    };
    let mut lines = String::new();
    let named = tcp.iter().map(|address| ("TCP", address));
    for (transport, address) in named.chain(udp.iter().map(|address| ("UDP", address))) {
        lines.push_str(&format!(
            "{transport} {}: {}\n",
            if address.is_ipv4() { "INET" } else { "INET6" },
            address.port()
        ));
    }
    if let Err(error) = left::leave_ports(&path, &lines) {
        log::warn!("cannot write {}: {error}", path.display());
    }
}
