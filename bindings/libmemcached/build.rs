//! What the linker has to know of the shared library: the name that programs are linked to, and that it stays once it is loaded.
#![allow(clippy::print_stdout, reason = "cargo listens to what a build script prints")]

fn main() {
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmemcached.so.11");
    // Threads that used it run its destructors when they end, which may be after a dlclose(3).
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
