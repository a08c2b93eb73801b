//! What explores the schedules of the scenarios.

use harness::Random;
use histories::{Answer, Call, Key, Operation, Rules, Verb, judge, value};
use keyway_region::fetch::{Fetched, Flight, Freshness, Refreshed};
use keyway_region::observe::{self, Event};
use keyway_region::verbs::{Arithmetic, Counted, Delete, Deleted, Get, Store, StoreMode, Stored, WriteError};
use keyway_region::{Fetches, Limits, Process, Region, Session, check};
use kill_points::ground::{Ground, NOW};
use mutants::Mutant;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;
use std::sync::Arc;

use crate::copies;
use crate::preempt::{self, Overtaken, Woven};
use crate::scenarios::{Act, Found, PLAIN_GET, SCENARIOS, Scenario, Stage, get};

const HELP: &str = "\
cargo xtask schedules: threads on one tiny region, switched before any access to shared memory

    --short         200 schedules a scenario
    --schedules N   as many [default: 20000]
    --only TEXT     the scenario of this name, or those whose name contains it; \"copies\" is the last part
    --sound         without the broken variants
    --seed N        of the death's place in scenarios with one

First come the schedules in which a thread is overtaken at each of its accesses, and some in which two are stopped. Where a scenario has a
broken variant, which it must reject, others follow: half of them random, half PCT's with three changes of priority.

Last, copies: before each access of a change, by a single thread, copies that are current by the words in which changes are counted must be what
the region has; the counting is turned on before any one access. Five regions that do not count as they must are rejected.
";

pub(crate) fn answer(session: &mut Session, now: u32, call: &Call) -> Answer {
    if session.is_fenced() {
        another_slot(session, 0);
    }
    try_answer(session, now, call).unwrap_or_else(|e| match e {
        WriteError::OutOfMemory | WriteError::TooLarge { .. } => Answer::Refused,
        _ => Answer::Torn,
    })
}

fn try_answer(session: &mut Session, now: u32, call: &Call) -> Result<Answer, WriteError> {
    let name = call.key.name(0);
    let key = name.as_bytes();
    let mut how = Store::default();
    match call.verb {
        Verb::Get | Verb::Gat => {
            let mut out = Vec::new();
            let how = Get {
                value: true,
                details: call.verb == Verb::Gat || call.argument != PLAIN_GET,
                exptime: (call.verb == Verb::Gat).then_some(i64::from(call.exptime)),
                ..Get::default()
            };
            return Ok(match session.get(key, &how, now, &mut out)? {
                Some(item) => value::read(call.key, &out).map_or(Answer::Torn, |value| Answer::Hit { value, cas: item.cas }),
                None => Answer::Miss,
            });
        }
        Verb::Touch => {
            return Ok(match session.touch(key, i64::from(call.exptime), now)? {
                true => Answer::Touched,
                false => Answer::NotFound,
            });
        }
        Verb::Incr => {
            let how = Arithmetic {
                delta: call.argument,
                ..Arithmetic::default()
            };
            return Ok(match session.arithmetic(key, &how, now)? {
                Counted::Value { value, item } => Answer::Number {
                    number: value,
                    cas: item.cas,
                },
                Counted::NotFound => Answer::NotFound,
                Counted::Exists | Counted::NotANumber => Answer::Torn,
            });
        }
        Verb::Flush => {
            session.flush_all(0, now)?;
            return Ok(Answer::Flushed);
        }
        Verb::Delete => {
            return Ok(match session.delete(key, &Delete::default(), now)? {
                Deleted::Deleted => Answer::Deleted,
                _ => Answer::NotFound,
            });
        }
        Verb::FetchBegin => {
            let mut out = Vec::new();
            return Ok(match Fetches::of(session).begin(key, &Freshness::default(), now, &mut out)? {
                Fetched::Fresh(item) => {
                    value::read(call.key, &out).map_or(Answer::Torn, |value| Answer::Hit { value, cas: item.cas })
                }
                Fetched::Compute(flight, None) => Answer::Claimed { flight: flight.serial },
                Fetched::Elsewhere(_) => Answer::InFlight,
                _ => Answer::Torn,
            });
        }
        Verb::FetchStore => {
            let flight = Flight {
                holder: session.holder(),
                serial: call.compare,
            };
            return Ok(
                match Fetches::of(session).store(key, flight, &call.bytes(), &Refreshed::default(), now)? {
                    true => Answer::Stored { cas: 0 },
                    false => Answer::Void,
                },
            );
        }
        Verb::Set => {}
        Verb::Add => how.mode = StoreMode::Add,
        Verb::Replace => how.mode = StoreMode::Replace,
        Verb::Append => how.mode = StoreMode::Append,
        Verb::Prepend => how.mode = StoreMode::Prepend,
        Verb::Cas => how.compare_cas = Some(call.compare),
    }
    Ok(match session.store(key, &call.bytes(), &how, now)? {
        Stored::Stored { cas, .. } => Answer::Stored { cas },
        Stored::NotStored => Answer::NotStored,
        Stored::Exists => Answer::Exists,
        Stored::NotFound => Answer::NotFound,
    })
}

/// A scenario that is set up: what every schedule starts from.
struct Ready {
    ground: Ground,
    image: Vec<u8>,
    before: Vec<Operation>,
    threads: Vec<Vec<Act>>,
    evicts: bool,
    dies: bool,
    is_suspected: bool,
}

thread_local! {
    /// All threads of a schedule run on one thread of the system, so these are theirs together.
    static READY: RefCell<Option<Ready>> = const { RefCell::new(None) };
    static POINT: RefCell<Option<Arc<AtomicUsize>>> = const { RefCell::new(None) };
    static CLOCK: Cell<u64> = const { Cell::new(0) };
    static HISTORY: RefCell<Vec<Operation>> = const { RefCell::new(Vec::new()) };
    /// accesses until the dying thread dies, counted while it is at work
    static LIFE: Cell<u64> = const { Cell::new(u64::MAX) };
    static DEATHS: RefCell<Option<Random>> = const { RefCell::new(None) };
    static DYING: Cell<Option<shuttle::thread::ThreadId>> = const { Cell::new(None) };
}

/// The end of a thread that dies: no destructor of its session runs.
struct Death;

fn tick() -> u64 {
    CLOCK.set(CLOCK.get() + 1);
    CLOCK.get()
}

/// Before every access: others may go on first.
fn switch(event: Event) {
    if let Event::Before(access) = event {
        if !preempt::goes_on(access) {
            let point = POINT.with_borrow(|p| p.clone());
            if let Some(point) = point {
                point.load(Ordering::SeqCst);
            }
        }
        if DYING.get() == Some(shuttle::thread::current().id()) {
            LIFE.set(LIFE.get().saturating_sub(1));
            if LIFE.get() == 0 {
                resume_unwind(Box::new(Death));
            }
        }
    }
}

/// Set up twice: the first time tells after how many calls something happens, the second time stops right before.
fn prepare(scenario: &Scenario) -> Ready {
    let (ready, found) = set_up(scenario, Found::default());
    if found.is_something() {
        return set_up(scenario, found).0;
    }
    ready
}

fn set_up(scenario: &Scenario, found: Found) -> (Ready, Found) {
    let ground = Ground::new(scenario.segments, false);
    let mut stage = Stage::new(&ground, scenario.evicts, found);
    let threads = (scenario.setup)(&mut stage);
    let (before, found) = (std::mem::take(&mut stage.done), std::mem::take(&mut stage.found));
    drop(stage);
    let image = ground.bytes().to_vec();
    let ready = Ready {
        ground,
        image,
        before,
        threads,
        evicts: scenario.evicts,
        dies: scenario.dies,
        is_suspected: scenario.is_suspected,
    };
    (ready, found)
}

/// How often the thread that is not dead is looked at.
const SUSPICIONS: usize = 3;

/// What a process does whose session was fenced (of those here only the first one seems to be dead), and any may do: the thread gives its
/// slot back and takes another one.
fn another_slot(session: &mut Session, process: usize) {
    let region = Arc::clone(session.region());
    session.end();
    let incarnation = region.mapped().tenant(process).tenancy.incarnation();
    *session = region
        .session(Process {
            slot: process,
            incarnation,
        })
        .unwrap_or_else(|| panic!("a free thread slot"));
}

pub(crate) fn open_session(region: &Arc<Region>, slot: usize, evict: bool) -> Session {
    region.limits().write(&Limits {
        item_size_max: 1 << 18,
        evict,
        ..Limits::default()
    });
    let process = region.recovery().attach(slot, 1, NOW);
    region.session(process).unwrap_or_else(|| panic!("a free thread slot"))
}

/// One schedule.
fn run_once() {
    observe::install(None);
    let (region, threads, evicts, dies, is_suspected) = READY.with_borrow_mut(|ready| {
        let ready = ready.as_mut().unwrap_or_else(|| panic!("set up before"));
        ready.ground.restore(&ready.image);
        ready.ground.dead.are(&[]);
        ready.ground.dead.seem(if ready.is_suspected { &[0] } else { &[] });
        (
            ready.ground.open(),
            ready.threads.clone(),
            ready.evicts,
            ready.dies,
            ready.is_suspected,
        )
    });
    CLOCK.set(1 << 32);
    HISTORY.with_borrow_mut(Vec::clear);
    POINT.set(Some(Arc::new(AtomicUsize::new(0))));
    DYING.set(None);
    let sessions: Vec<Session> = (0..threads.len()).map(|slot| open_session(&region, slot, evicts)).collect();
    let now = region.clock().tick(keyway_region::Moment::from_secs(NOW));
    let drawn = || DEATHS.with_borrow_mut(|d| d.as_mut().map_or(1, |random| 1 + random.below(150)));
    LIFE.set(preempt::first_turn().unwrap_or_else(drawn));
    observe::install(Some(switch));
    let running: Vec<_> = sessions
        .into_iter()
        .zip(threads)
        .enumerate()
        .map(|(n, (session, calls))| shuttle::thread::spawn(move || work(session, n, &calls, now, dies && n == 0)))
        .collect();
    // Behind the others, whose numbers the plans of schedules name.
    let suspicion = is_suspected.then(|| {
        let region = Arc::clone(&region);
        shuttle::thread::spawn(move || {
            for _ in 0..SUSPICIONS {
                region.recovery().recover();
            }
        })
    });
    let ended: Vec<Option<Session>> = running
        .into_iter()
        .map(|thread| thread.join().unwrap_or_else(|e| resume_unwind(e)))
        .collect();
    if let Some(suspicion) = suspicion {
        suspicion.join().unwrap_or_else(|e| resume_unwind(e));
    }
    observe::install(None);
    READY.with_borrow(|ready| ready.as_ref().map(|r| r.ground.dead.seem(&[])));
    judge_schedule(&region, ended, evicts, dies || is_suspected);
}

/// A thread's calls. The session, unless the thread died.
fn work(mut session: Session, process: usize, acts: &[Act], now: u32, dies: bool) -> Option<Session> {
    if dies {
        DYING.set(Some(shuttle::thread::current().id()));
    }
    let mut flight = 0;
    for act in acts {
        let Ok(()) = catch_unwind(AssertUnwindSafe(|| act_once(&mut session, process, act, now, &mut flight))).map_err(|e| {
            if e.downcast_ref::<Death>().is_none() {
                resume_unwind(e);
            }
        }) else {
            READY.with_borrow(|ready| ready.as_ref().map(|r| r.ground.dead.are(&[0])));
            std::mem::forget(session);
            return None;
        };
    }
    Some(session)
}

/// `flight`: what the thread has begun last; its next store of one is of that.
fn act_once(session: &mut Session, process: usize, act: &Act, now: u32, flight: &mut u64) {
    let mut call = match act {
        Act::Call(call) => *call,
        Act::Upkeep => return session.upkeep(now),
        Act::AnotherSlot => return another_slot(session, process),
    };
    if call.verb == Verb::FetchStore {
        call.compare = std::mem::take(flight);
    }
    let invoked = tick();
    let n = HISTORY.with_borrow_mut(|history| {
        history.push(Operation {
            invoked,
            responded: None,
            call,
            answer: None,
        });
        history.len() - 1
    });
    let answer = answer(session, now, &call);
    if let Answer::Claimed { flight: begun } = answer {
        *flight = begun;
    }
    let responded = tick();
    HISTORY.with_borrow_mut(|history| {
        (history[n].responded, history[n].answer) = (Some(responded), Some(answer));
    });
}

fn judge_schedule(region: &Arc<Region>, ended: Vec<Option<Session>>, evicts: bool, flights_may_end: bool) {
    drop(ended);
    region.recovery().recover();
    let report = check::check(region, |_| {});
    assert!(report.is_sound(), "the region is not sound: {:?}", report.problems);
    assert_eq!(region.threads().sessions(), 0, "sessions are left");
    let mut all = HISTORY.with_borrow(Clone::clone);
    let keys: BTreeSet<Key> = all.iter().map(|o| o.call.key).collect();
    let mut session = open_session(region, 1, evicts);
    let now = region.clock().tick(keyway_region::Moment::from_secs(NOW));
    // What the dead had begun to fill is counted when it is swept; an item that its thread did not publish is not marked.
    session.upkeep(now);
    let counts = check::check(region, |_| {}).counts;
    assert!(counts.uncounted <= counts.unmarked, "dead bytes are not counted: {counts:?}");
    for key in keys.iter().copied() {
        let invoked = tick();
        let answer = answer(&mut session, now, &get(key));
        all.push(Operation {
            invoked,
            responded: Some(tick()),
            call: get(key),
            answer: Some(answer),
        });
    }
    READY.with_borrow(|ready| {
        let before = ready.as_ref().map(|r| r.before.as_slice()).unwrap_or_default();
        all.extend(before.iter().filter(|o| keys.contains(&o.call.key)));
    });
    for key in keys {
        let own: Vec<Operation> = all
            .iter()
            .filter(|o| o.call.key == key || o.call.verb == Verb::Flush)
            .copied()
            .collect();
        let rules = Rules {
            may_vanish: evicts,
            flights_may_end,
        };
        if let Err(why) = judge(&own, rules) {
            panic!("key {:x}: {why}", key.0);
        }
    }
    nothing_lost(region, session, now);
}

/// Everything is flushed: every segment but the index's comes to be free, and the counts say so.
fn nothing_lost(region: &Arc<Region>, mut session: Session, now: u32) {
    let flushed = session.flush_all(0, now);
    assert!(flushed.is_ok(), "{flushed:?}");
    session.release_extents();
    // As many as a sweep of so few segments takes, and one more for what the first one could not free yet.
    let mut counts = check::Counts::default();
    for _ in 0..UPKEEPS {
        session.upkeep(now);
        counts = check::check(region, |_| {}).counts;
        if counts.free + counts.withdrawn + counts.index + counts.hints + counts.ghosts == region.mapped().segments() {
            assert_eq!(counts.free_counted, counts.free as u64, "the count of free segments drifted");
            return;
        }
    }
    panic!("memory is lost: everything is flushed, and there are {counts:?}");
}

/// Times that housekeeping is done before what is not free by then counts as lost.
const UPKEEPS: usize = 40;

/// Explores schedules of a scenario until one is wrong: how many, or what was wrong.
fn explore(scenario: &Scenario, mutant: Option<Mutant>, schedules: usize, seed: u64) -> Result<usize, String> {
    mutants::set(None);
    READY.set(Some(prepare(scenario)));
    DEATHS.set(Some(Random::new(seed)));
    mutants::set(mutant);
    let config = || {
        let mut config = Config::new();
        config.stack_size = 1 << 20;
        config.max_steps = MaxSteps::FailAfter(20_000_000);
        config.failure_persistence = FailurePersistence::None;
        config
    };
    let half = schedules.div_ceil(2);
    let (threads, overtaken) = READY.with_borrow(|ready| {
        let threads = ready.as_ref().map_or(0, |ready| ready.threads.len());
        // The one that suspects is behind the others.
        let suspects = scenario.is_suspected.then_some(threads);
        let overtaken: Vec<usize> = (0..scenario.overtaken.min(threads)).chain(suspects).collect();
        (threads + usize::from(scenario.is_suspected), overtaken)
    });
    let found = catch_unwind(|| {
        let planned = Overtaken::new(threads, &overtaken, 10 * schedules as u64, half, seed);
        let mut made = Runner::new(planned, config()).run(run_once);
        if let Some(weave) = scenario.weave {
            made += Runner::new(Woven::new(weave), config()).run(run_once);
        }
        preempt::forget();
        if scenario.mutant.is_some() {
            made += Runner::new(RandomScheduler::new_from_seed(seed, half), config()).run(run_once);
            made += Runner::new(PctScheduler::new_from_seed(seed, 3, half), config()).run(run_once);
        }
        made
    });
    preempt::forget();
    observe::install(None);
    mutants::set(None);
    READY.set(None);
    found.map_err(|e| {
        let text = e.downcast_ref::<String>().cloned();
        text.or_else(|| e.downcast_ref::<&str>().map(|s| (*s).to_owned()))
            .unwrap_or_default()
    })
}

/// The command line.
pub fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|a| a == "--help" || a == "-h") {
        print!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let number = |text: Option<&String>| text.and_then(|t| t.parse().ok());
    let seed = args
        .iter()
        .position(|a| a == "--seed")
        .and_then(|at| number(args.get(at + 1)))
        .unwrap_or(1);
    let asked = args.iter().position(|a| a == "--schedules");
    let schedules = match asked.and_then(|at| args.get(at + 1)?.parse().ok()) {
        Some(schedules) => schedules,
        None if args.iter().any(|a| a == "--short") => 200,
        None => 20_000,
    };
    // A panic is how a schedule says that it is wrong; it is reported below.
    std::panic::set_hook(Box::new(|_| {}));
    let is_sound_only = args.iter().any(|a| a == "--sound");
    let (mut passed, mut failed) = (0, 0);
    let only = args.iter().position(|a| a == "--only").and_then(|at| args.get(at + 1));
    let is_name = only.is_some_and(|text| SCENARIOS.iter().any(|scenario| scenario.name == text));
    let is_wanted = |scenario: &Scenario| match only {
        Some(name) if is_name => scenario.name == name,
        Some(text) => scenario.name.contains(text.as_str()),
        None => true,
    };
    for scenario in SCENARIOS.iter().filter(|scenario| is_wanted(scenario)) {
        match explore(scenario, None, schedules, seed) {
            Ok(made) => {
                passed += 1;
                println!("  {}: {made} schedules", scenario.name);
            }
            Err(why) => {
                failed += 1;
                println!("  FAILED {}: {why}", scenario.name);
            }
        }
        let Some(mutant) = scenario.mutant.filter(|_| !is_sound_only) else {
            continue;
        };
        match explore(scenario, Some(mutant), 100 * schedules, seed) {
            Err(why) => {
                passed += 1;
                println!("    rejected {mutant:?}: {:.100}", why.lines().next().unwrap_or_default());
            }
            Ok(_) => {
                failed += 1;
                println!("  FAILED {}: {mutant:?} was not rejected", scenario.name);
            }
        }
    }
    if !is_sound_only && only.is_none_or(|text| copies::ABOUT.contains(text.as_str())) {
        copies::try_all(|what, result| match result {
            Ok(said) => {
                passed += 1;
                println!("  {what}: {said:.160}");
            }
            Err(why) => {
                failed += 1;
                println!("  FAILED {what}: {why}");
            }
        });
    }
    println!("{passed} passed, {failed} failed");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
