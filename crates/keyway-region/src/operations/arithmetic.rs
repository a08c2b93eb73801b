//! Arithmetic: what increment and decrement mean ("Increment/Decrement", "Meta Arithmetic" of protocol.txt), and how a number is
//! read from an item's value.

use crate::clock::ttl;
use crate::decimal::{self, Operand};
use crate::hash::{Key, Keyed};
use crate::heap;
use crate::index::{Changed, Decide, Decision, Old};
use crate::layout::flight::Holder;
use crate::layout::item::{Record, flag};
use crate::layout::stats::Counter;
use crate::layout::watch::{Command, Kind, Status};
use crate::limits::memcached_size;
use crate::log::{Draft, Value, Written};
use crate::memory::KeyRoom;
use crate::session::Session;
use crate::sink::Unread;
use crate::verbs::{Arithmetic, Counted, Item, Now, Number, WriteError};
use crate::watch::Done;

impl Session {
    /// Increment and decrement ("Increment/Decrement", "Meta Arithmetic").
    #[inline(always)]
    pub fn arithmetic(&mut self, key: impl Keyed, how: &Arithmetic, mut now: impl Now) -> Result<Counted, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.key(key, &mut room)?;
        let is_plain = how.compare_cas.is_none() && how.new_cas.is_none() && how.exptime.is_none();
        if is_plain && let Some((sum, written)) = self.count_fast(key, how.by(), &mut now) {
            return Ok(Counted::Value {
                value: sum.value,
                item: sum.item(&written, now),
            });
        }
        self.arithmetic_if((key.bytes, key.hash), *how, now.tick())
    }

    /// Increment ("Increment/Decrement"), for a caller that needs only the number.
    #[inline]
    pub fn incr(&mut self, key: impl Keyed, delta: u64, now: impl Now) -> Result<Number, WriteError> {
        self.count_by(key, Operand { delta, decrement: false }, now)
    }

    /// Decrement, likewise.
    #[inline]
    pub fn decr(&mut self, key: impl Keyed, delta: u64, now: impl Now) -> Result<Number, WriteError> {
        self.count_by(key, Operand { delta, decrement: true }, now)
    }

    #[inline(always)]
    fn count_by(&self, key: impl Keyed, by: Operand, mut now: impl Now) -> Result<Number, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.key(key, &mut room)?;
        match self.count_fast(key, by, &mut now) {
            Some((sum, _)) => Ok(Number::Is(sum.value)),
            None => self.count_slow(key.bytes, by.delta, by.decrement, now.tick()),
        }
    }

    /// Arithmetic without a comparison, which changes nothing of the item but its value: the new value, and the item that was
    /// written. `None`: it takes [`Self::arithmetic_if`].
    #[inline(always)]
    fn count_fast(&self, key: Key<'_>, by: Operand, now: &mut impl Now) -> Option<(Sum, Written)> {
        let mut sum = Sum::default();
        let plain = PlainSum { by, sum: &mut sum };
        let (Changed::Put, written) = self.index().change_fast(self.reclaimer(), key, now, plain)? else {
            return None;
        };
        self.thread().count(
            if by.decrement {
                Counter::decr_hits
            } else {
                Counter::incr_hits
            },
            1,
        );
        Some((sum, written))
    }

    /// The general code starts again from the copy of the key, so that the fast path keeps everything else in registers.
    #[cold]
    #[inline(never)]
    fn count_slow(&self, key: &[u8], delta: u64, decrement: bool, now: u32) -> Result<Number, WriteError> {
        let how = Arithmetic {
            delta,
            decrement,
            ..Arithmetic::default()
        };
        self.arithmetic_if((key, self.mapped().hasher().hash(key)), how, now)
            .map(Number::from)
    }

    /// Slow path of arithmetic of any kind, which emits an event if watchers want it.
    #[inline(never)]
    fn arithmetic_if(&self, (bytes, hash): (&[u8], u64), how: Arithmetic, now: u32) -> Result<Counted, WriteError> {
        let mut sum = Sum::default();
        let changed = self
            .index()
            .change_by(self.reclaimer(), &Key { bytes, hash }, now, &mut |old, built| {
                let decision;
                (decision, sum) = self::sum(self, &how, now, old, built);
                decision
            });
        let counted = changed.map(|(what, written)| self.counted_sum(&how, what, sum, &written, now));
        if self.emitter().is_watched() {
            self.emit_sum(bytes, &how, counted.as_ref().ok(), sum.hit, now);
        }
        counted
    }

    #[cold]
    #[inline(never)]
    fn emit_sum(&self, key: &[u8], how: &Arithmetic, counted: Option<&Counted>, hit: bool, now: u32) {
        let Some(Counted::Value { item, .. }) = counted else {
            return self.emitter().emit_change(key, None);
        };
        // As memcached, whose watchers see of arithmetic only what creates an item.
        let (kind, command, exptime) = match (hit, how.decrement) {
            (false, _) => (Kind::Mutation, Command::Add, how.vivify.map(|(_, exptime)| exptime)),
            (true, false) => (Kind::Update, Command::Incr, how.exptime),
            (true, true) => (Kind::Update, Command::Decr, how.exptime),
        };
        let done = Done {
            kind,
            command,
            status: Status::Stored,
            size: item.value_len,
            ttl_s: exptime.map_or(0, |exptime| self.ttl_of(exptime, now)),
            cas: item.cas,
        };
        self.emitter().emit_change(key, Some(done));
    }

    /// Counts the request in the statistics, and makes its answer.
    fn counted_sum(&self, how: &Arithmetic, what: Changed, sum: Sum, written: &Written, now: u32) -> Counted {
        let answer = match (what, sum.refusal) {
            (Changed::Put, _) => Counted::Value {
                value: sum.value,
                item: sum.item(written, now),
            },
            (_, Refusal::Absent) => Counted::NotFound,
            (_, Refusal::Exists) => return Counted::Exists,
            (_, Refusal::NotANumber) => return Counted::NotANumber,
        };
        self.thread().count(
            match (how.decrement, sum.hit) {
                (false, true) => Counter::incr_hits,
                (false, false) => Counter::incr_misses,
                (true, true) => Counter::decr_hits,
                (true, false) => Counter::decr_misses,
            },
            1,
        );
        answer
    }
}

impl Arithmetic {
    pub(crate) fn by(&self) -> Operand {
        Operand {
            delta: self.delta,
            decrement: self.decrement,
        }
    }
}

/// The decision of arithmetic on a short number, without any condition.
struct PlainSum<'s> {
    by: Operand,
    sum: &'s mut Sum,
}

impl Decide<'static> for PlainSum<'_> {
    #[inline(always)]
    fn decide(&mut self, old: Option<&Old<'_>>, _: &mut Vec<u8>) -> Decision<'static> {
        let Some(old) = old else { return Decision::Keep };
        // Most often only the digits change.
        if let Some((digits, len)) = old.digits()
            && let Some(digits) = self.by.of_digits(digits)
            && let Some(text) = digits.text_of_len(len)
            && let Some(header) = old.header_of_same_form()
        {
            *self.sum = Sum {
                value: digits.number(),
                marks: header.given() & flag::MARKS,
                flags: old.flags(),
                expiry: header.expiry(),
                ..Sum::default()
            };
            return Decision::Replace(self.sum.draft(None, Value::TextInForm(text, header)));
        }
        // By value: what another function can point to does not stay in registers.
        let Some((sum, text)) = self.by.of_item(*old) else {
            return Decision::Keep;
        };
        *self.sum = sum;
        let value = match text {
            NumberText::Short(text, len) => Value::Text(text, len),
            NumberText::Long(width) => Value::Number(sum.value, width),
        };
        Decision::Replace(sum.draft(None, value))
    }
}

/// How a number is written.
enum NumberText {
    /// as so many bytes of a word
    Short(u64, usize),
    /// with blanks to this length
    Long(usize),
}

impl Operand {
    /// What becomes of an item with a number of up to sixteen digits, or of up to eight with blanks after them.
    #[inline(never)]
    fn of_item(self, old: Old<'_>) -> Option<(Sum, NumberText)> {
        let (number, width, digits) = old.number()?;
        let (marks, flags) = old.marks_and_flags();
        let sum = Sum {
            value: self.of(number),
            marks: marks & !flag::RECORD,
            record: kept_of(&old, old.expiry()),
            flags,
            expiry: old.expiry(),
            ..Sum::default()
        };
        // A number that fits into the old value's length is padded to it (protocol.txt, "Increment/Decrement").
        let text = match digits.and_then(|digits| self.of_digits(digits)) {
            Some(digits) => {
                let (text, len) = digits.text(width);
                NumberText::Short(text, len)
            }
            None => NumberText::Long(width),
        };
        Some((sum, text))
    }
}

/// What becomes of a number.
fn sum<'v>(session: &Session, how: &Arithmetic, now: u32, old: Option<&Old<'_>>, built: &mut Vec<u8>) -> (Decision<'v>, Sum) {
    let Some(old) = old else {
        let Some((value, exptime)) = how.vivify else {
            return (Decision::Keep, Sum::default());
        };
        let sum = Sum {
            value,
            marks: if how.opaque_key { flag::OPAQUE_KEY } else { 0 },
            expiry: session.expiry(exptime, now),
            ..Sum::default()
        };
        return (Decision::Put(sum.draft(how.new_cas, Value::Number(value, 0))), sum);
    };
    if let Some(cas) = how.compare_cas {
        // In memcached's order: a value whose length no number has is not a number, whatever CAS was compared.
        if old.item().cas != cas && may_be_number(old) {
            return (Decision::Keep, Sum::refused(Refusal::Exists));
        }
    }
    let (number, width) = match read_number(old, built) {
        InValue::Number { number, width } => (number, width),
        InValue::None => return (Decision::Keep, Sum::refused(Refusal::NotANumber)),
        InValue::Unreadable(unread) => return (Decision::Unreadable(unread), Sum::default()),
    };
    let value = how.by().of(number);
    let (marks, flags) = old.marks_and_flags();
    let expiry = how.exptime.map_or(old.expiry(), |exptime| session.expiry(exptime, now));
    let sum = Sum {
        hit: true,
        value,
        marks: marks & !flag::RECORD,
        record: kept_of(old, expiry),
        flags,
        expiry,
        ..Sum::default()
    };
    // A number that fits into the old value's length is padded to it (protocol.txt, "Increment/Decrement").
    let text = if width <= decimal::LEN_MAX {
        Value::Number(value, width)
    } else {
        build_number(value, width, built);
        Value::Built
    };
    (Decision::Replace(sum.draft(how.new_cas, text)), sum)
}

/// What a number becomes, or why it stays as it is.
#[derive(Clone, Copy, Default)]
struct Sum {
    refusal: Refusal,
    hit: bool,
    value: u64,
    marks: u64,
    record: Option<Record>,
    flags: u32,
    /// a tick of the region's clock, 0 for never
    expiry: u32,
}

/// Why there is no result.
#[derive(Clone, Copy, Default)]
enum Refusal {
    #[default]
    Absent,
    Exists,
    NotANumber,
}

impl Sum {
    fn refused(refusal: Refusal) -> Self {
        Self {
            refusal,
            hit: true,
            ..Self::default()
        }
    }

    /// What is known of the item with this number.
    #[inline(always)]
    fn item(&self, written: &Written, mut now: impl Now) -> Item {
        Item {
            cas: written.cas,
            value_len: written.value_len,
            size: written.size,
            flags: self.flags,
            ttl_s: match self.expiry {
                0 => None,
                expiry => ttl(expiry, now.tick()),
            },
            win_sent: self.record.is_some_and(|record| record.holder != 0),
            ..Item::marked(self.marks)
        }
    }

    /// The item with this number.
    #[inline(always)]
    fn draft<'v>(&self, cas: Option<u64>, value: Value<'v>) -> Draft<'v> {
        Draft {
            marks: self.marks,
            record: self.record,
            client_flags: self.flags,
            cas,
            expiry: self.expiry,
            value,
        }
    }
}

/// The record of an item of which only the number changes: no thread computes it any more.
fn kept_of(old: &Old<'_>, expiry: u32) -> Option<Record> {
    let record = old.record()?.moved(old.expiry(), expiry);
    let holder = if Holder(record.holder).is_by_get() { record.holder } else { 0 };
    Some(Record { holder, ..record })
}

/// The number, padded with blanks to an unusual length: that of the old value, which has been read into the buffer.
fn build_number(value: u64, width: usize, built: &mut Vec<u8>) {
    built.clear();
    heap::reserve(built, width);
    built.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
    built.resize(width, b' ');
}

/// The number in a value.
enum InValue {
    Number {
        number: u64,
        /// length of the value, bytes
        width: usize,
    },
    None,
    /// it could not be read
    Unreadable(Unread),
}

/// Largest item, in bytes as memcached counts it, whose value may be a number: memcached keeps larger ones in pieces
/// (`slab_chunk_max`), and does no arithmetic on those.
const NUMBER_ITEM_SIZE_MAX: usize = 512 << 10;

/// Whether a number can have the value's length.
fn may_be_number(old: &Old<'_>) -> bool {
    let item = old.item();
    item.value_len > 0 && memcached_size(old.key_len(), item.flags, item.value_len) <= NUMBER_ITEM_SIZE_MAX
}

/// The number in an item's value; `buffer` is for values of unusual length.
fn read_number(old: &Old<'_>, buffer: &mut Vec<u8>) -> InValue {
    let mut digits = [0; decimal::LEN_MAX];
    let bytes = match old.short_value(&mut digits) {
        Some(bytes) => bytes,
        None if !may_be_number(old) => return InValue::None,
        None => match old.append_value(buffer) {
            Ok(()) => buffer.as_slice(),
            Err(unread) => return InValue::Unreadable(unread),
        },
    };
    decimal::read(bytes).map_or(InValue::None, |number| InValue::Number {
        number,
        width: bytes.len(),
    })
}
