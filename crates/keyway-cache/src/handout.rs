//! Handing out a region: how a server gives it to a process that has no path to it, or no permission.
//!
//! The server listens on a Unix socket that has no other use. It sends one line to each client, and reads nothing from
//! it. With [`GRANTED`] come two descriptors of the region's file (`SCM_RIGHTS`, unix(7)): one to lock and map, one to
//! query the locks of others. Each is opened for this client, because a lock belongs to an open file description. A
//! server whose kernel door is on sends [`GRANTED_AND_COUNTS`] instead, followed by the door word, and a third
//! descriptor: of the array in which changes are counted. With [`GRANTED_TO_READ`] come two others: a descriptor of the
//! file that was opened for reading, and a socket that is connected to the server's workers, for this client's writes.
//! Any other line that begins with [`NAME`] is a refusal with its reason. Then the server closes the connection.
//!
//! A client that finds no free process slot or thread slot asks for a *line* only: a connection to the server's workers,
//! which do for the client what it cannot do itself. To ask for it, the client gives its socket a name before it connects
//! (any name: the kernel chooses one, unix(7), "autobind"). It connects either to the region socket, or to a separate
//! socket of the server, whose abstract name is derived from the region ([`line_name`]). So a client needs to know only
//! the region's file. The server sends [`GRANTED_LINE`] with the region's device and inode, and the connection is then
//! like that of every other client; or the server sends a refusal and closes. Any process can take an abstract name, so
//! the client checks the owner of the socket: it must be the file's owner, root or the client's own user.
//!
//! # Safety
//!
//! The only `unsafe` here takes ownership of descriptors that the kernel has just put into this process.
#![allow(unsafe_code, reason = "descriptors from a message; contract above")]

use crate::descriptor::FileId;
use crate::error::OpenError;
use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{
    AddressFamily, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr, bind, connect, getsockopt, recvmsg, socket,
};
use std::fs::File;
use std::io::{ErrorKind, IoSliceMut, Read};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// The first word of every line that a server sends here.
pub const NAME: &str = "keyway-region";
/// The line that a server sends with the descriptors. The number is this exchange's version.
pub const GRANTED: &str = "keyway-region 1\n";
/// The line that it sends instead when changes are to be counted. The kernel door's word and a line end follow.
pub const GRANTED_AND_COUNTS: &str = "keyway-region 1 counts ";
/// Number of descriptors of the region that come with it.
pub const DESCRIPTORS: usize = 2;

/// The line with a reader's descriptors: of the region's file, opened for reading, and of a connection.
pub const GRANTED_TO_READ: &str = "keyway-region 1 read\n";

/// The line with which a server gives a connection to its workers. The region's device and inode (`DEVICE:INODE`) and a
/// line end follow.
pub const GRANTED_LINE: &str = "keyway-region 1 line ";

/// The abstract name of the socket at which a server gives such connections, for the region in the file with this device
/// and inode.
pub fn line_name((device, inode): (u64, u64)) -> Vec<u8> {
    format!("keyway-line {device}:{inode}").into_bytes()
}

/// The region for which a connection is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// device and inode of its file
    pub file: FileId,
    /// the file's owner
    pub owner: u32,
}

impl Wanted {
    /// The region in this file.
    pub fn of(file: &File) -> std::io::Result<Self> {
        file.metadata().map(|meta| Self {
            file: (meta.dev(), meta.ino()),
            owner: meta.uid(),
        })
    }
}

/// What a server has handed out.
pub(crate) enum Handed {
    ToWrite {
        files: [File; DESCRIPTORS],
        /// the kernel door's word, and the array of the stripes
        doorway: Option<(u64, File)>,
    },
    /// the region's file, for reading, and a connection to the server
    ToRead(File, UnixStream),
}

/// Longest line that a server sends.
const LINE_MAX: usize = 512;
/// How long an answer may take. A server of a region answers at once; a peer that does not is something else.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks the server that listens on a socket for its region.
pub(crate) fn ask(path: &Path) -> Result<Handed, OpenError> {
    let refused = |why: String| OpenError::NotHandedOut {
        path: path.to_path_buf(),
        why,
    };
    let socket = UnixStream::connect(path).map_err(|source| match source.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => OpenError::NoServer {
            path: path.to_path_buf(),
            source,
        },
        _ => OpenError::Io {
            what: "connect",
            path: path.to_path_buf(),
            source,
        },
    })?;
    // This may fail. Without it, this process waits as long as a peer sends nothing.
    let _ = socket.set_read_timeout(Some(PATIENCE));
    let mut line = [0; LINE_MAX];
    let (len, mut files) = receive(&socket, &mut line).map_err(|error| match error {
        Errno::EAGAIN => refused(format!(
            "no answer from the socket for {} s; give the path of the server's --region-socket",
            PATIENCE.as_secs()
        )),
        error => refused(format!("cannot read from the socket: {error}")),
    })?;
    let line = String::from_utf8_lossy(line.get(..len).unwrap_or_default());
    let word = line
        .strip_prefix(GRANTED_AND_COUNTS)
        .and_then(|word| word.trim_end().parse().ok());
    let is_granted = line == GRANTED || line == GRANTED_TO_READ || word.is_some();
    let doorway = word.and_then(|word| Some((word, files.pop()?)));
    match (files.try_into(), line.strip_prefix(NAME)) {
        (Ok(files), _) if line == GRANTED_TO_READ => {
            let [file, socket]: [File; DESCRIPTORS] = files;
            Ok(Handed::ToRead(file, UnixStream::from(OwnedFd::from(socket))))
        }
        (Ok(files), _) if is_granted => Ok(Handed::ToWrite { files, doorway }),
        // The kernel drops descriptors if there is no room for them (unix(7), "MSG_CTRUNC").
        (Err(_), _) if is_granted => Err(refused(
            "the server's descriptors did not arrive: this process has no free descriptors; raise ulimit -n".to_owned(),
        )),
        (_, Some(why)) => Err(refused(why.trim().to_owned())),
        (_, None) => Err(refused(
            "the server at this socket hands out no region; give the path of the server's --region-socket".to_owned(),
        )),
    }
}

/// Asks for a connection to the workers: at a server's region socket, or without a path at the abstract name of the
/// region.
pub(crate) fn line(path: Option<&Path>, wanted: Wanted) -> std::io::Result<UnixStream> {
    let address = match path {
        Some(path) => UnixAddr::new(path)?,
        None => UnixAddr::new_abstract(&line_name(wanted.file))?,
    };
    let socket = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    bind(socket.as_raw_fd(), &UnixAddr::new_unnamed())?;
    connect(socket.as_raw_fd(), &address)?;
    let mut stream = UnixStream::from(socket);
    let user = getsockopt(&stream, PeerCredentials)?.uid();
    if path.is_none() && !may_serve(user, wanted.owner, nix::unistd::geteuid().as_raw()) {
        let why = format!("the socket for a server of this region belongs to user {user}, who is not the file's owner");
        return Err(std::io::Error::new(ErrorKind::PermissionDenied, why));
    }
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut told = Vec::new();
    // The server sends nothing more before the client's first command, so this reads no byte of an answer.
    let mut byte = [0];
    while told.len() < LINE_MAX && stream.read(&mut byte)? == 1 && byte != *b"\n" {
        told.extend(byte);
    }
    let told = String::from_utf8_lossy(&told);
    let (device, inode) = wanted.file;
    match told.strip_prefix(GRANTED_LINE) {
        Some(region) if region == format!("{device}:{inode}") => Ok(stream),
        Some(_) => Err(std::io::Error::other("the server at this socket has another region")),
        None => {
            let why = told.strip_prefix(NAME).unwrap_or("what answers there gives no lines").trim();
            Err(std::io::Error::new(ErrorKind::PermissionDenied, why))
        }
    }
}

/// Whether a process of this user may be the server of a region. A user who could not write the region's file cannot run
/// its server.
fn may_serve(user: u32, owner: u32, own: u32) -> bool {
    [owner, own, 0].contains(&user)
}

/// Most descriptors that [`receive`] takes with one message. The kernel's own limit is 253 (unix(7)).
pub const RECEIVED_MAX: usize = 8;

/// One message of at most `line.len()` bytes: its length, and the files that came with it. With a length of 0 the peer has closed the
/// connection. Further files than [`RECEIVED_MAX`], and those for which this process has no free descriptors, are dropped by the kernel.
///
/// # Errors
///
/// Those of recvmsg(2), except for interruptions.
pub fn receive(socket: &UnixStream, line: &mut [u8]) -> nix::Result<(usize, Vec<File>)> {
    let mut space = cmsg_space!([RawFd; RECEIVED_MAX]);
    let mut parts = [IoSliceMut::new(line)];
    let message = loop {
        match recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), MsgFlags::MSG_CMSG_CLOEXEC) {
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
            Ok(message) => {
                let mut files = Vec::new();
                for control in message.cmsgs()? {
                    if let ControlMessageOwned::ScmRights(descriptors) = control {
                        // SAFETY: new in this process, and owned by no other value.
                        files.extend(
                            descriptors
                                .into_iter()
                                .map(|fd| File::from(unsafe { OwnedFd::from_raw_fd(fd) })),
                        );
                    }
                }
                break (message.bytes, files);
            }
        }
    };
    Ok(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixListener;

    /// The result of asking a peer that sends these words.
    fn asked(words: &'static [u8]) -> String {
        let path = std::env::temp_dir().join(format!("keyway-handout-{}-{}", std::process::id(), words.len()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| listener.accept().unwrap().0.write_all(words).unwrap());
            let error = ask(&path).err().unwrap().to_string();
            std::fs::remove_file(&path).unwrap();
            error
        })
    }

    #[test]
    fn a_refusal_is_reported_in_the_servers_words() {
        let told = asked(b"keyway-region user 7 may not; ask somebody\n");
        assert!(told.ends_with(": user 7 may not; ask somebody"), "{told}");
    }

    #[test]
    fn other_servers_and_liars_are_recognised() {
        for words in [&b"ERROR\r\n"[..], b""] {
            assert!(asked(words).contains("--region-socket"));
        }
        assert!(asked(GRANTED.as_bytes()).contains("did not arrive"));
    }

    #[test]
    fn no_server_is_an_error_of_its_own() {
        let error = ask(Path::new("/nowhere/keyway")).err().unwrap();
        assert!(matches!(error, OpenError::NoServer { .. }), "{error}");
    }

    #[test]
    fn a_line_is_taken_from_a_server_of_the_region_only() {
        let path = std::env::temp_dir().join(format!("keyway-line-{}", std::process::id()));
        let wanted = Wanted { file: (7, 9), owner: 0 };
        for (words, is_right) in [
            (&b"keyway-region 1 line 7:9\n"[..], true),
            (b"keyway-region 1 line 7:99\n", false),
            (b"keyway-region 1\n", false),
            (b"keyway-region user 7 may not\n", false),
            (b"ERROR\r\n", false),
            (b"", false),
        ] {
            let _ = std::fs::remove_file(&path);
            let listener = UnixListener::bind(&path).unwrap();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let (mut stream, address) = listener.accept().unwrap();
                    assert!(!address.is_unnamed(), "by its name it says what it wants");
                    stream.write_all(words).unwrap();
                });
                assert_eq!(line(Some(&path), wanted).is_ok(), is_right, "{}", words.escape_ascii());
            });
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn who_squats_on_a_regions_name_is_no_server() {
        use std::os::linux::net::SocketAddrExt;
        assert_eq!(
            [may_serve(7, 7, 8), may_serve(8, 7, 8), may_serve(0, 7, 8), may_serve(9, 7, 8)],
            [true, true, true, false]
        );
        let wanted = Wanted {
            file: (u64::MAX, std::process::id().into()),
            owner: nix::unistd::geteuid().as_raw(),
        };
        assert!(line(None, wanted).is_err(), "no server is there");
        let name = std::os::unix::net::SocketAddr::from_abstract_name(line_name(wanted.file)).unwrap();
        let listener = UnixListener::bind_addr(&name).unwrap();
        let said = format!("{GRANTED_LINE}{}:{}\n", wanted.file.0, wanted.file.1);
        std::thread::scope(|scope| {
            scope.spawn(|| listener.accept().unwrap().0.write_all(said.as_bytes()).unwrap());
            assert!(line(None, wanted).is_ok());
        });
    }
}
