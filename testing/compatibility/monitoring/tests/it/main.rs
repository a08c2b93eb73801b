//! Metrics, as other programs take them: a file for each, in one program of tests, which is linked once.

mod exporter;
mod page;
mod port;
mod prometheus;
mod stopped;
mod sums;
