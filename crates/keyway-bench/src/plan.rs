//! What to measure: cells, each a workload through a door with a shape of load, on one side or two.

use crate::mix::{Kind, Workload};
use crate::wire::Target;
use std::path::PathBuf;
use std::time::Duration;

/// The way to a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    /// function calls on a region, from threads of this process
    Library,
    /// a Unix socket
    Unix,
    /// a TCP socket
    Tcp,
    /// a TCP socket of a server with the kernel door, on `lo`
    KernelTcp,
    /// UDP, with memcached's frame
    Udp,
    /// gets over UDP, the rest over TCP
    Split,
}

impl Door {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::Library, Self::Unix, Self::Tcp, Self::KernelTcp, Self::Udp, Self::Split];

    /// As it is written on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Library => "library",
            Self::Unix => "unix",
            Self::Tcp => "tcp",
            Self::KernelTcp => "kernel-tcp",
            Self::Udp => "udp",
            Self::Split => "udp-tcp",
        }
    }

    /// From a command line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|door| door.name() == text);
        found.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("\"{text}\" is no door; there are {names}")
        })
    }

    /// Whether it is a region of this program's own, without a server.
    pub fn is_region(self) -> bool {
        self == Self::Library
    }

    /// Whether gets go as datagrams.
    pub fn is_datagrams(self) -> bool {
        matches!(self, Self::Udp | Self::Split)
    }

    /// What one or several of it are called.
    pub fn unit(self, count: usize) -> &'static str {
        let (one, several) = match self {
            Self::Library => ("thread", "threads"),
            Self::Udp | Self::Split => ("socket", "sockets"),
            Self::Unix | Self::Tcp | Self::KernelTcp => ("connection", "connections"),
        };
        if count == 1 { one } else { several }
    }
}

/// When operations start.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Pace {
    /// when an earlier one has ended: a closed loop
    Closed,
    /// so many a second, whether or not the earlier ones have ended: an open loop
    Rate(f64),
}

/// One row of measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct Cell {
    /// what is asked
    pub workload: Workload,
    /// the way to Keyway; beside calls, the peer is reached through its Unix socket
    pub door: Door,
    /// connections; of the library: threads
    pub connections: usize,
    /// requests in flight on each connection, in a closed loop
    pub depth: usize,
    /// keys of one get
    pub keys_per_get: usize,
    /// when operations start
    pub pace: Pace,
    /// items stored before
    pub items: u64,
    /// for each cache; `None`: room for all items
    pub memory_mib: Option<u64>,
    /// what else tells it from the same cell of another plan, such as where its sides run
    pub setting: Option<String>,
}

impl Cell {
    /// A closed loop with one request in flight on each connection.
    pub fn new(workload: Workload, items: u64, door: Door, connections: usize) -> Self {
        Self {
            workload,
            items,
            door,
            connections,
            depth: 1,
            keys_per_get: 1,
            pace: Pace::Closed,
            memory_mib: None,
            setting: None,
        }
    }

    /// In words, the same for the same cell in every run.
    pub fn name(&self) -> String {
        let unit = self.door.unit(self.connections);
        let mut name = format!("{}, {}, {} {unit}", self.workload.name, self.door.name(), self.connections);
        if self.depth > 1 {
            name.push_str(&format!(", {} pipelined", self.depth));
        }
        if self.keys_per_get > 1 {
            name.push_str(&format!(", gets of {} keys", self.keys_per_get));
        }
        if let Pace::Rate(rate) = self.pace {
            name.push_str(&format!(", {rate:.0}/s"));
        }
        if let Some(memory) = self.memory_mib {
            name.push_str(&format!(", {memory} MiB"));
        }
        if let Some(setting) = &self.setting {
            name.push_str(&format!(", {setting}"));
        }
        name
    }

    /// The door of the peer: memcached has no library, so its nearest door is the Unix socket; and it has nothing else than TCP itself
    /// for TCP.
    pub fn peer_door(&self) -> Door {
        match self.door {
            Door::Library => Door::Unix,
            Door::KernelTcp => Door::Tcp,
            door => door,
        }
    }

    /// The memory of each cache: what was asked for, or twice what the items take.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a count of MiB far below 2^53, and not negative"
    )]
    pub fn memory(&self) -> u64 {
        /// What an item takes besides its key and value: memcached's 50 to 78 bytes, rounded up.
        const OVERHEAD: f64 = 80.0;
        let item_len = self.workload.items(self.items.min(10_000)).mean_len() + OVERHEAD;
        let needed = (self.items as f64 * item_len * 2.0 / f64::from(1 << 20)) as u64;
        self.memory_mib.unwrap_or(needed.max(64))
    }

    /// Whether the same caches, with the same items in them, can serve both.
    pub fn shares_caches(&self, other: &Self) -> bool {
        self.workload == other.workload && self.memory_mib == other.memory_mib && self.items == other.items
    }
}

/// What to compare with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Against {
    /// nothing
    Nothing,
    /// a memcached that is started for it, if one is installed
    Memcached,
    /// a server that runs already
    Server(Target),
}

/// Everything that one invocation does.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// in their order; those of the same workload side by side share their caches, which are filled once
    pub cells: Vec<Cell>,
    /// of one measurement
    pub length: Duration,
    /// before each
    pub warmup: Duration,
    /// measurements of each cell and side
    pub repetitions: usize,
    /// what the sequences of operations are drawn from
    pub seed: u64,
    /// of each server that is started
    pub server_threads: usize,
    /// that drive the connections
    pub client_threads: usize,
    /// where servers may run; empty: anywhere
    pub server_cpus: Vec<usize>,
    /// where the client, and the library, may run; empty: anywhere
    pub client_cpus: Vec<usize>,
    /// more options for the Keyway that is started, and for memcached
    pub server_options: Vec<String>,
    /// as its own command line has them
    pub memcached_options: Vec<String>,
    /// a server to measure as Keyway instead of starting one
    pub server: Option<Target>,
    /// what to compare with
    pub against: Against,
    /// the program whose `serve` is measured
    pub program: PathBuf,
    /// how long a server may be silent while it owes answers
    pub silence_max: Duration,
}

/// Most items: what fits the 56 bits of a drawn operation is far more than any machine's memory.
const ITEMS_MAX: u64 = 1 << 40;
/// What a datagram holds besides frame, command and key (udp(7): 65,507 bytes).
const DATAGRAM_VALUE_LEN_MAX: usize = 65_000;
/// Highest rate, operations a second: no machine does as many.
const RATE_MAX: f64 = 1e8;

impl Plan {
    /// Closed loops of one thread beside a memcached that is started for it, each measured so long and so often, of the program `keyway`
    /// that is given.
    pub fn new(program: PathBuf, cells: Vec<Cell>, length: Duration, repetitions: usize) -> Self {
        Self {
            cells,
            length,
            warmup: length / 5,
            repetitions,
            seed: 0,
            server_threads: 1,
            client_threads: 1,
            server_cpus: Vec::new(),
            client_cpus: Vec::new(),
            server_options: Vec::new(),
            memcached_options: Vec::new(),
            server: None,
            against: Against::Memcached,
            program,
            silence_max: Duration::from_secs(10),
        }
    }

    /// Refuses what cannot be done, with the reason and the remedy.
    pub fn check(&self, cpus: usize) -> Result<(), String> {
        if self.cells.is_empty() {
            return Err("nothing to measure: name a workload and a door".to_owned());
        }
        if self.repetitions == 0 || self.length.is_zero() {
            return Err("nothing is measured in 0 repetitions or 0 seconds: give 1 or more".to_owned());
        }
        for &cpu in self.server_cpus.iter().chain(&self.client_cpus) {
            if cpu >= cpus {
                return Err(format!("there is no CPU {cpu}: this machine has {cpus}, numbered from 0"));
            }
        }
        for cell in &self.cells {
            self.check_cell(cell)?;
        }
        Ok(())
    }

    fn check_cell(&self, cell: &Cell) -> Result<(), String> {
        let name = cell.name();
        let refuse = |why: String| Err(format!("{name}: {why}"));
        if cell.items == 0 || cell.items > ITEMS_MAX {
            return refuse(format!("{} items: there must be 1 to {ITEMS_MAX}", cell.items));
        }
        if cell.connections == 0 || cell.depth == 0 || cell.keys_per_get == 0 {
            return refuse("connections, requests on the way and keys of a get are 1 or more each".to_owned());
        }
        if cell.keys_per_get > 1 && !cell.workload.has(Kind::Get) {
            return refuse("this workload has no gets that could ask for several keys".to_owned());
        }
        if cell.pace != Pace::Closed && cell.depth > 1 {
            return refuse("at a given rate nothing waits for answers: leave out --pipeline".to_owned());
        }
        if let Pace::Rate(rate) = cell.pace
            && !(rate > 0.0 && rate <= RATE_MAX)
        {
            return refuse(format!("a rate is above 0 and at most {RATE_MAX} a second"));
        }
        if cell.door.is_region() && (cell.depth > 1 || cell.keys_per_get > 1) {
            return refuse("a function call has neither pipelining nor gets of several keys; leave out the library".to_owned());
        }
        if cell.door.is_datagrams() && cell.depth > 1 {
            return refuse("over UDP each socket has one request on the way; leave out --pipeline".to_owned());
        }
        let longest = cell.workload.items(1).longest();
        if cell.door == Door::Udp && longest > DATAGRAM_VALUE_LEN_MAX && (cell.workload.stores() || cell.workload.fill) {
            return refuse(format!(
                "a value of {longest} bytes cannot be stored with one datagram, which holds {DATAGRAM_VALUE_LEN_MAX}"
            ));
        }
        if let (Some(server), true) = (&self.server, cell.door.is_region()) {
            return refuse(format!(
                "the library is no part of the server at {server}; name one of its doors"
            ));
        }
        for (server, door) in [(self.server.as_ref(), cell.door), (self.peer_server(), cell.peer_door())] {
            if let Some(server) = server.filter(|server| !cell.door.is_region() && server.through(door).is_none()) {
                return refuse(format!("{server} is no address of this door; name the other door"));
            }
        }
        Ok(())
    }

    fn peer_server(&self) -> Option<&Target> {
        match &self.against {
            Against::Server(target) => Some(target),
            Against::Nothing | Against::Memcached => None,
        }
    }

    /// About how long it takes, loading aside.
    pub fn duration(&self) -> Duration {
        let sides = if self.against == Against::Nothing { 1 } else { 2 };
        let runs = self.cells.len() * self.repetitions * sides;
        (self.warmup + self.length) * u32::try_from(runs).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::workloads;
    use std::net::SocketAddr;

    /// A plan that holds.
    pub(crate) fn plan(cell: Cell) -> Plan {
        Plan {
            against: Against::Nothing,
            ..Plan::new("keyway".into(), vec![cell], Duration::from_millis(200), 1)
        }
    }

    fn cell(door: Door) -> Cell {
        Cell::new(workloads::find("ycsb-b").unwrap(), 1000, door, 2)
    }

    #[test]
    fn a_name_says_what_differs_from_one_request_at_a_time() {
        assert_eq!(cell(Door::Library).name(), "ycsb-b, library, 2 threads");
        let many = Cell {
            depth: 16,
            pace: Pace::Rate(5000.0),
            ..Cell::new(workloads::find("etc").unwrap(), 1000, Door::Tcp, 1)
        };
        assert_eq!(many.name(), "etc, tcp, 1 connection, 16 pipelined, 5000/s");
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_a_remedy() {
        assert_eq!(plan(cell(Door::Tcp)).check(2), Ok(()));
        let refused = |change: &dyn Fn(&mut Plan), words: &str| {
            let mut plan = plan(cell(Door::Tcp));
            change(&mut plan);
            let why = plan.check(2).unwrap_err();
            assert!(why.contains(words), "{why}");
        };
        refused(&|p| p.cells[0].items = 0, "1 to");
        refused(&|p| p.repetitions = 0, "1 or more");
        refused(&|p| p.client_cpus = vec![2], "no CPU 2");
        refused(&|p| p.cells[0].connections = 0, "1 or more");
        refused(&|p| p.cells[0].pace = Pace::Rate(0.0), "above 0");
        refused(
            &|p| {
                p.cells[0].door = Door::Library;
                p.cells[0].depth = 2;
            },
            "leave out the library",
        );
        refused(
            &|p| {
                (p.cells[0].door, p.cells[0].depth) = (Door::Udp, 2);
            },
            "leave out --pipeline",
        );
        let address: SocketAddr = "127.0.0.1:1".parse().unwrap();
        refused(
            &|p| {
                p.server = Some(Target::Tcp(address));
                p.cells[0].door = Door::Unix;
            },
            "is no address of this door",
        );
    }

    #[test]
    fn memory_holds_the_items_twice_unless_it_is_given() {
        let mut cell = cell(Door::Tcp);
        assert_eq!(cell.memory(), 64);
        cell.items = 1_000_000;
        assert_eq!(cell.memory(), 2103); // a million times 23 + 1000 + 80 bytes, twice
        cell.memory_mib = Some(9);
        assert_eq!(cell.memory(), 9);
    }
}
