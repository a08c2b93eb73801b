//! Descriptors that a service manager hands over at the start (sd_listen_fds(3)): `LISTEN_FDS` of them, from number 3 on, if `LISTEN_PID`
//! is this process, with names in `LISTEN_FDNAMES`.
//!
//! | name | is |
//! |---|---|
//! | `clients`, or none of them has a name | a TCP, Unix or UDP socket for clients |
//! | `tls` | a TCP socket for clients with TLS |
//! | `region-socket` | the Unix socket of `--region-socket` |
//! | `http` | a socket of the HTTP port |
//! | `region-memory` | the memory of `--region memfd`, which an earlier server has stored |
//!
//! Any other name is an error: a misspelt `tls` must not become a socket without TLS.
//!
//! # Safety
//!
//! The only `unsafe` here takes ownership of descriptors that the process was started with. [`take`] is called once, by `main`, before
//! any other code opens a descriptor, so no other value owns them; each is first found to be open.
#![allow(unsafe_code, reason = "ownership of inherited descriptors; contract above")]

use std::fs::File;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use keyway_server::{Given, Role};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::libc;

use crate::exit::{self, Failure};

/// The first of them (SD_LISTEN_FDS_START).
const FIRST: RawFd = 3;
/// The name of each, if they were passed without names.
const NAMELESS: &str = "unknown";
/// The name of stored memory.
pub(crate) const REGION_MEMORY: &str = "region-memory";

/// What was handed over.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    pub(crate) sockets: Given,
    /// memory of a region
    pub(crate) memory: Option<File>,
}

/// Whether there are any. An error in the variables counts as some.
pub(crate) fn is_any() -> bool {
    own_names().map_or(true, |names| !names.is_empty())
}

/// Takes them. Call it once, before anything else opens a descriptor.
pub(crate) fn take() -> Result<Inherited, Failure> {
    let mut inherited = Inherited::default();
    for (number, name) in (FIRST..).zip(own_names().map_err(refused)?) {
        let label = format!("descriptor {number} (\"{name}\", LISTEN_FDS)");
        let fd = own(number).ok_or_else(|| refused(format_args!("{label} is not open")))?;
        inherited.take(fd, &name, label).map_err(refused)?;
    }
    Ok(inherited)
}

fn own_names() -> Result<Vec<String>, String> {
    let variable = |name| std::env::var(name).ok();
    names(
        variable("LISTEN_PID").as_deref(),
        variable("LISTEN_FDS").as_deref(),
        variable("LISTEN_FDNAMES").as_deref(),
        std::process::id(),
    )
}

fn refused(why: impl std::fmt::Display) -> Failure {
    Failure::new(exit::SYSTEM, why)
}

impl Inherited {
    fn take(&mut self, fd: OwnedFd, name: &str, label: String) -> Result<(), String> {
        let role = match name {
            "clients" | NAMELESS => Role::Clients,
            "tls" => Role::Tls,
            "region-socket" => Role::RegionSocket,
            "http" => Role::Http,
            REGION_MEMORY => {
                return match self.memory.replace(fd.into()) {
                    None => Ok(()),
                    Some(_) => Err(format!("{label}: there is more than one of this name")),
                };
            }
            _ => {
                return Err(format!(
                    "{label}: the name says what it is for: clients, tls, region-socket, http or {REGION_MEMORY}; set FileDescriptorName= \
                     in the .socket unit"
                ));
            }
        };
        // The service manager removes the files of its sockets.
        self.sockets.add(fd, label, role, false).map_err(|error| error.to_string())
    }
}

/// The name of each descriptor for this process.
fn names(pid: Option<&str>, count: Option<&str>, names: Option<&str>, own: u32) -> Result<Vec<String>, String> {
    let (Some(pid), Some(count)) = (pid, count) else {
        return Ok(Vec::new());
    };
    if pid.parse() != Ok(own) {
        return Ok(Vec::new());
    }
    let count: usize = match count.parse() {
        Ok(count) if count <= 1024 => count,
        _ => return Err(format!("LISTEN_FDS={count}: it must be a number of descriptors, up to 1024")),
    };
    let names: Vec<String> = match names {
        Some(names) if !names.is_empty() => names.split(':').map(str::to_owned).collect(),
        _ => vec![NAMELESS.to_owned(); count],
    };
    if names.len() != count {
        return Err(format!(
            "LISTEN_FDNAMES has {} names for LISTEN_FDS={count} descriptors: there must be one for each",
            names.len()
        ));
    }
    Ok(names)
}

/// Takes ownership of an inherited descriptor, and keeps it from programs that this one starts. `None`: it is not open.
fn own(number: RawFd) -> Option<OwnedFd> {
    // SAFETY: fcntl(2) with numbers; a descriptor that is not open gives an error.
    if unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return None;
    }
    // SAFETY: it is open, and no other value owns it: see the contract of this file.
    let fd = unsafe { OwnedFd::from_raw_fd(number) };
    fcntl(&fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).ok()?;
    Some(fd)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_of_another_process_are_not_taken() {
        assert_eq!(names(None, None, None, 5), Ok(vec![]));
        assert_eq!(names(Some("4"), Some("1"), None, 5), Ok(vec![]));
        assert_eq!(names(Some("x"), Some("1"), None, 5), Ok(vec![]));
    }

    #[test]
    fn each_has_a_name() {
        let all = |count, text| names(Some("5"), Some(count), text, 5);
        assert_eq!(all("2", None).unwrap(), [NAMELESS, NAMELESS]);
        assert_eq!(all("2", Some("clients:tls")).unwrap(), ["clients", "tls"]);
        for (count, text) in [("2", Some("tls")), ("x", None), ("-1", None), ("9999", None)] {
            assert!(all(count, text).is_err(), "{count} {text:?}");
        }
    }

    #[test]
    fn a_misspelt_name_is_refused() {
        let socket = || OwnedFd::from(std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let mut inherited = Inherited::default();
        inherited.take(socket(), "tls", "descriptor 3".into()).unwrap();
        assert!(inherited.sockets.has(Role::Tls));
        for name in ["tsl", "keyway.socket", ""] {
            let error = inherited.take(socket(), name, "descriptor 4".into()).unwrap_err();
            assert!(
                error.contains("descriptor 4") && error.contains("FileDescriptorName="),
                "{error}"
            );
        }
    }
}
