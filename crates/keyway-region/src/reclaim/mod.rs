mod evict;
mod limit;
mod purge;

pub use evict::Ages;
#[cfg(all(test, feature = "observe"))]
pub(crate) use evict::Victim;
pub(crate) use evict::{Reclaim, SUPPLY};
pub use limit::Shrinking;
#[cfg(all(test, feature = "observe"))]
pub(crate) use purge::Step;
