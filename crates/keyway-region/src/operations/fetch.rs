//! Fetches: a value that one caller computes while the others wait, or take what is stale (Nishtala et al., "Scaling Memcache at
//! Facebook", NSDI 2013, section 3.2.1: leases; RFC 5861: stale values).
//!
//! Who computes is in the key's own item: in its record, or, if the key has no item, in that of one that is present for fetches only.
//! So every change of the key ends the flight, because it replaces that item, and a late store finds that the item is another one.
//!
//! Nothing here waits: that is the caller's ([`crate::Flights`]).

#[cfg(all(test, feature = "observe"))]
mod late;

use crate::clock::{expiry_at, seconds_left, seconds_of};
use crate::fetch::{Fetched, Flight, Freshness, Refreshed};
use crate::hash::{Key, Keyed};
use crate::index::{Changed, Decide, Decision, Old};
use crate::layout::flight::Holder;
use crate::layout::item::{EXPIRED, Record, flag};
use crate::layout::stats::Counter;
use crate::log::{Draft, Value, Written};
use crate::memory::KeyRoom;
use crate::operations::same_value;
use crate::session::Session;
use crate::sink::Unread;
use crate::verbs::{Item, Store, Stored, WriteError};

/// How long a flight without a value is kept, seconds: a computation that takes longer stores nothing.
const FLIGHT_S: i64 = 3600;

/// A decision that also sees what is present for fetches only.
pub struct OfFetch<'d, 'v>(pub &'d mut dyn FnMut(Option<&Old<'_>>, &mut Vec<u8>) -> Decision<'v>);

impl<'v> Decide<'v> for OfFetch<'_, 'v> {
    const FETCHES: bool = true;

    fn decide(&mut self, old: Option<&Old<'_>>, built: &mut Vec<u8>) -> Decision<'v> {
        (self.0)(old, built)
    }
}

/// The fetches of a session.
pub struct Fetches<'s>(&'s Session);

/// What a fetch finds.
enum Found {
    Value {
        item: Item,
        is_fresh: bool,
        record: Record,
    },
    /// somebody computes the first value, or there is none
    NoValue(Record),
}

impl<'s> Fetches<'s> {
    /// Of this session.
    pub fn of(session: &'s mut Session) -> Self {
        Self(session)
    }

    /// Looks for a value, and begins a flight if there is none that will do and nobody computes one. On [`Fetched::Fresh`],
    /// [`Fetched::Stale`] and [`Fetched::Compute`] with an item `out` has the value at its end; otherwise it is as long as before.
    ///
    /// # Errors
    ///
    /// Those of a write.
    pub fn begin(&self, key: impl Keyed, how: &Freshness, now: u32, out: &mut Vec<u8>) -> Result<Fetched, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.0.key(key, &mut room)?;
        let start = out.len();
        let own = if how.client_s > 0 {
            self.0.holder().by_get()
        } else {
            self.0.holder()
        };
        let mut answer = Fetched::Nothing;
        let changed = self.change_by_fetch((key.bytes, key.hash), now, None, &mut |old, built| {
            out.truncate(start);
            let decided = self.decide(old, how, (own, now), out, built);
            let (decision, said) = decided.unwrap_or_else(|unread| (Decision::Unreadable(unread), Fetched::Nothing));
            answer = said;
            decision
        });
        let written = changed.inspect_err(|_| out.truncate(start))?;
        match (&mut answer, written) {
            (Fetched::Compute(flight, _), Some(written)) => flight.serial = written.cas,
            (Fetched::Fresh(_) | Fetched::Stale(_), _) => self.0.thread().count(Counter::get_hits, 1),
            _ => {}
        }
        Ok(answer)
    }

    /// What a fetch answers, and makes of what it finds.
    fn decide(
        &self,
        old: Option<&Old<'_>>,
        how: &Freshness,
        (own, now): (Holder, u32),
        out: &mut Vec<u8>,
        built: &mut Vec<u8>,
    ) -> Result<(Decision<'static>, Fetched), Unread> {
        let (Some(old), Some(found)) = (old, old.map(|old| found(old, now))) else {
            return Ok(self.begin_without(how, own, now));
        };
        Ok(match found {
            Found::NoValue(record) if record.holder == Holder::NONE.0 => (Decision::Keep, Fetched::Nothing),
            Found::NoValue(record) if self.computes(record) => (Decision::Keep, elsewhere(old, record)),
            Found::NoValue(_) => self.begin_without(how, own, now),
            Found::Value { item, is_fresh, record } => {
                // An item that was marked as stale has no time at which it became so.
                let age_s = if old.expiry() == 0 {
                    0
                } else {
                    seconds_left(now, old.expiry())
                };
                let would_do = is_fresh || age_s < how.stale_s;
                let is_due = !is_fresh || is_due(how.early, record.cost_ms, old.expiry(), now);
                let answer = match (is_due, self.computes(record)) {
                    (false, _) => Fetched::Fresh(item),
                    (true, true) if is_fresh => Fetched::Fresh(item),
                    (true, true) if would_do => Fetched::Stale(item),
                    (true, true) => elsewhere(old, record),
                    (true, false) if how.only_look => Fetched::Unclaimed(would_do.then_some(item)),
                    (true, false) => {
                        let old = (is_fresh || age_s < how.old_s).then_some(item);
                        Fetched::Compute(Flight { holder: own, serial: 0 }, old)
                    }
                };
                if !matches!(
                    answer,
                    Fetched::Elsewhere(_) | Fetched::Unclaimed(None) | Fetched::Compute(_, None)
                ) {
                    old.append_value(out)?;
                }
                match answer {
                    Fetched::Compute(..) => (held_by(own, old, built), answer),
                    answer => (Decision::Keep, answer),
                }
            }
        })
    }

    /// What a fetch answers, and makes of a key without a value.
    fn begin_without(&self, how: &Freshness, own: Holder, now: u32) -> (Decision<'static>, Fetched) {
        if how.only_look {
            return (Decision::Keep, Fetched::Unclaimed(None));
        }
        let flight = Flight { holder: own, serial: 0 };
        (
            Decision::Put(self.no_value(own, if how.client_s > 0 { how.client_s.into() } else { FLIGHT_S }, now)),
            Fetched::Compute(flight, None),
        )
    }

    /// Stores what was computed, if the flight is still this one's: `false` if it was void, because the key was deleted, flushed or
    /// stored, or another caller has taken it over. An error ends the flight, too.
    ///
    /// # Errors
    ///
    /// Those of a write.
    pub fn store(&self, key: impl Keyed, flight: Flight, value: &[u8], how: &Refreshed, now: u32) -> Result<bool, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.0.key(key, &mut room)?;
        let expiry = self.0.expiry(how.exptime, now);
        let stays = expiry != 0 && how.keep_s > 0;
        let record = (stays || how.cost_ms > 0).then(|| Record {
            holder: Holder::NONE.0,
            until: if stays { self.later(expiry, how.keep_s) } else { 0 },
            cost_ms: how.cost_ms,
        });
        let draft = Draft {
            marks: if how.opaque_key { flag::OPAQUE_KEY } else { 0 },
            record,
            client_flags: how.flags,
            cas: None,
            expiry,
            value: Value::Bytes(value),
        };
        let stored = self.0.admit(&key, value, how.flags).and_then(|()| {
            let stores = Some((value.len(), how.exptime));
            self.end_flight((key.bytes, key.hash), flight, now, stores, &mut |_, _| Decision::Put(draft))
        });
        match stored {
            Ok(true) => self.0.thread().count(Counter::total_items, 1),
            Ok(false) => {}
            Err(_) => {
                // The caller gets the error about the value; it has no place for a second one.
                let _ = self.abandon(Key::of((key.bytes, key.hash)), flight, now);
            }
        }
        stored
    }

    /// Says for so many seconds that there is no value; with 0 it says nothing. `false`: the flight was void.
    ///
    /// # Errors
    ///
    /// Those of a write.
    pub fn store_nothing(&self, key: impl Keyed, flight: Flight, ttl_s: u32, now: u32) -> Result<bool, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.0.key(key, &mut room)?;
        self.end_flight((key.bytes, key.hash), flight, now, None, &mut |_, _| match ttl_s {
            0 => Decision::Remove,
            ttl_s => Decision::Put(self.no_value(Holder::NONE, ttl_s.into(), now)),
        })
    }

    /// Gives a flight up: the next caller begins one. `false`: it was void.
    ///
    /// # Errors
    ///
    /// Those of a write.
    pub fn abandon(&self, key: impl Keyed, flight: Flight, now: u32) -> Result<bool, WriteError> {
        let mut room = KeyRoom::new();
        let key = self.0.key(key, &mut room)?;
        self.end_flight(
            (key.bytes, key.hash),
            flight,
            now,
            None,
            &mut |old, built| match found(old, now) {
                Found::NoValue(_) => Decision::Remove,
                Found::Value { .. } => held_by(Holder::NONE, old, built),
            },
        )
    }

    /// Changes the item of this flight, and wakes those who wait for it. `false`: it is void. `stores`: length and exptime of the value that
    /// it stores.
    fn end_flight<'v>(
        &self,
        key: (&[u8], u64),
        flight: Flight,
        now: u32,
        stores: Option<(usize, i64)>,
        decide: &mut dyn FnMut(&Old<'_>, &mut Vec<u8>) -> Decision<'v>,
    ) -> Result<bool, WriteError> {
        let mut is_ours = false;
        let ended = self.change_by_fetch(key, now, stores, &mut |old, built| {
            let ours =
                old.filter(|old| old.record().is_some_and(|record| is_of(flight, record)) && old.item().cas == flight.serial);
            is_ours = ours.is_some();
            ours.map_or(Decision::Keep, |old| decide(old, built))
        });
        // Also where it was void: those who wait for it would wait for nothing.
        self.0.region.flights().wake(key.1);
        ended.map(|_| is_ours)
    }

    /// Changes a key that is seen as fetches see it. Returns the new item, if there is one. Watchers see a store, if it is one.
    fn change_by_fetch<'v>(
        &self,
        (bytes, hash): (&[u8], u64),
        now: u32,
        stores: Option<(usize, i64)>,
        decide: &mut dyn FnMut(Option<&Old<'_>>, &mut Vec<u8>) -> Decision<'v>,
    ) -> Result<Option<Written>, WriteError> {
        let key = Key::of((bytes, hash));
        let changed = self.0.index().change(self.0.reclaimer(), &key, now, &mut OfFetch(decide));
        if self.0.emitter().is_watched() {
            match (&changed, stores) {
                (Ok((Changed::Put, written)), Some((value_len, exptime))) => {
                    let how = Store {
                        exptime,
                        ..Store::default()
                    };
                    let stored = Stored::Stored {
                        cas: written.cas,
                        value_len,
                        size: 0,
                    };
                    self.0.emit_store(bytes, value_len, &how, &Ok(stored), now);
                }
                _ => self.0.emitter().emit_change(bytes, None),
            }
        }
        match changed? {
            (Changed::Put, written) => Ok(Some(written)),
            (Changed::Kept | Changed::Removed, _) => Ok(None),
        }
    }

    /// Whether somebody computes who is not known to be dead.
    fn computes(&self, record: Record) -> bool {
        self.0.region.flights().is_held(Holder(record.holder))
    }

    /// An item that is present for fetches only, for so many seconds.
    fn no_value(&self, holder: Holder, kept_s: i64, now: u32) -> Draft<'static> {
        let until = self.later(now, u32::try_from(kept_s).unwrap_or(u32::MAX));
        Draft {
            marks: 0,
            record: Some(Record {
                holder: holder.0,
                until,
                cost_ms: 0,
            }),
            client_flags: 0,
            cas: None,
            expiry: EXPIRED,
            value: Value::Bytes(&[]),
        }
    }

    /// The tick so many seconds after this one.
    fn later(&self, tick: u32, seconds: u32) -> u32 {
        let at = seconds_of(tick).saturating_add(seconds.into());
        expiry_at(i64::try_from(at).unwrap_or(i64::MAX))
    }
}

/// What becomes of an item whose value this holder computes anew; with no holder: of one whose value no thread computes.
fn held_by(holder: Holder, old: &Old<'_>, built: &mut Vec<u8>) -> Decision<'static> {
    let item = old.item();
    let record = old.record().unwrap_or_default();
    let draft = Draft {
        marks: item.marks(),
        record: Some(Record {
            holder: holder.0,
            ..record
        }),
        client_flags: item.flags,
        cas: Some(item.cas),
        expiry: old.expiry(),
        value: Value::Built,
    };
    same_value(old, built, draft)
}

/// Whether the holder of a flight is that of this record. A server knows of a client's flight no holder, but only the CAS unique that the
/// client has.
fn is_of(flight: Flight, record: Record) -> bool {
    let holder = Holder(record.holder);
    flight.holder.is_same(holder) || flight.holder == Holder::NONE && holder.is_by_get()
}

fn found(old: &Old<'_>, now: u32) -> Found {
    let record = old.record().unwrap_or_default();
    if old.expiry() == EXPIRED || Holder(record.holder).is_of_empty() {
        return Found::NoValue(record);
    }
    let item = old.item();
    let is_expired = old.expiry() != 0 && old.expiry() <= now;
    Found::Value {
        is_fresh: !is_expired && !item.stale,
        item,
        record,
    }
}

/// The flight in which another caller computes.
fn elsewhere(old: &Old<'_>, record: Record) -> Fetched {
    Fetched::Elsewhere(Flight {
        holder: Holder(record.holder),
        serial: old.item().cas,
    })
}

/// Whether a fresh value is refreshed now, before it expires (Vattani, Chierichetti, Lowenstein: "Optimal probabilistic cache stampede
/// prevention", VLDB 2015). `early`: beta, times the negative logarithm of a number that the caller has drawn.
fn is_due(early: f64, cost_ms: u32, expiry: u32, now: u32) -> bool {
    early > 0.0 && expiry != 0 && early * f64::from(cost_ms) / 1000.0 >= f64::from(seconds_left(expiry, now))
}
