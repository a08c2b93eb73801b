//! The table of options in docs/operating.md: it is made from `keyway serve --help`, by `KEYWAY_TESTS_RENEW=1 cargo test -p keyway-cli --test
//! options`. Its enemy: an option that is in the program and not in the document, the other way round, or with another default.
//! Guards: P50

use std::path::Path;
use std::process::Command;

const BEGIN: &str = "<!-- options: written by `KEYWAY_TESTS_RENEW=1 cargo test -p keyway-cli --test it options` -->\n";
const END: &str = "<!-- end of options -->\n";
/// Options that every command has.
const OF_ALL: &str = "-h, --help";

/// An option, such as `-m, --memory <SIZE>`, and its help as one line.
struct Row {
    option: String,
    help: String,
}

/// The options of a help, with the titles of their groups.
fn rows(help: &str) -> Vec<(String, Vec<Row>)> {
    let mut groups: Vec<(String, Vec<Row>)> = Vec::new();
    for line in help.lines().skip_while(|line| *line != "Options:") {
        let text = line.trim();
        let rows = groups.last_mut().map(|(_, rows)| rows);
        if let Some(title) = line.strip_suffix(':').filter(|title| !title.starts_with(' ')) {
            if title == "Examples" {
                break;
            }
            groups.push((title.to_owned(), Vec::new()));
        } else if line.starts_with(' ') && text.starts_with('-') && line.len() - text.len() <= 6 {
            rows.expect("a title comes first").push(Row {
                option: text.to_owned(),
                help: String::new(),
            });
        } else if let Some(row) = rows.and_then(|rows| rows.last_mut()) {
            let blank = if row.help.is_empty() || text.is_empty() { "" } else { " " };
            row.help += blank;
            row.help += text;
        }
    }
    groups
}

/// The first sentence of a help, or what is before its first colon or semicolon; and its default.
fn shortened(help: &str) -> (String, String) {
    let (help, default) = match help.rsplit_once("[default: ") {
        Some((before, rest)) => {
            let (default, after) = rest.split_once(']').expect("a default has an end");
            (format!("{}{after}", before.trim()), default.to_owned())
        }
        None => (help.to_owned(), String::new()),
    };
    let ends = [". ", ": ", "; ", " ["];
    let end = ends.iter().filter_map(|end| help.find(end)).min().unwrap_or(help.len());
    (help.split_at(end).0.trim().trim_end_matches('.').to_owned(), default)
}

fn table(help: &str) -> String {
    let mut text = String::new();
    for (title, rows) in rows(help) {
        text += &format!("\n| {} | |\n|---|---|\n", title.to_lowercase());
        for Row { option, help } in rows.iter().filter(|row| row.option != OF_ALL) {
            let (mut does, default) = shortened(help);
            if !default.is_empty() {
                does += &format!(" (default: {default})");
            }
            let line = format!("`{option}` | {does}").replace('|', "\\|").replace(" \\| ", " | ");
            text += &format!("| {line} |\n");
        }
    }
    text + "\n"
}

#[test]
fn the_document_has_the_options_of_serve() {
    let output = Command::new(env!("CARGO_BIN_EXE_keyway"))
        .args(["serve", "--help"])
        .output()
        .expect("keyway");
    let help = String::from_utf8(output.stdout).expect("text");
    let wanted = table(&help);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/operating.md");
    let page = std::fs::read_to_string(&path).expect("docs/operating.md");
    let (before, rest) = page.split_once(BEGIN).expect("where the table begins");
    let (now, after) = rest.split_once(END).expect("where the table ends");
    if std::env::var_os("KEYWAY_TESTS_RENEW").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{wanted}{END}{after}")).expect("docs/operating.md");
    } else {
        assert_eq!(now, wanted, "KEYWAY_TESTS_RENEW=1 writes the table again");
    }
}

#[test]
fn a_help_becomes_a_table() {
    let help = "Serve\n\nUsage: keyway serve\n\nOptions:\n      --check\n          Only tell whether; not more. It starts\n          nothing\n\n  -h, --help\n          Print help\n\n\
                Sockets:\n  -l, --listen <ADDR|PATH>\n          Where [default: here\n          or there]. More\n\n      --mode <MODE>\n          Its mode\n          \n          [default: 700]\n\
                Examples:\n  keyway serve\n      --x\n";
    assert_eq!(
        table(help),
        "\n| options | |\n|---|---|\n| `--check` | Only tell whether |\n\
         \n| sockets | |\n|---|---|\n| `-l, --listen <ADDR\\|PATH>` | Where (default: here or there) |\n| `--mode <MODE>` | Its mode (default: 700) |\n\n"
    );
}
