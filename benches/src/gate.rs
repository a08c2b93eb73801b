//! Whether the regions of a benchmark have a gate: most of its figures differ with it.

use crate::machine;
use keyway_cache::{Cache, GateState, Options, Place};

/// One line about where the figures come from, and the gate. The gate is on where there are protection keys, unless `KEYWAY_GATE=off` is
/// in the environment. With `KEYWAY_GATE=on` a benchmark without a gate ends here, because its figures would be taken for those of one.
pub fn describe() -> String {
    let cache = Cache::open(&Place::Memfd, &Options::new().memory(2 << 20)).expect("a region in anonymous memory");
    let gate = cache.info().gate;
    if std::env::var("KEYWAY_GATE").is_ok_and(|asked| asked == "on") && gate != GateState::On {
        crate::report::say(format!(
            "KEYWAY_GATE=on, but the gate is {gate}: measure on a machine with protection keys"
        ));
        std::process::exit(2);
    }
    format!("{}, gate {gate}", machine::describe())
}
