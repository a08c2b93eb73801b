//! Hot keys, as text for `stats hotkeys` and as JSON for programs.

use std::io::Write;
use std::sync::Mutex;
use std::time::Duration;

use keyway_cache::{Cache, Hot, HotBy, HotCounts};
use keyway_proto::reply::{self, stat};
use serde_json::{Map, Value, json};

use crate::basics::lock;

/// Keys that `stats hotkeys` and the page of the HTTP port list of each kind.
pub(crate) const LISTED: usize = 10;
/// The counters of a request are kept for later ones, if those that were kept last are this old.
const RECENT: Duration = Duration::from_secs(5);

/// What is counted, and its name.
const KINDS: [(HotBy, &str); 3] = [(HotBy::Gets, "gets"), (HotBy::Sets, "sets"), (HotBy::Bytes, "bytes")];

/// What is asked of the counters.
#[derive(Clone, Copy, Debug)]
pub struct HotAsked<'a> {
    /// keys, or prefixes, of each kind
    pub most: usize,
    /// group the keys by what is before this
    pub separator: Option<&'a [u8]>,
    /// show hashes in the place of keys
    pub redacted: bool,
}

impl HotAsked<'_> {
    /// The hottest keys or prefixes: all in all, or since an earlier moment.
    pub fn list(&self, cache: &Cache, counts: &HotCounts, since: Option<&HotCounts>, by: HotBy) -> Vec<Hot> {
        match self.separator {
            Some(separator) => cache.hot_prefixes(counts, since, by, self.most, separator),
            None => cache.hot_keys(counts, since, by, self.most),
        }
    }

    /// A key or a prefix as it is shown; or its hash, if only that is known or asked for.
    pub fn shown(&self, hot: &Hot) -> String {
        match (&hot.name, hot.hash) {
            (Some(name), _) if !self.redacted => name.escape_ascii().to_string(),
            (_, Some(hash)) => format!("#{hash:016x}"),
            (_, None) => "(absent)".to_owned(),
        }
    }

    /// All kinds, since the region was made and, if there is an earlier moment, since then.
    pub fn json(&self, cache: &Cache, counts: &HotCounts, since: Option<&HotCounts>) -> Value {
        self.json_of(counts, since, |since, by| self.list(cache, counts, since, by))
    }

    /// All kinds as JSON, of the keys or prefixes that `list` returns.
    pub fn json_of(
        &self,
        counts: &HotCounts,
        since: Option<&HotCounts>,
        list: impl Fn(Option<&HotCounts>, HotBy) -> Vec<Hot>,
    ) -> Value {
        let lists = |since: Option<&HotCounts>| {
            let list = |by| {
                let found = list(since, by);
                found.iter().map(|hot| self.one(hot)).collect::<Vec<Value>>()
            };
            KINDS.map(|(by, name)| (name.to_owned(), Value::from(list(by)))).into_iter()
        };
        json!({
            "seconds": since.map(|since| counts.after(since).as_secs_f64()),
            "since_start": lists(None).collect::<Map<_, _>>(),
            "recent": since.map(|since| lists(Some(since)).collect::<Map<_, _>>()),
        })
    }

    fn one(&self, hot: &Hot) -> Value {
        let what = if self.separator.is_some() { "prefix" } else { "key" };
        let name = hot.name.as_ref().filter(|_| !self.redacted);
        json!({
            what: name.map(|name| name.escape_ascii().to_string()),
            "hash": hot.hash.map(|hash| format!("{hash:016x}")),
            "estimate": hot.estimate,
            "at_least": hot.at_least,
            "at_most": hot.at_most,
        })
    }
}

/// The counters as they were at earlier requests, the older one first.
#[derive(Debug, Default)]
pub(crate) struct Earlier(Mutex<[Option<HotCounts>; 2]>);

impl Earlier {
    /// Looks at the counters as they are now, and as they were at an earlier look, if there was one.
    pub(crate) fn look<R>(&self, cache: &Cache, see: impl FnOnce(&HotCounts, Option<&HotCounts>) -> R) -> R {
        let counts = cache.hot_counts();
        let mut kept = lock(&self.0);
        let seen = see(&counts, kept[0].as_ref());
        // The older of the two stays until the newer one is old enough to take its place.
        let [older, newer] = &mut *kept;
        if older.is_none() {
            *older = Some(counts);
        } else if newer.as_ref().is_none_or(|newer| counts.after(newer) >= RECENT) {
            let last = newer.replace(counts);
            if last.is_some() {
                *older = last;
            }
        }
        seen
    }
}

/// `stats hotkeys` of keys, or of prefixes. `redacted`: keys are not for clients to see.
pub(crate) fn write(earlier: &Earlier, cache: &Cache, separator: Option<&[u8]>, redacted: bool, out: &mut Vec<u8>) {
    let asked = HotAsked {
        most: LISTED,
        separator,
        redacted,
    };
    earlier.look(cache, |counts, since| {
        lines(&asked, cache, counts, None, "", out);
        if let Some(since) = since {
            stat(
                out,
                "hotkeys_seconds",
                format_args!("{:.1}", counts.after(since).as_secs_f64()),
            );
            lines(&asked, cache, counts, Some(since), "recent_", out);
        }
    });
    out.extend_from_slice(reply::END);
}

fn lines(asked: &HotAsked<'_>, cache: &Cache, counts: &HotCounts, since: Option<&HotCounts>, when: &str, out: &mut Vec<u8>) {
    let what = if asked.separator.is_some() { "prefix" } else { "key" };
    for (by, kind) in KINDS {
        for (rank, hot) in (1..).zip(asked.list(cache, counts, since, by)) {
            let _ = write!(out, "STAT {when}{kind}:{rank}:");
            match (hot.name.as_ref().filter(|_| !asked.redacted), hot.hash) {
                (Some(name), _) => {
                    let _ = write!(out, "{what} ");
                    reply::uri_encode(out, name);
                }
                (None, Some(hash)) => {
                    let _ = write!(out, "hash {hash:016x}");
                }
                // All keys of which only the hash is known: their prefixes are not.
                (None, None) => out.extend_from_slice(b"absent yes"),
            }
            out.extend_from_slice(reply::LINE_END);
            for (name, count) in [
                ("estimate", hot.estimate),
                ("at_least", hot.at_least),
                ("at_most", hot.at_most),
            ] {
                let _ = write!(out, "STAT {when}{kind}:{rank}:{name} {count}\r\n");
            }
        }
    }
}
