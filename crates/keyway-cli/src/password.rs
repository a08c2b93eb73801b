//! `keyway password`: makes a line of the authentication file, with a hash of the password.

use std::io::{self, BufRead, IsTerminal, Read};

use nix::sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr};

use crate::commands;
use crate::exit::{Failure, SYSTEM, USAGE};

/// The longest password that is read, bytes; the server's limit is lower.
const READ_MAX: u64 = 64 << 10;
/// Ctrl-C, which arrives as a character while the password is read.
const INTERRUPT: u8 = 3;

/// Prints the line for this user.
pub(crate) fn run(user: &str, read_only: bool, prefix: Option<&str>) -> Result<(), Failure> {
    let password = if io::stdin().is_terminal() {
        let password = ask(&format!("Password for {user}: "))?;
        if ask("Again: ")? != password {
            return Err(Failure::new(USAGE, "the two passwords differ"));
        }
        password
    } else {
        line().map_err(|error| Failure::new(SYSTEM, format_args!("standard input: {error}")))?
    };
    let line = keyway_server::auth_line(user, &password, read_only, prefix).map_err(Failure::usage)?;
    commands::say(line)
}

/// Asks on the terminal, which does not show the answer.
fn ask(question: &str) -> Result<Vec<u8>, Failure> {
    let failed = |error: io::Error| Failure::new(SYSTEM, format_args!("the terminal: {error}"));
    commands::remark(question);
    let answer = {
        let _hidden = Hidden::new().map_err(failed)?;
        line()
    };
    commands::remark("\n");
    match answer.map_err(failed)? {
        answer if answer.contains(&INTERRUPT) => Err(Failure::new(USAGE, "no password was given")),
        answer => Ok(answer),
    }
}

/// One line of standard input, without its end.
fn line() -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut input = io::stdin().lock().take(READ_MAX);
    input.read_until(b'\n', &mut line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(line)
}

/// A terminal that does not show what is typed, until this is dropped.
struct Hidden(Termios);

impl Hidden {
    fn new() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut hidden = before.clone();
        // A signal would end the process with the terminal still hidden, so Ctrl-C ends the line instead.
        hidden.local_flags.remove(LocalFlags::ECHO | LocalFlags::ISIG);
        hidden.control_chars[SpecialCharacterIndices::VEOL as usize] = INTERRUPT;
        tcsetattr(io::stdin(), SetArg::TCSADRAIN, &hidden)?;
        Ok(Self(before))
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &self.0);
    }
}
