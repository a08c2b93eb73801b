//! Records operations, fails the power wherever it may fail, and has every image judged.

use crate::machine::{Choice, Machine};
use crate::record::{Done, Interlude, LINE, Site, acknowledge, record, unseen};
use crate::scenarios::{Scenario, begin};
use crate::world::{Allowed, Found, Judge, NOW, World};
use harness::Random;
use keyway_region::Session;
use keyway_region::verbs::Store;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;

/// Moments of the next thread for each of a thread that stands still.
const MOMENTS_OF_NEXT: usize = 8;

/// How much is tried.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// images at each cut
    pub choice: Choice,
    /// moments, besides those before a write-back or a barrier, at which the first thread stands still
    pub pauses: usize,
    /// such moments at most
    pub moments_max: usize,
    /// moments at which the power fails at most, in a run of the sources as they are; chance picks them
    pub cuts_max: usize,
    /// one in so many images is used further, and one in so many has its recovery cut off; 0: none
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

/// A moment at which the power fails.
struct Failing<'r> {
    whole: &'r Machine,
    /// a machine for which a site was left out
    lacking: Option<(&'r Machine, Site)>,
    allowed: &'r Allowed,
}

/// The runs of a scenario: one, or one for each moment at which a thread stands still.
pub fn recordings(scenario: &Scenario, effort: &Effort, random: &mut Random) -> Vec<Recording> {
    if scenario.meanwhile.is_empty() {
        return vec![in_turn(scenario)];
    }
    let alone: Vec<Found> = (0..=scenario.meanwhile.len()).map(|thread| alone(scenario, thread)).collect();
    let mut runs = vec![at_once(scenario, &[], &alone)];
    let mut most = effort.moments_max;
    for thread in 0..scenario.meanwhile.len() {
        let mut wanted: Vec<Vec<usize>> = runs
            .iter()
            .flat_map(|(moments_before, run)| {
                let moments = moments(&run.done, thread, effort.pauses, random);
                moments
                    .into_iter()
                    .map(|moment| [moments_before.as_slice(), &[moment]].concat())
            })
            .collect();
        while wanted.len() > most && !scenario.has_every_moment {
            wanted.swap_remove(random.index(wanted.len()));
        }
        runs = wanted
            .into_iter()
            .map(|moments| at_once(scenario, &moments, &alone))
            .collect();
        most *= MOMENTS_OF_NEXT;
    }
    runs.into_iter().map(|(_, run)| run).collect()
}

/// Stores after which a thread stands still: the last ones before it writes back or waits, and some at random.
fn moments(done: &[Done], of: usize, pauses: usize, random: &mut Random) -> BTreeSet<usize> {
    let mut stores = 0;
    let mut found = BTreeSet::new();
    for d in done {
        match d {
            Done::Store { thread, .. } if *thread == of => stores += 1,
            Done::WriteBack { thread, .. } | Done::Barrier { thread, .. } if *thread == of => {
                found.insert(stores);
            }
            _ => {}
        }
    }
    found.extend((0..pauses).map(|_| 1 + random.index(stores.max(1))));
    found.insert(stores);
    found.remove(&0);
    found
}

/// What is found behind what one thread does alone.
fn alone(scenario: &Scenario, thread: usize) -> Found {
    let (mut world, now) = begin(scenario);
    let mut session = world.session(thread);
    let operation = match thread.checked_sub(1) {
        Some(other) => scenario.meanwhile[other].0,
        None => scenario.operations[0],
    };
    operation(&mut session, now);
    world.give_back(thread, session);
    let mut judge = judge_of(&mut world, scenario);
    let image = world.bytes().copy();
    judge.look(&image)
}

fn judge_of(world: &mut World, scenario: &Scenario) -> Judge {
    Judge::new(world, (scenario.watched)(), NOW + 5 + i64::from(scenario.later_s))
}

fn chance(world: &mut World) -> Vec<std::ops::Range<usize>> {
    let layout = world.region().mapped().layout();
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
    let judge = Rc::new(RefCell::new(judge_of(&mut world, scenario)));
    let mut states = vec![judge.borrow_mut().look(&medium)];
    let (base, len) = (world.bytes().base(), world.bytes().len());
    let mut session = world.session(0);
    if let Some(text) = scenario.damaged {
        world.damage(text);
    }
    let done = record(base, len, Vec::new(), || {
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

/// Operations at once: each of the others runs while the one before it stands still behind its n-th store.
fn at_once(scenario: &Scenario, moments: &[usize], alone: &[Found]) -> (Vec<usize>, Recording) {
    let (mut world, now) = begin(scenario);
    let medium = world.bytes().copy();
    let judge = Rc::new(RefCell::new(judge_of(&mut world, scenario)));
    let start = judge.borrow_mut().look(&medium);
    let (base, len) = (world.bytes().base(), world.bytes().len());
    let mut first = world.session(0);
    let world = Rc::new(RefCell::new(world));
    // Whose operation was acknowledged, and what was there then.
    let acknowledged: Rc<RefCell<Vec<(usize, Found)>>> = Rc::default();
    let interlude = |other: usize| -> Interlude {
        let (world, judge, acknowledged) = (world.clone(), judge.clone(), acknowledged.clone());
        let (operation, dies) = (scenario.meanwhile[other].0, scenario.dies && other == 0);
        Box::new(move || {
            if dies {
                world.borrow().kill_first();
            }
            let mut session = world.borrow_mut().session(other + 1);
            operation(&mut session, now);
            world.borrow_mut().give_back(other + 1, session);
            acknowledge(other + 1);
            let found = unseen(|| judge.borrow_mut().look(&world.borrow_mut().bytes().copy()));
            acknowledged.borrow_mut().push((other, found));
            if dies {
                resume_unwind(Box::new("dead"));
            }
        })
    };
    let interludes = moments
        .iter()
        .enumerate()
        .map(|(other, moment)| (*moment, interlude(other)))
        .collect();
    let done = record(base, len, interludes, || {
        if catch_unwind(AssertUnwindSafe(|| scenario.operations[0](&mut first, now))).is_ok() {
            acknowledge(0);
        }
    });
    let acknowledged = acknowledged.take();
    let mut world_back = world.borrow_mut();
    let end = judge.borrow_mut().look(&world_back.bytes().copy());
    let chance = chance(&mut world_back);
    if scenario.dies && !acknowledged.is_empty() {
        // Nothing of what it would still do is done.
        std::mem::forget(first);
    } else {
        world_back.give_back(0, first);
    }
    drop(world_back);
    let recording = Recording {
        name: format!(
            "{} (behind store {})",
            scenario.name,
            moments.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
        ),
        medium,
        done,
        allowed: allowed_at_once(scenario, &start, &acknowledged, &end, alone),
        judge,
        evicts: scenario.evicts,
        chance,
    };
    (moments.to_vec(), recording)
}

/// What may be found before the first acknowledgement, and behind each. `acknowledged`: whose it was, and what was there then.
fn allowed_at_once(
    scenario: &Scenario,
    start: &Found,
    acknowledged: &[(usize, Found)],
    end: &Found,
    alone: &[Found],
) -> Vec<Allowed> {
    let seen = |from: usize| acknowledged.iter().skip(from).map(|(_, found)| found).chain([end]);
    let anything: Vec<&Found> = [start].into_iter().chain(alone).chain(seen(0)).collect();
    let mut before = Allowed::any_of(&anything);
    if scenario.evicts {
        before.items = (0, usize::MAX);
    }
    let mut allowed = vec![before.clone()];
    for done in 1..=acknowledged.len() {
        let mut behind = Allowed::any_of(&seen(done - 1).collect::<Vec<_>>());
        behind.items = before.items;
        for (key, states) in &mut behind.keys {
            let is_acted = acknowledged[..done].iter().any(|(other, _)| {
                let changed = alone[other + 1].keys.get(key) != start.keys.get(key);
                // What a thread would have evicted alone it need not have touched here.
                let is_evicted = scenario.evicts && start.keys.get(key).is_some_and(Option::is_some);
                scenario.meanwhile[*other].1.iter().any(|k| k.as_bytes() == key) || changed && !is_evicted
            });
            // What was acted on is acknowledged; what others did elsewhere may still be lost.
            if !is_acted {
                states.extend(before.keys.get(key).into_iter().flatten().cloned());
            }
        }
        allowed.push(behind);
    }
    allowed.push(Allowed::any_of(&[end]));
    allowed
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

    /// How much there is to examine: what it takes is about in proportion.
    pub fn cost(&self) -> usize {
        self.cuts() * self.medium.len()
    }

    /// Moments at which the power may fail, at most.
    fn cuts(&self) -> usize {
        let is_cut = |done: &&Done| matches!(done, Done::Barrier { .. } | Done::Acknowledged(_));
        self.done.iter().filter(is_cut).count()
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

    /// Fails the power before every barrier and behind every acknowledgement. With a site left out only images are looked
    /// at that could not be left with it: what is left out changes what is on the medium, and nothing that a thread does.
    pub fn examine(&self, effort: &Effort, left_out: Option<Site>, random: &mut Random) -> Outcome {
        let mut whole = Machine::new(self.medium.clone());
        let mut lacking = left_out.map(|_| whole.clone());
        let mut outcome = Outcome::default();
        let mut acknowledged = 0;
        let mut new = false;
        let all = if left_out.is_some() { 0 } else { self.cuts() };
        for done in &self.done {
            let cut = match done {
                Done::Store { .. } => {
                    new = true;
                    false
                }
                Done::Barrier { .. } => new,
                Done::Acknowledged(_) => {
                    acknowledged += 1;
                    true
                }
                Done::WriteBack { .. } => false,
            };
            new &= !cut;
            if cut && (all <= effort.cuts_max || random.index(all) < effort.cuts_max) {
                outcome.cuts += 1;
                let failing = Failing {
                    whole: &whole,
                    lacking: lacking.as_ref().zip(left_out),
                    allowed: &self.allowed[acknowledged],
                };
                self.fail_here(&failing, effort, random, &mut outcome);
                if let Some(wrong) = &mut outcome.wrong {
                    *wrong = format!("{}, cut {}, {acknowledged} acknowledged: {wrong}", self.name, outcome.cuts);
                    return outcome;
                }
            }
            whole.step(done, None);
            if let Some(lacking) = &mut lacking {
                lacking.step(done, left_out);
            }
        }
        outcome
    }

    fn matters(&self, line: usize) -> bool {
        !self.chance.iter().any(|range| range.contains(&line))
    }

    fn fail_here(&self, failing: &Failing<'_>, effort: &Effort, random: &mut Random, outcome: &mut Outcome) {
        let mut further = random.fork(7);
        let left_out = failing.lacking.map(|(_, site)| site);
        let see = |image: &[u8]| {
            outcome.images += 1;
            let mut once_in = |n: usize| n > 0 && further.index(n) == 0;
            let (go_on, cut_again) = (once_in(effort.further), once_in(effort.further));
            outcome.wrong = self.judge_image(image, 1, failing.allowed, go_on).err();
            if outcome.wrong.is_none() && cut_again {
                outcome.wrong = self
                    .cut_recovery(image, failing.allowed, left_out, &mut further, &mut outcome.images)
                    .err();
            }
            outcome.wrong.is_none()
        };
        let matters = |line| self.matters(line);
        match failing.lacking {
            None => failing.whole.images(effort.choice, random, matters, see),
            Some((lacking, _)) => lacking.images_behind(failing.whole, effort.choice, random, matters, see),
        };
    }

    fn judge_image(&self, image: &[u8], failures: u64, allowed: &Allowed, go_on: bool) -> Result<(), String> {
        let mut judge = self.judge.borrow_mut();
        let region = judge.restart(image, failures)?;
        judge.verdict(&region, allowed, go_on)
    }

    /// The power fails again while the region recovers, or while it is in use behind that.
    fn cut_recovery(
        &self,
        image: &[u8],
        allowed: &Allowed,
        left_out: Option<Site>,
        random: &mut Random,
        images: &mut usize,
    ) -> Result<(), String> {
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
        let done = record(base, len, Vec::new(), || {
            let mut judge = self.judge.borrow_mut();
            match judge.restart(image, 1) {
                Ok(region) => {
                    acknowledge(0);
                    let process = region.recovery().attach(0, 1, NOW);
                    let session = region.session(process);
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
            machine.step(d, left_out);
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
