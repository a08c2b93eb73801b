//! Verbs of many keys in one call: the same verbs one after the other, with the memory of the next [`AHEAD_MAX`] keys fetched together
//! before them ([`Session::prefetch`]). Where the items are not in cache, that takes about a third of the time.

use crate::error::ReadError;
use crate::session::Session;
use keyway_region::AHEAD_MAX;
use keyway_region::verbs::{Delete, Deleted, Item, Stored, WriteError};

impl Session {
    /// The values of these keys, in the keys' order, each as by [`Session::get`]; `None`: there is no such item. Not a snapshot:
    /// other sessions may write between the items.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
    /// # let mut session = cache.session()?;
    /// session.set_many(&[("one", "1"), ("two", "2")], 60);
    /// let values = session.get_many(&["two", "none", "one"])?;
    /// assert_eq!(values, [Some(b"2".to_vec()), None, Some(b"1".to_vec())]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ReadError`] of the first key that fails: its length is wrong, the session is detached, or this process has no memory for
    /// a copy of the value.
    pub fn get_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Result<Vec<Option<Vec<u8>>>, ReadError> {
        let mut values = Vec::with_capacity(keys.len());
        for keys in keys.chunks(AHEAD_MAX) {
            self.prefetch_all(keys);
            for key in keys {
                values.push(self.get(key.as_ref())?);
            }
        }
        Ok(values)
    }

    /// Copies the values of these keys, one after the other, to the end of `out`. `found` gets the number of each key that has an
    /// item, in the keys' order, and the item's properties: [`Item::value_len`] says how many bytes of `out` are its value. The
    /// properties are those of [`Session::get_append`].
    ///
    /// ```
    /// # use keyway_cache::{Cache, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
    /// # let mut session = cache.session()?;
    /// session.set_many(&[("one", "1"), ("eleven", "11")], 60);
    /// let (mut values, mut found) = (Vec::new(), Vec::new());
    /// session.get_many_append(&["eleven", "none", "one"], &mut values, |number, item| found.push((number, item.value_len)))?;
    /// assert_eq!((values.as_slice(), found.as_slice()), (b"111".as_slice(), [(0, 2), (2, 1)].as_slice()));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`ReadError`] of the first key that fails: its length is wrong, the session is detached, or this process has no memory for
    /// a copy of the value. `out` is as long as before then.
    pub fn get_many_append<K: AsRef<[u8]>>(
        &mut self,
        keys: &[K],
        out: &mut Vec<u8>,
        mut found: impl FnMut(usize, &Item),
    ) -> Result<(), ReadError> {
        let start = out.len();
        let mut number = 0;
        for keys in keys.chunks(AHEAD_MAX) {
            self.prefetch_all(keys);
            for key in keys {
                match self.get_append(key.as_ref(), out) {
                    Ok(Some(item)) => found(number, &item),
                    Ok(None) => {}
                    Err(error) => {
                        out.truncate(start);
                        return Err(error);
                    }
                }
                number += 1;
            }
        }
        Ok(())
    }

    /// Stores these values under their keys, each as by [`Session::set`], in this order. Returns the result of each: one that
    /// fails keeps no other from being stored.
    pub fn set_many<K: AsRef<[u8]>, V: AsRef<[u8]>>(
        &mut self,
        items: &[(K, V)],
        exptime: i64,
    ) -> Vec<Result<Stored, WriteError>> {
        let mut results = Vec::with_capacity(items.len());
        for items in items.chunks(AHEAD_MAX) {
            if items.len() > 1 {
                self.prefetch(items.iter().map(|(key, _)| key.as_ref()));
            }
            let stored = items
                .iter()
                .map(|(key, value)| self.set(key.as_ref(), value.as_ref(), exptime));
            results.extend(stored);
        }
        results
    }

    /// Deletes the items of these keys, each as by [`Session::delete`], in this order. Returns the result of each.
    ///
    /// ```
    /// # use keyway_cache::{Cache, Deleted, Options, Place};
    /// # let cache = Cache::open(&Place::Memfd, &Options::new())?;
    /// # let mut session = cache.session()?;
    /// session.set_many(&[("one", "1"), ("two", "2")], 60);
    /// assert_eq!(session.delete_many(&["one", "none"]), [Ok(Deleted::Deleted), Ok(Deleted::NotFound)]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn delete_many<K: AsRef<[u8]>>(&mut self, keys: &[K]) -> Vec<Result<Deleted, WriteError>> {
        let mut results = Vec::with_capacity(keys.len());
        for keys in keys.chunks(AHEAD_MAX) {
            self.prefetch_all(keys);
            results.extend(keys.iter().map(|key| self.delete(key.as_ref(), &Delete::default())));
        }
        results
    }

    fn prefetch_all<K: AsRef<[u8]>>(&mut self, keys: &[K]) {
        if keys.len() > 1 {
            self.prefetch(keys.iter().map(AsRef::as_ref));
        }
    }
}
