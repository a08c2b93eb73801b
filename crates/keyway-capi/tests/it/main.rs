//! The library for C: a file for each subject, in one program, which is linked once.

mod c;
mod common;
mod handout;
mod header;
mod install;
