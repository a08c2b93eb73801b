//! Gets that find nothing and wait for a value that another thread, program or client of a server computes
//! (`KEYWAY_LIBMEMCACHED_WAIT_MS`). The thread that misses first gets its miss, and computes; whoever stores the key wakes the others.
//!
//! Never: knows libmemcached's types.

use keyway_cache::server::{Flight, Missed, ServerSession as _};
use keyway_cache::{Session, WriteError};
use std::cell::RefCell;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::say;

const VARIABLE: &str = "KEYWAY_LIBMEMCACHED_WAIT_MS";
/// Longest wait that can be asked for, milliseconds.
const WAIT_MS_MAX: u64 = 60_000;
/// Flights that a thread remembers as its own: with more it may wait for itself, as long as for others.
const OWN_MAX: usize = 64;

thread_local! {
    /// what this thread has missed last, and computes
    static OWN: RefCell<Vec<Flight>> = const { RefCell::new(Vec::new()) };
}

/// How long a get waits at most; `None`: it does not. It is read once.
fn longest_wait() -> Option<Duration> {
    static WAIT: OnceLock<Option<Duration>> = OnceLock::new();
    *WAIT.get_or_init(|| {
        let text = std::env::var(VARIABLE).ok()?;
        let wait = text.parse().ok().filter(|wait| (1..=WAIT_MS_MAX).contains(wait));
        if wait.is_none() {
            say::say(&format!(
                "{VARIABLE}={text} is ignored: it takes the milliseconds that a get may wait, from 1 to {WAIT_MS_MAX}"
            ));
        }
        wait.map(Duration::from_millis)
    })
}

/// After a get that has found nothing: waits while another computes, if gets wait. `get` looks again, and returns whether it has found a value.
pub fn after_miss(
    session: &mut Session,
    key: &[u8],
    mut get: impl FnMut(&mut Session) -> Result<bool, WriteError>,
) -> Result<bool, WriteError> {
    let Some(wait) = longest_wait() else { return Ok(false) };
    let deadline = Instant::now() + wait;
    let seconds = u32::try_from(wait.as_millis().div_ceil(1000))
        .unwrap_or(u32::MAX)
        .saturating_add(1);
    loop {
        match session.claim(key, seconds) {
            Ok(Missed::Claimed(flight)) => {
                OWN.with_borrow_mut(|own| {
                    if own.len() == OWN_MAX {
                        own.remove(0);
                    }
                    own.push(flight);
                });
                return Ok(false);
            }
            Ok(Missed::InFlight(flight, _)) if !OWN.with_borrow(|own| own.contains(&flight)) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Ok(false);
                }
                session.fetch_wait(key, left)?;
                if get(session)? {
                    return Ok(true);
                }
            }
            Ok(Missed::Present) => return get(session),
            // Its own, remembered that there is none, or no memory to note who computes: as without waiting.
            Ok(Missed::InFlight(..) | Missed::Absent) | Err(_) => return Ok(false),
        }
    }
}
