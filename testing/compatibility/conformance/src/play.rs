//! Holds a conversation with a server and says where the server departs from the table.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use harness::{DEADLINE, Kind, Transport, Wire, printable};

use crate::pattern::{Names, Verdict};
use crate::table::{Block, Conversation, Expected};

/// How the requests reach the server. The replies must be the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manner {
    /// one step, then its reply, then the next step
    Stepwise,
    /// all steps in one write
    Pipelined,
    /// a byte at a time
    Trickled,
    /// as stepwise, and what only reads is asked for [`REPEATS`] times: a server that answers for hot keys otherwise than for others
    /// gets to do so
    Repeated,
}

/// See [`Manner::Repeated`].
const REPEATS: u32 = 8;
/// Between them: a server may make a copy of what is hot.
const REPEAT_PAUSE: Duration = Duration::from_millis(1);

/// Requests longer than this are not sent byte by byte: it would only take long.
const TRICKLED_MAX: usize = 4_000;
/// A request that only says that everything before it has been answered (protocol.txt, "Meta No-Op").
const FENCE: &[u8] = b"mn\r\n";
const FENCE_REPLY: &[u8] = b"MN\r\n";
/// How long a server may stay silent where a reply is due.
const SILENCE_MAX: Duration = Duration::from_secs(20);

impl Manner {
    /// Those that every server is held to.
    pub const ALL: [Manner; 3] = [Manner::Stepwise, Manner::Pipelined, Manner::Trickled];

    /// Whether a conversation can be held so.
    pub fn suits(self, conversation: &Conversation) -> bool {
        match self {
            Manner::Stepwise => true,
            Manner::Repeated => !conversation.asks_for_traces(),
            // with a single step it would be the same as stepwise
            Manner::Pipelined => conversation.can_be_pipelined() && conversation.steps.len() > 1,
            Manner::Trickled => {
                let literal = |part: &crate::table::Part| match part {
                    crate::table::Part::Literal(bytes) => bytes.len(),
                    _ => 20,
                };
                let len: usize = conversation.steps.iter().flat_map(|step| &step.request.0).map(literal).sum();
                len <= TRICKLED_MAX && conversation.steps.iter().all(|step| !step.poll)
            }
        }
    }
}

/// A server that departed from the table.
#[derive(Debug)]
pub struct Departure {
    /// where, and how
    pub why: String,
    /// how long the client took to the first polled step, or to the departure if that was before
    pub took: Duration,
    /// the server had sent no byte of the answer that was waited for, until the client gave up
    pub unanswered: bool,
}

impl Departure {
    /// Whether the client was too slow for what the conversation expects: then nothing is known of the server.
    pub fn is_late(&self, conversation: &Conversation) -> bool {
        conversation.within.is_some_and(|within| self.took > within)
    }

    /// Whether a client would ask again: it was too slow itself, or a datagram of memcached's was lost. On a busy machine memcached
    /// loses one now and then; Keyway is held to each.
    pub fn is_to_be_asked_again(&self, conversation: &Conversation, kind: Kind, transport: Transport) -> bool {
        let is_lost = self.unanswered && kind == Kind::Memcached && transport == Transport::Udp;
        is_lost || self.is_late(conversation)
    }
}

/// Holds the conversation.
///
/// # Errors
///
/// Where the server departed from the table.
pub fn play(conversation: &Conversation, wire: &mut Wire, manner: Manner) -> Result<(), Departure> {
    let start = Instant::now();
    let mut took = None;
    play_timed(conversation, wire, manner, &mut || took = took.or(Some(start.elapsed()))).map_err(|why| Departure {
        why,
        took: took.unwrap_or_else(|| start.elapsed()),
        unanswered: wire.pending().is_empty() && start.elapsed() >= SILENCE_MAX,
    })
}

fn play_timed(conversation: &Conversation, wire: &mut Wire, manner: Manner, polling: &mut impl FnMut()) -> Result<(), String> {
    wire.set_timeout(SILENCE_MAX).map_err(|e| e.to_string())?;
    let mut names = Names::new();
    let mut closed = false;
    if manner == Manner::Pipelined {
        let all: Vec<u8> = conversation
            .steps
            .iter()
            .flat_map(|step| step.request.bytes(&names))
            .collect();
        let writer = send_aside(wire, all, usize::MAX)?;
        for (index, step) in conversation.steps.iter().enumerate() {
            closed = receive(&step.expected, wire, &mut names).map_err(|why| at_step(index, &why))?;
        }
        // a server that closes early has made the rest of the requests moot
        let _ = writer.join();
    } else {
        for (index, step) in conversation.steps.iter().enumerate() {
            let result = if manner == Manner::Repeated && step.only_reads(&names) {
                repeated_step(step, wire, &mut names)
            } else if step.poll {
                polling();
                poll_step(step, wire, &mut names)
            } else {
                one_step(step, wire, &mut names, manner)
            };
            closed = result.map_err(|why| at_step(index, &why))?;
        }
    }
    if closed || conversation.one_way {
        Ok(())
    } else {
        nothing_left(wire)
    }
}

fn at_step(index: usize, why: &str) -> String {
    format!("step {}: {why}", index + 1)
}

fn one_step(step: &crate::table::Step, wire: &mut Wire, names: &mut Names, manner: Manner) -> Result<bool, String> {
    let request = step.request.bytes(names);
    if manner == Manner::Trickled || request.len() > 32 << 10 {
        // the server may answer before it has read everything: a thread must read meanwhile
        let chunk = if manner == Manner::Trickled { 1 } else { usize::MAX };
        let writer = send_aside(wire, request, chunk)?;
        let closed = receive(&step.expected, wire, names)?;
        let _ = writer.join();
        return Ok(closed);
    }
    match wire.send(&request) {
        // a server that closes the connection has its reasons in the expected reply
        Err(e) if !matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => Err(format!("sending: {e}")),
        _ => receive(&step.expected, wire, names),
    }
}

fn repeated_step(step: &crate::table::Step, wire: &mut Wire, names: &mut Names) -> Result<bool, String> {
    for round in 1..=REPEATS {
        one_step(step, wire, names, Manner::Stepwise).map_err(|why| format!("for the {round}. time: {why}"))?;
        std::thread::sleep(REPEAT_PAUSE);
    }
    Ok(false)
}

fn poll_step(step: &crate::table::Step, wire: &mut Wire, names: &mut Names) -> Result<bool, String> {
    let start = Instant::now();
    loop {
        wire.send(&step.request.bytes(names)).map_err(|e| format!("sending: {e}"))?;
        let verdict = match &step.expected {
            Expected::Block(block) => receive_block(block, wire),
            Expected::Reply { .. } => receive_fenced(&step.expected, wire, names),
        };
        match verdict {
            Ok(()) => return Ok(false),
            Err(why) if start.elapsed() > DEADLINE => return Err(format!("after {DEADLINE:?} still {why}")),
            Err(_) => std::thread::sleep(Duration::from_millis(40)),
        }
    }
}

/// Reads a reply of unknown length: a fence behind the request tells where it ends.
fn receive_fenced(expected: &Expected, wire: &mut Wire, names: &mut Names) -> Result<(), String> {
    wire.send(FENCE).map_err(|e| format!("sending: {e}"))?;
    while !wire.pending().ends_with(FENCE_REPLY) {
        if !wire.fill().map_err(|e| e.to_string())? {
            return Err("the server closed the connection".into());
        }
    }
    let whole = wire.pending().to_vec();
    wire.consume(whole.len());
    agrees(expected, &whole[..whole.len() - FENCE_REPLY.len()], names)
}

/// Whether a whole reply is as expected.
fn agrees(expected: &Expected, reply: &[u8], names: &mut Names) -> Result<(), String> {
    let Expected::Reply { reply: pattern, .. } = expected else {
        return Err("a block is read by its lines".into());
    };
    match pattern.compare(reply, names) {
        Verdict::Agrees { len } if len == reply.len() => Ok(()),
        Verdict::Agrees { len } => Err(format!("more came than expected: {}", printable(&reply[len..]))),
        Verdict::Incomplete => Err(format!("only this came: {}", printable(reply))),
        Verdict::Differs { at, why } => Err(difference(reply, at, &why)),
    }
}

/// Reads what must come; true if the connection is closed after it.
fn receive(expected: &Expected, wire: &mut Wire, names: &mut Names) -> Result<bool, String> {
    match expected {
        Expected::Reply { reply, close } => {
            loop {
                match reply.compare(wire.pending(), names) {
                    Verdict::Agrees { len } => break wire.consume(len),
                    Verdict::Differs { at, why } => {
                        let so_far = wire.pending().to_vec();
                        return Err(difference(&so_far, at, &why));
                    }
                    Verdict::Incomplete => match wire.fill() {
                        Ok(true) => {}
                        Ok(false) => return Err(format!("closed after {}", printable(wire.pending()))),
                        Err(e) => return Err(format!("{e}; so far {}", printable(wire.pending()))),
                    },
                }
            }
            if *close {
                while wire.pending().is_empty() && wire.fill().map_err(|e| format!("a close was expected, but {e}"))? {}
                if !wire.pending().is_empty() {
                    return Err(format!("a close was expected, not {}", printable(wire.pending())));
                }
            }
            Ok(*close)
        }
        Expected::Block(block) => receive_block(block, wire).map(|()| false),
    }
}

fn receive_block(block: &Block, wire: &mut Wire) -> Result<(), String> {
    let mut lines = Vec::new();
    loop {
        let line = loose_line(wire).map_err(|e| format!("{e}; {} lines so far", lines.len()))?;
        if line == block.end {
            break;
        }
        if lines.is_empty()
            && ["ERROR", "CLIENT_ERROR", "SERVER_ERROR", "BUSY", "BADCLASS", "NOTSTARTED"]
                .iter()
                .any(|w| starts(&line, w))
        {
            return Err(format!("the reply is {}", printable(&line)));
        }
        lines.push(line);
    }
    check_block(block, &lines.iter().map(Vec::as_slice).collect::<Vec<_>>())
}

/// The next line without its end, which in dumps may be `\n`, ` \n` or `\r\n`, as memcached's own has changed.
fn loose_line(wire: &mut Wire) -> std::io::Result<Vec<u8>> {
    loop {
        if let Some(len) = wire.pending().iter().position(|&b| b == b'\n') {
            let line = wire.pending()[..len].trim_ascii_end().to_vec();
            wire.consume(len + 1);
            return Ok(line);
        }
        if !wire.fill()? {
            return Err(ErrorKind::UnexpectedEof.into());
        }
    }
}

fn starts(line: &[u8], word: &str) -> bool {
    line.split(|&b| b == b' ').next() == Some(word.as_bytes())
}

fn check_block(block: &Block, lines: &[&[u8]]) -> Result<(), String> {
    for form in &block.present {
        if !lines.iter().any(|line| form.agrees_with_line(line, &mut Names::new())) {
            let shown = lines.iter().map(|line| printable(line)).collect::<Vec<_>>().join("\n      ");
            return Err(format!("no line `{form}` among\n      {shown}"));
        }
    }
    for line in lines {
        if !block.forms.is_empty() && !block.forms.iter().any(|form| form.agrees_with_line(line, &mut Names::new())) {
            return Err(format!("this line has no known form: {}", printable(line)));
        }
    }
    Ok(())
}

fn difference(reply: &[u8], at: usize, why: &str) -> String {
    format!("at byte {at}: {why}\n      came: {}", printable(reply))
}

/// After the last reply the server must be ready for the next request, and must not have said more than was expected.
fn nothing_left(wire: &mut Wire) -> Result<(), String> {
    let fence = "mn\r\n";
    wire.send(fence.as_bytes())
        .map_err(|e| format!("after the last reply: {e}"))?;
    loop {
        match crate::pattern::Pattern::literal(FENCE_REPLY).compare(wire.pending(), &mut Names::new()) {
            Verdict::Agrees { len } if len == wire.pending().len() => {
                wire.consume(len);
                return Ok(());
            }
            Verdict::Incomplete => {
                if !wire.fill().map_err(|e| format!("after the last reply: {e}"))? {
                    return Err("closed after the last reply".into());
                }
            }
            _ => return Err(format!("after the last reply more came: {}", printable(wire.pending()))),
        }
    }
}

fn send_aside(wire: &Wire, bytes: Vec<u8>, chunk: usize) -> Result<std::thread::JoinHandle<()>, String> {
    let mut half = wire.try_clone().map_err(|e| e.to_string())?;
    Ok(std::thread::spawn(move || {
        // a server that closes early shows in its replies
        let _ = bytes.chunks(chunk).try_for_each(|part| half.send(part));
    }))
}
