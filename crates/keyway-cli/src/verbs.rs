//! `get`, `set`, `delete`, `touch`, `incr`, `decr`, `ttl`, `flush`, `keys`: commands on single items of a region or a server, from the command
//! line or in the shell.

use std::io::{IsTerminal, Read, Write};

use clap::Args;
use serde_json::json;

use crate::commands::{self, ITEM_SIZE_MAX, written};
use crate::exit::{self, Failure};
use crate::items::{Got, Items, Outcomes, Put, shown};
use crate::numbers::age;

pub(crate) const GET: &str = "\
Examples:
  keyway get greeting
      the value, from the default region
  keyway get greeting --info
      how long it lives, its client flags, size and unique
  keyway get greeting --server tls://cache.example:11212 --user ann
      from a server on another machine";
pub(crate) const SET: &str = "\
Examples:
  keyway set greeting hello
  keyway set page --ttl 600 <page.html
  keyway set greeting hello --server 127.0.0.1:11211";
pub(crate) const KEYS: &str = "\
Bytes other than printable ASCII are shown as \\xNN. An item that is stored or
moved meanwhile may be missing, or listed twice.

Examples:
  keyway keys --prefix user: | wc -l
  keyway keys --server 10.0.0.7 --json | jq -r .key";

/// Seconds, with a unit if it has one.
pub(crate) fn parse_ttl(text: &str) -> Result<i64, String> {
    let (digits, unit) = match text.char_indices().next_back() {
        Some((at, 's')) => (&text[..at], 1),
        Some((at, 'm')) => (&text[..at], 60),
        Some((at, 'h')) => (&text[..at], 3_600),
        Some((at, 'd')) => (&text[..at], 86_400),
        _ => (text, 1),
    };
    let number = digits.parse::<i64>().ok().and_then(|number| number.checked_mul(unit));
    number.ok_or_else(|| {
        "it is a whole number of seconds, or a number with s, m, h or d, such as 10m; above 30 days a Unix time".to_owned()
    })
}

#[derive(Args)]
#[group(skip)]
pub(crate) struct Get {
    /// The key
    key: String,
    /// Print what is known of the item instead of its value: seconds left, client flags, size, unique. It does not count as an access
    #[arg(long)]
    info: bool,
    /// Print it as a JSON object
    #[arg(long, requires = "info")]
    json: bool,
}

#[derive(Args)]
#[group(skip)]
pub(crate) struct Set {
    /// The key
    key: String,
    /// The value [default: standard input]
    value: Option<String>,
    /// Time until it expires: seconds, or a number with s, m, h or d; above 30 days a Unix time; 0: never
    #[arg(long, value_name = "TIME", default_value = "0", allow_negative_numbers = true, value_parser = parse_ttl)]
    ttl: i64,
    /// Client flags
    #[arg(long, default_value_t = 0)]
    flags: u32,
}

#[derive(Args)]
#[group(skip)]
pub(crate) struct Key {
    /// The key
    key: String,
}

#[derive(Args)]
#[group(skip)]
pub(crate) struct Touch {
    /// The key
    key: String,
    /// Time until it expires from now on: as --ttl of `set`
    #[arg(value_name = "TIME", allow_negative_numbers = true, value_parser = parse_ttl)]
    ttl: i64,
}

fn parse_amount(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| {
        format!(
            "it is a whole number from 0 to {}; `incr` adds it, `decr` subtracts it",
            u64::MAX
        )
    })
}

#[derive(Args)]
#[group(skip)]
pub(crate) struct Count {
    /// The key
    key: String,
    /// By how much
    #[arg(default_value_t = 1, allow_negative_numbers = true, value_parser = parse_amount)]
    by: u64,
    /// Where there is no item, make one with this value
    #[arg(long, value_name = "NUMBER")]
    initial: Option<u64>,
    /// The time until an item that is made expires: as --ttl of `set`
    #[arg(long, value_name = "TIME", default_value = "0", requires = "initial", allow_negative_numbers = true, value_parser = parse_ttl)]
    ttl: i64,
}

#[derive(Args)]
#[group(skip)]
pub(crate) struct Flush {
    /// Seconds until then
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    delay: u32,
}

#[derive(Args)]
#[group(skip)]
pub(crate) struct Keys {
    /// Only keys that begin with this
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    prefix: String,
    /// Print a JSON object for each
    #[arg(long)]
    json: bool,
}

/// A key that no item has.
fn absent(key: &str) -> Failure {
    Failure::new(exit::NO, format_args!("{}: not found", shown(key.as_bytes())))
}

fn done(is_there: bool, key: &str) -> Result<(), Failure> {
    if is_there { Ok(()) } else { Err(absent(key)) }
}

impl Get {
    /// Prints the value and nothing else; on a terminal, followed by a line end.
    pub(crate) fn run(self, items: &mut dyn Items) -> Result<(), Failure> {
        let Some(got) = items.get(self.key.as_bytes(), !self.info)? else {
            return Err(absent(&self.key));
        };
        let mut out = std::io::stdout();
        let bytes = match (self.info, self.json) {
            (false, _) if out.is_terminal() => [&got.value[..], b"\n"].concat(),
            (false, _) => got.value,
            (true, true) => format!("{}\n", json_of(&self.key, &got)).into_bytes(),
            (true, false) => info(&got).into_bytes(),
        };
        written(out.write_all(&bytes).and_then(|()| out.flush()))
    }
}

fn json_of(key: &str, got: &Got) -> serde_json::Value {
    json!({
        "key": shown(key.as_bytes()),
        "ttl_s": got.ttl_s,
        "flags": got.flags,
        "value_bytes": got.value.len(),
        "size": got.takes,
        "unique": got.unique,
        "is_stale": got.is_stale,
    })
}

fn info(got: &Got) -> String {
    let left = match got.ttl_s {
        None => "never".to_owned(),
        Some(s) => format!(
            "in {s} s{}",
            if s < 120 {
                String::new()
            } else {
                format!(" ({})", age(Some(s)))
            }
        ),
    };
    let mut text = format!(
        "expires  {left}\nflags    {}\nvalue    {} bytes\n",
        got.flags,
        got.value.len()
    );
    if let Some(takes) = got.takes {
        text.push_str(&format!("takes    {takes} bytes, header and key included\n"));
    }
    text.push_str(&format!("unique   {}\n", got.unique));
    if got.is_stale {
        text.push_str("it is marked as stale\n");
    }
    text
}

/// What became of one item.
struct One(Result<(), String>);

impl Outcomes for One {
    fn stored(&mut self) {
        self.0 = Ok(());
    }

    fn refused(&mut self, _: &[u8], why: &str) {
        self.0 = Err(why.to_owned());
    }
}

impl Set {
    pub(crate) fn has_value(&self) -> bool {
        self.value.is_some()
    }

    pub(crate) fn run(self, items: &mut dyn Items) -> Result<(), Failure> {
        let key = self.key.as_bytes();
        let value = match self.value {
            Some(value) => value.into_bytes(),
            None => {
                if std::io::stdin().is_terminal() {
                    commands::remark(format_args!(
                        "the value of {}, to its end by Ctrl-D at the begin of a line:\n",
                        shown(key)
                    ));
                }
                let mut bytes = Vec::new();
                // One byte more than any item has: what does not end is refused as too large.
                let read = std::io::stdin().take(ITEM_SIZE_MAX as u64 + 1).read_to_end(&mut bytes);
                read.map_err(|error| Failure::new(exit::SYSTEM, format_args!("cannot read standard input: {error}")))?;
                bytes
            }
        };
        let item = Put {
            key,
            value: &value,
            flags: self.flags,
            exptime: self.ttl,
            is_new: false,
            opaque_key: false,
        };
        let mut outcome = One(Ok(()));
        items.put(item, &mut outcome)?;
        items.settle(&mut outcome)?;
        outcome.0.map_err(|why| {
            let code = if key.is_empty() || key.len() > keyway_proto::KEY_LEN_MAX {
                exit::USAGE
            } else {
                exit::NO
            };
            Failure::new(code, format_args!("{}: {why}", shown(key)))
        })
    }
}

impl Key {
    pub(crate) fn delete(self, items: &mut dyn Items) -> Result<(), Failure> {
        done(items.delete(self.key.as_bytes())?, &self.key)
    }

    /// Prints the seconds left; -1: it does not expire, as in memcached's meta commands.
    pub(crate) fn ttl(self, items: &mut dyn Items) -> Result<(), Failure> {
        match items.get(self.key.as_bytes(), false)? {
            None => Err(absent(&self.key)),
            Some(Got { ttl_s: None, .. }) => commands::say("-1"),
            Some(Got { ttl_s: Some(left), .. }) => commands::say(left),
        }
    }
}

impl Touch {
    pub(crate) fn run(self, items: &mut dyn Items) -> Result<(), Failure> {
        done(items.touch(self.key.as_bytes(), self.ttl)?, &self.key)
    }
}

impl Count {
    pub(crate) fn run(self, items: &mut dyn Items, decrement: bool) -> Result<(), Failure> {
        let initial = self.initial.map(|value| (value, self.ttl));
        match items.count(self.key.as_bytes(), self.by, decrement, initial)? {
            Some(number) => commands::say(number),
            None => Err(absent(&self.key)),
        }
    }
}

impl Flush {
    pub(crate) fn run(self, items: &mut dyn Items) -> Result<(), Failure> {
        items.flush(self.delay)?;
        match self.delay {
            0 => commands::tell(format_args!("{}: all items are gone", items.place())),
            s => commands::tell(format_args!("{}: all items of now will be gone in {s} s", items.place())),
        }
    }
}

impl Keys {
    /// Prints every key, one per line.
    pub(crate) fn run(self, items: &mut dyn Items) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        while let Some(keys) = items.keys()? {
            let mut lines = String::new();
            for key in keys.iter().filter(|key| key.starts_with(self.prefix.as_bytes())) {
                match self.json {
                    true => lines.push_str(&format!("{}\n", json!({ "key": shown(key) }))),
                    false => lines.push_str(&format!("{}\n", shown(key))),
                }
            }
            if let Err(error) = out.write_all(lines.as_bytes()) {
                return written(Err(error));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_is_a_number_of_seconds_or_has_a_unit() {
        let parsed = ["0", "600", "-1", "10m", "2h", "1d", "5s", "1798761600"].map(|text| parse_ttl(text).unwrap());
        assert_eq!(parsed, [0, 600, -1, 600, 7_200, 86_400, 5, 1_798_761_600]);
        for wrong in ["", "abc", "m", "1.5", "1w", "9223372036854775807d", "é"] {
            assert!(parse_ttl(wrong).is_err_and(|why| why.contains("10m")), "{wrong}");
        }
    }
}
