//! A machine whose power may fail: the medium, and for each cache line the stores that may not have reached it.
//!
//! A line goes to the medium whenever it pleases, as it then is: so what is left of it is any prefix of its stores, but no
//! shorter one than was written back before the last barrier of whoever wrote it back. Lines are independent.

use crate::record::{Done, LINE, Site};
use harness::Random;
use std::collections::BTreeMap;

/// A store within a line.
type Store = (usize, usize, [u8; 8]);

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
    handed: [Vec<(usize, usize)>; 2],
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
            handed: [Vec::new(), Vec::new()],
        }
    }

    /// Does one thing; what is done at `dropped` is not done.
    pub fn step(&mut self, done: &Done, dropped: Option<Site>) {
        match *done {
            Done::Store { line, at, len, bytes } => {
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
        mut see: impl FnMut(&[u8]) -> bool,
    ) -> usize {
        let late: Vec<(usize, &[Store])> = self
            .lines
            .iter()
            .filter(|(_, l)| !l.stores.is_empty())
            .map(|(n, l)| (*n, l.stores.as_slice()))
            .collect();
        let (chosen, chance): (Vec<_>, Vec<_>) = late.into_iter().partition(|(n, _)| matters(*n));
        let mut image = self.medium.clone();
        let mut seen = 0;
        for counts in selections(&chosen, choice, random) {
            image.copy_from_slice(&self.medium);
            for ((line, stores), count) in chosen.iter().zip(&counts) {
                for (at, len, bytes) in &stores[..*count] {
                    put(&mut image, *line, *at, &bytes[..*len]);
                }
            }
            for (line, stores) in &chance {
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

/// For each line how many of its stores arrived: every combination, or the telling ones and some at random.
fn selections(lines: &[(usize, &[Store])], choice: Choice, random: &mut Random) -> Vec<Vec<usize>> {
    let all = lines.iter().try_fold(1usize, |n, (_, s)| {
        n.checked_mul(s.len() + 1).filter(|n| *n <= choice.all_up_to)
    });
    let most: Vec<usize> = lines.iter().map(|(_, s)| s.len()).collect();
    if let Some(all) = all {
        return (0..all)
            .map(|mut n| {
                most.iter()
                    .map(|m| {
                        let count = n % (m + 1);
                        n /= m + 1;
                        count
                    })
                    .collect()
            })
            .collect();
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
fn tried_alone(lines: &[(usize, &[Store])], wanted: u64, random: &mut Random) -> Vec<usize> {
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
