//! A machine whose power may fail: the medium, and for each cache line the stores that may not have reached it.
//!
//! A line goes to the medium whenever it pleases, as it then is: so what is left of it is any prefix of its stores, but no
//! shorter one than was written back before the last barrier of the thread that wrote it back. Lines are independent.

use crate::record::{Done, LINE, Site, THREADS};
use harness::Random;
use std::collections::BTreeMap;

/// A store within a line.
type Store = (usize, usize, [u8; 8]);

/// A line, and its stores that may not have arrived.
type Late<'m> = (usize, &'m [Store]);

/// A line that differs from the medium, or did.
#[derive(Clone, Debug, Default)]
struct Line {
    /// stores that may not have arrived
    stores: Vec<Store>,
    /// stores that have, since the beginning
    arrived: usize,
}

/// The machine.
#[derive(Clone)]
pub struct Machine {
    medium: Vec<u8>,
    lines: BTreeMap<usize, Line>,
    /// by thread: lines handed over, and how many stores they had
    handed: [Vec<(usize, usize)>; THREADS],
}

/// How images are chosen when there are too many.
#[derive(Clone, Copy, Debug)]
pub struct Choice {
    /// all of them, if there are no more
    pub all_up_to: usize,
    /// otherwise this many at random, besides those in which one line is early or late
    pub random: usize,
    /// of those in which one line is early or late, so many
    pub alone: usize,
    /// and fewer moments of each line
    pub thin: bool,
}

impl Machine {
    /// With everything on the medium.
    pub fn new(medium: Vec<u8>) -> Self {
        Self {
            medium,
            lines: BTreeMap::new(),
            handed: [const { Vec::new() }; THREADS],
        }
    }

    /// Does one thing; what is done at `dropped` is not done.
    pub fn step(&mut self, done: &Done, dropped: Option<Site>) {
        match *done {
            Done::Store {
                line, at, len, bytes, ..
            } => {
                let known = self.lines.entry(line).or_default();
                let now = latest(&self.medium, line, known, at, len);
                if now[..len] != bytes[..len] {
                    known.stores.push((at, len, bytes));
                }
            }
            Done::WriteBack {
                thread,
                first,
                last,
                site,
            } if dropped != Some(site) => {
                for line in first..=last {
                    if let Some(known) = self.lines.get(&line) {
                        self.handed[thread].push((line, known.arrived + known.stores.len()));
                    }
                }
            }
            Done::Barrier { thread, site } if dropped != Some(site) => {
                for (line, count) in std::mem::take(&mut self.handed[thread]) {
                    let Some(known) = self.lines.get_mut(&line) else { continue };
                    let arriving = count.saturating_sub(known.arrived);
                    for (at, len, bytes) in known.stores.drain(..arriving) {
                        put(&mut self.medium, line, at, &bytes[..len]);
                    }
                    known.arrived += arriving;
                }
            }
            _ => {}
        }
    }

    /// Shows images that the power's failing now may leave; how many. `matters` says of which lines it matters how late
    /// they are; the others are left to chance. Stops when `see` says `false`.
    pub fn images(
        &self,
        choice: Choice,
        random: &mut Random,
        matters: impl Fn(usize) -> bool,
        see: impl FnMut(&[u8]) -> bool,
    ) -> usize {
        let (chosen, chance) = self.late(matters);
        let selections = selections(&chosen, choice, random);
        self.show(&chosen, &chance, selections, random, see)
    }

    /// The same, but only images that could not be left where `ahead` is: there more has arrived, of some line that matters.
    pub fn images_behind(
        &self,
        ahead: &Self,
        choice: Choice,
        random: &mut Random,
        matters: impl Fn(usize) -> bool,
        see: impl FnMut(&[u8]) -> bool,
    ) -> usize {
        let (chosen, chance) = self.late(matters);
        let arrived = |machine: &Self, line| machine.lines.get(&line).map_or(0, |l| l.arrived);
        let there: Vec<usize> = chosen
            .iter()
            .map(|(line, _)| arrived(ahead, *line).saturating_sub(arrived(self, *line)))
            .collect();
        let selections = selections_behind(&chosen, &there, choice, random);
        self.show(&chosen, &chance, selections, random, see)
    }

    /// Lines that may be late, with the stores that may not have arrived: those that matter, and the others.
    fn late(&self, matters: impl Fn(usize) -> bool) -> (Vec<Late<'_>>, Vec<Late<'_>>) {
        self.lines
            .iter()
            .filter(|(_, l)| !l.stores.is_empty())
            .map(|(n, l)| (*n, l.stores.as_slice()))
            .partition(|(n, _)| matters(*n))
    }

    fn show(
        &self,
        chosen: &[Late<'_>],
        chance: &[Late<'_>],
        selections: Vec<Vec<usize>>,
        random: &mut Random,
        mut see: impl FnMut(&[u8]) -> bool,
    ) -> usize {
        let mut image = self.medium.clone();
        let mut seen = 0;
        for counts in selections {
            image.copy_from_slice(&self.medium);
            for ((line, stores), count) in chosen.iter().zip(&counts) {
                for (at, len, bytes) in &stores[..*count] {
                    put(&mut image, *line, *at, &bytes[..*len]);
                }
            }
            for (line, stores) in chance {
                for (at, len, bytes) in &stores[..random.index(stores.len() + 1)] {
                    put(&mut image, *line, *at, &bytes[..*len]);
                }
            }
            seen += 1;
            if !see(&image) {
                break;
            }
        }
        seen
    }
}

/// Every way in which so many stores of each line may have arrived.
fn combinations(most: &[usize], count: usize) -> impl Iterator<Item = Vec<usize>> {
    (0..count).map(|mut n| {
        most.iter()
            .map(|m| {
                let count = n % (m + 1);
                n /= m + 1;
                count
            })
            .collect()
    })
}

/// How many ways there are, unless they are more than these.
fn combined(most: &[usize], up_to: usize) -> Option<usize> {
    most.iter()
        .try_fold(1usize, |n, m| n.checked_mul(m + 1).filter(|n| *n <= up_to))
}

/// The selections in which less of some line arrived than `there` says: every combination, or those in which one such line is
/// late while all others are as late as they may be, as late as `there` says, or not late; and some at random.
fn selections_behind(lines: &[Late<'_>], there: &[usize], choice: Choice, random: &mut Random) -> Vec<Vec<usize>> {
    let behind: Vec<usize> = (0..lines.len()).filter(|i| there[*i] > 0).collect();
    if behind.is_empty() {
        return Vec::new();
    }
    let most: Vec<usize> = lines.iter().map(|(_, s)| s.len()).collect();
    if let Some(all) = combined(&most, choice.all_up_to) {
        return combinations(&most, all)
            .filter(|counts| behind.iter().any(|i| counts[*i] < there[*i]))
            .collect();
    }
    let all_but = |is_late: &dyn Fn(usize) -> bool| -> Vec<usize> {
        (0..most.len()).map(|i| if is_late(i) { 0 } else { most[i] }).collect()
    };
    let mut found = vec![all_but(&|i| there[i] > 0), vec![0; most.len()]];
    let tried = tried_alone(lines, if choice.thin { 2 } else { 12 }, random);
    for i in behind.iter().copied().filter(|i| tried.contains(i)) {
        let mut counts = vec![0, there[i] / 2, there[i] - 1];
        counts.dedup();
        for count in counts {
            for base in [&most, there] {
                let mut one = base.to_vec();
                one[i] = count;
                found.push(one);
            }
        }
    }
    while found.len() > choice.alone + 2 {
        let other = 2 + random.index(found.len() - 2);
        found.swap_remove(other);
    }
    for _ in 0..choice.random {
        let mut one: Vec<usize> = most.iter().map(|m| random.index(m + 1)).collect();
        let late = behind[random.index(behind.len())];
        one[late] = random.index(there[late]);
        found.push(one);
    }
    found
}

/// For each line how many of its stores arrived: every combination, or the telling ones and some at random.
fn selections(lines: &[Late<'_>], choice: Choice, random: &mut Random) -> Vec<Vec<usize>> {
    let most: Vec<usize> = lines.iter().map(|(_, s)| s.len()).collect();
    if let Some(all) = combined(&most, choice.all_up_to) {
        return combinations(&most, all).collect();
    }
    let none = vec![0; most.len()];
    let mut found = vec![none.clone(), most.clone()];
    let tried = tried_alone(lines, if choice.thin { 2 } else { 12 }, random);
    for (i, m) in most.iter().enumerate().filter(|(i, _)| tried.contains(i)) {
        // Of a line of payload the ends tell, and one between.
        let mut counts = if choice.thin {
            vec![0, m / 2, *m]
        } else {
            vec![0, 1, m / 2, m - 1, *m]
        };
        counts.dedup();
        for count in counts {
            for base in [&none, &most] {
                if base[i] != count {
                    let mut one = base.clone();
                    one[i] = count;
                    found.push(one);
                }
            }
        }
    }
    // Both ends stay; of the others a share that chance picks.
    while found.len() > choice.alone + 2 {
        let other = 2 + random.index(found.len() - 2);
        found.swap_remove(other);
    }
    for _ in 0..choice.random {
        found.push(most.iter().map(|m| random.index(m + 1)).collect());
    }
    found
}

/// The lines that are tried early and late on their own: all, but of the middle of a long payload only some.
fn tried_alone(lines: &[Late<'_>], wanted: u64, random: &mut Random) -> Vec<usize> {
    let is_late = |line: usize| lines.binary_search_by_key(&line, |(n, _)| *n).is_ok();
    let is_middle = |line: usize| (1..=2).all(|d| is_late(line + d) && line >= d && is_late(line - d));
    let middle = lines.iter().filter(|(n, _)| is_middle(*n)).count() as u64;
    (0..lines.len())
        .filter(|i| !is_middle(lines[*i].0) || random.below(middle) < wanted)
        .collect()
}

fn put(image: &mut [u8], line: usize, at: usize, bytes: &[u8]) {
    let start = line * LINE + at;
    image[start..start + bytes.len()].copy_from_slice(bytes);
}

/// What a running thread sees at this place.
fn latest(medium: &[u8], line: usize, known: &Line, at: usize, len: usize) -> [u8; 8] {
    let mut bytes = [0; LINE];
    bytes.copy_from_slice(&medium[line * LINE..(line + 1) * LINE]);
    for (at, len, new) in &known.stores {
        bytes[*at..at + len].copy_from_slice(&new[..*len]);
    }
    let mut out = [0; 8];
    out[..len].copy_from_slice(&bytes[at..at + len]);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const ALL: Choice = Choice {
        all_up_to: 1000,
        random: 0,
        alone: 1000,
        thin: false,
    };

    fn site(barrier: bool) -> Site {
        Site {
            file: "f",
            line: 1,
            barrier,
        }
    }

    fn store(line: usize, byte: u8) -> Done {
        Done::Store {
            thread: 0,
            line,
            at: 0,
            len: 1,
            bytes: [byte, 0, 0, 0, 0, 0, 0, 0],
        }
    }

    fn first_bytes(machine: &Machine) -> Vec<(u8, u8)> {
        let mut seen = Vec::new();
        machine.images(
            ALL,
            &mut Random::new(1),
            |_| true,
            |image| {
                seen.push((image[0], image[LINE]));
                true
            },
        );
        seen.sort_unstable();
        seen
    }

    #[test]
    fn lines_are_prefixes_and_independent() {
        let mut machine = Machine::new(vec![0; 2 * LINE]);
        for done in [store(0, 1), store(1, 1), store(0, 2)] {
            machine.step(&done, None);
        }
        assert_eq!(first_bytes(&machine), [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)]);
    }

    #[test]
    fn only_what_is_behind_another_machine_is_shown() {
        let mut ahead = Machine::new(vec![0; 2 * LINE]);
        for done in [store(0, 1), store(1, 1), store(0, 2)] {
            ahead.step(&done, None);
        }
        let lacking = ahead.clone();
        let write_back = Done::WriteBack {
            thread: 0,
            first: 0,
            last: 0,
            site: site(false),
        };
        let barrier = Done::Barrier {
            thread: 0,
            site: site(true),
        };
        ahead.step(&write_back, None);
        ahead.step(&barrier, None);
        let few = Choice { all_up_to: 1, ..ALL };
        for (choice, wanted) in [
            (ALL, vec![(0, 0), (0, 1), (1, 0), (1, 1)]),
            (few, vec![(0, 0), (0, 1), (1, 0), (1, 1)]),
        ] {
            let mut seen = BTreeSet::new();
            let see = |image: &[u8]| {
                seen.insert((image[0], image[LINE]));
                true
            };
            lacking.images_behind(&ahead, choice, &mut Random::new(1), |_| true, see);
            assert_eq!(seen.into_iter().collect::<Vec<_>>(), wanted);
        }
        let same = lacking.clone();
        let none = lacking.images_behind(&same, ALL, &mut Random::new(1), |_| true, |_| true);
        assert_eq!(none, 0, "nothing is behind itself");
    }

    #[test]
    fn what_was_written_back_is_there_after_the_barrier_of_the_same_thread() {
        let write_back = |thread| Done::WriteBack {
            thread,
            first: 0,
            last: 0,
            site: site(false),
        };
        let barrier = |thread| Done::Barrier {
            thread,
            site: site(true),
        };
        let mut machine = Machine::new(vec![0; 2 * LINE]);
        for done in [store(0, 1), write_back(0), store(0, 2), barrier(1)] {
            machine.step(&done, None);
        }
        assert_eq!(first_bytes(&machine), [(0, 0), (1, 0), (2, 0)], "another thread's barrier");
        let mut dropped = machine.clone();
        dropped.step(&barrier(0), Some(site(true)));
        assert_eq!(first_bytes(&dropped), [(0, 0), (1, 0), (2, 0)], "a barrier left out");
        machine.step(&barrier(0), None);
        assert_eq!(
            first_bytes(&machine),
            [(1, 0), (2, 0)],
            "the store behind the write-back may be lost"
        );
    }
}
