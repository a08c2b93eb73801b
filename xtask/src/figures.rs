//! `cargo xtask figures`: measures every table of `docs/performance.md` again, with the commands named there, and writes Markdown to a file.
//!
//! It checks no result. A table that cannot be measured here (no root, no memcached) is reported at the end, and the others are written.
//! The short form shows that each command is accepted and measures something; its figures mean nothing.

use crate::run::{Context, Outcome};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// Help of the command.
const HELP: &str = "\
cargo xtask figures: measures again the tables of docs/performance.md, and writes them as Markdown

    cargo xtask figures               all of them, to target/figures.md; hours
    cargo xtask figures --only WORD   those with this word in their title
    cargo xtask figures --list        titles and commands
    cargo xtask figures --to FILE     to this file instead
    cargo xtask figures --short       seconds instead of hours, with the programs that tests use, and without those of `cargo bench`:
                                      only shows that the commands work

Those of the kernel door take root. Programs are built in release mode first.
";

/// A title and its command; `{built}` is the folder of the built programs. A command with `{gate}` makes two tables,
/// without the gate and with it (which takes a machine with protection keys).
const TABLES: &[(&str, &str)] = &[
    (
        "Calls beside DashMap and LMDB",
        "env KEYWAY_GATE={gate} cargo bench --locked --package benches --bench maps",
    ),
    (
        "Large values beside plain copies",
        "env KEYWAY_GATE={gate} cargo bench --locked --package benches --bench copies",
    ),
    ("Web applications", "{built}/lab applications"),
    ("TLS", "{built}/lab tls --server-cpus 0 --client-cpus 1"),
    (
        "Two threads against one",
        "env KEYWAY_GATE={gate} cargo bench --locked --package benches --bench scaling",
    ),
    (
        "Many keys in one call, 10^7 items",
        "env KEYWAY_GATE={gate} cargo bench --locked --package benches --bench bulk",
    ),
    (
        "Instructions of an operation",
        "cargo bench --locked --package benches --bench instructions",
    ),
    (
        "Library, drop-in and libmemcached, from C",
        "env KEYWAY_GATE={gate} cargo bench --locked --package benches --bench library_door",
    ),
    (
        "What a watcher costs",
        "cargo bench --locked --package benches --bench watched",
    ),
    ("Attach", "cargo bench --locked --package benches --bench attach"),
    (
        "Repair after a power failure",
        "cargo bench --locked --package benches --bench attach -- --repair --repeats 5",
    ),
    ("Items in 256 MB", "cargo bench --locked --package benches --bench memory"),
    (
        "Network beside memcached",
        "{built}/keyway bench --door tcp,unix --server-threads 1 --server-cpus 0 --client-cpus 1 --repeat 5 -w get-128b,set-128b,128b-95 -c 1,4,64",
    ),
    (
        "Network, several requests in flight",
        "{built}/keyway bench --door tcp --server-threads 1 --server-cpus 0 --client-cpus 1 --repeat 7 -w get-128b --pipeline 16,32 -c 4,64",
    ),
    (
        "Network, many keys in a get",
        "{built}/keyway bench --door tcp --server-threads 1 --server-cpus 0 --client-cpus 1 --repeat 7 -w get-128b --multiget 16,100 -c 4,64",
    ),
    (
        "Network, gets by connections",
        "{built}/keyway bench --door tcp --server-threads 1 --server-cpus 0 --client-cpus 1 --repeat 7 -w get-128b -c 1,16,64,512",
    ),
    (
        "Network, 5 KB",
        "{built}/keyway bench --door tcp --server-threads 1 --server-cpus 0 --client-cpus 1 --repeat 7 -w get-5k,set-5k -c 64 --server-options=--prefault",
    ),
    (
        "Network, 100 KB",
        "{built}/keyway bench --door tcp --server-threads 1 --server-cpus 0 --client-cpus 1 --repeat 7 -w get-100k,set-100k -c 16 --server-options=--prefault",
    ),
    ("Idle connections", "{built}/lab idle --connections 10000 --server-threads 1"),
    (
        "Latency of calls (protected library, Figure 5)",
        "{built}/lab reproduce hodor-fig5",
    ),
    (
        "Threads and processes (protected library, Figures 6 to 9)",
        "{built}/lab reproduce hodor-fig6-9",
    ),
    ("Strict mode (pmemcached, Figure 1)", "{built}/lab reproduce pmemcached-fig1"),
    ("Restart (pmemcached, section 4)", "{built}/lab reproduce pmemcached-restart"),
    (
        "Kernel door",
        "{built}/lab kernel --value-size 20,128,1024 --connections 1,32 --multiget 1,10",
    ),
    (
        "Kernel door, 32 in flight on one socket",
        "{built}/lab kernel --value-size 20,128,1024 --connections 1 --pipeline 32",
    ),
    (
        "Kernel door, one CPU",
        "{built}/lab kernel --value-size 20,128,1024 --server-cpus 1 --client-cpus 1",
    ),
    (
        "Kernel door, Hippos's figures",
        "{built}/lab reproduce hippos-fig7,hippos-fig9,hippos-fig10,hippos-table4,hippos-surge",
    ),
    (
        "Kernel door, Unbuckle's figures",
        "{built}/lab reproduce unbuckle-fig4.3b,unbuckle-fig4.6,unbuckle-fig4.7,unbuckle-fig4.8,unbuckle-fig4.9,unbuckle-table4.1",
    ),
];

/// All tables, each with a title of its own.
fn tables() -> Vec<(String, String)> {
    let both = |(title, command): &(&str, &str)| {
        if !command.contains("{gate}") {
            return vec![((*title).to_owned(), (*command).to_owned())];
        }
        let one = |how: &str, gate: &str| (format!("{title}, {how}"), command.replace("{gate}", gate));
        vec![one("without the gate", "off"), one("with the gate", "on")]
    };
    TABLES.iter().flat_map(both).collect()
}

/// Measures the tables that these arguments select.
pub fn run(context: &Context<'_>, args: &[&str]) -> Outcome {
    let (mut only, mut to, mut is_short) = ("", context.target.join("figures.md"), false);
    let mut args = args.iter();
    while let Some(&arg) = args.next() {
        match (arg, args.clone().next()) {
            ("--help" | "-h", _) => {
                print!("{HELP}");
                return Outcome::Passed;
            }
            ("--list", _) => {
                for (title, command) in tables() {
                    println!("{title}\n    {command}");
                }
                return Outcome::Passed;
            }
            ("--short", _) => {
                is_short = true;
                continue;
            }
            ("--only", Some(word)) => only = word,
            ("--to", Some(file)) => to = PathBuf::from(file),
            _ => return Outcome::Failed(format!("{arg}: `cargo xtask figures --help` lists what there is")),
        }
        args.next();
    }
    let chosen: Vec<_> = tables()
        .into_iter()
        .filter(|(title, _)| title.contains(only))
        .filter_map(|(title, command)| Some((title, if is_short { shortened(&command)? } else { command })))
        .collect();
    if chosen.is_empty() {
        return Outcome::Failed(format!("no table has \"{only}\" in its title; --list has them"));
    }
    let release = [
        "build",
        "--release",
        "--locked",
        "--package",
        "keyway-cli",
        "--package",
        "lab",
    ];
    let build = if is_short {
        context.build_all(&[])
    } else {
        context.expect(context.command("cargo", &release))
    };
    if build != Outcome::Passed {
        return build;
    }
    measure(context, &chosen, is_short, &to)
}

/// Runs the commands and writes what they print.
fn measure(context: &Context<'_>, chosen: &[(String, String)], is_short: bool, to: &Path) -> Outcome {
    let built = context.target.join(if is_short { "debug" } else { "release" });
    let mut failed = Vec::new();
    let mut text = String::from("# Figures\n");
    for (number, (title, command)) in chosen.iter().enumerate() {
        let command = command.replace("{built}", &built.to_string_lossy());
        println!("[{} of {}] {title}\n   $ {command}", number + 1, chosen.len());
        let begun = Instant::now();
        match output(context, &command) {
            Ok(output) => {
                // Writing to a string cannot fail.
                let _ = write!(text, "\n## {title}\n\n    {command}\n\n{}", markdown(&output));
            }
            Err(why) => failed.push(format!("{title}: {why}")),
        }
        println!("   {} s", begun.elapsed().as_secs());
        // Saved after each table, so that results stay if a later one fails.
        if let Err(error) = std::fs::write(to, &text) {
            return Outcome::Failed(format!("cannot write {}: {error}", to.display()));
        }
    }
    println!("{}", to.display());
    if failed.is_empty() {
        Outcome::Passed
    } else {
        Outcome::Failed(format!("not measured: {}", failed.join("; ")))
    }
}

/// The command with the first preset, few items and short measurements, of which there is one; `None` for `cargo bench`, whose files have no
/// such options.
fn shortened(command: &str) -> Option<String> {
    let (program, rest) = command.split_once(' ')?;
    let name = program.rsplit('/').next().filter(|name| ["lab", "keyway"].contains(name))?;
    let mut words = vec![program];
    let mut left = rest.split(' ');
    while let Some(word) = left.next() {
        match word {
            "--repeat" | "--connections" | "-c" => {
                left.next();
            }
            _ => words.push(word),
        }
    }
    let first = words.get_mut(2).filter(|_| rest.starts_with("reproduce "));
    if let Some(presets) = first {
        *presets = presets.split(',').next()?;
    }
    let what = words.get(1).copied()?;
    words.extend(["--seconds", "0.05", "--repeat", "1"]);
    if !["reproduce", "applications"].contains(&what) {
        words.extend([if name == "keyway" { "-c" } else { "--connections" }, "2"]);
    }
    if !["applications", "tls"].contains(&what) {
        words.extend(["--items", "1000"]);
    }
    Some(words.join(" "))
}

/// The standard output of a command; its progress goes to the terminal.
fn output(context: &Context<'_>, command: &str) -> Result<String, String> {
    let words: Vec<&str> = command.split(' ').collect();
    let mut command: Command = context.command(words[0], &words[1..]);
    // The one beside the program that is measured with, instead of one that is built for it.
    if let Some(built) = Path::new(words[0]).parent().filter(|folder| folder.is_absolute()) {
        command.env("KEYWAY_BIN", built.join("keyway"));
    }
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn();
    let output = child
        .and_then(std::process::Child::wait_with_output)
        .map_err(|e| e.to_string())?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(text)
    } else {
        Err(output.status.to_string())
    }
}

/// The text with its tables in Markdown: a table is lines that begin with two spaces, with columns two spaces or more apart.
fn markdown(text: &str) -> String {
    let columns = |line: &str| -> Vec<String> {
        let cells = line.split("  ").map(str::trim).filter(|cell| !cell.is_empty());
        cells.map(str::to_owned).collect()
    };
    let is_row = |line: &&str| line.starts_with("  ") && columns(line).len() > 1;
    let mut out = String::new();
    let lines: Vec<&str> = text.lines().collect();
    for part in lines.chunk_by(|one, next| is_row(one) == is_row(next)) {
        if !is_row(&part[0]) {
            part.iter().for_each(|line| out.push_str(&format!("{}\n", line.trim_end())));
            continue;
        }
        let mut rows: Vec<Vec<String>> = part.iter().map(|line| columns(line)).collect();
        let width = rows.iter().map(Vec::len).max().unwrap_or(0);
        // The head has no title for the column of names.
        let missing = width - rows[0].len();
        rows[0].splice(0..0, std::iter::repeat_n(String::new(), missing));
        rows.insert(1, vec!["---".to_owned(); width]);
        let blank = if out.is_empty() || out.ends_with("\n\n") { "" } else { "\n" };
        out.push_str(blank);
        rows.iter()
            .for_each(|row| out.push_str(&format!("| {} |\n", row.join(" | "))));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_become_a_table_and_a_table_stays_one() {
        let text = "a row (what it is)\n                 Keyway  memcached  ratio\n  throughput, k/s  2.0 (1.0–3.0)    1.0   2.00\nNOTE: busy\n| a |\n";
        let expected = "a row (what it is)\n\n|  | Keyway | memcached | ratio |\n| --- | --- | --- | --- |\n| throughput, k/s | 2.0 (1.0–3.0) | 1.0 | 2.00 |\nNOTE: busy\n| a |\n";
        assert_eq!(markdown(text), expected);
    }

    #[test]
    fn titles_differ() {
        let tables = tables();
        let mut titles: Vec<_> = tables.iter().map(|(title, _)| title).collect();
        titles.sort_unstable();
        titles.dedup();
        assert_eq!(titles.len(), tables.len());
    }

    #[test]
    fn figures_of_the_library_are_taken_without_the_gate_and_with_it() {
        let tables = tables();
        for bench in ["maps", "copies", "scaling", "bulk", "library_door"] {
            let commands = tables
                .iter()
                .filter(|(_, command)| command.ends_with(&format!(" --bench {bench}")));
            let gates: Vec<_> = commands
                .map(|(title, command)| (title.ends_with("with the gate"), command.contains("GATE=on ")))
                .collect();
            assert_eq!(gates, [(false, false), (true, true)], "{bench}");
        }
        assert!(tables.iter().all(|(_, command)| !command.contains("{gate}")));
    }

    #[test]
    fn a_short_form_has_each_option_once() {
        let short: Vec<String> = TABLES.iter().filter_map(|(_, command)| shortened(command)).collect();
        let measured = TABLES.iter().filter(|(_, command)| command.starts_with("{built}")).count();
        assert_eq!(short.len(), measured, "each but those of cargo bench");
        for command in short {
            for option in ["--repeat ", "--seconds ", "--connections ", "-c ", "--items "] {
                assert!(command.matches(&format!(" {option}")).count() <= 1, "{command}");
            }
        }
        let reproduced = shortened("{built}/lab reproduce hippos-fig7,hippos-fig9").unwrap();
        assert_eq!(
            reproduced,
            "{built}/lab reproduce hippos-fig7 --seconds 0.05 --repeat 1 --items 1000"
        );
    }
}
