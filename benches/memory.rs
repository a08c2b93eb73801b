//! How many items a memory limit holds: a region beside a memcached that this program starts.
//!
//! New keys are written until the cache evicts, and then on to a multiple of that. Items are counted twice: by the cache's own
//! `curr_items`, and by asking for every key that was ever written.

use benches::client::Admin;
use benches::machine;
use benches::report::{Args, Samples, head, row, say};
use benches::requests::item;
use benches::servers::{Server, Settings, memcached_version};
use benches::workload::Sizes;
use keyway_cache::{Cache, Options, Place, Session, Store};
use std::io;

const HELP: &str = "\
memory: items held within a memory limit, Keyway beside memcached

    --memory-mib M   the limit (256)
    --beyond X       write X times the items that fit before the first eviction (3)
    --only NAME      keyway or memcached";

/// Keys between two looks at the counters.
const STEP: u64 = 5_000;

fn main() -> io::Result<()> {
    let args = Args::parse(HELP);
    let memory_mib: u64 = args.number("--memory-mib", 256);
    let beyond: f64 = args.number("--beyond", 3.0);
    let wanted = |name: &str| args.value("--only").is_none_or(|only| only == name);
    say(machine::describe());
    say(format!("{}; {memory_mib} MiB", memcached_version()));
    say(head(&[
        "sizes",
        "cache",
        "items before the first eviction",
        "items held while evicting: counted",
        "found",
        "limit / item, B",
        "mean key + value of those found, B",
        "resident, MiB",
    ]));
    for sizes in [Sizes::Fixed(64), Sizes::Etc] {
        let mut found = Vec::new();
        if wanted("memcached") {
            let settings = Settings {
                memory_mib,
                threads: 1,
                connections: 1024,
                unix: true,
                ..Settings::default()
            };
            match Server::memcached(&settings)? {
                None => say("SKIP: memcached is not installed"),
                Some(server) => {
                    let target = server.admin();
                    let mut peer = Peer {
                        admin: Admin::open(target)?,
                        pid: server.pid(),
                    };
                    found.push(measure("memcached", &mut peer, sizes, memory_mib, beyond)?);
                }
            }
        }
        if wanted("keyway") {
            let options = Options::new().memory(memory_mib << 20).prefault(true);
            let cache = Cache::open(&Place::Memfd, &options).map_err(io::Error::other)?;
            let session = cache.session().map_err(io::Error::other)?;
            found.push(measure(
                "keyway",
                &mut Region {
                    cache,
                    session,
                    value: Vec::new(),
                },
                sizes,
                memory_mib,
                beyond,
            )?);
        }
        if let [memcached, keyway] = found[..] {
            say(format!(
                "{}: Keyway holds {:.2} times memcached's items",
                sizes.name(),
                keyway / memcached
            ));
        }
    }
    Ok(())
}

/// What both sides can do.
trait Holder {
    fn set(&mut self, key: &[u8], value: &[u8]) -> io::Result<()>;
    /// Items now and evictions so far, after everything sent before.
    fn counters(&mut self) -> io::Result<(u64, u64)>;
    /// How many of `keys` are there, and bytes of their keys and values.
    fn hits(&mut self, keys: &[Vec<u8>]) -> io::Result<(u64, u64)>;
    fn resident_bytes(&self) -> io::Result<u64>;
}

/// Fills `holder`, prints its row, and gives the items found at the end.
#[allow(clippy::cast_precision_loss, reason = "counts are below 2^53")]
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a small multiple of a count"
)]
fn measure(name: &str, holder: &mut dyn Holder, sizes: Sizes, memory_mib: u64, beyond: f64) -> io::Result<f64> {
    let mut writer = Writer {
        sizes,
        written: 0,
        key: Vec::new(),
        value: vec![b'v'; 1 << 20],
    };
    let mut before = 0;
    let first = loop {
        writer.step(holder)?;
        let (items, evictions) = holder.counters()?;
        if evictions > 0 {
            break before;
        }
        before = items;
    };
    let total = (first as f64 * beyond) as u64;
    let mut counted = Samples::default();
    while writer.written < total {
        writer.step(holder)?;
        // The last third: by then nothing is left of the first fill's order.
        if writer.written > total / 3 * 2 {
            counted.push(holder.counters()?.0 as f64);
        }
    }
    let (items, bytes) = writer.found(holder)?;
    say(row(&[
        sizes.name(),
        name.to_owned(),
        first.to_string(),
        counted.show(0),
        items.to_string(),
        format!("{:.1}", (memory_mib << 20) as f64 / items as f64),
        format!("{:.1}", bytes as f64 / items as f64),
        format!("{:.0}", holder.resident_bytes()? as f64 / f64::from(1 << 20)),
    ]));
    Ok(items as f64)
}

/// Writes items 0, 1, 2, …
struct Writer {
    sizes: Sizes,
    written: u64,
    key: Vec<u8>,
    value: Vec<u8>,
}

impl Writer {
    fn step(&mut self, holder: &mut dyn Holder) -> io::Result<()> {
        for index in self.written..self.written + STEP {
            let value_len = item(self.sizes, index, &mut self.key);
            holder.set(&self.key, &self.value[..value_len])?;
        }
        self.written += STEP;
        Ok(())
    }

    /// Of all items written: how many are there, and bytes of their keys and values.
    fn found(&self, holder: &mut dyn Holder) -> io::Result<(u64, u64)> {
        let (mut items, mut bytes) = (0, 0);
        let indices: Vec<u64> = (0..self.written).collect();
        for some in indices.chunks(50) {
            let mut keys = vec![Vec::new(); some.len()];
            for (index, key) in some.iter().zip(&mut keys) {
                item(self.sizes, *index, key);
            }
            let (more_items, more_bytes) = holder.hits(&keys)?;
            items += more_items;
            bytes += more_bytes;
        }
        Ok((items, bytes))
    }
}

struct Region {
    cache: Cache,
    session: Session,
    value: Vec<u8>,
}

impl Holder for Region {
    fn set(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.session
            .store(key, value, &Store::default())
            .map(drop)
            .map_err(io::Error::other)
    }

    fn counters(&mut self) -> io::Result<(u64, u64)> {
        let counters = self.cache.counters();
        Ok((counters.curr_items, counters.evictions))
    }

    fn hits(&mut self, keys: &[Vec<u8>]) -> io::Result<(u64, u64)> {
        let (mut hits, mut bytes) = (0, 0);
        for key in keys {
            self.value.clear();
            if self.session.get_append(key, &mut self.value).unwrap().is_some() {
                hits += 1;
                bytes += (key.len() + self.value.len()) as u64;
            }
        }
        Ok((hits, bytes))
    }

    fn resident_bytes(&self) -> io::Result<u64> {
        Ok(self.cache.info().limit_bytes)
    }
}

struct Peer {
    admin: Admin,
    pid: u32,
}

impl Holder for Peer {
    fn set(&mut self, key: &[u8], value: &[u8]) -> io::Result<()> {
        self.admin.set(key, value)
    }

    fn counters(&mut self) -> io::Result<(u64, u64)> {
        self.admin.barrier()?;
        Ok((self.admin.stat("curr_items")?, self.admin.stat("evictions")?))
    }

    fn hits(&mut self, keys: &[Vec<u8>]) -> io::Result<(u64, u64)> {
        self.admin.hits(keys)
    }

    fn resident_bytes(&self) -> io::Result<u64> {
        machine::resident_bytes(self.pid)
    }
}
