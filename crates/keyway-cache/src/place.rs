//! Where a region is: in memory, at a path, or at a server. A name may also be the address of a server that the caller had in mind.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// Where a region is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// in anonymous memory of this process; it is lost when the process ends
    Memfd,
    /// in a file: on tmpfs (`/dev/shm`), hugetlbfs or any other file system
    Path(PathBuf),
    /// at a server, which hands it out through this Unix socket (`keyway serve --region-socket`): it exists already, and
    /// keeps its size
    Socket(PathBuf),
}

impl Place {
    /// The place at this path: a server's region socket if it is a socket, otherwise a region's file, which may be created.
    pub fn at(path: impl Into<PathBuf>) -> Self {
        use std::os::unix::fs::FileTypeExt;
        let path = path.into();
        match std::fs::metadata(&path) {
            Ok(meta) if meta.file_type().is_socket() => Self::Socket(path),
            _ => Self::Path(path),
        }
    }

    /// Whether no file is at this place and its name looks like the address of a server: `Cache::open` then refuses it
    /// ([`OpenError::Address`](crate::OpenError::Address)), and a binding may refuse it earlier.
    pub fn names_a_server(&self) -> bool {
        match self {
            Self::Path(path) => is_address(path) && !path.exists(),
            Self::Memfd | Self::Socket(_) => false,
        }
    }

    /// The place by a name that stays correct when this process changes its directory.
    pub(crate) fn whole(&self) -> Self {
        match self {
            Self::Memfd => Self::Memfd,
            Self::Path(path) => Self::Path(whole_path(path)),
            Self::Socket(path) => Self::Socket(whole_path(path)),
        }
    }

    /// The socket at which the server of the place's region is asked for connections, if it is known.
    pub(crate) fn socket(&self) -> Option<&Path> {
        match self {
            Self::Socket(path) => Some(path),
            Self::Path(_) | Self::Memfd => None,
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memfd => f.write_str("memfd"),
            Self::Path(path) | Self::Socket(path) => path.display().fmt(f),
        }
    }
}

/// The path, whatever the working directory is later.
pub(crate) fn whole_path(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

/// The folder of default places: memory that outlives a process, present on every Linux.
pub const SHARED_MEMORY: &str = "/dev/shm";

/// What the names of records begin with. The user's number and the address follow.
pub(crate) const RECORD_PREFIX: &str = "keyway-at-";

/// Whether a file is at the default place of a region, by its name.
pub fn is_default_place(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.parent() == Some(Path::new(SHARED_MEMORY)) && name.starts_with("keyway-") && !is_record(path)
}

/// The files at default places, in order: their names say for which user and server they are.
pub(crate) fn at_default_places() -> Vec<PathBuf> {
    let files = std::fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten();
    let is_file = |entry: &std::fs::DirEntry| entry.file_type().is_ok_and(|kind| kind.is_file());
    let mut there: Vec<PathBuf> = files.filter(is_file).map(|entry| entry.path()).collect();
    there.retain(|path| is_default_place(path));
    there.sort();
    there
}

/// Whether a file in the folder of default places is a record, by its name.
pub fn is_record(path: &Path) -> bool {
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    path.parent() == Some(Path::new(SHARED_MEMORY)) && name.starts_with(RECORD_PREFIX)
}

/// Whether memcached's clients name a server like this: `localhost`, an IP address, or a host and a port. A path with a
/// folder is not an address.
fn is_address(path: &Path) -> bool {
    let Some(text) = path.to_str().filter(|text| !text.contains('/')) else {
        return false;
    };
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if bare.parse::<IpAddr>().is_ok() || text.parse::<SocketAddr>().is_ok() || text.eq_ignore_ascii_case("localhost") {
        return true;
    }
    text.rsplit_once(':').is_some_and(|(host, port)| {
        let is_host = host
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b".-_*".contains(&byte));
        is_host && port.parse::<u16>().is_ok()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_servers_are_told_from_paths() {
        for text in [
            "127.0.0.1:11211",
            "127.0.0.1",
            "::1",
            "[::1]",
            "[::1]:11211",
            "localhost",
            "Localhost:11211",
            "cache-1.example.org:11211",
            ":11211",
            "*:11211",
        ] {
            assert!(is_address(Path::new(text)), "{text}");
        }
        for text in [
            "/dev/shm/keyway-0-11211",
            "./localhost",
            "region",
            "region.sock",
            "localhost:memcached",
            "cache:99999",
            "a b:1",
            "/run/a:11211",
            "127.0.0.1:11211/region",
            "",
        ] {
            assert!(!is_address(Path::new(text)), "{text}");
        }
    }
}
