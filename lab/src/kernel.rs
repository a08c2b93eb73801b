//! The kernel door and user space, over UDP and over TCP, each beside memcached, every server at the other end of a link of its own.
//!
//! A veth's receiving is done by the CPU that sent, so the kernel door works on the client's CPU, and the CPU time of the whole machine is what
//! compares. Each server has a link of its own, so that none has another's filter on its interface.

use crate::datagrams::Datagrams;
use crate::namespaces::{Clients, INTERFACE, Link};
use crate::peak;
use keyway_bench::caches::{Side, Store, Way, on_cpus, settings};
use keyway_bench::items::Items;
use keyway_bench::measurement::Measurement;
use keyway_bench::plan::{Against, Cell, Door, Pace, Plan};
use keyway_bench::run::{self, Draw, Event, Operations, Outcome, Progress};
use keyway_bench::servers::{Server, Settings};
use keyway_bench::wire::{Admin, Target};
use std::cell;
use std::io;
use std::rc::Rc;

/// How a cell is reached, as its setting begins: both have gets over UDP and the rest over TCP.
pub const KERNEL: &str = "kernel door";
/// The same without the kernel door.
pub const USER: &str = "UDP in user space";
/// Both.
pub const WAYS: [&str; 2] = [KERNEL, USER];
/// The same over TCP alone.
pub const TCP_KERNEL: &str = "TCP, kernel door";
/// Without the kernel door.
pub const TCP_USER: &str = "TCP, user space";
/// Every way, and what it is called on a command line.
pub const ALL_WAYS: [(&str, &str); 4] = [
    ("kernel", KERNEL),
    ("user", USER),
    ("kernel-tcp", TCP_KERNEL),
    ("tcp", TCP_USER),
];
/// Worth knowing of every report.
const NOTE: &str = "servers that have the kernel door or stand beside it are reached over a pair of veth interfaces between two network namespaces; \
                    a packet's receiving is the work of the CPU that it was sent from, so the CPU time of the whole machine is what compares";

/// How a cell is measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum How {
    /// as the cell says: a closed loop, or at its rate; pipelined, if it has several requests on the way
    AsSaid,
    /// at this share, in percent, of what the peer does in a closed loop (without a peer: Keyway)
    Share(f64),
    /// at the highest rate with at most this mean latency, µs
    Peak(f64),
    /// gets, so many a second, however many are unanswered: what is lost is counted
    Flood(f64),
}

/// A cell, and how it is measured.
#[derive(Clone, Debug)]
pub struct Job {
    /// which
    pub cell: Cell,
    /// how
    pub how: How,
}

impl Job {
    /// This cell by one of [`ALL_WAYS`].
    pub fn new(way: &str, cell: Cell, how: How) -> Self {
        let setting = match how {
            How::AsSaid => way.to_owned(),
            How::Share(percent) => format!("{way}, {percent} % of the peer's closed loop"),
            How::Peak(us) => format!("{way}, highest rate with mean ≤ {us} µs"),
            How::Flood(rate) => format!("{way}, {rate:.0}/s whatever is lost"),
        };
        let cell = Cell {
            setting: Some(setting),
            door: door(way),
            ..cell
        };
        Self { cell, how }
    }
}

/// Which of [`ALL_WAYS`] a cell goes.
pub fn way(cell: &Cell) -> &'static str {
    let goes = |way: &&str| cell.setting.as_ref().is_some_and(|setting| setting.starts_with(*way));
    ALL_WAYS.iter().map(|(_, way)| *way).find(goes).unwrap_or_default()
}

fn is_kernel(way: &str) -> bool {
    way == KERNEL || way == TCP_KERNEL
}

fn door(way: &str) -> Door {
    if way == TCP_KERNEL || way == TCP_USER {
        Door::Tcp
    } else {
        Door::Split
    }
}

/// Measures these cells, whose caches are filled once for neighbours that share them. `plan` says what all have in common.
///
/// # Errors
///
/// A server that does not start. What goes wrong later is among the outcome's failures, and ends it.
pub fn measure(clients: &Clients, plan: &Plan, jobs: &[Job], outcome: &mut Outcome, progress: Progress<'_>) -> io::Result<()> {
    outcome.note(NOTE.to_owned());
    let mut number = 0;
    for jobs in jobs.chunk_by(|one, next| one.cell.shares_caches(&next.cell)) {
        let doing = Event::Doing {
            what: "starting",
            done: 0.0,
        };
        progress(doing);
        let cells: Vec<Cell> = jobs.iter().map(|job| job.cell.clone()).collect();
        let doors = Doors::start(clients, plan, &cells)?;
        if doors.sides.iter().all(|(way, ..)| way.is_some()) && plan.against == Against::Memcached {
            outcome.note("memcached is not installed: Keyway is measured alone".to_owned());
        }
        // Of one workload and shape: all points of a curve are shares of the same.
        let mut peak: Option<(Cell, f64)> = None;
        for job in jobs {
            let sides = doors.sides(&job.cell);
            let mut cell = job.cell.clone();
            if let (How::Share(percent), Some(side)) = (job.how, sides.last()) {
                let closed = Cell {
                    setting: None,
                    ..cell.clone()
                };
                if peak.as_ref().is_none_or(|(asked, _)| *asked != closed) {
                    let draw = Draw {
                        repetition: plan.repetitions,
                        step: 0,
                    };
                    let made = peak::whole(plan, &closed, side, &Operations::new(&closed), draw)?;
                    peak = Some((closed, made.rate()));
                }
                let rate = peak.as_ref().map_or(0.0, |(_, rate)| *rate);
                cell.pace = Pace::Rate(rate * percent / 100.0);
            }
            let measure = |plan: &Plan, cell: &Cell, side: &Side, operations: &Operations, draw: Draw| match job.how {
                How::Peak(us) => peak::peak(plan, cell, side, operations, draw.repetition, us),
                How::Flood(rate) => datagrams(plan, cell, side, operations, draw, Some(rate)),
                How::AsSaid | How::Share(_) if cell.depth > 1 => datagrams(plan, cell, side, operations, draw, None),
                How::AsSaid | How::Share(_) => run::measure(plan, cell, side, operations, draw),
            };
            run::run_cell(plan, number, &cell, &sides, &measure, outcome, progress);
            if !outcome.failures.is_empty() {
                return Ok(());
            }
            number += 1;
        }
    }
    Ok(())
}

/// Many gets in flight on each socket: pipelined, or at a rate whatever is lost.
#[allow(clippy::cast_precision_loss, reason = "a few threads")]
fn datagrams(
    plan: &Plan,
    cell: &Cell,
    side: &Side,
    operations: &Operations,
    draw: Draw,
    flood: Option<f64>,
) -> io::Result<Measurement> {
    side.prepare(cell, &operations.items)?;
    let target = target(side)?;
    let threads = plan.client_threads.min(cell.connections);
    let loads = operations.loads(plan, cell, side, draw, threads, None).into_iter();
    let sockets = loads
        .map(|load| Datagrams::open(target, load))
        .collect::<io::Result<Vec<_>>>()?;
    run::at_once(plan, side, sockets, |socket, window| match flood {
        Some(rate) => socket.flood(rate / threads as f64, window),
        None => socket.closed(cell.depth, plan.silence_max, window),
    })
}

/// Where a side's server listens.
///
/// # Errors
///
/// It is no server.
pub fn target(side: &Side) -> io::Result<&Target> {
    match &side.way {
        Way::Socket(target) => Ok(target),
        Way::Library(_) => Err(io::ErrorKind::Unsupported.into()),
    }
}

/// The servers of cells that share caches. They end with it.
pub struct Doors {
    /// with its way; the peer has none
    sides: Vec<(Option<&'static str>, Door, Side)>,
    _servers: Vec<(Server, Link)>,
}

impl Doors {
    /// Starts what these cells need.
    ///
    /// # Errors
    ///
    /// A server that does not start, or a network that cannot be made.
    pub fn start(clients: &Clients, plan: &Plan, cells: &[Cell]) -> io::Result<Self> {
        let (mut sides, mut servers) = (Vec::new(), Vec::new());
        let ways = ALL_WAYS
            .into_iter()
            .map(|(_, way)| way)
            .filter(|way| cells.iter().any(|cell| self::way(cell) == *way));
        let peer = (plan.against == Against::Memcached).then_some(None);
        for way in ways.map(Some).chain(peer) {
            let link = clients.link()?;
            let mut more = plan.memcached_options.clone();
            if let Some(way) = way {
                more = ["--udp-allow".to_owned(), link.network()].to_vec();
                if is_kernel(way) {
                    more.extend(["--kernel".to_owned(), INTERFACE.to_owned()]);
                }
                more.extend((way == TCP_KERNEL).then(|| "--kernel-tcp".to_owned()));
                more.extend_from_slice(&plan.server_options);
            }
            let settings = Settings {
                host: link.address(),
                udp: true,
                ..settings(plan, cells, false, &more)
            };
            let started = on_cpus(plan, || {
                link.at_server(|| match way {
                    Some(_) => Server::keyway(&plan.program, &settings).map(Some),
                    None => Server::memcached(&settings),
                })
            })?;
            let Some(server) = started else { continue };
            let name = if way.is_some() { "Keyway" } else { "memcached" };
            // The peer serves all ways.
            let doors = match way {
                Some(way) => vec![door(way)],
                None => [Door::Split, Door::Tcp]
                    .into_iter()
                    .filter(|door| cells.iter().any(|cell| cell.door == *door))
                    .collect(),
            };
            for door in doors {
                let mut side = Side::of_server(name, &server, door)?;
                if way.is_some_and(is_kernel) {
                    let (store, target, is_warm) = (Rc::clone(&side.store), target(&side)?.clone(), cell::Cell::new(false));
                    side.ready = Some(Box::new(move |cell, items| {
                        if !is_warm.replace(true) {
                            warm(&store, &target, cell, items)?;
                        }
                        Ok(())
                    }));
                }
                sides.push((way, door, side));
            }
            servers.push((server, link));
        }
        Ok(Self {
            sides,
            _servers: servers,
        })
    }

    /// The sides of a cell: Keyway, then the peer if there is one.
    pub fn sides(&self, cell: &Cell) -> Vec<&Side> {
        let of = |way: Option<&str>| {
            let is_it = |(has, door, _): &&(_, Door, _)| *has == way && *door == cell.door;
            self.sides.iter().find(is_it).map(|(.., side)| side)
        };
        [of(Some(way(cell))), of(None)].into_iter().flatten().collect()
    }
}

/// Asks for every item until the kernel door has had the chance to take each: what is hot there depends on what was asked for, not on memory
/// alone.
fn warm(store: &Store, target: &Target, cell: &Cell, items: &Items) -> io::Result<()> {
    /// Keys of one request; each is in it twice, because the second time counts.
    const KEYS: u64 = 8;
    const STEP: usize = 8;
    /// Rounds at most: an offer may come to nothing while many come at once, and some items have no room or are too large.
    const ROUNDS: u64 = 4;
    let mut asking = Admin::open(target)?;
    for _ in 0..ROUNDS {
        let before = store.stat("keyway_kernel_copied");
        for first in (0..cell.items).step_by(STEP) {
            let numbers = (first..cell.items.min(first + KEYS)).flat_map(|number| [number, number]);
            let keys = numbers.map(|number| {
                let mut key = Vec::new();
                items.push_key(number, &mut key);
                key
            });
            asking.hits(&keys.collect::<Vec<_>>())?;
        }
        if store.stat("keyway_kernel_copied") == before {
            break;
        }
    }
    Ok(())
}
