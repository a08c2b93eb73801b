//! The login of the text protocol: the first request is a `set` whose value is `user password`. Its key, flags and exptime are ignored.
//! Before the login the server answers only `quit`.

use keyway_proto::{BeforeLogin, Command, reply};

use super::{LINE_MAX, TOKEN_MAX};

/// What the first bytes of an unauthenticated connection are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TextLogin<'a> {
    /// more bytes are needed
    Incomplete,
    /// these bytes are no login; the connection is closed without an answer
    Hopeless,
    /// the client quits
    Quit,
    /// refused: drop these bytes, send this line
    Refused { consumed: usize, reply: &'static [u8] },
    /// a login: drop these bytes when it is answered
    Attempt {
        consumed: usize,
        user: &'a [u8],
        password: &'a [u8],
    },
}

/// Decides what the first bytes of a connection are.
pub(crate) fn read(data: &[u8]) -> TextLogin<'_> {
    let Some(line_end) = data.iter().position(|&b| b == b'\n') else {
        return if data.len() > LINE_MAX {
            TextLogin::Hopeless
        } else {
            TextLogin::Incomplete
        };
    };
    let line = data[..line_end].strip_suffix(b"\r").unwrap_or(&data[..line_end]);
    let line_len = line_end + 1;
    let mut tokens = line.split(|&b| b == b' ').filter(|token| !token.is_empty());
    let refused = |consumed, reply| TextLogin::Refused { consumed, reply };
    let command = tokens.next().and_then(Command::named);
    let size = match command.map(|command| command.facts().before_login) {
        Some(BeforeLogin::LogsIn) => tokens.nth(3).and_then(parse_size),
        Some(BeforeLogin::Ends) => return TextLogin::Quit,
        Some(BeforeLogin::Refused) | None => None,
    };
    let Some(size) = size else {
        return refused(line_len, reply::UNAUTHENTICATED);
    };
    if size > TOKEN_MAX {
        return refused(line_len, b"CLIENT_ERROR auth token too long\r\n");
    }
    let consumed = line_len + size + 2;
    let Some(block) = data.get(line_len..consumed) else {
        return TextLogin::Incomplete;
    };
    let Some(token) = block.strip_suffix(b"\r\n") else {
        return refused(consumed, b"CLIENT_ERROR bad command line termination\r\n");
    };
    match token.iter().position(|&b| b == b' ') {
        None => refused(consumed, reply::BAD_AUTHENTICATION),
        Some(space) => TextLogin::Attempt {
            consumed,
            user: &token[..space],
            password: &token[space + 1..],
        },
    }
}

fn parse_size(token: &[u8]) -> Option<usize> {
    std::str::from_utf8(token).ok()?.parse::<u32>().ok()?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_set_is_a_login() {
        let refused = |line: &[u8]| match read(line) {
            TextLogin::Refused { reply, .. } => reply,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            read(b"set x 0 0 14\r\nann secret one\r\nget a"),
            TextLogin::Attempt {
                consumed: 30,
                user: b"ann",
                password: b"secret one"
            }
        );
        assert_eq!(
            refused(b"set x 0 0 3\r\nbob\r\n"),
            b"CLIENT_ERROR bad authentication token format\r\n"
        );
        assert_eq!(refused(b"get x\r\n"), b"CLIENT_ERROR unauthenticated\r\n");
        assert_eq!(read(b"quit\r\n"), TextLogin::Quit);
        assert_eq!(refused(b"set x 0 0 99999\r\n"), b"CLIENT_ERROR auth token too long\r\n");
    }

    #[test]
    fn bytes_may_come_one_by_one_but_not_for_ever() {
        let whole = b"set x 0 0 7\r\nbob b:c\r\n";
        for len in 0..whole.len() {
            assert_eq!(read(&whole[..len]), TextLogin::Incomplete, "{len}");
        }
        assert_eq!(read(&[b'x'; LINE_MAX + 1]), TextLogin::Hopeless);
    }
}
