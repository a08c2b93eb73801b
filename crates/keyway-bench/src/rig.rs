//! The caches under measurement: started, found, described and filled.

use crate::dropin::Dropin;
use crate::items::Items;
use crate::link::Link;
use crate::machine::{self, Usage};
use crate::mix::{Access, Kind};
use crate::plan::{Against, Cell, Door, Plan};
use crate::servers::{Folder, Server, Settings, memcached_path, region_folder};
use crate::wire::{Admin, Target};
use crate::workload::mix;
use keyway::{Cache, Options, Place};
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
/// The real library, by the name that programs are linked to.
pub(crate) const LIBMEMCACHED: &str = "libmemcached.so.11";
/// Where memcached listens unless it is told otherwise.
const MEMCACHED_PORT: u16 = 11211;

/// One cache, however many doors it has.
pub struct Store {
    hold: Hold,
    /// how many items of the workload there are by now
    pub newest: Arc<AtomicU64>,
    /// all items of the workload are in it
    loaded: cell::Cell<bool>,
    /// the kernel door has been shown all of them
    warmed: cell::Cell<bool>,
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
    /// what is behind the door
    pub store: Rc<Store>,
}

impl Side {
    /// A region of this process, by calls.
    pub fn of_region(name: &'static str, about: String, cache: Cache) -> Self {
        Self {
            name,
            about,
            way: Way::Library(cache.clone()),
            threads: 0,
            store: Store::new(Hold::Region(cache)),
        }
    }
}

/// How a side is reached.
pub enum Way {
    /// by calls from this process
    Library(Cache),
    /// by calls from processes of their own, on the region in this file
    Processes(PathBuf),
    /// through a socket
    Socket(Target),
    /// by calls of a libmemcached, with the server at this Unix socket
    Libmemcached(Dropin, PathBuf),
}

impl Store {
    fn new(hold: Hold) -> Rc<Self> {
        Rc::new(Self {
            hold,
            newest: Arc::new(AtomicU64::new(0)),
            loaded: cell::Cell::new(false),
            warmed: cell::Cell::new(false),
            bytes_per_item: cell::Cell::new(None),
        })
    }

    /// What is known of the server at `admin`, and its description.
    fn of_server(admin: &Target, is_new: bool) -> io::Result<(Rc<Self>, String, usize)> {
        let mut connection = Admin::open(admin)?;
        let version = connection.version()?;
        // Only a process on this machine can be looked at, and only if it is the one that answers here.
        let pid = connection.stat("pid").ok().and_then(|pid| u32::try_from(pid).ok());
        let pid = pid.filter(|&pid| admin.is_here() && Usage::of(pid).is_ok_and(|usage| !usage.cpu.is_zero()));
        let threads = connection.stat("threads").ok().and_then(|n| usize::try_from(n).ok());
        let admin = admin.clone();
        Ok((Self::new(Hold::Server { admin, pid, is_new }), version, threads.unwrap_or(0)))
    }

    /// Stores every item of the workload, unless they are there. A trace begins with a cache that has nothing.
    pub fn load(&self, cell: &Cell, items: &Items) -> io::Result<()> {
        let count = cell.items;
        if self.loaded.get() || cell.workload.trace.is_some() {
            return Ok(());
        }
        let before = self.memory_used();
        match &self.hold {
            Hold::Region(cache) => {
                let mut session = cache.session().map_err(io::Error::other)?;
                each(cell, items, |key, value| {
                    session.set(key, value, 0).map(drop).map_err(io::Error::other)
                })?;
            }
            Hold::Server { admin, .. } => {
                let mut admin = Admin::open(admin)?;
                each(cell, items, |key, value| admin.set(key, value))?;
                admin.barrier()?;
            }
        }
        // Where memory is limited, items may have been evicted meanwhile.
        if self.newest.swap(count, Relaxed) == 0 && count >= WEIGHED_ITEMS_MIN && cell.memory_mib.is_none() {
            self.weigh(before, count);
        }
        // A workload that deletes leaves holes for the next measurement.
        self.loaded.set(!cell.workload.has(Kind::Delete));
        self.warmed.set(false);
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

    /// Resident memory of a server's process, if it can be looked at.
    pub(crate) fn resident_bytes(&self) -> Option<u64> {
        match &self.hold {
            Hold::Region(_) => None,
            Hold::Server { pid, .. } => pid.and_then(|pid| machine::resident_bytes(pid).ok()),
        }
    }

    /// How many items it holds.
    pub fn items_held(&self) -> Option<u64> {
        match &self.hold {
            Hold::Region(cache) => Some(cache.counters().curr_items),
            Hold::Server { .. } => self.stat("curr_items"),
        }
    }

    /// Asks for every item until the kernel door has had the chance to take each: what is hot there depends on what was asked for, not on memory alone.
    pub fn warm_kernel_door(&self, target: &Target, cell: &Cell, items: &Items) -> io::Result<()> {
        /// Keys of one request; each is in it twice, because the second time counts.
        const KEYS: u64 = 8;
        const STEP: usize = 8;
        /// Rounds at most: an offer may come to nothing while many come at once, and some items have no room or are too large.
        const ROUNDS: u64 = 4;
        if self.warmed.get() || self.kernel_hits().is_none() {
            return Ok(());
        }
        let mut asking = Admin::open(target)?;
        for _ in 0..ROUNDS {
            let before = self.stat("keyway_kernel_copied");
            for first in (0..cell.items).step_by(STEP) {
                let numbers = (first..cell.items.min(first + KEYS)).flat_map(|number| [number, number]);
                let keys = numbers.map(|number| {
                    let mut key = Vec::new();
                    items.push_key(number, &mut key);
                    key
                });
                asking.hits(&keys.collect::<Vec<_>>())?;
            }
            if self.stat("keyway_kernel_copied") == before {
                break;
            }
        }
        self.warmed.set(true);
        Ok(())
    }

    fn stat(&self, name: &str) -> Option<u64> {
        match &self.hold {
            Hold::Region(_) => None,
            Hold::Server { admin, .. } => Admin::open(admin).and_then(|mut admin| admin.stat(name)).ok(),
        }
    }

    /// Requests that the kernel door has answered so far, if there is one.
    pub fn kernel_hits(&self) -> Option<u64> {
        self.stat("keyway_kernel_hits")
    }

    /// The server's process, if it may be looked at.
    pub fn pid(&self) -> Option<u32> {
        match &self.hold {
            Hold::Region(_) => None,
            Hold::Server { pid, .. } => *pid,
        }
    }

    /// What the server's process has used so far.
    pub fn usage(&self) -> Option<Usage> {
        match &self.hold {
            Hold::Region(_) => None,
            Hold::Server { pid, .. } => pid.and_then(|pid| Usage::of(pid).ok()),
        }
    }
}

/// Gives every item's key and first value to `store`. Where memory is limited, the most popular ones come last: what is left
/// then is near to what a cache ends up with, and warming up takes less.
fn each(cell: &Cell, items: &Items, mut store: impl FnMut(&[u8], &[u8]) -> io::Result<()>) -> io::Result<()> {
    let limited = cell.memory_mib.is_some();
    let access = cell.workload.access;
    let by_rank = limited && matches!(access, Access::Zipf | Access::Skewed(_));
    // The items of a mixture are its ranks.
    let is_rank = limited && matches!(access, Access::Scans | Access::Churn);
    let (mut key, mut value) = (Vec::new(), Vec::new());
    (0..cell.items).try_for_each(|number| {
        let index = if by_rank {
            mix(cell.items - 1 - number) % cell.items
        } else if is_rank {
            cell.items - 1 - number
        } else {
            number
        };
        key.clear();
        value.clear();
        items.push_key(index, &mut key);
        items.push_value(index, 0, None, &mut value);
        store(&key, &value)
    })
}

/// Whose a side is, and through which door; the peer of calls is at the peer's own door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Keyway(Door),
    Peer(Door),
}

/// All sides of cells that share caches. What was started for it ends with it.
pub struct Rig {
    sides: Vec<(Role, Side)>,
    /// what the user should know before any figure
    pub notes: Vec<String>,
    // Fields drop in their order: sides let go of the region before its folder is removed.
    servers: Vec<Server>,
    folder: Option<Folder>,
}

impl Rig {
    /// Starts what `cells` of `plan` need, which share their caches.
    pub fn start(plan: &Plan, cells: &[Cell]) -> io::Result<Self> {
        let mut rig = Self {
            sides: Vec::new(),
            notes: Vec::new(),
            servers: Vec::new(),
            folder: None,
        };
        rig.start_region(cells)?;
        rig.start_keyway(plan, cells)?;
        rig.start_peer(plan, cells)?;
        Ok(rig)
    }

    /// The sides of a cell: Keyway, then the peer if there is one.
    pub fn sides(&self, cell: &Cell) -> Vec<&Side> {
        let roles = [Role::Keyway(cell.door), Role::Peer(cell.peer_door())];
        let of = |role| self.sides.iter().find(|(has, _)| *has == role).map(|(_, side)| side);
        roles.into_iter().filter_map(of).collect()
    }

    /// What is measured: name, and version with options, each once.
    pub fn about(&self) -> Vec<(&'static str, String)> {
        let mut about: Vec<_> = self.sides.iter().map(|(_, side)| (side.name, side.about.clone())).collect();
        about.dedup();
        about
    }

    /// Processes that were started.
    pub fn pids(&self) -> Vec<u32> {
        self.servers.iter().map(Server::pid).collect()
    }

    fn start_region(&mut self, cells: &[Cell]) -> io::Result<()> {
        let has = |door| cells.iter().any(|cell| cell.door == door);
        if !has(Door::Library) && !has(Door::Processes) {
            return Ok(());
        }
        let memory = memory(cells);
        let options = Options {
            memory: memory << 20,
            item_size_max: item_max(cells).unwrap_or(Options::default().item_size_max),
            prefault: true,
            ..Options::default()
        };
        let place = if has(Door::Processes) {
            Place::Path(self.folder.insert(region_folder()?).path().join("region"))
        } else {
            Place::Memfd
        };
        let cache = Cache::open(&place, &options).map_err(io::Error::other)?;
        let store = Store::new(Hold::Region(cache.clone()));
        let ways = [
            (Door::Library, Some(Way::Library(cache))),
            (Door::Processes, region_path(&place).map(Way::Processes)),
        ];
        for (door, way) in ways {
            let Some(way) = way.filter(|_| has(door)) else { continue };
            let side = Side {
                name: "Keyway",
                about: format!("{}, library, {memory} MiB", env!("CARGO_PKG_VERSION")),
                way,
                threads: 0,
                store: Rc::clone(&store),
            };
            self.sides.push((Role::Keyway(door), side));
        }
        Ok(())
    }

    fn start_keyway(&mut self, plan: &Plan, cells: &[Cell]) -> io::Result<()> {
        let doors = doors(cells.iter().map(|cell| cell.door).filter(|door| !door.is_region()));
        if doors.is_empty() {
            return Ok(());
        }
        match &plan.server {
            Some(given) => self.add_given("Keyway", given, doors.into_iter().map(|door| (Role::Keyway(door), door))),
            None => {
                // The kernel door answers for a server's UDP, so the other doors are another server's.
                let (kernel, others): (Vec<_>, Vec<_>) = doors.into_iter().partition(|door| *door == Door::Kernel);
                for (doors, is_kernel) in [(others, false), (kernel, true)] {
                    if doors.is_empty() {
                        continue;
                    }
                    let link = link(plan)?;
                    let settings = Settings {
                        kernel: is_kernel,
                        ..settings(plan, cells, link.as_ref(), true, &plan.server_options)
                    };
                    let server = on_cpus(plan, || Server::keyway(&plan.program, &settings))?;
                    self.add_started(
                        "Keyway",
                        server,
                        plan.libmemcached.as_deref(),
                        doors.into_iter().map(|door| (Role::Keyway(door), door)),
                    )?;
                }
                Ok(())
            }
        }
    }

    fn start_peer(&mut self, plan: &Plan, cells: &[Cell]) -> io::Result<()> {
        let doors = doors(cells.iter().map(Cell::peer_door));
        let roles = |doors: Vec<Door>| doors.into_iter().map(|door| (Role::Peer(door), door));
        match &plan.against {
            Against::Nobody => Ok(()),
            Against::Server(given) => self.add_given("peer", given, roles(doors)),
            Against::Memcached if memcached_path().is_none() => {
                let running = Target::Tcp((Ipv4Addr::LOCALHOST, MEMCACHED_PORT).into());
                if Admin::open(&running).and_then(|mut admin| admin.version()).is_ok() {
                    self.notes.push(format!(
                        "memcached is not installed here; the server that runs at {running} is the peer"
                    ));
                    return self.add_given("peer", &running, roles(doors));
                }
                self.notes.push(
                    "memcached is not installed (neither on the PATH nor named in KEYWAY_MEMCACHED), and nothing runs at its port: Keyway \
                     is measured alone"
                        .to_owned(),
                );
                Ok(())
            }
            Against::Memcached => {
                // memcached has a Unix socket or TCP and UDP, never both.
                let (unix, inet): (Vec<_>, Vec<_>) = doors
                    .into_iter()
                    .partition(|door| matches!(door, Door::Unix | Door::Libmemcached));
                for (doors, is_unix) in [(unix, true), (inet, false)] {
                    if doors.is_empty() {
                        continue;
                    }
                    let link = if is_unix { None } else { link(plan)? };
                    let settings = settings(plan, cells, link.as_ref(), is_unix, &plan.memcached_options);
                    if let Some(server) = on_cpus(plan, || Server::memcached(&settings))? {
                        self.add_started("memcached", server, Some(Path::new(LIBMEMCACHED)), roles(doors))?;
                    }
                }
                Ok(())
            }
        }
    }

    /// With `libmemcached` as its client, where that door is wanted.
    fn add_started(
        &mut self,
        name: &'static str,
        server: Server,
        libmemcached: Option<&Path>,
        roles: impl Iterator<Item = (Role, Door)>,
    ) -> io::Result<()> {
        let (store, version, threads) = Store::of_server(server.admin(), true)?;
        for (role, door) in roles {
            let target = server.target(door).ok_or(io::ErrorKind::NotConnected)?;
            let mut about = format!("{version}, {}", server.options());
            let way = match (target, libmemcached) {
                (Target::Unix(socket), Some(path)) if door == Door::Libmemcached => {
                    let library = Dropin::load(path)?;
                    about.push_str(&format!("; {} (libmemcached {})", path.display(), library.version()));
                    Way::Libmemcached(library, socket)
                }
                (target, _) => Way::Socket(target),
            };
            let side = Side {
                name,
                about,
                way,
                threads,
                store: Rc::clone(&store),
            };
            self.sides.push((role, side));
        }
        self.servers.push(server);
        Ok(())
    }

    /// Where a server runs already. The peer of calls is taken through whatever door its address is of.
    fn add_given(&mut self, name: &'static str, given: &Target, roles: impl Iterator<Item = (Role, Door)>) -> io::Result<()> {
        let (store, version, threads) = Store::of_server(given, false)?;
        for (role, door) in roles {
            let side = Side {
                name,
                about: format!("{version}, at {given}"),
                way: Way::Socket(given.through(door).unwrap_or_else(|| given.clone())),
                threads,
                store: Rc::clone(&store),
            };
            self.sides.push((role, side));
        }
        Ok(())
    }
}

fn region_path(place: &Place) -> Option<PathBuf> {
    match place {
        Place::Path(path) => Some(path.clone()),
        Place::Memfd | Place::Socket(_) => None,
    }
}

/// Each once, in their order.
fn doors(all: impl Iterator<Item = Door>) -> Vec<Door> {
    let mut doors: Vec<Door> = Vec::new();
    for door in all {
        if !doors.contains(&door) {
            doors.push(door);
        }
    }
    doors
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

/// A link of its own for each server, so that none has another's filter on its interface.
fn link(plan: &Plan) -> io::Result<Option<Arc<Link>>> {
    plan.has_link().then(Link::new).transpose().map(|link| link.map(Arc::new))
}

fn settings<'a>(plan: &Plan, cells: &[Cell], link: Option<&'a Arc<Link>>, unix: bool, more: &'a [String]) -> Settings<'a> {
    let most = cells.iter().map(|cell| cell.connections).max().unwrap_or(0);
    Settings {
        memory_mib: memory(cells),
        hands_out: cells.iter().any(|cell| cell.door == Door::Libmemcached),
        item_max: item_max(cells),
        threads: plan.server_threads,
        connections: (most + plan.idle.unwrap_or(0) + CONNECTIONS_SPARE).max(1024),
        unix,
        udp: cells.iter().any(|cell| cell.door.is_datagrams()),
        link,
        kernel: false,
        more,
    }
}

/// Runs `start` while this thread, whose CPUs a child inherits, is where servers are to be.
fn on_cpus<T>(plan: &Plan, start: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
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
