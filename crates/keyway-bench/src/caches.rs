//! The caches under measurement: started, found, described and filled.

use crate::items::Items;
use crate::machine::{self, Usage};
use crate::mix::{Access, Kind};
use crate::plan::{Against, Cell, Door, Plan};
use crate::servers::{Server, Settings, memcached_path};
use crate::wire::{Admin, Target};
use crate::workload::mix;
use keyway_cache::{Cache, Options, Place, Session};
use std::cell;
use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Connections that servers allow beyond those of a measurement.
const CONNECTIONS_SPARE: usize = 64;
/// Fewer items than this do not tell what one takes: a process grows by pages.
const WEIGHED_ITEMS_MIN: u64 = 10_000;
/// Where memcached listens by default.
const MEMCACHED_PORT: u16 = 11211;

/// One cache, however many doors it has.
pub struct Store {
    hold: Hold,
    /// how many items of the workload there are by now
    pub newest: Arc<AtomicU64>,
    /// all items of the workload are in it
    loaded: cell::Cell<bool>,
    /// memory that it took to store one, key and value included
    pub bytes_per_item: cell::Cell<Option<f64>>,
}

enum Hold {
    Region(Cache),
    Server {
        /// where it is filled
        admin: Target,
        /// its process, if it runs on this machine and lets us look at it
        pid: Option<u32>,
        /// started for this, with nothing in it
        is_new: bool,
    },
}

/// What a side needs before a measurement, besides its items.
pub type Ready = Box<dyn Fn(&Cell, &Items) -> io::Result<()>>;

/// One cache through one door.
pub struct Side {
    /// whose it is: `Keyway`, `memcached`, or `peer`
    pub name: &'static str,
    /// version, address, options: for the report
    pub about: String,
    /// the way in
    pub way: Way,
    /// worker threads of the server; 0 where that is unknown
    pub threads: usize,
    /// what is at the other end
    pub store: Rc<Store>,
    /// called before each measurement, when the items are stored
    pub ready: Option<Ready>,
}

impl Side {
    /// A region of this process, by calls.
    pub fn of_region(name: &'static str, about: String, cache: Cache) -> Self {
        let store = Store::new(Hold::Region(cache.clone()));
        Self::new(name, about, Way::Library(cache), 0, store)
    }

    /// A server that was started for this, through a door that it has.
    ///
    /// # Errors
    ///
    /// It has no such door, or does not answer.
    pub fn of_server(name: &'static str, server: &Server, door: Door) -> io::Result<Self> {
        let target = server.target(door).ok_or(io::ErrorKind::NotConnected)?;
        Self::filled_at(name, server, server.admin(), target)
    }

    /// A server that was started for this, through a door of its own.
    ///
    /// # Errors
    ///
    /// It does not answer there.
    pub fn at(name: &'static str, server: &Server, target: Target) -> io::Result<Self> {
        Self::filled_at(name, server, &target.clone(), target)
    }

    fn filled_at(name: &'static str, server: &Server, admin: &Target, target: Target) -> io::Result<Self> {
        let (store, version, threads) = Store::of_server(admin, Some(server.pid()))?;
        let about = format!("{version}, {}", server.options());
        Ok(Self::new(name, about, Way::Socket(target), threads, store))
    }

    fn new(name: &'static str, about: String, way: Way, threads: usize, store: Rc<Store>) -> Self {
        Self {
            name,
            about,
            way,
            threads,
            store,
            ready: None,
        }
    }

    /// Stores the items of a cell, unless they are there.
    ///
    /// # Errors
    ///
    /// The server refuses one, or is gone.
    pub fn prepare(&self, cell: &Cell, items: &Items) -> io::Result<()> {
        let stored = self.store.load(cell, items);
        stored.map_err(|e| io::Error::new(e.kind(), format!("storing the items: {e}")))?;
        self.ready.as_ref().map_or(Ok(()), |ready| ready(cell, items))
    }
}

/// How a side is reached.
pub enum Way {
    /// by calls from this process
    Library(Cache),
    /// through a socket
    Socket(Target),
}

impl Way {
    /// As a sentence has it.
    pub fn words(&self) -> &'static str {
        match self {
            Self::Library(_) => "in process",
            Self::Socket(Target::Unix(_)) => "over a Unix socket",
            Self::Socket(Target::Tcp(_)) => "over TCP",
            Self::Socket(Target::Udp(_)) => "over UDP",
            Self::Socket(Target::Split(_)) => "over UDP, the rest over TCP",
            Self::Socket(Target::Made(_)) => "over a stream of its own",
        }
    }
}

impl Store {
    fn new(hold: Hold) -> Rc<Self> {
        Rc::new(Self {
            hold,
            newest: Arc::new(AtomicU64::new(0)),
            loaded: cell::Cell::new(false),
            bytes_per_item: cell::Cell::new(None),
        })
    }

    /// What is known of the server at `admin`, its version, and its threads. `started`: its process, if it is new and empty.
    fn of_server(admin: &Target, started: Option<u32>) -> io::Result<(Rc<Self>, String, usize)> {
        let mut connection = Admin::open(admin)?;
        // A Keyway says in `stats` which one it is; its `version` is that of the protocol.
        let protocol = connection.version()?;
        let version = connection.stat_text("keyway_version").unwrap_or(protocol);
        // Only a process on this machine can be looked at, and only if it is the one that answers here.
        let stat = |name: &str| Admin::open(admin).and_then(|mut admin| admin.stat(name)).ok();
        let said = || {
            stat("pid")
                .filter(|_| admin.is_here())
                .and_then(|pid| u32::try_from(pid).ok())
        };
        let pid = started.or_else(said);
        let pid = pid.filter(|&pid| Usage::of(pid).is_ok_and(|usage| !usage.cpu.is_zero()));
        let threads = stat("threads").and_then(|n| usize::try_from(n).ok());
        let (admin, is_new) = (admin.clone(), started.is_some());
        Ok((Self::new(Hold::Server { admin, pid, is_new }), version, threads.unwrap_or(0)))
    }

    /// Stores every item of the workload, unless they are there.
    fn load(&self, cell: &Cell, items: &Items) -> io::Result<()> {
        let count = cell.items;
        if self.loaded.get() {
            return Ok(());
        }
        let before = self.memory_used();
        let mut filler = self.filler()?;
        each(cell, items, |key, value| filler.set(key, value))?;
        filler.finish()?;
        // Where memory is limited, items may have been evicted meanwhile.
        if self.newest.swap(count, Relaxed) == 0 && count >= WEIGHED_ITEMS_MIN && cell.memory_mib.is_none() {
            self.weigh(before, count);
        }
        // A workload that deletes leaves holes for the next measurement.
        self.loaded.set(!cell.workload.has(Kind::Delete));
        Ok(())
    }

    #[allow(clippy::cast_precision_loss, reason = "bytes and items are below 2^53")]
    fn weigh(&self, before: Option<u64>, count: u64) {
        let grown = self
            .memory_used()
            .zip(before)
            .map(|(after, before)| after.saturating_sub(before));
        self.bytes_per_item
            .set(grown.filter(|&grown| grown > 0).map(|grown| grown as f64 / count as f64));
    }

    /// Bytes that are used by items, what comes with them, and what is the same however many there are. `None`: unknown, or of a
    /// server that had items before.
    fn memory_used(&self) -> Option<u64> {
        match &self.hold {
            Hold::Region(cache) => {
                let info = cache.info();
                Some((info.segments - info.segments_free - info.segments_withdrawn) * info.segment_bytes)
            }
            Hold::Server { pid, is_new, .. } => pid.filter(|_| *is_new).and_then(|pid| machine::resident_bytes(pid).ok()),
        }
    }

    /// A way to store items, and to ask for them.
    pub fn filler(&self) -> io::Result<Filler> {
        Ok(match &self.hold {
            Hold::Region(cache) => Filler::Region(cache.session().map_err(io::Error::other)?, Vec::new()),
            Hold::Server { admin, .. } => Filler::Server(Admin::open(admin)?),
        })
    }

    /// Resident memory of a server's process, if it can be looked at; a region's limit.
    pub fn resident_bytes(&self) -> Option<u64> {
        match &self.hold {
            Hold::Region(cache) => Some(cache.info().limit_bytes),
            Hold::Server { pid, .. } => pid.and_then(|pid| machine::resident_bytes(pid).ok()),
        }
    }

    /// How many items it holds.
    pub fn items_held(&self) -> Option<u64> {
        self.stat("curr_items")
    }

    /// A number of the server's `stats`; of a region those that it counts.
    pub fn stat(&self, name: &str) -> Option<u64> {
        match &self.hold {
            Hold::Region(cache) => {
                let counters = cache.counters();
                let named = [("curr_items", counters.curr_items), ("evictions", counters.evictions)];
                named
                    .into_iter()
                    .find_map(|(known, number)| (known == name).then_some(number))
            }
            Hold::Server { admin, .. } => Admin::open(admin).and_then(|mut admin| admin.stat(name)).ok(),
        }
    }

    /// Requests that the kernel door has answered so far, if there is one.
    pub fn kernel_hits(&self) -> Option<u64> {
        let datagrams = self.stat("keyway_kernel_hits")?;
        Some(datagrams + self.kernel_tcp_hits().unwrap_or(0))
    }

    /// Segments that the kernel door has answered on TCP connections so far, if it serves any.
    pub fn kernel_tcp_hits(&self) -> Option<u64> {
        self.stat("keyway_kernel_tcp_hits")
    }

    /// What the server's process has used so far.
    pub fn usage(&self) -> Option<Usage> {
        match &self.hold {
            Hold::Region(_) => None,
            Hold::Server { pid, .. } => pid.and_then(|pid| Usage::of(pid).ok()),
        }
    }
}

/// Stores items in a cache without measuring, and asks for them.
pub enum Filler {
    /// by calls; with memory for values
    Region(Session, Vec<u8>),
    /// by a connection
    Server(Admin),
}

impl Filler {
    /// Stores an item; [`Self::finish`] waits until all are stored.
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        match self {
            Self::Region(session, _) => session.set(key, value, 0).map(drop).map_err(io::Error::other),
            Self::Server(admin) => admin.set(key, value),
        }
    }

    /// Waits until all is stored. An error reply in between is an error here.
    pub fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Region(..) => Ok(()),
            Self::Server(admin) => admin.barrier(),
        }
    }

    /// How many of these keys are there, and bytes of their keys and values.
    pub fn hits<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> io::Result<(u64, u64)> {
        let (session, value) = match self {
            Self::Region(session, value) => (session, value),
            Self::Server(admin) => return admin.hits(keys),
        };
        keys.iter().try_fold((0, 0), |(hits, bytes), key| {
            value.clear();
            let found = session.get_append(key.as_ref(), value).map_err(io::Error::other)?;
            let len = key.as_ref().len() + value.len();
            Ok(found.map_or((hits, bytes), |_| (hits + 1, bytes + len as u64)))
        })
    }
}

/// Gives every item's key and first value to `store`. Where memory is limited, the most popular ones come last: what is left
/// then is near to what a cache ends up with, and warming up takes less.
fn each(cell: &Cell, items: &Items, mut store: impl FnMut(&[u8], &[u8]) -> io::Result<()>) -> io::Result<()> {
    let limited = cell.memory_mib.is_some();
    let access = cell.workload.access;
    let by_rank = limited && matches!(access, Access::Zipf(_));
    let (mut key, mut value) = (Vec::new(), Vec::new());
    (0..cell.items).try_for_each(|number| {
        let index = if by_rank {
            mix(cell.items - 1 - number) % cell.items
        } else {
            number
        };
        key.clear();
        value.clear();
        items.push_key(index, &mut key);
        items.push_value(index, 0, &mut value);
        store(&key, &value)
    })
}

/// All sides of cells that share caches. What was started for it ends with it.
#[derive(Default)]
pub struct Caches {
    /// with whose it is, and through which door
    sides: Vec<(Whose, Door, Side)>,
    /// what the user should know before any figure
    pub notes: Vec<String>,
    servers: Vec<Server>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Whose {
    Keyway,
    Peer,
}

impl Caches {
    /// Starts what `cells` of `plan` need, which share their caches.
    pub fn start(plan: &Plan, cells: &[Cell]) -> io::Result<Self> {
        let mut caches = Self::default();
        if cells.iter().any(|cell| cell.door == Door::Library) {
            caches.start_region(cells)?;
        }
        let doors = doors(cells.iter().map(|cell| cell.door).filter(|door| !door.is_region()));
        match &plan.server {
            Some(given) if !doors.is_empty() => caches.add_given(Whose::Keyway, given, &doors)?,
            _ => caches.start_keyway(plan, cells, doors)?,
        }
        caches.add_peer(plan, cells)?;
        Ok(caches)
    }

    /// The sides of a cell: Keyway, then the peer if there is one.
    pub fn sides(&self, cell: &Cell) -> Vec<&Side> {
        let wanted = [(Whose::Keyway, cell.door), (Whose::Peer, cell.peer_door())];
        let of = |(whose, door)| {
            self.sides
                .iter()
                .find(|side| (side.0, side.1) == (whose, door))
                .map(|side| &side.2)
        };
        wanted.into_iter().filter_map(of).collect()
    }

    fn start_region(&mut self, cells: &[Cell]) -> io::Result<()> {
        let memory = memory(cells);
        let options = Options::new()
            .memory(memory << 20)
            .item_size_max(item_max(cells))
            .prefault(true);
        let cache = Cache::open(&Place::Memfd, &options).map_err(io::Error::other)?;
        let about = format!("{}, library, {memory} MiB", env!("CARGO_PKG_VERSION"));
        self.sides
            .push((Whose::Keyway, Door::Library, Side::of_region("Keyway", about, cache)));
        Ok(())
    }

    fn start_keyway(&mut self, plan: &Plan, cells: &[Cell], doors: Vec<Door>) -> io::Result<()> {
        // A server has the kernel door for all of its TCP connections or for none.
        let (answered, plain): (Vec<_>, Vec<_>) = doors.into_iter().partition(|door| *door == Door::KernelTcp);
        for doors in [plain, answered].into_iter().filter(|doors| !doors.is_empty()) {
            let settings = Settings {
                kernel_tcp: doors.contains(&Door::KernelTcp),
                ..settings(plan, cells, true, &plan.server_options)
            };
            let server = on_cpus(plan, || Server::keyway(&plan.program, &settings))?;
            self.add_started(Whose::Keyway, server, doors)?;
        }
        Ok(())
    }

    fn add_peer(&mut self, plan: &Plan, cells: &[Cell]) -> io::Result<()> {
        let doors = doors(cells.iter().map(Cell::peer_door));
        match &plan.against {
            Against::Nothing => return Ok(()),
            Against::Server(given) => return self.add_given(Whose::Peer, given, &doors),
            Against::Memcached if memcached_path().is_some() => {}
            Against::Memcached => {
                let running = Target::Tcp((Ipv4Addr::LOCALHOST, MEMCACHED_PORT).into());
                if Admin::open(&running).and_then(|mut admin| admin.version()).is_ok() {
                    let note = format!("memcached is not installed here; the server that runs at {running} is the peer");
                    self.notes.push(note);
                    return self.add_given(Whose::Peer, &running, &doors);
                }
                self.notes.push(
                    "memcached is not installed (neither on the PATH nor named in KEYWAY_MEMCACHED), and nothing runs at its port: Keyway \
                     is measured alone"
                        .to_owned(),
                );
                return Ok(());
            }
        }
        // memcached has a Unix socket or TCP and UDP, never both.
        let (unix, inet): (Vec<_>, Vec<_>) = doors.into_iter().partition(|door| *door == Door::Unix);
        for (doors, is_unix) in [(unix, true), (inet, false)]
            .into_iter()
            .filter(|(doors, _)| !doors.is_empty())
        {
            let settings = settings(plan, cells, is_unix, &plan.memcached_options);
            if let Some(server) = on_cpus(plan, || Server::memcached(&settings))? {
                self.add_started(Whose::Peer, server, doors)?;
            }
        }
        Ok(())
    }

    fn add_started(&mut self, whose: Whose, server: Server, doors: Vec<Door>) -> io::Result<()> {
        let name = if whose == Whose::Keyway { "Keyway" } else { "memcached" };
        let (store, version, threads) = Store::of_server(server.admin(), Some(server.pid()))?;
        for door in doors {
            let target = server.target(door).ok_or(io::ErrorKind::NotConnected)?;
            let about = format!("{version}, {}", server.options());
            let side = Side::new(name, about, Way::Socket(target), threads, Rc::clone(&store));
            self.sides.push((whose, door, side));
        }
        self.servers.push(server);
        Ok(())
    }

    /// Where a server runs already. The peer of calls is taken through whatever door its address is of.
    fn add_given(&mut self, whose: Whose, given: &Target, doors: &[Door]) -> io::Result<()> {
        let name = if whose == Whose::Keyway { "Keyway" } else { "peer" };
        let (store, version, threads) = Store::of_server(given, None)?;
        for &door in doors {
            if door == Door::KernelTcp && store.kernel_tcp_hits().is_none() {
                let text = format!("the server at {given} has no kernel door: start it with --kernel, or name another door");
                return Err(io::Error::other(text));
            }
            let way = Way::Socket(given.through(door).unwrap_or_else(|| given.clone()));
            let side = Side::new(name, format!("{version}, at {given}"), way, threads, Rc::clone(&store));
            self.sides.push((whose, door, side));
        }
        Ok(())
    }
}

/// Each once, in their order.
fn doors(all: impl Iterator<Item = Door>) -> Vec<Door> {
    all.fold(Vec::new(), |mut doors, door| {
        doors.extend((!doors.contains(&door)).then_some(door));
        doors
    })
}

fn memory(cells: &[Cell]) -> u64 {
    cells.iter().map(Cell::memory).max().unwrap_or(0)
}

/// Largest item that caches must take, bytes, if it is larger than they take anyway.
fn item_max(cells: &[Cell]) -> Option<usize> {
    /// What all take, less room for key and header.
    const USUAL: usize = (1 << 20) - 4096;
    let longest = cells.iter().map(|cell| cell.workload.items(1).longest()).max().unwrap_or(0);
    (longest > USUAL).then(|| (longest + 4096).next_power_of_two())
}

/// What a server of these cells is started with.
pub fn settings<'a>(plan: &Plan, cells: &[Cell], unix: bool, more: &'a [String]) -> Settings<'a> {
    let most = cells.iter().map(|cell| cell.connections).max().unwrap_or(0);
    Settings {
        memory_mib: memory(cells),
        item_max: item_max(cells),
        threads: plan.server_threads,
        connections: (most + CONNECTIONS_SPARE).max(1024),
        unix,
        udp: cells.iter().any(|cell| cell.door.is_datagrams()),
        more,
        ..Settings::default()
    }
}

/// Runs `start` while this thread, whose CPUs a child inherits, is where servers are to be.
pub fn on_cpus<T>(plan: &Plan, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if plan.server_cpus.is_empty() {
        return start();
    }
    let all: Vec<usize> = machine::allowed_cpus()?;
    machine::pin(&plan.server_cpus)?;
    let started = start();
    machine::pin(&all)?;
    started
}

/// The program that runs now: its `serve` is what is measured.
pub fn own_program() -> io::Result<PathBuf> {
    // The link leads to the file that runs, even if its name now belongs to another one.
    let link = Path::new("/proc/self/exe");
    if link.exists() {
        Ok(link.to_path_buf())
    } else {
        std::env::current_exe()
    }
}
