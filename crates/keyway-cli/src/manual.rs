//! `keyway manual`: what packages install beside the program (manual pages, completions of shells, a commented configuration file). All of
//! it is made from the definitions that `--help` prints.
//!
//! Never: has a text about an option of its own.

use std::fs;
use std::io;
use std::path::Path;

use clap::{Arg, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

use crate::exit::{self, Failure};
use crate::{config, memcached, shown};

/// Columns of the configuration file's remarks.
const COLUMNS: usize = 100;

/// Writes `man/*.1`, `completions/{keyway.bash,_keyway,keyway.fish}` and `keyway.toml` below `folder`, which is made if absent.
pub(crate) fn write(command: Command, folder: &Path) -> Result<(), Failure> {
    let all = complete(command);
    let written = pages(&all, &folder.join("man"))
        .and_then(|()| completions(all.clone(), &folder.join("completions")))
        .and_then(|()| fs::write(folder.join("keyway.toml"), template(&all)));
    written.map_err(|why| Failure::new(exit::SYSTEM, format_args!("cannot write to {}: {why}", folder.display())))
}

/// The program's commands, with memcached's options in the place of arguments that are only passed on.
fn complete(command: Command) -> Command {
    let mut all = command
        .mut_subcommand("memcached", memcached::define)
        .disable_help_subcommand(true);
    all.build();
    all
}

fn pages(command: &Command, folder: &Path) -> io::Result<()> {
    fs::create_dir_all(folder)?;
    for inner in command.get_subcommands().filter(|inner| !inner.is_hide_set()) {
        pages(inner, folder)?;
    }
    let page = Man::new(command.clone()).manual("Keyway");
    fs::write(folder.join(page.get_filename()), text(command, &page)?)
}

/// One manual page: what clap_mangen makes of a command, and the text after its help as it stands.
fn text(command: &Command, page: &Man) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    page.render_title(&mut out)?;
    page.render_name_section(&mut out)?;
    page.render_synopsis_section(&mut out)?;
    page.render_description_section(&mut out)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        page.render_options_section(&mut out)?;
    }
    if command.get_subcommands().any(|inner| !inner.is_hide_set()) {
        page.render_subcommands_section(&mut out)?;
    }
    if let Some(after) = command.get_after_long_help().or(command.get_after_help()) {
        let mut notes = Roff::new();
        notes.control("SH", ["NOTES"]).control("nf", []);
        for line in after.to_string().lines() {
            notes.text([roman(line)]);
        }
        notes.control("fi", []);
        notes.to_writer(&mut out)?;
    }
    Ok(out)
}

fn completions(command: Command, folder: &Path) -> io::Result<()> {
    let mut command = shown::completed(command);
    fs::create_dir_all(folder)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "keyway", folder)?;
    }
    Ok(())
}

/// A configuration file that changes nothing: every option as a remark, with its default or an example.
fn template(command: &Command) -> String {
    let mut text =
        "# Options of `keyway serve`; the manual page keyway-serve(1) has the same. The command line takes precedence.\n\
                    # `keyway serve --config FILE --check` tells whether a file is right.\n"
            .to_owned();
    for option in command.find_subcommand("serve").into_iter().flat_map(Command::get_arguments) {
        let Some(name) = config::name(option) else { continue };
        text.push('\n');
        wrapped(&mut text, &option.get_help().map(ToString::to_string).unwrap_or_default());
        text.push_str(&format!("#{name} = {}\n", example(option)));
    }
    text
}

fn example(option: &Arg) -> String {
    let kind = config::Kind::of(option);
    let value = match option.get_default_values() {
        [default] => default.to_string_lossy().into_owned(),
        _ => shown::example(option.get_id().as_str()).unwrap_or_default().to_owned(),
    };
    match kind {
        config::Kind::Flag => "true".to_owned(),
        config::Kind::Count => "1".to_owned(),
        config::Kind::List => format!("[\"{value}\"]"),
        config::Kind::One if value.parse::<u32>().is_ok() => value,
        config::Kind::One => format!("\"{value}\""),
    }
}

/// `help` as remarks of at most [`COLUMNS`] columns.
fn wrapped(text: &mut String, help: &str) {
    let mut columns = 0;
    for word in help.split_whitespace() {
        let len = word.chars().count() + 1;
        if columns == 0 || columns + len > COLUMNS {
            text.push_str(if columns == 0 { "#" } else { "\n#" });
            columns = 1;
        }
        text.push(' ');
        text.push_str(word);
        columns += len;
    }
    text.push('\n');
}
