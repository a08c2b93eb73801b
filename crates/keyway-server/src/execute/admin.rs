//! Commands about the server rather than about items: who may give them, and what they do.
//!
//! Never: touches an item, or waits. What takes long becomes a [`Task`] of another thread, or a dump that goes step by step.

use keyway_cache::server::ServerSession as _;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use keyway_proto::{Admin, DumpFormat, Needs, Tokens, reply, tokens};

use super::{Dump, Executor, Origin, Outcome, Task, answer_unless, refusal};
use crate::config::PROTOCOL_VERSION;
use crate::cpu_budget::{STATS, TURN_WORK};
use crate::shared::{CloseReason, Notice, Peer, PeerAddress};
use crate::watch::WatchAsked;
use crate::{hotkeys, stats};

/// The log level is for the operator to set.
const NO_TLS: &[u8] = b"SERVER_ERROR no TLS here, so no certificates\r\n";
const NOT_REFRESHED: &[u8] = b"SERVER_ERROR the new certificate cannot be used, the old one stays: see the log\r\n";
const VERBOSITY_REFUSED: &[u8] = b"CLIENT_ERROR verbosity not allowed from other machines without logins\r\n";

const MEMLIMIT_FAILED: &[u8] = b"MEMLIMIT_ADJUST_FAILED out of bounds or unable to adjust\r\n";

/// Executes these commands.
pub(super) struct Administration<'a>(pub(super) &'a mut Executor);

impl Administration<'_> {
    /// Executes `request` and appends its answer to `out`.
    #[cold]
    pub(super) fn answer(&mut self, request: &Admin<'_>, out: &mut Vec<u8>, origin: &Origin<'_>) -> Outcome {
        if let Some(refusal) = self.denial(request, origin.peer) {
            out.extend_from_slice(refusal);
            return Outcome::Done;
        }
        match request {
            Admin::FlushAll { delay, noreply } => {
                let answer = match self.0.items.session.flush_all((*delay).into()) {
                    Err(error) => {
                        log::error!("flush_all: {error}");
                        refusal(error)
                    }
                    Ok(()) => {
                        log::info!("{}: flush_all {delay}", origin.peer.address);
                        reply::OK
                    }
                };
                answer_unless(*noreply, answer, out);
            }
            Admin::Version => reply::version(out, PROTOCOL_VERSION),
            Admin::Verbosity { level, noreply } => {
                self.set_verbosity(*level);
                answer_unless(*noreply, reply::OK, out);
            }
            Admin::Quit => return Outcome::Close(CloseReason::Normal),
            Admin::Stats { argument } => return self.stats(argument, out),
            Admin::CacheMemlimit { megabytes, noreply } => return self.memory_limit(*megabytes, *noreply, out, origin),
            Admin::Shutdown { graceful: _ } => {
                log::info!("{}: shutdown", origin.peer.address);
                self.0.items.shared.stop();
                return Outcome::Close(CloseReason::Shutdown);
            }
            Admin::Dump { format, what } => return Self::dump(*format, what, out),
            Admin::Watch { what } => return self.watch(what, out, origin),
            Admin::RefreshCerts { noreply } => {
                self.0.cpu_budget.spend(TURN_WORK);
                let refreshed = self.0.items.shared.refresh_certificates("refresh_certs");
                answer_unless(
                    *noreply,
                    refreshed.map_or(NO_TLS, |done| if done { reply::OK } else { NOT_REFRESHED }),
                    out,
                );
            }
            Admin::Obsolete { reply, noreply, .. } => answer_unless(*noreply, reply, out),
        }
        Outcome::Done
    }

    /// The error for a request that this server's configuration, or the client's address, does not allow; empty if the client asked for no
    /// reply.
    fn denial(&self, request: &Admin<'_>, peer: &Peer) -> Option<&'static [u8]> {
        let config = &self.0.items.shared.config;
        let (allowed, refusal) = match request.command().facts().needs {
            Needs::Nothing => return None,
            Needs::Flushing => (self.0.items.session.limits().flush, reply::FLUSH_DISABLED),
            Needs::ShuttingDown => (config.shutdown_enabled, reply::SHUTDOWN_DISABLED),
            Needs::Watching => (config.watch_enabled, reply::WATCH_DISABLED),
            Needs::Trust => (self.trusts(peer), VERBOSITY_REFUSED),
            Needs::Dumping => match request {
                // A setting of the crawler that has no effect here.
                Admin::Obsolete { .. } => return None,
                Admin::Dump {
                    format: DumpFormat::Metadump,
                    ..
                } => (config.dump_enabled, reply::METADUMP_DISABLED),
                _ => (config.dump_enabled, reply::MGDUMP_DISABLED),
            },
        };
        (!allowed).then_some(if request.is_silent() { b"" } else { refusal })
    }

    /// memcached's verbosity as a level of the log: 0 warnings, 1 the server's doings, 2 connections, 3 requests.
    fn set_verbosity(&self, level: u32) {
        let level = u8::try_from(level).unwrap_or(u8::MAX).min(3);
        self.0.items.shared.verbosity.store(level, Relaxed);
        log::set_max_level(crate::basics::log_level(level));
    }

    /// Whether this client may do what is for the operator, such as changing the log level: it is on this machine, or has logged in.
    fn trusts(&self, peer: &Peer) -> bool {
        match &peer.address {
            PeerAddress::Unix | PeerAddress::Reader => true,
            PeerAddress::Tcp { remote, .. } => self.0.items.shared.users.is_some() || remote.ip().to_canonical().is_loopback(),
            PeerAddress::Udp { .. } => false,
        }
    }

    fn memory_limit(&self, megabytes: u64, noreply: bool, out: &mut Vec<u8>, origin: &Origin<'_>) -> Outcome {
        let memory = match megabytes.checked_mul(1 << 20) {
            Some(_) if megabytes < 8 => {
                answer_unless(noreply, b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n", out);
                return Outcome::Done;
            }
            memory => memory.unwrap_or(u64::MAX),
        };
        // The kernel clears the new memory, a third of a second for each GiB; other connections do not wait for that.
        let task = Arc::new(Task::default());
        let (done, worker, token) = (Arc::clone(&task), self.0.items.worker, origin.token);
        let (shared, cache) = (Arc::clone(&self.0.items.shared), self.0.cache.clone());
        let work = move || {
            let answer = match shared.memory.set(&shared.life, &cache, memory) {
                true => reply::OK,
                false => MEMLIMIT_FAILED,
            };
            let _ = done.0.set(if noreply { b"" } else { answer });
            shared.workers.send(worker, Notice::Turn(token));
        };
        match std::thread::Builder::new().name("keyway-memory".to_owned()).spawn(work) {
            Ok(_) => Outcome::Wait(task),
            Err(error) => {
                log::warn!("cache_memlimit: no thread for it: {error}");
                answer_unless(noreply, MEMLIMIT_FAILED, out);
                Outcome::Done
            }
        }
    }

    fn dump(format: DumpFormat, what: &[u8], out: &mut Vec<u8>) -> Outcome {
        match Dump::items(format, what) {
            Ok(dump) => Outcome::Dump(dump),
            Err(refusal) => {
                out.extend_from_slice(refusal);
                Outcome::Done
            }
        }
    }

    fn watch(&self, what: &[u8], out: &mut Vec<u8>, origin: &Origin<'_>) -> Outcome {
        let place = (self.0.items.worker, origin.token);
        let answer: &[u8] = match WatchAsked::parse(what) {
            Err(_) => reply::ERROR,
            Ok(asked) => match self.0.items.shared.watch_as(asked, place, &self.0.cache) {
                Some(watcher) => {
                    out.extend_from_slice(reply::OK);
                    return Outcome::Watch(watcher);
                }
                None => b"WATCHER_TOO_MANY log watcher limit reached\r\n",
            },
        };
        out.extend_from_slice(answer);
        Outcome::Done
    }

    pub(super) fn stats(&mut self, argument: &[u8], out: &mut Vec<u8>) -> Outcome {
        self.0.cpu_budget.spend(STATS);
        let mut words = tokens(argument);
        let (shared, cache) = (&self.0.items.shared, &self.0.cache);
        match words.next().unwrap_or_default() {
            b"" => stats::general(shared, cache, out),
            b"hotkeys" => self.stats_hotkeys(words, out),
            b"settings" => stats::settings(shared, cache, out),
            b"items" => stats::items(shared, cache, out),
            b"slabs" => stats::slabs(shared, cache, out),
            b"sizes" if shared.config.track_sizes => return Outcome::Dump(Dump::sizes()),
            b"sizes" => stats::sizes(out),
            b"sizes_enable" | b"sizes_disable" => out.extend_from_slice(b"STAT sizes_error not_available\r\nEND\r\n"),
            b"latency" => stats::latency(shared, cache, out),
            b"conns" => return Outcome::Dump(Dump::Connections { next: None }),
            b"kernel" => match &shared.kernel {
                Some(post) => post.stats_per_cpu(out),
                None => out.extend_from_slice(reply::ERROR),
            },
            b"reset" => {
                shared.since.reset(shared, cache);
                shared.detail.clear();
                out.extend_from_slice(reply::RESET);
            }
            b"detail" if !shared.config.dump_enabled => out.extend_from_slice(b"CLIENT_ERROR stats detail not allowed\r\n"),
            b"detail" => return self.stats_detail(words, out),
            b"cachedump" if !shared.config.dump_enabled => out.extend_from_slice(b"CLIENT_ERROR stats cachedump not allowed\r\n"),
            b"cachedump" => return stats_cachedump(words, out),
            _ => out.extend_from_slice(reply::ERROR),
        }
        Outcome::Done
    }

    /// Keys; or prefixes, up to the delimiter of `-D` or the one that is given.
    fn stats_hotkeys(&self, mut words: Tokens<'_>, out: &mut Vec<u8>) {
        let shared = &self.0.items.shared;
        let delimiter = [shared.detail.delimiter()];
        let separator = match (words.next(), words.next(), words.next()) {
            (None, ..) => None,
            (Some(b"prefix"), None, _) => Some(&delimiter[..]),
            (Some(b"prefix"), given, None) => given,
            _ => return out.extend_from_slice(b"CLIENT_ERROR usage: stats hotkeys [prefix [separator]]\r\n"),
        };
        hotkeys::write(&shared.hot, &self.0.cache, separator, !shared.config.dump_enabled, out);
    }

    fn stats_detail(&self, mut words: Tokens<'_>, out: &mut Vec<u8>) -> Outcome {
        match words.next() {
            Some(b"dump") => return Outcome::Dump(Dump::Prefixes { after: None }),
            Some(b"on") => self.0.items.shared.detail.enable(true),
            Some(b"off") => self.0.items.shared.detail.enable(false),
            _ => {
                out.extend_from_slice(b"CLIENT_ERROR usage: stats detail on|off|dump\r\n");
                return Outcome::Done;
            }
        }
        out.extend_from_slice(reply::OK);
        Outcome::Done
    }
}

fn stats_cachedump(mut words: Tokens<'_>, out: &mut Vec<u8>) -> Outcome {
    let mut number = || {
        words
            .next()
            .map(|word| std::str::from_utf8(word).ok().and_then(|word| word.parse::<u32>().ok()))
    };
    match (number(), number()) {
        (None, _) | (_, None) => out.extend_from_slice(b"CLIENT_ERROR bad command line\r\n"),
        (Some(Some(class @ 0..64)), Some(Some(limit))) => {
            return Outcome::Dump(Dump::cachedump(class, usize::try_from(limit).unwrap_or(usize::MAX)));
        }
        (Some(Some(_)), Some(Some(_))) => out.extend_from_slice(b"CLIENT_ERROR Illegal slab id\r\n"),
        _ => out.extend_from_slice(reply::BAD_FORMAT),
    }
    Outcome::Done
}
