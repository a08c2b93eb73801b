//! The stage `arm`: tests of the region, the library, the protocols and the server, built for arm64 and run under user-mode emulation
//! (qemu-user), with pages of 4, 16 and 64 KiB; then the packages for arm64, and the program in them.
//!
//! Emulation passes system calls on to this machine's kernel. So what it cannot do is left out, each with its reason in [`LEFT_OUT`]; tests
//! that start themselves as another process are not among [`TESTS`], because the kernel would have to know how to start a program for arm64.

use crate::run::{Context, Outcome};
use std::path::Path;
use std::process::Command;

const TARGET: &str = "aarch64-unknown-linux-gnu";
const EMULATOR: &str = "qemu-aarch64-static";
const COMPILER: &str = "aarch64-linux-gnu-gcc";
/// The C library for arm64 (Debian's libc6-dev-arm64-cross).
const LIBRARIES: &str = "/usr/aarch64-linux-gnu";

/// The crates whose unit tests run. Without their default features, which are the kernel door: emulation has no bpf(2).
const CRATES: [&str; 4] = ["keyway-region", "keyway-cache", "keyway-proto", "keyway-server"];

/// Integration tests that take seconds, and that emulation can do.
const TESTS: [&str; 6] = ["commands", "copying", "resize", "restart", "server", "slots"];

/// Those of them that also run with larger pages. The emulator cuts a mapping at the end of its file then, so no region can grow.
const TESTS_OF_PAGES: [&str; 3] = ["copying", "restart", "slots"];

/// Unit tests of what depends on the size of pages.
const UNITS_OF_PAGES: [&str; 3] = ["pages::", "limits::", "creation::"];

/// Unit tests that do not run, and why.
const LEFT_OUT: [(&str, &str); 13] = [
    (
        "datagrams_that_a_full_buffer_drops_are_counted",
        "the emulator does not know SO_MEMINFO (linux/sock_diag.h)",
    ),
    ("datagrams_that_were_dropped_are_those_of_all_sockets", "as the one before it"),
    (
        "a_mapping_can_have_huge_pages",
        "the emulator makes /proc/self/smaps up, without huge pages",
    ),
    (
        "descriptors_that_come_without_the_others_are_closed",
        "the emulator cuts what comes with a message off without saying so (recvmsg(2), MSG_CTRUNC)",
    ),
    (
        "pages_come_from_the_nodes_in_turn",
        "the emulator has no memory policies (get_mempolicy(2))",
    ),
    (
        "similar_keys_are_spread_evenly",
        "four million hashes: a minute and more, and the same numbers on every processor",
    ),
    (
        "what_a_client_sends_before_it_has_taken_its_answer_is_served_when_memory_is_tight",
        "the emulator has no io_uring(7)",
    ),
    (
        "requests_that_arrive_together_are_served_in_one_round_and_one_alone_is_answered_in_it",
        "as the one before it",
    ),
    (
        "what_the_ring_sends_is_charged_with_the_room_of_its_vector",
        "as the one before it",
    ),
    (
        "an_opening_waits_as_long_as_another_process_repairs",
        "the emulated processor cannot write a cache line back, so it has no durable regions",
    ),
    (
        "what_the_kernel_says_is_believed",
        "the emulator makes /proc/self/stat up, without the time at which the process started",
    ),
    (
        "a_child_does_not_drop_what_is_its_parents",
        "the emulator forgets MADV_WIPEONFORK (madvise(2)) and says that it is done",
    ),
    (
        "a_child_has_a_value_of_its_own_and_waits_for_no_thread_of_its_parent",
        "as the one before it",
    ),
];

/// Builds the tests once, and runs them with each size of pages.
pub fn run(context: &Context<'_>) -> Outcome {
    if let Some(why) = missing(context) {
        return Outcome::Skipped(why);
    }
    let left_out: Vec<&str> = LEFT_OUT.iter().flat_map(|(name, _)| ["--skip", *name]).collect();
    let all: Vec<&str> = TESTS.iter().flat_map(|name| ["--test", *name]).collect();
    let of_pages: Vec<&str> = TESTS_OF_PAGES.iter().flat_map(|name| ["--test", *name]).collect();
    let mut outcome = context.expect(tests(context, 4096, &[&["--lib"], &all[..], &["--"], &left_out].concat()));
    for page in [16384, 65536] {
        if outcome == Outcome::Passed {
            outcome = context.expect(tests(context, page, &of_pages));
        }
        if outcome == Outcome::Passed {
            outcome = context.expect(tests(context, page, &[&["--lib", "--"], &UNITS_OF_PAGES[..]].concat()));
        }
    }
    if outcome == Outcome::Passed {
        outcome = packages(context);
    }
    outcome
}

/// What packages contain. With the kernel door, as users get them.
const PACKAGED: [&str; 5] = [
    "keyway-cli",
    "keyway-capi",
    "keyway-libmemcached",
    "keyway-libmemcachedutil",
    "keyway-python",
];

/// Builds what packages contain, as `make deb ARCH=arm64` does, and runs the test that packs it.
fn packages(context: &Context<'_>) -> Outcome {
    let target = context.target.join("arm");
    let libraries = target.join("libraries");
    let mut fetch = context.command("packaging/arm64/libraries.sh", &[]);
    fetch.arg(&libraries);
    let mut build = cross(context, &["build", "--locked", "--target", TARGET]);
    build
        .args(PACKAGED.iter().flat_map(|name| ["--package", *name]))
        .env("PYO3_CROSS", "1")
        .env("LIBBPF_SYS_LIBRARY_PATH_aarch64_unknown_linux_gnu", libraries.join("lib"))
        .env(
            "LIBBPF_SYS_EXTRA_CFLAGS",
            format!("-I{}", libraries.join("include").display()),
        );
    // As the stage `test` has built it: for one package, its dependencies would have other features.
    let words = ["test", "--locked", "--workspace", "--test", "arm64", "--", "--ignored"];
    let mut test = context.command("cargo", &words);
    context.name_programs(&mut test);
    test.env("KEYWAY_TEST_PLACE", target.join(TARGET).join("debug"))
        .env("KEYWAY_TEST_ARGUMENT", libraries.join("lib"));
    // The program for this machine writes the manual.
    let mut outcome = context.build_all(&[]);
    for command in [fetch, build, test] {
        if outcome == Outcome::Passed {
            outcome = context.expect(command);
        }
    }
    outcome
}

/// cargo, for arm64, with a target directory of its own.
fn cross(context: &Context<'_>, arguments: &[&str]) -> Command {
    let mut command = context.command("cargo", arguments);
    command
        .env("CARGO_TARGET_DIR", context.target.join("arm"))
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", COMPILER)
        .env("CC_aarch64_unknown_linux_gnu", COMPILER);
    command
}

/// What is not installed.
fn missing(context: &Context<'_>) -> Option<String> {
    if cfg!(target_arch = "aarch64") {
        return Some("this machine is an arm64: the other stages are the test".into());
    }
    for (program, package) in [(EMULATOR, "qemu-user-static"), (COMPILER, "gcc-aarch64-linux-gnu")] {
        if !context.works(program, &["--version"]) {
            return Some(format!("no {program}; apt install {package}"));
        }
    }
    if !Path::new(LIBRARIES).join("lib/libc.so.6").exists() {
        return Some(format!("no C library in {LIBRARIES}; apt install libc6-dev-arm64-cross"));
    }
    let found = context
        .command("rustc", &["--print", "target-libdir", "--target", TARGET])
        .output();
    let folder = found
        .map(|found| String::from_utf8_lossy(&found.stdout).trim().to_owned())
        .unwrap_or_default();
    (!Path::new(&folder).is_dir()).then(|| format!("no Rust library for {TARGET}; rustup target add {TARGET}"))
}

/// `cargo test` of the crates for arm64. Other features would be resolved for fewer crates, so all are always named.
fn tests(context: &Context<'_>, page: u32, which: &[&str]) -> Command {
    let mut command = cross(context, &["test", "--locked", "--no-default-features", "--target", TARGET]);
    command.args(CRATES.iter().flat_map(|name| ["--package", *name])).args(which);
    let runner = format!("{EMULATOR} -L {LIBRARIES} -p {page}");
    command.env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", runner);
    command
}
