//! Keyway's library door for Python: the extension module `keyway_cache._keyway`, which the package `keyway_cache` shows as its own.
//!
//! `client.rs` has the class that a user of pymemcache knows, `key.rs` and `value.rs` its keys and values, `door.rs` the regions
//! that a process has open, and `failure.rs` the exceptions. Rules of its own this crate has none but pymemcache's: what a verb
//! does is in the crate `keyway`, and what a process must not do in `docs/library.md`.
//!
//! No Python code runs while a thread works with its session: what it is given is converted before, and answers become objects
//! other than bytes behind it. So nothing can call the client again from within a call.

mod client;
mod door;
mod failure;
mod key;
mod object;
mod value;

#[allow(unsafe_code, reason = "a list that the loader reads")]
mod start {
    // What runs when the module is loaded: nothing, unless `keyway exec` has asked for it.
    keyway_harden::hardened_at_start!();
}

/// The module as the interpreter loads it.
#[pyo3::pymodule]
mod _keyway {
    #[pymodule_export]
    use super::client::Client;
    #[pymodule_export]
    #[allow(non_upper_case_globals, reason = "Python's name for it")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}
