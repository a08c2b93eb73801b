//! What the linker has to know of the shared library: the name that programs are linked to, that it stays once it is loaded, and which
//! libraries it needs: libmemcached needs them, so programs have their functions by it. Empty libraries stand for them here.
#![allow(clippy::print_stdout, reason = "cargo listens to what a build script prints")]

use std::path::PathBuf;
use std::process::Command;

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo says where"));
    // Of the processor that is built for.
    let linker = std::env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    // Threads that used the library run its destructors when they end, which may be after a dlclose(3).
    for argument in ["-soname,libmemcached.so.11", "-z,nodelete", "--no-as-needed"] {
        println!("cargo::rustc-cdylib-link-arg=-Wl,{argument}");
    }
    // Debian's name of Cyrus SASL; packaging/rpm has Fedora's.
    for name in ["libhashkit.so.2", "libsasl2.so.2"] {
        let empty = out.join(name);
        let mut gcc = Command::new(&linker);
        gcc.args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(&empty);
        gcc.arg(format!("-Wl,-soname,{name}"));
        assert!(gcc.status().is_ok_and(|status| status.success()), "{gcc:?} failed");
        println!("cargo::rustc-cdylib-link-arg={}", empty.display());
    }
    println!("cargo::rerun-if-changed=build.rs");
}
