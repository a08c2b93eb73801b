//! A request as the log shows it (`-vvv`): a text command's line, or a packet's command and key. Values and passwords are never shown, nor
//! a byte that is not printable.

use std::fmt;

use keyway_proto::binary;

/// The longest part of a line that is shown, bytes.
const SHOWN_MAX: usize = 512;
/// Bytes of a packet's header (binary protocol), and where in it are its command, and the lengths of its key, its extras and all after it.
const HEADER: usize = 24;
const COMMAND: usize = 1;
const KEY_LEN: std::ops::Range<usize> = 2..4;
const EXTRAS_LEN: usize = 4;

/// The request at the front of these bytes.
pub(crate) struct Shown<'a>(pub(crate) &'a [u8]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(input) = self;
        if input.first() == Some(&binary::REQUEST) {
            return packet(input, f);
        }
        let line = input.split(|&byte| byte == b'\n').next().unwrap_or_default();
        shorten(line, f)
    }
}

fn packet(input: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let Some(header) = input.get(..HEADER) else {
        return f.write_str("packet");
    };
    let key_len: usize = header[KEY_LEN].iter().fold(0, |len, &byte| len << 8 | usize::from(byte));
    let key = HEADER + usize::from(header[EXTRAS_LEN]);
    write!(f, "packet {:#04x}", header[COMMAND])?;
    match input.get(key..key + key_len) {
        Some(key) if !key.is_empty() => {
            f.write_str(" ")?;
            shorten(key, f)
        }
        _ => Ok(()),
    }
}

fn shorten(text: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let shown = text.get(..SHOWN_MAX).unwrap_or(text);
    let left_out = text.len() - shown.len();
    write!(f, "{}", shown.escape_ascii())?;
    if left_out > 0 {
        write!(f, "... ({left_out} bytes more)")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(input: &[u8]) -> String {
        Shown(input).to_string()
    }

    #[test]
    fn a_line_is_shown_without_the_value_after_it() {
        assert_eq!(shown(b"set key 0 0 6\r\nsecret\r\n"), "set key 0 0 6\\r");
        assert_eq!(shown(b"get \x1b[2J\x00\xff\r\n"), "get \\x1b[2J\\x00\\xff\\r");
        let long = shown(&[b'k'; 600]);
        assert!(long.len() < 600 && long.ends_with("... (88 bytes more)"), "{long}");
    }

    #[test]
    fn a_packet_is_shown_by_its_command_and_key() {
        // set: 8 bytes of extras, a key of 3, a value of 6
        let mut set = vec![binary::REQUEST, 0x01, 0, 3, 8, 0, 0, 0, 0, 0, 0, 17];
        set.resize(HEADER + 8, 0);
        set.extend_from_slice(b"k\x07ysecret");
        assert_eq!(shown(&set), "packet 0x01 k\\x07y");
        // SASL: the key is the mechanism, the value has the password
        let mut login = vec![binary::REQUEST, 0x21, 0, 5, 0, 0, 0, 0, 0, 0, 0, 17];
        login.resize(HEADER, 0);
        login.extend_from_slice(b"PLAIN\0user\0secret");
        assert_eq!(shown(&login), "packet 0x21 PLAIN");
        assert_eq!(shown(&set[..HEADER + 5]), "packet 0x01");
        assert_eq!(shown(&set[..5]), "packet");
    }
}
