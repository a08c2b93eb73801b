//! Who may come in: memcached's ASCII authentication (`-Y`), where the first request of a connection is a `set` whose value is
//! `user password`.
//!
//! The file has one `user:password` per line. The key, flags and exptime of that `set` mean nothing. Nothing else is answered
//! before, and an unauthenticated client can make the server hold at most [`LINE_MAX`] + [`TOKEN_MAX`] bytes.

use std::fmt;
use std::path::Path;

use keyway_proto::reply;

/// Longest first line, bytes (as memcached).
pub(crate) const LINE_MAX: usize = 2048;
/// Longest `user password`, bytes (as memcached).
pub(crate) const TOKEN_MAX: usize = 16_384;

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
    /// it names nobody
    Empty,
}

impl fmt::Display for AuthFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read(error) => write!(f, "cannot be read: {error}"),
            Self::Line(line) => write!(f, "line {line} is not \"user:password\""),
            Self::Empty => write!(f, "has no line \"user:password\", so nobody could log in"),
        }
    }
}

impl Users {
    pub(crate) fn load(path: &Path) -> Result<Self, AuthFileError> {
        Self::parse(&std::fs::read(path).map_err(AuthFileError::Read)?)
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

    /// Compares against every entry in full, so that the time taken does not tell how much of a password is right.
    fn admit(&self, user: &[u8], password: &[u8]) -> bool {
        self.0
            .iter()
            .fold(false, |found, (u, p)| found | (same(u, user) & same(p, password)))
    }
}

fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differences, (x, y)| differences | (x ^ y)) == 0
}

/// What an unauthenticated connection's first bytes amount to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Login {
    /// more bytes must come
    Incomplete,
    /// these bytes are no login; the connection is closed without a word
    Hopeless,
    /// refused: drop these bytes, send this line
    Refused {
        consumed: usize,
        reply: &'static [u8],
        attempt: bool,
    },
    /// let in: drop these bytes, answer `STORED`
    Admitted { consumed: usize },
}

/// Judges the first bytes of a connection.
pub(crate) fn login(users: &Users, data: &[u8]) -> Login {
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
    let size = match (tokens.next(), tokens.nth(3).map(parse_size)) {
        (Some(b"set"), Some(Some(size))) => size,
        _ => return refused(line_len, reply::UNAUTHENTICATED, false),
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
}
