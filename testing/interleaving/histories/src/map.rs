//! A simple store with seeded faults, which a judge of histories must reject, and without, which it must accept.
//!
//! Each fault strikes now and then, as a race would. Everything else is a map behind a lock, so a history is linearizable for
//! certain but for the fault.

use crate::call::{Answer, Call, Door, Key, Verb};
use crate::choose::{Chooser, Mix};
use crate::judge::Operation;
use crate::value;
use harness::Random;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// a get answers the value before the last one
    StaleRead,
    /// a store is acknowledged and not done
    LostUpdate,
    /// a deleted item comes back
    Resurrection,
    /// a get answers half of one value and half of another
    TornValue,
    /// a number is counted up twice
    DoubleIncr,
    /// a cas does not compare
    BlindCas,
    /// add overwrites
    AddOverwrites,
    /// append is done twice
    AppendTwice,
    /// a flush leaves some items
    FlushForgets,
    /// an expired item is seen
    ExpiredSeen,
    /// an item vanishes, as if it had been evicted
    Loss,
    /// a call that was never answered takes effect more than once
    LostCallRepeats,
    /// what was computed is stored, whatever has become of the key meanwhile
    LateStore,
    /// two compute at a time
    TwoCompute,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::StaleRead,
        Self::LostUpdate,
        Self::Resurrection,
        Self::TornValue,
        Self::DoubleIncr,
        Self::BlindCas,
        Self::AddOverwrites,
        Self::AppendTwice,
        Self::FlushForgets,
        Self::ExpiredSeen,
        Self::Loss,
        Self::LostCallRepeats,
        Self::LateStore,
        Self::TwoCompute,
    ];

    /// Whether it is one where items may vanish, too.
    pub fn is_wrong_where_items_vanish(self) -> bool {
        // An item that vanishes before the add explains what AddOverwrites does, and a flight that does, what TwoCompute does.
        !matches!(self, Self::Loss | Self::AddOverwrites | Self::TwoCompute)
    }
}

#[derive(Clone, Debug)]
struct Item {
    bytes: Vec<u8>,
    cas: u64,
    dead: bool,
}

#[derive(Debug, Default)]
struct Inside {
    items: HashMap<Key, Item>,
    /// what each key held before
    before: HashMap<Key, Item>,
    cas: u64,
    /// sets that were not answered, to be done again
    again: Vec<Call>,
    /// the flight of each key that a caller computes
    flights: HashMap<Key, u64>,
}

impl Inside {
    /// Begins a flight of a key without an item, unless there is one already.
    fn begin(&mut self, key: Key, second: bool) -> Answer {
        if self.flights.contains_key(&key) && !second {
            return Answer::InFlight;
        }
        self.cas += 1;
        self.flights.insert(key, self.cas);
        Answer::Claimed { flight: self.cas }
    }
}

/// The store; cheap to clone, one store in all clones.
#[derive(Clone, Debug)]
pub struct Map {
    inside: Arc<Mutex<Inside>>,
    fault: Option<Fault>,
    random: Random,
}

/// Of how many calls one is struck.
const STRIKES: u64 = 40;
/// Of how many calls one loses its answer.
const LOSSES: u64 = 600;

impl Map {
    /// An empty store with this fault, or none.
    pub fn new(fault: Option<Fault>, random: Random) -> Self {
        Self {
            inside: Arc::default(),
            fault,
            random,
        }
    }

    fn strikes(&mut self, fault: Fault) -> bool {
        self.fault == Some(fault) && self.random.below(STRIKES) == 0
    }

    fn inside(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&mut self, call: &Call) -> Answer {
        let torn = self.strikes(Fault::TornValue);
        let stale = self.strikes(Fault::StaleRead);
        let missed = self.strikes(Fault::Loss);
        let second = self.fault == Some(Fault::TwoCompute);
        let mut inside = self.inside();
        if missed {
            inside.items.remove(&call.key);
        }
        let Some(item) = inside.items.get(&call.key) else {
            return match call.verb {
                Verb::FetchBegin => inside.begin(call.key, second),
                _ => Answer::Miss,
            };
        };
        let mut bytes = item.bytes.clone();
        let mut cas = item.cas;
        if let Some(old) = inside.before.get(&call.key) {
            if torn && old.bytes.len() >= bytes.len() {
                let half = bytes.len() / 2;
                bytes[half..].copy_from_slice(&old.bytes[half..item.bytes.len()]);
            }
            if stale {
                (bytes, cas) = (old.bytes.clone(), old.cas);
            }
        }
        value::read(call.key, &bytes).map_or(Answer::Torn, |value| Answer::Hit { value, cas })
    }

    fn change(&mut self, call: &Call) -> Answer {
        let lost = self.strikes(Fault::LostUpdate);
        let risen = self.strikes(Fault::Resurrection);
        let twice = self.strikes(Fault::DoubleIncr) || self.strikes(Fault::AppendTwice);
        let blind = self.fault == Some(Fault::BlindCas);
        let overwrites = self.strikes(Fault::AddOverwrites);
        let lives = self.fault == Some(Fault::ExpiredSeen);
        let forgets = self.strikes(Fault::FlushForgets) || (self.fault == Some(Fault::FlushForgets) && self.random.below(2) == 0);
        let late = self.fault == Some(Fault::LateStore);
        let mut inside = self.inside();
        if call.verb == Verb::Flush {
            inside.items.retain(|key, _| forgets && key.0 % 2 == 0);
            inside.flights.clear();
            return Answer::Flushed;
        }
        inside.cas += 1;
        let cas = inside.cas;
        let old = inside.items.get(&call.key).cloned();
        let dead = call.exptime < 0 && !lives;
        let store = |bytes: Vec<u8>| (Some(Item { bytes, cas, dead }), Answer::Stored { cas });
        let keep = |answer| (old.clone(), answer);
        let join = |a: &[u8], b: &[u8]| [a, b, if twice { b } else { &[] }].concat();
        let (new, answer) = match (call.verb, &old) {
            (Verb::Set, _) => store(call.bytes()),
            (Verb::Add, None) => store(call.bytes()),
            (Verb::FetchStore, _) if late || inside.flights.get(&call.key) == Some(&call.compare) => store(call.bytes()),
            (Verb::FetchStore, _) => return Answer::Void,
            (Verb::Add, Some(_)) if overwrites => store(call.bytes()),
            (Verb::Replace, Some(_)) => store(call.bytes()),
            (Verb::Append, Some(item)) => store(join(&item.bytes, &call.bytes())),
            (Verb::Prepend, Some(item)) => store(join(&call.bytes(), &item.bytes)),
            (Verb::Cas, Some(item)) if blind || item.cas == call.compare => store(call.bytes()),
            (Verb::Cas, Some(_)) => keep(Answer::Exists),
            (Verb::Incr, Some(item)) => {
                let number = value::read(call.key, &item.bytes)
                    .map_or(0, |v| v.hash)
                    .wrapping_add(call.argument);
                let kept = number.wrapping_add(if twice { call.argument } else { 0 });
                (store(kept.to_string().into_bytes()).0, Answer::Number { number, cas })
            }
            (Verb::Touch, Some(_)) if call.exptime < 0 && !lives => (None, Answer::Touched),
            (Verb::Touch, Some(_)) => keep(Answer::Touched),
            (Verb::Delete, Some(_)) if risen => keep(Answer::Deleted),
            (Verb::Delete, Some(_)) => (None, Answer::Deleted),
            (Verb::Add | Verb::Replace | Verb::Append | Verb::Prepend, _) => keep(Answer::NotStored),
            _ => keep(Answer::NotFound),
        };
        // An item ends the flight, and so does a delete of none.
        if matches!(answer, Answer::Stored { .. }) || call.verb == Verb::Delete {
            inside.flights.remove(&call.key);
        }
        if !(lost && matches!(answer, Answer::Stored { .. })) {
            match new.filter(|item| !item.dead) {
                Some(item) => inside.items.insert(call.key, item),
                None => inside.items.remove(&call.key),
            };
            if let Some(old) = old {
                inside.before.insert(call.key, old);
            }
        }
        answer
    }
}

impl Door for Map {
    fn call(&mut self, call: &Call) -> Option<Answer> {
        // Of the calls that this fault is about, enough; of others few, because every lost call doubles what is possible.
        let losses = match self.fault {
            Some(Fault::LostCallRepeats) if call.verb == Verb::Set => LOSSES / 20,
            Some(Fault::LostCallRepeats) => u64::MAX,
            _ => LOSSES,
        };
        let fate = self.random.below(losses);
        if fate == 0 {
            return None;
        }
        if self.fault == Some(Fault::LostCallRepeats) && self.random.below(STRIKES) == 0 {
            let ghost = self.inside().again.last().copied();
            ghost.map(|ghost| self.change(&ghost));
        }
        let answer = match call.verb {
            Verb::Get | Verb::Gat | Verb::FetchBegin => self.get(call),
            _ => self.change(call),
        };
        if fate == 1 {
            if call.verb == Verb::Set {
                self.inside().again.push(*call);
            }
            return None;
        }
        Some(answer)
    }
}

/// A writer of [`play`].
struct Writer {
    map: Map,
    chooser: Chooser,
    at: At,
    done: Vec<Operation>,
}

/// Where a writer is in a call. A call takes effect between its invocation and its response.
enum At {
    Rest,
    Invoked { call: Call, invoked: u64 },
    Answered { call: Call, invoked: u64, answer: Answer },
}

impl Writer {
    fn step(&mut self, now: u64) {
        self.at = match std::mem::replace(&mut self.at, At::Rest) {
            At::Rest => At::Invoked {
                call: self.chooser.next_call(),
                invoked: now,
            },
            At::Invoked { call, invoked } => match self.map.call(&call) {
                Some(answer) => At::Answered { call, invoked, answer },
                None => self.end(call, invoked, None),
            },
            At::Answered { call, invoked, answer } => {
                self.chooser.learn(&call, &answer);
                self.end(call, invoked, Some((now, answer)))
            }
        };
    }

    fn end(&mut self, call: Call, invoked: u64, answered: Option<(u64, Answer)>) -> At {
        let (responded, answer) = answered.unzip();
        self.done.push(Operation {
            invoked,
            responded,
            call,
            answer,
        });
        At::Rest
    }
}

/// The history that `writers` make with a store, `calls` each. The seed decides whose turn it is, so every run makes the same one.
pub fn play(map: &Map, writers: u32, calls: usize, mix: Mix, seed: &Random) -> Vec<Operation> {
    let one = |writer| Writer {
        map: Map {
            random: seed.fork(u64::from(writer) + 1000),
            ..map.clone()
        },
        chooser: Chooser::new(seed.fork(u64::from(writer)), mix, writer),
        at: At::Rest,
        done: Vec::new(),
    };
    let mut busy: Vec<_> = (1..=writers).map(one).collect();
    let mut turns = seed.fork(0);
    let mut history = Vec::new();
    for now in 0.. {
        if busy.is_empty() {
            break;
        }
        let turn = turns.index(busy.len());
        busy[turn].step(now);
        if busy[turn].done.len() == calls {
            history.append(&mut busy.swap_remove(turn).done);
        }
    }
    history
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::judge::{Rules, judge_all};

    const MIX: Mix = Mix {
        texts: 6,
        numbers: 3,
        fill: 50,
        fill_max: 100,
        fill_len: 60,
        flush: 200,
        len_max: 300,
        expiring: false,
    };

    #[test]
    fn a_correct_store_is_accepted_and_every_fault_is_not() {
        for seed in 1..=3 {
            let random = Random::new(seed);
            for may_vanish in [false, true] {
                let rules = Rules {
                    may_vanish,
                    ..Rules::default()
                };
                let verdict = judge_all(&play(&Map::new(None, random.clone()), 4, 3000, MIX, &random), rules);
                assert!(verdict.violations.is_empty(), "{}", verdict.violations[0]);
                for fault in Fault::ALL {
                    let verdict = judge_all(&play(&Map::new(Some(fault), random.clone()), 4, 3000, MIX, &random), rules);
                    let expected = !may_vanish || fault.is_wrong_where_items_vanish();
                    assert_eq!(
                        !verdict.violations.is_empty(),
                        expected,
                        "seed {seed}, {fault:?}, {may_vanish}"
                    );
                }
            }
        }
    }
}
