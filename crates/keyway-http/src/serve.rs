//! The server: accepts, bounds, and asks for answers.
//!
//! | bound | value | beyond it |
//! |---|---|---|
//! | connections at a time | [`CONNECTIONS_MAX`] | the oldest one is closed |
//! | time from accept to the last byte of the answer | [`DEADLINE`] | the connection is closed |
//! | request line and headers together | [`HEAD_MAX`] | 431, or 414 for the request line, and the connection is closed |
//! | header lines | [`HEADERS_MAX`] | 431, the same |
//! | body of a request | none is read | the connection is closed after the answer |
//! | requests of a connection | 1 | the connection is closed after the answer |
//!
//! A request over TCP for another host than the port's own is answered 421 ([`Hosts`]). A browser connects to no Unix socket.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::task::{JoinHandle, LocalSet, spawn_local};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};

use crate::hosts::Hosts;
use crate::stream::Stream;

/// Most connections at a time.
pub const CONNECTIONS_MAX: usize = 32;
/// Longest time of a connection.
pub const DEADLINE: Duration = Duration::from_secs(5);
/// Most bytes of a request line and its headers.
pub const HEAD_MAX: usize = 8192;
/// Most header lines of a request.
pub const HEADERS_MAX: usize = 64;
/// The policy of an answer for which a browser need not load or run anything.
const NOTHING: &str = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// How long to wait after the process ran out of descriptors or memory.
const RETRY: Duration = Duration::from_millis(100);
/// How long a server that stops waits for answers that are on their way.
const LAST_ANSWERS: Duration = Duration::from_millis(500);

/// A listening socket, bound by the caller.
#[derive(Debug)]
pub enum Listener {
    /// a TCP address
    Tcp(std::net::TcpListener),
    /// a Unix stream socket
    Unix(std::os::unix::net::UnixListener),
}

/// What a client asks.
#[derive(Debug)]
pub struct Question<'a> {
    /// the path, without the query
    pub path: &'a str,
    /// the query, without the question mark; empty without one
    pub query: &'a str,
    /// the values of its `Accept` headers, joined by commas; empty without one
    pub accept: &'a str,
}

/// What it gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// the status code, 200 to 599
    pub status: u16,
    /// the `Content-Type`
    pub content_type: &'static str,
    /// the body; not sent to `HEAD`
    pub body: Vec<u8>,
    /// the `Content-Security-Policy`: what a browser may load and run for this answer, if that is anything
    pub policy: Option<String>,
}

/// What a server does besides answering, again and again.
pub struct Pulse {
    /// time between the beginnings of two beats
    pub every: Duration,
    /// a beat; it must be short, as an answer must
    pub beat: Box<dyn FnMut()>,
}

/// Ends a server from another thread.
#[derive(Clone, Debug, Default)]
pub struct Stopper(Arc<Notify>);

impl Stopper {
    /// Asks the server to end: it closes its sockets, finishes the answers that are on their way, and [`Server::run`] returns. A call before the
    /// server runs has the same effect.
    pub fn stop(&self) {
        self.0.notify_one();
    }
}

/// A server with bound sockets, not running yet.
#[derive(Debug)]
pub struct Server {
    listeners: Vec<Listener>,
    hosts: Hosts,
    stopper: Stopper,
}

/// A listener inside the runtime.
enum Door {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

/// The connections in progress, oldest first.
#[derive(Default)]
struct Guests(VecDeque<JoinHandle<()>>);

impl Guests {
    /// One more. Returns the one that has to go for it.
    fn take_in(&mut self, guest: JoinHandle<()>) -> Option<JoinHandle<()>> {
        self.0.retain(|guest| !guest.is_finished());
        self.0.push_back(guest);
        if self.0.len() > CONNECTIONS_MAX {
            self.0.pop_front()
        } else {
            None
        }
    }

    fn is_empty(&mut self) -> bool {
        self.0.retain(|guest| !guest.is_finished());
        self.0.is_empty()
    }
}

impl Server {
    /// A server for these sockets and, over TCP, for these hosts. `stopper` ends it.
    pub fn new(listeners: Vec<Listener>, hosts: Hosts, stopper: Stopper) -> Self {
        Self {
            listeners,
            hosts,
            stopper,
        }
    }

    /// Serves on the calling thread until its [`Stopper`] is used. `answer` runs on this thread too, and answers must come at once: other
    /// connections wait meanwhile. The `pulse` beats on this thread, the first time at once; beats that were missed are left out.
    ///
    /// # Errors
    ///
    /// The system refuses an event loop.
    pub fn run(self, answer: impl Fn(&Question<'_>) -> Answer + 'static, pulse: Pulse) -> io::Result<()> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let answer = Rc::new(answer);
        let guests = Rc::new(RefCell::new(Guests::default()));
        LocalSet::new().block_on(&runtime, async move {
            let mut accepting = Vec::new();
            for listener in self.listeners {
                let hosts = matches!(listener, Listener::Tcp(_)).then(|| Rc::new(self.hosts.clone()));
                let accept = accept_all(Door::open(listener)?, hosts, Rc::clone(&answer), Rc::clone(&guests));
                accepting.push(spawn_local(accept));
            }
            let pulse = spawn_local(beat_all(pulse));
            self.stopper.0.notified().await;
            pulse.abort();
            for task in &accepting {
                task.abort();
            }
            for task in accepting {
                // Aborted: its listener is closed when this returns.
                let _ = task.await;
            }
            let last = async {
                while !guests.borrow_mut().is_empty() {
                    sleep(Duration::from_millis(5)).await;
                }
            };
            let _ = timeout(LAST_ANSWERS, last).await;
            Ok(())
        })
    }
}

impl Door {
    fn open(listener: Listener) -> io::Result<Self> {
        match listener {
            Listener::Tcp(listener) => {
                listener.set_nonblocking(true)?;
                tokio::net::TcpListener::from_std(listener).map(Self::Tcp)
            }
            Listener::Unix(listener) => {
                listener.set_nonblocking(true)?;
                tokio::net::UnixListener::from_std(listener).map(Self::Unix)
            }
        }
    }
}

async fn beat_all(mut pulse: Pulse) {
    let mut alarm = interval(pulse.every);
    alarm.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        alarm.tick().await;
        (pulse.beat)();
    }
}

async fn accept_all<A>(door: Door, hosts: Option<Rc<Hosts>>, answer: Rc<A>, guests: Rc<RefCell<Guests>>)
where
    A: Fn(&Question<'_>) -> Answer + 'static,
{
    loop {
        let task = match &door {
            Door::Tcp(listener) => listener
                .accept()
                .await
                .map(|(stream, _)| spawn_local(converse(stream, hosts.clone(), Rc::clone(&answer)))),
            Door::Unix(listener) => listener
                .accept()
                .await
                .map(|(stream, _)| spawn_local(converse(stream, hosts.clone(), Rc::clone(&answer)))),
        };
        match task {
            Ok(task) => {
                let oldest = guests.borrow_mut().take_in(task);
                if let Some(oldest) = oldest {
                    oldest.abort();
                    // Its descriptor is closed when this returns, so that a flood of connections takes no more descriptors than this.
                    let _ = oldest.await;
                }
            }
            Err(error) => {
                log::debug!("HTTP: cannot accept a connection: {error}");
                sleep(RETRY).await;
            }
        }
    }
}

/// One connection: a request and its answer, within the deadline.
async fn converse<S, A>(stream: S, hosts: Option<Rc<Hosts>>, answer: Rc<A>)
where
    S: AsyncRead + AsyncWrite + Unpin + 'static,
    A: Fn(&Question<'_>) -> Answer + 'static,
{
    let service = service_fn(move |request: Request<Incoming>| {
        let response = respond(&request, hosts.as_deref(), &*answer);
        async move { Ok::<_, Infallible>(response) }
    });
    let mut protocol = http1::Builder::new();
    protocol
        .keep_alive(false)
        .header_read_timeout(None)
        .max_buf_size(HEAD_MAX)
        .max_headers(HEADERS_MAX);
    match timeout(DEADLINE, protocol.serve_connection(Stream(stream), service)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => log::debug!("HTTP: {error}"),
        Err(_) => log::debug!("HTTP: a connection took longer than {} s and was closed", DEADLINE.as_secs()),
    }
}

fn respond(
    request: &Request<Incoming>,
    hosts: Option<&Hosts>,
    answer: &impl Fn(&Question<'_>) -> Answer,
) -> Response<Full<Bytes>> {
    if let Some(host) = hosts.and_then(|hosts| hosts.stranger(request)) {
        return response(Answer::text(
            421,
            format!(
                "this server does not answer for the host \"{host}\": ask it by its address, or start it with --http-host and the name\n"
            ),
        ));
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut response = response(Answer::text(405, "only GET and HEAD are served here\n"));
        response
            .headers_mut()
            .insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let accepts = request.headers().get_all(header::ACCEPT).iter();
    let accept: Vec<&str> = accepts.filter_map(|value| value.to_str().ok()).collect();
    response(answer(&Question {
        path: request.uri().path(),
        query: request.uri().query().unwrap_or_default(),
        accept: &accept.join(","),
    }))
}

fn response(answer: Answer) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(answer.body));
    *response.status_mut() = StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let policy = answer.policy.and_then(|policy| HeaderValue::try_from(policy).ok());
    for (name, value) in [
        (header::CONTENT_TYPE, HeaderValue::from_static(answer.content_type)),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (
            header::CONTENT_SECURITY_POLICY,
            policy.unwrap_or(HeaderValue::from_static(NOTHING)),
        ),
    ] {
        response.headers_mut().insert(name, value);
    }
    response
}

impl Answer {
    /// A short text.
    pub fn text(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            content_type: "text/plain; charset=utf-8",
            body: body.into(),
            policy: None,
        }
    }
}
