//! What the linker has to know of the shared library: its name, that it stays once it is loaded, and that it needs a
//! libmemcached.so.11, which an empty library of that name stands for here.
#![allow(clippy::print_stdout, reason = "cargo listens to what a build script prints")]

use std::path::PathBuf;
use std::process::Command;

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo says where"));
    let empty = out.join("libmemcached.so");
    // Of the processor that is built for.
    let linker = std::env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    let mut gcc = Command::new(linker);
    gcc.args(["-shared", "-x", "c", "/dev/null", "-Wl,-soname,libmemcached.so.11", "-o"])
        .arg(&empty);
    assert!(gcc.status().is_ok_and(|status| status.success()), "{gcc:?} failed");
    for argument in [
        "-soname,libmemcachedutil.so.2",
        "-z,nodelete",
        "-rpath,$ORIGIN",
        "--no-as-needed",
    ] {
        println!("cargo::rustc-cdylib-link-arg=-Wl,{argument}");
    }
    println!("cargo::rustc-cdylib-link-arg={}", empty.display());
    println!("cargo::rerun-if-changed=build.rs");
}
