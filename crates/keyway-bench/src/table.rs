//! Tables as text, and numbers as tables have them.

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

/// With as many digits as a ratio of the size of `like` needs: they lie anywhere between a hundredth and hundreds.
pub fn digits(like: f64) -> usize {
    match like.abs() {
        size if size >= 99.95 => 0,
        size if size >= 9.995 => 1,
        size if size >= 0.0995 => 2,
        size if size >= 0.00995 => 3,
        _ => 4,
    }
}

/// To three digits or more, thousands apart, without zeros that say nothing.
pub fn number(value: f64) -> String {
    let digits = match value.abs() {
        size if size >= 100.0 || size == 0.0 => 0,
        size if size >= 10.0 => 1,
        size if size >= 1.0 => 2,
        _ => 3,
    };
    let text = fixed(value, digits);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// With this many digits after the point, and a comma between thousands.
pub fn fixed(value: f64, digits: usize) -> String {
    let text = format!("{:.digits$}", value.abs());
    let (whole, fraction) = text.split_at(text.find('.').unwrap_or(text.len()));
    let mut out = String::from(if value < 0.0 { "−" } else { "" });
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out + fraction
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_read_well() {
        for (value, text) in [
            (0.0, "0"),
            (0.05, "0.05"),
            (1.5, "1.5"),
            (12.34, "12.3"),
            (999.0, "999"),
            (1e6, "1,000,000"),
            (-5.0, "−5"),
        ] {
            assert_eq!(number(value), text);
        }
    }
}
