//! The kernel door for TCP, under tests that know nothing of it.

/// Whether `KEYWAY_TESTS_KERNEL_TCP` asks for Keyway's servers to have the kernel door on loopback.
pub fn has_kernel_door() -> bool {
    crate::is_set("KEYWAY_TESTS_KERNEL_TCP")
}

/// The arguments that make a `keyway serve` have it. Little memory, because the kernel keeps it resident and tests start many servers.
pub fn kernel_arguments() -> Vec<String> {
    match has_kernel_door() {
        true => ["--kernel", "lo", "--kernel-memory", "2m"].map(str::to_owned).to_vec(),
        false => Vec::new(),
    }
}
