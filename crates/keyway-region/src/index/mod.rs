mod evicted;
mod hints;
mod lookup;
mod persist;
mod publish;
mod quick;
mod split;

pub(crate) use evicted::Evicted;
pub(crate) use hints::{HINT_FETCHED, HINT_OLD, HINT_SECONDS, HINT_UNIT_S, HINT_UNITS};
pub(crate) use lookup::{Found, Hit, Look, Place};
pub(crate) use publish::{Changed, Decision, Old};
