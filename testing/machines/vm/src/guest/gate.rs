//! The ways past the gate, tried with protection keys that are sure to be there, and with an old kernel and a new one.

use crate::tests::Verdict;
use keyway_cache::{Cache, Options, Place};
use std::path::Path;

/// The library's file.
pub const LIBRARY: &str = "libkeyway_capi.so";

/// Each way's outcome is what the table says.
pub fn try_ways() -> Verdict {
    std::fs::create_dir_all("/run/cache").map_err(|e| format!("/run/cache: {e}"))?;
    let region = Path::new("/run/cache/region");
    // `keyway exec` makes none.
    Cache::open(&Place::at(region), &Options::new().memory(8 << 20)).map_err(|e| e.to_string())?;
    let library = Path::new(crate::image::PROGRAMS).join(LIBRARY);
    let trial = gate::trial::run(
        Path::new("/bin/keyway"),
        &library,
        Path::new("/bin/gate"),
        (region, region),
        &[],
    )?;
    crate::guest::println(&trial.said);
    if !trial.has_gate() {
        return Err(format!("there is no gate: {}", trial.said));
    }
    let differences = trial.differences(&gate::trial::table());
    if !differences.is_empty() {
        return Err(differences.join(" | "));
    }
    let stopped = trial.outcomes.values().filter(|stopped| **stopped).count();
    Ok(format!("{stopped} of {} ways are stopped", trial.outcomes.len()))
}
