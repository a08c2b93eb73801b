//! What is tried in guests. A new test is a function beside the others in `guest/`, and a row of [`ALL`].

use crate::guest::{broken, gate, kernel_door, machine, pkeys};
use crate::kernels::Version;

/// What a test says when it is done, or what was wrong.
pub type Verdict = Result<String, String>;

/// Something to run in a guest.
pub struct Test {
    /// what it is called in the report and on the command line; no comma, colon or space
    pub name: &'static str,
    /// what it shows
    pub shows: &'static str,
    /// in a guest with this kernel; tests of the same kernel share one boot
    pub kernel: Version,
    /// programs that it starts: they are in the guest's `/bin`, with the libraries that they need
    pub programs: &'static [Program],
    /// modules that it needs; those that they need come with them
    pub modules: &'static [&'static str],
    /// must fail: what the frame itself is held to
    pub fails: Fails,
    /// does it, in a process of its own, as root, for at most [`crate::guest::LIMIT`]. The arguments are the trial's that ran it
    pub run: fn(&[String]) -> Verdict,
}

/// Whether a test is one that must fail, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fails {
    /// an honest test
    Never,
    /// one that must be reported as failed
    Always,
    /// one that takes the guest with it: the last of its boot
    WithGuest,
}

/// A program for a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// of the workspace: package and name, built as this program was
    Ours(&'static str, &'static str),
    /// a library of the workspace: package and file
    Library(&'static str, &'static str),
    /// of this machine
    System(&'static str),
}

/// The program `keyway`.
pub const KEYWAY: Program = Program::Ours("keyway-cli", "keyway");

/// What the gate's test starts.
const BEHIND_GATE: &[Program] = &[
    KEYWAY,
    Program::Ours("gate", "gate"),
    Program::Library("keyway-capi", gate::LIBRARY),
];

const NONE: Test = Test {
    name: "",
    shows: "",
    kernel: Version::V6_12,
    programs: &[],
    modules: &[],
    fails: Fails::Never,
    run: |_| Ok(String::new()),
};

/// All of them; those of a kernel run in this order.
pub const ALL: &[Test] = &[
    Test {
        name: "old-machine",
        shows: "the guest is what it should be: Linux 6.1",
        kernel: Version::V6_1,
        run: |_| machine::is_as_asked(Version::V6_1),
        ..NONE
    },
    Test {
        name: "machine",
        shows: "the guest is what it should be: Linux 6.12, with mseal and MDWE",
        run: |_| machine::is_as_asked(Version::V6_12),
        ..NONE
    },
    Test {
        name: "pkeys",
        shows: "protection keys work: an access that the key forbids faults with SEGV_PKUERR, in every thread",
        run: |_| pkeys::fault(),
        ..NONE
    },
    Test {
        name: "old-pkeys",
        shows: "the same on Linux 6.1",
        kernel: Version::V6_1,
        run: |_| pkeys::fault(),
        ..NONE
    },
    Test {
        name: "gate",
        shows: "every way past the gate is stopped, or open, as the table in docs/security.md says",
        programs: BEHIND_GATE,
        run: |_| gate::try_ways(),
        ..NONE
    },
    Test {
        name: "old-gate",
        shows: "the same on Linux 6.1, which has neither mseal nor MDWE",
        kernel: Version::V6_1,
        programs: BEHIND_GATE,
        run: |_| gate::try_ways(),
        ..NONE
    },
    Test {
        name: "kernel-door",
        shows: "on Linux 6.1 the kernel door's program loads, holds its tables, and answers real traffic",
        kernel: Version::V6_1,
        programs: &[Program::Ours("kernel", "kernel"), Program::System("ip")],
        modules: &["veth", "sch_ingress", "cls_bpf"],
        run: |_| kernel_door::try_it(),
        ..NONE
    },
    Test {
        name: "new-kernel-door",
        shows: "the same on Linux 6.12",
        programs: &[Program::Ours("kernel", "kernel"), Program::System("ip")],
        modules: &["veth", "sch_ingress", "cls_bpf"],
        run: |_| kernel_door::try_it(),
        ..NONE
    },
    Test {
        name: "says-no",
        shows: "a test that fails is reported",
        fails: Fails::Always,
        run: |_| Err("as it should".into()),
        ..NONE
    },
    Test {
        name: "panics",
        shows: "a test that panics is reported",
        fails: Fails::Always,
        run: |_| broken::panics(),
        ..NONE
    },
    Test {
        name: "dies",
        shows: "a test that dies is reported",
        fails: Fails::Always,
        run: |_| broken::dies(),
        ..NONE
    },
    Test {
        name: "hangs",
        shows: "a test that never ends is ended and reported",
        fails: Fails::Always,
        run: |_| broken::hangs(),
        ..NONE
    },
    Test {
        name: "stops-the-machine",
        shows: "a test that crashes the guest is reported",
        kernel: Version::V6_1,
        fails: Fails::WithGuest,
        run: |_| broken::stops_the_machine(),
        ..NONE
    },
];

/// The test of this name.
pub fn named(name: &str) -> Option<&'static Test> {
    ALL.iter().chain(crate::nvdimm::STEPS).find(|test| test.name == name)
}
