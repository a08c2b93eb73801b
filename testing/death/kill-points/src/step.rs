//! A child process, single-stepped (`ptrace(2)`, PTRACE_SINGLESTEP) from call to return, and what the region looks like after
//! every instruction that changed it.
//!
//! # Safety
//!
//! The only `unsafe` is `fork`: the calling process has one thread then, and the child never returns from here.
#![allow(unsafe_code, reason = "fork; contract above")]

use crate::ground::Ground;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill, raise};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, pipe};
use std::fs::File;
use std::io::{Read, Write};
use std::ops::Range;

/// Instructions after which an operation is said never to end.
const STEPS_MAX: u64 = 20_000_000;

/// One instruction that changed the region.
pub struct Change {
    /// its number
    pub step: u64,
    /// offsets and new values of the words that changed
    pub words: Vec<(u32, u64)>,
    /// whether no image before was the same
    pub is_new: bool,
}

/// An operation, stepped once.
pub struct Stepped {
    /// the region before it
    pub base: Vec<u8>,
    /// what happened to it
    pub changes: Vec<Change>,
    /// instructions from call to return
    pub steps: u64,
    /// what the operation answered
    pub outcome: String,
}

impl Stepped {
    /// Puts a change into an image.
    ///
    /// # Panics
    ///
    /// On an image of another size.
    pub fn apply(image: &mut [u8], change: &Change) {
        for (offset, word) in &change.words {
            let at = *offset as usize;
            image[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
    }

    /// The region after change number `n`.
    pub fn image(&self, n: usize) -> Vec<u8> {
        let mut image = self.base.clone();
        for change in self.changes.iter().take(n + 1) {
            Self::apply(&mut image, change);
        }
        image
    }
}

/// What the child does: `setup`, then the operation, which answers, then whatever ends it well.
pub trait Work {
    /// up to the call
    fn setup(&mut self);
    /// the call
    fn operate(&mut self) -> String;
    /// an orderly end
    fn end(&mut self);
}

/// A child that is stopped, and traced by this thread.
pub struct Child {
    pid: Pid,
    answer: File,
    gone: bool,
}

impl Child {
    /// Forks a child that works, and lets it come to its call.
    ///
    /// # Errors
    ///
    /// What went wrong, for people.
    pub fn at_call(mut work: impl Work) -> Result<Self, String> {
        let (read, write) = pipe().map_err(|e| format!("pipe: {e}"))?;
        // SAFETY: see the top of the file.
        match unsafe { fork() }.map_err(|e| format!("fork: {e}"))? {
            ForkResult::Child => {
                let traced = ptrace::traceme().is_ok();
                let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    work.setup();
                    let _ = raise(Signal::SIGSTOP);
                    let outcome = work.operate();
                    let _ = raise(Signal::SIGSTOP);
                    let _ = File::from(write).write_all(outcome.as_bytes());
                    work.end();
                }));
                // SAFETY: ends this process without running what the parent has registered.
                unsafe { nix::libc::_exit(i32::from(!(traced && done.is_ok()))) }
            }
            ForkResult::Parent { child, .. } => {
                drop(write);
                let child = Self {
                    pid: child,
                    answer: File::from(read),
                    gone: false,
                };
                match child.wait()? {
                    Signal::SIGSTOP => Ok(child),
                    other => Err(format!("the setup ended with {other}")),
                }
            }
        }
    }

    /// One instruction. `false`: the call has returned.
    ///
    /// # Errors
    ///
    /// It died, or got a signal that was not sent.
    pub fn step(&self) -> Result<bool, String> {
        ptrace::step(self.pid, None).map_err(|e| format!("ptrace: {e}"))?;
        match self.wait()? {
            Signal::SIGTRAP => Ok(true),
            Signal::SIGSTOP => Ok(false),
            other => Err(format!("the operation ended with {other}")),
        }
    }

    /// The address of its next instruction.
    fn instruction(&self) -> Result<u64, String> {
        let registers = ptrace::getregs(self.pid).map_err(|e| format!("ptrace: {e}"))?;
        Ok(registers.rip)
    }

    /// Up to `n` instructions, to the return at most.
    ///
    /// # Errors
    ///
    /// As [`Self::step`].
    pub fn steps(&self, n: u64) -> Result<(), String> {
        for _ in 0..n {
            if !self.step()? {
                break;
            }
        }
        Ok(())
    }

    /// Lets it go on from where it stands to its orderly end; what the operation answered.
    ///
    /// # Errors
    ///
    /// As [`Self::step`].
    pub fn finish(mut self) -> Result<String, String> {
        loop {
            ptrace::cont(self.pid, None).map_err(|e| format!("ptrace: {e}"))?;
            match waitpid(self.pid, None).map_err(|e| format!("wait: {e}"))? {
                WaitStatus::Stopped(_, Signal::SIGSTOP) => {}
                WaitStatus::Exited(_, 0) => break,
                other => {
                    self.gone = !matches!(other, WaitStatus::Stopped(..));
                    return Err(format!("the operation ended with {other:?}"));
                }
            }
        }
        self.gone = true;
        self.read_answer()
    }

    fn read_answer(&mut self) -> Result<String, String> {
        let mut answer = String::new();
        let read = self.answer.read_to_string(&mut answer);
        read.map_err(|e| format!("no answer: {e}"))?;
        Ok(answer)
    }

    /// Leaves it stopped where it stands as any process is (SIGSTOP), and untraced.
    ///
    /// # Errors
    ///
    /// It does not stop.
    pub fn stop(self) -> Result<Stopped, String> {
        ptrace::detach(self.pid, Signal::SIGSTOP).map_err(|e| format!("ptrace: {e}"))?;
        match waitpid(self.pid, Some(WaitPidFlag::WUNTRACED)).map_err(|e| format!("wait: {e}"))? {
            WaitStatus::Stopped(_, Signal::SIGSTOP) => Ok(Stopped(self)),
            other => Err(format!("it was to stop: {other:?}")),
        }
    }

    /// Kills it where it stands (SIGKILL), and waits until it is gone.
    pub fn kill(mut self) {
        self.end();
    }

    fn end(&mut self) {
        if !self.gone {
            self.gone = true;
            let _ = kill(self.pid, Signal::SIGKILL);
            let _ = waitpid(self.pid, None);
        }
    }

    fn wait(&self) -> Result<Signal, String> {
        match waitpid(self.pid, None).map_err(|e| format!("wait: {e}"))? {
            WaitStatus::Stopped(_, signal) => Ok(signal),
            other => Err(format!("the child is gone: {other:?}")),
        }
    }
}

/// A child that SIGSTOP has stopped.
pub struct Stopped(Child);

impl Stopped {
    /// Lets it go on (SIGCONT) to its orderly end; what the operation answered.
    ///
    /// # Errors
    ///
    /// It does not end well.
    pub fn go_on(self) -> Result<String, String> {
        let Self(mut child) = self;
        loop {
            kill(child.pid, Signal::SIGCONT).map_err(|e| format!("kill: {e}"))?;
            match waitpid(child.pid, Some(WaitPidFlag::WUNTRACED)).map_err(|e| format!("wait: {e}"))? {
                WaitStatus::Stopped(_, Signal::SIGSTOP) => {}
                other => {
                    child.gone = !matches!(other, WaitStatus::Stopped(..));
                    return match other {
                        WaitStatus::Exited(_, 0) => child.read_answer(),
                        other => Err(format!("when it went on it ended with {other:?}")),
                    };
                }
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.end();
    }
}

/// Steps a child at its call to the return and keeps every image that differs from the one before.
///
/// # Errors
///
/// It died, got a signal, or never ended.
pub fn through(ground: &Ground, child: Child) -> Result<Stepped, String> {
    let base = ground.bytes().to_vec();
    let vdso = vdso()?;
    let mut now = base.clone();
    let mut seen = std::collections::HashSet::from([xxhash_rust::xxh64::xxh64(&base, 0)]);
    let mut changes = Vec::new();
    let mut steps = 0;
    while child.step()? {
        steps += 1;
        if steps > STEPS_MAX {
            return Err(format!("{STEPS_MAX} instructions are not enough"));
        }
        // The clock's code there takes what it read for void and begins again if the kernel has told the time meanwhile: stepped as
        // slowly as the rest it would never end.
        if vdso.contains(&child.instruction()?) {
            continue;
        }
        let words = update(&mut now, ground.bytes());
        if !words.is_empty() {
            let is_new = seen.insert(xxhash_rust::xxh64::xxh64(&now, 0));
            changes.push(Change {
                step: steps,
                words,
                is_new,
            });
        }
    }
    let outcome = child.finish()?;
    Ok(Stepped {
        base,
        changes,
        steps,
        outcome,
    })
}

/// Where the kernel's code for user space is (vdso(7)): in a forked child at the same place as here.
fn vdso() -> Result<Range<u64>, String> {
    let maps = std::fs::read_to_string("/proc/self/maps").map_err(|e| format!("/proc/self/maps: {e}"))?;
    let line = maps.lines().find(|line| line.ends_with("[vdso]"));
    let range = line.and_then(|line| line.split_once(' ')?.0.split_once('-'));
    let parsed = range.and_then(|(start, end)| {
        let [start, end] = [start, end].map(|text| u64::from_str_radix(text, 16).ok());
        Some(start?..end?)
    });
    // Without one, the clock is a system call.
    Ok(parsed.unwrap_or_default())
}

/// Makes `old` the same as `new`; the words in which they differed.
fn update(old: &mut [u8], new: &[u8]) -> Vec<(u32, u64)> {
    const PAGE: usize = 4096;
    let mut words = Vec::new();
    for (page, (old, new)) in old.chunks_mut(PAGE).zip(new.chunks(PAGE)).enumerate() {
        if old == new {
            continue;
        }
        for (i, (old, new)) in old.chunks_exact_mut(8).zip(new.chunks_exact(8)).enumerate() {
            if old != new {
                old.copy_from_slice(new);
                let word = new.try_into().map_or(0, u64::from_le_bytes);
                words.push((u32::try_from(page * PAGE + i * 8).unwrap_or(u32::MAX), word));
            }
        }
    }
    words
}
