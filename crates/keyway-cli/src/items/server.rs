//! The items of a server, through a connection as any client has it.

use std::collections::VecDeque;

use keyway_proto::client::{self, Answer};
use keyway_proto::{Command, tokens};

use super::{Each, Got, Items, KEYS_PER_STEP, Outcomes, Put, shown};
use crate::exit::{self, Failure};
use crate::wire::{Access, Client, said};

/// Stores that may wait for their answers, and bytes of them that wait to be sent: the answers fit into the sockets' buffers.
const STORES_MAX: usize = 256;
const UNSENT_MAX: usize = 64 << 10;
/// Gets that are sent at once: they fit into the sockets' buffers, also where the server waits for its answers to be taken.
const GETS_MAX: usize = 64;

/// A server.
pub(super) struct ServerItems {
    client: Client,
    walk: Walk,
    access: Access,
    unsent: Vec<u8>,
    /// the keys of stores whose answers have not come
    waiting: VecDeque<Vec<u8>>,
}

/// The way through all keys.
enum Walk {
    NotBegun,
    /// a second connection, whose answer is all keys
    At(Client),
    Over,
}

/// What the server says of a key.
fn about(key: &[u8], why: &str) -> Failure {
    Failure::new(exit::NO, format_args!("{}: {why}", shown(key)))
}

/// The item of an answer to `mg`; the server calls a miss `EN`.
fn got(answer: &Answer<'_>) -> Result<Option<Got>, String> {
    let Answer::Meta { code, value, .. } = answer else {
        return Err(said(answer));
    };
    let number = |letter| {
        let text = std::str::from_utf8(answer.flag(letter)?).ok()?;
        text.parse::<i64>().ok()
    };
    match code {
        b"EN" => Ok(None),
        b"VA" => Ok(Some(Got {
            value: value.unwrap_or_default().to_vec(),
            flags: number(b'f').and_then(|flags| u32::try_from(flags).ok()).unwrap_or(0),
            // -1: it does not expire.
            ttl_s: number(b't').and_then(|left| u32::try_from(left).ok()),
            unique: answer
                .flag(b'c')
                .and_then(|unique| std::str::from_utf8(unique).ok()?.parse().ok())
                .unwrap_or(0),
            is_stale: answer.flag(b'X').is_some(),
            opaque_key: false,
            takes: None,
        })),
        _ => Err(said(answer)),
    }
}

/// The flags of a get.
fn flags(is_used: bool) -> &'static str {
    if is_used { "v f t c" } else { "v f t c u" }
}

impl ServerItems {
    pub(super) fn new(client: Client, access: Access) -> Self {
        Self {
            client,
            walk: Walk::NotBegun,
            access,
            unsent: Vec::new(),
            waiting: VecDeque::new(),
        }
    }

    /// Sends a meta command, and passes its answer on.
    fn meta<T>(
        &mut self,
        command: Command,
        key: &[u8],
        flags: &str,
        take: impl FnOnce(&Answer<'_>) -> Result<T, String>,
    ) -> Result<T, Failure> {
        let mut request = Vec::new();
        client::meta(&mut request, command, key, None, flags);
        let answered = self.client.ask(&request, |answer| take(&answer));
        let answered = answered.map_err(|why| self.client.failure(why))?;
        answered.map_err(|why| about(key, &why))
    }

    fn send(&mut self) -> Result<(), Failure> {
        let sent = self.client.send(&self.unsent);
        self.unsent.clear();
        sent.map_err(|why| self.client.failure(why))
    }
}

impl Items for ServerItems {
    fn get(&mut self, key: &[u8], is_used: bool) -> Result<Option<Got>, Failure> {
        self.meta(Command::MetaGet, key, flags(is_used), got)
    }

    fn get_many(&mut self, keys: &[Vec<u8>], each: &mut Each<'_>) -> Result<(), Failure> {
        for keys in keys.chunks(GETS_MAX) {
            for key in keys {
                client::meta(&mut self.unsent, Command::MetaGet, key, None, flags(false));
            }
            self.send()?;
            for key in keys {
                let found = self.client.receive(|answer| got(&answer));
                let found = found.map_err(|why| self.client.failure(why))?;
                if let Some(got) = found.map_err(|why| about(key, &why))? {
                    each(key, got)?;
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, item: Put<'_>, outcomes: &mut dyn Outcomes) -> Result<(), Failure> {
        let mode = if item.is_new { " ME" } else { "" };
        let flags = format!("F{} T{}{mode}", item.flags, item.exptime);
        let write = if item.opaque_key { client::meta_opaque } else { client::meta };
        write(&mut self.unsent, Command::MetaSet, item.key, Some(item.value), &flags);
        self.waiting.push_back(item.key.to_vec());
        match self.waiting.len() >= STORES_MAX || self.unsent.len() >= UNSENT_MAX {
            true => self.settle(outcomes),
            false => Ok(()),
        }
    }

    fn settle(&mut self, outcomes: &mut dyn Outcomes) -> Result<(), Failure> {
        self.send()?;
        while let Some(key) = self.waiting.pop_front() {
            let answered = self.client.receive(|answer| match answer {
                Answer::Meta { code: [b'H', b'D'], .. } => outcomes.stored(),
                Answer::Meta { code: [b'N', b'S'], .. } => outcomes.refused(&key, "there is another item of this key"),
                other => outcomes.refused(&key, &said(&other)),
            });
            answered.map_err(|why| self.client.failure(why))?;
        }
        Ok(())
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Failure> {
        self.meta(Command::MetaDelete, key, "", is_done)
    }

    fn touch(&mut self, key: &[u8], exptime: i64) -> Result<bool, Failure> {
        self.meta(Command::MetaGet, key, &format!("T{exptime} u"), is_done)
    }

    fn count(&mut self, key: &[u8], delta: u64, decrement: bool, initial: Option<(u64, i64)>) -> Result<Option<u64>, Failure> {
        let mut flags = format!("v D{delta} M{}", if decrement { 'D' } else { 'I' });
        if let Some((value, exptime)) = initial {
            flags.push_str(&format!(" J{value} N{exptime}"));
        }
        self.meta(Command::MetaArithmetic, key, &flags, |answer| match answer {
            Answer::Meta {
                code: [b'V', b'A'],
                value,
                ..
            } => {
                let digits = std::str::from_utf8(value.unwrap_or_default()).unwrap_or_default();
                digits.trim_end().parse().map(Some).map_err(|_| said(answer))
            }
            Answer::Meta { code: [b'N', b'F'], .. } => Ok(None),
            other => Err(said(other)),
        })
    }

    fn flush(&mut self, delay_s: u32) -> Result<(), Failure> {
        let request = match delay_s {
            0 => "flush_all\r\n".to_owned(),
            delay_s => format!("flush_all {delay_s}\r\n"),
        };
        let answered = self.client.ask(request.as_bytes(), |answer| match answer {
            Answer::Ok => Ok(()),
            other => Err(said(&other)),
        });
        answered.and_then(|answered| answered).map_err(|why| self.client.failure(why))
    }

    fn keys(&mut self) -> Result<Option<Vec<Vec<u8>>>, Failure> {
        let mut walk = match std::mem::replace(&mut self.walk, Walk::NotBegun) {
            Walk::At(walk) => walk,
            Walk::Over => return Ok(None),
            Walk::NotBegun => {
                let mut walk = Client::connect(self.client.place(), &self.access)?;
                walk.send(b"lru_crawler metadump all\r\n").map_err(|why| walk.failure(why))?;
                walk
            }
        };
        let mut keys = Vec::new();
        while keys.len() < KEYS_PER_STEP {
            let line = walk.receive(|answer| match answer {
                Answer::Line(line) => key_of(line).map(Some).ok_or_else(|| said(&answer)),
                Answer::End => Ok(None),
                // From memcached, before the lines.
                Answer::Ok => Ok(Some(Vec::new())),
                other => Err(said(&other)),
            });
            match line.and_then(|line| line).map_err(|why| walk.failure(why))? {
                Some(key) if key.is_empty() => {}
                Some(key) => keys.push(key),
                None => {
                    self.walk = Walk::Over;
                    return Ok(Some(keys));
                }
            }
        }
        self.walk = Walk::At(walk);
        Ok(Some(keys))
    }

    fn evictions(&mut self) -> Result<u64, Failure> {
        let counted = self.client.stats("stats\r\n").map_err(|why| self.client.failure(why))?;
        Ok(counted.get("evictions").and_then(|count| count.parse().ok()).unwrap_or(0))
    }

    fn is_broken(&self) -> bool {
        self.client.is_broken()
    }

    fn place(&self) -> String {
        self.client.place().to_owned()
    }
}

/// Whether an answer is `HD`; a miss is `NF` or `EN`.
fn is_done(answer: &Answer<'_>) -> Result<bool, String> {
    match answer {
        Answer::Meta { code: [b'H', b'D'], .. } => Ok(true),
        Answer::Meta { code, .. } if code == b"NF" || code == b"EN" => Ok(false),
        other => Err(said(other)),
    }
}

/// The key of a line of `lru_crawler metadump`: its first word is `key=`, with `%XX` for what a word cannot hold.
fn key_of(line: &[u8]) -> Option<Vec<u8>> {
    let mut rest = tokens(line).next()?.strip_prefix(b"key=")?;
    let mut key = Vec::new();
    while let [first, after @ ..] = rest {
        rest = after;
        key.push(match (first, after) {
            (b'%', [high, low, after @ ..]) => {
                rest = after;
                let digit = |byte: &u8| char::from(*byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
                digit(high)? << 4 | digit(low)?
            }
            _ => *first,
        });
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_dump_are_decoded() {
        assert_eq!(key_of(b"key=a%20b%0A exp=-1 la=1"), Some(b"a b\n".to_vec()));
        assert_eq!(key_of(b"key=plain"), Some(b"plain".to_vec()));
        for other in [&b"exp=1"[..], b"", b"key=%2", b"key=%zz"] {
            assert!(key_of(other).is_none_or(|key| key == b"%2"), "{}", other.escape_ascii());
        }
    }
}
