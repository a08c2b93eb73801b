//! Taking over: a second server of the same region and user gets the running one's sockets and its clients' plain connections, and
//! continues where that one stopped. No client notices.
//!
//! The running server listens on a Unix socket with an abstract name that is derived from its region (`listener::take_over_name`). This name is the role:
//! only the process that accepts connections there is the region's server. The name belongs to the socket, the socket is handed over with the
//! others, and its old owner stops accepting before the new one starts, so at most one server has the role.
//!
//! | the new server | | the running server |
//! |---|---|---|
//! | reads its files, then connects | | accepts only its own user |
//! | `Hello`: its version | → | another version: `Refused` |
//! | | ← | `Welcome`, each `Socket`, `AllSockets`; it still serves |
//! | binds what is missing, opens the region, confines itself: all that can fail | | |
//! | `Prepared` | → | halts at a request boundary: acceptor, workers, kernel door ([`Halt`]) |
//! | | ← | each plain `Connection` with its state, `AllConnections` |
//! | `Ready`: it has everything | → | |
//! | | ← | `Commit`: from here on it does not resume on its own decision |
//! | `Taken`, then serves | → | closes what it has handed over, answers its other clients, ends |
//!
//! Before `Commit` the running server resumes with everything if the connection breaks, an answer is late ([`PATIENCE`]) or the new server
//! gives up. After it, only if the connection breaks without `Taken`: then the new server has died, and has served nothing. So there is no
//! moment in which both serve.
//!
//! If the running server dies, the new one continues with what it has got. It does so only if it knows that the other one has ended (by the
//! descriptor that came with `Welcome`): a connection that is closed is not enough, because the running server closes it when it resumes.
//!
//! Connections with TLS are not handed over, because their keys and counters are inside the TLS library; neither are those that hold more than
//! [`CARRIED_MAX`], and those in the middle of a task. The old server answers what they have sent, closes them at a request boundary, and
//! ends when there are none left, or after `Config::shutdown_grace`.
//!
//! A message is its length and the length of the bytes that go with it (32 bits each, little-endian), the message as JSON, and the bytes. A
//! descriptor comes with the first byte. `Hello` and `Refused`, and this form, stay as they are in every version, so that servers of
//! different versions can tell each other why they cannot continue.
//!
//! | file | holds |
//! |---|---|
//! | `mod` | the messages, and how they are sent |
//! | `halt` | how the running server's threads stop and continue together |
//! | `give` | the running server's side |
//! | `take` | the new server's side |

mod give;
mod halt;
mod take;

pub(crate) use give::{admit, give, send_refusal};
pub(crate) use halt::{Halt, HaltVerdict, Stage};
pub(crate) use take::Predecessor;
pub use take::{TakeOver, TakeOverError};

use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use keyway_cache::server::handout;
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use serde::{Deserialize, Serialize};

use crate::connection::{CARRIED_MAX, Carried};
use crate::given::OfferedSocket;

/// While one of the two servers waits for the other one and clients wait too, each message comes within this time.
const PATIENCE: Duration = Duration::from_secs(5);
/// The new server gets this time to prepare. The running server serves meanwhile.
const PREPARATION_MAX: Duration = Duration::from_secs(600);
/// Version of the messages and of the state that they carry.
const VERSION: u32 = 1;
/// Longest message without its bytes.
const TEXT_MAX: usize = 64 << 10;
const LENGTHS: usize = 8;
/// How often a long wait is interrupted to look whether it still makes sense.
const LOOK: Duration = Duration::from_millis(100);

/// See the table in the module's documentation.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Message {
    Hello {
        version: u32,
        /// Keyway's version, for people
        program: String,
        process: u32,
    },
    Refused {
        why: String,
    },
    /// comes with a descriptor of the running process
    Welcome {
        program: String,
        process: u32,
    },
    /// comes with the socket
    Socket(OfferedSocket),
    AllSockets {
        count: usize,
    },
    Prepared,
    /// comes with the socket, and with its input and output
    Connection(Box<Carried>),
    AllConnections {
        count: usize,
    },
    Ready,
    Commit,
    Taken,
    /// the running server does not end
    Resumed {
        why: String,
    },
}

/// A connection between the two servers.
struct Channel(UnixStream);

/// A message that has arrived, and what came with it.
#[derive(Debug)]
struct Received {
    message: Message,
    bytes: Vec<u8>,
    descriptor: Option<OwnedFd>,
}

impl Channel {
    fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self(stream))
    }

    fn say(&self, message: &Message) -> io::Result<()> {
        self.send(message, &[], None)
    }

    fn send(&self, message: &Message, bytes: &[&[u8]], descriptor: Option<RawFd>) -> io::Result<()> {
        let text = serde_json::to_vec(message)?;
        let len: usize = bytes.iter().map(|piece| piece.len()).sum();
        let whole = [
            &length(text.len())?.to_le_bytes()[..],
            &length(len)?.to_le_bytes(),
            &text,
            &bytes.concat(),
        ]
        .concat();
        let rights = descriptor.map(|fd| [fd]);
        let control = rights.as_ref().map(|rights| [ControlMessage::ScmRights(rights)]);
        let control = control.as_ref().map_or(&[][..], |control| &control[..]);
        let sent = loop {
            match sendmsg::<()>(
                self.0.as_raw_fd(),
                &[IoSlice::new(&whole)],
                control,
                MsgFlags::MSG_NOSIGNAL,
                None,
            ) {
                Err(Errno::EINTR) => {}
                sent => break sent?,
            }
        };
        // The descriptor has gone with the first bytes.
        (&self.0).write_all(whole.get(sent..).unwrap_or_default())
    }

    /// The next message, which has to begin within [`PATIENCE`].
    fn receive(&self) -> io::Result<Received> {
        self.receive_within(PATIENCE, || true)
    }

    /// The next message. Fails with `TimedOut` if it does not begin in time, or if `is_wanted` becomes false; with `UnexpectedEof` if the
    /// other process has closed the connection.
    fn receive_within(&self, time: Duration, is_wanted: impl Fn() -> bool) -> io::Result<Received> {
        let until = Instant::now() + time;
        let mut lengths = [0; LENGTHS];
        let (mut got, mut descriptor) = (0, None);
        self.0.set_read_timeout(Some(LOOK))?;
        while got < LENGTHS {
            match handout::receive(&self.0, &mut lengths[got..]) {
                Ok((0, _)) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok((count, files)) => {
                    got += count;
                    descriptor = files.into_iter().next().map(OwnedFd::from).or(descriptor);
                }
                Err(Errno::EAGAIN) if Instant::now() < until && is_wanted() => {}
                Err(Errno::EAGAIN) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) => return Err(error.into()),
            }
        }
        let [a, b, c, d, e, f, g, h] = lengths;
        let (text_len, len) = (u32::from_le_bytes([a, b, c, d]), u32::from_le_bytes([e, f, g, h]));
        let (text_len, len) = (
            usize::try_from(text_len).unwrap_or(usize::MAX),
            usize::try_from(len).unwrap_or(usize::MAX),
        );
        if text_len > TEXT_MAX || len > CARRIED_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a message of {text_len} and {len} bytes; at most {TEXT_MAX} and {CARRIED_MAX} are possible"),
            ));
        }
        self.0.set_read_timeout(Some(PATIENCE))?;
        let (mut text, mut bytes) = (vec![0; text_len], vec![0; len]);
        (&self.0).read_exact(&mut text)?;
        (&self.0).read_exact(&mut bytes)?;
        Ok(Received {
            message: serde_json::from_slice(&text)?,
            bytes,
            descriptor,
        })
    }

    /// Waits without a limit for the other process to say `Taken`, or to end. Returns whether it has said it.
    fn is_taken(&self) -> bool {
        loop {
            match self.receive_within(PATIENCE, || true) {
                Ok(Received {
                    message: Message::Taken, ..
                }) => return true,
                Err(error) if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) => {}
                Ok(_) | Err(_) => return false,
            }
        }
    }
}

fn length(len: usize) -> io::Result<u32> {
    u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::given::Purpose;
    use std::io::Seek;

    #[test]
    fn a_message_brings_its_bytes_and_its_descriptor() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (ours, theirs) = (Channel::new(ours).unwrap(), Channel::new(theirs).unwrap());
        let path = std::env::temp_dir().join(format!("keyway-message-{}", std::process::id()));
        std::fs::write(&path, "seven").unwrap();
        let file = std::fs::File::open(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        let large = vec![7; CARRIED_MAX - 3];
        std::thread::scope(|scope| {
            scope.spawn(|| {
                ours.say(&Message::Prepared).unwrap();
                let socket = OfferedSocket {
                    purpose: Purpose::Http,
                    label: "x".to_owned(),
                    removes_file: true,
                };
                ours.send(&Message::Socket(socket), &[b"abc", &large], Some(file.as_raw_fd()))
                    .unwrap();
                ours.say(&Message::Ready).unwrap();
            });
            assert!(matches!(theirs.receive().unwrap().message, Message::Prepared));
            let got = theirs.receive().unwrap();
            assert!(matches!(got.message, Message::Socket(socket) if socket.purpose == Purpose::Http && socket.removes_file));
            assert_eq!((&got.bytes[..4], got.bytes.len()), (&b"abc\x07"[..], CARRIED_MAX));
            let mut file = std::fs::File::from(got.descriptor.unwrap());
            file.rewind().unwrap();
            assert_eq!(io::read_to_string(file).unwrap(), "seven");
            assert!(matches!(theirs.receive().unwrap().message, Message::Ready));
        });
        drop(ours);
        assert_eq!(theirs.receive().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(!theirs.is_taken());
    }

    #[test]
    fn what_is_too_long_or_no_message_is_an_error() {
        for bytes in [
            &[0xFF; 8][..],
            b"\x02\0\0\0\xFF\xFF\xFF\xFF{}",
            b"\x02\0\0\0\0\0\0\0{}",
            b"\x02\0\0\0\0\0\0\0{",
        ] {
            let (ours, mut theirs) = UnixStream::pair().unwrap();
            theirs.write_all(bytes).unwrap();
            drop(theirs);
            assert!(Channel::new(ours).unwrap().receive().is_err(), "{}", bytes.escape_ascii());
        }
    }

    #[test]
    fn a_wait_ends_when_it_is_not_wanted() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let error = Channel::new(ours).unwrap().receive_within(Duration::from_secs(600), || false);
        assert_eq!(error.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
