//! The scenarios, and what explores their schedules.

use harness::Random;
use histories::{Answer, Call, Key, Operation, Rules, Verb, judge_all, value};
use keyway_region::mutants::{self, Mutant};
use keyway_region::observe::{self, Event};
use keyway_region::verbs::{Delete, Deleted, Get, Store, StoreMode, Stored, WriteError};
use keyway_region::{Limits, Region, Session, check, hash};
use kill_points::ground::{Ground, NOW};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::atomic::{AtomicUsize, Ordering};
use shuttle::{Config, FailurePersistence, MaxSteps, Runner};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::ExitCode;
use std::sync::Arc;

use crate::copies;

const HELP: &str = "\
cargo xtask schedules: threads on one tiny region, switched before any access to shared memory

    --short         200 schedules a scenario; otherwise KEYWAY_SCHEDULES of them (20,000 if it is not set)
    --only TEXT     the scenarios whose name contains it; \"copies\" is the last part
    --seed N        of the death's place in scenarios with one

Half of the schedules are random, half are PCT's with three changes of priority. Each scenario must also reject its broken variant.

Last, copies: before each access of a change, by a single thread, copies that are current by the words in which changes are counted must be what
the region has; the counting is turned on before any one access. Five regions that do not count as they must are rejected.
";

/// Threads in a region, and what is wrong with it when it is to be rejected.
struct Scenario {
    name: &'static str,
    segments: usize,
    evicts: bool,
    /// the first thread dies somewhere in its calls
    dies: bool,
    mutant: Mutant,
    setup: fn(&mut Stage) -> Vec<Vec<Call>>,
}

const SCENARIOS: [Scenario; 10] = [
    Scenario {
        name: "two inserts of one key",
        segments: 12,
        evicts: true,
        dies: false,
        mutant: Mutant::InsertWithoutRescan,
        setup: |_| {
            vec![
                vec![store(Verb::Add, K, 1)],
                vec![store(Verb::Add, K, 2)],
                vec![get(K), get(K)],
            ]
        },
    },
    Scenario {
        name: "an insert against a split",
        segments: 24,
        evicts: false,
        dies: false,
        mutant: Mutant::TableBeforeFill,
        setup: |stage| {
            let [old, new] = stage.begin_doubling();
            vec![
                vec![store(Verb::Set, Key(60_000), 3)],
                vec![store(Verb::Set, new, 4), get(new)],
                vec![get(old), get(old)],
            ]
        },
    },
    Scenario {
        name: "two growers",
        segments: 24,
        evicts: false,
        dies: false,
        mutant: Mutant::TableBeforeFill,
        setup: |stage| {
            let [old, _] = stage.begin_doubling();
            vec![
                vec![store(Verb::Set, Key(60_000), 3)],
                vec![store(Verb::Set, Key(60_001), 4)],
                vec![get(old), get(old), get(old)],
            ]
        },
    },
    Scenario {
        name: "an append against others that need room",
        segments: 12,
        evicts: false,
        dies: false,
        mutant: Mutant::RelocateBlindly,
        setup: |stage| {
            stage.wear_out();
            vec![
                vec![store(Verb::Append, K, 1), get(K)],
                stage.pressure(3),
                vec![get(K), get(K), get(K)],
            ]
        },
    },
    Scenario {
        name: "a reader against overwrites",
        segments: 12,
        evicts: false,
        dies: false,
        mutant: Mutant::OverwriteInTwoSteps,
        setup: |stage| {
            stage.call(store(Verb::Set, K, 1));
            vec![vec![store(Verb::Set, K, 2), store(Verb::Set, K, 3)], vec![get(K); 4]]
        },
    },
    Scenario {
        name: "a reader against a relocation",
        segments: 12,
        evicts: false,
        dies: false,
        mutant: Mutant::RelocateInTwoSteps,
        setup: |stage| {
            stage.wear_out();
            // As many as the stores take.
            vec![[get(K), get(L)].repeat(6), stage.pressure(3)]
        },
    },
    Scenario {
        name: "a delete against a relocation",
        segments: 12,
        evicts: false,
        dies: false,
        mutant: Mutant::RelocateBlindly,
        setup: |stage| {
            stage.wear_out();
            vec![
                vec![Call::new(Verb::Delete, K), get(K), Call::new(Verb::Delete, L), get(L)],
                stage.pressure(3),
            ]
        },
    },
    Scenario {
        name: "a reader against recycling",
        segments: 12,
        evicts: true,
        dies: false,
        mutant: Mutant::GetWithoutSecondLook,
        setup: |stage| {
            let rest = stage.fill_segments();
            vec![vec![get(K), get(K)], rest]
        },
    },
    Scenario {
        name: "recovery of an insert that died",
        segments: 12,
        evicts: true,
        dies: true,
        mutant: Mutant::TentativeForgotten,
        setup: |_| vec![vec![store(Verb::Set, K, 1)], vec![get(K), store(Verb::Set, L, 2), get(L)]],
    },
    Scenario {
        name: "flush_all against inserts",
        segments: 12,
        evicts: false,
        dies: false,
        mutant: Mutant::StampDown,
        setup: |_| {
            vec![
                vec![store(Verb::Set, K, 1), get(K)],
                vec![Call::new(Verb::Flush, K), store(Verb::Set, K, 2), get(K)],
            ]
        },
    },
];

const K: Key = Key(1);
const L: Key = Key(2);

fn store(verb: Verb, key: Key, id: u64) -> Call {
    Call {
        argument: id,
        len: 40,
        ..Call::new(verb, key)
    }
}

fn get(key: Key) -> Call {
    Call::new(Verb::Get, key)
}

/// A region before its scenario, and what was done in it.
struct Stage {
    region: Arc<Region>,
    session: Session,
    done: Vec<Operation>,
    /// calls to make, if it is known after how many something is about to happen
    limit: Option<usize>,
}

impl Stage {
    /// Makes calls until the counter moves; told the limit, stops right before.
    fn until_it_moves(&mut self, counter: fn(&Region) -> u64, calls: impl Iterator<Item = Call>) {
        let before = counter(&self.region);
        for call in calls {
            if self.limit == Some(self.done.len()) || counter(&self.region) != before {
                return;
            }
            self.call(call);
        }
    }

    fn call(&mut self, call: Call) {
        let invoked = self.done.len() as u64 * 2;
        let answer = answer(&mut self.session, self.region.tick(NOW), &call);
        self.done.push(Operation {
            invoked,
            responded: Some(invoked + 1),
            call,
            answer: Some(answer),
        });
    }

    fn table(&self) -> u64 {
        self.region.superblock().table.load(Ordering::Relaxed)
    }

    /// Inserts until the index has begun to double. A key that is there and one that is not, which the next splits concern.
    fn begin_doubling(&mut self) -> [Key; 2] {
        let base = self.table();
        let mut n = 100;
        while self.table() == base {
            self.call(store(Verb::Set, Key(n), u64::from(n)));
            n += 1;
        }
        let next = self.table();
        let seed = self.region.superblock().seed.load(Ordering::Relaxed);
        let concerned = |key: &u32| {
            let choice = hash(seed, Key(*key).name(0).as_bytes()) & 0xFFFF_FFFF;
            let place = choice % (2 * base);
            (next..next + 4).contains(&place)
        };
        [100..n, n..60_000].map(|keys| Key(keys.into_iter().find(concerned).unwrap_or(100)))
    }

    /// K and L in a segment whose other items are replaced, then segments of which half stays, until the next store has K and L
    /// copied.
    fn wear_out(&mut self) {
        let item = |key: u32, id: u64| Call {
            len: 400,
            ..store(Verb::Set, Key(key), id)
        };
        let calls = (0..2000u32).map(|n| match n {
            0 => item(K.0, 1),
            1 => item(L.0, 2),
            _ if n > 40 && n % 2 == 0 => item(1000 + n, u64::from(n)),
            _ => item(100 + n % 7, u64::from(n)),
        });
        self.until_it_moves(|region| region.counters().relocations, calls);
        assert!(self.limit.is_some() || self.done.len() < 2000, "nothing was copied");
    }

    /// K and then others, each with a segment of its own, until the next one takes K's. The stores that come next: they evict
    /// K, and one of them is put where K was.
    fn fill_segments(&mut self) -> Vec<Call> {
        let whole = |n: u32| Call {
            len: 15_000,
            ..store(Verb::Set, Key(n), u64::from(n))
        };
        let mut others = (100..200).map(whole);
        self.until_it_moves(
            |region| region.counters().evictions,
            [whole(K.0)].into_iter().chain(&mut others),
        );
        let first = self.done.last().map_or(100, |last| last.call.key.0 + 1);
        (first..first + 5).map(whole).collect()
    }

    /// Stores that need room.
    fn pressure(&self, count: u32) -> Vec<Call> {
        let big = |n| Call {
            len: 1500,
            ..store(Verb::Set, Key(70_000 + n % 2), 70_000 + u64::from(n))
        };
        (0..count).map(big).collect()
    }
}

fn answer(session: &mut Session, now: u32, call: &Call) -> Answer {
    try_answer(session, now, call).unwrap_or_else(|e| match e {
        WriteError::OutOfMemory | WriteError::TooLarge { .. } => Answer::Refused,
        _ => Answer::Torn,
    })
}

fn try_answer(session: &mut Session, now: u32, call: &Call) -> Result<Answer, WriteError> {
    let name = call.key.name(0);
    let key = name.as_bytes();
    let mode = match call.verb {
        Verb::Get => {
            let mut out = Vec::new();
            let how = Get {
                value: true,
                details: true,
                ..Get::default()
            };
            return Ok(match session.get_with(key, &how, now, &mut out, |_, _| {})? {
                Some(item) => value::read(call.key, &out).map_or(Answer::Torn, |value| Answer::Hit { value, cas: item.cas }),
                None => Answer::Miss,
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
        Verb::Add => StoreMode::Add,
        Verb::Append => StoreMode::Append,
        _ => StoreMode::Set,
    };
    let how = Store {
        mode,
        ..Store::default()
    };
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
    threads: Vec<Vec<Call>>,
    evicts: bool,
    dies: bool,
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
    if let Event::Before(_) = event {
        let point = POINT.with_borrow(|p| p.clone());
        if let Some(point) = point {
            point.load(Ordering::SeqCst);
        }
        if DYING.get() == Some(shuttle::thread::current().id()) {
            LIFE.set(LIFE.get().saturating_sub(1));
            if LIFE.get() == 0 {
                resume_unwind(Box::new(Death));
            }
        }
    }
}

/// Set up twice: the first time tells after how many calls it happens, the second time stops right before.
fn prepare(scenario: &Scenario) -> Ready {
    let calls = set_up(scenario, None).before.len();
    set_up(scenario, Some(calls.saturating_sub(1)))
}

fn set_up(scenario: &Scenario, limit: Option<usize>) -> Ready {
    let ground = Ground::new(scenario.segments, false);
    let region = ground.create();
    let session = open_session(&region, 0, scenario.evicts);
    let mut stage = Stage {
        region: Arc::clone(&region),
        session,
        done: Vec::new(),
        limit,
    };
    let threads = (scenario.setup)(&mut stage);
    let before = std::mem::take(&mut stage.done);
    drop(stage);
    drop(region);
    let image = ground.bytes().to_vec();
    Ready {
        ground,
        image,
        before,
        threads,
        evicts: scenario.evicts,
        dies: scenario.dies,
    }
}

pub(crate) fn open_session(region: &Arc<Region>, slot: usize, evict: bool) -> Session {
    let limits = Limits {
        item_size_max: 1 << 18,
        evict,
    };
    let process = region.attach(slot, 1, NOW);
    region
        .session(process, limits)
        .unwrap_or_else(|| panic!("a free thread slot"))
}

/// One schedule.
fn run_once() {
    observe::install(None);
    let (region, threads, evicts, dies) = READY.with_borrow_mut(|ready| {
        let ready = ready.as_mut().unwrap_or_else(|| panic!("set up before"));
        ready.ground.restore(&ready.image);
        ready.ground.dead.are(&[]);
        (ready.ground.open(), ready.threads.clone(), ready.evicts, ready.dies)
    });
    CLOCK.set(1 << 32);
    HISTORY.with_borrow_mut(Vec::clear);
    POINT.set(Some(Arc::new(AtomicUsize::new(0))));
    DYING.set(None);
    let sessions: Vec<Session> = (0..threads.len()).map(|slot| open_session(&region, slot, evicts)).collect();
    let now = region.tick(NOW);
    let life = DEATHS.with_borrow_mut(|d| d.as_mut().map_or(1, |random| 1 + random.below(150)));
    LIFE.set(life);
    observe::install(Some(switch));
    let running: Vec<_> = sessions
        .into_iter()
        .zip(threads)
        .enumerate()
        .map(|(n, (session, calls))| shuttle::thread::spawn(move || work(session, &calls, now, dies && n == 0)))
        .collect();
    let ended: Vec<Option<Session>> = running
        .into_iter()
        .map(|thread| thread.join().unwrap_or_else(|e| resume_unwind(e)))
        .collect();
    observe::install(None);
    judge_schedule(&region, ended, evicts);
}

/// A thread's calls. The session, unless the thread died.
fn work(mut session: Session, calls: &[Call], now: u32, dies: bool) -> Option<Session> {
    if dies {
        DYING.set(Some(shuttle::thread::current().id()));
    }
    for call in calls {
        let invoked = tick();
        let n = HISTORY.with_borrow_mut(|history| {
            history.push(Operation {
                invoked,
                responded: None,
                call: *call,
                answer: None,
            });
            history.len() - 1
        });
        let Ok(answer) = catch_unwind(AssertUnwindSafe(|| answer(&mut session, now, call))).map_err(|e| {
            if e.downcast_ref::<Death>().is_none() {
                resume_unwind(e);
            }
        }) else {
            std::mem::forget(session);
            return None;
        };
        let responded = tick();
        HISTORY.with_borrow_mut(|history| {
            (history[n].responded, history[n].answer) = (Some(responded), Some(answer));
        });
    }
    Some(session)
}

fn judge_schedule(region: &Arc<Region>, ended: Vec<Option<Session>>, evicts: bool) {
    if ended.iter().any(Option::is_none) {
        READY.with_borrow(|ready| ready.as_ref().map(|r| r.ground.dead.are(&[0])));
    }
    drop(ended);
    region.recover();
    let report = check::check(region, |_| {});
    assert!(report.is_sound(), "the region is not sound: {:?}", report.problems);
    assert_eq!(region.sessions(), 0, "sessions are left");
    let mut all = HISTORY.with_borrow(Clone::clone);
    let keys: std::collections::BTreeSet<Key> = all.iter().map(|o| o.call.key).collect();
    let mut session = open_session(region, 1, evicts);
    let now = region.tick(NOW);
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
    let verdict = judge_all(&all, Rules { may_vanish: evicts });
    assert!(verdict.violations.is_empty(), "{}", verdict.violations.join("\n"));
}

/// Explores schedules of a scenario until one is wrong. What was wrong.
fn explore(scenario: &Scenario, mutant: Option<Mutant>, schedules: usize, seed: u64) -> Option<String> {
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
    let found = catch_unwind(|| {
        Runner::new(RandomScheduler::new_from_seed(seed, half), config()).run(run_once);
        Runner::new(PctScheduler::new_from_seed(seed, 3, half), config()).run(run_once);
    });
    observe::install(None);
    mutants::set(None);
    READY.set(None);
    found.err().map(|e| {
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
    let schedules = if args.iter().any(|a| a == "--short") {
        200
    } else {
        std::env::var("KEYWAY_SCHEDULES")
            .ok()
            .and_then(|n| n.parse().ok())
            .unwrap_or(20_000)
    };
    // A panic is how a schedule says that it is wrong; it is told below.
    std::panic::set_hook(Box::new(|_| {}));
    let (mut passed, mut failed) = (0, 0);
    let only = args.iter().position(|a| a == "--only").and_then(|at| args.get(at + 1));
    for scenario in SCENARIOS
        .iter()
        .filter(|s| only.is_none_or(|text| s.name.contains(text.as_str())))
    {
        match explore(scenario, None, schedules, seed) {
            None => {
                passed += 1;
                println!("  {}: {schedules} schedules", scenario.name);
            }
            Some(why) => {
                failed += 1;
                println!("  FAILED {}: {why}", scenario.name);
            }
        }
        match explore(scenario, Some(scenario.mutant), 20 * schedules, seed) {
            Some(why) => {
                passed += 1;
                println!(
                    "    rejected {:?}: {:.100}",
                    scenario.mutant,
                    why.lines().next().unwrap_or_default()
                );
            }
            None => {
                failed += 1;
                println!("  FAILED {}: {:?} was not rejected", scenario.name, scenario.mutant);
            }
        }
    }
    if only.is_none_or(|text| copies::ABOUT.contains(text.as_str())) {
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
