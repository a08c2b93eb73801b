//! From failures to exceptions, under the names that a user of pymemcache expects.
//!
//! There are two kinds. A failure that a server would have answered (too large, not a number) is not reported to a caller
//! that wants no reply. A failure that would have broken a connection (no region, no slot, damage) is raised in any case.

use keyway_cache::{LocalError, OpenError, ReadError, WriteError};
use pyo3::PyErr;
use pyo3::exceptions::PyMemoryError;

/// The package's exceptions.
mod python {
    pyo3::import_exception!(keyway_cache.exceptions, MemcacheClientError);
    pyo3::import_exception!(keyway_cache.exceptions, MemcacheIllegalInputError);
    pyo3::import_exception!(keyway_cache.exceptions, MemcacheServerError);
    pyo3::import_exception!(keyway_cache.exceptions, MemcacheRegionError);
}

/// Why a call failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// the argument is illegal: nothing was attempted
    Illegal(PyErr),
    /// a server would have sent this answer
    Answer(PyErr),
    /// there is no region
    Lost(PyErr),
}

impl Failure {
    #[cold]
    pub(crate) fn illegal(message: String) -> Self {
        Self::Illegal(python::MemcacheIllegalInputError::new_err(message))
    }

    /// A request that a server would have refused.
    #[cold]
    pub(crate) fn client(message: String) -> Self {
        Self::Answer(python::MemcacheClientError::new_err(message))
    }

    #[cold]
    pub(crate) fn server(message: String) -> Self {
        Self::Answer(python::MemcacheServerError::new_err(message))
    }
}

impl From<Failure> for PyErr {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::Illegal(error) | Failure::Answer(error) | Failure::Lost(error) => error,
        }
    }
}

/// An exception from Python code that was called meanwhile.
impl From<PyErr> for Failure {
    fn from(error: PyErr) -> Self {
        Self::Illegal(error)
    }
}

impl From<WriteError> for Failure {
    #[cold]
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::KeyLength { .. } => Self::illegal(error.to_string()),
            WriteError::FlushRefused => Self::Answer(python::MemcacheClientError::new_err(error.to_string())),
            WriteError::TooLarge { .. } | WriteError::OutOfMemory => Self::server(error.to_string()),
            WriteError::NoMemory { .. } => Self::Lost(PyMemoryError::new_err(error.to_string())),
            WriteError::Corrupt => Self::Lost(python::MemcacheServerError::new_err(error.to_string())),
            // Detached, KernelDoor, Unserved, and what a later version of the library adds.
            _ => Self::Lost(python::MemcacheRegionError::new_err(error.to_string())),
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
        Self::Lost(python::MemcacheRegionError::new_err(error.to_string()))
    }
}

impl From<OpenError> for Failure {
    #[cold]
    fn from(error: OpenError) -> Self {
        Self::Lost(python::MemcacheRegionError::new_err(error.to_string()))
    }
}

/// The result for a caller that wants no reply: success, unless there is no region.
pub(crate) fn unless_quiet<T>(quiet: bool, done: Result<T, Failure>, well: T) -> Result<T, Failure> {
    match done {
        Ok(_) | Err(Failure::Answer(_)) if quiet => Ok(well),
        done => done,
    }
}
