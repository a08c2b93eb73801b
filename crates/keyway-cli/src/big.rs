//! `keyway big`: the largest items of a region, or what the keys of each prefix take together.

use keyway_cache::server::ServerCache as _;
use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, Write};

use clap::Args;
use serde_json::{Value, json};

use crate::commands::{self, Which};
use crate::exit::Failure;
use crate::hot::parse_top;
use crate::terminal::{self, LEFT, Table, right};

/// Buckets and items looked at between two reports of the progress.
const LOOKS_PER_STEP: usize = 1024;

pub(crate) const HELP: &str = "\
All items are looked at, without a lock and without an access that counts. An
item that is stored meanwhile may be missing, and one that moves meanwhile may
be counted twice with --prefix. BYTES is what an item takes in the region, its
header and its key included.

Examples:
  keyway big                     the ten largest items
  keyway big --prefix : --json   what the keys before each first colon take,
                                 largest first";

#[derive(Args)]
pub(crate) struct BigKeys {
    /// Items, or prefixes
    #[arg(long, value_name = "NUMBER", default_value = "10", value_parser = parse_top)]
    top: usize,
    /// Add up the keys with the same text before the first SEPARATOR in them
    #[arg(long, value_name = "SEPARATOR", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    prefix: Option<String>,
    /// Show hashes in the place of keys
    #[arg(long)]
    redact: bool,
    /// Print JSON, one line for each
    #[arg(long)]
    json: bool,
}

/// What is known of an item, or of all with a prefix. The order is by size.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Big {
    size: u64,
    value_len: u64,
    items: u64,
    name: Vec<u8>,
}

/// The largest so far.
#[derive(Debug)]
enum Largest {
    Items {
        most: usize,
        found: BTreeSet<Big>,
    },
    Prefixes {
        separator: Vec<u8>,
        sums: BTreeMap<Vec<u8>, Big>,
    },
}

impl Largest {
    fn new(how: &BigKeys) -> Self {
        match &how.prefix {
            Some(separator) => Self::Prefixes {
                separator: separator.clone().into_bytes(),
                sums: BTreeMap::new(),
            },
            None => Self::Items {
                most: how.top,
                found: BTreeSet::new(),
            },
        }
    }

    fn add(&mut self, key: &[u8], size: u64, value_len: u64) {
        match self {
            Self::Items { most, found } => {
                // An item that a split has moved is there already.
                if found.len() < *most || found.first().is_some_and(|least| least.size < size) {
                    found.insert(Big {
                        size,
                        value_len,
                        items: 1,
                        name: key.to_vec(),
                    });
                }
                while found.len() > *most {
                    found.pop_first();
                }
            }
            Self::Prefixes { separator, sums } => {
                let end = key.windows(separator.len()).position(|part| part == separator.as_slice());
                let name = &key[..end.unwrap_or(key.len())];
                let sum = match sums.get_mut(name) {
                    Some(sum) => sum,
                    None => sums.entry(name.to_vec()).or_default(),
                };
                sum.size += size;
                sum.value_len += value_len;
                sum.items += 1;
            }
        }
    }

    /// The largest first.
    fn list(self, most: usize) -> Vec<Big> {
        let mut list: Vec<Big> = match self {
            Self::Items { found, .. } => found.into_iter().collect(),
            Self::Prefixes { sums, .. } => sums.into_iter().map(|(name, sum)| Big { name, ..sum }).collect(),
        };
        list.sort_unstable_by(|a, b| b.cmp(a));
        list.truncate(most);
        list
    }
}

/// Looks at all items, and prints the largest.
pub(crate) fn run(which: Which, how: &BigKeys) -> Result<(), Failure> {
    let cache = commands::open(which)?;
    let mut session = commands::session(&cache)?;
    let progress = std::io::stderr().is_terminal();
    let mut largest = Largest::new(how);
    let mut cursor = Some(0);
    while let Some(from) = cursor {
        cursor = session.walk(from, LOOKS_PER_STEP, |key, item| {
            largest.add(key, item.size as u64, item.value_len as u64)
        });
        if progress {
            let percent = 100 * cursor.unwrap_or(from) / cache.info().index_buckets.max(1);
            commands::remark(format_args!("\r{percent} %\r"));
        }
    }
    let list = largest.list(how.top);
    // As `keyway hot` has them.
    let hash = |found: &Big| format!("{:016x}", cache.hash(&found.name));
    let text: String = match how.json {
        true => list
            .iter()
            .map(|found| format!("{}\n", json(how, found, &hash(found))))
            .collect(),
        false => table(how, &list, hash),
    };
    commands::written(std::io::stdout().write_all(text.as_bytes()))
}

/// What the rows are about.
fn title(how: &BigKeys) -> &'static str {
    if how.prefix.is_some() { "prefix" } else { "key" }
}

fn json(how: &BigKeys, found: &Big, hash: &str) -> Value {
    json!({
        title(how): (!how.redact).then(|| found.name.escape_ascii().to_string()),
        "hash": hash,
        "size": found.size,
        "value_bytes": found.value_len,
        "items": found.items,
    })
}

fn table(how: &BigKeys, list: &[Big], hash: impl Fn(&Big) -> String) -> String {
    let mut table = Table::new(&[right(12), right(14), right(10), LEFT], 3);
    table.head(["BYTES", "VALUE BYTES", "ITEMS", title(how).to_uppercase().as_str()]);
    for found in list {
        let shown = match how.redact {
            true => format!("#{}", hash(found)),
            false => found.name.escape_ascii().to_string(),
        };
        let numbers = [found.size, found.value_len, found.items].map(|number| number.to_string());
        table.row(numbers.into_iter().chain([shown]));
    }
    table.text(terminal::columns())
}
