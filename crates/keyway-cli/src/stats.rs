//! `keyway stats`: a region's properties and counters, for people in groups, for scripts a line each.

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
    let text = groups.text(&path.display().to_string(), said.as_ref());
    commands::written(std::io::stdout().write_all(text.as_bytes()))
}

/// Two looks at a region.
struct Groups {
    now: Seen,
    before: Seen,
    /// between them; `None`: rates are not wanted
    elapsed: Option<Duration>,
}

/// The widths of a name and of a number.
const NAME: usize = 26;
const NUMBER: usize = 16;

impl Groups {
    fn text(&self, place: &str, said: Option<&Answered>) -> String {
        let (seen, c) = (&self.now, &self.now.counters);
        let mut text = format!("keyway stats  {place}\n");
        let share = |part: u64, all: u64| ratio(part, all.saturating_sub(part));
        let line = |text: &mut String, name: &str, value: &str| text.push_str(&format!("  {name:<NAME$} {value:>NUMBER$}\n"));

        text.push_str("\nmemory\n");
        let all: u64 = seen.segments.iter().sum();
        let bytes = |segments: u64| size_text(segments.saturating_mul(seen.segment_bytes));
        line(&mut text, "limit", &size_text(seen.limit_bytes));
        line(&mut text, "items", &grouped(c.curr_items));
        line(&mut text, "items take", &size_text(c.bytes));
        let mean = c.bytes.checked_div(c.curr_items);
        line(
            &mut text,
            "an item takes, on average",
            &mean.map_or("-".to_owned(), size_text),
        );
        for (name, segments) in USES.iter().zip(seen.segments).filter(|(_, segments)| *segments > 0) {
            let name = format!("segments: {name}");
            let all = format!("{}  {}", bytes(segments), share(segments, all));
            line(&mut text, &name, &all);
        }

        let heading = |title: &str| {
            let per_second = self.elapsed.map_or("", |_| "PER SECOND");
            let columns = format!(
                "\n{title:<width$} {:>NUMBER$} {per_second:>NUMBER$}",
                "TOTAL",
                width = NAME + 2
            );
            format!("{}\n", columns.trim_end())
        };
        text.push_str(&heading("reads"));
        self.count(&mut text, "gets", |c| c.cmd_get());
        self.count(&mut text, "hits", |c| c.get_hits);
        self.count(&mut text, "misses", |c| c.get_misses);
        self.count(&mut text, "misses: expired", |c| c.get_expired);
        self.count(&mut text, "misses: flushed", |c| c.get_flushed);
        let (hits, misses) = (self.between(|c| c.get_hits), self.between(|c| c.get_misses));
        let now = self.elapsed.map_or(String::new(), |_| ratio(hits, misses));
        text.push_str(&columns("hit ratio", &ratio(c.get_hits, c.get_misses), &now));
        self.count(&mut text, "touches", |c| c.cmd_touch());

        text.push_str(&heading("writes"));
        self.count(&mut text, "sets", |c| c.cmd_set);
        self.count(&mut text, "deletes", |c| c.delete_hits);
        self.count(&mut text, "deletes: no item", |c| c.delete_misses);
        self.count(&mut text, "increments", |c| c.incr_hits.wrapping_add(c.decr_hits));
        self.count(&mut text, "increments: no item", |c| {
            c.incr_misses.wrapping_add(c.decr_misses)
        });
        self.count(&mut text, "cas: matched", |c| c.cas_hits);
        self.count(&mut text, "cas: another unique", |c| c.cas_badval);
        self.count(&mut text, "cas: no item", |c| c.cas_misses);
        self.count(&mut text, "flushes", |c| c.cmd_flush);
        self.count(&mut text, "refused: too large", |c| c.store_too_large);
        self.count(&mut text, "refused: no memory", |c| c.store_no_memory);

        text.push_str(&heading("evictions"));
        self.count(&mut text, "evicted", |c| c.evictions);
        self.count(&mut text, "evicted, never read", |c| c.evicted_unfetched);
        text.push_str(&columns("share never read", &share(c.evicted_unfetched, c.evictions), ""));
        self.count(&mut text, "came back soon after", |c| c.ghost_hits);
        self.count(&mut text, "expired, never read", |c| c.expired_unfetched);
        self.count(&mut text, "copied before eviction", |c| c.relocations);
        self.count(&mut text, "segments emptied", |c| c.segments_recycled);
        text.push_str(&columns("oldest: admission pool", &age(seen.ages.admission_s), ""));
        text.push_str(&columns("oldest: main pool", &age(seen.ages.main_s), ""));

        text.push_str("\nprocesses\n");
        let threads: usize = seen.processes.iter().map(|process| process.threads.len()).sum();
        line(&mut text, "attached", &seen.processes.len().to_string());
        line(
            &mut text,
            "thread slots taken",
            &format!("{threads} of {}", seen.sessions_max),
        );
        line(&mut text, "sessions of dead programs", &grouped(c.recoveries));
        line(&mut text, "damaged items met", &grouped(c.corrupt));
        if let Some(said) = said {
            text.push_str("\nserver\n");
            line(&mut text, "process", &said.pid.to_string());
            line(&mut text, "connections", &grouped(said.connections));
            line(&mut text, "threads", &said.threads.to_string());
            line(&mut text, "up", &age(u32::try_from(said.uptime_s).ok()));
        }
        self.latencies(&mut text);
        text
    }

    /// What was counted between the looks.
    fn between(&self, of: impl Fn(&Counters) -> u64) -> u64 {
        of(&self.now.counters).saturating_sub(of(&self.before.counters))
    }

    fn count(&self, text: &mut String, name: &str, of: impl Fn(&Counters) -> u64) {
        let seconds = self
            .elapsed
            .map(|elapsed| elapsed.as_secs_f64())
            .filter(|seconds| *seconds > 0.0);
        let per_s = seconds.map_or(String::new(), |seconds| rate(number(self.between(&of)) / seconds));
        text.push_str(&columns(name, &grouped(of(&self.now.counters)), &per_s));
    }

    /// Since the region was made.
    fn latencies(&self, text: &mut String) {
        let mut counted = self.now.latencies.counted().peekable();
        if counted.peek().is_none() {
            return;
        }
        text.push_str(&format!(
            "\n{:<11} {:<11} {:>16} {:>10} {:>10} {:>10}\n",
            "latencies", "", "MEASURED", "p50", "p99", "p99.9"
        ));
        for (door, verb, latency) in counted {
            let [p50, p99, p999] = [500, 990, 999].map(|thousandth| time(latency.quantile_ns(thousandth)));
            let (door, verb, measured) = (door.name(), verb.name(), grouped(latency.count()));
            text.push_str(&format!(
                "  {door:<9} {verb:<11} {measured:>16} {p50:>10} {p99:>10} {p999:>10}\n"
            ));
        }
    }
}

/// A name and two numbers; the second one may be empty.
fn columns(name: &str, total: &str, per_second: &str) -> String {
    let line = format!("  {name:<NAME$} {total:>NUMBER$} {per_second:>NUMBER$}");
    format!("{}\n", line.trim_end())
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
