//! From failures to exceptions, under the names that a user of pymemcache expects.
//!
//! There are two kinds. A failure that a server would have answered (too large, not a number) is not reported to a caller
//! that wants no reply. A failure that would have broken a connection (no region, no slot, damage) is raised in any case.

//!
//! A process may have several interpreters (mod_wsgi, `_interpreters`), each with the package's exceptions as classes of its own. So the class of
//! an exception is looked up when it is raised, in the interpreter that raises it, and is not kept.

use keyway_cache::{LocalError, OpenError, ReadError, WriteError};
use pyo3::exceptions::{PyException, PyMemoryError};
use pyo3::prelude::*;
use pyo3::types::PyType;

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// the argument is illegal: nothing was attempted
    Illegal(Raised),
    /// a server would have sent this answer
    Answer(Raised),
    /// there is no region
    Lost(Raised),
}

/// An exception that is going to be raised.
#[derive(Debug)]
pub(crate) enum Raised {
    /// one of the package's own, with this message
    Own(Class, String),
    /// one of Python's, or of code that was called
    Other(PyErr),
}

/// A class of `keyway_cache.exceptions`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Class {
    Client,
    IllegalInput,
    Server,
    Region,
    InFlight,
    Limit,
    Recursion,
}

impl Class {
    fn name(self) -> &'static str {
        match self {
            Self::Client => "MemcacheClientError",
            Self::IllegalInput => "MemcacheIllegalInputError",
            Self::Server => "MemcacheServerError",
            Self::Region => "MemcacheRegionError",
            Self::InFlight => "MemcacheInFlightError",
            Self::Limit => "MemcacheLimitError",
            Self::Recursion => "MemcacheRecursionError",
        }
    }

    /// The class of this interpreter.
    fn of(self, py: Python<'_>) -> PyResult<Bound<'_, PyType>> {
        let class = py.import("keyway_cache.exceptions")?.getattr(self.name())?;
        Ok(class.cast_into()?)
    }
}

impl Raised {
    /// Whether `except Exception` catches it.
    pub(crate) fn is_exception(&self, py: Python<'_>) -> bool {
        match self {
            Self::Own(..) => true,
            Self::Other(error) => error.is_instance_of::<PyException>(py),
        }
    }
}

impl From<PyErr> for Raised {
    fn from(error: PyErr) -> Self {
        Self::Other(error)
    }
}

impl From<Raised> for PyErr {
    #[cold]
    fn from(raised: Raised) -> Self {
        match raised {
            // The thread is attached: it returns to the interpreter that called it.
            Raised::Own(class, message) => Python::attach(|py| match class.of(py) {
                Ok(class) => Self::from_type(class, message),
                Err(error) => error,
            }),
            Raised::Other(error) => error,
        }
    }
}

impl Failure {
    #[cold]
    pub(crate) fn illegal(message: String) -> Self {
        Self::Illegal(Raised::Own(Class::IllegalInput, message))
    }

    /// A request that a server would have refused.
    #[cold]
    pub(crate) fn client(message: String) -> Self {
        Self::Answer(Raised::Own(Class::Client, message))
    }

    #[cold]
    pub(crate) fn server(message: String) -> Self {
        Self::Answer(Raised::Own(Class::Server, message))
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Illegal(raised) | Failure::Answer(raised) | Failure::Lost(raised) => raised.into(),
        }
    }
}

/// An exception from Python code that was called meanwhile.
impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Illegal(error.into())
    }
}

impl From<WriteError> for Failure {
    #[cold]
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::KeyLength { .. } => Self::illegal(error.to_string()),
            WriteError::OwnFlight => Self::Illegal(Raised::Own(Class::Recursion, error.to_string())),
            WriteError::FlushRefused => Self::client(error.to_string()),
            WriteError::TooLarge { .. } | WriteError::OutOfMemory => Self::server(error.to_string()),
            WriteError::NoMemory { .. } => Self::Lost(PyMemoryError::new_err(error.to_string()).into()),
            WriteError::Corrupt => Self::Lost(Raised::Own(Class::Server, error.to_string())),
            // Detached, KernelDoor, Unserved, and what a later version of the library adds.
            _ => Self::Lost(Raised::Own(Class::Region, error.to_string())),
        }
    }
}

impl From<ReadError> for Failure {
    #[cold]
    fn from(error: ReadError) -> Self {
        WriteError::from(error).into()
    }
}

impl From<LocalError> for Failure {
    #[cold]
    fn from(error: LocalError) -> Self {
        Self::Lost(Raised::Own(Class::Region, error.to_string()))
    }
}

impl From<OpenError> for Failure {
    #[cold]
    fn from(error: OpenError) -> Self {
        Self::Lost(Raised::Own(Class::Region, error.to_string()))
    }
}

/// The result for a caller that wants no reply: success, unless there is no region.
pub(crate) fn unless_quiet<T>(quiet: bool, done: Result<T, Failure>, well: T) -> Result<T, Failure> {
    match done {
        Ok(_) | Err(Failure::Answer(_)) if quiet => Ok(well),
        done => done,
    }
}
