//! The default place of a region, and how commands open one.

use keyway_cache::server::ServerCache as _;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use keyway_cache::server::{SHARED_MEMORY, Watched, handed_out};
use keyway_cache::{Cache, OpenError, Options, Owners, Place};
use nix::fcntl::OFlag;
use nix::libc::ENXIO;
use nix::unistd::geteuid;

use crate::exit::{self, Failure};
use crate::regions;

/// memcached's port.
pub(crate) const DEFAULT_PORT: u16 = 11211;

/// Names the region of commands that are given none.
pub(crate) const VARIABLE: &str = "KEYWAY_REGION";

/// The region of a command: the one at `path`, or else of the server on `port`, or that the environment names, or the default one.
pub(crate) fn chosen(path: Option<PathBuf>, port: Option<u16>) -> PathBuf {
    let variable = || std::env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    path.or_else(|| port.map(default_path))
        .or_else(variable)
        .unwrap_or_else(|| default_path(DEFAULT_PORT))
}

/// The default place of the region of a server on `port`, for this user.
pub(crate) fn default_path(port: u16) -> PathBuf {
    default_path_for(&port.to_string())
}

/// The default place of the region of a server that listens on the Unix socket `socket` only.
pub(crate) fn default_path_for_socket(socket: &Path) -> PathBuf {
    // A relative path leads elsewhere from another folder; `-d` leaves the folder before this is asked.
    let socket = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
    let name: String = socket
        .to_string_lossy()
        .chars()
        .map(|c| if c == '/' { '-' } else { c })
        .collect();
    default_path_for(name.trim_start_matches('-'))
}

fn default_path_for(name: &str) -> PathBuf {
    Path::new(SHARED_MEMORY).join(format!("keyway-{}-{name}", geteuid()))
}

/// `memfd`, or a path.
pub(crate) fn parse(text: &str) -> Result<Place, String> {
    match text {
        "" => Err("a region must be \"memfd\" or a path".to_owned()),
        "memfd" => Ok(Place::Memfd),
        path => Ok(Place::Path(path.into())),
    }
}

/// Opens a region whose largest item may be as large as half of it. A region consists of whole segments, so half of it may be a
/// little less than half of the requested size. An item size up to `slack` bytes smaller than requested is then accepted.
pub(crate) fn open(place: &Place, options: &Options, slack: usize) -> Result<Cache, Failure> {
    try_open(place, options, slack).map_err(failure)
}

/// Opens a region whose largest item may be up to `slack` bytes smaller than requested, as [`open`]; the error has the reason.
pub(crate) fn try_open(place: &Place, options: &Options, slack: usize) -> Result<Cache, OpenError> {
    let cache = with_slack(|options| Cache::open(place, options), options, slack)?;
    if cache.info().discarded {
        log::warn!(
            "region {place}: the old region was discarded, because the machine stopped while it was in use and parts of it may not have \
             reached the disk; to keep a region, stop its users before a shutdown, or use durable mode (--durable)"
        );
    }
    Ok(cache)
}

/// Opens a region in memory that was kept for a restart; its largest item may be up to `slack` bytes smaller than requested.
pub(crate) fn open_kept(memory: &File, options: &Options, slack: usize) -> Result<Cache, OpenError> {
    with_slack(|options| Cache::open_kept(memory, options), options, slack)
}

fn with_slack(open: impl Fn(&Options) -> Result<Cache, OpenError>, options: &Options, slack: usize) -> Result<Cache, OpenError> {
    match open(options) {
        Err(OpenError::ItemSize { asked, most, .. }) if asked > most && asked - most <= slack => {
            open(&options.clone().item_size_max(most))
        }
        opened => opened,
    }
}

/// Opens a region to look at it, for reading only, and its file: one at a path, or one that the server at a region socket hands out. As when
/// a region is opened for use, a link is refused, and a pipe that another user has put there does not hold this program up.
pub(crate) fn open_to_look(path: &Path, owners: &Owners) -> Result<(File, Watched), Failure> {
    let opened = match open_file(path) {
        Err(source) if source.raw_os_error() == Some(ENXIO) => handed_out(path).and_then(|file| {
            let watched = Watched::open_handed_out(duplicate(&file, path)?, path)?;
            Ok((file, watched))
        }),
        Err(source) if source.kind() == ErrorKind::NotFound => Err(OpenError::Absent {
            path: path.to_owned(),
            there: Vec::new(),
        }),
        Err(source) => Err(OpenError::Io {
            what: "open",
            path: path.to_owned(),
            source,
        }),
        Ok(file) => duplicate(&file, path).and_then(|other| Ok((file, Watched::open(other, path, owners)?))),
    };
    opened.map_err(failure)
}

fn open_file(path: &Path) -> std::io::Result<File> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    File::options().read(true).custom_flags(flags.bits()).open(path)
}

fn duplicate(file: &File, path: &Path) -> Result<File, OpenError> {
    file.try_clone().map_err(|source| OpenError::Io {
        what: "open",
        path: path.to_owned(),
        source,
    })
}

/// Whose a file is, for a user who may not open it: a part of a sentence.
fn owner_of(path: &Path) -> String {
    let Ok(meta) = std::fs::metadata(path) else {
        return String::new();
    };
    let user = regions::user_name(meta.uid());
    format!(
        " (it belongs to user {user}, mode {:04o}: `sudo -u {user} keyway ...`)",
        meta.mode() & 0o7777
    )
}

/// Whether no file can be made there: the folder is absent, full, read-only, or closed to this user.
pub(crate) fn is_unusable_for_a_file(error: &OpenError) -> bool {
    match error {
        OpenError::NoSpace { .. } => true,
        OpenError::Io {
            what: "create", source, ..
        } => matches!(
            source.kind(),
            ErrorKind::NotFound | ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::StorageFull
        ),
        _ => false,
    }
}

/// Whether other options would open the region.
pub(crate) fn is_askers_fault(error: &OpenError) -> bool {
    matches!(
        error,
        OpenError::ItemSize { .. }
            | OpenError::Memory { .. }
            | OpenError::Sessions { .. }
            | OpenError::ServerSessions { .. }
            | OpenError::Address { .. }
            | OpenError::OverLimit { .. }
            | OpenError::NotDurable { .. }
            | OpenError::NotChecksummed { .. }
            | OpenError::NotGrown { .. }
    )
}

pub(crate) fn failure(error: OpenError) -> Failure {
    let code = match error {
        OpenError::ItemSize { .. }
        | OpenError::Memory { .. }
        | OpenError::Sessions { .. }
        | OpenError::ServerSessions { .. }
        | OpenError::Address { .. } => exit::USAGE,
        _ => exit::NO_REGION,
    };
    match error {
        OpenError::NoSpace { ref path, .. } if path.starts_with(SHARED_MEMORY) => Failure::new(
            code,
            format_args!("{error} (in a container: --shm-size), or take memory without a file (memfd)"),
        ),
        OpenError::Io {
            ref path, ref source, ..
        } if source.kind() == ErrorKind::PermissionDenied => Failure::new(code, format_args!("{error}{}", owner_of(path))),
        OpenError::Absent { path, .. } => Failure::new(
            code,
            format_args!(
                "{}: there is no region; start `keyway serve` with it first; {}",
                path.display(),
                regions::others()
            ),
        ),
        error => Failure::new(code, error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_places_tell_user_and_port() {
        let uid = geteuid();
        assert_eq!(default_path(11211), PathBuf::from(format!("/dev/shm/keyway-{uid}-11211")));
        let socket = default_path_for_socket(Path::new("/run/keyway.sock"));
        assert_eq!(socket, PathBuf::from(format!("/dev/shm/keyway-{uid}-run-keyway.sock")));
        let here = std::env::current_dir().unwrap();
        assert_eq!(
            default_path_for_socket(Path::new("keyway.sock")),
            default_path_for_socket(&here.join("keyway.sock"))
        );
    }

    #[test]
    fn a_place_is_memfd_or_a_path() {
        assert_eq!(parse("memfd"), Ok(Place::Memfd));
        assert_eq!(parse("/x"), Ok(Place::Path("/x".into())));
        assert!(parse("").is_err());
    }
}
