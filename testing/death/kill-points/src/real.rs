//! The same with nothing of ours in between: processes that use the library, on a file, with open-file-description locks; killed
//! with SIGKILL, or stopped with SIGSTOP and continued.

use crate::door::Way;
use crate::ground::Named;
use crate::operation::{Cas, Door, Op, Seen, View, view};
use crate::scenario::large;
use crate::step::{Child, Work};
use keyway_cache::{Cache, Options, Place, Session};
use keyway_region::verbs::{Delete, Deleted, Get, Store, StoreMode, Stored};
use std::path::{Path, PathBuf};

/// Bytes of a region: the smallest.
const MEMORY: u64 = 2 << 20;

/// What is done to the process at its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// SIGKILL
    Killed,
    /// SIGSTOP; the others work; SIGCONT
    Stopped,
    /// SIGSTOP; another region takes the file's name; SIGCONT
    Replaced,
}

/// The operations that are tried, and whether memory is full before.
pub fn operations() -> Vec<(&'static str, Op, bool)> {
    let key = |text: &str| text.as_bytes().to_vec();
    vec![
        ("set, absent", Op::set(b"new", b"fresh value"), false),
        ("set, present", Op::set(b"by-3", b"another value"), false),
        ("set, large over large", Op::set(b"big", &large(3, 40_000)), false),
        ("set, evicting", Op::set(b"new", &large(4, 120_000)), true),
        ("append, present", Op::store(b"by-3", b"tail", StoreMode::Append), false),
        (
            "cas, matching",
            Op::Store(key("by-3"), key("compared"), StoreMode::Set, Cas::Noted),
            false,
        ),
        ("delete, large", Op::Delete(key("big")), false),
        (
            "incr, present",
            Op::Count {
                key: key("n"),
                decrement: false,
                vivify: false,
            },
            false,
        ),
        ("touch, large", Op::Touch(key("big")), false),
        ("get, present", Op::Get(key("by-3")), false),
    ]
}

fn open(path: &Path) -> Result<Cache, String> {
    let options = Options::new().memory(MEMORY).item_size_max(1 << 18);
    Cache::open(&Place::Path(path.to_path_buf()), &options).map_err(|e| e.to_string())
}

struct Member {
    path: PathBuf,
    way: Way,
    op: Op,
    is_full: bool,
    door: Option<Box<dyn Door>>,
    noted_cas: u64,
}

impl Work for Member {
    fn setup(&mut self) {
        let mut door = self.way.open(&self.path);
        setup(&mut *door, self.is_full);
        self.noted_cas = self.op.key().map_or(0, |key| crate::operation::cas_of(&mut *door, key));
        self.door = Some(door);
    }

    fn operate(&mut self) -> String {
        let (op, cas) = (&self.op, self.noted_cas);
        self.door
            .as_mut()
            .map_or_else(String::new, |door| op.perform(&mut **door, cas))
    }

    fn end(&mut self) {
        self.door = None;
    }
}

fn setup(door: &mut dyn Door, is_full: bool) {
    let mut put = |key: String, value: &[u8]| {
        let stored = door.store(key.as_bytes(), value, &Store::default());
        assert!(stored.is_ok(), "a setup's set failed: {stored:?}");
    };
    if is_full {
        for i in 0..300 {
            put(format!("item-{i}"), &vec![5; 9000]);
        }
    }
    for i in 0..10 {
        put(format!("by-{i}"), &vec![3; i * 29 % 400]);
    }
    put("n".into(), b"41");
    put("big".into(), &large(1, 36_000));
}

fn keys() -> Vec<Vec<u8>> {
    let others = ["n", "big", "new"].map(|k| k.as_bytes().to_vec());
    (0..10).map(|i| format!("by-{i}").into_bytes()).chain(others).collect()
}

/// What an operation is, from call to return.
pub struct Known {
    /// instructions
    pub steps: u64,
    outcome: String,
    before: View,
    after: View,
}

/// Lets an operation run from call to return, once.
///
/// # Errors
///
/// It does not.
pub fn know(way: &Way, op: &Op, is_full: bool) -> Result<Known, String> {
    let place = Named::new();
    let cache = open(&place.0)?;
    let mut session = cache.session().map_err(|e| e.to_string())?;
    let child = call(&place.0, way, op, is_full)?;
    let before = view(&mut session, &keys())?;
    let mut steps = 0;
    while child.step()? {
        steps += 1;
    }
    let outcome = child.finish()?;
    let after = view(&mut session, &keys())?;
    Ok(Known {
        steps,
        outcome,
        before,
        after,
    })
}

fn call(path: &Path, way: &Way, op: &Op, is_full: bool) -> Result<Child, String> {
    Child::at_call(Member {
        path: path.to_path_buf(),
        way: way.clone(),
        op: op.clone(),
        is_full,
        door: None,
        noted_cas: 0,
    })
}

/// One process meets its fate after so many instructions.
///
/// # Errors
///
/// What is wrong then.
pub fn at(way: &Way, op: &Op, is_full: bool, known: &Known, steps: u64, fate: Fate) -> Result<(), String> {
    let place = Named::new();
    let cache = open(&place.0)?;
    let mut session = cache.session().map_err(|e| e.to_string())?;
    let child = call(&place.0, way, op, is_full)?;
    child.steps(steps)?;
    let recoveries = cache.counters().recoveries;
    match fate {
        Fate::Killed => {
            child.kill();
            session.upkeep();
            let recovered = cache.counters().recoveries - recoveries;
            if recovered != 1 {
                return Err(format!("{recovered} sessions were recovered"));
            }
            let now = view(&mut session, &keys())?;
            let wrong = now.iter().find(|(key, seen)| !is_known(known, key, **seen, is_full));
            if let Some((key, seen)) = wrong {
                return Err(format!("{} is {seen:?}", key.escape_ascii()));
            }
            work(&mut session, op, is_full)?;
            settle(&cache, &mut session)
        }
        Fate::Stopped => {
            let stopped = child.stop()?;
            work(&mut session, op, is_full)?;
            session.upkeep();
            if cache.counters().recoveries != recoveries {
                return Err("a stopped process was recovered".into());
            }
            let mut endings = endings(&place.0, op)?;
            let now = own(&mut session, op)?;
            endings.extend([(known.outcome.clone(), now), (known.outcome.clone(), None)]);
            let ending = (stopped.go_on()?, own(&mut session, op)?);
            if !endings.contains(&ending) {
                return Err(format!("it answered and left {ending:?}; possible are {endings:?}"));
            }
            work(&mut session, op, is_full)?;
            settle(&cache, &mut session)
        }
        Fate::Replaced => {
            let stopped = child.stop()?;
            let other = Named::new();
            open(&other.0)?.close();
            std::fs::rename(&other.0, &place.0).map_err(|e| e.to_string())?;
            let cache = open(&place.0)?;
            let mut session = cache.session().map_err(|e| e.to_string())?;
            work(&mut session, op, false)?;
            stopped.go_on()?;
            if let Some(seen) = own(&mut session, op)? {
                return Err(format!("it wrote to a region that it never saw: {seen:?}"));
            }
            settle(&cache, &mut session)
        }
    }
}

fn is_known(known: &Known, key: &[u8], seen: Option<Seen>, evicts: bool) -> bool {
    let old_and_new = [known.before.get(key), known.after.get(key)];
    old_and_new.contains(&Some(&seen)) || (evicts && seen.is_none())
}

/// The others use the key, and go round all of the memory. The key is absent in the end.
fn work(session: &mut Session, op: &Op, is_full: bool) -> Result<(), String> {
    let key = op.key().unwrap_or(b"by-3");
    let mut set = |key: &[u8], value: &[u8]| match Door::store(session, key, value, &Store::default()) {
        Ok(Stored::Stored { .. }) => Ok(()),
        other => Err(format!("set answers {other:?}")),
    };
    set(key, b"the others'")?;
    let mut written = 0;
    for i in 0u32.. {
        let value = large(i.to_le_bytes()[0], if i % 9 == 0 { 50_000 } else { 3000 });
        set(format!("fill-{i}").as_bytes(), &value)?;
        written += value.len() as u64;
        if written > if is_full { MEMORY } else { MEMORY / 8 } {
            break;
        }
    }
    set(key, b"the others' again")?;
    let mut out = Vec::new();
    let how = Get {
        value: true,
        ..Get::default()
    };
    Door::get(session, key, &how, &mut out).map_err(|e| e.to_string())?;
    if out != b"the others' again" {
        return Err(format!("not what was just written, but '{}'", out.escape_ascii()));
    }
    match Door::delete(session, key, &Delete::default()) {
        Ok(Deleted::Deleted) => Ok(()),
        other => Err(format!("delete answers {other:?}")),
    }
}

/// Every invariant holds, and nothing is lost.
fn settle(cache: &Cache, session: &mut Session) -> Result<(), String> {
    for _ in 0..3 {
        session.upkeep();
    }
    let report = cache.check(|_| {});
    if !report.is_sound() {
        return Err(format!("check: {}", report.problems.join("; ")));
    }
    if report.counts.reclaimable + report.counts.tentative > 0 {
        return Err(format!("something is left: {:?}", report.counts));
    }
    Ok(())
}

fn own(session: &mut Session, op: &Op) -> Result<Option<Seen>, String> {
    let key = op.key().unwrap_or(b"by-3").to_vec();
    Ok(view(session, [&key])?.into_values().next().flatten())
}

/// What the operation would answer and leave if it began now, on a copy of the region, with the key as it is or evicted.
fn endings(path: &Path, op: &Op) -> Result<Vec<(String, Option<Seen>)>, String> {
    let mut endings = Vec::new();
    for evicted in [false, true] {
        let copy = Named::new();
        std::fs::copy(path, &copy.0).map_err(|e| e.to_string())?;
        let cache = open(&copy.0)?;
        let mut session = cache.session().map_err(|e| e.to_string())?;
        if evicted {
            Op::Delete(op.key().unwrap_or(b"by-3").to_vec()).perform(&mut session, 0);
        }
        let outcome = op.perform(&mut session, 1);
        endings.push((outcome, own(&mut session, op)?));
    }
    Ok(endings)
}
