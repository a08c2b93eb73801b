//! A guest: QEMU with one kernel, one archive of files and nothing of the host's, under software emulation (TCG), so that it is the
//! same everywhere. It ends with its handle, and with this process, however that ends.

use std::cell::Cell;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How long a guest may take. It boots in two seconds on an idle machine; no test measures time.
pub const PATIENCE: Duration = Duration::from_secs(180);
/// Times that a guest is booted before its death counts.
const BOOTS_MAX: usize = 3;
/// The emulator.
pub const QEMU: &str = "qemu-system-x86_64";
/// Gives the emulator a parent's death as its own (util-linux).
pub const SETPRIV: &str = "setpriv";
/// Everything that the emulator can, but for page tables of five levels, which only take longer, and `cmpxchg16b`, which in QEMU 7.2
/// leaves other bits in the flags register than it should (a kernel that is interrupted behind it dies of them; it does without).
const CPU: &str = "max,la57=off,cx16=off";
/// The kernel parameter that names what is to run.
pub const PARAMETER: &str = "vm.run=";

/// What to boot.
pub struct Boot<'a> {
    /// the kernel
    pub vmlinuz: &'a Path,
    /// the guest's files
    pub image: &'a Path,
    /// a file that the guest has as its persistent memory
    pub nvdimm: Option<&'a Path>,
    /// names of tests, separated by commas; a test's arguments follow it after colons
    pub run: &'a str,
    /// where the console's output goes
    pub console: PathBuf,
}

/// A line of a guest's report, or its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Said {
    /// this
    Line(String),
    /// nothing more: it is over
    End,
    /// nothing in time
    Silence,
}

/// A running guest.
pub struct Guest {
    qemu: Child,
    /// a line that was read to see whether it boots
    first: Cell<Option<String>>,
    lines: Receiver<String>,
    console: PathBuf,
    started: Instant,
}

impl Boot<'_> {
    /// Boots it. Under emulation a kernel dies now and then while it boots, for no reason of its tests: a guest that ends before its first
    /// line is booted anew.
    ///
    /// # Errors
    ///
    /// When the emulator cannot be started.
    pub fn start(self) -> Result<Guest, String> {
        for _ in 1..BOOTS_MAX {
            let mut guest = self.start_once()?;
            match guest.next() {
                Said::End => {}
                Said::Line(first) => {
                    guest.first = Cell::new(Some(first));
                    return Ok(guest);
                }
                Said::Silence => return Ok(guest),
            }
        }
        self.start_once()
    }

    fn start_once(&self) -> Result<Guest, String> {
        let mut command = Command::new(SETPRIV);
        command.args(["--pdeathsig", "KILL", "--", QEMU]);
        command.args(["-accel", "tcg", "-cpu", CPU, "-smp", "2"]);
        command.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        command.arg("-kernel").arg(self.vmlinuz).arg("-initrd").arg(self.image);
        // The first serial line is the console, the second one the report.
        let console = self.console.to_string_lossy().into_owned();
        command.args(["-serial", &format!("file:{console}"), "-serial", "stdio"]);
        let append = format!(
            "console=ttyS0 quiet loglevel=4 panic=-1 nokaslr mitigations=off {PARAMETER}{}",
            self.run
        );
        command.args(["-append", &append]);
        match self.nvdimm {
            None => command.args(["-machine", "pc", "-m", "1G"]),
            Some(file) => {
                let size = std::fs::metadata(file).map_err(|e| format!("{}: {e}", file.display()))?.len();
                let backend = format!("memory-backend-file,id=nv,share=on,mem-path={},size={size}", file.display());
                command.args(["-machine", "pc,nvdimm=on", "-m", "1G,slots=2,maxmem=4G"]);
                command.args(["-object", &backend, "-device", "nvdimm,memdev=nv"])
            }
        };
        let mut qemu = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|e| format!("{SETPRIV} {QEMU}: {e}"))?;
        let report = BufReader::new(qemu.stdout.take().ok_or("no output")?);
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in report.split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).trim_end_matches('\r').to_owned();
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Guest {
            qemu,
            first: Cell::new(None),
            lines,
            console: self.console.clone(),
            started: Instant::now(),
        })
    }
}

impl Guest {
    /// The next line of its report, waited for until its time is over.
    pub fn next(&self) -> Said {
        self.next_within(PATIENCE.saturating_sub(self.started.elapsed()))
    }

    /// The next line of its report, if it comes within this time.
    pub fn next_within(&self, patience: Duration) -> Said {
        if let Some(first) = self.first.take() {
            return Said::Line(first);
        }
        match self.lines.recv_timeout(patience) {
            Ok(line) => Said::Line(line),
            Err(RecvTimeoutError::Disconnected) => Said::End,
            Err(RecvTimeoutError::Timeout) => Said::Silence,
        }
    }

    /// Cuts its power: SIGKILL to the emulator. What it had reported before is still there to be read.
    pub fn kill(&mut self) {
        // it may be over already
        let _ = self.qemu.kill();
        let _ = self.qemu.wait();
    }

    /// The end of what its console showed.
    pub fn console(&self) -> String {
        let text = std::fs::read(&self.console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let mut shown = String::new();
        for line in &lines[lines.len().saturating_sub(60)..] {
            let _ = write!(shown, "\n    | {}", line.trim_end());
        }
        shown
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.kill();
    }
}
