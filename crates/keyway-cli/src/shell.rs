//! The shell: `keyway` on a terminal without a command. Each line is a command on the items of one server or region, with the same rules as on
//! the command line; the line can be edited, and has a history and completion.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, IsTerminal};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::PathBuf;

use clap::{CommandFactory, Parser, Subcommand};
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::DefaultHistory;
use rustyline::validate::Validator;
use rustyline::{Config, Context, Editor, Helper};

use crate::exit::{self, Failure};
use crate::items::{At, Items};
use crate::{commands, verbs};

/// Lines of the history.
const HISTORY_MAX: usize = 1_000;
/// Where the history is, below the user's folder for what programs remember (XDG Base Directory Specification).
const HISTORY: &str = "keyway/history";

/// A line.
#[derive(Parser)]
#[command(
    name = "",
    no_binary_name = true,
    disable_version_flag = true,
    help_template = "{subcommands}\n\n`help COMMAND` says more; a value with blanks is quoted."
)]
struct Typed {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Print the value of a key, or with --info what is known of its item
    Get(verbs::Get),
    /// Store a value
    Set(verbs::Set),
    /// Delete a key
    Delete(verbs::Key),
    /// Let an item live for another time from now on
    Touch(verbs::Touch),
    /// Add to a number
    Incr(verbs::Count),
    /// Subtract from a number
    Decr(verbs::Count),
    /// Print how many seconds an item still lives
    Ttl(verbs::Key),
    /// Remove all items
    Flush(verbs::Flush),
    /// List all keys
    Keys(verbs::Keys),
    /// Leave the shell; Ctrl-D does, too
    #[command(alias = "exit")]
    Quit,
}

/// Reads commands until the input or the user ends. From a terminal, a command that fails does not end it.
pub(crate) fn run(at: &At) -> Result<(), Failure> {
    let items = at.clone().open()?;
    let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
    match is_terminal {
        true => on_terminal(at, items),
        false => of_lines(items),
    }
}

/// Runs the lines of standard input. The failure of one is the failure of all; the others are run.
fn of_lines(mut items: Box<dyn Items>) -> Result<(), Failure> {
    let mut failed = 0;
    for line in io::stdin().lines() {
        let line = line.map_err(|error| Failure::new(exit::SYSTEM, format_args!("cannot read standard input: {error}")))?;
        match run_line(&line, &mut *items) {
            Ok(true) => {}
            Ok(false) => break,
            Err(failure) => {
                commands::remark(format_args!("keyway: {}\n", failure.printable()));
                failed += 1;
            }
        }
    }
    match failed {
        0 => Ok(()),
        1 => Err(Failure::new(exit::NO, "1 command failed")),
        n => Err(Failure::new(exit::NO, format_args!("{n} commands failed"))),
    }
}

fn on_terminal(at: &At, mut items: Box<dyn Items>) -> Result<(), Failure> {
    let failed = |error: ReadlineError| Failure::new(exit::SYSTEM, format_args!("the terminal: {error}"));
    let config = Config::builder()
        .max_history_size(HISTORY_MAX)
        .and_then(|builder| builder.history_ignore_dups(true))
        .map_err(failed)?
        .auto_add_history(true)
        .history_ignore_space(true)
        .build();
    let mut editor: Editor<Completion, DefaultHistory> = Editor::with_config(config).map_err(failed)?;
    editor.set_helper(Some(Completion));
    let history = history();
    if let Some(path) = &history {
        // There is none yet, or it cannot be read: the shell works without.
        let _ = editor.load_history(path);
    }
    let prompt = format!("{}> ", items.place());
    loop {
        match editor.readline(&prompt) {
            Ok(line) => {
                if items.is_broken() {
                    match at.clone().open() {
                        Ok(opened) => items = opened,
                        Err(failure) => {
                            commands::remark(format_args!("{}\n", failure.printable()));
                            continue;
                        }
                    }
                }
                match run_line(&line, &mut *items) {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(failure) => commands::remark(format_args!("{}\n", failure.printable())),
                }
            }
            Err(ReadlineError::Interrupted) => {}
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(failed(error)),
        }
    }
    if let Some(path) = &history {
        let _ = editor.append_history(path);
    }
    Ok(())
}

/// Runs a line. `false`: it ends the shell.
fn run_line(line: &str, items: &mut dyn Items) -> Result<bool, Failure> {
    if line.trim().is_empty() {
        return Ok(true);
    }
    let words = shlex::split(line).ok_or_else(|| Failure::usage("a quotation mark has no partner"))?;
    let verb = match Typed::try_parse_from(words) {
        Ok(line) => line.verb,
        Err(help) if !help.use_stderr() => {
            commands::say(help.to_string().trim_end())?;
            return Ok(true);
        }
        Err(error) => return Err(Failure::usage(error.to_string().trim_start_matches("error: ").trim_end())),
    };
    match verb {
        Verb::Get(verb) => verb.run(items),
        Verb::Set(verb) if !verb.has_value() => Err(Failure::usage("the value is missing: set KEY VALUE")),
        Verb::Set(verb) => verb.run(items),
        Verb::Delete(verb) => verb.delete(items),
        Verb::Touch(verb) => verb.run(items),
        Verb::Incr(verb) => verb.run(items, false),
        Verb::Decr(verb) => verb.run(items, true),
        Verb::Ttl(verb) => verb.ttl(items),
        Verb::Flush(verb) => verb.run(items),
        Verb::Keys(verb) => verb.run(items),
        Verb::Quit => return Ok(false),
    }
    .map(|()| true)
}

/// The file of the history, which only this user can read.
fn history() -> Option<PathBuf> {
    let folder = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let path = folder("XDG_STATE_HOME")
        .or_else(|| Some(folder("HOME")?.join(".local/state")))?
        .join(HISTORY);
    DirBuilder::new().recursive(true).mode(0o700).create(path.parent()?).ok()?;
    OpenOptions::new().append(true).create(true).mode(0o600).open(&path).ok()?;
    Some(path)
}

/// Completes the names of commands and of their options.
struct Completion;

impl Completion {
    fn words(line: &str) -> Vec<String> {
        let mut all = Typed::command();
        all.build();
        let names = |command: &clap::Command| command.get_subcommands().map(|one| one.get_name().to_owned()).collect();
        match line.split_once(' ') {
            None => names(&all),
            Some(("help", _)) => names(&all),
            Some((verb, _)) => all.find_subcommand(verb).map_or_else(Vec::new, |verb| {
                let options = verb.get_arguments().filter_map(|option| option.get_long());
                options.map(|name| format!("--{name}")).collect()
            }),
        }
    }
}

impl Completer for Completion {
    type Candidate = String;

    fn complete(&self, line: &str, at: usize, _: &Context<'_>) -> rustyline::Result<(usize, Vec<String>)> {
        let line = line.get(..at).unwrap_or_default();
        let begin = line.rfind(' ').map_or(0, |blank| blank + 1);
        let begun = line.get(begin..).unwrap_or_default();
        let mut words = Self::words(line);
        words.retain(|word| word.starts_with(begun) && (!begun.is_empty() || !word.starts_with('-')));
        words.iter_mut().for_each(|word| word.push(' '));
        Ok((begin, words))
    }
}

impl Hinter for Completion {
    type Hint = String;
}
impl Highlighter for Completion {}
impl Validator for Completion {}
impl Helper for Completion {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_and_their_options_are_completed() {
        let history = DefaultHistory::new();
        let complete = |line: &str| {
            let context = Context::new(&history);
            Completion.complete(line, line.len(), &context).unwrap()
        };
        assert_eq!(complete("de"), (0, vec!["delete ".to_owned(), "decr ".to_owned()]));
        assert_eq!(complete("get key --i"), (8, vec!["--info ".to_owned()]));
        assert_eq!(complete("help ke"), (5, vec!["keys ".to_owned()]));
        assert_eq!(complete("get de").1, Vec::<String>::new());
        assert_eq!(complete("nonsense --i").1, Vec::<String>::new());
    }

    #[test]
    fn the_lines_are_sound() {
        Typed::command().debug_assert();
    }
}
