//! How a command ends: its exit code, and the line that says why.

use std::fmt;

use crate::logger;

/// Success.
pub(crate) const DONE: u8 = 0;
/// Failure: the key is absent, `check` found an error, the server could not start or ended with an error.
pub(crate) const NO: u8 = 1;
/// The region cannot be opened.
pub(crate) const NO_REGION: u8 = 2;
/// `check` found no error in a region that is in use, of which not everything can be verified.
pub(crate) const IN_USE: u8 = 3;
/// The command line is wrong, or asks for a feature that Keyway does not have (sysexits.h, EX_USAGE).
pub(crate) const USAGE: u8 = 64;
/// The user to switch to does not exist (EX_NOUSER).
pub(crate) const NO_USER: u8 = 67;
/// The system refused something (EX_OSERR).
pub(crate) const SYSTEM: u8 = 71;

/// A command that failed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) code: u8,
    pub(crate) reason: String,
}

impl Failure {
    pub(crate) fn new(code: u8, reason: impl fmt::Display) -> Self {
        Self {
            code,
            reason: reason.to_string(),
        }
    }

    /// The reason, with control characters as escapes: what the user or a server wrote must not change a terminal.
    pub(crate) fn printable(&self) -> String {
        let lines: Vec<String> = self.reason.lines().map(logger::printable).collect();
        lines.join("\n")
    }

    /// What makes a failure of the reason why this option's value is wrong.
    pub(crate) fn of<E: fmt::Display>(option: &'static str) -> impl FnOnce(E) -> Self {
        move |why| Self::usage(format_args!("{option}: {why}"))
    }

    pub(crate) fn usage(reason: impl fmt::Display) -> Self {
        Self::new(USAGE, reason)
    }
}
