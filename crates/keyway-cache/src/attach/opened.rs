//! What a process has when it is attached, however it came about.

use crate::clock::Clock;
use crate::error::OpenError;
use crate::gate::GateState;
use crate::options::Options;
use crate::place::Place;
use crate::session::kernel::Doorway;
use crate::session::roster::Sessions;
use keyway_region::{Moment, Region};
use std::path::Path;
use std::sync::Arc;

/// A region that is attached, and how it came about.
pub(crate) struct Opened {
    pub sessions: Arc<Sessions>,
    /// where the region is mapped
    pub mapped: std::ops::Range<usize>,
    pub warm: bool,
    /// a region that was cut off by the end of a boot was at the place, and was discarded
    pub discarded: bool,
    /// whether what is in memory must be written back to outlive the machine's next boot
    pub on_disk: bool,
    pub place: Place,
    pub options: Options,
    pub doorway: Arc<Doorway>,
    pub gate: GateState,
}

/// If the time namespace of this process cannot be known, the process is taken to be in the initial one, provided that
/// its clock agrees with the region's.
pub(super) fn check_clock(region: &Region, clock: Clock, now: Moment, path: &Path) -> Result<(), OpenError> {
    const ERROR_MAX_S: u64 = 2;
    let error_s = region.clock().clock_error_s(now);
    if clock.is_known() || error_s <= ERROR_MAX_S {
        Ok(())
    } else {
        Err(OpenError::ClockUnknown {
            path: path.to_path_buf(),
            error_s,
        })
    }
}
