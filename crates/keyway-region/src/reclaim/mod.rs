mod evict;
mod limit;
mod purge;

pub use evict::Ages;
pub(crate) use evict::Reclaim;
#[cfg(all(test, feature = "observe"))]
pub(crate) use evict::Victim;
pub use limit::Shrinking;
pub(crate) use purge::Step;
