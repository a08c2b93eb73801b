//! A region's file: who may use it, its memory and mapping, which processes are alive, and what it contains. A session uses it only
//! after `attach`.
//!
//! Never: takes a thread slot, executes a verb.

pub(crate) mod backing;
pub(crate) mod blocks;
pub(crate) mod creation;
pub(crate) mod inspect;
pub(crate) mod limits;
pub(crate) mod liveness;
pub(crate) mod mapping;
pub(crate) mod nodes;
mod pages;
pub(crate) mod presence;
pub(crate) mod restart;
pub(crate) mod trust;
pub(crate) mod unfinished;
