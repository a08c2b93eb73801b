//! One request: executed as a verb of the session, answered to the output.
//!
//! Every request comes through [`Executor::execute`], and goes to the file of its kind:
//!
//! | file | requests |
//! |---|---|
//! | `classic` | get, set and their relatives in the text protocol |
//! | `meta` | meta commands |
//! | `binary` | the binary protocol |
//! | `admin` | about the server: flush_all, stats, watch, limits |
//! | `measured` | none: how long the requests of the other files take |
//! | `events` | none: what `stats detail` counts of the requests of the other files |
//!
//! Never: waits, or reads a socket.

mod admin;
mod binary;
mod classic;
mod events;
mod measured;
mod meta;

pub(crate) use measured::Measured;

use std::os::fd::BorrowedFd;
use std::sync::{Arc, OnceLock};

use keyway_cache::server::Timer;
use keyway_cache::{Arithmetic, Cache, Delete, Deleted, Door, Session, StoreMode, Stored, WriteError};
use keyway_probes as probes;
use keyway_proto::{Effect, MetaKey, Request, keys_ahead, reply};

use crate::connection::CloseReason;
use crate::cpu_budget::CpuBudget;
use crate::dump::Dump;
use crate::kernel::{Enrolments, Served};
use crate::shared::{Peer, Shared, WorkerCounters};
use crate::watch::Watcher;

/// What a worker needs to execute requests.
pub(crate) struct Executor {
    pub(crate) session: Session,
    pub(crate) cache: Cache,
    pub(crate) shared: Arc<Shared>,
    /// this worker's number
    pub(crate) worker: usize,
    /// work of the present turn
    pub(crate) cpu_budget: CpuBudget,
    /// measures requests
    pub(crate) timer: Timer,
    /// what it has served of what the kernel door could
    pub(crate) served: Option<Served>,
    /// the connections that the kernel door serves
    pub(crate) enrolments: Option<Arc<Enrolments>>,
}

/// What is left to do for a request.
pub(crate) enum Outcome {
    Done,
    /// the output is full after this many keys; execute the request again when the client has taken it
    Partly {
        keys_done: usize,
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
    /// the connection's socket, if this code may send the output
    pub(crate) socket: Option<BorrowedFd<'a>>,
}

/// The region's changes are counted for a kernel program that this server does not feed.
const KERNEL_DOOR: &[u8] = b"SERVER_ERROR another server answers for this region from the kernel; write through that one\r\n";
/// An error that no client can fix: a damaged region, or one whose flush epochs are used up.
const DAMAGED: &[u8] = b"SERVER_ERROR the region takes no writes here; run keyway check on it\r\n";

impl Executor {
    pub(crate) fn counters(&self) -> &WorkerCounters {
        &self.shared.mailboxes[self.worker].counters
    }

    /// Largest item that the region allows now, bytes.
    #[inline]
    pub(crate) fn item_size_max(&self) -> usize {
        let size = self.session.limits().item_size_max;
        self.shared.allows_items_of(size);
        size
    }

    /// Deletes the item under `key`: its new value could not be stored, and the old one must not stay.
    pub(crate) fn forget(&mut self, key: &[u8]) {
        // The client gets the error about the value that it sent; the protocol has no place for a second one.
        let how = Delete {
            uncounted: true,
            ..Delete::default()
        };
        let _ = self.session.delete(key, &how);
    }

    /// Counts a value that is too large, and deletes the item that it should have replaced.
    pub(crate) fn too_large(&mut self, forget: Option<&MetaKey<'_>>) {
        self.counters().too_large.add(1);
        if let Some(key) = forget {
            self.forget(key.stored());
        }
    }

    /// Whether this request has to wait (without delaying other connections): it may change an item that the kernel program of a dead server
    /// may still answer.
    #[inline]
    pub(crate) fn holds_up(&self, request: &Request<'_>) -> bool {
        request.effect() != Effect::Reads && self.session.is_held_up()
    }

    /// Has the memory of the requests that follow in a connection's input fetched together; returns how many requests that are.
    #[inline(never)]
    pub(crate) fn prefetch(&mut self, input: &[u8]) -> usize {
        let mut count = 0;
        self.session.prefetch(keys_ahead(input).inspect(|_| count += 1));
        count
    }

    /// Executes `request` and appends its answer to `out`.
    pub(crate) fn execute(&mut self, request: &Request<'_>, out: &mut Vec<u8>, origin: &Origin<'_>) -> Outcome {
        let (door, is_meta) = door_of(request);
        let door = if origin.is_bounded { Door::Udp } else { door };
        self.session.serve_as(door, is_meta, origin.peer.fd);
        probes::request_entry(door as u8, origin.peer.fd);
        let outcome = self.execute_verb(request, out, origin);
        probes::request_return();
        if let Some(post) = &self.shared.kernel
            && request.effect() == Effect::Changes
        {
            post.changed();
        }
        outcome
    }

    fn execute_verb(&mut self, request: &Request<'_>, out: &mut Vec<u8>, origin: &Origin<'_>) -> Outcome {
        match request {
            Request::Get { keys, with_cas } => return self.get(keys, None, *with_cas, out, origin),
            Request::GetAndTouch { exptime, keys, with_cas } => {
                return self.get(keys, Some((*exptime).into()), *with_cas, out, origin);
            }
            Request::Store(store) => self.store(store, out),
            Request::MetaGet(get) => self.meta_get(get, out, origin),
            Request::MetaSet(set) => self.meta_set(set, out, origin.is_line),
            Request::Delete { key, noreply } => {
                let answer = match self.session.delete(key, &Delete::default()) {
                    Ok(Deleted::Deleted) => reply::DELETED,
                    Ok(Deleted::NotFound) => reply::NOT_FOUND,
                    Ok(Deleted::Exists) => reply::EXISTS,
                    Err(error) => refusal(error),
                };
                self.deleted(key);
                answer_unless(*noreply, answer, out);
            }
            Request::Arithmetic {
                key,
                delta,
                decrement,
                noreply,
            } => {
                self.arithmetic(
                    key,
                    &Arithmetic {
                        delta: *delta,
                        decrement: *decrement,
                        ..Arithmetic::default()
                    },
                    *noreply,
                    out,
                );
            }
            Request::Touch { key, exptime, noreply } => {
                let answer = match self.session.touch(key, (*exptime).into()) {
                    Ok(true) => reply::TOUCHED,
                    Ok(false) => reply::NOT_FOUND,
                    Err(error) => refusal(error),
                };
                answer_unless(*noreply, answer, out);
            }
            Request::MetaDelete(delete) => self.meta_delete(delete, out),
            Request::MetaArithmetic(arithmetic) => self.meta_arithmetic(arithmetic, out),
            Request::MetaNoop => {
                self.counters().cmd_meta.add(1);
                out.extend_from_slice(reply::META_NOOP);
            }
            Request::MetaDebug { key } => self.meta_debug(key, out),
            Request::Binary(request) => return self.binary(request, out, origin),
            Request::Admin(request) => return self.administer(request, out, origin),
        }
        Outcome::Done
    }
}

/// The door of a request, and whether it is a meta command.
#[inline]
fn door_of(request: &Request<'_>) -> (Door, bool) {
    match request {
        Request::Binary(_) => (Door::Binary, false),
        Request::MetaGet(_)
        | Request::MetaSet(_)
        | Request::MetaDelete(_)
        | Request::MetaArithmetic(_)
        | Request::MetaNoop
        | Request::MetaDebug { .. } => (Door::Meta, true),
        _ => (Door::Text, false),
    }
}

/// An append or prepend that finds no memory for the longer value is reported as "not stored", as in memcached.
pub(crate) fn as_memcached(mode: StoreMode, stored: Result<Stored, WriteError>) -> Result<Stored, WriteError> {
    match (mode, stored) {
        (StoreMode::Append | StoreMode::Prepend, Err(WriteError::TooLarge { .. } | WriteError::OutOfMemory)) => {
            Ok(Stored::NotStored)
        }
        (_, stored) => stored,
    }
}

pub(crate) fn refusal(error: WriteError) -> &'static [u8] {
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
