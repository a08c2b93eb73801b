//! The pairings: name, operations with their orderings as in the code, and the skeleton that shows what each is for.
//!
//! A skeleton has the operations of the code in the code's order, on words of its own. What it forbids is in `says`.
//! `docs/concurrency.md` has a row for each pairing.

use crate::world::{Thread, World};
use loom::sync::atomic::Ordering::{self, AcqRel, Acquire, Relaxed, Release, SeqCst};

/// What an operation is, and how it is ordered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// a load
    Load(Ordering),
    /// a store
    Store(Ordering),
    /// a read-modify-write, by its ordering when it is done
    Exchange(Ordering),
    /// a fence
    Fence(Ordering),
    /// left out
    None,
}

impl Shape {
    /// What is weaker by one step: what the checker tries. What is weaker still is caught too, because it allows more.
    pub fn weaker(self) -> Vec<Self> {
        match self {
            Self::Load(SeqCst) => vec![Self::Load(Acquire)],
            Self::Load(_) => vec![Self::Load(Relaxed)],
            Self::Store(SeqCst) => vec![Self::Store(Release)],
            Self::Store(_) => vec![Self::Store(Relaxed)],
            Self::Exchange(SeqCst) => vec![Self::Exchange(AcqRel)],
            Self::Exchange(AcqRel) => vec![Self::Exchange(Acquire), Self::Exchange(Release)],
            Self::Exchange(_) => vec![Self::Exchange(Relaxed)],
            Self::Fence(SeqCst) => vec![Self::Fence(AcqRel)],
            Self::Fence(_) | Self::None => vec![Self::None],
        }
    }
}

/// An ordered operation.
#[derive(Debug)]
pub struct Operation {
    /// what the skeleton calls it
    pub name: &'static str,
    /// as in the code
    pub shape: Shape,
    /// it is another pairing's, which weakens it; here it is on the way
    pub elsewhere: bool,
    /// it is needed as it is, though the checker cannot see why
    pub argued: Option<&'static str>,
}

/// A pairing.
pub struct Pairing {
    /// as in the code's `PAIRS:` comments
    pub name: &'static str,
    /// what it makes true
    pub says: &'static str,
    /// what of it is ordered
    pub operations: &'static [Operation],
    /// words that are not zero at first
    pub initial: &'static [(usize, usize)],
    /// its threads; the last one is the model's first thread
    pub threads: &'static [Thread],
    /// what is judged when all have ended
    pub end: Thread,
}

const fn of(name: &'static str, shape: Shape) -> Operation {
    Operation {
        name,
        shape,
        elsewhere: false,
        argued: None,
    }
}

const fn elsewhere(name: &'static str, shape: Shape) -> Operation {
    Operation {
        name,
        shape,
        elsewhere: true,
        argued: None,
    }
}

const fn argued(name: &'static str, shape: Shape, why: &'static str) -> Operation {
    Operation {
        name,
        shape,
        elsewhere: false,
        argued: Some(why),
    }
}

/// Why the accesses beside the fences of `flight` have an order of their own.
const BESIDE_A_FENCE: &str =
    "the fences order it; as all accesses to the word have one order, a count of ends that is read twice is no later one";

/// Nothing is left to be judged.
fn judged(_: &World) {}

// What words of several skeletons are called. A skeleton uses each for one thing.
const SLOT: usize = 0;
const STATE: usize = 1;
const LEASE: usize = 2;
const HAZARD: usize = 3;
const WORD: usize = 4;
const BYTES: usize = 5;
const OTHER: usize = 6;
const HEADER: usize = 7;
const THREADS: usize = 8;
const LINK: usize = 9;

// Values of states.
const FREE: usize = 0;
const CLAIMED: usize = 1;
const OPEN: usize = 2;
const RETIRED: usize = 3;
const LARGE: usize = 4;
const LARGE_OWNED: usize = 5;

/// All of them, by the name that the code's comments give.
pub const ALL: &[Pairing] = &[
    Pairing {
        name: "item",
        says: "a thread that sees a slot's word sees the item, also through a word whose frequency was raised, or that a split copied",
        operations: &[of("publish", Shape::Exchange(Release)), of("slot", Shape::Load(Acquire))],
        initial: &[],
        threads: &[
            |w| {
                w.put(BYTES, 1);
                w.exchange(SLOT, 0, 1, "publish");
            },
            |w| {
                // A hit, and a split's copy to another bucket.
                w.swap(SLOT, 1, 2);
                if w.load(SLOT, "slot") != 0 {
                    w.exchange(OTHER, 0, 1, "publish");
                }
            },
            |w| {
                if w.load(OTHER, "slot") != 0 || w.load(SLOT, "slot") != 0 {
                    w.reached();
                    w.violated(w.look(BYTES) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "once",
        says: "a thread of a process that finds what another one has made for all of them finds it whole",
        operations: &[
            of("publish", Shape::Exchange(Release)),
            of("name", Shape::Store(Release)),
            of("found", Shape::Load(Acquire)),
        ],
        initial: &[],
        threads: &[
            |w| {
                w.put(BYTES, 1);
                w.exchange(SLOT, 0, 1, "publish");
            },
            |w| {
                w.put(HEADER, 1);
                w.store(OTHER, 1, "name");
            },
            |w| {
                if w.load(SLOT, "found") != 0 {
                    w.reached();
                    w.violated(w.look(BYTES) != 1);
                }
                if w.load(OTHER, "found") != 0 {
                    w.reached();
                    w.violated(w.look(HEADER) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "changes",
        says: "a thread that sees a change of one key sees what its maker had changed of others before",
        operations: &[
            of("removal", Shape::Exchange(Release)),
            elsewhere("slot", Shape::Load(Acquire)),
        ],
        initial: &[(SLOT, 1)],
        threads: &[
            |w| {
                w.swap(OTHER, 0, 1);
                w.exchange(SLOT, 1, 0, "removal");
            },
            |w| {
                if w.load(SLOT, "slot") == 0 {
                    w.reached();
                    w.violated(w.look(OTHER) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "told",
        says: "a watcher that sees a later stamp, and no session that is about to tell, sees the event",
        operations: &[
            of("draw", Shape::Exchange(Release)),
            of("end", Shape::Store(Release)),
            of("stamps", Shape::Load(Acquire)),
            of("telling", Shape::Load(Acquire)),
        ],
        initial: &[],
        threads: &[
            |w| {
                w.put(WORD, 1);
                w.exchange(STATE, 0, 1, "draw");
                w.put(BYTES, 1);
                w.store(WORD, 0, "end");
            },
            |w| {
                if w.load(STATE, "stamps") == 1 && w.load(WORD, "telling") == 0 {
                    w.reached();
                    w.violated(w.look(BYTES) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "cell",
        says: "a watcher that finds the same tag before and after it has read a cell's words has read that event's",
        operations: &[
            of("writer's fence", Shape::Fence(Release)),
            of("tag", Shape::Store(Release)),
            of("tag read", Shape::Load(Acquire)),
            of("reader's fence", Shape::Fence(Acquire)),
        ],
        initial: &[(HEADER, 1), (BYTES, 1)],
        threads: &[
            |w| {
                w.put(HEADER, 0);
                w.fence("writer's fence");
                w.put(BYTES, 2);
                w.store(HEADER, 2, "tag");
            },
            |w| {
                let tag = w.load(HEADER, "tag read");
                let bytes = w.look(BYTES);
                w.fence("reader's fence");
                if tag != 0 && w.look(HEADER) == tag {
                    w.reached();
                    w.violated(bytes != tag);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "ring",
        says: "a watcher that sees that an event is counted sees that its cells are, and sees the cells",
        operations: &[
            of("cells", Shape::Store(Release)),
            of("events", Shape::Store(Release)),
            of("events read", Shape::Load(Acquire)),
            of("cells read", Shape::Load(Acquire)),
        ],
        initial: &[],
        threads: &[
            |w| {
                w.put(BYTES, 1);
                w.store(HEADER, 1, "cells");
                w.store(WORD, 1, "events");
            },
            |w| {
                let events = w.load(WORD, "events read");
                let cells = w.load(HEADER, "cells read");
                if cells == 1 {
                    w.reached();
                    w.violated(w.look(BYTES) != 1);
                }
                w.violated(events == 1 && cells != 1);
            },
        ],
        end: judged,
    },
    Pairing {
        name: "dead-mark",
        says: "a reclaim that finds an item marked dead need not look for its word: no slot has it any more",
        operations: &[of("mark", Shape::Store(Release)), of("header", Shape::Load(Acquire))],
        initial: &[(SLOT, 1)],
        threads: &[
            |w| {
                w.swap(SLOT, 1, 0);
                w.store(HEADER, 1, "mark");
            },
            |w| {
                if w.load(HEADER, "header") == 1 {
                    w.reached();
                    w.violated(w.look(SLOT) == 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "generation",
        says: "a reader of new bytes sees the new generation; a word that still stands in its slot after the segment's word was read is of \
               the generation that was read, whether the recycler or the segment's next owner wrote that",
        operations: &[
            of("segment word", Shape::Load(Acquire)),
            of("owner's fence", Shape::Fence(Release)),
            of("reader's fence", Shape::Fence(Acquire)),
            elsewhere("recycler's fence", Shape::Fence(SeqCst)),
            elsewhere("free", Shape::Store(Release)),
            elsewhere("claim", Shape::Exchange(AcqRel)),
        ],
        initial: &[(SLOT, 1), (WORD, 1), (STATE, CLAIMED)],
        threads: &[
            |w| {
                w.swap(SLOT, 1, 0);
                w.fence("recycler's fence");
                w.put(WORD, 2);
                w.store(STATE, FREE, "free");
            },
            |w| {
                if w.exchange(STATE, FREE, OPEN, "claim") {
                    w.fence("owner's fence");
                    w.put(BYTES, 2);
                    w.put(WORD, 3);
                }
            },
            |w| {
                let before = w.load(WORD, "segment word");
                let slot = w.look(SLOT);
                w.violated(before != 1 && slot == 1);
                let bytes = w.look(BYTES);
                w.fence("reader's fence");
                if before == 1 && bytes == 2 {
                    w.reached();
                    w.violated(w.look(WORD) == 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "hazard",
        says: "either a writer finds its slot changed, or the recycler finds the writer's hazard, in a slot that it knows of and sees leased",
        operations: &[
            of("writer's fence", Shape::Fence(SeqCst)),
            of("recycler's fence", Shape::Fence(SeqCst)),
        ],
        initial: &[(SLOT, 1)],
        threads: &[
            |w| {
                // A session begins: `threads`, its lease, its hazard pointers cleared; and then an operation.
                w.swap(THREADS, 0, 1);
                w.swap(LEASE, 0, 1);
                w.put(HAZARD, 1);
                w.fence("writer's fence");
                w.fact(0, w.look(SLOT) == 1);
            },
            |w| {
                w.swap(SLOT, 1, 0);
                w.fence("recycler's fence");
                let intended = w.look(THREADS) == 1 && w.look(HAZARD) == 1 && w.look(LEASE) == 1;
                if intended {
                    w.reached();
                }
                w.fact(1, !intended);
            },
        ],
        end: |w| w.violated(w.is(0) && w.is(1)),
    },
    Pairing {
        name: "hazard-end",
        says: "a recycler that finds an hazard ended comes after everything that was done under it",
        operations: &[of("end", Shape::Store(Release)), of("hazards", Shape::Load(Acquire))],
        initial: &[(HAZARD, 1)],
        threads: &[
            |w| {
                w.put(HEADER, 1);
                w.store(HAZARD, 0, "end");
            },
            |w| {
                if w.load(HAZARD, "hazards") == 0 {
                    w.reached();
                    w.violated(w.look(HEADER) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "tenant",
        says: "a thread that sees a slot leased sees the process's incarnation that the lease names, so it takes no living tenant for an \
               earlier one's",
        operations: &[of("lease", Shape::Exchange(Release)), of("leases", Shape::Load(Acquire))],
        initial: &[],
        threads: &[
            |w| {
                w.swap(OTHER, 0, 1);
                w.exchange(LEASE, 0, 1, "lease");
            },
            |w| {
                if w.load(LEASE, "leases") == 1 {
                    w.reached();
                    w.violated(w.look(OTHER) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "tenancy",
        says: "a process that sees how a process slot's lock is held sees who holds it; one that finds no tenant comes after its last session",
        operations: &[of("identify", Shape::Exchange(Release)), of("tenancy", Shape::Load(Acquire))],
        initial: &[(OTHER, 1)],
        threads: &[
            |w| {
                w.put(WORD, 1);
                w.exchange(OTHER, 1, 2, "identify");
            },
            |w| {
                if w.load(OTHER, "tenancy") == 2 {
                    w.reached();
                    w.violated(w.look(WORD) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "vacate",
        says: "a thread that finds a slot vacated, or takes it, comes after everything that its last tenant did",
        operations: &[of("vacate", Shape::Exchange(Release)), of("leases", Shape::Load(Acquire))],
        initial: &[(LEASE, 1)],
        threads: &[
            |w| {
                w.put(BYTES, 1);
                w.exchange(LEASE, 1, 2, "vacate");
            },
            |w| {
                if w.load(LEASE, "leases") == 2 {
                    w.reached();
                    w.violated(w.look(BYTES) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "owner",
        says: "a thread that sees a segment claimed sees its owner's lease, so it takes no living owner for a dead one; a thread that claims \
               a free segment comes after what was done in it before",
        operations: &[
            of("claim", Shape::Exchange(AcqRel)),
            of("free", Shape::Store(Release)),
            of("states", Shape::Load(Acquire)),
        ],
        initial: &[(STATE, RETIRED)],
        threads: &[
            |w| {
                w.put(WORD, 2);
                w.store(STATE, FREE, "free");
            },
            |w| {
                w.swap(LEASE, 0, 1);
                if w.exchange(STATE, FREE, CLAIMED, "claim") {
                    w.violated(w.look(WORD) != 2);
                }
            },
            |w| {
                if w.load(STATE, "states") == CLAIMED {
                    w.reached();
                    w.violated(w.look(LEASE) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "retire",
        says: "the thread that goes on with a reclaim sees how far it has come, also if another one gave the segment back in between",
        operations: &[
            of("retire", Shape::Store(Release)),
            elsewhere("claim", Shape::Exchange(AcqRel)),
        ],
        initial: &[(STATE, CLAIMED)],
        threads: &[
            |w| {
                w.put(OTHER, 1);
                w.store(STATE, RETIRED, "retire");
            },
            |w| {
                if w.exchange(STATE, RETIRED, OPEN, "claim") {
                    w.store(STATE, RETIRED, "retire");
                }
            },
            |w| {
                if w.exchange(STATE, RETIRED, CLAIMED, "claim") {
                    w.reached();
                    w.violated(w.look(OTHER) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "open",
        says: "a thread that sees a segment open sees its words, and leases in it",
        operations: &[of("open", Shape::Store(Release)), of("states", Shape::Load(Acquire))],
        initial: &[(STATE, CLAIMED)],
        threads: &[
            |w| {
                w.put(WORD, 1);
                w.store(STATE, OPEN, "open");
            },
            |w| {
                if w.load(STATE, "states") == OPEN {
                    w.reached();
                    w.violated(w.look(WORD) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "open-hint",
        says: "a thread that is led to an open segment finds it open, and gives up no segment that has room",
        operations: &[of("hint", Shape::Exchange(Release)), of("hints", Shape::Load(Acquire))],
        initial: &[],
        threads: &[
            |w| {
                w.put(STATE, OPEN);
                w.exchange(OTHER, 0, 1, "hint");
            },
            |w| {
                if w.load(OTHER, "hints") == 1 {
                    w.reached();
                    w.violated(w.look(STATE) != OPEN);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "extent",
        says: "a thread that sees an extent's header sees whose it is: the incarnation in its tail, and that one's lease",
        operations: &[of("header", Shape::Store(Release)), of("headers", Shape::Load(Acquire))],
        initial: &[],
        threads: &[
            |w| {
                w.swap(LEASE, 0, 1);
                w.put(OTHER, 1);
                w.store(HEADER, 1, "header");
            },
            |w| {
                if w.load(HEADER, "headers") == 1 {
                    w.reached();
                    w.violated(w.look(OTHER) != 1 || w.look(LEASE) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "tail",
        says: "a walker that sees an extent's tail sees whole items before it",
        operations: &[of("tail", Shape::Store(Release)), of("tails", Shape::Load(Acquire))],
        initial: &[],
        threads: &[
            |w| {
                w.put(BYTES, 1);
                w.store(OTHER, 1, "tail");
            },
            |w| {
                if w.load(OTHER, "tails") == 1 {
                    w.reached();
                    w.violated(w.look(BYTES) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "closed",
        says: "a recycler that sees an extent closed sees every publish from it, and the hazard of the thread that has yet to publish",
        operations: &[of("close", Shape::Store(Release)), elsewhere("headers", Shape::Load(Acquire))],
        initial: &[(HEADER, 1)],
        threads: &[
            |w| {
                w.swap(SLOT, 0, 1);
                w.put(HAZARD, 1);
                w.store(HEADER, 2, "close");
            },
            |w| {
                if w.load(HEADER, "headers") == 2 {
                    w.reached();
                    w.violated(w.look(SLOT) != 1 || w.look(HAZARD) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "dead-extent",
        says: "a recycler that sees an extent closed for its dead owner sees every publish from it",
        operations: &[
            elsewhere("vacate", Shape::Exchange(Release)),
            elsewhere("leases", Shape::Load(Acquire)),
            of("close", Shape::Exchange(Release)),
            elsewhere("headers", Shape::Load(Acquire)),
        ],
        initial: &[(HEADER, 1)],
        threads: &[
            |w| {
                w.swap(SLOT, 0, 1);
                w.exchange(LEASE, 0, 1, "vacate");
            },
            |w| {
                if w.load(LEASE, "leases") == 1 {
                    w.exchange(HEADER, 1, 2, "close");
                }
            },
            |w| {
                if w.load(HEADER, "headers") == 2 {
                    w.reached();
                    w.violated(w.look(SLOT) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "leasing",
        says: "a recycler that finds cells leased, and no hazard to write a header there, finds the header",
        operations: &[
            of("lease", Shape::Exchange(Release)),
            of("leases", Shape::Load(Acquire)),
            of("hazards", Shape::Load(Acquire)),
            elsewhere("end", Shape::Store(Release)),
        ],
        initial: &[],
        threads: &[
            |w| {
                w.put(HAZARD, 1);
                w.exchange(LEASE, 0, 1, "lease");
                w.put(HEADER, 1);
                w.store(HAZARD, 0, "end");
            },
            |w| {
                if w.load(LEASE, "leases") == 1 && w.load(HAZARD, "hazards") == 0 {
                    w.reached();
                    w.violated(w.look(HEADER) == 0);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "chain",
        says: "a thread that frees a large value's segment frees it in the life in which it was the value's: either it finds the segment \
               claimed or of another generation, or its claimer finds the hazard and bumps nothing",
        operations: &[
            elsewhere("walker's fence", Shape::Fence(SeqCst)),
            of("link's fence", Shape::Fence(Acquire)),
            of("claimer's fence", Shape::Fence(SeqCst)),
            elsewhere("owner's fence", Shape::Fence(Release)),
            elsewhere("free", Shape::Store(Release)),
            elsewhere("claim", Shape::Exchange(AcqRel)),
            elsewhere("large", Shape::Store(Release)),
        ],
        initial: &[(STATE, LARGE), (WORD, 1), (LINK, 1)],
        threads: &[
            |w| {
                if w.swap(STATE, LARGE, CLAIMED) {
                    w.fence("claimer's fence");
                    if w.look(HAZARD) == 0 {
                        w.fact(0, true);
                        w.put(WORD, 2);
                        w.store(STATE, FREE, "free");
                    }
                }
            },
            |w| {
                // Another value takes it.
                if w.exchange(STATE, FREE, LARGE_OWNED, "claim") {
                    w.fence("owner's fence");
                    w.put(LINK, 2);
                    w.store(STATE, LARGE, "large");
                }
            },
            |w| {
                w.put(HAZARD, 1);
                w.fence("walker's fence");
                let (state, link) = (w.look(STATE), w.look(LINK));
                w.fence("link's fence");
                if w.look(WORD) == 1 {
                    w.violated(link != 1);
                    w.fact(1, state == LARGE && w.swap(STATE, LARGE, CLAIMED));
                    if w.is(1) {
                        w.reached();
                    }
                }
            },
        ],
        end: |w| w.violated(w.is(0) && w.is(1)),
    },
    Pairing {
        name: "large",
        says: "a thread that finds a large value's segment sees whose value it is, and which key's",
        operations: &[of("large", Shape::Store(Release)), of("states", Shape::Load(Acquire))],
        initial: &[(STATE, CLAIMED)],
        threads: &[
            |w| {
                w.put(LINK, 1);
                w.store(STATE, LARGE_OWNED, "large");
            },
            |w| {
                if w.load(STATE, "states") == LARGE_OWNED {
                    w.reached();
                    w.violated(w.look(LINK) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "chain-owner",
        says: "a thread that finds a large value's segment without an owner finds the item that leads to it",
        operations: &[
            of("disown", Shape::Exchange(Release)),
            elsewhere("states", Shape::Load(Acquire)),
        ],
        initial: &[(STATE, LARGE_OWNED)],
        threads: &[
            |w| {
                w.swap(SLOT, 0, 1);
                w.exchange(STATE, LARGE_OWNED, LARGE, "disown");
            },
            |w| {
                if w.load(STATE, "states") == LARGE {
                    w.reached();
                    w.violated(w.look(SLOT) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "directory",
        says: "a thread that reaches a segment of the index sees its zeros, and so do the threads of its process that it tells",
        operations: &[
            of("entry", Shape::Exchange(Release)),
            of("entries", Shape::Load(Acquire)),
            of("note", Shape::Store(Release)),
            of("notes", Shape::Load(Acquire)),
        ],
        initial: &[(BYTES, 9)],
        threads: &[
            |w| {
                w.put(BYTES, 0);
                w.exchange(OTHER, 0, 1, "entry");
            },
            |w| {
                if w.load(OTHER, "entries") == 1 {
                    w.violated(w.look(BYTES) != 0);
                    w.store(THREADS, 1, "note");
                }
            },
            |w| {
                if w.load(THREADS, "notes") == 1 {
                    w.reached();
                    w.violated(w.look(BYTES) != 0);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "segments",
        says: "a thread that believes the number of segments finds their words there, and so do the threads of its process that it tells",
        operations: &[
            of("number", Shape::Exchange(Release)),
            of("numbers", Shape::Load(Acquire)),
            of("know", Shape::Exchange(Release)),
            of("known", Shape::Load(Acquire)),
        ],
        initial: &[],
        threads: &[
            |w| {
                w.put(WORD, 1);
                w.exchange(OTHER, 0, 1, "number");
            },
            |w| {
                if w.load(OTHER, "numbers") == 1 {
                    w.violated(w.look(WORD) != 1);
                    w.exchange(THREADS, 0, 1, "know");
                }
            },
            |w| {
                if w.load(THREADS, "known") == 1 {
                    w.reached();
                    w.violated(w.look(WORD) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "table",
        says: "a thread that counts a new bucket sees it filled, whichever of the split's helpers filled it",
        operations: &[of("table", Shape::Exchange(Release)), of("tables", Shape::Load(Acquire))],
        initial: &[],
        threads: &[
            |w| {
                w.swap(SLOT, 0, 1);
            },
            |w| {
                // Another helper has filled the slot, or this one does.
                w.swap(SLOT, 0, 1);
                w.exchange(OTHER, 0, 1, "table");
            },
            |w| {
                if w.load(OTHER, "tables") == 1 {
                    w.reached();
                    w.violated(w.look(SLOT) == 0);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "split",
        says: "a thread that finds a slot emptied by a split sees the split's count of buckets, and looks in the new one",
        operations: &[
            of("repair", Shape::Exchange(Release)),
            elsewhere("slot", Shape::Load(Acquire)),
        ],
        initial: &[(SLOT, 1)],
        threads: &[
            |w| {
                w.swap(OTHER, 0, 1);
                w.exchange(SLOT, 1, 0, "repair");
            },
            |w| {
                // An insert into it that is aborted.
                if w.swap(SLOT, 0, 2) {
                    w.swap(SLOT, 2, 0);
                }
            },
            |w| {
                if w.load(SLOT, "slot") == 0 {
                    w.reached();
                    w.violated(w.look(OTHER) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "freeze",
        says: "a thread that finds a slot frozen sees the count of buckets for which it was, so it takes no later split for one that is done",
        operations: &[
            of("freeze", Shape::Exchange(Release)),
            elsewhere("slot", Shape::Load(Acquire)),
        ],
        initial: &[(SLOT, 1)],
        threads: &[
            |w| {
                w.swap(OTHER, 0, 1);
                w.exchange(SLOT, 1, 2, "freeze");
            },
            |w| {
                if w.load(SLOT, "slot") == 2 {
                    w.reached();
                    w.violated(w.look(OTHER) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "settled",
        says: "a thread that finds a word without the bit for \"may not be persistent\" comes after the barrier that made it so",
        operations: &[
            of("settle", Shape::Exchange(Release)),
            elsewhere("slot", Shape::Load(Acquire)),
        ],
        initial: &[(SLOT, 2)],
        threads: &[
            |w| {
                w.put(BYTES, 1);
                w.exchange(SLOT, 2, 1, "settle");
            },
            |w| {
                if w.load(SLOT, "slot") == 1 {
                    w.reached();
                    w.violated(w.look(BYTES) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "twins",
        says: "of two inserters of one key at least one sees the other's tentative word",
        operations: &[of("tentative", Shape::Exchange(SeqCst)), of("rescan", Shape::Load(SeqCst))],
        initial: &[],
        threads: &[
            |w| {
                w.exchange(SLOT, 0, 1, "tentative");
                w.fact(0, w.load(OTHER, "rescan") == 0);
            },
            |w| {
                w.exchange(OTHER, 0, 1, "tentative");
                w.fact(1, w.load(SLOT, "rescan") == 0);
                w.reached();
            },
        ],
        end: |w| w.violated(w.is(0) && w.is(1)),
    },
    Pairing {
        name: "flight",
        says: "either a caller that is about to wait finds the flight ended, or the thread that ends it finds the word armed",
        operations: &[
            of("waiter's fence", Shape::Fence(SeqCst)),
            of("waker's fence", Shape::Fence(SeqCst)),
            argued("arm", Shape::Exchange(SeqCst), BESIDE_A_FENCE),
            argued("word", Shape::Load(SeqCst), BESIDE_A_FENCE),
        ],
        initial: &[],
        threads: &[
            |w| {
                w.exchange(WORD, 0, 1, "arm");
                w.fence("waiter's fence");
                w.fact(0, w.look(SLOT) == 0);
            },
            |w| {
                w.put(SLOT, 1);
                w.fence("waker's fence");
                let is_armed = w.load(WORD, "word") == 1;
                if is_armed {
                    w.reached();
                }
                w.fact(1, !is_armed);
            },
        ],
        end: |w| w.violated(w.is(0) && w.is(1)),
    },
    Pairing {
        name: "place",
        says: "a thread that takes a place under a limit, or sees it free, comes after the one that has given it back",
        operations: &[of("give or take", Shape::Exchange(AcqRel)), of("place", Shape::Load(Acquire))],
        initial: &[(WORD, 1)],
        threads: &[
            |w| {
                w.put(BYTES, 1);
                w.exchange(WORD, 1, 0, "give or take");
            },
            |w| {
                if w.exchange(WORD, 0, 2, "give or take") {
                    w.reached();
                    w.violated(w.look(BYTES) != 1);
                }
            },
            |w| {
                if w.load(WORD, "place") == 0 {
                    w.violated(w.look(BYTES) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "row",
        says: "of two callers that take rows for one prefix at least one sees the other's",
        operations: &[
            of("own", Shape::Exchange(SeqCst)),
            of("others", Shape::Load(SeqCst)),
            argued(
                "prefix",
                Shape::Load(Acquire),
                "nothing is read after it: a caller that still sees an earlier prefix enters again",
            ),
        ],
        initial: &[],
        threads: &[
            |w| {
                w.exchange(SLOT, 0, 1, "own");
                w.fact(0, w.load(OTHER, "others") == 0);
            },
            |w| {
                w.exchange(OTHER, 0, 1, "own");
                w.fact(1, w.load(SLOT, "others") == 0);
                w.reached();
            },
        ],
        end: |w| w.violated(w.is(0) && w.is(1)),
    },
    Pairing {
        name: "third",
        says: "of two inserters of one key, one of them in its third bucket, at least one sees the other",
        operations: &[
            argued(
                "announce",
                Shape::Store(SeqCst),
                "with a fence for the tentative word's ordering it is before the fence in any case; C11 orders accesses that are \
                 sequentially consistent with each other only, so without this one the other inserter may read \"no\"",
            ),
            of("thirds", Shape::Load(SeqCst)),
            elsewhere("tentative", Shape::Exchange(SeqCst)),
            elsewhere("rescan", Shape::Load(SeqCst)),
        ],
        initial: &[],
        threads: &[
            |w| {
                w.exchange(SLOT, 0, 1, "tentative");
                w.fact(0, w.load(BYTES, "thirds") == 0 || w.load(OTHER, "rescan") == 0);
            },
            |w| {
                w.store(BYTES, 1, "announce");
                w.exchange(OTHER, 0, 1, "tentative");
                w.fact(1, w.load(SLOT, "rescan") == 0);
                w.reached();
            },
        ],
        end: |w| w.violated(w.is(0) && w.is(1)),
    },
    Pairing {
        name: "record",
        says: "a thread that undoes what a session has on record sees the word, and one that sees the record settled sees the slot so",
        operations: &[
            of("pend", Shape::Store(Release)),
            of("settle", Shape::Store(Release)),
            of("pending", Shape::Load(Acquire)),
        ],
        initial: &[(SLOT, 1), (OTHER, 7)],
        threads: &[
            |w| {
                w.swap(SLOT, 1, 0);
                w.store(OTHER, 0, "settle");
                w.put(WORD, 1);
                w.store(OTHER, 8, "pend");
            },
            |w| match w.load(OTHER, "pending") {
                0 => w.violated(w.look(SLOT) == 1),
                8 => {
                    w.reached();
                    w.violated(w.look(WORD) != 1);
                }
                _ => {}
            },
        ],
        end: judged,
    },
    Pairing {
        name: "sweep",
        says: "a sweep that was asked for after a death takes nothing of the dead for a living thread's",
        operations: &[of("ask", Shape::Store(Release)), of("asked", Shape::Load(Acquire))],
        initial: &[(LEASE, 1)],
        threads: &[
            |w| {
                w.swap(LEASE, 1, 2);
                w.store(OTHER, 1, "ask");
            },
            |w| {
                if w.load(OTHER, "asked") == 1 {
                    w.reached();
                    w.violated(w.look(LEASE) == 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "door",
        says: "the process that turned the door on copies nothing before it sees every change that was not counted; an operation that begins \
               after the door was turned off comes after the last answer from a copy",
        operations: &[
            of("session's fence", Shape::Fence(SeqCst)),
            elsewhere("fence everywhere", Shape::Fence(SeqCst)),
            of("door off", Shape::Exchange(Release)),
            of("door word", Shape::Load(Acquire)),
            of("leave", Shape::Store(Release)),
            of("acknowledge", Shape::Store(Release)),
            of("sessions", Shape::Load(Acquire)),
        ],
        initial: &[(BYTES, 1)],
        threads: &[
            |w| {
                // An operation of a session that counts nothing yet, and one that acknowledges.
                w.put(HAZARD, 1);
                w.fence("session's fence");
                let door = w.load(WORD, "door word");
                match door {
                    0 => {
                        w.swap(SLOT, 0, 1);
                        w.fact(0, true);
                    }
                    2 => w.violated(w.look(BYTES) == 1),
                    _ => {}
                }
                w.store(HAZARD, 0, "leave");
                if door == 0 && w.look(WORD) == 1 {
                    w.store(OTHER, 1, "acknowledge");
                }
            },
            |w| {
                w.swap(WORD, 0, 1);
                w.fence("fence everywhere");
                let acknowledged = w.load(OTHER, "sessions") == 1 || w.load(HAZARD, "sessions") == 0;
                if acknowledged {
                    w.reached();
                    w.fact(1, w.look(SLOT) == 0);
                }
                // Nothing is answered any more; then it is turned off.
                w.put(BYTES, 0);
                w.exchange(WORD, 1, 2, "door off");
            },
        ],
        end: |w| w.violated(w.is(0) && w.is(1)),
    },
    Pairing {
        name: "door-offer",
        says: "a session that sees the door turned on finds the words in which its process counts",
        operations: &[
            of("door on", Shape::Exchange(Release)),
            elsewhere("door word", Shape::Load(Acquire)),
        ],
        initial: &[],
        threads: &[
            |w| {
                w.put(OTHER, 1);
                w.exchange(WORD, 0, 1, "door on");
            },
            |w| {
                if w.load(WORD, "door word") == 1 {
                    w.reached();
                    w.violated(w.look(OTHER) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "stripe",
        says: "a thread that sees a change counted as finished sees the change; one that sees the change sees it counted as begun",
        operations: &[
            of("count", Shape::Exchange(Release)),
            of("stripe word", Shape::Load(Acquire)),
            elsewhere("publish", Shape::Exchange(Release)),
            elsewhere("slot", Shape::Load(Acquire)),
        ],
        initial: &[],
        threads: &[
            |w| {
                // Begun (1), published, finished (2).
                w.exchange(WORD, 0, 1, "count");
                w.exchange(SLOT, 0, 1, "publish");
                w.exchange(WORD, 1, 2, "count");
            },
            |w| {
                // A maker of copies; and a reader of the region that asks the copies next.
                if w.load(WORD, "stripe word") == 2 {
                    w.reached();
                    w.violated(w.look(SLOT) == 0);
                }
                if w.load(SLOT, "slot") == 1 {
                    w.violated(w.look(WORD) == 0);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "stripe-name",
        says: "a thread that finds a change begun finds the stripe on its maker's record; one that finds it there no more finds the change finished",
        operations: &[
            elsewhere("count", Shape::Exchange(Release)),
            elsewhere("stripe word", Shape::Load(Acquire)),
            of("unname", Shape::Store(Release)),
            of("names", Shape::Load(Acquire)),
        ],
        initial: &[],
        threads: &[
            |w| {
                w.put(OTHER, 1);
                w.exchange(WORD, 0, 1, "count");
                w.exchange(WORD, 1, 2, "count");
                w.store(OTHER, 2, "unname");
            },
            |w| {
                if w.load(WORD, "stripe word") == 1 {
                    let name = w.load(OTHER, "names");
                    w.violated(name == 0);
                    if name == 2 {
                        w.reached();
                        w.violated(w.look(WORD) != 2);
                    }
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "stripe-mend",
        says: "a thread that sees a stripe mended after a death sees what the dead thread had published",
        operations: &[
            of("mend", Shape::Exchange(Release)),
            elsewhere("vacate", Shape::Exchange(Release)),
            elsewhere("leases", Shape::Load(Acquire)),
            elsewhere("stripe word", Shape::Load(Acquire)),
        ],
        initial: &[(WORD, 1), (LEASE, 1)],
        threads: &[
            |w| {
                // The dead thread, and the one that takes its slot back.
                w.swap(SLOT, 0, 1);
                w.exchange(LEASE, 1, 2, "vacate");
            },
            |w| {
                if w.load(LEASE, "leases") == 2 {
                    w.exchange(WORD, 1, 3, "mend");
                }
            },
            |w| {
                if w.load(WORD, "stripe word") == 3 {
                    w.reached();
                    w.violated(w.look(SLOT) == 0);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "flush",
        says: "a thread that sees a flush sees that it was begun, so it takes no copy for current",
        operations: &[of("flush", Shape::Exchange(Release)), of("epochs", Shape::Load(Acquire))],
        initial: &[],
        threads: &[
            |w| {
                w.swap(WORD, 0, 1);
                w.exchange(OTHER, 0, 1, "flush");
            },
            |w| {
                if w.load(OTHER, "epochs") == 1 {
                    w.reached();
                    w.violated(w.look(WORD) == 0);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "magic",
        says: "a process that sees the magic number sees a whole region",
        operations: &[of("magic", Shape::Store(Release)), of("magics", Shape::Load(Acquire))],
        initial: &[],
        threads: &[
            |w| {
                w.put(WORD, 1);
                w.store(OTHER, 1, "magic");
            },
            |w| {
                if w.load(OTHER, "magics") == 1 {
                    w.reached();
                    w.violated(w.look(WORD) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "clean",
        says: "a process that finds the region marked clean sees everything that was done in it before; one that finds it unclean sees in \
               which boot it is used",
        operations: &[of("mark", Shape::Exchange(Release)), of("marks", Shape::Load(Acquire))],
        initial: &[(OTHER, 2)],
        threads: &[
            |w| {
                w.put(WORD, 1);
                w.exchange(OTHER, 2, 1, "mark");
                w.put(BYTES, 1);
                w.exchange(OTHER, 1, 0, "mark");
            },
            |w| match w.load(OTHER, "marks") {
                0 => {
                    w.reached();
                    w.violated(w.look(BYTES) != 1);
                }
                1 => w.violated(w.look(WORD) != 1),
                _ => {}
            },
        ],
        end: judged,
    },
    Pairing {
        name: "stop",
        says: "either the process that stops last sees the lock of one that attaches, or that one's first use takes the mark back",
        operations: &[
            of("stopper's fence", Shape::Fence(SeqCst)),
            elsewhere("system call", Shape::Fence(SeqCst)),
            elsewhere("mark", Shape::Exchange(Release)),
        ],
        initial: &[],
        threads: &[
            |w| {
                // Its lock; then its first use, whatever the word was.
                w.put(LEASE, 1);
                w.fence("system call");
                let taken = (0..3).any(|was| w.exchange(OTHER, was, 3, "mark"));
                w.fact(0, taken);
            },
            |w| {
                w.put(OTHER, 2);
                w.fence("stopper's fence");
                if w.look(LEASE) == 0 {
                    w.reached();
                    w.exchange(OTHER, 2, 1, "mark");
                }
            },
        ],
        end: |w| w.violated(w.is(0) && w.look(OTHER) == 1),
    },
];

/// Skeletons with a step at the wrong place: the checker must reject each.
pub const BROKEN: &[Pairing] = &[
    Pairing {
        name: "chain",
        says: "the generation is read before the state: the segment may be another value's when its state is read",
        operations: &[
            elsewhere("walker's fence", Shape::Fence(SeqCst)),
            elsewhere("claimer's fence", Shape::Fence(SeqCst)),
            elsewhere("states", Shape::Load(Acquire)),
            elsewhere("large", Shape::Store(Release)),
        ],
        initial: &[(STATE, LARGE), (WORD, 1)],
        threads: &[
            |w| {
                if w.swap(STATE, LARGE, CLAIMED) {
                    w.fence("claimer's fence");
                    if w.look(HAZARD) == 0 {
                        w.fact(0, true);
                        w.put(WORD, 2);
                        w.store(STATE, LARGE, "large");
                    }
                }
            },
            |w| {
                w.put(HAZARD, 1);
                w.fence("walker's fence");
                if w.look(WORD) == 1 {
                    w.reached();
                    w.fact(1, w.load(STATE, "states") == LARGE && w.swap(STATE, LARGE, CLAIMED));
                }
            },
        ],
        end: |w| w.violated(w.is(0) && w.is(1)),
    },
    Pairing {
        name: "generation",
        says: "the release fence is the recycler's, and new bytes are written by the segment's next owner",
        operations: &[
            elsewhere("recycler's fence", Shape::Fence(Release)),
            elsewhere("reader's fence", Shape::Fence(Acquire)),
            elsewhere("free", Shape::Store(Release)),
            elsewhere("claim", Shape::Exchange(AcqRel)),
        ],
        initial: &[(WORD, 1), (STATE, CLAIMED)],
        threads: &[
            |w| {
                w.put(WORD, 2);
                w.fence("recycler's fence");
                w.store(STATE, FREE, "free");
            },
            |w| {
                if w.exchange(STATE, FREE, OPEN, "claim") {
                    w.put(BYTES, 2);
                }
            },
            |w| {
                if w.look(BYTES) == 2 {
                    w.reached();
                    w.fence("reader's fence");
                    w.violated(w.look(WORD) == 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "tail",
        says: "the tail is stored before the item that it covers",
        operations: &[
            elsewhere("tail", Shape::Store(Release)),
            elsewhere("tails", Shape::Load(Acquire)),
        ],
        initial: &[],
        threads: &[
            |w| {
                w.store(OTHER, 1, "tail");
                w.put(BYTES, 1);
            },
            |w| {
                if w.load(OTHER, "tails") == 1 {
                    w.reached();
                    w.violated(w.look(BYTES) != 1);
                }
            },
        ],
        end: judged,
    },
    Pairing {
        name: "hazard",
        says: "the recycler reads hazards before it has emptied the segment",
        operations: &[
            elsewhere("writer's fence", Shape::Fence(SeqCst)),
            elsewhere("recycler's fence", Shape::Fence(SeqCst)),
        ],
        initial: &[(SLOT, 1)],
        threads: &[
            |w| {
                w.put(HAZARD, 1);
                w.fence("writer's fence");
                w.fact(0, w.look(SLOT) == 1);
            },
            |w| {
                w.fence("recycler's fence");
                w.fact(1, w.look(HAZARD) == 0);
                w.swap(SLOT, 1, 0);
                w.reached();
            },
        ],
        end: |w| w.violated(w.is(0) && w.is(1)),
    },
];
