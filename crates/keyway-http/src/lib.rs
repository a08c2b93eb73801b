//! Keyway's HTTP port: a small server for machines and people that only read.
//!
//! [`Server`] runs on the one thread that calls [`Server::run`], and asks a closure for every answer. HTTP/1.1 itself is hyper's; this crate
//! sets the bounds: requests without a body, `GET` and `HEAD` only, one request for each connection, a deadline for all of it, few
//! connections at a time. A client that is slow or hostile holds at most one connection, for at most [`DEADLINE`], and the oldest connection
//! makes room for a new one, so other clients are served meanwhile. A request that a page of another site made a browser send gets no answer
//! ([`Hosts`]).
//!
//! [`Exposition`] writes numbers as OpenMetrics or in Prometheus's text format, whichever the client asked for ([`Format::asked_for`]).
//!
//! It knows no cache, no region and no memcached, and has no unsafe code.

#![forbid(unsafe_code)]

mod exposition;
mod hosts;
mod serve;
mod stream;

pub use exposition::{Exposition, Format, Kind};
pub use hosts::Hosts;
pub use serve::{Answer, CONNECTIONS_MAX, DEADLINE, HEAD_MAX, HEADERS_MAX, Listener, Pulse, Question, Server, Stopper};
