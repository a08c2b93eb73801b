//! What the linker has to know of the shared library: the name that programs are linked to, that it stays once it is loaded, and which
//! libraries it needs: libmemcached needs them, so programs have their functions by it. Libraries of functions without code stand for
//! them here.
#![allow(clippy::print_stdout, reason = "cargo listens to what a build script prints")]

use std::path::PathBuf;
use std::process::Command;

/// The functions of libhashkit that the drop-in calls.
const HASHKIT: &[&str] = &[
    "hashkit_create",
    "hashkit_clone",
    "hashkit_free",
    "hashkit_set_function",
    "hashkit_set_distribution_function",
    "hashkit_get_function",
    "hashkit_get_distribution_function",
    "hashkit_digest",
    "libhashkit_digest",
    "libhashkit_string_hash",
];

fn main() {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo says where"));
    // Of the processor that is built for.
    let linker = std::env::var_os("RUSTC_LINKER").unwrap_or_else(|| "cc".into());
    // Threads that used the library run its destructors when they end, which may be after a dlclose(3).
    for argument in ["-soname,libmemcached.so.11", "-z,nodelete", "--no-as-needed"] {
        println!("cargo::rustc-cdylib-link-arg=-Wl,{argument}");
    }
    // Debian's name of Cyrus SASL; packaging/rpm has Fedora's.
    for (name, functions) in [("libhashkit.so.2", HASHKIT), ("libsasl2.so.2", &[][..])] {
        let (source, library) = (out.join(format!("{name}.c")), out.join(name));
        let functions: String = functions
            .iter()
            .map(|function| format!("void {function}(void) {{}}\n"))
            .collect();
        std::fs::write(&source, functions).expect("cargo gives a folder");
        let mut gcc = Command::new(&linker);
        gcc.args(["-shared", "-o"]).arg(&library).arg(&source);
        gcc.arg(format!("-Wl,-soname,{name}"));
        assert!(gcc.status().is_ok_and(|status| status.success()), "{gcc:?} failed");
        // The tests of the crate are linked too.
        println!("cargo::rustc-link-arg={}", library.display());
    }
    println!("cargo::rerun-if-changed=build.rs");
}
