//! What the programs that send traces through caches have in common: their arguments, and how they end.

use std::io::{self, Write};
use std::process::ExitCode;

/// What was asked for.
#[derive(Debug, Default)]
pub struct Arguments {
    /// the gate's form
    pub short: bool,
    /// memory of each cache, MiB
    pub memory_mib: Option<u64>,
    /// requests for each item that the cache holds
    pub requests_per_held: Option<u64>,
    /// of the traces
    pub seed: u64,
    /// traces whose name contains this
    pub only: String,
}

/// Runs a program of this name. `all` returns how many checks failed.
pub fn run(name: &str, help: &str, all: impl FnOnce(&Arguments) -> io::Result<usize>) -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if args.iter().any(|a| a == "--help") {
        say(help);
        return ExitCode::SUCCESS;
    }
    match arguments(&args).and_then(|arguments| all(&arguments).map_err(|e| e.to_string())) {
        Ok(0) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(why) => {
            say(&format!("{name}: {why}\n"));
            ExitCode::FAILURE
        }
    }
}

fn arguments(args: &[String]) -> Result<Arguments, String> {
    let mut arguments = Arguments {
        seed: 1,
        ..Arguments::default()
    };
    let mut args = args.iter();
    while let Some(arg) = args.next() {
        if arg == "--short" {
            arguments.short = true;
            continue;
        }
        let value = args.next().ok_or_else(|| format!("{arg} needs a value (--help tells)"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{arg}: '{value}' is no number"));
        match arg.as_str() {
            "--memory-mib" => arguments.memory_mib = Some(number()?),
            "--requests" => arguments.requests_per_held = Some(number()?),
            "--seed" => arguments.seed = number()?,
            "--only" => arguments.only.clone_from(value),
            _ => return Err(format!("unknown argument {arg} (--help tells)")),
        }
    }
    Ok(arguments)
}

/// Prints at once.
pub fn say(text: &str) {
    let mut out = io::stdout().lock();
    let _ = out.write_all(text.as_bytes());
    let _ = out.flush();
}
