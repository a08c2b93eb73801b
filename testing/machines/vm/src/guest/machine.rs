//! That the guest is the machine that the other tests take it for.

use crate::kernels::Version;
use crate::tests::Verdict;
use nix::sys::utsname::uname;

/// The kernel, its processors, and what they can do.
pub fn is_as_asked(version: Version) -> Verdict {
    let release = uname().map_err(|e| e.to_string())?.release().to_string_lossy().into_owned();
    if !release.starts_with(&format!("{}.", version.name())) {
        return Err(format!("this is Linux {release}, not {}", version.name()));
    }
    let cpus = std::thread::available_parallelism().map_err(|e| e.to_string())?;
    if cpus.get() != 2 {
        return Err(format!("{cpus} processors"));
    }
    let info = std::fs::read_to_string("/proc/cpuinfo").map_err(|e| e.to_string())?;
    let flags: Vec<&str> = info
        .lines()
        .find(|l| l.starts_with("flags"))
        .unwrap_or_default()
        .split(' ')
        .collect();
    for flag in ["pku", "ospke", "clwb"] {
        if !flags.contains(&flag) {
            return Err(format!("the processor has no {flag}"));
        }
    }
    let symbols = std::fs::read_to_string("/proc/kallsyms").map_err(|e| e.to_string())?;
    let has_mseal = symbols.lines().any(|line| line.ends_with(" __x64_sys_mseal"));
    if has_mseal != (version >= Version::V6_12) {
        return Err(format!("mseal: {has_mseal}"));
    }
    Ok(format!(
        "Linux {release}, {cpus} processors with pku and clwb, mseal: {has_mseal}"
    ))
}
