//! Keyway's pairings of atomics under a checker that has the C11 memory model.
//!
//! [`pairings::ALL`] has a skeleton for every pairing that the region's sources name in a `PAIRS:` comment: the operations of the
//! code, in the code's order, on words of its own. loom tries every interleaving of its threads, and for each load every store that
//! the model lets it see. As the code has it nothing forbidden may be seen; then each ordering is weakened by one step, one at a time,
//! and the forbidden must be seen. So no ordering is too weak, and none is there without need. [`sources`] holds the comments against
//! the table: an ordering of the code that its pairing does not have, or the other way round, is a failure.
//!
//! Where a pairing says that something has happened before, the skeleton loads it (relaxed): a load that may still miss it is a
//! violation.
//!
//! # What it cannot see
//!
//! - The skeletons are written by hand. That the code takes these steps in this order is for review, and for the tools that run the
//!   code itself (`schedules`, `kill-points`, `storm`), which see no weak memory.
//! - loom treats sequentially consistent accesses as acquire and release. Between a store and a later load of one thread that both
//!   are, a skeleton has a fence. That is a little stronger: where it hides something, the table argues.
//! - loom's stores become visible in the order in which they are made, for each word, and no load is made after a later store of its
//!   thread. So an order of two stores, or of a load and a later store, is shown by a store beside it that must not be missed.
//! - Accesses of different widths (a header's half words under a copy by 16 bytes) and the payload's copies in machine code are outside
//!   of the C11 model. On x86-64 the hazard pointer's fence is an exchange: a full barrier for the processor, and for the compiler a
//!   sequentially consistent access that it moves nothing across. membarrier(2) and the compiler fence that it completes are two fences.
//! - What a dead process had stored is visible to those that know of its death: the kernel has ordered that.

pub mod pairings;
pub mod sources;
pub mod world;

use pairings::{ALL, BROKEN, Pairing, Shape};
use world::Trial;

/// What a trial came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// the forbidden was not seen, as it should be: nothing was weakened
    Sound,
    /// the forbidden was seen: the ordering is needed
    Caught,
    /// it was not seen, and the table says why the ordering is needed all the same
    Argued(&'static str),
    /// the trial did not end as it must
    Failed(&'static str),
}

/// One line of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// the pairing
    pub pairing: &'static str,
    /// the operation, its ordering in the code, and the one that was tried; `None`: as in the code
    pub weakened: Option<(&'static str, Shape, Shape)>,
    /// what it came to
    pub verdict: Verdict,
}

/// Tries a pairing as it is, and with each of its own orderings weakened.
pub fn try_pairing(pairing: &'static Pairing, mut told: impl FnMut(Row)) {
    let found = world::run(Trial { pairing, weakened: None });
    told(Row {
        pairing: pairing.name,
        weakened: None,
        verdict: match (found.violated, found.reached) {
            (true, _) => Verdict::Failed("the forbidden is seen"),
            (false, false) => Verdict::Failed("what it is about is not met: it shows nothing"),
            (false, true) => Verdict::Sound,
        },
    });
    for operation in pairing.operations.iter().filter(|operation| !operation.elsewhere) {
        for weaker in operation.shape.weaker() {
            let found = world::run(Trial {
                pairing,
                weakened: Some((operation.name, weaker)),
            });
            told(Row {
                pairing: pairing.name,
                weakened: Some((operation.name, operation.shape, weaker)),
                verdict: match (found.violated, operation.argued) {
                    (true, None) => Verdict::Caught,
                    (false, Some(why)) => Verdict::Argued(why),
                    (true, Some(_)) => Verdict::Failed("the table argues what the checker sees: leave the argument out"),
                    (false, None) => {
                        Verdict::Failed("nothing forbidden is seen: the ordering is not needed, or the skeleton lacks a step")
                    }
                },
            });
        }
    }
}

/// Tries all of them, and the broken ones, which must be rejected.
pub fn try_all(mut told: impl FnMut(Row)) {
    for pairing in ALL {
        try_pairing(pairing, &mut told);
    }
}

/// The broken skeletons that the checker lets pass: there must be none.
pub fn passed_though_broken() -> Vec<&'static str> {
    let is_rejected = |pairing: &&'static Pairing| {
        let weakened = None;
        world::run(Trial { pairing, weakened }).violated
    };
    let passed = BROKEN.iter().filter(|pairing| !is_rejected(pairing));
    passed.map(|pairing| pairing.says).collect()
}
