//! A session for each thread, found again without being passed around: for callers that have no place to keep one, such
//! as a C program's functions.
//!
//! A thread's sessions are in its thread-local storage, the last used first, and end with the thread. If a cache was
//! closed in another thread, this thread drops what it holds of that cache when it next needs a new session, or ends. A
//! forked child has none of its parent's sessions: it opens the region again ([`Cache::here`]).

use crate::cancel::Uncancelled;
use crate::fork::Home;
use crate::{Cache, Inner, LocalError, Session, SessionError};
use std::cell::RefCell;
use std::sync::{Arc, Weak};

/// A thread's buffer that grew to more than this, bytes, is freed after use.
const BUFFER_KEPT_MAX: usize = 1 << 20;

thread_local! {
    static SEATS: RefCell<Vec<Seat>> = const { RefCell::new(Vec::new()) };
}

/// A thread's session of one cache.
struct Seat {
    /// the cache that it belongs to
    at: *const Inner,
    /// keeps that address in use, so that no other cache can have it
    cache: Weak<Inner>,
    /// the process that the session was made in
    home: Home,
    /// present until the seat is dropped
    session: Option<Session>,
    buffer: Vec<u8>,
}

impl Cache {
    /// Works with this thread's own session, which is made at its first use and given back when the thread ends, and with an
    /// empty buffer that is kept from one use to the next.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
    /// let stored = cache.with_session(|session, _| session.set(b"greeting", b"hello", 0))?;
    /// assert!(stored.is_ok());
    /// let len = cache.with_session(|session, buffer| session.get_append(b"greeting", buffer).map(|_| buffer.len()))?;
    /// assert_eq!(len, Ok(5));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`SessionError::Busy`] where `work` of this thread is still under way: within it, or after it was left by a jump.
    #[inline]
    pub fn with_session<R>(&self, work: impl FnOnce(&mut Session, &mut Vec<u8>) -> R) -> Result<R, LocalError> {
        SEATS
            .try_with(|seats| {
                let mut seats = seats.try_borrow_mut().map_err(|_| SessionError::Busy)?;
                if !seats.first().is_some_and(|seat| seat.is_of(&self.inner)) {
                    self.sit_down(&mut seats)?;
                }
                let Some(Seat {
                    session: Some(session),
                    buffer,
                    ..
                }) = seats.first_mut()
                else {
                    return Err(SessionError::Busy.into());
                };
                let result = work(session, buffer);
                buffer.clear();
                if buffer.capacity() > BUFFER_KEPT_MAX {
                    *buffer = Vec::new();
                }
                Ok(result)
            })
            .unwrap_or_else(|_| Err(SessionError::ThreadEnding.into()))
    }

    /// Gives back this thread's session, if it has one.
    pub fn leave(&self) {
        let _ = SEATS.try_with(|seats| {
            if let Ok(mut seats) = seats.try_borrow_mut() {
                seats.retain(|seat| !seat.is_of(&self.inner));
            }
        });
    }

    /// Puts this thread's session of the cache first in the list.
    #[cold]
    fn sit_down(&self, seats: &mut Vec<Seat>) -> Result<(), LocalError> {
        if let Some(at) = seats.iter().position(|seat| seat.is_of(&self.inner)) {
            seats.swap(0, at);
            return Ok(());
        }
        let _uncancelled = Uncancelled::new();
        seats.retain(|seat| seat.home.is_here() && seat.cache.strong_count() > 0);
        let session = self.here().map_err(|error| LocalError::Open(Box::new(error)))?.session()?;
        let seat = Seat {
            at: Arc::as_ptr(&self.inner),
            cache: Arc::downgrade(&self.inner),
            home: Home::new(),
            session: Some(session),
            buffer: Vec::new(),
        };
        seats.insert(0, seat);
        Ok(())
    }
}

impl Seat {
    /// Whether the seat belongs to this process and this cache.
    #[inline(always)]
    fn is_of(&self, inner: &Arc<Inner>) -> bool {
        std::ptr::eq(self.at, Arc::as_ptr(inner)) && self.home.is_here()
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if !self.home.is_here() {
            // It is the parent's session: its thread slot is not ours to give back, and we have no mapping to do it in.
            std::mem::forget(self.session.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Options, Place};

    fn cache() -> Cache {
        let options = Options::new().memory(4 << 20);
        Cache::open(&Place::Memfd, &options).unwrap()
    }

    #[test]
    fn a_thread_keeps_one_session_of_each_cache_and_gives_them_back() {
        let caches = [cache(), cache()];
        std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    for round in 0..4 {
                        for cache in &caches {
                            cache
                                .with_session(|session, _| session.set(b"key", &[round], 0).unwrap())
                                .unwrap();
                            assert_eq!(cache.info().sessions, 1);
                        }
                    }
                })
                .join()
                .unwrap();
        });
        caches.iter().for_each(|cache| assert_eq!(cache.info().sessions, 0));
    }

    #[test]
    fn a_session_in_use_is_not_lent_again() {
        let cache = cache();
        let within = cache.with_session(|_, _| cache.with_session(|_, _| ())).unwrap();
        assert!(matches!(within, Err(LocalError::Session(SessionError::Busy))));
        cache.with_session(|_, _| ()).unwrap();
    }

    #[test]
    fn leaving_gives_the_session_back() {
        let cache = cache();
        cache.with_session(|_, _| ()).unwrap();
        assert_eq!(cache.info().sessions, 1);
        cache.leave();
        assert_eq!(cache.info().sessions, 0);
        cache.with_session(|_, _| ()).unwrap();
        assert_eq!(cache.info().sessions, 1);
    }

    #[test]
    fn what_is_held_of_a_closed_cache_goes_with_the_next_session() {
        let (old, new) = (cache(), cache());
        old.with_session(|_, _| ()).unwrap();
        let region = Arc::downgrade(&old.inner.sessions);
        old.close();
        assert_eq!(region.strong_count(), 1, "this thread's session still holds it");
        new.with_session(|_, _| ()).unwrap();
        assert_eq!(region.strong_count(), 0);
    }

    #[test]
    fn a_large_buffer_is_not_kept() {
        let cache = cache();
        cache.with_session(|_, buffer| buffer.reserve(BUFFER_KEPT_MAX + 1)).unwrap();
        assert_eq!(cache.with_session(|_, buffer| buffer.capacity()).unwrap(), 0);
    }
}
