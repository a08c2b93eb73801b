//! Random calls: few keys that every worker uses, so that calls on one really overlap, and many that fill the index.

use crate::call::{Answer, Call, Key, Verb};
use crate::value::PIECE_LEN_MIN;
use harness::Random;

/// What the calls are chosen from.
#[derive(Clone, Copy, Debug)]
pub struct Mix {
    /// keys with pieces that every worker uses
    pub texts: u32,
    /// keys with numbers that every worker uses
    pub numbers: u32,
    /// of 1000 calls, how many store or read a key that only fills the index
    pub fill: u64,
    /// such keys that a writer stores at most
    pub fill_max: u32,
    /// by how many bytes at most the pieces of such keys are longer than the shortest
    pub fill_len: usize,
    /// of 100,000 calls, how many flush
    pub flush: u64,
    /// longest piece that is stored now and then
    pub len_max: usize,
    /// some items live for seconds only
    pub expiring: bool,
}

/// One writer's choices.
#[derive(Debug)]
pub struct Chooser {
    random: Random,
    mix: Mix,
    writer: u32,
    sequence: u32,
    filled: u32,
    /// the unique that was last seen of each shared key, and whether the value has grown long
    seen: Vec<(u64, bool)>,
    /// the writer's flight of each shared key; 0: it computes none
    flights: Vec<u64>,
}

/// Pieces from which on a value is replaced rather than extended.
const PIECES_MANY: u32 = 12;

impl Chooser {
    /// The choices of this writer, whose number no other writer has.
    pub fn new(random: Random, mix: Mix, writer: u32) -> Self {
        let keys = usize::try_from(mix.texts + mix.numbers).unwrap_or(0);
        Self {
            random,
            mix,
            writer,
            sequence: 0,
            filled: 0,
            seen: vec![(0, false); keys],
            flights: vec![0; keys],
        }
    }

    /// The stream that the choices are drawn from.
    pub fn random(&mut self) -> &mut Random {
        &mut self.random
    }

    /// The next call.
    pub fn next_call(&mut self) -> Call {
        if self.random.below(100_000) < self.mix.flush {
            return Call::new(Verb::Flush, Key(0));
        }
        if self.random.below(1000) < self.mix.fill {
            return self.fill();
        }
        let n = u32::try_from(self.random.below(u64::from(self.mix.texts + self.mix.numbers))).unwrap_or(0);
        if n < self.mix.texts {
            self.text(Key(n), n)
        } else {
            self.number(Key::number(n - self.mix.texts), n)
        }
    }

    /// What an answer tells for later calls.
    pub fn learn(&mut self, call: &Call, answer: &Answer) {
        if let Answer::Claimed { flight } = answer
            && let Some(own) = self.flights.get_mut(call.key.0 as usize)
        {
            *own = *flight;
        }
        let (cas, long) = match answer {
            Answer::Hit { value, cas } => (*cas, value.pieces >= PIECES_MANY),
            Answer::Stored { cas } | Answer::Number { cas, .. } => (*cas, false),
            _ => return,
        };
        let n = if call.key.is_filler() {
            return;
        } else if call.key.is_number() {
            self.mix.texts + (call.key.0 - Key::number(0).0)
        } else {
            call.key.0
        };
        if let Some(seen) = usize::try_from(n).ok().and_then(|n| self.seen.get_mut(n)) {
            *seen = (if cas == 0 { seen.0 } else { cas }, long);
        }
    }

    fn seen(&self, n: u32) -> (u64, bool) {
        usize::try_from(n)
            .ok()
            .and_then(|n| self.seen.get(n))
            .copied()
            .unwrap_or_default()
    }

    fn fill(&mut self) -> Call {
        if self.filled < self.mix.fill_max && (self.filled == 0 || self.random.below(3) > 0) {
            let key = Key::filler(self.writer, self.filled);
            self.filled += 1;
            let len = PIECE_LEN_MIN + self.random.index(self.mix.fill_len);
            return self.piece(Verb::Set, key, len);
        }
        let back = u32::try_from(self.random.below(u64::from(self.filled.max(1)))).unwrap_or(0);
        Call::new(Verb::Get, Key::filler(self.writer, back))
    }

    fn text(&mut self, key: Key, n: u32) -> Call {
        let (cas, long) = self.seen(n);
        if let Some(flight) = self.flights.get_mut(n as usize)
            && *flight != 0
            && self.random.below(3) == 0
        {
            let compare = std::mem::take(flight);
            let len = self.random.index(200);
            return Call {
                compare,
                ..self.piece(Verb::FetchStore, key, len)
            };
        }
        let verb = match self.random.below(100) {
            0..24 => Verb::Get,
            24..32 => Verb::FetchBegin,
            32..36 => Verb::Gat,
            36..39 => Verb::Touch,
            39..57 => Verb::Set,
            57..65 => Verb::Add,
            65..70 => Verb::Replace,
            70..77 if !long => Verb::Append,
            77..81 if !long => Verb::Prepend,
            81..89 if cas != 0 => Verb::Cas,
            81..89 => Verb::Get,
            89..97 => Verb::Delete,
            97 => return self.dying(Verb::Set, key),
            98 => return self.dying(Verb::Touch, key),
            _ => Verb::Set,
        };
        let len = match (verb, self.random.below(400)) {
            (Verb::Append | Verb::Prepend, _) => self.random.index(150),
            (_, 0) => self.random.index(self.mix.len_max),
            (_, 1..12) => self.random.index(self.mix.len_max.min(3000)),
            _ => self.random.index(200),
        };
        Call {
            compare: cas,
            exptime: self.exptime(),
            ..self.piece(verb, key, len)
        }
    }

    fn number(&mut self, key: Key, n: u32) -> Call {
        let (cas, _) = self.seen(n);
        let verb = match self.random.below(100) {
            0..25 => Verb::Get,
            25..28 => Verb::Gat,
            28..38 => Verb::Set,
            38..46 => Verb::Add,
            46..50 if cas != 0 => Verb::Cas,
            50..58 => Verb::Delete,
            58 => return self.dying(Verb::Touch, key),
            _ => Verb::Incr,
        };
        // Numbers of always the same width, so that counting never pads, and sums that coincide by chance alone.
        let argument = match verb {
            Verb::Incr => 1 + self.random.below(1 << 30),
            _ => (1 << 50) + self.random.below(1 << 50),
        };
        Call {
            argument,
            compare: cas,
            exptime: self.exptime(),
            ..Call::new(verb, key)
        }
    }

    /// An item that is gone as soon as it is there.
    fn dying(&mut self, verb: Verb, key: Key) -> Call {
        let len = self.random.index(100);
        Call {
            exptime: -1,
            ..self.piece(verb, key, len)
        }
    }

    fn piece(&mut self, verb: Verb, key: Key, len: usize) -> Call {
        self.sequence += 1;
        Call {
            argument: u64::from(self.writer) << 32 | u64::from(self.sequence),
            len: u32::try_from(len.max(PIECE_LEN_MIN)).unwrap_or(0),
            ..Call::new(verb, key)
        }
    }

    /// Mostly never; sometimes far away, which puts the item with others of its lifetime; seconds only where that may be.
    fn exptime(&mut self) -> i32 {
        match self.random.below(40) {
            0..2 => 1000,
            2 => 50_000,
            3..5 if self.mix.expiring => 1 + i32::try_from(self.random.below(3)).unwrap_or(0),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use keyway_proto::{Access, Command, Form};
    use std::collections::HashSet;

    #[test]
    fn every_verb_is_some_commands_and_every_verb_is_chosen() {
        let mix = Mix {
            texts: 4,
            numbers: 4,
            fill: 10,
            fill_max: 100,
            fill_len: 60,
            flush: 100,
            len_max: 1000,
            expiring: true,
        };
        let mut chooser = Chooser::new(Random::new(1), mix, 0);
        let mut chosen = HashSet::new();
        for cas in 1..20_000 {
            let call = chooser.next_call();
            chosen.insert(call.verb);
            let answer = match call.verb {
                Verb::FetchBegin => Answer::Claimed { flight: cas },
                _ => Answer::Stored { cas },
            };
            chooser.learn(&call, &answer);
        }
        let asked: HashSet<_> = Command::ALL.iter().filter_map(|command| Verb::of(*command)).collect();
        assert_eq!(asked, Verb::ALL.into_iter().collect());
        // A meta command asks for the same verbs of a session; `decr` is `incr` with another sign.
        let changes = |command: &&Command| {
            let facts = command.facts();
            (facts.form, facts.access) == (Form::Text, Access::Writes) && **command != Command::Decr
        };
        for command in Command::ALL.iter().filter(changes) {
            assert!(
                Verb::of(*command).is_some(),
                "{command:?} changes items, and no verb of histories asks for it"
            );
        }
        assert_eq!(chosen, asked);
    }
}
