//! The requests of one datagram: which of them are executed, and where their answer ends.
//!
//! Never: touches a socket, or keeps anything for the next datagram.

use keyway_proto::{Admin, Decoded, Decoder, Limits, OverUdp, Request, binary};

use crate::cpu_budget::REQUEST;
use crate::execute::{Executor, Origin, Outcome};
use crate::shared::Peer;
use crate::shown::Shown;

/// Most requests of a datagram that are executed.
const REQUESTS_MAX: usize = 64;
/// A request that needs a connection: it changes the server, or its answer is long, and the sender's address may be forged.
const NEEDS_CONNECTION: &[u8] = b"SERVER_ERROR not over UDP; use TCP or a Unix socket\r\n";
/// The answer is longer, or takes more work, than one datagram may ask for.
pub(super) const ANSWER_TOO_LONG: &[u8] = b"SERVER_ERROR the rest is too long for UDP; use TCP or a Unix socket\r\n";

/// What to do after a request of a datagram.
enum AfterRequest {
    Request,
    End,
    TooLong,
}

/// Whether a payload is an error line, which is an answer and not a request. A server sends an error line to a sender of something
/// wrong. If two servers answered each other's error lines, one forged datagram would start an endless exchange.
pub(super) fn is_error_line(payload: &[u8]) -> bool {
    [&b"ERROR"[..], b"CLIENT_ERROR", b"SERVER_ERROR"]
        .iter()
        .any(|word| payload.starts_with(word))
}

/// Executes the complete requests in `input` and appends the answers to `out`, within a datagram's bounds. An unfinished request is
/// dropped. Returns how many requests there were.
pub(super) fn execute_all(executor: &mut Executor, mut input: &[u8], peer: &Peer, out: &mut Vec<u8>) -> usize {
    let start = out.len();
    let room = executor.shared().config.udp_answer_max.saturating_sub(ANSWER_TOO_LONG.len());
    let mut decoder = Decoder::speaking(Limits::default(), executor.shared().config.protocol);
    decoder.allow_items_of(executor.item_size_max());
    let mut requests = 0;
    while !input.is_empty() {
        if requests == REQUESTS_MAX || executor.cpu_budget.is_datagram_over() {
            out.extend_from_slice(ANSWER_TOO_LONG);
            break;
        }
        requests += 1;
        if log::log_enabled!(log::Level::Trace) {
            log::trace!("{} < {}", peer.address, Shown(input));
        }
        let before = out.len();
        let taken_up = executor.take_up();
        let consumed = match decoder.decode(input) {
            Decoded::Incomplete { .. } => {
                executor.counters().udp_dropped.add(1);
                log::debug!("{}: an unfinished request is dropped", peer.address);
                break;
            }
            Decoded::Request { consumed, request } => {
                let origin = Origin {
                    peer,
                    token: 0,
                    sent: start,
                    keys_done: 0,
                    room,
                    is_bounded: true,
                    is_line: false,
                    may_write: true,
                    socket: None,
                };
                if let Some(served) = executor.served() {
                    served.note(&request);
                }
                match execute_one(executor, &request, out, &origin, taken_up) {
                    AfterRequest::Request => consumed,
                    AfterRequest::End => break,
                    AfterRequest::TooLong => {
                        out.extend_from_slice(ANSWER_TOO_LONG);
                        break;
                    }
                }
            }
            Decoded::TooLarge { consumed, forget } => {
                executor.too_large(forget.as_ref());
                consumed
            }
            Decoded::Refused { consumed, reply, close } => {
                out.extend_from_slice(reply);
                if close {
                    break;
                }
                consumed
            }
        };
        input = input.get(consumed..).unwrap_or_default();
        executor.cpu_budget.spend(REQUEST);
        executor.cpu_budget.spend_on_bytes(consumed + out.len() - before);
        if out.len() - start > room {
            out.truncate(before);
            out.extend_from_slice(ANSWER_TOO_LONG);
            break;
        }
    }
    requests
}

/// `taken_up`: a reading of the timer.
fn execute_one(
    executor: &mut Executor,
    request: &Request<'_>,
    out: &mut Vec<u8>,
    origin: &Origin<'_>,
    taken_up: u64,
) -> AfterRequest {
    if !is_for_udp(request) {
        executor.counters().udp_refused_requests.add(1);
        match request {
            Request::Binary(request) => {
                let text = NEEDS_CONNECTION.strip_prefix(b"SERVER_ERROR ").unwrap_or(NEEDS_CONNECTION);
                let text = text.strip_suffix(b"\r\n").unwrap_or(text);
                binary::error_saying(out, request.head, binary::Status::UnknownCommand, text);
            }
            _ => out.extend_from_slice(NEEDS_CONNECTION),
        }
        return AfterRequest::Request;
    }
    match executor.execute(request, out, origin, taken_up).0 {
        Outcome::Done => AfterRequest::Request,
        Outcome::Partly { .. } => AfterRequest::TooLong,
        Outcome::Broken | Outcome::Close(_) | Outcome::Dump(_) | Outcome::Watch(_) | Outcome::Wait(_) | Outcome::LogIn => {
            AfterRequest::End
        }
    }
}

/// Whether a datagram may contain this request ([`OverUdp`]). A refused packet gets the same answer as over TCP.
fn is_for_udp(request: &Request<'_>) -> bool {
    match request.command().map(|command| command.facts().over_udp) {
        None | Some(OverUdp::Answered) => true,
        Some(OverUdp::AnsweredBare) => matches!(
            request,
            Request::Admin(Admin::Stats { argument: b"" })
                | Request::Binary(binary::Packet {
                    operation: binary::Operation::Stat { argument: b"" },
                    ..
                })
        ),
        Some(OverUdp::Refused) => false,
    }
}
