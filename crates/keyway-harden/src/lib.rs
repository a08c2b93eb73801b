//! The part of `keyway exec` in the program that it starts. It runs before `main`, attaches to the region, and closes the
//! ways past the gate that an unmodified kernel lets a process close for itself.
//!
//! The program `keyway` describes in environment variables ([`spec`]) what is wanted, and preloads a library that calls
//! [`at_start`]: libkeyway, or another one that contains the cache. `docs/security.md` lists what is stopped by which
//! means, and what is not stopped.
//!
//! [`confine`] is a separate matter: the rights that a server gives up once it serves.
//!
//! # Safety
//!
//! The `unsafe` here is system calls on this process itself, and its environment, before `main`, when there is one thread.
#![allow(unsafe_code, reason = "prctl, close and the environment; contract above")]

mod calls;
pub mod confine;
mod files;
pub mod scan;
pub mod spec;

use keyway_cache::server::ServerCache as _;
use keyway_cache::{Cache, Gate, GateState, Options, Owners, Place};
use spec::Spec;
use std::io::Write;
use std::os::fd::RawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The exit code of a program that could not be hardened as requested (sysexits.h, EX_OSERR).
const FAILED: i32 = 71;
/// prctl(2).
const PR_SET_MDWE: libc::c_int = 65;
const PR_MDWE_REFUSE_EXEC_GAIN: libc::c_ulong = 1;

/// Has [`at_start`] called when the library or program that contains this is loaded. Use it once, at the top of a crate.
///
/// The dynamic loader calls the functions that this section lists, before `main` (elf(5), DT_INIT_ARRAY).
#[macro_export]
macro_rules! hardened_at_start {
    () => {
        const _: () = {
            #[used]
            #[unsafe(link_section = ".init_array")]
            static AT_START: extern "C" fn() = at_start;

            extern "C" fn at_start() {
                $crate::at_start((at_start as extern "C" fn()) as usize);
            }
        };
    };
}

/// Does what `keyway exec` has requested, if it has requested it from this library. Call it when the library is loaded,
/// with an address in its code.
pub fn at_start(own: usize) {
    let done = Spec::taken(|library| is_file_of(library, own)).and_then(|spec| match spec {
        Some(spec) => harden(&spec, own),
        None => Ok(()),
    });
    if let Err(why) = done {
        say(&format!("{why}; the program is not started"));
        // SAFETY: ends the process.
        unsafe { libc::_exit(FAILED) };
    }
}

/// Whether the code at this address is from that file. A program that is started under `keyway exec` cannot find this
/// out, and cannot be hardened again.
fn is_file_of(library: &Path, own: usize) -> Result<bool, String> {
    let maps = std::fs::read_to_string("/proc/self/maps")
        .map_err(|e| format!("/proc/self/maps: {e}: it is started under another keyway exec, or there is no /proc"))?;
    let mapped = maps
        .lines()
        .filter_map(scan::parse)
        .find(|mapped| mapped.range.contains(&own));
    let identity = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    Ok(mapped.is_some_and(|mapped| identity(Path::new(mapped.name)).is_some_and(|found| identity(library) == Some(found))))
}

/// Prints a line for the user who has started the program.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "keyway exec: {line}");
}

fn harden(spec: &Spec, own: usize) -> Result<(), String> {
    let threads = std::fs::read_dir("/proc/self/task").map_or(0, Iterator::count);
    if threads != 1 {
        return Err(format!(
            "there are {threads} threads before main: a library has started them, and they could not be hardened"
        ));
    }
    let cache = attach(spec)?;
    match cache.info().gate {
        GateState::On => {}
        GateState::Off => say("there is no gate, because it was not asked for; all else is done"),
        GateState::Unavailable(why) => say(&format!("there is no gate: {why}; all else is done")),
        other => say(&format!("there is no gate ({other}); all else is done")),
    }
    if spec.verbose {
        let mapped = cache.mapped();
        say(&format!("the region is mapped at {:x}-{:x}", mapped.start, mapped.end));
    }
    scan_code(spec, own)?;
    let region = region_file(&cache)?;
    close_descriptors(&region);
    let mut wishes = calls::Wishes {
        unsealed: None,
        new_code: spec.strict_scan,
        rights: !spec.allow_chmod,
    };
    if let Err(e) = cache.seal() {
        say(&format!(
            "the mapping is not sealed (mseal: {e}; Linux has it from 6.10 on): seccomp refuses what names an address in it"
        ));
        wishes.unsealed = Some(cache.mapped());
    }
    cache.make_resident();
    forbid_executable_gain(spec);
    // SAFETY: prctl(2) with numbers.
    unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
    if !files::close(&region.path.into_iter().collect::<Vec<_>>())? {
        say("this kernel has no Landlock: /proc/self/mem and the region's file can be opened");
    }
    calls::install_filters(&wishes)
}

/// Opens the region as `keyway_open` would, but keeps no descriptor that could read or write it.
fn attach(spec: &Spec) -> Result<Cache, String> {
    let place = Place::at(&spec.place);
    let options = Options::new()
        .sealed(true)
        .gate(Gate::WherePossible)
        .owners(if spec.any_owner { Owners::Any } else { Owners::AsNamed });
    Cache::open(&place, &options).map_err(|e| e.to_string())
}

fn scan_code(spec: &Spec, own: usize) -> Result<(), String> {
    let found = scan::process(own).map_err(|e| format!("the code cannot be scanned: /proc/self/maps: {e}"))?;
    let (known, stray): (Vec<_>, Vec<_>) = found.iter().partition(|one| one.is_of_c_library());
    let names = |list: &[&scan::Finding]| list.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    if spec.strict_scan && !stray.is_empty() {
        return Err(format!(
            "code that could open the gate is mapped, and --strict-scan does not allow it: {}",
            names(&stray)
        ));
    }
    if !stray.is_empty() {
        say(&format!("code that could open the gate, if jumped to: {}", names(&stray)));
    }
    if spec.verbose && !known.is_empty() {
        say(&format!("the C library's own: {}", names(&known)));
    }
    Ok(())
}

/// The file of the region.
struct RegionFile {
    device: u64,
    inode: u64,
    /// its name here, if it has one
    path: Option<PathBuf>,
}

fn region_file(cache: &Cache) -> Result<RegionFile, String> {
    let (device, inode) = cache.identity().map_err(|e| e.to_string())?;
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|e| format!("/proc/self/maps: {e}"))?;
    let start = cache.mapped().start;
    let name = maps
        .lines()
        .filter_map(scan::parse)
        .find(|m| m.range.start == start)
        .map(|m| m.name.to_owned());
    let path = name
        .map(PathBuf::from)
        .filter(|path| std::fs::metadata(path).is_ok_and(|meta| (meta.dev(), meta.ino()) == (device, inode)));
    if let Some(path) = &path
        && std::fs::metadata(path).is_ok_and(|meta| meta.nlink() > 1)
    {
        say(&format!("{} has other names (hard links), which stay open", path.display()));
    }
    Ok(RegionFile { device, inode, path })
}

/// Closes inherited descriptors that lead to the region, to its stripes, or to a process's memory.
fn close_descriptors(region: &RegionFile) {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else {
        return;
    };
    let numbers: Vec<RawFd> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    for number in numbers {
        let link = format!("/proc/self/fd/{number}");
        let target = std::fs::read_link(&link).unwrap_or_default();
        let target = target.to_string_lossy();
        let is_region = std::fs::metadata(&link).is_ok_and(|meta| (meta.dev(), meta.ino()) == (region.device, region.inode));
        let is_memory = target.starts_with("/proc/") && target.ends_with("/mem");
        // SAFETY: fcntl(2) with a number.
        let mode = unsafe { libc::fcntl(number, libc::F_GETFL) } & libc::O_ACCMODE;
        // The library's own descriptor can neither read nor write.
        let is_harmless = is_region && mode == libc::O_ACCMODE;
        if (is_region && !is_harmless) || is_memory || target.starts_with("anon_inode:bpf") {
            say(&format!("descriptor {number} ({target}) leads past the gate: closed"));
            // SAFETY: a descriptor that the program inherited; the program does not run yet.
            unsafe { libc::close(number) };
        }
    }
}

fn forbid_executable_gain(spec: &Spec) {
    if spec.allow_jit {
        return;
    }
    // SAFETY: prctl(2) with numbers.
    let done = unsafe { libc::prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) };
    if done != 0 {
        say("memory can be written and then executed (PR_SET_MDWE: Linux has it from 6.3 on)");
    }
}
