//! The terminal of `keyway top`: a screen of its own, keys as they are pressed, and everything as it was at the end.

use std::io::{self, IsTerminal};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyModifiers};
use ratatui::{DefaultTerminal, Frame};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::exit::{self, Failure};

/// A signal to end is noticed after so long.
const NOTICED: Duration = Duration::from_millis(100);

/// What the user has done.
pub(super) enum Received {
    Key(KeyEvent),
    /// the terminal may have another size
    Nothing,
    /// Ctrl+C, or a signal to end
    End,
    /// Ctrl+Z
    Stop,
}

/// A terminal in use. Dropping it brings the terminal back to what it was; a panic does, too.
pub(super) struct Screen {
    terminal: DefaultTerminal,
    ends: Arc<AtomicBool>,
}

impl Screen {
    pub(super) fn take() -> Result<Self, Failure> {
        if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
            return Err(Failure::usage(
                "standard input and output are no terminal: use --once, also with --json",
            ));
        }
        let ends = Arc::new(AtomicBool::new(false));
        // SIGHUP ends the program as it is, at once: there is no terminal any more.
        for signal in [SIGINT, SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&ends)).map_err(failed)?;
        }
        end_with_the_terminal().map_err(failed)?;
        let terminal = ratatui::try_init().map_err(failed)?;
        Ok(Self { terminal, ends })
    }

    pub(super) fn show(&mut self, draw: impl FnOnce(&mut Frame<'_>)) -> Result<(), Failure> {
        self.terminal.draw(draw).map(|_| ()).map_err(failed)
    }

    /// Stops this program and those that were started with it, as the terminal does where keys are not read one by one; and takes the terminal
    /// again when it is to go on.
    pub(super) fn stop(&mut self) -> Result<(), Failure> {
        ratatui::restore();
        kill(Pid::from_raw(0), Signal::SIGTSTP).map_err(|error| failed(error.into()))?;
        self.terminal = ratatui::try_init().map_err(failed)?;
        Ok(())
    }

    /// Waits for the user until then.
    pub(super) fn received(&self, until: Instant) -> Received {
        loop {
            if self.ends.load(Relaxed) {
                return Received::End;
            }
            let left = until.saturating_duration_since(Instant::now());
            match event::poll(left.min(NOTICED)).and_then(|is_there| is_there.then(event::read).transpose()) {
                Err(_) => return Received::End,
                Ok(Some(Event::Key(key))) if is_with_control(key, "cd") => return Received::End,
                Ok(Some(Event::Key(key))) if is_with_control(key, "z") => return Received::Stop,
                Ok(Some(Event::Key(key))) => return Received::Key(key),
                Ok(Some(_)) => return Received::Nothing,
                Ok(None) if left.is_zero() => return Received::Nothing,
                Ok(None) => {}
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Ends the program when the terminal is gone, also where SIGHUP is ignored: crossterm would then read for ever, without a pause.
fn end_with_the_terminal() -> io::Result<()> {
    let watch = || {
        let stdin = io::stdin();
        // No event is asked for: a hang-up comes all the same (poll(2)).
        let mut asked = [PollFd::new(stdin.as_fd(), PollFlags::empty())];
        while matches!(poll(&mut asked, PollTimeout::NONE), Ok(0) | Err(Errno::EINTR)) {}
        std::process::exit(exit::DONE.into())
    };
    std::thread::Builder::new().name("terminal".into()).spawn(watch).map(drop)
}

fn failed(error: io::Error) -> Failure {
    Failure::new(exit::SYSTEM, format_args!("the terminal: {error}"))
}

/// Whether one of these letters was pressed together with Ctrl.
fn is_with_control(key: KeyEvent, letters: &str) -> bool {
    key.modifiers.contains(KeyModifiers::CONTROL) && matches!(key.code, KeyCode::Char(c) if letters.contains(c))
}
