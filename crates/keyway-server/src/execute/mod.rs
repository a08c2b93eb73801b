//! One request: executed as a verb of the session, answered to the output.
//!
//! Every request comes through [`Executor::execute`], and goes to the file of its kind:
//!
//! | file | holds |
//! |---|---|
//! | `mod` | [`Executor`], and [`Items`]: the session, with what only this server counts of the requests |
//! | `classic` | which request is answered where; get, set and their relatives in the text protocol |
//! | `meta` | `MetaCommands`: meta commands |
//! | `binary` | `Binary`: the binary protocol |
//! | `admin` | `Administration`: commands about the server: flush_all, stats, watch, limits |
//! | `dump` | [`Dump`]: answers that are written in steps |
//! | `miss` | gets that have found nothing, where misses are held |
//! | `measured` | `Measured`: as what the time of a request is counted |
//!
//! Never: waits, or reads a socket.

mod admin;
mod binary;
mod classic;
mod dump;
mod measured;
mod meta;
mod miss;

pub(crate) use dump::Dump;
pub use miss::{Claims, Held};

use keyway_cache::server::{ServerCache as _, ServerSession as _};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use keyway_cache::server::{Flight, Flights, Timer};
use keyway_cache::{Cache, Delete, Session, StoreMode, Stored, WriteError};
use keyway_probes as probes;
use keyway_proto::{Form, MetaKey, Request, keys_ahead, reply};

use self::measured::Measured;
use crate::cpu_budget::CpuBudget;
use crate::kernel::{Enrolments, Served};
use crate::shared::{CloseReason, Peer, Shared};
use crate::stats::WorkerCounters;
use crate::watch::Watcher;

/// What a worker needs to execute requests.
pub(crate) struct Executor {
    items: Items,
    cache: Cache,
    /// work of the present turn
    pub(crate) cpu_budget: CpuBudget,
    /// measures requests
    timer: Timer,
    /// what it has served of what the kernel door could
    served: Option<Served>,
    /// the connections that the kernel door serves
    enrolments: Option<Arc<Enrolments>>,
}

/// The session, and what only this server counts of its requests.
struct Items {
    session: Session,
    shared: Arc<Shared>,
    /// this worker's number
    worker: usize,
    /// where gets wait that are held; `None`: nowhere
    flights: Option<Flights>,
    /// what the client has claimed or won by this request
    claimed: Vec<(Box<[u8]>, Flight)>,
}

/// What is left to do for a request.
pub(crate) enum Outcome {
    Done,
    /// the output is full after this many keys; execute the request again when the client has taken it
    Partly {
        keys_done: usize,
    },
    /// somebody computes the value of the key after these: execute the request again when it is there, or at that time
    Hold {
        keys_done: usize,
        until: Instant,
    },
    /// an error has ended the answer: the rest of the line is not executed
    Broken,
    Close(CloseReason),
    Dump(Dump),
    Watch(Arc<Watcher>),
    /// another thread executes it, and then gives this connection a turn
    Wait(Arc<Task>),
    /// it is a step of a login: the connection answers it
    LogIn,
}

/// A long task that a separate thread does for a connection.
#[derive(Default)]
pub(crate) struct Task(OnceLock<&'static [u8]>);

impl Task {
    /// The answer, when the task is done.
    pub(crate) fn answer(&self) -> Option<&'static [u8]> {
        self.0.get().copied()
    }
}

/// Where a request comes from, and how full its output is.
pub(crate) struct Origin<'a> {
    pub(crate) peer: &'a Peer,
    /// the worker's token of the connection
    pub(crate) token: usize,
    /// leading bytes of the output that have been sent
    pub(crate) sent: usize,
    /// leading keys of a request with several keys that have been answered
    pub(crate) keys_done: usize,
    /// a read may change what it finds: a stale item is marked as being fetched again
    pub(crate) may_write: bool,
    /// unsent bytes after which the output is full
    pub(crate) room: usize,
    /// it comes from a program that uses the library: a store that fails changes what it would change there, and not what it
    /// changes in memcached
    pub(crate) is_line: bool,
    /// it is a datagram: not even the last item may exceed `room`, and the request is not continued later
    pub(crate) is_bounded: bool,
    /// whether its gets may wait for a value that somebody computes
    pub held: Held<'a>,
    /// the connection's socket, if this code may send the output
    pub(crate) socket: Option<BorrowedFd<'a>>,
}

/// The region's changes are counted for a kernel program that this server does not feed.
const KERNEL_DOOR: &[u8] = b"SERVER_ERROR another server answers for this region from the kernel; write through that one\r\n";
/// An error that no client can fix: a damaged region, or one whose flush epochs are used up.
const DAMAGED: &[u8] = b"SERVER_ERROR the region takes no writes here; run keyway check on it\r\n";

impl Items {
    fn counters(&self) -> &WorkerCounters {
        self.shared.workers.counters(self.worker)
    }

    /// Whether clients see CAS uniques (`-C` hides them).
    fn shows_cas(&self) -> bool {
        self.shared.config.cas_enabled
    }

    /// Deletes the item under `key`: its new value could not be stored, and the old one must not stay.
    fn forget(&mut self, key: &[u8]) {
        // The client gets the error about the value that it sent; the protocol has no place for a second one.
        let how = Delete {
            uncounted: true,
            ..Delete::default()
        };
        let _ = self.session.delete(key, &how);
    }

    /// Counts a fetch for `stats detail`. The session itself writes the events of watchers.
    #[inline]
    fn fetched(&self, key: &[u8], hit: bool) {
        if self.shared.detail.is_enabled() {
            self.shared.detail.count(key, |counts| {
                counts.gets += 1;
                counts.hits += u64::from(hit);
            });
        }
    }

    /// Counts a store for `stats detail`.
    #[inline]
    fn mutated(&self, key: &[u8]) {
        if self.shared.detail.is_enabled() {
            self.shared.detail.count(key, |counts| counts.sets += 1);
        }
    }

    /// Counts a delete for `stats detail`.
    #[inline]
    fn deleted(&self, key: &[u8]) {
        if self.shared.detail.is_enabled() {
            self.shared.detail.count(key, |counts| counts.deletes += 1);
        }
    }
}

impl Executor {
    pub(crate) fn new(session: Session, cache: Cache, shared: Arc<Shared>, worker: usize) -> Self {
        Self {
            served: shared.kernel.as_ref().map(|post| post.served(cache.clone())),
            enrolments: shared.kernel.as_ref().and_then(|post| post.enrolments()),
            items: Items {
                session,
                flights: cache.flights(),
                shared,
                worker,
                claimed: Vec::new(),
            },
            cache,
            cpu_budget: CpuBudget::default(),
            timer: Timer::new(),
        }
    }

    /// As if a kernel door with these connections and candidates ran.
    #[cfg(all(test, feature = "kernel"))]
    pub(crate) fn serve_beside(&mut self, enrolments: Arc<Enrolments>, served: Served) {
        (self.enrolments, self.served) = (Some(enrolments), Some(served));
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.items.shared
    }

    pub(crate) fn cache(&self) -> &Cache {
        &self.cache
    }

    pub(crate) fn worker(&self) -> usize {
        self.items.worker
    }

    pub(crate) fn session(&mut self) -> &mut Session {
        &mut self.items.session
    }

    pub(crate) fn counters(&self) -> &WorkerCounters {
        self.items.counters()
    }

    /// The connections that the kernel door may serve, if there is that door.
    pub(crate) fn enrolments(&self) -> Option<&Arc<Enrolments>> {
        self.enrolments.as_ref()
    }

    /// What was served of what the kernel door could serve.
    #[inline]
    pub(crate) fn served(&mut self) -> Option<&mut Served> {
        self.served.as_mut()
    }

    /// A round of the event loop begins.
    pub(crate) fn begin_round(&mut self, now: Instant) {
        if let Some(served) = &mut self.served {
            served.turn(now);
        }
    }

    /// Largest item that the region allows now, bytes.
    #[inline]
    pub(crate) fn item_size_max(&self) -> usize {
        let size = self.items.session.limits().item_size_max;
        self.items.shared.allows_items_of(size);
        size
    }

    /// Counts a value that is too large, and deletes the item that it should have replaced.
    pub(crate) fn too_large(&mut self, forget: Option<&MetaKey<'_>>) {
        self.counters().too_large.add(1);
        if let Some(key) = forget {
            self.items.forget(key.stored());
        }
    }

    /// Whether a request that may change an item has to wait (without delaying other connections): the kernel program of a dead server may
    /// still answer for it.
    pub(crate) fn is_held_up(&self) -> bool {
        self.items.session.is_held_up()
    }

    /// Has the memory of the requests that follow in a connection's input fetched together; returns how many requests that are.
    #[inline(never)]
    pub(crate) fn prefetch(&mut self, input: &[u8]) -> usize {
        let mut count = 0;
        self.items.session.prefetch(keys_ahead(input).inspect(|_| count += 1));
        count
    }

    /// A reading of the clock that measures requests: one is taken up now.
    #[inline]
    pub(crate) fn take_up(&self) -> u64 {
        self.timer.now()
    }

    /// Executes `request` and appends its answer to `out`. Notes how long it took since it was taken up, if that is its end; otherwise returns
    /// `taken_up` also, for its next piece.
    pub(crate) fn execute(
        &mut self,
        request: &Request<'_>,
        out: &mut Vec<u8>,
        origin: &Origin<'_>,
        taken_up: u64,
    ) -> (Outcome, Option<u64>) {
        let measured = Measured::of(request, origin.is_bounded);
        let (door, fd) = (measured.door, origin.peer.fd);
        self.items.session.serve_as(door, measured.form == Form::Meta, fd);
        probes::request_entry(door as u8, fd);
        let outcome = self.answer(request, out, origin);
        probes::request_return();
        if let Some(post) = &self.items.shared.kernel
            && measured.changes()
        {
            post.changed();
        }
        let unfinished = measured.note(&mut self.items.session, &mut self.timer, taken_up, &outcome);
        (outcome, unfinished)
    }
}

/// An append or prepend that finds no memory for the longer value is reported as "not stored", as in memcached.
fn as_memcached(mode: StoreMode, stored: Result<Stored, WriteError>) -> Result<Stored, WriteError> {
    match (mode, stored) {
        (StoreMode::Append | StoreMode::Prepend, Err(WriteError::TooLarge { .. } | WriteError::OutOfMemory)) => {
            Ok(Stored::NotStored)
        }
        (_, stored) => stored,
    }
}

fn refusal(error: WriteError) -> &'static [u8] {
    match error {
        WriteError::TooLarge { .. } => reply::TOO_LARGE,
        WriteError::OutOfMemory => reply::OUT_OF_MEMORY_STORING,
        WriteError::KeyLength { .. } => reply::BAD_FORMAT,
        WriteError::KernelDoor => KERNEL_DOOR,
        WriteError::NoMemory { .. } => reply::OUT_OF_MEMORY,
        WriteError::FlushRefused => reply::FLUSH_DISABLED,
        // Corrupt, Detached, Unserved, and what a later version of the library adds.
        _ => DAMAGED,
    }
}

fn answer_unless(noreply: bool, answer: &[u8], out: &mut Vec<u8>) {
    if !noreply {
        out.extend_from_slice(answer);
    }
}
