//! Whether a key's history is linearizable: whether each call can be given an instant between its invocation and its response
//! such that, done one at a time in that order, the calls get the answers that they got.
//!
//! The search follows the history event by event and keeps every *configuration* that is possible so far: what the key holds,
//! and which of the calls under way have already had their instant. At a response the call must have had it; where it has not,
//! every order of calls under way that ends in it is tried ("just-in-time linearization", Lowe 2017, on top of Wing and Gong
//! 1993). Configurations are remembered, so the work grows with the calls that overlap, not with the history.
//!
//! A call without a response (its caller was killed, or the connection was cut) may have had its effect at any time after its
//! invocation, or never: it stays under way for ever. Where items may vanish (eviction, short lifetimes), a key may become
//! absent at any time. Shortcuts, each of which only drops configurations that another one can do everything for:
//!
//! - a call that only reads and agrees with the state has its instant at once;
//! - of two configurations with the same state, one that has used up more calls without response is dropped;
//! - where items may vanish, an absent key is dropped beside a present one;
//! - a call without response has no instant right before one that overwrites it unseen.

use crate::call::{Answer, Call, Key, Verb};
use crate::value::Value;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

/// A call with its times, in any unit that all callers share.
#[derive(Clone, Copy, Debug)]
pub struct Operation {
    /// when it began, or shortly before
    pub invoked: u64,
    /// when its answer was there, or shortly after
    pub responded: Option<u64>,
    /// what was asked
    pub call: Call,
    /// the answer
    pub answer: Option<Answer>,
}

/// What a store may do of its own accord.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// items may vanish at any time
    pub may_vanish: bool,
    /// flights may end at any time: those of a process that has died, or of a connection
    pub flights_may_end: bool,
}

impl Rules {
    /// A flight that vanishes has ended.
    fn may_end_flights(self) -> bool {
        self.flights_may_end || self.may_vanish
    }
}

/// Calls that can be under way at a time, those without a response included.
const SLOTS: u32 = 128;
/// Configurations met at one response beyond which a key is given up as undecided.
const CONFIGURATIONS_MAX: usize = 1 << 14;
/// What a verdict begins with that is none.
const UNDECIDED: &str = "undecided";

/// What a key holds. A unique of 0 is not known yet: the first answer that tells it settles it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum State {
    Absent,
    /// absent, and a caller computes it; a flight of 0 is that of a caller that got no answer
    InFlight {
        flight: u64,
    },
    Present {
        value: Value,
        cas: u64,
    },
}

impl State {
    fn is_absent(self) -> bool {
        !matches!(self, Self::Present { .. })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Configuration {
    state: State,
    /// slots of calls under way that have had their instant
    done: u128,
}

/// What was judged.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// keys
    pub keys: u64,
    /// operations on them, flushes counted once
    pub operations: u64,
    /// of them, without a response
    pub unanswered: u64,
    /// most configurations that were possible at a time
    pub configurations_max: usize,
    /// keys that were given up: too many calls overlapped, or were never answered
    pub undecided: u64,
    /// what was wrong, one text a key
    pub violations: Vec<String>,
}

/// Judges every key of a history; a flush belongs to all of them.
pub fn judge_all(operations: &[Operation], rules: Rules) -> Verdict {
    let mut keys: HashMap<Key, Vec<Operation>> = HashMap::new();
    let mut flushes = Vec::new();
    for operation in operations {
        match operation.call.verb {
            Verb::Flush => flushes.push(*operation),
            _ => keys.entry(operation.call.key).or_default().push(*operation),
        }
    }
    let flushes = Flushes::new(flushes);
    let histories: Vec<(Key, Vec<Operation>)> = keys.into_iter().collect();
    let halves = histories.len().div_ceil(2).max(1);
    let flushes = &flushes;
    let mut verdict = std::thread::scope(|scope| {
        let parts: Vec<_> = histories
            .chunks(halves)
            .map(|part| scope.spawn(move || judge_part(part, flushes, rules)))
            .collect();
        parts.into_iter().fold(Verdict::default(), |mut sum, part| {
            let part = part.join().unwrap_or_else(|e| std::panic::resume_unwind(e));
            sum.configurations_max = sum.configurations_max.max(part.configurations_max);
            sum.undecided += part.undecided;
            sum.violations.extend(part.violations);
            sum
        })
    });
    verdict.keys = histories.len() as u64;
    verdict.operations = operations.len() as u64;
    verdict.unanswered = operations.iter().filter(|o| o.answer.is_none()).count() as u64;
    verdict
}

/// All flushes, which belong to every key.
struct Flushes {
    /// in the order of their ends
    answered: Vec<Operation>,
    unanswered: Vec<Operation>,
    /// how long the longest of them took
    longest: u64,
}

impl Flushes {
    fn new(all: Vec<Operation>) -> Self {
        let (mut answered, unanswered): (Vec<_>, Vec<_>) = all.into_iter().partition(|f| f.answer.is_some());
        let end = |f: &Operation| f.responded.unwrap_or(f.invoked);
        answered.sort_by_key(end);
        let longest = answered.iter().map(|f| end(f) - f.invoked).max().unwrap_or(0);
        Self {
            answered,
            unanswered,
            longest,
        }
    }

    /// Those that a key can notice whose calls lie between these times: flushes that were over before find it absent, and
    /// later ones no call sees.
    fn between(&self, first: u64, last: u64) -> impl Iterator<Item = &Operation> {
        let from = self.answered.partition_point(|f| f.responded < Some(first));
        let latest = last.saturating_add(self.longest);
        let near = self.answered[from..].iter().take_while(move |f| f.responded <= Some(latest));
        near.chain(&self.unanswered).filter(move |f| f.invoked <= last)
    }
}

fn judge_part(histories: &[(Key, Vec<Operation>)], flushes: &Flushes, rules: Rules) -> Verdict {
    let mut verdict = Verdict::default();
    for (key, own) in histories {
        let first = own.iter().map(|o| o.invoked).min().unwrap_or(0);
        let last = own.iter().filter_map(|o| o.responded).max().unwrap_or(0);
        let mut all = own.clone();
        all.extend(flushes.between(first, last));
        match judge(&all, rules) {
            Ok(configurations) => verdict.configurations_max = verdict.configurations_max.max(configurations),
            Err(why) if why.starts_with(UNDECIDED) => verdict.undecided += 1,
            Err(why) => verdict.violations.push(format!("key {:x}: {why}", key.0)),
        }
    }
    verdict
}

/// Judges the operations on one key, absent at first. The most configurations that were possible at a time, or what is wrong.
pub fn judge(operations: &[Operation], rules: Rules) -> Result<usize, String> {
    let mut events: Vec<(u64, bool, usize)> = Vec::with_capacity(2 * operations.len());
    for (i, operation) in operations.iter().enumerate() {
        events.push((operation.invoked, false, i));
        if let (Some(at), Some(_)) = (operation.responded, operation.answer) {
            events.push((at.max(operation.invoked), true, i));
        }
    }
    // Where two times are equal the calls overlapped: invocations first.
    events.sort_unstable();
    let mut search = Search {
        operations,
        rules,
        told: told_uniques(operations)?,
        open: BTreeMap::new(),
        forever: 0,
        configurations: vec![Configuration {
            state: State::Absent,
            done: 0,
        }],
    };
    let mut most = 1;
    for (number, (_, is_response, i)) in events.iter().enumerate() {
        let fate = if *is_response { search.respond(*i) } else { search.invoke(*i) };
        fate.map_err(|why| format!("{why}\n{}", excerpt(operations, &events, number)))?;
        most = most.max(search.configurations.len());
    }
    Ok(most)
}

struct Search<'o> {
    operations: &'o [Operation],
    rules: Rules,
    told: Delivery,
    /// slot and operation of the calls under way
    open: BTreeMap<u32, usize>,
    /// slots of calls that never get a response
    forever: u128,
    configurations: Vec<Configuration>,
}

impl Search<'_> {
    fn operation(&self, i: usize) -> &Operation {
        &self.operations[i]
    }

    fn invoke(&mut self, i: usize) -> Result<(), String> {
        let operation = self.operation(i);
        let answered = operation.answer.is_some();
        // A call that only reads and whose answer no caller got cannot matter.
        if !answered && reads_only(&operation.call) {
            return Ok(());
        }
        let slot = (0..SLOTS)
            .find(|slot| !self.open.contains_key(slot))
            .ok_or_else(|| format!("{UNDECIDED}: too many calls without a response"))?;
        self.open.insert(slot, i);
        if !answered {
            self.forever |= 1 << slot;
        }
        Ok(())
    }

    fn respond(&mut self, i: usize) -> Result<(), String> {
        let slot = self.open.iter().find(|(_, open)| **open == i).map_or(0, |(slot, _)| *slot);
        let bit = 1u128 << slot;
        // Most calls overlap with none.
        if let ([one], 1) = (self.configurations.as_mut_slice(), self.open.len())
            && one.done == 0
            && let Some(state) = apply(&self.operations[i], one.state, self.rules, &self.told)
        {
            one.state = state;
            self.open.remove(&slot);
            return Ok(());
        }
        let mut after = HashSet::new();
        let mut seen = Seen::default();
        let mut todo = VecDeque::new();
        let mut states: Vec<State> = Vec::new();
        for configuration in std::mem::take(&mut self.configurations) {
            let configuration = self.read_at_once(configuration);
            if seen.admit(configuration, self.forever) {
                todo.push_back(configuration);
                states.push(configuration.state);
            }
        }
        while let Some(configuration) = todo.pop_front() {
            if configuration.done & bit != 0 {
                after.insert(Configuration {
                    done: configuration.done & !bit,
                    ..configuration
                });
                continue;
            }
            let direct = self.overwrites_unseen(i, configuration.done);
            for (slot, other) in &self.open {
                if configuration.done >> slot & 1 != 0 || (direct && *other != i) {
                    continue;
                }
                if let Some(state) = apply(self.operation(*other), configuration.state, self.rules, &self.told) {
                    let next = self.read_at_once(Configuration {
                        state,
                        done: configuration.done | 1 << slot,
                    });
                    if seen.admit(next, self.forever) {
                        todo.push_back(next);
                    }
                }
            }
            if seen.count > CONFIGURATIONS_MAX {
                return Err(format!("{UNDECIDED}: too many calls overlap"));
            }
        }
        self.open.remove(&slot);
        if after.is_empty() {
            states.dedup();
            states.truncate(8);
            return Err(format!(
                "no order explains {:?}, answered {:?}; before it the key held one of {states:x?}",
                self.operation(i).call,
                self.operation(i).answer
            ));
        }
        self.configurations = self.prune(after);
        Ok(())
    }

    /// Whether the call overwrites whatever is there, and no call can see what was: then calls that may never have happened
    /// need not be tried before it.
    fn overwrites_unseen(&self, i: usize, done: u128) -> bool {
        matches!(self.operation(i).call.verb, Verb::Set | Verb::Flush)
            && self.operation(i).answer != Some(Answer::Refused)
            && self
                .open
                .iter()
                .all(|(slot, other)| *other == i || (done | self.forever) >> slot & 1 != 0)
    }

    /// Gives every call under way that only reads, and agrees with the state, its instant.
    fn read_at_once(&self, mut configuration: Configuration) -> Configuration {
        for (slot, i) in &self.open {
            let operation = self.operation(*i);
            if configuration.done >> slot & 1 == 0 && agrees(operation, configuration.state) {
                configuration.done |= 1 << slot;
            }
        }
        configuration
    }

    fn prune(&self, all: HashSet<Configuration>) -> Vec<Configuration> {
        let mut all: Vec<Configuration> = all.into_iter().collect();
        all.sort_unstable();
        let dominated = |c: &Configuration| {
            all.iter().any(|better| {
                let is_worse = self.rules.may_vanish && c.state == State::Absent && !better.state.is_absent();
                let same = better.state == c.state || is_worse;
                same && better != c && is_as_good(better.done, c.done, self.forever)
            })
        };
        if all.len() > 1 {
            all.iter().filter(|c| !dominated(c)).copied().collect()
        } else {
            all
        }
    }
}

/// Configurations met, without those that another one can do everything for.
#[derive(Default)]
struct Seen {
    done: HashMap<State, Vec<u128>>,
    count: usize,
}

impl Seen {
    /// Whether it is new.
    fn admit(&mut self, configuration: Configuration, forever: u128) -> bool {
        let others = self.done.entry(configuration.state).or_default();
        if others.iter().any(|other| is_as_good(*other, configuration.done, forever)) {
            return false;
        }
        others.push(configuration.done);
        self.count += 1;
        true
    }
}

/// Whether of two configurations with the same state the one that has done `a` can do all that the one that has done `b` can:
/// it has only fewer of those after it that no call needs.
fn is_as_good(a: u128, b: u128, forever: u128) -> bool {
    a & !b == 0 && b & !a & !forever == 0
}

/// Which value a unique was told with.
type Delivery = HashMap<u64, Value>;

/// Collects the uniques of a key; the same for two values is wrong by itself.
fn told_uniques(operations: &[Operation]) -> Result<Delivery, String> {
    let mut told = Delivery::new();
    for operation in operations {
        let (cas, value) = match (operation.answer, operation.call.verb) {
            (Some(Answer::Hit { value, cas }), _) => (cas, value),
            (Some(Answer::Number { number, cas }), _) => (cas, Value::number(number)),
            (Some(Answer::Stored { cas }), Verb::Set | Verb::Add | Verb::Replace | Verb::Cas | Verb::FetchStore) => {
                (cas, operation.call.value())
            }
            _ => continue,
        };
        if cas != 0 && *told.entry(cas).or_insert(value) != value {
            return Err(format!("the CAS unique {cas} was told of two values"));
        }
    }
    Ok(told)
}

fn reads_only(call: &Call) -> bool {
    // A fetch without an answer may have begun a flight.
    matches!(call.verb, Verb::Get | Verb::Gat) || (call.verb == Verb::Touch && call.exptime >= 0)
}

/// Whether the operation only reads and its answer is this state's, with nothing left to settle.
fn agrees(operation: &Operation, state: State) -> bool {
    match (operation.answer, state) {
        (Some(Answer::Hit { value, cas }), State::Present { value: v, cas: c }) => value == v && (cas == 0 || cas == c),
        (Some(Answer::Touched), State::Present { .. }) => operation.call.exptime >= 0,
        (Some(Answer::NotStored), State::Absent | State::InFlight { .. }) => operation.call.verb != Verb::Add,
        // A delete that finds nothing ends a flight, if one has begun by then.
        (Some(Answer::Miss | Answer::NotFound), State::Absent | State::InFlight { .. }) => operation.call.verb != Verb::Delete,
        (Some(Answer::InFlight), State::InFlight { .. }) => true,
        (Some(Answer::Void), State::InFlight { flight }) => flight != operation.call.compare,
        (Some(Answer::Void), _) => true,
        (Some(Answer::NotStored), State::Present { .. }) => operation.call.verb == Verb::Add,
        (Some(Answer::Refused), _) => true,
        _ => false,
    }
}

/// The state behind an operation that has its instant in this one; `None`: its answer says that it cannot.
fn apply(operation: &Operation, state: State, rules: Rules, told: &Delivery) -> Option<State> {
    let call = &operation.call;
    let Some(answer) = operation.answer else {
        return apply_unanswered(call, state, rules, told);
    };
    let absent = state.is_absent() || rules.may_vanish;
    // Behind a call that found none.
    let still_absent = if state.is_absent() { state } else { State::Absent };
    let written = |cas| match call.exptime {
        i32::MIN..0 => State::Absent,
        _ => State::Present {
            value: call.value(),
            cas,
        },
    };
    let present = match state {
        State::Present { value, cas } => Some((value, cas)),
        State::Absent | State::InFlight { .. } => None,
    };
    match (call.verb, answer) {
        (_, Answer::Refused) => Some(state),
        (Verb::Get | Verb::Gat | Verb::FetchBegin, Answer::Hit { value, cas }) => {
            let (v, c) = present?;
            let same = v == value && (c == 0 || cas == 0 || c == cas);
            same.then_some(State::Present {
                value,
                cas: if cas == 0 { c } else { cas },
            })
        }
        (Verb::Get | Verb::Gat | Verb::FetchBegin, Answer::Miss)
        | (Verb::Touch | Verb::Cas | Verb::Incr, Answer::NotFound)
        | (Verb::Replace | Verb::Append | Verb::Prepend, Answer::NotStored) => absent.then_some(still_absent),
        (Verb::Delete, Answer::NotFound) => absent.then_some(State::Absent),
        (Verb::FetchBegin, Answer::Claimed { flight }) => match state {
            State::InFlight { .. } if !rules.may_end_flights() => None,
            _ => absent.then_some(State::InFlight { flight }),
        },
        (Verb::FetchBegin, Answer::InFlight) => matches!(state, State::InFlight { .. }).then_some(state),
        (Verb::FetchStore, Answer::Stored { cas }) => (state == State::InFlight { flight: call.compare }).then(|| written(cas)),
        (Verb::FetchStore, Answer::Void) => match state {
            State::InFlight { flight } if flight == call.compare => rules.may_end_flights().then_some(State::Absent),
            _ => Some(state),
        },
        // Where items are evicted memory may be short.
        (Verb::Append | Verb::Prepend, Answer::NotJoined) if rules.may_vanish => Some(state),
        (Verb::Append | Verb::Prepend, Answer::NotJoined) => absent.then_some(still_absent),
        (Verb::Touch, Answer::Touched) => present.map(|_| if call.exptime < 0 { State::Absent } else { state }),
        (Verb::Set, Answer::Stored { cas }) => Some(written(cas)),
        (Verb::Add, Answer::Stored { cas }) => absent.then(|| written(cas)),
        (Verb::Add, Answer::NotStored) => present.map(|_| state),
        (Verb::Replace, Answer::Stored { cas }) => present.map(|_| written(cas)),
        (Verb::Append, Answer::Stored { cas }) => present.map(|(value, _)| State::Present {
            value: value.then(call.value()),
            cas,
        }),
        (Verb::Prepend, Answer::Stored { cas }) => present.map(|(value, _)| State::Present {
            value: call.value().then(value),
            cas,
        }),
        (Verb::Cas, Answer::Stored { cas }) => {
            let (value, c) = present?;
            may_match(value, c, call.compare, told).then(|| written(cas))
        }
        (Verb::Cas, Answer::Exists) => {
            let (_, c) = present?;
            (c != call.compare || c == 0).then_some(state)
        }
        (Verb::Delete, Answer::Deleted) => present.map(|_| State::Absent),
        (Verb::Incr, Answer::Number { number, cas }) => {
            let (value, _) = present?;
            (value.hash.wrapping_add(call.argument) == number).then_some(State::Present {
                value: Value::number(number),
                cas,
            })
        }
        (Verb::Flush, Answer::Flushed) => Some(State::Absent),
        _ => None,
    }
}

/// Whether an item can have the unique that a cas asks for. One that was told with another value it cannot have.
fn may_match(value: Value, cas: u64, compare: u64, told: &Delivery) -> bool {
    cas == compare || (cas == 0 && told.get(&compare).is_none_or(|v| *v == value))
}

/// The same for a call whose answer no caller got. `None`: it would change nothing, which is as if it had not happened.
fn apply_unanswered(call: &Call, state: State, rules: Rules, told: &Delivery) -> Option<State> {
    let written = match call.exptime {
        i32::MIN..0 => State::Absent,
        _ => State::Present {
            value: call.value(),
            cas: 0,
        },
    };
    let extended = |value| State::Present { value, cas: 0 };
    match (call.verb, state) {
        (Verb::Get | Verb::Gat, _) => None,
        (Verb::Set, _) => Some(written),
        (Verb::Add, State::Absent | State::InFlight { .. }) => Some(written),
        (Verb::Add, State::Present { .. }) => rules.may_vanish.then_some(written),
        (Verb::Delete | Verb::Flush, State::Present { .. } | State::InFlight { .. }) => Some(State::Absent),
        (Verb::FetchBegin, State::Absent) => Some(State::InFlight { flight: 0 }),
        (Verb::FetchBegin, _) => None,
        (Verb::FetchStore, State::InFlight { flight }) => (flight == call.compare).then_some(written),
        (Verb::FetchStore, _) | (_, State::Absent | State::InFlight { .. }) => None,
        (Verb::Touch, _) => (call.exptime < 0).then_some(State::Absent),
        (Verb::Replace, _) => Some(written),
        (Verb::Append, State::Present { value, .. }) => Some(extended(value.then(call.value()))),
        (Verb::Prepend, State::Present { value, .. }) => Some(extended(call.value().then(value))),
        (Verb::Cas, State::Present { value, cas }) => may_match(value, cas, call.compare, told).then_some(written),
        (Verb::Incr, State::Present { value, .. }) => Some(extended(Value::number(value.hash.wrapping_add(call.argument)))),
    }
}

/// The events up to the one that could not be explained.
fn excerpt(operations: &[Operation], events: &[(u64, bool, usize)], number: usize) -> String {
    const SHOWN: usize = 24;
    let from = number.saturating_sub(SHOWN);
    let mut text = String::new();
    for (at, is_response, i) in &events[from..=number] {
        let operation = &operations[*i];
        let Call {
            verb,
            argument,
            compare,
            exptime,
            ..
        } = operation.call;
        let line = if *is_response {
            format!("{at} #{i} {verb:?} answered {:x?}\n", operation.answer)
        } else {
            let lost = if operation.answer.is_none() { " (never answered)" } else { "" };
            format!(
                "{at} #{i} {verb:?} called: {argument:x} = {:x?}, compare {compare:x}, exptime {exptime}{lost}\n",
                operation.call.value()
            )
        };
        text.push_str(&line);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: Key = Key(1);
    const DURABLE: Rules = Rules {
        may_vanish: false,
        flights_may_end: false,
    };
    const VANISHING: Rules = Rules {
        may_vanish: true,
        ..DURABLE
    };
    const MORTAL: Rules = Rules {
        flights_may_end: true,
        ..DURABLE
    };

    fn call(verb: Verb, argument: u64) -> Call {
        Call {
            argument,
            len: 24,
            ..Call::new(verb, KEY)
        }
    }

    fn done(from: u64, to: u64, verb: Verb, argument: u64, answer: Answer) -> Operation {
        Operation {
            invoked: from,
            responded: Some(to),
            call: call(verb, argument),
            answer: Some(answer),
        }
    }

    fn lost(from: u64, verb: Verb, argument: u64) -> Operation {
        Operation {
            invoked: from,
            responded: None,
            call: call(verb, argument),
            answer: None,
        }
    }

    fn hit(from: u64, to: u64, id: u64) -> Operation {
        let value = Value::piece(id);
        done(from, to, Verb::Get, 0, Answer::Hit { value, cas: 0 })
    }

    fn miss(from: u64, to: u64) -> Operation {
        done(from, to, Verb::Get, 0, Answer::Miss)
    }

    fn set(from: u64, to: u64, id: u64) -> Operation {
        done(from, to, Verb::Set, id, Answer::Stored { cas: id })
    }

    fn is_fine(operations: &[Operation], rules: Rules) -> bool {
        judge(operations, rules).is_ok()
    }

    #[test]
    fn overlapping_calls_may_take_either_order_but_one_only() {
        let both = [set(0, 10, 1), set(0, 10, 2)];
        for last in [1, 2] {
            assert!(is_fine(&[&both[..], &[hit(11, 12, last)]].concat(), DURABLE));
        }
        assert!(!is_fine(&[&both[..], &[hit(11, 12, 1), hit(13, 14, 2)]].concat(), DURABLE));
        assert!(!is_fine(&[set(0, 1, 1), set(2, 3, 2), hit(4, 5, 1)], DURABLE), "stale");
    }

    #[test]
    fn two_readers_must_agree_on_the_order() {
        let writers = [set(0, 100, 1), set(0, 100, 2)];
        let agree = [hit(10, 20, 1), hit(30, 40, 2), hit(15, 25, 1), hit(35, 45, 2)];
        let disagree = [hit(10, 20, 1), hit(30, 40, 2), hit(10, 20, 2), hit(30, 40, 1)];
        assert!(is_fine(&[&writers[..], &agree].concat(), DURABLE));
        assert!(!is_fine(&[&writers[..], &disagree].concat(), DURABLE));
    }

    #[test]
    fn a_call_without_a_response_happened_once_or_never() {
        let begun = [set(0, 1, 1), lost(2, Verb::Set, 2), set(3, 4, 3)];
        assert!(is_fine(&[&begun[..], &[hit(5, 6, 3)]].concat(), DURABLE));
        assert!(is_fine(&[&begun[..], &[hit(5, 6, 2)]].concat(), DURABLE), "late");
        let again = [set(0, 1, 1), lost(2, Verb::Set, 2), hit(3, 4, 2), set(5, 6, 3), hit(7, 8, 2)];
        assert!(!is_fine(&again, DURABLE), "twice");
        assert!(
            !is_fine(&[set(0, 1, 1), hit(2, 3, 2), lost(4, Verb::Set, 2)], DURABLE),
            "before it began"
        );
    }

    #[test]
    fn a_miss_is_a_loss_unless_items_may_vanish() {
        let lost = [set(0, 1, 1), miss(2, 3)];
        assert!(!is_fine(&lost, DURABLE));
        assert!(is_fine(&lost, VANISHING));
        assert!(
            !is_fine(&[&lost[..], &[hit(4, 5, 1)]].concat(), VANISHING),
            "back from the dead"
        );
    }

    #[test]
    fn a_flush_that_was_answered_holds() {
        let flush = done(2, 4, Verb::Flush, 0, Answer::Flushed);
        assert!(
            is_fine(&[set(0, 3, 1), flush, hit(5, 6, 1)], DURABLE),
            "the set came after it"
        );
        assert!(!is_fine(&[set(0, 1, 1), flush, hit(5, 6, 1)], VANISHING));
    }

    #[test]
    fn an_expired_item_is_never_seen() {
        let mut dead = set(0, 1, 1);
        dead.call.exptime = -1;
        assert!(is_fine(&[dead, miss(2, 3)], DURABLE));
        assert!(!is_fine(&[dead, hit(2, 3, 1)], VANISHING));
    }

    #[test]
    fn a_unique_belongs_to_one_write() {
        let mut read = hit(2, 3, 1);
        read.answer = Some(Answer::Hit {
            value: Value::piece(1),
            cas: 9,
        });
        assert!(!is_fine(&[set(0, 1, 1), read], DURABLE), "1 was told");
        let mut swap = done(4, 5, Verb::Cas, 2, Answer::Stored { cas: 2 });
        swap.call.compare = 1;
        assert!(is_fine(&[set(0, 1, 1), swap, hit(6, 7, 2)], DURABLE));
        assert!(!is_fine(&[set(0, 1, 1), set(2, 3, 3), swap], DURABLE));
        swap.answer = Some(Answer::Exists);
        assert!(!is_fine(&[set(0, 1, 1), swap], DURABLE));
    }

    fn begin(from: u64, to: u64, answer: Answer) -> Operation {
        done(from, to, Verb::FetchBegin, 0, answer)
    }

    fn store(from: u64, to: u64, flight: u64, answer: Answer) -> Operation {
        let mut stored = done(from, to, Verb::FetchStore, 50 + flight, answer);
        stored.call.compare = flight;
        stored
    }

    #[test]
    fn what_was_begun_before_a_change_is_not_stored_after_it() {
        let claimed = begin(0, 1, Answer::Claimed { flight: 7 });
        let (lands, is_void) = (store(4, 5, 7, Answer::Stored { cas: 0 }), store(4, 5, 7, Answer::Void));
        assert!(is_fine(&[claimed, miss(2, 3), lands, hit(6, 7, 57)], DURABLE));
        assert!(!is_fine(&[claimed, is_void], DURABLE), "nothing has ended it");
        let delete = done(2, 3, Verb::Delete, 0, Answer::NotFound);
        let flush = done(2, 3, Verb::Flush, 0, Answer::Flushed);
        for change in [delete, flush, set(2, 3, 1)] {
            for rules in [DURABLE, VANISHING, MORTAL] {
                assert!(is_fine(&[claimed, change, is_void], rules), "{change:?}");
                assert!(!is_fine(&[claimed, change, lands], rules), "{change:?}");
            }
        }
        let again = [claimed, delete, begin(6, 7, Answer::Claimed { flight: 8 })];
        let late = |flight, answer| [&again[..], &[store(8, 9, flight, answer)]].concat();
        assert!(is_fine(&late(8, Answer::Stored { cas: 0 }), DURABLE));
        assert!(
            !is_fine(&late(7, Answer::Stored { cas: 0 }), MORTAL),
            "after the second one has begun"
        );
    }

    #[test]
    fn one_computes_until_it_dies() {
        let first = begin(0, 1, Answer::Claimed { flight: 7 });
        let second = begin(2, 3, Answer::Claimed { flight: 8 });
        assert!(is_fine(&[first, begin(2, 3, Answer::InFlight)], DURABLE));
        assert!(!is_fine(&[begin(2, 3, Answer::InFlight)], DURABLE), "no caller computes");
        assert!(!is_fine(&[first, second], DURABLE));
        assert!(is_fine(&[first, second], MORTAL));
        let lost = lost(0, Verb::FetchBegin, 0);
        assert!(
            is_fine(&[lost, begin(2, 3, Answer::InFlight)], DURABLE),
            "who got no answer computes"
        );
    }

    #[test]
    fn many_overlapping_sets_are_decided() {
        let mut all: Vec<Operation> = (1..=7).map(|id| set(0, 100, id)).collect();
        all.extend((1..=60).map(|id| lost(1, Verb::Set, 100 + id)));
        all.push(hit(101, 102, 7));
        assert!(is_fine(&all, DURABLE));
        all.push(hit(103, 104, 6));
        assert!(!is_fine(&all, DURABLE));
    }
}
