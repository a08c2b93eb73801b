//! Fetches by a function that computes: the caller gets the value, wherever it comes from.

use super::Cache;
use crate::error::{FetchError, LocalError};
use crate::session::{Begun, Fetch, Session, Token, WaitedFor};
use keyway_region::verbs::WriteError;
use std::time::Duration;

/// A fetch that has begun: if its computation panics, another caller computes.
struct Unfinished<'c> {
    cache: &'c Cache,
    key: &'c [u8],
    token: Option<Token>,
}

impl Unfinished<'_> {
    /// Ends the fetch. The value is the caller's in any case: it is no error if it was not stored, because the key has changed meanwhile, or
    /// because it is too large.
    fn end(mut self, work: impl FnOnce(&mut Session, &[u8], Token) -> Result<bool, WriteError>) -> Result<(), LocalError> {
        if let Some(token) = self.token.take() {
            let ended = self.cache.with_session(|session, _| work(session, self.key, token))?;
            if let Err(error) = ended {
                log::debug!("a computed value is not stored: {error}");
            }
        }
        Ok(())
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            let _ = self.cache.with_session(|session, _| session.fetch_abandon(self.key, token));
        }
    }
}

impl Cache {
    /// The value of `key`. If there is none, `compute` makes it, in one caller of all processes and threads; the others wait for that
    /// one, or get what is stale ([`Fetch`]). `None`: `compute` says that there is no value. What was computed is not stored if the key was
    /// deleted, flushed or stored meanwhile, so nothing that was read before a delete is found after it.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Fetch, FetchError, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
    /// let how = Fetch { ttl: 60, stale_while_revalidate: 30, ..Fetch::default() };
    /// let row = cache.fetch(b"row:7", &how, || Ok::<_, std::io::Error>(Some(b"from the database".to_vec())))?;
    /// assert_eq!(row.as_deref(), Some(&b"from the database"[..]));
    /// let again = cache.fetch(b"row:7", &how, || -> Result<_, std::io::Error> { unreachable!("it is stored") })?;
    /// assert_eq!(again, row);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`FetchError::Compute`] with the error of `compute`, unless `stale_if_error` allows the old value: then one of those who wait computes.
    /// The others: see [`FetchError`].
    pub fn fetch<E>(
        &self,
        key: &[u8],
        how: &Fetch<'_>,
        compute: impl FnOnce() -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<Vec<u8>>, FetchError<E>> {
        let mut value = Vec::new();
        let begun = self.with_session(|session, _| session.fetch_begin(key, how, &mut value))?;
        match begun.map_err(FetchError::Write)? {
            Begun::Hit(_) | Begun::Stale(_) => Ok(Some(value)),
            Begun::Nothing => Ok(None),
            Begun::Waited(WaitedFor::Flight) => Err(FetchError::InFlight { waited: how.wait }),
            Begun::Waited(WaitedFor::Limit) => Err(FetchError::Limited { waited: how.wait }),
            Begun::Compute(token) => self.compute(key, how, token, value, compute),
        }
    }

    fn compute<E>(
        &self,
        key: &[u8],
        how: &Fetch<'_>,
        token: Token,
        old: Vec<u8>,
        compute: impl FnOnce() -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<Vec<u8>>, FetchError<E>> {
        let has_old = token.old().is_some() && how.stale_if_error > 0;
        let unfinished = Unfinished {
            cache: self,
            key,
            token: Some(token),
        };
        match compute() {
            Ok(Some(value)) => {
                unfinished.end(|session, key, token| session.fetch_store(key, token, &value, how))?;
                Ok(Some(value))
            }
            Ok(None) => {
                unfinished.end(|session, key, token| session.fetch_store_nothing(key, token, how))?;
                Ok(None)
            }
            Err(_) if has_old => Ok(Some(old)),
            Err(error) => Err(FetchError::Compute(error)),
        }
    }

    /// The values of these keys, in the keys' order, each as by [`Cache::fetch`]. `compute` is called once, with the keys that nobody else
    /// computes, and returns their values in the same order; it is called again, with one key, where another caller has given up.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Fetch, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
    /// cache.session()?.set(b"one", b"1", 0)?;
    /// let values = cache.fetch_many(&["one", "two", "three"], &Fetch::default(), |keys| {
    ///     assert_eq!(keys, [&b"two"[..], b"three"]);
    ///     Ok::<_, std::io::Error>(vec![Some(b"2".to_vec()), None])
    /// })?;
    /// assert_eq!(values, [Some(b"1".to_vec()), Some(b"2".to_vec()), None]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Cache::fetch`]; what was not computed is then computed by others.
    pub fn fetch_many<K: AsRef<[u8]>, E>(
        &self,
        keys: &[K],
        how: &Fetch<'_>,
        mut compute: impl FnMut(&[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, E>,
    ) -> Result<Vec<Option<Vec<u8>>>, FetchError<E>> {
        // In the first round nobody waits: what one caller has begun it computes before it waits for another.
        let at_once = Fetch {
            wait: Duration::ZERO,
            compute_after_wait: false,
            has_tasks: true,
            ..*how
        };
        let mut values = vec![None; keys.len()];
        let (mut begun, mut later) = (Vec::new(), Vec::new());
        for (number, key) in keys.iter().enumerate() {
            let key = key.as_ref();
            let mut value = Vec::new();
            let found = self.with_session(|session, _| session.fetch_begin(key, &at_once, &mut value))?;
            match found.map_err(FetchError::Write)? {
                Begun::Hit(_) | Begun::Stale(_) => values[number] = Some(value),
                Begun::Nothing => {}
                Begun::Waited(_) => later.push(number),
                Begun::Compute(token) => {
                    let old = (token.old().is_some() && how.stale_if_error > 0).then_some(value);
                    let token = Some(token);
                    begun.push((number, old, Unfinished { cache: self, key, token }));
                }
            }
        }
        if !begun.is_empty() {
            let missing: Vec<&[u8]> = begun.iter().map(|(_, _, unfinished)| unfinished.key).collect();
            match compute(&missing) {
                Ok(computed) => {
                    let computed = computed.into_iter().chain(std::iter::repeat(None));
                    for ((number, _, unfinished), value) in begun.into_iter().zip(computed) {
                        unfinished.end(|session, key, token| match &value {
                            Some(value) => session.fetch_store(key, token, value, how),
                            None => session.fetch_store_nothing(key, token, how),
                        })?;
                        values[number] = value;
                    }
                }
                Err(_) if begun.iter().all(|(_, old, _)| old.is_some()) => {
                    for (number, old, _) in begun {
                        values[number] = old;
                    }
                }
                Err(error) => return Err(FetchError::Compute(error)),
            }
        }
        for number in later {
            let key = keys[number].as_ref();
            values[number] = self.fetch(key, how, || compute(&[key]).map(|mut computed| computed.pop().flatten()))?;
        }
        Ok(values)
    }
}
