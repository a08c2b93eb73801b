//! Other people's conditions: what a process meets that shares a cache with programs it does not know.
//!
//! A *cell* is one region, an innocent *neighbour* in plain conditions, and an *odd* process in a condition ([`condition`]): its
//! descriptors closed and their numbers used again, another root, no /proc, namespaces, limits, forks, a wrong clock; on one of
//! several file systems ([`place`]). The odd process attaches, works, dies, sees another one die, and is there while the region
//! grows, is copied and is started again ([`cell::Action`]). Every value that either of them gets is judged ([`hand`]).
//!
//! Nothing here knows the region's layout: what is wrong shows as a value, an error, or a problem that the check finds.

pub mod cell;
pub mod condition;
pub mod hand;
pub mod ledger;
pub mod matrix;
pub mod place;
pub mod process;
pub mod system;
pub mod value;
