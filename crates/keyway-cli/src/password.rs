//! `keyway password`: makes a line of the authentication file, with a hash of the password.

use std::fs::File;
use std::io::{self, BufRead, BufReader, IsTerminal, Read};
use std::path::Path;

use nix::sys::termios::{LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr};

use crate::commands;
use crate::exit::{Failure, NO, SYSTEM, USAGE};
use signal_hook::consts::SIGINT;
use signal_hook::low_level::emulate_default_handler;

/// The longest password that is read, bytes; the server's limit is lower.
const READ_MAX: u64 = 64 << 10;
/// Ctrl-C, which arrives as a character while the password is read.
const INTERRUPT: u8 = 3;

/// Prints the line for this user.
pub(crate) fn run(user: &str, read_only: bool, prefix: Option<&str>) -> Result<(), Failure> {
    let password = if io::stdin().is_terminal() {
        let terminal = Hidden::new()?;
        let password = terminal.ask(&format!("Password for {user}: "))?;
        if terminal.ask("Again: ")? != password {
            return Err(Failure::new(USAGE, "the two passwords differ"));
        }
        password
    } else {
        line(io::stdin().lock(), None).map_err(|error| Failure::new(SYSTEM, format_args!("standard input: {error}")))?
    };
    let line = keyway_server::auth_line(user, &password, read_only, prefix).map_err(Failure::usage)?;
    commands::say(line)
}

/// The password of a user that exists: the first line of `file`, or what the terminal answers.
pub(crate) fn known(user: &str, file: Option<&Path>) -> Result<Vec<u8>, Failure> {
    match file {
        Some(path) => File::open(path)
            .and_then(|file| line(BufReader::new(file), None))
            .map_err(|error| Failure::new(NO, format_args!("--password-file {}: {error}", path.display()))),
        None if io::stdin().is_terminal() => Hidden::new()?.ask(&format!("Password for {user}: ")),
        None => Err(Failure::usage(
            "--user: standard input is no terminal that could be asked for the password: write it into a file (--password-file)",
        )),
    }
}

/// One line, without its end; with this byte it is over, too.
fn line(input: impl BufRead, last: Option<u8>) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    for byte in input.take(READ_MAX).bytes() {
        match byte? {
            b'\n' => break,
            byte => line.push(byte),
        }
        if last.is_some() && line.last() == last.as_ref() {
            break;
        }
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(line)
}

/// A terminal that does not show what is typed, until this is dropped.
struct Hidden(Termios);

impl Hidden {
    /// Before the question, because an answer may be typed as soon as that is there.
    fn new() -> Result<Self, Failure> {
        let before = tcgetattr(io::stdin()).map_err(|error| failed(error.into()))?;
        let mut hidden = before.clone();
        // A signal would end the process with the terminal still hidden, so Ctrl-C ends the line instead.
        hidden.local_flags.remove(LocalFlags::ECHO | LocalFlags::ISIG);
        hidden.control_chars[SpecialCharacterIndices::VEOL as usize] = INTERRUPT;
        tcsetattr(io::stdin(), SetArg::TCSADRAIN, &hidden).map_err(|error| failed(error.into()))?;
        Ok(Self(before))
    }

    fn ask(&self, question: &str) -> Result<Vec<u8>, Failure> {
        commands::remark(question);
        let answer = line(io::stdin().lock(), Some(INTERRUPT));
        commands::remark("\n");
        let answer = answer.map_err(failed)?;
        if answer.contains(&INTERRUPT) {
            // With the terminal as it was, the signal that Ctrl-C stands for can do what it does elsewhere.
            self.show();
            let _ = emulate_default_handler(SIGINT);
        }
        Ok(answer)
    }

    fn show(&self) {
        let _ = tcsetattr(io::stdin(), SetArg::TCSADRAIN, &self.0);
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        self.show();
    }
}

fn failed(error: io::Error) -> Failure {
    Failure::new(SYSTEM, format_args!("the terminal: {error}"))
}
