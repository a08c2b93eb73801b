//! The terminal of `keyway top`: a screen of its own, keys as they are pressed, and everything as it was at the end.

use std::io::{self, IsTerminal, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::termios::{self, SetArg, Termios};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGWINCH};

use crate::exit::{self, Failure};

/// The other screen, without a cursor; and the usual one again (xterm's control sequences).
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";
/// Columns and lines of a terminal that does not say how many it has.
const USUAL_SIZE: (usize, usize) = (80, 24);

/// What the user has pressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Char(char),
    Enter,
    Escape,
    Backspace,
    /// Ctrl+C, or a signal to end
    End,
}

/// A terminal in use. Dropping it brings the terminal back to what it was.
pub(super) struct Screen {
    before: Termios,
    ends: Arc<AtomicBool>,
}

impl Screen {
    pub(super) fn take() -> Result<Self, Failure> {
        let failed = |error: &dyn std::fmt::Display| Failure::new(exit::SYSTEM, format_args!("the terminal: {error}"));
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Err(Failure::usage(
                "standard input and output are no terminal: use --once, also with --json",
            ));
        }
        let ends = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&ends)).map_err(|error| failed(&error))?;
        }
        // Only so that waiting for a key ends.
        signal_hook::flag::register(SIGWINCH, Arc::new(AtomicBool::new(false))).map_err(|error| failed(&error))?;
        let before = termios::tcgetattr(io::stdin()).map_err(|error| failed(&error))?;
        let mut raw = before.clone();
        termios::cfmakeraw(&mut raw);
        termios::tcsetattr(io::stdin(), SetArg::TCSAFLUSH, &raw).map_err(|error| failed(&error))?;
        let screen = Self { before, ends };
        write(ENTER).map_err(|error| failed(&error))?;
        Ok(screen)
    }

    /// Columns and lines.
    pub(super) fn size(&self) -> (usize, usize) {
        let known = terminal_size::terminal_size_of(io::stdout());
        known.map_or(USUAL_SIZE, |(width, height)| (usize::from(width.0), usize::from(height.0)))
    }

    /// Shows these lines, as many as there is room for, each cut to the width. Those whose numbers are in `marked` are shown reversed.
    pub(super) fn show(&self, lines: &[String], marked: &[usize]) -> Result<(), Failure> {
        let (width, height) = self.size();
        let mut text = String::from("\x1b[H");
        for (number, line) in lines.iter().take(height).enumerate() {
            let cut: String = line.chars().take(width).collect();
            let (on, off) = if marked.contains(&number) {
                ("\x1b[7m", "\x1b[0m")
            } else {
                ("", "")
            };
            let end = if number + 1 == height { "" } else { "\r\n" };
            text.push_str(&format!("{on}{cut}{off}\x1b[K{end}"));
        }
        text.push_str("\x1b[J");
        write(&text).map_err(|error| Failure::new(exit::SYSTEM, format_args!("cannot write: {error}")))
    }

    /// Waits for keys, at most this long.
    pub(super) fn keys(&self, wait: Duration) -> Vec<Key> {
        let stdin = io::stdin();
        let mut asked = [PollFd::new(stdin.as_fd(), PollFlags::POLLIN)];
        let wait = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
        let ready = poll(&mut asked, wait);
        if self.ends.load(Relaxed) {
            return vec![Key::End];
        }
        match ready {
            Ok(0) | Err(Errno::EINTR) => return Vec::new(),
            Ok(_) => {}
            Err(_) => return vec![Key::End],
        }
        let mut bytes = [0; 64];
        match io::stdin().lock().read(&mut bytes) {
            // The terminal is gone.
            Ok(0) | Err(_) => vec![Key::End],
            Ok(len) => keys(&bytes[..len]),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // There is no other place to which a failure could be told.
        let _ = write(LEAVE);
        let _ = termios::tcsetattr(io::stdin(), SetArg::TCSAFLUSH, &self.before);
    }
}

fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// The keys of what a terminal has sent at once. A longer sequence, such as that of an arrow, is no key.
fn keys(bytes: &[u8]) -> Vec<Key> {
    if bytes.len() > 1 && bytes.first() == Some(&0x1b) {
        return Vec::new();
    }
    let text = String::from_utf8_lossy(bytes);
    let key = |c| match c {
        '\x03' | '\x04' => Some(Key::End),
        '\r' | '\n' => Some(Key::Enter),
        '\x1b' => Some(Key::Escape),
        '\x08' | '\x7f' => Some(Key::Backspace),
        c if c.is_control() => None,
        c => Some(Key::Char(c)),
    };
    text.chars().filter_map(key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_sends_becomes_keys() {
        assert_eq!(keys(b"q"), [Key::Char('q')]);
        assert_eq!(keys("/ä\r".as_bytes()), [Key::Char('/'), Key::Char('ä'), Key::Enter]);
        assert_eq!(keys(b"\x1b"), [Key::Escape]);
        assert_eq!(keys(b"\x1b[A"), []);
        assert_eq!(keys(b"a\x7f\x03\x07"), [Key::Char('a'), Key::Backspace, Key::End]);
    }
}
