//! Copies of items beside the region, held against it before every access to shared memory that a change makes.
//!
//! One thread: a writer makes a change, and before each of its accesses a copier does what the kernel door's keeper does. It turns the counting on
//! (from the beginning, or before any one access), copies what it finds while the words are at rest, and looks at every copy that is current by
//! its words: the region must have the same item, with the same value, CAS unique and time to live. So every place is tried at which a
//! writer can be overtaken; what needs two writers is `model/coherence.py`'s matter.

use histories::Key;
use keyway_region::layout::superblock::DoorWord;
use keyway_region::observe::{self, Event};
use keyway_region::verbs::{Arithmetic, Delete, Get, Store, StoreMode, WriteError};
use keyway_region::{FLUSH, Process, Region, STRIPES, Session, hash};
use kill_points::ground::{Ground, NOW};
use mutants::Mutant;
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::explore::open_session;

/// What a writer does with the item, in a region with this many segments.
struct Change {
    name: &'static str,
    segments: usize,
    make: fn(&mut Session, u32) -> Result<(), WriteError>,
}

/// What this part is called.
pub(crate) const ABOUT: &str = "copies";
/// A number, so that counting is possible as well.
const VALUE: &[u8] = b"41";
const KEY: Key = Key(1);

const CHANGES: [Change; 7] = [
    Change {
        name: "a set over the item",
        segments: 12,
        make: |session, now| session.store(&key(), b"another", &Store::default(), now).map(|_| ()),
    },
    Change {
        name: "an append",
        segments: 12,
        make: |session, now| {
            let how = Store {
                mode: StoreMode::Append,
                ..Store::default()
            };
            session.store(&key(), b"more", &how, now).map(|_| ())
        },
    },
    Change {
        name: "a delete",
        segments: 12,
        make: |session, now| session.delete(&key(), &Delete::default(), now).map(|_| ()),
    },
    Change {
        name: "an incr",
        segments: 12,
        make: |session, now| session.arithmetic(&key(), &Arithmetic::default(), now).map(|_| ()),
    },
    Change {
        name: "a touch",
        segments: 12,
        make: |session, now| session.touch(&key(), 1000, now).map(|_| ()),
    },
    Change {
        name: "a flush_all",
        segments: 12,
        make: |session, now| session.flush_all(0, now).map(|_| ()),
    },
    Change {
        name: "sets of others until it is evicted",
        segments: 12,
        make: |session, now| {
            (0..2000).try_for_each(|n| {
                let name = Key(100 + n).name(0);
                session
                    .store(name.as_bytes(), &[b'x'; 400], &Store::default(), now)
                    .map(|_| ())
            })
        },
    },
];

/// The broken variants that this sees, and the change that shows each.
const REJECTED: [(Mutant, usize); 5] = [
    (Mutant::ChangesUncounted, 0),
    (Mutant::CountedLate, 0),
    (Mutant::DoorBeforeAcknowledged, 0),
    (Mutant::FlushUncounted, 5),
    (Mutant::EvictionsUncounted, 6),
];

fn key() -> Vec<u8> {
    KEY.name(0).into_bytes()
}

/// What a get gives: value, CAS unique, time to live.
type Found = (Vec<u8>, u64, Option<u32>);

/// A copy, and the words that it was taken under.
struct Copy {
    words: [u64; 2],
    found: Found,
}

/// The copier.
struct Copier {
    region: Arc<Region>,
    process: Process,
    session: Session,
    stripe: usize,
    now: u32,
    /// accesses until the counting is turned on
    left: u64,
    door: Option<DoorWord>,
    copies: Vec<Copy>,
    accesses: u64,
    taken: u64,
    /// the item has been found gone
    gone: bool,
    wrong: Option<String>,
    /// where changes are counted, and what the region stands on: dropped last
    words: Ground,
    _ground: Ground,
}

thread_local! {
    static COPIER: RefCell<Option<Copier>> = const { RefCell::new(None) };
}

/// Before every access of the writer: what the copier does itself is not reported.
fn overtake(event: Event) {
    if let Event::Before(_) = event {
        observe::install(None);
        COPIER.with_borrow_mut(|copier| copier.as_mut().map(Copier::look));
        observe::install(Some(overtake));
    }
}

impl Copier {
    fn look(&mut self) {
        self.accesses += 1;
        if self.door.is_none() {
            if self.left > 0 {
                self.left -= 1;
                return;
            }
            self.door = self.region.changes().turn_door_on(self.process, self.words.stripes());
        }
        let words = [self.stripe, FLUSH].map(|at| self.words.stripe(at));
        let found = self.find();
        self.gone |= found.is_none();
        // Words only go up, so what is not current any more never is again.
        self.copies.retain(|copy| copy.words == words);
        if let Some(copy) = self.copies.iter().find(|copy| Some(&copy.found) != found.as_ref()) {
            let at = self.accesses;
            let why = || {
                format!(
                    "before access {at} a copy of {:?} is current, and the region has {found:?}",
                    copy.found
                )
            };
            self.wrong.get_or_insert_with(why);
        }
        let at_rest = words.iter().all(|word| word >> 32 == word & 0xFFFF_FFFF);
        if let (Some(found), true, true) = (
            found,
            at_rest && self.copies.is_empty(),
            self.region.changes().is_door_acknowledged(),
        ) {
            self.copies.push(Copy { words, found });
            self.taken += 1;
        }
    }

    fn find(&mut self) -> Option<Found> {
        let mut value = Vec::new();
        let how = Get {
            value: true,
            details: true,
            no_bump: true,
            ..Get::default()
        };
        let item = self.session.get(&key(), &how, self.now, &mut value);
        let item = item.unwrap_or_else(|e| panic!("a get: {e}"))?;
        Some((value, item.cas, item.ttl_s))
    }
}

/// Makes a change whose writer is overtaken before every access; the counting is turned on before the access with this number.
fn make(change: &Change, on_before: u64) -> Copier {
    let (ground, words) = (Ground::new(change.segments, false), Ground::new(change.segments, false));
    let region = ground.create();
    let mut writer = open_session(&region, 0, true);
    let now = region.clock().tick(keyway_region::Moment::from_secs(NOW));
    let stored = writer.store(&key(), VALUE, &Store::default(), now);
    assert!(stored.is_ok(), "{stored:?}");
    let seed = region.mapped().seed();
    // The upper bits of the hash are the tag, which names the stripe.
    let stripe = hash(seed, &key()) >> (u64::BITS - STRIPES.trailing_zeros());
    let process = region.recovery().attach(1, 1, NOW);
    let session = region.session(process).unwrap_or_else(|| panic!("a free thread slot"));
    let copier = Copier {
        process,
        session,
        region,
        words,
        stripe: usize::try_from(stripe).unwrap_or(0),
        now,
        left: on_before,
        door: None,
        copies: Vec::new(),
        accesses: 0,
        taken: 0,
        gone: false,
        wrong: None,
        _ground: ground,
    };
    COPIER.set(Some(copier));
    observe::install(Some(overtake));
    let made = (change.make)(&mut writer, now);
    observe::install(None);
    assert!(made.is_ok(), "{}: {made:?}", change.name);
    let mut copier = COPIER.take().unwrap_or_else(|| panic!("it was put there"));
    // Once more, behind the change.
    copier.look();
    copier
}

/// Every place at which a change's writer can be overtaken; how many copies were taken in how many accesses.
fn try_change(change: &Change, every_beginning: bool) -> Result<(u64, u64), String> {
    let first = make(change, 0);
    let (mut taken, mut accesses) = (first.taken, first.accesses);
    let beginnings = if every_beginning { first.accesses } else { 0 };
    first.wrong.map_or(Ok(()), Err)?;
    for on_before in 1..beginnings {
        let copier = make(change, on_before);
        copier
            .wrong
            .map_or(Ok(()), |why| Err(format!("counting begins before access {on_before}: {why}")))?;
        (taken, accesses) = (taken + copier.taken, accesses + copier.accesses);
    }
    Ok((taken, accesses))
}

/// All changes, then the broken variants; what each gave.
pub(crate) fn try_all(mut take: impl FnMut(&str, Result<String, String>)) {
    for change in &CHANGES {
        // A long one has too many accesses for all beginnings, and consists of sets, which are tried.
        let is_long = change.name.starts_with("sets");
        let tried = try_change(change, !is_long);
        let said = tried.and_then(|(taken, accesses)| match (taken, is_long && !make(change, 0).gone) {
            (0, _) => Err("no copy was ever taken: nothing is shown".to_owned()),
            (_, true) => Err("it was never evicted: nothing is shown".to_owned()),
            _ => Ok(format!("{taken} copies, looked at before {accesses} accesses")),
        });
        take(&format!("no copy is stale: {}", change.name), said);
    }
    for (mutant, change) in REJECTED {
        mutants::set(Some(mutant));
        let change = &CHANGES[change];
        let tried = try_change(change, mutant == Mutant::DoorBeforeAcknowledged);
        mutants::set(None);
        let said = match tried {
            Err(why) => Ok(why),
            Ok((taken, _)) => Err(format!("it was not, with {taken} copies")),
        };
        take(&format!("a region with {mutant:?} is rejected ({})", change.name), said);
    }
}
