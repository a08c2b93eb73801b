//! Fetches: one caller computes a value, the others wait for it or take what is stale. What is decided in the region is there
//! (`keyway_region`, `operations/fetch.rs`); here is the waiting.
//!
//! A caller that finds a flight of another's arms the flight's word, looks again, and sleeps until the word is woken. A death wakes no
//! word: so a caller looks whether the holder still lives, every few milliseconds at first, and the more seldom the longer it has waited.

use crate::process::fork::Home;
use crate::session::slot::Slot;
use crate::session::verbs::Missed;
use crate::session::writer::Writer;
use keyway_region::fetch::{Fetched, Flight, Freshness, Refreshed};
use keyway_region::verbs::{Item, KEY_LEN_MAX, WriteError};
use keyway_region::{Armed, Berth, Fetches, Holder, Key, KeyRoom, Turn};
use std::time::{Duration, Instant};

/// How soon a caller that waits looks whether the holder lives, and whether a flight has ended without waking it.
const LOOK: Duration = Duration::from_millis(5);
/// It looks again after this part of the time that it has waited, if that is longer. So a death costs those who wait at most that part of the
/// time that was computed in vain, and who waits for long takes next to no processor time.
const LOOK_AFTER: u32 = 4;
/// Longest wait at all: the sum of it and of the time is one that a clock has.
pub const WAIT_MAX: Duration = Duration::from_secs(1 << 30);
/// Longest wait by default.
const WAIT: Duration = Duration::from_secs(10);

/// How a value is fetched, with the words of RFC 5861. Further fields may be added: end it with `..Fetch::default()`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fetch<'p> {
    /// client flags of what is stored
    pub flags: u32,
    /// how long a value is fresh, seconds: an exptime; 0: for ever
    pub ttl: i64,
    /// how long it is remembered that there is no value, seconds; 0: not at all
    pub negative_ttl: u32,
    /// so many seconds after `ttl` the old value is returned while one caller computes the next one
    pub stale_while_revalidate: u32,
    /// so many seconds after `ttl` the old value is returned if computing fails
    pub stale_if_error: u32,
    /// XFetch's beta (Vattani et al., VLDB 2015): a value is refreshed before it expires, by chance, the likelier the longer it took to
    /// compute; 1 is the authors' choice, 0: never
    pub early: f64,
    /// longest wait for another caller's computation
    pub wait: Duration,
    /// when the wait is over, compute; otherwise the answer is [`Begun::Waited`]
    pub compute_after_wait: bool,
    /// how many compute at a time
    pub limit: Option<AtOnce<'p>>,
    /// other tasks of this thread may be computing: a flight of the thread's own is one of theirs, and not an error
    pub has_tasks: bool,
    /// the caller has just looked by a get, which has counted the miss: a fetch does not look so again
    pub has_looked: bool,
}

impl Default for Fetch<'_> {
    fn default() -> Self {
        Self {
            flags: 0,
            ttl: 0,
            negative_ttl: 0,
            stale_while_revalidate: 0,
            stale_if_error: 0,
            early: 0.0,
            wait: WAIT,
            compute_after_wait: true,
            limit: None,
            has_tasks: false,
            has_looked: false,
        }
    }
}

/// A limit on the computations of one prefix in all processes that use the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtOnce<'p> {
    /// what names the limit: usually the beginning of its keys
    pub prefix: &'p [u8],
    /// how many compute at a time: 1 to 63, and what is beyond counts as the nearest of these
    pub at_most: usize,
}

/// The beginning of a fetch.
#[derive(Debug)]
pub enum Begun {
    /// a value, at the end of the caller's buffer
    Hit(Item),
    /// an old value, at the end of the caller's buffer: another caller computes the next one
    Stale(Item),
    /// it is remembered that there is no value
    Nothing,
    /// the caller computes, and ends the fetch. If there is an old value that `stale_if_error` allows, it is at the end of the caller's buffer
    Compute(Token),
    /// another caller computes, or as many as may, and the wait is over
    Waited(WaitedFor),
}

/// What a caller has waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitedFor {
    /// another caller's computation
    Flight,
    /// a place under the limit
    Limit,
}

/// The right, and the duty, to compute a value. Give it to [`crate::Session::fetch_store`] or [`crate::Session::fetch_abandon`]: without
/// that, others wait until the session ends.
#[derive(Debug)]
#[must_use = "others wait until the fetch is ended"]
pub struct Token {
    /// `None`: nothing is stored
    flight: Option<Flight>,
    /// the flight is another caller's, for which this one has waited long enough: giving up does not end it
    is_joined: bool,
    place: Option<Berth>,
    /// where the flight was begun: a forked child leaves it to its parent
    home: Home,
    begun: Instant,
    old: Option<Item>,
}

impl Token {
    /// The old value's properties, if there is one that may be returned when computing fails. It is at the end of the buffer that
    /// [`crate::Session::fetch_begin`] got.
    pub fn old(&self) -> Option<&Item> {
        self.old.as_ref()
    }

    /// Whether a store with it may land. `false`: there is no server for a session that needs one, or the key has no lease; others may compute,
    /// too.
    pub fn may_store(&self) -> bool {
        self.flight.is_some()
    }

    /// For a session whose writes a server executes: the lease that it has given.
    pub fn leased(serial: u64) -> Self {
        Self {
            flight: Some(Flight {
                holder: Holder::NONE,
                serial,
            }),
            ..Self::unnoted()
        }
    }

    /// The number of the lease, in the process that has got it.
    pub fn lease(&self) -> Option<u64> {
        self.flight.filter(|_| self.home.is_here()).map(|flight| flight.serial)
    }

    /// With this nothing is stored.
    pub fn unnoted() -> Self {
        Self {
            flight: None,
            is_joined: false,
            place: None,
            home: Home::new(),
            begun: Instant::now(),
            old: None,
        }
    }
}

/// What one look has found.
enum Look {
    End(Begun),
    /// somebody computes, or as many as may
    Busy(Option<Flight>),
}

/// A fetch that has begun and not ended.
struct Caller<'c> {
    slot: &'c mut Slot,
    key: Key<'c>,
    how: &'c Fetch<'c>,
    /// number of the limit's prefix
    prefix: u64,
    early: f64,
    begun: Instant,
}

impl Caller<'_> {
    fn look(&mut self, out: &mut Vec<u8>) -> Result<Look, WriteError> {
        let Some(limit) = self.how.limit else {
            return self.begin(None, out);
        };
        let (prefix, at_most) = (self.prefix, limit.at_most);
        let turn = self
            .slot
            .inside(|session| session.region().flights().enter(prefix, at_most, session.holder()));
        match turn {
            Turn::In(place) => self.begin(Some(place), out),
            Turn::Unlimited => self.begin(None, out),
            Turn::Full => Ok(match self.ask(true, out)? {
                Fetched::Unclaimed(Some(item)) => Look::End(Begun::Stale(item)),
                Fetched::Unclaimed(None) => Look::Busy(None),
                found => self.answer(found, None),
            }),
        }
    }

    fn begin(&mut self, place: Option<Berth>, out: &mut Vec<u8>) -> Result<Look, WriteError> {
        let found = self.ask(false, out);
        if let Some(place) = place
            && !matches!(found, Ok(Fetched::Compute(..)))
        {
            self.slot.inside(|session| session.region().flights().leave(place));
        }
        Ok(self.answer(found?, place))
    }

    fn ask(&mut self, only_look: bool, out: &mut Vec<u8>) -> Result<Fetched, WriteError> {
        let how = Freshness {
            stale_s: self.how.stale_while_revalidate,
            old_s: self.how.stale_if_error,
            early: self.early,
            only_look,
            ..Freshness::default()
        };
        self.ask_how(&how, out)
    }

    /// For a client of a server, which has so many seconds.
    fn ask_for(&mut self, client_s: u32, out: &mut Vec<u8>) -> Result<Fetched, WriteError> {
        let how = Freshness {
            client_s: client_s.max(1),
            ..Freshness::default()
        };
        self.ask_how(&how, out)
    }

    fn ask_how(&mut self, how: &Freshness, out: &mut Vec<u8>) -> Result<Fetched, WriteError> {
        let (call, session, now) = self.slot.begin_change(&[])?;
        let found = Fetches::of(session).begin(self.key, how, now.at(), out);
        call.end();
        found
    }

    fn answer(&self, found: Fetched, place: Option<Berth>) -> Look {
        Look::End(match found {
            Fetched::Fresh(item) => Begun::Hit(item),
            Fetched::Stale(item) => Begun::Stale(item),
            Fetched::Nothing | Fetched::Unclaimed(_) => Begun::Nothing,
            Fetched::Compute(flight, old) => Begun::Compute(Token {
                flight: Some(flight),
                is_joined: false,
                place,
                home: Home::new(),
                begun: Instant::now(),
                old,
            }),
            Fetched::Elsewhere(flight) => return Look::Busy(Some(flight)),
        })
    }

    /// What to wait for after the next look. `None`: there is no limit any more.
    fn arm(&mut self, waited_for: WaitedFor) -> Option<Armed> {
        let (hash, prefix) = (self.key.hash(), self.prefix);
        self.slot.inside(|session| {
            let flights = session.region().flights();
            match waited_for {
                WaitedFor::Flight => Some(flights.arm(hash)),
                WaitedFor::Limit => flights.arm_place(prefix),
            }
        })
    }

    /// Sleeps until something has ended, or it is time to look whether the holder lives.
    fn sleep(&mut self, armed: Armed, flight: Option<Flight>, left: Duration) {
        let look = LOOK.max(self.begun.elapsed() / LOOK_AFTER);
        self.slot
            .inside(|session| session.region().flights().wait(armed, left.min(look)));
        self.take_back_dead(flight);
    }

    /// Looks whether those for whom the caller waits are dead: then the next look finds their work free.
    fn take_back_dead(&mut self, flight: Option<Flight>) {
        let prefix = self.prefix;
        self.slot.inside(|session| {
            let (flights, recovery) = (session.region().flights(), session.region().recovery());
            match flight {
                Some(flight) => recovery.take_back_dead(flight.holder),
                None => flights.holders(prefix).for_each(|holder| recovery.take_back_dead(holder)),
            }
        });
    }
}

impl Writer {
    /// See [`crate::Session::fetch_begin`]; without a get before it.
    pub fn fetch_without_get(&mut self, given: &[u8], how: &Fetch<'_>, out: &mut Vec<u8>) -> Result<Begun, WriteError> {
        let slot = self.slot_mut();
        slot.ready()?;
        let mut room = KeyRoom::new();
        let key = slot.key(given, &mut room);
        let begun = Instant::now();
        let deadline = begun + how.wait.min(WAIT_MAX);
        let prefix = how.limit.map_or(0, |limit| {
            // What is longer than any key names the limit by its beginning.
            let name = limit.prefix.get(..KEY_LEN_MAX).unwrap_or(limit.prefix);
            slot.session().region().mapped().hash(name)
        });
        let early = if how.early > 0.0 { how.early * exponential() } else { 0.0 };
        let own = slot.session().holder();
        let mut caller = Caller {
            slot,
            key,
            how,
            prefix,
            early,
            begun,
        };
        let (mut armed, mut is_last) = (None, false);
        loop {
            let flight = match caller.look(out)? {
                Look::End(begun) => return Ok(begun),
                Look::Busy(flight) => flight,
            };
            if flight.is_some_and(|flight| flight.holder.is_same(own)) && !how.has_tasks {
                return Err(WriteError::OwnFlight);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() && !is_last {
                // Also a caller that never waits takes over from the dead.
                is_last = true;
                caller.take_back_dead(flight);
                continue;
            }
            if is_last {
                return Ok(match flight {
                    // Of the same flight: its item is the proof that nothing has changed the key since, whoever stores first.
                    Some(flight) if how.compute_after_wait => Begun::Compute(Token {
                        flight: Some(flight),
                        is_joined: true,
                        ..Token::unnoted()
                    }),
                    Some(_) => Begun::Waited(WaitedFor::Flight),
                    None => Begun::Waited(WaitedFor::Limit),
                });
            }
            let waited_for = flight.map_or(WaitedFor::Limit, |_| WaitedFor::Flight);
            match armed.take() {
                Some((as_before, armed)) if as_before == waited_for => caller.sleep(armed, flight, left),
                // The look after it may find what has ended meanwhile.
                _ => armed = caller.arm(waited_for).map(|armed| (waited_for, armed)),
            }
        }
    }

    /// Sleeps until the key is not being computed by another caller, or the time is over.
    pub fn wait_for_fetch(&mut self, given: &[u8], timeout: Duration) -> Result<(), WriteError> {
        let how = Fetch {
            wait: timeout,
            has_tasks: true,
            ..Fetch::default()
        };
        let slot = self.slot_mut();
        slot.ready()?;
        let mut room = KeyRoom::new();
        let key = slot.key(given, &mut room);
        let begun = Instant::now();
        let deadline = begun + timeout.min(WAIT_MAX);
        let mut caller = Caller {
            slot,
            key,
            how: &how,
            prefix: 0,
            early: 0.0,
            begun,
        };
        loop {
            let armed = caller.slot.inside(|session| session.region().flights().arm(key.hash()));
            let Fetched::Elsewhere(flight) = caller.ask(true, &mut Vec::new())? else {
                return Ok(());
            };
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            caller.sleep(armed, Some(flight), left);
        }
    }

    /// Ends a fetch by `work`, if its flight is this process's; gives its place back.
    pub fn end_fetch(
        &mut self,
        given: &[u8],
        token: &Token,
        work: impl FnOnce(&mut keyway_region::Session, Key<'_>, Flight, u32) -> Result<bool, WriteError>,
    ) -> Result<bool, WriteError> {
        if !token.home.is_here() {
            return Ok(false);
        }
        let slot = self.slot_mut();
        slot.ready()?;
        if let Some(place) = token.place {
            slot.inside(|session| session.region().flights().leave(place));
        }
        let Some(flight) = token.flight else { return Ok(false) };
        self.end_flight(given, |session, key, now| work(session, key, flight, now))
    }

    /// Ends a flight by `work`.
    pub fn end_flight(
        &mut self,
        given: &[u8],
        work: impl FnOnce(&mut keyway_region::Session, Key<'_>, u32) -> Result<bool, WriteError>,
    ) -> Result<bool, WriteError> {
        let slot = self.slot_mut();
        slot.ready()?;
        let mut room = KeyRoom::new();
        let key = slot.key(given, &mut room);
        let (call, session, now) = slot.begin_change(&[])?;
        let ended = work(session, key, now.at());
        call.end();
        ended
    }

    /// See [`crate::server::ServerSession::claim`].
    pub fn claim_missed(&mut self, given: &[u8], for_s: u32) -> Result<Missed, WriteError> {
        let slot = self.slot_mut();
        slot.ready()?;
        let mut room = KeyRoom::new();
        let key = slot.key(given, &mut room);
        let how = Fetch::default();
        let mut caller = Caller {
            slot,
            key,
            how: &how,
            prefix: 0,
            early: 0.0,
            begun: Instant::now(),
        };
        let mut armed = None;
        loop {
            let found = caller.ask_for(for_s, &mut Vec::new())?;
            return Ok(match (found, armed) {
                (Fetched::Fresh(_) | Fetched::Stale(_), _) => Missed::Present,
                (Fetched::Nothing | Fetched::Unclaimed(_), _) => Missed::Absent,
                (Fetched::Compute(flight, _), _) => Missed::Claimed(flight),
                (Fetched::Elsewhere(flight), Some(armed)) => Missed::InFlight(flight, armed),
                (Fetched::Elsewhere(flight), None) => {
                    caller.take_back_dead(Some(flight));
                    armed = Some(caller.slot.inside(|session| session.region().flights().arm(key.hash())));
                    continue;
                }
            });
        }
    }

    /// See [`crate::Session::fetch_abandon`].
    pub fn abandon_fetch(&mut self, given: &[u8], token: &Token) -> Result<bool, WriteError> {
        if token.is_joined {
            return Ok(false);
        }
        self.end_fetch(given, token, |session, key, flight, now| {
            Fetches::of(session).abandon(key, flight, now)
        })
    }

    /// See [`crate::Session::fetch_store`].
    pub fn store_fetched(&mut self, given: &[u8], token: &Token, value: &[u8], how: &Fetch<'_>) -> Result<bool, WriteError> {
        let cost_ms = match how.early > 0.0 {
            true => u32::try_from(token.begun.elapsed().as_millis()).unwrap_or(u32::MAX).max(1),
            false => 0,
        };
        let refreshed = Refreshed {
            flags: how.flags,
            exptime: how.ttl,
            keep_s: how.stale_while_revalidate.max(how.stale_if_error),
            cost_ms,
            ..Refreshed::default()
        };
        self.slot_mut().ready()?;
        self.slot_mut().translate_exptime(how.ttl);
        self.end_fetch(given, token, |session, key, flight, now| {
            Fetches::of(session).store(key, flight, value, &refreshed, now)
        })
    }
}

/// The negative logarithm of a random number between 0 and 1.
fn exponential() -> f64 {
    // From 2^-24 to 1, as its logarithm must be a number. That of a double would ask for glibc 2.29.
    let bits = (getrandom::u32().unwrap_or(u32::MAX) >> 8) + 1;
    #[allow(clippy::cast_precision_loss, reason = "24 bits are what it has")]
    let drawn = bits as f32 / (1u32 << 24) as f32;
    f64::from(-drawn.ln())
}
