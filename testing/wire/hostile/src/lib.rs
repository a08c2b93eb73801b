//! Clients and region files that mean harm, or are broken: see `tests/`. What they share is a client of ordinary manners, which
//! must be served whatever the others do.

use harness::Wire;

/// A few ordinary requests, each answered as it must be.
///
/// # Panics
///
/// When one is not, or not within the deadline.
pub fn is_served(wire: &mut Wire, round: usize) {
    let value = format!("value {round}");
    let stored = wire.ask(&format!("set ordinary 5 0 {}\r\n{value}", value.len()));
    assert_eq!(stored.expect("set is answered"), "STORED");
    assert_eq!(
        wire.ask("get ordinary").expect("get is answered"),
        format!("VALUE ordinary 5 {}", value.len())
    );
    assert_eq!(wire.line().expect("a value"), value.as_bytes());
    assert_eq!(wire.line().expect("an end"), b"END");
    assert_eq!(wire.ask("delete ordinary").expect("delete is answered"), "DELETED");
    assert_eq!(wire.ask("mn").expect("mn is answered"), "MN");
}
