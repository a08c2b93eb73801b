//! Keyway through the library door.

use crate::Contender;
use crate::trace::Request;
use keyway_cache::{Cache, Counters, Options, Place, Session};
use std::io;

/// A region in anonymous memory, and one session.
pub struct Keyway {
    cache: Cache,
    session: Session,
    key: Vec<u8>,
    value: Vec<u8>,
    got: Vec<u8>,
}

impl Keyway {
    /// A new region of so many bytes.
    ///
    /// # Errors
    ///
    /// The memory cannot be had.
    pub fn new(memory: u64) -> io::Result<Self> {
        let options = Options::new().memory(memory);
        let cache = Cache::open(&Place::Memfd, &options).map_err(io::Error::other)?;
        let session = cache.session().map_err(io::Error::other)?;
        Ok(Self {
            cache,
            session,
            key: Vec::new(),
            value: vec![b'v'; 1 << 20],
            got: Vec::new(),
        })
    }

    /// The region.
    pub fn cache(&self) -> &Cache {
        &self.cache
    }

    /// What the region has counted.
    pub fn counters(&self) -> Counters {
        self.cache.counters()
    }

    /// Problems of the region, none if it is sound.
    pub fn problems(&self) -> Vec<String> {
        self.cache.check(|_| {}).problems
    }
}

impl Contender for Keyway {
    fn replay(&mut self, requests: &[Request]) -> io::Result<u64> {
        let mut misses = 0;
        for request in requests {
            request.key(&mut self.key);
            self.got.clear();
            if self
                .session
                .get_append(&self.key, &mut self.got)
                .is_ok_and(|found| found.is_some())
            {
                if self.got.len() != request.value_len {
                    return Err(io::Error::other("a value of another length"));
                }
                continue;
            }
            misses += 1;
            self.session
                .set(&self.key, &self.value[..request.value_len], 0)
                .map_err(io::Error::other)?;
        }
        Ok(misses)
    }
}
