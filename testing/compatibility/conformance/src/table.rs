//! The table's text files: their parser. The language is described at the head of the crate.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use keyway_proto::{Command, OverUdp};

use crate::pattern::{Names, Pattern, Piece};

/// Longest step that is sent as a datagram, bytes.
const DATAGRAM_LEN_MAX: usize = 30_000;
/// Most lines in one: memcached answers each with a datagram, and more than the client's socket holds would be lost.
const DATAGRAM_LINES_MAX: usize = 100;

/// A named exchange of requests and replies on one connection.
#[derive(Clone, Debug)]
pub struct Conversation {
    /// the file it stands in, without its ending
    pub area: String,
    /// its name
    pub name: String,
    /// what is said, in order
    pub steps: Vec<Step>,
    /// it changes what other conversations would see, or waits: it has a server of its own
    pub own_server: bool,
    /// what it expects before its first polled step is so only for a client that comes to that step within this time
    pub within: Option<Duration>,
    /// the requests must not be sent before the replies to earlier ones have come
    pub stepwise: bool,
    /// the connection takes no requests afterwards
    pub one_way: bool,
    /// only this server is held to it, for a reason that stands in the table
    pub only: Option<harness::Kind>,
    /// memcacheds older than this answer otherwise
    pub since: Option<Version>,
    /// memcacheds from this one on answer otherwise
    pub until: Option<Version>,
}

/// Requests that are sent together, and what must come back.
#[derive(Clone, Debug)]
pub struct Step {
    /// what is sent
    pub request: Request,
    /// send it again until the reply is as expected
    pub poll: bool,
    /// what comes back
    pub expected: Expected,
}

/// What a server must answer.
#[derive(Clone, Debug)]
pub enum Expected {
    /// this, and then perhaps the end of the connection
    Reply {
        /// the bytes
        reply: Pattern,
        /// the server closes the connection after it
        close: bool,
    },
    /// lines in any order
    Block(Block),
}

/// Lines in any order.
#[derive(Clone, Debug, Default)]
pub struct Block {
    /// the line that ends it
    pub end: Vec<u8>,
    /// each of these is there
    pub present: Vec<Pattern>,
    /// each line is one of these
    pub forms: Vec<Pattern>,
}

/// What is sent: bytes with a few placeholders.
#[derive(Clone, Debug, Default)]
pub struct Request(pub Vec<Part>);

/// A piece of a request.
#[derive(Clone, Debug)]
pub enum Part {
    /// these bytes
    Literal(Vec<u8>),
    /// the number of a name, with this much added
    Bound(String, i64),
    /// the Unix time, with this much added
    Now(i64),
}

/// A memcached version: three numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

impl Version {
    /// Reads `1.6.18`; what follows the numbers is ignored.
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.trim().split(|c: char| !c.is_ascii_digit()).map(str::parse);
        Some(Self(numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?))
    }
}

/// Flags with which `mg` changes nothing, and answers the same again.
const READING_FLAGS: &[u8] = b"vkfcqOst";

impl Step {
    /// Whether its request is one line that changes nothing, so that its answer is the same as often as it is sent.
    pub fn only_reads(&self, names: &Names) -> bool {
        let Expected::Reply { reply, close: false } = &self.expected else {
            return false;
        };
        let request = self.request.bytes(names);
        let Some(line) = request.strip_suffix(b"\r\n") else {
            return false;
        };
        let mut words = line.split(|&byte| byte == b' ');
        let reads = match words.next() {
            Some(b"get" | b"gets") => true,
            Some(b"mg") => words
                .skip(1)
                .all(|flag| flag.first().is_some_and(|first| READING_FLAGS.contains(first))),
            _ => false,
        };
        // The first client that asks for what is stale wins the right to store it anew, with a W in its answer.
        reads && !self.poll && !line.contains(&b'\n') && !reply.to_string().contains(" W")
    }
}

impl Conversation {
    /// Whether it asks for traces of reads: counters, times of access.
    pub fn asks_for_traces(&self) -> bool {
        let of_reads = |line: &[u8]| {
            let mut words = line.trim_ascii_end().split(|&byte| byte == b' ');
            match words.next() {
                Some(b"stats" | b"me" | b"watch") => true,
                Some(b"mg") => words.skip(1).any(|flag| matches!(flag.first(), Some(b'h' | b'l'))),
                _ => false,
            }
        };
        self.steps.iter().any(|step| {
            let mut parts = step.request.0.iter();
            parts.any(|part| matches!(part, Part::Literal(bytes) if bytes.split(|&byte| byte == b'\n').any(of_reads)))
        })
    }

    /// Whether the connection may be used for another one afterwards.
    pub fn leaves_connection(&self) -> bool {
        let closes = |step: &Step| matches!(step.expected, Expected::Reply { close: true, .. });
        !self.one_way && !self.steps.iter().any(closes)
    }

    /// Whether a memcached of this version is held to the conversation.
    pub fn holds_for(&self, memcached: Version) -> bool {
        self.since.is_none_or(|since| memcached >= since) && self.until.is_none_or(|until| memcached < until)
    }

    /// Whether its requests may all be sent before the first reply is read.
    pub fn can_be_pipelined(&self) -> bool {
        !self.stepwise && self.steps.iter().all(|step| !step.poll && !step.request.needs_names())
    }

    /// Whether it can be held in datagrams, a step in each: nothing in it closes the connection, goes on for ever, is cut in
    /// two, is about the server rather than about items, or is more than a datagram should ask.
    pub fn suits_datagrams(&self) -> bool {
        let refused: Vec<Vec<u8>> = Command::ALL
            .iter()
            .filter_map(|command| match command.facts().over_udp {
                OverUdp::Answered => (*command == Command::Quit).then(|| command.facts().name.to_vec()),
                OverUdp::AnsweredBare => Some([command.facts().name, b" "].concat()),
                OverUdp::Refused => Some(command.facts().name.to_vec()),
            })
            .collect();
        let suits = |step: &Step| {
            let text: Vec<u8> = step
                .request
                .0
                .iter()
                .flat_map(|part| match part {
                    Part::Literal(bytes) => bytes.clone(),
                    _ => b"12345678901234567890".to_vec(),
                })
                .collect();
            let needs_connection = |name: &Vec<u8>| text.windows(name.len()).any(|window| window == *name);
            text.len() <= DATAGRAM_LEN_MAX
                && text.iter().filter(|&&byte| byte == b'\n').count() <= DATAGRAM_LINES_MAX
                && !refused.iter().any(needs_connection)
                && !matches!(step.expected, Expected::Reply { close: true, .. })
        };
        !self.one_way && self.steps.iter().all(suits)
    }

    /// Whether one of its requests begins with this command's name.
    pub fn asks_for(&self, command: Command) -> bool {
        let parts = self.steps.iter().filter_map(|step| match step.request.0.first() {
            Some(Part::Literal(bytes)) => Some(bytes),
            _ => None,
        });
        let mut lines = parts.flat_map(|bytes| bytes.split(|byte| *byte == b'\n'));
        lines.any(|line| {
            let words = line.trim_ascii_end().split(|byte| *byte == b' ');
            words.take(1).any(|word| word == command.facts().name)
        })
    }

    /// Where it stands, for messages.
    pub fn title(&self) -> String {
        format!("{}: {}", self.area, self.name)
    }
}

impl Request {
    /// The bytes to send now.
    ///
    /// # Panics
    ///
    /// When a name is not bound yet: then the table is wrong.
    pub fn bytes(&self, names: &Names) -> Vec<u8> {
        let mut out = Vec::new();
        for part in &self.0 {
            match part {
                Part::Literal(bytes) => out.extend_from_slice(bytes),
                Part::Bound(name, add) => {
                    let bound = names
                        .get(name)
                        .unwrap_or_else(|| panic!("{name} is sent before a reply has bound it"));
                    out.extend_from_slice(bound.wrapping_add_signed(*add).to_string().as_bytes());
                }
                Part::Now(add) => {
                    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
                    out.extend_from_slice(now.wrapping_add_signed(*add).to_string().as_bytes());
                }
            }
        }
        out
    }

    fn needs_names(&self) -> bool {
        self.0.iter().any(|part| matches!(part, Part::Bound(..)))
    }
}

/// Reads all files of a directory that end in `.conv`, in the order of their names.
///
/// # Panics
///
/// When one cannot be read or parsed; the message names file and line.
pub fn read_directory(directory: &Path) -> Vec<Conversation> {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    let mut paths: Vec<_> = entries.filter_map(|entry| entry.ok().map(|e| e.path())).collect();
    paths.retain(|path| path.extension().is_some_and(|ending| ending == "conv"));
    paths.sort();
    let mut all = Vec::new();
    for path in paths {
        let text = std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let area = path
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned())
            .unwrap_or_default();
        let conversations = parse(&area, &text).unwrap_or_else(|(line, why)| panic!("{}:{line}: {why}", path.display()));
        all.extend(conversations);
    }
    all
}

/// Parses one file; an error has its line number.
pub fn parse(area: &str, text: &str) -> Result<Vec<Conversation>, (usize, String)> {
    let mut conversations: Vec<Conversation> = Vec::new();
    // a step takes requests until its first expectation
    let mut answered = true;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        if line.starts_with('#') || line.is_empty() {
            continue;
        }
        if let Some(name) = line.strip_prefix("== ") {
            check_last(&conversations).map_err(|why| (number, why))?;
            if conversations.iter().any(|other| other.name == name) {
                return Err((number, format!("there is another conversation named {name}")));
            }
            conversations.push(Conversation::new(area, name));
            answered = true;
            continue;
        }
        let conversation = conversations
            .last_mut()
            .ok_or((number, "a line before the first conversation".to_string()))?;
        take_line(conversation, line, &mut answered).map_err(|why| (number, why))?;
    }
    check_last(&conversations).map_err(|why| (text.lines().count(), why))?;
    Ok(conversations)
}

impl Conversation {
    /// An empty one.
    pub fn new(area: &str, name: &str) -> Self {
        Self {
            area: area.into(),
            name: name.into(),
            steps: Vec::new(),
            own_server: false,
            within: None,
            stepwise: false,
            one_way: false,
            only: None,
            since: None,
            until: None,
        }
    }
}

fn check_last(conversations: &[Conversation]) -> Result<(), String> {
    match conversations.last() {
        Some(last) if last.steps.is_empty() => Err(format!("the conversation {} before this says nothing", last.name)),
        _ => Ok(()),
    }
}

fn take_line(conversation: &mut Conversation, line: &str, answered: &mut bool) -> Result<(), String> {
    if let Some(attribute) = line.strip_prefix('@') {
        return take_attribute(conversation, attribute);
    }
    if let Some(rest) = line.strip_prefix('<') {
        let step = conversation.steps.last_mut().ok_or("a reply before the first request")?;
        *answered = true;
        return take_expectation(step, rest);
    }
    let (poll, rest) = match line.strip_prefix('~') {
        Some(rest) => (true, rest),
        None => (false, line),
    };
    let rest = rest
        .strip_prefix('>')
        .ok_or("neither a request (>) nor a reply (<) nor an attribute (@)")?;
    let (text, whole_line) = text_of(rest)?;
    if *answered || conversation.steps.is_empty() {
        let expected = Expected::Reply {
            reply: Pattern::default(),
            close: false,
        };
        conversation.steps.push(Step {
            request: Request::default(),
            poll,
            expected,
        });
        *answered = false;
    }
    conversation.own_server |= poll;
    let step = conversation.steps.last_mut().ok_or("no step")?;
    step.poll |= poll;
    step.request.0.extend(parse_request(text, whole_line)?);
    Ok(())
}

fn take_attribute(conversation: &mut Conversation, attribute: &str) -> Result<(), String> {
    let (word, rest) = attribute.split_once(' ').unwrap_or((attribute, ""));
    let version = || Version::parse(rest).ok_or(format!("no version in {rest}"));
    match word {
        "own" => conversation.own_server = true,
        "within" => {
            let seconds = rest.parse().map_err(|_| format!("{rest} is no number of seconds"))?;
            conversation.within = Some(Duration::from_secs(seconds));
            // It may have to be held again, on a server that knows nothing of it.
            conversation.own_server = true;
        }
        "stepwise" => conversation.stepwise = true,
        "one-way" => conversation.one_way = true,
        "keyway-only" | "memcached-only" if rest.is_empty() => return Err(format!("{word} needs a reason")),
        "keyway-only" => conversation.only = Some(harness::Kind::Keyway),
        "memcached-only" => conversation.only = Some(harness::Kind::Memcached),
        "since" => conversation.since = Some(version()?),
        "until" => conversation.until = Some(version()?),
        _ => return Err(format!("unknown attribute {word}")),
    }
    Ok(())
}

fn take_expectation(step: &mut Step, rest: &str) -> Result<(), String> {
    match (rest, &mut step.expected) {
        ("nothing", _) => Ok(()),
        ("close", Expected::Reply { close, .. }) => {
            *close = true;
            Ok(())
        }
        (_, expected) if rest.starts_with("block ") => {
            *expected = Expected::Block(Block {
                end: rest.as_bytes()["block ".len()..].to_vec(),
                ..Block::default()
            });
            Ok(())
        }
        (_, Expected::Block(block)) => {
            let pattern = parse_pattern(rest.get(2..).unwrap_or_default(), false)?;
            match rest.as_bytes().first() {
                Some(b'+') => block.present.push(pattern),
                Some(b'=') => block.forms.push(pattern),
                _ => return Err("within a block stand <+ and <=".into()),
            }
            Ok(())
        }
        (_, Expected::Reply { reply, .. }) => {
            let (text, whole_line) = text_of(rest)?;
            reply.append(parse_pattern(text, whole_line)?);
            Ok(())
        }
    }
}

/// The text behind `>` or `<`, and whether a line end belongs to it.
fn text_of(rest: &str) -> Result<(&str, bool), String> {
    match (rest, rest.strip_prefix(". "), rest.strip_prefix(' ')) {
        ("", _, _) => Ok(("", true)),
        (_, Some(text), _) => Ok((text, false)),
        (_, _, Some(text)) => Ok((text, true)),
        _ => Err("a space must stand before the text".into()),
    }
}

/// What stands in a text: bytes, or the inside of `{…}`.
enum Token {
    Bytes(Vec<u8>),
    Braced(String),
}

fn tokens(text: &str) -> Result<Vec<Token>, String> {
    let mut out = Vec::new();
    let mut literal = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        match first {
            '\\' => {
                let (byte, len) = escape(rest)?;
                literal.push(byte);
                rest = &rest[len..];
            }
            '{' => {
                let end = rest.find('}').ok_or("a { without its }")?;
                let inside = &rest[1..end];
                rest = &rest[end + 1..];
                if let Some((unit, count)) = inside.rsplit_once('*') {
                    let count: usize = count.parse().map_err(|e| format!("{count}: {e}"))?;
                    literal.extend(plain(unit)?.repeat(count));
                } else {
                    out.push(Token::Bytes(std::mem::take(&mut literal)));
                    out.push(Token::Braced(inside.into()));
                }
            }
            other => {
                literal.extend_from_slice(other.encode_utf8(&mut [0; 4]).as_bytes());
                rest = &rest[other.len_utf8()..];
            }
        }
    }
    out.push(Token::Bytes(literal));
    Ok(out)
}

/// The byte of an escape at the start of the text, and how long the escape is.
fn escape(text: &str) -> Result<(u8, usize), String> {
    let byte = match text.as_bytes().get(1) {
        Some(b'r') => b'\r',
        Some(b'n') => b'\n',
        Some(b't') => b'\t',
        Some(b'0') => 0,
        Some(b'\\') => b'\\',
        Some(b'x') => {
            let digits = text.get(2..4).ok_or("\\x needs two digits")?;
            return Ok((u8::from_str_radix(digits, 16).map_err(|e| format!("\\x{digits}: {e}"))?, 4));
        }
        _ => return Err("an escape is one of \\r \\n \\t \\0 \\\\ \\xHH".into()),
    };
    Ok((byte, 2))
}

fn plain(text: &str) -> Result<Vec<u8>, String> {
    let mut out = Vec::new();
    for token in tokens(text)? {
        match token {
            Token::Bytes(bytes) => out.extend(bytes),
            Token::Braced(inside) => return Err(format!("{{{inside}}} has no place here")),
        }
    }
    Ok(out)
}

fn parse_request(text: &str, whole_line: bool) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    for token in tokens(text)? {
        parts.push(match token {
            Token::Bytes(bytes) => Part::Literal(bytes),
            Token::Braced(inside) => {
                let (name, add) = name_and_addend(&inside)?;
                if name == "now" {
                    Part::Now(add)
                } else {
                    Part::Bound(name, add)
                }
            }
        });
    }
    if whole_line {
        parts.push(Part::Literal(b"\r\n".to_vec()));
    }
    Ok(parts)
}

fn parse_pattern(text: &str, whole_line: bool) -> Result<Pattern, String> {
    let mut pattern = Pattern::default();
    for token in tokens(text)? {
        let piece = match token {
            Token::Bytes(bytes) => Piece::Literal(bytes),
            Token::Braced(inside) => match (inside.as_str(), inside.strip_prefix("num="), inside.split_once("..")) {
                ("num", ..) => Piece::Number(0, u64::MAX),
                ("dec", ..) => Piece::Fraction,
                ("word", ..) => Piece::Word,
                ("line", ..) => Piece::Line,
                (_, Some(name), _) => Piece::Named(name.into()),
                (_, _, Some((low, high))) => {
                    let bound = |text: &str| text.parse().map_err(|e| format!("{text}: {e}"));
                    Piece::Number(bound(low)?, bound(high)?)
                }
                _ => {
                    let (name, add) = name_and_addend(&inside)?;
                    Piece::Bound(name, add)
                }
            },
        };
        pattern.append(Pattern(vec![piece]));
    }
    if whole_line {
        pattern.append(Pattern::literal("\r\n"));
    }
    Ok(pattern)
}

fn name_and_addend(inside: &str) -> Result<(String, i64), String> {
    let at = inside.find(['+', '-']).unwrap_or(inside.len());
    let (name, addend) = inside.split_at(at);
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Err(format!("{{{inside}}} is no placeholder"));
    }
    let add = if addend.is_empty() {
        0
    } else {
        addend.parse().map_err(|e| format!("{addend}: {e}"))?
    };
    Ok((name.into(), add))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conversation_is_read() {
        let text = "# purpose\n\n== first\n@own\n@since 1.6.30 because\n> set a 0 0 2\n> {x*2}\n< STORED\n>. get a\\r\\n\n\
                    < VALUE a 0 2 {num=c1}\n<. xx\\r\\nEND\\r\\n\n<close\n== second\n~> cas {c1-1} {now+5}\n<nothing\n";
        let conversations = parse("area", text).expect("it parses");
        assert_eq!(conversations.len(), 2);
        let first = &conversations[0];
        assert_eq!(first.title(), "area: first");
        assert!(first.own_server && first.can_be_pipelined() && conversations[1].own_server);
        assert!(!first.holds_for(Version(1, 6, 29)) && first.holds_for(Version(1, 6, 30)));
        assert_eq!(first.steps.len(), 2);
        assert_eq!(first.steps[0].request.bytes(&Names::new()), b"set a 0 0 2\r\nxx\r\n");
        assert_eq!(first.steps[1].request.bytes(&Names::new()), b"get a\r\n");
        let mut names = Names::new();
        let Expected::Reply { reply, close } = &first.steps[1].expected else {
            panic!("a reply was expected")
        };
        assert!(*close);
        let whole = b"VALUE a 0 2 9\r\nxx\r\nEND\r\n";
        assert_eq!(
            reply.compare(whole, &mut names),
            crate::pattern::Verdict::Agrees { len: whole.len() }
        );
        assert!(conversations[1].steps[0].request.bytes(&names).starts_with(b"cas 8 1"));
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (text, line) in [
            ("> get a\n", 1),
            ("== a\n< END\n", 2),
            ("== a\n>get a\n", 2),
            ("== a\n> get {a\n", 2),
            ("== a\n> get a\n< \\q\n", 3),
            ("== a\n> get a\n\n== a\n> get a\n", 4),
            ("== a\n== b\n> x\n", 2),
            ("== a\n@nonsense\n> x\n", 2),
            ("== a\n@since x\n> x\n", 2),
        ] {
            assert_eq!(parse("", text).expect_err(text).0, line, "{text}");
        }
    }
}
