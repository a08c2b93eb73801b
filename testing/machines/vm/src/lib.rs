//! Tests that need another kernel, another processor or another kind of memory than this machine's: in guests of QEMU under
//! software emulation, which the tests start themselves.
//!
//! One program plays both sides. On the host it puts a guest together ([`image`], [`kernels`]), boots it ([`machine`]), reads what it
//! reports and judges ([`trial`], [`nvdimm`]). In the guest it is `/init` ([`guest`]): it runs what the kernel's command line names,
//! each in a process of its own, and reports by a serial line. What there is to run is one table, [`tests::ALL`].
//!
//! A guest has no network, no disk of the host's, and ends with its test, however that ends.

pub mod guest;
pub mod image;
pub mod kernels;
pub mod machine;
pub mod nvdimm;
pub mod tests;
pub mod trial;
pub mod writes;
