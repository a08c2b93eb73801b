//! Fetches as data: what a caller accepts, what it is answered, and what it stores. `operations/fetch.rs` gives them their meaning.

use crate::layout::flight::Holder;
use crate::verbs::Item;

/// What a fetch accepts. Further fields may be added: end it with `..Freshness::default()`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Freshness {
    /// so many seconds after its expiry a value is returned while another caller computes the next one (RFC 5861,
    /// stale-while-revalidate)
    pub stale_s: u32,
    /// so many seconds after its expiry a value is given to the caller that computes, for the case that this fails (RFC 5861,
    /// stale-if-error); one that has not expired is given in any case
    pub old_s: u32,
    /// a value is refreshed before it expires if this times what it cost to compute is at least what is left; 0: never. For XFetch:
    /// beta times the negative logarithm of a random number
    pub early: f64,
    /// begin no flight
    pub only_look: bool,
    /// the caller is a server, one of whose clients computes, which stores by an ordinary set: a flight without a value is kept for so many
    /// seconds; 0: it computes itself
    pub client_s: u32,
}

/// The result of a fetch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fetched {
    /// a value
    Fresh(Item),
    /// a value that another caller is refreshing
    Stale(Item),
    /// it is known that there is no value
    Nothing,
    /// the caller computes, and ends the flight; with an item if there is an old value that `old_s` allows
    Compute(Flight, Option<Item>),
    /// another caller computes, in this flight, and there is no value that would do meanwhile
    Elsewhere(Flight),
    /// nobody computes, and the caller may not ([`Freshness::only_look`]); with an item if there is an old value, which `stale_s` allows
    Unclaimed(Option<Item>),
}

/// A flight: the right to store what was computed. It is void as soon as the key has another item, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flight {
    /// who computes; [`Holder::NONE`] for a server's client, whichever thread has answered it
    pub holder: Holder,
    /// CAS unique of the item in which that is noted
    pub serial: u64,
}

/// How a computed value is stored. Further fields may be added: end it with `..Refreshed::default()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refreshed {
    /// client flags
    pub flags: u32,
    /// exptime
    pub exptime: i64,
    /// it is kept so many seconds longer, for fetches only
    pub keep_s: u32,
    /// how long it took to compute, milliseconds; 0: not noted
    pub cost_ms: u32,
    /// the key is opaque bytes
    pub opaque_key: bool,
}
