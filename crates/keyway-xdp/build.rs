//! Compiles the program for BPF, and its headers for the host.

use std::env;
use std::path::PathBuf;

use libbpf_cargo::SkeletonBuilder;

const SOURCE: &str = "src/bpf/door.bpf.c";

fn main() {
    println!("cargo::rerun-if-changed=src/bpf");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let machine = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the architecture");
    // Versions differ in what they make of the same source, and the verifier in what it accepts: this one is tested.
    let clang = env::var("KEYWAY_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    println!("cargo::rerun-if-env-changed=KEYWAY_CLANG");
    SkeletonBuilder::new()
        .source(SOURCE)
        .obj(out.join("door.bpf.o"))
        .clang(&clang)
        .clang_args(["-mcpu=v3", "-Wall", "-Werror", &format!("-I/usr/include/{machine}-linux-gnu")])
        .build()
        .unwrap_or_else(|error| {
            panic!("{SOURCE}: {error:#}\nit needs {clang} and Linux's headers (linux-libc-dev); KEYWAY_CLANG names another clang")
        });
    let mut host = cc::Build::new();
    host.file("src/bpf/host.c").warnings(true).extra_warnings(true);
    // Loop hints are for clang; callbacks have one form, whether they use their index or not.
    host.flag_if_supported("-Wno-unknown-pragmas").flag("-Wno-unused-parameter");
    if env::var_os("CARGO_CFG_FUZZING").is_some() {
        host.compiler(clang).flag("-fsanitize=address,undefined");
    }
    host.compile("keyway_xdp_host");
}
