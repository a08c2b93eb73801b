//! `dump` and `load`: all items as commands of the text protocol, and back again.
//!
//! A dump begins and ends with `mn`, so that a part of one is known for what it is. Between them is a `set` for each item, or an `ms` with the
//! key in base64, if a line cannot hold the key.

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use keyway_proto::client;
use keyway_proto::{
    Command, Decoded, Decoder, Limits, Meta, MetaSet, MetaSetMode, Protocol, Request, Store, StoreVerb, is_plain,
};

use crate::commands::{self, ITEM_SIZE_MAX, written};
use crate::exit::{self, Failure};
use crate::items::{Got, Items, Outcomes, Put, shown};
use crate::numbers::counted;

/// Bytes of the input that are read at a time.
const READ: usize = 1 << 20;
/// Refused keys that are named.
const NAMED_MAX: u64 = 10;
/// Items between two reports of the progress.
const PROGRESS: u64 = 1 << 14;
/// Above this an exptime is a Unix time (protocol.txt, "Expiration times").
const RELATIVE_MAX_S: i64 = 60 * 60 * 24 * 30;

pub(crate) const DUMP: &str = "\
Each item is a `set` command, or an `ms` with a key in base64. Items that are
marked as stale are left out, and counted on standard error. Lifetimes are Unix
times, so they are right whenever the dump is loaded; one that ends after
January 2038, which the protocol cannot say, ends then. Uniques (cas) are not
kept. `keyway load` brings the items back; so does `nc`, which does not look at
the answers.

Examples:
  keyway dump >items
  keyway dump --server 10.0.0.7 | keyway load -
      fill the default region with what a server has";

pub(crate) const LOAD: &str = "\
It reads what `keyway dump` and `memcached-tool dump` print: set, add, and ms.
An item replaces one of the same key, unless its command is add.

Exit codes: 0 all items are stored, or had expired; 1 some were refused (the
first ten are named) or evicted meanwhile, the input ends too early, or it is no
dump; what came before that is stored. 2 the region cannot be opened.

Examples:
  keyway load items
      into the default region, with or without a server
  ssh web1 keyway dump | keyway load - --server 127.0.0.1:11211
      into a server";

#[derive(Args)]
#[group(skip)]
pub(crate) struct Load {
    /// The file, or -: standard input
    file: PathBuf,
}

/// Seconds after the epoch.
fn now_s() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_secs()).unwrap_or(i64::MAX)
}

/// Prints every item.
pub(crate) fn dump(items: &mut dyn Items) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    let mark = |out: &mut Vec<u8>| client::other(out, Command::MetaNoop, []);
    let (mut bytes, mut stale) = (Vec::new(), 0u64);
    mark(&mut bytes);
    let mut failed = None;
    while let Some(keys) = items.keys()? {
        let result = items.get_many(&keys, &mut |key, got| {
            if got.is_stale {
                stale += 1;
                return Ok(());
            }
            append(&mut bytes, key, &got);
            if bytes.len() < READ {
                return Ok(());
            }
            let result = out.write_all(&bytes);
            bytes.clear();
            result.map_err(|error| {
                failed = Some(error);
                Failure::new(exit::SYSTEM, "cannot write")
            })
        });
        if let Some(error) = failed {
            return written(Err(error));
        }
        result?;
    }
    mark(&mut bytes);
    if stale > 0 {
        commands::remark(format_args!(
            "keyway: left out, {}: `set` has no word for that, and would bring them back as good ones\n",
            counted(stale, "stale item")
        ));
    }
    written(out.write_all(&bytes).and_then(|()| out.flush()))
}

/// Appends the command that stores an item.
fn append(out: &mut Vec<u8>, key: &[u8], got: &Got) {
    let until = got.ttl_s.map_or(0, |ttl_s| now_s() + i64::from(ttl_s));
    let exptime = i32::try_from(until).unwrap_or(i32::MAX);
    if got.opaque_key || !is_plain(key) {
        let flags = format!("F{} T{exptime}", got.flags);
        client::meta_opaque(out, Command::MetaSet, key, Some(&got.value), &flags);
        return;
    }
    let store = Store {
        verb: StoreVerb::Set,
        key,
        flags: got.flags,
        exptime,
        cas: 0,
        noreply: false,
        value: &got.value,
    };
    client::store(out, &store);
}

/// What has become of the input so far.
#[derive(Default)]
struct Tally {
    stored: u64,
    refused: u64,
    expired: u64,
    /// commands `mn`
    marks: u64,
    /// the latest one was the last command
    is_marked: bool,
    shows: bool,
}

impl Outcomes for Tally {
    fn stored(&mut self) {
        self.stored += 1;
        if self.shows && self.stored.is_multiple_of(PROGRESS) {
            commands::remark(format_args!("\r{} items\r", self.stored));
        }
    }

    fn refused(&mut self, key: &[u8], why: &str) {
        self.refused += 1;
        if self.refused <= NAMED_MAX {
            commands::remark(format_args!("keyway: {}: {why}\n", shown(key)));
        }
    }
}

impl Load {
    /// Stores what the input has.
    pub(crate) fn run(self, items: &mut dyn Items) -> Result<(), Failure> {
        let name = self.file.display().to_string();
        let (input, name): (Box<dyn Read>, String) = match name.as_str() {
            "-" => (Box::new(io::stdin().lock()), "standard input".to_owned()),
            _ => {
                let opened = File::open(&self.file);
                let file = opened.map_err(|error| Failure::new(exit::NO, format_args!("{name}: cannot be read: {error}")))?;
                (Box::new(file), name)
            }
        };
        let mut tally = Tally {
            shows: io::stderr().is_terminal(),
            ..Tally::default()
        };
        let evicted = items.evictions()?;
        let read = store_all(input, items, &mut tally);
        items.settle(&mut tally)?;
        let evicted = items.evictions()?.saturating_sub(evicted);
        let mut line = format!(
            "{name}: {} stored in {}, {} refused, {} had expired",
            counted(tally.stored, "item"),
            items.place(),
            tally.refused,
            tally.expired
        );
        if evicted > 0 {
            line.push_str(&format!(", {evicted} evicted meanwhile"));
        }
        commands::say(line)?;
        let why = match read {
            Err(why) => why,
            Ok(()) if tally.marks == 1 || (tally.marks > 0 && !tally.is_marked) => {
                "it ends before its last line, `mn`: it is a part of a dump".to_owned()
            }
            Ok(()) if tally.refused > 0 => {
                return Err(Failure::new(
                    exit::NO,
                    format_args!("{name}: refused: {}", counted(tally.refused, "item")),
                ));
            }
            Ok(()) if evicted > 0 => {
                return Err(Failure::new(
                    exit::NO,
                    format_args!(
                        "{}: {} evicted meanwhile: its memory is too small for all of them (--memory, cache_memlimit)",
                        items.place(),
                        counted(evicted, "item")
                    ),
                ));
            }
            Ok(()) => return Ok(()),
        };
        Err(Failure::new(exit::NO, format_args!("{name}: {why}")))
    }
}

/// Stores the items of `input`. On failure, the text says where it is, and those before are stored.
fn store_all(mut input: impl Read, items: &mut dyn Items, tally: &mut Tally) -> Result<(), String> {
    let limits = Limits {
        item_size_max: ITEM_SIZE_MAX,
        ..Limits::default()
    };
    let mut decoder = Decoder::speaking(limits, Protocol::Text);
    let (mut held, mut done, mut dropped): (Vec<u8>, usize, u64) = (Vec::new(), 0, 0);
    // A value that is too long for any region is being skipped.
    let mut skips = false;
    loop {
        let left = held.get(done..).unwrap_or_default();
        let at = dropped + done as u64;
        match decoder.decode(left) {
            Decoded::Request { consumed, request } => {
                one(&request, items, tally).map_err(|why| format!("byte {at}: {why}"))?;
                done += consumed;
            }
            Decoded::TooLarge { consumed, forget } => {
                let key = forget.map_or_else(Vec::new, |key| key.stored().to_vec());
                tally.refused(&key, "its value is longer than 1 GiB, which no region takes");
                done += consumed;
                skips = true;
            }
            // What such a value's end is answered with.
            Decoded::Refused { consumed, .. } if skips => {
                done += consumed;
                skips = decoder.is_dropping();
            }
            Decoded::Refused { .. } => {
                let line = left.split(|byte| *byte == b'\n').next().unwrap_or_default();
                let line = shown(line.get(..line.len().min(60)).unwrap_or_default());
                return Err(format!(
                    "byte {at}: \"{line}\" is no set, add or ms command, as a dump has them"
                ));
            }
            Decoded::Incomplete { need } => {
                held.drain(..done);
                (dropped, done) = (at, 0);
                let missing = need.saturating_sub(held.len()).max(READ);
                let read = input.by_ref().take(missing as u64).read_to_end(&mut held);
                match read.map_err(|error| format!("byte {at}: cannot be read: {error}"))? {
                    0 if held.is_empty() => return Ok(()),
                    0 => return Err(format!("byte {at}: it ends in the middle of an item")),
                    _ => {}
                }
            }
        }
    }
}

/// Stores the item of a command.
fn one(request: &Request<'_>, items: &mut dyn Items, tally: &mut Tally) -> Result<(), String> {
    tally.is_marked = matches!(request, Request::Meta(Meta::Noop));
    let put = match request {
        Request::Meta(Meta::Noop) => {
            tally.marks += 1;
            return Ok(());
        }
        Request::Store(Store {
            verb: verb @ (StoreVerb::Set | StoreVerb::Add),
            key,
            flags,
            exptime,
            value,
            ..
        }) => Put {
            key,
            value,
            flags: *flags,
            exptime: (*exptime).into(),
            is_new: *verb == StoreVerb::Add,
            opaque_key: false,
        },
        Request::Meta(Meta::Set(MetaSet {
            key,
            mode: mode @ (MetaSetMode::Set | MetaSetMode::Add),
            client_flags,
            exptime,
            value,
            compare_cas: None,
            invalidate: false,
            ..
        })) => Put {
            key: key.stored(),
            value,
            flags: *client_flags,
            exptime: (*exptime).into(),
            is_new: *mode == MetaSetMode::Add,
            opaque_key: key.is_binary(),
        },
        other => {
            let name = other
                .command()
                .map_or_else(String::new, |command| shown(command.facts().name));
            return Err(format!(
                "a command `{name}`, where a dump has only set, add and ms: the rest is not stored"
            ));
        }
    };
    if put.exptime < 0 || (put.exptime > RELATIVE_MAX_S && put.exptime <= now_s()) {
        tally.expired += 1;
        return Ok(());
    }
    items.put(put, tally).map_err(|failure| failure.reason)
}
