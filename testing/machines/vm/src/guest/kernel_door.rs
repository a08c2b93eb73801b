//! The kernel door on the guest's kernel: what `cargo xtask kernel` tries in a kernel, tried there.

use crate::tests::Verdict;
use std::process::Command;

/// Random packets, of each family: a tenth of it in the kernel. Emulation is slow.
const PACKETS: &str = "20000";

/// Loads the programs for UDP and TCP, holds the tables of UDP, and sends real datagrams through veth and `lo`.
pub fn try_it() -> Verdict {
    // what a machine's boot does otherwise: the program is compiled to machine code
    std::fs::write("/proc/sys/net/core/bpf_jit_enable", "1").map_err(|e| format!("bpf_jit_enable: {e}"))?;
    let mut command = Command::new("kernel");
    command.args(["--in-kernel", "--packets", PACKETS]);
    let output = command.output().map_err(|e| format!("kernel: {e}"))?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    crate::guest::println(&format!("{said}{errors}"));
    let last = said.lines().last().unwrap_or_default().to_owned();
    if !output.status.success() || !last.ends_with(" 0 failed") {
        let failed: Vec<&str> = said.lines().filter(|line| line.starts_with("FAILED")).collect();
        return Err(format!("{}: {last} {}", output.status, failed.join(" | ")));
    }
    let of = |what: &str| said.lines().filter(|line| line.contains(what)).count();
    Ok(format!(
        "{last} on the guest's kernel, {} of them with real traffic: {}",
        of("traffic over"),
        said.lines().find(|line| line.contains("loading")).unwrap_or_default()
    ))
}
