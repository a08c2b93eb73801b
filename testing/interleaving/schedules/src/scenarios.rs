//! The scenarios: what is in the region before, and what each thread does.

use histories::{Call, Key, Operation, Verb};
use keyway_region::layout::bucket::Table;
use keyway_region::layout::slot::Slot;
use keyway_region::{Region, Session, all_choices, hash};
use kill_points::ground::{Ground, NOW};
use mutants::Mutant;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::explore::{answer, open_session};
use crate::preempt::{By, Weave};

/// What a thread does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Act {
    Call(Call),
    /// housekeeping, which recovers the dead and frees what was flushed
    Upkeep,
    /// the thread gives its slot back and takes the first that is vacant
    AnotherSlot,
}

/// Threads in a region, and what is wrong with it when it is to be rejected.
pub(crate) struct Scenario {
    pub name: &'static str,
    pub segments: usize,
    pub evicts: bool,
    /// the first thread dies somewhere in its calls
    pub dies: bool,
    /// the first thread is taken for dead, again and again, and is not
    pub is_suspected: bool,
    /// so many of the first threads are overtaken at every place
    pub overtaken: usize,
    /// threads that are stopped in turn besides
    pub weave: Option<Weave>,
    pub mutant: Option<Mutant>,
    pub setup: fn(&mut Stage<'_>) -> Vec<Vec<Act>>,
}

/// What most scenarios are: nothing is evicted, no thread dies.
const PLAIN: Scenario = Scenario {
    name: "",
    segments: 12,
    evicts: false,
    dies: false,
    is_suspected: false,
    overtaken: 1,
    weave: None,
    mutant: None,
    setup: |_| Vec::new(),
};

/// The argument of a get that asks for the value alone.
pub(crate) const PLAIN_GET: u64 = 1;

/// The cheap ones first: what is wrong shows soon.
pub(crate) const SCENARIOS: &[Scenario] = &[
    Scenario {
        name: "two inserts of one key",
        evicts: true,
        overtaken: 2,
        mutant: Some(Mutant::InsertWithoutRescan),
        setup: |_| {
            threads([
                vec![store(Verb::Add, K, 1)],
                vec![store(Verb::Add, K, 2)],
                vec![get(K), get(K)],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "two inserts of one key, into both of its buckets",
        overtaken: 2,
        weave: Some(APART),
        setup: |stage| {
            let other = stage.goes_elsewhere_without();
            threads([
                vec![store(Verb::Add, K, 1)],
                vec![delete(other), store(Verb::Add, K, 2), get(K)],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "two fetches of one key",
        overtaken: 2,
        mutant: Some(Mutant::TwoCompute),
        setup: |_| {
            threads([
                vec![fetch(K), fetched(K, 1)],
                vec![fetch(K), fetched(K, 2), fetch(K)],
                vec![get(K)],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "a fetch against changes of its key",
        overtaken: 2,
        mutant: Some(Mutant::LateStoreLands),
        setup: |_| {
            threads([
                vec![fetch(K), fetched(K, 1), get(K)],
                vec![delete(K), store(Verb::Set, K, 2), get(K), delete(K), get(K)],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "two fetches of one key, against a delete",
        setup: |_| {
            threads([
                vec![fetch(K), fetched(K, 1)],
                vec![delete(K), get(K)],
                vec![fetch(K), fetched(K, 2), get(K)],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "a fetch against a flush that is cleaned up",
        overtaken: 2,
        setup: |_| {
            let cleans = [Act::Call(flush()), Act::Upkeep, Act::Call(fetch(K)), Act::Call(fetched(K, 2))];
            vec![[fetch(K), fetched(K, 1), get(K)].map(Act::Call).to_vec(), cleans.to_vec()]
        },
        ..PLAIN
    },
    Scenario {
        name: "a fetch whose caller dies",
        dies: true,
        setup: |_| {
            let takes_over = [
                Act::Call(fetch(K)),
                Act::Upkeep,
                Act::Call(fetch(K)),
                Act::Call(fetched(K, 2)),
                Act::Call(get(K)),
            ];
            vec![[fetch(K), fetched(K, 1)].map(Act::Call).to_vec(), takes_over.to_vec()]
        },
        ..PLAIN
    },
    Scenario {
        name: "a fetch by one that is taken for dead",
        is_suspected: true,
        setup: |_| {
            let takes_over = [Act::Upkeep, Act::Call(fetch(K)), Act::Call(fetched(K, 2)), Act::Call(get(K))];
            vec![[fetch(K), fetched(K, 1), get(K)].map(Act::Call).to_vec(), takes_over.to_vec()]
        },
        ..PLAIN
    },
    Scenario {
        name: "a suspicion that comes late",
        is_suspected: true,
        overtaken: 0,
        setup: |_| {
            threads_of([
                [store(Verb::Set, K, 1), store(Verb::Set, K, 2)].map(Act::Call).to_vec(),
                vec![Act::Upkeep, Act::Call(get(K))],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "recovery of an insert in whose place another one is",
        dies: true,
        setup: |_| {
            let goes_on = [
                Act::Call(store(Verb::Add, K, 2)),
                Act::Call(get(K)),
                Act::Upkeep,
                Act::Call(get(K)),
            ];
            threads_of([vec![Act::Call(store(Verb::Set, K, 1))], goes_on.to_vec()])
        },
        ..PLAIN
    },
    Scenario {
        name: "a reader against overwrites",
        overtaken: 2,
        mutant: Some(Mutant::OverwriteInTwoSteps),
        setup: |stage| {
            stage.call(store(Verb::Set, K, 1));
            threads([vec![store(Verb::Set, K, 2), store(Verb::Set, K, 3)], vec![get(K); 4]])
        },
        ..PLAIN
    },
    Scenario {
        name: "a plain get against overwrites",
        overtaken: 2,
        mutant: Some(Mutant::OverwriteInTwoSteps),
        setup: |stage| {
            stage.call(store(Verb::Set, K, 1));
            threads([vec![store(Verb::Set, K, 2), store(Verb::Set, K, 3)], vec![plain_get(K); 4]])
        },
        ..PLAIN
    },
    Scenario {
        name: "a plain get, whose word comes back as another key's",
        setup: |stage| {
            let (other, rest) = stage.until_the_word_returns();
            let mut rest = rest;
            // It is there before the word comes back, and from then on.
            rest.insert(1, store(Verb::Set, K, 77));
            threads([vec![plain_get(K), plain_get(other), plain_get(K)], rest])
        },
        ..PLAIN
    },
    Scenario {
        name: "a plain get against a split",
        segments: 24,
        overtaken: 2,
        mutant: Some(Mutant::TableBeforeFill),
        setup: |stage| {
            let [old, new] = stage.begin_doubling();
            threads([
                vec![store(Verb::Set, Key(60_000), 3)],
                vec![store(Verb::Set, new, 4), plain_get(new)],
                vec![plain_get(old), plain_get(old)],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "a plain get against a relocation",
        mutant: Some(Mutant::RelocateInTwoSteps),
        setup: |stage| {
            stage.wear_out();
            // As many as the stores take.
            threads([[plain_get(K), plain_get(L)].repeat(6), stage.pressure(3)])
        },
        ..PLAIN
    },
    Scenario {
        name: "a plain get against recycling",
        evicts: true,
        overtaken: 0,
        mutant: Some(Mutant::GetWithoutSecondLook),
        setup: |stage| {
            let rest = stage.fill_segments(5);
            threads([vec![plain_get(K), plain_get(K)], rest])
        },
        ..PLAIN
    },
    Scenario {
        name: "a delete against a relocation",
        mutant: Some(Mutant::RelocateBlindly),
        setup: |stage| {
            stage.wear_out();
            threads([vec![delete(K), get(K), delete(L), get(L)], stage.pressure(3)])
        },
        ..PLAIN
    },
    Scenario {
        name: "a relocation against changes",
        setup: |stage| {
            stage.wear_out();
            threads([
                stage.pressure(3),
                vec![store(Verb::Append, K, 1), delete(L), store(Verb::Add, L, 2)],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "a relocation against a flush",
        setup: |stage| {
            stage.wear_out();
            threads([stage.pressure(3), vec![flush(), get(K), get(L), store(Verb::Set, L, 2)]])
        },
        ..PLAIN
    },
    Scenario {
        name: "two relocations of one segment",
        setup: |stage| {
            stage.wear_out();
            threads([stage.pressure(3), stage.pressure(3)])
        },
        ..PLAIN
    },
    Scenario {
        name: "recovery of an insert that died",
        evicts: true,
        dies: true,
        mutant: Some(Mutant::TentativeForgotten),
        setup: |_| threads([vec![store(Verb::Set, K, 1)], vec![get(K), store(Verb::Set, L, 2), get(L)]]),
        ..PLAIN
    },
    Scenario {
        name: "recovery of a change that died",
        dies: true,
        setup: |stage| {
            stage.call(store(Verb::Set, K, 1));
            let recovers = [
                Act::Upkeep,
                Act::Call(get(K)),
                Act::Call(store(Verb::Append, K, 3)),
                Act::Call(store(Verb::Add, L, 4)),
            ];
            let mut all = threads([vec![store(Verb::Set, K, 2), store(Verb::Set, L, 2), delete(K)]]);
            all.push(recovers.to_vec());
            all
        },
        ..PLAIN
    },
    Scenario {
        name: "flush_all against inserts",
        overtaken: 2,
        mutant: Some(Mutant::StampDown),
        setup: |_| {
            threads([
                vec![store(Verb::Set, K, 1), get(K)],
                vec![flush(), store(Verb::Set, K, 2), get(K)],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "an insert against a flush that is cleaned up",
        overtaken: 2,
        setup: |stage| {
            stage.call(store(Verb::Set, K, 9));
            stage.leave();
            let cleans = [Act::Call(flush()), Act::Upkeep, Act::Call(get(K))];
            vec![vec![Act::Call(store(Verb::Add, K, 1))], cleans.to_vec()]
        },
        ..PLAIN
    },
    Scenario {
        name: "two inserts against a flush that is cleaned up",
        overtaken: 2,
        setup: |_| {
            let cleans = [Act::Call(store(Verb::Add, K, 2)), Act::Call(flush()), Act::Upkeep];
            vec![vec![Act::Call(store(Verb::Add, K, 1))], cleans.to_vec()]
        },
        ..PLAIN
    },
    Scenario {
        name: "what is made from an item, against a flush",
        overtaken: 2,
        setup: |stage| {
            stage.call(store(Verb::Set, K, 1));
            threads([
                vec![store(Verb::Append, K, 2)],
                vec![flush(), get(K), store(Verb::Set, K, 3), get(K)],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "a number against a flush",
        overtaken: 2,
        setup: |stage| {
            stage.call(store(Verb::Set, number(), 41));
            let incr = Call {
                argument: 1,
                ..Call::new(Verb::Incr, number())
            };
            threads([
                vec![incr, incr],
                vec![flush(), get(number()), store(Verb::Set, number(), 7), incr],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "a touch and a delete against a flush",
        overtaken: 2,
        setup: |stage| {
            stage.call(store(Verb::Set, K, 1));
            stage.call(store(Verb::Set, L, 1));
            threads([
                vec![touch(K), delete(L)],
                vec![flush(), get(K), delete(L), store(Verb::Add, K, 2), store(Verb::Add, L, 2)],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "changes of one key against each other",
        overtaken: 2,
        setup: |stage| {
            stage.call(store(Verb::Set, K, 1));
            threads([
                vec![store(Verb::Append, K, 2), touch(K), delete(K)],
                vec![store(Verb::Prepend, K, 3), store(Verb::Replace, K, 4), store(Verb::Add, K, 5)],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "what a split moves is read, changed and inserted meanwhile",
        segments: 24,
        setup: |stage| {
            let [old, gone, new] = stage.about_to_move();
            threads([
                vec![
                    get(old),
                    store(Verb::Append, old, 5),
                    delete(gone),
                    store(Verb::Set, new, 6),
                    get(new),
                ],
                vec![store(Verb::Set, Key(60_000), 3)],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "a delete while its item's segment is taken",
        evicts: true,
        overtaken: 0,
        weave: Some(Weave {
            stops: &[(1, By::Exchange(40)), (0, By::Step(200))],
            ends: &[1, 0],
        }),
        setup: |stage| {
            let mut rest = stage.fill_segments(3);
            for call in &mut rest {
                call.len = 15_500;
            }
            threads([vec![delete(K)], rest])
        },
        ..PLAIN
    },
    Scenario {
        name: "a delete by one that is taken for dead, whose word comes back as another key's",
        is_suspected: true,
        setup: |stage| {
            let (other, rest) = stage.until_the_word_returns();
            threads([vec![delete(K), get(other)], rest])
        },
        ..PLAIN
    },
    Scenario {
        name: "two inserts of one key, into both of its buckets, and a flush that is cleaned up",
        overtaken: 0,
        weave: Some(APART),
        setup: |stage| {
            let other = stage.goes_elsewhere_without();
            // In a segment of its own, which no other thread writes to.
            let whole = Call {
                len: 15_000,
                ..store(Verb::Add, K, 2)
            };
            let cleans = [delete(other), whole, flush()].map(Act::Call);
            threads_of([
                vec![Act::Call(store(Verb::Add, K, 1))],
                cleans.into_iter().chain([Act::Upkeep]).collect(),
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "a delete, whose word comes back as another key's",
        setup: |stage| {
            let (other, rest) = stage.until_the_word_returns();
            threads([vec![delete(K), get(other)], rest])
        },
        ..PLAIN
    },
    Scenario {
        name: "a delete by the thread with the last slot, whose word comes back as another key's",
        overtaken: 0,
        weave: Some(Weave {
            stops: &[(1, By::Step(200))],
            ends: &[0, 1],
        }),
        setup: |stage| {
            let (other, rest) = stage.until_the_word_returns();
            threads([rest, vec![delete(K), get(other)]])
        },
        ..PLAIN
    },
    Scenario {
        name: "a get, whose word comes back as another key's",
        setup: |stage| {
            let (other, rest) = stage.until_the_word_returns();
            let mut rest = rest;
            // It is there before the word comes back, and from then on.
            rest.insert(1, store(Verb::Set, K, 77));
            threads([vec![get(K), get(other), get(K)], rest])
        },
        ..PLAIN
    },
    Scenario {
        name: "a touch and an append, whose word comes back as another key's",
        setup: |stage| {
            let (other, rest) = stage.until_the_word_returns();
            threads([vec![touch(K), store(Verb::Append, K, 3), get(other)], rest])
        },
        ..PLAIN
    },
    Scenario {
        name: "a set over an item, whose word comes back as another key's",
        setup: |stage| {
            let (other, rest) = stage.until_the_word_returns();
            threads([vec![store(Verb::Set, K, 3), get(other)], rest])
        },
        ..PLAIN
    },
    Scenario {
        name: "a large value is touched, deleted and replaced",
        segments: 24,
        overtaken: 2,
        setup: |stage| {
            stage.call(large(K, 1));
            threads_of([
                vec![Act::Call(touch(K)), Act::Call(delete(K))],
                vec![
                    Act::Call(touch(K)),
                    Act::Call(store(Verb::Set, K, 2)),
                    Act::Upkeep,
                    Act::Call(touch(K)),
                ],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "third buckets are used for the first time",
        overtaken: 2,
        setup: |stage| {
            let [first, key] = stage.fill_pair();
            threads([
                vec![store(Verb::Set, key, 1), get(key)],
                vec![delete(first), store(Verb::Set, key, 2), get(key)],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "two inserts into third buckets",
        overtaken: 2,
        setup: |stage| {
            let [_, key] = stage.fill_pair();
            threads([
                vec![store(Verb::Add, key, 1), get(key)],
                vec![store(Verb::Add, key, 2), delete(key), get(key)],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "inserts over the items of full buckets",
        evicts: true,
        overtaken: 2,
        setup: |stage| {
            let [first, key] = stage.fill_all_three();
            threads([
                vec![store(Verb::Add, key, 1), get(key)],
                vec![store(Verb::Set, first, 3), store(Verb::Add, key, 2), get(first)],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "changes against a split",
        segments: 24,
        overtaken: 2,
        setup: |stage| {
            let [old, new] = stage.begin_doubling();
            threads([
                vec![store(Verb::Set, Key(60_000), 3)],
                vec![
                    delete(old),
                    store(Verb::Add, old, 4),
                    delete(old),
                    store(Verb::Append, new, 5),
                ],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "a splitter that sleeps while others go on",
        segments: 24,
        setup: |stage| {
            let [old, new] = stage.begin_doubling();
            let others = (0..4).map(|n| store(Verb::Set, Key(60_001 + n), u64::from(n)));
            let mut after = vec![delete(old)];
            after.extend(others);
            after.extend([store(Verb::Add, old, 7), store(Verb::Set, new, 8), get(old)]);
            threads([vec![store(Verb::Set, Key(60_000), 3)], after])
        },
        ..PLAIN
    },
    Scenario {
        name: "an insert against a split",
        segments: 24,
        overtaken: 2,
        mutant: Some(Mutant::TableBeforeFill),
        setup: |stage| {
            let [old, new] = stage.begin_doubling();
            threads([
                vec![store(Verb::Set, Key(60_000), 3)],
                vec![store(Verb::Set, new, 4), get(new)],
                vec![get(old), get(old)],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "two growers",
        segments: 24,
        mutant: Some(Mutant::TableBeforeFill),
        setup: |stage| {
            let [old, _] = stage.begin_doubling();
            threads([
                vec![store(Verb::Set, Key(60_000), 3)],
                vec![store(Verb::Set, Key(60_001), 4)],
                vec![get(old), get(old), get(old)],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "a large value is read while it is replaced",
        segments: 24,
        setup: |stage| {
            stage.call(large(K, 1));
            threads([vec![store(Verb::Set, K, 2), get(K)], vec![get(K), get(K)]])
        },
        ..PLAIN
    },
    Scenario {
        name: "a large item that is to be evicted is touched and replaced",
        segments: 16,
        evicts: true,
        setup: |stage| {
            let rest = stage.fill_with_large();
            threads([
                rest,
                vec![
                    touch(Key(300)),
                    touch(Key(301)),
                    store(Verb::Set, Key(300), 5),
                    touch(Key(301)),
                ],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "two inserts of one key, into both of its buckets, and a split",
        segments: 24,
        overtaken: 0,
        weave: Some(APART),
        setup: |stage| {
            let (key, other) = stage.moves_elsewhere_without();
            threads([
                vec![store(Verb::Add, key, 1)],
                vec![delete(other), store(Verb::Add, key, 2), get(key)],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "a split against recycling",
        segments: 24,
        setup: |stage| {
            let [old, new] = stage.begin_doubling();
            let mut after = vec![Act::Call(Call::new(Verb::Flush, K)), Act::Upkeep, Act::Upkeep];
            after.extend((0..10).map(|n| Act::Call(store(Verb::Set, Key(70_000 + n), u64::from(n)))));
            after.extend([store(Verb::Set, old, 5), store(Verb::Set, new, 6)].map(Act::Call));
            vec![vec![Act::Call(store(Verb::Set, Key(60_000), 3))], after]
        },
        ..PLAIN
    },
    Scenario {
        name: "an append against others that need room",
        mutant: Some(Mutant::RelocateBlindly),
        setup: |stage| {
            stage.wear_out();
            threads([
                vec![store(Verb::Append, K, 1), get(K)],
                stage.pressure(3),
                vec![get(K), get(K), get(K)],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "a reader against a relocation",
        mutant: Some(Mutant::RelocateInTwoSteps),
        setup: |stage| {
            stage.wear_out();
            // As many as the stores take.
            threads([[get(K), get(L)].repeat(6), stage.pressure(3)])
        },
        ..PLAIN
    },
    Scenario {
        name: "a reader against recycling",
        evicts: true,
        overtaken: 0,
        mutant: Some(Mutant::GetWithoutSecondLook),
        setup: |stage| {
            let rest = stage.fill_segments(5);
            threads([vec![get(K), get(K)], rest])
        },
        ..PLAIN
    },
    Scenario {
        name: "recovery of a large value that died",
        segments: 24,
        dies: true,
        setup: |stage| {
            stage.call(large(K, 1));
            let recovers = [
                Act::Upkeep,
                Act::Call(get(K)),
                Act::Call(large(L, 3)),
                Act::Upkeep,
                Act::Call(get(L)),
            ];
            let mut all = threads([vec![delete(K), large(K, 2)]]);
            all.push(recovers.to_vec());
            all
        },
        ..PLAIN
    },
    Scenario {
        name: "a get that misses nothing while segments are recycled",
        setup: |stage| {
            stage.pairs(1, 30);
            let rest = stage.pair_calls(2, 12);
            threads([vec![get(K), get(K)], rest])
        },
        ..PLAIN
    },
    Scenario {
        name: "a writer that sleeps while its segment is flushed and used again",
        setup: |stage| {
            stage.call(store(Verb::Set, L, 9));
            threads_of([vec![Act::Call(store(Verb::Set, K, 1)), Act::Call(get(K))], stage.use_again()])
        },
        ..PLAIN
    },
    Scenario {
        name: "a writer of an item that fills its extent, against a flush",
        weave: Some(Weave {
            stops: &[(0, By::Exchange(40))],
            ends: &[1, 0],
        }),
        setup: |stage| {
            // It leaves no room for others in its segment, and is written while another one has some: its extent is closed at once.
            let whole = Call {
                len: 15_900,
                ..store(Verb::Set, K, 1)
            };
            stage.call(store(Verb::Set, K, 8));
            stage.call(store(Verb::Set, L, 9));
            threads_of([vec![Act::Call(store(Verb::Set, L, 2)), Act::Call(whole)], stage.use_again()])
        },
        ..PLAIN
    },
    Scenario {
        name: "a large value's segments are freed beside others that want them",
        segments: 24,
        evicts: true,
        overtaken: 1,
        setup: |stage| {
            for n in 0..3 {
                stage.call(large(Key(100 + n), u64::from(n)));
            }
            stage.call(large(K, 1));
            let mut rest: Vec<Act> = (0..6).map(|n| Act::Call(large(Key(200 + n), u64::from(n)))).collect();
            rest.extend((200..206).map(|n| Act::Call(get(Key(n)))));
            threads_of([vec![Act::Call(delete(K))], rest])
        },
        ..PLAIN
    },
    Scenario {
        name: "a large value is read while others take its segments",
        segments: 24,
        setup: |stage| {
            stage.call(Call {
                len: 17_000,
                ..large(K, 1)
            });
            let mut rest = vec![delete(K)];
            rest.extend((0..3).map(|n| large(Key(200 + n), u64::from(n))));
            rest.push(Call {
                len: 17_000,
                ..large(K, 2)
            });
            threads([vec![get(K)], rest])
        },
        ..PLAIN
    },
    Scenario {
        name: "the rest of an extent that two threads want",
        overtaken: 2,
        mutant: Some(Mutant::HandedOnTwice),
        setup: |stage| {
            // The session that stored it ends.
            stage.call(store(Verb::Set, Key(3), 1));
            threads([
                vec![store(Verb::Set, K, 1), get(K), get(Key(3))],
                vec![store(Verb::Set, L, 2), get(L), get(K)],
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "the rest of an extent that a thread wants, in a segment that another one reclaims",
        evicts: true,
        overtaken: 2,
        setup: |stage| {
            stage.call(store(Verb::Set, Key(3), 1));
            let rest = stage.fill_segments(5);
            threads([vec![store(Verb::Set, K, 1), get(K), store(Verb::Set, L, 2), get(L)], rest])
        },
        ..PLAIN
    },
    Scenario {
        name: "the rest of an extent whose owner died",
        dies: true,
        setup: |stage| {
            stage.call(store(Verb::Set, Key(3), 1));
            let heirs = [
                Act::Upkeep,
                Act::Call(store(Verb::Set, L, 2)),
                Act::Call(get(L)),
                Act::Call(get(K)),
            ];
            threads_of([
                [store(Verb::Set, K, 1), store(Verb::Set, Key(4), 2), get(K)]
                    .map(Act::Call)
                    .to_vec(),
                heirs.to_vec(),
                heirs.to_vec(),
            ])
        },
        ..PLAIN
    },
    Scenario {
        name: "a writer that is taken for dead, while its extent's segment is wanted",
        evicts: true,
        is_suspected: true,
        mutant: Some(Mutant::FencedHoldNothing),
        setup: |stage| {
            let rest = stage.fill_segments(5);
            threads([vec![store(Verb::Set, L, 1), store(Verb::Set, K, 2), get(L)], rest])
        },
        ..PLAIN
    },
    Scenario {
        name: "a writer that is taken for dead, and its slot",
        evicts: true,
        is_suspected: true,
        mutant: Some(Mutant::SuspicionFrees),
        setup: |stage| {
            let rest = stage.fill_segments(5);
            threads([vec![store(Verb::Set, L, 1), store(Verb::Set, K, 2), get(L)], rest])
        },
        ..PLAIN
    },
    Scenario {
        name: "a get of what is stored elsewhere, while its old place is written over",
        setup: |stage| {
            stage.pairs(1, 30);
            let mut rest = vec![store(Verb::Set, K, 77)];
            rest.extend((0..14).map(|n| Call {
                len: 15_900,
                ..store(Verb::Set, Key(90), 9000 + n)
            }));
            threads([vec![get(K)], rest])
        },
        ..PLAIN
    },
    Scenario {
        name: "a writer that is taken for dead, and whose slot another one wants",
        evicts: true,
        is_suspected: true,
        setup: |stage| {
            let rest = stage.fill_segments(5);
            let mut acts = vec![Act::AnotherSlot];
            acts.extend(rest.into_iter().map(Act::Call));
            threads_of([
                [store(Verb::Set, L, 1), store(Verb::Set, K, 2), get(L)]
                    .map(Act::Call)
                    .to_vec(),
                acts,
            ])
        },
        ..PLAIN
    },
];

/// The first inserter is stopped at an exchange, the second one at one, and the first one at each step behind it; and the second one ends
/// before it.
const APART: Weave = Weave {
    stops: &[(0, By::Exchange(6)), (1, By::Exchange(12)), (0, By::Step(120))],
    ends: &[1, 0],
};

pub(crate) const K: Key = Key(1);
pub(crate) const L: Key = Key(2);

fn number() -> Key {
    Key::number(1)
}

/// Segments of its own: two and a half.
fn large(key: Key, id: u64) -> Call {
    Call {
        len: 40_000,
        ..store(Verb::Set, key, id)
    }
}

fn store(verb: Verb, key: Key, id: u64) -> Call {
    Call {
        argument: id,
        len: 40,
        ..Call::new(verb, key)
    }
}

pub(crate) fn get(key: Key) -> Call {
    Call::new(Verb::Get, key)
}

/// A get that does not ask for the CAS unique, so that it goes the fast path.
fn plain_get(key: Key) -> Call {
    Call {
        argument: PLAIN_GET,
        ..get(key)
    }
}

fn delete(key: Key) -> Call {
    Call::new(Verb::Delete, key)
}

/// Begins a flight if there is no item.
fn fetch(key: Key) -> Call {
    Call::new(Verb::FetchBegin, key)
}

/// Stores what the thread has computed, if it has begun a flight.
fn fetched(key: Key, id: u64) -> Call {
    store(Verb::FetchStore, key, id)
}

fn touch(key: Key) -> Call {
    Call::new(Verb::Touch, key)
}

fn flush() -> Call {
    Call::new(Verb::Flush, K)
}

fn threads<const N: usize>(calls: [Vec<Call>; N]) -> Vec<Vec<Act>> {
    calls.map(|calls| calls.into_iter().map(Act::Call).collect()).into()
}

fn threads_of<const N: usize>(acts: [Vec<Act>; N]) -> Vec<Vec<Act>> {
    acts.into()
}

/// A region before its scenario, and what was done in it.
pub(crate) struct Stage<'g> {
    ground: &'g Ground,
    region: Arc<Region>,
    session: Session,
    evicts: bool,
    pub done: Vec<Operation>,
    /// calls to make, if it is known after how many something is about to happen
    limit: Option<usize>,
    /// what was found out by calls that are not part of it
    pub found: Found,
}

/// What the first setting up of a scenario finds out for the second.
#[derive(Clone, Debug, Default)]
pub(crate) struct Found {
    /// after how many calls something is about to happen
    limit: Option<usize>,
    /// calls after which a word is back
    rehearsed: Option<Vec<Call>>,
}

impl Found {
    /// Whether there is to be a second one.
    pub fn is_something(&self) -> bool {
        self.limit.is_some() || self.rehearsed.is_some()
    }
}

impl<'g> Stage<'g> {
    pub fn new(ground: &'g Ground, evicts: bool, found: Found) -> Self {
        let region = ground.create();
        Self {
            ground,
            session: open_session(&region, 0, evicts),
            region,
            evicts,
            done: Vec::new(),
            limit: found.limit,
            found,
        }
    }

    /// Makes calls until the counter moves; told the limit, stops right before.
    fn until_it_moves(&mut self, counter: fn(&Region) -> u64, calls: impl Iterator<Item = Call>) {
        let before = counter(&self.region);
        for call in calls {
            if self.limit == Some(self.done.len()) {
                return;
            }
            if counter(&self.region) != before {
                break;
            }
            self.call(call);
        }
        self.found.limit = Some(self.done.len().saturating_sub(1));
    }

    fn call(&mut self, call: Call) {
        let invoked = self.done.len() as u64 * 2;
        let answer = answer(
            &mut self.session,
            self.region.clock().tick(keyway_region::Moment::from_secs(NOW)),
            &call,
        );
        self.done.push(Operation {
            invoked,
            responded: Some(invoked + 1),
            call,
            answer: Some(answer),
        });
    }

    /// Ends the session: what comes is another one's.
    fn leave(&mut self) {
        self.session.end();
        self.session = open_session(&self.region, 0, self.evicts);
    }

    fn table(&self) -> u64 {
        self.region.directory().index_buckets()
    }

    fn hash(&self, key: Key) -> u64 {
        hash(self.region.mapped().seed(), key.name(0).as_bytes())
    }

    /// The buckets of a key, as long as the index has not grown.
    fn buckets(&self, key: Key) -> [u64; 3] {
        let all = self.table();
        all_choices(self.hash(key)).map(|choice| choice % all)
    }

    /// Keys, from this number on, whose buckets are as wanted.
    fn keys_with(&self, from: u32, wanted: impl Fn([u64; 3]) -> bool) -> impl Iterator<Item = Key> {
        (from..1 << 29).map(Key).filter(move |key| wanted(self.buckets(*key)))
    }

    /// Fills both buckets of a key. One of those keys, and another one, that would go to its third bucket.
    fn fill_pair(&mut self) -> [Key; 2] {
        let [a, b, _] = self.buckets(K);
        let same: Vec<Key> = self
            .keys_with(1000, |[one, other, _]| [one, other] == [a, b] || [other, one] == [a, b])
            .take(16)
            .collect();
        for key in &same {
            self.call(store(Verb::Set, *key, 1));
        }
        [same[0], K]
    }

    /// The same of all three.
    fn fill_all_three(&mut self) -> [Key; 2] {
        let filled = self.fill_pair();
        let [a, b, third] = self.buckets(K);
        // Where one bucket is full they go to the other one.
        let more: Vec<Key> = self
            .keys_with(1000, |[one, other, _]| {
                [one, other].contains(&third) && ([one, other].contains(&a) || [one, other].contains(&b))
            })
            .take(8)
            .collect();
        for key in &more {
            self.call(store(Verb::Set, *key, 1));
        }
        filled
    }

    /// Puts an item into each of K's two buckets. Without the one whose key is returned, K goes to its second bucket; with it, to its first.
    fn goes_elsewhere_without(&mut self) -> Key {
        let [a, b, _] = self.buckets(K);
        let into = |stage: &Self, bucket, not| stage.keys_with(1000, |[one, other, _]| one == bucket && other != not).next();
        let both = [into(self, a, b), into(self, b, a)].map(|key| key.unwrap_or(L));
        for key in both {
            self.call(store(Verb::Set, key, 1));
        }
        both[1]
    }

    /// The words of a bucket of the first index.
    fn words(&self, bucket: u64) -> impl Iterator<Item = u64> {
        let at = self.region.mapped().layout().segments + usize::try_from(bucket).unwrap_or(0) * 64;
        let words = self.ground.bytes()[at..at + 64].chunks_exact(8);
        words.map(|bytes| bytes.try_into().map_or(0, u64::from_ne_bytes))
    }

    /// Of the keys with these numbers those that the next splits move, with the bucket that they leave, and the other one.
    fn moving(&self, keys: std::ops::Range<u32>) -> impl Iterator<Item = (Key, u64, u64)> {
        let table = Table::new(self.table());
        let after = Table::new(table.count + 4);
        keys.map(Key).filter_map(move |key| {
            let [one, other, _] = all_choices(self.hash(key));
            let leaves = |choice| table.bucket(choice) != after.bucket(choice);
            match (leaves(one), leaves(other)) {
                (true, false) => Some((key, table.bucket(one), table.bucket(other))),
                (false, true) => Some((key, table.bucket(other), table.bucket(one))),
                _ => None,
            }
        })
    }

    fn empties(&self, bucket: u64) -> usize {
        self.words(bucket).filter(|word| Slot(*word).is_empty()).count()
    }

    /// Whether the bucket has a word with the key's tag.
    fn is_in(&self, key: Key, bucket: u64) -> bool {
        self.words(bucket).any(|word| Slot(word).is_item_with(self.hash(key) >> 52))
    }

    /// Whether a new key would go to the first of these, which are its buckets; with one item less in it, if that is said.
    fn goes_to(&self, key: Key, bucket: u64, other: u64, freed: usize) -> bool {
        let is_first = Table::new(self.table()).bucket(all_choices(self.hash(key))[0]) == bucket;
        let (here, there) = (self.empties(bucket) + freed, self.empties(other));
        here > there || is_first && here == there
    }

    /// With the index about to be split: a key that is not there, which the next splits move if it is put into one of its buckets; but it
    /// goes to the other one. And the key without which it does not.
    fn moves_elsewhere_without(&mut self) -> (Key, Key) {
        let there = self.begin_doubling_at();
        let found = self.moving(60_100..90_000).find_map(|(key, leaves, other)| {
            let turns = !self.goes_to(key, leaves, other, 0) && self.goes_to(key, leaves, other, 1);
            let one = there
                .clone()
                .map(Key)
                .find(|one| self.is_in(*one, leaves) && self.buckets_now(*one).contains(&leaves));
            one.filter(|_| turns).map(|one| (key, one))
        });
        found.unwrap_or_else(|| panic!("no such key"))
    }

    /// With the index about to be split: two keys that the next splits move, and one that is not there and will be moved.
    fn about_to_move(&mut self) -> [Key; 3] {
        let there = self.begin_doubling_at();
        let mut old = self
            .moving(there)
            .filter(|(key, leaves, _)| self.is_in(*key, *leaves))
            .map(|(key, ..)| key);
        let new = self
            .moving(60_100..90_000)
            .find_map(|(key, leaves, other)| self.goes_to(key, leaves, other, 0).then_some(key));
        let [Some(one), Some(two), Some(new)] = [old.next(), old.next(), new] else {
            panic!("no such keys")
        };
        [one, two, new]
    }

    /// The two buckets of a key, whatever the index has grown to.
    fn buckets_now(&self, key: Key) -> [u64; 2] {
        let [one, other, _] = all_choices(self.hash(key));
        [one, other].map(|choice| Table::new(self.table()).bucket(choice))
    }

    /// Inserts until the index has begun to double: the numbers of the keys.
    fn begin_doubling_at(&mut self) -> std::ops::Range<u32> {
        let base = self.table();
        let mut n = 100;
        while self.table() == base {
            self.call(store(Verb::Set, Key(n), u64::from(n)));
            n += 1;
        }
        100..n
    }

    /// Inserts until the index has begun to double. A key that is there and one that is not, which the next splits concern.
    fn begin_doubling(&mut self) -> [Key; 2] {
        let base = self.table();
        let there = self.begin_doubling_at();
        let n = there.end;
        let next = self.table();
        let concerned = |key: &u32| {
            let choice = self.hash(Key(*key)) & 0xFFFF_FFFF;
            let place = choice % (2 * base);
            (next..next + 4).contains(&place)
        };
        [there, n..60_000].map(|keys| Key(keys.into_iter().find(concerned).unwrap_or(100)))
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
        self.until_it_moves(|region| region.threads().counters().relocations, calls);
        assert!(self.limit.is_some() || self.done.len() < 2000, "nothing was copied");
    }

    /// K and then others, each with a segment of its own, until the next one takes K's. The stores that come next: they evict
    /// K, and one of them is put where K was.
    fn fill_segments(&mut self, stores: u32) -> Vec<Call> {
        let whole = |n: u32| Call {
            len: 15_000,
            ..store(Verb::Set, Key(n), u64::from(n))
        };
        let mut others = (100..200).map(whole);
        self.until_it_moves(
            |region| region.threads().counters().evictions,
            [whole(K.0)].into_iter().chain(&mut others),
        );
        let first = self.done.last().map_or(100, |last| last.call.key.0 + 1);
        (first..first + stores).map(whole).collect()
    }

    /// Large values until one is about to be evicted; the store that comes next.
    fn fill_with_large(&mut self) -> Vec<Call> {
        let mut others = (300..330).map(|n| large(Key(n), u64::from(n)));
        self.until_it_moves(|region| region.threads().counters().evictions, &mut others);
        vec![large(Key(400), 1)]
    }

    /// Stores that need room.
    fn pressure(&self, count: u32) -> Vec<Call> {
        let big = |n| Call {
            len: 1500,
            ..store(Verb::Set, Key(70_000 + n % 2), 70_000 + u64::from(n))
        };
        (0..count).map(big).collect()
    }

    /// Everything is flushed, what it took is freed, and other items are put there and read.
    fn use_again(&self) -> Vec<Act> {
        let mut acts = vec![Act::Call(flush()), Act::Upkeep, Act::Upkeep];
        let item = |n: u32| Call {
            len: 3_500,
            ..store(Verb::Set, Key(100 + n), u64::from(n))
        };
        acts.extend((0..24).map(|n| Act::Call(item(n))));
        acts.extend((0..24).map(|n| Act::Call(get(Key(100 + n)))));
        acts
    }

    /// So many times an item that fills a segment but for a little, and a small one, K, behind it.
    fn pairs(&mut self, from: u32, count: u32) {
        for call in self.pair_calls(from, count) {
            self.call(call);
        }
    }

    #[expect(clippy::unused_self, reason = "as the others are called")]
    fn pair_calls(&self, from: u32, count: u32) -> Vec<Call> {
        (from..from + count).flat_map(|n| pair(K, 5000 + u64::from(n))).collect()
    }

    /// K, and calls that delete it and have another key's item put where K's was, so often that the word in the slot is the same again;
    /// that key.
    fn until_the_word_returns(&mut self) -> (Key, Vec<Call>) {
        for n in 0..30 {
            for call in pair(K, n) {
                self.call(call);
            }
        }
        let (tag, [bucket, ..]) = (self.hash(K) >> 52, self.buckets(K));
        let twin = (1000..1 << 29)
            .map(Key)
            .find(|key| self.hash(*key) >> 52 == tag && self.buckets(*key)[0] == bucket)
            .unwrap_or(L);
        if let Some(calls) = self.found.rehearsed.clone() {
            return (twin, calls);
        }
        // As it will be then: this thread's session is there, and does nothing.
        self.leave();
        let mut other = open_session(&self.region, 1, self.evicts);
        let word = self.word_with(tag);
        let mut calls = vec![delete(K)];
        answer(
            &mut other,
            self.region.clock().tick(keyway_region::Moment::from_secs(NOW)),
            &calls[0],
        );
        for n in 0..200 {
            let next = pair(twin, 8000 + n);
            for call in &next {
                answer(
                    &mut other,
                    self.region.clock().tick(keyway_region::Moment::from_secs(NOW)),
                    call,
                );
            }
            calls.extend(next);
            if n > 0 && self.word_with(tag) == word {
                break;
            }
        }
        assert!(self.word_with(tag) == word, "it never came back");
        self.found.rehearsed = Some(calls.clone());
        (twin, calls)
    }

    /// The word with this tag in the first index, without its frequency.
    fn word_with(&self, tag: u64) -> Option<(usize, u64)> {
        const FREQUENCY: u64 = 3 << 59;
        let layout = self.region.mapped().layout();
        let words = self.ground.bytes()[layout.segments..].chunks_exact(8);
        words
            .take(layout.shape.buckets_initial * 8)
            .map(|bytes| bytes.try_into().map_or(0, u64::from_ne_bytes))
            .enumerate()
            .find(|(_, word)| word >> 47 & 0xFFF == tag && word >> 62 == 0 && *word != 0)
            .map(|(at, word)| (at, word & !FREQUENCY))
    }
}

/// An item that fills a segment but for a little, and one of this key behind it.
fn pair(key: Key, id: u64) -> [Call; 2] {
    let whole = Call {
        len: 15_000,
        ..store(Verb::Set, Key(90), id)
    };
    [whole, store(Verb::Set, key, id)]
}
