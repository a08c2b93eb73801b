//! Fetches: the value of a key, which one caller of all processes computes if it is absent. What is decided is decided in the
//! library (`keyway_cache`, `session/fetch.rs`); here functions of Python compute, and objects are converted.
//!
//! A function that computes runs outside the session, with the interpreter's lock, as any Python code: it may use the cache. Waits
//! give the lock up ([`crate::apart`]), and end now and then for Python's handlers of signals.

use crate::client::{Client, UNLOCKED_LEN_MIN, integer, prefix_of};
use crate::door::Region;
use crate::failure::{Class, Failure, Raised};
use crate::key::Key;
use crate::object::{self, Shared};
use crate::value::Value;
use keyway_cache::{AtOnce, Begun, Fetch, Session, Token, WaitedFor, WriteError};
use pyo3::exceptions::{PyException, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::pyclass::{PyTraverseError, PyVisit};
use pyo3::types::{PyBytes, PyDict, PyList, PyTuple};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a wait ends for handlers of signals, Ctrl+C among them.
const SIGNALS: Duration = Duration::from_millis(100);
/// Longest wait: as good as for ever.
const WAIT_MAX: Duration = Duration::from_secs(u32::MAX as u64);
/// How many may compute at a time under a limit, at most (`keyway_cache::AtOnce`).
const AT_MOST_MAX: usize = 63;

/// The arguments of a fetch as the program gave them. They are looked at only if there is something to compute.
#[derive(Default)]
pub struct Given<'py> {
    pub ttl: Option<Bound<'py, PyAny>>,
    pub negative_ttl: Option<Bound<'py, PyAny>>,
    pub stale_while_revalidate: Option<Bound<'py, PyAny>>,
    pub stale_if_error: Option<Bound<'py, PyAny>>,
    pub early: Option<Bound<'py, PyAny>>,
    pub wait: Option<Bound<'py, PyAny>>,
    pub compute_after_wait: Option<Bound<'py, PyAny>>,
    pub limit: Option<Bound<'py, PyAny>>,
}

impl<'py> Given<'py> {
    pub fn from_dict(function: &str, named: Option<&Bound<'py, PyDict>>) -> PyResult<Self> {
        let mut given = Self::default();
        for (name, value) in named.into_iter().flatten() {
            let place = match name.extract::<&str>()? {
                "ttl" => &mut given.ttl,
                "negative_ttl" => &mut given.negative_ttl,
                "stale_while_revalidate" => &mut given.stale_while_revalidate,
                "stale_if_error" => &mut given.stale_if_error,
                "early" => &mut given.early,
                "wait" => &mut given.wait,
                "compute_after_wait" => &mut given.compute_after_wait,
                "limit" => &mut given.limit,
                other => {
                    let what = format!("{function}() got an unexpected keyword argument '{other}'");
                    return Err(PyTypeError::new_err(what));
                }
            };
            *place = (!value.is_none()).then_some(value);
        }
        Ok(given)
    }

    pub fn how(&self, client: &Client) -> Result<How, Failure> {
        let default = Fetch::default();
        let early = match &self.early {
            Some(early) => number(early, "early")?,
            None => default.early,
        };
        let wait = match &self.wait {
            Some(wait) => Duration::try_from_secs_f64(number(wait, "wait")?).map_or(WAIT_MAX, |wait| wait.min(WAIT_MAX)),
            None => default.wait,
        };
        Ok(How {
            ttl: integer(self.ttl.as_ref(), "ttl")?,
            negative_ttl: seconds(self.negative_ttl.as_ref(), "negative_ttl")?,
            stale_while_revalidate: seconds(self.stale_while_revalidate.as_ref(), "stale_while_revalidate")?,
            stale_if_error: seconds(self.stale_if_error.as_ref(), "stale_if_error")?,
            early,
            wait,
            compute_after_wait: match &self.compute_after_wait {
                Some(given) => given.is_truthy()?,
                None => default.compute_after_wait,
            },
            limit: self.limit.as_ref().map(|limit| limit_of(client, limit)).transpose()?,
            of_django: false,
        })
    }
}

/// How a value is fetched: `keyway_cache::Fetch`, of which this class is the owner for the functions in Python.
#[pyclass(frozen, module = "keyway_cache")]
pub struct How {
    pub ttl: i64,
    negative_ttl: u32,
    stale_while_revalidate: u32,
    stale_if_error: u32,
    early: f64,
    wait: Duration,
    compute_after_wait: bool,
    limit: Option<(Vec<u8>, usize)>,
    /// `None` is a value, and a fetch of the key within its own computation computes, too
    of_django: bool,
}

#[pymethods]
impl How {
    /// Longest wait, seconds.
    #[getter]
    fn wait(&self) -> f64 {
        self.wait.as_secs_f64()
    }

    /// Whether a fetch within its own computation computes, too.
    #[getter]
    fn nests(&self) -> bool {
        self.of_django
    }

    /// The limit's prefix, or None.
    #[getter]
    fn limit<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.limit.as_ref().map(|(prefix, _)| PyBytes::new(py, prefix))
    }
}

impl How {
    /// As Django's get_or_set: for so many seconds (exptime).
    pub fn of_django(exptime: i64) -> Self {
        let default = Fetch::default();
        Self {
            ttl: exptime,
            negative_ttl: 0,
            stale_while_revalidate: 0,
            stale_if_error: 0,
            early: 0.0,
            wait: default.wait,
            compute_after_wait: true,
            limit: None,
            of_django: true,
        }
    }

    /// For a caller that has looked already.
    fn looked(&self) -> Fetch<'_> {
        Fetch {
            ttl: self.ttl,
            negative_ttl: self.negative_ttl,
            stale_while_revalidate: self.stale_while_revalidate,
            stale_if_error: self.stale_if_error,
            early: self.early,
            wait: self.wait,
            compute_after_wait: self.compute_after_wait,
            limit: self.limit.as_ref().map(|(prefix, at_most)| AtOnce {
                prefix,
                at_most: *at_most,
            }),
            has_looked: true,
            ..Fetch::default()
        }
    }

    /// For a caller that does not wait here.
    fn at_once(&self) -> Fetch<'_> {
        Fetch {
            wait: Duration::ZERO,
            compute_after_wait: false,
            has_tasks: true,
            has_looked: false,
            ..self.looked()
        }
    }
}

/// A value as it is stored, and its client flags.
type Stored<'py> = (Bound<'py, PyBytes>, u32);

/// What the beginning of a fetch has found.
enum Start<'py> {
    Found(Stored<'py>),
    Nothing,
    Compute(Unfinished, Option<Stored<'py>>),
    Waited(WaitedFor),
}

/// A computation that has begun. If it is dropped, another caller computes.
struct Unfinished {
    region: Arc<Region>,
    key: Vec<u8>,
    /// `None`: it has ended, or nothing is stored
    token: Option<Token>,
}

impl Unfinished {
    /// Ends the fetch. The value is the caller's in any case: it is no error if it was not stored, because the key has changed
    /// meanwhile, because it is too large, or because there is no region any more.
    fn end<R>(mut self, work: impl FnOnce(&mut Session, &[u8], Token) -> Result<R, WriteError>) {
        if let (Some(token), Ok(cache)) = (self.token.take(), self.region.cache()) {
            let _ = cache.with_session(|session, _| work(session, &self.key, token));
        }
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        if let (Some(token), Ok(cache)) = (self.token.take(), self.region.cache()) {
            let _ = cache.with_session(|session, _| session.fetch_abandon(&self.key, token));
        }
    }
}

/// A computation of a task, which ends it.
#[pyclass(frozen, module = "keyway_cache")]
pub struct Flight {
    client: Py<Client>,
    /// as the program gave it
    key: Py<PyAny>,
    how: Py<How>,
    unfinished: Shared<Option<Unfinished>>,
    old: Option<(Py<PyBytes>, u32)>,
}

#[pymethods]
impl Flight {
    /// Stores what was computed. Returns it as others get it.
    fn finish<'py>(&self, value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = value.py();
        match self.unfinished.replace(py, None) {
            Some(unfinished) => self.client.get().finish(self.key.bind(py), unfinished, value, self.how.get()),
            None => Ok(value.clone()),
        }
    }

    /// Ends a computation that has failed so. Returns the old value in a tuple, if that will do, and otherwise None.
    fn fail<'py>(&self, why: &Bound<'py, PyAny>) -> PyResult<Option<(Bound<'py, PyAny>,)>> {
        let py = why.py();
        self.abandon(py);
        let old = self.old.as_ref().map(|(bytes, flags)| (bytes.bind(py).clone(), *flags));
        let error = PyErr::from_value(why.clone());
        let value = self.client.get().instead(self.key.bind(py), old, &error);
        Ok(value?.map(|value| (value,)))
    }

    /// Lets another caller compute, if it has not ended.
    fn abandon(&self, py: Python<'_>) {
        drop(self.unfinished.replace(py, None));
    }

    fn __traverse__(&self, visit: PyVisit<'_>) -> Result<(), PyTraverseError> {
        visit.call(&self.client)?;
        visit.call(&self.key)
    }
}

impl Client {
    /// A fetch of a key that a get has not found. `object`: the key as a serde gets it.
    #[cold]
    pub fn fetch_absent<'py>(
        &self,
        object: &Bound<'py, PyAny>,
        own: &[u8],
        compute: &Bound<'py, PyAny>,
        how: &How,
    ) -> PyResult<Bound<'py, PyAny>> {
        let deadline = Instant::now() + how.wait;
        self.fetch_until(object, own, how, deadline, || compute.call0())
    }

    fn fetch_until<'py>(
        &self,
        object: &Bound<'py, PyAny>,
        own: &[u8],
        how: &How,
        deadline: Instant,
        compute: impl FnOnce() -> PyResult<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let py = object.py();
        let begun = self.begin_waiting(py, own, how, deadline);
        let begun = begun.and_then(|start| Ok(Some(self.started(object, start)?)));
        match self.forgiving(py, begun)? {
            None => compute(),
            Some(Started::Found(value)) => Ok(value),
            Some(Started::Waited(what)) => Err(over(what, how.wait).into()),
            Some(Started::Compute(unfinished, old)) => match compute() {
                Ok(value) => self.finish(object, unfinished, &value, how),
                Err(error) => {
                    drop(unfinished);
                    self.instead(object, old, &error)?.ok_or(error)
                }
            },
        }
    }

    /// Begins, and waits until the deadline.
    fn begin_waiting<'py>(&self, py: Python<'py>, own: &[u8], how: &How, deadline: Instant) -> Result<Start<'py>, Failure> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let is_last = left <= SIGNALS;
            let now = Fetch {
                wait: left.min(SIGNALS),
                compute_after_wait: how.compute_after_wait && is_last,
                ..how.looked()
            };
            match self.begin(py, own, &now) {
                Ok(Start::Waited(_)) if !is_last => py.check_signals()?,
                // Not stored: the outer computation stores its own.
                Err(Begin::OwnFlight) if how.of_django => {
                    let (region, key) = (self.region(py)?, own.to_vec());
                    return Ok(Start::Compute(
                        Unfinished {
                            region,
                            key,
                            token: None,
                        },
                        None,
                    ));
                }
                begun => return begun.map_err(Begin::into),
            }
        }
    }

    fn begin<'py>(&self, py: Python<'py>, own: &[u8], how: &Fetch<'_>) -> Result<Start<'py>, Begin> {
        let region = self.region(py)?;
        let begun = region.cache()?.with_session(|session, buffer| {
            let begun = session.fetch_begin(own, how, buffer)?;
            // Making a bytes object runs no Python code.
            let value = |flags| match object::bytes(py, buffer) {
                Ok(bytes) => Ok((bytes, flags)),
                Err(error) => Err(Failure::Lost(error.into())),
            };
            let mut unfinished = Unfinished {
                region: Arc::clone(&region),
                key: own.to_vec(),
                token: None,
            };
            Ok::<_, Begin>(match begun {
                Begun::Hit(item) | Begun::Stale(item) => Start::Found(value(item.flags)?),
                Begun::Nothing => Start::Nothing,
                Begun::Waited(what) => Start::Waited(what),
                Begun::Compute(token) => {
                    let flags = token.old().map(|item| item.flags);
                    // The session is in use: only outside it can the fetch be given up.
                    let old = flags.and_then(|flags| value(flags).ok());
                    unfinished.token = Some(token);
                    Start::Compute(unfinished, old)
                }
            })
        });
        begun.map_err(Failure::from)?
    }

    /// What was found as objects.
    fn started<'py>(&self, object: &Bound<'py, PyAny>, start: Start<'py>) -> Result<Started<'py>, Failure> {
        Ok(match start {
            Start::Found(stored) => Started::Found(
                self.object_of(object, stored)
                    .map_err(|error| Failure::Answer(error.into()))?,
            ),
            Start::Nothing => Started::Found(object.py().None().into_bound(object.py())),
            Start::Compute(unfinished, old) => Started::Compute(unfinished, old),
            Start::Waited(what) => Started::Waited(what),
        })
    }

    fn object_of<'py>(&self, object: &Bound<'py, PyAny>, (bytes, flags): Stored<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.values.decode(bytes, flags, || Ok(object.clone()))
    }

    /// Stores what was computed. Returns it as others get it.
    fn finish<'py>(
        &self,
        object: &Bound<'py, PyAny>,
        unfinished: Unfinished,
        value: &Bound<'py, PyAny>,
        how: &How,
    ) -> PyResult<Bound<'py, PyAny>> {
        if value.is_none() && !how.of_django {
            unfinished.end(|session, key, token| session.fetch_store_nothing(key, token, &how.looked()));
            return Ok(value.clone());
        }
        let Value {
            bytes: object_bytes,
            flags,
        } = self.values.encode(object, value, None)?;
        let stored = Fetch { flags, ..how.looked() };
        let bytes = object_bytes.as_bytes();
        let end = move || unfinished.end(|session, key, token| session.fetch_store(key, token, bytes, &stored));
        match bytes.len() < UNLOCKED_LEN_MIN {
            true => end(),
            false => object.py().detach(end),
        }
        if self.values.keeps_objects() {
            return Ok(value.clone());
        }
        self.object_of(object, (object_bytes, flags))
    }

    /// The old value, if it will do instead of this failure, which is logged then.
    fn instead<'py>(
        &self,
        object: &Bound<'py, PyAny>,
        old: Option<Stored<'py>>,
        failure: &PyErr,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let py = object.py();
        let Some(old) = old.filter(|_| failure.is_instance_of::<PyException>(py)) else {
            return Ok(None);
        };
        let value = self.object_of(object, old)?;
        let _ = log_failure(object, failure);
        Ok(Some(value))
    }

    /// See `Client.fetch_many`.
    pub fn fetch_these<'py>(
        &self,
        keys: &[Bound<'py, PyAny>],
        all: &[Key<'_>],
        compute: &Bound<'py, PyAny>,
        how: &How,
    ) -> PyResult<Bound<'py, PyDict>> {
        let py = compute.py();
        let deadline = Instant::now() + how.wait;
        let values = PyDict::new(py);
        let put = |key: &Bound<'py, PyAny>, value: Bound<'py, PyAny>| match value.is_none() {
            true => Ok(()),
            false => values.set_item(key, value),
        };
        // In the first round it does not wait: what one caller has begun it computes before it waits for another.
        let (mut begun, mut later, at_once) = (Vec::new(), Vec::new(), how.at_once());
        for (key, own) in keys.iter().zip(all) {
            let start = self.begin(py, own, &at_once).map_err(Failure::from);
            let start = start.and_then(|start| Ok(Some(self.started(key, start)?)));
            match self.forgiving(py, start)? {
                Some(Started::Found(value)) => put(key, value)?,
                Some(Started::Waited(_)) => later.push((key, own)),
                Some(Started::Compute(unfinished, old)) => begun.push((key, Some(unfinished), old)),
                None => begun.push((key, None, None)),
            }
        }
        if !begun.is_empty() {
            let missing = PyList::new(py, begun.iter().map(|(key, ..)| *key))?;
            match compute.call1((missing,)) {
                Ok(computed) => {
                    for (key, unfinished, _) in begun {
                        let value = computed_for(&computed, key)?;
                        match unfinished {
                            Some(unfinished) => put(key, self.finish(key, unfinished, &value, how)?)?,
                            None => put(key, value)?,
                        }
                    }
                }
                Err(error) => {
                    for (key, unfinished, old) in begun {
                        drop(unfinished);
                        match self.instead(key, old, &error)? {
                            Some(value) => put(key, value)?,
                            None => return Err(error),
                        }
                    }
                }
            }
        }
        for (key, own) in later {
            let one = || {
                let missing = PyList::new(py, [key])?;
                computed_for(&compute.call1((missing,))?, key)
            };
            put(key, self.fetch_until(key, own, how, deadline, one)?)?;
        }
        Ok(values)
    }

    /// For tasks of an event loop: begins without waiting. Returns a pair: whether it has ended, and the value; or a [`Flight`] to
    /// end; or the exception that says for what the task would have to wait. The task's last look, `is_over`, computes if it may.
    pub fn begin_task<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyAny>,
        how: &Bound<'py, How>,
        is_over: bool,
        has_looked: bool,
    ) -> PyResult<(bool, Bound<'py, PyAny>)> {
        let (py, client, options) = (key.py(), slf.get(), how.get());
        let own = client.keys.key(key)?;
        let now = Fetch {
            compute_after_wait: options.compute_after_wait && is_over,
            has_looked,
            ..options.at_once()
        };
        let start = client.begin(py, &own, &now).map_err(Failure::from);
        let start = start.and_then(|start| Ok(Some(client.started(key, start)?)));
        let (unfinished, old) = match client.forgiving(py, start)? {
            Some(Started::Found(value)) => return Ok((true, value)),
            Some(Started::Waited(what)) => {
                let exception: PyErr = over(what, options.wait).into();
                return Ok((false, exception.into_value(py).into_bound(py).into_any()));
            }
            Some(Started::Compute(unfinished, old)) => (Some(unfinished), old),
            None => (None, None),
        };
        let flight = Flight {
            client: slf.clone().unbind(),
            key: key.clone().unbind(),
            how: how.clone().unbind(),
            unfinished: Shared::new(unfinished),
            old: old.map(|(bytes, flags)| (bytes.unbind(), flags)),
        };
        Ok((false, Bound::new(py, flight)?.into_any()))
    }

    /// For a thread that waits for tasks: until another caller has ended its computation of the key, or so many seconds.
    pub fn wait_for_other(&self, key: &Bound<'_, PyAny>, seconds: f64) -> PyResult<()> {
        let own = self.keys.key(key)?;
        let timeout = Duration::try_from_secs_f64(seconds).unwrap_or(Duration::ZERO);
        self.work(key.py(), |session, _| session.fetch_wait(&own, timeout))?
            .map_err(Failure::from)?;
        Ok(())
    }
}

/// [`Start`], its value converted.
enum Started<'py> {
    Found(Bound<'py, PyAny>),
    Compute(Unfinished, Option<Stored<'py>>),
    Waited(WaitedFor),
}

/// Why a fetch has not begun.
enum Begin {
    /// this thread computes the value already
    OwnFlight,
    Failed(Failure),
}

impl From<WriteError> for Begin {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::OwnFlight => Self::OwnFlight,
            error => Self::Failed(error.into()),
        }
    }
}

impl From<Failure> for Begin {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Begin> for Failure {
    fn from(why: Begin) -> Self {
        match why {
            Begin::OwnFlight => WriteError::OwnFlight.into(),
            Begin::Failed(failure) => failure,
        }
    }
}

/// The wait is over.
fn over(what: WaitedFor, wait: Duration) -> Raised {
    match what {
        WaitedFor::Flight => Raised::Own(
            Class::InFlight,
            format!(
                "another caller has been computing this value for longer than wait={} s: wait longer, or compute_after_wait=True",
                wait.as_secs_f64()
            ),
        ),
        WaitedFor::Limit => Raised::Own(
            Class::Limit,
            format!(
                "as many callers compute as the limit allows, and that for wait={} s: wait longer, raise the limit, or allow stale values",
                wait.as_secs_f64()
            ),
        ),
    }
}

/// What a function that computes many has for this key.
fn computed_for<'py>(computed: &Bound<'py, PyAny>, key: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    match computed.cast::<PyDict>() {
        Ok(computed) => Ok(computed
            .get_item(key)?
            .unwrap_or_else(|| key.py().None().into_bound(key.py()))),
        Err(_) => computed.call_method1(intern!(key.py(), "get"), (key,)),
    }
}

fn log_failure(key: &Bound<'_, PyAny>, failure: &PyErr) -> PyResult<()> {
    let py = key.py();
    let logger = py.import("logging")?.call_method1("getLogger", ("keyway_cache",))?;
    let named = PyDict::new(py);
    named.set_item("exc_info", failure.value(py))?;
    logger.call_method(
        "warning",
        ("the value of %r could not be computed: the old one is returned", key),
        Some(&named),
    )?;
    Ok(())
}

/// A number from 0 on.
fn number(value: &Bound<'_, PyAny>, name: &str) -> Result<f64, Failure> {
    let number = value.extract::<f64>().ok().filter(|number| *number >= 0.0);
    number.ok_or_else(|| Failure::illegal(format!("{name} is a number from 0 on, not {value:?}")))
}

/// A number of seconds from 0 on; 0 if it is not given.
fn seconds(value: Option<&Bound<'_, PyAny>>, name: &str) -> Result<u32, Failure> {
    let given = integer(value, name)?;
    match u32::try_from(given.min(u32::MAX.into())) {
        Ok(seconds) => Ok(seconds),
        Err(_) => Err(Failure::illegal(format!(
            "{name} is {given}: it is a number of seconds from 0 on"
        ))),
    }
}

/// A pair of a prefix, before which the client's own prefix comes as before its keys, and how many compute at a time.
fn limit_of(client: &Client, limit: &Bound<'_, PyAny>) -> Result<(Vec<u8>, usize), Failure> {
    let wrong = || {
        Failure::illegal(format!(
            "limit is a pair of a prefix and a number from 1 to {AT_MOST_MAX}, not {limit:?}"
        ))
    };
    let pair = limit.cast::<PyTuple>().map_err(|_| wrong())?;
    let (prefix, at_most) = pair.extract::<(Bound<'_, PyAny>, usize)>().map_err(|_| wrong())?;
    if !(1..=AT_MOST_MAX).contains(&at_most) {
        return Err(wrong());
    }
    let own = prefix_of(&prefix).map_err(|_| wrong())?;
    Ok(([client.keys.prefix.as_slice(), &own].concat(), at_most))
}
