//! Reports to a service manager: that the server serves, that its workers turn, what a reload has done, that it stops.
//!
//! A round of questions goes to every worker, and each answers from its event loop. When all have answered the first, the server serves.
//! A watchdog's sign of life is such a complete round: a worker that hangs, whatever holds it up, answers no more, so no sign is given.
//! The accepting thread asks and reports; a hung accepting thread reports nothing either.
//!
//! Never: ends a server that hangs (the service manager does), or asks anything without a service manager.

use std::time::{Duration, Instant};

use keyway_cache::Cache;

use crate::shared::Shared;

/// Rounds in the watchdog's time: several signs of life may be late, and none is missed.
const ROUNDS: u32 = 4;

/// What a server reports. The texts are for people: one line each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum News {
    /// every worker serves now
    Serving(String),
    /// every worker has turned since the last time; only if [`Manager::watchdog`] asks for it
    Alive(String),
    /// workers have not turned for a while
    Hanging(String),
    /// files are being read again
    Reloading,
    /// they were; or the old ones stay, for the reason in the log
    Reloaded(String),
    /// no new client is served
    Stopping,
    /// this process serves instead; this one will end
    TakenOver(u32),
}

/// A service manager.
pub trait Manager: Send {
    /// Takes a report. It must not block.
    fn report(&self, news: News);

    /// The longest time between two signs of life, if they are wanted.
    fn watchdog(&self) -> Option<Duration>;
}

/// The accepting thread's part.
pub(crate) struct Watchdog {
    manager: Box<dyn Manager>,
    watchdog: Option<Duration>,
    /// the number of the present round; 0: none yet
    round: u64,
    asked: Instant,
    /// not every worker has answered the present round
    is_waiting: bool,
    is_serving: bool,
    has_complained: bool,
    has_stopped: bool,
}

impl Watchdog {
    pub(crate) fn new(manager: Box<dyn Manager>) -> Self {
        Self {
            watchdog: manager.watchdog(),
            manager,
            round: 0,
            asked: Instant::now(),
            is_waiting: false,
            is_serving: false,
            has_complained: false,
            has_stopped: false,
        }
    }

    /// Time until [`Self::look`] has something to do by the clock.
    pub(crate) fn due_in(&self) -> Duration {
        let Some(watchdog) = self.watchdog else {
            return if self.round == 0 { Duration::ZERO } else { Duration::MAX };
        };
        let after = match (self.round, self.is_waiting) {
            (0, _) => return Duration::ZERO,
            (_, false) => watchdog / ROUNDS,
            (_, true) if self.has_complained => return Duration::MAX,
            (_, true) => watchdog / 2,
        };
        (self.asked + after).saturating_duration_since(Instant::now())
    }

    /// Asks the workers if it is time, and reports when all have answered.
    pub(crate) fn look(&mut self, cache: &Cache, shared: &Shared) {
        if shared.life.is_stopping() {
            if !std::mem::replace(&mut self.has_stopped, true) {
                self.manager
                    .report(shared.life.taken_over_by().map_or(News::Stopping, News::TakenOver));
            }
            return;
        }
        if self.is_waiting {
            let silent = shared.workers.silent(self.round);
            if silent.is_empty() {
                self.answered(cache, shared);
            } else if self.due_in().is_zero() {
                self.complain(&silent);
            }
        }
        if !self.is_waiting && self.due_in().is_zero() {
            self.ask(shared);
        }
    }

    fn ask(&mut self, shared: &Shared) {
        self.round += 1;
        self.asked = Instant::now();
        self.is_waiting = true;
        shared.workers.ask(self.round);
    }

    fn answered(&mut self, cache: &Cache, shared: &Shared) {
        self.is_waiting = false;
        if std::mem::take(&mut self.has_complained) {
            log::warn!("all workers turn again");
        }
        let status = status(cache, shared);
        if !std::mem::replace(&mut self.is_serving, true) {
            self.manager.report(News::Serving(status));
        } else if self.watchdog.is_some() {
            self.manager.report(News::Alive(status));
        }
    }

    fn complain(&mut self, silent: &[usize]) {
        self.has_complained = true;
        let text = format!(
            "worker threads {silent:?} have not turned for {} ms: the service manager gets no sign of life until they do",
            self.asked.elapsed().as_millis()
        );
        log::error!("{text}");
        self.manager.report(News::Hanging(text));
    }

    pub(crate) fn reloading(&self) {
        self.manager.report(News::Reloading);
    }

    pub(crate) fn reloaded(&self, text: String) {
        self.manager.report(News::Reloaded(text));
    }
}

/// The server's state in a line.
fn status(cache: &Cache, shared: &Shared) -> String {
    let listening = shared.peers.listening();
    let listening: Vec<String> = listening.iter().map(|(_, name)| name.replacen(':', " ", 1)).collect();
    format!(
        "serving on {}: {} connections, {} items",
        if listening.is_empty() {
            "no socket".to_owned()
        } else {
            listening.join(", ")
        },
        shared.peers.streams(),
        cache.counters().curr_items
    )
}
