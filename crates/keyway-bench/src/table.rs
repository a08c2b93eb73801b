//! Tables, as text and as a part of the page.

use crate::html::bars::fixed;
use crate::medians::Spread;
use maud::{Markup, html};
use std::fmt::Write;

/// A part of a report for people, to be laid out where it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// lines
    Text(String),
    /// the first line is the head, and the first column says what a line is
    Table(Vec<Vec<String>>),
}

impl Part {
    /// As wide as it wants to be.
    pub fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Table(lines) => columns(lines),
        }
    }

    /// Of all parts.
    pub fn texts(parts: &[Self]) -> String {
        parts.iter().map(Self::text).collect()
    }
}

/// A table; its first column says what a line is.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// of each column: what it has, and what the page says beneath
    pub head: Vec<(String, String)>,
    /// from top to bottom
    pub lines: Vec<Vec<Entry>>,
}

/// What stands at one place of a table.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    value: String,
    /// in parentheses
    spread: String,
    /// of its colour on the page
    class: &'static str,
}

impl<T: Into<String>> From<T> for Entry {
    fn from(value: T) -> Self {
        Self {
            value: value.into(),
            ..Self::default()
        }
    }
}

impl Entry {
    /// A median with this many digits after the point, and its lowest and highest if they differ.
    pub fn of(spread: Spread, digits: usize) -> Self {
        let number = |value: f64| fixed(value, digits);
        Self {
            value: spread.median.map_or("–".to_owned(), number),
            spread: spread
                .ends()
                .map_or(String::new(), |(low, high)| format!(" ({}–{})", number(low), number(high))),
            class: "",
        }
    }

    /// In the colour of this class.
    #[must_use]
    pub fn coloured(self, class: &'static str) -> Self {
        Self { class, ..self }
    }

    /// On the page.
    pub fn markup(&self) -> Markup {
        html! { (self.value) @if !self.spread.is_empty() { span.spread { (self.spread) } } }
    }

    /// In a text.
    pub fn text(&self) -> String {
        format!("{}{}", self.value, self.spread)
    }
}

impl Table {
    /// For a terminal.
    pub fn part(&self) -> Part {
        let head = self.head.iter().map(|(what, _)| what.clone()).collect();
        let lines = self.lines.iter().map(|line| line.iter().map(Entry::text).collect());
        Part::Table(std::iter::once(head).chain(lines).collect())
    }

    /// For the page.
    pub fn markup(&self) -> Markup {
        html! {
            div.scroll { table {
                thead { tr { @for (what, beneath) in &self.head { th { (what) @if !beneath.is_empty() { br; span.note { (beneath) } } } } } }
                tbody { @for line in &self.lines { tr {
                    @for (at, entry) in line.iter().enumerate() {
                        @if at == 0 { th scope="row" { (entry.markup()) } } @else { td class=(entry.class) { (entry.markup()) } }
                    }
                } } }
            } }
        }
    }
}

/// The first column to the left, the others to the right.
pub fn columns<L: AsRef<[String]>>(lines: &[L]) -> String {
    let of = |line: &L, column: usize| line.as_ref().get(column).map_or(0, |cell| cell.chars().count());
    let width = |column: usize| lines.iter().map(|line| of(line, column)).max().unwrap_or(0);
    let mut text = String::new();
    for line in lines {
        let mut out = String::new();
        for (column, cell) in line.as_ref().iter().enumerate() {
            let width = width(column);
            // Writing to a string does not fail.
            let _ = if column == 0 {
                write!(out, "  {cell:<width$}")
            } else {
                write!(out, "  {cell:>width$}")
            };
        }
        text.push_str(out.trim_end());
        text.push('\n');
    }
    text
}
