//! Fetches by a function that computes: the caller gets the value, wherever it comes from.

use super::Cache;
use crate::error::{FetchError, LocalError};
use crate::session::{Begun, Fetch, Session, Token, WaitedFor};
use keyway_region::verbs::WriteError;
use std::time::Duration;

/// A fetch that has begun: if its computation panics, another caller computes.
struct Computing<'c> {
    cache: Cache,
    key: &'c [u8],
    token: Option<Token>,
}

impl Computing<'_> {
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

impl Drop for Computing<'_> {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            let _ = self.cache.with_session(|session, _| session.fetch_abandon(self.key, token));
        }
    }
}

/// The fetches of a cache.
pub struct Fetching<'c>(pub &'c Cache);

impl Fetching<'_> {
    /// See [`Cache::fetch`].
    pub fn one<E>(
        &self,
        key: &[u8],
        how: &Fetch<'_>,
        compute: impl FnOnce() -> Result<Option<Vec<u8>>, E>,
    ) -> Result<Option<Vec<u8>>, FetchError<E>> {
        let mut value = Vec::new();
        let begun = self.0.with_session(|session, _| session.fetch_begin(key, how, &mut value))?;
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
        let has_old = token.old().is_some();
        let computing = self.computing(key, token);
        match compute() {
            Ok(Some(value)) => {
                computing.end(|session, key, token| session.fetch_store(key, token, &value, how))?;
                Ok(Some(value))
            }
            Ok(None) => {
                computing.end(|session, key, token| session.fetch_store_nothing(key, token, how))?;
                Ok(None)
            }
            Err(_) if has_old => Ok(Some(old)),
            Err(error) => Err(FetchError::Compute(error)),
        }
    }

    /// See [`Cache::fetch_many`].
    pub fn many<K: AsRef<[u8]>, E>(
        &self,
        keys: &[K],
        how: &Fetch<'_>,
        mut compute: impl FnMut(&[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, E>,
    ) -> Result<Vec<Option<Vec<u8>>>, FetchError<E>> {
        // In the first round nothing is waited for: what one caller has begun it computes before it waits for another.
        let at_once = Fetch {
            wait: Duration::ZERO,
            compute_after_wait: false,
            has_tasks: true,
            ..*how
        };
        let mut values = vec![None; keys.len()];
        let (mut begun, mut later) = (Vec::new(), Vec::new());
        for ((number, key), value) in keys.iter().map(AsRef::as_ref).enumerate().zip(&mut values) {
            let mut found = Vec::new();
            let first = self
                .0
                .with_session(|session, _| session.fetch_begin(key, &at_once, &mut found))?;
            match first.map_err(FetchError::Write)? {
                Begun::Hit(_) | Begun::Stale(_) => *value = Some(found),
                Begun::Nothing => {}
                Begun::Waited(_) => later.push(number),
                Begun::Compute(token) => {
                    *value = token.old().is_some().then_some(found);
                    begun.push((number, self.computing(key, token)));
                }
            }
        }
        if !begun.is_empty() {
            self.compute_together(how, begun, &mut values, &mut compute)?;
        }
        for number in later {
            let key = keys[number].as_ref();
            values[number] = self.one(key, how, || compute(&[key]).map(|mut computed| computed.pop().flatten()))?;
        }
        Ok(values)
    }

    /// Computes these in one call. Before it the values are the old ones, as far as they may be returned.
    fn compute_together<E>(
        &self,
        how: &Fetch<'_>,
        begun: Vec<(usize, Computing<'_>)>,
        values: &mut [Option<Vec<u8>>],
        compute: &mut impl FnMut(&[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, E>,
    ) -> Result<(), FetchError<E>> {
        let missing: Vec<&[u8]> = begun.iter().map(|(_, computing)| computing.key).collect();
        let computed = match compute(&missing) {
            Ok(computed) => computed,
            Err(_) if begun.iter().all(|(number, _)| values[*number].is_some()) => return Ok(()),
            Err(error) => return Err(FetchError::Compute(error)),
        };
        // A key without an answer has no value.
        let computed = computed.into_iter().chain(std::iter::repeat(None));
        for ((number, computing), value) in begun.into_iter().zip(computed) {
            computing.end(|session, key, token| match &value {
                Some(value) => session.fetch_store(key, token, value, how),
                None => session.fetch_store_nothing(key, token, how),
            })?;
            values[number] = value;
        }
        Ok(())
    }

    fn computing<'k>(&self, key: &'k [u8], token: Token) -> Computing<'k>
    where
        Self: 'k,
    {
        Computing {
            cache: self.0.clone(),
            key,
            token: Some(token),
        }
    }
}
