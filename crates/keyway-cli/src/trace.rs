//! `keyway trace`: why a key is not there, as far as the region knows.

use std::io::IsTerminal;

use clap::Args;
use keyway_cache::{Counters, Get, Left, Session, Trace, Whereabouts, WriteError};
use serde_json::json;

use crate::commands::{self, Which};
use crate::exit::{self, Failure};
use crate::items::shown;
use crate::numbers::age;

/// Buckets and items looked at between two reports of the progress.
const LOOKS_PER_STEP: usize = 1024;
/// Most similar keys that are shown.
const NEAR_MAX: usize = 10;
/// What ends a prefix of a key.
const SEPARATORS: &[u8] = b":./|_-#@";

pub(crate) const HELP: &str = "\
The region keeps no history. Answered from what is left: the index; the bytes of
items that were deleted, expired, evicted or flushed, which stay until their
memory is used again; and a table of items that were evicted before any client
read them. `is_certain` is false where other reasons are possible, and the text
names them. When an item was deleted or evicted is not known, only when it was
stored at the earliest. Similar keys of other items are named, too: those that
differ in case, in white space around them, or in having a prefix (which ends
with one of :./|_-#@) or not.

REASON is present, expired, flushed, deleted, evicted, never_set or unknown.

Exit codes: 0 the item is there; 1 it is not; 2 the region cannot be opened.

Examples:
  keyway trace user:42   in the default region, with or without a server
  keyway trace 'user:42' --json | jq -r .reason";

#[derive(Args)]
pub(crate) struct Asked {
    /// The key
    key: String,
    /// Print a JSON object
    #[arg(long)]
    json: bool,
}

/// Why a key is not there.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reason {
    name: &'static str,
    is_certain: bool,
    what: String,
}

/// Searches the region, and prints what it knows.
pub(crate) fn run(which: Which, asked: &Asked) -> Result<(), Failure> {
    let cache = commands::open(which)?;
    let mut session = commands::session(&cache)?;
    let key = asked.key.as_bytes();
    let how = Get {
        no_bump: true,
        ..Get::default()
    };
    let found = session.get_with(key, &how, &mut Vec::new(), |_, _| {});
    let found = found.map_err(|error| {
        let code = match error {
            WriteError::KeyLength { .. } => exit::USAGE,
            _ => exit::NO,
        };
        Failure::new(code, format_args!("{}: {error}", shown(key)))
    })?;
    let trace = cache.trace(key);
    let reason = match found {
        Some(item) => Reason {
            name: "present",
            is_certain: true,
            what: match item.ttl_s {
                Some(left) => format!("it is there, with {} left", age(Some(left))),
                None => "it is there, and does not expire".to_owned(),
            },
        },
        None => reason(&trace, &cache.counters()),
    };
    let buckets = cache.info().index_buckets;
    let near = near(&mut session, key, buckets);
    match asked.json {
        true => commands::say(to_json(&asked.key, &reason, &trace, &near)),
        false => commands::tell(to_text(&asked.key, &reason, &near)),
    }?;
    match reason.name {
        "present" => Ok(()),
        _ => Err(Failure::new(exit::NO, format_args!("{}: not found", shown(key)))),
    }
}

/// What the region's memory says of a key that is absent.
fn reason(trace: &Trace, counters: &Counters) -> Reason {
    let reason = |name, is_certain, what: String| Reason { name, is_certain, what };
    let Some(left) = &trace.newest else {
        return nothing_left(trace);
    };
    let stored = format!(
        "it was stored in the last {}",
        age(Some(left.stored_within_s.saturating_add(1)))
    );
    match left.whereabouts {
        Whereabouts::InIndex | Whereabouts::Emptied => gone_by_itself(left, trace, &stored).unwrap_or_else(|| {
            reason(
                "unknown",
                false,
                format!("{stored}, and is changed at this moment: ask again"),
            )
        }),
        Whereabouts::Dead => deleted(left, trace, counters, &stored),
        _ => reason(
            "unknown",
            false,
            format!("{stored}, and is neither in the index nor marked as deleted: it is being changed, or a process died on it"),
        ),
    }
}

/// Where no item of the key is left.
fn nothing_left(trace: &Trace) -> Reason {
    let reason = |name, is_certain, what: String| Reason { name, is_certain, what };
    match (trace.is_complete, trace.is_ghost) {
        (true, _) => reason(
            "never_set",
            true,
            "it was not stored since the region was made: no memory was used twice since, and no item of it is there".to_owned(),
        ),
        (false, true) => reason(
            "evicted",
            false,
            "it was evicted before any client read it, as far as a fingerprint tells (one other key in a hundred has the same); when is \
             not known"
                .to_owned(),
        ),
        (false, false) => reason(
            "unknown",
            false,
            "nothing is left of it: it was never set, or it was deleted, expired or was evicted, and its memory was used again since"
                .to_owned(),
        ),
    }
}

/// A request deleted it, unless it went in one of the other ways that leave the same behind.
fn deleted(left: &Left, trace: &Trace, counters: &Counters, stored: &str) -> Reason {
    let mut others = Vec::new();
    if let Some(ago) = left.expired_for_s {
        others.push(format!("it expired {} ago", age(Some(ago))));
    }
    if left.is_flushed {
        others.push("it was flushed (flush_all)".to_owned());
    }
    if !trace.is_complete {
        others.push("a newer value replaced it, of which nothing is left".to_owned());
    }
    if counters.evictions > 0 {
        others.push("it was evicted because all slots for its hash were taken".to_owned());
    }
    let or = if others.is_empty() {
        String::new()
    } else {
        format!("; or {}", others.join(", or "))
    };
    Reason {
        name: "deleted",
        is_certain: others.is_empty(),
        what: format!("{stored}, and a request deleted it after that{or}"),
    }
}

/// Why an item is gone that no request has deleted. `None`: it is there.
fn gone_by_itself(left: &Left, trace: &Trace, stored: &str) -> Option<Reason> {
    let is_emptied = left.whereabouts == Whereabouts::Emptied;
    let (name, what) = match (left.expired_for_s, left.is_flushed) {
        // One that was stored as expired, or by a Unix time of the past, was over before it came.
        (Some(ago), _) if ago > left.stored_within_s.saturating_add(1) => (
            "expired",
            format!("{stored} with a time that was over already: it never could be read"),
        ),
        (Some(ago), _) => ("expired", format!("{stored}, and its time was over {} ago", age(Some(ago)))),
        (None, true) => ("flushed", format!("{stored}, and a flush (flush_all) came after that")),
        (None, false) if is_emptied => {
            let read = if trace.is_ghost { ", before any client read it" } else { "" };
            (
                "evicted",
                format!("{stored}, and was evicted for room{read}; when is not known"),
            )
        }
        (None, false) => return None,
    };
    let newer = if is_emptied {
        "; unless it was stored again since, and nothing is left of that"
    } else {
        ""
    };
    Some(Reason {
        name,
        is_certain: !is_emptied,
        what: format!("{what}{newer}"),
    })
}

/// How another key is like the one that is wanted.
fn likeness(wanted: &[u8], other: &[u8]) -> Option<&'static str> {
    let is_behind = |long: &[u8], short: &[u8]| {
        let (prefix, end) = long.split_at(long.len().saturating_sub(short.len()));
        !short.is_empty() && prefix.last().is_some_and(|last| SEPARATORS.contains(last)) && end.eq_ignore_ascii_case(short)
    };
    if wanted == other {
        return None;
    }
    let (plain, other) = (wanted.trim_ascii(), (other, other.trim_ascii()));
    if wanted.eq_ignore_ascii_case(other.0) {
        Some("another case")
    } else if plain.eq_ignore_ascii_case(other.1) {
        Some("other white space around it")
    } else if is_behind(other.1, plain) {
        Some("with a prefix")
    } else if is_behind(plain, other.1) {
        Some("without the prefix")
    } else {
        None
    }
}

/// The first keys that are like the one that is wanted.
fn near(session: &mut Session, wanted: &[u8], buckets: u64) -> Vec<(String, &'static str)> {
    let progress = std::io::stderr().is_terminal();
    let mut found: Vec<(String, &'static str)> = Vec::new();
    let mut cursor = Some(0);
    while let Some(from) = cursor.filter(|_| found.len() < NEAR_MAX) {
        cursor = session.walk(from, LOOKS_PER_STEP, |other, _| {
            // An item that a split has moved is there already.
            if let Some(how) = likeness(wanted, other) {
                let shown = (other.escape_ascii().to_string(), how);
                if found.len() < NEAR_MAX && !found.contains(&shown) {
                    found.push(shown);
                }
            }
        });
        if progress {
            commands::remark(format_args!("\r{} %\r", 100 * cursor.unwrap_or(from) / buckets.max(1)));
        }
    }
    found.sort_unstable();
    found
}

fn to_text(key: &str, reason: &Reason, near: &[(String, &'static str)]) -> String {
    let sure = match (reason.is_certain, reason.name) {
        (true, _) | (false, "unknown") => "",
        _ => " (probably)",
    };
    let mut text = format!(
        "{}: {}{sure}\n  {}\n",
        shown(key.as_bytes()),
        reason.name.replace('_', " "),
        reason.what
    );
    for (other, how) in near {
        text.push_str(&format!("  there is {other}: {how}\n"));
    }
    text
}

fn to_json(key: &str, reason: &Reason, trace: &Trace, near: &[(String, &'static str)]) -> serde_json::Value {
    let near: Vec<_> = near.iter().map(|(key, how)| json!({ "key": key, "is": how })).collect();
    json!({
        "key": key,
        "reason": reason.name,
        "is_certain": reason.is_certain,
        "what": reason.what,
        "stored_within_s": trace.newest.map(|left| left.stored_within_s),
        "expired_for_s": trace.newest.and_then(|left| left.expired_for_s),
        "items_left": trace.left,
        "has_fingerprint": trace.is_ghost,
        "is_complete": trace.is_complete,
        "near": near,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_alike_in_case_white_space_and_prefix() {
        let like = |wanted: &str, other: &str| likeness(wanted.as_bytes(), other.as_bytes());
        assert_eq!(like("user:42", "user:42"), None);
        assert_eq!(like("user:42", "User:42"), Some("another case"));
        assert_eq!(like("user:42", " user:42\n"), Some("other white space around it"));
        assert_eq!(like("user:42", ":1:user:42"), Some("with a prefix"));
        assert_eq!(like("app.user:42", "user:42"), Some("without the prefix"));
        assert_eq!(like("app.user:42", "42"), Some("without the prefix"));
        assert_eq!(like("user:42", "superuser:42"), None);
        assert_eq!(like("user:42", "user:421"), None);
        assert_eq!(like("a:", ""), None);
    }
}
