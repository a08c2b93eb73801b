//! A session for each thread, found again without being passed around: for callers that have no place to keep one, such
//! as a C program's functions.
//!
//! A thread's sessions, are in its thread-local storage, and end with the thread. One word leads to the session
//! that was used last (`here`), so a call that uses the same cache again takes a few instructions to find it. If a cache
//! was closed in another thread, this thread drops what it holds of that cache when it next needs a new session, or ends. A
//! forked child has none of its parent's sessions: it opens the region again ([`Cache::here`]).
//!
//! A thread that is ending has no thread-local storage any more: in handlers of atexit(3), which run when the main thread's is
//! gone, and in destructors of other code's keys (`pthread_key_create(3)`). There a call has a session of its own, which ends with
//! it.
//!
//! # Safety
//!
//! ThreadSessions are followed by pointers. [`SESSIONS`] owns them, or a call of a thread that is ending. The word in the thread's storage is NULL, or [`IN_USE`] while `work`
//! of the thread is under way (or was left by a jump), or the address of one of the thread's sessions. While it is [`IN_USE`], no
//! other code uses or frees a session. Before a session is freed the word is set to NULL.
#![allow(unsafe_code, reason = "a thread's sessions by their addresses; contract above")]

use super::{Cache, Inner};
use crate::error::{LocalError, SessionError};
use crate::process::cancel::Uncancelled;
use crate::process::fork::Home;
use crate::process::storage;
use crate::session::Session;
use std::cell::RefCell;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

/// A thread's buffer that grew to more than this, bytes, is freed after use.
const BUFFER_KEPT_MAX: usize = 1 << 20;

/// Every capacity is at least this.
const ENDS_WITH_ITS_CALL: usize = 0;

/// The word of a thread whose session is in use. No session has this address.
const IN_USE: *mut ThreadSession = std::ptr::without_provenance_mut(1);

thread_local! {
    static SESSIONS: RefCell<ThreadSessions> = const { RefCell::new(ThreadSessions(Vec::new())) };
}

/// A thread's sessions, one of each cache.
struct ThreadSessions(Vec<NonNull<ThreadSession>>);

/// A thread's session of one cache.
struct ThreadSession {
    /// the cache that it belongs to
    at: *const Inner,
    /// the process that the session was made in
    home: Home,
    /// not dropped in another process
    session: ManuallyDrop<Session>,
    buffer: Vec<u8>,
    /// capacity of the buffer from which on there is more to do after a call than to clear it: all of a session that ends with
    /// its call is given back
    tidied_from: usize,
    /// keeps the cache's address in use, so that no other cache can have it
    cache: Weak<Inner>,
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
    #[inline(always)]
    pub fn with_session<R>(&self, work: impl FnOnce(&mut Session, &mut Vec<u8>) -> R) -> Result<R, LocalError> {
        let own = match self.own() {
            Some(own) => own,
            None => self.take_session()?,
        };
        let mut in_use = InUse::new(own);
        let own = in_use.own();
        Ok(work(&mut own.session, &mut own.buffer))
    }

    /// Gives back this thread's session, if it has one.
    pub fn leave(&self) {
        let _ = SESSIONS.try_with(|sessions| {
            if let Ok(mut sessions) = sessions.try_borrow_mut() {
                sessions.retain(|own| !own.is_of(&self.inner));
            }
        });
    }

    /// This thread's session of the cache, if it is the one that the thread used last, and not in use.
    #[inline(always)]
    fn own(&self) -> Option<NonNull<ThreadSession>> {
        let own = storage::session_word::<ThreadSession>();
        if own.addr() <= IN_USE.addr() {
            return None;
        }
        // SAFETY: neither NULL nor `IN_USE`, so it is one of this thread's sessions, and not in use.
        unsafe { NonNull::new(own).filter(|own| own.as_ref().is_of(&self.inner)) }
    }

    /// This thread's session of the cache, which is found at once from now on.
    #[cold]
    #[inline(never)]
    fn take_session(&self) -> Result<NonNull<ThreadSession>, LocalError> {
        SESSIONS
            .try_with(|sessions| {
                let mut sessions = sessions.try_borrow_mut().map_err(|_| SessionError::Busy)?;
                if storage::session_word() == IN_USE {
                    return Err(SessionError::Busy.into());
                }
                let own = match sessions.of(&self.inner) {
                    Some(own) => own,
                    None => sessions.add(self)?,
                };
                storage::set_session(own.as_ptr());
                Ok(own)
            })
            .unwrap_or_else(|_| self.take_session_once())
    }

    /// A session for one call of this thread, which is ending.
    fn take_session_once(&self) -> Result<NonNull<ThreadSession>, LocalError> {
        if storage::session_word() == IN_USE {
            return Err(SessionError::Busy.into());
        }
        let _uncancelled = Uncancelled::new();
        ThreadSession::leak(self, ENDS_WITH_ITS_CALL)
    }
}

/// A session in use. When it is not in use any more, it is the one that was used last.
struct InUse(NonNull<ThreadSession>);

impl InUse {
    /// Marks this thread's session as in use.
    #[inline(always)]
    fn new(own: NonNull<ThreadSession>) -> Self {
        storage::set_session(IN_USE);
        Self(own)
    }

    /// After a call: frees a large buffer, or the session of a thread that is ending.
    #[cold]
    #[inline(never)]
    fn tidy(&mut self) {
        let own = self.own();
        if own.tidied_from != ENDS_WITH_ITS_CALL {
            own.buffer = Vec::new();
            storage::set_session(self.0.as_ptr());
            return;
        }
        let _uncancelled = Uncancelled::new();
        storage::set_session::<ThreadSession>(std::ptr::null_mut());
        // SAFETY: it comes from a box, is on no list, and the word does not name it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }

    #[inline(always)]
    fn own(&mut self) -> &mut ThreadSession {
        // SAFETY: the session is this thread's, and as long as the word says `IN_USE`, no other code uses or frees it.
        unsafe { self.0.as_mut() }
    }
}

impl Drop for InUse {
    #[inline(always)]
    fn drop(&mut self) {
        let own = self.own();
        own.buffer.clear();
        if own.buffer.capacity() >= own.tidied_from {
            self.tidy();
        } else {
            storage::set_session(self.0.as_ptr());
        }
    }
}

impl ThreadSessions {
    fn of(&self, inner: &Arc<Inner>) -> Option<NonNull<ThreadSession>> {
        // SAFETY: sessions that are in the list have not been freed.
        let is_of = |own: &NonNull<ThreadSession>| unsafe { own.as_ref() }.is_of(inner);
        self.0.iter().copied().find(is_of)
    }

    /// A new session of the cache.
    fn add(&mut self, cache: &Cache) -> Result<NonNull<ThreadSession>, LocalError> {
        let _uncancelled = Uncancelled::new();
        self.retain(|own| own.home.is_here() && own.cache.strong_count() > 0);
        let own = ThreadSession::leak(cache, BUFFER_KEPT_MAX + 1)?;
        self.0.push(own);
        Ok(own)
    }

    /// Frees the other sessions, unless one is in use.
    fn retain(&mut self, is_kept: impl Fn(&ThreadSession) -> bool) {
        if storage::session_word() == IN_USE {
            return;
        }
        storage::set_session::<ThreadSession>(std::ptr::null_mut());
        self.0.retain(|own| {
            // SAFETY: sessions that are in the list have not been freed.
            let is_kept = is_kept(unsafe { own.as_ref() });
            if !is_kept {
                // SAFETY: it comes from a box, leaves the list, and the word does not name it.
                drop(unsafe { Box::from_raw(own.as_ptr()) });
            }
            is_kept
        });
    }
}

impl Drop for ThreadSessions {
    fn drop(&mut self) {
        // A call that was left by a jump does not come back to a thread that ends.
        storage::set_session::<ThreadSession>(std::ptr::null_mut());
        self.retain(|_| false);
    }
}

impl ThreadSession {
    /// A new session of the cache, in a box that the caller owns.
    fn leak(cache: &Cache, tidied_from: usize) -> Result<NonNull<Self>, LocalError> {
        let session = cache.here().map_err(|error| LocalError::Open(Box::new(error)))?.session()?;
        Ok(NonNull::from(Box::leak(Box::new(Self {
            at: Arc::as_ptr(&cache.inner),
            home: Home::new(),
            session: ManuallyDrop::new(session),
            buffer: Vec::new(),
            tidied_from,
            cache: Arc::downgrade(&cache.inner),
        }))))
    }

    /// Whether the session belongs to this process and this cache.
    #[inline(always)]
    fn is_of(&self, inner: &Arc<Inner>) -> bool {
        std::ptr::eq(self.at, Arc::as_ptr(inner)) && self.home.is_here()
    }
}

impl Drop for ThreadSession {
    fn drop(&mut self) {
        // Otherwise it is the parent's session: its thread slot is not ours to give back, and we have no mapping to do it in.
        if self.home.is_here() {
            // SAFETY: it is not used after this.
            unsafe { ManuallyDrop::drop(&mut self.session) };
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
    fn neither_another_cache_nor_leaving_takes_a_session_that_is_in_use() {
        let (cache, other) = (cache(), cache());
        other.with_session(|_, _| ()).unwrap();
        let within = cache.with_session(|session, _| {
            let refused = other.with_session(|_, _| ());
            cache.leave();
            other.leave();
            assert_eq!((cache.info().sessions, other.info().sessions), (1, 1));
            session.set(b"key", b"value", 0).unwrap();
            refused
        });
        assert!(matches!(within, Ok(Err(LocalError::Session(SessionError::Busy)))));
        other.with_session(|_, _| ()).unwrap();
    }

    #[test]
    fn a_panic_gives_the_session_back() {
        let cache = cache();
        let left = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            cache.with_session(|_, buffer| {
                buffer.push(b'x');
                panic!("in the middle of it");
            })
        }));
        assert!(left.is_err());
        assert_eq!(cache.with_session(|_, buffer| buffer.len()).unwrap(), 0);
    }

    #[test]
    fn a_thread_that_is_ending_has_a_session_for_each_call() {
        struct AtTheEnd(Cache);
        impl Drop for AtTheEnd {
            fn drop(&mut self) {
                // ThreadSessions are dropped before this, because they were made later.
                assert_eq!(self.0.info().sessions, 0);
                for round in 0..2_000u32 {
                    let within = self.0.with_session(|session, buffer| {
                        session.set(b"ended", &round.to_le_bytes(), 0).unwrap();
                        session.get_append(b"ended", buffer).unwrap();
                        assert_eq!(buffer.as_slice(), round.to_le_bytes());
                        assert_eq!(self.0.info().sessions, 1);
                        self.0.with_session(|_, _| ())
                    });
                    assert!(matches!(within, Ok(Err(LocalError::Session(SessionError::Busy)))));
                    assert_eq!(self.0.info().sessions, 0, "it is given back");
                }
                self.0.leave();
            }
        }
        thread_local! {
            static LAST: RefCell<Option<AtTheEnd>> = const { RefCell::new(None) };
        }
        let cache = cache();
        let its = cache.clone();
        std::thread::spawn(move || {
            LAST.set(Some(AtTheEnd(its.clone())));
            its.with_session(|_, _| ()).unwrap();
        })
        .join()
        .unwrap();
        let ended = cache.with_session(|session, _| session.get(b"ended").unwrap()).unwrap();
        assert_eq!(ended, Some(1_999u32.to_le_bytes().to_vec()));
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
        let region = Arc::downgrade(&old.inner.at.sessions);
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
