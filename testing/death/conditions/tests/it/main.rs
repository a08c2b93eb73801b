//! Conditions of machines: a file for each subject, in one program of tests, which is linked once.

mod full_disk;
mod judge;
mod matrix;
