//! Packages: a file for each kind, in one program of tests, which is linked once.

mod arm64;
mod debian;
mod image;
mod kubernetes;
mod rpm;
mod upgrade;
