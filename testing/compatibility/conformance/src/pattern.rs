//! Expected replies: literal bytes with a few placeholders, and their comparison with bytes as they arrive.

use std::collections::BTreeMap;

/// Numbers that a conversation has given a name.
pub type Names = BTreeMap<String, u64>;

/// A piece of an expected reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// these bytes
    Literal(Vec<u8>),
    /// a number, bound to a name or compared with it
    Named(String),
    /// the number of a name, with this much added
    Bound(String, i64),
    /// a number between two bounds, both included
    Number(u64, u64),
    /// a decimal fraction
    Fraction,
    /// one byte or more up to a space or the line's end
    Word,
    /// anything up to the line's end
    Line,
}

/// An expected reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pattern(pub Vec<Piece>);

/// How far arrived bytes agree with a pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// the first `len` bytes are the whole reply
    Agrees {
        /// its length
        len: usize,
    },
    /// so far it agrees, more must come
    Incomplete,
    /// at this byte it does not
    Differs {
        /// position in the arrived bytes
        at: usize,
        /// what is wrong with it
        why: String,
    },
}

impl Pattern {
    /// A pattern that is these bytes.
    pub fn literal(bytes: impl Into<Vec<u8>>) -> Self {
        Self(vec![Piece::Literal(bytes.into())])
    }

    /// Adds another pattern behind this one.
    pub fn append(&mut self, other: Pattern) {
        for piece in other.0 {
            match (self.0.last_mut(), piece) {
                (Some(Piece::Literal(last)), Piece::Literal(more)) => last.extend_from_slice(&more),
                (_, piece) => self.0.push(piece),
            }
        }
    }

    /// Compares arrived bytes with the pattern. Names are bound only if the whole reply agrees.
    pub fn compare(&self, arrived: &[u8], names: &mut Names) -> Verdict {
        let mut tentative = names.clone();
        let mut at = 0;
        for piece in &self.0 {
            match step(piece, &arrived[at..], &mut tentative) {
                Step::Took(len) => at += len,
                Step::More => return Verdict::Incomplete,
                Step::Wrong(offset, why) => return Verdict::Differs { at: at + offset, why },
            }
        }
        *names = tentative;
        Verdict::Agrees { len: at }
    }

    /// Whether a whole line agrees.
    pub fn agrees_with_line(&self, line: &[u8], names: &mut Names) -> bool {
        // a sentinel ends the last placeholder
        let mut terminated = line.to_vec();
        terminated.extend_from_slice(b"\r\n");
        matches!(self.compare(&terminated, names), Verdict::Agrees { len } if len == line.len())
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|piece| match piece {
            Piece::Literal(bytes) => write!(f, "{}", bytes.escape_ascii()),
            Piece::Named(name) => write!(f, "{{num={name}}}"),
            Piece::Bound(name, add) => write!(f, "{{{name}{add:+}}}"),
            Piece::Number(0, u64::MAX) => write!(f, "{{num}}"),
            Piece::Number(low, high) => write!(f, "{{{low}..{high}}}"),
            Piece::Fraction => write!(f, "{{dec}}"),
            Piece::Word => write!(f, "{{word}}"),
            Piece::Line => write!(f, "{{line}}"),
        })
    }
}

enum Step {
    Took(usize),
    More,
    Wrong(usize, String),
}

fn step(piece: &Piece, rest: &[u8], names: &mut Names) -> Step {
    match piece {
        Piece::Literal(expected) => literal(expected, rest),
        Piece::Named(name) => number(rest, |n| match names.get(name) {
            Some(&bound) if bound == n => Ok(()),
            Some(&bound) => Err(format!("{name} was {bound}, now it is {n}")),
            None => match names.iter().find(|(_, bound)| **bound == n) {
                Some((other, _)) => Err(format!("{name} must differ from {other}, both are {n}")),
                None => {
                    names.insert(name.clone(), n);
                    Ok(())
                }
            },
        }),
        Piece::Bound(name, add) => match names.get(name) {
            Some(bound) => literal(bound.wrapping_add_signed(*add).to_string().as_bytes(), rest),
            None => Step::Wrong(0, format!("{name} is not bound yet")),
        },
        Piece::Number(low, high) => number(rest, |n| {
            if (*low..=*high).contains(&n) {
                Ok(())
            } else {
                Err(format!("{n} is not in {low}..{high}"))
            }
        }),
        Piece::Fraction => run(rest, |b| b.is_ascii_digit() || b == b'.', "a decimal fraction"),
        Piece::Word => run(rest, |b| b != b' ' && b != b'\r', "a word"),
        Piece::Line => match rest.iter().position(|&b| b == b'\r') {
            Some(len) => Step::Took(len),
            None => Step::More,
        },
    }
}

fn literal(expected: &[u8], rest: &[u8]) -> Step {
    match expected.iter().zip(rest).position(|(e, r)| e != r) {
        Some(at) => {
            let upcoming = &expected[at..expected.len().min(at + 60)];
            Step::Wrong(at, format!("expected {}", upcoming.escape_ascii()))
        }
        None if rest.len() < expected.len() => Step::More,
        None => Step::Took(expected.len()),
    }
}

fn number(rest: &[u8], accept: impl FnOnce(u64) -> Result<(), String>) -> Step {
    let Some(len) = rest.iter().position(|b| !b.is_ascii_digit()) else {
        return if rest.len() > 20 {
            Step::Wrong(0, "a number of more than 20 digits".into())
        } else {
            Step::More
        };
    };
    match std::str::from_utf8(&rest[..len]).ok().and_then(|text| text.parse().ok()) {
        Some(n) => match accept(n) {
            Ok(()) => Step::Took(len),
            Err(why) => Step::Wrong(0, why),
        },
        None => Step::Wrong(0, "expected a number below 2^64".into()),
    }
}

fn run(rest: &[u8], belongs: impl Fn(u8) -> bool, what: &str) -> Step {
    match rest.iter().position(|&b| !belongs(b)) {
        Some(0) => Step::Wrong(0, format!("expected {what}")),
        Some(len) => Step::Took(len),
        None => Step::More,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compare(pieces: Vec<Piece>, arrived: &[u8]) -> Verdict {
        Pattern(pieces).compare(arrived, &mut Names::new())
    }

    #[test]
    fn literals_agree_byte_for_byte() {
        let expected = || vec![Piece::Literal(b"STORED\r\n".to_vec())];
        assert_eq!(compare(expected(), b"STORED\r\nEND"), Verdict::Agrees { len: 8 });
        assert_eq!(compare(expected(), b"STORE"), Verdict::Incomplete);
        assert!(matches!(compare(expected(), b"STORED\n"), Verdict::Differs { at: 6, .. }));
        assert!(matches!(compare(expected(), b"STORED \r\n"), Verdict::Differs { at: 6, .. }));
    }

    #[test]
    fn names_bind_once_and_are_never_shared() {
        let mut names = Names::new();
        let line = |text: &str| Pattern(vec![Piece::Named(text.into()), Piece::Literal(b"\r\n".to_vec())]);
        assert_eq!(line("c1").compare(b"17\r\n", &mut names), Verdict::Agrees { len: 4 });
        assert_eq!(line("c1").compare(b"17\r\n", &mut names), Verdict::Agrees { len: 4 });
        assert!(matches!(line("c1").compare(b"18\r\n", &mut names), Verdict::Differs { .. }));
        assert!(matches!(line("c2").compare(b"17\r\n", &mut names), Verdict::Differs { .. }));
        assert_eq!(line("c2").compare(b"1", &mut names), Verdict::Incomplete);
        assert!(!names.contains_key("c2"));
    }

    #[test]
    fn placeholders_have_borders() {
        let end = || Piece::Literal(b"\r\n".to_vec());
        assert!(matches!(
            compare(vec![Piece::Number(5, 7), end()], b"8\r\n"),
            Verdict::Differs { .. }
        ));
        assert!(matches!(
            compare(vec![Piece::Number(5, 7), end()], b"-6\r\n"),
            Verdict::Differs { .. }
        ));
        assert_eq!(
            compare(vec![Piece::Number(5, 7), end()], b"7\r\n"),
            Verdict::Agrees { len: 3 }
        );
        assert!(matches!(compare(vec![Piece::Word, end()], b"\r\n"), Verdict::Differs { .. }));
        assert!(matches!(
            compare(vec![Piece::Word, end()], b"a b\r\n"),
            Verdict::Differs { .. }
        ));
        assert!(Pattern(vec![Piece::Line]).agrees_with_line(b"x y z", &mut Names::new()));
        assert!(!Pattern::literal("ab").agrees_with_line(b"abc", &mut Names::new()));
    }
}
