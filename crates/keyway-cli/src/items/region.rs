//! The items of a region, through the library door.

use keyway_cache::{Arithmetic, Cache, Delete, Deleted, Get, Number, Session, Store, StoreMode, Stored, WriteError};

use keyway_server::size_text;

use super::{Each, Got, Items, KEYS_PER_STEP, Outcomes, Put, shown};
use crate::commands::{self, Which};
use crate::exit::{self, Failure};

/// A region in use by this process.
pub(super) struct Library {
    session: Session,
    cache: Cache,
    place: String,
    /// where the next keys are; `None`: nowhere
    cursor: Option<u64>,
}

impl Library {
    pub(super) fn open(which: Which) -> Result<Self, Failure> {
        let place = which.path.display().to_string();
        let cache = commands::open(which)?;
        Ok(Self {
            session: commands::session(&cache)?,
            cache,
            place,
            cursor: Some(0),
        })
    }

    fn failed(&self, key: &[u8], error: impl Into<WriteError>) -> Failure {
        let error = error.into();
        let code = match error {
            WriteError::KeyLength { .. } => exit::USAGE,
            WriteError::TooLarge { .. } | WriteError::OutOfMemory => exit::NO,
            _ => exit::SYSTEM,
        };
        Failure::new(code, format_args!("{}: {}", shown(key), self.why(&error)))
    }

    /// Why an item cannot be stored. Where it is larger than half of the memory, another rule of the region does not help.
    fn why(&self, error: &WriteError) -> String {
        let memory = self.cache.info().limit_bytes;
        match error {
            WriteError::TooLarge { size, limit } if *size as u64 > memory / 2 => format!(
                "the item takes {size} bytes, and the region allows {limit}; one of {} can allow half of that: give it more memory (`keyway \
                 serve --memory`, or `cache_memlimit` of a server that runs), and a larger --max-item (-I)",
                size_text(memory)
            ),
            error => error.to_string(),
        }
    }
}

impl Items for Library {
    fn get(&mut self, key: &[u8], is_used: bool) -> Result<Option<Got>, Failure> {
        let how = Get {
            no_bump: !is_used,
            details: true,
            ..*Get::VALUE
        };
        let mut value = Vec::new();
        let found = self.session.get_with(key, &how, &mut value, |_, _| {});
        let found = found.map_err(|error| self.failed(key, error))?;
        Ok(found.map(|item| Got {
            value,
            flags: item.flags,
            ttl_s: item.ttl_s,
            unique: item.cas,
            is_stale: item.stale,
            opaque_key: item.opaque_key,
            takes: Some(item.size),
        }))
    }

    fn get_many(&mut self, keys: &[Vec<u8>], each: &mut Each<'_>) -> Result<(), Failure> {
        for key in keys {
            if let Some(got) = self.get(key, false)? {
                each(key, got)?;
            }
        }
        Ok(())
    }

    fn put(&mut self, item: Put<'_>, outcomes: &mut dyn Outcomes) -> Result<(), Failure> {
        let how = Store {
            flags: item.flags,
            exptime: item.exptime,
            mode: if item.is_new { StoreMode::Add } else { StoreMode::Set },
            opaque_key: item.opaque_key,
            ..Store::default()
        };
        match self.session.store(item.key, item.value, &how) {
            Ok(Stored::Stored { .. }) => outcomes.stored(),
            Ok(_) => outcomes.refused(item.key, "there is another item of this key"),
            Err(error @ (WriteError::KeyLength { .. } | WriteError::TooLarge { .. } | WriteError::OutOfMemory)) => {
                outcomes.refused(item.key, &self.why(&error));
            }
            Err(error) => return Err(self.failed(item.key, error)),
        }
        Ok(())
    }

    fn settle(&mut self, _: &mut dyn Outcomes) -> Result<(), Failure> {
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Failure> {
        let deleted = self.session.delete(key, &Delete::default());
        deleted
            .map(|deleted| deleted == Deleted::Deleted)
            .map_err(|error| self.failed(key, error))
    }

    fn touch(&mut self, key: &[u8], exptime: i64) -> Result<bool, Failure> {
        let touched = self.session.touch(key, exptime);
        touched.map_err(|error| self.failed(key, error))
    }

    fn count(&mut self, key: &[u8], delta: u64, decrement: bool, initial: Option<(u64, i64)>) -> Result<Option<u64>, Failure> {
        let how = Arithmetic {
            delta,
            decrement,
            vivify: initial,
            ..Arithmetic::default()
        };
        let counted = self.session.arithmetic(key, &how).map_err(|error| self.failed(key, error))?;
        match Number::from(counted) {
            Number::Is(value) => Ok(Some(value)),
            Number::NotFound => Ok(None),
            Number::NotANumber => Err(Failure::new(
                exit::NO,
                format_args!("{}: its value is no number: decimal digits below 2^64", shown(key)),
            )),
        }
    }

    fn flush(&mut self, delay_s: u32) -> Result<(), Failure> {
        let flushed = self.session.flush_all(delay_s.into());
        flushed.map_err(|error| Failure::new(exit::SYSTEM, format_args!("{}: {error}", self.place)))
    }

    fn keys(&mut self) -> Result<Option<Vec<Vec<u8>>>, Failure> {
        let Some(from) = self.cursor else {
            self.cursor = Some(0);
            return Ok(None);
        };
        let mut keys = Vec::new();
        self.cursor = self.session.walk(from, KEYS_PER_STEP, |key, _| keys.push(key.to_vec()));
        Ok(Some(keys))
    }

    fn evictions(&mut self) -> Result<u64, Failure> {
        Ok(self.cache.counters().evictions)
    }

    fn place(&self) -> String {
        self.place.clone()
    }
}
