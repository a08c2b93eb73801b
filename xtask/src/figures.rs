//! `cargo xtask figures`: measures every table of `docs/performance.md` again, with the commands named there, and writes Markdown to a file.
//!
//! It checks no result. A table that cannot be measured here (no root, no memcached) is reported at the end, and the others are written.

use crate::run::{Context, Outcome};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// Help of the command.
const HELP: &str = "\
cargo xtask figures: measures again the tables of docs/performance.md, and writes them as Markdown

    cargo xtask figures               all of them, to target/figures.md; hours
    cargo xtask figures --only WORD   those with this word in their title
    cargo xtask figures --list        titles and commands
    cargo xtask figures --to FILE     to this file instead

Those of the kernel door take root. Programs are built in release mode first.
";

/// A title and its command; `{release}` is the folder of the built programs.
const TABLES: &[(&str, &str)] = &[
    (
        "Calls beside DashMap",
        "cargo bench --locked --package benches --bench library",
    ),
    (
        "Gets and sets beside DashMap, papaya and LMDB",
        "cargo bench --locked --package benches --bench maps",
    ),
    (
        "Large values beside plain copies",
        "cargo bench --locked --package benches --bench copies",
    ),
    ("Web applications", "{release}/lab applications"),
    ("TLS", "{release}/lab tls --server-cpus 0 --client-cpus 1"),
    (
        "Two threads against one",
        "cargo bench --locked --package benches --bench scaling",
    ),
    (
        "Many keys in one call, 10^7 items",
        "cargo bench --locked --package benches --bench bulk",
    ),
    (
        "What writers pay for room",
        "cargo bench --locked --package benches --bench overwrites",
    ),
    (
        "Instructions of an operation",
        "cargo bench --locked --package benches --bench instructions",
    ),
    (
        "Library, drop-in and libmemcached, from C",
        "cargo bench --locked --package benches --bench library_door",
    ),
    (
        "What a watcher costs",
        "cargo bench --locked --package benches --bench watched",
    ),
    ("Attach", "cargo bench --locked --package benches --bench attach"),
    ("Items in 256 MB", "cargo bench --locked --package benches --bench memory"),
    (
        "Network beside memcached",
        "cargo bench --locked --package benches --bench network",
    ),
    (
        "Network, gets by connections",
        "{release}/keyway bench --door tcp --server-threads 1 --server-cpus 0 --client-cpus 1 --repeat 7 -w get-128b -c 1,16,64,512",
    ),
    (
        "Network, 5 KB",
        "{release}/keyway bench --door tcp --server-threads 1 --server-cpus 0 --client-cpus 1 --repeat 7 -w get-5k,set-5k -c 64 --server-options=--prefault",
    ),
    (
        "Network, 100 KB",
        "{release}/keyway bench --door tcp --server-threads 1 --server-cpus 0 --client-cpus 1 --repeat 7 -w get-100k,set-100k -c 16 --server-options=--prefault",
    ),
    (
        "Idle connections",
        "{release}/lab idle --connections 10000 --server-threads 1",
    ),
    (
        "Latency of calls (protected library, Figure 5)",
        "{release}/lab reproduce hodor-fig5 --libmemcached {release}/libmemcached.so",
    ),
    (
        "Threads and processes (protected library, Figures 6 to 9)",
        "{release}/lab reproduce hodor-fig6-9 --libmemcached {release}/libmemcached.so",
    ),
    (
        "Strict mode (pmemcached, Figure 1)",
        "{release}/lab reproduce pmemcached-fig1",
    ),
    (
        "Restart (pmemcached, section 4)",
        "{release}/lab reproduce pmemcached-restart",
    ),
    (
        "Kernel door",
        "{release}/lab kernel --value-size 20,128,1024 --connections 1,32 --multiget 1,10",
    ),
    (
        "Kernel door, 32 in flight on one socket",
        "{release}/lab kernel --value-size 20,128,1024 --connections 1 --pipeline 32",
    ),
    (
        "Kernel door, one CPU",
        "{release}/lab kernel --value-size 20,128,1024 --server-cpus 1 --client-cpus 1",
    ),
    (
        "Kernel door, Hippos's figures",
        "{release}/lab reproduce hippos-fig7,hippos-fig9,hippos-fig10,hippos-table4,hippos-surge",
    ),
    (
        "Kernel door, Unbuckle's figures",
        "{release}/lab reproduce unbuckle-fig4.3b,unbuckle-fig4.6,unbuckle-fig4.7,unbuckle-fig4.8,unbuckle-fig4.9,unbuckle-table4.1",
    ),
];

/// Measures the tables that these arguments select.
pub fn run(context: &Context<'_>, args: &[&str]) -> Outcome {
    let (mut only, mut to) = ("", context.target.join("figures.md"));
    let mut args = args.iter();
    while let Some(&arg) = args.next() {
        match (arg, args.clone().next()) {
            ("--help" | "-h", _) => {
                print!("{HELP}");
                return Outcome::Passed;
            }
            ("--list", _) => {
                for (title, command) in TABLES {
                    println!("{title}\n    {command}");
                }
                return Outcome::Passed;
            }
            ("--only", Some(word)) => only = word,
            ("--to", Some(file)) => to = PathBuf::from(file),
            _ => return Outcome::Failed(format!("{arg}: `cargo xtask figures --help` lists what there is")),
        }
        args.next();
    }
    let chosen: Vec<_> = TABLES.iter().filter(|(title, _)| title.contains(only)).collect();
    if chosen.is_empty() {
        return Outcome::Failed(format!("no table has \"{only}\" in its title; --list has them"));
    }
    let packages = ["keyway-cli", "lab", "keyway-libmemcached"];
    let packages: Vec<&str> = packages.iter().flat_map(|package| ["--package", *package]).collect();
    let built = context.expect(context.command("cargo", &[&["build", "--release", "--locked"][..], &packages].concat()));
    if built != Outcome::Passed {
        return built;
    }
    let mut failed = Vec::new();
    let mut text = String::from("# Figures\n");
    for (number, (title, command)) in chosen.iter().enumerate() {
        let command = command.replace("{release}", &context.target.join("release").to_string_lossy());
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
        if let Err(error) = std::fs::write(&to, &text) {
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

/// The standard output of a command; its progress goes to the terminal.
fn output(context: &Context<'_>, command: &str) -> Result<String, String> {
    let words: Vec<&str> = command.split(' ').collect();
    let mut command: Command = context.command(words[0], &words[1..]);
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
        let mut titles: Vec<_> = TABLES.iter().map(|(title, _)| title).collect();
        titles.sort_unstable();
        titles.dedup();
        assert_eq!(titles.len(), TABLES.len());
    }
}
