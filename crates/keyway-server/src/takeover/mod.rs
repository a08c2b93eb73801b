//! Taking over: a second server of the same region and user gets the running one's sockets and its clients' plain connections, and
//! continues where that one stopped. No client notices.
//!
//! The running server listens on a Unix socket with an abstract name that is derived from its region (`listener::take_over_name`). This name is the role:
//! only the process that accepts connections there is the region's server. The name belongs to the socket, the socket is handed over with the
//! others, and its old owner stops accepting before the new one starts, so at most one server has the role.
//!
//! | the new server | | the running server |
//! |---|---|---|
//! | reads its files, then connects | | accepts only its own user |
//! | `Hello`: its version | → | another version: `Refused` |
//! | | ← | `Welcome`, each `Socket`, `AllSockets`; it still serves |
//! | binds what is missing, opens the region, confines itself: all that can fail | | |
//! | `Prepared` | → | halts at a request boundary: acceptor, workers, kernel door ([`Halt`]) |
//! | | ← | each plain `Connection` with its state, `AllConnections` |
//! | `Ready`: it has everything | → | |
//! | | ← | `Commit`: from here on it does not resume on its own decision |
//! | `Taken`, then serves | → | closes what it has handed over, answers its other clients, ends |
//!
//! Before `Commit` the running server resumes with everything if the connection breaks, an answer is late ([`PATIENCE`]) or the new server
//! gives up. After it, only if the connection breaks without `Taken`: then the new server has died, and has served nothing. So there is no
//! moment in which both serve.
//!
//! If the running server dies, the new one continues with what it has got. It does so only if it knows that the other one has ended (by the
//! descriptor that came with `Welcome`): a connection that is closed is not enough, because the running server closes it when it resumes.
//!
//! Connections with TLS are not handed over, because their keys and counters are inside the TLS library; neither are those that hold more than
//! [`CARRIED_MAX`](crate::connection::CARRIED_MAX), and those in the middle of a task. The old server answers what they have sent, closes them at a request boundary, and
//! ends when there are none left, or after `Config::shutdown_grace`.
//!
//! | file | holds |
//! |---|---|
//! | `message` | the messages, and how they are sent |
//! | `halt` | how the running server's threads stop and continue together |
//! | `give` | the running server's side |
//! | `take` | the new server's side |

mod give;
mod halt;
mod message;
mod take;

pub(crate) use give::{admit, give, send_refusal};
pub(crate) use halt::{Halt, HaltVerdict, Stage};
pub(crate) use take::Predecessor;
pub use take::{TakeOver, TakeOverError};

use std::time::Duration;

/// While one of the two servers waits for the other one and clients wait too, each message comes within this time.
const PATIENCE: Duration = Duration::from_secs(5);
/// The new server gets this time to prepare. The running server serves meanwhile.
const PREPARATION_MAX: Duration = Duration::from_secs(600);
