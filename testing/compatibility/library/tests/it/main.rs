//! The library from other languages: a file for each subject, in one program of tests, which is linked once.

mod neighbours;
mod python;
mod readme;
mod storm;
