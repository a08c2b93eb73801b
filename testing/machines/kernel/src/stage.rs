//! Where a frame is tried: on the host, or in the kernel by `BPF_PROG_TEST_RUN`.

use keyway_xdp::config::{Config, Verdict};
use keyway_xdp::door::Door;
use keyway_xdp::host::{Program, World};
use keyway_xdp::hot::HotSet;
use nix::time::{ClockId, clock_gettime};

use crate::world::{NOW_NS, NOW_S};

/// What the TC program returns for a packet that goes up (`TC_ACT_UNSPEC`), and for one that was answered
/// (`TC_ACT_REDIRECT`).
const UP: i32 = -1;
const REDIRECT: i32 = 7;

/// What became of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// this frame came back
    Answered(Vec<u8>),
    /// it went up as it was; the verdict where it is known
    Up(Option<Verdict>),
}

/// A place to try frames.
pub enum Stage<'a> {
    /// the program's C on this CPU
    Host {
        /// it
        program: Program,
        /// what it gets
        config: &'a Config,
        /// what it reads
        hot: HotSet<'a>,
        /// every source asks too often
        over_rate: bool,
        /// this host sends nothing to any source by the interface that a frame comes by
        no_path: bool,
    },
    /// the program in the kernel
    Kernel(&'a Door),
}

impl Stage<'_> {
    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Host { .. } => "on the host",
            Self::Kernel(_) => "in the kernel",
        }
    }

    /// Tries a frame, at the time [`NOW_S`].
    ///
    /// # Errors
    ///
    /// When the program does what it never may, or cannot be run.
    pub fn run(&mut self, frame: &[u8]) -> Result<Outcome, String> {
        match self {
            Self::Host {
                program,
                config,
                hot,
                over_rate,
                no_path,
            } => {
                hot.renew(NOW_NS + 1, u64::from(NOW_S) * 1_000_000_000 - NOW_NS);
                let world = World {
                    config,
                    hot: *hot,
                    now_ns: NOW_NS,
                    over_rate: *over_rate,
                    no_path: *no_path,
                };
                Ok(match program.decide(&world, frame) {
                    (Verdict::Hit, answer) => Outcome::Answered(answer.to_vec()),
                    (verdict, _) => Outcome::Up(Some(verdict)),
                })
            }
            Self::Kernel(_) if frame.len() < frame_len_min(frame) => Ok(Outcome::Up(None)),
            Self::Kernel(door) => {
                let (action, after) = loop {
                    let start = monotonic_ns();
                    door.hot().renew(u64::MAX, u64::from(NOW_S) * 1_000_000_000 - start);
                    let (action, after, _) = door.try_frame(frame, 1).map_err(|error| error.to_string())?;
                    // On a busy machine the second may be over meanwhile: then it is not the time that the frame is to see.
                    if monotonic_ns() - start < 900_000_000 {
                        break (action, after);
                    }
                };
                match action {
                    REDIRECT => Ok(Outcome::Answered(after)),
                    UP if after == frame => Ok(Outcome::Up(None)),
                    UP => Err("the frame went up, but not as it came".into()),
                    other => Err(format!("the program returned {other}")),
                }
            }
        }
    }
}

/// The shortest frame of this kind that the kernel takes for a test run (net/bpf/test_run.c).
fn frame_len_min(frame: &[u8]) -> usize {
    match frame.get(12..14) {
        Some(b"\x08\0") => 34,
        Some(b"\x86\xdd") => 54,
        // an Ethernet header, and something after it
        _ => 15,
    }
}

/// CLOCK_MONOTONIC.
pub fn monotonic_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC)
        .ok()
        .and_then(|time| u64::try_from(time.tv_sec() * 1_000_000_000 + time.tv_nsec()).ok())
        .unwrap_or(0)
}
