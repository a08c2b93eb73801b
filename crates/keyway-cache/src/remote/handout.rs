//! Handing out a region: how a server gives it to a process that has no path to it, or no permission.
//!
//! The server listens on a Unix socket that has no other use. It sends one line to each client, and reads nothing from
//! it. With [`GRANTED`] come two descriptors of the region's file (`SCM_RIGHTS`, unix(7)): one to lock and map, one to
//! query the locks of others. Each is opened for this client, because a lock belongs to an open file description. A
//! server whose kernel door is on sends [`GRANTED_AND_COUNTS`] instead, followed by the door word, and a third
//! descriptor: of the array in which changes are counted. With [`GRANTED_TO_READ`] comes one that was opened for reading.
//! Any other line that begins with [`NAME`] is a refusal with its reason. Then the server closes the connection.
//!
//! A client that may only read, or that finds no free process slot or thread slot, asks for a *line*: a connection to the
//! server's workers, which do for the client what it cannot do itself. To ask for it, the client gives its socket a name before it connects
//! (any name: the kernel chooses one, unix(7), "autobind"). It connects either to the region socket, or to a separate
//! socket of the server, whose abstract name is derived from the region ([`line_name`]). So a client needs to know only
//! the region's file. The server sends [`GRANTED_LINE`] with the region's device and inode, and the connection is then
//! like that of every other client; or the server sends a refusal and closes. Any process can take an abstract name, so
//! the client checks the owner of the socket: it must be the file's owner, root or the client's own user.
//!
//! # Safety
//!
//! The only `unsafe` here receives a message (recvmsg(2), cmsg(3)) into memory of its own, and takes ownership of the descriptors that
//! the kernel has put into this process with it: of all of them, also if it had no room for some.
#![allow(unsafe_code, reason = "descriptors from a message; contract above")]

use crate::error::OpenError;
use crate::process::cancel::Uncancelled;
use crate::process::descriptor::FileId;
use crate::remote::connection::{self, Connection};
use nix::errno::Errno;
use nix::libc;
use nix::poll::PollFlags;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{UnixAddr, getsockopt};
use std::fs::File;
use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The first word of every line that a server sends here.
pub const NAME: &str = "keyway-region";
/// The line that a server sends with the descriptors. The number is this exchange's version.
pub const GRANTED: &str = "keyway-region 1\n";
/// The line that it sends instead when changes are to be counted. The kernel door's word and a line end follow.
pub const GRANTED_AND_COUNTS: &str = "keyway-region 1 counts ";
/// Number of descriptors of the region that come with it.
pub const DESCRIPTORS: usize = 2;

/// The line with a reader's descriptor: of the region's file, opened for reading.
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
    /// the region's file, for reading
    ToRead(File),
}

/// Longest line that a server sends.
const LINE_MAX: usize = 512;
/// How long an answer may take. A server of a region answers at once; a peer that does not is something else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// Asks the server that listens on a socket for its region.
pub(crate) fn ask(path: &Path) -> Result<Handed, OpenError> {
    let _uncancelled = Uncancelled::new();
    let deadline = Instant::now() + PATIENCE;
    let refused = |why: String| OpenError::NotHandedOut {
        path: path.to_path_buf(),
        why,
    };
    let silent = || {
        refused(format!(
            "no answer from the socket for {} s; give the path of the server's --region-socket",
            PATIENCE.as_secs()
        ))
    };
    let connected = UnixAddr::new(path)
        .map_err(Error::from)
        .and_then(|address| connection::to_unix(&address, false, deadline));
    let socket = connected.map_err(|source| match source.kind() {
        ErrorKind::NotFound | ErrorKind::ConnectionRefused => OpenError::NoServer {
            path: path.to_path_buf(),
            source,
        },
        ErrorKind::TimedOut => silent(),
        _ => OpenError::Io {
            what: "connect",
            path: path.to_path_buf(),
            source,
        },
    })?;
    // The kernel drops descriptors if there is no room for them (unix(7), "MSG_CTRUNC").
    let lost = || {
        let why = "the server's descriptors did not arrive: this process has no free descriptors; raise ulimit -n";
        refused(why.to_owned())
    };
    let mut line = [0; LINE_MAX];
    connection::until_ready(socket.as_fd(), PollFlags::POLLIN, deadline).map_err(|_| silent())?;
    let (len, mut files) = receive(&socket, &mut line).map_err(|error| match error {
        Errno::EAGAIN => silent(),
        Errno::ENOBUFS => lost(),
        error => refused(format!("cannot read from the socket: {error}")),
    })?;
    let line = String::from_utf8_lossy(line.get(..len).unwrap_or_default());
    let word = line
        .strip_prefix(GRANTED_AND_COUNTS)
        .and_then(|word| word.trim_end().parse().ok());
    if line == GRANTED_TO_READ {
        return files.pop().map(Handed::ToRead).ok_or_else(lost);
    }
    let is_granted = line == GRANTED || word.is_some();
    let doorway = word.and_then(|word| Some((word, files.pop()?)));
    match (files.try_into(), line.strip_prefix(NAME)) {
        (Ok(files), _) if is_granted => Ok(Handed::ToWrite { files, doorway }),
        (Err(_), _) if is_granted => Err(lost()),
        (_, Some(why)) => Err(refused(why.trim().to_owned())),
        (_, None) => Err(refused(
            "the server at this socket hands out no region; give the path of the server's --region-socket".to_owned(),
        )),
    }
}

/// Asks for a connection to the workers: at a server's region socket, or without a path at the abstract name of the region.
/// The connection is to be used when it is granted ([`granted`]).
pub(crate) fn ask_for_line(path: Option<&Path>, wanted: Wanted, deadline: Instant) -> std::io::Result<Connection> {
    let address = match path {
        Some(path) => UnixAddr::new(path)?,
        None => UnixAddr::new_abstract(&line_name(wanted.file))?,
    };
    let socket = connection::to_unix(&address, true, deadline)?;
    let user = getsockopt(&socket, PeerCredentials)?.uid();
    if path.is_none() && !may_serve(user, wanted.owner, nix::unistd::geteuid().as_raw()) {
        let why = format!("the socket for a server of this region belongs to user {user}, who is not the file's owner");
        return Err(Error::new(ErrorKind::PermissionDenied, why));
    }
    Connection::new(socket)
}

/// Reads whether the server grants a line.
///
/// # Errors
///
/// It does not. [`ErrorKind::TimedOut`]: it has not said so by the deadline, and this can be called again.
pub(crate) fn granted(line: &mut Connection, wanted: Wanted, deadline: Instant) -> std::io::Result<()> {
    let told = loop {
        let received = line.received();
        if let Some(end) = received.iter().position(|byte| *byte == b'\n') {
            break received.drain(..=end).collect::<Vec<u8>>();
        }
        if received.len() >= LINE_MAX {
            break std::mem::take(received);
        }
        line.receive(deadline)?;
    };
    let told = String::from_utf8_lossy(&told);
    let (device, inode) = wanted.file;
    match told.strip_prefix(GRANTED_LINE) {
        Some(region) if region == format!("{device}:{inode}\n") => Ok(()),
        Some(_) => Err(Error::other("the server at this socket has another region")),
        None => {
            let why = told.strip_prefix(NAME).unwrap_or("what answers there gives no lines").trim();
            Err(Error::new(ErrorKind::PermissionDenied, why))
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
/// Words of the space for them: a control message begins at a multiple of eight (cmsg(3)). It has a header of 16 bytes.
const SPACE: usize = 2 + RECEIVED_MAX * size_of::<RawFd>() / size_of::<u64>();

/// One message of at most `line.len()` bytes: its length, and the files that came with it. With a length of 0 the peer has closed the
/// connection.
///
/// # Errors
///
/// Those of recvmsg(2), except for interruptions. ENOBUFS: the kernel has dropped some of the files, because they are more than
/// [`RECEIVED_MAX`], or because this process has no free descriptors; then the others are closed.
pub fn receive(socket: &impl AsRawFd, line: &mut [u8]) -> nix::Result<(usize, Vec<File>)> {
    let mut space = [0u64; SPACE];
    let mut part = libc::iovec {
        iov_base: line.as_mut_ptr().cast(),
        iov_len: line.len(),
    };
    // SAFETY: a message header of zeros is valid, and refers to nothing.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    let len = loop {
        message.msg_control = space.as_mut_ptr().cast();
        message.msg_controllen = size_of_val(&space);
        // SAFETY: the header refers to the line and to the space, which live throughout the call, with their lengths.
        let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
        match Errno::result(got) {
            Err(Errno::EINTR) => {}
            got => break usize::try_from(got?).unwrap_or(0),
        }
    };
    // Before anything else, so that they are closed if they are not all that were sent.
    let files = taken(&message);
    if message.msg_flags & libc::MSG_CTRUNC != 0 {
        return Err(Errno::ENOBUFS);
    }
    Ok((len, files))
}

/// The descriptors of a message that the kernel has just filled in.
fn taken(message: &libc::msghdr) -> Vec<File> {
    let mut files = Vec::new();
    // SAFETY: the header is as the kernel left it, and so is its space, which begins at a multiple of eight.
    let mut header = unsafe { libc::CMSG_FIRSTHDR(message) };
    // SAFETY: NULL, or a whole header in that space.
    while let Some(control) = unsafe { header.as_ref() } {
        if (control.cmsg_level, control.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            // SAFETY: takes a number.
            let empty = unsafe { libc::CMSG_LEN(0) };
            let bytes = control.cmsg_len.saturating_sub(usize::try_from(empty).unwrap_or(usize::MAX));
            // SAFETY: what follows the header.
            let first: *const RawFd = unsafe { libc::CMSG_DATA(header) }.cast();
            for number in 0..bytes / size_of::<RawFd>() {
                // SAFETY: within the message, which is as long as its header says.
                let descriptor = unsafe { first.add(number).read_unaligned() };
                // SAFETY: new in this process, and owned by no other value.
                files.push(File::from(unsafe { OwnedFd::from_raw_fd(descriptor) }));
            }
        }
        // SAFETY: as for the first one.
        header = unsafe { libc::CMSG_NXTHDR(message, header) };
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::{UnixListener, UnixStream};

    /// A line that was granted.
    fn line(path: Option<&Path>, wanted: Wanted) -> std::io::Result<Connection> {
        let deadline = Instant::now() + PATIENCE;
        let mut line = ask_for_line(path, wanted, deadline)?;
        granted(&mut line, wanted, deadline).map(|()| line)
    }

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
    fn descriptors_that_come_without_the_others_are_closed() {
        use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
        use std::io::IoSlice;
        let (ours, theirs) = UnixStream::pair().unwrap();
        // One of its own, by which its copies are found: other tests open files meanwhile.
        let (kept, other_end) = UnixStream::pair().unwrap();
        for (count, arrive) in [(1, true), (RECEIVED_MAX, true), (RECEIVED_MAX + 1, false), (60, false)] {
            let descriptors = vec![other_end.as_raw_fd(); count];
            let control = [ControlMessage::ScmRights(&descriptors)];
            let line = GRANTED.as_bytes();
            sendmsg::<()>(theirs.as_raw_fd(), &[IoSlice::new(line)], &control, MsgFlags::empty(), None).unwrap();
            let mut space = [0; LINE_MAX];
            match receive(&ours, &mut space) {
                Ok((len, files)) => assert_eq!((&space[..len], files.len(), arrive), (line, count, true)),
                Err(error) => assert_eq!((error, arrive), (Errno::ENOBUFS, false), "{count}"),
            }
        }
        drop(other_end);
        // The end of the stream: no descriptor of its other end is left in this process.
        kept.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!((&kept).read(&mut [0]).unwrap(), 0, "some are still open");
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
