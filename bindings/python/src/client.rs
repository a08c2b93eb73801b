//! The class `Client`: pymemcache's, on a region instead of a connection.

use crate::door::{self, Asked, Region};
use crate::failure::{Failure, unless_quiet};
use crate::fetch::{Given, How};
use crate::key::{self, Key, Keys};
use crate::object::{self, Place, Shared};
use crate::value::{Value, Values};
use keyway_cache::{
    AHEAD_MAX, Arithmetic, Cache, Counted, Delete, Deleted, Get, GrowError, Item, OpenError, Session, Shrinking, Store,
    StoreMode, Stored, WriteError,
};
use pyo3::exceptions::{PyKeyError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::pyclass::{PyTraverseError, PyVisit};
use pyo3::types::{PyBytes, PyDict, PyInt, PyList, PyString, PyTuple};
use std::path::PathBuf;
use std::sync::Arc;

/// Values of at least this many bytes are written without the interpreter's lock: two threads that store such values are then
/// 1.5 times as fast, and one is as fast as with the lock. A thread that releases the lock may wait 5 ms to get it back
/// (sys.getswitchinterval()) while another thread computes, so shorter writes keep the lock.
pub const UNLOCKED_LEN_MIN: usize = 4 << 20;

/// A cache in shared memory, used as pymemcache's Client is.
///
/// server: the path of a region's file, which is made if it is absent, or of a server's region socket (`keyway serve
/// --region-socket`); `memfd` is anonymous memory of this process. Nothing is opened before the first call. A host and port
/// are not a path: ValueError, unless a file of that name exists.
///
/// serde, serializer, deserializer, ignore_exc, key_prefix, default_noreply, allow_unicode_keys and encoding are pymemcache's;
/// arguments about connections are accepted and have no effect.
///
/// memory: bytes of the region: an absent one is made, a smaller one grows to it; without it an absent region is an error. item_size_max: largest item, bytes (1 MiB).
/// mode: mode of a new file (0o600). A value outside its limits is a ValueError, which names them. huge_pages, prefault, checksums: as in `keyway
/// serve`. evict: with False, stores fail when the region is full. item_size_max and evict are rules
/// of a new region, for all its users; an existing one keeps its own. gate: with False, the mapping stays accessible outside
/// calls. any_owner: with True, a file is used even if another user owns it or every user may write it.
///
/// All threads may share one client. A forked child may continue with its parent's client.
#[pyclass(frozen, subclass, weakref, module = "keyway_cache")]
pub(crate) struct Client {
    server: PathBuf,
    asked: Asked,
    pub keys: Keys,
    pub values: Values,
    ignore_exc: bool,
    default_noreply: bool,
    /// `None`: not open
    region: Shared<Option<Arc<Region>>>,
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (
        server, serde=None, serializer=None, deserializer=None, connect_timeout=None, timeout=None, no_delay=None,
        ignore_exc=false, socket_module=None, socket_keepalive=None, key_prefix=None, default_noreply=true,
        allow_unicode_keys=false, encoding="ascii", tls_context=None, *, memory=None, item_size_max=None, mode=None,
        huge_pages=false, prefault=false, evict=None, checksums=false, gate=true,
        any_owner=false
    ))]
    #[allow(clippy::too_many_arguments, reason = "pymemcache's, and those of a region")]
    fn new(
        server: &Bound<'_, PyAny>,
        serde: Option<Py<PyAny>>,
        serializer: Option<Py<PyAny>>,
        deserializer: Option<Py<PyAny>>,
        connect_timeout: Option<Py<PyAny>>,
        timeout: Option<Py<PyAny>>,
        no_delay: Option<Py<PyAny>>,
        ignore_exc: bool,
        socket_module: Option<Py<PyAny>>,
        socket_keepalive: Option<Py<PyAny>>,
        key_prefix: Option<&Bound<'_, PyAny>>,
        default_noreply: bool,
        allow_unicode_keys: bool,
        encoding: &str,
        tls_context: Option<Py<PyAny>>,
        memory: Option<&Bound<'_, PyAny>>,
        item_size_max: Option<&Bound<'_, PyAny>>,
        mode: Option<&Bound<'_, PyAny>>,
        huge_pages: bool,
        prefault: bool,
        evict: Option<bool>,
        checksums: bool,
        gate: bool,
        any_owner: bool,
    ) -> PyResult<Self> {
        let _of_connections = (
            connect_timeout,
            timeout,
            no_delay,
            socket_module,
            socket_keepalive,
            tls_context,
        );
        let server_path = path_of(server)?;
        let asked = Asked {
            memory: amount(memory, "memory", u64::MAX)?,
            item_size_max: amount(item_size_max, "item_size_max", usize::MAX)?,
            mode: amount(mode, "mode", u32::MAX)?,
            huge_pages,
            prefault,
            evict,
            checksums,
            gate,
            any_owner,
        };
        Ok(Self {
            server: server_path,
            asked: asked.checked()?,
            keys: Keys {
                prefix: key_prefix.map_or_else(|| Ok(Vec::new()), prefix_of)?,
                unicode: allow_unicode_keys,
            },
            values: Values::new(server.py(), serde, serializer, deserializer, encoding),
            ignore_exc,
            default_noreply,
            region: Shared::new(None),
        })
    }

    /// The path that the client was made with.
    #[getter]
    fn server(&self) -> String {
        self.server.display().to_string()
    }

    /// The prefix of every key.
    #[getter]
    fn key_prefix<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.keys.prefix)
    }

    /// The default of `noreply`.
    #[getter]
    fn default_noreply(&self) -> bool {
        self.default_noreply
    }

    /// Whether text keys may contain more than ASCII.
    #[getter]
    fn allow_unicode_keys(&self) -> bool {
        self.keys.unicode
    }

    /// Whether a get that fails returns a miss.
    #[getter]
    fn ignore_exc(&self) -> bool {
        self.ignore_exc
    }

    /// The encoding of text values.
    #[getter]
    fn encoding(&self) -> &str {
        &self.values.encoding
    }

    /// The object that converts values, or None.
    #[getter]
    fn serde(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.values.serde.as_ref().map(|serde| serde.clone_ref(py))
    }

    /// The value of a key, or `default`.
    #[pyo3(signature = (key, default=None))]
    fn get<'py>(&self, key: &Bound<'py, PyAny>, default: Option<Bound<'py, PyAny>>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let own = self.keys.key(key)?;
        let found = self.find_plain(key.py(), &own, || Ok(key.clone()));
        Ok(self.forgiving(key.py(), found)?.or(default))
    }

    /// The value of a key. If there is none, `compute()` makes it, in one caller of all processes and threads; the others wait for
    /// that one, up to `wait` seconds, and then compute too, or raise MemcacheInFlightError with compute_after_wait=False. None:
    /// there is no value, which is remembered for `negative_ttl` seconds. What compute raises is its caller's, and one of those who
    /// wait computes.
    ///
    /// ttl: how long a value is fresh, as `expire` of set. stale_while_revalidate: for so many seconds after that the old value is
    /// returned while one caller computes; stale_if_error: for so many it is returned if compute raises an Exception, which is
    /// logged. early: a value is computed before its ttl is over, by chance, the likelier the longer it took; 1 is usual. limit: a
    /// pair of a prefix and a number from 1 to 63: so many callers compute at a time under this prefix; the others wait, up to a
    /// MemcacheLimitError.
    ///
    /// What was computed is not stored if the key was deleted, stored or flushed meanwhile. A fetch of the key within its own
    /// computation is a MemcacheRecursionError.
    #[pyo3(
        signature = (
            key, compute, *, ttl=None, negative_ttl=None, stale_while_revalidate=None, stale_if_error=None, early=None, wait=None,
            compute_after_wait=None, limit=None
        ),
        text_signature = "($self, key, compute, *, ttl=0, negative_ttl=0, stale_while_revalidate=0, stale_if_error=0, early=0.0, \
                          wait=10.0, compute_after_wait=True, limit=None)"
    )]
    #[allow(clippy::too_many_arguments, reason = "named ones, of which a program gives a few")]
    fn fetch<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        compute: &Bound<'py, PyAny>,
        ttl: Option<Bound<'py, PyAny>>,
        negative_ttl: Option<Bound<'py, PyAny>>,
        stale_while_revalidate: Option<Bound<'py, PyAny>>,
        stale_if_error: Option<Bound<'py, PyAny>>,
        early: Option<Bound<'py, PyAny>>,
        wait: Option<Bound<'py, PyAny>>,
        compute_after_wait: Option<Bound<'py, PyAny>>,
        limit: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let own = self.keys.key(key)?;
        if early.is_none() {
            let found = self.find_plain(key.py(), &own, || Ok(key.clone()));
            if let Some(value) = self.forgiving(key.py(), found)? {
                return Ok(value);
            }
        }
        let given = Given {
            ttl,
            negative_ttl,
            stale_while_revalidate,
            stale_if_error,
            early,
            wait,
            compute_after_wait,
            limit,
        };
        self.fetch_absent(key, &own, compute, &given.how(self)?)
    }

    /// The values of these keys, in a dict, without those that have none; named arguments as for fetch. `compute(missing)` gets a
    /// list of the keys that nobody else computes, and returns a dict of their values: an absent key has none. It is called once,
    /// and again with one key where another caller has given up.
    #[pyo3(
        signature = (keys, compute, **options),
        text_signature = "($self, keys, compute, *, ttl=0, negative_ttl=0, stale_while_revalidate=0, stale_if_error=0, early=0.0, \
                          wait=10.0, compute_after_wait=True, limit=None)"
    )]
    fn fetch_many<'py>(
        &self,
        keys: &Bound<'py, PyAny>,
        compute: &Bound<'py, PyAny>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let how = Given::from_dict("fetch_many", options)?.how(self)?;
        let objects = objects_of(keys)?;
        let all = self.keys_of(&objects)?;
        self.fetch_these(&objects, &all, compute, &how)
    }

    /// As fetch, for a task of asyncio's: `compute` is a coroutine function, and the event loop goes on. The tasks of a loop that
    /// fetch one key compute once. A task that is cancelled lets another caller compute.
    #[pyo3(
        signature = (key, compute, **options),
        text_signature = "($self, key, compute, *, ttl=0, negative_ttl=0, stale_while_revalidate=0, stale_if_error=0, early=0.0, \
                          wait=10.0, compute_after_wait=True, limit=None)"
    )]
    fn fetch_async<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
        compute: &Bound<'py, PyAny>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = key.py();
        let how = Given::from_dict("fetch_async", options)?.how(slf.get())?;
        py.import("keyway_cache.tasks")?
            .call_method1("fetch_in_task", (slf, key, compute, how))
    }

    /// For keyway_cache.tasks.
    #[pyo3(signature = (key, how, is_over, has_looked))]
    fn _fetch_begin<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
        how: &Bound<'py, How>,
        is_over: bool,
        has_looked: bool,
    ) -> PyResult<(bool, Bound<'py, PyAny>)> {
        Self::begin_task(slf, key, how, is_over, has_looked)
    }

    /// For keyway_cache.tasks.
    fn _fetch_wait(&self, key: &Bound<'_, PyAny>, seconds: f64) -> PyResult<()> {
        self.wait_for_other(key, seconds)
    }

    /// For keyway_cache.django: how its get_or_set fetches.
    #[staticmethod]
    fn _how_of_django(exptime: i64) -> How {
        How::of_django(exptime)
    }

    /// For keyway_cache.django: the value of a key that a get has not found.
    fn _fetch_absent<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        compute: &Bound<'py, PyAny>,
        how: &Bound<'py, How>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let own = self.keys.key(key)?;
        self.fetch_absent(key, &own, compute, how.get())
    }

    /// For keyway_cache.django: the value of a prefix followed by a key, or `default`. NotImplemented: look at the key more
    /// closely, which may not be allowed.
    fn _get_made<'py>(
        &self,
        prefix: &Bound<'py, PyAny>,
        key: &Bound<'py, PyAny>,
        default: Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = key.py();
        let mut place = [0; _];
        let prefix = prefix.cast::<PyString>()?.to_str()?.as_bytes();
        let Some(own) = key::made(&self.keys, &mut place, prefix, key) else {
            return Ok(py.NotImplemented().into_bound(py));
        };
        let found = self.find_plain(py, own, || text_of(py, own));
        Ok(self.forgiving(py, found)?.unwrap_or(default))
    }

    /// For keyway_cache.django: the values of a list's keys that are present, in a dict; each key is behind a prefix in the
    /// cache. NotImplemented: look at the keys more closely, of which one may not be allowed.
    fn _get_many_made<'py>(&self, prefix: &Bound<'py, PyAny>, keys: &Bound<'py, PyList>) -> PyResult<Bound<'py, PyAny>> {
        let py = keys.py();
        let prefix = prefix.cast::<PyString>()?.to_str()?.as_bytes();
        let objects: Vec<_> = keys.iter().collect();
        let mut all = Vec::with_capacity(objects.len());
        for object in &objects {
            let mut place = [0; _];
            match key::made(&self.keys, &mut place, prefix, object) {
                Some(own) => all.push(Key::Owned(own.to_vec())),
                None => return Ok(py.NotImplemented().into_bound(py)),
            }
        }
        Ok(self
            .find_all(py, &objects, &all, &PLAIN, |own, _| text_of(py, own), |found| Ok(found.value))?
            .into_any())
    }

    /// For keyway_cache.django: whether a key is text that both Django and the client allow.
    #[staticmethod]
    fn _allows(key: &Bound<'_, PyAny>) -> bool {
        let text = key.cast_exact::<PyString>().ok().and_then(|text| text.to_str().ok());
        text.is_some_and(|text| key::is_plain(text.as_bytes()))
    }

    /// The values of the keys that are present, in a dict.
    fn get_many<'py>(&self, keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        self.find_many(keys, &PLAIN, |found| Ok(found.value))
    }

    /// Another name of get_many.
    fn get_multi<'py>(&self, keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        self.get_many(keys)
    }

    /// The value of a key and its CAS unique, or `default` and `cas_default`.
    #[pyo3(signature = (key, default=None, cas_default=None))]
    fn gets<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
        cas_default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        self.find_with_cas(key, &DETAILED, default, cas_default)
    }

    /// Values and CAS uniques of the keys that are present, in a dict.
    fn gets_many<'py>(&self, keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
        self.find_many(keys, &DETAILED, |found| Ok(found.with_cas()?.into_any()))
    }

    /// As get, and gives the item a new `expire`.
    #[pyo3(signature = (key, expire=None, default=None))]
    fn gat<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        expire: Option<&Bound<'py, PyAny>>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let own = self.keys.key(key)?;
        let found = self.find(key, &own, &touching(expire)?);
        Ok(self.forgiving(key.py(), found)?.map(|found| found.value).or(default))
    }

    /// As gets, and gives the item a new `expire`.
    #[pyo3(signature = (key, expire=None, default=None, cas_default=None))]
    fn gats<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        expire: Option<&Bound<'py, PyAny>>,
        default: Option<Bound<'py, PyAny>>,
        cas_default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        self.find_with_cas(key, &touching(expire)?, default, cas_default)
    }

    /// Stores a value, whether the key has one or not. `expire`: 0 never, negative at once, up to 30 days seconds from now,
    /// above that a Unix time. Returns True; errors of the value are reported only with noreply=False.
    #[pyo3(signature = (key, value, expire=None, noreply=None, flags=None))]
    fn set(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        expire: Option<&Bound<'_, PyAny>>,
        noreply: Option<bool>,
        flags: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<bool>> {
        let quiet = noreply.unwrap_or(self.default_noreply);
        self.store(key, value, StoreMode::Set, None, expire, quiet, flags)
    }

    /// Stores the values of a dict. Returns a list of keys that failed, which is always empty: the first failure is raised
    /// after all other values are stored.
    #[pyo3(signature = (values, expire=None, noreply=None, flags=None))]
    fn set_many<'py>(
        &self,
        values: &Bound<'py, PyAny>,
        expire: Option<&Bound<'py, PyAny>>,
        noreply: Option<bool>,
        flags: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        let quiet = noreply.unwrap_or(self.default_noreply);
        unless_quiet(quiet, self.store_many(values, expire, flags), ())?;
        Ok(PyList::empty(values.py()))
    }

    /// Another name of set_many.
    #[pyo3(signature = (values, expire=None, noreply=None, flags=None))]
    fn set_multi<'py>(
        &self,
        values: &Bound<'py, PyAny>,
        expire: Option<&Bound<'py, PyAny>>,
        noreply: Option<bool>,
        flags: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyList>> {
        self.set_many(values, expire, noreply, flags)
    }

    /// Stores a value if the key has none. Returns whether it was stored; True with noreply.
    #[pyo3(signature = (key, value, expire=None, noreply=None, flags=None))]
    fn add(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        expire: Option<&Bound<'_, PyAny>>,
        noreply: Option<bool>,
        flags: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<bool>> {
        let quiet = noreply.unwrap_or(self.default_noreply);
        self.store(key, value, StoreMode::Add, None, expire, quiet, flags)
    }

    /// Stores a value if the key has one. Returns whether it was stored; True with noreply.
    #[pyo3(signature = (key, value, expire=None, noreply=None, flags=None))]
    fn replace(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        expire: Option<&Bound<'_, PyAny>>,
        noreply: Option<bool>,
        flags: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<bool>> {
        let quiet = noreply.unwrap_or(self.default_noreply);
        self.store(key, value, StoreMode::Replace, None, expire, quiet, flags)
    }

    /// Appends to the present value, which keeps its flags and expiry. Returns whether it was stored; True with noreply.
    #[pyo3(signature = (key, value, expire=None, noreply=None, flags=None))]
    fn append(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        expire: Option<&Bound<'_, PyAny>>,
        noreply: Option<bool>,
        flags: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<bool>> {
        let quiet = noreply.unwrap_or(self.default_noreply);
        self.store(key, value, StoreMode::Append, None, expire, quiet, flags)
    }

    /// Prepends to the present value, which keeps its flags and expiry. Returns whether it was stored; True with noreply.
    #[pyo3(signature = (key, value, expire=None, noreply=None, flags=None))]
    fn prepend(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        expire: Option<&Bound<'_, PyAny>>,
        noreply: Option<bool>,
        flags: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<bool>> {
        let quiet = noreply.unwrap_or(self.default_noreply);
        self.store(key, value, StoreMode::Prepend, None, expire, quiet, flags)
    }

    /// Stores a value if the item still has the CAS unique that gets returned. True: stored; False: the item has changed;
    /// None: there is no such item.
    #[pyo3(signature = (key, value, cas, expire=None, noreply=false, flags=None))]
    fn cas(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        cas: &Bound<'_, PyAny>,
        expire: Option<&Bound<'_, PyAny>>,
        noreply: bool,
        flags: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<bool>> {
        let unique = match unique_of(cas) {
            Err(Failure::Answer(_)) if noreply => return Ok(Some(true)),
            unique => unique?,
        };
        self.store(key, value, StoreMode::Set, Some(unique), expire, noreply, flags)
    }

    /// Adds to the stored number, modulo 2^64. Returns the new number, or None if there is no such item; None with noreply.
    #[pyo3(signature = (key, value, noreply=false))]
    fn incr(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>, noreply: bool) -> PyResult<Option<u64>> {
        let counted = self.count(key, value, false);
        Ok(unless_quiet(noreply, counted, None)?.filter(|_| !noreply))
    }

    /// Subtracts from the stored number, and stops at 0. Returns the new number, or None if there is no such item; None with
    /// noreply.
    #[pyo3(signature = (key, value, noreply=false))]
    fn decr(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>, noreply: bool) -> PyResult<Option<u64>> {
        let counted = self.count(key, value, true);
        Ok(unless_quiet(noreply, counted, None)?.filter(|_| !noreply))
    }

    /// Gives an item a new `expire`. Returns whether the item exists; True with noreply.
    #[pyo3(signature = (key, expire=None, noreply=None))]
    fn touch(&self, key: &Bound<'_, PyAny>, expire: Option<&Bound<'_, PyAny>>, noreply: Option<bool>) -> PyResult<bool> {
        let quiet = noreply.unwrap_or(self.default_noreply);
        let touched = (|| {
            let (own, exptime) = (self.keys.key(key)?, integer(expire, "expire")?);
            Ok(self.work(key.py(), |session, _| session.touch(&own, exptime))??)
        })();
        Ok(unless_quiet(quiet, touched, true)?)
    }

    /// Deletes an item. Returns whether it existed; True with noreply.
    #[pyo3(signature = (key, noreply=None))]
    fn delete(&self, key: &Bound<'_, PyAny>, noreply: Option<bool>) -> PyResult<bool> {
        let quiet = noreply.unwrap_or(self.default_noreply);
        let deleted = (|| {
            let own = self.keys.key(key)?;
            let deleted = self.work(key.py(), |session, _| session.delete(&own, &Delete::default()))??;
            Ok(deleted == Deleted::Deleted)
        })();
        Ok(unless_quiet(quiet, deleted, true)?)
    }

    /// Deletes items. Returns True.
    #[pyo3(signature = (keys, noreply=None))]
    fn delete_many(&self, keys: &Bound<'_, PyAny>, noreply: Option<bool>) -> PyResult<bool> {
        let quiet = noreply.unwrap_or(self.default_noreply);
        unless_quiet(quiet, self.delete_all(keys), ())?;
        Ok(true)
    }

    /// Another name of delete_many.
    #[pyo3(signature = (keys, noreply=None))]
    fn delete_multi(&self, keys: &Bound<'_, PyAny>, noreply: Option<bool>) -> PyResult<bool> {
        self.delete_many(keys, noreply)
    }

    /// Empties the cache for all its users, now or after `delay` seconds. Returns True.
    #[pyo3(signature = (delay=None, noreply=None))]
    fn flush_all(&self, py: Python<'_>, delay: Option<&Bound<'_, PyAny>>, noreply: Option<bool>) -> PyResult<bool> {
        let quiet = noreply.unwrap_or(self.default_noreply);
        let flushed = (|| {
            let delay = integer(delay, "delay")?;
            self.work(py, |session, _| session.flush_all(delay))??;
            Ok(true)
        })();
        Ok(unless_quiet(quiet, flushed, true)?)
    }

    /// The cache's statistics, of all processes and doors since the region was created, by memcached's names (bytes). With
    /// the argument "settings", the region's settings; a server has more of them.
    #[pyo3(signature = (*args))]
    fn stats<'py>(&self, py: Python<'py>, args: &Bound<'py, PyTuple>) -> PyResult<Bound<'py, PyDict>> {
        let region = self.region(py)?;
        let cache = region.cache()?.here().map_err(Failure::from)?;
        let info = cache.info();
        let stats = PyDict::new(py);
        let put = |name: &str, value: u64| stats.set_item(PyBytes::new(py, name.as_bytes()), value);
        match args.iter().map(word).collect::<PyResult<Vec<_>>>()?.as_slice() {
            [] => {
                put("pid", std::process::id().into())?;
                put("pointer_size", u64::from(usize::BITS))?;
                put("limit_maxbytes", info.limit_bytes)?;
                put("keyway_segments", info.segments)?;
                put("keyway_segments_free", info.segments_free)?;
                put("keyway_segments_withdrawn", info.segments_withdrawn)?;
                put("keyway_segments_given_back", info.segments_given_back)?;
                put("keyway_sessions", info.sessions)?;
                put("keyway_sessions_max", info.sessions_max)?;
                put("keyway_sessions_of_servers", info.sessions_of_servers)?;
                put("hash_bytes", info.index_bytes)?;
                for (name, value) in cache.counters().named() {
                    put(name, value)?;
                }
                stats.set_item(PyBytes::new(py, b"version"), self.version(py))?;
            }
            [settings] if settings == b"settings" => {
                put("maxbytes", info.limit_bytes)?;
                put("item_size_max", info.item_size_max as u64)?;
                put("slab_chunk_max", info.segment_bytes)?;
                stats.set_item(
                    PyBytes::new(py, b"keyway_gate"),
                    PyBytes::new(py, info.gate.to_string().as_bytes()),
                )?;
            }
            other => {
                let words: Vec<_> = other.iter().map(|word| String::from_utf8_lossy(word).into_owned()).collect();
                let what = words.join(" ");
                return Err(Failure::client(format!(
                    "stats {what}: only a server knows; here are stats() and stats(\"settings\")"
                ))
                .into());
            }
        }
        Ok(stats)
    }

    /// The version of the library.
    fn version<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, env!("CARGO_PKG_VERSION").as_bytes())
    }

    /// Sets the region's memory limit, megabytes, or the lowest limit with which the region can work; evicts down to it.
    /// Returns True.
    fn cache_memlimit(&self, py: Python<'_>, memlimit: &Bound<'_, PyAny>) -> PyResult<bool> {
        let megabytes = integer(Some(memlimit), "memlimit")?;
        let Some(memory) = u64::try_from(megabytes).ok().and_then(|mb| mb.checked_mul(1 << 20)) else {
            return Err(Failure::client(format!("memlimit is {megabytes}: it must be a number of megabytes")).into());
        };
        let region = self.region(py)?;
        let cache = region.cache()?.here().map_err(Failure::from)?;
        py.detach(|| resize(cache, memory))
            .map_err(|why| Failure::server(format!("{}: {why}", self.server.display())))?;
        Ok(true)
    }

    /// Closes the client. The process detaches when all its clients of this region are closed; the next call attaches again.
    fn close(&self, py: Python<'_>) {
        let _open = self.region.replace(py, None);
    }

    /// Another name of close.
    fn disconnect_all(&self, py: Python<'_>) {
        self.close(py);
    }

    /// Another name of close.
    fn quit(&self, py: Python<'_>) {
        self.close(py);
    }

    /// What the garbage collector has to know: a serde, or a function, may lead back to this client.
    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.values.serde)?;
        visit.call(&self.values.serializer)?;
        visit.call(&self.values.deserializer)
    }

    fn __enter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyTuple>) {
        self.close(py);
    }

    fn __getitem__<'py>(&self, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let found = self.get(key, None)?;
        found
            .filter(|value| !value.is_none())
            .ok_or_else(|| PyKeyError::new_err(key.clone().unbind()))
    }

    fn __setitem__(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.set(key, value, None, Some(true), None).map(|_| ())
    }

    fn __delitem__(&self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        self.delete(key, Some(true)).map(|_| ())
    }

    fn __repr__(&self) -> String {
        format!("<keyway_cache.Client {}>", self.server.display())
    }
}

/// get
const PLAIN: Get = Get {
    value: true,
    details: false,
    unless_cas: None,
    at_most: None,
    win_stale: false,
    no_bump: false,
    exptime: None,
    vivify: None,
    recache_s: None,
    recache_after_touch: false,
    new_cas: None,
    opaque_key: false,
};

/// gets
const DETAILED: Get = Get { details: true, ..PLAIN };

/// gat, gats
fn touching(expire: Option<&Bound<'_, PyAny>>) -> Result<Get, Failure> {
    Ok(Get {
        exptime: Some(integer(expire, "expire")?),
        ..DETAILED
    })
}

/// An item that was found, its value converted.
struct FoundItem<'py> {
    value: Bound<'py, PyAny>,
    item: Item,
}

impl<'py> FoundItem<'py> {
    /// As in pymemcache: the CAS unique as decimal digits.
    fn with_cas(self) -> PyResult<Bound<'py, PyTuple>> {
        let py = self.value.py();
        let unique = PyBytes::new(py, self.item.cas.to_string().as_bytes());
        PyTuple::new(py, [self.value, unique.into_any()])
    }
}

impl Client {
    /// The region, opened at the first call.
    #[inline]
    pub fn region(&self, py: Python<'_>) -> Result<Arc<Region>, Failure> {
        match self.region.get(py) {
            Some(region) => Ok(region),
            None => self.open(py),
        }
    }

    #[cold]
    fn open(&self, py: Python<'_>) -> Result<Arc<Region>, Failure> {
        let region = door::open(py, self.server.clone(), &self.asked)?;
        // Another thread may have opened it meanwhile.
        if let Some(first) = self.region.get(py) {
            return Ok(first);
        }
        self.region.replace(py, Some(Arc::clone(&region)));
        Ok(region)
    }

    /// Works with this thread's session. The interpreter's lock is held, except while the library waits ([`crate::apart`]): then
    /// other threads may use this client, with sessions of their own.
    #[inline]
    pub fn work<R>(&self, py: Python<'_>, work: impl FnOnce(&mut Session, &mut Vec<u8>) -> R) -> Result<R, Failure> {
        Ok(self.region(py)?.cache()?.with_session(work)?)
    }

    /// Writes by this thread's session. If so much is to be written that other threads should run meanwhile, it releases the
    /// interpreter's lock.
    #[inline]
    fn write<R: Send>(&self, py: Python<'_>, len: usize, work: impl FnOnce(&mut Session) -> R + Send) -> Result<R, Failure> {
        if len < UNLOCKED_LEN_MIN {
            return self.work(py, |session, _| work(session));
        }
        let region = self.region(py)?;
        let cache = region.cache()?;
        Ok(py.detach(|| cache.with_session(|session, _| work(session)))?)
    }

    /// If failures count as misses, a failure of the region or of a serde becomes `None`. What is no `Exception`, such as
    /// `KeyboardInterrupt`, is not a failure.
    pub fn forgiving<T>(&self, py: Python<'_>, found: Result<Option<T>, Failure>) -> Result<Option<T>, Failure> {
        match found {
            Err(Failure::Answer(raised) | Failure::Lost(raised)) if self.ignore_exc && raised.is_exception(py) => Ok(None),
            found => found,
        }
    }

    #[inline]
    fn find<'py>(&self, key: &Bound<'py, PyAny>, own: &Key, how: &Get) -> Result<Option<FoundItem<'py>>, Failure> {
        let py = key.py();
        let fetched = self.work(py, |session, buffer| look(py, session, buffer, own, how))??;
        self.converted(fetched, || Ok(key.clone()))
    }

    /// [`Self::find`] of a value alone. `key` makes the object that a serde gets.
    #[inline]
    fn find_plain<'py>(
        &self,
        py: Python<'py>,
        own: &[u8],
        key: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
    ) -> Result<Option<Bound<'py, PyAny>>, Failure> {
        let mut place = Place::new(py);
        if !self.work(py, |session, _| session.get_into(own, Get::VALUE, &mut place))?? {
            return Ok(None);
        }
        let flags = place.flags;
        let bytes = place.finish().map_err(|error| Failure::Lost(error.into()))?;
        self.values
            .decode(bytes, flags, key)
            .map(Some)
            .map_err(|error| Failure::Answer(error.into()))
    }

    #[inline]
    fn converted<'py>(
        &self,
        fetched: Option<(Bound<'py, PyBytes>, Item)>,
        key: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
    ) -> Result<Option<FoundItem<'py>>, Failure> {
        fetched
            .map(|(bytes, item)| {
                let value = self
                    .values
                    .decode(bytes, item.flags, key)
                    .map_err(|error| Failure::Answer(error.into()))?;
                Ok(FoundItem { value, item })
            })
            .transpose()
    }

    fn find_with_cas<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        how: &Get,
        default: Option<Bound<'py, PyAny>>,
        cas_default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let own = self.keys.key(key)?;
        let found = self.find(key, &own, how);
        match self.forgiving(key.py(), found)? {
            Some(found) => found.with_cas(),
            None => PyTuple::new(key.py(), [default, cas_default]),
        }
    }

    fn find_many<'py>(
        &self,
        keys: &Bound<'py, PyAny>,
        how: &Get,
        answer: impl Fn(FoundItem<'py>) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let py = keys.py();
        let objects = objects_of(keys)?;
        let all = self.keys_of(&objects)?;
        self.find_all(py, &objects, &all, how, |_, object| Ok(object.clone()), answer)
    }

    /// Gets the keys `all`. The answers are under the objects that stand for them; `named` is the object that a serde gets
    /// for a key.
    fn find_all<'py>(
        &self,
        py: Python<'py>,
        objects: &[Bound<'py, PyAny>],
        all: &[Key<'_>],
        how: &Get,
        named: impl Fn(&[u8], &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>>,
        answer: impl Fn(FoundItem<'py>) -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let answers = PyDict::new(py);
        if all.is_empty() {
            return Ok(answers);
        }
        // The garbage collector does not track bytes objects, so making them runs no Python code.
        let fetched = self.work(py, |session, buffer| {
            let mut fetched = Vec::with_capacity(all.len());
            for keys in all.chunks(AHEAD_MAX) {
                prefetch(session, keys.iter().map(|own| &**own));
                for own in keys {
                    fetched.push(look(py, session, buffer, own, how)?);
                    buffer.clear();
                }
            }
            Ok::<_, Failure>(fetched)
        });
        let converted = fetched.and_then(|fetched| {
            for ((key, own), fetched) in objects.iter().zip(all).zip(fetched?) {
                if let Some(found) = self.converted(fetched, || named(own, key))? {
                    answers.set_item(key, answer(found)?)?;
                }
            }
            Ok(Some(()))
        });
        match self.forgiving(py, converted)? {
            Some(()) => Ok(answers),
            None => Ok(PyDict::new(py)),
        }
    }

    fn keys_of<'a>(&self, objects: &'a [Bound<'_, PyAny>]) -> Result<Vec<Key<'a>>, Failure> {
        objects.iter().map(|object| self.keys.key(object)).collect()
    }

    #[inline]
    #[allow(clippy::too_many_arguments, reason = "pymemcache's")]
    fn store(
        &self,
        key: &Bound<'_, PyAny>,
        value: &Bound<'_, PyAny>,
        mode: StoreMode,
        compare_cas: Option<u64>,
        expire: Option<&Bound<'_, PyAny>>,
        quiet: bool,
        flags: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Option<bool>> {
        let stored = (|| {
            let exptime = integer(expire, "expire")?;
            let own = self.keys.key(key)?;
            let Value { bytes, flags } = self.values.encode(key, value, flags)?;
            let bytes = bytes.as_bytes();
            let how = Store {
                mode,
                exptime,
                flags,
                compare_cas,
                ..Store::default()
            };
            Ok(self.write(key.py(), bytes.len(), |session| put(session, &own, bytes, &how))??)
        })();
        Ok(unless_quiet(quiet, stored, Some(true))?)
    }

    /// Converts all values, stores all of them, and then reports the first failure.
    fn store_many(
        &self,
        values: &Bound<'_, PyAny>,
        expire: Option<&Bound<'_, PyAny>>,
        flags: Option<&Bound<'_, PyAny>>,
    ) -> Result<(), Failure> {
        let exptime = integer(expire, "expire")?;
        let pairs: Vec<_> = values
            .call_method0("items")?
            .try_iter()?
            .map(|pair| pair?.extract::<(Bound<'_, PyAny>, Bound<'_, PyAny>)>())
            .collect::<PyResult<_>>()?;
        let items: Vec<_> = pairs
            .iter()
            .map(|(key, value)| Ok((self.keys.key(key)?, self.values.encode(key, value, flags)?)))
            .collect::<Result<_, Failure>>()?;
        if items.is_empty() {
            return Ok(());
        }
        let plain: Vec<_> = items
            .iter()
            .map(|(key, value)| (&**key, value.bytes.as_bytes(), value.flags))
            .collect();
        let len = plain.iter().map(|(_, value, _)| value.len()).sum();
        let failed = self.write(values.py(), len, |session| {
            let mut failed = None;
            for items in plain.chunks(AHEAD_MAX) {
                prefetch(session, items.iter().map(|(key, _, _)| *key));
                for (key, value, flags) in items {
                    let how = Store {
                        exptime,
                        flags: *flags,
                        ..Store::default()
                    };
                    if let Err(error) = put(session, key, value, &how) {
                        failed = failed.or(Some(error));
                    }
                }
            }
            failed
        })?;
        failed.map_or(Ok(()), |error| Err(error.into()))
    }

    fn delete_all(&self, keys: &Bound<'_, PyAny>) -> Result<(), Failure> {
        let objects = objects_of(keys)?;
        let all = self.keys_of(&objects)?;
        if all.is_empty() {
            return Ok(());
        }
        self.work(keys.py(), |session, _| {
            for keys in all.chunks(AHEAD_MAX) {
                prefetch(session, keys.iter().map(|own| &**own));
                for own in keys {
                    session.delete(own, &Delete::default())?;
                }
            }
            Ok::<_, WriteError>(())
        })??;
        Ok(())
    }

    fn count(&self, key: &Bound<'_, PyAny>, value: &Bound<'_, PyAny>, decrement: bool) -> Result<Option<u64>, Failure> {
        let own = self.keys.key(key)?;
        if !value.is_instance_of::<PyInt>() {
            return Err(not_an_integer(value, "value"));
        }
        let Ok(delta) = value.extract::<u64>() else {
            return Err(Failure::client(format!(
                "invalid numeric delta argument: {value}, allowed are 0 to 2^64 - 1"
            )));
        };
        let how = Arithmetic {
            delta,
            decrement,
            ..Arithmetic::default()
        };
        match self.work(key.py(), |session, _| session.arithmetic(&own, &how))?? {
            Counted::Value { value, .. } => Ok(Some(value)),
            Counted::NotFound | Counted::Exists => Ok(None),
            Counted::NotANumber => Err(Failure::client(
                "cannot increment or decrement non-numeric value: it is no decimal number below 2^64".to_owned(),
            )),
        }
    }
}

/// The objects of an iterable; none for no iterable.
fn objects_of<'py>(keys: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyAny>>> {
    if keys.is_none() {
        Ok(Vec::new())
    } else {
        keys.try_iter()?.collect()
    }
}

/// Has the memory of these keys' items fetched together, if there are several.
fn prefetch<'k>(session: &mut Session, keys: impl ExactSizeIterator<Item = &'k [u8]>) {
    if keys.len() > 1 {
        session.prefetch(keys);
    }
}

/// A key of this client as text.
#[cold]
fn text_of<'py>(py: Python<'py>, key: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    Ok(PyString::from_bytes(py, key)?.into_any())
}

/// Looks a key up, and makes a new object of its value.
#[inline]
fn look<'py>(
    py: Python<'py>,
    session: &mut Session,
    buffer: &mut Vec<u8>,
    key: &Key,
    how: &Get,
) -> Result<Option<(Bound<'py, PyBytes>, Item)>, Failure> {
    let found = if how.details {
        session.get_with(key, how, buffer, |_, _| {})?
    } else {
        session.get_append(key, buffer)?
    };
    let Some(item) = found else { return Ok(None) };
    let bytes = object::bytes(py, buffer).map_err(|error| Failure::Lost(error.into()))?;
    Ok(Some((bytes, item)))
}

/// Sets the region's memory limit. A lower limit is applied at once, as far as possible.
fn resize(cache: &Cache, memory: u64) -> Result<(), GrowError> {
    if memory > cache.info().limit_bytes {
        return cache.grow(memory);
    }
    cache.limit(memory)?;
    // Without a session here, all sessions that write share the work.
    if let Ok(mut session) = cache.session() {
        while matches!(session.shrink(), Shrinking::More) {}
    }
    Ok(())
}

/// Stores as a server does. A set that finds no space also deletes the old value, so that no later get returns it. An
/// append or prepend that finds no space for the longer value is not stored.
fn put(session: &mut Session, key: &[u8], value: &[u8], how: &Store) -> Result<Option<bool>, WriteError> {
    match session.store(key, value, how) {
        Ok(Stored::Stored { .. }) => Ok(Some(true)),
        Ok(Stored::NotStored | Stored::Exists) => Ok(Some(false)),
        Ok(Stored::NotFound) => Ok(None),
        Err(error) => no_room(key, value, how.mode, error),
    }
}

#[cold]
fn no_room(key: &[u8], value: &[u8], mode: StoreMode, error: WriteError) -> Result<Option<bool>, WriteError> {
    let fits_alone = match error {
        WriteError::TooLarge { limit, .. } => key.len() + value.len() <= limit,
        WriteError::OutOfMemory => true,
        other => return Err(other),
    };
    match mode {
        StoreMode::Append | StoreMode::Prepend if fits_alone => Ok(Some(false)),
        _ => Err(error),
    }
}

/// The path of a region, or of a server's region socket.
fn path_of(server: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    let path = server.extract::<PathBuf>().map_err(|_| {
        PyTypeError::new_err(format!(
            "give the path of a region or of a server's region socket, not {server:?}; a host and port are for pymemcache"
        ))
    })?;
    if door::place_of(path.clone()).names_a_server() {
        return Err(PyValueError::new_err(OpenError::Address { path }.to_string()));
    }
    Ok(path)
}

/// An amount that the region is asked for. A number that its type cannot hold is outside of any limit.
fn amount<'py, T>(value: Option<&Bound<'py, PyAny>>, name: &str, most: T) -> PyResult<Option<T>>
where
    T: for<'a> FromPyObject<'a, 'py, Error = PyErr> + std::fmt::Display,
{
    let Some(value) = value else { return Ok(None) };
    match value.extract() {
        Ok(number) => Ok(Some(number)),
        Err(error) if error.is_instance_of::<PyOverflowError>(value.py()) => {
            let why = format!("{name} is {value}: it must be from 0 to {most}");
            Err(PyValueError::new_err(why))
        }
        Err(error) => Err(error),
    }
}

/// A number of seconds or megabytes; 0 if it is not given.
#[inline]
pub fn integer(value: Option<&Bound<'_, PyAny>>, name: &str) -> Result<i64, Failure> {
    let Some(value) = value else { return Ok(0) };
    if !value.is_instance_of::<PyInt>() {
        return Err(not_an_integer(value, name));
    }
    value
        .extract()
        .map_err(|_| Failure::client(format!("{name} is {value}: it has 64 bits at most")))
}

#[cold]
fn not_an_integer(value: &Bound<'_, PyAny>, name: &str) -> Failure {
    Failure::illegal(format!("{name} must be integer, got bad value: {value:?}"))
}

/// A CAS unique: a number, or its digits as text or bytes.
fn unique_of(cas: &Bound<'_, PyAny>) -> Result<u64, Failure> {
    let digits = if cas.is_instance_of::<PyInt>() || cas.is_instance_of::<PyString>() {
        cas.str()?.to_str()?.as_bytes().to_vec()
    } else if let Ok(bytes) = cas.cast::<PyBytes>() {
        bytes.as_bytes().to_vec()
    } else {
        return Err(Failure::illegal(format!(
            "cas must be integer, string, or bytes, got bad value: {cas:?}"
        )));
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err(Failure::illegal(format!(
            "cas must only contain values in 0-9, got bad value: {cas:?}"
        )));
    }
    let number = std::str::from_utf8(&digits).ok().and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| Failure::client(format!("the cas {cas:?} has more than 64 bits")))
}

/// A prefix of keys: bytes, or ASCII text.
pub fn prefix_of(prefix: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    if let Ok(bytes) = prefix.cast::<PyBytes>() {
        return Ok(bytes.as_bytes().to_vec());
    }
    match prefix.cast::<PyString>() {
        Ok(text) => Ok(text
            .call_method1("encode", ("ascii",))?
            .cast_into::<PyBytes>()?
            .as_bytes()
            .to_vec()),
        Err(_) => Err(PyTypeError::new_err("key_prefix should be bytes.")),
    }
}

/// An argument of stats.
fn word(argument: Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    match argument.cast::<PyBytes>() {
        Ok(bytes) => Ok(bytes.as_bytes().to_vec()),
        Err(_) => Ok(argument.str()?.to_str()?.as_bytes().to_vec()),
    }
}
