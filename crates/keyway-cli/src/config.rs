//! The configuration file of `keyway serve --config FILE`: TOML, whose names are the options' own. Each line becomes the option that it
//! names, in front of those of the command line, so there is one set of rules for both.
//!
//! Never: knows what an option means.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::PathBuf;

use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::exit::Failure;

/// Similarity of two names (Jaro-Winkler) above which one is proposed for the other; clap has a similar one for options.
const SIMILAR: f64 = 0.8;

/// Options of `keyway serve` that only the command line can have.
const COMMAND_LINE_ONLY: [&str; 3] = ["config", "check", "help"];

/// The values that an option takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `true` or `false`
    Flag,
    /// a number: how often the option is given
    Count,
    /// a text or a number, or an array of these
    List,
    /// a text or a number
    One,
}

impl Kind {
    pub(crate) fn of(option: &Arg) -> Self {
        match option.get_action() {
            ArgAction::SetTrue => Self::Flag,
            ArgAction::Count => Self::Count,
            ArgAction::Append => Self::List,
            _ => Self::One,
        }
    }
}

/// The name of an option in a configuration file, if it may be there.
pub(crate) fn name(option: &Arg) -> Option<&str> {
    option
        .get_long()
        .filter(|name| !option.is_hide_set() && !COMMAND_LINE_ONLY.contains(name))
}

/// A command line with the options of its configuration file, and where these come from.
#[derive(Debug, Default)]
pub(crate) struct Expanded {
    pub(crate) arguments: Vec<OsString>,
    path: PathBuf,
    /// The line of each option that comes from the file.
    lines: BTreeMap<String, usize>,
}

impl Expanded {
    /// `arguments`, the whole command line, and after `serve` the options of the file that `--config` names, except those that the
    /// command line has itself.
    pub(crate) fn new(command: Command, arguments: Vec<OsString>) -> Result<Self, Failure> {
        let Some(given) = given(command.clone(), &arguments) else {
            return Ok(Self {
                arguments,
                ..Self::default()
            });
        };
        let Some(path) = given.get_one::<PathBuf>("config") else {
            return Ok(Self {
                arguments,
                ..Self::default()
            });
        };
        let text = fs::read_to_string(path)
            .map_err(|why| Failure::usage(format_args!("--config: cannot read {}: {why}", path.display())))?;
        let mut expanded = Self {
            path: path.clone(),
            ..Self::default()
        };
        let (program, own) = arguments.split_at(2);
        expanded.arguments.extend_from_slice(program);
        expanded.read(&text, &command, &given)?;
        expanded.arguments.extend_from_slice(own);
        Ok(expanded)
    }

    /// The file and the line of the first option in this text that comes from there; none if there is no such option.
    pub(crate) fn place_of(&self, text: &str) -> Option<String> {
        let is_name = |sign: char| sign.is_ascii_alphanumeric() || sign == '-';
        let mut words = text.split(|sign| !is_name(sign));
        let line = words.find_map(|word| self.lines.get(word.strip_prefix("--")?))?;
        Some(self.at(*line))
    }

    fn at(&self, line: usize) -> String {
        format!("{}, line {line}", self.path.display())
    }

    fn read(&mut self, text: &str, command: &Command, given: &ArgMatches) -> Result<(), Failure> {
        let line_of = |at: usize| text.bytes().take(at).filter(|byte| *byte == b'\n').count() + 1;
        let table = DeTable::parse(text).map_err(|why| {
            let line = line_of(why.span().map_or(0, |span| span.start));
            Failure::usage(format_args!("{}: not TOML: {}", self.at(line), why.message()))
        })?;
        let options: Vec<&Arg> = command
            .find_subcommand("serve")
            .map(|serve| serve.get_arguments().collect())
            .unwrap_or_default();
        let mut entries: Vec<_> = table.get_ref().iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in entries {
            let line = line_of(key.span().start);
            let key: &str = key.get_ref();
            // Hidden ones too: clap refuses them, and says why.
            let option = options
                .iter()
                .find(|option| option.get_long() == Some(key) && !COMMAND_LINE_ONLY.contains(&key));
            let option = option.ok_or_else(|| Failure::usage(format_args!("{}: {}", self.at(line), unknown(key, &options))))?;
            let words = words(Kind::of(option), value)
                .map_err(|wanted| Failure::usage(format_args!("{}: {key} must be {wanted}", self.at(line))))?;
            if given.value_source(option.get_id().as_str()) == Some(ValueSource::CommandLine) {
                continue;
            }
            self.lines.insert(key.to_owned(), line);
            self.arguments.extend(words.into_iter().map(|word| match word {
                Some(word) => format!("--{key}={word}").into(),
                None => format!("--{key}").into(),
            }));
        }
        Ok(())
    }
}

/// The options of `serve` on the command line, however incomplete they are without the file's.
fn given(command: Command, arguments: &[OsString]) -> Option<ArgMatches> {
    if arguments.get(1).map(OsString::as_os_str) != Some(OsStr::new("serve")) {
        return None;
    }
    // A wrong line is reported when it is parsed with the file's options.
    let matches = command.ignore_errors(true).try_get_matches_from(arguments).ok()?;
    matches.subcommand_matches("serve").cloned()
}

fn unknown(key: &str, options: &[&Arg]) -> String {
    let similarity = |name: &str| strsim::jaro_winkler(name, key);
    let similar = options
        .iter()
        .filter_map(|option| name(option))
        .max_by(|a, b| similarity(a).total_cmp(&similarity(b)))
        .filter(|name| similarity(name) > SIMILAR);
    match similar {
        Some(similar) => format!("no option is called \"{key}\"; is \"{similar}\" meant?"),
        None if COMMAND_LINE_ONLY.contains(&key) => format!("\"{key}\" can only be on the command line"),
        None => format!("no option is called \"{key}\"; `keyway serve --help` lists them, here without their dashes"),
    }
}

/// The values of an option, one for each time that it is given, or what its value has to be.
fn words(kind: Kind, value: &Spanned<DeValue<'_>>) -> Result<Vec<Option<String>>, &'static str> {
    match kind {
        Kind::Flag => match value.get_ref() {
            DeValue::Boolean(true) => Ok(vec![None]),
            DeValue::Boolean(false) => Ok(Vec::new()),
            _ => Err("true or false"),
        },
        Kind::Count => match word(value).and_then(|number| number.parse::<u8>().ok()) {
            Some(times) => Ok(vec![None; times.into()]),
            None => Err("a number from 0 to 255"),
        },
        Kind::One => word(value).map(|word| vec![Some(word)]).ok_or("a text or a whole number"),
        Kind::List => {
            let words = match value.get_ref() {
                DeValue::Array(values) => values.iter().map(|value| word(value).map(Some)).collect(),
                _ => word(value).map(|word| vec![Some(word)]),
            };
            words.ok_or("a text, a whole number, or an array of these")
        }
    }
}

/// A text, or a number as it is written. Only decimal ones: an octal mode would otherwise be read as another one.
fn word(value: &Spanned<DeValue<'_>>) -> Option<String> {
    match value.get_ref() {
        DeValue::String(text) => Some(text.to_string()),
        DeValue::Integer(number) if number.radix() == 10 => Some(number.as_str().to_owned()),
        _ => None,
    }
}
