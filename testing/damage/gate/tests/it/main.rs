//! The gate: a file for each subject, in one program of tests, which is linked once.

mod exec;
mod serve;
