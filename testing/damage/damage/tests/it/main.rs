//! Damaged regions: a file for each subject, in one program of tests, which is linked once.

mod check;
mod damage;
