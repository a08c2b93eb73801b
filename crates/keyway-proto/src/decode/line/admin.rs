//! Commands about the server rather than about items (protocol.txt, "Slabs Reassign" up to "Other commands"), and lines that
//! are no command at all.
//!
//! Settings of slabs and LRU queues that Keyway does not have are checked as memcached checks them and answered as
//! [`Admin::Obsolete`], so that scripts which change them continue to work.

use super::{Line, is_noreply};
use crate::command::Command;
use crate::decode::{BAD_EXPTIME, BAD_FORMAT, Decoded, ERROR, close, unless};
use crate::request::{Admin, DumpFormat};
use crate::token::{Tokens, parse_i32, parse_i64, parse_u32};

const OK: &[u8] = b"OK\r\n";
const BAD_CLASS: &[u8] = b"BADCLASS invalid class id\r\n";
const BAD_CLASSES: &[u8] = b"BADCLASS invalid src or dst class id\r\n";
const SAME_CLASSES: &[u8] = b"SAME src and dst class are identical\r\n";
/// One more than the largest slab class that memcached accepts.
const CLASSES: u32 = 64;

// Marked cold, to keep them out of the code that decodes commands on items.
impl<'a> Line<'a, '_> {
    /// memcached's guard against forged requests from browsers: a request line of HTTP closes the connection, so that
    /// header lines and body are never read as commands.
    #[cold]
    pub(super) fn unknown(self, words: Tokens<'a>) -> Decoded<'a> {
        let noreply = is_noreply(words.clone());
        if words.last().is_some_and(|word| word.starts_with(b"HTTP/")) {
            return close(self.consumed);
        }
        // Too short to hold any command.
        let reply = if self.text.len() < 2 { BAD_FORMAT } else { ERROR };
        self.answer_error(unless(noreply, reply))
    }

    #[cold]
    pub(super) fn stats(self, words: Tokens<'a>) -> Decoded<'a> {
        let argument = words.rest().trim_ascii_end();
        self.admin(Admin::Stats { argument })
    }

    #[cold]
    pub(super) fn watch(self, words: Tokens<'a>) -> Decoded<'a> {
        let what = words.rest().trim_ascii_end();
        if Tokens(what).all(is_stream) {
            self.admin(Admin::Watch { what })
        } else {
            self.answer_error(ERROR)
        }
    }

    /// `flush_all [delay] [noreply]`
    #[cold]
    pub(super) fn flush_all(self, mut words: Tokens<'a>) -> Decoded<'a> {
        let noreply = is_noreply(words.clone());
        let delay = match words.next() {
            None => Some(0),
            Some(b"noreply") if words.next().is_none() => Some(0),
            Some(delay) => parse_i32(delay),
        };
        match delay {
            Some(delay) => self.admin(Admin::FlushAll { delay, noreply }),
            None => self.answer_error(unless(noreply, BAD_EXPTIME)),
        }
    }

    /// `verbosity <level> [noreply]`
    #[cold]
    pub(super) fn verbosity(self, mut words: Tokens<'a>) -> Decoded<'a> {
        let noreply = is_noreply(words.clone());
        match words.next().and_then(parse_u32) {
            Some(level) => self.admin(Admin::Verbosity { level, noreply }),
            None => self.answer_error(unless(noreply, BAD_FORMAT)),
        }
    }

    /// `cache_memlimit <megabytes> [noreply]`
    #[cold]
    pub(super) fn cache_memlimit(self, mut words: Tokens<'a>) -> Decoded<'a> {
        let noreply = is_noreply(words.clone());
        let reply: &[u8] = match words.next().and_then(parse_u32) {
            None => ERROR,
            Some(..8) => b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n",
            Some(1_000_000_001..) => b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n",
            Some(megabytes) => {
                return self.admin(Admin::CacheMemlimit {
                    megabytes: megabytes.into(),
                    noreply,
                });
            }
        };
        self.answer_error(unless(noreply, reply))
    }

    /// `shutdown [graceful]`
    #[cold]
    pub(super) fn shutdown(self, mut words: Tokens<'a>) -> Decoded<'a> {
        let noreply = is_noreply(words.clone());
        match (words.next(), words.next()) {
            (None, _) => self.admin(Admin::Shutdown { graceful: false }),
            (Some(b"graceful"), None) => self.admin(Admin::Shutdown { graceful: true }),
            _ => self.answer_error(unless(noreply, b"CLIENT_ERROR invalid shutdown mode\r\n")),
        }
    }

    /// `lru_crawler <sub-command> …`: dumps are executed, the crawler's settings have no effect.
    #[cold]
    pub(super) fn lru_crawler(self, mut words: Tokens<'a>) -> Decoded<'a> {
        let noreply = is_noreply(words.clone());
        let dump = match (words.next(), words.next(), words.next()) {
            (Some(b"metadump"), Some(what), None) => (DumpFormat::Metadump, what),
            (Some(b"mgdump"), Some(what), None) => (DumpFormat::Mgdump, what),
            (Some(sub), argument, None) => return self.obsolete(Command::LruCrawler, crawler(sub, argument), noreply),
            _ => return self.answer_error(unless(noreply, ERROR)),
        };
        match dump {
            (format, what) if names_classes(what) => self.admin(Admin::Dump { format, what }),
            _ => self.answer_error(unless(noreply, BAD_CLASS)),
        }
    }

    /// `refresh_certs [noreply]`
    #[cold]
    pub(super) fn refresh_certs(self, words: Tokens<'a>) -> Decoded<'a> {
        let noreply = is_noreply(words);
        self.admin(Admin::RefreshCerts { noreply })
    }

    /// `slabs <sub-command> …`
    #[cold]
    pub(super) fn slabs(self, words: Tokens<'a>) -> Decoded<'a> {
        let noreply = is_noreply(words.clone());
        self.obsolete(Command::Slabs, slabs(words), noreply)
    }

    /// `lru <sub-command> …`
    #[cold]
    pub(super) fn lru(self, words: Tokens<'a>) -> Decoded<'a> {
        let noreply = is_noreply(words.clone());
        self.obsolete(Command::Lru, lru(words), noreply)
    }

    fn obsolete(self, command: Command, reply: &'static [u8], noreply: bool) -> Decoded<'a> {
        self.admin(Admin::Obsolete { command, reply, noreply })
    }
}

/// Whether `watch` accepts this stream (protocol.txt, "Watchers"), including memcached's two undocumented ones, or this word of Keyway's.
fn is_stream(word: &[u8]) -> bool {
    matches!(
        word,
        b"fetchers"
            | b"mutations"
            | b"evictions"
            | b"connevents"
            | b"deletions"
            | b"proxyreqs"
            | b"proxyevents"
            | b"proxyuser"
            | b"rawcmds"
            | b"sysevents"
            | b"updates"
            | b"expirations"
            | b"all"
            | b"detailed"
    ) || [&b"prefix="[..], b"command=", b"door=", b"sample="]
        .iter()
        .any(|filter| word.starts_with(filter))
}

/// `all`, `hash`, or class ids separated by commas (protocol.txt, "LRU_Crawler").
fn names_classes(what: &[u8]) -> bool {
    let mut ids = what.split(|&b| b == b',').filter(|id| !id.is_empty()).peekable();
    let is_class = |id: &[u8]| parse_u32(id).is_some_and(|id| (1..CLASSES).contains(&id));
    matches!(what, b"all" | b"hash") || (ids.peek().is_some() && ids.all(is_class))
}

/// protocol.txt, "LRU_Crawler", the settings.
fn crawler(sub: &[u8], argument: Option<&[u8]>) -> &'static [u8] {
    match (sub, argument) {
        (b"enable" | b"disable", None) => OK,
        (b"crawl", Some(what)) if names_classes(what) => OK,
        (b"crawl", Some(_)) => BAD_CLASS,
        (b"tocrawl", Some(count)) if parse_u32(count).is_some() => OK,
        (b"sleep", Some(us)) => match parse_u32(us) {
            Some(..=1_000_000) => OK,
            Some(_) => b"CLIENT_ERROR sleep must be one second or less\r\n",
            None => BAD_FORMAT,
        },
        (b"tocrawl", Some(_)) => BAD_FORMAT,
        _ => ERROR,
    }
}

/// protocol.txt, "Slabs Reassign" and "Slabs Automove". Memory never moves between classes here, so no pair of classes is valid.
fn slabs(mut words: Tokens<'_>) -> &'static [u8] {
    match (words.next(), words.next(), words.next(), words.next()) {
        (Some(b"reassign"), Some(from), Some(to), None) => match (parse_i64(from), parse_i64(to)) {
            (Some(from), Some(to)) if from == to => SAME_CLASSES,
            (Some(_), Some(_)) => BAD_CLASSES,
            _ => BAD_FORMAT,
        },
        (Some(b"automove"), Some(b"ratio" | b"freeratio"), ratio, _) => if_valid(ratio.is_some_and(is_ratio)),
        (Some(b"automove"), Some(b"window"), seconds, _) => match seconds.and_then(parse_u32) {
            Some(3..=1800) => OK,
            Some(_) => b"CLIENT_ERROR automove window too low or too high\r\n",
            None => BAD_FORMAT,
        },
        (Some(b"automove"), Some(level), _, _) => match parse_u32(level) {
            Some(level) => if_valid(level <= 2),
            None => BAD_FORMAT,
        },
        _ => ERROR,
    }
}

/// protocol.txt, "LRU Tuning".
fn lru(mut words: Tokens<'_>) -> &'static [u8] {
    match (words.next(), words.next()) {
        (Some(b"tune"), Some(hot)) => {
            let (warm, hot_factor, factor) = (words.next(), words.next(), words.next());
            let shares = (parse_u32(hot), warm.and_then(parse_u32));
            match shares {
                (Some(hot), Some(warm)) if hot_factor.is_some_and(is_ratio) && factor.is_some_and(is_ratio) => {
                    if hot.saturating_add(warm) > 80 {
                        b"ERROR hot and warm pcts must not exceed 80\r\n"
                    } else if hot_factor.is_some_and(is_positive) && factor.is_some_and(is_positive) {
                        OK
                    } else {
                        b"ERROR hot/warm age factors must be greater than 0\r\n"
                    }
                }
                _ => ERROR,
            }
        }
        (Some(b"mode"), Some(b"flat" | b"segmented")) => OK,
        (Some(b"temp_ttl"), Some(ttl)) => if_valid(parse_i64(ttl).is_some()),
        _ => ERROR,
    }
}

fn if_valid(valid: bool) -> &'static [u8] {
    if valid { OK } else { ERROR }
}

fn ratio(word: &[u8]) -> Option<f64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}

fn is_ratio(word: &[u8]) -> bool {
    ratio(word).is_some()
}

fn is_positive(word: &[u8]) -> bool {
    ratio(word).is_some_and(|ratio| ratio > 0.0)
}
