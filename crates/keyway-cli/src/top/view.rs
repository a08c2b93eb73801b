//! What `keyway top` shows: two readings of a region, and what happened between them.

use keyway_cache::HotBy;
use keyway_cache::server::USES;
use keyway_server::overview::{Order, View, door_of};
use keyway_server::size_text;
use ratatui::buffer::Buffer;
use ratatui::layout::HorizontalAlignment::{Left, Right};
use ratatui::layout::{Constraint, HorizontalAlignment, Rect};
use ratatui::style::Modifier;
use ratatui::text::{Span, Text};
use ratatui::widgets::{Row, Table, Widget};
use serde_json::json;

use super::{HotKind, Hottest, Looked};
use crate::numbers::{age, grouped, rate, ratio, time};
use crate::terminal::{self, Column, LEFT, left, right};

/// A column that has the rest of the line.
const REST: u16 = u16::MAX;

impl Default for HotKind {
    fn default() -> Self {
        Self(HotBy::Gets)
    }
}

impl HotKind {
    /// The kind after this one, in the order of keys.
    pub(super) fn next(self) -> Self {
        Self(match self.0 {
            HotBy::Gets => HotBy::Sets,
            HotBy::Sets => HotBy::Bytes,
            HotBy::Bytes => HotBy::Gets,
        })
    }

    fn name(self) -> &'static str {
        match self.0 {
            HotBy::Gets => "GETS",
            HotBy::Sets => "SETS",
            HotBy::Bytes => "BYTES",
        }
    }
}

/// The order after this one, in the order of keys.
pub(super) fn next(order: Order) -> Order {
    match order {
        Order::Rate => Order::Protects,
        Order::Protects => Order::Pid,
        Order::Pid => Order::Command,
        Order::Command => Order::Rate,
    }
}

/// The name of an order.
pub(super) fn name(order: Order) -> &'static str {
    match order {
        Order::Rate => "rate",
        Order::Protects => "protects",
        Order::Pid => "pid",
        Order::Command => "command",
    }
}

/// What is on the screen.
pub(super) struct Page {
    summary: Vec<String>,
    doors: Vec<[String; 6]>,
    keys: Vec<[String; 4]>,
    /// what the keys are hot by
    by: &'static str,
    pub(super) processes: Vec<[String; 8]>,
}

impl Page {
    /// `filter`: show only processes, doors, verbs and keys that contain it.
    pub(super) fn new(view: &View<'_>, looked: &Looked, hot: &Hottest, place: &str, order: Order, filter: &str) -> Self {
        let filter = filter.to_lowercase();
        let is_wanted = |texts: &[&str]| texts.iter().any(|text| text.to_lowercase().contains(&filter));
        Self {
            summary: summary(view, looked, place),
            doors: doors(view, is_wanted),
            keys: keys(hot, is_wanted),
            by: HotKind(hot.by).name(),
            processes: processes(view, order, is_wanted),
        }
    }

    /// Draws it from the top, as far as there is room; of the processes those from this one on.
    pub(super) fn draw(&self, area: Rect, buffer: &mut Buffer, first: usize) {
        let mut left = area;
        let width = usize::from(area.width);
        let lines: Vec<String> = self.summary.iter().flat_map(|line| wrapped(line, width)).collect();
        let [summary, doors, keys, processes] = [
            lines.len(),
            1 + self.doors.len(),
            1 + self.keys.len(),
            1 + self.processes.len(),
        ]
        .map(|rows| part(&mut left, rows));
        Text::from_iter(lines.iter().map(String::as_str)).render(summary, buffer);
        let columns = [(9, Left), (11, Left), (13, Right), (10, Right), (10, Right), (10, Right)];
        table(DOORS, &self.doors, columns, 1, &[5, 3, 4], doors, buffer);
        let columns = [(17, Right), (14, Right), (14, Right), (REST, Left)];
        let heading = [&self.per_second(), LEAST, MOST, HOTTEST];
        table(heading, &self.keys, columns, 2, &[1, 2], keys, buffer);
        let columns = [
            (8, Right),
            (16, Left),
            (8, Left),
            (7, Right),
            (12, Right),
            (7, Right),
            (8, Right),
            (7, Right),
        ];
        let rows = self.processes.get(first..).unwrap_or_default();
        table(PROCESSES, rows, columns, 1, &[7, 6, 5, 3, 2, 4], processes, buffer);
    }

    /// All of it as text.
    pub(super) fn text(&self, columns: Option<usize>) -> String {
        let doors = [left(9), left(11), right(13), right(10), right(10), right(10)];
        let keys = [right(17), right(14), right(14), LEFT];
        let processes = [right(8), left(16), left(8), right(7), right(12), right(7), right(8), right(7)];
        [
            terminal::wrapped(&self.summary.join("\n"), columns),
            list(&doors, 0, DOORS, &self.doors).text(columns),
            list(&keys, 3, [&self.per_second(), LEAST, MOST, HOTTEST], &self.keys).text(columns),
            list(&processes, 0, PROCESSES, &self.processes).text(columns),
        ]
        .join("\n")
    }

    fn per_second(&self) -> String {
        format!("{} PER SECOND", self.by)
    }
}

/// Rows below their heading; `names`: the column that names them.
fn list<const N: usize>(columns: &[Column], names: usize, heading: [&str; N], rows: &[[String; N]]) -> terminal::Table {
    let mut table = terminal::Table::new(columns, names);
    table.head(heading);
    rows.iter().for_each(|row| table.row(row.clone()));
    table
}

const DOORS: [&str; 6] = ["DOOR", "VERB", "PER SECOND", "p50", "p99", "p99.9"];
/// Those of the keys, after what they are hot by.
const LEAST: &str = "AT LEAST";
const MOST: &str = "AT MOST";
const HOTTEST: &str = "HOTTEST KEYS";
const PROCESSES: [&str; 8] = [
    "PID",
    "COMMAND",
    "DOOR",
    "THREADS",
    "PER SECOND",
    "IN CALL",
    "PROTECTS",
    "FENCED",
];

/// Takes so many rows, and one that is empty, from the top of what is left.
fn part(left: &mut Rect, rows: usize) -> Rect {
    let height = u16::try_from(rows).unwrap_or(u16::MAX).min(left.height);
    let part = Rect { height, ..*left };
    *left = Rect {
        y: part.bottom(),
        height: left.height - height,
        ..*left
    };
    let gap = left.height.min(1);
    (left.y, left.height) = (left.y + gap, left.height - gap);
    part
}

/// Marks that something does not fit.
const CUT: char = '>';
/// Least columns of one that has the rest of the line.
const REST_MIN: u16 = 8;

/// Draws a table with a heading; widths in columns, and spaces between two of them. Where there is no room for all, columns go in the order of `first_to_go`, and the heading
/// ends with [`CUT`].
fn table<const N: usize>(
    heading: [&str; N],
    rows: &[[String; N]],
    columns: [(u16, HorizontalAlignment); N],
    gap: u16,
    first_to_go: &[usize],
    area: Rect,
    buffer: &mut Buffer,
) {
    let least = |column: usize| match columns.get(column) {
        Some((REST, _)) => REST_MIN,
        Some((width, _)) => *width,
        None => 0,
    };
    let mut shown: Vec<usize> = (0..N).collect();
    let mut gone = first_to_go.iter();
    let is_wider = |shown: &[usize]| {
        let mark = if shown.len() < N { gap } else { 0 };
        let widths: u16 = shown.iter().map(|column| least(*column) + gap).sum();
        widths - gap + mark > area.width
    };
    while is_wider(&shown) {
        let Some(next) = gone.next() else { break };
        shown.retain(|column| column != next);
    }
    let mut left = area.width;
    let widths: Vec<u16> = shown
        .iter()
        .map(|column| {
            let wanted = columns.get(*column).map_or(0, |(width, _)| *width);
            let width = wanted.min(left);
            left = left.saturating_sub(width.saturating_add(gap));
            width
        })
        .take_while(|width| *width > 0)
        .collect();
    shown.truncate(widths.len());
    let cells = |texts: &dyn Fn(usize) -> String| {
        let cell = |(column, width): (&usize, &u16)| {
            let side = columns.get(*column).map_or(Left, |(_, side)| *side);
            Text::from(fitting(&texts(*column), usize::from(*width), side)).alignment(side)
        };
        Row::new(shown.iter().zip(&widths).map(cell).collect::<Vec<_>>())
    };
    let text = |texts: &[String; N], column: usize| texts.get(column).cloned().unwrap_or_default();
    let body: Vec<Row<'_>> = rows.iter().map(|row| cells(&|column| text(row, column))).collect();
    let head = cells(&|column| heading.get(column).copied().unwrap_or_default().to_owned());
    Table::new(body, widths.iter().map(|width| Constraint::Length(*width)))
        .column_spacing(gap)
        .header(head.style(Modifier::REVERSED))
        .render(area, buffer);
    if shown.len() < N && area.height > 0 {
        buffer.set_string(area.right().saturating_sub(1), area.y, CUT.to_string(), Modifier::REVERSED);
    }
}

/// What is shown of a text in so many columns: all of it, or of a name its beginning, and of a number nothing, because a part of it is another
/// number.
pub(super) fn fitting(text: &str, width: usize, side: HorizontalAlignment) -> String {
    if Span::raw(text).width() <= width {
        return text.to_owned();
    }
    let mut shown = String::new();
    if side == Left {
        for c in text.chars() {
            if Span::raw(format!("{shown}{c}{CUT}")).width() > width {
                break;
            }
            shown.push(c);
        }
    }
    if width > 0 {
        shown.push(CUT);
    }
    shown
}

/// A text in lines of so many columns.
pub(super) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let lines = terminal::wrapped(text, Some(width));
    lines.lines().map(|line| fitting(line, width, Left)).collect()
}

fn summary(view: &View<'_>, looked: &Looked, place: &str) -> Vec<String> {
    let seen = &looked.region.seen;
    let c = &seen.counters;
    let (hits, misses) = (view.counted(|c| c.get_hits), view.counted(|c| c.get_misses));
    let used: u64 = seen.segments.iter().skip(1).sum::<u64>() - seen.segments.last().unwrap_or(&0);
    let all = used + seen.segments.first().unwrap_or(&0);
    let mut lines = vec![
        format!("keyway top  {place}"),
        format!(
            "{} in {}; memory {}, segments in use {} of {all} of {}",
            match c.curr_items {
                1 => "1 item".to_owned(),
                n => format!("{} items", grouped(n)),
            },
            size_text(c.bytes),
            size_text(seen.limit_bytes),
            used,
            size_text(seen.segment_bytes),
        ),
        format!(
            "hit ratio {} now, {} since the region was made; gets {}/s, sets {}/s",
            ratio(hits, misses),
            ratio(c.get_hits, c.get_misses),
            rate_of(view.per_s(view.counted(|c| c.cmd_get()))),
            rate_of(view.per_s(view.counted(|c| c.cmd_set))),
        ),
        format!(
            "evictions {}/s, of these {}/s never read; oldest item: of the admission pool {}, of the main pool {}",
            rate_of(view.per_s(view.counted(|c| c.evictions))),
            rate_of(view.per_s(view.counted(|c| c.evicted_unfetched))),
            age(seen.ages.admission_s),
            age(seen.ages.main_s),
        ),
    ];
    let uses = USES.iter().zip(seen.segments).filter(|(_, count)| *count > 0);
    let uses: Vec<String> = uses.map(|(name, count)| format!("{name} {count}")).collect();
    lines.push(format!("segments: {}", uses.join(", ")));
    match &looked.server {
        Some(Ok(said)) => lines.push(format!(
            "server {}: {} connections, {} threads, up {}",
            said.pid,
            said.connections,
            said.threads,
            age(u32::try_from(said.uptime_s).ok())
        )),
        Some(Err(why)) => lines.push(format!("server: {why}")),
        None => {}
    }
    lines
}

/// A rate, if it is known.
fn rate_of(per_s: Option<f64>) -> String {
    per_s.map_or_else(|| "-".to_owned(), rate)
}

fn doors(view: &View<'_>, is_wanted: impl Fn(&[&str]) -> bool) -> Vec<[String; 6]> {
    let rows = view.doors().into_iter();
    rows.filter(|row| is_wanted(&[row.door.name(), row.verb.name()]))
        .map(|row| {
            let about = if row.door.is_sampled() { "~" } else { "" };
            let quantile = |of: u64| time(row.between.quantile_ns(of));
            [
                row.door.name().to_owned(),
                row.verb.name().to_owned(),
                row.per_s
                    .map_or_else(|| "-".to_owned(), |per_s| format!("{about}{}", rate(per_s))),
                quantile(500),
                quantile(990),
                quantile(999),
            ]
        })
        .collect()
}

fn keys(hot: &Hottest, is_wanted: impl Fn(&[&str]) -> bool) -> Vec<[String; 4]> {
    let per_s = |count: u64| rate(if hot.seconds > 0.0 { number(count) / hot.seconds } else { 0.0 });
    let rows = hot.keys.iter().filter(|(key, _)| is_wanted(&[key]));
    rows.map(|(key, found)| {
        let [about, least, most] = [found.estimate, found.at_least, found.at_most].map(per_s);
        [format!("~{about}"), least, most, key.clone()]
    })
    .collect()
}

fn processes(view: &View<'_>, order: Order, is_wanted: impl Fn(&[&str]) -> bool) -> Vec<[String; 8]> {
    let rows = view.processes(order).into_iter();
    rows.map(|row| {
        [
            row.process.pid.to_string(),
            row.command.to_owned(),
            door_of(row.process.entrance).to_owned(),
            row.process.threads.len().to_string(),
            rate_of(row.per_s),
            row.in_call.to_string(),
            row.protects.to_string(),
            row.fenced.to_string(),
        ]
    })
    .filter(|[pid, command, door, ..]| is_wanted(&[pid, command, door]))
    .collect()
}

/// All numbers, for scripts.
pub(super) fn json(view: &View<'_>, looked: &Looked, place: &str, order: Order, hot: serde_json::Value) -> serde_json::Value {
    let mut all = view.json(order);
    all.insert("hot".to_owned(), hot);
    all.insert("place".to_owned(), place.into());
    if let Some(Ok(said)) = &looked.server {
        let server = json!({
            "pid": said.pid, "connections": said.connections, "threads": said.threads, "uptime_s": said.uptime_s,
        });
        all.insert("server".to_owned(), server);
    }
    all.into()
}

#[expect(clippy::cast_precision_loss, reason = "for people: 16 digits are enough")]
fn number(count: u64) -> f64 {
    count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a row of the screen has, in words that are two blanks apart.
    fn words(buffer: &Buffer, y: u16) -> Vec<String> {
        let line: String = (0..buffer.area.width).map(|x| buffer[(x, y)].symbol()).collect();
        let words = line.split("  ").map(str::trim).filter(|word| !word.is_empty());
        words.map(str::to_owned).collect()
    }

    #[test]
    fn no_part_of_a_number_is_shown_and_a_cut_is_marked() {
        let row = ["library", "get", "12,345,678", "224.7 us", "1.5 ms", "536.9 ms"].map(str::to_owned);
        let heading = ["DOOR", "VERB", "PER SECOND", "p50", "p99", "p99.9"];
        let columns = [(9, Left), (11, Left), (13, Right), (10, Right), (10, Right), (10, Right)];
        for width in 1..=90 {
            let area = Rect::new(0, 0, width, 2);
            let mut buffer = Buffer::empty(area);
            table(heading, std::slice::from_ref(&row), columns, 2, &[5, 3, 4], area, &mut buffer);
            let shown = words(&buffer, 1);
            for word in &shown {
                let is_cut_name = word
                    .strip_suffix(CUT)
                    .is_some_and(|begin| row[0].starts_with(begin) || row[1].starts_with(begin));
                assert!(row.contains(word) || is_cut_name, "{width}: {shown:?}");
            }
            let is_whole = shown.len() == row.len();
            let head = words(&buffer, 0);
            assert_eq!(head.iter().any(|word| word.ends_with(CUT)), !is_whole, "{width}: {head:?}");
            if width >= 40 {
                assert_eq!(shown[..3], row[..3], "{width}");
            }
        }
    }

    #[test]
    fn lines_are_broken_at_blanks() {
        assert_eq!(wrapped("hit ratio 98.5 % now", 12), ["hit ratio", "  98.5 % now"]);
        assert_eq!(wrapped("short", 12), ["short"]);
        assert_eq!(wrapped("a-long-name x", 6), ["a-lon>", "  x"]);
        assert_eq!(wrapped("top  place", 9), ["top", "  place"]);
        assert_eq!(fitting("224.7 us", 6, Right), ">");
        assert_eq!(fitting("memcached", 6, Left), "memca>");
        assert_eq!(fitting("x", 0, Left), "");
    }
}
