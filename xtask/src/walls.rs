//! The walls of the house: figures of the product's code that may only fall, each with its limit in `xtask/walls.txt`.
//!
//! A figure above its limit fails the stage `sources`. `cargo xtask walls` shows all of them, `cargo xtask walls --renew` writes limits that have
//! fallen. No wall says that code is good: a figure that is met by a trick is missed.

use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The table of limits: a number and the name of a figure on each line.
pub const LIMITS: &str = "xtask/walls.txt";
/// Most files that may hold methods of one type.
const FILES_MAX: usize = 3;
/// Most lines of a function.
const LINES_MAX: usize = 60;
/// So many lines of code in a row that stand at two places are one piece of code that was copied.
const COPY_LINES: usize = 8;

/// Figures by name, each with what it counts.
pub type Figures = BTreeMap<String, Vec<String>>;

/// Whether a file's code is the product's: neither tests, nor measuring, nor tools.
fn is_product(name: &str) -> bool {
    let is_other = |part: &str| ["tests", "bench", "keyway-bench", "late"].contains(&part);
    let is_tests = |file: &str| ["tests.rs", "late.rs", "at_rest.rs", "bench.rs"].contains(&file);
    ["crates/", "bindings/"].iter().any(|start| name.starts_with(start))
        && [".rs", ".c", ".h", ".py", ".pyi", ".html"]
            .iter()
            .any(|end| name.ends_with(end))
        && !name.split('/').any(|part| is_other(part) || is_tests(part))
}

/// A Rust source without its test modules. Its lines keep their numbers.
fn without_tests(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    let opens = |line: &&str| after_visibility(line.trim_start()).starts_with("mod ") && line.ends_with('{');
    let mut kept = Vec::new();
    while let Some(&line) = lines.get(kept.len()) {
        let is_test = ["#[cfg(test", "#[cfg(all(test"]
            .iter()
            .any(|start| line.trim_start().starts_with(start));
        let of_module = lines.iter().skip(kept.len() + 1).take(2).any(opens);
        if !(is_test && of_module) {
            kept.push(line);
            continue;
        }
        let (mut depth, mut begun) = (0, false);
        for line in &lines[kept.len()..] {
            depth += line.matches('{').count().cast_signed() - line.matches('}').count().cast_signed();
            begun |= line.contains('{');
            kept.push("");
            if begun && depth <= 0 {
                break;
            }
        }
    }
    kept
}

fn after_visibility(line: &str) -> &str {
    let Some(rest) = line.strip_prefix("pub") else { return line };
    let rest = match rest.starts_with('(') {
        true => rest.split_once(')').map_or(rest, |(_, rest)| rest),
        false => rest,
    };
    rest.strip_prefix(' ').unwrap_or(line)
}

/// The identifier that a text begins with.
fn word(text: &str) -> &str {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    &text[..end]
}

/// What follows the generics that a text may begin with.
fn after_generics(text: &str) -> &str {
    let mut depth = 0;
    for (at, c) in text.char_indices() {
        match c {
            '<' => depth += 1,
            '>' if !text[..at].ends_with(['-', '=']) => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return if c == '>' { &text[at + 1..] } else { text };
        }
    }
    text
}

/// The type of an `impl` block without a trait; `text` follows the word `impl`.
fn inherent(text: &str) -> Option<&str> {
    let path = after_generics(text.split('{').next()?).strip_prefix(' ')?;
    let (name, after) = path.split_at(path.find(|c: char| !c.is_alphanumeric() && !"_:".contains(c))?);
    let after = after_generics(after);
    (after == " " || after.starts_with(" where") || after.starts_with("\nwhere")).then(|| name.rsplit("::").next())?
}

/// The type that a line defines.
fn defined(line: &str) -> Option<&str> {
    let line = after_visibility(line.trim_start());
    let kinds = ["struct ", "enum ", "trait ", "type ", "union "];
    kinds.iter().find_map(|kind| line.strip_prefix(kind)).map(word)
}

/// The function that begins at a line, by its name.
fn function(line: &str) -> Option<&str> {
    let words = ["const ", "async ", "unsafe ", "extern \"C\" "];
    let rest = words.iter().fold(after_visibility(line.trim_start()), |rest, word| {
        rest.strip_prefix(word).unwrap_or(rest)
    });
    rest.strip_prefix("fn ").map(word).filter(|name| !name.is_empty())
}

/// The lines of the function that begins here: to the brace under its first letter.
fn length(lines: &[&str]) -> usize {
    let indented = lines[0].len() - lines[0].trim_start().len();
    let ends = |line: &&str| line.trim_end().len() == indented + 1 && line.trim_start().starts_with('}');
    match lines[0].trim_end().ends_with(['}', ';']) {
        true => 1,
        false => lines.iter().position(ends).map_or(1, |last| last + 1),
    }
}

/// Counts everything. `files`: name in the repository, and text.
pub fn figures(files: &[(String, String)]) -> Figures {
    let mut figures = Figures::new();
    let mut add = |figure: String, row: String| figures.entry(figure).or_default().push(row);
    let mut methods: BTreeMap<(String, &str), BTreeSet<&str>> = BTreeMap::new();
    let mut types: BTreeMap<(String, &str), BTreeSet<&str>> = BTreeMap::new();
    let mut variables = BTreeSet::new();
    let mut bodies = Vec::new();
    for (name, text) in files {
        if name.ends_with(".md") {
            let words = text.split_whitespace();
            words.for_each(|_| add("words of documents".into(), name.clone()));
        }
        if name.ends_with(".rs") {
            let quoted = text
                .split('"')
                .filter(|part| part.strip_prefix("KEYWAY_").is_some_and(|rest| !rest.is_empty()));
            variables
                .extend(quoted.filter(|part| part.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')));
        }
        if !is_product(name) {
            continue;
        }
        for (number, line) in text.lines().enumerate() {
            let row = || format!("{name}:{}", number + 1);
            let attributes = line.matches("#[inline").count() + line.matches("#[cold").count();
            (0..attributes).for_each(|_| add("inline and cold attributes".into(), row()));
            let leans = |start: &str| line.contains(&format!("/// {start}"));
            if ["As above", "As [", "As `"].iter().any(|start| leans(start)) || leans("The same") && !leans("The sames") {
                add("comments that lean on another".into(), row());
            }
        }
        if !name.ends_with(".rs") {
            continue;
        }
        let krate: String = name.split('/').take(2).last().unwrap_or_default().into();
        let body = without_tests(text);
        for (number, line) in body.iter().enumerate() {
            let row = || format!("{name}:{}", number + 1);
            let wide: usize = ["pub(crate", "pub(super", "pub(in "]
                .map(|what| line.matches(what).count())
                .iter()
                .sum();
            (0..wide).for_each(|_| add(format!("crate-wide items of {krate}"), row()));
            if let Some(name_of_type) = defined(line) {
                types.entry((krate.clone(), name_of_type)).or_default().insert(name);
            }
            if let Some(name_of_function) = function(line).filter(|_| length(&body[number..]) > LINES_MAX) {
                add(
                    format!("functions above {LINES_MAX} lines"),
                    format!("{} {name_of_function}", row()),
                );
            }
            if line.starts_with("impl") {
                let at = line.as_ptr().addr() - text.as_ptr().addr();
                if let Some(of) = inherent(&text[at + "impl".len()..]) {
                    methods.entry((krate.clone(), of)).or_default().insert(name);
                }
            }
        }
        bodies.push((name, body));
    }
    for ((krate, of), _) in methods.iter().filter(|(_, files)| files.len() > FILES_MAX) {
        add(
            format!("types with methods in more than {FILES_MAX} files"),
            format!("{krate} {of}"),
        );
    }
    for ((krate, of), _) in types.iter().filter(|(_, files)| files.len() > 1) {
        add(format!("type names with two meanings in {krate}"), of.to_string());
    }
    variables
        .iter()
        .for_each(|name| add("environment variables".into(), name.to_string()));
    copied(&bodies).for_each(|row| add("lines that stand twice".into(), row));
    figures
}

/// The lines that are part of a piece of code that stands at another place, too.
fn copied(files: &[(&String, Vec<&str>)]) -> impl Iterator<Item = String> {
    let is_code = |line: &str| !line.is_empty() && !["//", "use ", "pub use "].iter().any(|start| line.starts_with(start));
    let mut pieces: HashMap<Vec<&str>, Vec<(&String, usize)>> = HashMap::new();
    for (name, lines) in files {
        let code = lines.iter().enumerate().map(|(number, line)| (number + 1, line.trim()));
        let code: Vec<_> = code.filter(|(_, line)| is_code(line)).collect();
        for piece in code.windows(COPY_LINES) {
            let places = pieces.entry(piece.iter().map(|(_, line)| *line).collect()).or_default();
            places.extend(piece.iter().map(|(number, _)| (*name, *number)));
        }
    }
    let twice = pieces.into_values().filter(|places| places.len() > COPY_LINES).flatten();
    let lines: BTreeSet<_> = twice.collect();
    lines.into_iter().map(|(name, number)| format!("{name}:{number}"))
}

/// The limits by figure.
fn limits(table: &str) -> BTreeMap<&str, usize> {
    let rows = table.lines().filter_map(|line| line.trim().split_once(' '));
    rows.filter_map(|(number, figure)| Some((figure.trim(), number.parse().ok()?)))
        .collect()
}

/// One line for each figure that is above its limit.
pub fn check(files: &[(String, String)], table: &str) -> Vec<String> {
    let limits = limits(table);
    let above = |(figure, rows): (String, Vec<String>)| {
        let limit = limits.get(figure.as_str()).copied().unwrap_or(0);
        let last = rows.last().filter(|_| rows.len() > limit)?;
        Some(format!(
            "{LIMITS}: {figure}: {}, and at most {limit} (one is {last}); `cargo xtask walls '{figure}'` lists them",
            rows.len()
        ))
    };
    figures(files).into_iter().filter_map(above).collect()
}

/// The table with every limit that has fallen, and those of new figures.
pub fn renewed(files: &[(String, String)], table: &str) -> String {
    let old = limits(table);
    let figures = figures(files);
    let names: BTreeSet<&str> = figures.keys().map(String::as_str).chain(old.keys().copied()).collect();
    let row = |figure: &str| {
        let now = figures.get(figure).map_or(0, Vec::len);
        format!("{:>6} {figure}\n", old.get(figure).map_or(now, |limit| now.min(*limit)))
    };
    names.into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How often a figure is counted in these files of a crate.
    fn counted(figure: &str, files: &[(&str, &str)]) -> usize {
        let files: Vec<_> = files
            .iter()
            .map(|(name, text)| (format!("crates/one/src/{name}"), (*text).to_owned()))
            .collect();
        let found = figures(&files);
        // A limit of one less is broken, and the renewed table holds.
        if let Some(rows) = found.get(figure) {
            assert_eq!(
                check(&files, &format!("{} {figure}", rows.len() - 1))
                    .iter()
                    .filter(|p| p.contains(figure))
                    .count(),
                1
            );
            assert_eq!(check(&files, &renewed(&files, "")), [""; 0]);
        }
        found.get(figure).map_or(0, Vec::len)
    }

    #[test]
    fn a_type_with_methods_in_four_files_is_caught() {
        let files = ["a.rs", "b.rs", "c.rs", "d.rs"].map(|name| {
            (
                name,
                "impl<'a, F: Fn() -> u8> x::Store<'a, F> {\n}\nimpl Drop for Other {\n}\n",
            )
        });
        let figure = "types with methods in more than 3 files";
        assert_eq!((counted(figure, &files), counted(figure, &files[1..])), (1, 0));
    }

    #[test]
    fn a_crate_wide_item_is_caught_outside_tests() {
        let text =
            "pub(crate) fn a() {}\npub fn b() {}\n#[cfg(test)]\nmod tests {\n    pub(super) fn c() {}\n}\npub(super) fn d() {}\n";
        assert_eq!(counted("crate-wide items of one", &[("a.rs", text), ("tests.rs", text)]), 2);
    }

    #[test]
    fn a_long_function_is_caught() {
        let of = |lines: usize| {
            format!(
                "impl A {{\n    pub const fn a(\n    ) {{\n{}    }}\n}}\n",
                "        b();\n".repeat(lines - 3)
            )
        };
        let figure = "functions above 60 lines";
        assert_eq!(
            (counted(figure, &[("a.rs", &of(61))]), counted(figure, &[("a.rs", &of(60))])),
            (1, 0)
        );
    }

    #[test]
    fn a_name_with_two_meanings_is_caught() {
        let figure = "type names with two meanings in one";
        let twice = [("a.rs", "pub(crate) struct Place;\n"), ("b.rs", "enum Place {\n}\n")];
        assert_eq!((counted(figure, &twice), counted(figure, &twice[1..])), (1, 0));
    }

    #[test]
    fn comments_that_lean_and_attributes_are_caught() {
        let text = "/// The same, for UDP.\n#[inline(always)]\nfn a() {}\n/// As [`a`].\n#[cold]\nfn b() {}\n/// The sum of both.\nfn c() {}\n";
        assert_eq!(counted("comments that lean on another", &[("a.rs", text)]), 2);
        assert_eq!(counted("inline and cold attributes", &[("a.rs", text)]), 2);
    }

    #[test]
    fn words_and_variables_are_counted_once() {
        assert_eq!(counted("words of documents", &[("a.md", "one two\nthree")]), 3);
        let text = "env(\"KEYWAY_BIN\"); env(\"KEYWAY_BIN\"); say(\"KEYWAY_ and more\");\n";
        assert_eq!(counted("environment variables", &[("tests/a.rs", text)]), 1);
    }

    #[test]
    fn code_that_stands_twice_is_caught() {
        let text = |lines: std::ops::Range<usize>| lines.map(|n| format!("    call({n});\n\n")).collect::<String>();
        let figure = "lines that stand twice";
        assert_eq!(
            counted(figure, &[("a.rs", &text(0..30)), ("b.rs", &text(10..10 + COPY_LINES))]),
            2 * COPY_LINES
        );
        assert_eq!(
            counted(figure, &[("a.rs", &text(0..30)), ("b.rs", &text(10..9 + COPY_LINES))]),
            0
        );
    }

    #[test]
    fn a_limit_only_falls() {
        let files = [("a.md".to_owned(), "one two".to_owned())];
        assert_eq!(renewed(&files, "     1 words of documents\n"), "     1 words of documents\n");
        assert_eq!(renewed(&files, "     3 words of documents\n"), "     2 words of documents\n");
        assert_eq!(check(&files, "2 words of documents"), [""; 0]);
    }
}
