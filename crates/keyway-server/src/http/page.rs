//! The page for people: the cache at a glance. It is one file without scripts, images or anything from elsewhere, fits a phone, and the browser
//! loads it again every few seconds.

use std::fmt::Write;

use keyway_cache::Counters;

use super::Snapshot;
use crate::config::KEYWAY_VERSION;
use crate::size_text;

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--dim:#667;--bar:#2a7ab8}\
@media(prefers-color-scheme:dark){:root{--dim:#9ab;--bar:#5aa9e6}}\
*{box-sizing:border-box}\
body{font:16px/1.45 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:60rem}\
h1{font-size:1.3rem;margin:0}h2{font-size:1rem;margin:0 0 .5rem}p{margin:.2rem 0 1rem;color:var(--dim)}\
main{display:grid;gap:1rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,20rem),1fr))}\
section{border:1px solid var(--line);border-radius:.5rem;padding:.8rem;min-width:0}\
.large{font-size:2rem;line-height:1.2}\
meter{width:100%;height:.9rem}\
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}\
th{font-weight:normal;text-align:left;color:var(--dim)}td,thead th+th{text-align:right}\
th,td{padding:.15rem .2rem;border-bottom:1px solid var(--line);overflow-wrap:anywhere}\
a{color:var(--bar)}";

/// The page.
pub(super) fn write(s: &Snapshot) -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\
         <meta http-equiv=\"refresh\" content=\"5\"><title>Keyway</title><style>{STYLE}</style></head><body>\
         <h1>Keyway {KEYWAY_VERSION}</h1><p>up {}, {} worker threads, region {}. <a href=\"/metrics\">Metrics</a></p><main>",
        time_text(s.uptime_s.into()),
        s.threads,
        s.region_state.replace('_', " "),
    );
    hits(s, &mut page);
    doors(s, &mut page);
    memory(s, &mut page);
    clients(s, &mut page);
    page.push_str("</main></body></html>\n");
    page
}

fn hits(s: &Snapshot, page: &mut String) {
    let c = &s.counters;
    let gets = c.get_hits.saturating_add(c.get_misses);
    let _ = write!(
        page,
        "<section><h2>Hit ratio</h2><div class=\"large\">{}</div>",
        percent(c.get_hits, gets)
    );
    meter(page, "hit ratio", c.get_hits, gets);
    table(
        page,
        &[
            ("hits", number(c.get_hits)),
            ("misses", number(c.get_misses)),
            ("of these expired", number(c.get_expired)),
            ("items stored", number(c.total_items)),
            ("items evicted", number(c.evictions)),
        ],
    );
}

fn doors(s: &Snapshot, page: &mut String) {
    page.push_str("<section><h2>Operations by door</h2><table><thead><tr><th></th><th>reads</th><th>writes</th><th>hit ratio</th></tr></thead><tbody>");
    let mut row = |name: &str, reads: u64, writes: u64, hits: u64| {
        let _ = write!(
            page,
            "<tr><th>{name}</th><td>{}</td><td>{}</td><td>{}</td></tr>",
            number(reads),
            number(writes),
            percent(hits, reads)
        );
    };
    for (name, c) in [("network", &s.network), ("library", &s.library)] {
        row(name, c.get_hits.saturating_add(c.get_misses), writes(c), c.get_hits);
    }
    if let Some(kernel) = &s.kernel {
        row("kernel", kernel.hits(), 0, kernel.hits());
    }
    page.push_str("</tbody></table></section>");
}

fn memory(s: &Snapshot, page: &mut String) {
    let (c, info) = (&s.counters, &s.info);
    let _ = write!(
        page,
        "<section><h2>Memory</h2><div class=\"large\">{}</div>of {} are items",
        size_text(c.bytes),
        size_text(s.memory_limit)
    );
    meter(page, "memory of items", c.bytes, s.memory_limit);
    let age = |age_s: Option<u32>| age_s.map_or_else(|| "-".to_owned(), |age_s| time_text(age_s.into()));
    table(
        page,
        &[
            ("items", number(c.curr_items)),
            (
                "free segments",
                format!("{} of {}", number(info.segments_free), number(info.segments)),
            ),
            ("index", size_text(info.index_bytes)),
            ("oldest segment, new items", age(s.ages.admission_s)),
            ("oldest segment, items with hits", age(s.ages.main_s)),
            ("stores refused for memory", number(c.store_no_memory)),
        ],
    );
}

fn clients(s: &Snapshot, page: &mut String) {
    let c = &s.connections;
    let _ = write!(
        page,
        "<section><h2>Clients</h2><div class=\"large\">{}</div>connections, {} at most",
        number(c.current as u64),
        number(c.max as u64)
    );
    meter(page, "connections", c.current as u64, c.max as u64);
    table(
        page,
        &[
            ("processes with the region", number(s.processes as u64)),
            (
                "threads attached",
                format!("{} of {}", number(s.info.sessions), number(s.info.sessions_max)),
            ),
            ("connections so far", number(c.total)),
            ("refused", number(c.rejected)),
            (
                "memory of connections",
                format!("{} of {}", size_text(c.memory as u64), size_text(c.memory_limit as u64)),
            ),
            ("closed for memory", number(c.closed_for_memory)),
        ],
    );
}

/// Commands that change something.
fn writes(c: &Counters) -> u64 {
    [
        c.cmd_set,
        c.cmd_touch,
        c.cmd_flush,
        c.delete_hits,
        c.delete_misses,
        c.incr_hits,
        c.incr_misses,
        c.decr_hits,
        c.decr_misses,
    ]
    .iter()
    .fold(0, |sum, count| sum.saturating_add(*count))
}

fn meter(page: &mut String, name: &str, value: u64, max: u64) {
    let _ = write!(
        page,
        "<meter aria-label=\"{name}\" max=\"{}\" value=\"{value}\"></meter>",
        max.max(1)
    );
}

/// The rows of a section, and its end.
fn table(page: &mut String, rows: &[(&str, String)]) {
    page.push_str("<table><tbody>");
    for (name, value) in rows {
        let _ = write!(page, "<tr><th>{name}</th><td>{value}</td></tr>");
    }
    page.push_str("</tbody></table></section>");
}

/// With a space between thousands.
fn number(count: u64) -> String {
    let digits = count.to_string();
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push('\u{202f}');
        }
        text.push(digit);
    }
    text
}

/// In tenths of a percent, rounded down.
fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let tenths = u128::from(part) * 1000 / u128::from(whole);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

fn time_text(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..172_800 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!(number(0), "0");
        assert_eq!(number(999), "999");
        assert_eq!(number(1_234_567), "1\u{202f}234\u{202f}567");
        assert_eq!(percent(0, 0), "-");
        assert_eq!(percent(999, 1000), "99.9 %");
        assert_eq!(percent(u64::MAX, u64::MAX), "100.0 %");
        assert_eq!(
            [59, 60, 7265, 172_800].map(time_text),
            ["59 s", "1 min", "2 h 1 min", "2 days"]
        );
    }

    #[test]
    fn the_page_has_nothing_from_elsewhere_and_no_script() {
        let page = write(&Snapshot::default());
        for forbidden in ["<script", "src=", "url(", "@import", "http://", "https://", "<link"] {
            assert!(!page.contains(forbidden), "{forbidden}");
        }
        for part in ["Hit ratio", "Operations by door", "Memory", "Clients"] {
            assert!(page.contains(&format!("<h2>{part}</h2>")), "{part}");
        }
    }
}
