//! Compiles the program for BPF, and its headers for the host.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

const PROGRAM: &str = "src/bpf/door.bpf.c";
const HOST: &str = "src/bpf/host.c";

fn main() {
    println!("cargo::rerun-if-changed=src/bpf");
    println!("cargo::rerun-if-env-changed=KEYWAY_CLANG");
    // Compiler versions produce different code from the same source, and the verifier may refuse it: this version is tested.
    let clang = env::var("KEYWAY_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    if env::var_os("CARGO_FEATURE_LOAD").is_some() {
        let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
        let machine = env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the architecture");
        // Of the processors that Linux has a compiler of BPF for, only x86 is known to load in the program's order.
        let loads_in_order = machine == "x86_64";
        compile_for_bpf(&clang, &machine, loads_in_order, &out.join("door.bpf.o"));
        // For a test: so the verifier sees it here, too.
        compile_for_bpf(&clang, &machine, false, &out.join("door.reordered.bpf.o"));
    }
    compile_for_host(&clang);
}

/// `loads_in_order`: the processor that runs the program executes its loads in their order (`kw_read_barrier`).
fn compile_for_bpf(clang: &str, machine: &str, loads_in_order: bool, object: &Path) {
    // The headers of the library that is linked; its build script says where they are.
    let libbpf = env::var("DEP_BPF_INCLUDE").expect("libbpf-sys tells where its headers are");
    let status = Command::new(clang)
        .arg(format!("-DKW_LOADS_IN_ORDER={}", u8::from(loads_in_order)))
        .args(["-target", "bpf", "-mcpu=v3", "-g", "-O2", "-Wall", "-Werror"])
        .arg(format!("-I{libbpf}"))
        .arg(format!("-I/usr/include/{machine}-linux-gnu"))
        // Where Debian's compilers for another processor have them.
        .arg(format!("-idirafter/usr/{machine}-linux-gnu/include"))
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
    // Loop pragmas are for clang only, and all callbacks have the same parameters, whether they use the index or not.
    host.flag_if_supported("-Wno-unknown-pragmas").flag("-Wno-unused-parameter");
    if env::var_os("CARGO_CFG_FUZZING").is_some() {
        // Compiled like the fuzzer's Rust; undefined behaviour in C ends the program.
        host.compiler(clang)
            .flag("-fsanitize=fuzzer-no-link,address,undefined")
            .flag("-fsanitize-trap=undefined");
    }
    host.compile("keyway_xdp_host");
}
