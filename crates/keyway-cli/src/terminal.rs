//! How text for people fits a terminal: sentences are broken between words, and a table that is too wide becomes a list of its rows.
//!
//! Never: breaks a word or a cell, drops or cuts one. One that is wider than the terminal has a line for itself. Output that goes to no terminal
//! is as wide as it wants to be. Only a line with the progress, which is erased at once, is cut. Errors stay a line each, for logs.

use std::io::IsTerminal;

use keyway_bench::table::Part;
use ratatui::text::Span;

/// Fewest columns beside an indentation in which words are easy to read.
const WORDS_MIN: usize = 24;
/// Blanks between two columns of a table, and before the lines of a list.
const GAP: usize = 2;

/// Columns of the terminal on standard output. `None`: it is none.
pub(crate) fn columns() -> Option<usize> {
    columns_of(&std::io::stdout())
}

fn columns_of(output: &impl IsTerminal) -> Option<usize> {
    let (columns, _) = output.is_terminal().then(ratatui::crossterm::terminal::size)?.ok()?;
    Some(usize::from(columns)).filter(|columns| *columns > 0)
}

/// As much of a line with the progress as fits the terminal on standard error: it must not need a second line, because only one is erased.
pub(crate) fn progress(line: &str) -> &str {
    let most = columns_of(&std::io::stderr()).unwrap_or(usize::MAX);
    let mut ends = line.char_indices().map(|(at, c)| at + c.len_utf8());
    let fits = |end: &usize| line.get(..*end).is_some_and(|begin| width(begin) < most);
    let end = ends.by_ref().take_while(fits).last().unwrap_or(0);
    line.get(..end).unwrap_or_default()
}

/// Columns that a text takes.
fn width(text: &str) -> usize {
    Span::raw(text).width()
}

/// Appends a text and a line end to a line that has so many columns already, and goes on in the next line, after `indent` blanks, where the
/// terminal ends.
pub(crate) fn wrap(text: &str, has: usize, indent: usize, columns: Option<usize>, out: &mut String) {
    // What is too narrow for a column of words beside the indentation has them below it.
    let indent = match columns {
        Some(columns) if columns < indent + WORDS_MIN => indent.min(GAP),
        _ => indent,
    };
    let most = columns.unwrap_or(usize::MAX);
    let (mut at, mut has_word) = (has, has > indent);
    for word in text.split(' ') {
        let len = width(word);
        if has_word && at + len > most {
            out.truncate(out.trim_end_matches(' ').len());
            out.push_str(&format!("\n{:indent$}", ""));
            at = indent;
        }
        out.push_str(word);
        out.push(' ');
        at += len + 1;
        has_word = has_word || len > 0;
    }
    out.truncate(out.trim_end_matches(' ').len());
    out.push('\n');
}

/// A text of lines, each of which is broken where the terminal ends.
pub(crate) fn wrapped(text: &str, columns: Option<usize>) -> String {
    let mut out = String::new();
    for line in text.lines() {
        let indent = line.len() - line.trim_start_matches(' ').len();
        wrap(line, 0, indent + GAP, columns, &mut out);
    }
    out
}

/// Parts of a report.
pub(crate) fn parts(parts: &[Part], columns: Option<usize>) -> String {
    let shown = parts.iter().map(|part| match part {
        Part::Text(text) => wrapped(text, columns),
        Part::Table(lines) => {
            let mut table = Table::new(&FIRST_IS_NAME, 0);
            for (number, line) in lines.iter().enumerate() {
                let mut cells = line.clone();
                cells.iter_mut().take(1).for_each(|name| name.insert_str(0, "  "));
                match number {
                    0 => table.head(cells),
                    _ => table.row(cells),
                }
            }
            table.text(columns)
        }
    });
    shown.collect()
}

/// The first column is a name, and the others are numbers.
const FIRST_IS_NAME: [Column; 1] = [LEFT];

/// A column of a table: its least width where the terminal has room for it, and on which side its cells stand.
#[derive(Clone, Copy)]
pub(crate) struct Column {
    width: usize,
    is_left: bool,
}

/// One that is as wide as its cells.
pub(crate) const LEFT: Column = left(0);
pub(crate) const RIGHT: Column = right(0);

pub(crate) const fn left(width: usize) -> Column {
    Column { width, is_left: true }
}

pub(crate) const fn right(width: usize) -> Column {
    Column { width, is_left: false }
}

/// A table. It may have several heads, each with what is in the columns of the rows after it.
pub(crate) struct Table {
    columns: Vec<Column>,
    /// the column that names a row
    names: usize,
    lines: Vec<Line>,
}

enum Line {
    /// In a list, each of its cells is before those of the rows.
    Head(Vec<String>),
    /// A head whose cell above the names is a heading of the list, too.
    Group(Vec<String>),
    Row(Vec<String>),
}

impl Line {
    fn cells(&self) -> &[String] {
        match self {
            Self::Head(cells) | Self::Group(cells) | Self::Row(cells) => cells,
        }
    }
}

impl Table {
    /// Rows have a cell for each column, or fewer; more are numbers.
    pub(crate) fn new(columns: &[Column], names: usize) -> Self {
        Self {
            columns: columns.to_vec(),
            names,
            lines: Vec::new(),
        }
    }

    pub(crate) fn head<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.lines.push(Line::Head(cells.into_iter().map(Into::into).collect()));
    }

    pub(crate) fn group<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.lines.push(Line::Group(cells.into_iter().map(Into::into).collect()));
    }

    pub(crate) fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        self.lines.push(Line::Row(cells.into_iter().map(Into::into).collect()));
    }

    /// The table; where it is too wide, with columns as narrow as their cells are; and where that is too wide, too, a list.
    pub(crate) fn text(&self, columns: Option<usize>) -> String {
        let most = columns.unwrap_or(usize::MAX);
        let fits = |text: &String| text.lines().all(|line| width(line) <= most);
        let tables = [false, true].into_iter().map(|is_narrow| self.aligned(is_narrow));
        tables.into_iter().find(fits).unwrap_or_else(|| self.list(columns))
    }

    fn aligned(&self, is_narrow: bool) -> String {
        let count = self.lines.iter().map(|line| line.cells().len()).max().unwrap_or(0);
        let columns: Vec<Column> = (0..count)
            .map(|column| {
                let of = self.columns.get(column).copied().unwrap_or(RIGHT);
                let cells = self.lines.iter().filter_map(|line| line.cells().get(column));
                let widest = cells.map(|cell| width(cell)).max().unwrap_or(0);
                let width = if is_narrow { widest } else { widest.max(of.width) };
                Column { width, ..of }
            })
            .collect();
        let mut text = String::new();
        for line in &self.lines {
            let cells = line.cells().iter().zip(&columns).map(|(cell, column)| {
                let blanks = " ".repeat(column.width.saturating_sub(width(cell)));
                if column.is_left {
                    format!("{cell}{blanks}")
                } else {
                    format!("{blanks}{cell}")
                }
            });
            let cells = cells.collect::<Vec<_>>().join(&" ".repeat(GAP));
            self.begin(line, &mut text);
            text.push_str(cells.trim_end());
            text.push('\n');
        }
        text
    }

    /// Groups are apart.
    fn begin(&self, line: &Line, text: &mut String) {
        if matches!(line, Line::Group(_)) && !text.is_empty() {
            text.push('\n');
        }
    }

    /// Each row as its name, and below it each other cell after what its column has.
    fn list(&self, columns: Option<usize>) -> String {
        let mut text = String::new();
        let mut titles: &[String] = &[];
        for line in &self.lines {
            let cells = line.cells();
            let name = cells.get(self.names).map_or("", |name| name.trim_end());
            self.begin(line, &mut text);
            if !matches!(line, Line::Row(_)) {
                titles = cells;
            }
            if !matches!(line, Line::Head(_)) {
                text.push_str(&format!("{name}\n"));
            }
            if !matches!(line, Line::Row(_)) {
                continue;
            }
            let indent = name.len() - name.trim_start().len() + GAP;
            let title = |column: usize| titles.get(column).map_or("", |title| title.trim());
            let others = || cells.iter().enumerate().filter(|(column, _)| *column != self.names);
            let widest = others().map(|(column, _)| width(title(column))).max().unwrap_or(0);
            for (column, cell) in others().filter(|(_, cell)| !cell.trim().is_empty()) {
                let begin = match title(column) {
                    title if widest > 0 => format!("{:indent$}{title:<widest$}{:GAP$}", "", ""),
                    _ => " ".repeat(indent),
                };
                text.push_str(&begin);
                wrap(cell.trim(), begin.len(), begin.len(), columns, &mut text);
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(has: &str, columns: Option<usize>) -> String {
        let mut out = has.to_owned();
        let text = "no server of this region has a socket for datagrams";
        wrap(text, has.len(), has.len(), columns, &mut out);
        out
    }

    #[test]
    fn a_narrow_terminal_gets_whole_words() {
        assert_eq!(
            after("ok    udp  ", None),
            "ok    udp  no server of this region has a socket for datagrams\n"
        );
        assert_eq!(
            after("ok    udp  ", Some(40)),
            "ok    udp  no server of this region has\n           a socket for datagrams\n"
        );
        assert_eq!(
            after("ok    udp  ", Some(26)),
            "ok    udp  no server of\n  this region has a socket\n  for datagrams\n"
        );
        for columns in 20..80 {
            for has in ["", "  ", "ok    udp  "] {
                let text = after(has, Some(columns));
                assert!(text.lines().all(|line| line.len() <= columns), "{columns}: {text}");
                assert_eq!(
                    text.split_whitespace().collect::<Vec<_>>(),
                    after(has, None).split_whitespace().collect::<Vec<_>>()
                );
            }
        }
        assert_eq!(
            wrapped("keyway top  /dev/shm/keyway-0-11211\n", Some(30)),
            "keyway top\n  /dev/shm/keyway-0-11211\n"
        );
        assert_eq!(
            wrapped("a /dev/shm/keyway-0-11211 b\n", Some(10)),
            "a\n  /dev/shm/keyway-0-11211\n  b\n"
        );
    }

    fn regions() -> Table {
        let mut table = Table::new(&[LEFT, right(12), LEFT], 0);
        table.head(["PLACE", "MEMORY", "USED"]);
        table.row(["/dev/shm/keyway-0-11211", "64.0 MiB", "3 h ago"]);
        table.row(["/dev/shm/ключ", "8.0 MiB", ""]);
        table
    }

    #[test]
    fn a_table_becomes_a_list_where_it_is_too_wide() {
        let wide = "\
PLACE                          MEMORY  USED
/dev/shm/keyway-0-11211      64.0 MiB  3 h ago
/dev/shm/ключ                 8.0 MiB
";
        let narrow = "\
PLACE                      MEMORY  USED
/dev/shm/keyway-0-11211  64.0 MiB  3 h ago
/dev/shm/ключ             8.0 MiB
";
        let list = "\
/dev/shm/keyway-0-11211
  MEMORY  64.0 MiB
  USED    3 h ago
/dev/shm/ключ
  MEMORY  8.0 MiB
";
        let shown = |columns| regions().text(columns);
        assert_eq!([None, Some(46)].map(shown), [wide, wide]);
        assert_eq!([45, 42].map(|columns| shown(Some(columns))), [narrow, narrow]);
        assert_eq!([41, 23].map(|columns| shown(Some(columns))), [list, list]);
        assert_eq!(shown(Some(22)), list, "no name is broken");
    }

    #[test]
    fn groups_of_a_list_have_their_headings() {
        let mut table = Table::new(&[left(28), right(16), right(16)], 0);
        table.group(["memory"]);
        table.row(["  limit", "64 MiB"]);
        table.group(["reads", "TOTAL", "PER SECOND"]);
        table.row(["  gets", "1,234,567", "0.0"]);
        assert_eq!(
            table.text(Some(29)),
            "memory\n  limit\n    64 MiB\n\nreads\n  gets\n    TOTAL       1,234,567\n    PER SECOND  0.0\n"
        );
        assert_eq!(
            table.text(Some(30)),
            "memory\n  limit     64 MiB\n\nreads        TOTAL  PER SECOND\n  gets   1,234,567         0.0\n"
        );
    }
}
