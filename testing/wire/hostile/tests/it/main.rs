//! Hostile peers: a file for each kind, in one program of tests, which is linked once.

mod clients;
mod http;
mod region;
mod seccomp;
