//! Files that lead past the gate. Landlock (landlock(7)) makes them inaccessible: the region's own file, and what /proc
//! has of processes (their memory, and their descriptors).
//!
//! Landlock knows only what is allowed. So everything is allowed, entry by entry, except the folders on the path to a
//! closed file. Such a folder can be listed, and the entries that it has at this moment can be used; new files cannot be
//! made in it.

use landlock::{
    ABI, Access, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetStatus,
};
use std::path::{Path, PathBuf};

/// The newest rights that are requested. An older kernel grants those that it has.
const NEWEST: ABI = ABI::V5;

/// Whether a path is closed, leads to a closed one, or is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Closed,
    Leads,
    Free,
}

/// Decides about a path. `closed` are whole paths.
fn judge(path: &Path, closed: &[PathBuf]) -> Verdict {
    if path == Path::new("/proc") {
        return Verdict::Leads;
    }
    if let Ok(below) = path.strip_prefix("/proc")
        && let Some(first) = below.iter().next().and_then(|name| name.to_str())
        && (matches!(first, "self" | "thread-self") || first.bytes().all(|b| b.is_ascii_digit()))
    {
        return Verdict::Closed;
    }
    if closed.iter().any(|one| one == path) {
        Verdict::Closed
    } else if closed.iter().any(|one| one.starts_with(path)) {
        Verdict::Leads
    } else {
        Verdict::Free
    }
}

/// Everything that is free below `folder`, as few paths as possible. A link is not followed: its target is examined under
/// its own path.
fn free_below(folder: &Path, closed: &[PathBuf], free: &mut Vec<PathBuf>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
            continue;
        }
        match judge(&path, closed) {
            Verdict::Closed => {}
            Verdict::Leads => free_below(&path, closed, free),
            Verdict::Free => free.push(path),
        }
    }
}

/// Closes these files to the calling thread and to all that it starts. `false`: this kernel has no Landlock.
pub(crate) fn close(closed: &[PathBuf]) -> Result<bool, String> {
    let mut free = Vec::new();
    free_below(Path::new("/"), closed, &mut free);
    let failed = |e: &dyn std::fmt::Display| format!("Landlock: {e}");
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(NEWEST))
        .and_then(Ruleset::create)
        .map_err(|e| failed(&e))?;
    let mut ruleset = allow(ruleset, Path::new("/"), AccessFs::ReadDir.into())?;
    for path in &free {
        let rights = if path.is_dir() {
            AccessFs::from_all(NEWEST)
        } else {
            AccessFs::from_file(NEWEST)
        };
        ruleset = allow(ruleset, path, rights)?;
    }
    let status = ruleset.restrict_self().map_err(|e| failed(&e))?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

fn allow(ruleset: RulesetCreated, path: &Path, rights: landlock::BitFlags<AccessFs>) -> Result<RulesetCreated, String> {
    match PathFd::new(path) {
        Ok(opened) => ruleset
            .add_rule(PathBeneath::new(opened, rights))
            .map_err(|e| format!("Landlock: {}: {e}", path.display())),
        // It has disappeared since it was listed, or this process may not open it: then it needs no permission.
        Err(_) => Ok(ruleset),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_closed_and_what_leads_there() {
        let closed = [PathBuf::from("/dev/shm/region")];
        for (path, verdict) in [
            ("/usr", Verdict::Free),
            ("/dev", Verdict::Leads),
            ("/dev/null", Verdict::Free),
            ("/dev/shm", Verdict::Leads),
            ("/dev/shm/other", Verdict::Free),
            ("/dev/shm/region", Verdict::Closed),
            ("/proc", Verdict::Leads),
            ("/proc/cpuinfo", Verdict::Free),
            ("/proc/self", Verdict::Closed),
            ("/proc/1", Verdict::Closed),
        ] {
            assert_eq!(judge(Path::new(path), &closed), verdict, "{path}");
        }
    }

    #[test]
    fn what_is_free_does_not_contain_what_is_closed() {
        let closed = [PathBuf::from("/usr/bin/env")];
        let mut free = Vec::new();
        free_below(Path::new("/"), &closed, &mut free);
        assert!(free.iter().all(|path| !closed[0].starts_with(path)), "{free:?}");
        assert!(free.contains(&PathBuf::from("/usr/lib")) || free.contains(&PathBuf::from("/usr/share")));
    }
}
