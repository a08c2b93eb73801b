//! Keyway's library door for Python: the extension module `keyway_cache._keyway`. The package `keyway_cache` exports its
//! contents as its own.
//!
//! `client.rs` has the class that a user of pymemcache knows, `fetch.rs` its fetches, `key.rs` and `value.rs` its keys and values, `door.rs` the
//! regions that a process has open, and `failure.rs` the exceptions. This crate has no rules of its own except
//! pymemcache's: what a verb does is decided in the crate `keyway`, and `docs/library.md` says what a process must not
//! do.
//!
//! No Python code runs in a thread while it works with its session. Arguments are converted before it, and results become
//! objects other than bytes after it. So no code can call the client again from within a call.

use pyo3::Python;

mod client;
mod door;
mod failure;
mod fetch;
mod key;
mod object;
mod value;

#[allow(unsafe_code, reason = "a list that the loader reads")]
mod start {
    // The code that runs when the module is loaded. It does nothing unless `keyway exec` has requested it.
    keyway_harden::hardened_at_start!();
}

/// The module as the interpreter loads it.
#[pyo3::pymodule]
mod _keyway {
    #[pymodule_export]
    use super::client::Client;
    #[pymodule_export]
    use super::fetch::{Flight, How};
    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");

    #[pymodule_init]
    fn init(_module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        keyway_cache::server::run_apart_by(super::apart);
        Ok(())
    }
}

/// Runs a wait of the library, for a server or another process, without the interpreter's lock. A thread that does not have the
/// lock takes it first and gives it up again.
fn apart(wait: &mut (dyn FnMut() + Send)) {
    if Python::try_attach(|py| py.detach(&mut *wait)).is_none() {
        // The interpreter is ending: no other thread needs the lock.
        wait();
    }
}
