//! Room `http`: what the HTTP port answers (`keyway-http` does the talking).
//!
//! | path | answer |
//! |---|---|
//! | `/metrics` | all numbers, as OpenMetrics or text (`stats::metrics`), from one [`Snapshot`] |
//! | `/healthz` | 200 while every worker runs and the server is not stopping, otherwise 503 with the reason |
//! | `/readyz` | 200 if an item could be stored and read within the last second (`ready`), otherwise 503 with the reason |
//! | `/` | a page for people (`page`) |
//! | `/state.json` | what the page shows: now (`state`), and in the last hour (`history`) |
//!
//! - Everything runs on the port's own thread. It reads counters that exist anyway, takes no lock for which a worker waits in a request, and
//!   asks nothing of a worker.
//! - No answer contains a value or a client's address, and none a key unless the operator has asked for that.

mod history;
mod page;
mod ready;
mod state;

use std::cell::RefCell;
use std::fs;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use keyway_cache::{Cache, Session};
use keyway_http::{Answer, Format, Hosts, Pulse, Question, Server, Stopper};

use crate::listener::HttpSockets;
use crate::shared::Shared;
use crate::stats::{Details, RequestCounts, Snapshot};
use history::History;
use ready::Prober;
use state::PageState;

const METRICS: &str = "/metrics";
const HEALTH: &str = "/healthz";
const READY: &str = "/readyz";
const PAGE: &str = "/";
const STATE: &str = "/state.json";
/// Time between two looks at the counters, for the history.
const SECOND: Duration = Duration::from_secs(1);
/// How requests for other paths are counted: a client chooses those names, and each new label would take memory.
const OTHER: &str = "other";

/// The port, ready to run.
pub(crate) struct Port {
    pub(crate) sockets: HttpSockets,
    pub(crate) hosts: Hosts,
    pub(crate) session: Session,
    pub(crate) stopper: Stopper,
}

/// What answers need.
struct Answers {
    shared: Arc<Shared>,
    cache: Cache,
    prober: RefCell<Prober>,
    requests: RefCell<RequestCounts>,
    state: RefCell<PageState>,
    history: RefCell<History>,
}

/// The hosts of the port: those with these names, and this machine by its own name, which no other site has.
pub(crate) fn hosts(names: &[String]) -> Hosts {
    let own = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let own = Some(own.trim()).filter(|own| !own.is_empty());
    Hosts::named(names.iter().map(String::as_str).chain(own))
}

impl Port {
    /// Serves until the stopper is used. The port's end, whatever its reason, does not end the server.
    pub(crate) fn run(self, shared: Arc<Shared>, cache: Cache) {
        let HttpSockets { listeners, mut file, .. } = self.sockets;
        let ended = Arc::clone(&shared);
        let evicts = cache.info().evict;
        let desk = Rc::new(Answers {
            shared,
            cache,
            prober: RefCell::new(Prober::new(self.session, evicts)),
            requests: RefCell::default(),
            state: RefCell::default(),
            history: RefCell::new(History::new()),
        });
        let same = Rc::clone(&desk);
        let pulse = Pulse {
            every: SECOND,
            beat: Box::new(move || same.remember()),
        };
        if let Err(error) = Server::new(listeners, self.hosts, self.stopper).run(move |question| desk.answer(question), pulse) {
            log::error!("the HTTP port is closed: {error}; the server goes on without it");
        }
        if let Some(file) = &mut file {
            file.set_shared(ended.life.taken_over_by().is_some());
        }
    }
}

impl Answers {
    fn answer(&self, question: &Question<'_>) -> Answer {
        let (path, answer) = match question.path {
            METRICS => (METRICS, self.metrics(Format::asked_for(question.accept))),
            HEALTH => (HEALTH, self.health()),
            READY => (READY, self.readiness()),
            PAGE => (PAGE, page::answer()),
            STATE => (STATE, self.state(question.query)),
            _ => (
                OTHER,
                Answer::text(404, format!("here are {METRICS}, {HEALTH}, {READY}, {STATE} and {PAGE}\n")),
            ),
        };
        *self.requests.borrow_mut().entry((path, answer.status)).or_default() += 1;
        answer
    }

    fn metrics(&self, format: Format) -> Answer {
        let (snapshot, details) = (
            Snapshot::take(&self.shared, &self.cache),
            Details::take(&self.shared, &self.cache),
        );
        Answer {
            content_type: format.content_type(),
            ..Answer::text(200, snapshot.metrics(&details, &self.requests.borrow(), format))
        }
    }

    /// `after=MS` leaves out samples that ended by then.
    fn state(&self, query: &str) -> Answer {
        let after_ms = query.split('&').find_map(|part| part.strip_prefix("after=")?.parse().ok());
        let mut state = self.state.borrow_mut().shown(&self.shared, &self.cache);
        state.insert("history".to_owned(), self.history.borrow().json(after_ms.unwrap_or(0)));
        Answer {
            content_type: "application/json",
            ..Answer::text(200, serde_json::Value::from(state).to_string())
        }
    }

    /// Once a second.
    fn remember(&self) {
        self.history.borrow_mut().remember(&self.shared, &self.cache);
    }

    fn health(&self) -> Answer {
        match self.illness() {
            None => Answer::text(200, "ok\n"),
            Some(why) => Answer::text(503, format!("{why}\n")),
        }
    }

    fn readiness(&self) -> Answer {
        if let Some(why) = self.illness() {
            return Answer::text(503, format!("not ready: {why}\n"));
        }
        match self.prober.borrow_mut().ask(Instant::now()) {
            Ok(()) => Answer::text(200, "ready\n"),
            Err(why) => Answer::text(503, format!("not ready: {why}\n")),
        }
    }

    fn illness(&self) -> Option<String> {
        let (all, running) = self.shared.workers.running();
        illness(self.shared.life.is_stopping(), running, all)
    }
}

/// Why the process does not serve as it should.
fn illness(is_stopping: bool, running: usize, threads: usize) -> Option<String> {
    if is_stopping {
        Some("the server is stopping".to_owned())
    } else if running < threads {
        Some(format!(
            "{running} of {threads} worker threads run: one has panicked, restart the server"
        ))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_stops_or_lacks_a_worker_is_not_healthy() {
        assert_eq!(illness(false, 4, 4), None);
        assert!(illness(true, 4, 4).is_some_and(|why| why.contains("stopping")));
        assert!(illness(false, 3, 4).is_some_and(|why| why.contains("3 of 4")));
    }
}
