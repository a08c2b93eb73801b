//! Records: where a server's region is, for programs that start while the server is away.
//!
//! A program that knows a server by its address only asks the server where its region is. A server that was killed, or is
//! being restarted, cannot answer. So a server leaves a record for each of its addresses in `/dev/shm`, named after its
//! user and the address:
//!
//! ```text
//! /dev/shm/keyway-at-0-127.0.0.1:11211
//!
//! keyway-record 2
//! address 127.0.0.1:11211
//! network 4:4026531840
//! region 26:1234
//! place /run/keyway/region
//! ```
//!
//! A record is a hint, and never believed: it counts only if it belongs to a user whose regions may be used, if it is for
//! this address in this network namespace, if the region at the place is the recorded one (device and inode), and if that
//! region was in use lately. So a record that is left over does no harm. The user of a record asks the server again as
//! soon as it answers.

use crate::error::OpenError;
use crate::error::io;
use crate::file::inspect::open_file;
use crate::file::trust::{self, Source};
use crate::observe::survey::{Described, describe};
use crate::options::{Options, Owners};
use crate::place::RECORD_PREFIX;
use crate::place::SHARED_MEMORY;
use crate::process::descriptor::{FileId, file_id};
use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use std::fs::{File, Metadata, Permissions};
use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// The first line. The number is the version of the format.
const HEAD: &str = "keyway-record 2";
/// Longest record that is read, bytes: a path has at most 4,096 (PATH_MAX), an address far fewer.
const LEN_MAX: u64 = 8192;
/// How long a region may be unused before its records no longer count, seconds. Longer than any restart takes; after
/// that, the server has ended for good, and another program may have its address.
const LATELY_S: i64 = 600;

/// The address by which programs name a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// host and port
    Tcp(SocketAddr),
    /// the path of a Unix socket
    Unix(PathBuf),
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => path.display().fmt(f),
        }
    }
}

impl Address {
    /// The addresses that a server may have that is reached at this one: this one, or all of the machine.
    fn reached_at(&self) -> Vec<Self> {
        let Self::Tcp(address) = self else {
            return vec![self.clone()];
        };
        let everywhere: IpAddr = match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        vec![self.clone(), Self::Tcp(SocketAddr::new(everywhere, address.port()))]
    }

    /// The network namespace in which the address is meant; a path has none.
    fn network(&self) -> Result<String> {
        match self {
            Self::Tcp(_) => std::fs::metadata("/proc/self/ns/net").map(|meta| format!("{}:{}", meta.dev(), meta.ino())),
            Self::Unix(_) => Ok("none".to_owned()),
        }
    }

    /// The record of a server of this user.
    fn file_of(&self, user: u32) -> PathBuf {
        let name = self.to_string().replace('/', "-");
        Path::new(SHARED_MEMORY).join(format!("{RECORD_PREFIX}{user}-{name}"))
    }
}

/// What a server leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// the absolute path of the region's file
    pub place: PathBuf,
    /// device and inode of the region's file
    pub region: FileId,
}

impl Record {
    fn text(&self, address: &Address) -> Result<String> {
        let Some(place) = self.place.to_str().filter(|place| !place.contains('\n')) else {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "the region's path has a line end, or is not UTF-8",
            ));
        };
        let (network, (device, inode)) = (address.network()?, self.region);
        Ok(format!(
            "{HEAD}\naddress {address}\nnetwork {network}\nregion {device}:{inode}\nplace {place}\n"
        ))
    }

    /// What a record says of this address. `None`: nothing, or it is for another one.
    fn parse(text: &str, address: &Address) -> Option<Self> {
        let mut lines = text.strip_suffix('\n')?.split('\n');
        let mut value = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let is_head = value("keyway-record") == HEAD.split_once(' ').map(|(_, version)| version);
        let is_here = value("address")? == address.to_string() && value("network")? == address.network().ok()?;
        let (device, inode) = value("region")?.split_once(':')?;
        let place = PathBuf::from(value("place")?);
        (is_head && is_here && place.is_absolute()).then_some(Self {
            place,
            region: (device.parse().ok()?, inode.parse().ok()?),
        })
    }

    /// Whether the recorded region is at its place, and was in use lately.
    fn is_valid(&self, owners: &Owners) -> bool {
        let file = match open_file(&self.place, &Options::new().owners(owners.clone())) {
            Ok(file) => file,
            // A program under `keyway exec` has its region already, and can open no region by its path. Whether it is this one is
            // seen when it is opened.
            Err(OpenError::KeptOut { .. }) => return true,
            Err(_) => return false,
        };
        let is_same = file_id(&file).is_ok_and(|id| id == self.region);
        is_same && describe(file, &self.place, owners).is_ok_and(|region| was_used_lately(&region, now_s()))
    }
}

fn was_used_lately(region: &Described, now_s: i64) -> bool {
    !region.pids.is_empty() || now_s.saturating_sub(region.last_used_unix_s) <= LATELY_S
}

fn now_s() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

/// Leaves a record for an address of this process's server, in place of an earlier one.
///
/// # Errors
///
/// The file cannot be written, or another user has one of this name.
pub fn leave(address: &Address, record: &Record) -> Result<()> {
    let text = record.text(address)?;
    let path = address.file_of(geteuid().as_raw());
    let mut fresh = path.clone().into_os_string();
    fresh.push(".new");
    // A server that was killed here may have left it.
    let _ = std::fs::remove_file(&fresh);
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(&fresh)?;
    file.write_all(text.as_bytes())?;
    // It says what `stats settings` says to every client.
    file.set_permissions(Permissions::from_mode(0o644))?;
    std::fs::rename(&fresh, &path)
}

/// The file of the record that this process's server leaves for an address.
pub fn file_of(address: &Address) -> PathBuf {
    address.file_of(geteuid().as_raw())
}

/// Removes this user's record for an address, if there is one.
///
/// # Errors
///
/// There is one, and it cannot be removed.
pub fn remove(address: &Address) -> Result<()> {
    match std::fs::remove_file(file_of(address)) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The newest record for an address that counts, of the users whose regions are asked for.
pub fn find(address: &Address, owners: &Owners) -> Option<Record> {
    let mut users = vec![geteuid().as_raw(), 0];
    if let Owners::Only(others) = owners {
        users.extend(others);
    }
    let addresses = address.reached_at();
    let found = addresses.iter().flat_map(|address| {
        let files = users.iter().map(|user| address.file_of(*user));
        files.filter_map(|path| {
            let (text, meta) = contents(&path, owners).ok()?;
            Some(((meta.mtime(), meta.mtime_nsec()), Record::parse(&text, address)?))
        })
    });
    let (_, newest) = found.max_by_key(|(written, _)| *written)?;
    newest.is_valid(owners).then_some(newest)
}

/// The contents of a record. The file is checked as a region's file is, before anything of it is read: any user can put a link or
/// a pipe there.
fn contents(path: &Path, owners: &Owners) -> std::result::Result<(String, Metadata), OpenError> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let failed = |e| io("read", path, e);
    let opened = File::options().read(true).custom_flags(flags.bits()).open(path);
    let file = opened.map_err(failed)?;
    trust::check(&file, Source::Path, path, &Options::new().owners(owners.clone()))?;
    let meta = file.metadata().map_err(failed)?;
    let mut text = String::new();
    file.take(LEN_MAX).read_to_string(&mut text).map_err(failed)?;
    Ok((text, meta))
}

/// Removes the records of this user whose region is no longer at its place.
pub fn remove_stale() {
    let own = format!("{RECORD_PREFIX}{}-", geteuid());
    for entry in std::fs::read_dir(SHARED_MEMORY).into_iter().flatten().flatten() {
        if !entry.file_name().to_string_lossy().starts_with(&own) {
            continue;
        }
        let Ok((text, _)) = contents(&entry.path(), &Owners::AsNamed) else {
            continue;
        };
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let (Some(region), Some(place)) = (value("region"), value("place")) else {
            continue;
        };
        let is_there = std::fs::metadata(place).is_ok_and(|meta| format!("{}:{}", meta.dev(), meta.ino()) == region);
        if !is_there {
            // Another server may have done it at the same time.
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::ServerCache as _;
    use crate::{Cache, Place};

    /// A region with a record for an address that no other test has; both are removed at the end.
    struct Left {
        address: Address,
        place: PathBuf,
        cache: Cache,
    }

    impl Left {
        fn new(name: &str) -> Self {
            let place = PathBuf::from(format!("/dev/shm/keyway-record-{name}-{}", std::process::id()));
            let cache = Cache::open(&Place::Path(place.clone()), &Options::new().memory(4 << 20)).unwrap();
            let own = Self {
                address: Address::Unix(PathBuf::from(format!("/nowhere/{name}-{}", std::process::id()))),
                place,
                cache,
            };
            leave(&own.address, &own.record()).unwrap();
            own
        }

        fn record(&self) -> Record {
            Record {
                place: self.place.clone(),
                region: self.cache.identity().unwrap(),
            }
        }

        fn found(&self) -> Option<Record> {
            find(&self.address, &Owners::Only(vec![]))
        }
    }

    impl Drop for Left {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.place);
            let _ = remove(&self.address);
        }
    }

    #[test]
    fn a_record_leads_to_its_region_for_as_long_as_that_is_there() {
        let left = Left::new("region");
        assert_eq!(left.found(), Some(left.record()));
        // The same region at another place, and another region at the same one.
        let elsewhere = left.place.with_extension("moved");
        std::fs::rename(&left.place, &elsewhere).unwrap();
        assert_eq!(left.found(), None);
        let _other = Cache::open(&Place::Path(left.place.clone()), &Options::new().memory(4 << 20)).unwrap();
        assert_eq!(left.found(), None);
        std::fs::rename(&elsewhere, &left.place).unwrap();
        // A server that was started meanwhile has removed the record of a region that was not at its place.
        leave(&left.address, &left.record()).unwrap();
        assert_eq!(left.found(), Some(left.record()));
        remove(&left.address).unwrap();
        assert_eq!(left.found(), None);
        remove(&left.address).unwrap();
    }

    /// The enemy: another user, who can make files of any name in the folder.
    #[test]
    fn what_others_put_there_is_not_followed() {
        let left = Left::new("others");
        let file = file_of(&left.address);
        let aside = file.with_extension("aside");
        std::fs::rename(&file, &aside).unwrap();
        std::os::unix::fs::symlink(&aside, &file).unwrap();
        assert_eq!(left.found(), None, "a link");
        std::fs::remove_file(&file).unwrap();
        std::fs::hard_link(&aside, &file).unwrap();
        assert_eq!(left.found(), None, "one of two names");
        std::fs::remove_file(&file).unwrap();
        nix::unistd::mkfifo(&file, nix::sys::stat::Mode::S_IRUSR).unwrap();
        assert_eq!(left.found(), None, "a pipe, which is not waited for");
        remove_stale();
        std::fs::remove_file(&file).unwrap();
        std::fs::rename(&aside, &file).unwrap();
        assert_eq!(left.found(), Some(left.record()));
        std::fs::set_permissions(&file, Permissions::from_mode(0o646)).unwrap();
        assert_eq!(left.found(), None, "all may write it");
        std::fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
        if geteuid().is_root() {
            std::os::unix::fs::chown(&file, Some(65_534), None).unwrap();
            assert_eq!(left.found(), None, "another user's");
        }
    }

    #[test]
    fn a_record_says_exactly_what_it_must() {
        let record = Record {
            place: "/a b/region".into(),
            region: (26, 1234),
        };
        let address = Address::Tcp("127.0.0.1:11211".parse().unwrap());
        let text = record.text(&address).unwrap();
        assert_eq!(Record::parse(&text, &address), Some(record.clone()));
        for (from, to) in [
            ("127.0.0.1:11211", "127.0.0.2:11211"),
            ("record 2", "record 3"),
            ("network ", "network 1"),
            ("place /", "place "),
            ("region 26:", "region "),
        ] {
            assert!(text.contains(from));
            assert_eq!(Record::parse(&text.replacen(from, to, 1), &address), None, "{from}");
        }
        for len in 0..text.len() {
            assert_eq!(Record::parse(&text[..len], &address), None, "{len} bytes of it");
        }
        let two_lines = Record {
            place: "/a\nb".into(),
            ..record
        };
        assert!(two_lines.text(&address).is_err());
    }

    #[test]
    fn a_server_on_every_address_is_found_at_each() {
        let all = |text: &str| {
            let address = Address::Tcp(text.parse().unwrap());
            address.reached_at().iter().map(Address::to_string).collect::<Vec<_>>()
        };
        assert_eq!(all("127.0.0.1:7"), ["127.0.0.1:7", "0.0.0.0:7"]);
        assert_eq!(all("[::1]:7"), ["[::1]:7", "[::]:7"]);
    }

    #[test]
    fn a_region_that_nobody_has_used_for_long_does_not_count() {
        let left = Left::new("lately");
        let mut region = describe(File::open(&left.place).unwrap(), &left.place, &Owners::AsNamed).unwrap();
        let used_s = region.last_used_unix_s;
        assert!(was_used_lately(&region, used_s + 10 * LATELY_S), "this process uses it");
        region.pids.clear();
        assert!(was_used_lately(&region, used_s + LATELY_S));
        assert!(!was_used_lately(&region, used_s + LATELY_S + 1));
    }

    #[test]
    fn records_without_their_region_are_removed_and_no_others() {
        let (stays, goes) = (Left::new("stays"), Left::new("goes"));
        std::fs::remove_file(&goes.place).unwrap();
        remove_stale();
        assert!(file_of(&stays.address).exists() && !file_of(&goes.address).exists());
        assert!(crate::place::is_record(&file_of(&stays.address)) && !crate::place::is_record(&stays.place));
    }
}
