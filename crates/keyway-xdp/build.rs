//! Compiles the program for BPF, and its headers for the host.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = "src/bpf/door.bpf.c";
const HOST: &str = "src/bpf/host.c";

fn main() {
    println!("cargo::rerun-if-changed=src/bpf");
    println!("cargo::rerun-if-env-changed=KEYWAY_CLANG");
    // Versions differ in what they make of the same source, and the verifier in what it accepts: this one is tested.
    let clang = env::var("KEYWAY_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    if env::var_os("CARGO_FEATURE_LOAD").is_some() {
        let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
        compile_for_bpf(&clang, &out.join("door.bpf.o"));
    }
    compile_for_host(&clang);
}

fn compile_for_bpf(clang: &str, object: &Path) {
    let machine = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the architecture");
    // Of the library that is linked: its build script tells where it put them.
    let libbpf = env::var("DEP_BPF_INCLUDE").expect("libbpf-sys tells where its headers are");
    let status = Command::new(clang)
        .args(["-target", "bpf", "-mcpu=v3", "-g", "-O2", "-Wall", "-Werror"])
        .arg(format!("-I{libbpf}"))
        .arg(format!("-I/usr/include/{machine}-linux-gnu"))
        .args(["-c", PROGRAM, "-o"])
        .arg(object)
        .status();
    let needs = format!("{PROGRAM} needs {clang} (KEYWAY_CLANG names another one) and Linux's headers");
    match status {
        Ok(status) => assert!(status.success(), "{needs}"),
        Err(error) => panic!("{needs}: {error}"),
    }
}

fn compile_for_host(clang: &str) {
    let mut host = cc::Build::new();
    host.file(HOST).warnings(true).extra_warnings(true);
    // Loop hints are for clang; callbacks have one form, whether they use their index or not.
    host.flag_if_supported("-Wno-unknown-pragmas").flag("-Wno-unused-parameter");
    if env::var_os("CARGO_CFG_FUZZING").is_some() {
        // As the fuzzer's Rust is compiled; what C leaves undefined ends the program.
        host.compiler(clang)
            .flag("-fsanitize=fuzzer-no-link,address,undefined")
            .flag("-fsanitize-trap=undefined");
    }
    host.compile("keyway_xdp_host");
}
