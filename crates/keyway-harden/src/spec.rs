//! What `keyway exec` asks of the library that it preloads: environment variables, taken out of the environment as they are read, so
//! that what the program starts is started as usual.
#![allow(unsafe_code, reason = "the environment, before main")]

use std::ffi::OsString;
use std::path::PathBuf;

/// The variables.
pub const PLACE: &str = "KEYWAY_EXEC_PLACE";
/// Words, separated by commas.
pub const WISHES: &str = "KEYWAY_EXEC_WISHES";
/// What LD_PRELOAD was before, if it was set.
pub const PRELOAD_BEFORE: &str = "KEYWAY_EXEC_PRELOAD";
/// The loader's.
pub const PRELOAD: &str = "LD_PRELOAD";

/// What is asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    /// the region's file, or the server's region socket
    pub place: PathBuf,
    /// stray instructions end it, and no code may be mapped later
    pub strict_scan: bool,
    /// memory may be written and then executed
    pub allow_jit: bool,
    /// say more
    pub verbose: bool,
}

impl Spec {
    /// The variables to be set.
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        let wishes = [
            ("strict-scan", self.strict_scan),
            ("allow-jit", self.allow_jit),
            ("verbose", self.verbose),
        ];
        let wishes: Vec<&str> = wishes.into_iter().filter(|(_, on)| *on).map(|(word, _)| word).collect();
        vec![(PLACE, self.place.clone().into()), (WISHES, wishes.join(",").into())]
    }

    /// What the variables say. `None`: nothing is asked for.
    fn of(place: Option<OsString>, wishes: Option<OsString>) -> Option<Self> {
        let wishes = wishes.unwrap_or_default();
        let wishes = wishes.to_string_lossy();
        let has = |word| wishes.split(',').any(|one| one == word);
        Some(Self {
            place: place?.into(),
            strict_scan: has("strict-scan"),
            allow_jit: has("allow-jit"),
            verbose: has("verbose"),
        })
    }

    /// Reads the variables and takes them away; LD_PRELOAD becomes what it was.
    pub(crate) fn taken() -> Option<Self> {
        let spec = Self::of(std::env::var_os(PLACE), std::env::var_os(WISHES))?;
        let before = std::env::var_os(PRELOAD_BEFORE);
        // SAFETY: called before `main`, while there is one thread.
        unsafe {
            match before {
                Some(before) => std::env::set_var(PRELOAD, before),
                None => std::env::remove_var(PRELOAD),
            }
            for name in [PLACE, WISHES, PRELOAD_BEFORE] {
                std::env::remove_var(name);
            }
        }
        Some(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_is_read() {
        for n in 0..8 {
            let spec = Spec {
                place: "/dev/shm/region".into(),
                strict_scan: n & 1 != 0,
                allow_jit: n & 2 != 0,
                verbose: n & 4 != 0,
            };
            let [place, wishes] = <[_; 2]>::try_from(spec.variables()).unwrap();
            assert_eq!(Spec::of(Some(place.1), Some(wishes.1)), Some(spec));
        }
        assert_eq!(Spec::of(None, Some("strict-scan".into())), None);
    }
}
