//! What a connection costs that no client uses: memory of the server, by opening many that ask once and then say nothing.

use keyway_bench::caches::{Side, Way};
use keyway_bench::wire::Admin;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::io;

/// Descriptors that this process needs besides.
const DESCRIPTORS_SPARE: u64 = 64;

/// Bytes of resident memory that the side's server takes for each of `count` connections more. `None`: it is no server, or none that
/// can be looked at.
///
/// # Errors
///
/// A connection that cannot be opened, or is not answered.
#[allow(clippy::cast_precision_loss, reason = "bytes and connections are below 2^53")]
pub fn bytes_per_connection(side: &Side, count: usize) -> io::Result<Option<f64>> {
    let (Way::Socket(target), Some(before)) = (&side.way, side.store.resident_bytes()) else {
        return Ok(None);
    };
    allow_descriptors(count);
    let mut connections = Vec::with_capacity(count);
    for number in 1..=count {
        let opened = Admin::open(target).and_then(|mut connection| connection.version().map(|_| connection));
        connections.push(opened.map_err(|e| {
            let remedy = "allow more connections at the server, or raise ulimit -n";
            io::Error::new(e.kind(), format!("idle connection {number} of {count}: {e}; {remedy}"))
        })?);
    }
    let after = side.store.resident_bytes();
    Ok(after.map(|after| after.saturating_sub(before) as f64 / count.max(1) as f64))
}

/// Raises the limit of open descriptors, as far as this user may.
fn allow_descriptors(count: usize) {
    let wanted = u64::try_from(count).unwrap_or(u64::MAX).saturating_add(DESCRIPTORS_SPARE);
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current.is_some_and(|current| current < wanted) {
        limit.current = Some(limit.maximum.map_or(wanted, |most| most.min(wanted)));
        // If it is refused, opening says so.
        let _ = setrlimit(Resource::Nofile, limit);
    }
}
