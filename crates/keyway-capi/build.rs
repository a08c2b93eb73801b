//! What the linker has to know of the shared library: its name, and that it stays once it is loaded.
#![allow(clippy::print_stdout, reason = "cargo listens to what a build script prints")]

fn main() {
    // The number rises with every change that programs have to be compiled again for.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libkeyway.so.0");
    // Threads that used it run its destructors when they end, which may be after a dlclose(3).
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rerun-if-changed=build.rs");
}
