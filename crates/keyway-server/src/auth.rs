//! Authentication: memcached's ASCII authentication (`-Y`), where the first request of a connection is a `set` whose value is
//! `user password`.
//!
//! The file has one `user:password` per line, and only its owner (and group) may read it. The key, flags and exptime of that `set` are
//! ignored. Before the login the server answers only `quit`, and an unauthenticated client can make the server hold at most
//! [`LINE_MAX`] + [`TOKEN_MAX`] bytes.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use keyway_proto::binary::{self, HEADER_LEN, Head, REQUEST, Status};
use keyway_proto::{BeforeLogin, Command, reply};

/// Longest first line, bytes (as memcached).
pub(crate) const LINE_MAX: usize = 2048;
/// Longest `user password`, bytes. memcached allows 16 KiB, for every client that has not logged in.
pub(crate) const TOKEN_MAX: usize = 2048;

/// Bits of a file's mode that let every user read or change it, and the bit that lets its group change it.
const OTHERS: u32 = 0o006;
const GROUP_WRITES: u32 = 0o020;

/// The users and passwords of an authentication file.
#[derive(Default)]
pub(crate) struct Users(Vec<(Vec<u8>, Vec<u8>)>);

/// Why an authentication file cannot be used.
#[derive(Debug)]
pub enum AuthFileError {
    /// it cannot be read
    Read(std::io::Error),
    /// this line (counted from 1) is not `user:password`
    Line(usize),
    /// it has no user
    Empty,
    /// users besides its owner and group can read or change it; its mode
    Open(u32),
}

impl fmt::Display for AuthFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => write!(f, "cannot be read: {error}"),
            Self::Line(line) => write!(f, "line {line} is not \"user:password\""),
            Self::Open(mode) => write!(
                f,
                "has mode {mode:03o}: every user of this machine can read or change its passwords; chmod 600 it (640 for a group)"
            ),
            Self::Empty => write!(f, "has no line \"user:password\", so no client could log in"),
        }
    }
}

impl Users {
    pub(crate) fn load(path: &Path) -> Result<Self, AuthFileError> {
        let mut file = File::open(path).map_err(AuthFileError::Read)?;
        let mode = file.metadata().map_err(AuthFileError::Read)?.mode() & 0o777;
        if mode & (OTHERS | GROUP_WRITES) != 0 {
            return Err(AuthFileError::Open(mode));
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(AuthFileError::Read)?;
        Self::parse(&text)
    }

    fn parse(text: &[u8]) -> Result<Self, AuthFileError> {
        let mut users = Vec::new();
        for (index, line) in text.split(|&b| b == b'\n').enumerate() {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() {
                continue;
            }
            let colon = line.iter().position(|&b| b == b':').ok_or(AuthFileError::Line(index + 1))?;
            users.push((line[..colon].to_vec(), line[colon + 1..].to_vec()));
        }
        if users.is_empty() {
            Err(AuthFileError::Empty)
        } else {
            Ok(Self(users))
        }
    }

    /// Compares with every entry in full, so that the time taken does not show how much of a password is right.
    fn admit(&self, user: &[u8], password: &[u8]) -> bool {
        self.0
            .iter()
            .fold(false, |found, (u, p)| found | (same(u, user) & same(p, password)))
    }
}

fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differences, (x, y)| differences | (x ^ y)) == 0
}

/// What the first bytes of an unauthenticated connection are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Login {
    /// more bytes are needed
    Incomplete,
    /// these bytes are no login; the connection is closed without an answer
    Hopeless,
    /// the client quits
    Quit,
    /// a packet of the binary protocol, which has no login here: it is answered, and the connection is closed
    Binary { answer: BinaryAnswer },
    /// refused: drop these bytes, send this line
    Refused {
        consumed: usize,
        reply: &'static [u8],
        attempt: bool,
    },
    /// logged in: drop these bytes, answer `STORED`
    Admitted { consumed: usize },
}

/// The answer to a binary packet of a client that has not logged in.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BinaryAnswer {
    head: Head,
    status: Status,
}

impl BinaryAnswer {
    /// `None` if the header is not complete.
    fn to(packet: &[u8]) -> Option<Self> {
        let header = packet.first_chunk::<HEADER_LEN>()?;
        let [_, opcode, ..] = *header;
        let [.., o0, o1, o2, o3, _, _, _, _, _, _, _, _] = *header;
        let status = match opcode {
            QUIT | QUIT_QUIETLY => Status::Success,
            _ => Status::AuthenticationError,
        };
        Some(Self {
            head: Head {
                opcode,
                opaque: [o0, o1, o2, o3],
            },
            status,
        })
    }

    pub(crate) fn append_to(&self, out: &mut Vec<u8>) {
        match (self.status, self.head.opcode) {
            (Status::Success, QUIT_QUIETLY) => {}
            (Status::Success, _) => binary::done(out, self.head, 0),
            (status, _) => binary::error(out, self.head, status),
        }
    }
}

/// The opcodes of quit.
const QUIT: u8 = 0x07;
const QUIT_QUIETLY: u8 = 0x17;

/// Decides what the first bytes of a connection are.
pub(crate) fn login(users: &Users, data: &[u8]) -> Login {
    if data.first() == Some(&REQUEST) {
        return BinaryAnswer::to(data).map_or(Login::Incomplete, |answer| Login::Binary { answer });
    }
    let Some(line_end) = data.iter().position(|&b| b == b'\n') else {
        return if data.len() > LINE_MAX {
            Login::Hopeless
        } else {
            Login::Incomplete
        };
    };
    let line = data[..line_end].strip_suffix(b"\r").unwrap_or(&data[..line_end]);
    let line_len = line_end + 1;
    let mut tokens = line.split(|&b| b == b' ').filter(|token| !token.is_empty());
    let refused = |consumed, reply, attempt| Login::Refused {
        consumed,
        reply,
        attempt,
    };
    let command = tokens.next().and_then(Command::named);
    let size = match command.map(|command| command.facts().before_login) {
        Some(BeforeLogin::LogsIn) => tokens.nth(3).and_then(parse_size),
        Some(BeforeLogin::Ends) => return Login::Quit,
        Some(BeforeLogin::Refused) | None => None,
    };
    let Some(size) = size else {
        return refused(line_len, reply::UNAUTHENTICATED, false);
    };
    if size > TOKEN_MAX {
        return refused(line_len, b"CLIENT_ERROR auth token too long\r\n", false);
    }
    let consumed = line_len + size + 2;
    let Some(block) = data.get(line_len..consumed) else {
        return Login::Incomplete;
    };
    let Some(token) = block.strip_suffix(b"\r\n") else {
        return refused(consumed, b"CLIENT_ERROR bad command line termination\r\n", false);
    };
    let Some(space) = token.iter().position(|&b| b == b' ') else {
        return refused(consumed, reply::BAD_AUTHENTICATION, false);
    };
    if users.admit(&token[..space], &token[space + 1..]) {
        Login::Admitted { consumed }
    } else {
        refused(consumed, reply::AUTHENTICATION_FAILURE, true)
    }
}

fn parse_size(token: &[u8]) -> Option<usize> {
    std::str::from_utf8(token).ok()?.parse::<u32>().ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users() -> Users {
        Users::parse(b"ann:secret one\r\nbob:b:c\n").unwrap()
    }

    #[test]
    fn a_file_is_read_line_by_line() {
        assert_eq!(users().0.len(), 2);
        assert!(matches!(Users::parse(b"ann:x\nnobody\n"), Err(AuthFileError::Line(2))));
        assert!(matches!(Users::parse(b"\n"), Err(AuthFileError::Empty)));
    }

    #[test]
    fn only_a_set_with_the_right_value_comes_in() {
        let refused = |line: &[u8]| match login(&users(), line) {
            Login::Refused { reply, .. } => reply,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            login(&users(), b"set x 0 0 14\r\nann secret one\r\nget a"),
            Login::Admitted { consumed: 30 }
        );
        assert_eq!(
            login(&users(), b"set x 0 0 7\r\nbob b:c\r\n"),
            Login::Admitted { consumed: 22 }
        );
        assert_eq!(
            refused(b"set x 0 0 7\r\nbob b:d\r\n"),
            b"CLIENT_ERROR authentication failure\r\n"
        );
        assert_eq!(
            refused(b"set x 0 0 3\r\nbob\r\n"),
            b"CLIENT_ERROR bad authentication token format\r\n"
        );
        assert_eq!(refused(b"get x\r\n"), b"CLIENT_ERROR unauthenticated\r\n");
        assert_eq!(login(&users(), b"quit\r\n"), Login::Quit);
        assert_eq!(refused(b"set x 0 0 99999\r\n"), b"CLIENT_ERROR auth token too long\r\n");
    }

    #[test]
    fn bytes_may_come_one_by_one_but_not_for_ever() {
        let whole = b"set x 0 0 7\r\nbob b:c\r\n";
        for len in 0..whole.len() {
            assert_eq!(login(&users(), &whole[..len]), Login::Incomplete, "{len}");
        }
        assert_eq!(login(&users(), &[b'x'; LINE_MAX + 1]), Login::Hopeless);
    }

    #[test]
    fn a_packet_is_answered_and_ends_the_connection() {
        let packet = |opcode: u8| {
            let mut packet = [0; HEADER_LEN];
            (packet[0], packet[1], packet[15]) = (REQUEST, opcode, 9);
            packet
        };
        let answer = |opcode| match login(&users(), &packet(opcode)) {
            Login::Binary { answer } => {
                let mut out = Vec::new();
                answer.append_to(&mut out);
                out
            }
            other => panic!("{other:?}"),
        };
        assert_eq!(login(&users(), &packet(0)[..HEADER_LEN - 1]), Login::Incomplete);
        assert_eq!(
            (answer(0x00)[6..8].to_vec(), answer(0x00)[15]),
            (vec![0, 0x20], 9),
            "auth error, and the opaque"
        );
        assert_eq!(answer(QUIT)[6..8], [0, 0]);
        assert_eq!(answer(QUIT_QUIETLY), b"");
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_with_the_remedy() {
        use std::os::unix::fs::PermissionsExt;
        let path = std::env::temp_dir().join(format!("keyway-auth-{}", std::process::id()));
        std::fs::write(&path, "ann:x\n").unwrap();
        for (mode, admitted) in [
            (0o600, true),
            (0o640, true),
            (0o400, true),
            (0o644, false),
            (0o602, false),
            (0o660, false),
        ] {
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            match Users::load(&path) {
                Ok(_) => assert!(admitted, "{mode:o}"),
                Err(error) => assert!(!admitted && error.to_string().contains("chmod 600"), "{mode:o}: {error}"),
            }
        }
        std::fs::remove_file(&path).unwrap();
    }
}
