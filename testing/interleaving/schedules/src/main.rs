//! `cargo xtask schedules`: two or three threads on one tiny region, switched before any access to shared memory.
//!
//! The region is the real one, in private memory; built with `observe` it tells of every access before it is made, and there a
//! scheduler (shuttle: random, and PCT, Burckhardt et al. 2010) decides who goes on. Every schedule starts from the same image.
//! At its end no thread is left in the region, `check` passes, and the few calls on each key are linearizable. Memory is
//! sequentially consistent here: an ordering that is too weak is not seen.
//! Guards: P3, P42
#![allow(clippy::print_stdout, reason = "a command-line tool talks to its terminal")]

#[cfg(feature = "watched")]
mod copies;
#[cfg(feature = "watched")]
mod explore;
#[cfg(feature = "watched")]
mod preempt;
#[cfg(feature = "watched")]
mod scenarios;

#[cfg(feature = "watched")]
fn main() -> std::process::ExitCode {
    explore::main()
}

#[cfg(not(feature = "watched"))]
fn main() {
    println!("SKIP: built without the feature `watched` the region does not tell of its accesses; run `cargo xtask schedules`");
}
