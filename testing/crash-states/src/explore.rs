//! Records operations, fails the power wherever it may fail, and has every image judged.

use crate::machine::{Choice, Machine};
use crate::record::{Done, LINE, Site, acknowledge, record, unseen};
use crate::scenarios::{Scenario, begin};
use crate::world::{Allowed, Found, Judge, NOW};
use harness::Random;
use keyway_region::Session;
use keyway_region::verbs::Store;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// images at each cut
    pub choice: Choice,
    /// moments, besides those before a write-back or a barrier, at which the first thread stands still
    pub pauses: usize,
    /// such moments at most
    pub moments_max: usize,
    /// one in so many images is used further, and one in so many has its recovery cut off
    pub further: usize,
}

/// A recorded run of a scenario.
pub struct Recording {
    /// of which
    pub name: String,
    medium: Vec<u8>,
    done: Vec<Done>,
    /// what may be found before the first acknowledgement, and behind each
    allowed: Vec<Allowed>,
    judge: Rc<RefCell<Judge>>,
    /// whether what is not acted on may be evicted
    evicts: bool,
    /// lines of which it does not matter how late they are: who was attached, and hints
    chance: Vec<std::ops::Range<usize>>,
}

/// What came of an examination.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// moments at which the power failed
    pub cuts: usize,
    /// images judged, those of cut-off recoveries included
    pub images: usize,
    /// the first that was not as it must be
    pub wrong: Option<String>,
}

/// The runs of a scenario: one, or one for each moment at which the first thread stands still.
pub fn recordings(scenario: &Scenario, effort: &Effort, random: &mut Random) -> Vec<Recording> {
    let Some((_, acted)) = scenario.meanwhile else {
        return vec![in_turn(scenario)];
    };
    let alone = alone(scenario, false);
    let other = self::alone(scenario, true);
    let mut moments: Vec<usize> = moments(&alone.0, effort.pauses, random).into_iter().collect();
    while moments.len() > effort.moments_max {
        moments.swap_remove(random.index(moments.len()));
    }
    moments
        .into_iter()
        .map(|moment| at_once(scenario, moment, acted, &alone.1, &other.1))
        .collect()
}

/// Stores after which the first thread stands still: the last ones before it writes back or waits, and some at random.
fn moments(done: &[Done], pauses: usize, random: &mut Random) -> BTreeSet<usize> {
    let mut stores = 0;
    let mut found = BTreeSet::new();
    for d in done {
        match d {
            Done::Store { .. } => stores += 1,
            Done::WriteBack { .. } | Done::Barrier { .. } => {
                found.insert(stores);
            }
            Done::Acknowledged(_) => {}
        }
    }
    found.extend((0..pauses).map(|_| 1 + random.index(stores.max(1))));
    found.insert(stores);
    found.remove(&0);
    found
}

/// One of the two operations of a pair, alone: what it does, and what is found behind it.
fn alone(scenario: &Scenario, second: bool) -> (Vec<Done>, Found) {
    let (mut world, now) = begin(scenario);
    let (base, len) = (world.bytes().base(), world.bytes().len());
    let mut session = world.session(usize::from(second));
    let operation = if second {
        scenario.meanwhile.map(|(operation, _)| operation)
    } else {
        scenario.operations.first().copied()
    };
    let done = record(base, len, None, || {
        if let Some(operation) = operation {
            operation(&mut session, now);
        }
    });
    world.give_back(usize::from(second), session);
    let mut judge = Judge::new(&mut world, (scenario.watched)(), NOW + 5 + i64::from(scenario.later_s));
    let image = world.bytes().copy();
    (done, judge.look(&image))
}

fn chance(world: &mut crate::world::World) -> Vec<std::ops::Range<usize>> {
    let layout = world.region().layout();
    let hints = layout.segments + layout.shape.segment_size;
    vec![
        layout.processes / LINE..layout.words / LINE,
        hints / LINE..(hints + layout.shape.segment_size) / LINE,
    ]
}

/// Operations one after the other.
fn in_turn(scenario: &Scenario) -> Recording {
    let (mut world, now) = begin(scenario);
    let medium = world.bytes().copy();
    let judge = Rc::new(RefCell::new(Judge::new(
        &mut world,
        (scenario.watched)(),
        NOW + 5 + i64::from(scenario.later_s),
    )));
    let mut states = vec![judge.borrow_mut().look(&medium)];
    let (base, len) = (world.bytes().base(), world.bytes().len());
    let mut session = world.session(0);
    let done = record(base, len, None, || {
        if scenario.from_clean {
            world.use_again();
        }
        for (i, operation) in scenario.operations.iter().enumerate() {
            operation(&mut session, now);
            acknowledge(i);
            states.push(unseen(|| judge.borrow_mut().look(&world.bytes().copy())));
        }
    });
    let allowed = (0..states.len())
        .map(|i| {
            let next = states.get(i + 1).unwrap_or(&states[i]);
            let mut allowed = Allowed::any_of(&[&states[i], next]);
            if scenario.evicts {
                // Room is made before it is used, or behind.
                allowed.items = (0, usize::MAX);
                // What one operation's sets replace, an earlier one of them may have evicted.
                for states in allowed.keys.values_mut().filter(|states| states.len() > 1) {
                    states.insert(None);
                }
            }
            allowed
        })
        .collect();
    let chance = chance(&mut world);
    world.give_back(0, session);
    Recording {
        name: scenario.name.into(),
        medium,
        done,
        allowed,
        judge,
        evicts: scenario.evicts,
        chance,
    }
}

/// Two operations, the second of which runs while the first stands still behind its n-th store.
fn at_once(scenario: &Scenario, moment: usize, acted: &[&str], alone: &Found, other: &Found) -> Recording {
    let (mut world, now) = begin(scenario);
    let medium = world.bytes().copy();
    let judge = Rc::new(RefCell::new(Judge::new(
        &mut world,
        (scenario.watched)(),
        NOW + 5 + i64::from(scenario.later_s),
    )));
    let start = judge.borrow_mut().look(&medium);
    let (base, len) = (world.bytes().base(), world.bytes().len());
    let mut first = world.session(0);
    let second = Rc::new(RefCell::new(Some(world.session(1))));
    let world = Rc::new(RefCell::new(world));
    let middle: Rc<RefCell<Option<Found>>> = Rc::default();
    let interlude = {
        let (world, judge, middle, second) = (world.clone(), judge.clone(), middle.clone(), second.clone());
        let operation = scenario.meanwhile.map(|(operation, _)| operation);
        let dies = scenario.dies;
        move || {
            if dies {
                world.borrow().kill_first();
            }
            if let (Some(operation), Some(session)) = (operation, second.borrow_mut().as_mut()) {
                operation(session, now);
            }
            acknowledge(0);
            let found = unseen(|| judge.borrow_mut().look(&world.borrow_mut().bytes().copy()));
            middle.replace(Some(found));
            if dies {
                resume_unwind(Box::new("dead"));
            }
        }
    };
    let done = record(base, len, Some((moment, Box::new(interlude))), || {
        if catch_unwind(AssertUnwindSafe(|| scenario.operations[0](&mut first, now))).is_ok() {
            acknowledge(1);
        }
    });
    let died = middle.borrow().is_some() && scenario.dies;
    let end = judge.borrow_mut().look(&world.borrow_mut().bytes().copy());
    let middle = middle.take().unwrap_or_else(|| end.clone());
    // What the second thread acted on, it acknowledged; what the first one did elsewhere may still be lost.
    let mut behind = Allowed::any_of(&[&middle, &end]);
    for (key, state) in &start.keys {
        // What the second thread would have evicted alone it need not have touched here.
        let is_changed = other.keys.get(key) != Some(state) && !(scenario.evicts && state.is_some());
        let is_acted = acted.iter().any(|a| a.as_bytes() == key) || is_changed;
        if !is_acted {
            behind.keys.entry(key.clone()).or_default().insert(state.clone());
        }
    }
    let counts = [start.items, middle.items, end.items, alone.items, other.items];
    behind.items = if scenario.evicts {
        (0, usize::MAX)
    } else {
        (
            counts.iter().copied().min().unwrap_or(0),
            counts.iter().copied().max().unwrap_or(0),
        )
    };
    let mut before = Allowed::any_of(&[&start, &middle, &end, alone, other]);
    before.items = behind.items;
    let allowed = vec![before, behind, Allowed::any_of(&[&end])];
    let mut world_back = world.borrow_mut();
    let chance = chance(&mut world_back);
    if died {
        // Nothing of what it would still do is done.
        std::mem::forget(first);
    } else {
        world_back.give_back(0, first);
    }
    if let Some(session) = second.take() {
        world_back.give_back(1, session);
    }
    drop(world_back);
    Recording {
        name: format!("{} (behind store {moment})", scenario.name),
        medium,
        done,
        allowed,
        judge,
        evicts: scenario.evicts,
        chance,
    }
}

impl Recording {
    /// The sites that it passes, and how often.
    pub fn sites(&self) -> BTreeMap<Site, usize> {
        let mut sites = BTreeMap::new();
        for done in &self.done {
            if let Done::WriteBack { site, .. } | Done::Barrier { site, .. } = done {
                *sites.entry(*site).or_default() += 1;
            }
        }
        sites
    }

    /// Barriers from each acknowledgement to the next.
    pub fn barriers(&self) -> Vec<usize> {
        let mut counts = vec![0];
        for done in &self.done {
            match done {
                Done::Barrier { .. } => *counts.last_mut().expect("never empty") += 1,
                Done::Acknowledged(_) => counts.push(0),
                _ => {}
            }
        }
        counts.pop();
        counts
    }

    /// Fails the power before every barrier and behind every acknowledgement; `dropped` is left out.
    pub fn examine(&self, effort: &Effort, dropped: Option<Site>, random: &mut Random) -> Outcome {
        let mut machine = Machine::new(self.medium.clone());
        let mut outcome = Outcome::default();
        let mut acknowledged = 0;
        let mut new = false;
        for done in &self.done {
            let cut = match done {
                Done::Store { .. } => {
                    new = true;
                    false
                }
                Done::Barrier { site, .. } => new && dropped != Some(*site),
                Done::Acknowledged(_) => {
                    acknowledged += 1;
                    true
                }
                Done::WriteBack { .. } => false,
            };
            if cut {
                new = false;
                outcome.cuts += 1;
                self.fail_here(&machine, &self.allowed[acknowledged], effort, random, &mut outcome);
                if let Some(wrong) = &mut outcome.wrong {
                    *wrong = format!("{}, cut {}, {acknowledged} acknowledged: {wrong}", self.name, outcome.cuts);
                    return outcome;
                }
            }
            machine.step(done, dropped);
        }
        outcome
    }

    fn matters(&self, line: usize) -> bool {
        !self.chance.iter().any(|range| range.contains(&line))
    }

    fn fail_here(&self, machine: &Machine, allowed: &Allowed, effort: &Effort, random: &mut Random, outcome: &mut Outcome) {
        let mut further = random.fork(7);
        machine.images(
            effort.choice,
            random,
            |line| self.matters(line),
            |image| {
                outcome.images += 1;
                let go_on = further.index(effort.further) == 0;
                let cut_again = further.index(effort.further) == 0;
                outcome.wrong = self.judge_image(image, 1, allowed, go_on).err();
                if outcome.wrong.is_none() && cut_again {
                    outcome.wrong = self.cut_recovery(image, allowed, &mut further, &mut outcome.images).err();
                }
                outcome.wrong.is_none()
            },
        );
    }

    fn judge_image(&self, image: &[u8], failures: u64, allowed: &Allowed, go_on: bool) -> Result<(), String> {
        let mut judge = self.judge.borrow_mut();
        let region = judge.restart(image, failures)?;
        judge.verdict(&region, allowed, go_on)
    }

    /// The power fails again while the region recovers, or while it is in use behind that.
    fn cut_recovery(&self, image: &[u8], allowed: &Allowed, random: &mut Random, images: &mut usize) -> Result<(), String> {
        const WHEN: Choice = Choice {
            all_up_to: 4,
            random: 2,
            alone: 4,
            thin: true,
        };
        let (base, len) = {
            let mut judge = self.judge.borrow_mut();
            (judge.bytes().base(), judge.bytes().len())
        };
        let mut found = Ok(());
        let key = self.judge.borrow().watched[0].clone();
        let done = record(base, len, None, || {
            let mut judge = self.judge.borrow_mut();
            match judge.restart(image, 1) {
                Ok(region) => {
                    acknowledge(0);
                    let process = region.attach(0, 1, NOW);
                    let session = region.session(process, crate::world::limits());
                    if let Some(mut session) = session {
                        later(&mut session, &key, judge.now);
                    }
                    acknowledge(1);
                }
                Err(e) => found = Err(e),
            }
        });
        found?;
        // Behind recovery, before the key's second value is acknowledged, it has either.
        let mut in_use = allowed.clone();
        let second: crate::world::State = Some((b"later".to_vec(), None, false));
        in_use.keys.entry(key.clone()).or_default().insert(second.clone());
        in_use.items.1 = in_use.items.1.saturating_add(1);
        if self.evicts {
            in_use.items.0 = 0;
            for states in in_use.keys.values_mut() {
                states.insert(None);
            }
        }
        let mut after = in_use.clone();
        after.keys.insert(key, BTreeSet::from([second]));
        let mut machine = Machine::new(image.to_vec());
        let cuts: BTreeSet<usize> = (0..3).map(|_| random.index(done.len())).collect();
        let mut acknowledged = 0;
        for (i, d) in done.iter().enumerate() {
            acknowledged += usize::from(matches!(d, Done::Acknowledged(_)));
            machine.step(d, None);
            if !cuts.contains(&i) && i + 1 < done.len() {
                continue;
            }
            let allowed = [allowed, &in_use, &after][acknowledged];
            let mut wrong = None;
            machine.images(
                WHEN,
                random,
                |line| self.matters(line),
                |image| {
                    *images += 1;
                    wrong = self.judge_image(image, 2, allowed, false).err();
                    wrong.is_none()
                },
            );
            if let Some(wrong) = wrong {
                return Err(format!("a second failure, {acknowledged} behind: {wrong}"));
            }
        }
        Ok(())
    }
}

fn later(session: &mut Session, key: &[u8], now: u32) {
    // A key whose expiry or flush lies in the judge's future has its own state; it is simply set.
    let stored = session.store(key, b"later", &Store::default(), now);
    assert!(stored.is_ok(), "{stored:?}");
}
