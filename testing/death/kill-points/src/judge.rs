//! What must hold on an image: for other processes while its writer is stopped, and for all once it is dead.

use crate::ground::{Ground, OTHER, STOPPED};
use crate::operation::{Door, Op, Player, Seen, Step, View, cas_of, view};
use crate::scenario::large;
use keyway_region::Region;
use keyway_region::check::{Report, check};
use keyway_region::fetch::Fetched;
use keyway_region::verbs::{Arithmetic, Counted, Delete, Deleted, Get, Store, StoreMode, Stored};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Accesses to the region that one verb may take. The most that a verb takes where nothing is stopped, an eviction with all
/// that hangs on it included, is about a quarter of it.
pub const ACCESSES_MAX: u64 = 200_000;
/// Upkeeps after which nothing that the dead held may be left.
const UPKEEPS: usize = 8;

/// What an image may show.
pub struct Brief {
    /// what is known of every key before the operation
    pub before: View,
    /// and behind it
    pub after: View,
    /// other keys may go: the operation evicts
    pub evicts: bool,
    /// the key that the others work with too
    pub key: Vec<u8>,
    /// the process slots of those that were dead before
    pub dead: Vec<usize>,
    /// the process slot of the one that is stopped, or dead
    pub stopped: usize,
}

impl Brief {
    /// From the images before and behind.
    ///
    /// # Errors
    ///
    /// An image that cannot be read.
    pub fn new(ground: &mut Ground, first: &[u8], last: &[u8], op: &Op) -> Result<Self, String> {
        let mut keys: std::collections::BTreeSet<Vec<u8>> = op.key().map(<[u8]>::to_vec).into_iter().collect();
        for image in [first, last] {
            ground.restore(image);
            let region = ground.open();
            let now = region.clock().tick(keyway_region::Moment::from_secs(crate::ground::NOW));
            region.index().walk(0, usize::MAX, now, |key, _| {
                keys.insert(key.to_vec());
            });
        }
        let mut views = Vec::new();
        for image in [first, last] {
            ground.restore(image);
            ground.dead.are(&[]);
            views.push(view(&mut Player::attach(ground.open(), OTHER), &keys)?);
        }
        let (after, before) = (views.pop().unwrap_or_default(), views.pop().unwrap_or_default());
        let key = op.key().map_or_else(|| b"by-3".to_vec(), <[u8]>::to_vec);
        let evicts = before.iter().any(|(k, seen)| seen.is_some() && after.get(k) == Some(&None)) && !matches!(op, Op::Flush);
        Ok(Self {
            before,
            after,
            evicts: evicts && !matches!(op, Op::Delete(_)),
            key,
            dead: Vec::new(),
            stopped: STOPPED,
        })
    }

    /// For one who recovers from `other`, whose operation went no further: nothing that can be seen may change.
    pub fn of_recovery(other: &Self, ground: &mut Ground, image: &[u8]) -> Result<Self, String> {
        ground.restore(image);
        ground.dead.are(&[]);
        let seen = view(&mut Player::attach(ground.open(), OTHER), other.before.keys())?;
        Ok(Self {
            before: seen.clone(),
            after: seen,
            evicts: other.evicts,
            key: other.key.clone(),
            dead: vec![STOPPED],
            stopped: crate::ground::RECOVERER,
        })
    }

    /// Whether the operation is seen in this view: `None` where it changes nothing that can be seen.
    fn is_done(&self, now: &View) -> Result<Option<bool>, String> {
        if self.evicts {
            for (key, seen) in now {
                let known = [self.before.get(key), self.after.get(key)];
                if seen.is_some() && !known.contains(&Some(seen)) {
                    return Err(format!("{} is neither old nor new: {seen:?}", key.escape_ascii()));
                }
            }
            return Ok(None);
        }
        match (*now == self.before, *now == self.after) {
            (true, true) => Ok(None),
            (true, false) => Ok(Some(false)),
            (false, true) => Ok(Some(true)),
            (false, false) => Err(difference(&self.before, &self.after, now)),
        }
    }
}

fn difference(before: &View, after: &View, now: &View) -> String {
    let odd = now
        .iter()
        .find(|(key, seen)| before.get(*key) != Some(*seen) && after.get(*key) != Some(*seen));
    match odd {
        Some((key, seen)) => format!(
            "{} is {seen:?}; before {:?}, behind {:?}",
            key.escape_ascii(),
            before.get(key),
            after.get(key)
        ),
        None => "the operation is seen in part: some keys are old and some are new".into(),
    }
}

/// What was found on an image that is right.
#[derive(Clone, Copy, Debug, Default)]
pub struct Verdict {
    /// whether the operation is seen
    pub is_done: Option<bool>,
    /// most accesses that a verb took
    pub accesses: u64,
}

/// Judges an image.
///
/// # Errors
///
/// What is wrong with it.
pub fn judge(ground: &mut Ground, image: &[u8], brief: &Brief) -> Result<Verdict, String> {
    let judged = catch_unwind(AssertUnwindSafe(|| {
        let stopped = while_stopped(ground, image, brief).map_err(|e| format!("while it is stopped: {e}"))?;
        let dead = when_dead(ground, image, brief, stopped.is_done).map_err(|e| format!("when it is dead: {e}"))?;
        Ok(Verdict {
            accesses: stopped.accesses.max(dead),
            ..stopped
        })
    }));
    mutants::count_accesses(u64::MAX);
    judged.unwrap_or_else(|panic| Err(said(&*panic)))
}

/// A panic's words.
pub fn said(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("?"))
}

/// The others, while the stopped one is alive and does not move.
fn while_stopped(ground: &mut Ground, image: &[u8], brief: &Brief) -> Result<Verdict, String> {
    ground.restore(image);
    ground.dead.are(&brief.dead);
    let region = ground.open();
    let corrupt = region.threads().counters().corrupt;
    let mut others = Others::new(Player::attach(region, OTHER));
    let first = others.look(brief)?;
    let is_done = brief.is_done(&first)?;
    if others.look(brief)? != first {
        return Err("a second look shows something else".into());
    }
    others.work(brief, false)?;
    others.fill(ground.bytes().len())?;
    others.all_known(brief)?;
    sound(&others.player.region, corrupt)?;
    Ok(Verdict {
        is_done,
        accesses: others.accesses,
    })
}

/// All processes, once the stopped one is dead. The most accesses that a verb took.
fn when_dead(ground: &mut Ground, image: &[u8], brief: &Brief, was_done: Option<bool>) -> Result<u64, String> {
    ground.restore(image);
    ground.dead.are(&[&brief.dead[..], &[brief.stopped]].concat());
    let region = ground.open();
    let corrupt = region.threads().counters().corrupt;
    let mut others = Others::new(Player::attach(region, OTHER));
    others.verb("recover", |p| {
        p.region.recovery().recover();
        Ok(())
    })?;
    let report = sound(&others.player.region, corrupt)?;
    if report.counts.tentative > 0 {
        return Err("recovery left a tentative word".into());
    }
    let is_done = brief.is_done(&others.look(brief)?)?;
    if is_done != was_done {
        return Err(format!("seen: {was_done:?} before the recovery, {is_done:?} after it"));
    }
    for _ in 0..UPKEEPS {
        others.verb("upkeep", |p| {
            p.upkeep();
            Ok(())
        })?;
    }
    let report = sound(&others.player.region, corrupt)?;
    if report.counts.reclaimable > 0 {
        return Err(format!(
            "{} segments are of no use after {UPKEEPS} upkeeps: {:?}",
            report.counts.reclaimable, report.counts
        ));
    }
    // An item that was not published is not marked, and nothing leads to it.
    if report.counts.uncounted > report.counts.unmarked {
        return Err(format!(
            "dead bytes are not counted after {UPKEEPS} upkeeps: {:?}",
            report.counts
        ));
    }
    if brief.is_done(&others.look(brief)?)? != was_done {
        return Err("upkeep changed what is seen".into());
    }
    others.work(brief, true)?;
    others.fill(ground.bytes().len())?;
    others.all_known(brief)?;
    sound(&others.player.region, corrupt)?;
    let accesses = others.accesses;
    nothing_lost(others.player)?;
    Ok(accesses)
}

/// Everything is deleted and flushed: every segment but the index's is free, and the counts say so.
///
/// # Errors
///
/// What is left.
pub fn nothing_lost(mut player: Player) -> Result<(), String> {
    let mut keys = Vec::new();
    player
        .region
        .index()
        .walk(0, usize::MAX, player.now, |key, _| keys.push(key.to_vec()));
    for key in &keys {
        let _ = player.delete(key, &Delete::default());
    }
    for _ in 0..UPKEEPS {
        player.upkeep();
    }
    let report = check(&player.region, |_| {});
    if report.counts.large > 0 || report.counts.reclaimable > 0 {
        return Err(format!(
            "memory is lost: everything is deleted, and there are {:?}",
            report.counts
        ));
    }
    player.flush_all(0).map_err(|e| e.to_string())?;
    player.release();
    for _ in 0..UPKEEPS {
        player.upkeep();
    }
    let report = check(&player.region, |_| {});
    let counts = report.counts;
    let kept = counts.index + counts.hints + counts.ghosts;
    if counts.free + counts.withdrawn + kept != player.region.mapped().segments() {
        return Err(format!("memory is lost: everything is flushed, and there are {counts:?}"));
    }
    if counts.free_counted != counts.free as u64 {
        return Err(format!("the count of free segments drifted: {counts:?}"));
    }
    if (counts.withdrawn_counted, counts.withdrawn) != (counts.withdrawn as u64, player.region.mapped().withheld()) {
        return Err(format!(
            "not as many segments are out of use as the limit says ({}): {counts:?}",
            player.region.mapped().withheld()
        ));
    }
    Ok(())
}

/// Every invariant holds, and no process met what cannot be.
fn sound(region: &Region, corrupt: u64) -> Result<Report, String> {
    let report = check(region, |_| {});
    if !report.is_sound() {
        return Err(format!("check: {}", report.problems.join("; ")));
    }
    let met = region.threads().counters().corrupt - corrupt;
    if met > 0 {
        return Err(format!("{met} times something was met that cannot be"));
    }
    Ok(report)
}

/// Another process, and what it counts.
pub struct Others {
    /// who
    pub player: Player,
    accesses: u64,
}

impl Others {
    /// Nothing counted yet.
    pub fn new(player: Player) -> Self {
        Self { player, accesses: 0 }
    }

    fn verb<T>(&mut self, name: &str, verb: impl FnOnce(&mut Player) -> Result<T, String>) -> Result<T, String> {
        mutants::count_accesses(ACCESSES_MAX);
        let result = verb(&mut self.player);
        self.accesses = self.accesses.max(mutants::accesses());
        mutants::count_accesses(u64::MAX);
        result.map_err(|e| format!("{name}: {e}"))
    }

    fn look(&mut self, brief: &Brief) -> Result<View, String> {
        view(&mut self.player, brief.before.keys())
    }

    /// No key shows what was never written.
    fn all_known(&mut self, brief: &Brief) -> Result<(), String> {
        for (key, seen) in self.look(brief)? {
            let known = [brief.before.get(&key), brief.after.get(&key)];
            if seen.is_some() && !known.contains(&Some(&seen)) {
                return Err(format!("{} is {seen:?}, which was never written", key.escape_ascii()));
            }
        }
        Ok(())
    }

    /// Every verb on the key of the operation and on others. It is absent in the end. `is_dead`: the process of the operation is known to
    /// be.
    ///
    /// # Errors
    ///
    /// A verb that fails, or answers what it must not.
    pub fn work(&mut self, brief: &Brief, is_dead: bool) -> Result<(), String> {
        // A change of every item meets whatever is half done in its buckets.
        let how = Store {
            mode: StoreMode::Append,
            ..Store::default()
        };
        for key in brief.before.keys().filter(|key| **key != brief.key) {
            self.verb("append nothing", |p| p.store(key, b"", &how).map_err(|e| e.to_string()))?;
        }
        self.fetch(&brief.key, is_dead)
            .map_err(|e| format!("{}: {e}", brief.key.escape_ascii()))?;
        let strangers: [&[u8]; 2] = [b"stranger", b"another stranger"];
        for key in [brief.key.as_slice()].into_iter().chain(strangers) {
            self.every_verb(key).map_err(|e| format!("{}: {e}", key.escape_ascii()))?;
        }
        Ok(())
    }

    /// A process gets the right to compute a key that no other live process computes, and stores nothing after a change of the key.
    fn fetch(&mut self, key: &[u8], is_dead: bool) -> Result<(), String> {
        match self.begin(key)? {
            Fetched::Compute(..) => self.end_fetch(key, b"computed", true)?,
            Fetched::Elsewhere(flight) if is_dead => return Err(format!("a dead process computes it: {flight:?}")),
            Fetched::Fresh(_) | Fetched::Stale(_) | Fetched::Elsewhere(_) | Fetched::Nothing | Fetched::Unclaimed(_) => {}
        }
        self.verb("delete", |p| p.delete(key, &Delete::default()).map_err(|e| e.to_string()))?;
        for is_changed in [true, false] {
            let begun = self.begin(key)?;
            expect("a fetch of what is absent", matches!(begun, Fetched::Compute(..)), &begun)?;
            let again = self.begin(key)?;
            expect("a second fetch", matches!(again, Fetched::Elsewhere(_)), &again)?;
            if is_changed {
                self.verb("delete", |p| p.delete(key, &Delete::default()).map_err(|e| e.to_string()))?;
            }
            self.end_fetch(key, b"late", !is_changed)?;
        }
        Ok(())
    }

    fn begin(&mut self, key: &[u8]) -> Result<Fetched, String> {
        self.verb("fetch", |p| p.begin(key).map_err(|e| e.to_string()))
    }

    fn end_fetch(&mut self, key: &[u8], value: &[u8], lands: bool) -> Result<(), String> {
        let step = Step::Store(value.to_vec());
        let stored = self.verb("the store of a fetch", |p| p.fetch(key, &step).map_err(|e| e.to_string()))?;
        expect("the store of a fetch", stored == lands.to_string(), &stored)?;
        self.has(key, lands.then_some(value))
    }

    fn every_verb(&mut self, key: &[u8]) -> Result<(), String> {
        self.set(key, b"10")?;
        let how = Arithmetic {
            delta: 5,
            ..Arithmetic::default()
        };
        let counted = self.verb("incr", |p| p.arithmetic(key, &how).map_err(|e| e.to_string()))?;
        expect("incr", matches!(counted, Counted::Value { value: 15, .. }), &counted)?;
        for (mode, value) in [(StoreMode::Append, "x"), (StoreMode::Prepend, "y"), (StoreMode::Add, "no")] {
            let how = Store {
                mode,
                ..Store::default()
            };
            let stored = self.verb("store", |p| p.store(key, value.as_bytes(), &how).map_err(|e| e.to_string()))?;
            let wanted = mode != StoreMode::Add;
            expect("store", matches!(stored, Stored::Stored { .. }) == wanted, &stored)?;
        }
        self.has(key, Some(b"y15x"))?;
        let cas = cas_of(&mut self.player, key);
        let how = Store {
            compare_cas: Some(cas),
            ..Store::default()
        };
        let stored = self.verb("cas", |p| p.store(key, b"compared", &how).map_err(|e| e.to_string()))?;
        expect("cas", matches!(stored, Stored::Stored { .. }), &stored)?;
        let touched = self.verb("touch", |p| p.touch(key, 100).map_err(|e| e.to_string()))?;
        expect("touch", touched, &touched)?;
        self.has(key, Some(b"compared"))?;
        let value = large(7, 20_000);
        self.set(key, &value)?;
        self.has(key, Some(&value))?;
        for wanted in [Deleted::Deleted, Deleted::NotFound] {
            let deleted = self.verb("delete", |p| p.delete(key, &Delete::default()).map_err(|e| e.to_string()))?;
            expect("delete", deleted == wanted, &deleted)?;
            self.has(key, None)?;
        }
        Ok(())
    }

    /// Writes one and a half times what the memory holds: evictions run over whatever is half done.
    ///
    /// # Errors
    ///
    /// A set that fails, or a value that is not there behind it.
    pub fn fill(&mut self, memory: usize) -> Result<(), String> {
        const SIZES: [usize; 8] = [300, 1200, 90, 5000, 40, 20_000, 700, 2500];
        let mut written = 0;
        let mut i = 0;
        while written < memory * 3 / 2 {
            let len = SIZES[i % SIZES.len()];
            let value = if len < 16_000 {
                vec![i.to_le_bytes()[0]; len]
            } else {
                large(i.to_le_bytes()[0], len)
            };
            let key = format!("fill-{i}");
            self.set(key.as_bytes(), &value).map_err(|e| format!("filling, {key}: {e}"))?;
            self.has(key.as_bytes(), Some(&value))?;
            written += len + 24;
            i += 1;
        }
        Ok(())
    }

    /// A set that succeeds.
    ///
    /// # Errors
    ///
    /// It does not.
    pub fn set(&mut self, key: &[u8], value: &[u8]) -> Result<(), String> {
        let stored = self.verb("set", |p| p.store(key, value, &Store::default()).map_err(|e| e.to_string()))?;
        expect("set", matches!(stored, Stored::Stored { .. }), &stored)
    }

    fn has(&mut self, key: &[u8], wanted: Option<&[u8]>) -> Result<(), String> {
        let how = Get {
            value: true,
            ..Get::default()
        };
        let mut out = Vec::new();
        let item = self.verb("get", |p| p.get(key, &how, &mut out).map_err(|e| e.to_string()))?;
        let shown = item.map(|item| Seen::new(&item, &out));
        expect(
            "get",
            item.is_some() == wanted.is_some() && wanted.is_none_or(|w| w == out),
            &shown,
        )
    }
}

fn expect(what: &str, is_right: bool, answer: &impl core::fmt::Debug) -> Result<(), String> {
    if is_right {
        Ok(())
    } else {
        Err(format!("{what} answers {answer:?}"))
    }
}
