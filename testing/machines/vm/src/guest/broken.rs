//! Tests that must fail: what the frame is held to in every run.

use crate::tests::Verdict;

/// Panics.
///
/// # Panics
///
/// Always.
pub fn panics() -> Verdict {
    panic!("as it should")
}

/// Dies by a signal.
pub fn dies() -> Verdict {
    std::process::abort()
}

/// Never ends.
pub fn hangs() -> Verdict {
    loop {
        std::thread::park();
    }
}

/// Takes the guest with it.
pub fn stops_the_machine() -> Verdict {
    // sysrq(8): `c` crashes the kernel
    std::fs::write("/proc/sysrq-trigger", "c").map_err(|e| e.to_string())?;
    Err("the kernel survived".into())
}
