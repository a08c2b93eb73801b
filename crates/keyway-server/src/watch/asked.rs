//! What a watcher asks for, and the lines that it gets: those of memcached, and others for what memcached does not tell.

use std::hash::Hasher;
use std::io::Write;
use std::time::Duration;

use keyway_cache::Door;
use keyway_cache::watch::{ALL, Command, Event, Kind};
use keyway_proto::reply;

use crate::stats::CLASS;

/// The kinds of events, by the words that select them.
const KINDS: [(&str, u64); 8] = [
    ("fetchers", Kind::Fetch.bit()),
    ("mutations", Kind::Mutation.bit()),
    ("connevents", Kind::Connection.bit()),
    ("deletions", Kind::Deletion.bit()),
    ("evictions", Kind::Eviction.bit()),
    ("updates", Kind::Update.bit()),
    ("expirations", Kind::Expiry.bit()),
    ("all", ALL),
];

/// A word of a request to watch that is not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchUnknown {
    /// `command`, `door` or `sample`; empty: a kind of event
    pub of: &'static str,
    /// the word
    pub word: String,
    /// what it could be
    pub known: Vec<&'static str>,
}

/// Which events a watcher wants, and how it wants them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchAsked {
    kinds: u64,
    /// what begins their keys
    prefix: Vec<u8>,
    /// empty: all
    commands: Vec<Command>,
    /// empty: all
    doors: Vec<Door>,
    /// the events of one in so many keys; 0: of all
    one_in: u64,
    /// door, process, session and CAS unique of each event
    detailed: bool,
}

impl WatchAsked {
    /// What the arguments of `watch` select, separated by blanks; without a kind of event: fetchers.
    ///
    /// # Errors
    ///
    /// One of them is not known.
    pub fn parse(what: &[u8]) -> Result<Self, WatchUnknown> {
        let mut asked = Self::default();
        for word in what.split(|&byte| byte == b' ').filter(|word| !word.is_empty()) {
            asked.add(word)?;
        }
        if asked.kinds == 0 {
            asked.kinds = Kind::Fetch.bit();
        }
        Ok(asked)
    }

    /// All events of these kinds.
    pub(crate) fn of_kinds(kinds: u64) -> Self {
        Self {
            kinds: kinds & ALL,
            ..Self::default()
        }
    }

    fn add(&mut self, word: &[u8]) -> Result<(), WatchUnknown> {
        if let Some(prefix) = word.strip_prefix(b"prefix=") {
            self.prefix = prefix.to_vec();
            return Ok(());
        }
        let word = String::from_utf8_lossy(word);
        let word = &*word;
        let unknown = |of, word: &str, known: Vec<&'static str>| WatchUnknown {
            of,
            word: word.to_owned(),
            known,
        };
        let kinds = || KINDS.iter().map(|(name, _)| *name).collect();
        match word.split_once('=') {
            None if word == "detailed" => self.detailed = true,
            None => {
                let kind = KINDS.iter().find(|(name, _)| *name == word);
                self.kinds |= kind.ok_or_else(|| unknown("", word, kinds()))?.1;
            }
            Some(("command", names)) => {
                for name in names.split(',') {
                    let found = Command::ALL.iter().find(|command| command.name() == name);
                    let all = || Command::ALL.iter().map(|command| command.name()).collect();
                    self.commands.push(*found.ok_or_else(|| unknown("command", name, all()))?);
                }
            }
            Some(("door", names)) => {
                for name in names.split(',') {
                    let tells = |door: &&Door| !door.is_kernel();
                    let found = Door::ALL.iter().filter(tells).find(|door| door.name() == name);
                    let all = || Door::ALL.iter().filter(tells).map(|door| door.name()).collect();
                    self.doors.push(*found.ok_or_else(|| unknown("door", name, all()))?);
                }
            }
            Some(("sample", number)) => {
                let one_in = number.parse().ok().filter(|one_in| *one_in > 0);
                self.one_in = one_in.ok_or_else(|| unknown("sample", number, vec!["1 and larger numbers"]))?;
            }
            Some(_) => return Err(unknown("", word, kinds())),
        }
        Ok(())
    }

    /// The arguments of `watch` that ask for this.
    pub fn words(&self) -> Vec<u8> {
        let mut words = Vec::new();
        for (name, bits) in KINDS.iter().take(KINDS.len() - 1) {
            if self.kinds & bits != 0 {
                words.extend_from_slice(format!("{name} ").as_bytes());
            }
        }
        let mut list = |name: &str, values: Vec<&str>| {
            if !values.is_empty() {
                words.extend_from_slice(format!("{name}={} ", values.join(",")).as_bytes());
            }
        };
        list("command", self.commands.iter().map(|command| command.name()).collect());
        list("door", self.doors.iter().map(|door| door.name()).collect());
        if self.one_in > 0 {
            list("sample", vec![&self.one_in.to_string()]);
        }
        if self.detailed {
            words.extend_from_slice(b"detailed ");
        }
        if !self.prefix.is_empty() {
            words.extend_from_slice(b"prefix=");
            words.extend_from_slice(&self.prefix);
        }
        words
    }

    /// The kinds of events, a bit each.
    pub fn kinds(&self) -> u64 {
        self.kinds
    }

    pub(crate) fn is_detailed(&self) -> bool {
        self.detailed
    }

    /// Whether it wants this event.
    pub fn takes(&self, event: &Event) -> bool {
        let has_key = event.kind != Kind::Connection && !event.text.starts_with(b"type=");
        self.kinds & event.kind.bit() != 0
            && (self.doors.is_empty() || self.doors.contains(&event.door))
            && (self.commands.is_empty() || self.commands.contains(&event.command))
            && event.text.starts_with(if has_key { &self.prefix } else { b"" })
            && (self.one_in <= 1 || !has_key || sample_of(&event.text).is_multiple_of(self.one_in))
    }

    /// Appends the line of an event, without its end.
    pub fn write(&self, event: &Event, line: &mut Vec<u8>) {
        let (command, status) = (event.command.name(), event.status.name());
        let &Event {
            size,
            ttl_s: ttl,
            number,
            ..
        } = event;
        let with_key = |kind: &str, line: &mut Vec<u8>| {
            let _ = write!(line, "type={kind} key=");
            reply::uri_encode(line, &event.text);
        };
        let _ = match event.kind {
            Kind::Fetch => {
                with_key("item_get", line);
                write!(line, " status={status} clsid={CLASS} cfd={number} size={size}")
            }
            Kind::Mutation => {
                with_key("item_store", line);
                write!(
                    line,
                    " status={status} cmd={command} ttl={ttl} clsid={CLASS} cfd={number} size={size}"
                )
            }
            Kind::Deletion => {
                with_key("deleted", line);
                write!(line, " cmd={command} clsid={CLASS} size={size}")
            }
            Kind::Eviction => {
                with_key("eviction", line);
                let fetched = if event.fetched { "yes" } else { "no" };
                write!(line, " fetch={fetched} ttl={ttl} la={number} clsid={CLASS} size={size}")
            }
            Kind::Expiry => {
                with_key("expired", line);
                let fetched = if event.fetched { "yes" } else { "no" };
                write!(line, " fetch={fetched} la={number} clsid={CLASS} size={size}")
            }
            Kind::Update if event.command != Command::None => {
                with_key("item_update", line);
                write!(line, " cmd={command} ttl={ttl} clsid={CLASS} cfd={number} size={size}")
            }
            Kind::Update | Kind::Connection => {
                // Another process may have written anything there.
                line.extend(event.text.iter().map(|&byte| match byte {
                    b' '..=b'~' => byte,
                    _ => b'?',
                }));
                Ok(())
            }
        };
        if self.detailed || matches!(event.door, Door::Library | Door::DropIn) {
            let _ = write!(line, " door={} pid={}", event.door.name(), event.pid);
        }
        if self.detailed {
            let _ = write!(line, " session={} cas={}", event.slot, event.cas);
        }
    }
}

/// Appends what begins a line: the time, and the line's number.
pub(super) fn begin(line: &mut Vec<u8>, since_epoch: Duration, number: u64) {
    let (seconds, micros) = (since_epoch.as_secs(), since_epoch.subsec_micros());
    let _ = write!(line, "ts={seconds}.{micros:06} gid={number} ");
}

/// The number of a key by which it is chosen, the same in every process.
fn sample_of(key: &[u8]) -> u64 {
    // SipHash with a fixed key: keys are spread evenly, whatever they are.
    let mut hasher = std::hash::DefaultHasher::new();
    hasher.write(key);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_parsed_and_written_again() {
        assert_eq!(WatchAsked::parse(b"").unwrap().kinds(), Kind::Fetch.bit());
        assert_eq!(
            WatchAsked::parse(b"mutations  deletions").unwrap().kinds(),
            Kind::Mutation.bit() | Kind::Deletion.bit()
        );
        for refused in ["nonsense", "door=cellar", "command=fly", "sample=0", "sample=x", "what=ever"] {
            assert!(WatchAsked::parse(refused.as_bytes()).is_err(), "{refused}");
        }
        for what in [
            "fetchers",
            "all",
            "evictions expirations prefix=a:b",
            "mutations command=set,cas door=library,udp sample=10 detailed",
        ] {
            let asked = WatchAsked::parse(what.as_bytes()).unwrap();
            assert_eq!(WatchAsked::parse(&asked.words()), Ok(asked), "{what}");
        }
    }
}
