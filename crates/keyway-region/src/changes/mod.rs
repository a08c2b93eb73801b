//! Room `changes`: how often each stripe of the hash space was changed, for readers that keep copies of items.
//!
//! Holds the stripe counts, the door word that says whether they are kept, and what each session knows of both.
//!
//! - No change is published before it is counted, while any process keeps copies.
//! - Counting costs a session nothing while no process keeps copies.
//!
//! Never: knows which items are copied, or which process copies them.

mod stripes;

pub use stripes::{Changes, Counting, FLUSH, STRIPES, Stripes, WORDS};
