//! What reproduces the papers that Keyway comes from, and the load generators and networks that only such experiments need.
//!
//! Built on `keyway-bench`: it has the clients, the servers and the reports. [`presets`] runs a paper's experiment, and [`papers`] has one file for each
//! paper; a [`table::PaperTable`] puts the paper's numbers beside those measured here. [`kernel`] measures the kernel door between
//! network [`namespaces`] of its own; [`datagrams`] and [`peak`] are a generator and a search for it; [`idle`] weighs idle connections.
//! [`applications`] measures web applications, [`tls`] TLS beside memcached's.
//! Nothing of this is in the installed program.

pub mod applications;
pub mod datagrams;
pub mod idle;
pub mod kernel;
pub mod namespaces;
pub mod papers;
pub mod peak;
pub mod presets;
pub mod table;
pub mod tls;
