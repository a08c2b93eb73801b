//! `keyway stats`: a region's properties and counters, for people in groups, for scripts a line each.

use keyway_cache::server::ServerCache as _;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use clap::Args;
use keyway_cache::Counters;
use keyway_cache::server::{Seen, USES};
use keyway_server::size_text;
use serde_json::json;

use crate::commands::{self, Which};
use crate::exit::{self, Failure};
use crate::numbers::{age, grouped, number, rate, ratio, time};
use crate::terminal::{self, Column, Table, left, right};
use crate::top::server::{Answered, Server};
use crate::wire::Access;
use crate::{Region, place};

pub(crate) const HELP: &str = "\
TOTAL is counted since the region was made, by all doors and processes; PER
SECOND is what is counted in the interval that this program waits. For people
the region is mapped for reading only: nothing is attached, and nothing changes.

Examples:
  keyway stats
      the default region, with or without a server
  keyway stats --interval 10 --server 127.0.0.1:11211
      rates over ten seconds, and what this server says of itself
  keyway stats --plain | awk '$1 == \"evictions\"'
      a line for each, on a terminal too; as every output that is no terminal";

#[derive(Args)]
pub(crate) struct How {
    /// A line for each property and counter, as if the output were no terminal
    #[arg(long)]
    plain: bool,
    /// In groups, as if the output were a terminal
    #[arg(long, conflicts_with = "plain")]
    grouped: bool,
    /// Print one JSON object: the same properties and counters, in bytes
    #[arg(long, conflicts_with_all = ["plain", "grouped"])]
    json: bool,
    /// Seconds over which rates are measured; 0: no rates
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = clap::value_parser!(u32).range(..=3600))]
    interval: u32,
    /// Also ask this server, in groups, and show its region if none is named: [tls://]ADDR[:PORT], or the path of a Unix socket
    #[arg(long, value_name = "PLACE", conflicts_with = "plain")]
    server: Option<String>,
    #[command(flatten)]
    access: Access,
}

impl How {
    /// What the server of this region says, if one is asked.
    fn ask(&self, region: (u64, u64)) -> Result<Option<Answered>, Failure> {
        let Some(place) = &self.server else {
            return Ok(None);
        };
        let said = Server::connect(place, &self.access, region)?.ask();
        said.map(Some)
            .map_err(|why| Failure::new(exit::NO, format_args!("{place}: {why}")))
    }
}

/// Prints them.
pub(crate) fn run(region: Region, how: &How) -> Result<(), Failure> {
    let which = region.place_of(how.server.as_deref(), &how.access)?;
    if how.json {
        return as_json(which, how);
    }
    if how.plain || !(how.grouped || how.server.is_some() || std::io::stdout().is_terminal()) {
        return plain(which);
    }
    let path = which.path;
    let (_, watched) = place::open_to_look(&path, &which.owners)?;
    let said = how.ask(watched.identity())?;
    let (before, begun) = (watched.look(), Instant::now());
    std::thread::sleep(Duration::from_secs(how.interval.into()));
    let groups = Groups {
        now: watched.look(),
        before,
        elapsed: (how.interval > 0).then(|| begun.elapsed()),
    };
    let text = groups.text(&path.display().to_string(), said.as_ref(), terminal::columns());
    commands::written(std::io::stdout().write_all(text.as_bytes()))
}

/// Two looks at a region.
struct Groups {
    now: Seen,
    before: Seen,
    /// between them; `None`: rates are not wanted
    elapsed: Option<Duration>,
}

/// Names and numbers of all groups stand below each other.
const COLUMNS: [Column; 3] = [left(28), right(16), right(15)];

/// A row of counters: what it is called, and what it counts.
type CountRow = (&'static str, fn(&Counters) -> u64);

const READS: &[CountRow] = &[
    ("gets", Counters::cmd_get),
    ("hits", |c| c.get_hits),
    ("misses", |c| c.get_misses),
    ("misses: expired", |c| c.get_expired),
    ("misses: flushed", |c| c.get_flushed),
];
const WRITES: &[CountRow] = &[
    ("sets", |c| c.cmd_set),
    ("deletes", |c| c.delete_hits),
    ("deletes: no item", |c| c.delete_misses),
    ("increments", |c| c.incr_hits.wrapping_add(c.decr_hits)),
    ("increments: no item", |c| c.incr_misses.wrapping_add(c.decr_misses)),
    ("cas: matched", |c| c.cas_hits),
    ("cas: another unique", |c| c.cas_badval),
    ("cas: no item", |c| c.cas_misses),
    ("flushes", |c| c.cmd_flush),
    ("refused: too large", |c| c.store_too_large),
    ("refused: no memory", |c| c.store_no_memory),
];
const EVICTIONS: &[CountRow] = &[
    ("evicted", |c| c.evictions),
    ("evicted, never read", |c| c.evicted_unfetched),
    ("came back soon after", |c| c.ghost_hits),
    ("expired, never read", |c| c.expired_unfetched),
    ("copied before eviction", |c| c.relocations),
    ("segments emptied", |c| c.segments_recycled),
];

impl Groups {
    fn text(&self, place: &str, said: Option<&Answered>, columns: Option<usize>) -> String {
        let (seen, c) = (&self.now, &self.now.counters);
        let share = |part: u64, all: u64| ratio(part, all.saturating_sub(part));
        let mut table = Table::new(&COLUMNS, 0);
        self.memory(&mut table);
        self.heading(&mut table, "reads");
        self.counts(&mut table, READS);
        let (hits, misses) = (self.between(|c| c.get_hits), self.between(|c| c.get_misses));
        let now = self.elapsed.map_or(String::new(), |_| ratio(hits, misses));
        table.row(["  hit ratio".to_owned(), ratio(c.get_hits, c.get_misses), now]);
        self.counts(&mut table, &[("touches", Counters::cmd_touch)]);
        self.heading(&mut table, "writes");
        self.counts(&mut table, WRITES);
        self.heading(&mut table, "evictions");
        let (evicted, kept) = EVICTIONS.split_at(2);
        self.counts(&mut table, evicted);
        row(&mut table, "share never read", share(c.evicted_unfetched, c.evictions));
        self.counts(&mut table, kept);
        row(&mut table, "oldest: admission pool", age(seen.ages.admission_s));
        row(&mut table, "oldest: main pool", age(seen.ages.main_s));

        table.group(["processes"]);
        let threads: usize = seen.processes.iter().map(|process| process.threads.len()).sum();
        row(&mut table, "attached", seen.processes.len().to_string());
        row(
            &mut table,
            "thread slots taken",
            format!("{threads} of {}", seen.sessions_max),
        );
        row(&mut table, "sessions of dead programs", grouped(c.recoveries));
        row(&mut table, "damaged items met", grouped(c.corrupt));
        if let Some(said) = said {
            table.group(["server"]);
            row(&mut table, "process", said.pid.to_string());
            row(&mut table, "connections", grouped(said.connections));
            row(&mut table, "threads", said.threads.to_string());
            row(&mut table, "up", age(u32::try_from(said.uptime_s).ok()));
        }
        let title = terminal::wrapped(&format!("keyway stats  {place}"), columns);
        format!("{title}\n{}{}", table.text(columns), self.latencies(columns))
    }

    fn memory(&self, table: &mut Table) {
        let (seen, c) = (&self.now, &self.now.counters);
        table.group(["memory"]);
        row(table, "limit", size_text(seen.limit_bytes));
        row(table, "items", grouped(c.curr_items));
        row(table, "items take", size_text(c.bytes));
        let mean = c.bytes.checked_div(c.curr_items);
        row(table, "an item takes, on average", mean.map_or("-".to_owned(), size_text));
        let all: u64 = seen.segments.iter().sum();
        for (name, segments) in USES.iter().zip(seen.segments).filter(|(_, segments)| *segments > 0) {
            let bytes = size_text(segments.saturating_mul(seen.segment_bytes));
            let share = ratio(segments, all.saturating_sub(segments));
            row(table, &format!("segments: {name}"), format!("{bytes}  {share}"));
        }
    }

    fn counts(&self, table: &mut Table, counts: &[CountRow]) {
        counts.iter().for_each(|(name, of)| self.count(table, name, of));
    }

    /// What was counted between the looks.
    fn between(&self, of: impl Fn(&Counters) -> u64) -> u64 {
        of(&self.now.counters).saturating_sub(of(&self.before.counters))
    }

    fn heading(&self, table: &mut Table, title: &str) {
        let per_second = self.elapsed.map(|_| "PER SECOND");
        table.group([title, "TOTAL"].into_iter().chain(per_second));
    }

    fn count(&self, table: &mut Table, name: &str, of: impl Fn(&Counters) -> u64) {
        let seconds = self
            .elapsed
            .map(|elapsed| elapsed.as_secs_f64())
            .filter(|seconds| *seconds > 0.0);
        let per_s = seconds.map(|seconds| rate(number(self.between(&of)) / seconds));
        let cells = [format!("  {name}"), grouped(of(&self.now.counters))];
        table.row(cells.into_iter().chain(per_s));
    }

    /// Since the region was made.
    fn latencies(&self, columns: Option<usize>) -> String {
        let mut counted = self.now.latencies.counted().peekable();
        if counted.peek().is_none() {
            return String::new();
        }
        let mut table = Table::new(&[left(23), right(16), right(9), right(9), right(9)], 0);
        table.group(["latencies", "MEASURED", "p50", "p99", "p99.9"]);
        for (door, verb, latency) in counted {
            let quantile = |thousandth| time(latency.quantile_ns(thousandth));
            let name = format!("  {:<9} {}", door.name(), verb.name());
            table.row([name, grouped(latency.count()), quantile(500), quantile(990), quantile(999)]);
        }
        format!("\n{}", table.text(columns))
    }
}

/// A name and what is known of it.
fn row(table: &mut Table, name: &str, value: String) {
    table.row([format!("  {name}"), value]);
}

/// What is counted, in the order of the lines.
fn counts(counters: &Counters) -> [(&'static str, u64); 15] {
    [
        ("items", counters.curr_items),
        ("bytes", counters.bytes),
        ("gets", counters.cmd_get()),
        ("get hits", counters.get_hits),
        ("get misses", counters.get_misses),
        ("sets", counters.cmd_set),
        ("deletes", counters.delete_hits),
        ("evictions", counters.evictions),
        ("expired unfetched", counters.expired_unfetched),
        ("no memory", counters.store_no_memory),
        ("too large", counters.store_too_large),
        ("relocations", counters.relocations),
        ("segments recycled", counters.segments_recycled),
        ("recoveries", counters.recoveries),
        ("corrupt", counters.corrupt),
    ]
}

/// The properties and counters for programs.
fn as_json(region: Which, how: &How) -> Result<(), Failure> {
    let place = region.path.display().to_string();
    let cache = commands::open(region)?;
    let info = cache.info();
    let mut object = json!({
        "place": place,
        "memory_bytes": info.limit_bytes,
        "segments": info.segments,
        "segment_bytes": info.segment_bytes,
        "segments_free": info.segments_free,
        "segments_withdrawn": info.segments_withdrawn,
        "segments_given_back": info.segments_given_back,
        "index_buckets": info.index_buckets,
        "index_bytes": info.index_bytes,
        "sessions": info.sessions,
        "sessions_max": info.sessions_max,
        "gate": info.gate.to_string(),
        "item_size_max": info.item_size_max,
    });
    for (name, count) in counts(&cache.counters()) {
        object[name.replace(' ', "_")] = count.into();
    }
    if how.server.is_some() {
        let region = cache.identity().map_err(|error| Failure::new(exit::SYSTEM, error))?;
        object["server"] = json!(how.ask(region)?.map(|said| {
            json!({ "pid": said.pid, "connections": said.connections, "threads": said.threads, "uptime_s": said.uptime_s })
        }));
    }
    commands::say(object)
}

/// A line for each property, and for each counter since the region was made.
fn plain(region: Which) -> Result<(), Failure> {
    let cache = commands::open(region)?;
    let (info, counters) = (cache.info(), cache.counters());
    let mut text = String::new();
    let mut line = |name: &str, value: String| text.push_str(&format!("{name:<20} {value}\n"));
    line("memory", size_text(info.limit_bytes));
    line(
        "segments",
        format!(
            "{} of {}, {} free",
            info.segments,
            size_text(info.segment_bytes),
            info.segments_free
        ),
    );
    if info.segments_withdrawn > 0 {
        line(
            "out of use",
            format!(
                "{} segments, the memory of {} given back",
                info.segments_withdrawn, info.segments_given_back
            ),
        );
    }
    line(
        "index",
        format!("{} buckets, {}", info.index_buckets, size_text(info.index_bytes)),
    );
    line("sessions", format!("{} of {}", info.sessions, info.sessions_max));
    line("gate", info.gate.to_string());
    line("largest item", size_text(info.item_size_max as u64));
    for (name, count) in counts(&counters) {
        line(name, count.to_string());
    }
    commands::written(std::io::stdout().write_all(text.as_bytes()))
}
