//! How the server ends: by request, or because another server has taken over.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// See the top of the file.
pub(crate) struct Life {
    stopping: AtomicBool,
    /// the process that has taken over; 0: none has
    taken_over_by: AtomicU32,
    acceptor: mio::Waker,
    /// ends the HTTP port, if there is one
    http: keyway_http::Stopper,
}

impl Life {
    pub(crate) fn new(acceptor: mio::Waker, http: keyway_http::Stopper) -> Self {
        Self {
            stopping: AtomicBool::new(false),
            taken_over_by: AtomicU32::new(0),
            acceptor,
            http,
        }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        // SeqCst: off the hot path, and the store is followed by a wake-up, which orders it anyway.
        self.stopping.load(SeqCst)
    }

    /// From now on the server stops. Wakes the accepting thread and the HTTP port.
    pub(super) fn stop(&self) {
        self.stopping.store(true, SeqCst);
        self.wake_acceptor();
        self.http.stop();
    }

    /// Another server has the role now.
    pub(super) fn taken_over(&self, process: u32) {
        self.taken_over_by.store(process, SeqCst);
    }

    /// The process that has taken over.
    pub(crate) fn taken_over_by(&self) -> Option<u32> {
        Some(self.taken_over_by.load(SeqCst)).filter(|&process| process != 0)
    }

    pub(crate) fn wake_acceptor(&self) {
        if let Err(error) = self.acceptor.wake() {
            log::error!("cannot wake the accepting thread: {error}");
        }
    }
}
