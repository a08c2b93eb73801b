//! Servers to measure: those of `keyway-bench`, and where the program `keyway` is.

use std::io;
use std::path::{Path, PathBuf};

pub use keyway_bench::servers::{Server, Settings, memcached_path, memcached_version};

/// The program that `cargo build --release` made, or what `KEYWAY_BIN` names.
pub fn keyway_path() -> io::Result<PathBuf> {
    if let Some(named) = std::env::var_os("KEYWAY_BIN") {
        return Ok(named.into());
    }
    // This is target/release/deps/network-0123456789abcdef.
    let me = std::env::current_exe()?;
    let beside = me.parent().and_then(Path::parent).map(|release| release.join("keyway"));
    match beside.filter(|p| p.is_file()) {
        Some(found) => Ok(found),
        None => Err(io::Error::other(
            "no keyway beside this program: cargo build --release first, or name it in KEYWAY_BIN",
        )),
    }
}
