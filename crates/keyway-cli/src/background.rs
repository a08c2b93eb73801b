//! `-d`: the program starts itself a second time, in the background, and waits until that copy serves.
//!
//! A fork in the middle of a program is safe only before it has threads; a second start is always safe. The copy recognises itself by
//! [`MARK`] in its environment. It reports that it is ready by a line on its standard output, which is a pipe to the first process. So
//! the first process ends with success only when clients can connect, and with the copy's exit code if the copy cannot start.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use nix::unistd::{dup2_stderr, dup2_stdout, setsid};

use crate::exit::{self, Failure};

const MARK: &str = "KEYWAY_IN_BACKGROUND";

/// Whether this process is the copy.
pub(crate) fn is_child() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Starts the copy and waits until it is ready, or has failed.
pub(crate) fn start() -> Result<(), Failure> {
    let refused = |error: io::Error| {
        let limits = match error.kind() {
            io::ErrorKind::WouldBlock => keyway_server::limits_of_threads(),
            _ => Vec::new(),
        };
        let limits: String = limits
            .iter()
            .map(|limit| format!("; {limit}, and that is one more: raise it, or leave -d out"))
            .collect();
        Failure::new(
            exit::SYSTEM,
            format_args!("cannot start in the background (-d): {error}{limits}"),
        )
    };
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| "keyway".into());
    // With its own name if that still leads to this program, so that ps and pidof show it.
    let program = std::env::current_exe()
        .ok()
        .filter(|path| path.exists())
        .unwrap_or_else(|| "/proc/self/exe".into());
    let mut command = Command::new(program);
    let mut child = command
        .arg0(name)
        .args(arguments)
        .env(MARK, "1")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .map_err(refused)?;
    let mut line = String::new();
    if let Some(output) = child.stdout.take() {
        BufReader::new(output).read_line(&mut line).map_err(refused)?;
    }
    if !line.is_empty() {
        return Ok(());
    }
    // The copy has written the reason to standard error, which both processes share.
    let status = child.wait().map_err(refused)?;
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::NO);
    Err(Failure::new(code, "the server did not start in the background (-d)"))
}

/// In the copy: leaves the terminal; also leaves the folder, unless core files are to be written there.
pub(crate) fn detach(stay: bool) -> io::Result<()> {
    setsid()?;
    if stay { Ok(()) } else { std::env::set_current_dir("/") }
}

/// The process that waits for the copy.
pub(crate) struct Waiting {
    line: File,
    null: File,
}

/// In the copy, before it gives up the right to open files: closes standard output.
pub(crate) fn leave_output() -> io::Result<Waiting> {
    let line = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    dup2_stdout(&null)?;
    Ok(Waiting { line, null })
}

impl Waiting {
    /// In the copy, when it serves: closes standard error unless the log goes there, and then tells the waiting process by this line. In
    /// this order, so that after the line the daemon does not change any more.
    pub(crate) fn ready(mut self, line: &str, keep_log: bool) -> io::Result<()> {
        if !keep_log {
            dup2_stderr(&self.null)?;
        }
        // The waiting process may have ended; the server serves all the same.
        let _ = writeln!(self.line, "{line}");
        Ok(())
    }
}
