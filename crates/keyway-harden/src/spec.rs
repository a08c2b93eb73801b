//! What `keyway exec` requests from the library that it preloads. The requests are environment variables. They are
//! removed from the environment when they are read, so that programs which this program starts are started as usual.
#![allow(unsafe_code, reason = "the environment, before main")]

use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// The variables.
pub const PLACE: &str = "KEYWAY_EXEC_PLACE";
/// The library that has to do it: other loaded libraries contain this code too.
pub const LIBRARY: &str = "KEYWAY_EXEC_LIBRARY";
/// Words, separated by commas.
pub const WISHES: &str = "KEYWAY_EXEC_WISHES";
/// The value of LD_PRELOAD before, if it was set.
pub const PRELOAD_BEFORE: &str = "KEYWAY_EXEC_PRELOAD";
/// The loader's variable.
pub const PRELOAD: &str = "LD_PRELOAD";

/// The request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spec {
    /// the region's file, or the server's region socket
    pub place: PathBuf,
    /// the file of the library that is preloaded
    pub library: PathBuf,
    /// the region's file may belong to another user
    pub any_owner: bool,
    /// end the program if it contains stray instructions, and let no code be mapped later
    pub strict_scan: bool,
    /// memory may be written and then executed
    pub allow_jit: bool,
    /// modes, owners and extended attributes of files may be changed
    pub allow_chmod: bool,
    /// print more
    pub verbose: bool,
}

impl Spec {
    /// The variables to set.
    pub fn variables(&self) -> Vec<(&'static str, OsString)> {
        let wishes = [
            ("any-owner", self.any_owner),
            ("strict-scan", self.strict_scan),
            ("allow-jit", self.allow_jit),
            ("allow-chmod", self.allow_chmod),
            ("verbose", self.verbose),
        ];
        let wishes: Vec<&str> = wishes.into_iter().filter(|(_, on)| *on).map(|(word, _)| word).collect();
        vec![
            (PLACE, self.place.clone().into()),
            (LIBRARY, self.library.clone().into()),
            (WISHES, wishes.join(",").into()),
        ]
    }

    /// Parses the variables. `None`: nothing is requested.
    fn of(place: Option<OsString>, library: Option<OsString>, wishes: Option<OsString>) -> Option<Self> {
        let wishes = wishes.unwrap_or_default();
        let wishes = wishes.to_string_lossy();
        let has = |word| wishes.split(',').any(|one| one == word);
        Some(Self {
            place: place?.into(),
            library: library?.into(),
            any_owner: has("any-owner"),
            strict_scan: has("strict-scan"),
            allow_jit: has("allow-jit"),
            allow_chmod: has("allow-chmod"),
            verbose: has("verbose"),
        })
    }

    /// Reads the variables and removes them, if they are for this library. LD_PRELOAD gets its previous value.
    pub(crate) fn taken(is_own: impl FnOnce(&Path) -> Result<bool, String>) -> Result<Option<Self>, String> {
        let [place, library, wishes] = [PLACE, LIBRARY, WISHES].map(std::env::var_os);
        let Some(spec) = Self::of(place, library, wishes) else {
            return Ok(None);
        };
        if !is_own(&spec.library)? {
            return Ok(None);
        }
        let before = std::env::var_os(PRELOAD_BEFORE);
        // SAFETY: called before `main`, while there is one thread.
        unsafe {
            match before {
                Some(before) => std::env::set_var(PRELOAD, before),
                None => std::env::remove_var(PRELOAD),
            }
            for name in [PLACE, LIBRARY, WISHES, PRELOAD_BEFORE] {
                std::env::remove_var(name);
            }
        }
        Ok(Some(spec))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_what_is_read() {
        for n in 0..16 {
            let spec = Spec {
                place: "/dev/shm/region".into(),
                library: "/usr/lib/libkeyway.so.0".into(),
                strict_scan: n & 1 != 0,
                allow_jit: n & 2 != 0,
                allow_chmod: n & 8 != 0,
                verbose: n & 4 != 0,
                any_owner: n & 8 != 0,
            };
            let [place, library, wishes] = <[_; 3]>::try_from(spec.variables()).unwrap();
            assert_eq!(Spec::of(Some(place.1), Some(library.1), Some(wishes.1)), Some(spec));
        }
        assert_eq!(Spec::of(None, None, Some("strict-scan".into())), None);
    }
}
