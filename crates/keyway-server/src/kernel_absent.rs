//! The kernel door of a server that was built without it (cargo feature `kernel`).

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use keyway_cache::Cache;
use keyway_cache::server::SessionId;
use keyway_proto::Request;

use crate::config::{Config, Kernel};
use crate::shared::Shared;
use crate::stats::KernelNumbers;
use crate::takeover::{Halt, Predecessor};

/// This build has none.
pub(crate) enum Post {}
/// This build has none.
pub(crate) enum Keeper {}
/// This build has none.
pub(crate) enum Served {}
/// This build has none.
pub(crate) enum Enrolments {}
/// This build has none.
pub(crate) enum Enrolment {}

pub(crate) fn start(
    _: &Config,
    _: &Kernel,
    _: &[SocketAddr],
    _: &[SocketAddr],
    _: &Cache,
    _: Option<Predecessor>,
) -> Result<(Keeper, Arc<Post>), String> {
    Err("the kernel door: this program was built without it (cargo feature `kernel`)".to_owned())
}

impl Keeper {
    pub(crate) fn session_id(&self) -> Option<SessionId> {
        match *self {}
    }

    pub(crate) fn pinned(&self) -> io::Result<Option<File>> {
        match *self {}
    }

    pub(crate) fn run(self, _: &Shared, _: &Halt) {
        match self {}
    }
}

impl Post {
    pub(crate) fn served(&self, _: Cache) -> Served {
        match *self {}
    }

    pub(crate) fn enrolments(&self) -> Option<Arc<Enrolments>> {
        match *self {}
    }

    pub(crate) fn wake(&self) {
        match *self {}
    }

    pub(crate) fn changed(&self) {
        match *self {}
    }

    pub(crate) fn numbers(&self) -> KernelNumbers {
        match *self {}
    }

    pub(crate) fn stats_per_cpu(&self, _: &mut Vec<u8>) {
        match *self {}
    }
}

impl Enrolments {
    pub(crate) fn admits(&self, _: SocketAddr) -> bool {
        match *self {}
    }

    pub(crate) fn enrol(self: &Arc<Self>, _: BorrowedFd<'_>) -> Option<Enrolment> {
        match **self {}
    }
}

impl Enrolment {
    pub(crate) fn is_at_rest(&mut self, _: u64) {
        match *self {}
    }

    pub(crate) fn is_not_at_rest(&mut self) {
        match *self {}
    }

    pub(crate) fn is_published(&self) -> bool {
        match *self {}
    }
}

impl Served {
    pub(crate) fn turn(&mut self, _: Instant) {
        match *self {}
    }

    pub(crate) fn note(&mut self, _: &Request<'_>) {
        match *self {}
    }
}
